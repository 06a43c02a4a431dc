#include "cli/golden.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "engine/ctx.h"
#include "engine/vision.h"
#include "fmt/npz.h"

enum { MAX_GOLDEN = 256 };

/* What the reference numbers are of. */
typedef enum kind {
    LOGITS,  /* a row per token */
    VECTORS, /* an encoder's, of every token */
    CLASSES, /* scores of the texts at starts, lengths */
    MARKS,   /* scores at the marks, a row per token type */
} kind;

/* Reference numbers of one model file: of NAME.npz, or of BASE.npz's exact_TYPE for BASE-TYPE.gguf. */
typedef struct golden {
    kind kind;
    ob_npz_array tokens, want, starts, lengths, marks;
    ob_npz_array image; /* uint8 [h, w, 3], of a model that reads pictures (its tower is mmproj-NAME.gguf); else empty */
    int32_t image_at;   /* index of its first row among the tokens */
    double atol; /* 0: none stated (quantised files) */
} golden;

typedef ob_golden_result result;

static void golden_free(golden *g)
{
    ob_npz_array *all[] = {&g->tokens, &g->want, &g->starts, &g->lengths, &g->marks, &g->image};
    for (size_t i = 0; i < OB_COUNT(all); i++) ob_free(all[i]->data);
    memset(g, 0, sizeof *g);
}

static ob_status read_atol(const ob_npz *z, double *atol, ob_err *err)
{
    ob_npz_array a = {0};
    ob_status s = OB_OK;
    if (!ob_npz_has(z, "atol")) return OB_OK;
    if (ob_npz_get(z, "atol", "<f8", &a, err) == OB_OK) {
        if (a.n_items == 1) *atol = *(const double *)a.data;
    } else if ((s = ob_npz_get(z, "atol", "<f4", &a, err)) == OB_OK && a.n_items == 1) {
        *atol = (double)*(const float *)a.data;
    }
    ob_free(a.data);
    return s;
}

/* Whether the arrays fit each other; everything that is read later is inside them. */
static bool fits(const golden *g)
{
    const ob_npz_array *w = &g->want;
    if (g->tokens.n_dims != 1 || w->n_dims != 2 || g->tokens.shape[0] < 1 || w->shape[0] < 1 || w->shape[1] < 1) return false;
    if (g->kind == LOGITS || g->kind == VECTORS) return w->shape[0] == g->tokens.shape[0];
    if (g->kind == MARKS) {
        const int32_t *mark = g->marks.data;
        for (size_t i = 0; i < g->marks.n_items; i++)
            if (mark[i] < 0 || mark[i] >= g->tokens.shape[0]) return false;
        return g->marks.n_items == (size_t)w->shape[1];
    }
    if (g->starts.n_items != (size_t)w->shape[0] || g->lengths.n_items != (size_t)w->shape[0]) return false;
    for (int64_t i = 0; i < w->shape[0]; i++) {
        const int64_t at = ((const int32_t *)g->starts.data)[i], n = ((const int32_t *)g->lengths.data)[i];
        if (at < 0 || n < 1 || at + n > g->tokens.shape[0]) return false;
    }
    return true;
}

static ob_status read_image(const ob_npz *z, golden *g, ob_err *err)
{
    ob_npz_array before;
    if (!ob_npz_has(z, "image")) return OB_OK;
    OB_TRY(ob_npz_get(z, "image", "|u1", &g->image, err));
    if (g->image.n_dims != 3 || g->image.shape[2] != 3 || g->image.shape[0] > OB_MAX_IMAGE_SIDE ||
        g->image.shape[1] > OB_MAX_IMAGE_SIDE)
        return ob_err_set(err, OB_E_FORMAT, "the reference's image is no RGB picture");
    OB_TRY(ob_npz_get(z, "text_before", "<i4", &before, err));
    g->image_at = (int32_t)before.n_items;
    ob_free(before.data);
    return OB_OK;
}

/* *found false: there is a file, but no numbers of a text in it. */
static ob_status read_golden(const char *npz, const char *type, golden *g, bool *found, ob_err *err)
{
    ob_status s = OB_OK;
    ob_npz *z = NULL;
    char key[64] = "logits";
    *found = false;
    OB_TRY(ob_npz_open(npz, &z, err));
    if (type) snprintf(key, sizeof key, "exact_%.40s", type);
    else if (ob_npz_has(z, "embeddings")) g->kind = VECTORS, snprintf(key, sizeof key, "embeddings");
    else if (ob_npz_has(z, "starts") && ob_npz_has(z, "lengths")) g->kind = CLASSES;
    else if (ob_npz_has(z, "marks")) g->kind = MARKS;
    if (!ob_npz_has(z, "tokens") || !ob_npz_has(z, key)) goto out;
    OB_GOTO(read_image(z, g, err));
    OB_GOTO(ob_npz_get(z, "tokens", "<i4", &g->tokens, err));
    OB_GOTO(ob_npz_get(z, key, "<f4", &g->want, err));
    if (g->kind == CLASSES) {
        OB_GOTO(ob_npz_get(z, "starts", "<i4", &g->starts, err));
        OB_GOTO(ob_npz_get(z, "lengths", "<i4", &g->lengths, err));
    }
    if (g->kind == MARKS) OB_GOTO(ob_npz_get(z, "marks", "<i4", &g->marks, err));
    if (!type) OB_GOTO(read_atol(z, &g->atol, err));
    *found = fits(g);
out:
    ob_npz_close(z);
    if (s != OB_OK || !*found) golden_free(g);
    return s;
}

double ob_log_sum_exp(const float *x, int32_t n, int32_t *best)
{
    double sum = 0;
    *best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[*best]) *best = i;
    for (int32_t i = 0; i < n; i++) sum += exp((double)x[i] - (double)x[*best]);
    return (double)x[*best] + log(sum);
}

static void compare_row(result *r, const float *got, const float *want, int32_t n)
{
    int32_t best, want_best;
    const double lg = ob_log_sum_exp(got, n, &best), lw = ob_log_sum_exp(want, n, &want_best);
    for (int32_t i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - (double)want[i]);
        if (!(d <= r->max_diff)) r->max_diff = isnan(d) ? INFINITY : d;
        const double p = (double)want[i] - lw;
        r->kld += exp(p) * (p - ((double)got[i] - lg)) / r->n;
    }
    r->argmax += (double)(best == want_best) / r->n;
}

/* The reference's tokens, with the rows of its picture where they belong. */
static ob_status make_prompt(const golden *g, ob_vision *vision, ob_draft *d, ob_err *err)
{
    const size_t n = g->tokens.n_items;
    const int32_t *tok = g->tokens.data;
    if (!vision) return ob_draft_add_ids(d, tok, n, err);
    ob_picture *pic;
    const ob_image img = {.w = (int32_t)g->image.shape[1], .h = (int32_t)g->image.shape[0], .rgb = g->image.data};
    OB_TRY(ob_vision_run(vision, &img, &pic, err));
    const size_t at = (size_t)g->image_at, n_pic = (size_t)pic->n_tok;
    ob_status s = at > n || n_pic > n - at ? ob_err_set(err, OB_E_FORMAT, "the reference has no room for %d rows of a picture",
                                                       pic->n_tok)
                                           : ob_draft_add_ids(d, tok, at, err);
    if (s == OB_OK) s = ob_draft_add_picture(d, pic, err);
    ob_picture_unref(pic);
    return s == OB_OK ? ob_draft_add_ids(d, tok + at + n_pic, n - at - n_pic, err) : s;
}

/* All positions, in chunks of an odd size. */
static ob_status compare(ob_ctx *c, const golden *g, const ob_draft *d, result *r, ob_err *err)
{
    enum { CHUNK = 33 };
    ob_seq *s = NULL;
    const int32_t n_vocab = (int32_t)g->want.shape[1], *tok = d->ids, n_pics = (int32_t)d->n_pics;
    ob_engine_info info;
    ob_ctx_describe(c, &info);
    if (info.n_vocab != n_vocab)
        return ob_err_set(err, OB_E_FORMAT, "the model has %d tokens, the reference logits %d", info.n_vocab, n_vocab);
    OB_TRY(ob_ctx_seq_new(c, &s, err));
    r->n = (int32_t)g->tokens.shape[0];
    for (int32_t at = 0; at < r->n;) {
        const float *logits;
        const int32_t n = ob_ctx_chunk_size(c, s, d->pics, n_pics, OB_MIN(CHUNK, r->n - at), info.n_ubatch);
        const ob_chunk chunk = {.seq = s, .tok = tok + at, .n_tok = n, .n_out = n, .pics = d->pics, .n_pics = n_pics,
                                .prompt = true};
        ob_status st = ob_ctx_step(c, &chunk, 1, &logits, err);
        if (st != OB_OK) {
            ob_ctx_seq_free(c, s);
            return st;
        }
        for (int32_t i = 0; i < n; i++)
            compare_row(r, logits + (size_t)i * (size_t)n_vocab,
                        (const float *)g->want.data + (size_t)(at + i) * (size_t)n_vocab, n_vocab);
        at += n;
    }
    ob_ctx_seq_free(c, s);
    return OB_OK;
}

static void compare_vectors(result *r, const float *got, const float *want, int32_t n_cols)
{
    r->vectors = true;
    r->cosine = 1;
    for (int32_t i = 0; i < r->n; i++, got += n_cols, want += n_cols) {
        double ab = 0, aa = 0, bb = 0;
        for (int32_t c = 0; c < n_cols; c++) {
            const double d = fabs((double)got[c] - (double)want[c]);
            if (!(d <= r->max_diff)) r->max_diff = isnan(d) ? INFINITY : d;
            ab += (double)got[c] * (double)want[c];
            aa += (double)got[c] * (double)got[c];
            bb += (double)want[c] * (double)want[c];
        }
        r->cosine = OB_MIN(r->cosine, ab / sqrt(aa * bb));
    }
}

/* An encoder's texts, each whole in a step of its own. */
static ob_status compare_texts(ob_ctx *c, const golden *g, result *r, ob_err *err)
{
    const int32_t n_cols = (int32_t)g->want.shape[1], *tok = g->tokens.data;
    const int32_t n_texts = g->kind == VECTORS ? 1 : (int32_t)g->want.shape[0];
    r->n = (int32_t)g->want.shape[0];
    for (int32_t i = 0; i < n_texts; i++) {
        ob_chunk ch = {.tok = tok, .n_tok = (int32_t)g->tokens.shape[0]};
        if (g->kind == CLASSES) {
            ch.tok = tok + ((const int32_t *)g->starts.data)[i];
            ch.n_tok = ((const int32_t *)g->lengths.data)[i];
        } else if (g->kind == MARKS) {
            ch.marks = g->marks.data;
            ch.n_out = n_cols;
            ch.type = i;
        }
        const float *rows;
        const int64_t n_want = g->kind == VECTORS ? (int64_t)g->want.n_items : n_cols;
        if ((int64_t)ob_ctx_n_rows(c, &ch, 1) * ob_ctx_n_cols(c) != n_want)
            return ob_err_set(err, OB_E_FORMAT, "the model gives %d columns, the reference has %d", ob_ctx_n_cols(c), n_cols);
        OB_TRY(ob_ctx_seq_new(c, &ch.seq, err));
        const ob_status s = ob_ctx_step(c, &ch, 1, &rows, err);
        if (s == OB_OK && g->kind == VECTORS) compare_vectors(r, rows, g->want.data, n_cols);
        else if (s == OB_OK) compare_row(r, rows, (const float *)g->want.data + (size_t)i * (size_t)n_cols, n_cols);
        ob_ctx_seq_free(c, ch.seq);
        OB_TRY(s);
    }
    return OB_OK;
}

static void judge(result *r, const ob_err *err, ob_status s, bool exact)
{
    if (s != OB_OK) {
        r->state = s == OB_E_UNSUPPORTED ? "not supported" : "failed";
        snprintf(r->text, sizeof r->text, "%.190s", err->text);
        return;
    }
    /* A device that computes in f32 is held to the file's tolerance, but for single positions that rounding
     * can turn (the choice of an expert); others to what the distributions say. */
    const bool close = exact && r->atol > 0 && r->max_diff <= r->atol;
    if (r->vectors) {
        r->state = close || (isfinite(r->max_diff) && r->cosine >= 0.9999) ? "ok" : "WRONG";
        snprintf(r->text, sizeof r->text, "max %.1e%s  cosine %.7f", r->max_diff, close ? " (within tolerance)" : "", r->cosine);
        return;
    }
    r->state = close || (isfinite(r->max_diff) && r->kld <= 1e-3 && r->argmax >= 0.97) ? "ok" : "WRONG";
    snprintf(r->text, sizeof r->text, "max %.1e%s  KL %.1e  same best token %.1f %%", r->max_diff,
             close ? " (within tolerance)" : "", r->kld, 100 * r->argmax);
}

/* The tower beside a model, by its name. */
static ob_status open_tower(const char *path, ob_engine_params *p, ob_vision **out, ob_err *err)
{
    char tower[1100];
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    snprintf(tower, sizeof tower, "%.*smmproj-%s", (int)(base - path), path, base);
    OB_TRY(ob_vision_new(p, tower, 0, out, err));
    p->n_picture_tok = ob_vision_max_tok(*out);
    return OB_OK;
}

static void check_golden(const char *path, const char *name, const char *device, const golden *g, int n_threads, result *r)
{
    ob_err err;
    ob_ctx *c = NULL;
    ob_vision *vision = NULL;
    ob_draft draft = {0};
    ob_engine_params p;
    ob_engine_defaults(&p);
    p.model_path = path;
    p.device = device;
    p.n_seq = 1;
    p.n_ubatch = 64;
    p.n_threads = n_threads;
    p.exact = true;
    p.k_type = p.v_type = OB_F32;
    p.embed = g->kind == VECTORS;
    if (p.embed) p.pooling = OB_POOLING_NONE;
    *r = (result){.state = "", .atol = g->atol, .pictures = g->image.data != NULL};
    snprintf(r->model, sizeof r->model, "%.79s", name);
    bool exact = false;
    snprintf(r->device, sizeof r->device, "%.31s", device);
    ob_status s = g->image.data ? open_tower(path, &p, &vision, &err) : OB_OK;
    if (s == OB_OK) s = make_prompt(g, vision, &draft, &err);
    if (s == OB_OK) s = ob_ctx_new(&p, &c, &err);
    if (s == OB_OK) {
        ob_engine_info info;
        ob_ctx_describe(c, &info);
        snprintf(r->arch, sizeof r->arch, "%.31s", info.arch);
        exact = info.device.caps & OB_DEV_EXACT;
        s = g->kind == LOGITS ? compare(c, g, &draft, r, &err) : compare_texts(c, g, r, &err);
    }
    judge(r, &err, s, exact);
    ob_draft_deinit(&draft);
    ob_ctx_free(c);
    ob_vision_free(vision);
}

/* --- all golden models of a folder ------------------------------------------------------------- */

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static ob_status list_models(const char *dir, char **names, int *n, ob_err *err)
{
    DIR *d = opendir(dir);
    *n = 0;
    if (!d) return ob_err_set_errno(err, OB_E_IO, errno, "cannot open %.200s", dir);
    for (struct dirent *e; (e = readdir(d)) && *n < MAX_GOLDEN;) {
        const size_t len = strlen(e->d_name);
        if (len < 6 || strcmp(e->d_name + len - 5, ".gguf") != 0) continue;
        names[*n] = ob_strdup(e->d_name);
        if (!names[*n]) {
            closedir(d);
            return ob_err_set(err, OB_E_NO_MEMORY, "no memory for names");
        }
        names[(*n)++][len - 5] = 0;
    }
    closedir(d);
    qsort(names, (size_t)*n, sizeof *names, by_name);
    return OB_OK;
}

/* NAME.npz, or for BASE-TYPE the array exact_TYPE of BASE.npz. */
static ob_status find_golden(const char *dir, const char *name, golden *g, bool *found, ob_err *err)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.npz", dir, name);
    FILE *f = fopen(path, "rbe");
    if (f) {
        fclose(f);
        return read_golden(path, NULL, g, found, err);
    }
    const char *dash = strrchr(name, '-');
    *found = false;
    if (!dash) return OB_OK;
    snprintf(path, sizeof path, "%s/%.*s.npz", dir, (int)(dash - name), name);
    f = fopen(path, "rbe");
    if (!f) return OB_OK;
    fclose(f);
    return read_golden(path, dash + 1, g, found, err);
}

ob_status ob_golden_folder(const char *dir, const char *const *devices, int n_devices, int n_threads, ob_golden_fn fn, void *arg,
                           ob_err *err)
{
    ob_status s = OB_OK;
    char *names[MAX_GOLDEN], path[1024];
    int n = 0, n_rows = 0;
    OB_GOTO(list_models(dir, names, &n, err));
    for (int i = 0; i < n; i++) {
        golden g = {0};
        bool found;
        OB_GOTO(find_golden(dir, names[i], &g, &found, err));
        snprintf(path, sizeof path, "%s/%s.gguf", dir, names[i]);
        for (int d = 0; found && d < n_devices; d++, n_rows++) {
            result r;
            check_golden(path, names[i], devices[d], &g, n_threads, &r);
            fn(arg, &r);
        }
        golden_free(&g);
    }
    if (n_rows == 0) s = ob_err_set(err, OB_E_NOT_FOUND, "%.200s has no model with reference logits beside it", dir);
out:
    for (int i = 0; i < n; i++) ob_free(names[i]);
    return s;
}

ob_status ob_golden_file(const char *path, const char *device, int n_threads, ob_golden_result *out, bool *found, ob_err *err)
{
    char dir[1024], name[256];
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    const size_t len = strlen(base);
    golden g = {0};
    *found = false;
    if (len <= 5 || len >= sizeof name || strcmp(base + len - 5, ".gguf") != 0) return OB_OK;
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    snprintf(name, sizeof name, "%.*s", (int)(len - 5), base);
    OB_TRY(find_golden(dir, name, &g, found, err));
    if (*found) check_golden(path, name, device, &g, n_threads, out);
    golden_free(&g);
    return OB_OK;
}
