/* Opening and closing: which format the first bytes are, mappings, the calls of fmt.h. */
#include "fmt/fmt_int.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/math.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "model files are little-endian and read in place: this host needs a swapping reader"
#endif

/* ---- mappings ------------------------------------------------------------------------------- */

static ob_status map_fd(ob_part *p, int fd, ob_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return ob_err_set_errno(err, OB_E_IO, errno, "cannot stat it");
    if (S_ISDIR(st.st_mode)) return ob_err_set(err, OB_E_IO, "is a directory, not a model file");
    if (!S_ISREG(st.st_mode)) return ob_err_set(err, OB_E_IO, "not a regular file");
    if (st.st_size == 0) return ob_err_set(err, OB_E_FORMAT, "the file is empty");
    if ((uint64_t)st.st_size > SIZE_MAX) return ob_err_set(err, OB_E_LIMIT, "the file is too large");
    /* Read-only and private: nobody writes through it. If another process truncates the file while
     * it is mapped, touching the lost pages raises SIGBUS (docs/rooms/fmt.md). */
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED)
        return ob_err_set_errno(err, errno == ENOMEM ? OB_E_NO_MEMORY : OB_E_IO, errno,
                                "cannot map %jd bytes", (intmax_t)st.st_size);
    size_t len = (size_t)st.st_size;
    *p = (ob_part){.data = data, .len = len, .n_have = len, .mapped = true, .fd = fd};
    return OB_OK;
}

ob_status ob_part_map(ob_part *p, const char *path, ob_err *err)
{
    /* O_NONBLOCK: opening a FIFO must not wait for its writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return ob_err_set_errno(err, errno == ENOENT || errno == ENOTDIR ? OB_E_NOT_FOUND : OB_E_IO,
                                errno, "cannot open it");
    ob_status s = map_fd(p, fd, err);
    if (s != OB_OK) close(fd); /* else kept for reads past the mapping (fmt/direct.h) */
    return s;
}

void ob_part_unmap(ob_part *p)
{
    /* munmap takes no const pointer; the bytes were never writable. */
    if (p->mapped) {
        munmap((void *)(uintptr_t)p->data, p->len);
        close(p->fd);
    }
    *p = (ob_part){0};
}

/* ---- formats -------------------------------------------------------------------------------- */

typedef struct format {
    const char *magic;
    size_t magic_len;
    ob_status (*load)(ob_file *f, ob_err *err);
} format;

static const format k_formats[] = {
    {"GGUF", 4, ob_gguf_load},
    {"1BP\0", 4, ob_onebp_load},
};

/* What people hand over by mistake, by its first bytes, with a word on what to do. */
static const struct {
    const char *magic;
    size_t len;
    const char *what;
} k_strangers[] = {
    {"FUGG", 4, "a GGUF file in the other byte order (big-endian); convert it to little-endian"},
    {"PK\3\4", 4, "a zip archive (a PyTorch checkpoint?); convert it to GGUF"},
    {"\x80\x02", 2, "a Python pickle (an old PyTorch checkpoint?); convert it to GGUF"},
    {"\x1F\x8B", 2, "gzip data; unpack it first"},
    {"\x28\xB5\x2F\xFD", 4, "zstd data; unpack it first"},
    {"lmgg", 4, "a GGML file from before GGUF; convert it to GGUF"},
    {"fmgg", 4, "a GGML file from before GGUF; convert it to GGUF"},
    {"tjgg", 4, "a GGJT file from before GGUF; convert it to GGUF"},
    {"algg", 4, "a GGLA adapter from before GGUF; convert it to GGUF"},
    {"version https://git-lfs", 23, "a Git LFS pointer, not the model; run git lfs pull"},
    {"<!DOCTYPE", 9, "an HTML page: the download gave a web page instead of the model"},
    {"<!doctype", 9, "an HTML page: the download gave a web page instead of the model"},
    {"<html", 5, "an HTML page: the download gave a web page instead of the model"},
    {"\x7F" "ELF", 4, "a program (ELF)"},
    {"{", 1, "JSON text"},
};

static ob_status refuse_stranger(const uint8_t *data, size_t len, ob_err *err)
{
    for (size_t i = 0; i < OB_COUNT(k_strangers); i++)
        if (len >= k_strangers[i].len && memcmp(data, k_strangers[i].magic, k_strangers[i].len) == 0)
            return ob_err_set(err, i == 0 ? OB_E_UNSUPPORTED : OB_E_FORMAT,
                              "not a GGUF file: it looks like %s", k_strangers[i].what);
    char hex[3 * 8 + 1] = "";
    for (size_t i = 0; i < len && i < 8; i++) snprintf(hex + 3 * i, 4, " %02x", data[i]);
    if (len < 4 && memcmp(data, "GGUF", len) == 0)
        return ob_err_set(err, OB_E_FORMAT,
                          "the file ends inside the first field: it has %zu bytes of the 24 of a "
                          "GGUF header (%zu bytes are missing)", len, 24 - len);
    return ob_err_set(err, OB_E_FORMAT, "not a GGUF file: it starts with%s", hex);
}

static ob_status load_by_content(ob_file *f, ob_err *err)
{
    enum { TELLING_BYTES = 10 }; /* enough to know any format */
    ob_part *p = &f->parts[0];
    for (size_t i = 0; i < OB_COUNT(k_formats); i++)
        if (p->n_have >= k_formats[i].magic_len &&
            memcmp(p->data, k_formats[i].magic, k_formats[i].magic_len) == 0)
            return k_formats[i].load(f, err);
    if (p->n_have < TELLING_BYTES && p->n_have < p->len) {
        p->need_more = true;
        return ob_err_set(err, OB_E_FORMAT, "%zu bytes do not tell what kind of file it is", p->n_have);
    }
    if (ob_safetensors_is(p)) return ob_safetensors_load(f, err);
    return refuse_stranger(p->data, p->n_have, err);
}

/* ---- open, close ---------------------------------------------------------------------------- */

static ob_status file_new(const char *path, unsigned flags, ob_file **out, ob_err *err)
{
    ob_file *f = ob_calloc(1, sizeof *f);
    if (!f) goto no_memory;
    ob_arena_init(&f->names, SIZE_MAX); /* bounded by the file: names are copies of its bytes */
    f->flags = flags;
    f->path = ob_strdup(path);
    f->parts = ob_calloc(1, sizeof *f->parts);
    if (!f->path || !f->parts) goto no_memory;
    f->n_parts = 1;
    *out = f;
    return OB_OK;
no_memory:
    ob_file_close(f);
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory to open a file");
}

/* A model in shards: the first one that the index names. f->path: the folder (folder_len bytes) and a name. */
static ob_status enter_shards(ob_file *f, size_t folder_len, ob_err *err)
{
    ob_part p = {0};
    json_t *index = NULL, *file;
    const char *name;
    ob_status s = OB_OK;
    ob_buf path;
    ob_buf_init(&path, 1 << 16);
    ob_buf_addf(&path, "%.*s/model.safetensors.index.json", (int)folder_len, f->path);
    OB_GOTO(ob_buf_status(&path, err));
    s = ob_part_map(&p, ob_buf_str(&path), err);
    if (s == OB_E_NOT_FOUND) s = ob_err_set(err, s, "is a directory without a model.safetensors in it");
    if (s == OB_OK) s = ob_fmt_json((const char *)p.data, p.len, "model.safetensors.index.json", &index, err);
    if (s != OB_OK) goto out;
    s = ob_err_set(err, OB_E_FORMAT, "model.safetensors.index.json names no first shard (…-00001-of-….safetensors)");
    json_object_foreach(json_object_get(index, "weight_map"), name, file)
    {
        const char *shard = json_string_value(file);
        if (!shard || strchr(shard, '/') || !strstr(shard, "-00001-of-")) continue;
        ob_buf_clear(&path);
        ob_buf_addf(&path, "%.*s/%s", (int)folder_len, f->path, shard);
        OB_GOTO(ob_buf_status(&path, err));
        ob_free(f->path);
        f->path = ob_buf_take(&path, NULL);
        break;
    }
out:
    ob_part_unmap(&p);
    json_decref(index);
    ob_buf_deinit(&path);
    return s;
}

/* A folder stands for the one file of weights in it, as Hugging Face lays models out. */
static ob_status enter_folder(ob_file *f, ob_err *err)
{
    struct stat st;
    if (stat(f->path, &st) != 0 || !S_ISDIR(st.st_mode)) return OB_OK;
    static const char name[] = "/model.safetensors";
    size_t len = strlen(f->path);
    while (len > 1 && f->path[len - 1] == '/') len--;
    char *path = ob_malloc(len + sizeof name);
    if (!path) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to open a file");
    memcpy(path, f->path, len);
    memcpy(path + len, name, sizeof name);
    ob_free(f->path);
    f->path = path;
    return stat(path, &st) == 0 ? OB_OK : enter_shards(f, len, err);
}

ob_status ob_file_open(const char *path, unsigned flags, ob_file **out, ob_err *err)
{
    ob_file *f = NULL;
    *out = NULL;
    ob_status s = file_new(path, flags, &f, err);
    if (s == OB_OK) s = enter_folder(f, err);
    if (s == OB_OK) s = ob_part_map(&f->parts[0], f->path, err);
    if (s == OB_OK) s = load_by_content(f, err);
    if (s != OB_OK) {
        ob_file_close(f);
        return ob_err_prefix(err, s, "%s", path);
    }
    *out = f;
    return OB_OK;
}

static ob_status open_part(ob_part part, unsigned flags, ob_file **out, bool *need_more,
                           ob_err *err)
{
    ob_file *f = NULL;
    *out = NULL;
    if (part.n_have == 0) return ob_err_set(err, OB_E_FORMAT, "the file is empty");
    OB_TRY(file_new("", flags, &f, err));
    f->parts[0] = part;
    ob_status s = load_by_content(f, err);
    *need_more = f->parts[0].need_more;
    if (s != OB_OK) {
        ob_file_close(f);
        return s;
    }
    *out = f;
    return OB_OK;
}

ob_status ob_file_open_bytes(const void *bytes, size_t len, unsigned flags, ob_file **out,
                             ob_err *err)
{
    bool need_more;
    return open_part((ob_part){.data = bytes, .len = len, .n_have = len}, flags, out, &need_more,
                     err);
}

ob_status ob_file_open_head(const void *bytes, size_t n_have, uint64_t file_len, ob_file **out,
                            bool *need_more, ob_err *err)
{
    *need_more = false;
    *out = NULL;
    if (n_have > file_len || file_len > SIZE_MAX)
        return ob_err_set(err, OB_E_INVALID, "%zu bytes of a file of %" PRIu64, n_have, file_len);
    return open_part((ob_part){.data = bytes, .len = (size_t)file_len, .n_have = n_have},
                     OB_OPEN_NO_DATA | OB_OPEN_ONE_PART, out, need_more, err);
}

void ob_file_close(ob_file *f)
{
    if (!f) return;
    for (int i = 0; i < f->n_parts; i++) ob_part_unmap(&f->parts[i]);
    ob_free(f->parts);
    ob_pairs_deinit(&f->pairs);
    ob_free(f->tensors);
    ob_names_deinit(&f->tensor_index);
    ob_arena_deinit(&f->names);
    ob_free(f->extra);
    ob_free(f->path);
    ob_free(f);
}

/* ---- what is in it -------------------------------------------------------------------------- */

const char *ob_file_path(const ob_file *f) { return f->path; }
const char *ob_file_format(const ob_file *f) { return f->format; }
int ob_file_n_parts(const ob_file *f) { return f->n_parts; }

uint64_t ob_file_n_bytes(const ob_file *f)
{
    uint64_t n = 0;
    for (int i = 0; i < f->n_parts; i++) n += f->parts[i].len;
    return n;
}

uint64_t ob_file_stamp(const ob_file *f)
{
    uint64_t h = XXH3_64bits(f->pairs.bytes.data, f->pairs.bytes.len);
    for (int i = 0; i < f->n_parts; i++) {
        struct stat st;
        if (!f->parts[i].mapped || fstat(f->parts[i].fd, &st) != 0) return 0;
        /* The time of the last change of the inode tells of bytes written under an old time of modification. */
        const int64_t part[] = {(int64_t)h, st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec, st.st_ctim.tv_sec,
                                st.st_ctim.tv_nsec};
        h = XXH3_64bits(part, sizeof part);
    }
    return h ? h : 1;
}

size_t ob_file_n_tensors(const ob_file *f) { return f->n_tensors; }

const ob_tensor *ob_file_tensor(const ob_file *f, size_t i)
{
    return i < f->n_tensors ? &f->tensors[i] : NULL;
}

const ob_tensor *ob_file_find_tensor(const ob_file *f, const char *name)
{
    size_t i = ob_names_find(&f->tensor_index, name, strlen(name));
    return i == SIZE_MAX ? NULL : &f->tensors[i];
}

void ob_file_prefetch(const ob_file *f, const ob_tensor *t)
{
    if (t->file_index < 0) return;
    const ob_part *p = &f->parts[t->file_index];
    long page = sysconf(_SC_PAGESIZE);
    if (!p->mapped || page <= 0) return;
    uintptr_t begin = ((uintptr_t)p->data + t->file_off) & ~((uintptr_t)page - 1);
    (void)madvise((void *)begin, (uintptr_t)p->data + t->file_off + t->n_bytes - begin, MADV_WILLNEED);
}

void ob_file_release_pages(const ob_file *f, const ob_tensor *t)
{
    if (t->file_index < 0) return;
    const ob_part *p = &f->parts[t->file_index];
    long page = sysconf(_SC_PAGESIZE);
    if (!p->mapped || page <= 0) return;
    /* Whole pages inside the tensor only: its neighbours may still be wanted. */
    uintptr_t size = (uintptr_t)page, begin = (uintptr_t)p->data + t->file_off;
    uintptr_t end = (begin + t->n_bytes) & ~(size - 1);
    begin = (begin + size - 1) & ~(size - 1);
    if (begin < end) (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}

size_t ob_file_n_kv(const ob_file *f) { return f->pairs.n; }
ob_str ob_file_kv_bytes(const ob_file *f) { return f->pairs.bytes; }

const ob_kv *ob_file_kv(const ob_file *f, size_t i)
{
    return i < f->pairs.n ? &f->pairs.kv[i] : NULL;
}

const ob_kv *ob_file_find_kv(const ob_file *f, const char *key)
{
    return ob_pairs_find(&f->pairs, key);
}

const ob_kv *ob_file_find_kvf(const ob_file *f, const char *fmt, ...)
{
    char key[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(key, sizeof key, fmt, ap);
    va_end(ap);
    return n < 0 || (size_t)n >= sizeof key ? NULL : ob_file_find_kv(f, key);
}
