/* quant/quant.c: the table of types, and the checked entry to the quantisers. */
#include "quant/quant.h"

#include <strings.h>

#include "base/math.h"
#include "quant/quant_int.h"

/* clang-format off */
static const ob_type_info types[OB_TYPE_END] = {
    /*            name    elems bytes weight needs_imatrix  dequant              quant */
    [OB_F32]     = {"F32",     1,   4, true,  false, ob_quant_deq_f32,     ob_quant_q_f32},
    [OB_F16]     = {"F16",     1,   2, true,  false, ob_quant_deq_f16,     ob_quant_q_f16},
    [OB_Q4_0]    = {"Q4_0",   32,  18, true,  false, ob_quant_deq_q4_0,    ob_quant_q_q4_0},
    [OB_Q4_1]    = {"Q4_1",   32,  20, true,  false, ob_quant_deq_q4_1,    ob_quant_q_q4_1},
    [OB_Q5_0]    = {"Q5_0",   32,  22, true,  false, ob_quant_deq_q5_0,    ob_quant_q_q5_0},
    [OB_Q5_1]    = {"Q5_1",   32,  24, true,  false, ob_quant_deq_q5_1,    ob_quant_q_q5_1},
    [OB_Q8_0]    = {"Q8_0",   32,  34, true,  false, ob_quant_deq_q8_0,    ob_quant_q_q8_0},
    [OB_Q8_1]    = {"Q8_1",   32,  36, false, false, ob_quant_deq_q8_1,    ob_quant_q_q8_1},
    [OB_Q2_K]    = {"Q2_K",  256,  84, true,  false, ob_quant_deq_q2_k,    ob_quant_q_q2_k},
    [OB_Q3_K]    = {"Q3_K",  256, 110, true,  false, ob_quant_deq_q3_k,    ob_quant_q_q3_k},
    [OB_Q4_K]    = {"Q4_K",  256, 144, true,  false, ob_quant_deq_q4_k,    ob_quant_q_q4_k},
    [OB_Q5_K]    = {"Q5_K",  256, 176, true,  false, ob_quant_deq_q5_k,    ob_quant_q_q5_k},
    [OB_Q6_K]    = {"Q6_K",  256, 210, true,  false, ob_quant_deq_q6_k,    ob_quant_q_q6_k},
    [OB_Q8_K]    = {"Q8_K",  256, 292, false, false, ob_quant_deq_q8_k,    ob_quant_q_q8_k},
    [OB_IQ2_XXS] = {"IQ2_XXS", 256, 66, true, true,  ob_quant_deq_iq2_xxs, NULL},
    [OB_IQ2_XS]  = {"IQ2_XS", 256,  74, true, true,  ob_quant_deq_iq2_xs,  NULL},
    [OB_IQ3_XXS] = {"IQ3_XXS", 256, 98, true, false, ob_quant_deq_iq3_xxs, NULL},
    [OB_IQ1_S]   = {"IQ1_S", 256,  50, true,  true,  ob_quant_deq_iq1_s,   NULL},
    [OB_IQ4_NL]  = {"IQ4_NL", 32,  18, true,  false, ob_quant_deq_iq4_nl,  ob_quant_q_iq4_nl},
    [OB_IQ3_S]   = {"IQ3_S", 256, 110, true,  false, ob_quant_deq_iq3_s,   NULL},
    [OB_IQ2_S]   = {"IQ2_S", 256,  82, true,  false, ob_quant_deq_iq2_s,   NULL},
    [OB_IQ4_XS]  = {"IQ4_XS", 256, 136, true, false, ob_quant_deq_iq4_xs,  ob_quant_q_iq4_xs},
    [OB_I8]      = {"I8",      1,   1, false, false, NULL,                 NULL},
    [OB_I16]     = {"I16",     1,   2, false, false, NULL,                 NULL},
    [OB_I32]     = {"I32",     1,   4, false, false, NULL,                 NULL},
    [OB_I64]     = {"I64",     1,   8, false, false, NULL,                 NULL},
    [OB_F64]     = {"F64",     1,   8, false, false, ob_quant_deq_f64,     NULL},
    [OB_IQ1_M]   = {"IQ1_M", 256,  56, true,  false, ob_quant_deq_iq1_m,   NULL},
    [OB_BF16]    = {"BF16",    1,   2, true,  false, ob_quant_deq_bf16,    ob_quant_q_bf16},
    [OB_TQ1_0]   = {"TQ1_0", 256,  54, true,  false, ob_quant_deq_tq1_0,   ob_quant_q_tq1_0},
    [OB_TQ2_0]   = {"TQ2_0", 256,  66, true,  false, ob_quant_deq_tq2_0,   ob_quant_q_tq2_0},
    [OB_MXFP4]   = {"MXFP4",  32,  17, true,  false, ob_quant_deq_mxfp4,   ob_quant_q_mxfp4},
    [OB_NVFP4]   = {"NVFP4",  64,  36, true,  false, ob_quant_deq_nvfp4,   ob_quant_q_nvfp4},
    [OB_Q1_0]    = {"Q1_0",  128,  18, true,  false, ob_quant_deq_q1_0,    ob_quant_q_q1_0},
    [OB_Q2_0]    = {"Q2_0",   64,  18, true,  false, ob_quant_deq_q2_0,    ob_quant_q_q2_0},
};
/* clang-format on */

const ob_type_info *ob_type_get(uint32_t id)
{
    static const ob_type_info unknown = {0};
    return id < OB_TYPE_END ? &types[id] : &unknown;
}

bool ob_type_from_name(const char *name, ob_type *out)
{
    for (int i = 0; i < OB_TYPE_END; i++)
        if (types[i].name && strcasecmp(types[i].name, name) == 0) {
            *out = (ob_type)i;
            return true;
        }
    return false;
}

size_t ob_type_row_bytes(ob_type t, int64_t n)
{
    const ob_type_info *info = ob_type_get((uint32_t)t);
    size_t bytes = 0;
    if (!info->name || n < 0 || n % info->block_elems != 0) return 0;
    if (!ob_mul_size((size_t)(n / info->block_elems), (size_t)info->block_bytes, &bytes)) return 0;
    return bytes;
}

static bool all_finite(const float *x, int64_t n)
{
    int bad = 0;
    for (int64_t i = 0; i < n; i++) bad |= x[i] - x[i] != 0; /* NaN or infinity */
    return !bad;
}

ob_status ob_quantize(ob_type t, const float *src, void *dst, int64_t n_rows, int64_t n_per_row,
                      const float *importance, ob_err *err)
{
    const ob_type_info *info = ob_type_get((uint32_t)t);
    if (!info->name) return ob_err_set(err, OB_E_UNSUPPORTED, "tensor type %d is not known", (int)t);
    if (!info->quant)
        return ob_err_set(err, OB_E_UNSUPPORTED, "this build reads %s but does not write it",
                          info->name);
    if (n_rows < 0 || n_per_row <= 0 || n_per_row % info->block_elems != 0)
        return ob_err_set(err, OB_E_INVALID,
                          "%s needs rows of a multiple of %d elements, not of %lld", info->name,
                          info->block_elems, (long long)n_per_row);
    if (importance && !all_finite(importance, n_per_row))
        return ob_err_set(err, OB_E_INVALID, "the importance matrix holds a NaN or an infinity");
    if (info->needs_importance && !importance)
        return ob_err_set(err, OB_E_INVALID, "%s needs an importance matrix", info->name);
    const size_t row_bytes = ob_type_row_bytes(t, n_per_row);
    for (int64_t r = 0; r < n_rows; r++) {
        const float *row = src + r * n_per_row;
        if (!all_finite(row, n_per_row))
            return ob_err_set(err, OB_E_INVALID, "row %lld holds a NaN or an infinity", (long long)r);
        info->quant(row, (uint8_t *)dst + (size_t)r * row_bytes, n_per_row, importance);
    }
    return OB_OK;
}
