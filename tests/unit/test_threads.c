/* Unit tests of base/threads: every thread runs, barriers order memory, sleepers wake, quotas. */
#include "test.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/threads.h"
#include "base/threads_int.h"

enum { MAX_THREADS = 8 };

static void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

typedef struct shared {
    ob_pool *pool;
    int64_t cell[MAX_THREADS]; /* plain memory: only the barrier orders it (TSan watches) */
    int64_t wrong[MAX_THREADS];
    int n_rounds, sleeper, sleep_ms;
    int8_t done[1000];
} shared;

/* Each round every thread writes its own cell and, after the barrier, reads all others. */
static void rounds(void *arg, int ith, int n)
{
    shared *s = arg;
    for (int r = 1; r <= s->n_rounds; r++) {
        if (s->sleep_ms && ith == s->sleeper) sleep_ms(s->sleep_ms);
        s->cell[ith] = r;
        ob_pool_barrier(s->pool);
        for (int i = 0; i < n; i++) s->wrong[ith] += s->cell[i] != r;
        ob_pool_barrier(s->pool);
    }
}

static void check_rounds(int n_threads, int n_rounds, int sleeper, int ms)
{
    shared s = {.n_rounds = n_rounds, .sleeper = sleeper, .sleep_ms = ms};
    assert_int_equal(ob_pool_new(n_threads, &s.pool, NULL), OB_OK);
    assert_int_equal(ob_pool_n_threads(s.pool), n_threads);
    for (int run = 0; run < 3; run++) {
        memset(s.cell, 0, sizeof s.cell);
        ob_pool_run(s.pool, rounds, &s);
        for (int i = 0; i < n_threads; i++) {
            assert_int_equal(s.cell[i], n_rounds);
            assert_int_equal(s.wrong[i], 0);
        }
    }
    ob_pool_free(s.pool);
}

static void test_barrier_orders_memory(void **state)
{
    (void)state;
    for (int n = 1; n <= MAX_THREADS; n++) check_rounds(n, 200, -1, 0);
}

/* Longer than any spin: the others sleep on the futex and must be woken. */
static void test_sleepers_wake(void **state)
{
    (void)state;
    check_rounds(2, 3, 0, 15);
    check_rounds(2, 3, 1, 15);
    check_rounds(5, 3, 2, 15);
}

static void nothing(void *arg, int ith, int n)
{
    (void)n;
    ((int *)arg)[ith]++;
}

static void test_runs_after_idle(void **state)
{
    (void)state;
    ob_pool *p;
    assert_int_equal(ob_pool_new(3, &p, NULL), OB_OK);
    int count[3] = {0};
    for (int i = 0; i < 4; i++) {
        ob_pool_run(p, nothing, count);
        if (i & 1) sleep_ms(10);
    }
    for (int i = 0; i < 2000; i++) ob_pool_run(p, nothing, count);
    for (int i = 0; i < 3; i++) assert_int_equal(count[i], 2004);
    ob_pool_free(p);
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void test_idle_pool_sleeps(void **state)
{
    (void)state;
    ob_pool *p;
    assert_int_equal(ob_pool_new(4, &p, NULL), OB_OK);
    int count[4] = {0};
    ob_pool_run(p, nothing, count);
    const double t0 = cpu_seconds();
    sleep_ms(200);
    /* Three spinning workers would use at least 200 ms. */
    assert_true(cpu_seconds() - t0 < 0.05);
    ob_pool_free(p);
}

static void take_all(void *arg, int ith, int n)
{
    shared *s = arg;
    (void)ith;
    (void)n;
    for (int round = 0; round < 5; round++) {
        for (int64_t a, b; ob_pool_take(s->pool, 1000, 7, &a, &b);)
            for (int64_t i = a; i < b; i++) s->done[i]++;
        ob_pool_barrier(s->pool);
    }
}

static void test_take_gives_each_item_once(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++) {
        shared s = {0};
        assert_int_equal(ob_pool_new(n, &s.pool, NULL), OB_OK);
        for (int run = 1; run <= 3; run++) {
            ob_pool_run(s.pool, take_all, &s);
            for (int i = 0; i < 1000; i++) assert_int_equal(s.done[i], 5 * run);
        }
        ob_pool_free(s.pool);
    }
}

static void test_new_errors(void **state)
{
    (void)state;
    ob_pool *p;
    ob_err e;
    assert_int_equal(ob_pool_new(100000, &p, &e), OB_E_LIMIT);
    assert_null(p);
    ob_alloc_fail_after(0);
    const ob_status s = ob_pool_new(2, &p, &e);
    ob_alloc_fail_after(-1);
    assert_int_equal(s, OB_E_NO_MEMORY);
    assert_int_equal(ob_pool_new(0, &p, &e), OB_OK);
    assert_in_range(ob_pool_n_threads(p), 1, ob_cpu_count());
    ob_pool_free(p);
    ob_pool_free(NULL);
}

static void test_affinity(void **state)
{
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &one);
            break;
        }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    const int n = ob_cpu_count();
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(n, 1);
}

static void put(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_quota(void **state)
{
    (void)state;
    char dir[] = "/tmp/ob_quota_XXXXXX", self[64], sub[64], subsub[64];
    assert_non_null(mkdtemp(dir));
    snprintf(self, sizeof self, "%s/self", dir);
    snprintf(sub, sizeof sub, "%s/a", dir);
    snprintf(subsub, sizeof subsub, "%s/a/b", dir);
    assert_int_equal(mkdir(sub, 0700), 0);
    assert_int_equal(mkdir(subsub, 0700), 0);
    put(dir, "self", "9:name=systemd:/x\n0::/a/b\n");
    assert_int_equal(ob_cpu_quota(self, dir), 0); /* no file: no limit */
    put(subsub, "cpu.max", "max 100000\n");
    assert_int_equal(ob_cpu_quota(self, dir), 0);
    put(sub, "cpu.max", "350000 100000\n");
    assert_int_equal(ob_cpu_quota(self, dir), 3); /* the parent's limit holds */
    put(subsub, "cpu.max", "50000 100000\n");
    assert_int_equal(ob_cpu_quota(self, dir), 1); /* half a processor still runs one thread */
    put(dir, "self", "0::/\n");
    put(dir, "cpu.max", "200000 100000\n");
    assert_int_equal(ob_cpu_quota(self, dir), 2);
    assert_int_equal(ob_cpu_quota("/nowhere/at/all", dir), 0);
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    assert_int_equal(system(cmd), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_barrier_orders_memory), cmocka_unit_test(test_sleepers_wake),
        cmocka_unit_test(test_runs_after_idle),       cmocka_unit_test(test_idle_pool_sleeps),
        cmocka_unit_test(test_take_gives_each_item_once), cmocka_unit_test(test_new_errors),
        cmocka_unit_test(test_affinity),              cmocka_unit_test(test_quota),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
