/* dev/npu/npu_kernel.h: a design ready to run on an open NPU: its PDI in the heap, a queue, and texts with addresses
 * in.
 *
 * Owns: where the PDI comes from (the kernel set of this kind of NPU, or the soft PDI of npu_array.h where the NPU is a
 * software model), and whether control text of our builder may be used with it. Knows nothing of what is computed.
 */
#ifndef OB_DEV_NPU_NPU_KERNEL_H
#define OB_DEV_NPU_NPU_KERNEL_H

#include "dev/npu/npu_array.h"
#include "dev/npu/npu_elf.h"
#include "dev/npu/npu_queue.h"
#include "dev/npu/npu_set.h"
#include "dev/npu/npu_text.h"

/* The control text of a shape, without addresses. */
typedef struct ob_npu_shape {
    int64_t m, k, n; /* whole tiles */
    uint8_t *text;
    ob_npu_patch *patches;
    size_t n_bytes, n_patches;
} ob_npu_shape;

typedef struct ob_npu_kernel {
    ob_npu_dev *dev;      /* borrowed */
    ob_npu_design design;
    ob_npu_place place;
    ob_npu_set set;       /* empty for a software model */
    ob_npu_bo *pdi, *init; /* PDI; its LOADPDI */
    ob_npu_queue *queue;  /* every chain of it begins with init */
    bool builder;         /* our own control text may be run: a software model, or text of the set's compiler agrees */
    ob_npu_shape *shapes; /* [n_shapes] met so far */
    size_t n_shapes;
} ob_npu_kernel;

/* Fails where there is no set, or one that does not fit, or (UNSUPPORTED) one with a soft PDI in it. */
OB_MUST_CHECK ob_status ob_npu_kernel_load(ob_npu_kernel *k, ob_npu_dev *d, ob_npu_design design, ob_err *err);
void ob_npu_kernel_unload(ob_npu_kernel *k);

/* Our builder may be used on hardware only where the set has a compiler's text of some shape, and each that it has is
 * word for word ours. */
bool ob_npu_kernel_builder_agrees(const ob_npu_kernel *k);

/* "gemm_i8": files of a set are NAME.init.elf and NAME_m128_k576_n1024.elf. */
const char *ob_npu_design_name(ob_npu_design d);

/* The control text of a shape: of the set's file for it where there is one (checked against the builder's where that is
 * allowed), else the builder's. *text and *patches are *taken* (ob_free). m is 1 for the GEMV; all are whole tiles.
 * UNSUPPORTED: no file, and the builder may not be used. */
OB_MUST_CHECK ob_status ob_npu_kernel_text(const ob_npu_kernel *k, int64_t m, int64_t n_in, int64_t n_out,
                                           uint8_t **text, size_t *n_bytes, ob_npu_patch **patches, size_t *n_patches,
                                           ob_err *err);
/* Number (in k->shapes) of a shape, whose text is made the first time. It stays; the array may move. */
OB_MUST_CHECK ob_status ob_npu_kernel_shape(ob_npu_kernel *kn, int64_t m, int64_t k, int64_t n, size_t *out, ob_err *err);

#endif
