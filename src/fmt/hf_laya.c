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

#define QWEN2_SPLIT "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"

enum { HEAD_DIM = 64, TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_USER_DEFINED = 4, TOKEN_BYTE = 6 };

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

static void pair_f32(ob_pairs_made *p, const char *key, double x)
{
    const float v = (float)x;
    ob_pair(p, key, OB_KV_F32);
    ob_buf_add(&p->b, &v, sizeof v);
}

static double number(const json_t *o, const char *key, double otherwise)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

/* rope_parameters: {"full_attention": {"rope_theta"}, "sliding_attention": ...} in newer configs. */
static double theta(const json_t *config, const char *flat, const char *kind, double otherwise)
{
    const json_t *v = json_object_get(json_object_get(config, "rope_parameters"), kind);
    return number(v, "rope_theta", number(config, flat, otherwise));
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
    pair_f32(p, "modern-bert.attention.layer_norm_epsilon", number(h->config, "norm_eps", 1e-5));
    ob_pair_bool(p, "modern-bert.attention.causal", false);
    ob_pair_u32(p, "modern-bert.attention.sliding_window", (uint64_t)window);
    ob_pair_u32(p, "modern-bert.attention.sliding_window_pattern", (uint64_t)every);
    pair_f32(p, "modern-bert.rope.freq_base", theta(h->config, "global_rope_theta", "full_attention", 160000));
    pair_f32(p, "modern-bert.rope.freq_base_swa", theta(h->config, "local_rope_theta", "sliding_attention", 10000));
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
        pair_f32(p, key, json_is_number(v) ? json_number_value(v) : 1);
        for (size_t b = 0; b < OB_COUNT(buckets); b++) {
            char name[32];
            snprintf(name, sizeof name, "%s:%s", types[t], buckets[b][0]);
            v = json_object_get(by, name);
            snprintf(key, sizeof key, "modern-bert.decision.temperature.%s.%s", types[t], buckets[b][1]);
            if (json_is_number(v)) pair_f32(p, key, json_number_value(v));
        }
    }
    return OB_OK;
}

/* ---- vocabulary ----------------------------------------------------------------------------- */

/* Which split of words a tokenizer.json asks for, in GGUF's names. */
static ob_status split_name(const json_t *tokenizer, const char **out, ob_err *err)
{
    const json_t *pre = json_object_get(tokenizer, "pre_tokenizer");
    const json_t *first = json_array_get(json_object_get(pre, "pretokenizers"), 0);
    const json_t *one = first ? first : pre;
    const char *type = json_string_value(json_object_get(one, "type"));
    const char *regex = json_string_value(json_object_get(json_object_get(one, "pattern"), "Regex"));
    if (json_is_true(json_object_get(json_object_get(tokenizer, "model"), "byte_fallback"))) {
        *out = NULL; /* characters and byte tokens: Gemma's, which mmBERT has */
    } else if (type && !strcmp(type, "ByteLevel")) {
        *out = "gpt-2";
    } else if (regex && !strncmp(regex, QWEN2_SPLIT, strlen(QWEN2_SPLIT))) {
        *out = "qwen2";
    } else {
        return ob_err_set(err, OB_E_UNSUPPORTED, "tokenizer.json: its pre_tokenizer is not known");
    }
    return OB_OK;
}

typedef struct vocab {
    ob_str *text; /* [n], borrowed from the JSON; data NULL: no token has this id */
    uint8_t *type;
    size_t n;
} vocab;

static ob_status vocab_put(vocab *v, const char *text, const json_t *id, uint8_t type, ob_err *err)
{
    const json_int_t at = json_integer_value(id);
    if (!json_is_integer(id) || at < 0 || (size_t)at >= v->n)
        return ob_err_set(err, OB_E_FORMAT, "tokenizer.json: the id of '%s' is not in 0..%zu",
                          text ? ob_show(text, strlen(text)).text : "?", v->n - 1);
    if (!text) return ob_err_set(err, OB_E_FORMAT, "tokenizer.json: token %lld has no text", (long long)at);
    v->text[at] = (ob_str){text, strlen(text)};
    v->type[at] = type;
    return OB_OK;
}

static ob_status vocab_read(vocab *v, const json_t *tokenizer, ob_err *err)
{
    json_t *model = json_object_get(tokenizer, "model"), *map = json_object_get(model, "vocab"), *id, *added;
    const char *kind = json_string_value(json_object_get(model, "type")), *text;
    const bool bytes = json_is_true(json_object_get(model, "byte_fallback"));
    size_t i;
    if (!json_is_object(map) || (kind && strcmp(kind, "BPE") != 0))
        return ob_err_set(err, OB_E_UNSUPPORTED, "tokenizer.json of Laya holds no BPE vocabulary");
    json_object_foreach(map, text, id)
    {
        const bool byte = bytes && strlen(text) == 6 && !strncmp(text, "<0x", 3);
        OB_TRY(vocab_put(v, text, id, byte ? TOKEN_BYTE : TOKEN_NORMAL, err));
    }
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, added)
    {
        const bool special = json_is_true(json_object_get(added, "special"));
        OB_TRY(vocab_put(v, json_string_value(json_object_get(added, "content")), json_object_get(added, "id"),
                         special ? TOKEN_CONTROL : TOKEN_USER_DEFINED, err));
    }
    return OB_OK;
}

/* Ids by role: tokenizer_config.json names the tokens, else they have one of the usual names. */
static void add_specials(ob_pairs_made *p, const laya *h, const vocab *v)
{
    static const struct { const char *role, *keys[2], *usual[3]; } roles[] = {
        {"cls_token", {"cls", "bos"}, {"[CLS]", "<bos>", "<s>"}}, {"sep_token", {"seperator", "eos"}, {"[SEP]", "<eos>", "</s>"}},
        {"mask_token", {"mask"}, {"[MASK]", "<mask>", NULL}},     {"pad_token", {"padding"}, {"[PAD]", "<pad>", NULL}},
        {"unk_token", {"unknown"}, {"[UNK]", "<unk>", NULL}}};
    for (size_t r = 0; r < OB_COUNT(roles); r++) {
        const json_t *said = json_object_get(h->tok_config, roles[r].role);
        const char *name = json_string_value(json_is_object(said) ? json_object_get(said, "content") : said);
        int64_t id = -1;
        for (size_t k = 0; id < 0 && k < 4; k++) {
            const char *want = k == 0 ? name : roles[r].usual[k - 1];
            for (size_t i = 0; want && id < 0 && i < v->n; i++)
                if (v->text[i].len == strlen(want) && !memcmp(v->text[i].data, want, v->text[i].len)) id = (int64_t)i;
        }
        for (int k = 0; id >= 0 && k < 2 && roles[r].keys[k]; k++) {
            char key[64];
            snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", roles[r].keys[k]);
            ob_pair_u32(p, key, (uint64_t)id);
            v->type[id] = TOKEN_CONTROL;
        }
    }
}

static void add_array(ob_pairs_made *p, const char *key, ob_kv_type elem, uint64_t n)
{
    ob_pair(p, key, OB_KV_ARRAY);
    ob_hf_add_u32(&p->b, elem);
    ob_buf_add(&p->b, &n, sizeof n);
}

/* "a b", or ["a", "b"] in newer files. */
static ob_status add_merges(ob_pairs_made *p, const json_t *merges, ob_err *err)
{
    size_t i;
    json_t *m;
    if (!json_is_array(merges)) return ob_err_set(err, OB_E_FORMAT, "tokenizer.json: merges are missing");
    add_array(p, "tokenizer.ggml.merges", OB_KV_STRING, json_array_size(merges));
    json_array_foreach((json_t *)merges, i, m)
    {
        const char *a = json_string_value(json_array_get(m, 0)), *b = json_string_value(json_array_get(m, 1));
        const char *both = json_string_value(m);
        if (both) {
            ob_hf_add_text(&p->b, both, strlen(both));
        } else if (a && b) {
            const uint64_t len = strlen(a) + 1 + strlen(b);
            ob_buf_add(&p->b, &len, sizeof len);
            ob_buf_addf(&p->b, "%s %s", a, b);
        } else {
            return ob_err_set(err, OB_E_FORMAT, "tokenizer.json: merge %zu is no pair of texts", i);
        }
    }
    return OB_OK;
}

static ob_status add_tokenizer(ob_pairs_made *p, const laya *h, size_t n_vocab, ob_err *err)
{
    const char *pre = NULL;
    vocab v = {.n = n_vocab};
    if (!h->tokenizer) return OB_OK; /* whoever wants text will say so */
    ob_status s = split_name(h->tokenizer, &pre, err);
    if (s == OB_OK) {
        v.text = ob_calloc(n_vocab, sizeof *v.text);
        v.type = ob_calloc(n_vocab, 1);
        if (!v.text || !v.type) s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for %zu tokens", n_vocab);
    }
    if (s == OB_OK) memset(v.type, TOKEN_NORMAL, n_vocab);
    if (s == OB_OK) s = vocab_read(&v, h->tokenizer, err);
    if (s == OB_OK) {
        ob_pair_text(p, "tokenizer.ggml.model", pre ? "gpt2" : "gemma4");
        if (pre) ob_pair_text(p, "tokenizer.ggml.pre", pre);
        add_specials(p, h, &v);
        add_array(p, "tokenizer.ggml.tokens", OB_KV_STRING, v.n);
        for (size_t i = 0; i < v.n; i++) ob_hf_add_text(&p->b, v.text[i].data ? v.text[i].data : "", v.text[i].len);
        add_array(p, "tokenizer.ggml.token_type", OB_KV_U8, v.n);
        ob_buf_add(&p->b, v.type, v.n);
        s = add_merges(p, json_object_get(json_object_get(h->tokenizer, "model"), "merges"), err);
    }
    ob_free(v.text);
    ob_free(v.type);
    return s;
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
    OB_GOTO(add_tokenizer(&p, &h, (size_t)find(f, "token_embd.weight")->ne[1], err));
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
