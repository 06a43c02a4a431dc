/* Vision towers and the models beside them against their references (tests/data/golden/README.md), on the CPU device.
 *
 * For each level: the vectors of a picture, then the logits of text, picture, text: in one step, in odd chunks, and
 * the text behind the picture token by token; all within the file's own tolerance. Then what serves many requests:
 * a picture in company, the cache told by the picture, what is refused. test_conventions_vision.c has the controls.
 *
 * test_golden_vision DEVICE: the same on another device. Exit 77: it is not there. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/ctx.h"
#include "engine/vision.h"
#include "npz.h"
#include "test.h"

/* f16 keys and values: as in test_golden.c. */
#define F16_ATOL 3e-3

static const char *const k_models[] = {"smolvlm", "gemma3v", "qwen2vl"};
static const char *const k_levels[] = {"ref", "c", "avx2", "avx512"};

static const char *g_device = "cpu";

static bool on_cpu(void) { return strcmp(g_device, "cpu") == 0; }

/* The level that tests run at; false when this CPU lacks it. Another device has one level only, in place of the last. */
static bool use_level(const char *level)
{
    if (!on_cpu()) return level == k_levels[3] || !strcmp(level, "auto");
    setenv("OB_CPU", level, 1);
    ob_dev_info info;
    ob_dev *d;
    ob_err err;
    if (ob_dev_open("cpu", &(ob_dev_options){.n_threads = 1}, &d, &err) != OB_OK) return false;
    d->api->describe(d, &info);
    ob_dev_close(d);
    return strstr(info.driver, level) != NULL;
}

typedef struct golden {
    const char *name;
    npz *z, *z_tower;
    const int32_t *tok; /* with the file's image token where rows of the picture lie */
    const float *logits;
    const float *embd;  /* what the tower must give */
    const float *embd_lm; /* what the logits were made with, where that is not the same; else NULL */
    ob_image image; /* borrows from z */
    int32_t n, n_before, n_vocab, n_embd, n_pic;
    double atol;
    /* opened for a level */
    ob_vision *vision;
    ob_ctx *ctx;
    ob_draft draft; /* the prompt with the picture's own ids */
} golden;

static void path_of(const char *prefix, const char *name, const char *suffix, char *out, size_t cap)
{
    snprintf(out, cap, "%s/golden/%s%s%s", OB_TEST_DATA, prefix, name, suffix);
}

static golden load_golden(const char *name)
{
    char path[512];
    path_of("", name, ".npz", path, sizeof path);
    golden g = {.name = name, .z = npz_open(path)};
    assert_non_null(g.z);
    const npz_array *t = npz_need(g.z, "tokens", NPZ_I32), *l = npz_need(g.z, "logits", NPZ_F32);
    const npz_array *e = npz_need(g.z, "image_embd", NPZ_F32), *i = npz_need(g.z, "image", NPZ_U8);
    const npz_array *b = npz_need(g.z, "text_before", NPZ_I32);
    g.tok = t->data;
    g.n = (int32_t)t->shape[0];
    g.logits = l->data;
    g.n_vocab = (int32_t)l->shape[1];
    g.embd = e->data;
    g.n_pic = (int32_t)e->shape[0];
    g.n_embd = (int32_t)e->shape[1];
    g.n_before = (int32_t)b->shape[0];
    g.image = (ob_image){.w = (int32_t)i->shape[1], .h = (int32_t)i->shape[0], .rgb = (uint8_t *)i->data};
    g.atol = (double)*(const float *)npz_need(g.z, "atol", NPZ_F32)->data;
    assert_true(g.atol > 0 && g.atol <= 5e-5);
    if (strcmp(name, "gemma3v") != 0) return g;
    /* The projection lies in the file rounded to F16; torch had it in f32. So the tower is held to what the file
     * means (tests/tools/gemma3v_reference.py), and the model gets torch's vectors. */
    path_of("", "gemma3v-tower", ".npz", path, sizeof path);
    g.z_tower = npz_open(path);
    assert_non_null(g.z_tower);
    g.embd_lm = g.embd;
    g.embd = npz_need(g.z_tower, "image_embd", NPZ_F32)->data;
    return g;
}

static double max_diff(const float *a, const float *b, int64_t n)
{
    double d = 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = fabs((double)a[i] - (double)b[i]);
        if (!(x <= d)) d = isnan(x) ? INFINITY : x;
    }
    return d;
}

static void want(const char *name, const char *level, const char *what, double diff, double atol)
{
    if (getenv("OB_GOLDEN_PRINT")) printf("  %-10s %-7s %-22s %.2e (%.0e)\n", name, level, what, diff, atol);
    if (!(diff <= atol)) fail_msg("%s at level %s, %s: off by %g, allowed %g", name, level, what, diff, atol);
}

static void add_ids(ob_draft *d, const int32_t *ids, int32_t n)
{
    d->ids = realloc(d->ids, (d->n + (size_t)n) * sizeof *ids);
    memcpy(d->ids + d->n, ids, (size_t)n * sizeof *ids);
    d->n += (size_t)n;
    d->cap = d->n;
}

static void add_picture(golden *g, ob_draft *d, const ob_image *img)
{
    ob_err err;
    ob_picture *pic;
    if (ob_vision_run(g->vision, img, &pic, &err) != OB_OK || ob_draft_add_picture(d, pic, &err) != OB_OK)
        fail_msg("%s: %s", g->name, err.text);
    ob_picture_unref(pic);
}

static void draft_with(golden *g, const ob_image *img, ob_draft *d)
{
    *d = (ob_draft){0};
    add_ids(d, g->tok, g->n_before);
    add_picture(g, d, img);
    add_ids(d, g->tok + d->n, g->n - (int32_t)d->n);
}

static void open_both(golden *g, ob_type kv, int32_t n_ubatch)
{
    char path[512];
    ob_engine_params p;
    ob_err err;
    ob_engine_info info;
    ob_engine_defaults(&p);
    p.device = g_device;
    p.n_seq = 3;
    p.n_ubatch = n_ubatch;
    p.n_threads = 2;
    p.k_type = p.v_type = kv;
    p.exact = true;
    path_of("mmproj-", g->name, ".gguf", path, sizeof path);
    if (ob_vision_new(&p, path, 0, &g->vision, &err) != OB_OK) fail_msg("%s", err.text);
    p.n_picture_tok = ob_vision_max_tok(g->vision);
    path_of("", g->name, ".gguf", path, sizeof path);
    p.model_path = path;
    if (ob_ctx_new(&p, &g->ctx, &err) != OB_OK) fail_msg("%s: %s", g->name, err.text);
    ob_ctx_describe(g->ctx, &info);
    assert_int_equal(ob_vision_check_model(g->vision, &info, &err), OB_OK);
    draft_with(g, &g->image, &g->draft);
    assert_int_equal(g->draft.n, g->n);
    ob_picture *pic = g->draft.pics[0].pic;
    want(g->name, on_cpu() ? getenv("OB_CPU") : g_device, "vectors of the picture", max_diff(pic->vec, g->embd, (int64_t)g->n_pic * g->n_embd),
         g->atol);
    if (g->embd_lm) memcpy(pic->vec, g->embd_lm, (size_t)g->n_pic * (size_t)g->n_embd * sizeof *pic->vec);
}

static void close_both(golden *g)
{
    ob_draft_deinit(&g->draft);
    ob_ctx_free(g->ctx);
    ob_vision_free(g->vision);
}

static ob_seq *new_seq(golden *g)
{
    ob_seq *s;
    ob_err err;
    if (ob_ctx_seq_new(g->ctx, &s, &err) != OB_OK) fail_msg("%s", err.text);
    return s;
}

/* Feed d's ids [at, to) in chunks; logits of all of them to out, which is [d->n][n_vocab]. */
static void feed(golden *g, ob_seq *s, const ob_draft *d, int32_t to, int32_t chunk, float *out)
{
    ob_err err;
    for (int32_t at = ob_seq_len(s); at < to;) {
        const int32_t want = to - at < chunk ? to - at : chunk;
        const int32_t n = ob_ctx_chunk_size(g->ctx, s, d->pics, (int32_t)d->n_pics, want, 512);
        const float *logits;
        const ob_chunk ch = {.seq = s, .tok = d->ids + at, .n_tok = n, .n_out = n, .pics = d->pics,
                             .n_pics = (int32_t)d->n_pics};
        if (ob_ctx_step(g->ctx, &ch, 1, &logits, &err) != OB_OK) fail_msg("%s: %s", g->name, err.text);
        memcpy(out + (size_t)at * (size_t)g->n_vocab, logits, (size_t)n * (size_t)g->n_vocab * sizeof *out);
        at += n;
    }
}

static void check_prefill(golden *g, const char *level, ob_type kv, int32_t chunk, double atol)
{
    char what[64];
    float *out = calloc((size_t)g->n * (size_t)g->n_vocab, sizeof *out);
    open_both(g, kv, 64);
    feed(g, new_seq(g), &g->draft, g->n, chunk, out);
    snprintf(what, sizeof what, "%s prefill by %d", kv == OB_F32 ? "f32" : "f16", chunk);
    want(g->name, level, what, max_diff(out, g->logits, (int64_t)g->n * g->n_vocab), atol);
    close_both(g);
    free(out);
}

static void check_decode(golden *g, const char *level)
{
    float *out = calloc((size_t)g->n * (size_t)g->n_vocab, sizeof *out);
    open_both(g, OB_F32, 64);
    ob_seq *s = new_seq(g);
    feed(g, s, &g->draft, g->n_before + g->n_pic, 64, out);
    feed(g, s, &g->draft, g->n, 1, out);
    want(g->name, level, "f32 decode", max_diff(out, g->logits, (int64_t)g->n * g->n_vocab), g->atol);
    close_both(g);
    free(out);
}

/* Pictures in company: the same bits as alone, with another picture and text in the same steps. */
static void check_company(golden *g, const char *level)
{
    const size_t n_vocab = (size_t)g->n_vocab;
    float *alone = calloc((size_t)g->n * n_vocab, sizeof *alone), *among = calloc((size_t)g->n * n_vocab, sizeof *among);
    uint8_t *grey = malloc((size_t)g->image.w * (size_t)g->image.h * 3);
    memset(grey, 99, (size_t)g->image.w * (size_t)g->image.h * 3);
    ob_draft other;
    ob_err err;
    const float *logits;
    open_both(g, OB_F32, 128);
    draft_with(g, &(ob_image){g->image.w, g->image.h, grey}, &other);
    feed(g, new_seq(g), &g->draft, g->n, 64, alone);
    ob_seq *a = new_seq(g), *b = new_seq(g);
    const int32_t sizes[] = {g->n_before, g->n_pic, 3, g->n - g->n_before - g->n_pic - 3};
    for (int32_t i = 0, at = 0; i < 4; at += sizes[i++]) {
        const ob_chunk ch[2] = {{.seq = b, .tok = other.ids + at, .n_tok = sizes[i], .n_out = 1, .pics = other.pics,
                                 .n_pics = (int32_t)other.n_pics},
                                {.seq = a, .tok = g->draft.ids + at, .n_tok = sizes[i], .n_out = sizes[i],
                                 .pics = g->draft.pics, .n_pics = (int32_t)g->draft.n_pics}};
        if (ob_ctx_step(g->ctx, ch, 2, &logits, &err) != OB_OK) fail_msg("%s", err.text);
        memcpy(among + (size_t)at * n_vocab, logits + n_vocab, (size_t)sizes[i] * n_vocab * sizeof *among);
    }
    /* Other devices take other kernels for other sizes of a step. */
    if (!on_cpu()) want(g->name, level, "in company", max_diff(alone, among, (int64_t)g->n * g->n_vocab), g->atol);
    else if (memcmp(alone, among, (size_t)g->n * n_vocab * sizeof *alone) != 0)
        fail_msg("%s at level %s: other logits in company, by %g", g->name, level,
                 max_diff(alone, among, (int64_t)g->n * g->n_vocab));
    ob_draft_deinit(&other);
    close_both(g);
    free(alone);
    free(among);
    free(grey);
}

static void test_model(void **state)
{
    golden g = load_golden(*state);
    for (size_t i = 0; i < sizeof k_levels / sizeof *k_levels; i++) {
        if (!use_level(k_levels[i])) continue;
        check_prefill(&g, k_levels[i], OB_F32, 64, g.atol);
        check_prefill(&g, k_levels[i], OB_F32, 11, g.atol);
        check_prefill(&g, k_levels[i], OB_F16, 17, F16_ATOL);
        check_decode(&g, k_levels[i]);
        if (i >= 2) check_company(&g, k_levels[i]);
    }
    npz_close(g.z);
    npz_close(g.z_tower);
}

/* Two prompts alike but for the picture share nothing from there on; with an equal picture all but the last token. */
static void test_cache(void **state)
{
    (void)state;
    golden g = load_golden("qwen2vl");
    ob_draft other, again;
    ob_err err;
    int32_t n_cached;
    float *one = calloc((size_t)g.n * (size_t)g.n_vocab, sizeof *one), *two = calloc((size_t)g.n * (size_t)g.n_vocab, sizeof *two);
    uint8_t *px = malloc((size_t)g.image.w * (size_t)g.image.h * 3);
    memcpy(px, g.image.rgb, (size_t)g.image.w * (size_t)g.image.h * 3);
    px[0] ^= 1; /* one bit of one pixel */
    use_level("auto");
    open_both(&g, OB_F32, 64);
    draft_with(&g, &(ob_image){g.image.w, g.image.h, px}, &other);
    px[0] ^= 1; /* equal pixels at another address */
    draft_with(&g, &(ob_image){g.image.w, g.image.h, px}, &again);
    assert_ptr_equal(again.pics[0].pic, g.draft.pics[0].pic); /* not computed again */
    assert_ptr_not_equal(other.pics[0].pic, g.draft.pics[0].pic);
    ob_seq *s = new_seq(&g);
    feed(&g, s, &g.draft, g.n, 64, one);
    ob_ctx_seq_keep(g.ctx, s);
    ob_ctx_seq_free(g.ctx, s);
    s = new_seq(&g);
    assert_int_equal(ob_ctx_seq_reuse(g.ctx, s, other.ids, g.n, &n_cached, &err), OB_OK);
    assert_int_equal(n_cached, g.n_before);
    ob_ctx_seq_free(g.ctx, s);
    s = new_seq(&g);
    assert_int_equal(ob_ctx_seq_reuse(g.ctx, s, again.ids, g.n - 3, &n_cached, &err), OB_OK);
    assert_int_equal(n_cached, g.n - 4);
    feed(&g, s, &again, g.n, 2, two); /* goes on behind the picture, at the right positions */
    const size_t from = (size_t)(g.n - 4) * (size_t)g.n_vocab;
    if (on_cpu()) assert_memory_equal(one + from, two + from, 4 * (size_t)g.n_vocab * sizeof *one);
    else want("qwen2vl", g_device, "after reuse", max_diff(one + from, two + from, 4 * (int64_t)g.n_vocab), g.atol);
    ob_draft_deinit(&other);
    ob_draft_deinit(&again);
    close_both(&g);
    free(one);
    free(two);
    free(px);
    npz_close(g.z);
}

/* What does not fit is refused: a chunk that cuts a picture, ids of no picture, a file in the wrong place. */
static void test_refused(void **state)
{
    (void)state;
    golden g = load_golden("gemma3v");
    ob_err err;
    const float *logits;
    char path[512];
    ob_engine_params p;
    use_level("auto");
    open_both(&g, OB_F32, 16);
    ob_engine_info info;
    ob_ctx_describe(g.ctx, &info);
    assert_int_equal(info.n_picture_tok, g.n_pic);
    assert_true(info.n_ubatch >= g.n_pic + info.n_seq); /* more than was asked for */
    ob_chunk ch = {.seq = new_seq(&g), .tok = g.draft.ids, .n_tok = g.n_before + 3, .pics = g.draft.pics, .n_pics = 1};
    assert_int_equal(ob_ctx_step(g.ctx, &ch, 1, &logits, &err), OB_E_INVALID);
    assert_non_null(strstr(err.text, "cuts a picture"));
    ch.n_tok = g.n_before + 3 - 3;
    assert_int_equal(ob_ctx_step(g.ctx, &ch, 1, &logits, &err), OB_OK);
    ch.tok += 1 + g.n_before; /* the second row where the first belongs */
    ch.n_tok = g.n_pic - 1;
    assert_int_equal(ob_ctx_step(g.ctx, &ch, 1, &logits, &err), OB_E_INVALID);
    ch.n_pics = 0;
    assert_int_equal(ob_ctx_step(g.ctx, &ch, 1, &logits, &err), OB_E_INVALID);

    ob_picture *pic;
    assert_int_equal(ob_vision_run(g.vision, &(ob_image){.w = 32, .h = 64, .rgb = g.image.rgb}, &pic, &err), OB_E_INVALID);
    ob_engine_defaults(&p);
    p.device = "cpu";
    p.model_path = path;
    path_of("mmproj-", "gemma3v", ".gguf", path, sizeof path);
    ob_ctx *c;
    assert_int_equal(ob_ctx_new(&p, &c, &err), OB_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "--mmproj"));
    path_of("", "gemma3v", ".gguf", path, sizeof path);
    ob_vision *v;
    assert_int_equal(ob_vision_new(&p, path, 0, &v, &err), OB_E_INVALID);
    assert_non_null(strstr(err.text, "gemma3"));
    path_of("", "zaya", ".gguf", path, sizeof path);
    p.n_picture_tok = 16;
    assert_int_equal(ob_ctx_new(&p, &c, &err), OB_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "zaya"));
    info.n_embd = 65;
    assert_int_equal(ob_vision_check_model(g.vision, &info, &err), OB_E_INVALID);
    assert_non_null(strstr(err.text, "65"));
    info.n_embd = 64;
    strcpy(info.arch, "qwen2vl"); /* as wide, but of another family */
    assert_int_equal(ob_vision_check_model(g.vision, &info, &err), OB_E_INVALID);
    assert_non_null(strstr(err.text, "qwen2vl"));
    close_both(&g);
    npz_close(g.z);
    npz_close(g.z_tower);
}

/* mmproj-NAME.gguf with one text in it exchanged for another as long: what loading it says. */
static void refused_with(const char *name, const char *from, const char *to, const char *says)
{
    char path[512], copy[] = "/tmp/ob_mmproj_XXXXXX";
    ob_engine_params p;
    ob_err err;
    ob_vision *v;
    path_of("mmproj-", name, ".gguf", path, sizeof path);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *bytes = malloc(1 << 20);
    const size_t n = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    char *at = memmem(bytes, n, from, strlen(from));
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    const int fd = mkstemp(copy);
    assert_int_equal(write(fd, bytes, n), n);
    close(fd);
    free(bytes);
    ob_engine_defaults(&p);
    p.device = g_device;
    assert_int_not_equal(ob_vision_new(&p, copy, 0, &v, &err), OB_OK);
    unlink(copy);
    if (!strstr(err.text, says)) fail_msg("\"%s\" does not say \"%s\"", err.text, says);
}

/* Projectors, keys and tensors that are not known are refused by name. */
static void test_unknown(void **state)
{
    (void)state;
    use_level("auto");
    refused_with("smolvlm", "idefics3", "pixtral9", "pixtral9");
    refused_with("smolvlm", "idefics3", "pixtral9", "qwen2vl_merger"); /* what is known */
    refused_with("gemma3v", "clip.use_gelu", "clip.use_warp", "clip.use_warp");
    refused_with("qwen2vl", "mm.0.bias", "mm.0.vias", "mm.0.bias");
    refused_with("smolvlm", "mm.model.fc.weight", "mm.model.fd.weight", "mm.model.fc.weight");
    refused_with("gemma3v", "clip.vision.patch_size", "clip.vision.patch_sise", "patch_siz");
}

int main(int argc, char **argv)
{
    ob_dev *d;
    ob_err err;
    if (argc > 1) g_device = argv[1];
    if (ob_dev_open(g_device, NULL, &d, &err) != OB_OK) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    ob_dev_close(d);
    struct CMUnitTest tests[16];
    size_t n = 0;
    for (size_t i = 0; i < sizeof k_models / sizeof *k_models; i++)
        tests[n++] = (struct CMUnitTest){.name = k_models[i], .test_func = test_model,
                                         .initial_state = (void *)k_models[i]};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_cache);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_refused);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_unknown);
    if (getenv("OB_GOLDEN")) cmocka_set_test_filter(getenv("OB_GOLDEN"));
    return _cmocka_run_group_tests("golden vision", tests, n, NULL, NULL);
}
