/* dev/null/null.h: a device that computes nothing; opened only by the name "null".
 *
 * It checks bindings and steps as a real device must, counts calls, and gives outputs of zero: for
 * tests of what stands above devices.
 */
#ifndef OB_DEV_NULL_NULL_H
#define OB_DEV_NULL_NULL_H

#include "dev/device.h"

extern const ob_dev_api ob_dev_null;

typedef struct ob_null_counts {
    uint64_t n_weights, n_buffers, n_plans;     /* alive now */
    uint64_t n_submits, n_tok, n_out, n_copies; /* so far */
    int32_t last_n_tok, last_n_seq, last_n_out; /* of the last step */
} ob_null_counts;
/* d must be a null device. */
void ob_null_get_counts(const ob_dev *d, ob_null_counts *out);

#endif
