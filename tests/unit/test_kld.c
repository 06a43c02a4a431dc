/* convert/kld: the file of base logits and the statistics, against sums in double over the same rows. */
#include "test.h"

#include <math.h>
#include <unistd.h>

#include "base/alloc.h"
#include "convert/kld.h"

enum { CTX = 8, VOCAB = 37, CHUNKS = 5, PER_CHUNK = CTX - 1 - CTX / 2, ROWS = CHUNKS * PER_CHUNK };

static uint32_t seed = 1;
static float noise(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / (float)(1 << 24) * 2 - 1;
}

static char path[64];
static int32_t ids[CHUNKS * CTX];
static float base[ROWS][VOCAB], other[ROWS][VOCAB];

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/ob-kld-%ld", (long)getpid());
    for (int i = 0; i < CHUNKS * CTX; i++) ids[i] = i * 7 % VOCAB;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < VOCAB; i++) {
            base[r][i] = 6 * noise();
            other[r][i] = base[r][i] + noise() + 3;
        }
    base[1][5] = -60; /* far below the range of codes */
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static void write_base(void)
{
    ob_err e = {0};
    ob_base_logits *b;
    ob_base_head h = {CTX, VOCAB, CHUNKS, ids};
    assert_int_equal(ob_base_logits_create(path, &h, &b, &e), OB_OK);
    for (int r = 0; r < ROWS; r++) assert_int_equal(ob_base_logits_add(b, base[r], &e), OB_OK);
    assert_int_equal(ob_base_logits_add(b, base[0], &e), OB_E_INTERNAL);
    assert_int_equal(ob_base_logits_commit(b, &e), OB_OK);
    ob_base_logits_free(b);
}

static void log_softmax(const float *x, double *out)
{
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) sum += exp((double)x[i]);
    for (int i = 0; i < VOCAB; i++) out[i] = (double)x[i] - log(sum);
}

static int argmax(const float *x)
{
    int at = 0;
    for (int i = 1; i < VOCAB; i++) at = x[i] > x[at] ? i : at;
    return at;
}

static int in_top5(const float *x, int i)
{
    int above = 0;
    for (int j = 0; j < VOCAB; j++) above += x[j] > x[i];
    return above < 5;
}

static void test_statistics(void **state)
{
    (void)state;
    ob_err e = {0};
    ob_base_logits *b;
    ob_base_head h;
    ob_kld *k;
    ob_kld_report rep;
    double kld = 0, nll = 0, nll_base = 0, top1 = 0, top5 = 0, most = 0;
    write_base();
    assert_int_equal(ob_base_logits_open(path, &b, &e), OB_OK);
    ob_base_logits_head(b, &h);
    assert_int_equal(h.n_ctx, CTX);
    assert_int_equal(h.n_vocab, VOCAB);
    assert_int_equal(h.n_chunks, CHUNKS);
    assert_memory_equal(h.ids, ids, sizeof ids);
    assert_int_equal(ob_kld_new(b, &k, &e), OB_OK);
    for (int r = 0; r < ROWS; r++) {
        double p[VOCAB], q[VOCAB], one = 0;
        const int next = ids[r];
        log_softmax(base[r], p);
        log_softmax(other[r], q);
        for (int i = 0; i < VOCAB; i++) {
            one += exp(p[i]) * (p[i] - q[i]);
            top5 += in_top5(base[r], i) && in_top5(other[r], i);
        }
        kld += one;
        most = one > most ? one : most;
        nll -= q[next];
        nll_base -= p[next];
        top1 += argmax(base[r]) == argmax(other[r]);
        assert_int_equal(ob_kld_add(k, other[r], next, &e), OB_OK);
    }
    assert_int_equal(ob_kld_add(k, other[0], 0, &e), OB_E_INTERNAL); /* no more rows */
    ob_kld_finish(k, &rep);
    /* A code is 16 / 65535 wide: half of that is the most a log-probability is off. */
    const double tol = 16.0 / 65535 / 2 * 1.01;
    assert_int_equal(rep.n, ROWS);
    assert_true(fabs(rep.kld.value - kld / ROWS) < tol);
    assert_true(fabs(rep.kld_at[OB_KLD_N_PERCENTILES - 1] - most) < tol);
    assert_true(fabs(log(rep.ppl.value) - nll / ROWS) < 1e-5);
    assert_true(fabs(log(rep.ppl_base.value) - nll_base / ROWS) < tol);
    assert_true(fabs(rep.top1.value - top1 / ROWS) < 1e-12);
    assert_true(fabs(rep.top5.value - top5 / (5 * ROWS)) < 1e-12);
    assert_true(rep.kld_at[0] <= rep.kld_at[5] && rep.kld_at[5] <= rep.kld_at[10]);
    ob_kld_free(k);
    ob_base_logits_free(b);
}

static ob_status open_bytes(const void *bytes, size_t n)
{
    ob_err e = {0};
    ob_base_logits *b = NULL;
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    ob_status s = ob_base_logits_open(path, &b, &e);
    ob_base_logits_free(b);
    return s;
}

static void test_bad_files(void **state)
{
    (void)state;
    static uint8_t bytes[1 << 16], bad[1 << 16];
    write_base();
    FILE *f = fopen(path, "rb");
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    assert_int_equal(n, 20 + 4 * CTX * CHUNKS + ROWS * 2 * (VOCAB + 1 + 4));
    assert_int_equal(open_bytes(bytes, n), OB_OK);
    assert_int_equal(open_bytes(bytes, n - 1), OB_E_FORMAT);
    assert_int_equal(open_bytes(bytes, 10), OB_E_FORMAT);
    static const struct { size_t at; uint32_t value; } change[] = {
        {0, 0x12345678}, {8, 0}, {8, 3}, {8, UINT32_MAX}, {12, 0}, {12, INT32_MAX}, {16, 0}, {16, INT32_MAX}, {20, VOCAB},
    };
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        memcpy(bad, bytes, n);
        memcpy(bad + change[i].at, &change[i].value, 4);
        assert_int_equal(open_bytes(bad, n), OB_E_FORMAT);
    }
}

/* Nothing appears under the name until all is written. */
static void test_unfinished(void **state)
{
    (void)state;
    ob_err e = {0};
    ob_base_logits *b;
    ob_base_head h = {CTX, VOCAB, CHUNKS, ids};
    unlink(path);
    assert_int_equal(ob_base_logits_create(path, &h, &b, &e), OB_OK);
    assert_int_equal(ob_base_logits_add(b, base[0], &e), OB_OK);
    assert_int_equal(ob_base_logits_commit(b, &e), OB_E_INTERNAL);
    ob_base_logits_free(b);
    assert_int_equal(access(path, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_statistics), cmocka_unit_test(test_bad_files),
                                       cmocka_unit_test(test_unfinished)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
