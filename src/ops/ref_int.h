/* ops/ref_int.h: what the files of the reference share. */
#ifndef OB_OPS_REF_INT_H
#define OB_OPS_REF_INT_H

#include <string.h>

#include "ops/ref.h"
#include "quant/act4.h"
#include "quant/hadamard.h"

static inline float *ref_row(const ob_ref_env *e, ob_val v, int64_t r)
{
    return e->vals[v] + r * e->prog->vals[v].cols;
}

static inline int64_t ref_rows(const ob_ref_env *e, ob_val v)
{
    return ob_value_rows(e->prog, v, e->step->n_tok, e->step->n_out, e->step->n_seq);
}

static inline void ref_load_row(ob_type type, const void *src, float *dst, int64_t n)
{
    if (type == OB_F32) memcpy(dst, src, (size_t)n * sizeof(float));
    else ob_type_get(type)->dequant(src, dst, n);
}

/* A vector weight as f32: where it lies, or dequantised into scratch; NULL when absent. */
static inline const float *ref_vector(const ob_ref_env *e, int32_t w, float *scratch)
{
    if (w == OB_NONE) return NULL;
    const ob_weight *x = &e->prog->weights[w];
    if (x->type == OB_F32) return x->data;
    ob_type_get(x->type)->dequant(x->data, scratch, x->ne[0] * x->ne[1] * x->ne[2]);
    return scratch;
}

/* Row n of matrix e of a weight, dequantised. */
static inline void ref_weight_row(const ob_weight *w, int64_t matrix, int64_t n, float *dst)
{
    const size_t row_bytes = ob_type_row_bytes(w->type, w->ne[0]);
    ref_load_row(w->type, (const char *)w->data + (size_t)(matrix * w->ne[1] + n) * row_bytes, dst, w->ne[0]);
    /* The transform is its own inverse: the weights are turned back instead of turning activations. */
    if (w->hadamard) ob_hadamard_row(dst, w->ne[0]);
}

/* Is row r of value v rounded to 4 bits before it meets an act4 weight? */
static inline bool ref_coarse(const ob_ref_env *e, ob_val v, int64_t r)
{
    const ob_rows rows = e->prog->vals[v].rows;
    if (!e->step->coarse || rows == OB_ROWS_SEQ) return false;
    return e->step->coarse[rows == OB_ROWS_OUT ? e->step->out_rows[r] : r];
}

/* What k activations x become before they meet w (whose rows ref_weight_row turns back): x itself, or a copy in
 * scratch [k]. */
static inline const float *ref_input(const ob_weight *w, const float *x, int64_t k, bool coarse, float *scratch)
{
    if (!w->act4 || !coarse) return x;
    for (int64_t i = 0; i < k; i += OB_HADAMARD) {
        memcpy(scratch + i, x + i, OB_HADAMARD * sizeof *x);
        ob_hadamard32(scratch + i);
        ob_act4_round(scratch + i);
        ob_hadamard32(scratch + i);
    }
    return scratch;
}

static inline double ref_dot(const float *a, const float *b, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += (double)a[i] * (double)b[i];
    return s;
}

/* Position of token t on each axis. */
static inline void ref_axes(const ob_step *s, int64_t t, int32_t pos[3])
{
    pos[0] = s->pos[t];
    pos[1] = s->pos_h ? s->pos_h[t] : s->pos[t];
    pos[2] = s->pos_w ? s->pos_w[t] : s->pos[t];
}

/* State of the sequence, in its slot; `fresh` when it begins with this step and so counts as zero. */
static inline float *ref_state(const ob_ref_env *e, int32_t state, int64_t seq, bool *fresh)
{
    *fresh = e->step->seq_past[seq] == 0;
    return e->states[state] + e->step->seq_slot[seq] * e->prog->states[state].n_floats;
}

/* Items [first, last) of one op; what an item is stands beside each. */
void ob_ref_linear_heads(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last); /* output columns */
void ob_ref_moe_route(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last);    /* tokens */
void ob_ref_moe_glu(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last);      /* rows */
void ob_ref_conv1d(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last);       /* (sequence, column) */
void ob_ref_cca(const ob_ref_env *e, const ob_op *op, int phase, int64_t first, int64_t last); /* tokens, 2 phases */
void ob_ref_hc_mix(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last);       /* rows */
void ob_ref_hc_post(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last);      /* rows */
void ob_ref_csa(const ob_ref_env *e, const ob_op *op, int phase, int64_t first, int64_t last); /* (token, head), 2 phases */
size_t ob_ref_csa_scratch(const ob_op *op); /* floats beside the scores */
void ob_ref_gdn(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last);          /* (sequence, value head) */

#endif
