/* bench_linear: matrix products of the CPU device beside what the machine can do.
 *
 *   bench_linear [-t TYPES] [-m COLUMNS] [-s NxK,...] [-j THREADS] [-r REPEATS] [-w MB] [-c]
 *
 * Lists are comma-separated. Weights of each case are repeated until they fill MB (default 64, as in a
 * model, where every matrix is read once a step) and used in turn. Medians of the repeats. Peaks are
 * measured first, on the same threads: int8 dot products from registers, and reading the same MB.
 * -c: for a busy machine, the least CPU time of one thread in place of the median of the wall clock;
 * what others do to the caches still shows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/alloc.h"
#include "base/clock.h"
#include "base/math.h"
#include "base/threads.h"
#include "dev/cpu/linear.h"

enum { MAX_LIST = 32, MAX_COPIES = 1024 };

static bool cpu_time; /* -c */
static int64_t now_ns(void)
{
    struct timespec t;
    if (!cpu_time) return ob_now_ns();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint32_t rnd(void)
{
    static uint64_t s = 88172645463325252ull;
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return (uint32_t)(s >> 16);
}
static int cmp_double(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* Median, or with -c the least. */
static double typical(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, cmp_double);
    return cpu_time ? v[0] : v[n / 2];
}

/* ---- peaks ---------------------------------------------------------------------------------------- */

static volatile int sink;

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vnni"))) static void dot_loop(void *arg, int ith, int n_threads)
{
    (void)arg;
    (void)ith;
    (void)n_threads;
    __m512i acc[12], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
    for (int i = 0; i < 12; i++) acc[i] = _mm512_setzero_si512();
    for (int k = 0; k < 1000000; k++) {
        __asm__ volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
    }
    for (int i = 0; i < 12; i++) sink += _mm512_reduce_add_epi32(acc[i]);
}
#endif

static double int8_peak(ob_pool *pool, int n_threads)
{
#if defined(__x86_64__)
    double best = 0;
    if (!__builtin_cpu_supports("avx512vnni")) return 0;
    for (int i = 0; i < 5; i++) {
        const int64_t t = now_ns();
        ob_pool_run(pool, dot_loop, NULL);
        const double gops = 12.0 * 64 * 2 * 1e6 * n_threads / (double)(now_ns() - t);
        if (gops > best) best = gops;
    }
    return best;
#else
    (void)pool;
    (void)n_threads;
    return 0;
#endif
}

typedef struct read_job { const uint64_t *p; size_t n; } read_job;
static void read_loop(void *arg, int ith, int n_threads)
{
    const read_job *j = arg;
    const size_t a = j->n / 64 * (size_t)ith / (size_t)n_threads * 64;
    const size_t b = j->n / 64 * (size_t)(ith + 1) / (size_t)n_threads * 64;
    uint64_t s[8] = {0};
    for (size_t i = a; i < b; i += 8)
        for (int k = 0; k < 8; k++) s[k] ^= j->p[i + (size_t)k];
    for (int k = 0; k < 8; k++) sink += (int)s[k];
}
static double read_peak(ob_pool *pool, size_t n_bytes)
{
    read_job j = {ob_aligned_alloc(64, n_bytes), n_bytes / 8};
    double best = 0;
    if (!j.p) return 0;
    memset((void *)(uintptr_t)j.p, 1, n_bytes);
    for (int i = 0; i < 7; i++) {
        const int64_t t = now_ns();
        ob_pool_run(pool, read_loop, &j);
        const double gbs = (double)n_bytes / (double)(now_ns() - t);
        if (gbs > best) best = gbs;
    }
    ob_free((void *)(uintptr_t)j.p);
    return best;
}

/* ---- one case ------------------------------------------------------------------------------------- */

/* Random blocks with scales that are numbers: where a type keeps its f16 fields. */
static const struct { ob_type type; int n, off[2]; } f16_fields[] = {
    {OB_Q4_0, 1, {0}}, {OB_Q4_1, 2, {0, 2}}, {OB_Q5_0, 1, {0}}, {OB_Q5_1, 2, {0, 2}}, {OB_Q8_0, 1, {0}},
    {OB_Q2_K, 2, {80, 82}}, {OB_Q3_K, 1, {108}}, {OB_Q4_K, 2, {0, 2}}, {OB_Q5_K, 2, {0, 2}},
    {OB_Q6_K, 1, {208}}, {OB_IQ4_NL, 1, {0}}, {OB_IQ4_XS, 1, {0}}, {OB_F16, 1, {0}}, {OB_BF16, 1, {0}},
};
static void fill_blocks(ob_type t, uint8_t *p, size_t n_bytes)
{
    const ob_type_info *ti = ob_type_get(t);
    for (size_t i = 0; i < n_bytes; i++) p[i] = (uint8_t)rnd();
    for (size_t b = 0; b < n_bytes; b += (size_t)ti->block_bytes) {
        if (t == OB_MXFP4) p[b] = (uint8_t)(110 + rnd() % 16);
        if (t == OB_F32) memcpy(p + b, &(float){(float)(rnd() % 1000) * 1e-3f}, 4);
        for (size_t i = 0; i < OB_COUNT(f16_fields); i++)
            for (int f = 0; f16_fields[i].type == t && f < f16_fields[i].n; f++) {
                const float v = 0.01f + (float)(rnd() % 1000) * 1e-5f;
                const uint16_t h = t == OB_BF16 ? ob_f32_to_bf16(v) : ob_f32_to_f16(v);
                memcpy(p + b + f16_fields[i].off[f], &h, 2);
            }
    }
}

typedef struct bench_job {
    const ob_lin *l;
    const float *x;
    float *y;
    int64_t m;
    void *act;
    void *scratch[64];
} bench_job;

static void bench_act(void *arg, int ith, int n_threads)
{
    bench_job *j = arg;
    const int64_t g = ob_lin_act_granule(j->l), n = ob_div_up(j->m, g), k = ob_lin_k(j->l);
    const int64_t a = n * ith / n_threads * g, b = OB_MIN(n * (ith + 1) / n_threads * g, j->m);
    if (a < b) ob_lin_act(j->l, j->x, k, j->m, a, b, NULL, j->act);
}
static void bench_mul(void *arg, int ith, int n_threads)
{
    bench_job *j = arg;
    const int64_t g = ob_lin_n_granule(j->l), n = ob_lin_n(j->l), u = ob_div_up(n, g);
    const int64_t a = u * ith / n_threads * g, b = OB_MIN(u * (ith + 1) / n_threads * g, n);
    if (a < b) ob_lin_mul(j->l, 0, j->act, j->m, j->y, n, a, b, NULL, j->scratch[ith]);
}

typedef struct peaks { double gops, gbs; } peaks;

static void run_case(ob_type t, int64_t n, int64_t k, int64_t m, ob_pool *pool, ob_cpu_level level,
                     int n_rep, size_t want_bytes, const peaks *pk)
{
    const ob_type_info *ti = ob_type_get(t);
    const size_t n_bytes = ob_type_row_bytes(t, k) * (size_t)n;
    const int n_thr = ob_pool_n_threads(pool);
    static ob_lin *copies[MAX_COPIES];
    double mul_ms[256], act_ms[256];
    if (n_bytes == 0) return;
    ob_weight w = {.name = ti->name, .type = t, .ne = {k, n, 1, 1}, .n_bytes = n_bytes, .use = OB_USE_LINEAR};
    uint8_t *bytes = ob_malloc(n_bytes);
    fill_blocks(t, bytes, n_bytes);
    w.data = bytes;
    int n_copies = 0;
    size_t packed = 0;
    int64_t t0 = now_ns();
    do {
        bool keeps;
        ob_err err;
        if (ob_lin_pack(&w, level, false, &copies[n_copies], &keeps, &err) != OB_OK) {
            fprintf(stderr, "%s\n", err.text);
            exit(1);
        }
        packed += ob_lin_bytes(copies[n_copies++]);
    } while (packed < want_bytes && n_copies < MAX_COPIES);
    const double pack_gbs = (double)n_bytes * n_copies / (double)(now_ns() - t0);

    bench_job j = {.l = copies[0], .m = m};
    float *x = ob_malloc((size_t)(m * k) * sizeof *x);
    for (int64_t i = 0; i < m * k; i++) x[i] = (float)(rnd() % 2001) / 1000.0f - 1.0f;
    j.x = x;
    j.y = ob_malloc((size_t)(m * n) * sizeof *j.y);
    j.act = ob_aligned_alloc(64, ob_lin_act_bytes(j.l, m));
    for (int i = 0; i < n_thr; i++) j.scratch[i] = ob_aligned_alloc(64, ob_lin_scratch_bytes(j.l, m));
    for (int r = -1; r < n_rep; r++) {
        t0 = now_ns();
        ob_pool_run(pool, bench_act, &j);
        const int64_t t1 = now_ns();
        for (int c = 0; c < n_copies; c++) {
            j.l = copies[c];
            ob_pool_run(pool, bench_mul, &j);
        }
        if (r < 0) continue;
        act_ms[r] = (double)(t1 - t0) * 1e-6;
        mul_ms[r] = (double)(now_ns() - t1) * 1e-6 / n_copies;
    }
    const double ms = typical(mul_ms, n_rep), gops = 2.0 * (double)(m * n * k) / ms * 1e-6;
    const double gbs = (double)ob_lin_bytes(j.l) / ms * 1e-6;
    printf("%-7s %5d x %-5d M %-4d %dT  %8.4f ms  %7.1f Gop/s %3.0f%%  %6.1f GB/s %3.0f%%  act %.4f ms  pack %.2f GB/s\n",
           ti->name, (int)n, (int)k, (int)m, n_thr, ms, gops, pk->gops > 0 ? 100 * gops / pk->gops : 0, gbs,
           100 * gbs / pk->gbs, typical(act_ms, n_rep), pack_gbs);
    fflush(stdout);
    for (int c = 0; c < n_copies; c++) ob_lin_free(copies[c]);
    for (int i = 0; i < n_thr; i++) ob_free(j.scratch[i]);
    ob_free(j.act);
    ob_free(j.y);
    ob_free(x);
    ob_free(bytes);
}

/* ---- command line --------------------------------------------------------------------------------- */

static int split(char *s, char **out)
{
    int n = 0;
    for (char *p = strtok(s, ","); p && n < MAX_LIST; p = strtok(NULL, ",")) out[n++] = p;
    return n;
}

int main(int argc, char **argv)
{
    char types[256] = "q4_0,q4_1,q5_0,q8_0,q4_k,q6_k", cols[256] = "1,2,4,8,16,32,64,512";
    char shapes[256] = "576x1536,2048x2048,5632x2048", threads[64] = "1,2";
    int n_rep = 9, opt, mb = 64;
    while ((opt = getopt(argc, argv, "t:m:s:j:r:w:c")) != -1) {
        char *to = opt == 't' ? types : opt == 'm' ? cols : opt == 's' ? shapes : opt == 'j' ? threads : NULL;
        if (to) snprintf(to, opt == 'j' ? sizeof threads : sizeof types, "%s", optarg);
        else if (opt == 'r') n_rep = OB_MAX(1, OB_MIN(atoi(optarg), 256));
        else if (opt == 'c') cpu_time = true;
        else if (opt == 'w') mb = OB_MAX(0, atoi(optarg));
        else return 2;
    }
    ob_cpu_level level;
    ob_err err;
    if (ob_cpu_level_detect(&level, &err) != OB_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 2;
    }
    if (cpu_time) snprintf(threads, sizeof threads, "1");
    char *ts[MAX_LIST], *ms[MAX_LIST], *ss[MAX_LIST], *js[MAX_LIST];
    const int n_t = split(types, ts), n_m = split(cols, ms), n_s = split(shapes, ss), n_j = split(threads, js);
    for (int j = 0; j < n_j; j++) {
        ob_pool *pool;
        if (ob_pool_new(OB_MIN(atoi(js[j]), 64), &pool, &err) != OB_OK) return 1;
        const int n_thr = ob_pool_n_threads(pool);
        const peaks pk = {int8_peak(pool, n_thr), read_peak(pool, (size_t)OB_MAX(mb, 1) << 20)};
        printf("level %s, %d threads: int8 peak %.0f Gop/s, reading %d MB %.1f GB/s\n", ob_cpu_level_name(level),
               n_thr, pk.gops, mb, pk.gbs);
        for (int s = 0; s < n_s; s++)
            for (int t = 0; t < n_t; t++)
                for (int m = 0; m < n_m; m++) {
                    ob_type type;
                    long n, k;
                    if (!ob_type_from_name(ts[t], &type) || sscanf(ss[s], "%ldx%ld", &n, &k) != 2) return 2;
                    run_case(type, n, k, atoi(ms[m]), pool, level, n_rep, (size_t)mb << 20, &pk);
                }
        ob_pool_free(pool);
    }
    return 0;
}
