/* serve/serve_int.h: the parts of the server as they see one another.
 *
 *   http_parse   bytes -> request head, chunked coding       (pure)
 *   http         connections: read, route, guard, reply      (io thread)
 *   job          work for the workers; the mailbox back      (any thread -> io thread)
 *   params       request JSON -> ob_gen_params               (worker)
 *   gen          a generation: prompts x n choices           (worker, then io thread)
 *   api_*        the shapes of requests and replies
 *   server       life: load, run, stop
 */
#ifndef OB_SERVE_SERVE_INT_H
#define OB_SERVE_SERVE_INT_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/limits.h"
#include "engine/encoder.h"
#include "engine/vision.h"
#include "serve/routing.h"
#include "serve/serve.h"
#include "gram/gram.h"
#include "tmpl/calls.h"
#include "tmpl/reasoning.h"
#include "tmpl/tmpl.h"

typedef struct ob_conn ob_conn;
typedef struct ob_job ob_job;
typedef struct ob_gen ob_gen;
typedef struct ob_choice ob_choice;

/* --- http_parse.c: HTTP/1.1 over bytes in memory -------------------------------------------- */

#define OB_HTTP_MAX_HEADERS 100

typedef struct ob_sv { /* borrowed bytes */
    const char *data;
    size_t len;
} ob_sv;
bool ob_sv_is(ob_sv s, const char *word);
bool ob_sv_is_nocase(ob_sv s, const char *word);

typedef enum ob_http_method {
    OB_HTTP_GET = 1, OB_HTTP_HEAD = 2, OB_HTTP_POST = 4, OB_HTTP_OPTIONS = 8,
    OB_HTTP_OTHER = 16 /* PUT, DELETE, PATCH: known, used by no route */
} ob_http_method;

typedef struct ob_http_head {
    ob_http_method method;
    int minor;                /* HTTP/1.<minor>, 0 or 1 */
    ob_sv path, query;        /* as they came, percent-encoded */
    int64_t content_length;   /* -1: none given */
    bool chunked, keep_alive, expect_continue;
    ob_sv host, origin, authorization, x_api_key, if_none_match, cors_method; /* NULL: absent */
    ob_sv route_target;       /* X-1bit-Target */
} ob_http_head;

/* Parse a whole head, its empty line included. 0, or the HTTP code of the refusal with *why
 * (static). The head borrows from bytes. */
int ob_http_parse_head(const char *bytes, size_t len, ob_http_head *h, const char **why);

typedef struct ob_http_chunks { /* start from zero */
    int state, n_digits;
    uint64_t left, n_chunks, frame_bytes;
    bool done;
} ob_http_chunks;
/* Decode; *n_used bytes were read (all, unless the end of the body came before). Data is appended
 * to out, whose `failed` the caller looks at. false: not the chunked coding. */
bool ob_http_chunks_feed(ob_http_chunks *k, const char *bytes, size_t len, size_t *n_used,
                         ob_buf *out);

bool ob_http_host_is_loopback(ob_sv host_header);
bool ob_http_host_names(ob_sv host_header, const char *name);
/* Same origin as the host asked for; or, if loopback_is_own, any page served from this machine. */
bool ob_http_origin_is_own(ob_sv origin, ob_sv host_header, bool loopback_is_own);
/* NUL-terminated; false when malformed, too long or holding NUL. */
bool ob_http_percent_decode(ob_sv in, char *out, size_t cap);

/* --- http.c: connections (io thread) --------------------------------------------------------- */

enum {
    OB_ROUTE_OPEN = 1,     /* no key needed */
    OB_ROUTE_NO_MODEL = 2, /* answers while the model loads */
    OB_ROUTE_PREFIX = 4,   /* path is a prefix; the rest is the handler's */
};

typedef struct ob_route {
    const char *path;
    unsigned methods; /* ob_http_method bits; GET implies HEAD */
    unsigned flags;
    void (*handle)(ob_conn *c); /* must reply now or queue a job */
} ob_route;

typedef struct ob_web_asset { /* made by cmake/web.cmake from src/serve/web */
    const char *path, *content_type, *etag;
    const unsigned char *data;
    size_t len;
} ob_web_asset;
extern const ob_web_asset ob_serve_web_assets[]; /* ends with path == NULL */

ob_server *ob_conn_server(ob_conn *c);
const ob_http_head *ob_conn_head(const ob_conn *c);
/* Part of the path behind a PREFIX route. */
ob_sv ob_conn_path_rest(const ob_conn *c);
/* Hand the body over (*taken* into out). */
void ob_conn_take_body(ob_conn *c, ob_buf *out);

/* Whole replies. `headers`: extra lines, each with CRLF, or NULL. */
void ob_conn_reply(ob_conn *c, int http_code, const char *content_type, const char *headers,
                   const void *body, size_t len);
/* Lines (each with CRLF) that the next reply's head will have, in place of earlier ones; short. */
void ob_conn_add_header(ob_conn *c, const char *line);
void ob_conn_reply_json(ob_conn *c, const ob_buf *json);
/* OpenAI's error object; param NULL: none. */
void ob_conn_reply_err(ob_conn *c, const ob_err *err, const char *param);
/* A reply in pieces (chunked, or until close for HTTP/1.0). */
void ob_conn_stream_begin(ob_conn *c, const char *content_type);
void ob_conn_stream_add(ob_conn *c, const char *data, size_t len);
void ob_conn_stream_end(ob_conn *c);
/* Drop the connection without another word. */
void ob_conn_abort(ob_conn *c, const char *why);
/* Bytes that the peer has not taken yet. */
size_t ob_conn_backlog(const ob_conn *c);
void ob_conn_set_job(ob_conn *c, ob_job *job); /* NULL: done */

void ob_serve_write_error(ob_buf *out, const ob_err *err, const char *param);

struct evconnlistener;
OB_MUST_CHECK ob_status ob_http_listen(ob_server *s, ob_err *err);
void ob_http_stop_listening(ob_server *s);
/* Close idle connections; those with a reply under way close after it. */
void ob_http_close_idle(ob_server *s);
/* Is there a reply that has not left this machine in full? */
bool ob_http_any_backlog(const ob_server *s);
/* Drop all connections and free them. */
void ob_http_close_all(ob_server *s);

/* --- job.c: workers and mailbox -------------------------------------------------------------- */

/* A note to the io thread. fn runs there, once per posting; while queued it is not queued again. */
typedef struct ob_post {
    struct ob_post *next;
    void (*fn)(struct ob_post *p);
    bool queued;
} ob_post;

typedef struct ob_mbox {
    pthread_mutex_t lock; /* also guards what engine callbacks append to their choices */
    ob_post *head, *tail;
    int fd; /* eventfd */
    struct event *ev;
} ob_mbox;

OB_MUST_CHECK ob_status ob_mbox_init(ob_mbox *m, struct event_base *base, ob_err *err);
void ob_mbox_deinit(ob_mbox *m);
void ob_mbox_post(ob_mbox *m, ob_post *p);
/* The same with the lock held by the caller; true: call ob_mbox_wake after unlocking. */
bool ob_mbox_post_locked(ob_mbox *m, ob_post *p);
void ob_mbox_wake(ob_mbox *m);

/* One request's work. Owned by the io thread, but by a worker between ob_job_queue and `finish`. */
struct ob_job {
    ob_post post; /* first */
    ob_server *srv;
    ob_conn *conn;         /* io thread; NULL: the client has gone */
    atomic_bool abandoned; /* set with conn = NULL; workers look at it between stages (relaxed) */
    ob_job *next;          /* queue of the workers */
    /* Worker: fill in the job. On failure job->err and job->param say why. */
    ob_status (*run)(ob_job *job);
    /* io thread, after run: reply or go on. Frees the job unless it goes on. */
    void (*finish)(ob_job *job);
    /* io thread: the client went after `finish` went on. */
    void (*abandon)(ob_job *job);
    void (*destroy)(ob_job *job); /* what is beyond ob_job; NULL: nothing */
    ob_status status;
    ob_err err;
    char param[64]; /* field the error is about; "" = none */
    ob_arena arena;
    ob_buf body;    /* request */
    ob_buf reply;
    json_t *json;   /* parsed body, an object */
};

typedef struct ob_workers {
    pthread_mutex_t lock;
    pthread_cond_t ready;
    ob_job *head, *tail;
    int n_queued;
    bool stop;
    pthread_t *threads;
    int n_threads;
} ob_workers;

OB_MUST_CHECK ob_status ob_workers_start(ob_workers *w, int n, ob_err *err);
void ob_workers_stop(ob_workers *w); /* joins; queued jobs are still run */

/* A job of `size` bytes (at least sizeof(ob_job), zeroed) for this connection; it takes the body.
 * NULL: no memory, and the reply has been sent. */
ob_job *ob_job_new(ob_conn *c, size_t size);
void ob_job_queue(ob_job *job);
void ob_job_free(ob_job *job);
/* finish() of jobs whose whole answer is in job->reply. */
void ob_job_reply(ob_job *job);
/* Set job->param and the error. */
ob_status ob_job_fail(ob_job *job, const char *param, ob_status code, const char *fmt, ...)
    OB_PRINTF(4, 5);

/* --- params.c: JSON in ----------------------------------------------------------------------- */

/* Parse a body into an object. OB_E_FORMAT / OB_E_LIMIT. */
OB_MUST_CHECK ob_status ob_json_parse(const char *text, size_t len, json_t **out, ob_err *err);

typedef enum ob_api_kind {
    OB_API_CHAT = 1,
    OB_API_COMPLETIONS = 2,
    OB_API_TEMPLATE = 4
} ob_api_kind;

typedef struct ob_gen_params {
    ob_sampler_params sampler;
    int32_t max_tokens;      /* -1: until the context is full */
    int32_t n;               /* choices for each prompt */
    int32_t n_top_logprobs;  /* -1: none */
    bool logprobs;           /* chat: the flag; completions: implied */
    bool stream, include_usage;
    bool ignore_eos, cache_prompt, echo, special;
    ob_reasoning_format reasoning;
    bool add_generation_prompt, continue_final_message;
    const char **stop;       /* arena */
    size_t n_stop;
    const char *schema;      /* what the reply must look like: a JSON schema as text (arena), NULL: anything */
    size_t schema_len;
    const json_t *tools;     /* borrowed from the request's JSON; NULL: none, or tool_choice "none" */
    bool must_call;          /* tool_choice "required" or one function */
    const char *only_call;   /* that function (borrowed from the JSON), or NULL */
    bool many_calls;         /* parallel_tool_calls */
    const char *kwargs;      /* chat_template_kwargs as JSON text (arena), NULL: none */
    size_t kwargs_len;
} ob_gen_params;

void ob_gen_params_defaults(ob_gen_params *p);
/* Read every field of job->json that this API knows; refuse by name those it does not. `model`,
 * `messages` and `prompt` are left to the API. */
OB_MUST_CHECK ob_status ob_params_read(ob_job *job, ob_api_kind api, ob_gen_params *p);
/* `model` absent, or this server's; else OB_E_NOT_FOUND, model_not_found. */
OB_MUST_CHECK ob_status ob_params_check_model(ob_job *job);
/* Does it name the long model beside the served one? */
bool ob_params_names_long(const ob_job *job);
/* The same for another model, which may have a second name (NULL: none): `what` it is for shows in the text. */
OB_MUST_CHECK ob_status ob_params_check_model_is(ob_job *job, const char *id, const char *also, const char *what);
/* Only these fields (the list ends with NULL); refuses others by name. */
OB_MUST_CHECK ob_status ob_params_only(ob_job *job, const char *const *names);
/* A boolean; *to stays when the field is absent or null. */
OB_MUST_CHECK ob_status ob_params_read_bool(ob_job *job, const char *name, bool *to);
/* An array of token ids of a vocabulary of n_vocab -> arena. */
OB_MUST_CHECK ob_status ob_params_read_ids(ob_job *job, const char *param, const json_t *array,
                                           int32_t n_vocab, int32_t **ids, size_t *n);

/* --- pictures.c: pictures in messages (worker) ------------------------------------------------ */

typedef struct ob_pictures { /* zero at the start */
    bool marks_only;  /* nothing is read: <picture 0>, <picture 1>, ... stand in the text */
    char mark[64];
    ob_draft *drafts; /* [n] what each becomes in the prompt */
    size_t n;
} ob_pictures;
/* Read the pictures of job->json's messages and put marks in their places, for ob_draft_add_marked. Errors are the
 * request's. Deinit in any case. */
OB_MUST_CHECK ob_status ob_pictures_take(ob_job *job, ob_pictures *p);
void ob_pictures_deinit(ob_pictures *p);
/* For tests: append what base64 text means; false when it is none. Is the address one that PUBLIC refuses? */
bool ob_serve_base64(const char *s, size_t len, ob_buf *out);
struct sockaddr;
bool ob_serve_is_private(const struct sockaddr *a);

/* --- gen.c: a generation --------------------------------------------------------------------- */

typedef struct ob_prompt {
    ob_draft draft;    /* of a prompt with pictures: ids are its own */
    int32_t *ids;      /* arena or taken from ob_tok_encode */
    size_t n_ids;
    bool ids_taken;
    const char *text;  /* completions with echo: what is repeated */
    size_t text_len;
} ob_prompt;

/* What a token's record holds when it has left the engine's callback. */
typedef struct ob_token {
    int32_t id;
    float logprob;
    const ob_logprob *top;
    int32_t n_top;
    const char *text;
    size_t text_len;
} ob_token;

struct ob_choice {
    ob_post post; /* first; engine thread -> io thread */
    ob_gen *gen;
    int32_t index;
    ob_prompt *prompt;
    ob_request *req; /* io thread */

    /* Guarded by the mailbox's lock: written by the engine thread, taken by the io thread. */
    ob_buf incoming; /* records of tokens */
    bool end_in, overflow;
    ob_finish finish;
    ob_err end_err;
    ob_timings timings;

    /* io thread */
    ob_buf draining;
    bool begun, ended;      /* first and last news have come */
    bool role_sent;
    ob_reasoning split;     /* chat: reasoning off the answer */
    ob_calls calls;         /* chat with tools: calls off the rest */
    ob_buf call_json;       /* tool_calls of the whole reply; for a stream, of one frame */
    int n_calls;
    ob_gram *gram;          /* what it must look like; NULL: anything. Used by the engine until the end */
    size_t text_len;        /* completions: bytes so far, for text_offset */
    ob_buf text, reasoning; /* whole reply; for a stream, scratch of one token */
    ob_buf lp[4];           /* JSON fragments of log-probabilities */
};

/* How an API shapes its replies; all on the io thread. */
typedef struct ob_gen_api {
    const char *id_prefix, *object, *chunk_object;
    /* One token (or flushed text, id -1), streamed: append data frames to out. */
    void (*chunk)(ob_gen *g, ob_choice *c, const ob_token *t, ob_buf *out);
    /* Last frames of a choice. */
    void (*chunk_end)(ob_gen *g, ob_choice *c, ob_buf *out);
    /* One token, kept for the whole reply. */
    void (*keep)(ob_gen *g, ob_choice *c, const ob_token *t);
    /* The choice's object in the whole reply. */
    void (*choice)(ob_gen *g, ob_choice *c, ob_buf *out);
} ob_gen_api;

struct ob_gen {
    ob_job job; /* first */
    const ob_gen_api *api;
    ob_gen_params params;
    char id[48];
    int64_t created;
    ob_prompt *prompts; /* arena */
    size_t n_prompts;
    ob_choice *choices; /* arena; prompt-major: choice i belongs to prompt i / params.n */
    int32_t n_choices, n_running, n_ended;
    bool reasoning_open; /* the prompt ends inside reasoning */
    ob_call_fn on_call;  /* what a choice does with a tool call */
    bool live;           /* has been handed to the engine and is in srv->gens */
    bool busy;           /* on the stack: must not be freed now */
    bool begun;          /* the first token has come */
    bool moved;          /* to another target, after the first one failed */
    bool stream_begun, failed;
    ob_buf out;          /* frames of this turn */
    struct event *ping;  /* keeps a silent stream alive */
    double t_start_ms;
    char want_target[OB_TARGET_NAME * 5]; /* X-1bit-Target */
    ob_route_ticket *ticket; /* worker: a decision under way */
    ob_routed routed;        /* engine NULL: the server's */
    bool named_long;         /* the request names the long model */
    ob_gen *prev, *next;
};

/* io thread: make the job and queue it; prepare runs on a worker and fills params and prompts. */
void ob_gen_start(ob_conn *c, const ob_gen_api *api, ob_status (*prepare)(ob_job *job));
/* Worker: ids of a text, with the refusals that belong to a prompt. */
OB_MUST_CHECK ob_status ob_gen_tokenize(ob_gen *g, ob_prompt *p, const char *param,
                                        const char *text, size_t len, unsigned flags);
/* The same for a text with the marks of pictures. */
OB_MUST_CHECK ob_status ob_gen_tokenize_marked(ob_gen *g, ob_prompt *p, const char *param, const char *text, size_t len,
                                               unsigned flags, const ob_pictures *pics);
/* Worker: ask where the request goes, and, when its tokens are known, take the answer. */
OB_MUST_CHECK ob_status ob_gen_route_begin(ob_gen *g);
void ob_gen_route_end(ob_gen *g);
/* Worker: the prompts are there; makes the choices. */
OB_MUST_CHECK ob_status ob_gen_make_choices(ob_gen *g, const char *param);
/* Stop everything that runs (server stop); clients get an error. */
void ob_gen_cancel_all(ob_server *s);

/* Pieces shared by the APIs' shapes. */
void ob_gen_begin_frame(ob_gen *g, ob_buf *out);  /* data: {"id":…,"choices":[ */
/* ]}\n\n; t NULL: not the choice's last */
void ob_gen_end_frame(ob_gen *g, const ob_timings *t, ob_buf *out);
const char *ob_gen_finish_name(const ob_choice *c); /* "stop" or "length" */
void ob_gen_add_token_text(ob_gen *g, int32_t id, ob_buf *out);  /* JSON string */
void ob_gen_add_token_bytes(ob_gen *g, int32_t id, ob_buf *out); /* JSON array of bytes */
void ob_gen_add_logprob(float lp, ob_buf *out); /* -9999 for minus infinity, as OpenAI has it */
extern const ob_gen_api ob_api_chat, ob_api_completions;

/* Render a chat request (worker): appends the prompt's text. Also for /apply-template. */
OB_MUST_CHECK ob_status ob_chat_render(ob_job *job, const ob_gen_params *p, ob_buf *out);

/* --- constrain.c: tools and formats (worker) --------------------------------------------------- */

/* Check `tools` and `tool_choice`. */
OB_MUST_CHECK ob_status ob_tools_read(ob_job *job, ob_gen_params *p);
/* Give each choice the grammar that the request asks for. After ob_gen_make_choices. */
OB_MUST_CHECK ob_status ob_gen_constrain(ob_gen *g);

/* Control tokens that are part of a call's tags. */
typedef struct ob_call_mark {
    char text[48];
    int32_t id;
} ob_call_mark;

/* --- routes ---------------------------------------------------------------------------------- */
void ob_route_chat(ob_conn *c);
void ob_route_completions(ob_conn *c);
void ob_route_models(ob_conn *c);
void ob_route_model(ob_conn *c);
void ob_route_health(ob_conn *c);
void ob_route_embeddings(ob_conn *c);
void ob_route_rerank(ob_conn *c);
void ob_route_tokenize(ob_conn *c);
void ob_route_detokenize(ob_conn *c);
void ob_route_apply_template(ob_conn *c);
void ob_route_props(ob_conn *c);
void ob_route_slots(ob_conn *c);
void ob_route_metrics(ob_conn *c);
void ob_route_decide(ob_conn *c);
void ob_route_explain(ob_conn *c);
bool ob_route_web(ob_conn *c); /* false: no such asset */

/* --- metrics.c (io thread) ------------------------------------------------------------------- */

#define OB_METRICS_BUCKETS 14

typedef struct ob_histogram { /* seconds */
    uint64_t bucket[OB_METRICS_BUCKETS], count;
    double sum;
} ob_histogram;

typedef struct ob_metrics {
    uint64_t http[6]; /* replies by class: [2] = 2xx ... */
    uint64_t connections, refused_connections, slow_clients, client_gone;
    ob_histogram first_token, whole;
} ob_metrics;
void ob_metrics_note_first_token(ob_metrics *m, double seconds);
void ob_metrics_note_done(ob_metrics *m, double seconds);

/* --- server.c -------------------------------------------------------------------------------- */

typedef struct ob_listeners {
    struct evconnlistener *list[8];
    int n;
    struct event *resume; /* ends a pause after an accept that failed */
} ob_listeners;

/* A model that gives vectors or scores; immutable once ready. */
typedef struct ob_served {
    char *id;
    const char *also; /* another name that requests may use; NULL: none */
    const char *role; /* "embed" or "rerank" */
    ob_encoder *encoder;
    ob_engine_info info;
} ob_served;

struct ob_server { /* io thread, but for what is said otherwise */
    ob_serve_params params;
    char *model_id;             /* immutable */
    char *long_id;              /* immutable; NULL: there is no long model */
    char fingerprint[32], long_fingerprint[32]; /* immutable once ready */
    int64_t created;
    struct event_base *base;
    ob_mbox mbox;               /* its own lock */
    ob_workers workers;         /* its own lock */
    struct event *sig[2], *stop_tick, *reap;
    ob_post stop_post;
    atomic_int stop_asked;

    pthread_t loader;
    bool loader_running;        /* joined when false */
    ob_post loaded_post;
    ob_err load_err;            /* these two: written by the loader before its post */
    ob_engine *loaded_engine;
    bool ready;                 /* from the loader's post on */
    ob_engine *engine;          /* NULL until then, and when the main model is an encoder */
    ob_routing *routing;        /* NULL: off; immutable once ready */
    ob_share *share;            /* with a long model: weights of both */
    int32_t max_ctx;            /* of the models that generate; immutable once ready */
    ob_vision *vision;          /* beside it; NULL: it reads no pictures. Immutable once ready */
    const ob_tok *tok;          /* of the main model; immutable once ready */
    ob_served served[3];        /* [n_served]: the main model if it is an encoder, then those beside it */
    int n_served;
    const ob_served *embed, *rerank; /* which of them answers; NULL: none */
    ob_engine_info info;        /* immutable once ready */
    ob_tmpl *tmpl;              /* immutable once ready */
    const ob_reasoning_tags *tags; /* immutable once ready */
    const ob_call_style *calls; /* how the model writes tool calls; NULL: it knows none. Immutable once ready, as the marks */
    ob_call_mark marks[3];
    int n_marks;
    pthread_mutex_t gram_lock;
    ob_gram_vocab *gram_vocab;  /* made by the first request that needs it */
    ob_err tmpl_err;            /* why there is no template */
    char *bos_text, *eos_text;  /* immutable once ready; NULL: none */

    ob_listeners listeners;
    int port;
    bool loopback;              /* bound to loopback addresses only */
    unsigned char (*key_digests)[32]; /* [n_keys] SHA-256; immutable */
    int n_keys;
    ob_conn *conns, *dead;
    int n_conns;
    size_t body_bytes;          /* held by bodies of all connections */
    bool stopping, cancelling;  /* no new work; what runs is cancelled too */
    ob_gen *gens;               /* with engine requests */
    int n_jobs;
    double t_stop_ms, t_cancel_ms;
    ob_metrics metrics;
};

#endif
