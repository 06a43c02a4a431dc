/* sample/sample.h: from logits to a token.
 *
 * Owns: sampler chain, penalties, log-probabilities. Pure over a row of logits; must not know devices.
 * Order: logit bias and masks, penalties (repeat, presence, frequency), then top_k, top_p, min_p on
 * the temperature-scaled distribution, then the draw. temperature <= 0 is greedy: the smallest id wins
 * a tie. Log-probabilities are of the raw distribution (after bias, before penalties and temperature),
 * as OpenAI's API has them.
 */
#ifndef OB_SAMPLE_SAMPLE_H
#define OB_SAMPLE_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct ob_logit_bias {
    int32_t id;
    float bias;
} ob_logit_bias;

typedef struct ob_sampler_params {
    float temperature;      /* 0.8; <= 0: greedy */
    int32_t top_k;          /* 40; <= 0: off */
    float top_p;            /* 0.95; >= 1: off */
    float min_p;            /* 0.05; <= 0: off */
    float repeat_penalty;   /* 1: off. Divides positive, multiplies negative logits of seen tokens */
    int32_t repeat_last_n;  /* 64: how far back penalties look; -1 = all */
    float presence_penalty, frequency_penalty; /* 0: off */
    bool has_seed;
    uint64_t seed;
    const ob_logit_bias *bias; /* borrowed by the caller's struct, copied by ob_sampler_new */
    size_t n_bias;
} ob_sampler_params;

void ob_sampler_defaults(ob_sampler_params *p);
/* Names the first field out of range: OB_E_INVALID. n_vocab bounds the ids of bias. */
OB_MUST_CHECK ob_status ob_sampler_check(const ob_sampler_params *p, int32_t n_vocab, ob_err *err);

typedef struct ob_logprob {
    int32_t id;
    float logprob; /* natural */
} ob_logprob;

typedef struct ob_sampler ob_sampler; /* engine thread; one per request */
/* Allocates everything that sampling will need: ob_sampler_next allocates nothing. */
OB_MUST_CHECK ob_status ob_sampler_new(const ob_sampler_params *p, int32_t n_vocab, int32_t n_top_max,
                                       ob_sampler **out, ob_err *err);
void ob_sampler_free(ob_sampler *s);
/* Tell the sampler about a token of the prompt or of the reply (for penalties). */
void ob_sampler_accept(ob_sampler *s, int32_t id);
/* Choose from logits [n_vocab] (modified). n_banned ids are never chosen (e.g. end tokens under
 * ignore_eos). If n_top >= 0, *chosen gets the token's log-probability and top[0..n_top) the most
 * likely tokens in falling order. OB_E_DEVICE when the logits hold NaN: the text says so. */
OB_MUST_CHECK ob_status ob_sampler_next(ob_sampler *s, float *logits, const int32_t *banned,
                                        size_t n_banned, int32_t n_top, ob_logprob *chosen,
                                        ob_logprob *top, ob_err *err);

/* --- from the best of a row -------------------------------------------------------------------------
 * A device may give of each row only the n largest logits (OB_OP_TOP_K): often enough. */
typedef struct ob_top_logits {
    const float *ids;    /* [n] whole numbers, best first, of equal ones the smaller; -1: no more */
    const float *logits; /* [n] */
    int32_t n;
    float log_sum_exp;   /* over the whole row */
    bool nan;            /* the row holds NaN */
} ob_top_logits;

/* Must the sampler see whole rows? It need not, when the n best are all that it may choose from: no logit bias, no
 * penalties, a top_k (or greedy) within n less the banned ones, and no log-probabilities of a row that bans change. */
bool ob_sampler_needs_row(const ob_sampler *s, int32_t n, size_t n_banned, int32_t n_top);
/* As ob_sampler_next, with the same choice. Only where ob_sampler_needs_row is false. */
OB_MUST_CHECK ob_status ob_sampler_next_top(ob_sampler *s, const ob_top_logits *t, const int32_t *banned, size_t n_banned,
                                            int32_t n_top, ob_logprob *chosen, ob_logprob *top, ob_err *err);

#endif
