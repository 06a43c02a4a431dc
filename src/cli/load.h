/* cli/load.h: from -m and the engine options of a command to a loaded model. */
#ifndef OB_CLI_LOAD_H
#define OB_CLI_LOAD_H

#include "cli/cli.h"
#include "cli/progress.h"
#include "engine/ctx.h"
#include "engine/encoder.h"
#include "engine/handover.h"
#include "engine/vision.h"

/* What the options of the command say, with the model's path (*taken* into *path) and progress on
 * stderr. --exact also makes the caches f32, unless --ctk or --ctv were given. */
typedef struct ob_cli_load {
    ob_engine_params params;
    ob_progress progress;
    char *path;
    bool encoders_too;   /* false: ob_cli_load_ctx refuses a model that has no logits */
} ob_cli_load;

/* With --verify: the tensors of a 1BP package against the sums beside it (PATH.sums). */
OB_MUST_CHECK ob_status ob_cli_verify(const ob_args *a, const char *path, ob_err *err);
OB_MUST_CHECK ob_status ob_cli_load_init(ob_cli_load *l, const ob_args *a, ob_err *err);
void ob_cli_load_deinit(ob_cli_load *l); /* params.model_path is invalid afterwards */

/* ob_ctx_new / ob_engine_new / ob_encoder_new with the progress line wiped behind it. */
OB_MUST_CHECK ob_status ob_cli_load_ctx(ob_cli_load *l, ob_ctx **out, ob_err *err);
/* The prefill device of --prefill-device beside a context; *out is NULL without that option. */
OB_MUST_CHECK ob_status ob_cli_load_handover(ob_cli_load *l, const ob_ctx *c, ob_handover **out, ob_err *err);
OB_MUST_CHECK ob_status ob_cli_load_engine(ob_cli_load *l, ob_engine **out, ob_err *err);
/* With --mmproj also the vision tower; else *vision is NULL. */
OB_MUST_CHECK ob_status ob_cli_load_engine_and_tower(ob_cli_load *l, const ob_args *a, ob_engine **out,
                                                     ob_vision **vision, ob_err *err);
/* --chat-template-file: its text into *out (left empty without that option). */
OB_MUST_CHECK ob_status ob_cli_chat_template(const ob_args *a, ob_buf *out, ob_err *err);
OB_MUST_CHECK ob_status ob_cli_load_encoder(ob_cli_load *l, ob_encoder **out, ob_err *err);

#endif
