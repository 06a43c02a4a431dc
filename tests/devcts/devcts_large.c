/* Buffers over 4 GiB: offsets that do not fit 32 bits, in copies, in a matrix and in a cache.
 *
 * They are for devices with memory to spare (24 GiB free and buffers of 6 GiB), and skipped elsewhere with a word
 * about why. OB_CTS_SMALL=1 runs them anywhere with an eighth of the sizes, which tests the tests. */
#include "devcts.h"

#include <math.h>
#include <stdlib.h>

static const uint64_t GIB = (uint64_t)1 << 30;

/* What sizes are divided by; 0: the device has no room, and it was said why. */
static int32_t divisor(ob_dev *d)
{
    ob_dev_info info;
    d->api->describe(d, &info);
    const char *small = getenv("OB_CTS_SMALL");
    if (small && strcmp(small, "1") == 0) return 8;
    if (!(info.caps & OB_DEV_GPU)) {
        print_message("for GPUs only\n");
        return 0;
    }
    if (info.max_buffer_bytes >= 6 * GIB && info.mem_free_bytes >= 24 * GIB) return 1;
    print_message("buffers of %.1f GiB, %.1f GiB free: 6 and 24 are needed\n", (double)info.max_buffer_bytes / (double)GIB,
                  (double)info.mem_free_bytes / (double)GIB);
    return 0;
}

static void must(ob_status s, const ob_err *err)
{
    if (s != OB_OK) fail_msg("%s", err->text);
}

/* Writes, copies and reads on both sides of 4 GiB, and across it. */
static void test_large_buffer(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    ob_err err;
    const int32_t div = divisor(d);
    if (!div) {
        ob_dev_close(d);
        skip();
    }
    enum { N = 1000 };
    uint8_t src[N], got[N];
    ob_dev_buf *b;
    const uint64_t gib = GIB / (uint64_t)div, size = 5 * gib + 4096, at[] = {0, 4 * gib - N / 2, 4 * gib + 12345, size - N};
    must(d->api->buffer_new(d, size, OB_BUF_ZERO, &b, &err), &err);
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < N; i++) src[i] = (uint8_t)(i * 7 + 31 * k + 1);
        must(d->api->buffer_write(d, b, at[k], src, N, &err), &err);
    }
    must(d->api->buffer_copy(d, b, 2 * gib, b, 4 * gib + 12345, N, &err), &err);
    must(d->api->buffer_zero(d, b, 4 * gib - 3, 6, &err), &err);
    for (int k = 0; k < 5; k++) {
        must(d->api->buffer_read(d, b, k == 4 ? 2 * gib : at[k], got, N, &err), &err);
        for (int i = 0; i < N; i++) {
            const bool zero = k == 1 && i >= N / 2 - 3 && i < N / 2 + 3;
            assert_int_equal(got[i], zero ? 0 : (uint8_t)(i * 7 + 31 * (k == 4 ? 2 : k) + 1));
        }
    }
    /* What 32 bits would make of the offsets is untouched. */
    must(d->api->buffer_read(d, b, 12345, got, N, &err), &err);
    for (int i = 0; i < N; i++) assert_int_equal(got[i], 0);
    d->api->buffer_free(d, b);
    ob_dev_close(d);
}

/* A matrix of 4.3 GiB, zero but for its first and last rows. tol: of a result, in units of what its terms add up to by chance. */
static void run_matrix(ob_dev *d, ob_type type, int32_t n_out, double tol)
{
    enum { K = 65536, SOME = 40 };
    world w;
    w_init(&w, 77);
    w.skip_reference = true;
    const ob_val x = w_input(&w, K, "x"), y = w_value(&w, OB_ROWS_TOK, n_out, "y");
    const int32_t m = w_weight(&w, OB_USE_LINEAR, type, K, SOME, 1 / 256.0f);
    const size_t row = ob_type_row_bytes(type, K);
    uint8_t *all = calloc(row * (size_t)n_out + 64, 1);
    float *first = malloc((size_t)K * SOME * sizeof *first);
    assert_non_null(all);
    assert_non_null(first);
    memcpy(all, w.data[m], row * SOME);
    memcpy(all + row * (size_t)(n_out - SOME), w.data[m], row * SOME);
    ob_type_get(type)->dequant(all, first, (int64_t)K * SOME);
    free(w.data[m]);
    w.data[m] = all;
    w.weights[m].data = all;
    w.weights[m].ne[1] = n_out;
    w.weights[m].n_bytes = row * (size_t)n_out;
    ob_op *op = w_op(&w, OB_OP_LINEAR);
    op->in[0] = x, op->out[0] = y, op->w[0] = m, op->p.linear.n_mat = 1;
    w_output(&w, y);
    w_start(&w, d, 32);
    for (int many = 0; many < 2; many++) {
        int32_t n_rows;
        w_step(&w, (int32_t[W_MAX_SEQ]){many ? 24 : 2});
        float *got = w_read(&w, y, &n_rows);
        const float *table = w.data[w.ops[0].w[0]];
        for (int32_t r = 0; r < n_rows; r += many ? 11 : 1) {
            const float *in = table + (size_t)w.tok[r] * K, *out = got + (size_t)r * (size_t)n_out;
            for (int32_t c = 0; c < SOME; c++) {
                double want = 0, size = 0;
                for (int32_t i = 0; i < K; i++) {
                    const double t = (double)in[i] * (double)first[(size_t)c * K + (size_t)i];
                    want += t;
                    size += t * t;
                }
                if (!(fabs((double)out[c] - want) <= tol * sqrt(size)) || out[n_out - SOME + c] != out[c])
                    fail_msg("%s: row %d of %d, column %d: %g at the beginning, %g at the end, %g wanted (terms %g)",
                             ob_type_get(type)->name, r, n_rows, c, (double)out[c], (double)out[n_out - SOME + c], want, sqrt(size));
            }
            for (int32_t c = SOME; c < n_out - SOME; c += 97)
                if (out[c] != 0)
                    fail_msg("%s: row %d of %d, column %d: %g, not 0", ob_type_get(type)->name, r, n_rows, c, (double)out[c]);
        }
        free(got);
    }
    free(first);
    w_free(&w);
}

static void test_large_matrix(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    const int32_t div = divisor(d);
    if (!div) {
        ob_dev_close(d);
        skip();
    }
    run_matrix(d, OB_F16, 35000 / div, 2e-3);  /* activations in f16: 2^-11 of each term */
    run_matrix(d, OB_Q8_0, 66000 / div, 3e-2); /* in 8 bits: half of 1/127 of the largest of 32 terms' activations */
    ob_dev_close(d);
}

/* A cache whose pages in use lie behind 4 GiB. */
static void run_cache(ob_dev *d, ob_type type, int32_t skipped, bool half)
{
    enum { HEADS = 8, HEADS_KV = 8, DIM = 128 };
    world w;
    w_init(&w, 78);
    w.k_type = w.v_type = type;
    w.skipped_pages = skipped;
    const ob_val q = w_input(&w, HEADS * DIM, "q"), k = w_input(&w, HEADS_KV * DIM, "k"), v = w_input(&w, HEADS_KV * DIM, "v"),
                 o = w_value(&w, OB_ROWS_TOK, HEADS * DIM, "o");
    ob_op *op = w_op(&w, OB_OP_ATTENTION);
    op->in[0] = q, op->in[1] = k, op->in[2] = v, op->out[0] = o;
    op->p.attn = (ob_attn_params){.cache = w_cache(&w, HEADS_KV, DIM, DIM), .n_head = HEADS, .n_head_kv = HEADS_KV,
                                  .k_dim = DIM, .v_dim = DIM, .scale = 1 / sqrtf(DIM), .causal = true};
    w_output(&w, o);
    w_start(&w, d, 128);
    w_step(&w, (int32_t[W_MAX_SEQ]){100, 7});
    w_compare(&w, o, half ? 1e-3 : 3e-6, half ? 1e-2 : 5e-5, "many tokens");
    w_step(&w, (int32_t[W_MAX_SEQ]){1, 1, 1});
    w_compare(&w, o, half ? 1e-3 : 3e-6, half ? 1e-2 : 5e-5, "single tokens");
    w_free(&w);
}

static void test_large_cache(void **state)
{
    (void)state;
    ob_dev *d = devcts_open(false);
    const int32_t div = divisor(d);
    if (!div) {
        ob_dev_close(d);
        skip();
    }
    ob_dev_info info;
    d->api->describe(d, &info);
    /* 8 heads of 128: 64 KiB a page in f16, 34 KiB in q8_0. Tolerances as in test_attention. */
    run_cache(d, OB_F16, 65536 / div + 5, info.caps & OB_DEV_HALF_ATTN);
    run_cache(d, OB_Q8_0, 124000 / div, false);
    ob_dev_close(d);
}

const struct CMUnitTest devcts_large[] = {
    cmocka_unit_test(test_large_buffer), cmocka_unit_test(test_large_matrix), cmocka_unit_test(test_large_cache)};
const size_t devcts_n_large = sizeof devcts_large / sizeof *devcts_large;
