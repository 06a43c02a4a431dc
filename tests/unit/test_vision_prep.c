/* How each family scales and cuts pictures: numbers worked out by hand from its rule, and the text around the parts. */
#include "engine/vision_int.h"
#include "test.h"

static const ob_vision_hparams k_smolvlm = {.projector = OB_PROJECTOR_IDEFICS3, .image_size = 512, .patch_size = 16,
                                            .merge = 4, .longest_edge = 2048};
static const ob_vision_hparams k_gemma3 = {.projector = OB_PROJECTOR_GEMMA3, .image_size = 896, .patch_size = 14, .merge = 4};
static const ob_vision_hparams k_qwen2vl = {.projector = OB_PROJECTOR_QWEN2VL, .image_size = 560, .patch_size = 14, .merge = 2};

static ob_shown show(const ob_vision_hparams *h, int32_t max_tok, int32_t w, int32_t hh)
{
    ob_image img;
    ob_shown s;
    ob_err err;
    assert_int_equal(ob_image_new(w, hh, &img, &err), OB_OK);
    memset(img.rgb, 200, 3 * (size_t)w * (size_t)hh);
    if (ob_shown_make(h, max_tok, &img, &s, &err) != OB_OK) fail_msg("%s", err.text);
    ob_image_deinit(&img);
    return s;
}

static void test_smolvlm(void **state)
{
    (void)state;
    /* 800 x 600: the longer side to 2048, 2048 x 1536, which is 4 x 3 tiles; then the whole. */
    ob_shown s = show(&k_smolvlm, 64, 800, 600);
    assert_int_equal(s.n, 13);
    for (int32_t i = 0; i < s.n; i++) assert_true(s.images[i].w == 512 && s.images[i].h == 512);
    assert_string_equal(s.before[0], "<fake_token_around_image><row_1_col_1>");
    assert_string_equal(s.before[3], "<fake_token_around_image><row_1_col_4>");
    assert_string_equal(s.before[4], "\n<fake_token_around_image><row_2_col_1>");
    assert_string_equal(s.before[11], "<fake_token_around_image><row_3_col_4>");
    assert_string_equal(s.before[12], "\n\n<fake_token_around_image><global-img>");
    assert_string_equal(s.before[13], "<fake_token_around_image>");
    ob_shown_deinit(&s);
    /* 3000 x 100: 2048 x 68, 4 x 1 tiles. */
    s = show(&k_smolvlm, 64, 3000, 100);
    assert_int_equal(s.n, 5);
    ob_shown_deinit(&s);
    /* One tile is not cut. */
    ob_vision_hparams small = k_smolvlm;
    small.longest_edge = 512;
    s = show(&small, 64, 800, 600);
    assert_int_equal(s.n, 1); /* 512 x 384 is one tile wide and one high: the whole alone */
    ob_shown_deinit(&s);
}

static void test_smolvlm_bounds(void **state)
{
    (void)state;
    ob_vision_hparams tiny_tiles = k_smolvlm;
    ob_image img;
    ob_shown s;
    ob_err err;
    tiny_tiles.image_size = 64; /* 32 x 32 tiles of one token, and ... */
    tiny_tiles.patch_size = 8;
    tiny_tiles.merge = 2;       /* ... of 16: too many */
    assert_int_equal(ob_image_new(100, 100, &img, &err), OB_OK);
    memset(img.rgb, 0, 30000);
    assert_int_equal(ob_shown_make(&tiny_tiles, 64, &img, &s, &err), OB_E_LIMIT);
    assert_non_null(strstr(err.text, "4096"));
    ob_image_deinit(&img);
}

static void test_gemma3(void **state)
{
    (void)state;
    ob_shown s = show(&k_gemma3, 256, 300, 200);
    assert_int_equal(s.n, 1);
    assert_true(s.images[0].w == 896 && s.images[0].h == 896);
    assert_string_equal(s.before[0], "<start_of_image>");
    assert_string_equal(s.before[1], "<end_of_image>");
    /* 896 x 598 in the middle: black above and below */
    assert_int_equal(s.images[0].rgb[0], 0);
    assert_int_equal(s.images[0].rgb[3 * (896 * 448 + 448)], 200);
    assert_int_equal(s.images[0].rgb[3 * 896 * 148], 0);
    assert_int_equal(s.images[0].rgb[3 * 896 * 149], 200);
    ob_shown_deinit(&s);
}

static void size_is(int32_t max_tok, int32_t w, int32_t h, int32_t want_w, int32_t want_h)
{
    ob_shown s = show(&k_qwen2vl, max_tok, w, h);
    assert_int_equal(s.n, 1);
    if (s.images[0].w != want_w || s.images[0].h != want_h)
        fail_msg("%d x %d becomes %d x %d, not %d x %d", w, h, s.images[0].w, s.images[0].h, want_w, want_h);
    assert_string_equal(s.before[0], "<|vision_start|>");
    assert_string_equal(s.before[1], "<|vision_end|>");
    ob_shown_deinit(&s);
}

static void test_qwen2vl(void **state)
{
    (void)state;
    size_is(4096, 280, 140, 280, 140);    /* whole units of 28 as they are */
    size_is(4096, 300, 200, 308, 196);    /* to the nearest */
    size_is(4096, 20, 20, 84, 84);        /* up to eight tokens: 3 x 3 */
    size_is(4096, 1, 150, 28, 980);       /* narrow: at least a unit wide */
    size_is(100, 1000, 500, 392, 196);    /* down to 100 tokens: 14 x 7 */
    size_is(4096, 4000, 3000, 2044, 1540);
}

static void test_narrow(void **state)
{
    (void)state;
    ob_image img;
    ob_shown s;
    ob_err err;
    assert_int_equal(ob_image_new(201, 1, &img, &err), OB_OK);
    memset(img.rgb, 0, 603);
    assert_int_equal(ob_shown_make(&k_qwen2vl, 4096, &img, &s, &err), OB_E_INVALID);
    ob_image_deinit(&img);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_smolvlm), cmocka_unit_test(test_smolvlm_bounds),
                                       cmocka_unit_test(test_gemma3), cmocka_unit_test(test_qwen2vl),
                                       cmocka_unit_test(test_narrow)};
    return cmocka_run_group_tests_name("vision prep", tests, NULL, NULL);
}
