/* Reference of the ops that carry state from token to token. */
#include <math.h>

#include "base/math.h"
#include "ops/ref_int.h"

void ob_ref_conv1d(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last)
{
    const ob_weight *w = &e->prog->weights[op->w[0]];
    const int64_t n_tap = w->ne[0], cols = w->ne[1];
    const float *bias = ref_vector(e, op->w[1], e->scratch);
    const float *taps = ref_vector(e, op->w[0], e->scratch + cols);
    for (int64_t item = first; item < last; item++) {
        const int64_t s = item / cols, c = item % cols;
        float u[2 * OB_CONV_MAX_TAPS] = {0}, tap[OB_CONV_MAX_TAPS];
        bool fresh;
        float *state = ref_state(e, op->p.conv.state, s, &fresh);
        for (int64_t i = 0; i < n_tap - 1 && !fresh; i++) u[i] = state[i * cols + c];
        memcpy(tap, taps + c * n_tap, (size_t)n_tap * sizeof *tap);
        for (int64_t t = e->step->seq_first[s]; t < e->step->seq_first[s + 1]; t++) {
            u[n_tap - 1] = ref_row(e, op->in[0], t)[c];
            double sum = bias ? (double)bias[c] : 0;
            for (int64_t i = 0; i < n_tap; i++) sum += (double)tap[i] * (double)u[i];
            ref_row(e, op->out[0], t)[c] = ob_ref_act(op->p.conv.act, (float)sum);
            for (int64_t i = 0; i + 1 < n_tap; i++) u[i] = u[i + 1];
        }
        for (int64_t i = 0; i < n_tap - 1; i++) state[i * cols + c] = u[i];
    }
}

static void unit(const float *x, float *y, int32_t n, float eps, float scale)
{
    const float r = (float)((double)scale / sqrt(ref_dot(x, x, n) + (double)eps));
    for (int32_t i = 0; i < n; i++) y[i] = x[i] * r;
}

/* One token of one value head: `s` is its state [k_dim][v_dim]. */
static void gdn_token(const ob_gdn_params *g, const float *q, const float *k, const float *v, float decay, float beta,
                      float *s, float *delta, float *y)
{
    for (int32_t j = 0; j < g->v_dim; j++) {
        double seen = 0, out = 0;
        for (int32_t i = 0; i < g->k_dim; i++) seen += (double)(s[i * g->v_dim + j] * decay) * (double)k[i];
        delta[j] = beta * (v[j] - (float)seen);
        for (int32_t i = 0; i < g->k_dim; i++) {
            float *x = &s[i * g->v_dim + j];
            *x = *x * decay + k[i] * delta[j];
            out += (double)*x * (double)q[i];
        }
        y[j] = (float)out;
    }
}

void ob_ref_gdn(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last)
{
    const ob_gdn_params *g = &op->p.gdn;
    const int64_t n_key = (int64_t)g->n_head_k * g->k_dim;
    float *q = e->scratch, *k = q + g->k_dim, *delta = k + g->k_dim, *spare = delta + g->v_dim;
    const float *dt = ref_vector(e, op->w[0], spare), *a = ref_vector(e, op->w[1], spare + g->n_head_v);
    for (int64_t item = first; item < last; item++) {
        const int64_t seq = item / g->n_head_v, j = item % g->n_head_v;
        const int64_t kh = g->tiled ? j % g->n_head_k : j / (g->n_head_v / g->n_head_k);
        bool fresh;
        float *s = ref_state(e, g->state, seq, &fresh) + j * g->k_dim * g->v_dim;
        if (fresh) memset(s, 0, (size_t)g->k_dim * (size_t)g->v_dim * sizeof *s);
        for (int64_t t = e->step->seq_first[seq]; t < e->step->seq_first[seq + 1]; t++) {
            const float *x = ref_row(e, op->in[0], t);
            const float alpha = ref_row(e, op->in[1], t)[j] + dt[j], beta = ref_row(e, op->in[2], t)[j];
            const float softplus = alpha > 20.0f ? alpha : log1pf(expf(alpha));
            unit(x + kh * g->k_dim, q, g->k_dim, g->eps, 1.0f / sqrtf((float)g->k_dim));
            unit(x + n_key + kh * g->k_dim, k, g->k_dim, g->eps, 1.0f);
            gdn_token(g, q, k, x + 2 * n_key + j * g->v_dim, expf(a[j] * softplus), 1.0f / (1.0f + expf(-beta)), s,
                      delta, ref_row(e, op->out[0], t) + j * g->v_dim);
        }
    }
}
