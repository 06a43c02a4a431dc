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

/* ------------------------------------------------------------------ convolved attention (ZAYA) */

typedef struct cca {
    const ob_ref_env *e;
    const ob_op *op;
    const float *tap, *bias, *grp, *grp_bias, *k_scale;
    int32_t n_q, n_qk, hd; /* columns of q, of q and k, of a head */
    bool taps_first;
} cca;

/* q|k of the token `back` before row t of sequence s: from the step, the state, or zero. */
static void cca_input(const cca *c, int64_t s, int64_t t, int32_t back, float *u)
{
    const ob_ref_env *e = c->e;
    const int64_t at = t - back - e->step->seq_first[s];
    bool fresh;
    const float *state = ref_state(e, c->op->p.cca.state, s, &fresh);
    if (at >= 0) {
        memcpy(u, ref_row(e, c->op->in[0], t - back), (size_t)c->n_q * sizeof *u);
        memcpy(u + c->n_q, ref_row(e, c->op->in[1], t - back), (size_t)(c->n_qk - c->n_q) * sizeof *u);
    } else if (fresh) {
        memset(u, 0, (size_t)c->n_qk * sizeof *u);
    } else {
        memcpy(u, state + (at + 2) * c->n_qk, (size_t)c->n_qk * sizeof *u);
    }
}

/* Second convolution of head h: old and now are the first one's rows of the token before and of this one. */
static void cca_head(const cca *c, int32_t h, const float *old, const float *now, float *y)
{
    const int32_t hd = c->hd;
    for (int32_t o = 0; o < hd; o++) {
        double sum = (double)c->grp_bias[h * hd + o];
        for (int32_t i = 0; i < hd; i++) {
            const int64_t at = (int64_t)(h * hd + o) * hd + i;
            const float w0 = c->taps_first ? c->grp[2 * at] : c->grp[at];
            const float w1 = c->taps_first ? c->grp[2 * at + 1] : c->grp[at + (int64_t)c->n_qk * hd];
            sum += (double)w0 * (double)old[h * hd + i] + (double)w1 * (double)now[h * hd + i];
        }
        y[o] = (float)sum;
    }
}

static void cca_unit(float *x, int32_t hd, float scale)
{
    const float r = (float)((double)scale * sqrt((double)hd) / OB_MAX(sqrt(ref_dot(x, x, hd)), 1e-12));
    for (int32_t i = 0; i < hd; i++) x[i] *= r;
}

static void cca_token(const cca *c, int64_t s, int64_t t, float *scratch)
{
    const ob_cca_params *p = &c->op->p.cca;
    const int32_t hd = c->hd, n_qk = c->n_qk, group = p->n_head / p->n_head_kv;
    float *u = scratch, *old = u + 3 * n_qk, *now = old + n_qk;
    for (int32_t back = 0; back < 3; back++) cca_input(c, s, t, back, u + back * n_qk);
    for (int32_t i = 0; i < n_qk; i++) {
        now[i] = c->bias[i] + c->tap[2 * i] * u[n_qk + i] + c->tap[2 * i + 1] * u[i];
        old[i] = c->bias[i] + c->tap[2 * i] * u[2 * n_qk + i] + c->tap[2 * i + 1] * u[n_qk + i];
    }
    float *q = ref_row(c->e, c->op->out[0], t), *k = ref_row(c->e, c->op->out[1], t);
    for (int32_t h = 0; h < p->n_head; h++) cca_head(c, h, old, now, q + h * hd);
    for (int32_t g = 0; g < p->n_head_kv; g++) {
        cca_head(c, p->n_head + g, old, now, k + g * hd);
        for (int32_t i = 0; i < hd; i++) {
            float mean = 0;
            for (int32_t h = g * group; h < (g + 1) * group; h++) {
                const float m = 0.5f * (u[h * hd + i] + u[c->n_q + g * hd + i]);
                q[h * hd + i] += m;
                mean += m / (float)group;
            }
            k[g * hd + i] += mean;
        }
        cca_unit(k + g * hd, hd, c->k_scale[g]);
    }
    for (int32_t h = 0; h < p->n_head; h++) cca_unit(q + h * hd, hd, 1.0f);
    /* values: this token's half, then the other half of the token before */
    const int32_t half = c->e->prog->vals[c->op->in[2]].cols;
    float *v = ref_row(c->e, c->op->out[2], t);
    bool fresh;
    const float *state = ref_state(c->e, p->state, s, &fresh) + 2 * n_qk;
    memcpy(v, ref_row(c->e, c->op->in[2], t), (size_t)half * sizeof *v);
    if (t > c->e->step->seq_first[s]) memcpy(v + half, ref_row(c->e, c->op->in[3], t - 1), (size_t)half * sizeof *v);
    else if (fresh) memset(v + half, 0, (size_t)half * sizeof *v);
    else memcpy(v + half, state, (size_t)half * sizeof *v);
}

/* Phase 1: q|k of the last two tokens and the second half of the values of the last. */
static void cca_remember(const cca *c, int64_t s, float *scratch)
{
    const int64_t last = c->e->step->seq_first[s + 1] - 1;
    const int32_t half = c->e->prog->vals[c->op->in[3]].cols;
    bool fresh;
    float *state = ref_state(c->e, c->op->p.cca.state, s, &fresh);
    cca_input(c, s, last, 1, scratch);
    cca_input(c, s, last, 0, scratch + c->n_qk);
    memcpy(state, scratch, 2 * (size_t)c->n_qk * sizeof *state);
    memcpy(state + 2 * c->n_qk, ref_row(c->e, c->op->in[3], last), (size_t)half * sizeof *state);
}

void ob_ref_cca(const ob_ref_env *e, const ob_op *op, int phase, int64_t first, int64_t last)
{
    const ob_weight *grp = &e->prog->weights[op->w[2]];
    cca c = {.e = e, .op = op, .n_q = e->prog->vals[op->in[0]].cols};
    c.n_qk = c.n_q + e->prog->vals[op->in[1]].cols;
    c.hd = c.n_q / op->p.cca.n_head;
    c.taps_first = grp->ne[0] == 2;
    float *at = e->scratch + 6 * (int64_t)c.n_qk;
    c.tap = ref_vector(e, op->w[0], at);
    c.bias = ref_vector(e, op->w[1], at += 2 * c.n_qk);
    c.grp_bias = ref_vector(e, op->w[3], at += c.n_qk);
    c.k_scale = ref_vector(e, op->w[4], at += c.n_qk);
    c.grp = ref_vector(e, op->w[2], at + c.n_qk);
    int64_t s = 0;
    for (int64_t t = first; t < last; t++) {
        while (e->step->seq_first[s + 1] <= t) s++;
        if (phase == 0) cca_token(&c, s, t, e->scratch);
        else if (t == e->step->seq_first[s + 1] - 1) cca_remember(&c, s, e->scratch);
    }
}
