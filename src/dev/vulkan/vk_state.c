/* Ops that carry state from token to token: convolution over time, the gated delta net, ZAYA's convolved attention.
 *
 * Few tokens are walked one by one with the state in registers. More of them go through the delta rule in
 * chunks (shaders/gdn_chunks.glsl): first everything that does not depend on the state, for all chunks at
 * once, then one walk over chunks instead of tokens.
 */
#include "dev/vulkan/vk_int.h"

#include <stdio.h>

#include "base/math.h"

enum {
    CONV_WG = 128,
    WALK_TOK = 64, /* most tokens of a plan that walks */
    GDN_BV = 32,   /* columns of a state that a workgroup takes */
    GDN_MAX_RG = 8,
    GDN_MAX_ROWS = 64, /* of a state that a thread holds */
    CCA_WG = 128,
    CCA_ROWS = 8,      /* of a workgroup, where a plan has many */
    FEW_TOK = 16,
};

static ob_status no_memory(ob_err *err)
{
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
}

static void read_values(const ob_dev_plan *p, const ob_op *op, vk_dispatch *s, int n)
{
    for (int k = 0; k < n; k++) s->push.a[1 + k] = vk_reads_value(p, s, op->in[k]);
}

static void read_state(const ob_dev_plan *p, vk_dispatch *s, int32_t state)
{
    vk_reads(s, p->states[state]->addr, p->states[state]->size);
}
static void write_state(const ob_dev_plan *p, vk_dispatch *s, int32_t state)
{
    vk_writes(s, p->states[state]->addr, p->states[state]->size);
}

/* --- convolution -------------------------------------------------------------------------------- */

enum { CONV_WALK, CONV_ROWS, CONV_KEEP };

static ob_status add_conv(ob_dev_plan *p, int32_t i, int mode, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const int32_t state = op->p.conv.state, cols = p->prog.vals[op->out[0]].cols;
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "conv1d", 5,
                         (uint32_t[]){CONV_WG, (uint32_t)p->prog.weights[op->w[0]].ne[0], op->p.conv.act,
                                      op->w[1] != OB_NONE, (uint32_t)mode},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    read_values(p, op, s, 1);
    s->push.a[2] = vk_value(p, op->out[0]);
    if (mode != CONV_KEEP) (void)vk_writes_value(p, s, op->out[0]);
    read_state(p, s, state);
    if (mode != CONV_ROWS) write_state(p, s, state);
    s->push.a[3] = p->weights[op->w[0]]->w;
    if (op->w[1] != OB_NONE) s->push.a[4] = p->weights[op->w[1]]->w;
    s->push.a[5] = p->states[state]->addr;
    s->push.a[6] = p->params.addr + p->seq_off;
    s->push.a[7] = p->params.addr + p->info_off;
    s->push.u[0] = (uint32_t)cols;
    s->grid[0] = (uint32_t)ob_div_up(cols, CONV_WG);
    s->grid[1] = (uint32_t)(mode == CONV_ROWS ? p->prog.max_tok : p->prog.max_seq);
    return OB_OK;
}

/* The output may not be the input, because later rows still look at it. */
static ob_status conv_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    if (p->prog.max_tok <= WALK_TOK) return add_conv(p, i, CONV_WALK, err);
    OB_TRY(add_conv(p, i, CONV_ROWS, err));
    return add_conv(p, i, CONV_KEEP, err);
}

/* --- delta net ---------------------------------------------------------------------------------- */

/* Tokens of a chunk; 0: this device or shape is walked token by token. */
static uint32_t chunk_of(const vk_dev *d, const ob_gdn_params *g)
{
    const uint32_t dk = (uint32_t)g->k_dim;
    for (uint32_t c = 32; c >= 16 && dk % 4 == 0; c /= 2) {
        const uint32_t prep = c * (dk + 4) * 4 + c * c * 4 + c * 8 * 8 + c * 16, scan = (dk + c) * GDN_BV * 4;
        if (OB_MAX(prep, scan) <= d->phys->max_shared_bytes && c * 8 <= d->phys->max_invocations) return c;
    }
    return 0;
}

static bool in_chunks(const ob_dev_plan *p, const ob_op *op)
{
    return p->prog.max_tok > WALK_TOK && chunk_of(p->dev, &op->p.gdn);
}

static uint64_t chunk_bytes(const ob_gdn_params *g, uint32_t c)
{
    const uint64_t dv = ob_align_up((size_t)g->v_dim, 4);
    return ((uint64_t)c * (3 * (uint64_t)g->k_dim + dv + c) + 4) * 4;
}

/* As many chunks as a step can have: each sequence may end with one that is not full. */
static uint32_t max_chunks(const ob_dev_plan *p, uint32_t c)
{
    return (uint32_t)p->prog.max_tok / c + (uint32_t)p->prog.max_seq;
}

static uint64_t gdn_scratch(const ob_dev_plan *p, const ob_op *op)
{
    const ob_gdn_params *g = &op->p.gdn;
    const uint32_t c = chunk_of(p->dev, g);
    return in_chunks(p, op) ? max_chunks(p, c) * (uint64_t)g->n_head_v * chunk_bytes(g, c) : 0;
}

static ob_status add_walk(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_gdn_params *g = &op->p.gdn;
    const uint32_t rg = (uint32_t)OB_MIN(GDN_MAX_RG, ob_div_up(g->k_dim, 2));
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "gdn", 6,
                         (uint32_t[]){GDN_BV * rg, (uint32_t)g->k_dim, (uint32_t)g->v_dim, GDN_BV, rg, g->tiled}, &pipe,
                         err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    read_values(p, op, s, 3);
    s->push.a[4] = vk_writes_value(p, s, op->out[0]);
    read_state(p, s, g->state);
    write_state(p, s, g->state);
    s->push.a[5] = p->weights[op->w[0]]->w;
    s->push.a[6] = p->weights[op->w[1]]->w;
    s->push.a[7] = p->states[g->state]->addr;
    vk_push_addr(&s->push, 0, p->params.addr + p->seq_off);
    s->push.u[2] = (uint32_t)g->n_head_k;
    s->push.u[3] = (uint32_t)g->n_head_v;
    s->push.u[4] = ob_f32_bits(g->eps);
    s->grid[0] = (uint32_t)ob_div_up(g->v_dim, GDN_BV);
    s->grid[1] = (uint32_t)g->n_head_v;
    s->grid[2] = (uint32_t)p->prog.max_seq;
    return OB_OK;
}

static ob_status add_prep(ob_dev_plan *p, int32_t i, uint32_t c, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_gdn_params *g = &op->p.gdn;
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "gdn_prep", 5,
                         (uint32_t[]){c * 8, (uint32_t)g->k_dim, (uint32_t)g->v_dim, c, g->tiled}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    read_values(p, op, s, 3);
    s->push.a[4] = p->weights[op->w[0]]->w;
    s->push.a[5] = p->weights[op->w[1]]->w;
    s->push.a[6] = p->work.addr + p->part_off;
    vk_writes(s, s->push.a[6], gdn_scratch(p, op));
    s->push.a[7] = p->params.addr + p->seq_off;
    s->push.u[0] = (uint32_t)g->n_head_k;
    s->push.u[1] = (uint32_t)g->n_head_v;
    s->push.u[2] = ob_f32_bits(g->eps);
    s->grid[0] = max_chunks(p, c);
    s->grid[1] = (uint32_t)g->n_head_v;
    return OB_OK;
}

static ob_status add_scan(ob_dev_plan *p, int32_t i, uint32_t c, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_gdn_params *g = &op->p.gdn;
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "gdn_scan", 5,
                         (uint32_t[]){c * GDN_BV / 4, (uint32_t)g->k_dim, (uint32_t)g->v_dim, c, GDN_BV}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    s->push.a[1] = p->work.addr + p->part_off;
    vk_reads(s, s->push.a[1], gdn_scratch(p, op));
    s->push.a[2] = vk_writes_value(p, s, op->out[0]);
    s->push.a[3] = p->states[g->state]->addr;
    read_state(p, s, g->state);
    write_state(p, s, g->state);
    s->push.a[4] = p->params.addr + p->seq_off;
    s->push.u[0] = (uint32_t)g->n_head_v;
    s->grid[0] = (uint32_t)ob_div_up(g->v_dim, GDN_BV);
    s->grid[1] = (uint32_t)g->n_head_v;
    s->grid[2] = (uint32_t)p->prog.max_seq;
    return OB_OK;
}

static ob_status gdn_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const uint32_t c = chunk_of(p->dev, &op->p.gdn);
    if (!in_chunks(p, op)) return add_walk(p, i, err);
    OB_TRY(add_prep(p, i, c, err));
    return add_scan(p, i, c, err);
}

static bool gdn_fits(const vk_dev *d, const ob_gdn_params *g)
{
    const uint32_t rg = (uint32_t)OB_MIN(GDN_MAX_RG, ob_div_up(g->k_dim, 2)), wg = GDN_BV * rg;
    return g->k_dim <= (int32_t)(GDN_MAX_ROWS * rg) && wg <= d->phys->max_invocations &&
           (uint64_t)g->k_dim * 8 + wg * 20 <= d->phys->max_shared_bytes;
}

/* --- convolved attention -------------------------------------------------------------------------- */

static uint32_t cca_rows(const ob_dev_plan *p)
{
    return p->prog.max_tok <= FEW_TOK ? 1 : CCA_ROWS;
}

static uint32_t cca_head_dim(const ob_program *g, const ob_op *op)
{
    return (uint32_t)(g->vals[op->in[0]].cols / op->p.cca.n_head);
}

static ob_status add_cca(ob_dev_plan *p, int32_t i, bool keep, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_cca_params *a = &op->p.cca;
    const uint32_t rows = cca_rows(p), hd = cca_head_dim(&p->prog, op), n = (uint32_t)(a->n_head + a->n_head_kv);
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "cca", 7,
                         (uint32_t[]){CCA_WG, keep, hd, rows, p->prog.weights[op->w[2]].ne[0] == 2, (uint32_t)a->n_head,
                                      (uint32_t)a->n_head_kv},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    read_values(p, op, s, 4);
    read_state(p, s, a->state);
    if (keep) write_state(p, s, a->state);
    for (int k = 0; k < 3; k++) s->push.a[5 + k] = keep ? vk_value(p, op->out[k]) : vk_writes_value(p, s, op->out[k]);
    for (int k = 0; k < 5; k++) vk_push_addr(&s->push, 2 * k, p->weights[op->w[k]]->w);
    vk_push_addr(&s->push, 10, p->states[a->state]->addr);
    vk_push_addr(&s->push, 12, p->params.addr + p->seq_off);
    vk_push_addr(&s->push, 14, p->params.addr + p->info_off);
    s->grid[0] = keep ? (uint32_t)ob_div_up(n * hd, CCA_WG) : n + 1;
    s->grid[1] = (uint32_t)(keep ? p->prog.max_seq : ob_div_up(p->prog.max_tok, rows));
    return OB_OK;
}

static ob_status cca_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    OB_TRY(add_cca(p, i, false, err));
    return add_cca(p, i, true, err);
}

/* --- all of them -------------------------------------------------------------------------------- */

bool vk_state_supports(const vk_dev *d, const ob_program *g, const ob_op *op, char *why, size_t cap)
{
    const bool fits = op->kind == OB_OP_GDN   ? gdn_fits(d, &op->p.gdn)
                      : op->kind == OB_OP_CCA ? CCA_ROWS * (3 * cca_head_dim(g, op) + CCA_WG) * 4 <= d->phys->max_shared_bytes
                                              : true;
    if (!fits) snprintf(why, cap, "heads too wide for this device's workgroups");
    return fits;
}

uint64_t vk_state_scratch(const ob_dev_plan *p, const ob_op *op)
{
    return op->kind == OB_OP_GDN ? gdn_scratch(p, op) : 0;
}

ob_status vk_state_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    switch (p->prog.ops[i].kind) {
    case OB_OP_CONV1D:
        return conv_add(p, i, err);
    case OB_OP_CCA:
        return cca_add(p, i, err);
    default:
        return gdn_add(p, i, err);
    }
}
