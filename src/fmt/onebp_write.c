/* Writing 1BP packages: the plan, byte for byte, and the file under construction. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "base/scratch.h"
#include "fmt/fmt_int.h"
#include "fmt/onebp.h"

enum {
    ARCH_DEEPSEEK4 = 22,
    TAG_BYTES = 64,
    N_TYPE_IDS = 64,
    COPY_STEP = 16 << 20,  /* bytes between two looks at progress */
    COPY_BUFFER = 4 << 20, /* where the kernel cannot copy between the two files itself */
};
#define MAX_HEAD_BYTES (UINT64_C(1) << 31)
#define SPARE_BYTES (UINT64_C(32) << 20) /* left free on the disk */

/* ---- header --------------------------------------------------------------------------------- */

static void put_u32(ob_buf *b, uint32_t v) { ob_buf_add(b, &v, sizeof v); }
static void put_u64(ob_buf *b, uint64_t v) { ob_buf_add(b, &v, sizeof v); }
static void put_zeros(ob_buf *b, size_t n)
{
    while (n--) ob_buf_addc(b, 0);
}

/* An integer of the metadata, of an array its first; 0 when there is none. */
static uint32_t int_of(const ob_kv *kv)
{
    int64_t v = 0;
    return ob_kv_elem_i64(kv, 0, &v) ? (uint32_t)(uint64_t)v : 0;
}

static uint32_t or1(uint32_t v) { return v ? v : 1; }

static double float_of(const ob_kv *kv)
{
    double v = 0;
    return ob_kv_f64(kv, &v) ? v : 0;
}

static uint32_t f32_bits_of(const ob_kv *kv)
{
    float f = (float)float_of(kv);
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static uint32_t thousandths_of(const ob_kv *kv)
{
    double v = rint(float_of(kv) * 1000); /* to the nearest even, as everybody's default is */
    return v >= 0 && v <= (double)UINT32_MAX ? (uint32_t)v : 0;
}

/* The type with the most bytes; of equals, the one that comes first in the file. */
static uint32_t dominant_type(ob_file *const *files, int n_files)
{
    uint64_t n_bytes[N_TYPE_IDS] = {0};
    uint32_t order[N_TYPE_IDS] = {0};
    int n = 0;
    for (int k = 0; k < n_files; k++)
        for (size_t i = 0; i < files[k]->n_tensors; i++) {
            const ob_tensor *t = &files[k]->tensors[i];
            if (n_bytes[t->type] == 0) order[n++] = t->type;
            n_bytes[t->type] += t->n_bytes;
        }
    uint32_t best = order[0];
    for (int i = 1; i < n; i++)
        if (n_bytes[order[i]] > n_bytes[best]) best = order[i];
    return best;
}

static void put_tag(ob_buf *b, ob_str tag)
{
    size_t n = OB_MIN(tag.len, (size_t)TAG_BYTES - 1);
    ob_buf_add(b, tag.data, n);
    put_zeros(b, TAG_BYTES - n);
}

static void put_header(ob_buf *b, ob_file *const *files, int n_files, uint32_t n_tensors)
{
    const ob_file *f = files[0];
    ob_str arch = {"", 0}, name;
    (void)ob_kv_str(ob_file_find_kv(f, "general.architecture"), &arch);
    int arch_len = (int)OB_MIN(arch.len, (size_t)256);
#define KV(key) ob_file_find_kvf(f, "%.*s." key, arch_len, arch.data)
    uint32_t heads = int_of(KV("attention.head_count")), head_dim = int_of(KV("attention.key_length"));
    uint32_t ff = int_of(KV("feed_forward_length"));
    if (!ff) ff = int_of(KV("expert_feed_forward_length"));
    const ob_kv *tokens = ob_file_find_kv(f, "tokenizer.ggml.tokens");
    uint64_t n_vocab = tokens && tokens->type == OB_KV_ARRAY ? tokens->n : 0;
    bool deepseek4 = arch.len >= 9 && memcmp(arch.data, "deepseek4", 9) == 0;

    ob_buf_add(b, "1BP", 4);
    put_u32(b, OB_ONEBP_VERSION);
    put_u32(b, deepseek4 ? ARCH_DEEPSEEK4 : 0);
    put_u32(b, OB_ONEBP_GGML_BASE + dominant_type(files, n_files));
    put_u32(b, 0); /* scale type */
    put_u32(b, or1(int_of(KV("embedding_length"))));
    put_u32(b, or1(int_of(KV("block_count"))));
    put_u32(b, heads);
    put_u32(b, int_of(KV("attention.head_count_kv")));
    put_u32(b, head_dim ? head_dim : heads ? 1 : 0);
    put_u32(b, or1(ff));
    put_u32(b, or1((uint32_t)n_vocab));
    put_u32(b, int_of(KV("context_length")));
    put_u32(b, 32); /* tile rows, tile columns, group: of formats that v5 does not use */
    put_u32(b, 256);
    put_u32(b, 32);
    put_zeros(b, 3 * 4); /* q norm, k norm, bias */
    put_u32(b, f32_bits_of(KV("rope.freq_base")));
    put_u32(b, int_of(ob_file_find_kv(f, "tokenizer.ggml.bos_token_id")));
    put_u32(b, int_of(ob_file_find_kv(f, "tokenizer.ggml.eos_token_id")));
    put_u32(b, n_tensors);
    put_u32(b, int_of(KV("expert_count")));
    put_u32(b, int_of(KV("expert_used_count")));
    put_u32(b, int_of(KV("expert_feed_forward_length")));
    put_u32(b, int_of(KV("expert_shared_feed_forward_length")));
    put_u32(b, int_of(KV("leading_dense_block_count")));
    put_u32(b, int_of(KV("attention.sliding_window")));
    put_zeros(b, 3 * 4); /* window period, gating, weight norm */
    put_u32(b, thousandths_of(KV("expert_weights_scale")));
    put_u32(b, 0); /* attention gate */
    put_u32(b, f32_bits_of(KV("rope.freq_base_swa")));
    put_zeros(b, 2 * 4 + 8 * 4 + 12); /* rotated dimensions, MLA, reserved */
#undef KV
    put_tag(b, ob_kv_str(ob_file_find_kv(f, "general.name"), &name) ? name : arch);
}

/* ---- plan ----------------------------------------------------------------------------------- */

static ob_status add_tensor(ob_onebp_plan *p, const ob_tensor *t, int part, ob_err *err)
{
    ob_onebp_piece *piece = &p->pieces[p->n_tensors++];
    size_t len = strlen(t->name);
    uint64_t off = ob_align_up(p->n_bytes, OB_ONEBP_ALIGNMENT); /* from the start of the data */
    *piece = (ob_onebp_piece){.name = t->name, .part = part, .src_off = t->file_off,
                              .dst_off = off, .n_bytes = t->n_bytes};
    put_u32(&p->head, (uint32_t)len);
    ob_buf_add(&p->head, t->name, len + 1);
    put_u32(&p->head, (uint32_t)t->n_dims);
    for (int d = t->n_dims - 1; d >= 0; d--) {
        if (t->ne[d] > UINT32_MAX)
            return ob_err_set(err, OB_E_LIMIT,
                              "tensor '%s': dimension %d is %" PRId64 ", but a 1BP package has 32 "
                              "bits for it",
                              ob_show(t->name, len).text, d, t->ne[d]);
        put_u32(&p->head, (uint32_t)t->ne[d]);
    }
    put_u64(&p->head, off);
    put_u64(&p->head, t->n_bytes);
    put_u32(&p->head, OB_ONEBP_GGML_BASE + t->type);
    if (!ob_add_u64(off, t->n_bytes, &p->n_bytes) || p->n_bytes > INT64_MAX / 2)
        return ob_err_set(err, OB_E_LIMIT, "the package would be too large");
    p->n_weight_bytes += t->n_bytes;
    return OB_OK;
}

/* Parts opened one by one: are they 0, 1, 2, ... of as many? */
static ob_status check_parts(ob_file *const *files, int n_files, size_t n_tensors, ob_err *err)
{
    for (int k = 0; n_files > 1 && k < n_files; k++) {
        int64_t no = -1, count = -1;
        (void)ob_kv_i64(ob_file_find_kv(files[k], "split.no"), &no);
        (void)ob_kv_i64(ob_file_find_kv(files[k], "split.count"), &count);
        if (no != k || count != n_files)
            return ob_err_set(err, OB_E_FORMAT,
                              "should be part %d of %d, but its keys say part %" PRId64 " of %" PRId64,
                              k + 1, n_files, no + 1, count);
    }
    int64_t told = -1;
    if (n_files > 1 && ob_kv_i64(ob_file_find_kv(files[0], "split.tensors.count"), &told) &&
        (uint64_t)told != n_tensors)
        return ob_err_set(err, OB_E_FORMAT,
                          "split.tensors.count is %" PRId64 ", but the %d parts hold %zu", told,
                          n_files, n_tensors);
    return OB_OK;
}

static ob_status check_source(ob_file *const *files, int n_files, size_t *n_tensors, ob_err *err)
{
    size_t n = 0;
    for (int k = 0; k < n_files; k++) {
        if (strcmp(files[k]->format, "GGUF v3") != 0)
            return ob_err_set(err, OB_E_UNSUPPORTED,
                              "it is %s, and only GGUF v3 becomes a 1BP package", files[k]->format);
        n += files[k]->n_tensors;
    }
    if (n == 0) return ob_err_set(err, OB_E_INVALID, "it has no tensors");
    if (n > OB_MAX_TENSORS)
        return ob_err_set(err, OB_E_LIMIT, "%zu tensors (limit %u)", n, OB_MAX_TENSORS);
    *n_tensors = n;
    return check_parts(files, n_files, n, err);
}

ob_status ob_onebp_plan_make(ob_onebp_plan *p, ob_file *const *files, int n_files, ob_err *err)
{
    size_t n = 0;
    *p = (ob_onebp_plan){0};
    ob_buf_init(&p->head, MAX_HEAD_BYTES);
    OB_TRY(check_source(files, n_files, &n, err));
    p->pieces = ob_calloc(n, sizeof *p->pieces);
    if (!p->pieces) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %zu tensors", n);
    put_header(&p->head, files, n_files, (uint32_t)n);
    for (int k = 0; k < n_files; k++)
        for (size_t i = 0; i < files[k]->n_tensors; i++) {
            const ob_tensor *t = &files[k]->tensors[i];
            OB_TRY(add_tensor(p, t, k + t->file_index, err));
        }
    p->n_kv = files[0]->pairs.n;
    put_u64(&p->head, p->n_kv);
    ob_buf_add(&p->head, files[0]->pairs.bytes.data, files[0]->pairs.bytes.len);
    put_zeros(&p->head, ob_align_up(p->head.len, OB_ONEBP_ALIGNMENT) - p->head.len);
    OB_TRY(ob_buf_status(&p->head, err));
    for (size_t i = 0; i < n; i++) p->pieces[i].dst_off += p->head.len;
    p->n_bytes += p->head.len;
    return OB_OK;
}

void ob_onebp_plan_deinit(ob_onebp_plan *p)
{
    ob_buf_deinit(&p->head);
    ob_free(p->pieces);
    *p = (ob_onebp_plan){0};
}

/* ---- output --------------------------------------------------------------------------------- */

static ob_status refuse_existing(const char *dst, bool force, ob_err *err)
{
    struct stat st;
    if (stat(dst, &st) != 0) return OB_OK;
    if (S_ISDIR(st.st_mode)) return ob_err_set(err, OB_E_EXISTS, "%.300s is a directory", dst);
    if (force) return OB_OK;
    return ob_err_set(err, OB_E_EXISTS, "%.300s exists already; --force replaces it", dst);
}

/* The lock belongs to the file, and somebody may have renamed or removed it before we got it. */
static ob_status lock_part(const ob_onebp_out *o, ob_err *err)
{
    struct stat ours, there;
    if (flock(o->fd, LOCK_EX | LOCK_NB) == 0 && fstat(o->fd, &ours) == 0 &&
        stat(o->part, &there) == 0 && ours.st_ino == there.st_ino && ours.st_dev == there.st_dev)
        return OB_OK;
    return ob_err_set(err, OB_E_BUSY, "another process is writing %.300s", o->part);
}

ob_status ob_onebp_out_open(ob_onebp_out *o, const char *dst, bool force, ob_err *err)
{
    *o = (ob_onebp_out){.fd = -1};
    OB_TRY(refuse_existing(dst, force, err));
    ob_buf b;
    ob_buf_init(&b, 1 << 16);
    ob_buf_adds(&b, dst);
    ob_buf_adds(&b, ".part");
    o->dst = ob_strdup(dst);
    o->part = ob_buf_take(&b, NULL);
    ob_buf_deinit(&b);
    if (!o->dst || !o->part) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a path");
    o->fd = open(o->part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (o->fd < 0) return ob_err_set_errno(err, OB_E_IO, errno, "cannot write %.300s", o->part);
    ob_status s = lock_part(o, err);
    if (s != OB_OK) {
        close(o->fd); /* not ours: whoever has it, keeps it */
        o->fd = -1;
    }
    return s;
}

static ob_status check_space(const ob_onebp_out *o, uint64_t n_bytes, ob_err *err)
{
    struct stat st;
    struct statvfs v;
    if (fstat(o->fd, &st) != 0 || fstatvfs(o->fd, &v) != 0) return OB_OK;
    uint64_t have = (uint64_t)st.st_blocks * 512, room = (uint64_t)v.f_bavail * v.f_frsize;
    uint64_t need = n_bytes - OB_MIN(n_bytes, have) + SPARE_BYTES;
    if (need <= room) return OB_OK;
    return ob_err_set(err, OB_E_IO,
                      "%.300s needs %.1f MB on the disk, and only %.1f MB are free", o->dst,
                      (double)need / 1e6, (double)room / 1e6);
}

ob_status ob_onebp_out_begin(ob_onebp_out *o, const ob_onebp_plan *p, bool keep, ob_err *err)
{
    if (!keep && ftruncate(o->fd, 0) != 0)
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot empty %.300s", o->part);
    OB_TRY(check_space(o, p->n_bytes, err));
    /* What is never written, the gaps between tensors, reads as zeros. */
    if (ftruncate(o->fd, (off_t)p->n_bytes) != 0)
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot make %.300s %" PRIu64 " bytes long",
                                o->part, p->n_bytes);
    return ob_onebp_out_write(o, 0, p->head.data, p->head.len, err);
}

ob_status ob_onebp_out_write(const ob_onebp_out *o, uint64_t off, const void *data, size_t n,
                             ob_err *err)
{
    for (const char *from = data; n > 0;) {
        ssize_t k = pwrite(o->fd, from, n, (off_t)off);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return ob_err_set_errno(err, OB_E_IO, errno, "cannot write %.300s", o->part);
        from += k;
        off += (uint64_t)k;
        n -= (size_t)k;
    }
    return OB_OK;
}

/* A renamed file may be lost with the power unless its folder is synced, too. Cuts `path`. */
static void sync_folder(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash) slash[slash == path] = 0;
    int fd = open(slash ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return; /* a folder that may be written but not read */
    (void)fsync(fd);    /* some file systems refuse it, and then nothing more can be done */
    close(fd);
}

ob_status ob_onebp_out_finish(ob_onebp_out *o, ob_err *err)
{
    if (fsync(o->fd) != 0)
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot sync %.300s", o->part);
    if (rename(o->part, o->dst) != 0)
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot rename %.200s to %.200s", o->part,
                                o->dst);
    close(o->fd);
    o->fd = -1;
    sync_folder(o->part); /* its name is not needed any more */
    return OB_OK;
}

void ob_onebp_out_close(ob_onebp_out *o, bool keep)
{
    if (o->fd >= 0) {
        if (!keep) unlink(o->part);
        close(o->fd);
    }
    ob_free(o->dst);
    ob_free(o->part);
    *o = (ob_onebp_out){.fd = -1};
}

/* ---- copy ----------------------------------------------------------------------------------- */

typedef struct copier {
    const ob_onebp_out *out;
    char *buffer;    /* COPY_BUFFER; made when first needed */
    bool in_kernel;  /* copy_file_range works between these files */
} copier;

static ob_status copy_buffered(copier *c, int src, off_t from, off_t to, size_t n, size_t *copied,
                               ob_err *err)
{
    if (!c->buffer && !(c->buffer = ob_malloc(COPY_BUFFER)))
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a copy");
    ssize_t k;
    do k = pread(src, c->buffer, OB_MIN(n, (size_t)COPY_BUFFER), from);
    while (k < 0 && errno == EINTR);
    if (k < 0) return ob_err_set_errno(err, OB_E_IO, errno, "cannot read");
    if (k == 0) return ob_err_set(err, OB_E_IO, "the file became shorter while it was read");
    *copied = (size_t)k;
    return ob_onebp_out_write(c->out, (uint64_t)to, c->buffer, (size_t)k, err);
}

/* Some bytes, at most n: in the kernel where it can, so that they need not come by here. */
static ob_status copy_some(copier *c, int src, off_t from, off_t to, size_t n, size_t *copied,
                           ob_err *err)
{
    while (c->in_kernel) {
        off_t in = from, out = to;
        ssize_t k = copy_file_range(src, &in, c->out->fd, &out, n, 0);
        if (k > 0) {
            *copied = (size_t)k;
            return OB_OK;
        }
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && errno == ENOSPC)
            return ob_err_set_errno(err, OB_E_IO, errno, "cannot write %.300s", c->out->part);
        c->in_kernel = false; /* other file systems, an old kernel, or an error to see again */
    }
    return copy_buffered(c, src, from, to, n, copied, err);
}

static ob_status open_source(const ob_file *src, int part, int *fd, ob_err *err)
{
    ob_buf path;
    ob_buf_init(&path, 1 << 16);
    ob_file_part_path(src, part, &path);
    ob_status s = ob_buf_status(&path, err);
    if (s == OB_OK) {
        *fd = open(ob_buf_str(&path), O_RDONLY | O_CLOEXEC);
        if (*fd < 0) s = ob_err_set_errno(err, OB_E_IO, errno, "cannot open %.300s", ob_buf_str(&path));
        else (void)posix_fadvise(*fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    }
    ob_buf_deinit(&path);
    return s;
}

ob_status ob_onebp_copy(const ob_onebp_out *o, const ob_onebp_plan *p, const ob_file *src,
                        ob_onebp_progress progress, void *arg, ob_err *err)
{
    copier c = {.out = o, .in_kernel = true};
    ob_status s = OB_OK;
    int fd = -1, part = -1;
    uint64_t done = 0, told = 0, synced = 0;
    for (size_t i = 0; i < p->n_tensors; i++) {
        const ob_onebp_piece *t = &p->pieces[i];
        if (t->part != part) {
            if (fd >= 0) close(fd);
            fd = -1;
            OB_GOTO(open_source(src, part = t->part, &fd, err));
        }
        for (uint64_t at = 0; at < t->n_bytes;) {
            size_t n = (size_t)OB_MIN(t->n_bytes - at, (uint64_t)COPY_STEP), copied = 0;
            OB_GOTO(copy_some(&c, fd, (off_t)(t->src_off + at), (off_t)(t->dst_off + at), n, &copied,
                              err));
            at += copied;
            done += copied;
            if (done - told < COPY_STEP && done < p->n_weight_bytes) continue;
            told = done;
            /* Let the disk begin now: what waits for the final sync would be lost time. */
            (void)sync_file_range(o->fd, (off_t)synced, (off_t)(t->dst_off + at - synced),
                                  SYNC_FILE_RANGE_WRITE);
            synced = t->dst_off + at;
            if (progress && !progress(arg, done, p->n_weight_bytes)) {
                s = ob_err_set(err, OB_E_CANCELLED, "stopped");
                goto out;
            }
        }
    }
out:
    if (fd >= 0) close(fd);
    ob_free(c.buffer);
    return s;
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* Opens the file on its way and has it removed should a signal end the program. It cannot be told of before it is known to
 * be ours, so signals wait for that. */
static ob_status open_scratch(ob_onebp_out *out, const char *dst, bool force, int *ticket, ob_err *err)
{
    sigset_t stops, before;
    sigemptyset(&stops);
    sigaddset(&stops, SIGINT);
    sigaddset(&stops, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &stops, &before);
    const ob_status s = ob_onebp_out_open(out, dst, force, err);
    if (s == OB_OK) *ticket = ob_scratch_add(out->part);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return s;
}

ob_status ob_onebp_convert(const char *src, const char *dst, bool force, ob_onebp_progress progress,
                           void *arg, ob_onebp_made *made, ob_err *err)
{
    ob_file *f = NULL;
    ob_onebp_plan plan = {0};
    ob_onebp_out out = {.fd = -1};
    ob_status s = OB_OK;
    int ticket = -1;
    OB_GOTO(ob_file_open(src, OB_OPEN_NO_DATA, &f, err));
    s = ob_onebp_plan_make(&plan, &f, 1, err);
    if (s != OB_OK) {
        s = ob_err_prefix(err, s, "%.200s", src);
        goto out;
    }
    OB_GOTO(open_scratch(&out, dst, force, &ticket, err));
    OB_GOTO(ob_onebp_out_begin(&out, &plan, false, err));
    OB_GOTO(ob_onebp_copy(&out, &plan, f, progress, arg, err));
    OB_GOTO(ob_onebp_out_finish(&out, err));
    *made = (ob_onebp_made){plan.n_tensors, plan.n_kv, plan.n_weight_bytes};
out:
    ob_onebp_out_close(&out, false);
    ob_scratch_drop(ticket);
    ob_onebp_plan_deinit(&plan);
    ob_file_close(f);
    return s;
}
