/* engine/experts.h: inside engine/: routed experts that are read from the file when a step needs them.
 *
 * Owns: weights of a device with room for some experts ("slots", shared by all layers whose experts have the same
 * shape), which expert lies in which slot, the threads that read and pack, and what is read ahead. Programs are
 * changed in one place only: the experts' weights have as many experts as there are slots, and a step's ids of
 * experts become numbers of slots where they cross the border before MOE_GLU. So neither ops nor devices' kernels
 * know that experts come and go; a device only has to be able to pack one (ob_dev_api.weight_write).
 *
 * Experts are read past the page cache (fmt/direct.h) and never touched through the mapping, so that memory is what
 * the slots take.
 *
 * Threads: everything belongs to the engine thread but ob_experts_get_stats. The readers are this file's own.
 */
#ifndef OB_ENGINE_EXPERTS_H
#define OB_ENGINE_EXPERTS_H

#include "dev/device.h"
#include "engine/engine.h"
#include "fmt/fmt.h"
#include "ops/ops.h"

typedef struct ob_experts ob_experts;

/* Finds the program's mixtures and the slots they could have; no memory of a device is taken yet. `file` is borrowed.
 * op_dev, devs: which of the open devices runs which op. *out is NULL where the program has no mixture.
 * Errors: UNSUPPORTED (a device that cannot take single experts). */
OB_MUST_CHECK ob_status ob_experts_new(const ob_file *file, const ob_program *prog, const int32_t *op_dev,
                                       ob_dev *const *devs, ob_experts **out, ob_err *err);
void ob_experts_free(ob_experts *x);
/* Experts of all layers together; bytes of a device that the slots take, or would take for all experts. */
int64_t ob_experts_count(const ob_experts *x);
uint64_t ob_experts_place_bytes(const ob_experts *x, int32_t place, bool all);
/* Host memory of the readers. */
uint64_t ob_experts_reader_bytes(const ob_experts *x);
/* Share n slots out among the shapes. OB_E_INVALID: too few for one token; the text says how many are needed. */
OB_MUST_CHECK ob_status ob_experts_set_slots(ob_experts *x, int64_t n, ob_err *err);
/* Most tokens of a step that its slots can serve. */
int32_t ob_experts_max_tok(const ob_experts *x);
/* Give a program's experts the shape of the slots. Every program of the model must go through this. */
void ob_experts_shape(const ob_experts *x, ob_program *prog);
/* Which of the program's weights are experts' (they are not loaded, and not freed, like others). */
bool ob_experts_owns(const ob_experts *x, int32_t weight);

/* Make the slots on the devices and start the readers; weights [n_places][n_weights] get the slots' weights where a
 * mixture has its experts. */
OB_MUST_CHECK ob_status ob_experts_attach(ob_experts *x, ob_dev *const *devs, ob_dev_weight **const *weights, ob_err *err);
/* Stop the readers and free the slots; nothing happens when they are not attached. */
void ob_experts_detach(ob_experts *x);

/* Before MOE_GLU number `op` of the program runs: ids [n_rows][n_used] are the experts it wants; slots, of the same
 * shape, becomes where they lie (beyond the last slot what is no expert). guess [n_rows][n_guess], or NULL: experts
 * that the next mixture may want. Returns when all experts are there. Allocates nothing.
 * Errors: IO, and those of weight_write. */
OB_MUST_CHECK ob_status ob_experts_acquire(ob_experts *x, int32_t op, const float *ids, int32_t n_rows, int32_t n_used,
                                           const float *guess, int32_t n_guess, float *slots, ob_err *err);

void ob_experts_get_stats(ob_experts *x, ob_expert_stats *out);

#endif
