/* cli/against.h: the greedy text of a model on one device held against another's. */
#ifndef OB_CLI_AGAINST_H
#define OB_CLI_AGAINST_H

#include "base/buf.h"
#include "engine/ctx.h"

/* Where the best two tokens of the reference are nearer than this, either is right: rounding decides. */
#define OB_AGAINST_TIE 0.02f

/* Loads p->model_path on `reference` and on p->device, and walks both along the reference's greedy text, n_tok tokens
 * behind each of a few prompts. At each step the best tokens must be the same, or the reference's best two nearer than
 * OB_AGAINST_TIE. Writes a line (JSON: an object) a prompt to `o`; *n_wrong: prompts that differ by more. */
OB_MUST_CHECK ob_status ob_cli_check_against(const ob_engine_params *p, const char *reference, int32_t n_tok, bool json,
                                             ob_buf *o, int *n_wrong, ob_err *err);

#endif
