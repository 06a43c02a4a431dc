/* Reference of the ops of mixtures of experts, and of products per head. */
#include <math.h>

#include "base/math.h"
#include "ops/ref_int.h"

void ob_ref_linear_heads(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last)
{
    const ob_weight *w = &e->prog->weights[op->w[0]];
    const int64_t k = w->ne[0], n = w->ne[1], tail = op->p.heads.tail, rows = ref_rows(e, op->in[0]);
    for (int64_t item = first; item < last; item++) {
        const int64_t h = item / n, c = item % n;
        ref_weight_row(w, h, c, e->scratch);
        for (int64_t r = 0; r < rows; r++) {
            const float *x = ref_row(e, op->in[0], r) + h * (k + tail);
            float *y = ref_row(e, op->out[0], r) + h * (n + tail);
            y[c] = (float)ref_dot(e->scratch, ref_input(w, x, k, ref_coarse(e, op->in[0], r), e->scratch + k), k);
            if (c == 0) memcpy(y + n, x + k, (size_t)tail * sizeof *y);
        }
    }
}

/* ------------------------------------------------------------------ routing */

static void gate(ob_gating g, const float *x, float *p, int32_t n)
{
    float max = x[0];
    double sum = 0;
    for (int32_t i = 1; i < n; i++) max = OB_MAX(max, x[i]);
    for (int32_t i = 0; i < n; i++) {
        if (g == OB_GATING_SOFTMAX) sum += (double)(p[i] = expf(x[i] - max));
        else if (g == OB_GATING_SIGMOID) p[i] = 1.0f / (1.0f + expf(-x[i]));
        else p[i] = sqrtf(x[i] > 20.0f ? x[i] : log1pf(expf(x[i])));
    }
    if (g == OB_GATING_SOFTMAX)
        for (int32_t i = 0; i < n; i++) p[i] = (float)((double)p[i] / sum);
}

/* The largest of c that is still there; it is taken away. -1 when none is left. */
static int32_t take_best(float *c, int32_t n)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (c[i] > -INFINITY && (best < 0 || c[i] > c[best])) best = i;
    if (best >= 0) c[best] = -INFINITY;
    return best;
}

/* Set the scores of all but the best groups to -inf. */
static void keep_groups(const ob_route_params *r, float *c, int32_t n)
{
    const int32_t size = n / r->n_group;
    for (int32_t dropped = 0; dropped < r->n_group - r->n_group_used; dropped++) {
        int32_t worst = -1;
        float worst_score = 0;
        for (int32_t g = 0; g < r->n_group; g++) {
            float a = -INFINITY, b = -INFINITY;
            for (int32_t i = g * size; i < (g + 1) * size; i++) {
                if (c[i] > a) {
                    b = a;
                    a = c[i];
                } else if (c[i] > b) {
                    b = c[i];
                }
            }
            if (!(a > -INFINITY)) continue; /* dropped already */
            const float score = size > 1 ? a + b : a;
            if (worst < 0 || score <= worst_score) { /* of equal groups the later one goes */
                worst = g;
                worst_score = score;
            }
        }
        for (int32_t i = worst * size; worst >= 0 && i < (worst + 1) * size; i++) c[i] = -INFINITY;
    }
}

void ob_ref_route_row(const ob_route_params *r, int32_t n_class, const float *logits, const float *bias,
                      const int32_t *chosen, float *ids, float *weights, float *scratch)
{
    float *p = scratch, *c = scratch + n_class;
    gate(r->gating, logits, p, n_class);
    for (int32_t i = 0; i < n_class; i++) c[i] = p[i] + (bias ? bias[i] : 0.0f);
    if (!chosen && r->n_group > 1) keep_groups(r, c, n_class);
    double sum = 0;
    for (int32_t j = 0; j < r->n_used; j++) {
        const int32_t id = chosen ? chosen[j] : take_best(c, n_class);
        const bool known = id >= 0 && id < n_class; /* NaN logits or a broken table: the skip expert */
        ids[j] = (float)(known ? id : n_class);
        weights[j] = known ? p[id] : 0.0f;
        sum += (double)weights[j];
    }
    const float scale = r->norm ? r->scale / OB_MAX((float)sum, 6.103515625e-5f) : r->scale;
    for (int32_t j = 0; j < r->n_used; j++) weights[j] *= scale;
}

void ob_ref_moe_route(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last)
{
    const ob_route_params *r = &op->p.route;
    const int32_t n_class = e->prog->vals[op->in[0]].cols;
    const float *bias = ref_vector(e, op->w[0], e->scratch + 2 * n_class);
    const int32_t *table = op->w[1] == OB_NONE ? NULL : e->prog->weights[op->w[1]].data;
    for (int64_t t = first; t < last; t++)
        ob_ref_route_row(r, n_class, ref_row(e, op->in[0], t), bias,
                         table ? table + (int64_t)e->step->tok[t] * r->n_used : NULL, ref_row(e, op->out[0], t),
                         ref_row(e, op->out[1], t), e->scratch);
}

/* ------------------------------------------------------------------ experts */

void ob_ref_moe_glu(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last)
{
    const ob_moe_params *m = &op->p.moe;
    const ob_weight *gate_w = &e->prog->weights[op->w[0]], *down = &e->prog->weights[op->w[2]];
    const ob_weight *up = op->w[1] == OB_NONE ? gate_w : &e->prog->weights[op->w[1]];
    const int64_t d = down->ne[1], n_ff = down->ne[0], up0 = up == gate_w ? n_ff : 0;
    float *row = e->scratch, *in = row + OB_MAX(d, n_ff), *hidden = in + OB_MAX(d, n_ff), *sum = hidden + n_ff;
    for (int64_t t = first; t < last; t++) {
        const float *x = ref_row(e, op->in[0], t), *ids = ref_row(e, op->in[1], t), *w = ref_row(e, op->in[2], t);
        float *y = ref_row(e, op->out[0], t);
        memset(sum, 0, (size_t)d * sizeof *sum);
        for (int32_t j = 0; j < m->n_used; j++) {
            const int64_t id = (int64_t)ids[j];
            if (id < 0 || id >= down->ne[2]) continue;
            const bool coarse = ref_coarse(e, op->in[0], t);
            for (int64_t f = 0; f < n_ff; f++) {
                ref_weight_row(gate_w, id, f, row);
                float g = (float)ref_dot(row, ref_input(gate_w, x, d, coarse, in), d);
                ref_weight_row(up, id, up0 + f, row);
                float u = (float)ref_dot(row, ref_input(up, x, d, coarse, in), d);
                if (m->clamp > 0) {
                    g = OB_MIN(g, m->clamp);
                    u = OB_MAX(-m->clamp, OB_MIN(u, m->clamp));
                }
                hidden[f] = ob_ref_act(m->act, g) * u;
            }
            const float *h = ref_input(down, hidden, n_ff, coarse, in);
            for (int64_t c = 0; c < d; c++) {
                ref_weight_row(down, id, c, row);
                sum[c] += w[j] * (float)ref_dot(row, h, n_ff);
            }
        }
        for (int64_t c = 0; c < d; c++) y[c] = sum[c] + (op->in[3] == OB_NONE ? 0.0f : ref_row(e, op->in[3], t)[c]);
    }
}
