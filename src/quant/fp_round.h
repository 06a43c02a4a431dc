/* quant/fp_round.h: values rounded to FP8 (E4M3) and FP4 (E2M1) in blocks with a power of two as scale, and back.
 *
 * What DeepSeek V4's official implementation does to cached keys and to its indexer: the model was trained with it. Rounding
 * is to the nearest, ties to even; the scale is the smallest power of two that keeps the block's largest value within
 * the format (448 and 6).
 */
#ifndef OB_QUANT_FP_ROUND_H
#define OB_QUANT_FP_ROUND_H

#include <math.h>
#include <stdint.h>

enum { OB_E4M3_BLOCK = 64, OB_E2M1_BLOCK = 32 };

/* To a float of `bits` bits after the leading one, least exponent min_exp, at most `top`. NaN stays. */
static inline float ob_round_float(float x, int bits, int min_exp, float top)
{
    int e = 0;
    const float a = fabsf(x);
    if (a >= top) return copysignf(top, x);
    (void)frexpf(a, &e); /* a = m 2^e, m in [0.5, 1) */
    const float step = ldexpf(1.0f, (e - 1 > min_exp ? e - 1 : min_exp) - bits);
    return copysignf(rintf(a / step) * step, x);
}
static inline float ob_round_e4m3(float x) { return ob_round_float(x, 3, -6, 448.0f); }
static inline float ob_round_e2m1(float x) { return ob_round_float(x, 1, 0, 6.0f); }

/* The smallest power of two s with most / s <= top. */
static inline float ob_block_scale(const float *x, int64_t n, float least, float top)
{
    float most = least;
    int e = 0;
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
    const float m = frexpf(most / top, &e);
    return ldexpf(1.0f, m == 0.5f ? e - 1 : e);
}

static inline void ob_round_e4m3_row(float *x, int64_t n)
{
    for (int64_t at = 0; at < n; at += OB_E4M3_BLOCK) {
        const int64_t end = at + OB_E4M3_BLOCK < n ? at + OB_E4M3_BLOCK : n;
        const float s = ob_block_scale(x + at, end - at, 1e-4f, 448.0f);
        for (int64_t i = at; i < end; i++) x[i] = ob_round_e4m3(x[i] / s) * s;
    }
}

static inline void ob_round_e2m1_row(float *x, int64_t n)
{
    for (int64_t at = 0; at < n; at += OB_E2M1_BLOCK) {
        const int64_t end = at + OB_E2M1_BLOCK < n ? at + OB_E2M1_BLOCK : n;
        const float s = ob_block_scale(x + at, end - at, 6.0f * 0x1p-126f, 6.0f);
        for (int64_t i = at; i < end; i++) x[i] = ob_round_e2m1(x[i] / s) * s;
    }
}

/* The Walsh-Hadamard transform of n values (a power of two), scaled so that lengths stay, then FP4. */
static inline void ob_round_rotated(float *x, int64_t n)
{
    for (int64_t d = 1; d < n; d *= 2)
        for (int64_t i = 0; i < n; i += 2 * d)
            for (int64_t j = i; j < i + d; j++) {
                const float a = x[j], b = x[j + d];
                x[j] = a + b;
                x[j + d] = a - b;
            }
    const float scale = 1.0f / sqrtf((float)n);
    for (int64_t i = 0; i < n; i++) x[i] *= scale;
    ob_round_e2m1_row(x, n);
}

#endif
