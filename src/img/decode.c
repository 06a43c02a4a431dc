/* From the bytes of a file to pixels. Each library is asked for the size first, and the limits are held against it
 * before there is a buffer. */
#include "img/img.h"

/* jpeglib.h needs these first */
#include <stdio.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>
#include <png.h>
#include <setjmp.h>
#include <webp/decode.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"

static ob_status damaged(ob_err *err, const char *format, const char *why)
{
    return ob_err_set(err, OB_E_FORMAT, "the picture cannot be read as %s: %.200s", format, why);
}

static void onto_white(const uint8_t *rgba, uint8_t *rgb, size_t n)
{
    for (size_t i = 0; i < n; i++, rgba += 4, rgb += 3)
        for (int c = 0; c < 3; c++) rgb[c] = (uint8_t)((rgba[c] * rgba[3] + 255 * (255 - rgba[3]) + 127) / 255);
}

/* --- PNG ---------------------------------------------------------------------------------------- */

/* The library's own composition works in linear light; browsers, and the programs that made training pictures, mix
 * the stored values. */
static ob_status finish_png(png_image *png, ob_image *out, ob_err *err)
{
    const size_t n = (size_t)out->w * (size_t)out->h;
    if (!(png->format & PNG_FORMAT_FLAG_ALPHA)) {
        png->format = PNG_FORMAT_RGB;
        return png_image_finish_read(png, NULL, out->rgb, 0, NULL) ? OB_OK : damaged(err, "PNG", png->message);
    }
    png->format = PNG_FORMAT_RGBA;
    uint8_t *rgba = ob_reallocarray(NULL, n, 4);
    if (!rgba) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a picture of %d x %d pixels", out->w, out->h);
    const bool ok = png_image_finish_read(png, NULL, rgba, 0, NULL);
    if (ok) onto_white(rgba, out->rgb, n);
    ob_free(rgba);
    return ok ? OB_OK : damaged(err, "PNG", png->message);
}

static ob_status read_png(const uint8_t *bytes, size_t len, ob_image *out, ob_err *err)
{
    png_image png = {.version = PNG_IMAGE_VERSION};
    if (!png_image_begin_read_from_memory(&png, bytes, len)) return damaged(err, "PNG", png.message);
    ob_status s = png.width > INT32_MAX || png.height > INT32_MAX
                      ? ob_err_set(err, OB_E_LIMIT, "a picture of %u x %u pixels is too large", png.width, png.height)
                      : ob_image_new((int32_t)png.width, (int32_t)png.height, out, err);
    png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB; /* else 16 bits would be taken for linear light */
    if (s == OB_OK) s = finish_png(&png, out, err);
    png_image_free(&png);
    return s;
}

/* --- JPEG --------------------------------------------------------------------------------------- */

/* libjpeg reports by longjmp. All that must survive it lives here, and the functions that may jump keep nothing. */
typedef struct jpeg {
    struct jpeg_decompress_struct d; /* first: its users see only this */
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    char why[JMSG_LENGTH_MAX];
    ob_image *out;
    uint8_t *line; /* CMYK: one row as it comes */
    ob_err *err;
    ob_status s;
} jpeg;

static void jpeg_fails(j_common_ptr c)
{
    jpeg *j = (jpeg *)c;
    c->err->format_message(c, j->why);
    longjmp(j->back, 1);
}

/* Warnings: data that are cut or do not decode spoil the picture; odd bytes between its parts do not. */
static void jpeg_warns(j_common_ptr c, int level)
{
    const int code = c->err->msg_code;
    if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE)) c->err->num_warnings++;
}

/* Called often while it decodes: a progressive file may bring scans without end. */
static void jpeg_works(j_common_ptr c)
{
    jpeg *j = (jpeg *)c;
    if (j->d.input_scan_number <= OB_MAX_JPEG_SCANS) return;
    strcpy(j->why, "it has too many scans");
    longjmp(j->back, 1);
}

/* Adobe's CMYK is stored inverted, so a product of two bytes is a colour. */
static void from_cmyk(const uint8_t *cmyk, bool inverted, uint8_t *rgb, int32_t n)
{
    for (int32_t x = 0; x < n; x++, cmyk += 4, rgb += 3)
        for (int c = 0; c < 3; c++) {
            const int ink = inverted ? cmyk[c] : 255 - cmyk[c], black = inverted ? cmyk[3] : 255 - cmyk[3];
            rgb[c] = (uint8_t)((ink * black + 127) / 255);
        }
}

static void decode_jpeg(jpeg *j, const uint8_t *bytes, size_t len)
{
    jpeg_create_decompress(&j->d);
    j->d.progress = &j->progress;
    j->progress.progress_monitor = jpeg_works;
    jpeg_mem_src(&j->d, bytes, (unsigned long)len);
    jpeg_read_header(&j->d, TRUE);
    const bool cmyk = j->d.num_components == 4;
    j->d.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    j->s = ob_image_new((int32_t)j->d.image_width, (int32_t)j->d.image_height, j->out, j->err);
    if (j->s != OB_OK) return;
    if (cmyk) j->line = ob_malloc(4 * (size_t)j->out->w);
    if (cmyk && !j->line) {
        j->s = ob_err_set(j->err, OB_E_NO_MEMORY, "no memory for a picture");
        return;
    }
    jpeg_start_decompress(&j->d);
    while (j->d.output_scanline < j->d.output_height) {
        uint8_t *rgb = j->out->rgb + 3 * (size_t)j->d.output_scanline * (size_t)j->out->w;
        JSAMPROW row = cmyk ? j->line : rgb;
        if (jpeg_read_scanlines(&j->d, &row, 1) == 1 && cmyk)
            from_cmyk(row, j->d.saw_Adobe_marker, rgb, j->out->w);
    }
    jpeg_finish_decompress(&j->d);
    if (j->errors.num_warnings) j->s = damaged(j->err, "JPEG", "its data are cut or damaged");
}

static ob_status read_jpeg(const uint8_t *bytes, size_t len, ob_image *out, ob_err *err)
{
    jpeg *j = ob_calloc(1, sizeof *j);
    if (!j) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a picture");
    j->d.err = jpeg_std_error(&j->errors);
    j->errors.error_exit = jpeg_fails;
    j->errors.emit_message = jpeg_warns;
    j->out = out;
    j->err = err;
    if (setjmp(j->back)) j->s = damaged(err, "JPEG", j->why);
    else decode_jpeg(j, bytes, len);
    const ob_status s = j->s;
    jpeg_destroy_decompress(&j->d);
    ob_free(j->line);
    ob_free(j);
    return s;
}

/* --- WebP --------------------------------------------------------------------------------------- */

static ob_status read_webp(const uint8_t *bytes, size_t len, ob_image *out, ob_err *err)
{
    WebPBitstreamFeatures f;
    if (WebPGetFeatures(bytes, len, &f) != VP8_STATUS_OK) return damaged(err, "WebP", "its header is damaged");
    if (f.has_animation) return ob_err_set(err, OB_E_UNSUPPORTED, "the WebP picture moves: only still ones can be read");
    OB_TRY(ob_image_new(f.width, f.height, out, err));
    const size_t n = (size_t)f.width * (size_t)f.height;
    if (!f.has_alpha)
        return WebPDecodeRGBInto(bytes, len, out->rgb, 3 * n, 3 * f.width) ? OB_OK
                                                                           : damaged(err, "WebP", "its data are damaged");
    uint8_t *rgba = ob_reallocarray(NULL, n, 4);
    if (!rgba) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a picture of %d x %d pixels", f.width, f.height);
    const bool ok = WebPDecodeRGBAInto(bytes, len, rgba, 4 * n, 4 * f.width) != NULL;
    if (ok) onto_white(rgba, out->rgb, n);
    ob_free(rgba);
    return ok ? OB_OK : damaged(err, "WebP", "its data are damaged");
}

/* --- which -------------------------------------------------------------------------------------- */

static bool begins(const uint8_t *bytes, size_t len, size_t at, const char *with, size_t n)
{
    return len >= at + n && !memcmp(bytes + at, with, n);
}

ob_status ob_image_decode(const void *data, size_t len, ob_image *out, ob_err *err)
{
    const uint8_t *bytes = data;
    ob_status s;
    *out = (ob_image){0};
    if (len > OB_MAX_IMAGE_BYTES)
        return ob_err_set(err, OB_E_LIMIT, "the file of the picture has %zu bytes, at most %u are possible", len,
                          OB_MAX_IMAGE_BYTES);
    if (begins(bytes, len, 0, "\x89PNG\r\n\x1a\n", 8)) s = read_png(bytes, len, out, err);
    else if (begins(bytes, len, 0, "\xff\xd8\xff", 3)) s = read_jpeg(bytes, len, out, err);
    else if (begins(bytes, len, 0, "RIFF", 4) && begins(bytes, len, 8, "WEBP", 4)) s = read_webp(bytes, len, out, err);
    else if (len == 0) s = ob_err_set(err, OB_E_FORMAT, "the picture is empty");
    else s = ob_err_set(err, OB_E_UNSUPPORTED, "the picture is neither PNG nor JPEG nor WebP");
    if (s != OB_OK) ob_image_deinit(out);
    return s;
}
