/* Rope and attention: the tables of angles, how queries and the cache are cut. */
#include "dev/vulkan/vk_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"

enum {
    TILE = 32,
    ATTN_WG = 128,
    MAX_QUERIES = 32,
    MAX_HEADS = 16,
    ROPE_WG = 64,
    WRITE_WG = 64,
    HEADS_WG = 64,
    HEADS_SUBS = 4, /* heads of a workgroup, a subgroup each */
    SPLIT_TOK = 16,
    MATRIX_QUERIES = 64,   /* of a workgroup, by matrices */
    MATRIX_LEAST_TOK = 48, /* fewer leave most of its rows empty */
    MATRIX_MAX_DIM = 256,
    SINGLES_TOK = 64, /* steps of up to so many tokens may be one token of each of many sequences */
    SPLIT_HEADS = 4, /* few, for more workgroups; they read the same keys from the device's cache */
};

static ob_status no_memory(ob_err *err)
{
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
}

/* --- rope ------------------------------------------------------------------------------------- */

enum { LOW_POS = 64 };

/* Dimension whose wavelength makes `n_turns` turns over the original context (YaRN, eq. 17). */
static double yarn_dim(const ob_rope_params *p, double n_turns)
{
    return p->n_rot * log(p->n_ctx_orig / (n_turns * 6.283185307179586)) /
           (2.0 * log((double)p->base));
}

/* Angle per position of pair i: ops.h has the formula. */
static double angle(const ob_rope_params *p, const float *factors, int32_t i)
{
    int32_t axis = 0, in_axis = i;
    if (p->axis_pairs[0] > 0)
        for (; axis < 2 && in_axis >= p->axis_pairs[axis]; axis++) in_axis -= p->axis_pairs[axis];
    double extrap = pow((double)p->base, p->axis_restart ? -(double)in_axis / p->axis_pairs[axis] : -2.0 * i / p->n_rot);
    if (factors) extrap /= (double)factors[i];
    double theta = extrap * (double)p->freq_scale;
    if (p->ext_factor != 0) {
        const double low = OB_MAX(0.0, floor(yarn_dim(p, (double)p->beta_fast)));
        const double high = OB_MIN(p->n_rot - 1.0, ceil(yarn_dim(p, (double)p->beta_slow)));
        const double ramp = OB_MIN(1.0, OB_MAX(0.0, (i - low) / OB_MAX(0.001, high - low)));
        const double mix = (1.0 - ramp) * (double)p->ext_factor;
        theta = theta * (1.0 - mix) + extrap * mix;
    }
    return p->inverse ? -theta : theta;
}

static ob_status fill_table(ob_dev_plan *p, vk_rope_table *t, ob_err *err)
{
    const int32_t half = t->p->n_rot / 2;
    const size_t n = (size_t)(t->n_high + LOW_POS) * (size_t)half * 2;
    float *cs = ob_reallocarray(NULL, n, sizeof *cs);
    if (!cs) return no_memory(err);
    const float *factors = t->factors ? t->factors->vec : NULL;
    float *at = cs;
    for (int32_t part = 0; part < 2; part++)
        for (int32_t j = 0; j < (part ? LOW_POS : t->n_high); j++)
            for (int32_t i = 0; i < half; i++) {
                const double a = angle(t->p, factors, i) * (part ? j : (double)j * LOW_POS);
                const double m = part ? (double)t->p->attn_factor : 1.0;
                *at++ = (float)(cos(a) * m);
                *at++ = (float)(sin(a) * m);
            }
    ob_status s = vk_mem_new(p->dev, VK_MEM_DEVICE, n * sizeof *cs, &t->mem, err);
    if (s == OB_OK) s = vk_upload(p->dev, &t->mem, 0, cs, n * sizeof *cs, err);
    ob_free(cs);
    t->high = t->mem.addr;
    t->low = t->mem.addr + (uint64_t)t->n_high * (uint64_t)half * 8;
    return s;
}

static bool same_rope(const ob_rope_params *a, const ob_rope_params *b)
{
    /* Field by field: padding may differ. The pairing and the place within the head are not in the
     * table. */
    return a->n_rot == b->n_rot && a->base == b->base && a->freq_scale == b->freq_scale &&
           a->ext_factor == b->ext_factor && a->attn_factor == b->attn_factor &&
           a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow &&
           a->n_ctx_orig == b->n_ctx_orig && a->inverse == b->inverse && a->axis_restart == b->axis_restart &&
           !memcmp(a->axis_pairs, b->axis_pairs, sizeof a->axis_pairs);
}

ob_status vk_rope_table_get(ob_dev_plan *p, const ob_rope_params *r, const ob_dev_weight *factors,
                            const vk_rope_table **out, ob_err *err)
{
    for (int32_t k = 0; k < p->n_ropes; k++)
        if (same_rope(p->ropes[k].p, r) && p->ropes[k].factors == factors) {
            *out = &p->ropes[k];
            return OB_OK;
        }
    vk_rope_table *t = &p->ropes[p->n_ropes++];
    *t = (vk_rope_table){.p = r,
                         .factors = factors,
                         .n_high = (int32_t)ob_div_up(OB_MAX(p->max_ctx, 1), LOW_POS)};
    *out = t;
    return fill_table(p, t, err);
}

ob_status vk_rope_table_of(ob_dev_plan *p, const ob_op *op, const vk_rope_table **out, ob_err *err)
{
    return vk_rope_table_get(p, &op->p.rope, op->w[0] != OB_NONE ? p->weights[op->w[0]] : NULL, out, err);
}

ob_status vk_rope_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_rope_params *r = &op->p.rope;
    const int32_t cols = p->prog.vals[op->out[0]].cols;
    const vk_rope_table *t;
    const vk_pipe *pipe;
    OB_TRY(vk_rope_table_of(p, op, &t, err));
    const bool axes = r->axis_pairs[0] > 0;
    OB_TRY(vk_kernel_get(p->dev, "rope", 3, (uint32_t[]){ROPE_WG, r->pairing == OB_ROPE_NEOX, axes},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    vk_reads(s, vk_value(p, op->in[0]), vk_value_bytes(p, op->in[0]));
    vk_writes(s, vk_value(p, op->out[0]), vk_value_bytes(p, op->out[0]));
    s->push.a[1] = vk_value(p, op->in[0]);
    s->push.a[2] = vk_value(p, op->out[0]);
    s->push.a[3] = t->high;
    s->push.a[4] = t->low;
    s->push.a[5] = p->params.addr + p->pos_off;
    s->push.u[0] = (uint32_t)cols;
    s->push.u[1] = (uint32_t)r->head_dim;
    s->push.u[2] = (uint32_t)r->n_rot;
    s->push.u[3] = (uint32_t)r->rot_off;
    s->push.u[4] = (uint32_t)t->n_high;
    if (axes) {
        s->push.a[6] = p->params.addr + p->pos_h_off;
        s->push.a[7] = p->params.addr + p->pos_w_off;
        s->push.u[5] = (uint32_t)r->axis_pairs[0];
        s->push.u[6] = (uint32_t)(r->axis_pairs[0] + r->axis_pairs[1]);
    }
    s->grid[0] =
        (uint32_t)ob_div_up((int64_t)cols / r->head_dim * (r->head_dim - r->n_rot / 2), ROPE_WG);
    s->grid[1] = (uint32_t)p->prog.max_tok;
    return OB_OK;
}

/* --- attention -------------------------------------------------------------------------------- */

typedef struct cut {
    uint32_t hb, bt, dt;
} cut;

/* How many heads and tokens a workgroup takes; hb 0: not even one head fits. */
static cut cut_of(const vk_dev *d, const ob_attn_params *a, bool split)
{
    cut c = {0};
    /* the query, its scores, two reductions over a quarter of them, three numbers: see attn.comp */
    const uint32_t per_query = (uint32_t)(ob_div_up(a->k_dim, 8) * 32 + TILE * 4 + TILE * 2 + 12);
    const uint32_t most = OB_MIN((d->phys->max_shared_bytes - 3072) / per_query, (uint32_t)(split ? SPLIT_HEADS : MAX_QUERIES));
    const uint32_t group = (uint32_t)(a->n_head / a->n_head_kv);
    for (uint32_t h = 1; h <= OB_MIN(group, OB_MIN(most, (uint32_t)MAX_HEADS)); h++)
        if (group % h == 0) c.hb = h;
    if (!c.hb) return c;
    c.bt = split ? 1 : most / c.hb;
    c.dt = 1;
    while (c.dt * 2 < (uint32_t)a->v_dim && c.dt < ATTN_WG) c.dt *= 2;
    return c;
}

bool vk_attn_fits(const vk_dev *d, const ob_attn_params *a)
{
    return cut_of(d, a, true).hb > 0;
}

uint32_t vk_attn_segment(int32_t max_ctx)
{
    return max_ctx <= 8192 ? 32 : max_ctx <= 16384 ? 64 : max_ctx <= 32768 ? 128 : max_ctx <= 65536 ? 256 : 512;
}

/* Few tokens: their caches are cut into segments so that the whole device has work. */
static bool is_split(const ob_dev_plan *p)
{
    return p->prog.max_tok <= SPLIT_TOK;
}

/* More tokens may still be single ones. */
static bool has_singles(const ob_dev_plan *p)
{
    return !is_split(p) && p->prog.max_tok <= SINGLES_TOK && p->prog.max_seq > 1;
}

static uint32_t n_segments(const ob_dev_plan *p)
{
    return (uint32_t)ob_div_up(p->max_ctx, vk_attn_segment(p->max_ctx));
}

uint64_t vk_attn_scratch(const ob_dev_plan *p, const ob_op *op)
{
    const ob_attn_params *a = &op->p.attn;
    if (vk_attn_one_fits(p, op)) return is_split(p) || has_singles(p) ? vk_attn_one_scratch(p, op) : 0;
    if (!is_split(p)) return 0;
    return (uint64_t)p->prog.max_tok * (uint64_t)a->n_head * n_segments(p) *
           (ob_align_up((uint64_t)a->v_dim, 4) + 4) * 4;
}

uint64_t vk_attn_counters(const ob_dev_plan *p, const ob_op *op)
{
    if (vk_attn_one_fits(p, op)) return is_split(p) || has_singles(p) ? vk_attn_one_counters(p, op) : 0;
    const cut c = cut_of(p->dev, &op->p.attn, true);
    return is_split(p) ? (uint64_t)p->prog.max_tok * (uint64_t)(op->p.attn.n_head / (int32_t)c.hb) * 4 : 0;
}

/* The planes of a cache; a cache whose values lie inside its keys has one. */
static int planes_of(const ob_dev_plan *p, const ob_op *op, const vk_mem *planes[2])
{
    const int32_t c = op->p.attn.cache;
    planes[0] = p->cache_k[c];
    planes[1] = op->in[2] == OB_NONE ? p->cache_k[c] : p->cache_v[c];
    return op->in[2] == OB_NONE ? 1 : 2;
}

static ob_status add_write(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_attn_params *a = &op->p.attn;
    const vk_mem *planes[2];
    const int n = planes_of(p, op, planes);
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "kv_write", 3, (uint32_t[]){WRITE_WG, p->k_type, p->v_type}, &pipe,
                         err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    for (int k = 0; k < n; k++) {
        vk_reads(s, vk_value(p, op->in[1 + k]), vk_value_bytes(p, op->in[1 + k]));
        vk_writes(s, planes[k]->addr, planes[k]->size);
        s->push.a[1 + k] = vk_value(p, op->in[1 + k]);
        s->push.a[3 + k] = planes[k]->addr;
    }
    s->push.a[5] = p->params.addr + p->info_off;
    s->push.a[6] = p->params.addr + p->table_off;
    s->push.u[0] = (uint32_t)a->n_head_kv;
    s->push.u[1] = (uint32_t)a->k_dim;
    s->push.u[2] = (uint32_t)a->v_dim;
    s->push.u[3] = (uint32_t)p->page_tok;
    s->push.u[4] = (uint32_t)p->max_pages;
    s->grid[0] =
        (uint32_t)ob_div_up(a->n_head_kv * ob_div_up(OB_MAX(a->k_dim, a->v_dim), 32), WRITE_WG);
    s->grid[1] = (uint32_t)p->prog.max_tok;
    s->grid[2] = (uint32_t)n;
    return OB_OK;
}

static bool same_grid(const vk_indirect *a, const vk_indirect *b)
{
    return a->when == b->when && a->x == b->x && a->y == b->y && a->z == b->z && a->seg == b->seg &&
           (!a->a || !b->a ? a->a == b->a : a->a->window == b->a->window && a->a->causal == b->a->causal);
}

ob_status vk_attn_grid(ob_dev_plan *p, vk_dispatch *s, const vk_indirect *like, ob_err *err)
{
    for (s->indirect = 0; s->indirect < p->n_indirect; s->indirect++)
        if (same_grid(&p->indirect[s->indirect], like)) return OB_OK;
    if (p->n_indirect == VK_MAX_INDIRECT)
        return ob_err_set(err, OB_E_UNSUPPORTED,
                          "vulkan: more than %d shapes of attention in a model", VK_MAX_INDIRECT);
    p->indirect[p->n_indirect++] = *like;
    return OB_OK;
}

/* Parts of a split attention, the counters of its finished segments. */
static ob_status add_split(ob_dev_plan *p, int32_t i, vk_dispatch *s, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const VkDeviceAddress part = p->work.addr + p->part_off, count = p->counts.addr;
    vk_writes(s, part, vk_attn_scratch(p, op));
    vk_writes(s, count, vk_attn_counters(p, op));
    s->push.a[7] = part;
    vk_push_addr(&s->push, 10, count);
    return vk_attn_grid(p, s, &(vk_indirect){.y = s->grid[1], .seg = vk_attn_segment(p->max_ctx)}, err);
}

/* --- by matrices -------------------------------------------------------------------------------- */

/* How attn_cm.comp does it: heads of a workgroup; 0: not at all. */
static uint32_t matrix_heads(const vk_phys *f, const ob_op *op, ob_type k_type, ob_type v_type, int32_t page_tok)
{
    const ob_attn_params *a = &op->p.attn;
    const uint32_t group = (uint32_t)(a->n_head / a->n_head_kv);
    const uint64_t k = (uint64_t)a->k_dim / 8 + 1, v = (uint64_t)a->v_dim / 8 + 1; /* rows in shared memory */
    const uint64_t shared = 16 * (OB_MAX(MATRIX_QUERIES * k, TILE * (k + v)) + MATRIX_QUERIES * (TILE / 4 + 1));
    uint32_t hb = 0;
    if (k_type != OB_F16 || v_type != OB_F16 || page_tok % TILE || op->in[2] == OB_NONE || a->k_dim % 16 || a->v_dim % 16 ||
        a->k_dim > MATRIX_MAX_DIM || a->v_dim > MATRIX_MAX_DIM || shared > f->max_shared_bytes)
        return 0;
    for (uint32_t h = 1; h <= OB_MIN(group, (uint32_t)MATRIX_QUERIES); h++)
        if (group % h == 0 && MATRIX_QUERIES % h == 0) hb = h;
    return hb;
}

bool vk_attn_matrices(const vk_dev *d, const ob_plan_bindings *b, const ob_op *op, int32_t max_tok)
{
    return (d->fast & VK_FAST_ATTN) && max_tok >= MATRIX_LEAST_TOK && matrix_heads(d->phys, op, b->k_type, b->v_type, b->page_tok) != 0;
}

static ob_status add_matrices(ob_dev_plan *p, int32_t i, uint32_t hb, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_attn_params *a = &op->p.attn;
    const uint32_t group = (uint32_t)(a->n_head / a->n_head_kv);
    const vk_mem *planes[2] = {p->cache_k[a->cache], p->cache_v[a->cache]};
    bool only;
    const vk_form wanted = vk_plain_form(p, op->out[0], i, &only), form = wanted == VK_FORM_F16 ? VK_FORM_F16 : VK_FORM_F32;
    only &= form == wanted;
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "attn_cm", 8,
                         (uint32_t[]){2 * MATRIX_QUERIES, (uint32_t)a->k_dim, (uint32_t)a->v_dim, group, hb, MATRIX_QUERIES,
                                      form, !only},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    vk_reads(s, vk_value(p, op->in[0]), vk_value_bytes(p, op->in[0]));
    for (int k = 0; k < 2; k++) vk_reads(s, planes[k]->addr, planes[k]->size);
    if (!only) vk_writes(s, vk_value(p, op->out[0]), vk_value_bytes(p, op->out[0]));
    s->push.a[1] = vk_value(p, op->in[0]);
    s->push.a[2] = planes[0]->addr;
    s->push.a[3] = planes[1]->addr;
    s->push.a[4] = vk_value(p, op->out[0]);
    s->push.a[5] = p->params.addr + p->info_off;
    s->push.a[6] = p->params.addr + p->table_off;
    if (form != VK_FORM_F32) {
        VkDeviceAddress to[2];
        vk_write_form(p, s, op->out[0], form, to);
        s->push.a[7] = to[0];
    }
    const uint32_t words[] = {(uint32_t)a->n_head_kv, (uint32_t)p->page_tok, (uint32_t)p->max_pages, (uint32_t)a->window,
                              a->causal, ob_f32_bits(a->scale), ob_f32_bits(a->softcap)};
    memcpy(s->push.u, words, sizeof words);
    s->grid[0] = (uint32_t)ob_div_up(p->prog.max_tok, MATRIX_QUERIES / hb);
    s->grid[1] = (uint32_t)a->n_head / hb;
    s->cut = 1;
    return OB_OK;
}

/* Attention over what is in the cache by then. */
static ob_status add_attention(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_attn_params *a = &op->p.attn;
    const bool split = is_split(p);
    if ((p->fast & VK_FAST_ATTN) && p->prog.max_tok >= MATRIX_LEAST_TOK) {
        const uint32_t hb = matrix_heads(p->dev->phys, op, p->k_type, p->v_type, p->page_tok);
        if (hb) return add_matrices(p, i, hb, err);
    }
    const cut c = cut_of(p->dev, a, split);
    const uint32_t group = (uint32_t)(a->n_head / a->n_head_kv),
                   y = (uint32_t)a->n_head_kv * (group / c.hb);
    const vk_mem *planes[2];
    const bool own_values = planes_of(p, op, planes) == 2;
    const vk_pipe *pipe;
    bool only;
    const vk_form wanted = vk_plain_form(p, op->out[0], i, &only);
    const bool can = wanted == VK_FORM_F16 ? a->v_dim % 4 == 0 : split && a->v_dim % 32 == 0;
    const vk_form form = can ? wanted : VK_FORM_F32;
    OB_TRY(vk_kernel_get(p->dev, "attn", 12,
                         (uint32_t[]){ATTN_WG, (uint32_t)a->k_dim, (uint32_t)a->v_dim, group, c.hb, c.bt, p->k_type,
                                      own_values ? p->v_type : p->k_type, split, c.dt, form,
                                      (uint32_t)(own_values ? a->v_dim : a->k_dim)},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    vk_reads(s, vk_value(p, op->in[0]), vk_value_bytes(p, op->in[0]));
    for (int k = 0; k < 2; k++) vk_reads(s, planes[k]->addr, planes[k]->size);
    vk_writes(s, vk_value(p, op->out[0]), vk_value_bytes(p, op->out[0]));
    s->push.a[1] = vk_value(p, op->in[0]);
    s->push.a[2] = planes[0]->addr;
    s->push.a[3] = planes[1]->addr;
    s->push.a[4] = vk_value(p, op->out[0]);
    s->push.a[5] = p->params.addr + p->info_off;
    s->push.a[6] = p->params.addr + p->table_off;
    const uint32_t words[] = {(uint32_t)a->n_head_kv,
                              (uint32_t)p->page_tok,
                              (uint32_t)p->max_pages,
                              (uint32_t)a->window,
                              a->causal,
                              vk_attn_segment(p->max_ctx),
                              n_segments(p),
                              ob_f32_bits(a->scale),
                              ob_f32_bits(a->softcap),
                              a->blocks == OB_BLOCKS_NONE
                                  ? 0
                                  : 2 * (uint32_t)p->prog.max_tok + (a->blocks == OB_BLOCKS_ONLY)};
    memcpy(s->push.u, words, sizeof words);
    s->grid[0] = (uint32_t)ob_div_up(p->prog.max_tok, c.bt);
    s->grid[1] = y;
    s->cut = split ? 0 : 1;
    if (form != VK_FORM_F32) vk_write_form(p, s, op->out[0], form, &s->push.u[12]);
    return split ? add_split(p, i, s, err) : OB_OK;
}

/* Attention by the kernel for it; where steps may be of either kind, by both kernels, of which one has nothing
 * to do. */
static ob_status add_cached(ob_dev_plan *p, int32_t i, ob_err *err)
{
    if (!vk_attn_one_fits(p, &p->prog.ops[i])) return add_attention(p, i, err);
    if (is_split(p)) return vk_attn_one_add(p, i, NULL, VK_ALWAYS, err);
    const int form = p->form_last;
    if (has_singles(p)) OB_TRY(vk_attn_one_add(p, i, NULL, VK_SINGLES, err));
    p->form_last = form; /* both write to one place */
    const int32_t first = p->n_steps;
    OB_TRY(add_attention(p, i, err));
    for (int32_t k = first; has_singles(p) && k < p->n_steps; k++) {
        vk_dispatch *s = &p->steps[k];
        OB_TRY(vk_attn_grid(p, s, &(vk_indirect){VK_SEVERAL, s->grid[0], s->grid[1], s->grid[2], 0, NULL}, err));
    }
    return OB_OK;
}

ob_status vk_attn_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    OB_TRY(add_write(p, i, err));
    return add_cached(p, i, err);
}

/* --- from the products to the cache in one ------------------------------------------------------- */

/* Nothing but ops of the pattern, which end with op `last`, reads v. */
static bool is_inner(const ob_dev_plan *p, ob_val v, int32_t last)
{
    return !p->prog.vals[v].output && p->prog.vals[v].last <= last;
}

static bool same_rotation(const ob_op *a, const ob_op *b)
{
    return a->w[0] == b->w[0] && a->p.rope.pairing == b->p.rope.pairing && a->p.rope.head_dim == b->p.rope.head_dim &&
           a->p.rope.rot_off == b->p.rope.rot_off && same_rope(&a->p.rope, &b->p.rope);
}

static bool match_heads(const ob_dev_plan *p, int32_t i, vk_heads *h)
{
    const ob_op *op = &p->prog.ops[i];
    *h = (vk_heads){.n_ops = op->kind == OB_OP_RMS_NORM ? 5 : 3};
    if (i + h->n_ops > p->prog.n_ops) return false;
    if (h->n_ops == 5)
        for (int k = 0; k < 2; k++) h->norm[k] = op++;
    for (int k = 0; k < 2; k++) h->rope[k] = op++;
    h->attn = op;
    const int32_t last = i + h->n_ops - 1, dim = h->attn->p.attn.k_dim;
    if (h->attn->kind != OB_OP_ATTENTION || h->attn->in[2] == OB_NONE) return false;
    for (int k = 0; k < 2; k++) {
        const ob_op *rope = h->rope[k], *norm = h->norm[k];
        if (rope->kind != OB_OP_ROPE || rope->p.rope.axis_pairs[0] || rope->p.rope.head_dim != dim || rope->out[0] != h->attn->in[k]) return false;
        h->in[k] = rope->in[0];
        if (!is_inner(p, rope->out[0], last)) return false;
        if (!norm) continue;
        if (norm->kind != OB_OP_RMS_NORM || norm->p.norm.group != dim || norm->w[0] == OB_NONE || norm->out[0] != rope->in[0] ||
            norm->p.norm.eps != h->norm[0]->p.norm.eps || !is_inner(p, norm->out[0], last))
            return false;
        h->in[k] = norm->in[0];
    }
    const ob_val in[3] = {h->in[0], h->in[1], h->attn->in[2]};
    for (int k = 0; k < 3; k++)
        if (vk_collide(p, h->attn->in[0], in[k])) return false;
    return same_rotation(h->rope[0], h->rope[1]);
}

static ob_status add_heads(ob_dev_plan *p, int32_t i, const vk_heads *h, ob_err *err)
{
    const ob_attn_params *a = &h->attn->p.attn;
    const ob_rope_params *r = &h->rope[0]->p.rope;
    const vk_mem *cache[2] = {p->cache_k[a->cache], p->cache_v[a->cache]};
    const ob_val in[3] = {h->in[0], h->in[1], h->attn->in[2]}, q_out = h->attn->in[0];
    const vk_rope_table *t;
    const vk_pipe *pipe;
    OB_TRY(vk_rope_table_of(p, h->rope[0], &t, err));
    const bool sub = (p->fast & VK_FAST_SUBGROUP) != 0;
    const uint32_t threads = sub ? p->dev->sg : HEADS_WG, per_group = sub ? HEADS_SUBS : 1;
    OB_TRY(vk_kernel_get(p->dev, sub ? "heads" : "heads_plain", 13,
                         (uint32_t[]){threads * per_group, p->k_type, p->v_type, (uint32_t)a->k_dim, (uint32_t)a->v_dim,
                                      (uint32_t)r->n_rot, (uint32_t)r->rot_off, r->pairing == OB_ROPE_NEOX,
                                      h->norm[0] != NULL, h->norm[1] != NULL, (uint32_t)a->n_head, (uint32_t)a->n_head_kv,
                                      threads},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    for (int k = 0; k < 3; k++) {
        vk_reads(s, vk_value(p, in[k]), vk_value_bytes(p, in[k]));
        s->push.a[1 + k] = vk_value(p, in[k]);
    }
    s->push.a[4] = vk_value(p, q_out);
    vk_writes(s, vk_value(p, q_out), vk_value_bytes(p, q_out));
    for (int k = 0; k < 2; k++) {
        if (h->norm[k]) s->push.a[5 + k] = p->weights[h->norm[k]->w[0]]->w;
        vk_writes(s, cache[k]->addr, cache[k]->size);
    }
    s->push.a[7] = cache[0]->addr;
    const VkDeviceAddress more[] = {cache[1]->addr, t->high, t->low, p->params.addr + p->info_off,
                                    p->params.addr + p->table_off};
    for (int k = 0; k < 5; k++) vk_push_addr(&s->push, 2 * k, more[k]);
    s->push.u[10] = (uint32_t)p->page_tok;
    s->push.u[11] = (uint32_t)p->max_pages;
    s->push.u[12] = (uint32_t)t->n_high;
    s->push.u[13] = ob_f32_bits(h->norm[0] ? h->norm[0]->p.norm.eps : 0);
    s->grid[0] = (uint32_t)ob_div_up(a->n_head + 2 * a->n_head_kv, per_group);
    s->grid[1] = (uint32_t)p->prog.max_tok;
    return OB_OK;
}

/* Attention may read what its result overwrites op by op only where it writes no f32 result. */
static bool all_in_one(const ob_dev_plan *p, const vk_heads *h, int32_t attn)
{
    const ob_val y = h->attn->out[0], in[3] = {h->in[0], h->in[1], h->attn->in[2]};
    const bool hidden = vk_only_form(p, y, attn, vk_wanted_form(p, y, attn, VK_FORM_ANY));
    for (int k = 0; k < 3 && !hidden; k++)
        if (vk_collide(p, y, in[k])) return false;
    return h->attn->p.attn.causal;
}

ob_status vk_heads_add(ob_dev_plan *p, int32_t i, int32_t *n_ops, ob_err *err)
{
    vk_heads h;
    *n_ops = 0;
    if (vk_kernel_off(p->dev, "heads") || !match_heads(p, i, &h)) return OB_OK;
    *n_ops = h.n_ops;
    const int32_t attn = i + h.n_ops - 1;
    if (is_split(p) && vk_attn_one_fits(p, h.attn) && all_in_one(p, &h, attn)) return vk_attn_one_add(p, attn, &h, VK_ALWAYS, err);
    OB_TRY(add_heads(p, i, &h, err));
    return add_cached(p, attn, err);
}
