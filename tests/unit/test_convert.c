/* convert/: quantising whole files, importance files, rotation. */
#include "test.h"

#include <math.h>
#include <unistd.h>

#include "base/alloc.h"
#include "convert/convert.h"
#include "fmt/gguf_write.h"
#include "quant/act4.h"
#include "quant/hadamard.h"

enum { K = 256, N = 96, N_EXPERT = 3 };

static char src_path[64], dst_path[64], im_path[64];
static float weights[N_EXPERT * N * K], norm[K];

static int setup(void **state)
{
    (void)state;
    uint32_t seed = 7;
    snprintf(src_path, sizeof src_path, "/tmp/ob-conv-%ld-src", (long)getpid());
    snprintf(dst_path, sizeof dst_path, "/tmp/ob-conv-%ld-dst", (long)getpid());
    snprintf(im_path, sizeof im_path, "/tmp/ob-conv-%ld-im", (long)getpid());
    for (int i = 0; i < N_EXPERT * N * K; i++) {
        seed = seed * 1664525u + 1013904223u;
        weights[i] = ((float)(seed >> 8) / (float)(1 << 24) - 0.5f) * (1 + (float)(i / K % 5));
    }
    for (int i = 0; i < K; i++) norm[i] = 1 + (float)i / K;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(src_path);
    unlink(dst_path);
    unlink(im_path);
    return 0;
}

/* A file with the named tensors over the arrays above: [K, N], [K, N, N_EXPERT] where the name has
 * "_exps", a vector of K where it has "_norm". */
static void write_source(const char *const *names, size_t n)
{
    ob_err e = {0};
    ob_outfile *o;
    ob_gguf_meta m;
    ob_tensor t[16] = {0};
    for (size_t i = 0; i < n; i++) {
        const bool vec = strstr(names[i], "_norm") != NULL, exps = strstr(names[i], "_exps") != NULL;
        t[i] = (ob_tensor){.name = names[i], .type = OB_F32, .n_dims = vec ? 1 : exps ? 3 : 2,
                           .ne = {K, vec ? 1 : N, exps ? N_EXPERT : 1, 1}, .data = vec ? norm : weights};
        t[i].n_bytes = sizeof(float) * (size_t)(t[i].ne[0] * t[i].ne[1] * t[i].ne[2]);
    }
    ob_gguf_meta_init(&m);
    ob_gguf_meta_str(&m, "general.architecture", "llama");
    ob_gguf_meta_u32(&m, "general.file_type", 0);
    ob_gguf_meta_u32(&m, "llama.block_count", 2);
    ob_gguf_meta_strs(&m, "list", (const char *const[]){"one", "", "three"}, 3);
    assert_int_equal(ob_outfile_new(src_path, &o, &e), OB_OK);
    assert_int_equal(ob_gguf_write_head(o, &m, t, n, 32, &e), OB_OK);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(ob_outfile_write(o, t[i].data, t[i].n_bytes, &e), OB_OK);
        assert_int_equal(ob_outfile_pad(o, 32, &e), OB_OK);
    }
    assert_int_equal(ob_outfile_commit(o, &e), OB_OK);
    ob_gguf_meta_deinit(&m);
}

static ob_status convert(const ob_quantize_params *p, ob_quantize_result *r, ob_err *e)
{
    ob_file *f;
    assert_int_equal(ob_file_open(src_path, 0, &f, e), OB_OK);
    ob_status s = ob_convert_quantize(f, dst_path, p, r, e);
    ob_file_close(f);
    return s;
}

static ob_file *reopen(void)
{
    ob_file *f;
    ob_err e = {0};
    assert_int_equal(ob_file_open(dst_path, 0, &f, &e), OB_OK);
    return f;
}

static const char *const k_names[] = {"token_embd.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.weight",
                                      "blk.0.ffn_down_exps.weight", "blk.1.attn_v.weight", "output.weight",
                                      "blk.1.ffn_gate_inp.weight"};

static void test_types_and_bytes(void **state)
{
    (void)state;
    ob_err e = {0};
    ob_quantize_result r;
    static uint8_t want[N_EXPERT * N * K * sizeof(float)];
    write_source(k_names, 7);
    const char *rules[] = {"attn_q\\.=q5_0", "attn=q8_0"};
    ob_quantize_params p = {.type = "q4_K", .rules = rules, .n_rules = 2, .n_threads = 3};
    assert_int_equal(convert(&p, &r, &e), OB_OK);
    assert_int_equal(r.n_tensors, 7);
    assert_int_equal(r.n_quantized, 5);
    ob_file *f = reopen();
    static const ob_type types[] = {OB_Q4_K, OB_F32, OB_Q5_0, OB_Q4_K, OB_Q8_0, OB_Q6_K, OB_F32};
    for (size_t i = 0; i < 7; i++) {
        const ob_tensor *t = ob_file_tensor(f, i);
        const int64_t rows = t->ne[1] * t->ne[2];
        assert_string_equal(t->name, k_names[i]);
        assert_int_equal(t->type, types[i]);
        assert_int_equal(ob_quantize(types[i], i == 1 ? norm : weights, want, rows, K, NULL, &e), OB_OK);
        assert_memory_equal(t->data, want, t->n_bytes);
    }
    ob_str s;
    int64_t x;
    assert_true(ob_kv_elem_str(ob_file_find_kv(f, "list"), 2, &s) && s.len == 5);
    assert_true(ob_kv_i64(ob_file_find_kv(f, "general.file_type"), &x) && x == 15);
    assert_true(ob_kv_i64(ob_file_find_kv(f, "general.quantization_version"), &x) && x == 2);
    ob_file_close(f);
    /* The same bytes on one thread. */
    static char a[1 << 20], b[1 << 20];
    FILE *g = fopen(dst_path, "rb");
    const size_t n = fread(a, 1, sizeof a, g);
    fclose(g);
    p.n_threads = 1;
    assert_int_equal(convert(&p, &r, &e), OB_OK);
    g = fopen(dst_path, "rb");
    assert_int_equal(fread(b, 1, sizeof b, g), n);
    fclose(g);
    assert_memory_equal(a, b, n);
}

static void refused(const ob_quantize_params *p, ob_status want, const char *part)
{
    ob_err e = {0};
    ob_quantize_result r;
    unlink(dst_path);
    assert_int_equal(convert(p, &r, &e), want);
    assert_non_null(strstr(e.text, part));
    assert_int_equal(access(dst_path, F_OK), -1);
}

static void test_refusals(void **state)
{
    (void)state;
    write_source(k_names, 7);
    refused(&(ob_quantize_params){.type = "q9"}, OB_E_INVALID, "Q4_K_M");
    refused(&(ob_quantize_params){.type = "IQ2_XS"}, OB_E_INVALID, "known");
    refused(&(ob_quantize_params){.type = "q8_0", .rules = (const char *const[]){"a(=q8_0"}, .n_rules = 1}, OB_E_INVALID, "a(");
    refused(&(ob_quantize_params){.type = "q8_0", .rules = (const char *const[]){"a"}, .n_rules = 1}, OB_E_INVALID, "REGEX=TYPE");
    refused(&(ob_quantize_params){.type = "q8_0", .rules = (const char *const[]){"a=i8"}, .n_rules = 1}, OB_E_INVALID, "i8");
    const float was = weights[5 * K + 3];
    weights[5 * K + 3] = NAN;
    write_source(k_names, 7);
    refused(&(ob_quantize_params){.type = "q4_0", .n_threads = 2}, OB_E_INVALID, "token_embd.weight, row 5");
    weights[5 * K + 3] = was;
}

static void test_requantize(void **state)
{
    (void)state;
    ob_err e = {0};
    ob_quantize_result r;
    write_source(k_names, 7);
    assert_int_equal(convert(&(ob_quantize_params){.type = "q4_0"}, &r, &e), OB_OK);
    assert_int_equal(rename(dst_path, src_path), 0);
    refused(&(ob_quantize_params){.type = "q8_0"}, OB_E_UNSUPPORTED, "--allow-requantize");
    assert_int_equal(convert(&(ob_quantize_params){.type = "q8_0", .requantize = true}, &r, &e), OB_OK);
    assert_int_equal(r.n_requantized, 5);
}

static void test_importance(void **state)
{
    (void)state;
    ob_err e = {0};
    ob_imatrix *im;
    static float x[2 * K], got[K], want_imp[K], imps[N_EXPERT][K];
    static uint8_t want[N * K];
    for (int i = 0; i < K; i++) {
        x[i] = (float)(i % 7);
        x[K + i] = 3;
        want_imp[i] = (x[i] * x[i] + 9) / 2;
    }
    assert_int_equal(ob_imatrix_new(0, &im, &e), OB_OK);
    assert_int_equal(ob_imatrix_add(im, "blk.0.attn_q.weight", K, 1, 0, x, K, 2, &e), OB_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ob_imatrix_add(im, "blk.0.ffn_down_exps.weight", K, N_EXPERT, i, x + i * K, K, 1, &e), OB_OK);
    assert_int_equal(ob_imatrix_add(im, "blk.0.attn_q.weight", K / 2, 1, 0, x, K, 2, &e), OB_E_INVALID);
    assert_int_equal(ob_imatrix_save(im, im_path, "words.txt", 4, 512, &e), OB_OK);
    ob_imatrix_free(im);

    assert_int_equal(ob_imatrix_load(im_path, &im, &e), OB_OK);
    assert_int_equal(ob_imatrix_n(im), 2);
    assert_true(ob_imatrix_get(im, "blk.0.attn_q.weight", K, 1, 0, got));
    assert_memory_equal(got, want_imp, sizeof got);
    assert_false(ob_imatrix_get(im, "blk.0.attn_q.weight", K, 2, 0, got));
    assert_false(ob_imatrix_get(im, "blk.0.attn_k.weight", K, 1, 0, got));
    for (int i = 0; i < N_EXPERT; i++)
        assert_true(ob_imatrix_get(im, "blk.0.ffn_down_exps.weight", K, N_EXPERT, i, imps[i]));
    for (int i = 0; i < K; i++) assert_true(imps[2][i] == 1); /* never saw a row */

    ob_quantize_result r;
    write_source(k_names, 7);
    assert_int_equal(convert(&(ob_quantize_params){.type = "q4_0", .pure = true, .imatrix = im}, &r, &e), OB_OK);
    assert_int_equal(r.n_with_importance, 2);
    ob_file *f = reopen();
    const ob_tensor *q = ob_file_find_tensor(f, "blk.0.attn_q.weight"), *d = ob_file_find_tensor(f, "blk.0.ffn_down_exps.weight");
    assert_int_equal(ob_quantize(OB_Q4_0, weights, want, N, K, want_imp, &e), OB_OK);
    assert_memory_equal(q->data, want, q->n_bytes);
    for (int i = 0; i < N_EXPERT; i++) { /* each expert its own */
        assert_int_equal(ob_quantize(OB_Q4_0, weights + i * N * K, want, N, K, imps[i], &e), OB_OK);
        assert_memory_equal((const uint8_t *)d->data + (size_t)i * d->n_bytes / N_EXPERT, want, d->n_bytes / N_EXPERT);
    }
    ob_file_close(f);
    ob_imatrix_free(im);
    /* A model file is no importance matrix. */
    assert_int_equal(ob_imatrix_load(src_path, &im, &e), OB_E_FORMAT);
}

/* Loss of rows [N][K] rounded to a type at q, by the products c [K][K]. */
static double row_loss(ob_type type, const uint8_t *q, bool rotated, const float *x, int n_x)
{
    static float back[K];
    double loss = 0;
    for (int n = 0; n < N; n++) {
        ob_type_get(type)->dequant(q + (size_t)n * ob_type_row_bytes(type, K), back, K);
        if (rotated) ob_hadamard_row(back, K);
        for (int r = 0; r < n_x; r++) {
            double y = 0;
            for (int i = 0; i < K; i++) y += (double)(back[i] - weights[n * K + i]) * (double)x[r * K + i];
            loss += y * y;
        }
    }
    return loss;
}

/* Inputs that hang together: compensated rounding loses much less than plain rounding, rotated or not, in whole rows
 * and in blocks; and a file that was written is the same when it is read. */
static void test_compensation(void **state)
{
    (void)state;
    enum { N_X = 3 * K };
    ob_err e = {0};
    static float x[N_X * K];
    uint32_t seed = 7;
    float mix[4] = {0};
    for (int r = 0; r < N_X; r++) {
        for (int k = 0; k < 4; k++) mix[k] = (float)((seed = seed * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1;
        for (int i = 0; i < K; i++) {
            const float noise = (float)((seed = seed * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1;
            x[r * K + i] = 2 * mix[i % 4] + mix[i / 7 % 4] + 0.3f * noise;
        }
    }
    write_source(k_names, 7);
    for (int turn = 0; turn < 3; turn++) {
        const bool rotate = turn == 1;
        const ob_type type = turn == 2 ? OB_Q5_0 : OB_Q4_0;
        double loss[3];
        for (int way = 0; way < 3; way++) { /* no products, blocks of 32, whole rows */
            ob_imatrix *im;
            ob_quantize_result r;
            const int64_t block[3] = {0, 32, 1 << 14};
            assert_int_equal(ob_imatrix_new(block[way], &im, &e), OB_OK);
            assert_int_equal(ob_imatrix_add(im, "blk.0.attn_q.weight", K, 1, 0, x, K, N_X - 3, &e), OB_OK);
            assert_int_equal(ob_imatrix_add(im, "blk.0.attn_q.weight", K, 1, 0, x + (N_X - 3) * K, K, 3, &e), OB_OK);
            assert_int_equal(ob_imatrix_save(im, im_path, "numbers", 1, N_X, &e), OB_OK);
            ob_imatrix_free(im);
            assert_int_equal(ob_imatrix_load(im_path, &im, &e), OB_OK);
            const ob_quantize_params p = {.type = ob_type_get(type)->name, .pure = true, .imatrix = im, .rotate = rotate};
            assert_int_equal(convert(&p, &r, &e), OB_OK);
            assert_int_equal(r.n_compensated, way ? 1 : 0);
            ob_file *f = reopen();
            const ob_tensor *t = ob_file_find_tensor(f, "blk.0.attn_q.weight");
            assert_int_equal(t->type, type);
            loss[way] = row_loss(type, t->data, rotate, x, N_X);
            ob_file_close(f);
            ob_imatrix_free(im);
        }
        assert_true(loss[1] < 0.8 * loss[0]);
        assert_true(loss[2] < 0.5 * loss[1]);
    }
    ob_imatrix *im;
    assert_int_equal(ob_imatrix_new(33, &im, &e), OB_E_INVALID);
}

/* The definition of 4-bit activations: codes in range, the error bound, ends, zeros and the choice of the scale. */
static void test_act4(void **state)
{
    (void)state;
    float x[OB_ACT4], y[OB_ACT4];
    int8_t q[OB_ACT4];
    for (int n = 0; n < 200; n++) {
        float most = 0;
        for (int i = 0; i < OB_ACT4; i++) {
            x[i] = y[i] = weights[(n * 37 + i) % (N * K)] * (n % 3 ? 1 : 1e-20f);
            most = fmaxf(most, fabsf(x[i]));
        }
        const float d = ob_act4_codes(x, q);
        ob_act4_round(y);
        double err = 0, usual = 0;
        for (int i = 0; i < OB_ACT4; i++) {
            assert_in_range(q[i] + 8, 0, 15);
            assert_true(y[i] == d * (float)q[i]);
            const double u = (double)most / 7, v = u * rint((double)x[i] / u);
            err += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
            usual += (v - (double)x[i]) * (v - (double)x[i]);
        }
        assert_true(err <= usual * 1.00001);
    }
    for (int i = 0; i < OB_ACT4; i++) x[i] = i % 2 ? 3.5f : -3.5f; /* a spike, spread: both ends are exact */
    assert_true(fabsf(ob_act4_codes(x, q)) == 3.5f * (1 / 7.0f));
    for (int i = 0; i < OB_ACT4; i++) assert_int_equal(abs(q[i]), 7);
    memset(x, 0, sizeof x);
    assert_true(ob_act4_codes(x, q) == 0);
    for (int i = 0; i < OB_ACT4; i++) assert_int_equal(q[i], 0);
    /* Bit for bit. */
    for (int i = 0; i < OB_ACT4; i++) x[i] = (float)(i * i % 37) - 11.3f;
    assert_int_equal(ob_f32_bits(ob_act4_codes(x, q)), 0xc03f9cb5); /* numpy's, from the definition */
    assert_int_equal(q[0], 4);
    assert_int_equal(q[6], -8);
}

/* Against the definition, in double. */
static void test_hadamard(void **state)
{
    (void)state;
    float x[OB_HADAMARD], y[OB_HADAMARD];
    for (int i = 0; i < OB_HADAMARD; i++) x[i] = y[i] = weights[i];
    ob_hadamard32(y);
    for (int i = 0; i < OB_HADAMARD; i++) {
        double sum = 0;
        for (int j = 0; j < OB_HADAMARD; j++) sum += (double)x[j] * (__builtin_popcount((unsigned)(i & j)) % 2 ? -1 : 1);
        assert_true(fabs((double)y[i] - sum / sqrt(32)) < 1e-6);
    }
    ob_hadamard32(y);
    for (int i = 0; i < OB_HADAMARD; i++) assert_true(fabsf(x[i] - y[i]) < 1e-6f);
    /* Bit for bit: the order of additions is part of the definition. */
    for (int i = 0; i < OB_HADAMARD; i++) y[i] = (float)(1 << i % 13) + (float)i / 3;
    ob_hadamard32(y);
    assert_int_equal(ob_f32_bits(y[0]), 0x4537851e);
    assert_int_equal(ob_f32_bits(y[31]), 0x438c1875);
}

static const char *const k_rotate_names[] = {
    "token_embd.weight", "output.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.weight", "blk.0.attn_kv_a_mqa.weight",
    "blk.0.ffn_gate_exps.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ffn_up_shexp.weight", "blk.0.ssm_out.weight",
    "blk.0.ssm_alpha.weight", "blk.1.nextn.eh_proj.weight", "blk.0.attn_v_b.weight"};
static const ob_type k_rotate_types[] = {OB_Q4_0, OB_Q6_K, OB_F32, OB_Q4_0, OB_Q4_0, OB_Q4_0,
                                         OB_F32, OB_Q4_0, OB_Q5_K, OB_Q4_0, OB_Q8_0, OB_Q4_0};

static void test_rotate(void **state)
{
    (void)state;
    ob_err e = {0};
    ob_quantize_result r;
    static float back[K], plain[K], rot[K];
    static uint8_t block[K];
    write_source(k_rotate_names, 12);
    assert_int_equal(convert(&(ob_quantize_params){.rotate = true}, &r, &e), OB_OK);
    assert_int_equal(r.n_rotated, 6);
    ob_file *f = reopen();
    int64_t x;
    assert_true(ob_kv_i64(ob_file_find_kv(f, OB_HADAMARD_KEY), &x) && x == 32);
    for (size_t i = 0; i < 12; i++) assert_int_equal(ob_file_tensor(f, i)->type, k_rotate_types[i]);
    /* Rotated back it is the source within Q4_0's own error, and far from it when it is not. */
    double err_back = 0, err_plain = 0, err_not = 0;
    const ob_tensor *t = ob_file_find_tensor(f, "blk.0.attn_q.weight");
    const size_t row_bytes = ob_type_row_bytes(OB_Q4_0, K);
    for (int n = 0; n < N; n++) {
        ob_type_get(OB_Q4_0)->dequant((const uint8_t *)t->data + (size_t)n * row_bytes, rot, K);
        memcpy(back, rot, sizeof back);
        ob_hadamard_row(back, K);
        assert_int_equal(ob_quantize(OB_Q4_0, weights + n * K, block, 1, K, NULL, &e), OB_OK);
        ob_type_get(OB_Q4_0)->dequant(block, plain, K);
        for (int i = 0; i < K; i++) {
            const double w = (double)weights[n * K + i];
            err_back += (w - (double)back[i]) * (w - (double)back[i]);
            err_plain += (w - (double)plain[i]) * (w - (double)plain[i]);
            err_not += (w - (double)rot[i]) * (w - (double)rot[i]);
        }
    }
    /* Uniform weights become nearly normal, whose Q4_0 error is larger. */
    assert_true(err_back < 3 * err_plain);
    assert_true(err_not > 50 * err_plain);
    ob_file_close(f);
    assert_int_equal(rename(dst_path, src_path), 0);
    refused(&(ob_quantize_params){.type = "q8_0", .requantize = true}, OB_E_UNSUPPORTED, "Hadamard-rotated");
    refused(&(ob_quantize_params){.rotate = true}, OB_E_UNSUPPORTED, "Hadamard-rotated");
    /* Without output.weight the table of embeddings is multiplied too: not Q4_0. */
    write_source(k_names, 5);
    assert_int_equal(convert(&(ob_quantize_params){.rotate = true}, &r, &e), OB_OK);
    f = reopen();
    assert_int_equal(ob_file_find_tensor(f, "token_embd.weight")->type, OB_Q8_0);
    ob_file_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_types_and_bytes), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_requantize),      cmocka_unit_test(test_importance),
                                       cmocka_unit_test(test_hadamard),        cmocka_unit_test(test_rotate),
                                       cmocka_unit_test(test_compensation),    cmocka_unit_test(test_act4)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
