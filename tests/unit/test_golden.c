/* Every decoder family against its reference logits, through the engine's context on the CPU device.
 *
 * Small models with random weights (tests/data/golden/README.md). For each level of the CPU device: the
 * whole prompt in one step, in odd chunks, and the last 16 tokens one by one; with f32 caches within the
 * file's own tolerance, with f16 caches within F16_ATOL; and the same bits in company as alone. */
#include <math.h>
#include <stdlib.h>

#include "engine/ctx.h"
#include "npz.h"
#include "test.h"

/* f16 keys and values: the largest difference measured over all files and levels is 2.4e-3 (gemma3) (logits have a
 * standard deviation of about 0.65). */
#define F16_ATOL 3e-3

/* Positions 12 and 39 of qwen35moe are ill-conditioned: a head of the delta net gives a vector of size 2e-4
 * there or before, which its norm enlarges a thousandfold. The file's own f32 numbers are 1.1e-4 from an
 * evaluation in f64 at 39, so nothing closer can be asked of an f32 engine. Measured against the file, the
 * worst of both: 9.9e-5 (ref), 3.8e-5 (c), 2.6e-5 (avx2), 4.4e-5 (avx512). */
#define ILL_ATOL 1.5e-4

typedef struct model {
    const char *name;
    int32_t ill[2];   /* 0: none */
    const char *same; /* name of the .npz if another */
    int32_t flips;    /* positions that rounding the cache to f16 may move without bound: the indexer then
                         chooses other entries, and all that follows sees them. Measured: 133 of 300 */
} model;

static const model k_models[] = {
    {.name = "llama"},      {.name = "llama3rope"}, {.name = "qwen2"},
    {.name = "qwen3"},      {.name = "qwen3moe"},   {.name = "minicpm"},
    {.name = "gemma3"},     {.name = "minicpm-longrope"},
    {.name = "glm47flash"}, {.name = "deepseek3"},
    {.name = "qwen35"},     {.name = "zaya"},
    {.name = "zaya-taps-first", .same = "zaya"},
    {.name = "deepseek4", .flips = 150},
    {.name = "qwen35moe", .ill = {12, 39}},
};

static const char *const k_levels[] = {"ref", "c", "avx2", "avx512"};

/* The level that tests run at; false when this CPU lacks it. */
static bool use_level(const char *level)
{
    setenv("OB_CPU", level, 1);
    ob_dev_info info;
    ob_dev *d;
    ob_err err;
    if (ob_dev_open("cpu", &(ob_dev_options){.n_threads = 1}, &d, &err) != OB_OK) return false;
    d->api->describe(d, &info);
    ob_dev_close(d);
    return strstr(info.driver, level) != NULL;
}

static void path_of(const char *name, const char *suffix, char *out, size_t cap)
{
    snprintf(out, cap, "%s/golden/%s%s", OB_TEST_DATA, name, suffix);
}

static ob_ctx *open_model(const char *name, ob_type kv, int32_t n_ctx, int32_t n_ubatch, bool exact)
{
    char path[512];
    path_of(name, ".gguf", path, sizeof path);
    ob_engine_params p;
    ob_engine_defaults(&p);
    p.model_path = path;
    p.device = "cpu";
    p.n_ctx = n_ctx;
    p.n_seq = 3;
    p.n_ubatch = n_ubatch;
    p.n_threads = 2;
    p.k_type = p.v_type = kv;
    p.exact = exact;
    ob_ctx *c = NULL;
    ob_err err;
    if (ob_ctx_new(&p, &c, &err) != OB_OK) fail_msg("%s: %s", name, err.text);
    return c;
}

/* Feed tok[0..n) in chunks; logits of all of them to out [n][n_vocab]. */
static void feed(ob_ctx *c, ob_seq *s, const int32_t *tok, int32_t n, int32_t chunk, int32_t n_vocab, float *out)
{
    ob_err err;
    for (int32_t at = 0; at < n;) {
        const int32_t m = n - at < chunk ? n - at : chunk;
        const float *logits;
        const ob_chunk ch = {.seq = s, .tok = tok + at, .n_tok = m, .n_out = m};
        if (ob_ctx_step(c, &ch, 1, &logits, &err) != OB_OK) fail_msg("%s", err.text);
        memcpy(out + (size_t)at * (size_t)n_vocab, logits, (size_t)m * (size_t)n_vocab * sizeof *out);
        at += m;
    }
}

static ob_seq *new_seq(ob_ctx *c)
{
    ob_seq *s;
    ob_err err;
    if (ob_ctx_seq_new(c, &s, &err) != OB_OK) fail_msg("%s", err.text);
    return s;
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

static void want(const char *name, const char *level, const char *what, double diff, double atol)
{
    if (getenv("OB_GOLDEN_PRINT")) printf("  %-18s %-7s %-22s %.2e (%.0e)\n", name, level, what, diff, atol);
    if (!(diff <= atol)) fail_msg("%s at level %s, %s: off by %g, allowed %g", name, level, what, diff, atol);
}

typedef struct golden {
    npz *z;
    const int32_t *tok;
    const float *logits, *decode;
    int32_t n, n_vocab;
    double atol;
} golden;

static golden load_golden(const char *name)
{
    char path[512];
    path_of(name, ".npz", path, sizeof path);
    golden g = {.z = npz_open(path)};
    assert_non_null(g.z);
    const npz_array *t = npz_need(g.z, "tokens", NPZ_I32), *l = npz_need(g.z, "logits", NPZ_F32);
    const npz_array *a = npz_get(g.z, "atol");
    g.tok = t->data;
    g.n = (int32_t)t->shape[0];
    g.logits = l->data;
    g.n_vocab = (int32_t)l->shape[1];
    g.decode = npz_need(g.z, "decode_logits", NPZ_F32)->data;
    assert_non_null(a);
    g.atol = a->dtype == NPZ_F32 ? (double)*(const float *)a->data : *(const double *)a->data;
    assert_true(g.atol > 0 && g.atol <= 5e-5);
    return g;
}

static void check_prefill(const model *m, const char *level, const golden *g, ob_type kv, int32_t chunk, double atol)
{
    char what[64];
    float *out = calloc((size_t)g->n * (size_t)g->n_vocab, sizeof *out);
    ob_ctx *c = open_model(m->name, kv, 0, chunk, true);
    ob_seq *s = new_seq(c);
    feed(c, s, g->tok, g->n, chunk, g->n_vocab, out);
    snprintf(what, sizeof what, "%s prefill by %d", kv == OB_F32 ? "f32" : "f16", chunk);
    double worst = 0, worst_ill = 0;
    int32_t n_over = 0;
    for (int32_t t = 0; t < g->n; t++) {
        const size_t at = (size_t)t * (size_t)g->n_vocab;
        const double d = max_diff(out + at, g->logits + at, g->n_vocab);
        double *w = t && (t == m->ill[0] || t == m->ill[1]) ? &worst_ill : &worst;
        if (kv == OB_F16 && d > atol && n_over++ < m->flips) continue;
        *w = fmax(*w, d);
    }
    want(m->name, level, what, worst, atol);
    if (m->ill[0]) want(m->name, level, "ill-conditioned", worst_ill, fmax(atol, ILL_ATOL));
    ob_ctx_seq_free(c, s);
    ob_ctx_free(c);
    free(out);
}

static void check_decode(const model *m, const char *level, const golden *g, ob_type kv, double atol)
{
    const int32_t before = g->n - 16;
    float *out = calloc((size_t)g->n * (size_t)g->n_vocab, sizeof *out);
    ob_ctx *c = open_model(m->name, kv, 0, 512, true);
    ob_seq *s = new_seq(c);
    feed(c, s, g->tok, before, before, g->n_vocab, out);
    feed(c, s, g->tok + before, 16, 1, g->n_vocab, out);
    want(m->name, level, kv == OB_F32 ? "f32 decode" : "f16 decode", max_diff(out, g->decode, 16 * (int64_t)g->n_vocab),
         atol);
    ob_ctx_seq_free(c, s);
    ob_ctx_free(c);
    free(out);
}

/* Sequence A's logits with B and C in the same steps, bit for bit those of A alone in equal steps. The
 * slots are used twice, so a state that is not cleared for a new sequence shows too. */
static void check_company(const model *m, const char *level, const golden *g, bool exact)
{
    enum { N = 40 };
    const size_t n_vocab = (size_t)g->n_vocab;
    float *alone = calloc(N * n_vocab, sizeof *alone), *among = calloc(N * n_vocab, sizeof *among);
    ob_ctx *c = open_model(m->name, OB_F32, 0, 64, exact);
    ob_err err;
    for (int round = 0; round < 2; round++) {
        ob_seq *other = round ? new_seq(c) : NULL, *a = new_seq(c), *third = round ? new_seq(c) : NULL;
        const int32_t sizes[] = {9, 1, 17, 1, 1, 11};
        float *out = round ? among : alone;
        int32_t at = 0, other_at = 0;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const float *logits;
            const int32_t n = sizes[i], o = 3 + (int32_t)i;
            const ob_chunk ch[3] = {{.seq = other, .tok = g->tok + 50 + other_at - (other_at > 0 ? 9 : 0), .n_tok = o, .n_out = 1},
                                    {.seq = a, .tok = g->tok + at, .n_tok = n, .n_out = n},
                                    {.seq = third, .tok = g->tok + other_at, .n_tok = 1, .n_out = 0}};
            const ob_status st = ob_ctx_step(c, round ? ch : ch + 1, round ? 3 : 1, &logits, &err);
            if (st != OB_OK) fail_msg("%s", err.text);
            memcpy(out + (size_t)at * n_vocab, logits + (round ? n_vocab : 0), (size_t)n * n_vocab * sizeof *out);
            at += n;
            other_at += o;
        }
        ob_ctx_seq_free(c, other);
        ob_ctx_seq_free(c, a);
        ob_ctx_seq_free(c, third);
    }
    if (memcmp(alone, among, N * n_vocab * sizeof *alone) != 0)
        fail_msg("%s at level %s: other logits in company, by %g", m->name, level,
                 max_diff(alone, among, (int64_t)(N * n_vocab)));
    ob_ctx_free(c);
    free(alone);
    free(among);
}

/* A second sequence with the same beginning starts from what is cached: whole pages, with recurrent states
 * too, and gives the same bits. */
static void check_reuse(const model *m, const char *level, const golden *g)
{
    const size_t n_vocab = (size_t)g->n_vocab;
    const int32_t n = g->n < 104 ? g->n : 104;
    float *one = calloc((size_t)n * n_vocab, sizeof *one), *two = calloc((size_t)n * n_vocab, sizeof *two);
    ob_ctx *c = open_model(m->name, OB_F32, 0, 64, true);
    ob_err err;
    ob_seq *s = new_seq(c);
    feed(c, s, g->tok, n, 64, g->n_vocab, one);
    ob_ctx_seq_keep(c, s);
    ob_ctx_seq_free(c, s);
    ob_seq *other = new_seq(c); /* takes the first one's slot */
    feed(c, other, g->tok + 20, 30, 30, g->n_vocab, two);
    s = new_seq(c);
    int32_t n_cached = 0;
    if (ob_ctx_seq_reuse(c, s, g->tok, n, &n_cached, &err) != OB_OK) fail_msg("%s", err.text);
    if (n_cached < 64 || n_cached >= n) fail_msg("%s: %d tokens reused", m->name, n_cached);
    feed(c, s, g->tok + n_cached, n - n_cached, 64, g->n_vocab, two + (size_t)n_cached * n_vocab);
    if (memcmp(one + (size_t)n_cached * n_vocab, two + (size_t)n_cached * n_vocab,
               (size_t)(n - n_cached) * n_vocab * sizeof *one) != 0)
        fail_msg("%s at level %s: other logits after reuse of %d tokens", m->name, level, n_cached);
    /* Nothing of a prompt that differs in its first page. */
    ob_seq *fresh = new_seq(c);
    assert_int_equal(ob_ctx_seq_reuse(c, fresh, g->tok + 1, n - 1, &n_cached, &err), OB_OK);
    assert_int_equal(n_cached, 0);
    ob_ctx_free(c);
    free(one);
    free(two);
}

static void test_model(void **state)
{
    const model *m = *state;
    golden g = load_golden(m->same ? m->same : m->name);
    for (size_t i = 0; i < sizeof k_levels / sizeof *k_levels; i++) {
        if (!use_level(k_levels[i])) continue;
        check_prefill(m, k_levels[i], &g, OB_F32, 33, g.atol);
        check_decode(m, k_levels[i], &g, OB_F32, g.atol);
        check_prefill(m, k_levels[i], &g, OB_F16, 33, F16_ATOL);
        if (!m->flips) check_decode(m, k_levels[i], &g, OB_F16, F16_ATOL);
        if (i < 2) continue; /* the slow levels */
        check_prefill(m, k_levels[i], &g, OB_F32, 512, g.atol);
        check_prefill(m, k_levels[i], &g, OB_F32, 7, g.atol);
        check_reuse(m, k_levels[i], &g);
        check_company(m, k_levels[i], &g, true);
        check_company(m, k_levels[i], &g, false);
    }
    npz_close(g.z);
}

/* A context no longer than the original one takes the short factors. */
static void test_longrope_short(void **state)
{
    (void)state;
    golden g = load_golden("minicpm-longrope");
    const npz_array *l = npz_need(g.z, "logits_short", NPZ_F32);
    const int32_t n = (int32_t)l->shape[0];
    float *out = calloc((size_t)n * (size_t)g.n_vocab, sizeof *out);
    use_level("auto");
    ob_ctx *c = open_model("minicpm-longrope", OB_F32, 64, 512, true);
    ob_seq *s = new_seq(c);
    feed(c, s, g.tok, n, n, g.n_vocab, out);
    want("minicpm-longrope", "auto", "short factors", max_diff(out, l->data, (int64_t)n * g.n_vocab), g.atol);
    ob_ctx_free(c);
    free(out);
    npz_close(g.z);
}

/* Quantised files: f32 activations against the same products in f32 (rms per position, because one
 * flipped expert moves a whole position), and 8-bit activations at the level that llama.cpp itself has
 * against them. */
typedef struct quantised {
    const char *npz, *file, *type;
    double exact_rms;  /* median over positions */
    double fast_rms;
} quantised;

static const quantised k_quantised[] = {
    {"llama-q", "llama-q-Q4_0", "Q4_0", 2e-5, 0.03},
    {"llama-q", "llama-q-Q8_0", "Q8_0", 2e-5, 0.03},
    {"llama-q", "llama-q-Q4_K_M", "Q4_K_M", 2e-5, 0.04},
    {"llama-q", "llama-q-Q6_K", "Q6_K", 2e-5, 0.04},
    {"qwen3moe-q", "qwen3moe-q-Q4_K_M", "Q4_K_M", 2e-5, 0.04},
    {"qwen3moe-q", "qwen3moe-q-MXFP4_MOE", "MXFP4_MOE", 2e-5, 0.04},
    {"qwen35moe-q", "qwen35moe-q-Q4_K_M", "Q4_K_M", 5e-5, 0.06},
};

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_rms(const float *a, const float *b, int32_t n, int32_t n_vocab)
{
    double *rms = calloc((size_t)n, sizeof *rms);
    for (int32_t t = 0; t < n; t++) {
        for (int32_t i = 0; i < n_vocab; i++) {
            const double d = (double)a[t * n_vocab + i] - (double)b[t * n_vocab + i];
            rms[t] += d * d / n_vocab;
        }
        rms[t] = sqrt(rms[t]);
    }
    qsort(rms, (size_t)n, sizeof *rms, by_value);
    const double m = rms[n / 2];
    free(rms);
    return m;
}

static void test_quantised(void **state)
{
    const quantised *q = *state;
    char path[512], key[64];
    path_of(q->npz, ".npz", path, sizeof path);
    npz *z = npz_open(path);
    assert_non_null(z);
    const npz_array *tok = npz_need(z, "tokens", NPZ_I32);
    snprintf(key, sizeof key, "exact_%s", q->type);
    const npz_array *exact = npz_need(z, key, NPZ_F32);
    const int32_t n = (int32_t)exact->shape[0], n_vocab = (int32_t)exact->shape[1];
    float *out = calloc((size_t)n * (size_t)n_vocab, sizeof *out);
    for (size_t i = 0; i < sizeof k_levels / sizeof *k_levels; i++) {
        if (!use_level(k_levels[i])) continue;
        for (int fast = 0; fast < 2; fast++) {
            ob_ctx *c = open_model(q->file, OB_F32, 0, 512, !fast);
            ob_seq *s = new_seq(c);
            feed(c, s, tok->data, n, 33, n_vocab, out);
            want(q->file, k_levels[i], fast ? "8-bit median rms" : "exact median rms",
                 median_rms(out, exact->data, n, n_vocab), fast ? q->fast_rms : q->exact_rms);
            ob_ctx_free(c);
        }
    }
    free(out);
    npz_close(z);
}

int main(void)
{
    struct CMUnitTest tests[64];
    size_t n = 0;
    for (size_t i = 0; i < sizeof k_models / sizeof *k_models; i++)
        tests[n++] = (struct CMUnitTest){.name = k_models[i].name, .test_func = test_model,
                                         .initial_state = (void *)&k_models[i]};
    for (size_t i = 0; i < sizeof k_quantised / sizeof *k_quantised; i++)
        tests[n++] = (struct CMUnitTest){.name = k_quantised[i].file, .test_func = test_quantised,
                                         .initial_state = (void *)&k_quantised[i]};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_longrope_short);
    if (getenv("OB_GOLDEN")) cmocka_set_test_filter(getenv("OB_GOLDEN"));
    return _cmocka_run_group_tests("golden", tests, n, NULL, NULL);
}
