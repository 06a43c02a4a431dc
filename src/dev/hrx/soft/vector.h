/* dev/hrx/soft/vector.h: operations on 32 lanes, without registers. */
#ifndef OB_DEV_HRX_SOFT_VECTOR_H
#define OB_DEV_HRX_SOFT_VECTOR_H

#include <string.h>

#include "dev/hrx/soft/gfx.h"

/* Lanes of up to three sources (y: upper words of wide ones) and of the result; mask: bits in and out. None of the
 * results lies where a source does. */
typedef struct gfx_io {
    const uint32_t *x[3], *y[3];
    uint32_t *r, *high;
    uint32_t mask;
} gfx_io;

/* NULL, or why not. */
const char *gfx_compute(const gfx_insn *i, gfx_io *io);
const char *gfx_compare(const gfx_insn *i, gfx_io *io);
const char *gfx_compute_packed(const gfx_insn *i, gfx_io *io);

/* The same loops with wider registers where the processor has them. */
#if defined __x86_64__ && !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ && !defined __clang__
#define GFX_CLONES __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define GFX_CLONES
#endif

/* A register's bits as a number, and back. */
static inline float f32(uint32_t w)
{
    float f;
    memcpy(&f, &w, 4);
    return f;
}
static inline uint32_t word(float f)
{
    uint32_t w;
    memcpy(&w, &f, 4);
    return w;
}

#endif
