#include "engine/stop.h"

#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"

ob_status ob_stop_init(ob_stop *s, const char *const *strings, size_t n, ob_err *err)
{
    *s = (ob_stop){0};
    if (n > OB_MAX_STOP_STRINGS)
        return ob_err_set(err, OB_E_LIMIT, "%zu stop strings, at most %u are allowed", n,
                          OB_MAX_STOP_STRINGS);
    if (n == 0) return OB_OK;
    s->strings = ob_calloc(n, sizeof *s->strings);
    s->lens = ob_calloc(n, sizeof *s->lens);
    if (!s->strings || !s->lens) goto no_memory;
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(strings[i]);
        if (len == 0 || len > OB_MAX_STOP_BYTES) {
            ob_stop_deinit(s);
            return ob_err_set(err, OB_E_INVALID, "stop string %zu has %zu bytes, must have 1..%u", i + 1,
                              len, OB_MAX_STOP_BYTES);
        }
        s->strings[i] = ob_strndup(strings[i], len);
        if (!s->strings[i]) goto no_memory;
        s->lens[i] = len;
        s->longest = OB_MAX(s->longest, len);
        s->n = i + 1;
    }
    return OB_OK;
no_memory:
    ob_stop_deinit(s);
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %zu stop strings", n);
}

void ob_stop_deinit(ob_stop *s)
{
    for (size_t i = 0; i < s->n; i++) ob_free(s->strings[i]);
    ob_free(s->strings);
    ob_free(s->lens);
    *s = (ob_stop){0};
}

void ob_stop_scan(const ob_stop *s, const char *text, size_t len, size_t *show, int *hit)
{
    *hit = -1;
    size_t best_end = 0;
    for (size_t i = 0; i < s->n; i++) {
        const char *at = len >= s->lens[i] ? memmem(text, len, s->strings[i], s->lens[i]) : NULL;
        if (!at) continue;
        size_t end = (size_t)(at - text) + s->lens[i];
        if (*hit >= 0 && end >= best_end) continue;
        best_end = end;
        *hit = (int)i;
        *show = (size_t)(at - text);
    }
    if (*hit >= 0) return;
    /* the earliest place from which the rest of the text begins a stop string */
    for (size_t from = len > s->longest ? len - s->longest : 0; from < len; from++)
        for (size_t i = 0; i < s->n; i++)
            if (len - from < s->lens[i] && !memcmp(text + from, s->strings[i], len - from)) {
                *show = from;
                return;
            }
    *show = len;
}
