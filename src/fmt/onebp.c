/* 1BP packages, version 5: the reader. docs/onebp.md has the layout.
 *
 * A package is a header of 256 bytes, an index of tensors, the metadata pairs of a GGUF, and the
 * tensors at multiples of 64 bytes. Of the header only magic, version and the number of tensors are
 * read; all else is in the metadata. Versions 1 to 4 had no metadata and 1BP's own tile formats.
 */
#include "fmt/onebp.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/limits.h"
#include "base/math.h"
#include "fmt/fmt_int.h"

enum {
    MIN_ENTRY_BYTES = 4 + 1 + 1 + 4 + 4 + 8 + 8 + 4, /* a name of one byte, one dimension */
};

static const char *const k_tiles[] = {"Q4NX", "I8",    "TQ1",         "TQ2",  "F16",
                                      "F32",  "TQ2NZ", "TQ2NZ_E4M3", "TQ2BS"};

static ob_status read_header(ob_reader *r, uint32_t *n_tensors)
{
    uint32_t version;
    (void)ob_span_take(&r->s, 4); /* the magic, compared by the caller */
    OB_TRY(ob_read_u32(r, &version, "version"));
    if (version >= 1 && version < OB_ONEBP_VERSION)
        return ob_read_fail(r, OB_E_UNSUPPORTED,
                            "1BP version %" PRIu32 " is not supported (5 is): versions 1 to 4 have "
                            "no metadata and hold tile formats; convert the model's GGUF again",
                            version);
    if (version != OB_ONEBP_VERSION)
        return ob_read_fail(r, OB_E_UNSUPPORTED, "1BP version %" PRIu32 " is not supported (5 is)",
                            version);
    OB_TRY(ob_read_need(r, OB_ONEBP_HEADER_BYTES - r->s.off, "header"));
    (void)ob_span_take(&r->s, OB_ONEBP_AT_N_TENSORS - r->s.off);
    OB_TRY(ob_read_u32(r, n_tensors, "tensor count"));
    OB_TRY(ob_read_count_fits(r, *n_tensors, MIN_ENTRY_BYTES, OB_MAX_TENSORS, "tensors"));
    (void)ob_span_take(&r->s, OB_ONEBP_HEADER_BYTES - r->s.off);
    return OB_OK;
}

static ob_status read_name(ob_file *f, ob_reader *r, ob_tensor *t)
{
    uint32_t len;
    OB_TRY(ob_read_u32(r, &len, "length of the name"));
    OB_TRY(ob_read_need(r, (uint64_t)len + 1, "name"));
    if (len > OB_MAX_TENSOR_NAME_BYTES)
        return ob_read_fail(r, OB_E_LIMIT, "name of %" PRIu32 " bytes (limit %u)", len,
                            OB_MAX_TENSOR_NAME_BYTES);
    OB_TRY(ob_tensor_set_name(f, r, t, (ob_str){(const char *)ob_span_take(&r->s, len), len}));
    if (*ob_span_take(&r->s, 1) != 0)
        return ob_read_fail(r, OB_E_FORMAT, "no NUL after the name");
    return OB_OK;
}

/* The index lists dimensions outermost first, the directory the row length first. */
static ob_status read_shape(ob_reader *r, ob_tensor *t, uint64_t *n_elems)
{
    uint32_t n_dims, dim;
    uint64_t ne[OB_MAX_DIMS];
    OB_TRY(ob_read_u32(r, &n_dims, "number of dimensions"));
    OB_TRY(ob_tensor_check_n_dims(r, n_dims));
    for (uint32_t d = n_dims; d-- > 0;) {
        OB_TRY(ob_read_u32(r, &dim, "dimension"));
        ne[d] = dim;
    }
    return ob_tensor_set_shape(r, t, n_dims, ne, n_elems);
}

static ob_status refuse_tile(const ob_reader *r, uint32_t quant)
{
    const char *name = quant < OB_COUNT(k_tiles) ? k_tiles[quant] : "unknown";
    return ob_read_fail(r, OB_E_UNSUPPORTED,
                        "quant %" PRIu32 " (%s) is one of 1BP's own tile formats, which are not "
                        "supported; convert the model's GGUF again",
                        quant, name);
}

static ob_status refuse_size(const ob_reader *r, const ob_tensor *t, uint64_t n_bytes)
{
    return ob_read_fail(r, OB_E_FORMAT,
                        "size %" PRIu64 ", but %s of this shape takes %zu bytes", n_bytes,
                        ob_fmt_type_name(t->type), t->n_bytes);
}

/* Type, place and size of an earlier tensor; the shape is the entry's own. */
static ob_status set_alias(const ob_file *f, const ob_reader *r, ob_tensor *t, uint64_t n_elems,
                           uint64_t target)
{
    if (target >= r->index)
        return ob_read_fail(r, OB_E_FORMAT,
                            "alias of tensor %" PRIu64 ", which is not an earlier one", target);
    const ob_tensor *of = &f->tensors[target];
    OB_TRY(ob_tensor_set_type(r, t, of->type, n_elems));
    if (t->n_bytes != of->n_bytes) return refuse_size(r, t, of->n_bytes);
    return ob_tensor_set_off(r, t, of->file_off, OB_ONEBP_ALIGNMENT);
}

static ob_status read_entry(ob_file *f, ob_reader *r, ob_tensor *t)
{
    uint64_t n_elems = 0, off, n_bytes;
    uint32_t quant;
    OB_TRY(read_name(f, r, t));
    OB_TRY(read_shape(r, t, &n_elems));
    OB_TRY(ob_read_u64(r, &off, "offset"));
    OB_TRY(ob_read_u64(r, &n_bytes, "size"));
    OB_TRY(ob_read_u32(r, &quant, "quant"));
    if (n_bytes == 0) return set_alias(f, r, t, n_elems, off);
    if (quant < OB_ONEBP_GGML_BASE) return refuse_tile(r, quant);
    OB_TRY(ob_tensor_set_type(r, t, quant - OB_ONEBP_GGML_BASE, n_elems));
    if (t->n_bytes != n_bytes) return refuse_size(r, t, n_bytes);
    return ob_tensor_set_off(r, t, off, OB_ONEBP_ALIGNMENT);
}

static ob_status read_index(ob_file *f, ob_reader *r, size_t n, ob_err *err)
{
    ob_tensor *t;
    OB_TRY(ob_tensors_add(f, n, &t, err));
    r->item = "tensor";
    for (size_t i = 0; i < n; i++) {
        r->index = i;
        r->name = (ob_str){0};
        OB_TRY(read_entry(f, r, &t[i]));
    }
    f->n_tensors = n;
    return OB_OK;
}

ob_status ob_onebp_load(ob_file *f, ob_err *err)
{
    ob_reader r = ob_reader_of(&f->parts[0], err);
    uint32_t n;
    uint64_t n_kv;
    OB_TRY(read_header(&r, &n));
    snprintf(f->format, sizeof f->format, "1BP v%d", OB_ONEBP_VERSION);
    OB_TRY(read_index(f, &r, n, err));
    r.item = "header";
    OB_TRY(ob_read_u64(&r, &n_kv, "metadata count"));
    OB_TRY(ob_pairs_read(&f->pairs, &r, n_kv));
    uint64_t start = ob_align_up(r.s.off, OB_ONEBP_ALIGNMENT);
    OB_TRY(ob_tensors_place(f, &f->parts[0], f->tensors, n, start, err));
    OB_TRY(ob_tensors_check_overlap(f->tensors, n, true, err));
    OB_TRY(ob_tensors_index(f, err));
    return ob_pairs_make_strings(&f->pairs, err);
}
