/* graph/graph_int.h: inside graph/: the model, the architecture table and the program builder. */
#ifndef OB_GRAPH_GRAPH_INT_H
#define OB_GRAPH_GRAPH_INT_H

#include "base/arena.h"
#include "graph/model.h"

typedef struct ob_arch ob_arch;
typedef struct ob_builder ob_builder;

struct ob_model {
    const ob_file *file; /* borrowed */
    const ob_arch *arch;
    ob_model_options opt;
    ob_hparams hp;
    void *own; /* the architecture's own parameters, from ob_malloc; NULL if it has none */
};

/* One architecture family: how its file is read and its program built. */
struct ob_arch {
    const char *name; /* general.architecture */
    /* Fill m->hp (and m->own) from the file. */
    ob_status (*load)(ob_model *m, ob_err *err);
    /* Compose ops; errors stick in the builder. */
    void (*build)(const ob_model *m, ob_builder *b);
    /* Key suffixes (after "<arch>.") this architecture understands beyond the common ones; NULL-ended.
     * A suffix ending in '*' stands for all that begin so. */
    const char *const *keys;
};
extern const ob_arch ob_arch_llama;

/* ------------------------------------------------------------------ reading keys
 * "<arch>.<suffix>"; the error names the key. The _opt forms leave *out alone when the key is absent. */
OB_MUST_CHECK ob_status ob_key_i32(const ob_model *m, const char *suffix, int32_t min, int32_t max,
                                   int32_t *out, ob_err *err);
OB_MUST_CHECK ob_status ob_key_i32_opt(const ob_model *m, const char *suffix, int32_t min, int32_t max,
                                       int32_t *out, ob_err *err);
OB_MUST_CHECK ob_status ob_key_f32(const ob_model *m, const char *suffix, float *out, ob_err *err);
OB_MUST_CHECK ob_status ob_key_f32_opt(const ob_model *m, const char *suffix, float *out, ob_err *err);
/* Layers, widths, heads, context, eps, rope: what every decoder's file has. head counts may be arrays
 * of equal elements. rope.scaling.* (linear, yarn) are read here. */
OB_MUST_CHECK ob_status ob_load_common(ob_model *m, ob_rope_pairing pairing, ob_err *err);

/* ------------------------------------------------------------------ building
 * Values and weights are added as they are used. The first error sticks: later calls return OB_NONE. */
struct ob_builder {
    const ob_model *m;
    ob_program *p;
    ob_arena *arena;
    ob_err *err;
    ob_status s;
    int32_t layer;
    int32_t cap_ops, cap_vals, cap_weights, cap_caches, cap_states;
    uint8_t *tensor_used; /* [n_tensors] */
};

/* Tensors by name; `fmt` is printf-style and whole: ob_b_weight(b, use, "blk.%d.attn_q.weight", l). */
int32_t ob_b_weight(ob_builder *b, ob_weight_use use, const char *fmt, ...) OB_PRINTF(3, 4);
int32_t ob_b_weight_opt(ob_builder *b, ob_weight_use use, const char *fmt, ...) OB_PRINTF(3, 4);
/* Mark a tensor as known but not needed. */
void ob_b_ignore(ob_builder *b, const char *fmt, ...) OB_PRINTF(2, 3);

ob_val ob_b_value(ob_builder *b, const char *name, ob_rows rows, int64_t cols);
/* A zeroed op of this kind in the current layer with all slots OB_NONE; NULL after an error. */
ob_op *ob_b_op(ob_builder *b, ob_op_kind kind);
int32_t ob_b_cache(ob_builder *b, int32_t n_head_kv, int32_t k_dim, int32_t v_dim);
int32_t ob_b_cols(const ob_builder *b, ob_val v);

ob_val ob_b_embed(ob_builder *b, int32_t table, float scale);
ob_val ob_b_rows_out(ob_builder *b, ob_val x);
ob_val ob_b_rms_norm(ob_builder *b, ob_val x, int32_t w, float eps, int32_t group);
/* n outputs from one input: out[i] = x * w[i]^T + bias[i]; widths are the weights' ne[1]. */
void ob_b_linears(ob_builder *b, ob_val x, int n, const int32_t *w, const int32_t *bias, ob_val *out);
ob_val ob_b_linear(ob_builder *b, ob_val x, int32_t w, int32_t bias);
/* res + scale * (x * w^T + bias), in place on res */
ob_val ob_b_linear_add(ob_builder *b, ob_val x, int32_t w, int32_t bias, ob_val res, float scale);
ob_val ob_b_rope(ob_builder *b, ob_val x, const ob_rope_params *p, int32_t factors); /* in place */
ob_val ob_b_attention(ob_builder *b, ob_val q, ob_val k, ob_val v, const ob_attn_params *p);
ob_val ob_b_glu(ob_builder *b, ob_val gate, ob_val up, ob_act act); /* in place on gate */
ob_val ob_b_scale(ob_builder *b, ob_val x, float scale, float softcap); /* in place */
/* Final linear to the vocabulary on the rows wanted: output.weight, or the embedding when absent. */
void ob_b_logits(ob_builder *b, ob_val x);

#endif
