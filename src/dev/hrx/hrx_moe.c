/* Mixtures of experts: the choice, then gate, up and down products of the chosen ones, then their weighted sum. */
#include "dev/hrx/hrx_int.h"

enum { OUT_WG = 4, ROW_WG = 128 };

/* Scratch of MOE_GLU: gate, up (then hidden in place of gate), and the experts' results, per (row, choice); then the
 * rotated input. */
typedef struct moe_areas { size_t gate, up, down, turned, n_ff, n_out, end; } moe_areas;

static moe_areas areas(const ob_dev_plan *p, const ob_op *op)
{
    const ob_weight *down = &p->prog.weights[op->w[2]];
    const size_t pairs = (size_t)hx_max_rows(p, p->prog.vals[op->out[0]].rows) * (size_t)op->p.moe.n_used;
    moe_areas a = {.n_ff = (size_t)down->ne[0], .n_out = (size_t)down->ne[1]};
    const size_t hidden = ob_align_up(pairs * a.n_ff * 4, 256);
    a.up = hidden;
    a.down = 2 * hidden;
    a.turned = a.down + ob_align_up(pairs * a.n_out * 4, 256);
    hx_turn most = hx_turn_of(&p->prog.weights[op->w[0]]);
    if (op->w[1] != OB_NONE) most = OB_MAX(most, hx_turn_of(&p->prog.weights[op->w[1]]));
    a.end = a.turned + (size_t)most * hx_turned_bytes(p, op->in[0]);
    return a;
}

size_t hx_moe_scratch(const ob_dev_plan *p, const ob_op *op) { return areas(p, op).end; }

/* One matrix of each chosen expert, rows [row0, row0 + n_out) of its w_rows. */
static void add_matrices(hx_make *m, const ob_op *op, int32_t w, int64_t row0, int64_t n_out, hx_ref from, size_t to)
{
    const ob_dev_plan *p = m->plan;
    const ob_dev_weight *wt = p->weights[w];
    const ob_value *y = &p->prog.vals[op->out[0]];
    const size_t pairs = (size_t)hx_max_rows(p, y->rows) * (size_t)op->p.moe.n_used;
    const bool hidden = w == op->w[2];
    hx_dispatch *x = hx_add(m, hx_type_object(wt->type), "moe_mat", 7, 4);
    hx_grid(x, ob_div_up(n_out, OUT_WG), op->p.moe.n_used, 1);
    hx_follow(x, 2, y->rows, 1);
    hx_int(x, wt->ne[0]);
    hx_int(x, n_out);
    hx_int(x, wt->ne[1]);
    hx_int(x, row0);
    hx_int(x, wt->ne[2]);
    hx_int(x, op->p.moe.n_used);
    hx_int(x, hidden);
    hx_value(m, x, op->in[1]);
    hx_weight(m, x, w);
    hx_mem(x, from.buffer, from.offset, from.length);
    hx_scratch(m, x, to, pairs * (size_t)n_out * 4);
}

static void add_experts(hx_make *m, const ob_op *op)
{
    const ob_dev_plan *p = m->plan;
    const ob_value *y = &p->prog.vals[op->out[0]];
    const moe_areas a = areas(p, op);
    const size_t pairs = (size_t)hx_max_rows(p, y->rows) * (size_t)op->p.moe.n_used;
    const int64_t n_ff = (int64_t)a.n_ff, n_out = (int64_t)a.n_out;
    const bool merged = op->w[1] == OB_NONE;
    const int32_t up = merged ? op->w[0] : op->w[1];
    const hx_ref hidden = {p->scratch, a.gate, pairs * a.n_ff * 4};
    const hx_turn turn = hx_turn_of(&p->prog.weights[op->w[2]]);
    bool made[2] = {false, false};
    hx_ref in = hx_turned(m, op->in[0], hx_turn_of(&p->prog.weights[op->w[0]]), a.turned, true, made);
    add_matrices(m, op, op->w[0], 0, n_ff, in, a.gate);
    in = hx_turned(m, op->in[0], hx_turn_of(&p->prog.weights[up]), a.turned, true, made);
    add_matrices(m, op, up, merged ? n_ff : 0, n_ff, in, a.up);
    hx_dispatch *x = hx_add(m, "moe", "moe_glu", 4, 3);
    hx_grid(x, ob_div_up(n_ff, ROW_WG), op->p.moe.n_used, 1);
    hx_follow(x, 2, y->rows, 1);
    hx_int(x, n_ff);
    hx_int(x, op->p.moe.n_used);
    hx_int(x, op->p.moe.act);
    hx_float(x, op->p.moe.clamp);
    hx_scratch(m, x, a.gate, pairs * a.n_ff * 4);
    hx_scratch(m, x, a.up, pairs * a.n_ff * 4);
    hx_scratch(m, x, a.gate, pairs * a.n_ff * 4);
    if (turn != HX_AS_IS) hx_add_turn(m, turn, y->rows, n_ff, op->p.moe.n_used, true, hidden, hidden);
    add_matrices(m, op, op->w[2], 0, n_out, hidden, a.down);
    x = hx_add(m, "moe", "moe_sum", 3, 4);
    hx_grid(x, ob_div_up(n_out, ROW_WG), 1, 1);
    hx_follow(x, 1, y->rows, 1);
    hx_int(x, n_out);
    hx_int(x, op->p.moe.n_used);
    hx_int(x, op->in[3] != OB_NONE);
    hx_value(m, x, op->in[2]);
    hx_scratch(m, x, a.down, pairs * a.n_out * 4);
    hx_value(m, x, op->in[3]);
    hx_value(m, x, op->out[0]);
}

static void add_route(hx_make *m, const ob_op *op)
{
    const ob_dev_plan *p = m->plan;
    const ob_route_params *r = &op->p.route;
    hx_dispatch *x = hx_add(m, "moe", "moe_route", 8, 6);
    hx_grid(x, 1, 1, 1);
    hx_follow(x, 0, OB_ROWS_TOK, 1);
    hx_int(x, p->prog.vals[op->in[0]].cols);
    hx_int(x, r->n_used);
    hx_int(x, r->gating);
    hx_int(x, op->w[1] == OB_NONE ? r->n_group : 1);
    hx_int(x, p->prog.vals[op->in[0]].cols / r->n_group);
    hx_int(x, r->n_group - r->n_group_used);
    hx_int(x, (op->w[0] != OB_NONE ? 1 : 0) | (op->w[1] != OB_NONE ? 2 : 0) | (r->norm ? 4 : 0));
    hx_float(x, r->scale);
    hx_value(m, x, op->in[0]);
    hx_weight(m, x, op->w[0]);
    hx_weight(m, x, op->w[1]);
    hx_param(m, x, p->at.tok, (size_t)p->prog.max_tok * 4);
    hx_value(m, x, op->out[0]);
    hx_value(m, x, op->out[1]);
}

void hx_add_moe(hx_make *m, const ob_op *op)
{
    if (op->kind == OB_OP_MOE_ROUTE) add_route(m, op);
    else add_experts(m, op);
}
