/* Tool calls in text: every style, whole and cut anywhere; what is no call stays text. */
#include "test.h"

#include <stdlib.h>

#include "tmpl/calls.h"

#define DSML "｜DSML｜"

static const char k_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}}}}}]";

typedef struct sample {
    const char *template_mark; /* a template with this has the style */
    const char *style, *text, *content, *calls;
} sample;

static const sample k_samples[] = {
    {"tools <tool_call>", "json-tags", "Sure.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n</tool_call>", "Sure.",
     "get{\"city\":\"Oslo\",\"days\":2};"},
    {"tools <tool_call>", "json-tags",
     "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"b\",\"arguments\":\"{\\\"x\\\":1}\"}</tool_call>", "",
     "a{};b{\"x\":1};"},
    {"tools <tool_call>", "json-tags", "<tool_call>{\"name\": \"get\", \"argum", "<tool_call>{\"name\": \"get\", \"argum", ""},
    {"tools <tool_call>", "json-tags", "<tool_call>{\"name\":\"get\",\"arguments\":{}}", "", "get{};"}, /* no closing tag, yet a call */
    {"tools <tool_call>", "json-tags", "a < b <tool_", "a < b <tool_", ""},
    {"tools <tool_call>", "json-tags", "<tool_call>[1]</tool_call> after", "<tool_call>[1]</tool_call> after", ""},
    {"tools <tool_call>", "json-tags", "  plain \n text\n", "  plain \n text\n", ""},
    {"tools <function=x>", "function-tags",
     "Look.\n\n<tool_call>\n<function=get>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
     "Look.", "get{\"city\":\"12\",\"days\":3};"}, /* by the declared types */
    {"tools <function=x>", "function-tags",
     "<tool_call>\n<function=write>\n<parameter=body>\nline 1\n\n  <b>2</b>\n</parameter>\n</function>\n</tool_call>", "",
     "write{\"body\":\"line 1\\n\\n  <b>2</b>\"};"},
    {"tools <function=x>", "function-tags", "<tool_call>\n<function=get>\n<parameter=a>\n1\n</function>\n</tool_call>",
     "<tool_call>\n<function=get>\n<parameter=a>\n1\n</function>\n</tool_call>", ""},
    {"tools <arg_key>", "arg-tags",
     "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>Bergen</arg_value>\n<arg_key>days</arg_key>\n<arg_value>5</arg_value>\n</tool_call>", "",
     "get{\"city\":\"Bergen\",\"days\":5};"},
    {"tools <arg_key>", "arg-tags", "<tool_call>now</tool_call>", "", "now{};"},
    {"tools <param name=", "param-tags", "Hm. <function name=\"get\"><param name=\"city\">Rome</param><param name=\"days\">1</param></function>", "Hm.",
     "get{\"city\":\"Rome\",\"days\":1};"},
    {"tools " DSML, "dsml",
     "One moment.\n\n<" DSML "tool_calls>\n<" DSML "invoke name=\"get\">\n<" DSML "parameter name=\"city\" string=\"true\">4 \"x\"</" DSML
     "parameter>\n<" DSML "parameter name=\"days\" string=\"false\">[1, 2]</" DSML "parameter>\n</" DSML "invoke>\n<" DSML
     "invoke name=\"now\">\n</" DSML "invoke>\n</" DSML "tool_calls>",
     "One moment.", "get{\"city\":\"4 \\\"x\\\"\",\"days\":[1,2]};now{};"},
    {"tools " DSML, "dsml", "<" DSML "tool_calls>\n<" DSML "invoke name=\"a\">\n</" DSML "invoke>\nnonsense</" DSML "tool_calls>",
     "<" DSML "tool_calls>\n<" DSML "invoke name=\"a\">\n</" DSML "invoke>\nnonsense</" DSML "tool_calls>", ""},
    {"tools {\"name\": f, \"parameters\": {}}", "json", "{\"name\": \"get\", \"parameters\": {\"city\": \"Ulm\"}}", "", "get{\"city\":\"Ulm\"};"},
    {"tools {\"name\": f, \"parameters\": {}}", "json", "{\"answer\": 42}", "{\"answer\": 42}", ""},
    {"tools {\"name\": f, \"parameters\": {}}", "json", "It is {\"name\": 1}", "It is {\"name\": 1}", ""},
};

static void note(void *arg, const char *name, const char *arguments, size_t len)
{
    ob_buf *b = arg;
    ob_buf_addf(b, "%s%.*s;", name, (int)len, arguments);
}

/* `step` bytes at a time. */
static void run(const sample *s, const json_t *tools, size_t step)
{
    ob_calls c;
    ob_buf content, calls;
    ob_buf_init(&content, 1 << 16);
    ob_buf_init(&calls, 1 << 16);
    const ob_call_style *style = ob_call_style_of(s->template_mark);
    assert_non_null(style);
    assert_string_equal(ob_call_style_name(style), s->style);
    ob_calls_init(&c, style, tools, 1 << 16, note, &calls);
    for (size_t at = 0, n = strlen(s->text); at < n; at += step) ob_calls_feed(&c, s->text + at, at + step < n ? step : n - at, &content);
    ob_calls_finish(&c, &content);
    assert_string_equal(ob_buf_str(&calls), s->calls);
    assert_string_equal(ob_buf_str(&content), s->content);
    ob_calls_deinit(&c);
    ob_buf_deinit(&content);
    ob_buf_deinit(&calls);
}

static void test_styles(void **state)
{
    (void)state;
    json_t *tools = json_loads(k_tools, 0, NULL);
    for (size_t i = 0; i < sizeof k_samples / sizeof *k_samples; i++)
        for (size_t step = 1; step < 90; step += step < 8 ? 1 : 27) run(&k_samples[i], tools, step);
    json_decref(tools);
    assert_null(ob_call_style_of("no such thing <tool_call>"));
    assert_null(ob_call_style_of("tools without a syntax"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_styles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
