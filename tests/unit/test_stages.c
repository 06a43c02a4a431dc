/* Unit tests of engine/stages: programs cut over several devices give what one device gives. */
#include "test.h"

#include "has_driver.h"

#include "engine/ctx.h"
#include "engine/stages.h"
#include "graph/model.h"

#define GOLDEN OB_TEST_DATA "/golden/"

typedef struct run {
    const char *device, *split;
    int32_t n_cpu_moe;
} run;

static void fill(int32_t *tok, int n, unsigned seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1103515245u + 12345u;
        tok[i] = 3 + (int32_t)((seed >> 16) % 200);
    }
}

static ob_status open_model(const char *file, const run *r, ob_ctx **c, ob_err *err)
{
    ob_engine_params p;
    char path[512];
    snprintf(path, sizeof path, GOLDEN "%s.gguf", file);
    ob_engine_defaults(&p);
    p.model_path = path;
    p.device = r->device;
    p.split = r->split;
    p.n_cpu_moe = r->n_cpu_moe;
    p.fallback = true;
    p.n_seq = 2;
    p.n_ctx = 256;
    p.n_threads = 2;
    p.exact = true;
    p.k_type = p.v_type = OB_F32;
    return ob_ctx_new(&p, c, err);
}

/* Two sequences: prompts of 64 and 9 tokens in one step, then single tokens; the second prompt is fed again
 * from the cache. All logits, one row after the other. */
static float *logits_of(const char *file, const run *r, size_t *n_floats)
{
    enum { STEPS = 8 };
    int32_t tok[2][80];
    ob_seq *s[2], *again;
    ob_ctx *c;
    ob_err err = {0};
    const float *rows;
    if (open_model(file, r, &c, &err) != OB_OK) fail_msg("%s on %s: %s", file, r->device, err.text);
    const size_t n_vocab = (size_t)ob_ctx_n_cols(c);
    float *out = calloc((2 * STEPS + 1) * n_vocab, sizeof *out), *at = out;
    for (int q = 0; q < 2; q++) {
        fill(tok[q], 80, (unsigned)q + 5);
        assert_int_equal(ob_ctx_seq_new(c, &s[q], &err), OB_OK);
    }
    for (int i = 0; i < STEPS; i++) {
        const int first[2] = {i ? 63 + i : 0, i ? 8 + i : 0};
        ob_chunk ch[2];
        for (int q = 0; q < 2; q++)
            ch[q] = (ob_chunk){.seq = s[q], .tok = tok[q] + first[q], .n_tok = i ? 1 : q ? 9 : 64, .n_out = 1};
        if (ob_ctx_step(c, ch, 2, &rows, &err) != OB_OK) fail_msg("%s", err.text);
        memcpy(at, rows, 2 * n_vocab * sizeof *at);
        at += 2 * n_vocab;
    }
    for (int q = 0; q < 2; q++) {
        ob_ctx_seq_keep(c, s[q]);
        ob_ctx_seq_free(c, s[q]);
    }
    int32_t n_cached;
    assert_int_equal(ob_ctx_seq_new(c, &again, &err), OB_OK);
    if (ob_ctx_seq_reuse(c, again, tok[0], 69, &n_cached, &err) != OB_OK) fail_msg("%s", err.text);
    assert_true(n_cached > 0);
    ob_chunk ch = {.seq = again, .tok = tok[0] + n_cached, .n_tok = 69 - n_cached, .n_out = 1};
    if (ob_ctx_step(c, &ch, 1, &rows, &err) != OB_OK) fail_msg("%s", err.text);
    memcpy(at, rows, n_vocab * sizeof *at);
    ob_ctx_free(c);
    *n_floats = (2 * STEPS + 1) * n_vocab;
    return out;
}

static void compare(const char *file, const run *a, const run *b, float atol)
{
    size_t n, m;
    float *x = logits_of(file, a, &n), *y = logits_of(file, b, &m);
    float worst = 0;
    assert_int_equal(n, m);
    for (size_t i = 0; i < n; i++) {
        const float d = x[i] > y[i] ? x[i] - y[i] : y[i] - x[i];
        if (!(d <= worst)) worst = d;
    }
    print_message("  %-12s %s split %s, %d experts on the CPU: off by %g\n", file, b->device, b->split ? b->split : "-",
                  b->n_cpu_moe, (double)worst);
    if (!(worst <= atol)) fail_msg("%s: off by %g", file, (double)worst);
    free(x);
    free(y);
}

/* The same kernels on the same numbers: equal to the bit, whatever is handed over where. */
static void test_two_cpus_are_one(void **state)
{
    (void)state;
    static const char *const files[] = {"llama", "qwen3moe", "qwen35moe", "gemma3", "deepseek3", "zaya"};
    const run one = {.device = "cpu"}, halves = {.device = "cpu,cpu:0"}, most = {.device = "cpu,cpu,cpu", .split = "5,1,2.5"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        compare(files[i], &one, &halves, 0);
        compare(files[i], &one, &most, 0);
    }
}

/* f32 all the way; sums in another order. */
static void test_gpu_and_cpu(void **state)
{
    (void)state;
    if (!has_driver()) skip();
    const run cpu = {.device = "cpu"}, mixed = {.device = "lavapipe,cpu", .split = "1,1"},
              turned = {.device = "cpu,lavapipe", .split = "1,2"}, two = {.device = "lavapipe,lavapipe", .split = "1,1"};
    compare("llama", &cpu, &mixed, 2e-4f);
    compare("llama", &cpu, &turned, 2e-4f);
    compare("qwen3", &cpu, &two, 2e-4f);
}

static void test_experts_on_the_cpu(void **state)
{
    (void)state;
    if (!has_driver()) skip();
    const run cpu = {.device = "cpu"}, all = {.device = "lavapipe", .n_cpu_moe = 1000};
    compare("qwen3moe", &cpu, &all, 2e-4f);
    compare("zaya", &cpu, &(run){.device = "lavapipe"}, 2e-4f); /* all ops that the device lacks */
    const run same = {.device = "cpu", .n_cpu_moe = 1}; /* it is there already */
    compare("qwen3moe", &cpu, &same, 0);
}

static void test_wrong_splits(void **state)
{
    (void)state;
    static const char *const splits[] = {"1", "1,2,3", "1,x", "1,0", "1,-2", ",1", "nan,1", "1,"};
    ob_ctx *c;
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        ob_err err = {0};
        const run r = {.device = "cpu,cpu", .split = splits[i]};
        assert_int_equal(open_model("llama", &r, &c, &err), OB_E_INVALID);
        assert_non_null(strstr(err.text, "--split"));
    }
    ob_err err = {0};
    const run unknown = {.device = "cpu,gpu"};
    assert_int_equal(open_model("llama", &unknown, &c, &err), OB_E_NOT_FOUND);
}

/* Layers by share: each device a run of them, the ends with the first and the last. */
static void test_shares(void **state)
{
    (void)state;
    ob_op ops[12] = {{.kind = OB_OP_EMBED, .layer = -1}};
    int32_t dev[12];
    for (int i = 1; i < 11; i++) ops[i] = (ob_op){.kind = OB_OP_LINEAR, .layer = i - 1};
    ops[11] = (ob_op){.kind = OB_OP_LINEAR, .layer = -1};
    const ob_program p = {.ops = ops, .n_ops = 12};
    const ob_placement pl = {.n_dev = 3, .share = {3, 1, 1}};
    ob_place_ops(&p, &pl, dev);
    const int32_t want[12] = {0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 2};
    assert_memory_equal(dev, want, sizeof want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),       cmocka_unit_test(test_two_cpus_are_one), cmocka_unit_test(test_gpu_and_cpu),
        cmocka_unit_test(test_experts_on_the_cpu), cmocka_unit_test(test_wrong_splits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
