/* What can go wrong between us and an NPU: the right error, nothing left behind, and going on where that is possible. */
#include "npu_rig.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"

enum { WAIT_MS = 9000 };

/* Opens, starts a queue and copies `in` to `out` once. */
static ob_status life(rig *r, int n_retries, ob_err *err)
{
    OB_TRY(rig_start(r, (ob_npu_queue_options){.n_retries = n_retries, .wait_ms = WAIT_MS}, err));
    const ob_npu_cmd c[2] = {rig_copy(r, 1, 0, 4096), rig_copy(r, 2, 4096, RIG_BYTES - 4096)};
    return ob_npu_queue_run(r->queue, c, 2, err);
}

typedef struct row {
    const char *faults;
    int n_retries;       /* 0: the default, one */
    ob_status want;
    const char *says;    /* part of the error's text */
    uint64_t n_failures; /* where the queue lives to tell */
} row;

/* Submission 1 is the init text; 2 is the chain of init and two copies. After a failure 3 is the new context's init, 4 the
 * chain again. */
static const row k_matrix[] = {
    {NULL, 0, OB_OK, NULL, 0},
    {"ioctl:EXEC_CMD:2:EINTR", 0, OB_OK, NULL, 0},
    {"ioctl:*:3:EINTR,ioctl:TIMELINE_WAIT:2:EINTR", 0, OB_OK, NULL, 0},
    {"ioctl:CREATE_BO:1:ENOMEM", 0, OB_E_NO_MEMORY, "heap", 0},
    {"ioctl:CREATE_BO:1:EINVAL", 0, OB_E_DEVICE, "heap", 0},
    {"ioctl:CREATE_BO:2:EAGAIN", 0, OB_OK, NULL, 0}, /* the heap grows and it is asked again */
    {"ioctl:CREATE_BO:2:ENOSPC", 0, OB_E_NO_MEMORY, "heap", 0},
    {"ioctl:CREATE_BO:4:ENOMEM", 0, OB_E_NO_MEMORY, "buffer", 0},
    {"ioctl:GET_BO_INFO:1:ENODEV", 0, OB_E_DEVICE_LOST, "gone", 0},
    {"ioctl:GET_BO_INFO:2:EIO", 0, OB_E_DEVICE_LOST, "does not answer", 0},
    {"mmap:1", 0, OB_E_NO_MEMORY, "reserving", 0},
    {"mmap:2", 0, OB_E_NO_MEMORY, "heap", 0},
    {"mmap:3", 0, OB_E_NO_MEMORY, "mapping", 0},
    {"mmap:4", 0, OB_E_NO_MEMORY, "mapping", 0},
    {"mmap:5", 0, OB_E_NO_MEMORY, "mapping", 0},
    {"misalign", 0, OB_E_DEVICE, "context", 0},
    {"ioctl:CREATE_HWCTX:1:ENOSPC", 0, OB_E_BUSY, "contexts", 0},
    {"ioctl:CREATE_HWCTX:1:EBUSY", 0, OB_E_BUSY, "contexts", 0},
    {"ioctl:CREATE_HWCTX:1:ENODEV", 0, OB_E_DEVICE_LOST, "gone", 0},
    {"ioctl:EXEC_CMD:1:ENOMEM", 0, OB_E_NO_MEMORY, "commands", 0},
    {"ioctl:EXEC_CMD:2:ENOMEM", 0, OB_E_NO_MEMORY, "commands", 1},
    {"ioctl:EXEC_CMD:2:EIO", 0, OB_E_DEVICE_LOST, "does not answer", 1},
    {"ioctl:TIMELINE_WAIT:2:EIO", 0, OB_E_DEVICE_LOST, "does not answer", 1},
    {"end:1:0:TIMEOUT", 0, OB_E_TIMEOUT, "2000 ms", 0},
    {"end:2:1:ERROR", 0, OB_OK, NULL, 1},
    {"end:2:1:ERROR", -1, OB_E_DEVICE, "command 2 of a chain of 3 failed", 1},
    {"end:2:0:ERROR", -1, OB_E_DEVICE, "command 1 of a chain of 3 failed", 1},
    {"end:2:2:ABORT", -1, OB_E_DEVICE, "command 3 of a chain of 3 was aborted", 1},
    {"end:2:1:ABORT", 0, OB_OK, NULL, 1},
    {"end:2:1:TIMEOUT", 0, OB_OK, NULL, 1},
    {"end:2:1:TIMEOUT", -1, OB_E_TIMEOUT, "in no operation the firmware knows of", 1},
    {"end:2:1:NORESPONSE", 0, OB_E_DEVICE_LOST, "does not answer", 1},
    {"end:2:1:ERROR,end:4:1:TIMEOUT", 0, OB_E_TIMEOUT, "2000 ms", 2},
    {"end:2:1:ERROR,end:4:1:TIMEOUT", 2, OB_OK, NULL, 2},
    {"end:2:1:ERROR,end:3:0:ERROR", 0, OB_E_DEVICE, "failed", 2},
    {"lost:2", 0, OB_OK, NULL, 1},
    {"lost:2", -1, OB_E_TIMEOUT, "reported no end", 1},
    {"lost:1", 0, OB_E_TIMEOUT, "reported no end", 0},
    {"lie:2:NEW", -1, OB_E_DEVICE, "did not take", 1},
    {"lie:2:RUNNING", -1, OB_E_DEVICE, "running", 1},
    {"lie:2:QUEUED", 0, OB_OK, NULL, 1},
    {"suspend:2", 0, OB_OK, NULL, 0},
    {"suspend:*", 0, OB_OK, NULL, 0},
    {"end:*:1:TIMEOUT", 0, OB_E_TIMEOUT, "2000 ms", 2}, /* init alone has no command 1: contexts can be made */
    {"slow:100", 0, OB_OK, NULL, 0},
    {"slow:4000", 0, OB_E_TIMEOUT, "2000 ms", 2}, /* three commands, 0.8 s each */
};

static void test_matrix(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof k_matrix / sizeof *k_matrix; i++)
        for (int mode = 0; mode < 4; mode++) { /* the process's addresses or not; late or eager */
            const row *m = &k_matrix[i];
            rig r;
            ob_err err = {0};
            ob_npu_soft_options opt = rig_defaults(m->faults);
            opt.iova = mode & 1;
            opt.eager = mode & 2;
            rig_soft(&r, opt);
            const ob_status s = life(&r, m->n_retries, &err);
            if (s != m->want) fail_msg("%s (%d): status %d, not %d: %s", m->faults, mode, (int)s, (int)m->want, err.text);
            if (m->says && !strstr(err.text, m->says)) fail_msg("%s: \"%s\" does not say \"%s\"", m->faults, err.text, m->says);
            if (s == OB_OK) assert_true(rig_copied(&r, 0, RIG_BYTES));
            if (r.queue) assert_int_equal(ob_npu_queue_stats_get(r.queue).n_failures, m->n_failures);
            if (r.queue && s != OB_OK) assert_true(ob_npu_queue_broken(r.queue));
            rig_free(&r);
        }
}

/* Gone at any moment: at every ioctl of a life. */
static void test_unplugged(void **state)
{
    (void)state;
    bool done = false;
    for (int n = 1; !done; n++) {
        rig r;
        ob_err err = {0};
        char script[32];
        snprintf(script, sizeof script, "unplug:%d", n);
        rig_soft(&r, rig_defaults(script));
        const ob_status s = life(&r, 0, &err);
        done = s == OB_OK;
        if (!done && s != OB_E_DEVICE_LOST && !(r.dev == NULL && s == OB_E_DEVICE)) fail_msg("%s: status %d: %s", script, (int)s, err.text);
        if (!done) assert_true(err.text[0] != 0);
        assert_true(n < 200);
        rig_free(&r);
    }
}

/* No memory at any allocation, ours or the model's. */
static void test_no_memory(void **state)
{
    (void)state;
    bool done = false;
    for (int n = 0; !done; n++) {
        rig r;
        ob_err err = {0};
        rig_soft(&r, rig_defaults(NULL));
        ob_alloc_fail_after(n);
        const ob_status s = life(&r, 0, &err);
        ob_alloc_fail_after(-1);
        done = s == OB_OK;
        if (!done && s != OB_E_NO_MEMORY) fail_msg("allocation %d: status %d: %s", n, (int)s, err.text);
        assert_true(n < 200);
        rig_free(&r);
    }
}

/* A chain that hangs: what was submitted behind it is lost, too; a reset, and all runs again. */
static void test_hang_in_company(void **state)
{
    rig r;
    ob_err err;
    uint64_t t[3];
    (void)state;
    rig_new(&r, NULL);
    const ob_npu_cmd good = rig_copy(&r, 1, 0, 64), hang = rig_word(&r, 2, RIG_HANG, 0);
    const ob_npu_cmd bad = rig_word(&r, 3, RIG_FAULT, 0);
    assert_int_equal(ob_npu_queue_submit(r.queue, &good, 1, &t[0], &err), OB_OK);
    assert_int_equal(ob_npu_queue_submit(r.queue, &hang, 1, &t[1], &err), OB_OK);
    assert_int_equal(ob_npu_queue_submit(r.queue, &good, 1, &t[2], &err), OB_OK);
    assert_int_equal(ob_npu_queue_wait(r.queue, t[0], &err), OB_OK);
    const int64_t before = ob_npu_soft_counts_get(r.soft).now_ns;
    assert_int_equal(ob_npu_queue_wait(r.queue, t[2], &err), OB_E_TIMEOUT);
    assert_int_equal(ob_npu_soft_counts_get(r.soft).now_ns - before, 2000000000); /* the watchdog's */
    assert_int_equal(ob_npu_soft_counts_get(r.soft).n_tdr, 1);
    assert_non_null(strstr(err.text, "command 2 of a chain of 2"));
    assert_int_equal(ob_npu_queue_wait(r.queue, t[2], &err), OB_E_TIMEOUT);
    assert_int_equal(ob_npu_queue_submit(r.queue, &good, 1, &t[0], &err), OB_E_TIMEOUT);
    assert_int_equal(ob_npu_queue_reset(r.queue, &err), OB_OK);
    assert_int_equal(ob_npu_queue_run(r.queue, &good, 1, &err), OB_OK);
    assert_true(rig_copied(&r, 0, 64));
    char why[160];
    assert_int_equal(ob_npu_queue_run(r.queue, &bad, 1, &err), OB_E_DEVICE);
    ob_npu_soft_last_fault(r.soft, why, sizeof why);
    assert_string_equal(why, "no such operation");
    rig_free(&r);
}

/* A wrong bit comes back without any error: whoever uses the result must look at it. */
static void test_flipped_bit(void **state)
{
    rig r;
    ob_err err;
    (void)state;
    rig_soft(&r, rig_defaults("flip:2"));
    assert_int_equal(life(&r, 0, &err), OB_OK);
    assert_false(rig_copied(&r, 0, 4096)); /* the first write was the first half */
    assert_true(rig_copied(&r, 4096, RIG_BYTES - 4096));
    int n_wrong = 0;
    for (size_t i = 0; i < RIG_BYTES; i++) n_wrong += __builtin_popcount(r.in->host[i] ^ r.out->host[i]);
    assert_int_equal(n_wrong, 1);
    rig_free(&r);
}

/* A driver that does not come back from ending a context costs teardown_ms, not the process. */
static void test_hanging_teardown(void **state)
{
    rig r;
    ob_err err;
    (void)state;
    rig_soft(&r, rig_defaults("hang:destroy,end:2:0:NORESPONSE"));
    ob_npu_soft *soft = r.soft;
    assert_int_equal(life(&r, 0, &err), OB_E_DEVICE_LOST);
    r.dev->teardown_ms = 30;
    const double t0 = ob_now_ms();
    assert_int_equal(ob_npu_queue_reset(r.queue, &err), OB_E_DEVICE_LOST);
    assert_true(r.dev->wedged);
    rig_close(&r);
    const double ms = ob_now_ms() - t0;
    assert_true(ms >= 30 && ms < 3000);
    assert_int_equal(ob_npu_soft_counts_get(soft).n_fds, 1); /* left to the kernel */
    ob_npu_soft_free(soft);
}

/* A buffer that was freed is no memory for a command any more. */
static void test_use_after_free(void **state)
{
    rig r;
    ob_err err;
    uint64_t t;
    (void)state;
    rig_soft(&r, rig_defaults(NULL));
    assert_int_equal(rig_start(&r, (ob_npu_queue_options){.n_retries = -1}, &err), OB_OK);
    const ob_npu_cmd c = rig_copy(&r, 1, 0, 64);
    assert_int_equal(ob_npu_queue_submit(r.queue, &c, 1, &t, &err), OB_OK);
    ob_npu_bo_free(r.in);
    r.in = NULL;
    assert_int_equal(ob_npu_queue_wait(r.queue, t, &err), OB_E_DEVICE);
    rig_free(&r);
}

static void test_bad_scripts(void **state)
{
    static const char *const bad[] = {"x", "ioctl:EXEC_CMD:0:EIO", "ioctl:NONE:1:EIO", "ioctl:*:1:EWHAT", "end:2:73:ERROR", "end:2:1:GONE",
                                      "lost", "lost:0", "slow:-1", "geometry:8", "hang:close", "nochip:1"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ob_npu_soft_options opt = rig_defaults(bad[i]);
        ob_npu_soft *s = NULL;
        ob_err err;
        opt.array = &rig_table;
        if (ob_npu_soft_new(&opt, &s, &err) != OB_E_INVALID) fail_msg("%s was taken", bad[i]);
        assert_null(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrix), cmocka_unit_test(test_unplugged), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_hang_in_company), cmocka_unit_test(test_flipped_bit), cmocka_unit_test(test_hanging_teardown),
        cmocka_unit_test(test_use_after_free), cmocka_unit_test(test_bad_scripts),
    };
    ob_log_set_level(OB_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
