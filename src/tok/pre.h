/* tok/pre.h: the parts of a pre-tokeniser, for pre.c, pre_table.c, regex.c and their tests. */
#ifndef OB_TOK_PRE_H
#define OB_TOK_PRE_H

#include <utf8proc.h>

#include "tok/tok_int.h"

/* End of the match that starts at s[i], or i if there is none. s[0..n) is the whole piece, i < n. */
typedef size_t (*ob_pre_match)(const char *s, size_t n, size_t i);

size_t ob_pre_match_gpt2(const char *s, size_t n, size_t i);
size_t ob_pre_match_llama3(const char *s, size_t n, size_t i);
size_t ob_pre_match_qwen2(const char *s, size_t n, size_t i);
size_t ob_pre_match_qwen35(const char *s, size_t n, size_t i);
size_t ob_pre_match_minicpm5(const char *s, size_t n, size_t i);
size_t ob_pre_match_ufakzeka(const char *s, size_t n, size_t i);
size_t ob_pre_match_deepseek3(const char *s, size_t n, size_t i);
size_t ob_pre_match_digit(const char *s, size_t n, size_t i);
size_t ob_pre_match_digits3(const char *s, size_t n, size_t i);
size_t ob_pre_match_digits(const char *s, size_t n, size_t i);
size_t ob_pre_match_line(const char *s, size_t n, size_t i);
size_t ob_pre_match_lines(const char *s, size_t n, size_t i);
size_t ob_pre_match_space_letters(const char *s, size_t n, size_t i);
size_t ob_pre_match_space_punctuation(const char *s, size_t n, size_t i);
size_t ob_pre_match_han_kana(const char *s, size_t n, size_t i);
size_t ob_pre_match_han_hangul(const char *s, size_t n, size_t i);

/* A compiled PCRE2 pattern, UTF-8, *immutable after load*. */
typedef struct ob_regex ob_regex;
OB_MUST_CHECK ob_status ob_regex_new(const char *pattern, ob_regex **out, ob_err *err);
void ob_regex_free(ob_regex *re);
/* First match at or after `at`. LIMIT when the pattern backtracks too much on this text. */
OB_MUST_CHECK ob_status ob_regex_next(const ob_regex *re, const char *s, size_t n, size_t at,
                                      bool *found, size_t *start, size_t *end, ob_err *err);

enum { OB_PRE_MAX_STEPS = 6 };

/* A step is a matcher, a regex, or (neither) the cut in front of trailing white space. */
typedef struct ob_pre_step {
    ob_pre_match match;
    ob_regex *regex; /* owned */
} ob_pre_step;

struct ob_pre {
    int n_steps;
    ob_pre_step steps[OB_PRE_MAX_STEPS];
    bool ignore_merges, add_bos;
};

/* The PCRE2 source of a step that has a hand-written matcher, for tests; NULL for others. */
const char *ob_pre_oracle(ob_pre_match match);

#endif
