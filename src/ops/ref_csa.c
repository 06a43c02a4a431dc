/* Reference of the ops of DeepSeek V4: hyper-connections and compressed sparse attention. */
#include <math.h>

#include "base/math.h"
#include "ops/ref_int.h"
#include "quant/fp_round.h"

/* ------------------------------------------------------------------ hyper-connections */

static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* Rows (src) to softmax, then columns and rows in turn to sum one (Sinkhorn and Knopp 1967). */
static void sinkhorn(float *c, int32_t n, int32_t n_iter, float eps)
{
    for (int32_t s = 0; s < n; s++) {
        float max = -INFINITY, sum = 0;
        for (int32_t d = 0; d < n; d++) max = OB_MAX(max, c[s * n + d]);
        for (int32_t d = 0; d < n; d++) sum += c[s * n + d] = expf(c[s * n + d] - max);
        for (int32_t d = 0; d < n; d++) c[s * n + d] = c[s * n + d] / sum + eps;
    }
    for (int32_t i = 0; i < n_iter; i++) {
        for (int32_t s = 0; s < n && i > 0; s++) {
            float sum = eps;
            for (int32_t d = 0; d < n; d++) sum += c[s * n + d];
            for (int32_t d = 0; d < n; d++) c[s * n + d] /= sum;
        }
        for (int32_t d = 0; d < n; d++) {
            float sum = eps;
            for (int32_t s = 0; s < n; s++) sum += c[s * n + d];
            for (int32_t s = 0; s < n; s++) c[s * n + d] /= sum;
        }
    }
}

void ob_ref_hc_coefficients(const ob_hc_params *h, const float *m, const float *scale, const float *base, float *pre,
                            float *post_comb)
{
    const int32_t n = h->n_stream;
    for (int32_t s = 0; s < n; s++) pre[s] = sigmoid(m[s] * scale[0] + base[s]) + h->eps;
    if (!post_comb) return;
    float *comb = post_comb + n;
    for (int32_t s = 0; s < n; s++) post_comb[s] = 2.0f * sigmoid(m[n + s] * scale[1] + base[n + s]);
    for (int32_t i = 0; i < n * n; i++) comb[i] = m[2 * n + i] * scale[2] + base[2 * n + i];
    sinkhorn(comb, n, h->n_iter, h->eps);
}

void ob_ref_hc_mix(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last)
{
    const ob_hc_params *h = &op->p.hc;
    const int32_t n = h->n_stream, d = e->prog->vals[op->out[0]].cols;
    const float *scale = ref_vector(e, op->w[0], e->scratch), *base = ref_vector(e, op->w[1], e->scratch + 8);
    for (int64_t r = first; r < last; r++) {
        const float *x = ref_row(e, op->in[0], r), *m = ref_row(e, op->in[1], r);
        float *y = ref_row(e, op->out[0], r), pre[OB_HC_MAX_STREAMS];
        ob_ref_hc_coefficients(h, m, scale, base, pre, op->out[1] == OB_NONE ? NULL : ref_row(e, op->out[1], r));
        for (int32_t c = 0; c < d; c++) {
            float sum = 0;
            for (int32_t s = 0; s < n; s++) sum += pre[s] * x[s * d + c];
            y[c] = sum;
        }
    }
}

void ob_ref_hc_post(const ob_ref_env *e, const ob_op *op, int64_t first, int64_t last)
{
    const int32_t n = op->p.hc.n_stream, d = e->prog->vals[op->in[0]].cols;
    for (int64_t r = first; r < last; r++) {
        const float *y = ref_row(e, op->in[0], r), *x = ref_row(e, op->in[1], r);
        const float *post = ref_row(e, op->in[2], r), *comb = post + n;
        float *out = ref_row(e, op->out[0], r);
        for (int32_t c = 0; c < d; c++) {
            float old[OB_HC_MAX_STREAMS]; /* out may be x */
            for (int32_t s = 0; s < n; s++) old[s] = x[s * d + c];
            for (int32_t k = 0; k < n; k++) {
                float sum = post[k] * y[c];
                for (int32_t s = 0; s < n; s++) sum += comb[s * n + k] * old[s];
                out[k * d + c] = sum;
            }
        }
    }
}

/* ------------------------------------------------------------------ compression */

/* One compressor: the latent one of the attention, or the indexer's. */
typedef struct compressor {
    ob_val kv, gate;
    int32_t ape, norm, cache, state, width, slots; /* slots: tokens that an entry may look at */
    bool overlap;
} compressor;

static compressor latent_of(const ob_ref_env *e, const ob_op *op)
{
    const ob_csa_params *p = &op->p.csa;
    compressor c = {.kv = op->in[2], .gate = op->in[3], .ape = op->w[1], .norm = op->w[2], .cache = p->cache_comp,
                    .state = p->state_comp, .width = p->k_dim};
    c.overlap = e->prog->vals[c.kv].cols == 2 * c.width;
    c.slots = (c.overlap ? 2 : 1) * p->ratio;
    return c;
}

static compressor index_of(const ob_op *op)
{
    const ob_csa_params *p = &op->p.csa;
    return (compressor){.kv = op->in[6], .gate = op->in[7], .ape = op->w[3], .norm = op->w[4], .cache = p->cache_index,
                        .state = p->state_index, .width = p->index_dim, .slots = 2 * p->ratio, .overlap = true};
}

typedef struct place {
    int32_t seq, at, first; /* at: position of the token; first: position of the step's first token of seq */
    int64_t row0;           /* row of that first token */
    const int32_t *pages;
} place;

static place place_of(const ob_ref_env *e, int64_t t)
{
    const ob_step *s = e->step;
    place p = {0};
    while (s->seq_first[p.seq + 1] <= t) p.seq++;
    p.row0 = s->seq_first[p.seq];
    p.first = s->seq_past[p.seq];
    p.at = p.first + (int32_t)(t - p.row0);
    p.pages = s->page_table + (size_t)p.seq * (size_t)s->max_pages;
    return p;
}

/* kv and gate rows of an earlier or this token: from the step, or from the ring of the state. */
static void source(const ob_ref_env *e, const compressor *c, const place *p, int32_t at, const float **kv,
                   const float **gate)
{
    if (at >= p->first) {
        *kv = ref_row(e, c->kv, p->row0 + at - p->first);
        *gate = ref_row(e, c->gate, p->row0 + at - p->first);
        return;
    }
    const int64_t cols = e->prog->vals[c->kv].cols;
    *kv = e->states[c->state] + e->step->seq_slot[p->seq] * e->prog->states[c->state].n_floats +
          (at % c->slots) * 2 * cols;
    *gate = *kv + cols;
}

static char *entry_row(const ob_ref_env *e, int32_t cache, int32_t width, const int32_t *pages, int32_t at)
{
    const ob_cache_view *v = &e->caches[cache];
    const size_t row = (size_t)pages[at / v->page_tok] * (size_t)v->page_tok + (size_t)(at % v->page_tok);
    return (char *)v->k + row * ob_type_row_bytes(v->k_type, width);
}

static void store(const ob_ref_env *e, int32_t cache, int32_t width, const int32_t *pages, int32_t at, const float *x)
{
    const ob_type type = e->caches[cache].k_type;
    void *dst = entry_row(e, cache, width, pages, at);
    if (type == OB_F32) memcpy(dst, x, (size_t)width * sizeof *x);
    else ob_type_get(type)->quant(x, dst, width, NULL);
}

/* The entry of the window that ends with token p->at. scratch: width + the vectors. */
static void compress(const ob_ref_env *e, const ob_op *op, const compressor *c, const place *p, float *scratch)
{
    const ob_csa_params *a = &op->p.csa;
    const int32_t ratio = a->ratio, end = p->at + 1, begin = OB_MAX(0, end - c->slots), w = c->width;
    float *y = scratch, *spare = scratch + w;
    const float *ape = ref_vector(e, c->ape, spare), *norm = ref_vector(e, c->norm, spare + 2 * w * ratio);
    const int32_t cols = c->overlap ? 2 * w : w;
    double squares = 0;
    for (int32_t i = 0; i < w; i++) {
        double max = -INFINITY, sum = 0, total = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int32_t t = begin; t < end; t++) {
                const float *kv, *gate;
                source(e, c, p, t, &kv, &gate);
                /* the window before gives its first half, this one its second */
                const int32_t col = c->overlap && t >= end - ratio ? w + i : i;
                const double z = (double)gate[col] + (double)ape[(t % ratio) * cols + col];
                if (pass == 0) {
                    max = OB_MAX(max, z);
                } else {
                    sum += exp(z - max);
                    total += exp(z - max) * (double)kv[col];
                }
            }
        y[i] = (float)(total / sum);
        squares += (double)y[i] * (double)y[i];
    }
    const float r = (float)(1.0 / sqrt(squares / w + (double)a->eps));
    for (int32_t i = 0; i < w; i++) y[i] = y[i] * r * norm[i];
    ob_rope_params rope = a->rope;
    rope.head_dim = w;
    rope.rot_off = w - rope.n_rot;
    ob_ref_rope_row(&rope, NULL, end - ratio, 1, y, y);
    if (a->official && c->cache == a->cache_index) ob_round_rotated(y, w);
    else if (a->official) ob_round_e4m3_row(y, w - rope.n_rot);
    store(e, c->cache, w, p->pages, p->at, y);
}

/* Keep the last `slots` tokens of the sequence. */
static void remember(const ob_ref_env *e, const compressor *c, const place *p, int64_t t)
{
    const int64_t cols = e->prog->vals[c->kv].cols;
    if (t + c->slots < e->step->seq_first[p->seq + 1]) return; /* a later token of the step has this place */
    float *ring = e->states[c->state] + e->step->seq_slot[p->seq] * e->prog->states[c->state].n_floats +
                  (p->at % c->slots) * 2 * cols;
    memcpy(ring, ref_row(e, c->kv, t), (size_t)cols * sizeof *ring);
    memcpy(ring + cols, ref_row(e, c->gate, t), (size_t)cols * sizeof *ring);
}

/* ------------------------------------------------------------------ attention */

/* Which of the n entries the query sees, by the indexer's score: chosen[i] = 1. */
static void choose(const ob_ref_env *e, const ob_op *op, const place *p, int64_t t, int32_t n, float *score, float *row)
{
    const ob_csa_params *a = &op->p.csa;
    const float *q = ref_row(e, op->in[4], t), *w = ref_row(e, op->in[5], t);
    const float scale = 1.0f / sqrtf((float)a->index_dim * (float)a->n_index_head);
    for (int32_t i = 0; i < n; i++) {
        ref_load_row(e->caches[a->cache_index].k_type,
                     entry_row(e, a->cache_index, a->index_dim, p->pages, (i + 1) * a->ratio - 1), row, a->index_dim);
        double sum = 0;
        for (int32_t h = 0; h < a->n_index_head; h++) {
            float head[OB_CSA_MAX_INDEX];
            const float *q_h = q + (int64_t)h * a->index_dim;
            if (a->official) {
                memcpy(head, q_h, (size_t)a->index_dim * sizeof *head);
                ob_round_rotated(head, a->index_dim);
                q_h = head;
            }
            const double s = ref_dot(q_h, row, a->index_dim);
            sum += OB_MAX(s, 0.0) * (double)(w[h] * scale);
        }
        score[i] = (float)sum;
    }
    /* The top_k best, equal ones in order: mark them by +inf, one after the other. */
    for (int32_t k = 0; k < a->top_k; k++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++)
            if (score[i] < INFINITY && (best < 0 || score[i] > score[best])) best = i;
        if (best < 0) return;
        score[best] = INFINITY;
    }
}

static void load_key(const ob_ref_env *e, const ob_csa_params *a, const place *p, int32_t raw0, int32_t n_raw,
                     int32_t j, float *row)
{
    const int32_t cache = j < n_raw ? a->cache_raw : a->cache_comp;
    const int32_t at = j < n_raw ? raw0 + j : (j - n_raw + 1) * a->ratio - 1;
    ref_load_row(e->caches[cache].k_type, entry_row(e, cache, a->k_dim, p->pages, at), row, a->k_dim);
}

/* One head of token t. *chosen_for: the token whose choice of entries is in the scratch. */
static void attend(const ob_ref_env *e, const ob_op *op, int64_t t, int32_t h, int64_t *chosen_for)
{
    const ob_csa_params *a = &op->p.csa;
    const place p = place_of(e, t);
    const int32_t raw0 = OB_MAX(0, p.at - a->window + 1), n_raw = p.at + 1 - raw0;
    const int32_t n_comp = a->ratio ? (p.at + 1) / a->ratio : 0, n = n_raw + n_comp;
    float *row = e->scratch, *chosen = row + OB_MAX(a->k_dim, a->index_dim), *score = chosen + n_comp;
    const float sink = ref_vector(e, op->w[0], score + n)[h];
    const bool pick = op->in[4] != OB_NONE && n_comp > a->top_k;
    if (pick && *chosen_for != t) choose(e, op, &p, t, n_comp, chosen, row);
    *chosen_for = t;
    const float *q = ref_row(e, op->in[0], t) + (int64_t)h * a->k_dim;
    float *y = ref_row(e, op->out[0], t) + (int64_t)h * a->k_dim;
    double max = (double)sink, sum = 0;
    for (int32_t j = 0; j < n; j++) {
        score[j] = -INFINITY;
        if (pick && j >= n_raw && chosen[j - n_raw] < INFINITY) continue;
        load_key(e, a, &p, raw0, n_raw, j, row);
        score[j] = (float)ref_dot(q, row, a->k_dim) * a->scale;
        max = OB_MAX(max, (double)score[j]);
    }
    for (int32_t j = 0; j < n; j++)
        if (score[j] > -INFINITY) sum += exp((double)score[j] - max);
    sum += exp((double)sink - max);
    memset(y, 0, (size_t)a->k_dim * sizeof *y);
    for (int32_t j = 0; j < n; j++) {
        if (!(score[j] > -INFINITY)) continue;
        const float w = (float)(exp((double)score[j] - max) / sum);
        load_key(e, a, &p, raw0, n_raw, j, row);
        for (int32_t i = 0; i < a->k_dim; i++) y[i] += w * row[i];
    }
}

size_t ob_ref_csa_scratch(const ob_op *op)
{
    const ob_csa_params *a = &op->p.csa;
    const int64_t width = OB_MAX(a->k_dim, a->index_dim);
    return (size_t)(width * (4 + 2 * (int64_t)a->ratio) + a->window + a->n_head);
}

void ob_ref_csa(const ob_ref_env *e, const ob_op *op, int phase, int64_t first, int64_t last)
{
    const ob_csa_params *a = &op->p.csa;
    const bool index = op->in[6] != OB_NONE;
    int64_t chosen_for = -1;
    for (int64_t item = first; item < last; item++) {
        const int64_t t = item / a->n_head, h = item % a->n_head;
        if (phase == 1) attend(e, op, t, (int32_t)h, &chosen_for);
        if (h != 0) continue;
        /* Once per token: what goes into the caches, and then into the state. */
        const place p = place_of(e, t);
        compressor c = {0}, ci = {0};
        if (a->ratio) c = latent_of(e, op);
        if (index) ci = index_of(op);
        if (phase == 0) {
            float *key = e->scratch;
            memcpy(key, ref_row(e, op->in[1], t), (size_t)a->k_dim * sizeof *key);
            if (a->official) ob_round_e4m3_row(key, a->k_dim - a->rope.n_rot);
            store(e, a->cache_raw, a->k_dim, p.pages, p.at, key);
            if (!a->ratio || (p.at + 1) % a->ratio) continue;
            compress(e, op, &c, &p, e->scratch);
            if (index) compress(e, op, &ci, &p, e->scratch);
        } else {
            if (a->ratio) remember(e, &c, &p, t);
            if (index) remember(e, &ci, &p, t);
        }
    }
}
