/* Block formats against golden data: dequantisers bit by bit, quantisers by their error. */
#include "test.h"

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
    assert_int_equal(raw->shape[0], 64);
    float *y = malloc(64 * 1024 * sizeof *y);
    assert_non_null(y);
    for (int r = 0; r < 64; r++)
        t->dequant((const uint8_t *)raw->data + r * raw->shape[1], y + 1024 * r, 1024);
    const float *want = deq->data;
    for (int i = 0; i < 64 * 1024; i++)
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table),
                                       cmocka_unit_test(test_dequantise_bit_exact)};
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
