/* zaya: ZAYA1 (Zyphra): attention over convolved queries and keys, and a mixture whose router carries a
 * state from layer to layer and may skip.
 *
 *   x0 = (E + b) * s
 *   x  = (Wo attention(rope(q), rope(k), v) + bh) * sh + (x + br) * sr,   q, k, v: see OB_OP_CCA
 *   r  = Wd m + b (+ r of the layer before * scale),  m = rms_norm(x)
 *   choice: softmax(W4 gelu(W2 gelu(W1 rms(r) + b) + b)) over the experts and one that does nothing
 *   x  = (expert(m) * probability + bh) * sh + (x + br) * sr
 *
 * Other names that files of the community have: cca_conv_grp and cca_conv_grp_grouped for the first and the
 * grouped convolution (ssm_conv1d, cca_conv_grp), zaya_router_eda, post_attn_norm; and the first layer may have no
 * res_scale_res, which then changes nothing.
 *
 * In these files expert_feed_forward_length is the width of the router and feed_forward_length that of an
 * expert; the first half of each head rotates (half-split pairs).
 */
#include <math.h>
#include <stdio.h>

#include "base/alloc.h"
#include "graph/graph_int.h"

static ob_status load(ob_model *m, ob_err *err)
{
    OB_TRY(ob_load_common(m, OB_ROPE_NEOX, err));
    ob_moe_hparams *h = m->own = ob_calloc(1, sizeof *h);
    if (!h) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the model");
    int32_t n_tap = 2;
    OB_TRY(ob_key_i32_opt(m, "ssm.conv_kernel", 2, 2, &n_tap, err));
    h->route = (ob_route_params){.gating = OB_GATING_SOFTMAX};
    return ob_load_moe(m, h, err);
}

static bool there(const ob_builder *b, const char *name)
{
    char whole[64];
    snprintf(whole, sizeof whole, "blk.%d.%s", b->layer, name);
    return ob_file_find_tensor(b->m->file, whole) != NULL;
}

/* blk.N.<name>, or where the file has not that, blk.N.<other>. */
static int32_t either(ob_builder *b, const char *name, const char *other)
{
    return ob_b_weight(b, OB_USE_VECTOR, "blk.%d.%s", b->layer, there(b, name) || !there(b, other) ? name : other);
}

/* x = (y + b) * w + (x + b) * w with the vectors res_scale_hs and res_scale_res. */
static ob_val rescale(ob_builder *b, ob_val y, ob_val x, const char *part)
{
    const int l = b->layer;
    const bool first = l == 0 && !*part && !there(b, "res_scale_res.weight");
    const int32_t w[4] = {
        ob_b_weight(b, OB_USE_VECTOR, "blk.%d.res_scale_hs%s.weight", l, part),
        ob_b_weight(b, OB_USE_VECTOR, "blk.%d.res_scale_hs%s.bias", l, part),
        first ? OB_NONE : ob_b_weight(b, OB_USE_VECTOR, "blk.%d.res_scale_res%s.weight", l, part),
        first ? OB_NONE : ob_b_weight(b, OB_USE_VECTOR, "blk.%d.res_scale_res%s.bias", l, part)};
    return ob_b_affine(b, y, x, w);
}

static ob_val build_attention(const ob_model *m, ob_builder *b, ob_val n)
{
    const ob_hparams *h = &m->hp;
    const int l = b->layer;
    const int32_t w[4] = {ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_q.weight", l),
                          ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_k.weight", l),
                          ob_b_weight(b, OB_USE_LINEAR, "blk.%d.cca_val_proj1.weight", l),
                          ob_b_weight(b, OB_USE_LINEAR, "blk.%d.cca_val_proj2.weight", l)};
    const bool other = there(b, "cca_conv_grp_grouped.weight");
    const char *first = other ? "cca_conv_grp" : "ssm_conv1d", *grouped = other ? "cca_conv_grp_grouped" : "cca_conv_grp";
    const int32_t conv[5] = {ob_b_weight(b, OB_USE_VECTOR, "blk.%d.%s.weight", l, first),
                             ob_b_weight(b, OB_USE_VECTOR, "blk.%d.%s.bias", l, first),
                             ob_b_weight(b, OB_USE_VECTOR, "blk.%d.%s.weight", l, grouped),
                             ob_b_weight(b, OB_USE_VECTOR, "blk.%d.%s.bias", l, grouped),
                             ob_b_weight(b, OB_USE_VECTOR, "blk.%d.cca_k_scale.weight", l)};
    ob_val in[4], qkv[3];
    ob_b_linears(b, n, 4, w, NULL, in);
    const ob_cca_params p = {.n_head = h->n_head, .n_head_kv = h->n_head_kv,
                             .state = ob_b_state(b, "cca", 2 * (int64_t)(h->n_head + h->n_head_kv) * h->k_dim +
                                                 ob_b_cols(b, in[3]))};
    ob_b_cca(b, in, conv, &p, qkv);
    ob_b_rope(b, qkv[0], &h->rope, OB_NONE);
    ob_b_rope(b, qkv[1], &h->rope, OB_NONE);
    const ob_attn_params a = {.cache = ob_b_cache(b, h->n_head_kv, h->k_dim, h->v_dim), .n_head = h->n_head,
                              .n_head_kv = h->n_head_kv, .k_dim = h->k_dim, .v_dim = h->v_dim,
                              .scale = 1.0f / sqrtf((float)h->k_dim), .causal = true};
    ob_val y = ob_b_attention(b, qkv[0], qkv[1], qkv[2], &a);
    return ob_b_linear(b, y, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_output.weight", l), OB_NONE);
}

/* Logits over the classes; *state is the router's state of the layer before and becomes this one's. */
static ob_val build_router(ob_builder *b, ob_val n, ob_val *state)
{
    const int l = b->layer;
    ob_val r = ob_b_linear(b, n, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_gate_inp.weight", l),
                           ob_b_weight(b, OB_USE_VECTOR, "blk.%d.ffn_gate_inp.bias", l));
    const char *name = there(b, "zaya_router_eda.weight") ? "zaya_router_eda" : "zaya_router_eda_scale";
    int32_t scale[4] = {OB_NONE, OB_NONE, ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.%s.weight", l, name), OB_NONE};
    if (*state != OB_NONE && scale[2] != OB_NONE) ob_b_affine(b, r, *state, scale);
    *state = r;
    ob_val y = ob_b_linear(b, ob_block_norm(b, r, "ffn_norm", 0),
                           ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_gate.weight", l),
                           ob_b_weight(b, OB_USE_VECTOR, "blk.%d.ffn_gate.bias", l));
    y = ob_b_linear(b, ob_b_act(b, y, OB_ACT_GELU_ERF),
                    ob_b_weight(b, OB_USE_LINEAR, "blk.%d.zaya_router_mlp2.weight", l),
                    ob_b_weight(b, OB_USE_VECTOR, "blk.%d.zaya_router_mlp2.bias", l));
    return ob_b_linear(b, ob_b_act(b, y, OB_ACT_GELU_ERF),
                       ob_b_weight(b, OB_USE_LINEAR, "blk.%d.zaya_router_mlp4.weight", l), OB_NONE);
}

static void build(const ob_model *m, ob_builder *b)
{
    const ob_moe_hparams *h = m->own;
    const int32_t in[4] = {ob_b_weight(b, OB_USE_VECTOR, "input_hidden_states_scale.weight"),
                           ob_b_weight(b, OB_USE_VECTOR, "input_hidden_states_scale.bias"), OB_NONE, OB_NONE};
    ob_val x = ob_b_embed(b, ob_b_weight(b, OB_USE_EMBED, "token_embd.weight"), 1.0f), router = OB_NONE, route[2];
    x = ob_b_affine(b, x, OB_NONE, in);
    for (b->layer = 0; b->layer < m->hp.n_layer; b->layer++) {
        x = rescale(b, build_attention(m, b, ob_block_norm(b, x, "attn_norm", 0)), x, "");
        ob_val n = ob_b_rms_norm(b, x, either(b, "post_attention_norm.weight", "post_attn_norm.weight"), m->hp.norm_eps, 0);
        ob_b_route(b, build_router(b, n, &router),
                   ob_b_weight(b, OB_USE_VECTOR, "blk.%d.zaya_router_biases.weight", b->layer), OB_NONE, &h->route,
                   route);
        x = rescale(b, ob_block_experts(b, n, route, OB_NONE, 0), x, "_mlp");
    }
    ob_block_head(b, x, 1.0f, 0);
}

static const char *const k_keys[] = {"ssm.conv_kernel", "ssm.state_size", "ssm.inner_size", OB_MOE_KEYS, NULL};

const ob_arch ob_arch_zaya = {.name = "zaya", .load = load, .build = build, .keys = k_keys};
