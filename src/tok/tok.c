/* Loading a vocabulary, and encode/decode around the word models. */
#include "tok/tok.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "tok/tok_int.h"

#define SPACE_MARK "\xE2\x96\x81" /* U+2581, SentencePiece's space */

/* ---- Reading the metadata --------------------------------------------------------------------- */

static ob_status copy_name(const ob_kv *kv, char *out, size_t size, ob_err *err)
{
    ob_str s;
    if (!ob_kv_str(kv, &s)) return ob_err_set(err, OB_E_FORMAT, "a tokenizer name is no string");
    if (s.len >= size || memchr(s.data, 0, s.len))
        return ob_err_set(err, OB_E_UNSUPPORTED, "tokenizer name of %zu bytes is not known", s.len);
    memcpy(out, s.data, s.len);
    out[s.len] = 0;
    return OB_OK;
}

static ob_status read_kind(ob_tok *t, const ob_file *f, ob_err *err)
{
    const ob_kv *kv = ob_file_find_kv(f, "tokenizer.ggml.model");
    if (!kv) return ob_err_set(err, OB_E_NOT_FOUND, "the file has no vocabulary (tokenizer.ggml.model)");
    OB_TRY(copy_name(kv, t->model_name, sizeof t->model_name, err));
    kv = ob_file_find_kv(f, "tokenizer.ggml.pre");
    if (kv) OB_TRY(copy_name(kv, t->pre_name, sizeof t->pre_name, err));
    if (!strcmp(t->model_name, "gpt2")) {
        t->kind = OB_TOK_KIND_BPE;
    } else if (!strcmp(t->model_name, "gemma4")) {
        t->kind = OB_TOK_KIND_BPE;
        t->raw_utf8 = true;
        strcpy(t->pre_name, "gemma4");
    } else if (!strcmp(t->model_name, "llama")) {
        t->kind = OB_TOK_KIND_SPM;
    } else if (!strcmp(t->model_name, "bert")) {
        t->kind = OB_TOK_KIND_WPM;
    } else if (!strcmp(t->model_name, "t5")) {
        t->kind = OB_TOK_KIND_UNIGRAM;
    } else {
        return ob_err_set(err, OB_E_UNSUPPORTED,
                          "tokenizer.ggml.model '%s' is not known; known are gpt2, gemma4, llama, "
                          "bert and t5", t->model_name);
    }
    return OB_OK;
}

static ob_status read_texts(ob_tok *t, const ob_kv *kv, ob_err *err)
{
    if (!kv || kv->type != OB_KV_ARRAY || kv->elem_type != OB_KV_STRING || kv->n == 0)
        return ob_err_set(err, OB_E_FORMAT, "tokenizer.ggml.tokens is missing or no array of strings");
    if (kv->n > OB_MAX_VOCAB)
        return ob_err_set(err, OB_E_LIMIT, "more than %u tokens", OB_MAX_VOCAB);
    size_t n_bytes = 0;
    for (uint64_t i = 0; i < kv->n; i++)
        if (!ob_add_size(n_bytes, kv->strings[i].len, &n_bytes) || n_bytes > OB_MAX_VOCAB_BYTES)
            return ob_err_set(err, OB_E_LIMIT, "token texts over %u bytes", OB_MAX_VOCAB_BYTES);
    t->n_vocab = (int32_t)kv->n;
    t->text.bytes = ob_malloc(n_bytes);
    t->text.off = ob_reallocarray(NULL, (size_t)kv->n + 1, sizeof *t->text.off);
    if (!t->text.bytes || !t->text.off)
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %zu bytes of vocabulary", n_bytes);
    uint32_t at = 0;
    for (uint64_t i = 0; i < kv->n; i++) {
        t->text.off[i] = at;
        if (kv->strings[i].len) memcpy(t->text.bytes + at, kv->strings[i].data, kv->strings[i].len);
        at += (uint32_t)kv->strings[i].len;
    }
    t->text.off[kv->n] = at;
    return OB_OK;
}

/* Is kv an array with a value for every token? */
static ob_status check_array(const ob_tok *t, const ob_kv *kv, const char *name, ob_err *err)
{
    if (kv->type != OB_KV_ARRAY || kv->n < (uint64_t)t->n_vocab)
        return ob_err_set(err, OB_E_FORMAT, "%s has %llu values for %d tokens", name,
                          (unsigned long long)kv->n, t->n_vocab);
    return OB_OK;
}

static ob_status read_types(ob_tok *t, const ob_kv *kv, ob_err *err)
{
    t->types = ob_malloc((size_t)t->n_vocab);
    if (!t->types) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for token types");
    memset(t->types, OB_TOK_NORMAL, (size_t)t->n_vocab);
    if (!kv) return OB_OK;
    OB_TRY(check_array(t, kv, "tokenizer.ggml.token_type", err));
    for (int32_t id = 0; id < t->n_vocab; id++) {
        int64_t v;
        if (!ob_kv_elem_i64(kv, (uint64_t)id, &v))
            return ob_err_set(err, OB_E_FORMAT, "tokenizer.ggml.token_type holds no integers");
        t->types[id] = v >= OB_TOK_NORMAL && v <= OB_TOK_BYTE ? (uint8_t)v : OB_TOK_UNUSED;
    }
    return OB_OK;
}

static ob_status read_scores(ob_tok *t, const ob_kv *kv, ob_err *err)
{
    if (t->kind != OB_TOK_KIND_SPM && t->kind != OB_TOK_KIND_UNIGRAM) return OB_OK;
    t->scores = ob_calloc((size_t)t->n_vocab, sizeof *t->scores);
    if (!t->scores) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for token scores");
    if (!kv) return ob_err_set(err, OB_E_FORMAT, "tokenizer.ggml.scores is missing");
    OB_TRY(check_array(t, kv, "tokenizer.ggml.scores", err));
    for (int32_t id = 0; id < t->n_vocab; id++) {
        double v;
        if (!ob_kv_elem_f64(kv, (uint64_t)id, &v) || v != v)
            return ob_err_set(err, OB_E_FORMAT, "tokenizer.ggml.scores: value %d is no number", id);
        t->scores[id] = (float)v;
    }
    return OB_OK;
}

/* A special id from the file, else its default; ids outside the vocabulary count as absent. */
static int32_t read_id(const ob_tok *t, const ob_file *f, const char *name, int32_t otherwise)
{
    int64_t v;
    if (ob_kv_i64(ob_file_find_kvf(f, "tokenizer.ggml.%s_token_id", name), &v)) {
        if (v >= 0 && v < t->n_vocab) return (int32_t)v;
        if (v >= 0 && v != UINT32_MAX)
            ob_log_warn("tokenizer: %s_token_id %lld is outside the vocabulary and is ignored", name,
                        (long long)v);
    }
    return otherwise < t->n_vocab ? otherwise : -1;
}

static void read_bool(const ob_file *f, const char *key, bool *value)
{
    bool b;
    if (ob_kv_bool(ob_file_find_kvf(f, "tokenizer.ggml.%s", key), &b)) *value = b;
}

static void read_specials(ob_tok *t, const ob_file *f)
{
    bool spm = t->kind == OB_TOK_KIND_SPM, wpm = t->kind == OB_TOK_KIND_WPM;
    bool unigram = t->kind == OB_TOK_KIND_UNIGRAM;
    /* defaults are those of the first models of each kind, as files may leave them out */
    t->bos = read_id(t, f, "bos", spm ? 1 : wpm ? read_id(t, f, "cls", 101) : -1);
    t->eos = read_id(t, f, "eos", spm ? 2 : unigram ? 1 : -1);
    t->eot = read_id(t, f, "eot", -1);
    t->unk = read_id(t, f, "unknown", spm ? 0 : wpm ? 100 : unigram ? 2 : -1);
    t->sep = read_id(t, f, "seperator", wpm ? 102 : -1); /* sic: GGUF's spelling */
    t->pad = read_id(t, f, "padding", wpm ? 0 : -1);
    t->mask = read_id(t, f, "mask", wpm ? 103 : -1);
    t->add_bos = spm || wpm || (t->pre && ob_pre_add_bos(t->pre));
    t->add_eos = wpm;
    read_bool(f, "add_bos_token", &t->add_bos);
    read_bool(f, "add_eos_token", &t->add_eos);
    if (wpm) t->add_bos = t->add_eos = true; /* [CLS] and [SEP] always */
    if (t->raw_utf8) t->add_bos = true;      /* Gemma 4 files that say otherwise are wrong */
    if (t->bos < 0) t->add_bos = false;
    if ((wpm ? t->sep : t->eos) < 0) t->add_eos = false;
    t->add_space_prefix = spm || unigram;
    read_bool(f, "add_space_prefix", &t->add_space_prefix);
    if (!spm) t->add_space_prefix = unigram;
    if (spm) read_bool(f, "remove_extra_whitespaces", &t->trim_spaces);
    t->lowercase = true;
    read_bool(f, "normalizer.lowercase", &t->lowercase);
    t->strip_accents = t->lowercase;
    read_bool(f, "normalizer.strip_accents", &t->strip_accents);
}

/* ---- Pieces ----------------------------------------------------------------------------------- */

/* "<0x0A>" to 10; -1 if it is not that. */
static int byte_name(const char *s, size_t len)
{
    if (len != 6 || memcmp(s, "<0x", 3) || s[5] != '>') return -1;
    int v = 0;
    for (int i = 3; i < 5; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10
              : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (d < 0) return -1;
        v = 16 * v + d;
    }
    return v;
}

/* Space marks become spaces. Never longer than text. */
static size_t unescape(const char *text, size_t len, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        if (len - i >= 3 && memcmp(text + i, SPACE_MARK, 3) == 0) {
            out[n++] = ' ';
            i += 3;
        } else {
            out[n++] = text[i++];
        }
    }
    return n;
}

/* What token `id` adds to text, written to out (room for its text). *spelled: it is made of the
 * model's alphabet, so that encoding may produce it. */
static size_t make_piece(const ob_tok *t, int32_t id, char *out, bool *spelled)
{
    size_t len;
    const char *text = ob_strs_get(&t->text, id, &len);
    uint8_t type = t->types[id];
    *spelled = false;
    if (type == OB_TOK_BYTE) {
        int b = byte_name(text, len);
        if (b >= 0) {
            out[0] = (char)b;
            return 1;
        }
    }
    if (type != OB_TOK_CONTROL && type != OB_TOK_USER_DEFINED && type != OB_TOK_UNKNOWN) {
        if (t->kind != OB_TOK_KIND_BPE || t->raw_utf8) {
            *spelled = true;
            return unescape(text, len, out);
        }
        int64_t n = ob_bytes_decode(text, len, out);
        if (n >= 0) {
            *spelled = n > 0;
            return (size_t)n;
        }
    }
    memcpy(out, text, len);
    return len;
}

/* Fill the pieces and the index. In byte-level BPE the index is over pieces, which are raw bytes; in
 * the others over texts. Control tokens are never found by it: text cannot become one by merging.
 * User-defined tokens take part, as their spelling in the alphabet may be a product of merges. */
static ob_status make_pieces(ob_tok *t, ob_err *err)
{
    size_t n_bytes = t->text.off[t->n_vocab];
    t->piece.bytes = ob_malloc(n_bytes);
    t->piece.off = ob_reallocarray(NULL, (size_t)t->n_vocab + 1, sizeof *t->piece.off);
    if (!t->piece.bytes || !t->piece.off)
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %zu bytes of pieces", n_bytes);
    bool bytes = t->kind == OB_TOK_KIND_BPE && !t->raw_utf8;
    OB_TRY(ob_vocab_init(&t->vocab, bytes ? &t->piece : &t->text, (size_t)t->n_vocab, err));
    uint32_t at = 0;
    t->piece.off[0] = 0;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        bool spelled;
        at += (uint32_t)make_piece(t, id, t->piece.bytes + at, &spelled);
        t->piece.off[id + 1] = at;
        if (t->types[id] == OB_TOK_USER_DEFINED) {
            spelled = true;
            for (uint32_t i = t->piece.off[id]; bytes && i < at; i++)
                spelled = spelled && t->piece.bytes[i] > ' ' && t->piece.bytes[i] < 127;
        }
        if (t->kind != OB_TOK_KIND_BPE && t->types[id] == OB_TOK_BYTE) spelled = false;
        if (spelled || (t->raw_utf8 && t->types[id] == OB_TOK_BYTE)) ob_vocab_add(&t->vocab, id);
    }
    return OB_OK;
}

/* ---- Life ------------------------------------------------------------------------------------- */

ob_status ob_tok_new(const ob_file *f, ob_tok **out, ob_err *err)
{
    *out = NULL;
    ob_status s = OB_OK;
    ob_tok *t = ob_calloc(1, sizeof *t);
    if (!t) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a tokenizer");
    OB_GOTO(read_kind(t, f, err));
    if (t->kind == OB_TOK_KIND_BPE)
        OB_GOTO(ob_pre_new(t->pre_name, strlen(t->pre_name), &t->pre, err));
    OB_GOTO(read_texts(t, ob_file_find_kv(f, "tokenizer.ggml.tokens"), err));
    OB_GOTO(read_types(t, ob_file_find_kv(f, "tokenizer.ggml.token_type"), err));
    OB_GOTO(read_scores(t, ob_file_find_kv(f, "tokenizer.ggml.scores"), err));
    read_specials(t, f);
    OB_GOTO(ob_tok_find_eog(t, err));
    OB_GOTO(make_pieces(t, err));
    OB_GOTO(ob_specials_init(&t->specials, &t->text, t->types, t->n_vocab, err));
    t->whole = ob_calloc((size_t)t->n_vocab, 1);
    if (!t->whole) OB_GOTO(ob_err_set(err, OB_E_NO_MEMORY, "no memory for the vocabulary"));
    if (t->kind == OB_TOK_KIND_BPE) OB_GOTO(ob_bpe_load(t, f, err));
    if (t->kind == OB_TOK_KIND_SPM) {
        ob_fallback_load(t);
        OB_GOTO(ob_joins_load(t, err));
    }
    if (t->kind == OB_TOK_KIND_UNIGRAM) OB_GOTO(ob_unigram_load(t, err));
out:
    if (s != OB_OK) ob_tok_free(t);
    else *out = t;
    return s;
}

void ob_tok_free(ob_tok *t)
{
    if (!t) return;
    ob_free(t->text.bytes);
    ob_free(t->text.off);
    ob_free(t->piece.bytes);
    ob_free(t->piece.off);
    ob_free(t->types);
    ob_free(t->scores);
    ob_free(t->eog);
    ob_specials_deinit(&t->specials);
    ob_vocab_deinit(&t->vocab);
    ob_pre_free(t->pre);
    ob_free(t->merges.slots);
    ob_free(t->joins);
    ob_free((void *)t->whole);
    ob_free(t);
}

/* ---- Facts ------------------------------------------------------------------------------------ */

int32_t ob_tok_n_vocab(const ob_tok *t) { return t->n_vocab; }
const char *ob_tok_model_name(const ob_tok *t) { return t->model_name; }
const char *ob_tok_pre_name(const ob_tok *t) { return t->pre_name; }
int32_t ob_tok_bos(const ob_tok *t) { return t->bos; }
int32_t ob_tok_eos(const ob_tok *t) { return t->eos; }
int32_t ob_tok_eot(const ob_tok *t) { return t->eot; }
int32_t ob_tok_unk(const ob_tok *t) { return t->unk; }
int32_t ob_tok_sep(const ob_tok *t) { return t->sep; }
int32_t ob_tok_pad(const ob_tok *t) { return t->pad; }
int32_t ob_tok_mask(const ob_tok *t) { return t->mask; }
bool ob_tok_add_bos(const ob_tok *t) { return t->add_bos; }
bool ob_tok_add_eos(const ob_tok *t) { return t->add_eos; }

const int32_t *ob_tok_eog(const ob_tok *t, size_t *n)
{
    *n = t->n_eog;
    return t->eog;
}

bool ob_tok_is_eog(const ob_tok *t, int32_t id)
{
    for (size_t i = 0; i < t->n_eog; i++)
        if (t->eog[i] == id) return true;
    return false;
}

ob_tok_type ob_tok_type_of(const ob_tok *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab ? (ob_tok_type)t->types[id] : OB_TOK_UNUSED;
}

int32_t ob_tok_find(const ob_tok *t, const char *text, size_t len)
{
    for (int32_t id = 0; id < t->n_vocab; id++) {
        size_t n;
        const char *s = ob_strs_get(&t->text, id, &n);
        if (n == len && memcmp(s, text, n) == 0) return id;
    }
    return -1;
}

const char *ob_tok_piece(const ob_tok *t, int32_t id, size_t *len)
{
    if (id < 0 || id >= t->n_vocab) {
        *len = 0;
        return "";
    }
    return ob_strs_get(&t->piece, id, len);
}

/* ---- Encode and decode ------------------------------------------------------------------------ */

static ob_status encode_fragment(const ob_tok *t, const char *text, size_t len, bool after_special,
                                 ob_ids *out, ob_err *err)
{
    if (len == 0) return OB_OK;
    switch (t->kind) {
    case OB_TOK_KIND_BPE: return ob_bpe_encode(t, text, len, out, err);
    case OB_TOK_KIND_SPM: return ob_spm_encode(t, text, len, after_special, out, err);
    case OB_TOK_KIND_WPM: return ob_wpm_encode(t, text, len, out, err);
    case OB_TOK_KIND_UNIGRAM: return ob_unigram_encode(t, text, len, out, err);
    }
    return OB_OK;
}

ob_status ob_tok_encode(const ob_tok *t, const char *text, size_t len, unsigned flags, int32_t **ids,
                        size_t *n, ob_err *err)
{
    *ids = NULL;
    *n = 0;
    if (len > OB_MAX_TOK_TEXT_BYTES)
        return ob_err_set(err, OB_E_LIMIT, "text of %zu bytes is over %u", len, OB_MAX_TOK_TEXT_BYTES);
    ob_status s = OB_OK;
    ob_ids out = {0};
    ob_ids_grow(&out);
    if ((flags & OB_TOK_BOS) && t->add_bos) ob_ids_add(&out, t->bos);
    bool after_special = true;
    for (size_t at = 0; at < len;) {
        size_t pos = at, special_len = 0;
        int32_t id;
        bool found = ob_specials_next(&t->specials, text, len, flags & OB_TOK_SPECIAL, &pos,
                                      &special_len, &id);
        size_t end = found ? pos : len;
        OB_GOTO(encode_fragment(t, text + at, end - at, after_special, &out, err));
        if (found) ob_ids_add(&out, id);
        after_special = true;
        at = end + special_len;
    }
    if ((flags & OB_TOK_BOS) && t->add_eos)
        ob_ids_add(&out, t->kind == OB_TOK_KIND_WPM ? t->sep : t->eos);
    if (out.failed) s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for the tokens of %zu bytes", len);
out:
    if (s != OB_OK) {
        ob_free(out.data);
        return s;
    }
    *ids = out.data;
    *n = out.n;
    return OB_OK;
}

ob_status ob_tok_decode(const ob_tok *t, const int32_t *ids, size_t n, bool special, ob_buf *out,
                        ob_err *err)
{
    bool strip = t->add_space_prefix || t->kind == OB_TOK_KIND_WPM;
    for (size_t i = 0; i < n; i++) {
        ob_tok_type type = ob_tok_type_of(t, ids[i]);
        bool hidden = type == OB_TOK_CONTROL || type == OB_TOK_UNKNOWN;
        size_t len;
        const char *piece = ob_tok_piece(t, ids[i], &len);
        if (hidden) {
            if (special) ob_buf_add(out, piece, len);
            continue;
        }
        if (strip && len && *piece == ' ') {
            piece++;
            len--;
        }
        strip = false;
        ob_buf_add(out, piece, len);
    }
    return ob_buf_status(out, err);
}
