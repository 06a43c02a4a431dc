/* A generation: one request's prompts times n choices, each a request of the engine.
 *
 *   prepare (worker) -> submit (io) -> tokens (engine -> mailbox -> io) -> frames or one reply
 *
 * The engine's callback copies a token into the choice's buffer under the mailbox's lock and
 * returns; everything else happens here, on the io thread. A generation outlives its connection:
 * when the client goes, its engine requests are cancelled, and it is freed when the last of them
 * has ended. */
#include "serve/serve_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/math.h"

#define PING_S 15
#define INCOMING_BYTES \
    4096 /* reserved at the start: enough for a step's tokens, log-probabilities too */

typedef struct record { /* followed by ob_logprob[n_top], then text */
    int32_t id;
    float logprob;
    int32_t n_top;
    uint32_t text_len;
} record;

static void gen_fail(ob_gen *g, const ob_err *err);

/* --- engine thread --------------------------------------------------------------------------- */

static void on_engine_event(void *arg, const ob_event *ev)
{
    ob_choice *c = arg;
    ob_mbox *m = &c->gen->job.srv->mbox;
    pthread_mutex_lock(&m->lock);
    if (ev->id >= 0 || ev->text_len) {
        record r = {ev->id, ev->chosen.logprob, ev->n_top, (uint32_t)ev->text_len};
        size_t top_bytes = (size_t)ev->n_top * sizeof *ev->top;
        if (ob_buf_reserve(&c->incoming, sizeof r + top_bytes + ev->text_len) == OB_OK) {
            ob_buf_add(&c->incoming, &r, sizeof r);
            ob_buf_add(&c->incoming, ev->top, top_bytes);
            ob_buf_add(&c->incoming, ev->text, ev->text_len);
        } else {
            c->overflow = true;
        }
    }
    c->timings = ev->timings;
    if (ev->done) {
        c->end_in = true;
        c->finish = ev->finish;
        if (ev->finish == OB_FINISH_ERROR) c->end_err = ev->err;
    }
    bool wake = ob_mbox_post_locked(m, &c->post);
    pthread_mutex_unlock(&m->lock);
    /* c may be gone from here on */
    if (wake) ob_mbox_wake(m);
}

/* --- pieces of replies ----------------------------------------------------------------------- */

const char *ob_gen_finish_name(const ob_choice *c)
{
    return c->finish == OB_FINISH_LENGTH ? "length" : "stop";
}

void ob_gen_add_logprob(float lp, ob_buf *out)
{
    ob_buf_add_double(out, isfinite(lp) ? round((double)lp * 1e6) / 1e6 : -9999.0);
}

void ob_gen_add_token_text(ob_gen *g, int32_t id, ob_buf *out)
{
    size_t len;
    const char *s = ob_tok_piece(g->job.srv->tok, id, &len);
    ob_buf_add_json(out, s, len);
}

void ob_gen_add_token_bytes(ob_gen *g, int32_t id, ob_buf *out)
{
    size_t len;
    const char *s = ob_tok_piece(g->job.srv->tok, id, &len);
    ob_buf_addc(out, '[');
    for (size_t i = 0; i < len; i++) ob_buf_addf(out, i ? ",%u" : "%u", (unsigned char)s[i]);
    ob_buf_addc(out, ']');
}

/* Does the engine of this request have a prefill device? */
static bool prefills(const ob_gen *g)
{
    return g->job.srv->info.prefill_device[0] && (!g->routed.engine || g->routed.engine == g->job.srv->engine);
}

/* On an emulation times are no speed. */
static bool emulated(const ob_gen *g)
{
    const ob_engine_info *i = &g->job.srv->info;
    return (i->device.caps & OB_DEV_SOFT) || (i->prefill_soft && prefills(g));
}

static double per_second(int32_t n, double ms) { return ms > 0 ? n * 1e3 / ms : 0; }

static void add_timings(const ob_gen *g, const ob_timings *t, ob_buf *out)
{
    const int32_t n_run = t->n_prompt - t->n_cached;
    const bool drafts = t->n_drafted > 0, speeds = !emulated(g), prefill = prefills(g); /* on another device, perhaps */
    const struct {
        const char *name;
        double value;
        bool show;
    } rows[] = {{"cache_n", t->n_cached, true},
                {"prompt_n", n_run, true},
                {"prompt_ms", t->prompt_ms, true},
                {"prompt_per_second", per_second(n_run, t->prompt_ms), speeds},
                {"predicted_n", t->n_gen, true},
                {"predicted_ms", t->gen_ms, true},
                {"predicted_per_second", per_second(t->n_gen, t->gen_ms), speeds},
                {"queue_ms", t->queue_ms, true},
                {"draft_n", t->n_drafted, drafts},
                {"draft_n_accepted", t->n_draft_right, drafts},
                {"handed_n", t->n_handed, prefill},
                {"handover_ms", t->handover_ms, prefill}};
    ob_buf_adds(out, "\"timings\":{");
    for (size_t i = 0; i < OB_COUNT(rows); i++) {
        if (!rows[i].show) continue;
        ob_buf_addf(out, "%s\"%s\":", i ? "," : "", rows[i].name);
        ob_buf_add_double(out, round(rows[i].value * 1e3) / 1e3);
    }
    ob_buf_addc(out, '}');
}

static void add_usage(ob_gen *g, ob_buf *out)
{
    long long n_prompt = 0, n_cached = 0, n_gen = 0;
    for (size_t i = 0; i < g->n_prompts; i++) {
        n_prompt += (long long)g->prompts[i].n_ids;
        /* Later choices find the prompt of their first one; that is no news to the client. */
        n_cached += g->choices[i * (size_t)g->params.n].timings.n_cached;
    }
    for (int32_t i = 0; i < g->n_choices; i++) n_gen += g->choices[i].timings.n_gen;
    ob_buf_addf(
        out,
        "\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
        "\"prompt_tokens_details\":{\"cached_tokens\":%lld}}",
        n_prompt, n_gen, n_prompt + n_gen, n_cached);
}

static void add_header(ob_gen *g, const char *object, ob_buf *out)
{
    ob_buf_addf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", g->id, object,
                (long long)g->created);
    const ob_server *s = g->job.srv;
    const char *id = g->named_long ? s->long_id : s->model_id;
    ob_buf_add_json(out, id, strlen(id));
    ob_buf_addf(out, ",\"system_fingerprint\":\"%s\",\"choices\":[", g->routed.is_long ? s->long_fingerprint : s->fingerprint);
}

void ob_gen_begin_frame(ob_gen *g, ob_buf *out)
{
    ob_buf_adds(out, "data: ");
    add_header(g, g->api->chunk_object, out);
}

void ob_gen_end_frame(ob_gen *g, const ob_timings *t, ob_buf *out)
{
    ob_buf_addc(out, ']');
    if (g->params.include_usage) ob_buf_adds(out, ",\"usage\":null");
    if (t) {
        ob_buf_addc(out, ',');
        add_timings(g, t, out);
    }
    ob_buf_adds(out, "}\n\n");
}

/* --- sending --------------------------------------------------------------------------------- */

/* What the reply's head says: where routing sent the request, and how much of its prompt was computed where (nothing,
 * when the head is sent before that is known). */
static void add_headers(ob_gen *g)
{
    char lines[300];
    int n = snprintf(lines, sizeof lines, "%s", g->routed.engine ? g->routed.header : "");
    pthread_mutex_lock(&g->job.srv->mbox.lock);
    const ob_timings t = g->choices[0].timings;
    pthread_mutex_unlock(&g->job.srv->mbox.lock);
    if (prefills(g) && g->begun)
        snprintf(lines + n, sizeof lines - (size_t)n, "X-1bit-Prefill: %s %d %.1f\r\n",
                 t.n_handed ? g->job.srv->info.prefill_device : g->job.srv->info.device.kind, t.n_handed, t.handover_ms);
    ob_conn_add_header(g->job.conn, lines);
}

/* Send the frames gathered in g->out. */
static void flush_frames(ob_gen *g)
{
    ob_conn *conn = g->job.conn;
    if (!conn || !g->out.len) return;
    if (!g->stream_begun) add_headers(g);
    if (!g->stream_begun) ob_conn_stream_begin(conn, "text/event-stream; charset=utf-8");
    g->stream_begun = true;
    ob_conn_stream_add(conn, g->out.data, g->out.len);
    ob_buf_clear(&g->out);
    if (ob_conn_backlog(conn) > OB_MAX_BACKLOG_BYTES) {
        g->job.srv->metrics.slow_clients++;
        ob_conn_abort(conn, "the reader of a stream is too slow"); /* abandons g */
    }
}

static void finish_ok(ob_gen *g)
{
    ob_conn *conn = g->job.conn;
    if (!conn) return;
    ob_metrics_note_done(&g->job.srv->metrics, (ob_now_ms() - g->t_start_ms) * 1e-3);
    if (g->routed.engine) ob_routing_note_done(g->job.srv->routing, &g->routed, ob_now_ms() - g->t_start_ms);
    if (g->params.stream) {
        if (g->params.include_usage) {
            ob_gen_begin_frame(g, &g->out);
            ob_buf_adds(&g->out, "],");
            add_usage(g, &g->out);
            ob_buf_adds(&g->out, "}\n\n");
        }
        ob_buf_adds(&g->out, "data: [DONE]\n\n");
        flush_frames(g);
        if (g->job.conn) ob_conn_stream_end(g->job.conn);
    } else {
        ob_buf *out = &g->job.reply;
        add_headers(g);
        add_header(g, g->api->object, out);
        for (int32_t i = 0; i < g->n_choices; i++) {
            if (i) ob_buf_addc(out, ',');
            g->api->choice(g, &g->choices[i], out);
            for (int k = 0; k < 4; k++)
                if (g->choices[i].lp[k].failed) out->failed = g->choices[i].lp[k].failed;
            if (g->choices[i].text.failed) out->failed = g->choices[i].text.failed;
            if (g->choices[i].call_json.failed) out->failed = g->choices[i].call_json.failed;
        }
        ob_buf_adds(out, "],");
        add_usage(g, out);
        ob_buf_addc(out, ',');
        add_timings(g, &g->choices[0].timings, out);
        ob_buf_addc(out, '}');
        ob_conn_reply_json(conn, out);
    }
    g->job.conn = NULL;
}

/* --- life ------------------------------------------------------------------------------------ */

static void gen_destroy(ob_job *job)
{
    ob_gen *g = (ob_gen *)job;
    if (g->live) {
        if (g->prev) g->prev->next = g->next;
        else job->srv->gens = g->next;
        if (g->next) g->next->prev = g->prev;
    }
    for (int32_t i = 0; i < g->n_choices; i++) {
        ob_choice *c = &g->choices[i];
        ob_buf_deinit(&c->incoming);
        ob_buf_deinit(&c->draining);
        ob_buf_deinit(&c->text);
        ob_buf_deinit(&c->reasoning);
        ob_buf_deinit(&c->call_json);
        ob_calls_deinit(&c->calls);
        ob_gram_free(c->gram);
        for (int k = 0; k < 4; k++) ob_buf_deinit(&c->lp[k]);
    }
    for (size_t i = 0; i < g->n_prompts; i++) {
        if (g->prompts[i].ids_taken) ob_free(g->prompts[i].ids);
        ob_draft_deinit(&g->prompts[i].draft);
    }
    if (g->ping) event_free(g->ping);
    ob_routing_drop(g->ticket);
    ob_buf_deinit(&g->out);
}

/* Free when nothing of it is left anywhere. */
static void gen_settle(ob_gen *g)
{
    if (!g->busy && !g->job.conn && g->n_running == 0) ob_job_free(&g->job);
}

static void cancel_running(ob_gen *g)
{
    for (int32_t i = 0; i < g->n_choices; i++)
        if (g->choices[i].req) ob_request_cancel(g->choices[i].req);
}

/* The client has gone. */
static void gen_abandon(ob_job *job)
{
    ob_gen *g = (ob_gen *)job;
    if (!g->live) return; /* a worker has it; gen_prepared will free it */
    cancel_running(g);
    gen_settle(g);
}

/* End with an error: as the reply if none has begun, else as a frame. */
static void gen_fail(ob_gen *g, const ob_err *err)
{
    if (g->failed) return;
    g->failed = true;
    cancel_running(g);
    ob_conn *conn = g->job.conn;
    if (!conn) return;
    if (g->stream_begun) {
        ob_buf_adds(&g->out, "data: ");
        ob_serve_write_error(&g->out, err, NULL);
        ob_buf_adds(&g->out, "\n\ndata: [DONE]\n\n");
        flush_frames(g);
        if (g->job.conn) ob_conn_stream_end(g->job.conn);
    } else {
        ob_conn_reply_err(conn, err, NULL);
    }
    g->job.conn = NULL;
}

static void submit(ob_gen *g, ob_choice *c)
{
    const ob_gen_params *p = &g->params;
    ob_request_params rp;
    ob_request_defaults(&rp);
    rp.prompt = c->prompt->ids;
    rp.n_prompt = c->prompt->n_ids;
    rp.pictures = c->prompt->draft.pics;
    rp.n_pictures = c->prompt->draft.n_pics;
    rp.max_tokens = p->max_tokens;
    rp.sampler = p->sampler;
    /* Choices of one request differ: each draws from its own seed. */
    rp.sampler.seed += (uint64_t)c->index;
    rp.stop = p->stop;
    rp.n_stop = p->n_stop;
    rp.n_top_logprobs = p->logprobs ? p->n_top_logprobs : -1;
    rp.ignore_eos = p->ignore_eos;
    rp.gram = c->gram;
    rp.cache_prompt = p->cache_prompt;
    rp.special = p->special;
    rp.on_event = on_engine_event;
    rp.arg = c;
    ob_err err;
    ob_engine *engine = g->routed.engine ? g->routed.engine : g->job.srv->engine;
    if (ob_engine_submit(engine, &rp, &c->req, &err) == OB_OK) g->n_running++;
    else gen_fail(g, &err);
}

/* The other choices of a prompt wait for the first one's news, so that they find it in the cache.
 */
static void submit_siblings(ob_gen *g, ob_choice *first)
{
    for (int32_t i = 1; i < g->params.n && !g->failed && g->job.conn; i++) submit(g, first + i);
}

/* --- tokens on the io thread ----------------------------------------------------------------- */

static void take_token(ob_gen *g, ob_choice *c, const ob_token *t)
{
    if (!g->begun) {
        g->begun = true;
        ob_metrics_note_first_token(&g->job.srv->metrics, (ob_now_ms() - g->t_start_ms) * 1e-3);
        if (g->routed.engine) ob_routing_note_first(g->job.srv->routing, &g->routed, ob_now_ms() - g->t_start_ms);
    }
    if (g->params.stream) g->api->chunk(g, c, t, &g->out);
    else g->api->keep(g, c, t);
}

static void take_records(ob_gen *g, ob_choice *c)
{
    const char *p = c->draining.data, *end = p + c->draining.len;
    while (p < end) {
        record r;
        memcpy(&r, p, sizeof r);
        ob_logprob top[OB_MAX_TOP_LOGPROBS];
        int32_t n_top = OB_MIN(r.n_top, (int32_t)OB_MAX_TOP_LOGPROBS);
        memcpy(top, p + sizeof r, (size_t)n_top * sizeof *top);
        p += sizeof r + (size_t)r.n_top * sizeof *top;
        ob_token t = {r.id, r.logprob, top, n_top, p, r.text_len};
        p += r.text_len;
        take_token(g, c, &t);
    }
}

/* A device failed before its first token, and another target can take the request. */
static bool move_elsewhere(ob_gen *g, ob_choice *c)
{
    const bool device = c->end_err.code == OB_E_DEVICE || c->end_err.code == OB_E_DEVICE_LOST;
    if (c->finish != OB_FINISH_ERROR || !device || !g->routed.engine || g->moved) return false;
    const bool other = ob_routing_failed(g->job.srv->routing, &g->routed, &c->end_err);
    if (!other || g->begun || g->failed || !g->job.conn || g->n_choices > 1) return false;
    g->moved = true;
    pthread_mutex_lock(&g->job.srv->mbox.lock);
    c->end_in = false;
    pthread_mutex_unlock(&g->job.srv->mbox.lock);
    c->end_err = (ob_err){0};
    ob_conn_add_header(g->job.conn, g->routed.header);
    submit(g, c);
    return true;
}

static void take_end(ob_gen *g, ob_choice *c)
{
    ob_request_free(c->req);
    c->req = NULL;
    g->n_running--;
    if (move_elsewhere(g, c)) return;
    c->ended = true;
    g->n_ended++;
    if (c->overflow)
        ob_err_set(&c->end_err, OB_E_NO_MEMORY, "no memory for the tokens of this reply");
    if (c->finish == OB_FINISH_ERROR || c->overflow) {
        gen_fail(g, &c->end_err);
    } else if (c->finish == OB_FINISH_CANCELLED) {
        ob_err err;
        ob_err_set(&err, OB_E_CANCELLED, "the generation was cancelled");
        gen_fail(g, &err);
    } else if (g->job.conn && g->params.stream) {
        g->api->chunk_end(g, c, &g->out);
    }
}

static void on_choice_news(ob_post *post)
{
    ob_choice *c = (ob_choice *)post;
    ob_gen *g = c->gen;
    ob_mbox *m = &g->job.srv->mbox;
    pthread_mutex_lock(&m->lock);
    ob_buf full = c->incoming;
    c->incoming = c->draining;
    c->draining = full;
    /* If the engine has posted again meanwhile, this note still stands in the list: the end waits
     * for it, since freeing now would leave it dangling. */
    bool end = c->end_in && !post->queued;
    pthread_mutex_unlock(&m->lock);

    g->busy = true;
    if (g->job.conn) take_records(g, c);
    ob_buf_clear(&c->draining);
    if (end) take_end(g, c);
    if (!c->begun) {
        c->begun = true;
        if (c->index % g->params.n == 0) submit_siblings(g, c);
    }
    if (g->params.stream) flush_frames(g);
    if (g->n_ended == g->n_choices && !g->failed) finish_ok(g);
    g->busy = false;
    gen_settle(g);
}

static void on_ping(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    ob_gen *g = arg;
    if (!g->job.conn) return;
    g->busy = true;
    ob_buf_adds(&g->out, ": still here\n\n"); /* a comment: clients skip it */
    flush_frames(g);
    g->busy = false;
    gen_settle(g);
}

/* --- start ----------------------------------------------------------------------------------- */

static void gen_prepared(ob_job *job)
{
    ob_gen *g = (ob_gen *)job;
    ob_server *s = job->srv;
    if (!job->conn || job->status != OB_OK) {
        ob_job_reply(job);
        return;
    }
    if (s->cancelling) {
        job->status = ob_err_set(&job->err, OB_E_CANCELLED, "the server is stopping");
        ob_job_reply(job);
        return;
    }
    if (g->routed.engine) ob_conn_add_header(job->conn, g->routed.header);
    g->live = true;
    g->next = s->gens;
    if (s->gens) s->gens->prev = g;
    s->gens = g;
    g->busy = true;
    if (g->params.stream) {
        struct timeval tv = {.tv_sec = PING_S};
        g->ping = event_new(s->base, -1, EV_PERSIST, on_ping, g);
        if (g->ping) event_add(g->ping, &tv);
    }
    for (size_t i = 0; i < g->n_prompts && !g->failed; i++)
        submit(g, &g->choices[i * (size_t)g->params.n]);
    g->busy = false;
    gen_settle(g);
}

void ob_gen_start(ob_conn *c, const ob_gen_api *api, ob_status (*prepare)(ob_job *job))
{
    if (!ob_conn_server(c)->engine) {
        ob_err err;
        ob_err_set(&err, OB_E_UNSUPPORTED, "this model is an encoder: it cannot generate");
        ob_conn_reply_err(c, &err, "model");
        return;
    }
    ob_gen *g = (ob_gen *)ob_job_new(c, sizeof *g);
    if (!g) return;
    const ob_sv want = ob_conn_head(c)->route_target;
    g->api = api;
    if (want.len) snprintf(g->want_target, sizeof g->want_target, "%.*s", (int)want.len, want.data);
    g->t_start_ms = ob_now_ms();
    g->created = ob_unix_seconds();
    unsigned char r[12];
    if (getrandom(r, sizeof r, 0) != (ssize_t)sizeof r) memset(r, 0, sizeof r);
    int n = snprintf(g->id, sizeof g->id, "%s", api->id_prefix);
    for (size_t i = 0; i < sizeof r; i++)
        n += snprintf(g->id + n, sizeof g->id - (size_t)n, "%02x", r[i]);
    ob_buf_init(&g->out, OB_MAX_REPLY_BYTES);
    g->job.run = prepare;
    g->job.finish = gen_prepared;
    g->job.abandon = gen_abandon;
    g->job.destroy = gen_destroy;
    ob_gen_params_defaults(&g->params);
    ob_job_queue(&g->job);
}

void ob_gen_cancel_all(ob_server *s)
{
    ob_err err;
    ob_err_set(&err, OB_E_CANCELLED, "the server is stopping");
    for (ob_gen *g = s->gens, *next; g; g = next) {
        next = g->next;
        g->busy = true;
        gen_fail(g, &err);
        g->busy = false;
        gen_settle(g);
    }
}

/* --- worker ---------------------------------------------------------------------------------- */

static ob_status check_prompt(ob_gen *g, const ob_prompt *p, const char *param)
{
    ob_job *job = &g->job;
    long n_ctx = job->srv->max_ctx;
    if (p->n_ids == 0) return ob_job_fail(job, param, OB_E_INVALID, "the prompt is empty");
    if ((long)p->n_ids < n_ctx) return OB_OK;
    ob_job_fail(
        job, param, OB_E_CONTEXT_LENGTH,
        "the prompt has %zu tokens; the context holds %ld, of which one must be left to answer",
        p->n_ids, n_ctx);
    job->err.n_prompt_tok = (long)p->n_ids;
    job->err.n_ctx = n_ctx;
    return OB_E_CONTEXT_LENGTH;
}

ob_status ob_gen_tokenize(ob_gen *g, ob_prompt *p, const char *param, const char *text, size_t len,
                          unsigned flags)
{
    const ob_tok *tok = g->job.srv->tok;
    OB_TRY(ob_tok_encode(tok, text, len, flags, &p->ids, &p->n_ids, &g->job.err));
    p->ids_taken = true;
    return check_prompt(g, p, param);
}

ob_status ob_gen_tokenize_marked(ob_gen *g, ob_prompt *p, const char *param, const char *text, size_t len,
                                 unsigned flags, const ob_pictures *pics)
{
    OB_TRY(ob_draft_add_marked(&p->draft, g->job.srv->tok, text, len, flags, pics->mark, pics->drafts, pics->n,
                               &g->job.err));
    p->ids = p->draft.ids;
    p->n_ids = p->draft.n;
    return check_prompt(g, p, param);
}

ob_status ob_gen_route_begin(ob_gen *g)
{
    ob_job *job = &g->job;
    if (!job->srv->routing) return OB_OK;
    g->named_long = ob_params_names_long(job);
    const char *want = g->named_long && !*g->want_target ? "long" : g->want_target;
    return ob_routing_begin(job->srv->routing, job->json, want, &g->ticket, &job->err);
}

void ob_gen_route_end(ob_gen *g)
{
    if (!g->ticket) return;
    ob_routing_end(g->job.srv->routing, g->ticket, g->n_prompts ? (int32_t)g->prompts[0].n_ids : 0, &g->routed);
    g->ticket = NULL;
}

ob_status ob_gen_make_choices(ob_gen *g, const char *param)
{
    ob_job *job = &g->job;
    const ob_server *s = job->srv;
    OB_TRY(ob_sampler_check(&g->params.sampler, s->info.n_vocab, &job->err));
    for (size_t i = 0; i < g->n_prompts; i++) OB_TRY(check_prompt(g, &g->prompts[i], param));
    size_t n = g->n_prompts * (size_t)g->params.n;
    if (n > OB_MAX_N_CHOICES)
        return ob_job_fail(job, "n", OB_E_LIMIT, "prompts times 'n' may be %u, not %zu",
                           OB_MAX_N_CHOICES, n);
    g->choices = ob_arena_array(&job->arena, n, sizeof *g->choices);
    if (!g->choices) return ob_job_fail(job, NULL, OB_E_NO_MEMORY, "no memory for the request");
    for (g->n_choices = 0; g->n_choices < (int32_t)n; g->n_choices++) {
        ob_choice *c = &g->choices[g->n_choices];
        c->post.fn = on_choice_news;
        c->gen = g;
        c->index = g->n_choices;
        c->prompt = &g->prompts[c->index / g->params.n];
        ob_buf_init(&c->incoming, OB_MAX_REPLY_BYTES);
        ob_buf_init(&c->draining, OB_MAX_REPLY_BYTES);
        ob_buf_init(&c->text, OB_MAX_REPLY_BYTES);
        ob_buf_init(&c->reasoning, OB_MAX_REPLY_BYTES);
        ob_buf_init(&c->call_json, OB_MAX_REPLY_BYTES);
        ob_calls_init(&c->calls, g->params.tools ? s->calls : NULL, g->params.tools, OB_MAX_REPLY_BYTES, g->on_call, c);
        for (int k = 0; k < 4; k++) ob_buf_init(&c->lp[k], OB_MAX_REPLY_BYTES);
        /* So that the engine's callback does not allocate in the steady state. */
        ob_status a = ob_buf_reserve(&c->incoming, INCOMING_BYTES);
        ob_status b = ob_buf_reserve(&c->draining, INCOMING_BYTES);
        ob_reasoning_init(&c->split, g->params.reasoning, s->tags, g->reasoning_open);
        if (a || b) {
            g->n_choices++; /* so that destroy sees this one */
            return ob_job_fail(job, NULL, OB_E_NO_MEMORY, "no memory for the request");
        }
    }
    return OB_OK;
}
