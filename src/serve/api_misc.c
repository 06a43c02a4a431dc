/* The small routes: health, models, tokens, template, properties, slots, the chat page. */
#include "serve/serve_int.h"

#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "base/utf8.h"

static void add_str(ob_buf *out, const char *name, const char *value)
{
    ob_buf_addf(out, "\"%s\":", name);
    ob_buf_add_json(out, value, strlen(value));
}

/* --- health ---------------------------------------------------------------------------------- */

void ob_route_health(ob_conn *c)
{
    const ob_server *s = ob_conn_server(c);
    ob_engine_stats st = {0};
    if (s->ready && s->engine) ob_engine_get_stats(s->engine, &st);
    const char *status = s->stopping       ? "stopping"
                         : !s->ready       ? "loading"
                         : st.device_down  ? "device lost" /* the next request tries to open it again */
                                           : "ok";
    ob_buf out;
    ob_buf_init(&out, 4096);
    ob_buf_addf(&out, "{\"status\":\"%s\"", status);
    if (s->ready && s->vision) ob_buf_adds(&out, ",\"input_modalities\":[\"text\",\"image\"]");
    if (s->ready && (s->info.device.caps & OB_DEV_SOFT)) { /* an emulation says so everywhere */
        ob_buf_addc(&out, ',');
        add_str(&out, "device", s->info.device.kind);
        ob_buf_adds(&out, ",\"soft\":true");
    }
    if (s->ready && ((s->info.device.caps & OB_DEV_SOFT) || s->info.prefill_soft)) ob_buf_adds(&out, ",\"hardware\":false");
    if (st.n_device_faults)
        ob_buf_addf(&out, ",\"device_faults\":%llu,\"retried\":%llu", (unsigned long long)st.n_device_faults,
                    (unsigned long long)st.n_retried);
    if (s->ready && s->info.device.reason[0]) { /* kernels that were switched off */
        ob_buf_addc(&out, ',');
        add_str(&out, "note", s->info.device.reason);
    }
    if (s->ready && s->info.prefill_device[0]) {
        ob_buf_addc(&out, ',');
        add_str(&out, "prefill_device", s->info.prefill_device);
    }
    ob_engine_info other;
    const char *state;
    if (s->ready && s->routing && ob_routing_long(s->routing, &other, &state)) {
        ob_buf_adds(&out, ",\"long_model\":{");
        add_str(&out, "id", s->long_id);
        ob_buf_addc(&out, ',');
        add_str(&out, "device", other.device.kind);
        ob_buf_addc(&out, ',');
        add_str(&out, "state", state);
        ob_buf_addf(&out, ",\"from\":%d}", s->params.long_from);
    }
    ob_buf_addc(&out, '}');
    ob_conn_reply(c, s->ready && !s->stopping && !st.device_down ? 200 : 503, "application/json; charset=utf-8", NULL,
                  ob_buf_str(&out), out.len);
    ob_buf_deinit(&out);
}

/* --- models ---------------------------------------------------------------------------------- */

static void add_model(const ob_server *s, const char *id, const char *role, const ob_engine_info *i, ob_buf *out)
{
    const bool pictures = s->vision && i == &s->info;
    ob_buf_addc(out, '{');
    add_str(out, "id", id);
    ob_buf_addf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"1bit\",",
                (long long)s->created);
    add_str(out, "role", role);
    ob_buf_addc(out, ',');
    add_str(out, "device", i->device.kind);
    ob_buf_adds(out, pictures ? ",\"input_modalities\":[\"text\",\"image\"]" : ",\"input_modalities\":[\"text\"]");
    ob_buf_adds(out, ",\"meta\":{");
    add_str(out, "name", i->name);
    ob_buf_addc(out, ',');
    add_str(out, "arch", i->arch);
    ob_buf_addc(out, ',');
    add_str(out, "quant", i->quant);
    ob_buf_addf(out,
                ",\"n_params\":%llu,\"size\":%llu,\"n_vocab\":%d,\"n_ctx\":%d,\"n_ctx_train\":%d,"
                "\"n_embd\":%d,\"n_layer\":%d,\"shared_bytes\":%llu}}",
                (unsigned long long)i->n_params, (unsigned long long)i->n_bytes, i->n_vocab,
                i->n_ctx, i->n_ctx_train, i->n_embd, i->n_layer, (unsigned long long)i->n_shared_bytes);
}

static bool is_named(const char *name, const char *id, const char *also)
{
    return strcmp(name, id) == 0 || (also && strcmp(name, also) == 0);
}

/* All models, or the one of this id; the number written. */
static int add_models(const ob_server *s, const char *id, ob_buf *out)
{
    int n = 0;
    if (s->engine && (!id || is_named(id, s->model_id, s->params.model_name))) {
        add_model(s, s->model_id, "generate", &s->info, out);
        n++;
    }
    ob_engine_info other;
    if (s->engine && s->routing && ob_routing_long(s->routing, &other, NULL) &&
        (!id || (!n && is_named(id, s->long_id, s->params.long_name)))) {
        if (n++) ob_buf_addc(out, ',');
        add_model(s, s->long_id, "generate", &other, out);
    }
    for (int i = 0; i < s->n_served; i++) {
        const ob_served *m = &s->served[i];
        if (id && (n || !is_named(id, m->id, m->also))) continue;
        if (n++) ob_buf_addc(out, ',');
        add_model(s, m->id, m->role, &m->info, out);
    }
    return n;
}

void ob_route_models(ob_conn *c)
{
    ob_buf out;
    ob_buf_init(&out, 16384);
    ob_buf_adds(&out, "{\"object\":\"list\",\"data\":[");
    add_models(ob_conn_server(c), NULL, &out);
    ob_buf_adds(&out, "]}");
    ob_conn_reply_json(c, &out);
    ob_buf_deinit(&out);
}

void ob_route_model(ob_conn *c)
{
    const ob_server *s = ob_conn_server(c);
    char name[512];
    ob_buf out;
    ob_buf_init(&out, 16384);
    if (ob_http_percent_decode(ob_conn_path_rest(c), name, sizeof name) && add_models(s, name, &out)) {
        ob_conn_reply_json(c, &out);
    } else {
        ob_err err;
        ob_err_set(&err, OB_E_NOT_FOUND, "that model does not exist here; this server has '%.80s'",
                   s->model_id);
        ob_conn_reply_err(c, &err, "model");
    }
    ob_buf_deinit(&out);
}

/* --- tokens (worker) ------------------------------------------------------------------------- */

static ob_status parse_body(ob_job *job)
{
    OB_TRY(ob_json_parse(ob_buf_str(&job->body), job->body.len, &job->json, &job->err));
    ob_buf_deinit(&job->body);
    return ob_params_check_model(job);
}

static void add_piece(const ob_tok *tok, int32_t id, ob_buf *out)
{
    size_t len;
    const char *s = ob_tok_piece(tok, id, &len);
    ob_buf_addf(out, "{\"id\":%d,\"piece\":", id);
    if (ob_utf8_is_valid(s, len)) {
        ob_buf_add_json(out, s, len);
    } else { /* part of a character: its bytes */
        ob_buf_addc(out, '[');
        for (size_t i = 0; i < len; i++) ob_buf_addf(out, i ? ",%u" : "%u", (unsigned char)s[i]);
        ob_buf_addc(out, ']');
    }
    ob_buf_addc(out, '}');
}

static ob_status run_tokenize(ob_job *job)
{
    static const char *const known[] = {"model", "content", "add_special", "parse_special",
                                        "with_pieces", NULL};
    bool add_special = false, parse_special = true, with_pieces = false;
    OB_TRY(parse_body(job));
    OB_TRY(ob_params_only(job, known));
    OB_TRY(ob_params_read_bool(job, "add_special", &add_special));
    OB_TRY(ob_params_read_bool(job, "parse_special", &parse_special));
    OB_TRY(ob_params_read_bool(job, "with_pieces", &with_pieces));
    const json_t *content = json_object_get(job->json, "content");
    if (!json_is_string(content))
        return ob_job_fail(job, "content", OB_E_INVALID, "'content' must be a string");
    const ob_tok *tok = job->srv->tok;
    int32_t *ids;
    size_t n;
    unsigned flags = (add_special ? OB_TOK_BOS : 0u) | (parse_special ? OB_TOK_SPECIAL : 0u);
    OB_TRY(ob_tok_encode(tok, json_string_value(content), json_string_length(content), flags, &ids,
                         &n, &job->err));
    ob_buf_adds(&job->reply, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++) {
        if (i) ob_buf_addc(&job->reply, ',');
        if (with_pieces) add_piece(tok, ids[i], &job->reply);
        else ob_buf_addf(&job->reply, "%d", ids[i]);
    }
    ob_buf_adds(&job->reply, "]}");
    ob_free(ids);
    return OB_OK;
}

static ob_status run_detokenize(ob_job *job)
{
    static const char *const known[] = {"model", "tokens", NULL};
    OB_TRY(parse_body(job));
    OB_TRY(ob_params_only(job, known));
    const json_t *tokens = json_object_get(job->json, "tokens");
    if (!json_is_array(tokens))
        return ob_job_fail(job, "tokens", OB_E_INVALID, "'tokens' must be a list of token ids");
    int32_t *ids;
    size_t n;
    OB_TRY(ob_params_read_ids(job, "tokens", tokens, job->srv->info.n_vocab, &ids, &n));
    ob_buf text;
    ob_buf_init(&text, OB_MAX_REPLY_BYTES);
    ob_status s = ob_tok_decode(job->srv->tok, ids, n, true, &text, &job->err);
    if (s == OB_OK) {
        ob_buf_adds(&job->reply, "{\"content\":");
        ob_buf_add_json(&job->reply, ob_buf_str(&text), text.len);
        ob_buf_addc(&job->reply, '}');
    }
    ob_buf_deinit(&text);
    return s;
}

static ob_status run_apply_template(ob_job *job)
{
    ob_gen_params p;
    ob_gen_params_defaults(&p);
    OB_TRY(parse_body(job));
    OB_TRY(ob_params_read(job, OB_API_TEMPLATE, &p));
    ob_pictures pics = {.marks_only = true};
    ob_buf text;
    ob_buf_init(&text, OB_MAX_RENDER_BYTES);
    ob_status s = ob_pictures_take(job, &pics);
    if (s == OB_OK) s = ob_chat_render(job, &p, &text);
    ob_pictures_deinit(&pics);
    if (s == OB_OK) {
        ob_buf_adds(&job->reply, "{\"prompt\":");
        ob_buf_add_json(&job->reply, ob_buf_str(&text), text.len);
        ob_buf_addc(&job->reply, '}');
    }
    ob_buf_deinit(&text);
    return s;
}

static void start_job(ob_conn *c, ob_status (*fn)(ob_job *job))
{
    ob_job *job = ob_job_new(c, sizeof *job);
    if (!job) return;
    job->run = fn;
    job->finish = ob_job_reply;
    ob_job_queue(job);
}

void ob_route_tokenize(ob_conn *c) { start_job(c, run_tokenize); }
void ob_route_detokenize(ob_conn *c) { start_job(c, run_detokenize); }
void ob_route_apply_template(ob_conn *c) { start_job(c, run_apply_template); }

/* --- properties and slots -------------------------------------------------------------------- */

static void add_number(ob_buf *out, const char *name, double x)
{
    ob_buf_addf(out, "\"%s\":", name);
    ob_buf_add_double(out, x);
    ob_buf_addc(out, ',');
}

static void add_default_settings(const ob_server *s, ob_buf *out)
{
    ob_sampler_params p;
    ob_sampler_defaults(&p);
    ob_buf_addf(out, "\"default_generation_settings\":{\"n_ctx\":%d,\"params\":{", s->info.n_ctx);
    /* Shown as written, not as the nearest double of a float. */
    const struct {
        const char *name;
        float value;
    } rows[] = {{"temperature", p.temperature}, {"top_p", p.top_p}, {"min_p", p.min_p},
                {"repeat_penalty", p.repeat_penalty}, {"presence_penalty", p.presence_penalty},
                {"frequency_penalty", p.frequency_penalty}};
    for (size_t i = 0; i < OB_COUNT(rows); i++)
        ob_buf_addf(out, "\"%s\":%g,", rows[i].name, (double)rows[i].value);
    add_number(out, "top_k", p.top_k);
    add_number(out, "repeat_last_n", p.repeat_last_n);
    ob_buf_adds(out, "\"n_predict\":-1}}");
}

void ob_route_props(ob_conn *c)
{
    const ob_server *s = ob_conn_server(c);
    const ob_engine_info *i = &s->info;
    ob_buf out;
    ob_buf_init(&out, OB_MAX_RENDER_BYTES);
    ob_buf_addc(&out, '{');
    add_default_settings(s, &out);
    ob_buf_addf(&out, ",\"total_slots\":%d,", i->n_seq);
    add_str(&out, "model_alias", s->model_id);
    ob_buf_addc(&out, ',');
    add_str(&out, "model_path", s->params.engine.model_path);
    ob_buf_addc(&out, ',');
    add_str(&out, "chat_template", s->tmpl ? ob_tmpl_source(s->tmpl) : "");
    ob_buf_addc(&out, ',');
    add_str(&out, "bos_token", s->bos_text ? s->bos_text : "");
    ob_buf_addc(&out, ',');
    add_str(&out, "eos_token", s->eos_text ? s->eos_text : "");
    ob_buf_addf(&out, ",\"modalities\":{\"vision\":%s,\"audio\":false},\"device\":{", s->vision ? "true" : "false");
    add_str(&out, "kind", i->device.kind);
    ob_buf_addc(&out, ',');
    add_str(&out, "name", i->device.name);
    ob_buf_addf(&out, ",\"soft\":%s},", i->device.caps & OB_DEV_SOFT ? "true" : "false");
    add_str(&out, "build_info", "1bit " OB_VERSION);
    ob_buf_addc(&out, '}');
    ob_conn_reply_json(c, &out);
    ob_buf_deinit(&out);
}

void ob_route_slots(ob_conn *c)
{
    ob_server *s = ob_conn_server(c);
    ob_slot_info slots[OB_MAX_SEQS];
    int n = s->engine ? ob_engine_get_slots(s->engine, slots, OB_MAX_SEQS) : 0;
    ob_buf out;
    ob_buf_init(&out, 1u << 20);
    ob_buf_addc(&out, '[');
    for (int i = 0; i < n; i++) {
        const ob_slot_info *t = &slots[i];
        ob_buf_addf(
            &out,
            "%s{\"id\":%d,\"n_ctx\":%d,\"is_processing\":%s,\"state\":\"%s\",\"n_prompt\":%d,"
            "\"n_cached\":%d,\"n_past\":%d,\"n_decoded\":%d}",
            i ? "," : "", t->id, s->info.n_ctx, t->busy ? "true" : "false",
            !t->busy        ? "idle"
            : t->prefilling ? "prefill"
                            : "decode",
            t->n_prompt, t->n_cached, t->n_past, t->n_gen);
    }
    ob_buf_addc(&out, ']');
    ob_conn_reply_json(c, &out);
    ob_buf_deinit(&out);
}

/* --- chat page ------------------------------------------------------------------------------- */

bool ob_route_web(ob_conn *c)
{
    const ob_http_head *h = ob_conn_head(c);
    const ob_web_asset *a = ob_serve_web_assets;
    while (a->path && !ob_sv_is(h->path, a->path)) a++;
    if (!a->path) return false;
    bool same = h->if_none_match.data && ob_sv_is(h->if_none_match, a->etag);
    ob_buf headers;
    ob_buf_init(&headers, 2048);
    /* Nothing from outside, no inline script, no frame around the page. */
    ob_buf_addf(
        &headers,
        "ETag: %s\r\nCache-Control: no-cache\r\n"
        "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
        "img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; "
        "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
        "Referrer-Policy: no-referrer\r\nX-Frame-Options: DENY\r\n",
        a->etag);
    ob_conn_reply(c, same ? 304 : 200, a->content_type, ob_buf_str(&headers), a->data,
                  same ? 0 : a->len);
    ob_buf_deinit(&headers);
    return true;
}
