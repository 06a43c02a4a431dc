/* POST /v1/completions in OpenAI's shapes: text or token ids in, text out, no template. */
#include "serve/serve_int.h"

#include <string.h>

#include "base/math.h"
#include "base/utf8.h"

/* --- request (worker) ------------------------------------------------------------------------ */

static ob_status read_text_prompt(ob_gen *g, ob_prompt *p, const json_t *v)
{
    p->text = json_string_value(v); /* the JSON lives as long as the job */
    p->text_len = json_string_length(v);
    return ob_gen_tokenize(g, p, "prompt", p->text, p->text_len, OB_TOK_SPECIAL | OB_TOK_BOS);
}

static ob_status read_ids_prompt(ob_gen *g, ob_prompt *p, const json_t *v)
{
    ob_job *job = &g->job;
    OB_TRY(ob_params_read_ids(job, "prompt", v, job->srv->info.n_vocab, &p->ids, &p->n_ids));
    if (!g->params.echo) return OB_OK;
    ob_buf text;
    ob_buf_init(&text, OB_MAX_RENDER_BYTES);
    ob_status s = ob_tok_decode(job->srv->tok, p->ids, p->n_ids, true, &text,
                                &job->err);
    p->text = s == OB_OK ? ob_arena_strndup(&job->arena, ob_buf_str(&text), text.len) : NULL;
    p->text_len = text.len;
    ob_buf_deinit(&text);
    if (s == OB_OK && !p->text)
        s = ob_job_fail(job, NULL, OB_E_NO_MEMORY, "no memory for the request");
    return s;
}

static ob_status read_prompts(ob_gen *g)
{
    static const char wanted[] =
        "'prompt' must be a string, a list of strings, a list of token ids, "
        "or a list of such lists";
    ob_job *job = &g->job;
    const json_t *v = json_object_get(job->json, "prompt");
    const json_t *first = json_array_get(v, 0);
    bool many = json_is_string(first) || json_is_array(first);
    size_t n = many ? json_array_size(v) : 1;
    if (!json_is_string(v) && !json_is_array(v))
        return ob_job_fail(job, "prompt", OB_E_INVALID, "%s", wanted);
    if (n > OB_MAX_PROMPTS)
        return ob_job_fail(job, "prompt", OB_E_LIMIT, "one request may hold %u prompts, not %zu",
                           OB_MAX_PROMPTS, n);
    g->prompts = ob_arena_array(&job->arena, n, sizeof *g->prompts);
    if (!g->prompts) return ob_job_fail(job, NULL, OB_E_NO_MEMORY, "no memory for the request");
    for (; g->n_prompts < n; g->n_prompts++) {
        ob_prompt *p = &g->prompts[g->n_prompts];
        const json_t *one = many ? json_array_get(v, g->n_prompts) : v;
        if (atomic_load_explicit(&job->abandoned, memory_order_relaxed)) return OB_OK;
        ob_status s = json_is_string(one)  ? read_text_prompt(g, p, one)
                      : json_is_array(one) ? read_ids_prompt(g, p, one)
                                           : ob_job_fail(job, "prompt", OB_E_INVALID, "%s", wanted);
        if (s != OB_OK) {
            g->n_prompts++; /* so that destroy sees this one */
            return s;
        }
    }
    return OB_OK;
}

static ob_status prepare_completions(ob_job *job)
{
    ob_gen *g = (ob_gen *)job;
    OB_TRY(ob_json_parse(ob_buf_str(&job->body), job->body.len, &job->json, &job->err));
    ob_buf_deinit(&job->body);
    OB_TRY(ob_params_check_model(job));
    OB_TRY(ob_params_read(job, OB_API_COMPLETIONS, &g->params));
    OB_TRY(ob_gen_route_begin(g));
    OB_TRY(read_prompts(g));
    OB_TRY(ob_gen_make_choices(g, "prompt"));
    OB_TRY(ob_gen_constrain(g));
    ob_gen_route_end(g);
    return OB_OK;
}

/* --- replies (io thread) --------------------------------------------------------------------- */

enum { TOKENS, TOKEN_LPS, TOP_LPS, OFFSETS }; /* the four lists of OpenAI's object, in c->lp */

/* A token as the key of an object: where it is part of a character, its bytes, as OpenAI writes
 * them, since all such parts would read U+FFFD otherwise. */
static void add_key(ob_gen *g, int32_t id, ob_buf *out)
{
    size_t len;
    const char *s = ob_tok_piece(g->job.srv->tok, id, &len);
    if (ob_utf8_is_valid(s, len)) {
        ob_buf_add_json(out, s, len);
        return;
    }
    ob_buf_adds(out, "\"bytes:");
    for (size_t i = 0; i < len; i++) ob_buf_addf(out, "\\\\x%02x", (unsigned char)s[i]);
    ob_buf_addc(out, '"');
}

static void keep_logprobs(ob_gen *g, ob_choice *c, const ob_token *t)
{
    if (c->lp[TOKENS].len)
        for (int k = 0; k < 4; k++) ob_buf_addc(&c->lp[k], ',');
    add_key(g, t->id, &c->lp[TOKENS]);
    ob_gen_add_logprob(t->logprob, &c->lp[TOKEN_LPS]);
    ob_buf *top = &c->lp[TOP_LPS];
    ob_buf_addc(top, '{');
    for (int32_t i = 0; i < OB_MIN(t->n_top, g->params.n_top_logprobs); i++) {
        if (i) ob_buf_addc(top, ',');
        add_key(g, t->top[i].id, top);
        ob_buf_addc(top, ':');
        ob_gen_add_logprob(t->top[i].logprob, top);
    }
    ob_buf_addc(top, '}');
    ob_buf_addf(&c->lp[OFFSETS], "%zu", c->text_len);
}

static void add_logprobs(ob_gen *g, ob_choice *c, ob_buf *out)
{
    static const char *const names[4] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    if (!g->params.logprobs || !c->lp[TOKENS].len) {
        ob_buf_adds(out, ",\"logprobs\":null");
        return;
    }
    ob_buf_adds(out, ",\"logprobs\":");
    for (int k = 0; k < 4; k++) {
        ob_buf_addf(out, "%c\"%s\":[", k ? ',' : '{', names[k]);
        ob_buf_add(out, ob_buf_str(&c->lp[k]), c->lp[k].len);
        ob_buf_addc(out, ']');
    }
    ob_buf_addc(out, '}');
}

static void add_frame(ob_gen *g, ob_choice *c, const char *text, size_t len, ob_buf *out)
{
    ob_gen_begin_frame(g, out);
    ob_buf_addf(out, "{\"index\":%d,\"text\":", c->index);
    ob_buf_add_json(out, text, len);
    add_logprobs(g, c, out);
    ob_buf_adds(out, ",\"finish_reason\":null}");
    ob_gen_end_frame(g, NULL, out);
    for (int k = 0; k < 4; k++) ob_buf_clear(&c->lp[k]);
}

static void echo_prompt(ob_gen *g, ob_choice *c, ob_buf *out)
{
    if (!g->params.echo || c->role_sent) return;
    c->role_sent = true; /* here: the echo has gone out */
    add_frame(g, c, c->prompt->text, c->prompt->text_len, out);
    c->text_len += c->prompt->text_len;
}

static void completions_chunk(ob_gen *g, ob_choice *c, const ob_token *t, ob_buf *out)
{
    echo_prompt(g, c, out);
    bool with_logprobs = g->params.logprobs && t->id >= 0;
    if (with_logprobs) keep_logprobs(g, c, t);
    if (t->text_len || with_logprobs) add_frame(g, c, t->text, t->text_len, out);
    c->text_len += t->text_len;
}

static void completions_chunk_end(ob_gen *g, ob_choice *c, ob_buf *out)
{
    echo_prompt(g, c, out);
    ob_gen_begin_frame(g, out);
    ob_buf_addf(out, "{\"index\":%d,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"%s\"}",
                c->index, ob_gen_finish_name(c));
    ob_gen_end_frame(g, &c->timings, out);
}

static void completions_keep(ob_gen *g, ob_choice *c, const ob_token *t)
{
    if (g->params.logprobs && t->id >= 0) keep_logprobs(g, c, t);
    ob_buf_add(&c->text, t->text, t->text_len);
    c->text_len += t->text_len;
}

static void completions_choice(ob_gen *g, ob_choice *c, ob_buf *out)
{
    ob_buf text; /* JSON cannot be written in two pieces, so an echo is joined first */
    ob_buf_init(&text, OB_MAX_REPLY_BYTES);
    if (g->params.echo) ob_buf_add(&text, c->prompt->text, c->prompt->text_len);
    ob_buf_add(&text, ob_buf_str(&c->text), c->text.len);
    ob_buf_addf(out, "{\"index\":%d,\"text\":", c->index);
    ob_buf_add_json(out, ob_buf_str(&text), text.len);
    if (text.failed) out->failed = text.failed;
    ob_buf_deinit(&text);
    add_logprobs(g, c, out);
    ob_buf_addf(out, ",\"finish_reason\":\"%s\"}", ob_gen_finish_name(c));
}

const ob_gen_api ob_api_completions = {
    .id_prefix = "cmpl-",
    .object = "text_completion",
    .chunk_object = "text_completion",
    .chunk = completions_chunk,
    .chunk_end = completions_chunk_end,
    .keep = completions_keep,
    .choice = completions_choice,
};

void ob_route_completions(ob_conn *c) { ob_gen_start(c, &ob_api_completions, prepare_completions); }
