/* Memory: windows with exact bounds, LDS, lane exchange through LDS, atomics; and who wrote what, so that a read that
 * nothing orders after its write is an error and not a matter of luck. */
#include "dev/hrx/soft/gfx.h"

#include <string.h>

/* ---- windows --------------------------------------------------------------------------------- */

static uint8_t *find(gfx_wave *w, uint64_t addr, uint32_t n, const char *what, const gfx_window **out)
{
    const gfx_dispatch *d = w->group->d;
    const uint64_t id = addr >> GFX_WINDOW_BITS;
    if (id < 1 || id > d->n_windows) {
        gfx_fail(w->group, "%s of %u bytes at %#llx, which is in no buffer", what, n, (unsigned long long)addr);
        return NULL;
    }
    const gfx_window *win = &d->windows[id - 1];
    const uint64_t off = addr - win->addr;
    if (addr < win->addr || off > win->len || n > win->len - off) {
        gfx_fail(w->group, "%s of %u bytes at byte %lld of %s %d, which has %llu", what, n, (long long)off,
                 id == 1 ? "arguments" : "binding", id == 1 ? 0 : (int)id - 2, (unsigned long long)win->len);
        return NULL;
    }
    *out = win;
    return win->data + off;
}

/* Shadow of a dword: dispatch 20 bits, workgroup 24, wave 5, epoch 15; 0: nothing is known. */
static uint64_t mark(const gfx_wave *w)
{
    return (uint64_t)(w->group->d->serial & 0xfffff) << 44 | (uint64_t)(w->group->id & 0xffffff) << 20 |
           (uint64_t)(w->index & 31) << 15 | (w->epoch & 0x7fff);
}

static void note_store(gfx_wave *w, const gfx_window *win, const uint8_t *p, uint32_t n)
{
    const uint64_t off = (uint64_t)(p - win->data) + win->shift, m = mark(w);
    for (uint64_t k = off >> 2; k <= (off + n - 1) >> 2; k++) {
        const bool whole = off <= 4 * k && off + n >= 4 * k + 4, others = win->shadow[k] >> 44 == m >> 44 && win->shadow[k] >> 15 != m >> 15;
        win->shadow[k] = whole || !others ? m : 0;
    }
}

/* The first store through a window: loads through those that overlap it are looked at from now on. */
static void touch(gfx_dispatch *d, const gfx_window *win)
{
    for (uint32_t i = 0; i < d->n_windows; i++) {
        gfx_window *o = &d->windows[i];
        if (o->data < win->data + win->len && win->data < o->data + o->len) o->touched = true;
    }
}

static bool check_load(gfx_wave *w, const gfx_window *win, const uint8_t *p, uint32_t n)
{
    const uint64_t off = (uint64_t)(p - win->data) + win->shift, m = mark(w);
    for (uint64_t k = off >> 2; k <= (off + n - 1) >> 2; k++) {
        const uint64_t s = win->shadow[k];
        if (s >> 44 != m >> 44 || s >> 15 == m >> 15) continue; /* another dispatch, or this wave itself */
        const uint32_t group = s >> 20 & 0xffffff, wave = s >> 15 & 31, epoch = s & 0x7fff;
        if (group != (w->group->id & 0xffffff))
            return gfx_fail(w->group, "race: reads what workgroup %u wrote in the same dispatch", group);
        const gfx_wave *writer = &w->group->waves[wave];
        if (epoch >= (w->epoch & 0x7fff))
            return gfx_fail(w->group, "race: reads what wave %u wrote, with no barrier between", wave);
        if (epoch >= writer->unsafe_from && w->epoch <= writer->safe_after)
            return gfx_fail(w->group, "race: reads what wave %u wrote and did not wait for before the barrier", wave);
    }
    return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void put_loaded(gfx_wave *w, const gfx_insn *i, uint32_t dst, int l, const uint8_t *p)
{
    uint32_t v = 0;
    if (i->width >= 4) {
        for (uint32_t k = 0; k < i->width / 4u; k++) {
            memcpy(&v, p + 4 * k, 4);
            w->v[dst + k][l] = v;
        }
        return;
    }
    memcpy(&v, p, i->width);
    if (i->sign == 'i') v = i->width == 1 ? (uint32_t)(int8_t)v : (uint32_t)(int16_t)v;
    uint32_t *r = &w->v[dst][l];
    if (i->part == 'h') *r = (*r & 0xffff) | v << 16;
    else if (i->part == 'l') *r = (*r & 0xffff0000) | (v & 0xffff);
    else *r = v;
}

static void take_stored(const gfx_wave *w, const gfx_insn *i, uint32_t src, int l, uint8_t *p)
{
    for (uint32_t k = 0; k < i->width; k += 4) {
        uint32_t v = w->v[src + k / 4][l];
        if (i->part == 'h') v >>= 16;
        memcpy(p + k, &v, i->width - k < 4 ? i->width - k : 4);
    }
}

static float as_float(uint32_t w)
{
    float f;
    memcpy(&f, &w, 4);
    return f;
}
static uint32_t as_word(float f)
{
    uint32_t w;
    memcpy(&w, &f, 4);
    return w;
}

/* c: the first data word is the new value, the second is compared; d (LDS): the other way round. */
static uint32_t atomic(const gfx_insn *i, uint32_t old, uint32_t a, uint32_t b)
{
    const float x = as_float(old), y = as_float(a);
    switch (i->what) {
    case '+': return i->sign == 'f' ? as_word(x + y) : old + a;
    case '-': return old - a;
    case '&': return old & a;
    case '|': return old | a;
    case '^': return old ^ a;
    case 'c': return old == b ? a : old;
    case 'd': return old == a ? b : old;
    case '<':
        if (i->sign == 'f') return as_word(y < x ? y : x);
        return i->sign == 'i' ? ((int32_t)a < (int32_t)old ? a : old) : a < old ? a : old;
    case '>':
        if (i->sign == 'f') return as_word(y > x ? y : x);
        return i->sign == 'i' ? ((int32_t)a > (int32_t)old ? a : old) : a > old ? a : old;
    default: return a; /* exchange */
    }
}

/* ---- global and buffer memory ---------------------------------------------------------------- */

static bool access_lane(gfx_wave *w, const gfx_insn *i, int l, uint64_t addr)
{
    const gfx_window *win;
    const bool load = i->access == 'L', store = i->access == 'S';
    uint8_t *p = find(w, addr, i->width, load ? "load" : store ? "store" : "atomic", &win);
    if (!p) return false;
    if (load) {
        if (win->shadow && win->touched && !check_load(w, win, p, i->width)) return false;
        put_loaded(w, i, i->dst, l, p);
    } else if (store) {
        take_stored(w, i, i->src[1].reg, l, p);
        if (win->shadow) {
            if (!win->touched) touch(w->group->d, win);
            note_store(w, win, p, i->width);
        }
    } else {
        uint32_t old, data2 = i->what == 'c' ? w->v[i->src[1].reg + 1][l] : 0;
        memcpy(&old, p, 4);
        const uint32_t now = atomic(i, old, w->v[i->src[1].reg][l], data2);
        memcpy(p, &now, 4);
        if (win->shadow) win->shadow[((uint64_t)(p - win->data) + win->shift) >> 2] = 0; /* atomics order themselves */
        if (i->glc) w->v[i->dst][l] = old;
    }
    return true;
}

/* Where the lanes that are on begin and end; off: bytes from a common base. */
static void reach(const uint32_t *restrict off, uint32_t exec, uint32_t *lo, uint32_t *hi)
{
    uint32_t least = ~0u, most = 0;
    for (int l = 0; l < GFX_LANES; l++) {
        const uint32_t on = gfx_lane_mask(exec, l), low = off[l] | ~on, high = off[l] & on;
        least = low < least ? low : least;
        most = high > most ? high : most;
    }
    *lo = least;
    *hi = most;
}

/* From data + shift + off; the shift may be below 0. */
static void take_words(const gfx_insn *i, gfx_wave *w, const uint8_t *data, uint64_t shift, const uint32_t off[GFX_LANES], uint32_t exec)
{
    for (uint32_t k = 0; k < i->width / 4u; k++) {
        uint32_t *restrict to = w->v[i->dst + k];
        uint32_t got[GFX_LANES];
        if (exec == ~0u) {
            for (int l = 0; l < GFX_LANES; l++) memcpy(&to[l], data + (shift + off[l] + 4 * k), 4);
            continue;
        }
        for (int l = 0; l < GFX_LANES; l++)
            if (exec >> l & 1) memcpy(&got[l], data + (shift + off[l] + 4 * k), 4);
            else got[l] = to[l];
        memcpy(to, got, sizeof got);
    }
}

/* The usual case: the lanes load from one window that nobody stores to, at a common base. False: lane by lane. */
static bool load_together(gfx_wave *w, const gfx_insn *i, uint64_t base)
{
    const uint32_t exec = gfx_exec(w);
    if (i->access != 'L' || !exec) return false;
    const gfx_dispatch *d = w->group->d;
    uint32_t off[GFX_LANES], lo, hi;
    memcpy(off, w->v[i->src[0].reg], sizeof off); /* a load may write over its address */
    reach(off, exec, &lo, &hi);
    const uint64_t first = base + lo, id = first >> GFX_WINDOW_BITS;
    if (id < 1 || id > d->n_windows) return false;
    const gfx_window *win = &d->windows[id - 1];
    if (win->shadow && win->touched) return false;
    if (first < win->addr || base + hi - win->addr > win->len || i->width > win->len - (base + hi - win->addr)) return false;
    const uint64_t shift = base - win->addr;
    if (i->width >= 4) take_words(i, w, win->data, shift, off, exec);
    else
        for (int l = 0; l < GFX_LANES; l++)
            if (exec >> l & 1) put_loaded(w, i, i->dst, l, win->data + (shift + off[l]));
    return true;
}

static bool buffer(gfx_wave *w, const gfx_insn *i)
{
    const uint32_t *r = &w->s[i->src[2].reg], stride = r[1] >> 16 & 0x3fff;
    const uint64_t base = (r[0] | (uint64_t)r[1] << 32) & UINT64_C(0xffffffffffff);
    const uint64_t soff = gfx_scalar(w, &i->src[3], false);
    for (int l = 0; l < GFX_LANES; l++) {
        if (!(gfx_exec(w) >> l & 1)) continue;
        uint32_t reg = i->src[0].reg;
        const uint64_t index = i->idxen ? w->v[reg++][l] : 0;
        const uint64_t inner = (uint64_t)i->imm + (i->offen ? w->v[reg][l] : 0) + index * stride;
        const bool inside = i->idxen ? index < r[2] : inner + i->width <= r[2];
        if (!inside) { /* outside the descriptor: loads give zero, stores do nothing */
            for (uint32_t k = 0; i->access == 'L' && !i->part && k < (i->width + 3) / 4u; k++) w->v[i->dst + k][l] = 0;
            continue;
        }
        if (!access_lane(w, i, l, base + inner + soff)) return false;
    }
    return true;
}

bool gfx_memory(gfx_wave *w, const gfx_insn *i)
{
    if (i->cls == GFX_BUFFER) return buffer(w, i);
    const uint32_t a = i->src[0].reg, exec = gfx_exec(w);
    uint64_t addr[GFX_LANES]; /* a load may write over its address */
    const uint64_t base = i->has_base ? w->s[i->src[2].reg] | (uint64_t)w->s[i->src[2].reg + 1] << 32 : 0;
    if (i->has_base && load_together(w, i, base + (uint64_t)(int64_t)i->imm)) return true;
    for (int l = 0; l < GFX_LANES; l++)
        addr[l] = base + w->v[a][l] + (i->has_base ? 0 : (uint64_t)w->v[a + 1][l] << 32) + (uint64_t)(int64_t)i->imm;
    for (int l = 0; l < GFX_LANES; l++)
        if (exec >> l & 1 && !access_lane(w, i, l, addr[l])) return false;
    return true;
}

bool gfx_scalar_load(gfx_wave *w, const gfx_insn *i)
{
    uint64_t base = gfx_scalar(w, &i->src[0], true);
    if (i->descriptor) base &= UINT64_C(0xffffffffffff);
    const uint64_t addr = (base + gfx_scalar(w, &i->src[1], false) + (uint64_t)(int64_t)i->imm) & ~UINT64_C(3);
    const gfx_window *win;
    const uint8_t *p = find(w, addr, i->width, "scalar load", &win);
    if (!p || (win->shadow && win->touched && !check_load(w, win, p, i->width))) return false;
    for (uint32_t k = 0; k < i->width / 4u; k++)
        if (i->dst != GFX_NULL) memcpy(&w->s[(i->dst + k) & 127], p + 4 * k, 4);
    return true;
}

/* ---- LDS ------------------------------------------------------------------------------------- */

enum { MANY_READERS = 255 };

static bool lds_read(gfx_wave *w, uint32_t at, uint32_t n)
{
    const gfx_group *g = w->group;
    const uint8_t shift = g->k->lds_shift;
    const uint16_t epoch = (uint16_t)w->epoch;
    for (uint32_t k = at >> shift; k <= (at + n - 1) >> shift; k++) {
        gfx_lds_shadow *s = &g->lds_shadow[k];
        if (!s->written) return gfx_fail(w->group, "reads byte %u of LDS, which nobody wrote", k << shift);
        if (!g->d->races) continue;
        if (s->wave != w->index && s->epoch == epoch)
            return gfx_fail(w->group, "race: reads byte %u of LDS, which wave %u wrote, with no barrier between", k << shift, s->wave);
        s->reader = s->written > 1 && s->read_epoch == epoch && s->reader != w->index ? MANY_READERS : (uint8_t)w->index;
        s->read_epoch = epoch;
        s->written = 2; /* and read */
    }
    return true;
}

static bool lds_written(gfx_wave *w, uint32_t at, uint32_t n, bool is_atomic)
{
    const gfx_group *g = w->group;
    const uint8_t shift = g->k->lds_shift;
    const uint16_t epoch = (uint16_t)w->epoch;
    for (uint32_t k = at >> shift; k <= (at + n - 1) >> shift; k++) {
        gfx_lds_shadow *s = &g->lds_shadow[k];
        if (g->d->races && !is_atomic && s->written > 1 && s->read_epoch == epoch && s->reader != w->index)
            return gfx_fail(w->group, "race: writes byte %u of LDS, which another wave reads, with no barrier between", k << shift);
        *s = (gfx_lds_shadow){.written = 1, .wave = (uint8_t)w->index, .epoch = is_atomic ? (uint16_t)(epoch - 1) : epoch};
    }
    return true;
}

static bool lds_range(gfx_wave *w, uint64_t at, uint32_t n)
{
    if (at + n <= w->group->k->lds_bytes) return true;
    return gfx_fail(w->group, "%u bytes at %llu of LDS, which has %u", n, (unsigned long long)at, w->group->k->lds_bytes);
}

/* One address of a lane; `reg`: register of the data, `dst` of the result. */
static bool lds_lane(gfx_wave *w, const gfx_insn *i, int l, uint64_t at, uint32_t reg, uint32_t dst)
{
    if (!lds_range(w, at, i->width)) return false;
    uint8_t *p = w->group->lds + at;
    if (i->access == 'L') {
        if (!lds_read(w, (uint32_t)at, i->width)) return false;
        put_loaded(w, i, dst, l, p);
    } else if (i->access == 'S') {
        if (!lds_written(w, (uint32_t)at, i->width, false)) return false;
        take_stored(w, i, reg, l, p);
    } else {
        uint32_t old;
        for (uint32_t k = 0; k < 4; k++)
            if (!w->group->lds_shadow[(at + k) >> w->group->k->lds_shift].written) return gfx_fail(w->group, "an atomic on LDS that nobody wrote");
        memcpy(&old, p, 4);
        const uint32_t now = atomic(i, old, w->v[reg][l], i->what == 'd' ? w->v[i->src[2].reg][l] : 0);
        memcpy(p, &now, 4);
        if (!lds_written(w, (uint32_t)at, 4, true)) return false;
        if (i->access == 'R') w->v[dst][l] = old;
    }
    return true;
}

static int swizzle_from(uint32_t off, int l)
{
    if (off & 0x8000) return (l & ~3) + (int)(off >> (2 * (l & 3)) & 3);
    return (int)(((((uint32_t)l & (off & 31)) | (off >> 5 & 31)) ^ (off >> 10 & 31)));
}

static void exchange(gfx_wave *w, const gfx_insn *i)
{
    const uint32_t exec = gfx_exec(w), off = (uint32_t)i->imm;
    const uint32_t *addr = w->v[i->src[0].reg];
    uint32_t r[GFX_LANES] = {0};
    for (int l = 0; l < GFX_LANES; l++) {
        if (i->access == 'w') {
            const int from = swizzle_from(off, l);
            r[l] = exec >> from & 1 ? addr[from] : 0;
        } else if (i->access == 'b') {
            const uint32_t from = (addr[l] + off) >> 2 & 31;
            r[l] = exec >> from & 1 ? w->v[i->src[1].reg][from] : 0;
        } else if (exec >> l & 1) {
            r[(addr[l] + off) >> 2 & 31] = w->v[i->src[1].reg][l];
        }
    }
    gfx_store_lanes(w, i->dst, r, exec);
}

bool gfx_lds(gfx_wave *w, const gfx_insn *i)
{
    if (i->access == 'b' || i->access == 'p' || i->access == 'w') {
        exchange(w, i);
        return true;
    }
    const uint32_t regs = (i->width + 3) / 4u, unit = i->width * (i->stride64 ? 64u : 1u), exec = gfx_exec(w);
    uint32_t addr[GFX_LANES];
    memcpy(addr, w->v[i->src[0].reg], sizeof addr);
    for (int l = 0; l < GFX_LANES; l++) {
        if (!(exec >> l & 1)) continue;
        const uint64_t at = (uint64_t)addr[l] + (i->pair ? (uint32_t)i->imm * unit : (uint32_t)i->imm);
        if (!lds_lane(w, i, l, at, i->src[1].reg, i->dst)) return false;
        if (i->pair && !lds_lane(w, i, l, (uint64_t)addr[l] + i->imm2 * unit, i->src[2].reg, i->dst + regs)) return false;
    }
    return true;
}
