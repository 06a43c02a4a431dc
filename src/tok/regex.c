/* PCRE2 behind three functions: the pre-tokenisers that have no hand-written matcher. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/alloc.h"
#include "tok/pre.h"

struct ob_regex {
    pcre2_code *code;
    pcre2_match_context *limits;
};

/* Steps of the matcher for one match. The patterns are near-linear: only runs of megabytes come close. */
enum { MATCH_LIMIT = 200 * 1000 * 1000 };

ob_status ob_regex_new(const char *pattern, ob_regex **out, ob_err *err)
{
    *out = NULL;
    ob_regex *re = ob_calloc(1, sizeof *re);
    if (!re) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a regular expression");
    int code;
    PCRE2_SIZE off;
    /* bytes that are not UTF-8 match nothing and end every match */
    re->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &code, &off, NULL);
    if (!re->code) {
        char text[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        ob_err_set(err, OB_E_INTERNAL, "pattern '%s' at %zu: %s", pattern, (size_t)off, text);
        ob_regex_free(re);
        return OB_E_INTERNAL;
    }
    pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE); /* without JIT it is slower, not wrong */
    re->limits = pcre2_match_context_create(NULL);
    if (!re->limits) {
        ob_regex_free(re);
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a regular expression");
    }
    pcre2_set_match_limit(re->limits, MATCH_LIMIT);
    *out = re;
    return OB_OK;
}

void ob_regex_free(ob_regex *re)
{
    if (!re) return;
    pcre2_match_context_free(re->limits);
    pcre2_code_free(re->code);
    ob_free(re);
}

ob_status ob_regex_next(const ob_regex *re, const char *s, size_t n, size_t at, bool *found,
                        size_t *start, size_t *end, ob_err *err)
{
    *found = false;
    pcre2_match_data *md = pcre2_match_data_create(1, NULL);
    if (!md) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to match a pattern");
    int rc = pcre2_match(re->code, (PCRE2_SPTR)s, n, at, 0, md, re->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter keeps its frames on the heap */
        rc = pcre2_match(re->code, (PCRE2_SPTR)s, n, at, PCRE2_NO_JIT, md, re->limits);
    if (rc >= 0) {
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(md);
        *found = true;
        *start = v[0];
        *end = v[1];
    }
    pcre2_match_data_free(md);
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) return OB_OK;
    return ob_err_set(err, rc == PCRE2_ERROR_NOMEMORY ? OB_E_NO_MEMORY : OB_E_LIMIT,
                      "cutting text into words stopped at byte %zu (PCRE2 error %d)", at, rc);
}
