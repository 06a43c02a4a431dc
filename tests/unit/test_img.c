/* Pictures: decoding against known pixels, what is refused, and resampling against Pillow's bytes. */
#include "base/alloc.h"
#include "base/limits.h"
#include "img/img.h"
#include "npz.h"
#include "test.h"

static uint8_t *slurp(const char *name, size_t *len)
{
    char path[512];
    snprintf(path, sizeof path, "%s/images/%s", OB_TEST_DATA, name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s cannot be opened", path);
    uint8_t *p = malloc(1 << 20);
    *len = fread(p, 1, 1 << 20, f);
    fclose(f);
    return p;
}

static ob_image decode(const char *name)
{
    size_t len;
    ob_image img;
    ob_err err;
    uint8_t *bytes = slurp(name, &len);
    if (ob_image_decode(bytes, len, &img, &err) != OB_OK) fail_msg("%s: %s", name, err.text);
    free(bytes);
    return img;
}

static npz *expected(void)
{
    npz *z = npz_open(OB_TEST_DATA "/images/expected.npz");
    assert_non_null(z);
    return z;
}

static int worst(const ob_image *img, const npz_array *a)
{
    int d = 0;
    assert_int_equal(img->h, a->shape[0]);
    assert_int_equal(img->w, a->shape[1]);
    for (int64_t i = 0; i < a->n_items; i++) {
        const int x = abs(img->rgb[i] - ((const uint8_t *)a->data)[i]);
        if (x > d) d = x;
    }
    return d;
}

/* Files that Pillow wrote, against the pixels that Pillow reads. JPEG's inverse transform may round otherwise. */
static void test_decode(void **state)
{
    (void)state;
    static const struct { const char *file; int d; } files[] = {
        {"rgb.png", 0}, {"grey.png", 0}, {"palette.png", 0}, {"alpha.png", 1}, {"sixteen.png", 1}, {"interlaced.png", 0},
        {"rgb.jpg", 2}, {"grey.jpg", 2}, {"progressive.jpg", 2}, {"cmyk.jpg", 3},
        {"lossy.webp", 2}, {"lossless.webp", 0}, {"alpha.webp", 1}};
    npz *z = expected();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        ob_image img = decode(files[i].file);
        const int d = worst(&img, npz_need(z, files[i].file, NPZ_U8));
        if (d > files[i].d) fail_msg("%s: a pixel is off by %d", files[i].file, d);
        ob_image_deinit(&img);
    }
    npz_close(z);
}

/* Every file cut at every length, and with every byte wrong: an error with a text, or a picture; never more. */
static void test_damaged(void **state)
{
    (void)state;
    static const char *const files[] = {"rgb.png", "rgb.jpg", "progressive.jpg", "lossy.webp", "lossless.webp", "alpha.webp"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t len;
        ob_err err;
        ob_image img;
        uint8_t *bytes = slurp(files[i], &len);
        for (size_t n = 0; n < len; n += 1 + n / 40) {
            uint8_t *cut = malloc(n + 1); /* its own, so that a sanitizer sees a read past the end */
            memcpy(cut, bytes, n);
            err.text[0] = 0;
            const ob_status s = ob_image_decode(cut, n, &img, &err);
            if (n < len / 2) assert_int_not_equal(s, OB_OK);
            if (s != OB_OK) assert_true(*err.text && !img.rgb);
            ob_image_deinit(&img);
            free(cut);
        }
        for (size_t at = 0; at < len; at += 1 + at / 30) {
            bytes[at] ^= 0xff;
            if (ob_image_decode(bytes, len, &img, &err) != OB_OK) assert_null(img.rgb);
            ob_image_deinit(&img);
            bytes[at] ^= 0xff;
        }
        free(bytes);
    }
}

static void refused(const char *name, const void *bytes, size_t len, ob_status want, const char *says)
{
    ob_image img;
    ob_err err;
    assert_int_equal(ob_image_decode(bytes, len, &img, &err), want);
    if (!strstr(err.text, says)) fail_msg("%s: \"%s\" does not say \"%s\"", name, err.text, says);
}

static void test_refused(void **state)
{
    (void)state;
    size_t len;
    refused("nothing", "", 0, OB_E_FORMAT, "empty");
    refused("gif", "GIF89a\1\0\1\0", 10, OB_E_UNSUPPORTED, "PNG");
    refused("text", "<html></html>", 13, OB_E_UNSUPPORTED, "PNG");
    uint8_t *bytes = slurp("moving.webp", &len);
    refused("moving", bytes, len, OB_E_UNSUPPORTED, "moves");
    free(bytes);
    /* A small file that would be 30000 x 30000 pixels, in each format. */
    static const char *const bombs[] = {"bomb.png", "bomb.jpg"};
    for (int i = 0; i < 2; i++) {
        bytes = slurp(bombs[i], &len);
        refused(bombs[i], bytes, len, OB_E_LIMIT, "30000");
        free(bytes);
    }
    ob_image img;
    ob_err err;
    assert_int_equal(ob_image_new(0, 5, &img, &err), OB_E_LIMIT);
    assert_int_equal(ob_image_new(OB_MAX_IMAGE_SIDE + 1, 1, &img, &err), OB_E_LIMIT);
    assert_int_equal(ob_image_new(16000, 16000, &img, &err), OB_E_LIMIT);
}

static void test_resize(void **state)
{
    (void)state;
    static const struct { const char *name; int32_t w, h; ob_filter f; } cases[] = {
        {"bilinear-17x9", 17, 9, OB_FILTER_BILINEAR}, {"bicubic-17x9", 17, 9, OB_FILTER_BICUBIC},
        {"lanczos-17x9", 17, 9, OB_FILTER_LANCZOS},   {"bilinear-100x80", 100, 80, OB_FILTER_BILINEAR},
        {"bicubic-100x80", 100, 80, OB_FILTER_BICUBIC}, {"lanczos-100x80", 100, 80, OB_FILTER_LANCZOS},
        {"lanczos-40x90", 40, 90, OB_FILTER_LANCZOS}, {"bicubic-1x1", 1, 1, OB_FILTER_BICUBIC}};
    npz *z = expected();
    ob_image src = decode("rgb.png"), out;
    ob_err err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(ob_image_resize(&src, cases[i].w, cases[i].h, cases[i].f, &out, &err), OB_OK);
        const int d = worst(&out, npz_need(z, cases[i].name, NPZ_U8));
        if (d) fail_msg("%s: a pixel is off by %d", cases[i].name, d);
        ob_image_deinit(&out);
    }
    /* Fitted: 40 x 30 into 60 x 60 is 60 x 45 with black above and below. */
    assert_int_equal(ob_image_fit(&src, 60, 60, OB_FILTER_BILINEAR, &out, &err), OB_OK);
    ob_image part, inside;
    assert_int_equal(ob_image_resize(&src, 60, 45, OB_FILTER_BILINEAR, &part, &err), OB_OK);
    assert_int_equal(ob_image_crop(&out, 0, 7, 60, 45, &inside, &err), OB_OK);
    assert_memory_equal(inside.rgb, part.rgb, 60 * 45 * 3);
    for (int i = 0; i < 60 * 3 * 7; i++) assert_int_equal(out.rgb[i], 0);
    for (int i = 60 * 3 * 52; i < 60 * 60 * 3; i++) assert_int_equal(out.rgb[i], 0);
    ob_image_deinit(&out);
    ob_image_deinit(&part);
    ob_image_deinit(&inside);
    ob_image_deinit(&src);
    npz_close(z);
}

/* Whatever allocation fails, nothing leaks and the status says so. */
static void test_no_memory(void **state)
{
    (void)state;
    size_t len;
    ob_err err;
    ob_image img, out;
    static const char *const files[] = {"rgb.png", "cmyk.jpg", "alpha.webp"};
    for (int i = 0; i < 3; i++) {
        uint8_t *bytes = slurp(files[i], &len);
        for (int64_t n = 0;; n++) {
            ob_alloc_fail_after(n);
            const ob_status s = ob_image_decode(bytes, len, &img, &err);
            ob_alloc_fail_after(-1);
            ob_image_deinit(&img);
            if (s == OB_OK) break;
            assert_int_equal(s, OB_E_NO_MEMORY);
        }
        free(bytes);
    }
    img = decode("rgb.png");
    for (int64_t n = 0;; n++) {
        ob_alloc_fail_after(n);
        const ob_status s = ob_image_fit(&img, 31, 51, OB_FILTER_LANCZOS, &out, &err);
        ob_alloc_fail_after(-1);
        ob_image_deinit(&out);
        if (s == OB_OK) break;
        assert_int_equal(s, OB_E_NO_MEMORY);
    }
    ob_image_deinit(&img);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_decode), cmocka_unit_test(test_damaged),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_resize),
                                       cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests_name("img", tests, NULL, NULL);
}
