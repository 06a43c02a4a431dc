/* base/arena.h: many small allocations freed at once, with a stated maximum.
 *
 * Owner: whoever made it; not thread-safe. Pointers stay valid until ob_arena_reset/_deinit.
 */
#ifndef OB_BASE_ARENA_H
#define OB_BASE_ARENA_H

#include <stddef.h>

typedef struct ob_arena_block ob_arena_block;
typedef struct ob_arena {
    ob_arena_block *head;
    size_t used_bytes, max_bytes;
} ob_arena;

void ob_arena_init(ob_arena *a, size_t max_bytes);
void ob_arena_deinit(ob_arena *a);
void ob_arena_reset(ob_arena *a); /* keeps the newest block */
/* 16-byte aligned, zeroed. NULL when max_bytes would be passed or memory is out. */
void *ob_arena_alloc(ob_arena *a, size_t n_bytes);
void *ob_arena_array(ob_arena *a, size_t n, size_t size); /* checked multiply */
char *ob_arena_strndup(ob_arena *a, const char *s, size_t n);

#endif
