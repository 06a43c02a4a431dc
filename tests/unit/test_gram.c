/* Grammars over a real vocabulary (a golden model's): a greedy walk that may only take what is allowed. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "base/alloc.h"
#include "fmt/fmt.h"
#include "gram/gram.h"

#define MODEL OB_TEST_DATA "/golden/qwen2.gguf"

typedef struct fixture {
    ob_file *file;
    ob_tok *tok;
    ob_gram_vocab *vocab;
    float *logits;
    int32_t n;
} fixture;

static int set_up(void **state)
{
    static fixture f;
    ob_err err;
    assert_int_equal(ob_file_open(MODEL, 0, &f.file, &err), OB_OK);
    assert_int_equal(ob_tok_new(f.file, &f.tok, &err), OB_OK);
    assert_int_equal(ob_gram_vocab_new(f.tok, &f.vocab, &err), OB_OK);
    f.n = ob_tok_n_vocab(f.tok);
    f.logits = malloc((size_t)f.n * sizeof *f.logits);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    free(f->logits);
    ob_gram_vocab_free(f->vocab);
    ob_tok_free(f->tok);
    ob_file_close(f->file);
    return 0;
}

/* Walk `steps` tokens with logits drawn from `seed`; the text goes to out. True: an end token came. */
static bool walk(fixture *f, ob_gram *g, unsigned seed, int steps, char *out, size_t cap)
{
    ob_err err;
    size_t n = 0;
    for (int k = 0; k < steps; k++) {
        for (int32_t i = 0; i < f->n; i++) {
            seed = seed * 1664525u + 1013904223u;
            f->logits[i] = (float)(seed >> 8) / (1 << 24);
        }
        if (ob_gram_active(g)) assert_int_equal(ob_gram_mask(g, f->logits, f->n, &err), OB_OK);
        int32_t best = 0;
        for (int32_t i = 1; i < f->n; i++)
            if (f->logits[i] > f->logits[best]) best = i;
        assert_true(isfinite(f->logits[best])); /* something is always allowed */
        assert_int_equal(ob_gram_accept(g, best, &err), OB_OK);
        if (ob_tok_is_eog(f->tok, best)) return true;
        size_t len;
        const char *piece = ob_tok_piece(f->tok, best, &len);
        assert_true(n + len < cap);
        memcpy(out + n, piece, len);
        out[n += len] = 0;
    }
    return false;
}

static void test_schema(void **state)
{
    fixture *f = *state;
    ob_err err;
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"a\",\"bb\"]},\"n\":{\"type\":\"integer\","
                                 "\"minimum\":1,\"maximum\":99},\"ok\":{\"type\":\"boolean\"}},\"required\":[\"kind\",\"n\",\"ok\"],"
                                 "\"additionalProperties\":false}";
    int ended = 0;
    for (unsigned seed = 1; seed <= 12; seed++) {
        ob_gram *g;
        char text[8192] = "";
        const ob_gram_spec spec = {.kind = OB_GRAM_JSON_SCHEMA, .text = schema, .len = strlen(schema)};
        assert_int_equal(ob_gram_new(f->vocab, &spec, &g, &err), OB_OK);
        assert_true(ob_gram_active(g));
        if (walk(f, g, seed, 400, text, sizeof text)) { /* random walks like white space: some are cut off */
            json_t *j = json_loads(text, 0, NULL);
            assert_non_null(j);
            const char *kind = json_string_value(json_object_get(j, "kind"));
            assert_true(!strcmp(kind, "a") || !strcmp(kind, "bb"));
            assert_in_range(json_integer_value(json_object_get(j, "n")), 1, 99);
            assert_true(json_is_boolean(json_object_get(j, "ok")));
            json_decref(j);
            ended++;
        }
        ob_gram_free(g);
    }
    assert_true(ended >= 3);
}

static void accept_text(fixture *f, ob_gram *g, const char *text)
{
    ob_err err;
    int32_t *ids;
    size_t n;
    assert_int_equal(ob_tok_encode(f->tok, text, strlen(text), 0, &ids, &n, &err), OB_OK);
    for (size_t i = 0; i < n; i++) assert_int_equal(ob_gram_accept(g, ids[i], &err), OB_OK);
    ob_free(ids);
}

static void test_waits(void **state)
{
    fixture *f = *state;
    ob_err err;
    ob_gram *g;
    const ob_gram_spec spec = {.kind = OB_GRAM_REGEX, .text = "[0-9]{3};", .len = 9, .after = "number: ", .again = true};
    assert_int_equal(ob_gram_new(f->vocab, &spec, &g, &err), OB_OK);
    for (int round = 0; round < 3; round++) {
        accept_text(f, g, "free text, a number");
        assert_false(ob_gram_active(g));
        accept_text(f, g, " number: ");
        assert_true(ob_gram_active(g));
        for (int32_t i = 0; i < f->n; i++) f->logits[i] = 0;
        assert_int_equal(ob_gram_mask(g, f->logits, f->n, &err), OB_OK);
        for (int32_t i = 0; i < f->n; i++) {
            size_t len;
            const char *s = ob_tok_piece(f->tok, i, &len);
            if (isfinite(f->logits[i])) assert_true(len && s[0] >= '0' && s[0] <= '9');
        }
        accept_text(f, g, "123;");
        assert_false(ob_gram_active(g)); /* complete: it waits again */
    }
    ob_gram_free(g);
}

static void test_refusals(void **state)
{
    fixture *f = *state;
    ob_err err;
    ob_gram *g;
    static const struct {
        ob_gram_kind kind;
        const char *text;
    } bad[] = {{OB_GRAM_JSON_SCHEMA, "{"}, {OB_GRAM_JSON_SCHEMA, "{\"type\":\"strange\"}"}, {OB_GRAM_REGEX, "(a"}, {OB_GRAM_LARK, "start: missing"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const ob_gram_spec spec = {.kind = bad[i].kind, .text = bad[i].text, .len = strlen(bad[i].text)};
        assert_int_equal(ob_gram_new(f->vocab, &spec, &g, &err), OB_E_INVALID);
        assert_null(g);
        assert_true(strlen(err.text) > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_schema), cmocka_unit_test(test_waits), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
