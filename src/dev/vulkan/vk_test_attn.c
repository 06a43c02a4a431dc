/* Attention by matrices against ops/ref.c, with a model's own shape, when a plan first wants it: a driver that
 * compiles it wrongly costs a warning and some speed. */
#include "dev/vulkan/vk_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "ops/ref.h"

/* Two sequences, the second of several tiles and an end within one. */
enum { FIRST = 30, ROWS = 101, MAX_PAGES = ROWS };

/* Queries, keys and values are rows of tables: q = embed(token) and so on; the last op is the attention. */
typedef struct trial {
    ob_program prog;
    ob_op ops[4];
    ob_value vals[4];
    ob_weight weights[3];
    ob_dev_weight *packed[3];
    ob_cache_spec cache;
    ob_dev_buf *plane[2];
    uint16_t *ref_plane[2];
    float *rows[4]; /* [ROWS][cols]: the tables, and what is wanted */
    int32_t tok[ROWS], first[3], past[2], pages[2 * MAX_PAGES];
    int32_t page_tok, max_pages, n_pages;
} trial;

static ob_status no_memory(ob_err *err)
{
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory to test kernels");
}

/* Sums of three uniform numbers, about normal. */
static float noise(uint32_t *seed)
{
    float s = 0;
    for (int i = 0; i < 3; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        s += (float)(*seed >> 8) / 8388608.0f - 1.0f;
    }
    return s;
}

static ob_status fill(trial *t, const ob_op *op, ob_err *err)
{
    const ob_attn_params *a = &op->p.attn;
    const int32_t cols[4] = {a->n_head * a->k_dim, a->n_head_kv * a->k_dim, a->n_head_kv * a->v_dim, a->n_head * a->v_dim};
    static const char *const names[4] = {"q", "k", "v", "y"};
    uint32_t seed = 777;
    t->ops[3] = *op;
    t->ops[3].p.attn.cache = 0;
    t->cache = (ob_cache_spec){a->n_head_kv, a->k_dim, a->v_dim};
    for (int i = 0; i < 4; i++) {
        const size_t n = (size_t)ROWS * (size_t)cols[i];
        t->vals[i] = (ob_value){.rows = OB_ROWS_TOK, .cols = cols[i], .output = i == 3, .name = names[i]};
        t->rows[i] = ob_reallocarray(NULL, n, sizeof(float));
        if (!t->rows[i]) return no_memory(err);
        for (size_t k = 0; k < n; k++) t->rows[i][k] = noise(&seed);
        ob_op *o = &t->ops[i];
        for (int k = 0; k < OB_OP_MAX_IN; k++) o->in[k] = i == 3 && k < 3 ? k : OB_NONE;
        for (int k = 0; k < OB_OP_MAX_OUT; k++) o->out[k] = k ? OB_NONE : i;
        for (int k = 0; k < OB_OP_MAX_W; k++) o->w[k] = OB_NONE;
        if (i == 3) continue;
        o->kind = OB_OP_EMBED;
        o->w[0] = i;
        o->p.embed.scale = 1;
        t->weights[i] = (ob_weight){.name = names[i], .type = OB_F32, .ne = {cols[i], ROWS, 1, 1}, .data = t->rows[i],
                                    .n_bytes = n * sizeof(float), .use = OB_USE_EMBED};
    }
    t->prog = (ob_program){.ops = t->ops, .n_ops = 4, .vals = t->vals, .n_vals = 4, .weights = t->weights, .n_weights = 3,
                           .caches = &t->cache, .n_caches = 1, .logits = OB_NONE, .embeddings = OB_NONE};
    return OB_OK;
}

/* The pages of both sequences, in turns and backwards. */
static void set_step(trial *t, int32_t page_tok, ob_step *step)
{
    t->page_tok = page_tok;
    t->max_pages = (int32_t)ob_div_up(ROWS, page_tok);
    t->n_pages = 2 * t->max_pages;
    for (int32_t i = 0; i < t->max_pages; i++) {
        t->pages[i] = t->n_pages - 1 - 2 * i;
        t->pages[t->max_pages + i] = t->n_pages - 2 - 2 * i;
    }
    for (int32_t i = 0; i < ROWS; i++) t->tok[i] = i;
    t->first[1] = FIRST;
    t->first[2] = ROWS;
    *step = (ob_step){.n_tok = ROWS, .n_seq = 2, .tok = t->tok, .pos = t->tok, .seq_first = t->first, .seq_past = t->past,
                      .page_table = t->pages, .max_pages = t->max_pages};
}

static ob_status reference(trial *t, const ob_step *step, ob_err *err)
{
    ob_status s = OB_OK;
    float *scratch = ob_reallocarray(NULL, ob_ref_scratch_floats(&t->prog, ROWS), sizeof *scratch);
    for (int k = 0; k < 2; k++)
        t->ref_plane[k] = ob_calloc((size_t)t->n_pages * (size_t)t->page_tok,
                                    (size_t)t->cache.n_head_kv * (size_t)(k ? t->cache.v_dim : t->cache.k_dim) * 2);
    if (!scratch || !t->ref_plane[0] || !t->ref_plane[1]) {
        s = no_memory(err);
        goto out;
    }
    const ob_cache_view view = {t->ref_plane[0], t->ref_plane[1], OB_F16, OB_F16, t->page_tok};
    const ob_ref_env env = {.prog = &t->prog, .step = step, .vals = t->rows, .caches = &view, .scratch = scratch};
    for (int phase = 0; phase < ob_ref_n_phases(OB_OP_ATTENTION); phase++)
        ob_ref_run(&env, 3, phase, 0, ob_ref_n_items(&env, 3));
out:
    ob_free(scratch);
    return s;
}

/* Root mean square of the error over that of the wanted values; infinite when the kernel cannot run. */
static ob_status error_of(vk_dev *d, trial *t, const ob_step *step, double *out, ob_err *err)
{
    ob_status s = OB_OK;
    ob_dev_plan *plan = NULL;
    ob_fence fence;
    double e2 = 0, w2 = 0;
    const ob_plan_bindings bind = {.weights = t->packed, .cache_k = &t->plane[0], .cache_v = &t->plane[1], .k_type = OB_F16,
                                   .v_type = OB_F16, .page_tok = t->page_tok, .n_pages = t->n_pages, .max_ctx = ROWS};
    const size_t n = (size_t)ROWS * (size_t)t->vals[3].cols;
    float *got = ob_reallocarray(NULL, n, sizeof *got);
    *out = INFINITY;
    if (!got) return no_memory(err);
    OB_GOTO(ob_program_plan(&t->prog, ROWS, 0, 2, err));
    OB_GOTO(vk_plan_make(d, &t->prog, &bind, VK_FAST_ATTN, &plan, err));
    OB_GOTO(vk_submit(&d->base, plan, step, &fence, err));
    OB_GOTO(vk_wait(&d->base, fence, err));
    OB_GOTO(vk_read_output(&d->base, plan, 3, 0, ROWS, got, err));
    for (size_t i = 0; i < n; i++) {
        const double w = (double)t->rows[3][i], e = (double)got[i] - w;
        e2 += e * e;
        w2 += w * w;
    }
    *out = isfinite(e2) ? sqrt(e2 / w2) : INFINITY;
out:
    ob_free(got);
    vk_plan_free(&d->base, plan);
    return s;
}

static void trial_free(vk_dev *d, trial *t)
{
    for (int i = 0; i < 3; i++) vk_weight_free(&d->base, t->packed[i]);
    for (int i = 0; i < 2; i++) {
        d->base.api->buffer_free(&d->base, t->plane[i]);
        ob_free(t->ref_plane[i]);
    }
    for (int i = 0; i < 4; i++) ob_free(t->rows[i]);
    ob_free(t);
}

static vk_attn_shape shape_of(const ob_attn_params *a, int32_t page_tok)
{
    return (vk_attn_shape){a->n_head, a->n_head_kv, a->k_dim, a->v_dim, a->window, page_tok};
}

static ob_status run_test(vk_dev *d, const ob_op *op, int32_t page_tok, ob_err *err)
{
    /* f16 queries and weights give about 0.03 % on noise. */
    static const double MOST = 0.005;
    ob_status s = OB_OK;
    ob_step step;
    bool keeps;
    double error;
    trial *t = ob_calloc(1, sizeof *t);
    if (!t) return no_memory(err);
    const vk_testing was = vk_testing_begin(d);
    OB_GOTO(fill(t, op, err));
    set_step(t, page_tok, &step);
    OB_GOTO(reference(t, &step, err));
    for (int i = 0; i < 3; i++) OB_GOTO(vk_weight_new(&d->base, &t->weights[i], &t->packed[i], &keeps, err));
    for (int i = 0; i < 2; i++)
        OB_GOTO(d->base.api->buffer_new(&d->base,
                                        (uint64_t)t->n_pages * (uint64_t)page_tok * (uint64_t)t->cache.n_head_kv *
                                            (uint64_t)(i ? t->cache.v_dim : t->cache.k_dim) * 2,
                                        OB_BUF_ZERO, &t->plane[i], err));
    s = error_of(d, t, &step, &error, err);
    if (s == OB_E_DEVICE_LOST || s == OB_E_NO_MEMORY) goto out;
    s = OB_OK; /* a refused pipeline is no worse than a wrong one */
    if (error <= MOST && !vk_test_fails("attn_cm")) {
        const vk_attn_shape shape = shape_of(&op->p.attn, page_tok);
        vk_verdict_add(d, vk_hash(vk_verdict_key(d, "attn_cm"), &shape, sizeof shape), 1);
        goto out;
    }
    vk_switch_off(d, "attn_cm", error);
    d->fast &= ~(unsigned)VK_FAST_ATTN;
out:
    vk_testing_end(d, was);
    trial_free(d, t);
    return s;
}

/* Whether this shape was tested before; notes that it is now. */
static bool is_known(vk_dev *d, const ob_op *op, int32_t page_tok)
{
    const vk_attn_shape shape = shape_of(&op->p.attn, page_tok);
    uint32_t known;
    if (!vk_test_fails("attn_cm") && vk_verdict_find(d, vk_hash(vk_verdict_key(d, "attn_cm"), &shape, sizeof shape), &known)) return true;
    for (int k = 0; k < OB_MIN(d->n_attn_tested, (int)VK_MAX_ATTN_TESTED); k++)
        if (memcmp(&d->attn_tested[k], &shape, sizeof shape) == 0) return true;
    d->attn_tested[d->n_attn_tested++ % VK_MAX_ATTN_TESTED] = shape;
    return false;
}

ob_status vk_test_attn(vk_dev *d, const ob_program *g, const ob_plan_bindings *b, ob_err *err)
{
    for (int32_t i = 0; i < g->n_ops && vk_tests_wanted(); i++) {
        if (g->ops[i].kind != OB_OP_ATTENTION) continue;
        OB_TRY(ob_op_check(g, i, err));
        if (vk_attn_matrices(d, b, &g->ops[i], g->max_tok) && !is_known(d, &g->ops[i], b->page_tok))
            OB_TRY(run_test(d, &g->ops[i], b->page_tok, err));
    }
    return OB_OK;
}
