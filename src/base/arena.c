#include "base/arena.h"

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"

struct ob_arena_block {
    ob_arena_block *next;
    size_t used, size;
    _Alignas(16) unsigned char data[];
};

enum { BLOCK_BYTES = 64 * 1024 };

void ob_arena_init(ob_arena *a, size_t max_bytes)
{
    *a = (ob_arena){.max_bytes = max_bytes};
}

static void free_blocks(ob_arena_block *b)
{
    while (b) {
        ob_arena_block *next = b->next;
        ob_free(b);
        b = next;
    }
}

void ob_arena_deinit(ob_arena *a)
{
    free_blocks(a->head);
    a->head = NULL;
    a->used_bytes = 0;
}

void ob_arena_reset(ob_arena *a)
{
    if (!a->head) return;
    free_blocks(a->head->next);
    a->head->next = NULL;
    a->head->used = 0;
    a->used_bytes = 0;
}

void *ob_arena_alloc(ob_arena *a, size_t n_bytes)
{
    if (n_bytes > SIZE_MAX - 32) return NULL;
    size_t n = ob_align_up(n_bytes ? n_bytes : 1, 16), total;
    if (!ob_add_size(a->used_bytes, n, &total) || total > a->max_bytes) return NULL;
    if (!a->head || a->head->size - a->head->used < n) {
        size_t size = OB_MAX(n, (size_t)BLOCK_BYTES), whole;
        if (!ob_add_size(size, sizeof(ob_arena_block), &whole)) return NULL;
        ob_arena_block *b = ob_malloc(whole);
        if (!b) return NULL;
        b->next = a->head;
        b->used = 0;
        b->size = size;
        a->head = b;
    }
    void *p = a->head->data + a->head->used;
    a->head->used += n;
    a->used_bytes = total;
    return memset(p, 0, n);
}

void *ob_arena_array(ob_arena *a, size_t n, size_t size)
{
    size_t total;
    return ob_mul_size(n, size, &total) ? ob_arena_alloc(a, total) : NULL;
}

char *ob_arena_strndup(ob_arena *a, const char *s, size_t n)
{
    if (n == SIZE_MAX) return NULL;
    char *p = ob_arena_alloc(a, n + 1);
    if (p) memcpy(p, s, n); /* the arena zeroes, so it is terminated */
    return p;
}
