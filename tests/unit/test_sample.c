/* Unit tests of sample/: greedy, cuts, penalties, bias, log-probabilities, seeds. */
#include "test.h"

#include <math.h>

#include "sample/sample.h"

enum { N = 8 };
static const float k_logits[N] = {0.5f, 2.0f, -1.0f, 2.0f, 1.0f, -3.0f, 0.0f, 1.5f};

static ob_sampler *make(const ob_sampler_params *p)
{
    ob_sampler *s;
    ob_err e;
    assert_int_equal(ob_sampler_new(p, N, 5, &s, &e), OB_OK);
    return s;
}

static int32_t next(ob_sampler *s, const int32_t *banned, size_t n_banned)
{
    float x[N];
    ob_logprob c;
    ob_err e;
    memcpy(x, k_logits, sizeof x);
    assert_int_equal(ob_sampler_next(s, x, banned, n_banned, -1, &c, NULL, &e), OB_OK);
    return c.id;
}

static void test_greedy_takes_smallest_id_of_a_tie(void **state)
{
    (void)state;
    ob_sampler_params p;
    ob_sampler_defaults(&p);
    p.temperature = 0;
    ob_sampler *s = make(&p);
    assert_int_equal(next(s, NULL, 0), 1);
    const int32_t banned[] = {1, 3};
    assert_int_equal(next(s, banned, 2), 7);
    ob_sampler_free(s);
}

static void test_logprobs_are_of_the_raw_distribution(void **state)
{
    (void)state;
    ob_sampler_params p;
    ob_sampler_defaults(&p);
    p.temperature = 0;
    p.repeat_penalty = 1.5f;
    p.presence_penalty = 0.25f;
    ob_sampler *s = make(&p);
    ob_sampler_accept(s, 1);
    double sum = 0;
    for (int i = 0; i < N; i++) sum += exp((double)k_logits[i]);
    float x[N];
    ob_logprob c, top[5];
    ob_err e;
    memcpy(x, k_logits, sizeof x);
    assert_int_equal(ob_sampler_next(s, x, NULL, 0, 5, &c, top, &e), OB_OK);
    assert_int_equal(c.id, 3); /* 1 was seen */
    assert_true(fabs((double)c.logprob - (2.0 - log(sum))) < 1e-5);
    const int32_t order[5] = {1, 3, 7, 4, 0};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(top[i].id, order[i]);
        assert_true(fabs((double)top[i].logprob - ((double)k_logits[order[i]] - log(sum))) < 1e-5);
    }
    /* the penalised token itself: its log-probability is still the raw one */
    ob_logit_bias only = {1, 50};
    p.bias = &only;
    p.n_bias = 1;
    ob_sampler *t = make(&p);
    ob_sampler_accept(t, 1);
    memcpy(x, k_logits, sizeof x);
    assert_int_equal(ob_sampler_next(t, x, NULL, 0, 0, &c, NULL, &e), OB_OK);
    assert_int_equal(c.id, 1);
    assert_true(fabs((double)c.logprob) < 1e-5);
    ob_sampler_free(s);
    ob_sampler_free(t);
}

/* Draw many and compare with the distribution that the cuts leave. */
static void expect_distribution(ob_sampler_params *p, const double want[N])
{
    enum { DRAWS = 200000 };
    int count[N] = {0};
    p->has_seed = true;
    p->seed = 7;
    ob_sampler *s = make(p);
    for (int i = 0; i < DRAWS; i++) count[next(s, NULL, 0)]++;
    for (int i = 0; i < N; i++) {
        double sd = sqrt(want[i] * (1 - want[i]) / DRAWS);
        assert_true(fabs((double)count[i] / DRAWS - want[i]) <= 5 * sd + 1e-12);
    }
    ob_sampler_free(s);
}

static void softmax(double t, const int *keep, double out[N])
{
    double sum = 0;
    for (int i = 0; i < N; i++) sum += out[i] = keep[i] ? exp((double)k_logits[i] / t) : 0;
    for (int i = 0; i < N; i++) out[i] /= sum;
}

static void test_cuts(void **state)
{
    (void)state;
    double want[N];
    ob_sampler_params p;
    ob_sampler_defaults(&p);
    p.top_k = 0;
    p.top_p = 1;
    p.min_p = 0;
    p.temperature = 0.7f;
    softmax((double)p.temperature, (int[N]){1, 1, 1, 1, 1, 1, 1, 1}, want);
    expect_distribution(&p, want);
    p.top_k = 3;
    softmax((double)p.temperature, (int[N]){0, 1, 0, 1, 0, 0, 0, 1}, want);
    expect_distribution(&p, want);
    p.top_k = 0;
    p.min_p = 0.3f; /* keeps logits within 0.7 * ln(1/0.3) = 0.84 of the best */
    softmax((double)p.temperature, (int[N]){0, 1, 0, 1, 0, 0, 0, 1}, want);
    expect_distribution(&p, want);
    p.min_p = 0;
    p.top_p = 0.5f; /* the two best hold more than half */
    softmax((double)p.temperature, (int[N]){0, 1, 0, 1, 0, 0, 0, 0}, want);
    expect_distribution(&p, want);
    p.top_p = 0.0f; /* always at least one */
    softmax((double)p.temperature, (int[N]){0, 1, 0, 0, 0, 0, 0, 0}, want);
    expect_distribution(&p, want);
}

static void test_seeds(void **state)
{
    (void)state;
    ob_sampler_params p;
    ob_sampler_defaults(&p);
    p.has_seed = true;
    p.seed = 42;
    ob_sampler *a = make(&p), *b = make(&p);
    p.seed = 43;
    ob_sampler *c = make(&p);
    int differs = 0;
    for (int i = 0; i < 200; i++) {
        int32_t x = next(a, NULL, 0);
        assert_int_equal(x, next(b, NULL, 0));
        differs += x != next(c, NULL, 0);
    }
    assert_true(differs > 20);
    ob_sampler_free(a);
    ob_sampler_free(b);
    ob_sampler_free(c);
}

static void test_penalties_forget_old_tokens(void **state)
{
    (void)state;
    ob_sampler_params p;
    ob_sampler_defaults(&p);
    p.temperature = 0;
    p.frequency_penalty = 2;
    p.repeat_last_n = 2;
    ob_sampler *s = make(&p);
    ob_sampler_accept(s, 1);
    assert_int_equal(next(s, NULL, 0), 3);
    ob_sampler_accept(s, 5);
    assert_int_equal(next(s, NULL, 0), 3);
    ob_sampler_accept(s, 6); /* 1 is out of sight now */
    assert_int_equal(next(s, NULL, 0), 1);
    ob_sampler_free(s);
}

static void test_bad_values(void **state)
{
    (void)state;
    ob_sampler_params p;
    ob_err e;
    ob_sampler *s;
    ob_logit_bias outside = {N, 1};
    ob_sampler_defaults(&p);
    p.temperature = NAN;
    assert_int_equal(ob_sampler_new(&p, N, 0, &s, &e), OB_E_INVALID);
    assert_non_null(strstr(e.text, "temperature"));
    ob_sampler_defaults(&p);
    p.top_p = 1.5f;
    assert_int_equal(ob_sampler_check(&p, N, &e), OB_E_INVALID);
    assert_non_null(strstr(e.text, "top_p"));
    ob_sampler_defaults(&p);
    p.bias = &outside;
    p.n_bias = 1;
    assert_int_equal(ob_sampler_check(&p, N, &e), OB_E_INVALID);
    assert_non_null(strstr(e.text, "logit_bias"));
    /* NaN logits are an error of the device, not a token */
    ob_sampler_defaults(&p);
    s = make(&p);
    float x[N] = {0, NAN};
    ob_logprob c;
    assert_int_equal(ob_sampler_next(s, x, NULL, 0, -1, &c, NULL, &e), OB_E_DEVICE);
    int32_t all[N] = {0, 1, 2, 3, 4, 5, 6, 7};
    memcpy(x, k_logits, sizeof x);
    assert_int_equal(ob_sampler_next(s, x, all, N, -1, &c, NULL, &e), OB_E_INVALID);
    ob_sampler_free(s);
}

/* --- from the best of a row --------------------------------------------------------------------- */

enum { WIDE = 300, BEST = 64 };

/* What OB_OP_TOP_K says of x: by repeated search. */
static void best_of(const float *x, float *ids, float *logits, float *lse)
{
    bool used[WIDE] = {false};
    double sum = 0;
    for (int32_t j = 0; j < BEST; j++) {
        int32_t best = -1;
        for (int32_t i = 0; i < WIDE; i++)
            if (!used[i] && (best < 0 || x[i] > x[best])) best = i;
        used[best] = true;
        ids[j] = (float)best;
        logits[j] = x[best];
    }
    for (int32_t i = 0; i < WIDE; i++) sum += exp((double)x[i]);
    *lse = (float)log(sum);
}

static void test_best_of_a_row_gives_the_same_choice(void **state)
{
    (void)state;
    static const struct { float temperature; int32_t top_k; float top_p, min_p; int32_t n_top; size_t n_banned; } c[] = {
        {0, 40, 0.95f, 0.05f, -1, 0}, {0, 0, 1, 0, 5, 0},      {0.8f, 40, 0.95f, 0.05f, -1, 0}, {1.5f, 64, 1, 0, -1, 0},
        {1, 61, 0.9f, 0, -1, 3},      {2, 8, 1, 0, 20, 0},     {0, 1, 1, 0, -1, 3},             {0.3f, 1, 0.1f, 0.5f, 0, 0},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        ob_sampler_params p;
        ob_sampler_defaults(&p);
        p.temperature = c[i].temperature, p.top_k = c[i].top_k, p.top_p = c[i].top_p, p.min_p = c[i].min_p;
        p.has_seed = true, p.seed = 77 + i;
        ob_sampler *a, *b;
        ob_err e;
        assert_int_equal(ob_sampler_new(&p, WIDE, 20, &a, &e), OB_OK);
        assert_int_equal(ob_sampler_new(&p, WIDE, 20, &b, &e), OB_OK);
        uint32_t seed = 5;
        for (int round = 0; round < 200; round++) {
            float x[WIDE], y[WIDE], ids[BEST], logits[BEST], lse;
            ob_logprob ca, cb, ta[20], tb[20];
            for (int32_t k = 0; k < WIDE; k++) {
                seed = seed * 1664525u + 1013904223u;
                y[k] = x[k] = (float)(seed >> 24) / 32.0f; /* many ties */
            }
            best_of(x, ids, logits, &lse);
            const int32_t banned[3] = {(int32_t)ids[0], (int32_t)ids[2], 17};
            const ob_top_logits t = {.ids = ids, .logits = logits, .n = BEST, .log_sum_exp = lse};
            assert_false(ob_sampler_needs_row(b, BEST, c[i].n_banned, c[i].n_top));
            assert_int_equal(ob_sampler_next(a, y, banned, c[i].n_banned, c[i].n_top, &ca, ta, &e), OB_OK);
            assert_int_equal(ob_sampler_next_top(b, &t, banned, c[i].n_banned, c[i].n_top, &cb, tb, &e), OB_OK);
            assert_int_equal(ca.id, cb.id);
            assert_float_equal(ca.logprob, cb.logprob, 1e-5);
            for (int32_t k = 0; k < c[i].n_top; k++) {
                assert_int_equal(ta[k].id, tb[k].id);
                assert_float_equal(ta[k].logprob, tb[k].logprob, 1e-5);
            }
        }
        ob_sampler_free(a);
        ob_sampler_free(b);
    }
}

static bool needs_row(const ob_sampler_params *p, size_t n_banned, int32_t n_top)
{
    ob_sampler *s;
    ob_err e;
    assert_int_equal(ob_sampler_new(p, WIDE, 20, &s, &e), OB_OK);
    const bool needs = ob_sampler_needs_row(s, BEST, n_banned, n_top);
    ob_sampler_free(s);
    return needs;
}

static void test_when_the_whole_row_is_needed(void **state)
{
    (void)state;
    ob_sampler_params usual, p;
    ob_sampler_defaults(&usual);
    assert_false(needs_row(&usual, 0, -1));
    p = usual, p.top_k = 0;
    assert_true(needs_row(&p, 0, -1));
    p = usual, p.top_k = 65;
    assert_true(needs_row(&p, 0, -1));
    p = usual, p.top_k = 62;
    assert_false(needs_row(&p, 2, -1));
    assert_true(needs_row(&p, 3, -1));
    assert_true(needs_row(&usual, 1, 0)); /* bans change log-probabilities */
    assert_false(needs_row(&usual, 0, 20));
    p = usual, p.repeat_penalty = 1.1f;
    assert_true(needs_row(&p, 0, -1));
    const ob_logit_bias bias = {3, 1};
    p = usual, p.bias = &bias, p.n_bias = 1;
    assert_true(needs_row(&p, 0, -1));
    p = usual, p.temperature = 0, p.top_k = 0;
    assert_false(needs_row(&p, 0, -1));

    ob_sampler *s = make(&p);
    const float ids[2] = {1, -1}, logits[2] = {0, -INFINITY};
    ob_top_logits t = {.ids = ids, .logits = logits, .n = 2, .nan = true};
    ob_logprob c;
    ob_err e;
    assert_int_equal(ob_sampler_next_top(s, &t, NULL, 0, -1, &c, NULL, &e), OB_E_DEVICE);
    t.nan = false;
    assert_int_equal(ob_sampler_next_top(s, &t, (int32_t[]){1}, 1, -1, &c, NULL, &e), OB_E_INVALID);
    ob_sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_takes_smallest_id_of_a_tie),
        cmocka_unit_test(test_logprobs_are_of_the_raw_distribution),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_penalties_forget_old_tokens),
        cmocka_unit_test(test_best_of_a_row_gives_the_same_choice),
        cmocka_unit_test(test_when_the_whole_row_is_needed),
        cmocka_unit_test(test_bad_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
