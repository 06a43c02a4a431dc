/* tokenizer.json of Hugging Face (byte-pair encodings) as GGUF's pairs. */
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "fmt/hf_int.h"

#define WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define QWEN2_SPLIT WORDS "\\p{N}|"
#define LLAMA3_SPLIT WORDS "\\p{N}{1,3}|"

enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_USER_DEFINED = 4, TOKEN_UNUSED = 5, TOKEN_BYTE = 6 };

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
    } else if (type && !strcmp(type, "Digits") && json_is_true(json_object_get(one, "individual_digits"))) {
        *out = "smollm";
    } else if (regex && !strncmp(regex, QWEN2_SPLIT, strlen(QWEN2_SPLIT))) {
        *out = "qwen2";
    } else if (regex && !strncmp(regex, LLAMA3_SPLIT, strlen(LLAMA3_SPLIT))) {
        *out = "llama-bpe";
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
        return ob_err_set(err, OB_E_UNSUPPORTED, "tokenizer.json holds no BPE vocabulary");
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
static void add_specials(ob_pairs_made *p, const json_t *tok_config, const ob_hf_role *roles, size_t n_roles, const vocab *v)
{
    for (size_t r = 0; r < n_roles; r++) {
        const json_t *said = json_object_get(tok_config, roles[r].role);
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

/* Rows of the embeddings that no token has: a text of their own, as other converters write them. */
static void add_token(ob_buf *b, const vocab *v, size_t i)
{
    char text[32];
    if (v->text[i].data) {
        ob_hf_add_text(b, v->text[i].data, v->text[i].len);
        return;
    }
    v->type[i] = TOKEN_UNUSED;
    const int n = snprintf(text, sizeof text, "[PAD%zu]", i);
    ob_hf_add_text(b, text, (uint64_t)n);
}

ob_status ob_hf_add_tokenizer(ob_pairs_made *p, const json_t *tokenizer, const json_t *tok_config, const ob_hf_role *roles,
                              size_t n_roles, size_t n_vocab, ob_err *err)
{
    const char *pre = NULL;
    vocab v = {.n = n_vocab};
    if (!tokenizer) return OB_OK; /* whoever wants text will say so */
    ob_status s = split_name(tokenizer, &pre, err);
    if (s == OB_OK) {
        v.text = ob_calloc(n_vocab, sizeof *v.text);
        v.type = ob_calloc(n_vocab, 1);
        if (!v.text || !v.type) s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for %zu tokens", n_vocab);
    }
    if (s == OB_OK) memset(v.type, TOKEN_NORMAL, n_vocab);
    if (s == OB_OK) s = vocab_read(&v, tokenizer, err);
    if (s == OB_OK) {
        ob_pair_text(p, "tokenizer.ggml.model", pre ? "gpt2" : "gemma4");
        if (pre) ob_pair_text(p, "tokenizer.ggml.pre", pre);
        add_specials(p, tok_config, roles, n_roles, &v);
        add_array(p, "tokenizer.ggml.tokens", OB_KV_STRING, v.n);
        for (size_t i = 0; i < v.n; i++) add_token(&p->b, &v, i);
        add_array(p, "tokenizer.ggml.token_type", OB_KV_I32, v.n); /* other engines read no other width */
        for (size_t i = 0; i < v.n; i++) ob_hf_add_u32(&p->b, v.type[i]);
        s = add_merges(p, json_object_get(json_object_get(tokenizer, "model"), "merges"), err);
    }
    ob_free(v.text);
    ob_free(v.type);
    return s;
}
