/* Matrix products: which kernel for how many rows.
 *
 *   up to VK_MATVEC_ROWS rows   matvec, see vk_matvec.c
 *   more                        gemm_cm with cooperative matrices in f16, see vk_gemm.c, else gemm in f32
 *   odd widths                  linear_any
 */
#include "dev/vulkan/vk_int.h"

#include <stdio.h>
#include <string.h>

#include "base/math.h"

enum { QUANT_WG = 64, TURN_WG = 128 };

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
    case OB_MXFP4:
        return "mxfp4";
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

uint64_t vk_form_bytes(const ob_dev_plan *p, ob_val v, vk_form form)
{
    const uint64_t all = vk_value_bytes(p, v);
    return (form & VK_FORM_KIND) == VK_FORM_F32 ? all : all / 2 + 512;
}

uint64_t vk_linear_form(const ob_dev_plan *p, const ob_op *op)
{
    const uint64_t rows = (uint64_t)vk_linear_rows(p, op), k = (uint64_t)p->prog.vals[op->in[0]].cols;
    for (int m = 0; m < op->p.linear.n_mat; m++)
        if (vk_matrix_form(p, op, m) & VK_FORM_TURNED) return ob_align_up((rows + 128) * k * 4, 256); /* f32, or tiles of f16 */
    return rows <= VK_MATVEC_ROWS ? ob_align_up(rows * k, 256) + ob_align_up(rows * k / 32 * 12, 256) : vk_gemm_form(p, op);
}

vk_form vk_weight_form(const ob_dev_plan *p, const ob_dev_weight *w, vk_form kind)
{
    unsigned flags = w->desc.hadamard ? VK_FORM_TURNED : 0;
    if (flags && w->desc.act4 && p->coarse_off[0]) flags |= VK_FORM_COARSE;
    return (vk_form)((unsigned)kind | flags);
}

vk_form vk_matrix_form(const ob_dev_plan *p, const ob_op *op, int m)
{
    const vk_form kind = vk_matvec_int8(p, op, m) ? VK_FORM_Q8 : vk_gemm_fits(p, op, m) ? VK_FORM_F16 : VK_FORM_F32;
    return vk_weight_form(p, p->weights[op->w[m]], kind);
}

static vk_form form_of(const ob_dev_plan *p, const ob_op *op)
{
    for (int m = 0; m < op->p.linear.n_mat; m++) {
        const vk_form form = vk_matrix_form(p, op, m);
        if (form != VK_FORM_F32) return form;
    }
    return VK_FORM_F32;
}

bool vk_linear_all(const ob_dev_plan *p, const ob_op *op, vk_form form)
{
    if (op->kind != OB_OP_LINEAR) return false;
    for (int m = 0; m < op->p.linear.n_mat; m++)
        if (form != vk_matrix_form(p, op, m)) return false;
    return true;
}

vk_form vk_wanted_form(const ob_dev_plan *p, ob_val v, int32_t i, unsigned can)
{
    if (vk_kernel_off(p->dev, "form")) return VK_FORM_F32;
    for (i++; i < p->prog.n_ops; i++) {
        const ob_op *op = &p->prog.ops[i];
        /* A reader of f32 does not mind another form beside it. */
        const vk_form form = op->in[0] != v                ? VK_FORM_F32
                             : op->kind == OB_OP_LINEAR  ? form_of(p, op)
                             : op->kind == OB_OP_MOE_GLU ? vk_moe_form(p, op)
                                                         : VK_FORM_F32;
        if (form != VK_FORM_F32) return form & VK_FORM_ANY & ~can ? VK_FORM_F32 : form;
        for (int k = 0; k < OB_OP_MAX_OUT; k++)
            if (op->out[k] == v) return VK_FORM_F32;
    }
    return VK_FORM_F32;
}

vk_form vk_plain_form(const ob_dev_plan *p, ob_val v, int32_t i, bool *only)
{
    const vk_form wanted = vk_wanted_form(p, v, i, VK_FORM_ANY), kind = (vk_form)(wanted & VK_FORM_KIND);
    const vk_form form = wanted == kind || kind == VK_FORM_F16 ? kind : VK_FORM_F32;
    *only = form != VK_FORM_F32 && vk_only_form(p, v, i, wanted);
    return form;
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
    vk_writes(s, both[0], vk_form_bytes(p, v, form));
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

ob_status vk_turn_add(ob_dev_plan *p, int32_t i, const vk_turn *t, vk_dispatch **out, ob_err *err)
{
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "turn", 11,
                         (uint32_t[]){TURN_WG, t->half, t->n_places == 0 ? 0 : t->row_of ? 2 : 1, OB_MAX(t->per_row, 1u), 0, 0, 0, 0, 0, 0, t->form},
                         &pipe, err));
    vk_dispatch *s = *out = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    s->push.a[1] = t->x;
    s->push.a[2] = t->to;
    s->push.a[3] = t->scales;
    s->push.a[4] = t->row_of;
    s->push.u[0] = t->rows;
    s->push.u[1] = t->k;
    s->push.u[2] = t->n_places;
    s->grid[0] = t->n_places ? t->n_places : (uint32_t)vk_max_rows(p, t->rows);
    s->grid[1] = (uint32_t)ob_div_up(t->k / 4, TURN_WG);
    return OB_OK;
}

/* Activations into another form by a pass of their own. */
static ob_status add_form(ob_dev_plan *p, int32_t i, vk_form form, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_value *x = &p->prog.vals[op->in[0]];
    if (form & VK_FORM_TURNED) {
        vk_dispatch *s;
        VkDeviceAddress from = vk_value(p, op->in[0]), unused;
        /* f16 where its producer left nothing else: codes of 4 bits are of the values as they are, if these are there */
        const bool half = (form & VK_FORM_KIND) == VK_FORM_F16 && i > 0 && p->prog.ops[i - 1].out[0] == op->in[0] &&
                          vk_only_form(p, op->in[0], i - 1, form) && vk_find_form(p, op->in[0], VK_FORM_F16, &from, &unused);
        OB_TRY(vk_turn_add(p, i, &(vk_turn){.x = from, .rows = x->rows, .k = (uint32_t)x->cols, .half = half, .form = form}, &s, err));
        vk_reads(s, from, half ? vk_form_bytes(p, op->in[0], VK_FORM_F16) : vk_value_bytes(p, op->in[0]));
        vk_write_form(p, s, op->in[0], form, &s->push.a[2]);
        return OB_OK;
    }
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
    if (!s) return NULL;
    VkDeviceAddress x = vk_value(p, op->in[0]), unused;
    vk_find_form(p, op->in[0], vk_matrix_form(p, op, m), &x, &unused);
    vk_reads(s, x, vk_value_bytes(p, op->in[0]));
    s->push.a[1] = x;
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
    for (int m = 0; m < op->p.linear.n_mat; m++) {
        OB_TRY(vk_form_add(p, i, vk_matrix_form(p, op, m), err));
        if (odd_width(p, op))
            OB_TRY(add_any(p, i, m, err));
        else if (vk_linear_rows(p, op) <= VK_MATVEC_ROWS)
            OB_TRY(vk_matvec_add(p, i, m, err));
        else if (vk_gemm_fits(p, op, m))
            OB_TRY(vk_gemm_add(p, i, m, err));
        else
            OB_TRY(add_gemm(p, i, m, err));
    }
    return OB_OK;
}
