/* 1bit check: does a model, or do all golden models, give the right answers on a device. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/math.h"
#include "cli/load.h"
#include "fmt/npz.h"

enum { MAX_GOLDEN = 256 };

/* Reference logits of one model file: of NAME.npz, or of BASE.npz's exact_TYPE for BASE-TYPE.gguf. */
typedef struct golden {
    ob_npz_array tokens, logits;
    double atol; /* 0: none stated (quantised files) */
} golden;

typedef struct result {
    const char *state; /* "ok", "WRONG", "not supported", "failed" */
    char arch[32], model[80], device[32], text[200];
    double max_diff, kld, argmax; /* argmax: share of positions with the same best token */
    double atol;
    int32_t n;
} result;

static void golden_free(golden *g)
{
    ob_free(g->tokens.data);
    ob_free(g->logits.data);
    memset(g, 0, sizeof *g);
}

/* *found false: there is a file, but no logits of a text in it. */
static ob_status read_golden(const char *npz, const char *type, golden *g, bool *found, ob_err *err)
{
    ob_status s = OB_OK;
    ob_npz *z = NULL;
    char key[64] = "logits";
    ob_npz_array a = {0};
    *found = false;
    OB_TRY(ob_npz_open(npz, &z, err));
    if (type) snprintf(key, sizeof key, "exact_%.40s", type);
    if (!ob_npz_has(z, "tokens") || !ob_npz_has(z, key) || ob_npz_has(z, "image")) goto out;
    OB_GOTO(ob_npz_get(z, "tokens", "<i4", &g->tokens, err));
    OB_GOTO(ob_npz_get(z, key, "<f4", &g->logits, err));
    if (ob_npz_has(z, "atol") && !type) {
        if (ob_npz_get(z, "atol", "<f8", &a, err) == OB_OK) {
            if (a.n_items == 1) g->atol = *(const double *)a.data;
        } else {
            OB_GOTO(ob_npz_get(z, "atol", "<f4", &a, err));
            if (a.n_items == 1) g->atol = (double)*(const float *)a.data;
        }
    }
    /* Classifiers have logits too, but not one row per token. */
    *found = g->tokens.n_dims == 1 && g->logits.n_dims == 2 && g->logits.shape[0] == g->tokens.shape[0] &&
             g->tokens.shape[0] > 0 && g->logits.shape[1] > 0;
out:
    ob_free(a.data);
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

/* All positions, in chunks of an odd size. */
static ob_status compare(ob_ctx *c, const golden *g, result *r, ob_err *err)
{
    enum { CHUNK = 33 };
    ob_seq *s = NULL;
    const int32_t n_vocab = (int32_t)g->logits.shape[1], *tok = g->tokens.data;
    ob_engine_info info;
    ob_ctx_describe(c, &info);
    if (info.n_vocab != n_vocab)
        return ob_err_set(err, OB_E_FORMAT, "the model has %d tokens, the reference logits %d", info.n_vocab, n_vocab);
    OB_TRY(ob_ctx_seq_new(c, &s, err));
    r->n = (int32_t)g->tokens.shape[0];
    for (int32_t at = 0; at < r->n;) {
        const float *logits;
        const int32_t n = OB_MIN(CHUNK, r->n - at);
        const ob_chunk chunk = {.seq = s, .tok = tok + at, .n_tok = n, .n_out = n};
        ob_status st = ob_ctx_step(c, &chunk, 1, &logits, err);
        if (st != OB_OK) {
            ob_ctx_seq_free(c, s);
            return st;
        }
        for (int32_t i = 0; i < n; i++)
            compare_row(r, logits + (size_t)i * (size_t)n_vocab,
                        (const float *)g->logits.data + (size_t)(at + i) * (size_t)n_vocab, n_vocab);
        at += n;
    }
    ob_ctx_seq_free(c, s);
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
    r->state = close || (isfinite(r->max_diff) && r->kld <= 1e-3 && r->argmax >= 0.97) ? "ok" : "WRONG";
    snprintf(r->text, sizeof r->text, "max %.1e%s  KL %.1e  same best token %.1f %%", r->max_diff,
             close ? " (within tolerance)" : "", r->kld, 100 * r->argmax);
}

static void check_golden(const char *path, const char *device, const golden *g, int n_threads, result *r)
{
    ob_err err;
    ob_ctx *c = NULL;
    ob_engine_params p;
    ob_engine_defaults(&p);
    p.model_path = path;
    p.device = device;
    p.n_seq = 1;
    p.n_ubatch = 64;
    p.n_threads = n_threads;
    p.exact = true;
    p.k_type = p.v_type = OB_F32;
    r->atol = g->atol;
    bool exact = false;
    snprintf(r->device, sizeof r->device, "%.31s", device);
    ob_status s = ob_ctx_new(&p, &c, &err);
    if (s == OB_OK) {
        ob_engine_info info;
        ob_ctx_describe(c, &info);
        snprintf(r->arch, sizeof r->arch, "%.31s", info.arch);
        exact = info.device.caps & OB_DEV_EXACT;
        s = compare(c, g, r, &err);
    }
    judge(r, &err, s, exact);
    ob_ctx_free(c);
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
    if (r->n && isfinite(r->max_diff))
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

static ob_status check_model(const ob_args *a, const char *path, ob_buf *o, int *n_wrong, ob_err *err)
{
    ob_status s = OB_OK;
    ob_ctx *c = NULL;
    ob_engine_info info;
    ob_engine_params p;
    ob_engine_defaults(&p);
    p.model_path = path;
    p.device = ob_cli_str(a, OB_OPT_DEVICE);
    p.n_threads = (int32_t)ob_cli_int(a, OB_OPT_THREADS);
    p.n_seq = 1;
    p.n_ctx = 256;
    OB_GOTO(ob_ctx_new(&p, &c, err));
    ob_ctx_describe(c, &info);
    if (!info.causal) {
        s = ob_err_set(err, OB_E_UNSUPPORTED, "%.200s is an encoder: there is nothing to ask it", path);
        goto out;
    }
    if (!ob_cli_flag(a, OB_OPT_JSON)) ob_buf_addf(o, "%s %s on %s\n", info.arch, info.name, info.device.name);
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
    if (!dir == !a->n_pos) return ob_cli_usage_error(a->cmd_name, "give MODEL, or --all-golden DIR");
    ob_buf_init(&o, 4u << 20);
    if (json) ob_buf_adds(&o, "[");
    if (dir) {
        OB_GOTO(check_folder(a, dir, &o, &n_wrong, &err));
    } else {
        OB_GOTO(ob_cli_find_model(a->pos[0], &path, &err));
        OB_GOTO(check_one(a, path, &o, &n_wrong, &err));
    }
    if (json) ob_buf_adds(&o, "\n]\n");
out:
    ob_free(path);
    int rc = s == OB_OK ? ob_cli_print(a, &o) : ob_cli_fail(a, &err);
    ob_buf_deinit(&o);
    return rc == OB_EXIT_OK && n_wrong ? OB_EXIT_FAILED : rc;
}
