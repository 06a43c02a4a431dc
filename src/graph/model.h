/* graph/model.h: what a model file means: architecture, hyper-parameters, and its program.
 *
 * Owns: reading hyper-parameters and tensors of a file for an architecture, and building the program
 * of ops that computes it. Must not know devices, caches or tokens' text. A model is *immutable after
 * load*; programs are the caller's.
 */
#ifndef OB_GRAPH_MODEL_H
#define OB_GRAPH_MODEL_H

#include "fmt/fmt.h"
#include "ops/ops.h"

typedef struct ob_model ob_model;

/* Hyper-parameters that engines and programs ask for. Architectures keep their own beside it. */
typedef struct ob_hparams {
    int32_t n_layer, n_embd, n_vocab, n_ctx_train;
    int32_t n_head, n_head_kv, k_dim, v_dim, n_ff;
    float norm_eps;
    ob_rope_params rope; /* head_dim, n_rot, base, scaling as the file says */
    bool causal;
} ob_hparams;

typedef struct ob_model_options {
    int32_t n_ctx; /* configured context: chooses between long and short rope factors; 0 = n_ctx_train */
} ob_model_options;

/* `file` is borrowed and must outlive the model. Errors: UNSUPPORTED (architecture not known: the text
 * lists those that are; a key or tensor that the architecture would ignore), FORMAT (missing or wrong
 * key or tensor: named). */
OB_MUST_CHECK ob_status ob_model_new(const ob_file *file, const ob_model_options *opt, ob_model **out,
                                     ob_err *err);
void ob_model_free(ob_model *m);
const ob_hparams *ob_model_hparams(const ob_model *m);
const char *ob_model_arch(const ob_model *m);
const ob_file *ob_model_file(const ob_model *m);

/* Build the program; it borrows weights' data from the file. Not yet planned (ob_program_plan). */
OB_MUST_CHECK ob_status ob_model_program(const ob_model *m, ob_program **out, ob_err *err);
void ob_program_free(ob_program *p);

/* Names of the known architectures, in order; returns how many. */
int ob_model_architectures(const char **names, int cap);

#endif
