#include "dev/null/null.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "dev/step_check.h"

typedef struct null_dev {
    ob_dev base;
    ob_null_counts counts;
} null_dev;

struct ob_dev_buf {
    uint8_t *data;
    uint64_t n_bytes;
};
struct ob_dev_weight {
    ob_weight_use use;
    int64_t ne[4];
};
/* The program is borrowed: tests keep it. */
struct ob_dev_plan {
    const ob_program *prog;
    int32_t page_tok, n_pages, max_ctx, n_slots, n_tok, n_out, n_seq;
};

static null_dev *null_of(ob_dev *d) { return (null_dev *)d; }

void ob_null_get_counts(const ob_dev *d, ob_null_counts *out) { *out = ((const null_dev *)d)->counts; }

static int null_count(void) { return 1; }

static void null_probe(int index, ob_dev_info *out)
{
    (void)index;
    memset(out, 0, sizeof *out);
    snprintf(out->kind, sizeof out->kind, "null");
    snprintf(out->name, sizeof out->name, "null device: computes nothing");
    out->caps = OB_DEV_DYNAMIC_ROWS | OB_DEV_HOST_MEMORY | OB_DEV_SOFT;
    out->max_buffer_bytes = SIZE_MAX / 2;
    out->max_tok = OB_MAX_UBATCH;
    out->available = true;
}

static void null_describe(const ob_dev *d, ob_dev_info *out)
{
    (void)d;
    null_probe(0, out);
}

static ob_status null_open(int index, const ob_dev_options *opt, ob_dev **out, ob_err *err)
{
    (void)index;
    (void)opt;
    *out = NULL;
    null_dev *n = ob_calloc(1, sizeof *n);
    if (!n) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the null device");
    n->base.api = &ob_dev_null;
    *out = &n->base;
    return OB_OK;
}

static void null_close(ob_dev *d) { ob_free(d); }

/* --- buffers: real memory, always zeroed, so that copies can be tested --------------------------- */

static ob_status buffer_new(ob_dev *d, uint64_t n_bytes, unsigned flags, ob_dev_buf **out, ob_err *err)
{
    (void)flags;
    *out = NULL;
    ob_dev_buf *b = ob_calloc(1, sizeof *b);
    if (b) b->data = ob_calloc(1, (size_t)n_bytes);
    if (!b || !b->data) {
        ob_free(b);
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a buffer of %llu bytes", (unsigned long long)n_bytes);
    }
    b->n_bytes = n_bytes;
    null_of(d)->counts.n_buffers++;
    *out = b;
    return OB_OK;
}

static void buffer_free(ob_dev *d, ob_dev_buf *b)
{
    if (!b) return;
    null_of(d)->counts.n_buffers--;
    ob_free(b->data);
    ob_free(b);
}

static ob_status check_range(const ob_dev_buf *b, uint64_t off, uint64_t n, ob_err *err)
{
    if (off <= b->n_bytes && n <= b->n_bytes - off) return OB_OK;
    return ob_err_set(err, OB_E_INVALID, "bytes %llu..+%llu are outside a buffer of %llu", (unsigned long long)off,
                      (unsigned long long)n, (unsigned long long)b->n_bytes);
}

static ob_status buffer_write(ob_dev *d, ob_dev_buf *b, uint64_t off, const void *src, uint64_t n, ob_err *err)
{
    (void)d;
    OB_TRY(check_range(b, off, n, err));
    if (n) memcpy(b->data + off, src, (size_t)n);
    return OB_OK;
}

static ob_status buffer_read(ob_dev *d, ob_dev_buf *b, uint64_t off, void *dst, uint64_t n, ob_err *err)
{
    (void)d;
    OB_TRY(check_range(b, off, n, err));
    if (n) memcpy(dst, b->data + off, (size_t)n);
    return OB_OK;
}

static ob_status buffer_copy(ob_dev *d, ob_dev_buf *dst, uint64_t dst_off, ob_dev_buf *src, uint64_t src_off,
                             uint64_t n, ob_err *err)
{
    OB_TRY(check_range(dst, dst_off, n, err));
    OB_TRY(check_range(src, src_off, n, err));
    memmove(dst->data + dst_off, src->data + src_off, (size_t)n);
    null_of(d)->counts.n_copies++;
    return OB_OK;
}

static ob_status buffer_zero(ob_dev *d, ob_dev_buf *b, uint64_t off, uint64_t n, ob_err *err)
{
    (void)d;
    OB_TRY(check_range(b, off, n, err));
    memset(b->data + off, 0, (size_t)n);
    return OB_OK;
}

static void *buffer_map(ob_dev *d, ob_dev_buf *b)
{
    (void)d;
    return b->data;
}

/* --- weights, plans, steps ---------------------------------------------------------------------- */

static bool null_supports(const ob_dev *d, const ob_program *p, int32_t op, char *why, size_t cap)
{
    (void)d;
    (void)p;
    (void)op;
    if (cap) why[0] = 0;
    return true;
}

static ob_status weight_new(ob_dev *d, const ob_weight *desc, ob_dev_weight **out, bool *keeps_data, ob_err *err)
{
    *out = NULL;
    *keeps_data = false;
    ob_dev_weight *w = ob_calloc(1, sizeof *w);
    if (!w) return ob_err_set(err, OB_E_NO_MEMORY, "%s: no memory", desc->name);
    w->use = desc->use;
    memcpy(w->ne, desc->ne, sizeof w->ne);
    null_of(d)->counts.n_weights++;
    *out = w;
    return OB_OK;
}

static void weight_free(ob_dev *d, ob_dev_weight *w)
{
    if (w) null_of(d)->counts.n_weights--;
    ob_free(w);
}

static ob_status check_plane(const ob_dev_buf *b, uint64_t rows, ob_type type, int32_t dim, const char *plane, int32_t cache,
                             ob_err *err)
{
    const size_t row_bytes = ob_type_row_bytes(type, dim);
    if (b && row_bytes && b->n_bytes / row_bytes >= rows) return OB_OK;
    return ob_err_set(err, OB_E_INVALID, "%s of cache %d is missing or too small", plane, cache);
}

static ob_status check_bindings(const ob_program *p, const ob_plan_bindings *b, ob_err *err)
{
    for (int32_t i = 0; i < p->n_weights; i++) {
        const ob_weight *w = &p->weights[i];
        if (!b->weights[i]) return ob_err_set(err, OB_E_INVALID, "weight %s is not bound", w->name);
        if (b->weights[i]->use != w->use || memcmp(b->weights[i]->ne, w->ne, sizeof w->ne) != 0)
            return ob_err_set(err, OB_E_INVALID, "weight %s is bound to another", w->name);
    }
    for (int32_t i = 0; i < p->n_caches; i++) {
        const ob_cache_spec *s = &p->caches[i];
        const uint64_t rows = (uint64_t)b->n_pages * (uint64_t)b->page_tok * (uint64_t)s->n_head_kv;
        OB_TRY(check_plane(b->cache_k[i], rows, b->k_type, s->k_dim, "K", i, err));
        if (s->v_dim) OB_TRY(check_plane(b->cache_v[i], rows, b->v_type, s->v_dim, "V", i, err));
    }
    for (int32_t i = 0; i < p->n_states; i++)
        if (!b->states[i] ||
            b->states[i]->n_bytes < (uint64_t)b->n_slots * (uint64_t)p->states[i].n_floats * sizeof(float))
            return ob_err_set(err, OB_E_INVALID, "state %s is missing or too small", p->states[i].name);
    return OB_OK;
}

static ob_status plan_new(ob_dev *d, const ob_program *prog, const ob_plan_bindings *b, ob_dev_plan **out, ob_err *err)
{
    *out = NULL;
    for (int32_t i = 0; i < prog->n_ops; i++) OB_TRY(ob_op_check(prog, i, err));
    OB_TRY(check_bindings(prog, b, err));
    ob_dev_plan *p = ob_calloc(1, sizeof *p);
    if (!p) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
    *p = (ob_dev_plan){.prog = prog, .page_tok = b->page_tok, .n_pages = b->n_pages, .max_ctx = b->max_ctx,
                       .n_slots = b->n_slots};
    null_of(d)->counts.n_plans++;
    *out = p;
    return OB_OK;
}

static void plan_free(ob_dev *d, ob_dev_plan *p)
{
    if (p) null_of(d)->counts.n_plans--;
    ob_free(p);
}

static ob_status null_submit(ob_dev *d, ob_dev_plan *p, const ob_step *s, ob_fence *out, ob_err *err)
{
    ob_null_counts *c = &null_of(d)->counts;
    *out = 0;
    OB_TRY(ob_step_check(p->prog, s, p->page_tok, p->n_pages, p->max_ctx, p->n_slots, err));
    p->n_tok = c->last_n_tok = s->n_tok;
    p->n_out = c->last_n_out = s->n_out;
    p->n_seq = c->last_n_seq = s->n_seq;
    c->n_submits++;
    c->n_tok += (uint64_t)s->n_tok;
    c->n_out += (uint64_t)s->n_out;
    return OB_OK;
}

static ob_status null_wait(ob_dev *d, ob_fence f, ob_err *err)
{
    (void)d;
    (void)f;
    (void)err;
    return OB_OK;
}

static ob_status write_input(ob_dev *d, ob_dev_plan *p, ob_val v, const float *src, int32_t n_rows, ob_err *err)
{
    (void)d;
    (void)src;
    if (v < 0 || v >= p->prog->n_vals || !p->prog->vals[v].input || n_rows < 0)
        return ob_err_set(err, OB_E_INVALID, "value %d is not an input", v);
    return OB_OK;
}

static ob_status read_output(ob_dev *d, ob_dev_plan *p, ob_val v, int32_t row, int32_t n_rows, float *dst, ob_err *err)
{
    (void)d;
    if (v < 0 || v >= p->prog->n_vals || !p->prog->vals[v].output)
        return ob_err_set(err, OB_E_INVALID, "value %d is not an output", v);
    const int32_t have = ob_value_rows(p->prog, v, p->n_tok, p->n_out, p->n_seq);
    if (row < 0 || n_rows < 0 || row > have - n_rows)
        return ob_err_set(err, OB_E_INVALID, "rows %d..+%d of %d", row, n_rows, have);
    memset(dst, 0, (size_t)n_rows * (size_t)p->prog->vals[v].cols * sizeof *dst);
    return OB_OK;
}

const ob_dev_api ob_dev_null = {
    .kind = "null",
    .count = null_count,
    .probe = null_probe,
    .open = null_open,
    .close = null_close,
    .describe = null_describe,
    .buffer_new = buffer_new,
    .buffer_free = buffer_free,
    .buffer_write = buffer_write,
    .buffer_read = buffer_read,
    .buffer_copy = buffer_copy,
    .buffer_zero = buffer_zero,
    .buffer_map = buffer_map,
    .supports = null_supports,
    .weight_new = weight_new,
    .weight_free = weight_free,
    .plan_new = plan_new,
    .plan_free = plan_free,
    .submit = null_submit,
    .wait = null_wait,
    .write_input = write_input,
    .read_output = read_output,
};
