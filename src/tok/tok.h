/* tok/tok.h: text to token ids and back, from the vocabulary that a model file carries.
 *
 * Owns: special-token matching, normalising, pre-tokenising (splitting text into words), the four
 * word models (byte-level BPE, SentencePiece BPE, WordPiece, Unigram), the set of ids that end a generation,
 * and the streaming detokeniser. Must not know templates, sampling, devices or requests.
 *
 * An ob_tok is *immutable after load*: any number of threads may encode and decode with one at once.
 * Text is bytes with a length, normally UTF-8. Bytes that are not UTF-8 are never an error: byte-level
 * BPE and byte fallback keep them exactly, WordPiece drops them as its reference drops U+FFFD.
 */
#ifndef OB_TOK_TOK_H
#define OB_TOK_TOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "fmt/fmt.h"

typedef struct ob_tok ob_tok;

/* ---- Loading ---------------------------------------------------------------------------------- */

/* Build from the file's tokenizer.ggml.* pairs. Everything needed is copied: `f` may be closed.
 * Errors: NOT_FOUND (the file has no vocabulary), FORMAT (a pair is missing, of the wrong type or
 * inconsistent), UNSUPPORTED (unknown tokenizer.ggml.model or .pre; the text lists the known ones),
 * LIMIT, NO_MEMORY. */
OB_MUST_CHECK ob_status ob_tok_new(const ob_file *f, ob_tok **out, ob_err *err);
void ob_tok_free(ob_tok *t); /* NULL is fine */

/* ---- Facts about the vocabulary --------------------------------------------------------------- */

/* Same numbers as GGUF's tokenizer.ggml.token_type. */
typedef enum ob_tok_type {
    OB_TOK_NORMAL = 1,
    OB_TOK_UNKNOWN = 2,
    OB_TOK_CONTROL = 3,      /* never text: matched only with OB_TOK_SPECIAL, hidden when decoding */
    OB_TOK_USER_DEFINED = 4, /* matched in any text before all else, shown when decoding */
    OB_TOK_UNUSED = 5,
    OB_TOK_BYTE = 6,         /* "<0x0A>": one byte */
} ob_tok_type;

int32_t ob_tok_n_vocab(const ob_tok *t);
const char *ob_tok_model_name(const ob_tok *t); /* "gpt2", "llama", "bert", ... as in the file */
const char *ob_tok_pre_name(const ob_tok *t);   /* "smollm", ...; "" when the model has none */
/* Special ids; -1 where the vocabulary has none. */
int32_t ob_tok_bos(const ob_tok *t); /* for WordPiece: [CLS] */
int32_t ob_tok_eos(const ob_tok *t);
int32_t ob_tok_eot(const ob_tok *t); /* end of a turn: <|im_end|>, <|eot_id|>, <end_of_turn>, ... */
int32_t ob_tok_unk(const ob_tok *t);
int32_t ob_tok_sep(const ob_tok *t);
int32_t ob_tok_pad(const ob_tok *t);
int32_t ob_tok_mask(const ob_tok *t);
bool ob_tok_add_bos(const ob_tok *t); /* what OB_TOK_BOS does in front ... */
bool ob_tok_add_eos(const ob_tok *t); /* ... and behind (WordPiece: [SEP]) */
/* Does this id end a generation? eos, eot and every token whose text says so, as llama.cpp has it. */
bool ob_tok_is_eog(const ob_tok *t, int32_t id);
/* All of them, ascending; *borrowed*. */
const int32_t *ob_tok_eog(const ob_tok *t, size_t *n);
/* Type of a token; OB_TOK_UNUSED for an id outside the vocabulary. */
ob_tok_type ob_tok_type_of(const ob_tok *t, int32_t id);
/* Id of the token that is written exactly so in the vocabulary ("<|im_end|>"), or -1. Scans the
 * whole vocabulary: for load time. */
int32_t ob_tok_find(const ob_tok *t, const char *text, size_t len);

/* ---- Encoding --------------------------------------------------------------------------------- */

enum {
    OB_TOK_SPECIAL = 1, /* text of control tokens becomes those tokens; without it, it is plain text */
    OB_TOK_BOS = 2,     /* add BOS and EOS (CLS, SEP) where the model wants them */
};

/* Token ids of text. On success *ids is *taken* (free with ob_free, never NULL) and holds *n ids.
 * Time is O(len log len) whatever the text. Errors: LIMIT (text over OB_MAX_TOK_TEXT_BYTES),
 * NO_MEMORY. */
OB_MUST_CHECK ob_status ob_tok_encode(const ob_tok *t, const char *text, size_t len, unsigned flags,
                                      int32_t **ids, size_t *n, ob_err *err);

/* ---- Decoding --------------------------------------------------------------------------------- */

/* The bytes that a token adds to generated text; *borrowed* and valid as long as t, not
 * NUL-terminated, possibly part of a UTF-8 character. Control tokens give their name. An id outside
 * the vocabulary gives length 0. */
const char *ob_tok_piece(const ob_tok *t, int32_t id, size_t *len);

/* Append the text of ids to out, bytes as they are. Control tokens are left out unless `special`.
 * The one space that encoding put in front (SentencePiece, WordPiece) is taken off again. */
OB_MUST_CHECK ob_status ob_tok_decode(const ob_tok *t, const int32_t *ids, size_t n, bool special,
                                      ob_buf *out, ob_err *err);

/* A streaming detokeniser: what it appends is always whole, valid UTF-8. Allocates nothing itself.
 * Owner: one stream. */
typedef struct ob_detok {
    const ob_tok *tok; /* borrowed */
    bool special;      /* show control tokens */
    uint8_t n_held;
    char held[4];      /* the start of a character whose end has not come yet */
} ob_detok;

void ob_detok_init(ob_detok *d, const ob_tok *t, bool special);
/* Append what `id` completes, possibly nothing. Bytes that can never become UTF-8 are U+FFFD, one for
 * each maximal wrong part (Unicode 3.9). Failure to grow stays in out->failed. */
void ob_detok_push(ob_detok *d, int32_t id, ob_buf *out);
/* The same for bytes that come from elsewhere. */
void ob_detok_push_bytes(ob_detok *d, const char *bytes, size_t len, ob_buf *out);
/* End of the stream: an incomplete character becomes U+FFFD. The detokeniser can be used again. */
void ob_detok_flush(ob_detok *d, ob_buf *out);

#endif
