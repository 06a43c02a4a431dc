/* Promises of tok: metadata of any kind gives a tokenizer or an error with a text; any bytes encode;
 * byte-level BPE gives every byte back; what streams out is valid UTF-8 whatever the ids.
 *
 * Input that starts with "GGUF" is a model file. Else byte 0 picks the tokenizer and the rest is text.
 */
#include "fuzz.h"

#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/utf8.h"
#include "tok/tok.h"

/* ---- Fixed vocabularies ----------------------------------------------------------------------- */

static void put(ob_buf *b, const void *p, size_t n) { ob_buf_add(b, p, n); }
static void put_u32(ob_buf *b, uint32_t v) { put(b, &v, sizeof v); }
static void put_u64(ob_buf *b, uint64_t v) { put(b, &v, sizeof v); }
static void put_str(ob_buf *b, const char *s)
{
    put_u64(b, strlen(s));
    ob_buf_adds(b, s);
}
static void put_pair(ob_buf *b, const char *key, const char *value)
{
    put_str(b, key);
    put_u32(b, OB_KV_STRING);
    put_str(b, value);
}
static void put_array(ob_buf *b, const char *key, uint32_t type, uint64_t n)
{
    put_str(b, key);
    put_u32(b, OB_KV_ARRAY);
    put_u32(b, type);
    put_u64(b, n);
}

static const char *const words[] = {"\xE2\x96\x81", "a", "b", "ab", ("\xE2\x96\x81" "ab"), "ing", "\xE2\x96\x81\xE2\x96\x81",
                                    "e", "th", "the", "\xE2\x96\x81the", "!", "\xE2\x96\x81!"};
enum { N_WORDS = sizeof words / sizeof words[0], N_TOKENS = 256 + N_WORDS + 3 };

/* 256 bytes (GPT-2's names, or <0x..>), words, and three special tokens. */
static void put_tokens(ob_buf *b, bool bytes)
{
    put_array(b, "tokenizer.ggml.tokens", OB_KV_STRING, N_TOKENS);
    uint32_t next = 256;
    for (unsigned c = 0; c < 256; c++) {
        char name[8] = "";
        bool visible = (c >= '!' && c <= '~') || (c >= 0xA1 && c <= 0xAC) || c >= 0xAE;
        if (bytes) ob_utf8_encode(visible ? c : next++, name);
        else snprintf(name, sizeof name, "<0x%02X>", c);
        put_str(b, name);
    }
    for (int i = 0; i < N_WORDS; i++) put_str(b, words[i]);
    put_str(b, "[UNK]");
    put_str(b, "<|im_end|>");
    put_str(b, "<tool>");
    put_array(b, "tokenizer.ggml.token_type", OB_KV_I32, N_TOKENS);
    for (uint32_t i = 0; i < N_TOKENS - 3; i++) put_u32(b, i < 256 && !bytes ? 6 : 1);
    put_u32(b, OB_TOK_UNKNOWN);
    put_u32(b, OB_TOK_CONTROL);
    put_u32(b, OB_TOK_USER_DEFINED);
}

static ob_tok *fixed(const char *model, const char *pre)
{
    ob_buf b;
    ob_buf_init(&b, 1 << 20);
    ob_buf_adds(&b, "GGUF");
    put_u32(&b, 3);
    put_u64(&b, 0);
    put_u64(&b, 6);
    put_pair(&b, "tokenizer.ggml.model", model);
    put_pair(&b, "tokenizer.ggml.pre", pre);
    put_tokens(&b, !strcmp(model, "gpt2"));
    put_array(&b, "tokenizer.ggml.scores", OB_KV_F32, N_TOKENS);
    for (int i = 0; i < N_TOKENS; i++) {
        float score = (float)(i % 7);
        put(&b, &score, sizeof score);
    }
    put_array(&b, "tokenizer.ggml.merges", OB_KV_STRING, 3);
    put_str(&b, "a b");
    put_str(&b, "t h");
    put_str(&b, "th e");
    ob_file *f;
    ob_tok *t;
    FUZZ_REQUIRE(ob_file_open_bytes(b.data, b.len, 0, &f, NULL) == OB_OK);
    FUZZ_REQUIRE(ob_tok_new(f, &t, NULL) == OB_OK);
    ob_file_close(f);
    ob_buf_deinit(&b);
    return t;
}

static const struct {
    const char *model, *pre;
} kinds[] = {
    {"gpt2", "gpt-2"}, {"gpt2", "smollm"}, {"gpt2", "llama-bpe"}, {"gpt2", "qwen2"}, {"gpt2", "qwen35"},
    {"gpt2", "minicpm5"}, {"gpt2", "deepseek-v3"}, {"gpt2", "deepseek-llm"}, {"gpt2", "deepseek-coder"},
    {"gpt2", "gpt-4o"}, {"gpt2", "tekken"}, {"gpt2", "falcon"}, {"gpt2", "bloom"}, {"llama", "default"},
    {"bert", "default"}, {"gemma4", "gemma4"},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* ---- Checks ----------------------------------------------------------------------------------- */

static void check_stream(const ob_tok *t, const int32_t *ids, size_t n)
{
    ob_buf out;
    ob_detok d;
    ob_buf_init(&out, 1u << 26);
    ob_detok_init(&d, t, true);
    for (size_t i = 0; i < n; i++) {
        size_t from = out.len;
        ob_detok_push(&d, ids[i], &out);
        FUZZ_REQUIRE(ob_utf8_is_valid(ob_buf_str(&out) + from, out.len - from));
    }
    ob_detok_flush(&d, &out);
    FUZZ_REQUIRE(ob_utf8_is_valid(ob_buf_str(&out), out.len));
    ob_buf_deinit(&out);
}

static void check_text(const ob_tok *t, const char *text, size_t len, unsigned flags, bool exact)
{
    int32_t *ids = NULL;
    size_t n = 0;
    ob_err err = {0};
    ob_status s = ob_tok_encode(t, text, len, flags, &ids, &n, &err);
    FUZZ_REQUIRE(s == OB_OK || (s == OB_E_LIMIT && err.text[0]));
    if (s != OB_OK) return;
    for (size_t i = 0; i < n; i++) FUZZ_REQUIRE(ids[i] >= 0 && ids[i] < ob_tok_n_vocab(t));
    ob_buf out;
    ob_buf_init(&out, 1u << 26);
    if (ob_tok_decode(t, ids, n, true, &out, NULL) == OB_OK && exact) {
        FUZZ_REQUIRE(out.len == len && memcmp(ob_buf_str(&out), text, len) == 0);
    }
    ob_buf_deinit(&out);
    check_stream(t, ids, n);
    ob_free(ids);
}

static const char sample[] = "Hello, the world! <|im_end|>\n\xE4\xBD\xA0 \xFF";

static void check_file(const uint8_t *data, size_t len)
{
    ob_file *f;
    if (ob_file_open_bytes(data, len, OB_OPEN_NO_DATA, &f, NULL) != OB_OK) return;
    ob_tok *t = NULL;
    ob_err err = {0};
    ob_status s = ob_tok_new(f, &t, &err);
    ob_file_close(f); /* nothing may point into it */
    FUZZ_REQUIRE((s == OB_OK) == (t != NULL));
    FUZZ_REQUIRE(s == OB_OK || (err.code == s && err.text[0]));
    if (!t) return;
    check_text(t, sample, sizeof sample - 1, OB_TOK_SPECIAL | OB_TOK_BOS, false);
    check_text(t, (const char *)data, len, OB_TOK_SPECIAL, false);
    for (int32_t id = -1; id <= ob_tok_n_vocab(t); id++) {
        size_t n;
        const char *piece = ob_tok_piece(t, id, &n);
        FUZZ_REQUIRE(piece != NULL);
        FUZZ_REQUIRE(ob_tok_find(t, piece, n) < ob_tok_n_vocab(t));
        if (id > 100) break;
    }
    ob_tok_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static ob_tok *toks[N_KINDS];
    ob_log_set_level(OB_LOG_ERROR);
    if (len >= 4 && memcmp(data, "GGUF", 4) == 0) {
        check_file(data, len);
        return 0;
    }
    if (len < 1) return 0;
    unsigned k = data[0] % N_KINDS;
    if (!toks[k]) toks[k] = fixed(kinds[k].model, kinds[k].pre);
    bool exact = !strcmp(kinds[k].model, "gpt2");
    check_text(toks[k], (const char *)data + 1, len - 1, 0, exact);
    check_text(toks[k], (const char *)data + 1, len - 1, OB_TOK_SPECIAL, exact);
    int32_t ids[64]; /* any ids, many outside the vocabulary */
    size_t n = len < sizeof ids ? len / 4 : 64;
    memcpy(ids, data, 4 * n);
    for (size_t i = 0; i < n; i++)
        if (i % 2) ids[i] &= 0xFF;
    check_stream(toks[k], ids, n);
    return 0;
}
