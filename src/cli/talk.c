#include "cli/talk.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"

/* ------------------------------------------------------------------ life */

static ob_status load_template(ob_talk *t, ob_err *err)
{
    ob_str text;
    t->own_template = ob_kv_str(ob_file_find_kv(ob_engine_file(t->engine), "tokenizer.chat_template"), &text);
    if (!t->own_template) text = (ob_str){ob_tmpl_default(), strlen(ob_tmpl_default())};
    ob_status s = ob_tmpl_new(text.data, text.len, &t->tmpl, err);
    return s == OB_OK ? s : ob_err_prefix(err, s, "the model's chat template");
}

static void read_sampling(ob_request_params *p, const ob_args *a)
{
    ob_request_defaults(p);
    p->max_tokens = (int32_t)ob_cli_int(a, OB_OPT_N_PREDICT);
    p->ignore_eos = ob_cli_flag(a, OB_OPT_IGNORE_EOS);
    p->sampler.temperature = (float)ob_cli_float(a, OB_OPT_TEMP);
    p->sampler.top_k = (int32_t)ob_cli_int(a, OB_OPT_TOP_K);
    p->sampler.top_p = (float)ob_cli_float(a, OB_OPT_TOP_P);
    p->sampler.min_p = (float)ob_cli_float(a, OB_OPT_MIN_P);
    p->sampler.repeat_penalty = (float)ob_cli_float(a, OB_OPT_REPEAT_PENALTY);
    p->sampler.presence_penalty = (float)ob_cli_float(a, OB_OPT_PRESENCE_PENALTY);
    p->sampler.frequency_penalty = (float)ob_cli_float(a, OB_OPT_FREQUENCY_PENALTY);
    p->sampler.has_seed = ob_cli_given(a, OB_OPT_SEED);
    p->sampler.seed = (uint64_t)ob_cli_int(a, OB_OPT_SEED);
    p->stop = a->values[OB_OPT_STOP].list;
    p->n_stop = (size_t)a->values[OB_OPT_STOP].n_list;
}

ob_status ob_talk_init(ob_talk *t, const ob_args *a, ob_err *err)
{
    memset(t, 0, sizeof *t);
    read_sampling(&t->params, a);
    OB_TRY(ob_cli_load_init(&t->load, a, err));
    OB_TRY(ob_cli_load_engine(&t->load, &t->engine, err));
    ob_engine_describe(t->engine, &t->info);
    return load_template(t, err);
}

void ob_talk_deinit(ob_talk *t)
{
    ob_tmpl_free(t->tmpl);
    ob_engine_free(t->engine);
    ob_cli_load_deinit(&t->load);
}

/* ------------------------------------------------------------------ prompts */

static char *token_text(const ob_tok *tok, int32_t id)
{
    size_t len;
    if (id < 0) return NULL;
    const char *piece = ob_tok_piece(tok, id, &len);
    return ob_strndup(piece, len);
}

ob_status ob_talk_render(const ob_talk *t, const json_t *messages, ob_buf *out, ob_err *err)
{
    const ob_tok *tok = ob_engine_tok(t->engine);
    char *bos = token_text(tok, ob_tok_bos(tok)), *eos = token_text(tok, ob_tok_eos(tok));
    ob_buf json;
    ob_buf_init(&json, OB_MAX_RENDER_BYTES);
    ob_status s = ob_tmpl_messages(t->tmpl, messages, &json, err);
    if (s == OB_OK) {
        ob_tmpl_args args = {.messages_json = ob_buf_str(&json), .messages_len = json.len, .bos_token = bos,
                             .eos_token = eos, .add_generation_prompt = true};
        s = ob_tmpl_render(t->tmpl, &args, out, err);
    }
    ob_buf_deinit(&json);
    ob_free(bos);
    ob_free(eos);
    return s;
}

/* Special tokens in the prompt count; BOS is added unless the template wrote it. */
static ob_status encode(const ob_talk *t, const ob_buf *prompt, int32_t **ids, size_t *n, ob_err *err)
{
    const ob_tok *tok = ob_engine_tok(t->engine);
    int32_t bos = ob_tok_bos(tok);
    OB_TRY(ob_tok_encode(tok, ob_buf_str(prompt), prompt->len, OB_TOK_SPECIAL, ids, n, err));
    if (!ob_tok_add_bos(tok) || (*n > 0 && (*ids)[0] == bos)) return OB_OK;
    ob_free(*ids);
    return ob_tok_encode(tok, ob_buf_str(prompt), prompt->len, OB_TOK_SPECIAL | OB_TOK_BOS, ids, n, err);
}

/* ------------------------------------------------------------------ generation */

/* Shared with the engine's thread while a request runs. */
typedef struct wait {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done, echo;
    ob_talk_result *r;
    ob_err err;
} wait;

static volatile sig_atomic_t g_interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    g_interrupted = 1;
}

static void on_event(void *arg, const ob_event *ev)
{
    wait *w = arg;
    pthread_mutex_lock(&w->lock);
    ob_buf_add(&w->r->text, ev->text, ev->text_len);
    if (w->echo && ev->text_len) {
        if (fwrite(ev->text, 1, ev->text_len, stdout) != ev->text_len || fflush(stdout) != 0) {
            w->r->output_errno = errno ? errno : EIO;
            w->echo = false;
        }
    }
    if (ev->done) {
        w->done = true;
        w->r->finish = ev->finish;
        w->err = ev->err;
    }
    w->r->timings = ev->timings;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* The last event, looking for Ctrl-C ten times a second. */
static void wait_done(wait *w, ob_request *r)
{
    pthread_mutex_lock(&w->lock);
    while (!w->done) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += 100000000;
        if (t.tv_nsec >= 1000000000) {
            t.tv_nsec -= 1000000000;
            t.tv_sec++;
        }
        pthread_cond_timedwait(&w->changed, &w->lock, &t);
        if ((g_interrupted || w->r->output_errno) && !w->done) {
            pthread_mutex_unlock(&w->lock);
            ob_request_cancel(r);
            pthread_mutex_lock(&w->lock);
        }
    }
    pthread_mutex_unlock(&w->lock);
}

ob_status ob_talk_generate(ob_talk *t, const ob_buf *prompt, bool echo, ob_talk_result *r, ob_err *err)
{
    ob_status s;
    int32_t *ids = NULL;
    ob_request *req = NULL;
    wait w = {.echo = echo, .r = r};
    struct sigaction old, act = {.sa_handler = on_interrupt};
    memset(r, 0, sizeof *r);
    ob_buf_init(&r->text, OB_MAX_RENDER_BYTES);
    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.changed, NULL);
    g_interrupted = 0;
    sigaction(SIGINT, &act, &old);
    OB_GOTO(encode(t, prompt, &ids, &t->params.n_prompt, err));
    t->params.prompt = ids;
    t->params.on_event = on_event;
    t->params.arg = &w;
    OB_GOTO(ob_engine_submit(t->engine, &t->params, &req, err));
    wait_done(&w, req);
    if (r->finish == OB_FINISH_ERROR) {
        s = w.err.code;
        if (err) *err = w.err;
    }
out:
    ob_request_free(req);
    sigaction(SIGINT, &old, NULL);
    pthread_cond_destroy(&w.changed);
    pthread_mutex_destroy(&w.lock);
    ob_free(ids);
    return s;
}

void ob_talk_speed(const ob_timings *t, char *out, size_t cap)
{
    int n_new = t->n_prompt - t->n_cached;
    snprintf(out, cap, "%d tokens, %.1f tok/s; prompt %d tokens (%d cached), %.1f tok/s", t->n_gen,
             t->gen_ms > 0 ? (t->n_gen - 1) / t->gen_ms * 1e3 : 0.0, t->n_prompt, t->n_cached,
             t->prompt_ms > 0 ? n_new / t->prompt_ms * 1e3 : 0.0);
}
