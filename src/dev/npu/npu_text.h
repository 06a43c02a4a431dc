/* dev/npu/npu_text.h: the control texts of our kernels, for any shape.
 *
 * Owns: which transfers, in which order, with which waits. Knows nothing of devices: pure functions of a shape. A text
 * names its buffers by argument numbers; ob_npu_patch_apply puts addresses in.
 */
#ifndef OB_DEV_NPU_NPU_TEXT_H
#define OB_DEV_NPU_NPU_TEXT_H

#include "dev/npu/npu_array.h"
#include "dev/npu/npu_layout.h"
#include "dev/npu/npu_txn.h"

/* What a kernel set says of its PDI; ob_npu_place_default() is what kernels/npu is written for. */
typedef struct ob_npu_place {
    uint32_t rtp_addr, lock_addr; /* in each core tile */
    uint32_t controller;          /* that tokens are routed to */
} ob_npu_place;
ob_npu_place ob_npu_place_default(void);

/* Memory of a transfer: n_words at byte `off` of argument `arg`; with n_runs > 1 as many runs of n_words (at most
 * 1023), run_step words apart. */
typedef struct ob_npu_span { uint16_t arg; uint64_t off; uint32_t n_words, n_runs, run_step; } ob_npu_span;

/* Each begins with ob_npu_txn_init and ends with ob_npu_txn_finish; *t is the caller's to deinit also on failure. */

/* Load PDI number `id` (argument 0 is its address). */
OB_MUST_CHECK ob_status ob_npu_text_init(ob_npu_txn *t, uint16_t id, uint32_t pdi_bytes, ob_err *err);
/* Nothing but a NOOP: does the controller answer? */
OB_MUST_CHECK ob_status ob_npu_text_nop(ob_npu_txn *t, ob_err *err);
/* Copy n_bytes from argument 0 to argument 1, an eighth in each column; a multiple of 32 bytes. For the copy design. */
OB_MUST_CHECK ob_status ob_npu_text_copy(ob_npu_txn *t, const ob_npu_place *p, uint64_t n_bytes, ob_err *err);
/* Argument 2 [m][n] int32 = argument 0 (i8r, m x k) * argument 1 (i8c, k x n). m a multiple of 128, k of 64, n of 1024.
 * patch_ops: with DDR_PATCH operations, for tools and opcode 20. */
OB_MUST_CHECK ob_status ob_npu_text_gemm(ob_npu_txn *t, const ob_npu_place *p, int64_t m, int64_t k, int64_t n,
                                         bool patch_ops, ob_err *err);
/* Argument 2 [n] f32 = argument 0 (k bf16) * argument 1 (q4g32). k a multiple of 256, n of 1024. For the GEMV design.
 */
OB_MUST_CHECK ob_status ob_npu_text_gemv(ob_npu_txn *t, const ob_npu_place *p, int64_t k, int64_t n, bool patch_ops,
                                         ob_err *err);

/* Parts of a text for the STEP design, one after the other: each has all its results in memory before the next begins.
 * The text, which has been initialised, begins anew with step_begin and is ended by ob_npu_txn_finish, which also tells of
 * fields that did not fit. */
void ob_npu_text_step_begin(ob_npu_txn *t, const ob_npu_place *p);
/* y [n] f32 = x [k] bf16 * w (q4g32); whole tiles as above. Only where the spans begin is looked at. */
OB_MUST_CHECK ob_status ob_npu_text_step_gemv(ob_npu_txn *t, const ob_npu_place *p, int64_t k, int64_t n,
                                              const ob_npu_span *x, const ob_npu_span *w, const ob_npu_span *y,
                                              ob_err *err);
/* A vector operation (npu_array.h) over the words of up to four spans, in order. */
void ob_npu_text_step_vec(ob_npu_txn *t, const ob_npu_place *p, ob_npu_vec op, const uint32_t params[5],
                          const ob_npu_span *in, int n_in, const ob_npu_span *out);

#endif
