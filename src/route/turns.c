/* Conversations out of JSON: [{"role", "content": text or parts}], or one text. */
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "route/turns.h"

static ob_status add(ob_turn_list *l, const json_t *text, const char *what, ob_err *err)
{
    if (!json_is_string(text)) return ob_err_set(err, OB_E_INVALID, "%s: a text is missing", what);
    if (l->turns.n == l->cap) {
        const int32_t cap = l->cap ? 2 * l->cap : 8;
        ob_str *more = ob_reallocarray(l->texts, (size_t)cap, sizeof *more);
        if (!more) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a conversation");
        l->texts = more;
        l->cap = cap;
    }
    l->texts[l->turns.n++] = (ob_str){json_string_value(text), json_string_length(text)};
    l->turns.texts = l->texts;
    return OB_OK;
}

/* A content is a text or a list of parts, of which those with a text count. */
static ob_status add_content(ob_turn_list *l, const json_t *content, const char *what, ob_err *err)
{
    size_t i;
    json_t *part;
    if (json_is_null(content)) return OB_OK; /* an assistant's tool call */
    if (!json_is_array(content)) return add(l, content, what, err);
    json_array_foreach((json_t *)content, i, part)
    {
        const json_t *text = json_is_string(part) ? part : json_object_get(part, "text");
        if (text) OB_TRY(add(l, text, what, err));
    }
    return OB_OK;
}

ob_status ob_turns_parse(const json_t *v, const char *what, ob_turn_list *out, ob_err *err)
{
    ob_status s = OB_OK;
    size_t i;
    json_t *message;
    *out = (ob_turn_list){0};
    if (json_is_string(v)) {
        OB_GOTO(add(out, v, what, err));
    } else if (json_is_array(v)) {
        if (json_array_size(v) > OB_MAX_MESSAGES)
            OB_GOTO(ob_err_set(err, OB_E_LIMIT, "%s has more than %u messages", what, OB_MAX_MESSAGES));
        json_array_foreach((json_t *)v, i, message)
        {
            if (json_is_string(message)) OB_GOTO(add(out, message, what, err));
            else if (json_is_object(message)) OB_GOTO(add_content(out, json_object_get(message, "content"), what, err));
            else OB_GOTO(ob_err_set(err, OB_E_INVALID, "%s: message %zu is no object", what, i));
        }
    }
    if (out->turns.n == 0)
        s = ob_err_set(err, OB_E_INVALID, "%s is neither a text nor a list of messages with text", what);
out:
    if (s != OB_OK) ob_turn_list_deinit(out);
    return s;
}

void ob_turn_list_deinit(ob_turn_list *l)
{
    ob_free(l->texts);
    *l = (ob_turn_list){0};
}
