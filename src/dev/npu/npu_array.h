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
    OB_NPU_DESIGN_STEP = 4,    /* the GEMV, and the vector operations below: a whole step of decoding */
} ob_npu_design;

/* Vector operations of the STEP design, on core (0, 0) and its memory tile: the core gathers n_in words from MM2S channel 0
 * of column 0, computes, and gives n_out words to S2MM channel 0. Parameters are the core's eight words:
 * [n_in, n_out, operation, five of its own]; writing OB_NPU_LOCK_VECTOR to its lock starts it. f32 but where said. */
typedef enum ob_npu_vec {
    OB_VEC_NORM = 1,   /* x [| gain of p0 columns]: each group of p0 columns over its rms, times gain; eps p1 */
    OB_VEC_ROPE,       /* x | one head's table: at a rotated pair (a, b) its cosine and its sine; p0 = head_dim | n_rot << 16,
                          p1 = first rotated column | pairing << 16 (ob_rope_pairing) */
    OB_VEC_CACHE,      /* x -> a cache's type p0 (F32, F16) */
    OB_VEC_ATTN_BEGIN, /* a query [n_head * k_dim]; p0 = n_head | n_head_kv << 16, p1 = k_dim | v_dim << 16,
                          p2 = tokens of a page | K type << 16 | V type << 24, p3 scale, p4 softcap -> one word */
    OB_VEC_ATTN_PAGE,  /* a page of K | of V, [head][token][dim] each; tokens [p0, p1) count -> one word */
    OB_VEC_ATTN_END,   /* one word -> [n_head * v_dim] */
    OB_VEC_GLU,        /* gate | up; p0 = ob_act, p1 clamp */
    OB_VEC_ACT,        /* x; p0 = ob_act */
    OB_VEC_ADD,        /* a | b -> a + p0 * b */
    OB_VEC_SCALE,      /* x -> p0 * x, then p1 * tanh(x / p1) where p1 > 0 */
    OB_VEC_SUM,        /* y [| bias] [| res] -> res + p0 * (y + bias); p1 = 1: there is a bias, 2: there is a res */
    OB_VEC_BF16,       /* x -> bf16, padded with zeros to n_out words of two */
    OB_VEC_GATE,       /* x | g (of p0 columns: 1 or as many) [| res] -> res + x * sigmoid(g); p1 = 2: there is a res */
} ob_npu_vec;
enum { OB_NPU_LOCK_VECTOR = 2, OB_NPU_VEC_WORDS = 128 << 10 /* of n_in: a memory tile */, OB_NPU_VEC_HEAD_FLOATS = 32 << 10 };

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
