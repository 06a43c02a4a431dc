/* dev/npu/npu_step_int.h: what the files of steps on the array share. */
#ifndef OB_DEV_NPU_NPU_STEP_INT_H
#define OB_DEV_NPU_NPU_STEP_INT_H

#include "dev/npu/npu_step.h"
#include "ops/ref.h"

enum { STEP_MAX_CMDS = OB_NPU_CHAIN_MAX - 1 }; /* the queue adds its init */

struct ob_npu_step {
    ob_npu_step_options opt;
    ob_program copy;             /* with arrays of its own */
    const ob_program *prog;      /* &copy */
    int32_t n_layers;
    bool *on_array, *mixed;      /* [n_ops]; mixed: a LINEAR of whose matrices some have no tiles, which the host multiplies */
    ob_program host;             /* the copy but for mixed ops, which have the host's matrices only */
    /* The workspace: values, gains and biases, tables of rope, scratch. */
    ob_npu_bo *ws;
    uint64_t ws_bytes, values_end, *val_off /* [n_vals] */, *vec_off /* [n_weights], 0: none */, *table_off /* [n_ops] */;
    uint64_t x_off, x2_off, h_off, y_off, y2_off, word_off; /* rows in bf16, a row of an expert, rows of products, a word */
    float **vals;                /* [n_vals] */
    ob_npu_txn txn;              /* of the command being written */
    ob_npu_bo *text;             /* of a chain */
    ob_npu_cmd cmds[STEP_MAX_CMDS];
    /* What texts name: the workspace, weights, planes of caches (K, V of each). */
    uint64_t *args;
    size_t n_args;
    ob_npu_tiles_at *planes;     /* [2 * n_caches] */
    ob_npu_bo **plane_bos;
    ob_cache_view *views;
    float **kept;                /* [n_states] states before the step */
    float *scratch;              /* of ops on the host */
    ob_npu_step_stats stats;
};

/* Has matrix m of a LINEAR tiles? */
bool ob_npu_step_has_tiles(const ob_npu_step *s, const ob_op *op, int32_t m);

/* Ops [i0, i1), all of which run on the array, as one chain (or more where it would be too long), waited for. */
OB_MUST_CHECK ob_status ob_npu_step_chain(ob_npu_step *s, const ob_step *st, int32_t i0, int32_t i1, ob_err *err);
/* Its text alone, into s->text and s->cmds; *n_cmds of them. */
OB_MUST_CHECK ob_status ob_npu_step_write(ob_npu_step *s, const ob_step *st, int32_t i0, int32_t i1, int *n_cmds, ob_err *err);

#endif
