/* engine/share.h: weights that several engines of one process have in common.
 *
 * Two files of one model (one for short prompts and a rotated one for long, say) agree in norms, embeddings, often
 * the output matrix. A weight that was packed on a device with OB_DEV_SHARES serves every engine whose tensor has the
 * same name, type, shape, use and bytes; its pages of the second file are then not needed either.
 *
 * Owner: whoever opens the engines; it must outlive them. *locked by its own mutex*. The engine that packed a weight
 * must be closed after those that found it here: some packed forms refer to its file.
 */
#ifndef OB_ENGINE_SHARE_H
#define OB_ENGINE_SHARE_H

#include "dev/device.h"

typedef struct ob_share ob_share;

OB_MUST_CHECK ob_status ob_share_new(ob_share **out, ob_err *err);
void ob_share_free(ob_share *s); /* NULL is allowed */

/* The weight that an earlier engine packed from equal bytes, with one reference more; NULL: there is none. `exact`: as
 * the device was opened. */
ob_dev_weight *ob_share_find(ob_share *s, const ob_dev *dev, bool exact, const ob_weight *desc);
/* Offer a weight to later engines. desc->data stays borrowed as long as `owner` (any pointer of the caller's) holds it. */
OB_MUST_CHECK ob_status ob_share_add(ob_share *s, const ob_dev *dev, bool exact, const ob_weight *desc, ob_dev_weight *w,
                                     const void *owner, ob_err *err);
/* Give a reference up; the last one frees the weight. Weights that were never offered are freed at once. */
void ob_share_drop(ob_share *s, ob_dev *dev, ob_dev_weight *w, const void *owner);

#endif
