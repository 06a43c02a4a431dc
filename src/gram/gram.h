/* gram/gram.h: output under a grammar: which tokens may come next.
 *
 * Owns: the tokens of a tokenizer as the matcher wants them, and one matcher per reply. The work is llguidance's, behind
 * textkit.h. Knows nothing of models, templates or HTTP.
 *
 * A grammar is a stranger's program: its size and the work of a step are bounded, and what of it cannot be enforced is an
 * error (OB_E_INVALID with the reason), never ignored.
 */
#ifndef OB_GRAM_GRAM_H
#define OB_GRAM_GRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "tok/tok.h"

/* Shared by all grammars over one tokenizer; immutable, usable from any number of threads. Takes some tenths of a
 * second for 150,000 tokens. `tok` is *borrowed*. */
typedef struct ob_gram_vocab ob_gram_vocab;
OB_MUST_CHECK ob_status ob_gram_vocab_new(const ob_tok *tok, ob_gram_vocab **out, ob_err *err);
void ob_gram_vocab_free(ob_gram_vocab *v); /* NULL is fine; after all its grammars */

typedef enum ob_gram_kind {
    OB_GRAM_JSON_SCHEMA, /* text: the schema as JSON */
    OB_GRAM_LARK,        /* text: a grammar in llguidance's Lark */
    OB_GRAM_REGEX,       /* text: a regular expression that the whole reply matches */
} ob_gram_kind;

typedef struct ob_gram_spec {
    ob_gram_kind kind;
    const char *text; /* *borrowed* by ob_gram_new */
    size_t len;
    const char *after; /* NULL: from the first token. Else the reply is free until it has said this (a closing </think>, an
                          opening <tool_call>), control tokens by their names; the grammar begins right behind it */
    bool again;        /* when the grammar's text is complete the reply is free again, until `after` comes once more */
} ob_gram_spec;

/* One reply's place in a grammar. One thread at a time. */
typedef struct ob_gram ob_gram;
OB_MUST_CHECK ob_status ob_gram_new(const ob_gram_vocab *v, const ob_gram_spec *spec, ob_gram **out, ob_err *err);
void ob_gram_free(ob_gram *g); /* NULL is fine */

/* Does it forbid anything now? False while it waits for `after`. */
bool ob_gram_active(const ob_gram *g);
/* logits [n]: those of tokens that may not come next become minus infinity. Where the text may end every token that ends a
 * generation stays. Only while active. */
OB_MUST_CHECK ob_status ob_gram_mask(ob_gram *g, float *logits, int32_t n, ob_err *err);
/* This token was chosen. */
OB_MUST_CHECK ob_status ob_gram_accept(ob_gram *g, int32_t id, ob_err *err);

#endif
