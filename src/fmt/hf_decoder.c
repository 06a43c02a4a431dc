/* Decoders as Hugging Face lays them out (Llama, Qwen2, Qwen3): model.safetensors, or its shards with their index,
 * with config.json, tokenizer.json, tokenizer_config.json and generation_config.json beside.
 *
 * Turns them into what a GGUF of the same model holds. Two things differ in kind:
 *   - Llama's Q and K rows: in these files the two halves of a head rotate against each other, in GGUF neighbours do.
 *     ob_tensor.rope_heads says so; `1bit quantize` puts the rows in order as it reads them.
 *   - Llama 3's scaling of rotary frequencies: GGUF has a tensor of divisors for it, made here.
 */
#include "fmt/hf_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"

typedef struct kind {
    const char *model_type, *arch;
    bool halves;  /* rows of Q and K must be put in order for GGUF */
    bool biases;  /* of Q, K and V */
    bool qk_norm;
} kind;

static const kind k_kinds[] = {
    {"llama", "llama", true, false, false},
    {"qwen2", "qwen2", false, true, false},
    {"qwen3", "qwen3", false, false, true},
};

typedef struct folder {
    char *path;
    json_t *config, *generation, *tokenizer, *tok_config; /* NULL: no such file */
    ob_part tmpl;                                         /* chat_template.jinja */
    const kind *kind;
} folder;

/* ---- names ---------------------------------------------------------------------------------- */

static const struct {
    const char *from, *to;
} k_names[] = {
    {"input_layernorm.weight", "attn_norm.weight"},   {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},     {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},     {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_proj.bias", "attn_q.bias"},         {"self_attn.k_proj.bias", "attn_k.bias"},
    {"self_attn.v_proj.bias", "attn_v.bias"},         {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"}, {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},          {"mlp.down_proj.weight", "ffn_down.weight"},
    {"self_attn.rotary_emb.inv_freq", ""},
};

/* The GGUF name; "" when the tensor is left out; false when it is not known. */
static bool map_name(const void *arg, const char *name, char *out, size_t cap)
{
    static const char layers[] = "model.layers.";
    (void)arg;
    *out = 0;
    if (!strcmp(name, "model.embed_tokens.weight")) return snprintf(out, cap, "token_embd.weight") > 0;
    if (!strcmp(name, "model.norm.weight")) return snprintf(out, cap, "output_norm.weight") > 0;
    if (!strcmp(name, "lm_head.weight")) return snprintf(out, cap, "output.weight") > 0;
    if (strncmp(name, layers, sizeof layers - 1) != 0) return false;
    char *end;
    const char *digits = name + sizeof layers - 1;
    const unsigned long l = strtoul(digits, &end, 10);
    if (end == digits || *end != '.' || l > 4096) return false;
    for (size_t i = 0; i < OB_COUNT(k_names); i++)
        if (!strcmp(end + 1, k_names[i].from)) return !*k_names[i].to || snprintf(out, cap, "blk.%lu.%s", l, k_names[i].to) > 0;
    return false;
}

/* ---- sizes ---------------------------------------------------------------------------------- */

typedef struct sizes {
    int64_t n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab, n_ctx;
} sizes;

static ob_status read_sizes(const json_t *c, sizes *z, ob_err *err)
{
    OB_TRY(ob_hf_config_count(c, "num_hidden_layers", 0, &z->n_layer, err));
    OB_TRY(ob_hf_config_count(c, "hidden_size", 0, &z->n_embd, err));
    OB_TRY(ob_hf_config_count(c, "intermediate_size", 0, &z->n_ff, err));
    OB_TRY(ob_hf_config_count(c, "num_attention_heads", 0, &z->n_head, err));
    if (!z->n_layer || !z->n_embd || !z->n_ff || !z->n_head)
        return ob_err_set(err, OB_E_FORMAT, "config.json: %s is missing", !z->n_layer ? "num_hidden_layers" : !z->n_embd ? "hidden_size"
                          : !z->n_ff ? "intermediate_size" : "num_attention_heads");
    OB_TRY(ob_hf_config_count(c, "num_key_value_heads", z->n_head, &z->n_head_kv, err));
    OB_TRY(ob_hf_config_count(c, "max_position_embeddings", 2048, &z->n_ctx, err));
    if (json_is_null(json_object_get(c, "head_dim"))) z->head_dim = z->n_embd / z->n_head;
    else OB_TRY(ob_hf_config_count(c, "head_dim", z->n_embd / z->n_head, &z->head_dim, err));
    if (z->head_dim % 2) return ob_err_set(err, OB_E_FORMAT, "config.json: a head of %" PRId64 " columns cannot be rotated", z->head_dim);
    return OB_OK;
}

static void pair_size(ob_pairs_made *p, const char *arch, const char *key, int64_t x)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", arch, key);
    ob_pair_u32(p, name, (uint64_t)x);
}

static void pair_real(ob_pairs_made *p, const char *arch, const char *key, double x)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", arch, key);
    ob_pair_f32(p, name, x);
}

/* rope_theta and rope_scaling, or both as rope_parameters in newer files. */
static const json_t *rope_of(const json_t *config)
{
    const json_t *v = json_object_get(config, "rope_scaling");
    return json_is_object(v) ? v : json_object_get(config, "rope_parameters");
}

/* Llama 3: frequencies whose waves are longer than the old context are divided by `factor`, those much shorter stay,
 * between them it goes smoothly (the published formula of its reference code). */
static ob_status add_llama3_divisors(ob_file *f, const json_t *rope, const sizes *z, double theta, ob_err *err)
{
    const double factor = ob_hf_number(rope, "factor", 8), low = ob_hf_number(rope, "low_freq_factor", 1);
    const double high = ob_hf_number(rope, "high_freq_factor", 4), old = ob_hf_number(rope, "original_max_position_embeddings", 8192);
    const size_t n = (size_t)z->head_dim / 2;
    ob_tensor *t;
    if (!(factor >= 1) || !(low > 0) || !(high > low) || !(old > 0))
        return ob_err_set(err, OB_E_FORMAT, "config.json: the numbers of its rope_scaling do not fit together");
    float *divisor = ob_arena_alloc(&f->names, n * sizeof *divisor);
    if (!divisor) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for rotary frequencies");
    for (size_t i = 0; i < n; i++) {
        const double wave = 2 * acos(-1.0) * pow(theta, 2.0 * (double)i / (double)z->head_dim);
        const double smooth = (old / wave - low) / (high - low);
        divisor[i] = (float)(wave < old / high ? 1 : wave > old / low ? factor : 1 / ((1 - smooth) / factor + smooth));
    }
    OB_TRY(ob_tensors_add(f, 1, &t, err));
    *t = (ob_tensor){.name = "rope_freqs.weight", .type = 0, .n_dims = 1, .ne = {(int64_t)n, 1, 1, 1},
                     .data = f->flags & OB_OPEN_NO_DATA ? NULL : divisor, .n_bytes = n * sizeof *divisor, .file_index = -1};
    f->n_tensors++;
    return OB_OK;
}

static ob_status add_rope(ob_file *f, ob_pairs_made *p, const folder *h, const sizes *z, ob_err *err)
{
    const json_t *rope = rope_of(h->config);
    const double theta = ob_hf_number(h->config, "rope_theta", ob_hf_number(rope, "rope_theta", 10000));
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (!type) type = json_string_value(json_object_get(rope, "type"));
    pair_real(p, h->kind->arch, "rope.freq_base", theta);
    pair_size(p, h->kind->arch, "rope.dimension_count", z->head_dim);
    if (!type || !strcmp(type, "default")) return OB_OK;
    if (!strcmp(type, "llama3") && h->kind->halves) return add_llama3_divisors(f, rope, z, theta, err);
    if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
        return ob_err_set(err, OB_E_UNSUPPORTED, "config.json: rope_scaling of type \"%.40s\" is not known", type);
    char key[96];
    snprintf(key, sizeof key, "%s.rope.scaling.type", h->kind->arch);
    ob_pair_text(p, key, type);
    pair_real(p, h->kind->arch, "rope.scaling.factor", ob_hf_number(rope, "factor", 1));
    if (json_object_get(rope, "original_max_position_embeddings"))
        pair_size(p, h->kind->arch, "rope.scaling.original_context_length",
                  (int64_t)ob_hf_number(rope, "original_max_position_embeddings", 0));
    return OB_OK;
}

/* What this reader does not do must not be there. */
static ob_status refuse_others(const folder *h, ob_err *err)
{
    const char *act = json_string_value(json_object_get(h->config, "hidden_act"));
    if (act && strcmp(act, "silu") != 0) return ob_err_set(err, OB_E_UNSUPPORTED, "config.json: hidden_act \"%.40s\" is not silu", act);
    if (json_is_true(json_object_get(h->config, "mlp_bias")) ||
        (json_is_true(json_object_get(h->config, "attention_bias")) && !h->kind->biases))
        return ob_err_set(err, OB_E_UNSUPPORTED, "config.json: biases (attention_bias, mlp_bias) are not known in a %s", h->kind->model_type);
    if (json_is_true(json_object_get(h->config, "use_sliding_window")))
        return ob_err_set(err, OB_E_UNSUPPORTED, "config.json: use_sliding_window is not known in a %s", h->kind->model_type);
    return OB_OK;
}

static ob_status add_sizes(ob_file *f, ob_pairs_made *p, const folder *h, const sizes *z, ob_err *err)
{
    const char *arch = h->kind->arch;
    pair_size(p, arch, "block_count", z->n_layer);
    pair_size(p, arch, "context_length", z->n_ctx);
    pair_size(p, arch, "embedding_length", z->n_embd);
    pair_size(p, arch, "feed_forward_length", z->n_ff);
    pair_size(p, arch, "attention.head_count", z->n_head);
    pair_size(p, arch, "attention.head_count_kv", z->n_head_kv);
    pair_size(p, arch, "attention.key_length", z->head_dim);
    pair_size(p, arch, "attention.value_length", z->head_dim);
    pair_size(p, arch, "vocab_size", z->n_vocab);
    pair_real(p, arch, "attention.layer_norm_rms_epsilon", ob_hf_number(h->config, "rms_norm_eps", 1e-6));
    return add_rope(f, p, h, z, err);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Does a text begin with the token for its beginning? The config says it, or the post-processor's template. */
static bool adds_bos(const folder *h)
{
    const json_t *said = json_object_get(h->tok_config, "add_bos_token");
    if (json_is_boolean(said)) return json_is_true(said);
    const json_t *post = json_object_get(h->tokenizer, "post_processor"), *parts = json_object_get(post, "processors");
    for (size_t i = 0; i < OB_MAX(json_array_size(parts), (size_t)1); i++) {
        const json_t *one = parts ? json_array_get(parts, i) : post;
        if (json_object_get(json_array_get(json_object_get(one, "single"), 0), "SpecialToken")) return true;
    }
    return false;
}

/* generation_config.json and config.json may name several end tokens: the first is the end of a text. */
static void add_eos(ob_pairs_made *p, const folder *h)
{
    const json_t *v = json_object_get(h->config, "eos_token_id");
    if (!v) v = json_object_get(h->generation, "eos_token_id");
    if (json_is_array(v)) v = json_array_get(v, 0);
    if (json_is_integer(v) && json_integer_value(v) >= 0 && !json_object_get(h->tok_config, "eos_token"))
        ob_pair_u32(p, "tokenizer.ggml.eos_token_id", (uint64_t)json_integer_value(v));
}

static void add_template(ob_pairs_made *p, const folder *h)
{
    const json_t *t = json_object_get(h->tok_config, "chat_template"), *one;
    const char *text = json_string_value(t);
    size_t i;
    json_array_foreach((json_t *)t, i, one)
    {
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && !strcmp(name, "default")) text = json_string_value(json_object_get(one, "template"));
    }
    if (h->tmpl.data) {
        ob_pair(p, "tokenizer.chat_template", OB_KV_STRING);
        ob_hf_add_text(&p->b, (const char *)h->tmpl.data, h->tmpl.len);
    } else if (text) {
        ob_pair_text(p, "tokenizer.chat_template", text);
    }
}

static ob_status add_tokenizer(ob_pairs_made *p, const folder *h, const sizes *z, ob_err *err)
{
    static const ob_hf_role roles[] = {{"bos_token", {"bos"}, {NULL}}, {"eos_token", {"eos"}, {NULL}}, {"unk_token", {"unknown"}, {NULL}},
                                       {"pad_token", {"padding"}, {NULL}}};
    if (!h->tokenizer) return ob_err_set(err, OB_E_NOT_FOUND, "tokenizer.json is missing beside the weights");
    if (json_is_true(json_object_get(json_object_get(h->tokenizer, "model"), "byte_fallback")))
        return ob_err_set(err, OB_E_UNSUPPORTED, "tokenizer.json: SentencePiece vocabularies (byte_fallback) are not read; start from a GGUF file");
    OB_TRY(ob_hf_add_tokenizer(p, h->tokenizer, h->tok_config, roles, OB_COUNT(roles), (size_t)z->n_vocab, err));
    ob_pair_bool(p, "tokenizer.ggml.add_bos_token", adds_bos(h));
    add_eos(p, h);
    add_template(p, h);
    return OB_OK;
}

/* ---- all of it ------------------------------------------------------------------------------ */

static ob_status read_files(folder *h, const char *path, bool *ours, ob_err *err)
{
    bool there;
    *ours = false;
    h->path = ob_hf_folder_of(path);
    if (!h->path) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a path");
    OB_TRY(ob_hf_json_beside(h->path, "config.json", &h->config, err));
    const char *type = json_string_value(json_object_get(h->config, "model_type"));
    for (size_t i = 0; type && i < OB_COUNT(k_kinds); i++)
        if (!strcmp(type, k_kinds[i].model_type)) h->kind = &k_kinds[i];
    if (!h->kind)
        return ob_err_set(err, OB_E_UNSUPPORTED, "a decoder's weights, and %s%.40s%s (read are llama, qwen2, qwen3; others from GGUF files)",
                          !h->config ? "there is no config.json beside them" : "config.json's model_type is ", type ? type : "", "");
    *ours = true;
    OB_TRY(ob_hf_json_beside(h->path, "generation_config.json", &h->generation, err));
    OB_TRY(ob_hf_json_beside(h->path, "tokenizer.json", &h->tokenizer, err));
    OB_TRY(ob_hf_json_beside(h->path, "tokenizer_config.json", &h->tok_config, err));
    return ob_hf_read_beside(h->path, "chat_template.jinja", &h->tmpl, &there, err);
}

static void mark_halves(ob_file *f, const sizes *z)
{
    for (size_t i = 0; i < f->n_tensors; i++) {
        ob_tensor *t = &f->tensors[i];
        const size_t n = strlen(t->name);
        const int64_t heads = n > 14 && !strcmp(t->name + n - 14, ".attn_q.weight")   ? z->n_head
                              : n > 14 && !strcmp(t->name + n - 14, ".attn_k.weight") ? z->n_head_kv : 0;
        if (heads && t->ne[1] == heads * z->head_dim) t->rope_heads = (int32_t)heads;
    }
}

static ob_status adopt(ob_file *f, const folder *h, ob_pairs_made *p, ob_err *err)
{
    sizes z = {0};
    const ob_tensor *embd = NULL, *output = NULL;
    OB_TRY(refuse_others(h, err));
    OB_TRY(read_sizes(h->config, &z, err));
    OB_TRY(ob_hf_map_tensors(f, map_name, NULL, err));
    for (size_t i = 0; i < f->n_tensors; i++) {
        if (!strcmp(f->tensors[i].name, "token_embd.weight")) embd = &f->tensors[i];
        if (!strcmp(f->tensors[i].name, "output.weight")) output = &f->tensors[i];
    }
    if (!embd) return ob_err_set(err, OB_E_FORMAT, "model.embed_tokens.weight is missing");
    if (!output && json_is_false(json_object_get(h->config, "tie_word_embeddings")))
        return ob_err_set(err, OB_E_FORMAT, "lm_head.weight is missing, and config.json does not tie it to the embeddings");
    z.n_vocab = embd->ne[1];
    if (h->kind->halves) mark_halves(f, &z);
    ob_pair_text(p, "general.architecture", h->kind->arch);
    const char *slash = strrchr(h->path, '/');
    ob_pair_text(p, "general.name", slash && slash[1] ? slash + 1 : h->path);
    OB_TRY(add_sizes(f, p, h, &z, err));
    OB_TRY(add_tokenizer(p, h, &z, err));
    return ob_hf_make_pairs(f, p, err);
}

ob_status ob_hf_decoder_adopt(ob_file *f, ob_err *err)
{
    folder h = {0};
    ob_pairs_made p = {0};
    bool ours = false;
    for (size_t i = 0; i < f->n_tensors && !ours; i++) ours = !strcmp(f->tensors[i].name, "model.layers.0.self_attn.q_proj.weight");
    if (!ours) return OB_OK;
    ob_buf_init(&p.b, (size_t)OB_MAX_VOCAB_BYTES);
    ob_status s = read_files(&h, f->path, &ours, err);
    if (s == OB_OK && ours) s = adopt(f, &h, &p, err);
    ob_buf_deinit(&p.b);
    ob_part_unmap(&h.tmpl);
    ob_free(h.path);
    json_decref(h.config);
    json_decref(h.generation);
    json_decref(h.tokenizer);
    json_decref(h.tok_config);
    return s;
}
