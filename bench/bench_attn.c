/* bench/bench_attn.c: one tile of attention at each level of this machine.
 *
 * Microseconds and Gflop/s (of the two products) for 64 cached tokens in f16 and some numbers of
 * queries; processor time, best of 20.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/math.h"
#include "dev/cpu/kernels.h"

static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void *zeroed(size_t n) { return memset(aligned_alloc(64, ob_align_up(n, 64)), 0, ob_align_up(n, 64)); }

static void bench(const ob_cpu_kernels *k, const char *name, int32_t dim, int32_t n_q)
{
    const size_t tile = OB_CPU_ATTN_TILE, d = (size_t)dim, q = (size_t)n_q;
    uint16_t *rows = zeroed(2 * tile * d * 2);
    for (size_t i = 0; i < 2 * tile * d; i++) rows[i] = (uint16_t)(0x3000 + i * 977 % 2048);
    const void *k_row[OB_CPU_ATTN_TILE], *v_row[OB_CPU_ATTN_TILE];
    for (size_t i = 0; i < tile; i++) {
        k_row[i] = rows + i * d;
        v_row[i] = rows + (tile + i) * d;
    }
    int32_t *lo = zeroed(q * 4), *hi = zeroed(q * 4);
    float *max = zeroed(q * 4), *sum = zeroed(q * 4), *qv = zeroed(q * d * 4);
    for (size_t i = 0; i < q; i++) {
        hi[i] = OB_CPU_ATTN_TILE;
        max[i] = -INFINITY;
    }
    const ob_cpu_attn_tile t = {.n_q = n_q, .n_tok = OB_CPU_ATTN_TILE, .k_dim = dim, .k_pad = dim, .v_dim = dim,
                                .v_pad = dim, .q = qv, .k_row = k_row, .v_row = v_row, .k_f16 = true, .v_f16 = true,
                                .lo = lo, .hi = hi, .max = max, .sum = sum, .o = zeroed(q * d * 4),
                                .kp = zeroed(tile * d * 4), .vp = zeroed(tile * d * 4), .s = zeroed(q * tile * 4)};
    double best = 1e30;
    for (int r = 0; r < 20; r++) {
        const double t0 = cpu_us();
        for (int i = 0; i < 200; i++) k->attn_tile(&t);
        const double us = (cpu_us() - t0) / 200;
        best = us < best ? us : best;
    }
    printf("%-7s head %3d, %3d queries: %8.2f us, %6.1f Gflop/s\n", name, dim, n_q, best,
           4.0 * 64 * dim * n_q / best * 1e-3);
}

int main(void)
{
    ob_cpu_level top;
    if (ob_cpu_level_detect(&top, NULL)) return 1;
    static const int32_t dims[] = {64, 128}, n_q[] = {1, 3, 8, 24, 96};
    for (int l = OB_CPU_C; l <= (int)top; l++) {
        if (l == OB_CPU_NEON) continue;
        for (size_t i = 0; i < OB_COUNT(dims); i++)
            for (size_t j = 0; j < OB_COUNT(n_q); j++)
                bench(ob_cpu_kernels_get(l), ob_cpu_level_name(l), dims[i], n_q[j]);
    }
    return 0;
}
