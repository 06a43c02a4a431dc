/* The public header alone: what a program that embeds the engine sees. */
#include "onebit.h"

#include "test.h"

#include <math.h>

#define MODEL OB_TEST_DATA "/golden/llama.gguf"

static int argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static bool stop_after_three(void *arg, const char *text, size_t len)
{
    (void)text;
    (void)len;
    return ++*(int *)arg < 3;
}

/* Greedy generation by hand, token by token, and by onebit_generate: the same tokens. */
static void test_session_and_generate_agree(void **state)
{
    (void)state;
    onebit_model *m;
    onebit_session *s;
    onebit_error e;
    onebit_info info;
    onebit_options o = {.device = "cpu", .n_ctx = 256, .n_threads = 1};
    int32_t ids[21] = {5, 9, 44, 70, 12, 30, 99, 200, 3, 17, 25};
    const float *logits;
    if (onebit_model_open(MODEL, &o, &m, &e)) fail_msg("%s", e.text);
    onebit_model_info(m, &info);
    assert_string_equal(info.arch, "llama");
    assert_int_equal(info.n_ctx, 256);
    assert_int_equal(onebit_session_new(m, &s, &e), 0);
    assert_int_equal(onebit_session_feed(s, ids, 11, &logits, &e), 0);
    char text[512] = "";
    size_t len = 0;
    for (int i = 11; i < 21; i++) {
        ids[i] = argmax(logits, info.n_vocab);
        size_t n;
        const char *piece = onebit_token_text(m, ids[i], &n);
        memcpy(text + len, piece, n);
        len += n;
        assert_int_equal(onebit_session_feed(s, &ids[i], 1, &logits, &e), 0);
    }
    assert_int_equal(onebit_session_len(s), 21);
    onebit_result r;
    onebit_sampling greedy;
    onebit_sampling_defaults(&greedy);
    greedy.temperature = 0;
    assert_int_not_equal(onebit_generate(m, ids, 11, 10, &greedy, NULL, 0, NULL, NULL, &r, &e), 0);
    assert_string_equal(e.name, "busy"); /* the session is still open */
    onebit_session_free(s);
    assert_int_equal(onebit_generate(m, ids, 11, 10, &greedy, NULL, 0, NULL, NULL, &r, &e), 0);
    bool ended = false; /* a random model may choose an end token */
    for (int i = 11; i < 21; i++) ended |= onebit_token_ends(m, ids[i]);
    if (!ended) {
        assert_int_equal(r.n_generated, 10);
        assert_string_equal(r.finish, "length");
    }
    onebit_result_free(&r);
    int calls = 0;
    assert_int_equal(onebit_generate(m, ids, 11, 200, &greedy, NULL, 0, stop_after_three, &calls, &r, &e), 0);
    assert_true(!strcmp(r.finish, "cancelled") || !strcmp(r.finish, "stop"));
    assert_true(calls <= 4);
    onebit_result_free(&r);
    onebit_model_free(m);
}

static void test_errors(void **state)
{
    (void)state;
    onebit_model *m;
    onebit_error e;
    onebit_result r;
    int32_t ids[64] = {0};
    assert_int_not_equal(onebit_model_open("/nowhere/x.gguf", NULL, &m, &e), 0);
    assert_string_equal(e.name, "not_found");
    onebit_options o = {.device = "warp", .n_ctx = 64};
    assert_int_not_equal(onebit_model_open(MODEL, &o, &m, &e), 0);
    assert_non_null(strstr(e.text, "warp"));
    o.device = "cpu";
    assert_int_equal(onebit_model_open(MODEL, &o, &m, &e), 0);
    assert_int_not_equal(onebit_generate(m, ids, 64, 5, NULL, NULL, 0, NULL, NULL, &r, &e), 0);
    assert_string_equal(e.name, "context_length");
    assert_int_equal(e.n_prompt, 64);
    assert_int_equal(e.n_ctx, 64);
    int32_t *list;
    size_t n;
    assert_int_equal(onebit_tokenize(m, "def main", 8, true, &list, &n, &e), 0);
    assert_true(n > 0);
    onebit_ids_free(list);
    onebit_model_free(m);
    assert_non_null(onebit_version());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session_and_generate_agree),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
