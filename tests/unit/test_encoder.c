/* The encoder's thread: jobs of several texts, jobs that wait together, refusals, cancelling, stopping. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/encoder.h"
#include "test.h"

enum { N_THREADS = 4, N_ROUNDS = 12, N_TEXTS = 9, DIM = 64 };

static int32_t g_tok[N_TEXTS][64];
static ob_encode_text g_texts[N_TEXTS];
static float g_alone[N_TEXTS][DIM];

static ob_encoder *open_encoder(int32_t n_ctx, int32_t n_queue)
{
    ob_engine_params p;
    ob_engine_defaults(&p);
    p.model_path = OB_TEST_DATA "/golden/bert.gguf";
    p.device = "cpu";
    p.embed = true;
    p.n_ctx = n_ctx;
    p.n_threads = 2;
    p.n_ubatch = 48; /* so that texts of one job need several steps */
    p.n_queue = n_queue;
    ob_encoder *e;
    ob_err err;
    if (ob_encoder_new(&p, &e, &err) != OB_OK) fail_msg("%s", err.text);
    return e;
}

static void fill_texts(ob_encoder *e)
{
    ob_err err;
    for (int32_t i = 0; i < N_TEXTS; i++) {
        const int32_t n = 1 + (i * 23) % 64;
        for (int32_t k = 0; k < n; k++) g_tok[i][k] = (7 * i + 13 * k) % 448;
        g_texts[i] = (ob_encode_text){.tok = g_tok[i], .n_tok = n};
        if (ob_encoder_run(e, &g_texts[i], 1, g_alone[i], &err) != OB_OK) fail_msg("%s", err.text);
    }
}

static void *ask(void *arg)
{
    ob_encoder *e = arg;
    float rows[N_TEXTS][DIM];
    intptr_t wrong = 0;
    for (int r = 0; r < N_ROUNDS; r++) {
        const int32_t first = r % N_TEXTS, n = N_TEXTS - first;
        ob_err err;
        if (ob_encoder_run(e, g_texts + first, n, rows[0], &err) != OB_OK) return (void *)1000;
        wrong += memcmp(rows, g_alone[first], sizeof rows[0] * (size_t)n) != 0;
    }
    return (void *)wrong;
}

static void test_together(void **state)
{
    (void)state;
    ob_encoder *e = open_encoder(0, 0);
    pthread_t threads[N_THREADS];
    fill_texts(e);
    assert_int_equal(ob_encoder_n_cols(e), DIM);
    for (int i = 0; i < N_THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, ask, e), 0);
    for (int i = 0; i < N_THREADS; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_int_equal((intptr_t)wrong, 0);
    }
    ob_encoder_free(e);
}

static void test_refusals(void **state)
{
    (void)state;
    ob_encoder *e = open_encoder(32, 0);
    int32_t tok[40] = {5};
    float row[DIM];
    ob_err err;
    ob_encode_text t[2] = {{.tok = tok, .n_tok = 3}, {.tok = tok, .n_tok = 33}};
    assert_int_equal(ob_encoder_run(e, t, 2, row, &err), OB_E_CONTEXT_LENGTH);
    assert_int_equal(err.n_prompt_tok, 33);
    assert_int_equal(err.n_ctx, 32);
    t[1].n_tok = 0;
    assert_int_equal(ob_encoder_run(e, t, 2, row, &err), OB_E_INVALID);
    assert_int_equal(ob_encoder_run(e, t, 0, row, &err), OB_E_INVALID);
    tok[1] = 448; /* the vocabulary's size */
    assert_int_equal(ob_encoder_run(e, t, 1, row, &err), OB_E_INVALID);
    tok[1] = 0;
    assert_int_equal(ob_encoder_run(e, t, 1, row, &err), OB_OK);
    ob_encoder_free(e);
}

typedef struct outcome {
    _Atomic int n_done;
    _Atomic int status;
} outcome;

static void note(void *arg, ob_status s, const ob_err *err, const float *rows)
{
    outcome *o = arg;
    if ((s == OB_OK) != (rows != NULL) || (s != OB_OK && !err->text[0])) s = OB_E_INTERNAL;
    atomic_store(&o->status, (int)s);
    atomic_fetch_add(&o->n_done, 1);
}

static void wait_for(outcome *o)
{
    for (int i = 0; i < 5000 && !atomic_load(&o->n_done); i++) usleep(1000);
    assert_int_equal(atomic_load(&o->n_done), 1);
}

static void test_cancel(void **state)
{
    (void)state;
    enum { N = 4000 };
    ob_encoder *e = open_encoder(0, 0);
    fill_texts(e);
    ob_encode_text *many = malloc(N * sizeof *many);
    for (int i = 0; i < N; i++) many[i] = g_texts[2];
    outcome a = {0}, b = {0};
    ob_encode_job *ja, *jb;
    ob_err err;
    assert_int_equal(ob_encoder_submit(e, many, N, note, &a, &ja, &err), OB_OK);
    assert_int_equal(ob_encoder_submit(e, g_texts, N_TEXTS, note, &b, &jb, &err), OB_OK);
    ob_encode_job_cancel(ja);
    wait_for(&a);
    wait_for(&b);
    assert_int_equal(atomic_load(&a.status), OB_E_CANCELLED);
    assert_int_equal(atomic_load(&b.status), OB_OK); /* it does not suffer with the other */
    ob_encode_job_free(ja);
    ob_encode_job_free(jb);
    /* stopping answers what waits */
    outcome c = {0};
    assert_int_equal(ob_encoder_submit(e, many, N, note, &c, &ja, &err), OB_OK);
    ob_encoder_cancel_all(e);
    wait_for(&c);
    assert_int_equal(atomic_load(&c.status), OB_E_CANCELLED);
    ob_encode_job_free(ja);
    ob_encoder_free(e);
    free(many);
}

static void test_generators(void **state)
{
    (void)state;
    ob_engine_params p;
    ob_engine_info info;
    ob_encoder *e;
    ob_err err;
    ob_engine_defaults(&p);
    p.model_path = OB_TEST_DATA "/golden/llama.gguf";
    p.device = "cpu";
    assert_int_equal(ob_encoder_new(&p, &e, &err), OB_E_UNSUPPORTED); /* no head but its vocabulary */
    assert_int_equal(ob_encoder_peek(p.model_path, &info, &err), OB_OK);
    assert_true(info.causal);
    assert_int_equal(ob_encoder_peek(OB_TEST_DATA "/golden/modern-bert-cls.gguf", &info, &err), OB_OK);
    assert_false(info.causal);
    assert_int_equal(info.output, OB_OUTPUT_CLASSES);
    assert_int_equal(info.n_class, 4);
    assert_int_equal(ob_encoder_peek(OB_TEST_DATA "/golden/no-such-file", &info, &err), OB_E_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_generators),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
