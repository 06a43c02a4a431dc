/* Conformance of the ops of mixtures, heads, states and parts. A device may lack them: then it says so in
 * `supports`, and the test is skipped. */
#include "world.h"

#include <math.h>

#include "devcts.h"

static const int32_t k_steps[][W_MAX_SEQ] = {{1}, {5, 0, 3}, {0, 1, 1, 1, 1}, {37, 1, 2, 19}, {1, 1}, {1, 70, 1}};
enum { N_STEPS = sizeof k_steps / sizeof *k_steps };

/* Does the device run every op of the program? If not the world is freed and the test should be skipped. */
static bool has_ops(world *w, ob_dev *d)
{
    char why[128];
    ob_err err;
    if (ob_program_plan(&w->prog, 64, 64, W_MAX_SEQ, &err) != OB_OK) fail_msg("%s", err.text);
    for (int32_t i = 0; i < w->prog.n_ops; i++)
        if (!d->api->supports(d, &w->prog, i, why, sizeof why)) {
            print_message("skipped: %s\n", why);
            return false;
        }
    return true;
}

/* Tokens of the plan: a device may have kernels for each size. */
static int32_t g_plan_tok = 128;

static void run_steps(world *w, ob_dev *d, ob_val y, double rms_tol, double max_tol, const char *what)
{
    w_output(w, y);
    if (has_ops(w, d)) {
        w_start(w, d, g_plan_tok);
        for (int32_t s = 0; s < N_STEPS; s++) {
            int32_t n = 0;
            for (int32_t q = 0; q < W_MAX_SEQ; q++) n += k_steps[s][q];
            if (n > g_plan_tok) continue;
            w_step(w, k_steps[s]);
            w_compare(w, y, rms_tol, max_tol, what);
        }
    }
    w_free(w);
}

/* --- parts and vectors ------------------------------------------------------------------------- */

/* One or two roundings; erf and exp within a few ulp. */
static void test_parts(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    static const int32_t cols[] = {6, 96, 250};
    for (uint32_t i = 0; i < 12; i++) {
        world w;
        w_init(&w, 700 + i);
        w.floor = 1;
        const int32_t n = cols[i % 3];
        const ob_val x = w_input(&w, 2 * n, "x"), res = w_input(&w, n, "res"), one = w_input(&w, 1, "one");
        ob_val a = w_value(&w, OB_ROWS_TOK, n, "a"), b = w_value(&w, OB_ROWS_TOK, n, "b");
        const ob_val y = w_value(&w, OB_ROWS_TOK, 2 * n, "y"), g = w_value(&w, OB_ROWS_TOK, n, "g");
        ob_op *op = w_op(&w, OB_OP_SPLIT);
        op->in[0] = x, op->out[0] = a, op->out[1] = b, op->p.split.n_group = i % 2 ? 2 : 1;
        op = w_op(&w, OB_OP_ACT);
        op->in[0] = op->out[0] = a, op->p.act.act = (ob_act)(i % 7);
        op = w_op(&w, OB_OP_AFFINE);
        op->in[0] = op->out[0] = b, op->in[1] = i % 4 ? a : OB_NONE;
        for (uint32_t k = 0; k < 4; k++)
            if (i >> k & 1) op->w[k] = w_vector(&w, n, 0.5f, 1);
        op = w_op(&w, OB_OP_GATE);
        op->in[0] = a, op->in[1] = i % 2 ? one : b, op->in[2] = i % 3 ? res : OB_NONE, op->out[0] = g;
        op = w_op(&w, OB_OP_JOIN);
        op->in[0] = g, op->in[1] = b, op->out[0] = y, op->p.join.n_group = i % 2 ? 1 : 2;
        run_steps(&w, d, y, 1e-6, 1e-5, "parts");
    }
    ob_dev_close(d);
}

/* --- mixtures ---------------------------------------------------------------------------------- */

typedef struct moe_case {
    ob_type gate, up, down; /* up OB_TYPE_END: merged */
    int32_t d, ff, n_expert, n_class;
    ob_route_params route;
    float clamp;
    bool bias, res;
    int32_t favourite; /* 1 + the expert that all rows choose first; 0: none */
} moe_case;

static const moe_case k_moe[] = {
    {OB_F32, OB_F32, OB_F32, 64, 40, 8, 8, {OB_GATING_SOFTMAX, 2, 1, 1, true, 1}, 0, false, true, 0},
    {OB_F32, OB_TYPE_END, OB_F32, 96, 64, 4, 5, {OB_GATING_SOFTMAX, 1, 1, 1, false, 1}, 0, true, false, 0},
    {OB_Q4_K, OB_Q4_K, OB_Q6_K, 256, 256, 16, 16, {OB_GATING_SIGMOID, 4, 4, 2, true, 2.5f}, 0, true, true, 0},
    {OB_Q8_0, OB_Q4_0, OB_Q8_0, 128, 96, 6, 6, {OB_GATING_SQRT_SOFTPLUS, 3, 1, 1, true, 1.5f}, 1, true, true, 0},
    {OB_MXFP4, OB_TYPE_END, OB_Q8_0, 64, 64, 32, 32, {OB_GATING_SOFTMAX, 8, 1, 1, true, 1}, 0, false, true, 0},
};

/* One expert used of many; all rows on one; more experts than pairs; as many as all. */
static const moe_case k_moe_shapes[] = {
    {OB_Q4_0, OB_Q4_0, OB_Q4_1, 96, 32, 7, 7, {OB_GATING_SOFTMAX, 1, 1, 1, false, 1}, 0, true, true, 7},
    {OB_Q4_K, OB_TYPE_END, OB_Q6_K, 256, 256, 5, 5, {OB_GATING_SIGMOID, 2, 1, 1, true, 1}, 0, true, false, 3},
    {OB_Q8_0, OB_Q8_0, OB_F16, 64, 32, 256, 256, {OB_GATING_SOFTMAX, 8, 1, 1, true, 1}, 0, false, true, 0},
    {OB_Q5_K, OB_Q5_K, OB_Q5_0, 256, 256, 8, 9, {OB_GATING_SIGMOID, 6, 3, 2, true, 2}, 0, true, true, 0},
    {OB_F16, OB_F16, OB_BF16, 32, 96, 3, 3, {OB_GATING_SOFTMAX, 3, 1, 1, true, 1}, 0, false, true, 0},
};

static void run_moe(const moe_case *c, bool exact, double rms_tol, double max_tol)
{
    ob_dev *d = devcts_open(exact);
    world w;
    w_init(&w, 800 + (uint32_t)c->d);
    const ob_val x = w_input(&w, c->d, "x"), logits = w_input(&w, c->n_class, "logits");
    const ob_val res = c->res ? w_input(&w, c->d, "res") : OB_NONE;
    const ob_val ids = w_value(&w, OB_ROWS_TOK, c->route.n_used, "ids"), y = w_value(&w, OB_ROWS_TOK, c->d, "y"),
                 weights = w_value(&w, OB_ROWS_TOK, c->route.n_used, "weights");
    ob_op *op = w_op(&w, OB_OP_MOE_ROUTE);
    op->in[0] = logits, op->out[0] = ids, op->out[1] = weights, op->p.route = c->route;
    if (c->bias) op->w[0] = w_vector(&w, c->n_class, 0, 0.3f);
    if (c->favourite) ((float *)w.data[op->w[0]])[c->favourite - 1] = 10;
    op = w_op(&w, OB_OP_MOE_GLU);
    op->in[0] = x, op->in[1] = ids, op->in[2] = weights, op->in[3] = res, op->out[0] = y;
    op->p.moe = (ob_moe_params){.n_used = c->route.n_used, .act = OB_ACT_SILU, .clamp = c->clamp};
    const bool merged = c->up == OB_TYPE_END;
    const float s = 1 / sqrtf((float)c->d);
    op->w[0] = w_experts(&w, c->gate, c->d, merged ? 2 * c->ff : c->ff, c->n_expert, s);
    if (!merged) op->w[1] = w_experts(&w, c->up, c->d, c->ff, c->n_expert, s);
    op->w[2] = w_experts(&w, c->down, c->ff, c->d, c->n_expert, 1 / sqrtf((float)c->ff));
    w_output(&w, weights);
    run_steps(&w, d, y, rms_tol, max_tol, "mixture");
    ob_dev_close(d);
}

/* Sums in another order; with 8-bit activations two roundings of about 0.7 % each. */
static void test_moe(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof k_moe / sizeof *k_moe; i++) {
        run_moe(&k_moe[i], true, 3e-6, 3e-5);
        run_moe(&k_moe[i], false, 0.025, 0.15);
    }
}

static void test_moe_shapes(void **state)
{
    (void)state;
    static const int32_t most[] = {8, 1, 2, 32, 128};
    for (size_t m = 0; m < (devcts_slow() ? 1 : sizeof most / sizeof *most); m++) {
        g_plan_tok = most[m];
        for (size_t i = 0; i < sizeof k_moe_shapes / sizeof *k_moe_shapes; i++) {
            run_moe(&k_moe_shapes[i], true, 3e-6, 3e-5);
            run_moe(&k_moe_shapes[i], false, 0.025, 0.15);
        }
    }
    g_plan_tok = 128;
}

/* What stands around a norm, router, choice and experts. */
enum { ALONE, APART, AFTER_PRODUCT, N_AROUND }; /* nothing; something between norm and router; a product before */

static void run_moe_block(bool exact, int around, int32_t n_class, int32_t cols, double rms_tol, double max_tol)
{
    ob_dev *d = devcts_open(exact);
    world w;
    w_init(&w, 870 + (uint32_t)cols);
    ob_val x = w_input(&w, cols, "x");
    const ob_val n = w_value(&w, OB_ROWS_TOK, cols, "norm"), y = w_value(&w, OB_ROWS_TOK, cols, "y"),
                 shared = w_value(&w, OB_ROWS_TOK, 64, "shared"), logits = w_value(&w, OB_ROWS_TOK, n_class, "logits"),
                 ids = w_value(&w, OB_ROWS_TOK, 4, "ids"), weights = w_value(&w, OB_ROWS_TOK, 4, "weights");
    const float s = 1 / sqrtf((float)cols);
    ob_op *op;
    if (around == AFTER_PRODUCT) {
        const ob_val sum = w_value(&w, OB_ROWS_TOK, cols, "sum");
        op = w_op(&w, OB_OP_LINEAR);
        op->in[0] = op->in[1] = x, op->out[0] = sum, op->p.linear.n_mat = 1;
        op->w[0] = w_weight(&w, OB_USE_LINEAR, OB_Q8_0, cols, cols, 0.1f * s); /* rounding must not turn choices */
        x = sum;
    }
    op = w_op(&w, OB_OP_RMS_NORM);
    op->in[0] = x, op->out[0] = n, op->p.norm.eps = 1e-5f, op->w[0] = w_vector(&w, cols, 1, 0.2f);
    if (around == APART) {
        op = w_op(&w, OB_OP_LINEAR);
        op->in[0] = n, op->out[0] = shared, op->p.linear.n_mat = 1, op->w[0] = w_weight(&w, OB_USE_LINEAR, OB_Q8_0, cols, 64, s);
        w_output(&w, shared);
    }
    op = w_op(&w, OB_OP_LINEAR);
    op->in[0] = n, op->out[0] = logits, op->p.linear.n_mat = 1, op->w[0] = w_weight(&w, OB_USE_LINEAR, OB_F32, cols, n_class, 3 * s);
    op = w_op(&w, OB_OP_MOE_ROUTE);
    op->in[0] = logits, op->out[0] = ids, op->out[1] = weights;
    op->p.route = (ob_route_params){OB_GATING_SOFTMAX, 4, 1, 1, true, 1};
    op = w_op(&w, OB_OP_MOE_GLU);
    op->in[0] = n, op->in[1] = ids, op->in[2] = weights, op->in[3] = x, op->out[0] = y;
    op->p.moe = (ob_moe_params){.n_used = 4, .act = OB_ACT_SILU};
    for (int k = 0; k < 3; k++)
        op->w[k] = k < 2 ? w_experts(&w, OB_Q4_0, cols, 32, n_class, s) : w_experts(&w, OB_Q8_0, 32, cols, n_class, 1 / sqrtf(32));
    run_steps(&w, d, y, rms_tol, max_tol, "mixture after norm and router");
    ob_dev_close(d);
}

static void test_moe_block(void **state)
{
    (void)state;
    static const int32_t most[] = {8, 32, 1, 128};
    for (size_t m = 0; m < (devcts_slow() ? 2 : sizeof most / sizeof *most); m++) {
        g_plan_tok = most[m];
        for (int around = 0; around < N_AROUND; around++) {
            run_moe_block(true, around, 70, 1024, 3e-6, 3e-5);
            run_moe_block(false, around, 130, 256, 0.025, 0.15);
        }
    }
    g_plan_tok = 128;
}

static void run_heads(ob_type t, int32_t k, int32_t n, int32_t n_head, int32_t tail, bool exact, double rms, double max)
{
    ob_dev *d = devcts_open(exact);
    world w;
    w_init(&w, 900 + (uint32_t)k);
    const ob_val x = w_input(&w, n_head * (k + tail), "x"), y = w_value(&w, OB_ROWS_TOK, n_head * (n + tail), "y");
    ob_op *op = w_op(&w, OB_OP_LINEAR_HEADS);
    op->in[0] = x, op->out[0] = y, op->p.heads.n_head = n_head, op->p.heads.tail = tail;
    op->w[0] = w_experts(&w, t, k, n, n_head, 1 / sqrtf((float)k));
    run_steps(&w, d, y, rms, max, "linear_heads");
    ob_dev_close(d);
}

static void test_linear_heads(void **state)
{
    (void)state;
    for (int exact = 0; exact < 2; exact++) {
        const double rms = exact ? 2e-6 : 0.012, max = exact ? 2e-5 : 0.08;
        run_heads(OB_F32, 24, 33, 3, 16, exact, rms, max);
        run_heads(OB_Q8_0, 192, 64, 5, 64, exact, rms, max);
        run_heads(OB_Q4_0, 64, 32, 2, 0, exact, rms, max);
        for (g_plan_tok = 1; g_plan_tok <= 8; g_plan_tok *= 8) {
            run_heads(OB_F32, 40, 31, 3, 3, exact, rms, max);
            run_heads(OB_Q8_0, 512, 128, 20, 0, exact, rms, max);
        }
        g_plan_tok = 128;
    }
}

/* Values inside keys: the absorbed form of latent attention. Tolerance as for attention. */
static void test_latent_attention(void **state)
{
    (void)state;
    static const struct { int32_t n_head, n_head_kv, k_dim, v_dim; ob_type t; } c[] = {
        {4, 1, 48, 32, OB_F32}, {20, 1, 576, 512, OB_F16}, {6, 2, 40, 40, OB_F16}, {4, 1, 96, 64, OB_Q8_0}};
    ob_dev *d = devcts_open(false);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        world w;
        w_init(&w, 1000 + (uint32_t)i);
        w.k_type = w.v_type = c[i].t;
        const ob_val q = w_input(&w, c[i].n_head * c[i].k_dim, "q"), k = w_input(&w, c[i].n_head_kv * c[i].k_dim, "k"),
                     y = w_value(&w, OB_ROWS_TOK, c[i].n_head * c[i].v_dim, "y");
        ob_op *op = w_op(&w, OB_OP_ATTENTION);
        op->in[0] = q, op->in[1] = k, op->out[0] = y;
        op->p.attn = (ob_attn_params){.cache = w_cache(&w, c[i].n_head_kv, c[i].k_dim, 0), .n_head = c[i].n_head,
                                      .n_head_kv = c[i].n_head_kv, .k_dim = c[i].k_dim, .v_dim = c[i].v_dim,
                                      .scale = 2.0f / sqrtf((float)c[i].k_dim), .causal = true};
        run_steps(&w, d, y, 3e-6, 5e-5, "latent attention");
    }
    ob_dev_close(d);
}

/* --- states ------------------------------------------------------------------------------------ */

/* Up to 16 products and a sum; silu within a few ulp. */
static void test_conv1d(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    static const struct { int32_t cols, n_tap; ob_act act; bool bias; } c[] = {
        {7, 4, OB_ACT_SILU, false}, {300, 4, OB_ACT_SILU, true}, {64, 2, OB_ACT_NONE, true}, {33, 5, OB_ACT_GELU_ERF, true}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        world w;
        w_init(&w, 1100 + (uint32_t)i);
        const ob_val x = w_input(&w, c[i].cols, "x"), y = w_value(&w, OB_ROWS_TOK, c[i].cols, "y");
        ob_op *op = w_op(&w, OB_OP_CONV1D);
        op->in[0] = x, op->out[0] = y;
        op->w[0] = w_weight(&w, OB_USE_VECTOR, OB_F32, c[i].n_tap, c[i].cols, 0.5f);
        if (c[i].bias) op->w[1] = w_vector(&w, c[i].cols, 0, 1);
        op->p.conv = (ob_conv_params){.state = w_state(&w, (int64_t)(c[i].n_tap - 1) * c[i].cols), .act = c[i].act};
        run_steps(&w, d, y, 1e-6, 1e-5, "conv1d");
    }
    ob_dev_close(d);
}

/* f32 recurrence over up to 110 tokens against sums in f64: errors grow with the length. */
static void test_gdn(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    static const struct { int32_t hk, hv, dk, dv; bool tiled; } c[] = {
        {2, 4, 16, 16, true}, {2, 4, 128, 128, false}, {1, 3, 24, 70, true}, {2, 2, 64, 64, true}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        world w;
        w_init(&w, 1200 + (uint32_t)i);
        const int32_t n = 2 * c[i].hk * c[i].dk + c[i].hv * c[i].dv;
        const ob_val x = w_input(&w, n, "x"), alpha = w_input(&w, c[i].hv, "alpha"), beta = w_input(&w, c[i].hv, "beta"),
                     y = w_value(&w, OB_ROWS_TOK, c[i].hv * c[i].dv, "y");
        ob_op *op = w_op(&w, OB_OP_GDN);
        op->in[0] = x, op->in[1] = alpha, op->in[2] = beta, op->out[0] = y;
        op->w[0] = w_vector(&w, c[i].hv, 0, 1);
        op->w[1] = w_vector(&w, c[i].hv, -1, 0.2f);
        op->p.gdn = (ob_gdn_params){.state = w_state(&w, (int64_t)c[i].hv * c[i].dk * c[i].dv), .n_head_k = c[i].hk,
                                    .n_head_v = c[i].hv, .k_dim = c[i].dk, .v_dim = c[i].dv, .eps = 1e-6f,
                                    .tiled = c[i].tiled};
        run_steps(&w, d, y, 5e-6, 1e-4, "gdn");
    }
    ob_dev_close(d);
}

/* f32 sums over two heads' widths against sums in f64. */
static void test_cca(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    static const struct { int32_t n_head, n_head_kv, hd; bool taps_first; } c[] = {
        {4, 2, 16, false}, {8, 2, 64, true}, {3, 1, 10, false}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        world w;
        w_init(&w, 1300 + (uint32_t)i);
        const int32_t hd = c[i].hd, n_q = c[i].n_head * hd, n_k = c[i].n_head_kv * hd, n = n_q + n_k;
        const ob_val q = w_input(&w, n_q, "q"), k = w_input(&w, n_k, "k"), va = w_input(&w, n_k / 2, "va"),
                     vb = w_input(&w, n_k / 2, "vb"), yq = w_value(&w, OB_ROWS_TOK, n_q, "q out"),
                     yk = w_value(&w, OB_ROWS_TOK, n_k, "k out"), yv = w_value(&w, OB_ROWS_TOK, n_k, "v out"),
                     y = w_value(&w, OB_ROWS_TOK, n + n_k, "y"), qk = w_value(&w, OB_ROWS_TOK, n, "qk");
        ob_op *op = w_op(&w, OB_OP_CCA);
        op->in[0] = q, op->in[1] = k, op->in[2] = va, op->in[3] = vb, op->out[0] = yq, op->out[1] = yk, op->out[2] = yv;
        op->p.cca = (ob_cca_params){.n_head = c[i].n_head, .n_head_kv = c[i].n_head_kv, .state = w_state(&w, 2 * n + n_k / 2)};
        op->w[0] = w_weight(&w, OB_USE_VECTOR, OB_F32, 2, n, 0.7f);
        op->w[1] = w_vector(&w, n, 0, 0.5f);
        op->w[2] = w_weight(&w, OB_USE_VECTOR, OB_F32, hd, 2 * n, 1 / sqrtf((float)hd));
        w.weights[op->w[2]].ne[0] = c[i].taps_first ? 2 : hd;
        w.weights[op->w[2]].ne[1] = c[i].taps_first ? hd : n;
        w.weights[op->w[2]].ne[2] = c[i].taps_first ? n : 2;
        op->w[3] = w_vector(&w, n, 0, 0.5f);
        op->w[4] = w_vector(&w, c[i].n_head_kv, 1, 0.3f);
        op = w_op(&w, OB_OP_JOIN);
        op->in[0] = yq, op->in[1] = yk, op->out[0] = qk, op->p.join.n_group = 1;
        op = w_op(&w, OB_OP_JOIN);
        op->in[0] = qk, op->in[1] = yv, op->out[0] = y, op->p.join.n_group = 1;
        run_steps(&w, d, y, 3e-6, 3e-5, "cca");
    }
    ob_dev_close(d);
}

/* --- DeepSeek V4 -------------------------------------------------------------------------------- */

/* Up to 40 divisions of each coefficient, each good to an ulp or two. */
static void test_hyper_connections(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    static const struct { int32_t n, d, n_iter; bool last; } c[] = {
        {4, 33, 20, false}, {2, 300, 3, false}, {8, 64, 1, false}, {4, 130, 20, true}, {1, 7, 2, false}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        world w;
        w_init(&w, 1400 + (uint32_t)i);
        const int32_t n = c[i].n, n_mix = c[i].last ? n : 2 * n + n * n;
        const ob_val x = w_input(&w, n * c[i].d, "streams"), mix = w_input(&w, n_mix, "mix"),
                     y = w_value(&w, OB_ROWS_TOK, c[i].d, "input"), coef = w_value(&w, OB_ROWS_TOK, n + n * n, "coef");
        const ob_hc_params hc = {.n_stream = n, .n_iter = c[i].n_iter, .eps = 1e-6f};
        ob_op *op = w_op(&w, OB_OP_HC_MIX);
        op->in[0] = x, op->in[1] = mix, op->out[0] = y, op->p.hc = hc;
        op->w[0] = w_vector(&w, c[i].last ? 1 : 3, 1, 0.3f);
        op->w[1] = w_vector(&w, n_mix, 0, 0.5f);
        if (c[i].last) {
            run_steps(&w, d, y, 1e-6, 1e-5, "hc_mix");
            continue;
        }
        op->out[1] = coef;
        op = w_op(&w, OB_OP_HC_POST);
        op->in[0] = y, op->in[1] = x, op->in[2] = coef, op->p.hc = hc;
        op->out[0] = i % 2 ? w_value(&w, OB_ROWS_TOK, n * c[i].d, "streams out") : x;
        const ob_val out = op->out[0];
        w_output(&w, coef);
        run_steps(&w, d, out, 2e-6, 2e-5, "hc_mix and hc_post");
    }
    ob_dev_close(d);
}

typedef struct csa_case {
    int32_t n_head, k_dim, window, ratio, n_index_head, index_dim, top_k, n_rot;
    ob_type t;
    bool overlap;
} csa_case;

static const csa_case k_csa[] = {
    {3, 24, 8, 0, 0, 0, 0, 8, OB_F32, false},      {8, 64, 16, 8, 0, 0, 0, 16, OB_F32, false},
    {4, 32, 5, 4, 2, 16, 3, 8, OB_F32, true},      {5, 20, 7, 3, 3, 12, 6, 12, OB_F16, true},
    {64, 512, 32, 4, 16, 128, 11, 64, OB_F16, true}, {6, 96, 40, 16, 0, 0, 0, 32, OB_Q8_0, false},
};

static void compressor_inputs(world *w, ob_op *op, const ob_val in[2], int32_t cols, int32_t width, int32_t ratio, int at_in,
                              int at_w)
{
    op->in[at_in] = in[0], op->in[at_in + 1] = in[1];
    op->w[at_w] = w_weight(w, OB_USE_VECTOR, OB_F32, cols, ratio, 0.5f);
    op->w[at_w + 1] = w_vector(w, width, 1, 0.3f);
}

static void build_csa(world *w, const csa_case *c, ob_val *y)
{
    const int32_t cols = (c->overlap ? 2 : 1) * c->k_dim;
    const bool index = c->n_index_head > 0;
    w->k_type = w->v_type = c->t;
    w->page_tok = 16;
    ob_val in[8] = {w_input(w, c->n_head * c->k_dim, "q"), w_input(w, c->k_dim, "k")};
    if (c->ratio) in[2] = w_input(w, cols, "kv"), in[3] = w_input(w, cols, "gate");
    if (index) {
        in[4] = w_input(w, c->n_index_head * c->index_dim, "index q"), in[5] = w_input(w, c->n_index_head, "index w");
        in[6] = w_input(w, 2 * c->index_dim, "index kv"), in[7] = w_input(w, 2 * c->index_dim, "index gate");
    }
    *y = w_value(w, OB_ROWS_TOK, c->n_head * c->k_dim, "y");
    ob_op *op = w_op(w, OB_OP_CSA);
    op->in[0] = in[0], op->in[1] = in[1], op->out[0] = *y;
    op->w[0] = w_vector(w, c->n_head, 0, 1);
    ob_csa_params p = {.n_head = c->n_head, .k_dim = c->k_dim, .window = c->window, .ratio = c->ratio,
                       .n_index_head = c->n_index_head, .index_dim = c->index_dim, .top_k = c->top_k,
                       .scale = 1.5f / sqrtf((float)c->k_dim), .eps = 1e-6f, .cache_raw = w_cache(w, 1, c->k_dim, 0)};
    p.rope = (ob_rope_params){.pairing = OB_ROPE_NORM, .head_dim = c->k_dim, .n_rot = c->n_rot,
                              .rot_off = c->k_dim - c->n_rot, .base = 1e4f, .freq_scale = 1, .attn_factor = 1};
    if (c->ratio) {
        compressor_inputs(w, op, in + 2, cols, c->k_dim, c->ratio, 2, 1);
        p.cache_comp = w_cache(w, 1, c->k_dim, 0);
        p.state_comp = w_state(w, (int64_t)(c->overlap ? 2 : 1) * c->ratio * 2 * cols);
    }
    if (index) {
        op->in[4] = in[4], op->in[5] = in[5];
        compressor_inputs(w, op, in + 6, 2 * c->index_dim, c->index_dim, c->ratio, 6, 3);
        p.cache_index = w_cache(w, 1, c->index_dim, 0);
        p.state_index = w_state(w, (int64_t)2 * c->ratio * 4 * c->index_dim);
    }
    op->p.csa = p;
}

/* As attention. What was computed in another order may be rounded the other way by the type of the cache: one
 * part in 2,000 (f16) or 127 (Q8_0) of values of up to 4; few are. */
static void test_csa(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    for (size_t i = 0; i < sizeof k_csa / sizeof *k_csa; i++) {
        const ob_type t = k_csa[i].t;
        world w;
        ob_val y;
        w_init(&w, 1500 + (uint32_t)i);
        build_csa(&w, &k_csa[i], &y);
        run_steps(&w, d, y, t == OB_F32 ? 3e-6 : t == OB_F16 ? 3e-5 : 1e-3, t == OB_F32 ? 5e-5 : t == OB_F16 ? 2e-3 : 5e-2,
                  "compressed sparse attention");
    }
    ob_dev_close(d);
}

/* --- sampling ----------------------------------------------------------------------------------- */

/* Ids and values exactly; log-sum-exp as a sum of up to 20,000 terms in another order. Columns come from a table of
 * rounded numbers, so that there are many ties; case 3 has nothing else. */
static void test_top_k(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    static const struct { int32_t cols, k; float scale; ob_type t; } c[] = {
        {30, 64, 1, OB_F32}, {1000, 64, 3, OB_F32}, {20000, 64, 2, OB_F32}, {17000, 8, 0, OB_F32},
        {8192, 1, 5, OB_F32}, {20032, 64, 1, OB_Q4_0}, {40000, 40, 0.1f, OB_BF16}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        world w;
        w_init(&w, 1600 + (uint32_t)i);
        const int32_t k = c[i].k;
        const ob_val x = w_value(&w, OB_ROWS_TOK, c[i].cols, "x"), y = w_value(&w, OB_ROWS_TOK, 2 * k + 2, "top");
        ob_op *op = w_op(&w, OB_OP_EMBED);
        op->out[0] = x, op->p.embed.scale = 1;
        op->w[0] = w_weight(&w, OB_USE_EMBED, c[i].t, c[i].cols, W_VOCAB, c[i].scale);
        op = w_op(&w, OB_OP_TOP_K);
        op->in[0] = x, op->out[0] = y, op->p.top_k.k = k;
        w_output(&w, y);
        if (!has_ops(&w, d)) {
            w_free(&w);
            continue;
        }
        w_start(&w, d, 64);
        for (int32_t s = 0; s < 4; s++) {
            int32_t rows;
            w_step(&w, k_steps[s]);
            float *got = w_read(&w, y, &rows);
            for (int32_t r = 0; r < rows; r++) {
                const float *a = got + r * (2 * k + 2), *b = w.ref_vals[y] + r * (2 * k + 2);
                for (int32_t j = 0; j < 2 * k; j++)
                    if (a[j] != b[j])
                        fail_msg("case %zu, row %d, column %d: got %.9g, want %.9g", i, r, j, (double)a[j], (double)b[j]);
                if (!(fabsf(a[2 * k] - b[2 * k]) <= 2e-6f * fmaxf(1, fabsf(b[2 * k]))) || a[2 * k + 1] != 0)
                    fail_msg("case %zu, row %d: log-sum-exp %.9g, want %.9g; %g NaN", i, r, (double)a[2 * k],
                             (double)b[2 * k], (double)a[2 * k + 1]);
            }
            free(got);
        }
        w_free(&w);
    }
    ob_dev_close(d);
}

/* NaN and infinities. */
static void test_top_k_odd_numbers(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    world w;
    w_init(&w, 1700);
    const ob_val x = w_value(&w, OB_ROWS_TOK, 9000, "x"), y = w_value(&w, OB_ROWS_TOK, 10, "top");
    ob_op *op = w_op(&w, OB_OP_EMBED);
    op->out[0] = x, op->p.embed.scale = 1;
    op->w[0] = w_weight(&w, OB_USE_EMBED, OB_F32, 9000, W_VOCAB, 1);
    float *table = w.data[op->w[0]];
    for (int32_t v = 0; v < W_VOCAB; v++)
        for (int32_t i = 0; i < 9000; i++)
            if (v % 2 ? i % 4500 != 7 : i == 8999) table[v * 9000 + i] = v % 2 ? -INFINITY : NAN;
    op = w_op(&w, OB_OP_TOP_K);
    op->in[0] = x, op->out[0] = y, op->p.top_k.k = 4;
    w_output(&w, y);
    if (has_ops(&w, d)) {
        int32_t rows;
        w_start(&w, d, 64);
        w_step(&w, k_steps[3]);
        float *got = w_read(&w, y, &rows);
        for (int32_t r = 0; r < rows; r++) {
            const float *a = got + r * 10, *b = w.ref_vals[y] + r * 10;
            assert_float_equal(a[9], b[9], 0);
            if (b[9] != 0) continue;
            for (int32_t j = 0; j < 8; j++) assert_true(a[j] == b[j]);
            assert_float_equal(a[8], b[8], 1e-5);
        }
        free(got);
    }
    w_free(&w);
    ob_dev_close(d);
}

/* The same in a plan for few tokens, as decode has. */
static void test_states_few_tokens(void **state)
{
    g_plan_tok = 16;
    test_conv1d(state);
    test_gdn(state);
    test_cca(state);
    test_csa(state);
    g_plan_tok = 128;
}

/* --- pictures ---------------------------------------------------------------------------------- */

/* Copies, and one product. */
static void test_vectors_and_merge(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    static const int32_t cols[] = {7, 48, 256}, rows[] = {1, 4, 16};
    for (uint32_t i = 0; i < 18; i++) {
        world w;
        w_init(&w, 900 + i);
        w.pictures = true;
        w.vec_cols = cols[i % 3];
        w.merge_n = rows[i / 3 % 3];
        const ob_val x = w_input(&w, cols[i % 3], "x");
        ob_op *op = &w.ops[w.prog.n_ops - 1];
        op->p.embed.vectors = true;
        op->p.embed.scale = 3;
        op = w_op(&w, OB_OP_MERGE);
        op->p.merge.n = rows[i / 3 % 3];
        op->p.merge.mean = i >= 9;
        const ob_val y = w_value(&w, OB_ROWS_OUT, cols[i % 3] * (i >= 9 ? 1 : rows[i / 3 % 3]), "y");
        op->in[0] = x, op->out[0] = y;
        w_output(&w, x);
        w_output(&w, y);
        if (has_ops(&w, d)) {
            w_start(&w, d, g_plan_tok);
            for (int32_t s = 0; s < N_STEPS; s++) {
                int32_t n = 0;
                for (int32_t q = 0; q < W_MAX_SEQ; q++) n += k_steps[s][q];
                if (n < w.merge_n) continue;
                w_step(&w, k_steps[s]);
                w_compare(&w, x, 1e-7, 1e-6, "vectors");
                w_compare(&w, y, 1e-6, 1e-5, "merge");
            }
        }
        w_free(&w);
    }
    ob_dev_close(d);
}

/* As the plain rope. */
static void test_rope_axes(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    static const ob_rope_params c[] = {
        {.pairing = OB_ROPE_NEOX, .head_dim = 16, .n_rot = 16, .base = 1e6f, .axis_pairs = {2, 3, 3}},
        {.pairing = OB_ROPE_NEOX, .head_dim = 80, .n_rot = 80, .base = 1e4f, .axis_pairs = {20, 20, 0}, .axis_restart = true},
        {.pairing = OB_ROPE_NORM, .head_dim = 24, .n_rot = 12, .rot_off = 4, .base = 1e4f, .axis_pairs = {1, 2, 3}}};
    for (uint32_t i = 0; i < 3; i++) {
        world w;
        w_init(&w, 930 + i);
        w.pictures = true;
        const ob_val x = w_input(&w, 3 * c[i].head_dim, "x");
        ob_op *op = w_op(&w, OB_OP_ROPE);
        op->in[0] = op->out[0] = x;
        op->p.rope = c[i];
        op->p.rope.freq_scale = op->p.rope.attn_factor = 1;
        run_steps(&w, d, x, 1e-6, 1e-5, "rope over axes");
    }
    ob_dev_close(d);
}

/* As attention without blocks. */
static void test_attention_blocks(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    ob_dev_info info;
    d->api->describe(d, &info);
    for (uint32_t i = 0; i < 12; i++) {
        world w;
        w_init(&w, 950 + i);
        w.pictures = true;
        w.page_tok = 16;
        w.k_type = w.v_type = i % 2 ? OB_F16 : OB_F32;
        const int32_t nh = 4, nkv = i % 4 < 2 ? 2 : 4, dim = i % 3 ? 32 : 20;
        const ob_val q = w_input(&w, nh * dim, "q"), k = w_input(&w, nkv * dim, "k"), v = w_input(&w, nkv * dim, "v");
        const ob_val y = w_value(&w, OB_ROWS_TOK, nh * dim, "y");
        ob_op *op = w_op(&w, OB_OP_ATTENTION);
        op->in[0] = q, op->in[1] = k, op->in[2] = v, op->out[0] = y;
        op->p.attn = (ob_attn_params){.cache = w_cache(&w, nkv, dim, dim), .n_head = nh, .n_head_kv = nkv, .k_dim = dim,
                                      .v_dim = dim, .scale = 2.0f / sqrtf((float)dim), .causal = i % 3 != 2,
                                      .window = i < 6 ? 0 : 12, .blocks = i % 3 == 0 ? OB_BLOCKS_ONLY : OB_BLOCKS_ALSO};
        const bool half = (info.caps & OB_DEV_HALF_ATTN) && w.k_type == OB_F16 && g_plan_tok > 16; /* see run_attention */
        run_steps(&w, d, y, half ? 1e-3 : 3e-6, half ? 1e-2 : 5e-5, "attention by blocks");
    }
    ob_dev_close(d);
}

static void test_attention_blocks_few_tokens(void **state)
{
    g_plan_tok = 6;
    test_attention_blocks(state);
    g_plan_tok = 128;
}

const struct CMUnitTest devcts_more[] = {
    cmocka_unit_test(test_parts), cmocka_unit_test(test_moe), cmocka_unit_test(test_moe_shapes), cmocka_unit_test(test_moe_block),
    cmocka_unit_test(test_linear_heads),
    cmocka_unit_test(test_latent_attention), cmocka_unit_test(test_conv1d), cmocka_unit_test(test_gdn),
    cmocka_unit_test(test_cca), cmocka_unit_test(test_states_few_tokens),
    cmocka_unit_test(test_hyper_connections), cmocka_unit_test(test_csa),
    cmocka_unit_test(test_top_k), cmocka_unit_test(test_top_k_odd_numbers),
    cmocka_unit_test(test_vectors_and_merge), cmocka_unit_test(test_rope_axes), cmocka_unit_test(test_attention_blocks),
    cmocka_unit_test(test_attention_blocks_few_tokens),
};
const size_t devcts_n_more = sizeof devcts_more / sizeof *devcts_more;
