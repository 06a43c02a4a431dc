/* Products that another unit does (dev/products.h): one thread calls it, the others do what it hands out.
 *
 * All threads of the step meet once for each piece of work that the unit hands out, and once more when it is done; in
 * between they wait, spinning a little and then asleep. The calling thread is the first of the pool.
 */
#include "dev/cpu/cpu_int.h"

#include "base/math.h"

static void take_part(cpu_help *h)
{
    for (int64_t i0, i1; ob_pool_take(h->pool, h->n, h->grain, &i0, &i1);) h->fn(h->arg, i0, i1);
    ob_pool_barrier(h->pool);
}

/* ob_parallel.run, on the calling thread. */
static void hand_out(const ob_parallel *par, int64_t n, int64_t grain, void (*fn)(void *arg, int64_t i0, int64_t i1), void *arg)
{
    cpu_help *h = (cpu_help *)(uintptr_t)par; /* this device's own, and not const */
    if (n <= 0) return;
    h->fn = fn;
    h->arg = arg;
    h->n = n;
    h->grain = OB_MAX(grain, 1);
    ob_pool_barrier(h->pool);
    take_part(h);
}

void cpu_products_init(cpu_dev *d) { d->help = (cpu_help){.base.run = hand_out, .pool = d->pool}; }

void cpu_products_do(const ob_dev_plan *p, const cpu_thread *t, int32_t n_jobs)
{
    cpu_help *h = &p->dev->help;
    if (t == p->threads) {
        if (n_jobs) p->dev->products->mul(p->dev->products->self, p->jobs, n_jobs, &h->base);
        h->fn = NULL;
        ob_pool_barrier(h->pool);
        return;
    }
    for (;;) {
        ob_pool_barrier(h->pool);
        if (!h->fn) return;
        take_part(h);
    }
}

bool cpu_has_product(const ob_dev_plan *p, const ob_op *op)
{
    if (op->kind == OB_OP_MOE_GLU) return p->weights[op->w[2]]->prod;
    for (int i = 0; op->kind == OB_OP_LINEAR && i < op->p.linear.n_mat; i++)
        if (p->weights[op->w[i]]->prod) return true;
    return false;
}

void cpu_product_measure(const ob_op *op, cpu_moe_sizes *z)
{
    z->jobs = OB_MAX(z->jobs, (size_t)op->p.linear.n_mat * sizeof(ob_product));
}

void cpu_product_run(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t)
{
    const int64_t rows = cpu_n_rows(p, p->prog.vals[op->in[0]].rows);
    int32_t n = 0;
    for (int i = 0; t == p->threads && rows && i < op->p.linear.n_mat; i++) {
        const ob_dev_weight *w = p->weights[op->w[i]];
        const int32_t cols = p->prog.vals[op->out[i]].cols, k = p->prog.vals[op->in[0]].cols;
        if (!w->prod) continue;
        if (p->dev->observe) cpu_observe(p, op->w[i], 0, cpu_row(p, op->in[0], 0), k, rows);
        p->jobs[n++] = (ob_product){.w = w->prod, .x = cpu_row(p, op->in[0], 0), .ldx = k, .n_rows = rows,
                                    .y = cpu_row(p, op->out[i], 0), .ldy = cols, .bias = cpu_vector(p, op->w[4 + i]),
                                    .res = op->in[1] == OB_NONE ? NULL : cpu_row(p, op->in[1], 0), .ldres = cols,
                                    .scale = op->p.linear.scale};
    }
    cpu_products_do(p, t, n);
}
