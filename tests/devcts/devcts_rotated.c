/* Conformance of products with Hadamard-rotated weights: the transform and the rounding of activations to the bit,
 * products, chains of ops whose results go to them, mixtures. */
#include "devcts.h"

#include <math.h>

#include "quant/act4.h"
#include "quant/hadamard.h"
#include "quant/quant.h"

/* A device that has no rotation gets no such weights. */
static ob_dev *open_rotating(bool exact)
{
    ob_dev *d = devcts_open(exact);
    ob_dev_info info;
    d->api->describe(d, &info);
    if ((info.caps & OB_DEV_HADAMARD) && (info.caps & OB_DEV_ACT4)) return d;
    print_message("skipped: %s does not run Hadamard-rotated weights with 4-bit activations\n", info.name);
    ob_dev_close(d);
    return NULL;
}

static int32_t rotated(world *w, ob_weight_use use, int64_t k, int64_t n, int64_t n_mat, bool act4)
{
    const float s = 1 / sqrtf((float)k);
    const int32_t i = use == OB_USE_EXPERTS ? w_experts(w, OB_Q4_0, k, n, n_mat, s) : w_weight(w, use, OB_Q4_0, k, n, s);
    w->weights[i].hadamard = true;
    w->weights[i].act4 = act4;
    return i;
}

static void linear(world *w, ob_val x, ob_val res, ob_val y, int32_t weight)
{
    ob_op *op = w_op(w, OB_OP_LINEAR);
    op->in[0] = x, op->in[1] = res, op->out[0] = y, op->w[0] = weight;
    op->p.linear.n_mat = 1;
}

/* --- codes and scales --------------------------------------------------------------------------- */

enum { CODE_K = 160, CODE_ROWS = 8 };

/* What 32 activations stand for: as the reference of the CPU rounds them (dev/cpu/linear_c.c, quant/act4.h). */
static void round_block(float x[OB_HADAMARD], bool coarse, bool exact)
{
    float top = 0;
    ob_hadamard32(x);
    if (coarse) {
        ob_act4_round(x);
        return;
    }
    for (int i = 0; i < OB_HADAMARD; i++) top = fmaxf(top, fabsf(x[i]));
    const float d = top / 127.0f, inv = top > 0 ? 127.0f / top : 0;
    for (int i = 0; i < OB_HADAMARD && !exact; i++) x[i] = d * rintf(x[i] * inv);
}

/* Row i of the weights is 1 at place i and 0 elsewhere, so that the product is the rounded activations themselves. */
static void run_codes(bool exact, bool act4, int32_t most)
{
    ob_dev *d = open_rotating(exact);
    if (!d) skip();
    ob_dev_info info;
    d->api->describe(d, &info);
    /* The reference ops never round to 8 bits; and they add the transform up in another order. */
    const bool reference = strstr(info.driver, "level ref");
    exact = exact || reference;
    world w;
    w_init(&w, 1200);
    w.mark_coarse = true;
    const ob_val x = w_input(&w, CODE_K, "x"), y = w_value(&w, OB_ROWS_TOK, CODE_K, "y");
    const int32_t weight = rotated(&w, OB_USE_LINEAR, CODE_K, CODE_K, 1, act4);
    uint8_t *q = w.data[weight];
    for (int r = 0; r < CODE_K; r++)
        for (int b = 0; b < CODE_K / 32; b++, q += 18) {
            const int at = r - 32 * b;
            q[0] = 0, q[1] = 0x3C; /* 1.0 */
            for (int j = 0; j < 16; j++) q[2 + j] = (uint8_t)((at == j ? 9 : 8) | (at == 16 + j ? 9 : 8) << 4);
        }
    /* Spikes, blocks of small numbers and of zeros among the noise. */
    float *table = w.data[0];
    for (int i = 0; i < W_VOCAB * CODE_K; i++) {
        const int b = i / 32 % 7;
        table[i] *= b == 1 ? 1e-6f : b == 2 && i % 32 != 5 ? 0.01f : b == 3 && i % 3 ? 0 : 1;
    }
    linear(&w, x, OB_NONE, y, weight);
    w_output(&w, y);
    w_start(&w, d, most);
    for (int n = 0; n < 60; n++) {
        int32_t rows;
        memset(w.past, 0, sizeof w.past);
        w_step(&w, (int32_t[W_MAX_SEQ]){most});
        float *got = w_read(&w, y, &rows);
        for (int32_t r = 0; r < rows; r++)
            for (int32_t k = 0; k < CODE_K; k += 32) {
                float want[32];
                memcpy(want, w.ref_vals[x] + r * CODE_K + k, sizeof want);
                round_block(want, act4 && w.coarse[r], exact);
                for (int i = 0; i < 32; i++)
                    if (!(fabsf(want[i] - got[r * CODE_K + k + i]) <= (reference ? 1e-6f : 0)))
                        fail_msg("row %d, column %d%s%s: %a, wanted %a", r, k + i, act4 ? ", act4" : "", exact ? ", exact" : "",
                                 (double)got[r * CODE_K + k + i], (double)want[i]);
            }
        free(got);
    }
    w_free(&w);
    ob_dev_close(d);
}

static void test_codes(void **state)
{
    (void)state;
    for (int exact = 0; exact < 2; exact++)
        for (int act4 = 0; act4 < 2; act4++) {
            run_codes(exact, act4, CODE_ROWS);
            run_codes(exact, act4, 1);
        }
    run_codes(true, true, 40);
    run_codes(true, false, 40);
}

/* --- products ----------------------------------------------------------------------------------- */

/* Several matrices of which some are rotated, some round, some neither, of one input. */
static void run_products(bool exact, int32_t most, double rms_tol, double max_tol)
{
    enum { K = 544, N = 96, MATS = 4 };
    ob_dev *d = open_rotating(exact);
    if (!d) skip();
    world w;
    w_init(&w, 1210);
    w.mark_coarse = true;
    const ob_val x = w_input(&w, K, "x"), res = w_input(&w, N, "residual");
    ob_val y[MATS + 1];
    ob_op *op = w_op(&w, OB_OP_LINEAR);
    op->in[0] = x;
    op->p.linear.n_mat = MATS;
    for (int m = 0; m < MATS; m++) {
        w_output(&w, y[m] = op->out[m] = w_value(&w, OB_ROWS_TOK, N, "y"));
        op->w[m] = m == 1 ? w_weight(&w, OB_USE_LINEAR, OB_Q8_0, K, N, 1 / sqrtf(K)) : rotated(&w, OB_USE_LINEAR, K, N, 1, m > 1);
    }
    w_output(&w, y[MATS] = w_value(&w, OB_ROWS_TOK, N, "y"));
    linear(&w, x, res, y[MATS], rotated(&w, OB_USE_LINEAR, K, N, 1, true));
    w_start(&w, d, most);
    static const int32_t rows[] = {1, 2, 5, 8, 17, 70, 545};
    for (size_t s = 0; s < sizeof rows / sizeof *rows && rows[s] <= most; s++) {
        memset(w.past, 0, sizeof w.past);
        w_step(&w, (int32_t[W_MAX_SEQ]){rows[s]});
        for (int m = 0; m <= MATS; m++) w_compare(&w, y[m], rms_tol, max_tol, "rotated product");
    }
    w_free(&w);
    ob_dev_close(d);
}

/* As for products of other weights: the reference rounds to 4 bits too. */
static void test_products(void **state)
{
    (void)state;
    static const int32_t most[] = {1, 3, 8, 32, 600};
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        run_products(true, most[i], 2e-6, 3e-5);
        run_products(false, most[i], 0.012, 0.07);
    }
}

/* --- chains ------------------------------------------------------------------------------------- */

/* x += attention-like product; norm; gate, up, GLU, down; norm; product: what comes before a rotated product may
 * do its rotation. Outputs choose rows, so that flags by output count too. */
static void run_chain(bool exact, bool act4, int32_t most, double rms_tol, double max_tol)
{
    enum { D = 256, FF = 320, N = 64 };
    ob_dev *d = open_rotating(exact);
    if (!d) skip();
    world w;
    w_init(&w, 1220);
    w.mark_coarse = true;
    ob_val v[9];
    static const int32_t cols[] = {D, D, FF, FF, D, D, D, N};
    const ob_val x = w_input(&w, D, "x");
    for (int i = 0; i < 8; i++) v[i] = w_value(&w, i < 5 ? OB_ROWS_TOK : OB_ROWS_OUT, cols[i], "v");
    linear(&w, x, x, v[0], rotated(&w, OB_USE_LINEAR, D, D, 1, act4));
    ob_op *op = w_op(&w, OB_OP_RMS_NORM);
    op->in[0] = v[0], op->out[0] = v[1], op->w[0] = w_vector(&w, D, 1, 0.1f), op->p.norm.eps = 1e-5f;
    op = w_op(&w, OB_OP_LINEAR);
    op->in[0] = v[1], op->p.linear.n_mat = 2;
    for (int m = 0; m < 2; m++) op->out[m] = v[2 + m], op->w[m] = rotated(&w, OB_USE_LINEAR, D, FF, 1, act4);
    op = w_op(&w, OB_OP_GLU);
    op->in[0] = v[2], op->in[1] = v[3], op->out[0] = v[2], op->p.glu.act = OB_ACT_SILU;
    linear(&w, v[2], v[0], v[4], rotated(&w, OB_USE_LINEAR, FF, D, 1, act4));
    op = w_op(&w, OB_OP_ROWS_OUT);
    op->in[0] = v[4], op->out[0] = v[5];
    op = w_op(&w, OB_OP_RMS_NORM);
    op->in[0] = v[5], op->out[0] = v[6], op->w[0] = w_vector(&w, D, 1, 0.1f), op->p.norm.eps = 1e-5f;
    linear(&w, v[6], OB_NONE, v[7], rotated(&w, OB_USE_LINEAR, D, N, 1, act4));
    w_output(&w, v[7]);
    w_start(&w, d, most);
    static const int32_t rows[] = {1, 3, 8, 33, 100};
    for (size_t s = 0; s < sizeof rows / sizeof *rows && rows[s] <= most; s++) {
        memset(w.past, 0, sizeof w.past);
        w_step(&w, (int32_t[W_MAX_SEQ]){rows[s]});
        w_compare(&w, v[7], rms_tol, max_tol, "chain");
    }
    w_free(&w);
    ob_dev_close(d);
}

/* Four roundings to 8 bits. To 4 bits, an input that is an ulp off may take another code now and then, 1/16 of its
 * block's range, and more of them follow in the next products: a few hundredths in a row where that happened. */
static void test_chain(void **state)
{
    (void)state;
    static const int32_t most[] = {1, 8, 40, 128};
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        run_chain(true, false, most[i], 3e-6, 3e-5);
        run_chain(true, true, most[i], 0.08, 0.4);
        run_chain(false, false, most[i], 0.025, 0.15);
        run_chain(false, true, most[i], 0.12, 0.7);
    }
}

/* --- mixtures ----------------------------------------------------------------------------------- */

static void run_mixture(bool exact, bool act4, bool merged, int32_t most, double rms_tol, double max_tol)
{
    enum { D = 96, FF = 64, EXPERTS = 6, USED = 2 };
    ob_dev *d = open_rotating(exact);
    if (!d) skip();
    world w;
    w_init(&w, 1230);
    w.mark_coarse = true;
    const ob_val x = w_input(&w, D, "x"), logits = w_input(&w, EXPERTS, "logits"), ids = w_value(&w, OB_ROWS_TOK, USED, "ids"),
                 weights = w_value(&w, OB_ROWS_TOK, USED, "weights"), y = w_value(&w, OB_ROWS_TOK, D, "y");
    ob_op *op = w_op(&w, OB_OP_MOE_ROUTE);
    op->in[0] = logits, op->out[0] = ids, op->out[1] = weights;
    op->p.route = (ob_route_params){OB_GATING_SOFTMAX, USED, 1, 1, true, 1};
    op = w_op(&w, OB_OP_MOE_GLU);
    op->in[0] = x, op->in[1] = ids, op->in[2] = weights, op->in[3] = x, op->out[0] = y;
    op->p.moe = (ob_moe_params){.n_used = USED, .act = OB_ACT_SILU};
    op->w[0] = rotated(&w, OB_USE_EXPERTS, D, merged ? 2 * FF : FF, EXPERTS, act4);
    if (!merged) op->w[1] = rotated(&w, OB_USE_EXPERTS, D, FF, EXPERTS, act4);
    op->w[2] = rotated(&w, OB_USE_EXPERTS, FF, D, EXPERTS, act4);
    w_output(&w, y);
    w_start(&w, d, most);
    static const int32_t rows[] = {1, 2, 7, 30, 120};
    for (size_t s = 0; s < sizeof rows / sizeof *rows && rows[s] <= most; s++) {
        memset(w.past, 0, sizeof w.past);
        w_step(&w, (int32_t[W_MAX_SEQ]){rows[s]});
        w_compare(&w, y, rms_tol, max_tol, "rotated mixture");
    }
    w_free(&w);
    ob_dev_close(d);
}

static void test_mixture(void **state)
{
    (void)state;
    static const int32_t most[] = {1, 8, 32, 128};
    for (size_t i = 0; i < sizeof most / sizeof *most; i++)
        for (int merged = 0; merged < 2; merged++) {
            run_mixture(true, false, merged, most[i], 3e-6, 3e-5);
            run_mixture(true, true, merged, most[i], 0.02, 0.15);
            run_mixture(false, false, merged, most[i], 0.025, 0.15);
            run_mixture(false, true, merged, most[i], 0.12, 0.7);
        }
}

const struct CMUnitTest devcts_rotated[] = {
    {"test_rotated_codes", test_codes, NULL, NULL, NULL},
    {"test_rotated_products", test_products, NULL, NULL, NULL},
    {"test_rotated_chain", test_chain, NULL, NULL, NULL},
    {"test_rotated_mixture", test_mixture, NULL, NULL, NULL},
};
const size_t devcts_n_rotated = sizeof devcts_rotated / sizeof *devcts_rotated;
