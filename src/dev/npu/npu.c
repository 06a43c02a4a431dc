/* The NPU device: the CPU device with its matrix products done by the NPU (dev/products.h).
 *
 * What is open here is an inner device, opened by its name through the registry, and the products it was given. Buffers,
 * weights and plans are the inner device's own; every function passes them on.
 */
#include "dev/npu/npu.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "dev/npu/npu_decode.h"
#include "dev/npu/npu_fwd.h"
#include "dev/npu/npu_fwd_q4.h"
#include "dev/npu/npu_open.h"

typedef struct npu_dev {
    ob_dev base;
    ob_dev *inner;
    ob_npu_open *npu; /* NULL: products are computed on the host (npu-ref) */
    ob_npu_fwd *fwd;       /* OB_UNIT_INT8, else NULL */
    ob_npu_fwd_q4 *q4;     /* the other modes */
    ob_npu_decode *decode; /* OB_UNIT_FUSED with an NPU */
    bool said;
    int index;
} npu_dev;

/* A plan of the inner device, and its program on the array where that is used. */
struct ob_dev_plan {
    ob_dev_plan *inner;
    ob_npu_decode_plan *decode; /* NULL: none */
    void **cache_k, **cache_v;  /* [n_caches]; one allocation with the next */
    float **states;             /* [n_states] */
    bool there;                 /* the last step ran on the array */
};

static npu_dev *npu_of(ob_dev *d) { return (npu_dev *)d; }
static ob_dev *in(const ob_dev *d) { return ((const npu_dev *)d)->inner; }

/* ---- what there is ----------------------------------------------------------------------------- */

/* What the CPU can and a device with rounded products, which has the CPU's memory, still can. */
static void fill(const char *kind, int index, const ob_dev_info *cpu, ob_dev_info *out)
{
    *out = *cpu;
    snprintf(out->kind, sizeof out->kind, "%s", kind);
    out->index = index;
    out->caps &= ~(uint32_t)(OB_DEV_SHARES | OB_DEV_EXACT | OB_DEV_ACT4 | OB_DEV_PRODUCTS | OB_DEV_OBSERVE);
    out->good_tok = OB_NPU_MAX_M;
}

static void cpu_info(ob_dev_info *out)
{
    memset(out, 0, sizeof *out);
    for (const ob_dev_api *const *a = ob_dev_registry(); *a; a++)
        if (strcmp((*a)->kind, "cpu") == 0) (*a)->probe(0, out);
}

static void probe_npu(const char *kind, bool soft, int index, ob_dev_info *out)
{
    ob_dev_info cpu;
    cpu_info(&cpu);
    fill(kind, index, &cpu, out);
    ob_npu_open_probe(soft, index, out);
}

static int real_count(void) { return ob_npu_open_count(false); }
static int soft_count(void) { return ob_npu_open_count(true); }
static int ref_count(void) { return 1; }
static void real_probe(int index, ob_dev_info *out) { probe_npu("npu", false, index, out); }
static void soft_probe(int index, ob_dev_info *out) { probe_npu("npu-soft", true, index, out); }

static void ref_text(ob_dev_info *out)
{
    out->caps |= OB_DEV_SOFT; /* there is no such device */
    snprintf(out->name, sizeof out->name, "arithmetic of an NPU on the CPU");
    snprintf(out->driver, sizeof out->driver, "none");
}

static void ref_probe(int index, ob_dev_info *out)
{
    ob_dev_info cpu;
    cpu_info(&cpu);
    fill("npu-ref", index, &cpu, out);
    ref_text(out);
}

static void describe_q4(const npu_dev *d, ob_dev_info *out)
{
    ob_npu_fwd_q4_stats st;
    ob_npu_fwd_q4_get_stats(d->q4, &st);
    out->good_tok = 0; /* a row at a time */
    if (st.failed) snprintf(out->reason, sizeof out->reason, "products are computed on the CPU: %.200s", st.reason);
    if (!d->decode) return;
    const ob_npu_decode_stats ds = ob_npu_decode_stats_get(d->decode);
    if (ds.failed) snprintf(out->reason, sizeof out->reason, "steps run on the CPU: %.200s", ds.reason);
}

static void npu_describe(const ob_dev *dev, ob_dev_info *out)
{
    const npu_dev *d = (const npu_dev *)dev;
    ob_dev_info cpu;
    ob_npu_fwd_stats st;
    d->inner->api->describe(d->inner, &cpu);
    fill(dev->api->kind, d->index, &cpu, out);
    if (d->npu) ob_npu_open_describe(d->npu, out);
    else ref_text(out);
    if (d->fwd) ob_npu_fwd_get_stats(d->fwd, &st);
    if (d->fwd && st.failed) snprintf(out->reason, sizeof out->reason, "products are computed on the CPU: %.200s", st.reason);
    if (d->q4) describe_q4(d, out);
}

/* ---- open and close ---------------------------------------------------------------------------- */

static void npu_close(ob_dev *dev)
{
    npu_dev *d = npu_of(dev);
    ob_dev_close(d->inner);
    ob_npu_fwd_free(d->fwd);
    ob_npu_decode_free(d->decode);
    ob_npu_fwd_q4_free(d->q4);
    ob_npu_open_close(d->npu);
    ob_free(d);
}

/* Who multiplies, and whether whole steps go to the array. */
static ob_status open_products(npu_dev *d, const ob_dev_options *opt, uint64_t ram_bytes, ob_err *err)
{
    if (opt->unit_mode == OB_UNIT_INT8) {
        const ob_npu_fwd_options fo = {.dev = d->npu ? ob_npu_open_dev(d->npu) : NULL, .gemm = d->npu ? ob_npu_open_gemm(d->npu) : NULL,
                                       .source = opt->source, .verify = opt->verify, .pin = opt->pin, .ram_bytes = ram_bytes,
                                       .n_threads = opt->n_threads};
        return ob_npu_fwd_new(&fo, &d->fwd, err);
    }
    ob_npu_dev *npu = d->npu ? ob_npu_open_dev(d->npu) : NULL;
    OB_TRY(ob_npu_fwd_q4_new(&(ob_npu_fwd_q4_options){.dev = npu, .verify = opt->verify, .ram_bytes = ram_bytes}, &d->q4, err));
    return npu && opt->unit_mode == OB_UNIT_FUSED ? ob_npu_decode_new(npu, d->q4, &d->decode, err) : OB_OK;
}

static ob_status open_any(const ob_dev_api *api, int index, const ob_dev_options *opt, ob_dev **out, ob_err *err)
{
    ob_status s = OB_OK;
    ob_dev_info cpu;
    *out = NULL;
    if (opt->exact)
        return ob_err_set(err, OB_E_UNSUPPORTED, "device %s rounds activations to 8 bits: --exact needs another one", api->kind);
    if (opt->products || opt->observe)
        return ob_err_set(err, OB_E_UNSUPPORTED, "device %s does its own products and shows none", api->kind);
    npu_dev *d = ob_calloc(1, sizeof *d);
    if (!d) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for device %s", api->kind);
    d->base.api = api;
    d->index = index;
    cpu_info(&cpu);
    if (api != &ob_dev_npu_ref) OB_GOTO(ob_npu_open_new(api == &ob_dev_npu_soft, index, &d->npu, err));
    OB_GOTO(open_products(d, opt, cpu.mem_total_bytes, err));
    ob_dev_options inner = *opt;
    inner.products = d->fwd ? ob_npu_fwd_products(d->fwd) : ob_npu_fwd_q4_products(d->q4);
    inner.source = NULL;
    OB_GOTO(ob_dev_open("cpu", &inner, &d->inner, err));
    if (api == &ob_dev_npu_soft) ob_log_info("npu-soft is a software model of an NPU: its numbers are right, its times say nothing");
    *out = &d->base;
out:
    if (s != OB_OK) npu_close(&d->base);
    return s;
}

static ob_status real_open(int index, const ob_dev_options *opt, ob_dev **out, ob_err *err)
{
    return open_any(&ob_dev_npu, index, opt, out, err);
}
static ob_status soft_open(int index, const ob_dev_options *opt, ob_dev **out, ob_err *err)
{
    return open_any(&ob_dev_npu_soft, index, opt, out, err);
}
static ob_status ref_open(int index, const ob_dev_options *opt, ob_dev **out, ob_err *err)
{
    return open_any(&ob_dev_npu_ref, index, opt, out, err);
}

/* ---- passed on --------------------------------------------------------------------------------- */

/* Buffers may be caches, of which the array may have written pages. */
static void touch(ob_dev *d)
{
    if (npu_of(d)->decode) ob_npu_decode_touch(npu_of(d)->decode);
}

static ob_status buffer_new(ob_dev *d, uint64_t n, unsigned flags, ob_dev_buf **out, ob_err *err)
{
    return in(d)->api->buffer_new(in(d), n, flags, out, err);
}
static void buffer_free(ob_dev *d, ob_dev_buf *b) { in(d)->api->buffer_free(in(d), b); }
static ob_status buffer_write(ob_dev *d, ob_dev_buf *b, uint64_t off, const void *src, uint64_t n, ob_err *err)
{
    touch(d);
    return in(d)->api->buffer_write(in(d), b, off, src, n, err);
}
static ob_status buffer_read(ob_dev *d, ob_dev_buf *b, uint64_t off, void *dst, uint64_t n, ob_err *err)
{
    touch(d);
    return in(d)->api->buffer_read(in(d), b, off, dst, n, err);
}
static ob_status buffer_copy(ob_dev *d, ob_dev_buf *dst, uint64_t dst_off, ob_dev_buf *src, uint64_t src_off, uint64_t n, ob_err *err)
{
    touch(d);
    return in(d)->api->buffer_copy(in(d), dst, dst_off, src, src_off, n, err);
}
static ob_status buffer_zero(ob_dev *d, ob_dev_buf *b, uint64_t off, uint64_t n, ob_err *err)
{
    touch(d);
    return in(d)->api->buffer_zero(in(d), b, off, n, err);
}
static void *buffer_map(ob_dev *d, ob_dev_buf *b)
{
    touch(d);
    return in(d)->api->buffer_map(in(d), b);
}
static bool supports(const ob_dev *d, const ob_program *p, int32_t op, char *why, size_t cap)
{
    return in(d)->api->supports(in(d), p, op, why, cap);
}
static ob_status weight_new(ob_dev *d, const ob_weight *desc, ob_dev_weight **out, bool *keeps_data, ob_err *err)
{
    return in(d)->api->weight_new(in(d), desc, out, keeps_data, err);
}
static void weight_free(ob_dev *d, ob_dev_weight *w) { in(d)->api->weight_free(in(d), w); }
static ob_status weight_write(ob_dev *d, ob_dev_weight *w, int64_t expert, const void *data, ob_err *err)
{
    return in(d)->api->weight_write(in(d), w, expert, data, err);
}
static uint64_t weight_bytes(const ob_dev *d, const ob_weight *desc) { return in(d)->api->weight_bytes(in(d), desc); }

/* Once: where the packed weights are from. */
static void say_packed(npu_dev *d)
{
    const ob_npu_pack_stats st = ob_npu_fwd_pack_stats(d->fwd);
    if (d->said || !(st.n_found + st.n_packed)) return;
    d->said = true;
    const char *path = ob_npu_fwd_pack_path(d->fwd);
    if (!path[0]) return; /* nobody asked for a file */
    if (!st.n_packed)
        ob_log_info("%s: %d packed weights from %s, nothing to repack", d->base.api->kind, st.n_found, path);
    else
        ob_log_info("%s: %d weights packed, %d from before%s%s", d->base.api->kind, st.n_packed, st.n_found,
                    st.kept ? ", kept in " : ", not kept", st.kept ? path : "");
}

/* Where the inner device has caches and states, as memory. */
static ob_status plan_decode(npu_dev *d, const ob_program *p, const ob_plan_bindings *b, ob_dev_plan *plan, ob_err *err)
{
    ob_dev *dev = d->inner;
    for (int32_t i = 0; i < p->n_caches; i++) {
        plan->cache_k[i] = dev->api->buffer_map(dev, b->cache_k[i]);
        plan->cache_v[i] = b->cache_v[i] ? dev->api->buffer_map(dev, b->cache_v[i]) : NULL;
    }
    for (int32_t i = 0; i < p->n_states; i++) plan->states[i] = dev->api->buffer_map(dev, b->states[i]);
    const ob_npu_decode_memory m = {.cache_k = plan->cache_k, .cache_v = plan->cache_v, .states = plan->states, .k_type = b->k_type,
                                    .v_type = b->v_type, .page_tok = b->page_tok, .n_pages = b->n_pages, .max_ctx = b->max_ctx,
                                    .n_slots = b->n_slots};
    return ob_npu_decode_plan_new(d->decode, p, &m, &plan->decode, err);
}

static void plan_free(ob_dev *dev, ob_dev_plan *p)
{
    if (!p) return;
    if (p->decode) ob_npu_decode_plan_free(npu_of(dev)->decode, p->decode);
    if (p->inner) in(dev)->api->plan_free(in(dev), p->inner);
    ob_free(p->cache_k);
    ob_free(p);
}

static ob_status plan_new(ob_dev *dev, const ob_program *p, const ob_plan_bindings *b, ob_dev_plan **out, ob_err *err)
{
    npu_dev *d = npu_of(dev);
    ob_status s = OB_OK;
    *out = NULL;
    if (d->fwd) OB_TRY(ob_npu_fwd_prepare(d->fwd, err));
    else OB_TRY(ob_npu_fwd_q4_prepare(d->q4, err));
    if (d->fwd) say_packed(d);
    ob_dev_plan *plan = ob_calloc(1, sizeof *plan);
    if (plan) plan->cache_k = ob_calloc(2 * (size_t)p->n_caches + (size_t)p->n_states + 1, sizeof *plan->cache_k);
    if (!plan || !plan->cache_k) {
        ob_free(plan);
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
    }
    plan->cache_v = plan->cache_k + p->n_caches;
    plan->states = (float **)(void *)(plan->cache_v + p->n_caches);
    OB_GOTO(d->inner->api->plan_new(d->inner, p, b, &plan->inner, err));
    if (d->decode) OB_GOTO(plan_decode(d, p, b, plan, err));
    *out = plan;
out:
    if (s != OB_OK) plan_free(dev, plan);
    return s;
}

static ob_status write_input(ob_dev *d, ob_dev_plan *p, ob_val v, const float *src, int32_t n_rows, ob_err *err)
{
    return in(d)->api->write_input(in(d), p->inner, v, src, n_rows, err);
}

static ob_status submit(ob_dev *dev, ob_dev_plan *p, const ob_step *step, ob_fence *out, ob_err *err)
{
    npu_dev *d = npu_of(dev);
    *out = 0;
    p->there = d->decode && ob_npu_decode_run(d->decode, p->decode, step);
    if (p->there) return OB_OK;
    if (d->decode) ob_npu_decode_before(d->decode, p->decode, step);
    return in(dev)->api->submit(in(dev), p->inner, step, out, err);
}

static ob_status wait_for(ob_dev *d, ob_fence f, ob_err *err) { return f ? in(d)->api->wait(in(d), f, err) : OB_OK; }

static ob_status read_output(ob_dev *d, ob_dev_plan *p, ob_val v, int32_t row, int32_t n_rows, float *dst, ob_err *err)
{
    if (!p->there) return in(d)->api->read_output(in(d), p->inner, v, row, n_rows, dst, err);
    const int32_t cols = ob_npu_decode_cols(p->decode, v);
    memcpy(dst, ob_npu_decode_val(p->decode, v) + (size_t)row * (size_t)cols, (size_t)n_rows * (size_t)cols * sizeof *dst);
    return OB_OK;
}
static int profile(ob_dev *d, ob_profile_row *rows, int cap, bool reset) { return in(d)->api->profile(in(d), rows, cap, reset); }

#define SHARED_FUNCTIONS                                                                                                \
    .close = npu_close, .describe = npu_describe, .buffer_new = buffer_new, .buffer_free = buffer_free,                  \
    .buffer_write = buffer_write, .buffer_read = buffer_read, .buffer_copy = buffer_copy, .buffer_zero = buffer_zero,     \
    .buffer_map = buffer_map, .supports = supports, .weight_new = weight_new, .weight_free = weight_free,                 \
    .weight_write = weight_write, .weight_bytes = weight_bytes, .plan_new = plan_new, .plan_free = plan_free,             \
    .write_input = write_input, .submit = submit, .wait = wait_for, .read_output = read_output, .profile = profile

const ob_dev_api ob_dev_npu = {.kind = "npu", .count = real_count, .probe = real_probe, .open = real_open, SHARED_FUNCTIONS};
const ob_dev_api ob_dev_npu_soft = {.kind = "npu-soft", .count = soft_count, .find = ob_npu_open_soft_find, .probe = soft_probe,
                                    .open = soft_open, SHARED_FUNCTIONS};
const ob_dev_api ob_dev_npu_ref = {.kind = "npu-ref", .count = ref_count, .probe = ref_probe, .open = ref_open, SHARED_FUNCTIONS};
