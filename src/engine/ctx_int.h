/* engine/ctx_int.h: inside engine/: the context and its sequences. */
#ifndef OB_ENGINE_CTX_INT_H
#define OB_ENGINE_CTX_INT_H

#include "engine/checkpoint.h"
#include "engine/ctx.h"
#include "engine/experts.h"
#include "engine/stages.h"
#include "graph/model.h"
#include "kv/kv.h"

enum { OB_PAGE_TOK = 64 };

/* Of loading: until it is known where the ops run, which on a new GPU includes tests of its kernels. */
#define OB_PLACING_SHARE 0.2

/* A device in use and what of the model lies on it. */
typedef struct place {
    ob_dev *dev;
    ob_dev_info info;
    ob_dev_weight **weights; /* [n_weights] of the program; NULL where this device does not need one */
    ob_dev_buf **states;     /* [n_states] of this device */
    ob_ckpts *ckpts;         /* NULL without states */
} place;

/* A program prepared for steps of up to max_tok tokens and max_out output rows. */
typedef struct bucket {
    int32_t max_tok, max_out;
    ob_program *prog;    /* the whole one */
    ob_stages *stages;
    ob_dev_plan **plans; /* [stages->n] */
    float **cross;       /* [prog->n_vals]: rows of values that go from stage to stage; NULL: does not */
    void *cross_memory;  /* of all of them, where the whole program's plan has them */
    int32_t *moe_op;     /* [stages->n]: the streamed MOE_GLU that the stage begins with; OB_NONE: it does not */
    ob_val *guess;       /* [stages->n]: of the next one's experts, known by then; OB_NONE: none */
} bucket;

struct ob_seq {
    bool used;
    int32_t slot;     /* of the recurrent state; also its index in ob_ctx.seqs */
    int32_t n_tok;    /* tokens in the cache */
    int32_t n_pages;
    int32_t n_marked; /* tokens at ob_ctx_seq_mark */
    int32_t *tok;     /* [n_ctx] */
    int32_t *pages;   /* [max_pages] */
};

struct ob_ctx {
    ob_engine_params p; /* with defaults filled in; strings are not kept */
    ob_file *file;
    ob_tok *tok;
    ob_model *model;
    char *device_spec;   /* of ob_dev_open, by commas */
    char *split;         /* shares of the layers; NULL: by memory */
    place places[OB_MAX_PLACES];
    int32_t n_places;    /* 0: the devices are closed (after a fault) */
    ob_placement placement;
    bool needs_cpu;      /* for ops that a device lacks */
    int32_t *op_dev;     /* [n_ops]: place of each op; every bucket's program has the same ops */
    ob_dev *dev;         /* places[0].dev */
    ob_dev_info dev_info; /* of it; the name lists all devices, memory is their sum */
    int32_t n_weights;
    uint64_t n_shared_bytes; /* of weights found in p.share */
    void **kept;         /* [n_weights] what a weight's packed forms refer to where the file is not mapped (no_mmap) */
    bool faulted;        /* a device failed in the last step: nothing on it can be trusted */
    bucket buckets[32];
    int32_t n_buckets;
    ob_kv *kv;
    ob_dev_buf **states; /* [n_states] of the program */
    int32_t *state_dev;  /* [n_states] place of each */
    int32_t n_states;
    ob_dev_buf **marks;  /* [n_states] copies of ob_ctx_seq_mark, beside the originals; NULL: never needed */
    ob_seq *seqs; /* [n_seq] */
    int32_t max_pages; /* per sequence */
    int32_t n_pages;   /* in all */
    int32_t max_step;  /* most tokens of a step: n_ubatch, or the context where a text runs whole */
    ob_experts *experts; /* NULL: all are loaded */
    float *moe_slots;    /* [max_step][OB_MOE_MAX_USED]: ids of a step's experts as numbers of slots */
    double load_ms;
    /* Parameters of the step in hand: arrays of max_step or n_seq entries. */
    int32_t *s_tok, *s_pos, *s_type, *s_first, *s_past, *s_slot, *s_table, *s_out;
    uint8_t *s_coarse; /* [max_step] tokens of prompts */
    /* Where prompts may hold pictures, else NULL. */
    int32_t *s_pos_h, *s_pos_w, *s_block_first, *s_block_end; /* [max_step] */
    float *s_vec; /* [max_step][n_embd] */
    float *rows; /* what the last step gave: room for max_rows rows of n_cols */
    int32_t n_cols, max_rows;
    bool gives_top; /* programs with logits also give the best of each row */
    float *top;     /* [max_rows][2 OB_TOP_K_MAX + 2] of the last step; see OB_OP_TOP_K */
    const bucket *last; /* of the last step, NULL before one and after one that failed */
    int32_t last_n_rows;
    double step_ms;
    bool has_rows;  /* `rows` is of the last step */
};

/* Passes s on; a device that failed is not asked again before it was reopened. */
ob_status ob_ctx_note_fault(ob_ctx *c, ob_status s);

/* --- ctx_move.c --- */

void ob_ctx_free_marks(ob_ctx *c);

/* --- ctx_weights.c --- */

/* Weights onto the open devices, and slots for experts. */
OB_MUST_CHECK ob_status ob_ctx_load_weights(ob_ctx *c, const ob_program *prog, ob_err *err);
void ob_ctx_drop_weight(const ob_ctx *c, const place *at, ob_dev_weight *w);
void ob_ctx_lock_memory(void); /* a refusal is a warning */

/* --- ctx_experts.c: experts that are streamed --- */

/* Before steps have a size: decide how many experts are kept, and how many tokens a step may have for it. */
OB_MUST_CHECK ob_status ob_ctx_plan_experts(ob_ctx *c, const ob_program *prog, ob_err *err);
/* Bytes of weights and cache on place d, experts that are streamed left out. */
OB_MUST_CHECK ob_status ob_ctx_place_bytes(const ob_ctx *c, const ob_program *prog, int32_t d, uint64_t *weights,
                                           uint64_t *cache, ob_err *err);
/* Where stages of a program begin for experts, NULL (and OB_OK) where nothing is streamed; free with ob_free. */
OB_MUST_CHECK ob_status ob_ctx_moe_borders(const ob_ctx *c, const ob_program *prog, bool **out, ob_err *err);
/* What each stage of a bucket does about experts. */
OB_MUST_CHECK ob_status ob_ctx_note_moe(const ob_ctx *c, bucket *b, ob_err *err);
OB_MUST_CHECK ob_status ob_ctx_attach_experts(ob_ctx *c, ob_err *err);
/* Have the experts of stage `i` there: fills c->moe_slots from the ids that crossed. */
OB_MUST_CHECK ob_status ob_ctx_bring_experts(ob_ctx *c, const bucket *b, int32_t i, const ob_step *st, ob_err *err);

#endif
