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

static const char k_sum_suffix[] = ".in_sum2", k_count_suffix[] = ".counts", k_cov_suffix[] = ".in_cov";

typedef struct entry {
    char *name;
    int64_t k, n_mats;
    float *sum;    /* [n_mats][k] */
    float *count;  /* [n_mats] */
    int64_t block; /* columns of a block of products; 0: none */
    float *cov;    /* [n_mats][k][block]: row i holds x_i x_j for j in i's block, j >= i */
} entry;

struct ob_imatrix {
    entry *e;
    size_t n, cap;
    int64_t cov_block;
};

ob_status ob_imatrix_new(int64_t cov_block, ob_imatrix **out, ob_err *err)
{
    if (cov_block < 0 || cov_block % 32)
        return ob_err_set(err, OB_E_INVALID, "blocks of %lld columns: a multiple of 32 is needed", (long long)cov_block);
    *out = ob_calloc(1, sizeof **out);
    if (!*out) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for importance");
    (*out)->cov_block = cov_block;
    return OB_OK;
}

void ob_imatrix_free(ob_imatrix *im)
{
    if (!im) return;
    for (size_t i = 0; i < im->n; i++) {
        ob_free(im->e[i].name);
        ob_free(im->e[i].sum);
        ob_free(im->e[i].count);
        ob_free(im->e[i].cov);
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

static ob_status add_entry(ob_imatrix *im, const char *name, size_t name_len, int64_t k, int64_t n_mats, int64_t block,
                           entry **out, ob_err *err)
{
    size_t n_sum = 0, n_cov = 0;
    if (im->n == OB_MAX_TENSORS) return ob_err_set(err, OB_E_LIMIT, "importance of more than %u tensors", OB_MAX_TENSORS);
    if (im->n == im->cap) {
        const size_t cap = im->cap ? 2 * im->cap : 64;
        entry *more = ob_reallocarray(im->e, cap, sizeof *more);
        if (!more) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for importance");
        im->e = more;
        im->cap = cap;
    }
    entry *e = &im->e[im->n];
    *e = (entry){.name = ob_strndup(name, name_len), .k = k, .n_mats = n_mats, .block = OB_MIN(block, k)};
    if (ob_mul_size((size_t)k, (size_t)n_mats, &n_sum)) e->sum = ob_calloc(n_sum, sizeof *e->sum);
    e->count = ob_calloc((size_t)n_mats, sizeof *e->count);
    if (e->sum && e->block && ob_mul_size(n_sum, (size_t)e->block, &n_cov)) e->cov = ob_calloc(n_cov, sizeof *e->cov);
    im->n++; /* what was allocated is freed with the rest */
    if (!e->name || !e->sum || !e->count || (e->block && !e->cov)) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for importance");
    *out = e;
    return OB_OK;
}

/* Which clone is called is settled by the loader (an ifunc), in a function that ThreadSanitizer instruments
 * too: before its runtime can be called. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define WIDE __attribute__((target_clones("avx512f", "avx2,fma", "default")))
#else
#define WIDE
#endif

/* The upper triangles of the blocks += x x' of n <= COV_ROWS rows. */
enum { COV_ROWS = 8 };
WIDE static void add_products(entry *e, float *cov, const float *x, int64_t ldx, int64_t n)
{
    for (int64_t i = 0; i < e->k; i++) {
        const int64_t first = i / e->block * e->block, last = OB_MIN(first + e->block, e->k);
        float *c = cov + i * e->block - first, a[COV_ROWS];
        for (int64_t r = 0; r < n; r++) a[r] = x[r * ldx + i];
        if (n == COV_ROWS)
            for (int64_t j = i; j < last; j++)
                c[j] += ((a[0] * x[j] + a[1] * x[ldx + j]) + (a[2] * x[2 * ldx + j] + a[3] * x[3 * ldx + j])) +
                        ((a[4] * x[4 * ldx + j] + a[5] * x[5 * ldx + j]) + (a[6] * x[6 * ldx + j] + a[7] * x[7 * ldx + j]));
        else
            for (int64_t r = 0; r < n; r++)
                for (int64_t j = i; j < last; j++) c[j] += a[r] * x[r * ldx + j];
    }
}

ob_status ob_imatrix_add(ob_imatrix *im, const char *name, int64_t k, int64_t n_mats, int64_t mat, const float *x,
                         int64_t ldx, int64_t n_rows, ob_err *err)
{
    entry *e = find(im, name);
    if (!e) OB_TRY(add_entry(im, name, strlen(name), k, n_mats, im->cov_block, &e, err));
    if (e->k != k || e->n_mats != n_mats || mat < 0 || mat >= n_mats)
        return ob_err_set(err, OB_E_INVALID, "importance of %.200s: its shape changed", name);
    float *sum = e->sum + mat * k;
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t i = 0; i < k; i++) sum[i] += x[r * ldx + i] * x[r * ldx + i];
    for (int64_t r = 0; e->block && r < n_rows; r += COV_ROWS)
        add_products(e, e->cov + mat * k * e->block, x + r * ldx, ldx, OB_MIN(COV_ROWS, n_rows - r));
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

int64_t ob_imatrix_cov_block(const ob_imatrix *im, const char *name, int64_t k, int64_t n_mats)
{
    const entry *e = find(im, name);
    return e && e->k == k && e->n_mats == n_mats ? e->block : 0;
}

bool ob_imatrix_cov(const ob_imatrix *im, const char *name, int64_t mat, int64_t first, int64_t n, double *out)
{
    const entry *e = find(im, name);
    if (!e || e->count[mat] <= 0) return false;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i; j < n; j++)
            out[i * n + j] = out[j * n + i] =
                (double)e->cov[(mat * e->k + first + i) * e->block + first % e->block + j] / (double)e->count[mat];
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
    snprintf(name, sizeof name, "%.*s%s", (int)stem, t->name, k_cov_suffix);
    const ob_tensor *p = ob_file_find_tensor(f, name);
    if (p && (p->type != OB_F32 || p->ne[0] > t->ne[0] || p->ne[1] != t->ne[0] || p->ne[2] * p->ne[3] != n_mats))
        return ob_err_set(err, OB_E_FORMAT, "%s does not fit %s", p->name, t->name);
    OB_TRY(add_entry(im, t->name, stem, t->ne[0], n_mats, p ? p->ne[0] : 0, &e, err));
    memcpy(e->sum, t->data, t->n_bytes);
    memcpy(e->count, c->data, c->n_bytes);
    if (p) memcpy(e->cov, p->data, p->n_bytes);
    for (int64_t i = 0; p && i < t->ne[0] * n_mats * e->block; i++)
        if (!isfinite(e->cov[i])) return ob_err_set(err, OB_E_FORMAT, "%s holds a number that is not finite", p->name);
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
    OB_GOTO(ob_imatrix_new(0, &im, err));
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
    enum { NAME = OB_MAX_TENSOR_NAME_BYTES + 16, ALIGN = 32, PARTS = 3 };
    ob_tensor *t = ob_calloc(PARTS * im->n, sizeof *t);
    char *names = ob_calloc(PARTS * im->n, NAME);
    size_t n = 0;
    if (!t || !names) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory to write importance");
        goto out;
    }
    qsort(im->e, im->n, sizeof *im->e, by_name);
    for (size_t i = 0; i < PARTS * im->n; i++) {
        const entry *e = &im->e[i / PARTS];
        static const char *const suffix[PARTS] = {k_sum_suffix, k_count_suffix, k_cov_suffix};
        const float *const data[PARTS] = {e->sum, e->count, e->cov};
        const int64_t ne[PARTS][3] = {{e->k, e->n_mats, 1}, {1, e->n_mats, 1}, {e->block, e->k, e->n_mats}};
        const int part = (int)(i % PARTS);
        if (!data[part]) continue;
        char *name = names + n * NAME;
        snprintf(name, NAME, "%.*s%s", (int)OB_MAX_TENSOR_NAME_BYTES, e->name, suffix[part]);
        t[n++] = (ob_tensor){.name = name, .type = OB_F32, .n_dims = part == 2 ? 3 : 2,
                             .ne = {ne[part][0], ne[part][1], ne[part][2], 1}, .data = data[part],
                             .n_bytes = (size_t)(ne[part][0] * ne[part][1] * ne[part][2]) * sizeof(float)};
    }
    OB_GOTO(ob_gguf_write_head(o, meta, t, n, ALIGN, err));
    for (size_t i = 0; i < n; i++) {
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
