/* reasoning.c: an automaton of five states over the bytes of a stream. See reasoning.h. */
#include "tmpl/reasoning.h"

#include <string.h>

#include "base/math.h"

enum {
    ST_START,     /* nothing but white space and a part of the opening tag so far */
    ST_SKIP_OPEN, /* behind the opening tag: white space is dropped */
    ST_THINK,     /* in the reasoning; white space and a part of the closing tag are held */
    ST_SKIP_CLOSE,/* behind the closing tag: white space is dropped */
    ST_CONTENT,   /* the rest is content */
};

static const ob_reasoning_tags k_tags[] = {
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"},
    {"<seed:think>", "</seed:think>"},
    {"<thinking>", "</thinking>"},
    {"<|START_THINKING|>", "<|END_THINKING|>"},
};

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

bool ob_reasoning_format_parse(const char *name, ob_reasoning_format *out)
{
    static const struct {
        const char *name;
        ob_reasoning_format format;
    } k_names[] = {{"none", OB_REASONING_NONE},
                   {"auto", OB_REASONING_AUTO},
                   {"deepseek", OB_REASONING_AUTO}};
    for (size_t i = 0; i < OB_COUNT(k_names); i++) {
        if (strcmp(name, k_names[i].name)) continue;
        *out = k_names[i].format;
        return true;
    }
    return false;
}

const ob_reasoning_tags *ob_reasoning_tags_of(const char *template_source)
{
    /* The closing tag counts: a template that only drops old reasoning splits at it. */
    for (size_t i = 0; template_source && i < OB_COUNT(k_tags); i++)
        if (strstr(template_source, k_tags[i].close)) return &k_tags[i];
    return &k_tags[0];
}

bool ob_reasoning_prompt_opens(const ob_reasoning_tags *tags, const char *prompt, size_t len)
{
    size_t n = strlen(tags->open);
    while (len && is_space(prompt[len - 1])) len--;
    return len >= n && !memcmp(prompt + len - n, tags->open, n);
}

void ob_reasoning_init(ob_reasoning *r, ob_reasoning_format format, const ob_reasoning_tags *tags,
                       bool opened)
{
    *r = (ob_reasoning){.tags = tags};
    r->state = format == OB_REASONING_NONE ? ST_CONTENT : opened ? ST_SKIP_OPEN : ST_START;
}

bool ob_reasoning_active(const ob_reasoning *r)
{
    return r->state == ST_SKIP_OPEN || r->state == ST_THINK;
}

/* Let go of the first n held bytes. */
static void release(ob_reasoning *r, size_t n, ob_buf *out)
{
    ob_buf_add(out, r->held, n);
    r->held_len -= n;
    memmove(r->held, r->held + n, r->held_len);
}

/* What the held bytes are: white space, then a part of `tag`. TAG_NO: they cannot become that. */
enum { TAG_NO, TAG_PART, TAG_WHOLE };

static int match(const ob_reasoning *r, const char *tag)
{
    size_t space = 0, n = strlen(tag);
    while (space < r->held_len && is_space(r->held[space])) space++;
    size_t part = r->held_len - space;
    if (space > OB_REASONING_MAX_SPACE || part > n || memcmp(r->held + space, tag, part)) return TAG_NO;
    return part == n ? TAG_WHOLE : TAG_PART;
}

/* One byte while nothing is decided: only the first text of an answer may open a reasoning. */
static void step_start(ob_reasoning *r, char c, ob_buf *content)
{
    r->held[r->held_len++] = c;
    switch (match(r, r->tags->open)) {
    case TAG_WHOLE:
        r->held_len = 0;
        r->n_space = 0;
        r->state = ST_SKIP_OPEN;
        break;
    case TAG_NO:
        release(r, r->held_len, content);
        r->state = ST_CONTENT;
        break;
    default: break;
    }
}

static void step_think(ob_reasoning *r, char c, ob_buf *reasoning)
{
    r->held[r->held_len++] = c;
    int m;
    /* Let go from the front until what is left could be the tag (or nothing is left). */
    while ((m = match(r, r->tags->close)) == TAG_NO) release(r, 1, reasoning);
    if (m != TAG_WHOLE) return;
    r->held_len = 0;
    r->n_space = 0;
    r->state = ST_SKIP_CLOSE;
}

void ob_reasoning_feed(ob_reasoning *r, const char *text, size_t len, ob_buf *reasoning,
                       ob_buf *content)
{
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (r->state == ST_SKIP_OPEN || r->state == ST_SKIP_CLOSE) {
            if (is_space(c) && r->n_space < OB_REASONING_MAX_SPACE) {
                r->n_space++;
                continue;
            }
            r->state = r->state == ST_SKIP_OPEN ? ST_THINK : ST_CONTENT;
        }
        if (r->state == ST_CONTENT) {
            ob_buf_add(content, text + i, len - i);
            return;
        }
        if (r->state == ST_START) step_start(r, c, content);
        else step_think(r, c, reasoning);
    }
}

void ob_reasoning_finish(ob_reasoning *r, ob_buf *reasoning, ob_buf *content)
{
    release(r, r->held_len, ob_reasoning_active(r) ? reasoning : content);
}
