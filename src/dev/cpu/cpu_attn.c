/* The attention stage: cuts queries into blocks and the cache into segments and tiles.
 *
 * A block is some adjacent tokens of one sequence times the query heads of one key-value head. It
 * walks the cache in segments of SEGMENT tokens, a segment in tiles; both begin at absolute multiples
 * of their size, whatever the page size. Each segment is summed on its own and then merged in order,
 * also when one thread does them all: so when few blocks must occupy many threads (decode at depth)
 * segments are shared out and the result stays the same bit for bit.
 */
#include "dev/cpu/cpu_int.h"

#include <math.h>
#include <string.h>

#include "base/math.h"

enum {
    TILE = OB_CPU_ATTN_TILE,
    SEGMENT = 8 * TILE,
    BLOCK_QUERIES = 96, /* packing a tile costs about as much as 6 queries */
    BLOCK_ROWS = 64,
};

typedef struct dims {
    int32_t group;    /* query heads per key-value head */
    int32_t rows;     /* tokens of a block */
    int32_t k_pad, v_pad, n_q;
} dims;

static dims dims_of(const ob_attn_params *a)
{
    dims d = {.group = a->n_head / a->n_head_kv,
              .k_pad = (int32_t)ob_align_up((size_t)a->k_dim, 4),
              .v_pad = (int32_t)ob_align_up((size_t)a->v_dim, OB_CPU_MAX_LANES)};
    d.rows = OB_MAX(1, OB_MIN(BLOCK_ROWS, BLOCK_QUERIES / d.group));
    d.n_q = d.rows * d.group;
    return d;
}

/* Scratch of one thread, cut into its parts. */
typedef struct bench {
    float *q, *s, *kp, *vp, *k_rows, *v_rows; /* *_rows: cache types that are dequantised first */
    float *o, *max, *sum;                     /* merged so far */
    float *o2, *max2, *sum2;                  /* of this segment */
    int32_t *lo, *hi;
} bench;

static size_t lay_out(const ob_attn_params *a, float *at, bench *b)
{
    const dims d = dims_of(a);
    const size_t n_q = (size_t)d.n_q, k_pad = (size_t)d.k_pad, v_pad = (size_t)d.v_pad;
    float *const first = at;
#define PART(field, n)                                                                            \
    do {                                                                                          \
        if (b) b->field = (void *)at;                                                             \
        at += ob_align_up((n), 16);                                                               \
    } while (0)
    PART(q, n_q * k_pad);
    PART(s, n_q * TILE);
    PART(kp, TILE * k_pad);
    PART(vp, TILE * v_pad);
    PART(k_rows, TILE * (size_t)a->k_dim);
    PART(v_rows, TILE * (size_t)a->v_dim);
    PART(o, n_q * v_pad);
    PART(o2, n_q * v_pad);
    PART(max, n_q);
    PART(max2, n_q);
    PART(sum, n_q);
    PART(sum2, n_q);
    PART(lo, n_q);
    PART(hi, n_q);
#undef PART
    return (size_t)(at - first);
}

size_t cpu_attn_scratch_floats(const ob_attn_params *a)
{
    static float origin[1];
    return lay_out(a, origin, NULL);
}

size_t cpu_attn_part_floats(const ob_attn_params *a, int n_threads, int32_t max_ctx)
{
    if (n_threads == 1 || max_ctx <= SEGMENT) return 0;
    const dims d = dims_of(a);
    const size_t most = (size_t)16 << 20; /* 64 MiB */
    /* Enough for blocks of one row until there are three blocks per thread. */
    const size_t n = (size_t)OB_MAX(3 * n_threads, a->n_head_kv) * (size_t)ob_div_up(max_ctx, SEGMENT) *
                     (size_t)d.group * (size_t)(d.v_pad + 2);
    return OB_MIN(n, most);
}

/* --- one block --------------------------------------------------------------------------------- */

typedef struct block {
    const ob_dev_plan *p;
    const ob_op *op;
    const ob_cache_view *cache;
    const int32_t *pages;
    dims d;
    int32_t head;          /* key-value head */
    int32_t row0, n_rows;  /* tokens of the step */
    int32_t at0;           /* place of the first of them in the cache */
    int32_t first, last;   /* cached tokens that any of them sees */
    int32_t n_kv;          /* tokens of the sequence, this step's included */
    bench b;
} block;

/* Cached tokens [*lo, *hi) seen by the block's token `row`. Neither falls from row to row. */
static void seen_by(const block *k, int32_t row, int32_t *lo, int32_t *hi)
{
    const ob_attn_params *a = &k->op->p.attn;
    const ob_step *st = &k->p->step;
    const int32_t at = k->at0 + row, t = k->row0 + row;
    if (a->blocks == OB_BLOCKS_ONLY && st->block_first) {
        *lo = st->block_first[t];
        *hi = st->block_end[t];
        return;
    }
    *lo = 0;
    *hi = a->causal ? at + 1 : k->n_kv;
    if (a->window > 0 && a->causal) {
        *lo = OB_MAX(0, at - a->window + 1);
    } else if (a->window > 0) {
        *lo = OB_MAX(0, at - a->window / 2);
        *hi = OB_MIN(k->n_kv, at + a->window / 2 + 1);
    }
    if (a->blocks == OB_BLOCKS_NONE || !st->block_first) return;
    *lo = OB_MIN(*lo, st->block_first[t]);
    *hi = OB_MAX(*hi, st->block_end[t]);
}

static void load_queries(const block *k)
{
    const ob_attn_params *a = &k->op->p.attn;
    for (int32_t r = 0; r < k->n_rows; r++)
        for (int32_t g = 0; g < k->d.group; g++) {
            const float *x = cpu_row(k->p, k->op->in[0], k->row0 + r) +
                             (size_t)(k->head * k->d.group + g) * (size_t)a->k_dim;
            float *q = k->b.q + (size_t)(r * k->d.group + g) * (size_t)k->d.k_pad;
            k->p->dev->kern->scale(x, a->scale, 0, q, a->k_dim);
            for (int32_t c = a->k_dim; c < k->d.k_pad; c++) q[c] = 0;
        }
}

/* Pointers to the rows of a tile; types other than f32 and f16 are dequantised into `store`. */
static bool tile_rows(const block *k, void *plane, ob_type type, int32_t dim, int32_t tile, int32_t n, float *store,
                      const void **rows)
{
    const size_t row_bytes = ob_type_row_bytes(type, dim);
    const bool direct = type == OB_F32 || type == OB_F16;
    for (int32_t i = 0; i < n; i++) {
        /* What no query sees may be gone (a page that left the window): do not touch it. */
        const int32_t at = OB_MAX(k->first, tile + i);
        rows[i] = cpu_cache_row(plane, row_bytes, k->cache->page_tok, k->op->p.attn.n_head_kv, k->pages, at, k->head);
        if (direct) continue;
        ob_type_get(type)->dequant(rows[i], store + (size_t)i * (size_t)dim, dim);
        rows[i] = store + (size_t)i * (size_t)dim;
    }
    return type == OB_F16;
}

/* Sum the cached tokens of one segment into max, sum, o. */
static void sum_segment(const block *k, int32_t segment, float *max, float *sum, float *o)
{
    const ob_attn_params *a = &k->op->p.attn;
    const int32_t n_q = k->n_rows * k->d.group;
    for (int32_t i = 0; i < n_q; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    memset(o, 0, (size_t)n_q * (size_t)k->d.v_pad * sizeof *o);
    const int32_t first = OB_MAX(k->first, segment * SEGMENT), last = OB_MIN(k->last, (segment + 1) * SEGMENT);
    for (int32_t tile = first / TILE * TILE; tile < last; tile += TILE) {
        const void *k_row[TILE], *v_row[TILE];
        const int32_t n_tok = OB_MIN(TILE, last - tile);
        for (int32_t i = 0; i < n_q; i++) {
            int32_t lo, hi;
            seen_by(k, i / k->d.group, &lo, &hi);
            k->b.lo[i] = OB_MAX(0, OB_MIN(lo - tile, n_tok));
            k->b.hi[i] = OB_MAX(0, OB_MIN(hi - tile, n_tok));
        }
        const bool v_in_k = k->op->in[2] == OB_NONE; /* the first v_dim columns of the keys */
        const bool k_f16 = tile_rows(k, k->cache->k, k->cache->k_type, a->k_dim, tile, n_tok, k->b.k_rows, k_row);
        const bool v_f16 = v_in_k ? k_f16
                                  : tile_rows(k, k->cache->v, k->cache->v_type, a->v_dim, tile, n_tok, k->b.v_rows,
                                              v_row);
        const ob_cpu_attn_tile t = {
            .n_q = n_q, .n_tok = n_tok,
            .k_dim = a->k_dim, .k_pad = k->d.k_pad, .v_dim = a->v_dim, .v_pad = k->d.v_pad,
            .q = k->b.q, .k_row = k_row, .v_row = v_in_k ? k_row : v_row, .k_f16 = k_f16, .v_f16 = v_f16,
            .lo = k->b.lo, .hi = k->b.hi, .softcap = a->softcap,
            .max = max, .sum = sum, .o = o, .kp = k->b.kp, .vp = k->b.vp, .s = k->b.s};
        k->p->dev->kern->attn_tile(&t);
    }
}

static void merge(const block *k, const float *max, const float *sum, const float *o)
{
    for (int32_t i = 0; i < k->n_rows * k->d.group; i++)
        k->p->dev->kern->attn_merge(&k->b.max[i], &k->b.sum[i], k->b.o + (size_t)i * (size_t)k->d.v_pad, max[i],
                                    sum[i], o + (size_t)i * (size_t)k->d.v_pad, k->d.v_pad);
}

static void store_output(const block *k)
{
    const ob_attn_params *a = &k->op->p.attn;
    for (int32_t i = 0; i < k->n_rows * k->d.group; i++) {
        float *y = cpu_row(k->p, k->op->out[0], k->row0 + i / k->d.group) +
                   (size_t)(k->head * k->d.group + i % k->d.group) * (size_t)a->v_dim;
        const float *o = k->b.o + (size_t)i * (size_t)k->d.v_pad;
        const float r = k->b.sum[i] > 0 ? 1.0f / k->b.sum[i] : 0;
        k->p->dev->kern->scale(o, r, 0, y, a->v_dim);
    }
}

static void run_block(const block *k)
{
    load_queries(k);
    const int32_t s0 = k->first / SEGMENT, s1 = (k->last - 1) / SEGMENT;
    sum_segment(k, s0, k->b.max, k->b.sum, k->b.o);
    for (int32_t s = s0 + 1; s <= s1; s++) {
        sum_segment(k, s, k->b.max2, k->b.sum2, k->b.o2);
        merge(k, k->b.max2, k->b.sum2, k->b.o2);
    }
    store_output(k);
}

/* --- all blocks of a step ---------------------------------------------------------------------- */

/* How the step is cut. Item i of a sequence is (block of rows, key-value head[, segment]). */
typedef struct cut {
    const ob_step *st;
    int32_t rows;      /* of a block */
    int32_t n_head_kv;
    bool split;        /* segments are items of their own */
    int64_t n_blocks, n_items;
    size_t part_floats; /* of one item */
} cut;

static int32_t seq_rows(const ob_step *s, int32_t q) { return s->seq_first[q + 1] - s->seq_first[q]; }
static int32_t seq_segments(const cut *c, int32_t q)
{
    return c->split ? (int32_t)ob_div_up(c->st->seq_past[q] + seq_rows(c->st, q), SEGMENT) : 1;
}
static int64_t seq_blocks(const cut *c, int32_t q)
{
    return ob_div_up(seq_rows(c->st, q), c->rows) * c->n_head_kv;
}

/* The same for every thread: it depends on the step alone, and never changes a result. */
static cut cut_step(const ob_dev_plan *p, const ob_attn_params *a, dims d)
{
    cut c = {.st = &p->step, .rows = d.rows, .n_head_kv = a->n_head_kv};
    int32_t most_rows = 1, most_kv = 0;
    for (int32_t q = 0; q < c.st->n_seq; q++) {
        c.n_blocks += seq_blocks(&c, q);
        most_rows = OB_MAX(most_rows, seq_rows(c.st, q));
        most_kv = OB_MAX(most_kv, c.st->seq_past[q] + seq_rows(c.st, q));
    }
    c.n_items = c.n_blocks;
    if (p->dev->n_threads == 1 || c.n_blocks >= 3 * p->dev->n_threads || most_kv <= SEGMENT) return c;
    cut s = c;
    s.split = true;
    s.n_items = 0;
    for (int32_t q = 0; q < c.st->n_seq; q++) s.n_items += seq_blocks(&s, q) * seq_segments(&s, q);
    s.part_floats = (size_t)OB_MIN(most_rows, d.rows) * (size_t)d.group * (size_t)(d.v_pad + 2);
    return (size_t)s.n_items * s.part_floats <= p->part_floats ? s : c;
}

typedef struct walk {
    int32_t seq;
    int64_t base, base_block; /* first item and first block of seq */
} walk;

/* Items of one thread come in rising order, so the walk only moves forward. */
static void find_block(const cut *c, walk *w, int64_t item, block *k, int32_t *segment)
{
    for (int64_t n; item >= w->base + (n = seq_blocks(c, w->seq) * seq_segments(c, w->seq)); w->seq++) {
        w->base += n;
        w->base_block += seq_blocks(c, w->seq);
    }
    const int32_t n_seg = seq_segments(c, w->seq);
    const int64_t in_seq = (item - w->base) / n_seg;
    *segment = (int32_t)((item - w->base) % n_seg);
    const int32_t row = (int32_t)(in_seq / c->n_head_kv) * c->rows, n_rows = seq_rows(c->st, w->seq);
    k->head = (int32_t)(in_seq % c->n_head_kv);
    k->row0 = c->st->seq_first[w->seq] + row;
    k->n_rows = OB_MIN(c->rows, n_rows - row);
    k->at0 = c->st->seq_past[w->seq] + row;
    k->n_kv = c->st->seq_past[w->seq] + n_rows;
    k->pages = c->st->page_table + (size_t)w->seq * (size_t)c->st->max_pages;
    int32_t unused;
    seen_by(k, 0, &k->first, &unused);
    seen_by(k, k->n_rows - 1, &unused, &k->last);
}

/* Partial result of an item: max, sum, o of each query. */
static void part_of(const block *k, const cut *c, int64_t item, float **max, float **sum, float **o)
{
    const int32_t n_q = k->n_rows * k->d.group;
    *o = k->p->part + (size_t)item * c->part_floats;
    *max = *o + (size_t)n_q * (size_t)k->d.v_pad;
    *sum = *max + n_q;
}

static void merge_segments(const block *k, const cut *c, int64_t item, int32_t n_seg)
{
    const int32_t n_q = k->n_rows * k->d.group;
    for (int32_t i = 0; i < n_q; i++) {
        k->b.max[i] = -INFINITY;
        k->b.sum[i] = 0;
    }
    memset(k->b.o, 0, (size_t)n_q * (size_t)k->d.v_pad * sizeof(float));
    for (int32_t s = k->first / SEGMENT; s < n_seg && s * SEGMENT < k->last; s++) {
        float *max, *sum, *o;
        part_of(k, c, item + s, &max, &sum, &o);
        merge(k, max, sum, o);
    }
    store_output(k);
}

void cpu_attend(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t)
{
    const ob_attn_params *a = &op->p.attn;
    block k = {.p = p, .op = op, .cache = &p->caches[a->cache], .d = dims_of(a)};
    lay_out(a, t->work, &k.b);
    const cut c = cut_step(p, a, k.d);
    walk w = {0};
    int32_t segment;
    for (int64_t i, i1; ob_pool_take(p->dev->pool, c.n_items, 1, &i, &i1);) {
        find_block(&c, &w, i, &k, &segment);
        if (!c.split) {
            run_block(&k);
        } else if (segment * SEGMENT < k.last && (segment + 1) * SEGMENT > k.first) {
            float *max, *sum, *o;
            part_of(&k, &c, i, &max, &sum, &o);
            load_queries(&k);
            sum_segment(&k, segment, max, sum, o);
        }
    }
    if (!c.split) return;
    ob_pool_barrier(p->dev->pool);
    /* Blocks in turn; the walk is over items, so step over each block's segments. */
    w = (walk){0};
    for (int64_t b, b1; ob_pool_take(p->dev->pool, c.n_blocks, 1, &b, &b1);) {
        for (; b >= w.base_block + seq_blocks(&c, w.seq); w.seq++) {
            w.base += seq_blocks(&c, w.seq) * seq_segments(&c, w.seq);
            w.base_block += seq_blocks(&c, w.seq);
        }
        const int64_t item = w.base + (b - w.base_block) * seq_segments(&c, w.seq);
        find_block(&c, &w, item, &k, &segment);
        merge_segments(&k, &c, item, seq_segments(&c, w.seq));
    }
}
