/* Attention of few tokens (shaders/attn_one.comp): a workgroup takes a token, some heads and a segment of what
 * the token sees. */
#include "dev/vulkan/vk_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/math.h"

enum {
    FLAG_FUSED = 1,
    FLAG_Q_NORM = 2,
    FLAG_K_NORM = 4,
    FLAG_NEOX = 8,
    FLAG_WRITE_Y = 16,
    FLAG_ALONE = 64,
    MAX_DIM = 256,
    LEAST_SEG = 8, MOST_SEG = 32, /* bounds for the segments of a token */
    PER_CORE = 2,                 /* workgroups that a core holds at once, on the one card at hand */
};

vk_attn_tuning vk_attn_tuning_get(void)
{
    vk_attn_tuning t = {.hb = 2, .ahead = 4, .seg_min = 64, .max_seg = 0, .subgroups = 8}, e;
    const char *s = getenv("OB_VK_ATTN");
    if (s && sscanf(s, "%u,%u,%u,%u,%u", &e.hb, &e.ahead, &e.seg_min, &e.max_seg, &e.subgroups) == 5 && e.hb && e.hb <= 16 &&
        (e.hb & (e.hb - 1)) == 0 && e.ahead && e.ahead <= 16 && e.seg_min && e.seg_min % 32 == 0 && e.max_seg <= 256 &&
        e.subgroups && e.subgroups <= 16)
        t = e;
    return t;
}

/* What a workgroup takes: hb heads, lanes for one key. hb 0: it does not fit. */
typedef struct cut {
    uint32_t hb, lanes, subgroups;
} cut;

static cut cut_of(const vk_dev *d, const ob_attn_params *a)
{
    const vk_attn_tuning t = d->attn;
    const vk_phys *f = d->phys;
    const uint32_t sg = d->sg, group = (uint32_t)(a->n_head / a->n_head_kv);
    cut c = {.lanes = 1, .subgroups = OB_MIN(t.subgroups, f->max_invocations / sg)};
    while (2 * c.lanes <= sg && 2 * c.lanes * 8 <= (uint32_t)OB_MAX(a->k_dim, a->v_dim) + 7) c.lanes *= 2;
    for (uint32_t hb = 1; hb < 2 * group && hb <= t.hb && hb <= c.lanes; hb *= 2) {
        const uint64_t bytes = (uint64_t)hb * (uint64_t)a->k_dim * 4 + (uint64_t)(a->k_dim + a->v_dim) * 4 + c.subgroups * hb * 8 +
                               (uint64_t)c.subgroups * hb * (uint64_t)a->v_dim * 4 + c.subgroups * sg * 16 + 64;
        if (bytes <= f->max_shared_bytes) c.hb = hb;
    }
    return c;
}

bool vk_attn_one_fits(const ob_dev_plan *p, const ob_op *op)
{
    const ob_attn_params *a = &op->p.attn;
    return (p->fast & VK_FAST_SUBGROUP) && !vk_kernel_off(p->dev, "attn_one") && a->causal && a->blocks == OB_BLOCKS_NONE &&
           op->in[2] != OB_NONE && a->k_dim % 8 == 0 && a->v_dim % 8 == 0 && a->k_dim <= MAX_DIM &&
           a->v_dim <= MAX_DIM && cut_of(p->dev, a).hb > 0;
}

/* Workgroups that share a token's segment. */
static uint32_t parts_of(const vk_dev *d, const ob_attn_params *a)
{
    return (uint32_t)a->n_head_kv * (uint32_t)ob_div_up(a->n_head / a->n_head_kv, cut_of(d, a).hb);
}

/* Segments of a token at most: no more than make the workgroups of one token run at once, where the device tells how
 * many cores it has. A second round would read no faster, and more segments take longer to join. */
static uint32_t max_segments(const vk_dev *d, const ob_attn_params *a)
{
    if (d->attn.max_seg) return d->attn.max_seg;
    if (!d->phys->n_cores) return MOST_SEG;
    return OB_MIN(OB_MAX(PER_CORE * d->phys->n_cores / parts_of(d, a), (uint32_t)LEAST_SEG), (uint32_t)MOST_SEG);
}

uint64_t vk_attn_one_scratch(const ob_dev_plan *p, const ob_op *op)
{
    const ob_attn_params *a = &op->p.attn;
    return (uint64_t)p->prog.max_tok * (uint64_t)a->n_head * max_segments(p->dev, a) * ((uint64_t)a->v_dim + 4) * 4;
}

uint64_t vk_attn_one_counters(const ob_dev_plan *p, const ob_op *op)
{
    const ob_attn_params *a = &op->p.attn;
    return (uint64_t)p->prog.max_tok * parts_of(p->dev, a) * 4;
}

uint32_t vk_attn_one_segments(const vk_dev *d, const ob_attn_params *a, uint32_t at)
{
    const uint32_t most = 32 * max_segments(d, a);
    const uint32_t back = (uint32_t)a->window - 1, lo = a->window > 0 && at > back ? at - back : 0;
    const uint32_t len = at + 1 - lo / 32 * 32, seg = OB_MAX(d->attn.seg_min, (len + most - 1) / most * 32);
    return (len + seg - 1) / seg;
}

static ob_status no_memory(ob_err *err)
{
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
}

/* Queries, keys and values as the products left them. */
static ob_status push_heads(ob_dev_plan *p, const vk_heads *h, const vk_mem *const cache[2], vk_dispatch *s, ob_err *err)
{
    const ob_val in[3] = {h->in[0], h->in[1], h->attn->in[2]};
    const vk_rope_table *t;
    OB_TRY(vk_rope_table_of(p, h->rope[0], &t, err));
    for (int k = 0; k < 3; k++) {
        vk_reads(s, vk_value(p, in[k]), vk_value_bytes(p, in[k]));
        s->push.a[1 + k] = vk_value(p, in[k]);
    }
    for (int k = 0; k < 2; k++) {
        vk_writes(s, cache[k]->addr, cache[k]->size);
        if (h->norm[k]) vk_push_addr(&s->push, 6 + 2 * k, p->weights[h->norm[k]->w[0]]->w);
    }
    vk_push_addr(&s->push, 10, t->high);
    return OB_OK;
}

static ob_status get_kernel(ob_dev_plan *p, const ob_op *op, const vk_heads *h, vk_form form, bool write_y, const vk_pipe **pipe,
                            ob_err *err)
{
    const ob_attn_params *a = &op->p.attn;
    const ob_rope_params *r = h ? &h->rope[0]->p.rope : NULL;
    const vk_attn_tuning t = p->dev->attn;
    const cut c = cut_of(p->dev, a);
    const vk_rope_table *table = NULL;
    if (h) OB_TRY(vk_rope_table_of(p, h->rope[0], &table, err));
    const uint32_t flags = (h ? FLAG_FUSED : 0u) | (h && h->norm[0] ? FLAG_Q_NORM : 0u) | (h && h->norm[1] ? FLAG_K_NORM : 0u) |
                           (h && r->pairing == OB_ROPE_NEOX ? FLAG_NEOX : 0u) | (write_y ? FLAG_WRITE_Y : 0u) |
                           (p->prog.max_tok == 1 ? FLAG_ALONE : 0u);
    return vk_kernel_get(p->dev, "attn_one", 23,
                         (uint32_t[]){c.subgroups * p->dev->sg, (uint32_t)a->k_dim, (uint32_t)a->v_dim,
                                      (uint32_t)(a->n_head / a->n_head_kv), c.hb, p->k_type, p->v_type, p->dev->sg, c.lanes,
                                      (uint32_t)a->n_head_kv, form, t.ahead, flags, h ? (uint32_t)r->n_rot : 0,
                                      h ? (uint32_t)r->rot_off : 0, (uint32_t)p->page_tok, (uint32_t)a->window, ob_f32_bits(a->scale),
                                      ob_f32_bits(a->softcap), ob_f32_bits(h && h->norm[0] ? h->norm[0]->p.norm.eps : 0),
                                      table ? (uint32_t)table->n_high : 1, t.seg_min, max_segments(p->dev, a)},
                         pipe, err);
}

ob_status vk_attn_one_add(ob_dev_plan *p, int32_t i, const vk_heads *h, vk_when when, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_attn_params *a = &op->p.attn;
    const vk_mem *cache[2] = {p->cache_k[a->cache], p->cache_v[a->cache]};
    bool only; /* where another kernel may stand in, in the form that it can make too */
    const vk_form plain = vk_plain_form(p, op->out[0], i, &only), any = vk_wanted_form(p, op->out[0], i, VK_FORM_ANY);
    const vk_form wanted = when == VK_ALWAYS ? any : plain, form = wanted == VK_FORM_F16 || a->v_dim % 32 == 0 ? wanted : VK_FORM_F32;
    const bool write_y = !(form == plain ? only : vk_only_form(p, op->out[0], i, form));
    const VkDeviceAddress part = p->work.addr + p->part_off, count = p->counts.addr;
    const vk_pipe *pipe;
    OB_TRY(get_kernel(p, op, h, form, write_y, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    if (h) {
        OB_TRY(push_heads(p, h, cache, s, err));
    } else {
        vk_reads(s, vk_value(p, op->in[0]), vk_value_bytes(p, op->in[0]));
        s->push.a[1] = vk_value(p, op->in[0]);
    }
    for (int k = 0; k < 2; k++) {
        vk_reads(s, cache[k]->addr, cache[k]->size);
        s->push.a[4 + k] = cache[k]->addr;
    }
    if (write_y) vk_writes(s, vk_value(p, op->out[0]), vk_value_bytes(p, op->out[0]));
    vk_writes(s, part, vk_attn_one_scratch(p, op));
    vk_writes(s, count, vk_attn_one_counters(p, op));
    s->push.a[6] = vk_value(p, op->out[0]);
    s->push.a[7] = part;
    vk_push_addr(&s->push, 0, count);
    if (form != VK_FORM_F32) vk_write_form(p, s, op->out[0], form, &s->push.u[2]);
    s->push.u[12] = (uint32_t)(p->info_off / 4);
    s->push.u[13] = (uint32_t)(p->table_off / 4);
    s->push.u[14] = (uint32_t)(p->first_off / 4);
    s->push.u[15] = (uint32_t)p->max_pages;
    s->grid[1] = parts_of(p->dev, a);
    return vk_attn_grid(p, s, &(vk_indirect){.when = when, .y = s->grid[1], .a = a}, err);
}
