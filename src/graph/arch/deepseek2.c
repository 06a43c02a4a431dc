/* deepseek2: DeepSeek V2/V3 (arXiv 2405.04434, 2412.19437) and GLM-4.7-Flash: multi-head latent attention
 * and a mixture of experts with shared ones.
 *
 *   q = Wqb rms(Wqa n) per head [nope | rope]  (files without attn_q_a: q = Wq n);  n = rms_norm(x)
 *   c = rms(Wc n) (kv_lora wide);  k_r = Wr n (rope wide, one for all heads)
 *   rotate q's rope part and k_r (neighbouring pairs)
 *   absorbed form: head h asks with [K_b,h q_nope | q_rope] for [c | k_r]; o = sum p c; y_h = V_b,h o
 *   x += Wo y;  x += ffn(m) in the first layers, else experts(m) + shared(m);  m = rms_norm(x)
 *
 * So the cache holds kv_lora + rope values per token, and the values are a part of the keys. Scores are
 * divided by sqrt(nope + rope), the size of a head before absorption.
 */
#include <math.h>

#include "base/alloc.h"
#include "graph/graph_int.h"

typedef struct deepseek2 {
    ob_moe_hparams moe;
    ob_rope_params rope; /* of [latent | rope] heads */
    int32_t n_run;       /* layers that run: those for multi-token prediction do not */
    int32_t q_lora, kv_lora, nope, v_dim;
    float scale;
} deepseek2;

/* Files without expert_gating_func: GLM-4.7-Flash uses sigmoid, all others softmax. */
static ob_gating default_gating(const ob_hparams *h)
{
    return (h->n_layer == 47 || h->n_layer == 48) && h->n_vocab == 154880 ? OB_GATING_SIGMOID : OB_GATING_SOFTMAX;
}

/* YaRN here leaves cos and sin alone and scales the scores by mscale^2. The key holds a tenth of the
 * factor that the model's configuration has (mscale_all_dim). */
static ob_status load_yarn(const ob_model *m, deepseek2 *d, ob_err *err)
{
    float log_mul = 0;
    OB_TRY(ob_key_f32_opt(m, "rope.scaling.yarn_log_multiplier", &log_mul, err));
    if (log_mul == 0 || d->rope.ext_factor == 0) return OB_OK;
    const float mscale = 1.0f + log_mul * logf(1.0f / d->rope.freq_scale);
    d->rope.attn_factor = 1.0f;
    d->scale *= mscale * mscale;
    return OB_OK;
}

static ob_status load(ob_model *m, ob_err *err)
{
    OB_TRY(ob_load_common(m, OB_ROPE_NORM, err));
    ob_hparams *h = &m->hp;
    deepseek2 *d = m->own = ob_calloc(1, sizeof *d);
    if (!d) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the model");
    int32_t n_mtp = 0, k_mla = 0;
    OB_TRY(ob_key_i32_opt(m, "nextn_predict_layers", 0, h->n_layer - 1, &n_mtp, err));
    d->n_run = h->n_layer - n_mtp;
    OB_TRY(ob_key_i32_opt(m, "attention.q_lora_rank", 0, 1 << 16, &d->q_lora, err));
    OB_TRY(ob_key_i32(m, "attention.kv_lora_rank", 1, 1 << 16, &d->kv_lora, err));
    if (!ob_key_there(m, "attention.key_length_mla"))
        return ob_err_set(err, OB_E_UNSUPPORTED, "key deepseek2.attention.key_length_mla is missing: files made "
                          "before the split of attn_kv_b are not supported, convert the model again");
    OB_TRY(ob_key_i32(m, "attention.key_length_mla", 1, 1 << 16, &k_mla, err));
    OB_TRY(ob_key_i32(m, "attention.value_length_mla", 1, 1 << 16, &d->v_dim, err));
    d->nope = k_mla - h->rope.n_rot;
    if (d->nope < 1 || h->k_dim != d->kv_lora + h->rope.n_rot || h->n_head_kv != 1)
        return ob_err_set(err, OB_E_FORMAT, "keys deepseek2.attention.* do not fit each other: head %d, rope %d, "
                          "latent %d, key length %d, %d kv heads", k_mla, h->rope.n_rot, d->kv_lora, h->k_dim,
                          h->n_head_kv);
    d->rope = h->rope;
    d->rope.rot_off = d->kv_lora;
    d->scale = 1.0f / sqrtf((float)k_mla);
    OB_TRY(load_yarn(m, d, err));
    d->moe.route.gating = default_gating(h);
    return ob_load_moe(m, &d->moe, err);
}

/* The queries [TOK, n_head * (latent | rope)], not yet rotated, and the latent key row [latent | rope]. */
static ob_val build_queries(const ob_model *m, ob_builder *b, ob_val n, ob_val *key)
{
    const deepseek2 *d = m->own;
    const int l = b->layer;
    int32_t w[3] = {ob_b_weight_rows(b, OB_USE_LINEAR, 0, d->kv_lora, "blk.%d.attn_kv_a_mqa.weight", l),
                    ob_b_weight_rows(b, OB_USE_LINEAR, d->kv_lora, d->rope.n_rot, "blk.%d.attn_kv_a_mqa.weight", l),
                    d->q_lora ? ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_q_a.weight", l)
                              : ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_q.weight", l)};
    ob_val v[3];
    ob_b_linears(b, n, 3, w, NULL, v);
    ob_val q = v[2];
    if (d->q_lora) {
        q = ob_block_norm(b, q, "attn_q_a_norm", 0);
        q = ob_b_linear(b, q, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_q_b.weight", l), OB_NONE);
    }
    *key = ob_b_join(b, ob_block_norm(b, v[0], "attn_kv_a_norm", 0), v[1], 1);
    return ob_b_linear_heads(b, q, ob_b_weight(b, OB_USE_EXPERTS, "blk.%d.attn_k_b.weight", l), m->hp.n_head,
                             d->rope.n_rot);
}

static ob_val build_attention(const ob_model *m, ob_builder *b, ob_val n)
{
    const deepseek2 *d = m->own;
    const int32_t k_dim = d->kv_lora + d->rope.n_rot;
    ob_val key, q = build_queries(m, b, n, &key);
    ob_b_rope(b, q, &d->rope, OB_NONE);
    ob_b_rope(b, key, &d->rope, OB_NONE);
    const ob_attn_params a = {.cache = ob_b_cache(b, 1, k_dim, 0), .n_head = m->hp.n_head, .n_head_kv = 1,
                              .k_dim = k_dim, .v_dim = d->kv_lora, .scale = d->scale, .causal = true};
    ob_val y = ob_b_attention(b, q, key, OB_NONE, &a);
    return ob_b_linear_heads(b, y, ob_b_weight(b, OB_USE_EXPERTS, "blk.%d.attn_v_b.weight", b->layer), m->hp.n_head,
                             0);
}

static void build(const ob_model *m, ob_builder *b)
{
    const deepseek2 *d = m->own;
    ob_val x = ob_b_embed(b, ob_b_weight(b, OB_USE_EMBED, "token_embd.weight"), 1.0f);
    for (int32_t l = d->n_run; l < m->hp.n_layer; l++) ob_b_ignore_layer(b, l);
    for (b->layer = 0; b->layer < d->n_run; b->layer++) {
        ob_block_attn_out(b, build_attention(m, b, ob_block_norm(b, x, "attn_norm", 0)), x, 1.0f);
        ob_val n = ob_block_norm(b, x, "ffn_norm", 0);
        if (b->layer < d->moe.n_dense_lead) {
            ob_block_ffn(b, n, x, OB_ACT_SILU, 1.0f);
            continue;
        }
        if (d->moe.n_shared) {
            ob_val y = ob_block_ffn_hidden(b, n, OB_ACT_SILU, 0, "_shexp");
            ob_b_linear_add(b, y, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_down_shexp.weight", b->layer), OB_NONE, x,
                            1.0f);
        }
        ob_block_moe(b, n, x, &d->moe);
    }
    ob_block_head(b, x, 1.0f, 0);
}

static const char *const k_keys[] = {
    "attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla",
    OB_MOE_KEYS, "expert_shared_count", "leading_dense_block_count", "nextn_predict_layers", "rope.scaling.yarn_log_multiplier", NULL,
};

const ob_arch ob_arch_deepseek2 = {.name = "deepseek2", .load = load, .build = build, .keys = k_keys};
