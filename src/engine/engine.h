/* engine/engine.h: a loaded model that serves many requests at once.
 *
 * Owns: the engine thread, the queue, the batch former, the caches. Callers submit whole prompts; the
 * engine reuses whatever it has cached of them. Must not know HTTP, templates or routing.
 *
 * Threads: ob_engine_* functions may be called from any thread unless said otherwise. Events are
 * delivered on the engine thread: a callback must not block and must not call ob_engine_free. Every
 * request must be freed before ob_engine_free.
 */
#ifndef OB_ENGINE_ENGINE_H
#define OB_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "dev/device.h"
#include "engine/picture.h"
#include "engine/share.h"
#include "fmt/fmt.h"
#include "gram/gram.h"
#include "graph/model.h"
#include "sample/sample.h"
#include "tok/tok.h"

typedef struct ob_engine ob_engine;
typedef struct ob_request ob_request;

enum { OB_MOE_SLOTS_AUTO = -1 };

/* Speculative decoding (engine/speculate.h). */
typedef enum ob_speculate {
    OB_SPECULATE_AUTO, /* where a row's bits do not depend on the rows beside it, so that text cannot change */
    OB_SPECULATE_OFF,
    OB_SPECULATE_ON,   /* also elsewhere: near ties may fall another way, as they do with other requests beside */
} ob_speculate;

typedef struct ob_engine_params {
    const char *model_path;
    const char *device;   /* "auto", "cpu", ...; NULL = "auto"; several, by commas, share the layers */
    const char *split;    /* shares of several devices, "3,1"; NULL: by their free memory */
    int32_t n_cpu_moe;    /* the experts of so many layers, from the first, run on the CPU */
    int64_t n_moe_slots;  /* experts kept in memory, the rest is read when needed; 0: all; OB_MOE_SLOTS_AUTO: what fits */
    uint64_t memory_bytes; /* what the model, its cache and the engine's buffers may take, for AUTO; 0: what is free */
    bool moe_guess;       /* read ahead what the next layer is guessed to need */
    bool lock_memory;     /* once loaded, keep the process's memory from being swapped out; a warning where that is not allowed */
    bool no_mmap;         /* read weights into memory of our own instead of touching the mapping */
    bool no_recipes;      /* engine/recipes.h is left alone */
    bool fallback;        /* ops that a device lacks run on the CPU, with a warning; `auto` takes the CPU for all */
    int32_t n_ctx;        /* most tokens of one sequence; 0: the model's, as far as memory allows */
    int32_t n_seq;        /* sequences in one batch (--parallel); 0: 4 */
    int32_t n_ubatch;     /* most tokens of one step; 0: what suits the device */
    int32_t n_threads;    /* <= 0: physical cores */
    ob_type k_type, v_type; /* cache types; OB_F16 by default */
    const char *prefill_device; /* prompts are computed there and handed over (engine/handover.h); NULL: here, as all else */
    int32_t prefill_min_tokens; /* ... when so many of their tokens are new; 1024 by default */
    int32_t n_queue;      /* waiting requests before OB_E_BUSY; 0: 1024 */
    ob_speculate speculate;
    int32_t n_draft;      /* most tokens drafted at once, up to OB_MAX_DRAFT_TOK; 0: that many */
    double max_stall_ms;  /* longest gap a prefill may put into other streams; 0: 150 */
    bool exact;           /* f32 activations (and the caller should choose f32 caches) */
    int32_t n_picture_tok; /* most tokens of one picture in a prompt (ob_vision_max_tok); 0: there are none */
    ob_act4_use act4;     /* of a Hadamard-rotated file: which matrices round activations of prompts to 4 bits */
    bool official_rounding; /* DeepSeek V4: FP8 keys and an FP4 indexer, as in DeepSeek's own implementation */
    bool embed;           /* vectors of texts, whatever else the model can do (see engine/encoder.h) */
    ob_pooling pooling;   /* how; AUTO: as the file says */
    ob_share *share;      /* weights are looked for, and offered, here; NULL: nothing is shared. Outlives the engine */
    int verify;           /* OB_VERIFY_: products of an NPU that are also computed on the CPU */
    bool pin_weights;     /* of an NPU: in memory that it reaches without a copy */
    int unit_mode;        /* OB_UNIT_: of an NPU */
    bool profile;
    ob_observe_fn observe; /* sees what each matrix multiplies; needs a device that can (OB_DEV_OBSERVE) */
    void *observe_arg;
    void (*on_progress)(void *arg, double fraction); /* while loading; may be NULL */
    void *progress_arg;
} ob_engine_params;

/* Of experts that are streamed (engine/experts.h), since start. */
typedef struct ob_expert_stats {
    int64_t n_slots, n_experts; /* room, and what there is; both 0 where nothing is streamed */
    uint64_t slot_bytes;        /* memory of the slots */
    uint64_t n_wanted;          /* experts that a layer of a step needed: hits and misses */
    uint64_t n_hits, n_misses;  /* there, or on its way; not so */
    uint64_t n_ahead_hits;      /* of the hits, read because of a guess */
    uint64_t n_guessed, n_guessed_right; /* experts guessed for a layer, and those of them that it then needed */
    uint64_t n_read_bytes;      /* from disk */
    double wait_ms;             /* that steps waited */
} ob_expert_stats;

void ob_engine_defaults(ob_engine_params *p);

/* Loads the model (blocking), opens the device, prepares plans, starts the engine thread. */
OB_MUST_CHECK ob_status ob_engine_new(const ob_engine_params *p, ob_engine **out, ob_err *err);
/* Cancels what is running, waits for the engine thread, frees all. */
void ob_engine_free(ob_engine *e);

typedef struct ob_engine_info {
    char arch[32], name[128], quant[32];  /* "llama", "SmolLM2 135M Instruct", "Q4_1" */
    uint64_t n_params, n_bytes;
    uint64_t n_shared_bytes;              /* of weights that another engine had packed already (ob_engine_params.share) */
    int32_t n_vocab, n_ctx, n_ctx_train, n_seq, n_ubatch, n_layer, n_embd;
    bool causal;                          /* false: an encoder, it cannot generate */
    ob_output output;                     /* what the loaded program gives */
    ob_pooling pooling;                   /* of OB_OUTPUT_EMBEDDINGS */
    int32_t n_class;                      /* of OB_OUTPUT_CLASSES */
    int32_t n_picture_tok;                /* most tokens of a picture in a prompt; 0: it takes none */
    ob_dev_info device;
    char prefill_device[16];              /* kind of the device that prompts are handed over from; "" without one */
    bool prefill_soft;                    /* it is an emulation */
    double load_ms;
} ob_engine_info;
void ob_engine_describe(const ob_engine *e, ob_engine_info *out);
const ob_tok *ob_engine_tok(const ob_engine *e);   /* borrowed, immutable */
const ob_file *ob_engine_file(const ob_engine *e); /* borrowed, immutable: chat template etc. */

typedef enum ob_finish {
    OB_FINISH_STOP,      /* end token or stop string */
    OB_FINISH_LENGTH,    /* max_tokens or context full */
    OB_FINISH_CANCELLED,
    OB_FINISH_ERROR,
} ob_finish;

typedef struct ob_timings {
    int32_t n_prompt;   /* tokens of the prompt */
    int32_t n_cached;   /* of them found in the cache */
    int32_t n_gen;      /* tokens generated, the end token included */
    int32_t n_handed;   /* of the prompt computed on the prefill device */
    int32_t n_drafted, n_draft_right; /* tokens tried ahead, and those that came true */
    double queue_ms, prompt_ms, gen_ms;
    double handover_ms; /* of prompt_ms: until they were here */
} ob_timings;

typedef struct ob_event {
    bool done;             /* last event of the request; after it the callback is not called again */
    /* One generated token (id >= 0) or none (id -1, e.g. flush of held-back text). */
    int32_t id;
    ob_logprob chosen;     /* valid when log-probabilities were asked for */
    const ob_logprob *top; /* [n_top], borrowed for the call */
    int32_t n_top;
    const char *text;      /* new text: whole UTF-8, stop strings never shown; may be empty */
    size_t text_len;
    /* when done */
    ob_finish finish;
    const char *stop_string; /* the stop string that was met, or NULL */
    ob_err err;              /* OB_FINISH_ERROR */
    ob_timings timings;      /* also filled, so far, on every event */
} ob_event;

typedef struct ob_request_params {
    const int32_t *prompt;       /* [n_prompt], copied; at least 1 token */
    size_t n_prompt;
    const ob_placed_picture *pictures; /* [n_pictures] whose rows the prompt's ids below 0 are; referenced */
    size_t n_pictures;
    int32_t max_tokens;          /* < 0: until the context is full */
    ob_sampler_params sampler;   /* copied */
    const char *const *stop;     /* [n_stop], copied */
    size_t n_stop;
    int32_t n_top_logprobs;      /* -1: none; 0: the chosen token's only */
    bool ignore_eos;
    ob_gram *gram;               /* what the reply must look like; NULL: anything. *Borrowed* until the last event */
    bool cache_prompt;           /* reuse and keep the prompt's cache (default true) */
    bool special;                /* show control tokens as text */
    int32_t priority;            /* higher first */
    void (*on_event)(void *arg, const ob_event *ev);
    void *arg;
} ob_request_params;

void ob_request_defaults(ob_request_params *p);

/* Queue a request. OB_E_CONTEXT_LENGTH (with both counts in err) when the prompt leaves no room for
 * one token; OB_E_BUSY when the queue is full; OB_E_INVALID names the field. The request is freed by
 * ob_request_free after its last event (may be called from the callback's thread or another). */
OB_MUST_CHECK ob_status ob_engine_submit(ob_engine *e, const ob_request_params *p, ob_request **out,
                                         ob_err *err);
/* Ask to stop; the last event (OB_FINISH_CANCELLED) comes within one step. Idempotent. */
void ob_request_cancel(ob_request *r);
/* Gives up the caller's reference; a running request is cancelled and sends no more events. */
void ob_request_free(ob_request *r);

/* Counters since start, for /metrics and /slots. */
typedef struct ob_engine_stats {
    uint64_t n_requests, n_done, n_failed, n_cancelled;
    uint64_t n_prompt_tok, n_cached_tok, n_gen_tok, n_steps;
    uint64_t n_drafted, n_draft_right; /* tokens tried ahead (n_steps counts their step once), and those that came true */
    double prompt_s, gen_s;
    int32_t n_running, n_waiting;
    int64_t kv_tok_used, kv_tok_total; /* live sequences only; pages kept for reuse count as free */
    int64_t kv_tok_cached;             /* tokens kept for reuse */
    uint64_t n_device_faults;          /* lost devices and memory that ran out in a step */
    uint64_t n_retried;                /* requests that were begun again after one */
    uint64_t n_handovers, n_handover_failed, n_handed_tok; /* prompts computed on the prefill device, and those that it failed */
    double handover_s;
    bool device_down;                  /* it could not be opened again yet: the next request tries */
    ob_expert_stats experts;
} ob_engine_stats;
void ob_engine_get_stats(ob_engine *e, ob_engine_stats *out);

typedef struct ob_slot_info {
    int32_t id;
    bool busy, prefilling;
    int32_t n_prompt, n_cached, n_past, n_gen;
} ob_slot_info;
/* Fills up to cap slots; returns their number. */
int ob_engine_get_slots(ob_engine *e, ob_slot_info *out, int cap);

#endif
