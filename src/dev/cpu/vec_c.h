/* dev/cpu/vec_c.h: the vector type of the portable level: four floats, GCC vector extension. */
#ifndef OB_DEV_CPU_VEC_C_H
#define OB_DEV_CPU_VEC_C_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "quant/quant.h"

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
enum { VW = 4, ATTN_MB = 2 };

static inline vf vf_set1(float x) { return (vf){x, x, x, x}; }
static inline vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
static inline vf vf_load_n(const float *p, int n)
{
    vf v = vf_set1(0);
    memcpy(&v, p, (size_t)n * sizeof(float));
    return v;
}
static inline void vf_store_n(float *p, vf v, int n) { memcpy(p, &v, (size_t)n * sizeof(float)); }
static inline vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
static inline vf vf_select(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}
/* x is the second operand of both: a NaN in it stays. */
static inline vf vf_max(vf lim, vf x) { return vf_select(lim > x, lim, x); }
static inline vf vf_min(vf lim, vf x) { return vf_select(lim < x, lim, x); }
static inline float vf_hsum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
static inline float vf_hmax(vf v)
{
    const float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
}
static inline vf vf_swap_pairs(vf v) { return (vf){v[1], v[0], v[3], v[2]}; }
static inline vf vf_dup4(const float *p) { return vf_load(p); }
/* Lanes [lo, hi) of v, -inf elsewhere; lane i of v is number `first` + i. */
static inline vf vf_keep(vf v, int first, int lo, int hi)
{
    const vi i = (vi){0, 1, 2, 3} + first;
    return vf_select((i >= lo) & (i < hi), v, vf_set1(-INFINITY));
}
/* x 2^n, n an integer in [-126, 127] held as float. */
static inline vf vf_ldexp(vf x, vf n)
{
    return x * (vf)((__builtin_convertvector(n, vi) + 127) << 23);
}
/* 0 where x < lim, y elsewhere, and so also where x is NaN. */
static inline vf vf_zero_below(vf x, vf lim, vf y) { return vf_select(x < lim, vf_set1(0), y); }
static inline vf vf_round(vf x)
{
    const vf magic = vf_set1(12582912.0f); /* 1.5 * 2^23 */
    return (x + magic) - magic;
}
/* Sum each group of four lanes of a[j]: lane 4t + j of the result is group t of a[j]. */
static inline vf vf_hsum4(vf a0, vf a1, vf a2, vf a3)
{
    return (vf){vf_hsum(a0), vf_hsum(a1), vf_hsum(a2), vf_hsum(a3)};
}
static inline vf vf_load_f16(const uint16_t *p)
{
    return (vf){ob_f16_to_f32(p[0]), ob_f16_to_f32(p[1]), ob_f16_to_f32(p[2]), ob_f16_to_f32(p[3])};
}
static inline vf vf_load_f16_n(const uint16_t *p, int n)
{
    vf v = vf_set1(0);
    for (int i = 0; i < n; i++) v[i] = ob_f16_to_f32(p[i]);
    return v;
}
static inline void vf_store_f16(uint16_t *p, vf v)
{
    for (int i = 0; i < VW; i++) p[i] = ob_f32_to_f16(v[i]);
}
static inline void vf_store_f16_n(uint16_t *p, vf v, int n)
{
    for (int i = 0; i < n; i++) p[i] = ob_f32_to_f16(v[i]);
}
/* VW columns of VW / 4 rows in; out[d] has columns 4d..4d+3 of all of them, row by row. */
static inline void vf_pack(const vf row[VW / 4], vf out[VW / 4]) { out[0] = row[0]; }

#endif
