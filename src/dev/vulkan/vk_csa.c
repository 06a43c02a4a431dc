/* DeepSeek V4's ops: hyper-connections and compressed sparse attention. shaders/csa.glsl lists the kernels. */
#include "dev/vulkan/vk_int.h"

#include <stdio.h>

#include "base/math.h"

enum {
    COLUMN_WG = 128,
    ENTRY_WG = 128,
    SCORE_WG = 128,
    SCORE_TILES = 64, /* workgroups of a token; each goes on while there are entries */
    PICK_WG = 256,
    ATTN_WG = 128,
    ATTN_TILE = 32,
    ATTN_HEADS = 8, /* of a workgroup, at most */
};

static ob_status no_memory(ob_err *err)
{
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
}

static VkDeviceAddress read_mem(vk_dispatch *s, const vk_mem *m)
{
    vk_reads(s, m->addr, m->size);
    return m->addr;
}
static VkDeviceAddress write_mem(vk_dispatch *s, const vk_mem *m)
{
    vk_writes(s, m->addr, m->size);
    return m->addr;
}

/* --- hyper-connections -------------------------------------------------------------------------- */

ob_status vk_hc_mix_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_value *y = &p->prog.vals[op->out[0]];
    const bool post = op->out[1] != OB_NONE;
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "hc_mix", 4,
                         (uint32_t[]){COLUMN_WG, (uint32_t)op->p.hc.n_stream, (uint32_t)op->p.hc.n_iter, post}, &pipe,
                         err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    s->push.a[1] = vk_reads_value(p, s, op->in[0]);
    s->push.a[2] = vk_reads_value(p, s, op->in[1]);
    s->push.a[3] = vk_writes_value(p, s, op->out[0]);
    if (post) s->push.a[4] = vk_writes_value(p, s, op->out[1]);
    s->push.a[5] = p->weights[op->w[0]]->w;
    s->push.a[6] = p->weights[op->w[1]]->w;
    s->push.u[0] = y->rows;
    s->push.u[1] = (uint32_t)y->cols;
    s->push.u[2] = ob_f32_bits(op->p.hc.eps);
    s->grid[0] = (uint32_t)ob_div_up(y->cols, COLUMN_WG) + post;
    s->grid[1] = (uint32_t)vk_max_rows(p, y->rows);
    return OB_OK;
}

ob_status vk_hc_post_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_value *y = &p->prog.vals[op->in[0]];
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "hc_post", 2, (uint32_t[]){COLUMN_WG, (uint32_t)op->p.hc.n_stream}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    for (int k = 0; k < 3; k++) s->push.a[1 + k] = vk_reads_value(p, s, op->in[k]);
    s->push.a[4] = vk_writes_value(p, s, op->out[0]);
    s->push.u[0] = y->rows;
    s->push.u[1] = (uint32_t)y->cols;
    s->grid[0] = (uint32_t)ob_div_up(y->cols, COLUMN_WG);
    s->grid[1] = (uint32_t)vk_max_rows(p, y->rows);
    return OB_OK;
}

/* --- compressed sparse attention ------------------------------------------------------------------ */

/* One compressor: the latent one of the attention, or the indexer's. */
typedef struct compressor {
    ob_val kv, gate;
    int32_t ape, norm, cache, state, width;
    bool overlap;
} compressor;

static compressor latent_of(const ob_dev_plan *p, const ob_op *op)
{
    const ob_csa_params *a = &op->p.csa;
    return (compressor){.kv = op->in[2], .gate = op->in[3], .ape = op->w[1], .norm = op->w[2], .cache = a->cache_comp,
                        .state = a->state_comp, .width = a->k_dim, .overlap = p->prog.vals[op->in[2]].cols == 2 * a->k_dim};
}

static compressor index_of(const ob_op *op)
{
    const ob_csa_params *a = &op->p.csa;
    return (compressor){.kv = op->in[6], .gate = op->in[7], .ape = op->w[3], .norm = op->w[4], .cache = a->cache_index,
                        .state = a->state_index, .width = a->index_dim, .overlap = true};
}

static bool has_indexer(const ob_op *op)
{
    return op->in[4] != OB_NONE;
}

static uint32_t max_entries(const ob_dev_plan *p, const ob_op *op)
{
    return (uint32_t)ob_div_up(p->max_ctx, op->p.csa.ratio);
}

/* Scores of all entries, then lists of the best; both for each token. */
static uint64_t score_bytes(const ob_dev_plan *p, const ob_op *op)
{
    return ob_align_up((uint64_t)p->prog.max_tok * max_entries(p, op) * 4, 256);
}
static uint64_t list_bytes(const ob_dev_plan *p, const ob_op *op)
{
    return (uint64_t)p->prog.max_tok * (uint64_t)op->p.csa.top_k * 4;
}

uint64_t vk_csa_scratch(const ob_dev_plan *p, const ob_op *op)
{
    return has_indexer(op) ? score_bytes(p, op) + list_bytes(p, op) : 0;
}

static void set_paging(const ob_dev_plan *p, uint32_t *u)
{
    u[0] = (uint32_t)p->page_tok;
    u[1] = (uint32_t)p->max_pages;
}

/* This step's keys, as they are. */
static ob_status add_store(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "csa_compress", 8,
                         (uint32_t[]){ENTRY_WG, 0, (uint32_t)op->p.csa.k_dim, p->k_type, false, 1, 2, false}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    s->push.a[1] = vk_reads_value(p, s, op->in[1]);
    s->push.a[3] = write_mem(s, p->cache_k[op->p.csa.cache_raw]);
    s->push.a[4] = p->params.addr + p->seq_off;
    s->push.a[5] = p->params.addr + p->info_off;
    s->push.a[6] = p->params.addr + p->table_off;
    set_paging(p, &s->push.u[8]);
    s->grid[0] = (uint32_t)p->prog.max_tok;
    return OB_OK;
}

static ob_status add_compress(ob_dev_plan *p, int32_t i, const compressor *c, ob_err *err)
{
    const ob_csa_params *a = &p->prog.ops[i].p.csa;
    const vk_rope_table *t;
    const vk_pipe *pipe;
    OB_TRY(vk_rope_table_get(p, &a->rope, NULL, &t, err));
    OB_TRY(vk_kernel_get(p->dev, "csa_compress", 8,
                         (uint32_t[]){ENTRY_WG, 1, (uint32_t)c->width, p->k_type, c->overlap, (uint32_t)a->ratio,
                                      (uint32_t)a->rope.n_rot, a->rope.pairing == OB_ROPE_NEOX},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    s->push.a[1] = vk_reads_value(p, s, c->kv);
    s->push.a[2] = vk_reads_value(p, s, c->gate);
    s->push.a[3] = write_mem(s, p->cache_k[c->cache]);
    s->push.a[4] = p->params.addr + p->seq_off;
    s->push.a[5] = p->params.addr + p->info_off;
    s->push.a[6] = p->params.addr + p->table_off;
    s->push.a[7] = read_mem(s, p->states[c->state]);
    vk_push_addr(&s->push, 0, p->weights[c->ape]->w);
    vk_push_addr(&s->push, 2, p->weights[c->norm]->w);
    vk_push_addr(&s->push, 4, t->high);
    vk_push_addr(&s->push, 6, t->low);
    set_paging(p, &s->push.u[8]);
    s->push.u[10] = (uint32_t)t->n_high;
    s->push.u[11] = ob_f32_bits(a->eps);
    s->grid[0] = (uint32_t)p->prog.max_tok;
    return OB_OK;
}

static ob_status add_keep(ob_dev_plan *p, int32_t i, const compressor *c, ob_err *err)
{
    const uint32_t cols = (uint32_t)p->prog.vals[c->kv].cols;
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "csa_keep", 1, (uint32_t[]){COLUMN_WG}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    s->push.a[1] = vk_reads_value(p, s, c->kv);
    s->push.a[2] = vk_reads_value(p, s, c->gate);
    s->push.a[3] = write_mem(s, p->states[c->state]);
    s->push.a[4] = p->params.addr + p->seq_off;
    s->push.a[5] = p->params.addr + p->info_off;
    s->push.u[0] = cols;
    s->push.u[1] = (uint32_t)((c->overlap ? 2 : 1) * p->prog.ops[i].p.csa.ratio);
    s->grid[0] = (uint32_t)ob_div_up(cols, COLUMN_WG);
    s->grid[1] = (uint32_t)p->prog.max_tok;
    return OB_OK;
}

static ob_status add_score(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_csa_params *a = &op->p.csa;
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "csa_score", 5,
                         (uint32_t[]){SCORE_WG, (uint32_t)a->index_dim, (uint32_t)a->n_index_head, p->k_type,
                                      (uint32_t)a->ratio},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    s->push.a[1] = vk_reads_value(p, s, op->in[4]);
    s->push.a[2] = vk_reads_value(p, s, op->in[5]);
    s->push.a[3] = read_mem(s, p->cache_k[a->cache_index]);
    s->push.a[4] = p->params.addr + p->info_off;
    s->push.a[5] = p->params.addr + p->table_off;
    s->push.a[6] = p->work.addr + p->part_off;
    vk_writes(s, s->push.a[6], score_bytes(p, op));
    set_paging(p, s->push.u);
    s->push.u[2] = max_entries(p, op);
    s->push.u[3] = (uint32_t)a->top_k;
    s->cut = 2;
    s->grid[0] = (uint32_t)OB_MIN(SCORE_TILES, ob_div_up(max_entries(p, op), 32));
    s->grid[1] = (uint32_t)p->prog.max_tok;
    return OB_OK;
}

static ob_status add_pick(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "csa_pick", 2, (uint32_t[]){PICK_WG, (uint32_t)op->p.csa.ratio}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    s->push.a[1] = p->work.addr + p->part_off;
    s->push.a[2] = s->push.a[1] + score_bytes(p, op);
    vk_reads(s, s->push.a[1], score_bytes(p, op));
    vk_writes(s, s->push.a[2], list_bytes(p, op));
    s->push.a[3] = p->params.addr + p->info_off;
    s->push.u[0] = max_entries(p, op);
    s->push.u[1] = (uint32_t)op->p.csa.top_k;
    s->grid[0] = (uint32_t)p->prog.max_tok;
    return OB_OK;
}

/* Heads of a workgroup; 0: not even one fits. */
static uint32_t heads_of(const vk_dev *d, const ob_csa_params *a)
{
    const uint32_t per_head = (uint32_t)ob_align_up((size_t)a->k_dim, 4) * 4 + ATTN_TILE * 4 + 12;
    uint32_t best = 0;
    for (uint32_t h = 1; h <= OB_MIN((uint32_t)ATTN_HEADS, (uint32_t)a->n_head); h++)
        if ((uint32_t)a->n_head % h == 0 && h * per_head + ATTN_TILE * 8 <= d->phys->max_shared_bytes) best = h;
    return best;
}

static ob_status add_attend(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_csa_params *a = &op->p.csa;
    const uint32_t hb = heads_of(p->dev, a);
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "csa_attn", 8,
                         (uint32_t[]){ATTN_WG, (uint32_t)a->k_dim, (uint32_t)a->n_head, hb, p->k_type, (uint32_t)a->window,
                                      (uint32_t)a->ratio, has_indexer(op) ? (uint32_t)a->top_k : 0},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    s->push.a[1] = vk_reads_value(p, s, op->in[0]);
    s->push.a[2] = read_mem(s, p->cache_k[a->cache_raw]);
    if (a->ratio) s->push.a[3] = read_mem(s, p->cache_k[a->cache_comp]);
    s->push.a[4] = vk_writes_value(p, s, op->out[0]);
    s->push.a[5] = p->params.addr + p->info_off;
    s->push.a[6] = p->params.addr + p->table_off;
    if (has_indexer(op)) {
        s->push.a[7] = p->work.addr + p->part_off + score_bytes(p, op);
        vk_reads(s, s->push.a[7], list_bytes(p, op));
    }
    vk_push_addr(&s->push, 0, p->weights[op->w[0]]->w);
    set_paging(p, &s->push.u[2]);
    s->push.u[4] = ob_f32_bits(a->scale);
    s->cut = 1;
    s->grid[0] = (uint32_t)p->prog.max_tok;
    s->grid[1] = (uint32_t)a->n_head / hb;
    return OB_OK;
}

ob_status vk_csa_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    compressor c[2];
    int n = 0;
    if (op->p.csa.ratio) c[n++] = latent_of(p, op);
    if (has_indexer(op)) c[n++] = index_of(op);
    OB_TRY(add_store(p, i, err));
    for (int k = 0; k < n; k++) OB_TRY(add_compress(p, i, &c[k], err));
    for (int k = 0; k < n; k++) OB_TRY(add_keep(p, i, &c[k], err));
    if (has_indexer(op)) {
        OB_TRY(add_score(p, i, err));
        OB_TRY(add_pick(p, i, err));
    }
    return add_attend(p, i, err);
}

bool vk_csa_supports(const vk_dev *d, const ob_op *op, char *why, size_t cap)
{
    const ob_csa_params *a = &op->p.csa;
    if (a->official) {
        snprintf(why, cap, "no kernels for official rounding");
        return false;
    }
    const uint64_t entry = (uint64_t)OB_MAX(a->k_dim, a->index_dim) * 4 + ENTRY_WG * 4;
    const uint64_t score = 32 * (ob_align_up((size_t)a->index_dim, 4) + 4) * 4 + SCORE_WG * 4;
    if (heads_of(d, a) && entry <= d->phys->max_shared_bytes &&
        (!has_indexer(op) || (score <= d->phys->max_shared_bytes && d->phys->max_invocations >= PICK_WG)))
        return true;
    snprintf(why, cap, "heads too wide for this device's workgroups");
    return false;
}
