/* Matrix products of the CPU device: every weight type, level, odd shapes, against sums in double. */
#include "test.h"

#include <math.h>

#include "base/alloc.h"
#include "base/math.h"
#include "dev/cpu/linear.h"
#include "npz.h"
#include "quant/act4.h"
#include "quant/hadamard.h"

enum { MAX_K = 1536, MAX_N = 80, MAX_M = 100, GUARD = 64 };
static const float CANARY = 12345.678f;

static npz *golden;
static uint64_t rng = 88172645463325252ull;
static uint32_t rnd(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 16);
}
static float rnd_float(void) { return (float)(rnd() % 20001) / 10000.0f - 1.0f; }

/* ---- a weight of any type, made of real blocks ----------------------------------------------------- */

typedef struct weight {
    ob_weight desc;
    uint8_t *bytes;
    float *f32; /* dequantised [n][k] */
} weight;

static const npz_array *raw_of(const ob_type_info *ti)
{
    char name[32];
    snprintf(name, sizeof name, "raw_%s", ti->name);
    const npz_array *a = npz_get(golden, name);
    if (a) return a;
    snprintf(name, sizeof name, "raw_im_%s", ti->name);
    return npz_get(golden, name);
}

static weight weight_make(ob_type t, int64_t k, int64_t n, int64_t n_experts)
{
    const ob_type_info *ti = ob_type_get(t);
    const size_t row = ob_type_row_bytes(t, k), all = row * (size_t)(n * n_experts);
    weight w = {.desc = {.name = ti->name, .type = t, .ne = {k, n, n_experts, 1}, .n_bytes = all,
                         .use = n_experts > 1 ? OB_USE_EXPERTS : OB_USE_LINEAR}};
    w.bytes = malloc(all);
    w.f32 = malloc((size_t)(n * n_experts * k) * sizeof(float));
    w.desc.data = w.bytes;
    const npz_array *raw = raw_of(ti), *src = npz_need(golden, "src", NPZ_F32);
    for (size_t b = 0; b < all / (size_t)ti->block_bytes; b++) {
        uint8_t *to = w.bytes + b * (size_t)ti->block_bytes;
        if (raw) { /* a block of one of the 32 normal rows */
            const size_t per_row = (size_t)raw->shape[1], at = rnd() % (per_row / (size_t)ti->block_bytes);
            memcpy(to, (const uint8_t *)raw->data + (rnd() % 32) * per_row + at * (size_t)ti->block_bytes,
                   (size_t)ti->block_bytes);
        } else if (t == OB_F64) {
            const double v = ((const float *)src->data)[rnd() % 32768];
            memcpy(to, &v, 8);
        } else {
            assert_int_equal(t, OB_F32);
            memcpy(to, (const float *)src->data + rnd() % 32768, 4);
        }
    }
    ti->dequant(w.bytes, w.f32, n * n_experts * k);
    return w;
}
static void weight_free(weight *w)
{
    free(w->bytes);
    free(w->f32);
}

/* ---- running a product ------------------------------------------------------------------------------ */

static bool have_level(ob_cpu_level l)
{
    ob_cpu_level got;
    setenv("OB_CPU", ob_cpu_level_name(l), 1);
    const bool ok = ob_cpu_level_detect(&got, NULL) == OB_OK && got == l;
    unsetenv("OB_CPU");
    return ok;
}

static ob_lin *pack(const weight *w, ob_cpu_level level, bool exact)
{
    ob_lin *l;
    bool keeps;
    ob_err err = {0};
    if (ob_lin_pack(&w->desc, level, exact, &l, &keeps, &err) != OB_OK) fail_msg("%s", err.text);
    assert_false(keeps);
    assert_int_equal(ob_lin_k(l), w->desc.ne[0]);
    assert_int_equal(ob_lin_n(l), w->desc.ne[1]);
    return l;
}

/* y [m][n] (stride n) with the rows split in `parts`; checks that nothing else is written. */
static const uint8_t *coarse_rows; /* what product hands on */
static void product(const ob_lin *l, int64_t expert, const float *x, int64_t ldx, int64_t m, float *y,
                    int parts, const ob_lin_epilogue *ep)
{
    const int64_t n = ob_lin_n(l), ldy = n + 3, gran = ob_lin_n_granule(l), ag = ob_lin_act_granule(l);
    const size_t act_bytes = ob_lin_act_bytes(l, m), tmp_bytes = ob_lin_scratch_bytes(l, m);
    uint8_t *act = ob_aligned_alloc(64, act_bytes + GUARD), *tmp = ob_aligned_alloc(64, tmp_bytes + GUARD);
    const size_t n_out = (size_t)(m * ldy) + GUARD;
    float *out = malloc((n_out + GUARD) * sizeof(float));
    memset(act, 0xA5, act_bytes + GUARD);
    memset(tmp, 0xA5, tmp_bytes + GUARD);
    for (size_t i = 0; i < n_out + GUARD; i++) out[i] = CANARY;
    for (int64_t m0 = 0; m0 < m; m0 += ag) ob_lin_act(l, x, ldx, m, m0, OB_MIN(m0 + ag, m), coarse_rows, act);
    const int64_t n_gran = ob_div_up(n, gran);
    for (int p = parts - 1; p >= 0; p--) /* any order */
        ob_lin_mul(l, expert, act, m, out + GUARD, ldy, n_gran * p / parts * gran,
                   n_gran * (p + 1) / parts * gran, ep, tmp);
    for (int i = 0; i < GUARD; i++) {
        assert_int_equal(act[act_bytes + (size_t)i], 0xA5);
        assert_int_equal(tmp[tmp_bytes + (size_t)i], 0xA5);
        assert_true(out[i] == CANARY);
    }
    for (int64_t i = 0; i < m; i++) {
        memcpy(y + i * n, out + GUARD + i * ldy, (size_t)n * sizeof(float));
        for (int64_t c = n; c < ldy; c++) assert_true(out[GUARD + i * ldy + c] == CANARY);
    }
    for (size_t i = GUARD + (size_t)(m * ldy); i < n_out + GUARD; i++) assert_true(out[i] == CANARY);
    ob_free(act);
    ob_free(tmp);
    free(out);
}

static void make_x(float *x, int64_t m, int64_t k)
{
    for (int64_t i = 0; i < m * k; i++) {
        const float outlier = rnd() % 200 == 0 ? 20.0f : 1.0f;
        x[i] = rnd_float() * outlier * (i / k % 5 == 4 ? 1e-3f : 1.0f);
    }
    for (int64_t i = 0; i < OB_MIN(k, 32); i++) x[i] = 0.0f; /* a block of zeros */
}

/* The documented rounding: one f32 scale per 32 values, max / 127, to nearest even. */
static void round_x(const float *x, double *q, int64_t n)
{
    for (int64_t b = 0; b < n; b += 32) {
        float max = 0.0f;
        for (int i = 0; i < 32; i++) max = fmaxf(max, fabsf(x[b + i]));
        for (int i = 0; i < 32; i++)
            q[b + i] = max > 0.0f ? (double)rintf(x[b + i] * (127.0f / max)) * (double)(max / 127.0f) : 0.0;
    }
}

static bool is_float(ob_type t) { return t == OB_F32 || t == OB_F16 || t == OB_BF16 || t == OB_F64; }

/* Worst of |y - reference| over |w row| |x row| (Euclidean norms). int8: the reference takes rounded x. */
static double worst_error(const weight *w, const float *x, int64_t m, const float *y, bool int8)
{
    const int64_t k = w->desc.ne[0], n = w->desc.ne[1];
    double *xd = malloc((size_t)(m * k) * sizeof(double)), worst = 0;
    for (int64_t i = 0; i < m * k; i++) xd[i] = x[i];
    if (int8)
        for (int64_t i = 0; i < m; i++) round_x(x + i * k, xd + i * k, k);
    for (int64_t i = 0; i < m; i++)
        for (int64_t r = 0; r < n; r++) {
            double s = 0, ww = 0, xx = 0;
            for (int64_t c = 0; c < k; c++) {
                const double a = w->f32[r * k + c], b = xd[i * k + c];
                s += a * b;
                ww += a * a;
                xx += b * b;
            }
            const double e = fabs(s - y[i * n + r]) / (sqrt(ww * xx) + 1e-30);
            assert_false(isnan(e));
            if (e > worst) worst = e;
        }
    free(xd);
    return worst;
}

/* ---- every type ------------------------------------------------------------------------------------ */

static const int ms[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 24, 25, 31, 33, 64, MAX_M};

/* One shape of one type on one level: right; the same for any M and any split. Fills y [MAX_M][n]. */
static void check_shape(const weight *w, ob_cpu_level level, bool exact, const float *x, float *y)
{
    const int64_t k = w->desc.ne[0], n = w->desc.ne[1];
    ob_lin *l = pack(w, level, exact);
    const bool int8 = !exact && !is_float(w->desc.type);
    assert_true((ob_lin_act_kind(l) != 0) == int8);
    float *z = malloc((size_t)(MAX_M * n) * sizeof(float));
    product(l, 0, x, k, MAX_M, y, 1, NULL);
    const double e = worst_error(w, x, OB_MIN(MAX_M, 9), y, int8);
    /* Sums of up to 1,536 f32 products or 48 scaled integer sums; measured 1e-7 to 6e-7. */
    if (!(e < 2e-6)) fail_msg("%s %s k %d n %d: error %g", w->desc.name, ob_cpu_level_name(level), (int)k, (int)n, e);
    for (size_t i = 0; i < OB_COUNT(ms); i++) {
        product(l, 0, x, k, ms[i], z, i % 2 ? 1 : 3, NULL);
        if (memcmp(z, y, (size_t)(ms[i] * n) * sizeof(float)) != 0)
            fail_msg("%s %s k %d n %d: M = %d differs from M = %d", w->desc.name, ob_cpu_level_name(level),
                     (int)k, (int)n, ms[i], MAX_M);
    }
    free(z);
    ob_lin_free(l);
}

static void check_type(ob_type t, int64_t k, int64_t n, bool exact)
{
    weight w = weight_make(t, k, n, 1);
    float *x = malloc((size_t)(MAX_M * k) * sizeof(float));
    float *first = malloc((size_t)(MAX_M * n) * sizeof(float)), *y = malloc((size_t)(MAX_M * n) * sizeof(float));
    make_x(x, MAX_M, k);
    for (int level = OB_CPU_C; level <= OB_CPU_AVX512; level++) {
        if (!have_level((ob_cpu_level)level)) continue;
        check_shape(&w, (ob_cpu_level)level, exact, x, level == OB_CPU_C ? first : y);
        if (level != OB_CPU_C && memcmp(first, y, (size_t)(MAX_M * n) * sizeof(float)) != 0)
            fail_msg("%s k %d n %d: %s differs from c", w.desc.name, (int)k, (int)n,
                     ob_cpu_level_name((ob_cpu_level)level));
    }
    free(x);
    free(y);
    free(first);
    weight_free(&w);
}

static void each_type(bool exact)
{
    static const int64_t sizes[][2] = {{32, 1}, {64, 33}, {576, 17}, {1536, 16}, {256, 80}, {1024, 47}};
    for (uint32_t t = 0; t < OB_TYPE_END; t++) {
        const ob_type_info *ti = ob_type_get(t);
        if (!ti->name || !ti->dequant || (!ti->weight && t != OB_F64)) continue;
        int n_run = 0;
        for (size_t i = 0; i < OB_COUNT(sizes); i++) {
            if (sizes[i][0] % ti->block_elems != 0) continue;
            check_type((ob_type)t, sizes[i][0], sizes[i][1], exact);
            n_run++;
        }
        assert_true(n_run >= 3);
    }
}
static void test_types(void **state)
{
    (void)state;
    each_type(false);
}
static void test_types_exact(void **state)
{
    (void)state;
    each_type(true);
}

/* The largest codes against the largest activations: nothing may saturate or overflow on the way. */
static void test_extremes(void **state)
{
    (void)state;
    enum { K = 256, N = 16, M = 26 };
    static const struct { ob_type type; int n, off[2]; } cases[] = {
        {OB_Q4_0, 1, {0}}, {OB_Q4_1, 2, {0, 2}}, {OB_Q5_0, 1, {0}}, {OB_Q5_1, 2, {0, 2}},
        {OB_Q8_0, 1, {0}}, {OB_Q2_K, 2, {80, 82}}, {OB_Q3_K, 1, {108}}, {OB_Q4_K, 2, {0, 2}},
        {OB_Q5_K, 2, {0, 2}}, {OB_Q6_K, 1, {208}}, {OB_IQ4_NL, 1, {0}}, {OB_IQ4_XS, 1, {0}}};
    static const uint8_t fills[] = {0xff, 0x00, 0x80, 0x7f, 0xf0, 0x0f};
    static float x[M * K], first[M * N], y[M * N], f32[N * K];
    for (int i = 0; i < M * K; i++) x[i] = i / K % 3 == 2 ? (i % 2 ? 1.0f : -1.0f) : i / K % 3 ? -1.0f : 1.0f;
    for (size_t t = 0; t < OB_COUNT(cases); t++)
        for (size_t v = 0; v < OB_COUNT(fills); v++) {
            const ob_type_info *ti = ob_type_get(cases[t].type);
            const size_t all = ob_type_row_bytes(cases[t].type, K) * N;
            const uint16_t one = ob_f32_to_f16(1.0f);
            weight w = {.desc = {.name = ti->name, .type = cases[t].type, .ne = {K, N, 1, 1}, .n_bytes = all,
                                 .use = OB_USE_LINEAR}, .bytes = malloc(all), .f32 = f32};
            memset(w.bytes, fills[v], all);
            for (size_t b = 0; b < all; b += (size_t)ti->block_bytes)
                for (int i = 0; i < cases[t].n; i++) memcpy(w.bytes + b + cases[t].off[i], &one, 2);
            w.desc.data = w.bytes;
            ti->dequant(w.bytes, f32, N * K);
            for (int level = OB_CPU_C; level <= OB_CPU_AVX512; level++) {
                if (!have_level((ob_cpu_level)level)) continue;
                ob_lin *l = pack(&w, (ob_cpu_level)level, false);
                product(l, 0, x, K, M, level == OB_CPU_C ? first : y, 1, NULL);
                assert_true(worst_error(&w, x, 3, level == OB_CPU_C ? first : y, true) < 2e-6);
                if (level != OB_CPU_C) assert_memory_equal(first, y, sizeof y);
                for (int m = 1; m <= 8; m++) {
                    product(l, 0, x, K, m, y, 1, NULL);
                    assert_memory_equal(first, y, (size_t)m * N * sizeof *y);
                }
                ob_lin_free(l);
            }
            free(w.bytes);
        }
}

/* Float weights may have any K. */
static void test_odd_k(void **state)
{
    (void)state;
    static const int64_t ks[] = {1, 3, 80, 129, 321};
    for (size_t i = 0; i < OB_COUNT(ks); i++) {
        check_type(OB_F32, ks[i], 37, false);
        check_type(OB_F16, ks[i], 37, false);
        check_type(OB_BF16, ks[i], 16, false);
    }
}

/* Rounding activations to 8 bits costs at most half a step of each block. */
static void test_rounding_bound(void **state)
{
    (void)state;
    enum { K = 512, N = 48, M = 3 };
    weight w = weight_make(OB_Q4_K, K, N, 1);
    static float x[M * K], y[M * N];
    make_x(x, M, K);
    ob_lin *l = pack(&w, have_level(OB_CPU_AVX512) ? OB_CPU_AVX512 : OB_CPU_C, false);
    product(l, 0, x, K, M, y, 1, NULL);
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            double s = 0, bound = 0;
            for (int b = 0; b < K; b += 32) {
                double max = 0, sum = 0;
                for (int i = b; i < b + 32; i++) {
                    s += (double)w.f32[n * K + i] * (double)x[m * K + i];
                    max = fmax(max, fabs((double)x[m * K + i]));
                    sum += fabs((double)w.f32[n * K + i]);
                }
                bound += sum * max / 127 * 0.5;
            }
            assert_true(fabs(s - (double)y[m * N + n]) <= bound * 1.001);
        }
    ob_lin_free(l);
    weight_free(&w);
}

/* ---- the rest -------------------------------------------------------------------------------------- */

static void test_epilogue(void **state)
{
    (void)state;
    enum { K = 64, N = 45, M = 30 };
    static const ob_type types[] = {OB_Q4_1, OB_F16};
    static float x[M * K], plain[M * N], y[M * N], bias[N], res[M * (N + 2)];
    for (int i = 0; i < N; i++) bias[i] = rnd_float();
    for (int i = 0; i < M * (N + 2); i++) res[i] = rnd_float();
    make_x(x, M, K);
    for (int level = OB_CPU_C; level <= OB_CPU_AVX512; level++) {
        if (!have_level((ob_cpu_level)level)) continue;
        for (size_t t = 0; t < OB_COUNT(types); t++)
            for (int m = 1; m <= M; m += M - 1) {
                weight w = weight_make(types[t], K, N, 1);
                ob_lin *l = pack(&w, (ob_cpu_level)level, false);
                product(l, 0, x, K, m, plain, 1, NULL);
                const ob_lin_epilogue ep = {.bias = bias, .res = res, .ldres = N + 2, .scale = 0.37f};
                product(l, 0, x, K, m, y, 2, &ep);
                for (int i = 0; i < m; i++)
                    for (int n = 0; n < N; n++)
                        assert_true(y[i * N + n] == res[i * (N + 2) + n] + (plain[i * N + n] + bias[n]) * 0.37f);
                ob_lin_free(l);
                weight_free(&w);
            }
    }
}

/* The residual may be the output itself. */
static void test_residual_in_place(void **state)
{
    (void)state;
    enum { K = 32, N = 40 };
    static float x[K], plain[N], y[N];
    make_x(x, 1, K);
    x[0] = 1.0f;
    weight w = weight_make(OB_Q8_0, K, N, 1);
    ob_cpu_level level;
    assert_int_equal(ob_cpu_level_detect(&level, NULL), OB_OK);
    ob_lin *l = pack(&w, level, false);
    product(l, 0, x, K, 1, plain, 1, NULL);
    for (int n = 0; n < N; n++) y[n] = (float)n;
    void *act = ob_aligned_alloc(64, ob_lin_act_bytes(l, 1)), *tmp = ob_aligned_alloc(64, ob_lin_scratch_bytes(l, 1));
    ob_lin_act(l, x, K, 1, 0, 1, NULL, act);
    const ob_lin_epilogue ep = {.res = y, .ldres = N, .scale = 1.0f};
    ob_lin_mul(l, 0, act, 1, y, N, 0, N, &ep, tmp);
    for (int n = 0; n < N; n++) assert_true(y[n] == (float)n + plain[n]);
    ob_free(act);
    ob_free(tmp);
    ob_lin_free(l);
    weight_free(&w);
}

static void test_experts(void **state)
{
    (void)state;
    enum { K = 256, N = 24, E = 3 };
    static float x[K], y[N], z[N];
    make_x(x, 1, K);
    weight w = weight_make(OB_Q6_K, K, N, E);
    ob_cpu_level level;
    assert_int_equal(ob_cpu_level_detect(&level, NULL), OB_OK);
    ob_lin *l = pack(&w, level, false);
    for (int e = 0; e < E; e++) {
        weight one = w;
        one.desc.use = OB_USE_LINEAR;
        one.desc.ne[2] = 1;
        one.desc.n_bytes /= E;
        one.desc.data = w.bytes + (size_t)e * one.desc.n_bytes;
        ob_lin *s = pack(&one, level, false);
        product(l, e, x, K, 1, y, 1, NULL);
        product(s, 0, x, K, 1, z, 1, NULL);
        assert_memory_equal(y, z, sizeof y);
        ob_lin_free(s);
    }
    ob_lin_free(l);
    weight_free(&w);
}

static void test_bad(void **state)
{
    (void)state;
    weight w = weight_make(OB_Q4_0, 64, 32, 1);
    ob_lin *l;
    bool keeps;
    ob_err err;
    ob_weight d = w.desc;
    d.n_bytes--;
    assert_int_equal(ob_lin_pack(&d, OB_CPU_C, false, &l, &keeps, &err), OB_E_FORMAT);
    assert_null(l);
    d = w.desc;
    d.ne[0] = 63;
    assert_int_equal(ob_lin_pack(&d, OB_CPU_C, false, &l, &keeps, &err), OB_E_FORMAT);
    d = w.desc;
    d.ne[1] = 0;
    assert_int_equal(ob_lin_pack(&d, OB_CPU_C, false, &l, &keeps, &err), OB_E_FORMAT);
    d = w.desc;
    d.type = OB_I32;
    assert_int_equal(ob_lin_pack(&d, OB_CPU_C, false, &l, &keeps, &err), OB_E_UNSUPPORTED);
    for (int i = 0; i < 3; i++) {
        weight f = weight_make(OB_F32, 64, 32, 1);
        ob_alloc_fail_after(i);
        assert_int_equal(ob_lin_pack(&f.desc, OB_CPU_C, false, &l, &keeps, &err), OB_E_NO_MEMORY);
        ob_alloc_fail_after(-1);
        assert_null(l);
        weight_free(&f);
    }
    weight_free(&w);
}

static void test_level(void **state)
{
    (void)state;
    ob_cpu_level l;
    ob_err err;
    unsetenv("OB_CPU");
    assert_int_equal(ob_cpu_level_detect(&l, &err), OB_OK);
    assert_true(l >= OB_CPU_C);
    setenv("OB_CPU", "c", 1);
    assert_int_equal(ob_cpu_level_detect(&l, &err), OB_OK);
    assert_int_equal(l, OB_CPU_C);
    setenv("OB_CPU", "ref", 1);
    assert_int_equal(ob_cpu_level_detect(&l, &err), OB_OK);
    assert_int_equal(l, OB_CPU_REF);
    setenv("OB_CPU", "abacus", 1);
    assert_int_equal(ob_cpu_level_detect(&l, &err), OB_E_INVALID);
    assert_non_null(strstr(err.text, "ref, c"));
    unsetenv("OB_CPU");
}

/* A rotated weight with activations x gives, bit by bit, what the plain one gives with rotated x. */
static void test_hadamard(void **state)
{
    (void)state;
    static const int64_t ks[] = {32, 64, 512, 544, 1536};
    static float x[MAX_M * 1536], rotated[MAX_M * 1536], want[MAX_M * 33], got[MAX_M * 33];
    for (size_t i = 0; i < OB_COUNT(ks); i++) {
        const int64_t k = ks[i], n = 33;
        weight w = weight_make(OB_Q4_0, k, n, 1);
        make_x(x, MAX_M, k);
        memcpy(rotated, x, sizeof x);
        ob_hadamard_row(rotated, MAX_M * k);
        for (int level = OB_CPU_C; level <= OB_CPU_AVX512; level++) {
            if (!have_level((ob_cpu_level)level)) continue;
            for (int exact = 0; exact < 2; exact++) {
                w.desc.hadamard = false;
                ob_lin *plain = pack(&w, (ob_cpu_level)level, exact);
                w.desc.hadamard = true;
                ob_lin *rot = pack(&w, (ob_cpu_level)level, exact);
                assert_int_not_equal(ob_lin_act_kind(plain), ob_lin_act_kind(rot)); /* never shared */
                for (size_t j = 0; j < OB_COUNT(ms); j++) {
                    product(plain, 0, rotated, k, ms[j], want, 1, NULL);
                    product(rot, 0, x, k, ms[j], got, 2, NULL);
                    assert_memory_equal(got, want, (size_t)(ms[j] * n) * sizeof(float));
                }
                ob_lin_free(plain);
                ob_lin_free(rot);
            }
        }
        weight_free(&w);
    }
    weight q8 = weight_make(OB_Q8_0, 32, 16, 1);
    ob_lin *l;
    bool keeps;
    ob_err err = {0};
    q8.desc.hadamard = true;
    assert_int_equal(ob_lin_pack(&q8.desc, OB_CPU_C, false, &l, &keeps, &err), OB_E_UNSUPPORTED);
    weight_free(&q8);
}

/* Coarse rows of an act4 weight: its product with activations rotated and rounded beforehand, in f32 bit by bit for
 * exact, and equal bits at all levels and widths otherwise; other rows as if act4 were off. */
static void test_act4(void **state)
{
    (void)state;
    enum { K4 = 544, N4 = 33 };
    static float x[MAX_M * K4], rounded[MAX_M * K4], want[MAX_M * N4], got[MAX_M * N4], other[MAX_M * N4];
    static uint8_t coarse[MAX_M];
    weight w = weight_make(OB_Q4_0, K4, N4, 1);
    make_x(x, MAX_M, K4);
    memcpy(rounded, x, sizeof x);
    ob_hadamard_row(rounded, MAX_M * K4);
    for (int64_t r = 0; r < MAX_M; r++) {
        coarse[r] = r % 3 != 1;
        for (int64_t k = 0; k < K4 && coarse[r]; k += OB_ACT4) ob_act4_round(rounded + r * K4 + k);
    }
    for (size_t j = 0; j < OB_COUNT(ms); j++) {
        bool first = true;
        for (int level = OB_CPU_C; level <= OB_CPU_AVX512; level++) {
            if (!have_level((ob_cpu_level)level)) continue;
            w.desc.hadamard = w.desc.act4 = false;
            ob_lin *plain = pack(&w, (ob_cpu_level)level, true);
            w.desc.hadamard = true;
            ob_lin *rot = pack(&w, (ob_cpu_level)level, false);
            w.desc.act4 = true;
            ob_lin *exact = pack(&w, (ob_cpu_level)level, true), *fast = pack(&w, (ob_cpu_level)level, false);
            assert_int_not_equal(ob_lin_act_kind(rot), ob_lin_act_kind(fast));
            product(plain, 0, rounded, K4, ms[j], want, 1, NULL);
            product(rot, 0, x, K4, ms[j], other, 1, NULL);
            coarse_rows = coarse;
            product(exact, 0, x, K4, ms[j], got, 1, NULL);
            assert_memory_equal(got, want, (size_t)(ms[j] * N4) * sizeof(float));
            product(fast, 0, x, K4, ms[j], got, 2, NULL);
            coarse_rows = NULL;
            for (int64_t r = 0; r < ms[j]; r++)
                for (int64_t n = 0; n < N4; n++) {
                    const int64_t i = r * N4 + n;
                    if (!coarse[r]) assert_true(got[i] == other[i]);
                    else assert_true(fabsf(got[i] - want[i]) < 2e-5f * K4);
                }
            static float before[MAX_M * N4];
            if (!first) assert_memory_equal(got, before, (size_t)(ms[j] * N4) * sizeof(float));
            memcpy(before, got, sizeof got);
            first = false;
            ob_lin_free(plain);
            ob_lin_free(rot);
            ob_lin_free(exact);
            ob_lin_free(fast);
        }
    }
    weight_free(&w);
}

int main(void)
{
    golden = npz_open(OB_TEST_DATA "/golden/quants.npz");
    if (!golden) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),    cmocka_unit_test(test_types_exact),
        cmocka_unit_test(test_extremes), cmocka_unit_test(test_odd_k),    cmocka_unit_test(test_rounding_bound),
        cmocka_unit_test(test_epilogue), cmocka_unit_test(test_residual_in_place),
        cmocka_unit_test(test_hadamard), cmocka_unit_test(test_act4), cmocka_unit_test(test_experts),  cmocka_unit_test(test_bad),
        cmocka_unit_test(test_level),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    npz_close(golden);
    return failed;
}
