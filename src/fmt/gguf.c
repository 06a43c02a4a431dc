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
static ob_status read_head(ob_part *p, head *h, ob_reader *r, ob_err *err)
{
    *h = (head){0};
    *r = ob_reader_of(p, err);
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

static ob_status read_shape(ob_reader *r, ob_tensor *t, uint64_t *n_elems)
{
    uint32_t n_dims;
    uint64_t ne[OB_MAX_DIMS];
    OB_TRY(ob_read_u32(r, &n_dims, "number of dimensions"));
    OB_TRY(ob_tensor_check_n_dims(r, n_dims));
    for (uint32_t d = 0; d < n_dims; d++) OB_TRY(ob_read_u64(r, &ne[d], "dimension"));
    return ob_tensor_set_shape(r, t, n_dims, ne, n_elems);
}

static ob_status read_tensor(ob_file *f, ob_reader *r, ob_tensor *t, uint32_t alignment)
{
    uint64_t n_elems = 0, off;
    uint32_t type;
    ob_str name;
    OB_TRY(ob_read_str(r, &name, OB_MAX_TENSOR_NAME_BYTES, "name"));
    OB_TRY(ob_tensor_set_name(f, r, t, name));
    OB_TRY(read_shape(r, t, &n_elems));
    OB_TRY(ob_read_u32(r, &type, "type"));
    OB_TRY(ob_tensor_set_type(r, t, type, n_elems));
    OB_TRY(ob_read_u64(r, &off, "offset"));
    return ob_tensor_set_off(r, t, off, alignment);
}

/* Append the tensors of part `index`, whose directory starts at r. */
static ob_status read_tensors(ob_file *f, int index, const head *h, ob_reader *r, ob_err *err)
{
    OB_TRY(ob_read_count_fits(r, h->n_tensors, MIN_TENSOR_BYTES, OB_MAX_TENSORS - f->n_tensors,
                              "tensors"));
    size_t n = (size_t)h->n_tensors;
    ob_tensor *t;
    OB_TRY(ob_tensors_add(f, n, &t, err));
    r->item = "tensor";
    for (size_t i = 0; i < n; i++) {
        r->index = i;
        r->name = (ob_str){0};
        t[i].file_index = index;
        OB_TRY(read_tensor(f, r, &t[i], h->alignment));
    }
    f->n_tensors += n;
    uint64_t start = ob_align_up(r->s.off, h->alignment);
    OB_TRY(ob_tensors_place(f, &f->parts[index], t, n, start, err));
    return ob_tensors_check_overlap(t, n, false, err);
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

void ob_file_part_path(const ob_file *f, int part, ob_buf *out)
{
    size_t prefix_len;
    char tail[64];
    const char *shard = strstr(f->path, "-00001-of-");
    if (f->n_parts > 1 && !strcmp(f->format, "safetensors") && shard) {
        ob_buf_addf(out, "%.*s-%05d%s", (int)(shard - f->path), f->path, part + 1, shard + 6);
    } else if (f->n_parts > 1 && is_part_name(f->path, 0, f->n_parts, &prefix_len)) {
        ob_buf_add(out, f->path, prefix_len);
        ob_buf_adds(out, split_tail(tail, part, f->n_parts));
    } else {
        ob_buf_adds(out, f->path);
    }
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

ob_status ob_gguf_load(ob_file *f, ob_err *err)
{
    head h = {0};
    ob_reader r;
    ob_status s = OB_OK;
    OB_GOTO(read_head(&f->parts[0], &h, &r, err));
    snprintf(f->format, sizeof f->format, "GGUF v%" PRIu32, h.version);
    if (h.split && !(f->flags & OB_OPEN_ONE_PART)) {
        /* Keys are views into a mapping that load_split drops. */
        ob_pairs_deinit(&h.pairs);
        OB_GOTO(load_split(f, h.split_no, h.split_count, err));
    } else {
        OB_GOTO(read_tensors(f, 0, &h, &r, err));
        f->pairs = h.pairs;
        h.pairs = (ob_pairs){0};
    }
    OB_GOTO(ob_tensors_index(f, err));
    OB_GOTO(ob_pairs_make_strings(&f->pairs, err));
out:
    ob_pairs_deinit(&h.pairs);
    return s;
}
