/* The scalar unit: integers, masks of lanes, loads through the scalar cache. */
#include "dev/hrx/soft/gfx.h"

#include <math.h>
#include <string.h>

uint64_t gfx_scalar(const gfx_wave *w, const gfx_src *s, bool wide)
{
    switch (s->kind) {
    case GFX_K_CONST: return wide ? s->value : (uint32_t)s->value;
    case GFX_K_SGPR:
        if (s->reg == GFX_NULL) return 0;
        return wide ? w->s[s->reg] | (uint64_t)w->s[(s->reg + 1) & 127] << 32 : w->s[s->reg];
    case GFX_K_SCC: return w->scc;
    case GFX_K_VCCZ: return w->s[GFX_VCC] == 0;
    case GFX_K_EXECZ: return gfx_exec(w) == 0;
    default: return 0;
    }
}

static void put(gfx_wave *w, uint8_t reg, uint64_t v, bool wide)
{
    if (reg == GFX_NULL) return;
    w->s[reg] = (uint32_t)v;
    if (wide) w->s[(reg + 1) & 127] = (uint32_t)(v >> 32);
}

static bool set(gfx_wave *w, const gfx_insn *i, uint64_t v, bool scc)
{
    put(w, i->dst, v, i->dst_type == 'd');
    w->scc = scc;
    return true;
}
static bool keep(gfx_wave *w, const gfx_insn *i, uint64_t v) { return set(w, i, v, w->scc); }

/* ---- compares -------------------------------------------------------------------------------- */

static bool compare(gfx_wave *w, const gfx_insn *i, int64_t a, int64_t b)
{
    switch (i->op) {
    case OP_s_cmp_eq_i32: case OP_s_cmp_eq_u32: case OP_s_cmp_eq_u64: case OP_s_cmpk_eq_i32: case OP_s_cmpk_eq_u32: w->scc = a == b; break;
    case OP_s_cmp_lg_i32: case OP_s_cmp_lg_u32: case OP_s_cmp_lg_u64: case OP_s_cmpk_lg_i32: case OP_s_cmpk_lg_u32: w->scc = a != b; break;
    case OP_s_cmp_gt_i32: case OP_s_cmp_gt_u32: case OP_s_cmpk_gt_i32: case OP_s_cmpk_gt_u32: w->scc = a > b; break;
    case OP_s_cmp_ge_i32: case OP_s_cmp_ge_u32: case OP_s_cmpk_ge_i32: case OP_s_cmpk_ge_u32: w->scc = a >= b; break;
    case OP_s_cmp_lt_i32: case OP_s_cmp_lt_u32: case OP_s_cmpk_lt_i32: case OP_s_cmpk_lt_u32: w->scc = a < b; break;
    case OP_s_cmp_le_i32: case OP_s_cmp_le_u32: case OP_s_cmpk_le_i32: case OP_s_cmpk_le_u32: w->scc = a <= b; break;
    default: return false;
    }
    return true;
}

static bool try_compare(gfx_wave *w, const gfx_insn *i)
{
    if (i->enc != GFX_SOPK && i->enc != GFX_SOPC) return false;
    const char *name = gfx_ops[i->op].name;
    const bool sign = name[strlen(name) - 3] == 'i';
    if (i->enc == GFX_SOPK) {
        const uint32_t a = (uint32_t)gfx_scalar(w, &i->src[0], false);
        return compare(w, i, sign ? (int32_t)a : (int64_t)a, sign ? i->imm : (int64_t)(i->imm & 0xffff));
    }
    const bool wide = i->src[0].type == 'd';
    const uint64_t a = gfx_scalar(w, &i->src[0], wide), b = gfx_scalar(w, &i->src[1], i->src[1].type == 'd');
    switch (i->op) {
    case OP_s_bitcmp0_b32: case OP_s_bitcmp0_b64: w->scc = !(a >> (b & (wide ? 63 : 31)) & 1); return true;
    case OP_s_bitcmp1_b32: case OP_s_bitcmp1_b64: w->scc = a >> (b & (wide ? 63 : 31)) & 1; return true;
    default: return compare(w, i, sign ? (int32_t)a : (int64_t)a, sign ? (int32_t)b : (int64_t)b);
    }
}

/* ---- masks and logic, 32 or 64 bits wide ----------------------------------------------------- */

/* saveexec: the old EXEC to the result, EXEC from the source; wrexec: the new EXEC to the result too. */
static bool with_exec(gfx_wave *w, const gfx_insn *i, bool write, uint64_t (*f)(uint64_t, uint64_t))
{
    const bool wide = i->dst_type == 'd';
    const uint64_t old = wide ? w->s[GFX_EXEC] | (uint64_t)w->s[GFX_EXEC + 1] << 32 : w->s[GFX_EXEC];
    uint64_t r = f(gfx_scalar(w, &i->src[0], wide), old);
    if (!wide) r = (uint32_t)r;
    put(w, i->dst, write ? r : old, wide);
    put(w, GFX_EXEC, r, wide);
    w->scc = r != 0;
    return true;
}

static uint64_t f_and(uint64_t a, uint64_t b) { return a & b; }
static uint64_t f_or(uint64_t a, uint64_t b) { return a | b; }
static uint64_t f_xor(uint64_t a, uint64_t b) { return a ^ b; }
static uint64_t f_nand(uint64_t a, uint64_t b) { return ~(a & b); }
static uint64_t f_nor(uint64_t a, uint64_t b) { return ~(a | b); }
static uint64_t f_xnor(uint64_t a, uint64_t b) { return ~(a ^ b); }
static uint64_t f_and_not0(uint64_t a, uint64_t b) { return ~a & b; }
static uint64_t f_or_not0(uint64_t a, uint64_t b) { return ~a | b; }
static uint64_t f_and_not1(uint64_t a, uint64_t b) { return a & ~b; }
static uint64_t f_or_not1(uint64_t a, uint64_t b) { return a | ~b; }

#define BOTH(name) OP_##name##_b32: case OP_##name##_b64

static bool try_logic(gfx_wave *w, const gfx_insn *i)
{
    switch (i->op) {
    case BOTH(s_and_saveexec): return with_exec(w, i, false, f_and);
    case BOTH(s_or_saveexec): return with_exec(w, i, false, f_or);
    case BOTH(s_xor_saveexec): return with_exec(w, i, false, f_xor);
    case BOTH(s_nand_saveexec): return with_exec(w, i, false, f_nand);
    case BOTH(s_nor_saveexec): return with_exec(w, i, false, f_nor);
    case BOTH(s_xnor_saveexec): return with_exec(w, i, false, f_xnor);
    case BOTH(s_and_not0_saveexec): return with_exec(w, i, false, f_and_not0);
    case BOTH(s_or_not0_saveexec): return with_exec(w, i, false, f_or_not0);
    case BOTH(s_and_not1_saveexec): return with_exec(w, i, false, f_and_not1);
    case BOTH(s_or_not1_saveexec): return with_exec(w, i, false, f_or_not1);
    case BOTH(s_and_not0_wrexec): return with_exec(w, i, true, f_and_not0);
    case BOTH(s_and_not1_wrexec): return with_exec(w, i, true, f_and_not1);
    default: break;
    }
    const bool wide = i->dst_type == 'd';
    const uint64_t a = gfx_scalar(w, &i->src[0], wide), b = i->n_src > 1 ? gfx_scalar(w, &i->src[1], wide) : 0;
    uint64_t r;
    switch (i->op) {
    case BOTH(s_and): r = a & b; break;
    case BOTH(s_or): r = a | b; break;
    case BOTH(s_xor): r = a ^ b; break;
    case BOTH(s_nand): r = ~(a & b); break;
    case BOTH(s_nor): r = ~(a | b); break;
    case BOTH(s_xnor): r = ~(a ^ b); break;
    case BOTH(s_and_not1): r = a & ~b; break;
    case BOTH(s_or_not1): r = a | ~b; break;
    case BOTH(s_not): r = ~a; break;
    default: return false;
    }
    if (!wide) r = (uint32_t)r;
    return set(w, i, r, r != 0);
}

/* ---- one source ------------------------------------------------------------------------------ */

static uint64_t reversed(uint64_t v, int n)
{
    uint64_t r = 0;
    for (int k = 0; k < n; k++) r |= (v >> k & 1) << (n - 1 - k);
    return r;
}

static bool try_one(gfx_wave *w, const gfx_insn *i)
{
    const bool from_wide = i->n_src && i->src[0].type == 'd';
    const uint64_t a = gfx_scalar(w, &i->src[0], from_wide);
    const uint32_t x = (uint32_t)a, old = w->s[i->dst];
    switch (i->op) {
    case BOTH(s_mov): return keep(w, i, a);
    case BOTH(s_cmov): return w->scc ? keep(w, i, a) : true;
    case OP_s_brev_b32: return keep(w, i, reversed(a, 32));
    case OP_s_brev_b64: return keep(w, i, reversed(a, 64));
    case OP_s_ctz_i32_b32: return keep(w, i, x ? (uint32_t)__builtin_ctz(x) : ~0u);
    case OP_s_ctz_i32_b64: return keep(w, i, a ? (uint32_t)__builtin_ctzll(a) : ~0u);
    case OP_s_clz_i32_u32: return keep(w, i, x ? (uint32_t)__builtin_clz(x) : ~0u);
    case OP_s_clz_i32_u64: return keep(w, i, a ? (uint32_t)__builtin_clzll(a) : ~0u);
    case OP_s_cls_i32: {
        const uint32_t y = x ^ (uint32_t)((int32_t)x >> 31);
        return keep(w, i, y ? (uint32_t)__builtin_clz(y) : ~0u);
    }
    case OP_s_sext_i32_i8: return keep(w, i, (uint32_t)(int8_t)x);
    case OP_s_sext_i32_i16: return keep(w, i, (uint32_t)(int16_t)x);
    case OP_s_bitset0_b32: return keep(w, i, old & ~(1u << (x & 31)));
    case OP_s_bitset1_b32: return keep(w, i, old | 1u << (x & 31));
    case OP_s_abs_i32: return set(w, i, (int32_t)x < 0 ? 0 - x : x, x != 0);
    case OP_s_bcnt0_i32_b32: return set(w, i, 32 - (uint32_t)__builtin_popcount(x), x != ~0u);
    case OP_s_bcnt1_i32_b32: return set(w, i, (uint32_t)__builtin_popcount(x), x != 0);
    case OP_s_bcnt1_i32_b64: return set(w, i, (uint32_t)__builtin_popcountll(a), a != 0);
    case OP_s_movk_i32: return keep(w, i, (uint32_t)i->imm);
    case OP_s_cmovk_i32: return w->scc ? keep(w, i, (uint32_t)i->imm) : true;
    case OP_s_addk_i32: {
        int32_t r;
        const bool over = __builtin_add_overflow((int32_t)old, i->imm, &r);
        return set(w, i, (uint32_t)r, over);
    }
    case OP_s_mulk_i32: return keep(w, i, old * (uint32_t)i->imm);
    default: return false;
    }
}

/* ---- two sources ----------------------------------------------------------------------------- */

static bool try_shift(gfx_wave *w, const gfx_insn *i)
{
    const bool wide = i->src[0].type == 'd';
    const uint64_t a = gfx_scalar(w, &i->src[0], wide), b = gfx_scalar(w, &i->src[1], false);
    uint64_t r;
    switch (i->op) {
    case OP_s_lshl_b32: r = (uint32_t)a << (b & 31); break;
    case OP_s_lshl_b64: r = a << (b & 63); break;
    case OP_s_lshr_b32: r = (uint32_t)a >> (b & 31); break;
    case OP_s_lshr_b64: r = a >> (b & 63); break;
    case OP_s_ashr_i32: r = (uint32_t)((int32_t)a >> (b & 31)); break;
    case OP_s_ashr_i64: r = (uint64_t)((int64_t)a >> (b & 63)); break;
    case OP_s_bfe_u32: {
        const uint32_t n = b >> 16 & 127, s = (uint32_t)a >> (b & 31);
        r = n >= 32 ? s : s & ((1u << n) - 1);
        break;
    }
    case OP_s_bfe_u64: {
        const uint32_t n = b >> 16 & 127;
        r = a >> (b & 63);
        if (n < 64) r &= (UINT64_C(1) << n) - 1;
        break;
    }
    case OP_s_bfe_i32: {
        const uint32_t n = b >> 16 & 127, s = (uint32_t)((int32_t)a >> (b & 31));
        r = n == 0 ? 0 : n >= 32 ? s : (uint32_t)((int32_t)(s << (32 - n)) >> (32 - n));
        break;
    }
    case OP_s_bfe_i64: {
        const uint32_t n = b >> 16 & 127;
        r = (uint64_t)((int64_t)a >> (b & 63));
        if (n == 0) r = 0;
        else if (n < 64) r = (uint64_t)((int64_t)(r << (64 - n)) >> (64 - n));
        break;
    }
    default: return false;
    }
    return set(w, i, r, r != 0);
}

static bool try_two(gfx_wave *w, const gfx_insn *i)
{
    const bool wide = i->dst_type == 'd';
    const uint64_t wa = gfx_scalar(w, &i->src[0], wide), wb = gfx_scalar(w, &i->src[1], wide);
    const uint32_t a = (uint32_t)wa, b = (uint32_t)wb;
    const int32_t sa = (int32_t)a, sb = (int32_t)b;
    const uint64_t carry = w->scc;
    int32_t s;
    bool over;
    switch (i->op) {
    case OP_s_add_u32: return set(w, i, a + b, (uint64_t)a + b > UINT32_MAX);
    case OP_s_addc_u32: return set(w, i, a + b + carry, (uint64_t)a + b + carry > UINT32_MAX);
    case OP_s_sub_u32: return set(w, i, a - b, a < b);
    case OP_s_subb_u32: return set(w, i, a - b - carry, (uint64_t)a < (uint64_t)b + carry);
    case OP_s_add_i32: over = __builtin_add_overflow(sa, sb, &s); return set(w, i, (uint32_t)s, over);
    case OP_s_sub_i32: over = __builtin_sub_overflow(sa, sb, &s); return set(w, i, (uint32_t)s, over);
    case OP_s_absdiff_i32: s = (int32_t)(sa < sb ? b - a : a - b); return set(w, i, (uint32_t)s, s != 0);
    case OP_s_lshl1_add_u32: return set(w, i, (a << 1) + b, ((uint64_t)a << 1) + b > UINT32_MAX);
    case OP_s_lshl2_add_u32: return set(w, i, (a << 2) + b, ((uint64_t)a << 2) + b > UINT32_MAX);
    case OP_s_lshl3_add_u32: return set(w, i, (a << 3) + b, ((uint64_t)a << 3) + b > UINT32_MAX);
    case OP_s_lshl4_add_u32: return set(w, i, (a << 4) + b, ((uint64_t)a << 4) + b > UINT32_MAX);
    case OP_s_min_i32: return set(w, i, sa < sb ? a : b, sa < sb);
    case OP_s_max_i32: return set(w, i, sa > sb ? a : b, sa > sb);
    case OP_s_min_u32: return set(w, i, a < b ? a : b, a < b);
    case OP_s_max_u32: return set(w, i, a > b ? a : b, a > b);
    case OP_s_mul_i32: return keep(w, i, a * b);
    case OP_s_mul_hi_u32: return keep(w, i, (uint64_t)a * b >> 32);
    case OP_s_mul_hi_i32: return keep(w, i, (uint64_t)((int64_t)sa * sb) >> 32);
    case OP_s_bfm_b32: return keep(w, i, ((1u << (a & 31)) - 1) << (b & 31));
    case OP_s_bfm_b64: return keep(w, i, ((UINT64_C(1) << (a & 63)) - 1) << (b & 63));
    case BOTH(s_cselect): return keep(w, i, w->scc ? wa : wb);
    case OP_s_pack_ll_b32_b16: return keep(w, i, (a & 0xffff) | b << 16);
    case OP_s_pack_lh_b32_b16: return keep(w, i, (a & 0xffff) | (b & 0xffff0000));
    case OP_s_pack_hh_b32_b16: return keep(w, i, a >> 16 | (b & 0xffff0000));
    case OP_s_pack_hl_b32_b16: return keep(w, i, a >> 16 | b << 16);
    default: return false;
    }
}

/* ---- floats (gfx1150 and later) -------------------------------------------------------------- */

static float float_of(const gfx_wave *w, const gfx_insn *i, int n)
{
    const uint32_t x = n < i->n_src ? (uint32_t)gfx_scalar(w, &i->src[n], false) : 0;
    float f;
    memcpy(&f, &x, 4);
    return f;
}

static bool put_float(gfx_wave *w, const gfx_insn *i, float f)
{
    uint32_t x;
    memcpy(&x, &f, 4);
    return keep(w, i, x);
}

static bool try_float_compare(gfx_wave *w, const gfx_insn *i, float x, float y)
{
    switch (i->op) {
    case OP_s_cmp_lt_f32: w->scc = x < y; break;
    case OP_s_cmp_eq_f32: w->scc = x == y; break;
    case OP_s_cmp_le_f32: w->scc = x <= y; break;
    case OP_s_cmp_gt_f32: w->scc = x > y; break;
    case OP_s_cmp_lg_f32: w->scc = x < y || x > y; break;
    case OP_s_cmp_ge_f32: w->scc = x >= y; break;
    case OP_s_cmp_o_f32: w->scc = x == x && y == y; break;
    case OP_s_cmp_u_f32: w->scc = x != x || y != y; break;
    case OP_s_cmp_nge_f32: w->scc = !(x >= y); break;
    case OP_s_cmp_nlg_f32: w->scc = !(x < y || x > y); break;
    case OP_s_cmp_ngt_f32: w->scc = !(x > y); break;
    case OP_s_cmp_nle_f32: w->scc = !(x <= y); break;
    case OP_s_cmp_neq_f32: w->scc = x != y; break;
    case OP_s_cmp_nlt_f32: w->scc = !(x < y); break;
    default: return false;
    }
    return true;
}

static bool try_float(gfx_wave *w, const gfx_insn *i)
{
    const float x = float_of(w, i, 0), y = float_of(w, i, 1), z = float_of(w, i, 2);
    const uint32_t bits = (uint32_t)gfx_scalar(w, &i->src[0], false);
    switch (i->op) {
    case OP_s_ceil_f32: return put_float(w, i, ceilf(x));
    case OP_s_floor_f32: return put_float(w, i, floorf(x));
    case OP_s_trunc_f32: return put_float(w, i, truncf(x));
    case OP_s_rndne_f32: return put_float(w, i, rintf(x));
    case OP_s_cvt_f32_i32: return put_float(w, i, (float)(int32_t)bits);
    case OP_s_cvt_f32_u32: return put_float(w, i, (float)bits);
    case OP_s_cvt_i32_f32: return keep(w, i, (uint32_t)(x != x ? 0 : x >= 2147483648.0f ? INT32_MAX : x <= -2147483648.0f ? INT32_MIN : (int32_t)x));
    case OP_s_cvt_u32_f32: return keep(w, i, x >= 4294967296.0f ? UINT32_MAX : x > 0 ? (uint32_t)x : 0);
    case OP_s_cvt_f16_f32: return keep(w, i, gfx_f32_to_f16(x));
    case OP_s_cvt_f32_f16: return put_float(w, i, gfx_f16_to_f32(bits & 0xffff));
    case OP_s_add_f32: return put_float(w, i, x + y);
    case OP_s_sub_f32: return put_float(w, i, x - y);
    case OP_s_mul_f32: return put_float(w, i, x * y);
    case OP_s_min_f32: return put_float(w, i, fminf(x, y));
    case OP_s_max_f32: return put_float(w, i, fmaxf(x, y));
    case OP_s_fmaak_f32:
    case OP_s_fmac_f32: return put_float(w, i, fmaf(x, y, z));
    case OP_s_fmamk_f32: return put_float(w, i, fmaf(x, z, y));
    default: return try_float_compare(w, i, x, y);
    }
}

bool gfx_salu(gfx_wave *w, const gfx_insn *i)
{
    if (try_compare(w, i) || try_logic(w, i)) return true;
    if (i->n_src < 2 ? try_one(w, i) : try_shift(w, i) || try_two(w, i)) return true;
    if (try_float(w, i)) return true;
    return gfx_fail(w->group, "a scalar instruction that is not implemented");
}
