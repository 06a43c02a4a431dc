/* serve/serve.h: the HTTP server in front of a loaded model, and of one for vectors beside it.
 *
 * Owns: connections, limits, keys, the APIs' shapes (OpenAI's and a few of llama-server's), SSE,
 * metrics, the chat page. Must not know tensors, devices' insides or command lines.
 *
 * Threads: one io thread runs every connection (libevent), a few workers read requests (JSON,
 * template, tokens), one loader brings the model up, and the engine has its own. See
 * docs/rooms/serve.md.
 */
#ifndef OB_SERVE_SERVE_H
#define OB_SERVE_SERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/engine.h"

typedef struct ob_server ob_server;

/* Where pictures of requests may be fetched from, beside the request itself. */
typedef enum ob_image_urls {
    OB_IMAGE_URLS_OFF,
    OB_IMAGE_URLS_PUBLIC, /* http and https, but no address of this machine or of a private network */
    OB_IMAGE_URLS_ANY,
} ob_image_urls;

/* Strings are borrowed until ob_server_free. */
typedef struct ob_serve_params {
    ob_engine_params engine;  /* model_path must be set */
    const char *embed_path;   /* model for /v1/embeddings beside the main one; NULL: none */
    const char *rerank_path;  /* the same for /v1/rerank */
    bool route;               /* each new conversation goes where a policy says */
    const char *route_scorer; /* model that tells requests apart; NULL: none, so the default serves all */
    const char *route_scorer_error; /* why there is none; NULL: nobody looked */
    const char *route_policy; /* file; NULL: the built-in policy */
    const char *long_path;    /* model for conversations whose first prompt has long_from tokens or more; NULL: none */
    const char *long_device;  /* where it runs; NULL: where the served one does */
    int32_t long_from;        /* 2048 */
    const char *long_name;    /* as model_name below */
    const char *mmproj_path;  /* vision tower for the pictures in messages; NULL: none */
    int32_t image_max_tok;    /* tokens of a picture whose size is free; 0: OB_MAX_IMAGE_TOK */
    ob_image_urls image_urls;
    const char *image_dir;    /* folder whose files messages may name (file: URLs); NULL: none */
    ob_pooling pooling;       /* of embeddings; AUTO: as the model's file says */
    const char *host;         /* "127.0.0.1" */
    int port;                 /* 8000; 0: any free one (see ob_server_port) */
    const char *chat_template; /* Jinja; NULL: the model's own */
    const char *alias;        /* id of the model in the API; NULL: the file's stem */
    /* What the user called the models, where that is not their path (names of the library): requests may name
     * them so too. NULL: nothing else. */
    const char *model_name, *embed_name, *rerank_name;
    const char *const *api_keys; /* [n_api_keys]: any one lets in; none: no key is asked for */
    int n_api_keys;
    const char *cors_origin;  /* one origin or "*"; NULL: no cross-origin access */
    double timeout_s;         /* a peer that makes no progress for so long is dropped; 60 */
    int n_workers;            /* threads that read requests; 2 */
    int max_connections;      /* 1024 */
    double stop_grace_s;      /* how long running requests may finish after a stop; 4 */
    bool access_log;          /* a line for each request */
} ob_serve_params;

void ob_serve_defaults(ob_serve_params *p);

/* Are the port, keys and CORS origin in order? INVALID with what is wrong; ob_server_new asks it, too. */
OB_MUST_CHECK ob_status ob_serve_check(const ob_serve_params *p, ob_err *err);

/* Binds and listens; nothing is answered before ob_server_run. Errors: INVALID (bad host, key or
 * origin), IO (port in use: the text says so). */
OB_MUST_CHECK ob_status ob_server_new(const ob_serve_params *p, ob_server **out, ob_err *err);
/* Serves on the calling thread until ob_server_stop or SIGINT/SIGTERM; the model loads meanwhile.
 * Fails with the loader's error when the model cannot be loaded. OB_E_CANCELLED: stopped while the
 * model was still loading and the loader would not end; the program must leave with _exit. */
OB_MUST_CHECK ob_status ob_server_run(ob_server *s, ob_err *err);
/* Any thread: stop gracefully; a second call cancels what still runs. */
void ob_server_stop(ob_server *s);
/* Not after OB_E_CANCELLED. */
void ob_server_free(ob_server *s);
int ob_server_port(const ob_server *s);

#endif
