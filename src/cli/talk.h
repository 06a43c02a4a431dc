/* cli/talk.h: one conversation with a loaded model, for `1bit run` and `1bit chat`. Main thread. */
#ifndef OB_CLI_TALK_H
#define OB_CLI_TALK_H

#include <jansson.h>

#include "cli/load.h"
#include "tmpl/tmpl.h"

typedef struct ob_talk {
    ob_cli_load load;
    ob_engine *engine;
    ob_engine_info info;
    ob_vision *vision;   /* NULL without --mmproj */
    ob_draft *pictures;  /* [n_pictures] the files of --image; each has its mark in the prompt */
    size_t n_pictures;
    ob_tmpl *tmpl;       /* NULL: the model has no chat template */
    bool own_template;   /* false: ChatML stands in */
    ob_request_params params; /* what the options say; prompt is filled in by ob_talk_generate */
} ob_talk;

typedef struct ob_talk_result {
    ob_buf text;         /* all of the reply */
    ob_finish finish;
    ob_timings timings;
    int output_errno;    /* not 0: stdout could not be written, and the reply was stopped */
} ob_talk_result;

/* Load the model and read the sampling options. deinit is fine after a failure. */
OB_MUST_CHECK ob_status ob_talk_init(ob_talk *t, const ob_args *a, ob_err *err);
void ob_talk_deinit(ob_talk *t);

/* In the text of a prompt, this, a number and '>' stand for that one of the pictures. A command's own user writes
 * the prompt, so the mark need not be secret. */
#define OB_TALK_MARK "<picture of --image "
/* Read the files of --image; OB_E_INVALID without --mmproj. */
OB_MUST_CHECK ob_status ob_talk_read_pictures(ob_talk *t, const ob_args *a, ob_err *err);

/* Append the prompt of these messages (OpenAI's form) to *out. */
OB_MUST_CHECK ob_status ob_talk_render(const ob_talk *t, const json_t *messages, ob_buf *out, ob_err *err);

/* Run a prompt text; `echo` streams the reply to stdout as it comes. Ctrl-C stops it (FINISH_CANCELLED)
 * and keeps what came. r->text is initialised here and freed by the caller with ob_buf_deinit. */
OB_MUST_CHECK ob_status ob_talk_generate(ob_talk *t, const ob_buf *prompt, bool echo, ob_talk_result *r,
                                         ob_err *err);

/* "48 tokens, 120.3 tok/s; prompt 22 tokens (16 cached), 310.0 tok/s"; without speeds on an emulated device */
void ob_talk_speed(const ob_talk *t, const ob_timings *times, char *out, size_t cap);

#endif
