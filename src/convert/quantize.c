/* The streaming conversion. A tensor is taken in pieces of a few MiB; the threads of the pool share the
 * rows of a piece, each with a row of floats of its own, and the piece is written before the next. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "base/threads.h"
#include "convert/convert_int.h"
#include "fmt/gguf_write.h"
#include "quant/hadamard.h"

enum { PIECE_BYTES = 16 << 20, GRAIN_ELEMS = 1 << 15, QUANT_VERSION = 2 };

typedef struct job {
    const ob_quantize_params *p;
    ob_pool *pool;
    const ob_file *src;
    conv_target *targets;  /* [n_tensors] */
    ob_tensor *dst;        /* [n_tensors]: as they will stand in the file */
    size_t n;
    float **rows;          /* [n_threads][2 max row]: a row, and what its rounding needs */
    float *importance;     /* [max row * matrices] of the tensor at hand, or NULL for none */
    bool have_importance;
    float *factors;        /* [matrices][k][block] of the tensor at hand: its rounding is compensated; NULL: it is not */
    int32_t *orders;       /* [matrices][k / 32] with them: in which order blocks go */
    int64_t block;         /* columns of a block of them; the last one may be shorter */
    uint8_t *piece;
    size_t piece_bytes;
    ob_outfile *out;
    size_t align;
    uint64_t done_bytes;
    ob_quantize_result res;
    /* the piece at hand */
    const ob_tensor *t;
    conv_target to;
    int64_t row0, n_rows;
    atomic_int failed;     /* the first failure's status; its text is in fail_err */
    ob_err fail_err;
} job;

/* Row of the target `row` in the source: the same, or, where a head's rotary pairs lie half a head apart, side by side
 * in the target (ob_tensor.rope_heads). */
static int64_t source_index(const ob_tensor *t, int64_t row)
{
    if (!t->rope_heads) return row;
    const int64_t n = t->ne[1] / t->rope_heads, in = row % n;
    return row - in + in / 2 + in % 2 * (n / 2);
}

static const uint8_t *source_row(const job *j, int64_t row)
{
    row = source_index(j->t, row);
    return (const uint8_t *)j->t->data + (size_t)row * ob_type_row_bytes((ob_type)j->t->type, j->t->ne[0]);
}

/* One row, block by block of the products of its inputs. */
static ob_status compensate_row(const job *j, int64_t mat, float *row, uint8_t *dst, ob_err *err)
{
    const int64_t k = j->t->ne[0];
    const size_t block_bytes = ob_type_row_bytes(j->to.type, 32);
    for (int64_t i = 0; i < k; i++)
        if (!isfinite(row[i])) return ob_err_set(err, OB_E_INVALID, "column %lld is not finite", (long long)i);
    for (int64_t c = 0; c < k; c += j->block)
        conv_gptq_row(j->to.type, row + c, j->factors + (mat * k + c) * j->block, j->orders + (mat * k + c) / 32,
                      OB_MIN(j->block, k - c), row + k, dst + (size_t)(c / 32) * block_bytes);
    return OB_OK;
}

static void fail(job *j, ob_status s, const char *what, int64_t at, const ob_err *e)
{
    int none = OB_OK;
    /* Only the first to fail writes the text; the end of the run orders it before the reader. */
    if (s != OB_OK && atomic_compare_exchange_strong(&j->failed, &none, (int)s))
        (void)ob_err_set(&j->fail_err, s, "tensor %s, %s %lld: %.300s", j->t->name, what, (long long)at, e->text);
}

static void quantize_rows(void *arg, int ith, int n_threads)
{
    job *j = arg;
    (void)n_threads;
    const int64_t k = j->t->ne[0], grain = OB_MAX(1, GRAIN_ELEMS / k);
    const size_t row_bytes = ob_type_row_bytes(j->to.type, k);
    float *row = j->rows[ith];
    for (int64_t r0, r1; ob_pool_take(j->pool, j->n_rows, grain, &r0, &r1);)
        for (int64_t r = r0; r < r1; r++) {
            const int64_t at = j->row0 + r;
            ob_err e;
            ob_type_get(j->t->type)->dequant(source_row(j, at), row, k);
            if (j->to.rotate) ob_hadamard_row(row, k);
            const float *imp = j->have_importance ? j->importance + at / j->t->ne[1] * k : NULL;
            uint8_t *dst = j->piece + (size_t)r * row_bytes;
            fail(j, j->factors ? compensate_row(j, at / j->t->ne[1], row, dst, &e)
                               : ob_quantize(j->to.type, row, dst, 1, k, imp, &e), "row", at, &e);
        }
}

/* A rotation spreads importance over its block. */
static void spread(float *imp, int64_t n)
{
    for (int64_t i = 0; i + OB_HADAMARD <= n; i += OB_HADAMARD) {
        double sum = 0;
        for (int d = 0; d < OB_HADAMARD; d++) sum += (double)imp[i + d];
        for (int d = 0; d < OB_HADAMARD; d++) imp[i + d] = (float)(sum / OB_HADAMARD);
    }
}

static void load_importance(job *j)
{
    const int64_t k = j->t->ne[0], n_mats = j->t->ne[2] * j->t->ne[3];
    j->have_importance = j->p->imatrix != NULL;
    for (int64_t i = 0; i < n_mats && j->have_importance; i++) {
        float *imp = j->importance + i * k;
        j->have_importance = ob_imatrix_get(j->p->imatrix, j->t->name, k, n_mats, i, imp);
        if (j->have_importance && j->to.rotate) spread(imp, k);
    }
    j->res.n_with_importance += j->have_importance;
}

static void prepare_factors(void *arg, int ith, int n_threads)
{
    job *j = arg;
    (void)ith, (void)n_threads;
    const int64_t k = j->t->ne[0], n_block = ob_div_up(k, j->block), n_mats = j->t->ne[2] * j->t->ne[3];
    for (int64_t i, end; ob_pool_take(j->pool, n_mats * n_block, 1, &i, &end);) {
        const int64_t mat = i / n_block, c = i % n_block * j->block;
        ob_err e;
        fail(j, conv_gptq_prepare(j->p->imatrix, j->t->name, mat, j->to.rotate, c, OB_MIN(j->block, k - c),
                                  j->factors + (mat * k + c) * j->block, j->orders + (mat * k + c) / 32, &e), "matrix", mat, &e);
    }
}

static ob_status failure(job *j, ob_err *err)
{
    if (err) *err = j->fail_err;
    return (ob_status)atomic_load(&j->failed);
}

/* What compensated rounding needs, where the importance file has it and the type is one it is made for. */
static ob_status load_factors(job *j, ob_err *err)
{
    size_t n;
    const int64_t k = j->t->ne[0], n_mats = j->t->ne[2] * j->t->ne[3];
    ob_free(j->factors);
    ob_free(j->orders);
    j->factors = NULL;
    j->orders = NULL;
    j->block = j->p->imatrix && conv_gptq_can(j->to.type) ? ob_imatrix_cov_block(j->p->imatrix, j->t->name, k, n_mats) : 0;
    if (!j->block) return OB_OK;
    if (ob_mul_size((size_t)(k * n_mats), (size_t)j->block, &n)) j->factors = ob_reallocarray(NULL, n, sizeof(float));
    j->orders = ob_reallocarray(NULL, (size_t)(k * n_mats / 32), sizeof *j->orders);
    if (!j->factors || !j->orders) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to compensate the rounding of %s", j->t->name);
    ob_pool_run(j->pool, prepare_factors, j);
    j->res.n_compensated++;
    return atomic_load(&j->failed) ? failure(j, err) : OB_OK;
}

/* Is tensor i more than copied? */
static bool changes(const job *j, size_t i)
{
    const ob_tensor *t = ob_file_tensor(j->src, i);
    return j->targets[i].type != (ob_type)t->type || j->targets[i].rotate || t->rope_heads;
}

static ob_status write_tensor(job *j, size_t i, ob_err *err)
{
    const ob_tensor *t = ob_file_tensor(j->src, i);
    const int64_t k = t->ne[0], rows = t->ne[1] * t->ne[2] * t->ne[3];
    const size_t row_bytes = ob_type_row_bytes(j->targets[i].type, k);
    j->t = t;
    j->to = j->targets[i];
    if (!changes(j, i)) {
        for (size_t at = 0; at < t->n_bytes; at += PIECE_BYTES) {
            const size_t n = OB_MIN(t->n_bytes - at, (size_t)PIECE_BYTES);
            OB_TRY(ob_outfile_write(j->out, (const uint8_t *)t->data + at, n, err));
        }
    } else {
        const int64_t most = OB_MAX(1, (int64_t)(j->piece_bytes / row_bytes));
        load_importance(j);
        OB_TRY(load_factors(j, err));
        for (j->row0 = 0; j->row0 < rows; j->row0 += most) {
            j->n_rows = OB_MIN(most, rows - j->row0);
            ob_pool_run(j->pool, quantize_rows, j);
            if (atomic_load(&j->failed)) return failure(j, err);
            OB_TRY(ob_outfile_write(j->out, j->piece, (size_t)j->n_rows * row_bytes, err));
            if (j->p->on_progress)
                j->p->on_progress(j->p->arg, t->name, j->done_bytes + t->n_bytes / (uint64_t)rows * (uint64_t)j->row0,
                                  j->res.src_bytes);
        }
    }
    j->done_bytes += t->n_bytes;
    if (j->p->on_progress) j->p->on_progress(j->p->arg, t->name, j->done_bytes, j->res.src_bytes);
    ob_file_release_pages(j->src, t);
    return ob_outfile_pad(j->out, j->align, err);
}

/* 8 bits and more lose next to nothing when they are quantised again. */
static bool good_source(uint32_t type)
{
    return type == OB_F32 || type == OB_F16 || type == OB_BF16 || type == OB_F64 || type == OB_Q8_0;
}

static void note(const job *j, const char *text)
{
    if (j->p->on_note) j->p->on_note(j->p->arg, text);
}

/* Fill dst, count, and refuse what cannot be done, before anything is written. */
static ob_status plan(job *j, ob_err *err)
{
    uint64_t n_elems = 0;
    for (size_t i = 0; i < j->n; i++) {
        const ob_tensor *t = ob_file_tensor(j->src, i);
        const conv_target *to = &j->targets[i];
        ob_tensor *d = &j->dst[i];
        const uint64_t rows = (uint64_t)t->ne[1] * (uint64_t)t->ne[2] * (uint64_t)t->ne[3];
        *d = *t;
        d->type = to->type;
        j->res.src_bytes += t->n_bytes;
        n_elems += rows * (uint64_t)t->ne[0];
        if (changes(j, i)) {
            const size_t row_bytes = ob_type_row_bytes(to->type, t->ne[0]);
            if (!ob_type_get(t->type)->dequant)
                return ob_err_set(err, OB_E_UNSUPPORTED, "tensor %s has type %s, which cannot be converted", t->name,
                                  ob_fmt_type_name(t->type));
            if (!good_source(t->type)) {
                if (!j->p->requantize)
                    return ob_err_set(err, OB_E_UNSUPPORTED, "tensor %s is %s already: quantising it again adds its "
                                      "error to the new one (--allow-requantize does it all the same)", t->name,
                                      ob_type_get(t->type)->name);
                j->res.n_requantized++;
            }
            d->n_bytes = (size_t)rows * row_bytes;
            j->res.n_quantized++;
            j->res.n_fallback += to->fallback;
            j->res.n_rotated += to->rotate;
            j->piece_bytes = OB_MAX(j->piece_bytes, row_bytes);
        } else if (j->p->rotate && d->type == OB_Q4_0 && strcmp(t->name, "token_embd.weight")) {
            return ob_err_set(err, OB_E_UNSUPPORTED, "tensor %s is Q4_0 and cannot be rotated", t->name);
        }
        j->res.n_bytes += d->n_bytes;
    }
    j->res.n_tensors = (int)j->n;
    j->res.bits_per_weight = n_elems ? 8.0 * (double)j->res.n_bytes / (double)n_elems : 0;
    char text[200];
    if (j->res.n_requantized) {
        snprintf(text, sizeof text, "%d tensors were quantised before: their errors add up", j->res.n_requantized);
        note(j, text);
    }
    if (j->res.n_fallback) {
        snprintf(text, sizeof text, "%d tensors have rows that do not fit the type's blocks: they get a larger type",
                 j->res.n_fallback);
        note(j, text);
    }
    return OB_OK;
}

static ob_status allocate(job *j, ob_err *err)
{
    int64_t row = 1, imp = 1;
    const int n_threads = ob_pool_n_threads(j->pool);
    for (size_t i = 0; i < j->n; i++) {
        const ob_tensor *t = ob_file_tensor(j->src, i);
        if (!changes(j, i)) continue;
        row = OB_MAX(row, t->ne[0]);
        imp = OB_MAX(imp, t->ne[0] * t->ne[2] * t->ne[3]);
    }
    j->piece_bytes = OB_MAX(j->piece_bytes, (size_t)PIECE_BYTES);
    j->piece = ob_malloc(j->piece_bytes);
    j->rows = ob_calloc((size_t)n_threads, sizeof *j->rows);
    if (j->p->imatrix) j->importance = ob_reallocarray(NULL, (size_t)imp, sizeof *j->importance);
    bool ok = j->piece && j->rows && (!j->p->imatrix || j->importance);
    for (int i = 0; i < n_threads && ok; i++) ok = (j->rows[i] = ob_reallocarray(NULL, 2 * (size_t)row, sizeof(float))) != NULL;
    return ok ? OB_OK : ob_err_set(err, OB_E_NO_MEMORY, "no memory to quantise");
}

static ob_status write_head(job *j, uint32_t file_type, ob_err *err)
{
    /* The parts of a split file become one. */
    static const char *const replaced[] = {"general.file_type", "general.quantization_version", "split.", NULL};
    ob_gguf_meta meta;
    ob_gguf_meta_init(&meta);
    ob_gguf_meta_copy(&meta, j->src, replaced);
    ob_gguf_meta_u32(&meta, "general.file_type", file_type);
    ob_gguf_meta_u32(&meta, "general.quantization_version", QUANT_VERSION);
    if (j->p->rotate) ob_gguf_meta_i32(&meta, OB_HADAMARD_KEY, OB_HADAMARD);
    ob_status s = ob_gguf_write_head(j->out, &meta, j->dst, j->n, j->align, err);
    ob_gguf_meta_deinit(&meta);
    return s;
}

ob_status ob_convert_quantize(const ob_file *src, const char *dst_path, const ob_quantize_params *p,
                              ob_quantize_result *out, ob_err *err)
{
    ob_status s;
    uint32_t file_type = 0;
    if (ob_file_find_kv(src, OB_HADAMARD_KEY))
        return ob_err_set(err, OB_E_UNSUPPORTED, "the source is Hadamard-rotated already: start from the model it was made of");
    job j = {.p = p, .src = src, .n = ob_file_n_tensors(src), .align = ob_gguf_alignment(src)};
    j.targets = ob_calloc(j.n, sizeof *j.targets);
    j.dst = ob_calloc(j.n, sizeof *j.dst);
    if (!j.targets || !j.dst) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for %zu tensors", j.n);
        goto out;
    }
    OB_GOTO(conv_choose_types(src, p, j.targets, &file_type, err));
    OB_GOTO(plan(&j, err));
    OB_GOTO(ob_pool_new(p->n_threads, &j.pool, err));
    OB_GOTO(allocate(&j, err));
    OB_GOTO(ob_outfile_new(dst_path, &j.out, err));
    OB_GOTO(write_head(&j, file_type, err));
    for (size_t i = 0; i < j.n; i++) OB_GOTO(write_tensor(&j, i, err));
    ob_outfile *done = j.out;
    j.out = NULL;
    OB_GOTO(ob_outfile_commit(done, err));
    *out = j.res;
out:
    ob_outfile_abort(j.out);
    for (int i = 0; j.rows && i < ob_pool_n_threads(j.pool); i++) ob_free(j.rows[i]);
    if (j.pool) ob_pool_free(j.pool);
    ob_free(j.rows);
    ob_free(j.piece);
    ob_free(j.importance);
    ob_free(j.factors);
    ob_free(j.orders);
    ob_free(j.targets);
    ob_free(j.dst);
    return s;
}
