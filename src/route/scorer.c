/* From a question and a conversation to a decision.
 *
 * Laya (its published layout): [CLS] "<type> question: <instructions>" [SEP], [MASK] " label: text" for each
 * option (48 tokens at most each), [SEP], the conversation cut off on the right, [SEP]; the score of an option
 * is read at its [MASK]. Instructions and options together take max_head_tokens at most: instructions are cut to
 * what the options leave, and options that leave less than 16 are cut first.
 *
 * Classifier: <s>, each message's text with </s> behind; of more than decision.max_tokens the first
 * decision.head_tokens and the last of the rest, since the last request decides and the first words say what
 * it is about.
 */
#include "route/scorer.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/math.h"

enum { OPTION_TOKENS = 48, DEFAULT_HEAD_TOKENS = 192, MAX_TURNS = 16384 };

struct ob_scorer {
    ob_encoder *enc;
    bool laya;
    char arch[32];
    int32_t max_tok;              /* of a whole sequence */
    int32_t head_tok;             /* Laya: of question and options; classifier: kept from the start */
    double temperature;           /* of a classifier */
    int32_t n_class;
    int32_t column[OB_MAX_OPTIONS]; /* classifier: output of each option of ob_question_classes */
};

struct ob_score_job {
    ob_encode_job *job;
    ob_encode_text text;
    int32_t *ids;
    int32_t marks[OB_MAX_OPTIONS];
    const ob_scorer *scorer;
    int32_t n;
    double temperature, t0;
    void (*on_done)(void *arg, ob_status s, const ob_err *err, const ob_decision *d);
    void *arg;
};

/* ------------------------------------------------------------------ loading */

static const ob_kv *key(const ob_scorer *s, const char *suffix)
{
    return ob_file_find_kvf(ob_encoder_file(s->enc), "%s.decision.%s", s->arch, suffix);
}

static int32_t key_i32(const ob_scorer *s, const char *suffix, int32_t otherwise, int32_t least)
{
    int64_t v;
    return ob_kv_i64(key(s, suffix), &v) && v >= least && v <= INT32_MAX ? (int32_t)v : otherwise;
}

static bool str_is(ob_str a, const char *b) { return a.len == strlen(b) && !memcmp(a.data, b, a.len); }

static ob_status load_classifier(ob_scorer *s, ob_err *err)
{
    const ob_question *q = ob_question_classes();
    const ob_kv *labels = ob_file_find_kvf(ob_encoder_file(s->enc), "%s.classifier.output_labels", s->arch);
    if (!labels || s->n_class != q->n_options)
        return ob_err_set(err, OB_E_UNSUPPORTED, "a classifier for routing has the output_labels code, prose and short");
    for (int32_t o = 0; o < q->n_options; o++) {
        s->column[o] = -1;
        for (uint64_t i = 0; i < labels->n; i++) {
            ob_str label;
            if (ob_kv_elem_str(labels, i, &label) && str_is(label, q->options[o].label)) s->column[o] = (int32_t)i;
        }
        if (s->column[o] < 0 || s->column[o] >= s->n_class)
            return ob_err_set(err, OB_E_UNSUPPORTED, "the classifier has no output for the class %s", q->options[o].label);
    }
    s->max_tok = OB_MIN(s->max_tok, key_i32(s, "max_tokens", s->max_tok, 8));
    s->head_tok = OB_MIN(s->max_tok / 2, key_i32(s, "head_tokens", s->max_tok / 3, 0));
    if (!ob_kv_f64(key(s, "temperature.choice"), &s->temperature)) s->temperature = 1;
    return OB_OK;
}

static ob_status load(ob_scorer *s, ob_err *err)
{
    ob_engine_info info;
    ob_encoder_describe(s->enc, &info);
    snprintf(s->arch, sizeof s->arch, "%s", info.arch);
    s->max_tok = info.n_ctx;
    s->n_class = info.n_class;
    ob_str type = {0};
    s->laya = info.output == OB_OUTPUT_MARKS;
    if (!s->laya && !(ob_kv_str(key(s, "type"), &type) && str_is(type, "classes")))
        return ob_err_set(err, OB_E_UNSUPPORTED, "model %s has no decision head: routing needs Laya (modern-bert with "
                          "decision.* keys, or its safetensors folder) or a classifier with decision.type = classes",
                          info.name);
    if (!s->laya) return load_classifier(s, err);
    const ob_tok *tok = ob_encoder_tok(s->enc);
    if (ob_tok_mask(tok) < 0 || ob_tok_bos(tok) < 0 || ob_tok_sep(tok) < 0)
        return ob_err_set(err, OB_E_FORMAT, "the vocabulary of a Laya model needs [CLS], [SEP] and [MASK]");
    s->head_tok = key_i32(s, "max_head_tokens", DEFAULT_HEAD_TOKENS, 1);
    if (s->head_tok < 16) s->head_tok = DEFAULT_HEAD_TOKENS; /* a file that leaves it at a dummy */
    s->head_tok = OB_MIN(s->head_tok, s->max_tok - 2);
    return OB_OK;
}

ob_status ob_scorer_new(const ob_engine_params *p, ob_scorer **out, ob_err *err)
{
    ob_status s = OB_OK;
    ob_scorer *sc = ob_calloc(1, sizeof *sc);
    if (!sc) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the scorer");
    OB_GOTO(ob_encoder_new(p, &sc->enc, err));
    OB_GOTO(load(sc, err));
    *out = sc;
    return OB_OK;
out:
    ob_scorer_free(sc);
    return s;
}

void ob_scorer_free(ob_scorer *s)
{
    if (!s) return;
    ob_encoder_free(s->enc);
    ob_free(s);
}

const ob_encoder *ob_scorer_encoder(const ob_scorer *s) { return s->enc; }
bool ob_scorer_is_classifier(const ob_scorer *s) { return !s->laya; }

/* ------------------------------------------------------------------ sequences */

typedef struct ids {
    int32_t *p;
    int32_t n, cap;
    ob_status status;
} ids;

static void put(ids *l, const int32_t *p, size_t n)
{
    if (n > (size_t)(INT32_MAX / 2 - l->n)) l->status = OB_E_LIMIT;
    if (l->status != OB_OK) return;
    if (l->n + (int32_t)n > l->cap) {
        const int32_t cap = OB_MAX(2 * l->cap, l->n + (int32_t)n + 64);
        int32_t *more = ob_reallocarray(l->p, (size_t)cap, sizeof *more);
        if (!more) {
            l->status = OB_E_NO_MEMORY;
            return;
        }
        l->p = more;
        l->cap = cap;
    }
    if (n) memcpy(l->p + l->n, p, n * sizeof *p);
    l->n += (int32_t)n;
}

static void put_id(ids *l, int32_t id) { put(l, &id, 1); }

/* At most `most` tokens of a text; the text never becomes control tokens. */
static ob_status put_text(const ob_scorer *s, ids *l, const char *text, size_t len, int32_t most, ob_err *err)
{
    int32_t *t;
    size_t n;
    OB_TRY(ob_tok_encode(ob_encoder_tok(s->enc), text, len, 0, &t, &n, err));
    put(l, t, OB_MIN(n, (size_t)OB_MAX(most, 0)));
    ob_free(t);
    return OB_OK;
}

static ob_status laya_options(const ob_scorer *s, const ob_question *q, ids *l, int32_t *marks, ob_err *err)
{
    ob_status st = OB_OK;
    ob_buf b;
    ob_buf_init(&b, 1 << 20);
    for (int32_t i = 0; st == OB_OK && i < q->n_options; i++) {
        const ob_qoption *o = &q->options[i];
        ob_buf_clear(&b);
        ob_buf_addf(&b, o->text ? " %s: %s" : " %s", o->label, o->text ? o->text : "");
        st = ob_buf_status(&b, err);
        if (st != OB_OK) break;
        marks[i] = l->n;
        put_id(l, ob_tok_mask(ob_encoder_tok(s->enc)));
        st = put_text(s, l, b.data, b.len, OPTION_TOKENS, err);
    }
    ob_buf_deinit(&b);
    return st;
}

/* Options that leave no room for the instructions are all cut to the same length, [MASK] included. */
static void squeeze_options(const ob_scorer *s, int32_t n_options, ids *l, int32_t *marks)
{
    const int32_t most = OB_MAX((s->head_tok - 16) / n_options, 4), end = l->n;
    int32_t to = 0;
    for (int32_t i = 0; i < n_options; i++) {
        const int32_t from = marks[i], n = OB_MIN((i + 1 < n_options ? marks[i + 1] : end) - from, most);
        memmove(l->p + to, l->p + from, (size_t)n * sizeof *l->p);
        marks[i] = to;
        to += n;
    }
    l->n = to;
}

static ob_status laya_tokens(const ob_scorer *sc, const ob_question *q, const ob_turns *t, ids *l, int32_t *marks,
                             ob_err *err)
{
    static const char *const types[] = {"choice", "score", "noul"};
    const ob_tok *tok = ob_encoder_tok(sc->enc);
    ids options = {0};
    ob_status s = OB_OK;
    ob_buf b;
    ob_buf_init(&b, OB_MAX_TOK_TEXT_BYTES);
    OB_GOTO(laya_options(sc, q, &options, marks, err));
    if (sc->head_tok - options.n < 16) squeeze_options(sc, q->n_options, &options, marks);
    const int32_t room = OB_MAX(sc->head_tok - options.n, 8);
    if (options.n + room + 4 > sc->max_tok) {
        s = ob_err_set(err, OB_E_INVALID, "the question's options take %d tokens of %d", options.n, sc->max_tok);
        goto out;
    }
    put_id(l, ob_tok_bos(tok));
    ob_buf_addf(&b, "%s question: %s", types[q->type], q->instructions);
    OB_GOTO(ob_buf_status(&b, err));
    OB_GOTO(put_text(sc, l, b.data, b.len, room, err));
    put_id(l, ob_tok_sep(tok));
    for (int32_t i = 0; i < q->n_options; i++) marks[i] += l->n;
    put(l, options.p, (size_t)options.n);
    put_id(l, ob_tok_sep(tok));
    ob_buf_clear(&b);
    for (int32_t i = 0; i < t->n; i++) {
        if (i) ob_buf_addc(&b, '\n');
        ob_buf_add(&b, t->texts[i].data, t->texts[i].len);
    }
    OB_GOTO(ob_buf_status(&b, err));
    OB_GOTO(put_text(sc, l, ob_buf_str(&b), b.len, sc->max_tok - l->n - 1, err));
    put_id(l, ob_tok_sep(tok));
    if (options.status != OB_OK) l->status = options.status;
out:
    ob_free(options.p);
    ob_buf_deinit(&b);
    return s;
}

/* A question of a classifier is one whose options are its classes, in any order. */
static ob_status classifier_tokens(const ob_scorer *s, const ob_question *q, const ob_turns *t, ids *l, ob_err *err)
{
    const ob_question *mine = ob_question_classes();
    bool same = q->type == OB_QUESTION_CHOICE && q->n_options == mine->n_options;
    for (int32_t i = 0; same && i < q->n_options; i++) same = !strcmp(q->options[i].label, mine->options[i].label);
    if (!same)
        return ob_err_set(err, OB_E_UNSUPPORTED, "this scorer only tells code, prose and short apart; other questions "
                          "need a Laya model");
    const ob_tok *tok = ob_encoder_tok(s->enc);
    put_id(l, ob_tok_bos(tok));
    for (int32_t i = 0; i < t->n; i++) {
        OB_TRY(put_text(s, l, t->texts[i].data, t->texts[i].len, INT32_MAX, err));
        put_id(l, ob_tok_eos(tok));
    }
    if (l->status != OB_OK || l->n <= s->max_tok) return OB_OK;
    const int32_t tail = s->max_tok - s->head_tok;
    memmove(l->p + s->head_tok, l->p + l->n - tail, (size_t)tail * sizeof *l->p);
    l->n = s->max_tok;
    return OB_OK;
}

ob_status ob_scorer_tokens(const ob_scorer *s, const ob_question *q, const ob_turns *t, int32_t **out, int32_t *n_ids,
                           int32_t *marks, ob_err *err)
{
    ids l = {0};
    *out = NULL;
    if (t->n < 1 || t->n > MAX_TURNS) return ob_err_set(err, OB_E_INVALID, "there is no text to decide about");
    ob_status st = s->laya ? laya_tokens(s, q, t, &l, marks, err) : classifier_tokens(s, q, t, &l, err);
    if (st == OB_OK && l.status != OB_OK) st = ob_err_set(err, l.status, "the conversation is too large to decide about");
    if (st != OB_OK) {
        ob_free(l.p);
        return st;
    }
    *out = l.p;
    *n_ids = l.n;
    return OB_OK;
}

/* ------------------------------------------------------------------ decisions */

void ob_decision_make(ob_decision *d, const float *logits, int32_t n, double temperature)
{
    const double t = fmin(fmax(temperature, 0.5), 5);
    double sum = 0, entropy = 0, p[OB_MAX_OPTIONS];
    d->n = n;
    d->best = 0;
    for (int32_t i = 0; i < n; i++) {
        d->logits[i] = logits[i];
        if (logits[i] > logits[d->best]) d->best = i;
    }
    for (int32_t i = 0; i < n; i++) sum += p[i] = exp(((double)logits[i] - (double)logits[d->best]) / t);
    for (int32_t i = 0; i < n; i++) {
        p[i] /= sum;
        d->probs[i] = (float)p[i];
        if (p[i] > 0) entropy -= p[i] * log(p[i]);
    }
    d->confidence = n > 1 ? (float)fmin(fmax(1 - entropy / log(n), 0), 1) : 1;
}

/* By type, overridden by the number of options. */
static double temperature_of(const ob_scorer *s, const ob_question *q)
{
    static const char *const types[] = {"choice", "score", "noul"};
    const int32_t n = q->n_options;
    const char *bucket = n <= 2 ? "2" : n <= 5 ? "3_5" : n <= 10 ? "6_10" : "11_plus";
    char name[48];
    double t = 1;
    if (!s->laya) return s->temperature;
    snprintf(name, sizeof name, "temperature.%s", types[q->type]);
    (void)ob_kv_f64(key(s, name), &t);
    snprintf(name, sizeof name, "temperature.%s.%s", types[q->type], bucket);
    (void)ob_kv_f64(key(s, name), &t);
    return t;
}

static void on_rows(void *arg, ob_status st, const ob_err *err, const float *rows)
{
    ob_score_job *j = arg;
    const ob_scorer *s = j->scorer;
    if (st != OB_OK) {
        j->on_done(j->arg, st, err, NULL);
        return;
    }
    float logits[OB_MAX_OPTIONS];
    ob_err bad;
    for (int32_t i = 0; i < j->n; i++) {
        logits[i] = rows[s->laya ? i : s->column[i]];
        if (isfinite(logits[i])) continue;
        st = ob_err_set(&bad, OB_E_INTERNAL, "the scorer gave a value that is no number");
        j->on_done(j->arg, st, &bad, NULL);
        return;
    }
    ob_decision d = {.n_tok = j->text.n_tok, .ms = ob_now_ms() - j->t0};
    ob_decision_make(&d, logits, j->n, j->temperature);
    j->on_done(j->arg, OB_OK, err, &d); /* may free j */
}

ob_status ob_scorer_submit(ob_scorer *s, const ob_question *q, const ob_turns *t,
                           void (*on_done)(void *arg, ob_status s, const ob_err *err, const ob_decision *d), void *arg,
                           ob_score_job **out, ob_err *err)
{
    *out = NULL;
    ob_score_job *j = ob_calloc(1, sizeof *j);
    if (!j) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a decision");
    j->t0 = ob_now_ms();
    j->scorer = s;
    j->n = q->n_options;
    j->temperature = temperature_of(s, q);
    j->on_done = on_done;
    j->arg = arg;
    ob_status st = ob_scorer_tokens(s, q, t, &j->ids, &j->text.n_tok, j->marks, err);
    j->text.tok = j->ids;
    j->text.type = s->laya ? (int32_t)q->type : 0;
    j->text.marks = s->laya ? j->marks : NULL;
    j->text.n_marks = s->laya ? j->n : 0;
    *out = j; /* before on_done may come */
    if (st == OB_OK) st = ob_encoder_submit(s->enc, &j->text, 1, on_rows, j, &j->job, err);
    if (st == OB_OK) return OB_OK;
    *out = NULL;
    ob_score_job_free(j);
    return st;
}

void ob_score_job_cancel(ob_score_job *j)
{
    if (j->job) ob_encode_job_cancel(j->job);
}

void ob_score_job_free(ob_score_job *j)
{
    if (!j) return;
    ob_encode_job_free(j->job);
    ob_free(j->ids);
    ob_free(j);
}

ob_status ob_scorer_ask(ob_scorer *s, const ob_question *q, const ob_turns *t, ob_decision *out, ob_err *err)
{
    const double t0 = ob_now_ms();
    int32_t *tok, n, marks[OB_MAX_OPTIONS];
    float rows[OB_MAX_OPTIONS] = {0}, logits[OB_MAX_OPTIONS];
    OB_TRY(ob_scorer_tokens(s, q, t, &tok, &n, marks, err));
    const ob_encode_text text = {.tok = tok, .n_tok = n, .type = s->laya ? (int32_t)q->type : 0,
                                 .marks = s->laya ? marks : NULL, .n_marks = s->laya ? q->n_options : 0};
    const ob_status st = ob_encoder_run(s->enc, &text, 1, rows, err);
    ob_free(tok);
    if (st != OB_OK) return st;
    for (int32_t i = 0; i < q->n_options; i++) {
        logits[i] = rows[s->laya ? i : s->column[i]];
        if (!isfinite(logits[i])) return ob_err_set(err, OB_E_INTERNAL, "the scorer gave a value that is no number");
    }
    *out = (ob_decision){.n_tok = n};
    ob_decision_make(out, logits, q->n_options, temperature_of(s, q));
    out->ms = ob_now_ms() - t0;
    return OB_OK;
}
