/* Laya as it is published: a folder with model.safetensors, rl_agent_config.json, and the encoder's config.json and
 * tokenizer.json, which lie in encoder/ and tokenizer/ or beside the weights.
 *
 * Turns it into what a GGUF of the same model holds (arch modern-bert with decision.* keys), in the way of hf_bert.c.
 * What the files leave out has ModernBERT's default: heads of 64, windows of 128 but in every third layer, epsilon
 * 1e-5. The head that decides whether to act at all (act_head) is not part of decisions and is left out.
 */
#include "fmt/hf_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"

enum { HEAD_DIM = 64 };

typedef struct laya {
    char *folder;
    json_t *agent, *config, *tokenizer, *tok_config; /* NULL: no such file */
    int64_t n_encoder, n_head; /* layers */
} laya;

/* ---- names ---------------------------------------------------------------------------------- */

static const struct {
    const char *from, *to; /* to NULL: left out */
} k_fixed[] = {
    {"encoder.embeddings.tok_embeddings.weight", "token_embd.weight"},
    {"encoder.embeddings.norm.weight", "token_embd_norm.weight"},
    {"encoder.final_norm.weight", "output_norm.weight"},
    {"type_emb.weight", "token_types.weight"},
    {"scorer.0.weight", "cls.norm.weight"}, {"scorer.0.bias", "cls.norm.bias"},
    {"scorer.1.weight", "cls.weight"},      {"scorer.1.bias", "cls.bias"},
    {"scorer.3.weight", "cls.output.weight"}, {"scorer.3.bias", "cls.output.bias"},
    {"act_head.0.weight", NULL}, {"act_head.0.bias", NULL}, {"act_head.2.weight", NULL}, {"act_head.2.bias", NULL},
    {"temperature", NULL},
}, k_encoder[] = {
    {"attn_norm.weight", "attn_norm.weight"}, {"attn.Wqkv.weight", "attn_qkv.weight"},
    {"attn.Wo.weight", "attn_output.weight"}, {"mlp_norm.weight", "ffn_norm.weight"},
    {"mlp.Wi.weight", "ffn_up.weight"},       {"mlp.Wo.weight", "ffn_down.weight"},
}, k_head[] = {
    {"norm1.weight", "attn_norm.weight"}, {"norm1.bias", "attn_norm.bias"},
    {"norm2.weight", "ffn_norm.weight"},  {"norm2.bias", "ffn_norm.bias"},
    {"self_attn.in_proj_weight", "attn_qkv.weight"}, {"self_attn.in_proj_bias", "attn_qkv.bias"},
    {"self_attn.out_proj.weight", "attn_output.weight"}, {"self_attn.out_proj.bias", "attn_output.bias"},
    {"linear1.weight", "ffn_up.weight"},   {"linear1.bias", "ffn_up.bias"},
    {"linear2.weight", "ffn_down.weight"}, {"linear2.bias", "ffn_down.bias"},
};

/* "<prefix>12.rest": the number and what follows; -1 when it is something else. */
static int64_t layer_of(const char *name, const char *prefix, const char **rest)
{
    const size_t n = strlen(prefix);
    char *end;
    if (strncmp(name, prefix, n) != 0 || name[n] < '0' || name[n] > '9') return -1;
    const unsigned long l = strtoul(name + n, &end, 10);
    if (*end != '.' || l > 4096) return -1;
    *rest = end + 1;
    return (int64_t)l;
}

/* The GGUF name; "" when the tensor is left out; false when it is not one of Laya's. */
static bool map_name(const void *arg, const char *name, char *out, size_t cap)
{
    const laya *h = arg;
    const char *rest;
    *out = 0;
    for (size_t i = 0; i < OB_COUNT(k_fixed); i++) {
        if (strcmp(name, k_fixed[i].from) != 0) continue;
        if (k_fixed[i].to) snprintf(out, cap, "%s", k_fixed[i].to);
        return true;
    }
    int64_t l = layer_of(name, "encoder.layers.", &rest);
    for (size_t i = 0; l >= 0 && i < OB_COUNT(k_encoder); i++)
        if (!strcmp(rest, k_encoder[i].from)) return snprintf(out, cap, "blk.%" PRId64 ".%s", l, k_encoder[i].to) > 0;
    l = layer_of(name, "head.layers.", &rest);
    for (size_t i = 0; l >= 0 && i < OB_COUNT(k_head); i++)
        if (!strcmp(rest, k_head[i].from))
            return snprintf(out, cap, "blk.%" PRId64 ".%s", h->n_encoder + l, k_head[i].to) > 0;
    return false;
}

static const ob_tensor *find(const ob_file *f, const char *name)
{
    for (size_t i = 0; i < f->n_tensors; i++)
        if (!strcmp(f->tensors[i].name, name)) return &f->tensors[i];
    return NULL;
}

/* ---- sizes and temperatures ----------------------------------------------------------------- */

/* rope_parameters: {"full_attention": {"rope_theta"}, "sliding_attention": ...} in newer configs. */
static double theta(const json_t *config, const char *flat, const char *kind, double otherwise)
{
    const json_t *v = json_object_get(json_object_get(config, "rope_parameters"), kind);
    return ob_hf_number(v, "rope_theta", ob_hf_number(config, flat, otherwise));
}

static ob_status add_sizes(ob_pairs_made *p, const ob_file *f, const laya *h, ob_err *err)
{
    const ob_tensor *embd = find(f, "token_embd.weight"), *down = find(f, "blk.0.ffn_down.weight");
    int64_t n_head, every, window, max_len, head_len;
    if (!embd || !down || h->n_head < 1)
        return ob_err_set(err, OB_E_FORMAT, "a tensor of Laya is missing: %s", !embd ? "encoder.embeddings.tok_embeddings"
                          : !down ? "encoder.layers.0.mlp.Wo" : "head.layers.0");
    const int64_t d = embd->ne[0];
    OB_TRY(ob_hf_config_count(h->config, "num_attention_heads", OB_MAX(d / HEAD_DIM, (int64_t)1), &n_head, err));
    OB_TRY(ob_hf_config_count(h->config, "global_attn_every_n_layers", 3, &every, err));
    OB_TRY(ob_hf_config_count(h->config, "local_attention", 128, &window, err));
    OB_TRY(ob_hf_config_count(h->agent, "max_len", 512, &max_len, err));
    OB_TRY(ob_hf_config_count(h->agent, "head_max_len", 192, &head_len, err));
    ob_pair_u32(p, "modern-bert.block_count", (uint64_t)(h->n_encoder + h->n_head));
    ob_pair_u32(p, "modern-bert.context_length", (uint64_t)max_len);
    ob_pair_u32(p, "modern-bert.embedding_length", (uint64_t)d);
    ob_pair_u32(p, "modern-bert.feed_forward_length", (uint64_t)down->ne[0]);
    ob_pair_u32(p, "modern-bert.attention.head_count", (uint64_t)n_head);
    ob_pair_u32(p, "modern-bert.vocab_size", (uint64_t)embd->ne[1]);
    ob_pair_f32(p, "modern-bert.attention.layer_norm_epsilon", ob_hf_number(h->config, "norm_eps", 1e-5));
    ob_pair_bool(p, "modern-bert.attention.causal", false);
    ob_pair_u32(p, "modern-bert.attention.sliding_window", (uint64_t)window);
    ob_pair_u32(p, "modern-bert.attention.sliding_window_pattern", (uint64_t)every);
    ob_pair_f32(p, "modern-bert.rope.freq_base", theta(h->config, "global_rope_theta", "full_attention", 160000));
    ob_pair_f32(p, "modern-bert.rope.freq_base_swa", theta(h->config, "local_rope_theta", "sliding_attention", 10000));
    ob_pair_text(p, "modern-bert.decision.type", "laya");
    ob_pair_u32(p, "modern-bert.decision.block_count", (uint64_t)h->n_head);
    ob_pair_u32(p, "modern-bert.decision.max_head_tokens", (uint64_t)head_len);
    return OB_OK;
}

/* "temperature": one for each type; "temperature_by_options": {"choice:3-5": ...} */
static ob_status add_temperatures(ob_pairs_made *p, const laya *h, ob_err *err)
{
    static const char *const types[] = {"choice", "score", "noul"};
    static const char *const buckets[][2] = {{"2", "2"}, {"3-5", "3_5"}, {"6-10", "6_10"}, {"11+", "11_plus"}};
    const json_t *all = json_object_get(h->agent, "temperature"), *by = json_object_get(h->agent, "temperature_by_options");
    if (all && (!json_is_array(all) || json_array_size(all) != OB_COUNT(types)))
        return ob_err_set(err, OB_E_FORMAT, "rl_agent_config.json: temperature is no list of three numbers");
    for (size_t t = 0; t < OB_COUNT(types); t++) {
        char key[64];
        const json_t *v = json_array_get(all, t);
        snprintf(key, sizeof key, "modern-bert.decision.temperature.%s", types[t]);
        ob_pair_f32(p, key, json_is_number(v) ? json_number_value(v) : 1);
        for (size_t b = 0; b < OB_COUNT(buckets); b++) {
            char name[32];
            snprintf(name, sizeof name, "%s:%s", types[t], buckets[b][0]);
            v = json_object_get(by, name);
            snprintf(key, sizeof key, "modern-bert.decision.temperature.%s.%s", types[t], buckets[b][1]);
            if (json_is_number(v)) ob_pair_f32(p, key, json_number_value(v));
        }
    }
    return OB_OK;
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* In a folder of its own, or beside the weights. */
static ob_status read_either(const char *folder, const char *inside, const char *beside, json_t **out, ob_err *err)
{
    OB_TRY(ob_hf_json_beside(folder, inside, out, err));
    return *out ? OB_OK : ob_hf_json_beside(folder, beside, out, err);
}

static ob_status read_files(laya *h, const char *path, ob_err *err)
{
    h->folder = ob_hf_folder_of(path);
    if (!h->folder) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a path");
    OB_TRY(ob_hf_json_beside(h->folder, "rl_agent_config.json", &h->agent, err));
    OB_TRY(read_either(h->folder, "encoder/config.json", "config.json", &h->config, err));
    OB_TRY(read_either(h->folder, "tokenizer/tokenizer.json", "tokenizer.json", &h->tokenizer, err));
    OB_TRY(read_either(h->folder, "tokenizer/tokenizer_config.json", "tokenizer_config.json", &h->tok_config, err));
    const char *layout = json_string_value(json_object_get(h->agent, "option_layout"));
    if (layout && strcmp(layout, "sequential") != 0)
        return ob_err_set(err, OB_E_UNSUPPORTED, "rl_agent_config.json: option_layout is not sequential");
    return OB_OK;
}

static const char *name_of(const laya *h)
{
    const char *slash = strrchr(h->folder, '/');
    return slash && slash[1] ? slash + 1 : h->folder;
}

static const ob_hf_role k_roles[] = {
    {"cls_token", {"cls", "bos"}, {"[CLS]", "<bos>", "<s>"}}, {"sep_token", {"seperator", "eos"}, {"[SEP]", "<eos>", "</s>"}},
    {"mask_token", {"mask"}, {"[MASK]", "<mask>", NULL}},     {"pad_token", {"padding"}, {"[PAD]", "<pad>", NULL}},
    {"unk_token", {"unknown"}, {"[UNK]", "<unk>", NULL}},
};

ob_status ob_hf_laya_adopt(ob_file *f, ob_err *err)
{
    laya h = {0};
    ob_pairs_made p = {0};
    ob_status s = OB_OK;
    bool scorer = false, encoder = false;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const char *name = f->tensors[i].name, *rest;
        scorer = scorer || !strcmp(name, "scorer.3.weight");
        encoder = encoder || !strcmp(name, "encoder.embeddings.tok_embeddings.weight");
        h.n_encoder = OB_MAX(h.n_encoder, layer_of(name, "encoder.layers.", &rest) + 1);
        h.n_head = OB_MAX(h.n_head, layer_of(name, "head.layers.", &rest) + 1);
    }
    if (!scorer || !encoder) return OB_OK;
    ob_buf_init(&p.b, (size_t)OB_MAX_VOCAB_BYTES);
    OB_GOTO(read_files(&h, f->path, err));
    OB_GOTO(ob_hf_map_tensors(f, map_name, &h, err));
    ob_pair_text(&p, "general.architecture", "modern-bert");
    ob_pair_text(&p, "general.name", name_of(&h));
    OB_GOTO(add_sizes(&p, f, &h, err));
    OB_GOTO(add_temperatures(&p, &h, err));
    OB_GOTO(ob_hf_add_tokenizer(&p, h.tokenizer, h.tok_config, k_roles, OB_COUNT(k_roles),
                                (size_t)find(f, "token_embd.weight")->ne[1], err));
    OB_GOTO(ob_hf_make_pairs(f, &p, err));
out:
    ob_buf_deinit(&p.b);
    ob_free(h.folder);
    json_decref(h.agent);
    json_decref(h.config);
    json_decref(h.tokenizer);
    json_decref(h.tok_config);
    return s;
}
