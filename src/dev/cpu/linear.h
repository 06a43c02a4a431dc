/* dev/cpu/linear.h: matrix products with packed weights: the CPU device's hot path.
 *
 * Owns: packed weight layouts, activation quantisation, and the kernels that multiply them, filled
 * into a table from plain C upward by CPU flags. Pure over memory: no threads of its own (callers
 * split the work), no allocation outside pack.
 *
 * One output element is always computed by the same sequence of f32 operations, whatever the number
 * of columns M in the call and whoever computes it (matvec, small batch, tile): so a sequence gives the
 * same tokens alone and in any batch, and on any number of threads.
 */
#ifndef OB_DEV_CPU_LINEAR_H
#define OB_DEV_CPU_LINEAR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "ops/ops.h"

/* Levels, low to high; OB_CPU=<name> forces a lower one. */
typedef enum ob_cpu_level {
    OB_CPU_REF,    /* "ref": ops/ref.c for everything */
    OB_CPU_C,      /* "c": portable kernels */
    OB_CPU_NEON,   /* "neon": with dotprod / i8mm where there */
    OB_CPU_AVX2,   /* "avx2": with fma and f16c (and avx-vnni where there) */
    OB_CPU_AVX512, /* "avx512": f, bw, vl, dq, vnni, vbmi */
} ob_cpu_level;

/* Best level of this CPU, lowered by OB_CPU when set. OB_E_INVALID on an unknown name or a level this
 * CPU does not have; the text lists what it has. */
OB_MUST_CHECK ob_status ob_cpu_level_detect(ob_cpu_level *out, ob_err *err);
const char *ob_cpu_level_name(ob_cpu_level l);

typedef struct ob_lin ob_lin; /* one packed weight, immutable */

/* A weight with desc->hadamard takes its activations through the Hadamard transform before they are
 * quantised (or multiplied, for exact): the same additions on every level, so results stay equal bit by bit.
 *
 * Pack a [K, N] (OB_USE_LINEAR) or [K, N, E] (OB_USE_EXPERTS) weight. exact: f32 activations and
 * products. *keeps_data: the packed form still refers to desc->data. Without data (NULL) there is only room. */
OB_MUST_CHECK ob_status ob_lin_pack(const ob_weight *desc, ob_cpu_level level, bool exact,
                                    ob_lin **out, bool *keeps_data, ob_err *err);
void ob_lin_free(ob_lin *l);
/* Pack expert `at` alone; different ones may be packed at the same time. data: N rows of K. */
OB_MUST_CHECK ob_status ob_lin_pack_expert(ob_lin *l, ob_type type, int64_t at, const void *data, ob_err *err);
/* What ob_lin_bytes would be; 0 where ob_lin_pack would refuse. */
size_t ob_lin_bytes_of(const ob_weight *desc);
int64_t ob_lin_k(const ob_lin *l);
int64_t ob_lin_n(const ob_lin *l);
size_t ob_lin_bytes(const ob_lin *l); /* memory of the packed form */

/* Weights with equal ob_lin_act_kind can share one quantised activation. */
int ob_lin_act_kind(const ob_lin *l);
/* Bytes of the quantised (or, for exact, copied) activations of M rows of K; 64-aligned storage. */
size_t ob_lin_act_bytes(const ob_lin *l, int64_t m);
/* Quantise rows [m0, m1) of x [M][ldx]. Chunks may be done by different threads when m0 and m1 are
 * multiples of ob_lin_act_granule (or m1 == M). coarse [M] or NULL: rows that an act4 weight meets rounded to 4
 * bits (quant/act4.h) instead of 8, exact mode too. */
int64_t ob_lin_act_granule(const ob_lin *l);
void ob_lin_act(const ob_lin *l, const float *x, int64_t ldx, int64_t m, int64_t m0, int64_t m1,
                const uint8_t *coarse, void *act);

/* y[m][n] (+ bias[n]) for all M rows and outputs n in [n0, n1): y is [M][ldy], n0 a multiple of
 * ob_lin_n_granule. expert: 0 for plain weights. res (optional): y = res[m][n] + scale * (...), res may
 * be y. scratch: ob_lin_scratch_bytes per thread. */
int64_t ob_lin_n_granule(const ob_lin *l);
size_t ob_lin_scratch_bytes(const ob_lin *l, int64_t m);
typedef struct ob_lin_epilogue {
    const float *bias;          /* [N] or NULL */
    const float *res;           /* [M][ldres] or NULL */
    int64_t ldres;
    float scale;                /* applied to the product (with bias) before the residual */
} ob_lin_epilogue;
void ob_lin_mul(const ob_lin *l, int64_t expert, const void *act, int64_t m, float *y, int64_t ldy,
                int64_t n0, int64_t n1, const ob_lin_epilogue *ep, void *scratch);

#endif
