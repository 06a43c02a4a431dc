/* engine/vision.h: a vision tower (--mmproj): from pixels to the vectors that stand for a picture in a prompt.
 *
 * Owns: the tower's file, its weights on a device of its own, the way each family cuts and scales pictures and what
 * it writes around them, and the pictures seen lately (an old picture of a long chat is not computed again, and its
 * ids are the same, so the cache of the model knows it). Must not know file formats (img/) or HTTP.
 *
 * Threads: any; one picture is computed at a time.
 */
#ifndef OB_ENGINE_VISION_H
#define OB_ENGINE_VISION_H

#include "engine/engine.h"
#include "img/img.h"

typedef struct ob_vision ob_vision;

/* Loads (blocking). Of *p only device, n_threads, exact and profile are read. `image_max_tok`: tokens a picture may
 * take where its size is free; 0: OB_MAX_IMAGE_TOK. */
OB_MUST_CHECK ob_status ob_vision_new(const ob_engine_params *p, const char *path, int32_t image_max_tok,
                                      ob_vision **out, ob_err *err);
void ob_vision_free(ob_vision *v);
/* Most tokens of one picture (a tile, where pictures are cut): ob_engine_params.n_picture_tok. */
int32_t ob_vision_max_tok(const ob_vision *v);
/* Does the tower belong to this model? OB_E_INVALID when families or widths differ. */
OB_MUST_CHECK ob_status ob_vision_check_model(const ob_vision *v, const ob_engine_info *model, ob_err *err);
const char *ob_vision_projector(const ob_vision *v); /* "idefics3", ...; static */

/* Append a picture to a prompt as the model's family has it: scaled, cut, between its marks.
 * OB_E_LIMIT when it would take more than OB_MAX_IMAGE_TOK tokens. */
OB_MUST_CHECK ob_status ob_vision_draft(ob_vision *v, const ob_image *img, const ob_tok *tok, ob_draft *d,
                                        ob_err *err);
/* The vectors of pixels as they are: sides must be what the tower takes (OB_E_INVALID). *out is referenced. */
OB_MUST_CHECK ob_status ob_vision_run(ob_vision *v, const ob_image *img, ob_picture **out, ob_err *err);

#endif
