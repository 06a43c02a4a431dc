/* Products of each weight type against ops/ref.c when the type is first loaded: a driver that
 * compiles a kernel wrongly costs a warning and some speed, not the answer. */
#include "dev/vulkan/vk_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "ops/ref.h"

enum {
    TEST_K = 512,
    TEST_N = 136, /* whole tiles and an edge */
    TEST_ROWS = 72,
    TESTED = 1 << 31,
};

/* One product as a program: x = embed(token), y = x W^T. */
typedef struct trial {
    ob_program prog;
    ob_op ops[2];
    ob_value vals[2];
    ob_weight weights[2];
    ob_dev_weight *packed[2];
    float *table, *want; /* [TEST_ROWS][TEST_K], [TEST_ROWS][TEST_N] */
    uint8_t *w;
    int32_t tok[TEST_ROWS], pos[TEST_ROWS], out[TEST_ROWS], first[2], past[1], page[1];
} trial;

static float noise(uint32_t *seed)
{
    float s = 0;
    for (int i = 0; i < 3; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        s += (float)(*seed >> 8) / 8388608.0f - 1.0f;
    }
    return s;
}

static ob_status make_trial(trial *t, ob_type type, ob_err *err)
{
    ob_status s = OB_OK;
    uint32_t seed = 12345;
    float *plain = ob_reallocarray(NULL, (size_t)TEST_K * TEST_N, sizeof *plain);
    const size_t row = ob_type_row_bytes(type, TEST_K);
    t->table = ob_reallocarray(NULL, (size_t)TEST_K * TEST_ROWS, sizeof(float));
    t->want = ob_reallocarray(NULL, (size_t)TEST_N * TEST_ROWS, sizeof(float));
    t->w = ob_malloc(row * TEST_N);
    if (!plain || !t->table || !t->want || !t->w) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory to test kernels");
        goto out;
    }
    for (int i = 0; i < TEST_K * TEST_N; i++) plain[i] = noise(&seed) * 0.1f;
    for (int i = 0; i < TEST_K * TEST_ROWS; i++) t->table[i] = noise(&seed);
    if (type == OB_F32)
        memcpy(t->w, plain, row * TEST_N);
    else
        OB_GOTO(ob_quantize(type, plain, t->w, TEST_N, TEST_K, NULL, err));
    for (int i = 0; i < TEST_ROWS; i++) t->tok[i] = t->pos[i] = t->out[i] = i;
    t->weights[0] = (ob_weight){.name = "test",
                                .type = OB_F32,
                                .ne = {TEST_K, TEST_ROWS, 1, 1},
                                .data = t->table,
                                .n_bytes = (size_t)TEST_K * TEST_ROWS * 4,
                                .use = OB_USE_EMBED};
    t->weights[1] = (ob_weight){.name = "test",
                                .type = type,
                                .ne = {TEST_K, TEST_N, 1, 1},
                                .data = t->w,
                                .n_bytes = row * TEST_N,
                                .use = OB_USE_LINEAR};
    t->vals[0] = (ob_value){.rows = OB_ROWS_TOK, .cols = TEST_K, .name = "x"};
    t->vals[1] = (ob_value){.rows = OB_ROWS_TOK, .cols = TEST_N, .output = true, .name = "y"};
    for (int o = 0; o < 2; o++) {
        memset(&t->ops[o], 0, sizeof t->ops[o]);
        for (int i = 0; i < OB_OP_MAX_IN; i++) t->ops[o].in[i] = OB_NONE;
        for (int i = 0; i < OB_OP_MAX_OUT; i++) t->ops[o].out[i] = OB_NONE;
        for (int i = 0; i < OB_OP_MAX_W; i++) t->ops[o].w[i] = OB_NONE;
        t->ops[o].out[0] = o;
        t->ops[o].w[0] = o;
    }
    t->ops[0].kind = OB_OP_EMBED;
    t->ops[0].p.embed.scale = 1;
    t->ops[1].kind = OB_OP_LINEAR;
    t->ops[1].in[0] = 0;
    t->ops[1].p.linear.n_mat = 1;
    t->ops[1].p.linear.scale = 1;
    t->prog = (ob_program){.ops = t->ops,
                           .n_ops = 2,
                           .vals = t->vals,
                           .n_vals = 2,
                           .weights = t->weights,
                           .n_weights = 2,
                           .logits = OB_NONE,
                           .embeddings = OB_NONE};
out:
    ob_free(plain);
    return s;
}

static ob_step step_of(trial *t, int32_t rows)
{
    t->first[1] = rows;
    return (ob_step){.n_tok = rows,
                     .n_seq = 1,
                     .n_out = 0,
                     .tok = t->tok,
                     .pos = t->pos,
                     .seq_first = t->first,
                     .seq_past = t->past,
                     .page_table = t->page,
                     .max_pages = 1,
                     .out_rows = t->out};
}

static ob_status reference(trial *t, ob_err *err)
{
    float *vals[2] = {t->table, t->want};
    float *scratch = ob_reallocarray(NULL, ob_ref_scratch_floats(&t->prog, 1), sizeof *scratch);
    if (!scratch) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to test kernels");
    const ob_step step = step_of(t, TEST_ROWS);
    const ob_ref_env env = {.prog = &t->prog, .step = &step, .vals = vals, .scratch = scratch};
    ob_ref_run(&env, 1, 0, 0, ob_ref_n_items(&env, 1)); /* x is the table itself */
    ob_free(scratch);
    return OB_OK;
}

/* Root mean square of the error over that of the wanted values; infinite when the kernel cannot
 * run. */
static ob_status error_of(vk_dev *d, trial *t, int32_t rows, unsigned fast, double *out,
                          ob_err *err)
{
    ob_status s = OB_OK;
    ob_dev_plan *plan = NULL;
    ob_fence fence;
    float got[TEST_N];
    double e2 = 0, w2 = 0;
    const ob_plan_bindings bind = {.weights = t->packed, .max_ctx = 1};
    const ob_step step = step_of(t, rows);
    *out = INFINITY;
    OB_TRY(ob_program_plan(&t->prog, rows, 0, 1, err));
    OB_GOTO(vk_plan_make(d, &t->prog, &bind, fast, &plan, err));
    OB_GOTO(vk_submit(&d->base, plan, &step, &fence, err));
    OB_GOTO(vk_wait(&d->base, fence, err));
    for (int32_t r = 0; r < rows; r++) {
        OB_GOTO(vk_read_output(&d->base, plan, 1, r, 1, got, err));
        for (int i = 0; i < TEST_N; i++) {
            const double w = (double)t->want[r * TEST_N + i], e = (double)got[i] - w;
            e2 += e * e;
            w2 += w * w;
        }
    }
    *out = isfinite(e2) ? sqrt(e2 / w2) : INFINITY;
out:
    vk_plan_free(&d->base, plan);
    return s;
}

static void switch_off(vk_dev *d, const char *kernel, ob_type t, double error)
{
    char name[48];
    snprintf(name, sizeof name, "%s_%s", kernel, vk_type_name(t));
    vk_switch_off(d, name, error);
}

/* 8-bit activations give about 0.7 % on noise, f16 0.05 %, f32 a few parts in 10^7. */
typedef struct candidate {
    const char *kernel;
    unsigned fast;
    int32_t rows[4]; /* one for each size of tile */
    double most;
} candidate;

static const candidate k_fast[] = {
    {"matvec_i8", VK_FAST_INT8, {1, 5}, 0.02},
    {"gemm_cm", VK_FAST_COOPMAT, {16, 24, 40, TEST_ROWS}, 0.005},
};

static ob_status run_tests(vk_dev *d, trial *t, ob_type type, ob_err *err)
{
    double error;
    const unsigned sub = d->fast & VK_FAST_SUBGROUP;
    const ob_status s = error_of(d, t, 5, sub, &error, err);
    if (s != OB_OK && (!sub || s != OB_E_DEVICE))
        return s; /* a refused pipeline is no worse than a wrong one */
    if (!(error <= 1e-4) && sub) {
        switch_off(d, "matvec_f32", type, error);
        d->fast &= ~(unsigned)VK_FAST_SUBGROUP;
        OB_TRY(error_of(d, t, 5, 0, &error, err));
    }
    if (!(error <= 1e-4))
        return ob_err_set(
            err, OB_E_DEVICE,
            "vulkan: kernel matvec_plain_f32_%s is wrong on this driver (relative error %.2g)",
            vk_type_name(type), error);
    OB_TRY(error_of(d, t, 40, 0, &error, err));
    if (!(error <= 1e-4))
        return ob_err_set(err, OB_E_DEVICE,
                          "vulkan: kernel gemm_%s is wrong on this driver (relative error %.2g)",
                          vk_type_name(type), error);
    for (size_t i = 0; i < OB_COUNT(k_fast); i++) {
        const candidate *c = &k_fast[i];
        char name[48];
        snprintf(name, sizeof name, "%s_%s", c->kernel, vk_type_name(type));
        if (!(d->fast & c->fast) || !vk_kernel_exists(name)) continue;
        d->tested[type] |= c->fast;
        double worst = 0;
        for (size_t k = 0; k < OB_COUNT(c->rows) && c->rows[k]; k++) {
            if (error_of(d, t, c->rows[k], c->fast | (d->fast & VK_FAST_SUBGROUP), &error, err) ==
                OB_E_DEVICE_LOST)
                return OB_E_DEVICE_LOST;
            worst = error <= worst ? worst : error;
        }
        if (worst <= c->most && !vk_test_fails(name)) continue;
        error = worst;
        switch_off(d, c->kernel, type, error);
        d->tested[type] &= ~c->fast;
    }
    return OB_OK;
}

ob_status vk_test_type(vk_dev *d, ob_type type, ob_err *err)
{
    if (type >= OB_COUNT(d->tested) || (d->tested[type] & TESTED)) return OB_OK;
    d->tested[type] |= (unsigned)TESTED;
    ob_status s = OB_OK;
    const bool was_testing = d->testing;
    bool keeps;
    trial *t = ob_calloc(1, sizeof *t);
    if (!t) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory to test kernels");
        goto out;
    }
    d->testing = true;
    OB_GOTO(make_trial(t, type, err));
    OB_GOTO(reference(t, err));
    for (int i = 0; i < 2; i++)
        OB_GOTO(vk_weight_new(&d->base, &t->weights[i], &t->packed[i], &keeps, err));
    OB_GOTO(run_tests(d, t, type, err));
    d->n_prof = 0; /* tests are no work of a model */
out:
    d->testing = was_testing;
    if (s != OB_OK) d->tested[type] = 0;
    for (int i = 0; t && i < 2; i++) vk_weight_free(&d->base, t->packed[i]);
    if (t) {
        ob_free(t->table);
        ob_free(t->want);
        ob_free(t->w);
    }
    ob_free(t);
    return s;
}
