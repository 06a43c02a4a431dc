/* WordPiece ("bert"): normalise, cut at white space and punctuation, then the longest token first.
 *
 * The reference is Hugging Face's BertNormalizer, BertPreTokenizer and WordPiece. In the file, tokens
 * that start a word carry U+2581 in front and the others have lost their "##".
 */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/alloc.h"
#include "base/math.h"
#include "base/utf8.h"
#include "tok/tok_int.h"

#define SPACE_MARK "\xE2\x96\x81" /* U+2581 */

enum { MAX_WORD_CHARS = 100 }; /* a longer word is unknown, as in the reference */

/* ---- Classes ---------------------------------------------------------------------------------- */

/* VT, FF and U+0085 are control characters here, as in the reference. */
static bool is_space(uint32_t cp)
{
    if (cp == ' ' || cp == '\t' || cp == '\n' || cp == '\r') return true;
    utf8proc_category_t c = cp < 128 ? UTF8PROC_CATEGORY_CN : utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_ZS || c == UTF8PROC_CATEGORY_ZL || c == UTF8PROC_CATEGORY_ZP;
}

/* Removed from text: U+0000, U+FFFD and control, format and private-use characters. */
static bool is_removed(uint32_t cp)
{
    if (cp == 0 || cp == 0xFFFD) return true;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO;
}

/* A word of its own: every visible ASCII character that is no letter or digit, and punctuation. */
static bool is_punctuation(uint32_t cp)
{
    if (cp < 128)
        return cp > ' ' && cp < 127 && !(cp >= '0' && cp <= '9') &&
               !((cp | 32) >= 'a' && (cp | 32) <= 'z');
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

/* Ideographs are words of their own. The sixth block starts at 2B920, not 2B820: so has the
 * reference. */
static bool is_ideograph(uint32_t cp)
{
    return (cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0x3400 && cp <= 0x4DBF) ||
           (cp >= 0x20000 && cp <= 0x2A6DF) || (cp >= 0x2A700 && cp <= 0x2B73F) ||
           (cp >= 0x2B740 && cp <= 0x2B81F) || (cp >= 0x2B920 && cp <= 0x2CEAF) ||
           (cp >= 0xF900 && cp <= 0xFAFF) || (cp >= 0x2F800 && cp <= 0x2FA1F);
}

/* ---- Normalising ------------------------------------------------------------------------------ */

/* Valid UTF-8 without removed characters, white space as ' ', ideographs between spaces. */
static char *clean(const char *text, size_t len, size_t *n)
{
    char *p = ob_malloc(3 * len + 1); /* an ideograph of 3 bytes becomes 5; anything else grows less */
    if (!p) return NULL;
    *n = 0;
    for (size_t i = 0; i < len;) {
        size_t l;
        uint32_t cp = ob_utf8_decode(text + i, len - i, &l);
        if (is_space(cp)) {
            p[(*n)++] = ' ';
        } else if (!is_removed(cp)) {
            bool apart = is_ideograph(cp);
            if (apart) p[(*n)++] = ' ';
            memcpy(p + *n, text + i, l);
            *n += l;
            if (apart) p[(*n)++] = ' ';
        }
        i += l;
    }
    return p;
}

/* Code points of clean text, decomposed (NFD) if accents are to be stripped. NULL: no memory. */
static int32_t *code_points(const ob_tok *t, const char *s, size_t n, size_t *n_cps)
{
    utf8proc_option_t options = t->strip_accents ? UTF8PROC_DECOMPOSE : 0;
    utf8proc_ssize_t want =
        utf8proc_decompose((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, NULL, 0, options);
    if (want < 0) return NULL;
    int32_t *cps = ob_reallocarray(NULL, (size_t)want + 1, sizeof *cps);
    if (!cps) return NULL;
    utf8proc_decompose((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, cps, want, options);
    *n_cps = (size_t)want;
    return cps;
}

/* ---- Words ------------------------------------------------------------------------------------ */

typedef struct word {
    char bytes[3 + 4 * (MAX_WORD_CHARS + 2)]; /* space mark first */
    size_t len;
    int n_chars; /* counts on past the maximum, without bytes */
} word;

static void word_clear(word *w)
{
    memcpy(w->bytes, SPACE_MARK, 3);
    w->len = 3;
    w->n_chars = 0;
}

static void word_add(word *w, uint32_t cp)
{
    if (w->n_chars++ < MAX_WORD_CHARS) w->len += ob_utf8_encode(cp, w->bytes + w->len);
}

static void word_end(const ob_tok *t, word *w, ob_ids *out)
{
    if (w->n_chars == 0) return;
    size_t from = out->n, i = 0;
    bool known = w->n_chars <= MAX_WORD_CHARS;
    while (known && i < w->len) {
        int32_t id = -1;
        size_t end = OB_MIN(w->len, i + t->vocab.max_len);
        for (; end > i; end--) {
            id = ob_vocab_find(&t->vocab, w->bytes + i, end - i);
            if (id >= 0) break;
        }
        known = id >= 0;
        if (known) ob_ids_add(out, id);
        i = end;
    }
    if (!known) {
        out->n = from;
        if (t->unk >= 0) ob_ids_add(out, t->unk);
    }
    word_clear(w);
}

/* One normalised character: white space ends a word, punctuation is one. */
static void take(const ob_tok *t, word *w, uint32_t cp, ob_ids *out)
{
    if (is_space(cp)) {
        word_end(t, w, out);
    } else if (is_punctuation(cp)) {
        word_end(t, w, out);
        word_add(w, cp);
        word_end(t, w, out);
    } else {
        word_add(w, cp);
    }
}

ob_status ob_wpm_encode(const ob_tok *t, const char *text, size_t len, ob_ids *out, ob_err *err)
{
    size_t n, n_cps = 0;
    char *s = clean(text, len, &n);
    int32_t *cps = s ? code_points(t, s, n, &n_cps) : NULL;
    ob_free(s);
    if (!cps) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to encode %zu bytes", len);
    word w;
    word_clear(&w);
    for (size_t i = 0; i < n_cps; i++) {
        uint32_t cp = (uint32_t)cps[i];
        if (t->strip_accents && utf8proc_category(cps[i]) == UTF8PROC_CATEGORY_MN) continue;
        if (t->lowercase && cp == 0x130) { /* the only letter that lower-cases to two */
            take(t, &w, 'i', out);
            cp = 0x307;
        }
        take(t, &w, t->lowercase ? (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp) : cp, out);
    }
    word_end(t, &w, out);
    ob_free(cps);
    return OB_OK;
}
