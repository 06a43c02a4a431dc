/* Unit tests of kv/: pages, the prefix tree against a plain model of it, eviction. CPU device. */
#include "test.h"

#include "kv/kv.h"

enum { PAGE = 4, DIM = 8 };

typedef struct fixture {
    ob_dev *dev;
    ob_kv *kv;
} fixture;

static fixture make(int n_pages)
{
    fixture f;
    ob_err e;
    const ob_cache_spec caches[2] = {{2, DIM, DIM}, {1, DIM, 0}};
    ob_kv_params p = {.caches = caches, .n_caches = 2, .k_type = OB_F32, .v_type = OB_F32, .page_tok = PAGE,
                      .n_pages = n_pages};
    assert_int_equal(ob_dev_open("cpu", &(ob_dev_options){.n_threads = 1}, &f.dev, &e), OB_OK);
    assert_int_equal(ob_kv_new(f.dev, &p, &f.kv, &e), OB_OK);
    return f;
}

static void drop(fixture *f)
{
    ob_kv_free(f->kv);
    ob_dev_close(f->dev);
}

static int pages_for(int n) { return (n + PAGE - 1) / PAGE; }

/* A finished sequence of n tokens: its pages are published and released. */
static void finish_seq(fixture *f, const int32_t *tok, int n)
{
    int32_t pages[64];
    for (int i = 0; i < pages_for(n); i++) {
        pages[i] = ob_kv_page_new(f->kv);
        assert_true(pages[i] >= 0);
    }
    ob_kv_publish(f->kv, tok, n, pages, true);
    for (int i = pages_for(n) - 1; i >= 0; i--) ob_kv_page_unref(f->kv, pages[i]);
}

/* How many tokens of tok[0..n) are found; references are given back. */
static int found(fixture *f, const int32_t *tok, int n)
{
    int32_t pages[64], part, n_part;
    int k = ob_kv_match(f->kv, tok, n, pages, &part, &n_part);
    for (int i = k - 1; i >= 0; i--) ob_kv_page_unref(f->kv, pages[i]);
    if (part >= 0) ob_kv_page_unref(f->kv, part);
    return k * PAGE + n_part;
}

static void test_prefixes(void **state)
{
    (void)state;
    fixture f = make(16);
    const int32_t a[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const int32_t b[10] = {1, 2, 3, 4, 5, 6, 70, 80, 90, 100};
    assert_int_equal(found(&f, a, 10), 0);
    finish_seq(&f, a, 10);
    assert_int_equal(found(&f, a, 10), 10);
    assert_int_equal(found(&f, a, 9), 9);
    assert_int_equal(found(&f, a, 4), 4);
    assert_int_equal(found(&f, a, 3), 3);
    assert_int_equal(found(&f, b, 10), 6);
    finish_seq(&f, b, 10);
    assert_int_equal(found(&f, b, 10), 10);
    assert_int_equal(found(&f, a, 10), 10);
    ob_kv_stats st;
    ob_kv_get_stats(f.kv, &st);
    assert_int_equal(st.n_live, 0);
    assert_int_equal(st.n_kept, 5); /* the first page is shared */
    assert_int_equal(st.kept_tok, 4 + 4 + 2 + 4 + 2);
    finish_seq(&f, a, 10); /* nothing new */
    ob_kv_get_stats(f.kv, &st);
    assert_int_equal(st.n_kept, 5);
    ob_kv_forget(f.kv);
    ob_kv_get_stats(f.kv, &st);
    assert_int_equal(st.n_free, 16);
    assert_int_equal(found(&f, a, 10), 0);
    drop(&f);
}

static void test_oldest_goes_first_and_live_pages_stay(void **state)
{
    (void)state;
    fixture f = make(6);
    int32_t a[8] = {1, 1, 1, 1, 1, 1, 1, 1}, b[8] = {2, 2, 2, 2, 2, 2, 2, 2}, c[8] = {3, 3, 3, 3, 3, 3, 3, 3};
    finish_seq(&f, a, 8);
    finish_seq(&f, b, 8);
    finish_seq(&f, c, 8);
    int32_t held[2], part, n_part;
    assert_int_equal(ob_kv_match(f.kv, a, 8, held, &part, &n_part), 2); /* a is live now */
    int32_t x = ob_kv_page_new(f.kv), y = ob_kv_page_new(f.kv);
    assert_true(x >= 0 && y >= 0);
    assert_int_equal(found(&f, b, 8), 0); /* b was the oldest that nobody held */
    assert_int_equal(found(&f, a, 8), 8);
    int32_t z = ob_kv_page_new(f.kv), w = ob_kv_page_new(f.kv);
    assert_true(z >= 0 && w >= 0);
    assert_int_equal(ob_kv_page_new(f.kv), -1); /* all six are live */
    ob_kv_page_unref(f.kv, x);
    assert_true(ob_kv_page_new(f.kv) >= 0);
    drop(&f);
}

static void test_copy(void **state)
{
    (void)state;
    fixture f = make(3);
    ob_err e;
    const size_t page_floats = 2 * PAGE * DIM;
    float in[2 * PAGE * DIM], out[2 * PAGE * DIM];
    for (size_t i = 0; i < page_floats; i++) in[i] = (float)i + 0.5f;
    ob_dev_buf *k = ob_kv_k(f.kv)[0];
    assert_null(ob_kv_v(f.kv)[1]);
    int32_t a = ob_kv_page_new(f.kv), b = ob_kv_page_new(f.kv);
    assert_int_equal(f.dev->api->buffer_write(f.dev, k, (uint64_t)a * sizeof in, in, sizeof in, &e), OB_OK);
    assert_int_equal(ob_kv_page_copy(f.kv, b, a, &e), OB_OK);
    assert_int_equal(f.dev->api->buffer_read(f.dev, k, (uint64_t)b * sizeof out, out, sizeof out, &e), OB_OK);
    assert_memory_equal(in, out, sizeof in);
    drop(&f);
}

/* Random sequences over a tiny alphabet against a list of all finished ones: while nothing has been
 * evicted, exactly the longest common prefix with any of them is found. */
static void test_against_a_list(void **state)
{
    (void)state;
    enum { N = 60, LEN = 23 };
    fixture f = make(N * pages_for(LEN) + 8);
    static int32_t seqs[N][LEN];
    int len[N];
    unsigned rng = 5;
    for (int i = 0; i < N; i++) {
        rng = rng * 1103515245u + 12345u;
        len[i] = 1 + (int)((rng >> 16) % LEN);
        for (int k = 0; k < len[i]; k++) {
            rng = rng * 1103515245u + 12345u;
            seqs[i][k] = (int32_t)((rng >> 16) % 10 == 0);
        }
        int best = 0;
        for (int j = 0; j < i; j++) {
            int same = 0;
            while (same < len[i] && same < len[j] && seqs[i][same] == seqs[j][same]) same++;
            if (same > best) best = same;
        }
        assert_int_equal(found(&f, seqs[i], len[i]), best);
        finish_seq(&f, seqs[i], len[i]);
    }
    ob_kv_stats st;
    ob_kv_get_stats(f.kv, &st);
    assert_int_equal(st.n_free + st.n_kept, st.n_pages);
    drop(&f);
}

static void test_bad_type(void **state)
{
    (void)state;
    const ob_cache_spec c = {1, 40, 40};
    ob_kv_params p = {.caches = &c, .n_caches = 1, .k_type = OB_Q8_0, .v_type = OB_F16, .page_tok = PAGE, .n_pages = 2};
    uint64_t n;
    ob_err e;
    assert_int_equal(ob_kv_bytes(&p, &n, &e), OB_E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "Q8_0"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefixes), cmocka_unit_test(test_oldest_goes_first_and_live_pages_stay),
        cmocka_unit_test(test_copy),     cmocka_unit_test(test_against_a_list),
        cmocka_unit_test(test_bad_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
