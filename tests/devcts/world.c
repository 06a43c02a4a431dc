#include "world.h"

#include <math.h>

uint32_t w_rand(world *w)
{
    w->seed = w->seed * 1664525u + 1013904223u;
    uint32_t x = w->seed;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    return x;
}

float w_normal(world *w)
{
    float s = 0;
    for (int i = 0; i < 6; i++) s += (float)(w_rand(w) >> 8) / 16777216.0f - 0.5f;
    return s * 1.4142135f;
}

void w_init(world *w, uint32_t seed)
{
    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->prog = (ob_program){.ops = w->ops, .vals = w->vals, .weights = w->weights, .caches = w->caches, .states = w->states,
                           .logits = OB_NONE, .embeddings = OB_NONE};
    w->k_type = w->v_type = OB_F32;
    w->page_tok = 32;
    w->max_ctx = 640;
}

ob_val w_value(world *w, ob_rows rows, int32_t cols, const char *name)
{
    assert_true(w->prog.n_vals < W_MAX);
    w->vals[w->prog.n_vals] = (ob_value){.rows = rows, .cols = cols, .name = name};
    return w->prog.n_vals++;
}

int32_t w_weight(world *w, ob_weight_use use, ob_type t, int64_t k, int64_t n, float scale)
{
    assert_true(w->prog.n_weights < W_MAX);
    const int32_t i = w->prog.n_weights++;
    const size_t row = ob_type_row_bytes(t, k);
    assert_true(row > 0);
    float *x = malloc((size_t)(k * n) * sizeof *x);
    for (int64_t j = 0; j < k * n; j++) x[j] = scale * w_normal(w);
    w->data[i] = malloc(row * (size_t)n + 64);
    if (t == OB_F32) memcpy(w->data[i], x, row * (size_t)n);
    else assert_int_equal(ob_quantize(t, x, w->data[i], n, k, NULL, NULL), OB_OK);
    free(x);
    w->weights[i] = (ob_weight){.name = "test.weight", .type = t, .ne = {k, n, 1, 1}, .data = w->data[i],
                                .n_bytes = row * (size_t)n, .use = use};
    return i;
}

int32_t w_vector(world *w, int64_t n, float mean, float scale)
{
    const int32_t i = w_weight(w, OB_USE_VECTOR, OB_F32, n, 1, scale);
    for (int64_t j = 0; j < n; j++) ((float *)w->data[i])[j] += mean;
    return i;
}

ob_op *w_op(world *w, ob_op_kind kind)
{
    assert_true(w->prog.n_ops < W_MAX);
    ob_op *op = &w->ops[w->prog.n_ops++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    for (int i = 0; i < OB_OP_MAX_IN; i++) op->in[i] = OB_NONE;
    for (int i = 0; i < OB_OP_MAX_OUT; i++) op->out[i] = OB_NONE;
    for (int i = 0; i < OB_OP_MAX_W; i++) op->w[i] = OB_NONE;
    if (kind == OB_OP_LINEAR) op->p.linear.scale = 1;
    return op;
}

ob_val w_input(world *w, int32_t cols, const char *name)
{
    const ob_val v = w_value(w, OB_ROWS_TOK, cols, name);
    const int32_t table = w_weight(w, OB_USE_EMBED, OB_F32, cols, W_VOCAB, 1);
    ob_op *op = w_op(w, OB_OP_EMBED);
    op->out[0] = v;
    op->w[0] = table;
    op->p.embed.scale = 1;
    return v;
}

int32_t w_cache(world *w, int32_t n_head_kv, int32_t k_dim, int32_t v_dim)
{
    w->caches[w->prog.n_caches] = (ob_cache_spec){.n_head_kv = n_head_kv, .k_dim = k_dim, .v_dim = v_dim};
    return w->prog.n_caches++;
}

int32_t w_state(world *w, int64_t n_floats)
{
    w->states[w->prog.n_states] = (ob_state_spec){.n_floats = n_floats, .name = "test.state"};
    return w->prog.n_states++;
}

int32_t w_experts(world *w, ob_type t, int64_t k, int64_t n, int64_t n_expert, float scale)
{
    const int32_t i = w_weight(w, OB_USE_EXPERTS, t, k, n * n_expert, scale);
    w->weights[i].ne[1] = n;
    w->weights[i].ne[2] = n_expert;
    return i;
}

void w_output(world *w, ob_val v) { w->vals[v].output = true; }

static void ok(ob_status s, const ob_err *err)
{
    if (s != OB_OK) fail_msg("%s", err->text);
}

static void start_caches(world *w)
{
    ob_err err;
    w->max_pages = (w->max_ctx + w->page_tok - 1) / w->page_tok;
    w->n_pages = w->max_pages * W_MAX_SEQ;
    w->pages = malloc((size_t)w->n_pages * sizeof *w->pages);
    for (int32_t i = 0; i < w->n_pages; i++) w->pages[i] = i;
    for (int32_t i = w->n_pages - 1; i > 0; i--) {
        const int32_t j = (int32_t)(w_rand(w) % (uint32_t)(i + 1)), t = w->pages[i];
        w->pages[i] = w->pages[j];
        w->pages[j] = t;
    }
    for (int32_t c = 0; c < w->prog.n_caches; c++) {
        const size_t rows = (size_t)w->n_pages * (size_t)w->page_tok * (size_t)w->caches[c].n_head_kv;
        const size_t kb = rows * ob_type_row_bytes(w->k_type, w->caches[c].k_dim);
        const size_t vb = rows * ob_type_row_bytes(w->v_type, w->caches[c].v_dim);
        w->ref_cache[c] = (ob_cache_view){.k = calloc(1, kb), .v = calloc(1, vb), .k_type = w->k_type,
                                          .v_type = w->v_type, .page_tok = w->page_tok};
        const uint64_t skip = (uint64_t)w->skipped_pages, k0 = skip * (kb / (size_t)w->n_pages), v0 = skip * (vb / (size_t)w->n_pages);
        ok(w->dev->api->buffer_new(w->dev, k0 + kb, skip ? 0 : OB_BUF_ZERO, &w->dk[c], &err), &err);
        ok(w->dev->api->buffer_new(w->dev, v0 + vb, skip ? 0 : OB_BUF_ZERO, &w->dv[c], &err), &err);
        /* What was never written must never be read: all bits set are NaN in f16 and f32. */
        void *ff = malloc(kb > vb ? kb : vb);
        memset(ff, 0xFF, kb > vb ? kb : vb);
        ok(w->dev->api->buffer_write(w->dev, w->dk[c], k0, ff, kb, &err), &err);
        ok(w->dev->api->buffer_write(w->dev, w->dv[c], v0, ff, vb, &err), &err);
        free(ff);
    }
}

static void start_states(world *w)
{
    ob_err err;
    for (int32_t s = 0; s < w->prog.n_states; s++) {
        const size_t n = (size_t)w->states[s].n_floats * W_MAX_SEQ * sizeof(float);
        w->ref_states[s] = malloc(n);
        memset(w->ref_states[s], 0xFF, n);
        ok(w->dev->api->buffer_new(w->dev, n, 0, &w->ds[s], &err), &err);
        ok(w->dev->api->buffer_write(w->dev, w->ds[s], 0, w->ref_states[s], n, &err), &err);
    }
}

void w_start(world *w, ob_dev *dev, int32_t max_tok)
{
    ob_err err;
    char why[128];
    bool keeps;
    w->dev = dev;
    ok(ob_program_plan(&w->prog, max_tok, max_tok, W_MAX_SEQ, &err), &err);
    for (int32_t i = 0; i < w->prog.n_ops; i++)
        if (!dev->api->supports(dev, &w->prog, i, why, sizeof why)) fail_msg("not supported: %s", why);
    start_caches(w);
    start_states(w);
    for (int32_t i = 0; i < w->prog.n_weights; i++)
        ok(dev->api->weight_new(dev, &w->weights[i], &w->dw[i], &keeps, &err), &err);
    for (int32_t v = 0; v < w->prog.n_vals; v++)
        w->ref_vals[v] = calloc((size_t)W_MAX_TOK * (size_t)w->vals[v].cols, sizeof(float));
    const ob_plan_bindings b = {.weights = w->dw, .cache_k = w->dk, .cache_v = w->dv, .k_type = w->k_type,
                                .v_type = w->v_type, .page_tok = w->page_tok,
                                .n_pages = w->skipped_pages + w->n_pages, .max_ctx = w->max_ctx, .states = w->ds, .n_slots = W_MAX_SEQ};
    ok(dev->api->plan_new(dev, &w->prog, &b, &w->plan, &err), &err);
}

static void run_reference(world *w)
{
    float *scratch = malloc(ob_ref_scratch_floats(&w->prog, w->max_ctx) * sizeof(float));
    const ob_ref_env env = {.prog = &w->prog, .step = &w->step, .vals = w->ref_vals, .caches = w->ref_cache,
                            .states = w->ref_states, .scratch = scratch};
    for (int32_t i = 0; i < w->prog.n_ops; i++)
        for (int ph = 0; ph < ob_ref_n_phases(w->ops[i].kind); ph++)
            ob_ref_run(&env, i, ph, 0, ob_ref_n_items(&env, i));
    free(scratch);
}

void w_rerun(world *w)
{
    ob_err err;
    ob_fence f;
    ob_step step = w->step;
    for (int32_t i = 0; i < step.n_seq * w->max_pages; i++) w->dev_table[i] = w->table[i] + w->skipped_pages;
    step.page_table = w->dev_table;
    ok(w->dev->api->submit(w->dev, w->plan, &step, &f, &err), &err);
    ok(w->dev->api->wait(w->dev, f, &err), &err);
}

/* Blocks of 1 to 9 tokens; the first of a sequence may have begun before this step. */
static void make_blocks(world *w, int32_t t0, int32_t n, int32_t past)
{
    for (int32_t i = 0, size; i < n; i += size) {
        size = 1 + (int32_t)(w_rand(w) % 9);
        if (size > n - i) size = n - i;
        for (int32_t k = 0; k < size; k++) {
            w->block_first[t0 + i + k] = past + i - (i == 0 && past > 2 ? 2 : 0);
            w->block_end[t0 + i + k] = past + i + size;
        }
    }
}

static void add_pictures(world *w)
{
    const int32_t n_tok = w->step.n_tok;
    if (w->vec_cols && !w->vec) {
        w->vec = malloc((size_t)W_MAX_TOK * (size_t)w->vec_cols * sizeof *w->vec);
        for (int32_t i = 0; i < W_MAX_TOK * w->vec_cols; i++) w->vec[i] = w_normal(w);
    }
    for (int32_t t = 0; t < n_tok; t++) {
        if (w->vec && w_rand(w) % 2) w->tok[t] = -1 - (int32_t)(w_rand(w) % (uint32_t)n_tok);
        w->pos_h[t] = (int32_t)(w_rand(w) % 64);
        w->pos_w[t] = (int32_t)(w_rand(w) % 64);
    }
    for (int32_t s = 0; s < w->step.n_seq; s++)
        make_blocks(w, w->seq_first[s], w->seq_first[s + 1] - w->seq_first[s], w->seq_past[s]);
    if (w->merge_n)
        for (int32_t i = 0; i < n_tok; i++) w->out_rows[i] = (n_tok - w->merge_n) - i;
    if (w->merge_n) w->step.n_out = n_tok - w->merge_n + 1;
    w->step.vec = w->vec;
    w->step.n_vec = w->vec ? n_tok : 0;
    w->step.pos_h = w->pos_h;
    w->step.pos_w = w->pos_w;
    w->step.block_first = w->block_first;
    w->step.block_end = w->block_end;
}

void w_step(world *w, const int32_t n[W_MAX_SEQ])
{
    int32_t t = 0, s = 0;
    for (int32_t q = 0; q < W_MAX_SEQ; q++) {
        if (!n[q]) continue;
        assert_true(w->past[q] + n[q] <= w->max_ctx);
        w->seq_first[s] = t;
        w->seq_past[s] = w->past[q];
        w->seq_slot[s] = (q * 3 + 1) % W_MAX_SEQ;
        memcpy(w->table + s * w->max_pages, w->pages + q * w->max_pages, (size_t)w->max_pages * sizeof(int32_t));
        for (int32_t i = 0; i < n[q]; i++, t++) {
            w->tok[t] = (int32_t)(w_rand(w) % W_VOCAB);
            w->pos[t] = w->past[q] + i;
            w->type[t] = t % 3;
        }
        w->past[q] += n[q];
        w->seq_first[++s] = t;
    }
    /* Outputs of all rows, in reverse, so that the order matters. */
    for (int32_t i = 0; i < t; i++) w->out_rows[i] = t - 1 - i;
    w->step = (ob_step){.n_tok = t, .n_seq = s, .n_out = t, .tok = w->tok, .pos = w->pos, .type = w->type, .seq_first = w->seq_first,
                        .seq_past = w->seq_past, .seq_slot = w->seq_slot, .page_table = w->table, .max_pages = w->max_pages,
                        .out_rows = w->out_rows};
    for (int32_t i = 0; i < t; i++) w->coarse[i] = i % 2 == 0;
    if (w->mark_coarse) w->step.coarse = w->coarse;
    if (w->pictures) add_pictures(w);
    if (!w->skip_reference) run_reference(w);
    w_rerun(w);
}

float *w_read(world *w, ob_val v, int32_t *n_rows)
{
    ob_err err;
    *n_rows = ob_value_rows(&w->prog, v, w->step.n_tok, w->step.n_out, w->step.n_seq);
    float *x = malloc((size_t)*n_rows * (size_t)w->vals[v].cols * sizeof *x + 16);
    ok(w->dev->api->read_output(w->dev, w->plan, v, 0, *n_rows, x, &err), &err);
    return x;
}

/* How far two pieces of memory lie along each other, where the reference has written something. */
typedef struct likeness {
    double ab, aa, bb;
} likeness;

static void liken(likeness *l, const float *got, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (isnan(want[i])) continue; /* not written yet */
        l->ab += (double)got[i] * (double)want[i];
        l->aa += (double)got[i] * (double)got[i];
        l->bb += (double)want[i] * (double)want[i];
    }
}

static void check_likeness(const likeness *l, const char *what, const char *kind, int32_t i)
{
    if (l->bb > 1e-12 && !(l->ab >= 0.98 * sqrt(l->aa * l->bb)))
        fail_msg("%s: %s %d does not lie in memory as the reference has it (cosine %.3f): it could not be handed over to another "
                 "device", what, kind, i, l->ab / sqrt(l->aa * l->bb));
}

static void load_row(ob_type t, const void *src, float *dst, int32_t n)
{
    if (t == OB_F32) memcpy(dst, src, (size_t)n * sizeof *dst);
    else ob_type_get(t)->dequant(src, dst, n);
}

/* Rows of one plane that the step's sequences have written. */
static void compare_plane(world *w, ob_dev_buf *b, const void *plane, ob_type type, int32_t n_head, int32_t dim, const char *what,
                          const char *kind, int32_t cache)
{
    ob_err err;
    const size_t row = ob_type_row_bytes(type, dim), page = row * (size_t)n_head * (size_t)w->page_tok;
    char *got = malloc(page);
    float x[1024], y[1024];
    likeness l = {0};
    assert_true(dim <= 1024);
    for (int32_t q = 0; q < w->step.n_seq; q++) {
        const int32_t n = w->seq_past[q] + w->seq_first[q + 1] - w->seq_first[q];
        for (int32_t p = 0; p * w->page_tok < n; p++) {
            const int32_t id = w->table[q * w->max_pages + p];
            ok(w->dev->api->buffer_read(w->dev, b, (uint64_t)(id + w->skipped_pages) * page, got, page, &err), &err);
            for (int32_t r = 0; r < n_head * w->page_tok; r++) {
                if (p * w->page_tok + r % w->page_tok >= n) continue;
                load_row(type, (const char *)plane + (size_t)id * page + (size_t)r * row, y, dim);
                bool written = false; /* of compressed entries only some rows are */
                for (int32_t i = 0; i < dim; i++) written |= y[i] != 0;
                if (!written) continue;
                load_row(type, got + (size_t)r * row, x, dim);
                liken(&l, x, y, dim);
            }
        }
    }
    free(got);
    check_likeness(&l, what, kind, cache);
}

/* Caches and states lie on every device as on the reference's side, because they are handed from one to another. How
 * exact they are shows in the values; this is about where things lie. */
static void compare_kept(world *w, const char *what)
{
    ob_err err;
    if (w->skip_reference) return;
    for (int32_t c = 0; c < w->prog.n_caches; c++) {
        const ob_cache_spec *k = &w->caches[c];
        compare_plane(w, w->dk[c], w->ref_cache[c].k, w->k_type, k->n_head_kv, k->k_dim, what, "the keys of cache", c);
        if (k->v_dim) compare_plane(w, w->dv[c], w->ref_cache[c].v, w->v_type, k->n_head_kv, k->v_dim, what, "the values of cache", c);
    }
    for (int32_t s = 0; s < w->prog.n_states; s++) {
        const int64_t n = w->states[s].n_floats;
        float *got = malloc((size_t)n * sizeof *got);
        likeness l = {0};
        for (int32_t q = 0; q < w->step.n_seq; q++) {
            const uint64_t at = (uint64_t)w->seq_slot[q] * (uint64_t)n;
            ok(w->dev->api->buffer_read(w->dev, w->ds[s], at * sizeof *got, got, (uint64_t)n * sizeof *got, &err), &err);
            liken(&l, got, w->ref_states[s] + at, n);
        }
        free(got);
        check_likeness(&l, what, "state", s);
    }
}

void w_compare(world *w, ob_val v, double rms_tol, double max_tol, const char *what)
{
    int32_t rows;
    float *got = w_read(w, v, &rows);
    const float *want = w->ref_vals[v];
    const size_t n = (size_t)rows * (size_t)w->vals[v].cols;
    double err2 = 0, want2 = 0, worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const double e = fabs((double)got[i] - (double)want[i]);
        err2 += e * e;
        want2 += (double)want[i] * (double)want[i];
        if (!(e <= worst)) { /* NaN too */
            worst = e;
            at = i;
        }
    }
    const double rms = fmax(sqrt(want2 / (double)n), fmax(w->floor, 1e-30));
    if (getenv("OB_CTS_VERBOSE"))
        print_message("%s: value %d %s of %d rows: rms error %.4g of %.4g, worst %.4g of %.4g; begins with %a %a\n", what, v,
                      w->vals[v].name, rows, sqrt(err2 / (double)n) / rms, rms_tol, worst / rms, max_tol, (double)got[0], (double)got[n / 2]);
    if (!(sqrt(err2 / (double)n) <= rms_tol * rms) || !(worst <= max_tol * rms))
        fail_msg("%s: value %s of %d rows: rms error %.3g (allowed %.3g), worst %.3g (allowed %.3g) at row %zu column "
                 "%zu: got %.8g, want %.8g",
                 what, w->vals[v].name, rows, sqrt(err2 / (double)n) / rms, rms_tol, worst / rms, max_tol,
                 at / (size_t)w->vals[v].cols, at % (size_t)w->vals[v].cols, (double)got[at], (double)want[at]);
    free(got);
    compare_kept(w, what);
}

void w_free(world *w)
{
    const ob_dev_api *api = w->dev ? w->dev->api : NULL;
    if (w->plan) api->plan_free(w->dev, w->plan);
    for (int32_t i = 0; i < w->prog.n_weights; i++) {
        if (w->dw[i]) api->weight_free(w->dev, w->dw[i]);
        free(w->data[i]);
    }
    for (int32_t c = 0; c < w->prog.n_caches; c++) {
        if (w->dk[c]) api->buffer_free(w->dev, w->dk[c]);
        if (w->dv[c]) api->buffer_free(w->dev, w->dv[c]);
        free(w->ref_cache[c].k);
        free(w->ref_cache[c].v);
    }
    for (int32_t s = 0; s < w->prog.n_states; s++) {
        if (w->ds[s]) api->buffer_free(w->dev, w->ds[s]);
        free(w->ref_states[s]);
    }
    for (int32_t v = 0; v < w->prog.n_vals; v++) free(w->ref_vals[v]);
    free(w->pages);
    free(w->vec);
}
