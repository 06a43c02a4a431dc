/* quant/q_k.c: quantise to the K formats and IQ4_XS (layouts: deq_k.c, deq_iq.c).
 *
 * Two levels. Each sub-block is fitted alone; the largest fitted scale sets the f16 scale of the
 * super-block; then each sub-block tries the integer scales next to its own, so that the rounding of
 * scales is part of what is minimised; last, codes are rounded with the numbers as stored.
 */
#include "quant/q_search.h"

#include <math.h>

#include "base/math.h"

enum { T = OB_QUANT_LANES };

static int clamp_int(int v, int lo, int hi) { return v < lo ? lo : v > hi ? hi : v; }
/* v / unit to the nearest integer of lo..hi; 0 when there is no unit. */
static int in_units(float v, float unit, int lo, int hi)
{
    if (unit == 0) return 0;
    const float u = v / unit;
    return u >= (float)hi ? hi : u > (float)lo ? (int)lrintf(u) : lo;
}
static const float *importance_of(const float *importance, int64_t i)
{
    return importance ? importance + i : NULL;
}

/* --- scales only: Q3_K, Q6_K, IQ4_XS ------------------------------------------------------- */

typedef struct scaled {
    uint16_t d;          /* f16 */
    int8_t scale[16];
    uint8_t q[QK_K];     /* codes, minus the lowest */
} scaled;

/* n_sub sub-blocks, integer scales in s_lo..s_hi (|s_lo| > s_hi); codes lo..hi, or a codebook. */
static void fit_scaled(const float *x, const float *w, int n_sub, int s_lo, int s_hi, int lo,
                       int hi, const int8_t *values, scaled *out)
{
    const int n = QK_K / n_sub;
    float fit[16], top = 0;
    for (int s = 0; s < n_sub; s++) {
        fit[s] = values ? ob_quant_fit_codebook(x + n * s, w + n * s, n, values)
                        : ob_quant_fit_scale(x + n * s, w + n * s, n, lo, hi);
        if (fabsf(fit[s]) > fabsf(top)) top = fit[s];
    }
    out->d = ob_quant_f16_up(top / (float)s_lo);
    const float d = ob_f16_to_f32(out->d);
    for (int s = 0; s < n_sub; s++) {
        const float *xs = x + n * s, *ws = w + n * s;
        /* Data of few levels is exact at several multiples of its scale, and with the other sign:
         * one of them may be an integer, and within s_lo..s_hi. */
        static const float multiple[T] = {1,    1,        1,    1,  1, 2,     3,  4,
                                          1.5f, 4 / 3.0f, 0.5f, -1, -1.5f, -2, -0.5f, 1};
        ob_quant_lanes c = {0};
        int8_t scale[T];
        for (int t = 0; t < T; t++) {
            const int near = in_units(fit[s] * multiple[t], d, s_lo, s_hi);
            scale[t] = (int8_t)clamp_int(near + (t < 5 ? t - 2 : 0), s_lo, s_hi);
            c.d[t] = d * (float)scale[t];
        }
        const int best = values ? ob_quant_best_lane_codebook(xs, ws, n, values, &c)
                                : ob_quant_best_lane(xs, ws, n, lo, hi, &c, NULL);
        out->scale[s] = scale[best];
        if (values) ob_quant_round_codebook(xs, n, values, c.d[best], out->q + n * s);
        else ob_quant_round(xs, n, lo, hi, c.d[best], 0, out->q + n * s);
    }
}

static void put_q3_scales(const int8_t *scale, uint8_t *s)
{
    memset(s, 0, 12);
    for (int j = 0; j < 16; j++) {
        const int v = scale[j] + 32;
        s[j % 8] |= (uint8_t)((v & 15) << (j < 8 ? 0 : 4));
        s[8 + j % 4] |= (uint8_t)((v >> 4) << (2 * (j / 4)));
    }
}

/* Bits 2k of byte 32c + l hold element 128c + 32k + l. */
static void put_pairs(const uint8_t *q, uint8_t *out)
{
    for (int c = 0; c < 2; c++)
        for (int l = 0; l < 32; l++) {
            const uint8_t *e = q + 128 * c + l;
            out[32 * c + l] = (uint8_t)((e[0] & 3) | (e[32] & 3) << 2 | (e[64] & 3) << 4 |
                                        (e[96] & 3) << 6);
        }
}

void ob_quant_q_q3_k(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst;
    float w[QK_K];
    scaled f;
    for (int64_t i = 0; i < n; i += QK_K, b += 110) {
        ob_quant_weights(importance_of(importance, i), QK_K, w);
        fit_scaled(src + i, w, 16, -32, 31, -4, 3, NULL, &f);
        memset(b, 0, 32);
        for (int e = 0; e < QK_K; e++) b[e % 32] |= (uint8_t)((f.q[e] >> 2) << (e / 32));
        put_pairs(f.q, b + 32);
        put_q3_scales(f.scale, b + 96);
        wr16(b + 108, f.d);
    }
}

void ob_quant_q_q6_k(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst;
    float w[QK_K];
    scaled f;
    for (int64_t i = 0; i < n; i += QK_K, b += 210) {
        ob_quant_weights(importance_of(importance, i), QK_K, w);
        fit_scaled(src + i, w, 16, -128, 127, -32, 31, NULL, &f);
        for (int c = 0; c < 2; c++)
            for (int l = 0; l < 32; l++) {
                const uint8_t *e = f.q + 128 * c + l;
                b[64 * c + l] = (uint8_t)((e[0] & 15) | (e[64] & 15) << 4);
                b[64 * c + 32 + l] = (uint8_t)((e[32] & 15) | (e[96] & 15) << 4);
                b[128 + 32 * c + l] = (uint8_t)(e[0] >> 4 | (e[32] >> 4) << 2 | (e[64] >> 4) << 4 |
                                                (e[96] >> 4) << 6);
            }
        memcpy(b + 192, f.scale, 16);
        wr16(b + 208, f.d);
    }
}

void ob_quant_q_iq4_xs(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst;
    float w[QK_K];
    scaled f;
    for (int64_t i = 0; i < n; i += QK_K, b += 136) {
        ob_quant_weights(importance_of(importance, i), QK_K, w);
        fit_scaled(src + i, w, 8, -32, 31, 0, 0, ob_quant_iq4nl_values, &f);
        unsigned high = 0;
        memset(b + 4, 0, 4);
        for (int g = 0; g < 8; g++) {
            const unsigned s = (unsigned)(f.scale[g] + 32);
            high |= (s >> 4) << (2 * g);
            b[4 + g / 2] |= (uint8_t)((s & 15) << (4 * (g % 2)));
            for (int j = 0; j < 16; j++)
                b[8 + 16 * g + j] = (uint8_t)(f.q[32 * g + j] | f.q[32 * g + j + 16] << 4);
        }
        wr16(b, f.d);
        wr16(b + 2, (uint16_t)high);
    }
}

/* --- scales and minima: Q2_K, Q4_K, Q5_K --------------------------------------------------- */

typedef struct affine {
    uint16_t d, dmin;    /* f16 */
    uint8_t scale[16], min[16];
    uint8_t q[QK_K];
} affine;

/* What the sub-blocks would like, before it is rounded to integers. */
typedef struct wish {
    int n_sub, s_hi, hi;     /* scales and minima in 0..s_hi, codes 0..hi */
    float scale[16], min[16];
} wish;

/* Integers for given scales of scales; returns the error. y = d scale q - dmin min. */
static float place_affine(const float *x, const float *w, const wish *want, float d, float dmin,
                          affine *out)
{
    const int n = QK_K / want->n_sub, s_hi = want->s_hi;
    float sum = 0;
    for (int s = 0; s < want->n_sub; s++) {
        const int near = in_units(want->scale[s], d, 0, s_hi);
        const int near_min = in_units(want->min[s], dmin, 0, s_hi);
        ob_quant_lanes c;
        uint8_t scale[T], lowest[T];
        for (int t = 0; t < T; t++) {
            scale[t] = (uint8_t)clamp_int(near + (t < 15 ? t % 3 - 1 : 0), 0, s_hi);
            lowest[t] = (uint8_t)clamp_int(near_min + (t < 15 ? t / 3 - 2 : 0), 0, s_hi);
            c.d[t] = d * (float)scale[t];
            c.m[t] = -(dmin * (float)lowest[t]);
        }
        float err;
        const int best = ob_quant_best_lane(x + n * s, w + n * s, n, 0, want->hi, &c, &err);
        out->scale[s] = scale[best];
        out->min[s] = lowest[best];
        sum += err;
    }
    return sum;
}

static void fit_affine(const float *x, const float *w, int n_sub, int s_hi, int hi, affine *out)
{
    const int n = QK_K / n_sub;
    wish want = {.n_sub = n_sub, .s_hi = s_hi, .hi = hi};
    float top = 0, top_min = 0, least = INFINITY;
    for (int s = 0; s < n_sub; s++) {
        float m;
        want.scale[s] = ob_quant_fit_affine(x + n * s, w + n * s, n, hi, true, &m);
        want.min[s] = -m;
        top = OB_MAX(top, want.scale[s]);
        top_min = OB_MAX(top_min, want.min[s]);
    }
    /* 63 steps hold any set of scales well. With 15, where the largest one falls matters. */
    const int n_tries = s_hi < 16 ? 4 : 1;
    for (int k = 0; k < n_tries; k++) {
        affine f;
        f.d = ob_quant_f16_up(top / (float)(s_hi - k));
        f.dmin = ob_quant_f16_up(top_min / (float)(s_hi - k));
        const float err = place_affine(x, w, &want, ob_f16_to_f32(f.d), ob_f16_to_f32(f.dmin), &f);
        if (k > 0 && !(err < least)) continue;
        least = err;
        *out = f;
    }
    for (int s = 0; s < n_sub; s++)
        ob_quant_round(x + n * s, n, 0, hi, ob_f16_to_f32(out->d) * (float)out->scale[s],
                       -(ob_f16_to_f32(out->dmin) * (float)out->min[s]), out->q + n * s);
}

void ob_quant_q_q2_k(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst;
    float w[QK_K];
    affine f;
    for (int64_t i = 0; i < n; i += QK_K, b += 84) {
        ob_quant_weights(importance_of(importance, i), QK_K, w);
        fit_affine(src + i, w, 16, 15, 3, &f);
        for (int s = 0; s < 16; s++) b[s] = (uint8_t)(f.scale[s] | f.min[s] << 4);
        put_pairs(f.q, b + 16);
        wr16(b + 80, f.d);
        wr16(b + 82, f.dmin);
    }
}

/* See q4k_scale_min for the picture. */
static void put_q4k_scales(const affine *f, uint8_t *s)
{
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(f->scale[j] | (f->scale[j + 4] >> 4) << 6);
        s[j + 4] = (uint8_t)(f->min[j] | (f->min[j + 4] >> 4) << 6);
        s[j + 8] = (uint8_t)((f->scale[j + 4] & 15) | (f->min[j + 4] & 15) << 4);
    }
}

static void put_q4k_nibbles(const uint8_t *q, uint8_t *out)
{
    for (int c = 0; c < 4; c++)
        for (int l = 0; l < 32; l++)
            out[32 * c + l] = (uint8_t)((q[64 * c + l] & 15) | (q[64 * c + 32 + l] & 15) << 4);
}

void ob_quant_q_q4_k(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst;
    float w[QK_K];
    affine f;
    for (int64_t i = 0; i < n; i += QK_K, b += 144) {
        ob_quant_weights(importance_of(importance, i), QK_K, w);
        fit_affine(src + i, w, 8, 63, 15, &f);
        wr16(b, f.d);
        wr16(b + 2, f.dmin);
        put_q4k_scales(&f, b + 4);
        put_q4k_nibbles(f.q, b + 16);
    }
}

void ob_quant_q_q5_k(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst;
    float w[QK_K];
    affine f;
    for (int64_t i = 0; i < n; i += QK_K, b += 176) {
        ob_quant_weights(importance_of(importance, i), QK_K, w);
        fit_affine(src + i, w, 8, 63, 31, &f);
        wr16(b, f.d);
        wr16(b + 2, f.dmin);
        put_q4k_scales(&f, b + 4);
        memset(b + 16, 0, 32);
        for (int e = 0; e < QK_K; e++) b[16 + e % 32] |= (uint8_t)((f.q[e] >> 4) << (e / 32));
        put_q4k_nibbles(f.q, b + 48);
    }
}

/* Activations, 8 bits: the peak gets code -127 or 127 by the sign that ggml gives it. */
void ob_quant_q_q8_k(const float *src, void *dst, int64_t n, const float *importance)
{
    (void)importance;
    uint8_t *b = dst;
    for (const float *x = src, *end = src + n; x < end; x += QK_K, b += 292) {
        float top = 0;
        for (int j = 0; j < QK_K; j++) top = fabsf(x[j]) > fabsf(top) ? x[j] : top;
        memset(b, 0, 292);
        if (top == 0) continue;
        const float id = -127.0f / top;
        wr32(b, ob_f32_bits(1.0f / id));
        for (int s = 0; s < 16; s++) {
            int sum = 0;
            for (int j = 16 * s; j < 16 * s + 16; j++) {
                const int q = OB_MIN(127, (int)lrintf(x[j] * id));
                b[4 + j] = (uint8_t)q;
                sum += q;
            }
            wr16(b + 260 + 2 * s, (uint16_t)sum);
        }
    }
}
