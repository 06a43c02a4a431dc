/* Weights into the device's cache while it has little else to do: attention of a short context leaves the memory
 * idle, and the products after it are next. */
#include "dev/vulkan/vk_int.h"

#include <stdlib.h>

#include "base/math.h"

enum {
    WARM_WG = 256,
    WARM_GROUPS = 264,
    WARM_AHEAD = 8,
    WARM_RANGES = 6,
};

/* OB_VK_WARM: bytes in MiB. */
uint64_t vk_warm_bytes(const vk_phys *p)
{
    const char *s = getenv("OB_VK_WARM");
    (void)p;
    return s ? (uint64_t)strtoul(s, NULL, 10) << 20 : 0;
}

ob_status vk_warm_add(ob_dev_plan *p, int32_t after, ob_err *err)
{
    uint64_t left = p->dev->warm_bytes;
    if (!left || p->prog.max_tok > VK_MATVEC_ROWS) return OB_OK;
    VkDeviceAddress at[WARM_RANGES];
    uint32_t n16[WARM_RANGES], n = 0;
    for (int32_t i = after + 1; i < p->prog.n_ops && left && n < WARM_RANGES; i++) {
        const ob_op *op = &p->prog.ops[i];
        if (op->kind == OB_OP_ATTENTION) break;
        if (op->kind != OB_OP_LINEAR) continue;
        uint64_t all = 0;
        for (int m = 0; m < op->p.linear.n_mat; m++) all += p->weights[op->w[m]]->read_bytes;
        const double part = OB_MIN(1.0, (double)left / (double)all);
        for (int m = 0; m < op->p.linear.n_mat && n < WARM_RANGES; m++) {
            const ob_dev_weight *w = p->weights[op->w[m]];
            at[n] = w->w;
            n16[n++] = (uint32_t)OB_MIN((double)w->read_bytes * part / 16, 4e9);
        }
        left -= OB_MIN(left, all);
    }
    if (!n) return OB_OK;
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "warm", 3, (uint32_t[]){WARM_WG, n, WARM_AHEAD}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, -1);
    if (!s) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
    for (uint32_t k = 0; k < n; k++) {
        s->push.a[1 + k] = at[k];
        s->push.u[k] = n16[k];
    }
    s->push.a[7] = p->work.addr + p->part_off;
    s->grid[0] = WARM_GROUPS;
    return OB_OK;
}
