/* textkit.h: chat templates and constrained output, as the C side of this project sees them (the
 * library is in Rust).
 *
 * Owns: compiling and rendering one Jinja template the way Python's `transformers` does; masks of
 * tokens under a grammar. Knows
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

/* --- constrained output ------------------------------------------------------------------------
 * Which tokens may come next under a JSON schema, a grammar or a regular expression. */

/* The tokens of one tokenizer, shared by all its matchers. Immutable: matchers may be made from any
 * number of threads at once. */
typedef struct tk_vocab tk_vocab;

/* tokens[n]: each token's bytes (any, not only UTF-8); data NULL: no text has this token. `eos` ends
 * a text. Takes some tenths of a second for 150,000 tokens. */
tk_status tk_vocab_new(const tk_str *tokens, size_t n, uint32_t eos, tk_vocab **out, tk_error *error);
void tk_vocab_free(tk_vocab *v); /* NULL is fine; after all its matchers */

typedef enum tk_grammar_kind {
    TK_JSON_SCHEMA = 0, /* JSON text of the schema */
    TK_LARK = 1,        /* Lark, in llguidance's dialect */
    TK_REGEX = 2        /* Rust's syntax; the whole text must match */
} tk_grammar_kind;

/* One text's place in a grammar; one thread at a time. */
typedef struct tk_matcher tk_matcher;

/* TK_E_SYNTAX: the grammar is wrong, too large, or has parts that cannot be enforced. */
tk_status tk_matcher_new(const tk_vocab *v, tk_grammar_kind kind, tk_str grammar, tk_matcher **out,
                         tk_error *error);
void tk_matcher_free(tk_matcher *m); /* NULL is fine */
/* words[n_words], 32 tokens a word: bit i % 32 of word i / 32 says that token i may come next. Only
 * `eos` when the text is complete. */
tk_status tk_matcher_mask(tk_matcher *m, uint32_t *words, size_t n_words, tk_error *error);
tk_status tk_matcher_accept(tk_matcher *m, uint32_t token, tk_error *error);
tk_status tk_matcher_accept_bytes(tk_matcher *m, tk_str bytes, tk_error *error);
/* The text is complete: nothing but `eos` can come. */
bool tk_matcher_stopped(const tk_matcher *m);

#ifdef __cplusplus
}
#endif
#endif
