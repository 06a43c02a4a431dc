/* The engine thread: admits requests to sequences, forms batches, samples, delivers events.
 *
 * One mutex guards the queue, the counters and the slots' snapshot. A request belongs to the engine
 * thread from admission to its last event; `cancelled` is the only field others write meanwhile.
 */
#include "engine/engine.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/math.h"
#include "engine/ctx.h"
#include "engine/speculate.h"
#include "engine/handover.h"
#include "engine/stop.h"

enum { MIN_CHUNK = 32, HELD_BYTES = 1 << 16, TOP_MAX = OB_MAX_TOP_LOGPROBS };

struct ob_request {
    ob_engine *e;
    _Atomic int refs;       /* one of the caller, one of the engine */
    _Atomic bool cancelled;
    pthread_mutex_t events; /* held while the callback runs; recursive, so it may free the request */
    bool detached;          /* guarded by events: no more callbacks */
    void (*on_event)(void *arg, const ob_event *ev);
    void *arg;

    /* fixed at submit */
    int32_t max_tokens, n_top, priority;
    bool ignore_eos, cache_prompt;
    ob_gram *gram; /* borrowed; NULL: none */
    ob_stop stop;
    ob_sampler *sampler;
    uint64_t order; /* of arrival */
    double t_submit;

    /* engine thread */
    ob_placed_picture *pics; /* [n_pics] of the prompt */
    int32_t n_pics;
    int32_t *tok;           /* prompt, then what was generated; room for n_prompt + max_tokens */
    int32_t n_prompt, n_tok;
    int32_t n_cached, n_gen, n_faults;
    bool prefilled;         /* the prompt's last token has run */
    ob_detok detok;
    ob_buf held;            /* text that a stop string may still claim */
    double t_start, t_first, queue_ms;
    ob_seq *seq;
    ob_handover_job *job;   /* while its prompt is computed on the prefill device */
    bool handed_once;       /* or tried: what is left runs here */
    int32_t n_handed;
    double handover_ms;
    ob_spec_odds odds;
    int32_t n_drafted, n_draft_right;
    ob_request *next;
};

struct ob_engine {
    ob_ctx *ctx;
    ob_handover *handover; /* NULL: prompts are computed here */
    ob_engine_info info;
    int32_t n_queue_max;
    double max_stall_ms;
    const int32_t *eog;
    size_t n_eog;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool news;               /* by lock: something happened outside of the engine thread */
    bool stopping;           /* by lock */
    ob_request *queue;       /* by lock: waiting, in order of service */
    int32_t n_waiting;       /* by lock */
    uint64_t n_order;        /* by lock */
    ob_engine_stats stats;   /* by lock */
    ob_slot_info *slot_info; /* by lock: [n_seq] */

    /* engine thread */
    ob_request **slots; /* [n_seq] */
    ob_chunk *chunks;   /* [n_seq] */
    int32_t *chunk_slot;
    float *row;         /* one row of logits, for the sampler to change */
    double ms_per_tok;  /* measured cost of a prefill token */
    bool has_states;    /* of sequences: they can only be rewound to where they were copied */
    int32_t n_draft;    /* most tokens to draft; 0: none */
    ob_spec_draft *drafts;   /* [n_seq] of the chunks */
    ob_spec_costs costs;
    double mark_ms;     /* of the step in hand: copying states before it */
};

void ob_request_defaults(ob_request_params *p)
{
    *p = (ob_request_params){.max_tokens = -1, .n_top_logprobs = -1, .cache_prompt = true};
    ob_sampler_defaults(&p->sampler);
}

/* Any thread, with the lock. */
static void wake_locked(ob_engine *e)
{
    e->news = true;
    pthread_cond_signal(&e->wake);
}

static void wake(void *arg)
{
    ob_engine *e = arg;
    pthread_mutex_lock(&e->lock);
    wake_locked(e);
    pthread_mutex_unlock(&e->lock);
}

/* ------------------------------------------------------------------ requests */

static void request_unref(ob_request *r)
{
    if (atomic_fetch_sub(&r->refs, 1) != 1) return;
    ob_stop_deinit(&r->stop);
    ob_sampler_free(r->sampler);
    ob_buf_deinit(&r->held);
    pthread_mutex_destroy(&r->events);
    for (int32_t i = 0; i < r->n_pics; i++) ob_picture_unref(r->pics[i].pic);
    ob_free(r->pics);
    ob_free(r->tok);
    ob_free(r);
}

void ob_request_cancel(ob_request *r)
{
    atomic_store(&r->cancelled, true);
    wake(r->e);
}

void ob_request_free(ob_request *r)
{
    if (!r) return;
    pthread_mutex_lock(&r->events);
    r->detached = true;
    pthread_mutex_unlock(&r->events);
    ob_request_cancel(r);
    request_unref(r);
}

static ob_status check_request(const ob_engine *e, const ob_request_params *p, ob_err *err)
{
    if (!e->info.causal)
        return ob_err_set(err, OB_E_UNSUPPORTED, "model %s is an encoder: it cannot generate text",
                          e->info.name);
    if (p->n_prompt < 1) return ob_err_set(err, OB_E_INVALID, "the prompt is empty: it needs one token at least");
    if (p->n_prompt >= (size_t)e->info.n_ctx) {
        ob_status s = ob_err_set(err, OB_E_CONTEXT_LENGTH,
                                 "the prompt has %zu tokens and the context holds %d, one of which must be left "
                                 "for the answer: shorten the prompt or start with a larger --ctx-size",
                                 p->n_prompt, e->info.n_ctx);
        if (err) {
            err->n_prompt_tok = (long)p->n_prompt;
            err->n_ctx = e->info.n_ctx;
        }
        return s;
    }
    for (size_t i = 0; i < p->n_prompt; i++)
        if (p->prompt[i] >= e->info.n_vocab || (p->prompt[i] < 0 && !p->n_pictures))
            return ob_err_set(err, OB_E_INVALID, "prompt token %zu is %d, the vocabulary has 0..%d", i,
                              p->prompt[i], e->info.n_vocab - 1);
    OB_TRY(ob_pictures_check(p->prompt, p->n_prompt, p->pictures, p->n_pictures, e->info.n_embd, err));
    for (size_t i = 0; i < p->n_pictures; i++)
        if (p->pictures[i].pic->n_tok > e->info.n_picture_tok)
            return ob_err_set(err, OB_E_INVALID, "a picture of %d tokens, the model was loaded for %d at most",
                              p->pictures[i].pic->n_tok, e->info.n_picture_tok);
    if (p->n_top_logprobs > (int32_t)TOP_MAX)
        return ob_err_set(err, OB_E_INVALID, "%d top log-probabilities, at most %d are possible",
                          p->n_top_logprobs, (int)TOP_MAX);
    if (p->max_tokens == 0)
        return ob_err_set(err, OB_E_INVALID, "no tokens are asked for: ask for one at least, or -1: until the context is full");
    return OB_OK;
}

/* A picture without a number of its own has ids that another one may have too. */
static ob_status take_pictures(ob_request *r, const ob_request_params *p, ob_err *err)
{
    if (!p->n_pictures) return OB_OK;
    r->pics = ob_calloc(p->n_pictures, sizeof *r->pics);
    if (!r->pics) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a request of %zu pictures", p->n_pictures);
    for (; (size_t)r->n_pics < p->n_pictures; r->n_pics++) {
        r->pics[r->n_pics] = p->pictures[r->n_pics];
        ob_picture_ref(r->pics[r->n_pics].pic);
        if (!ob_picture_cacheable(r->pics[r->n_pics].pic)) r->cache_prompt = false;
    }
    return OB_OK;
}

static ob_status request_new(ob_engine *e, const ob_request_params *p, ob_request **out, ob_err *err)
{
    ob_status s = OB_OK;
    ob_request *r = ob_calloc(1, sizeof *r);
    if (!r) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a request");
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&r->events, &attr);
    pthread_mutexattr_destroy(&attr);
    atomic_init(&r->refs, 1);
    r->e = e;
    ob_buf_init(&r->held, 4 * HELD_BYTES);
    int32_t room = e->info.n_ctx - (int32_t)p->n_prompt;
    r->max_tokens = p->max_tokens < 0 ? room : OB_MIN(p->max_tokens, room);
    r->n_prompt = r->n_tok = (int32_t)p->n_prompt;
    r->n_top = p->n_top_logprobs;
    r->priority = p->priority;
    r->ignore_eos = p->ignore_eos;
    r->gram = p->gram;
    r->cache_prompt = p->cache_prompt;
    r->on_event = p->on_event;
    r->arg = p->arg;
    OB_GOTO(ob_stop_init(&r->stop, p->stop, p->n_stop, err));
    OB_GOTO(ob_sampler_new(&p->sampler, e->info.n_vocab, OB_MAX(r->n_top, 0), &r->sampler, err));
    OB_GOTO(take_pictures(r, p, err));
    r->tok = ob_calloc(p->n_prompt + (size_t)r->max_tokens + 1, sizeof *r->tok);
    if (!r->tok || ob_buf_reserve(&r->held, HELD_BYTES) != OB_OK) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for a request of %zu tokens", p->n_prompt);
        goto out;
    }
    memcpy(r->tok, p->prompt, p->n_prompt * sizeof *r->tok);
    for (int32_t i = 0; i < r->n_prompt; i++)
        if (r->tok[i] >= 0) ob_sampler_accept(r->sampler, r->tok[i]);
    ob_detok_init(&r->detok, ob_ctx_tok(e->ctx), p->special);
    r->t_submit = ob_now_ms();
    *out = r;
    return OB_OK;
out:
    request_unref(r);
    return s;
}

/* Higher priority first, then the order of arrival. */
static void enqueue(ob_engine *e, ob_request *r)
{
    ob_request **at = &e->queue;
    while (*at && ((*at)->priority > r->priority ||
                   ((*at)->priority == r->priority && (*at)->order < r->order)))
        at = &(*at)->next;
    r->next = *at;
    *at = r;
    e->n_waiting++;
}

ob_status ob_engine_submit(ob_engine *e, const ob_request_params *p, ob_request **out, ob_err *err)
{
    ob_request *r;
    OB_TRY(check_request(e, p, err));
    OB_TRY(request_new(e, p, &r, err));
    ob_status s = OB_OK;
    pthread_mutex_lock(&e->lock);
    if (e->n_waiting >= e->n_queue_max) {
        s = ob_err_set(err, OB_E_BUSY, "%d requests are waiting already: try again later", e->n_waiting);
    } else {
        atomic_store(&r->refs, 2);
        r->order = e->n_order++;
        e->stats.n_requests++;
        *out = r; /* before the engine can send the first event */
        enqueue(e, r);
        wake_locked(e);
    }
    pthread_mutex_unlock(&e->lock);
    if (s != OB_OK) request_unref(r);
    return s;
}

/* ------------------------------------------------------------------ events */

static void fill_timings(const ob_request *r, ob_timings *t)
{
    double now = ob_now_ms();
    *t = (ob_timings){.n_prompt = r->n_prompt, .n_cached = r->n_cached, .n_gen = r->n_gen,
                      .queue_ms = r->queue_ms, .n_handed = r->n_handed, .handover_ms = r->handover_ms,
                      .n_drafted = r->n_drafted, .n_draft_right = r->n_draft_right};
    if (r->t_first > 0) {
        t->prompt_ms = r->t_first - r->t_start;
        t->gen_ms = now - r->t_first;
    } else if (r->t_start > 0) {
        t->prompt_ms = now - r->t_start;
    }
}

static void send_event(ob_request *r, ob_event *ev)
{
    fill_timings(r, &ev->timings);
    pthread_mutex_lock(&r->events);
    if (!r->detached && r->on_event) r->on_event(r->arg, ev);
    pthread_mutex_unlock(&r->events);
}

/* Give the hand-over of a request up. */
static void drop_job(ob_request *r)
{
    ob_handover_end(r->job);
    r->job = NULL;
}

/* Last event, then give up the slot and the engine's reference. */
static void finish(ob_engine *e, ob_request *r, ob_finish why, const char *stop_string, const ob_err *err)
{
    ob_event ev = {.done = true, .id = -1, .finish = why, .stop_string = stop_string};
    /* Where the reply was cut off a character that is incomplete says nothing; where it ended, that it is broken. */
    if (why == OB_FINISH_STOP) ob_detok_flush(&r->detok, &r->held);
    if (!stop_string) {
        ev.text = ob_buf_str(&r->held);
        ev.text_len = r->held.len;
    }
    if (err) ev.err = *err;
    drop_job(r);
    if (r->seq) {
        if (r->cache_prompt && why != OB_FINISH_ERROR) ob_ctx_seq_keep(e->ctx, r->seq);
        ob_ctx_seq_free(e->ctx, r->seq);
        r->seq = NULL;
    }
    pthread_mutex_lock(&e->lock);
    for (int32_t i = 0; i < e->info.n_seq; i++) {
        if (e->slots[i] != r) continue;
        e->slots[i] = NULL;
        e->slot_info[i] = (ob_slot_info){.id = i};
        e->stats.n_running--;
    }
    if (why == OB_FINISH_ERROR) e->stats.n_failed++;
    else if (why == OB_FINISH_CANCELLED) e->stats.n_cancelled++;
    else e->stats.n_done++;
    if (r->t_first > 0) e->stats.gen_s += (ob_now_ms() - r->t_first) * 1e-3;
    ob_ctx_cache_stats(e->ctx, &e->stats.kv_tok_used, &e->stats.kv_tok_cached, &e->stats.kv_tok_total);
    pthread_mutex_unlock(&e->lock);
    send_event(r, &ev);
    request_unref(r);
}

/* ------------------------------------------------------------------ sampling */

/* Append the token's text; deliver what may be shown. True when a stop string was met. */
static bool deliver(ob_request *r, int32_t id, const ob_logprob *chosen, const ob_logprob *top,
                    int32_t n_top, const char **stop_string)
{
    size_t show;
    int hit;
    if (id >= 0) ob_detok_push(&r->detok, id, &r->held);
    ob_stop_scan(&r->stop, ob_buf_str(&r->held), r->held.len, &show, &hit);
    ob_event ev = {.id = id, .chosen = *chosen, .top = top, .n_top = n_top, .text = ob_buf_str(&r->held),
                   .text_len = show};
    send_event(r, &ev);
    if (r->held.data) {
        memmove(r->held.data, r->held.data + show, r->held.len - show);
        r->held.len -= show;
        r->held.data[r->held.len] = 0;
    }
    if (hit >= 0) *stop_string = r->stop.strings[hit];
    return hit >= 0;
}

/* From the best logits of the row where these are enough, else the row is fetched. */
static ob_status sample(ob_engine *e, ob_request *r, int32_t row, ob_logprob *chosen, ob_logprob *top, ob_err *err)
{
    const size_t n_banned = r->ignore_eos ? e->n_eog : 0;
    const bool gram = r->gram && ob_gram_active(r->gram);
    ob_top_logits best;
    if (!gram && ob_ctx_top(e->ctx, row, &best) && !ob_sampler_needs_row(r->sampler, best.n, n_banned, r->n_top))
        return ob_sampler_next_top(r->sampler, &best, e->eog, n_banned, r->n_top, chosen, top, err);
    OB_TRY(ob_ctx_row(e->ctx, row, e->row, err));
    if (gram) OB_TRY(ob_gram_mask(r->gram, e->row, e->info.n_vocab, err));
    return ob_sampler_next(r->sampler, e->row, e->eog, n_banned, r->n_top, chosen, top, err);
}

/* Take n tokens back that were tried. Recurrent states can only go back to before the step: what it read rightly is read
 * once more by the next one. */
static ob_status take_back(ob_engine *e, ob_request *r, int32_t n, ob_err *err)
{
    if (e->has_states) return ob_ctx_seq_rewind(e->ctx, r->seq, err);
    ob_ctx_seq_cut(e->ctx, r->seq, ob_seq_len(r->seq) - n);
    return OB_OK;
}

/* Sample the next token of a request and deliver it; its cache has `n_ahead` tokens more than it should if that is not
 * `draft` (-1: nothing is drafted). True when it is, and the request goes on. */
static bool take_token(ob_engine *e, ob_request *r, int32_t row, int32_t draft, int32_t n_ahead, bool guard)
{
    ob_err err;
    ob_logprob chosen, top[TOP_MAX];
    ob_alloc_guard(guard);
    ob_status s = sample(e, r, row, &chosen, top, &err);
    if (s == OB_OK) ob_sampler_accept(r->sampler, chosen.id);
    ob_alloc_guard(false);
    if (s == OB_OK && r->gram) s = ob_gram_accept(r->gram, chosen.id, &err);
    const bool right = s == OB_OK && chosen.id == draft;
    if (s == OB_OK && !right && n_ahead) s = take_back(e, r, n_ahead, &err);
    if (s != OB_OK) {
        finish(e, r, OB_FINISH_ERROR, NULL, &err);
        return false;
    }
    const char *stop_string = NULL;
    r->tok[r->n_tok++] = chosen.id;
    r->n_gen++;
    r->n_draft_right += right;
    if (r->t_first == 0) r->t_first = ob_now_ms();
    pthread_mutex_lock(&e->lock);
    e->stats.n_gen_tok++;
    e->stats.n_draft_right += right;
    pthread_mutex_unlock(&e->lock);
    int32_t n_top = OB_MAX(0, OB_MIN(r->n_top, e->info.n_vocab));
    if (!r->ignore_eos && ob_tok_is_eog(ob_ctx_tok(e->ctx), chosen.id)) {
        finish(e, r, OB_FINISH_STOP, NULL, NULL);
    } else if (deliver(r, chosen.id, &chosen, top, n_top, &stop_string)) {
        finish(e, r, OB_FINISH_STOP, stop_string, NULL);
    } else if (r->n_gen >= r->max_tokens) {
        finish(e, r, OB_FINISH_LENGTH, NULL, NULL);
    } else {
        return right;
    }
    return false;
}

/* The tokens that rows [row, row + n_out) of chunk k give: one, and one more for each draft that came true. */
static void take_tokens(ob_engine *e, int32_t k, int32_t row, bool guard)
{
    ob_request *r = e->slots[e->chunk_slot[k]];
    const ob_chunk *ch = &e->chunks[k];
    const int32_t n_draft = ch->prompt ? 0 : ch->n_out - 1, before = r->n_draft_right;
    r->n_drafted += n_draft;
    const int32_t *draft = ch->tok + ch->n_tok - n_draft;
    for (int32_t i = 0; take_token(e, r, row + i, i < n_draft ? draft[i] : -1, n_draft - i, guard); i++) {}
    /* One that has ended needs no odds. */
    if (n_draft && e->slots[e->chunk_slot[k]] == r)
        ob_spec_note(&r->odds, e->drafts[k].trust, n_draft, r->n_draft_right - before);
}

/* ------------------------------------------------------------------ faults */

/* A running request waits again; it goes on where it was. */
static void park(ob_engine *e, ob_request *r)
{
    drop_job(r);
    ob_ctx_seq_free(e->ctx, r->seq);
    r->seq = NULL;
    pthread_mutex_lock(&e->lock);
    for (int32_t i = 0; i < e->info.n_seq; i++)
        if (e->slots[i] == r) {
            e->slots[i] = NULL;
            e->slot_info[i] = (ob_slot_info){.id = i};
        }
    e->stats.n_running--;
    enqueue(e, r);
    pthread_mutex_unlock(&e->lock);
}

static void set_device_down(ob_engine *e, bool down)
{
    pthread_mutex_lock(&e->lock);
    e->stats.device_down = down;
    pthread_mutex_unlock(&e->lock);
}

/* Open the device again. False: it is still gone, and `r`, for whose sake it was tried, fails alone. */
static bool reopen(ob_engine *e, ob_request *r)
{
    ob_err err = {0};
    const double t0 = ob_now_ms();
    if (ob_ctx_reopen(e->ctx, &err) == OB_OK) {
        ob_log_warn("the device was opened again in %.1f s", (ob_now_ms() - t0) * 1e-3);
        set_device_down(e, false);
        return true;
    }
    ob_log_error("the device could not be opened again: %s", err.text);
    set_device_down(e, true);
    ob_err_prefix(&err, err.code, "the device failed and could not be opened again");
    if (r) finish(e, r, OB_FINISH_ERROR, NULL, &err);
    return false;
}

/* The device failed under the running requests. Each is begun again once, from its tokens, on the device opened
 * afresh; the second time it fails alone. */
static void recover(ob_engine *e, const ob_err *why)
{
    ob_err err = *why;
    ob_log_warn("device %s failed in a step: %s", e->info.device.kind, why->text);
    pthread_mutex_lock(&e->lock);
    e->stats.n_device_faults++;
    pthread_mutex_unlock(&e->lock);
    ob_err_prefix(&err, err.code, "the device failed twice while this request ran");
    for (int32_t i = 0; i < e->info.n_seq; i++) {
        ob_request *r = e->slots[i];
        if (!r) continue;
        if (r->n_faults++) {
            finish(e, r, OB_FINISH_ERROR, NULL, &err);
            continue;
        }
        park(e, r);
        pthread_mutex_lock(&e->lock);
        e->stats.n_retried++;
        pthread_mutex_unlock(&e->lock);
    }
    reopen(e, NULL);
}

/* ------------------------------------------------------------------ admission */

static void drop_cancelled(ob_engine *e)
{
    for (int32_t i = 0; i < e->info.n_seq; i++)
        if (e->slots[i] && atomic_load(&e->slots[i]->cancelled))
            finish(e, e->slots[i], OB_FINISH_CANCELLED, NULL, NULL);
    for (;;) {
        pthread_mutex_lock(&e->lock);
        ob_request **at = &e->queue;
        while (*at && !atomic_load(&(*at)->cancelled)) at = &(*at)->next;
        ob_request *r = *at;
        if (r) {
            *at = r->next;
            e->n_waiting--;
        }
        pthread_mutex_unlock(&e->lock);
        if (!r) return;
        finish(e, r, OB_FINISH_CANCELLED, NULL, NULL);
    }
}

/* Have the request's prompt computed on the prefill device, where that is worth it. */
static void begin_handover(ob_engine *e, ob_request *r)
{
    ob_err err;
    if (!e->handover || r->handed_once) return;
    if (ob_handover_begin(e->handover, e->ctx, r->seq, r->tok, r->n_tok, r->pics, r->n_pics, r->cache_prompt, &r->job,
                          &err) != OB_OK)
        ob_log_debug("no hand-over: %s", err.text);
    r->handed_once = r->job != NULL;
}

/* Take what the prefill device has computed of the waiting prompts. True: there are some that wait. */
static bool take_handed(ob_engine *e)
{
    bool waits = false;
    for (int32_t i = 0; i < e->info.n_seq; i++) {
        ob_request *r = e->slots[i];
        if (!r || !r->job) continue;
        const ob_handover_state st = ob_handover_poll(r->job);
        if (ob_ctx_faulted(e->ctx)) {
            ob_err err;
            ob_err_set(&err, OB_E_DEVICE_LOST, "it failed while a prompt was handed over");
            recover(e, &err);
            return false;
        }
        waits |= st == OB_HANDOVER_RUNNING;
        if (st == OB_HANDOVER_RUNNING) continue;
        ob_handover_report done;
        ob_handover_result(r->job, &done);
        drop_job(r);
        r->n_handed = done.n_handed;
        r->handover_ms = done.ms;
        pthread_mutex_lock(&e->lock);
        e->stats.n_handovers += st == OB_HANDOVER_DONE;
        e->stats.n_handover_failed += st == OB_HANDOVER_FAILED;
        e->stats.n_handed_tok += (uint64_t)r->n_handed;
        e->stats.n_prompt_tok += (uint64_t)done.n_computed;
        e->stats.handover_s += r->handover_ms * 1e-3;
        e->slot_info[i] = (ob_slot_info){.id = i, .busy = true, .prefilling = true, .n_prompt = r->n_prompt,
                                         .n_cached = r->n_cached, .n_past = ob_seq_len(r->seq)};
        pthread_mutex_unlock(&e->lock);
    }
    return waits;
}

/* Give a waiting request a sequence. False when the cache has no room for its tokens now. */
static bool admit(ob_engine *e, ob_request *r, int32_t slot)
{
    ob_err err = {0};
    int32_t pages = (int32_t)ob_div_up(r->n_tok + 1, 64);
    int32_t reserved = 0; /* pages that running prefills will still take */
    for (int32_t i = 0; i < e->info.n_seq; i++)
        if (e->slots[i])
            reserved += ob_ctx_pages_needed(e->ctx, e->slots[i]->seq,
                                            e->slots[i]->n_tok - ob_seq_len(e->slots[i]->seq));
    if (pages + reserved > ob_ctx_pages_available(e->ctx) && reserved > 0) return false;
    ob_status s = ob_ctx_seq_new(e->ctx, &r->seq, &err);
    int32_t n_cached = 0;
    if (s == OB_OK && r->cache_prompt)
        s = ob_ctx_seq_reuse(e->ctx, r->seq, r->tok, r->n_tok, &n_cached, &err);
    if (s == OB_OK) begin_handover(e, r);
    if (r->job) n_cached = ob_seq_len(r->seq);
    if (r->t_start == 0) {
        r->t_start = ob_now_ms();
        r->queue_ms = r->t_start - r->t_submit;
        r->n_cached = n_cached;
    }
    r->prefilled = false;
    e->slots[slot] = r;
    pthread_mutex_lock(&e->lock);
    e->stats.n_running++;
    e->stats.n_cached_tok += (uint64_t)n_cached;
    pthread_mutex_unlock(&e->lock);
    if (s != OB_OK && ob_ctx_faulted(e->ctx)) recover(e, &err);
    else if (s != OB_OK) finish(e, r, OB_FINISH_ERROR, NULL, &err);
    return true;
}

static void admit_waiting(ob_engine *e)
{
    for (int32_t i = 0; i < e->info.n_seq; i++) {
        if (e->slots[i]) continue;
        pthread_mutex_lock(&e->lock);
        ob_request *r = e->queue;
        if (r) {
            e->queue = r->next;
            e->n_waiting--;
        }
        pthread_mutex_unlock(&e->lock);
        if (!r) return;
        if (ob_ctx_faulted(e->ctx) && !reopen(e, r)) continue;
        if (admit(e, r, i)) continue;
        pthread_mutex_lock(&e->lock);
        enqueue(e, r);
        pthread_mutex_unlock(&e->lock);
        return;
    }
}

/* The cache is full of live sequences: the request that ranks lowest gives its pages back (they stay
 * in the tree while there is room) and waits. */
static void park_one(ob_engine *e, const ob_err *why)
{
    ob_request *last = NULL;
    int32_t n = 0;
    for (int32_t i = 0; i < e->info.n_seq; i++) {
        ob_request *r = e->slots[i];
        if (!r) continue;
        n++;
        if (!last || r->priority < last->priority ||
            (r->priority == last->priority && r->order > last->order))
            last = r;
    }
    if (n < 2) { /* nobody to make room for */
        if (last) finish(e, last, OB_FINISH_ERROR, NULL, why);
        return;
    }
    ob_ctx_seq_keep(e->ctx, last->seq);
    park(e, last);
}

/* ------------------------------------------------------------------ batches */

/* How many prompt tokens may run in this step: the measured cost per token keeps the step within
 * max_stall_ms, so that other streams do not wait and a cancelled prefill ends soon. */
static int32_t prefill_budget(const ob_engine *e, int32_t n_decode)
{
    int32_t room = e->info.n_ubatch - n_decode;
    if (e->ms_per_tok <= 0) return OB_MIN(room, 4 * MIN_CHUNK); /* the first one is a probe */
    double fit = e->max_stall_ms / e->ms_per_tok;
    return (int32_t)OB_MIN((double)room, OB_MAX((double)MIN_CHUNK, fit));
}

/* One token of every decoding sequence, then prompt tokens of the others, oldest first. */
static int32_t form_batch(ob_engine *e, int32_t *n_prefill)
{
    int32_t n = 0, n_decode = 0;
    *n_prefill = 0;
    for (int32_t i = 0; i < e->info.n_seq; i++) {
        ob_request *r = e->slots[i];
        if (!r || !r->prefilled || r->job) continue;
        const int32_t done = ob_seq_len(r->seq); /* one less than there are, but after drafts that were wrong */
        e->chunks[n] = (ob_chunk){.seq = r->seq, .tok = r->tok + done, .n_tok = r->n_tok - done, .n_out = 1,
                                  .pics = r->pics, .n_pics = r->n_pics};
        e->chunk_slot[n] = i;
        n_decode += e->chunks[n++].n_tok;
    }
    int32_t budget = prefill_budget(e, n_decode), room = e->info.n_ubatch - n_decode;
    while (budget > 0) {
        int32_t best = -1;
        for (int32_t i = 0; i < e->info.n_seq; i++) {
            ob_request *r = e->slots[i];
            if (!r || r->prefilled || r->job) continue;
            bool taken = false;
            for (int32_t k = 0; k < n; k++) taken |= e->chunk_slot[k] == i;
            if (taken) continue;
            if (best < 0 || r->priority > e->slots[best]->priority ||
                (r->priority == e->slots[best]->priority && r->order < e->slots[best]->order))
                best = i;
        }
        if (best < 0) break;
        ob_request *r = e->slots[best];
        const int32_t done = ob_seq_len(r->seq), cut = ob_ctx_resume_at(e->ctx, r->n_tok);
        int32_t take = OB_MIN(budget, (done < cut ? cut : r->n_tok) - done);
        take = ob_ctx_chunk_size(e->ctx, r->seq, r->pics, r->n_pics, take, room);
        if (take == 0) break; /* a picture for which this step has no room left */
        bool last = done + take == r->n_tok;
        e->chunks[n] = (ob_chunk){.seq = r->seq, .tok = r->tok + done, .n_tok = take, .n_out = last, .prompt = true,
                                   .pics = r->pics, .n_pics = r->n_pics};
        e->chunk_slot[n++] = best;
        budget -= take;
        room -= take;
        *n_prefill += take;
    }
    return n;
}

/* Tokens of a step, and those of them that are drafts. */
static int32_t step_rows(const ob_engine *e, int32_t n, int32_t *n_draft)
{
    int32_t rows = 0;
    *n_draft = 0;
    for (int32_t k = 0; k < n; k++) {
        rows += e->chunks[k].n_tok;
        if (!e->chunks[k].prompt) *n_draft += e->chunks[k].n_out - 1;
    }
    return rows;
}

/* Let decoding sequences, which are the whole step, try the tokens that they are likely to repeat. Drafts lie behind a
 * request's tokens until they are sampled, or others are. */
static ob_status add_drafts(ob_engine *e, int32_t n, ob_err *err)
{
    int32_t n_pages = 0;
    e->mark_ms = 0;
    for (int32_t k = 0; k < n; k++) {
        ob_request *r = e->slots[e->chunk_slot[k]];
        ob_spec_draft *d = &e->drafts[k];
        *d = ob_spec_find(r->tok, r->n_tok, r->tok + r->n_tok, OB_MIN(e->n_draft, r->max_tokens - r->n_gen - 1), &r->odds);
        for (int32_t i = 0; i < d->n; i++)
            if (ob_tok_is_eog(ob_ctx_tok(e->ctx), r->tok[r->n_tok + i])) d->n = i;
        n_pages += ob_ctx_pages_needed(e->ctx, r->seq, e->chunks[k].n_tok + d->n);
    }
    if (n_pages > ob_ctx_pages_available(e->ctx)) return OB_OK;
    /* So few that all of them could be read again, with a token of every other sequence. */
    const int32_t room = (e->info.n_ubatch - e->info.n_seq) / n - 1;
    const int32_t most = ob_spec_choose(&e->costs, e->drafts, n, room);
    const double t0 = ob_now_ms();
    for (int32_t k = 0; k < n; k++) {
        ob_chunk *ch = &e->chunks[k];
        int32_t take = OB_MIN(most, e->drafts[k].n);
        /* States are kept for later prompts where a page is full: no step may go past that. */
        if (e->has_states) take = OB_MIN(take, -(ob_seq_len(ch->seq) + ch->n_tok) & (OB_SEQ_PAGE_TOK - 1));
        if (take < 1) continue;
        if (e->has_states) {
            const ob_status s = ob_ctx_seq_mark(e->ctx, ch->seq, err);
            if (s != OB_OK && ob_ctx_faulted(e->ctx)) return s;
            if (s != OB_OK) {
                ob_log_warn("no speculative decoding from now on: %s", err->text);
                e->n_draft = 0;
                return OB_OK;
            }
        }
        ch->n_tok += take;
        ch->n_out += take;
    }
    e->mark_ms = ob_now_ms() - t0;
    return OB_OK;
}

static void after_step(ob_engine *e, int32_t n, int32_t n_prefill, double ms)
{
    int32_t n_draft;
    const int32_t n_rows = step_rows(e, n, &n_draft);
    const bool guard = n_prefill == 0 && n_draft == 0;
    int32_t row = 0;
    if (!n_prefill) ob_spec_note_cost(&e->costs, n_rows, ob_ctx_step_ms(e->ctx) + e->mark_ms);
    if (n_prefill >= MIN_CHUNK / 2) {
        const double per_tok = ob_ctx_step_ms(e->ctx) / n_prefill;
        e->ms_per_tok = e->ms_per_tok > 0 ? 0.7 * e->ms_per_tok + 0.3 * per_tok : per_tok;
    }
    pthread_mutex_lock(&e->lock);
    e->stats.n_steps++;
    e->stats.n_prompt_tok += (uint64_t)n_prefill;
    e->stats.n_drafted += (uint64_t)n_draft;
    if (n_prefill) e->stats.prompt_s += ms * 1e-3;
    ob_ctx_cache_stats(e->ctx, &e->stats.kv_tok_used, &e->stats.kv_tok_cached, &e->stats.kv_tok_total);
    for (int32_t k = 0; k < n; k++) {
        int32_t i = e->chunk_slot[k];
        ob_request *r = e->slots[i];
        e->slot_info[i] = (ob_slot_info){.id = i, .busy = true, .prefilling = !r->prefilled,
                                         .n_prompt = r->n_prompt, .n_cached = r->n_cached,
                                         .n_past = ob_seq_len(r->seq), .n_gen = r->n_gen};
    }
    pthread_mutex_unlock(&e->lock);
    for (int32_t k = 0; k < n; k++) {
        if (!e->chunks[k].n_out) continue;
        ob_request *r = e->slots[e->chunk_slot[k]];
        if (!r->prefilled) {
            r->prefilled = true;
            if (r->cache_prompt) ob_ctx_seq_publish(e->ctx, r->seq);
        }
        take_tokens(e, k, row, guard);
        row += e->chunks[k].n_out;
    }
}

/* False: there was nothing to run. */
static bool run_step(ob_engine *e)
{
    int32_t n_prefill, n_draft;
    int32_t n = form_batch(e, &n_prefill);
    if (n == 0) return false;
    ob_err err = {0};
    const double t0 = ob_now_ms();
    ob_status s = e->n_draft && n_prefill == 0 ? add_drafts(e, n, &err) : OB_OK;
    ob_alloc_guard(n_prefill == 0 && step_rows(e, n, &n_draft) == n); /* with drafts it may be the first of its size */
    if (s == OB_OK) s = ob_ctx_step(e->ctx, e->chunks, n, NULL, &err);
    ob_alloc_guard(false);
    if (s == OB_OK) {
        after_step(e, n, n_prefill, ob_now_ms() - t0);
    } else if (ob_ctx_faulted(e->ctx)) {
        recover(e, &err);
    } else if (s == OB_E_NO_MEMORY) {
        park_one(e, &err);
    } else {
        ob_log_warn("step failed: %s", err.text);
        for (int32_t k = 0; k < n; k++)
            finish(e, e->slots[e->chunk_slot[k]], OB_FINISH_ERROR, NULL, &err);
    }
    return true;
}

/* Every running request waits for the prefill device. */
static void wait_for_news(ob_engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (!e->news) pthread_cond_wait(&e->wake, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

static void *engine_main(void *arg)
{
    ob_engine *e = arg;
    for (;;) {
        pthread_mutex_lock(&e->lock);
        while (!e->stopping && !e->queue && e->stats.n_running == 0)
            pthread_cond_wait(&e->wake, &e->lock);
        e->news = false;
        bool stop = e->stopping;
        pthread_mutex_unlock(&e->lock);
        if (stop) {
            for (int32_t i = 0; i < e->info.n_seq; i++)
                if (e->slots[i]) atomic_store(&e->slots[i]->cancelled, true);
            pthread_mutex_lock(&e->lock);
            for (ob_request *r = e->queue; r; r = r->next) atomic_store(&r->cancelled, true);
            pthread_mutex_unlock(&e->lock);
        }
        drop_cancelled(e);
        if (stop) return NULL;
        admit_waiting(e);
        const bool waits = e->handover && take_handed(e);
        if (!run_step(e) && waits) wait_for_news(e);
    }
}

/* ------------------------------------------------------------------ life */

/* A device that cannot be had is told of, and prompts are computed where all else is; a name that nobody knows is an
 * error. */
static ob_status open_handover(ob_engine *e, const ob_engine_params *p, ob_err *err)
{
    ob_dev_info dev;
    ob_err local;
    if (!p->prefill_device || !*p->prefill_device) return OB_OK;
    if (!err) err = &local;
    const ob_status s = ob_handover_new(p, e->ctx, wake, e, &e->handover, err);
    if (s == OB_E_NOT_FOUND || s == OB_E_INVALID) return ob_err_prefix(err, s, "--prefill-device");
    if (s != OB_OK) {
        ob_log_warn("prompts are computed on %s: prefill device %.40s: %s", e->info.device.kind, p->prefill_device, err->text);
        return OB_OK;
    }
    ob_handover_describe(e->handover, &dev);
    snprintf(e->info.prefill_device, sizeof e->info.prefill_device, "%s", dev.kind);
    e->info.prefill_soft = dev.caps & OB_DEV_SOFT;
    return OB_OK;
}

/* Most tokens that a sequence drafts; 0: it does not. */
static int32_t draft_limit(const ob_engine *e, const ob_engine_params *p)
{
    if (p->speculate == OB_SPECULATE_OFF || !e->info.causal) return 0;
    if (p->speculate == OB_SPECULATE_AUTO && !(e->info.device.caps & OB_DEV_DYNAMIC_ROWS)) return 0;
    return p->n_draft > 0 ? OB_MIN(p->n_draft, (int32_t)OB_MAX_DRAFT_TOK) : (int32_t)OB_MAX_DRAFT_TOK;
}

ob_status ob_engine_new(const ob_engine_params *p, ob_engine **out, ob_err *err)
{
    ob_status s = OB_OK;
    ob_seq_layout layout;
    ob_engine *e = ob_calloc(1, sizeof *e);
    if (!e) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the engine");
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    e->n_queue_max = p->n_queue > 0 ? p->n_queue : 1024;
    e->max_stall_ms = p->max_stall_ms > 0 ? p->max_stall_ms : 150;
    OB_GOTO(ob_ctx_new(p, &e->ctx, err));
    ob_ctx_describe(e->ctx, &e->info);
    OB_GOTO(open_handover(e, p, err));
    size_t n = (size_t)e->info.n_seq;
    e->slots = ob_calloc(n, sizeof(ob_request *));
    e->chunks = ob_calloc(n, sizeof *e->chunks);
    e->chunk_slot = ob_calloc(n, sizeof *e->chunk_slot);
    e->slot_info = ob_calloc(n, sizeof *e->slot_info);
    e->row = ob_calloc((size_t)e->info.n_vocab, sizeof *e->row);
    e->drafts = ob_calloc(n, sizeof *e->drafts);
    if (!e->slots || !e->chunks || !e->chunk_slot || !e->slot_info || !e->row || !e->drafts) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for %d slots", e->info.n_seq);
        goto out;
    }
    for (int32_t i = 0; i < e->info.n_seq; i++) e->slot_info[i].id = i;
    e->eog = ob_tok_eog(ob_ctx_tok(e->ctx), &e->n_eog);
    ob_ctx_seq_layout(e->ctx, &layout);
    e->has_states = layout.state_bytes > 0;
    e->n_draft = draft_limit(e, p);
    ob_ctx_cache_stats(e->ctx, &e->stats.kv_tok_used, &e->stats.kv_tok_cached, &e->stats.kv_tok_total);
    if (pthread_create(&e->thread, NULL, engine_main, e)) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "cannot start the engine's thread");
        goto out;
    }
    e->started = true;
    *out = e;
    return OB_OK;
out:
    ob_engine_free(e);
    return s;
}

void ob_engine_free(ob_engine *e)
{
    if (!e) return;
    if (e->started) {
        pthread_mutex_lock(&e->lock);
        e->stopping = true;
        wake_locked(e);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    ob_handover_free(e->handover);
    ob_ctx_free(e->ctx);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    ob_free(e->slots);
    ob_free(e->chunks);
    ob_free(e->chunk_slot);
    ob_free(e->slot_info);
    ob_free(e->row);
    ob_free(e->drafts);
    ob_free(e);
}

void ob_engine_describe(const ob_engine *e, ob_engine_info *out) { *out = e->info; }
const ob_tok *ob_engine_tok(const ob_engine *e) { return ob_ctx_tok(e->ctx); }
const ob_file *ob_engine_file(const ob_engine *e) { return ob_ctx_file(e->ctx); }

void ob_engine_get_stats(ob_engine *e, ob_engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->n_waiting = e->n_waiting;
    pthread_mutex_unlock(&e->lock);
    ob_ctx_expert_stats(e->ctx, &out->experts);
}

int ob_engine_get_slots(ob_engine *e, ob_slot_info *out, int cap)
{
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < e->info.n_seq && i < cap; i++) out[i] = e->slot_info[i];
    pthread_mutex_unlock(&e->lock);
    return e->info.n_seq;
}
