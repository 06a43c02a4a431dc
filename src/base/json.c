#include "base/json.h"

#include <stdbool.h>

#include "base/limits.h"
#include "base/math.h"

/* jansson's structures' sizes, rounded up. */
enum { OBJECT_COST = 320, ARRAY_COST = 144, MEMBER_COST = 208, ITEM_COST = 72 };

static ob_status check_text(const char *s, size_t len, const char *what, ob_err *err)
{
    size_t depth = 0, cost = 0;
    size_t most = OB_MIN((size_t)OB_MAX_JSON_ALLOC_BYTES, (16u << 20) + 16 * len);
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        if (in_string) {
            if (c == '\\') i++;
            else if (c == '"') in_string = false;
            continue;
        }
        in_string = c == '"';
        if (c == '[' || c == '{') depth++;
        else if ((c == ']' || c == '}') && depth) depth--;
        cost += c == '{' ? OBJECT_COST : c == '[' ? ARRAY_COST : c == ':' ? MEMBER_COST
                : c == ',' ? ITEM_COST : 0;
        if (depth > OB_MAX_JSON_DEPTH)
            return ob_err_set(err, OB_E_LIMIT, "%s nests deeper than %u levels", what, OB_MAX_JSON_DEPTH);
        if (cost > most) return ob_err_set(err, OB_E_LIMIT, "%s holds too many values", what);
    }
    return OB_OK;
}

ob_status ob_json_load(const char *text, size_t len, const char *what, json_t **out, ob_err *err)
{
    *out = NULL;
    OB_TRY(check_text(text, len, what, err));
    json_error_t e;
    json_t *j = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    if (j) {
        *out = j;
        return OB_OK;
    }
    if (json_error_code(&e) == json_error_out_of_memory)
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %s", what);
    if (json_error_code(&e) == json_error_duplicate_key)
        return ob_err_set(err, OB_E_INVALID, "%s has a key twice: %s (line %d)", what, e.text, e.line);
    if (json_error_code(&e) == json_error_null_character)
        return ob_err_set(err, OB_E_INVALID, "%s holds a NUL character (\\u0000), which no text here may hold (line %d)",
                          what, e.line);
    return ob_err_set(err, OB_E_INVALID, "%s is not JSON: %s (line %d, column %d)", what, e.text, e.line,
                      e.column);
}
