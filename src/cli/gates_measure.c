/* What `1bit gates` runs. A model is opened on both devices only where both must run by turns; else on one after the
 * other, so that large ones fit. */
#include "cli/gates_measure.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/math.h"
#include "cli/golden.h"
#include "engine/ctx.h"

enum { MAX_ROUNDS = 1000, PROMPT_TOK = 16, TEXT_TOK = 192, ANSWER_TOK = 12 };
static const double NEAR_ENOUGH = 0.9, KL_LIMIT = 1e-3, SAME_LIMIT = 0.97; /* the latter two as `1bit check` has them */

static const char k_text[] =
    "The lighthouse at the end of the harbour had been built by a company that no longer existed, and its lamp was tended by a "
    "woman who wrote down the weather every morning in a book with numbered pages. On page 212 she noted that the wind had turned "
    "to the north, that three boats had come in before noon, and that the price of salt was four and a half crowns. A program "
    "that reads such a book must know what a page is: for (int i = 0; i < n; i++) sum += page[i].boats; and it must not mind that "
    "some lines are in other languages, wie diese hier, ou celle-ci. The tide tables for the following week were pinned to the "
    "door. At high water the stones below the stairs are covered, and at low water one can walk from the lighthouse to the old "
    "quay without wet feet. In the evening she lit the lamp, counted the ships, and went on with her letter to her brother, who "
    "was building bridges in a country where rivers froze for five months of every year.";

static void say(const ob_gates_run *g, const char *what, const char *name)
{
    if (!g->quiet) fprintf(stderr, "gates: %s: %s\n", what, name);
}

static ob_status open_ctx(const ob_gates_run *g, const char *path, const char *device, int32_t n_ctx, bool exact, ob_ctx **out,
                          ob_err *err)
{
    ob_engine_params p;
    ob_engine_defaults(&p);
    p.model_path = path;
    p.device = device;
    p.n_ctx = n_ctx;
    p.n_seq = 1;
    p.n_threads = g->n_threads;
    p.exact = exact;
    if (exact) p.k_type = p.v_type = OB_F32;
    OB_TRY(ob_ctx_new(&p, out, err));
    ob_engine_info info;
    ob_ctx_describe(*out, &info);
    if (info.output == OB_OUTPUT_LOGITS) return OB_OK;
    ob_ctx_free(*out);
    *out = NULL;
    return ob_err_set(err, OB_E_UNSUPPORTED, "an encoder: it generates nothing");
}

static void set_row(ob_gate_row *w, ob_gate_state state, const char *what, const char *text)
{
    w->state = state;
    snprintf(w->text, sizeof w->text, "%s%s%.200s", what, *what && *text ? ": " : "", text);
}

/* A row for every model; false with the row's text set when it is not here. */
static ob_status next_row(ob_gate *gate, const ob_gates_model *m, ob_gate_row **w, bool *here, ob_err *err)
{
    OB_TRY(ob_gate_add_row(gate, m->name, w, err));
    *here = m->path != NULL;
    if (!*here) set_row(*w, OB_GATE_UNMEASURED, "", "not in the library");
    return OB_OK;
}

static void note_none(const ob_gates_run *g, ob_gate *gate)
{
    int n = 0;
    for (int i = 0; i < g->n_models; i++) n += g->models[i].path != NULL;
    if (!n) snprintf(gate->text, sizeof gate->text, "no model to measure with is here: 1bit pull, or --models");
}

/* ------------------------------------------------------------------ (a) decode */

static int by_value(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Sorts v. */
static ob_gate_speed spread(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return (ob_gate_speed){.median = n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]), .min = v[0], .max = v[n - 1]};
}

/* n tokens one by one behind a short prompt. */
static ob_status generate(ob_ctx *c, int32_t n, double *tok_per_s, ob_err *err)
{
    ob_status s = OB_OK;
    ob_seq *seq;
    int32_t tok[PROMPT_TOK];
    ob_engine_info info;
    ob_ctx_describe(c, &info);
    OB_TRY(ob_ctx_seq_new(c, &seq, err));
    for (int32_t i = 0; i < PROMPT_TOK; i++) tok[i] = (int32_t)((i * 7919LL + 13) % info.n_vocab);
    ob_chunk ch = {.seq = seq, .tok = tok, .n_tok = PROMPT_TOK, .n_out = 1, .prompt = true};
    OB_GOTO(ob_ctx_step(c, &ch, 1, NULL, err));
    const double t0 = ob_now_ms();
    for (int32_t i = 0; i < n; i++) {
        ch = (ob_chunk){.seq = seq, .tok = &tok[i % PROMPT_TOK], .n_tok = 1, .n_out = 1};
        OB_GOTO(ob_ctx_step(c, &ch, 1, NULL, err));
    }
    *tok_per_s = n / (ob_now_ms() - t0) * 1e3;
out:
    ob_ctx_seq_free(c, seq);
    return s;
}

/* A GPU that stood idle while the other device had its turn lowers its clocks: it gets some time to raise them. */
static ob_status generate_warm(ob_ctx *c, int32_t n, double *tok_per_s, ob_err *err)
{
    ob_engine_info info;
    ob_ctx_describe(c, &info);
    const double least_ms = info.device.caps & OB_DEV_GPU ? 500 : 0, t0 = ob_now_ms();
    while (ob_now_ms() - t0 < least_ms) OB_TRY(generate(c, n, tok_per_s, err));
    return generate(c, n, tok_per_s, err);
}

/* Rounds by turns, who begins by turns as well, after one that does not count. The ratio is the median of the rounds'
 * own: what disturbs a round disturbs both. */
static ob_status measure_pair(const ob_gates_run *g, ob_ctx *candidate, ob_ctx *baseline, ob_gate_row *w, ob_err *err)
{
    static double c[MAX_ROUNDS], b[MAX_ROUNDS], ratio[MAX_ROUNDS];
    double x;
    OB_TRY(generate_warm(candidate, g->n_gen, &x, err));
    OB_TRY(generate_warm(baseline, g->n_gen, &x, err));
    for (int i = 0; i < g->n_rounds; i++) {
        if (i % 2) OB_TRY(generate_warm(candidate, g->n_gen, &c[i], err));
        OB_TRY(generate_warm(baseline, g->n_gen, &b[i], err));
        if (i % 2 == 0) OB_TRY(generate_warm(candidate, g->n_gen, &c[i], err));
        ratio[i] = c[i] / b[i];
    }
    w->has_speed = true;
    w->ratio = spread(ratio, g->n_rounds).median;
    w->candidate = spread(c, g->n_rounds);
    w->baseline = spread(b, g->n_rounds);
    w->state = w->ratio >= NEAR_ENOUGH ? OB_GATE_CLOSED : OB_GATE_OPEN;
    snprintf(w->text, sizeof w->text, "%.1f (%.1f to %.1f) against %.1f (%.1f to %.1f) tok/s: %.1f %%", w->candidate.median,
             w->candidate.min, w->candidate.max, w->baseline.median, w->baseline.min, w->baseline.max, 100 * w->ratio);
    return OB_OK;
}

static void decode_model(const ob_gates_run *g, const char *path, ob_gate_row *w)
{
    ob_err err;
    ob_ctx *candidate = NULL, *baseline = NULL;
    const int32_t n_ctx = PROMPT_TOK + g->n_gen;
    ob_status s = open_ctx(g, path, g->baseline, n_ctx, false, &baseline, &err);
    if (s != OB_OK) {
        set_row(w, OB_GATE_UNMEASURED, "the baseline", err.text);
        return;
    }
    s = open_ctx(g, path, g->candidate, n_ctx, false, &candidate, &err);
    if (s == OB_E_NO_MEMORY) set_row(w, OB_GATE_UNMEASURED, "there is no memory for it on both devices at once", err.text);
    else if (s != OB_OK) set_row(w, OB_GATE_OPEN, "the candidate", err.text);
    else if (measure_pair(g, candidate, baseline, w, &err) != OB_OK)
        set_row(w, OB_GATE_OPEN, ob_ctx_faulted(baseline) ? "the baseline failed" : "the candidate failed", err.text);
    ob_ctx_free(candidate);
    ob_ctx_free(baseline);
}

ob_status ob_gates_measure_decode(const ob_gates_run *g, ob_err *err)
{
    ob_gate *gate = ob_gates_add(g->report, 'a', "decode", "decode within 10 % of the baseline");
    const bool soft = g->report->candidate.soft || g->report->baseline.soft;
    if (soft) {
        snprintf(gate->text, sizeof gate->text, "software device: how fast %s is says nothing",
                 g->report->candidate.soft ? g->report->candidate.id : g->report->baseline.id);
        return OB_OK;
    }
    for (int i = 0; i < g->n_models; i++) {
        ob_gate_row *w;
        bool here;
        OB_TRY(next_row(gate, &g->models[i], &w, &here, err));
        if (!here) continue;
        say(g, "decode", g->models[i].name);
        decode_model(g, g->models[i].path, w);
    }
    note_none(g, gate);
    ob_gate_settle(gate);
    return OB_OK;
}

/* ------------------------------------------------------------------ (b) architectures, (c) vision */

typedef struct golden_run {
    const ob_gates_run *g;
    ob_gate *text, *pictures;
    ob_golden_result baseline;
    bool has_baseline;
    ob_status status;
    ob_err *err;
} golden_run;

static bool is_ok(const ob_golden_result *r) { return strcmp(r->state, "ok") == 0; }

/* The results come by twos: the baseline's, then the candidate's. */
static void take_golden(void *arg, const ob_golden_result *r)
{
    golden_run *x = arg;
    if (!x->has_baseline) {
        x->baseline = *r;
        x->has_baseline = true;
        return;
    }
    x->has_baseline = false;
    char name[sizeof((ob_gate_row *)0)->name];
    ob_gate_row *w;
    if (x->status != OB_OK) return;
    if (r->arch[0] && strcmp(r->arch, r->model)) snprintf(name, sizeof name, "%.70s (%.20s)", r->model, r->arch);
    else snprintf(name, sizeof name, "%.90s", r->model);
    x->status = ob_gate_add_row(r->pictures ? x->pictures : x->text, name, &w, x->err);
    if (x->status != OB_OK) return;
    say(x->g, r->pictures ? "picture" : "architecture", name);
    if (is_ok(r)) set_row(w, OB_GATE_CLOSED, "", r->text);
    else if (is_ok(&x->baseline)) set_row(w, OB_GATE_OPEN, r->state, r->text);
    else set_row(w, OB_GATE_BESIDE, "the baseline fails as well", x->baseline.text);
}

ob_status ob_gates_measure_golden(const ob_gates_run *g, ob_err *err)
{
    ob_gate text = {0}, pictures = {0};
    const char *devices[2] = {g->baseline, g->candidate};
    golden_run x = {.g = g, .text = &text, .pictures = &pictures, .err = err};
    ob_err why = {0};
    ob_status s = OB_OK;
    if (g->golden) {
        s = ob_golden_folder(g->golden, devices, 2, g->n_threads, take_golden, &x, &why);
        if (s == OB_OK) {
            why.text[0] = 0;
            OB_GOTO(x.status);
        }
    } else {
        ob_err_set(&why, OB_E_NOT_FOUND, "the reference numbers are not here: --golden DIR (tests/data/golden of the sources)");
    }
    ob_gate *gate = ob_gates_add(g->report, 'b', "architectures", "every architecture of the baseline");
    gate->rows = text.rows;
    gate->n_rows = text.n_rows;
    text.rows = NULL;
    snprintf(gate->text, sizeof gate->text, "%.250s", why.text);
    ob_gate_settle(gate);
    gate = ob_gates_add(g->report, 'c', "vision", "pictures");
    gate->rows = pictures.rows;
    gate->n_rows = pictures.n_rows;
    pictures.rows = NULL;
    if (!gate->n_rows) snprintf(gate->text, sizeof gate->text, "%.250s", why.text[0] ? why.text : "no reference numbers of pictures are here");
    ob_gate_settle(gate);
    s = OB_OK;
out:
    ob_free(text.rows);
    ob_free(pictures.rows);
    return s;
}

/* ------------------------------------------------------------------ (b) real files */

/* Logits behind each of the text's first tokens: [*n_rows][*n_cols], *taken*. */
static ob_status run_text(const ob_gates_run *g, const char *path, const char *device, float **out, int32_t *n_rows,
                          int32_t *n_cols, ob_err *err)
{
    ob_status s = OB_OK;
    ob_ctx *c = NULL;
    ob_seq *seq = NULL;
    int32_t *tok = NULL;
    size_t n = 0;
    const float *rows;
    *out = NULL;
    OB_TRY(open_ctx(g, path, device, TEXT_TOK, true, &c, err));
    OB_GOTO(ob_tok_encode(ob_ctx_tok(c), k_text, strlen(k_text), OB_TOK_BOS, &tok, &n, err));
    *n_rows = (int32_t)OB_MIN(n, (size_t)TEXT_TOK);
    *n_cols = ob_ctx_n_cols(c);
    *out = ob_reallocarray(NULL, (size_t)*n_rows, (size_t)*n_cols * sizeof **out);
    if (!*out) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for %d rows of logits", *n_rows);
        goto out;
    }
    OB_GOTO(ob_ctx_seq_new(c, &seq, err));
    for (int32_t at = 0; at < *n_rows;) {
        const int32_t k = OB_MIN(*n_rows - at, 64);
        const ob_chunk ch = {.seq = seq, .tok = tok + at, .n_tok = k, .n_out = k, .prompt = true};
        OB_GOTO(ob_ctx_step(c, &ch, 1, &rows, err));
        memcpy(*out + (size_t)at * (size_t)*n_cols, rows, (size_t)k * (size_t)*n_cols * sizeof *rows);
        at += k;
    }
out:
    if (s != OB_OK) {
        ob_free(*out);
        *out = NULL;
    }
    if (seq) ob_ctx_seq_free(c, seq);
    ob_free(tok);
    ob_ctx_free(c);
    return s;
}

static void compare_rows(const float *want, const float *got, int32_t n_rows, int32_t n, ob_gate_row *w)
{
    double kl = 0, same = 0;
    for (int32_t r = 0; r < n_rows; r++, want += n, got += n) {
        int32_t a, b;
        const double lw = ob_log_sum_exp(want, n, &a), lg = ob_log_sum_exp(got, n, &b);
        for (int32_t i = 0; i < n; i++) {
            const double p = (double)want[i] - lw;
            kl += exp(p) * (p - ((double)got[i] - lg)) / n_rows;
        }
        same += (double)(a == b) / n_rows;
    }
    w->state = kl <= KL_LIMIT && same >= SAME_LIMIT ? OB_GATE_CLOSED : OB_GATE_OPEN; /* NaN is open */
    snprintf(w->text, sizeof w->text, "KL %.1e, same best token %.1f %%, of %d positions", kl, 100 * same, n_rows);
}

static void compare_file(const ob_gates_run *g, const char *path, ob_gate_row *w)
{
    ob_err err;
    float *want = NULL, *got = NULL;
    int32_t n_rows, n_cols, more_rows, more_cols;
    if (run_text(g, path, g->baseline, &want, &n_rows, &n_cols, &err) != OB_OK) set_row(w, OB_GATE_BESIDE, "the baseline", err.text);
    else if (run_text(g, path, g->candidate, &got, &more_rows, &more_cols, &err) != OB_OK) set_row(w, OB_GATE_OPEN, "the candidate", err.text);
    else compare_rows(want, got, n_rows, n_cols, w);
    ob_free(want);
    ob_free(got);
}

ob_status ob_gates_measure_files(const ob_gates_run *g, ob_err *err)
{
    ob_gate *gate = ob_gates_add(g->report, 'b', "files", "the same distributions from model files");
    for (int i = 0; i < g->n_models; i++) {
        ob_gate_row *w;
        bool here;
        OB_TRY(next_row(gate, &g->models[i], &w, &here, err));
        if (!here) continue;
        say(g, "distributions", g->models[i].name);
        compare_file(g, g->models[i].path, w);
    }
    note_none(g, gate);
    ob_gate_settle(gate);
    return OB_OK;
}

/* ------------------------------------------------------------------ (b) a needle in a long prompt */

static const char k_needle[] = "7341";

/* Records with a number each, one of them asked for; the one before it is shown first, as an example. */
static void write_records(int n_records, ob_buf *b)
{
    const int wanted = OB_MAX(1, n_records * 203 / 320);
    ob_buf_adds(b, "The register of the archive, one record a line:\n");
    for (int i = 1; i <= n_records; i++)
        ob_buf_addf(b, "Record %d: the key number is %d.\n", i, i == wanted ? 7341 : 1000 + (i * 3571) % 6000);
    ob_buf_addf(b, "End of the register. Record %d says: the key number is", wanted);
}

static ob_status continue_prompt(ob_ctx *c, const int32_t *tok, int32_t n, ob_buf *out, ob_err *err)
{
    ob_status s = OB_OK;
    ob_seq *seq;
    ob_engine_info info;
    int32_t next = 0;
    const float *row;
    ob_ctx_describe(c, &info);
    OB_TRY(ob_ctx_seq_new(c, &seq, err));
    for (int32_t at = 0; at < n + ANSWER_TOK;) {
        const int32_t k = at < n ? ob_ctx_chunk_size(c, seq, NULL, 0, OB_MIN(n - at, info.n_ubatch), info.n_ubatch) : 1;
        const ob_chunk ch = {.seq = seq, .tok = at < n ? tok + at : &next, .n_tok = k, .n_out = at + k >= n, .prompt = at < n};
        OB_GOTO(ob_ctx_step(c, &ch, 1, &row, err));
        at += k;
        if (at < n) continue;
        (void)ob_log_sum_exp(row, info.n_vocab, &next);
        if (ob_tok_is_eog(ob_ctx_tok(c), next)) break;
        OB_GOTO(ob_tok_decode(ob_ctx_tok(c), &next, 1, false, out, err));
    }
out:
    ob_ctx_seq_free(c, seq);
    return s;
}

typedef struct found {
    ob_status status;
    bool yes;
    int32_t n_tok;
    char text[64];
} found;

static found find_needle(const ob_gates_run *g, const char *path, const char *device, const ob_buf *prompt, ob_err *err)
{
    found f = {.status = OB_OK};
    ob_ctx *c = NULL;
    int32_t *tok = NULL;
    size_t n = 0;
    ob_buf answer;
    ob_engine_info info = {0};
    ob_buf_init(&answer, 1 << 16);
    f.status = open_ctx(g, path, device, 64, false, &c, err); /* for its tokens */
    if (f.status == OB_OK) f.status = ob_tok_encode(ob_ctx_tok(c), ob_buf_str(prompt), prompt->len, OB_TOK_BOS, &tok, &n, err);
    if (f.status == OB_OK) ob_ctx_describe(c, &info);
    ob_ctx_free(c);
    c = NULL;
    f.n_tok = (int32_t)n;
    if (f.status == OB_OK && f.n_tok + ANSWER_TOK > info.n_ctx_train)
        f.status = ob_err_set(err, OB_E_CONTEXT_LENGTH, "%d tokens, its context has %d", f.n_tok, info.n_ctx_train);
    if (f.status == OB_OK) f.status = open_ctx(g, path, device, f.n_tok + ANSWER_TOK, false, &c, err);
    if (f.status == OB_OK) f.status = continue_prompt(c, tok, f.n_tok, &answer, err);
    f.yes = strstr(ob_buf_str(&answer), k_needle) != NULL;
    snprintf(f.text, sizeof f.text, "%.60s", ob_buf_str(&answer));
    f.text[strcspn(f.text, "\r\n")] = 0;
    ob_free(tok);
    ob_ctx_free(c);
    ob_buf_deinit(&answer);
    return f;
}

static void needle_model(const ob_gates_run *g, const char *path, const ob_buf *prompt, ob_gate_row *w)
{
    ob_err err;
    const found base = find_needle(g, path, g->baseline, prompt, &err);
    if (base.status == OB_E_CONTEXT_LENGTH) set_row(w, OB_GATE_BESIDE, "too long for it", err.text);
    else if (base.status != OB_OK) set_row(w, OB_GATE_BESIDE, "the baseline", err.text);
    else if (!base.yes) set_row(w, OB_GATE_BESIDE, "the baseline does not find it either, it says", base.text);
    if (base.status != OB_OK || !base.yes) return;
    const found cand = find_needle(g, path, g->candidate, prompt, &err);
    if (cand.status != OB_OK) set_row(w, OB_GATE_OPEN, "the candidate", err.text);
    else if (!cand.yes) set_row(w, OB_GATE_OPEN, "not found, the candidate says", cand.text);
    else snprintf(w->text, sizeof w->text, "found in %d tokens by both", cand.n_tok);
}

ob_status ob_gates_measure_needle(const ob_gates_run *g, ob_err *err)
{
    ob_gate *gate = ob_gates_add(g->report, 'b', "needle", "a record found in a long prompt");
    ob_buf prompt;
    ob_status s = OB_OK;
    ob_buf_init(&prompt, 1 << 20);
    if (!g->n_records) {
        snprintf(gate->text, sizeof gate->text, "left out (--records 0)");
        return OB_OK;
    }
    write_records(g->n_records, &prompt);
    OB_GOTO(ob_buf_status(&prompt, err));
    for (int i = 0; i < g->n_models; i++) {
        ob_gate_row *w;
        bool here;
        OB_GOTO(next_row(gate, &g->models[i], &w, &here, err));
        if (!here) continue;
        say(g, "needle", g->models[i].name);
        needle_model(g, g->models[i].path, &prompt, w);
    }
    note_none(g, gate);
    ob_gate_settle(gate);
out:
    ob_buf_deinit(&prompt);
    return s;
}

/* ------------------------------------------------------------------ (c) */

enum { N_BATCH = 4, BATCH_TOK = 24, BATCH_CTX = 384 };

typedef struct reply {
    pthread_mutex_t *lock;
    pthread_cond_t *changed;
    int32_t ids[BATCH_TOK];
    int n;
    bool done;
    ob_finish finish;
    ob_err err;
} reply;

static void on_event(void *arg, const ob_event *ev)
{
    reply *r = arg;
    pthread_mutex_lock(r->lock);
    if (ev->id >= 0 && r->n < BATCH_TOK) r->ids[r->n++] = ev->id;
    r->done = ev->done;
    r->finish = ev->finish;
    if (ev->done) r->err = ev->err;
    pthread_cond_signal(r->changed);
    pthread_mutex_unlock(r->lock);
}

/* Replies to prompts [first, first + n), together; each is the text from another place on, or half as much of it twice. */
static ob_status ask(ob_engine *e, reply *out, int first, int n, bool twice, ob_err *err)
{
    ob_status s = OB_OK;
    ob_request *requests[N_BATCH] = {NULL};
    for (int i = first; i < first + n && s == OB_OK; i++) {
        int32_t *tok = NULL;
        size_t n_tok = 0;
        ob_request_params p;
        ob_request_defaults(&p);
        const char *text = k_text + 61 * i;
        s = ob_tok_encode(ob_engine_tok(e), text, strlen(text) / (size_t)(i + 1), OB_TOK_BOS, &tok, &n_tok, err);
        p.prompt = tok;
        p.n_prompt = OB_MIN(n_tok, (size_t)BATCH_CTX / 2 / (size_t)(i + 1)); /* of a small vocabulary there are many */
        if (s == OB_OK && twice) {
            p.n_prompt &= ~(size_t)1;
            memcpy(tok + p.n_prompt / 2, tok, p.n_prompt / 2 * sizeof *tok);
        }
        /* One of few tokens at each place: a model of random weights repeats itself no other way. */
        ob_logit_bias bias[8];
        for (int k = 0; k < 8; k++) bias[k] = (ob_logit_bias){.id = 16 + 9 * k, .bias = 1000};
        if (twice) {
            p.sampler.bias = bias;
            p.sampler.n_bias = OB_COUNT(bias);
        }
        p.max_tokens = BATCH_TOK;
        p.ignore_eos = true;
        p.cache_prompt = false;
        p.sampler.temperature = 0;
        p.on_event = on_event;
        p.arg = &out[i];
        if (s == OB_OK) s = ob_engine_submit(e, &p, &requests[i], err);
        ob_free(tok);
    }
    for (int i = first; i < first + n; i++) {
        if (!requests[i]) continue;
        pthread_mutex_lock(out[i].lock);
        while (!out[i].done) pthread_cond_wait(out[i].changed, out[i].lock);
        pthread_mutex_unlock(out[i].lock);
        ob_request_free(requests[i]);
        if (s == OB_OK && out[i].finish == OB_FINISH_ERROR) {
            *err = out[i].err;
            s = err->code;
        }
    }
    return s;
}

typedef ob_status (*compare_fn)(const ob_gates_run *g, const char *path, ob_gate_row *w, ob_err *err);

static int count_same(const reply *a, const reply *b)
{
    int n = 0;
    for (int i = 0; i < N_BATCH; i++) n += a[i].n == b[i].n && !memcmp(a[i].ids, b[i].ids, (size_t)a[i].n * sizeof(int32_t));
    return n;
}

static void batch_params(const ob_gates_run *g, const char *path, ob_engine_params *p)
{
    ob_engine_defaults(p);
    p->model_path = path;
    p->device = g->candidate;
    p->n_ctx = BATCH_CTX;
    p->n_seq = N_BATCH;
    p->n_threads = g->n_threads;
}

static ob_status compare_batch(const ob_gates_run *g, const char *path, ob_gate_row *w, ob_err *err)
{
    ob_status s = OB_OK;
    ob_engine *e = NULL;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
    reply alone[N_BATCH] = {0}, together[N_BATCH] = {0};
    ob_engine_params p;
    batch_params(g, path, &p);
    for (int i = 0; i < N_BATCH; i++) alone[i] = together[i] = (reply){.lock = &lock, .changed = &changed};
    OB_TRY(ob_engine_new(&p, &e, err));
    for (int i = 0; i < N_BATCH; i++) OB_GOTO(ask(e, alone, i, 1, false, err));
    OB_GOTO(ask(e, together, 0, N_BATCH, false, err));
    const int n_same = count_same(alone, together);
    w->state = n_same == N_BATCH ? OB_GATE_CLOSED : OB_GATE_OPEN;
    snprintf(w->text, sizeof w->text, "%d of %d texts of %d tokens are the same alone and together", n_same, (int)N_BATCH, (int)BATCH_TOK);
out:
    ob_engine_free(e);
    return s;
}

/* The same prompts with and without drafts; they repeat themselves, so that there is something to draft. */
static ob_status compare_speculation(const ob_gates_run *g, const char *path, ob_gate_row *w, ob_err *err)
{
    ob_status s = OB_OK;
    ob_engine *e = NULL;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
    reply replies[2][N_BATCH] = {0};
    ob_engine_stats st = {0};
    ob_engine_params p;
    batch_params(g, path, &p);
    for (int on = 0; on < 2; on++) {
        p.speculate = on ? OB_SPECULATE_ON : OB_SPECULATE_OFF;
        for (int i = 0; i < N_BATCH; i++) replies[on][i] = (reply){.lock = &lock, .changed = &changed};
        OB_GOTO(ob_engine_new(&p, &e, err));
        for (int i = 0; i < N_BATCH; i++) OB_GOTO(ask(e, replies[on], i, 1, true, err));
        ob_engine_get_stats(e, &st);
        ob_engine_free(e);
        e = NULL;
    }
    const int n_same = count_same(replies[0], replies[1]);
    w->state = n_same == N_BATCH && st.n_drafted ? OB_GATE_CLOSED : OB_GATE_OPEN;
    snprintf(w->text, sizeof w->text, "%d of %d texts of %d tokens are the same with drafts, of which %d of %d came true", n_same,
             (int)N_BATCH, (int)BATCH_TOK, (int)st.n_draft_right, (int)st.n_drafted);
out:
    ob_engine_free(e);
    return s;
}

static void compare_texts(const ob_gates_run *g, compare_fn compare, const char *what, const char *name, const char *path,
                         ob_gate_row *w)
{
    ob_err why;
    say(g, what, name);
    if (compare(g, path, w, &why) != OB_OK) set_row(w, OB_GATE_OPEN, "the candidate", why.text);
}

/* A gate about --models, and about the files [n] of reference models, which stand in where there are none. */
static ob_status measure_texts(const ob_gates_run *g, ob_gate *gate, compare_fn compare, const char *what,
                               const char *const *golden, size_t n, ob_err *err)
{
    for (int i = 0; i < g->n_models; i++) {
        ob_gate_row *w;
        bool here;
        OB_TRY(next_row(gate, &g->models[i], &w, &here, err));
        if (here) compare_texts(g, compare, what, g->models[i].name, g->models[i].path, w);
    }
    for (size_t i = 0; g->golden && i < n; i++) {
        char path[1024];
        ob_gate_row *w;
        snprintf(path, sizeof path, "%s/%s.gguf", g->golden, golden[i]);
        if (access(path, R_OK)) continue;
        OB_TRY(ob_gate_add_row(gate, golden[i], &w, err));
        compare_texts(g, compare, what, golden[i], path, w);
    }
    if (!gate->n_rows) note_none(g, gate);
    ob_gate_settle(gate);
    return OB_OK;
}

ob_status ob_gates_measure_batch(const ob_gates_run *g, ob_err *err)
{
    static const char *const golden[] = {"llama", "qwen35moe"};
    return measure_texts(g, ob_gates_add(g->report, 'c', "sequences", "several sequences per batch, with equal text"),
                         compare_batch, "several at once", golden, OB_COUNT(golden), err);
}

ob_status ob_gates_measure_speculation(const ob_gates_run *g, ob_err *err)
{
    static const char *const golden[] = {"llama", "qwen35moe"};
    return measure_texts(g, ob_gates_add(g->report, 'c', "speculation", "speculative decoding, with equal text"),
                         compare_speculation, "speculation", golden, OB_COUNT(golden), err);
}
