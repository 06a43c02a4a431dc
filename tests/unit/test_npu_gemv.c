/* Products of rows with 4-bit weights through the whole lower half: driver, firmware, array of the software model. */
#include "test.h"

#include <math.h>

#include "base/alloc.h"
#include "base/log.h"
#include "dev/npu/npu_gemv.h"
#include "dev/npu/npu_soft.h"
#include "quant/quant.h"

typedef struct npu { ob_npu_soft *soft; ob_npu_dev *dev; ob_npu_gemv *gemv; } npu;

static void npu_new(npu *u, ob_npu_soft_options opt)
{
    ob_err err = {0};
    if (ob_npu_soft_new(&opt, &u->soft, &err) != OB_OK || ob_npu_dev_open(ob_npu_soft_os(u->soft), 0, &u->dev, &err) != OB_OK ||
        ob_npu_gemv_new(u->dev, &u->gemv, &err) != OB_OK)
        fail_msg("%s", err.text);
}
static void npu_free(npu *u)
{
    ob_npu_gemv_free(u->gemv);
    assert_int_equal(u->dev->n_bos, 0);
    ob_npu_dev_close(u->dev);
    const ob_npu_soft_counts c = ob_npu_soft_counts_get(u->soft);
    assert_int_equal(c.n_bos + c.n_maps + c.n_ctxs + c.n_syncobjs + c.n_fds, 0);
    assert_int_equal(c.n_stale_writes, 0);
    ob_npu_soft_free(u->soft);
}

static uint32_t rnd(uint32_t *s) { return *s = *s * 1664525u + 1013904223u, *s >> 8; }
static float uniform(uint32_t *s) { return (float)rnd(s) / (float)(1 << 24) * 2 - 1; }

/* A weight of its own, plain: what it multiplies with, group by group. */
typedef struct plain { int64_t k, n; uint8_t *code; float *scale, *min; ob_npu_bo *bo; } plain;

/* Codes, scales and minima at random, put into tiles by layout's formulas; padding stays zero. */
static void plain_new(plain *w, npu *u, int64_t k, int64_t n, uint32_t seed)
{
    ob_err err = {0};
    const int64_t k_pad = ob_npu_q4_pad_k(k), groups = (k + 31) / 32;
    *w = (plain){.k = k, .n = n, .code = calloc((size_t)(k * n), 1), .scale = calloc((size_t)(groups * n), 4), .min = calloc((size_t)(groups * n), 4)};
    if (ob_npu_bo_new(u->dev, OB_NPU_BO_SHARE, ob_npu_q4_bytes(k, n), &w->bo, &err) != OB_OK) fail_msg("%s", err.text);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < k; i++) {
            uint8_t *tile = w->bo->host + ob_npu_q4_tile_at(k_pad, i, j);
            const uint8_t c = w->code[j * k + i] = rnd(&seed) & 15;
            tile[ob_npu_q4_nibble_at(i, j)] |= (uint8_t)(j % 2 ? c << 4 : c);
            if (i % 32) continue;
            const uint16_t d = ob_f32_to_bf16(uniform(&seed) * 0.1f), m = ob_f32_to_bf16(uniform(&seed) * 0.5f);
            memcpy(tile + ob_npu_q4_scale_at(i, j), &d, 2);
            memcpy(tile + ob_npu_q4_scale_at(i, j) + 2 * OB_NPU_Q4_SCALES, &m, 2);
            w->scale[j * groups + i / 32] = ob_bf16_to_f32(d);
            w->min[j * groups + i / 32] = ob_bf16_to_f32(m);
        }
    ob_npu_bo_flush(w->bo, 0, w->bo->n_bytes);
}
static void plain_free(plain *w)
{
    free(w->code);
    free(w->scale);
    free(w->min);
    ob_npu_bo_free(w->bo);
}

/* The product in double, and a bound of what f32 sums in any order may differ by: each of about k + 2 k/32 roundings is
 * at most 2^-24 of the sum of magnitudes. */
static double exact(const plain *w, const float *x, int64_t j, double *bound)
{
    const int64_t groups = (w->k + 31) / 32;
    double sum = 0, mag = 0;
    for (int64_t i = 0; i < w->k; i++) {
        const double v = ob_bf16_to_f32(ob_f32_to_bf16(x[i])), d = w->scale[j * groups + i / 32], m = w->min[j * groups + i / 32];
        sum += (d * w->code[j * w->k + i] + m) * v;
        mag += (fabs(d) * w->code[j * w->k + i] + fabs(m)) * fabs(v);
    }
    *bound = mag * ldexp(2.0 + (double)w->k * 17 / 16, -24);
    return sum;
}

static void check_y(const plain *w, const float *x, const float *y)
{
    const int64_t k_pad = ob_npu_q4_pad_k(w->k);
    uint16_t *xb = malloc((size_t)k_pad * 2);
    float *ref = malloc((size_t)w->n * 4);
    ob_npu_bf16_pack(xb, x, w->k);
    ob_npu_mv_ref(xb, w->k, w->bo->host, 0, w->n, ref);
    assert_memory_equal(ref, y, (size_t)w->n * 4); /* the host's arithmetic, to the bit */
    for (int64_t j = 0; j < w->n; j++) {
        double bound;
        const double want = exact(w, x, j, &bound);
        if (fabs(want - y[j]) > bound) fail_msg("k %d n %d output %d: %g, not %g (%g allowed)", (int)w->k, (int)w->n, (int)j, y[j], want, bound);
    }
    free(ref);
    free(xb);
}

static void test_shapes(void **state)
{
    static const int64_t shapes[][2] = {{256, 1024}, {32, 1}, {576, 576}, {257, 33}, {1536, 576}, {576, 3000}, {4096, 1025}};
    (void)state;
    for (int mode = 0; mode < 4; mode++) {
        npu u;
        ob_err err = {0};
        npu_new(&u, (ob_npu_soft_options){.driver_minor = 8, .iova = mode & 1, .eager = mode & 2});
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            uint32_t seed = (uint32_t)(i + 17);
            plain w;
            plain_new(&w, &u, shapes[i][0], shapes[i][1], seed);
            float *x = malloc((size_t)w.k * 4), *y = malloc((size_t)w.n * 4);
            for (int64_t k = 0; k < w.k; k++) x[k] = uniform(&seed);
            const ob_npu_mv mv = {.x = x, .k = (int32_t)w.k, .n = (int32_t)w.n, .w = w.bo, .y = y};
            if (ob_npu_gemv_run(u.gemv, &mv, 1, &err) != OB_OK) fail_msg("%s", err.text);
            check_y(&w, x, y);
            free(x);
            free(y);
            plain_free(&w);
        }
        npu_free(&u);
    }
}

/* Many rows and two weights: shared rows are sent once, chains are as few as limits allow. */
static void test_chains(void **state)
{
    enum { ROWS = 50, K = 512, N0 = 1024, N1 = 300 };
    static float x[ROWS][K], y[ROWS][2][N0];
    npu u;
    ob_err err = {0};
    ob_npu_mv mv[2 * ROWS];
    uint32_t seed = 5;
    plain w[2];
    (void)state;
    npu_new(&u, (ob_npu_soft_options){.driver_minor = 8});
    plain_new(&w[0], &u, K, N0, 1);
    plain_new(&w[1], &u, K, N1, 2);
    for (int r = 0; r < ROWS; r++) {
        for (int k = 0; k < K; k++) x[r][k] = uniform(&seed);
        for (int i = 0; i < 2; i++)
            mv[2 * r + i] = (ob_npu_mv){.x = x[r], .k = K, .n = (int32_t)w[i].n, .w = w[i].bo, .y = y[r][i]};
    }
    assert_int_equal(ob_npu_gemv_prepare(u.gemv, K, N0, &err), OB_OK);
    assert_int_equal(ob_npu_gemv_prepare(u.gemv, K, N1, &err), OB_OK);
    if (ob_npu_gemv_run(u.gemv, mv, 72, &err) != OB_OK) fail_msg("%s", err.text);
    assert_int_equal(ob_npu_gemv_stats_get(u.gemv).n_chains, 2); /* init alone, then one */
    for (int i = 0; i < 3; i++) assert_int_equal(ob_npu_gemv_run(u.gemv, mv, 72, &err), OB_OK); /* packets of all four slots */
    const uint64_t n = ob_alloc_count();
    if (ob_npu_gemv_run(u.gemv, mv, 2 * ROWS, &err) != OB_OK) fail_msg("%s", err.text);
    assert_int_equal(ob_alloc_count(), n); /* a decode step allocates nothing */
    assert_int_equal(ob_npu_gemv_stats_get(u.gemv).n_chains, 2 + 3 + 2);
    assert_int_equal(ob_npu_gemv_stats_get(u.gemv).n_texts, 1); /* both are padded to the same shape */
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < 2; i++) check_y(&w[i], x[r], y[r][i]);
    plain_free(&w[0]);
    plain_free(&w[1]);
    npu_free(&u);
}

/* Infinities and NaNs of one row stay in it; -0.0 and tiny numbers are numbers. */
static void test_odd_values(void **state)
{
    enum { K = 256, N = 64 };
    float x[2][K] = {{0}}, y[2][N];
    npu u;
    ob_err err = {0};
    plain w;
    (void)state;
    npu_new(&u, (ob_npu_soft_options){.driver_minor = 8});
    plain_new(&w, &u, K, N, 3);
    x[0][3] = INFINITY;
    x[1][0] = -0.0f;
    x[1][5] = 1e-40f;
    x[1][6] = 1.00390625f; /* halfway between two bf16: to even */
    const ob_npu_mv mv[2] = {{.x = x[0], .k = K, .n = N, .w = w.bo, .y = y[0]}, {.x = x[1], .k = K, .n = N, .w = w.bo, .y = y[1]}};
    assert_int_equal(ob_npu_gemv_run(u.gemv, mv, 2, &err), OB_OK);
    for (int j = 0; j < N; j++) assert_true(!isfinite(y[0][j]) && isfinite(y[1][j]));
    check_y(&w, x[1], y[1]);
    plain_free(&w);
    npu_free(&u);
}

static void test_refusals(void **state)
{
    npu u;
    ob_err err;
    plain w;
    float x[256] = {0}, y[1024];
    (void)state;
    npu_new(&u, (ob_npu_soft_options){.driver_minor = 8, .faults = "end:3:1:ERROR"});
    plain_new(&w, &u, 256, 1024, 9);
    ob_npu_mv mv = {.x = x, .k = 256, .n = 1024, .w = w.bo, .y = y};
    assert_int_equal(ob_npu_gemv_run(u.gemv, &mv, 1, &err), OB_OK);
    mv.n = 1025; /* more than the buffer holds */
    assert_int_equal(ob_npu_gemv_run(u.gemv, &mv, 1, &err), OB_E_INVALID);
    mv.n = 1024;
    mv.w_off = 2048;
    assert_int_equal(ob_npu_gemv_run(u.gemv, &mv, 1, &err), OB_E_INVALID);
    mv.w_off = 0;
    assert_int_equal(ob_npu_gemv_run(u.gemv, &mv, 1, &err), OB_OK); /* the third submission fails, and is tried again */
    plain_free(&w);
    npu_free(&u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes), cmocka_unit_test(test_chains), cmocka_unit_test(test_odd_values), cmocka_unit_test(test_refusals),
    };
    ob_log_set_level(OB_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
