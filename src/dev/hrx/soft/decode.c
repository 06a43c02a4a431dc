/* Machine code to gfx_insn. Field positions: the public "RDNA3.5 Instruction Set Architecture" guide. Compilers leave
 * anything in fields that an instruction does not use, so only used ones are looked at. */
#include "dev/hrx/soft/gfx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOP2 GFX_SOP2
#define SOP1 GFX_SOP1
#define SOPK GFX_SOPK
#define SOPC GFX_SOPC
#define SOPP GFX_SOPP
#define SMEM GFX_SMEM
#define VOP2 GFX_VOP2
#define VOP1 GFX_VOP1
#define VOPC GFX_VOPC
#define VOP3 GFX_VOP3
#define VOP3P GFX_VOP3P
#define DS GFX_DS
#define FLAT GFX_FLAT
#define MUBUF GFX_MUBUF
const gfx_op_info gfx_ops[GFX_N_OPS] = {
#define OP(name, enc, code, cls, operands) [OP_##name] = {#name, operands, code, enc, GFX_##cls},
#include "dev/hrx/soft/gfx_ops.def"
#undef OP
};
#undef SOP2
#undef SOP1
#undef SOPK
#undef SOPC
#undef SOPP
#undef SMEM
#undef VOP2
#undef VOP1
#undef VOPC
#undef VOP3
#undef VOP3P
#undef DS
#undef FLAT
#undef MUBUF

typedef struct decoder {
    gfx_kernel *k;
    uint32_t at;
    uint32_t w[4]; /* the instruction's words; 0 past the end */
    uint32_t n_left;
    char *why;
} decoder;

static bool fail(decoder *d, const char *what)
{
    snprintf(d->why, GFX_TEXT, "%.64s at +%#x: %s (%08x %08x)", d->k->name, d->at, what, d->w[0], d->w[1]);
    return false;
}

static uint32_t bits(uint32_t w, int at, int n) { return w >> at & ((1u << n) - 1); }

static int find_op(gfx_enc enc, uint32_t code)
{
    for (int i = 0; i < GFX_N_OPS; i++)
        if (gfx_ops[i].enc == enc && gfx_ops[i].code == code) return i;
    return -1;
}

/* VOP3 also holds the instructions of the short encodings. */
static int find_vop3(uint32_t code)
{
    const int own = find_op(GFX_VOP3, code);
    if (own >= 0) return own;
    if (code < 0x100) return find_op(GFX_VOPC, code);
    if (code < 0x180) return find_op(GFX_VOP2, code - 0x100);
    if (code < 0x200) return find_op(GFX_VOP1, code - 0x180);
    return -1;
}

/* ---- sources --------------------------------------------------------------------------------- */

static int type_regs(char t)
{
    return t == 'D' || t == 'Q' || t == 'L' || t == 'd' ? 2 : t >= '2' && t <= '8' ? t - '0' : 1;
}
static bool is_half(char t) { return t == 'h' || t == 'w' || t == 'k'; }
static bool is_wide(char t) { return t == 'D' || t == 'Q' || t == 'L' || t == 'd'; }

static uint64_t inline_float(uint32_t code, char type)
{
    static const double v[9] = {0.5, -0.5, 1, -1, 2, -2, 4, -4, 0.15915494309189532};
    const double x = v[code - 240];
    const float f = (float)x;
    uint32_t w;
    uint64_t q;
    memcpy(&w, &f, 4);
    memcpy(&q, &x, 8);
    return is_half(type) ? gfx_f32_to_f16(f) : type == 'D' ? q : w;
}

/* A 9-bit source; literal: the word that follows. False when it cannot be used. */
static bool source(decoder *d, gfx_src *s, uint32_t code, char type, uint32_t literal)
{
    *s = (gfx_src){.type = (uint8_t)type};
    if (code >= 256) {
        s->kind = GFX_K_VGPR;
        s->reg = (uint8_t)(code - 256);
    } else if (code < 108 || (code >= 124 && code < 128)) {
        s->kind = GFX_K_SGPR;
        s->reg = (uint8_t)code;
    } else if (code >= 128 && code <= 208) {
        s->kind = GFX_K_CONST;
        s->value = (uint64_t)(int64_t)(code <= 192 ? (int)code - 128 : 192 - (int)code);
        if (!is_wide(type)) s->value &= 0xffffffff;
    } else if (code >= 240 && code <= 248) {
        s->kind = GFX_K_CONST;
        s->value = inline_float(code, type);
    } else if (code == 255) {
        s->kind = GFX_K_CONST;
        s->value = type == 'D' ? (uint64_t)literal << 32 : type == 'L' ? (uint64_t)(int64_t)(int32_t)literal : literal;
    } else if (code >= 251 && code <= 253) {
        s->kind = code == 251 ? GFX_K_VCCZ : code == 252 ? GFX_K_EXECZ : GFX_K_SCC;
    } else {
        return fail(d, "a source operand that is not known");
    }
    return true;
}

static void set_add(gfx_set *set, uint8_t kind, int reg, int n)
{
    for (; n > 0 && reg < 256; n--, reg++)
        if (kind == GFX_K_VGPR) set->v[reg >> 6] |= UINT64_C(1) << (reg & 63);
        else if (kind == GFX_K_SGPR && reg < GFX_N_SGPR) set->s[reg >> 6] |= UINT64_C(1) << (reg & 63);
}

static void need_vgprs(decoder *d, int last)
{
    if ((uint32_t)last + 1 > d->k->vgprs) d->k->vgprs = (uint32_t)last + 1;
}

static void note_sources(decoder *d, gfx_insn *i)
{
    for (int n = 0; n < i->n_src; n++) {
        const gfx_src *s = &i->src[n];
        const int regs = type_regs((char)s->type);
        set_add(&i->reads, s->kind, s->reg, regs);
        if (s->kind == GFX_K_VGPR) need_vgprs(d, s->reg + regs - 1);
    }
}

static void note_vdst(decoder *d, gfx_insn *i, int reg, int regs)
{
    set_add(&i->writes, GFX_K_VGPR, reg, regs);
    need_vgprs(d, reg + regs - 1);
}

/* Constants of a vector instruction, one row of lanes each (two for a wide one), modifiers applied. */
static bool broadcast(decoder *d, gfx_insn *i)
{
    gfx_kernel *k = d->k;
    i->constant = -1;
    bool any = false;
    for (int n = 0; n < i->n_src; n++) any |= i->src[n].kind == GFX_K_CONST;
    if (!any) return true;
    const int32_t first = k->n_constants, rows = 2 * i->n_src;
    uint32_t *grown = realloc(k->constants, (size_t)(first + rows) * GFX_LANES * sizeof *grown);
    if (!grown) return fail(d, "no memory");
    k->constants = grown;
    k->n_constants += rows;
    i->constant = first;
    for (int n = 0; n < i->n_src; n++) {
        const gfx_src *s = &i->src[n];
        uint64_t v = s->kind == GFX_K_CONST ? s->value : 0;
        const int sign = s->type == 'D' ? 63 : is_half((char)s->type) ? 15 : 31;
        if (s->abs) v &= ~(UINT64_C(1) << sign);
        if (s->neg) v ^= UINT64_C(1) << sign;
        for (int l = 0; l < GFX_LANES; l++) {
            grown[(first + 2 * n) * GFX_LANES + l] = (uint32_t)v;
            grown[(first + 2 * n + 1) * GFX_LANES + l] = (uint32_t)(v >> 32);
        }
    }
    return true;
}

/* ---- DPP ------------------------------------------------------------------------------------- */

static bool new_dpp(decoder *d, gfx_insn *i, gfx_dpp **out)
{
    gfx_dpp *grown = realloc(d->k->dpps, (size_t)(d->k->n_dpps + 1) * sizeof *grown);
    if (!grown) return fail(d, "no memory");
    d->k->dpps = grown;
    i->dpp = d->k->n_dpps++;
    *out = &grown[i->dpp];
    **out = (gfx_dpp){.on = true, .keep = ~0u, .valid = ~0u};
    return true;
}

static bool dpp8(decoder *d, gfx_insn *i, uint32_t word, bool inactive)
{
    gfx_dpp *p = NULL;
    if (!new_dpp(d, i, &p)) return false;
    p->bound = true;
    p->inactive = inactive;
    for (int l = 0; l < GFX_LANES; l++) p->from[l] = (uint8_t)((l & ~7) | (int)bits(word, 8 + 3 * (l & 7), 3));
    return true;
}

static bool dpp16(decoder *d, gfx_insn *i, uint32_t word)
{
    gfx_dpp *p = NULL;
    if (!new_dpp(d, i, &p)) return false;
    const uint32_t ctrl = bits(word, 8, 9), bank = bits(word, 24, 4), row = bits(word, 28, 4);
    p->inactive = bits(word, 18, 1);
    p->bound = bits(word, 19, 1);
    for (int l = 0; l < GFX_LANES; l++) {
        const int r = l & 15, n = (int)(ctrl & 15);
        int pos = r;
        bool ok = true;
        if (ctrl < 0x100) pos = (r & ~3) | (int)bits(ctrl, 2 * (l & 3), 2);
        else if (ctrl > 0x100 && ctrl < 0x110) ok = (pos = r + n) < 16;
        else if (ctrl > 0x110 && ctrl < 0x120) ok = (pos = r - n) >= 0;
        else if (ctrl > 0x120 && ctrl < 0x130) pos = (r - n) & 15;
        else if (ctrl == 0x140) pos = 15 - r;
        else if (ctrl == 0x141) pos = r ^ 7;
        else if (ctrl >= 0x150 && ctrl < 0x160) pos = n;
        else if (ctrl >= 0x160 && ctrl < 0x170) pos = r ^ n;
        else return fail(d, "a DPP form that is not known");
        p->from[l] = (uint8_t)((l & 16) | (ok ? pos : 0));
        if (!ok) p->valid &= ~(1u << l);
        if (!(row >> (l >> 4) & 1) || !(bank >> (l >> 2 & 3) & 1)) p->keep &= ~(1u << l);
    }
    return true;
}

/* ---- vector instructions --------------------------------------------------------------------- */

/* What a vector instruction's fields say, whatever the encoding. */
typedef struct fields {
    uint32_t src[3], n_bytes, literal, dst, sdst, abs, neg;
    bool shorter; /* VOP1, VOP2, VOPC: 16-bit registers carry their half in bit 7 */
} fields;

static bool takes_modifiers(char t) { return t == 'f' || t == 'u' || t == 'h' || t == 'D' || t == 'i' || t == 'w'; }

static bool vector_sources(decoder *d, gfx_insn *i, const fields *f, const char *types)
{
    int field = 0;
    for (const char *t = types; *t; t++) {
        gfx_src *s = &i->src[i->n_src];
        const int n = i->n_src;
        const bool implied = (*t == 'V') || (*t == 'M' && f->shorter);
        if (implied) *s = (gfx_src){.kind = GFX_K_SGPR, .reg = GFX_VCC, .type = 'M'};
        else if (!source(d, s, f->src[field++], *t, f->literal)) return false;
        i->n_src++;
        if (implied || *t == 'M' || *t == 'S') continue;
        if (i->cls == GFX_PACKED && s->kind == GFX_K_CONST && f->src[n] >= 240 && f->src[n] <= 248 &&
            strstr(gfx_ops[i->op].name, "16"))
            s->value = inline_float(f->src[n], 'h');
        if (takes_modifiers(*t) && i->enc != GFX_VOP3P) {
            s->abs = f->abs >> n & 1;
            s->neg = f->neg >> n & 1;
        }
        if (is_half(*t) && s->kind == GFX_K_VGPR) {
            s->half = f->shorter ? s->reg >> 7 : i->op_sel >> n & 1;
            if (f->shorter) s->reg &= 127;
        }
    }
    return true;
}

static bool vector_operands(decoder *d, gfx_insn *i, fields *f)
{
    const char *o = gfx_ops[i->op].operands, *eq = strchr(o, '=');
    if (!eq) return true; /* v_nop */
    i->n_bytes = (uint8_t)f->n_bytes;
    char sources[8];
    snprintf(sources, sizeof sources, "%s", eq + 1);
    const bool accumulates = i->op == OP_v_fmac_f32 || i->op == OP_v_fmac_f16 || i->op == OP_v_dot2acc_f32_f16;
    if (accumulates) f->src[2] = 256 + f->dst;
    if (!vector_sources(d, i, f, sources)) return false;
    i->dst = (uint8_t)f->dst;
    i->dst_type = (uint8_t)o[0];
    if (is_half(o[0])) {
        i->dst_half = f->shorter ? f->dst >> 7 & 1 : i->cls == GFX_MIX ? i->op == OP_v_fma_mixhi_f16 : i->op_sel >> 3 & 1;
        if (f->shorter) i->dst &= 127;
        if (accumulates) i->src[2].half = i->dst_half;
        set_add(&i->reads, GFX_K_VGPR, i->dst, 1); /* the other half stays */
    }
    if (o[0] == 'M') {
        i->sdst = i->cls == GFX_CMPX ? GFX_EXEC : (uint8_t)f->sdst;
        i->dst_type = 0;
    } else if (o[0] == 'S') {
        set_add(&i->writes, GFX_K_SGPR, i->dst, 1);
    } else {
        note_vdst(d, i, i->dst, type_regs(o[0]));
    }
    if (o[1] == 'M' || o[0] == 'M') {
        if (o[1] == 'M') i->sdst = (uint8_t)f->sdst;
        set_add(&i->writes, GFX_K_SGPR, i->sdst, 1);
    }
    note_sources(d, i);
    if (i->op == OP_v_swap_b32) set_add(&i->writes, GFX_K_VGPR, i->src[0].reg, 1), set_add(&i->reads, GFX_K_VGPR, i->dst, 1);
    if (i->op == OP_v_writelane_b32) set_add(&i->reads, GFX_K_VGPR, i->dst, 1);
    return broadcast(d, i);
}

/* Source 0 of a short form may stand for a literal or a lane exchange in the next word. */
static bool short_source(decoder *d, gfx_insn *i, fields *f)
{
    const uint32_t word = d->w[f->n_bytes / 4];
    if (f->src[0] == 255 || f->src[0] == 250 || f->src[0] == 233 || f->src[0] == 234) f->n_bytes += 4;
    f->literal = word;
    if (f->src[0] == 250) {
        f->src[0] = 256 + bits(word, 0, 8);
        if (f->shorter) {
            f->neg = bits(word, 20, 1) | bits(word, 22, 1) << 1;
            f->abs = bits(word, 21, 1) | bits(word, 23, 1) << 1;
        }
        return dpp16(d, i, word);
    }
    if (f->src[0] == 233 || f->src[0] == 234) {
        const bool inactive = f->src[0] == 234;
        f->src[0] = 256 + bits(word, 0, 8);
        return dpp8(d, i, word, inactive);
    }
    return true;
}

static bool decode_short(decoder *d, gfx_insn *i)
{
    const uint32_t w = d->w[0];
    fields f = {.src = {bits(w, 0, 9)}, .n_bytes = 4, .sdst = GFX_VCC, .shorter = true};
    if (i->enc == GFX_VOP1) {
        f.dst = bits(w, 17, 8);
    } else {
        f.src[1] = 256 + bits(w, 9, 8);
        f.dst = i->enc == GFX_VOP2 ? bits(w, 17, 8) : 0;
    }
    if (i->op == OP_v_fmamk_f32 || i->op == OP_v_fmaak_f32) {
        const bool mk = i->op == OP_v_fmamk_f32;
        f.literal = d->w[1];
        f.n_bytes = 8;
        f.src[2] = mk ? f.src[1] : 255;
        if (mk) f.src[1] = 255;
    } else if (!short_source(d, i, &f)) {
        return false;
    }
    return vector_operands(d, i, &f);
}

static bool decode_vop3(decoder *d, gfx_insn *i)
{
    const uint32_t w = d->w[0], v = d->w[1];
    const char *o = gfx_ops[i->op].operands;
    fields f = {.src = {bits(v, 0, 9), bits(v, 9, 9), bits(v, 18, 9)}, .n_bytes = 8, .dst = bits(w, 0, 8)};
    i->clamp = bits(w, 15, 1);
    f.neg = bits(v, 29, 3);
    if (i->enc == GFX_VOP3P) {
        i->op_sel = (uint8_t)bits(w, 11, 3);
        i->op_sel_hi = (uint8_t)(bits(v, 27, 2) | bits(w, 14, 1) << 2);
        i->neg_lo = (uint8_t)f.neg;
        i->neg_hi = (uint8_t)bits(w, 8, 3);
        f.neg = 0;
    } else {
        i->omod = (uint8_t)bits(v, 27, 2);
        if (o[0] && o[1] == 'M') {
            f.sdst = bits(w, 8, 7);
        } else {
            f.abs = bits(w, 8, 3);
            i->op_sel = (uint8_t)bits(w, 11, 4);
        }
        if (o[0] == 'M') f.sdst = f.dst;
    }
    const int n = o[0] ? (int)strlen(strchr(o, '=') + 1) : 0;
    bool literal = false;
    for (int s = 0; s < n && s < 3; s++) literal |= f.src[s] == 255;
    if (f.src[0] == 250 || f.src[0] == 233 || f.src[0] == 234) {
        if (!short_source(d, i, &f)) return false;
    } else if (literal) {
        f.literal = d->w[2];
        f.n_bytes = 12;
    }
    return vector_operands(d, i, &f);
}

/* ---- dual issue ------------------------------------------------------------------------------ */

static const int16_t k_dual[19] = {OP_v_fmac_f32, OP_v_fmaak_f32, OP_v_fmamk_f32, OP_v_mul_f32, OP_v_add_f32, OP_v_sub_f32,
    OP_v_subrev_f32, OP_v_mul_dx9_zero_f32, OP_v_mov_b32, OP_v_cndmask_b32, OP_v_max_f32, OP_v_min_f32,
    OP_v_dot2acc_f32_f16, -1, -1, -1, OP_v_add_nc_u32, OP_v_lshlrev_b32, OP_v_and_b32};

static bool dual_half(decoder *d, gfx_insn *i, uint32_t code, uint32_t src0, uint32_t src1, uint32_t dst, bool *literal)
{
    if (code >= 19 || k_dual[code] < 0) return fail(d, "a dual instruction that is not known");
    *i = (gfx_insn){.op = (uint16_t)k_dual[code], .enc = GFX_VOPD, .cls = GFX_VALU, .at = d->at, .dual = -1, .constant = -1, .dpp = -1};
    fields f = {.src = {src0, 256 + src1}, .dst = dst, .literal = d->w[2], .sdst = GFX_VCC, .shorter = true, .n_bytes = 8};
    *literal |= src0 == 255;
    if (i->op == OP_v_fmamk_f32 || i->op == OP_v_fmaak_f32) {
        const bool mk = i->op == OP_v_fmamk_f32;
        f.src[2] = mk ? f.src[1] : 255;
        if (mk) f.src[1] = 255;
        *literal = true;
    }
    return vector_operands(d, i, &f);
}

static bool decode_dual(decoder *d, gfx_insn *x, gfx_insn *y)
{
    const uint32_t w = d->w[0], v = d->w[1], dst_x = bits(v, 24, 8), dst_y = bits(v, 17, 7) << 1 | (~dst_x & 1);
    bool literal = false;
    if (!dual_half(d, x, bits(w, 22, 4), bits(w, 0, 9), bits(w, 9, 8), dst_x, &literal)) return false;
    if (!dual_half(d, y, bits(w, 17, 5), bits(v, 0, 9), bits(v, 9, 8), dst_y, &literal)) return false;
    x->n_bytes = literal ? 12 : 8;
    for (int n = 0; n < 4; n++) x->reads.v[n] |= y->reads.v[n], x->writes.v[n] |= y->writes.v[n];
    for (int n = 0; n < 2; n++) x->reads.s[n] |= y->reads.s[n];
    return true;
}

/* ---- scalar instructions --------------------------------------------------------------------- */

static bool decode_scalar(decoder *d, gfx_insn *i)
{
    const uint32_t w = d->w[0];
    const char *o = gfx_ops[i->op].operands, *eq = strchr(o, '=');
    i->imm = (int16_t)(w & 0xffff);
    i->n_bytes = 4;
    if (!eq) return true;
    i->dst = (uint8_t)bits(w, 16, 7);
    if (eq > o) {
        i->dst_type = (uint8_t)o[0];
        set_add(&i->writes, GFX_K_SGPR, i->dst, type_regs(o[0]));
    }
    if (i->enc == GFX_SOPK) {
        if (i->op != OP_s_movk_i32) { /* compares, additions and the like also read it */
            if (!source(d, &i->src[i->n_src++], i->dst, 's', 0)) return false;
        }
        note_sources(d, i);
        return true;
    }
    const uint32_t src[2] = {bits(w, 0, 8), bits(w, 8, 8)};
    for (int n = 0; eq[1 + n]; n++) {
        if (src[n] == 255) i->n_bytes = 8;
        if (!source(d, &i->src[i->n_src++], src[n], eq[1 + n], d->w[1])) return false;
    }
    if (i->op == OP_s_fmaak_f32 || i->op == OP_s_fmamk_f32) {
        i->n_bytes = 8;
        if (!source(d, &i->src[i->n_src++], 255, 's', d->w[1])) return false;
    } else if (i->op == OP_s_fmac_f32) {
        if (!source(d, &i->src[i->n_src++], i->dst, 's', 0)) return false;
    }
    note_sources(d, i);
    return true;
}

static bool decode_smem(decoder *d, gfx_insn *i)
{
    const uint32_t w = d->w[0], v = d->w[1];
    const int n = atoi(gfx_ops[i->op].operands);
    i->n_bytes = 8;
    if (i->cls == GFX_NONE) return true;
    i->width = (uint8_t)(4 * n);
    i->dst = (uint8_t)bits(w, 6, 7);
    i->imm = (int32_t)(v << 11) >> 11;
    if (!source(d, &i->src[0], bits(w, 0, 6) * 2, 'd', 0) || !source(d, &i->src[1], bits(v, 25, 7), 's', 0)) return false;
    i->n_src = 2;
    note_sources(d, i);
    set_add(&i->writes, GFX_K_SGPR, i->dst, n);
    return true;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void access_of(gfx_insn *i)
{
    const char *o = gfx_ops[i->op].operands;
    if (*o == '2') {
        i->pair = 1;
        o++;
    }
    i->access = *o;
    if (*o == 'A' || *o == 'R') {
        i->what = o[1];
        i->sign = o[2];
        i->width = 4;
    } else if (*o == 'L' || *o == 'S') {
        char *end;
        i->width = (uint8_t)strtol(o + 1, &end, 10);
        if (i->pair) i->stride64 = *end == 's';
        else if (*end) {
            i->sign = *end;
            i->part = end[1];
        }
    }
}

/* Sources in order: address, data, second data; the result's registers. */
static void memory_sets(decoder *d, gfx_insn *i, int addr, int addr_regs, int data, int data2, bool loads)
{
    const int regs = (i->width + 3) / 4;
    set_add(&i->reads, GFX_K_VGPR, addr, addr_regs);
    need_vgprs(d, addr + addr_regs - 1);
    if (i->access == 'S' || i->access == 'A' || i->access == 'R') {
        const int n = i->what == 'c' ? 2 : regs;
        set_add(&i->reads, GFX_K_VGPR, data, n);
        need_vgprs(d, data + n - 1);
        if (data2 >= 0) {
            set_add(&i->reads, GFX_K_VGPR, data2, regs);
            need_vgprs(d, data2 + regs - 1);
        }
    }
    if (!loads) return;
    note_vdst(d, i, i->dst, regs * (i->pair ? 2 : 1));
    if (i->part) set_add(&i->reads, GFX_K_VGPR, i->dst, 1);
}

static bool decode_flat(decoder *d, gfx_insn *i)
{
    const uint32_t w = d->w[0], v = d->w[1], base = bits(v, 16, 7), seg = bits(w, 16, 2);
    if (seg == 1) return fail(d, "scratch memory");
    i->n_bytes = 8;
    access_of(i);
    i->imm = seg ? (int32_t)(w << 19) >> 19 : (int32_t)bits(w, 0, 13);
    i->glc = bits(w, 14, 1);
    i->dst = (uint8_t)bits(v, 24, 8);
    i->src[0] = (gfx_src){.kind = GFX_K_VGPR, .reg = (uint8_t)bits(v, 0, 8)};
    i->src[1] = (gfx_src){.kind = GFX_K_VGPR, .reg = (uint8_t)bits(v, 8, 8)};
    i->has_base = seg && base != GFX_NULL;
    i->src[2] = (gfx_src){.kind = GFX_K_SGPR, .reg = (uint8_t)base};
    if (i->has_base) set_add(&i->reads, GFX_K_SGPR, (int)base, 2);
    memory_sets(d, i, i->src[0].reg, i->has_base ? 1 : 2, i->src[1].reg, -1, i->access == 'L' || (i->access == 'A' && i->glc));
    return true;
}

static bool decode_buffer(decoder *d, gfx_insn *i)
{
    const uint32_t w = d->w[0], v = d->w[1];
    i->n_bytes = 8;
    if (i->cls == GFX_NONE) return true;
    access_of(i);
    i->imm = (int32_t)bits(w, 0, 12);
    i->glc = bits(w, 14, 1);
    i->offen = bits(v, 22, 1);
    i->idxen = bits(v, 23, 1);
    if (bits(v, 21, 1)) return fail(d, "a buffer access with tfe");
    i->dst = (uint8_t)bits(v, 8, 8);
    i->src[0] = (gfx_src){.kind = GFX_K_VGPR, .reg = (uint8_t)bits(v, 0, 8)};
    i->src[1] = (gfx_src){.kind = GFX_K_VGPR, .reg = i->dst};
    i->src[2] = (gfx_src){.kind = GFX_K_SGPR, .reg = (uint8_t)(bits(v, 16, 5) * 4)};
    set_add(&i->reads, GFX_K_SGPR, i->src[2].reg, 4);
    if (!source(d, &i->src[3], bits(v, 24, 8), 's', 0)) return false;
    if (i->src[3].kind == GFX_K_SGPR) set_add(&i->reads, GFX_K_SGPR, i->src[3].reg, 1);
    memory_sets(d, i, i->src[0].reg, i->offen + i->idxen, i->src[1].reg, -1, i->access == 'L' || (i->access == 'A' && i->glc));
    return true;
}

static bool decode_ds(decoder *d, gfx_insn *i)
{
    const uint32_t w = d->w[0], v = d->w[1];
    i->n_bytes = 8;
    access_of(i);
    if (bits(w, 17, 1)) return fail(d, "global data share");
    i->dst = (uint8_t)bits(v, 24, 8);
    i->imm = i->pair ? (int32_t)bits(w, 0, 8) : (int32_t)bits(w, 0, 16);
    i->imm2 = (uint8_t)bits(w, 8, 8);
    for (int n = 0; n < 3; n++) i->src[n] = (gfx_src){.kind = GFX_K_VGPR, .reg = (uint8_t)bits(v, 8 * n, 8)};
    const bool exchange = strchr("bpw", i->access) != NULL;
    if (exchange) i->width = 4;
    if (exchange && i->access != 'w') {
        set_add(&i->reads, GFX_K_VGPR, i->src[1].reg, 1);
        need_vgprs(d, i->src[1].reg);
    }
    const bool second = i->what == 'd' || (i->pair && i->access == 'S');
    memory_sets(d, i, i->src[0].reg, 1, i->src[1].reg, second ? i->src[2].reg : -1, i->access == 'L' || i->access == 'R' || exchange);
    return true;
}

/* ---- one instruction ------------------------------------------------------------------------- */

/* Encoding and operation from the first word; GFX_VOPD has no operation of its own. */
static bool classify(decoder *d, gfx_insn *i)
{
    const uint32_t w = d->w[0];
    int op;
    if (w >> 26 == 0x32) {
        i->enc = GFX_VOPD;
        return true;
    }
    if (w >> 23 == 0x17d) op = find_op(GFX_SOP1, bits(w, 8, 8));
    else if (w >> 23 == 0x17e) op = find_op(GFX_SOPC, bits(w, 16, 7));
    else if (w >> 23 == 0x17f) op = find_op(GFX_SOPP, bits(w, 16, 7));
    else if (w >> 28 == 0xb) op = find_op(GFX_SOPK, bits(w, 23, 5));
    else if (w >> 30 == 2) op = find_op(GFX_SOP2, bits(w, 23, 7));
    else if (w >> 26 == 0x3d) op = find_op(GFX_SMEM, bits(w, 18, 8));
    else if (w >> 25 == 0x3f) op = find_op(GFX_VOP1, bits(w, 9, 8));
    else if (w >> 25 == 0x3e) op = find_op(GFX_VOPC, bits(w, 17, 8));
    else if (w >> 31 == 0) op = find_op(GFX_VOP2, bits(w, 25, 6));
    else if (w >> 26 == 0x35) op = find_vop3(bits(w, 16, 10));
    else if (w >> 24 == 0xcc) op = find_op(GFX_VOP3P, bits(w, 16, 7));
    else if (w >> 26 == 0x36) op = find_op(GFX_DS, bits(w, 18, 8));
    else if (w >> 26 == 0x37) op = find_op(GFX_FLAT, bits(w, 18, 7));
    else if (w >> 26 == 0x38) op = find_op(GFX_MUBUF, bits(w, 18, 8));
    else op = -1;
    if (op < 0) return fail(d, "an instruction that is not known");
    i->op = (uint16_t)op;
    i->enc = w >> 26 == 0x35 ? GFX_VOP3 : gfx_ops[op].enc;
    i->cls = gfx_ops[op].cls;
    return true;
}

static bool decode_one(decoder *d, gfx_insn *i, gfx_insn *second)
{
    *i = (gfx_insn){.at = d->at, .dual = -1, .constant = -1, .dpp = -1};
    *second = *i;
    if (!classify(d, i)) return false;
    switch (i->enc) {
    case GFX_VOPD: return decode_dual(d, i, second);
    case GFX_VOP1:
    case GFX_VOP2:
    case GFX_VOPC:
        i->n_bytes = 4;
        return decode_short(d, i);
    case GFX_VOP3:
    case GFX_VOP3P:
        i->n_bytes = 8;
        return decode_vop3(d, i);
    case GFX_SMEM: return decode_smem(d, i);
    case GFX_DS: return decode_ds(d, i);
    case GFX_FLAT: return decode_flat(d, i);
    case GFX_MUBUF: return decode_buffer(d, i);
    default: return decode_scalar(d, i);
    }
}

static bool link_branches(decoder *d, const int32_t *index_of)
{
    gfx_kernel *k = d->k;
    for (int32_t n = 0; n < k->n_insns; n++) {
        gfx_insn *i = &k->insns[n];
        if (i->cls != GFX_BRANCH) continue;
        const int64_t to = (int64_t)i->at + 4 + 4 * (int64_t)i->imm;
        d->at = i->at;
        if (to < 0 || to >= k->code_bytes || index_of[to / 4] < 0) return fail(d, "a branch to no instruction");
        i->target = index_of[to / 4];
    }
    return true;
}

static void fetch(decoder *d)
{
    d->n_left = (d->k->code_bytes - d->at) / 4;
    for (uint32_t n = 0; n < 4; n++) {
        d->w[n] = 0;
        if (n < d->n_left) memcpy(&d->w[n], d->k->code + d->at + 4 * n, 4);
    }
}

/* Nothing runs past the last instruction. */
static bool ends(const gfx_kernel *k)
{
    if (!k->n_insns) return false;
    const gfx_insn *i = &k->insns[k->n_insns - 1];
    return i->cls == GFX_END || i->op == OP_s_branch || i->op == OP_s_code_end;
}

/* What would else be looked up each time it runs. */
static void look_up(gfx_insn *i)
{
    const char *operands = gfx_ops[i->op].operands;
    i->writes_mask = operands[0] && operands[1] == 'M';
    i->descriptor = i->cls == GFX_SCALAR_LOAD && strstr(gfx_ops[i->op].name, "buffer");
    for (int n = 0; n < i->n_src; n++) {
        gfx_src *s = &i->src[n];
        s->plain = s->kind == GFX_K_VGPR && !is_half((char)s->type) && !s->neg && !s->abs && !(i->dpp >= 0 && n == 0);
    }
}

/* What no access to LDS is smaller than is what its shadow needs to know apart. */
static uint8_t lds_shift(const gfx_kernel *k)
{
    uint8_t shift = 2;
    for (int32_t n = 0; n < k->n_insns; n++)
        if (k->insns[n].cls == GFX_LDS && k->insns[n].width < 4) shift = k->insns[n].width < 2 || shift == 0 ? 0 : 1;
    return shift;
}

bool gfx_decode(gfx_kernel *k, char why[GFX_TEXT])
{
    if (k->insns) return true;
    const uint32_t words = k->code_bytes / 4;
    int32_t *index_of = malloc(((size_t)words + 1) * sizeof *index_of);
    k->insns = calloc((size_t)words * 2 + 1, sizeof *k->insns);
    decoder d = {.k = k, .why = why};
    bool ok = index_of && k->insns;
    if (!ok) snprintf(why, GFX_TEXT, "no memory");
    for (uint32_t n = 0; ok && n < words; n++) index_of[n] = -1;
    int32_t n_second = 0; /* second halves of dual instructions stand behind all others */
    while (ok && d.at < k->code_bytes) {
        gfx_insn second;
        fetch(&d);
        gfx_insn *i = &k->insns[k->n_insns];
        ok = decode_one(&d, i, &second);
        if (ok && (i->n_bytes == 0 || i->n_bytes > 4 * d.n_left)) ok = fail(&d, "code is cut off");
        if (!ok) break;
        if (i->enc == GFX_VOPD) {
            i->dual = (int32_t)(2 * words) - n_second++;
            look_up(&second);
            k->insns[i->dual] = second;
        }
        look_up(i);
        index_of[d.at / 4] = k->n_insns++;
        d.at += i->n_bytes;
    }
    if (ok && !ends(k)) ok = fail(&d, "the code does not end");
    ok = ok && link_branches(&d, index_of);
    if (ok && k->vgprs > 256) ok = fail(&d, "too many registers");
    if (!ok) {
        free(k->insns);
        k->insns = NULL;
        k->n_insns = 0;
    }
    if (ok) k->lds_shift = lds_shift(k);
    free(index_of);
    return ok;
}
