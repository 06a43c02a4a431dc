/* deepseek4: DeepSeek V4: hyper-connections, compressed sparse attention, a mixture with hashed layers.
 *
 *   X [4 streams] = E, four times. Before each block: h = sum of pre_s X_s; after it X = post y + comb X
 *   (OB_OP_HC_MIX, OB_OP_HC_POST; the coefficients are a product with the unweighted rms norm of X).
 *   q = rms_head(Wqb rms(Wqa n)), kv = rms(Wkv n), both rotated on their last n_rot columns (neighbouring
 *   pairs); keys and values are the same: the last `window` tokens and the compressed entries (OB_OP_CSA);
 *   the output is rotated back, then Wb of the groups' Wa.
 *   Mixture: square root of softplus, the best by score + bias, or in the first hash_layer_count layers
 *   the experts that a table lists for the token; plus a shared expert; gate and up are clamped.
 *
 * compress_ratios per layer: 0 only the window, rotated with rope.freq_base, unscaled; 4 with an indexer,
 * other ratios without; these rotate with compress_rope_freq_base and the file's YaRN, magnitude 1.
 */
#include <math.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "graph/graph_int.h"

typedef struct layer {
    int32_t ratio;
    float clamp, clamp_shared;
} layer;

typedef struct deepseek4 {
    ob_moe_hparams moe;
    ob_csa_params csa; /* what all layers share */
    ob_hc_params hc;
    ob_rope_params rope, rope_compressed; /* of a head */
    int32_t n_run, n_hash, q_lora, n_group, o_lora;
    layer layers[];
} deepseek4;

static ob_status load_layers(const ob_model *m, deepseek4 *d, ob_err *err)
{
    static const char *const k_keys[3] = {"attention.compress_ratios", "swiglu_clamp_exp", "swiglu_clamp_shexp"};
    for (int k = 0; k < 3; k++) {
        const ob_kv *kv = ob_file_find_kvf(m->file, "%s.%s", m->arch->name, k_keys[k]);
        for (int32_t l = 0; l < d->n_run && (kv || k == 0); l++) {
            double x;
            if (!kv || !ob_kv_elem_f64(kv, (uint64_t)l, &x) || !(x >= 0 && x <= 1 << 16) || (k == 0 && x != floor(x)))
                return ob_err_set(err, OB_E_FORMAT, "key %s.%s has no usable value for layer %d", m->arch->name,
                                  k_keys[k], l);
            if (k == 0) d->layers[l].ratio = (int32_t)x;
            else if (k == 1) d->layers[l].clamp = (float)x;
            else d->layers[l].clamp_shared = (float)x;
        }
    }
    return OB_OK;
}

static ob_status load(ob_model *m, ob_err *err)
{
    OB_TRY(ob_load_common(m, OB_ROPE_NORM, err));
    const ob_hparams *h = &m->hp;
    deepseek4 *d = m->own = ob_calloc(1, sizeof *d + (size_t)h->n_layer * sizeof(layer));
    if (!d) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the model");
    int32_t n_mtp = 0;
    OB_TRY(ob_key_i32_opt(m, "nextn_predict_layers", 0, h->n_layer - 1, &n_mtp, err));
    d->n_run = h->n_layer - n_mtp;
    OB_TRY(ob_key_i32(m, "attention.q_lora_rank", 1, 1 << 16, &d->q_lora, err));
    OB_TRY(ob_key_i32(m, "attention.sliding_window", 1, OB_MAX_CTX, &d->csa.window, err));
    OB_TRY(ob_key_i32(m, "attention.indexer.head_count", 1, 4096, &d->csa.n_index_head, err));
    OB_TRY(ob_key_i32(m, "attention.indexer.key_length", 1, 4096, &d->csa.index_dim, err));
    OB_TRY(ob_key_i32(m, "attention.indexer.top_k", 1, OB_MAX_CTX, &d->csa.top_k, err));
    OB_TRY(ob_key_i32(m, "attention.output_group_count", 1, 4096, &d->n_group, err));
    OB_TRY(ob_key_i32(m, "attention.output_lora_rank", 1, 1 << 16, &d->o_lora, err));
    OB_TRY(ob_key_i32(m, "hyper_connection.count", 1, OB_HC_MAX_STREAMS, &d->hc.n_stream, err));
    OB_TRY(ob_key_i32(m, "hyper_connection.sinkhorn_iterations", 1, 1000, &d->hc.n_iter, err));
    OB_TRY(ob_key_f32(m, "hyper_connection.epsilon", &d->hc.eps, err));
    OB_TRY(ob_key_i32_opt(m, "hash_layer_count", 0, h->n_layer, &d->n_hash, err));
    d->rope_compressed = h->rope;
    d->rope_compressed.rot_off = h->k_dim - h->rope.n_rot;
    d->rope_compressed.attn_factor = 1.0f;
    OB_TRY(ob_key_f32(m, "attention.compress_rope_freq_base", &d->rope_compressed.base, err));
    d->rope = d->rope_compressed;
    d->rope.base = h->rope.base;
    d->rope.freq_scale = 1.0f;
    d->rope.ext_factor = 0;
    if (h->n_head_kv != 1 || h->k_dim != h->v_dim || h->rope.n_rot > d->csa.index_dim || h->n_head % d->n_group ||
        !(d->rope_compressed.base > 1.0f))
        return ob_err_set(err, OB_E_FORMAT, "keys deepseek4.attention.* do not fit each other");
    d->csa.n_head = h->n_head;
    d->csa.k_dim = h->k_dim;
    d->csa.scale = 1.0f / sqrtf((float)h->k_dim);
    d->csa.eps = h->norm_eps;
    d->csa.rope = d->rope_compressed;
    d->csa.official = m->opt.official_rounding;
    if (d->csa.official && (d->csa.index_dim > OB_CSA_MAX_INDEX || (d->csa.index_dim & (d->csa.index_dim - 1))))
        return ob_err_set(err, OB_E_UNSUPPORTED, "official rounding of an indexer that is %d wide", d->csa.index_dim);
    d->moe.route = (ob_route_params){.gating = OB_GATING_SQRT_SOFTPLUS, .norm = true};
    OB_TRY(ob_load_moe(m, &d->moe, err));
    return load_layers(m, d, err);
}

/* The block's input from the streams; *coef for hc_post. `part` is hc_attn, hc_ffn or output_hc. */
static ob_val hc_pre(const ob_model *m, ob_builder *b, ob_val x, const char *part, ob_val *coef)
{
    const deepseek4 *d = m->own;
    const char *dot = b->layer < 0 ? "" : ".";
    char pre[32] = "";
    if (b->layer >= 0) snprintf(pre, sizeof pre, "blk.%d", b->layer);
    ob_val n = ob_b_rms_norm(b, x, OB_NONE, m->hp.norm_eps, 0);
    ob_val mix = ob_b_linear(b, n, ob_b_weight(b, OB_USE_LINEAR, "%s%s%s_fn.weight", pre, dot, part), OB_NONE);
    const int32_t w[2] = {ob_b_weight(b, OB_USE_VECTOR, "%s%s%s_scale.weight", pre, dot, part),
                          ob_b_weight(b, OB_USE_VECTOR, "%s%s%s_base.weight", pre, dot, part)};
    return ob_b_hc_mix(b, x, mix, w, &d->hc, coef);
}

/* Inputs 2, 3 of the attention (latent compressor) or 6, 7 (the indexer's) and their weights. */
static void compressor(ob_builder *b, ob_val n, const char *part, ob_val in[2], int32_t w[2])
{
    const int l = b->layer;
    const int32_t lin[2] = {ob_b_weight(b, OB_USE_LINEAR, "blk.%d.%s_compressor_kv.weight", l, part),
                            ob_b_weight(b, OB_USE_LINEAR, "blk.%d.%s_compressor_gate.weight", l, part)};
    ob_b_linears(b, n, 2, lin, NULL, in);
    w[0] = ob_b_weight(b, OB_USE_VECTOR, "blk.%d.%s_compressor_ape.weight", l, part);
    w[1] = ob_b_weight(b, OB_USE_VECTOR, "blk.%d.%s_compressor_norm.weight", l, part);
}

/* A compressor's state: kv and gate rows of the tokens that its next entry may look at. */
static int32_t compressor_state(ob_builder *b, ob_val kv, int32_t width, int32_t ratio)
{
    const int64_t cols = ob_b_cols(b, kv), slots = (cols == 2 * width ? 2 : 1) * (int64_t)ratio;
    return ob_b_state(b, "compressor", slots * 2 * cols);
}

static ob_val build_attention(const ob_model *m, ob_builder *b, ob_val n)
{
    const deepseek4 *d = m->own;
    const int l = b->layer;
    ob_csa_params p = d->csa;
    p.ratio = d->layers[l].ratio;
    ob_rope_params rope = p.ratio ? d->rope_compressed : d->rope;
    const int32_t lin[2] = {ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_q_a.weight", l),
                            ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_kv.weight", l)};
    ob_val v[2], in[8] = {OB_NONE, OB_NONE, OB_NONE, OB_NONE, OB_NONE, OB_NONE, OB_NONE, OB_NONE};
    int32_t w[5] = {ob_b_weight(b, OB_USE_VECTOR, "blk.%d.attn_sinks.weight", l), OB_NONE, OB_NONE, OB_NONE, OB_NONE};
    ob_b_linears(b, n, 2, lin, NULL, v);
    ob_val latent = ob_block_norm(b, v[0], "attn_q_a_norm", 0);
    in[0] = ob_b_linear(b, latent, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_q_b.weight", l), OB_NONE);
    in[0] = ob_b_rope(b, ob_b_rms_norm(b, in[0], OB_NONE, m->hp.norm_eps, m->hp.k_dim), &rope, OB_NONE);
    in[1] = ob_b_rope(b, ob_block_norm(b, v[1], "attn_kv_a_norm", 0), &rope, OB_NONE);
    p.cache_raw = ob_b_cache(b, 1, p.k_dim, 0);
    if (p.ratio) {
        compressor(b, n, "attn", in + 2, w + 1);
        p.cache_comp = ob_b_cache(b, 1, p.k_dim, 0);
        p.state_comp = compressor_state(b, in[2], p.k_dim, p.ratio);
    }
    if (p.ratio == 4) {
        ob_rope_params ir = rope;
        ir.head_dim = p.index_dim;
        ir.rot_off = p.index_dim - ir.n_rot;
        in[4] = ob_b_linear(b, latent, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.indexer.attn_q_b.weight", l), OB_NONE);
        ob_b_rope(b, in[4], &ir, OB_NONE);
        in[5] = ob_b_linear(b, n, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.indexer.proj.weight", l), OB_NONE);
        compressor(b, n, "indexer", in + 6, w + 3);
        p.cache_index = ob_b_cache(b, 1, p.index_dim, 0);
        p.state_index = compressor_state(b, in[6], p.index_dim, p.ratio);
    }
    ob_val y = ob_b_csa(b, in, w, &p);
    rope.inverse = true;
    ob_b_rope(b, y, &rope, OB_NONE);
    y = ob_b_linear_heads(b, y, ob_b_weight_heads(b, d->n_group, "blk.%d.attn_output_a.weight", l), d->n_group, 0);
    return ob_b_linear(b, y, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_output_b.weight", l), OB_NONE);
}

static ob_val build_experts(const ob_model *m, ob_builder *b, ob_val n)
{
    const deepseek4 *d = m->own;
    const int l = b->layer;
    const bool hashed = l < d->n_hash;
    ob_val route[2];
    ob_val logits = ob_b_linear(b, n, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_gate_inp.weight", l), OB_NONE);
    ob_b_route(b, logits, hashed ? OB_NONE : ob_b_weight(b, OB_USE_VECTOR, "blk.%d.exp_probs_b.bias", l),
               hashed ? ob_b_weight(b, OB_USE_TABLE, "blk.%d.ffn_gate_tid2eid.weight", l) : OB_NONE, &d->moe.route,
               route);
    ob_val y = OB_NONE;
    if (d->moe.n_shared) {
        y = ob_block_ffn_hidden(b, n, OB_ACT_SILU, d->layers[l].clamp_shared, "_shexp");
        y = ob_b_linear(b, y, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_down_shexp.weight", l), OB_NONE);
    }
    return ob_block_experts(b, n, route, y, d->layers[l].clamp);
}

static void build(const ob_model *m, ob_builder *b)
{
    const deepseek4 *d = m->own;
    ob_val x = ob_b_embed(b, ob_b_weight(b, OB_USE_EMBED, "token_embd.weight"), 1.0f), one = x, coef;
    for (int32_t s = 1; s < d->hc.n_stream; s++) x = ob_b_join(b, x, one, 1);
    for (int32_t l = d->n_run; l < m->hp.n_layer; l++) ob_b_ignore_layer(b, l);
    for (b->layer = 0; b->layer < d->n_run; b->layer++) {
        ob_val h = hc_pre(m, b, x, "hc_attn", &coef);
        ob_b_hc_post(b, build_attention(m, b, ob_block_norm(b, h, "attn_norm", 0)), x, coef, &d->hc);
        h = hc_pre(m, b, x, "hc_ffn", &coef);
        ob_b_hc_post(b, build_experts(m, b, ob_block_norm(b, h, "ffn_norm", 0)), x, coef, &d->hc);
    }
    b->layer = -1;
    x = hc_pre(m, b, ob_b_rows_out(b, x), "output_hc", NULL);
    x = ob_b_rms_norm(b, x, ob_b_weight(b, OB_USE_VECTOR, "output_norm.weight"), m->hp.norm_eps, 0);
    ob_b_logits(b, x, 1.0f, 0);
}

static const char *const k_keys[] = {
    "attention.q_lora_rank", "attention.sliding_window", "attention.indexer.head_count",
    "attention.indexer.key_length", "attention.indexer.top_k", "attention.output_group_count",
    "attention.output_lora_rank", "attention.compress_ratios", "attention.compress_rope_freq_base",
    "hyper_connection.count", "hyper_connection.sinkhorn_iterations", "hyper_connection.epsilon", "hash_layer_count",
    "swiglu_clamp_exp", "swiglu_clamp_shexp", "embedding_length_out", "nextn_predict_layers", "expert_shared_count",
    OB_MOE_KEYS, NULL,
};

const ob_arch ob_arch_deepseek4 = {.name = "deepseek4", .load = load, .build = build, .keys = k_keys};
