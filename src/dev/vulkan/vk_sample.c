/* TOP_K: the best of each row of logits and their log-sum-exp, so that sampling needs a few words of a row and
 * not all of it. See shaders/top_k.comp. */
#include "dev/vulkan/vk_int.h"

#include <stdio.h>

#include "base/math.h"

enum {
    TOP_WG = 256,
    SEGMENT = 4096, /* columns that a workgroup looks through */
};

static uint32_t n_segments(const ob_program *g, const ob_op *op)
{
    return (uint32_t)ob_div_up(g->vals[op->in[0]].cols, SEGMENT);
}

/* Per row and segment: k numbers, k ids, a sum of four. */
typedef struct parts {
    uint64_t list, id, sum, end;
} parts;

static parts parts_of(const ob_dev_plan *p, const ob_op *op)
{
    const uint64_t n = (uint64_t)vk_max_rows(p, p->prog.vals[op->in[0]].rows) * n_segments(&p->prog, op);
    const uint64_t list = ob_align_up(n * (uint64_t)op->p.top_k.k * 4, 256);
    return (parts){.list = p->part_off, .id = p->part_off + list, .sum = p->part_off + 2 * list,
                   .end = p->part_off + 2 * list + n * 16};
}

uint64_t vk_top_k_scratch(const ob_dev_plan *p, const ob_op *op)
{
    return n_segments(&p->prog, op) > 1 ? parts_of(p, op).end - p->part_off : 0;
}

bool vk_top_k_supports(const vk_dev *d, char *why, size_t cap)
{
    if (d->phys->max_invocations >= TOP_WG) return true;
    snprintf(why, cap, "workgroups of 256 are too large for this device");
    return false;
}

/* A pass over rows, or over the lists of their segments. */
static ob_status add_pass(ob_dev_plan *p, int32_t i, bool from_lists, bool to_lists, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_value *x = &p->prog.vals[op->in[0]];
    const parts t = parts_of(p, op);
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "top_k", 2, (uint32_t[]){TOP_WG, (uint32_t)op->p.top_k.k}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
    s->push.a[1] = vk_value(p, op->in[0]);
    s->push.a[2] = vk_value(p, op->out[0]);
    if (!from_lists) vk_reads(s, s->push.a[1], vk_value_bytes(p, op->in[0]));
    if (!to_lists) vk_writes(s, s->push.a[2], vk_value_bytes(p, op->out[0]));
    if (from_lists || to_lists) {
        (from_lists ? vk_reads : vk_writes)(s, p->work.addr + t.list, t.end - t.list);
        s->push.a[3] = p->work.addr + t.list;
        s->push.a[4] = p->work.addr + t.id;
        s->push.a[5] = p->work.addr + t.sum;
    }
    s->push.u[0] = x->rows;
    s->push.u[1] = (uint32_t)x->cols;
    s->push.u[2] = SEGMENT;
    s->push.u[3] = n_segments(&p->prog, op);
    s->push.u[4] = from_lists ? 2 : to_lists ? 1 : 0;
    s->grid[0] = from_lists ? 1 : n_segments(&p->prog, op);
    s->grid[1] = (uint32_t)vk_max_rows(p, x->rows);
    return OB_OK;
}

ob_status vk_top_k_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    if (n_segments(&p->prog, &p->prog.ops[i]) == 1) return add_pass(p, i, false, false, err);
    OB_TRY(add_pass(p, i, false, true, err));
    return add_pass(p, i, true, false, err);
}
