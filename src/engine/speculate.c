#include "engine/speculate.h"

#include <stdbool.h>

#include "base/math.h"

enum {
    MATCH_MIN = 2,      /* tokens that must have been there before */
    MATCH_LONG = 5,     /* a match of so many is trusted by itself */
    MATCH_MAX = 12,     /* longer ones are not told apart */
    LOOK_BACK = 32768,  /* tokens that are searched */
    MEMORY = 24,        /* tries that odds remember */
    FORGET_STEPS = 256, /* after which a cost is doubted */
};

ob_spec_draft ob_spec_find(const int32_t *tok, int32_t n, int32_t *dst, int32_t cap, const ob_spec_odds *odds)
{
    const int32_t from = OB_MAX(0, n - LOOK_BACK);
    int32_t best = 0, at = 0;
    for (int32_t i = n - 2; i >= from && best < MATCH_MAX; i--) {
        if (tok[i] != tok[n - 1]) continue;
        int32_t len = 1;
        while (len < MATCH_MAX && len <= i - from && tok[i - len] == tok[n - 1 - len]) len++;
        if (len > best) {
            best = len;
            at = i + 1;
        }
    }
    ob_spec_draft d = {.trust = best >= MATCH_LONG};
    if (best < MATCH_MIN) return d;
    /* What is drafted goes on behind the text itself, so that a short loop is drafted as often as it fits. */
    for (; d.n < cap; d.n++) {
        const int32_t k = at + d.n, id = k < n ? tok[k] : dst[k - n];
        if (id < 0) break;
        dst[d.n] = id;
    }
    d.p = (odds->right[d.trust] + 1) / (odds->tried[d.trust] + 2);
    return d;
}

void ob_spec_note(ob_spec_odds *odds, int32_t trust, int32_t n_tried, int32_t n_right)
{
    odds->right[trust] += (float)n_right;
    odds->tried[trust] += (float)OB_MIN(n_right + 1, n_tried);
    if (odds->tried[trust] > MEMORY) {
        odds->right[trust] *= 0.5f;
        odds->tried[trust] *= 0.5f;
    }
}

void ob_spec_note_cost(ob_spec_costs *c, int32_t n_rows, double ms)
{
    c->n_steps++;
    if (n_rows < 1 || n_rows > OB_SPEC_MAX_ROWS) return;
    float *known = &c->ms[n_rows];
    c->seen[n_rows] = c->n_steps;
    /* A step that took long because the machine was busy must not count for much. */
    if (*known > 0) *known += 0.25f * (OB_MIN((float)ms, 2 * *known) - *known);
    else *known = (float)ms;
}

/* Of a size that was not measured, that of the next smaller one and a little more; of one measured long ago, less than it
 * was: both get their measurement when they promise something. */
static double cost_of(const ob_spec_costs *c, int32_t n_rows)
{
    int32_t k = n_rows;
    while (k > 0 && c->ms[k] <= 0) k--;
    if (k == 0) return 1;
    return c->ms[k] * (k < n_rows ? 1.05 : 1) * (c->n_steps - c->seen[k] > FORGET_STEPS ? 0.8 : 1);
}

/* Tokens that a draft of d gives, the one that is sampled in any case included: 1 + p + p^2 + ... */
static double expected(double p, int32_t d)
{
    double sum = 1, term = 1;
    for (int32_t k = 0; k < d; k++) sum += term *= p;
    return sum;
}

int32_t ob_spec_choose(const ob_spec_costs *c, const ob_spec_draft *drafts, int32_t n, int32_t most)
{
    static const int32_t sizes[] = {1, 3, 7, 15};
    if (n < 1 || n > OB_SPEC_MAX_ROWS || most < 1) return 0;
    const double plain = n / cost_of(c, n);
    double best = 1.02 * plain; /* what is not clearly quicker is not tried */
    int32_t choice = 0, before = n;
    for (size_t k = 0; k < OB_COUNT(sizes); k++) {
        int32_t rows = n;
        double tokens = 0;
        for (int32_t i = 0; i < n; i++) {
            const int32_t d = OB_MIN(OB_MIN(sizes[k], most), drafts[i].n);
            rows += d;
            tokens += expected(drafts[i].p, d);
        }
        if (rows > OB_SPEC_MAX_ROWS || rows == before) break;
        before = rows;
        const double rate = tokens / cost_of(c, rows);
        if (rate > best) {
            best = rate;
            choice = sizes[k];
        }
    }
    return OB_MIN(choice, most);
}
