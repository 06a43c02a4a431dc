/* The tensor directory under construction: checks that every format shares. */
#include "fmt/fmt_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "base/utf8.h"

static ob_shown show_name(const char *name) { return ob_show(name, strlen(name)); }

ob_status ob_tensors_add(ob_file *f, size_t n, ob_tensor **first, ob_err *err)
{
    ob_tensor *all = ob_reallocarray(f->tensors, f->n_tensors + n, sizeof *all);
    if (!all) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %zu tensors", n);
    f->tensors = all;
    *first = all + f->n_tensors;
    memset(*first, 0, n * sizeof **first);
    return OB_OK;
}

/* ---- one entry ------------------------------------------------------------------------------ */

ob_status ob_tensor_set_name(ob_file *f, ob_reader *r, ob_tensor *t, ob_str name)
{
    if (name.len == 0) return ob_read_fail(r, OB_E_FORMAT, "empty name");
    if (!ob_utf8_is_valid(name.data, name.len) || memchr(name.data, 0, name.len))
        return ob_read_fail(r, OB_E_FORMAT, "the name is not UTF-8 text");
    t->name = ob_arena_strndup(&f->names, name.data, name.len);
    if (!t->name) return ob_read_fail(r, OB_E_NO_MEMORY, "no memory for its name");
    r->name = name;
    return OB_OK;
}

ob_status ob_tensor_check_n_dims(const ob_reader *r, uint32_t n_dims)
{
    if (n_dims >= 1 && n_dims <= OB_MAX_DIMS) return OB_OK;
    return ob_read_fail(r, OB_E_FORMAT, "%" PRIu32 " dimensions (1 to %d)", n_dims, OB_MAX_DIMS);
}

ob_status ob_tensor_set_shape(const ob_reader *r, ob_tensor *t, uint32_t n_dims, const uint64_t *ne,
                              uint64_t *n_elems)
{
    t->n_dims = (int)n_dims;
    *n_elems = 1;
    for (uint32_t d = 0; d < OB_MAX_DIMS; d++) {
        uint64_t n = d < n_dims ? ne[d] : 1;
        if (n == 0 || n > INT64_MAX)
            return ob_read_fail(r, OB_E_FORMAT, "dimension %" PRIu32 " is %" PRIu64, d, n);
        if (!ob_mul_u64(*n_elems, n, n_elems) || *n_elems > INT64_MAX)
            return ob_read_fail(r, OB_E_FORMAT, "the number of elements overflows 63 bits");
        t->ne[d] = (int64_t)n;
    }
    return OB_OK;
}

ob_status ob_tensor_set_type(const ob_reader *r, ob_tensor *t, uint32_t type, uint64_t n_elems)
{
    const char *name = ob_fmt_type_name(type), *old = ob_fmt_removed_type_name(type);
    uint64_t n_bytes;
    if (!name)
        return ob_read_fail(r, OB_E_UNSUPPORTED, old ? "type %" PRIu32 " (%s, removed from GGUF)"
                                                     : "unknown type %" PRIu32 "%s",
                            type, old ? old : "");
    uint32_t block = ob_fmt_type_block(type);
    if (t->ne[0] % block != 0)
        return ob_read_fail(r, OB_E_FORMAT,
                            "rows of %" PRId64 " elements do not divide into %s blocks of %" PRIu32,
                            t->ne[0], name, block);
    if (!ob_fmt_type_bytes(type, n_elems, &n_bytes) || n_bytes > SIZE_MAX)
        return ob_read_fail(r, OB_E_FORMAT, "its size overflows");
    t->type = type;
    t->n_bytes = (size_t)n_bytes;
    return OB_OK;
}

ob_status ob_tensor_set_off(const ob_reader *r, ob_tensor *t, uint64_t off, uint32_t alignment)
{
    uint64_t end;
    if (off % alignment != 0)
        return ob_read_fail(r, OB_E_FORMAT,
                            "offset %" PRIu64 " is no multiple of the alignment %" PRIu32, off,
                            alignment);
    if (!ob_add_u64(off, t->n_bytes, &end))
        return ob_read_fail(r, OB_E_FORMAT, "offset %" PRIu64 " plus size overflows", off);
    t->file_off = off;
    return OB_OK;
}

/* ---- all entries of a part ------------------------------------------------------------------ */

/* A wrong offset and a file cut short look alike here: the text gives the numbers that tell them
 * apart. */
ob_status ob_tensors_place(const ob_file *f, const ob_part *p, ob_tensor *t, size_t n,
                           uint64_t data_start, ob_err *err)
{
    const ob_tensor *last = NULL;
    uint64_t end = 0, n_lost = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t to;
        if (!ob_add_u64(data_start, t[i].file_off, &t[i].file_off) ||
            !ob_add_u64(t[i].file_off, t[i].n_bytes, &to))
            return ob_err_set(err, OB_E_FORMAT, "tensor '%s': its offset overflows",
                              show_name(t[i].name).text);
        n_lost += to > p->len;
        if (to > end) end = to, last = &t[i];
        t[i].data = f->flags & OB_OPEN_NO_DATA || to > p->len ? NULL : p->data + t[i].file_off;
    }
    if (!last || end <= p->len) return OB_OK;
    return ob_err_set(err, OB_E_FORMAT,
                      "tensor '%s' ends at byte %" PRIu64 ", but the file has %zu bytes: %" PRIu64
                      " bytes are missing, %" PRIu64 " of %zu tensors are not whole (download cut "
                      "short?)",
                      show_name(last->name).text, end, p->len, end - p->len, n_lost, n);
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

static bool overlap(const extent *a, const extent *b, bool may_coincide)
{
    return a->end > b->off && !(may_coincide && a->off == b->off && a->end == b->end);
}

/* Nearly every file lists its tensors in the order of their bytes; only others pay for a sort. */
ob_status ob_tensors_check_overlap(const ob_tensor *t, size_t n, bool may_coincide, ob_err *err)
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
        if (overlap(&e[i - 1], &e[i], may_coincide))
            s = ob_err_set(err, OB_E_FORMAT, "tensors '%s' and '%s' overlap at byte %" PRIu64,
                           show_name(e[i - 1].name).text, show_name(e[i].name).text, e[i].off);
    ob_free(e);
    return s;
}

ob_status ob_tensors_index(ob_file *f, ob_err *err)
{
    OB_TRY(ob_names_init(&f->tensor_index, f->n_tensors, err));
    for (size_t i = 0; i < f->n_tensors; i++) {
        const char *name = f->tensors[i].name;
        size_t number = ob_names_add(&f->tensor_index, (ob_str){name, strlen(name)});
        if (number != i)
            return ob_err_set(err, OB_E_FORMAT, "tensors %zu and %zu have the same name '%s'",
                              number, i, show_name(name).text);
    }
    return OB_OK;
}
