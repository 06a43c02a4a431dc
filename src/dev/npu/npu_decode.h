/* dev/npu/npu_decode.h: small steps of another device's plans, run on the array instead.
 *
 * Owns: the STEP design's context, a program on it for each plan (npu_step.h), when a step goes there, who wrote which
 * page of the caches last (the NPU does not look into the CPU's caches), and giving up after a failure. Knows the other
 * device only as memory: its caches and states lie where both reach them.
 */
#ifndef OB_DEV_NPU_NPU_DECODE_H
#define OB_DEV_NPU_NPU_DECODE_H

#include "dev/npu/npu_fwd_q4.h"
#include "dev/npu/npu_step.h"

typedef struct ob_npu_decode ob_npu_decode;
typedef struct ob_npu_decode_plan ob_npu_decode_plan; /* of one plan */

/* Both are *borrowed*: the NPU, and where weights are. */
OB_MUST_CHECK ob_status ob_npu_decode_new(ob_npu_dev *dev, ob_npu_fwd_q4 *weights, ob_npu_decode **out, ob_err *err);
void ob_npu_decode_free(ob_npu_decode *d); /* plans must have been freed; NULL is fine */

/* Caches and states as host memory, arrays *borrowed* as long as the plan lives; see ob_npu_step_options. *out NULL with OB_OK: this program cannot run there, which the
 * log says once. */
typedef struct ob_npu_decode_memory {
    void *const *cache_k, *const *cache_v;
    float *const *states;
    ob_type k_type, v_type;
    int32_t page_tok, n_pages, max_ctx, n_slots;
} ob_npu_decode_memory;
OB_MUST_CHECK ob_status ob_npu_decode_plan_new(ob_npu_decode *d, const ob_program *p, const ob_npu_decode_memory *m, ob_npu_decode_plan **out,
                                               ob_err *err);
void ob_npu_decode_plan_free(ob_npu_decode *d, ob_npu_decode_plan *p); /* NULL is fine */

/* Runs the step on the array, to its end. False: it is too large, or the array failed (now or before); the other device
 * must run it, from its beginning. p may be NULL. */
bool ob_npu_decode_run(ob_npu_decode *d, ob_npu_decode_plan *p, const ob_step *step);
/* Rows of a value after a run that was true. */
const float *ob_npu_decode_val(const ob_npu_decode_plan *p, ob_val v);
int32_t ob_npu_decode_cols(const ob_npu_decode_plan *p, ob_val v);
/* Before the other device runs a step; p may be NULL. */
void ob_npu_decode_before(ob_npu_decode *d, ob_npu_decode_plan *p, const ob_step *step);
/* Before caches or states are read or written in any other way. */
void ob_npu_decode_touch(ob_npu_decode *d);

typedef struct ob_npu_decode_stats { uint64_t n_steps, n_chains; bool failed; char reason[200]; } ob_npu_decode_stats;
ob_npu_decode_stats ob_npu_decode_stats_get(const ob_npu_decode *d);

#endif
