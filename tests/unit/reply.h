/* A request to an engine, and what came of it. */
#ifndef REPLY_H
#define REPLY_H

#include <pthread.h>

#include "engine/engine.h"
#include "test.h"

typedef struct reply {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    int32_t ids[512];
    float logprobs[512]; /* where they were asked for */
    int n;
    char text[8192];
    size_t len;
    ob_finish finish;
    ob_err err;
    ob_timings timings;
    ob_request *req;
} reply;

static inline void reply_on_event(void *arg, const ob_event *ev)
{
    reply *r = arg;
    pthread_mutex_lock(&r->lock);
    assert_false(r->done);
    assert_true(r->n < 512 && r->len + ev->text_len <= sizeof r->text);
    if (ev->id >= 0) {
        r->logprobs[r->n] = (float)ev->chosen.logprob;
        r->ids[r->n++] = ev->id;
    }
    if (ev->text_len) memcpy(r->text + r->len, ev->text, ev->text_len);
    r->len += ev->text_len;
    r->done = ev->done;
    r->finish = ev->finish;
    r->err = ev->err;
    r->timings = ev->timings;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static inline void reply_submit(reply *r, ob_engine *e, ob_request_params *p)
{
    ob_err err = {0};
    memset(r, 0, sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    p->on_event = reply_on_event;
    p->arg = r;
    if (ob_engine_submit(e, p, &r->req, &err) != OB_OK) fail_msg("%s", err.text);
}

static inline void reply_wait(reply *r)
{
    pthread_mutex_lock(&r->lock);
    while (!r->done) pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

/* What came of it stays readable. */
static inline void reply_end(reply *r)
{
    ob_request_free(r->req);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
}

static inline reply *reply_new(ob_engine *e, ob_request_params *p)
{
    reply *r = malloc(sizeof *r);
    assert_non_null(r);
    reply_submit(r, e, p);
    return r;
}

static inline void reply_drop(reply *r)
{
    reply_end(r);
    free(r);
}

#endif
