/* Mixtures of experts: which kernels, and where their tables lie.
 *
 *   moe_route    the choice; with several rows its last workgroup sorts the (row, choice) pairs by expert
 *   moe_sort     the sort alone, where there are too many pairs for that
 *   moe_up       hidden layers of tiles of few rows that chose the same expert
 *   moe_down     down products of all experts of a row, their weighted sum and the residual
 *   moe_gemm     both for many rows, with cooperative matrices; moe_sum adds up
 *
 * One row needs no sort: its choices are the tiles. The tables and hidden layers lie behind the plan's
 * counters and live from the choice to the end of the experts.
 */
#include "dev/vulkan/vk_int.h"

#include <stdio.h>

#include "base/math.h"

enum {
    SORT_ROWS = 64, /* up to here the choice sorts too */
    SORT_WG = 1024,
    MAX_EXPERTS = 1024,
    UP_WG = 256,
    DOWN_WG = 128,
    BLOCK = 32, /* hidden columns of a workgroup of moe_up */
};

/* An op's sizes, forms and places. */
typedef struct moe {
    const ob_op *op;
    const ob_dev_weight *gate, *up, *down; /* up is gate when they are one matrix */
    bool merged, mixed, direct;
    bool q8_gate, q8_up, q8_hid;
    uint32_t d, ff, ffp, n_expert, n_used, rows;
    uint32_t tile, pad, max_tiles, max_places;
    uint64_t row_of, place_of, hid, hid_scales, tmp, end; /* in the scratch; the table comes first */
} moe;

static ob_status no_memory(ob_err *err)
{
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
}

static bool is_float(ob_type t)
{
    return t == OB_F32 || t == OB_F16 || t == OB_BF16;
}

static bool uses_int8(const ob_dev_plan *p, const ob_dev_weight *w)
{
    return !is_float(w->type) && (p->fast & VK_FAST_INT8) && (p->dev->tested[w->type] & VK_FAST_INT8);
}

/* Rows of a tile of moe_up: about as many as meet at an expert. */
static uint32_t tile_rows(uint32_t pairs, uint32_t n_expert)
{
    uint32_t n = 1;
    while (n < 8 && n * n_expert < 2 * pairs) n *= 2;
    return n;
}

static moe moe_of(const ob_dev_plan *p, const ob_op *op)
{
    moe m = {.op = op, .merged = op->w[1] == OB_NONE};
    m.gate = p->weights[op->w[0]];
    m.up = m.merged ? m.gate : p->weights[op->w[1]];
    m.down = p->weights[op->w[2]];
    m.mixed = m.gate->type != m.up->type;
    m.d = (uint32_t)m.down->desc.ne[1];
    m.ff = (uint32_t)m.down->desc.ne[0];
    m.ffp = (uint32_t)m.down->nu * 32;
    m.n_expert = (uint32_t)m.down->desc.ne[2];
    m.n_used = (uint32_t)op->p.moe.n_used;
    m.rows = (uint32_t)p->prog.max_tok;
    m.direct = m.rows == 1;
    m.q8_gate = uses_int8(p, m.gate);
    m.q8_up = uses_int8(p, m.up);
    m.q8_hid = uses_int8(p, m.down);
    const uint32_t pairs = m.rows * m.n_used;
    m.tile = m.direct ? 1 : tile_rows(pairs, m.n_expert);
    m.pad = 1;
    m.max_tiles = m.direct ? m.n_used : OB_MIN(pairs, m.n_expert + pairs / m.tile);
    m.max_places = pairs + OB_MIN(pairs, m.n_expert) * (m.pad - 1);
    const uint64_t hidden = (uint64_t)m.max_places * m.ffp;
    m.row_of = ob_align_up(16 + 16 * (uint64_t)m.max_tiles, 256);
    m.place_of = ob_align_up(m.row_of + 4 * (uint64_t)m.max_places, 256);
    m.hid = ob_align_up(m.place_of + 4 * (uint64_t)pairs, 256);
    m.hid_scales = ob_align_up(m.hid + hidden * (m.q8_hid ? 1 : 4), 256);
    m.tmp = ob_align_up(m.hid_scales + (m.q8_hid ? hidden / 4 : 0), 256);
    m.end = ob_align_up(m.tmp + (m.mixed ? hidden * 4 : 0), 256);
    return m;
}

uint64_t vk_moe_scratch(const ob_dev_plan *p, const ob_op *op)
{
    return moe_of(p, op).end;
}

vk_form vk_moe_form(const ob_dev_plan *p, const ob_op *op)
{
    const moe m = moe_of(p, op);
    return m.q8_gate || m.q8_up ? VK_FORM_Q8 : VK_FORM_F32;
}

bool vk_route_fits(const ob_program *p, const ob_op *op, const char **why)
{
    *why = p->vals[op->in[0]].cols > MAX_EXPERTS ? "too many experts to choose from" : NULL;
    return !*why;
}

bool vk_moe_fits(const ob_program *p, const ob_op *op, const char **why)
{
    *why = NULL;
    if (p->vals[op->in[0]].rows != OB_ROWS_TOK) *why = "experts of other rows than tokens";
    else if (p->vals[op->in[0]].cols % 32) *why = "experts of rows that are no multiple of 32 wide";
    else if (p->weights[op->w[2]].ne[2] > MAX_EXPERTS) *why = "too many experts";
    for (int k = 0; k < 3; k++)
        if (op->w[k] != OB_NONE && !ob_type_get(p->weights[op->w[k]].type)->dequant) *why = "no matrix product for its type";
    return !*why;
}

static VkDeviceAddress scratch(const ob_dev_plan *p)
{
    return p->work.addr + p->moe_off;
}

static void read_value(const ob_dev_plan *p, vk_dispatch *s, ob_val v)
{
    if (v != OB_NONE) vk_reads(s, vk_value(p, v), vk_value_bytes(p, v));
}

/* --- choice and sort ------------------------------------------------------------------------------- */

/* The mixture that reads ids v, if it comes before the next choice. */
static const ob_op *mixture_of(const ob_dev_plan *p, int32_t i, ob_val ids)
{
    for (i++; i < p->prog.n_ops && p->prog.ops[i].kind != OB_OP_MOE_ROUTE; i++)
        if (p->prog.ops[i].kind == OB_OP_MOE_GLU) return p->prog.ops[i].in[1] == ids ? &p->prog.ops[i] : NULL;
    return NULL;
}

static uint32_t power_of_two(uint32_t least, uint32_t n, uint32_t most)
{
    uint32_t p = least;
    while (p < n && 2 * p <= most) p *= 2;
    return p;
}

ob_status vk_route_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_route_params *r = &op->p.route;
    const uint32_t n_class = (uint32_t)p->prog.vals[op->in[0]].cols;
    const ob_op *mix = mixture_of(p, i, op->out[0]);
    moe m = {0};
    if (mix) m = moe_of(p, mix);
    const bool sorts = mix && !m.direct && p->prog.max_tok <= SORT_ROWS;
    const uint32_t flags = (r->norm ? 1u : 0u) | (op->w[0] != OB_NONE ? 2u : 0u) | (op->w[1] != OB_NONE ? 4u : 0u);
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "moe_route", 11,
                         (uint32_t[]){power_of_two(32, n_class, OB_MIN(1024u, p->dev->phys->max_invocations)), n_class,
                                      (uint32_t)r->n_used, r->gating, (uint32_t)r->n_group, (uint32_t)r->n_group_used, flags,
                                      ob_f32_bits(r->scale), sorts ? m.n_expert : 1, sorts ? m.tile : 0, sorts ? m.pad : 1},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    read_value(p, s, op->in[0]);
    s->push.a[1] = vk_value(p, op->in[0]);
    for (int k = 0; k < 2; k++) {
        vk_writes(s, vk_value(p, op->out[k]), vk_value_bytes(p, op->out[k]));
        s->push.a[2 + k] = vk_value(p, op->out[k]);
    }
    if (op->w[0] != OB_NONE) s->push.a[4] = p->weights[op->w[0]]->w;
    if (op->w[1] != OB_NONE) s->push.a[5] = p->weights[op->w[1]]->w;
    s->push.a[6] = p->params.addr + p->tok_off;
    s->grid[0] = (uint32_t)p->prog.max_tok;
    if (!sorts) return OB_OK;
    s->push.a[7] = scratch(p);
    vk_push_addr(&s->push, 0, scratch(p) + m.row_of);
    vk_push_addr(&s->push, 2, scratch(p) + m.place_of);
    vk_push_addr(&s->push, 4, p->work.addr + p->count_off);
    vk_writes(s, scratch(p), m.hid);
    vk_writes(s, p->work.addr + p->count_off, 4);
    p->sorted_of = op->out[0];
    return OB_OK;
}

static ob_status add_sort(ob_dev_plan *p, int32_t i, const moe *m, ob_err *err)
{
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "moe_sort", 5,
                         (uint32_t[]){power_of_two(32, SORT_WG, p->dev->phys->max_invocations), m->n_used, m->n_expert, m->tile, m->pad},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    read_value(p, s, m->op->in[1]);
    vk_writes(s, scratch(p), m->hid);
    s->push.a[1] = vk_value(p, m->op->in[1]);
    s->push.a[2] = scratch(p);
    s->push.a[3] = scratch(p) + m->row_of;
    s->push.a[4] = scratch(p) + m->place_of;
    return OB_OK;
}

/* --- few rows ---------------------------------------------------------------------------------------- */

/* Threads a row of weights: few rows of units leave none idle. */
static uint32_t threads_of(const ob_dev_plan *p, uint32_t units, uint32_t wg)
{
    const uint32_t least = p->fast & VK_FAST_SUBGROUP ? p->dev->sg : 8;
    uint32_t t = OB_MAX(32u, least);
    while (t > least && t > units) t /= 2;
    return OB_MAX(OB_MAX(t, least), wg / BLOCK);
}

static void kernel_name(const ob_dev_plan *p, const char *what, const ob_dev_weight *w, char *out, size_t cap)
{
    snprintf(out, cap, "%s%s_%s_%s", what, p->fast & VK_FAST_SUBGROUP ? "" : "_plain", uses_int8(p, w) ? "i8" : "f32",
             vk_type_name(w->type));
}

/* Gate and up together (part 0), or one after the other (1, 2). */
static ob_status add_up(ob_dev_plan *p, int32_t i, const moe *m, uint32_t part, ob_err *err)
{
    const ob_dev_weight *w = part == 2 ? m->up : m->gate;
    const ob_moe_params *o = &m->op->p.moe;
    const vk_pipe *pipe;
    char name[48];
    kernel_name(p, "moe_up", w, name, sizeof name);
    OB_TRY(vk_kernel_get(p->dev, name, 12,
                         (uint32_t[]){UP_WG, threads_of(p, m->d / 32, UP_WG), m->tile, p->dev->sg, m->direct, part, m->q8_hid, m->d,
                                      m->ff, m->n_expert, (uint32_t)o->act | (m->merged ? 16u : 0u), ob_f32_bits(o->clamp)},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    const VkDeviceAddress base = scratch(p);
    VkDeviceAddress form = 0, scales = 0;
    const bool q8 = uses_int8(p, w) && vk_find_form(p, m->op->in[0], VK_FORM_Q8, &form, &scales);
    if (q8) vk_reads(s, form, vk_value_bytes(p, m->op->in[0]) / 2 + 512);
    else read_value(p, s, m->op->in[0]);
    vk_reads(s, base, m->hid);
    read_value(p, s, m->op->in[1]);
    if (part == 2) vk_reads(s, base + m->tmp, m->end - m->tmp);
    if (part == 1) vk_writes(s, base + m->tmp, m->end - m->tmp);
    else vk_writes(s, base + m->hid, m->tmp - m->hid);
    s->push.a[1] = q8 ? form : vk_value(p, m->op->in[0]);
    s->push.a[2] = base + m->hid;
    s->push.a[3] = m->gate->w;
    s->push.a[4] = m->gate->s;
    s->push.a[5] = m->gate->h;
    s->push.a[6] = m->up->w;
    s->push.a[7] = m->up->s;
    const VkDeviceAddress more[] = {m->up->h, m->gate->z, m->up->z, scales, base + m->hid_scales,
                                    m->direct ? vk_value(p, m->op->in[1]) : base, base + m->row_of, base + m->tmp};
    for (int k = 0; k < 8; k++) vk_push_addr(&s->push, 2 * k, more[k]);
    s->grid[0] = (uint32_t)ob_div_up(m->ff, BLOCK);
    s->grid[1] = m->max_tiles;
    s->cut = 1;
    return OB_OK;
}

static ob_status add_down(ob_dev_plan *p, int32_t i, const moe *m, ob_err *err)
{
    const ob_val res = m->op->in[3];
    const uint32_t t = threads_of(p, m->n_used * m->ffp / 32, DOWN_WG);
    const vk_pipe *pipe;
    char name[48];
    kernel_name(p, "moe_down", m->down, name, sizeof name);
    OB_TRY(vk_kernel_get(p->dev, name, 10,
                         (uint32_t[]){DOWN_WG, t, 2, p->dev->sg, m->direct, m->ffp, m->d, m->n_used, m->n_expert, res != OB_NONE},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    const VkDeviceAddress base = scratch(p);
    vk_reads(s, base, m->tmp);
    for (int k = 1; k < 4; k++) read_value(p, s, m->op->in[k]);
    vk_writes(s, vk_value(p, m->op->out[0]), vk_value_bytes(p, m->op->out[0]));
    s->push.a[1] = base + m->hid;
    s->push.a[2] = vk_value(p, m->op->out[0]);
    s->push.a[3] = m->down->w;
    s->push.a[4] = m->down->s;
    s->push.a[5] = m->down->h;
    if (res != OB_NONE) s->push.a[6] = vk_value(p, res);
    s->push.a[7] = vk_value(p, m->op->in[1]);
    const VkDeviceAddress more[] = {m->down->z, base + m->hid_scales, vk_value(p, m->op->in[2]), base + m->place_of};
    for (int k = 0; k < 4; k++) vk_push_addr(&s->push, 2 * k, more[k]);
    s->grid[0] = m->rows;
    s->grid[1] = (uint32_t)ob_div_up(m->d, DOWN_WG / t);
    s->cut = 2;
    return OB_OK;
}

ob_status vk_moe_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const moe m = moe_of(p, &p->prog.ops[i]);
    const vk_form form = vk_moe_form(p, m.op);
    if (form != VK_FORM_F32) OB_TRY(vk_form_add(p, i, form, err));
    if (!m.direct && p->sorted_of != m.op->in[1]) OB_TRY(add_sort(p, i, &m, err));
    p->sorted_of = OB_NONE;
    if (m.mixed) OB_TRY(add_up(p, i, &m, 1, err));
    OB_TRY(add_up(p, i, &m, m.mixed ? 2 : 0, err));
    return add_down(p, i, &m, err);
}
