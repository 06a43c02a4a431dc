/* quant/quant_int.h: what the files of this room share. Blocks are read as bytes (little-endian, any
 * alignment); `n` is the number of elements, a multiple of the block.
 */
#ifndef OB_QUANT_QUANT_INT_H
#define OB_QUANT_QUANT_INT_H

#include "quant/quant.h"

enum { QK = 32, QK_K = 256 }; /* elements of a small block and of a super-block */

static inline uint16_t rd16(const uint8_t *p)
{
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}
static inline uint32_t rd32(const uint8_t *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}
static inline void wr16(uint8_t *p, uint16_t x) { memcpy(p, &x, sizeof x); }
static inline void wr32(uint8_t *p, uint32_t x) { memcpy(p, &x, sizeof x); }
static inline float rd_f16(const uint8_t *p) { return ob_f16_to_f32(rd16(p)); }

/* The 6-bit (scale, minimum) pair of sub-block j < 8 of Q4_K and Q5_K, packed in 12 bytes:
 *     bytes 0..3   scale of j < 4 in bits 0-5, high bits of scale 4+j in 6-7
 *     bytes 4..7   minimum of j < 4 in bits 0-5, high bits of minimum 4+j in 6-7
 *     bytes 8..11  low nibble: scale of 4+j, high nibble: minimum of 4+j */
static inline void q4k_scale_min(const uint8_t *s, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

/* The 6-bit scale j < 16 of Q3_K, biased by 32, packed in 12 bytes: low nibbles in bytes 0..7
 * (j < 8 low half, j >= 8 high half), high pairs in bytes 8..11. */
static inline int q3k_scale(const uint8_t *s, int j)
{
    int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
    return (low | (s[8 + j % 4] >> (2 * (j / 4)) & 3) << 4) - 32;
}

/* Values of the 4-bit codes. */
extern const int8_t ob_quant_iq4nl_values[16]; /* IQ4_NL, IQ4_XS: a non-linear scale */
extern const int8_t ob_quant_fp4_values[16];   /* MXFP4, NVFP4: twice the value of an E2M1 number */

/* Twice-too-large values above are met by halved scales. */
float ob_quant_e8m0_half(uint8_t e);  /* 2^(e-128) */
float ob_quant_ue4m3_half(uint8_t e); /* half of an unsigned E4M3 number; 0x7F is 0 */

#define DEQ(name) void ob_quant_deq_##name(const void *src, float *dst, int64_t n)
DEQ(f32); DEQ(f16); DEQ(bf16); DEQ(f64);
DEQ(q4_0); DEQ(q4_1); DEQ(q5_0); DEQ(q5_1); DEQ(q8_0); DEQ(q8_1);
DEQ(q1_0); DEQ(q2_0); DEQ(tq1_0); DEQ(tq2_0); DEQ(mxfp4); DEQ(nvfp4);
DEQ(q2_k); DEQ(q3_k); DEQ(q4_k); DEQ(q5_k); DEQ(q6_k); DEQ(q8_k);
DEQ(iq1_s); DEQ(iq1_m); DEQ(iq2_xxs); DEQ(iq2_xs); DEQ(iq2_s); DEQ(iq3_xxs); DEQ(iq3_s);
DEQ(iq4_nl); DEQ(iq4_xs);
#undef DEQ

#define Q(name) void ob_quant_q_##name(const float *src, void *dst, int64_t n, const float *importance)
Q(f32); Q(f16); Q(bf16); Q(q4_0); Q(q4_1); Q(q5_0); Q(q5_1); Q(q8_0); Q(q8_1); Q(mxfp4); Q(nvfp4);
Q(q1_0); Q(q2_0); Q(tq1_0); Q(tq2_0);
Q(q2_k); Q(q3_k); Q(q4_k); Q(q5_k); Q(q6_k); Q(q8_k); Q(iq4_nl); Q(iq4_xs);
#undef Q

#endif
