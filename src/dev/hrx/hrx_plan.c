/* A program of ops becomes a list of dispatches; a step sends them, with its own numbers in place. */
#include "dev/hrx/hrx_int.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

/* ---- what can run ---------------------------------------------------------------------------- */

static bool refuse(char *why, size_t cap, const char *text)
{
    snprintf(why, cap, "%s", text);
    return false;
}

/* A matrix that the kernels of its type can multiply: rows of multiples of 8, or floats. */
static bool matrix_fits(const hx_dev *d, const ob_weight *w, char *why, size_t cap)
{
    const ob_type t = hx_packed_type(d, w);
    if (w->type == OB_I32 || (!hx_type_object(w->type) && !ob_type_get(w->type)->dequant))
        return refuse(why, cap, "no matrix product for its type");
    if ((uint64_t)(w->ne[1] * w->ne[2]) * ob_type_row_bytes(t, w->ne[0]) > UINT32_MAX)
        return refuse(why, cap, "a matrix of more than 4 GiB");
    return true;
}

bool hx_has_kernels(const hx_dev *d, const ob_program *p, int32_t i, char *why, size_t cap)
{
    const ob_op *op = &p->ops[i];
    for (int k = 0; k < OB_OP_MAX_W; k++) {
        const ob_weight *w = op->w[k] == OB_NONE ? NULL : &p->weights[op->w[k]];
        if (!w || w->type == OB_I32) continue;
        if (w->use != OB_USE_VECTOR && w->use != OB_USE_TABLE && !matrix_fits(d, w, why, cap)) return false;
        if (w->hadamard && ((op->kind != OB_OP_LINEAR && op->kind != OB_OP_MOE_GLU) || w->ne[0] % 32))
            return refuse(why, cap, "rotated weights of this op");
    }
    switch (op->kind) {
    case OB_OP_EMBED:
    case OB_OP_ROWS_OUT:
    case OB_OP_RMS_NORM:
    case OB_OP_LAYER_NORM:
    case OB_OP_LINEAR:
    case OB_OP_GLU:
    case OB_OP_ADD:
    case OB_OP_SCALE:
    case OB_OP_ACT:
    case OB_OP_AFFINE:
    case OB_OP_GATE:
    case OB_OP_SPLIT:
    case OB_OP_JOIN:
    case OB_OP_LINEAR_HEADS:
    case OB_OP_ADD_ROW:
    case OB_OP_POOL:
    case OB_OP_MERGE:
    case OB_OP_MOE_GLU:
        return true;
    case OB_OP_ROPE:
        return p->vals[op->out[0]].rows == OB_ROWS_TOK || refuse(why, cap, "rope over other rows than tokens");
    case OB_OP_ATTENTION:
        return op->p.attn.v_dim <= HX_DIM || refuse(why, cap, "heads too wide");
    case OB_OP_MOE_ROUTE:
        return p->vals[op->in[0]].cols <= HX_DIM || refuse(why, cap, "too many experts");
    case OB_OP_CSA:
        if (op->p.csa.official) return refuse(why, cap, "no kernels for official rounding");
        return (op->p.csa.k_dim <= HX_DIM && op->p.csa.index_dim <= HX_INDEX_DIM) || refuse(why, cap, "heads too wide");
    case OB_OP_HC_MIX:
    case OB_OP_HC_POST:
    case OB_OP_CONV1D:
    case OB_OP_GDN:
    case OB_OP_CCA:
    case OB_OP_TOP_K:
        return true;
    default: return refuse(why, cap, "no kernel for it yet");
    }
}

bool hx_supports(const ob_dev *dev, const ob_program *p, int32_t i, char *why, size_t cap)
{
    const hx_dev *d = (const hx_dev *)dev;
    if (!hx_has_kernels(d, p, i, why, cap)) return false;
    /* The verdict is kept in the device, which is the caller's alone. */
    return hx_selftest((hx_dev *)(uintptr_t)dev, p, i) || refuse(why, cap, "its kernels are wrong on this device and were switched off");
}

/* ---- dispatches ------------------------------------------------------------------------------ */

hx_dispatch *hx_add(hx_make *m, const char *object, const char *kernel, uint32_t n_consts, uint32_t n_refs)
{
    ob_dev_plan *p = m->plan;
    const hx_kernel *k;
    if (m->s != OB_OK) return NULL;
    if ((m->s = hx_kernel_get(p->dev, object, kernel, n_consts, n_refs, &k, m->err)) != OB_OK) return NULL;
    if (p->n_steps == p->cap_steps) {
        const int32_t cap = p->cap_steps ? 2 * p->cap_steps : 128;
        hx_dispatch *grown = ob_reallocarray(p->steps, (size_t)cap, sizeof *grown);
        if (!grown) {
            m->s = ob_err_set(m->err, OB_E_NO_MEMORY, "no memory for a plan");
            return NULL;
        }
        p->steps = grown;
        p->cap_steps = cap;
    }
    hx_dispatch *x = &p->steps[p->n_steps++];
    memset(x, 0, sizeof *x);
    x->kernel = k;
    x->rows = HX_FIXED;
    x->rows_at = x->seg_at = -1;
    x->op = ob_op_name(p->prog.ops[m->op].kind);
    return x;
}

void hx_int(hx_dispatch *x, int64_t v)
{
    if (x) x->consts[x->n_consts++] = (uint32_t)v;
}
void hx_float(hx_dispatch *x, float v)
{
    if (x) x->consts[x->n_consts++] = ob_f32_bits(v);
}
void hx_grid(hx_dispatch *x, int64_t gx, int64_t gy, int64_t gz)
{
    if (x) x->cfg = (hx_config){.count = {(uint32_t)gx, (uint32_t)gy, (uint32_t)gz}};
}
void hx_follow(hx_dispatch *x, int axis, ob_rows rows, int per)
{
    if (!x) return;
    x->rows = (hx_rows)rows;
    x->axis = (int8_t)axis;
    x->per = (int8_t)per;
}
void hx_mem(hx_dispatch *x, hx_object mem, uint64_t off, uint64_t n)
{
    if (x) x->refs[x->n_refs++] = (hx_ref){mem, off, n};
}

int64_t hx_max_rows(const ob_dev_plan *p, ob_rows rows)
{
    return rows == OB_ROWS_TOK ? p->prog.max_tok : rows == OB_ROWS_OUT ? p->prog.max_out : p->prog.max_seq;
}

void hx_value(hx_make *m, hx_dispatch *x, ob_val v)
{
    const ob_dev_plan *p = m->plan;
    if (v == OB_NONE) {
        hx_mem(x, p->dev->none, 0, 16);
        return;
    }
    const ob_value *val = &p->prog.vals[v];
    hx_mem(x, p->work, val->offset, (uint64_t)hx_max_rows(p, val->rows) * (uint64_t)val->cols * 4);
}

void hx_weight(hx_make *m, hx_dispatch *x, int32_t w)
{
    if (w == OB_NONE) hx_mem(x, m->plan->dev->none, 0, 16);
    else hx_mem(x, m->plan->weights[w]->mem, 0, m->plan->weights[w]->n_bytes);
}

void hx_param(hx_make *m, hx_dispatch *x, size_t off, size_t n) { hx_mem(x, m->plan->params, off, n); }
void hx_scratch(hx_make *m, hx_dispatch *x, size_t off, size_t n) { hx_mem(x, m->plan->scratch, off, n); }

void hx_tokens(hx_make *m, hx_dispatch *x) { hx_param(m, x, m->plan->at.info, (size_t)m->plan->prog.max_tok * 16); }
void hx_sequences(hx_make *m, hx_dispatch *x) { hx_param(m, x, m->plan->at.seq, (size_t)m->plan->prog.max_seq * 16); }
void hx_pages(hx_make *m, hx_dispatch *x)
{
    hx_param(m, x, m->plan->at.table, (size_t)m->plan->prog.max_seq * (size_t)m->plan->max_pages * 4);
}
void hx_state(hx_make *m, hx_dispatch *x, int32_t state)
{
    const ob_dev_plan *p = m->plan;
    hx_mem(x, p->states[state], 0, (uint64_t)p->n_slots * (uint64_t)p->prog.states[state].n_floats * 4);
}

/* ---- the list -------------------------------------------------------------------------------- */

size_t hx_op_scratch(const ob_dev_plan *p, int32_t i)
{
    const ob_op *op = &p->prog.ops[i];
    switch (op->kind) {
    case OB_OP_ATTENTION: return hx_attn_scratch(p, op);
    case OB_OP_CSA: return hx_csa_scratch(p, op);
    case OB_OP_LINEAR: return hx_linear_scratch(p, op);
    case OB_OP_MOE_GLU: return hx_moe_scratch(p, op);
    case OB_OP_GDN:
    case OB_OP_CCA: return hx_state_scratch(p, op);
    default: return 0;
    }
}

static ob_status add_op(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    hx_make m = {.plan = p, .op = i, .s = OB_OK, .err = err};
    switch (op->kind) {
    case OB_OP_EMBED:
    case OB_OP_ADD_ROW:
    case OB_OP_LINEAR:
    case OB_OP_LINEAR_HEADS: hx_add_linear(&m, op); break;
    case OB_OP_ROPE:
        OB_TRY(hx_rope_table(p, i, &op->p.rope, op->w[0], err));
        hx_add_rope(&m, op);
        break;
    case OB_OP_HC_MIX:
    case OB_OP_HC_POST: hx_add_hyper(&m, op); break;
    case OB_OP_CSA:
        if (op->p.csa.ratio) OB_TRY(hx_rope_table(p, i, &op->p.csa.rope, OB_NONE, err));
        hx_add_csa(&m, op);
        break;
    case OB_OP_ATTENTION: hx_add_attention(&m, op); break;
    case OB_OP_MOE_ROUTE:
    case OB_OP_MOE_GLU: hx_add_moe(&m, op); break;
    case OB_OP_CONV1D:
    case OB_OP_GDN:
    case OB_OP_CCA: hx_add_state(&m, op); break;
    default: hx_add_rows(&m, op); break;
    }
    return m.s;
}

/* ---- a plan's own copies --------------------------------------------------------------------- */

static void *copy_of(const void *src, int32_t n, size_t size)
{
    void *p = ob_calloc((size_t)n + 1, size);
    if (p && n) memcpy(p, src, (size_t)n * size);
    return p;
}

static ob_status copy_program(ob_dev_plan *p, const ob_program *prog, const ob_plan_bindings *b, ob_err *err)
{
    p->prog = *prog;
    p->prog.ops = copy_of(prog->ops, prog->n_ops, sizeof *prog->ops);
    p->prog.vals = copy_of(prog->vals, prog->n_vals, sizeof *prog->vals);
    p->prog.weights = copy_of(prog->weights, prog->n_weights, sizeof *prog->weights);
    p->prog.caches = copy_of(prog->caches, prog->n_caches, sizeof *prog->caches);
    p->prog.states = copy_of(prog->states, prog->n_states, sizeof *prog->states);
    p->weights = copy_of(b->weights, prog->n_weights, sizeof *p->weights);
    p->cache_k = ob_calloc((size_t)prog->n_caches + 1, sizeof *p->cache_k);
    p->cache_v = ob_calloc((size_t)prog->n_caches + 1, sizeof *p->cache_v);
    p->cache_k_len = ob_calloc((size_t)prog->n_caches + 1, sizeof *p->cache_k_len);
    p->cache_v_len = ob_calloc((size_t)prog->n_caches + 1, sizeof *p->cache_v_len);
    p->states = ob_calloc((size_t)prog->n_states + 1, sizeof *p->states);
    p->tables = ob_calloc((size_t)prog->n_ops + 1, sizeof *p->tables);
    p->result_off = ob_calloc((size_t)prog->n_vals + 1, sizeof *p->result_off);
    p->inputs = ob_calloc((size_t)prog->n_vals + 1, sizeof *p->inputs);
    if (!p->prog.ops || !p->prog.vals || !p->prog.weights || !p->prog.caches || !p->prog.states || !p->weights || !p->cache_k ||
        !p->cache_v || !p->cache_k_len || !p->cache_v_len || !p->states || !p->tables || !p->result_off || !p->inputs)
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
    return OB_OK;
}

static ob_status check_bindings(ob_dev_plan *p, const ob_plan_bindings *b, ob_err *err)
{
    for (int32_t i = 0; i < p->prog.n_weights; i++)
        if (!p->weights[i]) return ob_err_set(err, OB_E_INVALID, "weight %s is not bound", p->prog.weights[i].name);
    for (int32_t i = 0; i < p->prog.n_caches; i++) {
        const ob_cache_spec *c = &p->prog.caches[i];
        const uint64_t rows = (uint64_t)b->n_pages * (uint64_t)b->page_tok * (uint64_t)c->n_head_kv;
        p->cache_k_len[i] = rows * ob_type_row_bytes(b->k_type, c->k_dim);
        p->cache_v_len[i] = c->v_dim ? rows * ob_type_row_bytes(b->v_type, c->v_dim) : 0;
        if (!b->cache_k[i] || b->cache_k[i]->n_bytes < p->cache_k_len[i] || !p->cache_k_len[i] ||
            (c->v_dim && (!b->cache_v[i] || b->cache_v[i]->n_bytes < p->cache_v_len[i] || !p->cache_v_len[i])))
            return ob_err_set(err, OB_E_INVALID, "cache %d is missing or too small", i);
        p->cache_k[i] = b->cache_k[i]->mem;
        p->cache_v[i] = c->v_dim ? b->cache_v[i]->mem : NULL;
    }
    for (int32_t i = 0; i < p->prog.n_states; i++) {
        if (!b->states[i] || b->states[i]->n_bytes < (uint64_t)b->n_slots * (uint64_t)p->prog.states[i].n_floats * 4)
            return ob_err_set(err, OB_E_INVALID, "state %s is missing or too small", p->prog.states[i].name);
        p->states[i] = b->states[i]->mem;
    }
    const bool k_ok = b->k_type == OB_F32 || b->k_type == OB_F16 || b->k_type == OB_Q8_0;
    const bool v_ok = b->v_type == OB_F32 || b->v_type == OB_F16 || b->v_type == OB_Q8_0;
    if (p->prog.n_caches && (!k_ok || !v_ok))
        return ob_err_set(err, OB_E_UNSUPPORTED, "hrx: caches are f32, f16 or q8_0, not %s and %s", ob_type_get(b->k_type)->name,
                          ob_type_get(b->v_type)->name);
    return OB_OK;
}

/* Outputs that are read after every step are copied to the host by the step itself. */
static ob_status make_results(ob_dev_plan *p, ob_err *err)
{
    size_t n = 0;
    for (ob_val v = 0; v < p->prog.n_vals; v++) {
        const ob_value *x = &p->prog.vals[v];
        p->result_off[v] = SIZE_MAX;
        const size_t bytes = (size_t)hx_max_rows(p, x->rows) * (size_t)x->cols * 4;
        if (x->input) {
            p->inputs[v] = ob_malloc(bytes);
            if (!p->inputs[v]) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan's inputs");
        }
        if (!x->output || x->seldom || x->first < 0) continue;
        p->result_off[v] = n;
        n += ob_align_up(bytes, 64);
    }
    p->results = ob_malloc(n + 1);
    return p->results ? OB_OK : ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan's results");
}

static ob_status build(ob_dev_plan *p, ob_err *err)
{
    hx_dev *d = p->dev;
    hx_layout_make(p);
    for (int32_t i = 0; i < p->prog.n_ops; i++) p->scratch_bytes = OB_MAX(p->scratch_bytes, hx_op_scratch(p, i));
    p->host = ob_calloc(1, p->at.n_bytes);
    if (!p->host) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
    OB_TRY(hx_alloc(d, p->prog.workspace_bytes, &p->work, err));
    OB_TRY(hx_alloc(d, p->at.n_bytes, &p->params, err));
    OB_TRY(hx_alloc(d, p->scratch_bytes, &p->scratch, err));
    OB_TRY(make_results(p, err));
    for (int32_t i = 0; i < p->prog.n_ops; i++) {
        OB_TRY(ob_op_check(&p->prog, i, err));
        OB_TRY(add_op(p, i, err));
    }
    return OB_OK;
}

ob_status hx_plan_new(ob_dev *dev, const ob_program *prog, const ob_plan_bindings *b, ob_dev_plan **out, ob_err *err)
{
    ob_status s = OB_OK;
    *out = NULL;
    ob_dev_plan *p = ob_calloc(1, sizeof *p);
    if (!p) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
    p->dev = hx_of(dev);
    p->k_type = b->k_type;
    p->v_type = b->v_type;
    p->page_tok = b->page_tok;
    p->n_pages = b->n_pages;
    p->max_ctx = b->max_ctx;
    p->n_slots = b->n_slots;
    p->max_pages = b->page_tok ? (int32_t)ob_div_up(b->max_ctx, b->page_tok) : 0;
    OB_GOTO(copy_program(p, prog, b, err));
    OB_GOTO(check_bindings(p, b, err));
    OB_GOTO(build(p, err));
    *out = p;
out:
    if (s != OB_OK) hx_plan_free(dev, p);
    return s;
}

void hx_plan_free(ob_dev *dev, ob_dev_plan *p)
{
    if (!p) return;
    hx_dev *d = hx_of(dev);
    hx_settle(d);
    for (int32_t i = 0; p->tables && i < p->prog.n_ops; i++) {
        int32_t first = 0; /* of those that share it */
        while (p->tables[first] != p->tables[i]) first++;
        if (p->tables[i] && first == i) d->lib->buffer_release(p->tables[i]);
    }
    if (p->work) d->lib->buffer_release(p->work);
    if (p->params) d->lib->buffer_release(p->params);
    if (p->scratch) d->lib->buffer_release(p->scratch);
    for (ob_val v = 0; p->inputs && v < p->prog.n_vals; v++) ob_free(p->inputs[v]);
    void *const own[] = {p->prog.ops, p->prog.vals, p->prog.weights, p->prog.caches, p->prog.states, p->weights, p->cache_k,
                         p->cache_v, p->cache_k_len, p->cache_v_len, p->states, p->tables, p->result_off, p->inputs,
                         p->host, p->results, p->steps};
    for (size_t i = 0; i < OB_COUNT(own); i++) ob_free(own[i]);
    ob_free(p);
}
