/* dev/cpu/x86/vec_avx512.h: sixteen floats; the functions of vec_c.h. */
#ifndef OB_DEV_CPU_X86_VEC_AVX512_H
#define OB_DEV_CPU_X86_VEC_AVX512_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

typedef __m512 vf;
enum { VW = 16, ATTN_MB = 6 };

static inline __mmask16 vf_lanes_below(int n) { return (__mmask16)((1u << n) - 1); }
static inline vf vf_set1(float x) { return _mm512_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
static inline vf vf_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(vf_lanes_below(n), p); }
static inline void vf_store_n(float *p, vf v, int n)
{
    _mm512_mask_storeu_ps(p, vf_lanes_below(n), v);
}
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vf_max(vf lim, vf x) { return _mm512_max_ps(lim, x); }
static inline vf vf_min(vf lim, vf x) { return _mm512_min_ps(lim, x); }
static inline float vf_hsum(vf v) { return _mm512_reduce_add_ps(v); }
static inline float vf_hmax(vf v) { return _mm512_reduce_max_ps(v); }
static inline vf vf_swap_pairs(vf v) { return _mm512_permute_ps(v, 0xB1); }
static inline vf vf_dup4(const float *p) { return _mm512_broadcast_f32x4(_mm_loadu_ps(p)); }
static inline vf vf_keep(vf v, int first, int lo, int hi)
{
    const __m512i i = _mm512_add_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(first));
    const __mmask16 in = _mm512_cmpge_epi32_mask(i, _mm512_set1_epi32(lo)) &
                         _mm512_cmplt_epi32_mask(i, _mm512_set1_epi32(hi));
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), in, v);
}
static inline vf vf_ldexp(vf x, vf n) { return _mm512_scalef_ps(x, n); }
static inline vf vf_zero_below(vf x, vf lim, vf y)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, lim, _CMP_NLT_UQ), y);
}
static inline vf vf_round(vf x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf vf_hsum4(vf a0, vf a1, vf a2, vf a3)
{
    const vf t0 = _mm512_add_ps(_mm512_unpacklo_ps(a0, a1), _mm512_unpackhi_ps(a0, a1));
    const vf t1 = _mm512_add_ps(_mm512_unpacklo_ps(a2, a3), _mm512_unpackhi_ps(a2, a3));
    return _mm512_add_ps(_mm512_shuffle_ps(t0, t1, 0x44), _mm512_shuffle_ps(t0, t1, 0xEE));
}
static inline vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline vf vf_load_f16_n(const uint16_t *p, int n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(vf_lanes_below(n), p));
}
static inline void vf_store_f16(uint16_t *p, vf v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
static inline void vf_store_f16_n(uint16_t *p, vf v, int n)
{
    _mm256_mask_storeu_epi16(p, vf_lanes_below(n), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
static inline void vf_pack(const vf row[VW / 4], vf out[VW / 4])
{
    const vf a = _mm512_shuffle_f32x4(row[0], row[1], 0x44), b = _mm512_shuffle_f32x4(row[0], row[1], 0xEE);
    const vf c = _mm512_shuffle_f32x4(row[2], row[3], 0x44), d = _mm512_shuffle_f32x4(row[2], row[3], 0xEE);
    out[0] = _mm512_shuffle_f32x4(a, c, 0x88);
    out[1] = _mm512_shuffle_f32x4(a, c, 0xDD);
    out[2] = _mm512_shuffle_f32x4(b, d, 0x88);
    out[3] = _mm512_shuffle_f32x4(b, d, 0xDD);
}

#endif
