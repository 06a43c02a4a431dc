/* The encoder's thread: forms steps from the texts that wait, copies results to their jobs.
 *
 * One mutex guards the queue. A job's texts and rows belong to the thread from submit to on_done; `cancelled`
 * is the only field that others write meanwhile.
 */
#include "engine/encoder.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "engine/ctx.h"

enum { DEFAULT_SEQS = 16 };

struct ob_encode_job {
    ob_encoder *e;
    const ob_encode_text *texts;
    int32_t n, n_begun, n_done;
    float *rows;      /* [all rows][n_cols] */
    size_t at;        /* floats filled */
    ob_status status; /* of the first step that failed */
    ob_err err;
    _Atomic bool cancelled;
    void (*on_done)(void *arg, ob_status s, const ob_err *err, const float *rows);
    void *arg;
    ob_encode_job *next;
};

struct ob_encoder {
    ob_ctx *ctx;
    ob_engine_info info;
    int32_t n_queue_max;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stopping;         /* by lock */
    ob_encode_job *queue;  /* by lock: in order of arrival; the first ones may be under way */
    int32_t n_waiting;     /* by lock */

    /* encoder's thread */
    ob_chunk *chunks;           /* [n_seq] */
    ob_encode_job **chunk_job;  /* [n_seq] */
};

/* ------------------------------------------------------------------ jobs */

static ob_status check_text(const ob_encoder *e, const ob_encode_text *t, int32_t number, ob_err *err)
{
    if (t->n_tok < 1) return ob_err_set(err, OB_E_INVALID, "text %d is empty", number);
    if (t->n_tok > e->info.n_ctx) {
        ob_status s = ob_err_set(err, OB_E_CONTEXT_LENGTH,
                                 "text %d has %d tokens and the model takes %d at most: shorten it, or start with "
                                 "a larger --ctx-size", number, t->n_tok, e->info.n_ctx);
        if (err) {
            err->n_prompt_tok = t->n_tok;
            err->n_ctx = e->info.n_ctx;
        }
        return s;
    }
    for (int32_t i = 0; i < t->n_tok; i++)
        if (t->tok[i] < 0 || t->tok[i] >= e->info.n_vocab)
            return ob_err_set(err, OB_E_INVALID, "token %d of text %d is %d, the vocabulary has 0..%d", i, number,
                              t->tok[i], e->info.n_vocab - 1);
    for (int32_t i = 0; i < t->n_marks; i++)
        if (t->marks[i] < 0 || t->marks[i] >= t->n_tok)
            return ob_err_set(err, OB_E_INVALID, "mark %d of text %d is outside it", i, number);
    return OB_OK;
}

ob_status ob_encoder_submit(ob_encoder *e, const ob_encode_text *texts, int32_t n,
                            void (*on_done)(void *arg, ob_status s, const ob_err *err, const float *rows), void *arg,
                            ob_encode_job **out, ob_err *err)
{
    size_t rows = 0;
    *out = NULL;
    if (n < 1) return ob_err_set(err, OB_E_INVALID, "there is no text");
    for (int32_t i = 0; i < n; i++) {
        OB_TRY(check_text(e, &texts[i], i, err));
        rows += (size_t)ob_encoder_n_rows(e, &texts[i]);
    }
    ob_encode_job *j = ob_calloc(1, sizeof *j);
    if (j) j->rows = ob_reallocarray(NULL, OB_MAX(rows, (size_t)1), (size_t)ob_encoder_n_cols(e) * sizeof(float));
    if (!j || !j->rows) {
        ob_free(j);
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %zu vectors", rows);
    }
    j->e = e;
    j->texts = texts;
    j->n = n;
    j->on_done = on_done;
    j->arg = arg;
    *out = j; /* before the thread may call on_done */
    pthread_mutex_lock(&e->lock);
    const bool full = e->n_waiting >= e->n_queue_max, stopping = e->stopping;
    if (!full && !stopping) {
        ob_encode_job **at = &e->queue;
        while (*at) at = &(*at)->next;
        *at = j;
        e->n_waiting++;
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
    if (!full && !stopping) return OB_OK;
    *out = NULL;
    ob_encode_job_free(j);
    return stopping ? ob_err_set(err, OB_E_CANCELLED, "the encoder is stopping")
                    : ob_err_set(err, OB_E_BUSY, "%d requests wait already", e->n_queue_max);
}

void ob_encode_job_cancel(ob_encode_job *j) { atomic_store(&j->cancelled, true); }

void ob_encoder_cancel_all(ob_encoder *e)
{
    pthread_mutex_lock(&e->lock);
    for (ob_encode_job *j = e->queue; j; j = j->next) ob_encode_job_cancel(j);
    pthread_mutex_unlock(&e->lock);
}

void ob_encode_job_free(ob_encode_job *j)
{
    if (!j) return;
    ob_free(j->rows);
    ob_free(j);
}

/* ------------------------------------------------------------------ the thread */

/* Texts of the queue, in order, as long as they fit one step; one that is longer than n_ubatch goes alone.
 * The queue only grows at its end meanwhile, so the lock is not needed past its head. */
static int32_t form_step(ob_encoder *e, ob_encode_job *first)
{
    int32_t n = 0, n_tok = 0;
    for (ob_encode_job *j = first; j;) {
        while (j->status == OB_OK && !atomic_load(&j->cancelled) && j->n_begun < j->n) {
            const ob_encode_text *t = &j->texts[j->n_begun];
            if (n == e->info.n_seq || (n && t->n_tok > e->info.n_ubatch - n_tok)) return n;
            e->chunks[n] = (ob_chunk){.tok = t->tok, .n_tok = t->n_tok, .type = t->type, .marks = t->marks,
                                      .n_out = e->info.output == OB_OUTPUT_MARKS ? t->n_marks : 0};
            e->chunk_job[n++] = j;
            n_tok += t->n_tok;
            j->n_begun++;
        }
        pthread_mutex_lock(&e->lock);
        j = j->next;
        pthread_mutex_unlock(&e->lock);
    }
    return n;
}

/* A device that fails is opened again, and the step runs once more. */
static void run_step(ob_encoder *e, int32_t n, bool again)
{
    ob_err err = {0};
    ob_status s = OB_OK;
    const float *rows = NULL;
    int32_t n_seqs = 0;
    for (; n_seqs < n && s == OB_OK; n_seqs++) s = ob_ctx_seq_new(e->ctx, &e->chunks[n_seqs].seq, &err);
    if (s == OB_OK) s = ob_ctx_step(e->ctx, e->chunks, n, &rows, &err);
    for (int32_t i = 0; i < n_seqs; i++) ob_ctx_seq_free(e->ctx, e->chunks[i].seq);
    if (s != OB_OK && ob_ctx_faulted(e->ctx) && !again) {
        ob_log_warn("device %s failed in a step: %s", e->info.device.kind, err.text);
        if (ob_ctx_reopen(e->ctx, &err) == OB_OK) {
            run_step(e, n, true);
            return;
        }
        ob_err_prefix(&err, err.code, "the device failed and could not be opened again");
    }
    if (s != OB_OK) ob_log_warn("step failed: %s", err.text);
    for (int32_t i = 0; i < n; i++) {
        ob_encode_job *j = e->chunk_job[i];
        j->n_done++;
        if (s != OB_OK) {
            j->status = s;
            j->err = err;
            continue;
        }
        const size_t floats = (size_t)ob_ctx_n_rows(e->ctx, &e->chunks[i], 1) * (size_t)ob_ctx_n_cols(e->ctx);
        memcpy(j->rows + j->at, rows, floats * sizeof *rows);
        j->at += floats;
        rows += floats;
    }
}

/* Jobs that have nothing left to run leave the queue. */
static void finish_jobs(ob_encoder *e, bool stop)
{
    for (;;) {
        pthread_mutex_lock(&e->lock);
        ob_encode_job **at = &e->queue;
        while (*at && (*at)->n_done < (*at)->n && (*at)->status == OB_OK && !atomic_load(&(*at)->cancelled) && !stop)
            at = &(*at)->next;
        ob_encode_job *j = *at;
        if (j) {
            *at = j->next;
            e->n_waiting--;
        }
        pthread_mutex_unlock(&e->lock);
        if (!j) return;
        if (j->status == OB_OK && j->n_done < j->n)
            j->status = ob_err_set(&j->err, OB_E_CANCELLED, "the request was cancelled");
        j->on_done(j->arg, j->status, &j->err, j->status == OB_OK ? j->rows : NULL); /* may free j */
    }
}

static void *encoder_main(void *arg)
{
    ob_encoder *e = arg;
    for (;;) {
        pthread_mutex_lock(&e->lock);
        while (!e->queue && !e->stopping) pthread_cond_wait(&e->wake, &e->lock);
        const bool stop = e->stopping;
        ob_encode_job *first = e->queue;
        pthread_mutex_unlock(&e->lock);
        if (!stop) {
            const int32_t n = form_step(e, first);
            if (n) run_step(e, n, false);
        }
        finish_jobs(e, stop);
        if (stop) return NULL;
    }
}

/* ------------------------------------------------------------------ blocking */

typedef struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done;
    ob_status status;
    ob_err err;
    const float *rows;
} waiter;

static void wake_waiter(void *arg, ob_status s, const ob_err *err, const float *rows)
{
    waiter *w = arg;
    pthread_mutex_lock(&w->lock);
    w->is_done = true;
    w->status = s;
    w->err = *err;
    w->rows = rows;
    pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->lock);
}

ob_status ob_encoder_run(ob_encoder *e, const ob_encode_text *texts, int32_t n, float *out, ob_err *err)
{
    waiter w = {.lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};
    ob_encode_job *j;
    OB_TRY(ob_encoder_submit(e, texts, n, wake_waiter, &w, &j, err));
    pthread_mutex_lock(&w.lock);
    while (!w.is_done) pthread_cond_wait(&w.done, &w.lock);
    pthread_mutex_unlock(&w.lock);
    if (w.status == OB_OK) memcpy(out, w.rows, j->at * sizeof *out);
    else if (err) *err = w.err;
    ob_encode_job_free(j);
    pthread_mutex_destroy(&w.lock);
    pthread_cond_destroy(&w.done);
    return w.status;
}

/* ------------------------------------------------------------------ life */

ob_status ob_encoder_peek(const char *path, ob_engine_info *out, ob_err *err)
{
    ob_file *f;
    ob_model *m = NULL;
    *out = (ob_engine_info){0};
    OB_TRY(ob_file_open(path, OB_OPEN_NO_DATA, &f, err));
    const ob_status s = ob_model_new(f, &(ob_model_options){0}, &m, err);
    if (s == OB_OK) {
        const ob_hparams *h = ob_model_hparams(m);
        out->causal = h->causal;
        out->output = h->output;
        out->n_class = h->n_class;
    }
    ob_model_free(m);
    ob_file_close(f);
    return s;
}

ob_status ob_encoder_new(const ob_engine_params *p, ob_encoder **out, ob_err *err)
{
    ob_status s = OB_OK;
    ob_engine_params mine = *p;
    ob_encoder *e = ob_calloc(1, sizeof *e);
    if (!e) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the encoder");
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    e->n_queue_max = p->n_queue > 0 ? p->n_queue : 1024;
    if (mine.n_seq <= 0) mine.n_seq = DEFAULT_SEQS;
    OB_GOTO(ob_ctx_new(&mine, &e->ctx, err));
    ob_ctx_describe(e->ctx, &e->info);
    if (e->info.output == OB_OUTPUT_LOGITS) {
        s = ob_err_set(err, OB_E_UNSUPPORTED, "model %s generates text and has no head for scores", e->info.name);
        goto out;
    }
    e->chunks = ob_calloc((size_t)e->info.n_seq, sizeof *e->chunks);
    e->chunk_job = ob_calloc((size_t)e->info.n_seq, sizeof(ob_encode_job *));
    if (!e->chunks || !e->chunk_job) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for the encoder");
        goto out;
    }
    if (pthread_create(&e->thread, NULL, encoder_main, e)) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "cannot start the encoder's thread");
        goto out;
    }
    e->started = true;
    *out = e;
    return OB_OK;
out:
    ob_encoder_free(e);
    return s;
}

void ob_encoder_free(ob_encoder *e)
{
    if (!e) return;
    if (e->started) {
        pthread_mutex_lock(&e->lock);
        e->stopping = true;
        pthread_cond_signal(&e->wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    ob_ctx_free(e->ctx);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    ob_free(e->chunks);
    ob_free(e->chunk_job);
    ob_free(e);
}

void ob_encoder_describe(const ob_encoder *e, ob_engine_info *out) { *out = e->info; }
const ob_tok *ob_encoder_tok(const ob_encoder *e) { return ob_ctx_tok(e->ctx); }
const ob_file *ob_encoder_file(const ob_encoder *e) { return ob_ctx_file(e->ctx); }
int32_t ob_encoder_n_cols(const ob_encoder *e) { return ob_ctx_n_cols(e->ctx); }

int32_t ob_encoder_n_rows(const ob_encoder *e, const ob_encode_text *t)
{
    if (e->info.output == OB_OUTPUT_MARKS) return t->n_marks;
    return e->info.output == OB_OUTPUT_EMBEDDINGS && e->info.pooling == OB_POOLING_NONE ? t->n_tok : 1;
}

void ob_normalize(float *v, int32_t n_dims)
{
    double sum = 0;
    for (int32_t i = 0; i < n_dims; i++) sum += (double)v[i] * (double)v[i];
    const double r = sum > 0 ? 1.0 / sqrt(sum) : 0;
    for (int32_t i = 0; i < n_dims; i++) v[i] = (float)((double)v[i] * r);
}
