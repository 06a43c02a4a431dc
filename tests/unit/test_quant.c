/* Block formats against golden data: dequantisers bit by bit, quantisers by their error. */
#include "test.h"

#include <math.h>

#include "base/math.h"
#include "npz.h"
#include "quant/quant.h"

static npz *golden;

static int open_golden(void **state)
{
    (void)state;
    golden = npz_open(OB_TEST_DATA "/golden/quants.npz");
    return golden ? 0 : -1;
}
static int close_golden(void **state)
{
    (void)state;
    npz_close(golden);
    return 0;
}

static const npz_array *find(const char *prefix, const char *type)
{
    char name[64];
    snprintf(name, sizeof name, "%s_%s", prefix, type);
    return npz_get(golden, name);
}

static void test_table(void **state)
{
    (void)state;
    int n = 0;
    for (uint32_t id = 0; id < OB_TYPE_END; id++) {
        const ob_type_info *t = ob_type_get(id);
        if (!t->name) continue;
        n++;
        ob_type back;
        assert_true(ob_type_from_name(t->name, &back));
        assert_int_equal(back, id);
        assert_int_equal(ob_type_row_bytes((ob_type)id, 3 * t->block_elems), 3 * t->block_bytes);
        if (t->block_elems > 1) assert_int_equal(ob_type_row_bytes((ob_type)id, 3), 0);
        if (t->weight) assert_non_null(t->dequant);
        const npz_array *raw = find("raw", t->name);
        if (raw) assert_int_equal(ob_type_row_bytes((ob_type)id, 1024), raw->shape[1]);
    }
    assert_int_equal(n, 35);
    assert_null(ob_type_get(4)->name);
    assert_null(ob_type_get(1000)->name);
    assert_int_equal(ob_type_row_bytes((ob_type)5, 32), 0);
    assert_int_equal(ob_type_row_bytes(OB_Q4_0, -32), 0);
    assert_int_equal(ob_type_row_bytes(OB_F64, INT64_MAX), 0);
    ob_type t;
    assert_true(ob_type_from_name("q4_k", &t));
    assert_int_equal(t, OB_Q4_K);
    assert_false(ob_type_from_name("Q4_K_M", &t));
}

static int n_dequantised;

static void check_dequant(const ob_type_info *t, const char *raw_name, const char *deq_name)
{
    const npz_array *raw = find(raw_name, t->name), *deq = find(deq_name, t->name);
    if (!raw || !deq) return;
    n_dequantised++;
    assert_int_equal(raw->shape[0], 40);
    float *y = malloc(40 * 1024 * sizeof *y);
    assert_non_null(y);
    for (int r = 0; r < 40; r++)
        t->dequant((const uint8_t *)raw->data + r * raw->shape[1], y + 1024 * r, 1024);
    const float *want = deq->data;
    for (int i = 0; i < 40 * 1024; i++)
        if (ob_f32_bits(y[i]) != ob_f32_bits(want[i]))
            fail_msg("%s %s row %d element %d: %a, golden %a", t->name, deq_name, i / 1024,
                     i % 1024, (double)y[i], (double)want[i]);
    free(y);
}

static void test_dequantise_bit_exact(void **state)
{
    (void)state;
    for (uint32_t id = 0; id < OB_TYPE_END; id++) {
        const ob_type_info *t = ob_type_get(id);
        if (!t->name || !t->dequant) continue;
        check_dequant(t, "raw", "deq");
        check_dequant(t, "raw_im", "deq_im");
    }
    assert_int_equal(n_dequantised, 27);
}

/* --- quantisers ---------------------------------------------------------------------------- */

enum { N_ROWS = 40, ROW = 1024, FIRST_SPECIAL = 32 }; /* special rows: see the golden file */

typedef struct errors {
    double plain, weighted;  /* relative RMS error over the rows before FIRST_SPECIAL */
    double special[N_ROWS - FIRST_SPECIAL]; /* of each special row */
} errors;

static errors measure(const ob_type_info *t, const uint8_t *raw, const float *src,
                      const float *importance)
{
    errors e = {0};
    double plain = 0, weighted = 0, y[ROW];
    const size_t row_bytes = (size_t)(ROW / t->block_elems * t->block_bytes);
    for (int r = 0; r < N_ROWS; r++) {
        float row[ROW];
        t->dequant(raw + (size_t)r * row_bytes, row, ROW);
        double err = 0, all = 0;
        for (int j = 0; j < ROW; j++) {
            const double x = (double)src[r * ROW + j];
            assert_true(isfinite(row[j]));
            y[j] = ((double)row[j] - x) * ((double)row[j] - x);
            err += y[j];
            all += x * x;
            if (r >= FIRST_SPECIAL) continue;
            e.weighted += (double)importance[j] * y[j];
            weighted += (double)importance[j] * x * x;
        }
        if (r >= FIRST_SPECIAL) {
            e.special[r - FIRST_SPECIAL] = all > 0 ? sqrt(err / all) : err;
            continue;
        }
        e.plain += err;
        plain += all;
    }
    e.plain = sqrt(e.plain / plain);
    e.weighted = sqrt(e.weighted / weighted);
    return e;
}

/* Golden bytes are ggml's. "As good" is 1 % of its error. On special rows both are often near 0, so
 * they may differ by 0.2 % of the row's RMS, a quarter of a code of Q6_K. */
static void check_quantiser(ob_type id, bool with_importance)
{
    const ob_type_info *t = ob_type_get(id);
    const float *src = npz_need(golden, "src", NPZ_F32)->data;
    const float *importance = npz_need(golden, "imatrix", NPZ_F32)->data;
    const npz_array *raw = find(with_importance ? "raw_im" : "raw", t->name);
    if (!raw) return;
    uint8_t *ours = malloc((size_t)raw->n_items);
    assert_non_null(ours);
    ob_err err;
    if (ob_quantize(id, src, ours, N_ROWS, ROW, with_importance ? importance : NULL, &err) != OB_OK)
        fail_msg("%s: %s", t->name, err.text);
    errors want = measure(t, raw->data, src, importance), got = measure(t, ours, src, importance);
    if (got.plain > 1.01 * want.plain)
        fail_msg("%s: relative error %.5f, golden %.5f", t->name, got.plain, want.plain);
    if (got.weighted > 1.01 * want.weighted)
        fail_msg("%s: weighted error %.5f, golden %.5f", t->name, got.weighted, want.weighted);
    for (int r = 0; r < N_ROWS - FIRST_SPECIAL; r++)
        if (got.special[r] > 1.01 * want.special[r] + 0.002)
            fail_msg("%s: row %d error %.5f, golden %.5f", t->name, FIRST_SPECIAL + r,
                     got.special[r], want.special[r]);
    free(ours);
}

static void test_quantisers_against_golden(void **state)
{
    (void)state;
    for (uint32_t id = 0; id < OB_TYPE_END; id++)
        if (ob_type_get(id)->name && ob_type_get(id)->quant) {
            check_quantiser((ob_type)id, false);
            check_quantiser((ob_type)id, true);
        }
}

static void test_equal_bytes(void **state)
{
    (void)state;
    static const ob_type ids[] = {OB_F16, OB_BF16, OB_Q8_0, OB_Q8_1, OB_Q8_K};
    const float *src = npz_need(golden, "src", NPZ_F32)->data;
    for (size_t i = 0; i < OB_COUNT(ids); i++) {
        const npz_array *raw = find("raw", ob_type_get(ids[i])->name);
        assert_non_null(raw);
        uint8_t *ours = malloc((size_t)raw->n_items);
        assert_non_null(ours);
        assert_int_equal(ob_quantize(ids[i], src, ours, N_ROWS, ROW, NULL, NULL), OB_OK);
        assert_memory_equal(ours, raw->data, (size_t)raw->n_items);
        free(ours);
    }
}

/* Rows at the ends of float: whatever comes out must be finite, and no step may overflow. */
static void test_extreme_rows(void **state)
{
    (void)state;
    static float src[8][ROW], importance[ROW], y[ROW];
    static uint8_t raw[8 * ROW * 4];
    uint32_t seed = 1;
    for (int j = 0; j < ROW; j++) {
        seed = seed * 1664525u + 1013904223u;
        const float u = (float)(seed >> 8) / 8388608.0f - 1.0f;
        src[0][j] = u * 3e38f;
        src[1][j] = u * 1e-40f;
        src[2][j] = j == 700 ? -3e38f : u;
        src[3][j] = j % 2 ? 1e-45f : -1e-45f;
        src[4][j] = u * 1e19f;
        src[5][j] = 70000.0f;
        src[6][j] = j % 256 == 0 ? 1e-30f : 0.0f;
        src[7][j] = -u * u * 1e-18f;
        importance[j] = j % 3 ? 0.0f : 1e30f;
    }
    for (uint32_t id = OB_F16 + 1; id < OB_TYPE_END; id++) {
        const ob_type_info *t = ob_type_get(id);
        if (!t->name || !t->quant || id == OB_BF16 || id == OB_Q8_0 || !t->weight) continue;
        for (int with = 0; with < 2; with++) {
            assert_int_equal(ob_quantize((ob_type)id, src[0], raw, 8, ROW, with ? importance : NULL,
                                         NULL), OB_OK);
            for (int r = 0; r < 8; r++) {
                t->dequant(raw + (size_t)r * ob_type_row_bytes((ob_type)id, ROW), y, ROW);
                for (int j = 0; j < ROW; j++)
                    if (!isfinite(y[j])) fail_msg("%s row %d element %d", t->name, r, j);
            }
        }
    }
}

static void test_refusals(void **state)
{
    (void)state;
    float src[256] = {0};
    uint8_t dst[1024];
    ob_err err;
    assert_int_equal(ob_quantize(OB_I32, src, dst, 1, 256, NULL, &err), OB_E_UNSUPPORTED);
    assert_int_equal(ob_quantize((ob_type)5, src, dst, 1, 256, NULL, &err), OB_E_UNSUPPORTED);
    assert_int_equal(ob_quantize(OB_Q4_K, src, dst, 1, 128, NULL, &err), OB_E_INVALID);
    assert_non_null(strstr(err.text, "256"));
    src[77] = NAN;
    assert_int_equal(ob_quantize(OB_Q4_0, src, dst, 1, 256, NULL, &err), OB_E_INVALID);
    src[77] = -INFINITY;
    assert_int_equal(ob_quantize(OB_Q4_0, src, dst, 1, 256, NULL, &err), OB_E_INVALID);
    src[77] = 0;
    float importance[256] = {0};
    assert_int_equal(ob_quantize(OB_Q4_0, src, dst, 1, 256, importance, &err), OB_OK);
    importance[3] = NAN;
    assert_int_equal(ob_quantize(OB_Q4_0, src, dst, 1, 256, importance, &err), OB_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_dequantise_bit_exact),
        cmocka_unit_test(test_quantisers_against_golden),
        cmocka_unit_test(test_equal_bytes),
        cmocka_unit_test(test_extreme_rows),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
