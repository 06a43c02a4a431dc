/* The reader of reference arrays: equal to the tests' own reader, and no byte of a broken file believed. */
#include "base/alloc.h"
#include "fmt/npz.h"
#include "npz.h"
#include "test.h"

static const char *const k_path = OB_TEST_DATA "/golden/minicpm-longrope.npz";

static void test_same_as_tests_reader(void **state)
{
    (void)state;
    static const struct { const char *name, *type; } arrays[] = {
        {"tokens", "<i4"}, {"logits", "<f4"}, {"decode_logits", "<f4"}, {"logits_short", "<f4"}};
    ob_err err;
    ob_npz *z;
    npz *other = npz_open(k_path);
    assert_non_null(other);
    assert_int_equal(ob_npz_open(k_path, &z, &err), OB_OK);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        ob_npz_array a;
        const npz_array *b = npz_get(other, arrays[i].name);
        assert_non_null(b);
        assert_true(ob_npz_has(z, arrays[i].name));
        assert_int_equal(ob_npz_get(z, arrays[i].name, arrays[i].type, &a, &err), OB_OK);
        assert_int_equal(a.n_dims, b->n_dims);
        assert_int_equal(a.n_items, b->n_items);
        for (int d = 0; d < a.n_dims; d++) assert_int_equal(a.shape[d], b->shape[d]);
        assert_memory_equal(a.data, b->data, a.n_items * 4);
        ob_free(a.data);
        assert_int_equal(ob_npz_get(z, arrays[i].name, "<f8", &a, &err), OB_E_FORMAT);
    }
    ob_npz_array a;
    assert_false(ob_npz_has(z, "nothing"));
    assert_int_equal(ob_npz_get(z, "nothing", "<f4", &a, &err), OB_E_NOT_FOUND);
    ob_npz_close(z);
    npz_close(other);
}

static uint8_t *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *x = malloc(*n);
    assert_int_equal(fread(x, 1, *n, f), *n);
    fclose(f);
    return x;
}

/* Cut off at many places, and single bytes changed in the directory and the headers: an error or the right
 * answer, never a crash (run it under the address sanitizer). */
static void test_broken(void **state)
{
    (void)state;
    size_t n;
    uint8_t *good = read_all(k_path, &n), *bad = malloc(n);
    const char *path = "test_fmt_npz.tmp";
    uint32_t seed = 1;
    for (int round = 0; round < 400; round++) {
        memcpy(bad, good, n);
        size_t len = n;
        seed = seed * 1664525u + 1013904223u;
        const size_t tail = n > 700 ? n - 700 : 0;
        if (round % 2) len = round < 200 ? n - 1 - seed % 600 : seed % n;
        else bad[round % 4 ? tail + (seed >> 8) % (n - tail) : (seed >> 8) % 200] ^= (uint8_t)(1u << (seed % 8));
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(bad, 1, len, f), len);
        fclose(f);
        ob_err err;
        ob_npz *z;
        if (ob_npz_open(path, &z, &err) != OB_OK) continue;
        ob_npz_array a;
        if (ob_npz_get(z, "tokens", "<i4", &a, &err) == OB_OK) ob_free(a.data);
        if (ob_npz_get(z, "logits", "<f4", &a, &err) == OB_OK) ob_free(a.data);
        ob_npz_close(z);
    }
    remove(path);
    free(good);
    free(bad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_as_tests_reader), cmocka_unit_test(test_broken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
