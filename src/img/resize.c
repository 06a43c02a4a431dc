/* Resampling by a separable filter: along rows first, then along columns.
 *
 * Each pixel of the result is a weighted sum of the source's pixels around its centre. Weights are computed in f64
 * and rounded to 22 fractional bits, so that sums of bytes stay within 32 bits; between the passes values are
 * rounded to bytes. That is how Pillow does it, and so how the pictures were made that models were trained on.
 */
#include "img/img.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"

enum { FRACTION = 22 };

ob_status ob_image_new(int32_t w, int32_t h, ob_image *out, ob_err *err)
{
    *out = (ob_image){0};
    if (w < 1 || h < 1 || w > OB_MAX_IMAGE_SIDE || h > OB_MAX_IMAGE_SIDE || (int64_t)w * h > OB_MAX_IMAGE_PIXELS)
        return ob_err_set(err, OB_E_LIMIT, "a picture of %d x %d pixels: at most %d on a side and %d million in all are "
                          "possible", w, h, OB_MAX_IMAGE_SIDE, OB_MAX_IMAGE_PIXELS / 1000000);
    out->rgb = ob_malloc(3 * (size_t)w * (size_t)h);
    if (!out->rgb) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a picture of %d x %d pixels", w, h);
    out->w = w;
    out->h = h;
    return OB_OK;
}

void ob_image_deinit(ob_image *i)
{
    ob_free(i->rgb);
    *i = (ob_image){0};
}

/* --- the filters ------------------------------------------------------------------------------- */

static double sinc(double x)
{
    const double a = 3.14159265358979323846 * x;
    return x == 0 ? 1.0 : sin(a) / a;
}

static double weight(ob_filter f, double x)
{
    const double a = fabs(x);
    switch (f) {
    case OB_FILTER_BILINEAR: return a < 1 ? 1 - a : 0;
    case OB_FILTER_BICUBIC: /* Catmull-Rom: a = -1/2 */
        if (a < 1) return (1.5 * a - 2.5) * a * a + 1;
        return a < 2 ? -0.5 * (((a - 5) * a + 8) * a - 4) : 0;
    default: return a < 3 ? sinc(x) * sinc(x / 3) : 0;
    }
}

static double radius(ob_filter f) { return f == OB_FILTER_BILINEAR ? 1 : f == OB_FILTER_BICUBIC ? 2 : 3; }

/* Which pixels of a line of the source make up pixel i of a line of the result, and their weights. */
typedef struct taps {
    int32_t most;            /* weights per pixel of the result */
    int32_t *first, *n;      /* [n_out] */
    int32_t *weights;        /* [n_out][most] */
} taps;

static void taps_deinit(taps *t)
{
    ob_free(t->first);
    ob_free(t->n);
    ob_free(t->weights);
}

static ob_status taps_init(taps *t, ob_filter f, int32_t n_in, int32_t n_out, ob_err *err)
{
    const double step = (double)n_in / n_out, stretch = step > 1 ? step : 1, reach = radius(f) * stretch;
    *t = (taps){.most = 2 * (int32_t)ceil(reach) + 1};
    t->first = ob_calloc((size_t)n_out, sizeof *t->first);
    t->n = ob_calloc((size_t)n_out, sizeof *t->n);
    t->weights = ob_calloc((size_t)n_out, (size_t)t->most * sizeof *t->weights);
    double *w = ob_calloc((size_t)t->most, sizeof *w);
    if (!t->first || !t->n || !t->weights || !w) {
        ob_free(w);
        taps_deinit(t);
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory to resize a picture");
    }
    for (int32_t i = 0; i < n_out; i++) {
        const double centre = (i + 0.5) * step;
        const int32_t first = OB_MAX(0, (int32_t)(centre - reach + 0.5));
        const int32_t n = OB_MIN(n_in, (int32_t)(centre + reach + 0.5)) - first;
        double sum = 0;
        for (int32_t k = 0; k < n; k++) sum += w[k] = weight(f, (first + k - centre + 0.5) / stretch);
        for (int32_t k = 0; k < n; k++) {
            const double x = ldexp(sum != 0 ? w[k] / sum : w[k], FRACTION);
            t->weights[(size_t)i * (size_t)t->most + (size_t)k] = (int32_t)(x < 0 ? x - 0.5 : x + 0.5);
        }
        t->first[i] = first;
        t->n[i] = n;
    }
    ob_free(w);
    return OB_OK;
}

/* --- the passes -------------------------------------------------------------------------------- */

static uint8_t to_byte(int32_t sum)
{
    const int32_t v = sum >> FRACTION;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

static void along_rows(const ob_image *src, const taps *t, ob_image *dst)
{
    for (int32_t y = 0; y < dst->h; y++) {
        const uint8_t *line = src->rgb + 3 * (size_t)y * (size_t)src->w;
        uint8_t *out = dst->rgb + 3 * (size_t)y * (size_t)dst->w;
        for (int32_t x = 0; x < dst->w; x++, out += 3) {
            const int32_t *w = t->weights + (size_t)x * (size_t)t->most;
            const uint8_t *p = line + 3 * (size_t)t->first[x];
            int32_t sum[3] = {1 << (FRACTION - 1), 1 << (FRACTION - 1), 1 << (FRACTION - 1)};
            for (int32_t k = 0; k < t->n[x]; k++, p += 3)
                for (int c = 0; c < 3; c++) sum[c] += p[c] * w[k];
            for (int c = 0; c < 3; c++) out[c] = to_byte(sum[c]);
        }
    }
}

static ob_status along_columns(const ob_image *src, const taps *t, ob_image *dst, ob_err *err)
{
    const size_t n = 3 * (size_t)src->w;
    int32_t *sum = ob_calloc(n, sizeof *sum);
    if (!sum) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to resize a picture");
    for (int32_t y = 0; y < dst->h; y++) {
        const int32_t *w = t->weights + (size_t)y * (size_t)t->most;
        for (size_t i = 0; i < n; i++) sum[i] = 1 << (FRACTION - 1);
        for (int32_t k = 0; k < t->n[y]; k++) {
            const uint8_t *line = src->rgb + n * (size_t)(t->first[y] + k);
            for (size_t i = 0; i < n; i++) sum[i] += line[i] * w[k];
        }
        for (size_t i = 0; i < n; i++) dst->rgb[n * (size_t)y + i] = to_byte(sum[i]);
    }
    ob_free(sum);
    return OB_OK;
}

static ob_status resize_rows(const ob_image *src, int32_t w, ob_filter f, ob_image *out, ob_err *err)
{
    taps t;
    OB_TRY(ob_image_new(w, src->h, out, err));
    OB_TRY(taps_init(&t, f, src->w, w, err));
    along_rows(src, &t, out);
    taps_deinit(&t);
    return OB_OK;
}

static ob_status resize_columns(const ob_image *src, int32_t h, ob_filter f, ob_image *out, ob_err *err)
{
    taps t;
    OB_TRY(ob_image_new(src->w, h, out, err));
    OB_TRY(taps_init(&t, f, src->h, h, err));
    const ob_status s = along_columns(src, &t, out, err);
    taps_deinit(&t);
    return s;
}

ob_status ob_image_resize(const ob_image *src, int32_t w, int32_t h, ob_filter f, ob_image *out, ob_err *err)
{
    ob_image mid = {0};
    ob_status s = OB_OK;
    *out = (ob_image){0};
    if (w == src->w && h == src->h) return ob_image_crop(src, 0, 0, w, h, out, err);
    if (w != src->w) OB_GOTO(resize_rows(src, w, f, &mid, err));
    if (h == src->h) {
        *out = mid;
        return OB_OK;
    }
    s = resize_columns(mid.rgb ? &mid : src, h, f, out, err);
out:
    ob_image_deinit(&mid);
    if (s != OB_OK) ob_image_deinit(out);
    return s;
}

ob_status ob_image_crop(const ob_image *src, int32_t x, int32_t y, int32_t w, int32_t h, ob_image *out, ob_err *err)
{
    OB_TRY(ob_image_new(w, h, out, err));
    for (int32_t r = 0; r < h; r++)
        memcpy(out->rgb + 3 * (size_t)r * (size_t)w,
               src->rgb + 3 * ((size_t)(y + r) * (size_t)src->w + (size_t)x), 3 * (size_t)w);
    return OB_OK;
}

ob_status ob_image_fit(const ob_image *src, int32_t w, int32_t h, ob_filter f, ob_image *out, ob_err *err)
{
    *out = (ob_image){0};
    if (src->w == w && src->h == h) return ob_image_crop(src, 0, 0, w, h, out, err);
    const float sx = (float)w / (float)src->w, sy = (float)h / (float)src->h, scale = OB_MIN(sx, sy);
    const int32_t nw = OB_MAX(1, OB_MIN((int32_t)ceilf((float)src->w * scale), w));
    const int32_t nh = OB_MAX(1, OB_MIN((int32_t)ceilf((float)src->h * scale), h));
    ob_image part;
    OB_TRY(ob_image_resize(src, nw, nh, f, &part, err));
    const ob_status s = ob_image_new(w, h, out, err);
    if (s == OB_OK) {
        memset(out->rgb, 0, 3 * (size_t)w * (size_t)h);
        for (int32_t r = 0; r < nh; r++)
            memcpy(out->rgb + 3 * ((size_t)((h - nh) / 2 + r) * (size_t)w + (size_t)((w - nw) / 2)),
                   part.rgb + 3 * (size_t)r * (size_t)nw, 3 * (size_t)nw);
    }
    ob_image_deinit(&part);
    return s;
}
