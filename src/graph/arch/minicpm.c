/* minicpm: MiniCPM 1, 2 and 4 (Hu et al. 2024, arXiv 2404.06395).
 *
 * A llama with three scales: x0 = embedding_scale * E, each branch is added times residual_scale, and the
 * logits are divided by logit_scale. Files without the keys are older ones of the same family: 12,
 * 1.4 / sqrt(layers) and width / 256.
 *
 * LongRoPE (arXiv 2402.13753): each frequency is divided by the long factors when the configured context
 * is longer than the original one, else by the short ones; cos and sin times rope.scaling.attn_factor
 * where the file has it.
 */
#include <math.h>

#include "base/alloc.h"
#include "graph/graph_int.h"

typedef struct minicpm {
    float embedding_scale, residual_scale, logit_scale;
    bool long_factors;
} minicpm;

static ob_status load(ob_model *m, ob_err *err)
{
    OB_TRY(ob_load_common(m, OB_ROPE_NORM, err));
    minicpm *c = m->own = ob_calloc(1, sizeof *c);
    if (!c) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the model");
    c->embedding_scale = 12.0f;
    c->residual_scale = 1.4f / sqrtf((float)m->hp.n_layer);
    c->logit_scale = (float)m->hp.n_embd / 256.0f;
    OB_TRY(ob_key_f32_opt(m, "embedding_scale", &c->embedding_scale, err));
    OB_TRY(ob_key_f32_opt(m, "residual_scale", &c->residual_scale, err));
    OB_TRY(ob_key_f32_opt(m, "logit_scale", &c->logit_scale, err));
    if (!(c->logit_scale > 0))
        return ob_err_set(err, OB_E_FORMAT, "key minicpm.logit_scale is not positive");
    const int32_t n_ctx = m->opt.n_ctx > 0 ? m->opt.n_ctx : m->hp.n_ctx_train;
    c->long_factors = n_ctx > m->hp.rope.n_ctx_orig;
    return OB_OK;
}

static void build(const ob_model *m, ob_builder *b)
{
    const minicpm *c = m->own;
    const char *used = c->long_factors ? "long" : "short", *other = c->long_factors ? "short" : "long";
    ob_b_ignore(b, "rope_factors_%s.weight", other);
    const ob_block_attn a = {.rope = &m->hp.rope,
                             .factors = ob_b_weight_opt(b, OB_USE_VECTOR, "rope_factors_%s.weight", used)};
    ob_val x = ob_b_embed(b, ob_b_weight(b, OB_USE_EMBED, "token_embd.weight"), c->embedding_scale);
    for (b->layer = 0; b->layer < m->hp.n_layer; b->layer++) {
        ob_val y = ob_block_attention(b, ob_block_norm(b, x, "attn_norm", 0), &a);
        ob_block_attn_out(b, y, x, c->residual_scale);
        ob_block_ffn(b, ob_block_norm(b, x, "ffn_norm", 0), x, OB_ACT_SILU, c->residual_scale);
    }
    ob_block_head(b, x, 1.0f / c->logit_scale, 0);
}

static const char *const k_keys[] = {"embedding_scale", "residual_scale", "logit_scale", NULL};

const ob_arch ob_arch_minicpm = {.name = "minicpm", .load = load, .build = build, .keys = k_keys};
