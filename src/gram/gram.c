/* gram.c: a reply waits, is under the grammar, or is done with it.
 *
 *   waiting --(`after` has been said)--> active --(complete, `again`)--> waiting
 *                                               --(complete)----------> only an end token may come
 */
#include "gram/gram.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "textkit.h"

#define MAX_AFTER 256

struct ob_gram_vocab {
    const ob_tok *tok;
    tk_vocab *tk;
    int32_t n, end; /* `end`: the id that the matcher knows as the end of a text */
};

struct ob_gram {
    const ob_gram_vocab *vocab;
    tk_matcher *matcher;       /* NULL while waiting */
    tk_grammar_kind kind;
    char *text;                /* kept where a matcher is made again */
    size_t len;
    bool again;
    char after[MAX_AFTER];
    size_t n_after;
    char tail[2 * MAX_AFTER];  /* the end of what was said while waiting */
    size_t n_tail;
    size_t n_words;
    uint32_t *mask;            /* [n_words] */
};

static ob_status failed(ob_err *err, tk_status s, const tk_error *e)
{
    if (s == TK_OK) return OB_OK;
    const ob_status code = s == TK_E_PANIC       ? OB_E_INTERNAL
                           : s == TK_E_NO_MEMORY ? OB_E_NO_MEMORY
                                                 : OB_E_INVALID;
    return ob_err_set(err, code, "grammar: %s", e->text);
}

ob_status ob_gram_vocab_new(const ob_tok *tok, ob_gram_vocab **out, ob_err *err)
{
    *out = NULL;
    const int32_t n = ob_tok_n_vocab(tok);
    size_t n_eog;
    const int32_t *eog = ob_tok_eog(tok, &n_eog);
    const int32_t end = ob_tok_eos(tok) >= 0 ? ob_tok_eos(tok) : n_eog ? eog[0] : -1;
    if (end < 0) return ob_err_set(err, OB_E_UNSUPPORTED, "grammar: this vocabulary has no end token");
    ob_gram_vocab *v = ob_calloc(1, sizeof *v);
    tk_str *tokens = ob_calloc((size_t)n, sizeof *tokens);
    ob_status s = v && tokens ? OB_OK : ob_err_set(err, OB_E_NO_MEMORY, "no memory for a grammar's tokens");
    if (s == OB_OK) {
        for (int32_t i = 0; i < n; i++) {
            const ob_tok_type type = ob_tok_type_of(tok, i);
            const bool is_text = type == OB_TOK_NORMAL || type == OB_TOK_BYTE || type == OB_TOK_USER_DEFINED;
            size_t len;
            const char *piece = ob_tok_piece(tok, i, &len);
            if (is_text && len && !ob_tok_is_eog(tok, i)) tokens[i] = (tk_str){piece, len};
        }
        tk_error e;
        *v = (ob_gram_vocab){.tok = tok, .n = n, .end = end};
        s = failed(err, tk_vocab_new(tokens, (size_t)n, (uint32_t)end, &v->tk, &e), &e);
    }
    ob_free(tokens);
    if (s != OB_OK) ob_free(v);
    else *out = v;
    return s;
}

void ob_gram_vocab_free(ob_gram_vocab *v)
{
    if (!v) return;
    tk_vocab_free(v->tk);
    ob_free(v);
}

static ob_status begin(ob_gram *g, ob_err *err)
{
    tk_error e;
    tk_matcher_free(g->matcher);
    g->matcher = NULL;
    return failed(err, tk_matcher_new(g->vocab->tk, g->kind, (tk_str){g->text, g->len}, &g->matcher, &e), &e);
}

ob_status ob_gram_new(const ob_gram_vocab *v, const ob_gram_spec *spec, ob_gram **out, ob_err *err)
{
    static const tk_grammar_kind k_kinds[] = {TK_JSON_SCHEMA, TK_LARK, TK_REGEX};
    *out = NULL;
    ob_gram *g = ob_calloc(1, sizeof *g);
    if (!g) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a grammar");
    *g = (ob_gram){.vocab = v, .kind = k_kinds[spec->kind], .len = spec->len, .again = spec->again,
                   .n_after = spec->after ? strlen(spec->after) : 0, .n_words = ((size_t)v->n + 31) / 32};
    ob_status s = OB_OK;
    if (g->n_after >= MAX_AFTER) {
        s = ob_err_set(err, OB_E_LIMIT, "grammar: what comes before it has %zu bytes; at most %d may", g->n_after, MAX_AFTER - 1);
    } else {
        if (g->n_after) memcpy(g->after, spec->after, g->n_after);
        g->text = ob_malloc(spec->len + 1);
        g->mask = ob_calloc(g->n_words, sizeof *g->mask);
        if (!g->text || !g->mask) s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for a grammar");
    }
    if (s == OB_OK) {
        memcpy(g->text, spec->text, spec->len);
        s = begin(g, err); /* also where it waits: a wrong grammar is refused now */
    }
    if (s == OB_OK && g->n_after) {
        tk_matcher_free(g->matcher);
        g->matcher = NULL;
    }
    if (s != OB_OK) ob_gram_free(g);
    else *out = g;
    return s;
}

void ob_gram_free(ob_gram *g)
{
    if (!g) return;
    tk_matcher_free(g->matcher);
    ob_free(g->text);
    ob_free(g->mask);
    ob_free(g);
}

bool ob_gram_active(const ob_gram *g) { return g->matcher != NULL; }

ob_status ob_gram_mask(ob_gram *g, float *logits, int32_t n, ob_err *err)
{
    const ob_gram_vocab *v = g->vocab;
    tk_error e;
    OB_TRY(failed(err, tk_matcher_mask(g->matcher, g->mask, g->n_words, &e), &e));
    size_t n_eog;
    const int32_t *eog = ob_tok_eog(v->tok, &n_eog);
    if (v->n % 32) g->mask[g->n_words - 1] &= (1u << (v->n % 32)) - 1; /* logits may be more than tokens */
    if (g->mask[v->end / 32] >> (v->end % 32) & 1)
        for (size_t i = 0; i < n_eog; i++) g->mask[eog[i] / 32] |= 1u << (eog[i] % 32);
    for (int32_t i = 0; i < n; i += 32) { /* words that allow all are common in strings, and none in numbers */
        const uint32_t word = i < v->n ? g->mask[i / 32] : 0;
        for (int32_t k = i; word != UINT32_MAX && k < OB_MIN(i + 32, n); k++)
            if (!(word >> (k - i) & 1)) logits[k] = -INFINITY;
    }
    return OB_OK;
}

/* Keep the last bytes that may still be part of `after`. */
static void push_tail(ob_gram *g, const char *s, size_t len)
{
    if (len > sizeof g->tail / 2) s += len - sizeof g->tail / 2, len = sizeof g->tail / 2;
    if (g->n_tail + len > sizeof g->tail) {
        const size_t keep = sizeof g->tail / 2;
        memmove(g->tail, g->tail + g->n_tail - keep, keep);
        g->n_tail = keep;
    }
    memcpy(g->tail + g->n_tail, s, len);
    g->n_tail += len;
}

static ob_status wait(ob_gram *g, int32_t id, ob_err *err)
{
    size_t len;
    const char *piece = ob_tok_piece(g->vocab->tok, id, &len);
    push_tail(g, piece, len);
    if (g->n_tail < g->n_after) return OB_OK;
    size_t at = 0;
    while (at + g->n_after <= g->n_tail && memcmp(g->tail + at, g->after, g->n_after) != 0) at++;
    if (at + g->n_after > g->n_tail) return OB_OK;
    const size_t rest = at + g->n_after; /* the token may have said more than `after` */
    OB_TRY(begin(g, err));
    tk_error e;
    if (rest < g->n_tail) {
        tk_status s = tk_matcher_accept_bytes(g->matcher, (tk_str){g->tail + rest, g->n_tail - rest}, &e);
        if (s != TK_OK) OB_TRY(begin(g, err)); /* what it said already does not fit: begin behind it */
    }
    g->n_tail = 0;
    return OB_OK;
}

ob_status ob_gram_accept(ob_gram *g, int32_t id, ob_err *err)
{
    if (id < 0 || id >= g->vocab->n) return OB_OK;
    if (!g->matcher) return wait(g, id, err);
    if (ob_tok_is_eog(g->vocab->tok, id)) return OB_OK; /* the reply ends here */
    tk_error e;
    OB_TRY(failed(err, tk_matcher_accept(g->matcher, (uint32_t)id, &e), &e));
    if (g->again && g->n_after && tk_matcher_stopped(g->matcher)) {
        tk_matcher_free(g->matcher);
        g->matcher = NULL;
    }
    return OB_OK;
}
