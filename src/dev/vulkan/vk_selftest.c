/* Every op of a model against ops/ref.c before the model is loaded: with the model's own shapes and small weights,
 * as a step of many rows and as one of a single row after it. A driver that compiles a kernel wrongly costs a
 * warning and some speed, not the answer. Products of matrices have their own test (vk_test.c).
 *
 * A wrong kernel is first sought among those that have an alternative (fused ones, rows in registers, forms of
 * activations); when the plain ones are wrong too, the op is refused by name, and the engine runs it elsewhere.
 *
 *   OB_VK_SELFTEST=0                 no tests, for programs that compare everything themselves
 *   OB_VK_TEST_FAIL=name[,name...]   these kernels or ops count as wrong, for tests
 */
#include "dev/vulkan/vk_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/math.h"
#include "ops/ref.h"

enum {
    MANY = 37, /* rows: more than any kernel of few rows takes, and no multiple of a tile */
    FEW = 5,
    MAX_T = 24, /* values, weights of a trial */
    MAX_T_OPS = 6,
    PAGE_TOK = 16,
    N_PAGES = 4,
    TABLE_ROWS = 48, /* of lookup tables that are cut down */
    EXPERTS = 8, EXPERT_DIM = 256,
    READER_COLS = 32 /* columns of the product that reads what is tested */
};

/* --- names ------------------------------------------------------------------------------------- */

static bool in_list(const char *list, const char *name)
{
    const size_t len = strlen(name);
    for (const char *p = list; p && *p; p += strcspn(p, ", "), p += strspn(p, ", "))
        if (strcspn(p, ", ") == len && strncmp(p, name, len) == 0) return true;
    return false;
}

bool vk_tests_wanted(void)
{
    const char *wanted = getenv("OB_VK_SELFTEST");
    return !wanted || strcmp(wanted, "0") != 0;
}

bool vk_test_fails(const char *name)
{
    return in_list(getenv("OB_VK_TEST_FAIL"), name);
}

bool vk_test_fails_type(ob_type t)
{
    const char *list = getenv("OB_VK_TEST_FAIL");
    return list && strstr(list, vk_type_name(t));
}

bool vk_kernel_off(const vk_dev *d, const char *name)
{
    return in_list(d->disabled, name);
}

void vk_switch_off(vk_dev *d, const char *name, double error)
{
    if (d->listing || vk_kernel_off(d, name)) return;
    ob_log_warn("vulkan: kernel %s is wrong on this driver (relative error %.2g) and was switched off", name, error);
    const size_t n = strlen(d->disabled);
    snprintf(d->disabled + n, sizeof d->disabled - n, "%s%s", n ? ", " : "", name);
    vk_disabled_write(d);
}

/* --- the beginning and end of a test ------------------------------------------------------------ */

vk_testing vk_testing_begin(vk_dev *d)
{
    const vk_testing was = {.inside = d->testing, .t0 = ob_now_ms()};
    d->testing = true;
    return was;
}

void vk_testing_end(vk_dev *d, vk_testing was)
{
    d->testing = was.inside;
    d->n_prof = 0; /* tests are no work of a model */
    if (was.inside) return;
    d->load.n_tests++;
    d->load.tests_ms += ob_now_ms() - was.t0;
}

/* --- a trial: one op, or what is taken together with it ---------------------------------------- */

typedef struct trial {
    vk_dev *d;
    uint32_t seed;
    ob_program prog;
    ob_op ops[MAX_T_OPS];
    ob_value vals[MAX_T];
    ob_weight weights[MAX_T];
    ob_cache_spec caches[OB_OP_MAX_CACHES];
    ob_state_spec states[OB_OP_MAX_STATES];
    void *owned[MAX_T]; /* data of weights made here */
    ob_dev_weight *packed[MAX_T];
    ob_dev_buf *k[OB_OP_MAX_CACHES], *v[OB_OP_MAX_CACHES], *st[OB_OP_MAX_STATES];
    ob_cache_view views[OB_OP_MAX_CACHES];
    float *want[MAX_T], *ref_states[OB_OP_MAX_STATES];
    float *first_in[MAX_T]; /* inputs as given: an op in place writes over its own */
    int32_t pos_h[MANY], pos_w[MANY], block_first[MANY], block_end[MANY]; /* as steps with pictures have them */
    int32_t tok[MANY], pos[MANY], type[MANY], out[MANY], first[2], past[1], slot[1], page[N_PAGES];
    int32_t reader; /* op of the product that reads the result, or -1 */
} trial;

static float noise(trial *t)
{
    float s = 0;
    for (int i = 0; i < 3; i++) {
        t->seed = t->seed * 1664525u + 1013904223u;
        s += (float)(t->seed >> 8) / 8388608.0f - 1.0f;
    }
    return s;
}

static ob_status no_memory(ob_err *err)
{
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory to test kernels");
}

/* A weight of random numbers in this type. */
static ob_status make_weight(trial *t, int32_t w, ob_type type, const int64_t ne[3], ob_err *err)
{
    const int64_t rows = ne[1] * ne[2];
    const size_t row = ob_type_row_bytes(type, ne[0]);
    ob_status s = OB_OK;
    ob_weight *to = &t->weights[w];
    float *plain = ob_reallocarray(NULL, (size_t)(rows * ne[0]), sizeof *plain);
    t->owned[w] = row ? ob_malloc(row * (size_t)rows) : NULL;
    if (!plain || !t->owned[w]) {
        s = no_memory(err);
        goto out;
    }
    const float scale = 1 / sqrtf((float)ne[0]);
    for (int64_t i = 0; i < rows * ne[0]; i++) plain[i] = noise(t) * scale;
    if (type == OB_F32) memcpy(t->owned[w], plain, row * (size_t)rows);
    else OB_GOTO(ob_quantize(type, plain, t->owned[w], rows, ne[0], NULL, err));
    to->type = type;
    memcpy(to->ne, ne, 3 * sizeof *ne);
    to->ne[3] = 1;
    to->data = t->owned[w];
    to->n_bytes = row * (size_t)rows;
out:
    ob_free(plain);
    return s;
}

static int32_t add_value(trial *t, const ob_value *like)
{
    t->vals[t->prog.n_vals] = *like;
    t->vals[t->prog.n_vals].input = t->vals[t->prog.n_vals].output = false;
    return t->prog.n_vals++;
}

/* Ops i - before .. i of the program, their values, weights, caches and states by numbers of the trial. */
static bool take_ops(trial *t, const ob_program *p, int32_t i, int32_t before)
{
    int32_t val_of[MAX_T], weight_of[MAX_T], cache_of[OB_OP_MAX_CACHES], state_of[OB_OP_MAX_STATES];
    int32_t *refs[OB_MAX(OB_OP_MAX_CACHES, OB_OP_MAX_STATES)];
    bool written[MAX_T] = {false};
    for (int32_t k = i - before; k <= i; k++) {
        ob_op *op = &t->ops[t->prog.n_ops++];
        *op = p->ops[k];
        op->layer = 0;
        for (int m = 0; m < OB_OP_MAX_IN + OB_OP_MAX_OUT; m++) {
            int32_t *at = m < OB_OP_MAX_IN ? &op->in[m] : &op->out[m - OB_OP_MAX_IN], n = 0;
            if (*at == OB_NONE) continue;
            while (n < t->prog.n_vals && val_of[n] != *at) n++;
            if (n == MAX_T - 2) return false;
            if (n == t->prog.n_vals) {
                val_of[n] = *at;
                add_value(t, &p->vals[*at]);
            }
            if (m < OB_OP_MAX_IN) t->vals[n].input |= !written[n];
            else written[n] = true;
            *at = n;
        }
        for (int m = 0; m < OB_OP_MAX_W; m++) {
            if (op->w[m] == OB_NONE) continue;
            int32_t n = 0;
            while (n < t->prog.n_weights && weight_of[n] != op->w[m]) n++;
            if (n == MAX_T - 1) return false;
            if (n == t->prog.n_weights) {
                weight_of[t->prog.n_weights++] = op->w[m];
                t->weights[n] = p->weights[op->w[m]];
            }
            op->w[m] = n;
        }
        for (int n = ob_op_cache_refs(op, refs), m = 0; m < n; m++) {
            if (t->prog.n_caches == OB_OP_MAX_CACHES) return false;
            cache_of[t->prog.n_caches] = *refs[m];
            t->caches[t->prog.n_caches] = p->caches[*refs[m]];
            *refs[m] = t->prog.n_caches++;
        }
        for (int n = ob_op_state_refs(op, refs), m = 0; m < n; m++) {
            if (t->prog.n_states == OB_OP_MAX_STATES) return false;
            state_of[t->prog.n_states] = *refs[m];
            t->states[t->prog.n_states] = p->states[*refs[m]];
            *refs[m] = t->prog.n_states++;
        }
    }
    (void)cache_of;
    (void)state_of;
    for (int32_t n = 0; n < t->prog.n_vals; n++) t->vals[n].output = false;
    for (int k = 0; k < OB_OP_MAX_OUT; k++)
        if (t->ops[t->prog.n_ops - 1].out[k] != OB_NONE) t->vals[t->ops[t->prog.n_ops - 1].out[k]].output = true;
    return true;
}

/* Kernels of an op for which there is a plain way, best first. "form": results also as int8 or f16. */
static const char *const *optional(ob_op_kind kind)
{
    static const char *const norm[] = {"form", "norm_rows", NULL}, *const form[] = {"form", NULL},
                      *const attn[] = {"form", "attn_one", "heads", NULL}, *const route[] = {"moe_router", NULL},
                      *const none[] = {NULL};
    switch (kind) {
    case OB_OP_RMS_NORM: return norm;
    case OB_OP_LAYER_NORM:
    case OB_OP_GLU:
    case OB_OP_ACT: return form;
    case OB_OP_ATTENTION: return attn;
    case OB_OP_MOE_ROUTE: return route;
    default: return none;
    }
}

static bool has_rotated(const ob_program *p)
{
    for (int32_t i = 0; i < p->n_weights; i++)
        if (p->weights[i].hadamard) return true;
    return false;
}

/* A type of weights that the program has anyway: every other one would need kernels, and tests, of its own. */
static ob_type reader_type(const ob_program *p, int32_t cols)
{
    if (has_rotated(p)) return OB_Q4_0;
    for (int32_t i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind != OB_OP_LINEAR) continue;
        const ob_type t = p->weights[p->ops[i].w[0]].type;
        if (t != OB_F32 && ob_type_row_bytes(t, cols) && ob_type_get(t)->quant && *vk_type_name(t) != '?') return t;
    }
    return OB_Q8_0;
}

/* A product after the op, so that the forms in which it hands on its result are tested too; with a rotated matrix where the
 * model has such. */
static ob_status add_reader(trial *t, const ob_program *p, ob_err *err)
{
    const ob_op *last = &t->ops[t->prog.n_ops - 1];
    const ob_value *x = &t->vals[last->out[0]];
    t->reader = -1;
    if (!optional(last->kind)[0] || last->kind == OB_OP_MOE_ROUTE) return OB_OK;
    if (x->cols % 32 || x->cols > 65536) return OB_OK;
    const int32_t w = t->prog.n_weights++, in = last->out[0];
    t->weights[w] = (ob_weight){.name = "reader", .use = OB_USE_LINEAR, .hadamard = has_rotated(p)};
    OB_TRY(make_weight(t, w, reader_type(p, x->cols), (int64_t[3]){x->cols, READER_COLS, 1}, err));
    ob_op *op = &t->ops[t->reader = t->prog.n_ops++];
    *op = (ob_op){.kind = OB_OP_LINEAR, .p.linear = {.n_mat = 1, .scale = 1}};
    for (int i = 0; i < OB_OP_MAX_IN; i++) op->in[i] = OB_NONE;
    for (int i = 0; i < OB_OP_MAX_OUT; i++) op->out[i] = OB_NONE;
    for (int i = 0; i < OB_OP_MAX_W; i++) op->w[i] = OB_NONE;
    op->in[0] = in;
    op->w[0] = w;
    op->out[0] = add_value(t, &(ob_value){.rows = x->rows, .cols = READER_COLS, .name = "read"});
    t->vals[op->out[0]].output = true;
    return OB_OK;
}

/* Tables and experts are as large as a model; small ones of the same type have the same kernels. */
static ob_status shrink(trial *t, ob_err *err)
{
    ob_op *op = &t->ops[t->prog.n_ops - 1];
    if ((op->kind == OB_OP_EMBED && op->w[0] != OB_NONE) || op->kind == OB_OP_ADD_ROW) {
        const ob_weight *w = &t->weights[op->w[0]];
        return make_weight(t, op->w[0], w->type, (int64_t[3]){w->ne[0], TABLE_ROWS, 1}, err);
    }
    if (op->kind != OB_OP_MOE_GLU) return OB_OK;
    const bool merged = op->w[1] == OB_NONE;
    op->p.moe.n_used = OB_MIN(op->p.moe.n_used, EXPERTS);
    for (int k = 0; k < 3; k++) {
        if (op->w[k] == OB_NONE) continue;
        const int64_t n = merged && k == 0 ? 2 * EXPERT_DIM : EXPERT_DIM;
        OB_TRY(make_weight(t, op->w[k], t->weights[op->w[k]].type, (int64_t[3]){EXPERT_DIM, n, EXPERTS}, err));
    }
    t->vals[op->in[0]].cols = t->vals[op->out[0]].cols = EXPERT_DIM;
    if (op->in[3] != OB_NONE) t->vals[op->in[3]].cols = EXPERT_DIM;
    t->vals[op->in[1]].cols = t->vals[op->in[2]].cols = op->p.moe.n_used;
    return OB_OK;
}

/* --- memory ------------------------------------------------------------------------------------ */

static ob_status make_memory(trial *t, ob_err *err)
{
    ob_dev *dev = &t->d->base;
    bool keeps;
    for (int32_t i = 0; i < t->prog.n_weights; i++)
        OB_TRY(vk_weight_new(dev, &t->weights[i], &t->packed[i], &keeps, err));
    for (int32_t i = 0; i < t->prog.n_caches; i++) {
        const uint64_t rows = (uint64_t)N_PAGES * PAGE_TOK * (uint64_t)t->caches[i].n_head_kv;
        const uint64_t kb = rows * (uint64_t)t->caches[i].k_dim * 2, vb = rows * (uint64_t)t->caches[i].v_dim * 2;
        OB_TRY(dev->api->buffer_new(dev, kb, OB_BUF_ZERO, &t->k[i], err));
        if (vb) OB_TRY(dev->api->buffer_new(dev, vb, OB_BUF_ZERO, &t->v[i], err));
        t->views[i] = (ob_cache_view){.k = ob_calloc(1, (size_t)kb), .v = vb ? ob_calloc(1, (size_t)vb) : NULL,
                                      .k_type = OB_F16, .v_type = OB_F16, .page_tok = PAGE_TOK};
        if (!t->views[i].k || (vb && !t->views[i].v)) return no_memory(err);
    }
    for (int32_t i = 0; i < t->prog.n_states; i++) {
        const uint64_t n = (uint64_t)t->states[i].n_floats * 4;
        OB_TRY(dev->api->buffer_new(dev, n, OB_BUF_ZERO, &t->st[i], err));
        if (!(t->ref_states[i] = ob_calloc(1, (size_t)n))) return no_memory(err);
    }
    for (int32_t v = 0; v < t->prog.n_vals; v++) {
        const size_t n = (size_t)MANY * (size_t)t->vals[v].cols;
        t->want[v] = ob_calloc(n, sizeof(float));
        t->first_in[v] = ob_calloc(n, sizeof(float));
        if (!t->want[v] || !t->first_in[v]) return no_memory(err);
    }
    return OB_OK;
}

static void trial_free(trial *t)
{
    ob_dev *dev = &t->d->base;
    for (int i = 0; i < MAX_T; i++) {
        vk_weight_free(dev, t->packed[i]);
        ob_free(t->owned[i]);
        ob_free(t->want[i]);
        ob_free(t->first_in[i]);
    }
    for (int i = 0; i < OB_OP_MAX_CACHES; i++) {
        dev->api->buffer_free(dev, t->k[i]);
        dev->api->buffer_free(dev, t->v[i]);
        ob_free(t->views[i].k);
        ob_free(t->views[i].v);
    }
    for (int i = 0; i < OB_OP_MAX_STATES; i++) {
        dev->api->buffer_free(dev, t->st[i]);
        ob_free(t->ref_states[i]);
    }
    ob_free(t);
}

/* --- running ----------------------------------------------------------------------------------- */

static int32_t rows_in(const trial *t, ob_val v, int32_t n_tok)
{
    return ob_value_rows(&t->prog, v, n_tok, n_tok, 1);
}

/* Inputs of the step: numbers, but ids where a mixture wants them. */
static void fill_inputs(trial *t, int32_t n_tok)
{
    const ob_op *op = &t->ops[0];
    for (ob_val v = 0; v < t->prog.n_vals; v++) {
        if (!t->vals[v].input) continue;
        const size_t n = (size_t)rows_in(t, v, n_tok) * (size_t)t->vals[v].cols;
        for (size_t i = 0; i < n; i++) t->first_in[v][i] = noise(t);
        if (op->kind == OB_OP_MOE_GLU && v == op->in[1])
            for (size_t i = 0; i < n; i++) t->first_in[v][i] = (float)((i * 5 + i / 7) % EXPERTS);
        memcpy(t->want[v], t->first_in[v], n * sizeof(float));
    }
}

/* Every other id a row of vectors, or all of them without a table; they lie where inputs would. */
static void make_vectors(trial *t, ob_step *st)
{
    const ob_op *op = &t->ops[0];
    float *vec = t->first_in[op->out[0]];
    for (int32_t i = 0; i < st->n_tok * t->vals[op->out[0]].cols; i++) vec[i] = noise(t);
    for (int32_t i = 0; i < st->n_tok; i++)
        if (op->w[0] == OB_NONE || i % 2) t->tok[i] = i - st->n_tok;
    st->vec = vec;
    st->n_vec = st->n_tok;
}

static ob_step step_of(trial *t, int32_t n_tok, int32_t past)
{
    const ob_op *op = &t->ops[0];
    for (int32_t i = 0; i < n_tok; i++) {
        t->tok[i] = (past + 7 * i) % TABLE_ROWS;
        t->pos[i] = past + i;
        t->out[i] = op->kind == OB_OP_MERGE ? OB_MIN(i, n_tok - op->p.merge.n) : i;
        t->pos_h[i] = past + 3 * i % 11;
        t->pos_w[i] = past + i % 7;
        t->block_first[i] = past + i / 5 * 5;
        t->block_end[i] = OB_MIN(t->block_first[i] + 5, past + n_tok);
    }
    for (int32_t i = 0; i < N_PAGES; i++) t->page[i] = N_PAGES - 1 - i;
    t->first[1] = n_tok;
    t->past[0] = past;
    ob_step st = {.n_tok = n_tok, .n_seq = 1, .n_out = n_tok, .tok = t->tok, .pos = t->pos, .type = t->type,
                  .seq_first = t->first, .seq_past = t->past, .seq_slot = t->slot, .page_table = t->page,
                  .max_pages = N_PAGES, .out_rows = t->out, .pos_h = t->pos_h, .pos_w = t->pos_w,
                  .block_first = t->block_first, .block_end = t->block_end};
    if (op->kind == OB_OP_EMBED && op->p.embed.vectors) make_vectors(t, &st);
    return st;
}

static ob_status run_reference(trial *t, const ob_step *step, ob_err *err)
{
    float *scratch = ob_calloc(ob_ref_scratch_floats(&t->prog, N_PAGES * PAGE_TOK) + 1, sizeof *scratch);
    if (!scratch) return no_memory(err);
    const ob_ref_env env = {.prog = &t->prog, .step = step, .vals = t->want, .caches = t->views, .states = t->ref_states,
                            .scratch = scratch};
    for (int32_t i = 0; i < t->prog.n_ops; i++)
        for (int ph = 0; ph < ob_ref_n_phases(t->ops[i].kind); ph++) ob_ref_run(&env, i, ph, 0, ob_ref_n_items(&env, i));
    ob_free(scratch);
    return OB_OK;
}

/* Root mean square of the error over that of the wanted values. */
static ob_status compare(trial *t, ob_dev_plan *plan, ob_val v, int32_t n_tok, double *out, ob_err *err)
{
    const size_t rows = (size_t)rows_in(t, v, n_tok), n = rows * (size_t)t->vals[v].cols;
    double e2 = 0, w2 = 0;
    float *got = ob_calloc(n + 1, sizeof *got);
    if (!got) return no_memory(err);
    const ob_status s = vk_read_output(&t->d->base, plan, v, 0, (int32_t)rows, got, err);
    for (size_t i = 0; i < n; i++) {
        const double e = (double)got[i] - (double)t->want[v][i];
        if (isinf(got[i]) && got[i] == t->want[v][i]) continue; /* TOP_K of a short row */
        e2 += e * e;
        w2 += (double)t->want[v][i] * (double)t->want[v][i];
    }
    ob_free(got);
    *out = !isfinite(e2) ? INFINITY : e2 == 0 ? 0 : sqrt(e2 / OB_MAX(w2, 1e-30));
    return s;
}

typedef struct errors {
    double own, read; /* of the op's results; of the product behind it */
} errors;

static ob_status run_rows(trial *t, int32_t n_tok, int32_t past, errors *e, ob_err *err)
{
    ob_status s = OB_OK;
    vk_dev *d = t->d;
    ob_dev_plan *plan = NULL;
    ob_fence fence;
    const ob_plan_bindings bind = {.weights = t->packed, .cache_k = t->k, .cache_v = t->v, .k_type = OB_F16, .v_type = OB_F16,
                                   .page_tok = PAGE_TOK, .n_pages = N_PAGES, .max_ctx = N_PAGES * PAGE_TOK,
                                   .states = t->st, .n_slots = 1};
    if (t->ops[0].kind == OB_OP_MERGE && n_tok < t->ops[0].p.merge.n) return OB_OK; /* nothing to merge */
    OB_GOTO(ob_program_plan(&t->prog, n_tok, n_tok, 1, err));
    OB_GOTO(vk_plan_make(d, &t->prog, &bind, d->fast, &plan, err));
    if (d->listing) goto out;
    const ob_step step = step_of(t, n_tok, past);
    fill_inputs(t, n_tok);
    OB_GOTO(run_reference(t, &step, err));
    for (ob_val v = 0; v < t->prog.n_vals; v++)
        if (t->vals[v].input)
            OB_GOTO(vk_write_input(&d->base, plan, v, t->first_in[v], rows_in(t, v, n_tok), err));
    OB_GOTO(vk_submit(&d->base, plan, &step, &fence, err));
    OB_GOTO(vk_wait(&d->base, fence, err));
    for (ob_val v = 0; v < t->prog.n_vals; v++) {
        double x = INFINITY;
        if (!t->vals[v].output) continue;
        OB_GOTO(compare(t, plan, v, n_tok, &x, err));
        double *at = t->reader >= 0 && v == t->ops[t->reader].out[0] ? &e->read : &e->own;
        *at = x <= *at ? *at : x;
    }
out:
    vk_plan_free(&d->base, plan);
    return s;
}

/* Ops before op i that one kernel may do with it: before an attention ropes, and norms of heads before them;
 * before a choice of experts the router, and its norm. */
static int32_t fused_before(const ob_program *p, int32_t i)
{
    if (p->ops[i].kind == OB_OP_MOE_ROUTE) {
        const ob_op *router = i > 0 ? &p->ops[i - 1] : NULL;
        if (!router || router->kind != OB_OP_LINEAR || router->out[0] != p->ops[i].in[0] ||
            p->weights[router->w[0]].type != OB_F32)
            return 0; /* other types round the logits, and a choice is not nearly right */
        return i >= 2 && p->ops[i - 2].kind == OB_OP_RMS_NORM && p->ops[i - 2].out[0] == router->in[0] ? 2 : 1;
    }
    if (p->ops[i].kind != OB_OP_ATTENTION || i < 2 || p->ops[i - 1].kind != OB_OP_ROPE || p->ops[i - 2].kind != OB_OP_ROPE)
        return 0;
    return i >= 4 && p->ops[i - 3].kind == OB_OP_RMS_NORM && p->ops[i - 4].kind == OB_OP_RMS_NORM &&
                   p->ops[i - 3].p.norm.group == p->ops[i].p.attn.k_dim
               ? 4
               : 2;
}

static ob_status try_op(vk_dev *d, const ob_program *p, int32_t i, errors *e, ob_err *err)
{
    ob_status s = OB_OK;
    trial *t = ob_calloc(1, sizeof *t);
    if (!t) return no_memory(err);
    *e = (errors){0, 0};
    t->d = d;
    t->seed = 4711;
    t->reader = -1;
    t->prog = (ob_program){.ops = t->ops, .vals = t->vals, .weights = t->weights, .caches = t->caches,
                           .states = t->states, .logits = OB_NONE, .embeddings = OB_NONE, .top = OB_NONE};
    if (!take_ops(t, p, i, fused_before(p, i))) goto out; /* too large for a trial: nothing is known of it */
    s = shrink(t, err);
    if (s == OB_E_UNSUPPORTED) s = OB_OK, t->prog.n_ops = 0; /* nothing writes weights of this type */
    if (s != OB_OK || !t->prog.n_ops) goto out;
    for (int32_t w = 0; w < t->prog.n_weights; w++)
        if (!t->weights[w].data) goto out; /* a program without its file */
    OB_GOTO(add_reader(t, p, err));
    OB_GOTO(make_memory(t, err));
    const int32_t rows = p->ops[i].kind == OB_OP_MOE_ROUTE ? FEW : MANY; /* few: products in f32 */
    OB_GOTO(run_rows(t, rows, 0, e, err));
    OB_GOTO(run_rows(t, 1, rows, e, err));
out:
    trial_free(t);
    return s;
}

/* --- verdicts ---------------------------------------------------------------------------------- */

/* What an op's result may be off: sums in another order, caches and activations in f16, 8-bit activations of
 * mixtures and of the product that reads the result. */
static double allowed(const vk_dev *d, ob_op_kind kind)
{
    switch (kind) {
    case OB_OP_MOE_GLU: return d->exact ? 1e-4 : 0.04;
    case OB_OP_ATTENTION:
    case OB_OP_CSA: return d->exact ? 1e-3 : 5e-3;
    case OB_OP_GDN:
    case OB_OP_CCA: return 1e-3;
    default: return 1e-4;
    }
}

/* What was found wrong by injection. `off`: what is switched off by now. */
static void inject(const vk_dev *d, const ob_op *op, errors *e)
{
    const char *const *names = optional(op->kind);
    if (vk_test_fails(ob_op_name(op->kind))) e->own = INFINITY;
    for (; *names; names++)
        if (vk_test_fails(*names) && !vk_kernel_off(d, *names)) *(strcmp(*names, "form") ? &e->own : &e->read) = INFINITY;
}

static ob_status judge(vk_dev *d, const ob_program *p, int32_t i, bool *right, ob_err *err)
{
    const ob_op *op = &p->ops[i];
    const double read_most = d->exact ? 1e-3 : 0.03;
    errors e;
    *right = true;
    for (const char *const *next = optional(op->kind);; next++) {
        const ob_status s = try_op(d, p, i, &e, err);
        if (s == OB_E_DEVICE_LOST || s == OB_E_NO_MEMORY || d->listing) return s;
        if (s != OB_OK) e.own = INFINITY; /* a pipeline that the driver refuses is no better than a wrong one */
        inject(d, op, &e);
        ob_log_debug("vulkan: op %s of layer %d is off by %.1e, its product by %.1e", ob_op_name(op->kind), op->layer, e.own,
                     e.read);
        if (e.own <= allowed(d, op->kind) && e.read <= read_most) return OB_OK;
        while (*next && vk_kernel_off(d, *next)) next++;
        if (!*next) break;
        /* Right results that are read wrongly: their forms. Wrong ones: anything but those. */
        if (strcmp(*next, "form") == 0 && !(e.own <= allowed(d, op->kind)) && next[1]) next++;
        vk_switch_off(d, *next, e.own <= allowed(d, op->kind) ? e.read : e.own);
    }
    vk_switch_off(d, ob_op_name(op->kind), e.own);
    *right = false;
    return OB_OK;
}

/* A test that is to fail by injection must run, whatever was found earlier. */
static bool is_injected(const ob_op *op)
{
    bool found = vk_test_fails(ob_op_name(op->kind));
    for (const char *const *names = optional(op->kind); *names; names++) found |= vk_test_fails(*names);
    return found;
}

/* --- what was tested before -------------------------------------------------------------------- */

static uint64_t signature(const vk_dev *d, const ob_program *p, int32_t i)
{
    uint64_t h = vk_verdict_key(d, "op");
    h = vk_hash(h, &(bool){has_rotated(p)}, sizeof(bool));
    for (int32_t k = i - fused_before(p, i); k <= i; k++) {
        const ob_op *op = &p->ops[k];
        ob_op same = *op; /* which layer's cache it is does not matter */
        int32_t *refs[OB_MAX(OB_OP_MAX_CACHES, OB_OP_MAX_STATES)];
        for (int n = ob_op_cache_refs(&same, refs), m = 0; m < n; m++) *refs[m] = 0;
        for (int n = ob_op_state_refs(&same, refs), m = 0; m < n; m++) *refs[m] = 0;
        h = vk_hash(h, &same.kind, sizeof same.kind);
        h = vk_hash(h, &same.p, sizeof same.p);
        for (int m = 0; m < OB_OP_MAX_IN; m++)
            if (op->in[m] != OB_NONE) h = vk_hash(h, &p->vals[op->in[m]].cols, sizeof(int32_t));
        for (int m = 0; m < OB_OP_MAX_OUT; m++)
            if (op->out[m] != OB_NONE) h = vk_hash(h, &p->vals[op->out[m]].cols, sizeof(int32_t));
        for (int m = 0; m < OB_OP_MAX_W; m++)
            h = vk_hash(h, op->w[m] == OB_NONE ? &(ob_type){OB_TYPE_END} : &p->weights[op->w[m]].type, sizeof(ob_type));
    }
    return h;
}

/* --- what all tests need ------------------------------------------------------------------------ */

/* A test waits for its pipelines, and a driver takes seconds for dozens of them, one after the other. So every test of
 * the program is gone through once without running anything, which leaves a list of pipelines, and these are compiled
 * on all host threads together. What is noted on the way is forgotten again. */
static void compile_ahead(vk_dev *d, const ob_program *p)
{
    enum { MAX_SEEN = 256 };
    uint64_t seen[MAX_SEEN];
    int n_seen = 0;
    bool right;
    uint32_t known;
    ob_err err;
    ob_status s = OB_OK;
    unsigned tested[OB_COUNT(d->tested)], experts[OB_COUNT(d->tested_experts)];
    const unsigned rotated = d->tested_rotated;
    memcpy(tested, d->tested, sizeof tested);
    memcpy(experts, d->tested_experts, sizeof experts);
    const vk_testing was = vk_testing_begin(d);
    d->listing = true;
    for (int32_t i = 0; i < p->n_ops && s != OB_E_NO_MEMORY; i++) {
        const uint64_t key = signature(d, p, i);
        int k = 0;
        while (k < n_seen && seen[k] != key) k++;
        if (p->ops[i].kind == OB_OP_LINEAR || k < n_seen) continue;
        if (!is_injected(&p->ops[i]) && vk_verdict_find(d, key, &known)) continue;
        if (n_seen < MAX_SEEN) seen[n_seen++] = key;
        s = judge(d, p, i, &right, &err);
    }
    for (int32_t i = 0; i < p->n_weights && s != OB_E_NO_MEMORY; i++) {
        const ob_weight *w = &p->weights[i];
        if (w->use == OB_USE_VECTOR || w->use == OB_USE_TABLE || w->use == OB_USE_EMBED) continue;
        s = vk_test_type(d, vk_stored_type(d, w), &err);
        if (s == OB_OK && w->hadamard) s = vk_test_rotated(d, &err);
        if (s == OB_OK && w->use == OB_USE_EXPERTS) s = vk_test_experts(d, vk_stored_type(d, w), &err);
    }
    d->listing = false;
    memcpy(d->tested, tested, sizeof tested);
    memcpy(d->tested_experts, experts, sizeof experts);
    d->tested_rotated = rotated;
    if (vk_kernels_make(d, &err) != OB_OK) ob_log_debug("%s", err.text); /* whoever needs it will meet it again */
    vk_testing_end(d, was);
}

bool vk_selftest(vk_dev *d, const ob_program *p, int32_t i)
{
    const ob_op *op = &p->ops[i];
    ob_err err;
    bool right;
    if (d->testing || d->lost || op->kind == OB_OP_LINEAR) return true;
    if (vk_kernel_off(d, ob_op_name(op->kind))) return false;
    if (!vk_tests_wanted()) return true;
    uint32_t known;
    d->tested_ops = true;
    if (!is_injected(op) && vk_verdict_find(d, signature(d, p, i), &known)) return true;
    if (d->ahead_of != p->ops) {
        if (!d->ahead_of) ob_log_info("vulkan: first use of %s with this driver: its kernels are compiled and tested", d->phys->name);
        d->ahead_of = p->ops;
        compile_ahead(d, p);
    }
    const vk_testing was = vk_testing_begin(d);
    const ob_status s = judge(d, p, i, &right, &err);
    vk_testing_end(d, was);
    if (s != OB_OK) {
        ob_log_warn("vulkan: op %s could not be tested: %s", ob_op_name(op->kind), err.text);
        return true; /* the load itself will meet what went wrong */
    }
    if (right) vk_verdict_add(d, signature(d, p, i), 1);
    return right;
}
