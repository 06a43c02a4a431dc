/* engine/stop.h: stop strings over a stream of text. Engine thread. */
#ifndef OB_ENGINE_STOP_H
#define OB_ENGINE_STOP_H

#include "base/buf.h"

typedef struct ob_stop {
    char **strings;  /* owned */
    size_t *lens;
    size_t n;
    size_t longest;
} ob_stop;

/* Copies. Errors: LIMIT (count or length, see base/limits.h), INVALID (an empty string). */
OB_MUST_CHECK ob_status ob_stop_init(ob_stop *s, const char *const *strings, size_t n, ob_err *err);
void ob_stop_deinit(ob_stop *s);

/* Look at held-back text. If a stop string is met, *hit is its index and *show the bytes before it (the
 * earliest end wins). Else *hit is -1 and *show the bytes that no stop string can still claim. */
void ob_stop_scan(const ob_stop *s, const char *text, size_t len, size_t *show, int *hit);

#endif
