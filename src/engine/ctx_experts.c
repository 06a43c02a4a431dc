/* The context's part in streaming experts: how many, where programs are cut, and bringing them before a stage. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "engine/ctx_int.h"

/* What a process takes beside weights, caches and workspaces: the program, the vocabulary, stacks. */
#define PROCESS_BYTES ((uint64_t)96 << 20)
/* Left to the rest of the machine where nothing is said: as much as another program may want at once. */
#define SPARE_BYTES ((uint64_t)8 << 30)

ob_status ob_ctx_place_bytes(const ob_ctx *c, const ob_program *prog, int32_t d, uint64_t *weights, uint64_t *cache,
                             ob_err *err)
{
    int32_t *refs[OB_OP_MAX_CACHES];
    uint64_t one;
    bool *seen = ob_calloc((size_t)prog->n_weights + 1, sizeof *seen);
    if (!seen) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the table of weights");
    *weights = *cache = 0;
    for (int32_t i = 0; i < prog->n_ops; i++)
        for (int k = 0; k < OB_OP_MAX_W && c->op_dev[i] == d; k++) {
            const int32_t w = prog->ops[i].w[k];
            if (w == OB_NONE || seen[w] || ob_experts_owns(c->experts, w)) continue;
            seen[w] = true;
            *weights += prog->weights[w].n_bytes;
        }
    ob_free(seen);
    for (int32_t i = 0; i < prog->n_ops; i++) {
        ob_op op = prog->ops[i];
        for (int n = ob_op_cache_refs(&op, refs), k = 0; k < n && c->op_dev[i] == d; k++) {
            const ob_kv_params kp = {.caches = &prog->caches[*refs[k]], .n_caches = 1, .k_type = c->p.k_type,
                                     .v_type = c->p.v_type, .page_tok = OB_PAGE_TOK, .n_pages = c->n_pages};
            OB_TRY(ob_kv_bytes(&kp, &one, err));
            *cache += one;
            if (one / 2 > c->places[d].info.max_buffer_bytes)
                return ob_err_set(err, OB_E_LIMIT, "a layer's cache of %d sequences of %d tokens is larger than device %s "
                                  "allows: try a smaller --ctx-size or fewer sequences", c->p.n_seq, c->p.n_ctx,
                                  c->places[d].info.kind);
        }
    }
    return OB_OK;
}

/* Bytes that slots on place d may take. */
static ob_status room_for_slots(const ob_ctx *c, const ob_program *prog, int32_t d, uint64_t *out, ob_err *err)
{
    const ob_dev_info *at = &c->places[d].info;
    const bool host = at->caps & OB_DEV_HOST_MEMORY;
    uint64_t weights, cache, have, used;
    OB_TRY(ob_ctx_place_bytes(c, prog, d, &weights, &cache, err));
    have = at->mem_free_bytes;
    if (host) have -= OB_MIN(have, OB_MAX(SPARE_BYTES, at->mem_total_bytes / 100 * 15));
    else have -= have / 10; /* workspaces */
    if (c->p.memory_bytes) have = host ? c->p.memory_bytes : OB_MIN(have, c->p.memory_bytes);
    used = weights + cache;
    for (int32_t i = 0; i < prog->n_states; i++) used += (uint64_t)prog->states[i].n_floats * 4 * (uint64_t)c->p.n_seq;
    if (host) {
        /* Two workspaces: the device's, with scratch about as large, and what crosses between stages. */
        ob_program whole = *prog;
        OB_TRY(ob_program_plan(&whole, c->p.n_ubatch, c->p.n_seq, c->p.n_seq, err));
        used += 3 * (uint64_t)whole.workspace_bytes + ob_experts_reader_bytes(c->experts) + PROCESS_BYTES;
    }
    *out = have > used ? have - used : 0;
    return OB_OK;
}

static ob_status auto_slots(const ob_ctx *c, const ob_program *prog, int64_t *n, ob_err *err)
{
    double share = 1;
    for (int32_t d = 0; d < c->n_places; d++) {
        const uint64_t all = ob_experts_place_bytes(c->experts, d, true);
        uint64_t room;
        if (!all) continue;
        OB_TRY(room_for_slots(c, prog, d, &room, err));
        share = OB_MIN(share, (double)room / (double)all);
    }
    *n = (int64_t)(share * (double)ob_experts_count(c->experts));
    return OB_OK;
}

ob_status ob_ctx_plan_experts(ob_ctx *c, const ob_program *prog, ob_err *err)
{
    ob_dev *devs[OB_MAX_PLACES];
    int64_t n = c->p.n_moe_slots;
    if (!n) return OB_OK;
    if (c->p.observe) return ob_err_set(err, OB_E_INVALID, "what matrices multiply cannot be observed while experts are streamed");
    for (int32_t d = 0; d < c->n_places; d++) devs[d] = c->places[d].dev;
    OB_TRY(ob_experts_new(c->file, prog, c->op_dev, devs, &c->experts, err));
    if (!c->experts) {
        if (n != OB_MOE_SLOTS_AUTO) ob_log_warn("the model has no experts: --moe-slots does nothing");
        return OB_OK;
    }
    const int64_t all = ob_experts_count(c->experts);
    if (n == OB_MOE_SLOTS_AUTO) OB_TRY(auto_slots(c, prog, &n, err));
    if (n >= all) {
        ob_log_info("all %lld experts are loaded", (long long)all);
        ob_experts_free(c->experts);
        c->experts = NULL;
        return OB_OK;
    }
    OB_TRY(ob_experts_set_slots(c->experts, n, err));
    const int32_t most = ob_experts_max_tok(c->experts);
    if (c->p.n_seq > most)
        return ob_err_set(err, OB_E_INVALID, "%lld slots hold the experts of %d tokens, and %d sequences run at once: more "
                          "--moe-slots, or fewer sequences", (long long)n, most, c->p.n_seq);
    if (c->p.n_ubatch > most) ob_log_info("steps of %d tokens: so many %lld slots can serve", most, (long long)n);
    c->p.n_ubatch = OB_MIN(c->p.n_ubatch, most);
    c->max_step = c->p.n_ubatch;
    c->moe_slots = ob_calloc((size_t)c->max_step, OB_MOE_MAX_USED * sizeof(float));
    if (!c->moe_slots) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for ids of experts");
    ob_expert_stats st;
    ob_experts_get_stats(c->experts, &st);
    ob_log_info("%lld of %lld experts are kept in memory (%.1f GiB), the others are read when needed",
                (long long)st.n_slots, (long long)all, (double)st.slot_bytes / 1073741824.0);
    return OB_OK;
}

ob_status ob_ctx_attach_experts(ob_ctx *c, ob_err *err)
{
    ob_dev *devs[OB_MAX_PLACES];
    ob_dev_weight **weights[OB_MAX_PLACES];
    if (!c->experts) return OB_OK;
    for (int32_t d = 0; d < c->n_places; d++) {
        devs[d] = c->places[d].dev;
        weights[d] = c->places[d].weights;
    }
    return ob_experts_attach(c->experts, devs, weights, err);
}

ob_status ob_ctx_moe_borders(const ob_ctx *c, const ob_program *prog, bool **out, ob_err *err)
{
    *out = NULL;
    if (!c->experts) return OB_OK;
    *out = ob_calloc((size_t)prog->n_ops, sizeof **out);
    if (!*out) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for stages");
    for (int32_t i = 0; i < prog->n_ops; i++) (*out)[i] = prog->ops[i].kind == OB_OP_MOE_GLU;
    return OB_OK;
}

/* A guess stands between the choice of this mixture's experts and the mixture: the only choice that is an output. */
static ob_val guess_before(const ob_program *prog, int32_t moe)
{
    for (int32_t i = moe - 1; i >= 0 && prog->ops[i].kind != OB_OP_MOE_GLU; i--)
        if (prog->ops[i].kind == OB_OP_MOE_ROUTE && prog->vals[prog->ops[i].out[0]].output) return prog->ops[i].out[0];
    return OB_NONE;
}

ob_status ob_ctx_note_moe(const ob_ctx *c, bucket *b, ob_err *err)
{
    ob_arena *a = &b->stages->arena;
    b->moe_op = ob_arena_array(a, (size_t)b->stages->n, sizeof *b->moe_op);
    b->guess = ob_arena_array(a, (size_t)b->stages->n, sizeof *b->guess);
    if (!b->moe_op || !b->guess) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for stages");
    for (int32_t i = 0, op = 0; i < b->stages->n; op += b->stages->stage[i++].prog.n_ops) {
        const bool streams = c->experts && b->prog->ops[op].kind == OB_OP_MOE_GLU;
        b->moe_op[i] = streams ? op : OB_NONE;
        b->guess[i] = streams ? guess_before(b->prog, op) : OB_NONE;
    }
    return OB_OK;
}

ob_status ob_ctx_bring_experts(ob_ctx *c, const bucket *b, int32_t i, const ob_step *st, ob_err *err)
{
    const ob_program *g = b->prog;
    const ob_val ids = g->ops[b->moe_op[i]].in[1], guess = b->guess[i];
    const int32_t rows = ob_value_rows(g, ids, st->n_tok, st->n_out, st->n_seq);
    if (!rows) return OB_OK;
    return ob_experts_acquire(c->experts, b->moe_op[i], b->cross[ids], rows, g->vals[ids].cols,
                              guess == OB_NONE ? NULL : b->cross[guess], guess == OB_NONE ? 0 : g->vals[guess].cols,
                              c->moe_slots, err);
}

void ob_ctx_expert_stats(const ob_ctx *c, ob_expert_stats *out)
{
    *out = (ob_expert_stats){0};
    if (c->experts) ob_experts_get_stats(c->experts, out);
}
