/* Whole models on a device against their reference logits: devgolden DEVICE
 *
 * The decoder families of tests/data/golden that the device has all ops for; the others are named.
 * Exact mode with f32 caches within each file's own tolerance, for steps of many sizes, because a
 * device may have a kernel for each; quantised files also in the device's usual mode; and greedy
 * text as the CPU device gives it, but where two tokens are within TIE of each other. Exit 77: no
 * such device. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "engine/ctx.h"
#include "npz.h"
#include "test.h"

#define TIE 0.02
/* f16 keys and values; see test_golden.c. */
#define F16_ATOL 3e-3

static const char *g_spec;

static void path_of(const char *name, const char *suffix, char *out, size_t cap)
{
    snprintf(out, cap, "%s/golden/%s%s", OB_TEST_DATA, name, suffix);
}

/* NULL when the device has no kernel for an op of the model. */
static ob_ctx *open_model(const char *spec, const char *name, ob_type kv, int32_t n_ubatch,
                          bool exact)
{
    char path[512];
    path_of(name, ".gguf", path, sizeof path);
    ob_engine_params p;
    ob_engine_defaults(&p);
    p.model_path = path;
    p.device = spec;
    p.n_ctx = 384;
    p.n_seq = 3;
    p.n_ubatch = n_ubatch;
    p.n_threads = 2;
    p.k_type = p.v_type = kv;
    p.exact = exact;
    ob_ctx *c = NULL;
    ob_err err;
    const ob_status s = ob_ctx_new(&p, &c, &err);
    if (s == OB_E_UNSUPPORTED)
        print_message("%s: skipped, %s\n", name, err.text);
    else if (s != OB_OK)
        fail_msg("%s: %s", name, err.text);
    return c;
}

static ob_seq *new_seq(ob_ctx *c)
{
    ob_seq *s;
    ob_err err;
    if (ob_ctx_seq_new(c, &s, &err) != OB_OK) fail_msg("%s", err.text);
    return s;
}

/* Feed tok[0..n) in chunks; logits of all of them to out [n][n_vocab]. */
static void feed(ob_ctx *c, ob_seq *s, const int32_t *tok, int32_t n, int32_t chunk,
                 int32_t n_vocab, float *out)
{
    ob_err err;
    for (int32_t at = 0; at < n;) {
        const int32_t m = n - at < chunk ? n - at : chunk;
        const float *logits;
        const ob_chunk ch = {.seq = s, .tok = tok + at, .n_tok = m, .n_out = m};
        if (ob_ctx_step(c, &ch, 1, &logits, &err) != OB_OK) fail_msg("%s", err.text);
        memcpy(out + (size_t)at * (size_t)n_vocab, logits,
               (size_t)m * (size_t)n_vocab * sizeof *out);
        at += m;
    }
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
    return g;
}

static void want(const char *name, const char *what, double diff, double atol)
{
    print_message("  %-18s %-20s off by %.2e, allowed %.0e\n", name, what, diff, atol);
    if (!(diff <= atol)) fail_msg("%s, %s: off by %g, allowed %g", name, what, diff, atol);
}

/* --- exact ------------------------------------------------------------------------------------ */

/* Some positions of qwen35moe are ill-conditioned, and rounding the cache to f16 lets the indexer of deepseek4 choose
 * other entries: see test_golden.c, where these numbers come from. Position 38 shares its cause with 39: ops/ref.c,
 * with sums in f64, is 4.0e-5 from the file there. */
#define ILL_ATOL 1.5e-4

typedef struct model {
    const char *name, *same; /* same: name of the .npz if another */
    int32_t ill[3], flips;
} model;

static const model k_models[] = {
    {.name = "llama"},
    {.name = "llama3rope"},
    {.name = "qwen2"},
    {.name = "qwen3"},
    {.name = "qwen3moe"},
    {.name = "minicpm"},
    {.name = "gemma3"},
    {.name = "minicpm-longrope"},
    {.name = "glm47flash"},
    {.name = "deepseek3"},
    {.name = "qwen35"},
    {.name = "qwen35moe", .ill = {12, 38, 39}},
    {.name = "zaya"},
    {.name = "zaya-taps-first", .same = "zaya"},
    {.name = "deepseek4", .flips = 150},
};

static void check_chunks(const model *m, const golden *g, ob_type kv, int32_t chunk, double atol)
{
    char what[64];
    ob_ctx *c = open_model(g_spec, m->name, kv, 128, true);
    double worst = 0, worst_ill = 0;
    int32_t n_over = 0;
    float *out = calloc((size_t)g->n * (size_t)g->n_vocab, sizeof *out);
    ob_seq *s = new_seq(c);
    feed(c, s, g->tok, g->n, chunk, g->n_vocab, out);
    snprintf(what, sizeof what, "%s, by %d", kv == OB_F32 ? "f32" : "f16", chunk);
    for (int32_t t = 0; t < g->n; t++) {
        const size_t at = (size_t)t * (size_t)g->n_vocab;
        const double d = max_diff(out + at, g->logits + at, g->n_vocab);
        double *w = t && (t == m->ill[0] || t == m->ill[1] || t == m->ill[2]) ? &worst_ill : &worst;
        if (kv == OB_F16 && d > atol && n_over++ < m->flips) continue;
        *w = fmax(*w, d);
    }
    want(m->name, what, worst, atol);
    if (m->ill[0]) want(m->name, "ill-conditioned", worst_ill, fmax(atol, ILL_ATOL));
    ob_ctx_free(c);
    free(out);
}

static void check_decode(const char *name, const golden *g)
{
    const int32_t before = g->n - 16;
    ob_ctx *c = open_model(g_spec, name, OB_F32, 128, true);
    float *out = calloc((size_t)g->n * (size_t)g->n_vocab, sizeof *out);
    ob_seq *s = new_seq(c);
    feed(c, s, g->tok, before, before < 128 ? before : 128, g->n_vocab, out);
    feed(c, s, g->tok + before, 16, 1, g->n_vocab, out);
    want(name, "f32 decode", max_diff(out, g->decode, 16 * (int64_t)g->n_vocab), g->atol);
    ob_ctx_free(c);
    free(out);
}

static void test_model(void **state)
{
    const model *m = *state;
    ob_ctx *c = open_model(g_spec, m->name, OB_F32, 64, true);
    if (!c) {
        skip();
        return;
    }
    ob_ctx_free(c);
    golden g = load_golden(m->same ? m->same : m->name);
    /* An interpreter is slow: with the decode below, one size for each kind of plan. */
    static const int32_t chunks[] = {128, 7, 33, 2};
    for (size_t i = 0; i < (strstr(g_spec, "hrx-soft") ? 2 : sizeof chunks / sizeof *chunks); i++)
        check_chunks(m, &g, OB_F32, chunks[i], g.atol);
    check_decode(m->name, &g);
    check_chunks(m, &g, OB_F16, 33, F16_ATOL);
    npz_close(g.z);
}

/* --- states ----------------------------------------------------------------------------------- */

/* A second sequence begins with the first one's cache and the checkpoint of its states after a page, while a third
 * one decodes beside it. */
static void test_reuse(void **state)
{
    enum { PAGE = 64 };
    const char *name = *state;
    golden g = load_golden(name);
    ob_ctx *c = open_model(g_spec, name, OB_F32, 128, true);
    if (!c) {
        npz_close(g.z);
        skip();
        return;
    }
    ob_err err;
    int32_t n_cached;
    float *out = calloc((size_t)g.n * (size_t)g.n_vocab, sizeof *out);
    ob_seq *first = new_seq(c), *second, *third;
    feed(c, first, g.tok, PAGE, PAGE, g.n_vocab, out);
    feed(c, first, g.tok + PAGE, 9, 9, g.n_vocab, out);
    ob_ctx_seq_keep(c, first);
    ob_ctx_seq_free(c, first);
    second = new_seq(c);
    assert_int_equal(ob_ctx_seq_reuse(c, second, g.tok, g.n, &n_cached, &err), OB_OK);
    assert_int_equal(n_cached, PAGE);
    third = new_seq(c);
    feed(c, third, g.tok, 3, 3, g.n_vocab, out);
    for (int32_t at = PAGE; at < PAGE + 32; at += 8) {
        const float *logits;
        const ob_chunk both[2] = {{.seq = third, .tok = g.tok + 3 + (at - PAGE) / 8, .n_tok = 1, .n_out = 1},
                                  {.seq = second, .tok = g.tok + at, .n_tok = 8, .n_out = 8}};
        if (ob_ctx_step(c, both, 2, &logits, &err) != OB_OK) fail_msg("%s", err.text);
        const int32_t n = g.n_vocab;
        want(name, "beside another", max_diff(logits, g.logits + (3 + (at - PAGE) / 8) * n, n), g.atol);
        want(name, "from a checkpoint", max_diff(logits + n, g.logits + (int64_t)at * n, 8 * (int64_t)n), g.atol);
    }
    ob_ctx_free(c);
    free(out);
    npz_close(g.z);
}

/* --- quantised -------------------------------------------------------------------------------- */

typedef struct quantised {
    const char *npz, *file, *type;
    double exact_rms, usual_rms; /* medians over positions, as in test_golden.c */
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
        rms[t] = isfinite(rms[t]) ? sqrt(rms[t]) : INFINITY;
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
    const npz_array *t = npz_need(z, "tokens", NPZ_I32);
    snprintf(key, sizeof key, "exact_%s", q->type);
    const npz_array *l = npz_need(z, key, NPZ_F32);
    const int32_t n = (int32_t)l->shape[0], n_vocab = (int32_t)l->shape[1];
    float *out = calloc((size_t)n * (size_t)n_vocab, sizeof *out);
    static const int32_t chunks[] = {128, 4, 1};
    for (int exact = 1; exact >= 0; exact--) {
        ob_ctx *c = open_model(g_spec, q->file, exact ? OB_F32 : OB_F16, 128, exact);
        assert_non_null(c);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            char what[64];
            ob_seq *s = new_seq(c);
            feed(c, s, t->data, n, chunks[i], n_vocab, out);
            ob_ctx_seq_free(c, s);
            snprintf(what, sizeof what, "%s, by %d", exact ? "exact" : "usual", chunks[i]);
            want(q->file, what, median_rms(out, l->data, n, n_vocab),
                 exact ? q->exact_rms : q->usual_rms);
        }
        ob_ctx_free(c);
    }
    free(out);
    npz_close(z);
}

/* --- greedy text ------------------------------------------------------------------------------ */

/* Continue a prompt with the best token each time; the device follows the CPU's choice, so that
 * after a tie both still see the same text. */
static void test_greedy(void **state)
{
    enum { N = 48 };
    const char *name = *state;
    golden g = load_golden("llama");
    ob_ctx *c[2] = {open_model("cpu", name, OB_F32, 64, true),
                    open_model(g_spec, name, OB_F32, 64, true)};
    ob_seq *s[2] = {new_seq(c[0]), new_seq(c[1])};
    ob_err err;
    int32_t tok = 0, n_same = 0;
    for (int32_t i = 0; i < N; i++) {
        int32_t best[2] = {0, 0};
        float first[2];
        const float *logits[2];
        for (int k = 0; k < 2; k++) {
            const ob_chunk ch = {
                .seq = s[k], .tok = i ? &tok : g.tok, .n_tok = i ? 1 : 20, .n_out = 1};
            if (ob_ctx_step(c[k], &ch, 1, &logits[k], &err) != OB_OK) fail_msg("%s", err.text);
            for (int32_t v = 1; v < g.n_vocab; v++)
                if (logits[k][v] > logits[k][best[k]]) best[k] = v;
            first[k] = logits[k][best[k]];
        }
        if (best[0] != best[1] && first[0] - logits[0][best[1]] > TIE)
            fail_msg("token %d: %d on the CPU (%g), %d here (%g there)", i, best[0],
                     (double)first[0], best[1], (double)logits[0][best[1]]);
        n_same += best[0] == best[1];
        tok = best[0];
    }
    print_message("  %d of %d tokens the same\n", n_same, N);
    ob_ctx_free(c[0]);
    ob_ctx_free(c[1]);
    npz_close(g.z);
}

/* --- sampling --------------------------------------------------------------------------------- */

typedef struct text {
    int32_t n;
    int32_t id[64];
    float logprob[64];
    atomic_bool done;
} text;

static void on_event(void *arg, const ob_event *ev)
{
    text *t = arg;
    if (ev->id >= 0 && t->n < 64) {
        t->id[t->n] = ev->id;
        t->logprob[t->n++] = ev->chosen.logprob;
    }
    if (ev->done) {
        assert_int_not_equal(ev->finish, OB_FINISH_ERROR);
        atomic_store(&t->done, true);
    }
}

static void generate(ob_engine *e, const ob_sampler_params *p, int32_t n_top, bool ignore_eos, text *out)
{
    ob_request_params r;
    ob_request *request;
    ob_err err;
    golden g = load_golden("llama");
    ob_request_defaults(&r);
    r.prompt = g.tok;
    r.n_prompt = 20;
    r.max_tokens = 40;
    r.sampler = *p;
    r.n_top_logprobs = n_top;
    r.ignore_eos = ignore_eos;
    r.on_event = on_event;
    r.arg = out;
    *out = (text){.n = 0};
    if (ob_engine_submit(e, &r, &request, &err) != OB_OK) fail_msg("%s", err.text);
    while (!atomic_load(&out->done)) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ob_request_free(request);
    npz_close(g.z);
}

/* The device finds the best logits, or gives whole rows: the same text, and log-probabilities but for rounding. */
static void test_sampling(void **state)
{
    (void)state;
    static const struct { float temperature, repeat; int32_t top_k, n_top; bool ignore_eos; } c[] = {
        {0, 1, 0, -1, false}, {0, 1, 0, 5, true}, {1, 1, 40, -1, true}, {1.5f, 1, 64, 0, false},
        {1, 1, 0, -1, true},  {1, 1.2f, 40, 2, true},
    };
    enum { N = sizeof c / sizeof *c };
    static text got[2][N];
    for (int k = 0; k < 2; k++) {
        char path[512];
        ob_engine *e;
        ob_err err;
        ob_engine_params p;
        ob_engine_defaults(&p);
        path_of("llama", ".gguf", path, sizeof path);
        p.model_path = path;
        p.device = g_spec;
        p.n_ctx = 256;
        p.n_seq = 2;
        if (k) setenv("OB_VK_DISABLE", "sample", 1);
        if (ob_engine_new(&p, &e, &err) != OB_OK) fail_msg("%s", err.text);
        if (k) unsetenv("OB_VK_DISABLE");
        for (int i = 0; i < N; i++) {
            ob_sampler_params s;
            ob_sampler_defaults(&s);
            s.temperature = c[i].temperature, s.repeat_penalty = c[i].repeat, s.top_k = c[i].top_k;
            s.has_seed = true, s.seed = 11 + (uint64_t)i;
            generate(e, &s, c[i].n_top, c[i].ignore_eos, &got[k][i]);
        }
        ob_engine_free(e);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(got[0][i].n, got[1][i].n);
        for (int32_t t = 0; t < got[0][i].n; t++) {
            if (got[0][i].id[t] != got[1][i].id[t]) fail_msg("case %d, token %d: %d, %d", i, t, got[0][i].id[t], got[1][i].id[t]);
            assert_float_equal(got[0][i].logprob[t], got[1][i].logprob[t], 1e-5);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: devgolden DEVICE [test name pattern]\n");
        return 2;
    }
    g_spec = argv[1];
    ob_dev *d;
    ob_err err;
    if (ob_dev_open(g_spec, NULL, &d, &err) != OB_OK) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    ob_dev_close(d);
    static const char *const with_states[] = {"qwen35", "zaya", "deepseek4"};
    enum { M = sizeof k_models / sizeof *k_models, Q = sizeof k_quantised / sizeof *k_quantised,
           S = sizeof with_states / sizeof *with_states };
    struct CMUnitTest tests[M + Q + S + 2];
    for (int i = 0; i < M; i++)
        tests[i] = (struct CMUnitTest){.name = k_models[i].name,
                                       .test_func = test_model,
                                       .initial_state = (void *)(uintptr_t)&k_models[i]};
    for (int i = 0; i < Q; i++)
        tests[M + i] = (struct CMUnitTest){.name = k_quantised[i].file,
                                           .test_func = test_quantised,
                                           .initial_state = (void *)(uintptr_t)&k_quantised[i]};
    tests[M + Q] = (struct CMUnitTest){.name = "greedy text",
                                       .test_func = test_greedy,
                                       .initial_state = (void *)(uintptr_t)"llama"};
    tests[M + Q + 1] = (struct CMUnitTest){.name = "sampling", .test_func = test_sampling};
    static char names[S][64];
    for (int i = 0; i < S; i++) {
        snprintf(names[i], sizeof names[i], "states of %s", with_states[i]);
        tests[M + Q + 2 + i] = (struct CMUnitTest){.name = names[i],
                                                   .test_func = test_reuse,
                                                   .initial_state = (void *)(uintptr_t)with_states[i]};
    }
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    return _cmocka_run_group_tests("devgolden", tests, M + Q + S + 2, NULL, NULL);
}
