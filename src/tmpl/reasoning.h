/* tmpl/reasoning.h: split generated text into reasoning and answer while it streams.
 *
 * Owns: the tags models put around their reasoning, and one splitter per stream. Pure: bytes in,
 * bytes out, no allocation of its own.
 *
 * Nothing but the tags and the white space right beside them (at most OB_REASONING_MAX_SPACE bytes
 * in one place) is left out; every other byte comes out once, in order. What may still become a tag
 * is held back until it is decided: at most OB_REASONING_MAX_HELD bytes.
 */
#ifndef OB_TMPL_REASONING_H
#define OB_TMPL_REASONING_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

#define OB_REASONING_MAX_SPACE 64
#define OB_REASONING_MAX_HELD 128

typedef enum ob_reasoning_format {
    OB_REASONING_NONE, /* all text is content, tags included */
    OB_REASONING_AUTO, /* tags are found and taken out ("auto", "deepseek") */
} ob_reasoning_format;

/* The two tags; static strings. */
typedef struct ob_reasoning_tags {
    const char *open, *close;
} ob_reasoning_tags;

/* Owner: the stream it splits. Fields are private. */
typedef struct ob_reasoning {
    const ob_reasoning_tags *tags;
    int state;
    size_t held_len;
    size_t n_space; /* white space dropped in this place so far */
    char held[OB_REASONING_MAX_HELD];
} ob_reasoning;

/* "none", "auto", "deepseek"; false for another name. */
bool ob_reasoning_format_parse(const char *name, ob_reasoning_format *out);

/* The tags that a chat template names; <think> and </think> if it names none. Never NULL. */
const ob_reasoning_tags *ob_reasoning_tags_of(const char *template_source);

/* Whether a rendered prompt ends inside reasoning: its last non-blank text is the opening tag, so
 * that the model's first byte is reasoning already. */
bool ob_reasoning_prompt_opens(const ob_reasoning_tags *tags, const char *prompt, size_t len);

/* `tags`: *borrowed*, from ob_reasoning_tags_of. `opened`: from ob_reasoning_prompt_opens. */
void ob_reasoning_init(ob_reasoning *r, ob_reasoning_format format, const ob_reasoning_tags *tags,
                       bool opened);
/* Append what is decided to the two buffers (their ob_buf_status is the only error). Cuts of the
 * stream may be anywhere, also inside a UTF-8 character. */
void ob_reasoning_feed(ob_reasoning *r, const char *text, size_t len, ob_buf *reasoning,
                       ob_buf *content);
/* The stream has ended: what was held back comes out. */
void ob_reasoning_finish(ob_reasoning *r, ob_buf *reasoning, ob_buf *content);
/* True while the text belongs to the reasoning (a grammar waits for its end). */
bool ob_reasoning_active(const ob_reasoning *r);

#endif
