/* llama: Llama 2/3, SmolLM2, MiniCPM5 and other plain decoders (Touvron et al. 2023, arXiv 2302.13971).
 *
 *   x += Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = rms_norm(x)
 *   x += Wdown (silu(Wgate m) * Wup m),               m = rms_norm(x)
 *
 * GGUF stores Q and K rows so that rotary pairs are neighbours (OB_ROPE_NORM). rope_freqs.weight holds
 * Llama 3's frequency factors.
 */
#include "graph/graph_int.h"

static ob_status load(ob_model *m, ob_err *err)
{
    return ob_load_common(m, OB_ROPE_NORM, err);
}

static void build(const ob_model *m, ob_builder *b)
{
    ob_val x = ob_b_embed(b, ob_b_weight(b, OB_USE_EMBED, "token_embd.weight"), 1.0f);
    const ob_block_attn a = {.rope = &m->hp.rope,
                             .factors = ob_b_weight_opt(b, OB_USE_VECTOR, "rope_freqs.weight")};
    for (b->layer = 0; b->layer < m->hp.n_layer; b->layer++) {
        ob_val y = ob_block_attention(b, ob_block_norm(b, x, "attn_norm", 0), &a);
        ob_block_attn_out(b, y, x, 1.0f);
        ob_block_ffn(b, ob_block_norm(b, x, "ffn_norm", 0), x, OB_ACT_SILU, 1.0f);
    }
    ob_block_head(b, x, 1.0f, 0);
}

const ob_arch ob_arch_llama = {.name = "llama", .load = load, .build = build, .pictures = true};
