/* How long a step takes on the device, guessed ahead, so that no submit outlasts a driver's watchdog.
 *
 * The cost rules of ops (ops/ops.h) give bytes and operations; with the rates below they make a guess in
 * "nominal" milliseconds. What earlier submits took gives each plan its scale from nominal to real ones.
 * Only ratios matter in the end: a wrong nominal rate costs some submits until the first step was measured.
 */
#include "dev/vulkan/vk_int.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/math.h"

/* Steps so small that starting them is all their time would stretch the scale without end. */
static const double MIN_SCALE = 1e-3, MAX_SCALE = 100;

/* Bytes and operations per nominal millisecond: slow members of each kind. */
static const struct rates {
    double bytes, flops;
} k_discrete = {200e6, 5e9}, k_integrated = {30e6, 5e8}, k_soft = {5e6, 1e7};

static const struct rates *rates_of(const vk_phys *p)
{
    return p->soft ? &k_soft : p->integrated ? &k_integrated : &k_discrete;
}

/* OB_VK_SUBMIT_MS: the bound for a submit, for tests and for impatient drivers. */
ob_status vk_time_init(vk_dev *d, ob_err *err)
{
    const char *text = getenv("OB_VK_SUBMIT_MS");
    d->submit_ms = VK_SUBMIT_MS;
    d->scale = 1;
    if (!text || !*text) return OB_OK;
    char *end;
    errno = 0;
    d->submit_ms = strtod(text, &end);
    if (*end || errno || !(d->submit_ms > 0) || d->submit_ms > 1e6)
        return ob_err_set(err, OB_E_INVALID, "OB_VK_SUBMIT_MS: \"%.40s\" is no number of milliseconds", text);
    return OB_OK;
}

static double nominal(const vk_dev *d, const ob_cost *c)
{
    const struct rates *r = rates_of(d->phys);
    return (c->weight_bytes + c->act_bytes + c->cache_bytes) / r->bytes + c->flops / r->flops;
}

/* Costs are linear in tokens and in what each sees of the cache, nearly: found from three steps. A window is
 * counted as full. */
static vk_cost op_cost(const ob_dev_plan *p, int32_t i)
{
    const ob_op *op = &p->prog.ops[i];
    const int32_t n = OB_MAX(p->prog.max_tok, 2);
    const int32_t window = op->kind == OB_OP_ATTENTION ? op->p.attn.window : 0;
    const double n_kv = OB_MAX(p->max_ctx, 1), kv0 = window ? OB_MIN(n_kv, (double)window) : 0;
    const ob_cost one = ob_op_cost(&p->prog, i, 1, OB_MIN(1, p->prog.max_out), kv0, p->k_type, p->v_type),
                  all = ob_op_cost(&p->prog, i, n, p->prog.max_out, kv0, p->k_type, p->v_type),
                  deep = ob_op_cost(&p->prog, i, n, p->prog.max_out, n_kv, p->k_type, p->v_type);
    vk_cost c = {.tok = (nominal(p->dev, &all) - nominal(p->dev, &one)) / (n - 1)};
    c.fixed = OB_MAX(nominal(p->dev, &one) - c.tok, 0.0);
    c.kv = window ? 0 : OB_MAX(nominal(p->dev, &deep) - nominal(p->dev, &all), 0.0) / n_kv / n;
    return c;
}

static void add(vk_cost *to, const vk_cost *c, double part)
{
    to->fixed += c->fixed * part;
    to->tok += c->tok * part;
    to->kv += c->kv * part;
}

/* An op's cost is shared by its dispatches; one that was taken into another's dispatch costs that one. */
void vk_time_dispatches(ob_dev_plan *p)
{
    for (int32_t k = 0; k < p->n_steps; k++) p->steps[k].cost = (vk_cost){0};
    for (int32_t i = 0; i < p->prog.n_ops; i++) {
        int32_t owner = -1, n = 0;
        for (int32_t k = 0; k < p->n_steps; k++)
            if (p->steps[k].op >= 0 && p->steps[k].op <= i) owner = OB_MAX(owner, p->steps[k].op);
        for (int32_t k = 0; k < p->n_steps; k++) n += p->steps[k].op == owner;
        if (owner < 0 || n == 0) continue;
        const vk_cost c = op_cost(p, i);
        for (int32_t k = 0; k < p->n_steps; k++)
            if (p->steps[k].op == owner) add(&p->steps[k].cost, &c, 1.0 / n);
    }
}

double vk_time_nominal(const vk_cost *c, double n_tok, double n_kv)
{
    return c->fixed + n_tok * (c->tok + n_kv * c->kv);
}

double vk_time_worst(const ob_dev_plan *p, const vk_cost *c)
{
    return p->scale * vk_time_nominal(c, p->prog.max_tok, p->max_ctx);
}

/* A step of this plan took so long. The first one also pays for cold caches: it counts, and is forgotten soon. */
void vk_time_measured(ob_dev_plan *p, double ms)
{
    p->last_ms = ms;
    if (!(p->nominal_ms > 0)) return;
    const double now = OB_MIN(OB_MAX(ms / p->nominal_ms, MIN_SCALE), MAX_SCALE);
    p->scale = p->n_measured == 0 ? now : 0.7 * p->scale + 0.3 * now;
    p->n_measured++;
    if (!p->dev->testing) p->dev->scale = p->scale; /* where the next plan begins */
}
