/* base/alloc.h: heap memory with two test hooks: failure injection and a no-allocation guard.
 *
 * Owns: every heap allocation of the engine (C libraries' own apart). No function here aborts; no
 * memory is NULL, which callers turn into OB_E_NO_MEMORY.
 */
#ifndef OB_BASE_ALLOC_H
#define OB_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *ob_malloc(size_t n_bytes);                 /* n_bytes == 0 gives a unique pointer */
void *ob_calloc(size_t n, size_t size);          /* zeroed; NULL on overflow */
void *ob_realloc(void *p, size_t n_bytes);       /* p stays valid on failure */
void *ob_reallocarray(void *p, size_t n, size_t size); /* NULL on overflow */
void *ob_aligned_alloc(size_t align, size_t n_bytes);  /* align: power of two; free with ob_free */
char *ob_strdup(const char *s);
char *ob_strndup(const char *s, size_t n);
void ob_free(void *p);

/* Tests: let the next `n` allocations succeed and each one after that fail; n < 0 turns it off. */
void ob_alloc_fail_after(int64_t n);
/* Tests: number of successful allocations so far, in all threads. */
uint64_t ob_alloc_count(void);
/* While the guard is raised on this thread, an allocation is counted as a violation (and succeeds).
 * The engine raises it around a decode step; tests assert that violations stay 0. */
void ob_alloc_guard(bool on);
uint64_t ob_alloc_violations(void);

#endif
