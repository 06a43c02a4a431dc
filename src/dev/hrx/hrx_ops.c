/* Dispatches of ops on rows, products of matrices, lookups and rope. */
#include "dev/hrx/hrx_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

enum { ROW_WG = 128, EMBED_WG = 64, ROPE_WG = 64, OUT_WG = 4, MM_ROWS = 32, MM_TILE = 64 };

static const ob_value *val(const hx_make *m, ob_val v) { return &m->plan->prog.vals[v]; }

/* ---- rows ------------------------------------------------------------------------------------ */

static hx_dispatch *row_kernel(hx_make *m, const ob_op *op, const char *name, uint32_t n_consts, uint32_t n_refs)
{
    const ob_value *y = val(m, op->out[0]);
    hx_dispatch *x = hx_add(m, "rows", name, n_consts, n_refs);
    hx_grid(x, ob_div_up(y->cols, ROW_WG), 1, 1);
    hx_follow(x, 1, y->rows, 1);
    hx_int(x, y->cols);
    return x;
}

static void add_norm(hx_make *m, const ob_op *op)
{
    const ob_value *y = val(m, op->out[0]);
    const int32_t cols = op->p.norm.group ? op->p.norm.group : y->cols;
    const bool layer = op->kind == OB_OP_LAYER_NORM;
    hx_dispatch *x = hx_add(m, "rows", "norm", 4, 4);
    hx_grid(x, y->cols / cols, 1, 1);
    hx_follow(x, 1, y->rows, 1);
    hx_int(x, cols);
    hx_int(x, y->cols / cols);
    hx_int(x, (op->w[0] != OB_NONE ? 1 : 0) | (layer && op->w[1] != OB_NONE ? 2 : 0) | (layer ? 4 : 0));
    hx_float(x, op->p.norm.eps);
    hx_value(m, x, op->in[0]);
    hx_weight(m, x, op->w[0]);
    hx_weight(m, x, layer ? op->w[1] : OB_NONE);
    hx_value(m, x, op->out[0]);
}

static void add_parts(hx_make *m, const ob_op *op)
{
    const bool join = op->kind == OB_OP_JOIN;
    const ob_val whole = join ? op->out[0] : op->in[0], a = join ? op->in[0] : op->out[0], b = join ? op->in[1] : op->out[1];
    const int32_t groups = join ? op->p.join.n_group : op->p.split.n_group;
    hx_dispatch *x = hx_add(m, "rows", "parts", 4, 3);
    hx_grid(x, ob_div_up(val(m, whole)->cols / groups, ROW_WG), 1, groups);
    hx_follow(x, 1, val(m, whole)->rows, 1);
    hx_int(x, val(m, a)->cols / groups);
    hx_int(x, val(m, b)->cols / groups);
    hx_int(x, groups);
    hx_int(x, join);
    hx_value(m, x, whole);
    hx_value(m, x, a);
    hx_value(m, x, b);
}

static void add_affine(hx_make *m, const ob_op *op)
{
    int flags = op->in[1] != OB_NONE ? 16 : 0;
    for (int k = 0; k < 4; k++) flags |= op->w[k] != OB_NONE ? 1 << k : 0;
    hx_dispatch *x = row_kernel(m, op, "affine", 2, 7);
    hx_int(x, flags);
    hx_value(m, x, op->in[0]);
    hx_value(m, x, op->in[1]);
    for (int k = 0; k < 4; k++) hx_weight(m, x, op->w[k]);
    hx_value(m, x, op->out[0]);
}

/* Rows of in[0] by the step's out_rows: one each, or several that are joined or averaged. */
static void add_picked(hx_make *m, const ob_op *op)
{
    const ob_dev_plan *p = m->plan;
    const bool mean = op->kind == OB_OP_MERGE && op->p.merge.mean;
    hx_dispatch *x = row_kernel(m, op, mean ? "mean_rows" : "copy_rows", 2, 3);
    hx_int(x, mean ? op->p.merge.n : val(m, op->in[0])->cols);
    hx_param(m, x, p->at.out, (size_t)p->prog.max_out * 4);
    hx_value(m, x, op->in[0]);
    hx_value(m, x, op->out[0]);
}

static void add_elementwise(hx_make *m, const ob_op *op)
{
    hx_dispatch *x = NULL;
    switch (op->kind) {
    case OB_OP_ADD:
        x = row_kernel(m, op, "add", 2, 3);
        hx_float(x, op->p.add.scale);
        break;
    case OB_OP_SCALE:
        x = row_kernel(m, op, "scale", 3, 2);
        hx_float(x, op->p.scale.scale);
        hx_float(x, op->p.scale.softcap);
        break;
    case OB_OP_ACT:
        x = row_kernel(m, op, "act", 2, 2);
        hx_int(x, op->p.act.act);
        break;
    case OB_OP_GLU:
        x = row_kernel(m, op, "glu", 3, 3);
        hx_int(x, op->p.glu.act);
        hx_float(x, op->p.glu.clamp);
        break;
    default: /* GATE */
        x = row_kernel(m, op, "gate", 2, 4);
        hx_int(x, (val(m, op->in[1])->cols == 1 ? 1 : 0) | (op->in[2] != OB_NONE ? 2 : 0));
    }
    hx_value(m, x, op->in[0]);
    if (op->kind != OB_OP_SCALE && op->kind != OB_OP_ACT) hx_value(m, x, op->in[1]);
    if (op->kind == OB_OP_GATE) hx_value(m, x, op->in[2]);
    hx_value(m, x, op->out[0]);
}

static void add_pool(hx_make *m, const ob_op *op)
{
    const ob_dev_plan *p = m->plan;
    hx_dispatch *x = row_kernel(m, op, "pool", 2, 3);
    hx_int(x, op->p.pool.mode);
    hx_param(m, x, p->at.seq, (size_t)p->prog.max_seq * 16);
    hx_value(m, x, op->in[0]);
    hx_value(m, x, op->out[0]);
}

static void add_top_k(hx_make *m, const ob_op *op)
{
    hx_dispatch *x = hx_add(m, "sample", "top_k", 2, 2);
    hx_grid(x, 1, 1, 1);
    hx_follow(x, 0, val(m, op->out[0])->rows, 1);
    hx_int(x, val(m, op->in[0])->cols);
    hx_int(x, op->p.top_k.k);
    hx_value(m, x, op->in[0]);
    hx_value(m, x, op->out[0]);
}

_Static_assert(OB_POOLING_MEAN == 2 && OB_POOLING_CLS == 3 && OB_ACT_SILU == 1 && OB_ACT_GELU_QUICK == 6, "numbers that kernels know");

void hx_add_rows(hx_make *m, const ob_op *op)
{
    switch (op->kind) {
    case OB_OP_RMS_NORM:
    case OB_OP_LAYER_NORM: add_norm(m, op); break;
    case OB_OP_SPLIT:
    case OB_OP_JOIN: add_parts(m, op); break;
    case OB_OP_AFFINE: add_affine(m, op); break;
    case OB_OP_ROWS_OUT:
    case OB_OP_MERGE: add_picked(m, op); break;
    case OB_OP_POOL: add_pool(m, op); break;
    case OB_OP_TOP_K: add_top_k(m, op); break;
    default: add_elementwise(m, op); break;
    }
}

/* ---- matrices and tables --------------------------------------------------------------------- */

/* Rows of floats may have any length; those of block types are multiples of 32. */
static bool by_eights(int64_t cols) { return cols % 8 == 0; }

/* Which kernel multiplies: matrices from MM_ROWS rows on, where activations may be rounded to f16. */
typedef struct product { const char *kernel; int outputs, rows; bool matrices; } product;

static product product_of(const ob_dev_plan *p, int64_t cols, int64_t max_rows)
{
    if (!by_eights(cols)) return (product){"linear_any", OUT_WG, 1, false};
    if (!p->dev->exact && max_rows >= MM_ROWS && cols % 32 == 0) return (product){"linear_mm", MM_TILE, MM_TILE, true};
    return max_rows > 1 ? (product){"linear4", OUT_WG, 4, false} : (product){"linear1", OUT_WG, 1, false};
}

static void add_product(hx_make *m, const ob_op *op, int i, bool made[2])
{
    const ob_value *in = val(m, op->in[0]), *y = val(m, op->out[i]);
    const ob_dev_weight *w = m->plan->weights[op->w[i]];
    const product how = product_of(m->plan, in->cols, hx_max_rows(m->plan, y->rows));
    char object[24];
    const hx_ref from = hx_turned(m, op->in[0], hx_turn_of(&m->plan->prog.weights[op->w[i]]), 0, !how.matrices, made);
    snprintf(object, sizeof object, "%s%s", how.matrices ? "mm_" : "", hx_type_object(w->type));
    hx_dispatch *x = hx_add(m, object, how.kernel, 5, 5);
    hx_grid(x, ob_div_up(y->cols, how.outputs), 1, 1);
    hx_follow(x, 1, y->rows, how.rows);
    hx_int(x, in->cols);
    hx_int(x, y->cols);
    if (x) x->rows_at = (int8_t)x->n_consts;
    hx_int(x, 0);
    hx_int(x, (op->w[4 + i] != OB_NONE ? 1 : 0) | (op->in[1] != OB_NONE ? 2 : 0));
    hx_float(x, op->p.linear.scale);
    hx_weight(m, x, op->w[i]);
    hx_mem(x, from.buffer, from.offset, from.length);
    hx_weight(m, x, op->w[4 + i]);
    hx_value(m, x, op->in[1]);
    hx_value(m, x, op->out[i]);
}

size_t hx_linear_scratch(const ob_dev_plan *p, const ob_op *op)
{
    hx_turn most = HX_AS_IS;
    for (int i = 0; i < op->p.linear.n_mat; i++) most = OB_MAX(most, hx_turn_of(&p->prog.weights[op->w[i]]));
    return (size_t)most * hx_turned_bytes(p, op->in[0]);
}

static void add_heads(hx_make *m, const ob_op *op)
{
    const ob_dev_weight *w = m->plan->weights[op->w[0]];
    const int32_t tail = op->p.heads.tail;
    const bool eights = by_eights(w->ne[0]) && by_eights(w->ne[0] + tail);
    hx_dispatch *x = hx_add(m, hx_type_object(w->type), eights ? "linear_heads" : "linear_heads_any", 4, 3);
    hx_grid(x, ob_div_up(w->ne[1], OUT_WG), op->p.heads.n_head, 1);
    hx_follow(x, 2, val(m, op->out[0])->rows, 1);
    hx_int(x, w->ne[0]);
    hx_int(x, w->ne[1]);
    hx_int(x, op->p.heads.n_head);
    hx_int(x, tail);
    hx_weight(m, x, op->w[0]);
    hx_value(m, x, op->in[0]);
    hx_value(m, x, op->out[0]);
}

/* Rows of EMBED that are the step's vectors: ids below 0, or all of them where there is no table. */
static void add_vectors(hx_make *m, const ob_op *op)
{
    const ob_dev_plan *p = m->plan;
    const ob_value *y = val(m, op->out[0]);
    hx_dispatch *x = hx_add(m, "rows", "vectors", 1, 3);
    hx_grid(x, ob_div_up(y->cols, ROW_WG), 1, 1);
    hx_follow(x, 1, OB_ROWS_TOK, 1);
    hx_int(x, y->cols);
    hx_param(m, x, p->at.tok, (size_t)p->prog.max_tok * 4);
    hx_param(m, x, p->at.vec, (size_t)p->prog.max_tok * (size_t)y->cols * 4);
    hx_value(m, x, op->out[0]);
}

static void add_lookup(hx_make *m, const ob_op *op)
{
    const ob_dev_plan *p = m->plan;
    const bool add = op->kind == OB_OP_ADD_ROW;
    const ob_value *y = val(m, op->out[0]);
    const ob_dev_weight *w = p->weights[op->w[0]];
    const size_t ids = !add ? p->at.tok : op->p.add_row.by == OB_ROW_OF_POSITION ? p->at.pos : p->at.type;
    hx_dispatch *x = hx_add(m, hx_type_object(w->type), by_eights(y->cols) ? "embed" : "embed_any", 3, 4);
    hx_grid(x, ob_div_up(by_eights(y->cols) ? y->cols / 8 : y->cols, EMBED_WG), 1, 1);
    hx_follow(x, 1, OB_ROWS_TOK, 1);
    hx_int(x, y->cols);
    hx_int(x, add);
    hx_float(x, add ? 1.0f : op->p.embed.scale);
    hx_param(m, x, ids, (size_t)p->prog.max_tok * 4);
    hx_weight(m, x, op->w[0]);
    hx_value(m, x, add ? op->in[0] : OB_NONE);
    hx_value(m, x, op->out[0]);
}

void hx_add_linear(hx_make *m, const ob_op *op)
{
    bool made[2] = {false, false};
    if (op->kind == OB_OP_LINEAR)
        for (int i = 0; i < op->p.linear.n_mat; i++) add_product(m, op, i, made);
    else if (op->kind == OB_OP_LINEAR_HEADS) add_heads(m, op);
    else if (op->w[0] != OB_NONE) add_lookup(m, op);
    if (op->kind == OB_OP_EMBED && op->p.embed.vectors) add_vectors(m, op);
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* Dimension whose wavelength makes n_turns turns over the original context (YaRN, eq. 17). */
static double yarn_dim(const ob_rope_params *r, double n_turns)
{
    return r->n_rot * log((double)r->n_ctx_orig / (n_turns * 6.283185307179586)) / (2 * log((double)r->base));
}

/* Turn of pair i per position. */
static double pair_rate(const ob_rope_params *r, const float *factors, int32_t i)
{
    const int32_t *n = r->axis_pairs;
    int32_t axis = 0, in_axis = i;
    if (n[0] > 0)
        for (; axis < 2 && in_axis >= n[axis]; axis++) in_axis -= n[axis];
    const double exponent = r->axis_restart ? -(double)in_axis / n[axis] : -2.0 * i / r->n_rot;
    double extrap = pow((double)r->base, exponent);
    if (factors) extrap /= (double)factors[i];
    double rate = extrap * (double)r->freq_scale;
    if (r->ext_factor != 0) {
        const double low = OB_MAX(0.0, floor(yarn_dim(r, (double)r->beta_fast)));
        const double high = OB_MIN(r->n_rot - 1.0, ceil(yarn_dim(r, (double)r->beta_slow)));
        const double ramp = (i - low) / OB_MAX(0.001, high - low);
        const double mix = (1 - OB_MIN(1.0, OB_MAX(0.0, ramp))) * (double)r->ext_factor;
        rate = rate * (1 - mix) + extrap * mix;
    }
    return r->inverse ? -rate : rate;
}

static int64_t n_multiples(const ob_dev_plan *p) { return ob_div_up(OB_MAX(p->max_ctx, 1), HX_ROPE_LOW) + 1; }

uint64_t hx_rope_bytes(const ob_dev_plan *p, const ob_rope_params *r)
{
    return (uint64_t)(HX_ROPE_LOW + n_multiples(p)) * (uint64_t)(r->n_rot / 2) * 8;
}

/* An earlier op of the plan that turns by the same angles; -1. */
static int32_t same_angles(const ob_dev_plan *p, int32_t i, const ob_rope_params *r, int32_t w)
{
    for (int32_t j = 0; j < i; j++) {
        const ob_op *op = &p->prog.ops[j];
        if (!p->tables[j]) continue;
        const bool rope = op->kind == OB_OP_ROPE;
        if (!memcmp(rope ? &op->p.rope : &op->p.csa.rope, r, sizeof *r) && (rope ? op->w[0] : OB_NONE) == w) return j;
    }
    return -1;
}

/* The first positions carry attn_factor. */
ob_status hx_rope_table(ob_dev_plan *p, int32_t i, const ob_rope_params *r, int32_t w, ob_err *err)
{
    const int32_t half = r->n_rot / 2;
    const int64_t n_high = n_multiples(p), n = (HX_ROPE_LOW + n_high) * half;
    const ob_weight *f = w == OB_NONE ? NULL : &p->prog.weights[w];
    const int32_t same = same_angles(p, i, r, w);
    if (same >= 0) {
        p->tables[i] = p->tables[same];
        return OB_OK;
    }
    ob_status s = OB_OK;
    float *t = ob_reallocarray(NULL, (size_t)n, 2 * sizeof *t), *factors = NULL;
    if (f) factors = ob_reallocarray(NULL, (size_t)half, sizeof *factors);
    if (!t || (f && !factors)) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for a table of angles");
        goto out;
    }
    if (f && f->type == OB_F32)
        for (int32_t k = 0; k < half; k++) factors[k] = ((const float *)f->data)[k];
    else if (f) ob_type_get(f->type)->dequant(f->data, factors, half);
    for (int64_t e = 0; e < HX_ROPE_LOW + n_high; e++)
        for (int32_t k = 0; k < half; k++) {
            const double pos = e < HX_ROPE_LOW ? (double)e : (double)(e - HX_ROPE_LOW) * HX_ROPE_LOW;
            const double a = pos * pair_rate(r, factors, k), scale = e < HX_ROPE_LOW ? (double)r->attn_factor : 1;
            t[2 * (e * half + k)] = (float)(cos(a) * scale);
            t[2 * (e * half + k) + 1] = (float)(sin(a) * scale);
        }
    OB_GOTO(hx_alloc(p->dev, (uint64_t)n * 8, &p->tables[i], err));
    OB_GOTO(hx_upload(p->dev, p->tables[i], 0, t, (uint64_t)n * 8, err));
out:
    ob_free(t);
    ob_free(factors);
    return s;
}

void hx_add_rope(hx_make *m, const ob_op *op)
{
    const ob_dev_plan *p = m->plan;
    const ob_rope_params *r = &op->p.rope;
    const ob_value *y = val(m, op->out[0]);
    const int32_t half = r->n_rot / 2, n_head = y->cols / r->head_dim;
    hx_dispatch *x = hx_add(m, "rows", "rope", 8, 4);
    hx_grid(x, ob_div_up(OB_MAX(half, r->head_dim - r->n_rot), ROPE_WG), n_head, 1);
    hx_follow(x, 2, OB_ROWS_TOK, 1);
    hx_int(x, n_head);
    hx_int(x, r->head_dim);
    hx_int(x, half);
    hx_int(x, r->rot_off);
    hx_int(x, r->pairing == OB_ROPE_NORM);
    hx_int(x, r->axis_pairs[0] ? r->axis_pairs[0] : half);
    hx_int(x, r->axis_pairs[1]);
    hx_int(x, p->prog.max_tok);
    hx_param(m, x, p->at.pos, (size_t)p->prog.max_tok * 12);
    hx_mem(x, p->tables[m->op], 0, hx_rope_bytes(p, r));
    hx_value(m, x, op->in[0]);
    hx_value(m, x, op->out[0]);
}
