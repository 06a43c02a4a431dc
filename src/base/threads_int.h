/* base/threads_int.h: what the tests of threads.c may reach. */
#ifndef OB_BASE_THREADS_INT_H
#define OB_BASE_THREADS_INT_H

/* Whole processors that cgroup v2 grants (cpu.max of the group and all its parents, rounded down, at
 * least 1), or 0 when there is no limit. self: a file like /proc/self/cgroup; root: the mount. */
int ob_cpu_quota(const char *self, const char *root);

#endif
