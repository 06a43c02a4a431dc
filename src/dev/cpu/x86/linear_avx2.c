/* AVX2 (with FMA and F16C) kernels for packed weights.
 *
 * 16 rows x 1 to 3 columns: the codes of a unit are unpacked in registers for up to 3 columns, else
 * up to 12 units are unpacked once into L1 and all panels run over them.
 *
 * The dot product is vpmaddubsw (u8 x s8 to pairs in int16, which saturate), so each code width adds as
 * many pairs in int16 as surely fit, then widens: 8 vectors of 4-bit codes (8 * 2 * 15 * 127 = 30,480),
 * 4 of 5 bits (31,496), 2 of 6 bits (32,004). 8-bit codes go as |w - 128| x (x with the sign of w - 128),
 * one vector at a time (2 * 128 * 127 = 32,512), and then need no offset. All sums are exact.
 */
#include <immintrin.h>

#include "dev/cpu/linear_int.h"
#include "quant/act4.h"

#define AI static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline)) void

typedef uint8_t u8;

enum { LANES = 8, HALVES = 2 }; /* 16 rows are two vectors */

/* ---- reading packed units ------------------------------------------------------------------------ */

AI __m256i load256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
AI __m256 f16x8(const u8 *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }
AI __m256 bf16x8(const u8 *p)
{
    const __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
AI __m256 i8x8(const u8 *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
}

AI bool is_signed(const lin_format f) { return lin_fmt[f].off == 128; }

/* Half h of code vector i of the unit at p; 8-bit codes come signed, less their 128. */
AI __m256i codes(const lin_format f, const u8 *p, const int i, const int h)
{
    const __m256i m4 = _mm256_set1_epi8(15);
    p += 32 * h;
    if (lin_fmt[f].code == LIN_C8) return _mm256_xor_si256(load256(p + 64 * i), _mm256_set1_epi8((char)0x80));
    __m256i v = load256(p + 64 * (i & 3));
    if (i >= 4) v = _mm256_srli_epi16(v, 4);
    v = _mm256_and_si256(v, m4);
    if (lin_fmt[f].code == LIN_T4) {
        const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)lin_table(f)));
        return _mm256_shuffle_epi8(_mm256_xor_si256(t, _mm256_set1_epi8((char)0x80)), v);
    }
    if (lin_fmt[f].code == LIN_C5) {
        __m256i x = load256(p + 256);
        x = i < 4 ? _mm256_slli_epi16(x, 4 - i) : _mm256_srli_epi16(x, i - 4);
        v = _mm256_or_si256(v, _mm256_and_si256(x, _mm256_set1_epi8(16)));
    } else if (lin_fmt[f].code == LIN_C6) {
        __m256i x = load256(p + 256 + 64 * (i >> 2));
        x = (i & 3) < 2 ? _mm256_slli_epi16(x, 4 - 2 * (i & 3)) : _mm256_srli_epi16(x, 2 * (i & 3) - 4);
        v = _mm256_or_si256(v, _mm256_and_si256(x, _mm256_set1_epi8(0x30)));
    }
    return v;
}

typedef struct group_ref { const u8 *code, *scale, *head; } group_ref;

AI group_ref group_of(const lin_format f, const lin_job *j, int64_t g)
{
    const u8 *p = j->w + (size_t)g * j->l->group_bytes;
    const u8 *s = p + lin_code_bytes(f) * (size_t)j->l->n_blk;
    return (group_ref){p, s, s + lin_scale_bytes(f) * (size_t)j->l->n_blk};
}

/* Half h of the scales (which = 0) or minimums (which = 1) of sub-block s of unit b. */
AI __m256 scales(const lin_format f, const group_ref *g, int64_t b, const int s, const int which, const int h)
{
    const u8 *p = g->scale + lin_scale_bytes(f) * (size_t)b +
                  lin_sub_bytes(f) * (size_t)(s + which * lin_fmt[f].n_sub);
    const u8 *head = g->head + lin_head_bytes(f) * (size_t)(b / 8) + 32 * which + 16 * h;
    switch (lin_fmt[f].scale) {
    case LIN_S_F16: return f16x8(p + 16 * h);
    case LIN_S_BF16: return bf16x8(p + 16 * h);
    case LIN_S_F32: return _mm256_loadu_ps((const float *)(const void *)(p + 32 * h));
    default: return _mm256_mul_ps(f16x8(head), i8x8(p + 8 * h));
    }
}

/* ---- activations -------------------------------------------------------------------------------- */

AI __m256 abs8(__m256 v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }

/* 32 values to int8 with one scale; sums of the two halves. */
AI float quant_block(const float *x, int8_t *q, int32_t sum[2])
{
    __m256 v[4], m = _mm256_setzero_ps();
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        m = _mm256_max_ps(abs8(v[i]), m); /* the second operand when the first is NaN */
    }
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    const float max = _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
    const __m256 inv = _mm256_set1_ps(max > LIN_ACT_TINY ? 127.0f / max : 0.0f);
    __m256i c[4];
    for (int i = 0; i < 4; i++) c[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inv));
    __m256i b = _mm256_packs_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3]));
    b = _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((void *)q, b);
    __m256i s = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), b), _mm256_set1_epi16(1));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4E));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xB1));
    sum[0] = _mm256_extract_epi32(s, 0);
    sum[1] = _mm256_extract_epi32(s, 4);
    return max > LIN_ACT_TINY ? max / 127.0f : 0.0f;
}

static void act_avx2(const ob_lin *l, const lin_act *a, const float *x, int64_t ldx, int n_valid, u8 *panel)
{
    static const float zeros[LIN_BLK];
    const int64_t pw = a->pw, ns = a->n_sub;
    float *d = (float *)(void *)(panel + a->off_d), *sumf = (float *)(void *)(panel + a->off_sum);
    for (int64_t b = 0; b < l->n_blk; b++) {
        for (int c = 0; c < pw; c++) {
            int8_t q[LIN_BLK];
            int32_t half[2];
            const float scale = quant_block(c < n_valid ? x + c * ldx + b * LIN_BLK : zeros, q, half);
            for (int i = 0; i < 8; i++) __builtin_memcpy(panel + ((b * 8 + i) * pw + c) * 4, q + 4 * i, 4);
            d[b * pw + c] = scale;
            for (int64_t s = 0; s < ns; s++) {
                const int32_t sum = ns == 1 ? half[0] + half[1] : half[s];
                const int64_t at = (s * l->n_blk + b) * pw + c;
                sumf[at] = scale * (float)sum;
                for (int i = 0; i < 3; i++)
                    ((int32_t *)(void *)(panel + a->off_init[i]))[at] = -lin_act_off((int)ns, i) * sum;
            }
        }
    }
}

/* ---- int8: 16 rows x NC columns ------------------------------------------------------------------- */

typedef struct tile { /* 16 rows, unpacked */
    u8 q[LIN_TILE_BLK][8][64];
    float s[LIN_TILE_BLK][2][LIN_ROWS], m[LIN_TILE_BLK][2][LIN_ROWS];
} tile;
_Static_assert(sizeof(tile) <= LIN_TILE_BYTES, "a tile fits its scratch");

AI void tile_fill(const lin_format f, const group_ref *g, int64_t b0, int nb, tile *t)
{
    for (int b = 0; b < nb; b++)
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) {
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++)
                _mm256_storeu_si256((void *)(t->q[b][i] + 32 * h),
                                    codes(f, g->code + lin_code_bytes(f) * (size_t)(b0 + b), i, h));
#pragma GCC unroll 2
            for (int s = 0; s < lin_fmt[f].n_sub; s++) {
                _mm256_storeu_ps(t->s[b][s] + LANES * h, scales(f, g, b0 + b, s, 0, h));
                if (lin_fmt[f].has_min) _mm256_storeu_ps(t->m[b][s] + LANES * h, scales(f, g, b0 + b, s, 1, h));
            }
        }
}

/* Columns of a panel from one of them on. */
typedef struct cols {
    const int32_t *q, *init;
    const float *d, *sum;
    int64_t sub;
    int pw;
} cols;

AI cols cols_of(const lin_format f, const lin_job *j, int64_t p, int c)
{
    const u8 *at = j->act + (size_t)p * j->a.panel_bytes;
    return (cols){(const int32_t *)(const void *)at + c,
                  (const int32_t *)(const void *)(at + j->a.off_init[lin_init_index(f)]) + c,
                  (const float *)(const void *)(at + j->a.off_d) + c,
                  (const float *)(const void *)(at + j->a.off_sum) + c, j->l->n_blk * j->a.pw, j->a.pw};
}

/* How many vectors of pairs fit in int16. */
AI int pairs_fit(const lin_format f)
{
    return lin_fmt[f].code == LIN_C4 ? 8 : lin_fmt[f].code == LIN_C5 ? 4 : lin_fmt[f].code == LIN_C6 ? 2 : 1;
}
AI __m256i pairs(const lin_format f, __m256i w, __m256i x)
{
    if (is_signed(f)) return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_maddubs_epi16(w, x);
}

/* int32 sums of sub-block s of unit b; codes from the tile or, when t is NULL, from the packed unit. */
AI void dot_sub(const lin_format f, const int nc, const tile *t, int tb, const u8 *code, const cols *x,
                int64_t b, const int s, __m256i acc[3][HALVES])
{
    const int n = 8 / lin_fmt[f].n_sub, fit = OB_MIN(pairs_fit(f), n);
    const __m256i one = _mm256_set1_epi16(1);
#pragma GCC unroll 3
    for (int c = 0; c < nc; c++)
        acc[c][0] = acc[c][1] = lin_fmt[f].off && !is_signed(f)
                                    ? _mm256_set1_epi32(x->init[s * x->sub + b * x->pw + c]) : _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i0 = s * n; i0 < (s + 1) * n; i0 += fit) {
        __m256i p[3][HALVES];
#pragma GCC unroll 8
        for (int i = i0; i < i0 + fit; i++) {
            __m256i w[HALVES];
#pragma GCC unroll 2
            for (int h = 0; h < HALVES; h++) w[h] = t ? load256(t->q[tb][i] + 32 * h) : codes(f, code, i, h);
#pragma GCC unroll 3
            for (int c = 0; c < nc; c++) {
                const __m256i q = _mm256_set1_epi32(x->q[(b * 8 + i) * x->pw + c]);
#pragma GCC unroll 2
                for (int h = 0; h < HALVES; h++) {
                    const __m256i v = pairs(f, w[h], q);
                    p[c][h] = i == i0 ? v : _mm256_add_epi16(p[c][h], v);
                }
            }
        }
#pragma GCC unroll 3
        for (int c = 0; c < nc; c++)
#pragma GCC unroll 2
            for (int h = 0; h < HALVES; h++)
                acc[c][h] = _mm256_add_epi32(acc[c][h], _mm256_madd_epi16(p[c][h], one));
    }
}

/* sums [nc][16] += units [b0, b0 + nb) x columns. */
AI void micro(const lin_format f, const int nc, const tile *t, const group_ref *g, int64_t b0, int nb,
              const cols *x, float *sums)
{
    __m256 sum[3][HALVES];
#pragma GCC unroll 3
    for (int c = 0; c < nc; c++)
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++)
            sum[c][h] = b0 == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(sums + LIN_ROWS * c + LANES * h);
    for (int tb = 0; tb < nb; tb++) {
        const int64_t b = b0 + tb;
#pragma GCC unroll 2
        for (int s = 0; s < lin_fmt[f].n_sub; s++) {
            __m256i acc[3][HALVES];
            dot_sub(f, nc, t, tb, g->code + lin_code_bytes(f) * (size_t)b, x, b, s, acc);
#pragma GCC unroll 2
            for (int h = 0; h < HALVES; h++) {
                const __m256 sc = t ? _mm256_loadu_ps(t->s[tb][s] + LANES * h) : scales(f, g, b, s, 0, h);
#pragma GCC unroll 3
                for (int c = 0; c < nc; c++)
                    sum[c][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[c][h]),
                                                _mm256_mul_ps(sc, _mm256_set1_ps(x->d[b * x->pw + c])), sum[c][h]);
            }
        }
        if (!lin_fmt[f].has_min) continue;
#pragma GCC unroll 2
        for (int s = 0; s < lin_fmt[f].n_sub; s++)
#pragma GCC unroll 2
            for (int h = 0; h < HALVES; h++) {
                const __m256 mn = t ? _mm256_loadu_ps(t->m[tb][s] + LANES * h) : scales(f, g, b, s, 1, h);
#pragma GCC unroll 3
                for (int c = 0; c < nc; c++)
                    sum[c][h] = _mm256_fmadd_ps(mn, _mm256_set1_ps(x->sum[s * x->sub + b * x->pw + c]), sum[c][h]);
            }
    }
#pragma GCC unroll 3
    for (int c = 0; c < nc; c++)
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) _mm256_storeu_ps(sums + LIN_ROWS * c + LANES * h, sum[c][h]);
}

/* All columns of a panel, by threes, twos or one. */
AI void micro_panel(const lin_format f, const lin_job *j, const tile *t, const group_ref *g, int64_t b0, int nb,
                    int64_t p, float *sums)
{
    const int pw = j->a.pw, step = pw % 3 == 0 ? 3 : pw % 2 == 0 ? 2 : 1;
    for (int c = 0; c < pw; c += step) {
        const cols x = cols_of(f, j, p, c);
        float *to = sums + (p * pw + c) * LIN_ROWS;
        if (step == 3) micro(f, 3, t, g, b0, nb, &x, to);
        else if (step == 2) micro(f, 2, t, g, b0, nb, &x, to);
        else micro(f, 1, t, g, b0, nb, &x, to);
    }
}

/* Bias, scale, residual, and the store of 16 rows of one column. */
static void store_rows(const lin_job *j, int64_t row, int64_t col, const float *f)
{
    const ob_lin_epilogue *ep = j->ep;
    const int64_t n = OB_MIN(j->n1 - row, LIN_ROWS);
    float *y = j->y + col * j->ldy + row;
    for (int64_t r = 0; r < n; r++) {
        float v = f[r];
        if (ep->bias) v += ep->bias[row + r];
        v *= ep->scale;
        y[r] = ep->res ? ep->res[col * ep->ldres + row + r] + v : v;
    }
}

/* From this many columns on, codes are unpacked once into a tile. */
enum { UNPACK_COLS = 4 };

AI void mul_format(const lin_format f, const lin_job *j)
{
    tile *t = j->scratch;
    float *sums = (float *)(void *)((u8 *)j->scratch + LIN_TILE_BYTES);
    const int64_t n_blk = j->l->n_blk;
    for (int64_t row = j->n0; row < j->n1; row += LIN_ROWS) {
        const group_ref g = group_of(f, j, row / LIN_ROWS);
        if (j->a.n_panel == 1 && j->a.pw < UNPACK_COLS) {
            micro_panel(f, j, NULL, &g, 0, (int)n_blk, 0, sums);
        } else {
            for (int64_t b0 = 0; b0 < n_blk; b0 += LIN_TILE_BLK) {
                const int nb = (int)OB_MIN(LIN_TILE_BLK, n_blk - b0);
                tile_fill(f, &g, b0, nb, t);
                for (int64_t p = 0; p < j->a.n_panel; p++) micro_panel(f, j, t, &g, b0, nb, p, sums);
            }
        }
        for (int64_t c = 0; c < j->m; c++) store_rows(j, row, c, sums + c * LIN_ROWS);
    }
}

typedef void (*mul_fn)(const lin_job *j);
#define MUL(name, ...) NOINLINE mul_##name(const lin_job *j) { mul_format(LIN_##name, j); }
#define MUL_ROW(name, ...) mul_##name,
LIN_FORMATS(MUL)
static const mul_fn muls[LIN_N_QUANT] = {LIN_FORMATS(MUL_ROW)};

static void mul_avx2(const lin_job *j) { muls[j->l->fmt](j); }

/* ---- f32 products --------------------------------------------------------------------------------- */

enum { F32_COLS = 128 };

/* Columns [k0, k0 + nk) of one group as f32, to w [nk][16]. */
AI void fill_quant_f32(const lin_format f, const group_ref *g, int64_t k0, int nk, float *w)
{
    const __m256i low = _mm256_set1_epi32(255);
    for (int b = 0; b < nk / LIN_BLK; b++)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
#pragma GCC unroll 2
            for (int h = 0; h < HALVES; h++) {
                const int s = i * lin_fmt[f].n_sub / 8;
                const int64_t at = k0 / LIN_BLK + b;
                __m256i v = codes(f, g->code + lin_code_bytes(f) * (size_t)at, i, h);
                if (is_signed(f)) v = _mm256_xor_si256(v, _mm256_set1_epi8((char)0x80));
#pragma GCC unroll 4
                for (int k = 0; k < 4; k++) {
                    const __m256i q = _mm256_and_si256(_mm256_srli_epi32(v, 8 * k), low);
                    __m256 x = _mm256_cvtepi32_ps(_mm256_sub_epi32(q, _mm256_set1_epi32(lin_fmt[f].off)));
                    x = _mm256_mul_ps(x, scales(f, g, at, s, 0, h));
                    if (lin_fmt[f].has_min) x = _mm256_add_ps(x, scales(f, g, at, s, 1, h));
                    _mm256_storeu_ps(w + (b * LIN_BLK + 4 * i + k) * LIN_ROWS + LANES * h, x);
                }
            }
}
AI void fill_float_f32(const lin_format f, const u8 *group, int64_t k0, int nk, float *w)
{
    const size_t bytes = lin_float_bytes(f) * LANES;
    const u8 *p = group + (size_t)k0 * 2 * bytes;
    for (int i = 0; i < 2 * nk; i++, p += bytes, w += LANES)
        _mm256_storeu_ps(w, f == LIN_F32 ? _mm256_loadu_ps((const float *)(const void *)p)
                                         : f == LIN_F16 ? f16x8(p) : bf16x8(p));
}
#define FILL_QUANT(name, ...)                                                                      \
    NOINLINE fill_##name(const lin_job *j, int64_t g, int64_t k0, int nk, float *w)                \
    {                                                                                              \
        const group_ref r = group_of(LIN_##name, j, g);                                            \
        fill_quant_f32(LIN_##name, &r, k0, nk, w);                                                 \
    }
#define FILL_FLOAT(name)                                                                           \
    NOINLINE fill_##name(const lin_job *j, int64_t g, int64_t k0, int nk, float *w)                \
    {                                                                                              \
        fill_float_f32(LIN_##name, j->w + (size_t)g * j->l->group_bytes, k0, nk, w);               \
    }
LIN_FORMATS(FILL_QUANT)
LIN_FLOATS(FILL_FLOAT)
typedef void (*fill_fn)(const lin_job *j, int64_t g, int64_t k0, int nk, float *w);
#define FILL_ROW(name, ...) fill_##name,
static const fill_fn fills[LIN_N_FORMATS] = {LIN_FORMATS(FILL_ROW) LIN_FLOATS(FILL_ROW)};

/* sums [nc][16] += w [nk][16] x columns of a panel. */
AI void f32_micro(const int nc, const float *w, int nk, const float *x, int pw, bool first, float *sums)
{
    __m256 f[4][HALVES];
#pragma GCC unroll 4
    for (int c = 0; c < nc; c++)
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++)
            f[c][h] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(sums + LIN_ROWS * c + LANES * h);
    for (int k = 0; k < nk; k++) {
        const __m256 w0 = _mm256_loadu_ps(w + LIN_ROWS * k), w1 = _mm256_loadu_ps(w + LIN_ROWS * k + LANES);
#pragma GCC unroll 4
        for (int c = 0; c < nc; c++) {
            const __m256 v = _mm256_set1_ps(x[k * pw + c]);
            f[c][0] = _mm256_fmadd_ps(w0, v, f[c][0]);
            f[c][1] = _mm256_fmadd_ps(w1, v, f[c][1]);
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < nc; c++)
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) _mm256_storeu_ps(sums + LIN_ROWS * c + LANES * h, f[c][h]);
}

static void mul_f32_avx2(const lin_job *j)
{
    float *w = j->scratch, *sums = (float *)(void *)((u8 *)j->scratch + LIN_TILE_BYTES);
    const int pw = j->a.pw, step = pw % 4 == 0 ? 4 : pw % 3 == 0 ? 3 : pw;
    for (int64_t row = j->n0; row < j->n1; row += LIN_ROWS) {
        for (int64_t k0 = 0; k0 < j->l->k; k0 += F32_COLS) {
            const int nk = (int)OB_MIN(F32_COLS, j->l->k - k0);
            fills[j->l->fmt](j, row / LIN_ROWS, k0, nk, w);
            for (int64_t c = 0; c < j->a.n_panel * pw; c += step) {
                const float *x = (const float *)(const void *)(j->act + (size_t)(c / pw) * j->a.panel_bytes) +
                                 k0 * pw + c % pw;
                float *to = sums + c * LIN_ROWS;
                if (step == 4) f32_micro(4, w, nk, x, pw, k0 == 0, to);
                else if (step == 3) f32_micro(3, w, nk, x, pw, k0 == 0, to);
                else if (step == 2) f32_micro(2, w, nk, x, pw, k0 == 0, to);
                else f32_micro(1, w, nk, x, pw, k0 == 0, to);
            }
        }
        for (int64_t c = 0; c < j->m; c++) store_rows(j, row, c, sums + c * LIN_ROWS);
    }
}

static float act4_avx2(const float *x, int8_t *q) { return ob_act4_codes(x, q); }

const lin_kernels lin_kernels_avx2 = {
    .name = "avx2", .act = act_avx2, .act4 = act4_avx2, .mul = mul_avx2, .mul_f32 = mul_f32_avx2};
