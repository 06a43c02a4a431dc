/* route/sticky.h: what was decided for the last conversations, so that each is decided once.
 *
 * First in, first out; a fixed size, nothing allocated after _new. *locked by its owner*.
 */
#ifndef OB_ROUTE_STICKY_H
#define OB_ROUTE_STICKY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { OB_MAX_STICKY = 4096 };

typedef struct ob_sticky ob_sticky;

typedef struct ob_stuck {
    int32_t target;
    int32_t cls;       /* ob_class */
    float confidence;
} ob_stuck;

OB_MUST_CHECK ob_status ob_sticky_new(ob_sticky **out, ob_err *err);
void ob_sticky_free(ob_sticky *s);
/* NULL when the key is not there. Valid until the next put. */
ob_stuck *ob_sticky_find(ob_sticky *s, uint64_t key);
/* Add or replace; the oldest of 4,096 goes. */
void ob_sticky_put(ob_sticky *s, uint64_t key, const ob_stuck *v);

#endif
