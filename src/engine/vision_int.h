/* engine/vision_int.h: inside engine/: what a family makes of a picture before its tower runs. */
#ifndef OB_ENGINE_VISION_INT_H
#define OB_ENGINE_VISION_INT_H

#include "engine/vision.h"
#include "graph/model.h"

/* The parts of a picture in a prompt, in order. */
typedef struct ob_shown {
    ob_image *images; /* [n] of sizes that the tower takes */
    char (*before)[64]; /* [n + 1] text in front of each, and behind the last; control tokens by their spelling */
    int32_t n;
} ob_shown;

/* max_tok: as for ob_vision_new, at least merge^2. */
OB_MUST_CHECK ob_status ob_shown_make(const ob_vision_hparams *h, int32_t max_tok, const ob_image *img, ob_shown *out,
                                      ob_err *err);
void ob_shown_deinit(ob_shown *s);

#endif
