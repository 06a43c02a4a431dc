/* messages.c: OpenAI's `messages` in the form a template expects. See ob_tmpl_messages in tmpl.h.
 *
 * Works on jansson trees: the request's is only read, the template's is built beside it.
 */
#include <string.h>

#include "base/json.h"
#include "base/limits.h"
#include "tmpl/tmpl.h"

/* One call of ob_tmpl_messages. */
typedef struct conv {
    const ob_tmpl_caps *caps;
    json_t *out;      /* array, owned */
    json_t *system;   /* a system text waiting for a user message, owned, or NULL */
    size_t index;     /* of the message at hand, for errors */
    ob_err *err;
} conv;

static ob_status no_memory(const conv *c)
{
    return ob_err_set(c->err, OB_E_NO_MEMORY, "no memory for the messages");
}

/* ---- content -------------------------------------------------------------------------------- */

/* The text of one content part, *borrowed*; an error for all that a text model cannot read. */
static ob_status part_text(const conv *c, const json_t *part, const json_t **text)
{
    *text = part;
    if (json_is_string(part)) return OB_OK;
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type)
        return ob_err_set(c->err, OB_E_INVALID,
                          "messages[%zu].content: each part must be an object with a type", c->index);
    if (!strcmp(type, "text") || !strcmp(type, "input_text") || !strcmp(type, "output_text") ||
        !strcmp(type, OB_TMPL_PICTURE_MARK)) {
        *text = json_object_get(part, "text");
    } else if (!strcmp(type, "refusal")) {
        *text = json_object_get(part, "refusal");
    } else if (strstr(type, "image")) {
        return ob_err_set(c->err, OB_E_UNSUPPORTED, "messages[%zu]: this model cannot read images",
                          c->index);
    } else {
        return ob_err_set(c->err, OB_E_UNSUPPORTED,
                          "messages[%zu]: this model cannot read content of type '%.40s'", c->index,
                          type);
    }
    if (!json_is_string(*text))
        return ob_err_set(c->err, OB_E_INVALID,
                          "messages[%zu].content: a part of type '%.40s' has no text", c->index, type);
    return OB_OK;
}

static bool is_mark(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type && !strcmp(type, OB_TMPL_PICTURE_MARK);
}

/* All texts of an array of parts in one string, joined by a line feed, but not beside pictures. */
static ob_status join_parts(const conv *c, const json_t *parts, json_t **out)
{
    ob_status s = OB_OK;
    ob_buf b;
    ob_buf_init(&b, OB_MAX_BODY_BYTES);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *text;
        OB_GOTO(part_text(c, json_array_get(parts, i), &text));
        if (i && !is_mark(json_array_get(parts, i)) && !is_mark(json_array_get(parts, i - 1))) ob_buf_addc(&b, '\n');
        ob_buf_add(&b, json_string_value(text), json_string_length(text));
    }
    OB_GOTO(ob_buf_status(&b, c->err));
    *out = json_stringn_nocheck(ob_buf_str(&b), b.len);
    if (!*out) s = no_memory(c);
out:
    ob_buf_deinit(&b);
    return s;
}

/* {"type":"text","text":text}; `text` is *borrowed*. */
static json_t *text_part(const json_t *text)
{
    return json_pack("{s:s,s:O}", "type", "text", "text", text);
}

static ob_status keep_parts(const conv *c, const json_t *parts, json_t **out)
{
    *out = json_array();
    if (!*out) return no_memory(c);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *text;
        OB_TRY(part_text(c, json_array_get(parts, i), &text));
        if (json_array_append_new(*out, text_part(text))) return no_memory(c);
    }
    return OB_OK;
}

/* The content for the template: *out is owned, NULL where the message has none. */
static ob_status convert_content(const conv *c, const json_t *content, json_t **out)
{
    *out = NULL;
    if (!content || json_is_null(content)) return OB_OK;
    if (json_is_array(content))
        return c->caps->part_content ? keep_parts(c, content, out) : join_parts(c, content, out);
    if (!json_is_string(content))
        return ob_err_set(c->err, OB_E_INVALID,
                          "messages[%zu].content must be a string or an array of parts", c->index);
    *out = c->caps->string_content ? json_deep_copy(content)
                                   : json_pack("[o]", text_part(content));
    return *out ? OB_OK : no_memory(c);
}

/* ---- tool calls ----------------------------------------------------------------------------- */

/* Arguments as the template wants them; *out is owned. Clients send a JSON text by OpenAI's rules;
 * some send an object. A model's broken JSON stays what it is. */
static ob_status convert_arguments(const conv *c, const json_t *arguments, json_t **out)
{
    *out = NULL;
    if (!arguments || json_is_null(arguments)) {
        *out = c->caps->object_arguments ? json_object() : json_string("{}");
    } else if (!json_is_string(arguments)) {
        if (c->caps->object_arguments) {
            *out = json_deep_copy(arguments);
        } else {
            char *text = json_dumps(arguments, JSON_ENCODE_ANY);
            *out = text ? json_string_nocheck(text) : NULL;
            free(text);
        }
    } else if (!c->caps->object_arguments) {
        *out = json_deep_copy(arguments);
    } else {
        const char *text = json_string_value(arguments);
        json_t *parsed;
        /* What is not JSON, or not within bounds, stays a string. */
        (void)!ob_json_load(text, json_string_length(arguments), "arguments", &parsed, NULL);
        if (json_is_object(parsed)) {
            *out = parsed;
        } else {
            json_decref(parsed);
            *out = c->caps->string_arguments ? json_deep_copy(arguments)
                                             : json_pack("{s:O}", "arguments", arguments);
        }
    }
    return *out ? OB_OK : no_memory(c);
}

static ob_status convert_call(const conv *c, size_t i, const json_t *call, json_t **out)
{
    const json_t *function = json_object_get(call, "function");
    if (!json_is_string(json_object_get(function, "name")))
        return ob_err_set(c->err, OB_E_INVALID,
                          "messages[%zu].tool_calls[%zu].function.name must be a string", c->index, i);
    json_t *arguments;
    OB_TRY(convert_arguments(c, json_object_get(function, "arguments"), &arguments));
    json_t *copy = json_copy((json_t *)function);
    if (!copy || json_object_set_new(copy, "arguments", arguments)) {
        json_decref(copy);
        return no_memory(c);
    }
    *out = json_copy((json_t *)call);
    if (!*out) json_decref(copy);
    else if (!json_object_set_new(*out, "function", copy)) return OB_OK;
    return no_memory(c);
}

static ob_status convert_calls(const conv *c, const json_t *calls, json_t **out)
{
    if (!json_is_array(calls))
        return ob_err_set(c->err, OB_E_INVALID, "messages[%zu].tool_calls must be an array",
                          c->index);
    *out = json_array();
    if (!*out) return no_memory(c);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = NULL;
        ob_status s = convert_call(c, i, json_array_get(calls, i), &call);
        if (s == OB_OK && json_array_append_new(*out, call)) return no_memory(c);
        if (s != OB_OK) {
            json_decref(call);
            return s;
        }
    }
    return OB_OK;
}

/* ---- messages ------------------------------------------------------------------------------- */

/* Copy what the caller gave, without nulls; role, content and tool calls are set by others. */
static ob_status copy_fields(const conv *c, const json_t *in, json_t *out)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)in, key, value)
    {
        if (json_is_null(value)) continue;
        /* Setting keeps the place of a key that is there: the order stays the caller's. */
        if (json_object_set_nocheck(out, key, value)) return no_memory(c);
    }
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *reasoning = NULL;
    for (size_t i = 0; i < 3 && !reasoning; i++) reasoning = json_object_get(out, names[i]);
    if (!reasoning) return OB_OK;
    if (!json_object_get(out, "thinking") && json_object_set(out, "thinking", reasoning))
        return no_memory(c);
    return json_object_set(out, "reasoning_content", reasoning) ? no_memory(c) : OB_OK;
}

/* Put the waiting system text in front of a user's content (a string or parts). */
static ob_status prefix_system(conv *c, json_t **content)
{
    json_t *joined;
    if (json_is_array(*content)) {
        joined = json_pack("[o]", text_part(c->system));
        if (!joined || json_array_extend(joined, *content)) {
            json_decref(joined);
            return no_memory(c);
        }
    } else {
        const char *user = *content ? json_string_value(*content) : "";
        joined = json_sprintf("%s\n\n%s", json_string_value(c->system), user);
        if (!joined) return no_memory(c);
    }
    json_decref(*content);
    json_decref(c->system);
    c->system = NULL;
    *content = joined;
    return OB_OK;
}

/* Keep a system message's text for the next user message; more than one is joined. */
static ob_status hold_system(conv *c, const json_t *content)
{
    json_t *text = NULL;
    if (json_is_array(content)) {
        OB_TRY(join_parts(c, content, &text));
    } else if (json_is_string(content)) {
        text = json_deep_copy(content);
        if (!text) return no_memory(c);
    } else {
        return OB_OK;
    }
    if (c->system) {
        json_t *both =
            json_sprintf("%s\n\n%s", json_string_value(c->system), json_string_value(text));
        json_decref(text);
        if (!both) return no_memory(c);
        json_decref(c->system);
        text = both;
    }
    c->system = text;
    return OB_OK;
}

static ob_status convert_message(conv *c, const json_t *in, json_t *out)
{
    const char *role = json_string_value(json_object_get(in, "role"));
    if (!role)
        return ob_err_set(c->err, OB_E_INVALID, "messages[%zu].role must be a string", c->index);
    if (!strcmp(role, "developer") && !c->caps->developer_role) role = "system";
    OB_TRY(copy_fields(c, in, out));

    ob_status s = OB_OK;
    json_t *content = NULL, *calls = NULL;
    const json_t *raw_calls = json_object_get(out, "tool_calls");
    OB_GOTO(convert_content(c, json_object_get(in, "content"), &content));
    if (raw_calls) OB_GOTO(convert_calls(c, raw_calls, &calls));
    bool system = !strcmp(role, "system");
    if (system && !c->caps->system_role) {
        s = hold_system(c, content);
        goto out;
    }
    if (c->system && !strcmp(role, "user")) OB_GOTO(prefix_system(c, &content));
    if (!content && !(raw_calls && c->caps->absent_content)) {
        content = c->caps->string_content ? json_string("") : json_array();
        if (!content) OB_GOTO(no_memory(c));
    }
    if (json_object_set_new(out, "role", json_string_nocheck(role))) OB_GOTO(no_memory(c));
    if (content && json_object_set(out, "content", content)) OB_GOTO(no_memory(c));
    if (calls && json_object_set(out, "tool_calls", calls)) OB_GOTO(no_memory(c));
    if (json_array_append(c->out, out)) s = no_memory(c);
out:
    json_decref(content);
    json_decref(calls);
    return s;
}

/* A system text that no user message followed becomes a user message of its own. */
static ob_status flush_system(conv *c)
{
    if (!c->system) return OB_OK;
    json_t *content = c->caps->string_content ? json_incref(c->system)
                                              : json_pack("[o]", text_part(c->system));
    json_t *message = json_pack("{s:s,s:o}", "role", "user", "content", content);
    return message && !json_array_append_new(c->out, message) ? OB_OK : no_memory(c);
}

static int add_json(const char *data, size_t len, void *arg)
{
    ob_buf *b = arg;
    ob_buf_add(b, data, len);
    return b->failed == OB_OK ? 0 : -1;
}

ob_status ob_tmpl_messages(const ob_tmpl *t, const json_t *messages, ob_buf *out, ob_err *err)
{
    if (!json_is_array(messages))
        return ob_err_set(err, OB_E_INVALID, "messages must be an array");
    if (json_array_size(messages) > OB_MAX_MESSAGES)
        return ob_err_set(err, OB_E_LIMIT, "messages has %zu entries, more than %u",
                          json_array_size(messages), OB_MAX_MESSAGES);
    size_t before = out->len;
    ob_status s = OB_OK;
    conv c = {.caps = ob_tmpl_get_caps(t), .out = json_array(), .err = err};
    if (!c.out) OB_GOTO(no_memory(&c));
    for (; c.index < json_array_size(messages); c.index++) {
        const json_t *in = json_array_get(messages, c.index);
        if (!json_is_object(in))
            OB_GOTO(ob_err_set(err, OB_E_INVALID, "messages[%zu] must be an object", c.index));
        json_t *message = json_object();
        if (!message) OB_GOTO(no_memory(&c));
        s = convert_message(&c, in, message);
        json_decref(message);
        if (s != OB_OK) goto out;
    }
    OB_GOTO(flush_system(&c));
    if (json_dump_callback(c.out, add_json, out, JSON_COMPACT) && out->failed == OB_OK)
        OB_GOTO(no_memory(&c));
    s = ob_buf_status(out, err);
out:
    if (s != OB_OK && out->data) {
        out->len = before;
        out->data[before] = 0;
    }
    json_decref(c.out);
    json_decref(c.system);
    return s;
}
