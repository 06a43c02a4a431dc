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

uint16_t ob_quant_symmetric_scale(const float x[32], const float importance[32], int lo, int hi)
{
    float w[QK];
    ob_quant_weights(importance, QK, w);
    return stored_scale(x, w, QK, lo, hi, ob_quant_fit_scale(x, w, QK, lo, hi));
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

/* The scale is a power of two: the least that holds the peak (6 is the largest FP4 value), or the one
 * below or above it. Elements are brought near 1 first, because E8M0 reaches where squares vanish. */
void ob_quant_q_mxfp4(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst, q[QK];
    float w[QK], x[QK];
    for (int64_t i = 0; i < n; i += QK, b += 17) {
        const float top = magnitude(src + i, QK);
        ob_quant_weights(importance ? importance + i : NULL, QK, w);
        int exp = 0;
        frexpf(top, &exp); /* top < 2^exp */
        for (int j = 0; j < QK; j++) x[j] = ldexpf(src[i + j], -exp);
        ob_quant_lanes c = {0};
        uint8_t stored[T];
        for (int t = 0; t < T; t++) {
            const int e = top > 0 ? exp - 3 + 127 + (t < 3 ? t - 1 : 0) : 0;
            stored[t] = (uint8_t)(e < 0 ? 0 : e > 252 ? 252 : e); /* 12 * 2^(253-128) overflows */
            c.d[t] = ldexpf(1.0f, stored[t] - 128 - exp);
        }
        const int best = ob_quant_best_lane_codebook(x, w, QK, fp4_rising, &c);
        b[0] = stored[best];
        round_fp4(x, QK, c.d[best], q);
        put_nibbles(q, b + 1);
    }
}

/* The code of the UE4M3 number nearest to 2 d (codes rise with their values). */
static int ue4m3_code(float d)
{
    int lo = 0, hi = 0x7E;
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (ob_quant_ue4m3_half((uint8_t)mid) + ob_quant_ue4m3_half((uint8_t)(mid + 1)) > 2 * d ||
            mid == 0x7E)
            hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

void ob_quant_q_nvfp4(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst, q[16];
    float w[16];
    for (int64_t i = 0; i < n; i += 64, b += 36) {
        for (int s = 0; s < 4; s++) {
            const float *x = src + i + 16 * s;
            ob_quant_weights(importance ? importance + i + 16 * s : NULL, 16, w);
            const int near = ue4m3_code(magnitude(x, 16) / 12.0f);
            ob_quant_lanes c = {0};
            uint8_t stored[T];
            for (int t = 0; t < T; t++) {
                const int code = near + t - 8;
                stored[t] = (uint8_t)(code < 0 ? 0 : code > 0x7E ? 0x7E : code);
                c.d[t] = ob_quant_ue4m3_half(stored[t]);
            }
            const int best = ob_quant_best_lane_codebook(x, w, 16, fp4_rising, &c);
            b[s] = stored[best];
            round_fp4(x, 16, c.d[best], q);
            for (int j = 0; j < 8; j++) b[4 + 8 * s + j] = (uint8_t)(q[j] | q[j + 8] << 4);
        }
    }
}

/* --- one, two bits and ternary ------------------------------------------------------------- */

void ob_quant_q_q1_0(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst;
    float w[128];
    for (int64_t i = 0; i < n; i += 128, b += 18) {
        const float *x = src + i;
        ob_quant_weights(importance ? importance + i : NULL, 128, w);
        double sum = 0, sw = 0; /* least squares for signs: the weighted mean magnitude */
        memset(b, 0, 18);
        for (int j = 0; j < 128; j++) {
            sum += (double)(w[j] * fabsf(x[j]));
            sw += (double)w[j];
            b[2 + j / 8] |= (uint8_t)((x[j] >= 0) << (j % 8));
        }
        wr16(b, ob_quant_f16((float)(sum / sw)));
    }
}

void ob_quant_q_q2_0(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst, q[64];
    float w[64];
    for (int64_t i = 0; i < n; i += 64, b += 18) {
        const float *x = src + i;
        ob_quant_weights(importance ? importance + i : NULL, 64, w);
        const uint16_t d = stored_scale(x, w, 64, -1, 2, ob_quant_fit_scale(x, w, 64, -1, 2));
        ob_quant_round(x, 64, -1, 2, ob_f16_to_f32(d), 0, q);
        wr16(b, d);
        for (int j = 0; j < 16; j++)
            b[2 + j] = (uint8_t)(q[4 * j] | q[4 * j + 1] << 2 | q[4 * j + 2] << 4 |
                                 q[4 * j + 3] << 6);
    }
}

/* 256 elements to q = 0, 1, 2 and their f16 scale. */
static uint16_t round_ternary(const float *x, const float *importance, uint8_t *q)
{
    float w[QK_K];
    ob_quant_weights(importance, QK_K, w);
    const uint16_t d = stored_scale(x, w, QK_K, -1, 1, ob_quant_fit_scale(x, w, QK_K, -1, 1));
    ob_quant_round(x, QK_K, -1, 1, ob_f16_to_f32(d), 0, q);
    return d;
}

/* Digits q[0], q[step], ... (n of them, then zeros up to 5) as the fraction t/243 in 256ths, rounded
 * up so that digits come back exactly. */
static uint8_t five_digits(const uint8_t *q, int n, int step)
{
    int t = 0;
    for (int k = 0; k < 5; k++) t = 3 * t + (k < n ? q[k * step] : 0);
    return (uint8_t)((t * 256 + 242) / 243);
}

void ob_quant_q_tq1_0(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst, q[QK_K];
    for (int64_t i = 0; i < n; i += QK_K, b += 54) {
        wr16(b + 52, round_ternary(src + i, importance ? importance + i : NULL, q));
        for (int j = 0; j < 32; j++) b[j] = five_digits(q + j, 5, 32);
        for (int j = 0; j < 16; j++) b[32 + j] = five_digits(q + 160 + j, 5, 16);
        for (int j = 0; j < 4; j++) b[48 + j] = five_digits(q + 240 + j, 4, 4);
    }
}

void ob_quant_q_tq2_0(const float *src, void *dst, int64_t n, const float *importance)
{
    uint8_t *b = dst, q[QK_K];
    for (int64_t i = 0; i < n; i += QK_K, b += 66) {
        wr16(b + 64, round_ternary(src + i, importance ? importance + i : NULL, q));
        for (int c = 0; c < 2; c++)
            for (int j = 0; j < 32; j++) {
                const uint8_t *e = q + 128 * c + j;
                b[32 * c + j] = (uint8_t)(e[0] | e[32] << 2 | e[64] << 4 | e[96] << 6);
            }
    }
}
