#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Relaxed order everywhere: these are counters, nothing is published through them. */
static _Atomic int64_t g_fail_after = -1;
static _Atomic uint64_t g_count, g_violations;
static _Thread_local bool t_guard;

static bool may_allocate(void)
{
    if (t_guard) atomic_fetch_add_explicit(&g_violations, 1, memory_order_relaxed);
    int64_t left = atomic_load_explicit(&g_fail_after, memory_order_relaxed);
    if (left >= 0) {
        left = atomic_fetch_sub_explicit(&g_fail_after, 1, memory_order_relaxed);
        if (left <= 0) {
            atomic_store_explicit(&g_fail_after, 0, memory_order_relaxed);
            return false;
        }
    }
    atomic_fetch_add_explicit(&g_count, 1, memory_order_relaxed);
    return true;
}

void *ob_malloc(size_t n_bytes)
{
    return may_allocate() ? malloc(n_bytes ? n_bytes : 1) : NULL;
}

void *ob_calloc(size_t n, size_t size)
{
    if (n == 0 || size == 0) n = size = 1;
    return may_allocate() ? calloc(n, size) : NULL;
}

void *ob_realloc(void *p, size_t n_bytes)
{
    return may_allocate() ? realloc(p, n_bytes ? n_bytes : 1) : NULL;
}

void *ob_reallocarray(void *p, size_t n, size_t size)
{
    size_t total;
    if (__builtin_mul_overflow(n, size, &total)) return NULL;
    return ob_realloc(p, total);
}

void *ob_aligned_alloc(size_t align, size_t n_bytes)
{
    if (n_bytes > SIZE_MAX - align) return NULL;
    if (n_bytes == 0) n_bytes = align;
    return may_allocate() ? aligned_alloc(align, (n_bytes + align - 1) & ~(align - 1)) : NULL;
}

char *ob_strndup(const char *s, size_t n)
{
    char *p = ob_malloc(n + 1);
    if (!p) return NULL;
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

char *ob_strdup(const char *s) { return ob_strndup(s, strlen(s)); }

void ob_free(void *p) { free(p); }

void ob_alloc_fail_after(int64_t n)
{
    atomic_store_explicit(&g_fail_after, n, memory_order_relaxed);
}

uint64_t ob_alloc_count(void) { return atomic_load_explicit(&g_count, memory_order_relaxed); }

void ob_alloc_guard(bool on) { t_guard = on; }

uint64_t ob_alloc_violations(void)
{
    return atomic_load_explicit(&g_violations, memory_order_relaxed);
}
