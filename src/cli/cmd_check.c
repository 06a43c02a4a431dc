/* 1bit check: does a model, or do all golden models, give the right answers on a device. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "cli/against.h"
#include "cli/load.h"
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

typedef struct result {
    const char *state; /* "ok", "WRONG", "not supported", "failed" */
    char arch[32], model[80], device[32], text[200];
    double max_diff, kld, argmax; /* argmax: share of positions with the same best token */
    double cosine;                /* of VECTORS, instead: the smallest */
    bool vectors;
    double atol;
    int32_t n;
} result;

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

/* log of the sum of exp, and the best index. */
static double log_sum(const float *x, int32_t n, int32_t *best)
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
    const double lg = log_sum(got, n, &best), lw = log_sum(want, n, &want_best);
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

static void check_golden(const char *path, const char *device, const golden *g, int n_threads, result *r)
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
    r->atol = g->atol;
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

static void print_result(ob_buf *o, const result *r, bool json, bool first)
{
    if (!json) {
        ob_buf_addf(o, "%-18s %-24s %-10s %-14s %s\n", r->arch, r->model, r->device, r->state, r->text);
        return;
    }
    ob_buf_addf(o, "%s{\"architecture\": \"%s\", \"model\": ", first ? "\n " : ",\n ", r->arch);
    ob_buf_add_json(o, r->model, strlen(r->model));
    ob_buf_addf(o, ", \"device\": \"%s\", \"state\": \"%s\"", r->device, r->state);
    if (r->n && isfinite(r->max_diff) && r->vectors)
        ob_buf_addf(o, ", \"vectors\": %d, \"max_diff\": %.6g, \"atol\": %.6g, \"cosine\": %.9g", r->n, r->max_diff,
                    r->atol, r->cosine);
    else if (r->n && isfinite(r->max_diff))
        ob_buf_addf(o, ", \"positions\": %d, \"max_diff\": %.6g, \"atol\": %.6g, \"kld\": %.6g, \"same_argmax\": %.6g",
                    r->n, r->max_diff, r->atol, r->kld, r->argmax);
    ob_buf_adds(o, ", \"text\": ");
    ob_buf_add_json(o, r->text, strlen(r->text));
    ob_buf_adds(o, "}");
}

/* Every device that is there, or the one asked for. */
static int list_devices(const char *asked, char ids[][32], int cap)
{
    int n = 0;
    if (asked && strcmp(asked, "auto") != 0) {
        snprintf(ids[0], 32, "%.31s", asked);
        return 1;
    }
    for (const ob_dev_api *const *api = ob_dev_registry(); *api; api++)
        for (int i = 0, k = (*api)->count(); i < k && n < cap; i++) {
            ob_dev_info info;
            memset(&info, 0, sizeof info);
            (*api)->probe(i, &info);
            if (!info.available || info.caps & OB_DEV_SOFT || !strcmp(info.kind, "null")) continue;
            snprintf(ids[n++], 32, "%.20s:%d", info.kind, i);
        }
    return n;
}

static ob_status check_folder(const ob_args *a, const char *dir, ob_buf *o, int *n_wrong, ob_err *err)
{
    ob_status s = OB_OK;
    char *names[MAX_GOLDEN], ids[16][32], path[1024];
    const bool json = ob_cli_flag(a, OB_OPT_JSON);
    int n = 0, n_rows = 0;
    const int n_dev = list_devices(ob_cli_str(a, OB_OPT_DEVICE), ids, (int)OB_COUNT(ids));
    OB_GOTO(list_models(dir, names, &n, err));
    for (int i = 0; i < n; i++) {
        golden g = {0};
        bool found;
        OB_GOTO(find_golden(dir, names[i], &g, &found, err));
        snprintf(path, sizeof path, "%s/%s.gguf", dir, names[i]);
        for (int d = 0; found && d < n_dev; d++) {
            result r = {.state = ""};
            snprintf(r.model, sizeof r.model, "%.79s", names[i]);
            check_golden(path, ids[d], &g, (int)ob_cli_int(a, OB_OPT_THREADS), &r);
            print_result(o, &r, json, n_rows++ == 0);
            *n_wrong += !strcmp(r.state, "WRONG") || !strcmp(r.state, "failed");
        }
        golden_free(&g);
    }
    if (n_rows == 0) s = ob_err_set(err, OB_E_NOT_FOUND, "%.200s has no model with reference logits beside it", dir);
out:
    for (int i = 0; i < n; i++) ob_free(names[i]);
    return s;
}

/* --- one real model ---------------------------------------------------------------------------- */

typedef struct question {
    const char *text, *answers; /* answers split by '|'; a beginning of the continuation, spaces apart */
} question;

static const question k_questions[] = {
    {"The capital of France is", "Paris"},
    {"The opposite of hot is", "cold"},
    {"1, 2, 3, 4, 5, 6,", "7"},
    {"Monday, Tuesday, Wednesday,", "Thursday"},
};

static bool begins_with_any(const char *text, const char *answers)
{
    text += strspn(text, " \t\r\n\"'*:");
    for (const char *p = answers; *p;) {
        const size_t n = strcspn(p, "|");
        if (!strncasecmp(text, p, n)) return true;
        p += n + (p[n] == '|');
    }
    return false;
}

/* The greedy continuation of a text, up to 8 tokens. */
static ob_status continue_text(ob_ctx *c, const char *text, ob_buf *out, ob_err *err)
{
    ob_status s = OB_OK;
    ob_seq *seq = NULL;
    int32_t *tok = NULL;
    size_t n = 0;
    ob_engine_info info;
    ob_ctx_describe(c, &info);
    OB_TRY(ob_tok_encode(ob_ctx_tok(c), text, strlen(text), OB_TOK_BOS, &tok, &n, err));
    OB_GOTO(ob_ctx_seq_new(c, &seq, err));
    ob_chunk chunk = {.seq = seq, .tok = tok, .n_tok = (int32_t)n, .n_out = 1};
    for (int i = 0; i < 8; i++) {
        const float *logits;
        OB_GOTO(ob_ctx_step(c, &chunk, 1, &logits, err));
        (void)log_sum(logits, info.n_vocab, &tok[0]);
        if (ob_tok_is_eog(ob_ctx_tok(c), tok[0])) break;
        OB_GOTO(ob_tok_decode(ob_ctx_tok(c), tok, 1, false, out, err));
        chunk.n_tok = 1;
    }
out:
    if (seq) ob_ctx_seq_free(c, seq);
    ob_free(tok);
    return s;
}

static ob_status ask(const ob_args *a, ob_ctx *c, ob_buf *o, int *n_wrong, ob_err *err)
{
    const bool json = ob_cli_flag(a, OB_OPT_JSON);
    int n_good = 0;
    for (size_t i = 0; i < OB_COUNT(k_questions); i++) {
        const question *q = &k_questions[i];
        ob_buf reply;
        ob_buf_init(&reply, 4096);
        ob_status s = continue_text(c, q->text, &reply, err);
        const bool good = s == OB_OK && begins_with_any(ob_buf_str(&reply), q->answers);
        if (s == OB_OK && json) {
            ob_buf_addf(o, "%s{\"question\": ", i ? ",\n " : "\n ");
            ob_buf_add_json(o, q->text, strlen(q->text));
            ob_buf_adds(o, ", \"reply\": ");
            ob_buf_add_json(o, ob_buf_str(&reply), strlen(ob_buf_str(&reply)));
            ob_buf_addf(o, ", \"state\": \"%s\"}", good ? "ok" : "missed");
        } else if (s == OB_OK) {
            ob_buf_addf(o, "%-6s ", good ? "ok" : "missed");
            ob_buf_add_json(o, q->text, strlen(q->text));
            ob_buf_adds(o, " -> ");
            ob_buf_add_json(o, ob_buf_str(&reply), strlen(ob_buf_str(&reply)));
            ob_buf_adds(o, "\n");
        }
        ob_buf_deinit(&reply);
        OB_TRY(s);
        n_good += good;
    }
    /* Small models miss one or two; one that is run wrong misses all. */
    *n_wrong = 2 * n_good < (int)OB_COUNT(k_questions);
    if (!json)
        ob_buf_addf(o, "%s: %d of %d as expected\n", *n_wrong ? "WRONG" : "ok", n_good, (int)OB_COUNT(k_questions));
    return OB_OK;
}

/* An encoder is asked which of two texts is nearer to a third. */
static const struct { const char *text, *near, *far; } k_triples[] = {
    {"A cat is sleeping on the sofa.", "A kitten naps on the couch.", "The central bank raised interest rates."},
    {"How do I sort a list in Python?", "Ordering the elements of a Python list", "A recipe for tomato soup"},
    {"The flight was delayed by a storm.", "Bad weather made the plane late.", "She learned to play the violin."},
    {"He bought a new car.", "He purchased an automobile.", "The museum is closed on Mondays."},
};

static ob_status embed_three(ob_encoder *e, const char *const text[3], float *v, ob_err *err)
{
    ob_encode_text t[3] = {0};
    ob_status s = OB_OK;
    for (int i = 0; i < 3 && s == OB_OK; i++) {
        int32_t *ids;
        size_t n;
        s = ob_tok_encode(ob_encoder_tok(e), text[i], strlen(text[i]), OB_TOK_BOS | OB_TOK_SPECIAL, &ids, &n, err);
        if (s == OB_OK) t[i] = (ob_encode_text){.tok = ids, .n_tok = (int32_t)n};
    }
    if (s == OB_OK) s = ob_encoder_run(e, t, 3, v, err);
    for (int i = 0; i < 3; i++) ob_free((void *)t[i].tok);
    return s;
}

static ob_status check_encoder(const ob_args *a, ob_engine_params *p, ob_buf *o, int *n_wrong, ob_err *err)
{
    const bool json = ob_cli_flag(a, OB_OPT_JSON);
    ob_status s = OB_OK;
    ob_encoder *e = NULL;
    float *v = NULL;
    int n_good = 0;
    p->embed = true;
    p->n_seq = 0;
    OB_GOTO(ob_encoder_new(p, &e, err));
    const int32_t n = ob_encoder_n_cols(e);
    v = ob_reallocarray(NULL, 3 * (size_t)n, sizeof *v);
    if (!v) OB_GOTO(ob_err_set(err, OB_E_NO_MEMORY, "no memory for vectors"));
    for (size_t i = 0; i < OB_COUNT(k_triples); i++) {
        const char *const text[3] = {k_triples[i].text, k_triples[i].near, k_triples[i].far};
        double near = 0, far = 0;
        OB_GOTO(embed_three(e, text, v, err));
        for (int k = 0; k < 3; k++) ob_normalize(v + k * n, n);
        for (int32_t c = 0; c < n; c++) {
            near += (double)v[c] * (double)v[n + c];
            far += (double)v[c] * (double)v[2 * n + c];
        }
        n_good += near > far;
        if (json)
            ob_buf_addf(o, "%s{\"text\": \"%s\", \"near\": %.6f, \"far\": %.6f, \"state\": \"%s\"}", i ? ",\n " : "\n ", text[0],
                        near, far, near > far ? "ok" : "missed");
        else
            ob_buf_addf(o, "%-6s \"%s\": %.3f to \"%s\", %.3f to \"%s\"\n", near > far ? "ok" : "missed", text[0], near, text[1],
                        far, text[2]);
    }
    *n_wrong = n_good + 1 < (int)OB_COUNT(k_triples);
    if (!json) ob_buf_addf(o, "%s: %d of %d as expected\n", *n_wrong ? "WRONG" : "ok", n_good, (int)OB_COUNT(k_triples));
out:
    ob_free(v);
    ob_encoder_free(e);
    return s;
}

static ob_engine_params usual_params(const ob_args *a, const char *path)
{
    ob_engine_params p;
    ob_engine_defaults(&p);
    p.model_path = path;
    p.device = ob_cli_str(a, OB_OPT_DEVICE);
    p.n_threads = (int32_t)ob_cli_int(a, OB_OPT_THREADS);
    p.n_seq = 1;
    p.n_ctx = 256;
    return p;
}

static ob_status check_model(const ob_args *a, const char *path, ob_buf *o, int *n_wrong, ob_err *err)
{
    ob_status s = OB_OK;
    ob_ctx *c = NULL;
    ob_engine_info info;
    ob_engine_params p = usual_params(a, path);
    OB_GOTO(ob_ctx_new(&p, &c, err));
    ob_ctx_describe(c, &info);
    if (!ob_cli_flag(a, OB_OPT_JSON)) ob_buf_addf(o, "%s %s on %s\n", info.arch, info.name, info.device.name);
    if (!info.causal) {
        ob_ctx_free(c);
        return check_encoder(a, &p, o, n_wrong, err);
    }
    OB_GOTO(ask(a, c, o, n_wrong, err));
out:
    ob_ctx_free(c);
    return s;
}

/* A model with reference logits beside it is compared with them. */
static ob_status check_one(const ob_args *a, const char *path, ob_buf *o, int *n_wrong, ob_err *err)
{
    char dir[1024], name[256];
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    const size_t len = strlen(base);
    golden g = {0};
    bool found = false;
    if (len > 5 && len < sizeof name && !strcmp(base + len - 5, ".gguf")) {
        snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
        snprintf(name, sizeof name, "%.*s", (int)(len - 5), base);
        OB_TRY(find_golden(dir, name, &g, &found, err));
    }
    if (!found) return check_model(a, path, o, n_wrong, err);
    result r = {.state = ""};
    snprintf(r.model, sizeof r.model, "%.79s", name);
    check_golden(path, ob_cli_str(a, OB_OPT_DEVICE), &g, (int)ob_cli_int(a, OB_OPT_THREADS), &r);
    print_result(o, &r, ob_cli_flag(a, OB_OPT_JSON), true);
    *n_wrong = strcmp(r.state, "ok") != 0;
    golden_free(&g);
    return OB_OK;
}

int ob_cmd_check(const ob_args *a)
{
    ob_err err;
    ob_buf o;
    char *path = NULL;
    int n_wrong = 0;
    ob_status s = OB_OK;
    const char *dir = ob_cli_str(a, OB_OPT_ALL_GOLDEN);
    const bool json = ob_cli_flag(a, OB_OPT_JSON);
    const char *against = ob_cli_str(a, OB_OPT_AGAINST);
    if (!dir == !a->n_pos) return ob_cli_usage_error(a->cmd_name, "give MODEL, or --all-golden DIR");
    if (dir && against) return ob_cli_usage_error(a->cmd_name, "--against compares one MODEL");
    ob_buf_init(&o, 4u << 20);
    if (json) ob_buf_adds(&o, "[");
    if (dir) {
        OB_GOTO(check_folder(a, dir, &o, &n_wrong, &err));
    } else {
        OB_GOTO(ob_cli_find_model(a->pos[0], &path, &err));
        const ob_engine_params p = usual_params(a, path);
        OB_GOTO(against ? ob_cli_check_against(&p, against, (int32_t)ob_cli_int(a, OB_OPT_N_TOKENS), json, &o, &n_wrong, &err)
                        : check_one(a, path, &o, &n_wrong, &err));
    }
    if (json) ob_buf_adds(&o, "\n]\n");
out:
    ob_free(path);
    int rc = s == OB_OK ? ob_cli_print(a, &o) : ob_cli_fail(a, &err);
    ob_buf_deinit(&o);
    return rc == OB_EXIT_OK && n_wrong ? OB_EXIT_FAILED : rc;
}
