/* engine/handover.h: prompts computed on one device, for sequences that go on on another.
 *
 * Owns: a second context of the same model on the prefill device, the thread that drives it, and what is on its way
 * between the two. A job is one prompt. The prefill thread runs it in chunks, and while it computes the next chunk
 * the pages of the last one are imported by the thread of the decoding context, in ob_handover_poll. What the decoding
 * device has already (its prefix cache) is not computed again: pages that the prefill device lacks of it are sent there
 * first, the other way round.
 *
 *   decode thread:  begin ... poll ....... poll (pages) ... poll (pages) ... poll (pages, states) -> DONE
 *   prefill thread:   [prefix] [chunk 1][export][chunk 2][export] ... [states]
 *
 * Bytes go through host memory. Whatever fails (device lost, layout refused, no memory), the sequence is as it was at
 * begin, and its owner computes the prompt itself: hand-over is never a reason for a request to fail.
 */
#ifndef OB_ENGINE_HANDOVER_H
#define OB_ENGINE_HANDOVER_H

#include "engine/ctx.h"

typedef struct ob_handover ob_handover;
typedef struct ob_handover_job ob_handover_job;

/* Loads p's model on p->prefill_device for sequences of `decode`, and starts the thread. notify (may be NULL) is called
 * on it when there is something to poll. Where that device lacks a kernel for decode's cache types, its own are f16 and
 * pages are converted. Errors of ob_ctx_new; OB_E_UNSUPPORTED for encoders and layouts that do not fit. */
OB_MUST_CHECK ob_status ob_handover_new(const ob_engine_params *p, const ob_ctx *decode, void (*notify)(void *arg),
                                        void *arg, ob_handover **out, ob_err *err);
/* Every job must have ended. */
void ob_handover_free(ob_handover *h);
void ob_handover_describe(const ob_handover *h, ob_dev_info *out);

/* A prompt of n tokens, the first of which s has already. *out is NULL when it is not for this: fewer than
 * prefill_min_tokens are left to compute, or the prefill device failed lately. Else s must not be stepped or freed
 * before ob_handover_end, and has lost the tokens behind its last whole page. `keep`: the prefill device may find and
 * keep prefixes. */
OB_MUST_CHECK ob_status ob_handover_begin(ob_handover *h, ob_ctx *c, ob_seq *s, const int32_t *tok, int32_t n,
                                          const ob_placed_picture *pics, int32_t n_pics, bool keep, ob_handover_job **out,
                                          ob_err *err);

typedef enum ob_handover_state {
    OB_HANDOVER_RUNNING,
    OB_HANDOVER_DONE,   /* the sequence has the tokens */
    OB_HANDOVER_FAILED, /* it has what it had at begin */
} ob_handover_state;
/* Moves what has arrived. Thread of the decoding context; a failure of that context itself shows in ob_ctx_faulted. */
ob_handover_state ob_handover_poll(ob_handover_job *j);
/* Waits until there is something to poll: for callers without `notify`. */
void ob_handover_wait(ob_handover_job *j);
typedef struct ob_handover_report {
    int32_t n_handed;   /* tokens that came from the prefill device; 0: it failed, or was not asked */
    int32_t n_computed; /* of them computed for this prompt: the others it had kept */
    int32_t n_sent;     /* tokens that it lacked and got from here */
    double ms;          /* from begin to the last poll */
} ob_handover_report;
/* When the job no longer runs. */
void ob_handover_result(const ob_handover_job *j, ob_handover_report *out);
/* begin, wait and end in one, for callers with a context of their own: when it returns the sequence has what could be
 * handed over. out may be NULL. Errors are those of `c`. */
OB_MUST_CHECK ob_status ob_handover_run(ob_handover *h, ob_ctx *c, ob_seq *s, const int32_t *tok, int32_t n, bool keep,
                                        ob_handover_report *out, ob_err *err);
/* Ends the caller's part; a job that runs is cancelled and s cut back. */
void ob_handover_end(ob_handover_job *j);

#endif
