/* dev/npu/npu_fwd.h: the matrix products of a model on an NPU, as dev/products.h wants them.
 *
 * Owns: quantising activations, bringing packed weights to the device through two staging buffers (or pinned), chains of
 * products, turning int32 sums into f32, checking samples of them on the host, and the same arithmetic on the host where
 * there is no device or it failed: the numbers are equal to the bit. Knows neither models nor drivers.
 *
 * Threads: as dev/products.h says; one of these belongs to one device.
 */
#ifndef OB_DEV_NPU_NPU_FWD_H
#define OB_DEV_NPU_NPU_FWD_H

#include "dev/device.h"
#include "dev/npu/npu_gemm.h"
#include "dev/npu/npu_mem.h"
#include "dev/npu/npu_pack.h"
#include "dev/products.h"

typedef struct ob_npu_fwd ob_npu_fwd;

typedef struct ob_npu_fwd_options {
    ob_npu_dev *dev;      /* borrowed; NULL: everything is done on the host */
    ob_npu_gemm *gemm;    /* borrowed; on dev */
    const ob_dev_source *source; /* for the pack's file; NULL: none */
    int verify;           /* OB_VERIFY_ */
    bool pin;             /* weights (but experts) stay where the device reads them, while half of the memory and what
                             may be pinned allow it */
    uint64_t ram_bytes;   /* of the machine; 0: unknown, nothing is pinned */
    size_t stage_bytes;   /* of each of the two staging buffers; 0: 64 MiB */
    int n_threads;        /* that pack weights while the model is loaded; <= 0: as many as there are cores */
} ob_npu_fwd_options;

OB_MUST_CHECK ob_status ob_npu_fwd_new(const ob_npu_fwd_options *opt, ob_npu_fwd **out, ob_err *err);
void ob_npu_fwd_free(ob_npu_fwd *f); /* weights must have been freed */
const ob_dev_products *ob_npu_fwd_products(const ob_npu_fwd *f);
/* After weights, before products: the pack's file is put in place, buffers are made. May be called again. */
OB_MUST_CHECK ob_status ob_npu_fwd_prepare(ob_npu_fwd *f, ob_err *err);

typedef struct ob_npu_fwd_stats {
    uint64_t n_products;     /* parts of products, as the device is given them */
    uint64_t n_on_host;      /* of them computed on the host */
    uint64_t n_verified;     /* of them checked, in part or whole */
    uint64_t staged_bytes, pinned_bytes;
    bool failed;             /* the device failed: since then the host computes */
    char reason[200];        /* why */
} ob_npu_fwd_stats;
void ob_npu_fwd_get_stats(const ob_npu_fwd *f, ob_npu_fwd_stats *out);
ob_npu_pack_stats ob_npu_fwd_pack_stats(const ob_npu_fwd *f);
const char *ob_npu_fwd_pack_path(const ob_npu_fwd *f);

/* Exact product of 128 outputs: sums [n_rows][lds] of a [n_rows][k_pad] and the strip's tiles, K padded. */
void ob_npu_strip_mul(const int8_t *a, int64_t n_rows, int64_t k_pad, const int8_t *strip, int32_t *sums, int64_t lds);

#endif
