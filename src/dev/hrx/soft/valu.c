/* The vector unit: sources brought together as 32 lanes, one loop per operation (compute.c), result through EXEC. */
#include "dev/hrx/soft/vector.h"

#include <string.h>

/* ---- sources and results --------------------------------------------------------------------- */

static void modify(uint32_t *x, const gfx_src *s, bool high)
{
    const bool wide = s->type == 'D';
    if (wide && !high) return; /* the sign is in the upper word */
    const uint32_t sign = s->type == 'h' || s->type == 'w' || s->type == 'k' ? 0x8000 : 0x80000000;
    for (int l = 0; s->abs && l < GFX_LANES; l++) x[l] &= ~sign;
    for (int l = 0; s->neg && l < GFX_LANES; l++) x[l] ^= sign;
}

const uint32_t *gfx_lanes(const gfx_wave *w, const gfx_insn *i, int n, bool high, uint32_t tmp[GFX_LANES])
{
    const gfx_src *s = &i->src[n];
    const bool half = s->type == 'h' || s->type == 'w' || s->type == 'k';
    if (s->kind == GFX_K_CONST && i->constant >= 0) return w->group->k->constants + (size_t)(i->constant + 2 * n + high) * GFX_LANES;
    if (s->kind != GFX_K_VGPR) {
        const uint64_t v = gfx_scalar(w, s, true);
        for (int l = 0; l < GFX_LANES; l++) tmp[l] = high ? (uint32_t)(v >> 32) : half ? (uint32_t)(v >> (16 * s->half)) & 0xffff : (uint32_t)v;
        modify(tmp, s, high);
        return tmp;
    }
    const uint32_t *x = w->v[s->reg + high];
    const bool dpp = i->dpp >= 0 && n == 0;
    if (!half && !dpp && !s->neg && !s->abs) return x;
    if (dpp)
        for (int l = 0; l < GFX_LANES; l++) tmp[l] = x[w->group->k->dpps[i->dpp].from[l]];
    else
        memcpy(tmp, x, GFX_LANES * sizeof *tmp);
    if (half)
        for (int l = 0; l < GFX_LANES; l++) tmp[l] = s->half ? tmp[l] >> 16 : tmp[l] & 0xffff;
    modify(tmp, s, high);
    return tmp;
}

void gfx_store_lanes(gfx_wave *w, uint8_t reg, const uint32_t *restrict r, uint32_t mask)
{
    uint32_t *restrict to = w->v[reg];
    if (mask == ~0u) {
        memcpy(to, r, GFX_LANES * sizeof *to);
        return;
    }
    for (int l = 0; l < GFX_LANES; l++) {
        const uint32_t on = gfx_lane_mask(mask, l);
        to[l] = (r[l] & on) | (to[l] & ~on);
    }
}

static float as_float(uint32_t x)
{
    float f;
    memcpy(&f, &x, 4);
    return f;
}
static uint32_t as_word(float f)
{
    uint32_t x;
    memcpy(&x, &f, 4);
    return x;
}

/* Output modifiers of float results. */
static bool out_modifiers(gfx_wave *w, const gfx_insn *i, uint32_t *r)
{
    static const float factor[4] = {1, 2, 4, 0.5f};
    if (!i->omod && !i->clamp) return true;
    if (i->dst_type != 'f' && i->dst_type != 'h') return gfx_fail(w->group, "output modifiers of a whole or wide result");
    for (int l = 0; l < GFX_LANES; l++) {
        float f = i->dst_type == 'f' ? as_float(r[l]) : gfx_f16_to_f32(r[l]);
        f *= factor[i->omod];
        if (i->clamp) f = f > 1 ? 1 : f > 0 ? f : 0;
        r[l] = i->dst_type == 'f' ? as_word(f) : gfx_f32_to_f16(f);
    }
    return true;
}

static bool is_half(uint8_t t) { return t == 'h' || t == 'w' || t == 'k'; }
static bool is_wide(uint8_t t) { return t == 'D' || t == 'Q' || t == 'L'; }

typedef struct result {
    _Alignas(32) uint32_t r[GFX_LANES], high[GFX_LANES];
    uint32_t mask, lanes; /* what a compare or a carry says; lanes that are written */
} result;

/* A source lane that is off or outside its row gives zero (bound) or leaves the result alone. */
static void apply_dpp(const gfx_wave *w, const gfx_insn *i, uint32_t *x, result *out)
{
    const gfx_dpp *p = &w->group->k->dpps[i->dpp];
    uint32_t live = p->valid;
    for (int l = 0; l < GFX_LANES && !p->inactive && gfx_exec(w) != ~0u; l++)
        if (!(gfx_exec(w) >> p->from[l] & 1)) live &= ~(1u << l);
    out->lanes &= p->keep;
    if (!p->bound) out->lanes &= live;
    else if (live != ~0u)
        for (int l = 0; l < GFX_LANES; l++) x[l] &= gfx_lane_mask(live, l);
}

static inline const uint32_t *source(const gfx_wave *w, const gfx_insn *i, int n, bool high, uint32_t tmp[GFX_LANES])
{
    return i->src[n].plain ? w->v[i->src[n].reg + high] : gfx_lanes(w, i, n, high, tmp);
}

static bool run(gfx_wave *w, const gfx_insn *i, result *out)
{
    static const uint32_t none[GFX_LANES];
    _Alignas(32) uint32_t tmp[8][GFX_LANES];
    gfx_io io = {.r = out->r, .high = out->high};
    out->lanes = gfx_exec(w);
    for (int n = 0; n < 3; n++) {
        const bool mask = n < i->n_src && i->src[n].type == 'M';
        if (mask) io.mask = (uint32_t)gfx_scalar(w, &i->src[n], false);
        const bool there = n < i->n_src && !mask;
        io.x[n] = there ? source(w, i, n, false, tmp[2 * n]) : none;
        io.y[n] = there && is_wide(i->src[n].type) ? source(w, i, n, true, tmp[2 * n + 1]) : none;
    }
    if (i->n_src > 3) io.mask = (uint32_t)gfx_scalar(w, &i->src[3], false);
    if (i->dpp >= 0) apply_dpp(w, i, tmp[0], out);
    const char *why = i->cls == GFX_CMP || i->cls == GFX_CMPX ? gfx_compare(i, &io)
                      : i->cls == GFX_PACKED || i->cls == GFX_DOT || i->cls == GFX_MIX ? gfx_compute_packed(i, &io)
                                                                                       : gfx_compute(i, &io);
    if (why) return gfx_fail(w->group, "%s", why);
    out->mask = io.mask & gfx_exec(w);
    return i->cls == GFX_PACKED || i->cls == GFX_DOT || out_modifiers(w, i, out->r);
}

static void store(gfx_wave *w, const gfx_insn *i, result *out)
{
    if (i->cls == GFX_CMP || i->cls == GFX_CMPX) {
        if (i->sdst != GFX_NULL) w->s[i->sdst] = out->mask;
        return;
    }
    if (is_half(i->dst_type)) { /* the other half stays */
        const uint32_t *old = w->v[i->dst];
        for (int l = 0; l < GFX_LANES; l++)
            out->r[l] = i->dst_half ? (old[l] & 0xffff) | out->r[l] << 16 : (old[l] & 0xffff0000) | (out->r[l] & 0xffff);
    }
    gfx_store_lanes(w, i->dst, out->r, out->lanes);
    if (is_wide(i->dst_type)) gfx_store_lanes(w, (uint8_t)(i->dst + 1), out->high, out->lanes);
    if (i->writes_mask && i->sdst != GFX_NULL) w->s[i->sdst] = out->mask;
}

bool gfx_vector(gfx_wave *w, const gfx_insn *i, const gfx_insn *second)
{
    result a, b;
    if (!run(w, i, &a) || (second && !run(w, second, &b))) return false;
    store(w, i, &a);
    if (second) store(w, second, &b);
    return true;
}
