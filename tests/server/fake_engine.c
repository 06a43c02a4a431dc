/* An engine without a model, behind the same functions as the real one, for tests of the server
 * that need a failure or an exact pace: linked in front of the library, so the real one is left
 * out.
 *
 * It answers with the prompt's own ids, over and over, one a step for each running request. The
 * environment sets what happens:
 *   FAKE_LOAD_MS     loading takes so long          FAKE_LOAD_FAIL   loading fails (any value)
 *   FAKE_STEP_MS     one step takes so long (1)     FAKE_PREFILL_MS  so does reading a prompt (0)
 *   FAKE_FAIL_AFTER  a request fails after so many tokens
 *   FAKE_LOST_FILE   while this file exists, requests on the device named in it fail as if it were lost
 */
#include "engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"

struct ob_request { /* locked by the engine's lock */
    ob_request *next;
    ob_engine *e;
    ob_request_params p;
    int32_t *prompt;
    int32_t n_gen;
    double t_submit_ms, t_ready_ms;
    atomic_bool cancelled;
    ob_detok detok;
};

struct ob_engine {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    bool stop;
    ob_request *list;
    ob_file *file;
    ob_tok *tok;
    ob_engine_info info;
    ob_engine_stats stats;
};

static double env_ms(const char *name, double def)
{
    const char *s = getenv(name);
    return s ? atof(s) : def;
}

static void sleep_ms(double ms)
{
    struct timespec t = {.tv_sec = (time_t)(ms / 1e3),
                         .tv_nsec = (long)((ms - (double)(time_t)(ms / 1e3) * 1e3) * 1e6)};
    nanosleep(&t, NULL);
}

void ob_engine_defaults(ob_engine_params *p)
{
    memset(p, 0, sizeof *p);
}

/* Is this engine's device named in FAKE_LOST_FILE? */
static bool is_lost(const ob_engine *e)
{
    char name[64] = "";
    FILE *f = getenv("FAKE_LOST_FILE") ? fopen(getenv("FAKE_LOST_FILE"), "r") : NULL;
    if (!f) return false;
    const bool read = fscanf(f, "%63s", name) == 1;
    fclose(f);
    return read && !strcmp(name, e->info.device.kind);
}

/* One event of a request; with `done`, its last. Called without the lock. */
static void emit(ob_request *r, int32_t id, bool done, ob_finish finish)
{
    ob_buf text;
    ob_buf_init(&text, 4096);
    ob_logprob top[32];
    ob_event ev = {.done = done, .id = id, .finish = finish};
    if (id >= 0) ob_detok_push(&r->detok, id, &text);
    if (done) ob_detok_flush(&r->detok, &text);
    if (id >= 0 && r->p.n_top_logprobs >= 0) {
        ev.chosen = (ob_logprob){id, -0.5f};
        ev.n_top = r->p.n_top_logprobs;
        for (int32_t i = 0; i < ev.n_top; i++)
            top[i] = (ob_logprob){(id + i) % r->e->info.n_vocab, -0.5f - (float)i};
        ev.top = top;
    }
    ev.text = ob_buf_str(&text);
    ev.text_len = text.len;
    if (finish == OB_FINISH_ERROR && done)
        ob_err_set(&ev.err, is_lost(r->e) ? OB_E_DEVICE_LOST : OB_E_DEVICE, "the fake device failed, as it was told to");
    ev.timings = (ob_timings){
        .n_prompt = (int32_t)r->p.n_prompt, .n_gen = r->n_gen, .prompt_ms = 1, .gen_ms = 1};
    r->p.on_event(r->p.arg, &ev);
    ob_buf_deinit(&text);
}

/* True when that was the end: r may be gone by then, freed by its owner. */
static bool step_request(ob_request *r, int fail_after)
{
    int32_t max = r->p.max_tokens < 0 ? r->e->info.n_ctx - (int32_t)r->p.n_prompt : r->p.max_tokens;
    if (atomic_load(&r->cancelled)) {
        emit(r, -1, true, OB_FINISH_CANCELLED);
        return true;
    }
    if (ob_now_ms() < r->t_ready_ms) return false;
    if ((fail_after >= 0 && r->n_gen >= fail_after) || is_lost(r->e)) {
        emit(r, -1, true, OB_FINISH_ERROR);
        return true;
    }
    int32_t id = r->prompt[(size_t)r->n_gen % r->p.n_prompt];
    bool done = ++r->n_gen >= max;
    emit(r, id, done, OB_FINISH_LENGTH);
    return done;
}

static void *engine_main(void *arg)
{
    ob_engine *e = arg;
    double step_ms = env_ms("FAKE_STEP_MS", 1);
    int fail_after = getenv("FAKE_FAIL_AFTER") ? atoi(getenv("FAKE_FAIL_AFTER")) : -1;
    pthread_mutex_lock(&e->lock);
    while (!e->stop || e->list) {
        if (!e->list) {
            pthread_cond_wait(&e->work, &e->lock);
            continue;
        }
        pthread_mutex_unlock(&e->lock);
        sleep_ms(step_ms);
        pthread_mutex_lock(&e->lock);
        ob_request *all = e->list;
        e->list = NULL;
        pthread_mutex_unlock(&e->lock);
        ob_request *keep = NULL;
        while (all) {
            ob_request *r = all;
            all = r->next;
            if (e->stop) atomic_store(&r->cancelled, true);
            if (step_request(r, fail_after)) continue;
            r->next = keep;
            keep = r;
        }
        pthread_mutex_lock(&e->lock);
        while (keep) {
            ob_request *r = keep;
            keep = r->next;
            r->next = e->list;
            e->list = r;
        }
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

ob_status ob_engine_new(const ob_engine_params *p, ob_engine **out, ob_err *err)
{
    *out = NULL;
    sleep_ms(env_ms("FAKE_LOAD_MS", 0));
    if (p->device && !strcmp(p->device, "broken"))
        return ob_err_set(err, OB_E_NOT_FOUND, "there is no such fake device");
    if (getenv("FAKE_LOAD_FAIL"))
        return ob_err_set(err, OB_E_FORMAT, "the fake model cannot be loaded");
    ob_engine *e = calloc(1, sizeof *e);
    if (!e) return ob_err_set(err, OB_E_NO_MEMORY, "no memory");
    ob_status s = ob_file_open(p->model_path, 0, &e->file, err);
    if (s == OB_OK) s = ob_tok_new(e->file, &e->tok, err);
    if (s != OB_OK) return s;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, NULL);
    e->info = (ob_engine_info){.n_vocab = ob_tok_n_vocab(e->tok),
                               .n_ctx = p->n_ctx ? p->n_ctx : 4096,
                               .n_ctx_train = 4096,
                               .n_seq = 4,
                               .causal = true};
    snprintf(e->info.name, sizeof e->info.name, "Fake");
    snprintf(e->info.device.kind, sizeof e->info.device.kind, "%.10s", p->device && strcmp(p->device, "auto") != 0 ? p->device : "fake");
    pthread_create(&e->thread, NULL, engine_main, e);
    *out = e;
    return OB_OK;
}

void ob_engine_free(ob_engine *e)
{
    if (!e) return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    ob_tok_free(e->tok);
    ob_file_close(e->file);
    free(e);
}

void ob_engine_describe(const ob_engine *e, ob_engine_info *out)
{
    *out = e->info;
}
const ob_tok *ob_engine_tok(const ob_engine *e)
{
    return e->tok;
}
const ob_file *ob_engine_file(const ob_engine *e)
{
    return e->file;
}

void ob_request_defaults(ob_request_params *p)
{
    memset(p, 0, sizeof *p);
    p->max_tokens = -1;
    p->n_top_logprobs = -1;
    ob_sampler_defaults(&p->sampler);
}

ob_status ob_engine_submit(ob_engine *e, const ob_request_params *p, ob_request **out, ob_err *err)
{
    ob_request *r = calloc(1, sizeof *r);
    if (!r) return ob_err_set(err, OB_E_NO_MEMORY, "no memory");
    r->e = e;
    r->p = *p;
    r->prompt = malloc(p->n_prompt * sizeof *r->prompt);
    memcpy(r->prompt, p->prompt, p->n_prompt * sizeof *r->prompt);
    r->t_submit_ms = ob_now_ms();
    r->t_ready_ms = r->t_submit_ms + env_ms("FAKE_PREFILL_MS", 0);
    ob_detok_init(&r->detok, e->tok, false);
    *out = r;
    pthread_mutex_lock(&e->lock);
    r->next = e->list;
    e->list = r;
    e->stats.n_requests++;
    e->stats.n_running++;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
    return OB_OK;
}

void ob_request_cancel(ob_request *r)
{
    atomic_store(&r->cancelled, true);
}

void ob_request_free(ob_request *r)
{
    pthread_mutex_lock(&r->e->lock);
    r->e->stats.n_running--;
    r->e->stats.n_done++;
    pthread_mutex_unlock(&r->e->lock);
    free(r->prompt);
    free(r);
}

void ob_engine_get_stats(ob_engine *e, ob_engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    pthread_mutex_unlock(&e->lock);
}

int ob_engine_get_slots(ob_engine *e, ob_slot_info *out, int cap)
{
    (void)e;
    if (cap > 0) out[0] = (ob_slot_info){0};
    return cap > 0;
}
