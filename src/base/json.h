/* base/json.h: jansson behind bounds, for JSON text from strangers.
 *
 * jansson 2.14 recurses, grows a text of "[[],[]," about forty-fold, and its lexer ends the program by
 * an assertion when an allocation fails in mid-token. So depth and memory are bounded here, before it
 * runs, from a count of what the text holds.
 */
#ifndef OB_BASE_JSON_H
#define OB_BASE_JSON_H

#include <jansson.h>

#include "base/status.h"

/* Parse any JSON value. `what` names the text in errors ("the request body"). *out is *taken*.
 * Errors: INVALID (not JSON, a key twice), LIMIT (depth, memory), NO_MEMORY. */
OB_MUST_CHECK ob_status ob_json_load(const char *text, size_t len, const char *what, json_t **out,
                                     ob_err *err);

#endif
