/* quant/hadamard.h: the 32-point Walsh-Hadamard transform of rotated files.
 *
 * H32[i][j] = (-1)^(number of ones in i & j) / sqrt(32): symmetric, and its own inverse. The order of
 * the additions is part of the definition, so every device rounds alike: five passes of butterflies
 * (a + b, a - b) at distances 1, 2, 4, 8, 16, then one multiplication.
 */
#ifndef OB_QUANT_HADAMARD_H
#define OB_QUANT_HADAMARD_H

#include <stdint.h>

enum { OB_HADAMARD = 32 };
#define OB_HADAMARD_SCALE 0.17677669529663687f /* 1 / sqrt(32) */

static inline void ob_hadamard32(float x[OB_HADAMARD])
{
    for (int d = 1; d < OB_HADAMARD; d *= 2)
        for (int i = 0; i < OB_HADAMARD; i += 2 * d)
            for (int j = i; j < i + d; j++) {
                const float a = x[j], b = x[j + d];
                x[j] = a + b;
                x[j + d] = a - b;
            }
    for (int i = 0; i < OB_HADAMARD; i++) x[i] *= OB_HADAMARD_SCALE;
}

/* Every block of 32 of a row, n a multiple of 32. */
static inline void ob_hadamard_row(float *x, int64_t n)
{
    for (int64_t i = 0; i + OB_HADAMARD <= n; i += OB_HADAMARD) ob_hadamard32(x + i);
}

#endif
