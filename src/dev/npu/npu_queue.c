/* A hardware context: chains of commands, waiting for them, and a new context after a failure. */
#include "dev/npu/npu_queue.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"

enum { CHAIN_WORDS_MAX = 1 + sizeof(ob_npu_chain) / 4 + 2 * OB_NPU_CHAIN_MAX, WAIT_MS = 10000, CHAIN_MS = 500 };
_Static_assert(CHAIN_WORDS_MAX * 4 <= OB_NPU_PAGE, "a chain's packet is one page");

/* Packets of one submission; used again when it is over. */
typedef struct slot {
    ob_npu_bo *chain, *cmds[OB_NPU_CHAIN_MAX];
    int n_bos;          /* of cmds */
    bool busy;
    uint64_t seq, ticket;
    const ob_npu_bo *head; /* whose header holds the state: chain, or the only command */
} slot;

struct ob_npu_queue {
    ob_npu_dev *dev;
    ob_npu_queue_options opt;
    uint32_t ctx, syncobj; /* 0: none */
    slot slots[OB_NPU_IN_FLIGHT];
    int next;              /* slot of the next submission, and of the oldest when all are busy */
    uint64_t ticket;       /* of the last submission */
    bool broken;
    ob_err failure;        /* why */
    ob_npu_queue_stats stats;
};

/* ---- contexts --------------------------------------------------------------------------------- */

typedef struct ending { ob_npu_os *os; int fd; uint32_t ctx, syncobj; } ending;

/* The context last: nothing is done after a call that may come back late. */
static void end_context(void *arg)
{
    const ending *e = arg;
    ob_npu_destroy_hwctx c = {.handle = e->ctx};
    ob_npu_syncobj_destroy y = {.handle = e->syncobj};
    if (e->syncobj) (void)ob_npu_ioctl(e->os, e->fd, OB_NPU_IOC_SYNCOBJ_DESTROY, &y);
    (void)ob_npu_ioctl(e->os, e->fd, OB_NPU_IOC_DESTROY_HWCTX, &c);
}

/* Firmware that is gone may keep the driver from ever coming back; then it is left behind. */
static void context_end(ob_npu_queue *q)
{
    ob_npu_dev *d = q->dev;
    ending e = {d->os, d->fd, q->ctx, q->syncobj};
    if (q->ctx && !d->wedged && !ob_npu_bounded(end_context, &e, sizeof e, d->teardown_ms)) {
        d->wedged = true;
        ob_log_warn("npu: the driver has not ended a context within %d ms; it is left to the kernel", d->teardown_ms);
    }
    q->ctx = q->syncobj = 0;
}

static ob_status context_make(ob_npu_queue *q, ob_err *err)
{
    ob_npu_dev *d = q->dev;
    ob_npu_qos qos = {.priority = OB_NPU_PRIORITY_NORMAL};
    ob_npu_create_hwctx a = {.qos = (uint64_t)(uintptr_t)&qos, .max_opc = 0x800, .n_tiles = (uint32_t)(d->n_cols * d->n_core_rows)};
    const int r = ob_npu_ioctl(d->os, d->fd, OB_NPU_IOC_CREATE_HWCTX, &a);
    if (r == -ENOSPC || r == -EBUSY)
        return ob_err_set(err, OB_E_BUSY, "all of the NPU's contexts are taken: end another program that uses it");
    if (r) return ob_npu_fail(d, err, r, "making a context on the NPU");
    q->ctx = a.handle;
    q->syncobj = a.syncobj;
    if (!a.handle) return ob_err_set(err, OB_E_DEVICE, "the driver made a context without a number");
    return OB_OK;
}

/* ---- one submission --------------------------------------------------------------------------- */

static ob_status slot_reserve(ob_npu_queue *q, slot *s, size_t n_cmds, ob_err *err)
{
    if (n_cmds > 1 && !s->chain) OB_TRY(ob_npu_bo_new(q->dev, OB_NPU_BO_CMD, OB_NPU_PAGE, &s->chain, err));
    while ((size_t)s->n_bos < n_cmds) {
        OB_TRY(ob_npu_bo_new(q->dev, OB_NPU_BO_CMD, OB_NPU_PAGE, &s->cmds[s->n_bos], err));
        s->n_bos++;
    }
    return OB_OK;
}

static ob_status write_packet(ob_npu_bo *to, const ob_npu_cmd *c, ob_err *err)
{
    uint32_t words[sizeof(ob_npu_packet_elf) / 4];
    const bool inside = c->text->type == OB_NPU_BO_DEV && c->off <= c->text->n_bytes && c->n_bytes <= c->text->n_bytes - c->off;
    const size_t n = inside && c->n_bytes <= UINT32_MAX
                         ? ob_npu_packet_make_elf(words, OB_COUNT(words), c->text->dev_addr + c->off, (uint32_t)c->n_bytes) : 0;
    if (!n) return ob_err_set(err, OB_E_INVALID, "control text of %zu bytes at %zu is not in the NPU's heap", c->n_bytes, c->off);
    ob_npu_bo_write(to, 0, words, n * 4);
    return OB_OK;
}

/* Gives the packets of a slot to the driver. */
static ob_status exec(ob_npu_queue *q, slot *s, size_t n_cmds, ob_err *err)
{
    ob_npu_dev *d = q->dev;
    s->head = s->cmds[0];
    if (n_cmds > 1) {
        uint32_t words[CHAIN_WORDS_MAX], handles[OB_NPU_CHAIN_MAX];
        for (size_t i = 0; i < n_cmds; i++) handles[i] = s->cmds[i]->handle;
        const size_t n = ob_npu_packet_make_chain(words, OB_COUNT(words), handles, n_cmds);
        if (!n) return ob_err_set(err, OB_E_INTERNAL, "a chain of %zu NPU commands", n_cmds);
        ob_npu_bo_write(s->chain, 0, words, n * 4);
        s->head = s->chain;
    }
    ob_npu_exec_cmd a = {.hwctx = q->ctx, .cmds = s->head->handle, .n_cmds = 1};
    const int r = ob_npu_ioctl(d->os, d->fd, OB_NPU_IOC_EXEC_CMD, &a);
    if (r) return ob_npu_fail(d, err, r, "giving commands to the NPU");
    s->busy = true;
    s->seq = a.seq;
    s->ticket = ++q->ticket;
    d->n_submits++;
    q->stats.n_chains++;
    q->stats.n_cmds += n_cmds;
    q->next = (q->next + 1) % OB_NPU_IN_FLIGHT;
    return OB_OK;
}

static ob_status give_up(ob_npu_queue *q, ob_status s, ob_err *err)
{
    if (q->broken) return s;
    q->broken = true;
    q->stats.n_failures++;
    if (err) q->failure = *err;
    q->failure.code = s;
    return s;
}

/* The oldest submission ends: its fence, then its state. */
static ob_status finish(ob_npu_queue *q, slot *s, ob_err *err)
{
    ob_npu_dev *d = q->dev;
    uint32_t handle = q->syncobj;
    uint64_t point = s->seq; /* never 0 but for the first, when there is no other */
    const int wait_ms = q->opt.wait_ms;
    ob_npu_timeline_wait w = {.handles = (uint64_t)(uintptr_t)&handle, .points = (uint64_t)(uintptr_t)&point, .n_handles = 1,
                              .flags = OB_NPU_WAIT_ALL, .deadline_ns = d->os->api->now_ns(d->os) + (int64_t)wait_ms * 1000000};
    const int r = ob_npu_ioctl(d->os, d->fd, OB_NPU_IOC_SYNCOBJ_TIMELINE_WAIT, &w);
    if (r == -ETIME)
        return give_up(q, ob_err_set(err, OB_E_TIMEOUT, "the NPU's driver reported no end of a command for %d ms", wait_ms), err);
    if (r) return give_up(q, ob_npu_fail(d, err, r, "waiting for the NPU"), err);
    s->busy = false;
    const bool alone = s->head == s->cmds[0];
    ob_npu_bo_invalidate(s->head, 0, OB_NPU_PAGE);
    if (!alone) ob_npu_bo_invalidate(s->cmds[0], 0, OB_NPU_PAGE);
    const ob_status st = ob_npu_packet_result((const uint32_t *)(const void *)s->head->host,
                                              (const uint32_t *)(const void *)s->cmds[0]->host, OB_NPU_PAGE / 4, err);
    return st == OB_OK ? st : give_up(q, st, err);
}

static ob_status refuse(const ob_npu_queue *q, ob_err *err)
{
    const ob_status code = q->failure.code == OB_OK ? OB_E_DEVICE : q->failure.code;
    return ob_err_set(err, code, "the NPU's queue has failed: %.400s", q->failure.text);
}

/* Everything up to a ticket. */
static ob_status drain(ob_npu_queue *q, uint64_t ticket, ob_err *err)
{
    if (q->broken) return refuse(q, err);
    for (int i = 0; i < OB_NPU_IN_FLIGHT; i++) { /* oldest first */
        slot *s = &q->slots[(q->next + i) % OB_NPU_IN_FLIGHT];
        if (s->busy && s->ticket <= ticket) OB_TRY(finish(q, s, err));
    }
    return OB_OK;
}

/* One chain: init, and n commands. */
static ob_status submit_chain(ob_npu_queue *q, const ob_npu_cmd *cmds, size_t n, ob_err *err)
{
    slot *s = &q->slots[q->next];
    if (s->busy) OB_TRY(finish(q, s, err));
    OB_TRY(slot_reserve(q, s, n + 1, err));
    OB_TRY(write_packet(s->cmds[0], &q->opt.init, err));
    for (size_t i = 0; i < n; i++) OB_TRY(write_packet(s->cmds[i + 1], &cmds[i], err));
    const ob_status st = exec(q, s, n + 1, err);
    return st == OB_OK ? st : give_up(q, st, err);
}

/* ---- the queue -------------------------------------------------------------------------------- */

/* A context whose first submission, the init text alone, is over. */
static ob_status start(ob_npu_queue *q, ob_err *err)
{
    for (int i = 0; i < OB_NPU_IN_FLIGHT; i++) q->slots[i].busy = false;
    q->broken = false;
    ob_status s = context_make(q, err);
    if (s == OB_OK) s = submit_chain(q, NULL, 0, err);
    if (s == OB_OK) s = drain(q, q->ticket, err);
    return s == OB_OK ? s : give_up(q, s, err);
}

ob_status ob_npu_queue_new(ob_npu_dev *d, const ob_npu_queue_options *opt, ob_npu_queue **out, ob_err *err)
{
    *out = NULL;
    if (!opt->init.text) return ob_err_set(err, OB_E_INVALID, "an NPU queue needs an init text");
    ob_npu_queue *q = ob_calloc(1, sizeof *q);
    if (!q) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for an NPU queue");
    *q = (ob_npu_queue){.dev = d, .opt = *opt};
    if (q->opt.chain_ms <= 0) q->opt.chain_ms = CHAIN_MS;
    if (q->opt.chain_cmds < 2 || q->opt.chain_cmds > OB_NPU_CHAIN_MAX) q->opt.chain_cmds = OB_NPU_CHAIN_MAX;
    if (q->opt.wait_ms <= 0) q->opt.wait_ms = WAIT_MS;
    if (q->opt.n_retries == 0) q->opt.n_retries = 1;
    d->n_queues++;
    const ob_status s = start(q, err);
    if (s == OB_OK) *out = q;
    else ob_npu_queue_free(q);
    return s;
}

void ob_npu_queue_free(ob_npu_queue *q)
{
    if (!q) return;
    if (!q->broken) (void)!drain(q, UINT64_MAX, NULL);
    context_end(q);
    for (int i = 0; i < OB_NPU_IN_FLIGHT; i++) {
        ob_npu_bo_free(q->slots[i].chain);
        for (int k = 0; k < q->slots[i].n_bos; k++) ob_npu_bo_free(q->slots[i].cmds[k]);
    }
    q->dev->n_queues--;
    ob_free(q);
}

static double cost(const ob_npu_cmd *c) { return c->est_ms > 0 ? c->est_ms : 1; }

ob_status ob_npu_queue_submit(ob_npu_queue *q, const ob_npu_cmd *cmds, size_t n, uint64_t *ticket, ob_err *err)
{
    if (q->broken) return refuse(q, err);
    for (size_t i = 0, k; i < n; i = k) {
        double ms = cost(&q->opt.init);
        for (k = i; k < n && k - i + 1 < (size_t)q->opt.chain_cmds; k++) {
            if (k > i && ms + cost(&cmds[k]) > q->opt.chain_ms) break;
            ms += cost(&cmds[k]);
        }
        OB_TRY(submit_chain(q, cmds + i, k - i, err));
    }
    *ticket = q->ticket;
    return OB_OK;
}

ob_status ob_npu_queue_wait(ob_npu_queue *q, uint64_t ticket, ob_err *err) { return drain(q, ticket, err); }

ob_status ob_npu_queue_reset(ob_npu_queue *q, ob_err *err)
{
    context_end(q);
    if (q->dev->wedged) return ob_err_set(err, OB_E_DEVICE_LOST, "the NPU's driver does not come back");
    q->stats.n_resets++;
    return start(q, err);
}

ob_status ob_npu_queue_run(ob_npu_queue *q, const ob_npu_cmd *cmds, size_t n, ob_err *err)
{
    ob_err first = {0}, *e = err ? err : &first;
    for (int left = q->opt.n_retries;; left--) {
        uint64_t ticket;
        ob_status s = ob_npu_queue_submit(q, cmds, n, &ticket, e);
        if (s == OB_OK) s = drain(q, ticket, e);
        if (s == OB_OK || !q->broken || left <= 0 || (s != OB_E_DEVICE && s != OB_E_TIMEOUT)) return s;
        ob_log_warn("npu: %s; trying again on a new context", e->text);
        OB_TRY(ob_npu_queue_reset(q, e));
    }
}

bool ob_npu_queue_broken(const ob_npu_queue *q) { return q->broken; }
ob_npu_queue_stats ob_npu_queue_stats_get(const ob_npu_queue *q) { return q->stats; }
