#include "ops/ops.h"

#include <math.h>

#include "base/alloc.h"
#include "base/math.h"

static const char *const k_names[OB_OP_COUNT] = {
    [OB_OP_EMBED] = "embed",           [OB_OP_ROWS_OUT] = "rows_out",
    [OB_OP_RMS_NORM] = "rms_norm",     [OB_OP_LAYER_NORM] = "layer_norm",
    [OB_OP_LINEAR] = "linear",         [OB_OP_ROPE] = "rope",
    [OB_OP_ATTENTION] = "attention",   [OB_OP_GLU] = "glu",
    [OB_OP_ADD] = "add",               [OB_OP_SCALE] = "scale",
    [OB_OP_ACT] = "act",               [OB_OP_AFFINE] = "affine",
    [OB_OP_GATE] = "gate",             [OB_OP_SPLIT] = "split",
    [OB_OP_JOIN] = "join",             [OB_OP_LINEAR_HEADS] = "linear_heads",
    [OB_OP_MOE_ROUTE] = "moe_route",   [OB_OP_MOE_GLU] = "moe_glu",
    [OB_OP_CONV1D] = "conv1d",         [OB_OP_GDN] = "gdn",
    [OB_OP_ADD_ROW] = "add_row",       [OB_OP_POOL] = "pool",
    [OB_OP_CCA] = "cca",               [OB_OP_HC_MIX] = "hc_mix",
    [OB_OP_HC_POST] = "hc_post",       [OB_OP_CSA] = "csa",
    [OB_OP_MERGE] = "merge",           [OB_OP_TOP_K] = "top_k",
};

const char *ob_op_name(ob_op_kind k)
{
    return (int)k >= 0 && k < OB_OP_COUNT ? k_names[k] : "?";
}

int32_t ob_value_rows(const ob_program *p, ob_val v, int32_t n_tok, int32_t n_out, int32_t n_seq)
{
    switch (p->vals[v].rows) {
    case OB_ROWS_TOK: return n_tok;
    case OB_ROWS_OUT: return n_out;
    default: return n_seq;
    }
}

/* ------------------------------------------------------------------ shape rules */

/* One check in progress; the first failure sticks. */
typedef struct check {
    const ob_program *p;
    const ob_op *op;
    ob_err *err;
    ob_status s;
} check;

static void fail(check *c, ob_status s, const char *what, const char *name)
{
    if (c->s != OB_OK) return;
    c->s = ob_err_set(c->err, s, "op %s of layer %d: %s%s%s", ob_op_name(c->op->kind), c->op->layer,
                      what, name ? " " : "", name ? name : "");
}

static const ob_value *value(check *c, ob_val v, const char *role)
{
    if (v < 0 || v >= c->p->n_vals) {
        fail(c, OB_E_INVALID, "missing value:", role);
        return NULL;
    }
    return &c->p->vals[v];
}

static void want_shape(check *c, ob_val v, ob_rows rows, int64_t cols, const char *role)
{
    const ob_value *x = value(c, v, role);
    if (x && (x->rows != rows || x->cols != cols)) fail(c, OB_E_INVALID, "wrong shape of", role);
}

static const ob_weight *weight(check *c, int slot, bool optional)
{
    int32_t w = c->op->w[slot];
    if (w == OB_NONE && optional) return NULL;
    if (w < 0 || w >= c->p->n_weights) {
        fail(c, OB_E_INVALID, "missing weight", NULL);
        return NULL;
    }
    return &c->p->weights[w];
}

static void want_vector(check *c, int slot, bool optional, int64_t n)
{
    const ob_weight *w = weight(c, slot, optional);
    if (!w) return;
    if (w->ne[0] != n || w->ne[1] * w->ne[2] * w->ne[3] != 1)
        fail(c, OB_E_FORMAT, "wrong length of tensor", w->name);
}

static void want_matrix(check *c, int slot, int64_t k, int64_t n)
{
    const ob_weight *w = weight(c, slot, false);
    if (!w) return;
    if (w->ne[0] != k || (n >= 0 && w->ne[1] != n) || w->ne[2] * w->ne[3] != 1)
        fail(c, OB_E_FORMAT, "wrong shape of tensor", w->name);
}

static void check_linear(check *c, const ob_value *in)
{
    int n_mat = c->op->p.linear.n_mat;
    if (n_mat < 1 || n_mat > OB_OP_MAX_OUT) {
        fail(c, OB_E_INVALID, "bad number of matrices", NULL);
        return;
    }
    for (int i = 0; i < n_mat && c->s == OB_OK; i++) {
        const ob_value *out = value(c, c->op->out[i], "output");
        if (!out) return;
        want_matrix(c, i, in->cols, out->cols);
        want_vector(c, 4 + i, true, out->cols);
        if (out->rows != in->rows) fail(c, OB_E_INVALID, "rows of input and output differ", NULL);
        if (c->op->out[i] == c->op->in[0]) fail(c, OB_E_INVALID, "cannot be in place", NULL);
    }
    if (c->op->in[1] != OB_NONE) {
        if (n_mat != 1) fail(c, OB_E_INVALID, "a residual needs one matrix", NULL);
        else want_shape(c, c->op->in[1], in->rows, c->p->vals[c->op->out[0]].cols, "residual");
    }
}

static void check_rope(check *c, const ob_value *in)
{
    const ob_rope_params *r = &c->op->p.rope;
    if (r->head_dim <= 0 || in->cols % r->head_dim || r->n_rot <= 0 || r->n_rot % 2 ||
        r->rot_off < 0 || r->rot_off + r->n_rot > r->head_dim || !(r->base > 0))
        fail(c, OB_E_INVALID, "bad rotary dimensions", NULL);
    const int32_t *n = r->axis_pairs;
    if (n[0] < 0 || n[1] < 0 || n[2] < 0 || (n[0] ? n[0] + n[1] + n[2] != r->n_rot / 2 : n[1] || n[2] || r->axis_restart))
        fail(c, OB_E_INVALID, "axes do not make up the rotated pairs", NULL);
    want_vector(c, 0, true, r->n_rot / 2);
    want_shape(c, c->op->out[0], in->rows, in->cols, "output");
}

static void check_embed(check *c, const ob_value *out)
{
    if (c->op->w[0] != OB_NONE) want_matrix(c, 0, out->cols, -1);
    else if (!c->op->p.embed.vectors) fail(c, OB_E_INVALID, "neither table nor vectors", NULL);
    if (out->rows != OB_ROWS_TOK) fail(c, OB_E_INVALID, "rows are not tokens", NULL);
}

static void check_merge(check *c, const ob_value *in, const ob_value *out)
{
    const int64_t n = c->op->p.merge.n;
    if (n < 1 || out->cols != (c->op->p.merge.mean ? 1 : n) * in->cols) fail(c, OB_E_INVALID, "bad number of rows", NULL);
    want_shape(c, c->op->in[0], OB_ROWS_TOK, in->cols, "input");
    want_shape(c, c->op->out[0], OB_ROWS_OUT, out->cols, "output");
}

static void check_attention(check *c)
{
    const ob_attn_params *a = &c->op->p.attn;
    if (a->cache < 0 || a->cache >= c->p->n_caches || a->n_head <= 0 || a->n_head_kv <= 0 ||
        a->n_head % a->n_head_kv) {
        fail(c, OB_E_INVALID, "bad heads or cache", NULL);
        return;
    }
    const ob_cache_spec *s = &c->p->caches[a->cache];
    const bool v_in_k = c->op->in[2] == OB_NONE;
    if (s->n_head_kv != a->n_head_kv || s->k_dim != a->k_dim || s->v_dim != (v_in_k ? 0 : a->v_dim) ||
        (v_in_k && (a->v_dim < 1 || a->v_dim > a->k_dim)))
        fail(c, OB_E_INVALID, "cache does not fit", NULL);
    want_shape(c, c->op->in[0], OB_ROWS_TOK, (int64_t)a->n_head * a->k_dim, "queries");
    want_shape(c, c->op->in[1], OB_ROWS_TOK, (int64_t)a->n_head_kv * a->k_dim, "keys");
    if (!v_in_k) want_shape(c, c->op->in[2], OB_ROWS_TOK, (int64_t)a->n_head_kv * a->v_dim, "values");
    want_shape(c, c->op->out[0], OB_ROWS_TOK, (int64_t)a->n_head * a->v_dim, "output");
}

static void want_not_in_place(check *c)
{
    for (int o = 0; o < OB_OP_MAX_OUT; o++)
        for (int k = 0; k < OB_OP_MAX_IN; k++)
            if (c->op->out[o] != OB_NONE && c->op->out[o] == c->op->in[k])
                fail(c, OB_E_INVALID, "cannot be in place", NULL);
}

/* SPLIT and JOIN: `whole` is `n_group` times the groups of parts `a` and `b` side by side. */
static void check_parts(check *c, ob_val whole, ob_val a, ob_val b, int32_t n_group)
{
    const ob_value *w = value(c, whole, "whole"), *va = value(c, a, "first part"), *vb = value(c, b, "second part");
    if (!w || !va || !vb) return;
    if (n_group < 1 || va->cols % n_group || vb->cols % n_group || va->cols + vb->cols != w->cols)
        fail(c, OB_E_INVALID, "parts do not make up the whole", NULL);
    if (va->rows != w->rows || vb->rows != w->rows) fail(c, OB_E_INVALID, "rows of parts differ", NULL);
    want_not_in_place(c);
}

static void check_linear_heads(check *c, const ob_value *in)
{
    const int32_t n = c->op->p.heads.n_head, tail = c->op->p.heads.tail;
    const ob_weight *w = weight(c, 0, false);
    if (!w) return;
    if (n < 1 || tail < 0 || in->cols % n) {
        fail(c, OB_E_INVALID, "bad heads", NULL);
        return;
    }
    if (w->ne[0] != in->cols / n - tail || w->ne[2] != n || w->ne[3] != 1)
        fail(c, OB_E_FORMAT, "wrong shape of tensor", w->name);
    want_shape(c, c->op->out[0], in->rows, n * (w->ne[1] + tail), "output");
    want_not_in_place(c);
}

static void check_route(check *c, const ob_value *in)
{
    const ob_route_params *r = &c->op->p.route;
    if (in->rows != OB_ROWS_TOK) fail(c, OB_E_INVALID, "rows are not tokens", NULL);
    if (r->gating != OB_GATING_SOFTMAX && r->gating != OB_GATING_SIGMOID && r->gating != OB_GATING_SQRT_SOFTPLUS)
        fail(c, OB_E_INVALID, "unknown gating", NULL);
    if (r->n_used < 1 || r->n_used > in->cols || r->n_group < 1 || in->cols % r->n_group || r->n_group_used < 1 ||
        r->n_group_used > r->n_group || r->n_used > in->cols / r->n_group * r->n_group_used)
        fail(c, OB_E_INVALID, "bad number of experts or groups", NULL);
    want_vector(c, 0, true, in->cols);
    const ob_weight *table = weight(c, 1, true);
    if (table && (table->type != OB_I32 || table->ne[0] != r->n_used))
        fail(c, OB_E_FORMAT, "wrong type or shape of tensor", table->name);
    for (int32_t i = 0; table && i < c->p->n_ops; i++) /* a row for every token id that a step may have */
        if (c->p->ops[i].kind == OB_OP_EMBED && c->p->ops[i].w[0] != OB_NONE && c->p->weights[c->p->ops[i].w[0]].ne[1] > table->ne[1])
            fail(c, OB_E_FORMAT, "too few rows in tensor", table->name);
    want_shape(c, c->op->out[0], OB_ROWS_TOK, r->n_used, "ids");
    want_shape(c, c->op->out[1], OB_ROWS_TOK, r->n_used, "weights");
    want_not_in_place(c);
}

static void check_moe(check *c, const ob_value *in)
{
    const ob_moe_params *m = &c->op->p.moe;
    const ob_weight *gate = weight(c, 0, false), *up = weight(c, 1, true), *down = weight(c, 2, false);
    if (!gate || !down) return;
    const int64_t n_ff = down->ne[0], n_expert = down->ne[2];
    if (gate->ne[0] != in->cols || gate->ne[1] != (up ? n_ff : 2 * n_ff) || gate->ne[2] != n_expert)
        fail(c, OB_E_FORMAT, "wrong shape of tensor", gate->name);
    if (up && (up->ne[0] != in->cols || up->ne[1] != n_ff || up->ne[2] != n_expert))
        fail(c, OB_E_FORMAT, "wrong shape of tensor", up->name);
    if (down->ne[1] != in->cols) fail(c, OB_E_FORMAT, "wrong shape of tensor", down->name);
    if (m->n_used < 1 || m->n_used > OB_MOE_MAX_USED) fail(c, OB_E_INVALID, "bad number of experts", NULL);
    want_shape(c, c->op->in[1], in->rows, m->n_used, "ids");
    want_shape(c, c->op->in[2], in->rows, m->n_used, "weights");
    if (c->op->in[3] != OB_NONE) want_shape(c, c->op->in[3], in->rows, in->cols, "residual");
    want_shape(c, c->op->out[0], in->rows, in->cols, "output");
    if (c->op->out[0] == c->op->in[0]) fail(c, OB_E_INVALID, "cannot be in place", NULL);
}

static void want_state(check *c, int32_t state, int64_t n_floats)
{
    if (state < 0 || state >= c->p->n_states || c->p->states[state].n_floats != n_floats)
        fail(c, OB_E_INVALID, "state does not fit", NULL);
}

static void check_conv(check *c, const ob_value *in)
{
    const ob_weight *w = weight(c, 0, false);
    if (!w) return;
    if (in->rows != OB_ROWS_TOK) fail(c, OB_E_INVALID, "rows are not tokens", NULL);
    if (w->ne[0] < 1 || w->ne[0] > OB_CONV_MAX_TAPS || w->ne[1] != in->cols || w->ne[2] * w->ne[3] != 1)
        fail(c, OB_E_FORMAT, "wrong shape of tensor", w->name);
    want_vector(c, 1, true, in->cols);
    want_shape(c, c->op->out[0], OB_ROWS_TOK, in->cols, "output");
    want_state(c, c->op->p.conv.state, (w->ne[0] - 1) * in->cols);
    want_not_in_place(c);
}

static void check_gdn(check *c, const ob_value *in)
{
    const ob_gdn_params *g = &c->op->p.gdn;
    if (g->n_head_k < 1 || g->n_head_v < 1 || g->n_head_v % g->n_head_k || g->k_dim < 1 || g->v_dim < 1 ||
        in->rows != OB_ROWS_TOK ||
        in->cols != 2 * (int64_t)g->n_head_k * g->k_dim + (int64_t)g->n_head_v * g->v_dim) {
        fail(c, OB_E_INVALID, "bad heads", NULL);
        return;
    }
    want_shape(c, c->op->in[1], OB_ROWS_TOK, g->n_head_v, "alpha");
    want_shape(c, c->op->in[2], OB_ROWS_TOK, g->n_head_v, "beta");
    want_vector(c, 0, false, g->n_head_v);
    want_vector(c, 1, false, g->n_head_v);
    want_shape(c, c->op->out[0], OB_ROWS_TOK, (int64_t)g->n_head_v * g->v_dim, "output");
    want_state(c, g->state, (int64_t)g->n_head_v * g->k_dim * g->v_dim);
    want_not_in_place(c);
}

static void check_cca(check *c, const ob_value *q)
{
    const ob_cca_params *p = &c->op->p.cca;
    const ob_value *k = value(c, c->op->in[1], "keys"), *vb = value(c, c->op->in[3], "second values");
    if (!k || !vb) return;
    if (p->n_head < 1 || p->n_head_kv < 1 || p->n_head % p->n_head_kv || q->cols % p->n_head ||
        k->cols != q->cols / p->n_head * p->n_head_kv || q->rows != OB_ROWS_TOK || k->cols % 2) {
        fail(c, OB_E_INVALID, "bad heads", NULL);
        return;
    }
    const int64_t hd = q->cols / p->n_head, n = (int64_t)q->cols + k->cols;
    want_shape(c, c->op->in[1], OB_ROWS_TOK, k->cols, "keys");
    want_shape(c, c->op->in[2], OB_ROWS_TOK, k->cols / 2, "first values");
    want_shape(c, c->op->in[3], OB_ROWS_TOK, k->cols / 2, "second values");
    want_shape(c, c->op->out[0], OB_ROWS_TOK, q->cols, "queries");
    want_shape(c, c->op->out[1], OB_ROWS_TOK, k->cols, "keys out");
    want_shape(c, c->op->out[2], OB_ROWS_TOK, k->cols, "values out");
    want_matrix(c, 0, 2, n);
    want_vector(c, 1, false, n);
    want_vector(c, 3, false, n);
    want_vector(c, 4, false, p->n_head_kv);
    const ob_weight *w = weight(c, 2, false);
    if (w && !(w->ne[0] == hd && w->ne[1] == n && w->ne[2] == 2) && !(w->ne[0] == 2 && w->ne[1] == hd && w->ne[2] == n))
        fail(c, OB_E_FORMAT, "wrong shape of tensor", w->name);
    want_state(c, p->state, 2 * n + k->cols / 2);
    want_not_in_place(c);
}

static void check_hc(check *c, const ob_value *in)
{
    const int64_t n = c->op->p.hc.n_stream;
    const bool mix = c->op->kind == OB_OP_HC_MIX, last = mix && c->op->out[1] == OB_NONE;
    const ob_value *out = value(c, c->op->out[0], "output");
    if (!out) return;
    if (n < 1 || n > OB_HC_MAX_STREAMS) {
        fail(c, OB_E_INVALID, "bad number of streams", NULL);
        return;
    }
    if (mix) {
        want_shape(c, c->op->in[0], out->rows, n * out->cols, "streams");
        want_shape(c, c->op->in[1], out->rows, last ? n : 2 * n + n * n, "coefficients");
        if (!last) want_shape(c, c->op->out[1], out->rows, n + n * n, "coefficients out");
        want_vector(c, 0, false, last ? 1 : 3);
        want_vector(c, 1, false, last ? n : 2 * n + n * n);
        want_not_in_place(c);
    } else {
        want_shape(c, c->op->in[1], in->rows, n * in->cols, "streams");
        want_shape(c, c->op->in[2], in->rows, n + n * n, "coefficients");
        want_shape(c, c->op->out[0], in->rows, n * in->cols, "output");
        if (c->op->out[0] == c->op->in[0]) fail(c, OB_E_INVALID, "cannot be in place", NULL);
    }
}

/* A compressor of CSA: inputs in, in + 1 of `cols` columns, weights w, w + 1. */
static void check_compressor(check *c, int in, int w, int64_t cols, int32_t width, int32_t cache, int32_t state)
{
    const int32_t ratio = c->op->p.csa.ratio;
    want_shape(c, c->op->in[in], OB_ROWS_TOK, cols, "compressor's values");
    want_shape(c, c->op->in[in + 1], OB_ROWS_TOK, cols, "compressor's gate");
    want_matrix(c, w, cols, ratio);
    want_vector(c, w + 1, false, width);
    want_state(c, state, (cols == width ? 1 : 2) * (int64_t)ratio * 2 * cols);
    if (cache < 0 || cache >= c->p->n_caches || c->p->caches[cache].n_head_kv != 1 ||
        c->p->caches[cache].k_dim != width || c->p->caches[cache].v_dim != 0)
        fail(c, OB_E_INVALID, "cache does not fit", NULL);
}

static void check_csa(check *c)
{
    const ob_csa_params *p = &c->op->p.csa;
    if (p->n_head < 1 || p->k_dim < 1 || p->window < 1 || p->ratio < 0 || p->cache_raw < 0 ||
        p->cache_raw >= c->p->n_caches || c->p->caches[p->cache_raw].n_head_kv != 1 ||
        c->p->caches[p->cache_raw].k_dim != p->k_dim || c->p->caches[p->cache_raw].v_dim != 0) {
        fail(c, OB_E_INVALID, "bad heads or cache", NULL);
        return;
    }
    want_shape(c, c->op->in[0], OB_ROWS_TOK, (int64_t)p->n_head * p->k_dim, "queries");
    want_shape(c, c->op->in[1], OB_ROWS_TOK, p->k_dim, "keys");
    want_shape(c, c->op->out[0], OB_ROWS_TOK, (int64_t)p->n_head * p->k_dim, "output");
    want_vector(c, 0, false, p->n_head);
    want_not_in_place(c);
    if (!p->ratio) return;
    const ob_value *kv = value(c, c->op->in[2], "compressor's values");
    if (!kv) return;
    if ((kv->cols != p->k_dim && kv->cols != 2 * p->k_dim) || p->rope.n_rot > p->k_dim)
        fail(c, OB_E_INVALID, "bad compressor", NULL);
    check_compressor(c, 2, 1, kv->cols, p->k_dim, p->cache_comp, p->state_comp);
    if (c->op->in[4] == OB_NONE) return;
    if (p->index_dim < p->rope.n_rot || p->n_index_head < 1 || p->top_k < 1) fail(c, OB_E_INVALID, "bad indexer", NULL);
    want_shape(c, c->op->in[4], OB_ROWS_TOK, (int64_t)p->n_index_head * p->index_dim, "indexer's queries");
    want_shape(c, c->op->in[5], OB_ROWS_TOK, p->n_index_head, "indexer's weights");
    check_compressor(c, 6, 3, 2 * (int64_t)p->index_dim, p->index_dim, p->cache_index, p->state_index);
}

static void check_elementwise(check *c, const ob_value *in)
{
    const ob_op *op = c->op;
    if (op->kind == OB_OP_GATE) {
        const ob_value *g = value(c, op->in[1], "gate");
        if (g && (g->rows != in->rows || (g->cols != 1 && g->cols != in->cols)))
            fail(c, OB_E_INVALID, "wrong shape of gate", NULL);
        if (op->in[2] != OB_NONE) want_shape(c, op->in[2], in->rows, in->cols, "residual");
    } else if (op->kind == OB_OP_AFFINE) {
        for (int k = 0; k < 4; k++) want_vector(c, k, true, in->cols);
        if (op->in[1] != OB_NONE) want_shape(c, op->in[1], in->rows, in->cols, "second input");
    } else if (op->kind == OB_OP_GLU || op->kind == OB_OP_ADD) {
        want_shape(c, op->in[1], in->rows, in->cols, "second input");
    }
    want_shape(c, op->out[0], in->rows, in->cols, "output");
}

ob_status ob_op_check(const ob_program *p, int32_t i, ob_err *err)
{
    check c = {.p = p, .op = &p->ops[i], .err = err, .s = OB_OK};
    const ob_op *op = c.op;
    const ob_value *in = op->kind == OB_OP_EMBED ? NULL : value(&c, op->in[0], "input");
    const ob_value *out = value(&c, op->out[0], "output");
    if (c.s != OB_OK) return c.s;
    switch (op->kind) {
    case OB_OP_EMBED: check_embed(&c, out); break;
    case OB_OP_MERGE: check_merge(&c, in, out); break;
    case OB_OP_ROWS_OUT:
        want_shape(&c, op->in[0], OB_ROWS_TOK, out->cols, "input");
        want_shape(&c, op->out[0], OB_ROWS_OUT, out->cols, "output");
        break;
    case OB_OP_RMS_NORM:
    case OB_OP_LAYER_NORM: {
        int32_t group = op->p.norm.group ? op->p.norm.group : in->cols;
        if (group <= 0 || in->cols % group) fail(&c, OB_E_INVALID, "bad group", NULL);
        want_vector(&c, 0, true, group);
        if (op->kind == OB_OP_LAYER_NORM) want_vector(&c, 1, true, group);
        want_shape(&c, op->out[0], in->rows, in->cols, "output");
        break;
    }
    case OB_OP_LINEAR: check_linear(&c, in); break;
    case OB_OP_ROPE: check_rope(&c, in); break;
    case OB_OP_ATTENTION: check_attention(&c); break;
    case OB_OP_GLU:
    case OB_OP_ADD:
    case OB_OP_SCALE:
    case OB_OP_ACT:
    case OB_OP_AFFINE:
    case OB_OP_GATE: check_elementwise(&c, in); break;
    case OB_OP_SPLIT: check_parts(&c, op->in[0], op->out[0], op->out[1], op->p.split.n_group); break;
    case OB_OP_JOIN: check_parts(&c, op->out[0], op->in[0], op->in[1], op->p.join.n_group); break;
    case OB_OP_LINEAR_HEADS: check_linear_heads(&c, in); break;
    case OB_OP_MOE_ROUTE: check_route(&c, in); break;
    case OB_OP_MOE_GLU: check_moe(&c, in); break;
    case OB_OP_CONV1D: check_conv(&c, in); break;
    case OB_OP_GDN: check_gdn(&c, in); break;
    case OB_OP_ADD_ROW:
        want_matrix(&c, 0, out->cols, -1);
        want_shape(&c, op->in[0], OB_ROWS_TOK, out->cols, "input");
        want_shape(&c, op->out[0], OB_ROWS_TOK, out->cols, "output");
        break;
    case OB_OP_POOL:
        if (op->p.pool.mode < OB_POOLING_MEAN) fail(&c, OB_E_INVALID, "no way of pooling", NULL);
        want_shape(&c, op->in[0], OB_ROWS_TOK, out->cols, "input");
        want_shape(&c, op->out[0], OB_ROWS_SEQ, out->cols, "output");
        break;
    case OB_OP_CCA: check_cca(&c, in); break;
    case OB_OP_HC_MIX:
    case OB_OP_HC_POST: check_hc(&c, in); break;
    case OB_OP_CSA: check_csa(&c); break;
    case OB_OP_TOP_K:
        if (op->p.top_k.k < 1 || op->p.top_k.k > OB_TOP_K_MAX) fail(&c, OB_E_INVALID, "bad k", NULL);
        want_shape(&c, op->out[0], in->rows, 2 * (int64_t)op->p.top_k.k + 2, "output");
        break;
    default: fail(&c, OB_E_INVALID, "unknown op", NULL);
    }
    return c.s;
}

/* ------------------------------------------------------------------ cost rule */

ob_cost ob_op_cost(const ob_program *p, int32_t i, int32_t n_tok, int32_t n_out, double n_kv,
                   ob_type k_type, ob_type v_type)
{
    const ob_op *op = &p->ops[i];
    ob_cost c = {0};
    double rows = ob_value_rows(p, op->out[0], n_tok, n_out, 1);
    for (int k = 0; k < OB_OP_MAX_IN; k++)
        if (op->in[k] != OB_NONE)
            c.act_bytes += 4.0 * p->vals[op->in[k]].cols *
                           ob_value_rows(p, op->in[k], n_tok, n_out, 1);
    for (int k = 0; k < OB_OP_MAX_OUT; k++)
        if (op->out[k] != OB_NONE) c.act_bytes += 4.0 * p->vals[op->out[k]].cols * rows;
    switch (op->kind) {
    case OB_OP_EMBED:
    case OB_OP_ADD_ROW:
        if (op->w[0] != OB_NONE)
            c.weight_bytes = rows * (double)ob_type_row_bytes(p->weights[op->w[0]].type, p->weights[op->w[0]].ne[0]);
        break;
    case OB_OP_LINEAR:
        for (int k = 0; k < op->p.linear.n_mat; k++) {
            const ob_weight *w = &p->weights[op->w[k]];
            c.weight_bytes += (double)w->n_bytes;
            c.flops += 2.0 * rows * (double)w->ne[0] * (double)w->ne[1];
        }
        break;
    case OB_OP_LINEAR_HEADS: {
        const ob_weight *w = &p->weights[op->w[0]];
        c.weight_bytes = (double)w->n_bytes;
        c.flops = 2.0 * rows * (double)w->ne[0] * (double)w->ne[1] * (double)w->ne[2];
        break;
    }
    case OB_OP_MOE_GLU: {
        /* Experts touched by `rows` tokens that choose at random. */
        const ob_weight *down = &p->weights[op->w[2]];
        double n_expert = (double)down->ne[2], used = OB_MIN((double)op->p.moe.n_used, n_expert);
        double touched = 1.0 - pow(1.0 - used / n_expert, rows);
        for (int k = 0; k < 3; k++)
            if (op->w[k] != OB_NONE) c.weight_bytes += touched * (double)p->weights[op->w[k]].n_bytes;
        c.flops = 6.0 * rows * op->p.moe.n_used * (double)down->ne[0] * (double)down->ne[1];
        break;
    }
    case OB_OP_CONV1D: c.flops = 2.0 * rows * (double)p->weights[op->w[0]].ne[0] * p->vals[op->out[0]].cols; break;
    case OB_OP_GDN: {
        const ob_gdn_params *g = &op->p.gdn;
        c.flops = 8.0 * rows * g->n_head_v * g->k_dim * g->v_dim;
        c.cache_bytes = 8.0 * g->n_head_v * g->k_dim * g->v_dim; /* the state, read and written */
        break;
    }
    case OB_OP_CCA: c.flops = 4.0 * rows * (double)(p->weights[op->w[2]].ne[0] * p->weights[op->w[2]].ne[1]); break;
    case OB_OP_HC_MIX:
    case OB_OP_HC_POST: c.flops = 2.0 * rows * op->p.hc.n_stream * p->vals[op->in[0]].cols; break;
    case OB_OP_CSA: {
        const ob_csa_params *a = &op->p.csa;
        const double entries = a->ratio ? n_kv / a->ratio : 0;
        const double seen = OB_MIN(n_kv, (double)a->window) + (op->in[4] == OB_NONE ? entries : OB_MIN(entries, a->top_k));
        const ob_type_info *kt = ob_type_get(k_type);
        const double per = (double)kt->block_bytes / kt->block_elems;
        c.flops = 4.0 * n_tok * a->n_head * seen * a->k_dim;
        c.cache_bytes = seen * a->k_dim * per;
        if (op->in[4] == OB_NONE) break;
        c.flops += 2.0 * n_tok * a->n_index_head * entries * a->index_dim;
        c.cache_bytes += entries * a->index_dim * per;
        break;
    }
    case OB_OP_ATTENTION: {
        const ob_attn_params *a = &op->p.attn;
        double seen = a->window > 0 ? OB_MIN(n_kv, (double)a->window) : n_kv;
        const ob_type_info *kt = ob_type_get(k_type), *vt = ob_type_get(v_type);
        c.flops = 2.0 * n_tok * a->n_head * seen * (a->k_dim + a->v_dim);
        c.cache_bytes = a->n_head_kv * seen *
                        (a->k_dim * (double)kt->block_bytes / kt->block_elems +
                         (op->in[2] == OB_NONE ? 0 : a->v_dim * (double)vt->block_bytes / vt->block_elems));
        break;
    }
    default: c.flops = 4.0 * rows * p->vals[op->out[0]].cols; break;
    }
    return c;
}

/* ------------------------------------------------------------------ caches and states */

int ob_op_cache_refs(ob_op *op, int32_t *at[OB_OP_MAX_CACHES])
{
    int n = 0;
    if (op->kind == OB_OP_ATTENTION) at[n++] = &op->p.attn.cache;
    if (op->kind != OB_OP_CSA) return n;
    at[n++] = &op->p.csa.cache_raw;
    if (op->p.csa.ratio) at[n++] = &op->p.csa.cache_comp;
    if (op->p.csa.ratio && op->in[4] != OB_NONE) at[n++] = &op->p.csa.cache_index;
    return n;
}

int ob_op_state_refs(ob_op *op, int32_t *at[OB_OP_MAX_STATES])
{
    switch (op->kind) {
    case OB_OP_CONV1D: at[0] = &op->p.conv.state; return 1;
    case OB_OP_GDN: at[0] = &op->p.gdn.state; return 1;
    case OB_OP_CCA: at[0] = &op->p.cca.state; return 1;
    case OB_OP_CSA:
        if (!op->p.csa.ratio) return 0;
        at[0] = &op->p.csa.state_comp;
        at[1] = &op->p.csa.state_index;
        return op->in[4] != OB_NONE ? 2 : 1;
    default: return 0;
    }
}

/* ------------------------------------------------------------------ workspace */

static ob_status find_lifetimes(ob_program *p, ob_err *err)
{
    for (int32_t v = 0; v < p->n_vals; v++) p->vals[v].first = p->vals[v].last = p->vals[v].input ? 0 : -1;
    for (int32_t i = 0; i < p->n_ops; i++) {
        const ob_op *op = &p->ops[i];
        for (int k = 0; k < OB_OP_MAX_IN; k++) {
            ob_val v = op->in[k];
            if (v == OB_NONE) continue;
            if (p->vals[v].first < 0)
                return ob_err_set(err, OB_E_INVALID, "op %s of layer %d reads %s before it is written",
                                  ob_op_name(op->kind), op->layer, p->vals[v].name);
            p->vals[v].last = i;
        }
        for (int k = 0; k < OB_OP_MAX_OUT; k++) {
            ob_val v = op->out[k];
            if (v == OB_NONE) continue;
            if (p->vals[v].first < 0) p->vals[v].first = i;
            p->vals[v].last = OB_MAX(p->vals[v].last, i);
        }
    }
    for (int32_t v = 0; v < p->n_vals; v++)
        if (p->vals[v].output) p->vals[v].last = p->n_ops;
    return OB_OK;
}

/* The lowest offset that no value alive at the same time overlaps. Quadratic in values alive together, which is
 * about a dozen. */
static void place(ob_program *p, ob_val v, ob_val *live, int32_t *n_live)
{
    for (int32_t m = 0; m < *n_live; m++)
        if (live[m] == v) return;
    size_t size = (size_t)ob_value_rows(p, v, p->max_tok, p->max_out, p->max_seq) * (size_t)p->vals[v].cols *
                  sizeof(float);
    size = ob_align_up(OB_MAX(size, (size_t)64), 64);
    size_t at = 0;
    for (int32_t m = 0; m < *n_live;) {
        const ob_value *o = &p->vals[live[m]];
        size_t o_size = ob_align_up((size_t)ob_value_rows(p, live[m], p->max_tok, p->max_out, p->max_seq) *
                                        (size_t)o->cols * sizeof(float), 64);
        o_size = OB_MAX(o_size, (size_t)64);
        if (at < o->offset + o_size && o->offset < at + size) {
            at = o->offset + o_size; /* moved: look at all of them again */
            m = 0;
        } else {
            m++;
        }
    }
    p->vals[v].offset = at;
    p->workspace_bytes = OB_MAX(p->workspace_bytes, at + size);
    live[(*n_live)++] = v;
}

/* First fit, in order of each value's first op; inputs come first. */
ob_status ob_program_plan(ob_program *p, int32_t max_tok, int32_t max_out, int32_t max_seq,
                          ob_err *err)
{
    for (int32_t i = 0; i < p->n_ops; i++) OB_TRY(ob_op_check(p, i, err));
    OB_TRY(find_lifetimes(p, err));
    p->max_tok = max_tok;
    p->max_out = max_out;
    p->max_seq = max_seq;
    p->workspace_bytes = 0;
    ob_val *live = ob_calloc((size_t)p->n_vals + 1, sizeof *live);
    if (!live) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to plan %d values", p->n_vals);
    int32_t n_live = 0;
    for (ob_val v = 0; v < p->n_vals; v++)
        if (p->vals[v].input) place(p, v, live, &n_live);
    for (int32_t i = 0; i < p->n_ops; i++) {
        int32_t kept = 0;
        for (int32_t k = 0; k < n_live; k++)
            if (p->vals[live[k]].last >= i) live[kept++] = live[k];
        n_live = kept;
        for (int k = 0; k < OB_OP_MAX_OUT; k++) {
            const ob_val v = p->ops[i].out[k];
            if (v != OB_NONE && p->vals[v].first == i) place(p, v, live, &n_live);
        }
    }
    ob_free(live);
    return OB_OK;
}
