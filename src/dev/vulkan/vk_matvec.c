/* Products of at most VK_MATVEC_ROWS rows (shaders/matvec.comp): how a matrix is spread over the device, and
 * what else the dispatch does. */
#include "dev/vulkan/vk_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/math.h"

/* --- shapes ------------------------------------------------------------------------------------- */

typedef enum role {
    ROLE_PLAIN, /* a result in f32 */
    ROLE_NORM,  /* with the next norm's input as int8: whole blocks of 32 rows a workgroup */
    ROLE_LONG,  /* the same, of long rows */
    ROLE_GLU,   /* two matrices; whole blocks too */
    ROLE_HEAD,  /* f32, and so many rows that nothing else matters */
    N_ROLES
} role;

enum { HEAD_ROWS = 32768, LONG_UNITS = 160, BLOCK = 32 };

/* Which types behave alike. */
typedef enum family { FAMILY_4, FAMILY_K4, FAMILY_K6, FAMILY_8, FAMILY_FLOAT, N_FAMILIES } family;

static family family_of(ob_type t)
{
    switch (t) {
    case OB_Q4_K:
    case OB_Q5_K:
        return FAMILY_K4;
    case OB_Q6_K:
        return FAMILY_K6;
    case OB_Q8_0:
        return FAMILY_8;
    case OB_F32:
    case OB_F16:
    case OB_BF16:
        return FAMILY_FLOAT;
    default:
        return FAMILY_4;
    }
}

/* r: rows a subgroup takes together, un: units loaded before their values are used, wg: threads; where whole
 * blocks are wanted, a workgroup of fewer than a block needs goes over its rows several times. */
typedef struct spread {
    uint16_t r, un, wg;
} spread;

/* s: subgroups that share a row. It alone decides the order of a sum, so it is the same for every number of rows
 * of x; otherwise decode alone and in a batch would differ. */
typedef struct shape {
    uint16_t s;
    spread one, several; /* rows of x */
} shape;

/* Found by sweeps on the one card at hand (docs/performance.md); OB_VK_SPREAD tries others. */
static const shape k_shapes[N_ROLES][N_FAMILIES] = {
    [ROLE_PLAIN] = {[FAMILY_4] = {2, {1, 1, 256}, {1, 1, 256}},
                    [FAMILY_K4] = {1, {2, 1, 512}, {1, 1, 256}},
                    [FAMILY_K6] = {1, {1, 1, 256}, {1, 1, 256}},
                    [FAMILY_8] = {2, {2, 1, 1024}, {2, 1, 1024}},
                    [FAMILY_FLOAT] = {4, {1, 1, 128}, {1, 1, 128}}},
    [ROLE_NORM] = {[FAMILY_4] = {1, {1, 1, 1024}, {2, 2, 512}},
                   [FAMILY_K4] = {1, {2, 2, 512}, {2, 2, 512}},
                   [FAMILY_K6] = {1, {2, 2, 512}, {2, 2, 512}},
                   [FAMILY_8] = {1, {1, 1, 1024}, {1, 1, 1024}},
                   [FAMILY_FLOAT] = {1, {1, 1, 1024}, {1, 1, 1024}}},
    [ROLE_LONG] = {[FAMILY_4] = {2, {2, 1, 1024}, {2, 1, 1024}},
                   [FAMILY_K4] = {2, {2, 1, 1024}, {2, 1, 1024}},
                   [FAMILY_K6] = {2, {2, 1, 1024}, {2, 1, 1024}},
                   [FAMILY_8] = {2, {2, 1, 1024}, {2, 1, 1024}},
                   [FAMILY_FLOAT] = {1, {1, 1, 1024}, {1, 1, 1024}}},
    [ROLE_GLU] = {[FAMILY_4] = {1, {1, 2, 1024}, {1, 2, 1024}},
                  [FAMILY_K4] = {1, {1, 1, 256}, {1, 1, 256}},
                  [FAMILY_K6] = {1, {1, 1, 1024}, {1, 1, 1024}},
                  [FAMILY_8] = {2, {1, 1, 512}, {1, 1, 256}},
                  [FAMILY_FLOAT] = {1, {1, 1, 1024}, {1, 1, 1024}}},
    [ROLE_HEAD] = {[FAMILY_4] = {1, {4, 1, 512}, {4, 1, 512}},
                   [FAMILY_K4] = {1, {4, 1, 512}, {4, 1, 512}},
                   [FAMILY_K6] = {1, {2, 1, 256}, {2, 1, 256}},
                   [FAMILY_8] = {1, {1, 2, 256}, {1, 2, 256}},
                   [FAMILY_FLOAT] = {4, {1, 1, 128}, {1, 1, 128}}},
};

static const char *const k_role_names[N_ROLES] = {"plain", "norm", "long", "glu", "head"};

/* OB_VK_SPREAD=ROLE[.TYPE]:S,R,UN,WG;… replaces entries; for sweeps on a new card. */
static void shape_by_hand(role ro, ob_type type, uint16_t *n_sub, spread *out)
{
    const char *at = getenv("OB_VK_SPREAD");
    char key[2][32];
    snprintf(key[0], sizeof key[0], "%s:", k_role_names[ro]);
    snprintf(key[1], sizeof key[1], "%s.%s:", k_role_names[ro], vk_type_name(type));
    for (; at && *at; at += strcspn(at, ";"), at += *at == ';')
        for (int k = 0; k < 2; k++) {
            unsigned s, r, un, wg;
            if (strncmp(at, key[k], strlen(key[k])) == 0 && sscanf(at + strlen(key[k]), "%u,%u,%u,%u", &s, &r, &un, &wg) == 4 &&
                s && r && un && s <= 32 && r <= 32 && un <= 8 && wg <= 1024) {
                *n_sub = (uint16_t)s;
                *out = (spread){(uint16_t)r, (uint16_t)un, (uint16_t)wg};
            }
        }
}

static bool is_pow2(uint32_t x)
{
    return (x & (x - 1)) == 0;
}

/* The table's entry, fitted to the device: t threads a row, wg of a workgroup, nb times over its rows. */
typedef struct fitted {
    uint32_t t, r, un, wg, nb;
} fitted;

/* Kernels that take two units at a time (PAIRED in shaders/moe_dot.glsl): 6 % of a whole step less for one row, but for
 * several a thread holds too much: 8 sequences of an 8B Q4_K_M took 1.43 times as long on the H200 (1.4 to 1.6 with 14 other
 * shapes). Their sums have another order, so only where no other sequence can come into the step. */
static bool takes_pairs(const ob_dev_plan *p, const ob_dev_weight *w, bool int8, int32_t rows)
{
    return int8 && rows == 1 && p->n_slots == 1 && (p->fast & VK_FAST_SUBGROUP) && (w->type == OB_Q4_K || w->type == OB_Q5_K);
}

static fitted fit(const ob_dev_plan *p, role ro, const ob_dev_weight *w, bool int8, int32_t rows)
{
    const uint32_t steps = (uint32_t)w->nu / (takes_pairs(p, w, int8, rows) ? 2 : 1); /* of a row */
    const vk_dev *d = p->dev;
    const bool sub = (p->fast & VK_FAST_SUBGROUP) != 0, blocks = ro == ROLE_NORM || ro == ROLE_LONG || ro == ROLE_GLU;
    const uint32_t sg = sub ? d->sg : 32, most = OB_MIN(1024u, d->phys->max_invocations);
    const shape *sh = &k_shapes[ro][family_of(w->type)];
    spread e = rows == 1 ? sh->one : sh->several;
    uint16_t n_sub = ro == ROLE_PLAIN && w->nu >= LONG_UNITS ? OB_MAX(sh->s, 2) : sh->s;
    if (d->phys->soft) e = (spread){rows == 1 ? e.r : 1, 1, e.wg}; /* unrolled code takes a processor long to compile */
    shape_by_hand(ro, w->type, &n_sub, &e);
    while (n_sub > 1 && (n_sub * sg > most || n_sub * sg > OB_MAX(steps, sg))) n_sub /= 2;
    fitted f = {.t = n_sub * sg, .r = sub ? e.r : 1, .un = sub ? e.un : 1, .nb = 1};
    if (!is_pow2(f.t)) f.t = sg;
    f.wg = OB_MAX(f.t, OB_MIN((uint32_t)e.wg, most) / f.t * f.t);
    if (!blocks) return f;
    if (!is_pow2(f.r) || f.r > BLOCK) f.r = 1;
    while (f.wg / f.t * f.r > BLOCK) f.wg /= 2;
    while (f.wg > f.t && !is_pow2(f.wg / f.t)) f.wg -= f.t;
    f.nb = BLOCK / (f.wg / f.t * f.r);
    return f;
}

/* --- dispatches ----------------------------------------------------------------------------------- */

static ob_status no_memory(ob_err *err)
{
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
}

bool vk_matvec_int8(const ob_dev_plan *p, const ob_op *op, int m)
{
    const ob_type t = p->weights[op->w[m]]->type;
    return vk_linear_rows(p, op) <= VK_MATVEC_ROWS && family_of(t) != FAMILY_FLOAT && (p->fast & VK_FAST_INT8) &&
           (p->dev->tested[t] & VK_FAST_INT8) && p->prog.vals[op->in[0]].cols % 32 == 0;
}

/* What a profile calls it: kernel, shape, what is fused. */
static const char *label(ob_dev_plan *p, const char *kernel, const ob_dev_weight *w, const char *more)
{
    char text[80];
    const int n = snprintf(text, sizeof text, "%s %lldx%lld%s", kernel, (long long)w->desc.ne[1], (long long)w->desc.ne[0], more);
    char *s = ob_arena_array(&p->arena, (size_t)n + 1, 1);
    if (s) memcpy(s, text, (size_t)n + 1);
    return s;
}

/* A product of matrix m, with the grid of its role. form: of what goes out as int8; n_class: rows of the router after
 * it, or 0. */
static ob_status add(ob_dev_plan *p, int32_t i, int m, role ro, ob_act act, vk_form form, uint32_t n_class, vk_dispatch **out,
                     ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_dev_weight *w = p->weights[op->w[m]];
    const vk_dev *d = p->dev;
    const bool int8 = vk_matvec_int8(p, op, m), sub = (p->fast & VK_FAST_SUBGROUP) != 0;
    const uint32_t n = (uint32_t)p->prog.vals[op->out[m]].cols;
    VkDeviceAddress x = vk_value(p, op->in[0]), scales = 0;
    const vk_formed *in = vk_find_form(p, op->in[0], vk_matrix_form(p, op, m), &x, &scales);
    const bool raw = in && in->raw;
    if (ro == ROLE_NORM && w->nu >= LONG_UNITS) ro = ROLE_LONG;
    const bool blocks = ro == ROLE_NORM || ro == ROLE_LONG || ro == ROLE_GLU;
    const int32_t rows = vk_linear_rows(p, op);
    const fitted f = fit(p, ro, w, int8, rows);
    char name[48];
    snprintf(name, sizeof name, "matvec%s_%s_%s%s", !sub ? "_plain" : takes_pairs(p, w, int8, rows) ? "_pairs" : "",
             int8 ? "i8" : "f32", vk_type_name(w->type), ro == ROLE_GLU ? "_glu" : n_class ? "_router" : "");
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, name, 15,
                         (uint32_t[]){f.wg, f.t, (uint32_t)rows, op->w[4 + m] != OB_NONE, op->in[1] != OB_NONE,
                                      d->sg, f.r, f.un, (uint32_t)w->nu, raw, blocks && ro != ROLE_GLU, (uint32_t)act, f.nb,
                                      (form & VK_FORM_TURNED) != 0, OB_MAX(n_class, 1u)},
                         &pipe, err));
    vk_dispatch *s = *out = vk_linear_product(p, i, m, pipe);
    if (!s) return no_memory(err);
    if (!(s->kernel = label(p, name, w, blocks && ro != ROLE_GLU ? " +norm" : ""))) return no_memory(err);
    s->push.a[1] = x;
    vk_reads(s, x, int8 ? vk_linear_form(p, op) : vk_value_bytes(p, op->in[0]));
    if (int8) vk_push_addr(&s->push, 8, scales);
    if (raw) s->push.u[5] = ob_f32_bits(in->eps);
    const uint32_t groups = (uint32_t)ob_div_up(n, f.wg / f.t * f.r * f.nb);
    s->grid[0] = OB_MIN(groups, 32768u);
    s->grid[1] = (uint32_t)ob_div_up(groups, s->grid[0]);
    return OB_OK;
}

ob_status vk_matvec_add(ob_dev_plan *p, int32_t i, int m, ob_err *err)
{
    vk_dispatch *s;
    const bool head = p->prog.vals[p->prog.ops[i].out[m]].cols >= HEAD_ROWS;
    return add(p, i, m, head ? ROLE_HEAD : ROLE_PLAIN, OB_ACT_NONE, VK_FORM_F32, 0, &s, err);
}

ob_status vk_matvec_add_norm(ob_dev_plan *p, int32_t i, int32_t norm, int32_t router, ob_err *err)
{
    const ob_op *n = &p->prog.ops[norm], *r = router == OB_NONE ? NULL : &p->prog.ops[router];
    const vk_form form = vk_wanted_form(p, n->out[0], norm, VK_FORM_TURNED);
    vk_dispatch *s;
    VkDeviceAddress to[2];
    OB_TRY(add(p, i, 0, ROLE_NORM, OB_ACT_NONE, form, r ? (uint32_t)p->prog.vals[r->out[0]].cols : 0, &s, err));
    vk_write_form(p, s, n->out[0], form, to);
    if (r) {
        const uint64_t blocks = (uint64_t)vk_linear_rows(p, r) * (uint64_t)p->prog.vals[n->out[0]].cols / 32;
        const uint64_t bytes = blocks * 12 + blocks * (uint64_t)p->prog.vals[r->out[0]].cols * 4;
        p->parts = (vk_router_parts){.of = r->out[0], .at = to[1], .n_bytes = bytes, .eps = n->p.norm.eps,
                                     .nu = (uint32_t)p->prog.vals[n->out[0]].cols / 32};
        vk_writes(s, to[1], bytes);
        s->push.a[6] = p->weights[r->w[0]]->w;
    }
    p->forms[p->form_last].raw = true;
    p->forms[p->form_last].eps = n->p.norm.eps;
    vk_push_addr(&s->push, 10, p->weights[n->w[0]]->w);
    vk_push_addr(&s->push, 12, to[0]);
    vk_push_addr(&s->push, 14, to[1]);
    return OB_OK;
}

ob_status vk_matvec_add_glu(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i], *glu = &p->prog.ops[i + 1];
    const ob_dev_weight *up = p->weights[op->w[1]];
    const vk_form form = vk_wanted_form(p, glu->out[0], i + 1, VK_FORM_TURNED);
    vk_dispatch *s;
    VkDeviceAddress to[2];
    OB_TRY(add(p, i, 0, ROLE_GLU, glu->p.glu.act, form, 0, &s, err));
    s->n_mats = 2;
    s->n_writes = 0; /* not the f32 results */
    vk_write_form(p, s, glu->out[0], form, to);
    s->push.a[2] = to[0];
    s->push.a[6] = up->w;
    s->push.a[7] = up->s;
    s->push.u[4] = ob_f32_bits(glu->p.glu.clamp);
    vk_push_addr(&s->push, 10, up->h);
    vk_push_addr(&s->push, 12, up->z);
    vk_push_addr(&s->push, 14, to[1]);
    return OB_OK;
}
