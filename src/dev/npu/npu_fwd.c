/* Products of a model on the array, or on the host in the same arithmetic.
 *
 *   jobs -> [quantise rows] -> parts: up to 512 rows x some blocks of 1024 outputs of one matrix
 *   parts are gathered in a batch until a buffer is full: activations, sums, or staged weights
 *   batch n+1 is staged by the other threads while the device runs batch n; then n's sums become f32
 *
 * A batch is one call of ob_npu_gemm_run, so what needs no step of the host in between is one chain of commands.
 */
#include "dev/npu/npu_fwd.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "base/threads.h"
#include "dev/npu/npu_int8.h"
#include "quant/hadamard.h"

enum {
    STAGE_BYTES = 64 << 20,
    SUM_COLS = 16384,            /* outputs whose sums of 512 rows fit a batch */
    SUMS_LEN = OB_NPU_MAX_M * SUM_COLS,
    MAX_PARTS = 256,
    ACT_BYTES = 8 << 20,         /* of a batch at least */
    COPY_GRAIN = 1 << 20,
    VERIFY_FIRST = 32, VERIFY_EACH = 1024,
};

struct ob_product_weight {
    ob_npu_packed *packed;
    int64_t k, n;
    bool rotated;  /* activations go through the Hadamard transform */
    ob_npu_bo *bo; /* pinned; NULL: staged */
};

/* Quantised rows of a job. */
typedef struct act {
    const float *x;
    const int32_t *rows;
    int64_t ldx, n_rows, k;
    bool rotated;
    int8_t *codes; /* [n_rows][k_pad] */
    float *scales; /* [n_rows] */
} act;

typedef struct part {
    const ob_product *job;
    int64_t row0, n0, cols;
    act a;
    const int8_t *tiles;  /* of its first output */
    const float *w_scales;
    int32_t *sums;        /* [a.n_rows][cols] */
    size_t stage_off;     /* in the batch's staging buffer */
    bool host;            /* the device cannot take it */
} part;

typedef struct batch {
    part parts[MAX_PARTS];
    ob_npu_mm mm[MAX_PARTS];
    int n, n_mm;
    int8_t *acts;
    size_t act_used, act_cap;
    int32_t *sums;
    size_t sums_used;
    ob_npu_bo *stage; /* NULL: none */
    size_t stage_used, stage_cap;
    float *scales;    /* [SCALES] of rows */
    size_t scales_used;
    ob_status status; /* of the run */
    ob_err err;
} batch;
enum { MAX_SCALES = MAX_PARTS * OB_NPU_MAX_M };

/* Packing while a model is loaded, on threads of our own: the device's belong to its steps. */
typedef struct packers {
    ob_parallel base; /* first */
    ob_pool *pool;    /* NULL: not started, or no more */
    void (*fn)(void *arg, int64_t i0, int64_t i1);
    void *arg;
    int64_t n, grain;
} packers;

struct ob_npu_fwd {
    ob_npu_fwd_options opt;
    ob_dev_products products;
    ob_npu_pack *pack;
    batch *b[2];
    int64_t max_k;
    uint64_t weight_bytes;
    uint64_t pin_budget;
    packers packers;
    int32_t *check; /* [512][128] sums of a strip */
    ob_npu_fwd_stats stats;
};

/* ---- on the host ------------------------------------------------------------------------------- */

/* Products of 64 codes summed in f32 are whole numbers below 2^24, so nothing is rounded; then they join the int32 sums. */
typedef float v8 __attribute__((vector_size(32)));
enum { TK = OB_NPU_TILE_K, TN = OB_NPU_TILE_N, HALF = TN / 2 / 8 /* vectors of half a tile's outputs */ };
_Static_assert(TK * 127 * 127 < 1 << 24, "sums of a tile are exact in f32");

static inline __attribute__((always_inline)) void strip_mul(const int8_t *a, int64_t n_rows, int64_t k_pad, const int8_t *strip,
                                                            int32_t *sums, int64_t lds)
{
    enum { M = OB_NPU_MICRO };
    _Alignas(32) float w[TK][TN];
    for (int64_t r = 0; r < n_rows; r++) memset(sums + r * lds, 0, TN * sizeof *sums);
    for (int64_t k0 = 0; k0 < k_pad; k0 += TK, strip += OB_NPU_B_TILE_BYTES) {
        for (int k = 0; k < TK; k++)
            for (int j = 0; j < TN; j += M)
                for (int i = 0; i < M; i++) w[k][j + i] = strip[((k / M) * (TN / M) + j / M) * M * M + k % M * M + i];
        for (int64_t r = 0; r < n_rows; r++)
            for (int half = 0; half < 2; half++) {
                v8 acc[HALF] = {{0}};
                for (int k = 0; k < TK; k++) {
                    const v8 *at = (const v8 *)(const void *)(w[k] + half * TN / 2);
                    const float x = a[r * k_pad + k0 + k];
                    for (int i = 0; i < HALF; i++) acc[i] += x * at[i];
                }
                int32_t *s = sums + r * lds + half * TN / 2;
                for (int i = 0; i < TN / 2; i++) s[i] += (int32_t)acc[i / 8][i % 8];
            }
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void strip_mul_avx2(const int8_t *a, int64_t n_rows, int64_t k_pad, const int8_t *strip,
                                                           int32_t *sums, int64_t lds)
{
    strip_mul(a, n_rows, k_pad, strip, sums, lds);
}
#endif

void ob_npu_strip_mul(const int8_t *a, int64_t n_rows, int64_t k_pad, const int8_t *strip, int32_t *sums, int64_t lds)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        strip_mul_avx2(a, n_rows, k_pad, strip, sums, lds);
        return;
    }
#endif
    strip_mul(a, n_rows, k_pad, strip, sums, lds);
}

typedef struct strips {
    const part *p;
    int64_t k_pad;
} strips;

/* The last strip of a part may reach past its outputs: their columns are padding in the sums, too (cols is padded). */
static void host_strips(void *arg, int64_t s0, int64_t s1)
{
    const strips *j = arg;
    for (int64_t s = s0; s < s1; s++)
        ob_npu_strip_mul(j->p->a.codes, j->p->a.n_rows, j->k_pad, j->p->tiles + s * j->k_pad * OB_NPU_TILE_N,
                         j->p->sums + s * OB_NPU_TILE_N, j->p->cols);
}

static void host_part(ob_npu_fwd *f, part *p, const ob_parallel *par)
{
    strips j = {.p = p, .k_pad = ob_npu_pad_k(p->a.k)};
    const int64_t n = OB_MIN(p->cols, p->job->w->n - p->n0);
    par->run(par, ob_div_up(n, OB_NPU_TILE_N), 1, host_strips, &j);
    f->stats.n_on_host++;
}

/* ---- checks ------------------------------------------------------------------------------------ */

static bool strip_agrees(const ob_npu_fwd *f, const part *p, int64_t s)
{
    const int64_t k_pad = ob_npu_pad_k(p->a.k), j0 = s * OB_NPU_TILE_N;
    const int64_t n = OB_MIN(OB_NPU_TILE_N, p->job->w->n - p->n0 - j0);
    ob_npu_strip_mul(p->a.codes, p->a.n_rows, k_pad, p->tiles + s * k_pad * OB_NPU_TILE_N, f->check, OB_NPU_TILE_N);
    for (int64_t r = 0; r < p->a.n_rows; r++)
        if (memcmp(f->check + r * OB_NPU_TILE_N, p->sums + r * p->cols + j0, (size_t)n * sizeof *f->check) != 0) return false;
    return true;
}

/* A block of outputs of some products, or all of all. */
static bool verify(ob_npu_fwd *f, const batch *b)
{
    for (int i = 0; i < b->n; i++) {
        const part *p = &b->parts[i];
        const uint64_t count = f->stats.n_products + (uint64_t)i;
        const int64_t n_strips = ob_div_up(OB_MIN(p->cols, p->job->w->n - p->n0), OB_NPU_TILE_N);
        if (p->host || f->opt.verify == OB_VERIFY_OFF) continue;
        if (f->opt.verify == OB_VERIFY_SOME && count >= VERIFY_FIRST && count % VERIFY_EACH) continue;
        int64_t s0 = (int64_t)(count % (uint64_t)n_strips), s1 = s0 + 1;
        if (f->opt.verify == OB_VERIFY_ALL) {
            s0 = 0;
            s1 = n_strips;
        }
        f->stats.n_verified++;
        for (int64_t s = s0; s < s1; s++)
            if (!strip_agrees(f, p, s)) return false;
    }
    return true;
}

/* The device failed for good: from now on the host computes, which gives the same numbers. */
static void give_up(ob_npu_fwd *f, const char *why)
{
    f->stats.failed = true;
    snprintf(f->stats.reason, sizeof f->stats.reason, "%.190s", why);
    ob_log_warn("npu: %s; products are computed on the CPU from now on", f->stats.reason);
}

/* ---- activations ------------------------------------------------------------------------------- */

static void quantise_rows(void *arg, int64_t r0, int64_t r1)
{
    enum { PIECE = 1024 };
    const act *a = arg;
    const int64_t k_pad = ob_npu_pad_k(a->k);
    float buf[PIECE];
    for (int64_t r = r0; r < r1; r++) {
        const float *x = a->x + (a->rows ? a->rows[r] : r) * a->ldx;
        int8_t *q = a->codes + r * k_pad;
        float amax = 0;
        memset(q + a->k, 0, (size_t)(k_pad - a->k));
        if (!a->rotated) {
            amax = ob_npu_amax(x, a->k, 0);
            ob_npu_codes(x, a->k, ob_npu_inverse(amax), q);
        }
        for (int pass = 0; pass < 2 && a->rotated; pass++)
            for (int64_t k = 0; k < a->k; k += PIECE) {
                const int64_t n = OB_MIN(PIECE, a->k - k);
                memcpy(buf, x + k, (size_t)n * sizeof *buf);
                ob_hadamard_row(buf, n);
                if (!pass) amax = ob_npu_amax(buf, n, amax);
                else ob_npu_codes(buf, n, ob_npu_inverse(amax), q + k);
            }
        a->scales[r] = ob_npu_scale(amax);
    }
}

/* Rows [row0, +n) of a job in the batch: those of the part before it when they are the same. False: no room. */
static bool take_act(batch *b, const ob_product *job, int64_t row0, int64_t n, const ob_parallel *par, act *out)
{
    act a = {.x = job->rows ? job->x : job->x + row0 * job->ldx, .rows = job->rows ? job->rows + row0 : NULL, .ldx = job->ldx,
             .n_rows = n, .k = job->w->k, .rotated = job->w->rotated};
    const act *last = b->n ? &b->parts[b->n - 1].a : NULL;
    if (last && last->x == a.x && last->rows == a.rows && last->ldx == a.ldx && last->n_rows == n && last->k == a.k &&
        last->rotated == a.rotated) {
        *out = *last;
        return true;
    }
    const size_t bytes = (size_t)n * (size_t)ob_npu_pad_k(a.k);
    if (bytes > b->act_cap - b->act_used || (size_t)n > MAX_SCALES - b->scales_used) return false;
    a.codes = b->acts + b->act_used;
    a.scales = b->scales + b->scales_used;
    b->act_used += bytes;
    b->scales_used += (size_t)n;
    par->run(par, n, OB_MAX(1, 16384 / a.k), quantise_rows, &a);
    *out = a;
    return true;
}

/* ---- results ----------------------------------------------------------------------------------- */

static void finish_rows(void *arg, int64_t r0, int64_t r1)
{
    const part *p = arg;
    const ob_product *j = p->job;
    const int64_t n = OB_MIN(p->cols, j->w->n - p->n0);
    for (int64_t r = r0; r < r1; r++) {
        const int32_t *s = p->sums + r * p->cols;
        const float sa = p->a.scales[r], *sw = p->w_scales + p->n0, *bias = j->bias ? j->bias + p->n0 : NULL;
        float *y = j->y + (p->row0 + r) * j->ldy + p->n0;
        const float *res = j->res ? j->res + (p->row0 + r) * j->ldres + p->n0 : NULL;
        for (int64_t i = 0; i < n; i++) {
            float v = (float)s[i] * (sa * sw[i]);
            if (bias) v += bias[i];
            v *= j->scale;
            y[i] = res ? res[i] + v : v;
        }
    }
}

/* ---- batches ----------------------------------------------------------------------------------- */

/* What the threads do at once: item 0 runs a batch, the others copy weights for the next one. */
typedef struct both {
    ob_npu_fwd *f;
    batch *run, *stage;
} both;

static void run_batch(ob_npu_fwd *f, batch *b)
{
    b->status = ob_npu_gemm_run(f->opt.gemm, b->mm, b->n_mm, &b->err);
}

/* Bytes [c0, c1) of all that a batch stages, in pieces of COPY_GRAIN. */
static void stage_bytes(batch *b, size_t c0, size_t c1)
{
    for (int i = 0; i < b->n; i++) {
        const part *p = &b->parts[i];
        const size_t n = (size_t)(ob_npu_pad_k(p->a.k) * p->cols), at = p->stage_off;
        if (p->host || p->job->w->bo || at >= c1 || at + n <= c0) continue;
        const size_t from = OB_MAX(at, c0), to = OB_MIN(at + n, c1);
        ob_npu_bo_write(b->stage, from, p->tiles + (from - at), to - from);
    }
}

static void do_both(void *arg, int64_t i0, int64_t i1)
{
    const both *j = arg;
    for (int64_t i = i0; i < i1; i++) {
        if (i == 0 && j->run) run_batch(j->f, j->run);
        if (i > 0) stage_bytes(j->stage, (size_t)(i - 1) * COPY_GRAIN, (size_t)i * COPY_GRAIN);
    }
}

/* Runs `run` and stages `stage` (either may be NULL). */
static void turn(ob_npu_fwd *f, batch *run, batch *stage, const ob_parallel *par)
{
    both j = {f, run && run->n_mm ? run : NULL, stage};
    const size_t n = stage ? stage->stage_used : 0;
    f->stats.staged_bytes += n;
    par->run(par, 1 + (int64_t)ob_div_up((int64_t)n, COPY_GRAIN), 1, do_both, &j);
}

/* The batch has run, or must be computed here. */
static void finish_batch(ob_npu_fwd *f, batch *b, const ob_parallel *par)
{
    bool host = !f->opt.gemm || f->stats.failed;
    if (!host && b->status != OB_OK) {
        give_up(f, b->err.text);
        host = true;
    }
    if (!host && !verify(f, b)) {
        give_up(f, "a product of the device is not what the CPU computes");
        host = true;
    }
    for (int i = 0; i < b->n; i++) {
        part *p = &b->parts[i];
        if (host || p->host) host_part(f, p, par);
        par->run(par, p->a.n_rows, OB_MAX(1, 16384 / p->cols), finish_rows, p);
    }
    f->stats.n_products += (uint64_t)b->n;
    b->n = b->n_mm = 0;
    b->act_used = b->sums_used = b->stage_used = b->scales_used = 0;
    b->status = OB_OK;
}

/* Rounds of gathering: b[now] is filled, the other one is staged and waits for its run. */
typedef struct gather {
    ob_npu_fwd *f;
    const ob_parallel *par;
    int now;
    bool waiting; /* b[!now] is staged */
} gather;

static void flush(gather *g)
{
    ob_npu_fwd *f = g->f;
    batch *full = f->b[g->now], *before = f->b[!g->now];
    const bool device = f->opt.gemm && !f->stats.failed;
    if (device && full->n) turn(f, g->waiting ? before : NULL, full, g->par);
    else if (device && g->waiting) turn(f, before, NULL, g->par);
    if (g->waiting) finish_batch(f, before, g->par);
    g->waiting = false;
    if (!full->n) return;
    if (!device) {
        finish_batch(f, full, g->par);
        return;
    }
    g->waiting = true;
    g->now = !g->now;
}

/* Outputs [n0, ..) of a job's rows: as many blocks as there is room for; returns how many outputs, 0: none fits. */
static int64_t add_part(batch *b, const ob_npu_fwd *f, const ob_product *job, const act *a, int64_t row0, int64_t n0,
                        const int8_t *tiles, const float *scales)
{
    const int64_t k_pad = ob_npu_pad_k(a->k), block = k_pad * OB_NPU_BLOCK_N;
    int64_t blocks = ob_div_up(job->w->n - n0, OB_NPU_BLOCK_N);
    const bool device = f->opt.gemm && !f->stats.failed, fits = job->w->bo || (size_t)block <= b->stage_cap;
    if (b->n == MAX_PARTS) return 0;
    blocks = OB_MIN(blocks, (int64_t)((SUMS_LEN - b->sums_used) / (size_t)(a->n_rows * OB_NPU_BLOCK_N)));
    if (device && fits && !job->w->bo) blocks = OB_MIN(blocks, (int64_t)((b->stage_cap - b->stage_used) / (size_t)block));
    if (blocks < 1) return 0;
    part *p = &b->parts[b->n++];
    *p = (part){.job = job, .row0 = row0, .n0 = n0, .cols = blocks * OB_NPU_BLOCK_N, .a = *a, .tiles = tiles + n0 * k_pad,
                .w_scales = scales, .sums = b->sums + b->sums_used, .stage_off = b->stage_used, .host = !fits};
    b->sums_used += (size_t)(a->n_rows * p->cols);
    if (!device || !fits) return p->cols;
    const ob_npu_mm mm = {.a = a->codes, .lda = k_pad, .n_rows = (int32_t)a->n_rows, .k = (int32_t)a->k,
                          .n = (int32_t)OB_MIN(p->cols, job->w->n - n0), .w = job->w->bo ? job->w->bo : b->stage,
                          .w_off = job->w->bo ? (uint64_t)(n0 * k_pad) : p->stage_off, .c = p->sums, .ldc = p->cols};
    b->mm[b->n_mm++] = mm;
    if (!job->w->bo) b->stage_used += (size_t)(blocks * block);
    return p->cols;
}

static void add_rows(gather *g, const ob_product *job, int64_t row0, int64_t n)
{
    const float *scales;
    act a;
    const int8_t *tiles = ob_npu_packed_get(g->f->pack, job->w->packed, job->mat, g->par, &scales);
    for (int64_t n0 = 0; n0 < job->w->n;) {
        /* A batch that was given up for want of room is empty afterwards; then everything fits. */
        int64_t took = 0;
        if (take_act(g->f->b[g->now], job, row0, n, g->par, &a))
            took = add_part(g->f->b[g->now], g->f, job, &a, row0, n0, tiles, scales);
        if (!took) flush(g);
        n0 += took;
    }
}

static void mul(void *self, const ob_product *jobs, int32_t n_jobs, const ob_parallel *par)
{
    gather g = {.f = self, .par = par};
    for (int32_t i = 0; i < n_jobs; i++)
        for (int64_t r = 0; r < jobs[i].n_rows; r += OB_NPU_MAX_M)
            add_rows(&g, &jobs[i], r, OB_MIN(OB_NPU_MAX_M, jobs[i].n_rows - r));
    flush(&g);
    if (g.waiting) flush(&g);
}

/* ---- weights ----------------------------------------------------------------------------------- */

static uint64_t weight_bytes(void *self, const ob_weight *desc)
{
    (void)self;
    return ob_npu_packed_bytes(desc) * (uint64_t)(desc->use == OB_USE_EXPERTS ? desc->ne[2] : 1);
}

/* Memory that the device reads without a copy, while the budget lasts. */
static void pin(ob_npu_fwd *f, ob_product_weight *w)
{
    const float *scales;
    ob_err err;
    const size_t n = ob_npu_i8c_bytes(w->k, w->n);
    const int8_t *tiles = ob_npu_packed_get(f->pack, w->packed, 0, NULL, &scales);
    if (n > f->pin_budget - f->stats.pinned_bytes) {
        f->pin_budget = 0;
    } else if (ob_npu_bo_wrap(f->opt.dev, tiles, n, &w->bo, &err) == OB_OK) {
        ob_npu_bo_flush(w->bo, 0, n);
    } else if (ob_npu_bo_new(f->opt.dev, OB_NPU_BO_SHARE, n, &w->bo, &err) == OB_OK) {
        ob_npu_bo_write(w->bo, 0, tiles, n);
    }
    if (w->bo) {
        f->stats.pinned_bytes += n;
        return;
    }
    f->opt.pin = false;
    ob_log_info("npu: %llu MiB of weights are pinned, no more fit; the others are staged",
                (unsigned long long)(f->stats.pinned_bytes >> 20));
}

static void packer_main(void *arg, int ith, int n_threads)
{
    packers *p = arg;
    (void)ith;
    (void)n_threads;
    for (int64_t i0, i1; ob_pool_take(p->pool, p->n, p->grain, &i0, &i1);) p->fn(p->arg, i0, i1);
}

static void packers_run(const ob_parallel *par, int64_t n, int64_t grain, void (*fn)(void *arg, int64_t i0, int64_t i1), void *arg)
{
    packers *p = (packers *)(uintptr_t)par; /* our own, and not const */
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    p->grain = grain;
    ob_pool_run(p->pool, packer_main, p);
}

static ob_status weight_new(void *self, const ob_weight *desc, ob_product_weight **out, bool *keeps_data, ob_err *err)
{
    ob_npu_fwd *f = self;
    *out = NULL;
    if (!ob_npu_packed_bytes(desc)) return OB_OK;
    ob_product_weight *w = ob_calloc(1, sizeof *w);
    if (!w) return ob_err_set(err, OB_E_NO_MEMORY, "%s: no memory", desc->name);
    *w = (ob_product_weight){.k = desc->ne[0], .n = desc->ne[1], .rotated = desc->hadamard};
    if (!f->packers.pool && ob_pool_new(f->opt.n_threads, &f->packers.pool, NULL) != OB_OK) f->packers.pool = NULL; /* then one thread */
    const ob_status s = ob_npu_packed_new(f->pack, desc, f->packers.pool ? &f->packers.base : NULL, &w->packed, keeps_data, err);
    if (s != OB_OK) {
        ob_free(w);
        return s;
    }
    f->max_k = OB_MAX(f->max_k, w->k);
    f->weight_bytes += weight_bytes(f, desc);
    if (f->opt.pin && f->opt.gemm && desc->use == OB_USE_LINEAR) pin(f, w);
    *out = w;
    return OB_OK;
}

static void weight_free(void *self, ob_product_weight *w)
{
    ob_npu_fwd *f = self;
    if (!w) return;
    if (w->bo) f->stats.pinned_bytes -= ob_npu_i8c_bytes(w->k, w->n);
    ob_npu_bo_free(w->bo);
    ob_npu_packed_free(f->pack, w->packed);
    ob_free(w);
}

static ob_status weight_write(void *self, ob_product_weight *w, int64_t expert, const void *data, ob_err *err)
{
    (void)self;
    return ob_npu_packed_write(w->packed, expert, data, err);
}

/* ---- life -------------------------------------------------------------------------------------- */

ob_status ob_npu_fwd_new(const ob_npu_fwd_options *opt, ob_npu_fwd **out, ob_err *err)
{
    ob_status s = OB_OK;
    *out = NULL;
    ob_npu_fwd *f = ob_calloc(1, sizeof *f);
    if (!f) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the NPU's products");
    f->opt = *opt;
    f->pin_budget = opt->ram_bytes / 2;
    f->packers.base.run = packers_run;
    if (opt->dev) f->pin_budget = OB_MIN(f->pin_budget, opt->dev->os->api->memlock(opt->dev->os));
    f->products = (ob_dev_products){.self = f, .weight_new = weight_new, .weight_free = weight_free, .weight_write = weight_write,
                                    .weight_bytes = weight_bytes, .mul = mul};
    OB_GOTO(ob_npu_pack_open(opt->source, &f->pack, err));
    f->opt.source = NULL; /* borrowed for the call */
    *out = f;
out:
    if (s != OB_OK) ob_npu_fwd_free(f);
    return s;
}

static void batch_free(batch *b)
{
    if (!b) return;
    ob_npu_bo_free(b->stage);
    ob_free(b->acts);
    ob_free(b->sums);
    ob_free(b->scales);
    ob_free(b);
}

void ob_npu_fwd_free(ob_npu_fwd *f)
{
    if (!f) return;
    batch_free(f->b[0]);
    batch_free(f->b[1]);
    ob_npu_pack_close(f->pack);
    ob_pool_free(f->packers.pool);
    ob_free(f->check);
    ob_free(f);
}

const ob_dev_products *ob_npu_fwd_products(const ob_npu_fwd *f) { return &f->products; }

static ob_status no_memory(ob_err *err) { return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the NPU's products"); }

/* Room for the activations of the longest rows, and for staging: all weights, where they are few. */
static ob_status batch_grow(const ob_npu_fwd *f, batch **at, ob_err *err)
{
    batch *b = *at;
    if (!b) {
        b = *at = ob_calloc(1, sizeof *b);
        if (!b) return no_memory(err);
        b->sums = ob_malloc(SUMS_LEN * sizeof *b->sums); /* pages that are not touched cost nothing */
        b->scales = ob_malloc(MAX_SCALES * sizeof *b->scales);
        if (!b->sums || !b->scales) return no_memory(err);
    }
    const size_t acts = OB_MAX((size_t)ACT_BYTES, (size_t)OB_NPU_MAX_M * (size_t)ob_npu_pad_k(f->max_k));
    if (acts > b->act_cap) {
        ob_free(b->acts);
        b->acts = ob_aligned_alloc(64, acts);
        b->act_cap = b->acts ? acts : 0;
        if (!b->acts) return no_memory(err);
    }
    const size_t most = f->opt.stage_bytes ? f->opt.stage_bytes : STAGE_BYTES;
    const size_t stage = ob_align_up((size_t)OB_MIN((uint64_t)most, f->weight_bytes - f->stats.pinned_bytes), 4096);
    if (f->opt.gemm && !f->stats.failed && stage > b->stage_cap) {
        ob_npu_bo_free(b->stage);
        b->stage = NULL;
        b->stage_cap = 0;
        OB_TRY(ob_npu_bo_new(f->opt.dev, OB_NPU_BO_SHARE, stage, &b->stage, err));
        b->stage_cap = stage;
    }
    return OB_OK;
}

ob_status ob_npu_fwd_prepare(ob_npu_fwd *f, ob_err *err)
{
    ob_npu_pack_publish(f->pack);
    ob_pool_free(f->packers.pool);
    f->packers.pool = NULL;
    if (!f->check) f->check = ob_malloc(OB_NPU_MAX_M * OB_NPU_TILE_N * sizeof *f->check);
    if (!f->check) return no_memory(err);
    OB_TRY(batch_grow(f, &f->b[0], err));
    return batch_grow(f, &f->b[1], err);
}

void ob_npu_fwd_get_stats(const ob_npu_fwd *f, ob_npu_fwd_stats *out) { *out = f->stats; }
ob_npu_pack_stats ob_npu_fwd_pack_stats(const ob_npu_fwd *f) { return ob_npu_pack_stats_get(f->pack); }
const char *ob_npu_fwd_pack_path(const ob_npu_fwd *f) { return ob_npu_pack_path(f->pack); }
