/* dev/cpu/x86/vec_avx2.h: eight floats; the functions of vec_c.h. */
#ifndef OB_DEV_CPU_X86_VEC_AVX2_H
#define OB_DEV_CPU_X86_VEC_AVX2_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef __m256 vf;
enum { VW = 8, ATTN_MB = 3 };

static inline __m256i vf_lanes_below(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf vf_set1(float x) { return _mm256_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
static inline vf vf_load_n(const float *p, int n) { return _mm256_maskload_ps(p, vf_lanes_below(n)); }
static inline void vf_store_n(float *p, vf v, int n)
{
    _mm256_maskstore_ps(p, vf_lanes_below(n), v);
}
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vf_max(vf lim, vf x) { return _mm256_max_ps(lim, x); }
static inline vf vf_min(vf lim, vf x) { return _mm256_min_ps(lim, x); }
static inline float vf_hsum(vf v)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}
static inline float vf_hmax(vf v)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}
static inline vf vf_swap_pairs(vf v) { return _mm256_permute_ps(v, 0xB1); }
static inline vf vf_dup4(const float *p) { return _mm256_broadcast_ps((const __m128 *)(const void *)p); }
static inline vf vf_keep(vf v, int first, int lo, int hi)
{
    const __m256i i = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    const __m256i in = _mm256_and_si256(_mm256_cmpgt_epi32(i, _mm256_set1_epi32(lo - 1)),
                                        _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), i));
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), v, _mm256_castsi256_ps(in));
}
static inline vf vf_ldexp(vf x, vf n)
{
    const __m256i i = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(i, 23)));
}
static inline vf vf_zero_below(vf x, vf lim, vf y)
{
    return _mm256_and_ps(y, _mm256_cmp_ps(x, lim, _CMP_NLT_UQ));
}
static inline vf vf_round(vf x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf vf_hsum4(vf a0, vf a1, vf a2, vf a3)
{
    const vf t0 = _mm256_add_ps(_mm256_unpacklo_ps(a0, a1), _mm256_unpackhi_ps(a0, a1));
    const vf t1 = _mm256_add_ps(_mm256_unpacklo_ps(a2, a3), _mm256_unpackhi_ps(a2, a3));
    return _mm256_add_ps(_mm256_shuffle_ps(t0, t1, 0x44), _mm256_shuffle_ps(t0, t1, 0xEE));
}
static inline vf vf_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
static inline vf vf_load_f16_n(const uint16_t *p, int n)
{
    uint16_t h[VW] = {0};
    memcpy(h, p, (size_t)n * sizeof *h);
    return vf_load_f16(h);
}
static inline void vf_store_f16(uint16_t *p, vf v)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
static inline void vf_store_f16_n(uint16_t *p, vf v, int n)
{
    uint16_t h[VW];
    vf_store_f16(h, v);
    memcpy(p, h, (size_t)n * sizeof *h);
}
static inline void vf_pack(const vf row[VW / 4], vf out[VW / 4])
{
    out[0] = _mm256_permute2f128_ps(row[0], row[1], 0x20);
    out[1] = _mm256_permute2f128_ps(row[0], row[1], 0x31);
}

#endif
