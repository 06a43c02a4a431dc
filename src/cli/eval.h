/* cli/eval.h: a text through a model in chunks, as perplexity, kld and imatrix do it. */
#ifndef OB_CLI_EVAL_H
#define OB_CLI_EVAL_H

#include "cli/cli.h"
#include "engine/ctx.h"
#include "engine/handover.h"

/* The text of --file, or of standard input. */
OB_MUST_CHECK ob_status ob_eval_read_text(const ob_args *a, ob_buf *b, ob_err *err);

/* Gets the logits that follow ids[0..pos], for each pos in [n_ctx / 2, n_ctx - 1); `next` is ids[pos + 1]. */
typedef ob_status (*ob_eval_fn)(void *arg, const float *logits, int32_t next, ob_err *err);

/* Run ids [n_ctx] in an empty sequence, the first replaced by BOS where the model wants one. fn NULL: no
 * logits are computed but those of the last token. h: NULL, or what computes the tokens in front of the scored
 * ones on another device. */
OB_MUST_CHECK ob_status ob_eval_chunk(ob_ctx *c, ob_handover *h, const int32_t *ids, int32_t n_ctx, ob_eval_fn fn, void *arg,
                                      ob_err *err);

#endif
