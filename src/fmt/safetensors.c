/* safetensors: u64 length of a JSON header, the header, then the tensors' bytes (the public format of
 * Hugging Face). The header maps a name to {"dtype", "shape", "data_offsets": [begin, end]}, offsets from
 * the end of the header, shape with the row length last; "__metadata__" maps strings to strings.
 *
 * The format says nothing of architectures or vocabularies. Those stand in files beside it, which
 * hf_*.c read; without them the tensors keep their own names and there are no metadata pairs.
 */
#include "fmt/fmt_int.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/math.h"

static const struct {
    const char *name;
    uint32_t type; /* ggml's */
    uint32_t bytes;
} k_dtypes[] = {
    {"F32", 0, 4},  {"F16", 1, 2},  {"BF16", 30, 2}, {"F64", 28, 8},
    {"I64", 27, 8}, {"I32", 26, 4}, {"I16", 25, 2},  {"I8", 24, 1},
};

bool ob_safetensors_is(const ob_part *p)
{
    uint64_t header_len;
    if (p->n_have < 10) return false;
    memcpy(&header_len, p->data, sizeof header_len);
    return header_len >= 2 && header_len <= p->len - 8 && p->data[8] == '{';
}

ob_status ob_fmt_json(const char *text, size_t len, const char *what, json_t **out, ob_err *err)
{
    const ob_status s = ob_json_load(text, len, what, out, err);
    if (s == OB_E_INVALID) {
        if (err) err->code = OB_E_FORMAT;
        return OB_E_FORMAT;
    }
    if (s != OB_OK || json_is_object(*out)) return s;
    json_decref(*out);
    *out = NULL;
    return ob_err_set(err, OB_E_FORMAT, "%s is no JSON object", what);
}

/* ---- one tensor ----------------------------------------------------------------------------- */

static bool size_of(const json_t *v, uint64_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

static ob_status read_shape(const ob_reader *r, const json_t *shape, ob_tensor *t, uint64_t *n_elems)
{
    const size_t n = json_array_size(shape);
    uint64_t ne[OB_MAX_DIMS] = {1};
    if (!json_is_array(shape) || n > OB_MAX_DIMS)
        return ob_read_fail(r, OB_E_FORMAT, "its shape is no list of at most %d numbers", OB_MAX_DIMS);
    for (size_t d = 0; d < n; d++)
        if (!size_of(json_array_get(shape, n - 1 - d), &ne[d]))
            return ob_read_fail(r, OB_E_FORMAT, "its shape holds something that is no count");
    return ob_tensor_set_shape(r, t, OB_MAX((uint32_t)n, 1u), ne, n_elems);
}

static ob_status read_tensor(ob_file *f, ob_reader *r, const char *name, const json_t *entry, uint64_t data_start,
                             ob_tensor *t)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    uint64_t n_elems = 0, begin, end;
    size_t k = 0;
    r->name = (ob_str){0};
    if (strlen(name) >= OB_MAX_TENSOR_NAME_BYTES)
        return ob_read_fail(r, OB_E_LIMIT, "a name of %zu bytes (limit %u)", strlen(name), OB_MAX_TENSOR_NAME_BYTES);
    OB_TRY(ob_tensor_set_name(f, r, t, (ob_str){name, strlen(name)}));
    while (dtype && k < OB_COUNT(k_dtypes) && strcmp(dtype, k_dtypes[k].name) != 0) k++;
    if (!dtype || k == OB_COUNT(k_dtypes))
        return ob_read_fail(r, dtype ? OB_E_UNSUPPORTED : OB_E_FORMAT,
                            "its dtype is not one of F32, F16, BF16, F64, I64, I32, I16, I8");
    OB_TRY(read_shape(r, json_object_get(entry, "shape"), t, &n_elems));
    OB_TRY(ob_tensor_set_type(r, t, k_dtypes[k].type, n_elems));
    if (json_array_size(offsets) != 2 || !size_of(json_array_get(offsets, 0), &begin) ||
        !size_of(json_array_get(offsets, 1), &end) || end < begin)
        return ob_read_fail(r, OB_E_FORMAT, "its data_offsets are no pair of offsets");
    if (end - begin != t->n_bytes)
        return ob_read_fail(r, OB_E_FORMAT, "its shape makes %zu bytes, its data_offsets %" PRIu64, t->n_bytes,
                            end - begin);
    if (data_start % k_dtypes[k].bytes)
        return ob_read_fail(r, OB_E_UNSUPPORTED, "its numbers are not aligned to their size");
    return ob_tensor_set_off(r, t, begin, k_dtypes[k].bytes);
}

/* ---- load ----------------------------------------------------------------------------------- */

static ob_status read_tensors(ob_file *f, int part, ob_reader *r, json_t *header, uint64_t data_start)
{
    const size_t most = json_object_size(header);
    const char *name;
    json_t *entry;
    ob_tensor *t;
    size_t n = 0;
    if (most > OB_MAX_TENSORS - f->n_tensors) return ob_read_fail(r, OB_E_LIMIT, "%zu tensors (limit %u)", most, OB_MAX_TENSORS);
    OB_TRY(ob_tensors_add(f, most + 1, &t, r->err));
    r->item = "tensor";
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        r->index = f->n_tensors + n;
        OB_TRY(read_tensor(f, r, name, entry, data_start, &t[n]));
        t[n++].file_index = part;
    }
    OB_TRY(ob_tensors_place(f, &f->parts[part], t, n, data_start, r->err));
    f->n_tensors += n;
    return ob_tensors_check_overlap(t, n, false, r->err);
}

static ob_status read_part(ob_file *f, int part, ob_err *err)
{
    ob_reader r = ob_reader_of(&f->parts[part], err);
    uint64_t header_len;
    json_t *header = NULL;
    OB_TRY(ob_read_u64(&r, &header_len, "header length"));
    if (header_len > OB_MAX_ST_HEADER_BYTES)
        return ob_read_fail(&r, OB_E_LIMIT, "a header of %" PRIu64 " bytes (limit %u)", header_len,
                            OB_MAX_ST_HEADER_BYTES);
    OB_TRY(ob_read_need(&r, header_len, "the header"));
    const char *text = (const char *)ob_span_take(&r.s, (size_t)header_len);
    OB_TRY(ob_fmt_json(text, (size_t)header_len, "the header", &header, err));
    ob_status s = read_tensors(f, part, &r, header, 8 + header_len);
    json_decref(header);
    return s;
}

/* "model-00001-of-00003.safetensors": the others lie beside it. */
static ob_status read_shards(ob_file *f, ob_err *err)
{
    int count = 0, used = 0;
    const char *at = strstr(f->path, "-00001-of-");
    if (!at || sscanf(at, "-00001-of-%5d.safetensors%n", &count, &used) != 1 || !used || at[used] || count < 2) return OB_OK;
    if ((unsigned)count > OB_MAX_SPLITS) return ob_err_set(err, OB_E_LIMIT, "%d shards (limit %u)", count, OB_MAX_SPLITS);
    ob_part *parts = ob_reallocarray(f->parts, (size_t)count, sizeof *parts);
    if (!parts) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %d shards", count);
    f->parts = parts;
    memset(parts + 1, 0, (size_t)(count - 1) * sizeof *parts);
    for (f->n_parts = 1; f->n_parts < count;) {
        const int i = f->n_parts++;
        ob_buf path;
        ob_buf_init(&path, 1 << 16);
        ob_buf_addf(&path, "%.*s-%05d%s", (int)(at - f->path), f->path, i + 1, at + 6);
        ob_status s = ob_buf_status(&path, err);
        if (s == OB_OK) s = ob_part_map(&f->parts[i], ob_buf_str(&path), err);
        if (s == OB_OK && !ob_safetensors_is(&f->parts[i])) s = ob_err_set(err, OB_E_FORMAT, "it is no safetensors file");
        if (s == OB_OK) s = read_part(f, i, err);
        if (s != OB_OK) s = ob_err_prefix(err, s, "%.200s", ob_buf_str(&path));
        ob_buf_deinit(&path);
        OB_TRY(s);
    }
    return OB_OK;
}

ob_status ob_safetensors_load(ob_file *f, ob_err *err)
{
    memcpy(f->format, "safetensors", sizeof "safetensors");
    ob_status s = read_part(f, 0, err);
    if (s == OB_OK && f->path[0] && !(f->flags & OB_OPEN_ONE_PART)) s = read_shards(f, err);
    if (s == OB_OK && f->path[0]) s = ob_hf_laya_adopt(f, err);
    if (s == OB_OK && f->path[0]) s = ob_hf_bert_adopt(f, err);
    if (s == OB_OK && f->path[0]) s = ob_hf_decoder_adopt(f, err);
    return s == OB_OK ? ob_tensors_index(f, err) : s;
}
