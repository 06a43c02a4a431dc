/* engine/speculate.h: speculative decoding by prompt lookup: what a reply is likely to repeat of the text before it, and how
 * much of that is worth a try.
 *
 * Tokens that are drafted run in one step with the last real one; each is kept only if it is what would have been sampled,
 * so the text does not change (Leviathan et al., arXiv 2211.17192; drafts from the text itself: Saxena, "Prompt Lookup
 * Decoding", 2023). How many are tried follows from two measurements: what share of drafts came true in this reply, and
 * what a step with so many rows costs on this device. Knows no sequences; engine.c does the rest.
 */
#ifndef OB_ENGINE_SPECULATE_H
#define OB_ENGINE_SPECULATE_H

#include <stdint.h>

enum {
    OB_SPEC_MAX_ROWS = 64, /* most rows of a step that has drafts */
    OB_SPEC_N_TRUST = 2,   /* kinds of matches, by their length */
};

/* How drafts of one reply fared, by how long the match was. Begins as all zero. */
typedef struct ob_spec_odds {
    float right[OB_SPEC_N_TRUST], tried[OB_SPEC_N_TRUST];
} ob_spec_odds;

/* What steps cost here, by their rows. Begins as all zero. */
typedef struct ob_spec_costs {
    float ms[OB_SPEC_MAX_ROWS + 1];       /* 0: not known */
    uint32_t seen[OB_SPEC_MAX_ROWS + 1];  /* number of the last step of that size; 0: none */
    uint32_t n_steps;
} ob_spec_costs;

typedef struct ob_spec_draft {
    int32_t n;         /* tokens found, 0: none */
    int32_t trust;     /* kind of match */
    double p;          /* how likely each of them is right, given those before it */
} ob_spec_draft;

/* What followed the longest earlier occurrence (of two tokens at least) of the end of tok[0..n): up to cap tokens to dst,
 * none below 0 (pictures). dst may be tok + n. */
ob_spec_draft ob_spec_find(const int32_t *tok, int32_t n, int32_t *dst, int32_t cap, const ob_spec_odds *odds);

/* Of a draft, n_right came true and then one did not (or, n_right == n_tried, all did). */
void ob_spec_note(ob_spec_odds *odds, int32_t trust, int32_t n_tried, int32_t n_right);

/* A step of n_rows rows (at most OB_SPEC_MAX_ROWS) took ms. */
void ob_spec_note_cost(ob_spec_costs *c, int32_t n_rows, double ms);

/* How many tokens of each draft [n] to try at most, so that tokens per second are most: 0, 1, 3, 7 or 15. A size that was
 * not measured lately is taken for cheap, and so gets its measurement. */
int32_t ob_spec_choose(const ob_spec_costs *c, const ob_spec_draft *drafts, int32_t n, int32_t most);

#endif
