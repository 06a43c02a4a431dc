/* llama: Llama 2/3, SmolLM2, MiniCPM5 and other plain decoders (Touvron et al. 2023, arXiv 2302.13971).
 *
 *   x += Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = rms_norm(x)
 *   x += Wdown (silu(Wgate m) * Wup m),               m = rms_norm(x)
 *
 * GGUF stores Q and K rows so that rotary pairs are neighbours (OB_ROPE_NORM). rope_freqs.weight holds
 * Llama 3's frequency factors.
 */
#include <math.h>

#include "graph/graph_int.h"

static ob_status load(ob_model *m, ob_err *err)
{
    return ob_load_common(m, OB_ROPE_NORM, err);
}

static void build_layer(const ob_model *m, ob_builder *b, ob_val x, int32_t factors)
{
    const ob_hparams *h = &m->hp;
    int l = b->layer;
    ob_val n = ob_b_rms_norm(b, x, ob_b_weight(b, OB_USE_VECTOR, "blk.%d.attn_norm.weight", l),
                             h->norm_eps, 0);
    int32_t w[3] = {ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_q.weight", l),
                    ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_k.weight", l),
                    ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_v.weight", l)};
    int32_t bias[3] = {ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.attn_q.bias", l),
                       ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.attn_k.bias", l),
                       ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.attn_v.bias", l)};
    ob_val qkv[3];
    ob_b_linears(b, n, 3, w, bias, qkv);
    ob_b_rope(b, qkv[0], &h->rope, factors);
    ob_b_rope(b, qkv[1], &h->rope, factors);
    ob_attn_params a = {.cache = ob_b_cache(b, h->n_head_kv, h->k_dim, h->v_dim),
                        .n_head = h->n_head, .n_head_kv = h->n_head_kv, .k_dim = h->k_dim,
                        .v_dim = h->v_dim, .scale = 1.0f / sqrtf((float)h->k_dim), .causal = true};
    ob_val y = ob_b_attention(b, qkv[0], qkv[1], qkv[2], &a);
    ob_b_linear_add(b, y, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_output.weight", l),
                    ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.attn_output.bias", l), x, 1.0f);

    n = ob_b_rms_norm(b, x, ob_b_weight(b, OB_USE_VECTOR, "blk.%d.ffn_norm.weight", l), h->norm_eps, 0);
    int32_t gu[2] = {ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_gate.weight", l),
                     ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_up.weight", l)};
    int32_t gub[2] = {ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.ffn_gate.bias", l),
                      ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.ffn_up.bias", l)};
    ob_val g[2];
    ob_b_linears(b, n, 2, gu, gub, g);
    y = ob_b_glu(b, g[0], g[1], OB_ACT_SILU);
    ob_b_linear_add(b, y, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_down.weight", l),
                    ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.ffn_down.bias", l), x, 1.0f);
}

static void build(const ob_model *m, ob_builder *b)
{
    ob_val x = ob_b_embed(b, ob_b_weight(b, OB_USE_EMBED, "token_embd.weight"), 1.0f);
    int32_t factors = ob_b_weight_opt(b, OB_USE_VECTOR, "rope_freqs.weight");
    for (b->layer = 0; b->layer < m->hp.n_layer; b->layer++) build_layer(m, b, x, factors);
    b->layer = -1;
    x = ob_b_rms_norm(b, ob_b_rows_out(b, x), ob_b_weight(b, OB_USE_VECTOR, "output_norm.weight"),
                      m->hp.norm_eps, 0);
    ob_b_logits(b, x);
}

const ob_arch ob_arch_llama = {.name = "llama", .load = load, .build = build};
