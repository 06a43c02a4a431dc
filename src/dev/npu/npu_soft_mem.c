/* Memory of the software model: a copy for the CPU, one for the NPU, and cache lines in between. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/math.h"
#include "dev/npu/npu_soft_int.h"

/* Address space that costs nothing until it is written to. NULL: none. */
static uint8_t *pages_new(size_t n_bytes)
{
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* ---- the heap --------------------------------------------------------------------------------- */

static uint64_t heap_max(const ob_npu_soft *s)
{
    const ob_npu_firmware *f = &s->opt.firmware;
    const bool grows = s->opt.gen != OB_NPU_1 && (f->major > 6 || (f->major == 6 && f->minor >= 18));
    return grows ? OB_NPU_HEAP_MAX : OB_NPU_HEAP_CHUNK;
}

/* First fit among what is taken. */
static int heap_place(const ob_npu_soft *s, int fd, uint64_t n_bytes, uint64_t *out)
{
    uint64_t at = OB_NPU_HEAP_BASE;
    for (bool moved = true; moved;) {
        moved = false;
        for (const soft_bo *b = s->bos; b; b = b->next)
            if (b->type == OB_NPU_BO_DEV && b->fd == fd && b->dev_addr < at + n_bytes && at < b->dev_addr + b->n_bytes) {
                at = ob_align_up(b->dev_addr + b->n_bytes, OB_NPU_DEV_ALIGN);
                moved = true;
            }
    }
    if (at + n_bytes > OB_NPU_HEAP_BASE + heap_max(s)) return -ENOSPC;
    *out = at;
    return 0;
}

/* All heap buffers up to `end` are there and mapped, one behind the other. */
static int heap_covers(const ob_npu_soft *s, int fd, uint64_t end)
{
    const uint8_t *expected = NULL;
    for (uint64_t at = OB_NPU_HEAP_BASE; at < end;) {
        const soft_bo *h = s->bos;
        while (h && !(h->type == OB_NPU_BO_DEV_HEAP && h->fd == fd && h->handle && h->dev_addr == at)) h = h->next;
        if (!h || !h->host) return -EAGAIN;
        if (expected && h->host != expected) return -EINVAL;
        expected = h->host + h->n_bytes;
        at += h->n_bytes;
    }
    return 0;
}

static soft_bo *bo_add(ob_npu_soft *s, int fd, uint32_t type, uint64_t n_bytes)
{
    soft_bo *b = ob_calloc(1, sizeof *b);
    if (!b) return NULL;
    *b = (soft_bo){.next = s->bos, .fd = fd, .type = type, .n_bytes = n_bytes, .dev_addr = OB_NPU_NO_ADDR};
    s->bos = b;
    return b;
}

int soft_heap_take(ob_npu_soft *s, int fd, uint64_t n_bytes, uint32_t ctx)
{
    uint64_t at;
    n_bytes = ob_align_up(n_bytes, OB_NPU_PAGE);
    int r = heap_place(s, fd, n_bytes, &at);
    if (!r) r = heap_covers(s, fd, at + n_bytes);
    if (r) return r;
    soft_bo *b = bo_add(s, fd, OB_NPU_BO_DEV, n_bytes);
    if (!b) return -ENOMEM;
    b->dev_addr = at;
    b->owner_ctx = ctx;
    b->dev = s->clients[fd - SOFT_FD].heap_dev + (at - OB_NPU_HEAP_BASE);
    return 0;
}

void soft_heap_give(ob_npu_soft *s, int fd, uint32_t ctx)
{
    for (soft_bo *b = s->bos, *next; b; b = next) {
        next = b->next;
        if (b->fd == fd && b->owner_ctx == ctx && b->type == OB_NPU_BO_DEV) {
            b->owner_ctx = 0;
            soft_bo_drop(s, b);
        }
    }
}

static int heap_create(ob_npu_soft *s, int fd, uint64_t n_bytes, soft_bo **out)
{
    soft_client *c = soft_client_of(s, fd);
    if (!n_bytes || n_bytes % OB_NPU_HEAP_CHUNK) return -EINVAL;
    if (c->heap_bytes && heap_max(s) == OB_NPU_HEAP_CHUNK) return -EOPNOTSUPP;
    if (c->heap_bytes + n_bytes > heap_max(s)) return -ENOSPC;
    if (!c->heap_dev) c->heap_dev = pages_new(OB_NPU_HEAP_MAX);
    if (!c->heap_line) c->heap_line = pages_new(OB_NPU_HEAP_MAX);
    if (!c->heap_dev || !c->heap_line) return -ENOMEM;
    soft_bo *b = bo_add(s, fd, OB_NPU_BO_DEV_HEAP, n_bytes);
    if (!b) return -ENOMEM;
    b->dev = c->heap_dev + c->heap_bytes;
    b->line = c->heap_line + c->heap_bytes;
    b->dev_addr = OB_NPU_HEAP_BASE + c->heap_bytes;
    c->heap_bytes += n_bytes;
    *out = b;
    return 0;
}

/* ---- other buffers ---------------------------------------------------------------------------- */

/* May the process write there? The driver looks at its own tables; here the kernel is asked to copy a byte onto itself (not
 * through libc: a page may hold more than the caller's own memory). */
static bool user_writable(uint8_t *p)
{
    int fds[2];
    if (pipe(fds)) return false;
    const bool ok = syscall(SYS_write, fds[1], p, 1) == 1 && syscall(SYS_read, fds[0], p, 1) == 1;
    close(fds[0]);
    close(fds[1]);
    return ok;
}

static int user_create(ob_npu_soft *s, int fd, const ob_npu_create_bo *a, soft_bo **out)
{
    const ob_npu_va_table *t = (const ob_npu_va_table *)(uintptr_t)a->vaddr;
    if (s->opt.driver_minor < 7 || t->n_entries != 1) return -EINVAL; /* several stretches, dma-buf: not modelled */
    const ob_npu_va_entry *e = &t->entries[0];
    if (e->vaddr % OB_NPU_PAGE || e->len % OB_NPU_PAGE || !e->len || e->len != a->size) return -EINVAL;
    soft_bo *b = bo_add(s, fd, OB_NPU_BO_SHARE, e->len);
    if (!b) return -ENOMEM;
    b->dev = (uint8_t *)(uintptr_t)e->vaddr;
    b->user = true;
    b->read_only = !user_writable(b->dev) || !user_writable(b->dev + e->len - 1);
    *out = b;
    return 0;
}

static int share_create(ob_npu_soft *s, int fd, const ob_npu_create_bo *a, soft_bo **out)
{
    if (!a->size || a->size > (uint64_t)1 << 40) return -EINVAL;
    const uint64_t n_bytes = ob_align_up(a->size, OB_NPU_PAGE);
    uint8_t *dev = pages_new(n_bytes), *line = pages_new(n_bytes);
    soft_bo *b = dev && line ? bo_add(s, fd, a->type, n_bytes) : NULL;
    if (!b) {
        if (dev) munmap(dev, n_bytes);
        if (line) munmap(line, n_bytes);
        return -ENOMEM;
    }
    b->dev = dev;
    b->line = line;
    *out = b;
    return 0;
}

static int dev_create(ob_npu_soft *s, int fd, uint64_t n_bytes, soft_bo **out)
{
    if (!n_bytes) return -EINVAL;
    if (!soft_client_of(s, fd)->heap_bytes) return -EAGAIN;
    const int r = soft_heap_take(s, fd, n_bytes, 0);
    if (!r) *out = s->bos;
    return r;
}

int soft_bo_create(ob_npu_soft *s, int fd, ob_npu_create_bo *a)
{
    soft_bo *b = NULL;
    int r;
    if (a->flags || (a->vaddr && a->type != OB_NPU_BO_SHARE)) return -EINVAL;
    switch (a->type) {
    case OB_NPU_BO_SHARE: case OB_NPU_BO_CMD: r = a->vaddr ? user_create(s, fd, a, &b) : share_create(s, fd, a, &b); break;
    case OB_NPU_BO_DEV_HEAP: r = heap_create(s, fd, a->size, &b); break;
    case OB_NPU_BO_DEV: r = dev_create(s, fd, a->size, &b); break;
    default: return -EINVAL;
    }
    if (r) return r;
    b->handle = a->handle = ++soft_client_of(s, fd)->next_bo;
    b->map_offset = s->next_offset += OB_NPU_HEAP_MAX;
    if (b->type != OB_NPU_BO_DEV && b->type != OB_NPU_BO_DEV_HEAP && !soft_pasid(s)) {
        b->dev_addr = s->next_iova;
        s->next_iova += ob_align_up(b->n_bytes, OB_NPU_PAGE) + OB_NPU_PAGE; /* a hole, so that overruns are seen */
    }
    return 0;
}

soft_bo *soft_bo_find(ob_npu_soft *s, int fd, uint32_t handle)
{
    soft_bo *b = s->bos;
    while (b && !(handle && b->fd == fd && b->handle == handle)) b = b->next;
    return b;
}

int soft_bo_info(ob_npu_soft *s, int fd, ob_npu_get_bo_info *a)
{
    if (a->ext || a->ext_flags || a->pad) return -EINVAL;
    const soft_bo *b = soft_bo_find(s, fd, a->handle);
    if (!b) return -ENOENT;
    a->map_offset = b->type == OB_NPU_BO_DEV ? OB_NPU_NO_ADDR : b->map_offset;
    a->vaddr = b->host && soft_pasid(s) ? (uint64_t)(uintptr_t)b->host : OB_NPU_NO_ADDR;
    a->xdna_addr = b->dev_addr;
    return 0;
}

int soft_bo_sync(ob_npu_soft *s, int fd, const ob_npu_sync_bo *a)
{
    soft_bo *b = soft_bo_find(s, fd, a->handle);
    uint64_t end;
    if (!b) return -ENOENT;
    if (a->direction > OB_NPU_FROM_DEVICE || a->offset >= b->n_bytes || !ob_add_u64(a->offset, a->size, &end)) return -EINVAL;
    const uint8_t *host = b->host;
    if (b->type == OB_NPU_BO_DEV)
        for (const soft_bo *h = s->bos; h; h = h->next)
            if (h->type == OB_NPU_BO_DEV_HEAP && h->fd == fd && h->host && h->dev_addr == OB_NPU_HEAP_BASE)
                host = h->host + (b->dev_addr - OB_NPU_HEAP_BASE);
    if (host) soft_lines(s, host + a->offset, OB_MIN(end, b->n_bytes) - a->offset, a->direction == OB_NPU_FROM_DEVICE);
    return 0;
}

void soft_bo_drop(ob_npu_soft *s, soft_bo *b)
{
    if (b->handle || b->host || b->n_jobs || b->owner_ctx) return;
    soft_bo **p = &s->bos;
    while (*p != b) p = &(*p)->next;
    *p = b->next;
    if (s->last_at == b) s->last_at = NULL;
    if (!b->user && b->type != OB_NPU_BO_DEV && b->type != OB_NPU_BO_DEV_HEAP) {
        munmap(b->dev, b->n_bytes);
        munmap(b->line, b->n_bytes);
    }
    ob_free(b);
}

int soft_bo_close(ob_npu_soft *s, int fd, uint32_t handle)
{
    soft_bo *b = soft_bo_find(s, fd, handle);
    if (!b) return -EINVAL;
    b->handle = 0;
    soft_bo_drop(s, b);
    return 0;
}

void soft_bo_close_all(ob_npu_soft *s, int fd)
{
    for (soft_bo *b = s->bos, *next; b; b = next) {
        next = b->next;
        if (b->fd != fd) continue;
        b->handle = b->owner_ctx = 0;
        soft_bo_drop(s, b);
    }
}

/* ---- mappings --------------------------------------------------------------------------------- */

int soft_mmap(ob_npu_soft *s, void *at, size_t n_bytes, int fd, uint64_t offset, void **out)
{
    if (soft_fault_find(s, FAULT_MMAP, ++s->n_mmaps)) return -ENOMEM;
    if (fd < 0) {
        void *p = mmap(at, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return -ENOMEM;
        *out = p;
        return 0;
    }
    soft_bo *b = s->bos;
    while (b && !(b->fd == fd && b->handle && b->type != OB_NPU_BO_DEV && b->map_offset == offset)) b = b->next;
    if (!b || !n_bytes || n_bytes > b->n_bytes) return -EINVAL;
    if (b->host) return -EBUSY; /* a second view of the same memory is not modelled */
    const soft_fault *lock = soft_fault_find(s, FAULT_MEMLOCK, 0);
    if (lock && s->locked_bytes + n_bytes > lock->bytes) return -EAGAIN;
    if (b->user) {
        b->host = b->dev;
    } else {
        void *p = mmap(at, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0), -1, 0);
        if (p == MAP_FAILED) return -ENOMEM;
        b->host = p;
        if (b->was_mapped) memcpy(b->host, b->dev, b->n_bytes);
        b->was_mapped = true;
    }
    if (b->dev_addr == OB_NPU_NO_ADDR) b->dev_addr = (uint64_t)(uintptr_t)b->host;
    s->locked_bytes += b->n_bytes;
    s->counts.n_maps++;
    *out = b->host;
    return 0;
}

/* Takes a buffer's mapping away. What the CPU has written and not flushed is lost: on silicon it may be. */
static void unmap(ob_npu_soft *s, soft_bo *b)
{
    if (soft_pasid(s) && b->type != OB_NPU_BO_DEV_HEAP) b->dev_addr = OB_NPU_NO_ADDR;
    b->host = NULL;
    s->locked_bytes -= b->n_bytes;
    s->counts.n_maps--;
    soft_bo_drop(s, b);
}

int soft_munmap(ob_npu_soft *s, void *p, size_t n_bytes)
{
    const uint8_t *first = p, *end = first + n_bytes;
    for (soft_bo *b = s->bos; b; b = b->next)
        if (b->user && b->host == first && b->n_bytes == n_bytes) { /* the caller keeps its memory; several may be of one page */
            unmap(s, b);
            return 0;
        }
    for (soft_bo *b = s->bos, *next; b; b = next) {
        next = b->next;
        if (b->host && !b->user && b->host >= first && b->host < end) unmap(s, b);
    }
    return munmap(p, n_bytes) ? -errno : 0;
}

/* ---- cache lines ------------------------------------------------------------------------------ */

/* Whether the CPU has written to a line is seen by its contents. Where it wrote what was there before it cannot be seen: a
 * line that is flushed counts as written to, one that is invalidated does not. */
static void one_line(ob_npu_soft *s, uint8_t *host, uint8_t *dev, uint8_t *line, bool invalidate)
{
    if (!invalidate || memcmp(host, line, OB_NPU_LINE) != 0) {
        if (invalidate && memcmp(dev, line, OB_NPU_LINE) != 0) s->counts.n_stale_writes++;
        memcpy(dev, host, OB_NPU_LINE);
        memcpy(line, host, OB_NPU_LINE);
    } else if (memcmp(dev, line, OB_NPU_LINE) != 0) {
        memcpy(host, dev, OB_NPU_LINE);
        memcpy(line, dev, OB_NPU_LINE);
    }
}

void soft_lines(ob_npu_soft *s, const uint8_t *p, size_t n_bytes, bool invalidate)
{
    for (soft_bo *b = n_bytes ? s->bos : NULL; b; b = b->next) {
        if (!b->host || b->user || p >= b->host + b->n_bytes || p + n_bytes <= b->host) continue;
        size_t first = p > b->host ? (size_t)(p - b->host) & ~(size_t)(OB_NPU_LINE - 1) : 0;
        const size_t end = OB_MIN((size_t)b->n_bytes, ob_align_up((size_t)(p + n_bytes - b->host), OB_NPU_LINE));
        while (first < end) { /* whole pages that agree are the most of them */
            const size_t n = OB_MIN(end - first, (size_t)OB_NPU_PAGE - first % OB_NPU_PAGE);
            if (memcmp(b->host + first, b->line + first, n) != 0 || memcmp(b->dev + first, b->line + first, n) != 0)
                for (size_t i = first; i < first + n; i += OB_NPU_LINE) one_line(s, b->host + i, b->dev + i, b->line + i, invalidate);
            first += n;
        }
    }
}

/* ---- the NPU's side --------------------------------------------------------------------------- */

static bool holds(const soft_bo *b, uint64_t addr, size_t n)
{
    return b->type != OB_NPU_BO_DEV_HEAP && b->dev_addr != OB_NPU_NO_ADDR && addr >= b->dev_addr && n <= b->n_bytes &&
           addr - b->dev_addr <= b->n_bytes - n && !b->owner_ctx;
}

uint8_t *soft_at(void *arg, uint64_t addr, size_t n, bool writes)
{
    ob_npu_soft *s = arg;
    soft_bo *b = s->last_at && holds(s->last_at, addr, n) ? s->last_at : s->bos;
    while (b && !holds(b, addr, n)) b = b->next;
    if (!b || !b->dev || (writes && (b->read_only || b->type == OB_NPU_BO_CMD))) return NULL;
    s->last_at = b;
    return b->dev + (addr - b->dev_addr);
}
