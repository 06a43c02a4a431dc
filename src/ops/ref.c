#include "ops/ref.h"

#include <math.h>
#include <string.h>

#include "base/math.h"
#include "ops/ref_int.h"

float ob_ref_act(ob_act a, float x)
{
    switch (a) {
    case OB_ACT_SILU: return x / (1.0f + expf(-x));
    case OB_ACT_GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case OB_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case OB_ACT_RELU: return x > 0 ? x : 0;
    case OB_ACT_SIGMOID: return 1.0f / (1.0f + expf(-x));
    case OB_ACT_GELU_QUICK: return x / (1.0f + expf(-1.702f * x));
    default: return x;
    }
}

/* ------------------------------------------------------------------ rope */

/* Dimension whose wavelength makes `n_turns` turns over the original context (YaRN, eq. 17). */
static float yarn_dim(const ob_rope_params *p, float n_turns)
{
    return (float)p->n_rot * logf((float)p->n_ctx_orig / (n_turns * 6.2831853f)) /
           (2.0f * logf(p->base));
}

/* Turn of pair i without scaling. */
static double pair_angle(const ob_rope_params *p, const float *factors, const int32_t pos[3], int32_t i)
{
    const int32_t *n = p->axis_pairs;
    int32_t axis = 0, in_axis = i;
    if (n[0] > 0)
        for (; axis < 2 && in_axis >= n[axis]; axis++) in_axis -= n[axis];
    const double exponent = p->axis_restart ? -(double)in_axis / n[axis] : -2.0 * i / p->n_rot;
    const double a = (double)pos[axis] * pow((double)p->base, exponent);
    return factors ? a / (double)factors[i] : a;
}

void ob_ref_rope_row(const ob_rope_params *p, const float *factors, int32_t pos, int32_t n_head, const float *x,
                     float *y)
{
    ob_ref_rope_axes(p, factors, (const int32_t[3]){pos, pos, pos}, n_head, x, y);
}

void ob_ref_rope_axes(const ob_rope_params *p, const float *factors, const int32_t pos[3], int32_t n_head,
                      const float *x, float *y)
{
    int32_t half = p->n_rot / 2;
    float low = 0, high = 0;
    if (p->ext_factor != 0) {
        low = OB_MAX(0.0f, floorf(yarn_dim(p, p->beta_fast)));
        high = OB_MIN((float)p->n_rot - 1, ceilf(yarn_dim(p, p->beta_slow)));
    }
    for (int32_t h = 0; h < n_head; h++) {
        const float *xh = x + (size_t)h * (size_t)p->head_dim;
        float *yh = y + (size_t)h * (size_t)p->head_dim;
        if (yh != xh) memcpy(yh, xh, (size_t)p->head_dim * sizeof(float));
        for (int32_t i = 0; i < half; i++) {
            double extrap = pair_angle(p, factors, pos, i);
            double theta = extrap * (double)p->freq_scale;
            if (p->ext_factor != 0) {
                float ramp = ((float)i - low) / OB_MAX(0.001f, high - low);
                double mix = (1.0 - (double)OB_MIN(1.0f, OB_MAX(0.0f, ramp))) * (double)p->ext_factor;
                theta = theta * (1.0 - mix) + extrap * mix;
            }
            if (p->inverse) theta = -theta;
            float c = (float)cos(theta) * p->attn_factor, s = (float)sin(theta) * p->attn_factor;
            int32_t a = p->rot_off + (p->pairing == OB_ROPE_NORM ? 2 * i : i);
            int32_t b = p->pairing == OB_ROPE_NORM ? a + 1 : a + half;
            float xa = xh[a], xb = xh[b];
            yh[a] = xa * c - xb * s;
            yh[b] = xa * s + xb * c;
        }
    }
}

/* ------------------------------------------------------------------ helpers */

static int32_t seq_of(const ob_step *s, int64_t t)
{
    int32_t q = 0;
    while (s->seq_first[q + 1] <= t) q++;
    return q;
}

/* Address of one cached row. */
static char *cache_row(void *plane, ob_type type, int32_t page_tok, int32_t n_head, int32_t dim,
                       const int32_t *pages, int32_t at, int32_t head)
{
    size_t row = ((size_t)pages[at / page_tok] * (size_t)n_head + (size_t)head) * (size_t)page_tok +
                 (size_t)(at % page_tok);
    return (char *)plane + row * ob_type_row_bytes(type, dim);
}

static void store_row(ob_type type, void *dst, const float *src, int64_t n)
{
    if (type == OB_F32) memcpy(dst, src, (size_t)n * sizeof(float));
    else ob_type_get(type)->quant(src, dst, n, NULL);
}

/* ------------------------------------------------------------------ row-wise ops */

static void norm_row(const ob_op *op, const float *w, const float *b, const float *x, float *y,
                     int32_t cols)
{
    int32_t group = op->p.norm.group ? op->p.norm.group : cols;
    for (int32_t g = 0; g < cols; g += group) {
        double mean = 0, var = 0;
        if (op->kind == OB_OP_LAYER_NORM) {
            for (int32_t i = 0; i < group; i++) mean += (double)x[g + i];
            mean /= group;
        }
        for (int32_t i = 0; i < group; i++) var += ((double)x[g + i] - mean) * ((double)x[g + i] - mean);
        float r = (float)(1.0 / sqrt(var / group + (double)op->p.norm.eps));
        for (int32_t i = 0; i < group; i++) {
            float v = (float)((double)x[g + i] - mean) * r;
            y[g + i] = v * (w ? w[i] : 1.0f) + (b ? b[i] : 0.0f);
        }
    }
}

static void affine_row(const ob_ref_env *e, const ob_op *op, const float *x, const float *x2, float *y, int32_t cols)
{
    const float *w[4];
    for (int k = 0; k < 4; k++) w[k] = ref_vector(e, op->w[k], e->scratch + (size_t)k * (size_t)cols);
    for (int32_t i = 0; i < cols; i++) {
        float v = (x[i] + (w[1] ? w[1][i] : 0.0f)) * (w[0] ? w[0][i] : 1.0f);
        if (x2) v += (x2[i] + (w[3] ? w[3][i] : 0.0f)) * (w[2] ? w[2][i] : 1.0f);
        y[i] = v;
    }
}

static void gate_row(const ob_ref_env *e, const ob_op *op, int64_t r, const float *x, float *y, int32_t cols)
{
    const float *gate = ref_row(e, op->in[1], r), *res = op->in[2] == OB_NONE ? NULL : ref_row(e, op->in[2], r);
    const bool one = e->prog->vals[op->in[1]].cols == 1;
    for (int32_t i = 0; i < cols; i++)
        y[i] = (res ? res[i] : 0.0f) + x[i] * ob_ref_act(OB_ACT_SIGMOID, gate[one ? 0 : i]);
}

/* SPLIT and JOIN: groups of the whole, and their two parts. */
static void parts_row(const ob_ref_env *e, const ob_op *op, int64_t r)
{
    const bool split = op->kind == OB_OP_SPLIT;
    const ob_val va = split ? op->out[0] : op->in[0], vb = split ? op->out[1] : op->in[1];
    const int32_t n_group = split ? op->p.split.n_group : op->p.join.n_group;
    const int32_t na = e->prog->vals[va].cols / n_group, nb = e->prog->vals[vb].cols / n_group;
    float *whole = ref_row(e, split ? op->in[0] : op->out[0], r), *a = ref_row(e, va, r), *b = ref_row(e, vb, r);
    for (int32_t g = 0; g < n_group; g++, whole += na + nb, a += na, b += nb) {
        memcpy(split ? a : whole, split ? whole : a, (size_t)na * sizeof *a);
        memcpy(split ? b : whole + na, split ? whole + na : b, (size_t)nb * sizeof *b);
    }
}

static void add_row(const ob_ref_env *e, const ob_op *op, int64_t r, const float *x, float *y, int32_t cols)
{
    const ob_step *st = e->step;
    const int32_t at = op->p.add_row.by == OB_ROW_OF_POSITION ? st->pos[r] : st->type ? st->type[r] : 0;
    ref_weight_row(&e->prog->weights[op->w[0]], 0, at, e->scratch);
    for (int32_t i = 0; i < cols; i++) y[i] = x[i] + e->scratch[i];
}

static void pool_row(const ob_ref_env *e, const ob_op *op, int64_t seq, float *y, int32_t cols)
{
    const int32_t first = e->step->seq_first[seq], last = e->step->seq_first[seq + 1] - 1;
    if (op->p.pool.mode != OB_POOLING_MEAN) {
        memcpy(y, ref_row(e, op->in[0], op->p.pool.mode == OB_POOLING_CLS ? first : last),
               (size_t)cols * sizeof *y);
        return;
    }
    for (int32_t i = 0; i < cols; i++) {
        double sum = 0;
        for (int32_t t = first; t <= last; t++) sum += (double)ref_row(e, op->in[0], t)[i];
        y[i] = (float)(sum / (last - first + 1));
    }
}

static void embed_row(const ob_ref_env *e, const ob_op *op, int64_t r, float *y, int32_t cols)
{
    const int32_t id = e->step->tok[r];
    if (id < 0) {
        memcpy(y, e->step->vec + (size_t)(-1 - id) * (size_t)cols, (size_t)cols * sizeof *y);
        return;
    }
    const ob_weight *t = &e->prog->weights[op->w[0]];
    ref_load_row(t->type, (const char *)t->data + (size_t)id * ob_type_row_bytes(t->type, cols), y, cols);
    for (int32_t i = 0; i < cols; i++) y[i] *= op->p.embed.scale;
}

static void merge_row(const ob_ref_env *e, const ob_op *op, int64_t r, float *y)
{
    const int32_t first = e->step->out_rows[r], n = op->p.merge.n, cols = e->prog->vals[op->in[0]].cols;
    if (!op->p.merge.mean) {
        memcpy(y, ref_row(e, op->in[0], first), (size_t)n * (size_t)cols * sizeof *y);
        return;
    }
    for (int32_t i = 0; i < cols; i++) {
        double sum = 0;
        for (int32_t k = 0; k < n; k++) sum += (double)ref_row(e, op->in[0], first + k)[i];
        y[i] = (float)(sum / n);
    }
}

/* By insertion: the list is short, and most columns are worse than its last. */
static void top_row(const ob_op *op, const float *x, int32_t n, float *y)
{
    const int32_t k = op->p.top_k.k;
    float *ids = y, *best = y + k;
    double max = -INFINITY, sum = 0;
    y[2 * k + 1] = 0;
    for (int32_t j = 0; j < k; j++) {
        ids[j] = -1;
        best[j] = -INFINITY;
    }
    for (int32_t i = 0; i < n; i++) {
        y[2 * k + 1] += isnan(x[i]) ? 1.0f : 0.0f;
        max = x[i] > max ? (double)x[i] : max;
        int32_t j = k;
        while (j > 0 && (x[i] > best[j - 1] || ids[j - 1] < 0)) j--;
        if (j == k) continue;
        memmove(ids + j + 1, ids + j, (size_t)(k - 1 - j) * sizeof *ids);
        memmove(best + j + 1, best + j, (size_t)(k - 1 - j) * sizeof *best);
        ids[j] = (float)i;
        best[j] = x[i];
    }
    for (int32_t i = 0; i < n; i++) sum += x[i] > -INFINITY ? exp((double)x[i] - max) : 0;
    y[2 * k] = (float)(max + log(sum));
}

static void run_rows(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last)
{
    const ob_step *st = e->step;
    int32_t cols = e->prog->vals[op->out[0]].cols;
    const float *w = NULL, *b = NULL;
    if (op->kind == OB_OP_RMS_NORM || op->kind == OB_OP_LAYER_NORM || op->kind == OB_OP_ROPE) {
        w = ref_vector(e, op->w[0], e->scratch);
        b = op->kind == OB_OP_LAYER_NORM ? ref_vector(e, op->w[1], e->scratch + cols) : NULL;
    }
    for (int64_t r = first; r < last; r++) {
        float *y = ref_row(e, op->out[0], r);
        const float *x = op->kind == OB_OP_EMBED || op->kind == OB_OP_MERGE ? NULL
                         : op->kind == OB_OP_ROWS_OUT ? ref_row(e, op->in[0], st->out_rows[r])
                                                      : ref_row(e, op->in[0], r);
        const float *x2 = op->in[1] != OB_NONE ? ref_row(e, op->in[1], r) : NULL;
        switch (op->kind) {
        case OB_OP_EMBED: embed_row(e, op, r, y, cols); break;
        case OB_OP_MERGE: merge_row(e, op, r, y); break;
        case OB_OP_ROWS_OUT: memcpy(y, x, (size_t)cols * sizeof(float)); break;
        case OB_OP_RMS_NORM:
        case OB_OP_LAYER_NORM: norm_row(op, w, b, x, y, cols); break;
        case OB_OP_ROPE: {
            int32_t pos[3];
            ref_axes(st, r, pos);
            ob_ref_rope_axes(&op->p.rope, w, pos, cols / op->p.rope.head_dim, x, y);
            break;
        }
        case OB_OP_GLU: {
            float lim = op->p.glu.clamp;
            for (int32_t i = 0; i < cols; i++) {
                float g = x[i], u = x2[i];
                if (lim > 0) {
                    g = OB_MIN(g, lim);
                    u = OB_MAX(-lim, OB_MIN(u, lim));
                }
                y[i] = ob_ref_act(op->p.glu.act, g) * u;
            }
            break;
        }
        case OB_OP_ADD:
            for (int32_t i = 0; i < cols; i++) y[i] = x[i] + op->p.add.scale * x2[i];
            break;
        case OB_OP_SCALE: {
            float cap = op->p.scale.softcap;
            for (int32_t i = 0; i < cols; i++) {
                float v = x[i] * op->p.scale.scale;
                y[i] = cap > 0 ? cap * tanhf(v / cap) : v;
            }
            break;
        }
        case OB_OP_ACT:
            for (int32_t i = 0; i < cols; i++) y[i] = ob_ref_act(op->p.act.act, x[i]);
            break;
        case OB_OP_AFFINE: affine_row(e, op, x, x2, y, cols); break;
        case OB_OP_GATE: gate_row(e, op, r, x, y, cols); break;
        case OB_OP_SPLIT:
        case OB_OP_JOIN: parts_row(e, op, r); break;
        case OB_OP_ADD_ROW: add_row(e, op, r, x, y, cols); break;
        case OB_OP_POOL: pool_row(e, op, r, y, cols); break;
        case OB_OP_TOP_K: top_row(op, x, e->prog->vals[op->in[0]].cols, y); break;
        default: break;
        }
    }
}

/* ------------------------------------------------------------------ linear */

static int64_t linear_cols(const ob_program *p, const ob_op *op)
{
    int64_t n = 0;
    for (int i = 0; i < op->p.linear.n_mat; i++) n += p->vals[op->out[i]].cols;
    return n;
}

static void run_linear(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last)
{
    int64_t rows = ref_rows(e, op->in[0]), k = e->prog->vals[op->in[0]].cols;
    for (int64_t item = first; item < last; item++) {
        int i = 0;
        int64_t n = item;
        while (n >= e->prog->vals[op->out[i]].cols) n -= e->prog->vals[op->out[i++]].cols;
        const ob_weight *w = &e->prog->weights[op->w[i]];
        ref_weight_row(w, 0, n, e->scratch);
        float bias = 0;
        if (op->w[4 + i] != OB_NONE) bias = ref_vector(e, op->w[4 + i], e->scratch + k)[n];
        for (int64_t r = 0; r < rows; r++) {
            const float *x = ref_input(w, ref_row(e, op->in[0], r), k, ref_coarse(e, op->in[0], r), e->scratch + k);
            float v = (float)ref_dot(e->scratch, x, k) + bias;
            v *= op->p.linear.scale;
            if (op->in[1] != OB_NONE) v += ref_row(e, op->in[1], r)[n];
            ref_row(e, op->out[i], r)[n] = v;
        }
    }
}

/* ------------------------------------------------------------------ attention */

static void attn_write(const ob_ref_env *e, const ob_op *op, int64_t t)
{
    const ob_attn_params *a = &op->p.attn;
    const ob_cache_view *c = &e->caches[a->cache];
    const ob_step *st = e->step;
    int32_t s = seq_of(st, t), at = st->seq_past[s] + (int32_t)t - st->seq_first[s];
    const int32_t *pages = st->page_table + (size_t)s * (size_t)st->max_pages;
    for (int32_t h = 0; h < a->n_head_kv; h++) {
        store_row(c->k_type, cache_row(c->k, c->k_type, c->page_tok, a->n_head_kv, a->k_dim, pages, at, h),
                  ref_row(e, op->in[1], t) + (size_t)h * (size_t)a->k_dim, a->k_dim);
        if (op->in[2] != OB_NONE)
            store_row(c->v_type,
                      cache_row(c->v, c->v_type, c->page_tok, a->n_head_kv, a->v_dim, pages, at, h),
                      ref_row(e, op->in[2], t) + (size_t)h * (size_t)a->v_dim, a->v_dim);
    }
}

/* Does the query at place q, token t of the step, see place k? */
static bool attn_sees(const ob_attn_params *a, const ob_step *s, int64_t t, int32_t q, int32_t k)
{
    if (a->blocks != OB_BLOCKS_NONE && s->block_first) {
        const bool in_block = k >= s->block_first[t] && k < s->block_end[t];
        if (in_block || a->blocks == OB_BLOCKS_ONLY) return in_block;
    }
    if (a->causal) return k <= q && (a->window <= 0 || q - k < a->window);
    return a->window <= 0 || (q > k ? q - k : k - q) <= a->window / 2;
}

static void attn_head(const ob_ref_env *e, const ob_op *op, int64_t t, int32_t head)
{
    const ob_attn_params *a = &op->p.attn;
    const ob_cache_view *c = &e->caches[a->cache];
    const ob_step *st = e->step;
    int32_t s = seq_of(st, t), q_at = st->seq_past[s] + (int32_t)t - st->seq_first[s];
    const bool forward = !a->causal || a->blocks != OB_BLOCKS_NONE;
    int32_t n_kv = forward ? st->seq_past[s] + st->seq_first[s + 1] - st->seq_first[s] : q_at + 1;
    const int32_t *pages = st->page_table + (size_t)s * (size_t)st->max_pages;
    int32_t hk = head / (a->n_head / a->n_head_kv);
    const float *q = ref_row(e, op->in[0], t) + (size_t)head * (size_t)a->k_dim;
    float *y = ref_row(e, op->out[0], t) + (size_t)head * (size_t)a->v_dim;
    float *row = e->scratch, *score = e->scratch + OB_MAX(a->k_dim, a->v_dim);
    double max = -INFINITY, sum = 0;
    for (int32_t j = 0; j < n_kv; j++) {
        score[j] = -INFINITY;
        if (!attn_sees(a, st, t, q_at, j)) continue;
        ref_load_row(c->k_type, cache_row(c->k, c->k_type, c->page_tok, a->n_head_kv, a->k_dim, pages, j, hk),
                 row, a->k_dim);
        float v = (float)ref_dot(q, row, a->k_dim) * a->scale;
        if (a->softcap > 0) v = a->softcap * tanhf(v / a->softcap);
        score[j] = v;
        max = OB_MAX(max, (double)v);
    }
    for (int32_t d = 0; d < a->v_dim; d++) y[d] = 0;
    for (int32_t j = 0; j < n_kv; j++)
        if (score[j] > -INFINITY) sum += exp((double)score[j] - max);
    for (int32_t j = 0; j < n_kv; j++) {
        if (!(score[j] > -INFINITY)) continue;
        float p = (float)(exp((double)score[j] - max) / sum);
        if (op->in[2] == OB_NONE)
            ref_load_row(c->k_type, cache_row(c->k, c->k_type, c->page_tok, a->n_head_kv, a->k_dim, pages, j, hk),
                         row, a->k_dim);
        else
            ref_load_row(c->v_type, cache_row(c->v, c->v_type, c->page_tok, a->n_head_kv, a->v_dim, pages, j, hk),
                         row, a->v_dim);
        for (int32_t d = 0; d < a->v_dim; d++) y[d] += p * row[d];
    }
}

/* ------------------------------------------------------------------ entry points */

static int64_t weight_elements(const ob_program *p, int32_t w)
{
    return p->weights[w].ne[0] * p->weights[w].ne[1] * p->weights[w].ne[2];
}

size_t ob_ref_scratch_floats(const ob_program *p, int32_t max_ctx)
{
    int64_t cols = 64, inner = 0;
    for (int32_t v = 0; v < p->n_vals; v++) cols = OB_MAX(cols, (int64_t)p->vals[v].cols);
    for (int32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OB_OP_MOE_GLU) inner = OB_MAX(inner, 4 * p->weights[p->ops[i].w[2]].ne[0]);
        else if (p->ops[i].kind == OB_OP_CONV1D)
            inner = OB_MAX(inner, p->weights[p->ops[i].w[0]].ne[0] * p->weights[p->ops[i].w[0]].ne[1]);
        else if (p->ops[i].kind == OB_OP_CSA)
            inner = OB_MAX(inner, (int64_t)ob_ref_csa_scratch(&p->ops[i]));
        else if (p->ops[i].kind == OB_OP_CCA)
            inner = OB_MAX(inner, weight_elements(p, p->ops[i].w[2]) + 6 * weight_elements(p, p->ops[i].w[0]));
    return (size_t)(4 * cols + inner + 2 * (int64_t)max_ctx + 64);
}

int64_t ob_ref_n_items(const ob_ref_env *e, int32_t i)
{
    const ob_op *op = &e->prog->ops[i];
    switch (op->kind) {
    case OB_OP_LINEAR: return linear_cols(e->prog, op);
    case OB_OP_ATTENTION: return (int64_t)e->step->n_tok * op->p.attn.n_head;
    case OB_OP_LINEAR_HEADS: return op->p.heads.n_head * e->prog->weights[op->w[0]].ne[1];
    case OB_OP_CONV1D: return (int64_t)e->step->n_seq * e->prog->vals[op->out[0]].cols;
    case OB_OP_CSA: return (int64_t)e->step->n_tok * op->p.csa.n_head;
    case OB_OP_GDN: return (int64_t)e->step->n_seq * op->p.gdn.n_head_v;
    default: return ref_rows(e, op->out[0]);
    }
}

int ob_ref_n_phases(ob_op_kind kind)
{
    return kind == OB_OP_ATTENTION || kind == OB_OP_CCA || kind == OB_OP_CSA ? 2 : 1;
}

static void run_attention(const ob_ref_env *e, const ob_op *op, int phase, int64_t first, int64_t last)
{
    int32_t n_head = op->p.attn.n_head;
    for (int64_t k = first; k < last; k++) {
        if (phase == 1) attn_head(e, op, k / n_head, (int32_t)(k % n_head));
        else if (k % n_head == 0) attn_write(e, op, k / n_head);
    }
}

void ob_ref_run(const ob_ref_env *e, int32_t i, int phase, int64_t first, int64_t last)
{
    const ob_op *op = &e->prog->ops[i];
    switch (op->kind) {
    case OB_OP_LINEAR: run_linear(e, op, first, last); break;
    case OB_OP_ATTENTION: run_attention(e, op, phase, first, last); break;
    case OB_OP_LINEAR_HEADS: ob_ref_linear_heads(e, op, first, last); break;
    case OB_OP_MOE_ROUTE: ob_ref_moe_route(e, op, first, last); break;
    case OB_OP_MOE_GLU: ob_ref_moe_glu(e, op, first, last); break;
    case OB_OP_CONV1D: ob_ref_conv1d(e, op, first, last); break;
    case OB_OP_GDN: ob_ref_gdn(e, op, first, last); break;
    case OB_OP_CCA: ob_ref_cca(e, op, phase, first, last); break;
    case OB_OP_HC_MIX: ob_ref_hc_mix(e, op, first, last); break;
    case OB_OP_HC_POST: ob_ref_hc_post(e, op, first, last); break;
    case OB_OP_CSA: ob_ref_csa(e, op, phase, first, last); break;
    default: run_rows(e, op, first, last); break;
    }
}
