/* Unit tests of dev/: specs of devices, the check of steps, the null device. */
#include "test.h"

#include "dev/device.h"
#include "dev/null/null.h"

static ob_status try_open(const char *spec, char *kind, ob_err *err)
{
    ob_dev *d;
    const ob_dev_options opt = {.n_threads = 1};
    const ob_status s = ob_dev_open(spec, &opt, &d, err);
    if (s != OB_OK) {
        assert_null(d);
        return s;
    }
    ob_dev_info info;
    d->api->describe(d, &info);
    strcpy(kind, info.kind);
    ob_dev_close(d);
    return OB_OK;
}

static void test_specs(void **state)
{
    (void)state;
    char kind[16];
    ob_err err;
    static const char *const good[] = {"auto", "", "cpu", "cpu:0"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(try_open(good[i], kind, &err), OB_OK);
        assert_string_not_equal(kind, "null"); /* only by name */
    }
    assert_int_equal(try_open(NULL, kind, &err), OB_OK);
    assert_int_equal(try_open("null", kind, &err), OB_OK);
    assert_string_equal(kind, "null");
    assert_int_equal(try_open("gpu", kind, &err), OB_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "cpu"));
    assert_non_null(strstr(err.text, "gpu"));
    assert_int_equal(try_open("cpu:7", kind, &err), OB_E_NOT_FOUND);
    assert_int_equal(try_open("cpu:", kind, &err), OB_E_INVALID);
    assert_int_equal(try_open("cpu:x", kind, &err), OB_E_INVALID);
    assert_int_equal(try_open("cpu:-1", kind, &err), OB_E_INVALID);
    assert_int_equal(try_open("cpu:99999999999999999999", kind, &err), OB_E_INVALID);
    assert_int_equal(try_open("cpux", kind, &err), OB_E_NOT_FOUND);
    for (const ob_dev_api *const *a = ob_dev_registry(); *a; a++) assert_string_not_equal((*a)->kind, "null");
}

/* One embedding, one attention, logits: enough for every rule of a step. */
typedef struct fixture {
    ob_dev *d;
    ob_program p;
    ob_op ops[3];
    ob_value vals[3];
    ob_weight weights[1];
    ob_cache_spec cache;
    ob_dev_weight *dw[1];
    ob_dev_buf *k, *v;
    ob_dev_plan *plan;
    int32_t tok[4], pos[4], first[3], past[2], pages[4], out[2];
    ob_step step;
} fixture;

static ob_status make_plan(fixture *f, ob_err *err)
{
    const ob_plan_bindings b = {.weights = f->dw, .cache_k = &f->k, .cache_v = &f->v, .k_type = OB_F16,
                                .v_type = OB_F16, .page_tok = 16, .n_pages = 4, .max_ctx = 32};
    return f->d->api->plan_new(f->d, &f->p, &b, &f->plan, err);
}

static void start(fixture *f)
{
    static float table[5 * 8];
    bool keeps;
    memset(f, 0, sizeof *f);
    assert_int_equal(ob_dev_open("null", NULL, &f->d, NULL), OB_OK);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < OB_OP_MAX_IN; k++) f->ops[i].in[k] = OB_NONE;
        for (int k = 0; k < OB_OP_MAX_OUT; k++) f->ops[i].out[k] = OB_NONE;
        for (int k = 0; k < OB_OP_MAX_W; k++) f->ops[i].w[k] = OB_NONE;
        f->vals[i] = (ob_value){.rows = i == 2 ? OB_ROWS_OUT : OB_ROWS_TOK, .cols = 8, .name = "x", .output = i == 2};
    }
    f->ops[0].kind = OB_OP_EMBED;
    f->ops[0].out[0] = 0;
    f->ops[0].w[0] = 0;
    f->ops[1].kind = OB_OP_ATTENTION;
    f->ops[1].in[0] = f->ops[1].in[1] = f->ops[1].in[2] = 0;
    f->ops[1].out[0] = 1;
    f->ops[1].p.attn = (ob_attn_params){.n_head = 1, .n_head_kv = 1, .k_dim = 8, .v_dim = 8, .scale = 1, .causal = true};
    f->ops[2].kind = OB_OP_ROWS_OUT;
    f->ops[2].in[0] = 1;
    f->ops[2].out[0] = 2;
    f->weights[0] = (ob_weight){.name = "table", .type = OB_F32, .ne = {8, 5, 1, 1}, .data = table,
                                .n_bytes = sizeof table, .use = OB_USE_EMBED};
    f->cache = (ob_cache_spec){.n_head_kv = 1, .k_dim = 8, .v_dim = 8};
    f->p = (ob_program){.ops = f->ops, .n_ops = 3, .vals = f->vals, .n_vals = 3, .weights = f->weights, .n_weights = 1,
                        .caches = &f->cache, .n_caches = 1, .logits = 2, .embeddings = OB_NONE};
    assert_int_equal(ob_program_plan(&f->p, 4, 2, 2, NULL), OB_OK);
    assert_int_equal(f->d->api->weight_new(f->d, &f->weights[0], &f->dw[0], &keeps, NULL), OB_OK);
    assert_int_equal(f->d->api->buffer_new(f->d, 4 * 16 * 8 * 2, 0, &f->k, NULL), OB_OK);
    assert_int_equal(f->d->api->buffer_new(f->d, 4 * 16 * 8 * 2, 0, &f->v, NULL), OB_OK);
    assert_int_equal(make_plan(f, NULL), OB_OK);
    /* Two sequences: 20 tokens in the cache and 3 new, 0 and 1. */
    memcpy(f->tok, (int32_t[]){0, 4, 2, 1}, sizeof f->tok);
    memcpy(f->pos, (int32_t[]){20, 21, 22, 0}, sizeof f->pos);
    memcpy(f->first, (int32_t[]){0, 3, 4}, sizeof f->first);
    memcpy(f->past, (int32_t[]){20, 0}, sizeof f->past);
    memcpy(f->pages, (int32_t[]){3, 0, 2, -1}, sizeof f->pages); /* what is not used yet is not read */
    memcpy(f->out, (int32_t[]){2, 3}, sizeof f->out);
    f->step = (ob_step){.n_tok = 4, .n_seq = 2, .n_out = 2, .tok = f->tok, .pos = f->pos, .seq_first = f->first,
                        .seq_past = f->past, .page_table = f->pages, .max_pages = 2, .out_rows = f->out};
}

static void stop(fixture *f)
{
    f->d->api->plan_free(f->d, f->plan);
    f->d->api->weight_free(f->d, f->dw[0]);
    f->d->api->buffer_free(f->d, f->k);
    f->d->api->buffer_free(f->d, f->v);
    ob_null_counts c;
    ob_null_get_counts(f->d, &c);
    assert_int_equal(c.n_weights + c.n_buffers + c.n_plans, 0);
    ob_dev_close(f->d);
}

static void refused(fixture *f, int32_t *where, int32_t wrong, const char *about)
{
    ob_err err;
    ob_fence fence;
    const int32_t right = *where;
    *where = wrong;
    assert_int_equal(f->d->api->submit(f->d, f->plan, &f->step, &fence, &err), OB_E_INVALID);
    if (!strstr(err.text, about)) fail_msg("\"%s\" should speak of \"%s\"", err.text, about);
    *where = right;
    assert_int_equal(f->d->api->submit(f->d, f->plan, &f->step, &fence, &err), OB_OK);
}

static void test_steps(void **state)
{
    (void)state;
    fixture f;
    start(&f);
    refused(&f, &f.step.n_tok, 5, "tokens");
    refused(&f, &f.step.n_tok, 0, "tokens");
    refused(&f, &f.step.n_tok, 3, "cover");
    refused(&f, &f.step.n_seq, 3, "sequences");
    refused(&f, &f.step.n_out, 3, "outputs");
    refused(&f, &f.step.max_pages, 1, "too short");
    refused(&f, &f.first[0], 1, "cover");
    refused(&f, &f.first[1], 4, "overlap");
    refused(&f, &f.first[1], -1, "overlap");
    refused(&f, &f.past[0], 30, "context");
    refused(&f, &f.past[0], -1, "past");
    refused(&f, &f.past[0], INT32_MAX, "context");
    refused(&f, &f.pages[0], 4, "page");
    refused(&f, &f.pages[1], -1, "page");
    refused(&f, &f.out[1], 4, "output row");
    refused(&f, &f.out[0], -1, "output row");
    refused(&f, &f.tok[3], 5, "token id");
    refused(&f, &f.tok[0], -1, "token id");
    /* A sliding window does not look at pages that lie before it. */
    f.ops[1].p.attn.window = 4;
    ob_fence fence;
    f.pages[0] = -1;
    assert_int_equal(f.d->api->submit(f.d, f.plan, &f.step, &fence, NULL), OB_OK);
    f.ops[1].p.attn.window = 6;
    assert_int_equal(f.d->api->submit(f.d, f.plan, &f.step, &fence, NULL), OB_E_INVALID);
    stop(&f);
}

static void test_null_counts_and_checks(void **state)
{
    (void)state;
    fixture f;
    start(&f);
    ob_fence fence;
    ob_err err;
    float y[16];
    memset(y, 1, sizeof y);
    assert_int_equal(f.d->api->submit(f.d, f.plan, &f.step, &fence, &err), OB_OK);
    assert_int_equal(f.d->api->wait(f.d, fence, &err), OB_OK);
    assert_int_equal(f.d->api->read_output(f.d, f.plan, 2, 0, 2, y, &err), OB_OK);
    for (int i = 0; i < 16; i++) assert_true(y[i] == 0);
    assert_int_equal(f.d->api->read_output(f.d, f.plan, 2, 1, 2, y, &err), OB_E_INVALID);
    assert_int_equal(f.d->api->read_output(f.d, f.plan, 0, 0, 1, y, &err), OB_E_INVALID);
    ob_null_counts c;
    ob_null_get_counts(f.d, &c);
    assert_int_equal(c.n_submits, 1);
    assert_int_equal(c.n_tok, 4);
    assert_int_equal(c.last_n_seq, 2);
    f.d->api->plan_free(f.d, f.plan);
    f.cache.n_head_kv = 2; /* now the buffers are too small, and the op does not fit */
    f.ops[1].p.attn.n_head_kv = 2;
    assert_int_equal(make_plan(&f, &err), OB_E_INVALID);
    f.cache.n_head_kv = f.ops[1].p.attn.n_head_kv = 1;
    f.weights[0].ne[1] = 4;
    assert_int_equal(make_plan(&f, &err), OB_E_INVALID);
    assert_non_null(strstr(err.text, "table"));
    f.weights[0].ne[1] = 5;
    assert_int_equal(make_plan(&f, &err), OB_OK);
    stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_specs),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_null_counts_and_checks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
