/* route/measure.h: how long each target takes on this machine, for a policy.
 *
 * Owns: the order and number of runs. Loads one target after the other; nothing else should be running.
 */
#ifndef OB_ROUTE_MEASURE_H
#define OB_ROUTE_MEASURE_H

#include "route/policy.h"

typedef struct ob_measure_params {
    ob_engine_params engine;     /* the served model; its device is not looked at */
    const char *const *targets;  /* [n_targets] names as in policies; the first wins ties */
    int32_t n_targets;
    const int32_t *lengths;      /* [n_lengths] prompt lengths, ascending */
    int32_t n_lengths;
    int32_t n_repeat;            /* runs that medians are taken of; 0: 5 */
    ob_scorer *scorer;           /* NULL: decisions are not measured */
    /* What is done, and that a target fell out (then `error` is its text). */
    void (*on_note)(void *arg, const char *target, int32_t n_prompt, const char *error);
    void *arg;
} ob_measure_params;

/* A target that cannot be opened, or fails, is left out and noted; an error only when none is left. Lengths that the
 * context does not hold are skipped. Fills p->measured, the classes and the default. */
OB_MUST_CHECK ob_status ob_policy_measure(const ob_measure_params *m, ob_policy *p, ob_err *err);

#endif
