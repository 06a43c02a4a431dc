/* quant/q_search.h: how scales are found: least squares over a few starts, several starts at once.
 *
 * All functions minimise sum w (x - y)^2 over one sub-block (n <= 256 elements) where y is what the
 * dequantiser will return. Starts lie in lanes of short arrays, so that each inner loop runs over
 * lanes and the compiler can vectorise it without reordering a sum.
 */
#ifndef OB_QUANT_Q_SEARCH_H
#define OB_QUANT_Q_SEARCH_H

#include "quant/quant_int.h"

enum { OB_QUANT_LANES = 16 };

/* Candidates for the numbers a block will store; unused lanes repeat lane 0. */
typedef struct ob_quant_lanes {
    float d[OB_QUANT_LANES]; /* y = d q + m */
    float m[OB_QUANT_LANES];
} ob_quant_lanes;

/* Weights of n elements, near 1 on average: all ones when `importance` is NULL or all zero. */
void ob_quant_weights(const float *importance, int n, float *w);

/* y = d q, lo <= q <= hi, lo < 0 < hi. Returns d of either sign; 0 for zeros. */
float ob_quant_fit_scale(const float *x, const float *w, int n, int lo, int hi);
/* y = d q + m, 0 <= q <= hi, d >= 0; m <= 0 where `min_below_zero`. Returns d. */
float ob_quant_fit_affine(const float *x, const float *w, int n, int hi, bool min_below_zero,
                          float *m);
/* y = d value(q), a codebook of 16 rising values. */
float ob_quant_fit_codebook(const float *x, const float *w, int n, const int8_t *values);

/* The lane whose (d, m) leaves the least error, lo <= q <= hi, and that error if it is asked for. */
int ob_quant_best_lane(const float *x, const float *w, int n, int lo, int hi,
                       const ob_quant_lanes *lanes, float *least_err);
int ob_quant_best_lane_codebook(const float *x, const float *w, int n, const int8_t *values,
                                const ob_quant_lanes *lanes);

/* q of n elements, minus lo, so that it is never negative. */
void ob_quant_round(const float *x, int n, int lo, int hi, float d, float m, uint8_t *q);
void ob_quant_round_codebook(const float *x, int n, const int8_t *values, float d, uint8_t *q);

/* Nearest f16 that is finite. */
static inline uint16_t ob_quant_f16(float f)
{
    return ob_f32_to_f16(f > 65504.0f ? 65504.0f : f < -65504.0f ? -65504.0f : f);
}

/* f16 of the scale of scales. Below 2^-14, where f16 is coarse, away from zero, so that the largest
 * scale fits its integer; rounding to nearest could even give 0. */
static inline uint16_t ob_quant_f16_up(float f)
{
    const uint16_t h = ob_quant_f16(f);
    const float back = ob_f16_to_f32(h), size = f < 0 ? -f : f;
    return (back < 0 ? -back : back) < size && (h & 0x7FFF) < 0x0400 ? (uint16_t)(h + 1) : h;
}

#endif
