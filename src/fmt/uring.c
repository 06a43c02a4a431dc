/* io_uring through its three system calls (io_uring_setup(2), io_uring_enter(2)). */
#include "fmt/uring.h"

#include <string.h>

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <errno.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *at(void *map, uint32_t off) { return (uint8_t *)map + off; }

static void *map_ring(int fd, size_t n, off_t what)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);
    return p == MAP_FAILED ? NULL : p;
}

bool ob_uring_init(ob_uring *r)
{
    struct io_uring_params p;
    memset(&p, 0, sizeof p);
    memset(r, 0, sizeof *r);
    r->fd = (int)syscall(__NR_io_uring_setup, OB_URING_DEPTH, &p);
    if (r->fd < 0) {
        r->fd = -1;
        return false;
    }
    r->sq_bytes = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    r->cq_bytes = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    r->sqes_bytes = p.sq_entries * sizeof(struct io_uring_sqe);
    r->sq_map = map_ring(r->fd, r->sq_bytes, IORING_OFF_SQ_RING);
    r->cq_map = map_ring(r->fd, r->cq_bytes, IORING_OFF_CQ_RING);
    r->sqes = map_ring(r->fd, r->sqes_bytes, IORING_OFF_SQES);
    if (!r->sq_map || !r->cq_map || !r->sqes) {
        ob_uring_deinit(r);
        return false;
    }
    r->sq_tail = at(r->sq_map, p.sq_off.tail);
    r->sq_mask = at(r->sq_map, p.sq_off.ring_mask);
    r->sq_array = at(r->sq_map, p.sq_off.array);
    r->cq_head = at(r->cq_map, p.cq_off.head);
    r->cq_tail = at(r->cq_map, p.cq_off.tail);
    r->cq_mask = at(r->cq_map, p.cq_off.ring_mask);
    r->cqes = at(r->cq_map, p.cq_off.cqes);
    return true;
}

void ob_uring_deinit(ob_uring *r)
{
    if (r->sq_map) munmap(r->sq_map, r->sq_bytes);
    if (r->cq_map) munmap(r->cq_map, r->cq_bytes);
    if (r->sqes) munmap(r->sqes, r->sqes_bytes);
    if (r->fd >= 0) close(r->fd);
    memset(r, 0, sizeof *r);
    r->fd = -1;
}

void ob_uring_read(ob_uring *r, int fd, void *dst, uint32_t n, uint64_t off, uint64_t tag)
{
    const unsigned tail = *r->sq_tail, i = tail & *r->sq_mask; /* only this thread writes the tail */
    struct io_uring_sqe *e = (struct io_uring_sqe *)r->sqes + i;
    memset(e, 0, sizeof *e);
    e->opcode = IORING_OP_READ;
    e->fd = fd;
    e->addr = (uint64_t)(uintptr_t)dst;
    e->len = n;
    e->off = off;
    e->user_data = tag;
    r->sq_array[i] = i;
    /* The kernel reads the entry after it has seen the new tail. */
    atomic_store_explicit((_Atomic unsigned *)r->sq_tail, tail + 1, memory_order_release);
}

bool ob_uring_wait(ob_uring *r, unsigned n_new, uint64_t *tag, int64_t *result)
{
    const unsigned head = *r->cq_head; /* only this thread writes the head */
    bool there = head != atomic_load_explicit((_Atomic unsigned *)r->cq_tail, memory_order_acquire);
    while (n_new || !there) {
        const long n = syscall(__NR_io_uring_enter, r->fd, n_new, there ? 0 : 1, IORING_ENTER_GETEVENTS, NULL, (size_t)0);
        if (n < 0 && errno != EINTR && errno != EAGAIN && errno != EBUSY) return false;
        if (n > 0) n_new -= (unsigned)n;
        there = head != atomic_load_explicit((_Atomic unsigned *)r->cq_tail, memory_order_acquire);
    }
    const struct io_uring_cqe *e = (struct io_uring_cqe *)r->cqes + (head & *r->cq_mask);
    *tag = e->user_data;
    *result = e->res;
    atomic_store_explicit((_Atomic unsigned *)r->cq_head, head + 1, memory_order_release);
    return true;
}

#else

bool ob_uring_init(ob_uring *r)
{
    memset(r, 0, sizeof *r);
    r->fd = -1;
    return false;
}
void ob_uring_deinit(ob_uring *r) { (void)r; }
void ob_uring_read(ob_uring *r, int fd, void *dst, uint32_t n, uint64_t off, uint64_t tag)
{
    (void)r, (void)fd, (void)dst, (void)n, (void)off, (void)tag;
}
bool ob_uring_wait(ob_uring *r, unsigned n_new, uint64_t *tag, int64_t *result)
{
    (void)r, (void)n_new, (void)tag, (void)result;
    return false;
}

#endif
