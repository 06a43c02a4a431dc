/* From weights of any type to the array's int8 tiles (npu_layout.h, npu_int8.h). */
#include "dev/npu/npu_pack.h"

#include <string.h>

#include "base/math.h"
#include "dev/npu/npu_int8.h"

enum { CHUNK = 2048, MICRO = OB_NPU_MICRO }; /* numbers of a row at a time: a multiple of every type's block */

typedef struct pack_job {
    const ob_type_info *ti;
    const uint8_t *rows;
    size_t row_bytes;
    int64_t k, n, k_pad;
    int8_t *dst;
    float *scales;
} pack_job;

static void unpack(const pack_job *j, int64_t row, int64_t k0, int64_t n, float *dst)
{
    j->ti->dequant(j->rows + (size_t)row * j->row_bytes + (size_t)(k0 / j->ti->block_elems) * (size_t)j->ti->block_bytes, dst, n);
}

/* Eight codes of each of eight outputs, k outer: a micro-tile. `q` [8][CHUNK]. */
static void put_micro(int8_t *dst, const int8_t *q, int64_t k)
{
    for (int i = 0; i < MICRO; i++)
        for (int r = 0; r < MICRO; r++) dst[i * MICRO + r] = q[r * CHUNK + k + i];
}

/* Outputs [row, row + 8). */
static void pack_eight(const pack_job *j, int64_t row)
{
    float x[CHUNK], inverse[MICRO] = {0};
    int8_t q[MICRO * CHUNK];
    for (int r = 0; r < MICRO; r++) {
        float amax = 0;
        if (row + r >= j->n) continue;
        for (int64_t k0 = 0; k0 < j->k; k0 += CHUNK) {
            const int64_t n = OB_MIN(CHUNK, j->k - k0);
            unpack(j, row + r, k0, n, x);
            amax = ob_npu_amax(x, n, amax);
        }
        j->scales[row + r] = ob_npu_scale(amax);
        inverse[r] = ob_npu_inverse(amax);
    }
    for (int64_t k0 = 0; k0 < j->k_pad; k0 += CHUNK) {
        const int64_t n = OB_MAX(0, OB_MIN(CHUNK, j->k - k0)), n_pad = OB_MIN(CHUNK, j->k_pad - k0);
        for (int r = 0; r < MICRO; r++) {
            if (inverse[r] != 0 && n) {
                unpack(j, row + r, k0, n, x);
                ob_npu_codes(x, n, inverse[r], q + r * CHUNK);
            }
            const int64_t from = inverse[r] != 0 ? n : 0;
            memset(q + r * CHUNK + from, 0, (size_t)(n_pad - from));
        }
        for (int64_t k = 0; k < n_pad; k += MICRO) put_micro(j->dst + ob_npu_i8c_at(j->k_pad, k0 + k, row), q, k);
    }
}

static void pack_groups(void *arg, int64_t g0, int64_t g1)
{
    const pack_job *j = arg;
    for (int64_t g = g0; g < g1; g++) pack_eight(j, g * MICRO);
}

void ob_npu_pack_i8c(ob_type type, const void *data, int64_t k, int64_t n, int8_t *dst, float *scales, const ob_parallel *par)
{
    pack_job j = {.ti = ob_type_get(type), .rows = data, .row_bytes = ob_type_row_bytes(type, k), .k = k, .n = n,
                  .k_pad = ob_npu_pad_k(k), .dst = dst, .scales = scales};
    const int64_t n_groups = ob_npu_pad_n(n) / MICRO;
    if (par) par->run(par, n_groups, 4, pack_groups, &j);
    else pack_groups(&j, 0, n_groups);
}

/* --- q4g32 -------------------------------------------------------------------------------------- */

/* 32 weights as scale * code + minimum. */
typedef struct q4_group {
    float scale, min;
    uint8_t code[OB_NPU_Q4_GROUP];
} q4_group;

static float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return ob_f16_to_f32(h);
}

/* Group g of a row; the layouts are ggml's (quant/): codes of Q4_0 and Q4_1 are (i, i + 16) in byte i; of Q4_K two groups
 * share 32 bytes, the even one in the low nibbles. */
static bool exact_group(ob_type type, const uint8_t *row, int64_t g, q4_group *out)
{
    if (type == OB_Q4_0 || type == OB_Q4_1) {
        const uint8_t *b = row + g * (type == OB_Q4_0 ? 18 : 20), *q = b + (type == OB_Q4_0 ? 2 : 4);
        out->scale = half_at(b);
        out->min = type == OB_Q4_0 ? -8.0f * out->scale : half_at(b + 2);
        for (int i = 0; i < 16; i++) {
            out->code[i] = q[i] & 15;
            out->code[i + 16] = q[i] >> 4;
        }
        return true;
    }
    if (type != OB_Q4_K) return false;
    const uint8_t *b = row + g / 8 * 144, *s = b + 4, *q = b + 16 + g % 8 / 2 * 32;
    const int j = (int)(g % 8);
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    const int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    out->scale = half_at(b) * (float)scale;
    out->min = -half_at(b + 2) * (float)min;
    for (int i = 0; i < 32; i++) out->code[i] = j % 2 ? q[i] >> 4 : q[i] & 15;
    return true;
}

static void spanned_group(const float *x, q4_group *out)
{
    float lo = x[0], hi = x[0];
    for (int i = 1; i < OB_NPU_Q4_GROUP; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    /* Codes belong to the rounded scale and minimum, so that these are not wrong twice. */
    out->scale = ob_bf16_to_f32(ob_f32_to_bf16((hi - lo) / 15.0f));
    out->min = ob_bf16_to_f32(ob_f32_to_bf16(lo));
    for (int i = 0; i < OB_NPU_Q4_GROUP; i++) {
        const float c = out->scale > 0 ? roundf((x[i] - out->min) / out->scale) : 0;
        out->code[i] = (uint8_t)(c < 0 ? 0 : c > 15 ? 15 : c);
    }
}

static void put_group(uint8_t *dst, int64_t k_pad, int64_t k0, int64_t j, const q4_group *g)
{
    uint8_t *tile = dst + ob_npu_q4_tile_at(k_pad, k0, j);
    const uint16_t scale = ob_f32_to_bf16(g->scale), min = ob_f32_to_bf16(g->min);
    uint8_t *at = tile + ob_npu_q4_scale_at(k0, j);
    memcpy(at, &scale, sizeof scale);
    memcpy(at + 2 * OB_NPU_Q4_SCALES, &min, sizeof min);
    for (int i = 0; i < OB_NPU_Q4_GROUP; i++) {
        uint8_t *nibble = tile + ob_npu_q4_nibble_at(k0 + i, j);
        *nibble = (uint8_t)(j % 2 ? (*nibble & 15) | g->code[i] << 4 : (*nibble & 0xF0) | g->code[i]);
    }
}

ob_status ob_npu_pack_q4g32(ob_type type, const void *data, int64_t k, int64_t n, uint8_t *dst, ob_err *err)
{
    const ob_type_info *ti = ob_type_get(type);
    const size_t row_bytes = ob_type_row_bytes(type, k);
    if (!ti->dequant || !row_bytes || k % OB_NPU_Q4_GROUP)
        return ob_err_set(err, OB_E_UNSUPPORTED, "rows of %lld of type %s cannot become groups of 32", (long long)k,
                          ti->name ? ti->name : "?");
    const int64_t k_pad = ob_npu_q4_pad_k(k);
    float x[CHUNK];
    memset(dst, 0, ob_npu_q4_bytes(k, n));
    for (int64_t j = 0; j < n; j++) {
        const uint8_t *row = (const uint8_t *)data + (size_t)j * row_bytes;
        for (int64_t k0 = 0; k0 < k; k0 += OB_NPU_Q4_GROUP) {
            q4_group g;
            if (k0 % CHUNK == 0 && type != OB_Q4_0 && type != OB_Q4_1 && type != OB_Q4_K)
                ti->dequant(row + (size_t)(k0 / ti->block_elems) * (size_t)ti->block_bytes, x, OB_MIN(CHUNK, k - k0));
            if (!exact_group(type, row, k0 / OB_NPU_Q4_GROUP, &g)) spanned_group(x + k0 % CHUNK, &g);
            put_group(dst, k_pad, k0, j, &g);
        }
    }
    return OB_OK;
}
