/* dev/cpu/kern_tmpl.h: row-wise kernels over the vector type that was included before.
 *
 * Included by one .c file per level, which then names its table KERNELS. No include guard.
 */

/* e^x, about 1 ulp; 0 below -87.3 (no denormals, which are slow), 2.4e38 above 88.3, NaN stays.
 * x = n ln 2 + r, |r| <= ln 2 / 2, and a polynomial of degree 6 for e^r (minimax of the relative error,
 * fitted for this file: 3e-9). */
static inline vf vf_exp(vf x)
{
    const vf least = vf_set1(-87.33f);
    const vf y = vf_min(vf_set1(88.37f), vf_max(least, x));
    const vf n = vf_round(vf_set1(1.44269504f) * y);
    vf r = vf_fma(n, vf_set1(-0.693359375f), y); /* ln 2 in two parts, the first exact in n * it */
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(0.0013814539415761828f);
    p = vf_fma(p, r, vf_set1(0.00836874544620514f));
    p = vf_fma(p, r, vf_set1(0.04166838899254799f));
    p = vf_fma(p, r, vf_set1(0.1666652113199234f));
    p = vf_fma(p, r, vf_set1(0.4999999403953552f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_zero_below(x, least, vf_ldexp(p, n));
}

static inline vf vf_sigmoid(vf x) { return vf_set1(1.0f) / (vf_set1(1.0f) + vf_exp(vf_set1(0.0f) - x)); }

/* tanh x = 2 sigmoid(2x) - 1: absolute error about 1e-7, which is what a soft cap needs. */
static inline vf vf_tanh(vf x)
{
    return vf_fma(vf_set1(2.0f), vf_sigmoid(x + x), vf_set1(-1.0f));
}

/* Run a block for i over n columns in steps of VW; in it LD(p) and ST(p, v) are whole, and in the last,
 * partial step masked. */
#define FOR_COLUMNS(n, ...)                                                                       \
    do {                                                                                          \
        int64_t i = 0;                                                                            \
        for (; i + VW <= (n); i += VW) {                                                          \
            enum { part = 0 };                                                                    \
            const int left = VW;                                                                  \
            (void)left;                                                                           \
            __VA_ARGS__                                                                           \
        }                                                                                         \
        if (i < (n)) {                                                                            \
            enum { part = 1 };                                                                    \
            const int left = (int)((n) - i);                                                      \
            __VA_ARGS__                                                                           \
        }                                                                                         \
    } while (0)
#define LD(p) (part ? vf_load_n((p) + i, left) : vf_load((p) + i))
#define ST(p, v)                                                                                  \
    do {                                                                                          \
        if (part) vf_store_n((p) + i, v, left);                                                   \
        else vf_store((p) + i, v);                                                                \
    } while (0)

static void k_scaled_copy(const float *x, vf mean, vf r, const float *w, const float *b, float *y, int64_t n)
{
    FOR_COLUMNS(n, {
        vf v = (LD(x) - mean) * r;
        if (w) v = v * LD(w);
        if (b) v = v + LD(b);
        ST(y, v);
    });
}

static float sum_squares(const float *x, float mean, int64_t n)
{
    /* Four chains, so that the adds do not wait for each other. */
    vf acc[4] = {vf_set1(0), vf_set1(0), vf_set1(0), vf_set1(0)};
    const vf m = vf_set1(mean);
    int64_t i = 0;
    for (; i + 4 * VW <= n; i += 4 * VW)
        for (int j = 0; j < 4; j++) {
            const vf v = vf_load(x + i + j * VW) - m;
            acc[j] = vf_fma(v, v, acc[j]);
        }
    for (; i + VW <= n; i += VW) {
        const vf v = vf_load(x + i) - m;
        acc[0] = vf_fma(v, v, acc[0]);
    }
    float s = vf_hsum((acc[0] + acc[1]) + (acc[2] + acc[3]));
    for (; i < n; i++) s += (x[i] - mean) * (x[i] - mean);
    return s;
}

static void k_rms_norm(const float *x, const float *w, float *y, int64_t n, float eps)
{
    const float r = 1.0f / sqrtf(sum_squares(x, 0, n) / (float)n + eps);
    k_scaled_copy(x, vf_set1(0), vf_set1(r), w, NULL, y, n);
}

static void k_layer_norm(const float *x, const float *w, const float *b, float *y, int64_t n, float eps)
{
    vf acc = vf_set1(0);
    FOR_COLUMNS(n, { acc = acc + LD(x); });
    const float mean = vf_hsum(acc) / (float)n;
    const float r = 1.0f / sqrtf(sum_squares(x, mean, n) / (float)n + eps);
    k_scaled_copy(x, vf_set1(mean), vf_set1(r), w, b, y, n);
}

static void k_rope(const ob_rope_params *p, const float *cs, int32_t n_head, const float *x, float *y)
{
    const int32_t half = p->n_rot / 2;
    for (int32_t h = 0; h < n_head; h++, x += p->head_dim, y += p->head_dim) {
        if (x != y && p->n_rot < p->head_dim) memcpy(y, x, (size_t)p->head_dim * sizeof *y);
        if (p->pairing == OB_ROPE_NEOX) {
            const float *xa = x + p->rot_off, *xb = xa + half, *c = cs, *s = cs + half;
            float *ya = y + p->rot_off, *yb = ya + half;
            FOR_COLUMNS(half, {
                const vf a = LD(xa), b = LD(xb), vc = LD(c), vs = LD(s);
                ST(ya, a * vc - b * vs);
                ST(yb, a * vs + b * vc);
            });
        } else {
            const float *xr = x + p->rot_off, *c = cs, *s = cs + p->n_rot;
            float *yr = y + p->rot_off;
            FOR_COLUMNS(p->n_rot, {
                const vf v = LD(xr);
                ST(yr, v * LD(c) + vf_swap_pairs(v) * LD(s));
            });
        }
    }
}

static inline vf activate(ob_act act, vf x)
{
    switch (act) {
    case OB_ACT_SILU: return x * vf_sigmoid(x);
    case OB_ACT_GELU_TANH: {
        /* 0.5 (1 + tanh u) = sigmoid(2u) */
        const vf u = vf_set1(1.5957691216f) * vf_fma(vf_set1(0.044715f) * x * x, x, x);
        return x * vf_sigmoid(u);
    }
    case OB_ACT_RELU: return vf_max(vf_set1(0), x);
    case OB_ACT_SIGMOID: return vf_sigmoid(x);
    default: return x;
    }
}

static inline void glu_loop(ob_act act, float clamp, const float *gate, const float *up, float *y, int64_t n)
{
    FOR_COLUMNS(n, {
        vf g = LD(gate);
        vf u = LD(up);
        if (clamp > 0) {
            g = vf_min(vf_set1(clamp), g);
            u = vf_max(vf_set1(-clamp), vf_min(vf_set1(clamp), u));
        }
        ST(y, activate(act, g) * u);
    });
}

static void k_glu(ob_act act, float clamp, const float *gate, const float *up, float *y, int64_t n)
{
    /* A constant `act` in each call: the switch stays outside the loop. */
    switch (act) {
    case OB_ACT_SILU: glu_loop(OB_ACT_SILU, clamp, gate, up, y, n); break;
    case OB_ACT_GELU_TANH: glu_loop(OB_ACT_GELU_TANH, clamp, gate, up, y, n); break;
    case OB_ACT_RELU: glu_loop(OB_ACT_RELU, clamp, gate, up, y, n); break;
    case OB_ACT_SIGMOID: glu_loop(OB_ACT_SIGMOID, clamp, gate, up, y, n); break;
    case OB_ACT_GELU_ERF:
        /* Scalar: only encoders use it. */
        for (int64_t i = 0; i < n; i++) {
            const float g = clamp > 0 && gate[i] > clamp ? clamp : gate[i];
            const float u = clamp > 0 ? fmaxf(-clamp, fminf(up[i], clamp)) : up[i];
            y[i] = 0.5f * g * (1.0f + erff(g * 0.70710678118654752f)) * u;
        }
        break;
    default: glu_loop(OB_ACT_NONE, clamp, gate, up, y, n); break;
    }
}

static void k_add(const float *x, const float *x2, float scale, float *y, int64_t n)
{
    const vf s = vf_set1(scale);
    FOR_COLUMNS(n, { ST(y, vf_fma(s, LD(x2), LD(x))); });
}

static void k_scale(const float *x, float scale, float softcap, float *y, int64_t n)
{
    const vf s = vf_set1(scale);
    if (softcap > 0) {
        const vf cap = vf_set1(softcap);
        FOR_COLUMNS(n, { ST(y, cap * vf_tanh(s * LD(x) / cap)); });
    } else {
        FOR_COLUMNS(n, { ST(y, s * LD(x)); });
    }
}

static void k_to_f16(const float *x, uint16_t *y, int64_t n)
{
    int64_t i = 0;
    for (; i + VW <= n; i += VW) vf_store_f16(y + i, vf_load(x + i));
    if (i < n) vf_store_f16_n(y + i, vf_load_n(x + i, (int)(n - i)), (int)(n - i));
}

#include "dev/cpu/attn_tmpl.h"

const ob_cpu_kernels KERNELS = {
    .rms_norm = k_rms_norm,
    .layer_norm = k_layer_norm,
    .rope = k_rope,
    .glu = k_glu,
    .add = k_add,
    .scale = k_scale,
    .to_f16 = k_to_f16,
    .attn_tile = k_attn_tile,
    .attn_merge = k_attn_merge,
};
