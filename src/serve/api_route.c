/* POST /v1/decide: typed questions to the scorer. GET or POST /v1/routing/explain: what routing would do, and did. */
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "route/turns.h"
#include "serve/serve_int.h"

enum { MAX_QUESTIONS = 64 };

/* --- decide (worker) ------------------------------------------------------------------------- */

static void add_decision(const ob_question *q, const ob_decision *d, ob_buf *out)
{
    ob_buf_adds(out, "{\"choice\":");
    ob_buf_add_json(out, q->options[d->best].label, strlen(q->options[d->best].label));
    ob_buf_addf(out, ",\"confidence\":%.6f,\"probabilities\":{", (double)d->confidence);
    for (int32_t i = 0; i < d->n; i++) {
        if (i) ob_buf_addc(out, ',');
        ob_buf_add_json(out, q->options[i].label, strlen(q->options[i].label));
        ob_buf_addf(out, ":%.6f", (double)d->probs[i]);
    }
    ob_buf_addf(out, "},\"n_tokens\":%d,\"ms\":%.3f}", d->n_tok, d->ms);
}

static ob_status answer(ob_job *job, const char *name, const json_t *v, const ob_turns *t)
{
    ob_question q;
    ob_decision d;
    char what[100];
    snprintf(what, sizeof what, "question '%.60s'", name);
    snprintf(job->param, sizeof job->param, "questions");
    OB_TRY(ob_question_parse(v, what, &q, &job->err));
    const ob_status s = ob_scorer_ask(ob_routing_scorer(job->srv->routing), &q, t, &d, &job->err);
    if (s == OB_OK) add_decision(&q, &d, &job->reply);
    ob_question_deinit(&q);
    *job->param = s == OB_OK ? 0 : *job->param;
    return s;
}

/* Without questions: the class, by the byte gate and the scorer. */
static ob_status classify(ob_job *job, const ob_turns *t)
{
    ob_decision d;
    if (ob_turns_bytes(t) >= OB_ROUTE_GATE_BYTES) {
        ob_buf_adds(&job->reply, "{\"class\":\"long_doc\",\"confidence\":1,\"probabilities\":{\"long_doc\":1}}");
        return OB_OK;
    }
    OB_TRY(ob_scorer_ask(ob_routing_scorer(job->srv->routing), ob_question_classes(), t, &d, &job->err));
    ob_buf_addf(&job->reply, "{\"class\":\"%s\",\"confidence\":%.6f,\"probabilities\":{", ob_class_name((ob_class)d.best), (double)d.confidence);
    for (int32_t i = 0; i < d.n; i++)
        ob_buf_addf(&job->reply, "%s\"%s\":%.6f", i ? "," : "", ob_class_name((ob_class)i), (double)d.probs[i]);
    ob_buf_addf(&job->reply, "},\"n_tokens\":%d,\"ms\":%.3f}", d.n_tok, d.ms);
    return OB_OK;
}

static ob_status decide_about(ob_job *job, const ob_turns *t)
{
    json_t *questions = json_object_get(job->json, "questions"), *v;
    const char *name, *sep = "";
    if (!questions) return classify(job, t);
    if (!json_is_object(questions) || json_object_size(questions) < 1 || json_object_size(questions) > MAX_QUESTIONS)
        return ob_job_fail(job, "questions", OB_E_INVALID, "'questions' must be an object of 1 to %d questions", MAX_QUESTIONS);
    ob_buf_adds(&job->reply, "{\"answers\":{");
    json_object_foreach(questions, name, v)
    {
        ob_buf_adds(&job->reply, sep);
        ob_buf_add_json(&job->reply, name, strlen(name));
        ob_buf_addc(&job->reply, ':');
        OB_TRY(answer(job, name, v, t));
        sep = ",";
    }
    ob_buf_adds(&job->reply, "}}");
    return OB_OK;
}

static ob_status decide(ob_job *job)
{
    static const char *const known[] = {"model", "messages", "state", "questions", NULL};
    ob_turn_list turns;
    OB_TRY(ob_json_parse(ob_buf_str(&job->body), job->body.len, &job->json, &job->err));
    ob_buf_deinit(&job->body);
    OB_TRY(ob_params_only(job, known));
    if (!job->srv->routing || !ob_routing_scorer(job->srv->routing))
        return ob_job_fail(job, NULL, OB_E_UNSUPPORTED, "this server has no scorer: start it with --laya");
    const json_t *messages = json_object_get(job->json, "messages");
    snprintf(job->param, sizeof job->param, "%s", messages ? "messages" : "state");
    OB_TRY(ob_turns_parse(messages ? messages : json_object_get(job->json, "state"), messages ? "'messages'" : "'state'", &turns, &job->err));
    *job->param = 0;
    const ob_status s = decide_about(job, &turns.turns);
    ob_turn_list_deinit(&turns);
    return s == OB_OK ? ob_buf_status(&job->reply, &job->err) : s;
}

static void start(ob_conn *c, ob_status (*run)(ob_job *job))
{
    ob_job *job = ob_job_new(c, sizeof *job);
    if (!job) return;
    job->run = run;
    job->finish = ob_job_reply;
    ob_job_queue(job);
}

void ob_route_decide(ob_conn *c) { start(c, decide); }

/* --- explain (worker) ------------------------------------------------------------------------ */

/* Tokens of the prompt that the request would become; 0 where there is no text. */
static ob_status count_prompt(ob_job *job, int32_t *n)
{
    const json_t *prompt = json_object_get(job->json, "prompt");
    ob_gen_params p;
    ob_buf text;
    int32_t *ids;
    size_t n_ids;
    *n = 0;
    ob_buf_init(&text, OB_MAX_RENDER_BYTES);
    ob_gen_params_defaults(&p);
    ob_status s = OB_OK;
    if (json_object_get(job->json, "messages")) s = ob_chat_render(job, &p, &text);
    else if (json_is_string(prompt)) ob_buf_add(&text, json_string_value(prompt), json_string_length(prompt));
    if (s == OB_OK) s = ob_buf_status(&text, &job->err);
    if (s == OB_OK && text.len) {
        const char *bos = job->srv->bos_text;
        const bool has_bos = bos && *bos && !strncmp(ob_buf_str(&text), bos, strlen(bos));
        s = ob_tok_encode(job->srv->tok, ob_buf_str(&text), text.len, OB_TOK_SPECIAL | (has_bos ? 0 : OB_TOK_BOS), &ids, &n_ids, &job->err);
        if (s == OB_OK) {
            *n = (int32_t)OB_MIN(n_ids, (size_t)INT32_MAX);
            ob_free(ids);
        }
    }
    ob_buf_deinit(&text);
    return s;
}

static ob_status explain(ob_job *job)
{
    int32_t n_prompt = 0;
    if (job->body.len) {
        OB_TRY(ob_json_parse(ob_buf_str(&job->body), job->body.len, &job->json, &job->err));
        ob_buf_deinit(&job->body);
        OB_TRY(count_prompt(job, &n_prompt));
    }
    return ob_routing_explain(job->srv->routing, job->json, n_prompt, &job->reply, &job->err);
}

/* "text=..." of a query, percent-decoded, '+' as a space. False: there is none. */
static bool query_text(ob_sv query, ob_buf *out)
{
    char text[4096];
    while (query.len) {
        const char *amp = memchr(query.data, '&', query.len);
        const size_t n = amp ? (size_t)(amp - query.data) : query.len;
        if (n >= 5 && !memcmp(query.data, "text=", 5)) {
            ob_buf raw;
            ob_buf_init(&raw, 1 << 16);
            ob_buf_add(&raw, query.data + 5, n - 5);
            for (size_t i = 0; i < raw.len; i++)
                if (raw.data[i] == '+') raw.data[i] = ' ';
            const bool ok = raw.failed == OB_OK && ob_http_percent_decode((ob_sv){ob_buf_str(&raw), raw.len}, text, sizeof text);
            ob_buf_deinit(&raw);
            if (ok) ob_buf_adds(out, text);
            return ok;
        }
        query.data += OB_MIN(n + 1, query.len);
        query.len -= OB_MIN(n + 1, query.len);
    }
    return false;
}

void ob_route_explain(ob_conn *c)
{
    ob_err err;
    if (!ob_conn_server(c)->routing) {
        ob_err_set(&err, OB_E_UNSUPPORTED, "this server does not route: start it with --laya or --long-model");
        ob_conn_reply_err(c, &err, NULL);
        return;
    }
    ob_buf text;
    ob_buf_init(&text, 8192);
    const bool has_text = query_text(ob_conn_head(c)->query, &text);
    ob_job *job = ob_job_new(c, sizeof *job);
    if (job && has_text) {
        ob_buf_deinit(&job->body);
        ob_buf_init(&job->body, 1 << 17);
        ob_buf_adds(&job->body, "{\"prompt\":");
        ob_buf_add_json(&job->body, text.data ? text.data : "", text.len);
        ob_buf_addc(&job->body, '}');
    }
    ob_buf_deinit(&text);
    if (!job) return;
    job->run = explain;
    job->finish = ob_job_reply;
    ob_job_queue(job);
}
