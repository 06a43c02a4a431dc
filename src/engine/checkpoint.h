/* engine/checkpoint.h: inside engine/: copies of recurrent states, so that models which have them can
 * reuse prefixes too.
 *
 * A checkpoint is the state of a sequence after a whole number of cache pages, with the tokens it stands
 * for. States cannot be rewound, so a later prompt starts from the longest checkpoint that is a prefix
 * of it and whose pages are in the cache as well. Bounded: at most MAX of them and BYTES in all, the least
 * recently used one goes first; a sequence that decodes keeps only its newest.
 *
 * Engine thread only. Memory is taken when a checkpoint is first used, on the device.
 */
#ifndef OB_ENGINE_CHECKPOINT_H
#define OB_ENGINE_CHECKPOINT_H

#include "dev/device.h"

typedef struct ob_ckpts ob_ckpts;

/* states are borrowed: [n_states] buffers of [n_slots][n_floats[i]]. page_tok: checkpoints are made at its
 * multiples. n_ctx: most tokens of one sequence. */
OB_MUST_CHECK ob_status ob_ckpts_new(ob_dev *dev, ob_dev_buf *const *states, const ob_state_spec *specs, int32_t n_states,
                                     int32_t page_tok, int32_t n_ctx, ob_ckpts **out, ob_err *err);
void ob_ckpts_free(ob_ckpts *c);
/* Keep the state in `slot` after tok[0..n): nothing happens when n is no multiple of page_tok, or is there
 * already. `decoding`: replaces the checkpoint that the slot made while decoding before. Failing to keep
 * one is no error. */
void ob_ckpts_save(ob_ckpts *c, int32_t slot, const int32_t *tok, int32_t n, bool decoding);
/* Put the longest checkpoint that is a prefix of tok[0..n) into `slot`; *n_found is its length or 0. */
OB_MUST_CHECK ob_status ob_ckpts_load(ob_ckpts *c, int32_t slot, const int32_t *tok, int32_t n, int32_t *n_found,
                                      ob_err *err);

#endif
