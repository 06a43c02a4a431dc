/* How each family scales and cuts a picture, and the text it puts around the parts: as llama.cpp's mtmd does, so
 * that a model sees the same picture there and here. */
#include "engine/vision_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"

void ob_shown_deinit(ob_shown *s)
{
    for (int32_t i = 0; i < s->n && s->images; i++) ob_image_deinit(&s->images[i]);
    ob_free(s->images);
    ob_free(s->before);
    *s = (ob_shown){0};
}

static ob_status shown_init(ob_shown *s, int32_t n, ob_err *err)
{
    *s = (ob_shown){.n = n};
    s->images = ob_calloc((size_t)n, sizeof *s->images);
    s->before = ob_calloc((size_t)n + 1, sizeof *s->before);
    if (s->images && s->before) return OB_OK;
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the parts of a picture");
}

/* Gemma 3: one square, the picture in the middle of black. */
static ob_status show_gemma3(const ob_vision_hparams *h, const ob_image *img, ob_shown *s, ob_err *err)
{
    OB_TRY(shown_init(s, 1, err));
    strcpy(s->before[0], "<start_of_image>");
    strcpy(s->before[1], "<end_of_image>");
    return ob_image_fit(img, h->image_size, h->image_size, OB_FILTER_BILINEAR, &s->images[0], err);
}

/* Qwen2-VL: sides rounded to whole squares of patches; scaled down to max_tok of them or up to MIN_TOK. */
static ob_status show_qwen2vl(const ob_vision_hparams *h, int32_t max_tok, const ob_image *img, ob_shown *s, ob_err *err)
{
    enum { MIN_TOK = 8, MAX_RATIO = 200 };
    const int32_t unit = h->patch_size * h->merge;
    const double w = img->w, hh = img->h, area = (double)unit * unit;
    if (w > MAX_RATIO * hh || hh > MAX_RATIO * w)
        return ob_err_set(err, OB_E_INVALID, "a picture of %d x %d pixels is too narrow: one side may be %d times the other",
                          img->w, img->h, MAX_RATIO);
    int32_t nx = OB_MAX(1, (int32_t)round(w / unit)), ny = OB_MAX(1, (int32_t)round(hh / unit));
    if (nx * ny > max_tok) {
        const double shrink = sqrt(w * hh / (max_tok * area));
        nx = OB_MAX(1, (int32_t)floor(w / shrink / unit));
        ny = OB_MAX(1, (int32_t)floor(hh / shrink / unit));
    } else if (nx * ny < MIN_TOK) {
        const double grow = sqrt(MIN_TOK * area / (w * hh));
        nx = (int32_t)ceil(w * grow / unit);
        ny = (int32_t)ceil(hh * grow / unit);
    }
    OB_TRY(shown_init(s, 1, err));
    strcpy(s->before[0], "<|vision_start|>");
    strcpy(s->before[1], "<|vision_end|>");
    return ob_image_fit(img, nx * unit, ny * unit, OB_FILTER_BICUBIC, &s->images[0], err);
}

/* A picture cut into a grid of tiles, each with its place written before it, then the whole picture small. A picture
 * that fills one tile is shown whole only. */
static ob_status cut_tiles(const ob_vision_hparams *h, const ob_image *scaled, int32_t nx, int32_t ny, ob_shown *s,
                           ob_err *err)
{
    const int32_t tile = h->image_size, n = nx * ny > 1 ? nx * ny : 0;
    OB_TRY(shown_init(s, n + 1, err));
    for (int32_t i = 0; i < n; i++) {
        const char *row_end = i && i % nx == 0 ? "\n" : "";
        snprintf(s->before[i], sizeof s->before[i], "%s<fake_token_around_image><row_%d_col_%d>", row_end, i / nx + 1,
                 i % nx + 1);
        OB_TRY(ob_image_crop(scaled, i % nx * tile, i / nx * tile, tile, tile, &s->images[i], err));
    }
    strcpy(s->before[n], n ? "\n\n<fake_token_around_image><global-img>" : "<fake_token_around_image><global-img>");
    strcpy(s->before[n + 1], "<fake_token_around_image>");
    return ob_image_resize(scaled, tile, tile, OB_FILTER_LANCZOS, &s->images[n], err);
}

/* SmolVLM: the longer side to longest_edge, then both sides to whole tiles. Files that do not name an edge get whole
 * tiles of about the picture's own size. */
static ob_status show_idefics3(const ob_vision_hparams *h, const ob_image *img, ob_shown *s, ob_err *err)
{
    const int32_t tile = h->image_size, edge = h->longest_edge;
    int32_t w = img->w, hh = img->h;
    ob_image scaled = {0}, tiled = {0};
    ob_status st = OB_OK;
    if (edge > 0) {
        const double ratio = (double)w / hh;
        const bool wide = w >= hh;
        w = wide ? edge : (int32_t)(edge * ratio);
        hh = wide ? (int32_t)(edge / ratio) : edge;
        if (wide) hh = OB_MAX(2, hh + hh % 2);
        else w = OB_MAX(2, w + w % 2);
        st = ob_image_resize(img, w, hh, OB_FILTER_LANCZOS, &scaled, err);
    }
    const int32_t nx = edge > 0 ? (w + tile - 1) / tile : OB_MAX(1, (int32_t)round((double)w / tile));
    const int32_t ny = edge > 0 ? (hh + tile - 1) / tile : OB_MAX(1, (int32_t)round((double)hh / tile));
    const int32_t per_tile = tile / h->patch_size / h->merge * (tile / h->patch_size / h->merge);
    if (st == OB_OK && ((int64_t)nx * ny + 1) * per_tile > OB_MAX_IMAGE_TOK)
        st = ob_err_set(err, OB_E_LIMIT, "the picture would take %lld tokens, at most %d are possible: make it smaller",
                        ((long long)nx * ny + 1) * per_tile, OB_MAX_IMAGE_TOK);
    if (st == OB_OK)
        st = ob_image_resize(scaled.rgb ? &scaled : img, nx * tile, ny * tile, OB_FILTER_LANCZOS, &tiled, err);
    ob_image_deinit(&scaled);
    if (st == OB_OK) st = cut_tiles(h, &tiled, nx, ny, s, err);
    ob_image_deinit(&tiled);
    return st;
}

ob_status ob_shown_make(const ob_vision_hparams *h, int32_t max_tok, const ob_image *img, ob_shown *out, ob_err *err)
{
    ob_status s;
    *out = (ob_shown){0};
    switch (h->projector) {
    case OB_PROJECTOR_GEMMA3: s = show_gemma3(h, img, out, err); break;
    case OB_PROJECTOR_QWEN2VL: s = show_qwen2vl(h, max_tok, img, out, err); break;
    default: s = show_idefics3(h, img, out, err); break;
    }
    if (s != OB_OK) ob_shown_deinit(out);
    return s;
}
