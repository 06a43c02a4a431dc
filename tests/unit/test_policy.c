/* Policies: files, choices, predictions, and the memory of conversations. */
#include <math.h>

#include "route/policy.h"
#include "route/sticky.h"
#include "test.h"

#define ROWS(a, b, c, d)                                                                                                       \
    "\"classes\":{\"code\":{\"device\":\"" a "\"},\"prose\":{\"device\":\"" b "\"},\"short\":{\"device\":\"" c "\"},\"long_doc\":{\"device\":\"" d \
    "\"}}"

static ob_status parse(const char *text, ob_policy *p, ob_err *err) { return ob_policy_parse(text, strlen(text), "policy", p, err); }

static void test_files(void **state)
{
    (void)state;
    ob_policy p;
    ob_err err;
    assert_int_equal(parse("{\"min_confidence\":0.2,\"default\":\"cpu\"," ROWS("vulkan", "cpu", "cpu", "vulkan") "}", &p, &err), OB_OK);
    assert_true(p.min_confidence == 0.2);
    assert_string_equal(p.target[OB_CLASS_CODE], "vulkan");
    static const struct { const char *text, *says; } wrong[] = {
        {"[1", "not JSON"},
        {"{\"default\":\"cpu\"}", "classes is missing"},
        {"{" ROWS("cpu", "cpu", "cpu", "cpu") "}", "default"},
        {"{\"default\":\"cpu\",\"classes\":{\"code\":{\"device\":\"cpu\"}}}", "classes.prose is missing"},
        {"{\"default\":\"cpu\",\"classes\":{\"code\":{},\"prose\":{},\"short\":{},\"long_doc\":{}}}", "classes.code.device"},
        {"{\"default\":\"cpu\",\"classes\":{\"other\":{\"device\":\"cpu\"}}}", "classes.other"},
        {"{\"min_confidence\":-1,\"default\":\"cpu\"," ROWS("a", "b", "c", "d") "}", "min_confidence"},
        {"{\"default\":\"cpu\"," ROWS("a", "b", "c", "d") ",\"measured\":{\"targets\":[{\"target\":\"a\"}]}}", "has no times"},
        {"{\"default\":\"cpu\"," ROWS("a", "b", "c", "d") ",\"measured\":{\"targets\":[{\"target\":\"a\",\"times\":[{\"n_prompt\":9},{\"n_prompt\":9}]}]}}", "ascend"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(parse(wrong[i].text, &p, &err), OB_E_INVALID);
        if (!strstr(err.text, wrong[i].says)) fail_msg("\"%s\" does not say \"%s\"", err.text, wrong[i].says);
    }
    assert_int_equal(ob_policy_load("/no/such/file", &p, &err), OB_E_NOT_FOUND);
}

static const ob_candidate k_two[] = {{.name = "cpu", .n_seq = 4}, {.name = "vulkan", .n_seq = 4}};

static void test_pick(void **state)
{
    (void)state;
    ob_policy p;
    ob_err err;
    assert_int_equal(parse("{\"min_confidence\":0.3,\"default\":\"cpu\"," ROWS("vulkan", "hrx", "cpu", "vulkan") "}", &p, &err), OB_OK);
    assert_int_equal(ob_policy_pick(&p, OB_CLASS_CODE, 0.5, 100, k_two, 2).target, 1);
    assert_int_equal(ob_policy_pick(&p, OB_CLASS_CODE, 0.29, 100, k_two, 2).target, 0);     /* below the floor */
    assert_int_equal(ob_policy_pick(&p, OB_CLASS_PROSE, 0.9, 100, k_two, 2).target, 0);     /* its device is absent */
    assert_int_equal(ob_policy_pick(&p, OB_CLASS_COUNT, 0.9, 100, k_two, 2).target, 0);     /* no class: no scorer */
    assert_int_equal(ob_policy_pick(&p, OB_CLASS_CODE, 0.9, 100, k_two, 1).target, 0);      /* first candidate */
    p.min_confidence = 1.1;
    for (int c = 0; c < OB_CLASS_COUNT; c++) assert_int_equal(ob_policy_pick(&p, (ob_class)c, 1, 100, k_two, 2).target, 0);
}

static ob_policy measured(double cpu_ttft, double cpu_tok, double gpu_ttft, double gpu_tok, double spread)
{
    ob_policy p;
    ob_policy_default(&p);
    strcpy(p.fallback, "cpu");
    ob_measured *m = &p.measured;
    m->n_targets = 2;
    strcpy(m->targets[0].name, "cpu");
    strcpy(m->targets[1].name, "vulkan");
    for (int t = 0; t < 2; t++) {
        m->targets[t].n = 2;
        for (int i = 0; i < 2; i++)
            m->targets[t].at[i] = (ob_measure){.n_prompt = i ? 1000 : 100, .ttft_ms = (t ? gpu_ttft : cpu_ttft) * (i ? 10 : 1),
                                               .token_ms = t ? gpu_tok : cpu_tok, .busy_token_ms = 2 * (t ? gpu_tok : cpu_tok), .spread = spread};
    }
    ob_policy_decide(&p);
    return p;
}

static void test_measured(void **state)
{
    (void)state;
    ob_policy p = measured(100, 20, 50, 5, 0.01); /* vulkan better everywhere */
    for (int c = 0; c < OB_CLASS_COUNT; c++) assert_string_equal(p.target[c], "vulkan");
    p = measured(100, 20, 98, 19.6, 0.01); /* 2 % is within the margin: the first stays */
    for (int c = 0; c < OB_CLASS_COUNT; c++) assert_string_equal(p.target[c], "cpu");
    p = measured(100, 20, 80, 16, 0.15); /* 20 % better, but the runs differed by as much */
    for (int c = 0; c < OB_CLASS_COUNT; c++) assert_string_equal(p.target[c], "cpu");
    p = measured(10, 20, 300, 5, 0.01); /* starts late, then runs: short goes to the CPU, long replies do not */
    assert_string_equal(p.target[OB_CLASS_SHORT], "cpu");
    assert_string_equal(p.target[OB_CLASS_PROSE], "vulkan");
    /* predictions: a straight line between lengths */
    p = measured(100, 20, 50, 5, 0);
    double ttft;
    const double all = ob_policy_predict(&p, "cpu", OB_CLASS_SHORT, 550, 0, 4, &ttft);
    assert_true(fabs(ttft - 550) < 1e-9);
    assert_true(fabs(all - (550 + p.measured.out_tok[OB_CLASS_SHORT] * 20.0)) < 1e-9);
    assert_true(isnan(ob_policy_predict(&p, "npu", OB_CLASS_SHORT, 550, 0, 4, NULL)));
    /* a queue sends a request elsewhere, and only one that is long enough */
    ob_candidate c[2] = {k_two[0], k_two[1]};
    assert_int_equal(ob_policy_pick(&p, OB_CLASS_CODE, 1, 100, c, 2).target, 1);
    c[1].n_ahead = 60;
    assert_int_equal(ob_policy_pick(&p, OB_CLASS_CODE, 1, 100, c, 2).target, 0);
}

static void test_round_trip(void **state)
{
    (void)state;
    ob_policy p = measured(100, 20, 50, 5, 0.02), q;
    ob_err err;
    ob_buf a, b;
    ob_buf_init(&a, 1 << 20);
    ob_buf_init(&b, 1 << 20);
    ob_policy_write(&p, &a);
    assert_int_equal(parse(ob_buf_str(&a), &q, &err), OB_OK);
    ob_policy_write(&q, &b);
    assert_string_equal(ob_buf_str(&a), ob_buf_str(&b));
    ob_buf_deinit(&a);
    ob_buf_deinit(&b);
}

static void test_sticky(void **state)
{
    (void)state;
    ob_sticky *s;
    ob_err err;
    assert_int_equal(ob_sticky_new(&s, &err), OB_OK);
    assert_null(ob_sticky_find(s, 7));
    /* many keys that want the same slots, more than there is room for */
    for (uint64_t k = 0; k < 3 * OB_MAX_STICKY; k++) ob_sticky_put(s, (k << 40) | (k % 50), &(ob_stuck){.target = (int32_t)k});
    for (uint64_t k = 0; k < 3 * OB_MAX_STICKY; k++) {
        const ob_stuck *v = ob_sticky_find(s, (k << 40) | (k % 50));
        if (k < 2 * OB_MAX_STICKY) assert_null(v); /* the oldest went */
        else assert_int_equal(v->target, (int32_t)k);
    }
    ob_sticky_put(s, ((uint64_t)(3 * OB_MAX_STICKY - 1) << 40) | ((3 * OB_MAX_STICKY - 1) % 50), &(ob_stuck){.target = -5});
    assert_int_equal(ob_sticky_find(s, ((uint64_t)(3 * OB_MAX_STICKY - 1) << 40) | ((3 * OB_MAX_STICKY - 1) % 50))->target, -5);
    ob_sticky_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files), cmocka_unit_test(test_pick), cmocka_unit_test(test_measured),
                                       cmocka_unit_test(test_round_trip), cmocka_unit_test(test_sticky)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
