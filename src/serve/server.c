/* Life of the server: bind, load the model beside the event loop, serve, stop with grace. */
#include "serve/serve_int.h"

#include <openssl/sha.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/math.h"
#include "route/long.h"

#define LOADER_GRACE_S 3  /* how long a stop waits for a loader */
#define STOP_TICK_US 20000

void ob_serve_defaults(ob_serve_params *p)
{
    memset(p, 0, sizeof *p);
    ob_engine_defaults(&p->engine);
    p->host = "127.0.0.1";
    p->port = 8000;
    p->timeout_s = 60;
    p->n_workers = 2;
    p->max_connections = 1024;
    p->stop_grace_s = 4;
    p->long_from = 2048;
}

/* "/models/Foo-Q4_1-00001-of-00003.gguf" -> "Foo-Q4_1" */
static char *stem_of(const char *path)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--; /* a folder */
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    const char *base = path + begin;
    size_t n = end - begin;
    size_t dot = n;
    while (dot > 0 && base[dot - 1] != '.') dot--;
    /* "v1.5" has no extension */
    if (dot > 1 && dot < n && !(base[dot] >= '0' && base[dot] <= '9')) n = dot - 1;
    int a, b, used = 0;
    if (n > 15 && sscanf(base + n - 15, "-%5d-of-%5d%n", &a, &b, &used) == 2 && used == 15) n -= 15;
    return ob_strndup(base, n);
}

/* --- loading --------------------------------------------------------------------------------- */

/* The text of a token, or NULL when the vocabulary has none such. */
static char *token_text(const ob_tok *tok, int32_t id)
{
    size_t len;
    if (id < 0) return NULL;
    const char *s = ob_tok_piece(tok, id, &len);
    return ob_strndup(s, len);
}

static void load_template(ob_server *s, ob_engine *e)
{
    ob_str text = {0};
    ob_engine_info info;
    ob_engine_describe(e, &info);
    const char *stand_in = ob_tmpl_builtin(info.arch);
    if (s->params.chat_template) text = (ob_str){s->params.chat_template, strlen(s->params.chat_template)};
    if (text.len || ob_kv_str(ob_file_find_kv(ob_engine_file(e), "tokenizer.chat_template"), &text)) {
        if (ob_tmpl_new(text.data, text.len, &s->tmpl, &s->tmpl_err) != OB_OK) {
            s->tmpl_err.code = OB_E_UNSUPPORTED;
            ob_log_warn("%s chat template cannot be used: %s", s->params.chat_template ? "the" : "the model's", s->tmpl_err.text);
        }
    } else if (ob_tmpl_new(stand_in, strlen(stand_in), &s->tmpl, &s->tmpl_err) != OB_OK) {
        ob_log_warn("no chat template: %s", s->tmpl_err.text);
    }
    s->tags = ob_reasoning_tags_of(s->tmpl ? ob_tmpl_source(s->tmpl) : "");
}

/* How the model writes tool calls, and which of the tags' parts are control tokens. */
static void load_calls(ob_server *s)
{
    if (!s->tmpl || !ob_tmpl_get_caps(s->tmpl)->tools) return;
    s->calls = ob_call_style_of(ob_tmpl_source(s->tmpl));
    if (!s->calls) return;
    const char *texts[] = {ob_call_style_open(s->calls), ob_call_style_close(s->calls), "｜DSML｜"};
    for (size_t i = 0; i < OB_COUNT(texts); i++) {
        const size_t len = strlen(texts[i]);
        const int32_t id = len ? ob_tok_find(s->tok, texts[i], len) : -1;
        if (id < 0 || ob_tok_type_of(s->tok, id) != OB_TOK_CONTROL) continue;
        ob_call_mark *m = &s->marks[s->n_marks++];
        snprintf(m->text, sizeof m->text, "%s", texts[i]);
        m->id = id;
    }
}

/* A name for "the same weights on the same kind of device": what makes replies comparable. */
static void make_fingerprint(const ob_engine_info *i, char out[32])
{
    char text[512];
    int n = snprintf(text, sizeof text, "%s|%s|%s|%s|%llu|%s", OB_VERSION, i->arch, i->name, i->quant,
                     (unsigned long long)i->n_bytes, i->device.kind);
    unsigned char d[SHA256_DIGEST_LENGTH];
    SHA256((const unsigned char *)text, (size_t)OB_MIN(n, (int)sizeof text - 1), d);
    snprintf(out, 32, "fp_%02x%02x%02x%02x%02x", d[0], d[1], d[2],
             d[3], d[4]);
}

/* Load a model for vectors or, where it has a head with one score, for pairs of texts. */
static ob_status load_encoder(ob_server *s, const char *path, const char *id, const char *also, bool may_score,
                              int32_t n_ctx, ob_err *err)
{
    ob_served *m = &s->served[s->n_served];
    ob_engine_params p = s->params.engine;
    ob_engine_info peek;
    OB_TRY(ob_encoder_peek(path, &peek, err));
    const bool scores = may_score && peek.output == OB_OUTPUT_CLASSES && peek.n_class == 1;
    p.model_path = path;
    p.embed = !scores;
    p.pooling = s->params.pooling;
    p.n_ctx = n_ctx;
    p.n_seq = 0;
    m->role = scores ? "rerank" : "embed";
    m->id = id ? ob_strdup(id) : stem_of(path);
    m->also = also;
    if (!m->id) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the server");
    s->n_served++;
    OB_TRY(ob_encoder_new(&p, &m->encoder, err));
    ob_encoder_describe(m->encoder, &m->info);
    if (!s->embed && !scores) s->embed = m;
    if (!s->rerank && (scores || !s->params.rerank_path)) s->rerank = m;
    return OB_OK;
}

/* On the device that was asked for; else on the policy's default, else on any. */
static ob_status load_engine(ob_server *s, ob_engine_params *p, ob_err *err)
{
    const char *device = s->routing ? ob_routing_default_device(s->routing) : "auto";
    if (strcmp(device, "auto") != 0 && (!p->device || !strcmp(p->device, "auto"))) {
        const char *asked = p->device;
        p->device = device;
        if (ob_engine_new(p, &s->loaded_engine, err) == OB_OK) return OB_OK;
        ob_log_warn("routing: the policy's default %s cannot be used: %s", device, err->text);
        p->device = asked;
    }
    return ob_engine_new(p, &s->loaded_engine, err);
}

/* What is wrong with the long model is told before anything is loaded. */
static ob_status prepare_long(ob_server *s, ob_engine_params *served, ob_err *err)
{
    const ob_serve_params *p = &s->params;
    OB_TRY(ob_long_check(served->model_path, p->long_path, err));
    if (served->n_ctx > 0 && served->n_ctx <= p->long_from)
        return ob_err_set(err, OB_E_INVALID, "--long-from %d with a context of %d tokens (--ctx-size): no prompt is long enough for "
                          "--long-model %.150s beside %.150s", p->long_from, served->n_ctx, p->long_path, served->model_path);
    OB_TRY(ob_share_new(&s->share, err));
    served->share = s->share;
    served->act4 = OB_ACT4_OFF; /* it is about rotated files, and the served one is not */
    return OB_OK;
}

static ob_status load_main(ob_server *s, ob_err *err)
{
    const ob_engine_params *p = &s->params.engine;
    ob_engine_info peek;
    /* A file that cannot be looked at gets its error from the engine. */
    if (ob_encoder_peek(p->model_path, &peek, NULL) == OB_OK && !peek.causal && peek.output != OB_OUTPUT_PICTURE) {
        if (s->params.mmproj_path)
            return ob_err_set(err, OB_E_INVALID, "--mmproj needs a model that generates text, and this one is an encoder");
        if (s->params.long_path)
            return ob_err_set(err, OB_E_INVALID, "--long-model needs a model that generates text, and %.150s is an encoder",
                              p->model_path);
        OB_TRY(load_encoder(s, p->model_path, s->model_id, s->params.model_name, true, p->n_ctx, err));
        s->info = s->served[0].info;
        s->tok = ob_encoder_tok(s->served[0].encoder);
        return OB_OK;
    }
    ob_engine_params with = *p;
    if (s->params.long_path) OB_TRY(prepare_long(s, &with, err));
    if (s->params.mmproj_path) {
        OB_TRY(ob_vision_new(p, s->params.mmproj_path, s->params.image_max_tok, &s->vision, err));
        with.n_picture_tok = ob_vision_max_tok(s->vision);
    }
    OB_TRY(load_engine(s, &with, err));
    ob_engine_describe(s->loaded_engine, &s->info);
    if (s->vision) OB_TRY(ob_vision_check_model(s->vision, &s->info, err));
    s->tok = ob_engine_tok(s->loaded_engine);
    s->max_ctx = s->info.n_ctx;
    if (s->routing) {
        ob_engine_info other;
        with.act4 = p->act4;
        OB_TRY(ob_routing_load(s->routing, &with, s->loaded_engine, s->model_id, err));
        if (ob_routing_long(s->routing, &other, NULL)) s->max_ctx = OB_MAX(s->max_ctx, other.n_ctx);
    }
    load_template(s, s->loaded_engine);
    load_calls(s);
    return OB_OK;
}

static ob_status load_all(ob_server *s, ob_err *err)
{
    const ob_serve_params *p = &s->params;
    OB_TRY(load_main(s, err));
    if (p->embed_path) {
        s->embed = NULL; /* what was asked for by name comes first */
        OB_TRY(load_encoder(s, p->embed_path, NULL, p->embed_name, false, 0, err));
    }
    if (p->rerank_path) {
        OB_TRY(load_encoder(s, p->rerank_path, NULL, p->rerank_name, true, 0, err));
        s->rerank = &s->served[s->n_served - 1];
        s->served[s->n_served - 1].role = "rerank";
    }
    s->bos_text = token_text(s->tok, ob_tok_bos(s->tok));
    s->eos_text = token_text(s->tok, ob_tok_eos(s->tok));
    make_fingerprint(&s->info, s->fingerprint);
    ob_engine_info i;
    if (s->routing && ob_routing_long(s->routing, &i, NULL)) make_fingerprint(&i, s->long_fingerprint);
    return OB_OK;
}

static void *loader_main(void *arg)
{
    ob_server *s = arg;
    s->load_err.code = load_all(s, &s->load_err);
    ob_mbox_post(&s->mbox, &s->loaded_post);
    return NULL;
}

static ob_server *server_of_loaded(ob_post *p)
{
    return (ob_server *)((char *)p - offsetof(ob_server, loaded_post));
}

static void on_loaded(ob_post *p)
{
    ob_server *s = server_of_loaded(p);
    pthread_join(s->loader, NULL);
    s->loader_running = false;
    if (s->load_err.code != OB_OK) {
        event_base_loopbreak(s->base);
        return;
    }
    s->engine = s->loaded_engine;
    s->ready = true;
    const ob_engine_info *i = &s->info;
    ob_log_info("ready: %s (%s, %.1fM parameters) on %s%s, context %d x %d%s%s, loaded in %.1f s",
                s->model_id, i->quant, (double)i->n_params * 1e-6, i->device.name,
                i->device.caps & OB_DEV_SOFT ? " [an emulation]" : "", i->n_ctx, i->n_seq,
                s->vision ? ", pictures by " : "", s->vision ? ob_vision_projector(s->vision) : "",
                i->load_ms * 1e-3);
    if (i->prefill_device[0])
        ob_log_info("prompts with %d new tokens or more are computed on %s%s and handed over", s->params.engine.prefill_min_tokens,
                    i->prefill_device, i->prefill_soft ? " [an emulation]" : "");
}

/* --- stopping -------------------------------------------------------------------------------- */

static void cancel_all(ob_server *s)
{
    ob_gen_cancel_all(s);
    for (int i = 0; s->ready && i < s->n_served; i++) ob_encoder_cancel_all(s->served[i].encoder);
}

static bool all_sent(const ob_server *s) { return s->n_jobs == 0 && !ob_http_any_backlog(s); }

/* Runs every STOP_TICK_US from the first stop on: leave when all is answered, cancel when time is
 * up. */
static void on_stop_tick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    ob_server *s = arg;
    double waited_s = (ob_now_ms() - s->t_stop_ms) * 1e-3;
    bool hurry = atomic_load(&s->stop_asked) > 1 || waited_s > s->params.stop_grace_s;
    if (hurry && !s->cancelling) {
        s->cancelling = true;
        s->t_cancel_ms = ob_now_ms();
        cancel_all(s);
    }
    bool given_up = s->cancelling && ob_now_ms() - s->t_cancel_ms > 500;
    if (all_sent(s) || given_up) event_base_loopbreak(s->base);
}

static void begin_stop(ob_server *s)
{
    if (s->stopping) return;
    s->stopping = true;
    s->t_stop_ms = ob_now_ms();
    ob_log_info("stopping%s", s->n_jobs ? ": waiting for running requests" : "");
    ob_http_stop_listening(s);
    ob_http_close_idle(s);
    struct timeval tv = {.tv_usec = STOP_TICK_US};
    event_add(s->stop_tick, &tv);
    on_stop_tick(-1, 0, s);
}

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
    (void)sig, (void)what;
    ob_server *s = arg;
    atomic_fetch_add(&s->stop_asked, 1);
    begin_stop(s);
}

static void on_stop_post(ob_post *p)
{
    begin_stop((ob_server *)((char *)p - offsetof(ob_server, stop_post)));
}

void ob_server_stop(ob_server *s)
{
    atomic_fetch_add(&s->stop_asked, 1);
    ob_mbox_post(&s->mbox, &s->stop_post);
}

/* --- making ---------------------------------------------------------------------------------- */

ob_status ob_serve_check(const ob_serve_params *p, ob_err *err)
{
    if (!p->engine.model_path) return ob_err_set(err, OB_E_INVALID, "no model file was given");
    if (p->long_path && p->long_from < 1)
        return ob_err_set(err, OB_E_INVALID, "--long-from must be 1 or more, not %d", p->long_from);
    if (p->port < 0 || p->port > 65535)
        return ob_err_set(err, OB_E_INVALID, "port %d is not from 0 to 65535", p->port);
    for (int i = 0; i < p->n_api_keys; i++) /* "--api-key $UNSET" must not open the door */
        if (!*p->api_keys[i]) return ob_err_set(err, OB_E_INVALID, "an API key is empty");
    const char *o = p->cors_origin;
    if (o && strcmp(o, "*") != 0 && strncmp(o, "http://", 7) != 0 && strncmp(o, "https://", 8) != 0)
        return ob_err_set(
            err, OB_E_INVALID,
            "the CORS origin must be '*' or start with http:// or https://, not '%.80s'", o);
    return OB_OK;
}

ob_status ob_server_new(const ob_serve_params *p, ob_server **out, ob_err *err)
{
    *out = NULL;
    OB_TRY(ob_serve_check(p, err));
    ob_server *srv = ob_calloc(1, sizeof *srv);
    if (!srv) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the server");
    ob_status s = OB_OK;
    srv->params = *p;
    srv->created = ob_unix_seconds();
    srv->mbox.fd = -1;
    srv->loaded_post.fn = on_loaded;
    srv->stop_post.fn = on_stop_post;
    srv->model_id = p->alias && *p->alias ? ob_strdup(p->alias) : stem_of(p->engine.model_path);
    pthread_mutex_init(&srv->gram_lock, NULL);
    srv->key_digests = ob_calloc((size_t)p->n_api_keys + 1, sizeof *srv->key_digests);
    for (; srv->key_digests && srv->n_keys < p->n_api_keys; srv->n_keys++)
        SHA256((const unsigned char *)p->api_keys[srv->n_keys], strlen(p->api_keys[srv->n_keys]),
               srv->key_digests[srv->n_keys]);
    srv->base = event_base_new();
    if (p->long_path) srv->long_id = stem_of(p->long_path);
    if (p->route || p->long_path) {
        const ob_routing_params r = {.by_class = p->route, .scorer_path = p->route_scorer, .scorer_error = p->route_scorer_error,
                                     .policy_path = p->route_policy, .long_path = p->long_path, .long_id = srv->long_id,
                                     .long_device = p->long_device, .long_from = p->long_from};
        OB_GOTO(ob_routing_new(&r, &srv->routing, err));
    }
    if (!srv->base || !srv->model_id || (p->long_path && !srv->long_id) || !srv->key_digests) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for the server");
        goto out;
    }
    OB_GOTO(ob_mbox_init(&srv->mbox, srv->base, err));
    srv->stop_tick = event_new(srv->base, -1, EV_PERSIST, on_stop_tick, srv);
    srv->sig[0] = evsignal_new(srv->base, SIGINT, on_signal, srv);
    srv->sig[1] = evsignal_new(srv->base, SIGTERM, on_signal, srv);
    if (!srv->stop_tick || !srv->sig[0] || !srv->sig[1]) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for the server");
        goto out;
    }
    OB_GOTO(ob_http_listen(srv, err));
out:
    if (s != OB_OK) ob_server_free(srv);
    else *out = srv;
    return s;
}

int ob_server_port(const ob_server *s) { return s->port; }

/* --- running --------------------------------------------------------------------------------- */

/* After the loop: nothing may be left that points into the engine or a worker. */
static void wind_up(ob_server *s)
{
    s->stopping = s->cancelling = true;
    cancel_all(s);
    ob_workers_stop(&s->workers);
    int64_t until = ob_now_ns() + 5000000000;
    do {
        event_base_loop(s->base, EVLOOP_NONBLOCK); /* posts of workers and of the engine */
        if (s->n_jobs == 0) break;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    } while (ob_now_ns() < until);
    ob_http_close_all(s);
}

static bool join_loader(ob_server *s)
{
    if (!s->loader_running) return true;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LOADER_GRACE_S;
    if (pthread_timedjoin_np(s->loader, NULL, &until) != 0) return false;
    s->loader_running = false;
    return true;
}

ob_status ob_server_run(ob_server *s, ob_err *err)
{
    signal(SIGPIPE, SIG_IGN); /* a peer that is gone is an error of a write, not a signal */
    evsignal_add(s->sig[0], NULL);
    evsignal_add(s->sig[1], NULL);
    OB_TRY(ob_workers_start(&s->workers, OB_MAX(s->params.n_workers, 1), err));
    int rc = pthread_create(&s->loader, NULL, loader_main, s);
    if (rc) return ob_err_set_errno(err, OB_E_IO, rc, "cannot start a thread");
    s->loader_running = true;
    bool v6 = strchr(s->params.host, ':') != NULL;
    ob_log_info("listening on http://%s%s%s:%d (loading %s)", v6 ? "[" : "", s->params.host,
                v6 ? "]" : "", s->port, s->model_id);
    if (!s->loopback && !s->n_keys)
        ob_log_warn("anyone who can reach this address may use the server (see --api-key)");
    event_base_dispatch(s->base);
    wind_up(s);
    if (!join_loader(s))
        return ob_err_set(err, OB_E_CANCELLED, "stopped while the model was loading");
    if (s->load_err.code != OB_OK) {
        if (err) *err = s->load_err;
        return s->load_err.code;
    }
    return OB_OK;
}

void ob_server_free(ob_server *s)
{
    if (!s) return;
    ob_workers_stop(&s->workers);
    ob_http_stop_listening(s);
    ob_http_close_all(s);
    ob_routing_free(s->routing); /* before the engine: its targets borrow from it */
    ob_engine_free(s->loaded_engine);
    ob_share_free(s->share);
    ob_vision_free(s->vision);
    for (int i = 0; i < s->n_served; i++) {
        ob_encoder_free(s->served[i].encoder);
        ob_free(s->served[i].id);
    }
    ob_tmpl_free(s->tmpl);
    ob_gram_vocab_free(s->gram_vocab);
    pthread_mutex_destroy(&s->gram_lock);
    for (int i = 0; i < 2; i++)
        if (s->sig[i]) event_free(s->sig[i]);
    if (s->stop_tick) event_free(s->stop_tick);
    if (s->base) ob_mbox_deinit(&s->mbox);
    if (s->base) event_base_free(s->base);
    ob_free(s->key_digests);
    ob_free(s->bos_text);
    ob_free(s->eos_text);
    ob_free(s->model_id);
    ob_free(s->long_id);
    ob_free(s);
}
