/* The ladder of `1bit npu selftest`. */
#include "dev/npu/npu_selftest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/math.h"
#include "dev/npu/npu_gemm.h"
#include "dev/npu/npu_gemv.h"
#include "dev/npu/npu_kernel.h"

enum { COPY_BYTES = 8 << 20, REPEATS = 9, CHECKED_OUTPUTS = 128 };

typedef struct test {
    ob_npu_selftest *out;
    ob_npu_dev *dev;
    uint32_t seed;
} test;

static int32_t rnd(test *t) /* -128..127 */
{
    t->seed = t->seed * 1664525u + 1013904223u;
    return (int32_t)(t->seed >> 24) - 128;
}

static ob_npu_selftest_step *begin(test *t, const char *fmt, ...) OB_PRINTF(2, 3);
static ob_npu_selftest_step *begin(test *t, const char *fmt, ...)
{
    ob_npu_selftest_step *s = &t->out->steps[t->out->n_steps++];
    memset(s, 0, sizeof *s);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->name, sizeof s->name, fmt, ap);
    va_end(ap);
    return s;
}

/* Closes a step; `good` is its text where it went well. Returns whether to go on. */
static bool end(ob_npu_selftest_step *s, ob_status status, const ob_err *err, const char *good)
{
    s->ok = status == OB_OK;
    snprintf(s->text, sizeof s->text, "%.*s", (int)sizeof s->text - 1, s->ok ? good : err->text);
    return s->ok;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median milliseconds of fn, on hardware; 0 without it. */
static ob_status timed(test *t, ob_status (*fn)(void *arg, ob_err *err), void *arg, double *ms, ob_err *err)
{
    double all[REPEATS];
    *ms = 0;
    if (!t->out->hardware) return OB_OK;
    for (int i = 0; i < REPEATS; i++) {
        const double at = ob_now_ms();
        OB_TRY(fn(arg, err));
        all[i] = ob_now_ms() - at;
    }
    qsort(all, REPEATS, sizeof *all, by_value);
    *ms = all[REPEATS / 2];
    return OB_OK;
}

/* --- nop, copy ---------------------------------------------------------------------------------- */

typedef struct cmds {
    ob_npu_queue *queue;
    ob_npu_cmd cmds[32];
    size_t n;
} cmds;

static ob_status run_cmds(void *arg, ob_err *err)
{
    cmds *c = arg;
    return ob_npu_queue_run(c->queue, c->cmds, c->n, err);
}

/* A text in the heap, addresses in. */
static ob_status place(ob_npu_dev *d, ob_npu_txn *t, const uint64_t *args, size_t n_args, ob_npu_bo **bo, ob_err *err)
{
    const ob_npu_patch *p = (const ob_npu_patch *)t->patches.data;
    OB_TRY(ob_npu_patch_apply((uint8_t *)t->text.data, t->text.len, p, t->patches.len / sizeof *p, args, n_args, err));
    OB_TRY(ob_npu_bo_new(d, OB_NPU_BO_DEV, t->text.len, bo, err));
    ob_npu_bo_write(*bo, 0, t->text.data, t->text.len);
    return OB_OK;
}

static bool test_nop(test *t, const ob_npu_kernel *k)
{
    ob_npu_selftest_step *s = begin(t, "nop");
    ob_err err = {0};
    ob_npu_txn text;
    ob_npu_bo *bo = NULL;
    cmds c = {.queue = k->queue};
    double one = 0, many = 0;
    ob_status st = ob_npu_text_nop(&text, &err);
    if (st == OB_OK) st = place(t->dev, &text, NULL, 0, &bo, &err);
    if (st == OB_OK) {
        for (c.n = 0; c.n < OB_COUNT(c.cmds); c.n++) c.cmds[c.n] = (ob_npu_cmd){.text = bo, .n_bytes = bo->n_bytes};
        st = run_cmds(&c, &err);
    }
    if (st == OB_OK) st = timed(t, run_cmds, &c, &many, &err);
    c.n = 1;
    if (st == OB_OK) st = timed(t, run_cmds, &c, &one, &err);
    char text_[128] = "one command, and a chain of 32";
    if (t->out->hardware)
        snprintf(text_, sizeof text_, "one command %.3f ms, each further one of a chain %.3f ms", one,
                 (many - one) / 31);
    s->ms = one;
    ob_npu_bo_free(bo);
    ob_npu_txn_deinit(&text);
    return end(s, st, &err, text_);
}

static bool test_copy(test *t, const ob_npu_kernel *k)
{
    ob_npu_selftest_step *s = begin(t, "copy %d MiB", COPY_BYTES >> 20);
    ob_err err = {0};
    ob_npu_txn text;
    ob_npu_bo *from = NULL, *to = NULL, *bo = NULL;
    cmds c = {.queue = k->queue, .n = 1};
    ob_status st = ob_npu_text_copy(&text, &k->place, COPY_BYTES, &err);
    if (st == OB_OK) st = ob_npu_bo_new(t->dev, OB_NPU_BO_SHARE, COPY_BYTES, &from, &err);
    if (st == OB_OK) st = ob_npu_bo_new(t->dev, OB_NPU_BO_SHARE, COPY_BYTES, &to, &err);
    if (st == OB_OK) {
        for (size_t i = 0; i < COPY_BYTES; i++) from->host[i] = (uint8_t)rnd(t);
        ob_npu_bo_flush(from, 0, COPY_BYTES);
        const uint64_t args[] = {from->dev_addr, to->dev_addr};
        st = place(t->dev, &text, args, 2, &bo, &err);
    }
    if (st == OB_OK) {
        c.cmds[0] = (ob_npu_cmd){.text = bo, .n_bytes = bo->n_bytes};
        st = run_cmds(&c, &err);
    }
    if (st == OB_OK) {
        ob_npu_bo_invalidate(to, 0, COPY_BYTES);
        if (memcmp(from->host, to->host, COPY_BYTES) != 0)
            st = ob_err_set(&err, OB_E_CORRUPT, "the copy differs from the original");
    }
    if (st == OB_OK) st = timed(t, run_cmds, &c, &s->ms, &err);
    if (s->ms > 0) s->gb_s = 2.0 * COPY_BYTES / s->ms * 1e-6;
    ob_npu_bo_free(bo);
    ob_npu_bo_free(from);
    ob_npu_bo_free(to);
    ob_npu_txn_deinit(&text);
    return end(s, st, &err, "every byte arrived");
}

/* --- products ----------------------------------------------------------------------------------- */

typedef struct product {
    ob_npu_gemm *gemm;
    ob_npu_gemv *gemv;
    ob_npu_mm mm;
    ob_npu_mv mv;
} product;

static ob_status run_gemm(void *arg, ob_err *err)
{
    return ob_npu_gemm_run(((product *)arg)->gemm, &((product *)arg)->mm, 1, err);
}
static ob_status run_gemv(void *arg, ob_err *err)
{
    return ob_npu_gemv_run(((product *)arg)->gemv, &((product *)arg)->mv, 1, err);
}

/* Random bytes are a sound i8c matrix (whole tiles only are used here). */
static ob_status random_bo(test *t, size_t n, ob_npu_bo **out, ob_err *err)
{
    OB_TRY(ob_npu_bo_new(t->dev, OB_NPU_BO_SHARE, n, out, err));
    for (size_t i = 0; i < n; i++) (*out)->host[i] = (uint8_t)rnd(t);
    ob_npu_bo_flush(*out, 0, n);
    return OB_OK;
}

static bool test_gemm(test *t, ob_npu_gemm *g, int32_t m, int32_t k, int32_t n)
{
    ob_npu_selftest_step *s = begin(t, "gemm %d x %d x %d", m, k, n);
    ob_err err = {0};
    ob_npu_bo *w = NULL;
    int8_t *a = ob_malloc((size_t)m * (size_t)k);
    int32_t *c = ob_malloc((size_t)m * (size_t)n * 4);
    ob_status st = a && c ? random_bo(t, ob_npu_i8c_bytes(k, n), &w, &err)
                          : ob_err_set(&err, OB_E_NO_MEMORY, "no memory for a product");
    if (st == OB_OK) {
        for (int64_t i = 0; i < (int64_t)m * k; i++) a[i] = (int8_t)rnd(t);
        product p = {.gemm = g, .mm = {.a = a, .lda = k, .n_rows = m, .k = k, .n = n, .w = w, .c = c, .ldc = n}};
        st = run_gemm(&p, &err);
        /* All rows of the first and last outputs, and some in every column of cores. */
        if (st == OB_OK) st = ob_npu_mm_check(&p.mm, (const int8_t *)w->host, 0, CHECKED_OUTPUTS, &err);
        if (st == OB_OK) st = ob_npu_mm_check(&p.mm, (const int8_t *)w->host, n - CHECKED_OUTPUTS, n, &err);
        for (int32_t j = CHECKED_OUTPUTS; st == OB_OK && j < n; j += 97)
            st = ob_npu_mm_check(&p.mm, (const int8_t *)w->host, j, j + 1, &err);
        if (st == OB_OK) st = timed(t, run_gemm, &p, &s->ms, &err);
        if (s->ms > 0) {
            s->tmac_s = (double)m * k * n / s->ms * 1e-9;
            s->gb_s = (double)ob_npu_pad_m(m) / OB_NPU_BLOCK_M * k * n / s->ms * 1e-6;
        }
    }
    ob_npu_bo_free(w);
    ob_free(a);
    ob_free(c);
    return end(s, st, &err, "exact");
}

/* Weights that are small numbers: scales and minima of about 2^-6. */
static void fill_q4(test *t, uint8_t *tiles, size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes; at += OB_NPU_Q4_TILE_BYTES) {
        for (int i = 0; i < OB_NPU_Q4_NIBBLE_BYTES; i++) tiles[at + (size_t)i] = (uint8_t)rnd(t);
        for (int i = 0; i < 2 * OB_NPU_Q4_SCALES; i++) {
            const uint16_t v = (uint16_t)(0x3C00 + (rnd(t) & 0x7F) + (i < OB_NPU_Q4_SCALES ? 0 : 0x8000));
            memcpy(tiles + at + OB_NPU_Q4_NIBBLE_BYTES + 2 * i, &v, 2);
        }
    }
}

/* The software model gives the reference's bits; a vector unit adds in another order. */
static ob_status compare(const test *t, const float *y, const float *want, int32_t n, char *text, size_t cap,
                         ob_err *err)
{
    double diff = 0, size = 0;
    for (int32_t j = 0; j < n; j++) {
        diff += ((double)y[j] - want[j]) * ((double)y[j] - want[j]);
        size += (double)want[j] * want[j];
    }
    const double rel = sqrt(diff / (size > 0 ? size : 1)), most = t->out->hardware ? 1e-2 : 0;
    snprintf(text, cap, t->out->hardware ? "within %.2g of the reference" : "the reference's bits", rel);
    return rel <= most ? OB_OK
                       : ob_err_set(err, OB_E_CORRUPT, "a matrix-vector product is %.3g off (relative), more than %.2g",
                                    rel, most);
}

static bool test_gemv(test *t, ob_npu_gemv *g, int32_t k, int32_t n)
{
    ob_npu_selftest_step *s = begin(t, "gemv %d x %d", k, n);
    ob_err err = {0};
    char text[96] = "";
    ob_npu_bo *w = NULL;
    const size_t bytes = ob_npu_q4_bytes(k, n);
    float *x = ob_malloc((size_t)k * 4), *y = ob_malloc((size_t)n * 4), *want = ob_malloc((size_t)n * 4);
    uint16_t *rounded = ob_malloc((size_t)ob_npu_q4_pad_k(k) * 2);
    ob_status st = x && y && want && rounded ? ob_npu_bo_new(t->dev, OB_NPU_BO_SHARE, bytes, &w, &err)
                                             : ob_err_set(&err, OB_E_NO_MEMORY, "no memory for a product");
    if (st == OB_OK) {
        fill_q4(t, w->host, bytes);
        ob_npu_bo_flush(w, 0, bytes);
        for (int32_t i = 0; i < k; i++) x[i] = (float)rnd(t) / 64;
        product p = {.gemv = g, .mv = {.x = x, .k = k, .n = n, .w = w, .y = y}};
        st = run_gemv(&p, &err);
        ob_npu_bf16_pack(rounded, x, k);
        ob_npu_mv_ref(rounded, k, w->host, 0, n, want);
        if (st == OB_OK) st = compare(t, y, want, n, text, sizeof text, &err);
        if (st == OB_OK) st = timed(t, run_gemv, &p, &s->ms, &err);
        if (s->ms > 0) s->gb_s = (double)bytes / s->ms * 1e-6;
    }
    ob_npu_bo_free(w);
    ob_free(x);
    ob_free(y);
    ob_free(want);
    ob_free(rounded);
    return end(s, st, &err, text);
}

/* --- a model's products, timed ------------------------------------------------------------------ */

/* Qwen2.5-7B: products of a layer as inputs x outputs, 28 layers, and the head. */
static const int32_t LAYER_7B[][2] = {{3584, 4608}, {3584, 3584}, {3584, 37888}, {18944, 3584}};
enum { LAYERS_7B = 28, HEAD_IN = 3584, HEAD_OUT = 152064 };

static double find_ms(const test *t, const char *name)
{
    for (int i = 0; i < t->out->n_steps; i++)
        if (strcmp(t->out->steps[i].name, name) == 0) return t->out->steps[i].ms;
    return 0;
}

/* Times the products of a 7B model one by one; hardware only. */
static bool test_rates(test *t, ob_npu_gemm *gemm, ob_npu_gemv *gemv)
{
    double prefill = 0, decode = 0;
    char name[48];
    for (size_t i = 0; i < OB_COUNT(LAYER_7B); i++) {
        const int32_t k = LAYER_7B[i][0], n = LAYER_7B[i][1];
        if (!test_gemm(t, gemm, OB_NPU_MAX_M, k, n) || !test_gemv(t, gemv, k, n)) return false;
        snprintf(name, sizeof name, "gemm %d x %d x %d", OB_NPU_MAX_M, k, n);
        prefill += LAYERS_7B * find_ms(t, name);
        snprintf(name, sizeof name, "gemv %d x %d", k, n);
        decode += LAYERS_7B * find_ms(t, name);
    }
    if (!test_gemv(t, gemv, HEAD_IN, HEAD_OUT)) return false;
    snprintf(name, sizeof name, "gemv %d x %d", HEAD_IN, HEAD_OUT);
    decode += find_ms(t, name);
    ob_err none = {0};
    ob_npu_selftest_step *s = begin(t, "prefill of a 7B, products only");
    s->ms = prefill;
    s->tok_s = prefill > 0 ? OB_NPU_MAX_M / prefill * 1000 : 0;
    if (!end(s, OB_OK, &none, "512 tokens at a time, int8, one product a submit")) return false;
    s = begin(t, "decode of a 7B, products only");
    s->ms = decode;
    s->tok_s = decode > 0 ? 1000 / decode : 0;
    return end(s, OB_OK, &none, "4-bit weights, one product a submit");
}

static bool test_products(test *t)
{
    static const int32_t gemms[][3] = {
        {1, 64, 1024}, {128, 576, 2048}, {512, 256, 1024}, {130, 4160, 2048}, {2, 18944, 1024}};
    static const int32_t gemvs[][2] = {{256, 1024}, {768, 3072}, {18944, 1024}};
    ob_err err = {0};
    ob_npu_gemm *gemm = NULL;
    ob_npu_gemv *gemv = NULL;
    ob_npu_selftest_step *s = begin(t, "load gemm_i8");
    bool go = end(s, ob_npu_gemm_new(t->dev, &gemm, &err), &err, "its PDI was loaded");
    for (size_t i = 0; go && i < OB_COUNT(gemms); i++) go = test_gemm(t, gemm, gemms[i][0], gemms[i][1], gemms[i][2]);
    if (go) {
        s = begin(t, "load gemv_q4");
        go = end(s, ob_npu_gemv_new(t->dev, &gemv, &err), &err, "its PDI was loaded");
    }
    for (size_t i = 0; go && i < OB_COUNT(gemvs); i++) go = test_gemv(t, gemv, gemvs[i][0], gemvs[i][1]);
    if (go && t->out->hardware) go = test_rates(t, gemm, gemv);
    ob_npu_gemv_free(gemv);
    ob_npu_gemm_free(gemm);
    return go;
}

/* The copy design's context, which is ended before the products make theirs. */
static bool test_basics(test *t)
{
    ob_err err = {0};
    ob_npu_kernel k;
    ob_npu_selftest_step *s = begin(t, "load copy");
    if (!end(s, ob_npu_kernel_load(&k, t->dev, OB_NPU_DESIGN_COPY, &err), &err, "its PDI was loaded")) return false;
    if (t->out->hardware) {
        snprintf(t->out->kernels, sizeof t->out->kernels, "%.400s (%.160s)", k.set.dir, k.set.toolchain);
        t->out->validated = k.set.validated;
    }
    const bool go = test_nop(t, &k) && test_copy(t, &k);
    ob_npu_kernel_unload(&k);
    return go;
}

void ob_npu_selftest_run(ob_npu_os *os, int index, ob_npu_selftest *out)
{
    ob_err err = {0};
    memset(out, 0, sizeof *out);
    test t = {.out = out, .seed = 1};
    out->hardware = !os->soft;
    ob_npu_probe(os, index, &out->id);
    ob_npu_selftest_step *s = begin(&t, "open");
    char text[160];
    snprintf(text, sizeof text, "%s, driver %d.%d, firmware %u.%u.%u.%u", ob_npu_gen_name(out->id.gen),
             out->id.driver_major, out->id.driver_minor, out->id.firmware.major, out->id.firmware.minor,
             out->id.firmware.patch, out->id.firmware.build);
    ob_status st = ob_npu_dev_open(os, index, &t.dev, &err);
    if (!end(s, st, &err, text)) return;
    out->ok = test_basics(&t) && test_products(&t);
    ob_npu_dev_close(t.dev);
}
