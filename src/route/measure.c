#include "route/measure.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/math.h"

enum { MAX_REPEAT = 101, N_GEN = 16, BUSY = 4, WARM_TOK = 32 };
#define SLOW_MS 4000.0  /* a run that takes longer is not repeated: it has lost already */
#define GIVE_UP_MS 30000.0 /* and then longer prompts are not tried */

/* ------------------------------------------------------------------ a few requests at once */

typedef struct run {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t n_left;
    ob_status status;
    ob_err err;
} run;

typedef struct one {
    run *r;
    ob_request *req;
    double t0, first, last; /* ms; first and last token */
    int32_t n_gen;
} one;

static void on_event(void *arg, const ob_event *ev)
{
    one *o = arg;
    const double now = ob_now_ms();
    if (ev->id >= 0) {
        if (o->n_gen++ == 0) o->first = now;
        o->last = now;
    }
    if (!ev->done) return;
    pthread_mutex_lock(&o->r->lock);
    if (ev->finish == OB_FINISH_ERROR) {
        o->r->status = ev->err.code;
        o->r->err = ev->err;
    }
    o->r->n_left--;
    pthread_cond_signal(&o->r->changed);
    pthread_mutex_unlock(&o->r->lock);
}

/* n requests of n_prompt tokens each; medians need no more than the slowest first token and the mean step. */
static ob_status run_together(ob_engine *e, const int32_t *prompt, int32_t n_prompt, int32_t n_gen, int32_t n,
                              double *ttft_ms, double *token_ms, ob_err *err)
{
    run r = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    one all[BUSY];
    int32_t n_sent = 0;
    memset(all, 0, sizeof all);
    for (; n_sent < n && r.status == OB_OK; n_sent++) {
        ob_request_params p;
        ob_request_defaults(&p);
        p.prompt = prompt + n_sent; /* not the same prompt, so that none is found in the cache */
        p.n_prompt = (size_t)n_prompt;
        p.max_tokens = n_gen;
        p.sampler.temperature = 0;
        p.ignore_eos = true;
        p.cache_prompt = false;
        p.on_event = on_event;
        p.arg = &all[n_sent];
        all[n_sent].r = &r;
        all[n_sent].t0 = ob_now_ms();
        pthread_mutex_lock(&r.lock);
        r.n_left++;
        pthread_mutex_unlock(&r.lock);
        const ob_status s = ob_engine_submit(e, &p, &all[n_sent].req, &r.err);
        if (s == OB_OK) continue;
        pthread_mutex_lock(&r.lock);
        r.n_left--;
        r.status = s;
        pthread_mutex_unlock(&r.lock);
        break;
    }
    pthread_mutex_lock(&r.lock);
    while (r.n_left > 0) pthread_cond_wait(&r.changed, &r.lock);
    pthread_mutex_unlock(&r.lock);
    double ttft = 0, step = 0;
    for (int32_t i = 0; i < n_sent; i++) {
        ob_request_free(all[i].req);
        ttft = fmax(ttft, all[i].first - all[i].t0);
        step += all[i].n_gen > 1 ? (all[i].last - all[i].first) / (all[i].n_gen - 1) / n : 0;
        if (all[i].n_gen == 0 && r.status == OB_OK) r.status = ob_err_set(&r.err, OB_E_DEVICE, "no token came");
    }
    pthread_cond_destroy(&r.changed);
    pthread_mutex_destroy(&r.lock);
    *ttft_ms = ttft;
    *token_ms = step;
    if (r.status != OB_OK && err) *err = r.err;
    return r.status;
}

/* ------------------------------------------------------------------ medians */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts v. *spread: half of the middle half, relative, which one straggler does not move. */
static double median(double *v, int32_t n, double *spread)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    const double m = n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
    if (spread && m > 0) *spread = fmax(*spread, 0.5 * (v[(3 * n) / 4 < n ? (3 * n) / 4 : n - 1] - v[n / 4]) / m);
    return m;
}

static ob_status measure_length(ob_engine *e, const int32_t *prompt, int32_t n_prompt, int32_t n_repeat, ob_measure *out,
                                ob_err *err)
{
    double ttft[MAX_REPEAT], token[MAX_REPEAT], busy[MAX_REPEAT], ignored;
    *out = (ob_measure){.n_prompt = n_prompt};
    for (int32_t i = -1; i < n_repeat; i++) { /* the first one warms up */
        const double t0 = ob_now_ms();
        OB_TRY(run_together(e, prompt, n_prompt, N_GEN, 1, &ttft[OB_MAX(i, 0)], &token[OB_MAX(i, 0)], err));
        if (ob_now_ms() - t0 > SLOW_MS) n_repeat = OB_MAX(i + 1, 1);
    }
    if (ttft[0] + N_GEN * token[0] > SLOW_MS) {
        out->ttft_ms = ttft[0];
        out->token_ms = out->busy_token_ms = token[0];
        return OB_OK;
    }
    const int32_t n_busy = OB_MAX(n_repeat / 2, 1);
    for (int32_t i = 0; i < n_busy; i++)
        OB_TRY(run_together(e, prompt, OB_MIN(n_prompt, WARM_TOK), N_GEN, BUSY, &ignored, &busy[i], err));
    out->ttft_ms = median(ttft, n_repeat, &out->spread);
    out->token_ms = median(token, n_repeat, &out->spread);
    out->busy_token_ms = fmax(median(busy, n_busy, NULL), out->token_ms);
    return OB_OK;
}

/* ------------------------------------------------------------------ targets */

static ob_status measure_target(const ob_measure_params *m, const char *name, ob_measured *out, ob_err *err)
{
    ob_engine *e = NULL;
    ob_status s = OB_OK;
    ob_engine_info info;
    int32_t *prompt = NULL;
    char device[OB_TARGET_NAME * 5];
    ob_measured_target *t = &out->targets[out->n_targets];
    ob_engine_params p = m->engine;
    snprintf(device, sizeof device, "%s", name);
    char *at = strchr(device, '@');
    if (at) {
        *at = 0;
        p.model_path = at + 1;
    }
    p.device = device;
    p.n_seq = BUSY;
    p.speculate = OB_SPECULATE_OFF; /* what random tokens repeat says nothing about texts */
    p.on_progress = NULL;
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    OB_GOTO(ob_engine_new(&p, &e, err));
    ob_engine_describe(e, &info);
    if (info.device.caps & OB_DEV_SOFT) {
        s = ob_err_set(err, OB_E_UNSUPPORTED, "%s is an emulation: its times say nothing about speed", info.device.kind);
        goto out;
    }
    snprintf(out->model, sizeof out->model, "%s %s", info.name, info.quant);
    const int32_t longest = m->lengths[m->n_lengths - 1] + BUSY;
    prompt = ob_reallocarray(NULL, (size_t)longest, sizeof *prompt);
    if (!prompt) OB_GOTO(ob_err_set(err, OB_E_NO_MEMORY, "no memory for a prompt"));
    uint32_t x = 12345;
    for (int32_t i = 0; i < longest; i++) { /* any tokens: time does not depend on them */
        x = x * 1664525u + 1013904223u;
        prompt[i] = (int32_t)((x >> 8) % (uint32_t)info.n_vocab);
    }
    for (int32_t i = 0; i < m->n_lengths; i++) {
        if (m->lengths[i] + N_GEN + 1 > info.n_ctx) break;
        if (m->on_note) m->on_note(m->arg, name, m->lengths[i], NULL);
        OB_GOTO(measure_length(e, prompt, m->lengths[i], m->n_repeat, &t->at[t->n], err));
        t->n++;
        if (t->at[t->n - 1].ttft_ms > GIVE_UP_MS) break;
    }
    if (t->n == 0) s = ob_err_set(err, OB_E_CONTEXT_LENGTH, "the context of %d tokens holds no measured length", info.n_ctx);
out:
    ob_free(prompt);
    ob_engine_free(e);
    return s;
}

static ob_status measure_decision(const ob_measure_params *m, ob_measured *out, ob_err *err)
{
    static const char text[] = "Could you write a small program that reads a list of names from a file, sorts them by length and "
                               "prints the three longest, and tell me how to run it on my laptop?";
    const ob_str str = {text, sizeof text - 1};
    double ms[MAX_REPEAT];
    const int32_t n = OB_MIN(4 * m->n_repeat + 1, (int32_t)MAX_REPEAT);
    for (int32_t i = -2; i < n; i++) {
        ob_decision d;
        OB_TRY(ob_scorer_ask(m->scorer, ob_question_classes(), &(ob_turns){&str, 1}, &d, err));
        if (i >= 0) ms[i] = d.ms;
    }
    double spread = 0;
    out->decision_ms = median(ms, n, &spread);
    out->decision_spread = spread * out->decision_ms;
    return OB_OK;
}

ob_status ob_policy_measure(const ob_measure_params *m, ob_policy *p, ob_err *err)
{
    ob_measure_params mine = *m;
    ob_measured *out = &p->measured;
    ob_dev_info info;
    mine.n_repeat = OB_MIN(m->n_repeat > 0 ? m->n_repeat : 5, (int32_t)MAX_REPEAT);
    if (m->n_targets < 1 || m->n_targets > OB_MAX_TARGETS || m->n_lengths < 1 || m->n_lengths > OB_MAX_LENGTHS)
        return ob_err_set(err, OB_E_INVALID, "1 to %d targets and 1 to %d lengths can be measured", OB_MAX_TARGETS, OB_MAX_LENGTHS);
    ob_policy_default(p);
    out->busy = BUSY;
    for (int32_t i = 0; i < m->n_targets; i++) {
        ob_err why = {0};
        if (strlen(m->targets[i]) >= sizeof out->targets[0].name)
            return ob_err_set(err, OB_E_INVALID, "the name of target %d is too long", i + 1);
        if (measure_target(&mine, m->targets[i], out, &why) == OB_OK) out->n_targets++;
        else if (m->on_note) m->on_note(m->arg, m->targets[i], 0, why.text);
        if (out->n_targets || i + 1 < m->n_targets) continue;
        ob_err_prefix(&why, why.code, "no target could be measured");
        if (err) *err = why;
        return why.code;
    }
    if (m->scorer) OB_TRY(measure_decision(&mine, out, err));
    memset(&info, 0, sizeof info);
    for (const ob_dev_api *const *a = ob_dev_registry(); *a; a++)
        if (!strcmp((*a)->kind, "cpu")) (*a)->probe(0, &info);
    snprintf(out->machine, sizeof out->machine, "%s", info.name);
    const time_t now = time(NULL);
    struct tm tm;
    strftime(out->when, sizeof out->when, "%Y-%m-%d", gmtime_r(&now, &tm));
    ob_policy_decide(p);
    return OB_OK;
}
