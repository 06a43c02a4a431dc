/* quant/deq_simple.c: dequantise the formats with one scale per small block. In the drawings a byte
 * offset stands above each field; "lo" and "hi" are the low and high half of a byte. The order of the
 * float operations is part of the format: results are compared bit by bit.
 */
#include "quant/quant_int.h"

const int8_t ob_quant_iq4nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
const int8_t ob_quant_fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void ob_quant_deq_f32(const void *src, float *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof(float));
}

void ob_quant_deq_f64(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t i = 0; i < n; i++) {
        double x;
        memcpy(&x, b + 8 * i, sizeof x);
        dst[i] = (float)x;
    }
}

void ob_quant_deq_f16(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t i = 0; i < n; i++) dst[i] = rd_f16(b + 2 * i);
}

void ob_quant_deq_bf16(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t i = 0; i < n; i++) dst[i] = ob_bf16_to_f32(rd16(b + 2 * i));
}

/* Q4_0, 18 bytes: 0 d f16 | 2 q[16]; lo is element j, hi is j + 16.  y = (q - 8) d */
void ob_quant_deq_q4_0(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK, b += 18) {
        const float d = rd_f16(b);
        for (int j = 0; j < 16; j++) {
            y[j] = (float)((b[2 + j] & 15) - 8) * d;
            y[j + 16] = (float)((b[2 + j] >> 4) - 8) * d;
        }
    }
}

/* Q4_1, 20 bytes: 0 d f16 | 2 m f16 | 4 q[16] as Q4_0.  y = q d + m */
void ob_quant_deq_q4_1(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK, b += 20) {
        const float d = rd_f16(b), m = rd_f16(b + 2);
        for (int j = 0; j < 16; j++) {
            y[j] = (float)(b[4 + j] & 15) * d + m;
            y[j + 16] = (float)(b[4 + j] >> 4) * d + m;
        }
    }
}

/* Q5_0, 22 bytes: 0 d f16 | 2 h u32, bit e is bit 4 of element e | 6 q[16].  y = (q - 16) d */
void ob_quant_deq_q5_0(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK, b += 22) {
        const float d = rd_f16(b);
        const uint32_t h = rd32(b + 2);
        for (int j = 0; j < 16; j++) {
            int lo = (b[6 + j] & 15) | (int)(h >> j & 1) << 4;
            int hi = b[6 + j] >> 4 | (int)(h >> (j + 16) & 1) << 4;
            y[j] = (float)(lo - 16) * d;
            y[j + 16] = (float)(hi - 16) * d;
        }
    }
}

/* Q5_1, 24 bytes: 0 d f16 | 2 m f16 | 4 h u32 | 8 q[16].  y = q d + m */
void ob_quant_deq_q5_1(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK, b += 24) {
        const float d = rd_f16(b), m = rd_f16(b + 2);
        const uint32_t h = rd32(b + 4);
        for (int j = 0; j < 16; j++) {
            int lo = (b[8 + j] & 15) | (int)(h >> j & 1) << 4;
            int hi = b[8 + j] >> 4 | (int)(h >> (j + 16) & 1) << 4;
            y[j] = (float)lo * d + m;
            y[j + 16] = (float)hi * d + m;
        }
    }
}

/* Q8_0, 34 bytes: 0 d f16 | 2 q[32] signed.  y = q d */
void ob_quant_deq_q8_0(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK, b += 34) {
        const float d = rd_f16(b);
        for (int j = 0; j < QK; j++) y[j] = (float)(int8_t)b[2 + j] * d;
    }
}

/* Q8_1, 36 bytes, activations: 0 d f16 | 2 d * sum(q) f16 | 4 q[32] signed.  y = q d */
void ob_quant_deq_q8_1(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK, b += 36) {
        const float d = rd_f16(b);
        for (int j = 0; j < QK; j++) y[j] = (float)(int8_t)b[4 + j] * d;
    }
}

/* Q1_0, 128 elements in 18 bytes: 0 d f16 | 2 bits[16], element j is bit j.  y = bit ? d : -d */
void ob_quant_deq_q1_0(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += 128, b += 18) {
        const float d = rd_f16(b);
        for (int j = 0; j < 128; j++) y[j] = b[2 + j / 8] >> (j % 8) & 1 ? d : -d;
    }
}

/* Q2_0, 64 elements in 18 bytes: 0 d f16 | 2 q[16], element j in bits 2(j%4) of byte j/4.
 * y = (q - 1) d */
void ob_quant_deq_q2_0(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += 64, b += 18) {
        const float d = rd_f16(b);
        for (int j = 0; j < 64; j++) y[j] = (float)((b[2 + j / 4] >> (2 * (j % 4)) & 3) - 1) * d;
    }
}

/* A byte of TQ1_0 is the fraction t/256 of a number with 5 digits in base 3: multiplying by 3^k
 * brings digit k in front of the point. */
static inline int trit(uint8_t byte, int pow3) { return ((uint8_t)(byte * pow3) * 3) >> 8; }

/* TQ1_0, 256 elements in 54 bytes: 0 q[48], 5 digits each | 48 h[4], 4 digits each | 52 d f16.
 * Digit k of bytes 0..31 makes elements 32k + j, of bytes 32..47 elements 160 + 16k + j, of h
 * elements 240 + 4k + j.  y = (digit - 1) d */
void ob_quant_deq_tq1_0(const void *src, float *dst, int64_t n)
{
    static const int pow3[5] = {1, 3, 9, 27, 81};
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 54) {
        const float d = rd_f16(b + 52);
        for (int k = 0; k < 5; k++) {
            for (int j = 0; j < 32; j++) y[32 * k + j] = (float)(trit(b[j], pow3[k]) - 1) * d;
            for (int j = 0; j < 16; j++)
                y[160 + 16 * k + j] = (float)(trit(b[32 + j], pow3[k]) - 1) * d;
        }
        for (int k = 0; k < 4; k++)
            for (int j = 0; j < 4; j++)
                y[240 + 4 * k + j] = (float)(trit(b[48 + j], pow3[k]) - 1) * d;
    }
}

/* TQ2_0, 256 elements in 66 bytes: 0 q[64] | 64 d f16; bits 2k of byte 32c + j make element
 * 128c + 32k + j.  y = (q - 1) d */
void ob_quant_deq_tq2_0(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK_K, b += 66) {
        const float d = rd_f16(b + 64);
        for (int c = 0; c < 2; c++)
            for (int k = 0; k < 4; k++)
                for (int j = 0; j < 32; j++)
                    y[128 * c + 32 * k + j] = (float)((b[32 * c + j] >> (2 * k) & 3) - 1) * d;
    }
}

float ob_quant_e8m0_half(uint8_t e)
{
    return ob_bits_f32(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

float ob_quant_ue4m3_half(uint8_t e)
{
    uint32_t exp = e >> 3 & 15, man = e & 7;
    if (e == 0x7F) return 0.0f;
    if (exp == 0) return (float)man * 0x1p-10f;
    return ob_bits_f32((exp + 119) << 23 | man << 20);
}

/* MXFP4 (OCP microscaling), 17 bytes: 0 e E8M0 | 1 q[16] as Q4_0.  y = fp4[q] 2^(e-128) */
void ob_quant_deq_mxfp4(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += QK, b += 17) {
        const float d = ob_quant_e8m0_half(b[0]);
        for (int j = 0; j < 16; j++) {
            y[j] = (float)ob_quant_fp4_values[b[1 + j] & 15] * d;
            y[j + 16] = (float)ob_quant_fp4_values[b[1 + j] >> 4] * d;
        }
    }
}

/* NVFP4, 64 elements in 36 bytes: 0 s[4] UE4M3, one per 16 elements | 4 q[32]; in each group of 8
 * bytes lo is element j, hi is j + 8.  y = fp4[q] s/2 */
void ob_quant_deq_nvfp4(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (float *y = dst, *end = dst + n; y < end; y += 64, b += 36) {
        for (int s = 0; s < 4; s++) {
            const float d = ob_quant_ue4m3_half(b[s]);
            const uint8_t *q = b + 4 + 8 * s;
            for (int j = 0; j < 8; j++) {
                y[16 * s + j] = (float)ob_quant_fp4_values[q[j] & 15] * d;
                y[16 * s + j + 8] = (float)ob_quant_fp4_values[q[j] >> 4] * d;
            }
        }
    }
}
