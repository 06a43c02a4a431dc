/* Experts of each weight type before they are used: the f32 kernels against ops/ref.c, the fast ones
 * against those. */
#include "dev/vulkan/vk_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "ops/ref.h"

enum {
    COLS = 256, /* of the rows and of the hidden layer: a block of every type */
    EXPERTS = 8,
    USED = 2,
    ROWS = 400,    /* for the widest tile */
    FEW_ROWS = 12, /* where there are no matrices */
    REF_ROWS = 3,  /* the reference is slow */
    TESTED = 1 << 31,
};

/* x and logits are looked up, USED experts chosen, y = x + experts(x); all three matrices are the same. Or, as in a
 * layer: x is looked up, then a product with residual, norm, router, choice and experts. */
typedef struct trial {
    ob_program prog;
    ob_op ops[6];
    ob_value vals[7];
    ob_weight weights[7];     /* tables of x and logits; gate and down; up, the same again; product, norm, router */
    ob_dev_weight *packed[7];
    float *x, *logits, *want, *got; /* [ROWS][COLS] but for the logits' [ROWS][EXPERTS] */
    uint8_t *w;
    int32_t tok[ROWS], first[2], past[1], page[1];
} trial;

enum { X, LOGITS, IDS, WEIGHTS, Y, SUM, NORM, N_VALS };

static float noise(uint32_t *seed)
{
    float s = 0;
    for (int i = 0; i < 3; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        s += (float)(*seed >> 8) / 8388608.0f - 1.0f;
    }
    return s;
}

static ob_status fill(trial *t, ob_type type, ob_err *err)
{
    enum { N = COLS * COLS * EXPERTS };
    ob_status s = OB_OK;
    uint32_t seed = 54321;
    const size_t row = ob_type_row_bytes(type, COLS), n_bytes = row * COLS * EXPERTS;
    float *plain = ob_reallocarray(NULL, N, sizeof *plain);
    t->x = ob_reallocarray(NULL, (size_t)ROWS * COLS, sizeof(float));
    t->want = ob_reallocarray(NULL, (size_t)ROWS * COLS, sizeof(float));
    t->got = ob_reallocarray(NULL, (size_t)ROWS * COLS, sizeof(float));
    t->logits = ob_reallocarray(NULL, (size_t)ROWS * EXPERTS, sizeof(float));
    t->w = ob_malloc(n_bytes);
    if (!plain || !t->x || !t->want || !t->got || !t->logits || !t->w) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory to test kernels");
        goto out;
    }
    for (int i = 0; i < N; i++) plain[i] = noise(&seed) * 0.1f;
    for (int i = 0; i < ROWS * COLS; i++) t->x[i] = noise(&seed);
    for (int i = 0; i < ROWS * EXPERTS; i++) t->logits[i] = noise(&seed);
    for (int i = 0; i < ROWS; i++) t->tok[i] = i;
    if (type == OB_F32) memcpy(t->w, plain, n_bytes);
    else OB_GOTO(ob_quantize(type, plain, t->w, COLS * EXPERTS, COLS, NULL, err));
    t->weights[0] = (ob_weight){.name = "test", .type = OB_F32, .ne = {COLS, ROWS, 1, 1}, .data = t->x,
                                .n_bytes = (size_t)ROWS * COLS * 4, .use = OB_USE_EMBED};
    t->weights[1] = (ob_weight){.name = "test", .type = OB_F32, .ne = {EXPERTS, ROWS, 1, 1}, .data = t->logits,
                                .n_bytes = (size_t)ROWS * EXPERTS * 4, .use = OB_USE_EMBED};
    t->weights[2] = (ob_weight){.name = "test", .type = type, .ne = {COLS, COLS, EXPERTS, 1}, .data = t->w,
                                .n_bytes = n_bytes, .use = OB_USE_EXPERTS};
    t->weights[3] = t->weights[2]; /* apart, so that the reference does not take it for gate and up in one */
    t->weights[4] = (ob_weight){.name = "test", .type = type, .ne = {COLS, COLS, 1, 1}, .data = t->w,
                                .n_bytes = n_bytes / EXPERTS, .use = OB_USE_LINEAR};
    t->weights[5] = (ob_weight){.name = "test", .type = OB_F32, .ne = {COLS, 1, 1, 1}, .data = t->x,
                                .n_bytes = COLS * 4, .use = OB_USE_VECTOR};
    t->weights[6] = (ob_weight){.name = "test", .type = OB_F32, .ne = {COLS, EXPERTS, 1, 1}, .data = t->x,
                                .n_bytes = (size_t)EXPERTS * COLS * 4, .use = OB_USE_LINEAR};
out:
    ob_free(plain);
    return s;
}

static ob_op *add_op(trial *t, ob_op_kind kind)
{
    ob_op *op = &t->ops[t->prog.n_ops++];
    *op = (ob_op){.kind = kind};
    for (int i = 0; i < OB_OP_MAX_IN; i++) op->in[i] = OB_NONE;
    for (int i = 0; i < OB_OP_MAX_OUT; i++) op->out[i] = OB_NONE;
    for (int i = 0; i < OB_OP_MAX_W; i++) op->w[i] = OB_NONE;
    return op;
}

static void add_linear(trial *t, ob_val x, ob_val res, int32_t w, ob_val y)
{
    ob_op *op = add_op(t, OB_OP_LINEAR);
    op->in[0] = x, op->in[1] = res, op->w[0] = w, op->out[0] = y;
    op->p.linear.n_mat = 1, op->p.linear.scale = 1;
}

static void compose(trial *t, bool layer)
{
    static const int32_t cols[N_VALS] = {COLS, EXPERTS, USED, USED, COLS, COLS, COLS};
    for (int v = 0; v < N_VALS; v++) t->vals[v] = (ob_value){.rows = OB_ROWS_TOK, .cols = cols[v], .name = "test", .output = v == Y};
    t->prog = (ob_program){.ops = t->ops, .vals = t->vals, .n_vals = layer ? N_VALS : SUM, .weights = t->weights,
                           .n_weights = layer ? 7 : 4, .logits = OB_NONE, .embeddings = OB_NONE};
    ob_op *op;
    for (int i = 0; i < (layer ? 1 : 2); i++) op = add_op(t, OB_OP_EMBED), op->out[0] = i, op->w[0] = i, op->p.embed.scale = 1;
    if (layer) {
        add_linear(t, X, X, 4, SUM);
        op = add_op(t, OB_OP_RMS_NORM);
        op->in[0] = SUM, op->w[0] = 5, op->out[0] = NORM, op->p.norm.eps = 1e-5f;
        add_linear(t, NORM, OB_NONE, 6, LOGITS);
    }
    op = add_op(t, OB_OP_MOE_ROUTE);
    op->in[0] = LOGITS, op->out[0] = IDS, op->out[1] = WEIGHTS;
    op->p.route = (ob_route_params){.gating = OB_GATING_SOFTMAX, .n_used = USED, .n_group = 1, .n_group_used = 1, .norm = true, .scale = 1};
    op = add_op(t, OB_OP_MOE_GLU);
    op->out[0] = Y;
    for (int k = 0; k < 4; k++) op->in[k] = k < 3 ? (int32_t[]){layer ? NORM : X, IDS, WEIGHTS}[k] : layer ? SUM : OB_NONE;
    for (int k = 0; k < 3; k++) op->w[k] = k == 1 ? 3 : 2;
    op->p.moe = (ob_moe_params){.n_used = USED, .act = OB_ACT_SILU};
}

static ob_step step_of(trial *t, int32_t rows)
{
    t->first[1] = rows;
    return (ob_step){.n_tok = rows, .n_seq = 1, .tok = t->tok, .pos = t->tok, .seq_first = t->first, .seq_past = t->past,
                     .page_table = t->page, .max_pages = 1, .out_rows = t->tok};
}

static ob_status reference(trial *t, ob_err *err)
{
    float ids[REF_ROWS * USED], weights[REF_ROWS * USED];
    float *vals[5] = {t->x, t->logits, ids, weights, t->want};
    OB_TRY(ob_program_plan(&t->prog, REF_ROWS, 0, 1, err));
    float *scratch = ob_reallocarray(NULL, ob_ref_scratch_floats(&t->prog, 1), sizeof *scratch);
    if (!scratch) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to test kernels");
    const ob_step step = step_of(t, REF_ROWS);
    const ob_ref_env env = {.prog = &t->prog, .step = &step, .vals = vals, .scratch = scratch};
    for (int o = 2; o < 4; o++) ob_ref_run(&env, o, 0, 0, ob_ref_n_items(&env, o));
    ob_free(scratch);
    return OB_OK;
}

/* y of `rows` rows by these kernels. */
static ob_status run(vk_dev *d, trial *t, int32_t rows, unsigned fast, float *y, ob_err *err)
{
    ob_status s = OB_OK;
    ob_dev_plan *plan = NULL;
    ob_fence fence;
    const ob_plan_bindings bind = {.weights = t->packed, .max_ctx = 1};
    const ob_step step = step_of(t, rows);
    OB_TRY(ob_program_plan(&t->prog, rows, 0, 1, err));
    OB_GOTO(vk_plan_make(d, &t->prog, &bind, fast, &plan, err));
    if (d->listing) goto out;
    OB_GOTO(vk_submit(&d->base, plan, &step, &fence, err));
    OB_GOTO(vk_wait(&d->base, fence, err));
    OB_GOTO(vk_read_output(&d->base, plan, Y, 0, rows, y, err));
out:
    vk_plan_free(&d->base, plan);
    return s;
}

/* Root mean square of the error over that of the wanted values; infinite when the kernel cannot run. */
static ob_status error_of(vk_dev *d, trial *t, int32_t rows, unsigned fast, double *out, ob_err *err)
{
    double e2 = 0, w2 = 0;
    *out = INFINITY;
    OB_TRY(run(d, t, rows, fast, t->got, err));
    *out = 0;
    if (d->listing) return OB_OK;
    for (int i = 0; i < rows * COLS; i++) {
        const double w = (double)t->want[i], e = (double)t->got[i] - w;
        e2 += e * e;
        w2 += w * w;
    }
    *out = isfinite(e2) ? sqrt(e2 / w2) : INFINITY;
    return OB_OK;
}

static void switch_off(vk_dev *d, const char *kernel, ob_type t, double error)
{
    char name[48];
    snprintf(name, sizeof name, "%s_%s", kernel, vk_type_name(t));
    vk_switch_off(d, name, error);
}

/* Two products after another: 8-bit activations give about 1 %, f16 0.07 %. */
static const struct candidate {
    const char *kernel;
    unsigned fast;
    int32_t rows[4]; /* one for each size of tile */
    double most;
} k_fast[] = {
    {"moe_up_i8", VK_FAST_INT8, {1, 3, FEW_ROWS}, 0.03},
    {"moe_gemm_up", VK_FAST_COOPMAT, {40, 60, 120, ROWS}, 0.005},
};

static ob_status run_tests(vk_dev *d, trial *t, ob_type type, ob_err *err)
{
    double error;
    const unsigned sub = d->fast & VK_FAST_SUBGROUP;
    for (int32_t rows = 1; rows <= REF_ROWS; rows += REF_ROWS - 1) {
        OB_TRY(error_of(d, t, rows, sub, &error, err));
        if (!(error <= 1e-4))
            return ob_err_set(err, OB_E_DEVICE, "vulkan: kernels moe_up, moe_down of %s are wrong on this driver (relative error %.2g)",
                              vk_type_name(type), error);
    }
    if (!(d->fast & d->tested[type] & (VK_FAST_INT8 | VK_FAST_COOPMAT))) return OB_OK;
    OB_TRY(run(d, t, d->fast & VK_FAST_COOPMAT ? ROWS : FEW_ROWS, sub, t->want, err));
    for (size_t i = 0; i < OB_COUNT(k_fast); i++) {
        const struct candidate *c = &k_fast[i];
        char name[48];
        snprintf(name, sizeof name, "%s_%s", c->kernel, vk_type_name(type));
        if (!(d->fast & c->fast) || !(d->tested[type] & c->fast) || !vk_kernel_exists(name)) continue;
        d->tested_experts[type] |= c->fast;
        double worst = 0;
        for (size_t k = 0; k < OB_COUNT(c->rows) && c->rows[k]; k++) {
            if (error_of(d, t, c->rows[k], c->fast | sub, &error, err) == OB_E_DEVICE_LOST) return OB_E_DEVICE_LOST;
            worst = error <= worst ? worst : error;
        }
        if (worst <= c->most) continue;
        switch_off(d, c->kernel, type, worst);
        d->tested_experts[type] &= ~c->fast;
    }
    return OB_OK;
}

/* Norm and router taken into the product before them, against each for itself: only the order of sums differs. */
static ob_status test_layer(vk_dev *d, trial *t, ob_type type, ob_err *err)
{
    static const int32_t rows[] = {1, 5};
    const unsigned apart = VK_FAST_SUBGROUP | VK_FAST_INT8, all = apart | VK_FAST_FUSED;
    char name[48];
    double error, worst = 0;
    snprintf(name, sizeof name, "matvec_i8_%s_router", vk_type_name(type));
    if ((d->fast & all) != all || (d->tested[type] & (VK_FAST_INT8 | VK_FAST_FUSED)) != (VK_FAST_INT8 | VK_FAST_FUSED) ||
        !(d->tested_experts[type] & VK_FAST_INT8) || !vk_kernel_exists(name))
        return OB_OK;
    compose(t, true);
    d->tested_experts[type] |= VK_FAST_FUSED;
    for (size_t i = 0; i < OB_COUNT(rows); i++) {
        OB_TRY(run(d, t, rows[i], apart, t->want, err));
        if (error_of(d, t, rows[i], all, &error, err) == OB_E_DEVICE_LOST) return OB_E_DEVICE_LOST;
        worst = error <= worst ? worst : error;
    }
    if (worst <= 0.01 && !vk_test_fails(name)) return OB_OK;
    vk_switch_off(d, name, worst);
    d->tested_experts[type] &= ~(unsigned)VK_FAST_FUSED;
    return OB_OK;
}

ob_status vk_test_experts(vk_dev *d, ob_type type, ob_err *err)
{
    if (type >= OB_COUNT(d->tested_experts) || (d->tested_experts[type] & (unsigned)TESTED)) return OB_OK;
    const uint64_t key = vk_hash(vk_hash(vk_verdict_key(d, "experts"), &type, sizeof type), &d->tested[type], sizeof(unsigned));
    const size_t n_disabled = strlen(d->disabled);
    if (!vk_test_fails_type(type) && vk_verdict_find(d, key, &d->tested_experts[type])) return OB_OK;
    d->tested_experts[type] |= (unsigned)TESTED;
    ob_status s = OB_OK;
    bool keeps;
    const bool listing = d->listing;
    const size_t n_pipes = d->n_pipes;
    d->listing |= !vk_tests_wanted(); /* then all kernels that there are pass */
    const vk_testing was = vk_testing_begin(d);
    trial *t = ob_calloc(1, sizeof *t);
    if (!t) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory to test kernels");
        goto out;
    }
    OB_GOTO(fill(t, type, err));
    compose(t, false);
    OB_GOTO(reference(t, err));
    for (int i = 0; i < 7; i++)
        if (i != 3) OB_GOTO(vk_weight_new(&d->base, &t->weights[i], &t->packed[i], &keeps, err));
    t->packed[3] = t->packed[2];
    OB_GOTO(run_tests(d, t, type, err));
    OB_GOTO(test_layer(d, t, type, err));
out:
    vk_testing_end(d, was);
    if (s != OB_OK) d->tested_experts[type] = 0;
    else if (strlen(d->disabled) == n_disabled) vk_verdict_add(d, key, d->tested_experts[type]);
    d->listing = listing;
    if (!vk_tests_wanted()) vk_kernels_forget(d, n_pipes);
    for (int i = 0; t && i < 7; i++)
        if (i != 3) vk_weight_free(&d->base, t->packed[i]);
    if (t) {
        ob_free(t->x);
        ob_free(t->logits);
        ob_free(t->want);
        ob_free(t->got);
        ob_free(t->w);
    }
    ob_free(t);
    return s;
}
