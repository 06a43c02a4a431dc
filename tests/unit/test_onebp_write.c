/* Unit tests of fmt/: making, checking and summing 1BP packages; without memory, too. The bytes of a
 * package are tested from outside, by tests/server/test_onebp.py. */
#include "test.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/math.h"
#include "fmt/onebp.h"
#include "gguf_builder.h"

static char g_dir[] = "/tmp/ob-onebp-XXXXXX";
static char g_src[64], g_dst[64], g_part[80], g_sums[80];

static void write_file(const char *path, const ob_buf *b)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b->data, 1, b->len, f), b->len);
    fclose(f);
}

/* Two tensors, the second before the first in the data. */
static void write_source(uint32_t version)
{
    ob_buf b;
    ob_buf_init(&b, 10000);
    gb_head(&b, version, 2, 1);
    gb_kv_str(&b, "general.architecture", "llama");
    gb_tensor(&b, "late", 0, 3, 5, 32);
    gb_tensor(&b, "early", 0, 2, 4, 0);
    gb_pad(&b, 32);
    gb_fill(&b, 'e', 32);
    gb_fill(&b, 'l', 60);
    write_file(g_src, &b);
    ob_buf_deinit(&b);
}

static bool exists(const char *path) { return access(path, F_OK) == 0; }

static void say(void *arg, const char *line) { snprintf(arg, 400, "%s", line); }

static bool stop_at_once(void *arg, uint64_t done, uint64_t total)
{
    (void)arg;
    assert_true(done > 0 && done <= total && total == 92);
    return false;
}

static void assert_check(size_t n_wrong, const char *text)
{
    ob_onebp_report r;
    ob_err err;
    char line[400] = "";
    ob_status s = ob_onebp_check(g_src, g_dst, exists(g_sums) ? g_sums : NULL, say, line, &r, &err);
    if (s != OB_OK) fail_msg("%s", err.text);
    if (r.n_wrong != n_wrong || !strstr(line, text)) fail_msg("%zu wrong: '%s'", r.n_wrong, line);
    assert_int_equal(r.n_tensors, 2);
    assert_int_equal(r.n_kv, 1);
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
}

static void test_convert(void **state)
{
    (void)state;
    ob_onebp_made made;
    ob_err err;
    ob_file *f;
    write_source(3);
    if (ob_onebp_convert(g_src, g_dst, false, NULL, NULL, &made, &err) != OB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(made.n_tensors, 2);
    assert_int_equal(made.n_kv, 1);
    assert_int_equal(made.n_weight_bytes, 92);
    assert_false(exists(g_part));
    assert_int_equal(ob_file_open(g_dst, 0, &f, &err), OB_OK);
    const ob_tensor *late = ob_file_tensor(f, 0), *early = ob_file_tensor(f, 1);
    assert_string_equal(late->name, "late");
    assert_memory_equal(late->data, "llllll", 6);
    assert_memory_equal(early->data, "eeeeee", 6);
    assert_int_equal(early->file_off, late->file_off + 64);
    assert_int_equal(ob_file_n_bytes(f), early->file_off + 32);
    uint64_t at = early->file_off;
    ob_file_close(f);
    assert_check(0, "");
    flip(g_dst, (long)at);
    assert_check(1, "tensor 'early': the bytes differ, first at 0 of 32");
    flip(g_dst, (long)at);
    flip(g_dst, (long)at - 1);
    assert_check(1, "padding before tensor 'early'");
    flip(g_dst, (long)at - 1);
    assert_int_equal(ob_onebp_convert(g_src, g_dst, false, NULL, NULL, &made, &err), OB_E_EXISTS);
    assert_int_equal(ob_onebp_convert(g_src, g_dst, true, NULL, NULL, &made, &err), OB_OK);
}

static void test_convert_stops(void **state)
{
    (void)state;
    ob_onebp_made made;
    ob_err err;
    write_source(3);
    assert_int_equal(ob_onebp_convert(g_src, g_dst, false, stop_at_once, NULL, &made, &err),
                     OB_E_CANCELLED);
    assert_false(exists(g_dst) || exists(g_part));
    write_source(2);
    assert_int_equal(ob_onebp_convert(g_src, g_dst, false, NULL, NULL, &made, &err),
                     OB_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "GGUF v2"));
    unlink(g_src);
    assert_int_equal(ob_onebp_convert(g_src, g_dst, false, NULL, NULL, &made, &err), OB_E_NOT_FOUND);
    assert_false(exists(g_dst) || exists(g_part));
}

/* Whoever has the lock of DST.part keeps the file. */
static void test_one_writer(void **state)
{
    (void)state;
    ob_onebp_out a, b;
    ob_err err;
    assert_int_equal(ob_onebp_out_open(&a, g_dst, false, &err), OB_OK);
    assert_int_equal(ob_onebp_out_open(&b, g_dst, false, &err), OB_E_BUSY);
    ob_onebp_out_close(&b, false);
    assert_true(exists(g_part));
    ob_onebp_out_close(&a, true);
    assert_true(exists(g_part));
    assert_int_equal(ob_onebp_out_open(&a, g_dst, false, &err), OB_OK);
    ob_onebp_out_close(&a, false);
    assert_false(exists(g_part));
}

static void test_no_room(void **state)
{
    (void)state;
    ob_onebp_out o;
    ob_err err;
    ob_onebp_plan huge = {.n_bytes = UINT64_C(1) << 60};
    assert_int_equal(ob_onebp_out_open(&o, g_dst, false, &err), OB_OK);
    assert_int_equal(ob_onebp_out_begin(&o, &huge, false, &err), OB_E_IO);
    assert_non_null(strstr(err.text, "MB are free"));
    ob_onebp_out_close(&o, false);
}

static void test_sums(void **state)
{
    (void)state;
    ob_onebp_made made;
    ob_err err;
    write_source(3);
    assert_int_equal(ob_onebp_convert(g_src, g_dst, false, NULL, NULL, &made, &err), OB_OK);
    assert_int_equal(ob_onebp_sums_verify(g_dst, g_sums, NULL, NULL, &err), OB_E_NOT_FOUND);
    assert_int_equal(ob_onebp_sums_write(g_dst, g_sums, NULL, NULL, &err), OB_OK);
    assert_int_equal(ob_onebp_sums_verify(g_dst, g_sums, NULL, NULL, &err), OB_OK);
    assert_check(0, "");
    flip(g_dst, 192); /* the tag */
    assert_int_equal(ob_onebp_sums_verify(g_dst, g_sums, NULL, NULL, &err), OB_E_CORRUPT);
    assert_non_null(strstr(err.text, "header"));
    flip(g_dst, 192);
    struct stat st;
    assert_int_equal(stat(g_dst, &st), 0);
    flip(g_dst, (long)st.st_size - 1);
    assert_int_equal(ob_onebp_sums_verify(g_dst, g_sums, NULL, NULL, &err), OB_E_CORRUPT);
    assert_non_null(strstr(err.text, "tensor 'early'"));
    assert_int_equal(ob_onebp_sums_verify(g_src, g_sums, NULL, NULL, &err), OB_E_UNSUPPORTED);
}

static void test_every_allocation_fails(void **state)
{
    (void)state;
    ob_status s = OB_E_NO_MEMORY;
    int n = 0;
    write_source(3);
    for (; s != OB_OK; n++) {
        ob_onebp_made made;
        ob_err err = {0};
        ob_alloc_fail_after(n);
        s = ob_onebp_convert(g_src, g_dst, false, NULL, NULL, &made, &err);
        ob_alloc_fail_after(-1);
        if (s == OB_OK) break;
        assert_int_equal(s, OB_E_NO_MEMORY);
        assert_int_equal(err.code, s);
        assert_false(exists(g_dst) || exists(g_part));
    }
    assert_in_range(n, 8, 200);
    for (s = OB_E_NO_MEMORY, n = 0; s != OB_OK; n++) {
        ob_onebp_report r;
        ob_err err = {0};
        char line[400];
        ob_alloc_fail_after(n);
        s = ob_onebp_check(g_src, g_dst, NULL, say, line, &r, &err);
        ob_alloc_fail_after(-1);
        assert_true(s == OB_OK || s == OB_E_NO_MEMORY);
        if (s == OB_OK) assert_int_equal(r.n_wrong, 0);
    }
}

static int clean(void **state)
{
    (void)state;
    unlink(g_dst);
    unlink(g_part);
    unlink(g_sums);
    return 0;
}

static int make_dir(void **state)
{
    (void)state;
    if (!mkdtemp(g_dir)) return -1;
    snprintf(g_src, sizeof g_src, "%s/m.gguf", g_dir);
    snprintf(g_dst, sizeof g_dst, "%s/m.1bp", g_dir);
    snprintf(g_part, sizeof g_part, "%s.part", g_dst);
    snprintf(g_sums, sizeof g_sums, "%s.sums", g_dst);
    return 0;
}

static int remove_dir(void **state)
{
    unlink(g_src);
    (void)clean(state);
    return rmdir(g_dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_convert, clean),
        cmocka_unit_test_teardown(test_convert_stops, clean),
        cmocka_unit_test_teardown(test_one_writer, clean),
        cmocka_unit_test_teardown(test_no_room, clean),
        cmocka_unit_test_teardown(test_sums, clean),
        cmocka_unit_test_teardown(test_every_allocation_fails, clean),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
