/* Small steps of another device's plans on the array. */
#include "dev/npu/npu_decode.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"

/* Who wrote to a page last, where the other side may have old lines of it. */
enum { BY_CPU = 1, BY_NPU = 2 };

struct ob_npu_decode_plan {
    ob_npu_decode_plan *next;
    ob_npu_step *step;
    const ob_program *prog;   /* the step's */
    ob_npu_decode_memory mem; /* arrays are the step's caller's, kept by it as long as the plan lives */
};

struct ob_npu_decode {
    ob_npu_dev *dev;
    ob_npu_fwd_q4 *weights;
    ob_npu_kernel kernel;
    ob_npu_decode_plan *plans;
    uint8_t *pages;           /* [n_pages] of all caches together: they have one page table */
    int32_t n_pages;
    bool said;
    ob_npu_decode_stats stats;
};

ob_status ob_npu_decode_new(ob_npu_dev *dev, ob_npu_fwd_q4 *weights, ob_npu_decode **out, ob_err *err)
{
    *out = NULL;
    ob_npu_decode *d = ob_calloc(1, sizeof *d);
    if (!d) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for decoding on the NPU");
    d->dev = dev;
    d->weights = weights;
    const ob_status s = ob_npu_kernel_load(&d->kernel, dev, OB_NPU_DESIGN_STEP, err);
    if (s == OB_OK) *out = d;
    else ob_free(d);
    return s;
}

void ob_npu_decode_free(ob_npu_decode *d)
{
    if (!d) return;
    ob_npu_kernel_unload(&d->kernel);
    ob_free(d->pages);
    ob_free(d);
}

ob_npu_decode_stats ob_npu_decode_stats_get(const ob_npu_decode *d) { return d->stats; }

/* ---- plans ------------------------------------------------------------------------------------ */

static bool find(void *arg, const ob_weight *w, int64_t mat, ob_npu_tiles_at *out)
{
    const ob_npu_decode *d = arg;
    return ob_npu_fwd_q4_find(d->weights, w, mat, &out->bo, &out->off);
}

/* Once: what runs where. */
static void say(ob_npu_decode *d, const ob_npu_step *s)
{
    char names[160];
    const ob_npu_step_stats st = ob_npu_step_stats_get(s);
    if (d->said) return;
    d->said = true;
    ob_npu_step_host_ops(s, names, sizeof names);
    ob_log_info("npu: steps of up to %d tokens run on the array: %d ops of %d%s%s", OB_NPU_STEP_ROWS, st.n_array_ops,
                st.n_array_ops + st.n_host_ops, names[0] ? ", on the host " : "", names);
}

ob_status ob_npu_decode_plan_new(ob_npu_decode *d, const ob_program *p, const ob_npu_decode_memory *m, ob_npu_decode_plan **out, ob_err *err)
{
    *out = NULL;
    if (d->stats.failed) return OB_OK;
    if (m->n_pages > d->n_pages) {
        uint8_t *pages = ob_realloc(d->pages, (size_t)m->n_pages);
        if (!pages) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for decoding on the NPU");
        memset(pages + d->n_pages, BY_CPU, (size_t)(m->n_pages - d->n_pages));
        d->pages = pages;
        d->n_pages = m->n_pages;
    }
    ob_npu_decode_plan *x = ob_calloc(1, sizeof *x);
    if (!x) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for decoding on the NPU");
    x->mem = *m;
    const ob_npu_step_options opt = {.dev = d->dev, .kernel = &d->kernel, .prog = p, .find = find, .arg = d, .cache_k = m->cache_k, .cache_v = m->cache_v,
                                     .k_type = m->k_type, .v_type = m->v_type, .page_tok = m->page_tok, .n_pages = m->n_pages,
                                     .max_ctx = m->max_ctx, .states = m->states, .n_slots = m->n_slots};
    ob_err why;
    const ob_status s = ob_npu_step_new(&opt, &x->step, &why);
    if (s != OB_OK) {
        ob_free(x);
        if (s != OB_E_UNSUPPORTED && s != OB_E_NO_MEMORY) return ob_err_set(err, s, "%s", why.text);
        if (!d->said) ob_log_info("npu: %s; its steps run on the CPU", why.text);
        d->said = true;
        return OB_OK;
    }
    x->prog = ob_npu_step_program(x->step);
    say(d, x->step);
    x->next = d->plans;
    d->plans = x;
    *out = x;
    return OB_OK;
}

void ob_npu_decode_plan_free(ob_npu_decode *d, ob_npu_decode_plan *p)
{
    if (!p) return;
    ob_npu_decode_plan **at = &d->plans;
    while (*at && *at != p) at = &(*at)->next;
    if (*at) *at = p->next;
    ob_npu_step_free(p->step);
    ob_free(p);
}

const float *ob_npu_decode_val(const ob_npu_decode_plan *p, ob_val v) { return ob_npu_step_val(p->step, v); }

int32_t ob_npu_decode_cols(const ob_npu_decode_plan *p, ob_val v) { return p->prog->vals[v].cols; }

/* ---- pages ------------------------------------------------------------------------------------ */

/* Cache lines of a page in all caches: to memory, or away. */
static void move_page(const ob_npu_decode *d, const ob_npu_decode_plan *p, int32_t page, bool to_npu)
{
    void (*fn)(ob_npu_os *, const void *, size_t) = to_npu ? d->dev->os->api->flush : d->dev->os->api->invalidate;
    for (int32_t c = 0; c < p->prog->n_caches; c++) {
        const ob_cache_spec *spec = &p->prog->caches[c];
        const size_t rows = (size_t)spec->n_head_kv * (size_t)p->mem.page_tok;
        const size_t k = rows * ob_type_row_bytes(p->mem.k_type, spec->k_dim), v = rows * ob_type_row_bytes(p->mem.v_type, spec->v_dim);
        fn(d->dev->os, (const uint8_t *)p->mem.cache_k[c] + (size_t)page * k, k);
        if (spec->v_dim) fn(d->dev->os, (const uint8_t *)p->mem.cache_v[c] + (size_t)page * v, v);
    }
}

/* The pages of a step's sequences, as far as they will be filled; those past what is there already are written to. */
static void hand_over(ob_npu_decode *d, const ob_npu_decode_plan *p, const ob_step *st, bool to_npu)
{
    const uint8_t theirs = to_npu ? BY_CPU : BY_NPU, ours = to_npu ? BY_NPU : BY_CPU;
    for (int32_t q = 0; q < st->n_seq && p->prog->n_caches; q++) {
        const int32_t past = st->seq_past[q], n = past + st->seq_first[q + 1] - st->seq_first[q];
        for (int32_t i = 0; i * p->mem.page_tok < n; i++) {
            const int32_t page = st->page_table[(int64_t)q * st->max_pages + i];
            if (d->pages[page] & theirs) move_page(d, p, page, to_npu);
            d->pages[page] &= (uint8_t)~theirs;
            if ((i + 1) * p->mem.page_tok > past) d->pages[page] |= ours;
        }
    }
}

void ob_npu_decode_before(ob_npu_decode *d, ob_npu_decode_plan *p, const ob_step *st)
{
    if (p) hand_over(d, p, st, false);
}

void ob_npu_decode_touch(ob_npu_decode *d)
{
    for (int32_t page = 0; d->plans && page < d->n_pages; page++) {
        if (d->pages[page] & BY_NPU && page < d->plans->mem.n_pages) move_page(d, d->plans, page, false);
        d->pages[page] = BY_CPU;
    }
}

/* ---- steps ------------------------------------------------------------------------------------ */

bool ob_npu_decode_run(ob_npu_decode *d, ob_npu_decode_plan *p, const ob_step *st)
{
    ob_err err;
    if (!p || d->stats.failed || st->n_tok > OB_NPU_STEP_ROWS || st->n_out > OB_NPU_STEP_ROWS || st->n_seq > OB_NPU_STEP_ROWS || st->n_vec ||
        st->block_first)
        return false;
    hand_over(d, p, st, true);
    if (ob_npu_step_run(p->step, st, &err) == OB_OK) {
        d->stats.n_steps++;
        d->stats.n_chains += (uint64_t)ob_npu_step_stats_get(p->step).n_chains;
        return true;
    }
    d->stats.failed = true;
    snprintf(d->stats.reason, sizeof d->stats.reason, "%.190s", err.text);
    ob_log_warn("npu: %s; steps run on the CPU from now on", d->stats.reason);
    return false;
}
