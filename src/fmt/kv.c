/* Typed access to metadata values: unaligned little-endian bytes, converted when the value fits. */
#include "fmt/fmt_int.h"

#include <string.h>

/* The host is little-endian (span.h copies bytes as they are), so loads are plain copies. */
#define LOAD(type, kv, i)                                                                         \
    type v;                                                                                       \
    memcpy(&v, (kv)->data + (i) * sizeof v, sizeof v)

static bool in_range(const ob_kv *kv, uint64_t i) { return kv && i < kv->n; }

static bool get_i64(const ob_kv *kv, uint64_t i, int64_t *out)
{
    switch (kv->elem_type) {
    case OB_KV_U8: *out = kv->data[i]; return true;
    case OB_KV_I8: *out = (int8_t)kv->data[i]; return true;
    case OB_KV_U16: { LOAD(uint16_t, kv, i); *out = v; return true; }
    case OB_KV_I16: { LOAD(int16_t, kv, i); *out = v; return true; }
    case OB_KV_U32: { LOAD(uint32_t, kv, i); *out = v; return true; }
    case OB_KV_I32: { LOAD(int32_t, kv, i); *out = v; return true; }
    case OB_KV_I64: { LOAD(int64_t, kv, i); *out = v; return true; }
    case OB_KV_U64: {
        LOAD(uint64_t, kv, i);
        if (v > INT64_MAX) return false;
        *out = (int64_t)v;
        return true;
    }
    default: return false;
    }
}

static bool get_f64(const ob_kv *kv, uint64_t i, double *out)
{
    if (kv->elem_type == OB_KV_F32) {
        LOAD(float, kv, i);
        *out = (double)v;
        return true;
    }
    if (kv->elem_type == OB_KV_F64) {
        LOAD(double, kv, i);
        *out = v;
        return true;
    }
    if (kv->elem_type == OB_KV_U64) {
        LOAD(uint64_t, kv, i);
        *out = (double)v;
        return true;
    }
    int64_t whole;
    if (!get_i64(kv, i, &whole)) return false;
    *out = (double)whole;
    return true;
}

bool ob_kv_elem_i64(const ob_kv *kv, uint64_t i, int64_t *out)
{
    return in_range(kv, i) && get_i64(kv, i, out);
}

bool ob_kv_elem_bool(const ob_kv *kv, uint64_t i, bool *out)
{
    if (!in_range(kv, i) || kv->elem_type != OB_KV_BOOL) return false;
    *out = kv->data[i] != 0;
    return true;
}

bool ob_kv_elem_f64(const ob_kv *kv, uint64_t i, double *out)
{
    return in_range(kv, i) && get_f64(kv, i, out);
}

bool ob_kv_elem_str(const ob_kv *kv, uint64_t i, ob_str *out)
{
    if (!in_range(kv, i) || !kv->strings) return false;
    *out = kv->strings[i];
    return true;
}

bool ob_kv_i64(const ob_kv *kv, int64_t *out)
{
    return kv && kv->type != OB_KV_ARRAY && get_i64(kv, 0, out);
}

bool ob_kv_f64(const ob_kv *kv, double *out)
{
    return kv && kv->type != OB_KV_ARRAY && get_f64(kv, 0, out);
}

bool ob_kv_bool(const ob_kv *kv, bool *out)
{
    if (!kv || kv->type != OB_KV_BOOL) return false;
    *out = kv->data[0] != 0;
    return true;
}

bool ob_kv_str(const ob_kv *kv, ob_str *out)
{
    return kv && kv->type == OB_KV_STRING && ob_kv_elem_str(kv, 0, out);
}
