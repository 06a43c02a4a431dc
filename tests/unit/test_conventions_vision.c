/* Negative controls of pictures: flip one convention of a vision tower, or of how a model reads a picture, and the
 * golden numbers must no longer match. Programs run by the reference ops alone, from steps made here by hand, so the
 * layouts that engine/ relies on are said a second time. */
#include <math.h>

#include "graph/model.h"
#include "npz.h"
#include "ops/ref.h"
#include "test.h"

enum { MAX_ROWS = 64, SIDE = 64, PATCH = 8, PER_SIDE = SIDE / PATCH, PATCH_COLS = 3 * PATCH * PATCH, MERGE = 2 };

/* ------------------------------------------------------------------ a program by the references */

static const float *run_refs(ob_program *p, const ob_step *st, float *out, size_t n_out)
{
    ob_err err;
    if (ob_program_plan(p, MAX_ROWS, MAX_ROWS, 1, &err) != OB_OK) fail_msg("%s", err.text);
    float *work = calloc(1, p->workspace_bytes + 64), *scratch = calloc(ob_ref_scratch_floats(p, MAX_ROWS), sizeof *scratch);
    float **vals = calloc((size_t)p->n_vals, sizeof *vals);
    ob_cache_view *caches = calloc((size_t)p->n_caches + 1, sizeof *caches);
    for (int32_t v = 0; v < p->n_vals; v++) vals[v] = work + p->vals[v].offset / sizeof(float);
    for (int32_t c = 0; c < p->n_caches; c++)
        caches[c] = (ob_cache_view){.k_type = OB_F32, .v_type = OB_F32, .page_tok = MAX_ROWS,
                                    .k = calloc((size_t)(MAX_ROWS * p->caches[c].n_head_kv * p->caches[c].k_dim), 4),
                                    .v = calloc((size_t)(MAX_ROWS * p->caches[c].n_head_kv * p->caches[c].v_dim), 4)};
    const ob_ref_env e = {.prog = p, .step = st, .vals = vals, .caches = caches, .scratch = scratch};
    for (int32_t i = 0; i < p->n_ops; i++)
        for (int phase = 0; phase < ob_ref_n_phases(p->ops[i].kind); phase++)
            ob_ref_run(&e, i, phase, 0, ob_ref_n_items(&e, i));
    memcpy(out, vals[p->logits != OB_NONE ? p->logits : p->embeddings], n_out * sizeof *out);
    for (int32_t c = 0; c < p->n_caches; c++) {
        free(caches[c].k);
        free(caches[c].v);
    }
    free(caches);
    free(vals);
    free(scratch);
    free(work);
    return out;
}

typedef struct loaded {
    ob_file *file;
    ob_model *model;
    ob_program *prog;
} loaded;

static loaded load(const char *prefix, const char *name)
{
    char path[512];
    loaded l = {0};
    ob_err err;
    snprintf(path, sizeof path, "%s/golden/%s%s.gguf", OB_TEST_DATA, prefix, name);
    const ob_model_options opt = {.pictures = !*prefix};
    if (ob_file_open(path, 0, &l.file, &err) != OB_OK || ob_model_new(l.file, &opt, &l.model, &err) != OB_OK ||
        ob_model_program(l.model, &l.prog, &err) != OB_OK)
        fail_msg("%s: %s", path, err.text);
    return l;
}

static void unload(loaded *l)
{
    ob_program_free(l->prog);
    ob_model_free(l->model);
    ob_file_close(l->file);
}

/* ------------------------------------------------------------------ flips */

/* What a step is made from. */
typedef struct conventions {
    bool columns_first;    /* inside a square: patches by columns */
    bool raster;           /* rows in raster order, not by squares */
    bool channels_last;    /* inside a patch */
    bool axes_swapped;     /* row and column */
    bool not_normalised;   /* pixels in 0..1 */
    bool scaled_pictures;  /* vectors times the embedding scale */
    bool text_goes_on_by_tokens;
} conventions;

typedef bool (*flip_fn)(ob_op *op, conventions *c);

#define FLIP(name, kind_, cond, change)                                                           \
    static bool name(ob_op *op, conventions *c)                                                   \
    {                                                                                             \
        (void)c;                                                                                  \
        if (op->kind != (kind_) || !(cond)) return false;                                         \
        change;                                                                                   \
        return true;                                                                              \
    }
FLIP(act_quick, OB_OP_ACT, op->p.act.act == OB_ACT_GELU_QUICK, op->p.act.act = OB_ACT_GELU_TANH)
FLIP(act_tanh, OB_OP_ACT, op->p.act.act == OB_ACT_GELU_TANH, op->p.act.act = OB_ACT_GELU_QUICK)
FLIP(act_erf, OB_OP_ACT, op->p.act.act == OB_ACT_GELU_ERF, op->p.act.act = OB_ACT_GELU_QUICK)
FLIP(rope_restart, OB_OP_ROPE, op->p.rope.axis_restart, op->p.rope.axis_restart = false)
FLIP(rope_pairing, OB_OP_ROPE, true, op->p.rope.pairing = OB_ROPE_NORM)
FLIP(rope_axes, OB_OP_ROPE, op->p.rope.axis_pairs[0] > 0,
     op->p.rope.axis_restart = false;
     op->p.rope.axis_pairs[0] = op->p.rope.axis_pairs[1] = op->p.rope.axis_pairs[2] = 0)
FLIP(both_frames, OB_OP_LINEAR, op->in[1] != OB_NONE && op->layer < 0, op->p.linear.scale = 0)
FLIP(tower_causal, OB_OP_ATTENTION, !op->p.attn.causal, op->p.attn.causal = true)
FLIP(norm_weight, OB_OP_RMS_NORM, true, op->w[0] = OB_NONE)
FLIP(picture_blocks, OB_OP_ATTENTION, op->p.attn.blocks == OB_BLOCKS_ALSO, op->p.attn.blocks = OB_BLOCKS_NONE)
FLIP(bias, OB_OP_LINEAR, op->w[4] != OB_NONE, op->w[4] = op->w[5] = op->w[6] = OB_NONE)
#define STEP_FLIP(name)                                                                           \
    static bool name(ob_op *op, conventions *c)                                                   \
    {                                                                                             \
        (void)op;                                                                                 \
        c->name = true;                                                                           \
        return true;                                                                              \
    }
STEP_FLIP(columns_first)
STEP_FLIP(raster)
STEP_FLIP(channels_last)
STEP_FLIP(axes_swapped)
STEP_FLIP(not_normalised)
STEP_FLIP(scaled_pictures)
STEP_FLIP(text_goes_on_by_tokens)

typedef struct control {
    const char *model, *what;
    bool tower;
    flip_fn flip; /* NULL: as it is, it must match */
} control;

#define T(model, flip) {model, #flip, true, flip}
#define M(model, flip) {model, #flip, false, flip}
static const control k_controls[] = {
    {"smolvlm", "tower as it is", true, NULL}, T("smolvlm", columns_first), T("smolvlm", raster), T("smolvlm", channels_last),
    T("smolvlm", act_tanh), T("smolvlm", tower_causal), T("smolvlm", not_normalised), T("smolvlm", bias),
    {"gemma3v", "tower as it is", true, NULL}, T("gemma3v", raster), T("gemma3v", norm_weight),
    {"qwen2vl", "tower as it is", true, NULL}, T("qwen2vl", columns_first), T("qwen2vl", act_quick), T("qwen2vl", act_erf),
    T("qwen2vl", rope_restart), T("qwen2vl", rope_pairing), T("qwen2vl", rope_axes), T("qwen2vl", axes_swapped),
    T("qwen2vl", both_frames),
    {"smolvlm", "model as it is", false, NULL},
    {"gemma3v", "model as it is", false, NULL}, M("gemma3v", picture_blocks), M("gemma3v", scaled_pictures),
    {"qwen2vl", "model as it is", false, NULL}, M("qwen2vl", rope_axes), M("qwen2vl", axes_swapped),
    M("qwen2vl", text_goes_on_by_tokens),
};

/* ------------------------------------------------------------------ steps */

typedef struct arrays {
    int32_t tok[MAX_ROWS], pos[MAX_ROWS], pos_h[MAX_ROWS], pos_w[MAX_ROWS], first[MAX_ROWS], end[MAX_ROWS], out[MAX_ROWS];
    float vec[MAX_ROWS * PATCH_COLS];
} arrays;

static const int32_t k_zero[MAX_ROWS];

static double run_tower(const control *c, const conventions *how, const loaded *l, npz *z)
{
    static arrays a;
    char path[512];
    const uint8_t *rgb = npz_need(z, "image", NPZ_U8)->data;
    const ob_vision_hparams *h = ob_model_vision(l->model);
    const int32_t n = PER_SIDE * PER_SIDE, n_out = n / (MERGE * MERGE);
    for (int32_t i = 0; i < n; i++) {
        const int32_t square = i / 4, in = i % 4, dx = how->columns_first ? in / 2 : in % 2, dy = how->columns_first ? in % 2 : in / 2;
        const int32_t px = how->raster ? i % PER_SIDE : square % 4 * 2 + dx, py = how->raster ? i / PER_SIDE : square / 4 * 2 + dy;
        for (int32_t k = 0; k < PATCH_COLS; k++) {
            const int32_t ch = how->channels_last ? k % 3 : k / 64, at = how->channels_last ? k / 3 : k % 64;
            const float v = (float)rgb[((py * PATCH + at / 8) * SIDE + px * PATCH + at % 8) * 3 + ch] / 255.0f;
            a.vec[i * PATCH_COLS + k] = how->not_normalised ? v : (v - h->mean[ch]) / h->std[ch];
        }
        a.tok[i] = -1 - i;
        a.pos[i] = h->axes ? (how->axes_swapped ? px : py) : py * PER_SIDE + px;
        a.pos_h[i] = how->axes_swapped ? py : px;
        a.out[i] = 4 * i;
    }
    const int32_t bounds[2] = {0, n};
    const ob_step st = {.n_tok = n, .n_seq = 1, .n_out = n_out, .tok = a.tok, .pos = a.pos, .pos_h = h->axes ? a.pos_h : NULL,
                        .seq_first = bounds, .seq_past = k_zero, .page_table = k_zero, .max_pages = 1, .out_rows = a.out,
                        .vec = a.vec, .n_vec = n};
    npz *exact = NULL;
    if (!strcmp(c->model, "gemma3v")) { /* see test_golden_vision.c */
        snprintf(path, sizeof path, "%s/golden/gemma3v-tower.npz", OB_TEST_DATA);
        exact = npz_open(path);
    }
    const npz_array *want = npz_need(exact ? exact : z, "image_embd", NPZ_F32);
    float *got = calloc((size_t)want->n_items, sizeof *got);
    run_refs(l->prog, &st, got, (size_t)want->n_items);
    double d = 0;
    for (int64_t i = 0; i < want->n_items; i++) {
        const double x = fabs((double)got[i] - (double)((const float *)want->data)[i]);
        if (!(x <= d)) d = isnan(x) ? INFINITY : x;
    }
    free(got);
    npz_close(exact);
    return d;
}

static double run_model(const control *c, const conventions *how, const loaded *l, npz *z)
{
    static arrays a;
    const npz_array *tok = npz_need(z, "tokens", NPZ_I32), *embd = npz_need(z, "image_embd", NPZ_F32);
    const npz_array *before = npz_need(z, "text_before", NPZ_I32), *want = npz_need(z, "logits", NPZ_F32);
    const int32_t n = (int32_t)tok->n_items, n0 = (int32_t)before->n_items, n_pic = (int32_t)embd->shape[0];
    const int32_t side = 4, n_embd = (int32_t)embd->shape[1]; /* the picture is 4 x 4 rows */
    const bool axes = !strcmp(c->model, "qwen2vl");
    for (int32_t i = 0; i < n_pic * n_embd; i++)
        a.vec[i] = ((const float *)embd->data)[i] * (how->scaled_pictures ? sqrtf((float)n_embd) : 1);
    for (int32_t i = 0; i < n; i++) {
        const bool pic = i >= n0 && i < n0 + n_pic;
        const int32_t row = i - n0, behind = axes && !how->text_goes_on_by_tokens && i >= n0 + n_pic ? n_pic - side : 0;
        a.tok[i] = pic ? -1 - row : ((const int32_t *)tok->data)[i];
        a.pos[i] = pic && axes ? n0 : i - behind;
        a.pos_h[i] = pic && axes ? n0 + (how->axes_swapped ? row % side : row / side) : a.pos[i];
        a.pos_w[i] = pic && axes ? n0 + (how->axes_swapped ? row / side : row % side) : a.pos[i];
        a.first[i] = pic ? n0 : i;
        a.end[i] = pic ? n0 + n_pic : i + 1;
        a.out[i] = i;
    }
    const int32_t bounds[2] = {0, n};
    const ob_step st = {.n_tok = n, .n_seq = 1, .n_out = n, .tok = a.tok, .pos = a.pos, .pos_h = a.pos_h, .pos_w = a.pos_w,
                        .seq_first = bounds, .seq_past = k_zero, .page_table = k_zero, .max_pages = 1, .out_rows = a.out,
                        .vec = a.vec, .n_vec = n_pic, .block_first = a.first, .block_end = a.end};
    float *got = calloc((size_t)want->n_items, sizeof *got);
    run_refs(l->prog, &st, got, (size_t)want->n_items);
    double d = 0;
    for (int64_t i = 0; i < want->n_items; i++) {
        const double x = fabs((double)got[i] - (double)((const float *)want->data)[i]);
        if (!(x <= d)) d = isnan(x) ? INFINITY : x;
    }
    free(got);
    return d;
}

static void test_control(void **state)
{
    const control *c = *state;
    char path[512];
    conventions how = {0};
    loaded l = load(c->tower ? "mmproj-" : "", c->model);
    int n_flipped = 0;
    for (int32_t i = 0; c->flip && i < l.prog->n_ops; i++) n_flipped += c->flip(&l.prog->ops[i], &how);
    if (c->flip) assert_true(n_flipped > 0);
    snprintf(path, sizeof path, "%s/golden/%s.npz", OB_TEST_DATA, c->model);
    npz *z = npz_open(path);
    assert_non_null(z);
    const double atol = (double)*(const float *)npz_need(z, "atol", NPZ_F32)->data;
    const double d = (c->tower ? run_tower : run_model)(c, &how, &l, z);
    if (getenv("OB_GOLDEN_PRINT")) printf("  %-10s %-26s %.2e\n", c->model, c->what, d);
    if (!c->flip && !(d <= atol)) fail_msg("%s, %s: off by %g, allowed %g", c->model, c->what, d, atol);
    /* Ten times: no doubt that the golden test fails. */
    if (c->flip && !(d > 10 * atol)) fail_msg("%s with another %s: off by %g only", c->model, c->what, d);
    npz_close(z);
    unload(&l);
}

int main(void)
{
    enum { N = sizeof k_controls / sizeof *k_controls };
    static char names[N][80];
    struct CMUnitTest tests[N];
    for (size_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "%s: %s", k_controls[i].model, k_controls[i].what);
        tests[i] = (struct CMUnitTest){.name = names[i], .test_func = test_control,
                                       .initial_state = (void *)&k_controls[i]};
    }
    if (getenv("OB_GOLDEN")) cmocka_set_test_filter(getenv("OB_GOLDEN"));
    return _cmocka_run_group_tests("conventions of pictures", tests, N, NULL, NULL);
}
