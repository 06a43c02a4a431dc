/* quant/deq_k.c: dequantise the K formats: super-blocks of 256 elements whose sub-blocks have small
 * integer scales under one f16 scale. In the drawings a byte offset stands before each field.
 */
#include "quant/quant_int.h"

/* Q2_K, 84 bytes: 0 s[16] (lo scale, hi minimum) | 16 q[64] | 80 d f16 | 82 dmin f16
 * Bits 2k of q[32c + l] make element 128c + 32k + l; its sub-block of 16 is 8c + 2k + l/16.
 * y = (d scale) q - (dmin minimum) */
void ob_quant_deq_q2_k(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 84) {
        const float d = rd_f16(b + 80), dmin = rd_f16(b + 82);
        for (int sub = 0; sub < 16; sub++) {
            const float dl = d * (float)(b[sub] & 15), ml = dmin * (float)(b[sub] >> 4);
            const uint8_t *q = b + 16 + 32 * (sub / 8) + 16 * (sub % 2);
            const int shift = 2 * (sub / 2 % 4);
            for (int l = 0; l < 16; l++) y[16 * sub + l] = dl * (float)(q[l] >> shift & 3) - ml;
        }
    }
}

/* Q3_K, 110 bytes: 0 h[32] | 32 q[64] | 96 s[12] (see q3k_scale) | 108 d f16
 * Low two bits as Q2_K; bit 4c + k of h[l] set means "do not subtract 4".
 * y = (d scale) (q - 4 or q) */
void ob_quant_deq_q3_k(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 110) {
        const float d = rd_f16(b + 108);
        for (int sub = 0; sub < 16; sub++) {
            const float dl = d * (float)q3k_scale(b + 96, sub);
            const uint8_t *q = b + 32 + 32 * (sub / 8) + 16 * (sub % 2), *h = b + 16 * (sub % 2);
            const int shift = 2 * (sub / 2 % 4), bit = sub / 2;
            for (int l = 0; l < 16; l++)
                y[16 * sub + l] = dl * (float)((q[l] >> shift & 3) + (h[l] >> bit & 1) * 4 - 4);
        }
    }
}

/* Q4_K, 144 bytes: 0 d f16 | 2 dmin f16 | 4 s[12] (see q4k_scale_min) | 16 q[128]
 * lo of q[32c + l] is element 64c + l, hi is 64c + 32 + l; sub-blocks of 32.
 * y = (d scale) q - (dmin minimum) */
void ob_quant_deq_q4_k(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 144) {
        const float d = rd_f16(b), dmin = rd_f16(b + 2);
        for (int sub = 0; sub < 8; sub++) {
            int scale, min;
            q4k_scale_min(b + 4, sub, &scale, &min);
            const float dl = d * (float)scale, ml = dmin * (float)min;
            const uint8_t *q = b + 16 + 32 * (sub / 2);
            const int shift = 4 * (sub % 2);
            for (int l = 0; l < 32; l++) y[32 * sub + l] = dl * (float)(q[l] >> shift & 15) - ml;
        }
    }
}

/* Q5_K, 176 bytes: 0 d f16 | 2 dmin f16 | 4 s[12] | 16 h[32] | 48 q[128]
 * As Q4_K; bit `sub` of h[l] is bit 4 of element l of that sub-block. */
void ob_quant_deq_q5_k(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 176) {
        const float d = rd_f16(b), dmin = rd_f16(b + 2);
        for (int sub = 0; sub < 8; sub++) {
            int scale, min;
            q4k_scale_min(b + 4, sub, &scale, &min);
            const float dl = d * (float)scale, ml = dmin * (float)min;
            const uint8_t *q = b + 48 + 32 * (sub / 2), *h = b + 16;
            const int shift = 4 * (sub % 2);
            for (int l = 0; l < 32; l++)
                y[32 * sub + l] = dl * (float)((q[l] >> shift & 15) + (h[l] >> sub & 1) * 16) - ml;
        }
    }
}

/* Q6_K, 210 bytes: 0 q[128] | 128 h[64] | 192 s[16] signed | 208 d f16
 * In half c of 128 elements, quarter k of 32: nibble k/2 of q[64c + 32(k%2) + l] and bits 2k of
 * h[32c + l] make element 128c + 32k + l; sub-blocks of 16.  y = (d scale) (q - 32) */
void ob_quant_deq_q6_k(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 210) {
        const float d = rd_f16(b + 208);
        for (int sub = 0; sub < 16; sub++) {
            const float dl = d * (float)(int8_t)b[192 + sub];
            const int c = sub / 8, k = sub / 2 % 4, half = 16 * (sub % 2);
            const uint8_t *q = b + 64 * c + 32 * (k % 2) + half, *h = b + 128 + 32 * c + half;
            for (int l = 0; l < 16; l++) {
                int x = (q[l] >> (4 * (k / 2)) & 15) | (h[l] >> (2 * k) & 3) << 4;
                y[16 * sub + l] = dl * (float)(x - 32);
            }
        }
    }
}

/* Q8_K, 292 bytes, activations: 0 d f32 | 4 q[256] signed | 260 sums of 16, i16[16].  y = d q */
void ob_quant_deq_q8_k(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 292) {
        const float d = ob_bits_f32(rd32(b));
        for (int j = 0; j < QK_K; j++) y[j] = d * (float)(int8_t)b[4 + j];
    }
}
