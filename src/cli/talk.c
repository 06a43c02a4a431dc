#include "cli/talk.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"

/* ------------------------------------------------------------------ life */

static ob_status load_template(ob_talk *t, const ob_args *a, ob_err *err)
{
    ob_str text;
    ob_buf given;
    ob_buf_init(&given, OB_MAX_TEMPLATE_BYTES);
    ob_status s = ob_cli_chat_template(a, &given, err);
    t->own_template = given.len || ob_kv_str(ob_file_find_kv(ob_engine_file(t->engine), "tokenizer.chat_template"), &text);
    if (given.len) text = (ob_str){given.data, given.len};
    else if (!t->own_template) text = (ob_str){ob_tmpl_builtin(t->info.arch), strlen(ob_tmpl_builtin(t->info.arch))};
    if (s == OB_OK) {
        s = ob_tmpl_new(text.data, text.len, &t->tmpl, err);
        if (s != OB_OK) s = ob_err_prefix(err, s, given.len ? ob_cli_str(a, OB_OPT_CHAT_TEMPLATE) : "the model's chat template");
    }
    ob_buf_deinit(&given);
    return s;
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
    OB_TRY(ob_cli_load_engine_and_tower(&t->load, a, &t->engine, &t->vision, err));
    ob_engine_describe(t->engine, &t->info);
    return load_template(t, a, err);
}

void ob_talk_deinit(ob_talk *t)
{
    ob_tmpl_free(t->tmpl);
    ob_engine_free(t->engine);
    for (size_t i = 0; i < t->n_pictures; i++) ob_draft_deinit(&t->pictures[i]);
    ob_free(t->pictures);
    ob_vision_free(t->vision);
    ob_cli_load_deinit(&t->load);
}

/* ------------------------------------------------------------------ pictures */

static ob_status read_picture(const ob_talk *t, const char *path, ob_draft *out, ob_err *err)
{
    ob_image img = {0};
    ob_buf bytes;
    ob_buf_init(&bytes, OB_MAX_IMAGE_BYTES);
    FILE *f = fopen(path, "rbe");
    if (!f) return ob_err_set_errno(err, OB_E_IO, errno, "cannot open %.200s", path);
    ob_status s = ob_cli_read_all(f, path, &bytes, err);
    fclose(f);
    if (s == OB_OK) s = ob_image_decode(ob_buf_str(&bytes), bytes.len, &img, err);
    if (s == OB_OK) s = ob_vision_draft(t->vision, &img, ob_engine_tok(t->engine), out, err);
    if (s != OB_OK && !strstr(err->text, path)) ob_err_prefix(err, s, "%.200s", path);
    ob_image_deinit(&img);
    ob_buf_deinit(&bytes);
    return s;
}

ob_status ob_talk_read_pictures(ob_talk *t, const ob_args *a, ob_err *err)
{
    const ob_opt_value *files = &a->values[OB_OPT_IMAGE];
    if (!files->n_list) return OB_OK;
    if (!t->vision)
        return ob_err_set(err, OB_E_INVALID, "--image needs the model's vision tower: give it with --mmproj FILE");
    t->pictures = ob_calloc((size_t)files->n_list, sizeof *t->pictures);
    if (!t->pictures) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %d pictures", files->n_list);
    for (; t->n_pictures < (size_t)files->n_list; t->n_pictures++)
        OB_TRY(read_picture(t, files->list[t->n_pictures], &t->pictures[t->n_pictures], err));
    return OB_OK;
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

static ob_status encode_with(const ob_talk *t, const ob_buf *prompt, unsigned flags, ob_draft *d, ob_err *err)
{
    ob_draft_deinit(d);
    if (!t->n_pictures)
        return ob_draft_add_text(d, ob_engine_tok(t->engine), ob_buf_str(prompt), prompt->len, flags, err);
    return ob_draft_add_marked(d, ob_engine_tok(t->engine), ob_buf_str(prompt), prompt->len, flags, OB_TALK_MARK,
                               t->pictures, t->n_pictures, err);
}

/* Special tokens in the prompt count; BOS is added unless the template wrote it. */
static ob_status encode(const ob_talk *t, const ob_buf *prompt, ob_draft *d, ob_err *err)
{
    const ob_tok *tok = ob_engine_tok(t->engine);
    OB_TRY(encode_with(t, prompt, OB_TOK_SPECIAL, d, err));
    if (!ob_tok_add_bos(tok) || (d->n > 0 && d->ids[0] == ob_tok_bos(tok))) return OB_OK;
    return encode_with(t, prompt, OB_TOK_SPECIAL | OB_TOK_BOS, d, err);
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
    ob_draft draft = {0};
    ob_request *req = NULL;
    wait w = {.echo = echo, .r = r};
    struct sigaction old, act = {.sa_handler = on_interrupt};
    memset(r, 0, sizeof *r);
    ob_buf_init(&r->text, OB_MAX_RENDER_BYTES);
    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.changed, NULL);
    g_interrupted = 0;
    sigaction(SIGINT, &act, &old);
    OB_GOTO(encode(t, prompt, &draft, err));
    t->params.prompt = draft.ids;
    t->params.n_prompt = draft.n;
    t->params.pictures = draft.pics;
    t->params.n_pictures = draft.n_pics;
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
    ob_draft_deinit(&draft);
    return s;
}

void ob_talk_speed(const ob_talk *talk, const ob_timings *t, char *out, size_t cap)
{
    int n_new = t->n_prompt - t->n_cached;
    if ((talk->info.device.caps & OB_DEV_SOFT) || talk->info.prefill_soft) {
        snprintf(out, cap, "%d tokens; prompt %d tokens (%d cached); an emulated device's times are no speed", t->n_gen, t->n_prompt,
                 t->n_cached);
        return;
    }
    snprintf(out, cap, "%d tokens, %.1f tok/s; prompt %d tokens (%d cached), %.1f tok/s", t->n_gen,
             t->gen_ms > 0 ? (t->n_gen - 1) / t->gen_ms * 1e3 : 0.0, t->n_prompt, t->n_cached,
             t->prompt_ms > 0 ? n_new / t->prompt_ms * 1e3 : 0.0);
}
