/* img/img.h: pictures: from the bytes of a file to RGB pixels, and to other sizes.
 *
 * Owns: decoding PNG, JPEG and WebP by their libraries, and resampling. Must not know models, tokens or HTTP.
 *
 * The bytes are a stranger's: sides, pixels and decoding work are bounded (base/limits.h) before anything is
 * allocated, and whatever is wrong with them is an error with a text that says what.
 */
#ifndef OB_IMG_IMG_H
#define OB_IMG_IMG_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Zero is an empty picture; ob_image_deinit may be called on it. */
typedef struct ob_image {
    int32_t w, h;
    uint8_t *rgb; /* [h][w][3], owned */
} ob_image;

/* Pixels are not set. OB_E_LIMIT over the limits, OB_E_NO_MEMORY. *out is *taken* from here on and below. */
OB_MUST_CHECK ob_status ob_image_new(int32_t w, int32_t h, ob_image *out, ob_err *err);
void ob_image_deinit(ob_image *i);

/* PNG, JPEG or WebP, told by the first bytes. What is transparent lies on white; a moving picture is refused.
 * OB_E_FORMAT (damaged), OB_E_UNSUPPORTED (another format), OB_E_LIMIT, OB_E_NO_MEMORY. */
OB_MUST_CHECK ob_status ob_image_decode(const void *bytes, size_t len, ob_image *out, ob_err *err);

typedef enum ob_filter { OB_FILTER_BILINEAR, OB_FILTER_BICUBIC, OB_FILTER_LANCZOS } ob_filter;

/* Another size, whatever becomes of the proportions. The filter is as wide as a pixel of the smaller picture, the
 * arithmetic fixed-point: the same bits on every machine, and those of Pillow. */
OB_MUST_CHECK ob_status ob_image_resize(const ob_image *src, int32_t w, int32_t h, ob_filter f, ob_image *out,
                                        ob_err *err);
/* The whole picture as large as fits, its proportions kept, in the middle of black. */
OB_MUST_CHECK ob_status ob_image_fit(const ob_image *src, int32_t w, int32_t h, ob_filter f, ob_image *out,
                                     ob_err *err);
/* The w x h pixels from (x, y), which lie within src. */
OB_MUST_CHECK ob_status ob_image_crop(const ob_image *src, int32_t x, int32_t y, int32_t w, int32_t h, ob_image *out,
                                      ob_err *err);

#endif
