/* engine/stages.h: inside engine/: which device runs which op, and a program cut into stages, one device each.
 *
 * A stage is a run of ops on one device as a program of its own: with the weights, caches and states that it
 * needs, the values of earlier stages as inputs, those of later ones as outputs. A step runs the stages one
 * after the other; what crosses a border goes through host memory. With one device there is one stage, but for
 * borders that the engine asks for because it has to do something between two ops (experts that are streamed).
 */
#ifndef OB_ENGINE_STAGES_H
#define OB_ENGINE_STAGES_H

#include "base/arena.h"
#include "ops/ops.h"

enum { OB_MAX_PLACES = 16 }; /* devices that one model is spread over */

typedef struct ob_placement {
    int32_t n_dev;                /* devices that share the layers */
    double share[OB_MAX_PLACES];  /* of each, any unit; > 0 */
    int32_t n_cpu_moe, cpu;       /* experts of the first n_cpu_moe layers run on device `cpu` */
} ob_placement;

/* op_dev[n_ops]: the device of each op. Layers go to devices in order, by share; what stands before the first layer
 * to the first device, what stands behind the last to the last. */
void ob_place_ops(const ob_program *p, const ob_placement *pl, int32_t *op_dev);

typedef struct ob_stage {
    int32_t dev;
    ob_program prog;     /* not yet planned; values that cross are marked `input` and `output` */
    ob_val *val_of;      /* [prog.n_vals]: the value of the whole program */
    int32_t *weight_of, *cache_of, *state_of; /* likewise */
} ob_stage;

typedef struct ob_stages {
    ob_arena arena;
    ob_stage *stage;
    int32_t n;
} ob_stages;

/* `whole` is only read during the call, but for names and weights' data, which stay borrowed. border [n_ops]: a stage
 * begins at this op whatever its device; NULL: nowhere. */
OB_MUST_CHECK ob_status ob_stages_new(const ob_program *whole, const int32_t *op_dev, const bool *border, ob_stages **out,
                                      ob_err *err);
void ob_stages_free(ob_stages *s);

#endif
