/* tok/tok_int.h: what the files of tok/ share. Not for other rooms. */
#ifndef OB_TOK_TOK_INT_H
#define OB_TOK_TOK_INT_H

#include <stdatomic.h>

#include "base/limits.h"
#include "tok/tok.h"

/* ---- Strings by id: one block of bytes and n + 1 offsets -------------------------------------- */

typedef struct ob_strs {
    char *bytes;
    uint32_t *off;
} ob_strs;

static inline const char *ob_strs_get(const ob_strs *s, int32_t id, size_t *len)
{
    *len = s->off[id + 1] - s->off[id];
    return s->bytes + s->off[id];
}

/* ---- Text to id: open addressing over 64-bit hashes ------------------------------------------- */

typedef struct ob_vocab_slot {
    uint32_t tag; /* upper hash bits */
    int32_t id;   /* -1: empty */
} ob_vocab_slot;

typedef struct ob_vocab {
    const ob_strs *strs; /* borrowed: the strings that ids stand for */
    ob_vocab_slot *slots;
    uint64_t mask;
    size_t max_len; /* longest string inserted, bytes */
} ob_vocab;

/* Room for n strings. */
OB_MUST_CHECK ob_status ob_vocab_init(ob_vocab *v, const ob_strs *strs, size_t n, ob_err *err);
void ob_vocab_deinit(ob_vocab *v);
/* Insert strs[id]; the first of two equal strings stays. */
void ob_vocab_add(ob_vocab *v, int32_t id);
int32_t ob_vocab_find(const ob_vocab *v, const char *s, size_t len); /* -1 if absent */

/* ---- Special tokens: leftmost-longest search over a sorted list ------------------------------- */

typedef struct ob_specials {
    int32_t *ids;       /* ascending by text */
    const ob_strs *text; /* borrowed */
    uint32_t first[257]; /* ids[first[b] .. first[b+1]) start with byte b */
    bool plain[256];    /* some user-defined token starts with this byte */
    const uint8_t *types; /* borrowed */
} ob_specials;

OB_MUST_CHECK ob_status ob_specials_init(ob_specials *s, const ob_strs *text, const uint8_t *types,
                                         int32_t n_vocab, ob_err *err);
void ob_specials_deinit(ob_specials *s);
/* First match at or after *pos: true, its start in *pos, length in *len, id in *id. */
bool ob_specials_next(const ob_specials *s, const char *text, size_t n, bool control, size_t *pos,
                      size_t *len, int32_t *id);

/* ---- Growing list of ids ---------------------------------------------------------------------- */

typedef struct ob_ids {
    int32_t *data;
    size_t n, cap;
    bool failed; /* no memory; the list keeps what it had */
} ob_ids;

bool ob_ids_grow(ob_ids *l);
static inline void ob_ids_add(ob_ids *l, int32_t id)
{
    if (l->n == l->cap && !ob_ids_grow(l)) return;
    l->data[l->n++] = id;
}

/* ---- Pre-tokenisers --------------------------------------------------------------------------- */

typedef struct ob_pre ob_pre; /* immutable after load */

/* Find by tokenizer.ggml.pre. UNSUPPORTED lists the known names. */
OB_MUST_CHECK ob_status ob_pre_new(const char *name, size_t len, ob_pre **out, ob_err *err);
void ob_pre_free(ob_pre *p);
bool ob_pre_ignore_merges(const ob_pre *p); /* a word that is a token stands for itself */
bool ob_pre_add_bos(const ob_pre *p);       /* default of add_bos_token */
/* Names of the table, one by one, NULL at the end (for messages and tests). */
const char *ob_pre_known(size_t i);
/* Call fn for each word of text from left to right; the words cover it without gaps. The first
 * status that is not OK stops and is returned. */
typedef ob_status (*ob_pre_fn)(void *arg, const char *word, size_t len);
OB_MUST_CHECK ob_status ob_pre_split(const ob_pre *p, const char *text, size_t n, ob_pre_fn fn,
                                     void *arg, ob_err *err);

/* ---- Byte-level alphabet of GPT-2 ------------------------------------------------------------- */

/* Bytes that `text` spells; -1 if it has a character outside the alphabet, else the number of bytes
 * (at most len). out may be text itself. */
int64_t ob_bytes_decode(const char *text, size_t len, char *out);

/* ---- Merges of byte-pair encoding ------------------------------------------------------------- */

typedef struct ob_merge_slot {
    uint64_t pair; /* left id << 32 | right id; OB_NO_PAIR: empty */
    uint32_t rank, id;
} ob_merge_slot;

#define OB_NO_PAIR UINT64_MAX
#define OB_NO_RANK UINT32_MAX

typedef struct ob_merges {
    ob_merge_slot *slots;
    uint64_t mask;
} ob_merges;

/* ---- The tokenizer ---------------------------------------------------------------------------- */

typedef enum ob_tok_kind { OB_TOK_KIND_BPE, OB_TOK_KIND_SPM, OB_TOK_KIND_WPM,
                           OB_TOK_KIND_UNIGRAM } ob_tok_kind;

struct ob_tok {
    ob_tok_kind kind;
    char model_name[16], pre_name[48];
    int32_t n_vocab;
    ob_strs text;   /* as the file has it */
    ob_strs piece;  /* as generated text */
    uint8_t *types; /* ob_tok_type */
    float *scores;  /* SentencePiece and Unigram; else NULL */
    double unk_score; /* Unigram */
    int32_t bos, eos, eot, unk, sep, pad, mask;
    bool add_bos, add_eos, add_space_prefix, trim_spaces;
    bool lowercase, strip_accents; /* WordPiece */
    int32_t *eog;                  /* ascending */
    size_t n_eog;
    ob_specials specials;
    ob_vocab vocab; /* BPE: over piece; others: over text */
    /* BPE */
    ob_pre *pre;
    ob_merges merges;
    int32_t byte_id[256];   /* also SentencePiece; -1 where the vocabulary lacks the byte */
    bool raw_utf8;          /* symbols start as characters, spaces as U+2581 (Gemma 4), not as bytes */
    /* SentencePiece: [257 * byte + kind]: some token has this byte directly in front of that (see
     * spm.c); NULL for others */
    bool *joins;
    /* Memo of BPE and SentencePiece, the only thing that changes after load: an ob_whole for each
     * token. Every thread computes the same value, so relaxed loads and stores are enough. */
    _Atomic uint8_t *whole;
};

/* A word that is a token nearly always encodes to that token, but not in every vocabulary. The first
 * thread that encodes such a word writes down how it went; later ones need no merges. */
typedef enum ob_whole { OB_WHOLE_UNKNOWN, OB_WHOLE_YES, OB_WHOLE_NO } ob_whole;

static inline ob_whole ob_tok_whole(const ob_tok *t, int32_t id)
{
    return (ob_whole)atomic_load_explicit(&t->whole[id], memory_order_relaxed);
}
static inline void ob_tok_set_whole(const ob_tok *t, int32_t id, bool yes)
{
    atomic_store_explicit(&t->whole[id], yes ? OB_WHOLE_YES : OB_WHOLE_NO, memory_order_relaxed);
}

/* Encode a fragment without special tokens. */
ob_status ob_bpe_load(ob_tok *t, const ob_file *f, ob_err *err);
ob_status ob_bpe_encode(const ob_tok *t, const char *text, size_t len, ob_ids *out, ob_err *err);
ob_status ob_spm_encode(const ob_tok *t, const char *text, size_t len, bool after_special,
                        ob_ids *out, ob_err *err);
ob_status ob_wpm_encode(const ob_tok *t, const char *text, size_t len, ob_ids *out, ob_err *err);
ob_status ob_unigram_load(ob_tok *t, ob_err *err);
ob_status ob_unigram_encode(const ob_tok *t, const char *text, size_t len, ob_ids *out, ob_err *err);
/* byte_id and joins of SentencePiece vocabularies. */
void ob_fallback_load(ob_tok *t);
ob_status ob_joins_load(ob_tok *t, ob_err *err);

/* eot, the end-of-generation set, and the types that their names imply. */
ob_status ob_tok_find_eog(ob_tok *t, ob_err *err);

#endif
