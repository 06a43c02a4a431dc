/* Matrix products of the CPU device: life of packed weights, shapes, and the choice of kernels. */
#include "dev/cpu/linear_int.h"

#include <string.h>

#include "base/alloc.h"
#include "dev/cpu/linear_pack.h"
#include "quant/act4.h"
#include "quant/hadamard.h"

const uint8_t lin_table_iq4[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
const uint8_t lin_table_fp4[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                   128, 127, 126, 125, 124, 122, 120, 116};

/* ---- packing ------------------------------------------------------------------------------------ */

static const lin_kernels *kernels_of(ob_cpu_level level)
{
#if defined(__x86_64__)
    if (level >= OB_CPU_AVX512) return &lin_kernels_avx512;
    if (level >= OB_CPU_AVX2) return &lin_kernels_avx2;
#endif
    (void)level;
    return &lin_kernels_c;
}

static bool sizes_set(ob_lin *l)
{
    size_t group, expert, total;
    l->n_blk = ob_div_up(l->k, LIN_BLK);
    l->n_grp = ob_div_up(l->n, LIN_ROWS);
    const size_t n_blk = (size_t)l->n_blk;
    if (l->fmt < LIN_N_QUANT) {
        if (!ob_mul_size(n_blk, lin_code_bytes(l->fmt) + lin_scale_bytes(l->fmt), &group)) return false;
        group += (n_blk + 7) / 8 * lin_head_bytes(l->fmt);
    } else if (!ob_mul_size((size_t)l->k, LIN_ROWS * lin_float_bytes(l->fmt), &group)) {
        return false;
    }
    group = ob_align_up(group, 64);
    if (!ob_mul_size(group, (size_t)l->n_grp, &expert) ||
        !ob_mul_size(expert, (size_t)l->n_experts, &total))
        return false;
    l->group_bytes = group;
    l->expert_bytes = expert;
    l->n_bytes = total;
    return true;
}

/* The shape of what `desc` is packed to; no data yet. */
static ob_status shape_of(const ob_weight *desc, ob_cpu_level level, bool exact, ob_lin *l, ob_err *err)
{
    const ob_type_info *ti = ob_type_get(desc->type);
    const int64_t n_experts = desc->use == OB_USE_EXPERTS ? desc->ne[2] : 1;
    if (!ti->name || !ti->dequant)
        return ob_err_set(err, OB_E_UNSUPPORTED, "%s: no matrix product for type %s", desc->name,
                          ti->name ? ti->name : "?");
    if (desc->ne[0] < 1 || desc->ne[1] < 1 || n_experts < 1 || desc->ne[0] > INT32_MAX ||
        desc->ne[1] > INT32_MAX || n_experts > INT32_MAX ||
        ob_type_row_bytes(desc->type, desc->ne[0]) == 0)
        return ob_err_set(err, OB_E_FORMAT, "%s: shape does not fit type %s", desc->name, ti->name);
    *l = (ob_lin){.k = desc->ne[0], .n = desc->ne[1], .n_experts = n_experts, .kern = kernels_of(level),
                  .fmt = lin_format_of(desc->type), .rotated = desc->hadamard, .act4 = desc->hadamard && desc->act4};
    l->f32 = exact || l->fmt >= LIN_N_QUANT;
    if (l->rotated && l->fmt != LIN_Q4_0)
        return ob_err_set(err, OB_E_UNSUPPORTED, "%s: only Q4_0 can be Hadamard-rotated", desc->name);
    if (!sizes_set(l)) return ob_err_set(err, OB_E_LIMIT, "%s: too large", desc->name);
    return OB_OK;
}

ob_status ob_lin_pack(const ob_weight *desc, ob_cpu_level level, bool exact, ob_lin **out,
                      bool *keeps_data, ob_err *err)
{
    ob_status s = OB_OK;
    *out = NULL;
    *keeps_data = false;
    ob_lin *l = ob_calloc(1, sizeof *l);
    if (!l) return ob_err_set(err, OB_E_NO_MEMORY, "%s: no memory", desc->name);
    OB_GOTO(shape_of(desc, level, exact, l, err));
    if (desc->data && desc->n_bytes / ob_type_row_bytes(desc->type, l->k) < (uint64_t)(l->n * l->n_experts)) {
        s = ob_err_set(err, OB_E_FORMAT, "%s: %zu bytes are too few for its shape", desc->name,
                       desc->n_bytes);
        goto out;
    }
    l->data = ob_aligned_alloc(64, l->n_bytes);
    if (!l->data) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "%s: no memory for %zu packed bytes", desc->name, l->n_bytes);
        goto out;
    }
    const size_t expert = ob_type_row_bytes(desc->type, l->k) * (size_t)l->n;
    for (int64_t e = 0; desc->data && e < l->n_experts; e++)
        OB_GOTO(ob_lin_pack_expert(l, desc->type, e, (const uint8_t *)desc->data + (size_t)e * expert, err));
out:
    if (s != OB_OK) ob_lin_free(l);
    else *out = l;
    return s;
}

size_t ob_lin_bytes_of(const ob_weight *desc)
{
    ob_lin l;
    return shape_of(desc, OB_CPU_C, false, &l, NULL) == OB_OK ? l.n_bytes : 0;
}

void ob_lin_free(ob_lin *l)
{
    if (!l) return;
    ob_free(l->data);
    ob_free(l);
}

int64_t ob_lin_k(const ob_lin *l) { return l->k; }
int64_t ob_lin_n(const ob_lin *l) { return l->n; }
size_t ob_lin_bytes(const ob_lin *l) { return l->n_bytes; }

/* ---- activations -------------------------------------------------------------------------------- */

int ob_lin_act_kind(const ob_lin *l)
{
    enum { ROTATED = 16, ACT4 = 32 };
    return (l->f32 ? 0 : lin_fmt[l->fmt].n_sub) | (l->rotated ? ROTATED : 0) | (l->act4 ? ACT4 : 0);
}
int64_t ob_lin_act_granule(const ob_lin *l)
{
    (void)l;
    return LIN_ACT_GRANULE; /* a multiple of every panel width */
}
size_t ob_lin_act_bytes(const ob_lin *l, int64_t m)
{
    const lin_act a = lin_act_shape(l, m);
    return (size_t)a.n_panel * a.panel_bytes;
}

/* f32 activations are only put into panels. */
static void act_f32(const ob_lin *l, const lin_act *a, const float *x, int64_t ldx, int n_valid, float *panel)
{
    for (int c = 0; c < a->pw; c++)
        for (int64_t k = 0; k < l->k; k++)
            panel[k * a->pw + c] = c < n_valid ? x[c * ldx + k] : 0.0f;
}

static void act_f32_rotated(const ob_lin *l, const lin_act *a, const float *x, int64_t ldx, int n_valid,
                            const uint8_t *coarse, float *panel)
{
    for (int c = 0; c < a->pw; c++)
        for (int64_t k = 0; k < l->k; k += OB_HADAMARD) {
            float b[OB_HADAMARD] = {0};
            if (c < n_valid) memcpy(b, x + c * ldx + k, sizeof b);
            ob_hadamard32(b);
            if (c < n_valid && coarse && coarse[c]) {
                int8_t q[OB_ACT4];
                const float d = l->kern->act4(b, q);
                for (int i = 0; i < OB_ACT4; i++) b[i] = d * (float)q[i];
            }
            for (int i = 0; i < OB_HADAMARD; i++) panel[(k + i) * a->pw + c] = b[i];
        }
}

/* Unit b of column c of a panel (one scale per unit): 4-bit codes, in the place and form of 8-bit ones. */
static void put_act4(const ob_lin *l, const lin_act *a, const float *x, int c, int64_t b, uint8_t *panel)
{
    int8_t q[OB_ACT4];
    const float d = l->kern->act4(x, q);
    const int64_t at = b * a->pw + c;
    int32_t sum = 0;
    for (int i = 0; i < OB_ACT4; i++) sum += q[i];
    for (int i = 0; i < 8; i++) memcpy(panel + ((b * 8 + i) * a->pw + c) * 4, q + 4 * i, 4);
    ((float *)(void *)(panel + a->off_d))[at] = d;
    ((float *)(void *)(panel + a->off_sum))[at] = d * (float)sum;
    for (int i = 0; i < 3; i++) ((int32_t *)(void *)(panel + a->off_init[i]))[at] = -lin_act_off(1, i) * sum;
}

/* Rotate a piece of each column into a buffer that stays in L1 and let the level's own kernel quantise it as
 * a panel of so many units, whose planes lie further back; then coarse columns get their 4-bit codes. */
static void act_rotated(const ob_lin *l, const lin_act *a, const float *x, int64_t ldx, int n_valid,
                        const uint8_t *coarse, uint8_t *panel)
{
    enum { PIECE = 16 }; /* units; keeps every piece 64-aligned in the panel */
    _Alignas(64) float buf[LIN_MAX_PW][PIECE * LIN_BLK];
    for (int64_t b = 0; b < l->n_blk; b += PIECE) {
        ob_lin part = *l;
        lin_act at = *a;
        const size_t codes = (size_t)(b * LIN_BLK * a->pw), plane = (size_t)(b * a->pw) * sizeof(float);
        part.n_blk = OB_MIN(PIECE, l->n_blk - b);
        part.k = part.n_blk * LIN_BLK;
        at.off_d += plane - codes;
        at.off_sum += plane - codes;
        for (int i = 0; i < 3; i++) at.off_init[i] += plane - codes;
        for (int c = 0; c < n_valid; c++) {
            memcpy(buf[c], x + c * ldx + b * LIN_BLK, (size_t)part.k * sizeof(float));
            ob_hadamard_row(buf[c], part.k);
        }
        l->kern->act(&part, &at, buf[0], PIECE * LIN_BLK, n_valid, panel + codes);
        for (int c = 0; c < n_valid; c++)
            for (int64_t i = 0; coarse && coarse[c] && i < part.n_blk; i++)
                put_act4(l, a, buf[c] + i * LIN_BLK, c, b + i, panel);
    }
}

void ob_lin_act(const ob_lin *l, const float *x, int64_t ldx, int64_t m, int64_t m0, int64_t m1, const uint8_t *coarse,
                void *act)
{
    const lin_act a = lin_act_shape(l, m);
    for (int64_t c = m0; c < m1; c += a.pw) {
        uint8_t *panel = (uint8_t *)act + (size_t)(c / a.pw) * a.panel_bytes;
        const int n_valid = (int)OB_MIN(m - c, a.pw);
        const uint8_t *coarse_c = l->act4 && coarse ? coarse + c : NULL;
        if (l->f32 && l->rotated) act_f32_rotated(l, &a, x + c * ldx, ldx, n_valid, coarse_c, (float *)(void *)panel);
        else if (l->f32) act_f32(l, &a, x + c * ldx, ldx, n_valid, (float *)(void *)panel);
        else if (l->rotated) act_rotated(l, &a, x + c * ldx, ldx, n_valid, coarse_c, panel);
        else l->kern->act(l, &a, x + c * ldx, ldx, n_valid, panel);
    }
}

/* ---- products ----------------------------------------------------------------------------------- */

int64_t ob_lin_n_granule(const ob_lin *l)
{
    (void)l;
    return 2 * LIN_ROWS;
}

size_t ob_lin_scratch_bytes(const ob_lin *l, int64_t m)
{
    const lin_act a = lin_act_shape(l, m);
    const size_t sums = (size_t)a.n_panel * (size_t)a.pw * 2 * 2 * LIN_ROWS * sizeof(float);
    return 2 * LIN_TILE_BYTES + sums;
}

void ob_lin_mul(const ob_lin *l, int64_t expert, const void *act, int64_t m, float *y, int64_t ldy,
                int64_t n0, int64_t n1, const ob_lin_epilogue *ep, void *scratch)
{
    static const ob_lin_epilogue none = {.scale = 1.0f};
    const lin_job j = {.l = l,
                       .w = l->data + (size_t)expert * l->expert_bytes,
                       .act = act,
                       .a = lin_act_shape(l, m),
                       .m = m,
                       .n0 = n0,
                       .n1 = OB_MIN(n1, l->n),
                       .y = y,
                       .ldy = ldy,
                       .ep = ep ? ep : &none,
                       .scratch = scratch};
    if (m <= 0 || j.n0 >= j.n1) return;
    if (l->f32) l->kern->mul_f32(&j);
    else l->kern->mul(&j);
}
