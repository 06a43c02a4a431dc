/* Vector operations of the software array's STEP design: everything of a decoding step that is no product. */
#include <math.h>
#include <string.h>

#include "base/math.h"
#include "dev/npu/npu_array_int.h"
#include "ops/ref.h"

/* The core's parameters, and what it works on. */
typedef struct vec { const uint32_t *p; const float *x; float *y; uint32_t n_in, n_out; } vec;

static float as_float(uint32_t w)
{
    float f;
    memcpy(&f, &w, sizeof f);
    return f;
}

/* ---- rows ------------------------------------------------------------------------------------- */

static bool norm(const vec *v)
{
    const uint32_t n = v->n_out, group = v->p[0];
    const float *gain = v->n_in == n + group ? v->x + n : NULL;
    if (!group || n % group || (!gain && v->n_in != n)) return false;
    for (uint32_t g = 0; g < n; g += group) {
        double sum = 0;
        for (uint32_t i = g; i < g + group; i++) sum += (double)v->x[i] * (double)v->x[i];
        const float inv = (float)(1.0 / sqrt(sum / group + (double)as_float(v->p[1])));
        for (uint32_t i = g; i < g + group; i++) v->y[i] = v->x[i] * inv * (gain ? gain[i - g] : 1);
    }
    return true;
}

static bool rope(const vec *v)
{
    const uint32_t dim = v->p[0] & 0xffff, half = (v->p[0] >> 16) / 2, off = v->p[1] & 0xffff;
    const bool pairs = v->p[1] >> 16 == OB_ROPE_NORM;
    const float *table = v->x + v->n_out;
    if (!dim || v->n_out % dim || v->n_in != v->n_out + dim || off + 2 * half > dim) return false;
    memcpy(v->y, v->x, v->n_out * sizeof *v->y);
    for (uint32_t h = 0; h < v->n_out; h += dim)
        for (uint32_t i = 0; i < half; i++) {
            const uint32_t a = off + (pairs ? 2 * i : i), b = pairs ? a + 1 : a + half;
            const float xa = v->x[h + a], xb = v->x[h + b], c = table[a], s = table[b];
            v->y[h + a] = xa * c - xb * s;
            v->y[h + b] = xa * s + xb * c;
        }
    return true;
}

static bool to_cache(const vec *v)
{
    if (v->p[0] == OB_F32) {
        if (v->n_in != v->n_out) return false;
        memcpy(v->y, v->x, v->n_in * sizeof *v->x);
        return true;
    }
    if (v->p[0] != OB_F16 || v->n_in != 2 * v->n_out) return false;
    for (uint32_t i = 0; i < v->n_in; i++) ((uint16_t *)(void *)v->y)[i] = ob_f32_to_f16(v->x[i]);
    return true;
}

static bool to_bf16(const vec *v)
{
    if (v->n_in > 2 * v->n_out) return false;
    memset(v->y, 0, v->n_out * sizeof *v->y);
    for (uint32_t i = 0; i < v->n_in; i++) ((uint16_t *)(void *)v->y)[i] = ob_f32_to_bf16(v->x[i]);
    return true;
}

static bool glu(const vec *v)
{
    const uint32_t n = v->n_out;
    const float lim = as_float(v->p[1]);
    if (v->n_in != 2 * n) return false;
    for (uint32_t i = 0; i < n; i++) {
        float g = v->x[i], u = v->x[n + i];
        if (lim > 0) {
            g = OB_MIN(g, lim);
            u = OB_MAX(-lim, OB_MIN(u, lim));
        }
        v->y[i] = ob_ref_act((ob_act)v->p[0], g) * u;
    }
    return true;
}

static bool one_to_one(const vec *v, uint32_t op)
{
    const float scale = as_float(v->p[0]), cap = as_float(v->p[1]);
    if (v->n_in != v->n_out) return false;
    for (uint32_t i = 0; i < v->n_out; i++) {
        if (op == OB_VEC_ACT) {
            v->y[i] = ob_ref_act((ob_act)v->p[0], v->x[i]);
            continue;
        }
        const float y = v->x[i] * scale;
        v->y[i] = cap > 0 ? cap * tanhf(y / cap) : y;
    }
    return true;
}

static bool sum(const vec *v, uint32_t op)
{
    const uint32_t n = v->n_out;
    const float scale = as_float(v->p[0]);
    if (op == OB_VEC_ADD) {
        if (v->n_in != 2 * n) return false;
        for (uint32_t i = 0; i < n; i++) v->y[i] = v->x[i] + scale * v->x[n + i];
        return true;
    }
    const float *bias = v->p[1] & 1 ? v->x + n : NULL, *res = v->p[1] & 2 ? v->x + (bias ? 2 : 1) * n : NULL;
    if (v->n_in != n * (1u + (bias != NULL) + (res != NULL))) return false;
    for (uint32_t i = 0; i < n; i++) {
        const float y = (v->x[i] + (bias ? bias[i] : 0)) * scale;
        v->y[i] = res ? res[i] + y : y;
    }
    return true;
}

static bool gate(const vec *v)
{
    const uint32_t n = v->n_out, m = v->p[0];
    const float *g = v->x + n, *res = v->p[1] & 2 ? v->x + n + m : NULL;
    if ((m != 1 && m != n) || v->n_in != n + m + (res ? n : 0)) return false;
    for (uint32_t i = 0; i < n; i++) {
        const float y = v->x[i] * ob_ref_act(OB_ACT_SIGMOID, g[m == 1 ? 0 : i]);
        v->y[i] = res ? res[i] + y : y;
    }
    return true;
}

/* ---- attention, page by page ------------------------------------------------------------------- */

static bool attn_begin(array *a, const vec *v)
{
    const uint32_t n_head = v->p[0] & 0xffff, n_kv = v->p[0] >> 16, k_dim = v->p[1] & 0xffff, v_dim = v->p[1] >> 16;
    if (!n_kv || !n_head || n_head % n_kv || n_head > OB_NPU_VEC_HEADS || n_head * k_dim > OB_NPU_VEC_HEAD_FLOATS ||
        n_head * v_dim > OB_NPU_VEC_HEAD_FLOATS || v->n_in != n_head * k_dim || v->n_out != 1)
        return false;
    a->attn.n_head = n_head, a->attn.n_head_kv = n_kv, a->attn.k_dim = k_dim, a->attn.v_dim = v_dim;
    a->attn.page_tok = v->p[2] & 0xffff, a->attn.k_type = v->p[2] >> 16 & 0xff, a->attn.v_type = v->p[2] >> 24;
    a->attn.scale = as_float(v->p[3]), a->attn.softcap = as_float(v->p[4]);
    a->attn.n_seen = 0;
    memcpy(a->attn.q, v->x, v->n_in * sizeof *v->x);
    memset(a->attn.acc, 0, sizeof a->attn.acc);
    for (uint32_t h = 0; h < n_head; h++) a->attn.max[h] = -INFINITY, a->attn.sum[h] = 0;
    v->y[0] = 0;
    return true;
}

static uint32_t type_bytes(uint32_t type) { return type == OB_F32 ? 4 : type == OB_F16 ? 2 : 0; }

static float element(const uint8_t *p, uint32_t type, uint32_t i)
{
    uint16_t h;
    float f;
    if (type == OB_F32) return memcpy(&f, p + 4 * (size_t)i, 4), f;
    memcpy(&h, p + 2 * (size_t)i, 2);
    return ob_f16_to_f32(h);
}

/* One key and value more: a softmax that is corrected when a larger score comes. */
static void attend(array *a, uint32_t h, const uint8_t *k, const uint8_t *val)
{
    const uint32_t k_dim = a->attn.k_dim, v_dim = a->attn.v_dim;
    double dot = 0;
    for (uint32_t d = 0; d < k_dim; d++) dot += (double)a->attn.q[h * k_dim + d] * (double)element(k, a->attn.k_type, d);
    float s = (float)dot * a->attn.scale, *acc = a->attn.acc + h * v_dim;
    if (a->attn.softcap > 0) s = a->attn.softcap * tanhf(s / a->attn.softcap);
    if (s > a->attn.max[h]) {
        const float shrink = a->attn.max[h] > -INFINITY ? expf(a->attn.max[h] - s) : 0;
        for (uint32_t d = 0; d < v_dim; d++) acc[d] *= shrink;
        a->attn.sum[h] *= shrink;
        a->attn.max[h] = s;
    }
    const float p = expf(s - a->attn.max[h]);
    a->attn.sum[h] += p;
    for (uint32_t d = 0; d < v_dim; d++) acc[d] += p * element(val, a->attn.v_type, d);
}

static bool attn_page(array *a, const vec *v)
{
    const uint32_t tok = a->attn.page_tok, k_row = a->attn.k_dim * type_bytes(a->attn.k_type), v_row = a->attn.v_dim * type_bytes(a->attn.v_type);
    const uint64_t k_bytes = (uint64_t)a->attn.n_head_kv * tok * k_row, v_bytes = (uint64_t)a->attn.n_head_kv * tok * v_row;
    if (!a->attn.n_head || !k_row || !v_row || k_bytes + v_bytes != 4ull * v->n_in || v->p[1] > tok || v->n_out != 1) return false;
    const uint8_t *keys = (const uint8_t *)v->x, *values = keys + k_bytes;
    for (uint32_t h = 0; h < a->attn.n_head; h++) {
        const uint32_t kv = h / (a->attn.n_head / a->attn.n_head_kv);
        for (uint32_t t = v->p[0]; t < v->p[1]; t++)
            attend(a, h, keys + (size_t)(kv * tok + t) * k_row, values + (size_t)(kv * tok + t) * v_row);
    }
    a->attn.n_seen += v->p[1] > v->p[0] ? v->p[1] - v->p[0] : 0;
    v->y[0] = (float)a->attn.n_seen;
    return true;
}

static bool attn_end(array *a, const vec *v)
{
    if (!a->attn.n_head || v->n_out != a->attn.n_head * a->attn.v_dim) return false;
    for (uint32_t i = 0; i < v->n_out; i++) {
        const float s = a->attn.sum[i / a->attn.v_dim];
        v->y[i] = s > 0 ? a->attn.acc[i] / s : 0;
    }
    a->attn.n_head = 0;
    return true;
}

/* ---- one operation ---------------------------------------------------------------------------- */

static bool compute(array *a, uint32_t op, const vec *v)
{
    switch (op) {
    case OB_VEC_NORM: return norm(v);
    case OB_VEC_ROPE: return rope(v);
    case OB_VEC_CACHE: return to_cache(v);
    case OB_VEC_BF16: return to_bf16(v);
    case OB_VEC_ATTN_BEGIN: return attn_begin(a, v);
    case OB_VEC_ATTN_PAGE: return attn_page(a, v);
    case OB_VEC_ATTN_END: return attn_end(a, v);
    case OB_VEC_GLU: return glu(v);
    case OB_VEC_GATE: return gate(v);
    case OB_VEC_ACT: case OB_VEC_SCALE: return one_to_one(v, op);
    case OB_VEC_ADD: case OB_VEC_SUM: return sum(v, op);
    default: return false;
    }
}

ob_npu_soft_end ob_npu_vector_step(array *a, bool *progress)
{
    const uint32_t *rtp = a->rtp[0][0], n_in = rtp[0], n_out = rtp[1];
    channel *in = &a->ch[0][OB_MM2S][0], *out = &a->ch[0][OB_S2MM][0];
    if (!n_in || !n_out || n_in > OB_NPU_VEC_WORDS || n_out > OB_NPU_VEC_WORDS)
        return ob_npu_array_fault(a, "vector operation %u of %u words to %u", rtp[2], n_in, n_out);
    if (ob_npu_channel_left(a, in, 4ull * n_in) < 4ull * n_in || ob_npu_channel_left(a, out, 4ull * n_out) < 4ull * n_out) return OB_NPU_RUN_DONE;
    const uint8_t *p;
    ob_npu_soft_end end = ob_npu_channel_read(a, in, 4ull * n_in, (uint8_t *)a->vec_in, &p);
    if (end != OB_NPU_RUN_DONE) return end;
    if (p != (uint8_t *)a->vec_in) memcpy(a->vec_in, p, 4ull * n_in); /* the result may lie over it */
    const vec v = {rtp + 3, (const float *)(const void *)a->vec_in, (float *)(void *)a->vec_out, n_in, n_out};
    if (!compute(a, rtp[2], &v)) return ob_npu_array_fault(a, "vector operation %u does not fit %u words to %u", rtp[2], n_in, n_out);
    a->lock[0][0] = 0;
    *progress = true;
    return ob_npu_channel_write(a, out, 4ull * n_out, a->vec_out);
}
