#include "engine/handover.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/math.h"

enum { MAX_PARCELS = 2, MAX_SPARES = 4, PAGE = OB_SEQ_PAGE_TOK };
/* After a failure the device is left alone so long, twice as long each time. */
static const double RETRY_MS = 10e3, RETRY_MOST_MS = 600e3;

/* Pages (or, with n 0, recurrent states) on their way. */
typedef struct parcel {
    void *data;
    size_t cap;
    int32_t page, n;
} parcel;

struct ob_handover_job {
    ob_handover *h;
    ob_handover_job *next; /* by h->lock: waiting for the thread */
    /* fixed at begin */
    int32_t *tok;          /* [end + 1] */
    int32_t from, end;     /* whole pages: what the sequence has, what it shall have */
    ob_placed_picture *pics;
    int32_t n_pics;
    bool keep;
    double t_begin;
    /* decode thread */
    ob_ctx *c;
    ob_seq *s;
    ob_handover_state state;
    int32_t n_sent;
    double ms;
    /* by h->lock */
    int refs;              /* decode thread and prefill thread */
    bool cancelled, finished;
    int32_t n_computed;    /* final when finished */
    ob_err failed;         /* code OB_OK: it did not */
    int32_t want_page, want_n; /* the prefill thread waits for these pages */
    bool want_states, has_up;
    parcel up;             /* to the prefill device */
    parcel down[MAX_PARCELS]; /* from it, oldest first */
    int n_down;
};

struct ob_handover {
    ob_ctx *ctx; /* prefill thread */
    ob_engine_info info;
    ob_seq_layout layout;    /* of ctx */
    ob_seq_layout decode;    /* of the other one */
    char to[32];             /* kind of the decoding device */
    int32_t min_tok;
    void (*notify)(void *arg);
    void *arg;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopping;           /* by lock */
    ob_handover_job *first;  /* by lock: waiting jobs, oldest first */
    parcel spare[MAX_SPARES]; /* by lock */
    int n_spare;
    double retry_ms, retry_at; /* by lock; retry_ms 0: nothing has failed lately */
};

/* ------------------------------------------------------------------ parcels */

/* Memory of n_bytes, from an earlier parcel where one is left. */
static ob_status parcel_take(ob_handover *h, size_t n_bytes, parcel *out, ob_err *err)
{
    *out = (parcel){0};
    pthread_mutex_lock(&h->lock);
    if (h->n_spare) *out = h->spare[--h->n_spare];
    pthread_mutex_unlock(&h->lock);
    if (out->cap >= n_bytes) return OB_OK;
    ob_free(out->data);
    out->data = ob_malloc(n_bytes);
    out->cap = out->data ? n_bytes : 0;
    return out->data ? OB_OK : ob_err_set(err, OB_E_NO_MEMORY, "no memory for %zu bytes of cache on their way", n_bytes);
}

static void parcel_give_locked(ob_handover *h, parcel *p)
{
    if (p->data && h->n_spare < MAX_SPARES) h->spare[h->n_spare++] = *p;
    else ob_free(p->data);
    *p = (parcel){0};
}

static void parcel_give(ob_handover *h, parcel *p)
{
    pthread_mutex_lock(&h->lock);
    parcel_give_locked(h, p);
    pthread_mutex_unlock(&h->lock);
}

/* ------------------------------------------------------------------ jobs */

static void job_unref(ob_handover_job *j)
{
    ob_handover *h = j->h;
    pthread_mutex_lock(&h->lock);
    const bool last = --j->refs == 0;
    if (last) {
        parcel_give_locked(h, &j->up);
        for (int i = 0; i < j->n_down; i++) parcel_give_locked(h, &j->down[i]);
    }
    pthread_mutex_unlock(&h->lock);
    if (!last) return;
    for (int32_t i = 0; i < j->n_pics; i++) ob_picture_unref(j->pics[i].pic);
    ob_free(j->pics);
    ob_free(j->tok);
    ob_free(j);
}

static void tell(ob_handover *h)
{
    if (h->notify) h->notify(h->arg);
}

/* The last page bound that leaves a token to compute and cuts no picture. */
static int32_t find_end(int32_t n, const ob_placed_picture *pics, int32_t n_pics)
{
    int32_t end = (n - 1) / PAGE * PAGE;
    for (int32_t i = n_pics; i-- > 0;)
        if (pics[i].at < end && pics[i].at + pics[i].pic->n_tok > end) end = pics[i].at / PAGE * PAGE;
    return end;
}

/* Is the device left alone after a failure? */
static bool resting(ob_handover *h)
{
    pthread_mutex_lock(&h->lock);
    const bool rests = h->retry_ms > 0 && ob_now_ms() < h->retry_at;
    pthread_mutex_unlock(&h->lock);
    return rests;
}

static ob_status job_new(ob_handover *h, const int32_t *tok, int32_t end, const ob_placed_picture *pics, int32_t n_pics,
                         ob_handover_job **out, ob_err *err)
{
    ob_handover_job *j = ob_calloc(1, sizeof *j);
    if (j) {
        j->h = h;
        j->refs = 1;
        j->tok = ob_calloc((size_t)end + 1, sizeof *j->tok);
        j->pics = ob_calloc((size_t)n_pics + 1, sizeof *j->pics);
    }
    if (!j || !j->tok || !j->pics) {
        if (j) job_unref(j);
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory to hand a prompt of %d tokens over", end);
    }
    memcpy(j->tok, tok, ((size_t)end + 1) * sizeof *tok);
    for (; j->n_pics < n_pics; j->n_pics++) {
        j->pics[j->n_pics] = pics[j->n_pics];
        ob_picture_ref(j->pics[j->n_pics].pic);
    }
    *out = j;
    return OB_OK;
}

ob_status ob_handover_begin(ob_handover *h, ob_ctx *c, ob_seq *s, const int32_t *tok, int32_t n,
                            const ob_placed_picture *pics, int32_t n_pics, bool keep, ob_handover_job **out, ob_err *err)
{
    ob_handover_job *j = NULL;
    *out = NULL;
    const int32_t from = ob_seq_len(s) / PAGE * PAGE, end = find_end(n, pics, n_pics);
    const bool rests = resting(h);
    if (n - ob_seq_len(s) < h->min_tok || end <= from || rests) {
        ob_log_debug("prefill: %d new tokens of %d stay on %s%s", n - ob_seq_len(s), n, h->to,
                     rests ? ", the prefill device failed" : "");
        return OB_OK;
    }
    OB_TRY(job_new(h, tok, end, pics, n_pics, &j, err));
    ob_ctx_seq_cut(c, s, from);
    j->c = c;
    j->s = s;
    j->from = from;
    j->end = end;
    j->keep = keep;
    j->t_begin = ob_now_ms();
    pthread_mutex_lock(&h->lock);
    j->refs = 2;
    ob_handover_job **at = &h->first;
    while (*at) at = &(*at)->next;
    *at = j;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    *out = j;
    return OB_OK;
}

void ob_handover_result(const ob_handover_job *j, ob_handover_report *out)
{
    *out = (ob_handover_report){.n_sent = j->n_sent, .ms = j->ms};
    if (j->state != OB_HANDOVER_DONE) return;
    out->n_handed = j->end - j->from;
    out->n_computed = j->n_computed;
}

/* ------------------------------------------------------------------ decode thread */

/* One warning for each time that it begins to fail. */
static void note_failure(ob_handover *h, const ob_err *err)
{
    pthread_mutex_lock(&h->lock);
    const bool first = h->retry_ms == 0;
    h->retry_ms = first ? RETRY_MS : OB_MIN(2 * h->retry_ms, RETRY_MOST_MS);
    h->retry_at = ob_now_ms() + h->retry_ms;
    pthread_mutex_unlock(&h->lock);
    if (first)
        ob_log_warn("prefill device %s failed, prompts are computed on %s: %s", h->info.device.kind, h->to, err->text);
    else
        ob_log_debug("prefill device %s failed again: %s", h->info.device.kind, err->text);
}

static ob_handover_state settle(ob_handover_job *j, const ob_err *failed)
{
    j->ms = ob_now_ms() - j->t_begin;
    if (!failed) {
        pthread_mutex_lock(&j->h->lock);
        j->h->retry_ms = 0;
        pthread_mutex_unlock(&j->h->lock);
        ob_ctx_seq_adopt(j->c, j->s, j->tok, j->end);
        ob_log_debug("prefill: %d tokens handed over from %s to %s in %.1f ms", j->end - j->from, j->h->info.device.kind,
                     j->h->to, j->ms);
        return j->state = OB_HANDOVER_DONE;
    }
    if (!ob_ctx_faulted(j->c)) note_failure(j->h, failed);
    ob_ctx_seq_cut(j->c, j->s, j->from);
    return j->state = OB_HANDOVER_FAILED;
}

/* The pages (or states) that the prefill thread waits for, from the decoding context. */
static ob_status send_prefix(ob_handover_job *j, int32_t page, int32_t n, ob_err *err)
{
    ob_handover *h = j->h;
    parcel p;
    const uint64_t bytes = n ? (uint64_t)n * h->decode.kv.page_bytes : h->decode.state_bytes;
    OB_TRY(parcel_take(h, (size_t)bytes, &p, err));
    p.page = page;
    p.n = n;
    const ob_status s = n ? ob_ctx_pages_export(j->c, j->s, page, n, p.data, err)
                          : ob_ctx_states_export(j->c, j->s, p.data, err);
    pthread_mutex_lock(&h->lock);
    if (s == OB_OK) {
        j->up = p;
        j->has_up = true;
        j->n_sent += n * PAGE;
        j->want_n = 0;
        j->want_states = false;
        pthread_cond_broadcast(&h->changed);
    } else {
        parcel_give_locked(h, &p);
    }
    pthread_mutex_unlock(&h->lock);
    return s;
}

static ob_status take_parcel(ob_handover_job *j, const parcel *p, ob_err *err)
{
    if (p->n) return ob_ctx_pages_import(j->c, j->s, p->page, p->n, &j->h->layout.kv, p->data, err);
    return ob_ctx_states_import(j->c, j->s, p->data, err);
}

ob_handover_state ob_handover_poll(ob_handover_job *j)
{
    ob_handover *h = j->h;
    ob_err err = {0};
    while (j->state == OB_HANDOVER_RUNNING) {
        parcel p = {0};
        pthread_mutex_lock(&h->lock);
        const int32_t page = j->want_page, n = j->want_n;
        const bool wants = n || j->want_states, finished = j->finished;
        const bool arrived = j->n_down > 0;
        if (arrived) {
            p = j->down[0];
            j->n_down--;
            memmove(j->down, j->down + 1, (size_t)j->n_down * sizeof *j->down);
            pthread_cond_broadcast(&h->changed); /* there is room for another */
        }
        if (finished) err = j->failed;
        pthread_mutex_unlock(&h->lock);
        ob_status s = OB_OK;
        if (finished && err.code != OB_OK) s = err.code;
        else if (arrived) s = take_parcel(j, &p, &err);
        else if (wants) s = send_prefix(j, page, n, &err);
        if (arrived) parcel_give(h, &p);
        if (s != OB_OK) return settle(j, &err);
        if (arrived || wants) continue;
        if (finished) return settle(j, NULL);
        break;
    }
    return j->state;
}

void ob_handover_wait(ob_handover_job *j)
{
    ob_handover *h = j->h;
    pthread_mutex_lock(&h->lock);
    while (!j->finished && !j->n_down && !j->want_n && !j->want_states) pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
}

void ob_handover_end(ob_handover_job *j)
{
    if (!j) return;
    pthread_mutex_lock(&j->h->lock);
    j->cancelled = true;
    pthread_cond_broadcast(&j->h->changed);
    pthread_mutex_unlock(&j->h->lock);
    if (j->state == OB_HANDOVER_RUNNING) ob_ctx_seq_cut(j->c, j->s, j->from);
    job_unref(j);
}

ob_status ob_handover_run(ob_handover *h, ob_ctx *c, ob_seq *s, const int32_t *tok, int32_t n, bool keep,
                          ob_handover_report *out, ob_err *err)
{
    ob_handover_job *j;
    if (out) *out = (ob_handover_report){0};
    OB_TRY(ob_handover_begin(h, c, s, tok, n, NULL, 0, keep, &j, err));
    if (!j) return OB_OK;
    while (ob_handover_poll(j) == OB_HANDOVER_RUNNING) ob_handover_wait(j);
    if (out) ob_handover_result(j, out);
    ob_handover_end(j);
    return ob_ctx_faulted(c) ? ob_err_set(err, OB_E_DEVICE_LOST, "the device failed while a prompt was handed over") : OB_OK;
}

/* ------------------------------------------------------------------ prefill thread */

static ob_status check_cancelled(ob_handover_job *j, ob_err *err)
{
    pthread_mutex_lock(&j->h->lock);
    const bool cancelled = j->cancelled || j->h->stopping;
    pthread_mutex_unlock(&j->h->lock);
    return cancelled ? ob_err_set(err, OB_E_CANCELLED, "the hand-over was cancelled") : OB_OK;
}

/* To the decode thread, when it has taken enough of the earlier ones. Takes p. */
static ob_status post(ob_handover_job *j, parcel *p, ob_err *err)
{
    ob_handover *h = j->h;
    pthread_mutex_lock(&h->lock);
    while (j->n_down == MAX_PARCELS && !j->cancelled && !h->stopping) pthread_cond_wait(&h->changed, &h->lock);
    const bool cancelled = j->cancelled || h->stopping;
    if (cancelled) parcel_give_locked(h, p);
    else j->down[j->n_down++] = *p;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    tell(h);
    return cancelled ? ob_err_set(err, OB_E_CANCELLED, "the hand-over was cancelled") : OB_OK;
}

/* Ask the decode thread for pages [page, page + n), or with n 0 for the states, and wait for them. */
static ob_status fetch(ob_handover_job *j, int32_t page, int32_t n, parcel *out, ob_err *err)
{
    ob_handover *h = j->h;
    pthread_mutex_lock(&h->lock);
    j->want_page = page;
    j->want_n = n;
    j->want_states = n == 0;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    tell(h);
    pthread_mutex_lock(&h->lock);
    while (!j->has_up && !j->cancelled && !h->stopping) pthread_cond_wait(&h->changed, &h->lock);
    const bool arrived = j->has_up;
    *out = j->up;
    j->up = (parcel){0};
    j->has_up = false;
    pthread_mutex_unlock(&h->lock);
    return arrived ? OB_OK : ob_err_set(err, OB_E_CANCELLED, "the hand-over was cancelled");
}

/* What the decoding device has of the prompt and this one lacks comes from there. */
static ob_status get_prefix(ob_handover_job *j, ob_seq *s, int32_t pages_at_once, ob_err *err)
{
    ob_handover *h = j->h;
    const int32_t last = j->from / PAGE;
    parcel p = {0};
    ob_status st = OB_OK;
    if (ob_seq_len(s) >= j->from) return OB_OK;
    ob_ctx_seq_cut(h->ctx, s, ob_seq_len(s) / PAGE * PAGE);
    for (int32_t page = ob_seq_len(s) / PAGE, n; page < last && st == OB_OK; page += n) {
        n = OB_MIN(pages_at_once, last - page);
        OB_TRY(fetch(j, page, n, &p, err));
        st = ob_ctx_pages_import(h->ctx, s, page, n, &h->decode.kv, p.data, err);
        parcel_give(h, &p);
    }
    if (st == OB_OK && h->layout.state_bytes) {
        OB_TRY(fetch(j, 0, 0, &p, err));
        st = ob_ctx_states_import(h->ctx, s, p.data, err);
        parcel_give(h, &p);
    }
    if (st == OB_OK) ob_ctx_seq_adopt(h->ctx, s, j->tok, j->from);
    return st;
}

/* Pages from *sent on that are complete. */
static ob_status send_pages(ob_handover_job *j, ob_seq *s, int32_t pages_at_once, int32_t *sent, ob_err *err)
{
    ob_handover *h = j->h;
    const int32_t ready = OB_MIN(ob_seq_len(s), j->end) / PAGE;
    while (*sent < ready) {
        parcel p;
        const int32_t n = OB_MIN(pages_at_once, ready - *sent);
        OB_TRY(parcel_take(h, (size_t)((uint64_t)n * h->layout.kv.page_bytes), &p, err));
        p.page = *sent;
        p.n = n;
        const ob_status st = ob_ctx_pages_export(h->ctx, s, *sent, n, p.data, err);
        if (st != OB_OK) {
            parcel_give(h, &p);
            return st;
        }
        OB_TRY(post(j, &p, err));
        *sent += n;
    }
    return OB_OK;
}

static ob_status send_states(ob_handover_job *j, ob_seq *s, ob_err *err)
{
    ob_handover *h = j->h;
    parcel p;
    if (!h->layout.state_bytes) return OB_OK;
    OB_TRY(parcel_take(h, (size_t)h->layout.state_bytes, &p, err));
    p.page = p.n = 0;
    const ob_status st = ob_ctx_states_export(h->ctx, s, p.data, err);
    if (st == OB_OK) return post(j, &p, err);
    parcel_give(h, &p);
    return st;
}

static ob_status compute(ob_handover_job *j, ob_seq *s, ob_err *err)
{
    ob_handover *h = j->h;
    const int32_t pages_at_once = OB_MAX(1, h->info.n_ubatch / PAGE);
    int32_t n_cached = 0, sent = j->from / PAGE;
    if (j->keep) OB_TRY(ob_ctx_seq_reuse(h->ctx, s, j->tok, j->end + 1, &n_cached, err));
    OB_TRY(get_prefix(j, s, pages_at_once, err));
    while (ob_seq_len(s) < j->end) {
        OB_TRY(check_cancelled(j, err));
        OB_TRY(send_pages(j, s, pages_at_once, &sent, err));
        const int32_t at = ob_seq_len(s), most = OB_MIN(h->info.n_ubatch, j->end - at);
        const int32_t n = ob_ctx_chunk_size(h->ctx, s, j->pics, j->n_pics, most, h->info.n_ubatch);
        if (n == 0) return ob_err_set(err, OB_E_LIMIT, "a picture does not fit a step of %d tokens", h->info.n_ubatch);
        const ob_chunk chunk = {.seq = s, .tok = j->tok + at, .n_tok = n, .pics = j->pics, .n_pics = j->n_pics, .prompt = true};
        OB_TRY(ob_ctx_step(h->ctx, &chunk, 1, NULL, err));
        j->n_computed += n; /* read by the other thread when the job has finished */
    }
    OB_TRY(send_pages(j, s, pages_at_once, &sent, err));
    return send_states(j, s, err);
}

static void run_job(ob_handover_job *j)
{
    ob_handover *h = j->h;
    ob_err err = {0};
    ob_seq *s = NULL;
    ob_status st = check_cancelled(j, &err);
    if (st == OB_OK && ob_ctx_faulted(h->ctx)) st = ob_ctx_reopen(h->ctx, &err);
    if (st == OB_OK) st = ob_ctx_seq_new(h->ctx, &s, &err);
    if (st == OB_OK) st = compute(j, s, &err);
    if (s) {
        if (st == OB_OK && j->keep) ob_ctx_seq_keep(h->ctx, s);
        ob_ctx_seq_free(h->ctx, s);
    }
    pthread_mutex_lock(&h->lock);
    j->finished = true;
    if (st != OB_OK) j->failed = err;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    tell(h);
}

static void *thread_main(void *arg)
{
    ob_handover *h = arg;
    for (;;) {
        pthread_mutex_lock(&h->lock);
        while (!h->first && !h->stopping) pthread_cond_wait(&h->changed, &h->lock);
        ob_handover_job *j = h->first;
        if (j) h->first = j->next;
        pthread_mutex_unlock(&h->lock);
        if (!j) return NULL;
        run_job(j);
        job_unref(j);
    }
}

/* ------------------------------------------------------------------ life */

/* The context on the prefill device, with decode's cache types where it has kernels for them. */
static ob_status open_ctx(ob_handover *h, const ob_engine_params *p, const ob_ctx *decode, ob_err *err)
{
    ob_engine_info info;
    ob_ctx_describe(decode, &info);
    snprintf(h->to, sizeof h->to, "%s", info.device.kind);
    if (info.output != OB_OUTPUT_LOGITS)
        return ob_err_set(err, OB_E_UNSUPPORTED, "an encoder keeps nothing of a text that could be handed over");
    ob_engine_params q = *p;
    q.device = p->prefill_device;
    q.prefill_device = NULL;
    q.split = NULL;
    q.n_cpu_moe = 0;
    q.n_ctx = info.n_ctx;
    q.n_seq = 1; /* a step full of one prompt uses a device as well as one of several */
    q.profile = false;
    q.observe = NULL;
    q.on_progress = NULL;
    ob_ctx_seq_layout(decode, &h->decode);
    if (h->decode.kv.page_bytes) { /* a model of states alone has none */
        q.k_type = h->decode.kv.k_type;
        q.v_type = h->decode.kv.v_type;
    }
    ob_status s = ob_ctx_new(&q, &h->ctx, err);
    if (s == OB_E_UNSUPPORTED && (q.k_type != OB_F16 || q.v_type != OB_F16)) {
        q.k_type = q.v_type = OB_F16;
        s = ob_ctx_new(&q, &h->ctx, err);
    }
    OB_TRY(s);
    ob_ctx_describe(h->ctx, &h->info);
    ob_ctx_seq_layout(h->ctx, &h->layout);
    OB_TRY(ob_ctx_seq_check_layout(decode, &h->layout, err));
    if (h->layout.kv.hash != h->decode.kv.hash)
        ob_log_debug("prefill: cache pages of %s are converted for %s", h->info.device.kind, h->to);
    return OB_OK;
}

ob_status ob_handover_new(const ob_engine_params *p, const ob_ctx *decode, void (*notify)(void *arg), void *arg,
                          ob_handover **out, ob_err *err)
{
    ob_status s = OB_OK;
    ob_handover *h = ob_calloc(1, sizeof *h);
    if (!h) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the hand-over of prompts");
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    h->min_tok = OB_MAX(1, p->prefill_min_tokens);
    h->notify = notify;
    h->arg = arg;
    OB_GOTO(open_ctx(h, p, decode, err));
    if (pthread_create(&h->thread, NULL, thread_main, h)) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "cannot start the prefill device's thread");
        goto out;
    }
    h->started = true;
    *out = h;
    return OB_OK;
out:
    ob_handover_free(h);
    return s;
}

void ob_handover_free(ob_handover *h)
{
    if (!h) return;
    if (h->started) {
        pthread_mutex_lock(&h->lock);
        h->stopping = true;
        pthread_cond_broadcast(&h->changed);
        pthread_mutex_unlock(&h->lock);
        pthread_join(h->thread, NULL);
    }
    ob_ctx_free(h->ctx);
    for (int i = 0; i < h->n_spare; i++) ob_free(h->spare[i].data);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    ob_free(h);
}

void ob_handover_describe(const ob_handover *h, ob_dev_info *out) { *out = h->info.device; }
