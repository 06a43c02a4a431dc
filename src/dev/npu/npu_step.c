/* Steps of decoding on the array: what goes there, the workspace, chains and ops of the host in between. */
#include "dev/npu/npu_step.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "dev/npu/npu_step_int.h"

/* ---- what can run there ----------------------------------------------------------------------- */

static bool tiles_fit(const ob_npu_step *s, int32_t w, ob_npu_tiles_at *out)
{
    return w != OB_NONE && s->opt.find(s->opt.arg, &s->prog->weights[w], 0, out) && out->off % OB_NPU_LINE == 0;
}

/* Experts' three matrices, or two where gate and up are one. The router's choice must be on the host when their text is
 * made: it is, as the choice is an op of the host. */
static bool experts_fit(const ob_npu_step *s, const ob_op *op)
{
    ob_npu_tiles_at at;
    const ob_weight *down = op->w[2] != OB_NONE ? &s->prog->weights[op->w[2]] : NULL;
    return down && 2 * down->ne[0] <= OB_NPU_VEC_WORDS && 2 * (int64_t)s->prog->vals[op->out[0]].cols <= OB_NPU_VEC_WORDS &&
           tiles_fit(s, op->w[0], &at) && (op->w[1] == OB_NONE || tiles_fit(s, op->w[1], &at)) && tiles_fit(s, op->w[2], &at);
}

bool ob_npu_step_has_tiles(const ob_npu_step *s, const ob_op *op, int32_t m)
{
    ob_npu_tiles_at at;
    return tiles_fit(s, op->w[m], &at);
}

/* How many of its matrices have tiles. */
static int32_t linear_fits(const ob_npu_step *s, const ob_op *op)
{
    int32_t n = 0;
    for (int32_t m = 0; m < op->p.linear.n_mat; m++) n += ob_npu_step_has_tiles(s, op, m);
    return n;
}

static uint64_t page_words(const ob_npu_step *s, const ob_attn_params *a)
{
    const uint64_t k = ob_type_row_bytes(s->opt.k_type, a->k_dim), v = ob_type_row_bytes(s->opt.v_type, a->v_dim);
    return (uint64_t)a->n_head_kv * (uint64_t)s->opt.page_tok * (k + v) / 4;
}

static bool is_float(ob_type t) { return t == OB_F32 || t == OB_F16; }

static bool attention_fits(const ob_npu_step *s, const ob_op *op)
{
    const ob_attn_params *a = &op->p.attn;
    return a->causal && a->blocks == OB_BLOCKS_NONE && op->in[2] != OB_NONE && is_float(s->opt.k_type) && is_float(s->opt.v_type) &&
           a->k_dim % 2 == 0 && a->v_dim % 2 == 0 && a->k_dim <= 1023 && a->v_dim <= 1023 && a->n_head <= 512 &&
           (int64_t)a->n_head * OB_MAX(a->k_dim, a->v_dim) <= OB_NPU_VEC_HEAD_FLOATS && page_words(s, a) <= OB_NPU_VEC_WORDS;
}

static bool fits(const ob_npu_step *s, const ob_op *op)
{
    const int64_t cols = op->out[0] == OB_NONE ? 0 : s->prog->vals[op->out[0]].cols;
    switch (op->kind) {
    case OB_OP_LINEAR: return linear_fits(s, op) > 0;
    case OB_OP_ATTENTION: return attention_fits(s, op);
    case OB_OP_MOE_GLU: return experts_fit(s, op);
    case OB_OP_RMS_NORM: return 2 * cols <= OB_NPU_VEC_WORDS;
    case OB_OP_ROPE:
        return 2 * cols <= OB_NPU_VEC_WORDS && op->p.rope.head_dim <= 0xffff && (op->w[0] == OB_NONE || s->prog->weights[op->w[0]].type == OB_F32);
    case OB_OP_GATE: return 3 * cols <= OB_NPU_VEC_WORDS;
    case OB_OP_GLU: case OB_OP_ACT: case OB_OP_ADD: case OB_OP_SCALE: case OB_OP_ROWS_OUT: return true;
    default: return false;
    }
}

/* Can the host run what stays there? It reads weights as they are in the file. */
static bool host_can(const ob_npu_step *s, const ob_op *op)
{
    for (int i = 0; i < OB_OP_MAX_W; i++)
        if (op->w[i] != OB_NONE && (!s->prog->weights[op->w[i]].data || s->prog->weights[op->w[i]].hadamard)) return false;
    return true;
}

/* Matrices that an op multiplies with, as indices into its w[]: returns how many. */
static int matrices_of(const ob_op *op, int32_t w[OB_OP_MAX_W])
{
    int n = 0;
    if (op->kind == OB_OP_LINEAR)
        for (int32_t m = 0; m < op->p.linear.n_mat; m++) w[n++] = op->w[m];
    for (int m = 0; op->kind == OB_OP_MOE_GLU && m < 3; m++)
        if (op->w[m] != OB_NONE) w[n++] = op->w[m];
    return n;
}

/* ---- the workspace ---------------------------------------------------------------------------- */

static uint64_t take(ob_npu_step *s, uint64_t n_bytes)
{
    const uint64_t at = s->ws_bytes;
    s->ws_bytes += ob_align_up(n_bytes, OB_NPU_LINE);
    return at;
}

/* Places of values (none shares memory with another: a step has few rows), vector weights, tables and scratch. */
static ob_status lay_out(ob_npu_step *s, ob_err *err)
{
    const ob_program *p = s->prog;
    int64_t max_k = 0, max_n = 0;
    for (int32_t v = 0; v < p->n_vals; v++) s->val_off[v] = take(s, 4ull * (uint64_t)p->vals[v].cols * OB_NPU_STEP_ROWS);
    s->values_end = s->ws_bytes;
    for (int32_t i = 0; i < p->n_ops; i++) {
        const ob_op *op = &p->ops[i];
        if (op->kind == OB_OP_ROPE) s->table_off[i] = take(s, 4ull * (uint64_t)op->p.rope.head_dim * OB_NPU_STEP_ROWS);
        if (!s->on_array[i]) continue;
        const int n_w = op->kind == OB_OP_LINEAR ? 8 : op->kind == OB_OP_RMS_NORM ? 1 : 0; /* biases are w[4..7] */
        for (int w = op->kind == OB_OP_LINEAR ? 4 : 0; w < n_w; w++)
            if (op->w[w] != OB_NONE && !s->vec_off[op->w[w]])
                s->vec_off[op->w[w]] = take(s, 4ull * (uint64_t)p->weights[op->w[w]].ne[0]);
        int32_t w_of[OB_OP_MAX_W];
        for (int m = 0, n = matrices_of(op, w_of); m < n; m++) {
            max_k = OB_MAX(max_k, p->weights[w_of[m]].ne[0]);
            max_n = OB_MAX(max_n, p->weights[w_of[m]].ne[1]);
        }
    }
    s->x_off = take(s, 2ull * (uint64_t)ob_npu_q4_pad_k(max_k));
    s->x2_off = take(s, 2ull * (uint64_t)ob_npu_q4_pad_k(max_k));
    s->h_off = take(s, 4ull * (uint64_t)max_k);
    s->y_off = take(s, 4ull * (uint64_t)ob_npu_pad_n(max_n));
    s->y2_off = take(s, 4ull * (uint64_t)ob_npu_pad_n(max_n));
    s->word_off = take(s, OB_NPU_LINE);
    return ob_npu_bo_new(s->opt.dev, OB_NPU_BO_SHARE, (size_t)s->ws_bytes, &s->ws, err);
}

/* Norms' gains and biases as f32. */
static ob_status copy_vectors(ob_npu_step *s, ob_err *err)
{
    for (int32_t w = 0; w < s->prog->n_weights; w++) {
        const ob_weight *d = &s->prog->weights[w];
        if (!s->vec_off[w]) continue;
        const ob_type_info *ti = ob_type_get(d->type);
        if (!ti->dequant || !d->data) return ob_err_set(err, OB_E_UNSUPPORTED, "%s cannot be read as floats", d->name);
        ti->dequant(d->data, (float *)(void *)(s->ws->host + s->vec_off[w]), d->ne[0]);
    }
    ob_npu_bo_flush(s->ws, 0, (size_t)s->ws_bytes);
    return OB_OK;
}

/* ---- caches ----------------------------------------------------------------------------------- */

/* Lets the NPU into the pages that hold a plane. */
static ob_status wrap(ob_npu_step *s, const void *plane, uint64_t n_bytes, ob_npu_tiles_at *out, ob_npu_bo **bo, ob_err *err)
{
    const uintptr_t first = (uintptr_t)plane & ~(uintptr_t)(OB_NPU_PAGE - 1);
    const size_t n = ob_align_up((uintptr_t)plane + n_bytes - first, OB_NPU_PAGE);
    OB_TRY(ob_npu_bo_wrap(s->opt.dev, (const void *)first, n, bo, err));
    *out = (ob_npu_tiles_at){*bo, (uintptr_t)plane - first};
    return OB_OK;
}

static ob_status wrap_caches(ob_npu_step *s, ob_err *err)
{
    for (int32_t i = 0; i < s->prog->n_ops; i++) {
        const ob_op *op = &s->prog->ops[i];
        if (op->kind != OB_OP_ATTENTION || !s->on_array[i] || s->planes[2 * op->p.attn.cache].bo) continue;
        const ob_cache_spec *c = &s->prog->caches[op->p.attn.cache];
        const uint64_t rows = (uint64_t)c->n_head_kv * (uint64_t)s->opt.page_tok * (uint64_t)s->opt.n_pages;
        const int32_t k = 2 * op->p.attn.cache;
        OB_TRY(wrap(s, s->opt.cache_k[op->p.attn.cache], rows * ob_type_row_bytes(s->opt.k_type, c->k_dim), &s->planes[k], &s->plane_bos[k], err));
        OB_TRY(wrap(s, s->opt.cache_v[op->p.attn.cache], rows * ob_type_row_bytes(s->opt.v_type, c->v_dim), &s->planes[k + 1],
                    &s->plane_bos[k + 1], err));
    }
    return OB_OK;
}

/* ---- life ------------------------------------------------------------------------------------- */

static void *copy_of(const void *src, int32_t n, size_t size, bool *ok)
{
    void *p = ob_malloc((size_t)n * size + 1);
    if (!p) *ok = false;
    else if (n) memcpy(p, src, (size_t)n * size);
    return p;
}

/* Leaves a mixed op the matrices that the host multiplies. */
static void split_linear(ob_npu_step *s, int32_t i)
{
    const ob_op *op = &s->copy.ops[i];
    ob_op *rest = &s->host.ops[i];
    rest->p.linear.n_mat = 0;
    for (int32_t m = 0; m < op->p.linear.n_mat; m++) {
        if (ob_npu_step_has_tiles(s, op, m)) continue;
        const int32_t k = rest->p.linear.n_mat++;
        rest->out[k] = op->out[m];
        rest->w[k] = op->w[m];
        rest->w[4 + k] = op->w[4 + m];
    }
}

/* The program's arrays; what they point to stays the caller's. */
static bool copy_program(ob_npu_step *s, const ob_program *src)
{
    bool ok = true;
    s->copy = *src;
    s->copy.ops = copy_of(src->ops, src->n_ops, sizeof *src->ops, &ok);
    s->copy.vals = copy_of(src->vals, src->n_vals, sizeof *src->vals, &ok);
    s->copy.weights = copy_of(src->weights, src->n_weights, sizeof *src->weights, &ok);
    s->copy.caches = copy_of(src->caches, src->n_caches, sizeof *src->caches, &ok);
    s->copy.states = copy_of(src->states, src->n_states, sizeof *src->states, &ok);
    s->host = s->copy;
    s->host.ops = copy_of(src->ops, src->n_ops, sizeof *src->ops, &ok);
    s->prog = &s->copy;
    return ok;
}

static ob_status alloc_all(ob_npu_step *s, ob_err *err)
{
    const ob_program *p = s->prog;
    const size_t n_args = 1 + (size_t)p->n_weights + 2 * (size_t)p->n_caches;
    s->on_array = ob_calloc((size_t)p->n_ops, sizeof *s->on_array);
    s->mixed = ob_calloc((size_t)p->n_ops, sizeof *s->mixed);
    s->table_off = ob_calloc((size_t)p->n_ops, sizeof *s->table_off);
    s->val_off = ob_calloc((size_t)p->n_vals, sizeof *s->val_off);
    s->vals = ob_calloc((size_t)p->n_vals, sizeof *s->vals);
    s->vec_off = ob_calloc((size_t)p->n_weights + 1, sizeof *s->vec_off);
    s->args = ob_calloc(n_args, sizeof *s->args);
    s->planes = ob_calloc(2 * (size_t)p->n_caches + 1, sizeof *s->planes);
    s->plane_bos = ob_calloc(2 * (size_t)p->n_caches + 1, sizeof *s->plane_bos);
    s->views = ob_calloc((size_t)p->n_caches + 1, sizeof *s->views);
    s->kept = ob_calloc((size_t)p->n_states + 1, sizeof *s->kept);
    s->scratch = ob_calloc(ob_ref_scratch_floats(p, s->opt.max_ctx), sizeof *s->scratch);
    s->n_args = n_args;
    if (n_args > UINT16_MAX) return ob_err_set(err, OB_E_LIMIT, "a program with too many weights for control text");
    if (!s->on_array || !s->mixed || !s->table_off || !s->val_off || !s->vals || !s->vec_off || !s->args || !s->planes || !s->plane_bos || !s->views ||
        !s->kept || !s->scratch)
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a step on the NPU");
    for (int32_t i = 0; i < p->n_states; i++)
        if (!(s->kept[i] = ob_malloc((size_t)p->states[i].n_floats * OB_NPU_STEP_ROWS * sizeof(float))))
            return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a step on the NPU");
    return OB_OK;
}

/* Addresses of everything that texts name. */
static void fill_args(ob_npu_step *s)
{
    const ob_program *p = s->prog;
    s->args[0] = s->ws->dev_addr;
    for (int32_t i = 0; i < p->n_ops; i++)
    {
        int32_t w_of[OB_OP_MAX_W];
        for (int m = 0, n = s->on_array[i] ? matrices_of(&p->ops[i], w_of) : 0; m < n; m++) {
            ob_npu_tiles_at at;
            if (tiles_fit(s, w_of[m], &at)) s->args[1 + w_of[m]] = at.bo->dev_addr + at.off;
        }
    }
    for (int32_t c = 0; c < 2 * p->n_caches; c++)
        if (s->planes[c].bo) s->args[1 + p->n_weights + c] = s->planes[c].bo->dev_addr + s->planes[c].off;
    for (int32_t v = 0; v < p->n_vals; v++) s->vals[v] = (float *)(void *)(s->ws->host + s->val_off[v]);
    for (int32_t c = 0; c < p->n_caches; c++)
        s->views[c] = (ob_cache_view){.k = s->opt.cache_k[c], .v = s->opt.cache_v ? s->opt.cache_v[c] : NULL, .k_type = s->opt.k_type,
                                      .v_type = s->opt.v_type, .page_tok = s->opt.page_tok};
}

/* The end of the next chain from op i on: *begin its first op. */
static int32_t chain_at(const ob_npu_step *s, int32_t i, int32_t *begin)
{
    while (i < s->prog->n_ops && !s->on_array[i]) i++;
    *begin = i;
    while (i < s->prog->n_ops && s->on_array[i])
        if (s->mixed[i++]) break; /* what its chain leaves out is computed behind it */
    return i;
}

/* Room for the texts of a token at place RESERVE_CTX, so that most steps allocate nothing. */
static ob_status reserve(ob_npu_step *s, ob_err *err)
{
    enum { RESERVE_CTX = 4096 };
    static const int32_t first[2] = {0, 1}, row = 0;
    const int32_t past = OB_MAX(0, OB_MIN(s->opt.max_ctx, RESERVE_CTX) - 1), n_pages = past / s->opt.page_tok + 1;
    int32_t *pages = ob_calloc((size_t)n_pages, sizeof *pages);
    ob_status r = pages ? OB_OK : ob_err_set(err, OB_E_NO_MEMORY, "no memory for a step on the NPU");
    const ob_step st = {.n_tok = 1, .n_seq = 1, .n_out = 1, .seq_first = first, .seq_past = &past, .page_table = pages, .max_pages = n_pages,
                        .out_rows = &row};
    for (int32_t i = 0, begin, n; r == OB_OK && i < s->prog->n_ops; ) {
        i = chain_at(s, i, &begin);
        if (begin < i) r = ob_npu_step_write(s, &st, begin, i, &n, err);
    }
    ob_free(pages);
    return r;
}

ob_status ob_npu_step_new(const ob_npu_step_options *opt, ob_npu_step **out, ob_err *err)
{
    ob_status st;
    *out = NULL;
    for (int32_t v = 0; v < opt->prog->n_vals; v++)
        if (opt->prog->vals[v].input) return ob_err_set(err, OB_E_UNSUPPORTED, "a program that takes inputs");
    ob_npu_step *s = ob_calloc(1, sizeof *s);
    if (!s) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a step on the NPU");
    s->opt = *opt;
    ob_npu_txn_init(&s->txn, false);
    st = copy_program(s, opt->prog) ? alloc_all(s, err) : ob_err_set(err, OB_E_NO_MEMORY, "no memory for a step on the NPU");
    for (int32_t i = 0; st == OB_OK && i < s->prog->n_ops; i++) {
        s->on_array[i] = fits(s, &s->prog->ops[i]);
        s->stats.n_array_ops += s->on_array[i];
        s->mixed[i] = s->on_array[i] && s->prog->ops[i].kind == OB_OP_LINEAR && linear_fits(s, &s->prog->ops[i]) < s->prog->ops[i].p.linear.n_mat;
        if (s->mixed[i]) split_linear(s, i);
        if (!s->on_array[i] && !host_can(s, &s->prog->ops[i]))
            st = ob_err_set(err, OB_E_UNSUPPORTED, "op %s can run neither on the array nor beside it", ob_op_name(s->prog->ops[i].kind));
        s->n_layers = OB_MAX(s->n_layers, s->prog->ops[i].layer + 1);
    }
    s->stats.n_host_ops = s->prog->n_ops - s->stats.n_array_ops;
    if (st == OB_OK && !s->stats.n_array_ops) st = ob_err_set(err, OB_E_UNSUPPORTED, "no op of this program can run on the array");
    if (st == OB_OK) st = lay_out(s, err);
    if (st == OB_OK) st = copy_vectors(s, err);
    if (st == OB_OK) st = wrap_caches(s, err);
    if (st == OB_OK) fill_args(s);
    if (st == OB_OK) st = reserve(s, err);
    if (st == OB_OK) *out = s;
    else ob_npu_step_free(s);
    return st;
}

void ob_npu_step_free(ob_npu_step *s)
{
    if (!s) return;
    ob_npu_txn_deinit(&s->txn);
    ob_npu_bo_free(s->text);
    ob_npu_bo_free(s->ws);
    for (int32_t i = 0; s->plane_bos && i < 2 * s->prog->n_caches; i++) ob_npu_bo_free(s->plane_bos[i]);
    for (int32_t i = 0; s->kept && i < s->prog->n_states; i++) ob_free(s->kept[i]);
    ob_free(s->on_array);
    ob_free(s->mixed);
    ob_free(s->host.ops);
    ob_free(s->table_off);
    ob_free(s->val_off);
    ob_free(s->vals);
    ob_free(s->vec_off);
    ob_free(s->args);
    ob_free(s->planes);
    ob_free(s->plane_bos);
    ob_free(s->views);
    ob_free(s->kept);
    ob_free(s->scratch);
    ob_free(s->copy.ops);
    ob_free(s->copy.vals);
    ob_free(s->copy.weights);
    ob_free(s->copy.caches);
    ob_free(s->copy.states);
    ob_free(s);
}

ob_npu_step_stats ob_npu_step_stats_get(const ob_npu_step *s) { return s->stats; }
const ob_program *ob_npu_step_program(const ob_npu_step *s) { return s->prog; }
const float *ob_npu_step_val(const ob_npu_step *s, ob_val v) { return s->vals[v]; }

void ob_npu_step_host_ops(const ob_npu_step *s, char *text, size_t cap)
{
    bool seen[OB_OP_COUNT] = {false};
    size_t n = 0;
    if (cap) text[0] = 0;
    for (int32_t i = 0; i < s->prog->n_ops; i++) {
        const ob_op_kind k = s->prog->ops[i].kind;
        if ((s->on_array[i] && !s->mixed[i]) || seen[k]) continue;
        seen[k] = true;
        if (n < cap) n += (size_t)snprintf(text + n, cap - n, "%s%s", n ? ", " : "", ob_op_name(k));
    }
}

/* ---- a step ----------------------------------------------------------------------------------- */

/* The cosines and sines of a token's position, in a head's places: what rotating (1, 0) gives. */
static void write_tables(ob_npu_step *s, const ob_step *st)
{
    for (int32_t i = 0; i < s->prog->n_ops; i++) {
        const ob_op *op = &s->prog->ops[i];
        if (op->kind != OB_OP_ROPE || !s->on_array[i]) continue;
        const ob_rope_params *r = &op->p.rope;
        const int32_t half = r->n_rot / 2;
        const float *factors = op->w[0] != OB_NONE ? (const float *)s->prog->weights[op->w[0]].data : NULL;
        for (int32_t t = 0; t < st->n_tok; t++) {
            float *table = (float *)(void *)(s->ws->host + s->table_off[i]) + (size_t)t * (size_t)r->head_dim;
            const int32_t pos[3] = {st->pos[t], st->pos_h ? st->pos_h[t] : st->pos[t], st->pos_w ? st->pos_w[t] : st->pos[t]};
            memset(table, 0, (size_t)r->head_dim * sizeof *table);
            for (int32_t k = 0; k < half; k++) table[r->rot_off + (r->pairing == OB_ROPE_NORM ? 2 * k : k)] = 1;
            ob_ref_rope_axes(r, factors, pos, 1, table, table);
        }
        ob_npu_bo_flush(s->ws, (size_t)s->table_off[i], (size_t)r->head_dim * OB_NPU_STEP_ROWS * sizeof(float));
    }
}

/* Recurrent states before a step, so that it can begin again elsewhere; and back. */
static void move_states(ob_npu_step *s, const ob_step *st, bool back)
{
    for (int32_t i = 0; i < s->prog->n_states; i++)
        for (int32_t q = 0; q < st->n_seq; q++) {
            const size_t n = (size_t)s->prog->states[i].n_floats;
            float *live = s->opt.states[i] + (size_t)st->seq_slot[q] * n, *kept = s->kept[i] + (size_t)q * n;
            memcpy(back ? live : kept, back ? kept : live, n * sizeof(float));
        }
}

static void host_op(ob_npu_step *s, const ob_step *st, int32_t i)
{
    const ob_ref_env e = {.prog = &s->host, .step = st, .vals = s->vals, .caches = s->views, .states = s->opt.states, .scratch = s->scratch};
    for (int phase = 0; phase < ob_ref_n_phases(s->prog->ops[i].kind); phase++) ob_ref_run(&e, i, phase, 0, ob_ref_n_items(&e, i));
}

static ob_status run_ops(ob_npu_step *s, const ob_step *st, ob_err *err)
{
    ob_npu_bo_invalidate(s->ws, 0, (size_t)s->values_end);
    for (int32_t i = 0, begin; i < s->prog->n_ops;) {
        const int32_t end = chain_at(s, i, &begin);
        for (int32_t k = i; k < begin; k++) host_op(s, st, k);
        if (begin > i) ob_npu_bo_flush(s->ws, 0, (size_t)s->values_end);
        if (end > begin) OB_TRY(ob_npu_step_chain(s, st, begin, end, err));
        ob_npu_bo_invalidate(s->ws, 0, (size_t)s->values_end);
        if (end > begin && s->mixed[end - 1]) {
            host_op(s, st, end - 1);
            ob_npu_bo_flush(s->ws, 0, (size_t)s->values_end);
        }
        i = end;
    }
    return OB_OK;
}

ob_status ob_npu_step_run(ob_npu_step *s, const ob_step *st, ob_err *err)
{
    if (st->n_tok > OB_NPU_STEP_ROWS || st->n_out > OB_NPU_STEP_ROWS || st->n_seq > OB_NPU_STEP_ROWS)
        return ob_err_set(err, OB_E_LIMIT, "a step of %d tokens, %d at most", st->n_tok, OB_NPU_STEP_ROWS);
    s->stats.n_commands = s->stats.n_chains = 0;
    s->stats.text_bytes = 0;
    move_states(s, st, false);
    write_tables(s, st);
    const ob_status r = run_ops(s, st, err);
    if (r != OB_OK) move_states(s, st, true);
    return r;
}
