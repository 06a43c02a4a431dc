/* Unit tests of what the engine and the Vulkan device promise together, on the software driver: submits sized by
 * time, lost devices, memory that runs out. Skipped where there is no such driver. */
#include "test.h"

#include <pthread.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_submits_by_time),
        cmocka_unit_test(test_wrong_bound_is_refused),
    };
    return cmocka_run_group_tests(tests, find_driver, NULL);
}
