/* Unigram ("t5"; XLM-RoBERTa, E5): of all ways to cut a word into pieces, the one whose scores (logarithms
 * of probabilities) add up highest (Kudo 2018, arXiv 1804.10959).
 *
 * Text is normalised with NFKC, which is what the character tables of these models spell out; control
 * characters are dropped and runs of white space end a word. A word starts with U+2581. A character that no
 * piece spells costs more than any piece; a run of them is one unknown token.
 */
#include <math.h>
#include <string.h>

#include <utf8proc.h>

#include "base/alloc.h"
#include "base/math.h"
#include "base/utf8.h"
#include "tok/tok_int.h"

#define SPACE_MARK "\xE2\x96\x81" /* U+2581 */
#define UNKNOWN_COST 10.0         /* below the worst piece, as SentencePiece has it */

/* The best way to reach a byte of the word. */
typedef struct step {
    double score;
    uint32_t from; /* where its last piece begins */
    int32_t id;
} step;

static bool is_space(uint32_t cp)
{
    if (cp == ' ' || (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1F) || cp == 0x85 || cp == 0x200B) return true;
    if (cp < 128) return false;
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_ZS || c == UTF8PROC_CATEGORY_ZL || c == UTF8PROC_CATEGORY_ZP;
}

static bool is_dropped(uint32_t cp)
{
    if (cp >= 32 && cp < 127) return false;
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CN;
}

ob_status ob_unigram_load(ob_tok *t, ob_err *err)
{
    double worst = 0;
    for (int32_t id = 0; id < t->n_vocab; id++)
        if (t->types[id] == OB_TOK_NORMAL) worst = OB_MIN(worst, (double)t->scores[id]);
    if (!isfinite(worst)) return ob_err_set(err, OB_E_FORMAT, "tokenizer.ggml.scores holds an infinite value");
    t->unk_score = worst - UNKNOWN_COST;
    return OB_OK;
}

/* Cuts word [len] into pieces, appended to out. steps: room for len + 1. */
static void cut_word(const ob_tok *t, const char *word, size_t len, step *steps, ob_ids *out)
{
    for (size_t i = 0; i <= len; i++) steps[i] = (step){.score = i ? -INFINITY : 0};
    for (size_t i = 0; i < len;) {
        size_t n_char = 0;
        bool found = false;
        const size_t max = OB_MIN(len, i + t->vocab.max_len);
        for (size_t end = i; end < max;) {
            size_t n;
            ob_utf8_decode(word + end, len - end, &n);
            end += n;
            if (!n_char) n_char = n;
            const int32_t id = ob_vocab_find(&t->vocab, word + i, end - i);
            if (id < 0) continue;
            found = found || end == i + n_char;
            const double score = steps[i].score + (double)t->scores[id];
            if (score > steps[end].score) steps[end] = (step){score, (uint32_t)i, id};
        }
        if (!n_char) ob_utf8_decode(word + i, len - i, &n_char);
        if (!found && steps[i].score + t->unk_score > steps[i + n_char].score)
            steps[i + n_char] = (step){steps[i].score + t->unk_score, (uint32_t)i, t->unk};
        i += n_char;
    }
    const size_t first = out->n;
    for (size_t at = len; at > 0; at = steps[at].from) {
        const int32_t id = steps[at].id;
        if (id == t->unk && (id < 0 || (out->n > first && out->data[out->n - 1] == id))) continue;
        ob_ids_add(out, id);
    }
    for (size_t a = first, b = out->n; a + 1 < b; a++) { /* they came last piece first */
        const int32_t id = out->data[a];
        out->data[a] = out->data[--b];
        out->data[b] = id;
    }
}

ob_status ob_unigram_encode(const ob_tok *t, const char *text, size_t len, ob_ids *out, ob_err *err)
{
    ob_status s = OB_OK;
    char *word = NULL;
    step *steps = NULL;
    int32_t *cps = NULL;
    /* whole characters only, U+FFFD for the rest: decomposing must not fail */
    char *clean = ob_malloc(3 * len + 1);
    if (!clean) goto no_memory;
    size_t n_clean = 0;
    for (size_t i = 0, n; i < len; i += n) {
        const uint32_t cp = ob_utf8_decode(text + i, len - i, &n);
        n_clean += ob_utf8_encode(cp, clean + n_clean);
    }
    const utf8proc_option_t options = UTF8PROC_COMPAT | UTF8PROC_COMPOSE | UTF8PROC_STABLE;
    utf8proc_ssize_t n_cps =
        utf8proc_decompose((const utf8proc_uint8_t *)clean, (utf8proc_ssize_t)n_clean, NULL, 0, options);
    if (n_cps < 0) goto no_memory;
    cps = ob_reallocarray(NULL, (size_t)n_cps + 1, sizeof *cps);
    if (!cps) goto no_memory;
    utf8proc_decompose((const utf8proc_uint8_t *)clean, (utf8proc_ssize_t)n_clean, cps, n_cps, options);
    n_cps = utf8proc_normalize_utf32(cps, n_cps, options);
    word = ob_reallocarray(NULL, (size_t)n_cps + 2, 4);
    steps = ob_reallocarray(NULL, (size_t)n_cps + 2, 4 * sizeof *steps);
    if (n_cps < 0 || !word || !steps) goto no_memory;
    memcpy(word, SPACE_MARK, 3);
    size_t n = 3;
    for (utf8proc_ssize_t i = 0; i <= n_cps; i++) {
        const uint32_t cp = i < n_cps ? (uint32_t)cps[i] : ' ';
        if (!is_space(cp)) {
            if (!is_dropped(cp)) n += ob_utf8_encode(cp, word + n);
        } else if (n > 3) {
            cut_word(t, word, n, steps, out);
            n = 3;
        }
    }
    goto out;
no_memory:
    s = ob_err_set(err, OB_E_NO_MEMORY, "no memory to encode %zu bytes", len);
out:
    ob_free(clean);
    ob_free(cps);
    ob_free(word);
    ob_free(steps);
    return s;
}
