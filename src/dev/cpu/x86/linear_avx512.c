/* AVX-512 (F, BW, VL, DQ, VNNI, VBMI) kernels for packed weights.
 *
 * int8 activations, two shapes:
 *   direct  16 rows x up to 8 columns straight from the packed codes, unpacked in registers: decode and
 *           small batches, where each weight is used a few times only.
 *   tile    32 rows x 6 columns: 12 int32 and 12 f32 accumulators. Up to 64 rows x 12 units are unpacked
 *           once into L1 (so the format hardly matters inside the loop) and all panels run over them.
 * f32 products always go through a tile of f32 weights.
 *
 * Functions marked AI are templates: called with constant formats and widths, instantiated at the end.
 */
#include <immintrin.h>

#include "dev/cpu/linear_int.h"
#include "quant/act4.h"

#define AI static inline __attribute__((always_inline))

typedef uint8_t u8;

/* ---- reading packed units ------------------------------------------------------------------------ */

AI __m512i load512(const void *p) { return _mm512_loadu_si512(p); }
AI __m512 f16x16(const u8 *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }
AI __m512 bf16x16(const u8 *p)
{
    const __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}
AI __m512 i8x16(const u8 *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}

/* The T4 table in each 128-bit lane; zero for other formats. */
AI __m512i table_of(const lin_format f)
{
    if (lin_fmt[f].code != LIN_T4) return _mm512_setzero_si512();
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)lin_table(f)));
}

/* Code vector i of the unit at p: 64 unsigned bytes, 16 rows x 4 columns. */
AI __m512i codes(const lin_format f, const u8 *p, const int i, const __m512i table)
{
    const __m512i m4 = _mm512_set1_epi8(15);
    if (lin_fmt[f].code == LIN_C8) return load512(p + 64 * i);
    __m512i v = load512(p + 64 * (i & 3));
    if (i >= 4) v = _mm512_srli_epi16(v, 4);
    if (lin_fmt[f].code == LIN_C4) return _mm512_and_si512(v, m4);
    if (lin_fmt[f].code == LIN_T4) return _mm512_shuffle_epi8(table, _mm512_and_si512(v, m4));
    /* 0xEA: (a & b) | c */
    if (lin_fmt[f].code == LIN_C5) {
        __m512i h = load512(p + 256);
        h = i < 4 ? _mm512_slli_epi16(h, (unsigned)(4 - i)) : _mm512_srli_epi16(h, (unsigned)(i - 4));
        return _mm512_ternarylogic_epi32(v, m4, _mm512_and_si512(h, _mm512_set1_epi8(16)), 0xEA);
    }
    __m512i h = load512(p + 256 + 64 * (i >> 2));
    h = (i & 3) < 2 ? _mm512_slli_epi16(h, (unsigned)(4 - 2 * (i & 3)))
                    : _mm512_srli_epi16(h, (unsigned)(2 * (i & 3) - 4));
    return _mm512_ternarylogic_epi32(v, m4, _mm512_and_si512(h, _mm512_set1_epi8(0x30)), 0xEA);
}

/* The parts of a group. */
typedef struct group_ref { const u8 *code, *scale, *head; } group_ref;

AI group_ref group_of(const lin_format f, const lin_job *j, int64_t g)
{
    const u8 *p = j->w + (size_t)g * j->l->group_bytes;
    const u8 *s = p + lin_code_bytes(f) * (size_t)j->l->n_blk;
    return (group_ref){p, s, s + lin_scale_bytes(f) * (size_t)j->l->n_blk};
}

/* Scales (which = 0) or minimums (which = 1) of sub-block s of unit b. */
AI __m512 scales(const lin_format f, const group_ref *g, int64_t b, const int s, const int which)
{
    const u8 *p = g->scale + lin_scale_bytes(f) * (size_t)b +
                  lin_sub_bytes(f) * (size_t)(s + which * lin_fmt[f].n_sub);
    switch (lin_fmt[f].scale) {
    case LIN_S_F16: return f16x16(p);
    case LIN_S_BF16: return bf16x16(p);
    case LIN_S_F32: return _mm512_loadu_ps(p);
    default: return _mm512_mul_ps(f16x16(g->head + lin_head_bytes(f) * (size_t)(b / 8) + 32 * which), i8x16(p));
    }
}

/* ---- activations -------------------------------------------------------------------------------- */

/* The work goes by items: one block of 32 of one column, in the order [n_blk][pw] of the scale planes, 16
 * at a time, so that maxima, divisions and sums fill whole vectors. 48 items are whole blocks of every
 * panel width; their codes are then interleaved by dwords. */
enum { ITEMS = 16, SUPER = 48 };

/* Lane-wise: lane L of the result is { op over lane L of a, of b, of c, of d }. */
#define REDUCE_LANES(name, type, lo32, hi32, lo64, hi64, op)                                       \
    AI type name(type a, type b, type c, type d)                                                   \
    {                                                                                              \
        const type ab = op(lo32(a, b), hi32(a, b)), cd = op(lo32(c, d), hi32(c, d));               \
        return op(lo64(ab, cd), hi64(ab, cd));                                                     \
    }
AI __m512 lo64_ps(__m512 a, __m512 b)
{
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
AI __m512 hi64_ps(__m512 a, __m512 b)
{
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
REDUCE_LANES(max_lanes, __m512, _mm512_unpacklo_ps, _mm512_unpackhi_ps, lo64_ps, hi64_ps, _mm512_max_ps)
REDUCE_LANES(add_lanes, __m512i, _mm512_unpacklo_epi32, _mm512_unpackhi_epi32, _mm512_unpacklo_epi64,
             _mm512_unpackhi_epi64, _mm512_add_epi32)

/* Largest magnitude of each item; NaN counts as 0. */
AI __m512 item_max(const float *const *x)
{
    const __m512 zero = _mm512_setzero_ps();
    __m512 r[4];
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        __m512 v[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) { /* max(a, b) is b when a is NaN */
            const float *p = x[4 * q + i];
            v[i] = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(p)), zero);
            v[i] = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(p + 16)), v[i]);
        }
        r[q] = max_lanes(v[0], v[1], v[2], v[3]);
    }
    const __m512 a = _mm512_max_ps(_mm512_shuffle_f32x4(r[0], r[1], 0x44), _mm512_shuffle_f32x4(r[0], r[1], 0xEE));
    const __m512 b = _mm512_max_ps(_mm512_shuffle_f32x4(r[2], r[3], 0x44), _mm512_shuffle_f32x4(r[2], r[3], 0xEE));
    return _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}

/* Codes of 16 items to q [16][32], and the sums of their halves. */
AI void item_codes(const float *const *x, const float *inv, u8 *q, __m512i *half0, __m512i *half1)
{
    /* The packs leave dword 4L + j = dword L of chunk j. */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i one = _mm512_set1_epi8(1);
    __m512i sum[8], r[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        __m512i v[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++)
            v[k] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x[2 * i + k / 2] + 16 * (k % 2)),
                                                    _mm512_set1_ps(inv[2 * i + k / 2])));
        __m512i b = _mm512_packs_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
        b = _mm512_permutexvar_epi32(order, b);
        _mm512_store_si512(q + 64 * i, b);
        sum[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), one, b);
    }
    /* Lane L of r[k] belongs to half L % 2 of items 8k + 2j + L / 2, j its place in the lane. */
    for (int k = 0; k < 2; k++)
        r[k] = add_lanes(sum[4 * k], sum[4 * k + 1], sum[4 * k + 2], sum[4 * k + 3]);
    const __m512i i0 = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
    *half0 = _mm512_permutex2var_epi32(r[0], i0, r[1]);
    *half1 = _mm512_permutex2var_epi32(r[0], _mm512_add_epi32(i0, _mm512_set1_epi32(4)), r[1]);
}

/* Scales, sums and start values of up to 16 items, at place t of their planes. */
AI void item_planes(const lin_act *a, int64_t n_items, u8 *panel, int64_t t, __mmask16 k, __m512 d,
                    __m512i half0, __m512i half1)
{
    float *df = (float *)(void *)(panel + a->off_d), *sumf = (float *)(void *)(panel + a->off_sum);
    _mm512_mask_storeu_ps(df + t, k, d);
    for (int s = 0; s < a->n_sub; s++) {
        const __m512i sum = a->n_sub == 1 ? _mm512_add_epi32(half0, half1) : s ? half1 : half0;
        const int64_t at = s * n_items + t;
        _mm512_mask_storeu_ps(sumf + at, k, _mm512_mul_ps(d, _mm512_cvtepi32_ps(sum)));
        for (int i = 0; i < 3; i++) {
            int32_t *init = (int32_t *)(void *)(panel + a->off_init[i]);
            const __m512i off = _mm512_set1_epi32(-lin_act_off(a->n_sub, i));
            _mm512_mask_storeu_epi32(init + at, k, _mm512_mullo_epi32(sum, off));
        }
    }
}

/* dwords [n_blk][pw][8] to [n_blk][8][pw]; index: where each dword of a block comes from. */
AI void interleave(const u8 *q, int n_blk, const int pw, const uint32_t *index, u8 *to)
{
    for (int b = 0; b < n_blk; b++, q += 32 * pw, to += 32 * pw) {
#pragma GCC unroll 4
        for (int o = 0; o < (pw + 1) / 2; o++) {
            const __m512i at = _mm512_load_si512(index + 16 * o);
            __m512i v = _mm512_permutex2var_epi32(load512(q), at, load512(q + 64));
            if (pw > 4) {
                const __m512i w = _mm512_permutex2var_epi32(load512(q + 128), at, load512(q + 192));
                v = _mm512_mask_mov_epi32(v, _mm512_test_epi32_mask(at, _mm512_set1_epi32(32)), w);
            }
            const __mmask16 k = 8 * pw - 16 * o >= 16 ? 0xffff : 0xff;
            _mm512_mask_storeu_epi32(to + 64 * o, k, v);
        }
    }
}

static void act_avx512(const ob_lin *l, const lin_act *a, const float *x, int64_t ldx, int n_valid, u8 *panel)
{
    static const float zeros[LIN_BLK];
    const int pw = a->pw;
    const int64_t n_items = l->n_blk * pw;
    _Alignas(64) u8 q[SUPER * LIN_BLK + 256]; /* interleave reads a little past a block */
    _Alignas(64) uint32_t index[4 * 16];
    for (int o = 0; o < 8 * pw; o++) index[o] = (uint32_t)(o % pw * 8 + o / pw);
    int c = 0;
    for (int64_t t0 = 0, b = 0; t0 < n_items; t0 += SUPER) {
        const int n = (int)OB_MIN(SUPER, n_items - t0);
        u8 *to = panel + t0 * LIN_BLK;
        for (int s = 0; s < n; s += ITEMS) {
            const float *p[ITEMS];
            for (int i = 0; i < ITEMS; i++) {
                p[i] = s + i < n && c < n_valid ? x + c * ldx + b * LIN_BLK : zeros;
                if (++c == pw) c = 0, b++;
            }
            const __m512 max = item_max(p), top = _mm512_set1_ps(127.0f);
            const __mmask16 some = _mm512_cmp_ps_mask(max, _mm512_set1_ps(LIN_ACT_TINY), _CMP_GT_OQ);
            _Alignas(64) float inv[ITEMS];
            _mm512_store_ps(inv, _mm512_maskz_div_ps(some, top, max));
            __m512i half0, half1;
            item_codes(p, inv, q + s * LIN_BLK, &half0, &half1);
            const __mmask16 k = n - s >= ITEMS ? 0xffff : (__mmask16)((1u << (n - s)) - 1);
            item_planes(a, n_items, panel, t0 + s, k, _mm512_maskz_div_ps(some, max, top), half0, half1);
        }
        switch (pw) {
        case 1: interleave(q, n, 1, index, to); break;
        case 2: interleave(q, n / 2, 2, index, to); break;
        case 3: interleave(q, n / 3, 3, index, to); break;
        case 4: interleave(q, n / 4, 4, index, to); break;
        case 6: interleave(q, n / 6, 6, index, to); break;
        default: interleave(q, n / 8, 8, index, to); break;
        }
    }
}

/* The part of a panel that starts at unit b. */
typedef struct cols {
    const int32_t *q, *init;
    const float *d, *sum;
    int64_t sub; /* from one sub-block's plane of init and sum to the next */
} cols;

AI cols cols_of(const lin_format f, const int pw, const lin_job *j, int64_t p, int64_t b)
{
    const u8 *at = j->act + (size_t)p * j->a.panel_bytes;
    return (cols){(const int32_t *)(const void *)at + b * 8 * pw,
                  (const int32_t *)(const void *)(at + j->a.off_init[lin_init_index(f)]) + b * pw,
                  (const float *)(const void *)(at + j->a.off_d) + b * pw,
                  (const float *)(const void *)(at + j->a.off_sum) + b * pw, j->l->n_blk * pw};
}

/* Bias, scale, residual, and the store of 16 rows of one column. */
AI void store_rows(const lin_job *j, int64_t row, int64_t col, __m512 v)
{
    const ob_lin_epilogue *ep = j->ep;
    const int64_t n = j->n1 - row;
    if (n <= 0 || col >= j->m) return;
    const __mmask16 k = n >= LIN_ROWS ? 0xffff : (__mmask16)((1u << n) - 1);
    if (ep->bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(k, ep->bias + row));
    v = _mm512_mul_ps(v, _mm512_set1_ps(ep->scale));
    if (ep->res) v = _mm512_add_ps(_mm512_maskz_loadu_ps(k, ep->res + col * ep->ldres + row), v);
    _mm512_mask_storeu_ps(j->y + col * j->ldy + row, k, v);
}

/* ---- direct: 16 rows x NC columns ------------------------------------------------------------------ */

enum { PREFETCH_BYTES = 4096 };

/* int32 sums of sub-block s. For few columns two chains hide the latency of the dot product. */
AI void direct_sub(const lin_format f, const int nc, const u8 *code, const cols *x, int64_t b, const int s,
                   const __m512i table, __m512i *acc)
{
    const int ns = lin_fmt[f].n_sub;
    __m512i odd[8];
#pragma GCC unroll 8
    for (int c = 0; c < nc; c++) {
        acc[c] = lin_fmt[f].off ? _mm512_set1_epi32(x->init[s * x->sub + b * nc + c]) : _mm512_setzero_si512();
        odd[c] = _mm512_setzero_si512();
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8 / ns; i++) {
        const int v = s * 8 / ns + i;
        const __m512i w = codes(f, code, v, table);
#pragma GCC unroll 8
        for (int c = 0; c < nc; c++) {
            const __m512i q = _mm512_set1_epi32(x->q[(b * 8 + v) * nc + c]);
            if (nc <= 2 && (i & 1)) odd[c] = _mm512_dpbusd_epi32(odd[c], w, q);
            else acc[c] = _mm512_dpbusd_epi32(acc[c], w, q);
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < nc; c++)
        if (nc <= 2) acc[c] = _mm512_add_epi32(acc[c], odd[c]);
}

AI void direct_group(const lin_format f, const int nc, const lin_job *j, const group_ref *g, const cols *x,
                     const bool prefetch, __m512 *sum)
{
    const int ns = lin_fmt[f].n_sub;
    const __m512i table = table_of(f);
#pragma GCC unroll 8
    for (int c = 0; c < nc; c++) sum[c] = _mm512_setzero_ps();
    for (int64_t b = 0; b < j->l->n_blk; b++) {
        const u8 *code = g->code + lin_code_bytes(f) * (size_t)b;
        if (prefetch) {
            for (size_t o = 0; o < lin_code_bytes(f); o += 64) _mm_prefetch(code + PREFETCH_BYTES + o, _MM_HINT_T0);
            _mm_prefetch(g->scale + j->l->group_bytes + lin_scale_bytes(f) * (size_t)b, _MM_HINT_T0);
        }
#pragma GCC unroll 2
        for (int s = 0; s < ns; s++) {
            __m512i acc[8];
            direct_sub(f, nc, code, x, b, s, table, acc);
            const __m512 sc = scales(f, g, b, s, 0);
#pragma GCC unroll 8
            for (int c = 0; c < nc; c++)
                sum[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[c]),
                                         _mm512_mul_ps(sc, _mm512_set1_ps(x->d[b * nc + c])), sum[c]);
        }
        if (!lin_fmt[f].has_min) continue;
#pragma GCC unroll 2
        for (int s = 0; s < ns; s++) {
            const __m512 mn = scales(f, g, b, s, 1);
#pragma GCC unroll 8
            for (int c = 0; c < nc; c++)
                sum[c] = _mm512_fmadd_ps(mn, _mm512_set1_ps(x->sum[s * x->sub + b * nc + c]), sum[c]);
        }
    }
}

AI void direct(const lin_format f, const int nc, const lin_job *j)
{
    for (int64_t row = j->n0; row < j->n1; row += LIN_ROWS) {
        const group_ref g = group_of(f, j, row / LIN_ROWS);
        for (int64_t p = 0; p < j->a.n_panel; p++) {
            const cols x = cols_of(f, nc, j, p, 0);
            __m512 sum[8];
            direct_group(f, nc, j, &g, &x, p == 0, sum);
#pragma GCC unroll 8
            for (int c = 0; c < nc; c++) store_rows(j, row, p * nc + c, sum[c]);
        }
    }
}

/* ---- tile: 32 rows x 6 columns --------------------------------------------------------------------- */

typedef struct tile {
    u8 q[LIN_TILE_BLK][8][2][64]; /* unit, code vector, group */
    float s[LIN_TILE_BLK][2][32], m[LIN_TILE_BLK][2][32];
} tile;
_Static_assert(sizeof(tile) <= LIN_TILE_BYTES, "a tile fits its scratch");

enum { PW = LIN_TILE_PW };

/* Half h (0, 1) of a tile from units [b0, b0 + nb) of a group. */
AI void tile_fill(const lin_format f, const group_ref *g, int64_t b0, int nb, const int h, tile *t)
{
    const __m512i table = table_of(f);
    for (int b = 0; b < nb; b++) {
        const u8 *code = g->code + lin_code_bytes(f) * (size_t)(b0 + b);
        for (size_t o = 0; o < lin_code_bytes(f); o += 64)
            _mm_prefetch(code + LIN_TILE_BLK * lin_code_bytes(f) + o, _MM_HINT_T0);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) _mm512_store_si512(t->q[b][i][h], codes(f, code, i, table));
#pragma GCC unroll 2
        for (int s = 0; s < lin_fmt[f].n_sub; s++) {
            _mm512_store_ps(t->s[b][s] + 16 * h, scales(f, g, b0 + b, s, 0));
            if (lin_fmt[f].has_min) _mm512_store_ps(t->m[b][s] + 16 * h, scales(f, g, b0 + b, s, 1));
        }
    }
}

/* sums [6][32] += tile x panel. off, min, ns: constants of the format. */
AI void tile_micro(const int off, const int min, const int ns, const tile *t, int nb, const cols *x,
                   bool first, float *sums)
{
    __m512 f0[PW], f1[PW];
#pragma GCC unroll 6
    for (int c = 0; c < PW; c++) {
        f0[c] = first ? _mm512_setzero_ps() : _mm512_load_ps(sums + 32 * c);
        f1[c] = first ? _mm512_setzero_ps() : _mm512_load_ps(sums + 32 * c + 16);
    }
    for (int b = 0; b < nb; b++) {
#pragma GCC unroll 2
        for (int s = 0; s < ns; s++) {
            __m512i a0[PW], a1[PW];
#pragma GCC unroll 6
            for (int c = 0; c < PW; c++)
                a0[c] = a1[c] = off ? _mm512_set1_epi32(x->init[s * x->sub + b * PW + c]) : _mm512_setzero_si512();
#pragma GCC unroll 8
            for (int i = s * 8 / ns; i < (s + 1) * 8 / ns; i++) {
                const __m512i w0 = _mm512_load_si512(t->q[b][i][0]), w1 = _mm512_load_si512(t->q[b][i][1]);
#pragma GCC unroll 6
                for (int c = 0; c < PW; c++) {
                    const __m512i q = _mm512_set1_epi32(x->q[(b * 8 + i) * PW + c]);
                    a0[c] = _mm512_dpbusd_epi32(a0[c], w0, q);
                    a1[c] = _mm512_dpbusd_epi32(a1[c], w1, q);
                }
            }
            const __m512 s0 = _mm512_load_ps(t->s[b][s]), s1 = _mm512_load_ps(t->s[b][s] + 16);
#pragma GCC unroll 6
            for (int c = 0; c < PW; c++) {
                const __m512 d = _mm512_set1_ps(x->d[b * PW + c]);
                f0[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a0[c]), _mm512_mul_ps(s0, d), f0[c]);
                f1[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a1[c]), _mm512_mul_ps(s1, d), f1[c]);
            }
        }
        if (!min) continue;
#pragma GCC unroll 2
        for (int s = 0; s < ns; s++) {
            const __m512 m0 = _mm512_load_ps(t->m[b][s]), m1 = _mm512_load_ps(t->m[b][s] + 16);
#pragma GCC unroll 6
            for (int c = 0; c < PW; c++) {
                const __m512 d = _mm512_set1_ps(x->sum[s * x->sub + b * PW + c]);
                f0[c] = _mm512_fmadd_ps(m0, d, f0[c]);
                f1[c] = _mm512_fmadd_ps(m1, d, f1[c]);
            }
        }
    }
#pragma GCC unroll 6
    for (int c = 0; c < PW; c++) {
        _mm512_store_ps(sums + 32 * c, f0[c]);
        _mm512_store_ps(sums + 32 * c + 16, f1[c]);
    }
}

typedef void (*micro_fn)(const tile *t, int nb, const cols *x, bool first, float *sums);
#define MICRO(name, off, min, ns)                                                                  \
    static __attribute__((noinline)) void name(const tile *t, int nb, const cols *x, bool first, float *sums) \
    {                                                                                              \
        tile_micro(off, min, ns, t, nb, x, first, sums);                                           \
    }
MICRO(micro_off, 1, 0, 1)
MICRO(micro_min, 0, 1, 1)
MICRO(micro_off_16, 1, 0, 2)
MICRO(micro_min_16, 0, 1, 2)

/* Write the finished sums of `n_tiles` tiles of 32 rows. */
static void tile_store(const lin_job *j, const float *sums, int64_t row, int n_tiles)
{
    const int64_t stride = j->a.n_panel * j->a.pw * 32;
    for (int64_t c = 0; c < j->m; c++)
        for (int t = 0; t < n_tiles; t++)
            for (int h = 0; h < 2; h++)
                store_rows(j, row + 32 * t + 16 * h, c, _mm512_load_ps(sums + t * stride + c * 32 + 16 * h));
}

AI void tiled(const lin_format f, const micro_fn micro, const lin_job *j)
{
    tile *t = j->scratch;
    float *sums = (float *)(void *)((u8 *)j->scratch + 2 * LIN_TILE_BYTES);
    const int64_t stride = j->a.n_panel * PW * 32, n_blk = j->l->n_blk;
    const int64_t n_chunk = ob_div_up(n_blk, LIN_TILE_BLK), chunk = ob_div_up(n_blk, n_chunk);
    for (int64_t row = j->n0; row < j->n1; row += 64) {
        const int n_tiles = j->n1 - row > 32 ? 2 : 1;
        for (int64_t b0 = 0; b0 < n_blk; b0 += chunk) {
            const int nb = (int)OB_MIN(chunk, n_blk - b0);
            for (int i = 0; i < n_tiles; i++) {
                tile *ti = (tile *)(void *)((u8 *)t + i * LIN_TILE_BYTES);
                const int64_t g0 = row / LIN_ROWS + 2 * i, g1 = OB_MIN(g0 + 1, j->l->n_grp - 1);
                const group_ref a = group_of(f, j, g0), b = group_of(f, j, g1);
                tile_fill(f, &a, b0, nb, 0, ti);
                tile_fill(f, &b, b0, nb, 1, ti);
            }
            for (int64_t p = 0; p < j->a.n_panel; p++) {
                const cols x = cols_of(f, PW, j, p, b0);
                for (int i = 0; i < n_tiles; i++)
                    micro((const tile *)(const void *)((u8 *)t + i * LIN_TILE_BYTES), nb, &x, b0 == 0,
                          sums + i * stride + p * PW * 32);
            }
        }
        tile_store(j, sums, row, n_tiles);
    }
}

/* ---- instances ----------------------------------------------------------------------------------- */

typedef void (*mul_fn)(const lin_job *j);

#define NOINLINE static __attribute__((noinline)) void
#define INSTANCES(name, code, scale, n_sub, off, has_min)                                          \
    NOINLINE direct_##name##_1(const lin_job *j) { direct(LIN_##name, 1, j); }                     \
    NOINLINE direct_##name##_2(const lin_job *j) { direct(LIN_##name, 2, j); }                     \
    NOINLINE direct_##name##_3(const lin_job *j) { direct(LIN_##name, 3, j); }                     \
    NOINLINE direct_##name##_4(const lin_job *j) { direct(LIN_##name, 4, j); }                     \
    NOINLINE direct_##name##_6(const lin_job *j) { direct(LIN_##name, 6, j); }                     \
    NOINLINE direct_##name##_8(const lin_job *j) { direct(LIN_##name, 8, j); }                     \
    NOINLINE tiled_##name(const lin_job *j)                                                        \
    {                                                                                              \
        tiled(LIN_##name, has_min ? (n_sub == 2 ? micro_min_16 : micro_min)                        \
                                  : (n_sub == 2 ? micro_off_16 : micro_off), j);                   \
    }
LIN_FORMATS(INSTANCES)

#define DIRECT_ROW(name, ...)                                                                      \
    {NULL, direct_##name##_1, direct_##name##_2, direct_##name##_3, direct_##name##_4,             \
     NULL, direct_##name##_6, NULL, direct_##name##_8},
#define TILED_ROW(name, ...) tiled_##name,
static const mul_fn direct_fns[LIN_N_QUANT][LIN_MAX_PW + 1] = {LIN_FORMATS(DIRECT_ROW)};
static const mul_fn tiled_fns[LIN_N_QUANT] = {LIN_FORMATS(TILED_ROW)};

static void mul_avx512(const lin_job *j)
{
    if (j->m >= LIN_TILE_COLS) tiled_fns[j->l->fmt](j);
    else direct_fns[j->l->fmt][j->a.pw](j);
}

/* ---- f32 products --------------------------------------------------------------------------------- */

enum { F32_COLS = 128 }; /* columns k of a tile of 32 rows: 16 KiB */

/* Columns [k0, k0 + nk) of one group as f32, into w [nk][32] at half h. */
AI void fill_quant_f32(const lin_format f, const group_ref *g, int64_t k0, int nk, const int h, float *w)
{
    const __m512i table = table_of(f), low = _mm512_set1_epi32(255);
    const int ns = lin_fmt[f].n_sub;
    for (int b = 0; b < nk / LIN_BLK; b++) {
        const u8 *code = g->code + lin_code_bytes(f) * (size_t)(k0 / LIN_BLK + b);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            const int s = i * ns / 8;
            const __m512 sc = scales(f, g, k0 / LIN_BLK + b, s, 0);
            const __m512i v = codes(f, code, i, table);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                const __m512i q = _mm512_and_si512(_mm512_srli_epi32(v, (unsigned)(8 * k)), low);
                __m512 x = _mm512_cvtepi32_ps(_mm512_sub_epi32(q, _mm512_set1_epi32(lin_fmt[f].off)));
                x = _mm512_mul_ps(x, sc);
                if (lin_fmt[f].has_min) x = _mm512_add_ps(x, scales(f, g, k0 / LIN_BLK + b, s, 1));
                _mm512_store_ps(w + (b * LIN_BLK + 4 * i + k) * 32 + 16 * h, x);
            }
        }
    }
}

AI void fill_float_f32(const lin_format f, const u8 *group, int64_t k0, int nk, const int h, float *w)
{
    const size_t bytes = LIN_ROWS * lin_float_bytes(f);
    const u8 *p = group + (size_t)k0 * bytes;
    for (int k = 0; k < nk; k++, p += bytes) {
        _mm_prefetch(p + PREFETCH_BYTES, _MM_HINT_T0);
        const __m512 x = f == LIN_F32 ? _mm512_loadu_ps(p) : f == LIN_F16 ? f16x16(p) : bf16x16(p);
        _mm512_store_ps(w + k * 32 + 16 * h, x);
    }
}

#define FILL_QUANT(name, ...)                                                                      \
    static void fill_##name(const lin_job *j, int64_t g, int64_t k0, int nk, int h, float *w)      \
    {                                                                                              \
        const group_ref r = group_of(LIN_##name, j, g);                                            \
        fill_quant_f32(LIN_##name, &r, k0, nk, h, w);                                              \
    }
#define FILL_FLOAT(name)                                                                           \
    static void fill_##name(const lin_job *j, int64_t g, int64_t k0, int nk, int h, float *w)      \
    {                                                                                              \
        fill_float_f32(LIN_##name, j->w + (size_t)g * j->l->group_bytes, k0, nk, h, w);            \
    }
LIN_FORMATS(FILL_QUANT)
LIN_FLOATS(FILL_FLOAT)

typedef void (*fill_fn)(const lin_job *j, int64_t g, int64_t k0, int nk, int h, float *w);
#define FILL_ROW(name, ...) fill_##name,
static const fill_fn fills[LIN_N_FORMATS] = {LIN_FORMATS(FILL_ROW) LIN_FLOATS(FILL_ROW)};

/* sums [nc][32] += w [nk][32] x panel [nk][nc]. */
AI void f32_micro(const int nc, const float *w, int nk, const float *x, bool first, float *sums)
{
    __m512 f0[8], f1[8];
#pragma GCC unroll 8
    for (int c = 0; c < nc; c++) {
        f0[c] = first ? _mm512_setzero_ps() : _mm512_load_ps(sums + 32 * c);
        f1[c] = first ? _mm512_setzero_ps() : _mm512_load_ps(sums + 32 * c + 16);
    }
    for (int k = 0; k < nk; k++) {
        const __m512 w0 = _mm512_load_ps(w + 32 * k), w1 = _mm512_load_ps(w + 32 * k + 16);
#pragma GCC unroll 8
        for (int c = 0; c < nc; c++) {
            const __m512 v = _mm512_set1_ps(x[k * nc + c]);
            f0[c] = _mm512_fmadd_ps(w0, v, f0[c]);
            f1[c] = _mm512_fmadd_ps(w1, v, f1[c]);
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < nc; c++) {
        _mm512_store_ps(sums + 32 * c, f0[c]);
        _mm512_store_ps(sums + 32 * c + 16, f1[c]);
    }
}

typedef void (*f32_micro_fn)(const float *w, int nk, const float *x, bool first, float *sums);
#define F32_MICRO(nc)                                                                              \
    NOINLINE f32_micro_##nc(const float *w, int nk, const float *x, bool first, float *sums)       \
    {                                                                                              \
        f32_micro(nc, w, nk, x, first, sums);                                                      \
    }
F32_MICRO(1) F32_MICRO(2) F32_MICRO(3) F32_MICRO(4) F32_MICRO(6) F32_MICRO(8)
static const f32_micro_fn f32_micros[LIN_MAX_PW + 1] = {
    NULL, f32_micro_1, f32_micro_2, f32_micro_3, f32_micro_4, NULL, f32_micro_6, NULL, f32_micro_8};

static void mul_f32_avx512(const lin_job *j)
{
    float *w = j->scratch, *sums = (float *)(void *)((u8 *)j->scratch + 2 * LIN_TILE_BYTES);
    const fill_fn fill = fills[j->l->fmt];
    const f32_micro_fn micro = f32_micros[j->a.pw];
    for (int64_t row = j->n0; row < j->n1; row += 32) {
        const int64_t g0 = row / LIN_ROWS, g1 = OB_MIN(g0 + 1, j->l->n_grp - 1);
        for (int64_t k0 = 0; k0 < j->l->k; k0 += F32_COLS) {
            const int nk = (int)OB_MIN(F32_COLS, j->l->k - k0);
            fill(j, g0, k0, nk, 0, w);
            fill(j, g1, k0, nk, 1, w);
            for (int64_t p = 0; p < j->a.n_panel; p++) {
                const float *x = (const float *)(const void *)(j->act + (size_t)p * j->a.panel_bytes);
                micro(w, nk, x + k0 * j->a.pw, k0 == 0, sums + p * j->a.pw * 32);
            }
        }
        tile_store(j, sums, row, 1);
    }
}

static float act4_avx512(const float *x, int8_t *q) { return ob_act4_codes(x, q); }

const lin_kernels lin_kernels_avx512 = {
    .name = "avx512", .act = act_avx512, .act4 = act4_avx512, .mul = mul_avx512, .mul_f32 = mul_f32_avx512};
