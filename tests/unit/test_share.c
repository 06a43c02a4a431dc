/* Unit tests of engine/share: two engines of one process hold what is equal in their files once. */
#include "test.h"

#include "engine/ctx.h"

#define GOLDEN OB_TEST_DATA "/golden/"

static ob_ctx *open_model(const char *file, ob_share *share, bool exact)
{
    ob_engine_params p;
    ob_ctx *c;
    ob_err err = {0};
    char path[512];
    snprintf(path, sizeof path, GOLDEN "%s.gguf", file);
    ob_engine_defaults(&p);
    p.model_path = path;
    p.device = "cpu";
    p.n_seq = 1;
    p.n_ctx = 64;
    p.n_threads = 1;
    p.exact = exact;
    p.share = share;
    if (ob_ctx_new(&p, &c, &err) != OB_OK) fail_msg("%s: %s", file, err.text);
    return c;
}

static uint64_t shared_bytes(const ob_ctx *c)
{
    ob_engine_info info;
    ob_ctx_describe(c, &info);
    return info.n_shared_bytes;
}

/* Logits of a short prompt, freed by the caller. */
static float *logits_of(ob_ctx *c)
{
    static const int32_t tok[] = {5, 17, 200, 33, 8};
    const float *rows;
    ob_seq *s;
    ob_err err = {0};
    assert_int_equal(ob_ctx_seq_new(c, &s, &err), OB_OK);
    const ob_chunk chunk = {.seq = s, .tok = tok, .n_tok = 5, .n_out = 1};
    assert_int_equal(ob_ctx_step(c, &chunk, 1, &rows, &err), OB_OK);
    const size_t n = (size_t)ob_ctx_n_cols(c) * sizeof *rows;
    float *out = malloc(n);
    memcpy(out, rows, n);
    ob_ctx_seq_free(c, s);
    return out;
}

static void assert_same(ob_ctx *c, const char *file, bool exact)
{
    ob_ctx *alone = open_model(file, NULL, exact);
    float *a = logits_of(c), *b = logits_of(alone);
    assert_memory_equal(a, b, (size_t)ob_ctx_n_cols(c) * sizeof *a);
    free(a);
    free(b);
    ob_ctx_free(alone);
}

/* The same file twice: everything is shared, and both compute. */
static void test_one_file(void **state)
{
    (void)state;
    ob_share *share;
    ob_err err;
    assert_int_equal(ob_share_new(&share, &err), OB_OK);
    ob_ctx *first = open_model("llama", share, false), *second = open_model("llama", share, false);
    assert_int_equal(shared_bytes(first), 0);
    assert_true(shared_bytes(second) > 100000);
    assert_same(first, "llama", false);
    assert_same(second, "llama", false);
    /* another packing of the same bytes is another weight */
    ob_ctx *exact = open_model("llama", share, true);
    assert_int_equal(shared_bytes(exact), 0);
    assert_same(exact, "llama", true);
    ob_ctx_free(exact);
    ob_ctx_free(second);
    assert_same(first, "llama", false);
    ob_ctx_free(first);
    ob_share_free(share);
}

/* Two quantisations of one model: vectors and what else is equal, not the matrices. */
static void test_two_files(void **state)
{
    (void)state;
    ob_share *share;
    ob_err err;
    assert_int_equal(ob_share_new(&share, &err), OB_OK);
    ob_ctx *first = open_model("llama-q-Q4_K_M", share, false), *second = open_model("llama-q-Q8_0", share, false);
    const uint64_t some = shared_bytes(second);
    ob_engine_info info;
    ob_ctx_describe(second, &info);
    assert_true(some > 0 && some < info.n_bytes / 2);
    assert_same(second, "llama-q-Q8_0", false);
    ob_ctx *other = open_model("qwen2", share, false); /* same names, other bytes */
    assert_int_equal(shared_bytes(other), 0);
    assert_same(other, "qwen2", false);
    ob_ctx_free(other);
    ob_ctx_free(second);
    ob_ctx_free(first);
    ob_share_free(share);
}

/* What the owner of the bytes has given up is not found any more, but stays with who found it. */
static void test_owner_goes_first(void **state)
{
    (void)state;
    ob_share *share;
    ob_dev *dev;
    ob_err err;
    const float data[4] = {1, 2, 3, 4};
    const ob_weight w = {.name = "w", .type = OB_F32, .ne = {4, 1, 1, 1}, .data = data, .n_bytes = sizeof data, .use = OB_USE_VECTOR};
    ob_dev_weight *packed;
    bool keeps;
    int owner, other;
    const ob_dev_options opt = {.n_threads = 1};
    assert_int_equal(ob_share_new(&share, &err), OB_OK);
    assert_int_equal(ob_dev_open("cpu", &opt, &dev, &err), OB_OK);
    assert_null(ob_share_find(share, dev, false, &w));
    assert_int_equal(dev->api->weight_new(dev, &w, &packed, &keeps, &err), OB_OK);
    assert_int_equal(ob_share_add(share, dev, false, &w, packed, &owner, &err), OB_OK);
    assert_ptr_equal(ob_share_find(share, dev, false, &w), packed);
    assert_null(ob_share_find(share, dev, true, &w));
    ob_share_drop(share, dev, packed, &owner);
    assert_null(ob_share_find(share, dev, false, &w));
    ob_share_drop(share, dev, packed, &other);
    ob_dev_close(dev);
    ob_share_free(share);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_file), cmocka_unit_test(test_two_files),
                                       cmocka_unit_test(test_owner_goes_first)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
