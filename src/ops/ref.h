/* ops/ref.h: the reference C of every op: slow, plain, exact. The oracle of every device.
 *
 * f32 activations, weights dequantised row by row, sums in f64 where order would matter. A device
 * kernel is right when it agrees with these within the tolerance that stands beside the op in
 * tests/devcts. Also the lowest level of the CPU device (OB_CPU=ref).
 */
#ifndef OB_OPS_REF_H
#define OB_OPS_REF_H

#include "ops/ops.h"

/* A paged cache plane pair in host memory; see ob_cache_spec for the order of elements. */
typedef struct ob_cache_view {
    void *k, *v;
    ob_type k_type, v_type;
    int32_t page_tok;
} ob_cache_view;

typedef struct ob_ref_env {
    const ob_program *prog;
    const ob_step *step;
    float *const *vals;            /* [n_vals] base of each value's matrix */
    const ob_cache_view *caches;   /* [n_caches] */
    float *const *states;          /* [n_states] base of [n_slots][n_floats] */
    float *scratch;                /* at least ob_ref_scratch_floats() floats, one per thread */
} ob_ref_env;

size_t ob_ref_scratch_floats(const ob_program *prog, int32_t max_ctx);

/* Work items of an op that may run in parallel: rows for row-wise ops, (row, head) pairs for
 * attention, output columns for linear, (sequence, column or head) for what keeps state. Items of one
 * op never depend on each other. */
int64_t ob_ref_n_items(const ob_ref_env *env, int32_t op);
/* Run items [first, last). For attention the cache write is a phase of its own: run phase 0 over all
 * items of ob_ref_n_items, then, after all threads met, phase 1. Other ops have one phase. */
int ob_ref_n_phases(ob_op_kind kind);
void ob_ref_run(const ob_ref_env *env, int32_t op, int phase, int64_t first, int64_t last);

/* Building blocks, also for tests. */
void ob_ref_rope_row(const ob_rope_params *p, const float *factors, int32_t pos, int32_t n_head,
                     const float *x, float *y);
/* The same at a position on each axis. */
void ob_ref_rope_axes(const ob_rope_params *p, const float *factors, const int32_t pos[3], int32_t n_head,
                      const float *x, float *y);
float ob_ref_act(ob_act a, float x);
/* One token's choice. bias and chosen (ids given, [n_used]) may be NULL; scratch: 2 * n_class floats. */
void ob_ref_route_row(const ob_route_params *r, int32_t n_class, const float *logits, const float *bias,
                      const int32_t *chosen, float *ids, float *weights, float *scratch);
/* One row of HC_MIX: pre [n_stream] from the coefficients m, scale and base; post_comb (may be NULL) gets out[1]. */
void ob_ref_hc_coefficients(const ob_hc_params *h, const float *m, const float *scale, const float *base, float *pre,
                            float *post_comb);

#endif
