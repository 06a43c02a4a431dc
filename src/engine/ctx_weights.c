/* The context's weights: which device needs which, whether they fit, and packing them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "engine/ctx_int.h"
#include "fmt/direct.h"

enum { READ_AHEAD_BYTES = 256 << 20, READ_BYTES = 8 << 20 };


static void report(const ob_engine_params *p, double fraction)
{
    if (p->on_progress) p->on_progress(p->progress_arg, fraction);
}

/* Which weights each place needs: [n_places][n_weights]. */
static void mark_weights(const ob_ctx *c, const ob_program *prog, bool *needed)
{
    for (int32_t i = 0; i < prog->n_ops; i++)
        for (int k = 0; k < OB_OP_MAX_W; k++)
            if (prog->ops[i].w[k] != OB_NONE && !ob_experts_owns(c->experts, prog->ops[i].w[k]))
                needed[(size_t)c->op_dev[i] * (size_t)prog->n_weights + (size_t)prog->ops[i].w[k]] = true;
}

/* Can the devices do what rotated weights ask for? */
static ob_status check_rotation(const ob_ctx *c, const ob_program *prog, const bool *needed, ob_err *err)
{
    bool act4 = false;
    for (int32_t d = 0; d < c->n_places; d++)
        for (int32_t i = 0; i < prog->n_weights; i++) {
            const ob_weight *w = &prog->weights[i];
            const ob_dev_info *dev = &c->places[d].info;
            if (!needed[d * prog->n_weights + i] || !w->hadamard) continue;
            if (!(dev->caps & OB_DEV_HADAMARD))
                return ob_err_set(err, OB_E_UNSUPPORTED, "the weights are Hadamard-rotated, and device %s does not rotate "
                                  "activations (--device cpu does)", dev->kind);
            if (w->act4 && !(dev->caps & OB_DEV_ACT4))
                return ob_err_set(err, OB_E_UNSUPPORTED, "device %s has no 4-bit activations: --act4 off, or --device cpu",
                                  dev->kind);
            act4 |= w->act4;
        }
    if (c->p.act4 != OB_ACT4_OFF && !act4)
        return ob_err_set(err, OB_E_INVALID, "4-bit activations (--act4) are for Hadamard-rotated files, and this one is not "
                          "(1bit rotate makes one)");
    return OB_OK;
}

/* A tensor's pages of the file are released when its last use is packed, unless some packed form refers to them. */
static void release_pages(const ob_ctx *c, const ob_program *prog, int32_t i, const bool *keeps)
{
    bool last_use = true, kept = false;
    for (int32_t k = 0; k < prog->n_weights; k++) {
        if (prog->weights[k].data != prog->weights[i].data) continue;
        last_use &= k <= i;
        kept |= keeps[k];
    }
    const ob_tensor *t = ob_file_find_tensor(c->file, prog->weights[i].name);
    if (t && last_use && !kept) ob_file_release_pages(c->file, t);
}

/* Have the tensors after number i read from disk while it is packed and uploaded. */
static void read_ahead(const ob_ctx *c, const ob_program *prog, int32_t i, int32_t *ahead)
{
    uint64_t bytes = 0;
    for (int32_t k = i + 1; k < prog->n_weights && bytes < READ_AHEAD_BYTES; k++) {
        bytes += prog->weights[k].n_bytes;
        if (k <= *ahead || ob_experts_owns(c->experts, k)) continue;
        const ob_tensor *t = ob_file_find_tensor(c->file, prog->weights[k].name);
        if (t) ob_file_prefetch(c->file, t);
        *ahead = k;
    }
}

/* --no-mmap: the bytes of a weight in memory of our own (*out is owned), in large pages where there are some. */
static ob_status read_weight(const ob_ctx *c, ob_direct *reader, const ob_weight *w, uint8_t **out, ob_err *err)
{
    enum { LARGE = 2 << 20 };
    const ob_tensor *t = ob_file_find_tensor(c->file, w->name);
    if (!t) return ob_err_set(err, OB_E_INTERNAL, "tensor %s is not in the file", w->name);
    const uint64_t first = (uint64_t)((const uint8_t *)w->data - (const uint8_t *)t->data); /* some rows of it */
    *out = ob_aligned_alloc(w->n_bytes >= LARGE ? LARGE : 64, OB_MAX(w->n_bytes, (size_t)1));
    if (!*out) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the %zu bytes of %s", w->n_bytes, w->name);
    if (w->n_bytes >= LARGE) (void)madvise(*out, w->n_bytes, MADV_HUGEPAGE); /* a refusal costs only speed */
    for (size_t at = 0, n; at < w->n_bytes; at += n) {
        const void *part;
        n = OB_MIN(w->n_bytes - at, (size_t)READ_BYTES);
        OB_TRY(ob_direct_read(reader, t, first + at, n, &part, err));
        memcpy(*out + at, part, n);
    }
    return OB_OK;
}

/* One weight onto one place: found with another engine, or packed. Only what lies in the mapping is offered to others. */
static ob_status place_weight(ob_ctx *c, const place *at, const ob_weight *desc, ob_dev_weight **out, bool *keep, ob_err *err)
{
    const bool shares = c->p.share && (at->info.caps & OB_DEV_SHARES) && !c->p.no_mmap;
    if (shares && (*out = ob_share_find(c->p.share, at->dev, c->p.exact, desc)) != NULL) {
        c->n_shared_bytes += desc->n_bytes;
        return OB_OK;
    }
    OB_TRY(at->dev->api->weight_new(at->dev, desc, out, keep, err));
    return shares ? ob_share_add(c->p.share, at->dev, c->p.exact, desc, *out, c, err) : OB_OK;
}

void ob_ctx_drop_weight(const ob_ctx *c, const place *at, ob_dev_weight *w)
{
    if (c->p.share) ob_share_drop(c->p.share, at->dev, w, c);
    else at->dev->api->weight_free(at->dev, w);
}

/* One weight for all places. */
static ob_status pack_weight(ob_ctx *c, const ob_program *prog, const bool *needed, int32_t i, ob_direct *reader,
                             bool *keeps, ob_err *err)
{
    ob_status s = OB_OK;
    ob_weight w = prog->weights[i];
    bool any = false;
    for (int32_t d = 0; d < c->n_places; d++) any |= needed[d * prog->n_weights + i];
    if (any && reader) {
        uint8_t *own = NULL;
        s = read_weight(c, reader, &w, &own, err);
        w.data = c->kept[i] = own;
    }
    for (int32_t d = 0; d < c->n_places && s == OB_OK; d++) {
        place *at = &c->places[d];
        bool keep = false;
        if (!needed[d * prog->n_weights + i]) continue;
        s = place_weight(c, at, &w, &at->weights[i], &keep, err);
        keeps[i] |= keep;
    }
    if (reader && !keeps[i]) {
        ob_free(c->kept[i]);
        c->kept[i] = NULL;
    }
    return s == OB_OK ? s : ob_err_prefix(err, s, "tensor %s", prog->weights[i].name);
}

/* Pack every weight for the devices that need it. A tensor used twice (tied embeddings) is packed twice. */
static ob_status pack_weights(ob_ctx *c, const ob_program *prog, const bool *needed, bool *keeps, ob_err *err)
{
    ob_status s = OB_OK;
    double total = 0, done = 0;
    int32_t ahead = 0;
    ob_direct *reader = NULL;
    if (c->p.no_mmap) OB_TRY(ob_direct_new(c->file, READ_BYTES, 0, &reader, err));
    for (int32_t i = 0; i < prog->n_weights; i++)
        if (!ob_experts_owns(c->experts, i)) total += (double)prog->weights[i].n_bytes;
    for (int32_t i = 0; i < prog->n_weights; i++) {
        if (ob_experts_owns(c->experts, i)) continue;
        if (!reader) read_ahead(c, prog, i, &ahead);
        OB_GOTO(pack_weight(c, prog, needed, i, reader, keeps, err));
        if (!reader) release_pages(c, prog, i, keeps);
        done += (double)prog->weights[i].n_bytes;
        report(&c->p, OB_PLACING_SHARE + (1 - OB_PLACING_SHARE) * done / total);
    }
out:
    ob_direct_free(reader);
    return s;
}

/* "4.6 GiB" */
static void format_gib(char *out, size_t cap, uint64_t bytes)
{
    const double mib = (double)bytes / 1048576.0;
    snprintf(out, cap, mib < 1024 ? "%.0f MiB" : "%.1f GiB", mib < 1024 ? mib : mib / 1024);
}

/* Will the model fit where the layers are? Asked before anything is loaded, because a driver that gives more than
 * there is moves it to and fro later, and everything crawls. */
static ob_status check_memory(const ob_ctx *c, const ob_program *prog, ob_err *err)
{
    for (int32_t d = 0; d < c->n_places; d++) {
        const ob_dev_info *at = &c->places[d].info;
        uint64_t weights, cache;
        if (!at->mem_free_bytes || (at->caps & OB_DEV_HOST_MEMORY)) continue;
        OB_TRY(ob_ctx_place_bytes(c, prog, d, &weights, &cache, err));
        if (c->experts) weights += ob_experts_place_bytes(c->experts, d, false);
        char all[32], w[32], kv[32], left[32];
        format_gib(all, sizeof all, weights + cache);
        format_gib(w, sizeof w, weights);
        format_gib(kv, sizeof kv, cache);
        format_gib(left, sizeof left, at->mem_free_bytes);
        ob_log_debug("%s:%d: %s of weights and %s of cache, %s free", at->kind, at->index, w, kv, left);
        if (weights + cache <= at->mem_free_bytes) continue;
        return ob_err_set(err, OB_E_NO_MEMORY,
                          "the model needs %s on %s:%d (%s of weights, %s of cache for %d x %d tokens) and %s are free: try a "
                          "smaller --ctx-size, --moe-slots or --cpu-moe for a mixture, --device with several devices, or a "
                          "smaller file", all, at->kind, at->index, w, kv, c->p.n_seq, c->p.n_ctx, left);
    }
    return OB_OK;
}

ob_status ob_ctx_load_weights(ob_ctx *c, const ob_program *prog, ob_err *err)
{
    const size_t n = (size_t)prog->n_weights + 1;
    bool *keeps = ob_calloc(n, sizeof *keeps), *needed = ob_calloc(n, (size_t)c->n_places * sizeof *needed);
    c->kept = ob_calloc(n, sizeof *c->kept);
    bool ok = keeps && needed && c->kept;
    c->n_weights = prog->n_weights;
    c->n_shared_bytes = 0;
    for (int32_t d = 0; d < c->n_places && ok; d++) {
        c->places[d].weights = ob_calloc(n, sizeof(ob_dev_weight *));
        ok = c->places[d].weights != NULL;
    }
    ob_status s = ok ? OB_OK : ob_err_set(err, OB_E_NO_MEMORY, "no memory for the table of weights");
    if (ok) {
        mark_weights(c, prog, needed);
        s = check_rotation(c, prog, needed, err);
        if (s == OB_OK) s = check_memory(c, prog, err);
        if (s == OB_OK) s = ob_ctx_attach_experts(c, err);
        if (s == OB_OK) s = pack_weights(c, prog, needed, keeps, err);
    }
    ob_free(keeps);
    ob_free(needed);
    return s;
}

/* What is in memory now stays there. Pages that were never touched (of the mapping, of slots for experts) are locked
 * when they are, not read for it. */
void ob_ctx_lock_memory(void)
{
#ifdef MCL_ONFAULT
    struct rlimit limit;
    if (mlockall(MCL_CURRENT | MCL_ONFAULT) == 0) return;
    const int e = errno;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        ob_log_warn("--mlock does nothing: this process may lock %llu KiB only. `ulimit -l unlimited` before the start lifts "
                    "the limit, LimitMEMLOCK=infinity that of a systemd service", (unsigned long long)limit.rlim_cur / 1024);
    else
        ob_log_warn("--mlock does nothing: %s", strerror(e));
#else
    ob_log_warn("--mlock does nothing: this system cannot lock what is in memory");
#endif
}
