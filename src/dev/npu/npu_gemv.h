/* dev/npu/npu_gemv.h: products of single rows with 4-bit weights on the array of an open NPU: what decoding wants.
 *
 * Owns: a context of its own with the GEMV's design loaded, control text of each shape, buffers for rows and results,
 * chains. Weights are q4g32 (npu_layout.h) in a buffer of the same NPU. Knows neither models nor packing. Belongs to
 * the thread of its NPU.
 *
 * Arithmetic: x is rounded to bf16 (to nearest, ties to even); sums are f32 in the order of ob_npu_mac_q4, step after
 * step along K. A row's result depends on nothing but the row and the weight.
 */
#ifndef OB_DEV_NPU_NPU_GEMV_H
#define OB_DEV_NPU_NPU_GEMV_H

#include "dev/npu/npu_layout.h"
#include "dev/npu/npu_queue.h"

typedef struct ob_npu_gemv ob_npu_gemv;

/* y[j] = sum over i of x[i] * W[j][i]. */
typedef struct ob_npu_mv {
    const float *x;     /* [k], borrowed for the call; neighbours with the same x and k share one upload */
    int32_t k, n;       /* not padded */
    const ob_npu_bo *w; /* ob_npu_q4_bytes(k, n) bytes from w_off on, flushed */
    uint64_t w_off;     /* a multiple of 4096 */
    float *y;           /* [n]; written when the call returns OB_OK */
} ob_npu_mv;

/* d is *borrowed* and outlives it. Errors: as ob_npu_gemm_new. */
OB_MUST_CHECK ob_status ob_npu_gemv_new(ob_npu_dev *d, ob_npu_gemv **out, ob_err *err);
void ob_npu_gemv_free(ob_npu_gemv *g); /* NULL is fine */

/* Builds what products of this shape need, so that running them allocates nothing. */
OB_MUST_CHECK ob_status ob_npu_gemv_prepare(ob_npu_gemv *g, int64_t k, int64_t n, ob_err *err);
/* n products, none of which reads what another writes, in as few chains as the limits allow (72 commands, 250 ms).
 * After a failure no y may be read, and ob_npu_mv_ref gives the same numbers. */
OB_MUST_CHECK ob_status ob_npu_gemv_run(ob_npu_gemv *g, const ob_npu_mv *mv, int n, ob_err *err);

typedef struct ob_npu_gemv_stats { uint64_t n_products, n_chains, n_texts; } ob_npu_gemv_stats;
ob_npu_gemv_stats ob_npu_gemv_stats_get(const ob_npu_gemv *g);

/* Rounds x [k] to bf16, dst [ob_npu_q4_pad_k(k)], padding zero. */
void ob_npu_bf16_pack(uint16_t *dst, const float *x, int64_t k);
/* Outputs [j0, j1) of the product on the host, to the bit what the array computes: x as ob_npu_bf16_pack leaves it, w
 * the packed weight, y [j1 - j0]; j0 a multiple of 32. */
void ob_npu_mv_ref(const uint16_t *x, int64_t k, const uint8_t *w, int64_t j0, int64_t j1, float *y);

#endif
