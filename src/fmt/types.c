/* Sizes and names of ggml's tensor types and of metadata value types. */
#include "fmt/fmt_int.h"

#include "base/math.h"

typedef struct type_row {
    const char *name;
    uint16_t elems, bytes; /* of one block */
} type_row;

/* The numbers are ggml's, from its public block structures. Holes are ids never used or removed. */
static const type_row k_types[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},      [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},
    [8] = {"Q8_0", 32, 34},      [9] = {"Q8_1", 32, 36},      [10] = {"Q2_K", 256, 84},
    [11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},
    [14] = {"Q6_K", 256, 210},   [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66},
    [17] = {"IQ2_XS", 256, 74},  [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},
    [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},  [22] = {"IQ2_S", 256, 82},
    [23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},
    [29] = {"IQ1_M", 256, 56},   [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},
    [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},    [40] = {"NVFP4", 64, 36},
    [41] = {"Q1_0", 128, 18},    [42] = {"Q2_0", 64, 18},
};

static const char *const k_removed[] = {
    [4] = "Q4_2",         [5] = "Q4_3",         [31] = "Q4_0_4_4",    [32] = "Q4_0_4_8",
    [33] = "Q4_0_8_8",    [36] = "IQ4_NL_4_4",  [37] = "IQ4_NL_4_8",  [38] = "IQ4_NL_8_8",
};

static const struct {
    const char *name;
    uint8_t bytes;
} k_kv_types[] = {
    [OB_KV_U8] = {"u8", 1},          [OB_KV_I8] = {"i8", 1},       [OB_KV_U16] = {"u16", 2},
    [OB_KV_I16] = {"i16", 2},        [OB_KV_U32] = {"u32", 4},     [OB_KV_I32] = {"i32", 4},
    [OB_KV_F32] = {"f32", 4},        [OB_KV_BOOL] = {"bool", 1},   [OB_KV_STRING] = {"string", 0},
    [OB_KV_ARRAY] = {"array", 0},    [OB_KV_U64] = {"u64", 8},     [OB_KV_I64] = {"i64", 8},
    [OB_KV_F64] = {"f64", 8},
};

bool ob_fmt_type_bytes(uint32_t type, uint64_t n, uint64_t *out)
{
    if (type >= OB_COUNT(k_types) || !k_types[type].name) return false;
    const type_row *t = &k_types[type];
    return n % t->elems == 0 && ob_mul_u64(n / t->elems, t->bytes, out);
}

uint32_t ob_fmt_type_block(uint32_t type)
{
    return type < OB_COUNT(k_types) && k_types[type].name ? k_types[type].elems : 0;
}

const char *ob_fmt_type_name(uint32_t type)
{
    return type < OB_COUNT(k_types) ? k_types[type].name : NULL;
}

const char *ob_fmt_removed_type_name(uint32_t type)
{
    return type < OB_COUNT(k_removed) ? k_removed[type] : NULL;
}

size_t ob_kv_type_bytes(uint32_t type)
{
    return type < OB_COUNT(k_kv_types) ? k_kv_types[type].bytes : 0;
}

const char *ob_kv_type_name(uint32_t type)
{
    return type < OB_COUNT(k_kv_types) ? k_kv_types[type].name : NULL;
}
