/* serve/routing.h: which target answers a request. Part of serve_int.h's world.
 *
 *   begin (worker)   known conversation? else its key, and the question to the scorer, which runs meanwhile
 *   end   (worker)   when the prompt's tokens are known: long enough for the long model? else the decision, the
 *                    policy's pick, the queue
 *   note  (io)       what really happened: first token, end, a target that failed
 *
 * Two ways to choose, alone or together: by length (--long-model) and by class (--laya). Length comes first; what is
 * not long goes by class, or without classes to the served engine.
 *
 * Targets: [0] is the served engine. The long model is loaded with it, as target "long". Others start in the background when they are first picked; until then, and when
 * they fail, the default serves. A target is a device and a model file with the same vocabulary.
 *
 * Everything is *locked by* the routing's own mutex but for what is immutable once the server is ready.
 */
#ifndef OB_SERVE_ROUTING_H
#define OB_SERVE_ROUTING_H

#include <jansson.h>

#include "engine/engine.h"
#include "route/policy.h"

typedef struct ob_routing ob_routing;
typedef struct ob_route_ticket ob_route_ticket;

typedef struct ob_routing_params {
    bool by_class;           /* false: the scorer and the policy are left alone */
    const char *long_path;   /* model that conversations go to whose first prompt has long_from tokens; NULL: none */
    const char *long_id;     /* its name in the API */
    const char *long_device; /* NULL: the served engine's */
    int32_t long_from;
    const char *scorer_path; /* NULL: every conversation goes to the default */
    const char *scorer_error; /* why there is none; said once */
    const char *policy_path; /* NULL: the built-in one */
} ob_routing_params;

/* Reads the policy: refuses one that is wrong. */
OB_MUST_CHECK ob_status ob_routing_new(const ob_routing_params *p, ob_routing **out, ob_err *err);
/* The device that the policy names as default; "auto" where it names none. */
const char *ob_routing_default_device(const ob_routing *r);
/* Loader thread, after the served engine (borrowed): loads the long model and the scorer. A scorer that fails is said
 * once, and then everything goes to the default; a long model that fails is an error. model_id is borrowed. */
OB_MUST_CHECK ob_status ob_routing_load(ob_routing *r, const ob_engine_params *served, ob_engine *engine,
                                        const char *model_id, ob_err *err);
/* After the last request. */
void ob_routing_free(ob_routing *r);

/* Worker. request: the parsed body. `want`: a target by name ("" none, or "default"). Errors: INVALID (no such
 * target; it lists those that are). *out is *taken*: give it to ob_routing_end, or to ob_routing_drop. */
OB_MUST_CHECK ob_status ob_routing_begin(ob_routing *r, const json_t *request, const char *want, ob_route_ticket **out,
                                         ob_err *err);
void ob_routing_drop(ob_route_ticket *t);

typedef struct ob_routed {
    ob_engine *engine;  /* NULL: not routed */
    int32_t target;
    bool is_long;       /* on the long model */
    int32_t kind, n_prompt; /* what the header says */
    float confidence;
    uint64_t trace;     /* number of its line in the trace; 0: none (a later turn) */
    char header[192];   /* "X-1bit-Route: ...\r\n" */
} ob_routed;
void ob_routing_end(ob_routing *r, ob_route_ticket *t, int32_t n_prompt, ob_routed *out); /* frees the ticket */

/* io thread. */
void ob_routing_note_first(ob_routing *r, const ob_routed *at, double ms);
void ob_routing_note_done(ob_routing *r, const ob_routed *at, double ms);
/* A request failed on its target because of the device. True: *at names another that can take it. */
bool ob_routing_failed(ob_routing *r, ob_routed *at, const ob_err *err);

/* Any thread. */
ob_scorer *ob_routing_scorer(const ob_routing *r); /* NULL: none */
/* The long model; false: there is none. *state (static) may be NULL. */
bool ob_routing_long(ob_routing *r, ob_engine_info *out, const char **state);
/* Add the counters of every target but the served engine. */
void ob_routing_add_stats(ob_routing *r, ob_engine_stats *st);
/* JSON: what would become of a request (NULL: none), the targets, the last decisions. */
OB_MUST_CHECK ob_status ob_routing_explain(ob_routing *r, const json_t *request, int32_t n_prompt, ob_buf *out, ob_err *err);
/* Requests by class and target, as Prometheus text. */
void ob_routing_metrics(ob_routing *r, ob_buf *out);

#endif
