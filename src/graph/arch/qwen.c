/* qwen2, qwen2vl, qwen3, qwen3moe: Qwen2.5 (arXiv 2412.15115), Qwen2-VL (arXiv 2409.12191), Qwen3 and Qwen3-Coder
 * (arXiv 2505.09388).
 *
 *   x += Wo attention(rope(Wq n + bq), rope(Wk n + bk), Wv n + bv),  n = rms_norm(x)     (qwen2: biases)
 *   x += Wo attention(rope(rms(Wq n)), rope(rms(Wk n)), Wv n)        (qwen3: a norm per head, no biases)
 *   x += Wdown (silu(Wgate m) * Wup m)    or the mixture of experts,  m = rms_norm(x)
 *
 * Rotary pairs are half a head apart. The mixture's weights are the softmax over all experts, the best
 * ones divided by their sum; the file has no key for that. qwen2vl is qwen2 whose pairs turn by three positions
 * (time, row, column; rope.dimension_sections pairs each), which are equal for text.
 */
#include "base/alloc.h"
#include "graph/graph_int.h"

static ob_status load(ob_model *m, ob_err *err)
{
    return ob_load_common(m, OB_ROPE_NEOX, err);
}

static ob_status load_vl(ob_model *m, ob_err *err)
{
    int32_t n[4];
    OB_TRY(ob_load_common(m, OB_ROPE_NEOX, err));
    OB_TRY(ob_key_i32s(m, "rope.dimension_sections", 4, 0, 65536, n, err));
    if (n[0] < 1 || n[3] != 0 || n[0] + n[1] + n[2] != m->hp.rope.n_rot / 2)
        return ob_err_set(err, OB_E_FORMAT, "key qwen2vl.rope.dimension_sections does not make up %d pairs",
                          m->hp.rope.n_rot / 2);
    /* Without pictures all three positions are equal: the plain rotation, which every device has. */
    for (int i = 0; i < 3 && m->opt.pictures; i++) m->hp.rope.axis_pairs[i] = n[i];
    return OB_OK;
}

static ob_status load_moe(ob_model *m, ob_err *err)
{
    OB_TRY(ob_load_common(m, OB_ROPE_NEOX, err));
    ob_moe_hparams *h = m->own = ob_calloc(1, sizeof *h);
    if (!h) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the model");
    h->route = (ob_route_params){.gating = OB_GATING_SOFTMAX, .norm = true};
    return ob_load_moe(m, h, err);
}

static void build_with(const ob_model *m, ob_builder *b, bool qk_norm)
{
    ob_val x = ob_b_embed(b, ob_b_weight(b, OB_USE_EMBED, "token_embd.weight"), 1.0f);
    const ob_block_attn a = {.rope = &m->hp.rope, .factors = OB_NONE, .qk_norm = qk_norm};
    for (b->layer = 0; b->layer < m->hp.n_layer; b->layer++) {
        ob_val y = ob_block_attention(b, ob_block_norm(b, x, "attn_norm", 0), &a);
        ob_block_attn_out(b, y, x, 1.0f);
        y = ob_block_norm(b, x, "ffn_norm", 0);
        if (m->own) ob_block_moe(b, y, x, m->own);
        else ob_block_ffn(b, y, x, OB_ACT_SILU, 1.0f);
    }
    ob_block_head(b, x, 1.0f, 0);
}

static void build_qwen2(const ob_model *m, ob_builder *b) { build_with(m, b, false); }
static void build_qwen3(const ob_model *m, ob_builder *b) { build_with(m, b, true); }

static const char *const k_vl_keys[] = {"rope.dimension_sections", NULL};
static const char *const k_moe_keys[] = {"expert_count", "expert_used_count", "expert_feed_forward_length",
                                         "expert_weights_scale", "expert_weights_norm", "expert_gating_func", NULL};

const ob_arch ob_arch_qwen2 = {.name = "qwen2", .load = load, .build = build_qwen2};
const ob_arch ob_arch_qwen2vl = {.name = "qwen2vl", .load = load_vl, .build = build_qwen2, .keys = k_vl_keys,
                                 .pictures = true};
const ob_arch ob_arch_qwen3 = {.name = "qwen3", .load = load, .build = build_qwen3};
const ob_arch ob_arch_qwen3moe = {.name = "qwen3moe", .load = load_moe, .build = build_qwen3, .keys = k_moe_keys};
