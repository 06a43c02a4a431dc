/* Importance of the columns of a weight: the mean square of the activations they multiply. The file is
 * llama.cpp's GGUF form, which its quantiser reads as well as ours. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "convert/convert.h"
#include "fmt/gguf_write.h"

static const char k_sum_suffix[] = ".in_sum2", k_count_suffix[] = ".counts";

typedef struct entry {
    char *name;
    int64_t k, n_mats;
    float *sum;    /* [n_mats][k] */
    float *count;  /* [n_mats] */
} entry;

struct ob_imatrix {
    entry *e;
    size_t n, cap;
};

ob_status ob_imatrix_new(ob_imatrix **out, ob_err *err)
{
    *out = ob_calloc(1, sizeof **out);
    return *out ? OB_OK : ob_err_set(err, OB_E_NO_MEMORY, "no memory for importance");
}

void ob_imatrix_free(ob_imatrix *im)
{
    if (!im) return;
    for (size_t i = 0; i < im->n; i++) {
        ob_free(im->e[i].name);
        ob_free(im->e[i].sum);
        ob_free(im->e[i].count);
    }
    ob_free(im->e);
    ob_free(im);
}

size_t ob_imatrix_n(const ob_imatrix *im) { return im->n; }

static entry *find(const ob_imatrix *im, const char *name)
{
    for (size_t i = 0; i < im->n; i++)
        if (!strcmp(im->e[i].name, name)) return &im->e[i];
    return NULL;
}

static ob_status add_entry(ob_imatrix *im, const char *name, size_t name_len, int64_t k, int64_t n_mats, entry **out,
                           ob_err *err)
{
    size_t n_sum;
    if (im->n == OB_MAX_TENSORS) return ob_err_set(err, OB_E_LIMIT, "importance of more than %u tensors", OB_MAX_TENSORS);
    if (im->n == im->cap) {
        const size_t cap = im->cap ? 2 * im->cap : 64;
        entry *more = ob_reallocarray(im->e, cap, sizeof *more);
        if (!more) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for importance");
        im->e = more;
        im->cap = cap;
    }
    entry *e = &im->e[im->n];
    *e = (entry){.name = ob_strndup(name, name_len), .k = k, .n_mats = n_mats};
    if (ob_mul_size((size_t)k, (size_t)n_mats, &n_sum)) e->sum = ob_calloc(n_sum, sizeof *e->sum);
    e->count = ob_calloc((size_t)n_mats, sizeof *e->count);
    im->n++; /* what was allocated is freed with the rest */
    if (!e->name || !e->sum || !e->count) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for importance");
    *out = e;
    return OB_OK;
}

ob_status ob_imatrix_add(ob_imatrix *im, const char *name, int64_t k, int64_t n_mats, int64_t mat, const float *x,
                         int64_t ldx, int64_t n_rows, ob_err *err)
{
    entry *e = find(im, name);
    if (!e) OB_TRY(add_entry(im, name, strlen(name), k, n_mats, &e, err));
    if (e->k != k || e->n_mats != n_mats || mat < 0 || mat >= n_mats)
        return ob_err_set(err, OB_E_INVALID, "importance of %.200s: its shape changed", name);
    float *sum = e->sum + mat * k;
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t i = 0; i < k; i++) sum[i] += x[r * ldx + i] * x[r * ldx + i];
    e->count[mat] += (float)n_rows;
    return OB_OK;
}

bool ob_imatrix_get(const ob_imatrix *im, const char *name, int64_t k, int64_t n_mats, int64_t mat, float *out)
{
    const entry *e = find(im, name);
    if (!e || e->k != k || e->n_mats != n_mats || mat < 0 || mat >= n_mats) return false;
    const float *sum = e->sum + mat * k;
    double total = 0;
    for (int64_t i = 0; i < k; i++) total += (double)sum[i];
    const bool seen = e->count[mat] > 0 && total > 0;
    for (int64_t i = 0; i < k; i++) out[i] = seen ? sum[i] / e->count[mat] : 1.0f;
    return true;
}

/* ---- files --------------------------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *end, size_t *stem)
{
    const size_t n = strlen(s), m = strlen(end);
    *stem = n - OB_MIN(n, m);
    return n > m && !strcmp(s + n - m, end);
}

static bool all_valid(const float *x, int64_t n)
{
    bool ok = true;
    for (int64_t i = 0; i < n; i++) ok &= isfinite(x[i]) && x[i] >= 0;
    return ok;
}

static ob_status load_entry(ob_imatrix *im, const ob_file *f, const ob_tensor *t, size_t stem, ob_err *err)
{
    char name[OB_MAX_TENSOR_NAME_BYTES + sizeof k_count_suffix];
    entry *e;
    snprintf(name, sizeof name, "%.*s%s", (int)stem, t->name, k_count_suffix);
    const ob_tensor *c = ob_file_find_tensor(f, name);
    const int64_t n_mats = t->ne[1] * t->ne[2] * t->ne[3];
    if (!c || c->type != OB_F32 || t->type != OB_F32 || c->ne[0] * c->ne[1] * c->ne[2] * c->ne[3] != n_mats)
        return ob_err_set(err, OB_E_FORMAT, "%s has no counts that fit it", t->name);
    OB_TRY(add_entry(im, t->name, stem, t->ne[0], n_mats, &e, err));
    memcpy(e->sum, t->data, t->n_bytes);
    memcpy(e->count, c->data, c->n_bytes);
    if (!all_valid(e->sum, t->ne[0] * n_mats) || !all_valid(e->count, n_mats))
        return ob_err_set(err, OB_E_FORMAT, "%s holds a number that is no sum of squares", t->name);
    return OB_OK;
}

ob_status ob_imatrix_load(const char *path, ob_imatrix **out, ob_err *err)
{
    ob_file *f;
    ob_imatrix *im = NULL;
    ob_status s = ob_file_open(path, 0, &f, err);
    if (s != OB_OK) return ob_err_prefix(err, s, "importance matrix");
    OB_GOTO(ob_imatrix_new(&im, err));
    for (size_t i = 0; i < ob_file_n_tensors(f); i++) {
        size_t stem;
        const ob_tensor *t = ob_file_tensor(f, i);
        if (ends_with(t->name, k_sum_suffix, &stem)) OB_GOTO(load_entry(im, f, t, stem, err));
    }
    if (im->n == 0) s = ob_err_set(err, OB_E_FORMAT, "no tensors NAME%s in it", k_sum_suffix);
out:
    ob_file_close(f);
    if (s != OB_OK) {
        ob_imatrix_free(im);
        return ob_err_prefix(err, s, "importance matrix %.150s", path);
    }
    *out = im;
    return OB_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(((const entry *)a)->name, ((const entry *)b)->name); }

static ob_status write_entries(const ob_imatrix *im, ob_outfile *o, const ob_gguf_meta *meta, ob_err *err)
{
    ob_status s = OB_OK;
    enum { NAME = OB_MAX_TENSOR_NAME_BYTES + 16, ALIGN = 32 };
    ob_tensor *t = ob_calloc(2 * im->n, sizeof *t);
    char *names = ob_calloc(2 * im->n, NAME);
    if (!t || !names) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory to write importance");
        goto out;
    }
    qsort(im->e, im->n, sizeof *im->e, by_name);
    for (size_t i = 0; i < 2 * im->n; i++) {
        const entry *e = &im->e[i / 2];
        char *name = names + i * NAME;
        const int64_t k = i % 2 ? 1 : e->k;
        snprintf(name, NAME, "%.*s%s", (int)OB_MAX_TENSOR_NAME_BYTES, e->name, i % 2 ? k_count_suffix : k_sum_suffix);
        t[i] = (ob_tensor){.name = name, .type = OB_F32, .n_dims = 2, .ne = {k, e->n_mats, 1, 1},
                           .data = i % 2 ? e->count : e->sum,
                           .n_bytes = (size_t)(k * e->n_mats) * sizeof(float)};
    }
    OB_GOTO(ob_gguf_write_head(o, meta, t, 2 * im->n, ALIGN, err));
    for (size_t i = 0; i < 2 * im->n; i++) {
        OB_GOTO(ob_outfile_write(o, t[i].data, t[i].n_bytes, err));
        OB_GOTO(ob_outfile_pad(o, ALIGN, err));
    }
out:
    ob_free(t);
    ob_free(names);
    return s;
}

ob_status ob_imatrix_save(const ob_imatrix *im, const char *path, const char *dataset, uint32_t n_chunks,
                          uint32_t chunk_tok, ob_err *err)
{
    ob_outfile *o;
    ob_gguf_meta meta;
    OB_TRY(ob_outfile_new(path, &o, err));
    ob_gguf_meta_init(&meta);
    ob_gguf_meta_str(&meta, "general.type", "imatrix");
    ob_gguf_meta_strs(&meta, "imatrix.datasets", &dataset, 1);
    ob_gguf_meta_u32(&meta, "imatrix.chunk_count", n_chunks);
    ob_gguf_meta_u32(&meta, "imatrix.chunk_size", chunk_tok);
    ob_status s = write_entries(im, o, &meta, err);
    ob_gguf_meta_deinit(&meta);
    if (s == OB_OK) return ob_outfile_commit(o, err);
    ob_outfile_abort(o);
    return s;
}
