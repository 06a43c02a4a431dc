/* Unit tests of tmpl/: rendering, message conversion, hostile templates, reasoning split. */
#include "test.h"

#include <stdlib.h>
#include <time.h>

#include "base/limits.h"
#include "tmpl/reasoning.h"
#include "tmpl/calls.h"
#include "tmpl/tmpl.h"

/* ---- helpers -------------------------------------------------------------------------------- */

static ob_tmpl *compile(const char *source)
{
    ob_tmpl *t;
    ob_err err;
    if (ob_tmpl_new(source, strlen(source), &t, &err) != OB_OK) fail_msg("%s", err.text);
    return t;
}

/* Render `messages` (JSON text), through ob_tmpl_messages if asked; the text or "ERR status: text". */
static void render(const ob_tmpl *t, const char *messages, bool convert, ob_buf *out)
{
    ob_err err = {0};
    ob_status s = OB_OK;
    ob_buf converted;
    ob_buf_init(&converted, OB_MAX_RENDER_BYTES);
    ob_tmpl_args args = {.messages_json = messages, .now_unix = 1, .bos_token = "<s>"};
    ob_buf_clear(out);
    if (convert) {
        json_t *parsed = json_loads(messages, 0, NULL);
        assert_non_null(parsed);
        s = ob_tmpl_messages(t, parsed, &converted, &err);
        json_decref(parsed);
        args.messages_json = ob_buf_str(&converted);
    }
    if (s == OB_OK) s = ob_tmpl_render(t, &args, out, &err);
    if (s != OB_OK) ob_buf_addf(out, "ERR %s: %s", ob_status_describe(s)->name, err.text);
    ob_buf_deinit(&converted);
}

static void check(const char *source, const char *messages, bool convert, const char *want)
{
    ob_tmpl *t = compile(source);
    ob_buf out;
    ob_buf_init(&out, OB_MAX_RENDER_BYTES);
    render(t, messages, convert, &out);
    assert_string_equal(ob_buf_str(&out), want);
    ob_buf_deinit(&out);
    ob_tmpl_free(t);
}

#define STRINGS "{% for m in messages %}[{{ m.role }}:{{ m.content + '' }}]{% endfor %}"
#define PARTS                                                                                     \
    "{% for m in messages %}[{{ m.role }}:{% for p in m.content %}{{ p['text'] }}|{% endfor %}]"  \
    "{% endfor %}"
#define NO_SYSTEM                                                                                 \
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" STRINGS
#define CALLS                                                                                     \
    "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.name }}"                     \
    "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
#define CALLS_STRING                                                                              \
    "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}" \
    "{% endfor %}{% endfor %}"
#define CALLS_ITEMS                                                                               \
    "{% for m in messages %}{% for c in m.tool_calls %}{% for k, v in c.function.arguments.items() %}" \
    "{{ k }}={{ v }};{% endfor %}{% endfor %}{% endfor %}"

static const char *one_call(const char *arguments)
{
    static char text[512];
    snprintf(text, sizeof text,
             "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":null,"
             "\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
             "\"arguments\":%s}}]}]",
             arguments);
    return text;
}

/* ---- rendering ------------------------------------------------------------------------------ */

static void test_render(void **state)
{
    (void)state;
    check(ob_tmpl_builtin(NULL), "[{\"role\":\"user\",\"content\":\"hi\"}]", false,
          "<|im_start|>user\nhi<|im_end|>\n");
    check("{{ messages | tojson }}", "[{\"z\":1,\"a\":[0.5,null,\"<&>\"]}]", false,
          "[{\"z\": 1, \"a\": [0.5, null, \"<&>\"]}]");
    check("{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ strftime_now('%Y') }}", "[]", false,
          "<s>True1970");
}

static void test_errors(void **state)
{
    (void)state;
    ob_tmpl *t;
    ob_err err;
    assert_int_equal(ob_tmpl_new("a\n{% for %}", 11, &t, &err), OB_E_FORMAT);
    assert_null(t);
    assert_non_null(strstr(err.text, "line 2"));
    assert_int_equal(ob_tmpl_new("\xff", 1, &t, &err), OB_E_INVALID);
    check("{{ raise_exception('roles must alternate') }}", "[]", false,
          "ERR invalid: roles must alternate");
    check("x\n{{ nothing.at.all }}", "[]", false, "ERR invalid: chat template, line 2: undefined value");

    /* What the caller had in the buffer stays, on errors of every kind. */
    t = compile("text {{ messages[0].x.y }}");
    ob_buf out;
    ob_buf_init(&out, 100);
    ob_buf_adds(&out, "before");
    const ob_tmpl_args bad_json = {.messages_json = "[", .now_unix = 1};
    assert_int_equal(ob_tmpl_render(t, &bad_json, &out, &err), OB_E_INVALID);
    const ob_tmpl_args fails = {.messages_json = "[{}]", .now_unix = 1};
    assert_int_equal(ob_tmpl_render(t, &fails, &out, &err), OB_E_INVALID);
    assert_string_equal(ob_buf_str(&out), "before");
    ob_buf_deinit(&out);
    ob_tmpl_free(t);
}

static void test_source_limit(void **state)
{
    (void)state;
    char *big = malloc(OB_MAX_TEMPLATE_BYTES + 1);
    assert_non_null(big);
    memset(big, 'a', OB_MAX_TEMPLATE_BYTES + 1);
    ob_tmpl *t;
    assert_int_equal(ob_tmpl_new(big, OB_MAX_TEMPLATE_BYTES, &t, NULL), OB_OK);
    ob_tmpl_free(t);
    assert_int_equal(ob_tmpl_new(big, OB_MAX_TEMPLATE_BYTES + 1, &t, NULL), OB_E_LIMIT);
    free(big);
}

/* ---- hostile templates ---------------------------------------------------------------------- */

/* Of the processor, so that what else the machine does is not counted. */
static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void test_hostile(void **state)
{
    (void)state;
    static const char *const templates[] = {
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='abcdefgh') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}"
        "{{ n.x }}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
        "{% endmacro %}{{ m(18) }}",
        "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
        "{% set n = namespace(a=[]) %}{% for j in range(99999) %}{% for i in range(99999) %}"
        "{% set n.a = [n.a] %}{% endfor %}{% endfor %}",
        "{% set n = namespace(a=['x']) %}{% for i in range(40) %}{% set n.a = [n.a, n.a] %}{% endfor %}"
        "{{ n.a | tojson }}",
        "{% set n = namespace(a=['x']) %}{% for i in range(40) %}{% set n.a = [n.a, n.a] %}{% endfor %}"
        "{{ n.a }}",
        "{{ '%1000000000d' | format(1) }}",
    };
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        double start = seconds();
        ob_tmpl *t = compile(templates[i]);
        ob_buf out;
        ob_buf_init(&out, OB_MAX_RENDER_BYTES);
        render(t, "[]", false, &out);
        if (strncmp(ob_buf_str(&out), "ERR limit: ", 11))
            fail_msg("template %zu: %.100s", i, ob_buf_str(&out));
        ob_buf_deinit(&out);
        ob_tmpl_free(t);
        /* The bound is one second; sanitizers get room. */
        double took = seconds() - start;
        if (took > 10) fail_msg("template %zu took %.1f s", i, took);
    }
}

/* `n` times `part` between `head` and `tail`: a template that is deep in one direction. */
static void check_deep(const char *head, const char *part, size_t n, const char *tail)
{
    size_t len = strlen(head) + n * strlen(part) + strlen(tail);
    char *source = malloc(len + 1), *p = source;
    assert_non_null(source);
    p = stpcpy(p, head);
    for (size_t i = 0; i < n; i++) p = stpcpy(p, part);
    stpcpy(p, tail);
    ob_tmpl *t;
    ob_status s = ob_tmpl_new(source, len, &t, NULL);
    assert_true(s == OB_OK || s == OB_E_FORMAT || s == OB_E_LIMIT);
    ob_tmpl_free(t);
    free(source);
}

static void test_deep_source(void **state)
{
    (void)state;
    static const char *const parts[] = {"(", "[", "{'a':", "not ", "- ", "1~", "1+", "1 or ", "a.", "2**",
                                        "1 if 1 else "};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        check_deep("{{ ", parts[i], 8000 / strlen(parts[i]), "1 }}"); /* just below the tag's limit */
        check_deep("{{ ", parts[i], 500000 / strlen(parts[i]), "1 }}");
    }
    check_deep("{{ a", ".a", 4000, " }}");
    check_deep("{{ 1", "|d", 4000, " }}");
    check_deep("", "{% if 1 %}", 100000, "");
    check_deep("{% if 0 %}", "{% elif 0 %}", 80000, "{% endif %}");
    check_deep("{% if 0 %}", "{% elif 0 %}", 1999, "{% endif %}");
    check_deep("", "{% generation %}", 60000, "");
}

/* ---- messages ------------------------------------------------------------------------------- */

static void test_content(void **state)
{
    (void)state;
    const char *parts = "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                        "{\"type\":\"text\",\"text\":\"b\"}]}]";
    check(STRINGS, parts, true, "[user:a\nb]");
    check(PARTS, parts, true, "[user:a|b|]");
    check(PARTS, "[{\"role\":\"user\",\"content\":\"a\"}]", true, "[user:a|]");
    check(STRINGS, "[{\"role\":\"user\",\"content\":null}]", true, "[user:]");
    check(STRINGS, "[{\"role\":\"user\"}]", true, "[user:]");
    check(STRINGS,
          "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":[{\"type\":"
          "\"image_url\",\"image_url\":{\"url\":\"data:\"}}]}]",
          true, "ERR unsupported: messages[1]: this model cannot read images");
    check(STRINGS, "[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]", true,
          "ERR unsupported: messages[0]: this model cannot read content of type 'input_audio'");
    check(STRINGS, "[{\"role\":\"user\",\"content\":7}]", true,
          "ERR invalid: messages[0].content must be a string or an array of parts");
    check(STRINGS, "[{\"content\":\"x\"}]", true, "ERR invalid: messages[0].role must be a string");
    check(STRINGS, "[7]", true, "ERR invalid: messages[0] must be an object");
    check(STRINGS, "{}", true, "ERR invalid: messages must be an array");
}

static void test_roles(void **state)
{
    (void)state;
    const char *developer =
        "[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"u\"}]";
    check(STRINGS, developer, true, "[system:d][user:u]");
    check("{# developer #}" STRINGS, developer, true, "[developer:d][user:u]");
    check(NO_SYSTEM, developer, true, "[user:d\n\nu]");
    check(NO_SYSTEM, "[{\"role\":\"system\",\"content\":\"d\"}]", true, "[user:d]");
    check(NO_SYSTEM, "[{\"role\":\"system\",\"content\":\"d\"}]", false, "ERR invalid: no system");
}

static void test_arguments(void **state)
{
    (void)state;
    check(CALLS, one_call("\"{\\\"a\\\": 1}\""), true, "f{\"a\": 1}");
    check(CALLS, one_call("{\"a\":1}"), true, "f{\"a\": 1}");
    check(CALLS, one_call("null"), true, "f{}");
    check(CALLS_STRING, one_call("\"{\\\"a\\\": 1}\""), true, "f{\"a\": 1}");
    check(CALLS_STRING, one_call("{\"a\":1}"), true, "f{\"a\": 1}");
    check(CALLS_ITEMS, one_call("\"{\\\"a\\\": 1}\""), true, "a=1;");
    /* A model's broken JSON: told as it was, or wrapped where only objects can be told. */
    check(CALLS, one_call("\"{\""), true, "f\"{\"");
    check(CALLS_STRING, one_call("\"{\""), true, "f{");
    check(CALLS_ITEMS, one_call("\"{\""), true, "arguments={;");
    check(CALLS, "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]", true,
          "ERR invalid: messages[0].tool_calls[0].function.name must be a string");
    check(CALLS, "[{\"role\":\"assistant\",\"tool_calls\":7}]", true,
          "ERR invalid: messages[0].tool_calls must be an array");
}

static void test_reasoning_names(void **state)
{
    (void)state;
    check("{% for m in messages %}{{ m.reasoning_content }}/{{ m.thinking }} {% endfor %}",
          "[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning\":\"a\"},"
          "{\"role\":\"assistant\",\"content\":\"x\",\"thinking\":\"b\"},"
          "{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"c\"}]",
          true, "a/a b/b c/c ");
}

/* ---- reasoning split ------------------------------------------------------------------------ */

/* Feed `text` in pieces of `step` bytes. */
static void split(const char *text, size_t step, ob_reasoning_format format, bool opened,
                  ob_buf *reasoning, ob_buf *content)
{
    ob_reasoning r;
    ob_buf_clear(reasoning);
    ob_buf_clear(content);
    ob_reasoning_init(&r, format, ob_reasoning_tags_of(NULL), opened);
    for (size_t i = 0, n = strlen(text); i < n; i += step)
        ob_reasoning_feed(&r, text + i, n - i < step ? n - i : step, reasoning, content);
    ob_reasoning_finish(&r, reasoning, content);
}

static void test_reasoning_split(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        ob_reasoning_format format;
        bool opened;
        const char *reasoning, *content;
    } cases[] = {
        {"<think>\nwhy\n</think>\n\nhi", OB_REASONING_AUTO, false, "why", "hi"},
        {"<think>\nwhy\n</think>\n\nhi", OB_REASONING_NONE, false, "", "<think>\nwhy\n</think>\n\nhi"},
        {" \n<think>why", OB_REASONING_AUTO, false, "why", ""},
        {"why</think>hi", OB_REASONING_AUTO, true, "why", "hi"},
        {"\nwhy", OB_REASONING_AUTO, true, "why", ""},
        {"</think>hi", OB_REASONING_AUTO, true, "", "hi"},
        {"hi <think>no</think>", OB_REASONING_AUTO, false, "", "hi <think>no</think>"},
        {"  <thin", OB_REASONING_AUTO, false, "", "  <thin"},
        {"<thinx>", OB_REASONING_AUTO, false, "", "<thinx>"},
        {"a </thi </think >  </think>b", OB_REASONING_AUTO, true, "a </thi </think >", "b"},
        {"a<</think>b</think>", OB_REASONING_AUTO, true, "a<", "b</think>"},
        {"a \n </thin", OB_REASONING_AUTO, true, "a \n </thin", ""},
        {"a\n\n", OB_REASONING_AUTO, true, "a\n\n", ""},
        {"<think>é🌍</think>ü", OB_REASONING_AUTO, false, "é🌍", "ü"},
        {"", OB_REASONING_AUTO, false, "", ""},
    };
    ob_buf reasoning, content;
    ob_buf_init(&reasoning, 1 << 20);
    ob_buf_init(&content, 1 << 20);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t step = 1; step < 12; step++) {
            split(cases[i].text, step, cases[i].format, cases[i].opened, &reasoning, &content);
            assert_string_equal(ob_buf_str(&reasoning), cases[i].reasoning);
            assert_string_equal(ob_buf_str(&content), cases[i].content);
        }
    }
    ob_buf_deinit(&reasoning);
    ob_buf_deinit(&content);
}

/* Long white space never overflows what is held, and all but the stated amount comes out. */
static void test_reasoning_space(void **state)
{
    (void)state;
    enum { N = 3 * OB_REASONING_MAX_HELD };
    char text[2 * N + 32] = {0};
    memset(text, ' ', N);
    strcpy(text + N, "x");
    memset(text + N + 1, '\n', N);
    strcpy(text + 2 * N + 1, "</think>");
    ob_buf reasoning, content;
    ob_buf_init(&reasoning, 1 << 20);
    ob_buf_init(&content, 1 << 20);
    for (size_t step = 1; step < 100; step += 7) {
        split(text, step, OB_REASONING_AUTO, true, &reasoning, &content);
        assert_int_equal(reasoning.len, 2 * N + 1 - 2 * OB_REASONING_MAX_SPACE);
        assert_int_equal(content.len, 0);
        split(text, step, OB_REASONING_AUTO, false, &reasoning, &content);
        assert_string_equal(ob_buf_str(&content), text);
    }
    ob_buf_deinit(&reasoning);
    ob_buf_deinit(&content);
}

static void test_reasoning_prompt(void **state)
{
    (void)state;
    const ob_reasoning_tags *tags = ob_reasoning_tags_of("... [THINK] ... [/THINK] ...");
    assert_string_equal(tags->open, "[THINK]");
    assert_true(ob_reasoning_prompt_opens(tags, "a[THINK]\n", 9));
    tags = ob_reasoning_tags_of("no tags");
    assert_string_equal(tags->open, "<think>");
    assert_true(ob_reasoning_prompt_opens(tags, "<think>", 7));
    assert_false(ob_reasoning_prompt_opens(tags, "think>", 6));
    assert_false(ob_reasoning_prompt_opens(tags, "", 0));
    assert_false(ob_reasoning_prompt_opens(tags, "<think>\n\n</think>\n\n", 19));
    ob_reasoning_format format;
    assert_true(ob_reasoning_format_parse("deepseek", &format));
    assert_int_equal(format, OB_REASONING_AUTO);
    assert_false(ob_reasoning_format_parse("other", &format));
}

/* DeepSeek V4: the prompts that its own encoding gives for the same conversations (thinking and not, effort, tools). */
static void test_deepseek4(void **state)
{
    (void)state;
    ob_err err;
    ob_tmpl *t;
    json_t *cases = json_load_file(OB_TEST_DATA "/deepseek4_prompts.json", 0, NULL), *c;
    assert_true(json_array_size(cases) >= 20);
    assert_int_equal(ob_tmpl_new(ob_tmpl_builtin("deepseek4"), strlen(ob_tmpl_builtin("deepseek4")), &t, &err), OB_OK);
    assert_true(ob_tmpl_get_caps(t)->tools && ob_tmpl_get_caps(t)->tool_calls);
    assert_string_equal(ob_call_style_name(ob_call_style_of(ob_tmpl_source(t))), "dsml");
    size_t i;
    json_array_foreach(cases, i, c)
    {
        const json_t *request = json_object_get(c, "request"), *tools = json_object_get(request, "tools");
        ob_buf messages, out;
        ob_buf_init(&messages, 1 << 20);
        ob_buf_init(&out, 1 << 20);
        assert_int_equal(ob_tmpl_messages(t, json_object_get(request, "messages"), &messages, &err), OB_OK);
        char *kwargs = json_dumps(json_object_get(request, "chat_template_kwargs"), 0), *list = tools ? json_dumps(tools, 0) : NULL;
        const ob_tmpl_args args = {.messages_json = ob_buf_str(&messages), .tools_json = list, .extra_json = kwargs,
                                   .bos_token = "<｜begin▁of▁sentence｜>", .eos_token = "<｜end▁of▁sentence｜>",
                                   .add_generation_prompt = true};
        assert_int_equal(ob_tmpl_render(t, &args, &out, &err), OB_OK);
        assert_string_equal(ob_buf_str(&out), json_string_value(json_object_get(c, "prompt")));
        free(kwargs);
        free(list);
        ob_buf_deinit(&messages);
        ob_buf_deinit(&out);
    }
    json_decref(cases);
    ob_tmpl_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deepseek4),       cmocka_unit_test(test_render),          cmocka_unit_test(test_errors),
        cmocka_unit_test(test_source_limit),    cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_deep_source),     cmocka_unit_test(test_content),
        cmocka_unit_test(test_roles),           cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_reasoning_names), cmocka_unit_test(test_reasoning_split),
        cmocka_unit_test(test_reasoning_space), cmocka_unit_test(test_reasoning_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
