#include "fmt/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/math.h"
#include "fmt/fmt_int.h"
#include "fmt/uring.h"

enum {
    PAGE = 4096,       /* what direct reads are aligned to: no disk in use has larger sectors */
    SEGMENT = 1 << 20, /* bytes of one request; many of them make a large read */
};

typedef struct source {
    int fd; /* -1: bytes in memory */
    bool direct;
} source;

struct ob_direct {
    const ob_file *f;
    source *src; /* [n_parts] */
    ob_uring ring;
    uint8_t *buf; /* [max_bytes + 2 pages], on a page */
    size_t max_bytes;
    uint64_t n_bytes;
};

/* The file that is mapped, whatever has its name by now, opened anew: flags of reading belong to the open file. */
static bool open_again(const ob_part *p, source *out)
{
    char path[32];
    *out = (source){.fd = -1};
    if (!p->mapped) return true;
    snprintf(path, sizeof path, "/proc/self/fd/%d", p->fd);
#ifdef O_DIRECT
    out->fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
#endif
    out->direct = out->fd >= 0;
    if (out->fd < 0) out->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (out->fd < 0) out->fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 3); /* no /proc */
    return out->fd >= 0;
}

ob_status ob_direct_new(const ob_file *f, size_t max_bytes, unsigned flags, ob_direct **out, ob_err *err)
{
    *out = NULL;
    ob_direct *d = ob_calloc(1, sizeof *d);
    if (!d) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a reader");
    d->f = f;
    d->ring.fd = -1;
    d->max_bytes = max_bytes;
    d->src = ob_calloc((size_t)f->n_parts, sizeof *d->src);
    d->buf = ob_aligned_alloc(PAGE, ob_align_up(max_bytes, PAGE) + 2 * PAGE);
    bool ok = d->src && d->buf;
    for (int i = 0; d->src && i < f->n_parts; i++) d->src[i].fd = -1;
    ob_status s = ok ? OB_OK : ob_err_set(err, OB_E_NO_MEMORY, "no memory for a reader of %zu bytes", max_bytes);
    for (int i = 0; s == OB_OK && i < f->n_parts; i++)
        if (!open_again(&f->parts[i], &d->src[i])) s = ob_err_set_errno(err, OB_E_IO, errno, "cannot open the file again");
    if (s != OB_OK) {
        ob_direct_free(d);
        return s;
    }
    if (!(flags & OB_DIRECT_NO_RING)) (void)ob_uring_init(&d->ring);
    *out = d;
    return OB_OK;
}

void ob_direct_free(ob_direct *d)
{
    if (!d) return;
    ob_uring_deinit(&d->ring);
    for (int i = 0; d->src && i < d->f->n_parts; i++)
        if (d->src[i].fd >= 0) close(d->src[i].fd);
    ob_free(d->src);
    ob_free(d->buf);
    ob_free(d);
}

const char *ob_direct_how(const ob_direct *d)
{
    if (d->src[0].fd < 0) return "memory";
    if (d->ring.fd >= 0) return d->src[0].direct ? "io_uring, direct" : "io_uring";
    return d->src[0].direct ? "pread, direct" : "pread";
}

uint64_t ob_direct_n_bytes(const ob_direct *d) { return d->n_bytes; }

/* Bytes [at, n) of the request at file offset `off`; `need` of the n must be there (the last page may end early). */
static ob_status read_plain(ob_direct *d, int fd, uint64_t off, size_t at, size_t n, size_t need, ob_err *err)
{
    while (at < need) {
        const size_t from = at / PAGE * PAGE; /* direct reads begin at pages */
        const ssize_t got = pread(fd, d->buf + from, n - from, (off_t)(off + from));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return ob_err_set_errno(err, OB_E_IO, errno, "reading the model file at byte %llu",
                                             (unsigned long long)(off + at));
        if (from + (size_t)got <= at)
            return ob_err_set(err, OB_E_IO, "the model file has become shorter while it is in use");
        at = from + (size_t)got;
    }
    return OB_OK;
}

/* All segments through the ring; what comes back short is read again, the plain way. */
static ob_status read_ring(ob_direct *d, int fd, uint64_t off, size_t n, size_t need, ob_err *err)
{
    const uint64_t n_seg = (n + SEGMENT - 1) / SEGMENT;
    uint64_t next = 0, tag;
    unsigned in_flight = 0, n_new = 0;
    int64_t got;
    ob_status s = OB_OK;
    for (uint64_t done = 0; done < n_seg; done++) {
        for (; next < n_seg && in_flight < OB_URING_DEPTH; next++, in_flight++, n_new++) {
            const size_t at = (size_t)next * SEGMENT;
            ob_uring_read(&d->ring, fd, d->buf + at, (uint32_t)OB_MIN((size_t)SEGMENT, n - at), off + at, next);
        }
        if (!ob_uring_wait(&d->ring, n_new, &tag, &got)) return ob_err_set_errno(err, OB_E_IO, errno, "io_uring");
        n_new = 0;
        in_flight--;
        const size_t at = (size_t)tag * SEGMENT, end = OB_MIN(at + SEGMENT, n);
        if (s == OB_OK && (got < 0 || at + (size_t)got < OB_MIN(end, need)))
            s = read_plain(d, fd, off, at + (got < 0 ? 0 : (size_t)got), end, OB_MIN(end, need), err);
    }
    return s;
}

ob_status ob_direct_read(ob_direct *d, const ob_tensor *t, uint64_t off, size_t n, const void **out, ob_err *err)
{
    const source *src = &d->src[t->file_index];
    if (n > d->max_bytes || off > t->n_bytes || n > t->n_bytes - off)
        return ob_err_set(err, OB_E_INVALID, "bytes %llu..+%zu of tensor %s", (unsigned long long)off, n, t->name);
    const uint64_t at = t->file_off + off, first = src->direct ? at / PAGE * PAGE : at;
    const size_t lead = (size_t)(at - first), need = lead + n, len = src->direct ? ob_align_up(need, PAGE) : need;
    *out = d->buf + lead;
    d->n_bytes += len;
    if (src->fd < 0) {
        memcpy(d->buf, d->f->parts[t->file_index].data + at, n);
        return OB_OK;
    }
    const ob_status s = d->ring.fd >= 0 ? read_ring(d, src->fd, first, len, need, err)
                                        : read_plain(d, src->fd, first, 0, len, need, err);
    if (!src->direct) (void)posix_fadvise(src->fd, (off_t)first, (off_t)len, POSIX_FADV_DONTNEED);
    return s == OB_OK ? OB_OK : ob_err_prefix(err, s, "tensor %s", t->name);
}
