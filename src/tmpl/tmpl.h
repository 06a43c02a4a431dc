/* tmpl/tmpl.h: chat templates, from a Jinja text to a prompt.
 *
 * Owns: compiling and rendering a template as Python's `transformers` does (byte for byte), what a
 * template can do (found by rendering probes), and the change from OpenAI's `messages` to what
 * templates expect. Knows nothing of tokens, models or HTTP.
 *
 * A template is a stranger's program: source, steps, output and depth are bounded (base/limits.h),
 * and none of its failures is more than an error of the request.
 */
#ifndef OB_TMPL_TMPL_H
#define OB_TMPL_TMPL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/* A compiled template. Immutable after ob_tmpl_new: any number of threads may render at once. */
typedef struct ob_tmpl ob_tmpl;

/* What a template does with the parts of a conversation. */
typedef struct ob_tmpl_caps {
    bool string_content;    /* content may be a string (all but a few templates) */
    bool part_content;      /* content may be [{"type":"text","text":...}] */
    bool system_role;       /* the text of a system message reaches the prompt */
    bool developer_role;    /* the template names that role itself */
    bool tools;             /* the list of tools reaches the prompt */
    bool tool_calls;        /* calls in an assistant's message reach the prompt */
    bool object_arguments;  /* ... with arguments as an object (the rule in transformers) */
    bool string_arguments;  /* ... with arguments as a JSON text */
    bool absent_content;    /* a message with tool calls may lack content */
} ob_tmpl_caps;

/* Compile `len` bytes of Jinja and probe what they can do. *out is *taken* by the caller.
 * Errors: OB_E_FORMAT (does not parse; the text has the line), OB_E_LIMIT, OB_E_NO_MEMORY. */
OB_MUST_CHECK ob_status ob_tmpl_new(const char *source, size_t len, ob_tmpl **out, ob_err *err);
void ob_tmpl_free(ob_tmpl *t); /* NULL is fine */

const ob_tmpl_caps *ob_tmpl_get_caps(const ob_tmpl *t); /* *borrowed* from t */
const char *ob_tmpl_source(const ob_tmpl *t);           /* *borrowed*, NUL-terminated */

/* For a model that comes without a template: the architecture's own where it has one, else ChatML. Static. */
const char *ob_tmpl_builtin(const char *arch);

/* One rendering. JSON is passed as text, so that the order of keys is kept. All strings are
 * *borrowed* UTF-8. */
typedef struct ob_tmpl_args {
    const char *messages_json; /* array, from ob_tmpl_messages */
    size_t messages_len;       /* 0: NUL-terminated; the same for the other lengths */
    const char *tools_json;    /* array as the request has it, or NULL */
    size_t tools_len;
    const char *extra_json;    /* object: chat_template_kwargs, or NULL */
    size_t extra_len;
    const char *bos_token, *eos_token; /* text of the tokens, or NULL */
    int64_t now_unix;                  /* seconds, for strftime_now; 0: the system's clock */
    bool add_generation_prompt;
} ob_tmpl_args;

/* Append the prompt to *out; on an error *out is as it was before.
 * Errors: OB_E_INVALID (the template raised: its own text; or it failed on these messages: with the
 * line; or a JSON text is wrong), OB_E_LIMIT, OB_E_NO_MEMORY. */
OB_MUST_CHECK ob_status ob_tmpl_render(const ob_tmpl *t, const ob_tmpl_args *args, ob_buf *out,
                                       ob_err *err);

/* `type` of a content part that stands for a picture: its text is a mark, which the caller finds again in what was
 * rendered. It is treated as text, but no line feed is put beside it. */
#define OB_TMPL_PICTURE_MARK "picture_mark"

/* Append to *out, as JSON text, OpenAI's `messages` in the form that this template expects:
 *   - keys with null are dropped; where the template needs content, "" stands in
 *   - content parts of text become one string (joined by a line feed), or stay parts, if the template
 *     reads them; a template that reads only parts gets parts
 *   - role `developer` becomes `system`, unless the template knows it; a system text that the
 *     template would refuse or drop is put in front of the next user message
 *   - arguments of tool calls become objects (or JSON text), as the template wants them. Arguments
 *     that are not JSON stay a string; if the template cannot take one, they become
 *     {"arguments": text}. Nothing in an old message makes a conversation impossible to go on with
 *   - reasoning is found under `reasoning_content`, `thinking` or `reasoning`, and given under the
 *     first two
 * Errors name the message: OB_E_INVALID (wrong shape), OB_E_UNSUPPORTED (picture, audio, file),
 * OB_E_LIMIT (more than OB_MAX_MESSAGES), OB_E_NO_MEMORY. *out is then as it was before. */
OB_MUST_CHECK ob_status ob_tmpl_messages(const ob_tmpl *t, const json_t *messages, ob_buf *out,
                                         ob_err *err);

#endif
