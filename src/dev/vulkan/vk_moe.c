/* Mixtures of experts: which kernels, and where their tables lie.
 *
 *   moe_router   few rows: the norm, the router's product and the choice
 *   moe_route    the choice alone
 *   moe_up       hidden layers, by expert; finds the rows that chose it by itself
 *   moe_down     down products of all experts of a row, their weighted sum and the residual; where several
 *                rows meet at an expert, moe_up does the products and moe_sum adds up
 *   moe_gemm     both for many rows, with cooperative matrices; moe_sum adds up. Its (row, choice) pairs are
 *                sorted by expert into tiles: by moe_route's last workgroup, or where they are many by moe_sort
 *   turn         hidden layers through the transform of rotated down matrices, into the form that these read
 *
 * With one row moe_up makes the choice itself, from the logits. The tables and hidden layers lie behind the
 * plan's counters and live from the choice to the end of the experts.
 */
#include "dev/vulkan/vk_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/math.h"

enum {
    SORT_ROWS = 64, /* up to here the choice sorts too */
    SORT_WG = 1024,
    BLOCK = 32,     /* hidden columns of a workgroup of moe_up */
    LIST_PAIRS = 1024, /* pairs a workgroup of moe_up looks through at a time */
    GEMM_PAD = 16,  /* rows of a matrix */
    SUM_WG = 128,
    ROUTER_ROWS = 32,
    ROUTER_WG = 256,
    PLAIN_WG = 128,
};

/* Numbers of the kernels, found by sweeps on the one card at hand (docs/performance.md); OB_VK_MOE=NAME=N,…
 * tries others. */
typedef struct tuning {
    uint32_t up_wg, up_t, up_ahead;                  /* threads of a workgroup and of a column, units loaded ahead */
    uint32_t up_rows;                                /* pairs of an expert at a time; 0: by their number */
    uint32_t down_wg, down_t, down_ahead, down_cols; /* the same for down products, and columns together: without */
    uint32_t norm_t, norm_ahead, norm_cols;          /* and with the next norm's input */
    uint32_t parts_rows; /* from here on down products go by experts too, and moe_sum adds up */
    uint32_t gemm_rows;  /* from here on with matrices, where there are any */
    uint32_t gemm_tile;  /* of k_tiles, 1 + index; 0: by the number of pairs */
} tuning;

/* By rows: one, as many as take matvec.comp around the experts, more. */
static const tuning k_tuning[] = {
    {.up_wg = 512, .up_t = 16, .up_ahead = 1, .norm_t = 32, .norm_ahead = 3, .norm_cols = 1},
    {.up_wg = 512, .up_t = 16, .up_ahead = 1, .norm_t = 16, .norm_ahead = 3, .norm_cols = 1},
    {.up_wg = 128, .up_t = 4, .up_ahead = 1, .norm_t = 16, .norm_ahead = 3, .norm_cols = 1},
};

static tuning tuning_get(uint32_t rows)
{
    tuning t = k_tuning[rows == 1 ? 0 : rows <= VK_MATVEC_ROWS ? 1 : 2];
    t.down_wg = 256, t.down_t = 8, t.down_ahead = 3, t.down_cols = rows > VK_MATVEC_ROWS ? 2 : 1, t.parts_rows = t.gemm_rows = 33;
    const struct { const char *name; uint32_t *to; } fields[] = {
        {"up_wg", &t.up_wg}, {"up_t", &t.up_t}, {"up_ahead", &t.up_ahead}, {"up_rows", &t.up_rows},
        {"down_wg", &t.down_wg}, {"down_t", &t.down_t}, {"down_ahead", &t.down_ahead}, {"down_cols", &t.down_cols},
        {"norm_t", &t.norm_t}, {"norm_ahead", &t.norm_ahead}, {"norm_cols", &t.norm_cols},
        {"parts_rows", &t.parts_rows}, {"gemm_rows", &t.gemm_rows}, {"gemm_tile", &t.gemm_tile},
    };
    for (const char *at = getenv("OB_VK_MOE"); at && *at; at += strcspn(at, ","), at += *at == ',')
        for (size_t i = 0; i < OB_COUNT(fields); i++) {
            const size_t n = strlen(fields[i].name);
            unsigned v;
            if (strncmp(at, fields[i].name, n) == 0 && at[n] == '=' && sscanf(at + n + 1, "%u", &v) == 1 && v <= 4096)
                *fields[i].to = v;
        }
    return t;
}

/* Tiles of moe_gemm: bm places, and by part (0: gate and up, 1: down) bn rows of weights; the workgroup has a
 * subgroup per wm x wn. */
typedef struct tile {
    uint32_t bm, bn[2], bk, wm[2], wn[2], stages;
} tile;

static const tile k_tiles[] = {
    {16, {128, 128}, 64, {16, 16}, {32, 32}, 1},
    {32, {128, 128}, 64, {32, 32}, {32, 32}, 1},
    {48, {128, 128}, 64, {48, 48}, {32, 32}, 1},
    {128, {128, 128}, 64, {64, 64}, {64, 64}, 1},
};

/* An op's sizes, forms and places. */
typedef struct moe {
    const ob_op *op;
    tuning tune;
    const ob_dev_weight *gate, *up, *down; /* up is gate when they are one matrix */
    bool merged, mixed, direct, gemm, parts;
    tile t; /* gemm */
    bool q8_gate, q8_up, q8_hid, turned; /* turned: the down matrices are rotated */
    uint32_t d, ff, ffp, n_expert, n_used, rows;
    uint32_t tile, max_tiles, max_places; /* gemm but for tile: rows of an expert at a time */
    uint64_t row_of, place_of, raw, hid, hid_scales, tmp, end; /* in the scratch; the table comes first. raw: hidden layers
                                                                  before they are turned; tmp: the gate, or what moe_sum
                                                                  adds up */
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
    return !is_float(w->type) && (p->fast & VK_FAST_INT8) && (p->dev->tested_experts[w->type] & VK_FAST_INT8);
}

/* Kernels that take two units at a time (PAIRED in shaders/moe_dot.glsl): for several rows they have less to do, for one
 * they only hold more registers. */
static bool takes_pairs(const ob_dev_plan *p, const ob_dev_weight *w)
{
    return p->prog.max_tok > VK_MATVEC_ROWS && (p->fast & VK_FAST_SUBGROUP) && uses_int8(p, w) &&
           (w->type == OB_Q4_K || w->type == OB_Q5_K);
}

/* Elements that a thread of moe_up and moe_down takes at a time. */
static uint32_t step_of(const ob_dev_plan *p, const ob_dev_weight *w)
{
    return takes_pairs(p, w) ? 64 : 32;
}

/* Rows that moe_up takes together: about as many as meet at an expert. */
static uint32_t tile_rows(uint32_t pairs, uint32_t n_expert)
{
    uint32_t n = 1;
    while (n < 8 && n * n_expert < 2 * pairs) n *= 2;
    return n;
}

static bool uses_coopmat(const ob_dev_plan *p, const ob_dev_weight *w)
{
    return (p->fast & VK_FAST_COOPMAT) && (p->dev->tested_experts[w->type] & VK_FAST_COOPMAT);
}

static uint64_t shared_bytes(const tile *t)
{
    return (uint64_t)(t->bm + OB_MAX(t->bn[0], t->bn[1])) * (t->bk / 8 + 1) * 16 * t->stages;
}

/* Half as many places again as an expert has on average, so that most experts have one tile. */
static tile gemm_tile(const ob_dev_plan *p, const tuning *tune, uint32_t pairs, uint32_t n_expert)
{
    size_t i = 0;
    if (tune->gemm_tile && tune->gemm_tile <= OB_COUNT(k_tiles)) return k_tiles[tune->gemm_tile - 1];
    while (i + 1 < OB_COUNT(k_tiles) && 2 * k_tiles[i].bm * n_expert < 3 * pairs &&
           shared_bytes(&k_tiles[i + 1]) <= p->dev->phys->max_shared_bytes)
        i++;
    return k_tiles[i];
}

static moe moe_of(const ob_dev_plan *p, const ob_op *op)
{
    moe m = {.op = op, .tune = tuning_get((uint32_t)p->prog.max_tok), .merged = op->w[1] == OB_NONE};
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
    const tuning *t = &m.tune;
    m.gemm = m.rows >= t->gemm_rows && !m.mixed && m.ff % 32 == 0 && uses_coopmat(p, m.gate) && uses_coopmat(p, m.down);
    if (m.gemm) m.t = gemm_tile(p, &m.tune, pairs, m.n_expert);
    m.tile = m.gemm ? m.t.bm : m.direct ? 1 : t->up_rows ? t->up_rows : tile_rows(pairs, m.n_expert);
    m.max_tiles = OB_MIN(pairs, m.n_expert + pairs / m.tile);
    m.max_places = pairs + (m.gemm ? OB_MIN(pairs, m.n_expert) * (GEMM_PAD - 1) : 0);
    m.parts = m.gemm || (m.rows >= OB_MAX(t->parts_rows, 2u) && !m.mixed);
    const uint64_t hidden = (uint64_t)m.max_places * m.ffp, table = m.gemm ? 16 + 16 * (uint64_t)m.max_tiles : 0;
    m.row_of = ob_align_up(table, 256);
    m.place_of = ob_align_up(m.row_of + (m.gemm ? 4 * (uint64_t)m.max_places : 0), 256);
    m.turned = m.down->desc.hadamard;
    m.raw = ob_align_up(m.place_of + (m.gemm ? 4 * (uint64_t)pairs : 0), 256);
    m.hid = ob_align_up(m.raw + (m.turned ? hidden * (m.gemm ? 2 : 4) : 0), 256);
    m.hid_scales = ob_align_up(m.hid + hidden * (m.gemm ? 2 : m.q8_hid ? 1 : 4), 256);
    m.tmp = ob_align_up(m.hid_scales + (m.q8_hid ? hidden / 4 : 0), 256);
    m.end = ob_align_up(m.tmp + (m.parts ? (uint64_t)m.max_places * m.d * 4 : m.mixed ? hidden * 4 : 0), 256);
    return m;
}

/* Rows that have chosen, or of each row the workgroups that have finished. */
uint64_t vk_route_counters(const ob_dev_plan *p)
{
    return 4 * (uint64_t)OB_MIN(p->prog.max_tok, ROUTER_ROWS);
}

uint64_t vk_moe_scratch(const ob_dev_plan *p, const ob_op *op)
{
    return moe_of(p, op).end;
}

vk_form vk_moe_form(const ob_dev_plan *p, const ob_op *op)
{
    const moe m = moe_of(p, op);
    return vk_weight_form(p, m.gate, m.gemm ? VK_FORM_F16 : m.q8_gate || m.q8_up ? VK_FORM_Q8 : VK_FORM_F32);
}

bool vk_route_fits(const ob_program *p, const ob_op *op, const char **why)
{
    *why = p->vals[op->in[0]].cols > VK_MAX_EXPERTS ? "too many experts to choose from" : NULL;
    return !*why;
}

bool vk_moe_fits(const ob_program *p, const ob_op *op, const char **why)
{
    *why = NULL;
    if (p->vals[op->in[0]].rows != OB_ROWS_TOK) *why = "experts of other rows than tokens";
    else if (p->vals[op->in[0]].cols % 32) *why = "experts of rows that are no multiple of 32 wide";
    else if (p->weights[op->w[2]].ne[2] > VK_MAX_EXPERTS) *why = "too many experts";
    for (int k = 0; k < 3; k++)
        if (op->w[k] != OB_NONE && !ob_type_get(p->weights[op->w[k]].type)->dequant) *why = "no matrix product for its type";
    if (op->w[1] != OB_NONE && p->weights[op->w[0]].hadamard != p->weights[op->w[1]].hadamard) *why = "gate and up of which one alone is rotated";
    return !*why;
}

/* Op i - 1 is the router. */
uint64_t vk_route_form(const ob_dev_plan *p, int32_t i)
{
    const ob_op *r = &p->prog.ops[i - 1];
    if (i == 0 || r->kind != OB_OP_LINEAR || p->prog.max_tok > VK_MATVEC_ROWS) return 0;
    const uint64_t n = (uint64_t)p->prog.max_tok * (uint64_t)p->prog.vals[r->in[0]].cols;
    return ob_align_up(n, 256) + n / 32 * (12 + 4 * (uint64_t)p->prog.vals[r->out[0]].cols);
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

static uint32_t route_flags(const ob_op *op)
{
    return (op->p.route.norm ? 1u : 0u) | (op->w[0] != OB_NONE ? 2u : 0u) | (op->w[1] != OB_NONE ? 4u : 0u);
}

ob_status vk_route_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_route_params *r = &op->p.route;
    const uint32_t n_class = (uint32_t)p->prog.vals[op->in[0]].cols;
    const ob_op *mix = mixture_of(p, i, op->out[0]);
    moe m = {0};
    if (mix) m = moe_of(p, mix);
    const bool sorts = mix && m.gemm && p->prog.max_tok <= SORT_ROWS;
    const vk_pipe *pipe;
    const bool in_parts = p->parts.of == op->in[0];
    OB_TRY(vk_kernel_get(p->dev, "moe_route", 14,
                         (uint32_t[]){power_of_two(32, n_class, OB_MIN(1024u, p->dev->phys->max_invocations)), n_class,
                                      (uint32_t)r->n_used, r->gating, (uint32_t)r->n_group, (uint32_t)r->n_group_used, route_flags(op),
                                      ob_f32_bits(r->scale), sorts ? m.n_expert : 1, sorts ? m.tile : 0, GEMM_PAD,
                                      in_parts ? (uint32_t)p->prog.max_tok : 0, p->parts.nu, ob_f32_bits(p->parts.eps)},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    if (in_parts) vk_reads(s, p->parts.at, p->parts.n_bytes);
    else read_value(p, s, op->in[0]);
    s->push.a[1] = in_parts ? p->parts.at : vk_value(p, op->in[0]);
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
    vk_push_addr(&s->push, 4, p->counts.addr);
    vk_writes(s, scratch(p), m.hid);
    vk_writes(s, p->counts.addr, 4);
    p->sorted_of = op->out[0];
    return OB_OK;
}

static ob_status add_sort(ob_dev_plan *p, int32_t i, const moe *m, ob_err *err)
{
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "moe_sort", 5,
                         (uint32_t[]){power_of_two(32, SORT_WG, p->dev->phys->max_invocations), m->n_used, m->n_expert, m->tile, GEMM_PAD},
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

/* --- norm, router and choice in one ------------------------------------------------------------------- */

typedef struct router {
    const ob_op *norm, *product, *route; /* norm may be NULL */
    ob_val x;                            /* what comes in */
    int32_t n_ops;
    uint32_t n_part; /* workgroups a row */
} router;

/* Parts of a row that each have classes, and whole blocks of 32 columns; 0: there are none. */
static uint32_t parts_of_row(uint32_t n_class, uint32_t cols, uint32_t subgroup)
{
    uint32_t n = (uint32_t)ob_div_up(n_class, ROUTER_WG / subgroup);
    while (n > 0 && cols % (32 * n)) n--;
    return n;
}

static bool same_memory(const ob_dev_plan *p, ob_val a, ob_val b)
{
    const uint64_t x = vk_value(p, a), y = vk_value(p, b);
    return x < y + vk_value_bytes(p, b) && y < x + vk_value_bytes(p, a);
}

static bool match_router(const ob_dev_plan *p, int32_t i, router *r)
{
    const ob_op *op = &p->prog.ops[i];
    *r = (router){.norm = op->kind == OB_OP_RMS_NORM ? op : NULL, .x = op->in[0]};
    r->n_ops = r->norm ? 3 : 2;
    if (i + r->n_ops > p->prog.n_ops || p->prog.max_tok > ROUTER_ROWS || !(p->fast & VK_FAST_SUBGROUP) ||
        vk_kernel_off(p->dev, "moe_router"))
        return false;
    r->product = op + (r->norm ? 1 : 0);
    r->route = r->product + 1;
    const ob_op *l = r->product;
    if (l->kind != OB_OP_LINEAR || r->route->kind != OB_OP_MOE_ROUTE || l->p.linear.n_mat != 1 || l->p.linear.scale != 1 ||
        l->in[1] != OB_NONE || l->w[4] != OB_NONE || p->weights[l->w[0]]->type != OB_F32 || r->route->in[0] != l->out[0] ||
        r->route->w[1] != OB_NONE)
        return false;
    const uint32_t cols = (uint32_t)p->prog.vals[r->x].cols;
    if (r->norm && (r->norm->out[0] != l->in[0] || r->norm->w[0] == OB_NONE ||
                    (r->norm->p.norm.group && (uint32_t)r->norm->p.norm.group != cols)))
        return false;
    /* Some workgroups still read x when others write. */
    const ob_val out[4] = {l->out[0], r->route->out[0], r->route->out[1], r->norm ? r->norm->out[0] : OB_NONE};
    for (int k = 0; k < 4; k++)
        if (out[k] != OB_NONE && same_memory(p, r->x, out[k])) return false;
    r->n_part = parts_of_row((uint32_t)p->prog.vals[l->out[0]].cols, cols, p->dev->sg);
    return r->n_part > 0;
}

/* v is read by op i and by nobody after it. */
static bool last_read(const ob_dev_plan *p, ob_val v, int32_t i)
{
    return !p->prog.vals[v].output && vk_next_reader(p, v, i) == OB_NONE;
}

bool vk_router_fits_parts(const ob_dev_plan *p, int32_t n)
{
    const ob_op *mix = &p->prog.ops[n + 3];
    router r;
    if (p->prog.max_tok > VK_MATVEC_ROWS || !match_router(p, n, &r) || !r.norm || mix->kind != OB_OP_MOE_GLU ||
        mix->in[0] != r.norm->out[0] || mix->in[1] != r.route->out[0] || mix->in[2] != r.route->out[1])
        return false;
    const moe m = moe_of(p, mix);
    return vk_moe_form(p, mix) == VK_FORM_Q8 && !m.mixed && m.q8_gate && m.q8_up && m.n_expert <= (uint32_t)p->prog.vals[r.product->out[0]].cols &&
           vk_next_reader(p, r.norm->out[0], n + 1) == n + 3 && last_read(p, r.norm->out[0], n + 3) &&
           last_read(p, r.product->out[0], n + 2) && (p->dev->tested_experts[m.gate->type] & VK_FAST_FUSED);
}

static ob_status add_router(ob_dev_plan *p, int32_t i, const router *r, ob_err *err)
{
    const ob_route_params *o = &r->route->p.route;
    const int32_t last = i + r->n_ops - 1;
    const ob_op *mix = mixture_of(p, last, r->route->out[0]);
    const vk_form form = r->norm ? vk_wanted_form(p, r->norm->out[0], last - 1, VK_FORM_ANY) : VK_FORM_F32;
    moe m = {0};
    if (mix) m = moe_of(p, mix);
    const bool waits = mix && m.direct && !m.mixed && mix == r->route + 1 && m.n_expert <= (uint32_t)p->prog.vals[r->product->out[0]].cols;
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "moe_router", 13,
                         (uint32_t[]){ROUTER_WG, (uint32_t)p->prog.vals[r->product->out[0]].cols, (uint32_t)o->n_used, o->gating,
                                      (uint32_t)o->n_group, (uint32_t)o->n_group_used, route_flags(r->route),
                                      ob_f32_bits(o->scale), p->dev->sg, (uint32_t)p->prog.vals[r->x].cols, form, r->norm != NULL,
                                      !waits},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    const ob_val out[4] = {r->norm ? r->norm->out[0] : OB_NONE, r->product->out[0], r->route->out[0], r->route->out[1]};
    const uint64_t count = p->counts.addr;
    read_value(p, s, r->x);
    for (int k = 0; k < 4; k++)
        if (out[k] != OB_NONE) {
            vk_writes(s, vk_value(p, out[k]), vk_value_bytes(p, out[k]));
            s->push.a[4 + k] = vk_value(p, out[k]);
        }
    vk_writes(s, count, vk_route_counters(p));
    s->push.a[1] = vk_value(p, r->x);
    if (r->norm) s->push.a[2] = p->weights[r->norm->w[0]]->w;
    s->push.a[3] = p->weights[r->product->w[0]]->w;
    if (r->route->w[0] != OB_NONE) vk_push_addr(&s->push, 0, p->weights[r->route->w[0]]->w);
    if (form != VK_FORM_F32) vk_write_form(p, s, out[0], form, &s->push.u[2]);
    if (waits) p->chosen_by = i + r->n_ops;
    vk_push_addr(&s->push, 6, count);
    s->push.u[8] = ob_f32_bits(r->norm ? r->norm->p.norm.eps : 0);
    s->grid[0] = r->n_part;
    s->grid[1] = (uint32_t)p->prog.max_tok;
    return OB_OK;
}

ob_status vk_router_add(ob_dev_plan *p, int32_t i, int32_t *n_ops, ob_err *err)
{
    router r;
    *n_ops = 0;
    if (!match_router(p, i, &r)) return OB_OK;
    *n_ops = r.n_ops;
    return add_router(p, i, &r, err);
}

/* --- few rows ---------------------------------------------------------------------------------------- */

/* Threads that share columns: no more than there are units. */
static uint32_t threads_of(uint32_t units, uint32_t most)
{
    const uint32_t least = 4;
    uint32_t t = OB_MAX(most, least);
    while (t > least && t > units) t /= 2;
    return t;
}

/* The device allows so many threads; a power of two. */
static uint32_t fit_wg(const ob_dev_plan *p, uint32_t wg)
{
    while (wg > p->dev->phys->max_invocations) wg /= 2;
    return wg;
}

/* Threads of a column of moe_down where a workgroup has blocks of 32 columns. */
static uint32_t norm_threads(const ob_dev_plan *p, const moe *m)
{
    const uint32_t t = threads_of(m->n_used * m->ffp / step_of(p, m->down), m->tune.norm_t);
    return OB_MIN(t, fit_wg(p, BLOCK / m->tune.norm_cols * t) / (BLOCK / m->tune.norm_cols));
}

static void kernel_name(const ob_dev_plan *p, const char *what, const ob_dev_weight *w, char *out, size_t cap)
{
    snprintf(out, cap, "%s%s_%s_%s", what, !(p->fast & VK_FAST_SUBGROUP) ? "_plain" : takes_pairs(p, w) ? "_pairs" : "",
             uses_int8(p, w) ? "i8" : "f32", vk_type_name(w->type));
}

/* Which product moe_up does. */
enum { BOTH, GATE, UP, DOWN };

/* Columns that T threads take at a time: all that the workgroup has for them, unless registers would not do. */
static uint32_t columns_of(const moe *m, bool q8, uint32_t wg, uint32_t t)
{
    uint32_t n = BLOCK * t / wg;
    while (n > 1 && n * m->tile > (q8 ? 8u : 1u)) n /= 2;
    return OB_MAX(n, 1u);
}

/* The choice that is still to be made by who reads the logits. */
static void push_choice(const ob_dev_plan *p, const moe *m, vk_dispatch *s)
{
    const ob_op *route = m->op - 1;
    if (p->parts.of == route->in[0]) vk_reads(s, p->parts.at, p->parts.n_bytes);
    else read_value(p, s, route->in[0]);
    for (int k = 0; k < 2; k++) vk_writes(s, vk_value(p, route->out[k]), vk_value_bytes(p, route->out[k]));
    s->push.a[0] = route->w[0] != OB_NONE ? p->weights[route->w[0]]->w : 0;
    vk_push_addr(&s->push, 10, vk_value(p, route->in[0]));
    vk_push_addr(&s->push, 12, vk_value(p, route->out[0]));
    vk_push_addr(&s->push, 14, vk_value(p, route->out[1]));
}

static ob_status add_up(ob_dev_plan *p, int32_t i, const moe *m, uint32_t part, ob_err *err)
{
    const ob_dev_weight *w = part == UP ? m->up : part == DOWN ? m->down : m->gate;
    const ob_moe_params *o = &m->op->p.moe;
    const bool q8 = uses_int8(p, w), choose = p->chosen_by == i;
    const uint32_t k = part == DOWN ? m->ffp : m->d, n = part == DOWN ? m->d : m->ff;
    /* Without subgroups every thread has sums in shared memory, of which there may be 16 KiB. */
    const uint32_t wg = fit_wg(p, p->fast & VK_FAST_SUBGROUP ? m->tune.up_wg : PLAIN_WG), t = OB_MAX(threads_of(k / step_of(p, w), m->tune.up_t), wg / BLOCK), pairs = m->rows * m->n_used;
    const bool by_pair = pairs <= m->n_expert;
    const ob_op *route = choose ? m->op - 1 : NULL;
    const ob_route_params *r = choose ? &route->p.route : &(ob_route_params){.gating = 1, .n_used = 1, .n_group = 1, .n_group_used = 1};
    const vk_pipe *pipe;
    char name[48];
    kernel_name(p, "moe_up", w, name, sizeof name);
    VkDeviceAddress x = vk_value(p, m->op->in[0]), scales = 0;
    const vk_form form = vk_weight_form(p, w, q8 ? VK_FORM_Q8 : VK_FORM_F32);
    const vk_formed *in = part != DOWN ? vk_find_form(p, m->op->in[0], form, &x, &scales) : NULL;
    const bool raw = in && in->raw;
    OB_TRY(vk_kernel_get(p->dev, name, 24,
                         (uint32_t[]){wg, t, m->tile, p->dev->sg, (m->direct ? 1u : 0u) | (choose ? 2u : 0u) | (by_pair ? 4u : 0u),
                                      part, m->q8_hid && !m->turned, k, n, m->n_expert,
                                      (uint32_t)o->act | (m->merged && part != DOWN ? 16u : 0u), ob_f32_bits(o->clamp),
                                      columns_of(m, q8, wg, t), choose ? (uint32_t)p->prog.vals[route->in[0]].cols : 1, m->n_used,
                                      r->gating, (uint32_t)r->n_group, (uint32_t)r->n_group_used, choose ? route_flags(route) : 0,
                                      ob_f32_bits(r->scale), m->direct ? 1 : OB_MIN(pairs, (uint32_t)LIST_PAIRS),
                                      q8 ? OB_MIN(m->tune.up_ahead, (uint32_t)ob_div_up(k / step_of(p, w), t)) : 1, raw ? m->rows : 0,
                                      raw ? ob_f32_bits(in->eps) : 0},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    const VkDeviceAddress base = scratch(p), hid_scales = base + m->hid_scales, hid = base + (m->turned ? m->raw : m->hid);
    if (part == DOWN) x = base + m->hid, scales = hid_scales;
    else if (in) vk_reads(s, x, vk_form_bytes(p, m->op->in[0], form));
    else read_value(p, s, m->op->in[0]);
    if (part == DOWN) vk_reads(s, x, m->tmp - m->hid);
    if (!choose) read_value(p, s, m->op->in[1]);
    if (part == UP) vk_reads(s, base + m->tmp, m->end - m->tmp);
    if (part == GATE || part == DOWN) vk_writes(s, base + m->tmp, m->end - m->tmp);
    else vk_writes(s, hid, base + m->tmp - hid);
    const ob_dev_weight *first = part == DOWN ? m->down : m->gate;
    s->push.a[1] = x;
    s->push.a[2] = hid;
    s->push.a[3] = first->w;
    s->push.a[4] = first->s;
    s->push.a[5] = first->h;
    s->push.a[6] = m->up->w;
    s->push.a[7] = m->up->s;
    const VkDeviceAddress more[] = {m->up->h, first->z, m->up->z, scales, hid_scales, vk_value(p, m->op->in[1]), 0, base + m->tmp};
    for (int a = 0; a < 8; a++) vk_push_addr(&s->push, 2 * a, more[a]);
    if (choose) push_choice(p, m, s);
    s->grid[0] = (uint32_t)ob_div_up(n, BLOCK);
    s->grid[1] = by_pair ? pairs : m->n_expert;
    s->cut = choose ? 0 : 1; /* the first workgroup writes the choice for all */
    return OB_OK;
}

/* norm: op whose input is this one's result, and gets it as int8 too; or OB_NONE. */
static ob_status add_down(ob_dev_plan *p, int32_t i, const moe *m, int32_t norm, ob_err *err)
{
    const ob_val res = m->op->in[3];
    const tuning *u = &m->tune;
    const uint32_t t = norm != OB_NONE ? norm_threads(p, m) : threads_of(m->n_used * m->ffp / step_of(p, m->down), u->down_t);
    const uint32_t cols = norm != OB_NONE ? u->norm_cols : m->q8_hid ? u->down_cols : 1;
    const uint32_t wg = norm != OB_NONE ? BLOCK / cols * t : OB_MAX(fit_wg(p, u->down_wg), t);
    const vk_pipe *pipe;
    char name[48];
    kernel_name(p, "moe_down", m->down, name, sizeof name);
    OB_TRY(vk_kernel_get(p->dev, name, 11,
                         (uint32_t[]){wg, t, !m->q8_hid ? 1 : norm != OB_NONE ? u->norm_ahead : u->down_ahead, p->dev->sg, m->ffp, m->d, m->n_used,
                                      m->n_expert, res != OB_NONE, cols, norm != OB_NONE},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    const VkDeviceAddress base = scratch(p);
    vk_reads(s, base + m->hid, m->tmp - m->hid);
    for (int k = 1; k < 4; k++) read_value(p, s, m->op->in[k]);
    vk_writes(s, vk_value(p, m->op->out[0]), vk_value_bytes(p, m->op->out[0]));
    s->push.a[1] = base + m->hid;
    s->push.a[2] = vk_value(p, m->op->out[0]);
    s->push.a[3] = m->down->w;
    s->push.a[4] = m->down->s;
    s->push.a[5] = m->down->h;
    if (res != OB_NONE) s->push.a[6] = vk_value(p, res);
    s->push.a[7] = vk_value(p, m->op->in[1]);
    const VkDeviceAddress more[] = {m->down->z, base + m->hid_scales, vk_value(p, m->op->in[2])};
    for (int k = 0; k < 3; k++) vk_push_addr(&s->push, 2 * k, more[k]);
    s->grid[0] = m->rows;
    s->grid[1] = (uint32_t)ob_div_up(m->d, wg / t * cols);
    s->cut = 2;
    if (norm != OB_NONE) {
        const ob_op *n = &p->prog.ops[norm];
        VkDeviceAddress to[2];
        vk_write_form(p, s, n->out[0], VK_FORM_Q8, to);
        p->forms[p->form_last].raw = true;
        p->forms[p->form_last].eps = n->p.norm.eps;
        const VkDeviceAddress forms[] = {p->weights[n->w[0]]->w, to[0], to[1]};
        for (int k = 0; k < 3; k++) vk_push_addr(&s->push, 6 + 2 * k, forms[k]);
    }
    return OB_OK;
}

/* --- many rows --------------------------------------------------------------------------------------- */

/* Hidden layers turned, from raw to hid. */
static ob_status add_turn(ob_dev_plan *p, int32_t i, const moe *m, ob_err *err)
{
    const VkDeviceAddress base = scratch(p);
    const vk_form kind = m->gemm ? VK_FORM_F16 : m->q8_hid ? VK_FORM_Q8 : VK_FORM_F32;
    vk_dispatch *s;
    OB_TRY(vk_turn_add(p, i, &(vk_turn){.x = base + m->raw, .to = base + m->hid, .scales = base + m->hid_scales,
                                        .row_of = m->gemm ? base + m->row_of : 0, .per_row = m->n_used, .rows = OB_ROWS_TOK, .k = m->ffp,
                                        .n_places = m->max_places, .half = m->gemm, .form = vk_weight_form(p, m->down, kind)},
                       &s, err));
    vk_reads(s, base, m->hid);
    vk_writes(s, base + m->hid, m->tmp - m->hid);
    return OB_OK;
}

/* Part 0: gate and up to hid; 1: down to tmp. */
static ob_status add_gemm(ob_dev_plan *p, int32_t i, const moe *m, int part, ob_err *err)
{
    const ob_dev_weight *w = part ? m->down : m->gate;
    const ob_moe_params *o = &m->op->p.moe;
    const tile *t = &m->t;
    const uint32_t wg = t->bm / t->wm[part] * (t->bn[part] / t->wn[part]) * p->dev->sg, n = part ? m->d : m->ff;
    const vk_pipe *pipe;
    char name[48];
    snprintf(name, sizeof name, "moe_gemm_%s_%s", part ? "down" : "up", vk_type_name(w->type));
    OB_TRY(vk_kernel_get(p->dev, name, 11,
                         (uint32_t[]){wg, t->bm, t->bn[part], t->bk, t->wm[part], t->wn[part], t->stages, part ? m->ff : m->d, n,
                                      (uint32_t)o->act | (m->merged ? 16u : 0u), ob_f32_bits(o->clamp)},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    const VkDeviceAddress base = scratch(p);
    VkDeviceAddress form = 0, scales = 0;
    const uint64_t hid = m->turned ? m->raw : m->hid;
    vk_find_form(p, m->op->in[0], vk_moe_form(p, m->op), &form, &scales);
    if (!part) vk_reads(s, form, vk_value_bytes(p, m->op->in[0]) / 2);
    vk_reads(s, base, part ? m->hid_scales : m->raw);
    if (part) vk_writes(s, base + m->tmp, m->end - m->tmp);
    else vk_writes(s, base + hid, m->hid_scales - hid);
    s->push.a[1] = part ? base + m->hid : form;
    s->push.a[2] = part ? base + m->tmp : base + hid;
    s->push.a[3] = w->w;
    s->push.a[4] = w->s;
    s->push.a[5] = w->h;
    s->push.a[6] = m->up->w;
    s->push.a[7] = m->up->s;
    const VkDeviceAddress more[] = {m->up->h, w->z, m->up->z, base, base + m->row_of};
    for (int k = 0; k < 5; k++) vk_push_addr(&s->push, 2 * k, more[k]);
    s->grid[0] = (uint32_t)ob_div_up(part ? n : 2 * n, t->bn[part]);
    s->grid[1] = m->max_tiles;
    s->cut = 2;
    return OB_OK;
}

static ob_status add_sum(ob_dev_plan *p, int32_t i, const moe *m, ob_err *err)
{
    const ob_val res = m->op->in[3];
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "moe_sum", 5, (uint32_t[]){SUM_WG, m->n_used, res != OB_NONE, m->gemm, m->n_expert}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    vk_reads(s, scratch(p), m->end);
    for (int k = 1; k < 4; k++) read_value(p, s, m->op->in[k]);
    vk_writes(s, vk_value(p, m->op->out[0]), vk_value_bytes(p, m->op->out[0]));
    s->push.a[1] = scratch(p) + m->tmp;
    s->push.a[2] = vk_value(p, m->op->out[0]);
    if (res != OB_NONE) s->push.a[3] = vk_value(p, res);
    s->push.a[4] = vk_value(p, m->op->in[2]);
    s->push.a[5] = scratch(p) + m->place_of;
    s->push.a[6] = vk_value(p, m->op->in[1]);
    s->push.u[0] = m->d / 4;
    s->grid[0] = m->rows;
    s->grid[1] = (uint32_t)ob_div_up(m->d / 4, SUM_WG);
    return OB_OK;
}

bool vk_moe_gives_norm(const ob_dev_plan *p, const ob_op *op)
{
    const moe m = moe_of(p, op);
    return !m.parts && m.q8_hid && m.rows <= VK_MATVEC_ROWS && m.d % BLOCK == 0 && (p->fast & VK_FAST_SUBGROUP) &&
           norm_threads(p, &m) >= 4;
}

ob_status vk_moe_add(ob_dev_plan *p, int32_t i, int32_t norm, ob_err *err)
{
    const moe m = moe_of(p, &p->prog.ops[i]);
    if (m.direct && i > 0 && p->parts.of != OB_NONE && p->parts.of == m.op[-1].in[0]) p->chosen_by = i;
    const vk_form form = vk_moe_form(p, m.op);
    OB_TRY(vk_form_add(p, i, form, err));
    if (m.gemm && p->sorted_of != m.op->in[1]) OB_TRY(add_sort(p, i, &m, err));
    p->sorted_of = OB_NONE;
    if (m.gemm) {
        OB_TRY(add_gemm(p, i, &m, 0, err));
        if (m.turned) OB_TRY(add_turn(p, i, &m, err));
        OB_TRY(add_gemm(p, i, &m, 1, err));
        return add_sum(p, i, &m, err);
    }
    if (m.mixed) OB_TRY(add_up(p, i, &m, GATE, err));
    OB_TRY(add_up(p, i, &m, m.mixed ? UP : BOTH, err));
    p->chosen_by = p->parts.of = OB_NONE;
    if (m.turned) OB_TRY(add_turn(p, i, &m, err));
    if (!m.parts) return add_down(p, i, &m, norm, err);
    OB_TRY(add_up(p, i, &m, DOWN, err));
    return add_sum(p, i, &m, err);
}
