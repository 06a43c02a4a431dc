/* Q4_0 and Q5_0 with compensated rounding: GPTQ (Frantar et al. 2022, arXiv 2210.17323, algorithm 1).
 *
 * With C the mean products of a row's inputs (ob_imatrix_cov), the loss of rounding w to v is (w - v)' C (w - v).
 * Columns are rounded one by one; each rounding error is made up for by the columns that come after. With
 * C^-1 = U'U, U upper triangular, the error of column j, e = (w_j - v_j) / U_jj, changes w_k by -e U_jk for all k > j
 * of its block, and what remains of the loss in the end is the sum of e^2.
 *
 * Blocks of 32 go in order of their inputs' energy, the strongest first, since what comes last is compensated by
 * nothing. A block gets its scale when its turn comes: several scales around the one of least squares round the block,
 * and the one with the least sum of e^2 stays.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "convert/convert_int.h"
#include "quant/hadamard.h"

enum { QK = 32, N_SCALES = 16 };

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

static double energy(const double *c, int64_t n, int64_t block)
{
    double sum = 0;
    for (int64_t i = block * QK; i < (block + 1) * QK; i++) sum += c[i * n + i];
    return sum;
}

/* order [n / 32]: blocks by falling energy; equal ones stay in order. */
static void sort_blocks(const double *c, int64_t n, int32_t *order)
{
    for (int32_t b = 0; b < (int32_t)(n / QK); b++) {
        int32_t at = b;
        while (at > 0 && energy(c, n, order[at - 1]) < energy(c, n, b)) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = b;
    }
}

/* to [n][n] = C with its blocks of columns and rows in that order. */
static void reorder(const double *c, int64_t n, const int32_t *order, double *to)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t b = 0; b < n / QK; b++)
            memcpy(to + i * n + b * QK, c + (order[i / QK] * QK + i % QK) * n + order[b] * QK, QK * sizeof *c);
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
                            int64_t n, float *u, int32_t *order, ob_err *err)
{
    ob_status s = OB_OK;
    double *c = ob_reallocarray(NULL, (size_t)(2 * n + 1) * (size_t)n, sizeof *c), *sorted = c + n * n, mean = 0;
    if (!c) return ob_err_set(err, OB_E_NO_MEMORY, "%s: no memory for products of %lld columns", name, (long long)n);
    if (!ob_imatrix_cov(im, name, mat, first, n, c)) memset(c, 0, (size_t)(n * n) * sizeof *c);
    if (rotated) rotate_products(c, n);
    for (int64_t i = 0; i < n; i++) mean += c[i * n + i] / (double)n;
    for (int64_t i = 0; i < n; i++) c[i * n + i] += mean > 0 ? k_damping * mean : 1.0;
    sort_blocks(c, n, order);
    reorder(c, n, order, sorted);
    if (!factor(sorted, n, sorted + n * n, u))
        s = ob_err_set(err, OB_E_FORMAT, "%s: the products of its inputs are no covariance", name);
    ob_free(c);
    return s;
}

/* Rounds to an integer, ties to even, for |x| < 2^22: adding pushes the fraction out of an f32. */
static inline float round_small(float x)
{
    const float big = 12582912.0f; /* 1.5 * 2^23 */
    return (x + big) - big;
}

/* The block w [32] rounded with N_SCALES scales d at once, a lane each; u: its rows of U (row length n) from its own
 * first column on. loss: sums of e^2. */
static void try_scales(const float *w, const float *u, int64_t n, const float d[N_SCALES], float lo, float hi,
                       float loss[N_SCALES])
{
    float at[QK][N_SCALES], inv[N_SCALES];
    for (int c = 0; c < N_SCALES; c++) {
        inv[c] = d[c] != 0 ? 1.0f / d[c] : 0.0f;
        loss[c] = 0;
        for (int j = 0; j < QK; j++) at[j][c] = w[j];
    }
    for (int j = 0; j < QK; j++) {
        const float *row = u + j * n;
        const float by = 1.0f / row[j];
        float e[N_SCALES];
        for (int c = 0; c < N_SCALES; c++) {
            float q = at[j][c] * inv[c];
            q = q < lo ? lo : q > hi ? hi : q;
            e[c] = (at[j][c] - d[c] * round_small(q)) * by;
            loss[c] += e[c] * e[c];
        }
        for (int k = j + 1; k < QK; k++)
            for (int c = 0; c < N_SCALES; c++) at[k][c] -= e[c] * row[k];
    }
}

/* The scale, as stored, of a block whose turn has come. */
static uint16_t choose_scale(const float *w, const float *u, int64_t n, int lo, int hi)
{
    enum { MIDDLE = 7 };
    static const float step = 0.03f;
    float importance[QK], d[N_SCALES], loss[N_SCALES];
    uint16_t stored[N_SCALES];
    for (int j = 0; j < QK; j++) importance[j] = 1.0f / (u[j * n + j] * u[j * n + j]);
    const float fit = ob_f16_to_f32(ob_quant_symmetric_scale(w, importance, lo, hi));
    for (int c = 0; c < N_SCALES; c++) {
        stored[c] = ob_f32_to_f16(fit * (1.0f + step * (float)(c - MIDDLE)));
        d[c] = ob_f16_to_f32(stored[c]);
        if (!isfinite(d[c])) d[c] = fit, stored[c] = ob_f32_to_f16(fit);
    }
    try_scales(w, u, n, d, (float)lo, (float)hi, loss);
    int best = MIDDLE; /* of equal ones, the fit */
    for (int c = 0; c < N_SCALES; c++)
        if (loss[c] < loss[best]) best = c;
    return stored[best];
}

/* Codes lo..hi of the block with scale d; w changes, e becomes the errors. */
static void round_block(float *w, const float *u, int64_t n, float d, int lo, int hi, uint8_t q[QK], float e[QK])
{
    const float inv = d != 0 ? 1.0f / d : 0.0f;
    for (int j = 0; j < QK; j++) {
        const float *row = u + j * n;
        const float code = round_small(fminf(fmaxf(w[j] * inv, (float)lo), (float)hi));
        e[j] = (w[j] - d * code) / row[j];
        q[j] = (uint8_t)((int)code - lo);
        for (int k = j + 1; k < QK; k++) w[k] -= e[j] * row[k];
    }
}

/* scale, the fifth bits (Q5_0), nibbles */
static void put_block(uint16_t d, const uint8_t q[QK], bool fifth, uint8_t *dst)
{
    uint32_t high = 0;
    dst[0] = (uint8_t)d;
    dst[1] = (uint8_t)(d >> 8);
    dst += 2;
    for (int j = 0; j < QK; j++) high |= (uint32_t)(q[j] >> 4 & 1) << j;
    for (int i = 0; i < 4 && fifth; i++) *dst++ = (uint8_t)(high >> 8 * i);
    for (int j = 0; j < QK / 2; j++) dst[j] = (uint8_t)((q[j] & 15) | (q[j + QK / 2] & 15) << 4);
}

bool conv_gptq_can(ob_type type) { return type == OB_Q4_0 || type == OB_Q5_0; }

void conv_gptq_row(ob_type type, float *w, const float *u, const int32_t *order, int64_t n, float *sorted, uint8_t *dst)
{
    const int hi = type == OB_Q5_0 ? 15 : 7, lo = -hi - 1;
    const size_t block_bytes = ob_type_row_bytes(type, QK);
    for (int64_t b = 0; b < n / QK; b++) memcpy(sorted + b * QK, w + (int64_t)order[b] * QK, QK * sizeof *w);
    for (int64_t j0 = 0; j0 < n; j0 += QK) {
        float e[QK];
        uint8_t q[QK];
        const float *rows = u + j0 * n + j0;
        const uint16_t d = choose_scale(sorted + j0, rows, n, lo, hi);
        round_block(sorted + j0, rows, n, ob_f16_to_f32(d), lo, hi, q, e);
        put_block(d, q, type == OB_Q5_0, dst + (size_t)order[j0 / QK] * block_bytes);
        for (int j = 0; j < QK; j++) {
            const float *row = u + (j0 + j) * n;
            for (int64_t k = j0 + QK; k < n; k++) sorted[k] -= e[j] * row[k];
        }
    }
}
