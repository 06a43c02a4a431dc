/* qwen35, qwen35moe: Qwen3.5 and 3.6: three layers of gated delta net to one of gated attention.
 *
 *   x += mixer(rms_norm(x));  x += ffn or experts + gated shared expert (post_attention_norm(x))
 *
 * Attention: q and a gate come interleaved per head from attn_q; q and k are normalised per head; the
 * first n_rot dimensions rotate (half-split pairs); y = Wo (attention * sigmoid(gate)). For text all
 * sections of the multi-axis rotation have the same position, so it is the plain one.
 * Delta net (arXiv 2412.06464): see OB_OP_CONV1D and OB_OP_GDN; y = Wout (rms(o) * silu(z)). These files
 * have the value heads re-ordered so that value head j belongs to key head j mod n_head_k.
 *
 * Norm weights are stored as 1 + w, that of the delta net as it is.
 */
#include <math.h>

#include "base/alloc.h"
#include "graph/graph_int.h"

typedef struct qwen35 {
    ob_moe_hparams moe; /* n_expert 0: dense */
    ob_gdn_params gdn;
    int32_t n_run, n_tap;
    uint8_t *recurrent; /* [n_layer], behind this struct */
} qwen35;

static ob_status load_layers(ob_model *m, qwen35 *q, ob_err *err)
{
    int32_t every = 4;
    OB_TRY(ob_key_i32_opt(m, "full_attention_interval", 1, 4096, &every, err));
    for (int32_t l = 0; l < m->hp.n_layer; l++) q->recurrent[l] = (l + 1) % every != 0;
    const ob_kv *kv = ob_file_find_kvf(m->file, "%s.attention.recurrent_layers", m->arch->name);
    if (!kv) return OB_OK;
    /* Blocks for multi-token prediction may or may not be listed. */
    bool on, listed = kv->n >= (uint64_t)q->n_run && kv->n <= (uint64_t)m->hp.n_layer;
    for (int32_t l = 0; listed && l < q->n_run; l++) {
        listed = ob_kv_elem_bool(kv, (uint64_t)l, &on);
        q->recurrent[l] = listed && on;
    }
    if (listed) return OB_OK;
    return ob_err_set(err, OB_E_FORMAT, "key %s.attention.recurrent_layers is no list of %d truth values",
                      m->arch->name, q->n_run);
}

static ob_status load(ob_model *m, ob_err *err)
{
    OB_TRY(ob_load_common(m, OB_ROPE_NEOX, err));
    ob_hparams *h = &m->hp;
    qwen35 *q = m->own = ob_calloc(1, sizeof *q + (size_t)h->n_layer);
    if (!q) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the model");
    q->recurrent = (uint8_t *)(q + 1);
    ob_gdn_params *g = &q->gdn;
    int32_t inner = 0, n_mtp = 0;
    OB_TRY(ob_key_i32_opt(m, "nextn_predict_layers", 0, h->n_layer - 1, &n_mtp, err));
    q->n_run = h->n_layer - n_mtp;
    OB_TRY(ob_key_i32(m, "ssm.conv_kernel", 2, OB_CONV_MAX_TAPS, &q->n_tap, err));
    OB_TRY(ob_key_i32(m, "ssm.state_size", 1, 4096, &g->k_dim, err));
    OB_TRY(ob_key_i32(m, "ssm.group_count", 1, 4096, &g->n_head_k, err));
    OB_TRY(ob_key_i32(m, "ssm.time_step_rank", 1, 4096, &g->n_head_v, err));
    OB_TRY(ob_key_i32(m, "ssm.inner_size", 1, 1 << 20, &inner, err));
    if (g->n_head_v % g->n_head_k || inner % g->n_head_v)
        return ob_err_set(err, OB_E_FORMAT, "keys %s.ssm.* do not fit each other: %d key heads, %d value heads, "
                          "inner size %d", m->arch->name, g->n_head_k, g->n_head_v, inner);
    g->v_dim = inner / g->n_head_v;
    g->eps = 1e-6f;
    g->tiled = true;
    OB_TRY(load_layers(m, q, err));
    if (m->arch != &ob_arch_qwen35moe) return OB_OK;
    q->moe.route = (ob_route_params){.gating = OB_GATING_SOFTMAX, .norm = true};
    return ob_load_moe(m, &q->moe, err);
}

static ob_val build_attention(const ob_model *m, ob_builder *b, ob_val n)
{
    const ob_hparams *h = &m->hp;
    const int l = b->layer;
    const int32_t w[3] = {ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_q.weight", l),
                          ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_k.weight", l),
                          ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_v.weight", l)};
    ob_val v[3], q[2];
    ob_b_linears(b, n, 3, w, NULL, v);
    ob_b_split(b, v[0], h->n_head, h->n_head * h->k_dim, q);
    q[0] = ob_block_norm(b, q[0], "attn_q_norm", h->k_dim);
    ob_val k = ob_block_norm(b, v[1], "attn_k_norm", h->k_dim);
    ob_b_rope(b, q[0], &h->rope, OB_NONE);
    ob_b_rope(b, k, &h->rope, OB_NONE);
    const ob_attn_params a = {.cache = ob_b_cache(b, h->n_head_kv, h->k_dim, h->v_dim), .n_head = h->n_head,
                              .n_head_kv = h->n_head_kv, .k_dim = h->k_dim, .v_dim = h->v_dim,
                              .scale = 1.0f / sqrtf((float)h->k_dim), .causal = true};
    return ob_b_gate(b, ob_b_attention(b, q[0], k, v[2], &a), q[1], OB_NONE);
}

static ob_val build_delta_net(const ob_model *m, ob_builder *b, ob_val n)
{
    const qwen35 *q = m->own;
    const int l = b->layer;
    const int32_t w[4] = {ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_qkv.weight", l),
                          ob_b_weight(b, OB_USE_LINEAR, "blk.%d.attn_gate.weight", l),
                          ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ssm_alpha.weight", l),
                          ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ssm_beta.weight", l)};
    ob_val v[4];
    ob_b_linears(b, n, 4, w, NULL, v);
    const ob_conv_params conv = {.act = OB_ACT_SILU,
                                 .state = ob_b_state(b, "conv", (int64_t)(q->n_tap - 1) * ob_b_cols(b, v[0]))};
    ob_val u = ob_b_conv1d(b, v[0], ob_b_weight(b, OB_USE_VECTOR, "blk.%d.ssm_conv1d.weight", l), OB_NONE, &conv);
    ob_gdn_params g = q->gdn;
    g.state = ob_b_state(b, "delta net", (int64_t)g.n_head_v * g.k_dim * g.v_dim);
    ob_val o = ob_b_gdn(b, u, v[2], v[3], ob_b_weight(b, OB_USE_VECTOR, "blk.%d.ssm_dt.bias", l),
                        ob_b_weight(b, OB_USE_VECTOR, "blk.%d.ssm_a", l), &g);
    return ob_b_glu(b, v[1], ob_block_norm(b, o, "ssm_norm", g.v_dim), OB_ACT_SILU, 0);
}

static void build_experts(ob_builder *b, const ob_moe_hparams *h, ob_val n, ob_val x)
{
    const int l = b->layer;
    ob_val gate = ob_b_linear(b, n, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_gate_inp_shexp.weight", l), OB_NONE);
    ob_val y = ob_block_ffn_hidden(b, n, OB_ACT_SILU, 0, "_shexp");
    y = ob_b_linear(b, y, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_down_shexp.weight", l), OB_NONE);
    ob_b_gate(b, y, gate, x);
    ob_block_moe(b, n, x, h);
}

static void build(const ob_model *m, ob_builder *b)
{
    const qwen35 *q = m->own;
    ob_val x = ob_b_embed(b, ob_b_weight(b, OB_USE_EMBED, "token_embd.weight"), 1.0f);
    for (int32_t l = q->n_run; l < m->hp.n_layer; l++) ob_b_ignore_layer(b, l);
    for (b->layer = 0; b->layer < q->n_run; b->layer++) {
        ob_val n = ob_block_norm(b, x, "attn_norm", 0);
        if (q->recurrent[b->layer])
            ob_b_linear_add(b, build_delta_net(m, b, n), ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ssm_out.weight", b->layer),
                            OB_NONE, x, 1.0f);
        else
            ob_block_attn_out(b, build_attention(m, b, n), x, 1.0f);
        n = ob_block_norm(b, x, "post_attention_norm", 0);
        if (q->moe.n_expert) build_experts(b, &q->moe, n, x);
        else ob_block_ffn(b, n, x, OB_ACT_SILU, 1.0f);
    }
    ob_block_head(b, x, 1.0f, 0);
}

static const char *const k_keys[] = {
    "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size",
    "full_attention_interval", "attention.recurrent_layers", "rope.dimension_sections", "nextn_predict_layers",
    "expert_shared_feed_forward_length", "expert_shared_count", OB_MOE_KEYS, NULL,
};

const ob_arch ob_arch_qwen35 = {.name = "qwen35", .load = load, .build = build, .keys = k_keys};
const ob_arch ob_arch_qwen35moe = {.name = "qwen35moe", .load = load, .build = build, .keys = k_keys};
