/* Waves and workgroups: the loop over instructions, waits, branches and barriers. One wave runs at a time, until it
 * ends or meets a barrier; which one comes first is the dispatch's order, so that kernels cannot rely on it. */
#include "dev/hrx/soft/gfx.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0x7fc0dead }; /* of registers that nobody wrote: a NaN, or a place far away */

bool gfx_fail(gfx_group *g, const char *format, ...)
{
    if (g->failed) return false;
    va_list ap;
    va_start(ap, format);
    vsnprintf(g->why, GFX_TEXT, format, ap);
    va_end(ap);
    g->failed = true;
    return false;
}

/* ---- waits: what a wave still has under way --------------------------------------------------- */

static void recount(gfx_wave *w)
{
    memset(&w->busy, 0, sizeof w->busy);
    for (int n = 0; n < w->n_vm; n++)
        for (int k = 0; k < 4; k++) w->busy.v[k] |= w->vm[n].regs.v[k];
    for (int n = 0; n < w->n_lgkm; n++) {
        for (int k = 0; k < 4; k++) w->busy.v[k] |= w->lgkm[n].regs.v[k];
        for (int k = 0; k < 2; k++) w->busy.s[k] |= w->lgkm[n].regs.s[k];
    }
}

static void drop(gfx_pending *q, int *n, int keep)
{
    if (keep >= *n) return;
    memmove(q, q + (*n - keep), (size_t)keep * sizeof *q);
    *n = keep;
}

/* Loads of vectors end in order, so all but the last n are done. Scalar loads do not: then only 0 says something. */
static void wait_lgkm(gfx_wave *w, int n)
{
    bool scalar = false;
    for (int k = 0; k < w->n_lgkm; k++) scalar |= w->lgkm[k].scalar;
    if (n == 0 || !scalar) drop(w->lgkm, &w->n_lgkm, n);
}

static void wait_stores(gfx_wave *w)
{
    w->stores_pending = false;
    if (w->unsafe_from != UINT32_MAX && w->safe_after == UINT32_MAX) w->safe_after = w->epoch;
}

static void wait_for(gfx_wave *w, const gfx_insn *i)
{
    const uint32_t imm = (uint32_t)i->imm & 0xffff;
    switch (i->op) {
    case OP_s_waitcnt:
        drop(w->vm, &w->n_vm, (int)(imm >> 10));
        wait_lgkm(w, (int)(imm >> 4 & 63));
        break;
    case OP_s_waitcnt_vmcnt: drop(w->vm, &w->n_vm, (int)imm); break;
    case OP_s_waitcnt_lgkmcnt: wait_lgkm(w, (int)imm); break;
    case OP_s_waitcnt_vscnt:
        if (imm == 0) wait_stores(w);
        break;
    default: break;
    }
    recount(w);
}

static bool overlap(const uint64_t *a, const uint64_t *b, const uint64_t *busy, int n, int *reg)
{
    for (int k = 0; k < n; k++) {
        const uint64_t both = (a[k] | b[k]) & busy[k];
        if (!both) continue;
        *reg = 64 * k + __builtin_ctzll(both);
        return true;
    }
    return false;
}

static bool check_waits(gfx_wave *w, const gfx_insn *i)
{
    int reg;
    if (overlap(i->reads.v, i->writes.v, w->busy.v, 4, &reg)) return gfx_fail(w->group, "v%d is used before s_waitcnt", reg);
    if (overlap(i->reads.s, i->writes.s, w->busy.s, 2, &reg)) return gfx_fail(w->group, "s%d is used before s_waitcnt", reg);
    return true;
}

static void under_way(gfx_wave *w, gfx_pending *q, int *n, gfx_pending p)
{
    if (*n == GFX_MAX_PENDING) drop(q, n, GFX_MAX_PENDING - 1); /* the hardware waits by itself */
    q[(*n)++] = p;
    for (int k = 0; k < 4; k++) w->busy.v[k] |= p.regs.v[k];
    for (int k = 0; k < 2; k++) w->busy.s[k] |= p.regs.s[k];
}

static void note_access(gfx_wave *w, const gfx_insn *i)
{
    gfx_pending p = {.regs = i->writes};
    switch (i->cls) {
    case GFX_SCALAR_LOAD:
        p.scalar = true;
        under_way(w, w->lgkm, &w->n_lgkm, p);
        break;
    case GFX_LDS:
        p.lds_store = i->access == 'S' || i->access == 'A';
        under_way(w, w->lgkm, &w->n_lgkm, p);
        break;
    default:
        if (i->access == 'L' || (i->access == 'A' && i->glc)) under_way(w, w->vm, &w->n_vm, p);
        else if (!w->stores_pending) {
            w->stores_pending = true;
            w->first_store_epoch = w->epoch;
        }
    }
}

/* ---- one wave -------------------------------------------------------------------------------- */

static bool branch_taken(const gfx_wave *w, uint16_t op)
{
    switch (op) {
    case OP_s_cbranch_scc0: return !w->scc;
    case OP_s_cbranch_scc1: return w->scc;
    case OP_s_cbranch_vccz: return w->s[GFX_VCC] == 0;
    case OP_s_cbranch_vccnz: return w->s[GFX_VCC] != 0;
    case OP_s_cbranch_execz: return gfx_exec(w) == 0;
    case OP_s_cbranch_execnz: return gfx_exec(w) != 0;
    default: return true; /* s_branch */
    }
}

static bool meet_barrier(gfx_wave *w)
{
    for (int n = 0; n < w->n_lgkm; n++)
        if (w->lgkm[n].lds_store) return gfx_fail(w->group, "barrier before lgkmcnt(0) of an LDS store");
    if (w->stores_pending && w->unsafe_from == UINT32_MAX) w->unsafe_from = w->first_store_epoch;
    if (w->stores_pending) w->safe_after = UINT32_MAX;
    w->state = GFX_AT_BARRIER;
    return true;
}

static bool execute(gfx_wave *w, const gfx_insn *i)
{
    switch (i->cls) {
    case GFX_NONE: return true;
    case GFX_WAIT: wait_for(w, i); return true;
    case GFX_SALU: return gfx_salu(w, i);
    case GFX_SCALAR_LOAD: return gfx_scalar_load(w, i);
    case GFX_LANE: return gfx_lane_op(w, i);
    case GFX_WMMA: return gfx_wmma(w, i);
    case GFX_MEM:
    case GFX_BUFFER: return gfx_memory(w, i);
    case GFX_LDS: return gfx_lds(w, i);
    case GFX_BARRIER: return meet_barrier(w);
    case GFX_END: w->state = GFX_DONE; return true;
    default: return gfx_vector(w, i, i->dual >= 0 ? &w->group->k->insns[i->dual] : NULL);
    }
}

static bool run_wave(gfx_wave *w)
{
    gfx_group *g = w->group;
    const gfx_kernel *k = g->k;
    while (w->state == GFX_RUNNING) {
        const gfx_insn *i = &k->insns[w->pc];
        if (++g->d->n_steps > g->d->max_steps) return gfx_fail(g, "did not end after %llu instructions", (unsigned long long)g->d->max_steps);
        if ((w->n_vm | w->n_lgkm) && i->cls != GFX_WAIT && !check_waits(w, i)) return false;
        if (i->cls == GFX_BRANCH) {
            w->pc = branch_taken(w, i->op) ? i->target : w->pc + 1;
            continue;
        }
        if (!execute(w, i)) return false;
        if (i->cls >= GFX_LDS || i->cls == GFX_SCALAR_LOAD) note_access(w, i);
        w->pc++;
    }
    return true;
}

/* ---- workgroups ------------------------------------------------------------------------------ */

static void start_wave(gfx_group *g, uint32_t n, const uint32_t id[3])
{
    static const uint8_t user_regs[7] = {4, 2, 2, 2, 2, 2, 1}; /* in the fixed order of the ABI */
    const gfx_kernel *k = g->k;
    gfx_wave *w = &g->waves[n];
    uint32_t (*v)[GFX_LANES] = w->v;
    memset(w, 0, offsetof(gfx_wave, vm));
    w->v = v;
    w->group = g;
    w->index = n;
    w->unsafe_from = w->safe_after = UINT32_MAX;
    for (uint32_t r = 0; r < k->vgprs; r++)
        for (int l = 0; l < GFX_LANES; l++) v[r][l] = POISON;
    uint32_t reg = 0;
    for (int bit = 0; bit < 7; bit++) {
        if (!(k->properties >> bit & 1)) continue;
        if (bit == 3) { /* the address of the arguments; the others have no value here */
            w->s[reg] = (uint32_t)g->d->windows[0].addr;
            w->s[reg + 1] = (uint32_t)(g->d->windows[0].addr >> 32);
        }
        reg += user_regs[bit];
    }
    reg = k->rsrc2 >> 1 & 31;
    for (int axis = 0; axis < 3; axis++)
        if (k->rsrc2 >> (7 + axis) & 1) w->s[reg++] = id[axis];
    const uint32_t *size = k->workgroup, threads = size[0] * size[1] * size[2];
    const bool packed = (k->rsrc2 >> 11 & 3) > 0 || size[1] * size[2] > 1;
    for (uint32_t l = 0; l < GFX_LANES; l++) {
        const uint32_t flat = n * GFX_LANES + l, x = flat % size[0], y = flat / size[0] % size[1], z = flat / (size[0] * size[1]);
        v[0][l] = packed ? x | y << 10 | z << 20 : x;
        if (flat < threads) w->s[GFX_EXEC] |= 1u << l;
    }
}

static uint32_t draw(gfx_dispatch *d, uint32_t below)
{
    d->seed ^= d->seed << 13;
    d->seed ^= d->seed >> 7;
    d->seed ^= d->seed << 17;
    return (uint32_t)(d->seed % below);
}

static void put_in_order(gfx_dispatch *d, uint32_t *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) list[i] = d->order == GFX_REVERSE ? n - 1 - i : i;
    if (d->order != GFX_RANDOM) return;
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t other = draw(d, i), was = list[i - 1];
        list[i - 1] = list[other];
        list[other] = was;
    }
}

/* Each turn runs all waves to the next barrier. */
static bool run_group(gfx_group *g)
{
    for (;;) {
        uint32_t order[GFX_MAX_WAVES], n_done = 0;
        put_in_order(g->d, order, g->n_waves);
        for (uint32_t i = 0; i < g->n_waves; i++) {
            gfx_wave *w = &g->waves[order[i]];
            if (w->state == GFX_RUNNING && !run_wave(w)) {
                char text[GFX_TEXT];
                const gfx_insn *in = &g->k->insns[w->pc];
                snprintf(text, sizeof text, "%s", g->why);
                snprintf(g->why, GFX_TEXT, "%.60s at +%#x, %s, workgroup %u wave %u: %.140s", g->k->name, in->at,
                         in->enc == GFX_VOPD ? "v_dual" : gfx_ops[in->op].name, g->id, w->index, text);
                return false;
            }
            n_done += w->state == GFX_DONE;
        }
        if (n_done == g->n_waves) return true;
        for (uint32_t i = 0; i < g->n_waves; i++) {
            gfx_wave *w = &g->waves[i];
            if (w->state != GFX_AT_BARRIER) continue;
            w->state = GFX_RUNNING;
            w->epoch++;
        }
    }
}

static bool check_dispatch(gfx_dispatch *d, uint32_t *threads, char why[GFX_TEXT])
{
    const gfx_kernel *k = d->kernel;
    const uint64_t t = (uint64_t)k->workgroup[0] * k->workgroup[1] * k->workgroup[2];
    const char *what = NULL;
    if (!(k->properties >> 10 & 1)) what = "wave64 is not supported";
    else if (k->scratch_bytes) what = "scratch memory is not supported";
    else if (t < 1 || t > GFX_MAX_WAVES * GFX_LANES) what = "no fixed workgroup size";
    else if (!d->grid[0] || !d->grid[1] || !d->grid[2]) what = "an empty grid";
    else if ((uint64_t)d->grid[0] * d->grid[1] > UINT32_MAX / d->grid[2]) what = "too large a grid";
    if (what) snprintf(why, GFX_TEXT, "%.64s: %s", k->name, what);
    *threads = (uint32_t)t;
    return !what;
}

bool gfx_run(gfx_dispatch *d, char why[GFX_TEXT])
{
    uint32_t threads;
    gfx_kernel *k = d->kernel;
    why[0] = 0;
    d->n_steps = 0;
    if (!gfx_decode(k, why) || !check_dispatch(d, &threads, why)) return false;
    gfx_group g = {.d = d, .k = k, .n_waves = (threads + GFX_LANES - 1) / GFX_LANES, .why = why};
    const size_t lds = k->lds_bytes ? k->lds_bytes : 1, row = (size_t)k->vgprs * sizeof *g.waves->v;
    void *regs = aligned_alloc(64, (row * g.n_waves + 63) & ~(size_t)63);
    g.waves = calloc(g.n_waves, sizeof *g.waves);
    g.lds = malloc(lds);
    const size_t shadow = ((lds >> k->lds_shift) + 1) * sizeof *g.lds_shadow;
    g.lds_shadow = malloc(shadow);
    bool ok = regs && g.waves && g.lds && g.lds_shadow;
    if (!ok) snprintf(why, GFX_TEXT, "no memory");
    const uint32_t n = d->grid[0] * d->grid[1] * d->grid[2], first = d->order == GFX_RANDOM ? draw(d, n) : 0;
    for (uint32_t i = 0; ok && i < n; i++) {
        const uint32_t at = d->order == GFX_REVERSE ? n - 1 - i : (uint32_t)(((uint64_t)i + first) % n);
        const uint32_t id[3] = {at % d->grid[0], at / d->grid[0] % d->grid[1], at / (d->grid[0] * d->grid[1])};
        g.id = at;
        memset(g.lds_shadow, 0, shadow);
        for (uint32_t w = 0; w < g.n_waves; w++) {
            g.waves[w].v = (void *)((char *)regs + row * w);
            start_wave(&g, w, id);
        }
        ok = run_group(&g);
    }
    free(regs);
    free(g.waves);
    free(g.lds);
    free(g.lds_shadow);
    return ok;
}
