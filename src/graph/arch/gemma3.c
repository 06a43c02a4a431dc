/* gemma3: Gemma 3 text models (arXiv 2503.19786).
 *
 *   x0 = sqrt(width) * E
 *   x += post_norm(Wo attention(rope(rms(Wq n)), rope(rms(Wk n)), Wv n)),  n = rms_norm(x)
 *   x += post_norm(Wdown (gelu_tanh(Wgate m) * Wup m)),                    m = rms_norm(x)
 *
 * One layer in `sliding_window_pattern` (6) sees everything and rotates with rope.freq_base and the
 * file's scaling; the others see a window and rotate with freq_base_swa, unscaled. Norm weights are
 * stored as 1 + w. Vectors of pictures are not scaled, and those of one picture see each other.
 */
#include <math.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "graph/graph_int.h"

typedef struct gemma3 {
    ob_rope_params rope_local;
    int32_t window, pattern;
    float scale, softcap;
} gemma3;

static ob_status load(ob_model *m, ob_err *err)
{
    OB_TRY(ob_load_common(m, OB_ROPE_NEOX, err));
    m->hp.picture_blocks = true;
    gemma3 *g = m->own = ob_calloc(1, sizeof *g);
    if (!g) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the model");
    g->pattern = 6;
    OB_TRY(ob_key_i32_opt(m, "attention.sliding_window", 0, OB_MAX_CTX, &g->window, err));
    OB_TRY(ob_key_i32_opt(m, "attention.sliding_window_pattern", 1, 4096, &g->pattern, err));
    OB_TRY(ob_key_f32_opt(m, "final_logit_softcapping", &g->softcap, err));
    g->rope_local = m->hp.rope;
    g->rope_local.base = 10000.0f;
    g->rope_local.freq_scale = g->rope_local.attn_factor = 1.0f;
    g->rope_local.ext_factor = 0;
    OB_TRY(ob_key_f32_opt(m, "rope.freq_base_swa", &g->rope_local.base, err));
    if (!(g->rope_local.base > 1.0f))
        return ob_err_set(err, OB_E_FORMAT, "key gemma3.rope.freq_base_swa is out of range");
    /* The 27B model, told by its layers, scales by width / heads and not by the size of a head. */
    const int32_t per = m->hp.n_layer == 62 ? m->hp.n_embd / m->hp.n_head : m->hp.k_dim;
    g->scale = 1.0f / sqrtf((float)per);
    return OB_OK;
}

static void build(const ob_model *m, ob_builder *b)
{
    const gemma3 *g = m->own;
    ob_val x = ob_b_embed(b, ob_b_weight(b, OB_USE_EMBED, "token_embd.weight"), sqrtf((float)m->hp.n_embd));
    for (b->layer = 0; b->layer < m->hp.n_layer; b->layer++) {
        const bool local = g->window > 0 && (b->layer + 1) % g->pattern != 0;
        const ob_block_attn a = {.rope = local ? &g->rope_local : &m->hp.rope, .factors = OB_NONE,
                                 .scale = g->scale, .window = local ? g->window : 0, .qk_norm = true,
                                 .blocks = m->opt.pictures ? OB_BLOCKS_ALSO : OB_BLOCKS_NONE};
        ob_val y = ob_block_attention(b, ob_block_norm(b, x, "attn_norm", 0), &a);
        y = ob_b_linear(b, y, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_output.weight", b->layer), OB_NONE);
        ob_b_add(b, x, ob_block_norm(b, y, "post_attention_norm", 0));
        y = ob_block_ffn_hidden(b, ob_block_norm(b, x, "ffn_norm", 0), OB_ACT_GELU_TANH, 0, "");
        y = ob_b_linear(b, y, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_down.weight", b->layer), OB_NONE);
        ob_b_add(b, x, ob_block_norm(b, y, "post_ffw_norm", 0));
    }
    ob_block_head(b, x, 1.0f, g->softcap);
}

static const char *const k_keys[] = {"attention.sliding_window", "attention.sliding_window_pattern",
                                     "rope.freq_base_swa", "final_logit_softcapping", NULL};

const ob_arch ob_arch_gemma3 = {.name = "gemma3", .load = load, .build = build, .keys = k_keys, .pictures = true};
