/* Matrix products: which kernel for how many rows.
 *
 *   up to VK_MATVEC_ROWS rows   matvec, see vk_matvec.c
 *   more                        gemm_cm with cooperative matrices in f16, else gemm in f32
 *   odd widths                  linear_any
 */
#include "dev/vulkan/vk_int.h"

#include <stdio.h>
#include <string.h>

#include "base/math.h"

enum {
    SUM_WG = 128,
    QUANT_WG = 64,
    PART_BYTES = 256 << 20, /* K is not split further than this much of partial sums */
};

/* A cooperative-matrix kernel's tile; the workgroup has a subgroup per wm x wn. */
typedef struct tile {
    uint32_t bm, bn, bk, wm, wn;
} tile;

static const tile k_tiles[] = {
    {128, 128, 64, 64, 64}, /* best for 512 rows on the one card it was measured on */
    {64, 128, 64, 32, 64},  /* less shared memory, or fewer rows */
    {32, 64, 128, 16, 32},
    {16, 64, 128, 16, 16},
};

const char *vk_type_name(ob_type t)
{
    switch (t) {
    case OB_F32:
        return "f32";
    case OB_F16:
        return "f16";
    case OB_BF16:
        return "bf16";
    case OB_Q4_0:
        return "q4_0";
    case OB_Q4_1:
        return "q4_1";
    case OB_Q5_0:
        return "q5_0";
    case OB_Q5_1:
        return "q5_1";
    case OB_Q8_0:
        return "q8_0";
    case OB_Q4_K:
        return "q4_k";
    case OB_Q5_K:
        return "q5_k";
    case OB_Q6_K:
        return "q6_k";
    default:
        return "?";
    }
}

int32_t vk_linear_rows(const ob_dev_plan *p, const ob_op *op)
{
    return vk_max_rows(p, p->prog.vals[op->in[0]].rows);
}

static bool odd_width(const ob_dev_plan *p, const ob_op *op)
{
    return p->prog.vals[op->in[0]].cols % 32 != 0;
}

static bool uses_coopmat(const ob_dev_plan *p, const ob_op *op, int m)
{
    const ob_type t = p->weights[op->w[m]]->type;
    return vk_linear_rows(p, op) > VK_MATVEC_ROWS && (p->fast & VK_FAST_COOPMAT) &&
           (p->dev->tested[t] & VK_FAST_COOPMAT) && !odd_width(p, op);
}

static uint64_t shared_bytes(const tile *t)
{
    return (uint64_t)(t->bm + t->bn) * (t->bk / 8 + 1) * 16 +
           (uint64_t)(t->bm / t->wm) * (t->bn / t->wn) * 1024;
}

static tile tile_of(const ob_dev_plan *p, const ob_op *op)
{
    const uint32_t rows = (uint32_t)vk_linear_rows(p, op);
    size_t i = rows <= 16 ? 3 : rows <= 32 ? 2 : rows <= 64 ? 1 : 0;
    while (i + 1 < OB_COUNT(k_tiles) && shared_bytes(&k_tiles[i]) > p->dev->phys->max_shared_bytes)
        i++;
    return k_tiles[i];
}

/* Parts K is split into so that a small product still occupies the device. */
static uint32_t split_of(const ob_dev_plan *p, const ob_op *op, int m, const tile *t)
{
    const uint64_t rows = (uint64_t)ob_div_up(vk_linear_rows(p, op), t->bm),
                   n = (uint64_t)p->prog.vals[op->out[m]].cols;
    const uint64_t groups = rows * (uint64_t)ob_div_up((int64_t)n, t->bn);
    const uint64_t tiles = (uint64_t)ob_div_up(p->prog.vals[op->in[0]].cols, t->bk);
    uint32_t split = 1;
    while (split < 16 && groups * split < 192 && tiles / (2 * split) >= 4 &&
           rows * t->bm * n * 4 * 2 * split <= PART_BYTES)
        split *= 2;
    return split;
}

uint64_t vk_linear_form(const ob_dev_plan *p, const ob_op *op)
{
    const uint64_t rows = (uint64_t)vk_linear_rows(p, op), k = (uint64_t)p->prog.vals[op->in[0]].cols;
    if (rows <= VK_MATVEC_ROWS) return ob_align_up(rows * k, 256) + ob_align_up(rows * k / 32 * 12, 256);
    const tile t = tile_of(p, op);
    return p->fast & VK_FAST_COOPMAT ? ob_align_up((rows + t.bm) * k * 2, 256) : 0;
}

static uint64_t part_bytes(const ob_dev_plan *p, const ob_op *op, int m)
{
    if (!uses_coopmat(p, op, m)) return 0;
    const tile t = tile_of(p, op);
    const uint32_t split = split_of(p, op, m, &t);
    const uint64_t rows = (uint64_t)ob_div_up(vk_linear_rows(p, op), t.bm) * t.bm;
    return split > 1 ? ob_align_up(rows * (uint64_t)p->prog.vals[op->out[m]].cols * 4 * split, 256)
                     : 0;
}

uint64_t vk_linear_parts(const ob_dev_plan *p, const ob_op *op)
{
    uint64_t n = 0;
    for (int m = 0; m < op->p.linear.n_mat; m++) n += part_bytes(p, op, m);
    return n;
}

static vk_form form_of(const ob_dev_plan *p, const ob_op *op)
{
    for (int m = 0; m < op->p.linear.n_mat; m++) {
        if (vk_matvec_int8(p, op, m)) return VK_FORM_Q8;
        if (uses_coopmat(p, op, m)) return VK_FORM_F16;
    }
    return VK_FORM_F32;
}

bool vk_linear_all(const ob_dev_plan *p, const ob_op *op, vk_form form)
{
    if (op->kind != OB_OP_LINEAR) return false;
    for (int m = 0; m < op->p.linear.n_mat; m++)
        if (form != (vk_matvec_int8(p, op, m) ? VK_FORM_Q8 : uses_coopmat(p, op, m) ? VK_FORM_F16 : VK_FORM_F32)) return false;
    return true;
}

vk_form vk_wanted_form(const ob_dev_plan *p, ob_val v, int32_t i)
{
    if (vk_kernel_off(p->dev, "form")) return VK_FORM_F32;
    for (i++; i < p->prog.n_ops; i++) {
        const ob_op *op = &p->prog.ops[i];
        /* A reader of f32 does not mind another form beside it. */
        const vk_form form = op->in[0] != v                ? VK_FORM_F32
                             : op->kind == OB_OP_LINEAR  ? form_of(p, op)
                             : op->kind == OB_OP_MOE_GLU ? vk_moe_form(p, op)
                                                         : VK_FORM_F32;
        if (form != VK_FORM_F32) return form;
        for (int k = 0; k < OB_OP_MAX_OUT; k++)
            if (op->out[k] == v) return VK_FORM_F32;
    }
    return VK_FORM_F32;
}

bool vk_only_form(const ob_dev_plan *p, ob_val v, int32_t i, vk_form form)
{
    const ob_op *r = &p->prog.ops[i + 1];
    return i + 1 < p->prog.n_ops && form != VK_FORM_F32 && vk_linear_all(p, r, form) && r->in[0] == v &&
           r->in[1] != v && vk_last_reader(p, v, i + 1);
}

/* --- values in other forms ---------------------------------------------------------------------- */

/* Int8: bytes, then scales, then sums of squares where a norm is still to come; f16: half of the f32 bytes. */
static VkDeviceAddress form_at(const ob_dev_plan *p, int slot)
{
    return p->work.addr + p->form_off[slot];
}
static VkDeviceAddress scales_at(const ob_dev_plan *p, int slot, ob_val v)
{
    return form_at(p, slot) + ob_align_up(vk_value_bytes(p, v) / 4, 256);
}

void vk_write_form(ob_dev_plan *p, vk_dispatch *s, ob_val v, vk_form form, void *at)
{
    const int slot = p->form_last = 1 - p->form_last;
    const VkDeviceAddress both[2] = {form_at(p, slot), scales_at(p, slot, v)};
    memcpy(at, both, sizeof both);
    vk_writes(s, both[0], vk_value_bytes(p, v) / 2 + 512);
    vk_forget_form(p, v);
    p->forms[slot] = (vk_formed){.of = v, .form = form};
}

const vk_formed *vk_find_form(const ob_dev_plan *p, ob_val v, vk_form form, VkDeviceAddress *at, VkDeviceAddress *scales)
{
    for (int i = 0; i < 2; i++) {
        if (p->forms[i].of != v || p->forms[i].form != form) continue;
        *at = form_at(p, i);
        *scales = scales_at(p, i, v);
        return &p->forms[i];
    }
    return NULL;
}

void vk_forget_form(ob_dev_plan *p, ob_val v)
{
    for (int i = 0; i < 2; i++)
        if (p->forms[i].of == v) p->forms[i].of = OB_NONE;
}

static ob_status no_memory(ob_err *err)
{
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
}

/* Activations into another form by a pass of their own. */
static ob_status add_form(ob_dev_plan *p, int32_t i, vk_form form, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_value *x = &p->prog.vals[op->in[0]];
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, form == VK_FORM_Q8 ? "quantise" : "to_f16", 1,
                         (uint32_t[]){QUANT_WG}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    vk_reads(s, vk_value(p, op->in[0]), vk_value_bytes(p, op->in[0]));
    s->push.a[1] = vk_value(p, op->in[0]);
    vk_write_form(p, s, op->in[0], form, &s->push.a[2]);
    s->push.u[0] = x->rows;
    s->push.u[1] = (uint32_t)x->cols;
    s->grid[0] = (uint32_t)ob_div_up(x->cols / (form == VK_FORM_Q8 ? 32 : 8), QUANT_WG);
    s->grid[1] = (uint32_t)vk_linear_rows(p, op);
    return OB_OK;
}

vk_dispatch *vk_linear_product(ob_dev_plan *p, int32_t i, int m, const vk_pipe *pipe)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_dev_weight *w = p->weights[op->w[m]];
    const ob_value *x = &p->prog.vals[op->in[0]];
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return NULL;
    s->mat = m;
    s->n_mats = 1;
    if (op->in[1] != OB_NONE) vk_reads(s, vk_value(p, op->in[1]), vk_value_bytes(p, op->in[1]));
    vk_writes(s, vk_value(p, op->out[m]), vk_value_bytes(p, op->out[m]));
    s->push.a[1] = vk_value(p, op->in[0]);
    s->push.a[2] = vk_value(p, op->out[m]);
    s->push.a[3] = w->w;
    s->push.a[4] = w->s;
    s->push.a[5] = w->h;
    if (op->w[4 + m] != OB_NONE) s->push.a[6] = p->weights[op->w[4 + m]]->w;
    if (op->in[1] != OB_NONE) s->push.a[7] = vk_value(p, op->in[1]);
    s->push.u[0] = x->rows;
    s->push.u[1] = (uint32_t)x->cols;
    s->push.u[2] = (uint32_t)p->prog.vals[op->out[m]].cols;
    s->push.u[3] = (uint32_t)w->nu;
    s->push.u[4] = ob_f32_bits(op->p.linear.scale);
    vk_push_addr(&s->push, 6, w->z);
    return s;
}

/* The same, of f32 activations. */
static vk_dispatch *add_product(ob_dev_plan *p, int32_t i, int m, const vk_pipe *pipe)
{
    const ob_op *op = &p->prog.ops[i];
    vk_dispatch *s = vk_linear_product(p, i, m, pipe);
    if (s) vk_reads(s, vk_value(p, op->in[0]), vk_value_bytes(p, op->in[0]));
    return s;
}

static ob_status add_gemm(ob_dev_plan *p, int32_t i, int m, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_dev_weight *w = p->weights[op->w[m]];
    const bool roomy = p->dev->phys->max_shared_bytes >= 28 << 10;
    const uint32_t bm = roomy ? 32 : 16, bn = roomy ? 64 : 32, wg = bm / 4 * (bn / 4);
    char name[32];
    snprintf(name, sizeof name, "gemm_%s", vk_type_name(w->type));
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, name, 5,
                         (uint32_t[]){wg, bm, bn, op->w[4 + m] != OB_NONE, op->in[1] != OB_NONE},
                         &pipe, err));
    vk_dispatch *s = add_product(p, i, m, pipe);
    if (!s) return no_memory(err);
    s->grid[0] = (uint32_t)ob_div_up(p->prog.vals[op->out[m]].cols, bn);
    s->grid[1] = (uint32_t)ob_div_up(vk_linear_rows(p, op), bm);
    s->cut = 1;
    return OB_OK;
}

/* The sum over the parts of K, with bias, scale and residual. */
static ob_status add_sum(ob_dev_plan *p, int32_t i, int m, VkDeviceAddress part, uint32_t split,
                         uint32_t part_rows, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const uint32_t n = (uint32_t)p->prog.vals[op->out[m]].cols;
    const bool bias = op->w[4 + m] != OB_NONE, res = op->in[1] != OB_NONE;
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "gemm_sum", 4, (uint32_t[]){SUM_WG, split, bias, res}, &pipe,
                         err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    vk_reads(s, part, part_bytes(p, op, m));
    if (res) vk_reads(s, vk_value(p, op->in[1]), vk_value_bytes(p, op->in[1]));
    vk_writes(s, vk_value(p, op->out[m]), vk_value_bytes(p, op->out[m]));
    s->push.a[1] = part;
    s->push.a[2] = vk_value(p, op->out[m]);
    if (bias) s->push.a[6] = p->weights[op->w[4 + m]]->w;
    if (res) s->push.a[7] = vk_value(p, op->in[1]);
    s->push.u[0] = p->prog.vals[op->in[0]].rows;
    s->push.u[1] = n;
    s->push.u[2] = part_rows;
    s->push.u[3] = ob_f32_bits(op->p.linear.scale);
    s->grid[0] = (uint32_t)ob_div_up(n, SUM_WG);
    s->grid[1] = (uint32_t)vk_linear_rows(p, op);
    return OB_OK;
}

/* `part`: this matrix's partial sums. */
static ob_status add_coopmat(ob_dev_plan *p, int32_t i, int m, VkDeviceAddress part, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const tile t = tile_of(p, op);
    const uint32_t split = split_of(p, op, m, &t), wg = t.bm / t.wm * (t.bn / t.wn) * p->dev->sg;
    const uint32_t m_tiles = (uint32_t)ob_div_up(vk_linear_rows(p, op), t.bm);
    char name[32];
    snprintf(name, sizeof name, "gemm_cm_%s", vk_type_name(p->weights[op->w[m]]->type));
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, name, 9,
                         (uint32_t[]){wg, t.bm, t.bn, t.bk, t.wm, t.wn, split,
                                      op->w[4 + m] != OB_NONE, op->in[1] != OB_NONE},
                         &pipe, err));
    vk_dispatch *s = vk_linear_product(p, i, m, pipe);
    if (!s) return no_memory(err);
    VkDeviceAddress x = 0, unused;
    vk_find_form(p, op->in[0], VK_FORM_F16, &x, &unused);
    vk_reads(s, x, vk_linear_form(p, op));
    s->push.a[1] = x;
    s->push.u[5] = m_tiles;
    s->grid[0] = m_tiles;
    s->grid[1] = (uint32_t)ob_div_up(p->prog.vals[op->out[m]].cols, t.bn);
    s->grid[2] = split;
    s->cut = 2;
    if (split == 1) return OB_OK;
    s->push.a[2] = part;
    s->n_writes = 0;
    vk_writes(s, part, part_bytes(p, op, m));
    return add_sum(p, i, m, part, split, m_tiles * t.bm, err);
}

static ob_status add_any(ob_dev_plan *p, int32_t i, int m, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "linear_any", 3,
                         (uint32_t[]){QUANT_WG, op->w[4 + m] != OB_NONE, op->in[1] != OB_NONE},
                         &pipe, err));
    vk_dispatch *s = add_product(p, i, m, pipe);
    if (!s) return no_memory(err);
    s->grid[0] = (uint32_t)ob_div_up(p->prog.vals[op->out[m]].cols, QUANT_WG);
    s->grid[1] = (uint32_t)vk_linear_rows(p, op);
    return OB_OK;
}

ob_status vk_form_add(ob_dev_plan *p, int32_t i, vk_form form, ob_err *err)
{
    VkDeviceAddress at, scales;
    return form == VK_FORM_F32 || vk_find_form(p, p->prog.ops[i].in[0], form, &at, &scales) ? OB_OK : add_form(p, i, form, err);
}

ob_status vk_linear_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    OB_TRY(vk_form_add(p, i, form_of(p, op), err));
    VkDeviceAddress part = p->work.addr + p->part_off;
    for (int m = 0; m < op->p.linear.n_mat; m++) {
        if (odd_width(p, op))
            OB_TRY(add_any(p, i, m, err));
        else if (vk_linear_rows(p, op) <= VK_MATVEC_ROWS)
            OB_TRY(vk_matvec_add(p, i, m, err));
        else if (uses_coopmat(p, op, m))
            OB_TRY(add_coopmat(p, i, m, part, err));
        else
            OB_TRY(add_gemm(p, i, m, err));
        part += part_bytes(p, op, m);
    }
    return OB_OK;
}
