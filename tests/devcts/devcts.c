/* Conformance suite of devices: devcts DEVICE [cmocka filter]
 *
 * Every op against ops/ref.c with odd shapes, whole blocks as models have them, steps of many
 * sequences, and what must fail cleanly. Tolerances stand beside each op. Exit 77: the device (or the
 * level that OB_CPU asks for) is not there.
 */
#include "devcts.h"

#include <math.h>

#include "base/alloc.h"

static const char *g_spec;

ob_dev *devcts_open(bool exact)
{
    ob_dev *d;
    ob_err err;
    const ob_dev_options opt = {.n_threads = 3, .exact = exact};
    if (ob_dev_open(g_spec, &opt, &d, &err) != OB_OK) fail_msg("%s", err.text);
    return d;
}

static const int32_t k_steps[][W_MAX_SEQ] = {{1}, {5, 0, 3}, {0, 1, 1, 1, 1}, {37, 1, 2, 19}, {1, 1}};
static const int32_t k_n_steps = sizeof k_steps / sizeof *k_steps;

/* --- row-wise ops ------------------------------------------------------------------------------ */

bool devcts_slow(void) { return strstr(g_spec, "hrx-soft"); }

/* Pure data movement and one multiplication: exact. */
static void test_embed_and_rows_out(void **state)
{
    (void)state;
    static const ob_type types[] = {OB_F32, OB_F16, OB_Q8_0, OB_Q4_1, OB_Q6_K};
    ob_dev *d = devcts_open(false);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        world w;
        w_init(&w, 1 + (uint32_t)i);
        const int32_t cols = types[i] == OB_F32 ? 77 : 256;
        const ob_val x = w_value(&w, OB_ROWS_TOK, cols, "x"), y = w_value(&w, OB_ROWS_OUT, cols, "y");
        ob_op *op = w_op(&w, OB_OP_EMBED);
        op->w[0] = w_weight(&w, OB_USE_EMBED, types[i], cols, W_VOCAB, 1);
        op->out[0] = x;
        op->p.embed.scale = i & 1 ? 1.0f : 11.5f;
        op = w_op(&w, OB_OP_ROWS_OUT);
        op->in[0] = x;
        op->out[0] = y;
        w_output(&w, x);
        w_output(&w, y);
        w_start(&w, d, 64);
        for (int32_t s = 0; s < k_n_steps; s++) {
            w_step(&w, k_steps[s]);
            w_compare(&w, x, 0, 0, "embed");
            w_compare(&w, y, 0, 0, "rows_out");
        }
        w_free(&w);
    }
    ob_dev_close(d);
}

/* f32 sums of up to 1,536 squares in any order, and one square root: a few ulp. */
static void test_norms(void **state)
{
    (void)state;
    static const struct { int32_t cols, group; bool layer, w, b, in_place; } c[] = {
        {1, 0, false, true, false, false},   {7, 0, false, true, false, false},
        {64, 16, false, true, false, true},  {576, 0, false, true, false, false},
        {1536, 0, false, false, false, true}, {45, 15, false, true, false, false},
        {33, 0, true, true, true, false},    {384, 0, true, true, false, true},
        {384, 0, true, false, false, false},
    };
    ob_dev *d = devcts_open(false);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        world w;
        w_init(&w, 100 + (uint32_t)i);
        const ob_val x = w_input(&w, c[i].cols, "x");
        const ob_val y = c[i].in_place ? x : w_value(&w, OB_ROWS_TOK, c[i].cols, "y");
        ob_op *op = w_op(&w, c[i].layer ? OB_OP_LAYER_NORM : OB_OP_RMS_NORM);
        op->in[0] = x;
        op->out[0] = y;
        op->p.norm.eps = 1e-5f;
        op->p.norm.group = c[i].group;
        const int32_t n = c[i].group ? c[i].group : c[i].cols;
        if (c[i].w) op->w[0] = w_vector(&w, n, 1, 0.5f);
        if (c[i].b) op->w[1] = w_vector(&w, n, 0, 0.5f);
        w_output(&w, y);
        w_start(&w, d, 64);
        for (int32_t s = 0; s < k_n_steps; s++) {
            w_step(&w, k_steps[s]);
            w_compare(&w, y, 1e-6, 1e-5, "norm");
        }
        w_free(&w);
    }
    ob_dev_close(d);
}

/* cos and sin rounded to f32, two products and a sum. */
static void test_rope(void **state)
{
    (void)state;
    static const ob_rope_params c[] = {
        {.pairing = OB_ROPE_NEOX, .head_dim = 64, .n_rot = 64, .base = 1e4f},
        {.pairing = OB_ROPE_NORM, .head_dim = 64, .n_rot = 64, .base = 1e4f},
        {.pairing = OB_ROPE_NEOX, .head_dim = 10, .n_rot = 6, .rot_off = 2, .base = 5e5f},
        {.pairing = OB_ROPE_NORM, .head_dim = 10, .n_rot = 6, .rot_off = 4, .base = 5e5f, .inverse = true},
        {.pairing = OB_ROPE_NEOX, .head_dim = 48, .n_rot = 32, .base = 1e6f, .freq_scale = 0.25f,
         .ext_factor = 1, .attn_factor = 1.1f, .beta_fast = 32, .beta_slow = 1, .n_ctx_orig = 128},
    };
    ob_dev *d = devcts_open(false);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        for (int variant = 0; variant < 4; variant++) {
            world w;
            w_init(&w, 200 + (uint32_t)i);
            const ob_val x = w_input(&w, 3 * c[i].head_dim, "x");
            const ob_val y = variant & 1 ? x : w_value(&w, OB_ROWS_TOK, 3 * c[i].head_dim, "y");
            ob_op *op = w_op(&w, OB_OP_ROPE);
            op->in[0] = x;
            op->out[0] = y;
            op->p.rope = c[i];
            if (!op->p.rope.freq_scale) op->p.rope.freq_scale = 1;
            if (!op->p.rope.attn_factor) op->p.rope.attn_factor = 1;
            if (variant & 2) op->w[0] = w_vector(&w, c[i].n_rot / 2, 3, 0.5f);
            w_output(&w, y);
            w_start(&w, d, 64);
            for (int32_t s = 0; s < k_n_steps; s++) {
                w_step(&w, k_steps[s]);
                w_compare(&w, y, 1e-6, 1e-5, "rope");
            }
            w_free(&w);
        }
    ob_dev_close(d);
}

/* Rows looked up by position and type are added exactly; a mean differs by the order of its sum. */
static void test_add_row_pool(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    for (uint32_t i = 0; i < 12; i++) {
        world w;
        w_init(&w, 350 + i);
        const int32_t n = 1 + 37 * (int32_t)(i % 3);
        const ob_type type = i % 2 ? OB_F16 : OB_F32;
        const ob_val x = w_input(&w, n, "x"), y = i % 4 ? x : w_value(&w, OB_ROWS_TOK, n, "y");
        const ob_val pooled = w_value(&w, OB_ROWS_SEQ, n, "pooled");
        ob_op *op = w_op(&w, OB_OP_ADD_ROW);
        op->in[0] = x;
        op->out[0] = y;
        op->w[0] = w_weight(&w, OB_USE_EMBED, type, n, W_MAX_TOK, 1);
        op = w_op(&w, OB_OP_ADD_ROW);
        op->in[0] = op->out[0] = y;
        op->w[0] = w_weight(&w, OB_USE_EMBED, OB_F32, n, 3, 1);
        op->p.add_row.by = OB_ROW_OF_TYPE;
        op = w_op(&w, OB_OP_POOL);
        op->in[0] = y;
        op->out[0] = pooled;
        op->p.pool.mode = (ob_pooling)(OB_POOLING_MEAN + i % 3);
        w_output(&w, y);
        w_output(&w, pooled);
        w_start(&w, d, 64);
        for (int32_t k = 0; k < k_n_steps; k++) {
            w_step(&w, k_steps[k]);
            w_compare(&w, y, 1e-7, 1e-6, "add_row");
            w_compare(&w, pooled, 1e-6, 1e-5, "pool");
        }
        w_free(&w);
    }
    ob_dev_close(d);
}

/* exp within 2 ulp, so activations within a few; tanh by exp has an absolute error of 2e-7. */
static void test_glu_add_scale(void **state)
{
    (void)state;
    static const int32_t cols[] = {1, 15, 96, 577};
    ob_dev *d = devcts_open(false);
    for (uint32_t i = 0; i < 48; i++) {
        world w;
        w_init(&w, 300 + i);
        w.floor = 1;
        const int32_t n = cols[i % 4];
        const ob_act act = (ob_act)(i / 4 % 6);
        const bool in_place = i / 24;
        const ob_val g = w_input(&w, n, "gate"), u = w_input(&w, n, "up");
        const ob_val y = in_place ? g : w_value(&w, OB_ROWS_TOK, n, "glu");
        const ob_val a = w_value(&w, OB_ROWS_TOK, n, "add"), s = in_place ? a : w_value(&w, OB_ROWS_TOK, n, "scale");
        ob_op *op = w_op(&w, OB_OP_SCALE); /* larger gates: the tails of exp */
        op->in[0] = op->out[0] = g;
        op->p.scale.scale = 12;
        op = w_op(&w, OB_OP_GLU);
        op->in[0] = g;
        op->in[1] = u;
        op->out[0] = y;
        op->p.glu.act = act;
        op->p.glu.clamp = i % 3 ? 0 : 1.5f;
        op = w_op(&w, OB_OP_ADD);
        op->in[0] = y;
        op->in[1] = u;
        op->out[0] = a;
        op->p.add.scale = 0.75f;
        op = w_op(&w, OB_OP_SCALE);
        op->in[0] = a;
        op->out[0] = s;
        op->p.scale.scale = 1.25f;
        op->p.scale.softcap = i % 2 ? 0 : 3;
        w_output(&w, y);
        w_output(&w, s);
        w_start(&w, d, 64);
        for (int32_t k = 0; k < k_n_steps; k++) {
            w_step(&w, k_steps[k]);
            w_compare(&w, y, 1e-6, 1e-5, "glu");
            w_compare(&w, s, 1e-6, 1e-5, "add and scale");
        }
        w_free(&w);
    }
    ob_dev_close(d);
}

/* --- linear ------------------------------------------------------------------------------------ */

typedef struct linear_case {
    ob_type type[4];
    int32_t k, n[4], n_mat;
    bool bias, res;
    float scale;
} linear_case;

static const linear_case k_linear[] = {
    {{OB_F32}, 33, {7}, 1, true, false, 1},
    {{OB_F16}, 96, {65}, 1, false, true, 1},
    {{OB_BF16}, 96, {33}, 1, true, true, 0.5f},
    {{OB_Q4_0}, 576, {192}, 1, false, false, 1},
    {{OB_Q4_1}, 1536, {576}, 1, false, true, 1},
    {{OB_Q8_0}, 96, {31}, 1, true, true, 2},
    {{OB_Q4_1, OB_Q4_1, OB_Q4_1}, 576, {576, 192, 192}, 3, false, false, 1},
    {{OB_Q4_K, OB_Q4_K, OB_Q6_K}, 512, {512, 130, 130}, 3, true, false, 1},
    {{OB_Q5_0, OB_Q5_1, OB_Q5_K, OB_F32}, 256, {40, 1, 70, 16}, 4, false, false, 1},
};

static const int32_t k_rows[] = {1, 2, 3, 5, 8, 17, 33, 70, 545};

/* Steps of up to max_rows rows in a plan for so many: a device may have a kernel for each size of plan. */
static void run_linear(ob_dev *d, const linear_case *c, bool in_place, int32_t max_rows, double rms_tol, double max_tol)
{
    world w;
    w_init(&w, 400 + (uint32_t)c->k);
    const ob_val x = w_input(&w, c->k, "x"), r = c->res ? w_input(&w, c->n[0], "residual") : OB_NONE;
    ob_val y[4];
    int32_t weight[4], bias[4];
    for (int i = 0; i < c->n_mat; i++) {
        y[i] = in_place ? r : w_value(&w, OB_ROWS_TOK, c->n[i], "y");
        weight[i] = w_weight(&w, OB_USE_LINEAR, c->type[i], c->k, c->n[i], 1 / sqrtf((float)c->k));
        bias[i] = c->bias ? w_vector(&w, c->n[i], 0.5f, 1) : OB_NONE;
        w_output(&w, y[i]);
    }
    ob_op *op = w_op(&w, OB_OP_LINEAR);
    op->in[0] = x;
    op->in[1] = r;
    for (int i = 0; i < c->n_mat; i++) {
        op->out[i] = y[i];
        op->w[i] = weight[i];
        op->w[4 + i] = bias[i];
    }
    op->p.linear.n_mat = c->n_mat;
    op->p.linear.scale = c->scale;
    w_start(&w, d, max_rows);
    for (size_t s = 0; s < sizeof k_rows / sizeof *k_rows && k_rows[s] <= max_rows; s++) {
        memset(w.past, 0, sizeof w.past);
        w_step(&w, (int32_t[W_MAX_SEQ]){k_rows[s]});
        for (int i = 0; i < c->n_mat; i++) w_compare(&w, y[i], rms_tol, max_tol, ob_type_get(c->type[i])->name);
    }
    w_free(&w);
}

/* Activations rounded to 8 bits with a scale per block: about 0.7 % of root mean square (measured on
 * normal data), so 1.2 % is allowed; single elements up to 6 times that. */
static void test_linear(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    for (size_t i = 0; i < sizeof k_linear / sizeof *k_linear; i++) run_linear(d, &k_linear[i], false, 600, 0.012, 0.07);
    run_linear(d, &k_linear[4], true, 600, 0.012, 0.07);
    ob_dev_close(d);
}

/* f32 products and sums over K in another order than the reference. */
static void test_linear_exact(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(true);
    for (size_t i = 0; i < sizeof k_linear / sizeof *k_linear; i++) run_linear(d, &k_linear[i], false, 600, 2e-6, 2e-5);
    ob_dev_close(d);
}

/* Plans for few rows; the same tolerances. */
static void test_linear_few_rows(void **state)
{
    (void)state;
    static const int32_t most[] = {1, 3, 8, 32};
    ob_dev *exact = devcts_open(true), *usual = devcts_open(false);
    for (size_t i = 0; i < sizeof k_linear / sizeof *k_linear; i++)
        for (size_t m = 0; m < sizeof most / sizeof *most; m++) {
            run_linear(exact, &k_linear[i], false, most[m], 2e-6, 2e-5);
            run_linear(usual, &k_linear[i], k_linear[i].res && m == 1, most[m], 0.012, 0.07);
        }
    ob_dev_close(exact);
    ob_dev_close(usual);
}

/* --- attention --------------------------------------------------------------------------------- */

typedef struct attn_case {
    int32_t n_head, n_head_kv, k_dim, v_dim, window, page_tok;
    ob_type k_type, v_type;
    float softcap;
    bool two_way;
} attn_case;

static const attn_case k_attn[] = {
    {9, 3, 64, 64, 0, 32, OB_F32, OB_F32, 0, false},  {9, 3, 64, 64, 0, 64, OB_F16, OB_F16, 0, false},
    {4, 4, 32, 48, 0, 16, OB_F16, OB_F32, 0, false},  {6, 1, 7, 5, 0, 5, OB_F32, OB_F32, 0, false},
    {8, 2, 128, 128, 40, 32, OB_F16, OB_F16, 0, false}, {4, 2, 80, 80, 3, 128, OB_F32, OB_F16, 30, false},
    {2, 1, 64, 64, 0, 32, OB_Q8_0, OB_Q8_0, 0, false}, {2, 2, 24, 24, 8, 16, OB_F32, OB_F32, 0, true},
    {3, 3, 16, 16, 0, 16, OB_F32, OB_F32, 2, true},    {16, 1, 256, 256, 0, 64, OB_F16, OB_F16, 0, false},
    {4, 2, 48, 40, 0, 16, OB_F16, OB_F16, 5, true},    {2, 1, 96, 136, 30, 32, OB_F16, OB_F16, 0, true},
};

static void build_attention(world *w, const attn_case *c, ob_val *y)
{
    w->page_tok = c->page_tok;
    w->k_type = c->k_type;
    w->v_type = c->v_type;
    const ob_val q = w_input(w, c->n_head * c->k_dim, "q"), k = w_input(w, c->n_head_kv * c->k_dim, "k"),
                 v = w_input(w, c->n_head_kv * c->v_dim, "v");
    *y = w_value(w, OB_ROWS_TOK, c->n_head * c->v_dim, "attention");
    ob_op *op = w_op(w, OB_OP_ATTENTION);
    op->in[0] = q;
    op->in[1] = k;
    op->in[2] = v;
    op->out[0] = *y;
    op->p.attn = (ob_attn_params){.cache = w_cache(w, c->n_head_kv, c->k_dim, c->v_dim), .n_head = c->n_head,
                                  .n_head_kv = c->n_head_kv, .k_dim = c->k_dim, .v_dim = c->v_dim,
                                  .scale = 2.0f / sqrtf((float)c->k_dim), .softcap = c->softcap, .window = c->window,
                                  .causal = !c->two_way};
    w_output(w, *y);
}

static const int32_t k_attn_steps[][W_MAX_SEQ] = {
    {1}, {5, 3, 70}, {1, 1, 1, 200}, {33, 1, 0, 1, 7}, {1, 1, 1, 1, 1}, {0, 300, 1}, {1, 130, 1, 100}, {1, 1, 1, 1, 1},
};

/* f32 products, exp within 2 ulp, sums in another order: errors near 1e-6 of the result. Cache types
 * are rounded alike on both sides.
 *
 * With f16 matrices a query's and a weight's relative error is up to 2^-11. The scores here have a deviation of 2,
 * so their error is about 2 * 2^-11 / sqrt(3) = 6e-4, which is the weights' relative error and nearly the result's. */
static void run_attention(bool exact, const int32_t steps[][W_MAX_SEQ], size_t n_steps, int32_t max_tok)
{
    ob_dev *d = devcts_open(exact);
    ob_dev_info info;
    d->api->describe(d, &info);
    for (size_t i = 0; i < sizeof k_attn / sizeof *k_attn; i++) {
        world w;
        ob_val y;
        w_init(&w, 500 + (uint32_t)i);
        build_attention(&w, &k_attn[i], &y);
        w_start(&w, d, max_tok);
        const bool half =
            !exact && (info.caps & OB_DEV_HALF_ATTN) && k_attn[i].k_type == OB_F16 && k_attn[i].v_type == OB_F16;
        for (size_t s = 0; s < n_steps; s++) {
            /* Without causality a past would have had to see the future: only whole sequences. */
            if (k_attn[i].two_way) memset(w.past, 0, sizeof w.past);
            w_step(&w, steps[s]);
            w_compare(&w, y, half ? 1e-3 : 3e-6, half ? 1e-2 : 5e-5, "attention");
        }
        w_free(&w);
    }
    ob_dev_close(d);
}

/* For an interpreter, which is slow: still over one tile of tokens and of places, and with sequences side by side. */
static const int32_t k_attn_steps_soft[][W_MAX_SEQ] = {{1}, {5, 3, 70}, {33, 1, 0, 1, 7}, {0, 0, 66, 1}, {1, 1, 1, 1, 1}};

static void test_attention(void **state)
{
    (void)state;
    for (int exact = 0; exact < 2; exact++)
        if (devcts_slow()) run_attention(exact, k_attn_steps_soft, sizeof k_attn_steps_soft / sizeof *k_attn_steps_soft, 160);
        else run_attention(exact, k_attn_steps, sizeof k_attn_steps / sizeof *k_attn_steps, 400);
}

/* A plan for few tokens, as decode has; the cache grows past 64 tokens. */
static void test_attention_few_tokens(void **state)
{
    (void)state;
    static const int32_t steps[][W_MAX_SEQ] = {{1},          {8, 7},  {16},    {1, 15},       {0, 0, 16}, {0, 0, 16}, {0, 0, 16},
                                               {0, 0, 16}, {0, 0, 15}, {0, 0, 1}, {1, 1, 1, 1}, {1, 0, 1}};
    run_attention(false, steps, sizeof steps / sizeof *steps, 16);
}

/* --- whole blocks ------------------------------------------------------------------------------ */

/* One llama-like layer; the ops in the order in which builders write them. */
static ob_val add_layer(world *w, ob_val x, ob_type t, const attn_case *a, int32_t d, int32_t ff, bool head_norms)
{
    const int32_t kd = a->n_head_kv * a->k_dim;
    const ob_val h = w_value(w, OB_ROWS_TOK, d, "norm"), q = w_value(w, OB_ROWS_TOK, a->n_head * a->k_dim, "q"),
                 k = w_value(w, OB_ROWS_TOK, kd, "k"), v = w_value(w, OB_ROWS_TOK, kd, "v"),
                 o = w_value(w, OB_ROWS_TOK, a->n_head * a->v_dim, "o"), h2 = w_value(w, OB_ROWS_TOK, d, "norm2"),
                 g = w_value(w, OB_ROWS_TOK, ff, "gate"), u = w_value(w, OB_ROWS_TOK, ff, "up"),
                 x2 = w_value(w, OB_ROWS_TOK, d, "x2"), x3 = w_value(w, OB_ROWS_TOK, d, "x3");
    const float sd = 1 / sqrtf((float)d);
    ob_op *op = w_op(w, OB_OP_RMS_NORM);
    op->in[0] = x, op->out[0] = h, op->w[0] = w_vector(w, d, 1, 0.2f), op->p.norm.eps = 1e-5f;
    op = w_op(w, OB_OP_LINEAR);
    op->in[0] = h, op->out[0] = q, op->out[1] = k, op->out[2] = v, op->p.linear.n_mat = 3;
    op->w[0] = w_weight(w, OB_USE_LINEAR, t, d, a->n_head * a->k_dim, sd);
    op->w[1] = w_weight(w, OB_USE_LINEAR, t, d, kd, sd);
    op->w[2] = w_weight(w, OB_USE_LINEAR, OB_Q8_0, d, kd, sd);
    ob_val qk[2] = {q, k};
    for (int i = 0; head_norms && i < 2; i++) {
        op = w_op(w, OB_OP_RMS_NORM);
        op->in[0] = qk[i];
        op->out[0] = qk[i] = w_value(w, OB_ROWS_TOK, i ? kd : a->n_head * a->k_dim, i ? "k norm" : "q norm");
        op->w[0] = w_vector(w, a->k_dim, 1, 0.2f), op->p.norm.eps = 1e-6f, op->p.norm.group = a->k_dim;
    }
    for (int i = 0; i < 2; i++) {
        op = w_op(w, OB_OP_ROPE);
        op->in[0] = op->out[0] = qk[i];
        op->p.rope = (ob_rope_params){.pairing = OB_ROPE_NORM, .head_dim = a->k_dim, .n_rot = a->k_dim, .base = 1e4f,
                                      .freq_scale = 1, .attn_factor = 1};
    }
    op = w_op(w, OB_OP_ATTENTION);
    op->in[0] = qk[0], op->in[1] = qk[1], op->in[2] = v, op->out[0] = o;
    op->p.attn = (ob_attn_params){.cache = w_cache(w, a->n_head_kv, a->k_dim, a->v_dim), .n_head = a->n_head,
                                  .n_head_kv = a->n_head_kv, .k_dim = a->k_dim, .v_dim = a->v_dim,
                                  .scale = 1 / sqrtf((float)a->k_dim), .causal = true};
    op = w_op(w, OB_OP_LINEAR);
    op->in[0] = o, op->in[1] = x, op->out[0] = x2, op->p.linear.n_mat = 1;
    op->w[0] = w_weight(w, OB_USE_LINEAR, t, a->n_head * a->v_dim, d, sd);
    op = w_op(w, OB_OP_RMS_NORM);
    op->in[0] = x2, op->out[0] = h2, op->w[0] = w_vector(w, d, 1, 0.2f), op->p.norm.eps = 1e-5f;
    op = w_op(w, OB_OP_LINEAR);
    op->in[0] = h2, op->out[0] = g, op->out[1] = u, op->p.linear.n_mat = 2;
    op->w[0] = w_weight(w, OB_USE_LINEAR, t, d, ff, sd);
    op->w[1] = w_weight(w, OB_USE_LINEAR, t, d, ff, sd);
    op = w_op(w, OB_OP_GLU);
    op->in[0] = g, op->in[1] = u, op->out[0] = g, op->p.glu.act = OB_ACT_SILU;
    op = w_op(w, OB_OP_LINEAR);
    op->in[0] = g, op->in[1] = x2, op->out[0] = x3, op->p.linear.n_mat = 1;
    op->w[0] = w_weight(w, OB_USE_LINEAR, t, ff, d, 1 / sqrtf((float)ff));
    return x3;
}

static ob_val build_model(world *w, ob_type t, const attn_case *a, int32_t d, int32_t ff, bool head_norms)
{
    w->page_tok = a->page_tok;
    w->k_type = a->k_type;
    w->v_type = a->v_type;
    ob_val x = w_input(w, d, "x");
    for (int i = 0; i < 2; i++) x = add_layer(w, x, t, a, d, ff, head_norms);
    const ob_val r = w_value(w, OB_ROWS_OUT, d, "rows"), h = w_value(w, OB_ROWS_OUT, d, "last norm"),
                 y = w_value(w, OB_ROWS_OUT, W_VOCAB, "logits");
    ob_op *op = w_op(w, OB_OP_ROWS_OUT);
    op->in[0] = x, op->out[0] = r;
    op = w_op(w, OB_OP_RMS_NORM);
    op->in[0] = r, op->out[0] = h, op->w[0] = w_vector(w, d, 1, 0.2f), op->p.norm.eps = 1e-5f;
    op = w_op(w, OB_OP_LINEAR);
    op->in[0] = h, op->out[0] = y, op->p.linear.n_mat = 1;
    op->w[0] = w_weight(w, OB_USE_LINEAR, t, d, W_VOCAB, 1 / sqrtf((float)d));
    w_output(w, y);
    return y;
}

static const attn_case k_model_attn = {4, 2, 64, 64, 0, 32, OB_F32, OB_F32, 0, false};

/* What single ops have shown for many rows need not be shown again. */
static const int32_t k_model_steps[][W_MAX_SEQ] = {{1}, {5, 0, 40}, {1, 2, 1}, {33, 1, 0, 1, 7}, {1, 1, 1, 1, 1}};

/* Errors of single ops add up over two layers; 8-bit rounding gives about 1 % each. */
static void test_model(void **state)
{
    (void)state;
    static const ob_type types[] = {OB_F32, OB_Q4_0, OB_Q8_0, OB_Q4_K};
    for (int exact = 0; exact < 2; exact++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            ob_dev *d = devcts_open(exact);
            world w;
            w_init(&w, 600 + (uint32_t)i);
            const ob_val y = build_model(&w, types[i], &k_model_attn, 256, 512, false);
            w_start(&w, d, 400);
            for (size_t s = 0; s < sizeof k_model_steps / sizeof *k_model_steps; s++) {
                w_step(&w, k_model_steps[s]);
                if (exact) w_compare(&w, y, 1e-5, 1e-4, "model, exact");
                else w_compare(&w, y, 0.04, 0.3, "model");
                /* Everything is overwritten by a second run of the same step, to the same result. */
                int32_t rows;
                float *a = w_read(&w, y, &rows);
                w_rerun(&w);
                float *b = w_read(&w, y, &rows);
                assert_memory_equal(a, b, (size_t)rows * W_VOCAB * sizeof *a);
                free(a);
                free(b);
            }
            w_free(&w);
            ob_dev_close(d);
        }
}

/* Plans for few tokens, as decode has: their kernels take several ops at once. */
static void test_model_few_tokens(void **state)
{
    (void)state;
    static const attn_case cases[] = {
        {4, 2, 64, 64, 0, 32, OB_F32, OB_F32, 0, false}, {6, 2, 32, 32, 0, 16, OB_Q8_0, OB_Q8_0, 0, false},
        {4, 1, 96, 96, 0, 32, OB_F16, OB_Q8_0, 0, false}, {3, 3, 64, 64, 0, 64, OB_Q8_0, OB_F16, 0, false},
    };
    static const int32_t steps[][W_MAX_SEQ] = {{1}, {5, 0, 3}, {1, 2, 1}, {8}, {1, 1, 1, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int exact = 0; exact < 2; exact++) {
            ob_dev *d = devcts_open(exact);
            world w;
            w_init(&w, 650 + (uint32_t)i);
            const ob_val y = build_model(&w, exact ? OB_F32 : OB_Q4_0, &cases[i], 256, 512, i % 2 != 0);
            w_start(&w, d, 8);
            for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
                w_step(&w, steps[s]);
                /* A Q8_0 cache rounds what is near its ends differently: one part in 127 of a key. */
                if (exact) w_compare(&w, y, i ? 2e-3 : 1e-5, i ? 2e-2 : 1e-4, "model of few tokens, exact");
                else w_compare(&w, y, 0.04, 0.3, "model of few tokens");
            }
            w_free(&w);
            ob_dev_close(d);
        }
}

/* The same tokens, alone or in a batch, at once or one by one, on any number of threads: the same
 * bits. Needed so that a request's text does not depend on its neighbours. */
static void test_batch_invariance(void **state)
{
    (void)state;
    enum { N = 45, DEEP = 560 };
    static const attn_case attn = {4, 2, 64, 64, 0, 32, OB_F16, OB_F16, 0, false};
    float *want = NULL;
    const bool slow = devcts_slow(); /* alone, one by one, by seven */
    for (int variant = 0; variant < (slow ? 4 : 5); variant += slow && variant == 0 ? 2 : 1) {
        ob_dev *d;
        const ob_dev_options opt = {.n_threads = variant == 0 ? 1 : variant};
        assert_int_equal(ob_dev_open(g_spec, &opt, &d, NULL), OB_OK);
        world w;
        w_init(&w, 700);
        w.skip_reference = true;
        const ob_val y = build_model(&w, OB_Q4_0, &attn, 256, 512, false);
        w_start(&w, d, 640);
        float *got = malloc(N * W_VOCAB * sizeof *got);
        int32_t done = 0;
        /* Tokens come from the world's generator: make them a function of their position. */
        while (done < DEEP + N) {
            int32_t n = done < DEEP ? (variant & 1 ? 187 : DEEP) : variant == 2 ? 1 : variant == 3 ? 7 : N;
            n = done < DEEP ? (n < DEEP - done ? n : DEEP - done) : (n < DEEP + N - done ? n : DEEP + N - done);
            const int32_t with[W_MAX_SEQ] = {n, variant >= 2 ? 1 : 0, variant == 4 ? 9 : 0};
            w.past[0] = done;
            w.seed = 1234;
            w_step(&w, with);
            for (int32_t i = 0; i < n; i++) w.tok[i] = (int32_t)((uint32_t)(done + i) * 2654435761u >> 8) % W_VOCAB;
            w_rerun(&w);
            int32_t rows;
            float *out = w_read(&w, y, &rows);
            for (int32_t i = 0; i < n; i++)
                if (done + i >= DEEP)
                    memcpy(got + (done + i - DEEP) * W_VOCAB, out + (size_t)(rows - 1 - i) * W_VOCAB,
                           W_VOCAB * sizeof *got);
            free(out);
            done += n;
        }
        if (!want) {
            want = got;
        } else {
            for (int32_t i = 0; i < N * W_VOCAB; i++)
                if (memcmp(&want[i], &got[i], sizeof *got) != 0)
                    fail_msg("variant %d: token %d, logit %d: %.9g alone, %.9g now", variant, i / W_VOCAB, i % W_VOCAB,
                             (double)want[i], (double)got[i]);
            free(got);
        }
        w_free(&w);
        ob_dev_close(d);
    }
    free(want);
}

/* --- buffers, errors, memory ------------------------------------------------------------------- */

static void test_buffers(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    ob_dev_buf *a, *b;
    ob_err err;
    uint8_t src[300], dst[300];
    for (int i = 0; i < 300; i++) src[i] = (uint8_t)(i * 7 + 1);
    assert_int_equal(d->api->buffer_new(d, 300, OB_BUF_ZERO, &a, &err), OB_OK);
    assert_int_equal(d->api->buffer_new(d, 300, 0, &b, &err), OB_OK);
    assert_int_equal(d->api->buffer_read(d, a, 0, dst, 300, &err), OB_OK);
    for (int i = 0; i < 300; i++) assert_int_equal(dst[i], 0);
    assert_int_equal(d->api->buffer_write(d, b, 0, src, 300, &err), OB_OK);
    assert_int_equal(d->api->buffer_copy(d, a, 13, b, 101, 150, &err), OB_OK);
    assert_int_equal(d->api->buffer_read(d, a, 0, dst, 300, &err), OB_OK);
    for (int i = 0; i < 300; i++) assert_int_equal(dst[i], i >= 13 && i < 163 ? src[i - 13 + 101] : 0);
    assert_int_equal(d->api->buffer_zero(d, b, 5, 1, &err), OB_OK);
    assert_int_equal(d->api->buffer_read(d, b, 4, dst, 3, &err), OB_OK);
    assert_int_equal(dst[0], src[4]);
    assert_int_equal(dst[1], 0);
    assert_int_equal(dst[2], src[6]);
    assert_int_equal(d->api->buffer_read(d, b, 300, dst, 0, &err), OB_OK);
    assert_int_equal(d->api->buffer_read(d, b, 299, dst, 2, &err), OB_E_INVALID);
    assert_int_equal(d->api->buffer_write(d, b, UINT64_MAX, dst, 2, &err), OB_E_INVALID);
    assert_int_equal(d->api->buffer_copy(d, a, 0, b, 1, 300, &err), OB_E_INVALID);
    assert_int_equal(d->api->buffer_zero(d, b, 2, UINT64_MAX, &err), OB_E_INVALID);
    d->api->buffer_free(d, a);
    d->api->buffer_free(d, b);
    d->api->buffer_free(d, NULL);
    ob_dev_info info;
    d->api->describe(d, &info);
    assert_true(info.available);
    assert_true(strlen(info.name) > 0 && strcmp(info.kind, d->api->kind) == 0);
    ob_dev_close(d);
}

static ob_status submit_changed(world *w, void (*change)(world *, ob_step *))
{
    ob_fence f;
    ob_err err = {0};
    ob_step s = w->step;
    change(w, &s);
    const ob_status st = w->dev->api->submit(w->dev, w->plan, &s, &f, &err);
    if (st != OB_OK) assert_true(strlen(err.text) > 0);
    return st;
}
static void too_many_tokens(world *w, ob_step *s) { (void)w, s->n_tok = 65; }
static void no_sequence(world *w, ob_step *s) { (void)w, s->n_seq = 0; }
static void bad_out(world *w, ob_step *s) { (void)s, w->out_rows[0] = w->step.n_tok; }
static void good_out(world *w, ob_step *s) { (void)s, w->out_rows[0] = 0; }
static void bad_token(world *w, ob_step *s) { (void)s, w->tok[1] = W_VOCAB; }
static void good_token(world *w, ob_step *s) { (void)s, w->tok[1] = 0; }
static void bad_page(world *w, ob_step *s) { (void)s, w->table[0] = w->n_pages; }
static void good_page(world *w, ob_step *s) { (void)s, w->table[0] = 0; }
static void bad_past(world *w, ob_step *s) { (void)s, w->seq_past[0] = w->max_ctx; }

/* A wrong step is refused before anything runs, and the plan stays usable. */
static void test_step_errors(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    world w;
    w_init(&w, 800);
    build_model(&w, OB_Q8_0, &k_model_attn, 64, 64, false);
    w_start(&w, d, 64);
    w_step(&w, (int32_t[W_MAX_SEQ]){4, 2});
    assert_int_equal(submit_changed(&w, too_many_tokens), OB_E_INVALID);
    assert_int_equal(submit_changed(&w, no_sequence), OB_E_INVALID);
    assert_int_equal(submit_changed(&w, bad_out), OB_E_INVALID);
    assert_int_equal(submit_changed(&w, good_out), OB_OK);
    assert_int_equal(submit_changed(&w, bad_token), OB_E_INVALID);
    assert_int_equal(submit_changed(&w, good_token), OB_OK);
    assert_int_equal(submit_changed(&w, bad_page), OB_E_INVALID);
    assert_int_equal(submit_changed(&w, good_page), OB_OK);
    assert_int_equal(submit_changed(&w, bad_past), OB_E_INVALID);
    float x;
    ob_err err;
    assert_int_equal(d->api->read_output(d, w.plan, 0, 0, 1, &x, &err), OB_E_INVALID);
    w_free(&w);
    ob_dev_close(d);
}

/* No memory at any point is an error, leaks nothing (address sanitizer), and goes away again. */
static void test_no_memory(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    world w;
    w_init(&w, 900);
    const ob_val y = build_model(&w, OB_Q4_0, &k_model_attn, 64, 64, false);
    w_start(&w, d, 64);
    const ob_plan_bindings b = {.weights = w.dw, .cache_k = w.dk, .cache_v = w.dv, .k_type = w.k_type,
                                .v_type = w.v_type, .page_tok = w.page_tok, .n_pages = w.n_pages,
                                .max_ctx = w.max_ctx};
    int n_failed = 0;
    for (int n = 0; n < 500; n++) {
        ob_dev_plan *p = NULL;
        ob_dev_weight *dw = NULL;
        ob_dev_buf *buf = NULL;
        bool keeps;
        ob_err err;
        ob_alloc_fail_after(n);
        ob_status s = d->api->buffer_new(d, 1000, 0, &buf, &err);
        if (s == OB_OK) s = d->api->weight_new(d, &w.weights[2], &dw, &keeps, &err);
        if (s == OB_OK) s = d->api->plan_new(d, &w.prog, &b, &p, &err);
        ob_alloc_fail_after(-1);
        if (p) d->api->plan_free(d, p);
        if (dw) d->api->weight_free(d, dw);
        if (buf) d->api->buffer_free(d, buf);
        if (s == OB_OK) break;
        assert_int_equal(s, OB_E_NO_MEMORY);
        n_failed++;
    }
    assert_in_range(n_failed, 1, 499);
    w_step(&w, (int32_t[W_MAX_SEQ]){9});
    w_compare(&w, y, 0.04, 0.3, "after no memory");
    w_free(&w);
    ob_dev_close(d);
}

/* A step allocates nothing. */
static void test_no_allocation(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    world w;
    w_init(&w, 950);
    build_model(&w, OB_Q4_K, &k_model_attn, 256, 256, false);
    w_start(&w, d, 64);
    for (int i = 0; i < 3; i++) {
        w_step(&w, (int32_t[W_MAX_SEQ]){i ? 1 : 30, 1});
        const uint64_t before = ob_alloc_count();
        w_rerun(&w);
        assert_int_equal(ob_alloc_count() - before, 0);
    }
    w_free(&w);
    ob_dev_close(d);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: devcts DEVICE [test name pattern]\n");
        return 2;
    }
    g_spec = argv[1];
    ob_dev *d;
    ob_err err;
    if (ob_dev_open(g_spec, NULL, &d, &err) != OB_OK) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    ob_dev_info info;
    d->api->describe(d, &info);
    printf("device %s: %s\n", info.kind, info.name);
    ob_dev_close(d);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed_and_rows_out), cmocka_unit_test(test_norms),
        cmocka_unit_test(test_rope),               cmocka_unit_test(test_add_row_pool),
        cmocka_unit_test(test_glu_add_scale),
        cmocka_unit_test(test_linear),             cmocka_unit_test(test_linear_exact),
        cmocka_unit_test(test_linear_few_rows),
        cmocka_unit_test(test_attention),          cmocka_unit_test(test_attention_few_tokens),
        cmocka_unit_test(test_model),              cmocka_unit_test(test_model_few_tokens),
        cmocka_unit_test(test_batch_invariance),   cmocka_unit_test(test_buffers),
        cmocka_unit_test(test_step_errors),        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_no_allocation),
    };
    enum { N = sizeof tests / sizeof *tests };
    struct CMUnitTest all[N + 40];
    const struct {
        const struct CMUnitTest *tests;
        size_t n;
    } more[] = {{devcts_more, devcts_n_more}, {devcts_large, devcts_n_large}, {devcts_rotated, devcts_n_rotated}};
    size_t n = N;
    memcpy(all, tests, sizeof tests);
    for (size_t i = 0; i < sizeof more / sizeof *more; n += more[i++].n) {
        assert_true(n + more[i].n <= sizeof all / sizeof *all);
        memcpy(all + n, more[i].tests, more[i].n * sizeof *all);
    }
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    return _cmocka_run_group_tests("devcts", all, n, NULL, NULL);
}
