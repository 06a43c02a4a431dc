/* quant/q_simple.c: quantise to the formats of small blocks (layouts: deq_simple.c, deq_iq.c).
 *
 * f16 scales: after the search, the f16 neighbours of the scale (and minimum) are tried too, because
 * near 2^-24 the steps of f16 are as coarse as the codes.
 */
#include "quant/q_search.h"

#include <math.h>

enum { T = OB_QUANT_LANES };

void ob_quant_q_f32(const float *src, void *dst, int64_t n, const float *importance)
{
    (void)importance;
    memcpy(dst, src, (size_t)n * sizeof(float));
}

void ob_quant_q_f16(const float *src, void *dst, int64_t n, const float *importance)
{
    (void)importance;
    uint8_t *b = dst;
    for (int64_t i = 0; i < n; i++) wr16(b + 2 * i, ob_f32_to_f16(src[i]));
}

void ob_quant_q_bf16(const float *src, void *dst, int64_t n, const float *importance)
{
    (void)importance;
    uint8_t *b = dst;
    for (int64_t i = 0; i < n; i++) wr16(b + 2 * i, ob_f32_to_bf16(src[i]));
}

static float magnitude(const float *x, int n)
{
    float max = 0;
    for (int j = 0; j < n; j++) max = fabsf(x[j]) > max ? fabsf(x[j]) : max;
    return max;
}

/* 8-bit codes of 32 elements, halves away from zero, and their sum. No search: at 8 bits the peak
 * decides, and equal bytes with ggml are worth more. */
static int put_q8(const float *x, float d, uint8_t *q)
{
    const float id = d != 0 ? 1.0f / d : 0.0f;
    int sum = 0;
    for (int j = 0; j < QK; j++) {
        const int v = (int)roundf(x[j] * id);
        q[j] = (uint8_t)v;
        sum += v;
    }
    return sum;
}

void ob_quant_q_q8_0(const float *src, void *dst, int64_t n, const float *importance)
{
    (void)importance;
    uint8_t *b = dst;
    for (const float *x = src, *end = src + n; x < end; x += QK, b += 34) {
        const float d = magnitude(x, QK) / 127.0f;
        wr16(b, ob_f32_to_f16(d));
        put_q8(x, d, b + 2);
    }
}

void ob_quant_q_q8_1(const float *src, void *dst, int64_t n, const float *importance)
{
    (void)importance;
    uint8_t *b = dst;
    for (const float *x = src, *end = src + n; x < end; x += QK, b += 36) {
        const float d = magnitude(x, QK) / 127.0f;
        wr16(b, ob_f32_to_f16(d));
        wr16(b + 2, ob_f32_to_f16((float)put_q8(x, d, b + 4) * d));
    }
}

/* --- one f16 scale ------------------------------------------------------------------------- */

static uint16_t f16_step(uint16_t h, int by)
{
    const int m = (h & 0x7FFF) + by;
    return m < 0 || m > 0x7BFF ? h : (uint16_t)((h & 0x8000) | m);
}

/* The f16 near d that serves best, for codes lo..hi. */
static uint16_t stored_scale(const float *x, const float *w, int n, int lo, int hi, float d)
{
    const uint16_t h = ob_quant_f16(d);
    ob_quant_lanes c = {0};
    for (int t = 0; t < T; t++) c.d[t] = ob_f16_to_f32(f16_step(h, t < 5 ? t - 2 : 0));
    const int best = ob_quant_best_lane(x, w, n, lo, hi, &c, NULL);
    return f16_step(h, best < 5 ? best - 2 : 0);
}

/* The same for a scale and a minimum. */
static void stored_affine(const float *x, const float *w, int n, int hi, float d, float m,
                          uint16_t *d16, uint16_t *m16)
{
    const uint16_t hd = ob_quant_f16(d), hm = ob_quant_f16(m);
    ob_quant_lanes c;
    for (int t = 0; t < T; t++) {
        c.d[t] = ob_f16_to_f32(f16_step(hd, t < 15 ? t % 5 - 2 : 0));
        c.m[t] = ob_f16_to_f32(f16_step(hm, t < 15 ? t / 5 - 1 : 0));
    }
    const int best = ob_quant_best_lane(x, w, n, 0, hi, &c, NULL);
    *d16 = f16_step(hd, best < 15 ? best % 5 - 2 : 0);
    *m16 = f16_step(hm, best < 15 ? best / 5 - 1 : 0);
}

static void put_nibbles(const uint8_t *q, uint8_t *out)
{
    for (int j = 0; j < 16; j++) out[j] = (uint8_t)((q[j] & 15) | (q[j + 16] & 15) << 4);
}
static uint32_t fifth_bits(const uint8_t *q)
{
    uint32_t h = 0;
    for (int j = 0; j < QK; j++) h |= (uint32_t)(q[j] >> 4 & 1) << j;
    return h;
}

void ob_quant_q_q4_0(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst, q[QK];
    float w[QK];
    for (int64_t i = 0; i < n; i += QK, b += 18) {
        const float *x = src + i;
        ob_quant_weights(importance ? importance + i : NULL, QK, w);
        const uint16_t d = stored_scale(x, w, QK, -8, 7, ob_quant_fit_scale(x, w, QK, -8, 7));
        ob_quant_round(x, QK, -8, 7, ob_f16_to_f32(d), 0, q);
        wr16(b, d);
        put_nibbles(q, b + 2);
    }
}

void ob_quant_q_q5_0(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst, q[QK];
    float w[QK];
    for (int64_t i = 0; i < n; i += QK, b += 22) {
        const float *x = src + i;
        ob_quant_weights(importance ? importance + i : NULL, QK, w);
        const uint16_t d = stored_scale(x, w, QK, -16, 15, ob_quant_fit_scale(x, w, QK, -16, 15));
        ob_quant_round(x, QK, -16, 15, ob_f16_to_f32(d), 0, q);
        wr16(b, d);
        wr32(b + 2, fifth_bits(q));
        put_nibbles(q, b + 6);
    }
}

void ob_quant_q_q4_1(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst, q[QK];
    float w[QK], m;
    uint16_t d16, m16;
    for (int64_t i = 0; i < n; i += QK, b += 20) {
        const float *x = src + i;
        ob_quant_weights(importance ? importance + i : NULL, QK, w);
        const float d = ob_quant_fit_affine(x, w, QK, 15, false, &m);
        stored_affine(x, w, QK, 15, d, m, &d16, &m16);
        ob_quant_round(x, QK, 0, 15, ob_f16_to_f32(d16), ob_f16_to_f32(m16), q);
        wr16(b, d16);
        wr16(b + 2, m16);
        put_nibbles(q, b + 4);
    }
}

void ob_quant_q_q5_1(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst, q[QK];
    float w[QK], m;
    uint16_t d16, m16;
    for (int64_t i = 0; i < n; i += QK, b += 24) {
        const float *x = src + i;
        ob_quant_weights(importance ? importance + i : NULL, QK, w);
        const float d = ob_quant_fit_affine(x, w, QK, 31, false, &m);
        stored_affine(x, w, QK, 31, d, m, &d16, &m16);
        ob_quant_round(x, QK, 0, 31, ob_f16_to_f32(d16), ob_f16_to_f32(m16), q);
        wr16(b, d16);
        wr16(b + 2, m16);
        wr32(b + 4, fifth_bits(q));
        put_nibbles(q, b + 8);
    }
}

void ob_quant_q_iq4_nl(const float *src, void *dst, int64_t n, const float *importance)
{
    const int8_t *values = ob_quant_iq4nl_values;
    uint8_t *b = dst, q[QK];
    float w[QK];
    for (int64_t i = 0; i < n; i += QK, b += 18) {
        const float *x = src + i;
        ob_quant_weights(importance ? importance + i : NULL, QK, w);
        const uint16_t h = ob_quant_f16(ob_quant_fit_codebook(x, w, QK, values));
        ob_quant_lanes c = {0};
        for (int t = 0; t < T; t++) c.d[t] = ob_f16_to_f32(f16_step(h, t < 5 ? t - 2 : 0));
        const int best = ob_quant_best_lane_codebook(x, w, QK, values, &c);
        ob_quant_round_codebook(x, QK, values, c.d[best], q);
        wr16(b, ob_f32_to_f16(c.d[best]));
        put_nibbles(q, b + 2);
    }
}

/* --- FP4 ----------------------------------------------------------------------------------- */

/* The FP4 values in rising order (one of the two zeros is spare) and the code of each. */
static const int8_t fp4_rising[16] = {-12, -8, -6, -4, -3, -2, -1, 0, 0, 1, 2, 3, 4, 6, 8, 12};
static const uint8_t fp4_code[16] = {15, 14, 13, 12, 11, 10, 9, 0, 0, 1, 2, 3, 4, 5, 6, 7};

static void round_fp4(const float *x, int n, float d, uint8_t *q)
{
    ob_quant_round_codebook(x, n, fp4_rising, d, q);
    for (int j = 0; j < n; j++) q[j] = fp4_code[q[j]];
}

void ob_quant_q_mxfp4(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst, q[QK];
    float w[QK];
    for (int64_t i = 0; i < n; i += QK, b += 17) {
        const float *x = src + i, top = magnitude(x, QK);
        ob_quant_weights(importance ? importance + i : NULL, QK, w);
        int exp = 0;
        frexpf(top, &exp);      /* top < 2^exp, and the largest code is 6 = 1.5 * 2^2 */
        int e = exp - 3 + 127;  /* stored exponent of a scale that keeps the peak below 8 */
        ob_quant_lanes c = {0};
        uint8_t stored[T];
        for (int t = 0; t < T; t++) {
            int v = top > 0 ? e + (t < 3 ? t - 1 : 0) : 0;
            stored[t] = (uint8_t)(v < 0 ? 0 : v > 254 ? 254 : v);
            c.d[t] = ob_quant_e8m0_half(stored[t]);
        }
        const int best = ob_quant_best_lane_codebook(x, w, QK, fp4_rising, &c);
        b[0] = stored[best];
        round_fp4(x, QK, c.d[best], q);
        put_nibbles(q, b + 1);
    }
}
