/* modern-bert: ModernBERT (Warner et al. 2024, arXiv 2412.13663), its classifier, and Laya's decision head.
 *
 *   x = norm(E[token])
 *   x += Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = norm(x), but n = x in layer 0
 *   x += Wdown (gelu(Wa m) * Wb m),                   m = norm(x); Wa, Wb are the halves of ffn_up
 *   x = norm(x)
 *
 * No biases; layer norms have a weight only. One layer in sliding_window_pattern (the first, the fourth, ...)
 * sees the whole text and rotates with rope.freq_base; the others see sliding_window / 2 tokens to either
 * side and rotate with rope.freq_base_swa. All layers share one cache, as in bert.c.
 *
 * Classifier (cls.output.weight): pool, then Wout norm(gelu(Wdense y)).
 *
 * Laya (key decision.type): the last decision.block_count blocks are a head of their own over the
 * encoder's result plus the embedding of the question's type: blocks with biases,
 *   x += Wo attention(Wqkv norm(x)),  x += Wdown relu(Wup norm(x))
 * without rotation or window and with 64 columns per head; then Wout gelu(Wdense norm(x)) is one score at
 * each marked token.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "graph/graph_int.h"

enum { DECISION_HEAD_DIM = 64 };

typedef struct modern_bert {
    ob_rope_params rope_local;
    int32_t window, pattern;
    int32_t n_decision; /* blocks of the decision head, after the encoder's */
    ob_pooling class_pooling;
} modern_bert;

static bool text_key_is(const ob_model *m, const char *suffix, const char *const *allowed, ob_str *found)
{
    *found = (ob_str){0};
    const ob_kv *kv = ob_file_find_kvf(m->file, "%s.%s", m->arch->name, suffix);
    if (!kv) return true;
    if (!ob_kv_str(kv, found)) return false;
    for (; *allowed; allowed++)
        if (found->len == strlen(*allowed) && !memcmp(found->data, *allowed, found->len)) return true;
    return false;
}

static ob_status load_attention(ob_model *m, modern_bert *g, ob_err *err)
{
    bool causal = false;
    OB_TRY(ob_key_bool_opt(m, "attention.causal", &causal, err));
    if (causal) return ob_err_set(err, OB_E_UNSUPPORTED, "modern-bert with causal attention is not supported");
    g->pattern = 3;
    OB_TRY(ob_key_i32_opt(m, "attention.sliding_window", 0, OB_MAX_CTX, &g->window, err));
    OB_TRY(ob_key_i32_opt(m, "attention.sliding_window_pattern", 1, 4096, &g->pattern, err));
    OB_TRY(ob_load_rope(m, OB_ROPE_NEOX, err));
    g->rope_local = m->hp.rope;
    OB_TRY(ob_key_f32_opt(m, "rope.freq_base_swa", &g->rope_local.base, err));
    if (!(g->rope_local.base > 1.0f))
        return ob_err_set(err, OB_E_FORMAT, "key modern-bert.rope.freq_base_swa is out of range");
    return OB_OK;
}

/* Which head the file has, and whether it is wanted. */
static ob_status load_head(ob_model *m, modern_bert *g, ob_err *err)
{
    static const char *const decisions[] = {"laya", NULL};
    ob_hparams *h = &m->hp;
    ob_str type;
    if (!text_key_is(m, "decision.type", decisions, &type))
        return ob_err_set(err, OB_E_UNSUPPORTED, "key modern-bert.decision.type is not known (known: laya)");
    const ob_tensor *out = ob_file_find_tensor(m->file, "cls.output.weight");
    h->output = OB_OUTPUT_EMBEDDINGS;
    if (type.len) {
        OB_TRY(ob_key_i32(m, "decision.block_count", 1, h->n_layer - 1, &g->n_decision, err));
        h->n_layer -= g->n_decision;
        if (h->n_embd % DECISION_HEAD_DIM)
            return ob_err_set(err, OB_E_FORMAT, "a decision head of width %d has no whole heads of %d", h->n_embd,
                              DECISION_HEAD_DIM);
        const ob_tensor *types = ob_file_find_tensor(m->file, "token_types.weight");
        if (!types) return ob_err_set(err, OB_E_FORMAT, "tensor token_types.weight is missing");
        h->n_type = (int32_t)types->ne[1];
        if (!m->opt.embed) h->output = OB_OUTPUT_MARKS;
    } else if (out) {
        int32_t pooling = 1;
        OB_TRY(ob_key_i32_opt(m, "classifier.pooling_type", 1, 2, &pooling, err));
        g->class_pooling = pooling == 2 ? OB_POOLING_CLS : OB_POOLING_MEAN;
        h->n_class = (int32_t)out->ne[1];
        if (!m->opt.embed) h->output = OB_OUTPUT_CLASSES;
    }
    return OB_OK;
}

static ob_status load(ob_model *m, ob_err *err)
{
    static const char *const activations[] = {"gelu", NULL};
    ob_str activation;
    modern_bert *g = m->own = ob_calloc(1, sizeof *g);
    if (!g) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the model");
    OB_TRY(ob_load_shape(m, err));
    OB_TRY(ob_key_f32(m, "attention.layer_norm_epsilon", &m->hp.norm_eps, err));
    OB_TRY(load_attention(m, g, err));
    if (!text_key_is(m, "hidden_activation", activations, &activation))
        return ob_err_set(err, OB_E_UNSUPPORTED, "key modern-bert.hidden_activation is not gelu");
    OB_TRY(ob_load_pooling(m, OB_POOLING_MEAN, err));
    return load_head(m, g, err);
}

static ob_val norm(ob_builder *b, ob_val x, const char *name)
{
    return ob_b_layer_norm(b, x, ob_b_weight(b, OB_USE_VECTOR, "blk.%d.%s.weight", b->layer, name),
                           ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.%s.bias", b->layer, name),
                           b->m->hp.norm_eps);
}

static ob_val linear_add(ob_builder *b, ob_val x, const char *name, ob_val res)
{
    return ob_b_linear_add(b, x, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.%s.weight", b->layer, name),
                           ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.%s.bias", b->layer, name), res, 1.0f);
}

/* x += Wo attention(n); `rope` NULL: none. attn_qkv holds the rows of q, k and v one after the other. */
static void attention(ob_builder *b, ob_val x, ob_val n, const ob_rope_params *rope, int32_t head_dim,
                      int32_t window, int32_t cache)
{
    const int64_t d = b->m->hp.n_embd;
    const int32_t n_head = (int32_t)(d / head_dim);
    int32_t w[3], bias[3];
    ob_val qkv[3];
    for (int i = 0; i < 3; i++) {
        w[i] = ob_b_weight_rows(b, OB_USE_LINEAR, i * d, d, "blk.%d.attn_qkv.weight", b->layer);
        bias[i] = ob_b_vector_part_opt(b, i * d, d, "blk.%d.attn_qkv.bias", b->layer);
    }
    ob_b_linears(b, n, 3, w, bias, qkv);
    if (rope) {
        ob_b_rope(b, qkv[0], rope, OB_NONE);
        ob_b_rope(b, qkv[1], rope, OB_NONE);
    }
    const ob_attn_params a = {.cache = cache, .n_head = n_head, .n_head_kv = n_head, .k_dim = head_dim,
                              .v_dim = head_dim, .scale = 1.0f / sqrtf((float)head_dim), .window = window};
    linear_add(b, ob_b_attention(b, qkv[0], qkv[1], qkv[2], &a), "attn_output", x);
}

static void encoder_layer(const ob_model *m, ob_builder *b, ob_val x, int32_t cache)
{
    const modern_bert *g = m->own;
    const bool local = g->window > 0 && b->layer % g->pattern != 0;
    attention(b, x, b->layer ? norm(b, x, "attn_norm") : x, local ? &g->rope_local : &m->hp.rope, m->hp.k_dim,
              local ? g->window : 0, cache);
    const int64_t n_ff = ob_b_ne(b, ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_down.weight", b->layer), 0);
    const int32_t w[2] = {ob_b_weight_rows(b, OB_USE_LINEAR, 0, n_ff, "blk.%d.ffn_up.weight", b->layer),
                          ob_b_weight_rows(b, OB_USE_LINEAR, n_ff, n_ff, "blk.%d.ffn_up.weight", b->layer)};
    ob_val g2[2];
    ob_b_linears(b, norm(b, x, "ffn_norm"), 2, w, NULL, g2);
    linear_add(b, ob_b_glu(b, g2[0], g2[1], OB_ACT_GELU_ERF, 0), "ffn_down", x);
}

static ob_val dense(ob_builder *b, ob_val x)
{
    return ob_b_act(b, ob_b_linear(b, x, ob_b_weight(b, OB_USE_LINEAR, "cls.weight"),
                                   ob_b_weight_opt(b, OB_USE_VECTOR, "cls.bias")), OB_ACT_GELU_ERF);
}

static ob_val head_norm(ob_builder *b, ob_val x)
{
    return ob_b_layer_norm(b, x, ob_b_weight(b, OB_USE_VECTOR, "cls.norm.weight"),
                           ob_b_weight_opt(b, OB_USE_VECTOR, "cls.norm.bias"), b->m->hp.norm_eps);
}

static void scores(ob_builder *b, ob_val x)
{
    ob_b_scores(b, ob_b_linear(b, x, ob_b_weight(b, OB_USE_LINEAR, "cls.output.weight"),
                               ob_b_weight_opt(b, OB_USE_VECTOR, "cls.output.bias")));
}

static void decision_head(const ob_model *m, ob_builder *b, ob_val x)
{
    const modern_bert *g = m->own;
    const int32_t n_head = m->hp.n_embd / DECISION_HEAD_DIM, end = m->hp.n_layer + g->n_decision;
    const int32_t cache = ob_b_cache(b, n_head, DECISION_HEAD_DIM, DECISION_HEAD_DIM);
    ob_b_add_row(b, x, ob_b_weight(b, OB_USE_EMBED, "token_types.weight"), OB_ROW_OF_TYPE);
    for (b->layer = m->hp.n_layer; b->layer < end; b->layer++) {
        attention(b, x, norm(b, x, "attn_norm"), NULL, DECISION_HEAD_DIM, 0, cache);
        ob_val y = ob_b_linear(b, norm(b, x, "ffn_norm"),
                               ob_b_weight(b, OB_USE_LINEAR, "blk.%d.ffn_up.weight", b->layer),
                               ob_b_weight_opt(b, OB_USE_VECTOR, "blk.%d.ffn_up.bias", b->layer));
        linear_add(b, ob_b_act(b, y, OB_ACT_RELU), "ffn_down", x);
    }
    b->layer = -1;
    scores(b, dense(b, head_norm(b, ob_b_rows_out(b, x))));
}

static void ignore_heads(const ob_model *m, ob_builder *b)
{
    static const char *const parts[] = {"cls", "cls.norm", "cls.output"};
    const modern_bert *g = m->own;
    for (size_t i = 0; i < OB_COUNT(parts); i++) {
        ob_b_ignore(b, "%s.weight", parts[i]);
        ob_b_ignore(b, "%s.bias", parts[i]);
    }
    if (g->n_decision) ob_b_ignore(b, "token_types.weight");
    for (int32_t l = 0; l < g->n_decision; l++) ob_b_ignore_layer(b, m->hp.n_layer + l);
}

static void build(const ob_model *m, ob_builder *b)
{
    const modern_bert *g = m->own;
    const ob_hparams *h = &m->hp;
    ob_val x = ob_b_embed(b, ob_b_weight(b, OB_USE_EMBED, "token_embd.weight"), 1.0f);
    x = ob_b_layer_norm(b, x, ob_b_weight(b, OB_USE_VECTOR, "token_embd_norm.weight"), OB_NONE, h->norm_eps);
    const int32_t cache = ob_b_cache(b, h->n_head, h->k_dim, h->k_dim);
    for (b->layer = 0; b->layer < h->n_layer; b->layer++) encoder_layer(m, b, x, cache);
    b->layer = -1;
    x = ob_b_layer_norm(b, x, ob_b_weight(b, OB_USE_VECTOR, "output_norm.weight"), OB_NONE, h->norm_eps);
    switch (h->output) {
    case OB_OUTPUT_MARKS: decision_head(m, b, x); break;
    case OB_OUTPUT_CLASSES: scores(b, head_norm(b, dense(b, ob_b_pool(b, x, g->class_pooling)))); break;
    default:
        ignore_heads(m, b);
        ob_b_embeddings(b, x);
    }
}

static const char *const k_keys[] = {"attention.layer_norm_epsilon", "attention.causal", "attention.sliding_window",
                                     "attention.sliding_window_pattern", "rope.freq_base_swa", "hidden_activation",
                                     "classifier.pooling_type", "classifier.output_labels", "decision.*", NULL};

const ob_arch ob_arch_modern_bert = {.name = "modern-bert", .load = load, .build = build, .keys = k_keys};
