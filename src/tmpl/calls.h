/* tmpl/calls.h: tool calls in generated text: each family's syntax, a splitter, and the grammar that makes it so.
 *
 * Owns: the styles in which models write calls, taking them out of a stream of text, and a grammar per style. Knows nothing of
 * tokens, models or HTTP.
 *
 *   style          text
 *   json-tags      <tool_call>{"name": "f", "arguments": {…}}</tool_call>                          Qwen2.5, Qwen3, Hermes
 *   function-tags  <tool_call><function=f><parameter=p>v</parameter></function></tool_call>       Qwen3-Coder, Qwen3.5, 3.6
 *   arg-tags       <tool_call>f<arg_key>p</arg_key><arg_value>v</arg_value></tool_call>           GLM-4.5 to 4.7
 *   param-tags     <function name="f"><param name="p">v</param></function>                        MiniCPM5
 *   dsml           <｜DSML｜tool_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="p" string="true">v</｜DSML｜parameter>
 *                  </｜DSML｜invoke></｜DSML｜tool_calls>                                           DeepSeek V4
 *   json           {"name": "f", "parameters": {…}} as the whole reply                            Llama 3
 *
 * What does not parse as a call comes out as text, byte for byte: nothing is lost.
 */
#ifndef OB_TMPL_CALLS_H
#define OB_TMPL_CALLS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"

typedef struct ob_call_style ob_call_style; /* static */

/* The style that a chat template asks for; NULL when it knows no tools. */
const ob_call_style *ob_call_style_of(const char *template_source);
const char *ob_call_style_name(const ob_call_style *s);  /* as in the table above */
/* Texts with which a call begins and ends; "" where the whole reply is the call. */
const char *ob_call_style_open(const ob_call_style *s);
const char *ob_call_style_close(const ob_call_style *s);

/* A complete call: name and arguments (a JSON object as text), *borrowed* for the call. */
typedef void (*ob_call_fn)(void *arg, const char *name, const char *arguments, size_t len);

/* One stream's splitter. */
typedef struct ob_calls {
    const ob_call_style *style;
    const json_t *tools; /* *borrowed*: as the request has them, for the types of arguments */
    ob_call_fn fn;
    void *arg;
    ob_buf held;         /* may still become, or is part of, a call */
    bool inside, began;  /* in a call; something else than white space has come */
    int n;               /* calls so far */
} ob_calls;

void ob_calls_init(ob_calls *c, const ob_call_style *style, const json_t *tools, size_t max_bytes, ob_call_fn fn, void *arg);
void ob_calls_deinit(ob_calls *c);
/* Text that is decided goes to *content; fn hears of each call as it is complete. White space between text and a call, and
 * between calls, is dropped. Cuts may be anywhere. */
void ob_calls_feed(ob_calls *c, const char *text, size_t len, ob_buf *content);
/* The stream has ended: an unclosed call is one if it parses, else text. */
void ob_calls_finish(ob_calls *c, ob_buf *content);

/* Append a grammar (llguidance's Lark) of calls to `tools` in this style. only: the one function that may be called, or NULL;
 * many: more than one call may follow; opened: the text begins behind ob_call_style_open. `tag` appends the grammar's term for
 * a tag ("text" or <[token id]>, or both in turn). The arguments of json styles follow their schemas; of the others the name does. */
OB_MUST_CHECK ob_status ob_calls_grammar(const ob_call_style *s, const json_t *tools, const char *only, bool many, bool opened,
                                         void (*tag)(void *arg, const char *text, ob_buf *out), void *arg, ob_buf *out,
                                         ob_err *err);

#endif
