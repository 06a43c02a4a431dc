/* Numbers in [-1, 1) that are the same on every run. */
#ifndef NOISE_H
#define NOISE_H

#include <stdint.h>
#include <stdlib.h>

static uint32_t g_seed = 7;

static inline float noise(void)
{
    g_seed = g_seed * 1664525u + 1013904223u;
    return (float)((int32_t)(g_seed >> 8) - (1 << 23)) / (float)(1 << 23);
}

static inline float *random_floats(int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = noise();
    return x;
}

#endif
