/* DeepSeek V4 on the CPU: compressed sparse attention (OB_OP_CSA) and hyper-connections.
 *
 *   1. tokens: the key goes to its cache; where a window ends, its entry is compressed (columns in lanes)
 *   2. (token, block of heads): the indexer's choice, then attention over the last keys and the chosen
 *      entries, in tiles of the attention kernel. All heads of a token share its keys, so a tile is
 *      packed once for all of them; the sink is where the softmax's sum begins.
 *
 * Threads meet between the two. A token's result depends on nothing but its own keys, in this order, so it has
 * the same bits in any company, chunking or number of threads.
 */
#include "dev/cpu/cpu_int.h"

#include <math.h>
#include <string.h>

#include "base/math.h"
#include "quant/fp_round.h"

enum { TILE = OB_CPU_ATTN_TILE, BLOCK_HEADS = 96, FEW_HEADS = 8 };

typedef struct bench {
    float *q, *s, *kp, *vp, *rows, *o, *max, *sum;
    int32_t *lo, *hi;
    float *score, *sorted; /* of entries */
    int32_t *chosen;
    float *entry;
    const float **kv, **gate, **ape; /* tokens that an entry looks at */
} bench;

typedef struct csa {
    const ob_dev_plan *p;
    const ob_op *op;
    const ob_csa_params *a;
    bench b;
    int32_t block; /* heads of an item */
} csa;

/* ------------------------------------------------------------------ scratch */

static size_t lay_out(const ob_csa_params *a, int32_t max_ctx, float *at, bench *b)
{
    const size_t n_q = (size_t)OB_MAX(OB_MIN(a->n_head, BLOCK_HEADS), a->n_index_head);
    const size_t width = ob_align_up((size_t)OB_MAX(a->k_dim, a->index_dim), OB_CPU_MAX_LANES);
    const size_t n_entry = a->ratio ? (size_t)(max_ctx / a->ratio) + 1 : 1, n_slot = 2 * (size_t)a->ratio + 1;
    float *const first = at;
#define PART(field, n)                                                                            \
    do {                                                                                          \
        if (b) b->field = (void *)at;                                                             \
        at += ob_align_up((n), 16);                                                               \
    } while (0)
    PART(q, n_q * width);
    PART(s, n_q * TILE);
    PART(kp, TILE * width);
    PART(vp, TILE * width);
    PART(rows, TILE * width);
    PART(o, n_q * width);
    PART(max, n_q);
    PART(sum, n_q);
    PART(lo, n_q);
    PART(hi, n_q);
    PART(score, n_entry);
    PART(sorted, n_entry);
    PART(chosen, n_entry);
    PART(entry, width);
    PART(kv, 2 * n_slot); /* a pointer is two floats */
    PART(gate, 2 * n_slot);
    PART(ape, 2 * n_slot);
#undef PART
    return (size_t)(at - first);
}

size_t cpu_csa_scratch_floats(const ob_op *op, int32_t max_ctx)
{
    static float origin[1];
    return lay_out(&op->p.csa, max_ctx, origin, NULL);
}

/* ------------------------------------------------------------------ caches */

typedef struct place {
    const int32_t *pages;
    int32_t seq, at;  /* position of the token */
    int32_t past;     /* of its sequence before the step */
    int64_t row0;     /* row of the sequence's first token */
} place;

static place place_of(const ob_dev_plan *p, int64_t t)
{
    const int32_t q = p->row_seq[t];
    return (place){.pages = p->step.page_table + (size_t)q * (size_t)p->step.max_pages, .seq = q, .at = p->row_at[t],
                   .past = p->step.seq_past[q], .row0 = p->step.seq_first[q]};
}

static void *cache_row(const csa *c, int32_t cache, int32_t width, const int32_t *pages, int32_t at)
{
    const ob_cache_view *v = &c->p->caches[cache];
    return cpu_cache_row(v->k, ob_type_row_bytes(v->k_type, width), v->page_tok, 1, pages, at, 0);
}

static void store(const csa *c, int32_t cache, int32_t width, const place *at, const float *x)
{
    const ob_type type = c->p->caches[cache].k_type;
    void *dst = cache_row(c, cache, width, at->pages, at->at);
    if (type == OB_F32) memcpy(dst, x, (size_t)width * sizeof *x);
    else if (type == OB_F16) c->p->dev->kern->to_f16(x, dst, width);
    else ob_type_get(type)->quant(x, dst, width, NULL);
}

/* Where cached row `at` can be read by the attention kernel; other types are dequantised into row i of b.rows. */
static const void *load(const csa *c, int32_t cache, int32_t width, const int32_t *pages, int32_t at, int32_t i)
{
    const ob_type type = c->p->caches[cache].k_type;
    const void *src = cache_row(c, cache, width, pages, at);
    if (type == OB_F32 || type == OB_F16) return src;
    float *dst = c->b.rows + (int64_t)i * width;
    ob_type_get(type)->dequant(src, dst, width);
    return dst;
}

/* ------------------------------------------------------------------ compression */

typedef struct compressor {
    ob_val kv, gate;
    int32_t ape, norm, cache, state, width, slots; /* slots: tokens that an entry may look at */
    bool overlap;
} compressor;

static compressor compressor_of(const csa *c, bool index)
{
    const ob_csa_params *a = c->a;
    const int k = index ? 6 : 2, w = index ? 3 : 1;
    compressor x = {.kv = c->op->in[k], .gate = c->op->in[k + 1], .ape = c->op->w[w], .norm = c->op->w[w + 1],
                    .cache = index ? a->cache_index : a->cache_comp, .state = index ? a->state_index : a->state_comp,
                    .width = index ? a->index_dim : a->k_dim};
    x.overlap = c->p->prog.vals[x.kv].cols == 2 * x.width;
    x.slots = (x.overlap ? 2 : 1) * a->ratio;
    return x;
}

static float *ring_of(const csa *c, const compressor *x, const place *at, int32_t pos)
{
    return c->p->states[x->state] + c->p->step.seq_slot[at->seq] * c->p->prog.states[x->state].n_floats +
           (int64_t)(pos % x->slots) * 2 * c->p->prog.vals[x->kv].cols;
}

/* The entry of the window that ends with the token at `at`, into its cache. */
static void compress(const csa *c, const compressor *x, const place *at)
{
    const int32_t ratio = c->a->ratio, end = at->at + 1, begin = OB_MAX(0, end - x->slots);
    const int32_t cols = c->p->prog.vals[x->kv].cols;
    const float *ape = cpu_vector(c->p, x->ape);
    for (int32_t t = begin; t < end; t++) {
        /* the window before gives its first half, this one its second */
        const int32_t col = x->overlap && t >= end - ratio ? x->width : 0, i = t - begin;
        const float *ring = ring_of(c, x, at, t);
        const bool here = t >= at->past;
        c->b.kv[i] = (here ? cpu_row(c->p, x->kv, at->row0 + t - at->past) : ring) + col;
        c->b.gate[i] = (here ? cpu_row(c->p, x->gate, at->row0 + t - at->past) : ring + cols) + col;
        c->b.ape[i] = ape + (int64_t)(t % ratio) * cols + col;
    }
    float *y = c->b.entry;
    c->p->dev->kern->softmax_pool(c->b.kv, c->b.gate, c->b.ape, end - begin, y, x->width);
    c->p->dev->kern->rms_norm(y, cpu_vector(c->p, x->norm), y, x->width, c->a->eps);
    ob_rope_params rope = c->a->rope;
    rope.head_dim = x->width;
    rope.rot_off = x->width - rope.n_rot;
    ob_ref_rope_row(&rope, NULL, end - ratio, 1, y, y);
    if (c->a->official && x->cache == c->a->cache_index) ob_round_rotated(y, x->width);
    else if (c->a->official) ob_round_e4m3_row(y, x->width - rope.n_rot);
    store(c, x->cache, x->width, at, y);
}

/* Keep kv and gate of the token if no later one of the step takes its place. */
static void remember(const csa *c, const compressor *x, const place *at, int64_t t)
{
    const size_t cols = (size_t)c->p->prog.vals[x->kv].cols;
    if (t + x->slots < c->p->step.seq_first[at->seq + 1]) return;
    float *ring = ring_of(c, x, at, at->at);
    memcpy(ring, cpu_row(c->p, x->kv, t), cols * sizeof *ring);
    memcpy(ring + cols, cpu_row(c->p, x->gate, t), cols * sizeof *ring);
}

/* ------------------------------------------------------------------ the indexer's choice */

static void copy_queries(const float *x, float scale, int32_t n, int32_t dim, int32_t pad, float *q)
{
    for (int32_t h = 0; h < n; h++)
        for (int32_t i = 0; i < pad; i++) q[(int64_t)h * pad + i] = i < dim ? x[(int64_t)h * dim + i] * scale : 0;
}

/* Scores of all n entries for token t. */
static void score_entries(const csa *c, const place *at, int64_t t, int32_t n)
{
    const ob_csa_params *a = c->a;
    const int32_t pad = (int32_t)ob_align_up((size_t)a->index_dim, 4);
    const float scale = 1.0f / sqrtf((float)a->index_dim * (float)a->n_index_head);
    const void *row[TILE];
    copy_queries(cpu_row(c->p, c->op->in[4], t), a->official ? 1 : scale, a->n_index_head, a->index_dim, pad, c->b.q);
    for (int32_t h = 0; a->official && h < a->n_index_head; h++) {
        ob_round_rotated(c->b.q + (int64_t)h * pad, a->index_dim);
        for (int32_t i = 0; i < a->index_dim; i++) c->b.q[(int64_t)h * pad + i] *= scale;
    }
    for (int32_t i0 = 0; i0 < n; i0 += TILE) {
        const int32_t n_tok = OB_MIN(TILE, n - i0);
        for (int32_t i = 0; i < n_tok; i++)
            row[i] = load(c, a->cache_index, a->index_dim, at->pages, (i0 + i + 1) * a->ratio - 1, i);
        const ob_cpu_attn_tile tile = {.n_q = a->n_index_head, .n_tok = n_tok, .k_dim = a->index_dim, .k_pad = pad,
                                       .q = c->b.q, .k_row = row, .k_f16 = c->p->caches[a->cache_index].k_type == OB_F16,
                                       .kp = c->b.kp, .s = c->b.s};
        c->p->dev->kern->attn_scores(&tile);
        c->p->dev->kern->relu_mix(c->b.s, TILE, cpu_row(c->p, c->op->in[5], t), a->n_index_head, c->b.score + i0, n_tok);
    }
}

/* The k-th largest of n values, which are moved about (Hoare's selection). */
static float kth_largest(float *v, int32_t n, int32_t k)
{
    int32_t lo = 0, hi = n - 1;
    while (lo < hi) {
        const float pivot = v[lo + (hi - lo) / 2];
        int32_t i = lo, j = hi;
        while (i <= j) {
            while (v[i] > pivot) i++;
            while (v[j] < pivot) j--;
            if (i > j) break;
            const float x = v[i];
            v[i++] = v[j];
            v[j--] = x;
        }
        if (k - 1 <= j) hi = j;
        else if (k - 1 >= i) lo = i;
        else break;
    }
    return v[k - 1];
}

/* The top_k best entries in order of position into b.chosen, of equal ones the earlier; returns how many. */
static int32_t choose(const csa *c, const place *at, int64_t t, int32_t n)
{
    const int32_t k = c->a->top_k;
    score_entries(c, at, t, n);
    for (int32_t i = 0; i < n; i++)
        if (!(c->b.score[i] > -INFINITY)) c->b.score[i] = -INFINITY; /* NaN has no order */
    memcpy(c->b.sorted, c->b.score, (size_t)n * sizeof *c->b.sorted);
    const float least = kth_largest(c->b.sorted, n, k);
    int32_t n_above = 0, n_chosen = 0;
    for (int32_t i = 0; i < n; i++) n_above += c->b.score[i] > least;
    int32_t n_equal = k - n_above;
    for (int32_t i = 0; i < n; i++)
        if (c->b.score[i] > least || (c->b.score[i] == least && n_equal-- > 0)) c->b.chosen[n_chosen++] = i;
    return n_chosen;
}

/* ------------------------------------------------------------------ attention */

/* Heads [h0, h0 + n_q) of token t. */
static void attend(const csa *c, const place *at, int64_t t, int32_t h0, int32_t n_q)
{
    const ob_csa_params *a = c->a;
    const int32_t raw0 = OB_MAX(0, at->at - a->window + 1), n_raw = at->at + 1 - raw0;
    const int32_t n_entry = a->ratio ? (at->at + 1) / a->ratio : 0;
    const bool pick = c->op->in[4] != OB_NONE && n_entry > a->top_k;
    const int32_t n = n_raw + (pick ? choose(c, at, t, n_entry) : n_entry);
    const int32_t k_pad = (int32_t)ob_align_up((size_t)a->k_dim, 4);
    const int32_t v_pad = (int32_t)ob_align_up((size_t)a->k_dim, OB_CPU_MAX_LANES);
    const float *sink = cpu_vector(c->p, c->op->w[0]);
    const void *row[TILE];
    copy_queries(cpu_row(c->p, c->op->in[0], t) + (int64_t)h0 * a->k_dim, a->scale, n_q, a->k_dim, k_pad, c->b.q);
    for (int32_t i = 0; i < n_q; i++) {
        c->b.max[i] = sink[h0 + i];
        c->b.sum[i] = 1;
        c->b.lo[i] = 0;
    }
    memset(c->b.o, 0, (size_t)n_q * (size_t)v_pad * sizeof *c->b.o);
    for (int32_t j0 = 0; j0 < n; j0 += TILE) {
        const int32_t n_tok = OB_MIN(TILE, n - j0);
        for (int32_t i = 0; i < n_tok; i++) {
            const int32_t j = j0 + i, e = j - n_raw;
            if (j < n_raw) row[i] = load(c, a->cache_raw, a->k_dim, at->pages, raw0 + j, i);
            else row[i] = load(c, a->cache_comp, a->k_dim, at->pages, ((pick ? c->b.chosen[e] : e) + 1) * a->ratio - 1, i);
        }
        for (int32_t i = 0; i < n_q; i++) c->b.hi[i] = n_tok;
        const bool f16 = c->p->caches[a->cache_raw].k_type == OB_F16;
        const ob_cpu_attn_tile tile = {.n_q = n_q, .n_tok = n_tok, .k_dim = a->k_dim, .k_pad = k_pad, .v_dim = a->k_dim,
                                       .v_pad = v_pad, .q = c->b.q, .k_row = row, .v_row = row, .k_f16 = f16,
                                       .v_f16 = f16, .lo = c->b.lo, .hi = c->b.hi, .max = c->b.max, .sum = c->b.sum,
                                       .o = c->b.o, .kp = c->b.kp, .vp = c->b.vp, .s = c->b.s};
        c->p->dev->kern->attn_tile(&tile);
    }
    for (int32_t i = 0; i < n_q; i++)
        c->p->dev->kern->scale(c->b.o + (int64_t)i * v_pad, 1.0f / c->b.sum[i], 0,
                               cpu_row(c->p, c->op->out[0], t) + (int64_t)(h0 + i) * a->k_dim, a->k_dim);
}

void cpu_csa_run(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t)
{
    csa c = {.p = p, .op = op, .a = &op->p.csa};
    const bool index = op->in[6] != OB_NONE;
    const int32_t ratio = c.a->ratio, n_head = c.a->n_head, n_threads = p->dev->n_threads;
    compressor x[2];
    const int n_x = ratio ? 1 + index : 0;
    lay_out(c.a, p->max_ctx, t->work, &c.b);
    for (int i = 0; i < n_x; i++) x[i] = compressor_of(&c, i == 1);
    for (int64_t r, r1; ob_pool_take(p->dev->pool, p->step.n_tok, 1, &r, &r1);) {
        const place at = place_of(p, r);
        const float *key = cpu_row(p, op->in[1], r);
        if (c.a->official) {
            key = memcpy(c.b.entry, key, (size_t)c.a->k_dim * sizeof *key);
            ob_round_e4m3_row(c.b.entry, c.a->k_dim - c.a->rope.n_rot);
        }
        store(&c, c.a->cache_raw, c.a->k_dim, &at, key);
        for (int i = 0; i < n_x && (at.at + 1) % ratio == 0; i++) compress(&c, &x[i], &at);
    }
    ob_pool_barrier(p->dev->pool);
    /* Few tokens: their heads are shared out too, and each thread chooses for itself. */
    c.block = OB_MIN(n_head, BLOCK_HEADS);
    if (p->step.n_tok < 2 * n_threads) c.block = OB_MIN(c.block, OB_MAX(FEW_HEADS, (int32_t)ob_div_up(n_head, n_threads)));
    const int64_t n_block = ob_div_up(n_head, c.block);
    for (int64_t i, i1; ob_pool_take(p->dev->pool, p->step.n_tok * n_block, 1, &i, &i1);) {
        const int64_t r = i / n_block;
        const int32_t h0 = (int32_t)(i % n_block) * c.block;
        const place at = place_of(p, r);
        attend(&c, &at, r, h0, OB_MIN(c.block, n_head - h0));
        for (int k = 0; k < n_x && h0 == 0; k++) remember(&c, &x[k], &at, r);
    }
}

/* ------------------------------------------------------------------ hyper-connections */

void cpu_hc_mix(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t, int64_t r0, int64_t r1)
{
    (void)t;
    const int32_t n = op->p.hc.n_stream, d = p->prog.vals[op->out[0]].cols;
    for (int64_t r = r0; r < r1; r++) {
        float pre[OB_HC_MAX_STREAMS], *y = cpu_row(p, op->out[0], r);
        const float *x = cpu_row(p, op->in[0], r);
        ob_ref_hc_coefficients(&op->p.hc, cpu_row(p, op->in[1], r), cpu_vector(p, op->w[0]), cpu_vector(p, op->w[1]), pre,
                               op->out[1] == OB_NONE ? NULL : cpu_row(p, op->out[1], r));
        p->dev->kern->scale(x, pre[0], 0, y, d);
        for (int32_t s = 1; s < n; s++) p->dev->kern->add(y, x + (int64_t)s * d, pre[s], y, d);
    }
}

/* Columns in pieces, because the streams are written where they are read. */
void cpu_hc_post(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t, int64_t r0, int64_t r1)
{
    enum { PIECE = 256 };
    (void)t;
    const int32_t n = op->p.hc.n_stream, d = p->prog.vals[op->in[0]].cols;
    float old[OB_HC_MAX_STREAMS][PIECE];
    for (int64_t r = r0; r < r1; r++) {
        const float *y = cpu_row(p, op->in[0], r), *x = cpu_row(p, op->in[1], r), *post = cpu_row(p, op->in[2], r);
        const float *comb = post + n;
        for (int32_t c0 = 0; c0 < d; c0 += PIECE) {
            const int32_t cols = OB_MIN(PIECE, d - c0);
            for (int32_t s = 0; s < n; s++) memcpy(old[s], x + (int64_t)s * d + c0, (size_t)cols * sizeof *x);
            for (int32_t k = 0; k < n; k++) {
                float *out = cpu_row(p, op->out[0], r) + (int64_t)k * d + c0;
                p->dev->kern->scale(y + c0, post[k], 0, out, cols);
                for (int32_t s = 0; s < n; s++) p->dev->kern->add(out, old[s], comb[s * n + k], out, cols);
            }
        }
    }
}
