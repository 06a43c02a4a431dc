/* dev/products.h: matrix products that a device has done elsewhere.
 *
 * A machine may have a unit that multiplies matrices and does nothing else (an NPU). Whoever drives such a unit gives
 * the CPU device (OB_DEV_PRODUCTS) a table of these functions in ob_dev_options.products: the CPU then runs its programs
 * as ever and hands over the products of LINEAR and MOE_GLU whose weights were taken. So neither device includes the
 * other, and every op that is not a product, every architecture and every kind of cache come from the CPU device.
 *
 * Threads: weight functions belong to the device's thread (weight_write: as in dev/device.h). `mul` is called by one
 * thread of a step while the device's others wait for what it hands them through `par`.
 */
#ifndef OB_DEV_PRODUCTS_H
#define OB_DEV_PRODUCTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "ops/ops.h"

typedef struct ob_product_weight ob_product_weight; /* a weight as the other unit wants it */

/* y[r][n] = res[r][n] + scale * (bias[n] + sum_k x[rows[r]][k] * w[mat][n][k]) for n_rows rows r and all n. A row's
 * result depends on that row alone. */
typedef struct ob_product {
    const ob_product_weight *w;
    int64_t mat;         /* an expert, else 0 */
    const float *x;      /* [..][ldx] */
    int64_t ldx;
    const int32_t *rows; /* [n_rows] which rows of x; NULL: the first n_rows */
    int64_t n_rows;
    float *y;            /* [n_rows][ldy]; overlaps x nowhere */
    int64_t ldy;
    const float *bias;   /* [N] or NULL */
    const float *res;    /* [n_rows][ldres] or NULL; may be y */
    int64_t ldres;
    float scale;
} ob_product;

/* Work for all threads of the device that called. */
typedef struct ob_parallel ob_parallel;
struct ob_parallel {
    /* fn(arg, i0, i1) over ranges of at most `grain` that cover [0, n); returns when all are done. */
    void (*run)(const ob_parallel *par, int64_t n, int64_t grain, void (*fn)(void *arg, int64_t i0, int64_t i1), void *arg);
};

typedef struct ob_dev_products {
    void *self;
    /* As ob_dev_api.weight_new. *out NULL with OB_OK: declined, the device multiplies it itself. */
    ob_status (*weight_new)(void *self, const ob_weight *desc, ob_product_weight **out, bool *keeps_data, ob_err *err);
    void (*weight_free)(void *self, ob_product_weight *w);
    ob_status (*weight_write)(void *self, ob_product_weight *w, int64_t expert, const void *data, ob_err *err);
    /* Bytes of memory of such a weight; 0: it would be declined. */
    uint64_t (*weight_bytes)(void *self, const ob_weight *desc);
    /* Products that do not depend on each other. Never fails: a unit that does is replaced by the same arithmetic on the
     * host. Allocates nothing. */
    void (*mul)(void *self, const ob_product *jobs, int32_t n_jobs, const ob_parallel *par);
} ob_dev_products;

#endif
