/* Unit tests of base/json: what the errors of a bad text say. */
#include "test.h"

#include <string.h>

#include "base/json.h"

static void expect_error(const char *text, const char *said)
{
    ob_err err;
    json_t *j;
    assert_int_equal(ob_json_load(text, strlen(text), "the body", &j, &err), OB_E_INVALID);
    assert_null(j);
    assert_non_null(strstr(err.text, "the body"));
    assert_non_null(strstr(err.text, said));
}

static void test_errors_say_what_is_wrong(void **state)
{
    (void)state;
    expect_error("{\"a\": \"x\\u0000\"}", "holds a NUL character (\\u0000)");
    expect_error("{\"a\": 1, \"a\": 2}", "has a key twice");
    expect_error("{\"a\": ", "is not JSON");
}

static void test_good(void **state)
{
    (void)state;
    ob_err err;
    json_t *j;
    const char text[] = "{\"a\": \"x\\u0001\"}";
    assert_int_equal(ob_json_load(text, strlen(text), "the body", &j, &err), OB_OK);
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors_say_what_is_wrong),
        cmocka_unit_test(test_good),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
