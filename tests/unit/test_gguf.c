/* Unit tests of fmt/: the GGUF reader on good files, on a zoo of bad ones, and without memory. */
#include "test.h"

#include <jansson.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "gguf_builder.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* Time of this thread on a processor: other programs on the machine must not fail a test. */
static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- the sample file, with the places that the zoo damages ------------------------------------ */

typedef enum label {
    MAGIC, VERSION, N_TENSORS, N_KV,
    KEY0_LEN, KEY0, KV0_TYPE, STR_LEN, STR,
    ALIGN_TYPE, ALIGN, ELEM_TYPE, ARRAY_LEN, ARRAY_STR_LEN, INTS_TYPE, INTS_LEN, KEY4, BOOL,
    T0_NAME_LEN, T0_NAME, T0_N_DIMS, T0_NE0, T0_NE1, T0_TYPE, T0_OFF, T1_NAME, T1_NE0, T1_OFF,
    DATA, N_LABELS
} label;

typedef struct sample {
    ob_buf b;
    size_t at[N_LABELS];
} sample;

static void sample_tensors(sample *s)
{
    ob_buf *b = &s->b;
    s->at[T0_NAME_LEN] = b->len;
    s->at[T0_NAME] = b->len + 8;
    gb_str(b, "w0");
    s->at[T0_N_DIMS] = b->len;
    gb_u32(b, 2);
    s->at[T0_NE0] = b->len;
    gb_u64(b, 64);
    s->at[T0_NE1] = b->len;
    gb_u64(b, 2);
    s->at[T0_TYPE] = b->len;
    gb_u32(b, 2); /* Q4_0: 2 x 64 / 32 x 18 = 72 bytes */
    s->at[T0_OFF] = b->len;
    gb_u64(b, 0);
    s->at[T1_NAME] = b->len + 8;
    gb_str(b, "w1");
    gb_u32(b, 1);
    s->at[T1_NE0] = b->len;
    gb_u64(b, 3);
    gb_u32(b, 0); /* F32: 12 bytes */
    s->at[T1_OFF] = b->len;
    gb_u64(b, 96);
}

static void sample_init(sample *s, uint32_t version)
{
    static const int32_t k_ints[3] = {513, -2, 3};
    ob_buf *b = &s->b;
    ob_buf_init(b, 1 << 20);
    s->at[MAGIC] = 0, s->at[VERSION] = 4, s->at[N_TENSORS] = 8, s->at[N_KV] = 16;
    gb_head(b, version, 2, 6);
    s->at[KEY0_LEN] = b->len, s->at[KEY0] = b->len + 8;
    gb_str(b, "general.architecture");
    s->at[KV0_TYPE] = b->len;
    gb_u32(b, OB_KV_STRING);
    s->at[STR_LEN] = b->len, s->at[STR] = b->len + 8;
    gb_str(b, "llama");
    gb_kv_u32(b, "general.alignment", 32);
    s->at[ALIGN] = b->len - 4, s->at[ALIGN_TYPE] = b->len - 8;
    gb_array(b, "a.strings", OB_KV_STRING, 3);
    s->at[ARRAY_LEN] = b->len - 8, s->at[ELEM_TYPE] = b->len - 12, s->at[ARRAY_STR_LEN] = b->len;
    gb_str(b, "x");
    gb_str(b, "");
    gb_str(b, "yz");
    gb_array(b, "a.ints", OB_KV_I32, 3);
    s->at[INTS_LEN] = b->len - 8, s->at[INTS_TYPE] = b->len - 12;
    ob_buf_add(b, k_ints, sizeof k_ints);
    s->at[KEY4] = b->len + 8;
    gb_kv(b, "a.bool", OB_KV_BOOL, "\1", 1);
    s->at[BOOL] = b->len - 1;
    gb_kv(b, "a.f32", OB_KV_F32, &(float){1.5f}, 4);
    sample_tensors(s);
    gb_pad(b, 32);
    s->at[DATA] = b->len;
    gb_fill(b, 'q', 72);
    gb_fill(b, 0, 24);
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

/* Open, expect a refusal whose text holds `text`, in time. */
static void assert_refused(const char *what, const ob_buf *b, ob_status status, const char *text)
{
    ob_file *f = (ob_file *)1;
    void *copy = exact_copy(b->data, b->len);
    ob_err err = {0};
    double t = cpu_ms();
    ob_status s = ob_file_open_bytes(copy, b->len, 0, &f, &err);
    t = cpu_ms() - t;
    free(copy);
    if (s != status || err.code != status || !strstr(err.text, text))
        fail_msg("%s: status %s, text '%s' (wanted %s, '%s')", what, ob_status_describe(s)->name,
                 err.text, ob_status_describe(status)->name, text);
    assert_null(f);
    if (t > 50) fail_msg("%s: took %.1f ms", what, t);
}

/* ---- good files ------------------------------------------------------------------------------- */

static void check_sample(const ob_file *f, const uint8_t *bytes, const sample *s)
{
    int64_t i;
    double d;
    bool yes = false;
    ob_str str;
    assert_int_equal(ob_file_n_kv(f), 6);
    assert_int_equal(ob_file_n_tensors(f), 2);
    assert_true(ob_kv_str(ob_file_find_kv(f, "general.architecture"), &str));
    assert_int_equal(str.len, 5);
    assert_memory_equal(str.data, "llama", 5);
    const ob_kv *kv = ob_file_find_kvf(f, "%s.%s", "a", "strings");
    assert_non_null(kv);
    assert_int_equal(kv->n, 3);
    assert_true(ob_kv_elem_str(kv, 2, &str));
    assert_memory_equal(str.data, "yz", 2);
    assert_false(ob_kv_elem_str(kv, 3, &str));
    assert_false(ob_kv_str(kv, &str));
    kv = ob_file_find_kv(f, "a.ints");
    assert_true(ob_kv_elem_i64(kv, 1, &i));
    assert_int_equal(i, -2);
    assert_true(ob_kv_elem_f64(kv, 2, &d));
    assert_true(d == 3);
    assert_false(ob_kv_i64(kv, &i));
    assert_true(ob_kv_bool(ob_file_find_kv(f, "a.bool"), &yes) && yes);
    assert_false(ob_kv_i64(ob_file_find_kv(f, "a.bool"), &i));
    assert_true(ob_kv_f64(ob_file_find_kv(f, "a.f32"), &d) && d == 1.5);
    assert_null(ob_file_find_kv(f, "a"));
    assert_null(ob_file_kv(f, 6));

    const ob_tensor *t = ob_file_find_tensor(f, "w0");
    assert_ptr_equal(t, ob_file_tensor(f, 0));
    assert_int_equal(t->type, 2);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->ne[0], 64);
    assert_int_equal(t->ne[1], 2);
    assert_int_equal(t->ne[2], 1);
    assert_int_equal(t->n_bytes, 72);
    assert_int_equal(t->file_off, s->at[DATA]);
    assert_ptr_equal(t->data, bytes + s->at[DATA]);
    t = ob_file_find_tensor(f, "w1");
    assert_int_equal(t->n_bytes, 12);
    assert_int_equal(t->file_off, s->at[DATA] + 96);
    assert_null(ob_file_find_tensor(f, "w"));
    assert_null(ob_file_find_tensor(f, ""));
}

static void test_sample_v2_v3(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        sample s;
        ob_file *f;
        ob_err err;
        sample_init(&s, version);
        void *copy = exact_copy(s.b.data, s.b.len);
        assert_int_equal(ob_file_open_bytes(copy, s.b.len, 0, &f, &err), OB_OK);
        assert_string_equal(ob_file_format(f), version == 2 ? "GGUF v2" : "GGUF v3");
        assert_string_equal(ob_file_path(f), "");
        assert_int_equal(ob_file_n_bytes(f), s.b.len);
        assert_int_equal(ob_file_n_parts(f), 1);
        check_sample(f, copy, &s);
        ob_file_release_pages(f, ob_file_tensor(f, 0));
        ob_file_close(f);
        assert_int_equal(ob_file_open_bytes(copy, s.b.len, OB_OPEN_NO_DATA, &f, &err), OB_OK);
        assert_null(ob_file_tensor(f, 0)->data);
        ob_file_close(f);
        free(copy);
        ob_buf_deinit(&s.b);
    }
}

static void test_integer_widths(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        int n_bytes;
        uint64_t bits;
        bool fits;
        int64_t want;
    } k[] = {
        {OB_KV_U8, 1, 0xFF, true, 255},          {OB_KV_I8, 1, 0xFF, true, -1},
        {OB_KV_U16, 2, 0xFFFE, true, 65534},     {OB_KV_I16, 2, 0xFFFE, true, -2},
        {OB_KV_U32, 4, 0xFFFFFFFD, true, 4294967293},
        {OB_KV_I32, 4, 0xFFFFFFFD, true, -3},    {OB_KV_I64, 8, UINT64_MAX - 3, true, -4},
        {OB_KV_U64, 8, INT64_MAX, true, INT64_MAX},
        {OB_KV_U64, 8, (uint64_t)INT64_MAX + 1, false, 0},
    };
    for (size_t i = 0; i < OB_COUNT(k); i++) {
        ob_buf b;
        ob_file *f;
        int64_t v = 0;
        double d = 0;
        ob_buf_init(&b, 1000);
        gb_head(&b, 3, 0, 1);
        gb_kv(&b, "k", k[i].type, &k[i].bits, (size_t)k[i].n_bytes);
        assert_int_equal(ob_file_open_bytes(b.data, b.len, 0, &f, NULL), OB_OK);
        assert_int_equal(ob_kv_i64(ob_file_find_kv(f, "k"), &v), k[i].fits);
        assert_int_equal(v, k[i].want);
        assert_true(ob_kv_f64(ob_file_find_kv(f, "k"), &d));
        assert_true(k[i].fits ? d == (double)k[i].want : d == 9223372036854775808.0);
        ob_file_close(f);
        ob_buf_deinit(&b);
    }
    int64_t v;
    assert_false(ob_kv_i64(NULL, &v));
}

/* Tensors may lie in any order in the data; a directory without tensors is a vocabulary file. */
static void test_order_and_empty(void **state)
{
    (void)state;
    ob_buf b;
    ob_file *f;
    ob_err err;
    ob_buf_init(&b, 10000);
    gb_head(&b, 3, 3, 0);
    gb_tensor(&b, "c", 0, 8, 1, 64);
    gb_tensor(&b, "a", 0, 8, 1, 0);
    gb_tensor(&b, "b", 0, 8, 1, 32);
    gb_pad(&b, 32);
    gb_fill(&b, 0, 96);
    assert_int_equal(ob_file_open_bytes(b.data, b.len, 0, &f, &err), OB_OK);
    assert_string_equal(ob_file_tensor(f, 0)->name, "c");
    assert_null(ob_file_tensor(f, 3));
    ob_file_close(f);
    ob_buf_clear(&b);
    gb_head(&b, 3, 0, 0);
    assert_int_equal(ob_file_open_bytes(b.data, b.len, 0, &f, &err), OB_OK);
    assert_null(ob_file_find_kv(f, "k"));
    assert_null(ob_file_find_tensor(f, "t"));
    ob_file_close(f);
    ob_buf_deinit(&b);
}

static void test_types(void **state)
{
    (void)state;
    uint64_t n = 0;
    assert_true(ob_fmt_type_bytes(12, 512, &n) && n == 288);
    assert_false(ob_fmt_type_bytes(12, 100, &n));
    assert_false(ob_fmt_type_bytes(4, 32, &n));
    assert_false(ob_fmt_type_bytes(0, UINT64_MAX, &n));
    assert_false(ob_fmt_type_bytes(UINT32_MAX, 0, &n));
    assert_string_equal(ob_fmt_type_name(39), "MXFP4");
    assert_null(ob_fmt_type_name(31));
    assert_null(ob_fmt_type_name(UINT32_MAX));
}

/* ---- the zoo: one wrong field each ------------------------------------------------------------ */

#define GIB (UINT64_C(1) << 30)

static const struct zoo {
    const char *what;
    label at;
    int n_bytes;
    uint64_t value;
    ob_status status;
    const char *text; /* must be in the message */
} k_zoo[] = {
    {"not GGUF", MAGIC, 4, 0x12345678, OB_E_FORMAT, "not a GGUF file: it starts with 78 56"},
    {"swapped magic", MAGIC, 4, 0x47475546, OB_E_UNSUPPORTED, "byte order"},
    {"version 0", VERSION, 4, 0, OB_E_UNSUPPORTED, "version 0"},
    {"version 1", VERSION, 4, 1, OB_E_UNSUPPORTED, "version 1"},
    {"version 4", VERSION, 4, 4, OB_E_UNSUPPORTED, "version 4"},
    {"big-endian v3", VERSION, 4, 0x03000000, OB_E_UNSUPPORTED, "big-endian GGUF v3"},
    {"big-endian v2", VERSION, 4, 0x02000000, OB_E_UNSUPPORTED, "byte order"},
    {"version -1", VERSION, 4, 0xFFFFFFFF, OB_E_UNSUPPORTED, "version 4294967295"},
    {"n_tensors just under SIZE_MAX / sizeof", N_TENSORS, 8, SIZE_MAX / sizeof(ob_tensor) - 1,
     OB_E_FORMAT, "tensors cannot stand"},
    {"n_tensors just over SIZE_MAX / sizeof", N_TENSORS, 8, SIZE_MAX / sizeof(ob_tensor) + 1,
     OB_E_FORMAT, "tensors cannot stand"},
    {"n_tensors max", N_TENSORS, 8, UINT64_MAX, OB_E_FORMAT, "tensors cannot stand"},
    {"n_tensors one too many", N_TENSORS, 8, 3, OB_E_FORMAT, "tensor 2"},
    {"n_kv max", N_KV, 8, UINT64_MAX, OB_E_FORMAT, "metadata pairs cannot stand"},
    {"n_kv 2^32", N_KV, 8, UINT64_C(1) << 32, OB_E_FORMAT, "metadata pairs cannot stand"},
    {"n_kv one too many", N_KV, 8, 7, OB_E_FORMAT, "bytes are missing"},
    {"key of a gigabyte", KEY0_LEN, 8, GIB, OB_E_FORMAT, "bytes are missing"},
    {"key of 2^64-1", KEY0_LEN, 8, UINT64_MAX, OB_E_FORMAT, "bytes are missing"},
    {"empty key", KEY0_LEN, 8, 0, OB_E_FORMAT, "empty key"},
    {"key not UTF-8", KEY0, 1, 0xFF, OB_E_FORMAT, "not UTF-8"},
    {"key with NUL", KEY0, 1, 0, OB_E_FORMAT, "not UTF-8"},
    {"duplicate key", KEY4, 6, 0x73746e692e61 /* "a.ints" */, OB_E_FORMAT, "same key as pair 3"},
    {"value type 13", KV0_TYPE, 4, 13, OB_E_FORMAT, "unknown value type 13"},
    {"value type max", KV0_TYPE, 4, UINT32_MAX, OB_E_FORMAT, "unknown value type 4294967295"},
    {"string of a gigabyte", STR_LEN, 8, GIB, OB_E_FORMAT, "bytes are missing"},
    {"string of 2^64-1", STR_LEN, 8, UINT64_MAX, OB_E_FORMAT, "bytes are missing"},
    {"string of 2^63", STR_LEN, 8, UINT64_C(1) << 63, OB_E_FORMAT, "bytes are missing"},
    {"array of arrays", ELEM_TYPE, 4, OB_KV_ARRAY, OB_E_UNSUPPORTED, "arrays of arrays"},
    {"element type 13", ELEM_TYPE, 4, 13, OB_E_FORMAT, "unknown element type 13"},
    {"strings: a gigabyte", ARRAY_LEN, 8, GIB, OB_E_FORMAT, "strings cannot stand"},
    {"strings: 2^64-1", ARRAY_LEN, 8, UINT64_MAX, OB_E_FORMAT, "strings cannot stand"},
    {"string in array too long", ARRAY_STR_LEN, 8, GIB, OB_E_FORMAT, "bytes are missing"},
    {"ints: a gigabyte", INTS_LEN, 8, GIB, OB_E_FORMAT, "bytes are missing"},
    {"ints: size overflows", INTS_LEN, 8, UINT64_C(1) << 62, OB_E_FORMAT, "array of"},
    {"ints: size overflows to 4", INTS_LEN, 8, (UINT64_C(1) << 62) + 1, OB_E_FORMAT, "array of"},
    {"bools of 2", INTS_TYPE, 4, OB_KV_BOOL, OB_E_FORMAT, "bool with the value 2"},
    {"bool 2", BOOL, 1, 2, OB_E_FORMAT, "bool with the value 2"},
    {"alignment 0", ALIGN, 4, 0, OB_E_FORMAT, "general.alignment is 0"},
    {"alignment 4", ALIGN, 4, 4, OB_E_FORMAT, "general.alignment is 4"},
    {"alignment 33", ALIGN, 4, 33, OB_E_FORMAT, "general.alignment is 33"},
    {"alignment 2^31", ALIGN, 4, UINT32_C(1) << 31, OB_E_FORMAT, "general.alignment is 2147483648"},
    {"alignment of another type", ALIGN_TYPE, 4, OB_KV_I32, OB_E_FORMAT, "not a u32"},
    {"name of a gigabyte", T0_NAME_LEN, 8, GIB, OB_E_FORMAT, "bytes are missing"},
    {"empty name", T0_NAME_LEN, 8, 0, OB_E_FORMAT, "empty name"},
    {"name not UTF-8", T0_NAME, 1, 0x80, OB_E_FORMAT, "not UTF-8"},
    {"name with NUL", T0_NAME, 1, 0, OB_E_FORMAT, "not UTF-8"},
    {"duplicate name", T1_NAME, 2, 0x3077 /* "w0" */, OB_E_FORMAT, "same name 'w0'"},
    {"0 dims", T0_N_DIMS, 4, 0, OB_E_FORMAT, "0 dimensions"},
    {"5 dims", T0_N_DIMS, 4, 5, OB_E_FORMAT, "'w0'"},
    {"2^32-1 dims", T0_N_DIMS, 4, UINT32_MAX, OB_E_FORMAT, "4294967295 dimensions"},
    {"dim 0", T0_NE1, 8, 0, OB_E_FORMAT, "dimension 1 is 0"},
    {"dim 2^63", T0_NE1, 8, UINT64_C(1) << 63, OB_E_FORMAT, "dimension 1 is 9223372036854775808"},
    {"elements overflow", T0_NE1, 8, UINT64_C(1) << 58, OB_E_FORMAT, "overflows"},
    {"elements overflow to 0", T0_NE0, 8, UINT64_C(1) << 62, OB_E_FORMAT, "overflows"},
    {"row is no whole block", T0_NE0, 8, 48, OB_E_FORMAT, "Q4_0 blocks of 32"},
    {"row of 32 x 2 / 64 but not whole", T0_NE0, 8, 16, OB_E_FORMAT, "Q4_0 blocks of 32"},
    {"removed type", T0_TYPE, 4, 4, OB_E_UNSUPPORTED, "type 4 (Q4_2, removed"},
    {"removed type 36", T0_TYPE, 4, 36, OB_E_UNSUPPORTED, "'w0'"},
    {"unknown type", T0_TYPE, 4, 99, OB_E_UNSUPPORTED, "unknown type 99"},
    {"unknown type max", T0_TYPE, 4, UINT32_MAX, OB_E_UNSUPPORTED, "'w0'"},
    {"offset not aligned", T1_OFF, 8, 97, OB_E_FORMAT, "no multiple of the alignment 32"},
    {"offset outside", T1_OFF, 8, 128, OB_E_FORMAT, "32 bytes are missing"},
    {"offset 2^64-32", T1_OFF, 8, UINT64_MAX - 31, OB_E_FORMAT, "overflows"},
    {"offset 2^64-64", T0_OFF, 8, UINT64_MAX - 63, OB_E_FORMAT, "overflows"},
    {"offset 2^63", T0_OFF, 8, UINT64_C(1) << 63, OB_E_FORMAT, "missing"},
    {"tensors overlap", T1_OFF, 8, 64, OB_E_FORMAT, "'w0' and 'w1' overlap"},
    {"tensors coincide", T1_OFF, 8, 0, OB_E_FORMAT, "overlap"},
    {"size overflows", T1_NE0, 8, UINT64_C(1) << 62, OB_E_FORMAT, "its size overflows"},
    {"tensor larger than the file", T1_NE0, 8, UINT64_C(1) << 40, OB_E_FORMAT, "bytes are missing"},
};

static void test_zoo(void **state)
{
    (void)state;
    for (size_t i = 0; i < OB_COUNT(k_zoo); i++) {
        sample s;
        sample_init(&s, 3);
        memcpy(s.b.data + s.at[k_zoo[i].at], &k_zoo[i].value, (size_t)k_zoo[i].n_bytes);
        assert_refused(k_zoo[i].what, &s.b, k_zoo[i].status, k_zoo[i].text);
        ob_buf_deinit(&s.b);
    }
}

static void test_every_truncation(void **state)
{
    (void)state;
    sample s;
    sample_init(&s, 3);
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

/* Whatever a damaged byte does, the answer is a file that can be walked, or a refusal with a text. */
static void test_every_damaged_byte(void **state)
{
    (void)state;
    static const unsigned char k_xor[] = {0x01, 0x80, 0xFF, 0x20};
    sample s;
    ob_buf out;
    sample_init(&s, 3);
    ob_buf_init(&out, 1 << 20);
    for (size_t i = 0; i < 4 * s.b.len; i++) {
        ob_file *f;
        char *copy = exact_copy(s.b.data, s.b.len);
        ob_err err = {0};
        copy[i / 4] = (char)(copy[i / 4] ^ k_xor[i % 4]);
        ob_status st = ob_file_open_bytes(copy, s.b.len, 0, &f, &err);
        if (st == OB_OK) {
            ob_buf_clear(&out);
            assert_int_equal(ob_file_describe(f, i % 2, &out, &err), OB_OK);
            ob_file_close(f);
        } else {
            assert_int_equal(err.code, st);
            assert_true(strlen(err.text) > 10);
        }
        free(copy);
    }
    ob_buf_deinit(&out);
    ob_buf_deinit(&s.b);
}

static void test_limits(void **state)
{
    (void)state;
    ob_buf b;
    ob_buf_init(&b, 256 << 20);
    gb_head(&b, 3, OB_MAX_TENSORS + 1, 0);
    gb_fill(&b, 0, 40 * ((size_t)OB_MAX_TENSORS + 1));
    assert_refused("too many tensors", &b, OB_E_LIMIT, "tensors (limit");
    ob_buf_clear(&b);
    gb_head(&b, 3, 0, OB_MAX_KV_PAIRS + 1);
    gb_fill(&b, 0, 20 * ((size_t)OB_MAX_KV_PAIRS + 1));
    assert_refused("too many pairs", &b, OB_E_LIMIT, "metadata pairs (limit");
    ob_buf_clear(&b);
    gb_head(&b, 3, 0, 1);
    gb_u64(&b, OB_MAX_KEY_BYTES);
    gb_fill(&b, 'k', OB_MAX_KEY_BYTES + 20);
    assert_refused("key too long", &b, OB_E_LIMIT, "key of 65536 bytes");
    ob_buf_clear(&b);
    gb_head(&b, 3, 1, 0);
    gb_u64(&b, OB_MAX_TENSOR_NAME_BYTES + 1);
    gb_fill(&b, 'n', 400);
    assert_refused("name too long", &b, OB_E_LIMIT, "name of 257 bytes");
    ob_buf_clear(&b);
    gb_head(&b, 3, 0, 1);
    gb_array(&b, "s", OB_KV_STRING, (uint64_t)OB_MAX_KV_STRINGS + 1);
    gb_fill(&b, 0, 8 * ((size_t)OB_MAX_KV_STRINGS + 1));
    assert_refused("too many strings", &b, OB_E_LIMIT, "strings in all metadata");
    ob_buf_deinit(&b);
}

static void test_strangers(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
        ob_status status;
        const char *text;
    } k[] = {
        {"", 0, OB_E_FORMAT, "empty"},
        {"G", 1, OB_E_FORMAT, "23 bytes are missing"},
        {"GGU", 3, OB_E_FORMAT, "21 bytes are missing"},
        {"PK\3\4abcdefgh", 12, OB_E_FORMAT, "zip archive"},
        {"<!DOCTYPE html><html>", 21, OB_E_FORMAT, "HTML page"},
        {"version https://git-lfs.github.com/spec/v1\n", 43, OB_E_FORMAT, "git lfs pull"},
        {"lmgg\1\0\0\0", 8, OB_E_FORMAT, "before GGUF"},
        {"{\"error\":1}", 11, OB_E_FORMAT, "JSON"},
        {"\x1F\x8B\x08", 3, OB_E_FORMAT, "gzip"},
        {"hello, world", 12, OB_E_FORMAT, "starts with 68 65 6c 6c 6f"},
    };
    for (size_t i = 0; i < OB_COUNT(k); i++) {
        ob_buf b = {.data = (char *)(uintptr_t)k[i].bytes, .len = k[i].len};
        assert_refused(k[i].text, &b, k[i].status, k[i].text);
    }
}

/* Text of a file must not steer the terminal that shows the error. */
static void test_messages_are_plain(void **state)
{
    (void)state;
    ob_buf b;
    ob_file *f;
    ob_err err;
    ob_buf_init(&b, 1000);
    gb_head(&b, 3, 1, 0);
    gb_tensor(&b, "a\x1B[2J\nb", 99, 1, 1, 0);
    assert_int_equal(ob_file_open_bytes(b.data, b.len, 0, &f, &err), OB_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "'a?[2J\\nb'"));
    ob_buf_deinit(&b);
}

/* ---- files on disk ---------------------------------------------------------------------------- */

static char g_dir[] = "/tmp/ob_test_gguf_XXXXXX";

static const char *write_file(const char *name, const void *bytes, size_t len)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", g_dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
    return path;
}

/* Part `no` of `count` with one tensor `name` filled with `no`; total < 0 leaves the key out. */
static void write_part(const char *file, int no, int count, const char *name, int total)
{
    ob_buf b;
    ob_buf_init(&b, 10000);
    gb_head(&b, 3, 1, (no == 0 ? 3u : 2u) + (total >= 0));
    gb_kv_u16(&b, "split.no", (uint16_t)no);
    gb_kv_u16(&b, "split.count", (uint16_t)count);
    if (total >= 0) gb_kv(&b, "split.tensors.count", OB_KV_I32, &total, 4);
    if (no == 0) gb_kv_str(&b, "general.architecture", "llama");
    gb_tensor(&b, name, 0, 8, 1, 0);
    gb_pad(&b, 32);
    gb_fill(&b, (char)no, 32);
    write_file(file, b.data, b.len);
    ob_buf_deinit(&b);
}

static void write_three_parts(void)
{
    write_part("m-00001-of-00003.gguf", 0, 3, "t0", 3);
    write_part("m-00002-of-00003.gguf", 1, 3, "t1", 3);
    write_part("m-00003-of-00003.gguf", 2, 3, "t2", 3);
}

static void assert_open_fails(const char *name, ob_status status, const char *text)
{
    char path[256];
    ob_file *f;
    ob_err err = {0};
    snprintf(path, sizeof path, "%s/%s", g_dir, name);
    ob_status s = ob_file_open(path, 0, &f, &err);
    if (s != status || !strstr(err.text, text) || strncmp(err.text, path, strlen(path)) != 0)
        fail_msg("%s: status %s, text '%s' (wanted '%s')", name, ob_status_describe(s)->name,
                 err.text, text);
}

static void test_split_opens_by_any_part(void **state)
{
    (void)state;
    write_three_parts();
    for (int named = 1; named <= 3; named++) {
        char path[256];
        ob_file *f;
        ob_str arch;
        ob_err err = {0};
        snprintf(path, sizeof path, "%s/m-%05d-of-00003.gguf", g_dir, named);
        if (ob_file_open(path, 0, &f, &err) != OB_OK) fail_msg("%s", err.text);
        assert_int_equal(ob_file_n_parts(f), 3);
        assert_int_equal(ob_file_n_tensors(f), 3);
        assert_non_null(strstr(ob_file_path(f), "m-00001-of-00003.gguf"));
        assert_true(ob_kv_str(ob_file_find_kv(f, "general.architecture"), &arch));
        uint64_t n_bytes = 0;
        for (int i = 0; i < 3; i++) {
            char name[8];
            snprintf(name, sizeof name, "t%d", i);
            const ob_tensor *t = ob_file_find_tensor(f, name);
            assert_non_null(t);
            assert_int_equal(t->file_index, i);
            assert_int_equal(((const uint8_t *)t->data)[31], i);
            ob_file_release_pages(f, t);
            assert_int_equal(((const uint8_t *)t->data)[0], i);
            n_bytes += t->file_off + t->n_bytes;
        }
        assert_int_equal(ob_file_n_bytes(f), n_bytes);
        ob_file_close(f);
    }
}

static void test_split_refusals(void **state)
{
    (void)state;
    char path[256];
    write_three_parts();
    snprintf(path, sizeof path, "%s/m-00002-of-00003.gguf", g_dir);
    assert_int_equal(unlink(path), 0);
    assert_open_fails("m-00003-of-00003.gguf", OB_E_NOT_FOUND, "part 2 of 3 is missing");
    assert_open_fails("m-00001-of-00003.gguf", OB_E_NOT_FOUND, "m-00002-of-00003.gguf");
    write_part("m-00002-of-00003.gguf", 1, 3, "t0", 3);
    assert_open_fails("m-00001-of-00003.gguf", OB_E_FORMAT, "same name 't0'");
    write_part("m-00002-of-00003.gguf", 2, 3, "t1", 3);
    assert_open_fails("m-00001-of-00003.gguf", OB_E_FORMAT, "should be part 2 of 3");
    write_part("m-00002-of-00003.gguf", 1, 4, "t1", 3);
    assert_open_fails("m-00001-of-00003.gguf", OB_E_FORMAT, "should be part 2 of 3");
    write_file("m-00002-of-00003.gguf", "hello", 5);
    assert_open_fails("m-00001-of-00003.gguf", OB_E_FORMAT, "part 'm-00002-of-00003.gguf': not a GGUF");
    write_part("m-00002-of-00003.gguf", 1, 3, "t1", 3);
    write_part("m-00001-of-00003.gguf", 0, 3, "t0", 7);
    assert_open_fails("m-00001-of-00003.gguf", OB_E_FORMAT, "split.tensors.count is 7");
    write_part("other.gguf", 0, 3, "t0", 3);
    assert_open_fails("other.gguf", OB_E_FORMAT, "must be named NAME-00001-of-00003.gguf");
    write_part("m-00005-of-00003.gguf", 4, 3, "t0", 3);
    assert_open_fails("m-00005-of-00003.gguf", OB_E_FORMAT, "split.no is 4");
    write_part("big.gguf", 4, 60000, "t0", 3);
    assert_open_fails("big.gguf", OB_E_LIMIT, "split.count is 60000");
    ob_buf b;
    ob_buf_init(&b, 1000);
    gb_head(&b, 3, 0, 1);
    gb_kv_str(&b, "split.count", "three");
    write_file("words.gguf", b.data, b.len);
    ob_buf_deinit(&b);
    assert_open_fails("words.gguf", OB_E_FORMAT, "split.count is not a count");
    /* A split of one is a whole file whatever its name. */
    write_part("one.gguf", 0, 1, "t0", 1);
    ob_file *f;
    snprintf(path, sizeof path, "%s/one.gguf", g_dir);
    assert_int_equal(ob_file_open(path, 0, &f, NULL), OB_OK);
    ob_file_close(f);
}

static void test_split_needs_files(void **state)
{
    (void)state;
    ob_buf b;
    ob_buf_init(&b, 1000);
    gb_head(&b, 3, 0, 2);
    gb_kv_u16(&b, "split.no", 1);
    gb_kv_u16(&b, "split.count", 2);
    assert_refused("split in memory", &b, OB_E_UNSUPPORTED, "cannot be read from memory");
    ob_buf_deinit(&b);
}

static void test_not_a_file(void **state)
{
    (void)state;
    char path[256];
    assert_open_fails("absent.gguf", OB_E_NOT_FOUND, "No such file");
    assert_open_fails("", OB_E_NOT_FOUND, "is a directory without a model.safetensors");
    write_file("empty.gguf", "", 0);
    assert_open_fails("empty.gguf", OB_E_FORMAT, "the file is empty");
    snprintf(path, sizeof path, "%s/fifo", g_dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_open_fails("fifo", OB_E_IO, "not a regular file"); /* and does not wait for a writer */
}

/* Facts of gguf-py 0.19 about the golden files: an independent reader. */
static void test_golden(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        size_t n_tensors;
        const char *type;
        int64_t ne[2];
        uint64_t off, n_bytes, first8, n_vocab;
    } k[] = {
        {"llama.gguf", 30, "F32", {128, 64}, 424160, 32768, 0xbd070f793dca5829, 512},
        {"llama3rope.gguf", 30, "F32", {128, 64}, 274912, 32768, 0xbe3fc45dbc813ec9, 448},
        {"llama-q-Q4_0.gguf", 20, "Q4_0", {256, 256}, 456608, 36864, 0x387a8587ac69263d, 512},
        {"llama-q-Q4_K_M.gguf", 20, "Q6_K", {256, 256}, 465056, 53760, 0xb77411d3b088fcf8, 512},
        {"llama-q-Q6_K.gguf", 20, "Q6_K", {256, 256}, 608672, 53760, 0xb77411d3b088fcf8, 512},
        {"llama-q-Q8_0.gguf", 20, "Q8_0", {256, 256}, 783264, 69632, 0xfe25d2e93a17164a, 512},
    };
    for (size_t i = 0; i < OB_COUNT(k); i++) {
        char path[512];
        ob_file *f;
        ob_err err;
        ob_str token;
        double eps;
        snprintf(path, sizeof path, "%s/golden/%s", OB_TEST_DATA, k[i].file);
        if (ob_file_open(path, 0, &f, &err) != OB_OK) fail_msg("%s", err.text);
        assert_int_equal(ob_file_n_tensors(f), k[i].n_tensors);
        assert_int_equal(ob_file_n_kv(f), 27);
        const ob_tensor *t = ob_file_find_tensor(f, "blk.1.ffn_down.weight");
        assert_non_null(t);
        assert_string_equal(ob_fmt_type_name(t->type), k[i].type);
        assert_int_equal(t->ne[0], k[i].ne[0]);
        assert_int_equal(t->ne[1], k[i].ne[1]);
        assert_int_equal(t->file_off, k[i].off);
        assert_int_equal(t->n_bytes, k[i].n_bytes);
        assert_memory_equal(t->data, &k[i].first8, 8);
        const ob_kv *tokens = ob_file_find_kv(f, "tokenizer.ggml.tokens");
        assert_int_equal(tokens->n, k[i].n_vocab);
        assert_true(ob_kv_elem_str(tokens, 300, &token));
        assert_int_equal(token.len, 4);
        assert_memory_equal(token.data, "\xC4\xA0re", 4);
        assert_true(ob_kv_f64(ob_file_find_kvf(f, "%s.attention.layer_norm_rms_epsilon", "llama"),
                              &eps));
        assert_true(eps == (double)1e-6f);
        ob_file_close(f);
    }
}

/* ---- no memory, little memory ----------------------------------------------------------------- */

static void test_every_allocation_fails(void **state)
{
    (void)state;
    sample s;
    char path[256];
    sample_init(&s, 3);
    write_three_parts();
    snprintf(path, sizeof path, "%s/m-00002-of-00003.gguf", g_dir);
    for (int split = 0; split < 2; split++) {
        ob_status st = OB_E_NO_MEMORY;
        int n = 0;
        for (; st != OB_OK; n++) {
            ob_file *f = NULL;
            ob_err err = {0};
            ob_alloc_fail_after(n);
            st = split ? ob_file_open(path, 0, &f, &err)
                       : ob_file_open_bytes(s.b.data, s.b.len, 0, &f, &err);
            ob_alloc_fail_after(-1);
            if (st != OB_OK) {
                assert_int_equal(st, OB_E_NO_MEMORY);
                assert_int_equal(err.code, OB_E_NO_MEMORY);
                assert_null(f);
            }
            ob_file_close(f);
        }
        assert_in_range(n, 8, 100);
    }
    ob_buf_deinit(&s.b);
}

/* The largest directory allowed, in the worst order and with the fault at its very end. */
static void test_largest_directory_is_refused_in_time(void **state)
{
    (void)state;
    ob_buf b;
    ob_buf_init(&b, 64 << 20);
    gb_head(&b, 3, OB_MAX_TENSORS, 0);
    for (uint32_t i = 0; i < OB_MAX_TENSORS; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%06u", i ? i : 1); /* 0 and 1 are equal */
        gb_tensor(&b, name, 24, 1, 1, 32 * (uint64_t)(OB_MAX_TENSORS - 1 - i));
    }
    gb_pad(&b, 32);
    gb_fill(&b, 0, 32 * (size_t)OB_MAX_TENSORS);
    ob_file *f;
    ob_err err;
    double best = 1e9;
    for (int i = 0; i < 3; i++) {
        double t = cpu_ms();
        assert_int_equal(ob_file_open_bytes(b.data, b.len, 0, &f, &err), OB_E_FORMAT);
        best = OB_MIN(best, cpu_ms() - t);
    }
    assert_non_null(strstr(err.text, "same name 'w000001'"));
    print_message("%u tensors refused in %.1f ms\n", OB_MAX_TENSORS, best);
    if (!SANITIZED) assert_true(best < 50);
    ob_buf_deinit(&b);
}

/* A vocabulary of 150,000 tokens opens in milliseconds, in about 16 bytes a string. */
static void test_large_vocabulary(void **state)
{
    (void)state;
    enum { N = 150000 };
    ob_buf b;
    ob_file *f;
    ob_str last;
    ob_buf_init(&b, 64 << 20);
    gb_head(&b, 3, 0, 2);
    gb_array(&b, "tokenizer.ggml.tokens", OB_KV_STRING, N);
    for (int i = 0; i < N; i++) {
        gb_u64(&b, 6);
        ob_buf_addf(&b, "%06d", i);
    }
    gb_array(&b, "tokenizer.ggml.token_type", OB_KV_I32, N);
    gb_fill(&b, 1, 4 * N);
    double best = 1e9;
    uint64_t n_allocs = ob_alloc_count();
    for (int i = 0; i < 5; i++) {
        double t = cpu_ms();
        assert_int_equal(ob_file_open_bytes(b.data, b.len, 0, &f, NULL), OB_OK);
        best = OB_MIN(best, cpu_ms() - t);
        if (i < 4) ob_file_close(f);
    }
    assert_in_range(ob_alloc_count() - n_allocs, 5, 5 * 16); /* not one a token */
    assert_true(ob_kv_elem_str(ob_file_find_kv(f, "tokenizer.ggml.tokens"), N - 1, &last));
    assert_memory_equal(last.data, "149999", 6);
    ob_file_close(f);
    ob_buf_deinit(&b);
    print_message("%d tokens open in %.2f ms\n", N, best);
    if (!SANITIZED) assert_true(best < 20);
}

/* ---- describe --------------------------------------------------------------------------------- */

static void test_describe(void **state)
{
    (void)state;
    sample s;
    ob_file *f;
    ob_buf out;
    ob_err err;
    sample_init(&s, 3);
    ob_buf_init(&out, 1 << 20);
    assert_int_equal(ob_file_open_bytes(s.b.data, s.b.len, 0, &f, &err), OB_OK);
    assert_int_equal(ob_file_describe(f, true, &out, &err), OB_OK);
    static const char *const k_json[] = {
        "\"format\": \"GGUF v3\"", "\"parameters\": 131,", "\"general.architecture\": \"llama\"",
        "\"a.strings\": {\"type\": \"array\", \"elem_type\": \"string\", \"length\": 3, "
        "\"first\": [\"x\", \"\", \"yz\"]}",
        "\"a.ints\": {\"type\": \"array\", \"elem_type\": \"i32\", \"length\": 3, "
        "\"first\": [513, -2, 3]}",
        "\"a.bool\": true", "\"a.f32\": 1.5",
        "{\"name\": \"w0\", \"type\": \"Q4_0\", \"shape\": [64, 2], \"bytes\": 72,",
        "\"Q4_0\": {\"tensors\": 1, \"parameters\": 128, \"bytes\": 72}",
    };
    for (size_t i = 0; i < OB_COUNT(k_json); i++)
        if (!strstr(ob_buf_str(&out), k_json[i]))
            fail_msg("no %s in\n%s", k_json[i], ob_buf_str(&out));
    ob_buf_clear(&out);
    assert_int_equal(ob_file_describe(f, false, &out, &err), OB_OK);
    static const char *const k_text[] = {
        "Format        GGUF v3", "Parameters    131 (131)",
        "  a.strings             string[3]       \"x\", \"\", \"yz\"\n",
        "  w0  Q4_0     64 x 2              72 bytes\n",
        "  w1  F32      3                   12 bytes\n",
    };
    for (size_t i = 0; i < OB_COUNT(k_text); i++)
        if (!strstr(ob_buf_str(&out), k_text[i]))
            fail_msg("no '%s' in\n%s", k_text[i], ob_buf_str(&out));
    ob_buf_deinit(&out);
    ob_buf_init(&out, 100);
    assert_int_equal(ob_file_describe(f, true, &out, &err), OB_E_LIMIT);
    ob_buf_deinit(&out);
    ob_file_close(f);
    ob_buf_deinit(&s.b);
}

/* Values at the edge of their types, text that a terminal must not see, and JSON that parses. */
static void test_describe_odd_values(void **state)
{
    (void)state;
    ob_buf b, out;
    ob_file *f;
    ob_err err;
    char tall[200];
    memset(tall, 't', sizeof tall - 1);
    tall[sizeof tall - 1] = 0;
    ob_buf_init(&b, 4000);
    gb_head(&b, 3, 0, 7);
    gb_kv(&b, "u64", OB_KV_U64, &(uint64_t){UINT64_MAX}, 8);
    gb_kv(&b, "f64", OB_KV_F64, &(double){0.1}, 8);
    gb_kv(&b, "f32", OB_KV_F32, &(float){1e-5f}, 4);
    gb_kv(&b, "nan", OB_KV_F32, &(uint32_t){0x7FC00000}, 4);
    gb_kv_str(&b, "general.name", "bell\a csi\xC2\x9B" "2J bad\xFF");
    gb_kv_str(&b, "tall", tall);
    gb_array(&b, "long", OB_KV_U8, 20);
    gb_fill(&b, 7, 20);
    assert_int_equal(ob_file_open_bytes(b.data, b.len, 0, &f, &err), OB_OK);
    ob_buf_init(&out, 1 << 20);
    assert_int_equal(ob_file_describe(f, false, &out, &err), OB_OK);
    assert_non_null(strstr(ob_buf_str(&out), "Name          bell? csi?2J bad?\n"));
    assert_non_null(strstr(ob_buf_str(&out), "ttt...\"\n"));
    assert_non_null(strstr(ob_buf_str(&out), "u8[20]          7, 7, 7, 7, 7, ...\n"));
    ob_buf_clear(&out);
    assert_int_equal(ob_file_describe(f, true, &out, &err), OB_OK);
    json_t *root = json_loadb(out.data, out.len, JSON_DECODE_INT_AS_REAL, NULL);
    json_t *meta = json_object_get(root, "metadata");
    assert_non_null(meta);
    assert_true(json_real_value(json_object_get(meta, "u64")) == 18446744073709551615.0);
    assert_true(json_real_value(json_object_get(meta, "f64")) == 0.1);
    assert_non_null(strstr(ob_buf_str(&out), "\"f32\": 1e-05"));
    assert_true(json_is_null(json_object_get(meta, "nan")));
    assert_string_equal(json_string_value(json_object_get(meta, "tall")), tall);
    json_t *array = json_object_get(meta, "long");
    assert_true(json_real_value(json_object_get(array, "length")) == 20);
    assert_int_equal(json_array_size(json_object_get(array, "first")), 16);
    json_decref(root);
    ob_buf_deinit(&out);
    ob_buf_deinit(&b);
    ob_file_close(f);
}

/* Peak memory of this process; getrusage would count what its parent had before exec. */
static long peak_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1) break;
    if (f) fclose(f);
    return kib;
}

/* The hostile files above cost little memory: the process stays near what the test itself needs. */
static void test_peak_memory(void **state)
{
    (void)state;
    if (SANITIZED) {
        print_message("skipped: needs true memory figures, which a sanitizer's shadow hides\n");
        skip();
    }
    assert_in_range(peak_kib(), 1, 64 * 1024);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(g_dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", g_dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample_v2_v3),
        cmocka_unit_test(test_integer_widths),
        cmocka_unit_test(test_order_and_empty),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_zoo),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_every_damaged_byte),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_messages_are_plain),
        cmocka_unit_test(test_split_opens_by_any_part),
        cmocka_unit_test(test_split_refusals),
        cmocka_unit_test(test_split_needs_files),
        cmocka_unit_test(test_not_a_file),
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_every_allocation_fails),
        cmocka_unit_test(test_describe),
        cmocka_unit_test(test_describe_odd_values),
        cmocka_unit_test(test_peak_memory), /* before the tests that build large files */
        cmocka_unit_test(test_large_vocabulary),
        cmocka_unit_test(test_largest_directory_is_refused_in_time),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
