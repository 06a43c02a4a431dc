/* Products of each weight type against ops/ref.c when the type is first loaded: a driver that
 * compiles a kernel wrongly costs a warning and some speed, not the answer. */
#include "dev/vulkan/vk_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "ops/ref.h"

enum {
    TEST_K = 512,
    TEST_N = 136, /* whole tiles and an edge */
    TEST_FF = 256, /* of gate and up; rows of the K formats are multiples of it */
    TEST_ROWS = 72,
    TESTED = 1 << 31,
};

typedef enum trial_kind {
    TRIAL_PLAIN, /* y = x W^T */
    TRIAL_GLU,   /* g = x W1^T, u = x W2^T, y = glu(g, u) W3^T */
    TRIAL_NORM   /* s = x W1^T, s += x W2^T, y = norm(s) W3^T */
} trial_kind;

enum { MAX_VALS = 4, MAX_WEIGHTS = 5 };

/* x = embed(token), then as above. */
typedef struct trial {
    ob_program prog;
    ob_op ops[5];
    ob_value vals[MAX_VALS];
    ob_weight weights[MAX_WEIGHTS];
    ob_dev_weight *packed[MAX_WEIGHTS];
    float *rows[MAX_VALS]; /* [TEST_ROWS][cols] of each value; of x: the table */
    uint8_t *w[MAX_WEIGHTS];
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

static ob_status no_memory(ob_err *err)
{
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory to test kernels");
}

/* Weight i: noise of deviation 0.1. */
static ob_status add_weight(trial *t, int i, ob_type type, int32_t k, int32_t n, uint32_t *seed, ob_err *err)
{
    ob_status s = OB_OK;
    const size_t n_bytes = ob_type_row_bytes(type, k) * (size_t)n;
    float *plain = ob_reallocarray(NULL, (size_t)k * (size_t)n, sizeof *plain);
    t->w[i] = ob_malloc(n_bytes);
    if (!plain || !t->w[i]) {
        s = no_memory(err);
        goto out;
    }
    for (size_t j = 0; j < (size_t)k * (size_t)n; j++) plain[j] = noise(seed) * 0.1f;
    if (type == OB_F32) memcpy(t->w[i], plain, n_bytes);
    else OB_GOTO(ob_quantize(type, plain, t->w[i], n, k, NULL, err));
    t->weights[i] = (ob_weight){.name = "test", .type = type, .ne = {k, n, 1, 1}, .data = t->w[i], .n_bytes = n_bytes,
                                .use = OB_USE_LINEAR};
out:
    ob_free(plain);
    return s;
}

static ob_op *add_op(trial *t, ob_op_kind kind, ob_val in, ob_val out)
{
    ob_op *op = &t->ops[t->prog.n_ops++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    for (int i = 0; i < OB_OP_MAX_IN; i++) op->in[i] = OB_NONE;
    for (int i = 0; i < OB_OP_MAX_OUT; i++) op->out[i] = OB_NONE;
    for (int i = 0; i < OB_OP_MAX_W; i++) op->w[i] = OB_NONE;
    op->in[0] = in;
    op->out[0] = out;
    return op;
}

static void add_linear(trial *t, ob_val x, int32_t n_mat, ob_val y, int32_t w)
{
    ob_op *op = add_op(t, OB_OP_LINEAR, x, y);
    for (int32_t m = 0; m < n_mat; m++) {
        op->out[m] = y + m;
        op->w[m] = w + m;
    }
    op->p.linear.n_mat = n_mat;
    op->p.linear.scale = 1;
}

static ob_status add_values(trial *t, const int32_t *cols, int32_t n, ob_err *err)
{
    for (int i = 0; i < n; i++) {
        t->vals[i] = (ob_value){.rows = OB_ROWS_TOK, .cols = cols[i], .output = i == n - 1, .name = "test"};
        t->rows[i] = ob_reallocarray(NULL, (size_t)cols[i] * TEST_ROWS, sizeof(float));
        if (!t->rows[i]) return no_memory(err);
    }
    t->prog.n_vals = n;
    return OB_OK;
}

static void add_glu(trial *t)
{
    add_linear(t, 0, 2, 1, 1);
    ob_op *op = add_op(t, OB_OP_GLU, 1, 1);
    op->in[1] = 2;
    op->p.glu.act = OB_ACT_SILU;
    add_linear(t, 1, 1, 3, 3);
}

/* The table's rows do for the norm's weights. */
static void add_norm(trial *t)
{
    add_linear(t, 0, 1, 1, 1);
    add_linear(t, 0, 1, 1, 2);
    t->ops[t->prog.n_ops - 1].in[1] = 1;
    ob_op *op = add_op(t, OB_OP_RMS_NORM, 1, 2);
    op->w[0] = 4;
    op->p.norm.eps = 1e-5f;
    add_linear(t, 2, 1, 3, 3);
    t->weights[4] = (ob_weight){.name = "test", .type = OB_F32, .ne = {TEST_K, 1, 1, 1}, .data = t->rows[0],
                                .n_bytes = (size_t)TEST_K * 4, .use = OB_USE_VECTOR};
    t->prog.n_weights = 5;
}

static ob_status make_trial(trial *t, ob_type type, trial_kind kind, bool rotated, ob_err *err)
{
    static const int32_t cols[][MAX_VALS] = {{TEST_K, TEST_N}, {TEST_K, TEST_FF, TEST_FF, TEST_N}, {TEST_K, TEST_K, TEST_K, TEST_N}};
    static const int32_t n_in[][MAX_VALS] = {{0, TEST_K}, {0, TEST_K, TEST_K, TEST_FF}, {0, TEST_K, TEST_K, TEST_K}};
    static const int32_t n_out[][MAX_VALS] = {{0, TEST_N}, {0, TEST_FF, TEST_FF, TEST_N}, {0, TEST_K, TEST_K, TEST_N}};
    const int32_t n = kind == TRIAL_PLAIN ? 2 : 4;
    uint32_t seed = 12345;
    t->prog = (ob_program){.ops = t->ops, .vals = t->vals, .weights = t->weights, .n_weights = n, .logits = OB_NONE,
                           .embeddings = OB_NONE};
    OB_TRY(add_values(t, cols[kind], n, err));
    for (int i = 0; i < TEST_K * TEST_ROWS; i++) t->rows[0][i] = noise(&seed);
    for (int i = 0; i < TEST_ROWS; i++) t->tok[i] = t->pos[i] = t->out[i] = i;
    t->weights[0] = (ob_weight){.name = "test", .type = OB_F32, .ne = {TEST_K, TEST_ROWS, 1, 1}, .data = t->rows[0],
                                .n_bytes = (size_t)TEST_K * TEST_ROWS * 4, .use = OB_USE_EMBED};
    ob_op *op = add_op(t, OB_OP_EMBED, OB_NONE, 0);
    op->w[0] = 0;
    op->p.embed.scale = 1;
    for (int i = 1; i < n; i++) {
        OB_TRY(add_weight(t, i, type, n_in[kind][i], n_out[kind][i], &seed, err));
        t->weights[i].hadamard = rotated;
    }
    if (kind == TRIAL_GLU) add_glu(t);
    else if (kind == TRIAL_NORM) add_norm(t);
    else add_linear(t, 0, 1, 1, 1);
    return OB_OK;
}

static void trial_free(vk_dev *d, trial *t)
{
    for (int i = 0; t && i < MAX_WEIGHTS; i++) {
        vk_weight_free(&d->base, t->packed[i]);
        ob_free(t->w[i]);
    }
    for (int i = 0; t && i < MAX_VALS; i++) ob_free(t->rows[i]);
    ob_free(t);
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
    float *scratch = ob_reallocarray(NULL, ob_ref_scratch_floats(&t->prog, 1), sizeof *scratch);
    if (!scratch) return no_memory(err);
    const ob_step step = step_of(t, TEST_ROWS);
    const ob_ref_env env = {.prog = &t->prog, .step = &step, .vals = t->rows, .scratch = scratch};
    for (int32_t i = 1; i < t->prog.n_ops; i++) ob_ref_run(&env, i, 0, 0, ob_ref_n_items(&env, i)); /* x is the table */
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
    const ob_val y = t->prog.n_vals - 1;
    *out = INFINITY;
    OB_TRY(ob_program_plan(&t->prog, rows, 0, 1, err));
    OB_GOTO(vk_plan_make(d, &t->prog, &bind, fast, &plan, err));
    if (d->listing) {
        *out = 0;
        goto out;
    }
    OB_GOTO(vk_submit(&d->base, plan, &step, &fence, err));
    OB_GOTO(vk_wait(&d->base, fence, err));
    for (int32_t r = 0; r < rows; r++) {
        OB_GOTO(vk_read_output(&d->base, plan, y, r, 1, got, err));
        for (int i = 0; i < TEST_N; i++) {
            const double w = (double)t->rows[y][r * TEST_N + i], e = (double)got[i] - w;
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

/* What several ops at once may be off: 8 f16 roundings on the way through gate, up, glu and down by matrices;
 * activations rounded to 8 bits twice by the others. */
typedef struct several {
    const char *kernel;
    trial_kind kind;
    unsigned fast, needs; /* what is tested, with what */
    int32_t rows[3];
    double most;
    bool rotated;
} several;

static const several k_several[] = {
    {"gemm_glu", TRIAL_GLU, VK_FAST_GLU, VK_FAST_COOPMAT, {24, 40, TEST_ROWS}, 0.01, false},
    {"matvec_glu", TRIAL_GLU, VK_FAST_FUSED, VK_FAST_SUBGROUP | VK_FAST_INT8, {1, 5}, 0.03, false},
    {"matvec_norm", TRIAL_NORM, VK_FAST_FUSED, VK_FAST_SUBGROUP | VK_FAST_INT8, {1, 5}, 0.03, false},
};

/* Results that are turned on their way out, for rotated weights. */
static const several k_rotated[] = {
    {"rotated_matvec_glu", TRIAL_GLU, VK_FAST_FUSED, VK_FAST_SUBGROUP | VK_FAST_INT8, {1, 5}, 0.03, true},
    {"rotated_matvec_norm", TRIAL_NORM, VK_FAST_FUSED, VK_FAST_SUBGROUP | VK_FAST_INT8, {1, 5}, 0.03, true},
};

static ob_status run_several(vk_dev *d, trial *t, ob_type type, const several *c, ob_err *err)
{
    double error, worst = 0;
    unsigned *tested = c->rotated ? &d->tested_rotated : &d->tested[type];
    char name[48];
    snprintf(name, sizeof name, "%s_%s", c->kernel, vk_type_name(type));
    *tested |= c->fast;
    for (size_t i = 0; i < OB_COUNT(c->rows) && c->rows[i]; i++) {
        if (error_of(d, t, c->rows[i], c->fast | c->needs | (d->fast & VK_FAST_SUBGROUP), &error, err) == OB_E_DEVICE_LOST)
            return OB_E_DEVICE_LOST;
        worst = error <= worst ? worst : error;
    }
    if (worst <= c->most && !vk_test_fails(name)) return OB_OK;
    switch_off(d, c->kernel, type, worst);
    *tested &= ~c->fast;
    return OB_OK;
}

/* c NULL: plain products. */
static ob_status test_products(vk_dev *d, ob_type type, const several *c, ob_err *err)
{
    ob_status s = OB_OK;
    bool keeps;
    trial *t = ob_calloc(1, sizeof *t);
    if (!t) return no_memory(err);
    const vk_testing was = vk_testing_begin(d);
    OB_GOTO(make_trial(t, type, c ? c->kind : TRIAL_PLAIN, c && c->rotated, err));
    if (!d->listing) OB_GOTO(reference(t, err));
    for (int i = 0; i < t->prog.n_weights; i++)
        OB_GOTO(vk_weight_new(&d->base, &t->weights[i], &t->packed[i], &keeps, err));
    s = c ? run_several(d, t, type, c, err) : run_tests(d, t, type, err);
out:
    vk_testing_end(d, was);
    trial_free(d, t);
    return s;
}

/* Whether the ways that c builds upon are there and right; a part that was found wrong needs no second test. */
static bool may_test(const vk_dev *d, ob_type type, const several *c)
{
    char name[48];
    snprintf(name, sizeof name, c->fast == VK_FAST_GLU ? "gemm_glu_%s" : "matvec_i8_%s_glu", vk_type_name(type));
    const unsigned parts = c->needs & ~(unsigned)VK_FAST_SUBGROUP;
    return (d->fast & c->fast) && (d->fast & c->needs) == c->needs && (d->tested[type] & parts) == parts && vk_kernel_exists(name);
}

ob_status vk_test_type(vk_dev *d, ob_type type, ob_err *err)
{
    if (type >= OB_COUNT(d->tested) || (d->tested[type] & TESTED)) return OB_OK;
    const uint64_t key = vk_hash(vk_verdict_key(d, "type"), &type, sizeof type);
    const unsigned fast = d->fast;
    const size_t n_disabled = strlen(d->disabled);
    if (!vk_test_fails_type(type) && vk_verdict_find(d, key, &d->tested[type])) return OB_OK;
    d->tested[type] |= (unsigned)TESTED;
    const bool listing = d->listing;
    const size_t n_pipes = d->n_pipes;
    d->listing |= !vk_tests_wanted(); /* then all kernels that there are pass */
    ob_status s = test_products(d, type, NULL, err);
    unsigned wrong = 0;
    for (size_t i = 0; s == OB_OK && i < OB_COUNT(k_several); i++) {
        const several *c = &k_several[i];
        if ((wrong & c->fast) || !may_test(d, type, c)) continue;
        s = test_products(d, type, c, err);
        wrong |= c->fast & ~d->tested[type];
    }
    if (s != OB_OK) d->tested[type] = 0;
    else if (d->fast == fast && strlen(d->disabled) == n_disabled) vk_verdict_add(d, key, d->tested[type]);
    d->listing = listing;
    if (!vk_tests_wanted()) vk_kernels_forget(d, n_pipes);
    return s;
}

/* One product of each kind that reads turned rows, by the pass of their own: there is no other way. */
static ob_status run_turn(vk_dev *d, trial *t, ob_err *err)
{
    static const int32_t rows[] = {5, 40};
    for (size_t i = 0; i < OB_COUNT(rows); i++) {
        double error;
        OB_TRY(error_of(d, t, rows[i], d->fast & VK_FAST_SUBGROUP, &error, err));
        if (!d->listing && (!(error <= 1e-4) || vk_test_fails("turn")))
            return ob_err_set(err, OB_E_DEVICE, "vulkan: kernel turn is wrong on this driver (relative error %.2g)", error);
    }
    return OB_OK;
}

static ob_status test_turn(vk_dev *d, ob_err *err)
{
    ob_status s = OB_OK;
    bool keeps;
    trial *t = ob_calloc(1, sizeof *t);
    if (!t) return no_memory(err);
    const vk_testing was = vk_testing_begin(d);
    OB_GOTO(make_trial(t, OB_Q4_0, TRIAL_PLAIN, true, err));
    if (!d->listing) OB_GOTO(reference(t, err));
    for (int i = 0; i < t->prog.n_weights; i++) OB_GOTO(vk_weight_new(&d->base, &t->weights[i], &t->packed[i], &keeps, err));
    s = run_turn(d, t, err);
out:
    vk_testing_end(d, was);
    trial_free(d, t);
    return s;
}

ob_status vk_test_rotated(vk_dev *d, ob_err *err)
{
    if (d->tested_rotated & (unsigned)TESTED) return OB_OK;
    const uint64_t key = vk_verdict_key(d, "rotated");
    const size_t n_disabled = strlen(d->disabled);
    const char *injected = getenv("OB_VK_TEST_FAIL");
    if (!(injected && *injected) && vk_verdict_find(d, key, &d->tested_rotated)) return OB_OK;
    d->tested_rotated = (unsigned)TESTED;
    ob_status s = test_turn(d, err);
    for (size_t i = 0; s == OB_OK && i < OB_COUNT(k_rotated); i++) {
        const several *c = &k_rotated[i];
        if (i && !(d->tested_rotated & c->fast)) break; /* one part was found wrong */
        if (may_test(d, OB_Q4_0, c)) s = test_products(d, OB_Q4_0, c, err);
    }
    if (s != OB_OK) d->tested_rotated = 0;
    else if (strlen(d->disabled) == n_disabled) vk_verdict_add(d, key, d->tested_rotated);
    return s;
}
