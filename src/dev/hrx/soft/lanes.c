/* Instructions that look across lanes: exchange, masks of one lane, matrices. And f16. */
#include "dev/hrx/soft/gfx.h"

#include <string.h>

float gfx_f16_to_f32(uint32_t h)
{
    const uint32_t sign = (h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ff;
    uint32_t w;
    if (exp == 0) { /* zero, or man * 2^-24 */
        const float f = (float)man * 5.9604644775390625e-8f;
        memcpy(&w, &f, 4);
        w |= sign;
    } else {
        w = sign | (exp == 31 ? 0x7f800000 : (exp + 112) << 23) | man << 13;
    }
    float f;
    memcpy(&f, &w, 4);
    return f;
}

uint32_t gfx_f32_to_f16(float f)
{
    uint32_t w;
    memcpy(&w, &f, 4);
    const uint32_t sign = w >> 16 & 0x8000, a = w & 0x7fffffff;
    if (a > 0x7f800000) return sign | 0x7e00;
    if (a >= 0x477ff000) return sign | 0x7c00; /* 65520 and above */
    if (a < 0x38800000) {                      /* below 2^-14: the adder rounds to multiples of 2^-24 */
        float x;
        memcpy(&x, &a, 4);
        x += 0.5f;
        memcpy(&w, &x, 4);
        return sign | (w - 0x3f000000);
    }
    return sign | (a + 0xfff + (a >> 13 & 1) - 0x38000000) >> 13;
}

/* ---- exchange -------------------------------------------------------------------------------- */

static void permlane16(gfx_wave *w, const gfx_insn *i, int other_row)
{
    const uint64_t sel = (uint32_t)gfx_scalar(w, &i->src[1], false) | gfx_scalar(w, &i->src[2], false) << 32;
    uint32_t tmp[GFX_LANES], r[GFX_LANES], live = 0;
    const uint32_t *x = gfx_lanes(w, i, 0, false, tmp), exec = gfx_exec(w);
    for (int l = 0; l < GFX_LANES; l++) {
        const int from = ((l & 16) ^ other_row) + (int)(sel >> (4 * (l & 15)) & 15);
        r[l] = x[from];
        if (exec >> from & 1) live |= 1u << l;
    }
    if (!(i->op_sel & 1) && i->op_sel & 2) /* switched-off sources give zero */
        for (int l = 0; l < GFX_LANES; l++) r[l] = live >> l & 1 ? r[l] : 0;
    gfx_store_lanes(w, i->dst, r, i->op_sel & 3 ? exec : exec & live);
}

bool gfx_lane_op(gfx_wave *w, const gfx_insn *i)
{
    uint32_t tmp[GFX_LANES], r[GFX_LANES];
    const uint32_t exec = gfx_exec(w);
    switch (i->op) {
    case OP_v_readfirstlane_b32:
        w->s[i->dst] = gfx_lanes(w, i, 0, false, tmp)[exec ? __builtin_ctz(exec) : 0];
        return true;
    case OP_v_readlane_b32:
        w->s[i->dst] = gfx_lanes(w, i, 0, false, tmp)[gfx_scalar(w, &i->src[1], false) & 31];
        return true;
    case OP_v_writelane_b32:
        w->v[i->dst][gfx_scalar(w, &i->src[1], false) & 31] = (uint32_t)gfx_scalar(w, &i->src[0], false);
        return true;
    case OP_v_permlane16_b32: permlane16(w, i, 0); return true;
    case OP_v_permlanex16_b32: permlane16(w, i, 16); return true;
    case OP_v_permlane64_b32: gfx_store_lanes(w, i->dst, gfx_lanes(w, i, 0, false, tmp), exec); return true;
    case OP_v_swap_b32:
        memcpy(r, w->v[i->dst], sizeof r);
        memcpy(tmp, w->v[i->src[0].reg], sizeof tmp);
        gfx_store_lanes(w, i->dst, tmp, exec);
        gfx_store_lanes(w, i->src[0].reg, r, exec);
        return true;
    default: return gfx_fail(w->group, "a lane instruction that is not implemented");
    }
}

/* ---- matrices -------------------------------------------------------------------------------- */

/* A: lane r holds row r, B: lane c holds column c, both repeated in lanes 16 to 31. Element k of a side, all forms
 * brought to f64, which holds them and their products exactly. */
typedef enum wmma_form { FORM_F16, FORM_BF16, FORM_I8, FORM_I4 } wmma_form;

static double element(const gfx_wave *w, const gfx_src *s, int lane, int k, wmma_form form, bool sign)
{
    const uint32_t *reg = &w->v[s->reg][lane];
    uint32_t v;
    switch (form) {
    case FORM_F16: return (double)gfx_f16_to_f32(reg[k / 2 * GFX_LANES] >> (k % 2 * 16) & 0xffff);
    case FORM_BF16: {
        float f;
        v = reg[k / 2 * GFX_LANES] >> (k % 2 * 16) << 16;
        memcpy(&f, &v, 4);
        return (double)f;
    }
    case FORM_I8:
        v = reg[k / 4 * GFX_LANES] >> (k % 4 * 8) & 0xff;
        return sign ? (int8_t)v : (double)v;
    default:
        v = reg[k / 8 * GFX_LANES] >> (k % 8 * 4) & 15;
        return sign ? (double)((int)(v ^ 8) - 8) : (double)v;
    }
}

static bool repeats(gfx_wave *w, const gfx_src *s)
{
    const int regs = s->type - '0';
    for (int r = 0; r < regs; r++)
        if (s->kind != GFX_K_VGPR || memcmp(w->v[s->reg + r], w->v[s->reg + r] + 16, 64) != 0)
            return gfx_fail(w->group, "a matrix operand whose lanes 16 to 31 do not repeat lanes 0 to 15");
    return true;
}

/* C and D of 32 bits: register i, lane l is row 2 * i + l / 16, column l % 16. */
bool gfx_wmma(gfx_wave *w, const gfx_insn *i)
{
    const bool whole = i->op == OP_v_wmma_i32_16x16x16_iu8 || i->op == OP_v_wmma_i32_16x16x16_iu4;
    const wmma_form form = i->op == OP_v_wmma_i32_16x16x16_iu8   ? FORM_I8
                           : i->op == OP_v_wmma_i32_16x16x16_iu4 ? FORM_I4
                           : i->op == OP_v_wmma_f32_16x16x16_bf16 ? FORM_BF16
                                                                  : FORM_F16;
    if (gfx_exec(w) != ~0u) return gfx_fail(w->group, "a matrix product with lanes switched off");
    if (!repeats(w, &i->src[0]) || !repeats(w, &i->src[1])) return false;
    double a[16][16], b[16][16];
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 16; k++) {
            a[r][k] = element(w, &i->src[0], r, k, form, i->neg_lo & 1);
            b[r][k] = element(w, &i->src[1], r, k, form, i->neg_lo & 2);
        }
    for (int n = 0; n < 8; n++) {
        uint32_t tmp[GFX_LANES], out[GFX_LANES];
        gfx_src from = i->src[2];
        from.type = 'u';
        if (from.kind == GFX_K_VGPR) from.reg = (uint8_t)(from.reg + n);
        gfx_insn one = *i;
        one.src[2] = from;
        const uint32_t *c = gfx_lanes(w, &one, 2, false, tmp);
        for (int l = 0; l < GFX_LANES; l++) {
            double sum = 0;
            for (int k = 0; k < 16; k++) sum += a[2 * n + l / 16][k] * b[l % 16][k];
            if (whole) {
                const int64_t v = (int64_t)sum + (int32_t)c[l];
                out[l] = i->clamp ? (uint32_t)(v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v) : (uint32_t)v;
            } else {
                float f;
                memcpy(&f, &c[l], 4);
                f = (float)(sum + (double)f);
                memcpy(&out[l], &f, 4);
            }
        }
        gfx_store_lanes(w, (uint8_t)(i->dst + n), out, ~0u);
    }
    return true;
}
