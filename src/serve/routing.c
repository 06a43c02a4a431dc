#include "serve/routing.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/math.h"
#include "route/sticky.h"
#include "route/turns.h"

#define DECISION_LIMIT_MS 1000.0 /* a scorer that takes longer is left alone: the default serves */

/* Kinds of requests: the classes, and what stands for one where there is none. */
enum { NO_CLASS = OB_CLASS_COUNT, SHORT_PROMPT, LONG_PROMPT, N_KINDS };
enum { N_TRACE = 64 };

typedef enum target_state { UNTRIED, STARTING, READY, DEAD } target_state;

typedef struct target {
    char name[OB_TARGET_NAME * 5];
    char device[OB_TARGET_NAME], model[OB_TARGET_NAME * 4]; /* model "": the served one */
    target_state state;
    ob_engine *engine;
    int32_t n_seq;
    uint64_t n_routed[N_KINDS];
    ob_routing *r;
    pthread_t starter;
    bool has_starter;
} target;

typedef struct trace_line {
    uint64_t number; /* 0: empty */
    int64_t at;      /* unix seconds */
    int32_t cls, target, n_prompt;
    float confidence;
    const char *reason;
    double decision_ms, predicted_first_ms, predicted_ms, first_ms, ms; /* NAN: not known (yet) */
} trace_line;

struct ob_routing {
    pthread_mutex_t lock;
    ob_routing_params params;
    ob_policy policy;      /* immutable once loaded */
    ob_engine_params served;
    const char *model_id;
    ob_scorer *scorer;     /* immutable once loaded */
    bool scorer_said;      /* that it failed */
    bool closing;
    target targets[OB_MAX_TARGETS + 2]; /* the served engine, those of the policy, the long model */
    int32_t n_targets;
    int32_t long_target;   /* -1: none */
    ob_engine_info long_info; /* immutable once loaded */
    ob_sticky *sticky;
    trace_line trace[N_TRACE];
    uint64_t n_trace;
};

struct ob_route_ticket {
    ob_routing *r;
    uint64_t key;
    bool has_key, known, gate, wanted, asked; /* asked: there is a decision, or a reason for none */
    ob_stuck stuck;        /* known */
    int32_t want;
    ob_score_job *job;
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done;          /* by lock, like what follows */
    ob_status status;
    ob_err err;
    ob_decision decision;
};

static const char *const k_states[] = {"untried", "starting", "ready", "dead"};

static const char *kind_name(int32_t kind)
{
    static const char *const other[] = {"none", "short", "long"};
    return kind < OB_CLASS_COUNT ? ob_class_name((ob_class)kind) : other[kind - OB_CLASS_COUNT];
}

/* ------------------------------------------------------------------ loading */

ob_status ob_routing_new(const ob_routing_params *p, ob_routing **out, ob_err *err)
{
    ob_status s = OB_OK;
    ob_routing *r = ob_calloc(1, sizeof *r);
    if (!r) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for routing");
    pthread_mutex_init(&r->lock, NULL);
    r->params = *p;
    r->long_target = -1;
    ob_policy_default(&r->policy);
    if (p->policy_path) OB_GOTO(ob_policy_load(p->policy_path, &r->policy, err));
    if (r->policy.min_confidence > 1)
        ob_log_warn("route policy: min_confidence %g is above 1, so every conversation goes to the default", r->policy.min_confidence);
    OB_GOTO(ob_sticky_new(&r->sticky, err));
    *out = r;
    return OB_OK;
out:
    ob_routing_free(r);
    return s;
}

const char *ob_routing_default_device(const ob_routing *r)
{
    return strchr(r->policy.fallback, '@') ? "auto" : r->policy.fallback;
}

/* The first of a kind goes by the kind alone. */
static void device_name(const ob_dev_info *dev, char *out, size_t cap)
{
    snprintf(out, cap, dev->index ? "%s:%d" : "%s", dev->kind, dev->index);
}

/* All names of the served target become one: "auto", the policy's default, and its kind with its number. */
static void canonical(char *name, size_t cap, const ob_dev_info *dev, const char *fallback)
{
    char numbered[40];
    snprintf(numbered, sizeof numbered, "%s:%d", dev->kind, dev->index);
    if (!strcmp(name, "auto") || !strcmp(name, fallback) || !strcmp(name, numbered)) device_name(dev, name, cap);
}

static int32_t find_target(const ob_routing *r, const char *name)
{
    for (int32_t i = 0; i < r->n_targets; i++)
        if (!strcmp(r->targets[i].name, name)) return i;
    return -1;
}

static void add_target(ob_routing *r, const char *name)
{
    if (find_target(r, name) >= 0 || r->n_targets > OB_MAX_TARGETS) return;
    target *t = &r->targets[r->n_targets++];
    const char *at = strchr(name, '@');
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->device, sizeof t->device, "%.*s", (int)(at ? at - name : (ptrdiff_t)strlen(name)), name);
    snprintf(t->model, sizeof t->model, "%s", at ? at + 1 : "");
    t->r = r;
}

/* The targets that the policy names; [0] is there. */
static void add_policy_targets(ob_routing *r, const ob_dev_info *dev)
{
    char fallback[sizeof r->policy.fallback];
    strcpy(fallback, r->policy.fallback);
    canonical(r->policy.fallback, sizeof r->policy.fallback, dev, fallback);
    for (int c = 0; c < OB_CLASS_COUNT; c++) {
        canonical(r->policy.target[c], sizeof r->policy.target[c], dev, fallback);
        add_target(r, r->policy.target[c]);
    }
    for (int32_t i = 0; i < r->policy.measured.n_targets; i++) {
        canonical(r->policy.measured.targets[i].name, sizeof r->policy.measured.targets[i].name, dev, fallback);
        add_target(r, r->policy.measured.targets[i].name);
    }
}

static void load_scorer(ob_routing *r, const ob_engine_params *served)
{
    ob_err err;
    if (!r->params.scorer_path) {
        ob_log_warn("routing: every conversation goes to %s: %s", r->targets[0].name,
                    r->params.scorer_error ? r->params.scorer_error : "there is no scorer");
        return;
    }
    ob_engine_params p = *served;
    p.model_path = r->params.scorer_path;
    p.device = "cpu"; /* a few milliseconds there, and never behind a long step of a GPU */
    p.n_ctx = p.n_seq = p.n_queue = 0;
    p.n_threads = 1;
    p.embed = false;
    p.share = NULL;
    p.on_progress = NULL;
    if (ob_scorer_new(&p, &r->scorer, &err) != OB_OK) {
        r->scorer = NULL;
        ob_log_warn("routing: every conversation goes to %s: %s", r->targets[0].name, err.text);
        return;
    }
    const ob_str hi = {"hello", 5}; /* the first step of a size is slower */
    ob_decision d;
    (void)!ob_scorer_ask(r->scorer, ob_question_classes(), &(ob_turns){&hi, 1}, &d, &err);
}

static void say_targets(const ob_routing *r)
{
    if (r->n_targets > 1) ob_log_info("routing: %d targets, the default is %s", r->n_targets, r->targets[0].name);
    else ob_log_warn("routing: every conversation goes to %s: the policy names no other device (1bit policy measure writes "
                     "one for this machine, --route-policy takes it)", r->targets[0].name);
}

/* Loaded at once, not with the first long prompt: that one would have to wait for it, or read its prompt slowly. */
static ob_status load_long(ob_routing *r, ob_err *err)
{
    const ob_routing_params *rp = &r->params;
    target *t = &r->targets[r->n_targets];
    ob_engine_info *info = &r->long_info;
    ob_engine_params p = r->served;
    p.model_path = rp->long_path;
    p.on_progress = NULL;
    p.n_picture_tok = 0; /* pictures stay with the served engine */
    if (rp->long_device) {
        p.device = rp->long_device;
        p.split = NULL;
        p.prefill_device = NULL;
    }
    const ob_status s = ob_engine_new(&p, &t->engine, err);
    if (s != OB_OK) return ob_err_prefix(err, s, "--long-model %.150s", rp->long_path);
    ob_engine_describe(t->engine, info);
    r->long_target = r->n_targets++;
    snprintf(t->name, sizeof t->name, "long");
    device_name(&info->device, t->device, sizeof t->device);
    snprintf(t->model, sizeof t->model, "%s", rp->long_path);
    t->r = r;
    t->state = READY;
    t->n_seq = info->n_seq;
    if (info->n_ctx <= rp->long_from)
        return ob_err_set(err, OB_E_INVALID, "--long-from %d: the context of %.150s holds %d tokens, so no prompt is long enough "
                          "for it; try a larger --ctx-size", rp->long_from, rp->long_path, info->n_ctx);
    ob_log_info("long model: %s on %s, prompts from %d tokens; %.1f MB of its tensors are the served model's",
                rp->long_id, t->device, rp->long_from, (double)info->n_shared_bytes * 1e-6);
    return OB_OK;
}

ob_status ob_routing_load(ob_routing *r, const ob_engine_params *served, ob_engine *engine, const char *model_id, ob_err *err)
{
    ob_engine_info info;
    r->served = *served;
    r->served.prefill_device = NULL; /* of the served engine alone */
    r->model_id = model_id;
    ob_engine_describe(engine, &info);
    char name[sizeof r->targets[0].name];
    device_name(&info.device, name, sizeof name);
    add_target(r, name);
    r->targets[0].engine = engine;
    r->targets[0].state = READY;
    r->targets[0].n_seq = info.n_seq;
    if (r->params.by_class) add_policy_targets(r, &info.device);
    if (r->params.long_path) OB_TRY(load_long(r, err));
    if (!r->params.by_class) return OB_OK;
    load_scorer(r, served);
    if (r->scorer) say_targets(r);
    return OB_OK;
}

void ob_routing_free(ob_routing *r)
{
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->closing = true;
    pthread_mutex_unlock(&r->lock);
    for (int32_t i = 0; i < r->n_targets; i++) {
        target *t = &r->targets[i];
        uint64_t n = 0;
        if (t->has_starter) pthread_join(t->starter, NULL);
        for (int c = 0; c < N_KINDS; c++) n += t->n_routed[c];
        if (n) ob_log_info("routing: %llu conversations went to %s", (unsigned long long)n, t->name);
        if (i > 0) ob_engine_free(t->engine);
    }
    ob_scorer_free(r->scorer);
    ob_sticky_free(r->sticky);
    pthread_mutex_destroy(&r->lock);
    ob_free(r);
}

ob_scorer *ob_routing_scorer(const ob_routing *r) { return r->scorer; }

/* ------------------------------------------------------------------ starting a target */

/* Token ids must mean the same on every target, since the prompt is tokenised once. */
static bool same_vocabulary(const ob_tok *a, const ob_tok *b)
{
    if (ob_tok_n_vocab(a) != ob_tok_n_vocab(b)) return false;
    for (int32_t i = 0; i < ob_tok_n_vocab(a); i++) {
        size_t na, nb;
        const char *ta = ob_tok_piece(a, i, &na), *tb = ob_tok_piece(b, i, &nb);
        if (na != nb || memcmp(ta, tb, na) != 0) return false;
    }
    return true;
}

static void *starter_main(void *arg)
{
    target *t = arg;
    ob_routing *r = t->r;
    ob_engine_params p = r->served;
    ob_engine_info info = {0};
    ob_engine *e = NULL;
    ob_err err;
    p.device = t->device;
    p.on_progress = NULL;
    if (*t->model) p.model_path = t->model;
    ob_status s = ob_engine_new(&p, &e, &err);
    if (s == OB_OK && *t->model && !same_vocabulary(ob_engine_tok(e), ob_engine_tok(r->targets[0].engine)))
        s = ob_err_set(&err, OB_E_UNSUPPORTED, "its vocabulary is not that of the served model");
    if (s == OB_OK) ob_engine_describe(e, &info);
    else ob_engine_free(e);
    pthread_mutex_lock(&r->lock);
    t->engine = s == OB_OK ? e : NULL;
    t->n_seq = info.n_seq;
    t->state = s == OB_OK ? READY : DEAD;
    pthread_mutex_unlock(&r->lock);
    if (s == OB_OK) ob_log_info("routing: %s is ready", t->name);
    else ob_log_warn("routing: %s cannot be used, %s serves instead: %s", t->name, r->targets[0].name, err.text);
    return NULL;
}

/* With the lock. */
static void start(target *t)
{
    if (t->state != UNTRIED || t->r->closing) return;
    t->state = STARTING;
    t->has_starter = pthread_create(&t->starter, NULL, starter_main, t) == 0;
    if (!t->has_starter) t->state = DEAD;
}

/* ------------------------------------------------------------------ begin */

static void hash_text(XXH3_state_t *h, const char *s, size_t n)
{
    const uint64_t len = n;
    (void)XXH3_64bits_update(h, &len, sizeof len);
    (void)XXH3_64bits_update(h, s, n);
}

static void hash_value(XXH3_state_t *h, const json_t *v)
{
    if (json_is_string(v)) {
        hash_text(h, json_string_value(v), json_string_length(v));
    } else if (v) {
        char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
        if (text) hash_text(h, text, strlen(text));
        free(text); /* jansson's */
    }
}

/* The model, and each role and content up to and with the first message of a user; or the whole prompt. */
static bool key_of(const ob_routing *r, const json_t *request, uint64_t *key)
{
    const json_t *messages = json_object_get(request, "messages"), *prompt = json_object_get(request, "prompt");
    size_t i;
    json_t *m;
    XXH3_state_t *h = XXH3_createState();
    if (!h) return false;
    (void)XXH3_64bits_reset(h);
    hash_text(h, r->model_id, strlen(r->model_id));
    if (json_is_array(messages)) {
        json_array_foreach((json_t *)messages, i, m)
        {
            const char *role = json_string_value(json_object_get(m, "role"));
            hash_text(h, role ? role : "", role ? strlen(role) : 0);
            hash_value(h, json_object_get(m, "content"));
            if (role && !strcmp(role, "user")) break;
        }
    } else {
        hash_value(h, prompt);
    }
    *key = XXH3_64bits_digest(h);
    XXH3_freeState(h);
    return true;
}

static void on_decision(void *arg, ob_status s, const ob_err *err, const ob_decision *d)
{
    ob_route_ticket *t = arg;
    pthread_mutex_lock(&t->lock);
    t->status = s;
    if (s == OB_OK) t->decision = *d;
    else t->err = *err;
    t->is_done = true;
    pthread_cond_signal(&t->done);
    pthread_mutex_unlock(&t->lock);
}

/* With the lock: the target that a request asks for by name. */
static ob_status find_wanted(const ob_routing *r, const char *want, int32_t *out, ob_err *err)
{
    *out = !strcmp(want, "default") ? 0 : find_target(r, want);
    if (*out >= 0 && r->targets[*out].state != DEAD) return OB_OK;
    char names[400] = "default";
    for (int32_t i = 0, at = (int32_t)strlen(names); i < r->n_targets && at < (int32_t)sizeof names; i++)
        at += snprintf(names + at, sizeof names - (size_t)at, ", %s%s", r->targets[i].name, r->targets[i].state == DEAD ? " (dead)" : "");
    return ob_err_set(err, OB_E_INVALID, "X-1bit-Target: there is no target \"%.60s\"; there are %s", want, names);
}

/* Ask the scorer, or know at once. */
static void ask(ob_route_ticket *t, const json_t *request)
{
    ob_routing *r = t->r;
    ob_turn_list turns = {0};
    const json_t *messages = json_object_get(request, "messages");
    t->asked = true;
    t->is_done = true;
    t->status = ob_turns_parse(messages ? messages : json_object_get(request, "prompt"), "the request", &turns, &t->err);
    if (t->status != OB_OK) return; /* ids: nothing to read; a wrong request gets its error elsewhere */
    t->gate = ob_turns_bytes(&turns.turns) >= OB_ROUTE_GATE_BYTES;
    if (!t->gate && r->scorer) {
        t->is_done = false;
        t->status = ob_scorer_submit(r->scorer, ob_question_classes(), &turns.turns, on_decision, t, &t->job, &t->err);
        if (t->status != OB_OK) t->is_done = true;
    } else if (!t->gate) {
        t->status = ob_err_set(&t->err, OB_E_NOT_FOUND, "there is no scorer");
    }
    ob_turn_list_deinit(&turns);
}

ob_status ob_routing_begin(ob_routing *r, const json_t *request, const char *want, ob_route_ticket **out, ob_err *err)
{
    ob_status s = OB_OK;
    *out = NULL;
    ob_route_ticket *t = ob_calloc(1, sizeof *t);
    if (!t) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the request");
    t->r = r;
    t->is_done = true;
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    t->has_key = key_of(r, request, &t->key);
    pthread_mutex_lock(&r->lock);
    if (want && *want) {
        t->wanted = true;
        s = find_wanted(r, want, &t->want, err);
    } else if (t->has_key) {
        const ob_stuck *known = ob_sticky_find(r->sticky, t->key);
        if (known && r->targets[known->target].state == READY) {
            t->known = true;
            t->stuck = *known;
        }
    }
    pthread_mutex_unlock(&r->lock);
    if (s == OB_OK && !t->known && !t->wanted && r->params.by_class) ask(t, request);
    if (s == OB_OK) *out = t;
    else ob_routing_drop(t);
    return s;
}

/* ------------------------------------------------------------------ end */

/* Waits for the decision, but not for ever. */
static void wait_decision(ob_route_ticket *t)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(DECISION_LIMIT_MS / 1e3);
    pthread_mutex_lock(&t->lock);
    while (!t->is_done && pthread_cond_timedwait(&t->done, &t->lock, &until) == 0) {}
    if (!t->is_done) {
        ob_score_job_cancel(t->job);
        while (!t->is_done) pthread_cond_wait(&t->done, &t->lock);
    }
    pthread_mutex_unlock(&t->lock);
}

static void ticket_free(ob_route_ticket *t)
{
    ob_score_job_free(t->job);
    pthread_cond_destroy(&t->done);
    pthread_mutex_destroy(&t->lock);
    ob_free(t);
}

void ob_routing_drop(ob_route_ticket *t)
{
    if (!t) return;
    if (t->job) ob_score_job_cancel(t->job);
    wait_decision(t);
    ticket_free(t);
}

/* With the lock. Candidates are the targets that can be had; index[i] is the target of candidate i. */
static ob_pick pick(ob_routing *r, ob_class c, double confidence, int32_t n_prompt, int32_t *index)
{
    ob_candidate cand[OB_MAX_TARGETS + 1];
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_targets; i++) {
        const target *t = &r->targets[i];
        ob_engine_stats st = {0};
        if (i == r->long_target || (i > 0 && t->state == DEAD)) continue;
        if (t->state == READY) ob_engine_get_stats(t->engine, &st);
        index[n] = i;
        cand[n++] = (ob_candidate){.name = t->name, .n_ahead = st.n_running + st.n_waiting, .n_seq = OB_MAX(t->n_seq, 1)};
    }
    return ob_policy_pick(&r->policy, c, confidence, n_prompt, cand, n);
}

/* "long 2100 vulkan", "short 1900 cpu", or by class "code 0.93 cpu". */
static void write_header(const ob_routing *r, int32_t kind, float confidence, int32_t n_prompt, ob_routed *out)
{
    out->kind = kind;
    out->confidence = confidence;
    out->n_prompt = n_prompt;
    const target *t = &r->targets[out->target];
    const char *device = out->target == r->long_target ? t->device : t->name;
    if (kind > NO_CLASS) snprintf(out->header, sizeof out->header, "X-1bit-Route: %s %d %.80s\r\n", kind_name(kind), n_prompt, device);
    else snprintf(out->header, sizeof out->header, "X-1bit-Route: %s %.2f %.80s\r\n", kind_name(kind), (double)confidence, device);
}

/* With the lock: class and confidence of a new conversation. */
static void read_decision(ob_route_ticket *t, int32_t *kind, float *confidence)
{
    ob_routing *r = t->r;
    *kind = r->params.by_class ? NO_CLASS : SHORT_PROMPT;
    *confidence = 0;
    if (!t->asked) return;
    if (t->gate) {
        *kind = OB_CLASS_LONG_DOC;
        *confidence = 1;
    } else if (t->status == OB_OK) {
        *kind = t->decision.best; /* the options of the question are the classes in order */
        *confidence = t->decision.confidence;
    } else if (r->scorer && t->job && !r->scorer_said) {
        r->scorer_said = true;
        ob_log_warn("routing: a decision failed, so the default serves: %s", t->err.text);
    }
}

/* Is a first prompt of n_prompt tokens the long model's, and can it take it? */
static bool is_long(const ob_routing *r, int32_t n_prompt)
{
    return r->long_target >= 0 && n_prompt >= r->params.long_from && n_prompt < r->long_info.n_ctx &&
           r->targets[r->long_target].state == READY;
}

/* With the lock: what a new conversation is, where it should go and why. */
static ob_pick choose(ob_route_ticket *t, int32_t n_prompt, int32_t *kind, float *confidence, double *first)
{
    ob_routing *r = t->r;
    int32_t index[OB_MAX_TARGETS + 1];
    ob_pick p = {.target = 0, .reason = "the first prompt is short", .predicted_ms = NAN};
    read_decision(t, kind, confidence);
    if (t->wanted) {
        p.target = t->want;
        p.reason = "asked for by the request";
        if (p.target == r->long_target) *kind = LONG_PROMPT;
    } else if (is_long(r, n_prompt)) {
        p.target = r->long_target;
        p.reason = "the first prompt is long";
        *kind = LONG_PROMPT;
    } else if (r->params.by_class) {
        p = pick(r, (ob_class)*kind, (double)*confidence, n_prompt, index);
        p.target = index[p.target];
    }
    if (*kind < OB_CLASS_COUNT)
        p.predicted_ms = ob_policy_predict(&r->policy, r->targets[p.target].name, (ob_class)*kind, n_prompt, 0, 1, first);
    return p;
}

/* With the lock. */
static void new_conversation(ob_route_ticket *t, int32_t n_prompt, ob_routed *out)
{
    ob_routing *r = t->r;
    int32_t kind;
    float confidence;
    double first = NAN;
    ob_pick p = choose(t, n_prompt, &kind, &confidence, &first);
    target *chosen = &r->targets[p.target];
    if (chosen->state == UNTRIED) start(chosen);
    out->target = p.target;
    if (chosen->state != READY) {
        out->target = 0;
        p.reason = "its target is starting";
    }
    r->targets[out->target].n_routed[kind]++;
    /* one that waits for its target may still get there with its next turn; a wish is for one request */
    if (t->has_key && out->target == p.target && !t->wanted)
        ob_sticky_put(r->sticky, t->key, &(ob_stuck){.target = out->target, .cls = kind, .confidence = confidence});
    out->trace = ++r->n_trace;
    r->trace[out->trace % N_TRACE] =
        (trace_line){.number = out->trace, .at = ob_unix_seconds(), .cls = kind, .target = out->target, .n_prompt = n_prompt,
                     .confidence = confidence, .reason = p.reason, .decision_ms = t->job ? t->decision.ms : 0,
                     .predicted_first_ms = first, .predicted_ms = p.predicted_ms, .first_ms = NAN, .ms = NAN};
    write_header(r, kind, confidence, n_prompt, out);
}

void ob_routing_end(ob_routing *r, ob_route_ticket *t, int32_t n_prompt, ob_routed *out)
{
    *out = (ob_routed){0};
    pthread_mutex_lock(&r->lock);
    const bool by_length = is_long(r, n_prompt);
    pthread_mutex_unlock(&r->lock);
    if (by_length && t->job) ob_score_job_cancel(t->job); /* the class does not matter any more */
    wait_decision(t);
    pthread_mutex_lock(&r->lock);
    if (t->known) {
        out->target = t->stuck.target;
        write_header(r, t->stuck.cls, t->stuck.confidence, n_prompt, out);
    } else {
        new_conversation(t, n_prompt, out);
    }
    out->engine = r->targets[out->target].engine;
    out->is_long = out->target == r->long_target;
    pthread_mutex_unlock(&r->lock);
    ticket_free(t);
}

/* ------------------------------------------------------------------ what happened */

/* With the lock. */
static trace_line *line_of(ob_routing *r, uint64_t number)
{
    trace_line *l = &r->trace[number % N_TRACE];
    return number && l->number == number ? l : NULL;
}

void ob_routing_note_first(ob_routing *r, const ob_routed *at, double ms)
{
    pthread_mutex_lock(&r->lock);
    trace_line *l = line_of(r, at->trace);
    if (l) l->first_ms = ms;
    pthread_mutex_unlock(&r->lock);
}

void ob_routing_note_done(ob_routing *r, const ob_routed *at, double ms)
{
    pthread_mutex_lock(&r->lock);
    trace_line *l = line_of(r, at->trace);
    if (l) l->ms = ms;
    pthread_mutex_unlock(&r->lock);
}

bool ob_routing_failed(ob_routing *r, ob_routed *at, const ob_err *err)
{
    int32_t other = -1;
    bool say = false;
    pthread_mutex_lock(&r->lock);
    target *t = &r->targets[at->target];
    if (at->target > 0 && t->state == READY) {
        t->state = DEAD; /* its engine stays until the end: other requests may be on it */
        say = true;
    }
    for (int32_t i = 0; other < 0 && i < r->n_targets; i++)
        if (i != at->target && r->targets[i].state == READY) other = i;
    if (other >= 0) {
        at->target = other;
        at->engine = r->targets[other].engine;
        at->is_long = other == r->long_target;
        const int32_t otherwise = at->is_long ? LONG_PROMPT : r->params.by_class ? NO_CLASS : SHORT_PROMPT;
        write_header(r, at->kind > NO_CLASS ? otherwise : at->kind, at->confidence, at->n_prompt, at);
        trace_line *l = line_of(r, at->trace);
        if (l) {
            l->target = other;
            l->reason = "its target failed";
        }
    }
    pthread_mutex_unlock(&r->lock);
    if (say) ob_log_warn("routing: %s failed, its conversations go elsewhere: %s", t->name, err->text);
    return other >= 0;
}

/* ------------------------------------------------------------------ explaining */

static void add_ms(ob_buf *out, const char *name, double ms)
{
    ob_buf_addf(out, ",\"%s\":", name);
    ob_buf_add_double(out, round(ms * 1e3) / 1e3);
}

static void add_name(ob_buf *out, const char *key, const char *value)
{
    ob_buf_addf(out, "\"%s\":", key);
    ob_buf_add_json(out, value, strlen(value));
}

static void add_targets(ob_routing *r, ob_buf *out)
{
    ob_buf_adds(out, "\"targets\":[");
    for (int32_t i = 0; i < r->n_targets; i++) {
        const target *t = &r->targets[i];
        ob_engine_stats st = {0};
        uint64_t n = 0;
        if (t->state == READY) ob_engine_get_stats(t->engine, &st);
        for (int c = 0; c < N_KINDS; c++) n += t->n_routed[c];
        ob_buf_adds(out, i ? ",{" : "{");
        add_name(out, "target", t->name);
        if (i == r->long_target) {
            ob_buf_addc(out, ',');
            add_name(out, "device", t->device);
            ob_buf_addc(out, ',');
            add_name(out, "model", r->params.long_id);
            ob_buf_addf(out, ",\"from\":%d", r->params.long_from);
        }
        ob_buf_addf(out, ",\"state\":\"%s\",\"default\":%s,\"running\":%d,\"waiting\":%d,\"conversations\":%llu}", k_states[t->state],
                    i ? "false" : "true", st.n_running, st.n_waiting, (unsigned long long)n);
    }
    ob_buf_addc(out, ']');
}

static void add_trace(ob_routing *r, ob_buf *out)
{
    bool first = true;
    ob_buf_adds(out, ",\"trace\":[");
    for (uint64_t n = r->n_trace; n > 0 && n + N_TRACE > r->n_trace; n--) {
        const trace_line *l = line_of(r, n);
        if (!l) continue;
        ob_buf_addf(out, "%s{\"time\":%lld,\"class\":\"%s\",\"confidence\":%.4f,", first ? "" : ",", (long long)l->at,
                    kind_name(l->cls), (double)l->confidence);
        add_name(out, "target", r->targets[l->target].name);
        ob_buf_addc(out, ',');
        add_name(out, "reason", l->reason);
        ob_buf_addf(out, ",\"n_prompt\":%d", l->n_prompt);
        add_ms(out, "decision_ms", l->decision_ms);
        add_ms(out, "predicted_first_token_ms", l->predicted_first_ms);
        add_ms(out, "first_token_ms", l->first_ms);
        add_ms(out, "predicted_ms", l->predicted_ms);
        add_ms(out, "ms", l->ms);
        ob_buf_addc(out, '}');
        first = false;
    }
    ob_buf_addc(out, ']');
}

/* Class and probabilities of a request. */
static ob_status explain_class(ob_routing *r, const ob_turns *turns, ob_decision *d, ob_buf *out, ob_err *err)
{
    *d = (ob_decision){.best = OB_CLASS_LONG_DOC, .confidence = 1};
    if (ob_turns_bytes(turns) < OB_ROUTE_GATE_BYTES) {
        if (!r->scorer) return ob_err_set(err, OB_E_UNSUPPORTED, "this server has no scorer");
        OB_TRY(ob_scorer_ask(r->scorer, ob_question_classes(), turns, d, err));
    }
    ob_buf_addf(out, "\"class\":\"%s\",\"confidence\":%.6f,\"probabilities\":{", ob_class_name((ob_class)d->best), (double)d->confidence);
    for (int32_t i = 0; i < d->n; i++) ob_buf_addf(out, "%s\"%s\":%.6f", i ? "," : "", ob_class_name((ob_class)i), (double)d->probs[i]);
    ob_buf_adds(out, d->n ? "}," : "\"long_doc\":1},");
    return OB_OK;
}

/* With the lock: what each target would take, as far as it was measured. */
static void add_predictions(const ob_routing *r, int32_t cls, int32_t n_prompt, ob_buf *out)
{
    bool first = true;
    ob_buf_adds(out, ",\"predicted\":{");
    for (int32_t i = 0; i < r->n_targets; i++) {
        double ttft;
        const double all = ob_policy_predict(&r->policy, r->targets[i].name, (ob_class)cls, n_prompt, 0, 1, &ttft);
        if (!isfinite(all)) continue;
        if (!first) ob_buf_addc(out, ',');
        first = false;
        ob_buf_add_json(out, r->targets[i].name, strlen(r->targets[i].name));
        ob_buf_addf(out, ":{\"first_token_ms\":%.3f,\"ms\":%.3f}", ttft, all);
    }
    ob_buf_addc(out, '}');
}

static ob_status explain_request(ob_routing *r, const json_t *request, int32_t n_prompt, ob_buf *out, ob_err *err)
{
    ob_turn_list turns = {0};
    ob_decision d = {.best = NO_CLASS};
    ob_pick p = {.reason = "the first prompt is short"};
    const json_t *messages = json_object_get(request, "messages"), *prompt = json_object_get(request, "prompt");
    int32_t index[OB_MAX_TARGETS + 1];
    ob_status s = OB_OK;
    if (r->params.by_class) {
        OB_TRY(ob_turns_parse(messages ? messages : prompt, "the request", &turns, err));
        s = explain_class(r, &turns.turns, &d, out, err);
        if (n_prompt <= 0) n_prompt = (int32_t)OB_MIN(ob_turns_bytes(&turns.turns) / 4 + 1, (size_t)INT32_MAX);
        ob_turn_list_deinit(&turns);
        if (s != OB_OK) return s;
    }
    pthread_mutex_lock(&r->lock);
    if (is_long(r, n_prompt)) {
        p = (ob_pick){.target = r->long_target, .reason = "the first prompt is long"};
    } else if (r->params.by_class) {
        p = pick(r, (ob_class)d.best, (double)d.confidence, n_prompt, index);
        p.target = index[p.target];
    }
    add_name(out, "target", r->targets[p.target].name);
    ob_buf_addc(out, ',');
    add_name(out, "reason", p.reason);
    ob_buf_addf(out, ",\"n_prompt\":%d", n_prompt);
    if (r->params.by_class) {
        add_ms(out, "decision_ms", d.ms);
        add_predictions(r, d.best, n_prompt, out);
    }
    ob_buf_addc(out, ',');
    pthread_mutex_unlock(&r->lock);
    return OB_OK;
}

bool ob_routing_long(ob_routing *r, ob_engine_info *out, const char **state)
{
    if (r->long_target < 0) return false;
    *out = r->long_info;
    if (state) {
        pthread_mutex_lock(&r->lock);
        *state = k_states[r->targets[r->long_target].state];
        pthread_mutex_unlock(&r->lock);
    }
    return true;
}

void ob_routing_add_stats(ob_routing *r, ob_engine_stats *st)
{
    pthread_mutex_lock(&r->lock);
    for (int32_t i = 1; i < r->n_targets; i++) {
        ob_engine_stats t;
        if (!r->targets[i].engine) continue;
        ob_engine_get_stats(r->targets[i].engine, &t);
        st->n_requests += t.n_requests;
        st->n_done += t.n_done;
        st->n_failed += t.n_failed;
        st->n_cancelled += t.n_cancelled;
        st->n_prompt_tok += t.n_prompt_tok;
        st->n_cached_tok += t.n_cached_tok;
        st->n_gen_tok += t.n_gen_tok;
        st->n_steps += t.n_steps;
        st->prompt_s += t.prompt_s;
        st->gen_s += t.gen_s;
        st->n_running += t.n_running;
        st->n_waiting += t.n_waiting;
        st->kv_tok_used += t.kv_tok_used;
        st->kv_tok_total += t.kv_tok_total;
        st->kv_tok_cached += t.kv_tok_cached;
    }
    pthread_mutex_unlock(&r->lock);
}

ob_status ob_routing_explain(ob_routing *r, const json_t *request, int32_t n_prompt, ob_buf *out, ob_err *err)
{
    ob_buf_addc(out, '{');
    if (request) OB_TRY(explain_request(r, request, n_prompt, out, err));
    pthread_mutex_lock(&r->lock);
    add_targets(r, out);
    add_trace(r, out);
    pthread_mutex_unlock(&r->lock);
    ob_buf_addc(out, '}');
    return ob_buf_status(out, err);
}

void ob_routing_metrics(ob_routing *r, ob_buf *out)
{
    ob_buf_adds(out, "# HELP onebit_routed_total New conversations by class and target.\n# TYPE onebit_routed_total counter\n");
    pthread_mutex_lock(&r->lock);
    for (int32_t i = 0; i < r->n_targets; i++)
        for (int c = 0; c < N_KINDS; c++)
            if (r->targets[i].n_routed[c])
                ob_buf_addf(out, "onebit_routed_total{class=\"%s\",target=\"%s\"} %llu\n", kind_name(c),
                            r->targets[i].name, (unsigned long long)r->targets[i].n_routed[c]);
    pthread_mutex_unlock(&r->lock);
}
