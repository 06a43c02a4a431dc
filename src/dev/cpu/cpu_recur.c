/* Ops that carry state from token to token: convolution over time and the gated delta net.
 *
 * An item is a sequence and a slice of its state, walked token by token: the state of a slice stays in
 * the cache of the thread that has it. A chunk-wise form of the delta rule would turn it into matrix
 * products, but on a CPU the walk is a few percent of a layer, and it gives the same bits whatever the
 * chunks.
 */
#include "dev/cpu/cpu_int.h"

#include <math.h>
#include <string.h>

#include "base/math.h"

enum { CONV_COLUMNS = 256 };

void cpu_conv_run(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t)
{
    (void)t;
    const int32_t n_tap = (int32_t)p->prog.weights[op->w[0]].ne[0], cols = p->prog.vals[op->out[0]].cols;
    const float *taps = p->conv_taps[op - p->prog.ops], *bias = cpu_vector(p, op->w[1]);
    const int64_t n_slice = ob_div_up(cols, CONV_COLUMNS), n_floats = p->prog.states[op->p.conv.state].n_floats;
    for (int64_t i, i1; ob_pool_take(p->dev->pool, p->step.n_seq * n_slice, 1, &i, &i1);) {
        const int64_t q = i / n_slice, c0 = i % n_slice * CONV_COLUMNS, n = OB_MIN(CONV_COLUMNS, cols - c0);
        const int64_t first = p->step.seq_first[q], last = p->step.seq_first[q + 1];
        float *state = p->states[op->p.conv.state] + p->step.seq_slot[q] * n_floats + c0;
        const float *u[OB_CONV_MAX_TAPS], *tap[OB_CONV_MAX_TAPS];
        for (int32_t k = 0; k < n_tap; k++) tap[k] = taps + (int64_t)k * cols + c0;
        for (int32_t k = 0; k + 1 < n_tap && p->step.seq_past[q] == 0; k++)
            memset(state + (int64_t)k * cols, 0, (size_t)n * sizeof *state);
        for (int64_t r = first; r < last; r++) {
            for (int32_t k = 0; k < n_tap; k++) {
                const int64_t at = r - first - (n_tap - 1 - k); /* before 0: in the state */
                u[k] = at < 0 ? state + (at + n_tap - 1) * cols : cpu_row(p, op->in[0], first + at) + c0;
            }
            p->dev->kern->conv(u, tap, n_tap, bias ? bias + c0 : NULL, op->p.conv.act, cpu_row(p, op->out[0], r) + c0, n);
        }
        /* Oldest first, so that no row is overwritten before it is read. */
        for (int32_t k = 0; k + 1 < n_tap; k++) {
            const int64_t at = last - first - (n_tap - 1 - k);
            const float *src = at < 0 ? state + (at + n_tap - 1) * cols : cpu_row(p, op->in[0], first + at) + c0;
            memmove(state + (int64_t)k * cols, src, (size_t)n * sizeof *state);
        }
    }
}

static void unit(const float *x, float *y, int32_t n, float eps, float scale)
{
    double sum = (double)eps;
    for (int32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    const float r = (float)((double)scale / sqrt(sum));
    for (int32_t i = 0; i < n; i++) y[i] = x[i] * r;
}

void cpu_gdn_run(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t)
{
    const ob_gdn_params *g = &op->p.gdn;
    const int64_t n_key = (int64_t)g->n_head_k * g->k_dim, n_state = (int64_t)g->k_dim * g->v_dim;
    const float *dt = cpu_vector(p, op->w[0]), *a = cpu_vector(p, op->w[1]);
    float *q = t->ref, *k = q + g->k_dim;
    for (int64_t i, i1; ob_pool_take(p->dev->pool, (int64_t)p->step.n_seq * g->n_head_v, 1, &i, &i1);) {
        const int64_t seq = i / g->n_head_v, j = i % g->n_head_v;
        const int64_t kh = g->tiled ? j % g->n_head_k : j / (g->n_head_v / g->n_head_k);
        float *s = p->states[g->state] + p->step.seq_slot[seq] * p->prog.states[g->state].n_floats + j * n_state;
        if (p->step.seq_past[seq] == 0) memset(s, 0, (size_t)n_state * sizeof *s);
        for (int64_t r = p->step.seq_first[seq]; r < p->step.seq_first[seq + 1]; r++) {
            const float *x = cpu_row(p, op->in[0], r);
            const float alpha = cpu_row(p, op->in[1], r)[j] + dt[j], beta = cpu_row(p, op->in[2], r)[j];
            const float softplus = alpha > 20.0f ? alpha : log1pf(expf(alpha));
            unit(x + kh * g->k_dim, q, g->k_dim, g->eps, 1.0f / sqrtf((float)g->k_dim));
            unit(x + n_key + kh * g->k_dim, k, g->k_dim, g->eps, 1.0f);
            p->dev->kern->gdn(q, k, x + 2 * n_key + j * g->v_dim, expf(a[j] * softplus), 1.0f / (1.0f + expf(-beta)), s,
                              g->k_dim, g->v_dim, cpu_row(p, op->out[0], r) + j * g->v_dim);
        }
    }
}
