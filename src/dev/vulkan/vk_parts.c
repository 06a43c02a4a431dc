/* Row-wise ops over vectors and parts of rows: act, affine, gate, split, join. See shaders/parts.comp. */
#include "dev/vulkan/vk_int.h"

#include "base/math.h"

enum { PARTS_WG = 128 };

static const char *name_of(ob_op_kind kind)
{
    switch (kind) {
    case OB_OP_ACT:
        return "act";
    case OB_OP_AFFINE:
        return "affine";
    case OB_OP_GATE:
        return "gate";
    case OB_OP_SPLIT:
        return "split";
    default:
        return "join";
    }
}

static void set_parts(const ob_dev_plan *p, const ob_op *op, vk_dispatch *s)
{
    const ob_program *g = &p->prog;
    const bool split = op->kind == OB_OP_SPLIT;
    const ob_val *part = split ? op->out : op->in;
    const int32_t n_group = split ? op->p.split.n_group : op->p.join.n_group;
    s->push.a[1] = vk_reads_value(p, s, op->in[0]);
    s->push.a[3] = vk_writes_value(p, s, op->out[0]);
    s->push.a[4] = split ? vk_writes_value(p, s, op->out[1]) : vk_reads_value(p, s, op->in[1]);
    for (int k = 0; k < 2; k++) s->push.u[2 + k] = (uint32_t)(g->vals[part[k]].cols / n_group);
}

static void set_elementwise(const ob_dev_plan *p, const ob_op *op, vk_dispatch *s)
{
    s->push.a[1] = vk_reads_value(p, s, op->in[0]);
    s->push.a[2] = vk_reads_value(p, s, op->in[1]);
    s->push.a[3] = vk_writes_value(p, s, op->out[0]);
    if (op->kind == OB_OP_GATE) {
        s->push.a[4] = vk_reads_value(p, s, op->in[2]);
        s->push.u[2] = (uint32_t)p->prog.vals[op->in[1]].cols;
    } else if (op->kind == OB_OP_AFFINE) {
        for (int k = 0; k < 4; k++)
            if (op->w[k] != OB_NONE) s->push.a[4 + k] = p->weights[op->w[k]]->w;
    }
}

ob_status vk_parts_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const bool parts = op->kind == OB_OP_SPLIT || op->kind == OB_OP_JOIN;
    const ob_value *whole = &p->prog.vals[op->kind == OB_OP_SPLIT ? op->in[0] : op->out[0]];
    uint32_t has = 0;
    for (int k = 0; k < 4; k++) has |= op->kind == OB_OP_AFFINE && op->w[k] != OB_NONE ? 1u << k : 0;
    if (op->in[1] != OB_NONE) has |= 16;
    if (op->in[2] != OB_NONE) has |= 32;
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, name_of(op->kind), 3,
                         (uint32_t[]){PARTS_WG, op->kind == OB_OP_ACT ? op->p.act.act : 0, has}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
    s->push.u[0] = whole->rows;
    s->push.u[1] = (uint32_t)whole->cols;
    if (parts) set_parts(p, op, s);
    else set_elementwise(p, op, s);
    s->grid[0] = (uint32_t)ob_div_up(whole->cols, PARTS_WG);
    s->grid[1] = (uint32_t)vk_max_rows(p, whole->rows);
    return OB_OK;
}
