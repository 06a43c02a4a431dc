/* Unit tests of fmt/: the reader of 1BP packages on good files, on a zoo of bad ones, without memory. */
#include "test.h"

#include <unistd.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "fmt/onebp.h"
#include "gguf_builder.h"

/* ---- the sample, with the places that the zoo damages ------------------------------------------ */

typedef enum label {
    MAGIC, VERSION, N_TENSORS, NAME_LEN, NAME, NUL, N_DIMS, OUTER, INNER, OFF, SIZE, QUANT,
    T1_NAME, T1_OFF, T1_SIZE, T1_QUANT, ALIAS_NAME, ALIAS_INNER, ALIAS_OFF, ALIAS_QUANT,
    N_KV, KV0, DATA, N_LABELS
} label;

typedef struct sample {
    ob_buf b;
    size_t at[N_LABELS];
} sample;

static void entry(ob_buf *b, const char *name, uint32_t outer, uint32_t inner, uint64_t off,
                  uint64_t n_bytes, uint32_t quant)
{
    gb_u32(b, (uint32_t)strlen(name));
    ob_buf_add(b, name, strlen(name) + 1);
    gb_u32(b, 2);
    gb_u32(b, outer);
    gb_u32(b, inner);
    gb_u64(b, off);
    gb_u64(b, n_bytes);
    gb_u32(b, quant);
}

static void head(ob_buf *b, uint32_t version, uint32_t n_tensors)
{
    ob_buf_add(b, "1BP", 4);
    gb_u32(b, version);
    gb_fill(b, 0x55, 80); /* for people only: the reader must not care */
    gb_u32(b, n_tensors);
    gb_fill(b, 0x55, 164);
    assert_int_equal(b->len % OB_ONEBP_HEADER_BYTES, 0);
}

/* w0: Q4_0 [2, 64] 72 bytes at 0; w1: F32 [1, 3] 12 bytes at 128; tied: alias of w0 as [1, 128]. */
static void sample_init(sample *s)
{
    ob_buf *b = &s->b;
    size_t *at = s->at;
    ob_buf_init(b, 1 << 20);
    at[MAGIC] = 0, at[VERSION] = 4, at[N_TENSORS] = 88;
    head(b, 5, 3);
    at[NAME_LEN] = b->len, at[NAME] = b->len + 4, at[NUL] = b->len + 6, at[N_DIMS] = b->len + 7;
    at[OUTER] = b->len + 11, at[INNER] = b->len + 15, at[OFF] = b->len + 19;
    at[SIZE] = b->len + 27, at[QUANT] = b->len + 35;
    entry(b, "w0", 2, 64, 0, 72, 258);
    at[T1_NAME] = b->len + 4, at[T1_OFF] = b->len + 19, at[T1_SIZE] = b->len + 27;
    at[T1_QUANT] = b->len + 35;
    entry(b, "w1", 1, 3, 128, 12, 256);
    at[ALIAS_NAME] = b->len + 4, at[ALIAS_INNER] = b->len + 17, at[ALIAS_OFF] = b->len + 21;
    at[ALIAS_QUANT] = b->len + 37;
    entry(b, "tied", 1, 128, 0, 0, 258);
    at[N_KV] = b->len;
    gb_u64(b, 2);
    at[KV0] = b->len;
    gb_kv_str(b, "general.architecture", "llama");
    gb_kv_u32(b, "general.alignment", 8);
    gb_pad(b, 64);
    at[DATA] = b->len;
    gb_fill(b, 'q', 72);
    gb_fill(b, 0, 56);
    gb_fill(b, 'f', 12);
}

/* A copy of exactly len bytes, so that ASan sees a read past the end; free() it. */
static void *exact_copy(const void *bytes, size_t len)
{
    void *copy = malloc(len ? len : 1);
    assert_non_null(copy);
    if (len) memcpy(copy, bytes, len);
    return copy;
}

static void assert_refused(const char *what, const ob_buf *b, ob_status status, const char *text)
{
    ob_file *f = (ob_file *)1;
    void *copy = exact_copy(b->data, b->len);
    ob_err err = {0};
    ob_status s = ob_file_open_bytes(copy, b->len, 0, &f, &err);
    free(copy);
    if (s != status || err.code != status || !strstr(err.text, text))
        fail_msg("%s: status %s, text '%s' (wanted %s, '%s')", what, ob_status_describe(s)->name,
                 err.text, ob_status_describe(status)->name, text);
    assert_null(f);
}

/* ---- good files ------------------------------------------------------------------------------- */

static void check_sample(const ob_file *f, const uint8_t *bytes, const sample *s)
{
    ob_str str;
    assert_string_equal(ob_file_format(f), "1BP v5");
    assert_int_equal(ob_file_n_parts(f), 1);
    assert_int_equal(ob_file_n_bytes(f), s->b.len);
    assert_int_equal(ob_file_n_kv(f), 2);
    assert_true(ob_kv_str(ob_file_find_kv(f, "general.architecture"), &str));
    assert_memory_equal(str.data, "llama", 5);
    ob_str raw = ob_file_kv_bytes(f);
    assert_ptr_equal(raw.data, bytes + s->at[KV0]);
    assert_int_equal(raw.len, 8 + 20 + 4 + 8 + 5 + 8 + 17 + 4 + 4);

    assert_int_equal(ob_file_n_tensors(f), 3);
    const ob_tensor *t = ob_file_find_tensor(f, "w0");
    assert_ptr_equal(t, ob_file_tensor(f, 0));
    assert_int_equal(t->type, 2);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->ne[0], 64); /* the index has them the other way round */
    assert_int_equal(t->ne[1], 2);
    assert_int_equal(t->ne[2], 1);
    assert_int_equal(t->n_bytes, 72);
    assert_int_equal(t->file_off, s->at[DATA]);
    assert_ptr_equal(t->data, bytes + s->at[DATA]);
    t = ob_file_find_tensor(f, "w1");
    assert_int_equal(t->type, 0);
    assert_int_equal(t->ne[0], 3);
    assert_int_equal(t->file_off, s->at[DATA] + 128);
    const ob_tensor *tied = ob_file_find_tensor(f, "tied");
    assert_int_equal(tied->type, 2);
    assert_int_equal(tied->ne[0], 128);
    assert_int_equal(tied->ne[1], 1);
    assert_int_equal(tied->n_bytes, 72);
    assert_ptr_equal(tied->data, bytes + s->at[DATA]);
}

static void test_sample(void **state)
{
    (void)state;
    sample s;
    ob_file *f;
    ob_err err;
    sample_init(&s);
    void *copy = exact_copy(s.b.data, s.b.len);
    if (ob_file_open_bytes(copy, s.b.len, 0, &f, &err) != OB_OK) fail_msg("%s", err.text);
    check_sample(f, copy, &s);
    ob_file_close(f);
    assert_int_equal(ob_file_open_bytes(copy, s.b.len, OB_OPEN_NO_DATA, &f, &err), OB_OK);
    assert_null(ob_file_tensor(f, 0)->data);
    ob_file_close(f);
    free(copy);
    ob_buf_deinit(&s.b);
}

/* The first bytes decide, not the name; a file that is mapped behaves like bytes in memory. */
static void test_any_name(void **state)
{
    (void)state;
    char path[] = "/tmp/ob-onebp-XXXXXX";
    sample s;
    ob_file *f;
    ob_err err;
    sample_init(&s);
    int fd = mkstemp(path);
    assert_int_equal(write(fd, s.b.data, s.b.len), (ssize_t)s.b.len);
    close(fd);
    if (ob_file_open(path, 0, &f, &err) != OB_OK) fail_msg("%s", err.text);
    check_sample(f, (const uint8_t *)ob_file_tensor(f, 0)->data - s.at[DATA], &s);
    ob_file_close(f);
    unlink(path);
    ob_buf_deinit(&s.b);
}

/* Of the 256 bytes of the header only twelve are looked at. */
static void test_header_bytes(void **state)
{
    (void)state;
    sample s;
    sample_init(&s);
    for (size_t i = 0; i < OB_ONEBP_HEADER_BYTES; i++) {
        ob_file *f;
        bool read = i < 8 || (i >= 88 && i < 92);
        s.b.data[i] ^= 0x20;
        ob_status st = ob_file_open_bytes(s.b.data, s.b.len, 0, &f, NULL);
        s.b.data[i] ^= 0x20;
        if ((st != OB_OK) != read) fail_msg("header byte %zu: %s", i, ob_status_describe(st)->name);
        ob_file_close(f);
    }
    ob_buf_deinit(&s.b);
}

static void test_empty(void **state)
{
    (void)state;
    ob_buf b;
    ob_file *f;
    ob_buf_init(&b, 1000);
    head(&b, 5, 0);
    gb_u64(&b, 0);
    assert_int_equal(ob_file_open_bytes(b.data, b.len, 0, &f, NULL), OB_OK);
    assert_int_equal(ob_file_n_tensors(f), 0);
    assert_int_equal(ob_file_n_kv(f), 0);
    ob_file_close(f);
    ob_buf_deinit(&b);
}

/* ---- the zoo: one wrong field each ------------------------------------------------------------ */

static const struct zoo {
    const char *what;
    label at;
    int n_bytes;
    uint64_t value;
    ob_status status;
    const char *text; /* must be in the message */
} k_zoo[] = {
    {"magic", MAGIC, 4, 0x01504231, OB_E_FORMAT, "starts with 31 42 50 01"},
    {"version 0", VERSION, 4, 0, OB_E_UNSUPPORTED, "1BP version 0"},
    {"version 1", VERSION, 4, 1, OB_E_UNSUPPORTED, "1BP version 1"},
    {"version 2", VERSION, 4, 2, OB_E_UNSUPPORTED, "1BP version 2"},
    {"version 3", VERSION, 4, 3, OB_E_UNSUPPORTED, "1BP version 3"},
    {"version 4", VERSION, 4, 4, OB_E_UNSUPPORTED, "1BP version 4 is not supported (5 is)"},
    {"version 6", VERSION, 4, 6, OB_E_UNSUPPORTED, "1BP version 6"},
    {"tensors max", N_TENSORS, 4, UINT32_MAX, OB_E_FORMAT, "4294967295 tensors cannot stand"},
    {"more tensors than the file can hold", N_TENSORS, 4, 100, OB_E_FORMAT, "100 tensors cannot"},
    {"one tensor too many", N_TENSORS, 4, 4, OB_E_FORMAT, "tensor 3"},
    {"name too long for the file", NAME_LEN, 4, UINT32_MAX, OB_E_FORMAT, "bytes are missing"},
    {"empty name", NAME_LEN, 4, 0, OB_E_FORMAT, "empty name"},
    {"name not UTF-8", NAME, 1, 0x80, OB_E_FORMAT, "tensor 0, byte 262: the name is not UTF-8"},
    {"name with NUL", NAME, 1, 0, OB_E_FORMAT, "not UTF-8"},
    {"no NUL", NUL, 1, 'x', OB_E_FORMAT, "('w0'), byte 263: no NUL"},
    {"0 dims", N_DIMS, 4, 0, OB_E_FORMAT, "'w0'), byte 267: 0 dimensions"},
    {"5 dims", N_DIMS, 4, 5, OB_E_FORMAT, "5 dimensions (1 to 4)"},
    {"max dims", N_DIMS, 4, UINT32_MAX, OB_E_FORMAT, "4294967295 dimensions"},
    {"dim 0", OUTER, 4, 0, OB_E_FORMAT, "dimension 1 is 0"},
    {"row of 0", INNER, 4, 0, OB_E_FORMAT, "dimension 0 is 0"},
    {"elements overflow", OUTER, 8, UINT64_MAX, OB_E_FORMAT, "elements overflows"},
    {"row is no whole block", INNER, 4, 63, OB_E_FORMAT, "Q4_0 blocks of 32"},
    {"size of another shape", OUTER, 4, 3, OB_E_FORMAT,
     "'w0'), byte 295: size 72, but Q4_0 of this shape takes 108"},
    {"size too small", SIZE, 8, 71, OB_E_FORMAT, "size 71, but Q4_0 of this shape takes 72"},
    {"size max", SIZE, 8, UINT64_MAX, OB_E_FORMAT, "size 18446744073709551615"},
    {"size of another type", T1_SIZE, 8, 6, OB_E_FORMAT, "('w1')"},
    {"offset not aligned", T1_OFF, 8, 96, OB_E_FORMAT,
     "('w1'), byte 334: offset 96 is no multiple of the alignment 64"},
    {"offset 1", OFF, 8, 1, OB_E_FORMAT, "offset 1 is no multiple"},
    {"offset outside", T1_OFF, 8, 192, OB_E_FORMAT, "tensor 'w1' ends at byte"},
    {"offset far outside", T1_OFF, 8, UINT64_C(1) << 40, OB_E_FORMAT, "tensor 'w1' ends at byte"},
    {"offset max", T1_OFF, 8, UINT64_MAX - 63, OB_E_FORMAT, "'w1': its offset overflows"},
    {"tensors overlap", T1_OFF, 8, 64, OB_E_FORMAT, "and 'w1' overlap at byte"},
    {"Q4NX", QUANT, 4, 0, OB_E_UNSUPPORTED, "tensor 0 ('w0'), byte 295: quant 0 (Q4NX)"},
    {"I8 tiles", QUANT, 4, 1, OB_E_UNSUPPORTED, "quant 1 (I8)"},
    {"TQ1", QUANT, 4, 2, OB_E_UNSUPPORTED, "quant 2 (TQ1)"},
    {"TQ2", QUANT, 4, 3, OB_E_UNSUPPORTED, "quant 3 (TQ2)"},
    {"F16 tiles", T1_QUANT, 4, 4, OB_E_UNSUPPORTED, "tensor 1 ('w1'), byte 334: quant 4 (F16)"},
    {"F32 tiles", QUANT, 4, 5, OB_E_UNSUPPORTED, "quant 5 (F32)"},
    {"TQ2NZ", QUANT, 4, 6, OB_E_UNSUPPORTED, "quant 6 (TQ2NZ)"},
    {"TQ2NZ_E4M3", QUANT, 4, 7, OB_E_UNSUPPORTED, "quant 7 (TQ2NZ_E4M3)"},
    {"TQ2BS", QUANT, 4, 8, OB_E_UNSUPPORTED, "quant 8 (TQ2BS)"},
    {"unknown tile", QUANT, 4, 255, OB_E_UNSUPPORTED, "quant 255 (unknown)"},
    {"removed type", QUANT, 4, 256 + 4, OB_E_UNSUPPORTED, "type 4 (Q4_2, removed"},
    {"unknown type", QUANT, 4, 256 + 99, OB_E_UNSUPPORTED, "'w0'), byte 295: unknown type 99"},
    {"quant max", QUANT, 4, UINT32_MAX, OB_E_UNSUPPORTED, "unknown type 4294967039"},
    {"same name", T1_NAME, 2, 0x3077 /* "w0" */, OB_E_FORMAT, "same name 'w0'"},
    {"alias of itself", ALIAS_OFF, 8, 2, OB_E_FORMAT,
     "('tied'), byte 375: alias of tensor 2, which is not an earlier"},
    {"alias of a later one", SIZE, 8, 0, OB_E_FORMAT,
     "tensor 0 ('w0'), byte 295: alias of tensor 0"},
    {"alias of nothing", ALIAS_OFF, 8, UINT64_MAX, OB_E_FORMAT,
     "alias of tensor 18446744073709551615"},
    {"alias of another size", ALIAS_OFF, 8, 1, OB_E_FORMAT, "'tied'"},
    {"alias of another shape", ALIAS_INNER, 4, 64, OB_E_FORMAT,
     "size 72, but Q4_0 of this shape takes 36"},
    {"pairs max", N_KV, 8, UINT64_MAX, OB_E_FORMAT, "metadata pairs cannot stand"},
    {"one pair too many", N_KV, 8, 3, OB_E_FORMAT, "metadata pair 2"},
    {"key of a gigabyte", KV0, 8, UINT64_C(1) << 30, OB_E_FORMAT, "metadata pair 0"},
};

static void test_zoo(void **state)
{
    (void)state;
    for (size_t i = 0; i < OB_COUNT(k_zoo); i++) {
        sample s;
        sample_init(&s);
        memcpy(s.b.data + s.at[k_zoo[i].at], &k_zoo[i].value, (size_t)k_zoo[i].n_bytes);
        assert_refused(k_zoo[i].what, &s.b, k_zoo[i].status, k_zoo[i].text);
        ob_buf_deinit(&s.b);
    }
}

/* An alias takes the type of its target: its own quant is not looked at. */
static void test_alias_quant(void **state)
{
    (void)state;
    sample s;
    ob_file *f;
    sample_init(&s);
    memset(s.b.data + s.at[ALIAS_QUANT], 0, 4);
    assert_int_equal(ob_file_open_bytes(s.b.data, s.b.len, 0, &f, NULL), OB_OK);
    assert_int_equal(ob_file_find_tensor(f, "tied")->type, 2);
    ob_file_close(f);
    ob_buf_deinit(&s.b);
}

static void test_every_truncation(void **state)
{
    (void)state;
    sample s;
    sample_init(&s);
    for (size_t len = 0; len < s.b.len; len++) {
        ob_buf cut = s.b;
        char text[64] = "";
        cut.len = len;
        /* Once the directory is whole, the exact number is known. */
        if (len >= s.at[DATA]) snprintf(text, sizeof text, "%zu bytes are missing", s.b.len - len);
        assert_refused("truncation", &cut, OB_E_FORMAT, text);
    }
    ob_buf_deinit(&s.b);
}

static void test_every_damaged_byte(void **state)
{
    (void)state;
    static const unsigned char k_xor[] = {0x01, 0x80, 0xFF, 0x20};
    sample s;
    sample_init(&s);
    for (size_t i = 0; i < 4 * s.b.len; i++) {
        ob_file *f;
        char *copy = exact_copy(s.b.data, s.b.len);
        ob_err err = {0};
        copy[i / 4] = (char)(copy[i / 4] ^ k_xor[i % 4]);
        ob_status st = ob_file_open_bytes(copy, s.b.len, 0, &f, &err);
        if (st != OB_OK) {
            assert_int_equal(err.code, st);
            assert_true(strlen(err.text) > 10);
        }
        ob_file_close(f);
        free(copy);
    }
    ob_buf_deinit(&s.b);
}

static void test_limits(void **state)
{
    (void)state;
    ob_buf b;
    ob_buf_init(&b, 16 << 20);
    head(&b, 5, OB_MAX_TENSORS + 1);
    gb_fill(&b, 0, 40 * ((size_t)OB_MAX_TENSORS + 1));
    assert_refused("too many tensors", &b, OB_E_LIMIT, "tensors (limit");
    ob_buf_clear(&b);
    head(&b, 5, 1);
    gb_u32(&b, OB_MAX_TENSOR_NAME_BYTES + 1);
    gb_fill(&b, 'n', 400);
    assert_refused("name too long", &b, OB_E_LIMIT, "name of 257 bytes");
    ob_buf_deinit(&b);
}

static void test_every_allocation_fails(void **state)
{
    (void)state;
    sample s;
    ob_status st = OB_E_NO_MEMORY;
    int n = 0;
    sample_init(&s);
    for (; st != OB_OK; n++) {
        ob_file *f = NULL;
        ob_err err = {0};
        ob_alloc_fail_after(n);
        st = ob_file_open_bytes(s.b.data, s.b.len, 0, &f, &err);
        ob_alloc_fail_after(-1);
        if (st != OB_OK) {
            assert_int_equal(st, OB_E_NO_MEMORY);
            assert_int_equal(err.code, OB_E_NO_MEMORY);
            assert_null(f);
        }
        ob_file_close(f);
    }
    assert_in_range(n, 8, 100);
    ob_buf_deinit(&s.b);
}

/* ---- the head of a file alone ------------------------------------------------------------------ */

/* Every prefix of a file gives its directory, or asks for more; never a wrong refusal. */
static void test_open_head(void **state)
{
    (void)state;
    sample s;
    sample_init(&s);
    for (size_t n = 0; n <= s.b.len; n++) {
        ob_file *f = NULL;
        ob_err err = {0};
        bool need_more;
        char *copy = exact_copy(s.b.data, n);
        ob_status st = ob_file_open_head(copy, n, s.b.len, &f, &need_more, &err);
        if (n < 4) {
            assert_int_equal(st, OB_E_FORMAT);
        } else if (st == OB_OK) {
            assert_false(need_more);
            assert_int_equal(ob_file_n_tensors(f), 3);
            assert_int_equal(ob_file_n_bytes(f), s.b.len);
            assert_null(ob_file_tensor(f, 0)->data);
            assert_true(n > s.at[KV0]);
        } else {
            assert_true(need_more);
            assert_true(n < s.at[DATA]);
        }
        ob_file_close(f);
        free(copy);
    }
    ob_file *f;
    ob_err err;
    bool need_more;
    /* What is wrong stays wrong however little is at hand; a file that ends early does, too. */
    s.b.data[4] = 4;
    assert_int_equal(ob_file_open_head(s.b.data, 8, s.b.len, &f, &need_more, &err),
                     OB_E_UNSUPPORTED);
    assert_false(need_more);
    s.b.data[4] = 5;
    assert_int_equal(ob_file_open_head(s.b.data, s.at[N_KV], s.at[N_KV] + 4, &f, &need_more, &err),
                     OB_E_FORMAT);
    assert_false(need_more);
    assert_int_equal(ob_file_open_head(s.b.data, 8, 7, &f, &need_more, &err), OB_E_INVALID);
    ob_buf_deinit(&s.b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample),
        cmocka_unit_test(test_any_name),
        cmocka_unit_test(test_header_bytes),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_zoo),
        cmocka_unit_test(test_alias_quant),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_every_damaged_byte),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_every_allocation_fails),
        cmocka_unit_test(test_open_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
