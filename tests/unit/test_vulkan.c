/* Unit tests of what the engine and the Vulkan device promise together, on the software driver: submits sized by
 * time, lost devices, memory that runs out. Skipped where there is no such driver. */
#include "reply.h"
#include "test.h"

#include "base/log.h"
#include "engine/ctx.h"
#include "engine/engine.h"

#define MODEL OB_TEST_DATA "/golden/llama.gguf"

static bool g_has_driver;

static int find_driver(void **state)
{
    (void)state;
    ob_dev *d;
    ob_err err = {0};
    g_has_driver = ob_dev_open("lavapipe", NULL, &d, &err) == OB_OK;
    if (g_has_driver) ob_dev_close(d);
    else print_message("no software driver of Vulkan: %s\n", err.text);
    return 0;
}

#define NEED_DRIVER() \
    do { \
        if (!g_has_driver) skip(); \
    } while (0)

static void fill(int32_t *tok, int n, unsigned seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1103515245u + 12345u;
        tok[i] = 3 + (int32_t)((seed >> 16) % 400);
    }
}

static ob_ctx *open_ctx(int32_t n_ctx)
{
    ob_engine_params p;
    ob_ctx *c;
    ob_err err = {0};
    ob_engine_defaults(&p);
    p.model_path = MODEL;
    p.device = "lavapipe";
    p.n_seq = 2;
    p.n_ctx = n_ctx;
    if (ob_ctx_new(&p, &c, &err) != OB_OK) fail_msg("%s", err.text);
    return c;
}

/* Logits after a prompt of 70 tokens and 5 single ones, and the submits that took. */
static uint64_t run_steps(ob_ctx *c, float *logits, int32_t n_vocab)
{
    int32_t tok[75];
    ob_seq *s;
    ob_err err = {0};
    const float *rows;
    ob_dev_info info;
    fill(tok, 75, 11);
    assert_int_equal(ob_ctx_seq_new(c, &s, &err), OB_OK);
    for (int32_t at = 0; at < 75; at += at ? 1 : 70) {
        ob_chunk chunk = {.seq = s, .tok = tok + at, .n_tok = at ? 1 : 70, .n_out = 1};
        if (ob_ctx_step(c, &chunk, 1, &rows, &err) != OB_OK) fail_msg("%s", err.text);
        memcpy(logits, rows, (size_t)n_vocab * sizeof *rows);
        logits += n_vocab;
    }
    ob_ctx_seq_free(c, s);
    ob_ctx_dev(c)->api->describe(ob_ctx_dev(c), &info);
    return info.n_submits;
}

/* However finely the work is cut, segments and parts of single dispatches, not a bit of the result changes. */
static void test_submits_by_time(void **state)
{
    (void)state;
    NEED_DRIVER();
    static const char *const bounds[] = {"1000000", "0.5", "0.0001"};
    ob_engine_info info;
    float *logits[3];
    uint64_t n[3];
    for (int i = 0; i < 3; i++) {
        setenv("OB_VK_SUBMIT_MS", bounds[i], 1);
        ob_ctx *c = open_ctx(128);
        ob_ctx_describe(c, &info);
        logits[i] = calloc(6 * (size_t)info.n_vocab, sizeof(float));
        n[i] = run_steps(c, logits[i], info.n_vocab);
        ob_ctx_free(c);
    }
    unsetenv("OB_VK_SUBMIT_MS");
    print_message("submits of 6 steps: %llu, %llu, %llu\n", (unsigned long long)n[0], (unsigned long long)n[1],
                  (unsigned long long)n[2]);
    assert_int_equal(n[0], 6);
    assert_true(n[1] > 6);
    assert_true(n[2] > 60);
    for (int i = 1; i < 3; i++) assert_memory_equal(logits[0], logits[i], 6 * (size_t)info.n_vocab * sizeof(float));
    for (int i = 0; i < 3; i++) free(logits[i]);
}

static void test_wrong_bound_is_refused(void **state)
{
    (void)state;
    NEED_DRIVER();
    ob_dev *d;
    ob_err err = {0};
    setenv("OB_VK_SUBMIT_MS", "soon", 1);
    assert_int_equal(ob_dev_open("lavapipe", NULL, &d, &err), OB_E_INVALID);
    assert_non_null(strstr(err.text, "OB_VK_SUBMIT_MS"));
    unsetenv("OB_VK_SUBMIT_MS");
}

/* ------------------------------------------------------------------ faults */

static ob_engine *open_engine(void)
{
    ob_engine_params p;
    ob_engine *e;
    ob_err err = {0};
    ob_engine_defaults(&p);
    p.model_path = MODEL;
    p.device = "lavapipe";
    p.n_seq = 2;
    p.n_ctx = 128;
    p.k_type = p.v_type = OB_F32;
    p.exact = true; /* a token that was decoded may be recomputed as a part of a prompt, by other kernels */
    if (ob_engine_new(&p, &e, &err) != OB_OK) fail_msg("%s", err.text);
    return e;
}

static void start(ob_engine *e, reply *r, unsigned seed)
{
    int32_t prompt[20];
    ob_request_params p;
    fill(prompt, 20, seed);
    ob_request_defaults(&p);
    p.prompt = prompt;
    p.n_prompt = 20;
    p.max_tokens = 12;
    p.ignore_eos = true;
    p.sampler.temperature = 0;
    p.n_top_logprobs = 0;
    reply_submit(r, e, &p);
}

static void finish(reply *r)
{
    reply_wait(r);
    reply_end(r);
}

static void want_same(const reply *a, const reply *b)
{
    assert_int_equal(b->finish, OB_FINISH_LENGTH);
    assert_int_equal(b->n, a->n);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof *a->ids);
}

/* Two requests at once on a device that fails once, or twice, in prefill or in decoding; then one more. */
static void run_faults(const char *variable, const char *when, bool survives, ob_status code)
{
    static reply good[2], bad[2], after;
    ob_engine_stats st;
    ob_engine *e = open_engine();
    for (unsigned i = 0; i < 2; i++) {
        start(e, &good[i], i + 1);
        finish(&good[i]);
    }
    ob_engine_free(e);
    setenv(variable, when, 1);
    e = open_engine();
    for (unsigned i = 0; i < 2; i++) start(e, &bad[i], i + 1);
    for (unsigned i = 0; i < 2; i++) finish(&bad[i]);
    start(e, &after, 1);
    finish(&after);
    ob_engine_get_stats(e, &st);
    ob_engine_free(e);
    unsetenv(variable);
    for (unsigned i = 0; i < 2; i++) {
        if (survives) {
            want_same(&good[i], &bad[i]);
        } else if (bad[i].finish == OB_FINISH_ERROR) {
            assert_int_equal(bad[i].err.code, code);
            assert_non_null(strstr(bad[i].err.text, "failed twice while this request ran"));
        }
    }
    want_same(&good[0], &after);
    assert_int_equal(st.n_device_faults, survives ? 1 : 2);
    assert_int_equal(st.n_failed, (bad[0].finish == OB_FINISH_ERROR) + (bad[1].finish == OB_FINISH_ERROR));
    if (!survives) assert_true(st.n_failed > 0);
    assert_true(st.n_retried > 0);
    assert_false(st.device_down);
}

/* Greedy text is the same when its prompt is found in the cache, though then fewer rows are computed at once: with 8-bit
 * activations every other order of sums would turn some rounding. */
static void test_same_text_from_the_cache(void **state)
{
    (void)state;
    NEED_DRIVER();
    static reply r[3];
    ob_engine_params p;
    ob_engine *e;
    ob_err err = {0};
    ob_engine_defaults(&p);
    p.model_path = OB_TEST_DATA "/golden/llama-q-Q4_0.gguf";
    p.device = "lavapipe";
    p.n_seq = 2;
    p.n_ctx = 128;
    if (ob_engine_new(&p, &e, &err) != OB_OK) fail_msg("%s", err.text);
    for (int i = 0; i < 3; i++) {
        start(e, &r[i], 7);
        finish(&r[i]);
    }
    ob_engine_free(e);
    for (int i = 1; i < 3; i++) {
        want_same(&r[0], &r[i]);
        assert_memory_equal(r[0].logprobs, r[i].logprobs, (size_t)r[0].n * sizeof(float));
    }
}

static void test_lost_device(void **state)
{
    (void)state;
    NEED_DRIVER();
    run_faults("OB_VK_LOSE_AFTER", "1", true, OB_OK);
    run_faults("OB_VK_LOSE_AFTER", "6", true, OB_OK);
    run_faults("OB_VK_LOSE_AFTER", "6,3", false, OB_E_DEVICE_LOST);
}

static void test_no_device_memory(void **state)
{
    (void)state;
    NEED_DRIVER();
    run_faults("OB_VK_NO_MEMORY_AFTER", "5", true, OB_OK);
    run_faults("OB_VK_NO_MEMORY_AFTER", "5,2", false, OB_E_NO_MEMORY);
}

/* ------------------------------------------------------------------ kernels that are wrong */

static float *logits_without(const char *kernels, bool fallback, ob_engine_info *info, ob_status *status)
{
    ob_engine_params p;
    ob_ctx *c;
    ob_err err = {0};
    ob_dev_info now;
    if (kernels) setenv("OB_VK_TEST_FAIL", kernels, 1);
    ob_engine_defaults(&p);
    p.model_path = MODEL;
    p.device = "lavapipe";
    p.n_seq = 2;
    p.n_ctx = 128;
    p.exact = true;
    p.k_type = p.v_type = OB_F32;
    p.fallback = fallback;
    *status = ob_ctx_new(&p, &c, &err);
    float *out = NULL;
    if (*status == OB_OK) {
        ob_ctx_describe(c, info);
        ob_ctx_dev(c)->api->describe(ob_ctx_dev(c), &now);
        memcpy(info->device.reason, now.reason, sizeof now.reason);
        out = calloc(6 * (size_t)info->n_vocab, sizeof *out);
        (void)run_steps(c, out, info->n_vocab);
        ob_ctx_free(c);
    } else {
        memcpy(info->device.reason, err.text, sizeof info->device.reason);
    }
    unsetenv("OB_VK_TEST_FAIL");
    return out;
}

/* A kernel with an alternative is replaced; one without goes to the CPU, or the model is refused. The answer stays. */
static void test_wrong_kernels_are_switched_off(void **state)
{
    (void)state;
    NEED_DRIVER();
    static const char *const kernels[] = {"norm_rows", "heads", "rms_norm,attention", "glu,rope", "embed"};
    ob_engine_info info;
    ob_status s;
    setenv("XDG_CACHE_HOME", "/tmp/onebit-test-vulkan", 1);
    float *good = logits_without(NULL, true, &info, &s);
    assert_int_equal(s, OB_OK);
    assert_string_equal(info.device.reason, "");
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        float *bad = logits_without(kernels[i], true, &info, &s), worst = 0;
        assert_int_equal(s, OB_OK);
        assert_non_null(strstr(info.device.reason, kernels[i][0] == 'r' ? "rms_norm" : kernels[i][0] == 'g' ? "glu" : kernels[i]));
        for (size_t k = 0; k < 6 * (size_t)info.n_vocab; k++) {
            const float d = good[k] > bad[k] ? good[k] - bad[k] : bad[k] - good[k];
            if (!(d <= worst)) worst = d;
        }
        print_message("  without %s: off by %g\n", kernels[i], (double)worst);
        assert_true(worst < 2e-4f); /* f32 sums in another order */
        free(bad);
    }
    ob_dev_info probed = {0};
    for (const ob_dev_api *const *a = ob_dev_registry(); *a; a++)
        for (int i = 0; strcmp((*a)->kind, "vulkan") == 0 && i < (*a)->count(); i++) {
            (*a)->probe(i, &probed);
            if (probed.caps & OB_DEV_SOFT) assert_non_null(strstr(probed.reason, "embed"));
        }
    free(logits_without("attention", false, &info, &s));
    assert_int_equal(s, OB_E_UNSUPPORTED);
    assert_non_null(strstr(info.device.reason, "wrong on this driver"));
    free(good);
    unsetenv("XDG_CACHE_HOME");
}

/* ------------------------------------------------------------------ weights where they lie */

static void find_in_place(void *arg, ob_log_level level, const char *line)
{
    (void)level;
    const char *at = strstr(line, " MiB used in place");
    if (at) *(double *)arg = atof(at - 3);
}

/* With the pages of the file as a buffer's memory the results are the same, bit by bit. */
static void test_imported_weights(void **state)
{
    (void)state;
    NEED_DRIVER();
    float *logits[2];
    double mib[2] = {0, 0};
    ob_engine_info info;
    ob_log_set_level(OB_LOG_DEBUG);
    for (int i = 0; i < 2; i++) {
        ob_engine_params p;
        ob_ctx *c;
        ob_err err = {0};
        setenv("OB_VK_IMPORT", i ? "1" : "0", 1);
        ob_log_set_sink(find_in_place, &mib[i]);
        ob_engine_defaults(&p);
        p.model_path = OB_TEST_DATA "/golden/llama-q-Q4_K_M.gguf";
        p.device = "lavapipe";
        p.n_seq = 2;
        p.n_ctx = 128;
        if (ob_ctx_new(&p, &c, &err) != OB_OK) fail_msg("%s", err.text);
        ob_ctx_describe(c, &info);
        logits[i] = calloc(6 * (size_t)info.n_vocab, sizeof(float));
        (void)run_steps(c, logits[i], info.n_vocab);
        ob_ctx_free(c);
    }
    ob_log_set_sink(NULL, NULL);
    ob_log_set_level(OB_LOG_INFO);
    unsetenv("OB_VK_IMPORT");
    print_message("  %.1f and %.1f MiB in place\n", mib[0], mib[1]);
    assert_true(mib[0] == 0);
    assert_true(mib[1] > 0);
    assert_memory_equal(logits[0], logits[1], 6 * (size_t)info.n_vocab * sizeof(float));
    for (int i = 0; i < 2; i++) free(logits[i]);
}

/* ------------------------------------------------------------------ the same text as the CPU's */

static int32_t best_of(const float *logits, int32_t n, float *gap)
{
    int32_t best = 0;
    float second = -1e30f;
    for (int32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best]) {
            second = logits[best];
            best = i;
        } else if (logits[i] > second) {
            second = logits[i];
        }
    }
    *gap = logits[best] - second;
    return best;
}

static ob_ctx *open_on(const char *device, const char *file)
{
    ob_engine_params p;
    ob_ctx *c;
    ob_err err = {0};
    char path[512];
    snprintf(path, sizeof path, OB_TEST_DATA "/golden/%s.gguf", file);
    ob_engine_defaults(&p);
    p.model_path = path;
    p.device = device;
    p.n_seq = 1;
    p.n_ctx = 64;
    p.exact = true;
    if (ob_ctx_new(&p, &c, &err) != OB_OK) fail_msg("%s on %s: %s", file, device, err.text);
    return c;
}

/* Greedy text with f32 activations (8-bit ones are rounded differently on each device, by more than the ties of such
 * small models): where the first token differs, the CPU's best two are nearly equal. */
static void test_greedy_text_is_the_cpus(void **state)
{
    (void)state;
    NEED_DRIVER();
    enum { PROMPT = 12, STEPS = 24 };
    static const char *const files[] = {"llama", "llama-q-Q4_0", "llama-q-Q4_K_M", "qwen3moe-q-Q4_K_M", "qwen35"};
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        ob_ctx *c[2] = {open_on("cpu", files[f]), open_on("lavapipe", files[f])};
        ob_seq *s[2];
        ob_err err = {0};
        int32_t tok[PROMPT + STEPS], same = 0;
        fill(tok, PROMPT, 3);
        for (int k = 0; k < 2; k++) assert_int_equal(ob_ctx_seq_new(c[k], &s[k], &err), OB_OK);
        for (int32_t i = 0; i < STEPS; i++) {
            int32_t best[2];
            float gap[2];
            const float *rows;
            for (int k = 0; k < 2; k++) {
                const int32_t at = ob_seq_len(s[k]);
                ob_chunk ch = {.seq = s[k], .tok = tok + at, .n_tok = PROMPT + i - at, .n_out = 1};
                if (ob_ctx_step(c[k], &ch, 1, &rows, &err) != OB_OK) fail_msg("%s", err.text);
                best[k] = best_of(rows, ob_ctx_n_cols(c[k]), &gap[k]);
            }
            if (best[0] != best[1]) {
                print_message("  %s: differs after %d tokens, where the best two are %g apart\n", files[f], i, (double)gap[0]);
                assert_true(gap[0] < 0.02f);
                break;
            }
            tok[PROMPT + i] = best[0];
            same++;
        }
        print_message("  %s: %d equal tokens\n", files[f], same);
        for (int k = 0; k < 2; k++) ob_ctx_free(c[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_submits_by_time),
        cmocka_unit_test(test_wrong_bound_is_refused),
        cmocka_unit_test(test_same_text_from_the_cache),
        cmocka_unit_test(test_lost_device),
        cmocka_unit_test(test_no_device_memory),
        cmocka_unit_test(test_wrong_kernels_are_switched_off),
        cmocka_unit_test(test_imported_weights),
        cmocka_unit_test(test_greedy_text_is_the_cpus),
    };
    return cmocka_run_group_tests(tests, find_driver, NULL);
}
