/* The tower's thread-safe face, its plan, and the pictures seen lately.
 *
 * One mutex guards everything below it. The plan holds as many patches as the largest picture so far needed, so a
 * server that sees small pictures never pays for large ones.
 */
#include "engine/vision.h"

#include <openssl/sha.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "engine/vision_int.h"
#include "kv/kv.h"

enum { PAGE_TOK = 64, MAX_SEEN = 256 };

/* A picture seen lately, told by its pixels. */
typedef struct seen {
    unsigned char digest[SHA256_DIGEST_LENGTH];
    ob_picture *pic;
    uint64_t used; /* tick of the last use */
} seen;

struct ob_vision {
    ob_file *file;
    ob_model *model;
    const ob_vision_hparams *h;
    ob_dev *dev;
    ob_dev_info dev_info;
    bool exact;
    ob_program *first; /* owns what the weights point at */
    ob_dev_weight **weights;
    int32_t n_out_embd, max_tok;

    pthread_mutex_t lock;
    ob_program *prog; /* by lock, with all below: of the plan */
    ob_dev_plan *plan;
    ob_kv *kv;
    int32_t max_patches; /* of the plan */
    float *pixels;       /* [max_patches][3 * patch_size^2] */
    int32_t *ints;       /* [5][max_patches]: tok, pos, pos_h, out_rows, pages */
    seen seen[MAX_SEEN];
    int32_t n_seen;
    size_t seen_bytes;
    uint64_t tick;
    int32_t n_numbers; /* given to pictures so far */
};

/* ------------------------------------------------------------------ plan */

static void drop_plan(ob_vision *v)
{
    if (v->plan) v->dev->api->plan_free(v->dev, v->plan);
    if (v->prog != v->first) ob_program_free(v->prog);
    ob_kv_free(v->kv);
    ob_free(v->pixels);
    ob_free(v->ints);
    v->plan = NULL;
    v->prog = NULL;
    v->kv = NULL;
    v->pixels = NULL;
    v->ints = NULL;
    v->max_patches = 0;
}

static ob_status make_plan(ob_vision *v, int32_t n, ob_err *err)
{
    const int32_t per_square = v->h->merge * v->h->merge;
    const size_t per_patch = 3 * (size_t)v->h->patch_size * (size_t)v->h->patch_size;
    drop_plan(v);
    OB_TRY(ob_model_program(v->model, &v->prog, err));
    OB_TRY(ob_program_plan(v->prog, n, n / per_square, 1, err));
    const ob_kv_params kp = {.caches = v->prog->caches, .n_caches = v->prog->n_caches, .k_type = OB_F32, .v_type = OB_F32,
                             .page_tok = PAGE_TOK, .n_pages = (int32_t)ob_div_up(n, PAGE_TOK)};
    OB_TRY(ob_kv_new(v->dev, &kp, &v->kv, err));
    const ob_plan_bindings bind = {.weights = v->weights, .cache_k = ob_kv_k(v->kv), .cache_v = ob_kv_v(v->kv),
                                   .k_type = OB_F32, .v_type = OB_F32, .page_tok = PAGE_TOK, .n_pages = kp.n_pages,
                                   .max_ctx = n, .n_slots = 1};
    OB_TRY(v->dev->api->plan_new(v->dev, v->prog, &bind, &v->plan, err));
    v->pixels = ob_reallocarray(NULL, (size_t)n, per_patch * sizeof *v->pixels);
    v->ints = ob_calloc((size_t)n, 5 * sizeof *v->ints);
    if (!v->pixels || !v->ints) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a picture of %d patches", n);
    v->max_patches = n;
    return OB_OK;
}

/* A plan for n patches: of exactly the size of a tile, or doubled until it fits. */
static ob_status need_plan(ob_vision *v, int32_t n, ob_err *err)
{
    if (n <= v->max_patches) return OB_OK;
    const int32_t most = v->max_tok * v->h->merge * v->h->merge;
    int32_t size = n;
    if (v->h->projector == OB_PROJECTOR_QWEN2VL)
        for (size = 4 * v->h->merge * v->h->merge; size < n;) size *= 2;
    const ob_status s = make_plan(v, OB_MIN(size, most), err);
    if (s != OB_OK) drop_plan(v);
    return s;
}

/* ------------------------------------------------------------------ one picture */

static ob_status check_size(const ob_vision *v, const ob_image *img, int32_t *nx, int32_t *ny, ob_err *err)
{
    const int32_t unit = v->h->patch_size * v->h->merge;
    const bool free_size = v->h->projector == OB_PROJECTOR_QWEN2VL;
    if (img->w % unit || img->h % unit || (!free_size && (img->w != v->h->image_size || img->h != v->h->image_size)))
        return ob_err_set(err, OB_E_INVALID, "the vision tower takes no picture of %d x %d pixels", img->w, img->h);
    *nx = img->w / unit;
    *ny = img->h / unit;
    if (*nx * *ny > v->max_tok)
        return ob_err_set(err, OB_E_LIMIT, "the picture would take %d tokens, at most %d are possible", *nx * *ny, v->max_tok);
    return OB_OK;
}

/* One patch: channel, row, column. */
static void fill_patch(const ob_vision_hparams *h, const ob_image *img, int32_t px, int32_t py, float *out)
{
    const int32_t side = h->patch_size;
    for (int c = 0; c < 3; c++)
        for (int32_t y = 0; y < side; y++) {
            const uint8_t *line = img->rgb + 3 * ((size_t)(py * side + y) * (size_t)img->w + (size_t)(px * side));
            for (int32_t x = 0; x < side; x++) *out++ = ((float)line[3 * x + c] / 255.0f - h->mean[c]) / h->std[c];
        }
}

/* The tower's step: patches square by square, as ob_vision_hparams has it. */
static ob_status run_tower(ob_vision *v, const ob_image *img, int32_t nx, int32_t ny, float *out, ob_err *err)
{
    const ob_vision_hparams *h = v->h;
    const int32_t m = h->merge, n = nx * ny * m * m, cap = v->max_patches, n_out = nx * ny, past = 0;
    const int32_t first[2] = {0, n};
    int32_t *tok = v->ints, *pos = tok + cap, *pos_h = pos + cap, *out_rows = pos_h + cap, *pages = out_rows + cap;
    const size_t per_patch = 3 * (size_t)h->patch_size * (size_t)h->patch_size;
    for (int32_t i = 0; i < n; i++) {
        const int32_t square = i / (m * m), in = i % (m * m);
        const int32_t px = square % nx * m + in % m, py = square / nx * m + in / m;
        fill_patch(h, img, px, py, v->pixels + (size_t)i * per_patch);
        tok[i] = -1 - i;
        pos[i] = h->axes ? py : py * nx * m + px;
        pos_h[i] = px;
    }
    for (int32_t i = 0; i < n_out; i++) out_rows[i] = i * m * m;
    for (int32_t i = 0; i < (int32_t)ob_div_up(n, PAGE_TOK); i++) pages[i] = i;
    const ob_step st = {.n_tok = n, .n_seq = 1, .n_out = n_out, .tok = tok, .pos = pos, .pos_h = h->axes ? pos_h : NULL,
                        .seq_first = first, .seq_past = &past, .page_table = pages,
                        .max_pages = (int32_t)ob_div_up(cap, PAGE_TOK), .out_rows = out_rows, .vec = v->pixels, .n_vec = n};
    ob_fence fence;
    OB_TRY(v->dev->api->submit(v->dev, v->plan, &st, &fence, err));
    OB_TRY(v->dev->api->wait(v->dev, fence, err));
    return v->dev->api->read_output(v->dev, v->plan, v->prog->embeddings, 0, n_out, out, err);
}

/* ------------------------------------------------------------------ pictures seen lately */

static size_t bytes_of(const ob_picture *p) { return (size_t)p->n_tok * (size_t)p->n_embd * sizeof(float); }

static seen *find_seen(ob_vision *v, const unsigned char *digest)
{
    for (int32_t i = 0; i < v->n_seen; i++)
        if (!memcmp(v->seen[i].digest, digest, sizeof v->seen[i].digest)) return &v->seen[i];
    return NULL;
}

static void forget_oldest(ob_vision *v)
{
    int32_t oldest = 0;
    for (int32_t i = 1; i < v->n_seen; i++)
        if (v->seen[i].used < v->seen[oldest].used) oldest = i;
    v->seen_bytes -= bytes_of(v->seen[oldest].pic);
    ob_picture_unref(v->seen[oldest].pic);
    v->seen[oldest] = v->seen[--v->n_seen];
}

static void remember(ob_vision *v, const unsigned char *digest, ob_picture *p)
{
    const size_t n = bytes_of(p);
    if (n > OB_MAX_PICTURE_CACHE_BYTES || !ob_picture_cacheable(p)) return;
    while (v->n_seen == MAX_SEEN || v->seen_bytes + n > OB_MAX_PICTURE_CACHE_BYTES) forget_oldest(v);
    seen *s = &v->seen[v->n_seen++];
    memcpy(s->digest, digest, sizeof s->digest);
    s->pic = ob_picture_ref(p);
    s->used = ++v->tick;
    v->seen_bytes += n;
}

static void digest_of(const ob_image *img, unsigned char *digest)
{
    const int32_t size[2] = {img->w, img->h};
    unsigned char text[sizeof size + SHA256_DIGEST_LENGTH];
    memcpy(text, size, sizeof size);
    SHA256(img->rgb, 3 * (size_t)img->w * (size_t)img->h, text + sizeof size);
    SHA256(text, sizeof text, digest);
}

static ob_status run_new(ob_vision *v, const ob_image *img, int32_t nx, int32_t ny, ob_picture **out, ob_err *err)
{
    OB_TRY(need_plan(v, nx * ny * v->h->merge * v->h->merge, err));
    ob_picture *p = ob_picture_new(nx, ny, v->n_out_embd, v->n_numbers);
    if (!p) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a picture of %d tokens", nx * ny);
    const ob_status s = run_tower(v, img, nx, ny, p->vec, err);
    if (s != OB_OK) {
        ob_picture_unref(p);
        return s;
    }
    if (v->n_numbers < OB_PICTURE_NUMBERS - 1) v->n_numbers++;
    *out = p;
    return OB_OK;
}

ob_status ob_vision_run(ob_vision *v, const ob_image *img, ob_picture **out, ob_err *err)
{
    int32_t nx = 0, ny = 0;
    unsigned char digest[SHA256_DIGEST_LENGTH];
    ob_status s = OB_OK;
    OB_TRY(check_size(v, img, &nx, &ny, err));
    digest_of(img, digest);
    pthread_mutex_lock(&v->lock);
    seen *old = find_seen(v, digest);
    if (old) {
        old->used = ++v->tick;
        *out = ob_picture_ref(old->pic);
    } else {
        s = run_new(v, img, nx, ny, out, err);
        if (s == OB_OK) remember(v, digest, *out);
    }
    pthread_mutex_unlock(&v->lock);
    return s;
}

ob_status ob_vision_draft(ob_vision *v, const ob_image *img, const ob_tok *tok, ob_draft *d, ob_err *err)
{
    ob_shown shown;
    ob_status s = OB_OK;
    OB_TRY(ob_shown_make(v->h, v->max_tok, img, &shown, err));
    for (int32_t i = 0; i <= shown.n; i++) {
        ob_picture *pic;
        OB_GOTO(ob_draft_add_text(d, tok, shown.before[i], strlen(shown.before[i]), OB_TOK_SPECIAL, err));
        if (i == shown.n) break;
        OB_GOTO(ob_vision_run(v, &shown.images[i], &pic, err));
        s = ob_draft_add_picture(d, pic, err);
        ob_picture_unref(pic);
        if (s != OB_OK) break;
    }
out:
    ob_shown_deinit(&shown);
    return s;
}

/* ------------------------------------------------------------------ life */

static ob_status load_weights(ob_vision *v, ob_err *err)
{
    const ob_program *p = v->first;
    v->weights = ob_calloc((size_t)p->n_weights + 1, sizeof(ob_dev_weight *));
    if (!v->weights) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the table of weights");
    for (int32_t i = 0; i < p->n_weights; i++) {
        bool keeps; /* the file stays mapped */
        const ob_status s = v->dev->api->weight_new(v->dev, &p->weights[i], &v->weights[i], &keeps, err);
        if (s != OB_OK) return ob_err_prefix(err, s, "tensor %s", p->weights[i].name);
    }
    return OB_OK;
}

static ob_status check_device(const ob_vision *v, ob_err *err)
{
    for (int32_t i = 0; i < v->first->n_ops; i++) {
        char why[200];
        if (!v->dev->api->supports(v->dev, v->first, i, why, sizeof why))
            return ob_err_set(err, OB_E_UNSUPPORTED, "device %s cannot run op %s of the vision tower: %s", v->dev->api->kind,
                              ob_op_name(v->first->ops[i].kind), why);
    }
    return OB_OK;
}

static ob_status set_max_tok(ob_vision *v, int32_t image_max_tok, ob_err *err)
{
    const int32_t per_square = v->h->merge * v->h->merge, side = v->h->image_size / (v->h->patch_size * v->h->merge);
    v->max_tok = v->h->projector == OB_PROJECTOR_QWEN2VL ? OB_MAX_IMAGE_TOK : side * side;
    if (v->h->projector == OB_PROJECTOR_QWEN2VL && image_max_tok > 0) v->max_tok = OB_MIN(v->max_tok, image_max_tok);
    if (v->dev_info.max_tok > 0 && v->h->projector == OB_PROJECTOR_QWEN2VL)
        v->max_tok = OB_MIN(v->max_tok, v->dev_info.max_tok / per_square);
    if (v->max_tok > OB_MAX_IMAGE_TOK || (v->dev_info.max_tok > 0 && v->max_tok * per_square > v->dev_info.max_tok))
        return ob_err_set(err, OB_E_UNSUPPORTED, "the vision tower makes %d tokens of a picture: too many", v->max_tok);
    return OB_OK;
}

static ob_status open_tower(const ob_engine_params *p, const char *device, const char *path, int32_t image_max_tok,
                            ob_vision **out, ob_err *err)
{
    ob_status s = OB_OK;
    ob_vision *v = ob_calloc(1, sizeof *v);
    if (!v) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the vision tower");
    pthread_mutex_init(&v->lock, NULL);
    OB_GOTO(ob_file_open(path, 0, &v->file, err));
    OB_GOTO(ob_model_new(v->file, NULL, &v->model, err));
    v->h = ob_model_vision(v->model);
    if (!v->h) {
        s = ob_err_set(err, OB_E_INVALID, "architecture %s is no vision tower: --mmproj wants a file of architecture clip",
                       ob_model_arch(v->model));
        goto out;
    }
    const ob_dev_source src = {.path = ob_file_path(v->file), .stamp = ob_file_stamp(v->file)};
    const ob_dev_options dopt = {.n_threads = p->n_threads, .exact = p->exact, .profile = p->profile,
                                 .source = src.stamp ? &src : NULL, .verify = p->verify, .pin = p->pin_weights};
    OB_GOTO(ob_dev_open(device, &dopt, &v->dev, err));
    v->dev->api->describe(v->dev, &v->dev_info);
    OB_GOTO(set_max_tok(v, image_max_tok, err));
    OB_GOTO(ob_model_program(v->model, &v->first, err));
    v->n_out_embd = v->first->vals[v->first->embeddings].cols;
    OB_GOTO(check_device(v, err));
    OB_GOTO(load_weights(v, err));
    *out = v;
    return OB_OK;
out:
    ob_vision_free(v);
    return s;
}

ob_status ob_vision_new(const ob_engine_params *p, const char *path, int32_t image_max_tok, ob_vision **out, ob_err *err)
{
    ob_err local;
    if (!err) err = &local;
    const char *device = p->device && *p->device ? p->device : "auto";
    ob_status s = open_tower(p, device, path, image_max_tok, out, err);
    if (s == OB_E_UNSUPPORTED && !strcmp(device, "auto")) {
        /* The device that `auto` prefers may lack a kernel; the CPU has all of them. */
        ob_err first = *err;
        s = open_tower(p, "cpu", path, image_max_tok, out, err);
        if (s == OB_OK) ob_log_warn("pictures are read on the CPU: %s", first.text);
        else *err = first;
    }
    return s == OB_OK ? s : ob_err_prefix(err, s, "%s", path);
}

void ob_vision_free(ob_vision *v)
{
    if (!v) return;
    while (v->n_seen) forget_oldest(v);
    if (v->dev) {
        drop_plan(v);
        for (int32_t i = 0; v->weights && i < v->first->n_weights; i++)
            if (v->weights[i]) v->dev->api->weight_free(v->dev, v->weights[i]);
        ob_dev_close(v->dev);
    }
    ob_free(v->weights);
    ob_program_free(v->first);
    ob_model_free(v->model);
    ob_file_close(v->file);
    pthread_mutex_destroy(&v->lock);
    ob_free(v);
}

int32_t ob_vision_max_tok(const ob_vision *v) { return v->max_tok; }

ob_status ob_vision_check_model(const ob_vision *v, const ob_engine_info *model, ob_err *err)
{
    const bool gemma = !strcmp(model->arch, "gemma3"), qwen = !strcmp(model->arch, "qwen2vl");
    if (gemma != (v->h->projector == OB_PROJECTOR_GEMMA3) || qwen != (v->h->projector == OB_PROJECTOR_QWEN2VL))
        return ob_err_set(err, OB_E_INVALID, "the vision tower (--mmproj) is of kind %s, which does not belong to a model of "
                          "architecture %s", ob_vision_projector(v), model->arch);
    if (model->n_embd == v->n_out_embd) return OB_OK;
    return ob_err_set(err, OB_E_INVALID, "the vision tower (--mmproj) makes vectors of %d columns, but model %s has %d: "
                      "they do not belong together", v->n_out_embd, model->name, model->n_embd);
}

const char *ob_vision_projector(const ob_vision *v)
{
    static const char *const names[] = {[OB_PROJECTOR_IDEFICS3] = "idefics3", [OB_PROJECTOR_GEMMA3] = "gemma3",
                                        [OB_PROJECTOR_QWEN2VL] = "qwen2vl"};
    return names[v->h->projector];
}
