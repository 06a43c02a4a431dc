/* Ops that carry state from token to token: convolution over time and the gated delta net.
 *
 * An item is a sequence and a slice of its state; tokens come in chunks, and the slice stays in the cache of
 * the thread that has it. The form of the delta rule that turns a chunk into matrix products (WY form,
 * arXiv 2412.06464 section 3.3) is for devices that multiply matrices faster than they add vectors: per token
 * and element of the state it takes 3 multiply-adds and those of the chunk's own 64 x 64 products, about 4.5
 * in all, where the walk takes 3 and a multiply, and the walk gives the same bits whatever the chunks.
 */
#include "dev/cpu/cpu_int.h"

#include <math.h>
#include <string.h>

#include "base/math.h"

enum {
    CONV_COLUMNS = 256,
    CCA_ROWS = 8, /* tokens that share the grouped taps while they are at hand */
};

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

/* --- gated delta net ---------------------------------------------------------------------------- */

enum { GDN_CHUNK = 64 }; /* tokens whose keys are made ready together */

/* Scratch: a slice of the state; of a chunk keys and queries, then decay, beta and k q. */
size_t cpu_gdn_scratch_floats(const ob_op *op)
{
    const size_t k_dim = (size_t)op->p.gdn.k_dim;
    return k_dim * OB_CPU_GDN_SLICE + GDN_CHUNK * (2 * k_dim + 3);
}

/* Tokens [r0, r0 + g->n_tok) of value head j: everything that does not depend on the state. */
static void gdn_prepare(const ob_dev_plan *p, const ob_op *op, ob_cpu_gdn *g, int64_t j, int64_t r0, float *scratch)
{
    const ob_gdn_params *a = &op->p.gdn;
    const int64_t n_key = (int64_t)a->n_head_k * a->k_dim;
    const int64_t kh = a->tiled ? j % a->n_head_k : j / (a->n_head_v / a->n_head_k);
    const float dt = cpu_vector(p, op->w[0])[j], rate = cpu_vector(p, op->w[1])[j];
    float *q = scratch + a->k_dim * OB_CPU_GDN_SLICE, *k = q + GDN_CHUNK * a->k_dim, *decay = k + GDN_CHUNK * a->k_dim;
    float *beta = decay + GDN_CHUNK, *kq = beta + GDN_CHUNK;
    for (int32_t t = 0; t < g->n_tok; t++) {
        const float *x = cpu_row(p, op->in[0], r0 + t) + kh * a->k_dim;
        const float alpha = cpu_row(p, op->in[1], r0 + t)[j] + dt, b = cpu_row(p, op->in[2], r0 + t)[j];
        kq[t] = p->dev->kern->gdn_keys(x, x + n_key, a->k_dim, a->eps, q + t * a->k_dim, k + t * a->k_dim);
        decay[t] = expf(rate * (alpha > 20.0f ? alpha : log1pf(expf(alpha))));
        beta[t] = 1.0f / (1.0f + expf(-b));
    }
    g->slice = scratch;
    g->q = q;
    g->k = k;
    g->decay = decay;
    g->beta = beta;
    g->kq = kq;
    g->v = cpu_row(p, op->in[0], r0) + 2 * n_key + j * a->v_dim;
    g->y = cpu_row(p, op->out[0], r0) + j * a->v_dim;
}

void cpu_gdn_run(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t)
{
    const ob_gdn_params *a = &op->p.gdn;
    const int64_t n_state = (int64_t)a->k_dim * a->v_dim;
    ob_cpu_gdn g = {.k_dim = a->k_dim, .v_dim = a->v_dim, .ldv = p->prog.vals[op->in[0]].cols,
                    .ldy = p->prog.vals[op->out[0]].cols};
    for (int64_t i, i1; ob_pool_take(p->dev->pool, (int64_t)p->step.n_seq * a->n_head_v, 1, &i, &i1);) {
        const int64_t seq = i / a->n_head_v, j = i % a->n_head_v, last = p->step.seq_first[seq + 1];
        g.s = p->states[a->state] + p->step.seq_slot[seq] * p->prog.states[a->state].n_floats + j * n_state;
        if (p->step.seq_past[seq] == 0) memset(g.s, 0, (size_t)n_state * sizeof *g.s);
        for (int64_t r = p->step.seq_first[seq]; r < last; r += g.n_tok) {
            g.n_tok = (int32_t)OB_MIN(GDN_CHUNK, last - r);
            gdn_prepare(p, op, &g, j, r, t->work);
            p->dev->kern->gdn(&g);
        }
    }
}

/* --- convolved attention (ZAYA) ---------------------------------------------------------------- */

typedef struct cca {
    const ob_dev_plan *p;
    const ob_op *op;
    const float *tap, *bias, *turned, *grp_bias, *k_scale; /* turned: [tap][head][in][out] */
    float *first; /* scratch: first convolution of one head, CCA_ROWS tokens and those before them */
    int32_t n_q, n_qk, hd;
} cca;

/* Column c of q|k of the token `back` before row r: from the step, the state, or zero. */
static const float *cca_input(const cca *c, int64_t r, int64_t first, int32_t back, int32_t seq, int32_t col)
{
    static const float k_zero[1024];
    const int64_t at = r - back - first;
    if (at >= 0)
        return col < c->n_q ? cpu_row(c->p, c->op->in[0], r - back) + col
                            : cpu_row(c->p, c->op->in[1], r - back) + col - c->n_q;
    if (c->p->step.seq_past[seq] == 0) return k_zero;
    const int32_t state = c->op->p.cca.state;
    return c->p->states[state] + c->p->step.seq_slot[seq] * c->p->prog.states[state].n_floats + (at + 2) * c->n_qk + col;
}

/* First convolution of head h (query heads, then key heads) at row r, and at the token before it. */
static void cca_first(const cca *c, int64_t r, int32_t h, float *now, float *old)
{
    const int32_t hd = c->hd, col = h * hd, seq = c->p->row_seq[r];
    const int64_t first = c->p->step.seq_first[seq];
    const float *w = c->tap + 2 * col, *b = c->bias + col, *u[3];
    for (int32_t back = 0; back < 3; back++) u[back] = cca_input(c, r, first, back, seq, col);
    for (int32_t i = 0; i < hd; i++) {
        now[i] = b[i] + w[2 * i] * u[1][i] + w[2 * i + 1] * u[0][i];
        old[i] = b[i] + w[2 * i] * u[2][i] + w[2 * i + 1] * u[1][i];
    }
}

/* Rows [r0, r0 + n) of head h: both convolutions, then what joins them and the length. y [n][ldy]. */
static void cca_head(const cca *c, int64_t r0, int32_t n, int32_t h, float *y, int64_t ldy)
{
    const ob_cca_params *a = &c->op->p.cca;
    const ob_cpu_kernels *kern = c->p->dev->kern;
    const int32_t hd = c->hd, col = h * hd, group = a->n_head / a->n_head_kv;
    float *now = c->first, *old = now + CCA_ROWS * hd;
    for (int32_t i = 0; i < n; i++) {
        cca_first(c, r0 + i, h, now + i * hd, old + i * hd);
        memcpy(y + i * ldy, c->grp_bias + col, (size_t)hd * sizeof *y);
    }
    const float *w0 = c->turned + (int64_t)col * hd, *w1 = w0 + (int64_t)c->n_qk * hd;
    kern->mix(w0, hd, hd, old, hd, n, y, ldy);
    kern->mix(w1, hd, hd, now, hd, n, y, ldy);
    for (int32_t i = 0; i < n; i++, y += ldy) {
        const float *q = cpu_row(c->p, c->op->in[0], r0 + i), *k = cpu_row(c->p, c->op->in[1], r0 + i);
        if (h < a->n_head) {
            kern->add(y, q + col, 0.5f, y, hd);
            kern->add(y, k + h / group * hd, 0.5f, y, hd);
        } else {
            const int32_t g = h - a->n_head;
            for (int32_t j = g * group; j < (g + 1) * group; j++) kern->add(y, q + j * hd, 0.5f / (float)group, y, hd);
            kern->add(y, k + g * hd, 0.5f, y, hd);
        }
        double sum = 0;
        for (int32_t j = 0; j < hd; j++) sum += (double)y[j] * (double)y[j];
        const double scale = sqrt((double)hd) * (h < a->n_head ? 1.0 : (double)c->k_scale[h - a->n_head]);
        kern->scale(y, (float)(scale / OB_MAX(sqrt(sum), 1e-12)), 0, y, hd);
    }
}

static void cca_values(const cca *c, int64_t r)
{
    const int32_t seq = c->p->row_seq[r], half = c->p->prog.vals[c->op->in[3]].cols, state = c->op->p.cca.state;
    float *v = cpu_row(c->p, c->op->out[2], r);
    memcpy(v, cpu_row(c->p, c->op->in[2], r), (size_t)half * sizeof *v);
    if (r > c->p->step.seq_first[seq])
        memcpy(v + half, cpu_row(c->p, c->op->in[3], r - 1), (size_t)half * sizeof *v);
    else if (c->p->step.seq_past[seq] == 0)
        memset(v + half, 0, (size_t)half * sizeof *v);
    else
        memcpy(v + half, c->p->states[state] + c->p->step.seq_slot[seq] * c->p->prog.states[state].n_floats + 2 * c->n_qk,
               (size_t)half * sizeof *v);
}

static void cca_remember(const cca *c, int32_t seq)
{
    const int32_t state = c->op->p.cca.state, half = c->p->prog.vals[c->op->in[3]].cols, n_k = c->n_qk - c->n_q;
    const int64_t first = c->p->step.seq_first[seq], last = c->p->step.seq_first[seq + 1] - 1;
    float *s = c->p->states[state] + c->p->step.seq_slot[seq] * c->p->prog.states[state].n_floats;
    if (last > first) {
        memcpy(s, cpu_row(c->p, c->op->in[0], last - 1), (size_t)c->n_q * sizeof *s);
        memcpy(s + c->n_q, cpu_row(c->p, c->op->in[1], last - 1), (size_t)n_k * sizeof *s);
    } else if (c->p->step.seq_past[seq] == 0) {
        memset(s, 0, (size_t)c->n_qk * sizeof *s);
    } else {
        memmove(s, s + c->n_qk, (size_t)c->n_qk * sizeof *s);
    }
    s += c->n_qk;
    memcpy(s, cpu_row(c->p, c->op->in[0], last), (size_t)c->n_q * sizeof *s);
    memcpy(s + c->n_q, cpu_row(c->p, c->op->in[1], last), (size_t)n_k * sizeof *s);
    memcpy(s + c->n_qk, cpu_row(c->p, c->op->in[3], last), (size_t)half * sizeof *s);
}

size_t cpu_cca_scratch_floats(const ob_dev_plan *p, const ob_op *op)
{
    return 2 * CCA_ROWS * (size_t)(p->prog.vals[op->in[0]].cols / op->p.cca.n_head);
}

bool cpu_cca_fits(const ob_dev_plan *p, const ob_op *op) { return p->prog.vals[op->in[0]].cols / op->p.cca.n_head <= 1024; }

void cpu_cca_run(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t)
{
    const ob_cca_params *a = &op->p.cca;
    cca c = {.p = p, .op = op, .n_q = p->prog.vals[op->in[0]].cols, .tap = cpu_vector(p, op->w[0]),
             .bias = cpu_vector(p, op->w[1]), .turned = p->conv_taps[op - p->prog.ops], .grp_bias = cpu_vector(p, op->w[3]),
             .k_scale = cpu_vector(p, op->w[4])};
    c.n_qk = c.n_q + p->prog.vals[op->in[1]].cols;
    c.hd = c.n_q / a->n_head;
    c.first = t->work;
    const int64_t n_head = a->n_head + a->n_head_kv, n_block = ob_div_up(p->step.n_tok, CCA_ROWS);
    for (int64_t i, i1; ob_pool_take(p->dev->pool, n_block * n_head, 1, &i, &i1);) {
        const int64_t r = i / n_head * CCA_ROWS;
        const int32_t h = (int32_t)(i % n_head), n = (int32_t)OB_MIN(CCA_ROWS, p->step.n_tok - r);
        for (int32_t k = 0; k < n && h == 0; k++) cca_values(&c, r + k);
        const bool query = h < a->n_head;
        const ob_val out = op->out[query ? 0 : 1];
        cca_head(&c, r, n, h, cpu_row(p, out, r) + (query ? h : h - a->n_head) * c.hd, p->prog.vals[out].cols);
    }
    ob_pool_barrier(p->dev->pool);
    for (int64_t i, i1; ob_pool_take(p->dev->pool, p->step.n_seq, 1, &i, &i1);) cca_remember(&c, (int32_t)i);
}
