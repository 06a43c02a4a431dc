/* base/threads.h: a pool of compute threads with cheap hand-over.
 *
 * Waiting threads spin about 2,000 pauses and then sleep on a futex, so a foreign busy core costs
 * its share and no more, and an idle pool uses no CPU. The caller is thread 0 of the pool: a pool of
 * one starts no thread. One owner at a time may call ob_pool_run (the engine thread).
 */
#ifndef OB_BASE_THREADS_H
#define OB_BASE_THREADS_H

#include <stdbool.h>
#include <stdint.h>

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
/* Inside fn only: take the next `grain` of n items from the pool's one counter of work, which starts
 * at 0 with each run and after each barrier; false when none are left. So there is at most one such
 * loop between two barriers, with the same n on all threads, and a thread that the machine holds
 * back costs one grain, not its fixed share:
 *
 *     for (int64_t i0, i1; ob_pool_take(p, n, 16, &i0, &i1);) work(i0, i1);
 *     ob_pool_barrier(p);
 */
bool ob_pool_take(ob_pool *p, int64_t n, int64_t grain, int64_t *first, int64_t *last);
/* Number of processors this process may run on (affinity and cgroup quota), at least 1. */
int ob_cpu_count(void);

#endif
