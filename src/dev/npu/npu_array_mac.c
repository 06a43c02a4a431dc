/* Core arithmetic of the software array. On x86 the int8 part takes AVX2 where the machine has it; the numbers are the
 * same. */
#include "dev/npu/npu_array_mac.h"

#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define HAVE_AVX2_PATH 1
#endif

enum {
    PAIRS = OB_NPU_TILE_K / 2,
    N = OB_NPU_TILE_N,
    MICRO_ROW = OB_NPU_TILE_N / 8 * 64, /* bytes of the micro-tiles of 8 k in a weight tile */
};

/* Weights [32 pairs of k][128 outputs][2], widened. */
static void widen_c(const int8_t *tile, int16_t *out)
{
    for (int ku = 0; ku < OB_NPU_TILE_K / 8; ku++)
        for (int nu = 0; nu < N / 8; nu++) {
            const int8_t *m = tile + ku * MICRO_ROW + nu * 64;
            for (int kp = 0; kp < 4; kp++)
                for (int n = 0; n < 8; n++) {
                    int16_t *o = out + ((ku * 4 + kp) * N + nu * 8 + n) * 2;
                    o[0] = m[kp * 16 + n];
                    o[1] = m[kp * 16 + 8 + n];
                }
        }
}

/* Row m (0..31) of an activation tile, widened; false when it is all zero, as padding is. */
static bool read_row(const int8_t *tile, int m, int16_t *row)
{
    enum { PARTS = OB_NPU_TILE_K / 8 };
    const int8_t *first = tile + m / 8 * PARTS * 64 + m % 8 * 8; /* its 8 bytes in the row's first micro-tile */
    uint64_t any = 0;
    for (int ku = 0; ku < PARTS; ku++) {
        uint64_t part;
        memcpy(&part, first + ku * 64, 8);
        any |= part;
    }
    if (!any) return false;
    for (int ku = 0; ku < PARTS; ku++)
        for (int k = 0; k < 8; k++) row[ku * 8 + k] = first[ku * 64 + k];
    return true;
}

/* acc[128] += row[64] * w */
static void mac_row_c(const int16_t *row, const int16_t *w, int32_t *acc)
{
    for (int p = 0; p < PAIRS; p++) {
        int32_t a0 = row[2 * p], a1 = row[2 * p + 1];
        const int16_t *b = w + p * N * 2;
        for (int n = 0; n < N; n++) acc[n] = (int32_t)((uint32_t)acc[n] + (uint32_t)(a0 * b[2 * n] + a1 * b[2 * n + 1]));
    }
}

#ifdef HAVE_AVX2_PATH
/* A pair of a micro-tile's rows at a time: interleaved they are in the order wanted. */
__attribute__((target("avx2"))) static void widen_avx2(const int8_t *tile, int16_t *out)
{
    for (int ku = 0; ku < OB_NPU_TILE_K / 8; ku++)
        for (int nu = 0; nu < N / 8; nu++)
            for (int kp = 0; kp < 4; kp++) {
                __m128i two = _mm_loadu_si128((const __m128i *)(tile + ku * MICRO_ROW + nu * 64 + kp * 16));
                __m128i mixed = _mm_unpacklo_epi8(two, _mm_unpackhi_epi64(two, two));
                _mm256_storeu_si256((__m256i *)(out + ((ku * 4 + kp) * N + nu * 8) * 2), _mm256_cvtepi8_epi16(mixed));
            }
}

__attribute__((target("avx2"))) static void mac_row_avx2(const int16_t *row, const int16_t *w, int32_t *acc)
{
    for (int n0 = 0; n0 < N; n0 += 64) {
        __m256i s[8];
        for (int i = 0; i < 8; i++) s[i] = _mm256_loadu_si256((const __m256i *)(acc + n0 + i * 8));
        for (int p = 0; p < PAIRS; p++) {
            int32_t pair;
            memcpy(&pair, row + 2 * p, 4);
            __m256i a = _mm256_set1_epi32(pair);
            const int16_t *b = w + (p * N + n0) * 2;
            for (int i = 0; i < 8; i++)
                s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(a, _mm256_loadu_si256((const __m256i *)(b + i * 16))));
        }
        for (int i = 0; i < 8; i++) _mm256_storeu_si256((__m256i *)(acc + n0 + i * 8), s[i]);
    }
}
#endif

typedef struct mac_kernels {
    void (*widen)(const int8_t *tile, int16_t *out);
    void (*row)(const int16_t *row, const int16_t *w, int32_t *acc);
} mac_kernels;

static mac_kernels kernels(void)
{
#ifdef HAVE_AVX2_PATH
    if (__builtin_cpu_supports("avx2")) return (mac_kernels){widen_avx2, mac_row_avx2};
#endif
    return (mac_kernels){widen_c, mac_row_c};
}

void ob_npu_mac_i8(const int8_t *const a[OB_NPU_ROWS], const int8_t *b, int64_t n_steps, int32_t *acc)
{
    const mac_kernels mac = kernels();
    int16_t w[OB_NPU_TILE_K * N], row[OB_NPU_TILE_K];
    for (int64_t s = 0; s < n_steps; s++) {
        mac.widen(b + s * OB_NPU_B_TILE_BYTES, w);
        for (int r = 0; r < OB_NPU_ROWS; r++)
            for (int m = 0; m < OB_NPU_TILE_M; m++)
                if (read_row(a[r] + s * OB_NPU_A_TILE_BYTES, m, row)) mac.row(row, w, acc + (r * OB_NPU_TILE_M + m) * N);
    }
}

static float from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

enum { T = OB_NPU_Q4_TILE_N };

/* Sums of one group: dot[n] over its 32 inputs, and of the inputs themselves. Every sum takes its terms in order, one
 * rounding for the product and one for the sum, whatever the width of vectors. */
static float group_c(const uint16_t *x, const uint8_t *q, float dot[T])
{
    float xs = 0;
    for (int k = 0; k < OB_NPU_Q4_GROUP; k++, q += T / 2) {
        float v = from_bf16(x[k]);
        xs += v;
        for (int n = 0; n < T; n += 2) {
            dot[n] += (float)(q[n / 2] & 15) * v;
            dot[n + 1] += (float)(q[n / 2] >> 4) * v;
        }
    }
    return xs;
}

#ifdef HAVE_AVX2_PATH
__attribute__((target("avx2"))) static float group_avx2(const uint16_t *x, const uint8_t *q, float dot[T])
{
    __m256 sum[T / 8];
    float xs = 0;
    for (int i = 0; i < T / 8; i++) sum[i] = _mm256_loadu_ps(dot + 8 * i);
    for (int k = 0; k < OB_NPU_Q4_GROUP; k++, q += T / 2) {
        const __m128i b = _mm_loadu_si128((const __m128i *)q), mask = _mm_set1_epi8(15);
        const __m128i even = _mm_and_si128(b, mask), odd = _mm_and_si128(_mm_srli_epi16(b, 4), mask);
        const __m128i half[2] = {_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd)}; /* outputs in order */
        const float v = from_bf16(x[k]);
        const __m256 vv = _mm256_set1_ps(v);
        xs += v;
        for (int i = 0; i < T / 8; i++) {
            const __m128i eight = i % 2 ? _mm_unpackhi_epi64(half[i / 2], half[i / 2]) : half[i / 2];
            const __m256 w = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
            sum[i] = _mm256_add_ps(sum[i], _mm256_mul_ps(w, vv));
        }
    }
    for (int i = 0; i < T / 8; i++) _mm256_storeu_ps(dot + 8 * i, sum[i]);
    return xs;
}
#endif

void ob_npu_mac_q4(const uint16_t *x, const uint8_t *tile, float *acc)
{
    float (*group)(const uint16_t *x, const uint8_t *q, float dot[T]) = group_c;
#ifdef HAVE_AVX2_PATH
    if (__builtin_cpu_supports("avx2")) group = group_avx2;
#endif
    for (int g = 0; g < OB_NPU_Q4_TILE_K / OB_NPU_Q4_GROUP; g++) {
        const int k = g * OB_NPU_Q4_GROUP;
        float dot[T] = {0}, xs = group(x + k, tile + ob_npu_q4_nibble_at(k, 0), dot);
        const uint8_t *scales = tile + ob_npu_q4_scale_at(k, 0);
        for (int n = 0; n < T; n++) {
            uint16_t d, m;
            memcpy(&d, scales + 2 * n, 2);
            memcpy(&m, scales + 2 * n + 2 * OB_NPU_Q4_SCALES, 2);
            acc[n] += from_bf16(d) * dot[n];
            acc[n] += from_bf16(m) * xs;
        }
    }
}
