/* render_template: chat templates from a test script. One JSON object a line on stdin:
 *   {"template": text, "messages": [...], "tools": [...]?, "extra": {...}?, "bos_token": text?,
 *    "eos_token": text?, "now_unix": n?, "add_generation_prompt": bool?, "normalise": bool?}
 * and one a line on stdout: {"ok": text} or {"error": status name, "text": text}. `template` may be
 * left out to use the one before. With "normalise" the messages go through ob_tmpl_messages first.
 * The line {"caps": true} answers with what the template can do.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "tmpl/tmpl.h"

static char *dump(const json_t *v)
{
    return v && !json_is_null(v) ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
}

static ob_status render(const ob_tmpl *t, const json_t *job, ob_buf *out, ob_err *err)
{
    ob_buf converted;
    ob_buf_init(&converted, OB_MAX_RENDER_BYTES);
    char *messages = dump(json_object_get(job, "messages"));
    char *tools = dump(json_object_get(job, "tools")), *extra = dump(json_object_get(job, "extra"));
    ob_tmpl_args args = {
        .messages_json = messages,
        .tools_json = tools,
        .extra_json = extra,
        .bos_token = json_string_value(json_object_get(job, "bos_token")),
        .eos_token = json_string_value(json_object_get(job, "eos_token")),
        .now_unix = json_integer_value(json_object_get(job, "now_unix")),
        .add_generation_prompt = json_is_true(json_object_get(job, "add_generation_prompt")),
    };
    ob_status s = OB_OK;
    if (json_is_true(json_object_get(job, "normalise"))) {
        OB_GOTO(ob_tmpl_messages(t, json_object_get(job, "messages"), &converted, err));
        args.messages_json = ob_buf_str(&converted);
    }
    s = ob_tmpl_render(t, &args, out, err);
out:
    free(messages);
    free(tools);
    free(extra);
    ob_buf_deinit(&converted);
    return s;
}

static json_t *answer_caps(const ob_tmpl *t)
{
    const ob_tmpl_caps *c = ob_tmpl_get_caps(t);
    return json_pack("{s:b,s:b,s:b,s:b,s:b,s:b,s:b,s:b,s:b}", "string_content", c->string_content,
                     "part_content", c->part_content, "system_role", c->system_role,
                     "developer_role", c->developer_role, "tools", c->tools, "tool_calls",
                     c->tool_calls, "object_arguments", c->object_arguments, "string_arguments",
                     c->string_arguments, "absent_content", c->absent_content);
}

static json_t *answer(ob_tmpl **t, const json_t *job)
{
    ob_err err = {0};
    ob_status s = OB_OK;
    const json_t *source = json_object_get(job, "template");
    if (source) {
        ob_tmpl_free(*t);
        s = ob_tmpl_new(json_string_value(source), json_string_length(source), t, &err);
    }
    if (s == OB_OK && !*t) s = ob_err_set(&err, OB_E_INVALID, "no template yet");
    if (s == OB_OK && json_object_get(job, "caps")) return answer_caps(*t);
    ob_buf out;
    ob_buf_init(&out, OB_MAX_RENDER_BYTES);
    if (s == OB_OK) s = render(*t, job, &out, &err);
    json_t *reply = s == OB_OK ? json_pack("{s:s%}", "ok", ob_buf_str(&out), out.len)
                               : json_pack("{s:s,s:s}", "error", ob_status_describe(s)->name, "text",
                                           err.text);
    ob_buf_deinit(&out);
    return reply;
}

int main(void)
{
    ob_tmpl *t = NULL;
    char *line = NULL;
    size_t cap = 0;
    int rc = 0;
    for (ssize_t n; rc == 0 && (n = getline(&line, &cap, stdin)) > 0;) {
        json_error_t e;
        json_t *job = json_loadb(line, (size_t)n, JSON_REJECT_DUPLICATES, &e);
        json_t *reply = job ? answer(&t, job)
                            : json_pack("{s:s,s:s}", "error", "format", "text", e.text);
        rc = !reply || json_dumpf(reply, stdout, JSON_COMPACT) || printf("\n") < 0 || fflush(stdout);
        json_decref(reply);
        json_decref(job);
    }
    free(line);
    ob_tmpl_free(t);
    return rc;
}
