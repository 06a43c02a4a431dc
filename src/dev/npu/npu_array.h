/* dev/npu/npu_array.h: the software model of the array: control text in, moved and multiplied bytes out.
 *
 * Owns: 8 columns of shim DMA (16 buffer descriptors, 2 channels each way with queues of 4), the cores' run-time
 * parameters, and the fixed-function designs that a soft PDI names. It executes the real control text, op by op; data
 * moves only while the text waits for a token, so that a descriptor that is overwritten too early gives wrong numbers
 * here as it may on silicon. Knows nothing of drivers: npu_soft.h's bus maps device addresses to memory. The array
 * itself is `ob_npu_array` there.
 *
 * What it cannot show: core code, routes, locks between DMA and cores, timing.
 */
#ifndef OB_DEV_NPU_NPU_ARRAY_H
#define OB_DEV_NPU_NPU_ARRAY_H

#include "dev/npu/npu_layout.h"
#include "dev/npu/npu_soft.h"

/* What the cores do. One design is loaded at a time. */
typedef enum ob_npu_design {
    OB_NPU_DESIGN_COPY = 1,    /* each column: MM2S channel 0 straight to S2MM channel 0 */
    OB_NPU_DESIGN_GEMM_I8 = 2, /* npu_layout.h: i8r x i8c -> int32 */
    OB_NPU_DESIGN_GEMV_Q4 = 3, /* bf16 x q4g32 -> f32 */
} ob_npu_design;

/* The 64 bytes that stand where a PDI would be. */
typedef struct ob_npu_soft_pdi {
    char magic[8];          /* OB_NPU_SOFT_PDI_MAGIC without its NUL */
    uint32_t version, kind; /* 1; ob_npu_design */
    uint16_t m, k, n;       /* of a core's tile */
    uint8_t rows, cols;
    uint32_t fifo_depth;
    uint32_t rtp_addr;      /* in each core tile: words [steps along K][output tiles] */
    uint32_t lock_addr;     /* in each core tile: writing 1 starts the core on its parameters */
    uint8_t reserved[24];   /* zero */
    uint32_t check;         /* inverted sum of the 15 words before */
} ob_npu_soft_pdi;
_Static_assert(sizeof(ob_npu_soft_pdi) == OB_NPU_SOFT_PDI_BYTES, "soft PDI");

void ob_npu_soft_pdi_make(ob_npu_soft_pdi *out, ob_npu_design kind);

#endif
