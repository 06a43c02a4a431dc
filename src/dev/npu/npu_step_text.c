/* Control text of a step: every op as parts of a text, a layer a command, commands in a chain. */
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "dev/npu/npu_step_int.h"

enum { ARG_WS = 0, PIECE = 32 << 10 /* columns of a vector operation that may be cut */, MIN_TEXT_BYTES = 1 << 20 };

/* A text under construction. */
typedef struct maker { ob_npu_step *s; const ob_step *st; ob_npu_txn *t; ob_err *err; } maker;

static uint32_t bits(float f)
{
    uint32_t w;
    memcpy(&w, &f, sizeof w);
    return w;
}

static ob_npu_span in_ws(uint64_t off, int64_t n_words) { return (ob_npu_span){.arg = ARG_WS, .off = off, .n_words = (uint32_t)n_words}; }

/* Columns [c0, c0 + n) of a row of a value. */
static ob_npu_span of_val(const maker *m, ob_val v, int64_t row, int64_t c0, int64_t n)
{
    return in_ws(m->s->val_off[v] + 4ull * (uint64_t)(row * m->s->prog->vals[v].cols + c0), n);
}
static int64_t cols_of(const maker *m, ob_val v) { return m->s->prog->vals[v].cols; }

static void vec(maker *m, ob_npu_vec op, const uint32_t params[5], const ob_npu_span *in, int n_in, ob_npu_span out)
{
    ob_npu_text_step_vec(m->t, &m->s->opt.kernel->place, op, params, in, n_in, &out);
}

/* ---- ops -------------------------------------------------------------------------------------- */

/* Row by row, column by column: cut into pieces that a tile's memory holds. */
static void columns(maker *m, const ob_op *op, ob_npu_vec kind, const uint32_t params[5], int64_t row, int64_t from_row)
{
    const int64_t cols = cols_of(m, op->out[0]);
    const int n_in = op->in[1] != OB_NONE ? 2 : 1;
    for (int64_t c = 0; c < cols; c += PIECE) {
        const int64_t n = OB_MIN(PIECE, cols - c);
        ob_npu_span in[2] = {of_val(m, op->in[0], from_row, c, n)};
        if (n_in == 2) in[1] = of_val(m, op->in[1], from_row, c, n);
        vec(m, kind, params, in, n_in, of_val(m, op->out[0], row, c, n));
    }
}

static void norm(maker *m, const ob_op *op, int64_t row)
{
    const int64_t cols = cols_of(m, op->out[0]), group = op->p.norm.group ? op->p.norm.group : cols;
    const uint32_t params[5] = {(uint32_t)group, bits(op->p.norm.eps)};
    ob_npu_span in[2] = {of_val(m, op->in[0], row, 0, cols)};
    const bool gain = op->w[0] != OB_NONE;
    if (gain) in[1] = in_ws(m->s->vec_off[op->w[0]], group);
    vec(m, OB_VEC_NORM, params, in, gain ? 2 : 1, of_val(m, op->out[0], row, 0, cols));
}

static void rope(maker *m, const ob_op *op, int32_t index, int64_t row)
{
    const ob_rope_params *r = &op->p.rope;
    const int64_t cols = cols_of(m, op->out[0]);
    const uint32_t params[5] = {(uint32_t)r->head_dim | (uint32_t)r->n_rot << 16, (uint32_t)r->rot_off | (uint32_t)r->pairing << 16};
    const ob_npu_span in[2] = {of_val(m, op->in[0], row, 0, cols),
                               in_ws(m->s->table_off[index] + 4ull * (uint64_t)(row * r->head_dim), r->head_dim)};
    vec(m, OB_VEC_ROPE, params, in, 2, of_val(m, op->out[0], row, 0, cols));
}

/* One matrix: the product, then bias, scale and what it is added to. */
static ob_status product(maker *m, const ob_op *op, int32_t mat, int64_t row)
{
    const ob_npu_step *s = m->s;
    const ob_weight *w = &s->prog->weights[op->w[mat]];
    const ob_npu_span x = in_ws(s->x_off, 0), y = in_ws(s->y_off, 0), tiles = {.arg = (uint16_t)(1 + op->w[mat])};
    const int32_t bias = op->w[4 + mat];
    const ob_val res = op->p.linear.n_mat == 1 ? op->in[1] : OB_NONE;
    const uint32_t params[5] = {bits(op->p.linear.scale), (bias != OB_NONE ? 1u : 0) | (res != OB_NONE ? 2u : 0)};
    OB_TRY(ob_npu_text_step_gemv(m->t, &s->opt.kernel->place, ob_npu_q4_pad_k(w->ne[0]), ob_npu_pad_n(w->ne[1]), &x, &tiles, &y, m->err));
    for (int64_t c = 0; c < w->ne[1]; c += PIECE) {
        const int64_t n = OB_MIN(PIECE, w->ne[1] - c);
        ob_npu_span in[3] = {in_ws(s->y_off + 4ull * (uint64_t)c, n)};
        int n_in = 1;
        if (bias != OB_NONE) in[n_in++] = in_ws(s->vec_off[bias] + 4ull * (uint64_t)c, n);
        if (res != OB_NONE) in[n_in++] = of_val(m, res, row, c, n);
        vec(m, OB_VEC_SUM, params, in, n_in, of_val(m, op->out[mat], row, c, n));
    }
    return OB_OK;
}

static ob_status linear(maker *m, const ob_op *op, int64_t row)
{
    const int64_t k = cols_of(m, op->in[0]), k_pad = ob_npu_q4_pad_k(k);
    const ob_npu_span in = of_val(m, op->in[0], row, 0, k);
    vec(m, OB_VEC_BF16, (const uint32_t[5]){0}, &in, 1, in_ws(m->s->x_off, k_pad / 2));
    for (int32_t i = 0; i < op->p.linear.n_mat; i++)
        if (ob_npu_step_has_tiles(m->s, op, i)) OB_TRY(product(m, op, i, row));
    return OB_OK;
}

/* y [ne[1]] = matrix `mat` of weight w * the row in bf16 at x. */
static ob_status expert_matrix(maker *m, int32_t w, int64_t mat, uint64_t x, uint64_t y)
{
    const ob_npu_step *s = m->s;
    const ob_weight *d = &s->prog->weights[w];
    ob_npu_tiles_at first, at;
    if (!s->opt.find(s->opt.arg, d, 0, &first) || !s->opt.find(s->opt.arg, d, mat, &at) || at.bo != first.bo)
        return ob_err_set(m->err, OB_E_DEVICE, "%s: expert %lld is not there", d->name, (long long)mat);
    const ob_npu_span xs = in_ws(x, 0), ys = in_ws(y, 0), ws = {.arg = (uint16_t)(1 + w), .off = at.off - first.off};
    return ob_npu_text_step_gemv(m->t, &s->opt.kernel->place, ob_npu_q4_pad_k(d->ne[0]), ob_npu_pad_n(d->ne[1]), &xs, &ws, &ys, m->err);
}

/* One expert's row, into y. */
static ob_status expert(maker *m, const ob_op *op, int64_t id)
{
    const ob_npu_step *s = m->s;
    const int64_t ff = s->prog->weights[op->w[2]].ne[0];
    const uint32_t params[5] = {(uint32_t)op->p.moe.act, bits(op->p.moe.clamp)};
    OB_TRY(expert_matrix(m, op->w[0], id, s->x_off, s->y_off));
    if (op->w[1] != OB_NONE) OB_TRY(expert_matrix(m, op->w[1], id, s->x_off, s->y2_off));
    const ob_npu_span in[2] = {in_ws(s->y_off, ff), op->w[1] != OB_NONE ? in_ws(s->y2_off, ff) : in_ws(s->y_off + 4ull * (uint64_t)ff, ff)};
    const ob_npu_span h = in_ws(s->h_off, ff);
    vec(m, OB_VEC_GLU, params, in, 2, h);
    vec(m, OB_VEC_BF16, (const uint32_t[5]){0}, &h, 1, in_ws(s->x2_off, ob_npu_q4_pad_k(ff) / 2));
    return expert_matrix(m, op->w[2], id, s->x2_off, s->y_off);
}

/* The experts that the router chose, which the host has read, one after the other. */
static ob_status experts(maker *m, const ob_op *op, int64_t row)
{
    const ob_npu_step *s = m->s;
    const int32_t n_used = op->p.moe.n_used;
    const int64_t cols = cols_of(m, op->out[0]), k = cols_of(m, op->in[0]);
    const float *ids = s->vals[op->in[1]] + row * n_used, *weights = s->vals[op->in[2]] + row * n_used;
    const ob_npu_span x = of_val(m, op->in[0], row, 0, k), out = of_val(m, op->out[0], row, 0, cols);
    bool first = true;
    vec(m, OB_VEC_BF16, (const uint32_t[5]){0}, &x, 1, in_ws(s->x_off, ob_npu_q4_pad_k(k) / 2));
    for (int32_t j = 0; j < n_used; j++) {
        const int64_t id = (int64_t)ids[j];
        if (id >= s->prog->weights[op->w[0]].ne[2]) continue; /* "no expert" */
        OB_TRY(expert(m, op, id));
        const ob_npu_span y = in_ws(s->y_off, cols), res = op->in[3] != OB_NONE ? of_val(m, op->in[3], row, 0, cols) : (ob_npu_span){0};
        const uint32_t params[5] = {bits(weights[j]), op->in[3] != OB_NONE ? 2u : 0};
        if (first) vec(m, OB_VEC_SUM, params, (const ob_npu_span[2]){y, res}, op->in[3] != OB_NONE ? 2 : 1, out);
        else vec(m, OB_VEC_ADD, params, (const ob_npu_span[2]){out, y}, 2, out);
        first = false;
    }
    if (first) { /* none at all */
        const ob_npu_span from = op->in[3] != OB_NONE ? of_val(m, op->in[3], row, 0, cols) : x;
        vec(m, OB_VEC_SCALE, (const uint32_t[5]){bits(op->in[3] != OB_NONE ? 1 : 0)}, &from, 1, out);
    }
    return OB_OK;
}

static void gate(maker *m, const ob_op *op, int64_t row)
{
    const int64_t cols = cols_of(m, op->out[0]), g = cols_of(m, op->in[1]);
    const uint32_t params[5] = {(uint32_t)g, op->in[2] != OB_NONE ? 2u : 0};
    ob_npu_span in[3] = {of_val(m, op->in[0], row, 0, cols), of_val(m, op->in[1], row, 0, g)};
    if (op->in[2] != OB_NONE) in[2] = of_val(m, op->in[2], row, 0, cols);
    vec(m, OB_VEC_GATE, params, in, op->in[2] != OB_NONE ? 3 : 2, of_val(m, op->out[0], row, 0, cols));
}

/* ---- attention -------------------------------------------------------------------------------- */

static int32_t seq_of(const ob_step *st, int64_t t)
{
    int32_t q = 0;
    while (st->seq_first[q + 1] <= t) q++;
    return q;
}

/* A token's keys or values into its page: a run for each head. */
static void to_cache(maker *m, const ob_attn_params *a, ob_val v, bool keys, int64_t row, int32_t page, int32_t at)
{
    const ob_npu_step *s = m->s;
    const ob_type type = keys ? s->opt.k_type : s->opt.v_type;
    const int64_t dim = keys ? a->k_dim : a->v_dim, words = dim * (type == OB_F16 ? 2 : 4) / 4, tok = s->opt.page_tok;
    const ob_npu_span in = of_val(m, v, row, 0, a->n_head_kv * dim);
    const ob_npu_span out = {.arg = (uint16_t)(1 + s->prog->n_weights + 2 * a->cache + !keys), .n_words = (uint32_t)words,
                             .off = 4ull * (uint64_t)words * ((uint64_t)page * (uint64_t)(a->n_head_kv * tok) + (uint64_t)at),
                             .n_runs = (uint32_t)a->n_head_kv, .run_step = (uint32_t)(tok * words)};
    vec(m, OB_VEC_CACHE, (const uint32_t[5]){(uint32_t)type}, &in, 1, out);
}

/* A whole page of a plane. */
static ob_npu_span page_of(const maker *m, const ob_attn_params *a, bool keys, int32_t page)
{
    const ob_npu_step *s = m->s;
    const uint64_t n = (uint64_t)a->n_head_kv * (uint64_t)s->opt.page_tok *
                       ob_type_row_bytes(keys ? s->opt.k_type : s->opt.v_type, keys ? a->k_dim : a->v_dim);
    return (ob_npu_span){.arg = (uint16_t)(1 + s->prog->n_weights + 2 * a->cache + !keys), .off = (uint64_t)page * n, .n_words = (uint32_t)(n / 4)};
}

static void attend(maker *m, const ob_op *op, int64_t row)
{
    const ob_npu_step *s = m->s;
    const ob_step *st = m->st;
    const ob_attn_params *a = &op->p.attn;
    const int32_t q = seq_of(st, row), at = st->seq_past[q] + (int32_t)row - st->seq_first[q], tok = s->opt.page_tok;
    const int32_t first = a->window > 0 ? OB_MAX(0, at + 1 - a->window) : 0, *pages = st->page_table + (int64_t)q * st->max_pages;
    const uint32_t params[5] = {(uint32_t)a->n_head | (uint32_t)a->n_head_kv << 16, (uint32_t)a->k_dim | (uint32_t)a->v_dim << 16,
                                (uint32_t)tok | (uint32_t)s->opt.k_type << 16 | (uint32_t)s->opt.v_type << 24, bits(a->scale), bits(a->softcap)};
    const ob_npu_span query = of_val(m, op->in[0], row, 0, a->n_head * a->k_dim), word = in_ws(s->word_off, 1);
    vec(m, OB_VEC_ATTN_BEGIN, params, &query, 1, word);
    for (int32_t p = first / tok; p <= at / tok; p++) {
        const ob_npu_span in[2] = {page_of(m, a, true, pages[p]), page_of(m, a, false, pages[p])};
        const uint32_t range[5] = {(uint32_t)OB_MAX(0, first - p * tok), (uint32_t)OB_MIN(tok, at + 1 - p * tok)};
        vec(m, OB_VEC_ATTN_PAGE, range, in, 2, word);
    }
    vec(m, OB_VEC_ATTN_END, (const uint32_t[5]){0}, &word, 1, of_val(m, op->out[0], row, 0, a->n_head * a->v_dim));
}

static void attention(maker *m, const ob_op *op)
{
    const ob_attn_params *a = &op->p.attn;
    const ob_step *st = m->st;
    const int32_t tok = m->s->opt.page_tok;
    for (int64_t row = 0; row < st->n_tok; row++) { /* all of the step's tokens first: they see each other */
        const int32_t q = seq_of(st, row), at = st->seq_past[q] + (int32_t)row - st->seq_first[q];
        const int32_t page = st->page_table[(int64_t)q * st->max_pages + at / tok];
        to_cache(m, a, op->in[1], true, row, page, at % tok);
        to_cache(m, a, op->in[2], false, row, page, at % tok);
    }
    for (int64_t row = 0; row < st->n_tok; row++) attend(m, op, row);
}

/* ---- texts and chains ------------------------------------------------------------------------- */

static ob_status add_row(maker *m, const ob_op *op, int32_t index, int64_t row)
{
    switch (op->kind) {
    case OB_OP_RMS_NORM: norm(m, op, row); return OB_OK;
    case OB_OP_ROPE: rope(m, op, index, row); return OB_OK;
    case OB_OP_LINEAR: return linear(m, op, row);
    case OB_OP_GATE: gate(m, op, row); return OB_OK;
    case OB_OP_MOE_GLU: return experts(m, op, row);
    case OB_OP_GLU: columns(m, op, OB_VEC_GLU, (const uint32_t[5]){(uint32_t)op->p.glu.act, bits(op->p.glu.clamp)}, row, row); return OB_OK;
    case OB_OP_ACT: columns(m, op, OB_VEC_ACT, (const uint32_t[5]){(uint32_t)op->p.act.act}, row, row); return OB_OK;
    case OB_OP_ADD: columns(m, op, OB_VEC_ADD, (const uint32_t[5]){bits(op->p.add.scale)}, row, row); return OB_OK;
    case OB_OP_SCALE: columns(m, op, OB_VEC_SCALE, (const uint32_t[5]){bits(op->p.scale.scale), bits(op->p.scale.softcap)}, row, row); return OB_OK;
    case OB_OP_ROWS_OUT: columns(m, op, OB_VEC_SCALE, (const uint32_t[5]){bits(1)}, row, m->st->out_rows[row]); return OB_OK;
    default: return ob_err_set(m->err, OB_E_INTERNAL, "op %s is no part of a step's text", ob_op_name(op->kind));
    }
}

static ob_status add_op(maker *m, int32_t index)
{
    const ob_op *op = &m->s->prog->ops[index];
    if (op->kind == OB_OP_ATTENTION) {
        attention(m, op);
        return OB_OK;
    }
    const int64_t rows = ob_value_rows(m->s->prog, op->out[0], m->st->n_tok, m->st->n_out, m->st->n_seq);
    for (int64_t r = 0; r < rows; r++) OB_TRY(add_row(m, op, index, r));
    return OB_OK;
}

/* The text, with its addresses in, behind those of the chain's earlier commands. */
static ob_status place(maker *m, size_t *used, int *n_cmds)
{
    ob_npu_step *s = m->s;
    const size_t n = m->t->text.len, need = *used + n;
    if (!s->text || need > s->text->n_bytes) {
        ob_npu_bo *larger;
        OB_TRY(ob_npu_bo_new(s->opt.dev, OB_NPU_BO_DEV, OB_MAX((size_t)MIN_TEXT_BYTES, need + need / 2), &larger, m->err));
        if (s->text) ob_npu_bo_write(larger, 0, s->text->host, *used);
        ob_npu_bo_free(s->text);
        s->text = larger;
    }
    OB_TRY(ob_npu_patch_apply((uint8_t *)m->t->text.data, n, (const ob_npu_patch *)(void *)m->t->patches.data,
                              m->t->patches.len / sizeof(ob_npu_patch), s->args, s->n_args, m->err));
    ob_npu_bo_write(s->text, *used, m->t->text.data, n);
    s->cmds[(*n_cmds)++] = (ob_npu_cmd){.off = *used, .n_bytes = n};
    *used += ob_align_up(n, OB_NPU_LINE);
    s->stats.text_bytes += n;
    return OB_OK;
}

static ob_status add_command(ob_npu_step *s, const ob_step *st, int32_t i0, int32_t i1, size_t *used, int *n_cmds, ob_err *err)
{
    maker m = {.s = s, .st = st, .t = &s->txn, .err = err};
    ob_npu_text_step_begin(m.t, &s->opt.kernel->place);
    for (int32_t i = i0; i < i1; i++) OB_TRY(add_op(&m, i));
    OB_TRY(ob_npu_txn_finish(m.t, err));
    return place(&m, used, n_cmds);
}

ob_status ob_npu_step_write(ob_npu_step *s, const ob_step *st, int32_t i0, int32_t i1, int *n_cmds, ob_err *err)
{
    const int32_t per = (s->n_layers + 2) / STEP_MAX_CMDS + 1; /* layers of a command */
    size_t used = 0;
    *n_cmds = 0;
    for (int32_t i = i0, end; i < i1; i = end) {
        const int32_t part = s->prog->ops[i].layer / per;
        for (end = i + 1; end < i1 && s->prog->ops[end].layer / per == part; end++) {}
        if (*n_cmds == STEP_MAX_CMDS) return ob_err_set(err, OB_E_LIMIT, "a step of more than %d commands", STEP_MAX_CMDS);
        OB_TRY(add_command(s, st, i, end, &used, n_cmds, err));
    }
    for (int i = 0; i < *n_cmds; i++) s->cmds[i].text = s->text;
    return OB_OK;
}

ob_status ob_npu_step_chain(ob_npu_step *s, const ob_step *st, int32_t i0, int32_t i1, ob_err *err)
{
    int n;
    uint64_t ticket;
    OB_TRY(ob_npu_step_write(s, st, i0, i1, &n, err));
    if (ob_npu_queue_broken(s->opt.kernel->queue)) OB_TRY(ob_npu_queue_reset(s->opt.kernel->queue, err));
    OB_TRY(ob_npu_queue_submit(s->opt.kernel->queue, s->cmds, (size_t)n, &ticket, err));
    s->stats.n_commands += n;
    s->stats.n_chains++;
    return ob_npu_queue_wait(s->opt.kernel->queue, ticket, err);
}
