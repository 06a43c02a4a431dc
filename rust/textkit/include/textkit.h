/* textkit.h: chat templates, as the C side of this project sees them (the library is in Rust).
 *
 * Owns: compiling and rendering one Jinja template the way Python's `transformers` does. Knows
 * nothing of models, tokens or requests. No function here aborts, prints or unwinds into C; a panic
 * inside becomes TK_E_PANIC. Memory of one side is never freed by the other.
 *
 * Work that a stranger's template can ask for is bounded by tk_limits: source bytes, steps, bytes
 * of output and (fixed) recursion. Rendering runs on a helper thread whose stack is sized so that
 * the steps run out before the stack does.
 */
#ifndef TEXTKIT_H
#define TEXTKIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tk_status {
    TK_OK = 0,
    TK_E_SYNTAX = 1,    /* the template does not parse; error.line says where */
    TK_E_RENDER = 2,    /* the template failed on these variables */
    TK_E_RAISED = 3,    /* the template called raise_exception(text); error.text is that text */
    TK_E_LIMIT = 4,     /* a limit was passed: source, steps, output or recursion */
    TK_E_INPUT = 5,     /* a JSON text or a string of the caller is not valid */
    TK_E_NO_MEMORY = 6, /* no memory, or no thread to render on */
    TK_E_PANIC = 7      /* a bug on the Rust side, caught */
} tk_status;

typedef struct tk_error {
    uint32_t line;  /* 1-based line of the template, 0 if not known */
    char text[480]; /* NUL-terminated UTF-8, cut at a whole character */
} tk_error;

/* Borrowed UTF-8 bytes; data == NULL means "not given". */
typedef struct tk_str {
    const char *data;
    size_t len;
} tk_str;

typedef struct tk_limits {
    size_t max_source_bytes;
    size_t max_output_bytes;
    uint64_t max_steps; /* about one an instruction and one each 64 bytes handled */
} tk_limits;

/* What a template sees. `extra` is a JSON object whose keys become variables; the named fields win
 * over it. `tools` not given is the variable `tools` = none, as transformers passes it. A token not
 * given stays undefined. */
typedef struct tk_render_args {
    tk_str messages; /* JSON array */
    tk_str tools;    /* JSON array */
    tk_str extra;    /* JSON object */
    tk_str bos_token, eos_token;
    int64_t now_unix; /* seconds, for strftime_now in local time */
    bool add_generation_prompt;
} tk_render_args;

/* Immutable after tk_template_new: render from any number of threads at once. */
typedef struct tk_template tk_template;

/* *out is taken by the caller on TK_OK (free with tk_template_free) and NULL otherwise. */
tk_status tk_template_new(tk_str source, const tk_limits *limits, tk_template **out,
                          tk_error *error);
void tk_template_free(tk_template *t); /* NULL is fine */

/* Calls sink(arg, data, len) exactly once, on the calling thread, when rendering worked; never
 * otherwise. `data` is borrowed for the call. */
tk_status tk_template_render(const tk_template *t, const tk_render_args *args,
                             void (*sink)(void *arg, const char *data, size_t len), void *arg,
                             tk_error *error);

#ifdef __cplusplus
}
#endif
#endif
