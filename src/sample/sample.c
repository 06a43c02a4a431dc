#include "sample/sample.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"

typedef struct candidate {
    int32_t id;
    float logit;
} candidate;

struct ob_sampler {
    ob_sampler_params p;
    ob_logit_bias *bias;
    int32_t n_vocab, n_top_max;
    uint64_t rng[2];
    candidate *cand; /* [n_vocab] */
    int32_t *count;  /* [n_vocab] occurrences among the tokens that penalties look at; NULL if unused */
    int32_t *recent; /* ring of the last tokens */
    int32_t n_recent, recent_at, recent_cap;
};

void ob_sampler_defaults(ob_sampler_params *p)
{
    *p = (ob_sampler_params){.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f,
                             .repeat_penalty = 1.0f, .repeat_last_n = 64};
}

/* ------------------------------------------------------------------ checking */

static ob_status range(ob_err *err, const char *name, float x, float lo, float hi)
{
    if (x >= lo && x <= hi) return OB_OK; /* NaN fails */
    return ob_err_set(err, OB_E_INVALID, "%s is %g, must be between %g and %g", name, (double)x,
                      (double)lo, (double)hi);
}

ob_status ob_sampler_check(const ob_sampler_params *p, int32_t n_vocab, ob_err *err)
{
    OB_TRY(range(err, "temperature", p->temperature, 0, 100));
    OB_TRY(range(err, "top_p", p->top_p, 0, 1));
    OB_TRY(range(err, "min_p", p->min_p, 0, 1));
    OB_TRY(range(err, "presence_penalty", p->presence_penalty, -2, 2));
    OB_TRY(range(err, "frequency_penalty", p->frequency_penalty, -2, 2));
    OB_TRY(range(err, "repeat_penalty", p->repeat_penalty, 0.01f, 100));
    if (p->repeat_last_n < -1)
        return ob_err_set(err, OB_E_INVALID, "repeat_last_n is %d, must be -1 or more", p->repeat_last_n);
    if (p->n_bias > OB_MAX_LOGIT_BIAS)
        return ob_err_set(err, OB_E_LIMIT, "logit_bias has %zu entries, at most %u are allowed", p->n_bias,
                          OB_MAX_LOGIT_BIAS);
    for (size_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].id < 0 || p->bias[i].id >= n_vocab)
            return ob_err_set(err, OB_E_INVALID, "logit_bias names token %d, the vocabulary has 0..%d",
                              p->bias[i].id, n_vocab - 1);
        if (isnan(p->bias[i].bias))
            return ob_err_set(err, OB_E_INVALID, "logit_bias of token %d is not a number", p->bias[i].id);
    }
    return OB_OK;
}

/* ------------------------------------------------------------------ life */

static uint64_t splitmix64(uint64_t *x)
{
    uint64_t z = *x += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* xoroshiro128+ (Blackman and Vigna, 2018); the top 53 bits make a double in [0, 1). */
static double uniform(ob_sampler *s)
{
    uint64_t a = s->rng[0], b = s->rng[1], r = a + b;
    b ^= a;
    s->rng[0] = (a << 24 | a >> 40) ^ b ^ (b << 16);
    s->rng[1] = b << 37 | b >> 27;
    return (double)(r >> 11) * 0x1p-53;
}

static bool wants_counts(const ob_sampler_params *p)
{
    return p->repeat_last_n != 0 &&
           (p->repeat_penalty != 1.0f || p->presence_penalty != 0 || p->frequency_penalty != 0);
}

ob_status ob_sampler_new(const ob_sampler_params *p, int32_t n_vocab, int32_t n_top_max, ob_sampler **out,
                         ob_err *err)
{
    OB_TRY(ob_sampler_check(p, n_vocab, err));
    ob_sampler *s = ob_calloc(1, sizeof *s);
    if (!s) goto no_memory;
    s->p = *p;
    s->n_vocab = n_vocab;
    s->n_top_max = OB_MIN(n_top_max, n_vocab);
    s->p.bias = NULL;
    s->cand = ob_calloc((size_t)n_vocab, sizeof *s->cand);
    if (!s->cand) goto no_memory;
    if (p->n_bias) {
        s->bias = ob_calloc(p->n_bias, sizeof *s->bias);
        if (!s->bias) goto no_memory;
        memcpy(s->bias, p->bias, p->n_bias * sizeof *s->bias);
        s->p.bias = s->bias;
    }
    if (wants_counts(p)) {
        s->recent_cap = p->repeat_last_n;
        s->count = ob_calloc((size_t)n_vocab, sizeof *s->count);
        if (p->repeat_last_n > 0) s->recent = ob_calloc((size_t)p->repeat_last_n, sizeof *s->recent);
        if (!s->count || (p->repeat_last_n > 0 && !s->recent)) goto no_memory;
    }
    uint64_t seed = p->seed;
    if (!p->has_seed) {
        /* any value that differs between requests will do: the address and a counter of allocations */
        seed = (uint64_t)(uintptr_t)s ^ (ob_alloc_count() << 20);
    }
    s->rng[0] = splitmix64(&seed);
    s->rng[1] = splitmix64(&seed);
    *out = s;
    return OB_OK;
no_memory:
    ob_sampler_free(s);
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a sampler over %d tokens", n_vocab);
}

void ob_sampler_free(ob_sampler *s)
{
    if (!s) return;
    ob_free(s->cand);
    ob_free(s->bias);
    ob_free(s->count);
    ob_free(s->recent);
    ob_free(s);
}

void ob_sampler_accept(ob_sampler *s, int32_t id)
{
    if (!s->count || id < 0 || id >= s->n_vocab) return;
    s->count[id]++;
    if (!s->recent) return; /* all tokens count */
    if (s->n_recent == s->recent_cap) s->count[s->recent[s->recent_at]]--;
    else s->n_recent++;
    s->recent[s->recent_at] = id;
    s->recent_at = (s->recent_at + 1) % s->recent_cap;
}

/* ------------------------------------------------------------------ choosing */

static bool better(candidate a, candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift_down(candidate *c, int32_t n, int32_t i)
{
    for (;;) {
        int32_t worst = i, l = 2 * i + 1, r = l + 1;
        if (l < n && better(c[worst], c[l])) worst = l;
        if (r < n && better(c[worst], c[r])) worst = r;
        if (worst == i) return;
        candidate t = c[i];
        c[i] = c[worst];
        c[worst] = t;
        i = worst;
    }
}

/* The k best logits in falling order into c: a heap of k with the worst on top, then heap sort. */
static void top_of(const float *logits, int32_t n, int32_t k, candidate *c)
{
    for (int32_t i = 0; i < k; i++) c[i] = (candidate){i, logits[i]};
    for (int32_t i = k / 2 - 1; i >= 0; i--) sift_down(c, k, i);
    for (int32_t i = k; i < n; i++) {
        if (!(logits[i] > c[0].logit)) continue; /* ties keep the smaller id, which came first */
        c[0] = (candidate){i, logits[i]};
        sift_down(c, k, 0);
    }
    for (int32_t m = k - 1; m > 0; m--) {
        candidate t = c[0];
        c[0] = c[m];
        c[m] = t;
        sift_down(c, m, 0);
    }
}

static double log_sum_exp(const float *x, int32_t n, float max)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)expf(x[i] - max);
    return (double)max + log(sum);
}

static ob_status nan_error(ob_err *err)
{
    return ob_err_set(err, OB_E_DEVICE, "the model's logits hold NaN: the device computed nonsense or the model file is "
                      "damaged");
}

static ob_status find_max(const float *x, int32_t n, int32_t *at, ob_err *err)
{
    int32_t best = 0;
    bool nan = isnan(x[0]);
    for (int32_t i = 1; i < n; i++) {
        nan |= isnan(x[i]) != 0;
        if (x[i] > x[best]) best = i;
    }
    *at = best;
    return nan ? nan_error(err) : OB_OK;
}

static void penalise(const ob_sampler *s, float *x)
{
    if (!s->count) return;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        if (!s->count[i]) continue;
        x[i] = x[i] > 0 ? x[i] / s->p.repeat_penalty : x[i] * s->p.repeat_penalty;
        x[i] -= s->p.presence_penalty + s->p.frequency_penalty * (float)s->count[i];
    }
}

static int32_t draws_from(const ob_sampler *s)
{
    return s->p.top_k > 0 ? OB_MIN(s->p.top_k, s->n_vocab) : s->n_vocab;
}

/* top_p and min_p over the tempered distribution of the k best, in s->cand, then the draw. */
static int32_t draw(ob_sampler *s, int32_t k)
{
    const candidate *c = s->cand;
    float inv_t = 1.0f / s->p.temperature;
    double sum = 0, kept = 0;
    for (int32_t i = 0; i < k; i++) sum += exp((double)((c[i].logit - c[0].logit) * inv_t));
    int32_t n = 0;
    while (n < k) { /* c falls, so both cuts are a prefix; the first always stays */
        double p = exp((double)((c[n].logit - c[0].logit) * inv_t));
        if (n > 0 && (kept >= (double)s->p.top_p * sum || p < (double)s->p.min_p)) break;
        kept += p;
        n++;
    }
    double u = uniform(s) * kept;
    for (int32_t i = 0; i < n; i++) {
        u -= exp((double)((c[i].logit - c[0].logit) * inv_t));
        if (u < 0) return c[i].id;
    }
    return c[n - 1].id;
}

/* The logit of a token before `penalise` changed it. */
static float before_penalties(const ob_sampler *s, float x, int32_t id)
{
    if (!s->count || !s->count[id]) return x;
    x += s->p.presence_penalty + s->p.frequency_penalty * (float)s->count[id];
    return x > 0 ? x * s->p.repeat_penalty : x / s->p.repeat_penalty;
}

ob_status ob_sampler_next(ob_sampler *s, float *x, const int32_t *banned, size_t n_banned, int32_t n_top,
                          ob_logprob *chosen, ob_logprob *top, ob_err *err)
{
    int32_t best;
    for (size_t i = 0; i < s->p.n_bias; i++) x[s->bias[i].id] += s->bias[i].bias;
    for (size_t i = 0; i < n_banned; i++) x[banned[i]] = -INFINITY;
    OB_TRY(find_max(x, s->n_vocab, &best, err));
    if (x[best] == -INFINITY)
        return ob_err_set(err, OB_E_INVALID, "logit_bias forbids every token of the vocabulary");

    double lse = 0;
    n_top = OB_MIN(n_top, s->n_top_max);
    if (n_top >= 0) {
        lse = log_sum_exp(x, s->n_vocab, x[best]);
        if (n_top > 0) top_of(x, s->n_vocab, n_top, s->cand);
        for (int32_t i = 0; i < n_top; i++)
            top[i] = (ob_logprob){s->cand[i].id, (float)((double)s->cand[i].logit - lse)};
    }
    penalise(s, x);
    int32_t id = best;
    if (s->p.temperature > 0) {
        top_of(x, s->n_vocab, draws_from(s), s->cand);
        id = draw(s, draws_from(s));
    } else if (s->count) OB_TRY(find_max(x, s->n_vocab, &id, err));
    *chosen = (ob_logprob){id, n_top >= 0 ? (float)((double)before_penalties(s, x[id], id) - lse) : 0.0f};
    return OB_OK;
}

/* ------------------------------------------------------------------ from the best of a row */

static int32_t wanted(const ob_sampler *s, int32_t n_top)
{
    return OB_MAX(s->p.temperature > 0 ? draws_from(s) : 1, OB_MIN(n_top, s->n_top_max));
}

bool ob_sampler_needs_row(const ob_sampler *s, int32_t n, size_t n_banned, int32_t n_top)
{
    const int64_t have = OB_MIN(n, s->n_vocab), rest = s->n_vocab - (int64_t)n_banned;
    if (s->p.n_bias || s->count || (n_banned && n_top >= 0)) return true;
    return OB_MIN((int64_t)wanted(s, n_top), rest) > have - (int64_t)n_banned;
}

static bool is_banned(int32_t id, const int32_t *banned, size_t n_banned)
{
    for (size_t i = 0; i < n_banned; i++)
        if (banned[i] == id) return true;
    return false;
}

ob_status ob_sampler_next_top(ob_sampler *s, const ob_top_logits *t, const int32_t *banned, size_t n_banned, int32_t n_top,
                              ob_logprob *chosen, ob_logprob *top, ob_err *err)
{
    int32_t n = 0;
    if (t->nan) return nan_error(err);
    n_top = OB_MIN(n_top, s->n_top_max);
    for (int32_t i = 0; i < t->n && n < wanted(s, n_top) && t->ids[i] >= 0; i++)
        if (!is_banned((int32_t)t->ids[i], banned, n_banned))
            s->cand[n++] = (candidate){(int32_t)t->ids[i], t->logits[i]};
    if (n == 0 || s->cand[0].logit == -INFINITY)
        return ob_err_set(err, OB_E_INVALID, "every token of the vocabulary is forbidden");
    for (int32_t i = 0; i < n_top; i++)
        top[i] = (ob_logprob){s->cand[i].id, (float)((double)s->cand[i].logit - (double)t->log_sum_exp)};
    const int32_t id = s->p.temperature > 0 ? draw(s, OB_MIN(n, draws_from(s))) : s->cand[0].id;
    *chosen = (ob_logprob){id, 0};
    for (int32_t i = 0; i < n && n_top >= 0; i++)
        if (s->cand[i].id == id) chosen->logprob = (float)((double)s->cand[i].logit - (double)t->log_sum_exp);
    return OB_OK;
}
