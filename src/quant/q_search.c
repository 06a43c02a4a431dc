/* quant/q_search.c: see q_search.h. */
#include "quant/q_search.h"

#include <math.h>

#include "base/math.h"

enum { T = OB_QUANT_LANES };

/* Below this a block counts as zeros: its scale is nothing in f16, and 1/x must not overflow. */
static const float tiny = 1e-20f;

/* A later start must gain more than rounding noise, so that equal sub-blocks get equal scales. */
static const float better = 1.000001f;

/* Adding and subtracting 1.5 * 2^23 rounds |v| < 2^22 to the nearest integer, ties to even; it is
 * two vector instructions everywhere, which rintf is not. */
static inline float round_near(float v) { return (v + 12582912.0f) - 12582912.0f; }
static inline float clamp(float v, float lo, float hi)
{
    v = v > lo ? v : lo;
    return v < hi ? v : hi;
}
static inline float inverse(float d) { return d > tiny || d < -tiny ? 1.0f / d : 0.0f; }

void ob_quant_weights(const float *importance, int n, float *w)
{
    /* A few hundred calibration texts do not know an importance to better than a factor or so:
     * draw it towards the mean. Measured on the golden rows, this costs 0.5 % of weighted error and
     * saves 3 % of plain error; and an element never seen in calibration keeps some weight. */
    const float shrink = 0.3f;
    float sum = 0;
    if (importance)
        for (int j = 0; j < n; j++) sum += importance[j] / (float)n;
    const bool use = sum > 0 && sum < INFINITY;
    for (int j = 0; j < n; j++) w[j] = use ? importance[j] / sum + shrink : 1.0f;
}

/* The element of the largest magnitude, with its sign. */
static float peak(const float *x, int n)
{
    float best = 0;
    for (int j = 0; j < n; j++) best = fabsf(x[j]) > fabsf(best) ? x[j] : best;
    return best;
}

/* --- sums over the codes of each start ------------------------------------------------------ */

typedef struct sums {
    float q[T], qq[T], xq[T]; /* weighted sums of q, q^2, x q */
} sums;

/* The codes are q = (x - m) id to the nearest integer of lo..hi. */
static void add_codes(const float *x, const float *w, int n, float lo, float hi,
                      const float *restrict id, const float *restrict m, sums *restrict s)
{
    float xq[T] = {0}, qq[T] = {0}, sq[T] = {0};
    for (int j = 0; j < n; j++) {
        const float wj = w[j], wx = w[j] * x[j], xj = x[j];
        for (int t = 0; t < T; t++) {
            const float q = round_near(clamp((xj - m[t]) * id[t], lo, hi)), wq = wj * q;
            sq[t] += wq;
            xq[t] += wx * q;
            qq[t] += wq * q;
        }
    }
    memcpy(s->xq, xq, sizeof xq);
    memcpy(s->qq, qq, sizeof qq);
    memcpy(s->q, sq, sizeof sq);
}

/* --- y = d q ------------------------------------------------------------------------------- */

/* From the sums of each start to the best scale of its codes: its inverse into id, and what it gains
 * over zeros, sum w x^2 - error. */
static void solve_scales(const sums *s, float *restrict id, float *restrict gain)
{
    for (int t = 0; t < T; t++) {
        const float xq = s->xq[t], qq = s->qq[t];
        gain[t] = xq * xq / (qq > 0 ? qq : 1.0f);
        id[t] = qq / (xq != 0 ? xq : 1.0f);
    }
}

/* Keeps the start that gains most; true if it is a new one. */
static bool keep_best(const sums *s, const float *gain, float *best_d, float *best_gain)
{
    int best = -1;
    for (int t = 0; t < T; t++)
        if (gain[t] > *best_gain) {
            *best_gain = gain[t] * better;
            best = t;
        }
    if (best >= 0) *best_d = s->xq[best] / s->qq[best];
    return best >= 0;
}

float ob_quant_fit_scale(const float *x, const float *w, int n, int lo, int hi)
{
    const float top = peak(x, n);
    if (fabsf(top) < tiny) return 0;
    float best_d = 0, best_gain = 0, id[2][T], gain[T], zero[T] = {0};
    int end = 0;
    sums s;
    /* The peak meets the code of largest magnitude, or goes past it (clipped), or less far; once at
     * each end of the codes. With few codes it pays to clip a lot. */
    const float step = OB_MAX(0.025f, -0.2f / (float)lo);
    for (int e = 0; e < 2; e++) {
        const float at = (float)(e ? hi : lo);
        for (int t = 0; t < T; t++) id[e][t] = at * (1.0f + step * (float)(t - 4)) / top;
        add_codes(x, w, n, (float)lo, (float)hi, id[e], zero, &s);
        solve_scales(&s, id[e], gain);
        if (keep_best(&s, gain, &best_d, &best_gain)) end = e;
    }
    /* Once more from the scales found at the better end. */
    add_codes(x, w, n, (float)lo, (float)hi, id[end], zero, &s);
    solve_scales(&s, id[end], gain);
    keep_best(&s, gain, &best_d, &best_gain);
    return best_d;
}

/* --- y = d q + m --------------------------------------------------------------------------- */

/* Least squares for (d, m) of given codes; the gain is sum w x^2 less the error. */
static float solve_affine(double sw, double sx, double sq, double sqq, double sxq,
                          bool min_below_zero, float *d, float *m)
{
    const double det = sw * sqq - sq * sq;
    if (det > 1e-5 * sw * sqq) { /* else only rounding noise: all codes are equal */
        const double a = (sw * sxq - sx * sq) / det, b = (sqq * sx - sq * sxq) / det;
        if (a > 0 && (b <= 0 || !min_below_zero)) {
            *d = (float)a;
            *m = (float)b;
            return (float)(a * sxq + b * sx);
        }
    }
    if (!(sqq > 0 && sxq > 0)) return -1;
    *d = (float)(sxq / sqq);
    *m = 0;
    return (float)(sxq * sxq / sqq);
}

float ob_quant_fit_affine(const float *x, const float *w, int n, int hi, bool min_below_zero,
                          float *m)
{
    float low = x[0], high = x[0], sw = 0, sx = 0;
    for (int j = 0; j < n; j++) {
        low = x[j] < low ? x[j] : low;
        high = x[j] > high ? x[j] : high;
        sw += w[j];
        sx += w[j] * x[j];
    }
    if (min_below_zero && low > 0) low = 0;
    *m = low;
    if (high - low < tiny) return 0;
    float best_d = (high - low) / (float)hi, best_gain = -INFINITY, id[T], off[T];
    /* Lane 0 spans the whole range; others use up to a step less or more, and start off the end. */
    static const float extra[4] = {0, 0.5f, -0.5f, -1}, lift[4] = {0, 0.25f, -0.25f, 0.5f};
    for (int t = 0; t < T; t++) {
        const float d = (high - low) / ((float)hi + extra[t % 4] + lift[t / 4]);
        id[t] = 1.0f / d;
        off[t] = low + lift[t / 4] * d;
        if (min_below_zero && off[t] > 0) off[t] = 0;
    }
    for (int i = 0; i < 2; i++) {
        sums s;
        add_codes(x, w, n, 0, (float)hi, id, off, &s);
        for (int t = 0; t < T; t++) {
            float d, b;
            const float gain = solve_affine((double)sw, (double)sx, (double)s.q[t],
                                            (double)s.qq[t], (double)s.xq[t], min_below_zero, &d,
                                            &b);
            if (gain < 0) continue;
            id[t] = inverse(d);
            off[t] = b;
            if (gain > best_gain) {
                best_gain = gain * better;
                best_d = d;
                *m = b;
            }
        }
    }
    /* Where no code is 0, the same values come from lower codes and a smaller minimum, which is
     * kinder to the scale that the minima of a super-block share. */
    const float unused = best_d > 0 ? floorf((low - *m) / best_d + 0.5f) : 0;
    if (unused >= 1 && unused <= (float)hi && (!min_below_zero || *m + unused * best_d <= 0))
        *m += unused * best_d;
    return best_d;
}

/* --- y = d value(q) ------------------------------------------------------------------------ */

/* Nearest of 16 rising values, as their running sum over the bounds that v has passed. */
static inline float nearest_value(float v, const float *bound, const float *jump, float first)
{
    float value = first;
    for (int k = 0; k < 15; k++) value += v > bound[k] ? jump[k] : 0.0f;
    return value;
}

static void codebook_bounds(const int8_t *values, float *bound, float *jump)
{
    for (int k = 0; k < 15; k++) {
        bound[k] = 0.5f * (float)(values[k] + values[k + 1]);
        jump[k] = (float)(values[k + 1] - values[k]);
    }
}

float ob_quant_fit_codebook(const float *x, const float *w, int n, const int8_t *values)
{
    const float top = peak(x, n);
    if (fabsf(top) < tiny) return 0;
    float best_d = 0, best_gain = 0, id[T], gain[T], bound[15], jump[15];
    codebook_bounds(values, bound, jump);
    for (int end = 0; end < 2; end++) {
        const float at = (float)values[end ? 15 : 0];
        for (int t = 0; t < T; t++) id[t] = at * (1.0f + 0.03f * (float)(t - 8)) / top;
        sums s = {0};
        for (int j = 0; j < n; j++) {
            const float wj = w[j], wx = w[j] * x[j];
            for (int t = 0; t < T; t++) {
                const float v = nearest_value(x[j] * id[t], bound, jump, (float)values[0]);
                s.xq[t] += wx * v;
                s.qq[t] += wj * v * v;
            }
        }
        solve_scales(&s, id, gain);
        keep_best(&s, gain, &best_d, &best_gain);
    }
    return best_d;
}

/* --- the choice among stored numbers, and the codes ---------------------------------------- */

static int least(const float *err)
{
    int best = 0;
    for (int t = 1; t < T; t++)
        if (err[t] < err[best]) best = t;
    return best;
}

int ob_quant_best_lane(const float *x, const float *w, int n, int lo, int hi,
                       const ob_quant_lanes *lanes, float *least_err)
{
    float id[T], m[T], d[T], err[T] = {0};
    for (int t = 0; t < T; t++) {
        d[t] = lanes->d[t];
        m[t] = lanes->m[t];
        id[t] = inverse(d[t]);
    }
    for (int j = 0; j < n; j++)
        for (int t = 0; t < T; t++) {
            const float q = round_near(clamp((x[j] - m[t]) * id[t], (float)lo, (float)hi));
            const float e = x[j] - (d[t] * q + m[t]);
            err[t] += w[j] * e * e;
        }
    const int best = least(err);
    if (least_err) *least_err = err[best];
    return best;
}

int ob_quant_best_lane_codebook(const float *x, const float *w, int n, const int8_t *values,
                                const ob_quant_lanes *lanes)
{
    float id[T], d[T], err[T] = {0}, bound[15], jump[15];
    codebook_bounds(values, bound, jump);
    for (int t = 0; t < T; t++) {
        d[t] = lanes->d[t];
        id[t] = inverse(d[t]);
    }
    for (int j = 0; j < n; j++)
        for (int t = 0; t < T; t++) {
            const float v = nearest_value(x[j] * id[t], bound, jump, (float)values[0]);
            const float e = x[j] - d[t] * v;
            err[t] += w[j] * e * e;
        }
    return least(err);
}

void ob_quant_round(const float *x, int n, int lo, int hi, float d, float m, uint8_t *q)
{
    const float id = inverse(d);
    for (int j = 0; j < n; j++)
        q[j] = (uint8_t)(int)(round_near(clamp((x[j] - m) * id, (float)lo, (float)hi)) - (float)lo);
}

void ob_quant_round_codebook(const float *x, int n, const int8_t *values, float d, uint8_t *q)
{
    const float id = inverse(d);
    for (int j = 0; j < n; j++) {
        int code = 0;
        for (int k = 0; k < 15; k++)
            code += x[j] * id > 0.5f * (float)(values[k] + values[k + 1]);
        q[j] = (uint8_t)code;
    }
}
