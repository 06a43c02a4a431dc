/* tests/devcts/world.h: a small program with random weights, run by the reference and by a device.
 *
 * Values enter by EMBED: every token id picks a random row of a table. Steps are given as (sequence,
 * number of tokens) pairs; the world keeps page tables with shuffled pages and both caches.
 */
#ifndef OB_DEVCTS_WORLD_H
#define OB_DEVCTS_WORLD_H

#include "test.h"

#include "dev/device.h"
#include "ops/ref.h"

enum { W_MAX = 64, W_VOCAB = 97, W_MAX_SEQ = 8, W_MAX_TOK = 640 };

typedef struct world {
    uint32_t seed;
    ob_program prog;
    ob_op ops[W_MAX];
    ob_value vals[W_MAX];
    ob_weight weights[W_MAX];
    ob_cache_spec caches[4];
    ob_state_spec states[4];
    void *data[W_MAX]; /* of weights */
    /* paging */
    ob_type k_type, v_type;
    int32_t page_tok, n_pages, max_ctx;
    int32_t past[W_MAX_SEQ];
    int32_t *pages; /* [W_MAX_SEQ][max_pages] */
    int32_t skipped_pages; /* the device's caches begin with so many that nothing uses */
    int32_t max_pages;
    /* the reference's side */
    bool skip_reference;
    ob_cache_view ref_cache[4];
    float *ref_vals[W_MAX];
    float *ref_states[4];
    /* the device's side */
    ob_dev *dev;
    ob_dev_weight *dw[W_MAX];
    ob_dev_buf *dk[4], *dv[4], *ds[4];
    ob_dev_plan *plan;
    /* errors are relative to the rms of the wanted values, or to this where it is larger: sums that
     * cancel are only as good as their terms */
    double floor;
    /* Steps as those with pictures are: half the ids are rows of `vec`, places on three axes, random blocks; out_rows
     * such that merge_n rows follow each. */
    bool pictures;
    int32_t vec_cols, merge_n;
    float *vec; /* [W_MAX_TOK][vec_cols] */
    int32_t pos_h[W_MAX_TOK], pos_w[W_MAX_TOK], block_first[W_MAX_TOK], block_end[W_MAX_TOK];
    bool mark_coarse; /* every second row counts as a prompt's, to be rounded to 4 bits where a weight asks for it */
    uint8_t coarse[W_MAX_TOK];
    /* the step */
    ob_step step;
    int32_t tok[W_MAX_TOK], pos[W_MAX_TOK], type[W_MAX_TOK], out_rows[W_MAX_TOK], seq_first[W_MAX_SEQ + 1],
        seq_past[W_MAX_SEQ], seq_slot[W_MAX_SEQ], table[W_MAX_SEQ * 512], dev_table[W_MAX_SEQ * 512];
} world;

uint32_t w_rand(world *w);               /* 32 random bits */
float w_normal(world *w);                /* mean 0, deviation 1, roughly normal */
void w_init(world *w, uint32_t seed);
void w_free(world *w);

ob_val w_value(world *w, ob_rows rows, int32_t cols, const char *name);
int32_t w_weight(world *w, ob_weight_use use, ob_type t, int64_t k, int64_t n, float scale);
int32_t w_vector(world *w, int64_t n, float mean, float scale);
ob_op *w_op(world *w, ob_op_kind kind); /* all inputs, outputs and weights absent */
/* A value of random rows that depend on the token only. */
ob_val w_input(world *w, int32_t cols, const char *name);
int32_t w_cache(world *w, int32_t n_head_kv, int32_t k_dim, int32_t v_dim);
/* Starts full of NaN: a new sequence must not read it. */
int32_t w_state(world *w, int64_t n_floats);
int32_t w_experts(world *w, ob_type t, int64_t k, int64_t n, int64_t n_expert, float scale);
void w_output(world *w, ob_val v);

/* Plan, bind to the device, make the caches. */
void w_start(world *w, ob_dev *dev, int32_t max_tok);
/* n[s] new tokens for each sequence; 0: not in the step. Runs both sides. */
void w_step(world *w, const int32_t n[W_MAX_SEQ]);
/* Same step again on the device only (results must be the same). */
void w_rerun(world *w);
/* The device's rows of an output; caller frees. */
float *w_read(world *w, ob_val v, int32_t *n_rows);

/* Compare: root mean square of the error at most rms_tol times that of the wanted values, and no error
 * above max_tol times it. Also that caches and states lie in the device's memory as in the reference's. */
void w_compare(world *w, ob_val v, double rms_tol, double max_tol, const char *what);

#endif
