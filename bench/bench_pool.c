/* bench/bench_pool.c: what a run, a barrier and a busy neighbour cost.
 *
 *     bench_pool [N_THREADS]
 *
 * The last two lines compare the same work (phases of 40 us per thread with a barrier after each)
 * alone and beside one process that keeps one processor busy. Its share is one of N processors, of
 * which the scheduler gives us half: with work that is taken in grains the fair slow-down is about
 * N / (N - 0.5), with fixed shares at most 2.
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/threads.h"

typedef struct job {
    ob_pool *pool;
    int n_rounds;
    int64_t n_items; /* per round; 0: barriers only */
    bool dynamic;
} job;

static volatile uint32_t g_sink;

/* About 2 us. */
static void item(void)
{
    uint32_t x = g_sink;
    for (int i = 0; i < 1500; i++) x = x * 1664525u + 1013904223u;
    g_sink = x;
}

static void phases(void *arg, int ith, int n)
{
    job *j = arg;
    for (int r = 0; r < j->n_rounds; r++) {
        if (j->dynamic) {
            for (int64_t a, b; ob_pool_take(j->pool, j->n_items, 1, &a, &b);) item();
        } else {
            for (int64_t i = ith; i < j->n_items; i += n) item();
        }
        ob_pool_barrier(j->pool);
    }
}

static int by_value(const void *a, const void *b)
{
    const double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

/* Median over 11 runs, in microseconds per round. */
static double time_job(job *j)
{
    double us[11];
    for (int i = 0; i < 11; i++) {
        const double t0 = ob_now_ms();
        ob_pool_run(j->pool, phases, j);
        us[i] = (ob_now_ms() - t0) * 1e3 / j->n_rounds;
    }
    qsort(us, 11, sizeof *us, by_value);
    return us[5];
}

static pid_t start_neighbour(void)
{
    const pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    sched_setaffinity(0, sizeof one, &one);
    for (;;) item();
}

static void nothing(void *arg, int ith, int n)
{
    (void)arg;
    (void)ith;
    (void)n;
}

int main(int argc, char **argv)
{
    ob_pool *p;
    ob_err err;
    if (ob_pool_new(argc > 1 ? atoi(argv[1]) : 0, &p, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const int n = ob_pool_n_threads(p);
    printf("threads %d of %d\n", n, ob_cpu_count());
    const double t0 = ob_now_ms();
    for (int i = 0; i < 100000; i++) ob_pool_run(p, nothing, NULL);
    printf("empty run          %8.3f us\n", (ob_now_ms() - t0) * 1e3 / 100000);
    printf("barrier            %8.3f us\n", time_job(&(job){.pool = p, .n_rounds = 100000}));
    double us[2][2];
    pid_t pid = 0;
    for (int busy = 0; busy < 2; busy++) {
        if (busy) {
            pid = start_neighbour();
            usleep(100000);
        }
        for (int dynamic = 0; dynamic < 2; dynamic++)
            us[busy][dynamic] = time_job(
                &(job){.pool = p, .n_rounds = 5000, .n_items = 20 * n, .dynamic = dynamic});
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    printf("fixed shares       %8.1f us alone, %8.1f us beside a busy process (x %.2f)\n", us[0][0],
           us[1][0], us[1][0] / us[0][0]);
    printf("taken in grains    %8.1f us alone, %8.1f us beside a busy process (x %.2f)\n", us[0][1],
           us[1][1], us[1][1] / us[0][1]);
    ob_pool_free(p);
    return 0;
}
