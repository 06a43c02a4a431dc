/* Buffers of an NPU, and the heap that control text lies in. */
#include "dev/npu/npu_mem.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"

/* ---- ioctls ----------------------------------------------------------------------------------- */

static int create(const ob_npu_dev *d, uint32_t type, uint64_t n_bytes, uint64_t vaddr, uint32_t *handle)
{
    ob_npu_create_bo a = {.vaddr = vaddr, .size = n_bytes, .type = type};
    const int r = ob_npu_ioctl(d->os, d->fd, OB_NPU_IOC_CREATE_BO, &a);
    *handle = r ? 0 : a.handle;
    return r;
}

static int info(const ob_npu_dev *d, uint32_t handle, ob_npu_get_bo_info *out)
{
    *out = (ob_npu_get_bo_info){.handle = handle};
    return ob_npu_ioctl(d->os, d->fd, OB_NPU_IOC_GET_BO_INFO, out);
}

static void gem_close(const ob_npu_dev *d, uint32_t handle)
{
    ob_npu_gem_close a = {.handle = handle};
    if (handle && !d->wedged) (void)ob_npu_ioctl(d->os, d->fd, OB_NPU_IOC_GEM_CLOSE, &a);
}

/* ---- the heap --------------------------------------------------------------------------------- */

/* Another 64 MiB right behind what there is: the driver wants one stretch of addresses. */
static int heap_grow(ob_npu_dev *d, const char **doing)
{
    ob_npu_heap *h = &d->heap;
    ob_npu_get_bo_info bo;
    uint32_t handle = 0;
    void *p = NULL;
    *doing = "making the NPU's heap larger";
    if (h->n_bytes >= h->max_bytes) return -ENOSPC;
    int r = create(d, OB_NPU_BO_DEV_HEAP, OB_NPU_HEAP_CHUNK, 0, &handle);
    if (r) return r;
    r = info(d, handle, &bo);
    if (!r) {
        *doing = "mapping the NPU's heap";
        r = d->os->api->mmap(d->os, h->base + h->n_bytes, OB_NPU_HEAP_CHUNK, d->fd, bo.map_offset, &p);
    }
    if (!r) r = info(d, handle, &bo);
    if (!r && (p != h->base + h->n_bytes || bo.xdna_addr == OB_NPU_NO_ADDR)) r = -EINVAL;
    if (r) {
        gem_close(d, handle);
        return r;
    }
    if (!h->n_chunks) h->dev_base = bo.xdna_addr;
    h->handles[h->n_chunks++] = handle;
    h->n_bytes += OB_NPU_HEAP_CHUNK;
    return 0;
}

ob_status ob_npu_heap_init(ob_npu_dev *d, ob_err *err)
{
    ob_npu_heap *h = &d->heap;
    const char *doing = "reserving addresses for the NPU's heap";
    void *p = NULL;
    *h = (ob_npu_heap){.max_bytes = OB_NPU_HEAP_MAX, .reserved_bytes = OB_NPU_HEAP_MAX + OB_NPU_HEAP_CHUNK};
    int r = d->os->api->mmap(d->os, NULL, h->reserved_bytes, -1, 0, &p);
    if (r) return ob_npu_fail(d, err, r, doing);
    h->reserved = p;
    h->base = (uint8_t *)ob_align_up((size_t)p, OB_NPU_HEAP_CHUNK);
    r = heap_grow(d, &doing);
    if (!r) return OB_OK;
    ob_npu_heap_deinit(d);
    return ob_npu_fail(d, err, r, doing);
}

void ob_npu_heap_deinit(ob_npu_dev *d)
{
    ob_npu_heap *h = &d->heap;
    if (h->reserved) (void)d->os->api->munmap(d->os, h->reserved, h->reserved_bytes);
    for (int i = 0; i < h->n_chunks; i++) gem_close(d, h->handles[i]);
    *h = (ob_npu_heap){0};
}

/* ---- buffers ---------------------------------------------------------------------------------- */

static ob_status no_heap(ob_npu_dev *d, int r, const char *doing, ob_err *err)
{
    if (r == -ENOSPC || r == -EOPNOTSUPP)
        return ob_err_set(err, OB_E_NO_MEMORY, "the NPU's heap of %zu MiB is full: fewer shapes, or newer firmware (6.18 lets it grow)",
                          d->heap.n_bytes >> 20);
    return ob_npu_fail(d, err, r, doing);
}

static ob_status in_heap(ob_npu_dev *d, ob_npu_bo *b, ob_err *err)
{
    const char *doing = "allocating in the NPU's heap";
    ob_npu_get_bo_info i;
    int r;
    b->map_bytes = ob_align_up(b->n_bytes, OB_NPU_DEV_ALIGN);
    while ((r = create(d, OB_NPU_BO_DEV, b->map_bytes, 0, &b->handle)) == -EAGAIN)
        if ((r = heap_grow(d, &doing))) return no_heap(d, r, doing, err);
    if (r) return no_heap(d, r, doing, err);
    r = info(d, b->handle, &i);
    if (r) return ob_npu_fail(d, err, r, doing);
    /* The driver's vaddr is not to be trusted where the NPU has addresses of its own: it is where the heap says. */
    const ob_npu_heap *h = &d->heap;
    if (i.xdna_addr < h->dev_base || i.xdna_addr - h->dev_base > h->n_bytes - b->map_bytes || i.xdna_addr % OB_NPU_DEV_ALIGN)
        return ob_err_set(err, OB_E_DEVICE, "the driver put a buffer outside the NPU's heap (%#llx)", (unsigned long long)i.xdna_addr);
    b->dev_addr = i.xdna_addr;
    b->host = h->base + (i.xdna_addr - h->dev_base);
    return OB_OK;
}

static ob_status map(ob_npu_dev *d, ob_npu_bo *b, ob_err *err)
{
    static const char doing[] = "mapping an NPU buffer";
    ob_npu_get_bo_info i;
    void *p = NULL;
    int r = info(d, b->handle, &i);
    if (r) return ob_npu_fail(d, err, r, doing);
    r = d->os->api->mmap(d->os, NULL, b->map_bytes, d->fd, i.map_offset, &p);
    if (r) return ob_npu_fail(d, err, r, doing);
    b->host = p;
    r = info(d, b->handle, &i); /* only now is there an address where the NPU uses the process's */
    if (r) return ob_npu_fail(d, err, r, doing);
    if (i.xdna_addr == OB_NPU_NO_ADDR || i.xdna_addr % OB_NPU_PAGE)
        return ob_err_set(err, OB_E_DEVICE, "the driver gave a buffer no address for the NPU");
    b->dev_addr = i.xdna_addr;
    return OB_OK;
}

static ob_status bo_alloc(ob_npu_dev *d, uint32_t type, size_t n_bytes, ob_npu_bo **out, ob_err *err)
{
    *out = NULL;
    if (!n_bytes || n_bytes > SIZE_MAX / 2) return ob_err_set(err, OB_E_INVALID, "an NPU buffer of %zu bytes", n_bytes);
    *out = ob_calloc(1, sizeof **out);
    if (!*out) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for an NPU buffer");
    **out = (ob_npu_bo){.dev = d, .type = type, .n_bytes = n_bytes};
    d->n_bos++;
    return OB_OK;
}

ob_status ob_npu_bo_new(ob_npu_dev *d, uint32_t type, size_t n_bytes, ob_npu_bo **out, ob_err *err)
{
    ob_status s = bo_alloc(d, type, n_bytes, out, err);
    if (s != OB_OK) return s;
    ob_npu_bo *b = *out;
    if (type == OB_NPU_BO_DEV) {
        s = in_heap(d, b, err);
    } else {
        b->map_bytes = ob_align_up(n_bytes, OB_NPU_PAGE);
        const int r = create(d, type, b->map_bytes, 0, &b->handle);
        s = r ? ob_npu_fail(d, err, r, "allocating an NPU buffer") : map(d, b, err);
    }
    if (s != OB_OK) {
        ob_npu_bo_free(b);
        *out = NULL;
        return s;
    }
    memset(b->host, 0, b->map_bytes);
    d->os->api->flush(d->os, b->host, b->map_bytes);
    return OB_OK;
}

ob_status ob_npu_bo_wrap(ob_npu_dev *d, const void *p, size_t n_bytes, ob_npu_bo **out, ob_err *err)
{
    struct { int32_t dmabuf_fd; uint32_t n_entries; ob_npu_va_entry entry; } table = {-1, 1, {(uint64_t)(uintptr_t)p, n_bytes}};
    _Static_assert(sizeof table == sizeof(ob_npu_va_table) + sizeof(ob_npu_va_entry), "a table of one entry");
    *out = NULL;
    if ((uintptr_t)p % OB_NPU_PAGE || n_bytes % OB_NPU_PAGE)
        return ob_err_set(err, OB_E_INVALID, "memory for the NPU must be whole pages");
    ob_status s = bo_alloc(d, OB_NPU_BO_SHARE, n_bytes, out, err);
    if (s != OB_OK) return s;
    ob_npu_bo *b = *out;
    b->map_bytes = n_bytes;
    const int r = create(d, OB_NPU_BO_SHARE, n_bytes, (uint64_t)(uintptr_t)&table, &b->handle);
    if (r == -EINVAL || r == -EOPNOTSUPP || r == -EFAULT)
        s = ob_err_set(err, OB_E_UNSUPPORTED, "this driver (0.%d) cannot read the process's own memory", d->id.driver_minor);
    else s = r ? ob_npu_fail(d, err, r, "pinning memory for the NPU") : map(d, b, err);
    if (s == OB_OK) return OB_OK;
    ob_npu_bo_free(b);
    *out = NULL;
    return s;
}

ob_status ob_npu_bo_need(ob_npu_dev *d, uint32_t type, size_t n_bytes, ob_npu_bo **b, ob_err *err)
{
    if (*b && (*b)->n_bytes >= n_bytes) return OB_OK;
    ob_npu_bo_free(*b);
    *b = NULL;
    return ob_npu_bo_new(d, type, ob_align_up(n_bytes + n_bytes / 2, OB_NPU_PAGE), b, err);
}

void ob_npu_bo_free(ob_npu_bo *b)
{
    if (!b) return;
    ob_npu_dev *d = b->dev;
    if (b->type != OB_NPU_BO_DEV && b->host) (void)d->os->api->munmap(d->os, b->host, b->map_bytes);
    gem_close(d, b->handle);
    d->n_bos--;
    ob_free(b);
}

void ob_npu_bo_flush(const ob_npu_bo *b, size_t off, size_t n)
{
    if (n && off < b->map_bytes) b->dev->os->api->flush(b->dev->os, b->host + off, OB_MIN(n, b->map_bytes - off));
}

void ob_npu_bo_invalidate(const ob_npu_bo *b, size_t off, size_t n)
{
    if (n && off < b->map_bytes) b->dev->os->api->invalidate(b->dev->os, b->host + off, OB_MIN(n, b->map_bytes - off));
}

void ob_npu_bo_write(ob_npu_bo *b, size_t off, const void *src, size_t n)
{
    memcpy(b->host + off, src, n);
    ob_npu_bo_flush(b, off, n);
}
