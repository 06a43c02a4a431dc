/* dev/cpu/linear_int.h: what packed weights and prepared activations look like in memory, and the
 * table of kernels of one CPU level. For linear*.c and their kernels only.
 *
 * Packed weights. Rows are taken in groups of 16, columns in units of 32; the last group is padded with
 * zero rows. A group is one contiguous run of memory, 64-aligned:
 *
 *     codes [n_blk][code_bytes]   scales [n_blk][scale_bytes]   heads [ceil(n_blk / 8)][head_bytes]
 *
 * Codes are unsigned: weight = scale * (code - off) + min, so that they can stand on the unsigned side
 * of the u8 x s8 dot product; the offset is folded into the start value of the int32 sums. A code
 * vector i of a unit (i = 0..7) is 64 bytes: byte 4r + j belongs to row r, column 4i + j.
 *   8 bits: vector i at 64 i.  4 bits: bytes 64 (i % 4), low nibble for i < 4, high nibble else (the same
 *   pairing of columns c and c + 16 as in the file's blocks, so packing moves whole dwords).
 *   5 bits: and bit i of the byte at 256.  6 bits: and bits 2 (i % 4) of the byte at 256 + 64 (i / 4).
 * Scales of a unit: [n_sub][16], then minimums [n_sub][16]; n_sub = 2 means one per 16 columns. F16, BF16
 * and F32 stand as they are; "K" scales are signed bytes times the head's f16 d[16] (and minimums times
 * the head's f16 -dmin[16]), one head per 256 columns. Products of the two are exact in f32.
 * Float formats have no units: [K][16] elements.
 *
 * Prepared activations. Columns of the product (tokens) are taken in panels of `pw`; a panel is
 * [K / 4][pw] dwords of 4 int8, then (n = n_blk) scales d [n][pw], and per sub-block planes [n_sub][n][pw]:
 * d * sum(q) in f32, and -off * sum(q) in int32 for the three offsets of that act kind. For f32
 * products a panel is [K][pw] floats. Columns past M are zero.
 *
 * Order of the f32 operations of one element, the same everywhere, so that results are equal bit by
 * bit between kernels, levels, batches and splits: over units in K order, over sub-blocks
 *     f = fma(float(int32 sum), scale * d, f), then for formats with minimums f = fma(min, d * sum(q), f);
 * f32 products: f = fma(w_k, x_k, f) in K order with w_k = scale * (code - off), then + min.
 */
#ifndef OB_DEV_CPU_LINEAR_INT_H
#define OB_DEV_CPU_LINEAR_INT_H

#include "base/math.h"
#include "dev/cpu/linear.h"

typedef enum lin_code { LIN_C4, LIN_C5, LIN_C6, LIN_C8, LIN_T4, LIN_F } lin_code;
typedef enum lin_scale { LIN_S_NONE, LIN_S_F16, LIN_S_BF16, LIN_S_F32, LIN_S_K } lin_scale;

/* name, code, scale, n_sub, off, has_min. T4: nibbles index lin_table (values + 128). G4, G8: any type
 * whose values are small integers times a scale. Order: quantised formats first. */
#define LIN_FORMATS(X)                                                                             \
    X(Q4_0, LIN_C4, LIN_S_F16, 1, 8, 0)                                                            \
    X(Q4_1, LIN_C4, LIN_S_F16, 1, 0, 1)                                                            \
    X(Q5_0, LIN_C5, LIN_S_F16, 1, 16, 0)                                                           \
    X(Q5_1, LIN_C5, LIN_S_F16, 1, 0, 1)                                                            \
    X(Q8_0, LIN_C8, LIN_S_F16, 1, 128, 0)                                                          \
    X(Q4_K, LIN_C4, LIN_S_K, 1, 0, 1)                                                              \
    X(Q5_K, LIN_C5, LIN_S_K, 1, 0, 1)                                                              \
    X(Q6_K, LIN_C6, LIN_S_K, 2, 32, 0)                                                             \
    X(Q2_K, LIN_C4, LIN_S_K, 2, 0, 1)                                                              \
    X(Q3_K, LIN_C4, LIN_S_K, 2, 8, 0)                                                              \
    X(IQ4_NL, LIN_T4, LIN_S_F16, 1, 128, 0)                                                        \
    X(IQ4_XS, LIN_T4, LIN_S_K, 1, 128, 0)                                                          \
    X(MXFP4, LIN_T4, LIN_S_BF16, 1, 128, 0)                                                        \
    X(G4, LIN_C4, LIN_S_F32, 1, 8, 0)                                                              \
    X(G8, LIN_C8, LIN_S_F32, 2, 128, 0)
#define LIN_FLOATS(X) X(F32) X(F16) X(BF16)

#define LIN_ENUM(name, ...) LIN_##name,
typedef enum lin_format { LIN_FORMATS(LIN_ENUM) LIN_FLOATS(LIN_ENUM) LIN_N_FORMATS } lin_format;
#undef LIN_ENUM
#define LIN_N_QUANT LIN_F32

/* Properties of a format; constants once a kernel is instantiated for one. */
typedef struct lin_props { uint8_t code, scale, n_sub, has_min; int32_t off; } lin_props;
#define LIN_PROPS(name, code, scale, n_sub, off, has_min) {code, scale, n_sub, has_min, off},
#define LIN_PROPS_F(name) {LIN_F, LIN_S_NONE, 1, 0, 0},
static const lin_props lin_fmt[LIN_N_FORMATS] = {LIN_FORMATS(LIN_PROPS) LIN_FLOATS(LIN_PROPS_F)};
#undef LIN_PROPS
#undef LIN_PROPS_F

enum { LIN_ROWS = 16, LIN_BLK = 32 };

static inline size_t lin_code_bytes(lin_format f)
{
    switch (lin_fmt[f].code) {
    case LIN_C5: return 320;
    case LIN_C6: return 384;
    case LIN_C8: return 512;
    default: return 256;
    }
}
/* Bytes of the 16 scales (or minimums) of one sub-block. */
static inline size_t lin_sub_bytes(lin_format f)
{
    return lin_fmt[f].scale == LIN_S_K ? 16 : lin_fmt[f].scale == LIN_S_F32 ? 64 : 32;
}
static inline size_t lin_scale_bytes(lin_format f)
{
    return lin_sub_bytes(f) * lin_fmt[f].n_sub * (size_t)(1 + lin_fmt[f].has_min);
}
static inline size_t lin_head_bytes(lin_format f)
{
    return lin_fmt[f].scale != LIN_S_K ? 0 : lin_fmt[f].has_min ? 64 : 32;
}
static inline size_t lin_float_bytes(lin_format f) { return f == LIN_F32 ? 4 : 2; }

/* The 16 values of a T4 format, plus 128. */
extern const uint8_t lin_table_iq4[16], lin_table_fp4[16];
static inline const uint8_t *lin_table(lin_format f)
{
    return f == LIN_MXFP4 ? lin_table_fp4 : lin_table_iq4;
}

typedef struct lin_kernels lin_kernels;

struct ob_lin {
    lin_format fmt;
    bool rotated; /* activations go through the Hadamard transform first (Q4_0 only: one scale per unit) */
    bool act4;    /* rotated, and coarse rows are rounded to 4 bits */
    bool f32; /* products of f32 activations: `exact`, and all float formats */
    int64_t k, n, n_experts;
    int64_t n_blk, n_grp;             /* units of a row, groups of 16 rows */
    size_t group_bytes, expert_bytes; /* strides */
    size_t n_bytes;
    uint8_t *data; /* owned */
    const lin_kernels *kern;
};

/* A block whose largest magnitude is not above this counts as zero (its reciprocal would overflow). */
#define LIN_ACT_TINY 1e-35f

/* Shape of prepared activations. Offsets count from the start of a panel, in bytes. */
typedef struct lin_act {
    int pw, n_sub;
    int64_t n_panel;
    size_t off_d, off_sum, off_init[3], panel_bytes;
} lin_act;

/* From this many columns on, weights are unpacked into a tile in L1 and panels are 6 wide. */
enum { LIN_TILE_COLS = 25, LIN_TILE_PW = 6, LIN_MAX_PW = 8, LIN_ACT_GRANULE = 24 };

static inline int lin_panel_width(int64_t m)
{
    static const uint8_t width[LIN_MAX_PW + 1] = {1, 1, 2, 3, 4, 6, 6, 8, 8};
    if (m >= LIN_TILE_COLS) return LIN_TILE_PW;
    return width[m <= LIN_MAX_PW ? m : ob_div_up(m, ob_div_up(m, LIN_MAX_PW))];
}
static inline lin_act lin_act_shape(const ob_lin *l, int64_t m)
{
    lin_act a = {.pw = lin_panel_width(m), .n_sub = lin_fmt[l->fmt].n_sub};
    const size_t pw = (size_t)a.pw, plane = (size_t)l->n_blk * pw * 4;
    a.n_panel = ob_div_up(m, a.pw);
    if (l->f32) {
        a.panel_bytes = ob_align_up((size_t)l->k * pw * 4, 64);
        return a;
    }
    a.off_d = (size_t)l->k * pw;
    a.off_sum = a.off_d + plane;
    for (size_t i = 0; i < 3; i++) a.off_init[i] = a.off_sum + plane * (size_t)a.n_sub * (1 + i);
    a.panel_bytes = ob_align_up(a.off_init[2] + plane * (size_t)a.n_sub, 64);
    return a;
}
/* The three offsets whose start values an act kind carries, and the place of a format's own. */
static inline int32_t lin_act_off(int n_sub, int i)
{
    return i == 0 ? 8 : i == 2 ? 128 : n_sub == 1 ? 16 : 32;
}
static inline int lin_init_index(lin_format f)
{
    return lin_fmt[f].off <= 8 ? 0 : lin_fmt[f].off == 128 ? 2 : 1;
}

/* One call of ob_lin_mul. */
typedef struct lin_job {
    const ob_lin *l;
    const uint8_t *w;   /* packed weights of the expert */
    const uint8_t *act; /* prepared activations */
    lin_act a;
    int64_t m, n0, n1;
    float *y;
    int64_t ldy;
    const ob_lin_epilogue *ep; /* never NULL */
    void *scratch;             /* 64-aligned */
} lin_job;

/* Bytes of scratch a kernel may use: sums [2 tiles][padded columns][32] f32, then the tiles. */
enum { LIN_TILE_BLK = 12, LIN_TILE_BYTES = 24 << 10 };

struct lin_kernels {
    const char *name;
    /* Quantise one whole panel from x [n_valid][ldx]; columns from n_valid on become zero. */
    void (*act)(const ob_lin *l, const lin_act *a, const float *x, int64_t ldx, int n_valid, uint8_t *panel);
    /* 4-bit codes of 32 rotated values; returns their scale (quant/act4.h). */
    float (*act4)(const float *x, int8_t *q);
    void (*mul)(const lin_job *j);     /* int8 activations */
    void (*mul_f32)(const lin_job *j); /* f32 activations */
};

extern const lin_kernels lin_kernels_c, lin_kernels_avx2, lin_kernels_avx512;

#endif
