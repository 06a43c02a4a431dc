/* Unit tests of quant/fp_round.h, and of DeepSeek V4 with the roundings of its official implementation. */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include "base/math.h"
#include "engine/ctx.h"
#include "quant/fp_round.h"

#define MODEL OB_TEST_DATA "/golden/deepseek4.gguf"

static void test_formats(void **state)
{
    (void)state;
    static const struct { float x, e4m3, e2m1; } cases[] = {
        {0, 0, 0},         {1, 1, 1},           {0.25f, 0.25f, 0}, /* a tie: to the even one */
        {0.26f, 0.25f, 0.5f}, {0.75f, 0.75f, 1}, {1.25f, 1.25f, 1}, {1.75f, 1.75f, 2}, {2.5f, 2.5f, 2}, {3.5f, 3.5f, 4},
        {5, 5, 4},         {5.1f, 5, 6},        {17, 16, 6}, /* 16 and 18 are there */
        {19, 20, 6},       {500, 448, 6},       {-448, -448, -6},  {0.001f, 0.001953125f, 0}, {0.0009f, 0, 0}};
    for (size_t i = 0; i < OB_COUNT(cases); i++) {
        assert_float_equal(ob_round_e4m3(cases[i].x), cases[i].e4m3, 0);
        assert_float_equal(ob_round_e2m1(cases[i].x), cases[i].e2m1, 0);
    }
    assert_true(isnan(ob_round_e4m3(NAN)));
    /* All numbers of E4M3 stay: sign apart, exponent 1..15 and 3 bits, without the last, and subnormal ones. */
    for (int e = 0; e < 16; e++)
        for (int m = 0; m < 8; m++) {
            const float x = e ? ldexpf(1.0f + (float)m / 8, e - 7) : ldexpf((float)m / 8, -6);
            if (e < 15 || m < 7) assert_float_equal(ob_round_e4m3(x), x, 0);
        }
}

static void test_blocks(void **state)
{
    (void)state;
    float x[130], y[130];
    for (int i = 0; i < 130; i++) x[i] = y[i] = (float)((i * 37 % 101) - 50) * (i < 64 ? 100.0f : 0.001f);
    ob_round_e4m3_row(y, 130);
    for (int i = 0; i < 130; i++) assert_true(fabsf(y[i] - x[i]) <= fabsf(x[i]) / 16 + (i < 64 ? 2.0f : 2e-5f));
    /* Rotated: lengths stay, but for what 4 bits lose. */
    double before = 0, after = 0;
    for (int i = 0; i < 128; i++) before += (double)x[i] * (double)x[i];
    memcpy(y, x, sizeof y);
    ob_round_rotated(y, 128);
    for (int i = 0; i < 128; i++) after += (double)y[i] * (double)y[i];
    assert_true(fabs(after / before - 1) < 0.1);
}

static float *logits(const char *level, bool official, size_t *n)
{
    enum { N_TOK = 300 };
    ob_engine_params p;
    ob_ctx *c;
    ob_seq *seq;
    ob_err err = {0};
    const float *rows;
    int32_t tok[N_TOK];
    ob_engine_defaults(&p);
    p.model_path = MODEL;
    p.device = "cpu";
    p.n_ctx = 512;
    p.n_seq = 1;
    p.n_threads = 2;
    p.exact = true;
    p.k_type = p.v_type = OB_F32;
    p.official_rounding = official;
    if (level) setenv("OB_CPU", level, 1);
    else unsetenv("OB_CPU");
    if (ob_ctx_new(&p, &c, &err) != OB_OK) fail_msg("%s", err.text);
    assert_int_equal(ob_ctx_seq_new(c, &seq, &err), OB_OK);
    for (int i = 0; i < N_TOK; i++) tok[i] = 3 + (i * i * 7 + 11 * i) % 400;
    ob_chunk ch = {.seq = seq, .tok = tok, .n_tok = N_TOK, .n_out = 20};
    if (ob_ctx_step(c, &ch, 1, &rows, &err) != OB_OK) fail_msg("%s", err.text);
    *n = 20 * (size_t)ob_ctx_n_cols(c);
    float *out = test_malloc(*n * sizeof *out);
    memcpy(out, rows, *n * sizeof *out);
    ob_ctx_free(c);
    unsetenv("OB_CPU");
    return out;
}

static double distance(const float *a, const float *b, size_t n)
{
    double d = 0, l = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        l += (double)a[i] * (double)a[i];
    }
    return sqrt(d / l);
}

/* A tiny random model feels 3 bits in every key, and other entries chosen by the indexer, far more than a trained one.
 * The kernels round like the reference: a value near the middle of two steps may fall to either side, so the whole is
 * compared, and that is far below what the rounding itself changes. */
static void test_model(void **state)
{
    (void)state;
    size_t n;
    float *plain = logits(NULL, false, &n), *fast = logits(NULL, true, &n), *ref = logits("ref", true, &n);
    const double noise = distance(plain, fast, n), error = distance(ref, fast, n);
    print_message("official rounding changes logits by %.2g, kernels differ from the reference by %.2g\n", noise, error);
    assert_true(noise > 1e-3 && noise < 1);
    assert_true(error < noise / 5);
    test_free(plain);
    test_free(fast);
    test_free(ref);
}

static void test_other_models(void **state)
{
    (void)state;
    ob_engine_params p;
    ob_ctx *c;
    ob_err err = {0};
    ob_engine_defaults(&p);
    p.model_path = OB_TEST_DATA "/golden/llama.gguf";
    p.device = "cpu";
    p.official_rounding = true;
    assert_int_equal(ob_ctx_new(&p, &c, &err), OB_E_INVALID);
    assert_non_null(strstr(err.text, "DeepSeek V4"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_formats), cmocka_unit_test(test_blocks),
                                       cmocka_unit_test(test_model), cmocka_unit_test(test_other_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
