/* base/clock.h: monotonic time. */
#ifndef OB_BASE_CLOCK_H
#define OB_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t ob_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static inline double ob_now_ms(void) { return (double)ob_now_ns() * 1e-6; }
static inline int64_t ob_unix_seconds(void) { return (int64_t)time(NULL); }

#endif
