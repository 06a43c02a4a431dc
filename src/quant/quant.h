/* quant/quant.h: the block formats of weights: ids, sizes, reference (de)quantisers.
 *
 * Owns: what the bytes of a ggml block mean. Pure functions over rows; no files, no devices, no
 * threads. The reference dequantiser is bit-exact with ggml's `to_float`; it is the oracle of every
 * device kernel. Layouts: ggml (public), restated beside each function.
 */
#ifndef OB_QUANT_QUANT_H
#define OB_QUANT_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

/* Ids are GGUF's tensor type ids. */
typedef enum ob_type {
    OB_F32 = 0, OB_F16 = 1, OB_Q4_0 = 2, OB_Q4_1 = 3, OB_Q5_0 = 6, OB_Q5_1 = 7, OB_Q8_0 = 8,
    OB_Q8_1 = 9, OB_Q2_K = 10, OB_Q3_K = 11, OB_Q4_K = 12, OB_Q5_K = 13, OB_Q6_K = 14, OB_Q8_K = 15,
    OB_IQ2_XXS = 16, OB_IQ2_XS = 17, OB_IQ3_XXS = 18, OB_IQ1_S = 19, OB_IQ4_NL = 20, OB_IQ3_S = 21,
    OB_IQ2_S = 22, OB_IQ4_XS = 23, OB_I8 = 24, OB_I16 = 25, OB_I32 = 26, OB_I64 = 27, OB_F64 = 28,
    OB_IQ1_M = 29, OB_BF16 = 30, OB_TQ1_0 = 34, OB_TQ2_0 = 35, OB_MXFP4 = 39, OB_NVFP4 = 40,
    OB_Q1_0 = 41, OB_Q2_0 = 42,
    OB_TYPE_END = 64 /* all ids are below this */
} ob_type;

/* n elements (a multiple of the block) from packed bytes to float. */
typedef void (*ob_dequant_fn)(const void *src, float *dst, int64_t n);
/* One row of n elements to packed bytes; importance is NULL or n positive weights. */
typedef void (*ob_quant_fn)(const float *src, void *dst, int64_t n, const float *importance);

typedef struct ob_type_info {
    const char *name;        /* "Q4_K"; NULL for an id that is not known */
    int block_elems;         /* elements per block */
    int block_bytes;
    bool weight;             /* may stand in a model file as a weight */
    bool needs_importance;   /* quantising without an importance matrix gives nonsense */
    ob_dequant_fn dequant;   /* NULL for integer types */
    ob_quant_fn quant;       /* NULL where we do not write the type */
} ob_type_info;

/* Never NULL; .name is NULL for an unknown id. */
const ob_type_info *ob_type_get(uint32_t id);
/* "q4_k", "Q4_K" -> id; false if there is none. */
bool ob_type_from_name(const char *name, ob_type *out);
/* Bytes of a row of n elements; 0 when n is no multiple of the block or the type is unknown. */
size_t ob_type_row_bytes(ob_type t, int64_t n);

/* Scalar conversions, round to nearest even; NaN stays NaN. They stand here so that loops over them
 * can be vectorised; none depends on the CPU's handling of subnormal numbers. */
static inline float ob_bits_f32(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline uint32_t ob_f32_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}
static inline float ob_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, em = (uint32_t)(h & 0x7FFFu) << 13;
    /* Subnormal: em counts units of 2^-24; borrow the exponent of 2^-14 and take it off again. */
    uint32_t subnormal = ob_f32_bits(ob_bits_f32(em + 0x38800000u) - 0x1p-14f);
    uint32_t normal = em + (112u << 23);
    uint32_t special = em | 0x7F800000u;
    return ob_bits_f32(sign | (em < 0x00800000u ? subnormal : em < 0x0F800000u ? normal : special));
}
static inline uint16_t ob_f32_to_f16(float f)
{
    uint32_t bits = ob_f32_bits(f), sign = bits >> 16 & 0x8000u, em = bits & 0x7FFFFFFFu;
    /* Below 2^-14 the addition rounds to units of 2^-24; above, carry from the 13 lost bits. */
    uint32_t subnormal = ob_f32_bits(ob_bits_f32(em) + 0.5f) - 0x3F000000u;
    uint32_t normal = (em - (112u << 23) + 0xFFFu + (em >> 13 & 1u)) >> 13;
    uint32_t special = em > 0x7F800000u ? 0x7E00u | (em >> 13 & 0x3FFu) : 0x7C00u;
    /* 0x477FF000 is 65,520, the least number that rounds to infinity. */
    return (uint16_t)(sign | (em < 0x38800000u ? subnormal : em < 0x477FF000u ? normal : special));
}
static inline float ob_bf16_to_f32(uint16_t h) { return ob_bits_f32((uint32_t)h << 16); }
static inline uint16_t ob_f32_to_bf16(float f)
{
    uint32_t bits = ob_f32_bits(f);
    uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16, nan = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

/* Quantise n_rows x n_per_row; dst must hold n_rows * ob_type_row_bytes. importance: NULL or
 * n_per_row floats >= 0 shared by all rows (mean squared activations, in any unit). What comes out is
 * finite however large the source is. Errors: OB_E_UNSUPPORTED (type not written), OB_E_INVALID (row
 * length, NaN or infinity in the source, missing importance). Rows may be shared among threads. */
OB_MUST_CHECK ob_status ob_quantize(ob_type t, const float *src, void *dst, int64_t n_rows,
                                    int64_t n_per_row, const float *importance, ob_err *err);

/* The scale (f16) that serves 32 columns best with codes lo..hi, importance [32] >= 0. For quantisers that choose the
 * codes themselves. */
uint16_t ob_quant_symmetric_scale(const float x[32], const float importance[32], int lo, int hi);

#endif
