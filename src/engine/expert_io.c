/* Threads that read experts and pack them into their slots. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/math.h"
#include "engine/experts_int.h"

void expert_io_push(ob_experts *x, expert_queue *q, const expert_job *j)
{
    q->jobs[(q->first + q->n++) % q->cap] = *j; /* there is room for a job per slot and matrix */
    pthread_cond_signal(&x->work);
}

bool expert_io_pop(expert_queue *q, expert_job *out)
{
    if (!q->n) return false;
    *out = q->jobs[q->first];
    q->first = (q->first + 1) % q->cap;
    q->n--;
    return true;
}

/* One matrix of all experts of a job, from bytes as they are in the file, into the slots. */
static ob_status pack(ob_experts *x, const expert_job *j, int mat, const uint8_t *data, ob_err *err)
{
    const expert_layer *l = &x->layers[j->layer];
    const expert_pool *p = &x->pools[l->pool];
    for (int32_t i = 0; i < j->n; i++)
        OB_TRY(p->dev->api->weight_write(p->dev, p->weight[mat], l->slot_of[j->first + i],
                                         data + (size_t)i * l->bytes[mat], err));
    return OB_OK;
}

/* Locked: a matrix of the job's experts is in its slots. */
static void arrived(ob_experts *x, const expert_job *j)
{
    const expert_layer *l = &x->layers[j->layer];
    for (int32_t i = 0; i < j->n; i++) x->pools[l->pool].slots[l->slot_of[j->first + i]].left--;
    pthread_cond_signal(&x->done);
}

/* Locked: hand bytes over to the engine thread, when there is room. */
static ob_status post(ob_experts *x, const expert_job *j, int mat, const void *data, size_t n, ob_err *err)
{
    expert_parcel *p = ob_malloc(sizeof *p + n);
    if (!p) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for an expert of %zu bytes", n);
    p->job = *j;
    p->job.mat = (int16_t)mat;
    p->n_bytes = n;
    memcpy(p->data, data, n);
    while (x->held_bytes && x->held_bytes + n > EXPERT_HELD_BYTES && !x->stop) pthread_cond_wait(&x->room, &x->lock);
    p->next = x->parcels;
    x->parcels = p;
    x->held_bytes += n;
    pthread_cond_signal(&x->done);
    return OB_OK;
}

/* Unlocked but where it says so. */
static ob_status run_job(expert_reader *r, const expert_job *j, ob_err *err)
{
    ob_experts *x = r->x;
    const expert_layer *l = &x->layers[j->layer];
    const bool threads = x->pools[l->pool].threads;
    for (int mat = j->mat; mat < j->mat_end; mat++) {
        const void *data;
        const size_t n = l->bytes[mat] * (size_t)j->n;
        const uint64_t had = ob_direct_n_bytes(r->file);
        if (!l->tensor[mat]) continue;
        OB_TRY(ob_direct_read(r->file, l->tensor[mat], (uint64_t)j->first * l->bytes[mat], n, &data, err));
        if (threads) OB_TRY(pack(x, j, mat, data, err));
        pthread_mutex_lock(&x->lock);
        x->stats.n_read_bytes += ob_direct_n_bytes(r->file) - had;
        const ob_status s = threads ? OB_OK : post(x, j, mat, data, n, err);
        if (threads) arrived(x, j);
        pthread_mutex_unlock(&x->lock);
        if (s != OB_OK) return s;
    }
    return OB_OK;
}

static void *reader_main(void *arg)
{
    expert_reader *r = arg;
    ob_experts *x = r->x;
    expert_job j;
    pthread_mutex_lock(&x->lock);
    while (!x->stop) {
        if (!expert_io_pop(&x->urgent, &j) && !expert_io_pop(&x->later, &j)) {
            pthread_cond_wait(&x->work, &x->lock);
            continue;
        }
        x->n_running++;
        pthread_mutex_unlock(&x->lock);
        ob_err err;
        const ob_status s = run_job(r, &j, &err);
        pthread_mutex_lock(&x->lock);
        x->n_running--;
        if (s != OB_OK && x->failed.code == OB_OK) x->failed = err;
        pthread_cond_signal(&x->done);
    }
    pthread_mutex_unlock(&x->lock);
    return NULL;
}

ob_status expert_io_unpack(ob_experts *x, ob_err *err)
{
    ob_status s = OB_OK;
    while (x->parcels && s == OB_OK) {
        expert_parcel *p = x->parcels;
        x->parcels = p->next;
        x->held_bytes -= p->n_bytes;
        pthread_cond_broadcast(&x->room);
        pthread_mutex_unlock(&x->lock);
        s = pack(x, &p->job, p->job.mat, p->data, err);
        pthread_mutex_lock(&x->lock);
        if (s == OB_OK) arrived(x, &p->job);
        ob_free(p);
    }
    return s;
}

ob_status expert_io_start(ob_experts *x, ob_err *err)
{
    x->stop = false;
    for (int i = 0; i < EXPERT_READERS; i++) {
        expert_reader *r = &x->readers[i];
        *r = (expert_reader){.x = x};
        OB_TRY(ob_direct_new(x->file, x->read_bytes, 0, &r->file, err));
        const int e = pthread_create(&r->thread, NULL, reader_main, r);
        if (e) return ob_err_set_errno(err, OB_E_INTERNAL, e, "cannot start a thread that reads experts");
        r->started = true;
    }
    return OB_OK;
}

void expert_io_stop(ob_experts *x)
{
    pthread_mutex_lock(&x->lock);
    x->stop = true;
    x->urgent.n = x->later.n = 0;
    pthread_cond_broadcast(&x->work);
    pthread_cond_broadcast(&x->room);
    pthread_mutex_unlock(&x->lock);
    for (int i = 0; i < EXPERT_READERS; i++) {
        expert_reader *r = &x->readers[i];
        if (r->started) pthread_join(r->thread, NULL);
        ob_direct_free(r->file);
        *r = (expert_reader){0};
    }
    for (expert_parcel *p = x->parcels, *next; p; p = next) {
        next = p->next;
        ob_free(p);
    }
    x->parcels = NULL;
    x->held_bytes = 0;
    x->failed.code = OB_OK;
}
