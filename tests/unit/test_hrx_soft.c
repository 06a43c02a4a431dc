/* libhrx-soft: kernels that another interpreter has run (tests/data/hrx/samples.npz: code, arguments, buffers before
 * and the first 2 KiB after), in every order of waves; and what it must find fault with. */
#include <dlfcn.h>
#include <math.h>

#include "dev/hrx/soft/hrx_abi.h"
#include "npz.h"
#include "test.h"

static struct {
    void *lib;
    hrx_handle dev, alloc, stream;
    npz *data;
} t;

static void *sym(const char *name)
{
    void *p = dlsym(t.lib, name);
    if (!p) fail_msg("%s is missing", name);
    return p;
}
#define CALL(f) ((__typeof__(&f))sym(#f))

/* The text of a status, which is consumed; "" for success. */
static const char *text_of(hrx_status s)
{
    static char kept[512];
    kept[0] = 0;
    if (!s) return kept;
    char *text = NULL;
    CALL(hrx_status_ignore)(CALL(hrx_status_to_string)(s, &text, NULL));
    snprintf(kept, sizeof kept, "%s", text);
    CALL(hrx_status_free_message)(text);
    CALL(hrx_status_ignore)(s);
    return kept;
}
static void good(hrx_status s) { assert_string_equal(text_of(s), ""); }

static int setup(void **state)
{
    (void)state;
    t.lib = dlopen(OB_HRX_SOFT, RTLD_NOW);
    if (!t.lib) fail_msg("%s", dlerror());
    good(CALL(hrx_gpu_initialize)(0));
    good(CALL(hrx_gpu_device_get)(0, &t.dev));
    t.alloc = CALL(hrx_device_allocator)(t.dev);
    t.data = npz_open(OB_TEST_DATA "/hrx/samples.npz");
    assert_non_null(t.data);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    npz_close(t.data);
    good(CALL(hrx_gpu_shutdown)());
    return 0;
}

static hrx_handle new_buffer(const void *data, size_t n)
{
    hrx_handle b;
    good(CALL(hrx_allocator_allocate_buffer)(t.alloc, (hrx_buffer_params){0x30, 7, 0xC03, ~UINT64_C(0)}, n, &b));
    if (data) good(CALL(hrx_synchronous_h2d)(t.dev, data, b, 0, n));
    return b;
}

/* ---- one sample ------------------------------------------------------------------------------ */

enum { MAX_BUF = 8 };
typedef struct sample {
    hrx_handle exe, buf[MAX_BUF];
    hrx_buffer_ref ref[MAX_BUF];
    size_t n;
    hrx_dispatch_config cfg;
    const npz_array *consts;
} sample;

static const npz_array *part(const char *kernel, const char *what)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", kernel, what);
    return npz_get(t.data, name);
}

/* Code with every word `from` of the named kernel made `to`; 0: as it is. */
static void sample_open(sample *s, const char *kernel, uint32_t from, uint32_t to)
{
    const npz_array *code = part(kernel, "hsaco");
    memset(s, 0, sizeof *s);
    uint8_t *copy = malloc((size_t)code->n_items);
    memcpy(copy, code->data, (size_t)code->n_items);
    for (int64_t i = 0x1000; from && i + 4 <= code->n_items; i += 4)
        if (!memcmp(copy + i, &from, 4)) memcpy(copy + i, &to, 4);
    good(CALL(hrx_executable_load_data)(t.dev, copy, (size_t)code->n_items, "amdgcn-amd-amdhsa--gfx1151", &s->exe));
    free(copy);
    s->consts = part(kernel, "consts");
    memcpy(s->cfg.count, part(kernel, "grid")->data, 12);
    for (;; s->n++) {
        char name[32];
        snprintf(name, sizeof name, "in%zu", s->n);
        const npz_array *in = part(kernel, name);
        if (!in) break;
        s->buf[s->n] = new_buffer(in->data, (size_t)in->n_items);
        s->ref[s->n] = (hrx_buffer_ref){s->buf[s->n], 0, (size_t)in->n_items};
    }
}

static const char *sample_run(sample *s)
{
    hrx_handle stream;
    good(CALL(hrx_stream_create)(t.dev, 0, &stream));
    hrx_status bad = CALL(hrx_stream_dispatch)(stream, s->exe, 0, &s->cfg, s->consts->data, (size_t)s->consts->n_items, s->ref, s->n, 0);
    if (!bad) bad = CALL(hrx_stream_synchronize)(stream);
    const char *text = text_of(bad);
    CALL(hrx_stream_release)(stream);
    return text;
}

static void sample_close(sample *s)
{
    for (size_t i = 0; i < s->n; i++) CALL(hrx_buffer_release)(s->buf[i]);
    CALL(hrx_executable_release)(s->exe);
}

/* Whole numbers agree; floats to 2e-6 of their size or 1e-6, because fma and exp2 may round differently. */
static void compare(const char *kernel, const uint8_t *got, const uint8_t *want, size_t n)
{
    for (size_t i = 0; i + 4 <= n; i += 4) {
        float g, w;
        memcpy(&g, got + i, 4);
        memcpy(&w, want + i, 4);
        if (memcmp(&g, &w, 4) && !(fabsf(g - w) <= 2e-6f * fabsf(w) + 1e-6f)) fail_msg("%s: %g at %zu, not %g", kernel, (double)g, i, (double)w);
    }
}

static void test_samples(void **state)
{
    static const char *const kernels[] = {"add_f32", "attn_decode_d128", "hadamard_q4", "mm_iu4", "mm_q4_0_f16", "mv_q4_0_f32",
        "mv_q4_0_q8_1", "mv_q8_0_f32", "rms_norm_f32", "rope_neox_f32", "silu_glu_f32", "softmax_f32"};
    static const char *const orders[] = {"forward", "reverse", "random:7"};
    (void)state;
    for (size_t o = 0; o < 3; o++)
        for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
            sample s;
            setenv("HRX_SOFT_ORDER", orders[o], 1);
            sample_open(&s, kernels[k], 0, 0);
            assert_string_equal(sample_run(&s), "");
            for (size_t b = 0; b < s.n; b++) {
                char name[32];
                snprintf(name, sizeof name, "out%zu", b);
                const npz_array *want = part(kernels[k], name);
                if (!want) continue;
                uint8_t *got = malloc(s.ref[b].length);
                good(CALL(hrx_synchronous_d2h)(t.dev, s.buf[b], 0, got, s.ref[b].length));
                compare(kernels[k], got, want->data, (size_t)want->n_items);
                free(got);
            }
            sample_close(&s);
        }
    unsetenv("HRX_SOFT_ORDER");
}

/* ---- faults ---------------------------------------------------------------------------------- */

enum { S_NOP = (int)0xBF800000, S_BARRIER = (int)0xBFBD0000, WAIT_VM = (int)0xBF8903F7, WAIT_LGKM = (int)0xBF89FC07 };

static void expect_fault(const char *kernel, uint32_t from, uint32_t to, const char *text)
{
    sample s;
    sample_open(&s, kernel, from, to);
    const char *got = sample_run(&s);
    if (!strstr(got, text)) fail_msg("%s: \"%s\" does not say \"%s\"", kernel, got, text);
    sample_close(&s);
}

static void test_missing_wait(void **state)
{
    (void)state;
    expect_fault("rms_norm_f32", (uint32_t)WAIT_VM, (uint32_t)S_NOP, "is used before s_waitcnt");
    expect_fault("rms_norm_f32", (uint32_t)WAIT_LGKM, (uint32_t)S_NOP, "is used before s_waitcnt");
}

/* Two waves add their sums through LDS. */
static void test_missing_barrier(void **state)
{
    (void)state;
    expect_fault("rms_norm_f32", (uint32_t)S_BARRIER, (uint32_t)S_NOP, "LDS");
    setenv("HRX_SOFT_ORDER", "reverse", 1);
    expect_fault("rms_norm_f32", (uint32_t)S_BARRIER, (uint32_t)S_NOP, "LDS");
    unsetenv("HRX_SOFT_ORDER");
}

/* Threads hand numbers on through memory. mode 0: over a barrier; 1: to another workgroup. */
static const char *share(const char *object, uint32_t mode)
{
    enum { N = 128 };
    const npz_array *code = part(object, "hsaco");
    float x[N], got[N];
    hrx_handle exe, stream, b[3];
    hrx_buffer_ref ref[3];
    for (int i = 0; i < N; i++) x[i] = (float)i;
    good(CALL(hrx_executable_load_data)(t.dev, code->data, (size_t)code->n_items, NULL, &exe));
    for (int i = 0; i < 3; i++) {
        b[i] = new_buffer(x, sizeof x);
        ref[i] = (hrx_buffer_ref){b[i], 0, sizeof x};
    }
    good(CALL(hrx_stream_create)(t.dev, 0, &stream));
    good(CALL(hrx_stream_dispatch)(stream, exe, 0, &(hrx_dispatch_config){.count = {N / 64, 1, 1}}, &mode, 4, ref, 3, 0));
    const char *text = text_of(CALL(hrx_stream_synchronize)(stream));
    if (!*text && mode == 0) {
        good(CALL(hrx_synchronous_d2h)(t.dev, b[2], 0, got, sizeof got));
        for (int i = 0; i < N; i++) assert_true(got[i] == (float)(i ^ 32));
    }
    CALL(hrx_stream_release)(stream);
    for (int i = 0; i < 3; i++) CALL(hrx_buffer_release)(b[i]);
    CALL(hrx_executable_release)(exe);
    return text;
}

/* A barrier of LDS alone does not wait for stores to memory: what made a decoder's results a matter of luck. */
static void test_memory_races(void **state)
{
    (void)state;
    assert_string_equal(share("share_global", 0), "");
    assert_non_null(strstr(share("share_lds", 0), "did not wait for before the barrier"));
    assert_non_null(strstr(share("share_global", 1), "race: reads what workgroup"));
}

static void test_bounds(void **state)
{
    (void)state;
    sample s;
    sample_open(&s, "add_f32", 0, 0);
    s.ref[2].length -= 4;
    assert_non_null(strstr(sample_run(&s), "binding 2"));
    s.ref[2].length += 4;
    s.ref[0].offset = s.ref[0].length - 8;
    s.ref[0].length = 8;
    assert_non_null(strstr(sample_run(&s), "binding 0"));
    s.ref[0].length = 16;
    assert_non_null(strstr(sample_run(&s), "bytes")); /* refused before anything runs */
    sample_close(&s);
}

static void test_unknown_instruction(void **state)
{
    (void)state;
    const npz_array *code = part("add_f32", "hsaco");
    uint8_t *copy = malloc((size_t)code->n_items);
    memcpy(copy, code->data, (size_t)code->n_items);
    const uint32_t v_movreld = 0x7E028501;
    memcpy(copy + 0x1000, &v_movreld, 4);
    hrx_handle exe;
    const char *text = text_of(CALL(hrx_executable_load_data)(t.dev, copy, (size_t)code->n_items, NULL, &exe));
    assert_non_null(strstr(text, "add_f32 at +0: an instruction that is not known"));
    for (size_t n = 0; n < (size_t)code->n_items; n += 61) { /* never past the end of what is cut off */
        uint8_t *cut = malloc(n + 1);
        memcpy(cut, code->data, n);
        assert_string_not_equal(text_of(CALL(hrx_executable_load_data)(t.dev, cut, n, NULL, &exe)), "");
        free(cut);
        if (n > 5000) break;
    }
    free(copy);
}

static void test_misuse(void **state)
{
    (void)state;
    const unsigned before = CALL(hrx_soft_misuses)();
    hrx_handle b = new_buffer(NULL, 64), stream;
    uint32_t word = 1;
    good(CALL(hrx_stream_create)(t.dev, 0, &stream));
    good(CALL(hrx_stream_fill_buffer)(stream, b, 0, 64, &word, 4));
    good(CALL(hrx_stream_flush)(stream));
    assert_non_null(strstr(text_of(CALL(hrx_synchronous_d2h)(t.dev, b, 0, &word, 4)), "not waited for"));
    good(CALL(hrx_stream_synchronize)(stream));
    good(CALL(hrx_synchronous_d2h)(t.dev, b, 60, &word, 4));
    assert_int_equal(word, 1);
    assert_int_equal(CALL(hrx_soft_misuses)(), before + 1);
    CALL(hrx_buffer_release)(b);
    CALL(hrx_buffer_release)(b); /* twice */
    assert_string_not_equal(text_of(CALL(hrx_synchronous_d2h)(t.dev, b, 0, &word, 4)), "");
    assert_int_equal(CALL(hrx_soft_misuses)(), before + 3);
    assert_int_equal(CALL(hrx_status_code)(NULL), 0);
    CALL(hrx_stream_release)(stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples),         cmocka_unit_test(test_missing_wait), cmocka_unit_test(test_missing_barrier),
        cmocka_unit_test(test_memory_races), cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_unknown_instruction), cmocka_unit_test(test_misuse),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
