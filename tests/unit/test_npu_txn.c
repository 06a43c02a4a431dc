/* Control text: what the builder writes, what the walker refuses, and that AMD's own tool reads the same. */
#include "test.h"

#include "base/alloc.h"
#include "dev/npu/npu_text.h"

static char *slurp(const char *name, size_t *n)
{
    char path[512];
    snprintf(path, sizeof path, OB_TEST_DATA "/npu/%s", name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *p = malloc(*n + 1);
    assert_int_equal(fread(p, 1, *n, f), *n);
    p[*n] = 0;
    fclose(f);
    return p;
}

/* --- words ------------------------------------------------------------------------------------- */

static void test_words(void **state)
{
    (void)state;
    ob_npu_txn t;
    ob_npu_txn_init(&t, true);
    const uint32_t two[] = {0xA, 0xB};
    ob_npu_txn_write(&t, ob_npu_reg(1, 2, 0xF000), 9);
    ob_npu_txn_blockwrite(&t, 0x1D000, two, 2);
    ob_npu_txn_maskwrite(&t, 0x1D210, 0xF00, 0x1F00);
    ob_npu_txn_maskpoll(&t, 0x1D228, 1, 3);
    ob_npu_txn_noop(&t);
    ob_npu_txn_load_pdi(&t, 3, 64, 7);
    ob_npu_txn_push(&t, 7, OB_S2MM, 1, 5, 256, true);
    ob_npu_txn_wait(&t, 2, 3, OB_MM2S, 1);
    const ob_npu_bd bd = {.n_words = 2048, .d0_step = 1, .d1_step = 1, .d2_step = 1, .it_wrap = 1, .it_step = 1};
    ob_npu_txn_bd(&t, 0, 1, &bd, 2, 0x123456788ull);
    ob_err err;
    assert_int_equal(ob_npu_txn_finish(&t, &err), OB_OK);
    const uint32_t want[] = {
        0x06040100, 0x00000108, 10, 4 * (4 + 6 + 6 + 7 + 7 + 1 + 4 + 6 + 4 + 12 + 12),
        0, 0, 0x0220F000, 0, 9, 24,
        1, 0, 0x1D000, 24, 0xA, 0xB,
        3, 0, 0x1D210, 0, 0xF00, 0x1F00, 28,
        4, 0, 0x1D228, 0, 1, 3, 28,
        5,
        0x00030008, 64, 0, 0,
        0, 0, 0x0E01D20C, 0, 0x80FF0005, 24,
        0x80, 16, 0x00020001, 0x01030100,
        1, 0, 0x1D020, 48, 2048, 0, 0, 0, 0xC0000000, 0x02000000, 0, 0x02000000,
        0x81, 48, 0, 0, 0, 0, 0x1D024, 0, 2, 0, 0x23456788, 1,
    };
    assert_int_equal(t.text.len, sizeof want);
    assert_memory_equal(t.text.data, want, sizeof want);

    const ob_npu_patch *p = (const ob_npu_patch *)t.patches.data;
    assert_int_equal(t.patches.len, 2 * sizeof *p);
    assert_int_equal(p[0].kind, OB_PATCH_ADDR64);
    assert_int_equal(p[0].off, 4 * (4 + 6 + 6 + 7 + 7 + 1 + 2));
    assert_int_equal(p[1].kind, OB_PATCH_SHIM48);
    assert_int_equal(p[1].n_bytes, 8192);
    uint64_t args[8] = {0};
    args[7] = 0x4000040;
    args[2] = 0x7F0000001000ull;
    for (int twice = 0; twice < 2; twice++) {
        assert_int_equal(ob_npu_patch_apply((uint8_t *)t.text.data, t.text.len, p, 2, args, 8, &err), OB_OK);
        const uint32_t *w = (const uint32_t *)t.text.data;
        assert_int_equal(w[p[0].off / 4], 0x4000040);
        assert_int_equal(w[p[1].off / 4 + 1], (uint32_t)(0x7F0000001000ull + 0x123456788ull + 0x80000000ull));
        assert_int_equal(w[p[1].off / 4 + 2], (0x7F0000001000ull + 0x123456788ull + 0x80000000ull) >> 32);
    }
    assert_int_equal(ob_npu_patch_apply((uint8_t *)t.text.data, t.text.len, p, 2, args, 2, &err), OB_E_INVALID);
    assert_int_equal(ob_npu_patch_apply((uint8_t *)t.text.data, p[1].off + 8, p + 1, 1, args, 8, &err), OB_E_INVALID);
    args[2] = 1ull << 48;
    assert_int_equal(ob_npu_patch_apply((uint8_t *)t.text.data, t.text.len, p, 2, args, 8, &err), OB_E_INVALID);
    ob_npu_txn_deinit(&t);
}

static void test_fields_that_do_not_fit(void **state)
{
    (void)state;
    ob_npu_bd good = {.n_words = 1, .d0_step = 1, .d1_step = 1, .d2_step = 1, .it_wrap = 1, .it_step = 1}, bd, back;
    uint32_t w[8];
    assert_true(ob_npu_bd_encode(&good, w));
#define SPOIL(field, value)                                                                       \
    bd = good;                                                                                    \
    bd.field = (value);                                                                           \
    assert_false(ob_npu_bd_encode(&bd, w))
    SPOIL(n_words, 0);
    SPOIL(addr, 2);
    SPOIL(addr, 1ull << 48);
    SPOIL(d0, 1024);
    SPOIL(d1, 1024);
    SPOIL(d0_step, 0);
    SPOIL(d1_step, (1 << 20) + 1);
    SPOIL(it_wrap, 65);
    SPOIL(it_step, (1 << 20) + 1);
    bd = (ob_npu_bd){.n_words = 77, .addr = 0xFEDCBA987654ull, .d0 = 1023, .d0_step = 1 << 20, .d1 = 5, .d1_step = 7, .d2_step = 9,
                     .it_wrap = 64, .it_step = 1 << 20, .it_current = 63};
    assert_true(ob_npu_bd_encode(&bd, w));
    assert_true(ob_npu_bd_decode(w, &back));
    uint32_t again[8];
    assert_true(ob_npu_bd_encode(&back, again));
    assert_memory_equal(w, again, sizeof w);
    assert_int_equal(back.addr, bd.addr);
    assert_int_equal(back.it_current, 63);
    w[7] |= 1u << 26; /* a next descriptor */
    assert_false(ob_npu_bd_decode(w, &back));
    w[7] = 0; /* not valid */
    assert_false(ob_npu_bd_decode(w, &back));

    /* A builder that was given such a field says so at the end. */
    ob_npu_txn t;
    ob_err err;
    ob_npu_txn_init(&t, false);
    ob_npu_txn_push(&t, 0, OB_MM2S, 0, 16, 1, false);
    assert_int_equal(ob_npu_txn_finish(&t, &err), OB_E_INVALID);
    ob_npu_txn_deinit(&t);
}

/* --- walking ----------------------------------------------------------------------------------- */

static ob_status check(const uint32_t *words, size_t n, ob_err *err) { return ob_npu_txn_check(words, n, OB_TXN_OWN_CLASSES, err); }

/* A text of one operation, given without its header. */
static ob_status check_op(const uint32_t *op, size_t n, ob_err *err)
{
    uint32_t w[64] = {0x06040100, 0x108, 1, (uint32_t)(16 + 4 * n)};
    memcpy(w + 4, op, n * 4);
    return check(w, n + 4, err);
}
#define CHECK_OP(...) check_op((const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4, &err)

static void test_malformed(void **state)
{
    (void)state;
    ob_err err;
    assert_int_equal(CHECK_OP(0, 0, 0x1D000, 0, 1, 24), OB_OK);
    assert_int_equal(CHECK_OP(0, 0, 0x1D000, 0, 1, 20), OB_E_FORMAT);              /* its size */
    assert_int_equal(CHECK_OP(0, 0, 0x1D000, 0, 1), OB_E_FORMAT);                  /* cut off */
    assert_int_equal(CHECK_OP(0, 0, 0x1D000, 1, 1, 24), OB_E_FORMAT);              /* a register above 4 GiB */
    assert_int_equal(CHECK_OP(0, 0, 0x1001D000, 0, 1, 24), OB_E_FORMAT);           /* column 8 */
    assert_int_equal(CHECK_OP(0, 0, 0x0061D000, 0, 1, 24), OB_E_FORMAT);           /* row 6 */
    assert_int_equal(CHECK_OP(0, 0, 0x1D001, 0, 1, 24), OB_E_FORMAT);              /* between words */
    assert_int_equal(CHECK_OP(0, 0, 0x00220000, 0, 1, 24), OB_E_FORMAT);           /* a core's program */
    assert_non_null(strstr(err.text, "core program"));
    assert_int_equal(CHECK_OP(1, 0, 0x1D000, 20, 7), OB_OK);
    assert_int_equal(CHECK_OP(1, 0, 0x1D000, 16), OB_E_FORMAT);                    /* no data */
    assert_int_equal(CHECK_OP(1, 0, 0x1D000, 28, 7), OB_E_FORMAT);                 /* longer than the text */
    assert_int_equal(CHECK_OP(1, 0, 0x1D1FC, 24, 7, 7), OB_E_FORMAT);              /* out of the descriptors */
    assert_int_equal(CHECK_OP(3, 0, 0x1D210, 0, 1, 1, 28), OB_OK);
    assert_int_equal(CHECK_OP(3, 0, 0x1D210, 0, 1, 1, 32, 0), OB_OK);              /* padded, as aie-rt counts it */
    assert_int_equal(CHECK_OP(3, 0, 0x1D210, 0, 1, 1, 36, 0, 0), OB_E_FORMAT);
    assert_int_equal(CHECK_OP(0x80, 16, 0, 0x00080100), OB_OK);
    assert_int_equal(CHECK_OP(0x80, 16, 0, 0x00090100), OB_E_FORMAT);              /* nine columns */
    assert_int_equal(CHECK_OP(0x80, 16, 0, 0x02010100), OB_E_FORMAT);              /* channel 2 */
    assert_int_equal(CHECK_OP(0x80, 12, 0), OB_E_FORMAT);
    assert_int_equal(CHECK_OP(0x81, 48, 0, 0, 0, 0, 0x1D004, 0, 0, 0, 0, 0), OB_OK);
    assert_int_equal(CHECK_OP(0x81, 48, 0, 0, 0, 0, 0x1D214, 0, 0, 0, 0, 0), OB_E_FORMAT); /* no descriptor */
    assert_int_equal(CHECK_OP(2, 0, 0, 0), OB_E_FORMAT);                           /* no such operation */
    assert_int_equal(CHECK_OP(5, 5), OB_E_FORMAT);                                 /* more than it says */

    const uint32_t empty[] = {0x06040100, 0x108, 0, 16};
    assert_int_equal(check(empty, 4, &err), OB_OK);
    assert_int_equal(check(empty, 3, &err), OB_E_FORMAT);
    for (int i = 0; i < 4; i++) {
        uint32_t w[4];
        memcpy(w, empty, sizeof w);
        w[i] ^= i == 0 ? 1u : i == 1 ? 0x208u : 1u;
        assert_int_not_equal(check(w, 4, &err), OB_OK);
    }
}

/* Every prefix and every flipped byte of a real text: an error or a walk that ends, never a read outside. */
static void test_any_bytes(void **state)
{
    (void)state;
    ob_npu_place place = ob_npu_place_default();
    ob_npu_txn t;
    ob_err err;
    assert_int_equal(ob_npu_text_gemm(&t, &place, 128, 64, 1024, true, &err), OB_OK);
    size_t n = t.text.len / 4;
    assert_int_equal(check((const uint32_t *)t.text.data, n, &err), OB_OK);
    for (size_t i = 0; i < n; i++) {
        uint32_t *copy = malloc(i * 4 + 4);
        memcpy(copy, t.text.data, i * 4);
        assert_int_not_equal(check(copy, i, &err), OB_OK);
        if (i > 3) copy[3] = (uint32_t)i * 4;
        assert_int_not_equal(check(copy, i, &err), OB_OK);
        free(copy);
    }
    uint32_t *copy = malloc(n * 4);
    for (size_t i = 0; i < n * 4; i++) {
        memcpy(copy, t.text.data, n * 4);
        ((uint8_t *)copy)[i] ^= 0xFF;
        (void)!check(copy, n, &err);
    }
    free(copy);
    ob_npu_txn_deinit(&t);
}

/* --- AMD's tool -------------------------------------------------------------------------------- */

static ob_status build(const char *name, ob_npu_txn *t)
{
    ob_npu_place p = ob_npu_place_default();
    long long m, k, n;
    if (strcmp(name, "init") == 0) return ob_npu_text_init(t, 1, 64, NULL);
    if (strcmp(name, "nop") == 0) return ob_npu_text_nop(t, NULL);
    if (strcmp(name, "copy") == 0) return ob_npu_text_copy(t, &p, 1 << 20, NULL);
    if (sscanf(name, "gemm_m%lld_k%lld_n%lld", &m, &k, &n) == 3) return ob_npu_text_gemm(t, &p, m, k, n, true, NULL);
    assert_int_equal(sscanf(name, "gemv_k%lld_n%lld", &k, &n), 2);
    return ob_npu_text_gemv(t, &p, k, n, true, NULL);
}

/* Bytes of a file as a text: printed, they are what aiebu-dump prints. */
static void same_print(const char *name, const char *text, size_t n)
{
    char file[64];
    size_t n_want;
    snprintf(file, sizeof file, "%s.dump.txt", name);
    char *want = slurp(file, &n_want);
    uint32_t *words = malloc(n);
    memcpy(words, text, n);
    ob_buf out;
    ob_err err;
    ob_buf_init(&out, 1 << 20);
    assert_int_equal(ob_npu_txn_print(words, n / 4, &out, &err), OB_OK);
    assert_string_equal(ob_buf_str(&out), want);
    assert_int_equal(check(words, n / 4, &err), OB_OK);
    ob_buf_deinit(&out);
    free(words);
    free(want);
}

/* What aiebu-dump prints of the same bytes, without its frame. */
static void test_against_aiebu_dump(void **state)
{
    (void)state;
    static const char *const names[] = {"nop", "copy", "gemm_m128_k128_n2048", "gemm_m512_k64_n1024", "gemm_m128_k4160_n3072", "gemv_k256_n1024"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ob_npu_txn t;
        assert_int_equal(build(names[i], &t), OB_OK);
        char file[64];
        size_t n;
        snprintf(file, sizeof file, "%s.txn", names[i]);
        char *bytes = slurp(file, &n);
        assert_int_equal(n, t.text.len);
        assert_memory_equal(bytes, t.text.data, n); /* else: run tools/npu/make_golden.py, and look at what changed */
        same_print(names[i], bytes, n);
        free(bytes);
        ob_npu_txn_deinit(&t);
    }
    size_t n; /* a part of a decoding step (tests/tools/npu_texts.c) */
    char *bytes = slurp("step.txn", &n);
    same_print("step", bytes, n);
    free(bytes);
}

static void test_no_memory(void **state)
{
    (void)state;
    ob_npu_place place = ob_npu_place_default();
    for (int64_t i = 0; i < 4; i++) {
        ob_npu_txn t;
        ob_alloc_fail_after(i);
        ob_status s = ob_npu_text_gemm(&t, &place, 128, 64, 1024, false, NULL);
        ob_alloc_fail_after(-1);
        assert_true(s == OB_OK || s == OB_E_NO_MEMORY);
        ob_npu_txn_deinit(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),     cmocka_unit_test(test_fields_that_do_not_fit),
        cmocka_unit_test(test_malformed), cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_against_aiebu_dump), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
