/* Work that would hold up the io thread (JSON, templates, tokens) goes to a few workers; what they
 * and the engine have to say comes back through one mailbox with an eventfd. */
#include "serve/serve_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"

/* --- mailbox --------------------------------------------------------------------------------- */

static void on_mail(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    ob_mbox *m = arg;
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);
    (void)n; /* nothing there is fine: the list below is the truth */
    pthread_mutex_lock(&m->lock);
    ob_post *list = m->head;
    m->head = m->tail = NULL;
    while (list) {
        ob_post *p = list;
        list = p->next;
        p->next = NULL;
        p->queued = false;
        pthread_mutex_unlock(&m->lock);
        p->fn(p); /* may free p */
        pthread_mutex_lock(&m->lock);
    }
    pthread_mutex_unlock(&m->lock);
}

ob_status ob_mbox_init(ob_mbox *m, struct event_base *base, ob_err *err)
{
    memset(m, 0, sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
    m->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (m->fd < 0) return ob_err_set_errno(err, OB_E_IO, errno, "cannot make an eventfd");
    m->ev = event_new(base, m->fd, EV_READ | EV_PERSIST, on_mail, m);
    if (!m->ev || event_add(m->ev, NULL) != 0)
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the server");
    return OB_OK;
}

void ob_mbox_deinit(ob_mbox *m)
{
    if (m->ev) event_free(m->ev);
    if (m->fd > 0) close(m->fd);
    pthread_mutex_destroy(&m->lock);
    m->ev = NULL;
    m->fd = -1;
}

bool ob_mbox_post_locked(ob_mbox *m, ob_post *p)
{
    if (p->queued) return false;
    bool was_empty = !m->head;
    p->queued = true;
    p->next = NULL;
    if (m->tail) m->tail->next = p;
    else m->head = p;
    m->tail = p;
    return was_empty;
}

void ob_mbox_wake(ob_mbox *m)
{
    uint64_t one = 1;
    ssize_t n = write(m->fd, &one, sizeof one);
    (void)n; /* it can only fail when the counter is full, and then the reader is awake anyway */
}

void ob_mbox_post(ob_mbox *m, ob_post *p)
{
    pthread_mutex_lock(&m->lock);
    bool wake = ob_mbox_post_locked(m, p);
    pthread_mutex_unlock(&m->lock);
    if (wake) ob_mbox_wake(m);
}

/* --- workers --------------------------------------------------------------------------------- */

static void *worker_main(void *arg)
{
    ob_workers *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->head && !w->stop) pthread_cond_wait(&w->ready, &w->lock);
        if (!w->head) break;
        ob_job *job = w->head;
        w->head = job->next;
        if (!w->head) w->tail = NULL;
        w->n_queued--;
        pthread_mutex_unlock(&w->lock);
        if (atomic_load_explicit(&job->abandoned, memory_order_relaxed))
            job->status = ob_err_set(&job->err, OB_E_CANCELLED, "the client has gone");
        else
            job->status = job->run(job);
        ob_mbox_post(&job->srv->mbox, &job->post);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

ob_status ob_workers_start(ob_workers *w, int n, ob_err *err)
{
    memset(w, 0, sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->ready, NULL);
    w->threads = ob_calloc((size_t)n, sizeof *w->threads);
    if (!w->threads) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the server");
    for (; w->n_threads < n; w->n_threads++) {
        int rc = pthread_create(&w->threads[w->n_threads], NULL, worker_main, w);
        if (rc) return ob_err_set_errno(err, OB_E_IO, rc, "cannot start a thread");
    }
    return OB_OK;
}

void ob_workers_stop(ob_workers *w)
{
    if (!w->threads) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->ready);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->n_threads; i++) pthread_join(w->threads[i], NULL);
    ob_free(w->threads);
    w->threads = NULL;
    pthread_cond_destroy(&w->ready);
    pthread_mutex_destroy(&w->lock);
}

/* --- jobs ------------------------------------------------------------------------------------ */

static void on_job_done(ob_post *p)
{
    ob_job *job = (ob_job *)p;
    job->finish(job);
}

ob_job *ob_job_new(ob_conn *c, size_t size)
{
    ob_job *job = ob_calloc(1, size);
    if (!job) {
        ob_err err;
        ob_err_set(&err, OB_E_NO_MEMORY, "no memory for another request");
        ob_conn_reply_err(c, &err, NULL);
        return NULL;
    }
    job->srv = ob_conn_server(c);
    job->conn = c;
    job->post.fn = on_job_done;
    ob_arena_init(&job->arena, OB_MAX_REQUEST_ARENA_BYTES);
    ob_buf_init(&job->reply, OB_MAX_REPLY_BYTES);
    ob_conn_take_body(c, &job->body);
    ob_conn_set_job(c, job);
    job->srv->n_jobs++;
    return job;
}

void ob_job_queue(ob_job *job)
{
    ob_workers *w = &job->srv->workers;
    job->next = NULL; /* it may have been queued before */
    pthread_mutex_lock(&w->lock);
    if (w->tail) w->tail->next = job;
    else w->head = job;
    w->tail = job;
    w->n_queued++;
    pthread_cond_signal(&w->ready);
    pthread_mutex_unlock(&w->lock);
}

void ob_job_free(ob_job *job)
{
    if (job->destroy) job->destroy(job);
    if (job->json) json_decref(job->json);
    ob_buf_deinit(&job->body);
    ob_buf_deinit(&job->reply);
    ob_arena_deinit(&job->arena);
    job->srv->n_jobs--;
    ob_free(job);
}

void ob_job_reply(ob_job *job)
{
    if (job->conn) {
        if (job->status == OB_OK) ob_conn_reply_json(job->conn, &job->reply);
        else ob_conn_reply_err(job->conn, &job->err, job->param);
    }
    ob_job_free(job);
}

ob_status ob_job_fail(ob_job *job, const char *param, ob_status code, const char *fmt, ...)
{
    snprintf(job->param, sizeof job->param, "%s", param ? param : "");
    va_list ap;
    va_start(ap, fmt);
    ob_err_setv(&job->err, code, fmt, ap);
    va_end(ap);
    return code;
}
