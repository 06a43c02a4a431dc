/* The reader of golden files itself. */
#include "test.h"

#include <unistd.h>

#include "npz.h"

static void test_arrays(void **state)
{
    (void)state;
    npz *z = npz_open(OB_TEST_DATA "/golden/quants.npz");
    assert_non_null(z);
    assert_int_equal(npz_count(z), 75);
    const npz_array *src = npz_need(z, "src", NPZ_F32);
    assert_int_equal(src->n_dims, 2);
    assert_int_equal(src->shape[0], 40);
    assert_int_equal(src->shape[1], 1024);
    assert_int_equal(src->n_items, 40960);
    const npz_array *raw = npz_need(z, "raw_Q4_0", NPZ_U8);
    assert_int_equal(raw->shape[1], 1024 / 32 * 18);
    assert_ptr_equal(npz_get(z, "src"), src);
    assert_null(npz_get(z, "no such array"));
    const npz_array *info = npz_need(z, "info", NPZ_TEXT);
    assert_int_equal(info->n_dims, 0);
    assert_int_equal(((const char *)info->data)[0], '{');
    assert_non_null(strstr(info->data, "Q4_K"));
    npz_close(z);
}

static void write_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

static void test_npy_and_broken(void **state)
{
    (void)state;
    char path[] = "/tmp/ob_npz_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    char npy[128] = "\x93NUMPY\x01\x00\x46\x00{'descr': '<U2', 'fortran_order': False, 'shape': (1,), }";
    for (size_t i = strlen(npy + 10) + 10; i < 80; i++) npy[i] = ' ';
    memcpy(npy + 80, "\x41\0\0\0\xAC\x20\0\0", 8);
    write_file(path, npy, 88);
    npz *z = npz_open(path);
    const npz_array *a = npz_need(z, "array", NPZ_TEXT);
    assert_int_equal(a->shape[0], 1);
    assert_string_equal(a->data, "A\xE2\x82\xAC");
    npz_close(z);

    write_file(path, npy, 87); /* one byte short */
    z = npz_open(path);
    assert_non_null(z);
    assert_null(npz_get(z, "array"));
    npz_close(z);
    write_file(path, "PK", 2);
    assert_null(npz_open(path));
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_arrays),
                                       cmocka_unit_test(test_npy_and_broken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
