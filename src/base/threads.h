/* base/threads.h: a pool of compute threads with cheap hand-over.
 *
 * Waiting threads spin about 2,000 pauses and then sleep on a futex, so a foreign busy core costs
 * its share and no more, and an idle pool uses no CPU. The caller is thread 0 of the pool: a pool of
 * one starts no thread. One owner at a time may call ob_pool_run (the engine thread).
 */
#ifndef OB_BASE_THREADS_H
#define OB_BASE_THREADS_H

#include "base/status.h"

typedef struct ob_pool ob_pool;
/* Runs on every thread of the pool at once; ith in [0, n_threads). */
typedef void (*ob_pool_fn)(void *arg, int ith, int n_threads);

/* n_threads <= 0: one per physical core this process may use. */
OB_MUST_CHECK ob_status ob_pool_new(int n_threads, ob_pool **out, ob_err *err);
void ob_pool_free(ob_pool *p);
int ob_pool_n_threads(const ob_pool *p);
/* Returns when all threads have returned from fn. Allocates nothing. */
void ob_pool_run(ob_pool *p, ob_pool_fn fn, void *arg);
/* Inside fn only: all threads of the pool meet. */
void ob_pool_barrier(ob_pool *p);
/* Number of processors this process may run on (affinity and cgroup quota), at least 1. */
int ob_cpu_count(void);

#endif
