/* base/threads.c: the compute pool: spin a little, then sleep on a futex.
 *
 * Three words are waited on: `epoch` (workers wait for the next run), `running` (the caller waits for
 * the workers) and `phase` (the barrier). Each has a count of sleepers beside it. The side that changes
 * a word stores it and then reads the sleepers; the side that goes to sleep adds itself to the
 * sleepers and then reads the word. All four are seq_cst, so at least one of the two sees the other
 * and no wake-up is lost, while the common case (nobody sleeps) makes no system call.
 */
#include "base/threads.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "base/threads_int.h"

/* Longer than the usual wait between two matrix products, far shorter than a time slice. */
#define SPIN_PAUSES 2000
/* More threads than processors: whoever waits should make room at once. */
#define SPIN_PAUSES_CROWDED 20

typedef struct wait_word {
    _Alignas(64) _Atomic uint32_t word;
    _Atomic uint32_t n_sleep;
} wait_word;

struct ob_pool {
    int n_threads, n_started, spin;
    wait_word epoch;   /* counts runs */
    wait_word running; /* workers that have not finished the run */
    wait_word phase;   /* counts barriers */
    _Alignas(64) _Atomic int32_t arrived;  /* at the barrier */
    _Alignas(64) _Atomic int64_t next_item; /* of ob_pool_take */
    /* Written by the caller before `epoch` changes, read by workers after. */
    _Alignas(64) ob_pool_fn fn;
    void *arg;
    bool stop;
    struct worker {
        ob_pool *pool;
        int ith;
        pthread_t thread;
    } workers[];
};

/* --- waiting ----------------------------------------------------------------------------------- */

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

static void futex(_Atomic uint32_t *word, int op, uint32_t val)
{
    syscall(SYS_futex, (uint32_t *)word, op | FUTEX_PRIVATE_FLAG, val, NULL, NULL, 0);
}

static void wake(wait_word *w, int n)
{
    if (atomic_load(&w->n_sleep)) futex(&w->word, FUTEX_WAKE, (uint32_t)n);
}

/* Returns the first value that is not `old`. Acquire, so that what was written before the change of
 * the word is seen. */
static uint32_t wait_change(wait_word *w, uint32_t old, int spin)
{
    uint32_t v;
    for (int i = 0; i < spin; i++) {
        if ((v = atomic_load_explicit(&w->word, memory_order_acquire)) != old) return v;
        pause_cpu();
    }
    atomic_fetch_add(&w->n_sleep, 1);
    while ((v = atomic_load(&w->word)) == old) futex(&w->word, FUTEX_WAIT, old);
    atomic_fetch_sub(&w->n_sleep, 1);
    return v;
}

/* --- the pool ---------------------------------------------------------------------------------- */

static void *worker_main(void *arg)
{
    struct worker *me = arg;
    ob_pool *p = me->pool;
    for (uint32_t seen = 0;;) {
        seen = wait_change(&p->epoch, seen, p->spin);
        if (p->stop) return NULL;
        p->fn(p->arg, me->ith, p->n_threads);
        if (atomic_fetch_sub(&p->running.word, 1) == 1) wake(&p->running, 1);
    }
}

static void start_run(ob_pool *p)
{
    atomic_store_explicit(&p->running.word, (uint32_t)p->n_started, memory_order_relaxed);
    atomic_store_explicit(&p->next_item, 0, memory_order_relaxed);
    atomic_fetch_add(&p->epoch.word, 1); /* publishes all of the above */
    wake(&p->epoch, INT_MAX);
}

void ob_pool_run(ob_pool *p, ob_pool_fn fn, void *arg)
{
    p->fn = fn;
    p->arg = arg;
    start_run(p);
    fn(arg, 0, p->n_threads);
    for (uint32_t left = (uint32_t)p->n_started; left;) {
        left = atomic_load_explicit(&p->running.word, memory_order_acquire);
        if (left) left = wait_change(&p->running, left, p->spin);
    }
}

void ob_pool_barrier(ob_pool *p)
{
    if (p->n_threads == 1) {
        atomic_store_explicit(&p->next_item, 0, memory_order_relaxed);
        return;
    }
    /* Relaxed: the phase cannot change before this thread has arrived. */
    const uint32_t phase = atomic_load_explicit(&p->phase.word, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) + 1 == p->n_threads) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&p->next_item, 0, memory_order_relaxed);
        atomic_store(&p->phase.word, phase + 1);
        wake(&p->phase, INT_MAX);
    } else {
        wait_change(&p->phase, phase, p->spin);
    }
}

bool ob_pool_take(ob_pool *p, int64_t n, int64_t grain, int64_t *first, int64_t *last)
{
    /* Relaxed: which items, not their data; the barrier orders the data. */
    const int64_t i = atomic_fetch_add_explicit(&p->next_item, grain, memory_order_relaxed);
    if (i >= n) return false;
    *first = i;
    *last = OB_MIN(i + grain, n);
    return true;
}

static int physical_cores(void);

ob_status ob_pool_new(int n_threads, ob_pool **out, ob_err *err)
{
    *out = NULL;
    if (n_threads <= 0) n_threads = physical_cores();
    if (n_threads > OB_MAX_THREADS)
        return ob_err_set(err, OB_E_LIMIT, "%d threads asked for, at most %d are supported",
                          n_threads, OB_MAX_THREADS);
    const size_t n_bytes = sizeof(ob_pool) + (size_t)n_threads * sizeof(struct worker);
    ob_pool *p = ob_aligned_alloc(64, n_bytes);
    if (!p) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a pool of %d threads", n_threads);
    memset(p, 0, n_bytes);
    p->n_threads = n_threads;
    p->spin = n_threads > ob_cpu_count() ? SPIN_PAUSES_CROWDED : SPIN_PAUSES;
    for (int i = 1; i < n_threads; i++) {
        struct worker *w = &p->workers[i];
        *w = (struct worker){.pool = p, .ith = i};
        const int rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc) {
            ob_pool_free(p);
            return ob_err_set_errno(err, OB_E_NO_MEMORY, rc, "cannot start thread %d of %d", i + 1,
                                    n_threads);
        }
        p->n_started++;
    }
    *out = p;
    return OB_OK;
}

void ob_pool_free(ob_pool *p)
{
    if (!p) return;
    p->stop = true;
    start_run(p);
    for (int i = 1; i <= p->n_started; i++) pthread_join(p->workers[i].thread, NULL);
    ob_free(p);
}

int ob_pool_n_threads(const ob_pool *p) { return p->n_threads; }

/* --- how many processors ----------------------------------------------------------------------- */

static bool read_line(const char *path, const char *prefix, char *line, size_t cap)
{
    FILE *f = fopen(path, "re");
    if (!f) return false;
    const size_t n = strlen(prefix);
    bool found = false;
    while (!found && fgets(line, (int)cap, f)) found = strncmp(line, prefix, n) == 0;
    fclose(f);
    if (!found) return false;
    line[strcspn(line, "\n")] = 0;
    memmove(line, line + n, strlen(line + n) + 1);
    return true;
}

int ob_cpu_quota(const char *self, const char *root)
{
    char group[PATH_MAX], path[2 * PATH_MAX], line[128];
    if (!read_line(self, "0::", group, sizeof group)) return 0;
    int least = 0;
    for (;;) {
        long long quota, period;
        snprintf(path, sizeof path, "%s%s/cpu.max", root, group);
        /* "max 100000" (no limit) does not parse as two numbers. */
        if (read_line(path, "", line, sizeof line) &&
            sscanf(line, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0) {
            const int n = (int)OB_MAX(1, OB_MIN(quota / period, INT_MAX));
            least = least ? OB_MIN(least, n) : n;
        }
        char *slash = strrchr(group, '/');
        if (!slash) return least;
        *slash = 0;
    }
}

static bool allowed_cpus(cpu_set_t **set, size_t *n_bytes, int *n_cpus)
{
    /* The kernel refuses a mask that is too small: grow it. */
    for (int n = 1024; n <= 1 << 16; n *= 4) {
        *set = CPU_ALLOC((size_t)n);
        if (!*set) return false;
        *n_bytes = CPU_ALLOC_SIZE((size_t)n);
        *n_cpus = n;
        CPU_ZERO_S(*n_bytes, *set);
        if (sched_getaffinity(0, *n_bytes, *set) == 0) return true;
        CPU_FREE(*set);
        if (errno != EINVAL) return false;
    }
    return false;
}

static int under_quota(int n)
{
    int quota = ob_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    if (!quota) quota = ob_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup/unified");
    return OB_MAX(1, quota ? OB_MIN(n, quota) : n);
}

int ob_cpu_count(void)
{
    cpu_set_t *set;
    size_t n_bytes;
    int n_cpus;
    if (!allowed_cpus(&set, &n_bytes, &n_cpus)) {
        const long n = sysconf(_SC_NPROCESSORS_ONLN);
        return under_quota(n > 0 ? (int)OB_MIN(n, OB_MAX_THREADS) : 1);
    }
    const int n = CPU_COUNT_S(n_bytes, set);
    CPU_FREE(set);
    return under_quota(n);
}

/* A processor counts when no allowed sibling of the same core has a lower number. */
static int physical_cores(void)
{
    cpu_set_t *set;
    size_t n_bytes;
    int n_cpus, n = 0;
    if (!allowed_cpus(&set, &n_bytes, &n_cpus)) return OB_MIN(ob_cpu_count(), OB_MAX_THREADS);
    for (int cpu = 0; cpu < n_cpus; cpu++) {
        if (!CPU_ISSET_S((size_t)cpu, n_bytes, set)) continue;
        char path[128], list[256];
        bool first = true;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
                 cpu);
        /* "0,64" or "0-1": ranges separated by commas. */
        char *at = read_line(path, "", list, sizeof list) ? list : NULL;
        while (at && *at) {
            char *end;
            const long lo = strtol(at, &end, 10);
            if (end == at) break;
            const long hi = *end == '-' ? strtol(end + 1, &end, 10) : lo;
            for (long c = lo; c <= hi && c < cpu; c++)
                if (c >= 0 && CPU_ISSET_S((size_t)c, n_bytes, set)) first = false;
            at = *end == ',' ? end + 1 : NULL;
        }
        n += first;
    }
    CPU_FREE(set);
    return OB_MIN(under_quota(n), OB_MAX_THREADS);
}
