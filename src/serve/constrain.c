/* constrain.c: tools and formats of replies: what the request asks for becomes a grammar per choice. */
#include "serve/serve_int.h"

#include <string.h>

#define MAX_TOOLS 512
#define MAX_GRAMMAR_BYTES (4u << 20)

static ob_status check_tool(ob_job *job, size_t i, const json_t *tool)
{
    const char *type = json_string_value(json_object_get(tool, "type"));
    const json_t *f = json_object_get(tool, "function");
    const char *name = json_string_value(json_object_get(f, "name"));
    const json_t *params = json_object_get(f, "parameters");
    if (type && strcmp(type, "function") != 0)
        return ob_job_fail(job, "tools", OB_E_UNSUPPORTED, "tools[%zu] is of type '%.40s'; only 'function' is supported", i, type);
    if (!name || !*name) return ob_job_fail(job, "tools", OB_E_INVALID, "tools[%zu].function.name must be a string", i);
    for (const char *c = name; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.", *c) || c - name >= 128)
            return ob_job_fail(job, "tools", OB_E_INVALID,
                               "tools[%zu].function.name must be letters, digits, '_', '-' and '.', at most 128 of them", i);
    if (params && !json_is_null(params) && !json_is_object(params))
        return ob_job_fail(job, "tools", OB_E_INVALID, "tools[%zu].function.parameters must be a JSON schema (an object)", i);
    return OB_OK;
}

/* "none", "auto", "required", {"type": "function", "function": {"name": …}} */
static ob_status read_choice(ob_job *job, const json_t *choice, ob_gen_params *p)
{
    const char *word = json_string_value(choice);
    const json_t *f = json_object_get(choice, "function");
    const char *name = json_string_value(f ? json_object_get(f, "name") : json_object_get(choice, "name"));
    if (word && strcmp(word, "none") == 0) {
        p->tools = NULL;
    } else if (word && strcmp(word, "required") == 0) {
        p->must_call = true;
    } else if (name) {
        p->must_call = true;
        p->many_calls = false;
        p->only_call = name;
        size_t i;
        const json_t *t;
        bool known = false;
        json_array_foreach(p->tools, i, t)
            known = known || strcmp(json_string_value(json_object_get(json_object_get(t, "function"), "name")), name) == 0;
        if (!known) return ob_job_fail(job, "tool_choice", OB_E_INVALID, "'tool_choice' names '%.60s', which is not in 'tools'", name);
    } else if (!word || strcmp(word, "auto") != 0) {
        return ob_job_fail(job, "tool_choice", OB_E_INVALID,
                           "'tool_choice' must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}");
    }
    if (p->must_call && !p->tools)
        return ob_job_fail(job, "tool_choice", OB_E_INVALID, "'tool_choice' wants a call, but there are no 'tools'");
    return OB_OK;
}

ob_status ob_tools_read(ob_job *job, ob_gen_params *p)
{
    const json_t *tools = json_object_get(job->json, "tools"), *choice = json_object_get(job->json, "tool_choice"), *t;
    size_t i;
    if (tools && !json_is_null(tools)) {
        if (!json_is_array(tools)) return ob_job_fail(job, "tools", OB_E_INVALID, "'tools' must be a list");
        if (json_array_size(tools) > MAX_TOOLS)
            return ob_job_fail(job, "tools", OB_E_LIMIT, "'tools' may hold %d functions, not %zu", MAX_TOOLS, json_array_size(tools));
        json_array_foreach(tools, i, t) OB_TRY(check_tool(job, i, t));
        if (json_array_size(tools)) p->tools = tools;
    }
    return choice && !json_is_null(choice) ? read_choice(job, choice, p) : OB_OK;
}

/* --- grammar ---------------------------------------------------------------------------------- */

/* A tag as the grammar names it: control tokens by their ids, the text around them as it is. */
static void add_tag(void *arg, const char *text, ob_buf *out)
{
    const ob_server *s = arg;
    for (int i = 0; i < s->n_marks; i++) {
        const char *at = strstr(text, s->marks[i].text);
        if (!at) continue;
        const char *rest = at + strlen(s->marks[i].text);
        if (at > text) ob_buf_add_json(out, text, (size_t)(at - text));
        ob_buf_addf(out, " <[%d]> ", s->marks[i].id);
        if (*rest) ob_buf_add_json(out, rest, strlen(rest));
        return;
    }
    ob_buf_add_json(out, text, strlen(text));
}

static ob_status vocab_of(ob_job *job, const ob_gram_vocab **out)
{
    ob_server *s = job->srv;
    pthread_mutex_lock(&s->gram_lock);
    ob_status st = s->gram_vocab ? OB_OK : ob_gram_vocab_new(s->tok, &s->gram_vocab, &job->err);
    *out = s->gram_vocab;
    pthread_mutex_unlock(&s->gram_lock);
    return st;
}

/* What the request asks for. *spec->text may be in `text`. False: nothing. */
static ob_status choose(ob_gen *g, ob_buf *text, ob_gram_spec *spec, bool *any)
{
    const ob_gen_params *p = &g->params;
    const ob_server *s = g->job.srv;
    /* Reasoning that the prompt has opened goes on freely to its end. */
    const char *think = g->reasoning_open ? s->tags->close : NULL;
    *any = true;
    if (p->schema) {
        *spec = (ob_gram_spec){.kind = OB_GRAM_JSON_SCHEMA, .text = p->schema, .len = p->schema_len, .after = think};
        return OB_OK;
    }
    const char *open = p->tools ? ob_call_style_open(s->calls) : "";
    /* Under "auto" a call of JSON follows its schema from its tag on; other styles are left to the model. */
    const bool json = p->tools && strcmp(ob_call_style_name(s->calls), "json-tags") == 0;
    *any = p->tools && (p->must_call || json);
    if (!*any) return OB_OK;
    OB_TRY(ob_calls_grammar(s->calls, p->tools, p->only_call, p->must_call && p->many_calls, !p->must_call, add_tag, (void *)s, text,
                            &g->job.err));
    *spec = (ob_gram_spec){.kind = OB_GRAM_LARK, .text = ob_buf_str(text), .len = text->len, .after = think};
    if (!p->must_call) spec->after = open, spec->again = true;
    return OB_OK;
}

ob_status ob_gen_constrain(ob_gen *g)
{
    ob_job *job = &g->job;
    ob_buf text;
    ob_gram_spec spec;
    bool any;
    const ob_gram_vocab *vocab;
    ob_buf_init(&text, MAX_GRAMMAR_BYTES);
    ob_status st = choose(g, &text, &spec, &any);
    if (st == OB_OK && any) st = vocab_of(job, &vocab);
    for (int32_t i = 0; st == OB_OK && any && i < g->n_choices; i++)
        st = ob_gram_new(vocab, &spec, &g->choices[i].gram, &job->err);
    if (st != OB_OK && !*job->param) {
        const char *field = !g->params.schema ? "tools" : json_object_get(job->json, "json_schema") ? "json_schema" : "response_format";
        strcpy(job->param, field);
        st = ob_err_prefix(&job->err, st, "%s", field);
    }
    if (g->params.tools && job->srv->n_marks) g->params.special = true; /* the tags must be seen */
    ob_buf_deinit(&text);
    return st;
}
