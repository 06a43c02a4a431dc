/* Unit tests of engine/speculate.h, and of engines that draft: the same tokens as without, whatever the sampler. */
#include "reply.h"
#include "test.h"

#include "base/limits.h"
#include "engine/engine.h"
#include "engine/speculate.h"

/* ------------------------------------------------------------------ what is drafted */

static ob_spec_draft find(const int32_t *tok, int32_t n, int32_t *dst, int32_t cap)
{
    ob_spec_odds odds = {{0}, {0}};
    return ob_spec_find(tok, n, dst, cap, &odds);
}

static void test_find(void **state)
{
    (void)state;
    int32_t got[8];
    /* the last two tokens were there before: what followed them */
    const int32_t a[] = {1, 2, 3, 4, 5, 9, 2, 3};
    assert_int_equal(find(a, 8, got, 3).n, 3);
    assert_int_equal(got[0], 4);
    assert_int_equal(got[1], 5);
    assert_int_equal(got[2], 9);
    /* one token alone is no match */
    const int32_t b[] = {1, 2, 3, 4, 2};
    assert_int_equal(find(b, 5, got, 8).n, 0);
    assert_int_equal(find(b, 1, got, 8).n, 0);
    /* the longest match wins over a later one, the later one over an equal one */
    const int32_t c[] = {7, 1, 2, 50, 8, 1, 2, 60, 7, 1, 2};
    assert_int_equal(find(c, 11, got, 1).n, 1);
    assert_int_equal(got[0], 50);
    const int32_t d[] = {1, 2, 50, 9, 1, 2, 60, 8, 1, 2};
    assert_int_equal(find(d, 10, got, 1).n, 1);
    assert_int_equal(got[0], 60);
    /* a loop is drafted beyond the end of the text */
    const int32_t e[] = {1, 2, 3, 1, 2, 3, 1, 2};
    assert_int_equal(find(e, 8, got, 7).n, 7);
    const int32_t want[] = {3, 1, 2, 3, 1, 2, 3};
    assert_memory_equal(got, want, sizeof want);
    /* rows of pictures are not drafted */
    const int32_t f[] = {1, 2, 3, -5, -6, 1, 2};
    assert_int_equal(find(f, 7, got, 8).n, 1);
    assert_int_equal(find(a, 8, got, 0).n, 0);
}

static void test_odds(void **state)
{
    (void)state;
    const int32_t tok[] = {1, 2, 3, 1, 2}, sure[] = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5};
    int32_t got[4];
    ob_spec_odds odds = {{0}, {0}};
    assert_float_equal(ob_spec_find(tok, 5, got, 4, &odds).p, 0.5, 1e-6);
    for (int i = 0; i < 50; i++) ob_spec_note(&odds, 0, 4, 0);
    assert_true(ob_spec_find(tok, 5, got, 4, &odds).p < 0.1);
    assert_float_equal(ob_spec_find(sure, 11, got, 4, &odds).p, 0.5, 1e-6); /* long matches have odds of their own */
    for (int i = 0; i < 50; i++) ob_spec_note(&odds, 0, 4, 4);
    assert_true(ob_spec_find(tok, 5, got, 4, &odds).p > 0.9);
}

/* ------------------------------------------------------------------ how much of it */

static void know(ob_spec_costs *c, double row, double more)
{
    for (int32_t n = 1; n <= OB_SPEC_MAX_ROWS; n++)
        for (int k = 0; k < 3; k++) ob_spec_note_cost(c, n, row + more * (n - 1));
}

static void test_choose(void **state)
{
    (void)state;
    ob_spec_costs flat = {0}, steep = {0}, none = {0};
    know(&flat, 10, 0.1);
    know(&steep, 10, 10);
    const ob_spec_draft good = {.n = 16, .p = 0.95}, bad = {.n = 16, .p = 0.02}, empty = {.n = 0, .p = 0.5};
    assert_int_equal(ob_spec_choose(&flat, &good, 1, 16), 15);
    assert_int_equal(ob_spec_choose(&flat, &good, 1, 5), 5);
    assert_int_equal(ob_spec_choose(&flat, &bad, 1, 16), 0);
    assert_int_equal(ob_spec_choose(&steep, &good, 1, 16), 0);
    assert_int_equal(ob_spec_choose(&flat, &empty, 1, 16), 0);
    assert_int_equal(ob_spec_choose(&flat, &good, 1, 0), 0);
    assert_int_equal(ob_spec_choose(&flat, &good, 1, -5), 0); /* steps so small that they have no room at all */
    assert_true(ob_spec_choose(&none, &good, 1, 16) > 0); /* what is not known is tried */
    const ob_spec_draft three[] = {good, bad, empty};
    assert_int_equal(ob_spec_choose(&steep, three, 3, 16), 0);
    assert_true(ob_spec_choose(&flat, three, 3, 16) > 0);
    ob_spec_draft many[OB_SPEC_MAX_ROWS];
    for (int i = 0; i < OB_SPEC_MAX_ROWS; i++) many[i] = good;
    assert_int_equal(ob_spec_choose(&flat, many, OB_SPEC_MAX_ROWS, 16), 0); /* no room for more rows */
    assert_int_equal(ob_spec_choose(&flat, many, OB_SPEC_MAX_ROWS / 2, 16), 1);
}

/* A single slow step does not end it, and what was slow is tried again some time. */
static void test_costs(void **state)
{
    (void)state;
    ob_spec_costs c = {0};
    const ob_spec_draft d = {.n = 1, .p = 0.5};
    for (int k = 0; k < 8; k++) {
        ob_spec_note_cost(&c, 1, 10);
        ob_spec_note_cost(&c, 2, 11);
    }
    assert_int_equal(ob_spec_choose(&c, &d, 1, 16), 1);
    ob_spec_note_cost(&c, 2, 1000);
    assert_int_equal(ob_spec_choose(&c, &d, 1, 16), 1);
    for (int k = 0; k < 8; k++) ob_spec_note_cost(&c, 2, 17);
    assert_int_equal(ob_spec_choose(&c, &d, 1, 16), 0);
    for (int k = 0; k < 300; k++) ob_spec_note_cost(&c, 1, 10);
    assert_int_equal(ob_spec_choose(&c, &d, 1, 16), 1);
}

/* ------------------------------------------------------------------ engines that draft */

enum { N_OUT = 96, N_PROMPT = 60 };

static ob_engine *make(const char *name, ob_speculate speculate, int n_seq)
{
    ob_engine_params p;
    ob_engine *e;
    ob_err err = {0};
    char path[512];
    snprintf(path, sizeof path, OB_TEST_DATA "/golden/%s.gguf", name);
    ob_engine_defaults(&p);
    p.model_path = path;
    p.device = "cpu";
    p.n_seq = n_seq;
    p.n_ctx = 512;
    p.n_threads = 2;
    p.speculate = speculate;
    if (ob_engine_new(&p, &e, &err) != OB_OK) fail_msg("%s: %s", name, err.text);
    return e;
}

/* A prompt that repeats itself, so that there is something to draft. */
static void fill(int32_t *tok, unsigned seed)
{
    for (int i = 0; i < N_PROMPT / 2; i++) {
        seed = seed * 1103515245u + 12345u;
        tok[i] = tok[i + N_PROMPT / 2] = 3 + (int32_t)((seed >> 16) % 200);
    }
}

static reply *start(ob_engine *e, const int32_t *prompt, int n, float temperature, bool narrow, const char *stop)
{
    ob_request_params p;
    ob_request_defaults(&p);
    p.prompt = prompt;
    p.n_prompt = (size_t)n;
    p.max_tokens = N_OUT;
    p.ignore_eos = !stop;
    p.stop = &stop;
    p.n_stop = stop != NULL;
    p.sampler.temperature = temperature;
    /* of random weights only a small alphabet repeats itself */
    ob_logit_bias bias[4];
    for (int i = 0; i < 4; i++) bias[i] = (ob_logit_bias){.id = 10 + 7 * i, .bias = 60};
    p.sampler.bias = bias;
    p.sampler.n_bias = narrow ? 4 : 0;
    p.sampler.repeat_penalty = temperature > 0 ? 1.05f : 1;
    p.sampler.has_seed = true;
    p.sampler.seed = 7;
    return reply_new(e, &p);
}

static reply *finish(reply *r)
{
    reply_wait(r);
    return r;
}

static void assert_same(const reply *a, const reply *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof(int32_t));
    assert_int_equal(a->len, b->len);
    assert_memory_equal(a->text, b->text, a->len);
    assert_int_equal(a->finish, b->finish);
}

static const char *const k_models[] = {"llama", "llama-q-Q4_0", "qwen2", "qwen3moe", "gemma3", "minicpm-longrope", "glm47flash",
                                       "qwen35moe", "zaya", "deepseek4"};

static void test_same_tokens(void **state)
{
    (void)state;
    uint64_t right = 0;
    for (size_t m = 0; m < sizeof k_models / sizeof *k_models; m++) {
        ob_engine *off = make(k_models[m], OB_SPECULATE_OFF, 3), *with = make(k_models[m], OB_SPECULATE_AUTO, 3);
        ob_engine_stats st;
        for (int i = 0; i < 4; i++) {
            int32_t prompt[N_PROMPT + N_OUT + 2];
            const float temperature = i % 2 ? 0.7f : 0;
            fill(prompt, (unsigned)i);
            reply *a = finish(start(off, prompt, N_PROMPT, temperature, true, NULL));
            reply *b = finish(start(with, prompt, N_PROMPT, temperature, true, NULL));
            assert_same(a, b);
            assert_int_equal(a->timings.n_drafted, 0);
            assert_true(b->timings.n_draft_right <= b->timings.n_drafted);
            /* a next turn, which finds what was kept of this one */
            memcpy(prompt + N_PROMPT, a->ids, (size_t)a->n * sizeof(int32_t));
            prompt[N_PROMPT + N_OUT] = prompt[N_PROMPT + N_OUT + 1] = 5;
            reply *c = finish(start(off, prompt, N_PROMPT + N_OUT + 2, temperature, true, NULL));
            reply *d = finish(start(with, prompt, N_PROMPT + N_OUT + 2, temperature, true, NULL));
            assert_same(c, d);
            assert_true(d->timings.n_cached > N_PROMPT);
            reply_drop(a);
            reply_drop(b);
            reply_drop(c);
            reply_drop(d);
        }
        ob_engine_get_stats(with, &st);
        if (!st.n_drafted) fail_msg("%s: nothing was drafted", k_models[m]);
        assert_int_equal(st.kv_tok_used, 0);
        right += st.n_draft_right;
        ob_engine_free(off);
        ob_engine_free(with);
    }
    assert_true(right > 100);
}

static void test_same_tokens_together(void **state)
{
    (void)state;
    enum { N = 5 };
    ob_engine *off = make("llama", OB_SPECULATE_OFF, 1), *with = make("llama", OB_SPECULATE_AUTO, 3);
    int32_t prompt[N][N_PROMPT];
    reply *a[N], *b[N];
    for (int i = 0; i < N; i++) {
        fill(prompt[i], (unsigned)i);
        a[i] = finish(start(off, prompt[i], N_PROMPT, i % 2 ? 0.7f : 0, true, NULL));
    }
    for (int i = 0; i < N; i++) b[i] = start(with, prompt[i], N_PROMPT, i % 2 ? 0.7f : 0, true, NULL);
    for (int i = 0; i < N; i++) assert_same(a[i], finish(b[i]));
    for (int i = 0; i < N; i++) {
        reply_drop(a[i]);
        reply_drop(b[i]);
    }
    ob_engine_free(off);
    ob_engine_free(with);
}

/* A stop string in the middle of what was drafted ends the reply there. */
static void test_stop_within_a_draft(void **state)
{
    (void)state;
    ob_engine *off = make("llama", OB_SPECULATE_OFF, 1), *with = make("llama", OB_SPECULATE_AUTO, 1);
    int32_t prompt[N_PROMPT];
    fill(prompt, 3);
    reply *whole = finish(start(off, prompt, N_PROMPT, 0, false, NULL));
    int n_stopped = 0;
    for (size_t at = 8; at + 4 < whole->len; at += 16) {
        char stop[4] = {0};
        memcpy(stop, whole->text + at, 3);
        reply *a = finish(start(off, prompt, N_PROMPT, 0, false, stop)), *b = finish(start(with, prompt, N_PROMPT, 0, false, stop));
        assert_same(a, b);
        n_stopped += b->finish == OB_FINISH_STOP;
        reply_drop(a);
        reply_drop(b);
    }
    assert_true(n_stopped > 2);
    reply_drop(whole);
    ob_engine_free(off);
    ob_engine_free(with);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_odds),
        cmocka_unit_test(test_choose),
        cmocka_unit_test(test_costs),
        cmocka_unit_test(test_same_tokens),
        cmocka_unit_test(test_same_tokens_together),
        cmocka_unit_test(test_stop_within_a_draft),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
