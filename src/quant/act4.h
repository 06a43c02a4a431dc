/* quant/act4.h: activations of rotated weights, rounded to 4 bits.
 *
 * 32 values (after quant/hadamard.h) become codes q of -8..7 and one f32 scale d, the one of four that leaves the least
 * square error. m is the value of largest magnitude (the positive one of two equal ones), r = 1 / m correctly rounded:
 *
 *     t = 0: d = |m| * (1/7)    1: d = m * (-1/7.5)    2: d = m * (-1/8.25)    3: d = m * (-1/9.25)
 *     inverse of d: r (with m's sign taken off for t = 0) times 7, -7.5, -8.25, -9.25
 *     q = min(max(rint(x * inverse), -8), 7),  e = fma(d, q, -x), error = sum of e^2 over 32: fma(e[i + 16], e[i + 16], e[i] * e[i]) for i < 16, then the
 *         upper half is added to the lower one four times
 *
 * A signed scale gives the largest value the code that only one side has; t = 0 is for blocks whose both ends are as
 * large, as a spike spread by the transform leaves them. Against |m| / 7, the usual rule, mean KLD falls by a fifth
 * (docs/quality.md). Every step is a correctly rounded f32 operation in a given order, so all devices find the same
 * bits. A block whose |m| is not above 1e-35 is zero.
 *
 * Packed, for 4-bit matrix units: 16 bytes, byte j = (q[j] & 15) | (q[j + 16] & 15) << 4, the order of Q4_0's weights,
 * whose codes minus 8 (flip bit 3) are the same two's complement nibbles; then the scales. See docs/numerics.md.
 */
#ifndef OB_QUANT_ACT4_H
#define OB_QUANT_ACT4_H

#include <math.h>
#include <stdint.h>

enum { OB_ACT4 = 32, OB_ACT4_TRIES = 4 };
#define OB_ACT4_TINY 1e-35f

static inline float ob_act4_code(float x, float inv)
{
    const float v = rintf(x * inv);
    return v >= -8.0f ? v > 7.0f ? 7.0f : v : -8.0f; /* not finite: -8 */
}

/* Codes of 32 values into q; returns d. */
static inline float ob_act4_codes(const float x[OB_ACT4], int8_t q[OB_ACT4])
{
    static const float step[OB_ACT4_TRIES] = {7.0f, -7.5f, -8.25f, -9.25f};
    static const float unit[OB_ACT4_TRIES] = {1 / 7.0f, 1 / -7.5f, 1 / -8.25f, 1 / -9.25f};
    float hi = x[0], lo = x[0], least = INFINITY, best_d = 0, best_inv = 0;
    for (int i = 1; i < OB_ACT4; i++) {
        hi = x[i] > hi ? x[i] : hi;
        lo = x[i] < lo ? x[i] : lo;
    }
    const float m = hi >= -lo ? hi : lo, r = 1.0f / m;
    for (int t = 0; t < OB_ACT4_TRIES && fabsf(m) > OB_ACT4_TINY; t++) {
        const float d = (t ? m : fabsf(m)) * unit[t], inv = (t ? r : fabsf(r)) * step[t];
        float e[OB_ACT4];
        for (int i = 0; i < OB_ACT4; i++) e[i] = fmaf(d, ob_act4_code(x[i], inv), -x[i]);
        for (int i = 0; i < OB_ACT4 / 2; i++) e[i] = fmaf(e[i + OB_ACT4 / 2], e[i + OB_ACT4 / 2], e[i] * e[i]);
        for (int n = OB_ACT4 / 4; n; n /= 2)
            for (int i = 0; i < n; i++) e[i] += e[i + n];
        if (!(e[0] < least)) continue;
        least = e[0];
        best_d = d;
        best_inv = inv;
    }
    for (int i = 0; i < OB_ACT4; i++) q[i] = (int8_t)ob_act4_code(x[i], best_inv);
    return best_d;
}

/* x becomes what its codes stand for. */
static inline void ob_act4_round(float x[OB_ACT4])
{
    int8_t q[OB_ACT4];
    const float d = ob_act4_codes(x, q);
    for (int i = 0; i < OB_ACT4; i++) x[i] = d * (float)q[i];
}

#endif
