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

/* What a step gives. */
typedef enum ob_output {
    OB_OUTPUT_LOGITS,     /* [OUT, n_vocab]: the model generates */
    OB_OUTPUT_EMBEDDINGS, /* [SEQ, n_embd], or [TOK, n_embd] with OB_POOLING_NONE; not normalised */
    OB_OUTPUT_CLASSES,    /* [SEQ, n_class] scores of a classifier head */
    OB_OUTPUT_MARKS,      /* [OUT, 1] scores of a decision head at the rows asked for (its [MASK]s) */
    OB_OUTPUT_PICTURE,    /* [OUT, c] vectors of a picture, c of the model beside it (vision towers: ob_model_vision) */
} ob_output;

/* Hyper-parameters that engines and programs ask for. Architectures keep their own beside it. */
typedef struct ob_hparams {
    int32_t n_layer, n_embd, n_vocab, n_ctx_train;
    int32_t n_head, n_head_kv, k_dim, v_dim, n_ff;
    float norm_eps;
    ob_rope_params rope; /* head_dim, n_rot, base, scaling as the file says */
    bool causal;         /* false: every token sees the whole text, so a text runs in one step */
    ob_output output;
    ob_pooling pooling;  /* of OUTPUT_EMBEDDINGS; never AUTO */
    int32_t n_class;     /* of OUTPUT_CLASSES */
    int32_t n_type;      /* rows of the table of token types that a text may choose from; 0: none */
    int32_t n_ctx_max;   /* tokens a table of positions allows; 0: no such table */
    bool picture_blocks; /* tokens of a picture see each other, also forward; else pictures are read like text */
} ob_hparams;

typedef enum ob_projector { OB_PROJECTOR_IDEFICS3, OB_PROJECTOR_GEMMA3, OB_PROJECTOR_QWEN2VL } ob_projector;

/* A vision tower: what pictures it takes and gives. Its program reads patches as the step's vectors
 * [n_patch][3 * patch_size^2] (channel, row, column), the merge * merge patches of a square adjacent and squares in
 * raster order; out_rows are the first patches of the squares. pos is the patch's number in the picture (raster
 * order), or, with axes, its row, and pos_h its column. */
typedef struct ob_vision_hparams {
    ob_projector projector;
    int32_t image_size;   /* side of a square tile, in pixels; QWEN2VL: any */
    int32_t patch_size, merge;
    int32_t longest_edge; /* IDEFICS3: side to which pictures are scaled before they are cut; 0: not said */
    bool axes;
    float mean[3], std[3]; /* of pixels in 0..1 */
} ob_vision_hparams;

/* Which rotated matrices may round the activations of prompts to 4 bits. */
typedef enum ob_act4_use { OB_ACT4_OFF, OB_ACT4_ATTN, OB_ACT4_ALL } ob_act4_use;

typedef struct ob_model_options {
    int32_t n_ctx; /* configured context: chooses between long and short rope factors; 0 = n_ctx_train */
    bool embed;    /* vectors of texts, whatever else the model can do */
    bool pictures; /* steps may hold vectors of pictures in the place of tokens (OB_E_UNSUPPORTED if it cannot) */
    ob_pooling pooling; /* how; AUTO: the file's, else mean for encoders and last for others */
    ob_act4_use act4;   /* of a Hadamard-rotated file; ignored for others */
    bool official_rounding; /* DeepSeek V4: ob_csa_params.official; OB_E_INVALID for others */
} ob_model_options;

/* `file` is borrowed and must outlive the model. Errors: UNSUPPORTED (architecture not known: the text
 * lists those that are; a key or tensor that the architecture would ignore), FORMAT (missing or wrong
 * key or tensor: named). */
OB_MUST_CHECK ob_status ob_model_new(const ob_file *file, const ob_model_options *opt, ob_model **out,
                                     ob_err *err);
void ob_model_free(ob_model *m);
const ob_hparams *ob_model_hparams(const ob_model *m);
const char *ob_model_arch(const ob_model *m);
/* NULL unless the model is a vision tower. */
const ob_vision_hparams *ob_model_vision(const ob_model *m);
const ob_file *ob_model_file(const ob_model *m);

/* Build the program; it borrows weights' data from the file. Not yet planned (ob_program_plan). */
OB_MUST_CHECK ob_status ob_model_program(const ob_model *m, ob_program **out, ob_err *err);
/* Does the program apply what the file declares (scales, soft-caps, rotary pairing), and read every tensor it took?
 * Independent of how it was built; asked at every load, also where packed weights come from a cache. OB_E_UNSUPPORTED
 * says what would be lost. */
OB_MUST_CHECK ob_status ob_model_guard(const ob_model *m, const ob_program *p, ob_err *err);
/* Let the program also give the k best logits of each row (OB_OP_TOP_K, value `top`), for sampling; the logits
 * become an output that is read seldom. */
OB_MUST_CHECK ob_status ob_program_add_top_k(ob_program *p, int32_t k, ob_err *err);
/* Behind each layer's choice of experts, let the program also guess the next layer's: its norm and its router over
 * what goes into this layer's. Each guess is an output, the ids of a MOE_ROUTE whose weights nobody reads. Layers
 * whose router is more than a norm and a matrix are left out. */
OB_MUST_CHECK ob_status ob_program_add_guesses(ob_program *p, ob_err *err);
void ob_program_free(ob_program *p);

/* Names of the known architectures, in order; returns how many. */
int ob_model_architectures(const char **names, int cap);

#endif
