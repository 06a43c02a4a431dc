/* Matrix products: which kernel for how many rows.
 *
 *   up to MATVEC_ROWS rows   matvec, a weight is read once for all of them; with int8 activations
 *                            where the device has the dot product
 *   more                     gemm_cm with cooperative matrices in f16, else gemm in f32
 *   odd widths               linear_any
 */
#include "dev/vulkan/vk_int.h"

#include <stdio.h>
#include <string.h>

#include "base/math.h"

enum { MATVEC_ROWS = 8, MATVEC_WG = 128, QUANT_WG = 64 };

const char *vk_type_name(ob_type t)
{
    switch (t) {
    case OB_F32: return "f32";
    case OB_F16: return "f16";
    case OB_BF16: return "bf16";
    case OB_Q4_0: return "q4_0";
    case OB_Q4_1: return "q4_1";
    case OB_Q5_0: return "q5_0";
    case OB_Q5_1: return "q5_1";
    case OB_Q8_0: return "q8_0";
    case OB_Q4_K: return "q4_k";
    case OB_Q5_K: return "q5_k";
    case OB_Q6_K: return "q6_k";
    default: return "?";
    }
}

static bool is_float(ob_type t) { return t == OB_F32 || t == OB_F16 || t == OB_BF16; }

static int32_t rows_of(const ob_dev_plan *p, const ob_op *op) { return vk_max_rows(p, p->prog.vals[op->in[0]].rows); }

static bool odd_width(const ob_dev_plan *p, const ob_op *op) { return p->prog.vals[op->in[0]].cols % 32 != 0; }

static bool uses_int8(const ob_dev_plan *p, const ob_op *op, int m)
{
    const ob_type t = p->weights[op->w[m]]->type;
    return rows_of(p, op) <= MATVEC_ROWS && !is_float(t) && (p->fast & VK_FAST_INT8) &&
           (p->dev->tested[t] & VK_FAST_INT8) && !odd_width(p, op);
}

uint64_t vk_linear_scratch(const ob_dev_plan *p, const ob_op *op)
{
    const uint64_t rows = (uint64_t)rows_of(p, op), k = (uint64_t)p->prog.vals[op->in[0]].cols;
    return rows <= MATVEC_ROWS ? ob_align_up(rows * k, 256) + rows * k / 4 : 0;
}

static ob_status no_memory(ob_err *err) { return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan"); }

/* Activations to int8 in the scratch. */
static ob_status add_quantise(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_value *x = &p->prog.vals[op->in[0]];
    const uint64_t at = p->work.addr + p->scratch_off, n = (uint64_t)rows_of(p, op) * (uint64_t)x->cols;
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "quantise", 1, (uint32_t[]){QUANT_WG}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    vk_reads(s, vk_value(p, op->in[0]), vk_value_bytes(p, op->in[0]));
    vk_writes(s, at, vk_linear_scratch(p, op));
    s->push.a[1] = vk_value(p, op->in[0]);
    s->push.a[2] = at;
    s->push.a[3] = at + ob_align_up(n, 256);
    s->push.u[0] = x->rows;
    s->push.u[1] = (uint32_t)x->cols;
    s->grid[0] = (uint32_t)ob_div_up(x->cols / 32, QUANT_WG);
    s->grid[1] = (uint32_t)rows_of(p, op);
    return OB_OK;
}

/* What all products push; see the shaders' Push. */
static vk_dispatch *add_product(ob_dev_plan *p, int32_t i, int m, const vk_pipe *pipe)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_dev_weight *w = p->weights[op->w[m]];
    const ob_value *x = &p->prog.vals[op->in[0]];
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return NULL;
    s->mat = m;
    vk_reads(s, vk_value(p, op->in[0]), vk_value_bytes(p, op->in[0]));
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

static ob_status add_matvec(ob_dev_plan *p, int32_t i, int m, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_dev_weight *w = p->weights[op->w[m]];
    const vk_dev *d = p->dev;
    const bool int8 = uses_int8(p, op, m), sub = (p->fast & VK_FAST_SUBGROUP) != 0;
    const uint32_t n = (uint32_t)p->prog.vals[op->out[m]].cols;
    const uint32_t t = OB_MAX(w->nu >= 256 ? 64u : 32u, sub ? d->sg : 1), wg = OB_MAX((uint32_t)MATVEC_WG, t);
    char name[48];
    snprintf(name, sizeof name, "matvec%s_%s_%s", sub ? "" : "_plain", int8 ? "i8" : "f32", vk_type_name(w->type));
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, name, 6,
                         (uint32_t[]){wg, t, (uint32_t)rows_of(p, op), op->w[4 + m] != OB_NONE, op->in[1] != OB_NONE, d->sg},
                         &pipe, err));
    vk_dispatch *s = add_product(p, i, m, pipe);
    if (!s) return no_memory(err);
    if (int8) {
        const uint64_t at = p->work.addr + p->scratch_off;
        vk_reads(s, at, vk_linear_scratch(p, op));
        s->push.a[1] = at;
        vk_push_addr(&s->push, 8,
                     at + ob_align_up((uint64_t)rows_of(p, op) * (uint64_t)p->prog.vals[op->in[0]].cols, 256));
    }
    const uint32_t groups = (uint32_t)ob_div_up(n, wg / t);
    s->grid[0] = OB_MIN(groups, 32768u);
    s->grid[1] = (uint32_t)ob_div_up(groups, s->grid[0]);
    return OB_OK;
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
    OB_TRY(vk_kernel_get(p->dev, name, 5, (uint32_t[]){wg, bm, bn, op->w[4 + m] != OB_NONE, op->in[1] != OB_NONE}, &pipe,
                         err));
    vk_dispatch *s = add_product(p, i, m, pipe);
    if (!s) return no_memory(err);
    s->grid[0] = (uint32_t)ob_div_up(p->prog.vals[op->out[m]].cols, bn);
    s->grid[1] = (uint32_t)ob_div_up(rows_of(p, op), bm);
    return OB_OK;
}

static ob_status add_any(ob_dev_plan *p, int32_t i, int m, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "linear_any", 3,
                         (uint32_t[]){QUANT_WG, op->w[4 + m] != OB_NONE, op->in[1] != OB_NONE}, &pipe, err));
    vk_dispatch *s = add_product(p, i, m, pipe);
    if (!s) return no_memory(err);
    s->grid[0] = (uint32_t)ob_div_up(p->prog.vals[op->out[m]].cols, QUANT_WG);
    s->grid[1] = (uint32_t)rows_of(p, op);
    return OB_OK;
}

ob_status vk_linear_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    bool int8 = false;
    for (int m = 0; m < op->p.linear.n_mat; m++) int8 |= uses_int8(p, op, m);
    if (int8) OB_TRY(add_quantise(p, i, err));
    for (int m = 0; m < op->p.linear.n_mat; m++) {
        if (odd_width(p, op)) OB_TRY(add_any(p, i, m, err));
        else if (rows_of(p, op) <= MATVEC_ROWS) OB_TRY(add_matvec(p, i, m, err));
        else OB_TRY(add_gemm(p, i, m, err));
    }
    return OB_OK;
}
