/* fmt/uring.h: the few calls of io_uring that reading needs, without liburing. For fmt/direct.c only. */
#ifndef OB_FMT_URING_H
#define OB_FMT_URING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One ring of OB_URING_DEPTH requests. */
typedef struct ob_uring {
    int fd; /* -1: none */
    void *sq_map, *cq_map, *sqes;
    size_t sq_bytes, cq_bytes, sqes_bytes;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    void *cqes;
} ob_uring;

enum { OB_URING_DEPTH = 16 };

/* False where the kernel has none, or does not allow it. */
bool ob_uring_init(ob_uring *r);
void ob_uring_deinit(ob_uring *r);
/* Put a read into the ring; at most OB_URING_DEPTH may be in flight. It starts with the next ob_uring_wait. */
void ob_uring_read(ob_uring *r, int fd, void *dst, uint32_t n, uint64_t off, uint64_t tag);
/* Start what was put in and wait for one that is done: its tag, and bytes read or -errno. False when the ring itself
 * fails: then nothing in flight may be trusted to have ended. */
bool ob_uring_wait(ob_uring *r, unsigned n_new, uint64_t *tag, int64_t *result);

#endif
