/* BERT as Hugging Face stores it: a folder with model.safetensors, config.json, tokenizer.json or vocab.txt.
 *
 * Turns it into what a GGUF of the same model would hold: the tensors' names are mapped, and the facts of
 * the small files become metadata ob_pairs_made, written in GGUF's encoding so that the one checked reader
 * (ob_pairs_read) makes the directory. Nothing above can tell the difference.
 *
 * What the files leave out has BertConfig's default: 12 heads, epsilon 1e-12, exact GELU. Sizes come from
 * the tensors' shapes. The pooler (a head for next-sentence prediction) and position_ids are left out, as
 * sentence embeddings use neither.
 */
#include "fmt/hf_int.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "base/utf8.h"

#define SPACE_MARK "\xE2\x96\x81" /* U+2581: GGUF's mark of a token that starts a word */

enum {
    TOKEN_NORMAL = 1,
    TOKEN_CONTROL = 3,
};

/* ---- names ---------------------------------------------------------------------------------- */

static const struct {
    const char *from, *to; /* to NULL: left out */
} k_fixed[] = {
    {"embeddings.word_embeddings", "token_embd"},
    {"embeddings.position_embeddings", "position_embd"},
    {"embeddings.token_type_embeddings", "token_types"},
    {"embeddings.LayerNorm", "token_embd_norm"},
    {"pooler.dense", NULL},
}, k_layer[] = {
    {"attention.self.query", "attn_q"},
    {"attention.self.key", "attn_k"},
    {"attention.self.value", "attn_v"},
    {"attention.output.dense", "attn_output"},
    {"attention.output.LayerNorm", "attn_output_norm"},
    {"intermediate.dense", "ffn_up"},
    {"output.dense", "ffn_down"},
    {"output.LayerNorm", "layer_output_norm"},
};

static const char *skip(const char *s, const char *prefix)
{
    const size_t n = strlen(prefix);
    return strncmp(s, prefix, n) == 0 ? s + n : NULL;
}

/* ".weight" and ".bias", also by the names that TensorFlow's checkpoints had. */
static const char *part_of(const char *s)
{
    if (!strcmp(s, ".weight") || !strcmp(s, ".gamma")) return ".weight";
    return !strcmp(s, ".bias") || !strcmp(s, ".beta") ? ".bias" : NULL;
}

/* The GGUF name; "" when the tensor is left out; false when it is not one of BERT's. */
static bool map_name(const void *arg, const char *name, char *out, size_t cap)
{
    (void)arg;
    const char *s = skip(name, "bert."), *rest, *part;
    if (!s) s = name;
    *out = 0;
    if (!strcmp(s, "embeddings.position_ids")) return true;
    for (size_t i = 0; i < OB_COUNT(k_fixed); i++) {
        if (!(rest = skip(s, k_fixed[i].from)) || !(part = part_of(rest))) continue;
        if (k_fixed[i].to) snprintf(out, cap, "%s%s", k_fixed[i].to, part);
        return true;
    }
    if (!(s = skip(s, "encoder.layer."))) return false;
    char *end;
    if (*s < '0' || *s > '9') return false;
    const unsigned long layer = strtoul(s, &end, 10);
    if (*end != '.' || layer > 4096) return false;
    for (size_t i = 0; i < OB_COUNT(k_layer); i++) {
        if (!(rest = skip(end + 1, k_layer[i].from)) || !(part = part_of(rest))) continue;
        snprintf(out, cap, "blk.%lu.%s%s", layer, k_layer[i].to, part);
        return true;
    }
    return false;
}

static const ob_tensor *find(const ob_file *f, const char *name)
{
    for (size_t i = 0; i < f->n_tensors; i++)
        if (!strcmp(f->tensors[i].name, name)) return &f->tensors[i];
    return NULL;
}

/* ---- the files beside it -------------------------------------------------------------------- */

typedef struct hf {
    char *folder;
    json_t *config, *pooling, *tok_config, *tokenizer; /* NULL: no such file */
    ob_part vocab;                                     /* vocab.txt, when tokenizer.json is not there */
} hf;

static ob_status hf_read(hf *h, const char *path, ob_err *err)
{
    bool there;
    h->folder = ob_hf_folder_of(path);
    if (!h->folder) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a path");
    OB_TRY(ob_hf_json_beside(h->folder, "config.json", &h->config, err));
    OB_TRY(ob_hf_json_beside(h->folder, "1_Pooling/config.json", &h->pooling, err));
    OB_TRY(ob_hf_json_beside(h->folder, "tokenizer_config.json", &h->tok_config, err));
    OB_TRY(ob_hf_json_beside(h->folder, "tokenizer.json", &h->tokenizer, err));
    if (!h->tokenizer) OB_TRY(ob_hf_read_beside(h->folder, "vocab.txt", &h->vocab, &there, err));
    return OB_OK;
}

static void hf_deinit(hf *h)
{
    ob_free(h->folder);
    json_decref(h->config);
    json_decref(h->pooling);
    json_decref(h->tok_config);
    json_decref(h->tokenizer);
    ob_part_unmap(&h->vocab);
}

/* config.json may say that it is some other model; one without these keys says nothing. */
static bool says_bert(const json_t *config)
{
    const json_t *type = json_object_get(config, "model_type");
    const json_t *arch = json_array_get(json_object_get(config, "architectures"), 0);
    if (json_is_string(type)) return !strcmp(json_string_value(type), "bert");
    if (json_is_string(arch)) return !strncmp(json_string_value(arch), "Bert", 4);
    return true;
}

/* ---- config --------------------------------------------------------------------------------- */

/* A text of the config that must be `only` where it is given. */
static ob_status config_only(const json_t *config, const char *key, const char *only, ob_err *err)
{
    const json_t *v = json_object_get(config, key);
    if (!v || (json_is_string(v) && !strcmp(json_string_value(v), only))) return OB_OK;
    return ob_err_set(err, OB_E_UNSUPPORTED, "config.json: %s is not \"%s\", which is all this reader knows", key,
                      only);
}

static ob_status add_pooling(ob_pairs_made *p, const hf *h, ob_err *err)
{
    static const struct { const char *key; uint32_t number; } modes[] = {
        {"pooling_mode_mean_tokens", 1}, {"pooling_mode_cls_token", 2}, {"pooling_mode_lasttoken", 3}};
    const json_t *c = h->pooling ? h->pooling : h->config;
    uint32_t number = 0;
    int n = json_is_true(json_object_get(c, "pooling_mode_max_tokens")) ||
            json_is_true(json_object_get(c, "pooling_mode_mean_sqrt_len_tokens"));
    if (n) return ob_err_set(err, OB_E_UNSUPPORTED, "the pooling of this model is not mean, cls or last");
    for (size_t i = 0; i < OB_COUNT(modes); i++)
        if (json_is_true(json_object_get(c, modes[i].key))) {
            number = modes[i].number;
            n++;
        }
    if (n > 1) return ob_err_set(err, OB_E_UNSUPPORTED, "this model joins two ways of pooling");
    if (n) ob_pair_u32(p, "bert.pooling_type", number);
    return OB_OK;
}

static ob_status add_sizes(ob_pairs_made *p, const ob_file *f, const hf *h, ob_err *err)
{
    const ob_tensor *embd = find(f, "token_embd.weight"), *pos = find(f, "position_embd.weight"),
                    *up = find(f, "blk.0.ffn_up.weight");
    int64_t n_layer = 0, n_head;
    char name[64];
    if (!embd || !pos || !up)
        return ob_err_set(err, OB_E_FORMAT, "a tensor of BERT is missing: %s", !embd ? "embeddings.word_embeddings"
                          : !pos ? "embeddings.position_embeddings" : "encoder.layer.0.intermediate.dense");
    do snprintf(name, sizeof name, "blk.%" PRId64 ".ffn_up.weight", ++n_layer);
    while (find(f, name));
    OB_TRY(ob_hf_config_count(h->config, "num_attention_heads", 12, &n_head, err));
    const json_t *eps = json_object_get(h->config, "layer_norm_eps");
    const float epsilon = json_is_number(eps) ? (float)json_number_value(eps) : 1e-12f;
    ob_pair_u32(p, "bert.block_count", (uint64_t)n_layer);
    ob_pair_u32(p, "bert.context_length", (uint64_t)pos->ne[1]);
    ob_pair_u32(p, "bert.embedding_length", (uint64_t)embd->ne[0]);
    ob_pair_u32(p, "bert.feed_forward_length", (uint64_t)up->ne[1]);
    ob_pair_u32(p, "bert.attention.head_count", (uint64_t)n_head);
    ob_pair(p, "bert.attention.layer_norm_epsilon", OB_KV_F32);
    ob_buf_add(&p->b, &epsilon, sizeof epsilon);
    ob_pair_bool(p, "bert.attention.causal", false);
    return add_pooling(p, h, err);
}

/* ---- vocabulary ----------------------------------------------------------------------------- */

typedef struct vocab {
    ob_str *text; /* [n], borrowed from the JSON or the mapping; data NULL: no token has this id */
    uint8_t *type;
    size_t n;
} vocab;

static ob_status vocab_room(vocab *v, size_t n, ob_err *err)
{
    if (n == 0 || n > OB_MAX_VOCAB)
        return ob_err_set(err, OB_E_LIMIT, "a vocabulary of %zu tokens (1 to %u)", n, OB_MAX_VOCAB);
    v->text = ob_calloc(n, sizeof *v->text);
    v->type = ob_calloc(n, 1);
    if (!v->text || !v->type) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %zu tokens", n);
    memset(v->type, TOKEN_NORMAL, n);
    v->n = n;
    return OB_OK;
}

static ob_status vocab_from_json(vocab *v, const json_t *tokenizer, ob_err *err)
{
    json_t *model = json_object_get(tokenizer, "model"), *map = json_object_get(model, "vocab"), *id, *added;
    const char *kind = json_string_value(json_object_get(model, "type")), *text;
    size_t i;
    if (!json_is_object(map) || (kind && strcmp(kind, "WordPiece") != 0))
        return ob_err_set(err, OB_E_UNSUPPORTED, "tokenizer.json holds no WordPiece vocabulary");
    OB_TRY(vocab_room(v, json_object_size(map), err));
    json_object_foreach(map, text, id)
    {
        const json_int_t at = json_integer_value(id);
        if (!json_is_integer(id) || at < 0 || (size_t)at >= v->n || v->text[at].data)
            return ob_err_set(err, OB_E_FORMAT, "tokenizer.json: the id of '%s' is not free in 0..%zu",
                              ob_show(text, strlen(text)).text, v->n - 1);
        v->text[at] = (ob_str){text, strlen(text)};
    }
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, added)
    {
        const json_int_t at = json_integer_value(json_object_get(added, "id"));
        if (at >= 0 && (size_t)at < v->n && json_is_true(json_object_get(added, "special")))
            v->type[at] = TOKEN_CONTROL;
    }
    return OB_OK;
}

static ob_status vocab_from_lines(vocab *v, const ob_part *p, ob_err *err)
{
    const char *at = (const char *)p->data, *end = at + p->len;
    size_t n = 0;
    for (const char *s = at; s < end; s++) n += *s == '\n' || s + 1 == end;
    OB_TRY(vocab_room(v, n, err));
    for (size_t i = 0; i < n; i++) {
        const char *eol = memchr(at, '\n', (size_t)(end - at));
        if (!eol) eol = end;
        size_t len = (size_t)(eol - at);
        if (len && at[len - 1] == '\r') len--;
        v->text[i] = (ob_str){at, len};
        at = eol + 1;
    }
    return OB_OK;
}

/* WordPiece's "##ing" is GGUF's "ing", and "cat" is "▁cat"; names in brackets stay. */
static void add_token(ob_buf *b, ob_str t)
{
    if (t.len >= 2 && t.data[0] == '[' && t.data[t.len - 1] == ']') {
        ob_hf_add_text(b, t.data, t.len);
    } else if (t.len > 2 && !memcmp(t.data, "##", 2)) {
        ob_hf_add_text(b, t.data + 2, t.len - 2);
    } else {
        const uint64_t len = t.len + 3;
        ob_buf_add(b, &len, sizeof len);
        ob_buf_adds(b, SPACE_MARK);
        ob_buf_add(b, t.data, t.len);
    }
}

static void add_vocab(ob_pairs_made *p, vocab *v)
{
    static const struct { const char *text, *keys[2]; } specials[] = {
        {"[PAD]", {"padding"}}, {"[UNK]", {"unknown"}}, {"[CLS]", {"cls", "bos"}},
        {"[SEP]", {"seperator", "eos"}}, /* sic: GGUF's spelling */
        {"[MASK]", {"mask"}}};
    const uint64_t n = v->n;
    for (size_t k = 0; k < OB_COUNT(specials); k++)
        for (size_t i = 0; i < v->n; i++) {
            char key[64];
            if (v->text[i].len != strlen(specials[k].text) ||
                memcmp(v->text[i].data, specials[k].text, v->text[i].len) != 0)
                continue;
            v->type[i] = TOKEN_CONTROL;
            for (int j = 0; j < 2 && specials[k].keys[j]; j++) {
                snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", specials[k].keys[j]);
                ob_pair_u32(p, key, i);
            }
            break;
        }
    ob_pair(p, "tokenizer.ggml.tokens", OB_KV_ARRAY);
    ob_hf_add_u32(&p->b, OB_KV_STRING);
    ob_buf_add(&p->b, &n, sizeof n);
    for (size_t i = 0; i < v->n; i++) add_token(&p->b, v->text[i]);
    ob_pair(p, "tokenizer.ggml.token_type", OB_KV_ARRAY);
    ob_hf_add_u32(&p->b, OB_KV_U8);
    ob_buf_add(&p->b, &n, sizeof n);
    ob_buf_add(&p->b, v->type, v->n);
}

/* Normaliser: tokenizer.json has the last word, then tokenizer_config.json; BERT lower-cases by default,
 * and strips accents when it lower-cases. */
static void add_normalizer(ob_pairs_made *p, const hf *h)
{
    const json_t *n = json_object_get(h->tokenizer, "normalizer");
    const json_t *lower = json_object_get(n, "lowercase"), *strip = json_object_get(n, "strip_accents");
    if (!lower) lower = json_object_get(h->tok_config, "do_lower_case");
    if (!strip) strip = json_object_get(h->tok_config, "strip_accents");
    const bool lowercase = !json_is_false(lower);
    ob_pair_text(p, "tokenizer.ggml.model", "bert");
    ob_pair_bool(p, "tokenizer.ggml.normalizer.lowercase", lowercase);
    ob_pair_bool(p, "tokenizer.ggml.normalizer.strip_accents", json_is_boolean(strip) ? json_is_true(strip) : lowercase);
}

static ob_status add_tokenizer(ob_pairs_made *p, const hf *h, ob_err *err)
{
    vocab v = {0};
    ob_status s = OB_OK;
    if (!h->tokenizer && !h->vocab.data) return OB_OK; /* whoever wants text will say so */
    s = h->tokenizer ? vocab_from_json(&v, h->tokenizer, err) : vocab_from_lines(&v, &h->vocab, err);
    if (s == OB_OK) {
        add_normalizer(p, h);
        add_vocab(p, &v);
    }
    ob_free(v.text);
    ob_free(v.type);
    return s;
}

/* ---- all of it ------------------------------------------------------------------------------ */

static const char *name_of(const hf *h)
{
    const json_t *v = json_object_get(h->config, "_name_or_path");
    const char *name = json_is_string(v) && *json_string_value(v) ? json_string_value(v) : h->folder;
    const char *slash = strrchr(name, '/');
    return slash && slash[1] ? slash + 1 : name;
}

static ob_status make_pairs(ob_file *f, ob_pairs_made *p, const hf *h, ob_err *err)
{
    OB_TRY(config_only(h->config, "hidden_act", "gelu", err));
    OB_TRY(config_only(h->config, "position_embedding_type", "absolute", err));
    ob_pair_text(p, "general.architecture", "bert");
    ob_pair_text(p, "general.name", name_of(h));
    OB_TRY(add_sizes(p, f, h, err));
    OB_TRY(add_tokenizer(p, h, err));
    return ob_hf_make_pairs(f, p, err);
}

ob_status ob_hf_bert_adopt(ob_file *f, ob_err *err)
{
    hf h = {0};
    ob_pairs_made p = {0};
    ob_status s = OB_OK;
    char name[OB_MAX_TENSOR_NAME_BYTES];
    bool is_bert = false;
    for (size_t i = 0; i < f->n_tensors && !is_bert; i++)
        is_bert = map_name(NULL, f->tensors[i].name, name, sizeof name) && !strcmp(name, "token_embd.weight");
    if (!is_bert) return OB_OK;
    ob_buf_init(&p.b, (size_t)OB_MAX_VOCAB_BYTES);
    OB_GOTO(hf_read(&h, f->path, err));
    if (!says_bert(h.config)) goto out;
    OB_GOTO(ob_hf_map_tensors(f, map_name, NULL, err));
    OB_GOTO(make_pairs(f, &p, &h, err));
out:
    ob_buf_deinit(&p.b);
    hf_deinit(&h);
    return s;
}
