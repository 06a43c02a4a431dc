/* The public interface (include/onebit.h) over ctx and engine.
 *
 * A model is opened as a context (sessions) and becomes an engine at the first onebit_generate; each is
 * made when it is first needed, so a program that uses one never pays for the other.
 */
#include "onebit.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "engine/ctx.h"
#include "engine/engine.h"

struct onebit_model {
    pthread_mutex_t lock; /* guards the two pointers below and their making */
    ob_engine_params params;
    char *path, *device;
    ob_ctx *ctx;
    ob_engine *engine;
    ob_engine_info info;
    int n_sessions;
};

struct onebit_session {
    onebit_model *m;
    ob_seq *seq;
};

const char *onebit_version(void) { return OB_VERSION; }

/* ------------------------------------------------------------------ errors */

static int give(onebit_error *out, ob_status s, const ob_err *err)
{
    if (!out) return (int)s;
    memset(out, 0, sizeof *out);
    if (s == OB_OK) return 0;
    out->code = (int)s;
    strncpy(out->name, ob_status_describe(s)->name, sizeof out->name - 1);
    memcpy(out->text, err->text, OB_MIN(sizeof out->text, sizeof err->text));
    out->n_prompt = err->n_prompt_tok;
    out->n_ctx = err->n_ctx;
    return (int)s;
}

/* ------------------------------------------------------------------ model */

int onebit_model_open(const char *path, const onebit_options *o, onebit_model **out, onebit_error *error)
{
    ob_err err = {0};
    ob_status s = OB_OK;
    static const onebit_options defaults;
    if (!o) o = &defaults;
    onebit_model *m = ob_calloc(1, sizeof *m);
    if (!m) return give(error, ob_err_set(&err, OB_E_NO_MEMORY, "no memory for the model"), &err);
    pthread_mutex_init(&m->lock, NULL);
    m->path = ob_strdup(path);
    m->device = ob_strdup(o->device ? o->device : "auto");
    if (!m->path || !m->device) {
        s = ob_err_set(&err, OB_E_NO_MEMORY, "no memory for the model");
        goto out;
    }
    ob_engine_defaults(&m->params);
    m->params.model_path = m->path;
    m->params.device = m->device;
    m->params.n_ctx = o->n_ctx;
    m->params.n_seq = o->n_seq;
    m->params.n_threads = o->n_threads;
    m->params.n_ubatch = o->n_ubatch;
    m->params.exact = o->exact;
    if (o->exact) m->params.k_type = m->params.v_type = OB_F32;
    OB_GOTO(ob_ctx_new(&m->params, &m->ctx, &err));
    ob_ctx_describe(m->ctx, &m->info);
    *out = m;
out:
    if (s != OB_OK) onebit_model_free(m);
    return give(error, s, &err);
}

void onebit_model_free(onebit_model *m)
{
    if (!m) return;
    ob_engine_free(m->engine);
    ob_ctx_free(m->ctx);
    ob_free(m->path);
    ob_free(m->device);
    pthread_mutex_destroy(&m->lock);
    ob_free(m);
}

void onebit_model_info(const onebit_model *m, onebit_info *out)
{
    const ob_engine_info *i = &m->info;
    memset(out, 0, sizeof *out);
    memcpy(out->arch, i->arch, sizeof out->arch);
    memcpy(out->name, i->name, sizeof out->name);
    memcpy(out->type, i->quant, sizeof out->type);
    memcpy(out->device, i->device.name, sizeof out->device);
    out->n_params = i->n_params;
    out->n_bytes = i->n_bytes;
    out->n_vocab = i->n_vocab;
    out->n_ctx = i->n_ctx;
    out->n_ctx_train = i->n_ctx_train;
    out->n_embd = i->n_embd;
    out->n_layer = i->n_layer;
}

/* ------------------------------------------------------------------ text and tokens */

static const ob_tok *tok_of(const onebit_model *m)
{
    return m->engine ? ob_engine_tok(m->engine) : ob_ctx_tok(m->ctx);
}

int onebit_tokenize(const onebit_model *m, const char *text, size_t len, bool special, int32_t **ids,
                    size_t *n, onebit_error *error)
{
    ob_err err = {0};
    unsigned flags = special ? OB_TOK_SPECIAL | OB_TOK_BOS : 0u;
    return give(error, ob_tok_encode(tok_of(m), text, len, flags, ids, n, &err), &err);
}

void onebit_ids_free(int32_t *ids) { ob_free(ids); }

const char *onebit_token_text(const onebit_model *m, int32_t id, size_t *len)
{
    return ob_tok_piece(tok_of(m), id, len);
}

bool onebit_token_ends(const onebit_model *m, int32_t id) { return ob_tok_is_eog(tok_of(m), id); }

/* ------------------------------------------------------------------ session */

int onebit_session_new(onebit_model *m, onebit_session **out, onebit_error *error)
{
    ob_err err = {0};
    ob_status s = OB_OK;
    onebit_session *ses = ob_calloc(1, sizeof *ses);
    if (!ses) return give(error, ob_err_set(&err, OB_E_NO_MEMORY, "no memory for a session"), &err);
    pthread_mutex_lock(&m->lock);
    if (!m->ctx) s = ob_err_set(&err, OB_E_BUSY, "the model runs requests: open it again for sessions");
    else if (ob_ctx_faulted(m->ctx) && m->n_sessions == 0) s = ob_ctx_reopen(m->ctx, &err);
    if (s == OB_OK) s = ob_ctx_seq_new(m->ctx, &ses->seq, &err);
    if (s == OB_OK) m->n_sessions++;
    pthread_mutex_unlock(&m->lock);
    ses->m = m;
    if (s == OB_OK) *out = ses;
    else ob_free(ses);
    return give(error, s, &err);
}

void onebit_session_free(onebit_session *ses)
{
    if (!ses) return;
    onebit_model *m = ses->m;
    pthread_mutex_lock(&m->lock);
    ob_ctx_seq_keep(m->ctx, ses->seq);
    ob_ctx_seq_free(m->ctx, ses->seq);
    m->n_sessions--;
    pthread_mutex_unlock(&m->lock);
    ob_free(ses);
}

int32_t onebit_session_len(const onebit_session *ses) { return ob_seq_len(ses->seq); }

int onebit_session_feed(onebit_session *ses, const int32_t *ids, int32_t n, const float **logits,
                        onebit_error *error)
{
    ob_err err = {0};
    ob_status s = OB_OK;
    onebit_model *m = ses->m;
    int32_t at = 0;
    const float *row = NULL;
    pthread_mutex_lock(&m->lock);
    if (n < 1) {
        s = ob_err_set(&err, OB_E_INVALID, "a session needs at least one token at a time");
        goto out;
    }
    if (ob_seq_len(ses->seq) == 0) OB_GOTO(ob_ctx_seq_reuse(m->ctx, ses->seq, ids, n, &at, &err));
    while (at < n) {
        int32_t take = OB_MIN(n - at, m->info.n_ubatch);
        ob_chunk chunk = {.seq = ses->seq, .tok = ids + at, .n_tok = take, .n_out = logits && at + take == n, .prompt = true};
        OB_GOTO(ob_ctx_step(m->ctx, &chunk, 1, &row, &err));
        at += take;
    }
    if (logits) *logits = row;
out:
    pthread_mutex_unlock(&m->lock);
    return give(error, s, &err);
}

/* ------------------------------------------------------------------ generation */

void onebit_sampling_defaults(onebit_sampling *s)
{
    ob_sampler_params p;
    ob_sampler_defaults(&p);
    *s = (onebit_sampling){.temperature = p.temperature, .top_k = p.top_k, .top_p = p.top_p, .min_p = p.min_p,
                           .repeat_penalty = p.repeat_penalty};
}

/* The engine in place of the context, made at the first request. */
static ob_status need_engine(onebit_model *m, ob_err *err)
{
    ob_status s = OB_OK;
    pthread_mutex_lock(&m->lock);
    if (!m->engine && m->n_sessions) {
        s = ob_err_set(err, OB_E_BUSY, "the model has %d open sessions: open it again for requests", m->n_sessions);
    } else if (!m->engine) {
        s = ob_engine_new(&m->params, &m->engine, err);
        if (s == OB_OK) {
            ob_ctx_free(m->ctx);
            m->ctx = NULL;
        }
    }
    pthread_mutex_unlock(&m->lock);
    return s;
}

/* Shared with the engine's thread while one request runs. */
typedef struct generation {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    onebit_text_fn on_text;
    void *arg;
    ob_request *request;
    ob_buf text;
    bool done, stopped;
    ob_finish finish;
    ob_timings timings;
    ob_err err;
} generation;

static void on_event(void *arg, const ob_event *ev)
{
    generation *g = arg;
    pthread_mutex_lock(&g->lock);
    ob_buf_add(&g->text, ev->text, ev->text_len);
    if (ev->text_len && g->on_text && !g->stopped) g->stopped = !g->on_text(g->arg, ev->text, ev->text_len);
    g->timings = ev->timings;
    if (ev->done) {
        g->done = true;
        g->finish = ev->finish;
        g->err = ev->err;
    }
    pthread_cond_signal(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void wait_for(generation *g)
{
    bool cancelled = false;
    pthread_mutex_lock(&g->lock);
    while (!g->done) {
        pthread_cond_wait(&g->changed, &g->lock);
        if (!g->stopped || g->done || cancelled) continue;
        cancelled = true;
        pthread_mutex_unlock(&g->lock);
        ob_request_cancel(g->request);
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
}

static void fill_params(ob_request_params *p, const onebit_sampling *s)
{
    ob_request_defaults(p);
    if (!s) return;
    p->sampler.temperature = s->temperature;
    p->sampler.top_k = s->top_k;
    p->sampler.top_p = s->top_p;
    p->sampler.min_p = s->min_p;
    p->sampler.repeat_penalty = s->repeat_penalty;
    p->sampler.presence_penalty = s->presence_penalty;
    p->sampler.frequency_penalty = s->frequency_penalty;
    p->sampler.has_seed = s->seed != 0;
    p->sampler.seed = s->seed;
}

int onebit_generate(onebit_model *m, const int32_t *ids, size_t n, int32_t max_tokens,
                    const onebit_sampling *sampling, const char *const *stop, size_t n_stop,
                    onebit_text_fn on_text, void *arg, onebit_result *out, onebit_error *error)
{
    static const char *const finish[] = {"stop", "length", "cancelled", "error"};
    ob_err err = {0};
    ob_status s = OB_OK;
    ob_request_params p;
    generation g = {.on_text = on_text, .arg = arg};
    memset(out, 0, sizeof *out);
    ob_buf_init(&g.text, OB_MAX_RENDER_BYTES);
    pthread_mutex_init(&g.lock, NULL);
    pthread_cond_init(&g.changed, NULL);
    fill_params(&p, sampling);
    p.prompt = ids;
    p.n_prompt = n;
    p.max_tokens = max_tokens;
    p.stop = stop;
    p.n_stop = n_stop;
    p.on_event = on_event;
    p.arg = &g;
    OB_GOTO(need_engine(m, &err));
    OB_GOTO(ob_engine_submit(m->engine, &p, &g.request, &err));
    wait_for(&g);
    ob_request_free(g.request);
    if (g.finish == OB_FINISH_ERROR) {
        s = g.err.code;
        err = g.err;
        goto out;
    }
    OB_GOTO(ob_buf_status(&g.text, &err));
    out->finish = finish[g.finish];
    out->n_prompt = g.timings.n_prompt;
    out->n_cached = g.timings.n_cached;
    out->n_generated = g.timings.n_gen;
    out->prompt_ms = g.timings.prompt_ms;
    out->generate_ms = g.timings.gen_ms;
    out->text = ob_buf_take(&g.text, &out->len);
    if (!out->text) s = ob_err_set(&err, OB_E_NO_MEMORY, "no memory for the text");
out:
    ob_buf_deinit(&g.text);
    pthread_cond_destroy(&g.changed);
    pthread_mutex_destroy(&g.lock);
    return give(error, s, &err);
}

void onebit_result_free(onebit_result *r)
{
    ob_free(r->text);
    *r = (onebit_result){0};
}
