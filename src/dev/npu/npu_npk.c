/* The .npk file: packed weights of one model, mapped.
 *
 *   header page | weight | weight | ... | directory
 *
 * A weight is its matrices (tiles, then scales: whole pages), then a checksum per matrix in pages of its own; 0: not packed
 * yet. Places are allocated on disk before they are mapped, so that writing through the mapping cannot fail for space. A
 * new file is written under a passing name, with what can be kept of an old one, and renamed when all weights are there.
 */
#include "dev/npu/npu_pack.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/math.h"
#include "base/scratch.h"
#include "dev/npu/npu_int8.h"

enum { PAGE = 4096, COPY_BYTES = 1 << 20, SPARE_BYTES = 64 << 20 /* left free on the disk */ };
static const char k_magic[8] = "1bitNPK";

typedef struct npk_entry {
    uint64_t key;           /* of the weight: key_of */
    int64_t k, n, n_mat;
    uint64_t off;           /* a page */
} npk_entry;

typedef struct npk_header {
    char magic[8];
    uint32_t format, converter;
    char layout[64];
    uint64_t stamp;         /* of the source */
    uint64_t n_entries, dir_off, n_bytes, dir_sum;
    uint64_t sum;           /* of the header before it */
} npk_header;
enum { NPK_FORMAT = 1 };

/* A file's directory, and the file. */
typedef struct npk_file {
    int fd; /* -1: none */
    npk_entry *entries;
    size_t n, cap;
    uint64_t end; /* of the last weight */
} npk_file;

struct ob_npu_pack {
    char path[PATH_MAX], temp[PATH_MAX + 32]; /* path "": in memory */
    uint64_t stamp;
    npk_file old, new;
    int ticket; /* of base/scratch.h, for temp */
    bool keep;  /* new weights go to a file */
    ob_npu_pack_stats stats;
};

struct ob_npu_packed {
    int64_t k, n, n_mat;
    size_t mat_bytes, map_bytes;
    uint8_t *map;    /* matrices, then checksums */
    bool slots;      /* matrices come and go: no checksums */
    uint8_t *ready;  /* [n_mat] */
    ob_type type;    /* of `data` */
    const uint8_t *data; /* borrowed; experts that are packed when first used */
    size_t data_bytes;   /* of one matrix there */
};

/* ---- sizes ------------------------------------------------------------------------------------- */

/* Of one matrix: tiles and scales, whole pages as the layout pads to 1024 outputs. False: too large. */
static bool mat_bytes_of(int64_t k, int64_t n, size_t *out)
{
    size_t tiles;
    if (k < 1 || n < 1 || k > OB_NPU_MAX_K || n > INT32_MAX / 2) return false;
    if (!ob_mul_size((size_t)ob_npu_pad_k(k), (size_t)ob_npu_pad_n(n), &tiles)) return false;
    return ob_add_size(tiles, (size_t)ob_npu_pad_n(n) * sizeof(float), out);
}

static size_t sums_bytes(int64_t n_mat) { return ob_align_up((size_t)n_mat * sizeof(uint64_t), PAGE); }

static bool map_bytes_of(int64_t k, int64_t n, int64_t n_mat, size_t *out)
{
    size_t one, all;
    return n_mat >= 1 && n_mat <= 1 << 20 && mat_bytes_of(k, n, &one) && ob_mul_size(one, (size_t)n_mat, &all) &&
           ob_add_size(all, sums_bytes(n_mat), out) && *out <= (size_t)INT64_MAX / 4;
}

static int64_t n_mat_of(const ob_weight *d) { return d->use == OB_USE_EXPERTS ? d->ne[2] : 1; }

uint64_t ob_npu_packed_bytes(const ob_weight *desc)
{
    size_t n;
    if (!ob_type_get(desc->type)->dequant || !ob_type_row_bytes(desc->type, desc->ne[0]) ||
        !map_bytes_of(desc->ne[0], desc->ne[1], n_mat_of(desc), &n))
        return 0;
    return n / (uint64_t)n_mat_of(desc);
}

/* Which weight it is: what it is called and looks like, and its first and last bytes (several views may lie in one
 * tensor). */
static uint64_t key_of(const ob_weight *d)
{
    enum { END = 4096 };
    const size_t n = OB_MIN(d->n_bytes, (size_t)END);
    const uint64_t part[] = {(uint64_t)d->type, (uint64_t)d->use, (uint64_t)d->ne[0], (uint64_t)d->ne[1], (uint64_t)d->ne[2],
                             d->hadamard, d->n_bytes, XXH3_64bits(d->name, strlen(d->name)), XXH3_64bits(d->data, n),
                             XXH3_64bits((const uint8_t *)d->data + d->n_bytes - n, n)};
    return XXH3_64bits(part, sizeof part);
}

/* ---- the folder -------------------------------------------------------------------------------- */

/* False: there is no place for caches. */
static bool name_file(const ob_dev_source *src, char *out, size_t cap)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[PATH_MAX], real[PATH_MAX];
    int n = -1;
    if (xdg && xdg[0] == '/') n = snprintf(folder, sizeof folder, "%s/1bit/npk", xdg);
    else if (home && home[0] == '/') n = snprintf(folder, sizeof folder, "%s/.cache/1bit/npk", home);
    if (n < 0 || (size_t)n >= sizeof folder || !src->path[0]) return false;
    for (char *p = folder + 1;; p++) {
        if (*p && *p != '/') continue;
        const char was = *p;
        *p = 0;
        (void)mkdir(folder, 0700); /* opening the file says what is wrong */
        *p = was;
        if (!was) break;
    }
    if (!realpath(src->path, real)) return false;
    const char *stem = strrchr(real, '/') + 1, *dot = strrchr(stem, '.');
    n = snprintf(out, cap, "%s/%.*s-%016llx.npk", folder, (int)OB_MIN(dot ? (size_t)(dot - stem) : strlen(stem), (size_t)120), stem,
                 (unsigned long long)XXH3_64bits(real, strlen(real)));
    return n > 0 && (size_t)n < cap;
}

/* ---- reading one that is there ----------------------------------------------------------------- */

static bool read_at(int fd, void *dst, size_t n, uint64_t off)
{
    for (size_t at = 0; at < n;) {
        const ssize_t r = pread(fd, (char *)dst + at, n - at, (off_t)(off + at));
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) return false;
        at += (size_t)r;
    }
    return true;
}

static bool write_at(int fd, const void *src, size_t n, uint64_t off)
{
    for (size_t at = 0; at < n;) {
        const ssize_t r = pwrite(fd, (const char *)src + at, n - at, (off_t)(off + at));
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) return false;
        at += (size_t)r;
    }
    return true;
}

static bool entry_fits(const npk_entry *e, uint64_t end)
{
    size_t n;
    return map_bytes_of(e->k, e->n, e->n_mat, &n) && e->off % PAGE == 0 && e->off >= PAGE && e->off <= end && n <= end - e->off;
}

/* NULL: all is well; else why the file is not used. */
static const char *read_directory(ob_npu_pack *p, npk_file *f)
{
    npk_header h;
    struct stat st;
    if (fstat(f->fd, &st) != 0 || !read_at(f->fd, &h, sizeof h, 0) || memcmp(h.magic, k_magic, sizeof k_magic) != 0 ||
        h.sum != XXH3_64bits(&h, offsetof(npk_header, sum)))
        return "damaged";
    if (h.format != NPK_FORMAT || h.converter != OB_NPU_CONVERTER || strncmp(h.layout, OB_NPU_LAYOUT_I8C, sizeof h.layout) != 0)
        return "made by another version";
    if (h.stamp != p->stamp) return "made from another state of the model file";
    if (h.n_entries > OB_MAX_TENSORS || h.dir_off > h.n_bytes || h.n_bytes - h.dir_off != h.n_entries * sizeof(npk_entry) ||
        (uint64_t)st.st_size != h.n_bytes)
        return "damaged";
    f->entries = ob_reallocarray(NULL, (size_t)h.n_entries + 1, sizeof *f->entries);
    if (!f->entries) return "not read for want of memory";
    f->n = f->cap = (size_t)h.n_entries;
    if (!read_at(f->fd, f->entries, f->n * sizeof *f->entries, h.dir_off) ||
        XXH3_64bits(f->entries, f->n * sizeof *f->entries) != h.dir_sum)
        return "damaged";
    for (size_t i = 0; i < f->n; i++)
        if (!entry_fits(&f->entries[i], h.dir_off)) return "damaged";
    f->end = h.dir_off;
    return NULL;
}

static void file_close(npk_file *f)
{
    if (f->fd >= 0) close(f->fd);
    ob_free(f->entries);
    *f = (npk_file){.fd = -1};
}

ob_status ob_npu_pack_open(const ob_dev_source *source, ob_npu_pack **out, ob_err *err)
{
    ob_npu_pack *p = *out = ob_calloc(1, sizeof *p);
    if (!p) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for packed weights");
    p->old.fd = p->new.fd = p->ticket = -1;
    if (!source || !name_file(source, p->path, sizeof p->path)) {
        p->path[0] = 0;
        return OB_OK;
    }
    p->stamp = source->stamp;
    p->keep = true;
    p->old.fd = open(p->path, O_RDWR | O_CLOEXEC);
    const char *why = p->old.fd < 0 ? NULL : read_directory(p, &p->old);
    if (why) {
        ob_log_info("npu: %s is %s: the weights are packed again", p->path, why);
        file_close(&p->old);
    }
    return OB_OK;
}

/* Leave what was written of a new file; mappings stay. */
static void give_up(ob_npu_pack *p)
{
    p->keep = false;
    if (p->new.fd < 0) return;
    unlink(p->temp);
    ob_scratch_drop(p->ticket);
    p->ticket = -1;
    file_close(&p->new);
}

void ob_npu_pack_close(ob_npu_pack *p)
{
    if (!p) return;
    give_up(p);
    file_close(&p->old);
    ob_free(p);
}

ob_npu_pack_stats ob_npu_pack_stats_get(const ob_npu_pack *p) { return p->stats; }
const char *ob_npu_pack_path(const ob_npu_pack *p) { return p->path; }

/* ---- writing a new one ------------------------------------------------------------------------- */

static bool entry_add(npk_file *f, const npk_entry *e)
{
    if (f->n == f->cap) {
        npk_entry *more = ob_reallocarray(f->entries, 2 * f->cap + 64, sizeof *more);
        if (!more) return false;
        f->entries = more;
        f->cap = 2 * f->cap + 64;
    }
    f->entries[f->n++] = *e;
    return true;
}

/* Room for n bytes at the end, on disk. 0 or an errno. */
static int extend(npk_file *f, size_t n)
{
    struct statvfs fs;
    if (fstatvfs(f->fd, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < (uint64_t)n + SPARE_BYTES) return ENOSPC;
    int e = posix_fallocate(f->fd, (off_t)f->end, (off_t)n);
    return e;
}

/* One weight of the old file, byte for byte. */
static int carry(ob_npu_pack *p, npk_entry e, void *buf)
{
    size_t n;
    if (!map_bytes_of(e.k, e.n, e.n_mat, &n)) return EINVAL;
    const int bad = extend(&p->new, n);
    if (bad) return bad;
    for (size_t at = 0, part; at < n; at += part) {
        part = OB_MIN(n - at, (size_t)COPY_BYTES);
        if (!read_at(p->old.fd, buf, part, e.off + at) || !write_at(p->new.fd, buf, part, p->new.end + at)) return EIO;
    }
    e.off = p->new.end;
    p->new.end += n;
    return entry_add(&p->new, &e) ? 0 : ENOMEM;
}

/* 0 or an errno. */
static int begin_file(ob_npu_pack *p)
{
    static _Atomic unsigned serial;
    snprintf(p->temp, sizeof p->temp, "%s.%ld-%u.part", p->path, (long)getpid(), atomic_fetch_add(&serial, 1));
    p->ticket = ob_scratch_add(p->temp);
    p->new.fd = open(p->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (p->new.fd < 0) return errno;
    p->new.end = PAGE;
    void *buf = p->old.n ? ob_malloc(COPY_BYTES) : NULL;
    int bad = p->old.n && !buf ? ENOMEM : 0;
    for (size_t i = 0; i < p->old.n && !bad; i++)
        if (p->old.entries[i].key) bad = carry(p, p->old.entries[i], buf);
    ob_free(buf);
    return bad;
}

/* Room in the new file; false: not in a file any more. */
static bool reserve(ob_npu_pack *p, const ob_npu_packed *w, uint64_t key, uint64_t *off)
{
    if (!p->keep) return false;
    int bad = p->new.fd < 0 ? begin_file(p) : 0;
    if (!bad) bad = extend(&p->new, w->map_bytes);
    *off = p->new.end;
    if (!bad && !entry_add(&p->new, &(npk_entry){.key = key, .k = w->k, .n = w->n, .n_mat = w->n_mat, .off = p->new.end})) bad = ENOMEM;
    if (!bad) {
        p->new.end += w->map_bytes;
        return true;
    }
    ob_log_warn("npu: packed weights are not kept in %s: %s. They are packed again at the next start", p->path, strerror(bad));
    give_up(p);
    return false;
}

static void sync_folder(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

void ob_npu_pack_publish(ob_npu_pack *p)
{
    p->keep = false;
    if (p->new.fd < 0) return;
    const size_t dir = p->new.n * sizeof *p->new.entries;
    npk_header h = {.format = NPK_FORMAT, .converter = OB_NPU_CONVERTER, .layout = OB_NPU_LAYOUT_I8C, .stamp = p->stamp,
                    .n_entries = p->new.n, .dir_off = p->new.end, .n_bytes = p->new.end + dir,
                    .dir_sum = XXH3_64bits(p->new.entries, dir)};
    memcpy(h.magic, k_magic, sizeof h.magic);
    h.sum = XXH3_64bits(&h, offsetof(npk_header, sum));
    if (!write_at(p->new.fd, p->new.entries, dir, p->new.end) || !write_at(p->new.fd, &h, sizeof h, 0) || fsync(p->new.fd) != 0 ||
        rename(p->temp, p->path) != 0) {
        ob_log_warn("npu: packed weights are not kept in %s: %s", p->path, strerror(errno));
        give_up(p);
        return;
    }
    sync_folder(p->path);
    ob_scratch_drop(p->ticket);
    p->ticket = -1;
    file_close(&p->new); /* mappings stay */
    p->stats.kept = true;
}

/* ---- weights ----------------------------------------------------------------------------------- */

static uint64_t *sums_of(const ob_npu_packed *w) { return (uint64_t *)(void *)(w->map + (size_t)w->n_mat * w->mat_bytes); }
static uint8_t *mat_of(const ob_npu_packed *w, int64_t mat) { return w->map + (size_t)mat * w->mat_bytes; }

/* Never 0, which means: not there. */
static uint64_t sum_of(const ob_npu_packed *w, int64_t mat)
{
    const uint64_t h = XXH3_64bits(mat_of(w, mat), w->mat_bytes);
    return h ? h : 1;
}

static void pack_mat(ob_npu_packed *w, int64_t mat, const void *data, const ob_parallel *par)
{
    int8_t *tiles = (int8_t *)mat_of(w, mat);
    const size_t n = ob_npu_i8c_bytes(w->k, w->n);
    memset(tiles + n, 0, w->mat_bytes - n);
    ob_npu_pack_i8c(w->type, data, w->k, w->n, tiles, (float *)(void *)(tiles + n), par);
    if (!w->slots) sums_of(w)[mat] = sum_of(w, mat);
    w->ready[mat] = 1;
}

static bool map(ob_npu_packed *w, int fd, uint64_t off)
{
    void *m = mmap(NULL, w->map_bytes, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED, fd,
                   fd < 0 ? 0 : (off_t)off);
    w->map = m == MAP_FAILED ? NULL : m;
    return w->map != NULL;
}

/* In the old file, with all checksums right (experts: looked at when used). */
static bool find_old(ob_npu_pack *p, ob_npu_packed *w, uint64_t key, bool lazy)
{
    npk_entry *e = NULL;
    for (size_t i = 0; i < p->old.n && !e; i++)
        if (p->old.entries[i].key == key) e = &p->old.entries[i];
    if (!e || e->k != w->k || e->n != w->n || e->n_mat != w->n_mat) return false;
    if (lazy && posix_fallocate(p->old.fd, (off_t)e->off, (off_t)w->map_bytes) != 0) return false;
    if (!map(w, p->old.fd, e->off)) return false;
    bool good = true;
    for (int64_t m = 0; m < w->n_mat && !lazy && good; m++) good = sums_of(w)[m] == sum_of(w, m);
    if (good) {
        memset(w->ready, !lazy, (size_t)w->n_mat);
        return true;
    }
    p->stats.n_damaged++;
    e->key = 0; /* not carried into a new file */
    munmap(w->map, w->map_bytes);
    w->map = NULL;
    return false;
}

ob_status ob_npu_packed_new(ob_npu_pack *p, const ob_weight *desc, const ob_parallel *par, ob_npu_packed **out, bool *keeps_data,
                            ob_err *err)
{
    *out = NULL;
    const int64_t n_mat = n_mat_of(desc);
    const size_t rows_bytes = ob_type_row_bytes(desc->type, desc->ne[0]);
    size_t one = 0, all = 0;
    if (!ob_npu_packed_bytes(desc) || !mat_bytes_of(desc->ne[0], desc->ne[1], &one) ||
        !map_bytes_of(desc->ne[0], desc->ne[1], n_mat, &all) ||
        (desc->data && desc->n_bytes / rows_bytes / (size_t)desc->ne[1] < (size_t)n_mat))
        return ob_err_set(err, OB_E_FORMAT, "%s: shape or size does not fit type %s", desc->name, ob_type_get(desc->type)->name);
    ob_npu_packed *w = ob_calloc(1, sizeof *w);
    uint8_t *ready = ob_calloc((size_t)n_mat, 1);
    if (!w || !ready) goto no_memory;
    const bool lazy = desc->use == OB_USE_EXPERTS;
    *w = (ob_npu_packed){.k = desc->ne[0], .n = desc->ne[1], .n_mat = n_mat, .mat_bytes = one, .map_bytes = all, .ready = ready,
                         .slots = !desc->data, .type = desc->type, .data_bytes = rows_bytes * (size_t)desc->ne[1]};
    const uint64_t key = desc->data && p->path[0] ? key_of(desc) : 0;
    const bool found = key && p->old.fd >= 0 && find_old(p, w, key, lazy);
    uint64_t off;
    if (!w->map && key && reserve(p, w, key, &off) && !map(w, p->new.fd, off)) {
        ob_log_warn("npu: packed weights are not kept in %s: %s", p->path, strerror(errno));
        give_up(p);
    }
    if (!w->map && !map(w, -1, 0)) goto no_memory;
    if (found) p->stats.n_found += lazy ? 0 : (int32_t)n_mat;
    if (lazy) w->data = desc->data;
    for (int64_t m = 0; m < n_mat && desc->data && !lazy && !found; m++) {
        pack_mat(w, m, (const uint8_t *)desc->data + (size_t)m * w->data_bytes, par);
        p->stats.n_packed++;
    }
    p->stats.n_bytes += all;
    p->stats.kept |= found;
    *keeps_data = lazy && desc->data;
    *out = w;
    return OB_OK;
no_memory:
    ob_free(ready);
    ob_free(w);
    return ob_err_set(err, OB_E_NO_MEMORY, "%s: no memory for %zu packed bytes", desc->name, all);
}

void ob_npu_packed_free(ob_npu_pack *p, ob_npu_packed *w)
{
    if (!w) return;
    p->stats.n_bytes -= w->map_bytes;
    munmap(w->map, w->map_bytes);
    ob_free(w->ready);
    ob_free(w);
}

ob_status ob_npu_packed_write(ob_npu_packed *w, int64_t mat, const void *data, ob_err *err)
{
    if (mat < 0 || mat >= w->n_mat || !w->slots)
        return ob_err_set(err, OB_E_INVALID, "expert %lld of %lld", (long long)mat, (long long)w->n_mat);
    pack_mat(w, mat, data, NULL);
    return OB_OK;
}

const int8_t *ob_npu_packed_get(ob_npu_pack *p, ob_npu_packed *w, int64_t mat, const ob_parallel *par, const float **scales)
{
    if (!w->ready[mat] && w->data) {
        const uint64_t sum = sums_of(w)[mat];
        if (sum && sum == sum_of(w, mat)) {
            w->ready[mat] = 1;
            p->stats.n_found++;
        } else {
            p->stats.n_damaged += sum != 0;
            p->stats.n_packed++;
            pack_mat(w, mat, w->data + (size_t)mat * w->data_bytes, par);
        }
    }
    *scales = (const float *)(const void *)(mat_of(w, mat) + ob_npu_i8c_bytes(w->k, w->n));
    return (const int8_t *)mat_of(w, mat);
}
