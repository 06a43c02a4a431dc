/* POST /v1/chat/completions in OpenAI's shapes, and the rendering that /apply-template shares. */
#include "serve/serve_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/math.h"

/* --- request (worker) ------------------------------------------------------------------------ */

/* The text of the last message, when it is an assistant's; NULL otherwise. */
static const char *final_assistant_text(const json_t *messages, size_t *len)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    const json_t *content = json_object_get(last, "content");
    if (!role || strcmp(role, "assistant") != 0 || !json_is_string(content)) return NULL;
    const char *s = json_string_value(content);
    *len = json_string_length(content);
    while (*len && strchr(" \t\r\n", *s)) s++, --*len;
    while (*len && strchr(" \t\r\n", s[*len - 1])) --*len;
    return *len ? s : NULL;
}

/* Cut what the template puts behind the last message, so that the model goes on with it. */
static ob_status cut_after_final(ob_job *job, const json_t *messages, size_t from, ob_buf *out)
{
    size_t len;
    const char *text = final_assistant_text(messages, &len);
    if (!text)
        return ob_job_fail(
            job, "continue_final_message", OB_E_INVALID,
            "'continue_final_message' needs a last message of the assistant with text");
    for (size_t i = out->len - OB_MIN(len, out->len) + 1; i-- > from;) {
        if (i + len > out->len || memcmp(out->data + i, text, len) != 0) continue;
        out->len = i + len;
        out->data[out->len] = 0;
        return OB_OK;
    }
    return ob_job_fail(job, "continue_final_message", OB_E_UNSUPPORTED,
                       "this model's template changes the last message, so it cannot be continued");
}

ob_status ob_chat_render(ob_job *job, const ob_gen_params *p, ob_buf *out)
{
    const ob_server *s = job->srv;
    const json_t *messages = json_object_get(job->json, "messages");
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return ob_job_fail(job, "messages", OB_E_INVALID,
                           "'messages' must be a list of at least one message");
    if (!s->tmpl) {
        job->err = s->tmpl_err;
        return job->err.code;
    }
    if (p->tools && !s->calls)
        return ob_job_fail(job, "tools", OB_E_UNSUPPORTED,
                           "this model's chat template takes no tools (--chat-template-file names another one)");
    ob_buf json;
    ob_buf_init(&json, OB_MAX_RENDER_BYTES);
    size_t from = out->len;
    ob_status st = ob_tmpl_messages(s->tmpl, messages, &json, &job->err);
    char *tools = st == OB_OK && p->tools ? json_dumps(p->tools, JSON_COMPACT) : NULL;
    if (st == OB_OK && p->tools && !tools) st = ob_job_fail(job, NULL, OB_E_NO_MEMORY, "no memory for the request");
    if (st == OB_OK) {
        const ob_tmpl_args args = {
            .messages_json = ob_buf_str(&json),
            .messages_len = json.len,
            .tools_json = tools,
            .extra_json = p->kwargs,
            .extra_len = p->kwargs_len,
            .bos_token = s->bos_text,
            .eos_token = s->eos_text,
            .now_unix = ob_unix_seconds(),
            .add_generation_prompt = p->add_generation_prompt && !p->continue_final_message,
        };
        st = ob_tmpl_render(s->tmpl, &args, out, &job->err);
    }
    free(tools); /* jansson's own */
    ob_buf_deinit(&json);
    if (st != OB_OK) {
        strcpy(job->param, "messages");
        return st;
    }
    return p->continue_final_message ? cut_after_final(job, messages, from, out) : OB_OK;
}

static void on_call(void *arg, const char *name, const char *arguments, size_t len);

static ob_status prepare_chat(ob_job *job)
{
    ob_gen *g = (ob_gen *)job;
    const ob_server *s = job->srv;
    OB_TRY(ob_json_parse(ob_buf_str(&job->body), job->body.len, &job->json, &job->err));
    ob_buf_deinit(&job->body);
    OB_TRY(ob_params_check_model(job));
    OB_TRY(ob_params_read(job, OB_API_CHAT, &g->params));
    ob_pictures pics = {0};
    ob_buf text;
    ob_buf_init(&text, OB_MAX_RENDER_BYTES);
    ob_status st = ob_pictures_take(job, &pics);
    if (st == OB_OK && !pics.n) st = ob_gen_route_begin(g); /* pictures stay with the served engine's tower */
    if (st == OB_OK) st = ob_chat_render(job, &g->params, &text);
    if (st == OB_OK && !atomic_load_explicit(&job->abandoned, memory_order_relaxed)) {
        g->prompts = ob_arena_alloc(&job->arena, sizeof *g->prompts);
        g->n_prompts = g->prompts ? 1 : 0;
        g->reasoning_open = ob_reasoning_prompt_opens(s->tags, ob_buf_str(&text), text.len);
        /* A template that writes the model's first token itself must not get a second one. */
        size_t n_bos = s->bos_text ? strlen(s->bos_text) : 0;
        bool has_bos = n_bos && text.len >= n_bos && memcmp(text.data, s->bos_text, n_bos) == 0;
        const unsigned flags = OB_TOK_SPECIAL | (has_bos ? 0 : OB_TOK_BOS);
        g->on_call = on_call;
        if (!g->prompts) st = ob_job_fail(job, NULL, OB_E_NO_MEMORY, "no memory for the request");
        else if (pics.n) st = ob_gen_tokenize_marked(g, g->prompts, "messages", ob_buf_str(&text), text.len, flags, &pics);
        else st = ob_gen_tokenize(g, g->prompts, "messages", ob_buf_str(&text), text.len, flags);
        if (st == OB_OK) st = ob_gen_make_choices(g, "messages");
        if (st == OB_OK) st = ob_gen_constrain(g);
        if (st == OB_OK) ob_gen_route_end(g);
    }
    ob_pictures_deinit(&pics);
    ob_buf_deinit(&text);
    return st;
}

/* --- replies (io thread) --------------------------------------------------------------------- */

static void add_one_logprob(ob_gen *g, int32_t id, float lp, ob_buf *out)
{
    ob_buf_adds(out, "{\"token\":");
    ob_gen_add_token_text(g, id, out);
    ob_buf_adds(out, ",\"logprob\":");
    ob_gen_add_logprob(lp, out);
    ob_buf_adds(out, ",\"bytes\":");
    ob_gen_add_token_bytes(g, id, out);
}

static void add_logprobs(ob_gen *g, const ob_token *t, ob_buf *out)
{
    add_one_logprob(g, t->id, t->logprob, out);
    ob_buf_adds(out, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < OB_MIN(t->n_top, g->params.n_top_logprobs); i++) {
        if (i) ob_buf_addc(out, ',');
        add_one_logprob(g, t->top[i].id, t->top[i].logprob, out);
        ob_buf_addc(out, '}');
    }
    ob_buf_adds(out, "]}");
}

/* A call is complete: into c->call_json, as it stands in a message or, with its index, in a frame. */
static void on_call(void *arg, const char *name, const char *arguments, size_t len)
{
    ob_choice *c = arg;
    ob_gen *g = c->gen;
    ob_buf *out = &c->call_json;
    const char *unique = g->id + strlen(g->api->id_prefix);
    if (out->len) ob_buf_addc(out, ',');
    ob_buf_addc(out, '{');
    if (g->params.stream) ob_buf_addf(out, "\"index\":%d,", c->n_calls);
    ob_buf_addf(out, "\"id\":\"call_%.12s%02x%02x\",\"type\":\"function\",\"function\":{\"name\":", unique, c->index & 255,
                c->n_calls & 255);
    ob_buf_add_json(out, name, strlen(name));
    ob_buf_adds(out, ",\"arguments\":");
    ob_buf_add_json(out, arguments, len);
    ob_buf_adds(out, "}}");
    c->n_calls++;
}

/* Text of the model: reasoning, calls and the rest. */
static void feed(ob_choice *c, const char *text, size_t len)
{
    if (!c->calls.style) {
        ob_reasoning_feed(&c->split, text, len, &c->reasoning, &c->text);
        return;
    }
    ob_buf plain;
    ob_buf_init(&plain, OB_MAX_REPLY_BYTES);
    if (text) ob_reasoning_feed(&c->split, text, len, &c->reasoning, &plain);
    else ob_reasoning_finish(&c->split, &c->reasoning, &plain);
    ob_calls_feed(&c->calls, ob_buf_str(&plain), plain.len, &c->text);
    if (!text) ob_calls_finish(&c->calls, &c->text);
    if (plain.failed) c->text.failed = plain.failed;
    ob_buf_deinit(&plain);
}

static void feed_end(ob_choice *c)
{
    if (c->calls.style) feed(c, NULL, 0);
    else ob_reasoning_finish(&c->split, &c->reasoning, &c->text);
}

static const char *finish_name(const ob_choice *c)
{
    return c->n_calls && c->finish == OB_FINISH_STOP ? "tool_calls" : ob_gen_finish_name(c);
}

/* One frame with what c->reasoning, c->text and c->call_json hold; all are emptied. */
static void add_delta(ob_gen *g, ob_choice *c, const ob_token *t, ob_buf *out)
{
    ob_gen_begin_frame(g, out);
    ob_buf_addf(out, "{\"index\":%d,\"delta\":{", c->index);
    const char *sep = "";
    if (!c->role_sent) {
        ob_buf_adds(out, "\"role\":\"assistant\"");
        sep = ",";
    }
    if (c->reasoning.len) {
        ob_buf_addf(out, "%s\"reasoning_content\":", sep);
        ob_buf_add_json(out, c->reasoning.data, c->reasoning.len);
        sep = ",";
    }
    if (c->text.len || (!c->role_sent && !c->call_json.len) || (t && !c->reasoning.len && !c->call_json.len)) {
        ob_buf_addf(out, "%s\"content\":", sep);
        ob_buf_add_json(out, ob_buf_str(&c->text), c->text.len);
        sep = ",";
    }
    if (c->call_json.len) {
        ob_buf_addf(out, "%s\"tool_calls\":[", sep);
        ob_buf_add(out, c->call_json.data, c->call_json.len);
        ob_buf_addc(out, ']');
    }
    ob_buf_adds(out, "},\"logprobs\":");
    if (t) {
        ob_buf_adds(out, "{\"content\":[");
        add_logprobs(g, t, out);
        ob_buf_adds(out, "],\"refusal\":null}");
    } else {
        ob_buf_adds(out, "null");
    }
    ob_buf_adds(out, ",\"finish_reason\":null}");
    ob_gen_end_frame(g, NULL, out);
    c->role_sent = true;
    ob_buf_clear(&c->text);
    ob_buf_clear(&c->reasoning);
    ob_buf_clear(&c->call_json);
}

static void chat_chunk(ob_gen *g, ob_choice *c, const ob_token *t, ob_buf *out)
{
    feed(c, t->text, t->text_len);
    bool with_logprobs = g->params.logprobs && t->id >= 0;
    if (c->text.len || c->reasoning.len || c->call_json.len || with_logprobs || !c->role_sent)
        add_delta(g, c, with_logprobs ? t : NULL, out);
}

static void chat_chunk_end(ob_gen *g, ob_choice *c, ob_buf *out)
{
    feed_end(c);
    if (c->text.len || c->reasoning.len || c->call_json.len || !c->role_sent) add_delta(g, c, NULL, out);
    ob_gen_begin_frame(g, out);
    ob_buf_addf(out, "{\"index\":%d,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"%s\"}",
                c->index, finish_name(c));
    ob_gen_end_frame(g, &c->timings, out);
}

static void chat_keep(ob_gen *g, ob_choice *c, const ob_token *t)
{
    feed(c, t->text, t->text_len);
    if (!g->params.logprobs || t->id < 0) return;
    if (c->lp[0].len) ob_buf_addc(&c->lp[0], ',');
    add_logprobs(g, t, &c->lp[0]);
}

static void chat_choice(ob_gen *g, ob_choice *c, ob_buf *out)
{
    feed_end(c);
    ob_buf_addf(out, "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    if (c->n_calls && !c->text.len) ob_buf_adds(out, "null");
    else ob_buf_add_json(out, ob_buf_str(&c->text), c->text.len);
    if (c->n_calls) {
        ob_buf_adds(out, ",\"tool_calls\":[");
        ob_buf_add(out, c->call_json.data, c->call_json.len);
        ob_buf_addc(out, ']');
    }
    if (c->reasoning.len) {
        ob_buf_adds(out, ",\"reasoning_content\":");
        ob_buf_add_json(out, c->reasoning.data, c->reasoning.len);
    }
    ob_buf_adds(out, ",\"refusal\":null},\"logprobs\":");
    if (g->params.logprobs) {
        ob_buf_adds(out, "{\"content\":[");
        ob_buf_add(out, ob_buf_str(&c->lp[0]), c->lp[0].len);
        ob_buf_adds(out, "],\"refusal\":null}");
    } else {
        ob_buf_adds(out, "null");
    }
    ob_buf_addf(out, ",\"finish_reason\":\"%s\"}", finish_name(c));
}

const ob_gen_api ob_api_chat = {
    .id_prefix = "chatcmpl-",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .chunk = chat_chunk,
    .chunk_end = chat_chunk_end,
    .keep = chat_keep,
    .choice = chat_choice,
};

void ob_route_chat(ob_conn *c) { ob_gen_start(c, &ob_api_chat, prepare_chat); }
