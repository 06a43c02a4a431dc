/* quant/deq_iq.c: dequantise the IQ formats: super-blocks of 256 elements made of entries of fixed
 * codebooks (iq_grids.c), with signs and small scales apart. "Group" is 32 elements, g its index.
 * In the drawings a byte offset stands before each field.
 */
#include "quant/iq_grids.h"
#include "quant/quant_int.h"

/* Seven stored signs; the eighth makes their number even. */
static inline unsigned sign_byte(unsigned seven)
{
    return seven | (unsigned)(__builtin_popcount(seven) & 1) << 7;
}

/* n magnitudes in the bytes of `entry`, made negative where the bit of `signs` is set. */
static inline void put_entry(float *y, int n, uint64_t entry, unsigned signs, float d)
{
    for (int j = 0; j < n; j++) {
        float x = d * (float)(entry >> (8 * j) & 255);
        y[j] = signs >> j & 1 ? -x : x;
    }
}

/* IQ2_XXS, 66 bytes: 0 d f16 | 2 eight times { entry[4] | u32: four times 7 signs, scale in 28-31 }
 * y = d (1/2 + scale) / 4 * entry */
void ob_quant_deq_iq2_xxs(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 66) {
        const float d = rd_f16(b);
        for (int g = 0; g < 8; g++) {
            const uint8_t *e = b + 2 + 8 * g;
            const uint32_t s = rd32(e + 4);
            const float dl = d * (0.5f + (float)(s >> 28)) * 0.25f;
            for (int l = 0; l < 4; l++)
                put_entry(y + 32 * g + 8 * l, 8, ob_quant_iq2xxs_grid[e[l]],
                          sign_byte(s >> (7 * l) & 127), dl);
        }
    }
}

/* IQ2_XS, 74 bytes: 0 d f16 | 2 e[32] u16: entry in bits 0-8, signs in 9-15 | 66 s[8]: lo and hi
 * are the scales of the halves of a group.  y as IQ2_XXS */
void ob_quant_deq_iq2_xs(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 74) {
        const float d = rd_f16(b);
        for (int i = 0; i < 32; i++) {
            const unsigned e = rd16(b + 2 + 2 * i), s = b[66 + i / 4] >> (4 * (i / 2 % 2)) & 15;
            const float dl = d * (0.5f + (float)s) * 0.25f;
            put_entry(y + 8 * i, 8, ob_quant_iq2xs_grid[e & 511], sign_byte(e >> 9), dl);
        }
    }
}

/* IQ2_S, 82 bytes: 0 d f16 | 2 e[32] | 34 signs[32] | 66 h[8]: bits 2l are bits 8-9 of entry 4g + l
 * | 74 s[8] as IQ2_XS */
void ob_quant_deq_iq2_s(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 82) {
        const float d = rd_f16(b);
        for (int i = 0; i < 32; i++) {
            const unsigned e = b[2 + i] | (b[66 + i / 4] >> (2 * (i % 4)) & 3u) << 8;
            const unsigned s = b[74 + i / 4] >> (4 * (i / 2 % 2)) & 15;
            const float dl = d * (0.5f + (float)s) * 0.25f;
            put_entry(y + 8 * i, 8, ob_quant_iq2s_grid[e], b[34 + i], dl);
        }
    }
}

/* IQ3_XXS, 98 bytes: 0 d f16 | 2 e[64], entries of 4 elements | 66 u32[8] as in IQ2_XXS
 * y = d (1/2 + scale) / 2 * entry */
void ob_quant_deq_iq3_xxs(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 98) {
        const float d = rd_f16(b);
        for (int g = 0; g < 8; g++) {
            const uint32_t s = rd32(b + 66 + 4 * g);
            const float dl = d * (0.5f + (float)(s >> 28)) * 0.5f;
            for (int l = 0; l < 8; l++)
                put_entry(y + 32 * g + 4 * l, 4, ob_quant_iq3xxs_grid[b[2 + 8 * g + l]],
                          sign_byte(s >> (7 * (l / 2)) & 127) >> (4 * (l % 2)), dl);
        }
    }
}

/* IQ3_S, 110 bytes: 0 d f16 | 2 e[64] | 66 h[8]: bit l is bit 8 of entry 8g + l | 74 signs[32] |
 * 106 s[4]: lo is the scale of an even group, hi of an odd one.  y = d (1 + 2 scale) * entry */
void ob_quant_deq_iq3_s(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 110) {
        const float d = rd_f16(b);
        for (int i = 0; i < 64; i++) {
            const unsigned e = b[2 + i] | (b[66 + i / 8] >> (i % 8) & 1u) << 8;
            const int s = b[106 + i / 16] >> (4 * (i / 8 % 2)) & 15;
            put_entry(y + 4 * i, 4, ob_quant_iq3s_grid[e], b[74 + i / 2] >> (4 * (i % 2)),
                      d * (float)(1 + 2 * s));
        }
    }
}

static inline void put_iq1(float *y, unsigned e, float d, float delta)
{
    const uint64_t entry = ob_quant_iq1s_grid[e];
    for (int j = 0; j < 8; j++) y[j] = d * ((float)(int8_t)(entry >> (8 * j) & 255) + delta);
}

/* IQ1_S, 50 bytes: 0 d f16 | 2 e[32] | 34 h[8] u16: bits 3l are bits 8-10 of entry 4g + l, scale in
 * 12-14, sign of the shift in 15.  y = d (2 scale + 1) (entry +- 1/8) */
void ob_quant_deq_iq1_s(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 50) {
        const float d = rd_f16(b);
        for (int i = 0; i < 32; i++) {
            const unsigned h = rd16(b + 34 + 2 * (i / 4));
            const unsigned e = b[2 + i] | (h >> (3 * (i % 4)) & 7) << 8;
            put_iq1(y + 8 * i, e, d * (float)(2 * (h >> 12 & 7) + 1), h >> 15 ? -0.125f : 0.125f);
        }
    }
}

/* IQ1_M, 56 bytes: 0 e[32] | 32 h[16]: nibble i is, for entry i, bits 8-10 and the sign of the shift
 * | 48 s[4] u16: four 3-bit scales each, one per 16 elements; the top nibbles together are d, f16 */
void ob_quant_deq_iq1_m(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 56) {
        unsigned half = 0;
        for (int k = 0; k < 4; k++) half |= (unsigned)(rd16(b + 48 + 2 * k) >> 12) << (4 * k);
        const float d = ob_f16_to_f32((uint16_t)half);
        for (int i = 0; i < 32; i++) {
            const unsigned h = b[32 + i / 2] >> (4 * (i % 2)) & 15;
            const int s = rd16(b + 48 + 2 * (i / 8)) >> (3 * (i / 2 % 4)) & 7;
            put_iq1(y + 8 * i, b[i] | (h & 7) << 8, d * (float)(2 * s + 1),
                    h & 8 ? -0.125f : 0.125f);
        }
    }
}

/* IQ4_NL, 32 elements in 18 bytes: 0 d f16 | 2 q[16]; lo is element j, hi is j + 16.
 * y = d value[q] */
void ob_quant_deq_iq4_nl(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK, b += 18) {
        const float d = rd_f16(b);
        for (int j = 0; j < 16; j++) {
            y[j] = d * (float)ob_quant_iq4nl_values[b[2 + j] & 15];
            y[j + 16] = d * (float)ob_quant_iq4nl_values[b[2 + j] >> 4];
        }
    }
}

/* IQ4_XS, 136 bytes: 0 d f16 | 2 h u16: bits 2g are bits 4-5 of scale g | 4 s[4]: low nibbles of the
 * scales | 8 q[128], groups of 16 bytes as in IQ4_NL.  y = d (scale - 32) value[q] */
void ob_quant_deq_iq4_xs(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 136) {
        const float d = rd_f16(b);
        const int h = rd16(b + 2);
        for (int g = 0; g < 8; g++) {
            const int s = (b[4 + g / 2] >> (4 * (g % 2)) & 15) | (h >> (2 * g) & 3) << 4;
            const float dl = d * (float)(s - 32);
            const uint8_t *q = b + 8 + 16 * g;
            for (int j = 0; j < 16; j++) {
                y[32 * g + j] = dl * (float)ob_quant_iq4nl_values[q[j] & 15];
                y[32 * g + j + 16] = dl * (float)ob_quant_iq4nl_values[q[j] >> 4];
            }
        }
    }
}
