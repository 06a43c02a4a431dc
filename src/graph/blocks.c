/* Blocks that several decoder families share. Each works on the builder's current layer. */
#include <math.h>
#include <stdio.h>

#include "graph/graph_int.h"

ob_val ob_block_norm(ob_builder *b, ob_val x, const char *name, int32_t group)
{
    return ob_b_rms_norm(b, x, ob_b_weight(b, OB_USE_VECTOR, "blk.%d.%s.weight", b->layer, name),
                         b->m->hp.norm_eps, group);
}

ob_val ob_block_attention(ob_builder *b, ob_val x, const ob_block_attn *p)
{
    const ob_hparams *h = &b->m->hp;
    const int l = b->layer;
    const int32_t w[3] = {ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_q.weight", l),
                          ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_k.weight", l),
                          ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_v.weight", l)};
    const int32_t bias[3] = {ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.attn_q.bias", l),
                             ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.attn_k.bias", l),
                             ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.attn_v.bias", l)};
    ob_val qkv[3];
    ob_b_linears(b, x, 3, w, bias, qkv);
    if (p->qk_norm) {
        qkv[0] = ob_block_norm(b, qkv[0], "attn_q_norm", h->k_dim);
        qkv[1] = ob_block_norm(b, qkv[1], "attn_k_norm", h->k_dim);
    }
    ob_b_rope(b, qkv[0], p->rope, p->factors);
    ob_b_rope(b, qkv[1], p->rope, p->factors);
    const ob_attn_params a = {.cache = ob_b_cache(b, h->n_head_kv, h->k_dim, h->v_dim), .n_head = h->n_head,
                              .n_head_kv = h->n_head_kv, .k_dim = h->k_dim, .v_dim = h->v_dim,
                              .scale = p->scale != 0 ? p->scale : 1.0f / sqrtf((float)h->k_dim),
                              .window = p->window, .causal = true, .blocks = p->blocks};
    return ob_b_attention(b, qkv[0], qkv[1], qkv[2], &a);
}

ob_val ob_block_attn_out(ob_builder *b, ob_val y, ob_val res, float scale)
{
    return ob_b_linear_add(b, y, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_output.weight", b->layer),
                           ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.attn_output.bias", b->layer), res, scale);
}

ob_val ob_block_ffn_hidden(ob_builder *b, ob_val x, ob_act act, float clamp, const char *part)
{
    const int l = b->layer;
    const int32_t w[2] = {ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_gate%s.weight", l, part),
                          ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_up%s.weight", l, part)};
    const int32_t bias[2] = {ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.ffn_gate%s.bias", l, part),
                             ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.ffn_up%s.bias", l, part)};
    ob_val g[2];
    ob_b_linears(b, x, 2, w, bias, g);
    return ob_b_glu(b, g[0], g[1], act, clamp);
}

ob_val ob_block_ffn(ob_builder *b, ob_val x, ob_val res, ob_act act, float scale)
{
    ob_val y = ob_block_ffn_hidden(b, x, act, 0, "");
    return ob_b_linear_add(b, y, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_down.weight", b->layer),
                           ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.ffn_down.bias", b->layer), res, scale);
}

ob_status ob_load_moe(const ob_model *m, ob_moe_hparams *h, ob_err *err)
{
    int32_t gating = (int32_t)h->route.gating, n_ff;
    if (h->route.n_group == 0) h->route.n_group = 1;
    if (h->route.n_group_used == 0) h->route.n_group_used = 1;
    if (h->route.scale == 0) h->route.scale = 1.0f;
    OB_TRY(ob_key_i32(m, "expert_count", 1, 1 << 16, &h->n_expert, err));
    OB_TRY(ob_key_i32(m, "expert_used_count", 1, OB_MOE_MAX_USED, &h->route.n_used, err));
    OB_TRY(ob_key_i32_opt(m, "expert_feed_forward_length", 1, 1 << 24, &n_ff, err)); /* the tensors say it */
    OB_TRY(ob_key_i32_opt(m, "expert_shared_count", 0, 64, &h->n_shared, err));
    OB_TRY(ob_key_i32_opt(m, "leading_dense_block_count", 0, m->hp.n_layer, &h->n_dense_lead, err));
    OB_TRY(ob_key_i32_opt(m, "expert_group_count", 0, 1 << 10, &h->route.n_group, err));
    OB_TRY(ob_key_i32_opt(m, "expert_group_used_count", 0, 1 << 10, &h->route.n_group_used, err));
    OB_TRY(ob_key_i32_opt(m, "expert_gating_func", 1, 4, &gating, err));
    OB_TRY(ob_key_f32_opt(m, "expert_weights_scale", &h->route.scale, err));
    OB_TRY(ob_key_bool_opt(m, "expert_weights_norm", &h->route.norm, err));
    h->route.gating = (ob_gating)gating;
    if (h->route.n_group <= 1) h->route.n_group = h->route.n_group_used = 1;
    if (gating != OB_GATING_SOFTMAX && gating != OB_GATING_SIGMOID && gating != OB_GATING_SQRT_SOFTPLUS)
        return ob_err_set(err, OB_E_UNSUPPORTED, "key %s.expert_gating_func is %d (known: 1 softmax, 2 sigmoid, "
                          "4 square root of softplus)", m->arch->name, gating);
    if (h->route.n_used > h->n_expert)
        return ob_err_set(err, OB_E_FORMAT, "%d experts per token of %d", h->route.n_used, h->n_expert);
    return OB_OK;
}

ob_val ob_block_experts(ob_builder *b, ob_val x, const ob_val route[2], ob_val res, float clamp)
{
    const int l = b->layer;
    int32_t w[3] = {ob_b_weight_opt(b, OB_USE_EXPERTS, "blk.%d.ffn_gate_up_exps.weight", l), OB_NONE, OB_NONE};
    if (w[0] == OB_NONE) {
        w[0] = ob_b_weight(b, OB_USE_EXPERTS, "blk.%d.ffn_gate_exps.weight", l);
        w[1] = ob_b_weight(b, OB_USE_EXPERTS, "blk.%d.ffn_up_exps.weight", l);
    }
    w[2] = ob_b_weight(b, OB_USE_EXPERTS, "blk.%d.ffn_down_exps.weight", l);
    const ob_moe_params p = {.n_used = ob_b_cols(b, route[0]), .act = OB_ACT_SILU, .clamp = clamp};
    return ob_b_moe_glu(b, x, route, res, w, &p);
}

ob_val ob_block_moe(ob_builder *b, ob_val x, ob_val res, const ob_moe_hparams *h)
{
    const int l = b->layer;
    ob_val logits = ob_b_linear(b, x, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_gate_inp.weight", l), OB_NONE), route[2];
    ob_b_route(b, logits, ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.exp_probs_b.bias", l), OB_NONE, &h->route, route);
    return ob_block_experts(b, x, route, res, 0);
}

void ob_block_head(ob_builder *b, ob_val x, float scale, float softcap)
{
    b->layer = -1;
    const int32_t w = ob_b_weight(b, OB_USE_VECTOR, "output_norm.weight");
    if (b->m->hp.output == OB_OUTPUT_EMBEDDINGS) {
        ob_b_ignore(b, "output.weight");
        ob_b_ignore(b, "output.bias");
        ob_b_embeddings(b, ob_b_rms_norm(b, x, w, b->m->hp.norm_eps, 0));
        return;
    }
    x = ob_b_rms_norm(b, ob_b_rows_out(b, x), w, b->m->hp.norm_eps, 0);
    ob_b_logits(b, x, scale, softcap);
}
