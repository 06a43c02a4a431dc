/* Unit tests of engine/: requests over the golden llama, alone and together, reuse, cancel, limits,
 * stop strings, and the rule that a decode step allocates nothing. */
#include "reply.h"
#include "test.h"

#include "base/alloc.h"
#include "engine/engine.h"
#include "engine/stop.h"

#define MODEL OB_TEST_DATA "/golden/llama.gguf"

static ob_engine *make(int n_seq, int n_ctx)
{
    ob_engine_params p;
    ob_engine *e;
    ob_err err = {0};
    ob_engine_defaults(&p);
    p.model_path = MODEL;
    p.device = "cpu";
    p.n_seq = n_seq;
    p.n_ctx = n_ctx;
    p.n_threads = 2;
    if (ob_engine_new(&p, &e, &err) != OB_OK) fail_msg("%s", err.text);
    return e;
}

static reply *start(ob_engine *e, const int32_t *prompt, size_t n, int max_tokens, uint64_t seed)
{
    ob_request_params p;
    ob_request_defaults(&p);
    p.prompt = prompt;
    p.n_prompt = n;
    p.max_tokens = max_tokens;
    p.ignore_eos = true;
    p.sampler.temperature = seed ? 1.0f : 0.0f;
    p.sampler.has_seed = true;
    p.sampler.seed = seed;
    return reply_new(e, &p);
}

static void fill(int32_t *tok, int n, unsigned seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1103515245u + 12345u;
        tok[i] = 3 + (int32_t)((seed >> 16) % 400);
    }
}

/* Many requests at once, more than slots, long and short, greedy and sampled: each gives the tokens it
 * gives alone. */
static void test_together_as_alone(void **state)
{
    (void)state;
    enum { N = 9, OUT = 40 };
    static int32_t prompt[N][300];
    int len[N];
    reply *alone[N], *with[N];
    ob_engine *one = make(1, 512), *four = make(4, 512);
    for (int i = 0; i < N; i++) {
        len[i] = 1 + (i * 37) % 290;
        fill(prompt[i], len[i], (unsigned)i + 1);
        alone[i] = start(one, prompt[i], (size_t)len[i], OUT, (uint64_t)(i % 3));
        reply_wait(alone[i]);
    }
    for (int i = 0; i < N; i++) with[i] = start(four, prompt[i], (size_t)len[i], OUT, (uint64_t)(i % 3));
    for (int i = 0; i < N; i++) {
        reply_wait(with[i]);
        assert_int_equal(with[i]->n, OUT);
        assert_int_equal(with[i]->finish, OB_FINISH_LENGTH);
        assert_memory_equal(with[i]->ids, alone[i]->ids, OUT * sizeof(int32_t));
        assert_int_equal(with[i]->len, alone[i]->len);
        assert_memory_equal(with[i]->text, alone[i]->text, alone[i]->len);
        reply_drop(with[i]);
        reply_drop(alone[i]);
    }
    ob_engine_stats st;
    ob_engine_get_stats(four, &st);
    assert_int_equal(st.n_done, N);
    assert_int_equal(st.n_running, 0);
    assert_int_equal(st.kv_tok_total, 4 * 512);
    ob_engine_free(one);
    ob_engine_free(four);
}

static void test_prefix_is_reused_with_the_same_tokens(void **state)
{
    (void)state;
    int32_t prompt[200];
    fill(prompt, 200, 77);
    ob_engine *e = make(2, 512);
    reply *a = start(e, prompt, 200, 30, 0);
    reply_wait(a);
    assert_int_equal(a->timings.n_cached, 0);
    reply *b = start(e, prompt, 200, 30, 0); /* a retry: all but the last token is there */
    reply_wait(b);
    assert_int_equal(b->timings.n_cached, 199);
    assert_memory_equal(a->ids, b->ids, 30 * sizeof(int32_t));
    int32_t longer[240]; /* the next turn: prompt, reply, something new */
    memcpy(longer, prompt, sizeof prompt);
    memcpy(longer + 200, a->ids, 29 * sizeof(int32_t));
    fill(longer + 229, 11, 5);
    reply *c = start(e, longer, 240, 5, 0);
    reply_wait(c);
    assert_int_equal(c->timings.n_cached, 229);
    ob_engine *fresh = make(1, 512);
    reply *d = start(fresh, longer, 240, 5, 0);
    reply_wait(d);
    assert_int_equal(d->timings.n_cached, 0);
    assert_memory_equal(c->ids, d->ids, 5 * sizeof(int32_t));
    reply_drop(a);
    reply_drop(b);
    reply_drop(c);
    reply_drop(d);
    ob_engine_free(e);
    ob_engine_free(fresh);
}

static void test_cancel_and_free_early(void **state)
{
    (void)state;
    int32_t prompt[400];
    fill(prompt, 400, 3);
    ob_engine *e = make(1, 512);
    reply *a = start(e, prompt, 400, 100, 0), *b = start(e, prompt, 10, 100, 0), *c = start(e, prompt, 10, 3, 0);
    ob_request_cancel(b->req); /* still waiting */
    reply_wait(b);
    assert_int_equal(b->finish, OB_FINISH_CANCELLED);
    ob_request_cancel(a->req);
    ob_request_cancel(a->req);
    reply_wait(a);
    assert_true(a->finish == OB_FINISH_CANCELLED || a->finish == OB_FINISH_LENGTH);
    reply_wait(c);
    assert_int_equal(c->finish, OB_FINISH_LENGTH);
    reply *d = start(e, prompt, 400, 100, 0);
    reply_drop(d); /* freed while it runs: no event may come after this */
    reply *f = start(e, prompt, 20, 3, 0);
    reply_wait(f);
    assert_int_equal(f->n, 3);
    reply_drop(a);
    reply_drop(b);
    reply_drop(c);
    reply_drop(f);
    reply *g = start(e, prompt, 400, 100, 0);
    ob_request *req = g->req;
    (void)req;
    reply_drop(g);
    ob_engine_free(e);
}

static void test_limits(void **state)
{
    (void)state;
    int32_t prompt[128];
    ob_request_params p;
    ob_request *r;
    ob_err err;
    fill(prompt, 128, 9);
    ob_engine *e = make(1, 128);
    ob_request_defaults(&p);
    p.prompt = prompt;
    p.n_prompt = 128;
    assert_int_equal(ob_engine_submit(e, &p, &r, &err), OB_E_CONTEXT_LENGTH);
    assert_int_equal(err.n_prompt_tok, 128);
    assert_int_equal(err.n_ctx, 128);
    p.n_prompt = 0;
    assert_int_equal(ob_engine_submit(e, &p, &r, &err), OB_E_INVALID);
    p.n_prompt = 4;
    prompt[2] = 512;
    assert_int_equal(ob_engine_submit(e, &p, &r, &err), OB_E_INVALID);
    prompt[2] = 4;
    p.sampler.top_p = -1;
    assert_int_equal(ob_engine_submit(e, &p, &r, &err), OB_E_INVALID);
    assert_non_null(strstr(err.text, "top_p"));
    /* to the last token of the context and no further */
    reply *a = start(e, prompt, 100, -1, 0);
    reply_wait(a);
    assert_int_equal(a->n, 28);
    assert_int_equal(a->finish, OB_FINISH_LENGTH);
    reply_drop(a);
    ob_engine_free(e);
}

static void test_decode_allocates_nothing(void **state)
{
    (void)state;
    int32_t prompt[3][70];
    reply *r[3];
    uint64_t before = ob_alloc_violations();
    ob_engine *e = make(3, 512);
    for (int i = 0; i < 3; i++) {
        fill(prompt[i], 70, (unsigned)i);
        r[i] = start(e, prompt[i], 70, 150, (uint64_t)i);
    }
    for (int i = 0; i < 3; i++) reply_wait(r[i]);
    for (int i = 0; i < 3; i++) reply_drop(r[i]);
    ob_engine_free(e);
    assert_int_equal(ob_alloc_violations(), before);
}

/* Every allocation of a load failing in turn: an error, no crash, nothing leaked (under ASan). */
static void test_load_without_memory(void **state)
{
    (void)state;
    ob_engine_params p;
    ob_engine_defaults(&p);
    p.model_path = MODEL;
    p.device = "cpu";
    p.n_ctx = 64;
    p.n_threads = 1;
    for (int64_t n = 0; n < 100000; n += n < 60 ? 1 : 37) {
        ob_engine *e = NULL;
        ob_err err = {0};
        ob_alloc_fail_after(n);
        ob_status s = ob_engine_new(&p, &e, &err);
        ob_alloc_fail_after(-1);
        if (s == OB_OK) {
            ob_engine_free(e);
            return;
        }
        assert_int_equal(s, OB_E_NO_MEMORY);
    }
    fail_msg("the load never succeeded");
}

static void scan(const ob_stop *s, const char *text, size_t want_show, int want_hit)
{
    size_t show = 0;
    int hit;
    ob_stop_scan(s, text, strlen(text), &show, &hit);
    assert_int_equal(hit, want_hit);
    assert_int_equal(show, want_show);
}

static void test_stop_strings(void **state)
{
    (void)state;
    const char *list[] = {"\nUser:", "END", "EN"};
    ob_stop s;
    ob_err e;
    assert_int_equal(ob_stop_init(&s, list, 2, &e), OB_OK);
    scan(&s, "hello", 5, -1);
    scan(&s, "hello\n", 5, -1);
    scan(&s, "hello\nUse", 5, -1);
    scan(&s, "hello\nUsed", 10, -1);
    scan(&s, "hello\nUser: x END", 5, 0);
    scan(&s, "a END b", 2, 1);
    scan(&s, "aEEN", 2, -1);
    scan(&s, "", 0, -1);
    ob_stop_deinit(&s);
    assert_int_equal(ob_stop_init(&s, list, 3, &e), OB_OK);
    scan(&s, "xEND", 1, 2); /* the one that ends first */
    ob_stop_deinit(&s);
    const char *empty[] = {""};
    assert_int_equal(ob_stop_init(&s, empty, 1, &e), OB_E_INVALID);
    static const char *many[10000];
    for (int i = 0; i < 10000; i++) many[i] = "x";
    assert_int_equal(ob_stop_init(&s, many, 10000, &e), OB_E_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_together_as_alone),
        cmocka_unit_test(test_prefix_is_reused_with_the_same_tokens),
        cmocka_unit_test(test_cancel_and_free_early),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_decode_allocates_nothing),
        cmocka_unit_test(test_load_without_memory),
        cmocka_unit_test(test_stop_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
