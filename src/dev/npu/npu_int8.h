/* dev/npu/npu_int8.h: the int8 arithmetic of NPU products, once for packing, for activations and for results.
 *
 * A vector of K numbers becomes codes and one scale: amax = the largest |x|, code = x * (127 / amax) rounded half away
 * from zero, scale = amax / 127. Activations have a scale per row (token), weights one per output. The product of codes
 * is an exact int32 sum (K up to 133,000), so whoever computes it gets the same; then
 *     y = (float)sum * (row scale * output scale), + bias, * scale, + residual, in this order.
 * Header only: everybody who rounds here rounds with the same expressions.
 *
 * A vector whose amax is below 1e-35 is all zero. One with a NaN or infinity has codes 0 and scale NaN: what depends on
 * it is NaN, as it would be in f32.
 */
#ifndef OB_DEV_NPU_NPU_INT8_H
#define OB_DEV_NPU_NPU_INT8_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { OB_NPU_CODE_MAX = 127, OB_NPU_MAX_K = 133000 };
#define OB_NPU_TINY 1e-35f

/* The largest |x|, at least `so_far`; infinite where something is not finite. (Magnitudes of floats are ordered like
 * their bits, infinities and NaNs above all.) */
static inline float ob_npu_amax(const float *x, int64_t n, float so_far)
{
    int32_t most;
    memcpy(&most, &so_far, sizeof most);
    for (int64_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= INT32_MAX;
        most = bits > most ? bits : most;
    }
    if (most >= 0x7F800000) return INFINITY;
    memcpy(&so_far, &most, sizeof so_far);
    return so_far;
}

static inline float ob_npu_scale(float amax) { return isinf(amax) ? NAN : amax < OB_NPU_TINY ? 0.0f : amax / 127.0f; }
static inline float ob_npu_inverse(float amax) { return isinf(amax) || amax < OB_NPU_TINY ? 0.0f : 127.0f / amax; }

/* Codes of finite x; where inverse is 0, zeros whatever x is. */
static inline void ob_npu_codes(const float *x, int64_t n, float inverse, int8_t *q)
{
    if (inverse == 0) {
        for (int64_t i = 0; i < n; i++) q[i] = 0;
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const float v = x[i] * inverse;
        const int32_t t = (int32_t)v;
        const float rest = v - (float)t;
        q[i] = (int8_t)(t + (rest >= 0.5f) - (rest <= -0.5f));
    }
}

#endif
