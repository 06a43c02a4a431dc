/* From a request's JSON to ob_gen_params, by one table: name, kind, range, place. A field that this
 * server does not know, or cannot honour with the value it has, is refused by name; nothing that
 * would change the answer is passed over in silence. */
#include "serve/serve_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/math.h"

/* --- JSON ------------------------------------------------------------------------------------ */

ob_status ob_json_parse(const char *text, size_t len, json_t **out, ob_err *err)
{
    *out = NULL;
    json_t *j;
    OB_TRY(ob_json_load(text, len, "the request body", &j, err));
    if (!json_is_object(j)) {
        json_decref(j);
        return ob_err_set(err, OB_E_INVALID, "the request body must be a JSON object");
    }
    *out = j;
    return OB_OK;
}

/* --- the table ------------------------------------------------------------------------------- */

typedef ob_status (*read_fn)(ob_job *job, const char *name, const json_t *v, ob_gen_params *p);

typedef enum field_kind {
    BOOL, INT, FLOAT, /* stored at `off`, within [lo, hi] */
    CUSTOM,           /* read by `read` */
    IGNORED,          /* changes nothing here by its own definition */
    NEUTRAL,          /* accepted only when it asks for nothing: see is_neutral */
    ELSEWHERE,        /* read by the API itself */
} field_kind;

typedef struct field {
    const char *name;
    unsigned apis;
    field_kind kind;
    size_t off;
    double lo, hi;
    read_fn read;
    const char *neutral; /* NEUTRAL: words or numbers that also ask for nothing, "a|b" */
} field;

static ob_status wrong_type(ob_job *job, const char *name, const char *wanted)
{
    return ob_job_fail(job, name, OB_E_INVALID, "'%s' must be %s", name, wanted);
}

static ob_status read_max_tokens(ob_job *job, const char *name, const json_t *v, ob_gen_params *p)
{
    if (!json_is_integer(v)) return wrong_type(job, name, "an integer");
    json_int_t n = json_integer_value(v);
    if (n < -1 || n == 0)
        return ob_job_fail(job, name, OB_E_INVALID,
                           "'%s' must be at least 1 (or -1: until the context is full)", name);
    p->max_tokens = (int32_t)OB_MIN(n, (json_int_t)INT32_MAX);
    return OB_OK;
}

static ob_status read_seed(ob_job *job, const char *name, const json_t *v, ob_gen_params *p)
{
    if (!json_is_integer(v)) return wrong_type(job, name, "an integer");
    /* -1: a random one, as llama-server has it */
    p->sampler.has_seed = json_integer_value(v) != -1;
    p->sampler.seed = (uint64_t)json_integer_value(v);
    return OB_OK;
}

static ob_status read_stop(ob_job *job, const char *name, const json_t *v, ob_gen_params *p)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (!json_is_string(v) && !json_is_array(v))
        return wrong_type(job, name, "a string or a list of strings");
    if (n > OB_MAX_STOP_STRINGS)
        return ob_job_fail(job, name, OB_E_LIMIT, "'stop' may hold %u strings, not %zu",
                           OB_MAX_STOP_STRINGS, n);
    p->stop = ob_arena_array(&job->arena, n ? n : 1, sizeof *p->stop);
    if (!p->stop) return ob_job_fail(job, NULL, OB_E_NO_MEMORY, "no memory for the request");
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(s)) return wrong_type(job, name, "a string or a list of strings");
        if (json_string_length(s) > OB_MAX_STOP_BYTES)
            return ob_job_fail(job, name, OB_E_LIMIT, "a stop string may have %u bytes, not %zu",
                               OB_MAX_STOP_BYTES, json_string_length(s));
        if (json_string_length(s)) p->stop[p->n_stop++] = json_string_value(s);
    }
    return OB_OK;
}

static ob_status add_bias(ob_job *job, ob_gen_params *p, ob_logit_bias *list, long long id,
                          const json_t *value)
{
    double bias = json_is_false(value) ? -INFINITY : json_number_value(value);
    if (!json_is_number(value) && !json_is_false(value))
        return wrong_type(job, "logit_bias", "a map from token ids to numbers");
    if (bias < -100) bias = -INFINITY;
    if (bias > 100)
        return ob_job_fail(job, "logit_bias", OB_E_INVALID,
                           "'logit_bias' must be from -100 to 100");
    if (id < 0 || id >= job->srv->info.n_vocab)
        return ob_job_fail(job, "logit_bias", OB_E_INVALID,
                           "'logit_bias' names token %lld; this model has tokens 0 to %d", id,
                           job->srv->info.n_vocab - 1);
    list[p->sampler.n_bias++] = (ob_logit_bias){(int32_t)id, (float)bias};
    return OB_OK;
}

/* {"15496": -100}, or llama-server's [[15496, -100], [50256, false]]. */
static ob_status read_logit_bias(ob_job *job, const char *name, const json_t *v, ob_gen_params *p)
{
    size_t n = json_is_object(v) ? json_object_size(v) : json_array_size(v);
    if (!json_is_object(v) && !json_is_array(v))
        return wrong_type(job, name, "a map from token ids to numbers");
    if (n > OB_MAX_LOGIT_BIAS)
        return ob_job_fail(job, name, OB_E_LIMIT, "'logit_bias' may hold %u tokens, not %zu",
                           OB_MAX_LOGIT_BIAS, n);
    ob_logit_bias *list = ob_arena_array(&job->arena, n ? n : 1, sizeof *list);
    if (!list) return ob_job_fail(job, NULL, OB_E_NO_MEMORY, "no memory for the request");
    p->sampler.bias = list;
    p->sampler.n_bias = 0;
    if (json_is_array(v)) {
        for (size_t i = 0; i < n; i++) {
            const json_t *pair = json_array_get(v, i);
            if (json_array_size(pair) != 2 || !json_is_integer(json_array_get(pair, 0)))
                return wrong_type(job, name, "a map from token ids to numbers");
            OB_TRY(add_bias(job, p, list, json_integer_value(json_array_get(pair, 0)),
                            json_array_get(pair, 1)));
        }
        return OB_OK;
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value)
    {
        char *end;
        long long id = strtoll(key, &end, 10);
        if (end == key || *end || strlen(key) > 10)
            return wrong_type(job, name, "a map from token ids to numbers");
        OB_TRY(add_bias(job, p, list, id, value));
    }
    return OB_OK;
}

static ob_status read_stream_options(ob_job *job, const char *name, const json_t *v,
                                     ob_gen_params *p)
{
    if (!json_is_object(v)) return wrong_type(job, name, "an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value)
    {
        if (strcmp(key, "include_usage") == 0 && (json_is_boolean(value) || json_is_null(value)))
            p->include_usage = json_is_true(value);
        else if (strcmp(key, "include_obfuscation") != 0) /* padding; nothing is padded here */
            return ob_job_fail(job, name, OB_E_INVALID,
                               "'stream_options' knows include_usage (a boolean), not '%.80s'",
                               key);
    }
    return OB_OK;
}

static ob_status read_chat_logprobs(ob_job *job, const char *name, const json_t *v,
                                    ob_gen_params *p)
{
    if (!json_is_boolean(v)) return wrong_type(job, name, "a boolean");
    p->logprobs = json_is_true(v);
    return OB_OK;
}

static ob_status read_count_logprobs(ob_job *job, const char *name, const json_t *v,
                                     ob_gen_params *p)
{
    if (json_is_false(v)) return OB_OK;
    if (!json_is_integer(v)) return wrong_type(job, name, "an integer");
    json_int_t n = json_integer_value(v);
    if (n < 0 || n > (json_int_t)OB_MAX_TOP_LOGPROBS)
        return ob_job_fail(job, name, OB_E_INVALID, "'%s' must be from 0 to %u", name,
                           OB_MAX_TOP_LOGPROBS);
    p->n_top_logprobs = (int32_t)n;
    if (strcmp(name, "logprobs") == 0) p->logprobs = true;
    return OB_OK;
}

static ob_status read_best_of(ob_job *job, const char *name, const json_t *v, ob_gen_params *p)
{
    const json_t *n = json_object_get(job->json, "n");
    (void)p;
    if (!json_is_integer(v)) return wrong_type(job, name, "an integer");
    if (json_integer_value(v) != (json_is_integer(n) ? json_integer_value(n) : 1))
        return ob_job_fail(job, name, OB_E_UNSUPPORTED,
                           "'best_of' other than 'n' is not supported");
    return OB_OK;
}

static ob_status keep_schema(ob_job *job, const char *name, const json_t *schema, ob_gen_params *p)
{
    if (!json_is_object(schema) && !json_is_boolean(schema)) return wrong_type(job, name, "a JSON schema (an object)");
    p->schema_len = json_dumpb(schema, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
    char *text = ob_arena_alloc(&job->arena, p->schema_len + 1);
    if (!text || !p->schema_len) return ob_job_fail(job, NULL, OB_E_NO_MEMORY, "no memory for the request");
    json_dumpb(schema, text, p->schema_len, JSON_COMPACT | JSON_ENCODE_ANY);
    p->schema = text;
    return OB_OK;
}

/* {"type": "text" | "json_object" | "json_schema", "json_schema": {"schema": …}}; llama.cpp's {"type": "json_object",
 * "schema": …} too. */
static ob_status read_response_format(ob_job *job, const char *name, const json_t *v, ob_gen_params *p)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!type) return wrong_type(job, name, "an object with a 'type'");
    if (strcmp(type, "text") == 0) return OB_OK;
    if (strcmp(type, "json_schema") == 0) {
        const json_t *schema = json_object_get(json_object_get(v, "json_schema"), "schema");
        return schema ? keep_schema(job, name, schema, p) : wrong_type(job, name, "an object with 'json_schema': {'schema': ...}");
    }
    if (strcmp(type, "json_object") != 0)
        return ob_job_fail(job, name, OB_E_UNSUPPORTED,
                           "'response_format' of type '%.60s' is not supported ('text', 'json_object' and 'json_schema' are)", type);
    const json_t *schema = json_object_get(v, "schema");
    if (schema) return keep_schema(job, name, schema, p);
    p->schema = "{\"type\":\"object\"}";
    p->schema_len = strlen(p->schema);
    return OB_OK;
}

static ob_status read_json_schema(ob_job *job, const char *name, const json_t *v, ob_gen_params *p)
{
    return keep_schema(job, name, v, p);
}

static ob_status read_modalities(ob_job *job, const char *name, const json_t *v, ob_gen_params *p)
{
    (void)p;
    if (!json_is_array(v)) return wrong_type(job, name, "a list of strings");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *s = json_string_value(json_array_get(v, i));
        if (!s || strcmp(s, "text") != 0)
            return ob_job_fail(job, name, OB_E_UNSUPPORTED,
                               "'modalities' other than \"text\" are not supported");
    }
    return OB_OK;
}

static ob_status read_reasoning_format(ob_job *job, const char *name, const json_t *v,
                                       ob_gen_params *p)
{
    if (!json_is_string(v) || !ob_reasoning_format_parse(json_string_value(v), &p->reasoning))
        return wrong_type(job, name, "\"auto\", \"deepseek\" or \"none\"");
    return OB_OK;
}

/* chat_template_kwargs and reasoning_effort become one object of template variables. */
static ob_status keep_kwargs(ob_job *job, ob_gen_params *p, const json_t *object)
{
    p->kwargs_len = json_dumpb(object, NULL, 0, JSON_COMPACT);
    char *text = ob_arena_alloc(&job->arena, p->kwargs_len + 1);
    if (!text || !p->kwargs_len)
        return ob_job_fail(job, NULL, OB_E_NO_MEMORY, "no memory for the request");
    json_dumpb(object, text, p->kwargs_len, JSON_COMPACT);
    p->kwargs = text;
    return OB_OK;
}

static ob_status read_kwargs(ob_job *job, const char *name, const json_t *v, ob_gen_params *p)
{
    (void)p; /* kept by read_extra once all fields are known */
    return json_is_object(v) ? OB_OK : wrong_type(job, name, "an object");
}

static ob_status read_effort(ob_job *job, const char *name, const json_t *v, ob_gen_params *p)
{
    (void)p;
    return json_is_string(v) ? OB_OK : wrong_type(job, name, "a string");
}

static ob_status read_extra(ob_job *job, ob_gen_params *p)
{
    json_t *kwargs = json_object_get(job->json, "chat_template_kwargs");
    json_t *effort = json_object_get(job->json, "reasoning_effort");
    if (!json_is_string(effort)) effort = NULL;
    if (!json_is_object(kwargs)) kwargs = NULL;
    if (!effort) return kwargs ? keep_kwargs(job, p, kwargs) : OB_OK;
    json_t *both = kwargs ? json_copy(kwargs) : json_object();
    ob_status s = OB_OK;
    if (!both || (!json_object_get(both, "reasoning_effort") &&
                  json_object_set(both, "reasoning_effort", effort) != 0))
        s = ob_job_fail(job, NULL, OB_E_NO_MEMORY, "no memory for the request");
    if (s == OB_OK) s = keep_kwargs(job, p, both);
    json_decref(both);
    return s;
}

#define AT(member) offsetof(ob_gen_params, member)
#define CHAT OB_API_CHAT
#define COMP OB_API_COMPLETIONS
#define GEN (OB_API_CHAT | OB_API_COMPLETIONS)
#define TMPL (OB_API_CHAT | OB_API_TEMPLATE)
#define ANY (GEN | OB_API_TEMPLATE)

static const field k_fields[] = {
    {.name = "model", .apis = ANY, .kind = ELSEWHERE},
    {.name = "messages", .apis = TMPL, .kind = ELSEWHERE},
    {.name = "prompt", .apis = COMP, .kind = ELSEWHERE},
    /* sampling */
    {"temperature", GEN, FLOAT, AT(sampler.temperature), 0, 100, NULL, NULL},
    {"top_p", GEN, FLOAT, AT(sampler.top_p), 0, 1, NULL, NULL},
    {"top_k", GEN, INT, AT(sampler.top_k), -1, INT32_MAX, NULL, NULL},
    {"min_p", GEN, FLOAT, AT(sampler.min_p), 0, 1, NULL, NULL},
    {"presence_penalty", GEN, FLOAT, AT(sampler.presence_penalty), -2, 2, NULL, NULL},
    {"frequency_penalty", GEN, FLOAT, AT(sampler.frequency_penalty), -2, 2, NULL, NULL},
    {"repeat_penalty", GEN, FLOAT, AT(sampler.repeat_penalty), 0.01, 100, NULL, NULL},
    {"repetition_penalty", GEN, FLOAT, AT(sampler.repeat_penalty), 0.01, 100, NULL, NULL},
    {"repeat_last_n", GEN, INT, AT(sampler.repeat_last_n), -1, OB_MAX_CTX, NULL, NULL},
    {.name = "seed", .apis = GEN, .kind = CUSTOM, .read = read_seed},
    {.name = "logit_bias", .apis = GEN, .kind = CUSTOM, .read = read_logit_bias},
    /* length and end */
    {.name = "max_tokens", .apis = GEN, .kind = CUSTOM, .read = read_max_tokens},
    {.name = "max_completion_tokens", .apis = GEN, .kind = CUSTOM, .read = read_max_tokens},
    {.name = "n_predict", .apis = GEN, .kind = CUSTOM, .read = read_max_tokens},
    {.name = "stop", .apis = GEN, .kind = CUSTOM, .read = read_stop},
    {"ignore_eos", GEN, BOOL, AT(ignore_eos), 0, 0, NULL, NULL},
    /* what comes back */
    {"n", GEN, INT, AT(n), 1, OB_MAX_N_CHOICES, NULL, NULL},
    {"stream", GEN, BOOL, AT(stream), 0, 0, NULL, NULL},
    {.name = "stream_options", .apis = GEN, .kind = CUSTOM, .read = read_stream_options},
    {.name = "logprobs", .apis = CHAT, .kind = CUSTOM, .read = read_chat_logprobs},
    {.name = "top_logprobs", .apis = CHAT, .kind = CUSTOM, .read = read_count_logprobs},
    {.name = "logprobs", .apis = COMP, .kind = CUSTOM, .read = read_count_logprobs},
    {"echo", COMP, BOOL, AT(echo), 0, 0, NULL, NULL},
    {.name = "best_of", .apis = COMP, .kind = CUSTOM, .read = read_best_of},
    {.name = "reasoning_format", .apis = CHAT, .kind = CUSTOM, .read = read_reasoning_format},
    {"cache_prompt", GEN, BOOL, AT(cache_prompt), 0, 0, NULL, NULL},
    /* template */
    {.name = "chat_template_kwargs", .apis = TMPL, .kind = CUSTOM, .read = read_kwargs},
    {.name = "reasoning_effort", .apis = TMPL, .kind = CUSTOM, .read = read_effort},
    {"add_generation_prompt", TMPL, BOOL, AT(add_generation_prompt), 0, 0, NULL, NULL},
    {"continue_final_message", TMPL, BOOL, AT(continue_final_message), 0, 0, NULL, NULL},
    /* accepted, and without effect by their own meaning */
    {.name = "user", .apis = ANY, .kind = IGNORED},
    {.name = "metadata", .apis = ANY, .kind = IGNORED},
    {.name = "store", .apis = ANY, .kind = IGNORED},
    {.name = "service_tier", .apis = ANY, .kind = IGNORED},
    {.name = "safety_identifier", .apis = ANY, .kind = IGNORED},
    {.name = "prompt_cache_key", .apis = ANY, .kind = IGNORED},
    {.name = "prompt_cache_retention", .apis = ANY, .kind = IGNORED},
    /* what the reply looks like */
    {.name = "response_format", .apis = GEN, .kind = CUSTOM, .read = read_response_format},
    {.name = "json_schema", .apis = GEN, .kind = CUSTOM, .read = read_json_schema},
    {.name = "tools", .apis = TMPL, .kind = ELSEWHERE},
    {.name = "tool_choice", .apis = TMPL, .kind = ELSEWHERE},
    {"parallel_tool_calls", TMPL, BOOL, AT(many_calls), 0, 0, NULL, NULL},
    /* accepted when they ask for nothing, refused otherwise */
    {.name = "modalities", .apis = CHAT, .kind = CUSTOM, .read = read_modalities},
    {.name = "functions", .apis = CHAT, .kind = NEUTRAL},
    {.name = "function_call", .apis = CHAT, .kind = NEUTRAL, .neutral = "none|auto"},
    {.name = "audio", .apis = CHAT, .kind = NEUTRAL},
    {.name = "prediction", .apis = CHAT, .kind = NEUTRAL},
    {.name = "web_search_options", .apis = CHAT, .kind = NEUTRAL},
    {.name = "verbosity", .apis = CHAT, .kind = NEUTRAL, .neutral = "medium"},
    {.name = "suffix", .apis = COMP, .kind = NEUTRAL},
    {.name = "grammar", .apis = GEN, .kind = NEUTRAL},
    {.name = "n_probs", .apis = GEN, .kind = NEUTRAL},
    {.name = "min_keep", .apis = GEN, .kind = NEUTRAL},
    {.name = "n_keep", .apis = GEN, .kind = NEUTRAL},
    {.name = "n_discard", .apis = GEN, .kind = NEUTRAL},
    {.name = "min_tokens", .apis = GEN, .kind = NEUTRAL},
    {.name = "id_slot", .apis = GEN, .kind = NEUTRAL, .neutral = "-1"},
    {.name = "typical_p", .apis = GEN, .kind = NEUTRAL, .neutral = "1"},
    {.name = "tfs_z", .apis = GEN, .kind = NEUTRAL, .neutral = "1"},
    {.name = "top_n_sigma", .apis = GEN, .kind = NEUTRAL, .neutral = "-1"},
    {.name = "xtc_probability", .apis = GEN, .kind = NEUTRAL},
    {.name = "xtc_threshold", .apis = GEN, .kind = IGNORED},
    {.name = "mirostat", .apis = GEN, .kind = NEUTRAL},
    {.name = "mirostat_tau", .apis = GEN, .kind = IGNORED},
    {.name = "mirostat_eta", .apis = GEN, .kind = IGNORED},
    {.name = "dynatemp_range", .apis = GEN, .kind = NEUTRAL},
    {.name = "dynatemp_exponent", .apis = GEN, .kind = IGNORED},
    {.name = "dry_multiplier", .apis = GEN, .kind = NEUTRAL},
    {.name = "dry_base", .apis = GEN, .kind = IGNORED},
    {.name = "dry_allowed_length", .apis = GEN, .kind = IGNORED},
    {.name = "dry_penalty_last_n", .apis = GEN, .kind = IGNORED},
    {.name = "dry_sequence_breakers", .apis = GEN, .kind = IGNORED},
    {.name = "samplers", .apis = GEN, .kind = NEUTRAL},
    {.name = "lora", .apis = GEN, .kind = NEUTRAL},
    {.name = "timings_per_token", .apis = GEN, .kind = NEUTRAL},
    {.name = "return_tokens", .apis = GEN, .kind = NEUTRAL},
    {.name = "return_progress", .apis = GEN, .kind = NEUTRAL},
    {.name = "post_sampling_probs", .apis = GEN, .kind = NEUTRAL},
};

/* Does the value ask for nothing? false, 0, "", [] and {} do; so do the field's own words. */
static bool is_neutral(const field *f, const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_FALSE: return true;
    case JSON_TRUE: return false;
    case JSON_ARRAY: return json_array_size(v) == 0;
    case JSON_OBJECT: return json_object_size(v) == 0;
    case JSON_INTEGER:
    case JSON_REAL: {
        double x = json_number_value(v);
        return x == 0 || (f->neutral && x == strtod(f->neutral, NULL));
    }
    case JSON_STRING: break;
    default: return true;
    }
    const char *s = json_string_value(v);
    size_t len = json_string_length(v);
    if (!len) return true;
    for (const char *w = f->neutral; w; w = strchr(w, '|') ? strchr(w, '|') + 1 : NULL)
        if (strcspn(w, "|") == len && memcmp(w, s, len) == 0) return true;
    return false;
}

static ob_status read_number(ob_job *job, const field *f, const json_t *v, void *to)
{
    double x = json_number_value(v);
    bool is_int = json_is_integer(v) || (json_is_real(v) && x == floor(x));
    if (f->kind == INT && !is_int) return wrong_type(job, f->name, "an integer");
    if (!json_is_number(v)) return wrong_type(job, f->name, "a number");
    if (!(x >= f->lo && x <= f->hi)) {
        if (f->hi >= INT32_MAX)
            return ob_job_fail(job, f->name, OB_E_INVALID, "'%s' must be at least %g, not %g",
                               f->name, f->lo, x);
        return ob_job_fail(job, f->name, OB_E_INVALID, "'%s' must be from %g to %g, not %g",
                           f->name, f->lo, f->hi, x);
    }
    if (f->kind == INT) *(int32_t *)to = (int32_t)x;
    else *(float *)to = (float)x;
    return OB_OK;
}

static const field *find_field(const char *name, unsigned api)
{
    for (size_t i = 0; i < OB_COUNT(k_fields); i++)
        if ((k_fields[i].apis & api) && strcmp(k_fields[i].name, name) == 0) return &k_fields[i];
    return NULL;
}

void ob_gen_params_defaults(ob_gen_params *p)
{
    memset(p, 0, sizeof *p);
    ob_sampler_defaults(&p->sampler);
    p->max_tokens = -1;
    p->n = 1;
    p->n_top_logprobs = -1;
    p->cache_prompt = true;
    p->add_generation_prompt = true;
    p->many_calls = true;
    p->reasoning = OB_REASONING_AUTO;
}

static ob_status check_together(ob_job *job, ob_api_kind api, ob_gen_params *p)
{
    if (p->include_usage && !p->stream)
        return ob_job_fail(job, "stream_options", OB_E_INVALID,
                           "'stream_options' is only allowed with 'stream'");
    if (api == OB_API_CHAT && p->n_top_logprobs >= 0 && !p->logprobs)
        return ob_job_fail(job, "top_logprobs", OB_E_INVALID,
                           "'top_logprobs' is only allowed with 'logprobs'");
    if (p->schema && p->tools)
        return ob_job_fail(job, "response_format", OB_E_UNSUPPORTED,
                           "a format of the reply together with 'tools' is not supported: leave out one of them");
    if (p->logprobs && p->n_top_logprobs < 0) p->n_top_logprobs = 0;
    if (p->echo && p->logprobs)
        return ob_job_fail(job, "echo", OB_E_UNSUPPORTED,
                           "'echo' together with 'logprobs' is not supported: there are no "
                           "log-probabilities of the prompt");
    return OB_OK;
}

ob_status ob_params_read(ob_job *job, ob_api_kind api, ob_gen_params *p)
{
    const char *name;
    json_t *v;
    json_object_foreach(job->json, name, v)
    {
        const field *f = find_field(name, api);
        if (!f)
            return ob_job_fail(job, name, OB_E_INVALID, "the field '%.60s' is not known here",
                               name);
        if (json_is_null(v)) continue; /* as if it were absent */
        void *to = (char *)p + f->off;
        switch (f->kind) {
        case BOOL:
            if (!json_is_boolean(v)) return wrong_type(job, name, "a boolean");
            *(bool *)to = json_is_true(v);
            break;
        case INT:
        case FLOAT: OB_TRY(read_number(job, f, v, to)); break;
        case CUSTOM: OB_TRY(f->read(job, name, v, p)); break;
        case NEUTRAL:
            if (!is_neutral(f, v))
                return ob_job_fail(job, name, OB_E_UNSUPPORTED, "'%s' is not supported", name);
            break;
        case IGNORED:
        case ELSEWHERE: break;
        }
    }
    OB_TRY(read_extra(job, p));
    if (api & TMPL) OB_TRY(ob_tools_read(job, p));
    return check_together(job, api, p);
}

ob_status ob_params_check_model(ob_job *job)
{
    if (ob_params_names_long(job)) return OB_OK;
    return ob_params_check_model_is(job, job->srv->model_id, job->srv->params.model_name, "");
}

bool ob_params_names_long(const ob_job *job)
{
    const char *name = json_string_value(json_object_get(job->json, "model")), *also = job->srv->params.long_name;
    if (!name || !job->srv->long_id || !strcmp(name, job->srv->model_id)) return false;
    return !strcmp(name, job->srv->long_id) || (also && !strcmp(name, also));
}

ob_status ob_params_check_model_is(ob_job *job, const char *id, const char *also, const char *what)
{
    const json_t *v = json_object_get(job->json, "model");
    if (!v || json_is_null(v)) return OB_OK;
    if (!json_is_string(v)) return wrong_type(job, "model", "a string");
    const char *name = json_string_value(v);
    if (!*name || strcmp(name, id) == 0 || (also && strcmp(name, also) == 0)) return OB_OK;
    return ob_job_fail(job, "model", OB_E_NOT_FOUND,
                       "the model '%.80s' does not exist here%s; this server has '%.80s'", name,
                       what, id);
}

ob_status ob_params_only(ob_job *job, const char *const *names)
{
    const char *key;
    json_t *v;
    json_object_foreach(job->json, key, v)
    {
        size_t i = 0;
        while (names[i] && strcmp(names[i], key) != 0) i++;
        if (!names[i])
            return ob_job_fail(job, key, OB_E_INVALID, "the field '%.60s' is not known here", key);
    }
    return OB_OK;
}

ob_status ob_params_read_bool(ob_job *job, const char *name, bool *to)
{
    const json_t *v = json_object_get(job->json, name);
    if (!v || json_is_null(v)) return OB_OK;
    if (!json_is_boolean(v))
        return ob_job_fail(job, name, OB_E_INVALID, "'%s' must be a boolean", name);
    *to = json_is_true(v);
    return OB_OK;
}

ob_status ob_params_read_ids(ob_job *job, const char *param, const json_t *array, int32_t n_vocab,
                             int32_t **ids, size_t *n)
{
    *n = json_array_size(array);
    *ids = ob_arena_array(&job->arena, *n ? *n : 1, sizeof **ids);
    if (!*ids)
        return ob_job_fail(job, param, OB_E_LIMIT, "'%s' holds more tokens than a request may",
                           param);
    for (size_t i = 0; i < *n; i++) {
        const json_t *v = json_array_get(array, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v))
            return ob_job_fail(job, param, OB_E_INVALID, "'%s' must hold token ids (integers)",
                               param);
        if (id < 0 || id >= n_vocab)
            return ob_job_fail(job, param, OB_E_INVALID,
                               "'%s' holds token %lld; this model has tokens 0 to %d", param,
                               (long long)id, n_vocab - 1);
        (*ids)[i] = (int32_t)id;
    }
    return OB_OK;
}
