/* Plans of the CPU device: a program becomes stages, values get places, scratch is set aside. */
#include "dev/cpu/cpu_int.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"

bool cpu_supports(const ob_dev *d, const ob_program *p, int32_t i, char *why, size_t cap)
{
    (void)d;
    const ob_op *op = &p->ops[i];
    if (op->kind == OB_OP_LINEAR) {
        for (int m = 0; m < op->p.linear.n_mat; m++) {
            const ob_weight *w = &p->weights[op->w[m]];
            if (ob_type_get(w->type)->dequant) continue;
            snprintf(why, cap, "no matrix product for type %s of %s",
                     ob_type_get(w->type)->name ? ob_type_get(w->type)->name : "?", w->name);
            return false;
        }
        return true;
    }
    return true; /* an op without a kernel of its own runs by ops/ref.c */
}

/* --- what the plan keeps ----------------------------------------------------------------------- */

static ob_status no_memory(ob_err *err) { return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan"); }

static void *keep(ob_dev_plan *p, const void *src, int32_t n, size_t size)
{
    void *dst = ob_arena_array(&p->arena, (size_t)n + 1, size);
    if (dst && src && n) memcpy(dst, src, (size_t)n * size);
    return dst;
}

static ob_status copy_program(ob_dev_plan *p, const ob_program *src, ob_err *err)
{
    ob_program *g = &p->prog;
    *g = *src;
    g->ops = keep(p, src->ops, src->n_ops, sizeof *g->ops);
    g->vals = keep(p, src->vals, src->n_vals, sizeof *g->vals);
    g->weights = keep(p, src->weights, src->n_weights, sizeof *g->weights);
    g->caches = keep(p, src->caches, src->n_caches, sizeof *g->caches);
    g->states = keep(p, src->states, src->n_states, sizeof *g->states);
    if (!g->ops || !g->vals || !g->weights || !g->caches || !g->states) return no_memory(err);
    return OB_OK;
}

static ob_status check_plane(const ob_plan_bindings *b, const ob_dev_buf *buf, ob_type type, int32_t n_head,
                             int32_t dim, ob_err *err)
{
    const ob_type_info *ti = ob_type_get(type);
    const size_t row = ob_type_row_bytes(type, dim);
    if (!ti->dequant || (type != OB_F32 && type != OB_F16 && !ti->quant))
        return ob_err_set(err, OB_E_UNSUPPORTED, "the cache cannot have type %s", ti->name ? ti->name : "?");
    if (row == 0)
        return ob_err_set(err, OB_E_UNSUPPORTED, "rows of %d do not fit cache type %s", dim, ti->name);
    uint64_t n;
    if (!buf || !ob_mul_u64((uint64_t)b->n_pages * (uint64_t)b->page_tok, (uint64_t)n_head * row, &n) ||
        buf->n_bytes < n)
        return ob_err_set(err, OB_E_INVALID, "a cache buffer is too small for %d pages", b->n_pages);
    return OB_OK;
}

static ob_status bind(ob_dev_plan *p, const ob_plan_bindings *b, ob_err *err)
{
    const ob_program *g = &p->prog;
    p->page_tok = b->page_tok;
    p->n_pages = b->n_pages;
    p->max_ctx = b->max_ctx;
    p->n_slots = b->n_slots;
    p->weights = keep(p, b->weights, g->n_weights, sizeof *p->weights);
    p->caches = keep(p, NULL, g->n_caches, sizeof *p->caches);
    p->states = keep(p, NULL, g->n_states, sizeof *p->states);
    if (!p->weights || !p->caches || !p->states) return no_memory(err);
    if (g->n_caches && (b->page_tok < 1 || b->n_pages < 1 || b->max_ctx < 1))
        return ob_err_set(err, OB_E_INVALID, "a plan with caches needs pages and a context length");
    for (int32_t i = 0; i < g->n_weights; i++) {
        if (!p->weights[i])
            return ob_err_set(err, OB_E_INVALID, "weight %s is not bound", g->weights[i].name);
        /* What ops/ref.c reads: the file's bytes, or the vector that was unpacked from them. */
        g->weights[i].data = p->weights[i]->desc.data;
        if (!p->weights[i]->vec) continue;
        g->weights[i].data = p->weights[i]->vec;
        g->weights[i].type = OB_F32;
    }
    for (int32_t i = 0; i < g->n_caches; i++) {
        const ob_cache_spec *s = &g->caches[i];
        OB_TRY(check_plane(b, b->cache_k[i], b->k_type, s->n_head_kv, s->k_dim, err));
        p->caches[i] = (ob_cache_view){.k = b->cache_k[i]->data, .k_type = b->k_type, .v_type = b->v_type,
                                       .page_tok = b->page_tok};
        if (!s->v_dim) continue;
        OB_TRY(check_plane(b, b->cache_v[i], b->v_type, s->n_head_kv, s->v_dim, err));
        p->caches[i].v = b->cache_v[i]->data;
    }
    for (int32_t i = 0; i < g->n_states; i++) {
        if (!b->states[i] || b->states[i]->n_bytes / sizeof(float) / (uint64_t)OB_MAX(1, g->states[i].n_floats) <
                                 (uint64_t)b->n_slots)
            return ob_err_set(err, OB_E_INVALID, "state %s is too small", g->states[i].name);
        p->states[i] = (float *)(void *)b->states[i]->data;
    }
    return OB_OK;
}

/* --- stages ------------------------------------------------------------------------------------ */

static cpu_stage *add_stage(ob_dev_plan *p, cpu_stage_kind kind, int32_t op)
{
    cpu_stage *s = &p->stages[p->n_stages++];
    *s = (cpu_stage){.kind = kind, .op = op, .norm_op = OB_NONE, .glu_op = OB_NONE};
    return s;
}

/* Append to the open stage of rows, or begin one. Profiles want every op by itself. */
static void add_row_op(ob_dev_plan *p, cpu_row_fn fn, int32_t op, ob_rows rows, bool fresh)
{
    cpu_stage *s = p->n_stages ? &p->stages[p->n_stages - 1] : NULL;
    if (!s || s->kind != STAGE_ROWS || s->rows != rows || fresh || p->dev->profile) {
        s = add_stage(p, STAGE_ROWS, op);
        s->rows = rows;
        s->first_row_op = p->n_row_ops;
    }
    p->row_ops[p->n_row_ops++] = (cpu_row_op){.fn = fn, .op = op};
    s->n_row_ops++;
}

static bool reads(const ob_op *op, ob_val v)
{
    for (int k = 0; k < OB_OP_MAX_IN; k++)
        if (op->in[k] == v) return true;
    return false;
}
static bool writes(const ob_op *op, ob_val v)
{
    for (int k = 0; k < OB_OP_MAX_OUT; k++)
        if (op->out[k] == v) return true;
    return false;
}

/* Op `i` is a norm whose only reader is the linear op after it, and the product does not write what
 * the norm reads: then each thread may normalise for itself while others already write. */
static bool norm_fuses(const ob_dev_plan *p, int32_t i)
{
    if (p->dev->profile || i + 1 >= p->prog.n_ops) return false;
    const ob_op *norm = &p->prog.ops[i], *lin = &p->prog.ops[i + 1];
    if (cpu_has_product(p, lin)) return false;
    if (norm->kind != OB_OP_RMS_NORM || lin->kind != OB_OP_LINEAR || lin->in[0] != norm->out[0]) return false;
    const int32_t cols = p->prog.vals[norm->out[0]].cols;
    if (norm->p.norm.group && norm->p.norm.group != cols) return false;
    if (norm->out[0] == norm->in[0] || writes(lin, norm->in[0]) || lin->in[1] == norm->out[0]) return false;
    if (p->prog.vals[norm->out[0]].output) return false;
    for (int32_t k = i + 2; k < p->prog.n_ops; k++) {
        if (reads(&p->prog.ops[k], norm->out[0])) return false;
        if (writes(&p->prog.ops[k], norm->out[0])) break;
    }
    return true;
}

/* Op `i` is gate and up, and the next op is their glu: a thread gates the columns it made. */
static bool glu_fuses(const ob_dev_plan *p, int32_t i, const ob_op *norm)
{
    if (p->dev->profile || i + 1 >= p->prog.n_ops) return false;
    const ob_op *lin = &p->prog.ops[i], *glu = &p->prog.ops[i + 1];
    if (cpu_has_product(p, lin)) return false;
    if (lin->p.linear.n_mat != 2 || glu->kind != OB_OP_GLU) return false;
    if (lin->out[0] == lin->out[1] || !writes(lin, glu->in[0]) || !writes(lin, glu->in[1])) return false;
    return glu->out[0] != lin->in[0] && (!norm || glu->out[0] != norm->in[0]);
}

static ob_status add_rope(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_rope_params *r = &op->p.rope;
    const float *factors = p->dev->level == OB_CPU_REF ? NULL : cpu_vector(p, op->w[0]);
    int32_t k = 0;
    for (; k < p->n_ropes; k++) {
        const ob_rope_params *o = p->ropes[k].p;
        /* Field by field: padding may differ. */
        if (o->pairing == r->pairing && o->head_dim == r->head_dim && o->n_rot == r->n_rot &&
            o->rot_off == r->rot_off && o->base == r->base && o->freq_scale == r->freq_scale &&
            o->ext_factor == r->ext_factor && o->attn_factor == r->attn_factor && o->beta_fast == r->beta_fast &&
            o->beta_slow == r->beta_slow && o->n_ctx_orig == r->n_ctx_orig && o->inverse == r->inverse &&
            o->axis_pairs[0] == r->axis_pairs[0] && o->axis_pairs[1] == r->axis_pairs[1] &&
            o->axis_pairs[2] == r->axis_pairs[2] && o->axis_restart == r->axis_restart &&
            p->ropes[k].factors == factors)
            break;
    }
    if (p->prog.vals[op->out[0]].rows != OB_ROWS_TOK)
        return ob_err_set(err, OB_E_UNSUPPORTED, "rope of layer %d is not over tokens", op->layer);
    if (k == p->n_ropes) p->ropes[p->n_ropes++] = (cpu_rope){.p = r, .factors = factors};
    p->rope_of[i] = k;
    return OB_OK;
}

static void add_ref_stages(ob_dev_plan *p, int32_t i)
{
    for (int phase = 0; phase < ob_ref_n_phases(p->prog.ops[i].kind); phase++)
        add_stage(p, STAGE_REF, i)->phase = phase;
}

/* The op's own stage function; NULL when it has none or the weights do not suit it. */
static cpu_own_fn own_kernel(const ob_dev_plan *p, const ob_op *op)
{
    switch (op->kind) {
    case OB_OP_MOE_GLU: return cpu_moe_fits(p, op) ? cpu_moe_run : NULL;
    case OB_OP_LINEAR_HEADS: return cpu_heads_fits(p, op) ? cpu_heads_run : NULL;
    case OB_OP_CONV1D:
        return op->p.conv.act != OB_ACT_GELU_ERF && op->p.conv.act != OB_ACT_GELU_QUICK ? cpu_conv_run : NULL;
    case OB_OP_GDN: return cpu_gdn_run;
    case OB_OP_CSA: return cpu_csa_run;
    case OB_OP_CCA: return cpu_cca_fits(p, op) ? cpu_cca_run : NULL;
    default: return NULL;
    }
}

/* A convolution's taps column by column, as its kernel wants them. */
static ob_status turn_taps(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_weight *w = &p->prog.weights[p->prog.ops[i].w[0]];
    const float *src = cpu_vector(p, p->prog.ops[i].w[0]);
    const int64_t n_tap = w->ne[0], cols = w->ne[1];
    float *dst = ob_arena_array(&p->arena, (size_t)(n_tap * cols), sizeof *dst);
    if (!dst) return no_memory(err);
    for (int64_t c = 0; c < cols; c++)
        for (int64_t k = 0; k < n_tap; k++) dst[k * cols + c] = src[c * n_tap + k];
    p->conv_taps[i] = dst;
    return OB_OK;
}

/* The grouped taps of CCA as [tap][head][in][out], from either layout of the file. */
static ob_status turn_grouped_taps(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_weight *w = &p->prog.weights[op->w[2]];
    const float *src = cpu_vector(p, op->w[2]);
    const int64_t hd = p->prog.vals[op->in[0]].cols / op->p.cca.n_head, n = w->ne[0] * w->ne[1] * w->ne[2] / 2;
    float *dst = ob_arena_array(&p->arena, (size_t)(2 * n), sizeof *dst);
    if (!dst) return no_memory(err);
    for (int64_t k = 0; k < 2; k++)
        for (int64_t c = 0; c < n / hd; c++)
            for (int64_t j = 0; j < hd; j++)
                dst[k * n + (c / hd * hd + j) * hd + c % hd] =
                    w->ne[0] == 2 ? src[(c * hd + j) * 2 + k] : src[k * n + c * hd + j];
    p->conv_taps[i] = dst;
    return OB_OK;
}

/* A linear op: what another unit multiplies, then what is multiplied here. */
static ob_status add_linear(ob_dev_plan *p, int32_t *at, ob_err *err)
{
    const ob_op *op = &p->prog.ops[*at], *norm = NULL;
    if (op->kind != OB_OP_LINEAR) { /* a norm that fuses */
        norm = op;
        op = &p->prog.ops[++*at];
    }
    bool here = false;
    for (int m = 0; m < op->p.linear.n_mat; m++) here |= p->weights[op->w[m]]->lin != NULL;
    if (cpu_has_product(p, op)) add_stage(p, STAGE_PRODUCT, *at);
    if (!here) return OB_OK;
    cpu_stage *s = add_stage(p, STAGE_LINEAR, *at);
    s->norm_op = norm ? *at - 1 : OB_NONE;
    if (glu_fuses(p, *at, norm)) s->glu_op = ++*at;
    s->lin = keep(p, NULL, 1, sizeof *s->lin);
    return s->lin ? OB_OK : no_memory(err);
}

static ob_status make_stages(ob_dev_plan *p, ob_err *err)
{
    const int32_t n = p->prog.n_ops;
    p->stages = keep(p, NULL, 2 * n + 1, sizeof *p->stages);
    p->row_ops = keep(p, NULL, 2 * n + 1, sizeof *p->row_ops);
    p->ropes = keep(p, NULL, n, sizeof *p->ropes);
    p->rope_of = keep(p, NULL, n, sizeof *p->rope_of);
    p->conv_taps = keep(p, NULL, n, sizeof *p->conv_taps);
    if (!p->conv_taps || !p->stages || !p->row_ops || !p->ropes || !p->rope_of) return no_memory(err);
    if (p->dev->level == OB_CPU_REF) {
        for (int32_t i = 0; i < n; i++) add_ref_stages(p, i);
        return OB_OK;
    }
    for (int32_t i = 0; i < n; i++)
        if (p->prog.ops[i].kind == OB_OP_ROPE) OB_TRY(add_rope(p, i, err));
    if (p->n_ropes) add_row_op(p, cpu_rope_tables, -1, OB_ROWS_TOK, true);
    for (int32_t i = 0; i < n; i++) {
        const ob_op *op = &p->prog.ops[i];
        const ob_rows rows = p->prog.vals[op->out[0]].rows;
        if (op->kind == OB_OP_ATTENTION) {
            add_row_op(p, cpu_cache_write, i, OB_ROWS_TOK, false);
            add_stage(p, STAGE_ATTEND, i);
        } else if (op->kind == OB_OP_LINEAR || norm_fuses(p, i)) {
            OB_TRY(add_linear(p, &i, err));
        } else if (own_kernel(p, op)) {
            add_stage(p, STAGE_OWN, i)->own = own_kernel(p, op);
            if (op->kind == OB_OP_CONV1D) OB_TRY(turn_taps(p, i, err));
            if (op->kind == OB_OP_CCA) OB_TRY(turn_grouped_taps(p, i, err));
        } else if (!cpu_row_kernel(op->kind)) {
            add_ref_stages(p, i);
        } else {
            /* These read rows that other threads may have written. */
            const bool fresh = op->kind == OB_OP_ROWS_OUT || op->kind == OB_OP_POOL || op->kind == OB_OP_MERGE;
            add_row_op(p, cpu_row_kernel(op->kind), i, rows, fresh);
        }
    }
    return OB_OK;
}

/* --- memory ------------------------------------------------------------------------------------ */

typedef struct life {
    int32_t first, last; /* stages */
    size_t off, size;
} life;

static void live_in(const ob_dev_plan *p, life *l, int32_t op, int32_t stage)
{
    const ob_op *o = &p->prog.ops[op];
    for (int k = 0; k < OB_OP_MAX_IN + OB_OP_MAX_OUT; k++) {
        const ob_val v = k < OB_OP_MAX_IN ? o->in[k] : o->out[k - OB_OP_MAX_IN];
        if (v == OB_NONE) continue;
        if (l[v].first < 0) l[v].first = stage;
        l[v].last = OB_MAX(l[v].last, p->prog.vals[v].output ? INT32_MAX : stage);
    }
}

/* Places by lifetimes in stages, not ops: within a stage threads are at different ops, so whatever a
 * stage touches must not overlap. First fit, in order of value numbers. */
static ob_status place_values(const ob_dev_plan *p, life *l, size_t *total, ob_err *err)
{
    const ob_program *g = &p->prog;
    for (int32_t v = 0; v < g->n_vals; v++) l[v].first = l[v].last = g->vals[v].input ? 0 : -1;
    for (int32_t s = 0; s < p->n_stages; s++) {
        const cpu_stage *st = &p->stages[s];
        for (int32_t r = 0; st->kind == STAGE_ROWS && r < st->n_row_ops; r++)
            if (p->row_ops[st->first_row_op + r].op >= 0) live_in(p, l, p->row_ops[st->first_row_op + r].op, s);
        if (st->kind == STAGE_ROWS) continue;
        if (st->norm_op != OB_NONE) live_in(p, l, st->norm_op, s);
        live_in(p, l, st->op, s);
        if (st->glu_op != OB_NONE) live_in(p, l, st->glu_op, s);
    }
    *total = 0;
    for (int32_t v = 0; v < g->n_vals; v++) {
        if (l[v].first < 0) continue;
        const size_t rows = (size_t)ob_value_rows(g, v, g->max_tok, g->max_out, g->max_seq);
        if (!ob_mul_size(rows, (size_t)g->vals[v].cols * sizeof(float), &l[v].size))
            return ob_err_set(err, OB_E_LIMIT, "the workspace is too large");
        l[v].size = ob_align_up(OB_MAX(l[v].size, (size_t)64), 64);
        for (int32_t k = 0; k < v;) {
            if (l[k].first >= 0 && l[k].first <= l[v].last && l[v].first <= l[k].last &&
                l[v].off < l[k].off + l[k].size && l[k].off < l[v].off + l[v].size) {
                l[v].off = l[k].off + l[k].size;
                k = 0;
            } else {
                k++;
            }
        }
        *total = OB_MAX(*total, l[v].off + l[v].size);
    }
    return OB_OK;
}

/* Sizes of everything in the plan's one block of memory; a second pass hands out the places. */
typedef struct sizes {
    size_t work, act, part, ref, rows, small, lin, floats;
    cpu_moe_sizes moe;
} sizes;

static void measure(ob_dev_plan *p, sizes *z)
{
    const ob_program *g = &p->prog;
    const int n_threads = p->dev->n_threads;
    z->ref = ob_ref_scratch_floats(g, p->max_ctx) * sizeof(float);
    for (int32_t s = 0; s < p->n_stages; s++) {
        const cpu_stage *st = &p->stages[s];
        const ob_op *op = &g->ops[OB_MAX(0, st->op)];
        if (st->kind == STAGE_ATTEND) {
            z->floats = OB_MAX(z->floats, cpu_attn_scratch_floats(&op->p.attn) * sizeof(float));
            z->part = OB_MAX(z->part, cpu_attn_part_floats(&op->p.attn, n_threads, p->max_ctx) * sizeof(float));
        } else if (st->kind == STAGE_OWN) {
            const int32_t rows = ob_value_rows(g, op->in[0], g->max_tok, g->max_out, g->max_seq);
            if (op->kind == OB_OP_MOE_GLU) cpu_moe_measure(p, op, rows, &z->moe);
            if (op->kind == OB_OP_GDN) z->floats = OB_MAX(z->floats, cpu_gdn_scratch_floats(op) * sizeof(float));
            if (op->kind == OB_OP_CCA) z->floats = OB_MAX(z->floats, cpu_cca_scratch_floats(p, op) * sizeof(float));
            if (op->kind == OB_OP_CSA)
                z->floats = OB_MAX(z->floats, cpu_csa_scratch_floats(op, p->max_ctx) * sizeof(float));
            if (op->kind == OB_OP_LINEAR_HEADS) cpu_heads_measure(p, op, rows, &z->moe);
        } else if (st->kind == STAGE_LINEAR) {
            const int32_t rows = ob_value_rows(g, op->in[0], g->max_tok, g->max_out, g->max_seq);
            size_t act, small, scratch;
            cpu_linear_prepare(p, op, st->lin, rows, &act, &small, &scratch);
            p->act_bytes = OB_MAX(p->act_bytes, act);
            z->act = OB_MAX(z->act, (size_t)ob_div_up(rows, st->lin->chunk_rows));
            z->small = OB_MAX(z->small, small);
            z->lin = OB_MAX(z->lin, scratch);
        } else if (st->kind == STAGE_PRODUCT) {
            cpu_product_measure(op, &z->moe);
        }
    }
    z->act *= p->act_bytes; /* chunks so far */
    z->rows = OB_MAX(z->small ? CPU_SMALL_FLOATS * sizeof(float) : 0, z->moe.rows);
    z->small = OB_MAX(z->small, z->moe.act);
    z->lin = OB_MAX(z->lin, z->moe.lin);
    p->part_floats = z->part / sizeof(float);
}

/* `base` NULL: only count. */
static size_t hand_out(ob_dev_plan *p, const sizes *z, uint8_t *base)
{
    size_t at = 0;
#define PLACE(where, n)                                                                           \
    do {                                                                                          \
        if (base) (where) = (void *)(base + at);                                                  \
        at += ob_align_up((n), 64) + 64;                                                          \
    } while (0)
    uint8_t *work = NULL;
    PLACE(work, z->work);
    (void)work;
    PLACE(p->act, z->act);
    PLACE(p->part, z->part);
    PLACE(p->moe_hid, z->moe.hid);
    PLACE(p->moe_part, z->moe.part);
    PLACE(p->moe_gu, z->moe.gu);
    PLACE(p->jobs, z->moe.jobs);
    for (int32_t i = 0; i < p->n_ropes; i++)
        PLACE(p->ropes[i].cs, (size_t)p->prog.max_tok * (size_t)ob_cpu_rope_floats(p->ropes[i].p) * sizeof(float));
    for (int i = 0; i < p->dev->n_threads; i++) {
        cpu_thread *t = &p->threads[i];
        PLACE(t->ref, z->ref);
        PLACE(t->rows, z->rows);
        PLACE(t->act, z->small);
        PLACE(t->lin, z->lin);
        PLACE(t->work, z->floats);
        PLACE(t->pairs, z->moe.pairs);
    }
#undef PLACE
    return at;
}

/* A block of at least n bytes: one that is there, else a new one. */
static ob_status block_take(cpu_dev *d, size_t n, cpu_block **out, ob_err *err)
{
    cpu_block *b = d->blocks;
    while (b && b->n_bytes < n) b = b->next;
    if (!b) {
        b = ob_calloc(1, sizeof *b);
        uint8_t *data = b ? ob_aligned_alloc(n >= 4u << 20 ? 2u << 20 : 64, n) : NULL;
        if (!data) {
            ob_free(b);
            return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a workspace of %zu bytes", n);
        }
        if (n >= 4u << 20) (void)madvise(data, n, MADV_HUGEPAGE); /* a refusal costs only speed */
        *b = (cpu_block){.data = data, .n_bytes = n, .next = d->blocks};
        d->blocks = b;
    }
    b->n_plans++;
    *out = b;
    return OB_OK;
}

static void block_give(cpu_dev *d, cpu_block *b)
{
    if (!b || --b->n_plans) return;
    cpu_block **at = &d->blocks;
    while (*at != b) at = &(*at)->next;
    *at = b->next;
    ob_free(b->data);
    ob_free(b);
}

static ob_status set_memory(ob_dev_plan *p, ob_err *err)
{
    sizes z = {0};
    life *l = keep(p, NULL, p->prog.n_vals, sizeof *l);
    p->vals = keep(p, NULL, p->prog.n_vals, sizeof *p->vals);
    p->threads = keep(p, NULL, p->dev->n_threads, sizeof *p->threads);
    p->row_seq = keep(p, NULL, p->prog.max_tok, sizeof *p->row_seq);
    p->row_at = keep(p, NULL, p->prog.max_tok, sizeof *p->row_at);
    p->coarse_out = keep(p, NULL, p->prog.max_out, sizeof *p->coarse_out);
    if (!l || !p->vals || !p->threads || !p->row_seq || !p->row_at || !p->coarse_out) return no_memory(err);
    OB_TRY(place_values(p, l, &z.work, err));
    measure(p, &z);
    OB_TRY(block_take(p->dev, hand_out(p, &z, NULL), &p->block, err));
    hand_out(p, &z, p->block->data);
    for (int32_t v = 0; v < p->prog.n_vals; v++)
        if (l[v].first >= 0) p->vals[v] = (float *)(void *)(p->block->data + l[v].off);
    return OB_OK;
}

ob_status cpu_plan_new(ob_dev *d, const ob_program *prog, const ob_plan_bindings *b, ob_dev_plan **out, ob_err *err)
{
    *out = NULL;
    ob_status s = OB_OK;
    char why[128];
    if (prog->max_tok < 1 || prog->max_out < 0 || prog->max_seq < 1 || prog->max_seq > OB_MAX_SEQS)
        return ob_err_set(err, OB_E_INVALID, "a program must be planned before it is given to a device");
    for (int32_t i = 0; i < prog->n_ops; i++) {
        OB_TRY(ob_op_check(prog, i, err));
        if (!cpu_supports(d, prog, i, why, sizeof why)) return ob_err_set(err, OB_E_UNSUPPORTED, "cpu: %s", why);
    }
    ob_dev_plan *p = ob_calloc(1, sizeof *p);
    if (!p) return no_memory(err);
    p->dev = (cpu_dev *)d;
    ob_arena_init(&p->arena, (size_t)256 << 20);
    OB_GOTO(copy_program(p, prog, err));
    OB_GOTO(bind(p, b, err));
    OB_GOTO(make_stages(p, err));
    OB_GOTO(set_memory(p, err));
    *out = p;
out:
    if (s != OB_OK) cpu_plan_free(d, p);
    return s;
}

void cpu_plan_free(ob_dev *d, ob_dev_plan *p)
{
    if (!p) return;
    block_give((cpu_dev *)d, p->block);
    ob_arena_deinit(&p->arena);
    ob_free(p);
}
