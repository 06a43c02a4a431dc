/* onebit.h: the public interface of the 1bit engine, for programs that embed it.
 *
 * Read it from the top: errors, a model, text and tokens, a session (one timeline that you drive token
 * by token), and generation (requests that the engine runs for you, many at once).
 *
 * Ownership: what a function returns through an `out` pointer is yours and has a matching _free.
 * Pointers to const that are returned are borrowed from the object and live as long as it does.
 * Threads: a model may be used from any thread; a session from one thread at a time, and while a
 * model has sessions open it runs no requests (and the other way round): open it twice for both.
 */
#ifndef ONEBIT_H
#define ONEBIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ONEBIT_API __attribute__((visibility("default")))

ONEBIT_API const char *onebit_version(void); /* "0.1.0" */

/* ------------------------------------------------------------------ errors
 * Functions that can fail return a status: 0 is success. `error` may be NULL; else it is filled on
 * failure with one sentence that says what, where and what to do. */
typedef struct onebit_error {
    int code;          /* the status */
    char name[32];     /* "context_length", "format", ... : stable, unlike the number */
    char text[512];
    long n_prompt, n_ctx; /* for "context_length": the two counts */
} onebit_error;

/* ------------------------------------------------------------------ model */
typedef struct onebit_model onebit_model;

typedef struct onebit_options {
    const char *device;  /* "auto" (default), "cpu", or a name that `1bit devices` shows */
    int32_t n_ctx;       /* most tokens of one sequence; 0: the model's, as memory allows */
    int32_t n_seq;       /* sequences run together; 0: 4 */
    int32_t n_threads;   /* 0: one per physical core */
    int32_t n_ubatch;    /* most tokens of one step; 0: what suits the device */
    bool exact;          /* f32 activations and caches: slow, for checking */
} onebit_options;

typedef struct onebit_info {
    char arch[32], name[128], type[32], device[128];
    uint64_t n_params, n_bytes;
    int32_t n_vocab, n_ctx, n_ctx_train, n_embd, n_layer;
} onebit_info;

/* options may be NULL. Blocks until the weights are on the device. */
ONEBIT_API int onebit_model_open(const char *path, const onebit_options *options, onebit_model **out,
                                 onebit_error *error);
ONEBIT_API void onebit_model_free(onebit_model *m); /* sessions and requests must be gone */
ONEBIT_API void onebit_model_info(const onebit_model *m, onebit_info *out);

/* ------------------------------------------------------------------ text and tokens */

/* special: the spelling of control tokens becomes those tokens, and BOS is added where the model
 * wants it. *ids is yours: onebit_ids_free. */
ONEBIT_API int onebit_tokenize(const onebit_model *m, const char *text, size_t len, bool special,
                               int32_t **ids, size_t *n, onebit_error *error);
ONEBIT_API void onebit_ids_free(int32_t *ids);
/* Bytes of one token as text; may be a part of a UTF-8 character. Not NUL-terminated. */
ONEBIT_API const char *onebit_token_text(const onebit_model *m, int32_t id, size_t *len);
ONEBIT_API bool onebit_token_ends(const onebit_model *m, int32_t id); /* end of a generation? */

/* ------------------------------------------------------------------ session
 * One timeline: tokens go in, logits come out. What was fed stays in the cache. */
typedef struct onebit_session onebit_session;

ONEBIT_API int onebit_session_new(onebit_model *m, onebit_session **out, onebit_error *error);
/* Also keeps the cache of its tokens for later sessions that begin alike. */
ONEBIT_API void onebit_session_free(onebit_session *s);
ONEBIT_API int32_t onebit_session_len(const onebit_session *s); /* tokens so far */
/* Append tokens. *logits (optional) gets [n_vocab] floats after the last of them, valid until the next
 * call on any session of the model. On an empty session the longest cached beginning is reused. */
ONEBIT_API int onebit_session_feed(onebit_session *s, const int32_t *ids, int32_t n, const float **logits,
                                   onebit_error *error);

/* ------------------------------------------------------------------ generation */
typedef struct onebit_sampling {
    float temperature; /* 0: greedy */
    int32_t top_k;     /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    float repeat_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: off */
    uint64_t seed;     /* 0: a new one each time */
} onebit_sampling;

ONEBIT_API void onebit_sampling_defaults(onebit_sampling *s);

typedef struct onebit_result {
    char *text;            /* whole UTF-8, NUL-terminated; onebit_result_free */
    size_t len;
    const char *finish;    /* "stop", "length" or "cancelled" */
    int32_t n_prompt, n_cached, n_generated;
    double prompt_ms, generate_ms;
} onebit_result;

/* Called on the engine's thread with new text as it comes; return false to stop. */
typedef bool (*onebit_text_fn)(void *arg, const char *text, size_t len);

/* Run a prompt of ids to its end (blocking; other threads may do the same at once, and are batched).
 * max_tokens < 0: until the context is full. sampling, stop, on_text may be NULL. */
ONEBIT_API int onebit_generate(onebit_model *m, const int32_t *ids, size_t n, int32_t max_tokens,
                               const onebit_sampling *sampling, const char *const *stop, size_t n_stop,
                               onebit_text_fn on_text, void *arg, onebit_result *out, onebit_error *error);
ONEBIT_API void onebit_result_free(onebit_result *r);

#ifdef __cplusplus
}
#endif
#endif
