/* engine/encoder.h: a loaded model that turns whole texts into vectors or scores.
 *
 * Owns: a context (engine/ctx.h), its thread and its queue. Texts of all jobs that wait share steps, in
 * order of arrival. Must not know HTTP or what the vectors are for.
 *
 * Threads: any thread may call these. on_done is called on the encoder's thread: it must not block and
 * must not call ob_encoder_free. Every job must be freed before ob_encoder_free.
 */
#ifndef OB_ENGINE_ENCODER_H
#define OB_ENGINE_ENCODER_H

#include "engine/engine.h"

typedef struct ob_encoder ob_encoder;
typedef struct ob_encode_job ob_encode_job;

/* One text, special tokens included. */
typedef struct ob_encode_text {
    const int32_t *tok;   /* [n_tok], n_tok >= 1 and at most the context */
    int32_t n_tok;
    int32_t type;         /* token type, for models that have them (Laya: kind of question), else 0 */
    const int32_t *marks; /* [n_marks] tokens to score, where the output is OB_OUTPUT_MARKS */
    int32_t n_marks;
} ob_encode_text;

/* What a model file would give (its header is read): OB_OUTPUT_LOGITS for one that generates. Also fills
 * causal and n_class of *out, nothing else. */
OB_MUST_CHECK ob_status ob_encoder_peek(const char *path, ob_engine_info *out, ob_err *err);

/* Loads (blocking) and starts the thread. p->embed asks for vectors even where the file has a head; models
 * that generate can only be loaded with it (OB_E_UNSUPPORTED otherwise). */
OB_MUST_CHECK ob_status ob_encoder_new(const ob_engine_params *p, ob_encoder **out, ob_err *err);
/* Cancels what waits, lets the step in hand end, frees all. */
void ob_encoder_free(ob_encoder *e);
void ob_encoder_describe(const ob_encoder *e, ob_engine_info *out);
const ob_tok *ob_encoder_tok(const ob_encoder *e);   /* borrowed, immutable */
const ob_file *ob_encoder_file(const ob_encoder *e); /* borrowed, immutable */
/* Columns of a result's row: n_embd, n_class or 1. */
int32_t ob_encoder_n_cols(const ob_encoder *e);
/* Rows that a text gives: 1, or its tokens without pooling, or its marks. */
int32_t ob_encoder_n_rows(const ob_encoder *e, const ob_encode_text *text);

/* Queue texts; *borrowed* with all they point at until on_done has been called. Errors, which name the
 * text by its number: OB_E_INVALID, OB_E_CONTEXT_LENGTH (both counts in err), OB_E_BUSY. on_done: `rows` is
 * [sum of rows][n_cols], vectors not normalised, alive until the job is freed; NULL when status is not
 * OB_OK (OB_E_CANCELLED after ob_encode_job_cancel). */
OB_MUST_CHECK ob_status ob_encoder_submit(ob_encoder *e, const ob_encode_text *texts, int32_t n,
                                          void (*on_done)(void *arg, ob_status s, const ob_err *err,
                                                          const float *rows),
                                          void *arg, ob_encode_job **out, ob_err *err);
/* on_done comes within one step. Idempotent. */
void ob_encode_job_cancel(ob_encode_job *j);
/* The same for every job there is. */
void ob_encoder_cancel_all(ob_encoder *e);
/* After on_done (also from within it). */
void ob_encode_job_free(ob_encode_job *j);

/* The same and wait: rows are copied to `out`, room for all of them. */
OB_MUST_CHECK ob_status ob_encoder_run(ob_encoder *e, const ob_encode_text *texts, int32_t n, float *out,
                                       ob_err *err);

/* Scale the first n_dims of a vector to length 1 (a vector of zeros stays). */
void ob_normalize(float *v, int32_t n_dims);

#endif
