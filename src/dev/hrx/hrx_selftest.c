/* Every op of a model against ops/ref.c before it is used: with the model's own types and widths, but small tables and
 * few outputs, as a step of five rows and as one of a single row after it. A kernel that is wrong on this processor costs
 * the op, which the engine then runs elsewhere, and not the answer.
 *
 *   OB_HRX_SELFTEST=0                 no tests, for programs that compare everything themselves
 *   OB_HRX_TEST_FAIL=name[,name...]   these ops count as wrong, for tests
 */
#include "dev/hrx/hrx_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "ops/ref.h"

enum { ROWS = 5, MANY = 40 /* rows: more than any kernel of few takes */, PAGE_TOK = 16, N_PAGES = 2, OUTPUTS = 48, TABLE_ROWS = 48, EXPERTS = 8, EXPERT_DIM = 256, CTX = 32 };
/* Right kernels are within 1e-3 over f16 caches; wrong ones are off by about 1. The reference does not round activations to
 * 8 bits, and a result that is an ulp off may take another 4-bit code: of rotated weights it may be a twentieth. */
static const double LIMIT = 1e-2, TURNED_LIMIT = 5e-2;

typedef struct trial {
    hx_dev *d;
    uint32_t seed;
    ob_program prog;
    ob_op op;
    ob_value vals[OB_OP_MAX_IN + OB_OP_MAX_OUT];
    ob_weight weights[OB_OP_MAX_W];
    ob_cache_spec caches[OB_OP_MAX_CACHES];
    ob_state_spec states[OB_OP_MAX_STATES];
    void *owned[OB_OP_MAX_W];
    ob_dev_weight *packed[OB_OP_MAX_W];
    ob_dev_buf *k[OB_OP_MAX_CACHES], *v[OB_OP_MAX_CACHES], *st[OB_OP_MAX_STATES];
    ob_cache_view views[OB_OP_MAX_CACHES];
    float *ref_states[OB_OP_MAX_STATES], *want[OB_OP_MAX_IN + OB_OP_MAX_OUT], *got, *vec;
    ob_dev_plan *plan;
    int32_t tok[ROWS], pos[ROWS], out[ROWS], first[2], past[1], slot[1], page[N_PAGES];
    uint8_t coarse[ROWS];
} trial;

static bool in_list(const char *list, const char *name)
{
    const size_t len = strlen(name);
    for (const char *p = list; p && *p; p += strcspn(p, ", "), p += strspn(p, ", "))
        if (strcspn(p, ", ") == len && strncmp(p, name, len) == 0) return true;
    return false;
}

/* Roughly normal, deviation 1. */
static float noise(trial *t)
{
    float s = 0;
    for (int i = 0; i < 3; i++) {
        t->seed = t->seed * 1664525u + 1013904223u;
        s += (float)(t->seed >> 8) / 8388608.0f - 1.0f;
    }
    return s;
}

static ob_status no_memory(ob_err *err) { return ob_err_set(err, OB_E_NO_MEMORY, "no memory to test kernels"); }

/* ---- a small copy of the op ------------------------------------------------------------------ */

static ob_val take_value(trial *t, const ob_program *p, ob_val from, bool out)
{
    if (from == OB_NONE) return OB_NONE;
    t->vals[t->prog.n_vals] = (ob_value){.rows = p->vals[from].rows, .cols = p->vals[from].cols, .name = "test", .input = !out, .output = out};
    return t->prog.n_vals++;
}

static void take_op(trial *t, const ob_program *p, int32_t i)
{
    int32_t *refs[OB_MAX(OB_OP_MAX_CACHES, OB_OP_MAX_STATES)];
    ob_op *op = &t->op;
    *op = p->ops[i];
    op->layer = 0;
    for (int k = 0; k < OB_OP_MAX_IN; k++) op->in[k] = take_value(t, p, op->in[k], false);
    for (int k = 0; k < OB_OP_MAX_OUT; k++) op->out[k] = take_value(t, p, op->out[k], true);
    for (int k = 0; k < OB_OP_MAX_W; k++) {
        if (op->w[k] == OB_NONE) continue;
        t->weights[t->prog.n_weights] = p->weights[op->w[k]];
        op->w[k] = t->prog.n_weights++;
    }
    for (int n = ob_op_cache_refs(op, refs), k = 0; k < n; k++) {
        t->caches[k] = p->caches[*refs[k]];
        *refs[k] = t->prog.n_caches++;
    }
    for (int n = ob_op_state_refs(op, refs), k = 0; k < n; k++) {
        t->states[k] = p->states[*refs[k]];
        *refs[k] = t->prog.n_states++;
    }
    t->prog.ops = op;
    t->prog.n_ops = 1;
    t->prog.vals = t->vals;
    t->prog.weights = t->weights;
    t->prog.caches = t->caches;
    t->prog.states = t->states;
    t->prog.logits = t->prog.embeddings = t->prog.top = OB_NONE;
}

/* Tables, outputs and experts as few as show what the kernels do. */
static void shrink(trial *t)
{
    ob_op *op = &t->op;
    if ((op->kind == OB_OP_EMBED && op->w[0] != OB_NONE) || op->kind == OB_OP_ADD_ROW) t->weights[op->w[0]].ne[1] = TABLE_ROWS;
    if (op->kind == OB_OP_LINEAR)
        for (int m = 0; m < op->p.linear.n_mat; m++) {
            int64_t *n = &t->weights[op->w[m]].ne[1];
            *n = OB_MIN(*n, (int64_t)OUTPUTS);
            t->vals[op->out[m]].cols = (int32_t)*n;
            if (op->w[4 + m] != OB_NONE) t->weights[op->w[4 + m]].ne[0] = *n;
            if (op->in[1] != OB_NONE) t->vals[op->in[1]].cols = (int32_t)*n;
        }
    if (op->kind == OB_OP_CSA) op->p.csa.top_k = OB_MIN(op->p.csa.top_k, 1); /* so that there is something to choose */
    if (op->kind != OB_OP_MOE_GLU) return;
    const bool merged = op->w[1] == OB_NONE;
    op->p.moe.n_used = OB_MIN(op->p.moe.n_used, EXPERTS);
    for (int k = 0; k < 3; k++) {
        if (op->w[k] == OB_NONE) continue;
        int64_t *ne = t->weights[op->w[k]].ne;
        ne[0] = EXPERT_DIM;
        ne[1] = merged && k == 0 ? 2 * EXPERT_DIM : EXPERT_DIM;
        ne[2] = EXPERTS;
    }
    t->vals[op->in[0]].cols = t->vals[op->out[0]].cols = EXPERT_DIM;
    if (op->in[3] != OB_NONE) t->vals[op->in[3]].cols = EXPERT_DIM;
    t->vals[op->in[1]].cols = t->vals[op->in[2]].cols = op->p.moe.n_used;
}

/* Random data in the weight's own type. OB_E_UNSUPPORTED where nobody writes that type: then there is no test. */
static ob_status fill_weight(trial *t, int32_t i, ob_err *err)
{
    ob_weight *w = &t->weights[i];
    const int64_t rows = w->ne[1] * w->ne[2] * OB_MAX(w->ne[3], (int64_t)1), cols = w->ne[0];
    const size_t row = ob_type_row_bytes(w->type, cols);
    ob_status s = OB_OK;
    if (w->type != OB_F32 && w->type != OB_I32 && !ob_type_get(w->type)->quant) return ob_err_set(err, OB_E_UNSUPPORTED, "no test for this type");
    float *x = ob_reallocarray(NULL, (size_t)cols, sizeof *x);
    t->owned[i] = row ? ob_reallocarray(NULL, (size_t)rows, row) : NULL;
    if (!x || !t->owned[i]) {
        s = no_memory(err);
        goto out;
    }
    const bool vector = w->use == OB_USE_VECTOR || w->use == OB_USE_TABLE;
    for (int64_t r = 0; r < rows; r++) {
        char *to = (char *)t->owned[i] + (size_t)r * row;
        for (int64_t c = 0; c < cols; c++) {
            x[c] = vector ? 1 + 0.25f * noise(t) : noise(t) / sqrtf((float)cols);
            if (t->op.kind == OB_OP_GDN) x[c] = -fabsf(x[c]);
        }
        if (w->type == OB_I32) memset(to, 0, row);
        else if (w->type == OB_F32) memcpy(to, x, row);
        else ob_type_get(w->type)->quant(x, to, cols, NULL);
    }
    w->data = t->owned[i];
    w->n_bytes = row * (size_t)rows;
out:
    ob_free(x);
    return s;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static ob_status make_memory(trial *t, ob_err *err)
{
    ob_dev *dev = &t->d->base;
    bool keeps;
    for (int32_t i = 0; i < t->prog.n_weights; i++) {
        OB_TRY(fill_weight(t, i, err));
        OB_TRY(hx_weight_new(dev, &t->weights[i], &t->packed[i], &keeps, err));
    }
    for (int32_t i = 0; i < t->prog.n_caches; i++) {
        const size_t rows = (size_t)N_PAGES * PAGE_TOK * (size_t)t->caches[i].n_head_kv;
        const size_t kb = rows * (size_t)t->caches[i].k_dim * 2, vb = rows * (size_t)t->caches[i].v_dim * 2;
        OB_TRY(hx_buffer_new(dev, kb, OB_BUF_ZERO, &t->k[i], err));
        if (vb) OB_TRY(hx_buffer_new(dev, vb, OB_BUF_ZERO, &t->v[i], err));
        t->views[i] = (ob_cache_view){.k = ob_calloc(1, kb), .v = ob_calloc(1, vb + 1), .k_type = OB_F16, .v_type = OB_F16, .page_tok = PAGE_TOK};
        if (!t->views[i].k || !t->views[i].v) return no_memory(err);
    }
    for (int32_t i = 0; i < t->prog.n_states; i++) {
        const size_t n = (size_t)t->states[i].n_floats * 4;
        OB_TRY(hx_buffer_new(dev, n, OB_BUF_ZERO, &t->st[i], err));
        if (!(t->ref_states[i] = ob_calloc(1, n))) return no_memory(err);
    }
    size_t most = 1;
    for (int32_t v = 0; v < t->prog.n_vals; v++) {
        most = OB_MAX(most, (size_t)ROWS * (size_t)t->vals[v].cols);
        if (!(t->want[v] = ob_calloc((size_t)ROWS * (size_t)t->vals[v].cols + 1, sizeof(float)))) return no_memory(err);
    }
    t->got = ob_reallocarray(NULL, most, sizeof *t->got);
    return t->got ? OB_OK : no_memory(err);
}

static void trial_free(trial *t)
{
    ob_dev *dev = &t->d->base;
    hx_plan_free(dev, t->plan);
    for (int i = 0; i < OB_OP_MAX_W; i++) {
        hx_weight_free(dev, t->packed[i]);
        ob_free(t->owned[i]);
    }
    for (int i = 0; i < OB_OP_MAX_CACHES; i++) {
        hx_buffer_free(dev, t->k[i]);
        hx_buffer_free(dev, t->v[i]);
        ob_free(t->views[i].k);
        ob_free(t->views[i].v);
    }
    for (int i = 0; i < OB_OP_MAX_STATES; i++) {
        hx_buffer_free(dev, t->st[i]);
        ob_free(t->ref_states[i]);
    }
    for (size_t i = 0; i < OB_COUNT(t->want); i++) ob_free(t->want[i]);
    ob_free(t->got);
    ob_free(t);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void fill_inputs(trial *t, int32_t rows)
{
    const bool moe = t->op.kind == OB_OP_MOE_GLU;
    for (int32_t v = 0; v < t->prog.n_vals; v++) {
        if (!t->vals[v].input) continue;
        for (int64_t i = 0; i < (int64_t)rows * t->vals[v].cols; i++) {
            t->want[v][i] = noise(t);
            if (moe && v == t->op.in[1]) t->want[v][i] = (float)(t->seed >> 8 & (EXPERTS - 1));
        }
    }
}

/* Error of the outputs relative to their size; the largest of any. */
static ob_status compare(trial *t, const ob_step *step, double *worst, ob_err *err)
{
    for (int32_t v = 0; v < t->prog.n_vals; v++) {
        if (!t->vals[v].output) continue;
        const int32_t n = ob_value_rows(&t->prog, v, step->n_tok, step->n_out, step->n_seq);
        double diff = 0, size = 0;
        OB_TRY(hx_read_output(&t->d->base, t->plan, v, 0, n, t->got, err));
        for (int64_t i = 0; i < (int64_t)n * t->vals[v].cols; i++) {
            const double w = (double)t->want[v][i], e = (double)t->got[i] - w;
            if (w == (double)t->got[i]) continue; /* also where both are infinite */
            diff += e * e;
            size += w * w;
        }
        const double error = diff > 0 ? sqrt(diff / OB_MAX(size, 1e-12)) : 0;
        if (!(error <= *worst)) *worst = error; /* NaN too */
    }
    return OB_OK;
}

static ob_status run_step(trial *t, int32_t rows, int32_t past, double *worst, ob_err *err)
{
    ob_fence f;
    for (int32_t r = 0; r < rows; r++) {
        t->tok[r] = (int32_t)(t->seed + (uint32_t)r * 7) & 31;
        t->pos[r] = past + r;
        t->out[r] = r;
        t->coarse[r] = r % 2 == 0;
    }
    t->first[1] = rows;
    t->past[0] = past;
    const int32_t merged = t->op.kind == OB_OP_MERGE ? t->op.p.merge.n : 1, n_out = OB_MAX(rows - merged + 1, 0);
    const ob_step step = {.n_tok = rows, .n_seq = 1, .n_out = n_out, .tok = t->tok, .pos = t->pos, .seq_first = t->first, .seq_past = t->past,
                          .seq_slot = t->slot, .page_table = t->page, .max_pages = N_PAGES, .out_rows = t->out, .coarse = t->coarse};
    fill_inputs(t, rows);
    for (int32_t v = 0; v < t->prog.n_vals; v++)
        if (t->vals[v].input) OB_TRY(hx_write_input(&t->d->base, t->plan, v, t->want[v], ob_value_rows(&t->prog, v, rows, n_out, 1), err));
    float *scratch = ob_reallocarray(NULL, ob_ref_scratch_floats(&t->prog, CTX), sizeof *scratch);
    if (!scratch) return no_memory(err);
    const ob_ref_env env = {.prog = &t->prog, .step = &step, .vals = t->want, .caches = t->views, .states = t->ref_states, .scratch = scratch};
    for (int ph = 0; ph < ob_ref_n_phases(t->op.kind); ph++) ob_ref_run(&env, 0, ph, 0, ob_ref_n_items(&env, 0));
    ob_free(scratch);
    OB_TRY(hx_submit(&t->d->base, t->plan, &step, &f, err));
    OB_TRY(hx_wait(&t->d->base, f, err));
    return compare(t, &step, worst, err);
}

/* In a plan of up to `most` rows. */
static ob_status run_trial(trial *t, const ob_program *p, int32_t i, int32_t most, double *worst, ob_err *err)
{
    const int32_t rows = OB_MIN(most, ROWS);
    take_op(t, p, i);
    shrink(t);
    OB_TRY(ob_program_plan(&t->prog, most, most, 1, err));
    OB_TRY(make_memory(t, err));
    const ob_plan_bindings b = {.weights = t->packed, .cache_k = t->k, .cache_v = t->v, .k_type = OB_F16, .v_type = OB_F16,
                                .page_tok = PAGE_TOK, .n_pages = N_PAGES, .max_ctx = CTX, .states = t->st, .n_slots = 1};
    OB_TRY(hx_plan_new(&t->d->base, &t->prog, &b, &t->plan, err));
    OB_TRY(run_step(t, rows, 0, worst, err));
    OB_TRY(run_step(t, 1, rows, worst, err));
    /* More tokens for compressed entries, from its own and from earlier steps. */
    return t->op.kind == OB_OP_CSA ? run_step(t, rows, rows + 1, worst, err) : OB_OK;
}

/* ---- verdicts -------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, const void *data, size_t n)
{
    for (const uint8_t *p = data; n--; p++) h = (h ^ *p) * UINT64_C(0x100000001b3);
    return h;
}

/* Ops that use the same kernels in the same way. */
static uint64_t identity(const ob_program *p, const ob_op *op)
{
    ob_op plain = *op; /* numbers of caches and states say nothing about kernels */
    int32_t *refs[OB_MAX(OB_OP_MAX_CACHES, OB_OP_MAX_STATES)];
    for (int n = ob_op_cache_refs(&plain, refs), k = 0; k < n; k++) *refs[k] = 0;
    for (int n = ob_op_state_refs(&plain, refs), k = 0; k < n; k++) *refs[k] = 0;
    uint64_t h = mix(UINT64_C(0xcbf29ce484222325), &plain.kind, sizeof plain.kind);
    h = mix(h, &plain.p, sizeof plain.p);
    for (int k = 0; k < OB_OP_MAX_IN; k++)
        if (op->in[k] != OB_NONE) h = mix(mix(h, &k, sizeof k), &p->vals[op->in[k]].cols, 4);
    for (int k = 0; k < OB_OP_MAX_W; k++)
        if (op->w[k] != OB_NONE) {
            const ob_weight *w = &p->weights[op->w[k]];
            const hx_turn turn = hx_turn_of(w);
            h = mix(mix(mix(mix(h, &k, sizeof k), &w->type, sizeof w->type), w->ne, 8), &turn, sizeof turn);
        }
    return h;
}

static void switch_off(hx_dev *d, const char *name, double error)
{
    if (in_list(d->disabled, name)) return;
    ob_log_warn("hrx: the kernels of %s are wrong on this device (relative error %.2g) and were switched off", name, error);
    const size_t n = strlen(d->disabled);
    snprintf(d->disabled + n, sizeof d->disabled - n, "%s%s", n ? ", " : "", name);
}

/* False where there is no memory for it. A type that nobody writes is not tested; everything else that fails counts
 * against the kernel. */
static bool one_trial(hx_dev *d, const ob_program *p, int32_t i, int32_t most, double *worst)
{
    ob_err err;
    double found = 0;
    trial *t = ob_calloc(1, sizeof *t);
    if (!t) return false;
    t->d = d;
    t->seed = 12345;
    t->page[0] = 1;
    const ob_status s = run_trial(t, p, i, most, &found, &err);
    if (s != OB_OK && s != OB_E_UNSUPPORTED && s != OB_E_NO_MEMORY) {
        ob_log_warn("%s", err.text);
        found = INFINITY;
    }
    trial_free(t);
    bool turned = false;
    for (int k = 0; k < OB_OP_MAX_W; k++) turned |= p->ops[i].w[k] != OB_NONE && p->weights[p->ops[i].w[k]].hadamard;
    *worst = found <= (turned ? TURNED_LIMIT : LIMIT) ? 0 : found;
    return true;
}

bool hx_selftest(hx_dev *d, const ob_program *p, int32_t i)
{
    const ob_op *op = &p->ops[i];
    const char *off = getenv("OB_HRX_SELFTEST"), *name = ob_op_name(op->kind);
    const uint64_t id = identity(p, op);
    double worst = 0;
    if (in_list(getenv("OB_HRX_TEST_FAIL"), name)) worst = 1;
    else if ((off && *off == '0') || (op->kind == OB_OP_EMBED && op->w[0] == OB_NONE)) return true;
    for (int n = 0; n < d->n_tested; n++)
        if (d->tested[n] == id) return d->passed[n];
    /* Products have kernels for a few rows, many and one; attention for few and many. */
    static const int32_t k_most[] = {ROWS, MANY, 1};
    const size_t n_most = op->kind == OB_OP_LINEAR ? 3 : op->kind == OB_OP_ATTENTION ? 2 : 1;
    for (size_t n = 0; n < n_most && worst == 0; n++)
        if (!one_trial(d, p, i, k_most[n], &worst)) return true;
    const bool passed = worst == 0;
    if (!passed) switch_off(d, name, worst);
    if (d->n_tested < (int)OB_COUNT(d->tested)) {
        d->tested[d->n_tested] = id;
        d->passed[d->n_tested++] = passed;
    }
    return passed;
}
