/* f16 and bf16 conversions: every half value, and f32 values around every rounding bound. */
#include "test.h"

#include <math.h>

#include "quant/quant.h"

#if defined(__FLT16_MANT_DIG__)
#define HAVE_FLOAT16 1
static float compiler_f16_to_f32(uint16_t h)
{
    _Float16 x;
    memcpy(&x, &h, sizeof x);
    return (float)x;
}
static uint16_t compiler_f32_to_f16(float f)
{
    _Float16 x = (_Float16)f;
    uint16_t h;
    memcpy(&h, &x, sizeof h);
    return h;
}
#endif

static bool is_nan16(uint16_t h) { return (h & 0x7FFF) > 0x7C00; }

static void test_every_half(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        float f = ob_f16_to_f32(h);
        assert_int_equal(ob_f32_to_f16(f), is_nan16(h) ? h | 0x200 : h);
        int exp = h >> 10 & 31, man = h & 1023;
        if (exp == 31) {
            assert_true(man ? isnan(f) : isinf(f));
        } else {
            double want = exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
            assert_true((double)fabsf(f) == want);
        }
        assert_int_equal(!!signbit(f), h >> 15);
    }
}

/* The value half-way between two neighbours goes to the even one; the next floats to either side of
 * it go to their own. Neighbours include the step from the largest half to infinity. */
static void test_rounding_bounds(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7C00; h++) {
        double lo = (double)ob_f16_to_f32((uint16_t)h);
        double hi = h == 0x7BFF ? 65536.0 : (double)ob_f16_to_f32((uint16_t)(h + 1));
        float mid = (float)((lo + hi) / 2);
        for (uint32_t sign = 0; sign < 2; sign++) {
            uint32_t bits = ob_f32_bits(mid) | sign << 31, s = sign << 15;
            assert_int_equal(ob_f32_to_f16(ob_bits_f32(bits)), s | (h + (h & 1)));
            assert_int_equal(ob_f32_to_f16(ob_bits_f32(bits - 1)), s | h);
            assert_int_equal(ob_f32_to_f16(ob_bits_f32(bits + 1)), s | (h + 1));
        }
    }
}

static void test_special(void **state)
{
    (void)state;
    assert_int_equal(ob_f32_to_f16(INFINITY), 0x7C00);
    assert_int_equal(ob_f32_to_f16(-INFINITY), 0xFC00);
    assert_int_equal(ob_f32_to_f16(3e38f), 0x7C00);
    assert_int_equal(ob_f32_to_f16(1e-40f), 0);
    assert_int_equal(ob_f32_to_f16(-1e-40f), 0x8000);
    for (uint32_t i = 1; i < 0x800000; i += 12345) {
        assert_true(is_nan16(ob_f32_to_f16(ob_bits_f32(0x7F800000u | i))));
        assert_true(isnan(ob_bf16_to_f32(ob_f32_to_bf16(ob_bits_f32(0x7F800000u | i)))));
    }
}

static void test_against_compiler(void **state)
{
    (void)state;
#ifdef HAVE_FLOAT16
    for (uint32_t i = 0; i < 65536; i++)
        if (!is_nan16((uint16_t)i))
            assert_true(ob_f32_bits(ob_f16_to_f32((uint16_t)i)) ==
                        ob_f32_bits(compiler_f16_to_f32((uint16_t)i)));
    uint32_t bits = 0;
    for (int i = 0; i < 4000000; i++, bits += 1073u) {
        float f = ob_bits_f32(bits);
        if (isnan(f)) continue;
        if (ob_f32_to_f16(f) != compiler_f32_to_f16(f))
            fail_msg("%a -> %04x, compiler %04x", (double)f, ob_f32_to_f16(f),
                     compiler_f32_to_f16(f));
    }
#else
    print_message("skipped: this compiler has no _Float16\n");
    skip();
#endif
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        if ((h & 0x7FFF) > 0x7F80) continue;
        assert_int_equal(ob_f32_to_bf16(ob_bf16_to_f32(h)), h);
        if ((h & 0x7FFF) == 0x7F80) continue;
        uint32_t mid = i << 16 | 0x8000u;
        assert_int_equal(ob_f32_to_bf16(ob_bits_f32(mid)), i + (i & 1));
        assert_int_equal(ob_f32_to_bf16(ob_bits_f32(mid - 1)), i);
        assert_int_equal(ob_f32_to_bf16(ob_bits_f32(mid + 1)), i + 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_half), cmocka_unit_test(test_rounding_bounds),
        cmocka_unit_test(test_special), cmocka_unit_test(test_against_compiler),
        cmocka_unit_test(test_bf16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
