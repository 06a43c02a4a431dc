/* dev/npu/npu_step.h: whole steps of decoding on the array: one chain of commands a step, where every op can be there.
 *
 * Owns: which ops of a program run on the array (products with 4-bit weights, norms, rotary positions, attention over the
 * paged cache, gated units, sums), the control text of a step, its workspace in memory that both sides see, and the ops
 * that stay on the host (ops/ref.h): such an op ends a chain, and the next one begins a new one. Knows neither models nor
 * how weights are packed.
 *
 * The text of a step is built anew for each: positions, pages and lengths are addresses and counts in it. A command holds
 * a layer, or several where a model has more than a chain has commands.
 *
 * There is no PDI for hardware yet: the STEP design (npu_array.h) exists in the software model only.
 *
 * Arithmetic: products as npu_gemv.h; the rest f32, as ops/ref.h but for the order of attention's sums.
 */
#ifndef OB_DEV_NPU_NPU_STEP_H
#define OB_DEV_NPU_NPU_STEP_H

#include "dev/npu/npu_kernel.h"
#include "dev/npu/npu_mem.h"
#include "ops/ops.h"

typedef struct ob_npu_step ob_npu_step;

enum { OB_NPU_STEP_ROWS = 4 }; /* most tokens of a step */

/* Where a weight's q4g32 tiles lie. */
typedef struct ob_npu_tiles_at { const ob_npu_bo *bo; uint64_t off; } ob_npu_tiles_at;

typedef struct ob_npu_step_options {
    ob_npu_dev *dev;           /* borrowed */
    ob_npu_kernel *kernel;     /* borrowed: of OB_NPU_DESIGN_STEP, on dev; steps of several programs may share it */
    const ob_program *prog;    /* copied; its weights' data is borrowed */
    /* The tiles of matrix `mat` of a LINEAR or EXPERTS weight, ready to be read; false: there are none, its op stays on the
     * host. All matrices of a weight lie in one buffer. Asked for an expert whenever it was chosen. */
    bool (*find)(void *arg, const ob_weight *w, int64_t mat, ob_npu_tiles_at *out);
    void *arg;
    void *const *cache_k, *const *cache_v; /* [n_caches] host memory of whole planes, which the NPU is let into (pinned);
                                              this array and the next are borrowed, too */
    ob_type k_type, v_type;
    int32_t page_tok, n_pages, max_ctx;
    float *const *states;      /* [n_states] host memory, [n_slots][n_floats] each */
    int32_t n_slots;
} ob_npu_step_options;

/* UNSUPPORTED: no op of this program could run on the array, or it takes inputs; NO_MEMORY, DEVICE as others. */
OB_MUST_CHECK ob_status ob_npu_step_new(const ob_npu_step_options *opt, ob_npu_step **out, ob_err *err);
void ob_npu_step_free(ob_npu_step *s); /* NULL is fine */

/* Runs a step of at most OB_NPU_STEP_ROWS tokens, to its end. After a failure caches may hold the step's rows, states are as
 * before: it may be run elsewhere from its beginning. Never tried twice here: commands add to what they find. */
OB_MUST_CHECK ob_status ob_npu_step_run(ob_npu_step *s, const ob_step *step, ob_err *err);
const ob_program *ob_npu_step_program(const ob_npu_step *s); /* its copy */
/* Rows of a value after the last run, [rows][cols]; borrowed until the next. */
const float *ob_npu_step_val(const ob_npu_step *s, ob_val v);

typedef struct ob_npu_step_stats {
    int32_t n_array_ops, n_host_ops;    /* of the program */
    int32_t n_commands, n_chains;       /* of the last step */
    uint64_t text_bytes;                /* of the last step */
} ob_npu_step_stats;
ob_npu_step_stats ob_npu_step_stats_get(const ob_npu_step *s);
/* Names of the ops that stay on the host, "moe_route, gdn", each once. */
void ob_npu_step_host_ops(const ob_npu_step *s, char *text, size_t cap);

#endif
