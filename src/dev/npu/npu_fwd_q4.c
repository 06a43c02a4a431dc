/* Products of rows with 4-bit weights: on the array, or on the host in the same arithmetic. */
#include "dev/npu/npu_fwd_q4.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "dev/npu/npu_pack.h"

enum { MAX_ROWS = 72, SUM_FLOATS = 2 << 20, HOST_GRAIN = OB_NPU_TILE_N, VERIFY_FIRST = 32, VERIFY_EACH = 1024 };

struct ob_product_weight {
    ob_product_weight *next;
    ob_type type;
    int64_t k, n, n_mats;
    size_t mat_bytes;  /* whole pages */
    ob_npu_bo *bo;     /* NULL: no device */
    uint8_t *tiles;    /* [n_mats][mat_bytes]: the CPU's view */
    bool *packed;      /* [n_mats] of experts */
    const uint8_t *data; /* experts, borrowed; NULL: written by weight_write */
    const void *source;  /* where it was packed from, by which it is found again; never read. NULL: experts come and go */
};

/* One row of a job, and one matrix. */
typedef struct row { const ob_product *job; int64_t r; float *sums; } row;

struct ob_npu_fwd_q4 {
    ob_npu_fwd_q4_options opt;
    ob_dev_products products;
    ob_npu_gemv *gemv;
    ob_product_weight *weights;
    float *sums;           /* of a batch */
    size_t sums_cap, sums_used;
    uint16_t *x;           /* of a row computed on the host; [x_len] */
    int64_t x_len, max_k, max_n;
    row rows[MAX_ROWS];
    ob_npu_mv mv[MAX_ROWS];
    int n_rows;
    ob_npu_fwd_q4_stats stats;
};

/* ---- weights ---------------------------------------------------------------------------------- */

static size_t mat_bytes(const ob_weight *desc) { return ob_align_up(ob_npu_q4_bytes(desc->ne[0], desc->ne[1]), OB_NPU_PAGE); }
static int64_t count_mats(const ob_weight *desc) { return desc->use == OB_USE_EXPERTS ? desc->ne[2] : 1; }
static bool can_pack(const ob_weight *desc)
{
    return ob_npu_packed_bytes(desc) && !desc->hadamard && !desc->act4 && desc->ne[0] % OB_NPU_Q4_GROUP == 0;
}

static uint64_t weight_bytes(void *self, const ob_weight *desc)
{
    (void)self;
    return can_pack(desc) ? (uint64_t)mat_bytes(desc) * (uint64_t)count_mats(desc) : 0;
}

static void weight_free(void *self, ob_product_weight *w)
{
    ob_npu_fwd_q4 *f = self;
    if (!w) return;
    ob_product_weight **p = &f->weights;
    while (*p && *p != w) p = &(*p)->next;
    if (*p) {
        *p = w->next;
        f->stats.weight_bytes -= w->mat_bytes * (size_t)w->n_mats;
        f->stats.n_weights--;
    }
    if (w->bo) ob_npu_bo_free(w->bo);
    else ob_free(w->tiles);
    ob_free(w->packed);
    ob_free(w);
}

static ob_status pack(ob_product_weight *w, int64_t mat, const void *data, ob_err *err)
{
    OB_TRY(ob_npu_pack_q4g32(w->type, data, w->k, w->n, w->tiles + (size_t)mat * w->mat_bytes, err));
    if (w->bo) ob_npu_bo_flush(w->bo, (size_t)mat * w->mat_bytes, w->mat_bytes);
    w->packed[mat] = true;
    return OB_OK;
}

/* Room where the NPU reads it; OB_E_NO_MEMORY leaves the weight to whoever asked. */
static ob_status make_room(ob_npu_fwd_q4 *f, ob_product_weight *w, ob_err *err)
{
    const uint64_t n = (uint64_t)w->mat_bytes * (uint64_t)w->n_mats;
    if (f->opt.ram_bytes && f->stats.weight_bytes + n > f->opt.ram_bytes / 2)
        return ob_err_set(err, OB_E_NO_MEMORY, "half of the machine's memory is full of 4-bit weights");
    w->packed = ob_calloc((size_t)w->n_mats, sizeof *w->packed);
    if (!w->packed) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a weight");
    if (f->opt.dev) {
        OB_TRY(ob_npu_bo_new(f->opt.dev, OB_NPU_BO_SHARE, (size_t)n, &w->bo, err));
        w->tiles = w->bo->host;
    } else {
        w->tiles = ob_aligned_alloc(OB_NPU_LINE, (size_t)n);
    }
    return w->tiles ? OB_OK : ob_err_set(err, OB_E_NO_MEMORY, "no memory for a weight");
}

static ob_status weight_new(void *self, const ob_weight *desc, ob_product_weight **out, bool *keeps_data, ob_err *err)
{
    ob_npu_fwd_q4 *f = self;
    ob_err why;
    *out = NULL;
    *keeps_data = false;
    if (!can_pack(desc)) return OB_OK;
    ob_product_weight *w = ob_calloc(1, sizeof *w);
    if (!w) return ob_err_set(err, OB_E_NO_MEMORY, "%s: no memory", desc->name);
    *w = (ob_product_weight){.type = desc->type, .k = desc->ne[0], .n = desc->ne[1], .n_mats = count_mats(desc), .mat_bytes = mat_bytes(desc)};
    ob_status s = make_room(f, w, &why);
    if (s == OB_E_NO_MEMORY) {
        weight_free(f, w);
        if (!f->stats.n_declined++) ob_log_info("npu: %s; the rest of the weights stays with the CPU", why.text);
        return OB_OK;
    }
    if (s != OB_OK && err) *err = why;
    if (s == OB_OK && desc->use != OB_USE_EXPERTS) s = pack(w, 0, desc->data, err);
    if (s != OB_OK) {
        weight_free(f, w);
        return s;
    }
    if (desc->use == OB_USE_EXPERTS && desc->data) { /* an expert is packed when it is first used */
        w->data = desc->data;
        *keeps_data = true;
    }
    w->source = desc->data;
    w->next = f->weights;
    f->weights = w;
    f->stats.weight_bytes += w->mat_bytes * (size_t)w->n_mats;
    f->stats.n_weights++;
    f->max_k = OB_MAX(f->max_k, w->k);
    f->max_n = OB_MAX(f->max_n, w->n);
    *out = w;
    return OB_OK;
}

static ob_status weight_write(void *self, ob_product_weight *w, int64_t expert, const void *data, ob_err *err)
{
    (void)self;
    return pack(w, expert, data, err);
}

/* The tiles of a matrix, packed first where this is the first use. */
static const uint8_t *tiles_of(ob_product_weight *w, int64_t mat)
{
    if (!w->packed[mat] && w->data) {
        const size_t n = ob_type_row_bytes(w->type, w->k) * (size_t)w->n;
        (void)!pack(w, mat, w->data + (size_t)mat * n, NULL); /* can_pack has seen that it can */
    }
    return w->tiles + (size_t)mat * w->mat_bytes;
}

bool ob_npu_fwd_q4_find(ob_npu_fwd_q4 *f, const ob_weight *d, int64_t mat, const ob_npu_bo **bo, uint64_t *off)
{
    for (ob_product_weight *w = f->weights; w; w = w->next)
        if (w->bo && w->source && w->source == d->data && w->type == d->type && w->k == d->ne[0] && w->n == d->ne[1] && mat < w->n_mats) {
            (void)tiles_of(w, mat);
            *bo = w->bo;
            *off = (uint64_t)mat * w->mat_bytes;
            return true;
        }
    return false;
}

/* ---- on the host ------------------------------------------------------------------------------ */

typedef struct host_job { const ob_npu_fwd_q4 *f; const uint8_t *tiles; int64_t k, n; float *y; } host_job;

static void host_range(void *arg, int64_t i0, int64_t i1)
{
    const host_job *j = arg;
    ob_npu_mv_ref(j->f->x, j->k, j->tiles, i0, i1, j->y + i0);
}

static const float *row_of(const ob_product *j, int64_t r) { return j->x + (j->rows ? j->rows[r] : r) * j->ldx; }

static void host_row(ob_npu_fwd_q4 *f, const row *w, const ob_parallel *par)
{
    ob_product_weight *pw = (ob_product_weight *)w->job->w;
    host_job j = {f, tiles_of(pw, w->job->mat), pw->k, pw->n, w->sums};
    ob_npu_bf16_pack(f->x, row_of(w->job, w->r), pw->k);
    par->run(par, pw->n, HOST_GRAIN, host_range, &j);
    f->stats.n_on_host++;
}

/* ---- checks ----------------------------------------------------------------------------------- */

/* A block of 32 outputs of some rows, or all of all. */
static bool verify(ob_npu_fwd_q4 *f)
{
    for (int i = 0; i < f->n_rows; i++) {
        const row *w = &f->rows[i];
        ob_product_weight *pw = (ob_product_weight *)w->job->w;
        const uint64_t count = f->stats.n_products + (uint64_t)i;
        if (f->opt.verify == OB_VERIFY_OFF) return true;
        if (f->opt.verify == OB_VERIFY_SOME && count >= VERIFY_FIRST && count % VERIFY_EACH) continue;
        const int64_t n_blocks = ob_div_up(pw->n, OB_NPU_Q4_TILE_N), first = (int64_t)(count % (uint64_t)n_blocks);
        ob_npu_bf16_pack(f->x, row_of(w->job, w->r), pw->k);
        f->stats.n_verified++;
        for (int64_t b = f->opt.verify == OB_VERIFY_ALL ? 0 : first; b < (f->opt.verify == OB_VERIFY_ALL ? n_blocks : first + 1); b++) {
            float y[OB_NPU_Q4_TILE_N];
            const int64_t j0 = b * OB_NPU_Q4_TILE_N, j1 = OB_MIN(j0 + OB_NPU_Q4_TILE_N, pw->n);
            ob_npu_mv_ref(f->x, pw->k, tiles_of(pw, w->job->mat), j0, j1, y);
            if (memcmp(y, w->sums + j0, (size_t)(j1 - j0) * sizeof *y) != 0) return false;
        }
    }
    return true;
}

static void give_up(ob_npu_fwd_q4 *f, const char *why)
{
    f->stats.failed = true;
    snprintf(f->stats.reason, sizeof f->stats.reason, "%.190s", why);
    ob_log_warn("npu: %s; products are computed on the CPU from now on", f->stats.reason);
}

/* ---- products --------------------------------------------------------------------------------- */

static void finish_row(const row *w)
{
    const ob_product *j = w->job;
    const int64_t n = j->w->n;
    float *y = j->y + w->r * j->ldy;
    const float *res = j->res ? j->res + w->r * j->ldres : NULL;
    for (int64_t i = 0; i < n; i++) {
        const float v = (w->sums[i] + (j->bias ? j->bias[i] : 0)) * j->scale;
        y[i] = res ? res[i] + v : v;
    }
}

static void flush(ob_npu_fwd_q4 *f, const ob_parallel *par)
{
    ob_err err;
    if (!f->n_rows) return;
    if (f->gemv && !f->stats.failed) {
        for (int i = 0; i < f->n_rows; i++) {
            const row *w = &f->rows[i];
            ob_product_weight *pw = (ob_product_weight *)w->job->w;
            (void)tiles_of(pw, w->job->mat);
            f->mv[i] = (ob_npu_mv){.x = row_of(w->job, w->r), .k = (int32_t)pw->k, .n = (int32_t)pw->n, .w = pw->bo,
                                   .w_off = (uint64_t)w->job->mat * pw->mat_bytes, .y = w->sums};
        }
        if (ob_npu_gemv_run(f->gemv, f->mv, f->n_rows, &err) != OB_OK) give_up(f, err.text);
        else if (!verify(f)) give_up(f, "a product of the device is not what the CPU computes");
    }
    for (int i = 0; i < f->n_rows; i++) {
        if (!f->gemv || f->stats.failed) host_row(f, &f->rows[i], par);
        finish_row(&f->rows[i]);
    }
    f->stats.n_products += (uint64_t)f->n_rows;
    f->n_rows = 0;
    f->sums_used = 0;
}

static void mul(void *self, const ob_product *jobs, int32_t n_jobs, const ob_parallel *par)
{
    ob_npu_fwd_q4 *f = self;
    for (int32_t i = 0; i < n_jobs; i++)
        for (int64_t r = 0; r < jobs[i].n_rows; r++) {
            const size_t n = (size_t)jobs[i].w->n;
            if (f->n_rows == MAX_ROWS || f->sums_used + n > f->sums_cap) flush(f, par);
            f->rows[f->n_rows++] = (row){&jobs[i], r, f->sums + f->sums_used};
            f->sums_used += n;
        }
    flush(f, par);
}

/* ---- life ------------------------------------------------------------------------------------- */

ob_status ob_npu_fwd_q4_new(const ob_npu_fwd_q4_options *opt, ob_npu_fwd_q4 **out, ob_err *err)
{
    ob_status s = OB_OK;
    *out = NULL;
    ob_npu_fwd_q4 *f = ob_calloc(1, sizeof *f);
    if (!f) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the NPU's products");
    f->opt = *opt;
    f->products = (ob_dev_products){.self = f, .weight_new = weight_new, .weight_free = weight_free, .weight_write = weight_write,
                                    .weight_bytes = weight_bytes, .mul = mul};
    if (opt->dev) OB_GOTO(ob_npu_gemv_new(opt->dev, &f->gemv, err));
    *out = f;
out:
    if (s != OB_OK) ob_npu_fwd_q4_free(f);
    return s;
}

void ob_npu_fwd_q4_free(ob_npu_fwd_q4 *f)
{
    if (!f) return;
    ob_npu_gemv_free(f->gemv);
    ob_free(f->sums);
    ob_free(f->x);
    ob_free(f);
}

const ob_dev_products *ob_npu_fwd_q4_products(const ob_npu_fwd_q4 *f) { return &f->products; }

ob_status ob_npu_fwd_q4_prepare(ob_npu_fwd_q4 *f, ob_err *err)
{
    const size_t sums = OB_MAX((size_t)SUM_FLOATS, (size_t)f->max_n);
    const int64_t x = ob_npu_q4_pad_k(f->max_k);
    if (sums > f->sums_cap) {
        ob_free(f->sums);
        f->sums = ob_malloc(sums * sizeof *f->sums);
        f->sums_cap = f->sums ? sums : 0;
    }
    if (x > f->x_len) {
        ob_free(f->x);
        f->x = ob_malloc((size_t)x * sizeof *f->x);
        f->x_len = f->x ? x : 0;
    }
    if (!f->sums || f->x_len < x) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the NPU's products");
    for (const ob_product_weight *w = f->gemv ? f->weights : NULL; w; w = w->next)
        OB_TRY(ob_npu_gemv_prepare(f->gemv, w->k, w->n, err));
    return OB_OK;
}

void ob_npu_fwd_q4_get_stats(const ob_npu_fwd_q4 *f, ob_npu_fwd_q4_stats *out)
{
    *out = f->stats;
    if (f->gemv) out->n_chains = ob_npu_gemv_stats_get(f->gemv).n_chains;
}
