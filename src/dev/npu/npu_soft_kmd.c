/* The driver of the software model: its node, its ioctls and their rules. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/math.h"
#include "dev/npu/npu_soft_int.h"

static ob_npu_soft *soft_of(ob_npu_os *os) { return (ob_npu_soft *)os; }

/* ---- identities ------------------------------------------------------------------------------- */

static const struct { uint16_t device; uint8_t revision; const char *name; } k_chips[] = {
    [OB_NPU_1] = {OB_NPU_PCI_XDNA1, 0x00, "NPU Phoenix"}, [OB_NPU_4] = {OB_NPU_PCI_XDNA2, 0x10, "NPU Strix"},
    [OB_NPU_5] = {OB_NPU_PCI_XDNA2, 0x11, "NPU Strix Halo"}, [OB_NPU_6] = {OB_NPU_PCI_XDNA2, 0x20, "NPU Krackan"},
    [OB_NPU_AIE4] = {0x17f1, 0x10, "NPU Medusa"},
};

static void describe(const ob_npu_soft *s, ob_npu_node *out)
{
    *out = (ob_npu_node){.vendor = OB_NPU_PCI_AMD, .device = k_chips[s->opt.gen].device, .revision = k_chips[s->opt.gen].revision};
    snprintf(out->path, sizeof out->path, "npu-soft");
    snprintf(out->driver, sizeof out->driver, "amdxdna");
    snprintf(out->name, sizeof out->name, "software model of %s", k_chips[s->opt.gen].name);
    const ob_npu_firmware *f = &s->opt.firmware;
    snprintf(out->firmware, sizeof out->firmware, "%u.%u.%u.%u", f->major, f->minor, f->patch, f->build);
}

static int soft_node(ob_npu_os *os, int index, ob_npu_node *out)
{
    const ob_npu_soft *s = soft_of(os);
    if (index || soft_fault_find(s, FAULT_NO_CHIP, 0) || soft_fault_find(s, FAULT_NO_DRIVER, 0)) return -ENOENT;
    describe(s, out);
    return 0;
}

static bool soft_chip(ob_npu_os *os, ob_npu_node *out)
{
    const ob_npu_soft *s = soft_of(os);
    if (soft_fault_find(s, FAULT_NO_CHIP, 0)) return false;
    describe(s, out);
    return true;
}

static uint64_t soft_memlock(ob_npu_os *os)
{
    const soft_fault *x = soft_fault_find(soft_of(os), FAULT_MEMLOCK, 0);
    return x ? x->bytes : UINT64_MAX;
}

/* ---- contexts --------------------------------------------------------------------------------- */

static soft_ctx *ctx_find(ob_npu_soft *s, int fd, uint32_t handle)
{
    soft_ctx *c = s->ctxs;
    while (c && !(c->fd == fd && c->handle == handle)) c = c->next;
    return c;
}

/* The heap: there, mapped, at a multiple of 64 MiB. */
static int check_heap(ob_npu_soft *s, int fd)
{
    const soft_bo *h = s->bos;
    while (h && !(h->type == OB_NPU_BO_DEV_HEAP && h->fd == fd && h->handle && h->dev_addr == OB_NPU_HEAP_BASE)) h = h->next;
    if (!h) return -ENOENT;
    if (!h->host) return -EAGAIN;
    return (uintptr_t)h->host % OB_NPU_HEAP_CHUNK || soft_fault_find(s, FAULT_MISALIGN, 0) ? -EINVAL : 0;
}

static int ctx_create(ob_npu_soft *s, int fd, ob_npu_create_hwctx *a)
{
    soft_client *cl = soft_client_of(s, fd);
    const uint32_t n_cols = a->n_tiles / (uint32_t)s->n_core_rows;
    int n = 0;
    if (a->ext || a->ext_flags) return -EINVAL;
    if (!a->qos) return -EFAULT;
    if (!a->n_tiles || a->n_tiles % (uint32_t)s->n_core_rows || n_cols > (uint32_t)s->n_cols) return -EINVAL;
    const int r = check_heap(s, fd);
    if (r) return r;
    for (const soft_ctx *c = s->ctxs; c; c = c->next) n++;
    if (n >= (s->opt.gen == OB_NPU_1 ? SOFT_CTXS_XDNA1 : SOFT_CTXS)) return -ENOSPC;
    uint32_t handle = cl->next_ctx;
    do handle = handle % SOFT_MAX_CTX_HANDLE + 1;
    while (ctx_find(s, fd, handle));
    const int h = soft_heap_take(s, fd, SOFT_CTX_HEAP, handle);
    if (h) return h;
    soft_ctx *c = ob_calloc(1, sizeof *c);
    soft_syncobj *y = ob_calloc(1, sizeof *y);
    if (!c || !y) {
        ob_free(c);
        ob_free(y);
        soft_heap_give(s, fd, handle);
        return -ENOMEM;
    }
    *c = (soft_ctx){.next = s->ctxs, .fd = fd, .handle = cl->next_ctx = handle, .lost_seq = UINT64_MAX};
    *y = (soft_syncobj){.next = s->syncobjs, .fd = fd, .handle = ++cl->next_syncobj, .ctx = c};
    s->ctxs = c;
    s->syncobjs = y;
    a->handle = c->handle;
    a->syncobj = y->handle;
    return 0;
}

static void ctx_remove(ob_npu_soft *s, soft_ctx *c)
{
    soft_fw_finish(s, c);
    for (soft_syncobj *y = s->syncobjs; y; y = y->next)
        if (y->ctx == c) y->ctx = NULL, y->n_submitted = c->n_submitted;
    if (s->last_ctx == c) s->last_ctx = NULL;
    soft_heap_give(s, c->fd, c->handle);
    soft_ctx **p = &s->ctxs;
    while (*p != c) p = &(*p)->next;
    *p = c->next;
    ob_free(c);
}

static int ctx_destroy(ob_npu_soft *s, int fd, const ob_npu_destroy_hwctx *a)
{
    if (a->pad) return -EINVAL;
    soft_ctx *c = ctx_find(s, fd, a->handle);
    if (!c) return -EINVAL;
    if (soft_fault_find(s, FAULT_HANG, 0)) {
        s->n_hanging++;
        while (!s->release) pthread_cond_wait(&s->released, &s->lock);
        s->n_hanging--;
        pthread_cond_broadcast(&s->released);
        if (!(c = ctx_find(s, fd, a->handle))) return 0;
    }
    ctx_remove(s, c);
    return 0;
}

static int ctx_config(ob_npu_soft *s, int fd, const ob_npu_config_hwctx *a)
{
    soft_ctx *c = ctx_find(s, fd, a->handle);
    const ob_npu_cus *cus = (const ob_npu_cus *)(uintptr_t)a->value;
    if (a->pad || a->param != OB_NPU_CONFIG_CU) return -EINVAL;
    if (a->value_size > OB_NPU_PAGE) return -E2BIG;
    if (!c || c->n_cus || a->value_size < sizeof *cus || !cus->n || cus->n > OB_NPU_MAX_CUS) return -EINVAL;
    if (sizeof *cus + cus->n * sizeof *cus->cus > a->value_size) return -EINVAL;
    for (int i = 0; i < cus->n; i++) {
        const soft_bo *b = soft_bo_find(s, fd, cus->cus[i].bo);
        if (!b || b->type != OB_NPU_BO_DEV) return -EINVAL;
        if (!ob_npu_pdi_is_soft(b->dev, (size_t)b->n_bytes)) return -EINVAL; /* made for hardware */
    }
    for (int i = 0; i < cus->n; i++) c->cus[i] = cus->cus[i].bo;
    c->n_cus = cus->n;
    return 0;
}

/* ---- commands --------------------------------------------------------------------------------- */

static int exec_cmd(ob_npu_soft *s, int fd, ob_npu_exec_cmd *a)
{
    if (a->ext || a->ext_flags || a->type || a->n_cmds != 1 || a->n_args > OB_NPU_MAX_ARGS) return -EINVAL;
    soft_bo *b = a->cmds <= UINT32_MAX ? soft_bo_find(s, fd, (uint32_t)a->cmds) : NULL;
    if (!b || b->type != OB_NPU_BO_CMD) return -EINVAL;
    for (uint32_t i = 0; i < a->n_args; i++)
        if (!soft_bo_find(s, fd, ((const uint32_t *)(uintptr_t)a->args)[i])) return -ENOENT;
    soft_ctx *c = ctx_find(s, fd, a->hwctx);
    if (!c) return -EINVAL;
    while (c->n_pending >= OB_NPU_IN_FLIGHT) soft_fw_run(s); /* blocks */
    s->jobs[s->n_jobs++] = (soft_job){c, b, c->n_submitted, ++s->counts.n_submits};
    b->n_jobs++;
    c->n_pending++;
    a->seq = c->n_submitted++;
    if (s->opt.eager) soft_fw_finish(s, c);
    return 0;
}

/* Until the fence of `seq`, or the deadline, in virtual time. */
static int wait_fence(ob_npu_soft *s, soft_ctx *c, uint64_t seq, int64_t deadline_ns)
{
    soft_fw_run_until(s, c, seq);
    if (c->n_done > seq && s->now_ns <= deadline_ns) return 0;
    if (s->now_ns < deadline_ns) s->now_ns = deadline_ns;
    return -ETIME;
}

static int timeline_wait(ob_npu_soft *s, int fd, const ob_npu_timeline_wait *a)
{
    const uint32_t *handles = (const uint32_t *)(uintptr_t)a->handles;
    const uint64_t *points = (const uint64_t *)(uintptr_t)a->points;
    if (a->pad || !a->n_handles || !handles || !points) return -EINVAL;
    for (uint32_t i = 0; i < a->n_handles; i++) {
        soft_syncobj *y = s->syncobjs;
        while (y && !(y->fd == fd && y->handle == handles[i])) y = y->next;
        if (!y) return -ENOENT;
        const uint64_t n = y->ctx ? y->ctx->n_submitted : y->n_submitted;
        if (!n || points[i] >= n) return a->flags & OB_NPU_WAIT_FOR_SUBMIT ? -ETIME : -EINVAL;
        if (!y->ctx) continue;
        const int r = wait_fence(s, y->ctx, points[i] ? points[i] : n - 1, a->deadline_ns); /* point 0: the last fence */
        if (r) return r;
    }
    return 0;
}

static int wait_cmd(ob_npu_soft *s, int fd, const ob_npu_wait_cmd *a)
{
    soft_ctx *c = ctx_find(s, fd, a->hwctx);
    if (s->opt.driver_minor < 16) return -ENOTTY;
    if (!c || a->seq >= c->n_submitted) return -EINVAL;
    return wait_fence(s, c, a->seq, a->timeout_ms ? s->now_ns + (int64_t)a->timeout_ms * 1000000 : INT64_MAX);
}

static int syncobj_destroy(ob_npu_soft *s, int fd, const ob_npu_syncobj_destroy *a)
{
    if (a->pad) return -EINVAL;
    for (soft_syncobj **p = &s->syncobjs; *p; p = &(*p)->next)
        if ((*p)->fd == fd && (*p)->handle == a->handle) {
            soft_syncobj *y = *p;
            *p = y->next;
            ob_free(y);
            return 0;
        }
    return -EINVAL;
}

/* ---- questions -------------------------------------------------------------------------------- */

static int version(const ob_npu_soft *s, ob_npu_drm_version *a)
{
    static const char name[] = "amdxdna_accel_driver";
    a->major = 0;
    a->minor = s->opt.driver_minor;
    a->patch = 0;
    if (a->name) memcpy((char *)(uintptr_t)a->name, name, OB_MIN((size_t)a->name_len, sizeof name - 1));
    a->name_len = sizeof name - 1;
    a->date_len = a->desc_len = 0;
    return 0;
}

static int answer(ob_npu_get_info *a, const void *p, size_t n)
{
    if (!a->buffer) return -EFAULT;
    memcpy((void *)(uintptr_t)a->buffer, p, OB_MIN(n, (size_t)a->size));
    a->size = (uint32_t)n;
    return 0;
}

static int get_info(const ob_npu_soft *s, ob_npu_get_info *a)
{
    const uint16_t rows = (uint16_t)s->n_core_rows;
    const ob_npu_metadata meta = {.col_size = 1 << 25, .n_cols = (uint16_t)s->n_cols, .n_rows = (uint16_t)(rows + 2),
                                  .major = 2, .minor = s->opt.gen == OB_NPU_1 ? 0 : 1,
                                  .core = {rows, 2, 2, 16, 2, {0}}, .mem = {1, 1, 6, 64, 4, {0}}, .shim = {1, 0, 2, 16, 2, {0}}};
    const ob_npu_clocks clocks = {{"MP-NPU Clock", 1267, 0}, {"H Clock", 1800, 0}};
    const ob_npu_power power = {0};
    const ob_npu_resources res = {.clock_max = 1800, .tops_max = 50, .task_max = SOFT_CTXS};
    switch (a->param) {
    case OB_NPU_INFO_METADATA: return answer(a, &meta, sizeof meta);
    case OB_NPU_INFO_CLOCKS: return answer(a, &clocks, sizeof clocks);
    case OB_NPU_INFO_FIRMWARE: return answer(a, &s->opt.firmware, sizeof s->opt.firmware);
    case OB_NPU_INFO_POWER_MODE: return answer(a, &power, sizeof power);
    case OB_NPU_INFO_RESOURCES: return s->opt.driver_minor < 4 ? -EOPNOTSUPP : answer(a, &res, sizeof res);
    default: return -EOPNOTSUPP;
    }
}

static int dispatch(ob_npu_soft *s, int fd, uint32_t request, void *arg)
{
    switch (request) {
    case OB_NPU_IOC_VERSION: return version(s, arg);
    case OB_NPU_IOC_GEM_CLOSE: return ((ob_npu_gem_close *)arg)->pad ? -EINVAL : soft_bo_close(s, fd, ((ob_npu_gem_close *)arg)->handle);
    case OB_NPU_IOC_CREATE_HWCTX: return ctx_create(s, fd, arg);
    case OB_NPU_IOC_DESTROY_HWCTX: return ctx_destroy(s, fd, arg);
    case OB_NPU_IOC_CONFIG_HWCTX: return ctx_config(s, fd, arg);
    case OB_NPU_IOC_CREATE_BO: return soft_bo_create(s, fd, arg);
    case OB_NPU_IOC_GET_BO_INFO: return soft_bo_info(s, fd, arg);
    case OB_NPU_IOC_SYNC_BO: return soft_bo_sync(s, fd, arg);
    case OB_NPU_IOC_EXEC_CMD: return exec_cmd(s, fd, arg);
    case OB_NPU_IOC_GET_INFO: return get_info(s, arg);
    case OB_NPU_IOC_SET_STATE: return -EACCES; /* root only */
    case OB_NPU_IOC_GET_ARRAY: return s->opt.driver_minor < 1 ? -ENOTTY : -EOPNOTSUPP;
    case OB_NPU_IOC_WAIT_CMD: return wait_cmd(s, fd, arg);
    case OB_NPU_IOC_SYNCOBJ_DESTROY: return syncobj_destroy(s, fd, arg);
    case OB_NPU_IOC_SYNCOBJ_TIMELINE_WAIT: return timeline_wait(s, fd, arg);
    default: return -ENOTTY;
    }
}

/* ---- the table -------------------------------------------------------------------------------- */

static int soft_open(ob_npu_os *os, const char *path)
{
    ob_npu_soft *s = soft_of(os);
    const soft_fault *x = soft_fault_find(s, FAULT_OPEN, 0);
    int fd = -EMFILE;
    if (strcmp(path, "npu-soft") != 0) return -ENOENT;
    if (x) return -x->value;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < SOFT_CLIENTS && fd < 0; i++)
        if (!s->clients[i].open) {
            s->clients[i] = (soft_client){.open = true};
            s->counts.n_fds++;
            fd = SOFT_FD + i;
        }
    pthread_mutex_unlock(&s->lock);
    return fd;
}

static int soft_close(ob_npu_os *os, int fd)
{
    ob_npu_soft *s = soft_of(os);
    pthread_mutex_lock(&s->lock);
    soft_client *cl = soft_client_of(s, fd);
    for (soft_ctx *c = cl ? s->ctxs : NULL, *next; c; c = next) {
        next = c->next;
        if (c->fd == fd) ctx_remove(s, c);
    }
    for (soft_syncobj **p = &s->syncobjs; cl && *p;) {
        soft_syncobj *y = *p;
        if (y->fd != fd) p = &y->next;
        else *p = y->next, ob_free(y);
    }
    if (cl) {
        soft_bo_close_all(s, fd);
        if (cl->heap_dev) munmap(cl->heap_dev, OB_NPU_HEAP_MAX);
        if (cl->heap_line) munmap(cl->heap_line, OB_NPU_HEAP_MAX);
        *cl = (soft_client){0};
        s->counts.n_fds--;
    }
    pthread_mutex_unlock(&s->lock);
    return cl ? 0 : -EBADF;
}

static int soft_ioctl(ob_npu_os *os, int fd, uint32_t request, void *arg)
{
    ob_npu_soft *s = soft_of(os);
    pthread_mutex_lock(&s->lock);
    s->counts.n_ioctls++;
    int r = soft_client_of(s, fd) ? soft_fault_ioctl(s, request) : -EBADF;
    if (!r) r = dispatch(s, fd, request, arg);
    pthread_mutex_unlock(&s->lock);
    return r;
}

static int locked_mmap(ob_npu_os *os, void *at, size_t n_bytes, int fd, uint64_t offset, void **out)
{
    ob_npu_soft *s = soft_of(os);
    pthread_mutex_lock(&s->lock);
    const int r = soft_mmap(s, at, n_bytes, fd, offset, out);
    pthread_mutex_unlock(&s->lock);
    return r;
}

static int locked_munmap(ob_npu_os *os, void *p, size_t n_bytes)
{
    ob_npu_soft *s = soft_of(os);
    pthread_mutex_lock(&s->lock);
    const int r = soft_munmap(s, p, n_bytes);
    pthread_mutex_unlock(&s->lock);
    return r;
}

static void lines(ob_npu_os *os, const void *p, size_t n_bytes, bool invalidate)
{
    ob_npu_soft *s = soft_of(os);
    pthread_mutex_lock(&s->lock);
    soft_lines(s, p, n_bytes, invalidate);
    pthread_mutex_unlock(&s->lock);
}
static void soft_flush(ob_npu_os *os, const void *p, size_t n_bytes) { lines(os, p, n_bytes, false); }
static void soft_invalidate(ob_npu_os *os, const void *p, size_t n_bytes) { lines(os, p, n_bytes, true); }

static int64_t soft_now(ob_npu_os *os)
{
    ob_npu_soft *s = soft_of(os);
    pthread_mutex_lock(&s->lock);
    const int64_t now = s->now_ns;
    pthread_mutex_unlock(&s->lock);
    return now;
}

static const ob_npu_os_api k_soft = {
    .node = soft_node, .chip = soft_chip, .memlock = soft_memlock, .open = soft_open, .close = soft_close, .ioctl = soft_ioctl,
    .mmap = locked_mmap, .munmap = locked_munmap, .flush = soft_flush, .invalidate = soft_invalidate, .now_ns = soft_now,
};

/* ---- making one ------------------------------------------------------------------------------- */

static void choose_firmware(ob_npu_soft_options *o)
{
    if (o->firmware.major) return;
    if (o->gen == OB_NPU_1) o->firmware = (ob_npu_firmware){5, 8, 0, 0};
    else o->firmware = (ob_npu_firmware){6, o->driver_minor < 6 ? 10u : o->driver_minor < 8 ? 12u : 18u, 0, 0};
}

ob_status ob_npu_soft_new(const ob_npu_soft_options *opt, ob_npu_soft **out, ob_err *err)
{
    *out = NULL;
    ob_npu_soft *s = ob_calloc(1, sizeof *s);
    if (!s) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for npu-soft");
    *s = (ob_npu_soft){.os = {&k_soft, true}, .opt = *opt, .n_cols = 8, .n_core_rows = 4, .next_iova = (uint64_t)1 << 32};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->released, NULL);
    if (!s->opt.array) s->opt.array = &ob_npu_array;
    if (s->opt.gen == OB_NPU_UNKNOWN) s->opt.gen = OB_NPU_5;
    if (s->opt.driver_minor < 0) s->opt.driver_minor = 8;
    choose_firmware(&s->opt);
    if (s->opt.gen == OB_NPU_1) s->n_cols = 4;
    ob_status st = soft_faults_parse(s, opt->faults, err);
    s->opt.faults = NULL;
    const soft_fault *g = soft_fault_find(s, FAULT_GEOMETRY, 0);
    if (g) s->n_cols = g->value, s->n_core_rows = g->value2;
    if (st == OB_OK && !(s->array = s->opt.array->make(s->n_cols, s->n_core_rows + 2)))
        st = ob_err_set(err, OB_E_NO_MEMORY, "no memory for npu-soft's array");
    if (st == OB_OK) *out = s;
    else ob_npu_soft_free(s);
    return st;
}

void ob_npu_soft_free(ob_npu_soft *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->release = true;
    pthread_cond_broadcast(&s->released);
    while (s->n_hanging) pthread_cond_wait(&s->released, &s->lock);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < SOFT_CLIENTS; i++)
        if (s->clients[i].open) (void)soft_close(&s->os, SOFT_FD + i);
    for (soft_bo *b = s->bos, *next; b; b = next) { /* what the caller left mapped */
        next = b->next;
        (void)soft_munmap(s, b->host, b->n_bytes);
    }
    if (s->array) s->opt.array->end(s->array);
    pthread_cond_destroy(&s->released);
    pthread_mutex_destroy(&s->lock);
    ob_free(s);
}

ob_npu_os *ob_npu_soft_os(ob_npu_soft *s) { return &s->os; }

static bool flag(const char *name)
{
    const char *v = getenv(name);
    return v && *v && strcmp(v, "0") != 0;
}

ob_npu_soft *ob_npu_soft_shared(ob_err *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static ob_npu_soft *shared;
    ob_npu_soft_options opt = {.driver_minor = -1, .faults = getenv("OB_NPU_SOFT_FAULTS"), .iova = flag("OB_NPU_SOFT_IOVA"),
                               .eager = flag("OB_NPU_SOFT_EAGER")};
    const char *minor = getenv("OB_NPU_SOFT_DRIVER"), *gen = getenv("OB_NPU_SOFT_GEN");
    if (minor && *minor) opt.driver_minor = atoi(minor);
    if (gen && *gen) {
        for (opt.gen = OB_NPU_1; opt.gen <= OB_NPU_AIE4 && strcmp(ob_npu_gen_name(opt.gen), gen) != 0;) opt.gen++;
        if (opt.gen > OB_NPU_AIE4) {
            (void)ob_err_set(err, OB_E_INVALID, "OB_NPU_SOFT_GEN=%.32s: npu1, npu4, npu5, npu6 or aie4", gen);
            return NULL;
        }
    }
    pthread_mutex_lock(&lock);
    if (!shared) (void)!ob_npu_soft_new(&opt, &shared, err);
    ob_npu_soft *s = shared;
    pthread_mutex_unlock(&lock);
    return s;
}

void ob_npu_soft_idle(ob_npu_soft *s, int64_t ms)
{
    pthread_mutex_lock(&s->lock);
    while (s->n_jobs) soft_fw_run(s);
    s->now_ns += ms * 1000000;
    pthread_mutex_unlock(&s->lock);
}

ob_npu_soft_counts ob_npu_soft_counts_get(ob_npu_soft *s)
{
    pthread_mutex_lock(&s->lock);
    ob_npu_soft_counts c = s->counts;
    c.n_bos = c.n_ctxs = c.n_syncobjs = 0;
    for (const soft_bo *b = s->bos; b; b = b->next) c.n_bos += !b->owner_ctx;
    for (const soft_ctx *x = s->ctxs; x; x = x->next) c.n_ctxs++;
    for (const soft_syncobj *y = s->syncobjs; y; y = y->next) c.n_syncobjs++;
    c.pinned_bytes = s->locked_bytes;
    c.now_ns = s->now_ns;
    pthread_mutex_unlock(&s->lock);
    return c;
}

void ob_npu_soft_last_fault(ob_npu_soft *s, char *text, size_t cap)
{
    pthread_mutex_lock(&s->lock);
    snprintf(text, cap, "%s", s->reason);
    pthread_mutex_unlock(&s->lock);
}

/* ---- PDIs ------------------------------------------------------------------------------------- */

bool ob_npu_pdi_is_soft(const void *pdi, size_t n_bytes)
{
    return n_bytes >= OB_NPU_SOFT_PDI_BYTES && memcmp(pdi, OB_NPU_SOFT_PDI_MAGIC, sizeof OB_NPU_SOFT_PDI_MAGIC - 1) == 0;
}

ob_status ob_npu_pdi_admit(const ob_npu_dev *d, const void *pdi, size_t n_bytes, ob_err *err)
{
    const bool soft = ob_npu_pdi_is_soft(pdi, n_bytes);
    if (soft == d->os->soft) return OB_OK;
    return ob_err_set(err, OB_E_UNSUPPORTED, soft ? "this PDI is of the software model: it is no program for an NPU"
                                                  : "npu-soft cannot run a PDI made for an NPU");
}
