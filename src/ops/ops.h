/* ops/ops.h: the op list. A model is a program of about 30 coarse ops; a device runs programs.
 *
 * Owns: what each op means (shape rule, cost rule, and in ref.h the reference C that is the oracle of
 * every device), the program that a device receives, and the parameters of one step. Must not know
 * architectures (graph/ builds programs) or devices (they read programs).
 *
 * Activations are row-major f32 matrices [rows, cols]. `rows` is symbolic, because it changes from
 * step to step: all tokens of the step, the rows whose output is wanted, or the sequences. So one
 * program serves every step of its bucket, and a device prepares it once.
 *
 * Weights are [cols = ne[0] (the inner, contiguous dimension), ne[1], ne[2]] as in GGUF: a linear
 * layer's weight has ne[0] = inputs K and ne[1] = outputs N.
 */
#ifndef OB_OPS_OPS_H
#define OB_OPS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "quant/quant.h"

typedef int32_t ob_val; /* index into ob_program.vals; OB_NONE = absent */
#define OB_NONE (-1)

typedef enum ob_rows {
    OB_ROWS_TOK, /* n_tok of the step */
    OB_ROWS_OUT, /* n_out of the step */
    OB_ROWS_SEQ, /* n_seq of the step */
} ob_rows;

typedef struct ob_value {
    ob_rows rows;
    int32_t cols;
    bool output;         /* read back after the step (logits, embeddings): never shares workspace */
    bool input;          /* given before the step by the caller (ob_dev_api.write_input) */
    bool seldom;         /* an output that is read back now and then only: a device may keep it until it is asked for */
    const char *name;    /* for errors, traces and tests; static or owned by the program */
    int32_t first, last; /* ops that write it first and read it last; filled by ob_program_plan */
    size_t offset;       /* byte offset in the workspace, 64-aligned; filled by ob_program_plan */
} ob_value;

/* What a weight is for, so that a device can choose its packing at load. */
typedef enum ob_weight_use {
    OB_USE_VECTOR,  /* norms, biases, scales: small, wanted as f32 */
    OB_USE_EMBED,   /* rows are looked up by token id */
    OB_USE_LINEAR,  /* ne[1] rows of ne[0]: matrix product */
    OB_USE_EXPERTS, /* ne[2] matrices of ne[1] x ne[0] */
    OB_USE_TABLE,   /* read as it is (integer tables, convolution taps) */
} ob_weight_use;

typedef struct ob_weight {
    const char *name; /* tensor name; borrowed from the file or owned by the program */
    ob_type type;
    int64_t ne[4];
    const void *data; /* borrowed; stays valid while the program's model is loaded */
    size_t n_bytes;
    ob_weight_use use;
    bool hadamard;    /* LINEAR, EXPERTS: rows are rotated (quant/hadamard.h), so activations must be */
    bool act4;        /* and are rounded to 4 bits (quant/act4.h) where the step says so */
    bool minor;       /* LINEAR, EXPERTS: a small product amid other work that decides much (a router, a gate, a matrix per
                         head): not for a unit that only multiplies (dev/products.h) */
} ob_weight;

/* One layer's share of the paged cache. Element order of K: [page][head][token in page][k_dim], of V
 * the same with v_dim; each [dim] row is quantised on its own when the type is a block type. */
typedef struct ob_cache_spec {
    int32_t n_head_kv, k_dim, v_dim; /* v_dim 0: no V plane (values are a part of K, as in MLA) */
} ob_cache_spec;

/* One recurrent state: n_floats f32 per slot. A sequence with nothing before it (seq_past 0) begins with zeros,
 * whatever its slot holds. */
typedef struct ob_state_spec {
    int64_t n_floats;
    const char *name;
} ob_state_spec;

typedef enum ob_op_kind {
    OB_OP_EMBED,      /* out[0][TOK, d] = scale * w[0][tok]; with `vectors`, where tok < 0, row -1 - tok of the
                         step's vectors as it is. Without w[0] all rows are vectors */
    OB_OP_ROWS_OUT,   /* out[0][OUT, c] = in[0][TOK, c] at the step's out_rows */
    OB_OP_RMS_NORM,   /* out = in / rms(in over each group of `group` columns) * w[0]; w[0] may be absent */
    OB_OP_LAYER_NORM, /* out = (in - mean) / sd * w[0] + w[1]; both may be absent */
    OB_OP_LINEAR,     /* out[i] = in[0] * w[i]^T + w[4 + i] (bias, may be absent); i < n_mat;
                         in[1] (optional, only with n_mat 1): out[0] = in[1] + scale * (...) */
    OB_OP_ROPE,       /* out = in with each head's columns rotated by the token's position */
    OB_OP_ATTENTION,  /* write in[1] (K), in[2] (V) to the cache, then out[0] = attention(in[0]).
                         in[2] absent: the values are the first v_dim columns of each key (MLA) */
    OB_OP_GLU,        /* out = act(in[0]) * in[1] */
    OB_OP_ADD,        /* out = in[0] + scale * in[1] */
    OB_OP_SCALE,      /* out = scale * in[0], then softcap * tanh(out / softcap) if softcap > 0 */
    OB_OP_ACT,        /* out = act(in[0]) */
    OB_OP_AFFINE,     /* out = (in[0] + w[1]) * w[0] + (in[1] + w[3]) * w[2], vectors over the columns;
                         an absent factor is 1, an absent offset 0, an absent in[1] adds nothing */
    OB_OP_GATE,       /* out = res + in[0] * sigmoid(in[1]); in[1] has one column or as many as in[0];
                         in[2] is res, may be absent */
    OB_OP_SPLIT,      /* columns in n_group equal groups: out[0] gets the first part of every group,
                         out[1] the rest; widths are those of the outputs */
    OB_OP_JOIN,       /* the reverse: group g of out = group g of in[0], then group g of in[1] */
    OB_OP_LINEAR_HEADS, /* per head h: out_h = in_h[0..K) * w[0][:,:,h]^T, then the last `tail` columns
                         of in_h as they are; in [rows, n_head * (K + tail)] */
    OB_OP_MOE_ROUTE,  /* logits in[0] -> out[0] ids, out[1] weights of the chosen experts; see
                         ob_route_params */
    OB_OP_MOE_GLU,    /* out[0] = in[3] + sum_j in[2][j] * expert_{in[1][j]}(in[0]); see ob_moe_params */
    OB_OP_CONV1D,     /* causal depthwise convolution over time with state; see ob_conv_params */
    OB_OP_GDN,        /* gated delta net recurrence with state; see ob_gdn_params */
    OB_OP_ADD_ROW,    /* out[TOK, d] = in[0] + w[0][row], the row being the token's position or type */
    OB_OP_POOL,       /* out[SEQ, c] = mean, first or last of the rows in[0][TOK, c] of each sequence */
    OB_OP_CCA,        /* ZAYA's convolved queries, keys and values, with state; see ob_cca_params */
    OB_OP_HC_MIX,     /* hyper-connections: streams in[0] and coefficients in[1] -> out[0] the block's input,
                         out[1] what HC_POST needs; see ob_hc_params */
    OB_OP_HC_POST,    /* out[0] = streams after a block: in[0] its output, in[1] streams, in[2] of HC_MIX */
    OB_OP_CSA,        /* compressed sparse attention (DeepSeek V4), with state; see ob_csa_params */
    OB_OP_MERGE,      /* of the n adjacent rows of in[0][TOK, c] that begin at each of the step's out_rows: out[0] is
                         [OUT, n * c], the rows side by side, or with `mean` [OUT, c], their mean */
    OB_OP_TOP_K,      /* of each row of in[0]: out[0] = the k largest columns, best first, of equal ones the smaller
                         first; then their values, log(sum exp) over the row, and how many columns are NaN (then the
                         rest means nothing). Short rows are filled up with column -1 of value -inf. [rows, 2k + 2] */
    OB_OP_COUNT
} ob_op_kind;

typedef enum ob_act { OB_ACT_NONE, OB_ACT_SILU, OB_ACT_GELU_ERF, OB_ACT_GELU_TANH, OB_ACT_RELU,
                      OB_ACT_SIGMOID, OB_ACT_GELU_QUICK /* x sigmoid(1.702 x) */ } ob_act;

typedef enum ob_rope_pairing {
    OB_ROPE_NORM, /* pairs (2i, 2i+1) */
    OB_ROPE_NEOX, /* pairs (i, i + n_rot/2) */
} ob_rope_pairing;

/* theta_i = base^(-2i/n_rot) / factor_i * freq_scale, YaRN-mixed when ext_factor > 0 (Peng et al.
 * 2023, arXiv 2309.00071); cos and sin are multiplied by attn_factor. w[0] (optional): factor_i,
 * n_rot/2 floats. Rotation over several axes (arXiv 2409.12191): the first axis_pairs[0] pairs turn by the
 * step's pos, the next axis_pairs[1] by pos_h, the next axis_pairs[2] by pos_w; together n_rot/2. With
 * axis_restart the frequencies begin anew on each axis a: theta_i = base^(-i/axis_pairs[a]), i from its first. */
typedef struct ob_rope_params {
    ob_rope_pairing pairing;
    int32_t head_dim; /* columns per head */
    int32_t n_rot;    /* rotated columns of each head */
    int32_t rot_off;  /* first rotated column within the head */
    float base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow;
    int32_t n_ctx_orig;
    bool inverse; /* rotate by -pos */
    int32_t axis_pairs[3]; /* all 0: one axis */
    bool axis_restart;
} ob_rope_params;

/* What the blocks of a step (ob_step.block_first, block_end) mean to an attention op. */
typedef enum ob_attn_blocks {
    OB_BLOCKS_NONE, /* nothing */
    OB_BLOCKS_ALSO, /* a token sees its whole block, beside what it sees anyway (pictures in Gemma 3) */
    OB_BLOCKS_ONLY, /* a token sees its block alone (windows of a vision tower) */
} ob_attn_blocks;

typedef struct ob_attn_params {
    int32_t cache; /* index into ob_program.caches */
    int32_t n_head, n_head_kv, k_dim, v_dim;
    float scale;
    float softcap;  /* 0: none */
    int32_t window; /* 0: all; else a query sees keys with q - k < window (causal) or
                       |q - k| <= window / 2 (not causal) */
    bool causal;
    ob_attn_blocks blocks;
} ob_attn_params;

/* How the scores of experts become weights (GGUF key expert_gating_func; the numbers are the file's). */
typedef enum ob_gating { OB_GATING_SOFTMAX = 1, OB_GATING_SIGMOID = 2, OB_GATING_SQRT_SOFTPLUS = 4 } ob_gating;

/* p = gating(in[0]) over all n_class columns; c = p + w[0] (w[0] optional: balancing bias, for the choice
 * only). With n_group > 1 the classes lie in groups of equal size: a group scores the sum of its two best
 * c, and only the n_group_used best groups stay. The n_used best c are chosen, best first, equal ones in
 * order of number. With w[1] (I32 [n_used, vocabulary]) the chosen ones are instead row w[1][token].
 * Weights are the p of the chosen; `norm` divides them by max(their sum, 6.1e-5); then times scale.
 * out[0] [TOK, n_used] ids as whole numbers in f32, out[1] [TOK, n_used] weights. */
typedef struct ob_route_params {
    ob_gating gating;
    int32_t n_used, n_group, n_group_used;
    bool norm;
    float scale;
} ob_route_params;

/* expert_e(x) = w[2][e] (act(w[0][e] x) * (w[1][e] x)), gate and up clamped as in GLU. Without w[1] the
 * rows of w[0][e] are the gate's, then up's. An id past the last expert adds nothing (ZAYA's skip). */
typedef struct ob_moe_params {
    int32_t n_used;
    ob_act act;
    float clamp;
} ob_moe_params;

/* u = in[0] [TOK, C]; out[t][c] = act(w[1][c] + sum_i w[0][c][i] * u[t - K + 1 + i][c]), w[0] [K, C], w[1]
 * an optional bias. u before the sequence is zero. State: the last K - 1 rows of u, oldest first. */
typedef struct ob_conv_params {
    int32_t state; /* index into ob_program.states */
    ob_act act;
} ob_conv_params;

/* Gated delta rule (Yang et al. 2024, arXiv 2412.06464). in[0] [TOK, q|k|v] = 2 * n_head_k * k_dim +
 * n_head_v * v_dim columns, in[1] alpha and in[2] beta [TOK, n_head_v]; w[0] = dt_bias and w[1] = a (<= 0),
 * n_head_v each. Per value head j with key head kh = tiled ? j mod n_head_k : j div (n_head_v / n_head_k):
 *   q = q / sqrt(|q|^2 + eps) / sqrt(k_dim), k = k / sqrt(|k|^2 + eps)
 *   g = a * softplus(alpha + dt_bias), b = sigmoid(beta)
 *   S = e^g S; S += k (b (v - S^T k))^T; out[0][j] = S^T q      (S is [k_dim][v_dim], the state)   */
typedef struct ob_gdn_params {
    int32_t state; /* index into ob_program.states: n_head_v * k_dim * v_dim floats */
    int32_t n_head_k, n_head_v, k_dim, v_dim;
    float eps;
    bool tiled;
} ob_gdn_params;

/* What ADD_ROW looks up by. */
typedef enum ob_row_of { OB_ROW_OF_POSITION, OB_ROW_OF_TYPE } ob_row_of;

/* How the rows of a sequence become one vector. */
typedef enum ob_pooling {
    OB_POOLING_AUTO, /* as the model's file says */
    OB_POOLING_NONE, /* not at all: a vector per token */
    OB_POOLING_MEAN,
    OB_POOLING_CLS,  /* the first token's */
    OB_POOLING_LAST,
} ob_pooling;

/* in: q [TOK, n_head * hd], k [TOK, n_head_kv * hd], va, vb [TOK, n_head_kv * hd / 2]. u = [q | k] of a token
 * (zero before the sequence); c(t) = w[1] + w[0][., 0] u(t-1) + w[0][., 1] u(t)   (w[0] [2, C], w[1] [C]);
 * e(t) of head h = w[3] + W_h,0 c(t-1) + W_h,1 c(t), w[2] = [in hd, out C, tap 2] or [tap 2, in hd, out C];
 * m_h = (q_h + k_g) / 2 for head h of group g. Then, each head scaled to length sqrt(hd),
 *   out[0]_h = e_h + m_h;  out[1]_g = w[4][g] * (e_g + mean of the group's m);  out[2] = [va(t) | vb(t-1)].
 * State: u of the last two tokens, oldest first, then vb of the last. */
typedef struct ob_cca_params {
    int32_t state; /* index into ob_program.states: 2 * C + columns of vb */
    int32_t n_head, n_head_kv;
} ob_cca_params;

/* Manifold-constrained hyper-connections (arXiv 2512.24880). in[0] [rows, n * d] are n streams X_s; in[1] holds
 * n pre, n post and n * n comb values, each times w[0][0], w[0][1], w[0][2] plus w[1] (the last layer's mix has
 * only pre, and no out[1]). pre = sigmoid + eps, post = 2 sigmoid, comb[src][dst] = softmax over dst, + eps,
 * then columns divided by their sum + eps, then n_iter - 1 times rows and columns.
 * out[0] = sum pre_s X_s; out[1] = [post | comb] for HC_POST: X'_dst = post_dst y + sum comb[src][dst] X_src. */
typedef struct ob_hc_params {
    int32_t n_stream, n_iter;
    float eps;
} ob_hc_params;

/* Attention over the last `window` keys and, with ratio > 0, over compressed entries; keys are the values.
 * in[0] q [TOK, n_head * k_dim], in[1] keys [TOK, k_dim] (both rotated); w[0] sinks [n_head]: a logit per head
 * that joins the softmax's denominator only.
 * Compressor, in[2] kv and in[3] gate [TOK, c], w[1] ape [c, ratio], w[2] norm [k_dim]: entry i ends with token
 * (i + 1) * ratio - 1. With z = gate + ape[pos mod ratio], per column: softmax(z) over the window's tokens,
 * weighted sum of kv, rms norm, rotated at position ratio * i. c = k_dim; or c = 2 * k_dim: the tokens of the
 * window before count with their first half, those of this one with their second.
 * A query at position t sees entries i < (t + 1) div ratio. With an indexer (in[4] q_I [TOK, n_index_head *
 * index_dim], in[5] w_I [TOK, n_index_head], in[6], in[7], w[3], w[4]: its own compressor, c = 2 * index_dim)
 * only the top_k best by sum_h w_I,h relu(q_I,h k_I) / sqrt(index_dim * n_index_head), the earlier of equal ones.
 * An entry lies in its cache in the row of the last token of its window. State of a compressor: for each of the
 * tokens that the next entry may look at, kv and gate, at position mod their number.
 * official (quant/fp_round.h): keys and entries are rounded to FP8 but for their rotated columns, the indexer's queries
 * and entries to FP4 after a Hadamard transform, as DeepSeek's own implementation does. */
typedef struct ob_csa_params {
    int32_t cache_raw, cache_comp, cache_index; /* indices into ob_program.caches, one head each, v_dim 0 */
    int32_t state_comp, state_index;            /* indices into ob_program.states */
    int32_t n_head, k_dim, window, ratio, n_index_head, index_dim, top_k;
    float scale, eps;
    ob_rope_params rope; /* of compressed entries; head_dim and rot_off are their own (the last columns) */
    bool official;       /* index_dim is a power of two, at most OB_CSA_MAX_INDEX */
} ob_csa_params;

enum { OB_TOP_K_MAX = 64, OB_MOE_MAX_USED = 64, OB_CONV_MAX_TAPS = 16, OB_HC_MAX_STREAMS = 8, OB_CSA_MAX_INDEX = 1024 };

enum { OB_OP_MAX_IN = 8, OB_OP_MAX_OUT = 4, OB_OP_MAX_W = 12 };

typedef struct ob_op {
    ob_op_kind kind;
    int32_t layer;               /* for messages and profiles; -1 outside layers */
    ob_val in[OB_OP_MAX_IN];     /* OB_NONE where absent */
    ob_val out[OB_OP_MAX_OUT];   /* may equal an input of the same shape (in place) */
    int32_t w[OB_OP_MAX_W];      /* indices into ob_program.weights; OB_NONE where absent */
    union {
        struct { float scale; bool vectors; } embed;
        struct { float scale; } add;
        struct { int32_t n; bool mean; } merge;
        struct { float scale, softcap; } scale;
        struct { float eps; int32_t group; /* 0: all columns */ } norm;
        struct { int32_t n_mat; float scale; } linear;
        struct { ob_act act; float clamp; /* 0: none; else gate <= clamp, |up| <= clamp */ } glu;
        struct { ob_act act; } act;
        struct { ob_row_of by; } add_row;
        struct { ob_pooling mode; } pool; /* MEAN, CLS or LAST */
        struct { int32_t n_group; } split, join;
        struct { int32_t n_head, tail; } heads;
        struct { int32_t k; } top_k;
        ob_rope_params rope;
        ob_attn_params attn;
        ob_route_params route;
        ob_moe_params moe;
        ob_conv_params conv;
        ob_gdn_params gdn;
        ob_cca_params cca;
        ob_hc_params hc;
        ob_csa_params csa;
    } p;
} ob_op;

typedef struct ob_program {
    ob_op *ops;
    int32_t n_ops;
    ob_value *vals;
    int32_t n_vals;
    ob_weight *weights;
    int32_t n_weights;
    ob_cache_spec *caches;
    int32_t n_caches;
    ob_state_spec *states;
    int32_t n_states;
    ob_val logits;     /* OB_NONE when the program has none */
    ob_val embeddings; /* OB_NONE when the program has none */
    ob_val top;        /* of TOP_K over the logits; OB_NONE when the program has none */
    /* Bucket: the most of each that a step may have; set by ob_program_plan. */
    int32_t max_tok, max_out, max_seq;
    size_t workspace_bytes;
} ob_program;

/* The parameters of one step: plain arrays, all borrowed for the call. The tokens of a sequence are
 * adjacent and in order: sequence s has tokens seq_first[s] .. seq_first[s+1]-1, and seq_past[s]
 * tokens in the cache before them. */
typedef struct ob_step {
    int32_t n_tok, n_seq, n_out;
    const int32_t *tok;        /* [n_tok] ids; below 0: rows of vec (OB_OP_EMBED) */
    const int32_t *pos;        /* [n_tok] positions for RoPE and position tables */
    const int32_t *type;       /* [n_tok] rows of type tables; NULL: all 0 */
    const int32_t *seq_first;  /* [n_seq + 1] */
    const int32_t *seq_past;   /* [n_seq] */
    const int32_t *seq_slot;   /* [n_seq] slot of the recurrent state; NULL without states */
    const int32_t *page_table; /* [n_seq][max_pages] page ids, in order of position */
    int32_t max_pages;
    const int32_t *out_rows;   /* [n_out] token indices whose output is wanted */
    const uint8_t *coarse;     /* [n_tok] 1: products of this token with act4 weights round it to 4 bits; NULL: none */
    const float *vec;          /* [n_vec][columns of EMBED's output] vectors in the place of ids */
    int32_t n_vec;
    const int32_t *pos_h, *pos_w; /* [n_tok] positions on the second and third axis of RoPE; NULL: equal to pos */
    /* [n_tok] block of the token: cached tokens [block_first, block_end) of its sequence, itself among them. Neither
     * falls from token to token, and a block ends within the sequence. NULL: each token is its own. */
    const int32_t *block_first, *block_end;
} ob_step;

const char *ob_op_name(ob_op_kind k);

/* Where an op keeps its indices into caches and into states: fills at[] and returns how many. Absent ones hold
 * OB_NONE. */
enum { OB_OP_MAX_CACHES = 3, OB_OP_MAX_STATES = 2 };
int ob_op_cache_refs(ob_op *op, int32_t *at[OB_OP_MAX_CACHES]);
int ob_op_state_refs(ob_op *op, int32_t *at[OB_OP_MAX_STATES]);

/* Shape rule: every input, output, weight and parameter fits. The error names op, layer and tensor.
 * OB_E_INVALID on a bug of the builder, OB_E_FORMAT on a weight of a wrong shape. */
OB_MUST_CHECK ob_status ob_op_check(const ob_program *p, int32_t op, ob_err *err);

/* Cost rule: floating-point operations and bytes moved (weights once, activations, cache) of one op
 * in a step with these sizes; n_kv is the mean number of cached tokens seen by a query. */
typedef struct ob_cost { double flops, weight_bytes, act_bytes, cache_bytes; } ob_cost;
ob_cost ob_op_cost(const ob_program *p, int32_t op, int32_t n_tok, int32_t n_out, double n_kv,
                   ob_type k_type, ob_type v_type);

/* Rows of a value in a step. */
int32_t ob_value_rows(const ob_program *p, ob_val v, int32_t n_tok, int32_t n_out, int32_t n_seq);

/* Check every op and give values places in one workspace so that values alive at the same time do
 * not overlap. May be called again for another bucket. */
OB_MUST_CHECK ob_status ob_program_plan(ob_program *p, int32_t max_tok, int32_t max_out,
                                        int32_t max_seq, ob_err *err);

#endif
