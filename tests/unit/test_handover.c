/* Unit tests of engine/handover: a prompt computed on one device goes on on another as if it had been computed
 * there; what fails on the way costs time and nothing else. With Vulkan's software driver where there is one. */
#include "reply.h"
#include "test.h"

#include "has_driver.h"

#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "engine/handover.h"

#define GOLDEN OB_TEST_DATA "/golden/"

enum { N_TOK = 300, N_SINGLE = 6 };

static void fill(int32_t *tok, int n, unsigned seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1103515245u + 12345u;
        tok[i] = 3 + (int32_t)((seed >> 16) % 200);
    }
}

static char g_path[512];
static ob_engine_params params(const char *file, const char *device, const char *prefill, ob_type cache)
{
    ob_engine_params p;
    snprintf(g_path, sizeof g_path, GOLDEN "%s.gguf", file);
    ob_engine_defaults(&p);
    p.model_path = g_path;
    p.device = device;
    p.prefill_device = prefill;
    p.prefill_min_tokens = 64;
    p.n_seq = 2;
    p.n_ctx = 512;
    p.n_ubatch = 128;
    p.n_threads = 2;
    p.fallback = true;
    p.exact = true; /* activations of 8 bits would differ between kinds of devices */
    p.k_type = p.v_type = cache;
    return p;
}

/* ------------------------------------------------------------------ contexts */

typedef struct pair {
    ob_ctx *c;
    ob_handover *h; /* NULL: one device */
    size_t n_vocab;
} pair;

static pair open_pair(const char *file, const char *device, const char *prefill, ob_type cache)
{
    pair x = {0};
    ob_err err = {0};
    const ob_engine_params p = params(file, device, prefill, cache);
    if (ob_ctx_new(&p, &x.c, &err) != OB_OK) fail_msg("%s on %s: %s", file, device, err.text);
    if (prefill && ob_handover_new(&p, x.c, NULL, NULL, &x.h, &err) != OB_OK) fail_msg("%s: %s", file, err.text);
    x.n_vocab = (size_t)ob_ctx_n_cols(x.c);
    return x;
}

static void close_pair(pair *x)
{
    ob_handover_free(x->h);
    ob_ctx_free(x->c);
}

static void feed(pair *x, ob_seq *s, const int32_t *tok, int32_t end, float *row)
{
    ob_err err = {0};
    const float *rows;
    while (ob_seq_len(s) < end) {
        const int32_t at = ob_seq_len(s), left = end - at, n = ob_ctx_chunk_size(x->c, s, NULL, 0, left < 128 ? left : 128, 128);
        const ob_chunk ch = {.seq = s, .tok = tok + at, .n_tok = n, .n_out = at + n == end, .prompt = true};
        if (ob_ctx_step(x->c, &ch, 1, &rows, &err) != OB_OK) fail_msg("%s", err.text);
    }
    memcpy(row, rows, x->n_vocab * sizeof *row);
}

/* Logits after a prompt of n tokens and of N_SINGLE single ones behind it: [N_SINGLE + 1] rows. */
static float *logits_of(pair *x, const int32_t *tok, int32_t n, ob_handover_report *report)
{
    ob_seq *s;
    ob_err err = {0};
    int32_t n_cached = 0;
    float *out = calloc((N_SINGLE + 1) * x->n_vocab, sizeof *out);
    assert_int_equal(ob_ctx_seq_new(x->c, &s, &err), OB_OK);
    assert_int_equal(ob_ctx_seq_reuse(x->c, s, tok, n, &n_cached, &err), OB_OK);
    if (x->h && ob_handover_run(x->h, x->c, s, tok, n, true, report, &err) != OB_OK) fail_msg("%s", err.text);
    for (int i = 0; i <= N_SINGLE; i++) feed(x, s, tok, n + i, out + (size_t)i * x->n_vocab);
    ob_ctx_seq_keep(x->c, s);
    ob_ctx_seq_free(x->c, s);
    return out;
}

static double mean_kl(const float *p, const float *q, size_t n_rows, size_t n)
{
    double kl = 0;
    for (size_t r = 0; r < n_rows; r++, p += n, q += n) {
        double sp = 0, sq = 0;
        for (size_t i = 0; i < n; i++) sp += exp((double)p[i]), sq += exp((double)q[i]);
        for (size_t i = 0; i < n; i++) {
            const double lp = (double)p[i] - log(sp), lq = (double)q[i] - log(sq);
            kl += exp(lp) * (lp - lq);
        }
    }
    return kl / (double)n_rows;
}

static double max_diff(const float *a, const float *b, size_t n)
{
    double d = 0;
    for (size_t i = 0; i < n; i++) {
        const double x = fabs((double)a[i] - (double)b[i]);
        if (!(x <= d)) d = x;
    }
    return d;
}

/* The golden models' logits are close together, so beside the bound on the divergence that users see there is one on
 * the logits themselves. atol 0: equal to the bit. */
static void compare(const char *file, const char *device, const char *prefill, ob_type cache, double atol)
{
    int32_t tok[N_TOK + N_SINGLE + 1];
    ob_handover_report r = {0}, none;
    fill(tok, N_TOK + N_SINGLE + 1, 21);
    pair one = open_pair(file, device, NULL, cache), two = open_pair(file, device, prefill, cache);
    float *want = logits_of(&one, tok, N_TOK, &none), *got = logits_of(&two, tok, N_TOK, &r);
    assert_int_equal(r.n_handed, 256);
    assert_int_equal(r.n_computed, 256);
    const double kl = mean_kl(want, got, N_SINGLE + 1, one.n_vocab);
    const double off = max_diff(want, got, (N_SINGLE + 1) * one.n_vocab);
    print_message("  %-12s %s -> %s, %s caches: KL %.1e, off by %.1e\n", file, prefill, device, ob_type_get(cache)->name, kl, off);
    if (!(off <= atol) || !(kl <= 6e-4)) fail_msg("%s: KL %g, off by %g", file, kl, off);
    free(want);
    free(got);
    close_pair(&one);
    close_pair(&two);
}

/* The same kernels on the same numbers, whatever kind of cache or state they are in: pages of attention, of MLA, of
 * compressed entries; states of GDN, convolutions and compressors. */
static void test_two_cpus_are_one(void **state)
{
    (void)state;
    static const char *const files[] = {"llama", "qwen2", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "minicpm", "gemma3",
                                        "deepseek3", "glm47flash", "deepseek4", "zaya"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) compare(files[i], "cpu", "cpu", OB_F32, 0);
    compare("llama", "cpu", "cpu", OB_F16, 0);
    compare("llama", "cpu", "cpu,cpu:0", OB_F16, 0); /* layers on two devices, handed over to one */
}

/* f32 all the way but for sums in another order; f16 caches as they are used. */
static void test_gpu_and_cpu(void **state)
{
    (void)state;
    if (!has_driver()) skip();
    static const char *const files[] = {"llama", "qwen35moe", "deepseek3", "deepseek4", "zaya"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        compare(files[i], "cpu", "lavapipe", OB_F32, 2e-4);
        compare(files[i], "lavapipe", "cpu", OB_F32, 2e-4);
    }
    compare("llama", "cpu", "lavapipe", OB_F16, 3e-3);
    compare("llama", "lavapipe", "cpu", OB_F16, 3e-3);
}

/* Pages of an f16 cache (or f32) in one of another type: as if they had been written there. `harm` changes the bytes of
 * one page on the way. How far the logits are off. */
static double converted(ob_type from, ob_type to, bool harm)
{
    enum { PAGES = 4 };
    int32_t tok[N_TOK + N_SINGLE + 1];
    ob_seq_layout layout;
    ob_seq *s, *d;
    ob_err err = {0};
    fill(tok, N_TOK + N_SINGLE + 1, 21);
    pair a = open_pair("qwen3", "cpu", NULL, from), b = open_pair("qwen3", "cpu", NULL, to), one = open_pair("qwen3", "cpu", NULL, to);
    ob_ctx_seq_layout(a.c, &layout);
    char *bytes = malloc(PAGES * layout.kv.page_bytes);
    float *row = calloc(a.n_vocab, sizeof *row), *want = logits_of(&one, tok, N_TOK, NULL);
    assert_int_equal(ob_ctx_seq_new(a.c, &s, &err), OB_OK);
    assert_int_equal(ob_ctx_seq_new(b.c, &d, &err), OB_OK);
    feed(&a, s, tok, 260, row);
    assert_int_equal(ob_ctx_pages_export(a.c, s, 0, PAGES, bytes, &err), OB_OK);
    assert_int_equal(ob_ctx_pages_export(a.c, s, 2, PAGES, bytes, &err), OB_E_INVALID); /* it has five */
    if (harm)
        for (uint64_t i = 0; i < layout.kv.page_bytes; i++) bytes[i] = 0x3b;
    if (ob_ctx_pages_import(b.c, d, 0, PAGES, &layout.kv, bytes, &err) != OB_OK) fail_msg("%s", err.text);
    assert_int_equal(ob_ctx_pages_import(b.c, d, PAGES + 1, 1, &layout.kv, bytes, &err), OB_E_INVALID); /* a gap */
    layout.kv.shape++;
    assert_int_equal(ob_ctx_pages_import(b.c, d, 0, PAGES, &layout.kv, bytes, &err), OB_E_UNSUPPORTED);
    ob_ctx_seq_adopt(b.c, d, tok, PAGES * 64);
    feed(&b, d, tok, N_TOK, row);
    const double off = max_diff(want, row, a.n_vocab);
    print_message("  %s -> %s%s: off by %.1e\n", ob_type_get(from)->name, ob_type_get(to)->name, harm ? ", harmed" : "", off);
    ob_ctx_seq_free(a.c, s);
    ob_ctx_seq_free(b.c, d);
    free(bytes);
    free(row);
    free(want);
    close_pair(&a);
    close_pair(&b);
    close_pair(&one);
    return off;
}

/* Also what tells that the bounds above would notice a wrong page. */
static void test_other_cache_types(void **state)
{
    (void)state;
    const ob_type types[] = {OB_F32, OB_F16, OB_Q8_0};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) assert_true(converted(types[i], types[k], false) <= 2e-2);
    assert_true(converted(OB_F32, OB_F32, false) == 0);
    assert_true(converted(OB_F16, OB_F16, true) > 5e-2);
    assert_true(converted(OB_F32, OB_F16, true) > 5e-2);
}

/* A second prompt that goes on behind the first one's answer: neither device computes again what either has. */
static void prefix(const char *file)
{
    enum { FIRST = 200, SECOND = 420 };
    int32_t tok[SECOND + N_SINGLE + 1];
    ob_handover_report r = {0};
    fill(tok, SECOND + N_SINGLE + 1, 4);
    pair one = open_pair(file, "cpu", NULL, OB_F32), two = open_pair(file, "cpu", "cpu", OB_F32);
    free(logits_of(&two, tok, FIRST, &r));
    assert_int_equal(r.n_handed, 192);
    assert_int_equal(r.n_sent, 0);
    ob_seq *s;
    ob_err err = {0};
    int32_t n_cached;
    float row[4096]; /* 100 tokens that only the decoding device has */
    assert_true(two.n_vocab <= 4096);
    assert_int_equal(ob_ctx_seq_new(two.c, &s, &err), OB_OK);
    assert_int_equal(ob_ctx_seq_reuse(two.c, s, tok, 320, &n_cached, &err), OB_OK);
    assert_true(n_cached >= 192);
    feed(&two, s, tok, 320, row);
    ob_ctx_seq_keep(two.c, s);
    ob_ctx_seq_free(two.c, s);
    float *want = logits_of(&one, tok, SECOND, &r), *got = logits_of(&two, tok, SECOND, &r);
    assert_int_equal(r.n_handed, 384 - 320);
    assert_int_equal(r.n_computed, 384 - 320);
    assert_int_equal(r.n_sent, 320 - 192);
    assert_memory_equal(got, want, (N_SINGLE + 1) * one.n_vocab * sizeof(float));
    free(want);
    free(got);
    close_pair(&one);
    close_pair(&two);
}

static void test_prefixes_are_not_computed_again(void **state)
{
    (void)state;
    prefix("llama");
    prefix("qwen35"); /* states: from the checkpoint at the last page bound */
}

static void test_short_prompts_stay(void **state)
{
    (void)state;
    int32_t tok[N_TOK];
    ob_handover_report r = {.n_handed = 7};
    fill(tok, N_TOK, 3);
    pair x = open_pair("llama", "cpu", "cpu", OB_F32);
    free(logits_of(&x, tok, 63, &r));
    assert_int_equal(r.n_handed, 0);
    free(logits_of(&x, tok + 5, 64, &r)); /* one token is left to compute: no whole page */
    assert_int_equal(r.n_handed, 0);
    free(logits_of(&x, tok + 9, 65, &r));
    assert_int_equal(r.n_handed, 64);
    close_pair(&x);
}

static void test_layouts(void **state)
{
    (void)state;
    ob_seq_layout a, b, c;
    ob_err err = {0};
    pair llama = open_pair("llama", "cpu", NULL, OB_F32), half = open_pair("llama", "cpu", NULL, OB_F16),
         other = open_pair("qwen35", "cpu", NULL, OB_F32);
    ob_ctx_seq_layout(llama.c, &a);
    ob_ctx_seq_layout(half.c, &b);
    ob_ctx_seq_layout(other.c, &c);
    assert_true(a.kv.hash != b.kv.hash && a.kv.shape == b.kv.shape && a.kv.page_bytes == 2 * b.kv.page_bytes);
    assert_int_equal(a.state_bytes, 0);
    assert_true(c.state_bytes > 0 && c.kv.shape != a.kv.shape);
    assert_int_equal(ob_ctx_seq_check_layout(llama.c, &b, &err), OB_OK);
    assert_int_equal(ob_ctx_seq_check_layout(llama.c, &c, &err), OB_E_UNSUPPORTED);
    c.kv = a.kv;
    assert_int_equal(ob_ctx_seq_check_layout(llama.c, &c, &err), OB_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "states"));
    close_pair(&llama);
    close_pair(&half);
    close_pair(&other);
}

/* ------------------------------------------------------------------ engines */

static reply *start(ob_engine *e, const int32_t *prompt, size_t n)
{
    ob_request_params p;
    ob_request_defaults(&p);
    p.prompt = prompt;
    p.n_prompt = n;
    p.max_tokens = 24;
    p.ignore_eos = true;
    p.sampler.temperature = 0;
    return reply_new(e, &p);
}

static ob_engine *make(const char *file, const char *device, const char *prefill)
{
    ob_engine *e;
    ob_err err = {0};
    ob_engine_params p = params(file, device, prefill, OB_F32);
    p.n_seq = 3;
    if (ob_engine_new(&p, &e, &err) != OB_OK) fail_msg("%s", err.text);
    return e;
}

static int g_warnings;
static void count_warnings(void *arg, ob_log_level level, const char *line)
{
    (void)arg;
    if (level <= OB_LOG_WARN) g_warnings++, print_message("  %s\n", line);
}

/* Long and short prompts, more than there are slots: each gives what it gives without a prefill device. */
static void together(const char *file)
{
    enum { N = 8 };
    static int32_t prompt[N][460];
    const int len[N] = {450, 20, 321, 65, 64, 200, 450, 129};
    reply *alone[N], *with[N];
    ob_engine *one = make(file, "cpu", NULL), *two = make(file, "cpu", "cpu");
    ob_engine_stats st;
    ob_engine_info info;
    ob_engine_describe(two, &info);
    assert_string_equal(info.prefill_device, "cpu");
    for (int i = 0; i < N; i++) {
        fill(prompt[i], 460, i == 6 ? 1u : (unsigned)i + 1); /* the last long one has the first one's tokens */
        alone[i] = start(one, prompt[i], (size_t)len[i]);
        reply_wait(alone[i]);
        assert_int_equal(alone[i]->timings.n_handed, 0);
    }
    for (int i = 0; i < N; i++) with[i] = start(two, prompt[i], (size_t)len[i]);
    for (int i = 0; i < N; i++) {
        reply_wait(with[i]);
        assert_int_equal(with[i]->finish, OB_FINISH_LENGTH);
        assert_memory_equal(with[i]->ids, alone[i]->ids, 24 * sizeof(int32_t));
        if (len[i] > 64 && i != 6) assert_int_equal(with[i]->timings.n_handed, (len[i] - 1) / 64 * 64);
        if (len[i] <= 64) assert_int_equal(with[i]->timings.n_handed, 0);
        if (with[i]->timings.n_handed) assert_true(with[i]->timings.handover_ms > 0);
    }
    ob_engine_get_stats(two, &st);
    assert_true(st.n_handovers >= 5 && st.n_handover_failed == 0 && st.n_running == 0);
    assert_int_equal(st.kv_tok_used, 0);
    for (int i = 0; i < N; i++) {
        reply_drop(with[i]);
        reply_drop(alone[i]);
    }
    ob_engine_free(one);
    ob_engine_free(two);
}

static void test_requests_together(void **state)
{
    (void)state;
    together("llama");
    together("qwen35moe");
}

static void test_cancel_on_the_way(void **state)
{
    (void)state;
    static int32_t prompt[500];
    fill(prompt, 500, 8);
    ob_engine *e = make("llama", "cpu", "cpu");
    reply *r[6];
    for (int i = 0; i < 6; i++) r[i] = start(e, prompt + i, 480);
    for (int i = 0; i < 6; i++) ob_request_cancel(r[i]->req);
    for (int i = 0; i < 6; i++) {
        reply_wait(r[i]);
        reply_drop(r[i]);
    }
    reply *last = start(e, prompt, 300); /* it still works */
    reply_wait(last);
    assert_int_equal(last->finish, OB_FINISH_LENGTH);
    reply_drop(last);
    reply *left = start(e, prompt, 490); /* freed with the engine */
    ob_request_free(left->req);
    ob_engine_free(e);
    free(left);
}

/* The prefill device fails in its second chunk: the text is that of the decoding device alone, and it is said once. */
static void fails(const char *variable)
{
    static int32_t prompt[2][400];
    ob_engine_stats st;
    for (int i = 0; i < 2; i++) fill(prompt[i], 400, (unsigned)i + 31);
    ob_engine *one = make("qwen35", "cpu", NULL);
    setenv(variable, "2", 1);
    ob_engine *two = make("qwen35", "cpu", "lavapipe");
    g_warnings = 0;
    ob_log_set_sink(count_warnings, NULL);
    for (int i = 0; i < 2; i++) {
        reply *want = start(one, prompt[i], 390), *got = start(two, prompt[i], 390);
        reply_wait(want);
        reply_wait(got);
        assert_int_equal(got->finish, OB_FINISH_LENGTH);
        assert_int_equal(got->timings.n_handed, 0);
        assert_memory_equal(got->ids, want->ids, 24 * sizeof(int32_t));
        reply_drop(want);
        reply_drop(got);
    }
    ob_log_set_sink(NULL, NULL);
    ob_engine_get_stats(two, &st);
    assert_int_equal(st.n_handovers, 0);
    assert_int_equal(st.n_handover_failed, 1); /* the second prompt did not ask again so soon */
    assert_int_equal(st.n_device_faults, 0);
    assert_int_equal(g_warnings, 1);
    unsetenv(variable);
    ob_engine_free(one);
    ob_engine_free(two);
}

static void test_prefill_device_fails(void **state)
{
    (void)state;
    if (!has_driver()) skip();
    fails("OB_VK_LOSE_AFTER");
    fails("OB_VK_NO_MEMORY_AFTER");
}

/* The decoding device is lost: requests are begun again on it, opened anew. */
static void test_decoding_device_fails(void **state)
{
    (void)state;
    if (!has_driver()) skip();
    static int32_t prompt[400];
    ob_engine_stats st;
    fill(prompt, 400, 77);
    ob_engine *one = make("llama", "cpu", NULL);
    setenv("OB_VK_LOSE_AFTER", "4", 1);
    ob_engine *two = make("llama", "lavapipe", "cpu");
    ob_log_set_sink(count_warnings, NULL);
    reply *want = start(one, prompt, 390), *got = start(two, prompt, 390);
    reply_wait(want);
    reply_wait(got);
    ob_log_set_sink(NULL, NULL);
    assert_int_equal(got->finish, OB_FINISH_LENGTH);
    assert_memory_equal(got->ids, want->ids, 24 * sizeof(int32_t));
    ob_engine_get_stats(two, &st);
    assert_int_equal(st.n_device_faults, 1);
    assert_int_equal(st.n_retried, 1);
    unsetenv("OB_VK_LOSE_AFTER");
    reply_drop(want);
    reply_drop(got);
    ob_engine_free(one);
    ob_engine_free(two);
}

static void test_wrong_devices(void **state)
{
    (void)state;
    ob_engine *e;
    ob_err err = {0};
    ob_engine_params p = params("llama", "cpu", "gpu", OB_F16);
    assert_int_equal(ob_engine_new(&p, &e, &err), OB_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "--prefill-device"));
    p.prefill_device = "cpu:x";
    assert_int_equal(ob_engine_new(&p, &e, &err), OB_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_two_cpus_are_one),
        cmocka_unit_test(test_gpu_and_cpu),
        cmocka_unit_test(test_other_cache_types),
        cmocka_unit_test(test_prefixes_are_not_computed_again),
        cmocka_unit_test(test_short_prompts_stay),
        cmocka_unit_test(test_requests_together),
        cmocka_unit_test(test_cancel_on_the_way),
        cmocka_unit_test(test_prefill_device_fails),
        cmocka_unit_test(test_decoding_device_fails),
        cmocka_unit_test(test_wrong_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
