/* Connections: read a request, guard it, find its route, write the reply. All on the io thread.
 *
 *   HEAD --head complete--> BODY --body complete--> HANDLING --reply--> HEAD (kept alive)
 *     \_________________refused_________________________\---------> CLOSING (flush, then linger)
 *
 * A refusal in the middle of an upload closes with a linger: the answer is sent, our side is shut,
 * and what still comes is thrown away for a moment, since a reset would destroy the answer on its
 * way. A peer that closes its side while its request is being handled counts as gone: that is the
 * only sign of a client that died during prefill, when nothing is being written to it. */
#include "serve/serve_int.h"

#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/math.h"

#define HEAD_DEADLINE_S 15.0 /* from a head's first byte to its last */
#define LINGER_S 2.0
#define READ_CHUNK_BYTES (256u << 10)
#define PIPELINE_BACKLOG_BYTES (64u << 10) /* unread replies before the next request is looked at */

enum conn_state { HEAD, BODY, HANDLING, CLOSING };

struct ob_conn {
    ob_server *srv;
    ob_conn *prev, *next;
    struct bufferevent *bev;
    struct event *timer;
    enum conn_state state;
    bool processing, dead, keep_alive, head_begun, streaming, reply_is_chunked, shut;
    ob_buf head_bytes;
    ob_http_head head; /* borrows from head_bytes */
    const ob_route *route;
    ob_http_chunks chunks;
    ob_buf body;
    size_t body_charged;
    ob_job *job;
    int http_code;
    double t_begin_ms;
    char extra[320]; /* header lines of the reply to come */
};

static const ob_route k_routes[] = {
    {"/v1/chat/completions", OB_HTTP_POST, 0, ob_route_chat},
    {"/chat/completions", OB_HTTP_POST, 0, ob_route_chat},
    {"/v1/completions", OB_HTTP_POST, 0, ob_route_completions},
    {"/completions", OB_HTTP_POST, 0, ob_route_completions},
    {"/v1/models", OB_HTTP_GET, 0, ob_route_models},
    {"/models", OB_HTTP_GET, 0, ob_route_models},
    {"/v1/models/", OB_HTTP_GET, OB_ROUTE_PREFIX, ob_route_model},
    {"/health", OB_HTTP_GET, OB_ROUTE_OPEN | OB_ROUTE_NO_MODEL, ob_route_health},
    {"/v1/health", OB_HTTP_GET, OB_ROUTE_OPEN | OB_ROUTE_NO_MODEL, ob_route_health},
    {"/v1/embeddings", OB_HTTP_POST, 0, ob_route_embeddings},
    {"/embeddings", OB_HTTP_POST, 0, ob_route_embeddings},
    {"/v1/rerank", OB_HTTP_POST, 0, ob_route_rerank},
    {"/v1/reranking", OB_HTTP_POST, 0, ob_route_rerank},
    {"/rerank", OB_HTTP_POST, 0, ob_route_rerank},
    {"/reranking", OB_HTTP_POST, 0, ob_route_rerank},
    {"/tokenize", OB_HTTP_POST, 0, ob_route_tokenize},
    {"/detokenize", OB_HTTP_POST, 0, ob_route_detokenize},
    {"/apply-template", OB_HTTP_POST, 0, ob_route_apply_template},
    {"/props", OB_HTTP_GET, 0, ob_route_props},
    {"/slots", OB_HTTP_GET, 0, ob_route_slots},
    {"/metrics", OB_HTTP_GET, OB_ROUTE_NO_MODEL, ob_route_metrics},
    {"/v1/decide", OB_HTTP_POST, 0, ob_route_decide},
    {"/v1/routing/explain", OB_HTTP_GET | OB_HTTP_POST, 0, ob_route_explain},
};

static void conn_process(ob_conn *c);
static void conn_kill(ob_conn *c);

/* --- small things ---------------------------------------------------------------------------- */

ob_server *ob_conn_server(ob_conn *c) { return c->srv; }
const ob_http_head *ob_conn_head(const ob_conn *c) { return &c->head; }

ob_sv ob_conn_path_rest(const ob_conn *c)
{
    size_t n = strlen(c->route->path);
    return (ob_sv){c->head.path.data + n, c->head.path.len - n};
}

void ob_conn_take_body(ob_conn *c, ob_buf *out)
{
    *out = c->body;
    ob_buf_init(&c->body, OB_MAX_BODY_BYTES);
}

void ob_conn_set_job(ob_conn *c, ob_job *job) { c->job = job; }

size_t ob_conn_backlog(const ob_conn *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

static void arm(ob_conn *c, double seconds)
{
    struct timeval tv = {.tv_sec = (time_t)seconds,
                         .tv_usec = (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    event_add(c->timer, &tv);
}

static void charge_body(ob_conn *c, size_t n_bytes)
{
    c->srv->body_bytes += n_bytes - c->body_charged;
    c->body_charged = n_bytes;
}

/* --- replies --------------------------------------------------------------------------------- */

static const char *reason_of(int code)
{
    static const struct {
        int code;
        const char *text;
    } known[] = {{100, "Continue"}, {200, "OK"}, {204, "No Content"}, {304, "Not Modified"},
                 {400, "Bad Request"}, {401, "Unauthorized"}, {403, "Forbidden"},
                 {404, "Not Found"}, {405, "Method Not Allowed"}, {408, "Request Timeout"},
                 {413, "Content Too Large"}, {414, "URI Too Long"},
                 {415, "Unsupported Media Type"}, {417, "Expectation Failed"},
                 {431, "Request Header Fields Too Large"}, {500, "Internal Server Error"},
                 {501, "Not Implemented"}, {503, "Service Unavailable"},
                 {504, "Gateway Timeout"}, {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < OB_COUNT(known); i++)
        if (known[i].code == code) return known[i].text;
    return "Error";
}

static bool cors_allows(const ob_conn *c)
{
    const char *allowed = c->srv->params.cors_origin;
    return allowed && c->head.origin.data &&
           (strcmp(allowed, "*") == 0 || ob_sv_is_nocase(c->head.origin, allowed));
}

static void add_head(ob_conn *c, int code, const char *content_type, const char *headers,
                     long long content_length)
{
    struct evbuffer *out = bufferevent_get_output(c->bev);
    char date[64];
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nServer: 1bit/" OB_VERSION "\r\nDate: %s\r\n", code,
                        reason_of(code), date);
    if (content_type)
        evbuffer_add_printf(out, "Content-Type: %s\r\nX-Content-Type-Options: nosniff\r\n",
                            content_type);
    if (content_length >= 0) evbuffer_add_printf(out, "Content-Length: %lld\r\n", content_length);
    else if (c->reply_is_chunked) evbuffer_add_printf(out, "Transfer-Encoding: chunked\r\n");
    if (!headers || !strstr(headers, "Cache-Control:"))
        evbuffer_add_printf(out, "Cache-Control: no-store\r\n");
    if (cors_allows(c))
        evbuffer_add_printf(out, "Access-Control-Allow-Origin: %.*s\r\nVary: Origin\r\n",
                            (int)c->head.origin.len, c->head.origin.data);
    if (headers) evbuffer_add(out, headers, strlen(headers));
    evbuffer_add(out, c->extra, strlen(c->extra));
    evbuffer_add_printf(out, "Connection: %s\r\n\r\n", c->keep_alive ? "keep-alive" : "close");
}

/* The reply is in the output buffer in full: go on with the next request, or close. */
static void end_request(ob_conn *c)
{
    ob_server *s = c->srv;
    s->metrics.http[c->http_code / 100 < 6 ? c->http_code / 100 : 5]++;
    if (s->params.access_log)
        ob_log_info("%.*s %d %.0f ms", c->head.path.data ? (int)OB_MIN(c->head.path.len, 200u) : 1,
                    c->head.path.data ? c->head.path.data : "-", c->http_code,
                    ob_now_ms() - c->t_begin_ms);
    charge_body(c, 0);
    ob_buf_deinit(&c->body);
    ob_buf_init(&c->body, OB_MAX_BODY_BYTES);
    ob_buf_deinit(&c->head_bytes);
    memset(&c->head, 0, sizeof c->head);
    memset(&c->chunks, 0, sizeof c->chunks);
    c->route = NULL;
    c->head_begun = c->streaming = c->reply_is_chunked = false;
    *c->extra = 0;
    if (c->keep_alive && !s->stopping) {
        c->state = HEAD;
        arm(c, s->params.timeout_s);
        conn_process(c); /* what was pipelined; does nothing when called from there */
    } else {
        c->state = CLOSING;
        arm(c, s->params.timeout_s);
        conn_process(c); /* throws away what has come, or a full buffer would stop the reading */
        if (!ob_conn_backlog(c)) conn_kill(c);
    }
}

void ob_conn_add_header(ob_conn *c, const char *line)
{
    snprintf(c->extra, sizeof c->extra, "%s", line);
}

void ob_conn_reply(ob_conn *c, int http_code, const char *content_type, const char *headers,
                   const void *body, size_t len)
{
    c->job = NULL;
    if (c->srv->stopping) c->keep_alive = false;
    c->http_code = http_code;
    bool no_length = http_code == 204 || http_code == 304;
    add_head(c, http_code, content_type, headers, no_length ? -1 : (long long)len);
    if (c->head.method != OB_HTTP_HEAD && !no_length && len)
        evbuffer_add(bufferevent_get_output(c->bev), body, len);
    end_request(c);
}

void ob_conn_reply_json(ob_conn *c, const ob_buf *json)
{
    if (json->failed) {
        ob_err err;
        ob_err_set(&err, json->failed, "the reply is too large to be held in memory");
        ob_conn_reply_err(c, &err, NULL);
        return;
    }
    ob_conn_reply(c, 200, "application/json; charset=utf-8", NULL, ob_buf_str(json), json->len);
}

static void write_error(ob_buf *out, const char *message, const char *type, const char *code,
                        const char *param, const ob_err *counts)
{
    ob_buf_adds(out, "{\"error\":{\"message\":");
    ob_buf_add_json(out, message, strlen(message));
    ob_buf_addf(out, ",\"type\":\"%s\",\"param\":", type);
    if (param && *param) ob_buf_add_json(out, param, strlen(param));
    else ob_buf_adds(out, "null");
    if (code) ob_buf_addf(out, ",\"code\":\"%s\"", code);
    else ob_buf_adds(out, ",\"code\":null");
    if (counts && counts->code == OB_E_CONTEXT_LENGTH)
        ob_buf_addf(out, ",\"n_prompt_tokens\":%ld,\"n_ctx\":%ld", counts->n_prompt_tok,
                    counts->n_ctx);
    ob_buf_adds(out, "}}");
}

void ob_serve_write_error(ob_buf *out, const ob_err *err, const char *param)
{
    const ob_status_info *info = ob_status_describe(err->code);
    const char *code = info->openai_code;
    /* The one place where OpenAI has a code of its own for a kind of thing that is not there. */
    if (err->code == OB_E_NOT_FOUND && param && strcmp(param, "model") == 0)
        code = "model_not_found";
    write_error(out, err->text, info->openai_type, code, param, err);
}

static void reply_refusal(ob_conn *c, int http_code, const char *headers, const char *type,
                          const char *code, const char *message)
{
    ob_buf json;
    ob_buf_init(&json, 4096);
    write_error(&json, message, type, code, NULL, NULL);
    ob_conn_reply(c, http_code, "application/json; charset=utf-8", headers, ob_buf_str(&json),
                  json.len);
    ob_buf_deinit(&json);
}

void ob_conn_reply_err(ob_conn *c, const ob_err *err, const char *param)
{
    ob_buf json;
    ob_buf_init(&json, 16384);
    ob_serve_write_error(&json, err, param);
    int code = ob_status_describe(err->code)->http_code;
    ob_conn_reply(c, code, "application/json; charset=utf-8",
                  code == 503 ? "Retry-After: 1\r\n" : NULL, ob_buf_str(&json), json.len);
    ob_buf_deinit(&json);
}

/* A request that cannot be read further: the connection ends with this answer. */
static void refuse(ob_conn *c, int http_code, const char *type, const char *code,
                   const char *message)
{
    c->keep_alive = false;
    reply_refusal(c, http_code, NULL, type, code, message);
}

void ob_conn_stream_begin(ob_conn *c, const char *content_type)
{
    if (c->srv->stopping) c->keep_alive = false;
    c->http_code = 200;
    c->streaming = true;
    c->reply_is_chunked = c->head.minor >= 1;
    if (!c->reply_is_chunked) c->keep_alive = false;
    add_head(c, 200, content_type, "X-Accel-Buffering: no\r\n", -1);
}

void ob_conn_stream_add(ob_conn *c, const char *data, size_t len)
{
    if (!len) return;
    struct evbuffer *out = bufferevent_get_output(c->bev);
    if (c->reply_is_chunked) evbuffer_add_printf(out, "%zx\r\n", len);
    evbuffer_add(out, data, len);
    if (c->reply_is_chunked) evbuffer_add(out, "\r\n", 2);
}

void ob_conn_stream_end(ob_conn *c)
{
    c->job = NULL;
    if (c->srv->stopping) c->keep_alive = false;
    if (c->reply_is_chunked) evbuffer_add(bufferevent_get_output(c->bev), "0\r\n\r\n", 5);
    end_request(c);
}

/* --- guards and routing ---------------------------------------------------------------------- */

static bool key_is_right(const ob_conn *c)
{
    const ob_http_head *h = &c->head;
    ob_sv key = h->x_api_key;
    if (h->authorization.len > 7 &&
        ob_sv_is_nocase((ob_sv){h->authorization.data, 7}, "Bearer "))
        key = (ob_sv){h->authorization.data + 7, h->authorization.len - 7};
    if (!key.data) return false;
    unsigned char digest[32]; /* equal lengths, so that time tells nothing of the key */
    SHA256((const unsigned char *)key.data, key.len, digest);
    int n_right = 0;
    for (int i = 0; i < c->srv->n_keys; i++)
        n_right += CRYPTO_memcmp(digest, c->srv->key_digests[i], sizeof digest) == 0;
    return n_right > 0;
}

/* Protection of a local server from web pages: a page may not reach it through a name that resolves
 * to this machine (DNS rebinding), nor post to it from elsewhere. */
static bool guard_origin(ob_conn *c)
{
    const ob_http_head *h = &c->head;
    const ob_server *s = c->srv;
    if (s->loopback && h->host.data && !ob_http_host_is_loopback(h->host) &&
        !ob_http_host_names(h->host, s->params.host)) {
        refuse(c, 403, "permission_error", "host_not_allowed",
               "this server listens on this machine only; ask for localhost or 127.0.0.1");
        return false;
    }
    if (h->method != OB_HTTP_GET && h->method != OB_HTTP_HEAD && h->origin.data &&
        !ob_http_origin_is_own(h->origin, h->host, s->loopback) && !cors_allows(c)) {
        refuse(c, 403, "permission_error", "origin_not_allowed",
               "pages of other origins may not use this server (start it with --cors ORIGIN)");
        return false;
    }
    return true;
}

static const ob_route *find_route(ob_sv path)
{
    for (size_t i = 0; i < OB_COUNT(k_routes); i++) {
        const ob_route *r = &k_routes[i];
        size_t n = strlen(r->path);
        bool prefix = r->flags & OB_ROUTE_PREFIX;
        if (prefix ? path.len > n : path.len == n)
            if (memcmp(path.data, r->path, n) == 0) return r;
    }
    return NULL;
}

static void answer_options(ob_conn *c, unsigned methods)
{
    char headers[256];
    const char *allow = methods & OB_HTTP_POST ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
    if (cors_allows(c) && c->head.cors_method.data)
        snprintf(headers, sizeof headers,
                 "Allow: %s\r\nAccess-Control-Allow-Methods: GET, POST, OPTIONS\r\n"
                 "Access-Control-Allow-Headers: Authorization, Content-Type, X-Api-Key, *\r\n"
                 "Access-Control-Max-Age: 600\r\n",
                 allow);
    else
        snprintf(headers, sizeof headers, "Allow: %s\r\n", allow);
    ob_conn_reply(c, 204, NULL, headers, NULL, 0);
}

/* Find out at the head whether the request will be handled; true: read its body. */
static bool admit(ob_conn *c)
{
    const ob_http_head *h = &c->head;
    ob_server *s = c->srv;
    bool has_body = h->chunked || h->content_length > 0;
    /* A refusal leaves the body unread, so the connection cannot be used again. */
    bool keep = h->keep_alive;
    c->keep_alive = keep && !has_body;
    if (!guard_origin(c)) return false;

    const ob_route *r = c->route = find_route(h->path);
    if (h->method == OB_HTTP_OPTIONS) {
        answer_options(c, r ? r->methods : OB_HTTP_GET);
        return false;
    }
    bool is_get = h->method == OB_HTTP_GET || h->method == OB_HTTP_HEAD;
    if (!r) {
        if (is_get && ob_route_web(c)) return false;
        char text[512];
        snprintf(text, sizeof text,
                 "there is no route %.*s here (see docs/api.md for those there are)",
                 (int)OB_MIN(h->path.len, 200u), h->path.data);
        reply_refusal(c, 404, NULL, "invalid_request_error", "not_found", text);
        return false;
    }
    if (!(r->methods & (is_get ? (unsigned)OB_HTTP_GET : h->method))) {
        bool post = r->methods & OB_HTTP_POST;
        reply_refusal(c, 405, post ? "Allow: POST, OPTIONS\r\n" : "Allow: GET, HEAD, OPTIONS\r\n",
                      "invalid_request_error", "method_not_allowed",
                      post ? "this route wants POST" : "this route wants GET");
        return false;
    }
    if (s->n_keys && !(r->flags & OB_ROUTE_OPEN) && !key_is_right(c)) {
        reply_refusal(c, 401, "WWW-Authenticate: Bearer\r\n", "authentication_error",
                      "invalid_api_key",
                      "the API key is missing or wrong (Authorization: Bearer KEY)");
        return false;
    }
    if (!s->ready && !(r->flags & OB_ROUTE_NO_MODEL)) {
        reply_refusal(c, 503, "Retry-After: 1\r\n", "server_error", "model_loading",
                      "the model is loading; ask again in a moment");
        return false;
    }
    if (s->stopping) {
        reply_refusal(c, 503, NULL, "server_error", "stopping", "the server is stopping");
        return false;
    }
    if (h->content_length > (int64_t)OB_MAX_BODY_BYTES) {
        reply_refusal(c, 413, NULL, "invalid_request_error", "request_too_large",
                      "the request body is larger than 64 MiB");
        return false;
    }
    if (h->content_length > 0 && s->body_bytes + (size_t)h->content_length > OB_MAX_BODIES_BYTES) {
        reply_refusal(c, 503, "Retry-After: 1\r\n", "server_error", "overloaded",
                      "too many large requests at once; ask again in a moment");
        return false;
    }
    c->keep_alive = keep;
    if (h->content_length > 0) charge_body(c, (size_t)h->content_length);
    if (has_body && h->expect_continue)
        evbuffer_add_printf(bufferevent_get_output(c->bev), "HTTP/1.1 100 Continue\r\n\r\n");
    return true;
}

/* --- reading --------------------------------------------------------------------------------- */

/* Each step returns whether another one may follow at once. */
static bool step_head(ob_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    if (ob_conn_backlog(c) > PIPELINE_BACKLOG_BYTES) return false; /* on_write goes on */
    char first;
    while (!c->head_begun && evbuffer_copyout(in, &first, 1) == 1 &&
           (first == '\r' || first == '\n'))
        evbuffer_drain(in, 1); /* RFC 9112 2.2: empty lines before a request are ignored */
    size_t have = evbuffer_get_length(in);
    if (!have) return false;
    if (!c->head_begun) {
        c->head_begun = true;
        c->t_begin_ms = ob_now_ms();
        arm(c, OB_MIN(HEAD_DEADLINE_S, c->srv->params.timeout_s));
    }
    struct evbuffer_ptr end = evbuffer_search(in, "\r\n\r\n", 4, NULL);
    size_t len = end.pos < 0 ? have : (size_t)end.pos + 4;
    if (len > OB_MAX_HEADER_BYTES) {
        refuse(c, 431, "invalid_request_error", "headers_too_large",
               "the request's headers are larger than 64 KiB");
        return false;
    }
    if (end.pos < 0) return false;
    ob_buf_init(&c->head_bytes, OB_MAX_HEADER_BYTES);
    if (ob_buf_reserve(&c->head_bytes, len) != OB_OK) {
        conn_kill(c);
        return false;
    }
    evbuffer_remove(in, c->head_bytes.data, len);
    c->head_bytes.len = len;
    const char *why;
    int code = ob_http_parse_head(c->head_bytes.data, len, &c->head, &why);
    if (code) {
        memset(&c->head, 0, sizeof c->head);
        refuse(c, code, "invalid_request_error", "bad_http", why);
        return false;
    }
    if (!admit(c)) return !c->dead && c->state == HEAD;
    c->state = BODY;
    return true;
}

static bool body_complete(const ob_conn *c)
{
    if (c->head.chunked) return c->chunks.done;
    return (int64_t)c->body.len >= c->head.content_length; /* -1: no body */
}

static bool step_body(ob_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    while (!body_complete(c)) {
        size_t have = evbuffer_get_contiguous_space(in);
        if (!have) break;
        const char *p = (const char *)evbuffer_pullup(in, (ev_ssize_t)have);
        size_t used = have;
        if (c->head.chunked) {
            if (!ob_http_chunks_feed(&c->chunks, p, have, &used, &c->body)) {
                refuse(c, 400, "invalid_request_error", "bad_http",
                       "the body does not follow the chunked coding");
                return false;
            }
            charge_body(c, c->body.len);
        } else {
            used = OB_MIN(have, (size_t)c->head.content_length - c->body.len);
            ob_buf_add(&c->body, p, used);
        }
        evbuffer_drain(in, used);
        if (c->body.failed == OB_E_LIMIT) {
            refuse(c, 413, "invalid_request_error", "request_too_large",
                   "the request body is larger than 64 MiB");
            return false;
        }
        if (c->body.failed || c->srv->body_bytes > OB_MAX_BODIES_BYTES) {
            refuse(c, 503, "server_error", "overloaded",
                   "too many large requests at once; ask again in a moment");
            return false;
        }
    }
    if (!body_complete(c)) {
        arm(c, c->srv->params.timeout_s);
        return false;
    }
    c->state = HANDLING;
    event_del(c->timer);
    c->route->handle(c);
    return !c->dead && c->state == HEAD;
}

static bool step_closing(ob_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    evbuffer_drain(in, evbuffer_get_length(in));
    return false;
}

static void conn_process(ob_conn *c)
{
    if (c->processing || c->dead) return;
    c->processing = true;
    bool more = true;
    while (more && !c->dead) {
        enum conn_state before = c->state;
        switch (before) {
        case HEAD: more = step_head(c); break;
        case BODY: more = step_body(c); break;
        case HANDLING: more = false; break;
        case CLOSING: more = step_closing(c); break;
        }
        more = more || (c->state == CLOSING && before != CLOSING);
    }
    c->processing = false;
}

/* --- life of a connection -------------------------------------------------------------------- */

/* Unlink; memory goes at the end of the loop's turn, since callers up the stack may hold c. */
static void conn_kill(ob_conn *c)
{
    if (c->dead) return;
    c->dead = true;
    ob_server *s = c->srv;
    if (c->prev) c->prev->next = c->next;
    else s->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    s->n_conns--;
    c->next = s->dead;
    s->dead = c;
    event_active(s->reap, 0, 0);
    event_del(c->timer);
    bufferevent_disable(c->bev, EV_READ | EV_WRITE);
    charge_body(c, 0);
    ob_job *job = c->job;
    c->job = NULL;
    if (job) {
        job->conn = NULL;
        atomic_store_explicit(&job->abandoned, true, memory_order_relaxed);
        if (job->abandon) job->abandon(job);
    }
}

void ob_conn_abort(ob_conn *c, const char *why)
{
    ob_log_debug("connection dropped: %s", why);
    conn_kill(c);
}

static void reap(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    ob_server *s = arg;
    while (s->dead) {
        ob_conn *c = s->dead;
        s->dead = c->next;
        event_free(c->timer);
        bufferevent_free(c->bev);
        ob_buf_deinit(&c->body);
        ob_buf_deinit(&c->head_bytes);
        ob_free(c);
    }
}

static void on_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    conn_process(arg);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    ob_conn *c = arg;
    if (c->dead) return;
    if (c->state == CLOSING) {
        if (c->shut) return;
        c->shut = true;
        shutdown(bufferevent_getfd(bev), SHUT_WR);
        arm(c, LINGER_S);
    } else if (c->state == HEAD) {
        conn_process(c); /* it may have waited for the backlog to shrink */
    }
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    (void)bev;
    ob_conn *c = arg;
    if (c->dead) return;
    ob_server *s = c->srv;
    if ((what & BEV_EVENT_EOF) && ob_conn_backlog(c) && c->state != HANDLING && !c->shut) {
        /* The peer has sent all it wants to send and still reads: let it have its replies. */
        c->keep_alive = false;
        c->state = CLOSING;
        return;
    }
    if ((what & BEV_EVENT_TIMEOUT) && (what & BEV_EVENT_WRITING)) {
        s->metrics.slow_clients++;
        ob_log_debug("connection dropped: the peer takes nothing");
    } else if (c->state == HANDLING) {
        s->metrics.client_gone++;
    }
    conn_kill(c);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    ob_conn *c = arg;
    if (c->dead) return;
    if (c->state == BODY || (c->state == HEAD && c->head_begun))
        refuse(c, 408, "invalid_request_error", "timeout", "the request did not arrive in time");
    else
        conn_kill(c);
}

static bool conn_init(ob_conn *c, ob_server *s, evutil_socket_t fd)
{
    c->srv = s;
    c->state = HEAD;
    c->keep_alive = true;
    ob_buf_init(&c->body, OB_MAX_BODY_BYTES);
    ob_buf_init(&c->head_bytes, OB_MAX_HEADER_BYTES);
    c->timer = evtimer_new(s->base, on_timer, c);
    c->bev = c->timer ? bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE) : NULL;
    if (!c->bev) {
        if (c->timer) event_free(c->timer);
        return false;
    }
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
    bufferevent_setwatermark(c->bev, EV_READ, 0, READ_CHUNK_BYTES);
    double t = s->params.timeout_s;
    struct timeval stall = {.tv_sec = (time_t)t,
                            .tv_usec = (suseconds_t)((t - (double)(time_t)t) * 1e6)};
    bufferevent_set_timeouts(c->bev, NULL, &stall);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    arm(c, t);
    return true;
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *addr, int len,
                      void *arg)
{
    (void)l, (void)addr, (void)len;
    ob_server *s = arg;
    s->metrics.connections++;
    ob_conn *c = s->n_conns < s->params.max_connections ? ob_calloc(1, sizeof *c) : NULL;
    if (!c || !conn_init(c, s, fd)) {
        static const char full[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
                                   "Content-Length: 0\r\nConnection: close\r\n\r\n";
        s->metrics.refused_connections++;
        ssize_t n = send(fd, full, sizeof full - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)n; /* a courtesy; the close says enough */
        close(fd);
        ob_free(c);
        return;
    }
    c->next = s->conns;
    if (s->conns) s->conns->prev = c;
    s->conns = c;
    s->n_conns++;
}

/* --- listening ------------------------------------------------------------------------------- */

static void resume_accept(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    ob_server *s = arg;
    for (int i = 0; i < s->listeners.n; i++) evconnlistener_enable(s->listeners.list[i]);
}

/* Out of descriptors: a pause lets connections end, where retrying at once would spin. */
static void on_accept_error(struct evconnlistener *l, void *arg)
{
    ob_server *s = arg;
    ob_log_warn("cannot accept a connection: %s", strerror(errno));
    evconnlistener_disable(l);
    struct timeval tv = {.tv_usec = 200000};
    event_add(s->listeners.resume, &tv);
}

static void raise_file_limit(ob_server *s)
{
    struct rlimit rl;
    if (getrlimit(RLIMIT_NOFILE, &rl) != 0) return;
    if (rl.rlim_cur < rl.rlim_max) {
        rl.rlim_cur = rl.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &rl) != 0) getrlimit(RLIMIT_NOFILE, &rl);
    }
    if (rl.rlim_cur != RLIM_INFINITY && rl.rlim_cur < (rlim_t)s->params.max_connections + 64)
        s->params.max_connections = rl.rlim_cur > 128 ? (int)rl.rlim_cur - 64 : 64;
}

static int port_of(evutil_socket_t fd)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    if (getsockname(fd, (struct sockaddr *)&ss, &len) != 0) return 0;
    return ntohs(ss.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&ss)->sin6_port
                                          : ((struct sockaddr_in *)&ss)->sin_port);
}

static bool is_loopback_addr(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)sa)->sin_addr.s_addr) >> 24 == 127;
    if (sa->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)sa)->sin6_addr);
    return false;
}

static ob_status listen_on(ob_server *s, struct addrinfo *ai, ob_err *err)
{
    if (s->port) { /* the second address of a name, when the first was given a free port */
        if (ai->ai_family == AF_INET6)
            ((struct sockaddr_in6 *)ai->ai_addr)->sin6_port = htons((uint16_t)s->port);
        else ((struct sockaddr_in *)ai->ai_addr)->sin_port = htons((uint16_t)s->port);
    }
    struct evconnlistener *l = evconnlistener_new_bind(
        s->base, on_accept, s,
        LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE | LEV_OPT_DISABLED, 1024,
        ai->ai_addr, (int)ai->ai_addrlen);
    if (!l && s->listeners.n && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL))
        return OB_OK; /* a name's second address may be of a family this machine lacks */
    if (!l && errno == EADDRINUSE)
        return ob_err_set(err, OB_E_IO,
                          "port %d of %s is in use by another program; choose another with --port",
                          s->params.port, s->params.host);
    if (!l)
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot listen on port %d of %s",
                                s->params.port, s->params.host);
    evconnlistener_set_error_cb(l, on_accept_error);
    s->listeners.list[s->listeners.n++] = l;
    s->port = port_of(evconnlistener_get_fd(l));
    s->loopback = s->loopback && is_loopback_addr(ai->ai_addr);
    evconnlistener_enable(l);
    return OB_OK;
}

ob_status ob_http_listen(ob_server *s, ob_err *err)
{
    raise_file_limit(s);
    s->reap = event_new(s->base, -1, 0, reap, s);
    s->listeners.resume = evtimer_new(s->base, resume_accept, s);
    if (!s->reap || !s->listeners.resume) 
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the server");
    char port[8];
    snprintf(port, sizeof port, "%d", s->params.port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *all = NULL;
    int rc = getaddrinfo(s->params.host, port, &hints, &all);
    if (rc)
        return ob_err_set(err, OB_E_INVALID, "host '%s' has no address: %s", s->params.host,
                          gai_strerror(rc));
    s->loopback = true;
    ob_status st = OB_OK;
    for (struct addrinfo *ai = all; ai && s->listeners.n < (int)OB_COUNT(s->listeners.list);
         ai = ai->ai_next) {
        st = listen_on(s, ai, err);
        if (st != OB_OK) break;
    }
    freeaddrinfo(all);
    return st;
}

void ob_http_stop_listening(ob_server *s)
{
    for (int i = 0; i < s->listeners.n; i++) evconnlistener_free(s->listeners.list[i]);
    s->listeners.n = 0;
    if (s->listeners.resume) event_free(s->listeners.resume);
    s->listeners.resume = NULL;
}

void ob_http_close_idle(ob_server *s)
{
    for (ob_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        if (c->state == HEAD && !ob_conn_backlog(c)) conn_kill(c);
    }
}

bool ob_http_any_backlog(const ob_server *s)
{
    for (const ob_conn *c = s->conns; c; c = c->next)
        if (ob_conn_backlog(c)) return true;
    return false;
}

void ob_http_close_all(ob_server *s)
{
    while (s->conns) conn_kill(s->conns);
    if (s->reap) {
        reap(-1, 0, s);
        event_free(s->reap);
        s->reap = NULL;
    }
}
