/* The CPU device: open and describe, host buffers, packed weights, reading results. */
#include "dev/cpu/cpu.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "dev/cpu/cpu_int.h"

static cpu_dev *cpu_of(ob_dev *d) { return (cpu_dev *)d; }

/* --- what this machine is ---------------------------------------------------------------------- */

/* The value of the first line "key : value" of a /proc file; empty when there is none. */
static void proc_value(const char *path, const char *key, char *out, size_t cap)
{
    char line[512];
    const size_t n = strlen(key);
    out[0] = 0;
    FILE *f = fopen(path, "re");
    if (!f) return;
    while (!out[0] && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, key, n) != 0 || !colon) continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(out, cap, "%.*s", (int)strcspn(colon, "\n"), colon);
    }
    fclose(f);
}

static uint64_t meminfo_bytes(const char *key)
{
    char text[64];
    unsigned long long kib = 0;
    proc_value("/proc/meminfo", key, text, sizeof text);
    return sscanf(text, "%llu", &kib) == 1 ? (uint64_t)kib * 1024 : 0;
}

static void fill_info(ob_dev_info *out, ob_cpu_level level, int n_threads)
{
    char brand[80];
    proc_value("/proc/cpuinfo", "model name", brand, sizeof brand);
    memset(out, 0, sizeof *out);
    snprintf(out->kind, sizeof out->kind, "cpu");
    snprintf(out->name, sizeof out->name, "%s, %d thread%s, %s", brand[0] ? brand : "CPU", n_threads,
             n_threads == 1 ? "" : "s", ob_cpu_level_name(level));
    snprintf(out->driver, sizeof out->driver, "built-in kernels, level %s", ob_cpu_level_name(level));
    out->caps = OB_DEV_SHARES | OB_DEV_DYNAMIC_ROWS | OB_DEV_HOST_MEMORY | OB_DEV_EXACT | OB_DEV_PROFILE |
                OB_DEV_HADAMARD | OB_DEV_ACT4 | OB_DEV_OBSERVE | OB_DEV_PRODUCTS;
    out->mem_total_bytes = meminfo_bytes("MemTotal");
    out->mem_free_bytes = meminfo_bytes("MemAvailable");
    out->max_buffer_bytes = SIZE_MAX / 2;
    out->max_tok = OB_MAX_UBATCH;
    out->available = true;
}

static int cpu_count(void) { return 1; }

static void cpu_probe(int index, ob_dev_info *out)
{
    ob_cpu_level level = OB_CPU_C;
    ob_err err;
    (void)index;
    const ob_status s = ob_cpu_level_detect(&level, &err);
    fill_info(out, level, ob_cpu_count());
    if (s == OB_OK) return;
    out->available = false;
    snprintf(out->reason, sizeof out->reason, "%.250s", err.text);
}

static void cpu_describe(const ob_dev *d, ob_dev_info *out)
{
    const cpu_dev *c = (const cpu_dev *)d;
    fill_info(out, c->level, c->n_threads);
}

static void cpu_close(ob_dev *d)
{
    ob_pool_free(cpu_of(d)->pool);
    ob_free(d);
}

static ob_status cpu_open(int index, const ob_dev_options *opt, ob_dev **out, ob_err *err)
{
    (void)index;
    *out = NULL;
    ob_cpu_level level;
    OB_TRY(ob_cpu_level_detect(&level, err));
    if (level == OB_CPU_REF && opt->products)
        return ob_err_set(err, OB_E_UNSUPPORTED, "OB_CPU=ref multiplies by itself: products cannot be done elsewhere");
    cpu_dev *c = ob_calloc(1, sizeof *c);
    if (!c) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the cpu device");
    c->base.api = &ob_dev_cpu;
    c->level = level;
    c->kern = ob_cpu_kernels_get(level);
    c->exact = opt->exact;
    c->profile = opt->profile;
    c->observe = opt->observe;
    c->observe_arg = opt->observe_arg;
    c->products = opt->products;
    const ob_status s = ob_pool_new(opt->n_threads, &c->pool, err);
    if (s != OB_OK) {
        ob_free(c);
        return s;
    }
    c->n_threads = ob_pool_n_threads(c->pool);
    cpu_products_init(c);
    *out = &c->base;
    return OB_OK;
}

/* --- buffers ----------------------------------------------------------------------------------- */

static ob_status buffer_new(ob_dev *d, uint64_t n_bytes, unsigned flags, ob_dev_buf **out, ob_err *err)
{
    (void)d;
    *out = NULL;
    ob_dev_buf *b = ob_calloc(1, sizeof *b);
    if (b && n_bytes <= SIZE_MAX - 4096) {
        /* Fresh zero pages are the system's and cost nothing until they are touched. */
        b->memory = flags & OB_BUF_ZERO ? ob_calloc(1, (size_t)n_bytes + 64) : ob_malloc((size_t)n_bytes + 64);
    }
    if (!b || !b->memory) {
        ob_free(b);
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a buffer of %llu bytes", (unsigned long long)n_bytes);
    }
    b->data = (uint8_t *)b->memory + (64 - (uintptr_t)b->memory % 64) % 64;
    b->n_bytes = n_bytes;
    const uintptr_t huge = 2u << 20, first = (uintptr_t)ob_align_up((uintptr_t)b->data, huge);
    const uintptr_t last = ((uintptr_t)b->data + (uintptr_t)n_bytes) & ~(huge - 1);
    if (last > first) (void)madvise((void *)first, last - first, MADV_HUGEPAGE); /* a refusal costs only speed */
    *out = b;
    return OB_OK;
}

static void buffer_free(ob_dev *d, ob_dev_buf *b)
{
    (void)d;
    if (!b) return;
    ob_free(b->memory);
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
    (void)d;
    OB_TRY(check_range(dst, dst_off, n, err));
    OB_TRY(check_range(src, src_off, n, err));
    memmove(dst->data + dst_off, src->data + src_off, (size_t)n);
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

/* --- weights ----------------------------------------------------------------------------------- */

static void weight_free(ob_dev *d, ob_dev_weight *w)
{
    if (!w) return;
    if (w->prod) cpu_of(d)->products->weight_free(cpu_of(d)->products->self, w->prod);
    ob_lin_free(w->lin);
    ob_free(w->vec);
    ob_free(w->raw);
    ob_free(w);
}

static ob_status make_vector(ob_dev_weight *w, const ob_weight *desc, ob_err *err)
{
    const int64_t n = desc->ne[0] * desc->ne[1] * desc->ne[2] * desc->ne[3];
    const ob_type_info *ti = ob_type_get(desc->type);
    const size_t n_bytes = n > 0 ? ob_type_row_bytes(desc->type, n) : 0;
    if (!ti->dequant || n_bytes == 0 || desc->n_bytes < n_bytes)
        return ob_err_set(err, OB_E_FORMAT, "%s: shape or size does not fit type %s", desc->name,
                          ti->name ? ti->name : "?");
    w->vec = ob_reallocarray(NULL, (size_t)n, sizeof *w->vec);
    if (!w->vec) return ob_err_set(err, OB_E_NO_MEMORY, "%s: no memory", desc->name);
    ti->dequant(desc->data, w->vec, n);
    return OB_OK;
}

static size_t expert_bytes(const ob_weight *w) { return ob_type_row_bytes(w->type, w->ne[0]) * (size_t)w->ne[1]; }

static ob_status weight_write(ob_dev *d, ob_dev_weight *w, int64_t expert, const void *data, ob_err *err)
{
    if (expert < 0 || expert >= w->desc.ne[2] || (!w->raw && !w->lin && !w->prod))
        return ob_err_set(err, OB_E_INVALID, "expert %lld of %lld", (long long)expert, (long long)w->desc.ne[2]);
    if (w->prod) return cpu_of(d)->products->weight_write(cpu_of(d)->products->self, w->prod, expert, data, err);
    if (w->lin) return ob_lin_pack_expert(w->lin, w->desc.type, expert, data, err);
    memcpy(w->raw + (size_t)expert * expert_bytes(&w->desc), data, expert_bytes(&w->desc));
    return OB_OK;
}

/* May another unit multiply it? */
static bool may_hand_over(const cpu_dev *c, const ob_weight *desc)
{
    return c->products && !desc->minor && !desc->act4 && (desc->use == OB_USE_LINEAR || desc->use == OB_USE_EXPERTS);
}

static uint64_t weight_bytes(const ob_dev *d, const ob_weight *desc)
{
    const cpu_dev *c = (const cpu_dev *)d;
    const uint64_t n = may_hand_over(c, desc) ? c->products->weight_bytes(c->products->self, desc) : 0;
    if (n) return n;
    if (c->level == OB_CPU_REF) return expert_bytes(desc) * (size_t)OB_MAX(desc->ne[2], 1);
    if (desc->use == OB_USE_LINEAR || desc->use == OB_USE_EXPERTS) return ob_lin_bytes_of(desc);
    return desc->use == OB_USE_VECTOR ? (uint64_t)(desc->ne[0] * desc->ne[1] * desc->ne[2] * desc->ne[3]) * 4
                                      : desc->n_bytes;
}

static ob_status weight_new(ob_dev *d, const ob_weight *desc, ob_dev_weight **out, bool *keeps_data, ob_err *err)
{
    ob_status s = OB_OK;
    const cpu_dev *c = cpu_of(d);
    *out = NULL;
    *keeps_data = true; /* rows of embeddings and tables are read where they lie */
    ob_dev_weight *w = ob_calloc(1, sizeof *w);
    if (!w) return ob_err_set(err, OB_E_NO_MEMORY, "%s: no memory", desc->name);
    w->desc = *desc;
    w->desc.name = NULL;
    if (desc->use == OB_USE_EMBED &&
        (!ob_type_get(desc->type)->dequant || !ob_type_row_bytes(desc->type, desc->ne[0]) ||
         desc->n_bytes / ob_type_row_bytes(desc->type, desc->ne[0]) < (uint64_t)desc->ne[1])) {
        s = ob_err_set(err, OB_E_FORMAT, "%s: shape or size does not fit its type", desc->name);
        goto out;
    }
    if (c->level == OB_CPU_REF) { /* ops/ref.c reads the file's bytes */
        if (desc->data || desc->use != OB_USE_EXPERTS) goto out;
        w->raw = ob_reallocarray(NULL, (size_t)desc->ne[2], expert_bytes(desc));
        w->desc.data = w->raw;
        if (!w->raw) s = ob_err_set(err, OB_E_NO_MEMORY, "%s: no memory for %lld experts", desc->name, (long long)desc->ne[2]);
        goto out;
    }
    if (desc->use == OB_USE_VECTOR) {
        OB_GOTO(make_vector(w, desc, err));
        *keeps_data = false;
    } else if (desc->use == OB_USE_LINEAR || desc->use == OB_USE_EXPERTS) {
        if (may_hand_over(c, desc)) OB_GOTO(c->products->weight_new(c->products->self, desc, &w->prod, keeps_data, err));
        if (!w->prod) OB_GOTO(ob_lin_pack(desc, c->level, c->exact, &w->lin, keeps_data, err));
    }
out:
    if (s != OB_OK) weight_free(d, w);
    else *out = w;
    return s;
}

/* --- results ----------------------------------------------------------------------------------- */

static ob_status cpu_wait(ob_dev *d, ob_fence f, ob_err *err)
{
    (void)d;
    (void)f;
    (void)err;
    return OB_OK; /* submit has done the work */
}

static ob_status write_input(ob_dev *d, ob_dev_plan *p, ob_val v, const float *src, int32_t n_rows, ob_err *err)
{
    (void)d;
    if (v < 0 || v >= p->prog.n_vals || !p->prog.vals[v].input)
        return ob_err_set(err, OB_E_INVALID, "value %d is not an input", v);
    if (n_rows < 0 || n_rows > ob_value_rows(&p->prog, v, p->prog.max_tok, p->prog.max_out, p->prog.max_seq))
        return ob_err_set(err, OB_E_INVALID, "%d rows are more than the plan has", n_rows);
    if (n_rows) memcpy(p->vals[v], src, (size_t)n_rows * (size_t)p->prog.vals[v].cols * sizeof *src);
    return OB_OK;
}

static ob_status read_output(ob_dev *d, ob_dev_plan *p, ob_val v, int32_t row, int32_t n_rows, float *dst, ob_err *err)
{
    (void)d;
    if (v < 0 || v >= p->prog.n_vals || !p->prog.vals[v].output || !p->vals[v])
        return ob_err_set(err, OB_E_INVALID, "value %d is not an output", v);
    const int64_t have = cpu_n_rows(p, p->prog.vals[v].rows);
    if (row < 0 || n_rows < 0 || row > have - n_rows)
        return ob_err_set(err, OB_E_INVALID, "rows %d..+%d of %lld", row, n_rows, (long long)have);
    memcpy(dst, cpu_row(p, v, row), (size_t)n_rows * (size_t)p->prog.vals[v].cols * sizeof(float));
    return OB_OK;
}

static int cpu_profile_read(ob_dev *d, ob_profile_row *rows, int cap, bool reset)
{
    cpu_dev *c = cpu_of(d);
    int n = 0;
    for (int k = 0; k < OB_OP_COUNT; k++) {
        const cpu_profile *f = &c->prof[k];
        if (f->ms == 0) continue;
        if (n < cap)
            rows[n] = (ob_profile_row){.name = ob_op_name(k), .calls = f->calls, .ms = f->ms, .flops = f->flops,
                                       .bytes = f->bytes};
        n++;
    }
    if (reset) memset(c->prof, 0, sizeof c->prof);
    return n;
}

const ob_dev_api ob_dev_cpu = {
    .kind = "cpu",
    .count = cpu_count,
    .probe = cpu_probe,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .buffer_new = buffer_new,
    .buffer_free = buffer_free,
    .buffer_write = buffer_write,
    .buffer_read = buffer_read,
    .buffer_copy = buffer_copy,
    .buffer_zero = buffer_zero,
    .buffer_map = buffer_map,
    .supports = cpu_supports,
    .weight_new = weight_new,
    .weight_free = weight_free,
    .weight_write = weight_write,
    .weight_bytes = weight_bytes,
    .plan_new = cpu_plan_new,
    .plan_free = cpu_plan_free,
    .submit = cpu_submit,
    .wait = cpu_wait,
    .write_input = write_input,
    .read_output = read_output,
    .profile = cpu_profile_read,
};
