/* convert/kld.h: how far a model's predictions are from those of another, the base.
 *
 * Owns: llama-perplexity's file of base logits, and the statistics over it. The file, little-endian:
 *
 *     "_logits_"   u32 n_ctx   i32 n_vocab   i32 n_chunks   i32 tokens [n_chunks][n_ctx]
 *     rows: for each chunk, for each position p in [n_ctx / 2, n_ctx - 1):
 *         f32 scale, f32 low, u16 code [n_vocab rounded up to even]
 *
 * with log p(token) = low + scale * code; everything 16 or more below the likeliest has code 0. Must not
 * know models: it gets logits.
 */
#ifndef OB_CONVERT_KLD_H
#define OB_CONVERT_KLD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct ob_base_logits ob_base_logits;

typedef struct ob_base_head {
    int32_t n_ctx, n_vocab, n_chunks;
    const int32_t *ids; /* [n_chunks][n_ctx], borrowed */
} ob_base_head;

/* Rows of one chunk: positions n_ctx / 2 .. n_ctx - 2. */
static inline int32_t ob_base_rows_per_chunk(int32_t n_ctx) { return n_ctx - 1 - n_ctx / 2; }

/* Write a file: the head, then every row in order, then ob_base_logits_commit (it is an error to commit
 * with rows missing). Nothing of that name exists before. */
OB_MUST_CHECK ob_status ob_base_logits_create(const char *path, const ob_base_head *head, ob_base_logits **out,
                                              ob_err *err);
OB_MUST_CHECK ob_status ob_base_logits_add(ob_base_logits *b, const float *logits, ob_err *err);
OB_MUST_CHECK ob_status ob_base_logits_commit(ob_base_logits *b, ob_err *err);

/* Read one. The counts of the head are checked against the size of the file (OB_E_FORMAT). */
OB_MUST_CHECK ob_status ob_base_logits_open(const char *path, ob_base_logits **out, ob_err *err);
void ob_base_logits_head(const ob_base_logits *b, ob_base_head *out);

/* For either; a file being written is removed. NULL is allowed. */
void ob_base_logits_free(ob_base_logits *b);

typedef struct ob_kld ob_kld;
OB_MUST_CHECK ob_status ob_kld_new(ob_base_logits *base, ob_kld **out, ob_err *err); /* borrows base */
void ob_kld_free(ob_kld *k);
/* Compare the next row of the base with logits [n_vocab]; `next` is the token that follows in the text. */
OB_MUST_CHECK ob_status ob_kld_add(ob_kld *k, const float *logits, int32_t next, ob_err *err);

typedef struct ob_estimate { double value, error; } ob_estimate; /* error: standard error of the mean */
enum { OB_KLD_N_PERCENTILES = 11 };
/* 0, 0.1, 1, 5, 10, 50, 90, 95, 99, 99.9, 100 */
extern const double ob_kld_percents[OB_KLD_N_PERCENTILES];

typedef struct ob_kld_report {
    int64_t n; /* rows */
    ob_estimate ppl, ppl_base, ppl_ratio, ln_ppl_ratio;
    double correlation;        /* of the two log-likelihoods */
    ob_estimate kld;           /* nats */
    double kld_at[OB_KLD_N_PERCENTILES];
    ob_estimate p_diff, p_diff_rms; /* p(next) of the model minus the base's */
    ob_estimate top1;          /* share of rows where both find the same token likeliest */
    ob_estimate top5;          /* share of the base's five likeliest that are among the model's five */
} ob_kld_report;
/* Sorts what was gathered; may be called again after more rows. Zeros while there are no rows. */
void ob_kld_finish(ob_kld *k, ob_kld_report *out);

#endif
