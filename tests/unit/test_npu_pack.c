/* Packed weights of the NPU: places, exactness, the file's stamp, harm to it, experts on first use. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/math.h"
#include "dev/npu/npu_fwd.h"
#include "dev/npu/npu_gemm.h"
#include "dev/npu/npu_int8.h"
#include "dev/npu/npu_pack.h"
#include "quant/quant.h"
#include "noise.h"
#include "test.h"

/* ---- places ------------------------------------------------------------------------------------ */

/* Every place of a padded matrix is that of one element. */
static void test_places(void **state)
{
    (void)state;
    const int64_t k_pad = 192, n_pad = 2048, qk = 512;
    uint8_t *hit = calloc((size_t)(k_pad * n_pad), 1);
    for (int64_t k = 0; k < k_pad; k++)
        for (int64_t n = 0; n < n_pad; n++) hit[ob_npu_i8c_at(k_pad, k, n)]++;
    for (int64_t i = 0; i < k_pad * n_pad; i++) assert_int_equal(hit[i], 1);
    free(hit);
    const size_t bytes = ob_npu_q4_bytes(qk, n_pad);
    hit = calloc(bytes, 1);
    for (int64_t n = 0; n < n_pad; n++)
        for (int64_t k = 0; k < qk; k++) {
            hit[ob_npu_q4_tile_at(qk, k, n) + ob_npu_q4_nibble_at(k, n)]++; /* two nibbles a byte */
            if (k % OB_NPU_Q4_GROUP) continue;
            for (int i = 0; i < 2; i++) { /* both bytes of scale and minimum, counted twice */
                hit[ob_npu_q4_tile_at(qk, k, n) + ob_npu_q4_scale_at(k, n) + (size_t)i] += 2;
                hit[ob_npu_q4_tile_at(qk, k, n) + ob_npu_q4_scale_at(k, n) + 2 * OB_NPU_Q4_SCALES + (size_t)i] += 2;
            }
        }
    for (size_t i = 0; i < bytes; i++) assert_int_equal(hit[i], 2);
    free(hit);
}

/* ---- int8 -------------------------------------------------------------------------------------- */

/* The definition, by the book. */
static float plain_row(const float *x, int64_t n, int8_t *q)
{
    float amax = 0;
    for (int64_t i = 0; i < n; i++) amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    const float inverse = amax < 1e-35f ? 0 : 127.0f / amax;
    for (int64_t i = 0; i < n; i++) q[i] = (int8_t)roundf(x[i] * inverse);
    return amax < 1e-35f ? 0 : amax / 127.0f;
}

static void check_type(ob_type type, int64_t k, int64_t n)
{
    const ob_type_info *ti = ob_type_get(type);
    const size_t row = ob_type_row_bytes(type, k);
    float *x = random_floats(k * n), *back = malloc((size_t)k * sizeof *back), *importance = malloc((size_t)k * sizeof *importance);
    uint8_t *data = malloc(row * (size_t)n);
    int8_t *codes = malloc((size_t)(k * n)), *got = malloc(ob_npu_i8c_bytes(k, n)), *want = malloc(ob_npu_i8c_bytes(k, n));
    float *scales = calloc((size_t)ob_npu_pad_n(n), sizeof *scales), *want_scales = calloc((size_t)n, sizeof *want_scales);
    ob_err err;
    for (int64_t i = 0; i < k; i++) importance[i] = 1;
    for (int64_t i = 0; i < k; i++) x[(n / 2) * k + i] = 0; /* a row of nothing */
    if (ob_quantize(type, x, data, n, k, importance, &err) != OB_OK) fail_msg("%s", err.text);
    for (int64_t j = 0; j < n; j++) {
        ti->dequant(data + (size_t)j * row, back, k);
        want_scales[j] = plain_row(back, k, codes + j * k);
    }
    ob_npu_i8c_pack(want, codes, k, k, n);
    memset(got, 0x55, ob_npu_i8c_bytes(k, n));
    ob_npu_pack_i8c(type, data, k, n, got, scales, NULL);
    if (memcmp(got, want, ob_npu_i8c_bytes(k, n)) != 0) fail_msg("%s %lld x %lld: other tiles", ti->name, (long long)k, (long long)n);
    assert_memory_equal(scales, want_scales, (size_t)n * sizeof *scales);
    for (int64_t j = 0; j < n; j++) /* and places are what they are called */
        for (int64_t i = 0; i < k; i += 7) assert_int_equal(got[ob_npu_i8c_at(ob_npu_pad_k(k), i, j)], codes[j * k + i]);
    free(x), free(back), free(importance), free(data), free(codes), free(got), free(want), free(scales), free(want_scales);
}

static void test_i8c_is_the_definition(void **state)
{
    (void)state;
    check_type(OB_F32, 96, 130);
    check_type(OB_F32, 65, 7); /* neither a multiple of anything */
    check_type(OB_F16, 200, 64);
    check_type(OB_BF16, 64, 9);
    check_type(OB_Q4_0, 96, 40);
    check_type(OB_Q4_1, 2080, 33); /* longer than what is unpacked at once */
    check_type(OB_Q8_0, 128, 1030);
    check_type(OB_Q4_K, 2304, 17);
    check_type(OB_Q6_K, 256, 12);
    check_type(OB_IQ4_XS, 512, 5);
    check_type(OB_MXFP4, 64, 16);
}

/* Half away from zero; tiny, huge and not finite rows. */
static void test_rounding(void **state)
{
    (void)state;
    const float x[] = {127, 0.5f, -0.5f, 1.5f, -2.5f, 0.49999997f, -0.49999997f, 126.5f, -127};
    const int8_t want[] = {127, 1, -1, 2, -3, 0, 0, 127, -127};
    int8_t q[9];
    const float amax = ob_npu_amax(x, 9, 0);
    assert_true(amax == 127);
    ob_npu_codes(x, 9, ob_npu_inverse(amax), q);
    assert_memory_equal(q, want, sizeof q);
    for (int i = 0; i < 100000; i++) {
        const float v = noise() * 127;
        int8_t a;
        ob_npu_codes(&v, 1, 1.0f, &a);
        assert_int_equal(a, (int8_t)roundf(v));
    }
    const float tiny[] = {1e-36f, -3e-38f, 0}, bad[] = {1, NAN, 3}, inf[] = {1, -INFINITY, 3}, big[] = {3e38f, -3e38f, 1};
    assert_true(ob_npu_scale(ob_npu_amax(tiny, 3, 0)) == 0 && ob_npu_inverse(ob_npu_amax(tiny, 3, 0)) == 0);
    assert_true(isnan(ob_npu_scale(ob_npu_amax(bad, 3, 0))) && isnan(ob_npu_scale(ob_npu_amax(inf, 3, 0))));
    ob_npu_codes(bad, 3, ob_npu_inverse(ob_npu_amax(bad, 3, 0)), q);
    assert_true(q[0] == 0 && q[1] == 0 && q[2] == 0);
    ob_npu_codes(big, 3, ob_npu_inverse(ob_npu_amax(big, 3, 0)), q);
    assert_true(q[0] == 127 && q[1] == -127 && q[2] == 0);
}

/* The host's product of a strip is the plain one of all elements, at the corners of the range too. */
static void test_strip_mul(void **state)
{
    (void)state;
    enum { K = 200, N = 300, M = 9 };
    const int64_t k_pad = ob_npu_pad_k(K);
    int8_t *w = malloc(K * N), *tiles = malloc(ob_npu_i8c_bytes(K, N)), *a = calloc(M, (size_t)k_pad);
    int32_t sums[M * OB_NPU_TILE_N];
    for (int i = 0; i < K * N; i++) w[i] = (int8_t)(i % 3 ? noise() * 127 : i % 2 ? 127 : -127);
    for (int r = 0; r < M; r++)
        for (int k = 0; k < K; k++) a[r * k_pad + k] = (int8_t)(r ? noise() * 127 : -127);
    ob_npu_i8c_pack(tiles, w, K, K, N);
    for (int64_t s = 0; s * OB_NPU_TILE_N < N; s++) {
        ob_npu_strip_mul(a, M, k_pad, tiles + s * k_pad * OB_NPU_TILE_N, sums, OB_NPU_TILE_N);
        for (int r = 0; r < M; r++)
            for (int64_t j = 0; j < OB_NPU_TILE_N; j++) {
                int32_t want = 0;
                for (int k = 0; k < K && s * OB_NPU_TILE_N + j < N; k++) want += a[r * k_pad + k] * w[(s * OB_NPU_TILE_N + j) * K + k];
                assert_int_equal(sums[r * OB_NPU_TILE_N + j], want);
            }
    }
    free(w), free(tiles), free(a);
}

/* ---- q4g32 ------------------------------------------------------------------------------------- */

static float q4_value(const uint8_t *tiles, int64_t k_pad, int64_t k, int64_t n)
{
    const uint8_t *t = tiles + ob_npu_q4_tile_at(k_pad, k, n), *s = t + ob_npu_q4_scale_at(k, n);
    uint16_t scale, min;
    memcpy(&scale, s, 2);
    memcpy(&min, s + 2 * OB_NPU_Q4_SCALES, 2);
    const int code = n % 2 ? t[ob_npu_q4_nibble_at(k, n)] >> 4 : t[ob_npu_q4_nibble_at(k, n)] & 15;
    return ob_bf16_to_f32(scale) * (float)code + ob_bf16_to_f32(min);
}

/* Q4_0, Q4_1 and Q4_K: off by what rounding scale and minimum to bf16 (2^-8 of each) can do, no more. Others: half a step of
 * what 32 values span, and the roundings. */
static void check_q4(ob_type type, bool exact)
{
    enum { K = 512, N = 50 };
    const ob_type_info *ti = ob_type_get(type);
    const size_t row = ob_type_row_bytes(type, K);
    float *x = random_floats(K * N), back[K];
    uint8_t *data = malloc(row * N), *tiles = malloc(ob_npu_q4_bytes(K, N));
    ob_err err;
    if (ob_quantize(type, x, data, N, K, NULL, &err) != OB_OK) fail_msg("%s", err.text);
    if (ob_npu_pack_q4g32(type, data, K, N, tiles, &err) != OB_OK) fail_msg("%s", err.text);
    double worst = 0;
    for (int64_t j = 0; j < N; j++) {
        ti->dequant(data + (size_t)j * row, back, K);
        for (int64_t k0 = 0; k0 < K; k0 += 32) {
            float lo = back[k0], hi = back[k0], most = 0;
            for (int i = 0; i < 32; i++) {
                lo = fminf(lo, back[k0 + i]);
                hi = fmaxf(hi, back[k0 + i]);
                most = fmaxf(most, fabsf(back[k0 + i]));
            }
            for (int i = 0; i < 32; i++) {
                const double off = fabs((double)q4_value(tiles, K, k0 + i, j) - (double)back[k0 + i]);
                const double step = (hi - lo) / 15.0;
                worst = fmax(worst, exact ? off / (3 * (double)most * 0x1p-8 + 1e-9) : off / (0.5 * step * 1.01 + most * 0x1p-7 + 1e-9));
            }
        }
    }
    print_message("  %-5s as q4g32: at most %.2f of what is allowed\n", ti->name, worst);
    assert_true(worst <= 1);
    assert_true(worst > 0);
    free(x), free(data), free(tiles);
}

static void test_q4g32(void **state)
{
    (void)state;
    check_q4(OB_Q4_0, true);
    check_q4(OB_Q4_1, true);
    check_q4(OB_Q4_K, true);
    check_q4(OB_Q8_0, false);
    check_q4(OB_Q6_K, false);
    check_q4(OB_F16, false);
}

/* Where a minimum and a scale are bf16 already nothing is rounded at all. */
static void test_q4g32_bit_for_bit(void **state)
{
    (void)state;
    enum { K = 256, N = 6 };
    uint8_t data[N * K / 32 * 20], *tiles = malloc(ob_npu_q4_bytes(K, N));
    float back[K];
    ob_err err;
    for (int b = 0; b < N * K / 32; b++) {
        const uint16_t d = ob_f32_to_f16(ldexpf(1, b % 9 - 6)), m = ob_f32_to_f16(-(float)(b % 7) / 8);
        memcpy(data + b * 20, &d, 2);
        memcpy(data + b * 20 + 2, &m, 2);
        for (int i = 0; i < 16; i++) data[b * 20 + 4 + i] = (uint8_t)((b * 37 + i * 11) & 255);
    }
    assert_int_equal(ob_npu_pack_q4g32(OB_Q4_1, data, K, N, tiles, &err), OB_OK);
    for (int64_t j = 0; j < N; j++) {
        ob_type_get(OB_Q4_1)->dequant(data + j * (K / 32 * 20), back, K);
        for (int64_t k = 0; k < K; k++) assert_true(q4_value(tiles, K, k, j) == back[k]);
    }
    assert_int_equal(ob_npu_pack_q4g32(OB_F32, back, 100, 1, tiles, &err), OB_E_UNSUPPORTED);
    free(tiles);
}

/* ---- the file ---------------------------------------------------------------------------------- */

enum { K = 96, N = 70, E = 5 };
static char g_dir[64];
static float *g_data[3]; /* a matrix, another one, experts */

static int make_cache(void **state)
{
    (void)state;
    snprintf(g_dir, sizeof g_dir, "/tmp/test_npu_pack.XXXXXX");
    if (!mkdtemp(g_dir)) return -1;
    setenv("XDG_CACHE_HOME", g_dir, 1);
    g_data[0] = random_floats(K * N);
    g_data[1] = random_floats(K * N);
    g_data[2] = random_floats(K * N * E);
    return 0;
}

static int drop_cache(void **state)
{
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", g_dir);
    for (int i = 0; i < 3; i++) free(g_data[i]);
    return system(cmd);
}

static ob_weight desc(int i)
{
    static const char *const names[] = {"a.weight", "b.weight", "c_exps.weight"};
    const int64_t n_mat = i == 2 ? E : 1;
    return (ob_weight){.name = names[i], .type = OB_F32, .ne = {K, N, n_mat, 1}, .data = g_data[i],
                       .n_bytes = (size_t)(K * N * n_mat) * 4, .use = i == 2 ? OB_USE_EXPERTS : OB_USE_LINEAR};
}

static const char *model_path(void)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/model.gguf", g_dir);
    FILE *f = fopen(path, "ab"); /* it only has to be there */
    assert_non_null(f);
    fclose(f);
    return path;
}

typedef struct pack {
    ob_npu_pack *p;
    ob_npu_packed *w[3];
} pack;

static pack open_pack(uint64_t stamp, int n_weights)
{
    pack k = {0};
    ob_err err;
    const ob_dev_source src = {.path = model_path(), .stamp = stamp};
    if (ob_npu_pack_open(stamp ? &src : NULL, &k.p, &err) != OB_OK) fail_msg("%s", err.text);
    for (int i = 0; i < n_weights; i++) {
        bool keeps;
        const ob_weight d = desc(i);
        if (ob_npu_packed_new(k.p, &d, NULL, &k.w[i], &keeps, &err) != OB_OK) fail_msg("%s", err.text);
        assert_true(keeps == (i == 2));
    }
    ob_npu_pack_publish(k.p);
    return k;
}

static void close_pack(pack *k)
{
    for (int i = 0; i < 3; i++) ob_npu_packed_free(k->p, k->w[i]);
    ob_npu_pack_close(k->p);
}

/* What matrix `mat` of weight i must be. */
static void check_bytes(const pack *k, int i, int64_t mat)
{
    int8_t *want = malloc(ob_npu_i8c_bytes(K, N));
    float scales[1024];
    const float *got_scales;
    ob_npu_pack_i8c(OB_F32, g_data[i] + mat * K * N, K, N, want, scales, NULL);
    const int8_t *got = ob_npu_packed_get(k->p, k->w[i], mat, NULL, &got_scales);
    assert_memory_equal(got, want, ob_npu_i8c_bytes(K, N));
    assert_memory_equal(got_scales, scales, N * sizeof *scales);
    assert_int_equal((uintptr_t)got % 4096, 0);
    free(want);
}

static void check_all(const pack *k)
{
    check_bytes(k, 0, 0);
    check_bytes(k, 1, 0);
    for (int64_t e = E; e--;) check_bytes(k, 2, e);
}

#define STATS(k, found, packed, damaged)                                         \
    do {                                                                         \
        const ob_npu_pack_stats st_ = ob_npu_pack_stats_get((k).p);              \
        assert_int_equal(st_.n_found, found);                                    \
        assert_int_equal(st_.n_packed, packed);                                  \
        assert_int_equal(st_.n_damaged, damaged);                                \
    } while (0)

static void test_second_start_packs_nothing(void **state)
{
    (void)state;
    pack k = open_pack(11, 3);
    STATS(k, 0, 2, 0); /* no expert yet */
    check_bytes(&k, 2, 3);
    check_bytes(&k, 2, 3);
    STATS(k, 0, 3, 0);
    close_pack(&k);
    k = open_pack(11, 3);
    STATS(k, 2, 0, 0);
    check_bytes(&k, 2, 3); /* packed by the one before */
    STATS(k, 3, 0, 0);
    check_all(&k);
    STATS(k, 3, 4, 0);
    close_pack(&k);
    k = open_pack(11, 3);
    check_all(&k);
    STATS(k, 2 + E, 0, 0);
    close_pack(&k);
}

static void test_another_stamp_packs_again(void **state)
{
    (void)state;
    pack k = open_pack(21, 3);
    close_pack(&k);
    k = open_pack(22, 3);
    STATS(k, 0, 2, 0);
    check_all(&k);
    close_pack(&k);
    k = open_pack(21, 3); /* only the last one is kept */
    STATS(k, 0, 2, 0);
    close_pack(&k);
    k = open_pack(0, 3); /* no source: in memory */
    check_all(&k);
    STATS(k, 0, 2 + E, 0);
    assert_string_equal(ob_npu_pack_path(k.p), "");
    close_pack(&k);
}

/* Weights that an earlier start did not have are added; what was there is carried over. */
static void test_more_weights(void **state)
{
    (void)state;
    pack k = open_pack(31, 1);
    STATS(k, 0, 1, 0);
    close_pack(&k);
    k = open_pack(31, 3);
    STATS(k, 1, 1, 0);
    check_all(&k);
    close_pack(&k);
    k = open_pack(31, 3);
    check_all(&k);
    STATS(k, 2 + E, 0, 0);
    close_pack(&k);
}

static long file_size(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (long)st.st_size : -1;
}

/* The file as it was, but for one bit. */
static void write_changed(const char *path, const uint8_t *bytes, long n, long at)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (long i = 0; i < n; i++) putc(bytes[i] ^ (i == at ? 0x40 : 0), f);
    assert_int_equal(fclose(f), 0);
}

/* One bit anywhere: header, a matrix, a scale, an expert, the directory; a file cut short; one that is something else. The
 * weights are right whatever happens, and what is wrong is packed again. */
static void test_harm(void **state)
{
    (void)state;
    char path[4096];
    pack k = open_pack(41, 3);
    check_all(&k);
    snprintf(path, sizeof path, "%s", ob_npu_pack_path(k.p));
    close_pack(&k);
    const long n = file_size(path), mat = (long)(ob_npu_i8c_bytes(K, N) + 4096);
    assert_true(n > 3 * mat);
    uint8_t *bytes = malloc((size_t)n);
    FILE *good = fopen(path, "rb");
    assert_true(good && fread(bytes, 1, (size_t)n, good) == (size_t)n);
    fclose(good);
    const struct { long at; int found, packed, damaged; } harm[] = {
        {40, 0, 2, 0},                   /* header: the whole file is made anew */
        {4096 + 100, 1, 1, 1},           /* first matrix */
        {4096 + mat - 4000, 1, 1, 1},    /* its scales */
        {4096 + mat + 1, 1, 1, 1},       /* its checksum */
        {4096 + 2 * (mat + 4096) + 3 * mat + 70, 2, 0, 0}, /* an expert: found when it is used */
        {n - 3, 0, 2, 0},                /* directory */
    };
    for (size_t i = 0; i < OB_COUNT(harm); i++) {
        write_changed(path, bytes, n, harm[i].at);
        k = open_pack(41, 3);
        STATS(k, harm[i].found, harm[i].packed, harm[i].damaged);
        check_all(&k);
        if (harm[i].packed == 0) STATS(k, 2 + E - 1, 1, 1);
        close_pack(&k);
        k = open_pack(41, 3); /* and it is well again */
        check_all(&k);
        STATS(k, 2 + E, 0, 0);
        close_pack(&k);
    }
    free(bytes);
    assert_int_equal(truncate(path, n / 2), 0);
    k = open_pack(41, 3);
    check_all(&k);
    close_pack(&k);
    FILE *f = fopen(path, "wb");
    fputs("something else", f);
    fclose(f);
    k = open_pack(41, 3);
    STATS(k, 0, 2, 0);
    check_all(&k);
    close_pack(&k);
}

/* Nothing of a passing name is left; a folder that cannot be written to costs only the next start. */
static void test_no_folder(void **state)
{
    (void)state;
    char cmd[200];
    snprintf(cmd, sizeof cmd, "test -z \"$(ls %s/1bit/npk | grep part)\"", g_dir);
    assert_int_equal(system(cmd), 0);
    setenv("XDG_CACHE_HOME", "/proc/none", 1);
    pack k = open_pack(51, 3);
    check_all(&k);
    STATS(k, 0, 2 + E, 0);
    assert_false(ob_npu_pack_stats_get(k.p).kept);
    close_pack(&k);
    setenv("XDG_CACHE_HOME", g_dir, 1);
}

/* A disk that is full, here by a limit on the size of files: in memory then, and nothing half made stays. */
static void test_no_room(void **state)
{
    (void)state;
    const struct rlimit little = {.rlim_cur = 100000, .rlim_max = RLIM_INFINITY}, all = {RLIM_INFINITY, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    pack k = open_pack(55, 3);
    check_all(&k);
    STATS(k, 0, 2 + E, 0);
    assert_false(ob_npu_pack_stats_get(k.p).kept);
    close_pack(&k);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
    char cmd[200];
    snprintf(cmd, sizeof cmd, "test -z \"$(ls %s/1bit/npk | grep part)\"", g_dir);
    assert_int_equal(system(cmd), 0);
}

/* Room for experts that come and go. */
static void test_slots(void **state)
{
    (void)state;
    ob_err err;
    bool keeps;
    ob_weight d = desc(2);
    d.data = NULL;
    pack k = open_pack(61, 0);
    assert_int_equal(ob_npu_packed_new(k.p, &d, NULL, &k.w[2], &keeps, &err), OB_OK);
    assert_false(keeps);
    assert_int_equal(ob_npu_packed_write(k.w[2], 4, g_data[2] + 4 * K * N, &err), OB_OK);
    check_bytes(&k, 2, 4);
    assert_int_equal(ob_npu_packed_write(k.w[2], E, g_data[2], &err), OB_E_INVALID);
    close_pack(&k);
}

static void test_shapes_that_do_not_fit(void **state)
{
    (void)state;
    ob_weight d = desc(0);
    d.ne[0] = OB_NPU_MAX_K + 1;
    assert_int_equal(ob_npu_packed_bytes(&d), 0);
    d = desc(0);
    d.type = OB_I32;
    assert_int_equal(ob_npu_packed_bytes(&d), 0);
    d = desc(0);
    d.n_bytes /= 2;
    pack k = open_pack(71, 0);
    ob_err err;
    bool keeps;
    assert_int_equal(ob_npu_packed_new(k.p, &d, NULL, &k.w[0], &keeps, &err), OB_E_FORMAT);
    close_pack(&k);
}

static void test_no_memory(void **state)
{
    (void)state;
    for (int64_t n = 0;; n++) {
        ob_npu_pack *p = NULL;
        ob_npu_packed *w = NULL;
        ob_err err;
        bool keeps;
        const ob_dev_source src = {.path = model_path(), .stamp = 81};
        const ob_weight d = desc(0);
        ob_alloc_fail_after(n);
        ob_status s = ob_npu_pack_open(&src, &p, &err);
        if (s == OB_OK) s = ob_npu_packed_new(p, &d, NULL, &w, &keeps, &err);
        if (s == OB_OK) ob_npu_pack_publish(p);
        ob_alloc_fail_after(-1);
        assert_true(s == OB_OK || s == OB_E_NO_MEMORY);
        if (w) check_bytes(&(pack){p, {w}}, 0, 0);
        ob_npu_packed_free(p, w);
        ob_npu_pack_close(p);
        if (s == OB_OK && n > 10) break;
        assert_true(n < 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_i8c_is_the_definition),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_strip_mul),
        cmocka_unit_test(test_q4g32),
        cmocka_unit_test(test_q4g32_bit_for_bit),
        cmocka_unit_test(test_second_start_packs_nothing),
        cmocka_unit_test(test_another_stamp_packs_again),
        cmocka_unit_test(test_more_weights),
        cmocka_unit_test(test_harm),
        cmocka_unit_test(test_no_folder),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_shapes_that_do_not_fit),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, make_cache, drop_cache);
}
