/* Ops that keep a state per sequence: convolution, delta rule, ZAYA's convolved attention. What reads a state and what
 * keeps it for the next step are dispatches of their own. */
#include "dev/hrx/hrx_int.h"

#include <math.h>

enum { ROW_WG = 128, GDN_WG = 64 };

typedef struct areas { size_t a, b, end; } areas;

/* GDN: unit queries and keys, then gates. CCA: the first convolution. */
static areas areas_of(const ob_dev_plan *p, const ob_op *op)
{
    const size_t tok = (size_t)p->prog.max_tok;
    areas r = {0, 0, 0};
    if (op->kind == OB_OP_GDN) {
        const ob_gdn_params *g = &op->p.gdn;
        r.a = tok * 2 * (size_t)g->n_head_k * (size_t)g->k_dim * 4;
        r.b = tok * (size_t)g->n_head_v * 8;
    } else if (op->kind == OB_OP_CCA) {
        r.a = tok * 8 * (size_t)(p->prog.vals[op->in[0]].cols + p->prog.vals[op->in[1]].cols);
    }
    r.end = ob_align_up(r.a, 256) + r.b;
    return r;
}

size_t hx_state_scratch(const ob_dev_plan *p, const ob_op *op) { return areas_of(p, op).end; }

/* The last `keep` rows of a value into a state, `stride` floats apart. */
static void add_keep(hx_make *m, ob_val v, int32_t state, int32_t keep, int64_t off, int64_t stride)
{
    const ob_dev_plan *p = m->plan;
    const int32_t cols = p->prog.vals[v].cols;
    hx_dispatch *x = hx_add(m, "state", "keep_rows", 5, 3);
    hx_grid(x, ob_div_up(cols, ROW_WG), 1, 1);
    hx_follow(x, 1, OB_ROWS_SEQ, 1);
    hx_int(x, cols);
    hx_int(x, keep);
    hx_int(x, p->prog.states[state].n_floats);
    hx_int(x, off);
    hx_int(x, stride);
    hx_sequences(m, x);
    hx_value(m, x, v);
    hx_state(m, x, state);
}

static void add_conv(hx_make *m, const ob_op *op)
{
    const ob_dev_plan *p = m->plan;
    const int32_t cols = p->prog.vals[op->out[0]].cols;
    const int32_t taps = (int32_t)p->prog.weights[op->w[0]].ne[0];
    hx_dispatch *x = hx_add(m, "state", "conv1d", 4, 7);
    hx_grid(x, ob_div_up(cols, ROW_WG), 1, 1);
    hx_follow(x, 1, OB_ROWS_TOK, 1);
    hx_int(x, cols);
    hx_int(x, taps);
    hx_int(x, op->p.conv.act);
    hx_int(x, op->w[1] != OB_NONE);
    hx_tokens(m, x);
    hx_sequences(m, x);
    hx_value(m, x, op->in[0]);
    hx_weight(m, x, op->w[0]);
    hx_weight(m, x, op->w[1]);
    hx_state(m, x, op->p.conv.state);
    hx_value(m, x, op->out[0]);
    if (taps > 1) add_keep(m, op->in[0], op->p.conv.state, taps - 1, 0, cols);
}

static void add_gdn(hx_make *m, const ob_op *op)
{
    const ob_dev_plan *p = m->plan;
    const ob_gdn_params *g = &op->p.gdn;
    const areas a = areas_of(p, op);
    const size_t gates = ob_align_up(a.a, 256);
    const int32_t stride = p->prog.vals[op->in[0]].cols;
    hx_dispatch *x = hx_add(m, "state", "unit_heads", 6, 2);
    hx_grid(x, 2 * g->n_head_k, 1, 1);
    hx_follow(x, 1, OB_ROWS_TOK, 1);
    hx_int(x, g->k_dim);
    hx_int(x, 2 * g->n_head_k);
    hx_int(x, g->n_head_k);
    hx_int(x, stride);
    hx_float(x, g->eps);
    hx_float(x, 1.0f / sqrtf((float)g->k_dim));
    hx_value(m, x, op->in[0]);
    hx_scratch(m, x, 0, a.a);
    x = hx_add(m, "state", "gdn_gates", 1, 5);
    hx_grid(x, ob_div_up(g->n_head_v, GDN_WG), 1, 1);
    hx_follow(x, 1, OB_ROWS_TOK, 1);
    hx_int(x, g->n_head_v);
    hx_value(m, x, op->in[1]);
    hx_value(m, x, op->in[2]);
    hx_weight(m, x, op->w[0]);
    hx_weight(m, x, op->w[1]);
    hx_scratch(m, x, gates, a.b);
    x = hx_add(m, "state", "gdn", 8, 6);
    hx_grid(x, ob_div_up(g->v_dim, GDN_WG), g->n_head_v, 1);
    hx_follow(x, 2, OB_ROWS_SEQ, 1);
    hx_int(x, g->k_dim);
    hx_int(x, g->v_dim);
    hx_int(x, g->n_head_k);
    hx_int(x, g->n_head_v);
    hx_int(x, g->tiled);
    hx_float(x, 1.0f / (float)(g->tiled ? g->n_head_k : g->n_head_v / g->n_head_k));
    hx_int(x, stride);
    hx_int(x, 2 * g->n_head_k * g->k_dim);
    hx_sequences(m, x);
    hx_value(m, x, op->in[0]);
    hx_scratch(m, x, 0, a.a);
    hx_scratch(m, x, gates, a.b);
    hx_state(m, x, g->state);
    hx_value(m, x, op->out[0]);
}

static void add_cca(hx_make *m, const ob_op *op)
{
    const ob_dev_plan *p = m->plan;
    const ob_cca_params *c = &op->p.cca;
    const int32_t n_q = p->prog.vals[op->in[0]].cols, n_k = p->prog.vals[op->in[1]].cols, half = p->prog.vals[op->in[3]].cols;
    const int64_t n_qk = (int64_t)n_q + n_k, len = p->prog.states[c->state].n_floats;
    const size_t taps = areas_of(p, op).a;
    hx_dispatch *x = hx_add(m, "state", "cca_taps", 3, 8);
    hx_grid(x, ob_div_up(n_qk, ROW_WG), 1, 1);
    hx_follow(x, 1, OB_ROWS_TOK, 1);
    hx_int(x, n_q);
    hx_int(x, n_k);
    hx_int(x, len);
    hx_tokens(m, x);
    hx_sequences(m, x);
    hx_value(m, x, op->in[0]);
    hx_value(m, x, op->in[1]);
    hx_weight(m, x, op->w[0]);
    hx_weight(m, x, op->w[1]);
    hx_state(m, x, c->state);
    hx_scratch(m, x, 0, taps);
    x = hx_add(m, "state", "cca_heads", 6, 8);
    hx_grid(x, c->n_head + c->n_head_kv, 1, 1);
    hx_follow(x, 1, OB_ROWS_TOK, 1);
    hx_int(x, n_q / c->n_head);
    hx_int(x, c->n_head);
    hx_int(x, c->n_head_kv);
    hx_int(x, c->n_head / c->n_head_kv);
    hx_int(x, p->prog.weights[op->w[2]].ne[0] == 2);
    hx_float(x, (float)c->n_head_kv / (float)c->n_head);
    hx_value(m, x, op->in[0]);
    hx_value(m, x, op->in[1]);
    hx_scratch(m, x, 0, taps);
    hx_weight(m, x, op->w[2]);
    hx_weight(m, x, op->w[3]);
    hx_weight(m, x, op->w[4]);
    hx_value(m, x, op->out[0]);
    hx_value(m, x, op->out[1]);
    x = hx_add(m, "state", "cca_values", 3, 6);
    hx_grid(x, ob_div_up(half, ROW_WG), 1, 1);
    hx_follow(x, 1, OB_ROWS_TOK, 1);
    hx_int(x, half);
    hx_int(x, len);
    hx_int(x, 2 * n_qk);
    hx_tokens(m, x);
    hx_sequences(m, x);
    hx_value(m, x, op->in[2]);
    hx_value(m, x, op->in[3]);
    hx_state(m, x, c->state);
    hx_value(m, x, op->out[2]);
    add_keep(m, op->in[0], c->state, 2, 0, n_qk);
    add_keep(m, op->in[1], c->state, 2, n_q, n_qk);
    add_keep(m, op->in[3], c->state, 1, 2 * n_qk, half);
}

void hx_add_state(hx_make *m, const ob_op *op)
{
    if (op->kind == OB_OP_CONV1D) add_conv(m, op);
    else if (op->kind == OB_OP_GDN) add_gdn(m, op);
    else add_cca(m, op);
}
