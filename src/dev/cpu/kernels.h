/* dev/cpu/kernels.h: the table of kernels of the CPU device, matrix products apart (linear.h).
 *
 * Owns: row-wise kernels and the inner loops of attention. Pure: pointers and sizes, no allocation,
 * no globals, no threads. One template (kern_tmpl.inc, attn_tmpl.inc) is compiled once per level over that
 * level's vector type (vec_c.h, x86/vec_*.h). The sums of one output element run in an order that
 * depends only on its own row's length, so results do not change with batch or threads; they may
 * differ between levels in the last bits.
 */
#ifndef OB_DEV_CPU_KERNELS_H
#define OB_DEV_CPU_KERNELS_H

#include <stdint.h>

#include "dev/cpu/linear.h"
#include "ops/ops.h"

enum {
    OB_CPU_MAX_LANES = 16,  /* f32 lanes of the widest level; row scratch is padded to this */
    OB_CPU_GDN_SLICE = 64,  /* columns of a state that are walked together, at most */
    OB_CPU_ATTN_TILE = 64,  /* cached tokens of one tile, a multiple of every level's lanes */
};

/* Queries of one key-value head against one tile of cached tokens, by online softmax (Milakov and
 * Gimelshein 2018, arXiv 1805.02867): updates running maximum, sum and weighted values.
 * The k_pad columns (multiple of 4) and v_pad columns (multiple of OB_CPU_MAX_LANES) past the real
 * ones are zero in q and o. */
typedef struct ob_cpu_attn_tile {
    int32_t n_q, n_tok;          /* n_tok <= OB_CPU_ATTN_TILE */
    int32_t k_dim, k_pad, v_dim, v_pad;
    const float *q;              /* [n_q][k_pad], already times the scale */
    const void *const *k_row;    /* [n_tok] rows of k_dim */
    const void *const *v_row;    /* [n_tok] rows of v_dim */
    bool k_f16, v_f16;           /* else f32 */
    const int32_t *lo, *hi;      /* [n_q]: query i sees tokens lo <= t < hi of the tile */
    float softcap;               /* 0: none */
    float *max, *sum;            /* [n_q]; max -inf and sum 0 before the first tile */
    float *o;                    /* [n_q][v_pad], zero before the first tile */
    float *kp, *vp, *s;          /* scratch: TILE * k_pad, TILE * v_pad, n_q * TILE floats */
} ob_cpu_attn_tile;

/* Some tokens of one head of the delta rule. A column's result depends on the tokens' own values alone, so
 * walking them one by one or many at once gives the same bits. */
typedef struct ob_cpu_gdn {
    int32_t n_tok, k_dim, v_dim;
    const float *q, *k;              /* [n_tok][k_dim], from gdn_keys */
    const float *decay, *beta, *kq;  /* [n_tok] */
    const float *v;                  /* [n_tok][ldv] */
    float *y;                        /* [n_tok][ldy] */
    int64_t ldv, ldy;
    float *s;                        /* [k_dim][v_dim], updated */
    float *slice;                    /* scratch: k_dim * OB_CPU_GDN_SLICE floats */
} ob_cpu_gdn;

typedef struct ob_cpu_kernels {
    /* y = x / rms(x) * w over n columns; w may be NULL. y may be x in all of these. */
    void (*rms_norm)(const float *x, const float *w, float *y, int64_t n, float eps);
    void (*layer_norm)(const float *x, const float *w, const float *b, float *y, int64_t n, float eps);
    /* cs: the row's table of ob_cpu_rope_floats(p) floats. */
    void (*rope)(const ob_rope_params *p, const float *cs, int32_t n_head, const float *x, float *y);
    void (*glu)(ob_act act, float clamp, const float *gate, const float *up, float *y, int64_t n);
    void (*act)(ob_act act, const float *x, float *y, int64_t n);
    void (*add)(const float *x, const float *x2, float scale, float *y, int64_t n);
    void (*scale)(const float *x, float scale, float softcap, float *y, int64_t n);
    void (*to_f16)(const float *x, uint16_t *y, int64_t n);
    /* y = act(bias + sum_k tap[k] * u[k]) over n columns; bias may be NULL. act is not GELU_ERF. */
    void (*conv)(const float *const *u, const float *const *tap, int32_t n_tap, const float *bias, ob_act act,
                 float *y, int64_t n);
    /* y[r][c] += sum_i x[r][i] * w[i][c] over n_in inputs, n_out columns and m rows, i in order. */
    void (*mix)(const float *w, int32_t n_in, int32_t n_out, const float *x, int64_t ldx, int32_t m, float *y,
                int64_t ldy);
    /* The delta rule (OB_OP_GDN): q and k of a token as the recurrence wants them, and their product. */
    float (*gdn_keys)(const float *q, const float *k, int32_t k_dim, float eps, float *qn, float *kn);
    void (*gdn)(const ob_cpu_gdn *g);
    void (*attn_tile)(const ob_cpu_attn_tile *t);
    /* Only the products, to t->s [n_q][OB_CPU_ATTN_TILE]; v_*, lo, hi, max, sum and o are not looked at. */
    void (*attn_scores)(const ob_cpu_attn_tile *t);
    /* y[i] = sum_h w[h] * max(0, s[h * ld + i]), i < n. */
    void (*relu_mix)(const float *s, int64_t ld, const float *w, int32_t n_head, float *y, int64_t n);
    /* y[c] = sum_t softmax_t(gate[t][c] + ape[t][c]) * kv[t][c] over n rows, c < width. */
    void (*softmax_pool)(const float *const *kv, const float *const *gate, const float *const *ape, int32_t n,
                         float *y, int64_t width);
    /* Merge partial result 2 into 1: both as the fields of ob_cpu_attn_tile, one query. */
    void (*attn_merge)(float *max, float *sum, float *o, float max2, float sum2, const float *o2,
                       int32_t v_pad);
} ob_cpu_kernels;

/* The best table at or below this level. */
const ob_cpu_kernels *ob_cpu_kernels_get(ob_cpu_level level);

/* Floats of the cos/sin table of one row: cos then sin, [n_rot / 2] each (NEOX) or [n_rot] each with
 * every cos twice and every sin as -sin, +sin (NORM), so that both kernels only multiply and add. */
static inline int32_t ob_cpu_rope_floats(const ob_rope_params *p)
{
    return p->pairing == OB_ROPE_NEOX ? p->n_rot : 2 * p->n_rot;
}

extern const ob_cpu_kernels ob_cpu_kernels_c, ob_cpu_kernels_avx2, ob_cpu_kernels_avx512;

#endif
