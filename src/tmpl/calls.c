/* calls.c: see calls.h. A call's text is held whole and parsed at its end. */
#include "tmpl/calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/math.h"

struct ob_call_style {
    const char *name, *mark; /* what of it stands in a template */
    const char *open, *close;
    /* Text of a call without the two (of `json` all) -> fn for each; false: it is none. */
    bool (*parse)(ob_calls *c, const char *s, size_t len);
};

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

typedef struct span {
    const char *s, *end;
} span;

static void trim(span *t)
{
    while (t->s < t->end && is_space(*t->s)) t->s++;
    while (t->s < t->end && is_space(t->end[-1])) t->end--;
}

static const char *find(const char *s, const char *end, const char *what)
{
    const size_t n = strlen(what);
    for (; s + n <= end; s++)
        if (memcmp(s, what, n) == 0) return s;
    return NULL;
}

/* Move *t behind `what`, which must come next (white space before it is skipped). */
static bool skip(span *t, const char *what)
{
    const size_t n = strlen(what);
    while (t->s < t->end && is_space(*t->s)) t->s++;
    if ((size_t)(t->end - t->s) < n || memcmp(t->s, what, n) != 0) return false;
    t->s += n;
    return true;
}

/* What stands before `what`; *t goes behind it. */
static bool until(span *t, const char *what, span *out)
{
    const char *at = find(t->s, t->end, what);
    if (!at) return false;
    *out = (span){t->s, at};
    t->s = at + strlen(what);
    return true;
}

/* --- arguments ------------------------------------------------------------------------------- */

/* The declared type of a parameter, "" when it has none. */
static const char *declared_type(const json_t *tools, span fn, span key)
{
    size_t i;
    const json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        const json_t *f = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(f, "name"));
        if (!name || strlen(name) != (size_t)(fn.end - fn.s) || memcmp(name, fn.s, strlen(name)) != 0) continue;
        const json_t *props = json_object_get(json_object_get(f, "parameters"), "properties");
        const json_t *p = json_object_getn(props, key.s, (size_t)(key.end - key.s));
        const char *type = json_string_value(json_object_get(p, "type"));
        return type ? type : "";
    }
    return "";
}

/* A value written as plain text: a string where the tool wants one, or where it is no JSON. */
static json_t *plain_value(const char *type, span v)
{
    if (strcmp(type, "string") != 0) {
        span t = v;
        trim(&t);
        json_t *j = json_loadb(t.s, (size_t)(t.end - t.s), JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
        if (j) return j;
    }
    return json_stringn(v.s, (size_t)(v.end - v.s));
}

/* Takes `args`. */
static bool emit(ob_calls *c, span name, json_t *args)
{
    trim(&name);
    char text[256];
    const size_t n = (size_t)(name.end - name.s);
    char *dump = args && n && n < sizeof text ? json_dumps(args, JSON_COMPACT) : NULL;
    json_decref(args);
    if (!dump) return false;
    memcpy(text, name.s, n);
    text[n] = 0;
    c->n++;
    c->fn(c->arg, text, dump, strlen(dump));
    free(dump); /* jansson's own */
    return true;
}

static bool emit_json(ob_calls *c, const json_t *call)
{
    const char *name = json_string_value(json_object_get(call, "name"));
    json_t *args = json_object_get(call, "arguments");
    if (!args) args = json_object_get(call, "parameters");
    if (!name) return false;
    if (json_is_string(args)) { /* written twice: a text that holds JSON */
        args = json_loads(json_string_value(args), 0, NULL);
        if (!json_is_object(args)) {
            json_decref(args);
            return false;
        }
    } else if (!args) {
        args = json_object();
    } else if (json_is_object(args)) {
        json_incref(args);
    } else {
        return false;
    }
    return emit(c, (span){name, name + strlen(name)}, args);
}

/* --- one parser per style --------------------------------------------------------------------- */

/* One object or a list of them. */
static bool parse_json(ob_calls *c, const char *s, size_t len)
{
    json_t *j = json_loadb(s, len, 0, NULL);
    bool ok = j != NULL;
    if (json_is_array(j)) {
        size_t i;
        json_t *e;
        json_array_foreach(j, i, e) ok = ok && json_string_value(json_object_get(e, "name"));
        ok = ok && json_array_size(j);
        if (ok) json_array_foreach(j, i, e) ok = emit_json(c, e) && ok;
    } else {
        ok = ok && emit_json(c, j);
    }
    json_decref(j);
    return ok;
}

/* Set args[key] to a value; once per key. */
static bool set_arg(json_t *args, span key, json_t *value)
{
    const size_t n = (size_t)(key.end - key.s);
    if (!value || !n || json_object_getn(args, key.s, n)) {
        json_decref(value);
        return false;
    }
    return json_object_setn_new(args, key.s, n, value) == 0;
}

static span without_line_ends(span v)
{
    if (v.s < v.end && *v.s == '\n') v.s++;
    if (v.s < v.end && v.end[-1] == '\n') v.end--;
    return v;
}

static bool parse_function_tags(ob_calls *c, const char *s, size_t len)
{
    span t = {s, s + len}, name, key, value;
    if (!skip(&t, "<function=") || !until(&t, ">", &name)) return false;
    json_t *args = json_object();
    bool ok = args != NULL;
    while (ok && skip(&t, "<parameter=")) {
        ok = until(&t, ">", &key) && until(&t, "</parameter>", &value);
        if (ok) ok = set_arg(args, key, plain_value(declared_type(c->tools, name, key), without_line_ends(value)));
    }
    ok = ok && skip(&t, "</function>");
    trim(&t);
    if (ok && t.s == t.end) return emit(c, name, args);
    json_decref(args);
    return false;
}

static bool parse_arg_tags(ob_calls *c, const char *s, size_t len)
{
    span t = {s, s + len}, name, key, value;
    const char *first = find(t.s, t.end, "<arg_key>");
    name = (span){t.s, first ? first : t.end};
    t.s = name.end;
    trim(&name);
    if (find(name.s, name.end, "<") || find(name.s, name.end, "\n")) return false;
    json_t *args = json_object();
    bool ok = args != NULL;
    while (ok && skip(&t, "<arg_key>")) {
        ok = until(&t, "</arg_key>", &key) && skip(&t, "<arg_value>") && until(&t, "</arg_value>", &value);
        if (ok) ok = set_arg(args, key, plain_value(declared_type(c->tools, name, key), value));
    }
    trim(&t);
    if (ok && t.s == t.end) return emit(c, name, args);
    json_decref(args);
    return false;
}

/* `text`: from behind <function name=" on. */
static bool parse_param_tags(ob_calls *c, const char *s, size_t len)
{
    span t = {s, s + len}, name, key, value;
    if (!until(&t, "\"", &name) || !skip(&t, ">")) return false;
    json_t *args = json_object();
    bool ok = args != NULL;
    while (ok && skip(&t, "<param name=\"")) {
        ok = until(&t, "\"", &key) && skip(&t, ">") && until(&t, "</param>", &value);
        if (ok) ok = set_arg(args, key, plain_value(declared_type(c->tools, name, key), value));
    }
    trim(&t);
    if (ok && t.s == t.end) return emit(c, name, args);
    json_decref(args);
    return false;
}

#define DSML "｜DSML｜"

/* Everything is looked at before the first call is given out: a block is calls as a whole or text as a whole. */
static bool parse_dsml(ob_calls *c, const char *s, size_t len)
{
    json_t *all = json_array();
    span t = {s, s + len}, name, key, is_string, value;
    bool ok = all != NULL;
    while (ok && skip(&t, "<" DSML "invoke name=\"")) {
        json_t *args = json_object();
        ok = args && until(&t, "\"", &name) && skip(&t, ">");
        while (ok && skip(&t, "<" DSML "parameter name=\"")) {
            ok = until(&t, "\"", &key) && skip(&t, "string=\"") && until(&t, "\"", &is_string) && skip(&t, ">") &&
                 until(&t, "</" DSML "parameter>", &value);
            if (!ok) break;
            const bool text = is_string.end - is_string.s == 4 && memcmp(is_string.s, "true", 4) == 0;
            json_t *v = text ? json_stringn(value.s, (size_t)(value.end - value.s))
                             : json_loadb(value.s, (size_t)(value.end - value.s), JSON_DECODE_ANY, NULL);
            ok = set_arg(args, key, v);
        }
        ok = ok && skip(&t, "</" DSML "invoke>");
        json_t *call = ok ? json_pack("{s:s%,s:O}", "name", name.s, (size_t)(name.end - name.s), "arguments", args) : NULL;
        json_decref(args);
        ok = ok && call && json_array_append_new(all, call) == 0;
    }
    trim(&t);
    ok = ok && t.s == t.end && json_array_size(all);
    size_t i;
    json_t *call;
    if (ok) json_array_foreach(all, i, call) ok = emit_json(c, call) && ok;
    json_decref(all);
    return ok;
}

/* In this order: a template may name an earlier style's mark inside a later one's. */
static const ob_call_style k_styles[] = {
    {"dsml", DSML, "<" DSML "tool_calls>", "</" DSML "tool_calls>", parse_dsml},
    {"arg-tags", "<arg_key>", "<tool_call>", "</tool_call>", parse_arg_tags},
    {"function-tags", "<function=", "<tool_call>", "</tool_call>", parse_function_tags},
    {"param-tags", "<param name=", "<function name=\"", "</function>", parse_param_tags},
    {"json-tags", "<tool_call>", "<tool_call>", "</tool_call>", parse_json},
    {"json", "\"parameters\":", "", "", parse_json},
};

const ob_call_style *ob_call_style_of(const char *source)
{
    if (!source || !strstr(source, "tools")) return NULL;
    for (size_t i = 0; i < OB_COUNT(k_styles); i++)
        if (strstr(source, k_styles[i].mark)) return &k_styles[i];
    return NULL;
}

const char *ob_call_style_name(const ob_call_style *s) { return s->name; }
const char *ob_call_style_open(const ob_call_style *s) { return s->open; }
const char *ob_call_style_close(const ob_call_style *s) { return s->close; }

/* --- the splitter ----------------------------------------------------------------------------- */

void ob_calls_init(ob_calls *c, const ob_call_style *style, const json_t *tools, size_t max_bytes, ob_call_fn fn, void *arg)
{
    *c = (ob_calls){.style = style, .tools = tools, .fn = fn, .arg = arg};
    ob_buf_init(&c->held, max_bytes);
}

void ob_calls_deinit(ob_calls *c) { ob_buf_deinit(&c->held); }

static void drop_held(ob_calls *c, size_t n)
{
    memmove(c->held.data, c->held.data + n, c->held.len - n);
    c->held.len -= n;
}

static void let_out(ob_calls *c, size_t n, ob_buf *content)
{
    for (size_t i = 0; i < n && !c->began; i++) c->began = !is_space(c->held.data[i]);
    ob_buf_add(content, c->held.data, n);
    drop_held(c, n);
}

/* How much of the text at the end may be the start of `tag`, with the white space before it. */
static size_t undecided(const char *s, size_t len, const char *tag)
{
    const size_t n = strlen(tag);
    size_t k = OB_MIN(len, n ? n - 1 : 0);
    while (k && memcmp(s + len - k, tag, k) != 0) k--;
    while (k < len && is_space(s[len - k - 1])) k++;
    return k;
}

/* The held text outside a call. True: a call has begun, and held is what follows its opening. */
static bool outside(ob_calls *c, ob_buf *content)
{
    const char *open = c->style->open, *s = c->held.data;
    if (!*open) { /* the whole reply is a call, or none of it */
        size_t i = 0;
        while (i < c->held.len && is_space(s[i])) i++;
        if (i == c->held.len) return false;
        if (!c->began && (s[i] == '{' || s[i] == '[')) return c->inside = true;
        let_out(c, c->held.len, content);
        return false;
    }
    const char *at = find(s, s + c->held.len, open);
    if (!at) {
        let_out(c, c->held.len - undecided(s, c->held.len, open), content);
        return false;
    }
    size_t n = (size_t)(at - s), text = n;
    while (text && is_space(s[text - 1])) text--;
    let_out(c, text, content);
    drop_held(c, n - text + strlen(open));
    return c->inside = true;
}

/* The held text is a call without its tags; what is none comes out as it was. */
static void end_call(ob_calls *c, size_t len, bool closed, ob_buf *content)
{
    const char *close = closed ? c->style->close : "";
    if (!c->style->parse(c, c->held.data, len)) {
        ob_buf_adds(content, c->style->open);
        ob_buf_add(content, c->held.data, len);
        ob_buf_adds(content, close);
        c->began = true;
    }
    drop_held(c, len + strlen(close));
    c->inside = false;
}

void ob_calls_feed(ob_calls *c, const char *text, size_t len, ob_buf *content)
{
    ob_buf_add(&c->held, text, len);
    if (c->held.failed) {
        content->failed = c->held.failed;
        return;
    }
    while (c->held.len && (c->inside || outside(c, content))) {
        const char *close = c->style->close;
        const char *at = *close ? find(c->held.data, c->held.data + c->held.len, close) : NULL;
        if (!at) return;
        end_call(c, (size_t)(at - c->held.data), true, content);
    }
}

void ob_calls_finish(ob_calls *c, ob_buf *content)
{
    if (c->inside) end_call(c, c->held.len, false, content);
    if (!c->n) let_out(c, c->held.len, content); /* behind calls there is only white space or half a tag */
    else {
        size_t i = 0;
        while (i < c->held.len && is_space(c->held.data[i])) i++;
        if (i < c->held.len) let_out(c, c->held.len, content);
    }
    ob_buf_clear(&c->held);
}

/* --- grammar ---------------------------------------------------------------------------------- */

typedef struct maker {
    const ob_call_style *style;
    void (*tag)(void *arg, const char *text, ob_buf *out);
    void *arg;
    ob_buf *out;
} maker;

static void literal(maker *m, const char *s) { ob_buf_add_json(m->out, s, strlen(s)); }

/* The call behind its opening, of one function. */
static ob_status function_rule(maker *m, size_t i, const json_t *f, ob_err *err)
{
    const char *name = json_string_value(json_object_get(f, "name"));
    ob_buf_addf(m->out, "f%zu: ", i);
    if (m->style->parse == parse_json) {
        json_t *params = json_object_get(f, "parameters");
        json_t *any = json_object();
        json_t *schema = json_pack("{s:s,s:{s:{s:s},s:O},s:[s,s],s:b}", "type", "object", "properties", "name", "const", name,
                                   *m->style->open ? "arguments" : "parameters", json_is_object(params) ? params : any, "required",
                                   "name", *m->style->open ? "arguments" : "parameters", "additionalProperties", 0);
        char *text = schema ? json_dumps(schema, JSON_COMPACT) : NULL;
        if (text) ob_buf_addf(m->out, "%%json %s\n", text);
        free(text);
        json_decref(schema);
        json_decref(any);
        return text ? OB_OK : ob_err_set(err, OB_E_NO_MEMORY, "no memory for a grammar");
    }
    if (m->style->parse == parse_function_tags) {
        char head[300];
        snprintf(head, sizeof head, "\n<function=%.200s>\n", name);
        literal(m, head);
    } else if (m->style->parse == parse_arg_tags) {
        literal(m, name);
    } else if (m->style->parse == parse_param_tags) {
        char head[300];
        snprintf(head, sizeof head, "%.200s\">", name);
        literal(m, head);
    } else {
        char head[300];
        ob_buf_adds(m->out, "\"\\n\" ");
        m->tag(m->arg, "<" DSML "invoke name=\"", m->out);
        snprintf(head, sizeof head, "%.200s\">", name);
        ob_buf_addc(m->out, ' ');
        literal(m, head);
    }
    ob_buf_adds(m->out, " rest\n");
    return OB_OK;
}

/* Whatever ends with the closing tag; where the tag is a token of its own, anything with such tokens. */
static void add_rest(maker *m)
{
    ob_buf term;
    ob_buf_init(&term, 1 << 10);
    m->tag(m->arg, m->style->close, &term);
    if (*ob_buf_str(&term) == '"' && !strchr(ob_buf_str(&term), '[')) {
        ob_buf_adds(m->out, "rest[lazy]: /(?s:.*)");
        for (const char *c = m->style->close; *c; c++) ob_buf_addf(m->out, strchr("/.()[]{}?*+|\\^$", *c) ? "\\%c" : "%c", *c);
        ob_buf_adds(m->out, "/\n");
    } else {
        const char *id = strstr(ob_buf_str(&term), "<[");
        ob_buf_addf(m->out, "rest: ( /(?s:.+)/ | %.*s )*\n", id ? (int)strcspn(id, " \"") : 0, id ? id : "");
    }
    ob_buf_deinit(&term);
}

ob_status ob_calls_grammar(const ob_call_style *s, const json_t *tools, const char *only, bool many, bool opened,
                           void (*tag)(void *arg, const char *text, ob_buf *out), void *arg, ob_buf *out, ob_err *err)
{
    maker m = {s, tag, arg, out};
    const bool json = s->parse == parse_json, tags = *s->open != 0;
    ob_buf_adds(out, "start: ");
    if (!opened && tags) {
        tag(arg, s->open, out);
        ob_buf_addc(out, ' ');
    }
    ob_buf_adds(out, "call");
    if (many && tags && json) {
        ob_buf_adds(out, " ( ws ");
        tag(arg, s->open, out);
        ob_buf_adds(out, " call )*");
    }
    ob_buf_adds(out, "\ncall: ");
    if (json && tags) ob_buf_adds(out, "ws ");
    ob_buf_adds(out, "function");
    if (json && tags) {
        ob_buf_adds(out, " ws ");
        tag(arg, s->close, out);
    }
    ob_buf_adds(out, "\nws: /[ \\n]{0,4}/\n");
    if (!json) add_rest(&m);
    ob_buf_adds(out, "function: ");
    size_t i, n = 0;
    const json_t *t;
    json_array_foreach(tools, i, t)
    {
        const char *name = json_string_value(json_object_get(json_object_get(t, "function"), "name"));
        if (only && strcmp(name, only) != 0) continue;
        ob_buf_addf(out, n++ ? " | f%zu" : "f%zu", i);
    }
    ob_buf_addc(out, '\n');
    json_array_foreach(tools, i, t)
    {
        const json_t *f = json_object_get(t, "function");
        if (only && strcmp(json_string_value(json_object_get(f, "name")), only) != 0) continue;
        OB_TRY(function_rule(&m, i, f, err));
    }
    return ob_buf_status(out, err);
}
