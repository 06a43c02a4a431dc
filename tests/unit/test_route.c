/* Routing below the server: questions, sequences and decisions of the scorer, on golden models. */
#include <math.h>

#include "base/alloc.h"
#include "base/json.h"
#include "npz.h"
#include "route/turns.h"
#include "test.h"

static ob_scorer *open_scorer(const char *name)
{
    char path[512];
    ob_engine_params p;
    ob_scorer *s = NULL;
    ob_err err;
    snprintf(path, sizeof path, "%s/golden/%s.gguf", OB_TEST_DATA, name);
    ob_engine_defaults(&p);
    p.model_path = path;
    p.device = getenv("OB_TEST_DEVICE") ? getenv("OB_TEST_DEVICE") : "cpu";
    p.n_seq = 0;
    p.n_threads = 2;
    p.exact = true;
    p.k_type = p.v_type = OB_F32;
    if (ob_scorer_new(&p, &s, &err) != OB_OK) fail_msg("%s: %s", name, err.text);
    return s;
}


/* Probabilities from the reference's logits, and logits and probabilities from the model. */
static void test_golden_probabilities(void **state)
{
    (void)state;
    static const double temperature[3] = {1.3, 0.9, 0.3}; /* the file's; the last is held at 0.5 */
    char path[512];
    snprintf(path, sizeof path, "%s/golden/laya.npz", OB_TEST_DATA);
    npz *z = npz_open(path);
    assert_non_null(z);
    const float *logits = npz_need(z, "logits", NPZ_F32)->data, *probs = npz_need(z, "probs", NPZ_F32)->data;
    const npz_array *tok = npz_need(z, "tokens", NPZ_I32), *marks = npz_need(z, "marks", NPZ_I32);
    ob_scorer *s = open_scorer("laya");
    for (int32_t type = 0; type < 3; type++) {
        ob_decision d = {0};
        float rows[3];
        ob_err err;
        const ob_encode_text text = {.tok = tok->data, .n_tok = (int32_t)tok->n_items, .type = type, .marks = marks->data, .n_marks = 3};
        if (ob_encoder_run((ob_encoder *)ob_scorer_encoder(s), &text, 1, rows, &err) != OB_OK) fail_msg("%s", err.text);
        ob_decision_make(&d, rows, 3, temperature[type]);
        int32_t best = 0;
        for (int32_t i = 0; i < 3; i++) {
            if (logits[3 * type + i] > logits[3 * type + best]) best = i;
            assert_true(fabsf(rows[i] - logits[3 * type + i]) <= 2e-5f); /* the file's own tolerance */
            assert_true(fabsf(d.probs[i] - probs[3 * type + i]) <= 1e-4f);
        }
        assert_int_equal(d.best, best);
    }
    ob_scorer_free(s);
    npz_close(z);
}

static void test_confidence(void **state)
{
    (void)state;
    ob_decision d;
    ob_decision_make(&d, (float[]){1, 1, 1}, 3, 1);
    assert_true(fabsf(d.confidence) < 1e-6f);
    ob_decision_make(&d, (float[]){-500, 500, -500}, 3, 1);
    assert_true(d.best == 1 && d.confidence > 0.999f && d.probs[1] > 0.999f);
    /* p = (3/4, 1/4): 1 - H / ln 2 */
    ob_decision_make(&d, (float[]){logf(3), 0}, 2, 1);
    const float want = 1 - (0.75f * logf(4.0f / 3) + 0.25f * logf(4)) / logf(2);
    assert_true(fabsf(d.confidence - want) < 1e-6f);
    /* a temperature is held within 0.5 and 5 */
    ob_decision a, b;
    ob_decision_make(&a, (float[]){2, 0}, 2, 0.01);
    ob_decision_make(&b, (float[]){2, 0}, 2, 0.5);
    assert_true(a.probs[0] == b.probs[0]);
    ob_decision_make(&a, (float[]){2, 0}, 2, 100);
    ob_decision_make(&b, (float[]){2, 0}, 2, 5);
    assert_true(a.probs[0] == b.probs[0]);
}

static ob_status parse(const char *text, ob_question *q, ob_err *err)
{
    json_t *v;
    assert_int_equal(ob_json_load(text, strlen(text), "test", &v, err), OB_OK);
    const ob_status s = ob_question_parse(v, "the question", q, err);
    json_decref(v);
    return s;
}

static void test_questions(void **state)
{
    (void)state;
    ob_question q;
    ob_err err;
    assert_int_equal(parse("{\"type\":\"choice\",\"instructions\":\"Which?\",\"options\":{\"a\":\"first\",\"b\":\"\"}}", &q, &err), OB_OK);
    assert_int_equal(q.n_options, 2);
    assert_string_equal(q.options[0].text, "first");
    assert_null(q.options[1].text);
    ob_question_deinit(&q);
    assert_int_equal(parse("{\"type\":\"score\",\"instructions\":\"How well?\",\"options\":[\"bad\",\"fair\",\"good\"]}", &q, &err), OB_OK);
    assert_string_equal(q.options[2].label, "level 2");
    ob_question_deinit(&q);
    assert_int_equal(parse("{\"type\":\"noul\",\"instructions\":\"Is it?\"}", &q, &err), OB_OK);
    assert_string_equal(q.options[0].label, "false");
    assert_string_equal(q.options[1].label, "true");
    ob_question_deinit(&q);
    static const char *const wrong[] = {
        "{\"type\":\"maybe\",\"instructions\":\"x\",\"options\":[\"a\",\"b\"]}", "{\"type\":\"choice\",\"options\":[\"a\",\"b\"]}",
        "{\"type\":\"choice\",\"instructions\":\"x\",\"options\":[\"a\"]}", "{\"type\":\"choice\",\"instructions\":\"x\",\"options\":[\"a\",\"a\"]}",
        "{\"type\":\"choice\",\"instructions\":\"x\",\"options\":[1,2]}", "{\"type\":\"noul\",\"instructions\":\"x\",\"options\":[\"a\",\"b\"]}",
        "{\"type\":\"choice\",\"instructions\":\"x\",\"options\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\",\"j\",\"k\",\"l\",\"m\",\"n\",\"o\",\"p\",\"q\"]}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_int_equal(parse(wrong[i], &q, &err), OB_E_INVALID);
}

/* [CLS] question [SEP] ([MASK] option)* [SEP] state [SEP], whatever is cut. */
static void test_sequence(void **state)
{
    (void)state;
    static char text[20000];
    memset(text, 'a', sizeof text);
    ob_scorer *s = open_scorer("laya");
    const ob_tok *tok = ob_encoder_tok(ob_scorer_encoder(s));
    const ob_str states[] = {{"hello", 5}, {text, sizeof text}, {"", 0}, {"[MASK] [SEP]", 12}};
    for (size_t k = 0; k < 4; k++) {
        int32_t *ids, n, marks[OB_MAX_OPTIONS], n_mask = 0, n_sep = 0;
        ob_err err;
        assert_int_equal(ob_scorer_tokens(s, ob_question_classes(), &(ob_turns){&states[k], 1}, &ids, &n, marks, &err), OB_OK);
        assert_true(n <= 512);
        assert_int_equal(ids[0], ob_tok_bos(tok));
        assert_int_equal(ids[n - 1], ob_tok_sep(tok));
        for (int32_t i = 0; i < n; i++) {
            n_mask += ids[i] == ob_tok_mask(tok);
            n_sep += ids[i] == ob_tok_sep(tok);
        }
        assert_int_equal(n_mask, 3); /* what a text spells is never a control token */
        assert_int_equal(n_sep, 3);
        for (int32_t o = 0; o < 3; o++) assert_int_equal(ids[marks[o]], ob_tok_mask(tok));
        if (k == 1) assert_int_equal(n, 512);
        ob_free(ids);
    }
    ob_scorer_free(s);
}

static void test_no_decision_head(void **state)
{
    (void)state;
    char path[512];
    ob_engine_params p;
    ob_scorer *s = NULL;
    ob_err err;
    snprintf(path, sizeof path, "%s/golden/modern-bert-cls.gguf", OB_TEST_DATA);
    ob_engine_defaults(&p);
    p.model_path = path;
    p.device = "cpu";
    assert_int_equal(ob_scorer_new(&p, &s, &err), OB_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "decision head"));
}

static void test_turns(void **state)
{
    (void)state;
    static const char text[] = "[{\"role\":\"system\",\"content\":\"one\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"two\"},"
                               "{\"type\":\"image_url\",\"image_url\":{}},{\"type\":\"text\",\"text\":\"three\"}]},{\"role\":\"assistant\",\"content\":null}]";
    json_t *v;
    ob_turn_list t;
    ob_err err;
    assert_int_equal(ob_json_load(text, strlen(text), "test", &v, &err), OB_OK);
    assert_int_equal(ob_turns_parse(v, "messages", &t, &err), OB_OK);
    assert_int_equal(t.turns.n, 3);
    assert_int_equal(ob_turns_bytes(&t.turns), 3 + 1 + 3 + 1 + 5);
    ob_turn_list_deinit(&t);
    json_decref(v);
    v = json_array();
    assert_int_equal(ob_turns_parse(v, "messages", &t, &err), OB_E_INVALID);
    json_decref(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_probabilities), cmocka_unit_test(test_confidence), cmocka_unit_test(test_questions),
        cmocka_unit_test(test_sequence),             cmocka_unit_test(test_no_decision_head), cmocka_unit_test(test_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
