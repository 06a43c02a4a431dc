/* A matrix per head: the products around the absorbed form of latent attention (MLA). */
#include "dev/vulkan/vk_int.h"

#include <stdio.h>

#include "base/math.h"

enum { HEADS_WG = 128, MAX_COLUMNS = 8 };

ob_status vk_linear_heads_add(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_dev_weight *w = p->weights[op->w[0]];
    const ob_value *x = &p->prog.vals[op->in[0]];
    const bool sub = (p->fast & VK_FAST_SUBGROUP) != 0;
    const uint32_t n_head = (uint32_t)op->p.heads.n_head, n = (uint32_t)w->desc.ne[1];
    const uint32_t rows = (uint32_t)vk_max_rows(p, x->rows), nc = OB_MIN(rows, (uint32_t)MAX_COLUMNS);
    const uint32_t least = sub ? p->dev->sg : 4;
    uint32_t t = OB_MAX(32u, least);
    while (t > least && t / 2 >= w->nu) t /= 2;
    char name[48];
    snprintf(name, sizeof name, "linear_heads%s_%s", sub ? "" : "_plain", vk_type_name(w->type));
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, name, 8,
                         (uint32_t[]){HEADS_WG, t, nc, p->dev->sg, n_head, (uint32_t)w->desc.ne[0], n, (uint32_t)op->p.heads.tail},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
    vk_reads(s, vk_value(p, op->in[0]), vk_value_bytes(p, op->in[0]));
    vk_writes(s, vk_value(p, op->out[0]), vk_value_bytes(p, op->out[0]));
    s->push.a[1] = vk_value(p, op->in[0]);
    s->push.a[2] = vk_value(p, op->out[0]);
    s->push.a[3] = w->w;
    s->push.a[4] = w->s;
    s->push.a[5] = w->h;
    s->push.a[6] = w->z;
    s->push.u[0] = x->rows;
    s->grid[0] = (uint32_t)ob_div_up((int64_t)n_head * n, HEADS_WG / t);
    s->grid[1] = (uint32_t)ob_div_up(rows, nc);
    s->cut = 1;
    return OB_OK;
}
