/* engine/picture.h: a picture as a model that generates reads it, and prompts that hold pictures.
 *
 * A picture is n_tok vectors as wide as the model, which stand in a prompt where tokens would. In arrays of token
 * ids its rows are ids below 0, told by the picture's number: equal pictures have equal ids, different ones never,
 * so that the cache's comparing of ids (kv/) is right for pictures too.
 */
#ifndef OB_ENGINE_PICTURE_H
#define OB_ENGINE_PICTURE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/limits.h"
#include "tok/tok.h"

/* Immutable, *shared* by count. */
typedef struct ob_picture {
    _Atomic int refs;
    int32_t n_tok;
    int32_t nx, ny; /* the rows' grid, in raster order: n_tok = nx * ny */
    int32_t number; /* 0 .. OB_PICTURE_NUMBERS - 1; the last is no number: its ids must not reach the cache */
    int32_t n_embd;
    float vec[];    /* [n_tok][n_embd] */
} ob_picture;

enum { OB_PICTURE_NUMBERS = (1 << 19) - 1 };

ob_picture *ob_picture_new(int32_t nx, int32_t ny, int32_t n_embd, int32_t number); /* NULL: no memory */
ob_picture *ob_picture_ref(ob_picture *p);
void ob_picture_unref(ob_picture *p); /* NULL is fine */

/* Id of a row of the picture. */
static inline int32_t ob_picture_tok(const ob_picture *p, int32_t row)
{
    return -1 - p->number * OB_MAX_IMAGE_TOK - row;
}
static inline bool ob_picture_cacheable(const ob_picture *p) { return p->number < OB_PICTURE_NUMBERS - 1; }

/* A picture in a prompt: its rows are the ids [at, at + n_tok). */
typedef struct ob_placed_picture {
    ob_picture *pic;
    int32_t at;
} ob_placed_picture;

/* A prompt being put together. Zero is an empty one. */
typedef struct ob_draft {
    int32_t *ids;
    size_t n, cap;
    ob_placed_picture *pics; /* in order; each holds a reference */
    size_t n_pics, cap_pics;
} ob_draft;

void ob_draft_deinit(ob_draft *p);
OB_MUST_CHECK ob_status ob_draft_add_ids(ob_draft *d, const int32_t *ids, size_t n, ob_err *err);
/* flags as for ob_tok_encode. */
OB_MUST_CHECK ob_status ob_draft_add_text(ob_draft *p, const ob_tok *tok, const char *text, size_t len,
                                           unsigned flags, ob_err *err);
OB_MUST_CHECK ob_status ob_draft_append(ob_draft *d, const ob_draft *what, ob_err *err);
/* Text in which `mark`, a number below n_shown and '>' stand for that one of `shown`. The mark is to be one that no
 * text has by chance or on purpose. */
OB_MUST_CHECK ob_status ob_draft_add_marked(ob_draft *d, const ob_tok *tok, const char *text, size_t len,
                                            unsigned flags, const char *mark, const ob_draft *shown, size_t n_shown,
                                            ob_err *err);
OB_MUST_CHECK ob_status ob_draft_add_picture(ob_draft *p, ob_picture *pic, ob_err *err); /* refs it */
/* Do the ids below 0 of ids[0..n) belong to the pictures, each of them whole? */
OB_MUST_CHECK ob_status ob_pictures_check(const int32_t *ids, size_t n, const ob_placed_picture *pics, size_t n_pics,
                                          int32_t n_embd, ob_err *err);

#endif
