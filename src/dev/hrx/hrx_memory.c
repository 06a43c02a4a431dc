/* Buffers and weights: memory of the device, transfers in order with its work. */
#include "dev/hrx/hrx_int.h"

#include <string.h>

#include "base/alloc.h"

/* ---- memory ---------------------------------------------------------------------------------- */

ob_status hx_alloc(hx_dev *d, uint64_t n_bytes, hx_object *out, ob_err *err)
{
    /* local to the device, every access, transfers and storage */
    const hx_buffer_params p = {.type = 0x30, .access = 7, .usage = 0xC03, .affinity = ~UINT64_C(0)};
    *out = NULL;
    return hx_check(d->lib, d->lib->allocator_allocate_buffer(d->allocator, p, OB_MAX(n_bytes, UINT64_C(256)), out),
                    "allocating memory", err);
}

ob_status hx_quiet(hx_dev *d, ob_err *err)
{
    if (!d->pending) return OB_OK;
    d->pending = false;
    const ob_status s = hx_check(d->lib, d->lib->stream_synchronize(d->stream), "waiting", err);
    if (s == OB_E_DEVICE_LOST || s == OB_E_DEVICE) d->lost = true;
    return s == OB_E_DEVICE ? OB_E_DEVICE_LOST : s; /* a stream that has failed stays so */
}

/* What failed has been or will be told by another call. */
void hx_settle(hx_dev *d)
{
    if (hx_quiet(d, NULL) != OB_OK) d->lost = true;
}

ob_status hx_upload(hx_dev *d, hx_object to, uint64_t off, const void *src, uint64_t n, ob_err *err)
{
    OB_TRY(hx_quiet(d, err));
    return n ? hx_check(d->lib, d->lib->synchronous_h2d(d->device, src, to, off, n), "uploading", err) : OB_OK;
}

static ob_status fill(hx_dev *d, hx_object to, uint64_t off, uint64_t n, ob_err *err)
{
    const uint8_t zero = 0;
    if (!n) return OB_OK;
    OB_TRY(hx_check(d->lib, d->lib->stream_fill_buffer(d->stream, to, off, n, &zero, 1), "clearing memory", err));
    d->pending = true;
    return hx_check(d->lib, d->lib->stream_flush(d->stream), "clearing memory", err);
}

/* ---- buffers --------------------------------------------------------------------------------- */

static ob_status check_range(const ob_dev_buf *b, uint64_t off, uint64_t n, ob_err *err)
{
    if (off <= b->n_bytes && n <= b->n_bytes - off) return OB_OK;
    return ob_err_set(err, OB_E_INVALID, "bytes %llu..+%llu are outside a buffer of %llu", (unsigned long long)off,
                      (unsigned long long)n, (unsigned long long)b->n_bytes);
}

ob_status hx_buffer_new(ob_dev *dev, uint64_t n, unsigned flags, ob_dev_buf **out, ob_err *err)
{
    hx_dev *d = hx_of(dev);
    ob_status s = OB_OK;
    *out = NULL;
    ob_dev_buf *b = ob_calloc(1, sizeof *b);
    if (!b) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a buffer");
    b->n_bytes = n;
    OB_GOTO(hx_alloc(d, n, &b->mem, err));
    if (flags & OB_BUF_ZERO) OB_GOTO(fill(d, b->mem, 0, n, err));
    *out = b;
out:
    if (s != OB_OK) hx_buffer_free(dev, b);
    return s;
}

void hx_buffer_free(ob_dev *dev, ob_dev_buf *b)
{
    if (!b) return;
    hx_settle(hx_of(dev));
    if (b->mem) hx_of(dev)->lib->buffer_release(b->mem);
    ob_free(b);
}

ob_status hx_buffer_write(ob_dev *dev, ob_dev_buf *b, uint64_t off, const void *src, uint64_t n, ob_err *err)
{
    OB_TRY(check_range(b, off, n, err));
    return hx_upload(hx_of(dev), b->mem, off, src, n, err);
}

ob_status hx_buffer_read(ob_dev *dev, ob_dev_buf *b, uint64_t off, void *dst, uint64_t n, ob_err *err)
{
    hx_dev *d = hx_of(dev);
    OB_TRY(check_range(b, off, n, err));
    OB_TRY(hx_quiet(d, err));
    return n ? hx_check(d->lib, d->lib->synchronous_d2h(d->device, b->mem, off, dst, n), "downloading", err) : OB_OK;
}

ob_status hx_buffer_copy(ob_dev *dev, ob_dev_buf *dst, uint64_t dst_off, ob_dev_buf *src, uint64_t src_off, uint64_t n,
                         ob_err *err)
{
    hx_dev *d = hx_of(dev);
    OB_TRY(check_range(dst, dst_off, n, err));
    OB_TRY(check_range(src, src_off, n, err));
    if (!n) return OB_OK;
    OB_TRY(hx_check(d->lib, d->lib->stream_copy_buffer(d->stream, src->mem, src_off, dst->mem, dst_off, n), "copying", err));
    d->pending = true;
    return hx_check(d->lib, d->lib->stream_flush(d->stream), "copying", err);
}

ob_status hx_buffer_zero(ob_dev *dev, ob_dev_buf *b, uint64_t off, uint64_t n, ob_err *err)
{
    OB_TRY(check_range(b, off, n, err));
    return fill(hx_of(dev), b->mem, off, n, err);
}

/* ---- weights --------------------------------------------------------------------------------- */

const char *hx_type_object(ob_type t)
{
    switch (t) {
    case OB_F32: return "f32";
    case OB_F16: return "f16";
    case OB_BF16: return "bf16";
    case OB_Q4_0: return "q4_0";
    case OB_Q4_1: return "q4_1";
    case OB_Q5_0: return "q5_0";
    case OB_Q5_1: return "q5_1";
    case OB_Q8_0: return "q8_0";
    case OB_Q4_K: return "q4_k";
    case OB_Q5_K: return "q5_k";
    case OB_Q6_K: return "q6_k";
    case OB_IQ4_NL: return "iq4_nl";
    case OB_IQ4_XS: return "iq4_xs";
    case OB_MXFP4: return "mxfp4";
    default: return NULL;
    }
}

ob_type hx_packed_type(const hx_dev *d, const ob_weight *w)
{
    if (w->type == OB_I32) return OB_I32;
    if (w->use == OB_USE_VECTOR || w->use == OB_USE_TABLE) return OB_F32;
    if (hx_type_object(w->type)) return w->type;
    return d->exact ? OB_F32 : OB_F16;
}

/* Rows of a type without kernels as floats; the whole weight at once, because such types are rare. */
static ob_status expand(const ob_weight *w, ob_type to, void **out, ob_err *err)
{
    const ob_type_info *from = ob_type_get(w->type);
    const int64_t rows = w->ne[1] * w->ne[2] * OB_MAX(w->ne[3], (int64_t)1), cols = w->ne[0];
    const size_t from_row = ob_type_row_bytes(w->type, cols), to_row = ob_type_row_bytes(to, cols);
    ob_status s = OB_OK;
    size_t n;
    *out = NULL;
    if (!from->dequant) return ob_err_set(err, OB_E_UNSUPPORTED, "%s: type %s cannot be read here", w->name, from->name);
    float *row = ob_reallocarray(NULL, (size_t)cols, sizeof *row);
    if (!row || !ob_mul_size(to_row, (size_t)rows, &n) || !(*out = ob_malloc(n))) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "%s: no memory to unpack it", w->name);
        goto out;
    }
    for (int64_t r = 0; r < rows; r++) {
        from->dequant((const char *)w->data + (size_t)r * from_row, row, cols);
        char *dst = (char *)*out + (size_t)r * to_row;
        if (to == OB_F32) memcpy(dst, row, to_row);
        else ob_type_get(to)->quant(row, dst, cols, NULL);
    }
out:
    ob_free(row);
    return s;
}

ob_status hx_weight_new(ob_dev *dev, const ob_weight *desc, ob_dev_weight **out, bool *keeps_data, ob_err *err)
{
    hx_dev *d = hx_of(dev);
    ob_status s = OB_OK;
    void *made = NULL;
    *out = NULL;
    *keeps_data = false;
    ob_dev_weight *w = ob_calloc(1, sizeof *w);
    if (!w) return ob_err_set(err, OB_E_NO_MEMORY, "%s: no memory", desc->name);
    w->type = hx_packed_type(d, desc);
    memcpy(w->ne, desc->ne, sizeof w->ne);
    const uint64_t rows = (uint64_t)(desc->ne[1] * desc->ne[2] * OB_MAX(desc->ne[3], (int64_t)1));
    w->n_bytes = rows * ob_type_row_bytes(w->type, desc->ne[0]);
    if (w->type != desc->type) OB_GOTO(expand(desc, w->type, &made, err));
    OB_GOTO(hx_alloc(d, w->n_bytes, &w->mem, err));
    OB_GOTO(hx_upload(d, w->mem, 0, made ? made : desc->data, w->n_bytes, err));
    *out = w;
out:
    ob_free(made);
    if (s != OB_OK) hx_weight_free(dev, w);
    return s;
}

void hx_weight_free(ob_dev *dev, ob_dev_weight *w)
{
    if (!w) return;
    hx_settle(hx_of(dev));
    if (w->mem) hx_of(dev)->lib->buffer_release(w->mem);
    ob_free(w);
}
