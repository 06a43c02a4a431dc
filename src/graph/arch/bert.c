/* bert: BERT and its descendants MiniLM, BGE, E5 (Devlin et al. 2018, arXiv 1810.04805).
 *
 *   x = norm(E[token] + P[position] + T[0])
 *   x = norm(x + Wo attention(Wq x, Wk x, Wv x))
 *   x = norm(x + Wdown gelu(Wup x))
 *
 * Every linear has a bias, every norm is a layer norm with one, and every token sees the whole text. All
 * layers share one cache: keys and values live no longer than their attention op.
 *
 * Classifier (cls.output.weight): Wout of the pooled result. One that decides between routes says so in
 * decision.type = "classes"; route/ reads the other decision.* keys.
 */
#include <math.h>

#include "graph/graph_int.h"

static ob_status load(ob_model *m, ob_err *err)
{
    ob_hparams *h = &m->hp;
    bool causal = false;
    OB_TRY(ob_load_shape(m, err));
    OB_TRY(ob_key_f32(m, "attention.layer_norm_epsilon", &h->norm_eps, err));
    OB_TRY(ob_key_bool_opt(m, "attention.causal", &causal, err));
    if (causal) return ob_err_set(err, OB_E_UNSUPPORTED, "bert with causal attention is not supported");
    OB_TRY(ob_load_pooling(m, OB_POOLING_MEAN, err));
    const ob_tensor *t = ob_file_find_tensor(m->file, "position_embd.weight");
    if (!t || t->ne[1] < h->n_ctx_train)
        return ob_err_set(err, OB_E_FORMAT, "tensor position_embd.weight is missing or has fewer than %d rows",
                          h->n_ctx_train);
    h->n_ctx_max = h->n_ctx_train;
    h->output = OB_OUTPUT_EMBEDDINGS;
    const ob_tensor *out = ob_file_find_tensor(m->file, "cls.output.weight");
    if (!out || m->opt.embed) return OB_OK;
    int32_t pooling = 1;
    OB_TRY(ob_key_i32_opt(m, "classifier.pooling_type", 1, 2, &pooling, err));
    h->pooling = pooling == 2 ? OB_POOLING_CLS : OB_POOLING_MEAN;
    h->n_class = (int32_t)out->ne[1];
    h->output = OB_OUTPUT_CLASSES;
    return OB_OK;
}

static ob_val norm(ob_builder *b, ob_val x, const char *name)
{
    const int l = b->layer;
    return ob_b_layer_norm(b, x, ob_b_weight(b, OB_USE_VECTOR, "blk.%d.%s.weight", l, name),
                           ob_b_weight(b, OB_USE_VECTOR, "blk.%d.%s.bias", l, name), b->m->hp.norm_eps);
}

static ob_val linear(ob_builder *b, ob_val x, const char *name)
{
    const int l = b->layer;
    return ob_b_linear(b, x, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.%s.weight", l, name),
                       ob_b_weight(b, OB_USE_VECTOR, "blk.%d.%s.bias", l, name));
}

/* res + x * w^T + bias, in place on res */
static ob_val linear_add(ob_builder *b, ob_val x, const char *name, ob_val res)
{
    const int l = b->layer;
    return ob_b_linear_add(b, x, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.%s.weight", l, name),
                           ob_b_weight(b, OB_USE_VECTOR, "blk.%d.%s.bias", l, name), res, 1.0f);
}

static ob_val build_layer(ob_builder *b, ob_val x, int32_t cache)
{
    static const char *const part[3] = {"attn_q", "attn_k", "attn_v"};
    const ob_hparams *h = &b->m->hp;
    const int l = b->layer;
    int32_t w[3], bias[3];
    ob_val qkv[3];
    for (int i = 0; i < 3; i++) {
        w[i] = ob_b_weight(b, OB_USE_LINEAR, "blk.%d.%s.weight", l, part[i]);
        bias[i] = ob_b_weight(b, OB_USE_VECTOR, "blk.%d.%s.bias", l, part[i]);
    }
    ob_b_linears(b, x, 3, w, bias, qkv);
    const ob_attn_params a = {.cache = cache, .n_head = h->n_head, .n_head_kv = h->n_head_kv,
                              .k_dim = h->k_dim, .v_dim = h->v_dim, .scale = 1.0f / sqrtf((float)h->k_dim)};
    linear_add(b, ob_b_attention(b, qkv[0], qkv[1], qkv[2], &a), "attn_output", x);
    x = norm(b, x, "attn_output_norm");
    linear_add(b, ob_b_act(b, linear(b, x, "ffn_up"), OB_ACT_GELU_ERF), "ffn_down", x);
    return norm(b, x, "layer_output_norm");
}

static void build(const ob_model *m, ob_builder *b)
{
    const ob_hparams *h = &m->hp;
    ob_val x = ob_b_embed(b, ob_b_weight(b, OB_USE_EMBED, "token_embd.weight"), 1.0f);
    ob_b_add_row(b, x, ob_b_weight(b, OB_USE_EMBED, "position_embd.weight"), OB_ROW_OF_POSITION);
    int32_t types = ob_b_weight_opt(b, OB_USE_EMBED, "token_types.weight");
    if (types != OB_NONE) ob_b_add_row(b, x, types, OB_ROW_OF_TYPE);
    x = ob_b_layer_norm(b, x, ob_b_weight(b, OB_USE_VECTOR, "token_embd_norm.weight"),
                        ob_b_weight(b, OB_USE_VECTOR, "token_embd_norm.bias"), h->norm_eps);
    const int32_t cache = ob_b_cache(b, h->n_head_kv, h->k_dim, h->v_dim);
    for (b->layer = 0; b->layer < h->n_layer; b->layer++) x = build_layer(b, x, cache);
    b->layer = -1;
    if (h->output == OB_OUTPUT_CLASSES) {
        ob_b_scores(b, ob_b_linear(b, ob_b_pool(b, x, h->pooling), ob_b_weight(b, OB_USE_LINEAR, "cls.output.weight"),
                                   ob_b_weight_opt(b, OB_USE_VECTOR, "cls.output.bias")));
        return;
    }
    ob_b_ignore(b, "cls.output.weight");
    ob_b_ignore(b, "cls.output.bias");
    ob_b_embeddings(b, x);
}

static const char *const k_keys[] = {"attention.layer_norm_epsilon", "attention.causal", "classifier.pooling_type",
                                     "classifier.output_labels", "decision.*", NULL};

const ob_arch ob_arch_bert = {.name = "bert", .load = load, .build = build, .keys = k_keys};
