/* Every encoder family against its reference vectors and scores, through the engine's context on the CPU
 * device: at each level, alone and in company, with f32 activations within the file's own tolerance and
 * with 8-bit ones within a looser one.
 *
 * test_golden_encoders DEVICE: the same on another device. Exit 77: it is not there. */
#include <math.h>
#include <stdlib.h>

#include "engine/ctx.h"
#include "npz.h"
#include "test.h"

static const char *const k_levels[] = {"ref", "c", "avx2", "avx512"};
/* vectors of f16 products */
#define F16_ATOL 5e-3

static const char *g_device = "cpu";

static bool on_cpu(void) { return strcmp(g_device, "cpu") == 0; }

/* False when this CPU lacks the level. Another device has one level only, which takes the place of the first. */
static bool use_level(const char *level)
{
    if (!on_cpu()) return level == k_levels[0];
    setenv("OB_CPU", level, 1);
    ob_dev_info info;
    ob_dev *d;
    ob_err err;
    if (ob_dev_open("cpu", &(ob_dev_options){.n_threads = 1}, &d, &err) != OB_OK) return false;
    d->api->describe(d, &info);
    ob_dev_close(d);
    return strstr(info.driver, level) != NULL;
}

typedef struct options {
    bool embed, exact;
    ob_pooling pooling;
    int32_t n_ctx, n_ubatch;
} options;

static ob_ctx *open_model(const char *name, const options *o)
{
    char path[512];
    snprintf(path, sizeof path, "%s/golden/%s.gguf", OB_TEST_DATA, name);
    ob_engine_params p;
    ob_engine_defaults(&p);
    p.model_path = path;
    p.device = g_device;
    p.n_ctx = o->n_ctx;
    p.n_seq = 4;
    p.n_ubatch = o->n_ubatch;
    p.n_threads = 2;
    p.exact = o->exact;
    p.embed = o->embed;
    p.pooling = o->pooling;
    ob_ctx *c = NULL;
    ob_err err;
    if (ob_ctx_new(&p, &c, &err) != OB_OK) fail_msg("%s: %s", name, err.text);
    return c;
}

static npz *open_npz(const char *name, double *atol)
{
    char path[512];
    snprintf(path, sizeof path, "%s/golden/%s.npz", OB_TEST_DATA, name);
    npz *z = npz_open(path);
    if (!z) fail_msg("cannot read %s", path);
    *atol = (double)*(const float *)npz_need(z, "atol", NPZ_F32)->data;
    return z;
}

/* Run texts in one step; chunks need no sequence. The result is valid until the next step. */
static const float *run(ob_ctx *c, ob_chunk *chunks, int32_t n)
{
    ob_err err;
    const float *rows;
    for (int32_t i = 0; i < n; i++)
        if (ob_ctx_seq_new(c, &chunks[i].seq, &err) != OB_OK) fail_msg("%s", err.text);
    if (ob_ctx_step(c, chunks, n, &rows, &err) != OB_OK) fail_msg("%s", err.text);
    for (int32_t i = 0; i < n; i++) ob_ctx_seq_free(c, chunks[i].seq);
    return rows;
}

static double max_diff(const float *a, const float *b, int64_t n)
{
    double d = 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = fabs((double)a[i] - (double)b[i]);
        if (!(x <= d)) d = isnan(x) ? INFINITY : x;
    }
    return d;
}

static double cosine(const float *a, const float *b, int64_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return ab / sqrt(aa * bb);
}

static void want(const char *name, const char *level, const char *what, double diff, double atol)
{
    if (getenv("OB_GOLDEN_PRINT")) printf("  %-16s %-7s %-24s %.2e (%.0e)\n", name, level, what, diff, atol);
    if (!(diff <= atol)) fail_msg("%s at level %s, %s: off by %g, allowed %g", name, level, what, diff, atol);
}

/* --- vectors ----------------------------------------------------------------------------------- */

static void check_pooled(const char *name, const char *level, npz *z, ob_pooling pooling, const char *key)
{
    const npz_array *tok = npz_need(z, "tokens", NPZ_I32), *v = npz_need(z, key, NPZ_F32);
    ob_ctx *c = open_model(name, &(options){.embed = true, .exact = true, .pooling = pooling});
    ob_chunk ch = {.tok = tok->data, .n_tok = (int32_t)tok->n_items};
    const float *rows = run(c, &ch, 1);
    assert_int_equal(ob_ctx_n_cols(c), v->n_items);
    want(name, level, key, 1 - cosine(rows, v->data, v->n_items), 1e-9);
    ob_ctx_free(c);
}

static void check_vectors(const char *name, const char *level)
{
    double atol;
    npz *z = open_npz(name, &atol);
    const npz_array *tok = npz_need(z, "tokens", NPZ_I32), *v = npz_need(z, "embeddings", NPZ_F32);
    const int32_t n = (int32_t)tok->n_items, d = (int32_t)v->shape[1];
    for (int exact = 1; exact >= 0; exact--) {
        ob_ctx *c = open_model(name, &(options){.embed = true, .exact = exact, .pooling = OB_POOLING_NONE});
        ob_chunk ch = {.tok = tok->data, .n_tok = n};
        const float *rows = run(c, &ch, 1);
        /* f32 weights have no 8-bit product: the same tolerance whatever is asked for. A GPU may round them and
         * activations to f16, 5e-4 of a number of up to 4. */
        want(name, level, exact ? "token vectors" : "token vectors, 8 bit", max_diff(rows, v->data, n * d),
             exact || on_cpu() ? atol : F16_ATOL);
        /* in company: other texts before and after, the same bits */
        float *alone = malloc(sizeof *alone * (size_t)(n * d));
        memcpy(alone, rows, sizeof *alone * (size_t)(n * d));
        ob_chunk both[3] = {{.tok = (const int32_t *)tok->data + 5, .n_tok = 17},
                            {.tok = tok->data, .n_tok = n},
                            {.tok = tok->data, .n_tok = 1}};
        rows = run(c, both, 3);
        /* a larger plan: other kernels may round otherwise there */
        want(name, level, "in company", max_diff(rows + 17 * d, alone, n * d), on_cpu() ? 0 : exact ? atol : F16_ATOL);
        free(alone);
        ob_ctx_free(c);
    }
    check_pooled(name, level, z, OB_POOLING_MEAN, "mean");
    check_pooled(name, level, z, OB_POOLING_CLS, "cls");
    npz_close(z);
}

static void test_vectors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof k_levels / sizeof *k_levels; i++) {
        if (!use_level(k_levels[i])) continue;
        check_vectors("bert", k_levels[i]);
        check_vectors("modern-bert", k_levels[i]);
    }
    unsetenv("OB_CPU");
}

/* Longer than a step of n_ubatch: runs whole in a larger plan, with the same result. */
static void test_longer_than_ubatch(void **state)
{
    (void)state;
    double atol;
    npz *z = open_npz("modern-bert", &atol);
    const npz_array *tok = npz_need(z, "tokens", NPZ_I32), *v = npz_need(z, "embeddings", NPZ_F32);
    ob_ctx *c = open_model("modern-bert", &(options){.embed = true, .exact = true, .pooling = OB_POOLING_NONE,
                                                     .n_ubatch = 16});
    ob_chunk ch = {.tok = tok->data, .n_tok = (int32_t)tok->n_items};
    const float *rows = run(c, &ch, 1);
    want("modern-bert", "best", "n_ubatch 16", max_diff(rows, v->data, v->n_items), atol);
    ob_ctx_free(c);
    npz_close(z);
}

static void test_limits(void **state)
{
    (void)state;
    ob_err err;
    ob_ctx *c = open_model("bert", &(options){.embed = true, .n_ctx = 32});
    int32_t tok[40] = {0};
    ob_chunk ch = {.tok = tok, .n_tok = 33};
    const float *rows;
    assert_int_equal(ob_ctx_seq_new(c, &ch.seq, &err), OB_OK);
    assert_int_not_equal(ob_ctx_step(c, &ch, 1, &rows, &err), OB_OK);
    ch.n_tok = 4;
    ch.type = 1; /* only Laya's texts choose a type */
    assert_int_equal(ob_ctx_step(c, &ch, 1, &rows, &err), OB_E_INVALID);
    ch.type = 0;
    assert_int_equal(ob_ctx_step(c, &ch, 1, &rows, &err), OB_OK);
    assert_int_equal(ob_ctx_step(c, &ch, 1, &rows, &err), OB_E_INVALID); /* a second piece */
    ob_ctx_seq_free(c, ch.seq);
    ob_ctx_free(c);
    /* no positions past the table's */
    ob_engine_params p;
    ob_engine_defaults(&p);
    p.model_path = OB_TEST_DATA "/golden/bert.gguf";
    p.device = g_device;
    p.n_ctx = 513;
    assert_int_equal(ob_ctx_new(&p, &c, &err), OB_E_INVALID);
}

/* --- scores ------------------------------------------------------------------------------------ */

static void check_classes(const char *level)
{
    double atol;
    npz *z = open_npz("modern-bert-cls", &atol);
    const int32_t *tok = npz_need(z, "tokens", NPZ_I32)->data;
    const int32_t *starts = npz_need(z, "starts", NPZ_I32)->data, *lengths = npz_need(z, "lengths", NPZ_I32)->data;
    const npz_array *want_scores = npz_need(z, "logits", NPZ_F32);
    ob_ctx *c = open_model("modern-bert-cls", &(options){.exact = true});
    ob_engine_info info;
    ob_ctx_describe(c, &info);
    assert_int_equal(info.output, OB_OUTPUT_CLASSES);
    assert_int_equal(info.n_class, 4);
    ob_chunk ch[4];
    for (int i = 0; i < 4; i++) ch[i] = (ob_chunk){.tok = tok + starts[i], .n_tok = lengths[i]};
    const float *rows = run(c, ch, 4);
    want("modern-bert-cls", level, "scores", max_diff(rows, want_scores->data, want_scores->n_items), atol);
    ob_ctx_free(c);
    /* the same file as an embedder has no use for its head */
    c = open_model("modern-bert-cls", &(options){.embed = true});
    assert_int_equal(ob_ctx_n_cols(c), 64);
    ob_ctx_free(c);
    npz_close(z);
}

static void check_decisions(const char *level)
{
    double atol;
    npz *z = open_npz("laya", &atol);
    const npz_array *tok = npz_need(z, "tokens", NPZ_I32), *marks = npz_need(z, "marks", NPZ_I32);
    const npz_array *want_scores = npz_need(z, "logits", NPZ_F32);
    ob_ctx *c = open_model("laya", &(options){.exact = true});
    ob_chunk ch[3];
    for (int32_t type = 0; type < 3; type++)
        ch[type] = (ob_chunk){.tok = tok->data, .n_tok = (int32_t)tok->n_items, .marks = marks->data,
                              .n_out = (int32_t)marks->n_items, .type = type};
    const float *rows = run(c, ch, 3);
    assert_int_equal(ob_ctx_n_rows(c, ch, 3), 9);
    want("laya", level, "scores at the marks", max_diff(rows, want_scores->data, want_scores->n_items), atol);
    ob_ctx_free(c);
    c = open_model("laya", &(options){.embed = true});
    assert_int_equal(ob_ctx_n_cols(c), 128);
    ob_ctx_free(c);
    npz_close(z);
}

static void test_scores(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof k_levels / sizeof *k_levels; i++) {
        if (!use_level(k_levels[i])) continue;
        check_classes(k_levels[i]);
        check_decisions(k_levels[i]);
    }
    unsetenv("OB_CPU");
}

/* --- a decoder as an embedder ------------------------------------------------------------------ */

static void test_decoder_embeds(void **state)
{
    (void)state;
    ob_ctx *each = open_model("llama", &(options){.embed = true, .exact = true, .pooling = OB_POOLING_NONE});
    ob_ctx *last = open_model("llama", &(options){.embed = true, .exact = true});
    int32_t tok[20];
    for (int32_t i = 0; i < 20; i++) tok[i] = 3 + 11 * i;
    ob_chunk a = {.tok = tok, .n_tok = 20}, b = a;
    const float *all = run(each, &a, 1), *one = run(last, &b, 1);
    want("llama", "best", "last of all", max_diff(all + 19 * 64, one, 64), 0);
    ob_ctx_free(each);
    ob_ctx_free(last);
}

int main(int argc, char **argv)
{
    ob_dev *d;
    ob_err err;
    if (argc > 1) g_device = argv[1];
    if (ob_dev_open(g_device, NULL, &d, &err) != OB_OK) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    ob_dev_close(d);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_longer_than_ubatch),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_decoder_embeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
