/* dev/npu/npu_fwd_q4.h: a model's matrix products with 4-bit weights, a row at a time, as dev/products.h wants them.
 *
 * Owns: weights in q4g32 tiles (npu_layout.h) where the NPU reads them, chains of GEMVs, checking samples of them on the
 * host, and the same arithmetic there, to the bit, where there is no device or it failed. Made for decoding: a token
 * reads 5 bits a weight instead of 8, and no row is padded to 128; a prompt costs as many passes over the weights as it
 * has tokens (npu_fwd.h, or another device through the hand-over, is for prompts). A row's result depends on that row
 * alone, so text does not depend on company.
 *
 * Declined, and left to the device that asks: rotated weights, rows that are no whole groups of 32, and what finds no
 * room in half of the machine's memory.
 *
 * Threads: as dev/products.h says; one of these belongs to one device.
 */
#ifndef OB_DEV_NPU_NPU_FWD_Q4_H
#define OB_DEV_NPU_NPU_FWD_Q4_H

#include "dev/device.h"
#include "dev/npu/npu_gemv.h"
#include "dev/products.h"

typedef struct ob_npu_fwd_q4 ob_npu_fwd_q4;

typedef struct ob_npu_fwd_q4_options {
    ob_npu_dev *dev;    /* borrowed; NULL: everything is done on the host */
    int verify;         /* OB_VERIFY_ */
    uint64_t ram_bytes; /* of the machine; 0: unknown, no limit */
} ob_npu_fwd_q4_options;

OB_MUST_CHECK ob_status ob_npu_fwd_q4_new(const ob_npu_fwd_q4_options *opt, ob_npu_fwd_q4 **out, ob_err *err);
void ob_npu_fwd_q4_free(ob_npu_fwd_q4 *f); /* weights must have been freed; NULL is fine */
const ob_dev_products *ob_npu_fwd_q4_products(const ob_npu_fwd_q4 *f);
/* After weights, before products. May be called again. */
OB_MUST_CHECK ob_status ob_npu_fwd_q4_prepare(ob_npu_fwd_q4 *f, ob_err *err);

/* Where the tiles of a matrix of a weight lie that was taken, packed now where they were not yet; false: it was not taken,
 * there is no device, or its experts come and go. */
bool ob_npu_fwd_q4_find(ob_npu_fwd_q4 *f, const ob_weight *w, int64_t mat, const ob_npu_bo **bo, uint64_t *off);

typedef struct ob_npu_fwd_q4_stats {
    uint64_t n_products, n_on_host, n_verified; /* rows times matrices */
    uint64_t n_chains;                          /* given to the device */
    uint64_t weight_bytes;
    int32_t n_weights, n_declined;              /* declined for want of room */
    bool failed;                                /* since then the host computes */
    char reason[200];
} ob_npu_fwd_q4_stats;
void ob_npu_fwd_q4_get_stats(const ob_npu_fwd_q4 *f, ob_npu_fwd_q4_stats *out);

#endif
