/* GGUF v2 and v3: header, tensor directory, split files.
 *
 * Layout (the public GGUF specification): "GGUF", u32 version, u64 n_tensors, u64 n_kv, the pairs,
 * then per tensor name, u32 n_dims, u64 dims[], u32 type, u64 offset; then, from the next multiple of
 * `general.alignment`, the data that the offsets count from. v2 and v3 differ only in that v3 may be
 * big-endian. v1 had 32-bit counts and left the wild in 2023.
 *
 * A split file is a row of whole GGUF files named PREFIX-00001-of-0000N.gguf. Each carries split.no
 * (from 0) and split.count; the first carries the metadata, and split.tensors.count of all parts.
 */
#include "fmt/fmt_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "base/utf8.h"

enum {
    DEFAULT_ALIGNMENT = 32,
    MIN_ALIGNMENT = 8, /* the specification asks for a multiple of 8 */
    MAX_ALIGNMENT = 1 << 20,
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* of an entry: name, n_dims, one dim, type, offset */
};

typedef struct head {
    uint32_t version, alignment;
    uint64_t n_tensors, n_kv;
    ob_pairs pairs;
    bool split;
    int64_t split_no, split_count;
} head;

/* ---- header --------------------------------------------------------------------------------- */

static ob_status check_version(const ob_reader *r, uint32_t version)
{
    if (version == 2 || version == 3) return OB_OK;
    uint32_t swapped = __builtin_bswap32(version);
    if (swapped > 0 && swapped < 0x10000)
        return ob_read_fail(r, OB_E_UNSUPPORTED,
                            "big-endian GGUF v%" PRIu32 ": this byte order is not supported; "
                            "convert the file to little-endian",
                            swapped);
    return ob_read_fail(r, OB_E_UNSUPPORTED,
                        "GGUF version %" PRIu32 " is not supported (2 and 3 are)%s", version,
                        version == 1 ? "; convert the model again" : "");
}

static ob_status read_alignment(head *h, ob_reader *r)
{
    const ob_kv *kv = ob_pairs_find(&h->pairs, "general.alignment");
    int64_t v = DEFAULT_ALIGNMENT;
    if (kv && !(kv->type == OB_KV_U32 && ob_kv_i64(kv, &v)))
        return ob_err_set(r->err, OB_E_FORMAT, "general.alignment is not a u32");
    if (v < MIN_ALIGNMENT || v > MAX_ALIGNMENT || (v & (v - 1)) != 0)
        return ob_err_set(r->err, OB_E_FORMAT,
                          "general.alignment is %" PRId64 " (a power of two from %d to %d)", v,
                          MIN_ALIGNMENT, MAX_ALIGNMENT);
    h->alignment = (uint32_t)v;
    return OB_OK;
}

/* One integer key of a split file; `fallback` when absent. */
static ob_status split_key(const ob_pairs *p, const char *key, int64_t fallback, int64_t *out,
                           ob_err *err)
{
    const ob_kv *kv = ob_pairs_find(p, key);
    *out = fallback;
    if (kv && (!ob_kv_i64(kv, out) || *out < 0))
        return ob_err_set(err, OB_E_FORMAT, "%s is not a count", key);
    return OB_OK;
}

static ob_status read_split(head *h, ob_err *err)
{
    OB_TRY(split_key(&h->pairs, "split.no", 0, &h->split_no, err));
    OB_TRY(split_key(&h->pairs, "split.count", 0, &h->split_count, err));
    h->split = h->split_count > 1;
    if (h->split_count > OB_MAX_SPLITS)
        return ob_err_set(err, OB_E_LIMIT, "split.count is %" PRId64 " (limit %u)", h->split_count,
                          OB_MAX_SPLITS);
    if (h->split && h->split_no >= h->split_count)
        return ob_err_set(err, OB_E_FORMAT, "split.no is %" PRId64 ", but split.count is %" PRId64,
                          h->split_no, h->split_count);
    return OB_OK;
}

/* Everything before the tensor directory; r is left at its start. */
static ob_status read_head(const ob_part *p, head *h, ob_reader *r, ob_err *err)
{
    *h = (head){0};
    *r = (ob_reader){.s = ob_span_of(p->data, p->len), .err = err, .item = "header"};
    (void)ob_span_take(&r->s, 4); /* the magic, compared by the caller */
    OB_TRY(ob_read_u32(r, &h->version, "version"));
    OB_TRY(check_version(r, h->version));
    OB_TRY(ob_read_u64(r, &h->n_tensors, "tensor count"));
    OB_TRY(ob_read_u64(r, &h->n_kv, "metadata count"));
    OB_TRY(ob_read_count_fits(r, h->n_tensors, MIN_TENSOR_BYTES, OB_MAX_TENSORS, "tensors"));
    OB_TRY(ob_pairs_read(&h->pairs, r, h->n_kv));
    OB_TRY(read_alignment(h, r));
    return read_split(h, err);
}

/* ---- tensors -------------------------------------------------------------------------------- */

static ob_status read_name(ob_file *f, ob_reader *r, ob_tensor *t)
{
    ob_str name;
    OB_TRY(ob_read_str(r, &name, OB_MAX_TENSOR_NAME_BYTES, "name"));
    if (name.len == 0) return ob_read_fail(r, OB_E_FORMAT, "empty name");
    if (!ob_utf8_is_valid(name.data, name.len) || memchr(name.data, 0, name.len))
        return ob_read_fail(r, OB_E_FORMAT, "the name is not UTF-8 text");
    t->name = ob_arena_strndup(&f->names, name.data, name.len);
    if (!t->name) return ob_read_fail(r, OB_E_NO_MEMORY, "no memory for its name");
    r->name = name;
    return OB_OK;
}

static ob_status read_shape(ob_reader *r, ob_tensor *t, uint64_t *n_elems)
{
    uint32_t n_dims;
    OB_TRY(ob_read_u32(r, &n_dims, "number of dimensions"));
    if (n_dims < 1 || n_dims > OB_MAX_DIMS)
        return ob_read_fail(r, OB_E_FORMAT, "%" PRIu32 " dimensions (1 to %d)", n_dims,
                            OB_MAX_DIMS);
    t->n_dims = (int)n_dims;
    *n_elems = 1;
    for (uint32_t d = 0; d < OB_MAX_DIMS; d++) {
        uint64_t ne = 1;
        if (d < n_dims) OB_TRY(ob_read_u64(r, &ne, "dimension"));
        if (ne == 0 || ne > INT64_MAX)
            return ob_read_fail(r, OB_E_FORMAT, "dimension %" PRIu32 " is %" PRIu64, d, ne);
        if (!ob_mul_u64(*n_elems, ne, n_elems) || *n_elems > INT64_MAX)
            return ob_read_fail(r, OB_E_FORMAT, "the number of elements overflows 63 bits");
        t->ne[d] = (int64_t)ne;
    }
    return OB_OK;
}

static ob_status read_type(ob_reader *r, ob_tensor *t, uint64_t n_elems, uint64_t *n_bytes)
{
    OB_TRY(ob_read_u32(r, &t->type, "type"));
    const char *name = ob_fmt_type_name(t->type), *old = ob_fmt_removed_type_name(t->type);
    if (!name)
        return ob_read_fail(r, OB_E_UNSUPPORTED, old ? "type %" PRIu32 " (%s, removed from GGUF)"
                                                     : "unknown type %" PRIu32 "%s",
                            t->type, old ? old : "");
    uint32_t block = ob_fmt_type_block(t->type);
    if (t->ne[0] % block != 0)
        return ob_read_fail(r, OB_E_FORMAT,
                            "rows of %" PRId64 " elements do not divide into %s blocks of %" PRIu32,
                            t->ne[0], name, block);
    if (!ob_fmt_type_bytes(t->type, n_elems, n_bytes) || *n_bytes > SIZE_MAX)
        return ob_read_fail(r, OB_E_FORMAT, "its size overflows");
    t->n_bytes = (size_t)*n_bytes;
    return OB_OK;
}

static ob_status read_tensor(ob_file *f, ob_reader *r, ob_tensor *t, uint32_t alignment)
{
    uint64_t n_elems = 0, n_bytes = 0, off;
    OB_TRY(read_name(f, r, t));
    OB_TRY(read_shape(r, t, &n_elems));
    OB_TRY(read_type(r, t, n_elems, &n_bytes));
    OB_TRY(ob_read_u64(r, &off, "offset"));
    if (off % alignment != 0)
        return ob_read_fail(r, OB_E_FORMAT,
                            "offset %" PRIu64 " is no multiple of the alignment %" PRIu32, off,
                            alignment);
    if (!ob_add_u64(off, n_bytes, &n_bytes))
        return ob_read_fail(r, OB_E_FORMAT, "offset %" PRIu64 " plus size overflows", off);
    t->file_off = off; /* from the start of the data, until place_tensors knows where that is */
    return OB_OK;
}

/* Make offsets absolute and set data pointers. A wrong offset and a file cut short look alike here:
 * the text gives the numbers that tell them apart. */
static ob_status place_tensors(const ob_file *f, const ob_part *p, ob_tensor *t, size_t n,
                               uint64_t data_start, ob_err *err)
{
    const ob_tensor *last = NULL;
    uint64_t end = 0, n_lost = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t to;
        if (!ob_add_u64(data_start, t[i].file_off, &t[i].file_off) ||
            !ob_add_u64(t[i].file_off, t[i].n_bytes, &to))
            return ob_err_set(err, OB_E_FORMAT, "tensor '%s': its offset overflows",
                              ob_show(t[i].name, strlen(t[i].name)).text);
        n_lost += to > p->len;
        if (to > end) end = to, last = &t[i];
        t[i].data = f->flags & OB_OPEN_NO_DATA || to > p->len ? NULL : p->data + t[i].file_off;
    }
    if (!last || end <= p->len) return OB_OK;
    return ob_err_set(err, OB_E_FORMAT,
                      "tensor '%s' ends at byte %" PRIu64 ", but the file has %zu bytes: %" PRIu64
                      " bytes are missing, %" PRIu64 " of %zu tensors are not whole (download cut "
                      "short?)",
                      ob_show(last->name, strlen(last->name)).text, end, p->len, end - p->len,
                      n_lost, n);
}

typedef struct extent {
    uint64_t off, end;
    const char *name;
} extent;

static int by_offset(const void *a, const void *b)
{
    const extent *x = a, *y = b;
    return (x->off > y->off) - (x->off < y->off);
}

static ob_status refuse_overlap(const extent *a, const extent *b, ob_err *err)
{
    return ob_err_set(err, OB_E_FORMAT, "tensors '%s' and '%s' overlap at byte %" PRIu64,
                      ob_show(a->name, strlen(a->name)).text,
                      ob_show(b->name, strlen(b->name)).text, b->off);
}

/* Nearly every file lists its tensors in the order of their bytes; only others pay for a sort. */
static ob_status check_overlap(const ob_tensor *t, size_t n, ob_err *err)
{
    size_t i = 1;
    while (i < n && t[i - 1].file_off + t[i - 1].n_bytes <= t[i].file_off) i++;
    if (i >= n) return OB_OK;
    extent *e = ob_reallocarray(NULL, n, sizeof *e);
    if (!e) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to compare %zu tensors", n);
    for (i = 0; i < n; i++)
        e[i] = (extent){t[i].file_off, t[i].file_off + t[i].n_bytes, t[i].name};
    qsort(e, n, sizeof *e, by_offset);
    ob_status s = OB_OK;
    for (i = 1; i < n && s == OB_OK; i++)
        if (e[i - 1].end > e[i].off) s = refuse_overlap(&e[i - 1], &e[i], err);
    ob_free(e);
    return s;
}

/* Append the tensors of part `index`, whose directory starts at r. */
static ob_status read_tensors(ob_file *f, int index, const head *h, ob_reader *r, ob_err *err)
{
    OB_TRY(ob_read_count_fits(r, h->n_tensors, MIN_TENSOR_BYTES, OB_MAX_TENSORS - f->n_tensors,
                              "tensors"));
    size_t n = (size_t)h->n_tensors;
    ob_tensor *all = ob_reallocarray(f->tensors, f->n_tensors + n, sizeof *all);
    if (!all) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %zu tensors", n);
    f->tensors = all;
    ob_tensor *t = all + f->n_tensors;
    memset(t, 0, n * sizeof *t);
    r->item = "tensor";
    for (size_t i = 0; i < n; i++) {
        r->index = i;
        r->name = (ob_str){0};
        t[i].file_index = index;
        OB_TRY(read_tensor(f, r, &t[i], h->alignment));
    }
    f->n_tensors += n;
    uint64_t start = ob_align_up(r->s.off, h->alignment);
    OB_TRY(place_tensors(f, &f->parts[index], t, n, start, err));
    return check_overlap(t, n, err);
}

/* ---- split files ---------------------------------------------------------------------------- */

enum { SPLIT_TAIL = sizeof "-00001-of-00002.gguf" - 1 };

/* The end of the name of part `no` (from 0) of `count`; at most OB_MAX_SPLITS, so of one length. */
static const char *split_tail(char out[64], int64_t no, int64_t count)
{
    snprintf(out, 64, "-%05" PRId64 "-of-%05" PRId64 ".gguf", no + 1, count);
    return out;
}

static bool is_part_name(const char *path, int64_t no, int64_t count, size_t *prefix_len)
{
    char tail[64];
    size_t len = strlen(path);
    if (len < SPLIT_TAIL) return false;
    *prefix_len = len - SPLIT_TAIL;
    return strcmp(path + *prefix_len, split_tail(tail, no, count)) == 0;
}

static void name_part(char *path, size_t prefix_len, int64_t no, int64_t count)
{
    char tail[64];
    memcpy(path + prefix_len, split_tail(tail, no, count), SPLIT_TAIL);
}

/* Parts lie in one folder: messages name the file only. */
static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static ob_status map_split_part(ob_part *p, const char *path, ob_err *err)
{
    OB_TRY(ob_part_map(p, path, err));
    if (p->len < 4 || memcmp(p->data, "GGUF", 4) != 0)
        return ob_err_set(err, OB_E_FORMAT, "not a GGUF file");
    return OB_OK;
}

static ob_status check_part_head(const head *h, int64_t no, int64_t count, ob_err *err)
{
    if (h->split_no == no && h->split_count == count) return OB_OK;
    return ob_err_set(err, OB_E_FORMAT,
                      "should be part %" PRId64 " of %" PRId64 ", but its keys say part %" PRId64
                      " of %" PRId64,
                      no + 1, count, h->split_no + 1, h->split_count);
}

static ob_status read_part(ob_file *f, int64_t no, int64_t count, ob_err *err)
{
    head h = {0};
    ob_reader r;
    ob_status s = map_split_part(&f->parts[no], f->path, err);
    if (s == OB_E_NOT_FOUND)
        return ob_err_set(err, s, "part %" PRId64 " of %" PRId64 " is missing: no file '%s' beside it",
                          no + 1, count, base_name(f->path));
    if (s == OB_OK) s = read_head(&f->parts[no], &h, &r, err);
    if (s == OB_OK) s = check_part_head(&h, no, count, err);
    if (s == OB_OK) s = read_tensors(f, (int)no, &h, &r, err);
    if (s == OB_OK && no == 0) {
        f->pairs = h.pairs; /* only the first part carries the model's metadata */
        h.pairs = (ob_pairs){0};
    }
    ob_pairs_deinit(&h.pairs);
    return s == OB_OK ? s : ob_err_prefix(err, s, "part '%s'", base_name(f->path));
}

/* The named part told us `count`; start over from the first. */
static ob_status load_split(ob_file *f, int64_t no, int64_t count, ob_err *err)
{
    size_t prefix_len;
    int64_t n_tensors;
    if (f->path[0] == 0)
        return ob_err_set(err, OB_E_UNSUPPORTED,
                          "a part of a split file (%" PRId64 " of %" PRId64 ") needs its neighbours "
                          "and cannot be read from memory",
                          no + 1, count);
    if (!is_part_name(f->path, no, count, &prefix_len))
        return ob_err_set(err, OB_E_FORMAT,
                          "part %" PRId64 " of %" PRId64 " of a split file must be named "
                          "NAME-%05" PRId64 "-of-%05" PRId64 ".gguf, else the others cannot be found",
                          no + 1, count, no + 1, count);
    ob_part_unmap(&f->parts[0]);
    ob_part *parts = ob_calloc((size_t)count, sizeof *parts);
    if (!parts) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %" PRId64 " parts", count);
    ob_free(f->parts);
    f->parts = parts;
    f->n_parts = (int)count;
    for (int64_t i = 0; i < count; i++) {
        name_part(f->path, prefix_len, i, count);
        OB_TRY(read_part(f, i, count, err));
    }
    name_part(f->path, prefix_len, 0, count);
    ob_status s = split_key(&f->pairs, "split.tensors.count", -1, &n_tensors, err);
    if (s == OB_OK && n_tensors >= 0 && (uint64_t)n_tensors != f->n_tensors)
        return ob_err_set(err, OB_E_FORMAT,
                          "split.tensors.count is %" PRId64 ", but the %" PRId64 " parts hold %zu",
                          n_tensors, count, f->n_tensors);
    return s;
}

/* ---- load ----------------------------------------------------------------------------------- */

static ob_status index_tensors(ob_file *f, ob_err *err)
{
    OB_TRY(ob_names_init(&f->tensor_index, f->n_tensors, err));
    for (size_t i = 0; i < f->n_tensors; i++) {
        const char *name = f->tensors[i].name;
        size_t number = ob_names_add(&f->tensor_index, (ob_str){name, strlen(name)});
        if (number != i)
            return ob_err_set(err, OB_E_FORMAT, "tensors %zu and %zu have the same name '%s'",
                              number, i, ob_show(name, strlen(name)).text);
    }
    return OB_OK;
}

ob_status ob_gguf_load(ob_file *f, ob_err *err)
{
    head h = {0};
    ob_reader r;
    ob_status s = OB_OK;
    OB_GOTO(read_head(&f->parts[0], &h, &r, err));
    snprintf(f->format, sizeof f->format, "GGUF v%" PRIu32, h.version);
    if (h.split) {
        /* Keys are views into a mapping that load_split drops. */
        ob_pairs_deinit(&h.pairs);
        OB_GOTO(load_split(f, h.split_no, h.split_count, err));
    } else {
        OB_GOTO(read_tensors(f, 0, &h, &r, err));
        f->pairs = h.pairs;
        h.pairs = (ob_pairs){0};
    }
    OB_GOTO(index_tensors(f, err));
    OB_GOTO(ob_pairs_make_strings(&f->pairs, err));
out:
    ob_pairs_deinit(&h.pairs);
    return s;
}
