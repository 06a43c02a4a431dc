/* dev/npu/npu_gemm.h: exact int8 matrix products on the array of an open NPU.
 *
 * Owns: the hardware context (its queue) with the kernels loaded, the control text of each shape (built once on the
 * host; a chain's texts are copied side by side into one buffer of the heap, with their addresses in, so the heap holds
 * one chain and not one text a weight), the buffers for activations and products, and chains: products that need no step of
 * the host between them are one submit. Knows neither models nor scales: int8 in, int32 out. Belongs to the thread of
 * its NPU.
 *
 * Weights are packed as npu_layout.h says (i8c) and lie in a buffer (npu_mem.h) of the same NPU; ob_npu_i8c_pack is the
 * plain definition of that packing and ob_npu_mm_ref that of the product, for checks and for a device that fails.
 */
#ifndef OB_DEV_NPU_NPU_GEMM_H
#define OB_DEV_NPU_NPU_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "dev/npu/npu_layout.h"
#include "dev/npu/npu_queue.h"

typedef struct ob_npu_gemm ob_npu_gemm;

/* One product: c[r][j] = sum over i of a[r][i] * W[j][i], exactly, for K up to 133,000. */
typedef struct ob_npu_mm {
    const int8_t *a;  /* [n_rows][lda], borrowed for the call; products of a chain with the same a, lda, n_rows and k
                         share one upload */
    int64_t lda;
    int32_t n_rows;   /* 1..OB_NPU_MAX_M */
    int32_t k, n;     /* inputs and outputs of the weight, not padded */
    const ob_npu_bo *w; /* holds ob_npu_i8c_bytes(k, n) bytes from w_off on, already flushed to the device */
    uint64_t w_off;   /* a multiple of 4096 */
    int32_t *c;       /* [n_rows][ldc], ldc >= n: written when the call returns OB_OK */
    int64_t ldc;
} ob_npu_mm;

/* d is *borrowed* and outlives it. Makes a context and loads the GEMM's PDI: of the kernel set for this NPU
 * (npu_set.h), or the soft PDI where d->os->soft. */
OB_MUST_CHECK ob_status ob_npu_gemm_new(ob_npu_dev *d, ob_npu_gemm **out, ob_err *err);
void ob_npu_gemm_free(ob_npu_gemm *g);

/* Run n products in order; they may share inputs but none reads what another writes. Split into several submits where
 * a chain's limits (72 commands, about 250 ms by estimate, memory for products) ask for it. Errors: INVALID, NO_MEMORY,
 * TIMEOUT, DEVICE, DEVICE_LOST; then no c is to be read, and ob_npu_mm_ref can give the same numbers. */
OB_MUST_CHECK ob_status ob_npu_gemm_run(ob_npu_gemm *g, const ob_npu_mm *mm, int n, ob_err *err);

typedef struct ob_npu_gemm_stats {
    uint64_t n_products;  /* commands; a product of many rows and outputs may be several */
    uint64_t n_chains;    /* submits */
    uint64_t n_texts;     /* control texts built, one a shape */
    uint64_t heap_bytes;  /* of the device's heap, PDI included */
    uint64_t buffer_bytes; /* for activations and products */
} ob_npu_gemm_stats;
void ob_npu_gemm_get_stats(const ob_npu_gemm *g, ob_npu_gemm_stats *out);

/* --- plain definitions --- */

/* dst [ob_npu_i8c_bytes(k, n)] from w [n][ldw] (a row per output), padding zeroed. */
void ob_npu_i8c_pack(int8_t *dst, const int8_t *w, int64_t ldw, int64_t k, int64_t n);
/* The same for outputs [j0, j1) only, which touches whole strips: j0 a multiple of 128, j1 too or n; the padding of
 * those strips is zeroed, and of the last block where j1 == n. For packing in pieces. */
void ob_npu_i8c_pack_part(int8_t *dst, const int8_t *w, int64_t ldw, int64_t k, int64_t n, int64_t j0, int64_t j1);
/* dst [pad_m * pad_k] from a [n_rows][lda], padding zeroed. */
void ob_npu_i8r_pack(int8_t *dst, const int8_t *a, int64_t lda, int64_t n_rows, int64_t m_pad, int64_t k);

/* Outputs [j0, j1) of the product, from the packed weight `w` (host pointer) that mm->w holds: plain int32 loops. */
void ob_npu_mm_ref(const ob_npu_mm *mm, const int8_t *w, int32_t *c, int64_t ldc, int64_t j0, int64_t j1);
/* Does mm->c agree with the reference in outputs [j0, j1)? CORRUPT names the first that does not. */
OB_MUST_CHECK ob_status ob_npu_mm_check(const ob_npu_mm *mm, const int8_t *w, int64_t j0, int64_t j1, ob_err *err);

#endif
