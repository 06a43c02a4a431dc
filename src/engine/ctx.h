/* engine/ctx.h: the synchronous core: a model on a device, its cache, and steps over sequences.
 *
 * Owns: weights on the device, plans, cache pages, sequences. One thread at a time. The engine thread
 * drives one of these; `1bit logits`, `bench` and `perplexity` drive one directly.
 */
#ifndef OB_ENGINE_CTX_H
#define OB_ENGINE_CTX_H

#include "engine/engine.h"
#include "kv/kv.h"

typedef struct ob_ctx ob_ctx;
typedef struct ob_seq ob_seq; /* one timeline: tokens whose keys and values are in the cache */

OB_MUST_CHECK ob_status ob_ctx_new(const ob_engine_params *p, ob_ctx **out, ob_err *err);
void ob_ctx_free(ob_ctx *c);
void ob_ctx_describe(const ob_ctx *c, ob_engine_info *out);
const ob_tok *ob_ctx_tok(const ob_ctx *c);   /* borrowed */
const ob_file *ob_ctx_file(const ob_ctx *c); /* borrowed */
ob_dev *ob_ctx_dev(const ob_ctx *c);         /* borrowed: the first of them; NULL after a fault */

/* A new empty sequence; at most n_seq live at once (OB_E_LIMIT). */
OB_MUST_CHECK ob_status ob_ctx_seq_new(ob_ctx *c, ob_seq **out, ob_err *err);
/* Start from the longest cached prefix of tok[0..n); *n_cached tokens need not be fed again. At most
 * n - 1, since the last token must run to give logits. Only on an empty sequence. */
OB_MUST_CHECK ob_status ob_ctx_seq_reuse(ob_ctx *c, ob_seq *s, const int32_t *tok, int32_t n,
                                         int32_t *n_cached, ob_err *err);
/* Where a prompt of n tokens is resumed when all of it is in the cache: n - 1, or the page before where there are states. On a
 * device whose kernels depend on the rows of a step a prompt is cut there also the first time, so that its text
 * is the same with and without the cache; on others n: no cut. */
int32_t ob_ctx_resume_at(const ob_ctx *c, int32_t n);
/* Offer the whole pages of the sequence to later ones; it goes on. */
void ob_ctx_seq_publish(ob_ctx *c, ob_seq *s);
/* The same with the last, partly filled page: the sequence will not be fed again, only freed. */
void ob_ctx_seq_keep(ob_ctx *c, ob_seq *s);
void ob_ctx_seq_free(ob_ctx *c, ob_seq *s);
int32_t ob_seq_len(const ob_seq *s);

typedef struct ob_chunk {
    ob_seq *seq;        /* each sequence at most once per step */
    const int32_t *tok; /* [n_tok], borrowed */
    const ob_placed_picture *pics; /* [n_pics] the pictures of the whole sequence so far and of this chunk, in order,
                                      borrowed: rows below 0 of tok are theirs, and they move later positions */
    int32_t n_pics;
    int32_t n_tok;
    int32_t n_out;      /* logits of the last n_out of them are wanted */
    const int32_t *marks; /* [n_out] tokens of the chunk that are wanted instead; NULL: the last ones */
    int32_t type;       /* token type of the whole chunk (hp.n_type) */
    bool prompt;        /* text that was given, not generated: ob_engine_params.act4 is about it */
} ob_chunk;

/* Append each chunk to its sequence. *rows is valid until the next step. What it points at, in order of
 * chunks, is by the model's output (graph/model.h): [sum of n_out][n_vocab] logits, a vector per chunk or
 * per token, [n_chunks][n_class], or [sum of n_out] scores. Where the output is not logits a chunk must be
 * a whole text in a new sequence, and may be as long as the context whatever n_ubatch says; all chunks of
 * a step still share max(n_ubatch, the longest of them) tokens. OB_E_NO_MEMORY when no cache page is left (nothing was appended);
 * OB_E_CONTEXT_LENGTH when a sequence would pass n_ctx. */
OB_MUST_CHECK ob_status ob_ctx_step(ob_ctx *c, const ob_chunk *chunks, int32_t n_chunks,
                                    const float **rows, ob_err *err);
/* Milliseconds of the last step; what it took to prepare a plan of its size, the first time, is left out. */
double ob_ctx_step_ms(const ob_ctx *c);
/* With rows NULL what stays on the device need not be fetched: of each row of the last step the best logits, or one
 * whole row, can be had until the next step. ob_ctx_top is false where the device gives whole rows only. */
bool ob_ctx_top(const ob_ctx *c, int32_t row, ob_top_logits *out);
OB_MUST_CHECK ob_status ob_ctx_row(ob_ctx *c, int32_t row, float *dst, ob_err *err);
/* Did a device fail in the last call, so that nothing on it can be trusted? Then free every sequence and reopen;
 * until then steps fail with OB_E_DEVICE_LOST. */
bool ob_ctx_faulted(const ob_ctx *c);
/* Close the devices and open them again: weights are uploaded anew, caches are empty. No sequence may be in use.
 * After an error the devices stay closed, and it may be tried again. */
OB_MUST_CHECK ob_status ob_ctx_reopen(ob_ctx *c, ob_err *err);
/* Columns of a row, and rows that a step with these chunks gives. */
int32_t ob_ctx_n_cols(const ob_ctx *c);
int32_t ob_ctx_n_rows(const ob_ctx *c, const ob_chunk *chunks, int32_t n_chunks);
/* How many of the next n tokens of a prompt to feed in one chunk: all of them, or with recurrent states up to
 * the last page bound among them, since only there a checkpoint for later prompts can be made. Where a picture's
 * tokens see each other it must lie in one chunk: then up to the picture that would be cut, or, when that comes
 * first, all of it, but at most `most` (0: it does not fit now). */
int32_t ob_ctx_chunk_size(const ob_ctx *c, const ob_seq *s, const ob_placed_picture *pics, int32_t n_pics, int32_t n,
                          int32_t most);
/* Cache pages a chunk of n_tok more tokens would need, and pages that could be had (free or kept for
 * reuse only). */
int32_t ob_ctx_pages_needed(const ob_ctx *c, const ob_seq *s, int32_t n_tok);
int32_t ob_ctx_pages_available(const ob_ctx *c);
/* All zero where nothing is streamed. May be called from any thread. */
void ob_ctx_expert_stats(const ob_ctx *c, ob_expert_stats *out);
void ob_ctx_cache_stats(const ob_ctx *c, int64_t *live_tok, int64_t *kept_tok, int64_t *total_tok);

/* ------------------------------------------------------------------ sequences that move (ctx_move.c)
 * A sequence computed by one context goes on in another of the same model: its cache pages and recurrent states are
 * copied to host memory here and from there into the other's devices. Pages are numbered from the sequence's
 * beginning, OB_SEQ_PAGE_TOK tokens each. Each call belongs to the thread of its context. */
enum { OB_SEQ_PAGE_TOK = 64 };

/* What a sequence's bytes mean. */
typedef struct ob_seq_layout {
    ob_kv_layout kv;
    uint64_t states;      /* hash of the sizes of the recurrent states */
    uint64_t state_bytes; /* of all states of one sequence; 0: there are none */
} ob_seq_layout;
void ob_ctx_seq_layout(const ob_ctx *c, ob_seq_layout *out);
/* May a sequence of layout `from` be imported here? OB_E_UNSUPPORTED says what differs. */
OB_MUST_CHECK ob_status ob_ctx_seq_check_layout(const ob_ctx *c, const ob_seq_layout *from, ob_err *err);

/* Pages [page, page + n) that the sequence has, to dst [n * kv.page_bytes]. */
OB_MUST_CHECK ob_status ob_ctx_pages_export(ob_ctx *c, const ob_seq *s, int32_t page, int32_t n, void *dst, ob_err *err);
/* Pages [page, page + n) that follow those the sequence has (`page` is their number), or replace pages behind its
 * last token. They do not count before ob_ctx_seq_adopt. OB_E_NO_MEMORY: no page is left. */
OB_MUST_CHECK ob_status ob_ctx_pages_import(ob_ctx *c, ob_seq *s, int32_t page, int32_t n, const ob_kv_layout *from,
                                            const void *src, ob_err *err);
/* The recurrent states after the sequence's last token, [state_bytes]. */
OB_MUST_CHECK ob_status ob_ctx_states_export(ob_ctx *c, const ob_seq *s, void *dst, ob_err *err);
OB_MUST_CHECK ob_status ob_ctx_states_import(ob_ctx *c, ob_seq *s, const void *src, ob_err *err);
/* The imported pages (and states) hold tok[0..n), a whole number of pages: from now on the sequence has them. */
void ob_ctx_seq_adopt(ob_ctx *c, ob_seq *s, const int32_t *tok, int32_t n);
/* Forget what lies behind the first n tokens (at most as many as it has), imported pages too. With recurrent states n
 * must be what it has: they cannot be rewound. */
void ob_ctx_seq_cut(ob_ctx *c, ob_seq *s, int32_t n);

/* For tokens that may turn out wrong: remember the recurrent states after the sequence's last token, and go back there
 * (once or more often). Copies on the device, made when first needed (OB_E_NO_MEMORY: no room for
 * them, and all else goes on); without states nothing is copied. */
OB_MUST_CHECK ob_status ob_ctx_seq_mark(ob_ctx *c, ob_seq *s, ob_err *err);
OB_MUST_CHECK ob_status ob_ctx_seq_rewind(ob_ctx *c, ob_seq *s, ob_err *err);

#endif
