/* 1bit check: does a model, or do all golden models, give the right answers on a device. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "cli/against.h"
#include "cli/golden.h"
#include "cli/load.h"

static void print_result(ob_buf *o, const ob_golden_result *r, bool json, bool first)
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

typedef struct table {
    ob_buf *o;
    bool json;
    int n_rows, *n_wrong;
} table;

static void add_row(void *arg, const ob_golden_result *r)
{
    table *t = arg;
    print_result(t->o, r, t->json, t->n_rows++ == 0);
    *t->n_wrong += !strcmp(r->state, "WRONG") || !strcmp(r->state, "failed");
}

static ob_status check_folder(const ob_args *a, const char *dir, ob_buf *o, int *n_wrong, ob_err *err)
{
    char ids[16][32];
    const char *devices[16];
    const int n = list_devices(ob_cli_str(a, OB_OPT_DEVICE), ids, (int)OB_COUNT(ids));
    for (int i = 0; i < n; i++) devices[i] = ids[i];
    table t = {.o = o, .json = ob_cli_flag(a, OB_OPT_JSON), .n_wrong = n_wrong};
    return ob_golden_folder(dir, devices, n, (int)ob_cli_int(a, OB_OPT_THREADS), add_row, &t, err);
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

static int32_t best_of(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
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
        tok[0] = best_of(logits, info.n_vocab);
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
    p.exact = ob_cli_flag(a, OB_OPT_EXACT);
    if (p.exact) p.k_type = p.v_type = OB_F32;
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
    ob_golden_result r;
    bool found;
    OB_TRY(ob_golden_file(path, ob_cli_str(a, OB_OPT_DEVICE), (int)ob_cli_int(a, OB_OPT_THREADS), &r, &found, err));
    if (!found) return check_model(a, path, o, n_wrong, err);
    print_result(o, &r, ob_cli_flag(a, OB_OPT_JSON), true);
    *n_wrong = strcmp(r.state, "ok") != 0;
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
