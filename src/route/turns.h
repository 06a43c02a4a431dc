/* route/turns.h: conversations out of JSON. */
#ifndef OB_ROUTE_TURNS_H
#define OB_ROUTE_TURNS_H

#include "route/scorer.h"

typedef struct ob_turn_list {
    ob_turns turns; /* its strings are borrowed from the JSON */
    ob_str *texts;
    int32_t cap;
} ob_turn_list;

/* A text, or a list of messages {"content": text or parts}; of parts those with a "text" count. `what` names the
 * source in errors (INVALID, LIMIT, NO_MEMORY). */
OB_MUST_CHECK ob_status ob_turns_parse(const json_t *v, const char *what, ob_turn_list *out, ob_err *err);
void ob_turn_list_deinit(ob_turn_list *l);

#endif
