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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_takes_smallest_id_of_a_tie),
        cmocka_unit_test(test_logprobs_are_of_the_raw_distribution),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_penalties_forget_old_tokens),
        cmocka_unit_test(test_bad_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
