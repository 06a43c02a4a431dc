/* Unit tests of streamed experts: the same results as with all of them loaded, whatever few there is room for;
 * and of reading past the mapping. */
#include "test.h"

#include "has_driver.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "base/math.h"
#include "engine/ctx.h"
#include "fmt/direct.h"
#include "fmt/onebp.h"

#define GOLDEN OB_TEST_DATA "/golden/"

/* ------------------------------------------------------------------ direct reads */

static void test_direct_reads(void **state)
{
    (void)state;
    ob_file *f;
    ob_err err = {0};
    assert_int_equal(ob_file_open(GOLDEN "qwen3moe.gguf", 0, &f, &err), OB_OK);
    for (unsigned flags = 0; flags <= OB_DIRECT_NO_RING; flags += OB_DIRECT_NO_RING) {
        ob_direct *d;
        uint64_t n_read = 0;
        if (ob_direct_new(f, 1 << 20, flags, &d, &err) != OB_OK) fail_msg("%s", err.text);
        for (size_t i = 0; i < ob_file_n_tensors(f); i++) {
            const ob_tensor *t = ob_file_tensor(f, i);
            const struct { uint64_t off; size_t n; } parts[] = {
                {0, OB_MIN(t->n_bytes, (size_t)1 << 20)}, {0, 1}, {t->n_bytes - 1, 1}, {t->n_bytes / 3, t->n_bytes / 2 % 5000}};
            for (size_t k = 0; k < OB_COUNT(parts); k++) {
                const void *got;
                if (ob_direct_read(d, t, parts[k].off, parts[k].n, &got, &err) != OB_OK) fail_msg("%s", err.text);
                assert_memory_equal(got, (const uint8_t *)t->data + parts[k].off, parts[k].n);
                n_read += parts[k].n;
            }
            const void *got;
            assert_int_equal(ob_direct_read(d, t, t->n_bytes, 1, &got, &err), OB_E_INVALID);
            assert_int_equal(ob_direct_read(d, t, 0, t->n_bytes + 1, &got, &err), OB_E_INVALID);
        }
        assert_true(ob_direct_n_bytes(d) >= n_read);
        ob_direct_free(d);
    }
    ob_file_close(f);
}

static void copy_file(const char *from, const char *to)
{
    char buf[65536];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_non_null(in);
    assert_non_null(out);
    for (size_t n; (n = fread(buf, 1, sizeof buf, in)) > 0;) assert_int_equal(fwrite(buf, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

/* A file that another one took the name of is still the one that is read; one that was cut short is an error. */
static void test_direct_of_a_changed_file(void **state)
{
    (void)state;
    const char *path = "direct.gguf", *other = "direct2.gguf";
    ob_file *f;
    ob_direct *d;
    ob_err err = {0};
    const void *got;
    copy_file(GOLDEN "qwen3moe.gguf", path);
    copy_file(GOLDEN "llama.gguf", other);
    assert_int_equal(ob_file_open(path, 0, &f, &err), OB_OK);
    const ob_tensor *t = ob_file_tensor(f, ob_file_n_tensors(f) - 1);
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(ob_direct_new(f, t->n_bytes, 0, &d, &err), OB_OK);
    assert_int_equal(ob_direct_read(d, t, 0, t->n_bytes, &got, &err), OB_OK);
    assert_memory_equal(got, t->data, t->n_bytes);
    ob_direct_free(d);
    ob_file_close(f);

    copy_file(GOLDEN "qwen3moe.gguf", path);
    assert_int_equal(ob_file_open(path, 0, &f, &err), OB_OK);
    t = ob_file_tensor(f, ob_file_n_tensors(f) - 1);
    for (unsigned flags = 0; flags <= OB_DIRECT_NO_RING; flags += OB_DIRECT_NO_RING) {
        assert_int_equal(truncate(path, (off_t)(t->file_off + 1)), 0);
        assert_int_equal(ob_direct_new(f, t->n_bytes, flags, &d, &err), OB_OK);
        assert_int_equal(ob_direct_read(d, t, 0, t->n_bytes, &got, &err), OB_E_IO);
        assert_non_null(strstr(err.text, t->name));
        ob_direct_free(d);
    }
    ob_file_close(f);
    remove(path);
}

/* ------------------------------------------------------------------ streaming */

typedef struct run {
    const char *path, *device;
    int64_t n_slots;
    int32_t n_seq, n_cpu_moe, n_ubatch;
    bool no_guess;
} run;

static ob_status open_model(const run *r, ob_ctx **c, ob_err *err)
{
    ob_engine_params p;
    ob_engine_defaults(&p);
    p.model_path = r->path;
    p.device = r->device ? r->device : "cpu";
    p.n_moe_slots = r->n_slots;
    p.n_cpu_moe = r->n_cpu_moe;
    p.moe_guess = !r->no_guess;
    p.fallback = true;
    p.n_seq = r->n_seq ? r->n_seq : 1;
    p.n_ctx = 128;
    p.n_ubatch = r->n_ubatch ? r->n_ubatch : 64;
    p.n_threads = 2;
    return ob_ctx_new(&p, c, err);
}

enum { N_PROMPT = 21, N_STEP = 10, N_TOK = N_PROMPT + N_STEP };

/* Prompts in as few steps as there is room for, then tokens one by one: all rows of single tokens. */
static float *rows_of(const run *r, size_t *n_floats, ob_expert_stats *stats)
{
    ob_ctx *c;
    ob_seq *seq[4];
    ob_err err = {0};
    const float *rows;
    ob_engine_info info;
    const int32_t n_seq = r->n_seq ? r->n_seq : 1;
    int32_t tok[4][N_TOK];
    if (open_model(r, &c, &err) != OB_OK) fail_msg("%s with %lld slots: %s", r->path, (long long)r->n_slots, err.text);
    ob_ctx_describe(c, &info);
    const size_t n_cols = (size_t)ob_ctx_n_cols(c);
    float *out = test_malloc((size_t)(N_STEP * n_seq) * n_cols * sizeof *out), *at = out;
    for (int32_t q = 0; q < n_seq; q++) {
        assert_int_equal(ob_ctx_seq_new(c, &seq[q], &err), OB_OK);
        for (int i = 0; i < N_TOK; i++) tok[q][i] = 3 + (i * i * (7 + q) + 11 * i + 31 * q) % 300;
        for (int32_t i = 0, n; i < N_PROMPT; i += n) {
            n = OB_MIN(info.n_ubatch, N_PROMPT - i);
            ob_chunk ch = {.seq = seq[q], .tok = tok[q] + i, .n_tok = n};
            if (ob_ctx_step(c, &ch, 1, NULL, &err) != OB_OK) fail_msg("%s", err.text);
        }
    }
    for (int i = N_PROMPT; i < N_TOK; i++) {
        ob_chunk ch[4];
        for (int32_t q = 0; q < n_seq; q++) ch[q] = (ob_chunk){.seq = seq[q], .tok = tok[q] + i, .n_tok = 1, .n_out = 1};
        if (ob_ctx_step(c, ch, n_seq, &rows, &err) != OB_OK) fail_msg("%s", err.text);
        memcpy(at, rows, (size_t)n_seq * n_cols * sizeof *at);
        at += (size_t)n_seq * n_cols;
    }
    ob_ctx_expert_stats(c, stats);
    *n_floats = (size_t)(at - out);
    ob_ctx_free(c);
    return out;
}

/* off: how far a number may be away from the one with all experts loaded, by its size or 1. */
static void check_near(const run *all, const run *few, double off, ob_expert_stats *stats)
{
    size_t n, n2;
    ob_expert_stats none;
    float *a = rows_of(all, &n, &none), *b = rows_of(few, &n2, stats);
    assert_int_equal(none.n_experts, 0);
    assert_int_equal(n, n2);
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= off * fmax(1, fabs((double)a[i])))) fail_msg("%s, %lld slots: number %zu is %g instead of %g", few->path, (long long)few->n_slots, i, b[i], a[i]);
    test_free(a);
    test_free(b);
    assert_int_equal(stats->n_slots, few->n_slots);
    assert_int_equal(stats->n_wanted, stats->n_hits + stats->n_misses);
    assert_true(stats->n_read_bytes > 0);
    assert_true(stats->n_guessed_right <= stats->n_guessed);
}

static void check_equal(const run *all, const run *few, ob_expert_stats *stats) { check_near(all, few, 0, stats); }

/* Every mixture there is, with room for half the experts and for next to none: bit by bit the same. */
static void test_same_with_few_slots(void **state)
{
    (void)state;
    static const struct { const char *name; int64_t n_slots[2]; bool guesses; } models[] = {
        {"qwen3moe", {12, 6}, true},   {"qwen35moe", {12, 6}, true}, {"glm47flash", {8, 4}, true},
        {"deepseek3", {8, 4}, true},   {"deepseek4", {16, 8}, true}, {"zaya", {6, 3}, false},
        {"qwen3moe-q-MXFP4_MOE", {4, 4}, true}};
    for (size_t m = 0; m < OB_COUNT(models); m++)
        for (int k = 0; k < 2; k++) {
            char path[512];
            ob_expert_stats st;
            snprintf(path, sizeof path, GOLDEN "%s.gguf", models[m].name);
            check_equal(&(run){.path = path}, &(run){.path = path, .n_slots = models[m].n_slots[k]}, &st);
            if ((int64_t)st.n_misses + (int64_t)st.n_guessed <= st.n_slots) fail_msg("%s: nothing had to go", path);
            if (models[m].guesses != (st.n_guessed > 0)) fail_msg("%s: %llu guesses", path, (unsigned long long)st.n_guessed);
            if (models[m].guesses && !st.n_guessed_right) fail_msg("%s: no guess was right", path);
            check_equal(&(run){.path = path}, &(run){.path = path, .n_slots = models[m].n_slots[k], .no_guess = true}, &st);
            assert_int_equal(st.n_guessed + st.n_ahead_hits, 0);
        }
}

static void test_several_sequences(void **state)
{
    (void)state;
    ob_expert_stats st;
    const char *path = GOLDEN "qwen3moe.gguf";
    check_equal(&(run){.path = path, .n_seq = 3}, &(run){.path = path, .n_seq = 3, .n_slots = 18}, &st);
    check_equal(&(run){.path = path, .n_cpu_moe = 2}, &(run){.path = path, .n_cpu_moe = 2, .n_slots = 9}, &st);
}

static void test_from_a_package(void **state)
{
    (void)state;
    const char *path = GOLDEN "qwen3moe.gguf", *package = "experts.bin";
    ob_onebp_made made;
    ob_expert_stats st;
    ob_err err = {0};
    if (ob_onebp_convert(path, package, true, NULL, NULL, &made, &err) != OB_OK) fail_msg("%s", err.text);
    check_equal(&(run){.path = path}, &(run){.path = package, .n_slots = 9}, &st);
    remove(package);
}

/* Slots in the memory of a device that host threads may not write to, and beside those of the CPU. */
static void test_on_vulkan(void **state)
{
    (void)state;
    ob_expert_stats st;
    if (!has_driver()) skip();
    /* Kernels differ by the number of rows, so both runs have steps of equal size; and where nothing is streamed a
     * router and its experts are one run of kernels, which add up in another order: the last bits of f32. With 8-bit activations they may move a value to the next code (seen
     * between devices too: 0.017 in one row of 31). */
    static const struct { const char *name; int64_t n_slots; int32_t n_ubatch; double off; } models[] = {
        {"qwen3moe", 8, 0, 1e-5}, {"qwen3moe-q-Q4_K_M", 4, 1, 0.05}, {"qwen3moe-q-MXFP4_MOE", 4, 1, 0.05}};
    for (size_t m = 0; m < OB_COUNT(models); m++) {
        char path[512];
        snprintf(path, sizeof path, GOLDEN "%s.gguf", models[m].name);
        check_near(&(run){.path = path, .device = "lavapipe", .n_ubatch = models[m].n_ubatch},
                   &(run){.path = path, .device = "lavapipe", .n_ubatch = models[m].n_ubatch, .n_slots = models[m].n_slots},
                   models[m].off, &st);
    }
    const char *path = GOLDEN "qwen3moe.gguf";
    check_near(&(run){.path = path, .device = "lavapipe", .n_cpu_moe = 1, .n_ubatch = 1},
               &(run){.path = path, .device = "lavapipe", .n_cpu_moe = 1, .n_slots = 9}, 1e-5, &st);
}

/* What cannot be done is said before anything is loaded, with what would be enough. */
static void test_too_few_slots(void **state)
{
    (void)state;
    ob_ctx *c;
    ob_err err = {0};
    assert_int_equal(open_model(&(run){.path = GOLDEN "qwen3moe.gguf", .n_slots = 1}, &c, &err), OB_E_INVALID);
    assert_non_null(strstr(err.text, "--moe-slots 2 at least (of 24 experts)"));
    assert_int_equal(open_model(&(run){.path = GOLDEN "qwen3moe.gguf", .n_slots = 4, .n_seq = 3}, &c, &err), OB_E_INVALID);
    assert_non_null(strstr(err.text, "fewer sequences"));
}

/* A file that is cut short while it is streamed: the step fails and says why, and nothing hangs. */
static void test_file_lost(void **state)
{
    (void)state;
    const char *path = "lost.gguf";
    ob_ctx *c;
    ob_seq *seq;
    ob_err err = {0};
    const int32_t tok[4] = {5, 80, 7, 130};
    copy_file(GOLDEN "qwen3moe.gguf", path);
    assert_int_equal(open_model(&(run){.path = path, .n_slots = 8}, &c, &err), OB_OK);
    assert_int_equal(ob_ctx_seq_new(c, &seq, &err), OB_OK);
    const ob_tensor *t = ob_file_find_tensor(ob_ctx_file(c), "blk.0.ffn_down_exps.weight");
    assert_int_equal(truncate(path, (off_t)t->file_off), 0);
    for (int i = 0; i < 2; i++) {
        ob_chunk ch = {.seq = seq, .tok = tok, .n_tok = 4, .n_out = 1};
        assert_int_equal(ob_ctx_step(c, &ch, 1, NULL, &err), OB_E_IO);
        assert_non_null(strstr(err.text, "shorter"));
    }
    copy_file(GOLDEN "qwen3moe.gguf", path); /* the same file, whole again */
    ob_chunk ch = {.seq = seq, .tok = tok, .n_tok = 4, .n_out = 1};
    if (ob_ctx_step(c, &ch, 1, NULL, &err) != OB_OK) fail_msg("%s", err.text);
    ob_ctx_free(c);
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_direct_reads),     cmocka_unit_test(test_direct_of_a_changed_file),
        cmocka_unit_test(test_same_with_few_slots), cmocka_unit_test(test_several_sequences),
        cmocka_unit_test(test_from_a_package),   cmocka_unit_test(test_too_few_slots),
        cmocka_unit_test(test_file_lost),        cmocka_unit_test(test_on_vulkan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
