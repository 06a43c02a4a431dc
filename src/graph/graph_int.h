/* graph/graph_int.h: inside graph/: the model, the architecture table and the program builder. */
#ifndef OB_GRAPH_GRAPH_INT_H
#define OB_GRAPH_GRAPH_INT_H

#include "base/arena.h"
#include "graph/model.h"

typedef struct ob_arch ob_arch;
typedef struct ob_builder ob_builder;

struct ob_model {
    const ob_file *file; /* borrowed */
    bool hadamard;       /* Q4_0 matrices of this file are rotated */
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
    bool pictures; /* may have vectors of pictures among its tokens */
};
extern const ob_arch ob_arch_bert, ob_arch_modern_bert, ob_arch_llama, ob_arch_qwen2, ob_arch_qwen3, ob_arch_qwen3moe,
    ob_arch_minicpm, ob_arch_gemma3, ob_arch_deepseek2, ob_arch_qwen35, ob_arch_qwen35moe, ob_arch_zaya,
    ob_arch_deepseek4, ob_arch_qwen2vl, ob_arch_clip;

/* ------------------------------------------------------------------ reading keys
 * "<arch>.<suffix>"; the error names the key. The _opt forms leave *out alone when the key is absent. */
OB_MUST_CHECK ob_status ob_key_i32(const ob_model *m, const char *suffix, int32_t min, int32_t max,
                                   int32_t *out, ob_err *err);
OB_MUST_CHECK ob_status ob_key_i32_opt(const ob_model *m, const char *suffix, int32_t min, int32_t max,
                                       int32_t *out, ob_err *err);
OB_MUST_CHECK ob_status ob_key_f32(const ob_model *m, const char *suffix, float *out, ob_err *err);
OB_MUST_CHECK ob_status ob_key_f32_opt(const ob_model *m, const char *suffix, float *out, ob_err *err);
OB_MUST_CHECK ob_status ob_key_bool_opt(const ob_model *m, const char *suffix, bool *out, ob_err *err);
/* Exactly n of them; the key must be there. */
OB_MUST_CHECK ob_status ob_key_i32s(const ob_model *m, const char *suffix, uint64_t n, int32_t min, int32_t max,
                                    int32_t *out, ob_err *err);
OB_MUST_CHECK ob_status ob_key_f32s(const ob_model *m, const char *suffix, uint64_t n, float *out, ob_err *err);
OB_MUST_CHECK ob_status ob_key_str(const ob_model *m, const char *suffix, ob_str *out, ob_err *err); /* borrowed */
bool ob_key_there(const ob_model *m, const char *suffix);
/* Layers, widths, heads, context, eps, rope: what every decoder's file has. head counts may be arrays
 * of equal elements. rope.scaling.* (linear, yarn) are read here. */
OB_MUST_CHECK ob_status ob_load_common(ob_model *m, ob_rope_pairing pairing, ob_err *err);
/* The parts of it that encoders share: layers, widths, heads, context, vocabulary; rope. */
OB_MUST_CHECK ob_status ob_load_shape(ob_model *m, ob_err *err);
OB_MUST_CHECK ob_status ob_load_rope(ob_model *m, ob_rope_pairing pairing, ob_err *err);
/* hp.pooling by the options, else by pooling_type, else `otherwise`. */
OB_MUST_CHECK ob_status ob_load_pooling(ob_model *m, ob_pooling otherwise, ob_err *err);

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
/* Rows [first, first + n) of a matrix as a weight of its own, so that one tensor can give two values. */
int32_t ob_b_weight_rows(ob_builder *b, ob_weight_use use, int64_t first, int64_t n, const char *fmt, ...)
    OB_PRINTF(5, 6);
/* Elements [first, first + n) of a vector; OB_NONE when the tensor is absent. */
int32_t ob_b_vector_part_opt(ob_builder *b, int64_t first, int64_t n, const char *fmt, ...) OB_PRINTF(4, 5);
/* A tensor [a, b, c, N] as a matrix [a * b * c, N]: a convolution's taps over patches laid out as rows. */
int32_t ob_b_weight_flat(ob_builder *b, ob_weight_use use, const char *fmt, ...) OB_PRINTF(3, 4);
/* A matrix [N, K] as [K, N]: a copy that lives with the program. */
int32_t ob_b_weight_turned(ob_builder *b, const char *name);
/* A matrix [K, N * n_mat] seen as n_mat matrices [K, N]. */
int32_t ob_b_weight_heads(ob_builder *b, int64_t n_mat, const char *fmt, ...) OB_PRINTF(3, 4);
int32_t ob_b_weight_opt(ob_builder *b, ob_weight_use use, const char *fmt, ...) OB_PRINTF(3, 4);
/* Mark a tensor as known but not needed. */
void ob_b_ignore(ob_builder *b, const char *fmt, ...) OB_PRINTF(2, 3);
/* The same for all tensors of layer `l` (blocks for multi-token prediction, which we do not run). */
void ob_b_ignore_layer(ob_builder *b, int32_t l);

ob_val ob_b_value(ob_builder *b, const char *name, ob_rows rows, int64_t cols);
/* A zeroed op of this kind in the current layer with all slots OB_NONE; NULL after an error. */
ob_op *ob_b_op(ob_builder *b, ob_op_kind kind);
int32_t ob_b_cache(ob_builder *b, int32_t n_head_kv, int32_t k_dim, int32_t v_dim);
int32_t ob_b_state(ob_builder *b, const char *name, int64_t n_floats);
int32_t ob_b_cols(const ob_builder *b, ob_val v);
int64_t ob_b_ne(const ob_builder *b, int32_t w, int i); /* a weight's ne[i]; 0 after an error */

ob_val ob_b_embed(ob_builder *b, int32_t table, float scale);
ob_val ob_b_vectors(ob_builder *b, int64_t cols); /* the step's vectors */
ob_val ob_b_rows_out(ob_builder *b, ob_val x);
/* [OUT]: n adjacent rows side by side, or their mean */
ob_val ob_b_merge(ob_builder *b, ob_val x, int32_t n, bool mean);
ob_val ob_b_rms_norm(ob_builder *b, ob_val x, int32_t w, float eps, int32_t group);
ob_val ob_b_layer_norm(ob_builder *b, ob_val x, int32_t w, int32_t bias, float eps);
ob_val ob_b_add_row(ob_builder *b, ob_val x, int32_t table, ob_row_of by); /* in place */
ob_val ob_b_pool(ob_builder *b, ob_val x, ob_pooling mode);
/* The model's vectors: x pooled as hp.pooling says. */
void ob_b_embeddings(ob_builder *b, ob_val x);
/* Make y the program's scores. */
void ob_b_scores(ob_builder *b, ob_val y);
/* n outputs from one input: out[i] = x * w[i]^T + bias[i]; widths are the weights' ne[1]. */
void ob_b_linears(ob_builder *b, ob_val x, int n, const int32_t *w, const int32_t *bias, ob_val *out);
ob_val ob_b_linear(ob_builder *b, ob_val x, int32_t w, int32_t bias);
/* res + scale * (x * w^T + bias), in place on res */
ob_val ob_b_linear_add(ob_builder *b, ob_val x, int32_t w, int32_t bias, ob_val res, float scale);
ob_val ob_b_rope(ob_builder *b, ob_val x, const ob_rope_params *p, int32_t factors); /* in place */
ob_val ob_b_attention(ob_builder *b, ob_val q, ob_val k, ob_val v, const ob_attn_params *p);
ob_val ob_b_glu(ob_builder *b, ob_val gate, ob_val up, ob_act act, float clamp); /* in place on gate */
ob_val ob_b_scale(ob_builder *b, ob_val x, float scale, float softcap); /* in place */
ob_val ob_b_add(ob_builder *b, ob_val res, ob_val x);           /* res + x, in place on res */
ob_val ob_b_act(ob_builder *b, ob_val x, ob_act act);           /* in place */
ob_val ob_b_affine(ob_builder *b, ob_val x, ob_val x2, const int32_t w[4]); /* in place on x; x2 may be OB_NONE */
ob_val ob_b_gate(ob_builder *b, ob_val x, ob_val gate, ob_val res); /* in place on res, or on x without it */
void ob_b_split(ob_builder *b, ob_val x, int32_t n_group, int32_t first_cols, ob_val out[2]);
ob_val ob_b_join(ob_builder *b, ob_val x, ob_val x2, int32_t n_group);
ob_val ob_b_linear_heads(ob_builder *b, ob_val x, int32_t w, int32_t n_head, int32_t tail);
void ob_b_route(ob_builder *b, ob_val logits, int32_t bias, int32_t table, const ob_route_params *p, ob_val out[2]);
/* in: q, k, first and second half of the values; w: taps, bias, grouped taps, their bias, k scale; out: q, k, v */
void ob_b_cca(ob_builder *b, const ob_val in[4], const int32_t w[5], const ob_cca_params *p, ob_val out[3]);
/* w: scale, base; coef NULL: the last mix, which has no streams after it */
ob_val ob_b_hc_mix(ob_builder *b, ob_val streams, ob_val mix, const int32_t w[2], const ob_hc_params *p, ob_val *coef);
ob_val ob_b_hc_post(ob_builder *b, ob_val y, ob_val streams, ob_val coef, const ob_hc_params *p); /* in place */
ob_val ob_b_csa(ob_builder *b, const ob_val in[8], const int32_t w[5], const ob_csa_params *p);
/* res + experts(x), in place on res (OB_NONE: a new value); w: gate, up (OB_NONE: merged into gate), down */
ob_val ob_b_moe_glu(ob_builder *b, ob_val x, const ob_val route[2], ob_val res, const int32_t w[3],
                    const ob_moe_params *p);
ob_val ob_b_conv1d(ob_builder *b, ob_val x, int32_t w, int32_t bias, const ob_conv_params *p);
ob_val ob_b_gdn(ob_builder *b, ob_val qkv, ob_val alpha, ob_val beta, int32_t dt_bias, int32_t a,
                const ob_gdn_params *p);
/* Final linear to the vocabulary on the rows wanted: output.weight, or the embedding when absent; times
 * scale, then soft-capped when softcap > 0. */
void ob_b_logits(ob_builder *b, ob_val x, float scale, float softcap);

/* ------------------------------------------------------------------ blocks (blocks.c)
 * What several families share, in terms of the current layer b->layer. */

/* RMS norm by blk.N.<name>.weight over groups of `group` columns (0: all). */
ob_val ob_block_norm(ob_builder *b, ob_val x, const char *name, int32_t group);

typedef struct ob_block_attn {
    const ob_rope_params *rope;
    int32_t factors; /* rope factors, a weight or OB_NONE */
    float scale;     /* 0: 1 / sqrt(k_dim) */
    int32_t window;  /* 0: all */
    ob_attn_blocks blocks;
    bool qk_norm;    /* RMS norm of each head by attn_q_norm, attn_k_norm before the rotation */
} ob_block_attn;
/* Multi-head attention with grouped keys over the normalised x, up to before the output product.
 * Biases of q, k, v are used where the file has them. */
ob_val ob_block_attention(ob_builder *b, ob_val x, const ob_block_attn *p);
/* res + scale * (attn_output * y), in place on res */
ob_val ob_block_attn_out(ob_builder *b, ob_val y, ob_val res, float scale);
/* act(ffn_gate x) * (ffn_up x), before ffn_down; `part` is "" or "_shexp". */
ob_val ob_block_ffn_hidden(ob_builder *b, ob_val x, ob_act act, float clamp, const char *part);
/* res + scale * ffn(x), in place on res */
ob_val ob_block_ffn(ob_builder *b, ob_val x, ob_val res, ob_act act, float scale);

/* Mixture of experts as the keys expert_* describe it. */
typedef struct ob_moe_hparams {
    int32_t n_expert, n_shared, n_dense_lead; /* n_dense_lead: first layers without experts */
    ob_route_params route;
} ob_moe_hparams;
/* What ob_load_moe reads, for an architecture's list of keys. */
#define OB_MOE_KEYS                                                                               \
    "expert_count", "expert_used_count", "expert_feed_forward_length", "expert_group_count",      \
        "expert_group_used_count", "expert_gating_func", "expert_weights_scale", "expert_weights_norm"
/* Reads expert_count .. expert_weights_scale into *h; absent keys leave what is there. */
OB_MUST_CHECK ob_status ob_load_moe(const ob_model *m, ob_moe_hparams *h, ob_err *err);
/* res + the chosen experts (ffn_gate_exps, ffn_up_exps or the merged ffn_gate_up_exps, ffn_down_exps), in place
 * on res; without res a new value. */
ob_val ob_block_experts(ob_builder *b, ob_val x, const ob_val route[2], ob_val res, float clamp);
/* res + sum of the chosen experts, in place on res. */
ob_val ob_block_moe(ob_builder *b, ob_val x, ob_val res, const ob_moe_hparams *h);
/* Final norm, rows wanted, product with the vocabulary. */
void ob_block_head(ob_builder *b, ob_val x, float scale, float softcap);

#endif
