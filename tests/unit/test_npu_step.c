/* Whole steps of decoding on the software array against the same arithmetic op by op on the host, golden models. */
#include "ref_run.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "dev/npu/npu_gemv.h"
#include "dev/npu/npu_soft.h"
#include "dev/npu/npu_step.h"

enum { N_TOK = 9, STEP_PAGE = 4, MAX_WEIGHTS = 1024 };

/* ---- weights ---------------------------------------------------------------------------------- */

typedef struct packed { const ob_weight *w; ob_npu_bo *bo; } packed;

typedef struct world {
    ob_npu_soft *soft;
    ob_npu_dev *dev;
    ob_npu_kernel kernel;
    ob_file *file;
    ob_model *model;
    ob_program *prog;
    npz *z;
    const int32_t *tok;
    packed weights[MAX_WEIGHTS];
    int n_weights;
} world;

/* Groups of 32 as scale and minimum in bf16 and codes, into tiles. */
static void pack(world *u, const ob_weight *w)
{
    ob_err err;
    const int64_t k = w->ne[0], n = w->ne[1], k_pad = ob_npu_q4_pad_k(k);
    packed *p = &u->weights[u->n_weights++];
    assert_true(u->n_weights < MAX_WEIGHTS);
    p->w = w;
    if (ob_npu_bo_new(u->dev, OB_NPU_BO_SHARE, ob_npu_q4_bytes(k, n), &p->bo, &err) != OB_OK) fail_msg("%s", err.text);
    float *x = malloc((size_t)k * sizeof *x);
    for (int64_t j = 0; j < n; j++) {
        ob_type_get(w->type)->dequant((const uint8_t *)w->data + (size_t)j * ob_type_row_bytes(w->type, k), x, k);
        for (int64_t i = 0; i < k; i += 32) {
            float lo = x[i], hi = x[i];
            for (int g = 1; g < 32; g++) lo = fminf(lo, x[i + g]), hi = fmaxf(hi, x[i + g]);
            const uint16_t d = ob_f32_to_bf16((hi - lo) / 15), m = ob_f32_to_bf16(lo);
            uint8_t *tile = p->bo->host + ob_npu_q4_tile_at(k_pad, i, j), *at = tile + ob_npu_q4_scale_at(i, j);
            memcpy(at, &d, 2);
            memcpy(at + 2 * OB_NPU_Q4_SCALES, &m, 2);
            for (int g = 0; g < 32; g++) {
                const float s = ob_bf16_to_f32(d), c = s > 0 ? roundf((x[i + g] - ob_bf16_to_f32(m)) / s) : 0;
                const uint8_t code = (uint8_t)fmaxf(0, fminf(15, c));
                tile[ob_npu_q4_nibble_at(i + g, j)] |= (uint8_t)(j % 2 ? code << 4 : code);
            }
        }
    }
    free(x);
    ob_npu_bo_flush(p->bo, 0, p->bo->n_bytes);
}

static bool find(void *arg, const ob_weight *w, int64_t mat, ob_npu_tiles_at *out)
{
    (void)mat;
    const world *u = arg;
    for (int i = 0; i < u->n_weights; i++)
        if (u->weights[i].w->data == w->data) {
            *out = (ob_npu_tiles_at){u->weights[i].bo, 0};
            return true;
        }
    return false;
}

static void world_new(world *u, const char *model, ob_npu_soft_options opt)
{
    char path[512];
    ob_err err = {0};
    *u = (world){0};
    if (ob_npu_soft_new(&opt, &u->soft, &err) != OB_OK || ob_npu_dev_open(ob_npu_soft_os(u->soft), 0, &u->dev, &err) != OB_OK ||
        ob_npu_kernel_load(&u->kernel, u->dev, OB_NPU_DESIGN_STEP, &err) != OB_OK)
        fail_msg("%s", err.text);
    snprintf(path, sizeof path, "%s/golden/%s.gguf", OB_TEST_DATA, model);
    if (ob_file_open(path, 0, &u->file, &err) != OB_OK || ob_model_new(u->file, NULL, &u->model, &err) != OB_OK ||
        ob_model_program(u->model, &u->prog, &err) != OB_OK || ob_program_plan(u->prog, 4, 4, 1, &err) != OB_OK)
        fail_msg("%s: %s", model, err.text);
    snprintf(path, sizeof path, "%s/golden/%s.npz", OB_TEST_DATA, model);
    u->z = npz_open(path);
    u->tok = npz_need(u->z, "tokens", NPZ_I32)->data;
    for (int32_t i = 0; i < u->prog->n_ops; i++)
        for (int32_t m = 0; u->prog->ops[i].kind == OB_OP_LINEAR && m < u->prog->ops[i].p.linear.n_mat; m++) {
            const ob_weight *w = &u->prog->weights[u->prog->ops[i].w[m]];
            ob_npu_tiles_at at;
            if (w->ne[0] % 32 == 0 && !find(u, w, 0, &at)) pack(u, w);
        }
}

static void world_free(world *u)
{
    for (int i = 0; i < u->n_weights; i++) ob_npu_bo_free(u->weights[i].bo);
    ob_npu_kernel_unload(&u->kernel);
    assert_int_equal(u->dev->n_bos, 0);
    ob_npu_dev_close(u->dev);
    const ob_npu_soft_counts c = ob_npu_soft_counts_get(u->soft);
    assert_int_equal(c.n_bos + c.n_maps + c.n_ctxs + c.n_syncobjs + c.n_fds, 0);
    ob_npu_soft_free(u->soft);
    npz_close(u->z);
    ob_program_free(u->prog);
    ob_model_free(u->model);
    ob_file_close(u->file);
}

/* ---- caches and states, one set a side --------------------------------------------------------- */

typedef struct side { void *k[64], *v[64]; float *states[64]; ob_cache_view views[64]; float *vals[512], *work, *scratch; } side;

static void side_new(side *s, const ob_program *p, ob_type type)
{
    *s = (side){0};
    assert_true(p->n_caches <= 64 && p->n_states <= 64 && p->n_vals <= 512);
    for (int32_t c = 0; c < p->n_caches; c++) {
        const size_t rows = 16 * STEP_PAGE * (size_t)p->caches[c].n_head_kv;
        s->k[c] = calloc(rows, ob_type_row_bytes(type, p->caches[c].k_dim));
        s->v[c] = p->caches[c].v_dim ? calloc(rows, ob_type_row_bytes(type, p->caches[c].v_dim)) : NULL;
        s->views[c] = (ob_cache_view){.k = s->k[c], .v = s->v[c], .k_type = type, .v_type = type, .page_tok = STEP_PAGE};
    }
    for (int32_t i = 0; i < p->n_states; i++) s->states[i] = calloc((size_t)p->states[i].n_floats, sizeof(float));
    size_t n = 0;
    for (int32_t v = 0; v < p->n_vals; v++) n += 4 * (size_t)p->vals[v].cols;
    s->work = calloc(n, sizeof(float));
    n = 0;
    for (int32_t v = 0; v < p->n_vals; v++) s->vals[v] = s->work + n, n += 4 * (size_t)p->vals[v].cols;
    s->scratch = calloc(ob_ref_scratch_floats(p, MAX_TOK), sizeof(float));
}
static void side_free(side *s)
{
    for (int i = 0; i < 64; i++) free(s->k[i]), free(s->v[i]), free(s->states[i]);
    free(s->work);
    free(s->scratch);
}

/* A LINEAR with tiles as the array computes it, a row. */
static void host_linear(const world *u, side *s, const ob_op *op, int64_t row)
{
    const ob_program *p = u->prog;
    for (int32_t m = 0; m < op->p.linear.n_mat; m++) {
        const ob_weight *w = &p->weights[op->w[m]];
        ob_npu_tiles_at at = {0};
        assert_true(find((void *)u, w, 0, &at));
        uint16_t *x = malloc((size_t)ob_npu_q4_pad_k(w->ne[0]) * 2);
        float *y = malloc((size_t)w->ne[1] * 4), bias = 0;
        ob_npu_bf16_pack(x, s->vals[op->in[0]] + row * w->ne[0], w->ne[0]);
        ob_npu_mv_ref(x, w->ne[0], at.bo->host, 0, w->ne[1], y);
        for (int64_t i = 0; i < w->ne[1]; i++) {
            const int32_t b = op->w[4 + m];
            if (b != OB_NONE) ob_type_get(p->weights[b].type)->dequant((const uint8_t *)p->weights[b].data + 4 * i, &bias, 1);
            const float v = (y[i] + bias) * op->p.linear.scale;
            s->vals[op->out[m]][row * w->ne[1] + i] = (op->p.linear.n_mat == 1 && op->in[1] != OB_NONE ? s->vals[op->in[1]][row * w->ne[1] + i] : 0) + v;
        }
        free(x);
        free(y);
    }
}

static bool has_tiles(const world *u, const ob_op *op)
{
    ob_npu_tiles_at at;
    for (int32_t m = 0; m < op->p.linear.n_mat; m++)
        if (!find((void *)u, &u->prog->weights[op->w[m]], 0, &at)) return false;
    return true;
}

static void host_step(const world *u, side *s, const ob_step *st)
{
    const ob_ref_env e = {.prog = u->prog, .step = st, .vals = s->vals, .caches = s->views, .states = s->states, .scratch = s->scratch};
    for (int32_t i = 0; i < u->prog->n_ops; i++) {
        const ob_op *op = &u->prog->ops[i];
        if (op->kind == OB_OP_LINEAR && has_tiles(u, op)) {
            const int32_t rows = ob_value_rows(u->prog, op->out[0], st->n_tok, st->n_out, st->n_seq);
            for (int32_t r = 0; r < rows; r++) host_linear(u, s, op, r);
            continue;
        }
        for (int phase = 0; phase < ob_ref_n_phases(op->kind); phase++) ob_ref_run(&e, i, phase, 0, ob_ref_n_items(&e, i));
    }
}

/* ---- steps ------------------------------------------------------------------------------------ */

static const int32_t k_pages[16] = {3, 9, 1, 14, 0, 2, 4, 5, 6, 7, 8, 10, 11, 12, 13, 15};

static ob_step step_of(const world *u, int32_t past, int32_t n, int32_t pos[4], int32_t first[2], int32_t *past_at)
{
    static const int32_t slot = 0, rows[4] = {0, 1, 2, 3};
    for (int32_t i = 0; i < n; i++) pos[i] = past + i;
    first[0] = 0, first[1] = n;
    *past_at = past;
    return (ob_step){.n_tok = n, .n_seq = 1, .n_out = n, .tok = u->tok + past, .pos = pos, .seq_first = first, .seq_past = past_at,
                     .seq_slot = &slot, .page_table = k_pages, .max_pages = 16, .out_rows = rows};
}

static ob_status new_step(world *u, side *s, ob_type type, ob_npu_step **out, ob_err *err)
{
    const ob_npu_step_options opt = {.dev = u->dev, .kernel = &u->kernel, .prog = u->prog, .find = find, .arg = u, .cache_k = s->k, .cache_v = s->v, .k_type = type,
                                     .v_type = type, .page_tok = STEP_PAGE, .n_pages = 16, .max_ctx = 16 * STEP_PAGE, .states = s->states, .n_slots = 1};
    return ob_npu_step_new(&opt, out, err);
}

/* Largest distance between logits, of the largest logit. */
static double distance(const world *u, const float *a, const float *b, int32_t rows)
{
    const int64_t n = (int64_t)u->prog->vals[u->prog->logits].cols * rows;
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs((double)b[i]));
    assert_true(most > 0.1 && most < 1e4);
    return worst_of(a, b, n) / most;
}

/* Sums are f32 in another order only in attention; what it differs by is carried on and, at rounding to bf16, now and
 * then a step of 2^-8 of one of many terms: a hundredth of the logits' size is far below what a wrong op does. */
static const double k_tolerance = 0.01;

typedef struct row { const char *model; const char *host; int n_chains; } row;
static const row k_models[] = {
    {"llama", "embed", 1}, {"llama3rope", "embed", 1}, {"qwen2", "embed", 1}, {"qwen3", "embed", 1}, {"minicpm", "embed", 1},
    {"minicpm-longrope", "embed", 1}, {"gemma3", "embed", 1},
    {"qwen3moe", "embed, moe_route, moe_glu", 4}, {"qwen35moe", "embed, conv1d, gdn, moe_route, moe_glu, split", 0}, {"qwen35", NULL, 0}, {"glm47flash", NULL, 0},
};

static void test_models(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof k_models / sizeof *k_models; i++)
        for (int mode = 0; mode < 2; mode++) {
            const ob_type type = mode ? OB_F16 : OB_F32;
            world u;
            side host, array;
            ob_err err = {0};
            ob_npu_step *s;
            char names[200];
            world_new(&u, k_models[i].model, (ob_npu_soft_options){.driver_minor = 8, .iova = mode});
            side_new(&host, u.prog, type);
            side_new(&array, u.prog, type);
            if (new_step(&u, &array, type, &s, &err) != OB_OK) fail_msg("%s: %s", k_models[i].model, err.text);
            ob_npu_step_host_ops(s, names, sizeof names);
            double most = 0;
            for (int32_t t = 0; t < N_TOK; t++) {
                int32_t pos[4], first[2], past;
                const ob_step st = step_of(&u, t, 1, pos, first, &past);
                host_step(&u, &host, &st);
                if (ob_npu_step_run(s, &st, &err) != OB_OK) fail_msg("%s: %s", k_models[i].model, err.text);
                most = fmax(most, distance(&u, ob_npu_step_val(s, u.prog->logits), host.vals[u.prog->logits], 1));
            }
            const ob_npu_step_stats stats = ob_npu_step_stats_get(s);
            if (getenv("OB_GOLDEN_PRINT"))
                printf("  %-18s off by %.1e of the largest logit; %d ops on the array, %d on the host (%s), %d chains, %d commands\n", k_models[i].model,
                       most, stats.n_array_ops, stats.n_host_ops, names, stats.n_chains, stats.n_commands);
            if (!(most < k_tolerance)) fail_msg("%s: off by %g of the largest logit", k_models[i].model, most);
            if (k_models[i].host) assert_string_equal(names, k_models[i].host);
            if (k_models[i].n_chains) assert_int_equal(stats.n_chains, k_models[i].n_chains);
            assert_true(stats.n_commands <= 72 * stats.n_chains);
            ob_npu_step_free(s);
            side_free(&host);
            side_free(&array);
            world_free(&u);
        }
}

/* One model with both sides ready. */
typedef struct pair { world u; side host, array; ob_npu_step *s; } pair;

static void pair_new(pair *p, const char *model, const char *faults)
{
    ob_err err = {0};
    world_new(&p->u, model, (ob_npu_soft_options){.driver_minor = 8, .faults = faults});
    side_new(&p->host, p->u.prog, OB_F16);
    side_new(&p->array, p->u.prog, OB_F16);
    if (new_step(&p->u, &p->array, OB_F16, &p->s, &err) != OB_OK) fail_msg("%s: %s", model, err.text);
}
static void pair_free(pair *p)
{
    ob_npu_step_free(p->s);
    side_free(&p->host);
    side_free(&p->array);
    world_free(&p->u);
}
static double pair_run(pair *p, int32_t past, int32_t n, int32_t shift)
{
    int32_t pos[4], first[2], at;
    ob_err err = {0};
    ob_step st = step_of(&p->u, past, n, pos, first, &at);
    host_step(&p->u, &p->host, &st);
    for (int32_t i = 0; i < n; i++) pos[i] += shift;
    if (ob_npu_step_run(p->s, &st, &err) != OB_OK) fail_msg("%s", err.text);
    return distance(&p->u, ob_npu_step_val(p->s, p->u.prog->logits), p->host.vals[p->u.prog->logits], n);
}

/* Several tokens of a sequence in one step see each other. */
static void test_rows(void **state)
{
    pair p;
    (void)state;
    pair_new(&p, "qwen3", NULL);
    assert_true(pair_run(&p, 0, 3, 0) < k_tolerance);
    assert_true(pair_run(&p, 3, 4, 0) < k_tolerance); /* over the end of a page */
    assert_true(pair_run(&p, 7, 1, 0) < k_tolerance);
    assert_int_equal(ob_npu_step_stats_get(p.s).n_chains, 1);
    pair_free(&p);
}

/* Once the packets of all four slots are there, a step allocates nothing. */
static void test_no_allocation(void **state)
{
    pair p;
    int32_t pos[4], first[2], at;
    ob_err err = {0};
    (void)state;
    pair_new(&p, "qwen35moe", NULL);
    for (int32_t t = 0; t < 4; t++) (void)pair_run(&p, t, 1, 0);
    for (int32_t t = 4; t < N_TOK; t++) {
        const ob_step st = step_of(&p.u, t, 1, pos, first, &at);
        const uint64_t n = ob_alloc_count();
        assert_int_equal(ob_npu_step_run(p.s, &st, &err), OB_OK);
        assert_int_equal(ob_alloc_count(), n);
    }
    pair_free(&p);
}

/* The comparison can fail: another position, and another page's contents, are seen. */
static void test_it_can_fail(void **state)
{
    pair p;
    (void)state;
    pair_new(&p, "llama", NULL);
    assert_true(pair_run(&p, 0, 4, 0) < k_tolerance);
    assert_true(pair_run(&p, 4, 1, 3) > 2 * k_tolerance);
    for (int32_t c = 0; c < p.u.prog->n_caches; c++) memset(p.array.v[c], 0, 64); /* some other page: nothing happens */
    assert_true(pair_run(&p, 5, 1, 0) > 0); /* the rotated key of before is still there */
    pair_free(&p);
    pair_new(&p, "llama", NULL);
    assert_true(pair_run(&p, 0, 4, 0) < k_tolerance);
    const ob_cache_spec *c = &p.u.prog->caches[0];
    const size_t page = (size_t)STEP_PAGE * (size_t)c->n_head_kv * ob_type_row_bytes(OB_F16, c->v_dim);
    memset((char *)p.array.v[0] + (size_t)k_pages[0] * page, 0, page);
    assert_true(pair_run(&p, 4, 1, 0) > 2 * k_tolerance);
    pair_free(&p);
}

/* A chain that fails in the middle: an error, states as they were; the same step then runs elsewhere, and the next here. */
static void test_failure(void **state)
{
    static const char *const faults[] = {"end:4:1:ERROR", "end:4:2:TIMEOUT", "lost:4", "ioctl:EXEC_CMD:4:EIO"};
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        pair p;
        int32_t pos[4], first[2], at;
        ob_err err = {0};
        pair_new(&p, "llama", faults[i]);
        assert_true(pair_run(&p, 0, 1, 0) < k_tolerance); /* submissions 1: init, 2: this */
        assert_true(pair_run(&p, 1, 1, 0) < k_tolerance);
        ob_step st = step_of(&p.u, 2, 1, pos, first, &at);
        const ob_status s = ob_npu_step_run(p.s, &st, &err);
        assert_true(s == OB_E_DEVICE || s == OB_E_TIMEOUT || s == OB_E_DEVICE_LOST);
        assert_true(pair_run(&p, 2, 1, 0) < k_tolerance); /* begun again, on a new context */
        pair_free(&p);
    }
    for (int n = 3; n < 9; n++) { /* whichever chain of a hybrid model fails, its states are those from before */
        pair p;
        int32_t pos[4], first[2], at;
        ob_err err = {0};
        char script[40];
        snprintf(script, sizeof script, "end:%d:0:ERROR", 10 + n);
        pair_new(&p, "qwen35", script);
        assert_true(pair_run(&p, 0, 1, 0) < k_tolerance);
        ob_step st = step_of(&p.u, 1, 1, pos, first, &at);
        float *before = malloc((size_t)p.u.prog->states[0].n_floats * sizeof *before);
        memcpy(before, p.array.states[0], (size_t)p.u.prog->states[0].n_floats * sizeof *before);
        if (ob_npu_step_run(p.s, &st, &err) != OB_OK) {
            assert_memory_equal(before, p.array.states[0], (size_t)p.u.prog->states[0].n_floats * sizeof *before);
            assert_true(pair_run(&p, 1, 1, 0) < k_tolerance);
        }
        free(before);
        pair_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_models), cmocka_unit_test(test_rows), cmocka_unit_test(test_no_allocation), cmocka_unit_test(test_it_can_fail),
                                       cmocka_unit_test(test_failure)};
    ob_log_set_level(OB_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
