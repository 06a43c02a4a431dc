/* Pre-tokenisers: cut text into the words that byte-pair encoding may not cross.
 *
 * A pre-tokeniser is a list of steps. Each step cuts every piece of the step before; a stretch where
 * a step matches nothing stays one piece (Hugging Face: Split, behaviour "isolated"). A piece is the
 * whole text to the next step: lookahead does not see past its end.
 *
 * The common patterns have hand-written matchers here; the rest go through PCRE2 (regex.c). The
 * pattern above each matcher is its definition, and tests compare the two on random text.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "tok/pre.h"

/* ---- Character classes ------------------------------------------------------------------------ */

enum { L = 1, N = 2, M = 4, P = 8, S = 16, WS = 32, NL = 64 /* \r or \n */ };

static unsigned class_of_cp(uint32_t cp)
{
    if (cp == 0x85 || cp == 0xA0) return WS;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM: case UTF8PROC_CATEGORY_LO: return L;
    case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_NO: return N;
    case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME: return M;
    case UTF8PROC_CATEGORY_PC: case UTF8PROC_CATEGORY_PD: case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE: case UTF8PROC_CATEGORY_PI: case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: return P;
    case UTF8PROC_CATEGORY_SM: case UTF8PROC_CATEGORY_SC: case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO: return S;
    case UTF8PROC_CATEGORY_ZS: case UTF8PROC_CATEGORY_ZL: case UTF8PROC_CATEGORY_ZP: return WS;
    default: return 0; /* control, format, private use, unassigned */
    }
}

/* The first 128 characters, so that ASCII text needs no decoding. */
static const uint8_t ascii_class[128] = {
    ['\t'] = WS, ['\n'] = WS | NL, ['\v'] = WS, ['\f'] = WS, ['\r'] = WS | NL, [' '] = WS,
    ['!'] = P, ['"'] = P, ['#'] = P, ['$'] = S, ['%'] = P, ['&'] = P, ['\''] = P, ['('] = P,
    [')'] = P, ['*'] = P, ['+'] = S, [','] = P, ['-'] = P, ['.'] = P, ['/'] = P,
    ['0'] = N, ['1'] = N, ['2'] = N, ['3'] = N, ['4'] = N, ['5'] = N, ['6'] = N, ['7'] = N,
    ['8'] = N, ['9'] = N, [':'] = P, [';'] = P, ['<'] = S, ['='] = S, ['>'] = S, ['?'] = P,
    ['@'] = P, ['A'] = L, ['B'] = L, ['C'] = L, ['D'] = L, ['E'] = L, ['F'] = L, ['G'] = L,
    ['H'] = L, ['I'] = L, ['J'] = L, ['K'] = L, ['L'] = L, ['M'] = L, ['N'] = L, ['O'] = L,
    ['P'] = L, ['Q'] = L, ['R'] = L, ['S'] = L, ['T'] = L, ['U'] = L, ['V'] = L, ['W'] = L,
    ['X'] = L, ['Y'] = L, ['Z'] = L, ['['] = P, ['\\'] = P, [']'] = P, ['^'] = S, ['_'] = P,
    ['`'] = S, ['a'] = L, ['b'] = L, ['c'] = L, ['d'] = L, ['e'] = L, ['f'] = L, ['g'] = L,
    ['h'] = L, ['i'] = L, ['j'] = L, ['k'] = L, ['l'] = L, ['m'] = L, ['n'] = L, ['o'] = L,
    ['p'] = L, ['q'] = L, ['r'] = L, ['s'] = L, ['t'] = L, ['u'] = L, ['v'] = L, ['w'] = L,
    ['x'] = L, ['y'] = L, ['z'] = L, ['{'] = P, ['|'] = S, ['}'] = P, ['~'] = S,
};

/* Class of the character at s[i], and where the next one starts. i < n. A byte that is not UTF-8
 * counts as U+FFFD, a symbol. */
static inline unsigned class_at(const char *s, size_t n, size_t i, size_t *next)
{
    unsigned char c = (unsigned char)s[i];
    if (c < 128) {
        *next = i + 1;
        return ascii_class[c];
    }
    size_t l;
    uint32_t cp = ob_utf8_decode(s + i, n - i, &l);
    *next = i + l;
    return class_of_cp(cp);
}

/* The same for any i <= n: at the end of the piece 0, with *next == i. */
static inline unsigned peek(const char *s, size_t n, size_t i, size_t *next)
{
    if (i < n) return class_at(s, n, i, next);
    *next = i;
    return 0;
}

/* End of the run of characters from i on whose class has a bit of `want`. */
static inline size_t run_of(const char *s, size_t n, size_t i, unsigned want)
{
    for (size_t next; i < n && (class_at(s, n, i, &next) & want); i = next) {}
    return i;
}

/* End of the run without any bit of `not`. */
static inline size_t run_without(const char *s, size_t n, size_t i, unsigned not)
{
    for (size_t next; i < n && !(class_at(s, n, i, &next) & not); i = next) {}
    return i;
}

/* ---- Shared parts of the patterns ------------------------------------------------------------- */

/* \s+(?!\S)|\s+ at white space: all of the run if it ends the piece, else all but its last
 * character, which may belong to the next word, but at least one. */
static size_t spaces(const char *s, size_t n, size_t i)
{
    size_t last = i, end = i;
    for (size_t next; end < n && (class_at(s, n, end, &next) & WS); end = next) last = end;
    return end == n || last == i ? end : last;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ at white space: up to the last line break of the run if it has one. */
static size_t spaces_lines(const char *s, size_t n, size_t i)
{
    size_t last = i, end = i, line = i;
    unsigned c;
    for (size_t next; end < n && ((c = class_at(s, n, end, &next)) & WS); end = next) {
        last = end;
        if (c & NL) line = next;
    }
    if (line > i) return line;
    return end == n || last == i ? end : last;
}

static size_t lines(const char *s, size_t n, size_t i)
{
    while (i < n && (s[i] == '\r' || s[i] == '\n')) i++;
    return i;
}

/* 's|'t|'re|'ve|'m|'ll|'d at s[i] == '\''; i if none. */
static size_t contraction(const char *s, size_t n, size_t i)
{
    if (i + 1 >= n) return i;
    char a = s[i + 1], b = i + 2 < n ? s[i + 2] : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
    if ((b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l')) return i + 3;
    return i;
}

static char lower_ascii(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

/* The same with (?i:...). U+017F, the long s, folds to s. */
static size_t contraction_any_case(const char *s, size_t n, size_t i)
{
    char t[3] = {'\''};
    if (i + 1 < n) t[1] = lower_ascii(s[i + 1]);
    if (i + 2 < n) t[2] = lower_ascii(s[i + 2]);
    if (i + 2 < n && s[i + 1] == '\xC5' && s[i + 2] == '\xBF') return i + 3;
    return i + contraction(t, 3, 0);
}

/* ---- Matchers --------------------------------------------------------------------------------- */

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
size_t ob_pre_match_gpt2(const char *s, size_t n, size_t i)
{
    size_t next, start = i;
    unsigned c = class_at(s, n, i, &next);
    if (s[i] == '\'') {
        size_t end = contraction(s, n, i);
        if (end > i) return end;
    }
    if (s[i] == ' ' && next < n) {
        start = next;
        c = class_at(s, n, start, &next);
    }
    if (c & L) return run_of(s, n, next, L);
    if (c & N) return run_of(s, n, next, N);
    if (!(c & WS)) return run_without(s, n, next, WS | L | N);
    return spaces(s, n, i);
}

/* [case-blind contraction]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+   with \p{L} widened to `letter`. */
static inline size_t match_llama3(const char *s, size_t n, size_t i, bool contract, unsigned letter,
                                  int max_digits)
{
    size_t next, after;
    unsigned c = class_at(s, n, i, &next);
    if (contract && s[i] == '\'') {
        size_t end = contraction_any_case(s, n, i);
        if (end > i) return end;
    }
    if (c & letter) return run_of(s, n, next, letter);
    if (c & N) {
        for (int k = 1; k < max_digits && next < n && (class_at(s, n, next, &after) & N); k++)
            next = after;
        return next;
    }
    if (!(c & NL) && (peek(s, n, next, &after) & letter) && after > next)
        return run_of(s, n, after, letter);
    if (!(c & WS)) return lines(s, n, run_without(s, n, next, WS | letter | N));
    if (s[i] == ' ' && next < n && !(class_at(s, n, next, &after) & (WS | letter | N)))
        return lines(s, n, run_without(s, n, after, WS | letter | N));
    return spaces_lines(s, n, i);
}

size_t ob_pre_match_llama3(const char *s, size_t n, size_t i)
{
    return match_llama3(s, n, i, true, L, 3);
}
size_t ob_pre_match_qwen2(const char *s, size_t n, size_t i)
{
    return match_llama3(s, n, i, true, L, 1);
}
size_t ob_pre_match_qwen35(const char *s, size_t n, size_t i)
{
    return match_llama3(s, n, i, true, L | M, 1);
}
/* MiniCPM5 after its first step: \p{N}+ */
size_t ob_pre_match_minicpm5(const char *s, size_t n, size_t i)
{
    return match_llama3(s, n, i, true, L, INT32_MAX);
}
/* qwen2 without contractions: Turkish keeps its suffixes */
size_t ob_pre_match_ufakzeka(const char *s, size_t n, size_t i)
{
    return match_llama3(s, n, i, false, L, 1);
}

/* [!-/:-@[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+ */
size_t ob_pre_match_deepseek3(const char *s, size_t n, size_t i)
{
    size_t next, after;
    unsigned c = class_at(s, n, i, &next);
    unsigned ascii = (unsigned char)s[i] < 128;
    unsigned c2 = peek(s, n, next, &after);
    if (ascii && (c & (P | S)) && (c2 & L) && (unsigned char)s[next] < 128) {
        while (next < n && (unsigned char)s[next] < 128 && (ascii_class[(unsigned char)s[next]] & L))
            next++;
        return next;
    }
    if (c & (L | M)) return run_of(s, n, next, L | M);
    if (!(c & (NL | P | S)) && (c2 & (L | M))) return run_of(s, n, after, L | M);
    if (c & (P | S)) return lines(s, n, run_of(s, n, next, P | S));
    if (s[i] == ' ' && (c2 & (P | S))) return lines(s, n, run_of(s, n, after, P | S));
    return c & WS ? spaces_lines(s, n, i) : i;
}

/* \p{N} */
size_t ob_pre_match_digit(const char *s, size_t n, size_t i)
{
    size_t next;
    return class_at(s, n, i, &next) & N ? next : i;
}

/* \p{N}{1,3} */
size_t ob_pre_match_digits3(const char *s, size_t n, size_t i)
{
    size_t next;
    for (int k = 0; k < 3 && i < n && (class_at(s, n, i, &next) & N); k++) i = next;
    return i;
}

/* \p{N}+ */
size_t ob_pre_match_digits(const char *s, size_t n, size_t i) { return run_of(s, n, i, N); }

/* [\r\n] */
size_t ob_pre_match_line(const char *s, size_t n, size_t i)
{
    (void)n;
    return s[i] == '\r' || s[i] == '\n' ? i + 1 : i;
}

/* [^\n]+|[\n]+ */
size_t ob_pre_match_lines(const char *s, size_t n, size_t i)
{
    bool nl = s[i] == '\n';
    while (i < n && (s[i] == '\n') == nl) i++;
    return i;
}

/* \s?\p{L}+ */
size_t ob_pre_match_space_letters(const char *s, size_t n, size_t i)
{
    size_t next;
    unsigned c = class_at(s, n, i, &next);
    size_t start = c & WS ? next : i, end = run_of(s, n, start, L);
    return end > start ? end : i;
}

/* \s?\p{P}+ */
size_t ob_pre_match_space_punctuation(const char *s, size_t n, size_t i)
{
    size_t next;
    unsigned c = class_at(s, n, i, &next);
    size_t start = c & WS ? next : i, end = run_of(s, n, start, P);
    return end > start ? end : i;
}

typedef struct range {
    uint32_t first, last;
} range;

static size_t run_in(const char *s, size_t n, size_t i, const range *r, size_t n_ranges)
{
    while (i < n && (unsigned char)s[i] >= 128) {
        size_t l;
        uint32_t cp = ob_utf8_decode(s + i, n - i, &l);
        bool in = false;
        for (size_t k = 0; k < n_ranges; k++) in |= cp >= r[k].first && cp <= r[k].last;
        if (!in) break;
        i += l;
    }
    return i;
}

/* [\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+ : Han and kana */
size_t ob_pre_match_han_kana(const char *s, size_t n, size_t i)
{
    static const range r[] = {{0x4E00, 0x9FA5}, {0x3040, 0x30FF}};
    return run_in(s, n, i, r, 2);
}

/* [\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+ */
size_t ob_pre_match_han_hangul(const char *s, size_t n, size_t i)
{
    static const range r[] = {{0x0800, 0x9FA5}, {0xAC00, 0xD7FF}};
    return run_in(s, n, i, r, 2);
}

/* ---- Running the steps ------------------------------------------------------------------------ */

typedef struct split_job {
    const ob_pre *p;
    ob_pre_fn fn;
    void *arg;
    ob_err *err;
} split_job;

static ob_status run_step(const split_job *job, int step, const char *s, size_t n);

static inline ob_status put(const split_job *job, int step, const char *s, size_t n)
{
    if (n == 0) return OB_OK;
    return step + 1 == job->p->n_steps ? job->fn(job->arg, s, n) : run_step(job, step + 1, s, n);
}

/* \s+$ cannot be a matcher: asking at each space of a run would read the run again and again. */
static ob_status cut_trailing_space(const split_job *job, int step, const char *s, size_t n)
{
    size_t end = 0, next;
    for (size_t i = 0; i < n; i = next)
        if (!(class_at(s, n, i, &next) & WS)) end = next;
    OB_TRY(put(job, step, s, end));
    return put(job, step, s + end, n - end);
}

static ob_status run_regex(const split_job *job, int step, const char *s, size_t n)
{
    const ob_regex *re = job->p->steps[step].regex;
    size_t from = 0; /* start of the stretch without match */
    for (size_t at = 0; at < n;) {
        size_t start, end;
        bool found;
        OB_TRY(ob_regex_next(re, s, n, at, &found, &start, &end, job->err));
        if (!found) break;
        if (end == start) { /* an empty match cuts nothing */
            at = end + 1;
            continue;
        }
        OB_TRY(put(job, step, s + from, start - from));
        OB_TRY(put(job, step, s + start, end - start));
        from = at = end;
    }
    return put(job, step, s + from, n - from);
}

static ob_status run_step(const split_job *job, int step, const char *s, size_t n)
{
    const ob_pre_step *st = &job->p->steps[step];
    if (st->regex) return run_regex(job, step, s, n);
    if (!st->match) return cut_trailing_space(job, step, s, n);
    size_t from = 0;
    for (size_t i = 0; i < n;) {
        size_t end = st->match(s, n, i);
        if (end == i) {
            class_at(s, n, i, &i);
            continue;
        }
        OB_TRY(put(job, step, s + from, i - from));
        OB_TRY(put(job, step, s + i, end - i));
        from = i = end;
    }
    return put(job, step, s + from, n - from);
}

ob_status ob_pre_split(const ob_pre *p, const char *text, size_t n, ob_pre_fn fn, void *arg,
                       ob_err *err)
{
    split_job job = {p, fn, arg, err};
    return n ? run_step(&job, 0, text, n) : OB_OK;
}
