/* tmpl.c: compile, probe and render, through textkit (the Rust library). */
#include "tmpl/tmpl.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "textkit.h"

struct ob_tmpl {
    tk_template *compiled;
    char *source;
    ob_tmpl_caps caps;
};

/* ---- errors --------------------------------------------------------------------------------- */

static ob_status status_of(tk_status s)
{
    switch (s) {
    case TK_OK: return OB_OK;
    case TK_E_SYNTAX: return OB_E_FORMAT;
    case TK_E_RENDER:
    case TK_E_RAISED:
    case TK_E_INPUT: return OB_E_INVALID;
    case TK_E_LIMIT: return OB_E_LIMIT;
    case TK_E_NO_MEMORY: return OB_E_NO_MEMORY;
    case TK_E_PANIC: break;
    }
    return OB_E_INTERNAL;
}

static ob_status set_error(ob_err *err, tk_status s, const tk_error *e)
{
    if (s == TK_OK) return OB_OK;
    if (s == TK_E_RAISED) return ob_err_set(err, status_of(s), "%s", e->text);
    if (e->line)
        return ob_err_set(err, status_of(s), "chat template, line %u: %s", e->line, e->text);
    return ob_err_set(err, status_of(s), "chat template: %s", e->text);
}

/* ---- rendering ------------------------------------------------------------------------------ */

static tk_str str_of(const char *s, size_t len)
{
    return (tk_str){.data = s, .len = s && !len ? strlen(s) : len};
}

static void append(void *arg, const char *data, size_t len) { ob_buf_add(arg, data, len); }

ob_status ob_tmpl_render(const ob_tmpl *t, const ob_tmpl_args *args, ob_buf *out, ob_err *err)
{
    const tk_render_args a = {
        .messages = str_of(args->messages_json, args->messages_len),
        .tools = str_of(args->tools_json, args->tools_len),
        .extra = str_of(args->extra_json, args->extra_len),
        .bos_token = str_of(args->bos_token, 0),
        .eos_token = str_of(args->eos_token, 0),
        .now_unix = args->now_unix ? args->now_unix : (int64_t)time(NULL),
        .add_generation_prompt = args->add_generation_prompt,
    };
    tk_error e = {0};
    tk_status s = tk_template_render(t->compiled, &a, append, out, &e);
    if (s != TK_OK) return set_error(err, s, &e);
    return ob_buf_status(out, err);
}

/* ---- probes --------------------------------------------------------------------------------- */

#define PROBE "Zq7pRoBe"
#define USER(content) "{\"role\":\"user\",\"content\":" content "}"
#define CALL(content, arguments)                                                                  \
    "[" USER("\"hi\"") ",{\"role\":\"assistant\"," content                                        \
    "\"tool_calls\":[{\"id\":\"call00001\",\"type\":\"function\",\"function\":"                   \
    "{\"name\":\"probe_call\",\"arguments\":" arguments "}}]}]"

static const char k_probe_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"" PROBE "\",\"description\":\"d\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"string\","
    "\"description\":\"d\"}},\"required\":[\"x\"]}}}]";

/* Render one probe into *out (cleared first); false if the template fails on it. */
static bool probe(const tk_template *t, const char *messages, const char *tools, ob_buf *out)
{
    const tk_render_args args = {.messages = str_of(messages, 0),
                                 .tools = str_of(tools, 0),
                                 .bos_token = str_of("<s>", 0),
                                 .eos_token = str_of("</s>", 0),
                                 .now_unix = 1};
    ob_buf_clear(out);
    return tk_template_render(t, &args, append, out, NULL) == TK_OK && out->failed == OB_OK;
}

static bool probe_has(const tk_template *t, const char *messages, const char *tools, ob_buf *out)
{
    return probe(t, messages, tools, out) && strstr(ob_buf_str(out), PROBE) != NULL;
}

static void probe_content(const tk_template *t, ob_tmpl_caps *c, ob_buf *a, ob_buf *b)
{
    c->string_content = probe_has(t, "[" USER("\"" PROBE "\"") "]", NULL, a);
    c->part_content =
        probe_has(t, "[" USER("[{\"type\":\"text\",\"text\":\"" PROBE "\"}]") "]", NULL, b);
    /* A template that prints the list itself also shows the text, but not as it shows a string. */
    if (c->string_content && c->part_content)
        c->part_content = strcmp(ob_buf_str(a), ob_buf_str(b)) == 0;
    if (!c->part_content) c->string_content = true;

    const char *system = c->string_content
        ? "[{\"role\":\"system\",\"content\":\"" PROBE "\"}," USER("\"hi\"") "]"
        : "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"" PROBE "\"}]},"
          USER("[{\"type\":\"text\",\"text\":\"hi\"}]") "]";
    c->system_role = probe_has(t, system, NULL, a);
}

static void probe_tools(const tk_template *t, ob_tmpl_caps *c, ob_buf *out)
{
    c->tools = probe_has(t, "[" USER("\"hi\"") "]", k_probe_tools, out);

    bool object = probe_has(t, CALL("\"content\":\"\",", "{\"key\":\"" PROBE "\"}"), NULL, out);
    object = object && !strstr(ob_buf_str(out), "'key'"); /* a dict printed as Python prints it */
    bool string =
        probe_has(t, CALL("\"content\":\"\",", "\"{\\\"key\\\": \\\"" PROBE "\\\"}\""), NULL, out);
    c->string_arguments = string;
    string = string && !strstr(ob_buf_str(out), "\\\"key"); /* a JSON text quoted once more */
    c->tool_calls = object || string;
    c->object_arguments = object || !string;

    const char *absent = c->object_arguments
        ? CALL("", "{\"key\":\"" PROBE "\"}")
        : CALL("", "\"{\\\"key\\\": \\\"" PROBE "\\\"}\"");
    c->absent_content = probe(t, absent, NULL, out) && !strstr(ob_buf_str(out), "None");
}

/* ---- life ----------------------------------------------------------------------------------- */

static ob_status compile(const char *source, size_t len, size_t max_output, uint64_t max_steps,
                         tk_template **out, ob_err *err)
{
    const tk_limits limits = {.max_source_bytes = OB_MAX_TEMPLATE_BYTES,
                              .max_output_bytes = max_output,
                              .max_steps = max_steps};
    tk_error e = {0};
    return set_error(err, tk_template_new((tk_str){source, len}, &limits, out, &e), &e);
}

/* Fill t->caps from a copy of the template with narrow limits: a hostile one costs little here. */
static ob_status find_caps(ob_tmpl *t, size_t len, ob_err *err)
{
    tk_template *narrow;
    OB_TRY(compile(t->source, len, OB_MAX_PROBE_BYTES, OB_MAX_PROBE_STEPS, &narrow, err));
    ob_buf a, b;
    ob_buf_init(&a, OB_MAX_PROBE_BYTES);
    ob_buf_init(&b, OB_MAX_PROBE_BYTES);
    probe_content(narrow, &t->caps, &a, &b);
    probe_tools(narrow, &t->caps, &a);
    t->caps.developer_role = strstr(t->source, "developer") != NULL;
    ob_buf_deinit(&a);
    ob_buf_deinit(&b);
    tk_template_free(narrow);
    return OB_OK;
}

ob_status ob_tmpl_new(const char *source, size_t len, ob_tmpl **out, ob_err *err)
{
    *out = NULL;
    ob_status s = OB_OK;
    ob_tmpl *t = ob_calloc(1, sizeof *t);
    if (t) t->source = ob_strndup(source, len);
    if (!t || !t->source) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for a chat template of %zu bytes", len);
        goto out;
    }
    OB_GOTO(compile(source, len, OB_MAX_RENDER_BYTES, OB_MAX_RENDER_STEPS, &t->compiled, err));
    OB_GOTO(find_caps(t, len, err));
    *out = t;
    t = NULL;
out:
    ob_tmpl_free(t);
    return s;
}

void ob_tmpl_free(ob_tmpl *t)
{
    if (!t) return;
    tk_template_free(t->compiled);
    ob_free(t->source);
    ob_free(t);
}

const ob_tmpl_caps *ob_tmpl_get_caps(const ob_tmpl *t) { return &t->caps; }
const char *ob_tmpl_source(const ob_tmpl *t) { return t->source; }
