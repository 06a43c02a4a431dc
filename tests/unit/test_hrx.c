/* The HRX device's side of the library: which one is taken, why not, and what a failing call becomes. Each case runs in a
 * process of its own, because a library is opened once. */
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "dev/device.h"
#include "dev/hrx/hrx_lib.h"
#include "test.h"

/* 0 when opening `spec` fails with a text that has `want` in it. */
static int refused(const char *spec, const char *want)
{
    ob_err err;
    ob_dev *d = NULL;
    if (ob_dev_open(spec, NULL, &d, &err) == OB_OK) {
        ob_dev_close(d);
        fprintf(stderr, "%s was opened\n", spec);
        return 1;
    }
    if (strstr(err.text, want)) return 0;
    fprintf(stderr, "%s: \"%s\" does not say \"%s\"\n", spec, err.text, want);
    return 1;
}

static void in_child(int (*body)(const char *, const char *), const char *a, const char *b)
{
    int status;
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(body(a, b));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("the child ended with %#x", status);
}

static void with_library(const char *file, const char *spec, const char *want)
{
    setenv("OB_HRX_LIBRARY", file, 1);
    in_child(refused, spec, want);
    unsetenv("OB_HRX_LIBRARY");
}

static void test_libraries(void **state)
{
    (void)state;
    with_library("/nonexistent/libhrx.so.0", "hrx", "this machine has 0 of kind hrx");
    with_library("/nonexistent/libhrx.so.0", "hrx-soft", "HRX is not installed: /nonexistent/libhrx.so.0");
    with_library(OB_FAKE_MISSING, "hrx-soft", "lacks hrx_stream_dispatch");
    with_library(OB_FAKE_OLDER, "hrx-soft", "is version 0.0.3; this program knows 0.1");
    with_library(OB_FAKE_NEWER, "hrx-soft", "is version 0.2.3; this program knows 0.1");
    with_library(OB_FAKE_SAME, "hrx", "HRX finds no GPU");
    with_library(OB_FAKE_SAME, "hrx-soft", "is no emulation: ask for it as hrx");
    with_library(OB_HRX_SOFT, "hrx", "ask for it as hrx-soft");
}

/* `1bit devices` and `doctor` get the reason from here. */
static int reason_has(const char *want, const char *unused)
{
    (void)unused;
    return !strstr(hx_lib_get(false)->missing, want);
}

static void test_reasons(void **state)
{
    (void)state;
    setenv("OB_HRX_LIBRARY", OB_FAKE_NEWER, 1);
    in_child(reason_has, "is version 0.2.3", NULL);
    unsetenv("OB_HRX_LIBRARY");
    setenv("HRX_SOFT_ARCH", "gfx906", 1);
    in_child(refused, "hrx-soft", "no kernels for gfx906");
    unsetenv("HRX_SOFT_ARCH");
    setenv("HRX_SOFT_DEVICES", "0", 1);
    in_child(refused, "hrx-soft", "HRX finds no GPU");
    unsetenv("HRX_SOFT_DEVICES");
}

/* Writes and reads a buffer; the status of the first call that fails. */
static int transfers_give(const char *status, const char *unused)
{
    ob_err err;
    ob_dev *d;
    ob_dev_buf *b = NULL;
    int32_t word = 7, got = 0;
    (void)unused;
    if (ob_dev_open("hrx-soft", NULL, &d, &err) != OB_OK) return 2;
    ob_status s = d->api->buffer_new(d, 4096, OB_BUF_ZERO, &b, &err);
    if (s == OB_OK) s = d->api->buffer_write(d, b, 0, &word, 4, &err);
    if (s == OB_OK) s = d->api->buffer_read(d, b, 0, &got, 4, &err);
    if (s == OB_OK && got != 7) return 3;
    if (b) d->api->buffer_free(d, b);
    ob_dev_close(d);
    if (!strcmp(ob_status_describe(s)->name, status)) return 0;
    fprintf(stderr, "%s, not %s\n", ob_status_describe(s)->name, status);
    return 1;
}

static void test_failing_calls(void **state)
{
    static const struct { const char *fail, *status; } c[] = {
        {"", "ok"}, {"hrx_allocator_allocate_buffer:2:8", "no_memory"}, {"hrx_synchronous_d2h:1:14", "device_lost"},
        {"hrx_stream_synchronize:1:14", "device_lost"}, {"hrx_stream_fill_buffer:1:12", "unsupported"},
        {"hrx_synchronous_h2d:2:3", "device"}};
    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        setenv("HRX_SOFT_FAIL", c[i].fail, 1);
        in_child(transfers_give, c[i].status, NULL);
    }
    unsetenv("HRX_SOFT_FAIL");
}

static int opens(const char *spec, const char *arch)
{
    ob_err err;
    ob_dev *d;
    ob_dev_info info;
    if (ob_dev_open(spec, NULL, &d, &err) != OB_OK) return 1;
    d->api->describe(d, &info);
    const bool ok = strstr(info.name, arch) && (info.caps & OB_DEV_SOFT) && info.available;
    ob_dev_close(d);
    return !ok;
}

/* A processor without code of its own runs its family's. */
static void test_families(void **state)
{
    static const char *const archs[] = {"gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151"};
    (void)state;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        setenv("HRX_SOFT_ARCH", archs[i], 1);
        in_child(opens, "hrx-soft", archs[i]);
    }
    unsetenv("HRX_SOFT_ARCH");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_libraries),
        cmocka_unit_test(test_reasons),
        cmocka_unit_test(test_failing_calls),
        cmocka_unit_test(test_families),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
