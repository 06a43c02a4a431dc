/* base/math.h: checked size arithmetic and small integer helpers. Header only. */
#ifndef OB_BASE_MATH_H
#define OB_BASE_MATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* true on success; *out is untouched on overflow. */
static inline bool ob_mul_size(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
static inline bool ob_add_size(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
static inline bool ob_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
static inline bool ob_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

#define OB_MIN(a, b) ((a) < (b) ? (a) : (b))
#define OB_MAX(a, b) ((a) > (b) ? (a) : (b))
#define OB_COUNT(array) (sizeof(array) / sizeof((array)[0]))

static inline int64_t ob_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
/* align: power of two */
static inline size_t ob_align_up(size_t x, size_t align) { return (x + align - 1) & ~(align - 1); }

#endif
