/* What packing and product mean, in plain loops. */
#include <string.h>

#include "base/math.h"
#include "dev/npu/npu_gemm.h"

void ob_npu_i8c_pack_part(int8_t *dst, const int8_t *w, int64_t ldw, int64_t k, int64_t n, int64_t j0, int64_t j1)
{
    int64_t k_pad = ob_npu_pad_k(k), end = j1 == n ? ob_npu_pad_n(n) : j1;
    uint64_t at = ob_npu_i8c_at(k_pad, 0, j0);
    memset(dst + at, 0, (uint64_t)(end - j0) * (uint64_t)k_pad); /* strips are as many bytes as weights */
    for (int64_t j = j0; j < j1; j++)
        for (int64_t i0 = 0; i0 < k; i0 += OB_NPU_MICRO) {
            int8_t *o = dst + ob_npu_i8c_at(k_pad, i0, j);
            const int8_t *p = w + j * ldw + i0;
            for (int64_t i = 0; i < OB_MIN(OB_NPU_MICRO, k - i0); i++) o[i * OB_NPU_MICRO] = p[i];
        }
}

void ob_npu_i8c_pack(int8_t *dst, const int8_t *w, int64_t ldw, int64_t k, int64_t n)
{
    ob_npu_i8c_pack_part(dst, w, ldw, k, n, 0, n);
}

void ob_npu_i8r_pack(int8_t *dst, const int8_t *a, int64_t lda, int64_t n_rows, int64_t m_pad, int64_t k)
{
    int64_t k_pad = ob_npu_pad_k(k);
    memset(dst, 0, (uint64_t)m_pad * (uint64_t)k_pad);
    for (int64_t m = 0; m < n_rows; m++)
        for (int64_t i = 0; i < k; i += OB_NPU_MICRO)
            memcpy(dst + ob_npu_i8r_at(k_pad, m, i), a + m * lda + i, (size_t)OB_MIN(OB_NPU_MICRO, k - i));
}

/* Row r of the activations times output j. */
static int32_t dot(const ob_npu_mm *mm, const int8_t *w, int64_t r, int64_t j)
{
    int64_t k_pad = ob_npu_pad_k(mm->k);
    int32_t sum = 0;
    for (int64_t i = 0; i < mm->k; i++) sum += mm->a[r * mm->lda + i] * w[ob_npu_i8c_at(k_pad, i, j)];
    return sum;
}

void ob_npu_mm_ref(const ob_npu_mm *mm, const int8_t *w, int32_t *c, int64_t ldc, int64_t j0, int64_t j1)
{
    for (int64_t r = 0; r < mm->n_rows; r++)
        for (int64_t j = j0; j < j1; j++) c[r * ldc + j] = dot(mm, w, r, j);
}

ob_status ob_npu_mm_check(const ob_npu_mm *mm, const int8_t *w, int64_t j0, int64_t j1, ob_err *err)
{
    for (int64_t j = j0; j < j1; j++)
        for (int64_t r = 0; r < mm->n_rows; r++) {
            int32_t got = mm->c[r * mm->ldc + j], want = dot(mm, w, r, j);
            if (got != want)
                return ob_err_set(err, OB_E_CORRUPT, "NPU: row %lld, output %lld of a product is %d and must be %d",
                                  (long long)r, (long long)j, got, want);
        }
    return OB_OK;
}
