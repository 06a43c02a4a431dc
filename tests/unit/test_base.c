/* Unit tests of base/: status, buf, utf8, arena, span. */
#include "test.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "base/buf.h"
#include "base/math.h"
#include "base/span.h"
#include "base/status.h"
#include "base/utf8.h"

static void test_status_table(void **state)
{
    (void)state;
    for (int i = 0; i < OB_STATUS_COUNT; i++) assert_non_null(ob_status_describe(i)->name);
    assert_int_equal(ob_status_describe(OB_E_CONTEXT_LENGTH)->http_code, 400);
    assert_string_equal(ob_status_describe(OB_E_CONTEXT_LENGTH)->openai_code,
                        "context_length_exceeded");
}

static void test_err_cut_is_whole_utf8(void **state)
{
    (void)state;
    char text[700] = {0};
    for (int shift = 0; shift < 4; shift++) {
        memset(text, 'a', (size_t)shift);
        for (int i = 0; i < 200; i++) memcpy(text + shift + 3 * i, "\xE2\x82\xAC", 3);
        ob_err e;
        assert_int_equal(ob_err_set(&e, OB_E_INVALID, "%s", text), OB_E_INVALID);
        assert_true(ob_utf8_is_valid(e.text, strlen(e.text)));
        assert_int_equal(ob_err_prefix(&e, OB_E_FORMAT, "x"), OB_E_FORMAT);
        assert_true(ob_utf8_is_valid(e.text, strlen(e.text)));
    }
}

static void test_buf_limit_and_json(void **state)
{
    (void)state;
    ob_buf b;
    ob_buf_init(&b, 8);
    ob_buf_adds(&b, "12345678");
    assert_int_equal(b.failed, OB_OK);
    ob_buf_addc(&b, '9');
    ob_err e;
    assert_int_equal(ob_buf_status(&b, &e), OB_E_LIMIT);
    assert_string_equal(ob_buf_str(&b), "12345678");
    ob_buf_deinit(&b);

    ob_buf_init(&b, 1000);
    ob_buf_add_json(&b, "a\"\\\n\x01\xC3\xA9\xFFz", 9);
    assert_string_equal(ob_buf_str(&b), "\"a\\\"\\\\\\n\\u0001\xC3\xA9\xEF\xBF\xBDz\"");
    ob_buf_clear(&b);
    ob_buf_add_double(&b, 0.1);
    assert_string_equal(ob_buf_str(&b), "0.1");
    ob_buf_deinit(&b);
}

static void test_utf8(void **state)
{
    (void)state;
    assert_false(ob_utf8_is_valid("\xC0\x80", 2));
    assert_false(ob_utf8_is_valid("\xED\xA0\x80", 3));
    assert_true(ob_utf8_is_valid("\xF0\x9F\x98\x80", 4));
    assert_int_equal(ob_utf8_incomplete_tail("a\xF0\x9F\x98", 4), 3);
    assert_int_equal(ob_utf8_incomplete_tail("a\xF0\x9F\x98\x80", 5), 0);
    assert_int_equal(ob_utf8_incomplete_tail("a\x80\x80", 3), 0);
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp += 7) {
        char t[4];
        size_t n = ob_utf8_encode(cp, t), m;
        if (cp >= 0xD800 && cp < 0xE000) {
            assert_int_equal(n, 0);
            continue;
        }
        assert_int_equal(ob_utf8_decode(t, n, &m), cp);
        assert_int_equal(n, m);
        for (size_t k = 1; k < n; k++) assert_int_equal(ob_utf8_incomplete_tail(t, k), k);
    }
}

static void test_arena_and_span(void **state)
{
    (void)state;
    ob_arena a;
    ob_arena_init(&a, 1000);
    assert_non_null(ob_arena_alloc(&a, 900));
    assert_null(ob_arena_alloc(&a, 200));
    assert_null(ob_arena_array(&a, SIZE_MAX / 2, 3));
    ob_arena_deinit(&a);

    uint8_t bytes[6] = {1, 0, 0, 0, 2, 3};
    ob_span s = ob_span_of(bytes, sizeof bytes);
    uint32_t x;
    uint64_t y;
    assert_true(ob_span_u32(&s, &x));
    assert_int_equal(x, 1);
    assert_false(ob_span_u64(&s, &y));
    assert_int_equal(y, 0);
    uint8_t z;
    assert_false(ob_span_u8(&s, &z)); /* the error sticks */
}

static void test_alloc_hooks(void **state)
{
    (void)state;
    ob_alloc_fail_after(1);
    void *p = ob_malloc(10), *q = ob_malloc(10);
    ob_alloc_fail_after(-1);
    assert_non_null(p);
    assert_null(q);
    ob_free(p);
    uint64_t before = ob_alloc_violations();
    ob_alloc_guard(true);
    ob_free(ob_malloc(1));
    ob_alloc_guard(false);
    assert_int_equal(ob_alloc_violations(), before + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_table),   cmocka_unit_test(test_err_cut_is_whole_utf8),
        cmocka_unit_test(test_buf_limit_and_json), cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_arena_and_span), cmocka_unit_test(test_alloc_hooks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
