/* dev/step_check.h: is a step's every index in range? Shared by devices that work in host memory.
 *
 * Costs a few nanoseconds per token and per page; allocates nothing.
 */
#ifndef OB_DEV_STEP_CHECK_H
#define OB_DEV_STEP_CHECK_H

#include "ops/ops.h"

/* The program's bucket, token ids (against its embedding tables), adjacent sequences, past + new
 * within max_ctx, page ids in [0, n_pages), out_rows, state slots. OB_E_INVALID names what is wrong. */
OB_MUST_CHECK ob_status ob_step_check(const ob_program *p, const ob_step *s, int32_t page_tok, int32_t n_pages,
                                      int32_t max_ctx, int32_t n_slots, ob_err *err);

#endif
