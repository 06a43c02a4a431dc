/* Weights in the layout that shaders/weight.glsl describes.
 *
 * Q4_K and Q5_K stay as they are, because their blocks are 16-aligned already. The other block
 * types are taken apart into arrays: quants, scales, high bits; so that a thread's quants are one
 * aligned 16-byte load. A type without kernels is expanded to f16 (f32 when the device runs exact).
 */
#include "dev/vulkan/vk_int.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/math.h"

enum { UNIT = 32 };

/* Bytes of each array for one unit of 32 elements, in eighths where Q6_K's super-block has fewer.
 */
typedef struct layout {
    int w, s, h, z8; /* z8: bytes of eight units */
} layout;

static layout layout_of(ob_type t)
{
    switch (t) {
    case OB_F32:
        return (layout){.w = 128};
    case OB_F16:
    case OB_BF16:
        return (layout){.w = 64};
    case OB_Q4_0:
    case OB_MXFP4:
        return (layout){.w = 16, .s = 2};
    case OB_Q4_1:
        return (layout){.w = 16, .s = 4};
    case OB_Q5_0:
        return (layout){.w = 16, .s = 2, .h = 4};
    case OB_Q5_1:
        return (layout){.w = 16, .s = 4, .h = 4};
    case OB_Q8_0:
        return (layout){.w = 32, .s = 2};
    case OB_Q4_K:
        return (layout){.w = 18};
    case OB_Q5_K:
        return (layout){.w = 22};
    case OB_Q6_K:
        return (layout){.w = 16, .s = 2, .h = 8, .z8 = 2};
    default:
        return (layout){0};
    }
}

static bool is_float(ob_type t)
{
    return t == OB_F32 || t == OB_F16 || t == OB_BF16;
}

/* --- taking blocks apart: n units (Q6_K: a multiple of 8) from src ---------------------------- */

enum array { ARRAY_W, ARRAY_S, ARRAY_H, ARRAY_Z };

/* Q4_0 (18 bytes: d, q), Q4_1 (20: d, m, q), Q5_0 (22: d, h, q), Q5_1 (24: d, m, h, q), Q8_0 (34:
 * d, q). */
static void split_simple(ob_type t, enum array a, const uint8_t *src, uint8_t *dst, uint64_t n)
{
    const layout l = layout_of(t);
    const int block = l.w + l.s + l.h;
    const int off = a == ARRAY_S   ? 0
                    : a == ARRAY_H ? l.s
                                   : l.s + l.h,
              size = a == ARRAY_S   ? l.s
                     : a == ARRAY_H ? l.h
                                    : l.w;
    for (uint64_t i = 0; i < n; i++, src += block, dst += size)
        memcpy(dst, src + off, (size_t)size);
}

/* MXFP4, 17 bytes: exponent e, q; the scale 2^(e - 128) of twice the values becomes bf16. */
static void split_mxfp4(enum array a, const uint8_t *src, uint8_t *dst, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++, src += 17) {
        const uint32_t e = src[0], bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
        const uint16_t scale = (uint16_t)(bits >> 16);
        if (a == ARRAY_W) memcpy(dst + 16 * i, src + 1, 16);
        else memcpy(dst + 2 * i, &scale, 2);
    }
}

/* Q6_K, 210 bytes: l[128], h[64], s[16], d. Bits of element e = 128 c + 32 k + l: low four in
 * l[64 c + 32 (k & 1) + l] (high nibble from k = 2 on), high two at bit 2k of h[32 c + l]. */
static void split_q6_k(enum array a, const uint8_t *src, uint8_t *dst, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *b = src + i / 8 * 210;
        const int c = (int)(i % 8) / 4, k = (int)(i % 8) % 4;
        if (a == ARRAY_W) {
            const uint8_t *q = b + 64 * c + 32 * (k & 1);
            const int shift = k >= 2 ? 4 : 0;
            for (int l = 0; l < 16; l++)
                dst[16 * i + (uint64_t)l] =
                    (uint8_t)((q[l] >> shift & 15) | (q[16 + l] >> shift & 15) << 4);
        } else if (a == ARRAY_H) {
            /* Byte m of a run's word holds elements m, 4 + m, 8 + m, 12 + m at bits 0, 2, 4, 6. */
            const uint8_t *h = b + 128 + 32 * c;
            for (int run = 0; run < 2; run++)
                for (int m = 0; m < 4; m++) {
                    int x = 0;
                    for (int j = 0; j < 4; j++)
                        x |= (h[16 * run + 4 * j + m] >> (2 * k) & 3) << (2 * j);
                    dst[8 * i + (uint64_t)(4 * run + m)] = (uint8_t)x;
                }
        } else if (a == ARRAY_S) {
            memcpy(dst + 2 * i, b + 192 + 2 * (i % 8), 2);
        } else if (i % 8 == 0) {
            memcpy(dst + i / 8 * 2, b + 208, 2);
        }
    }
}

/* --- sending ---------------------------------------------------------------------------------- */

/* Something of a tensor that is written as n items of item_bytes each, any run of them by any thread. */
typedef struct packing {
    const ob_weight *desc;
    ob_type type;    /* as stored */
    enum array array;
    uint64_t n, item_bytes;
    float *scratch;  /* of floats: a row for each thread, where they are converted */
    void (*fill)(const struct packing *p, uint8_t *dst, uint64_t first, uint64_t n, int thread);
} packing;

static void fill_bytes(const packing *p, uint8_t *dst, uint64_t first, uint64_t n, int thread)
{
    (void)thread;
    memcpy(dst, (const uint8_t *)p->desc->data + first, (size_t)n);
}

/* Items: units, of Q6_K super-blocks. */
static void fill_array(const packing *p, uint8_t *dst, uint64_t first, uint64_t n, int thread)
{
    (void)thread;
    const uint8_t *src = p->desc->data;
    if (p->type == OB_Q6_K) split_q6_k(p->array, src + first * 210, dst, 8 * n);
    else if (p->type == OB_MXFP4) split_mxfp4(p->array, src + first * 17, dst, n);
    else split_simple(p->type, p->array, src + first * ob_type_row_bytes(p->type, UNIT), dst, n);
}

/* Rows of floats to whole units; what is past the row's end becomes zero. */
static void fill_floats(const packing *p, uint8_t *dst, uint64_t row, uint64_t n_rows, int thread)
{
    const ob_weight *w = p->desc;
    const uint64_t k = (uint64_t)w->ne[0], padded = (k + UNIT - 1) / UNIT * UNIT;
    const size_t elem = p->type == OB_F32 ? 4 : 2, from = ob_type_row_bytes(w->type, w->ne[0]);
    float *scratch = p->scratch ? p->scratch + (size_t)thread * k : NULL;
    for (uint64_t r = 0; r < n_rows; r++, dst += padded * elem) {
        const uint8_t *src = (const uint8_t *)w->data + (row + r) * from;
        if (w->type == p->type) {
            memcpy(dst, src, k * elem);
        } else {
            ob_type_get(w->type)->dequant(src, scratch, w->ne[0]);
            if (p->type == OB_F32) memcpy(dst, scratch, k * 4);
            for (uint64_t i = 0; p->type == OB_F16 && i < k; i++) {
                const uint16_t h = ob_f32_to_f16(scratch[i]);
                memcpy(dst + 2 * i, &h, 2);
            }
        }
        memset(dst + k * elem, 0, (padded - k) * elem);
    }
}

typedef struct slice {
    const packing *p;
    ob_pool *pool;
    uint8_t *dst;
    uint64_t first, n, grain;
} slice;

static void fill_slice(void *arg, int ith, int n_threads)
{
    const slice *s = arg;
    (void)n_threads;
    for (int64_t i0, i1; ob_pool_take(s->pool, (int64_t)s->n, (int64_t)s->grain, &i0, &i1);)
        s->p->fill(s->p, s->dst + (uint64_t)i0 * s->p->item_bytes, s->first + (uint64_t)i0, (uint64_t)(i1 - i0), ith);
}

/* All items to `off` in the weight's memory, through the staging halves: one is filled by all threads, which also
 * reads the file's pages, while the other is copied. */
static ob_status send(vk_dev *d, const packing *p, const vk_mem *mem, uint64_t off, ob_err *err)
{
    enum { SLICE_BYTES = 256 << 10 };
    ob_pool *pool = p->n * p->item_bytes > SLICE_BYTES ? vk_pool(d) : NULL;
    const double t0 = ob_now_ms();
    for (uint64_t at = 0, n; at < p->n; at += n) {
        uint64_t room = (p->n - at) * p->item_bytes;
        slice s = {.p = p, .pool = pool, .first = at, .grain = OB_MAX(SLICE_BYTES / p->item_bytes, (uint64_t)1)};
        OB_TRY(vk_stage_begin(d, mem, off + at * p->item_bytes, &room, &s.dst, err));
        n = s.n = room / p->item_bytes;
        if (pool) ob_pool_run(pool, fill_slice, &s);
        else p->fill(p, s.dst, at, n, 0);
        OB_TRY(vk_stage_send(d, mem, off + at * p->item_bytes, n * p->item_bytes, err));
    }
    d->load.pack_ms += ob_now_ms() - t0;
    d->load.pack_bytes += p->n * p->item_bytes;
    return OB_OK;
}

static ob_status send_array(vk_dev *d, const ob_weight *desc, const ob_dev_weight *w, enum array a, uint64_t off,
                            uint64_t unit8, ob_err *err)
{
    const bool k6 = w->type == OB_Q6_K;
    const uint64_t n_units = (uint64_t)(w->nu * desc->ne[1]);
    const packing p = {.desc = desc, .type = w->type, .array = a, .fill = fill_array, .n = k6 ? n_units / 8 : n_units,
                       .item_bytes = k6 ? unit8 : unit8 / 8};
    return send(d, &p, &w->mem, off, err);
}

/* Rows of desc to the rows of the weight from row0 on. */
static ob_status send_floats(vk_dev *d, const ob_weight *desc, const ob_dev_weight *w, uint64_t row0, ob_err *err)
{
    packing p = {.desc = desc, .type = w->type, .fill = fill_floats, .n = (uint64_t)desc->ne[1],
                 .item_bytes = (uint64_t)w->nu * UNIT * (w->type == OB_F32 ? 4 : 2)};
    if (p.item_bytes > d->stage_bytes)
        return ob_err_set(err, OB_E_LIMIT, "rows of %lld are too long", (long long)desc->ne[0]);
    if (w->type != desc->type) {
        ob_pool *pool = vk_pool(d);
        const size_t n_threads = pool ? (size_t)ob_pool_n_threads(pool) : 1;
        p.scratch = ob_reallocarray(NULL, n_threads * (size_t)desc->ne[0], sizeof *p.scratch);
        if (!p.scratch) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to unpack a row");
    }
    const ob_status s = send(d, &p, &w->mem, row0 * p.item_bytes, err);
    ob_free(p.scratch);
    return s;
}

/* How a matrix is stored here. */
ob_type vk_stored_type(const vk_dev *d, const ob_weight *desc)
{
    if (desc->ne[0] % UNIT != 0 && desc->use != OB_USE_EMBED)
        return OB_F32; /* for linear_any.comp */
    return layout_of(desc->type).w ? desc->type : d->exact ? OB_F32 : OB_F16;
}

/* Bytes of the four arrays of a matrix: size[0..4), one after the other at multiples of 256; returns all of them. */
static uint64_t matrix_sizes(ob_type type, int64_t cols, int64_t rows, uint64_t size[4])
{
    const layout l = layout_of(type);
    const uint64_t n8 = (uint64_t)ob_div_up(ob_div_up(cols, UNIT) * rows, 8); /* groups of eight units */
    uint64_t all = 0;
    size[0] = n8 * 8 * (uint64_t)l.w;
    size[1] = n8 * 8 * (uint64_t)l.s;
    size[2] = n8 * 8 * (uint64_t)l.h;
    size[3] = n8 * (uint64_t)l.z8;
    for (int i = 0; i < 4; i++) all = ob_align_up(all + size[i], 256);
    return all;
}

uint64_t vk_weight_bytes(const ob_dev *dev, const ob_weight *desc)
{
    const vk_dev *d = (const vk_dev *)dev;
    uint64_t size[4];
    if (desc->use == OB_USE_TABLE) return desc->n_bytes;
    if (desc->use == OB_USE_VECTOR) return (uint64_t)(desc->ne[0] * desc->ne[1] * desc->ne[2] * desc->ne[3]) * 4;
    return matrix_sizes(vk_stored_type(d, desc), desc->ne[0], desc->ne[1] * OB_MAX(desc->ne[2], 1), size);
}

/* The rows of desc to the rows of the weight from row0 on. A row of Q6_K is whole super-blocks, so whole bytes of every
 * array. */
static ob_status send_rows(vk_dev *d, const ob_weight *desc, const ob_dev_weight *w, uint64_t row0, ob_err *err)
{
    const layout l = layout_of(w->type);
    const uint64_t row = ob_type_row_bytes(desc->type, desc->ne[0]), u0 = row0 * (uint64_t)w->nu;
    const uint64_t base = w->mem.addr;
    if (is_float(w->type)) return send_floats(d, desc, w, row0, err);
    if (w->type == OB_Q4_K || w->type == OB_Q5_K)
        return send(d, &(packing){.desc = desc, .fill = fill_bytes, .n = row * (uint64_t)desc->ne[1], .item_bytes = 1}, &w->mem,
                    row0 * row, err);
    OB_TRY(send_array(d, desc, w, ARRAY_W, u0 * (uint64_t)l.w, 8 * (uint64_t)l.w, err));
    OB_TRY(send_array(d, desc, w, ARRAY_S, w->s - base + u0 * (uint64_t)l.s, 8 * (uint64_t)l.s, err));
    if (l.h) OB_TRY(send_array(d, desc, w, ARRAY_H, w->h - base + u0 * (uint64_t)l.h, 8 * (uint64_t)l.h, err));
    return l.z8 ? send_array(d, desc, w, ARRAY_Z, w->z - base + u0 / 8 * (uint64_t)l.z8, (uint64_t)l.z8, err) : OB_OK;
}

/* The matrix where it lies, if it is kept as in the file and the driver can use those pages: *done. What a test made
 * is gone sooner than its weight. */
static ob_status use_in_place(vk_dev *d, const ob_weight *desc, ob_dev_weight *w, uint64_t n_bytes, bool *done, ob_err *err)
{
    const bool as_is = w->type == OB_Q4_K || w->type == OB_Q5_K || (is_float(w->type) && w->type == desc->type && desc->ne[0] % UNIT == 0);
    *done = false;
    if (!desc->data || !d->import || d->testing || !as_is) return OB_OK;
    ob_err why;
    const ob_status s = vk_mem_import(d, desc->data, n_bytes, &w->mem, &why);
    if (s == OB_OK) {
        *done = true;
        d->load.import_bytes += n_bytes;
    } else if (s == OB_E_NO_MEMORY || s == OB_E_DEVICE_LOST) {
        return ob_err_set(err, s, "%s", why.text);
    } else if (!d->load.import_refused) {
        d->load.import_refused = true;
        ob_log_debug("vulkan: weights are copied, the driver cannot use the file's pages (%s)", why.text);
    }
    return OB_OK;
}

static ob_status make_matrix(vk_dev *d, const ob_weight *desc, ob_dev_weight *w, bool *keeps_data, ob_err *err)
{
    const size_t row = desc->ne[0] > 0 ? ob_type_row_bytes(desc->type, desc->ne[0]) : 0;
    if (!ob_type_get(desc->type)->dequant || row == 0 || desc->ne[1] < 1 ||
        desc->ne[2] * desc->ne[3] != 1 || (desc->data && desc->n_bytes / row < (uint64_t)desc->ne[1]))
        return ob_err_set(err, OB_E_FORMAT, "shape or size does not fit its type");
    w->type = vk_stored_type(d, desc);
    w->nu = ob_div_up(desc->ne[0], UNIT);
    uint64_t size[4], off[5] = {0};
    (void)matrix_sizes(w->type, desc->ne[0], desc->ne[1], size);
    for (int i = 0; i < 4; i++) {
        off[i + 1] = ob_align_up(off[i] + size[i], 256);
        w->read_bytes += size[i];
    }
    OB_TRY(use_in_place(d, desc, w, row * (uint64_t)desc->ne[1], keeps_data, err));
    if (*keeps_data) {
        w->w = w->mem.addr;
        return OB_OK;
    }
    OB_TRY(vk_mem_new(d, VK_MEM_DEVICE, off[4], &w->mem, err));
    w->w = w->mem.addr;
    w->s = w->mem.addr + off[1];
    w->h = w->mem.addr + off[2];
    w->z = w->mem.addr + off[3];
    return desc->data ? send_rows(d, desc, w, 0, err) : OB_OK;
}

static ob_status make_vector(vk_dev *d, const ob_weight *desc, ob_dev_weight *w, ob_err *err)
{
    const int64_t n = desc->ne[0] * desc->ne[1] * desc->ne[2] * desc->ne[3];
    const size_t n_bytes = n > 0 ? ob_type_row_bytes(desc->type, n) : 0;
    if (!ob_type_get(desc->type)->dequant || n_bytes == 0 || desc->n_bytes < n_bytes)
        return ob_err_set(err, OB_E_FORMAT, "shape or size does not fit its type");
    w->vec = ob_reallocarray(NULL, (size_t)n, sizeof *w->vec);
    if (!w->vec) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a vector");
    ob_type_get(desc->type)->dequant(desc->data, w->vec, n);
    w->type = OB_F32;
    OB_TRY(vk_mem_new(d, VK_MEM_DEVICE, (uint64_t)n * 4, &w->mem, err));
    w->w = w->mem.addr;
    return vk_upload(d, &w->mem, 0, w->vec, (uint64_t)n * 4, err);
}

/* Whole numbers, as they are. */
static ob_status make_table(vk_dev *d, const ob_weight *desc, ob_dev_weight *w, ob_err *err)
{
    if (desc->type != OB_I32)
        return ob_err_set(err, OB_E_UNSUPPORTED, "the vulkan device has no kernels for this tensor's use yet");
    w->type = desc->type;
    OB_TRY(vk_mem_new(d, VK_MEM_DEVICE, desc->n_bytes, &w->mem, err));
    w->w = w->mem.addr;
    return vk_upload(d, &w->mem, 0, desc->data, desc->n_bytes, err);
}

ob_status vk_weight_new(ob_dev *dev, const ob_weight *desc, ob_dev_weight **out, bool *keeps_data,
                        ob_err *err)
{
    vk_dev *d = vk_of(dev);
    ob_status s = OB_OK;
    *out = NULL;
    *keeps_data = false;
    ob_dev_weight *w = ob_calloc(1, sizeof *w);
    if (!w) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a weight");
    w->desc = *desc;
    w->desc.name = NULL;
    w->desc.data = NULL;
    if (desc->use == OB_USE_VECTOR) {
        OB_GOTO(make_vector(d, desc, w, err));
    } else if (desc->use == OB_USE_TABLE) {
        OB_GOTO(make_table(d, desc, w, err));
    } else {
        /* The matrices of experts, and of heads, one below the other. */
        ob_weight flat = *desc;
        if (desc->use == OB_USE_EXPERTS && desc->ne[1] > 0 && desc->ne[2] > 0 && desc->ne[1] <= INT32_MAX / desc->ne[2]) {
            flat.ne[1] *= flat.ne[2];
            flat.ne[2] = 1;
        }
        OB_GOTO(make_matrix(d, &flat, w, keeps_data, err));
        if (desc->use != OB_USE_EMBED) OB_GOTO(vk_test_type(d, w->type, err));
        if (desc->hadamard) OB_GOTO(vk_test_rotated(d, err));
        if (desc->use == OB_USE_EXPERTS && !d->testing) OB_GOTO(vk_test_experts(d, w->type, err));
    }
out:
    if (s != OB_OK)
        vk_weight_free(dev, w);
    else
        *out = w;
    return s;
}

ob_status vk_weight_write(ob_dev *dev, ob_dev_weight *w, int64_t expert, const void *data, ob_err *err)
{
    ob_weight one = w->desc;
    if (one.use != OB_USE_EXPERTS || expert < 0 || expert >= one.ne[2])
        return ob_err_set(err, OB_E_INVALID, "expert %lld of %lld", (long long)expert, (long long)one.ne[2]);
    one.ne[2] = 1;
    one.data = data;
    return send_rows(vk_of(dev), &one, w, (uint64_t)(expert * one.ne[1]), err);
}

void vk_weight_free(ob_dev *dev, ob_dev_weight *w)
{
    if (!w) return;
    vk_mem_free(vk_of(dev), &w->mem);
    ob_free(w->vec);
    ob_free(w);
}
