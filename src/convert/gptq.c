/* Q4_0 with compensated rounding: GPTQ (Frantar et al. 2022, arXiv 2210.17323, algorithm 1).
 *
 * With C the mean products of a row's inputs (ob_imatrix_cov), the loss of rounding w to v is (w - v)' C (w - v).
 * Columns are rounded one by one; each rounding error is made up for by the columns that come after. With
 * C^-1 = U'U, U upper triangular, the error of column j, e = (w_j - v_j) / U_jj, changes w_k by -e U_jk for all k > j
 * of its block. A block of 32 gets its scale when its turn comes, fitted to the weights as they are by then and
 * weighed by 1 / U_jj^2, the loss that column still has left to give.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "convert/convert_int.h"
#include "quant/hadamard.h"

enum { QK = 32 };

/* Share of the mean of C's diagonal that is added to it: inputs of the text that were never seen must not count
 * as impossible. */
static const double k_damping = 0.01;

/* C [n][n] into H C H: the products of rotated inputs. */
static void rotate_products(double *c, int64_t n)
{
    float v[QK];
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t b = 0; b < n; b += QK) {
                double *at = pass ? c + b * n + i : c + i * n + b;
                const int64_t step = pass ? n : 1;
                double scale = 0;
                for (int64_t k = 0; k < QK; k++) scale = fmax(scale, fabs(at[k * step]));
                if (scale == 0) continue;
                for (int64_t k = 0; k < QK; k++) v[k] = (float)(at[k * step] / scale);
                ob_hadamard32(v);
                for (int64_t k = 0; k < QK; k++) at[k * step] = (double)v[k] * scale;
            }
}

/* C [n][n] (destroyed) to U [n][n] with C^-1 = U'U: C = R R' with R upper triangular, from the last column on, and
 * U = R^-1. acc [n]. False when C is not positive. */
static bool factor(double *c, int64_t n, double *acc, float *u)
{
    for (int64_t j = n - 1; j >= 0; j--) {
        double d = c[j * n + j];
        for (int64_t k = j + 1; k < n; k++) d -= c[j * n + k] * c[j * n + k];
        if (!(d > 0)) return false;
        d = sqrt(d);
        c[j * n + j] = d;
        for (int64_t i = 0; i < j; i++) {
            double s = c[i * n + j];
            for (int64_t k = j + 1; k < n; k++) s -= c[i * n + k] * c[j * n + k];
            c[i * n + j] = s / d;
        }
    }
    /* Row i of the inverse is (e_i - sum over k > i of R_ik times row k) / R_ii. */
    memset(u, 0, (size_t)(n * n) * sizeof *u);
    for (int64_t i = n - 1; i >= 0; i--) {
        double *row = c + i * n;
        const double inv = 1.0 / row[i];
        memset(acc, 0, (size_t)n * sizeof *acc);
        for (int64_t k = i + 1; k < n; k++)
            for (int64_t j = k; j < n; j++) acc[j] -= row[k] * c[k * n + j];
        row[i] = inv;
        for (int64_t j = i + 1; j < n; j++) row[j] = acc[j] * inv;
        for (int64_t j = i; j < n; j++) u[i * n + j] = (float)row[j];
    }
    return true;
}

ob_status conv_gptq_prepare(const ob_imatrix *im, const char *name, int64_t mat, bool rotated, int64_t first,
                            int64_t n, float *u, ob_err *err)
{
    ob_status s = OB_OK;
    double *c = ob_reallocarray(NULL, (size_t)(n + 1) * (size_t)n, sizeof *c), mean = 0;
    if (!c) return ob_err_set(err, OB_E_NO_MEMORY, "%s: no memory for products of %lld columns", name, (long long)n);
    if (!ob_imatrix_cov(im, name, mat, first, n, c)) memset(c, 0, (size_t)(n * n) * sizeof *c);
    if (rotated) rotate_products(c, n);
    for (int64_t i = 0; i < n; i++) mean += c[i * n + i] / (double)n;
    for (int64_t i = 0; i < n; i++) c[i * n + i] += mean > 0 ? k_damping * mean : 1.0;
    if (!factor(c, n, c + n * n, u))
        s = ob_err_set(err, OB_E_FORMAT, "%s: the products of its inputs are no covariance", name);
    ob_free(c);
    return s;
}

/* 32 columns from j0 on of a block of n; e becomes their errors. */
static void round_block(float *w, const float *u, int64_t n, int64_t j0, uint8_t *dst, float e[QK])
{
    float importance[QK];
    uint8_t q[QK];
    for (int j = 0; j < QK; j++) {
        const float ujj = u[(j0 + j) * n + j0 + j];
        importance[j] = 1.0f / (ujj * ujj);
    }
    const float d = ob_quant_q4_0_scale(w + j0, importance, dst), inv = d != 0 ? 1.0f / d : 0.0f;
    for (int j = 0; j < QK; j++) {
        const float *row = u + (j0 + j) * n + j0;
        const float code = fminf(fmaxf(rintf(w[j0 + j] * inv), -8.0f), 7.0f);
        e[j] = (w[j0 + j] - d * code) / row[j];
        q[j] = (uint8_t)((int)code + 8);
        for (int k = j + 1; k < QK; k++) w[j0 + k] -= e[j] * row[k];
    }
    for (int j = 0; j < QK / 2; j++) dst[2 + j] = (uint8_t)(q[j] | q[j + QK / 2] << 4);
}

void conv_gptq_row(float *w, const float *u, int64_t n, uint8_t *dst)
{
    for (int64_t j0 = 0; j0 < n; j0 += QK, dst += 18) {
        float e[QK];
        round_block(w, u, n, j0, dst, e);
        for (int j = 0; j < QK; j++) {
            const float *row = u + (j0 + j) * n;
            for (int64_t k = j0 + QK; k < n; k++) w[k] -= e[j] * row[k];
        }
    }
}
