#include "engine/stages.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"

/* ------------------------------------------------------------------ placement */

static int32_t n_layers(const ob_program *p)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_ops; i++) n = OB_MAX(n, p->ops[i].layer + 1);
    return n;
}

/* Device of a layer: the one within whose share its middle lies. */
static int32_t layer_dev(const ob_placement *pl, int32_t layer, int32_t n)
{
    double total = 0, sum = 0;
    for (int32_t d = 0; d < pl->n_dev; d++) total += pl->share[d];
    for (int32_t d = 0; d < pl->n_dev - 1; d++) {
        sum += pl->share[d];
        if (layer + 0.5 < n * sum / total) return d;
    }
    return pl->n_dev - 1;
}

void ob_place_ops(const ob_program *p, const ob_placement *pl, int32_t *op_dev)
{
    const int32_t n = n_layers(p);
    int32_t last = 0;
    for (int32_t i = 0; i < p->n_ops; i++) {
        const ob_op *op = &p->ops[i];
        if (op->layer >= 0) last = layer_dev(pl, op->layer, n);
        op_dev[i] = op->kind == OB_OP_MOE_GLU && op->layer >= 0 && op->layer < pl->n_cpu_moe ? pl->cpu : last;
    }
}

/* ------------------------------------------------------------------ cutting */

typedef struct cutter {
    const ob_program *whole;
    ob_stages *out;
    int32_t *first;        /* [n stages + 1] ops */
    bool *needs;           /* [n stages][n_vals]: read before the stage writes it */
    bool *writes;          /* [n stages][n_vals] */
    int32_t *local;        /* index in the stage of a value, weight, cache or state; OB_NONE: not there */
} cutter;

static void *take(cutter *c, int32_t n, size_t size) { return ob_arena_array(&c->out->arena, (size_t)n + 1, size); }

static bool begins(const int32_t *op_dev, const bool *border, int32_t i)
{
    return i == 0 || op_dev[i] != op_dev[i - 1] || (border && border[i]);
}

static void find_borders(cutter *c, const int32_t *op_dev, const bool *border)
{
    const int32_t n_ops = c->whole->n_ops, n_vals = c->whole->n_vals;
    int32_t s = -1;
    for (int32_t i = 0; i < n_ops; i++) {
        if (begins(op_dev, border, i)) {
            c->first[++s] = i;
            c->out->stage[s].dev = op_dev[i];
        }
        bool *needs = c->needs + (size_t)s * (size_t)n_vals, *writes = c->writes + (size_t)s * (size_t)n_vals;
        const ob_op *op = &c->whole->ops[i];
        for (int k = 0; k < OB_OP_MAX_IN; k++)
            if (op->in[k] != OB_NONE && !writes[op->in[k]]) needs[op->in[k]] = true;
        for (int k = 0; k < OB_OP_MAX_OUT; k++)
            if (op->out[k] != OB_NONE) writes[op->out[k]] = true;
    }
    c->out->n = s + 1;
    c->first[s + 1] = n_ops;
}

static bool needed_later(const cutter *c, int32_t s, ob_val v)
{
    for (int32_t t = s + 1; t < c->out->n; t++)
        if (c->needs[(size_t)t * (size_t)c->whole->n_vals + (size_t)v]) return true;
    return false;
}

/* Values in the order of the whole program, so that one stage alone is the program as it was. */
static ob_status cut_values(cutter *c, int32_t s, ob_err *err)
{
    const ob_program *w = c->whole;
    ob_stage *st = &c->out->stage[s];
    const bool *needs = c->needs + (size_t)s * (size_t)w->n_vals, *writes = c->writes + (size_t)s * (size_t)w->n_vals;
    st->prog.vals = take(c, w->n_vals, sizeof *st->prog.vals);
    st->val_of = take(c, w->n_vals, sizeof *st->val_of);
    if (!st->prog.vals || !st->val_of) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a stage");
    for (ob_val v = 0; v < w->n_vals; v++) {
        c->local[v] = OB_NONE;
        if (!needs[v] && !writes[v]) continue;
        const int32_t at = c->local[v] = st->prog.n_vals++;
        st->prog.vals[at] = w->vals[v];
        st->prog.vals[at].input = needs[v];
        st->prog.vals[at].output = writes[v] && (w->vals[v].output || needed_later(c, s, v));
        st->val_of[at] = v;
    }
    for (int32_t i = 0; i < st->prog.n_ops; i++) {
        ob_op *op = &st->prog.ops[i];
        for (int k = 0; k < OB_OP_MAX_IN; k++)
            if (op->in[k] != OB_NONE) op->in[k] = c->local[op->in[k]];
        for (int k = 0; k < OB_OP_MAX_OUT; k++)
            if (op->out[k] != OB_NONE) op->out[k] = c->local[op->out[k]];
    }
    st->prog.logits = w->logits != OB_NONE && writes[w->logits] ? c->local[w->logits] : OB_NONE;
    st->prog.top = w->top != OB_NONE && writes[w->top] ? c->local[w->top] : OB_NONE;
    st->prog.embeddings = w->embeddings != OB_NONE && writes[w->embeddings] ? c->local[w->embeddings] : OB_NONE;
    return OB_OK;
}

/* The stage's number of what the whole program calls *ref, given at its first use. */
static void renumber(int32_t *local, int32_t *whole_of, int32_t *n, int32_t *ref)
{
    if (*ref < 0) return;
    if (local[*ref] < 0) {
        whole_of[*n] = *ref;
        local[*ref] = (*n)++;
    }
    *ref = local[*ref];
}

static ob_status cut_weights(cutter *c, ob_stage *st, ob_err *err)
{
    const ob_program *w = c->whole;
    ob_program *g = &st->prog;
    g->weights = take(c, w->n_weights, sizeof *g->weights);
    st->weight_of = take(c, w->n_weights, sizeof *st->weight_of);
    if (!g->weights || !st->weight_of) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a stage");
    for (int32_t i = 0; i < w->n_weights; i++) c->local[i] = OB_NONE;
    for (int32_t i = 0; i < g->n_ops; i++)
        for (int k = 0; k < OB_OP_MAX_W; k++) renumber(c->local, st->weight_of, &g->n_weights, &g->ops[i].w[k]);
    for (int32_t i = 0; i < g->n_weights; i++) g->weights[i] = w->weights[st->weight_of[i]];
    return OB_OK;
}

static ob_status cut_caches(cutter *c, ob_stage *st, ob_err *err)
{
    const ob_program *w = c->whole;
    ob_program *g = &st->prog;
    int32_t *refs[OB_MAX(OB_OP_MAX_CACHES, OB_OP_MAX_STATES)];
    g->caches = take(c, w->n_caches, sizeof *g->caches);
    st->cache_of = take(c, w->n_caches, sizeof *st->cache_of);
    g->states = take(c, w->n_states, sizeof *g->states);
    st->state_of = take(c, w->n_states, sizeof *st->state_of);
    if (!g->caches || !st->cache_of || !g->states || !st->state_of)
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a stage");
    for (int32_t i = 0; i < w->n_caches; i++) c->local[i] = OB_NONE;
    for (int32_t i = 0; i < g->n_ops; i++)
        for (int n = ob_op_cache_refs(&g->ops[i], refs), k = 0; k < n; k++)
            renumber(c->local, st->cache_of, &g->n_caches, refs[k]);
    for (int32_t i = 0; i < g->n_caches; i++) g->caches[i] = w->caches[st->cache_of[i]];
    for (int32_t i = 0; i < w->n_states; i++) c->local[i] = OB_NONE;
    for (int32_t i = 0; i < g->n_ops; i++)
        for (int n = ob_op_state_refs(&g->ops[i], refs), k = 0; k < n; k++)
            renumber(c->local, st->state_of, &g->n_states, refs[k]);
    for (int32_t i = 0; i < g->n_states; i++) g->states[i] = w->states[st->state_of[i]];
    return OB_OK;
}

static ob_status cut_stage(cutter *c, int32_t s, ob_err *err)
{
    ob_stage *st = &c->out->stage[s];
    st->prog.n_ops = c->first[s + 1] - c->first[s];
    st->prog.ops = take(c, st->prog.n_ops, sizeof *st->prog.ops);
    if (!st->prog.ops) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a stage");
    memcpy(st->prog.ops, c->whole->ops + c->first[s], (size_t)st->prog.n_ops * sizeof *st->prog.ops);
    OB_TRY(cut_values(c, s, err));
    OB_TRY(cut_weights(c, st, err));
    return cut_caches(c, st, err);
}

ob_status ob_stages_new(const ob_program *whole, const int32_t *op_dev, const bool *border, ob_stages **out, ob_err *err)
{
    ob_status s = OB_OK;
    int32_t most = 1;
    *out = NULL;
    for (int32_t i = 1; i < whole->n_ops; i++) most += begins(op_dev, border, i);
    ob_stages *st = ob_calloc(1, sizeof *st);
    if (!st) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for stages");
    ob_arena_init(&st->arena, (size_t)1 << 30);
    cutter c = {.whole = whole, .out = st};
    const int32_t n_local = OB_MAX(OB_MAX(whole->n_vals, whole->n_weights), OB_MAX(whole->n_caches, whole->n_states));
    st->stage = take(&c, most, sizeof *st->stage);
    c.first = take(&c, most, sizeof *c.first);
    c.local = take(&c, n_local, sizeof *c.local);
    c.needs = ob_calloc((size_t)most, (size_t)whole->n_vals + 1);
    c.writes = ob_calloc((size_t)most, (size_t)whole->n_vals + 1);
    if (!st->stage || !c.first || !c.local || !c.needs || !c.writes) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for %d stages", most);
        goto out;
    }
    find_borders(&c, op_dev, border);
    for (int32_t i = 0; i < st->n; i++) OB_GOTO(cut_stage(&c, i, err));
    *out = st;
out:
    ob_free(c.needs);
    ob_free(c.writes);
    if (s != OB_OK) ob_stages_free(st);
    return s;
}

void ob_stages_free(ob_stages *s)
{
    if (!s) return;
    ob_arena_deinit(&s->arena);
    ob_free(s);
}
