#include "engine/ctx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/math.h"
#include "engine/ctx_int.h"
#include "engine/recipes.h"

enum { TOP_COLS = 2 * OB_TOP_K_MAX + 2 };

/* ------------------------------------------------------------------ plans */

static void bucket_deinit(ob_ctx *c, bucket *b)
{
    for (int32_t s = 0; b->stages && b->plans && s < b->stages->n; s++) {
        ob_dev *dev = c->places[b->stages->stage[s].dev].dev;
        if (b->plans[s]) dev->api->plan_free(dev, b->plans[s]);
    }
    ob_free(b->cross_memory);
    ob_free(b->cross);
    ob_free(b->plans);
    ob_stages_free(b->stages);
    ob_program_free(b->prog);
}

static ob_status check_supported(const ob_program *prog, const ob_dev *dev, ob_err *err)
{
    for (int32_t i = 0; i < prog->n_ops; i++) {
        char why[200];
        if (!dev->api->supports(dev, prog, i, why, sizeof why))
            return ob_err_set(err, OB_E_UNSUPPORTED, "device %s cannot run op %s of layer %d: %s", dev->api->kind,
                              ob_op_name(prog->ops[i].kind), prog->ops[i].layer, why);
    }
    return OB_OK;
}

/* The plan of one stage: its weights, caches and states are those of the whole program, by the stage's numbers. */
static ob_status plan_stage(ob_ctx *c, bucket *b, int32_t number, ob_err *err)
{
    ob_status s = OB_OK;
    ob_stage *st = &b->stages->stage[number];
    const place *at = &c->places[st->dev];
    OB_TRY(ob_program_plan(&st->prog, b->max_tok, b->max_out, c->p.n_seq, err));
    OB_TRY(check_supported(&st->prog, at->dev, err));
    ob_arena *a = &b->stages->arena;
    ob_dev_weight **weights = ob_arena_array(a, (size_t)st->prog.n_weights + 1, sizeof(ob_dev_weight *));
    ob_dev_buf **k = ob_arena_array(a, (size_t)st->prog.n_caches + 1, sizeof(ob_dev_buf *));
    ob_dev_buf **v = ob_arena_array(a, (size_t)st->prog.n_caches + 1, sizeof(ob_dev_buf *));
    ob_dev_buf **states = ob_arena_array(a, (size_t)st->prog.n_states + 1, sizeof(ob_dev_buf *));
    if (!weights || !k || !v || !states) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
    for (int32_t i = 0; i < st->prog.n_weights; i++) weights[i] = at->weights[st->weight_of[i]];
    for (int32_t i = 0; i < st->prog.n_caches; i++) {
        k[i] = ob_kv_k(c->kv)[st->cache_of[i]];
        v[i] = ob_kv_v(c->kv)[st->cache_of[i]];
    }
    for (int32_t i = 0; i < st->prog.n_states; i++) states[i] = c->states[st->state_of[i]];
    ob_plan_bindings bind = {.weights = weights, .cache_k = k, .cache_v = v, .k_type = c->p.k_type,
                             .v_type = c->p.v_type, .page_tok = OB_PAGE_TOK, .n_pages = c->n_pages,
                             .max_ctx = c->p.n_ctx, .states = states, .n_slots = c->p.n_seq};
    OB_GOTO(at->dev->api->plan_new(at->dev, &st->prog, &bind, &b->plans[number], err));
out:
    return s;
}

/* Host memory for values that go from stage to stage. The whole program's plan has a place for each, so that those
 * alive at the same time do not overlap. */
static ob_status place_crossing(bucket *b, ob_err *err)
{
    b->cross = ob_calloc((size_t)b->prog->n_vals + 1, sizeof(float *));
    bool any = b->stages->n > 1;
    for (ob_val v = 0; v < b->stages->stage[0].prog.n_vals; v++) any |= b->stages->stage[0].prog.vals[v].input;
    if (any && b->cross) b->cross_memory = ob_aligned_alloc(64, OB_MAX(b->prog->workspace_bytes, (size_t)64));
    if (!b->cross || (any && !b->cross_memory)) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
    for (int32_t i = 0; i < b->stages->n && any; i++) {
        const ob_stage *st = &b->stages->stage[i];
        for (ob_val v = 0; v < st->prog.n_vals; v++) {
            const ob_val whole = st->val_of[v];
            if (st->prog.vals[v].input)
                b->cross[whole] = (float *)(void *)((uint8_t *)b->cross_memory + b->prog->vals[whole].offset);
        }
    }
    for (int32_t i = 0; i < b->stages->n; i++)
        if (b->guess[i] != OB_NONE)
            b->cross[b->guess[i]] = (float *)(void *)((uint8_t *)b->cross_memory + b->prog->vals[b->guess[i]].offset);
    return OB_OK;
}

/* With the best logits of each row, where the device can find them, and guesses of experts, where they are streamed. */
static ob_status make_program(const ob_ctx *c, ob_program **out, ob_err *err)
{
    ob_status s = OB_OK;
    OB_TRY(ob_model_program(c->model, out, err));
    const bool generates = ob_model_hparams(c->model)->output == OB_OUTPUT_LOGITS;
    if (c->p.n_moe_slots && c->p.moe_guess) s = ob_program_add_guesses(*out, err);
    if (c->gives_top && generates && (*out)->logits != OB_NONE && s == OB_OK)
        s = ob_program_add_top_k(*out, OB_TOP_K_MAX, err);
    if (s == OB_OK && c->experts) ob_experts_shape(c->experts, *out);
    if (s == OB_OK) return OB_OK;
    ob_program_free(*out);
    *out = NULL;
    return s;
}

/* The first program decides whether there are best logits: all programs must have the same ops. A device whose kernel
 * for them is wrong goes without. */
static ob_status first_program(ob_ctx *c, ob_program **out, ob_err *err)
{
    char why[200];
    const ob_dev *last = c->places[c->placement.n_dev - 1].dev;
    c->gives_top = c->dev_info.caps & OB_DEV_SAMPLE;
    OB_TRY(make_program(c, out, err));
    if ((*out)->top == OB_NONE || last->api->supports(last, *out, (*out)->n_ops - 1, why, sizeof why)) return OB_OK;
    c->gives_top = false;
    ob_program_free(*out);
    return make_program(c, out, err);
}

/* prog: a program of the model that nobody has yet, taken; NULL: one is made. */
static ob_status bucket_new(ob_ctx *c, int32_t max_tok, int32_t max_out, ob_program *prog, bucket **out,
                            ob_err *err)
{
    ob_status s = OB_OK;
    bool *borders = NULL;
    bucket b = {.max_tok = max_tok, .max_out = max_out, .prog = prog};
    if (c->n_buckets == (int32_t)OB_COUNT(c->buckets)) {
        s = ob_err_set(err, OB_E_INTERNAL, "too many plans");
        goto out;
    }
    if (!b.prog) OB_GOTO(make_program(c, &b.prog, err));
    OB_GOTO(ob_program_plan(b.prog, max_tok, max_out, c->p.n_seq, err));
    OB_GOTO(ob_ctx_moe_borders(c, b.prog, &borders, err));
    OB_GOTO(ob_stages_new(b.prog, c->op_dev, borders, &b.stages, err));
    OB_GOTO(ob_ctx_note_moe(c, &b, err));
    OB_GOTO(place_crossing(&b, err));
    b.plans = ob_calloc((size_t)b.stages->n, sizeof(ob_dev_plan *));
    if (!b.plans) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
        goto out;
    }
    for (int32_t i = 0; i < b.stages->n; i++) OB_GOTO(plan_stage(c, &b, i, err));
    c->buckets[c->n_buckets] = b;
    *out = &c->buckets[c->n_buckets++];
out:
    ob_free(borders);
    if (s != OB_OK) bucket_deinit(c, &b);
    return s;
}

/* Sizes of plans on a device where a plan costs what its bucket holds: powers of two for decode, then
 * prefill chunks. */
static int32_t fixed_size(const ob_ctx *c, int32_t n)
{
    static const int32_t sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
    for (size_t i = 0; i < OB_COUNT(sizes); i++)
        if (sizes[i] >= n) return OB_MIN(sizes[i], OB_MAX(c->p.n_ubatch, n));
    int32_t size = c->p.n_ubatch;
    while (size < n) size = OB_MIN(4 * size, c->max_step);
    return size;
}

/* Rows of output of a plan for max_tok tokens. */
static int32_t fixed_out(const ob_ctx *c, int32_t max_tok, int32_t n_out)
{
    return n_out <= c->p.n_seq ? OB_MIN(c->p.n_seq, max_tok) : max_tok;
}

static ob_status fixed_bucket(ob_ctx *c, int32_t n_tok, int32_t n_out, bucket **out, ob_err *err)
{
    const int32_t max_tok = fixed_size(c, n_tok), max_out = fixed_out(c, max_tok, n_out);
    for (int32_t i = 0; i < c->n_buckets; i++)
        if (c->buckets[i].max_tok == max_tok && c->buckets[i].max_out == max_out) {
            *out = &c->buckets[i];
            return OB_OK;
        }
    return bucket_new(c, max_tok, max_out, NULL, out, err);
}

/* The smallest bucket that holds the step. The first one (n_ubatch tokens, n_seq rows) is made at
 * load and serves all that a server does; one with as many output rows as tokens comes on demand, and so
 * do larger ones, each four times the last, where a text runs whole. On a device without
 * OB_DEV_DYNAMIC_ROWS each size has its own. */
static ob_status bucket_for(ob_ctx *c, int32_t n_tok, int32_t n_out, bucket **out, ob_err *err)
{
    if (!(c->dev_info.caps & OB_DEV_DYNAMIC_ROWS)) return fixed_bucket(c, n_tok, n_out, out, err);
    bucket *best = NULL;
    for (int32_t i = 0; i < c->n_buckets; i++) {
        bucket *b = &c->buckets[i];
        if (b->max_tok < n_tok || b->max_out < n_out) continue;
        if (!best || b->max_tok < best->max_tok || b->max_out < best->max_out) best = b;
    }
    *out = best;
    if (best) return OB_OK;
    int32_t max_tok = c->p.n_ubatch;
    while (max_tok < n_tok) max_tok = OB_MIN(4 * max_tok, c->max_step);
    return bucket_new(c, max_tok, n_out <= c->p.n_seq ? c->p.n_seq : max_tok, NULL, out, err);
}

/* What every request needs is made at load: the largest step, and on a device with plans of fixed size
 * also decode of one sequence and of all. */
static ob_status make_buckets(ob_ctx *c, ob_program *prog, ob_err *err)
{
    bucket *b;
    OB_TRY(bucket_new(c, c->p.n_ubatch, c->p.n_seq, prog, &b, err)); /* takes prog */
    if (c->dev_info.caps & OB_DEV_DYNAMIC_ROWS) return OB_OK;
    OB_TRY(fixed_bucket(c, 1, 1, &b, err));
    return fixed_bucket(c, c->p.n_seq, c->p.n_seq, &b, err);
}

static ob_status need_rows(ob_ctx *c, int32_t rows, ob_err *err)
{
    if (rows <= c->max_rows) return OB_OK;
    float *p = ob_reallocarray(c->rows, (size_t)rows, (size_t)c->n_cols * sizeof *p);
    if (!p) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %d rows of results", rows);
    c->rows = p;
    if (c->gives_top) {
        p = ob_reallocarray(c->top, (size_t)rows, TOP_COLS * sizeof *p);
        if (!p) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %d rows of results", rows);
        c->top = p;
    }
    c->max_rows = rows;
    return OB_OK;
}

static ob_val result_of(const ob_program *p) { return p->logits != OB_NONE ? p->logits : p->embeddings; }

/* ------------------------------------------------------------------ load */

/* Not a generating model: nothing of a text outlives its step. */
static bool runs_whole(const ob_ctx *c) { return ob_model_hparams(c->model)->output != OB_OUTPUT_LOGITS; }

/* Largest context, by page, whose cache takes at most a quarter of the memory that is there. */
static ob_status choose_ctx(ob_ctx *c, const ob_program *prog, ob_err *err)
{
    const ob_hparams *h = ob_model_hparams(c->model);
    ob_kv_params kp = {.caches = prog->caches, .n_caches = prog->n_caches, .k_type = c->p.k_type,
                       .v_type = c->p.v_type, .page_tok = OB_PAGE_TOK, .n_pages = 1};
    uint64_t page;
    OB_TRY(ob_kv_bytes(&kp, &page, err));
    bool chosen = c->p.n_ctx <= 0;
    if (chosen) {
        uint64_t memory = c->dev_info.mem_free_bytes ? c->dev_info.mem_free_bytes : (uint64_t)8 << 30;
        if (c->p.memory_bytes) memory = OB_MIN(memory, c->p.memory_bytes);
        uint64_t pages = page ? memory / 4 / page / (uint64_t)c->p.n_seq : UINT64_MAX;
        uint64_t most = OB_MAX(pages * OB_PAGE_TOK, (uint64_t)512);
        c->p.n_ctx = (int32_t)OB_MIN((uint64_t)h->n_ctx_train, pages == UINT64_MAX ? (uint64_t)32768 : most);
    } else if (c->p.n_ctx > OB_MAX_CTX) {
        return ob_err_set(err, OB_E_INVALID, "context of %d tokens, at most %d are possible", c->p.n_ctx,
                          OB_MAX_CTX);
    } else if (c->p.n_ctx > h->n_ctx_train) {
        ob_log_warn("context of %d tokens is more than the model was trained for (%d)", c->p.n_ctx,
                    h->n_ctx_train);
    }
    if (h->n_ctx_max && c->p.n_ctx > h->n_ctx_max)
        return ob_err_set(err, OB_E_INVALID, "context of %d tokens, but the model has positions for %d only",
                          c->p.n_ctx, h->n_ctx_max);
    c->max_step = c->p.n_ubatch;
    if (runs_whole(c)) {
        c->p.n_ctx = OB_MIN(c->p.n_ctx, c->dev_info.max_tok > 0 ? c->dev_info.max_tok : OB_MAX_UBATCH);
        c->p.n_ubatch = OB_MIN(c->p.n_ubatch, OB_MAX(c->p.n_ctx, c->p.n_seq));
        c->max_step = OB_MAX(c->p.n_ubatch, c->p.n_ctx);
    }
    c->max_pages = (int32_t)ob_div_up(c->p.n_ctx, OB_PAGE_TOK);
    /* Texts that run whole hold pages for one step only. */
    c->n_pages = runs_whole(c) ? (int32_t)ob_div_up(c->max_step, OB_PAGE_TOK) + c->p.n_seq
                               : c->p.n_seq * c->max_pages;
    return OB_OK;
}

/* States lie where their op runs; each device keeps checkpoints of its own. */
static ob_status make_states(ob_ctx *c, const ob_program *prog, ob_err *err)
{
    ob_status s = OB_OK;
    ob_state_spec *specs = ob_calloc((size_t)prog->n_states + 1, sizeof *specs);
    c->states = ob_calloc((size_t)prog->n_states + 1, sizeof(ob_dev_buf *));
    if (!c->states || !specs) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for states");
        goto out;
    }
    c->n_states = prog->n_states;
    for (int32_t d = 0; d < c->n_places; d++) {
        place *at = &c->places[d];
        int32_t n = 0;
        at->states = ob_calloc((size_t)prog->n_states + 1, sizeof(ob_dev_buf *));
        if (!at->states) {
            s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for states");
            goto out;
        }
        for (int32_t i = 0; i < prog->n_states; i++) {
            if (c->state_dev[i] != d) continue;
            const uint64_t bytes = (uint64_t)prog->states[i].n_floats * 4 * (uint64_t)c->p.n_seq;
            OB_GOTO(at->dev->api->buffer_new(at->dev, bytes, OB_BUF_ZERO, &c->states[i], err));
            at->states[n] = c->states[i];
            specs[n++] = prog->states[i];
        }
        if (n) OB_GOTO(ob_ckpts_new(at->dev, at->states, specs, n, OB_PAGE_TOK, c->p.n_ctx, &at->ckpts, err));
    }
out:
    ob_free(specs);
    return s;
}

static ob_status make_cache(ob_ctx *c, const ob_program *prog, ob_err *err)
{
    ob_status s = OB_OK;
    int32_t *refs[OB_MAX(OB_OP_MAX_CACHES, OB_OP_MAX_STATES)];
    ob_dev **devs = ob_calloc((size_t)prog->n_caches + 1, sizeof(ob_dev *));
    c->state_dev = ob_calloc((size_t)prog->n_states + 1, sizeof *c->state_dev);
    if (!devs || !c->state_dev) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for the cache");
        goto out;
    }
    for (int32_t i = 0; i < prog->n_caches; i++) devs[i] = c->dev;
    for (int32_t i = 0; i < prog->n_ops; i++) {
        for (int n = ob_op_cache_refs(&prog->ops[i], refs), k = 0; k < n; k++)
            devs[*refs[k]] = c->places[c->op_dev[i]].dev;
        for (int n = ob_op_state_refs(&prog->ops[i], refs), k = 0; k < n; k++) c->state_dev[*refs[k]] = c->op_dev[i];
    }
    ob_kv_params kp = {.caches = prog->caches, .n_caches = prog->n_caches, .k_type = c->p.k_type,
                       .v_type = c->p.v_type, .page_tok = OB_PAGE_TOK, .n_pages = c->n_pages, .devs = devs};
    OB_GOTO(ob_kv_new(c->dev, &kp, &c->kv, err));
    OB_GOTO(make_states(c, prog, err));
out:
    ob_free(devs);
    return s;
}

static ob_status make_step_arrays(ob_ctx *c, ob_err *err)
{
    size_t nt = (size_t)c->max_step, ns = (size_t)c->p.n_seq;
    c->seqs = ob_calloc(ns, sizeof *c->seqs);
    c->s_tok = ob_calloc(nt, sizeof(int32_t));
    c->s_pos = ob_calloc(nt, sizeof(int32_t));
    c->s_type = ob_calloc(nt, sizeof(int32_t));
    c->s_coarse = ob_calloc(nt, 1);
    c->s_out = ob_calloc(nt, sizeof(int32_t));
    c->s_first = ob_calloc(ns + 1, sizeof(int32_t));
    c->s_past = ob_calloc(ns, sizeof(int32_t));
    c->s_slot = ob_calloc(ns, sizeof(int32_t));
    c->s_table = ob_calloc(ns, (size_t)c->max_pages * sizeof(int32_t));
    bool ok = c->seqs && c->s_tok && c->s_pos && c->s_type && c->s_coarse && c->s_out && c->s_first && c->s_past && c->s_slot &&
              c->s_table;
    for (int32_t i = 0; i < c->p.n_seq && ok; i++) {
        c->seqs[i].slot = i;
        c->seqs[i].tok = ob_calloc((size_t)c->p.n_ctx, sizeof(int32_t));
        c->seqs[i].pages = ob_calloc((size_t)c->max_pages, sizeof(int32_t));
        ok = c->seqs[i].tok && c->seqs[i].pages;
    }
    if (!ok)
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %d sequences of %d tokens", c->p.n_seq,
                          c->p.n_ctx);
    return need_rows(c, c->p.n_seq, err);
}

/* What steps with pictures need beside the rest. */
static ob_status make_picture_arrays(ob_ctx *c, ob_err *err)
{
    const size_t n = (size_t)c->max_step;
    if (!c->p.n_picture_tok) return OB_OK;
    c->s_pos_h = ob_calloc(n, sizeof(int32_t));
    c->s_pos_w = ob_calloc(n, sizeof(int32_t));
    c->s_block_first = ob_calloc(n, sizeof(int32_t));
    c->s_block_end = ob_calloc(n, sizeof(int32_t));
    c->s_vec = ob_calloc(n, (size_t)ob_model_hparams(c->model)->n_embd * sizeof(float));
    if (c->s_pos_h && c->s_pos_w && c->s_block_first && c->s_block_end && c->s_vec) return OB_OK;
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory for pictures in a step of %zu tokens", n);
}

/* A picture whose tokens see each other runs in one step, beside a token of every other sequence. */
static ob_status fit_pictures(ob_ctx *c, ob_err *err)
{
    if (!ob_model_hparams(c->model)->picture_blocks || !c->p.n_picture_tok) return OB_OK;
    const int32_t need = c->p.n_picture_tok + c->p.n_seq;
    if (need > OB_MAX_UBATCH)
        return ob_err_set(err, OB_E_UNSUPPORTED, "pictures of %d tokens do not fit one step of %d", c->p.n_picture_tok,
                          OB_MAX_UBATCH);
    if (need > c->p.n_ubatch) ob_log_info("steps of %d tokens instead of %d, to hold a picture", need, c->p.n_ubatch);
    c->p.n_ubatch = OB_MAX(c->p.n_ubatch, need);
    return OB_OK;
}

/* Tokens of a step, where nothing was asked for: what a recipe says, or what suits the device, but no more than a context. */
static void choose_ubatch(ob_ctx *c)
{
    enum { USUAL = 512 };
    if (c->p.n_ubatch <= 0) {
        const ob_recipe *r = c->p.no_recipes ? NULL : ob_recipe_find(c->file, c->dev_info.kind);
        if (r) ob_log_info("recipe %s: --ubatch-size %d", r->id, r->n_ubatch);
        c->p.n_ubatch = r ? r->n_ubatch : OB_MAX(c->dev_info.good_tok, USUAL);
        if (c->p.n_ctx > 0) c->p.n_ubatch = OB_MIN(c->p.n_ubatch, OB_MAX(c->p.n_ctx, USUAL));
    }
    c->p.n_ubatch = OB_MAX(c->p.n_ubatch, c->p.n_seq);
}

static ob_status check_vocab(const ob_ctx *c, ob_err *err)
{
    int32_t n_tok = ob_tok_n_vocab(c->tok), n_embd = ob_model_hparams(c->model)->n_vocab;
    if (n_tok > n_embd)
        return ob_err_set(err, OB_E_FORMAT, "the vocabulary has %d tokens but token_embd.weight only %d rows",
                          n_tok, n_embd);
    return OB_OK;
}

/* ------------------------------------------------------------------ devices */

static ob_status open_place(ob_ctx *c, const char *spec, ob_err *err)
{
    const ob_dev_source src = {.path = ob_file_path(c->file), .stamp = ob_file_stamp(c->file)};
    const ob_dev_options opt = {.n_threads = c->p.n_threads, .exact = c->p.exact, .profile = c->p.profile,
                                .observe = c->p.observe, .observe_arg = c->p.observe_arg, .source = src.stamp ? &src : NULL,
                                .verify = c->p.verify, .pin = c->p.pin_weights, .unit_mode = c->p.unit_mode};
    if (c->n_places == OB_MAX_PLACES)
        return ob_err_set(err, OB_E_LIMIT, "more than %d devices for one model", OB_MAX_PLACES);
    place *at = &c->places[c->n_places];
    OB_TRY(ob_dev_open(spec, &opt, &at->dev, err));
    at->dev->api->describe(at->dev, &at->info);
    c->n_places++;
    return OB_OK;
}

/* Which of the open devices is a CPU; opened if there is none. */
static ob_status find_cpu(ob_ctx *c, ob_err *err)
{
    ob_placement *pl = &c->placement;
    for (pl->cpu = 0; pl->cpu < c->n_places; pl->cpu++)
        if (strcmp(c->places[pl->cpu].info.kind, "cpu") == 0) return OB_OK;
    return open_place(c, "cpu", err);
}

/* Shares of the layers as asked for, or by free memory, or equal ones where a device does not tell. */
static ob_status read_shares(ob_ctx *c, ob_err *err)
{
    ob_placement *pl = &c->placement;
    bool known = true;
    for (int32_t d = 0; d < pl->n_dev; d++) known &= c->places[d].info.mem_free_bytes > 0;
    for (int32_t d = 0; d < pl->n_dev; d++)
        pl->share[d] = known ? (double)c->places[d].info.mem_free_bytes : 1;
    if (!c->split || !*c->split) return OB_OK;
    const char *at = c->split;
    int32_t n = 0;
    for (char *end; n < OB_MAX_PLACES; at = end + 1) {
        const double x = strtod(at, &end);
        if (end == at || !(x > 0) || x > 1e12 || (*end && *end != ',')) break;
        pl->share[n++] = x;
        if (!*end) {
            if (n == pl->n_dev) return OB_OK;
            return ob_err_set(err, OB_E_INVALID, "--split has %d shares for %d devices: give one for each that --device "
                              "names", n, pl->n_dev);
        }
    }
    return ob_err_set(err, OB_E_INVALID, "--split \"%.60s\": numbers above 0 by commas are expected", c->split);
}

/* One description for all devices together. */
static void describe_places(ob_ctx *c)
{
    c->dev = c->places[0].dev;
    c->dev_info = c->places[0].info;
    for (int32_t d = 1; d < c->n_places; d++) {
        const ob_dev_info *i = &c->places[d].info;
        const size_t n = strlen(c->dev_info.name);
        snprintf(c->dev_info.name + n, sizeof c->dev_info.name - n, " + %s", i->name);
        c->dev_info.caps = (c->dev_info.caps & i->caps) | ((c->dev_info.caps | i->caps) & OB_DEV_SOFT);
        c->dev_info.max_tok = OB_MIN(c->dev_info.max_tok, i->max_tok);
        if (d >= c->placement.n_dev) continue; /* a CPU that only holds experts has no share of the cache */
        c->dev_info.mem_total_bytes += i->mem_total_bytes;
        c->dev_info.mem_free_bytes += i->mem_free_bytes;
    }
}

static ob_status open_places(ob_ctx *c, ob_err *err)
{
    char spec[64];
    for (const char *at = c->device_spec;; at++) {
        const size_t n = strcspn(at, ",");
        snprintf(spec, sizeof spec, "%.*s", (int)OB_MIN(n, sizeof spec - 1), at);
        OB_TRY(open_place(c, spec, err));
        at += n;
        if (!*at) break;
    }
    c->placement.n_dev = c->n_places;
    OB_TRY(read_shares(c, err));
    c->placement.n_cpu_moe = c->p.n_cpu_moe;
    if (c->p.n_cpu_moe > 0 || c->needs_cpu) OB_TRY(find_cpu(c, err));
    describe_places(c);
    return OB_OK;
}

/* Ops that their device lacks go to the CPU, where that is allowed. */
static ob_status place_missing_ops(ob_ctx *c, const ob_program *prog, ob_err *err)
{
    char why[200], first[200] = "";
    int32_t n = 0;
    for (int32_t i = 0; i < prog->n_ops; i++) {
        const ob_dev *dev = c->places[c->op_dev[i]].dev;
        if (c->p.on_progress) c->p.on_progress(c->p.progress_arg, OB_PLACING_SHARE * i / prog->n_ops);
        if (dev->api->supports(dev, prog, i, why, sizeof why)) continue;
        if (!n++) {
            snprintf(first, sizeof first, "%s of layer %d: %.120s", ob_op_name(prog->ops[i].kind), prog->ops[i].layer, why);
            c->needs_cpu = true;
            OB_TRY(find_cpu(c, err));
            describe_places(c);
        }
        c->op_dev[i] = c->placement.cpu;
    }
    if (n) ob_log_warn("%d of %d ops run on the CPU, device %s lacks them (the first: %s)", n, prog->n_ops,
                       c->places[0].info.kind, first);
    return OB_OK;
}

static ob_status place_ops(ob_ctx *c, const ob_program *prog, ob_err *err)
{
    c->op_dev = ob_calloc((size_t)prog->n_ops + 1, sizeof *c->op_dev);
    if (!c->op_dev) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the placement of ops");
    ob_place_ops(prog, &c->placement, c->op_dev);
    return c->p.fallback && strcmp(c->device_spec, "auto") != 0 ? place_missing_ops(c, prog, err) : OB_OK;
}

/* Weights, caches and plans onto the open devices. Takes prog. */
static ob_status fill_places(ob_ctx *c, ob_program *prog, ob_err *err)
{
    ob_status s = OB_OK;
    OB_GOTO(ob_ctx_load_weights(c, prog, err));
    OB_GOTO(make_cache(c, prog, err));
    ob_program *mine = prog;
    prog = NULL; /* taken by the bucket, also when it fails */
    OB_GOTO(make_buckets(c, mine, err));
    /* By now kernels may have been switched off. */
    for (int32_t d = c->n_places; d-- > 0;) {
        ob_dev_info now;
        c->places[d].dev->api->describe(c->places[d].dev, &now);
        if (now.reason[0]) memcpy(c->dev_info.reason, now.reason, sizeof now.reason);
    }
out:
    ob_program_free(prog);
    return s;
}

static void close_places(ob_ctx *c)
{
    for (int32_t i = 0; i < c->n_buckets; i++) bucket_deinit(c, &c->buckets[i]);
    ob_experts_detach(c->experts);
    ob_kv_free(c->kv);
    ob_ctx_free_marks(c);
    for (int32_t d = 0; d < c->n_places; d++) {
        place *at = &c->places[d];
        ob_ckpts_free(at->ckpts);
        for (int32_t i = 0; at->states && at->states[i]; i++) at->dev->api->buffer_free(at->dev, at->states[i]);
        for (int32_t i = 0; at->weights && i < c->n_weights; i++)
            if (at->weights[i] && !ob_experts_owns(c->experts, i)) ob_ctx_drop_weight(c, at, at->weights[i]);
        ob_free(at->states);
        ob_free(at->weights);
        ob_dev_close(at->dev);
    }
    for (int32_t i = 0; c->kept && i < c->n_weights; i++) ob_free(c->kept[i]);
    ob_free(c->kept);
    c->kept = NULL;
    ob_free(c->states);
    ob_free(c->state_dev);
    memset(c->places, 0, sizeof c->places);
    memset(c->buckets, 0, sizeof c->buckets);
    c->last = NULL;
    c->n_places = c->n_buckets = c->n_states = 0;
    for (int32_t i = 0; c->seqs && i < c->p.n_seq; i++) c->seqs[i].n_tok = c->seqs[i].n_pages = 0;
    c->kv = NULL;
    c->states = NULL;
    c->state_dev = NULL;
    c->dev = NULL;
}

bool ob_ctx_faulted(const ob_ctx *c) { return c->faulted; }

ob_status ob_ctx_reopen(ob_ctx *c, ob_err *err)
{
    ob_status s = OB_OK;
    ob_program *prog = NULL;
    c->faulted = true;
    close_places(c);
    OB_GOTO(open_places(c, err));
    OB_GOTO(make_program(c, &prog, err));
    ob_program *mine = prog;
    prog = NULL;
    OB_GOTO(fill_places(c, mine, err));
    c->faulted = false;
    return OB_OK;
out:
    ob_program_free(prog);
    close_places(c);
    return s;
}

/* ------------------------------------------------------------------ life */

static ob_status ctx_open(const ob_engine_params *p, ob_ctx **out, ob_err *err)
{
    double t0 = ob_now_ms();
    ob_status s = OB_OK;
    ob_program *prog = NULL;
    ob_ctx *c = ob_calloc(1, sizeof *c);
    if (!c) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the engine");
    c->p = *p;
    c->device_spec = ob_strdup(p->device && *p->device ? p->device : "auto");
    c->split = p->split ? ob_strdup(p->split) : NULL;
    if (!c->device_spec || (p->split && !c->split)) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for the engine");
        goto out;
    }
    if (c->p.n_seq <= 0) c->p.n_seq = 4;
    if (c->p.n_seq > OB_MAX_SEQS || c->p.n_ubatch > OB_MAX_UBATCH) {
        s = ob_err_set(err, OB_E_INVALID, "at most %d sequences and %d tokens in one step are possible",
                       OB_MAX_SEQS, OB_MAX_UBATCH);
        goto out;
    }
    OB_GOTO(ob_file_open(p->model_path, 0, &c->file, err));
    ob_model_options mopt = {.n_ctx = p->n_ctx, .embed = p->embed, .pooling = p->pooling,
                             .pictures = p->n_picture_tok > 0, .act4 = p->act4, .official_rounding = p->official_rounding};
    OB_GOTO(ob_model_new(c->file, &mopt, &c->model, err));
    if (ob_model_vision(c->model)) {
        s = ob_err_set(err, OB_E_UNSUPPORTED, "the file is a vision tower, not a model that reads text: give it as "
                       "--mmproj beside its model");
        goto out;
    }
    OB_GOTO(ob_tok_new(c->file, &c->tok, err));
    OB_GOTO(check_vocab(c, err));
    OB_GOTO(open_places(c, err));
    choose_ubatch(c);
    OB_GOTO(fit_pictures(c, err));
    if (c->dev_info.max_tok > 0) c->p.n_ubatch = OB_MIN(c->p.n_ubatch, c->dev_info.max_tok);
    /* Nothing is kept in it, so it need not be small; but a GPU multiplies matrices of f16. */
    if (!ob_model_hparams(c->model)->causal)
        c->p.k_type = c->p.v_type = !p->exact && (c->dev_info.caps & OB_DEV_GPU) ? OB_F16 : OB_F32;
    OB_GOTO(first_program(c, &prog, err));
    OB_GOTO(ob_model_guard(c->model, prog, err));
    c->n_cols = prog->vals[result_of(prog)].cols;
    OB_GOTO(place_ops(c, prog, err));
    OB_GOTO(choose_ctx(c, prog, err));
    OB_GOTO(ob_ctx_plan_experts(c, prog, err));
    if (c->experts) ob_experts_shape(c->experts, prog);
    OB_GOTO(make_step_arrays(c, err));
    OB_GOTO(make_picture_arrays(c, err));
    ob_program *mine = prog;
    prog = NULL; /* taken, also when it fails */
    OB_GOTO(fill_places(c, mine, err));
    if (c->p.lock_memory) ob_ctx_lock_memory();
    c->load_ms = ob_now_ms() - t0;
    *out = c;
    return OB_OK;
out:
    ob_program_free(prog);
    ob_ctx_free(c);
    return s;
}

ob_status ob_ctx_new(const ob_engine_params *p, ob_ctx **out, ob_err *err)
{
    ob_err local;
    if (!err) err = &local;
    const ob_status s = ctx_open(p, out, err);
    const bool other = s == OB_E_UNSUPPORTED || s == OB_E_NO_MEMORY || s == OB_E_LIMIT;
    if (!other || (p->device && *p->device && strcmp(p->device, "auto") != 0)) return s;
    /* The device that `auto` prefers may lack a kernel or memory; the CPU has all of them. */
    char why[sizeof err->text];
    memcpy(why, err->text, sizeof why);
    ob_engine_params cpu = *p;
    cpu.device = "cpu";
    const ob_status again = ctx_open(&cpu, out, err);
    if (again == OB_OK) ob_log_warn("using the CPU: %s", why);
    return again;
}

void ob_ctx_free(ob_ctx *c)
{
    if (!c) return;
    close_places(c);
    ob_experts_free(c->experts);
    ob_free(c->moe_slots);
    for (int32_t i = 0; c->seqs && i < c->p.n_seq; i++) {
        ob_free(c->seqs[i].tok);
        ob_free(c->seqs[i].pages);
    }
    ob_free(c->device_spec);
    ob_free(c->split);
    ob_free(c->op_dev);
    ob_free(c->seqs);
    ob_free(c->s_tok);
    ob_free(c->s_pos);
    ob_free(c->s_type);
    ob_free(c->s_coarse);
    ob_free(c->s_out);
    ob_free(c->s_pos_h);
    ob_free(c->s_pos_w);
    ob_free(c->s_block_first);
    ob_free(c->s_block_end);
    ob_free(c->s_vec);
    ob_free(c->s_first);
    ob_free(c->s_past);
    ob_free(c->s_slot);
    ob_free(c->s_table);
    ob_free(c->rows);
    ob_free(c->top);
    ob_tok_free(c->tok);
    ob_model_free(c->model);
    ob_file_close(c->file);
    ob_free(c);
}

/* ------------------------------------------------------------------ describe */

static void copy_text(char *dst, size_t cap, ob_str s)
{
    size_t n = OB_MIN(s.len, cap - 1);
    memcpy(dst, s.data, n);
    dst[n] = 0;
}

/* The type that holds most bytes of the linear weights: what people call the file's quantisation. */
static const char *main_type(const ob_file *f)
{
    uint64_t bytes[OB_TYPE_END] = {0};
    int best = 0;
    for (size_t i = 0; i < ob_file_n_tensors(f); i++) {
        const ob_tensor *t = ob_file_tensor(f, i);
        if (t->type < OB_TYPE_END && t->n_dims >= 2 && strncmp(t->name, "token_embd", 10))
            bytes[t->type] += t->n_bytes;
    }
    for (int i = 0; i < OB_TYPE_END; i++)
        if (bytes[i] > bytes[best]) best = i;
    return ob_type_get((uint32_t)best)->name;
}

void ob_ctx_describe(const ob_ctx *c, ob_engine_info *out)
{
    memset(out, 0, sizeof *out);
    const ob_hparams *h = ob_model_hparams(c->model);
    ob_str s;
    copy_text(out->arch, sizeof out->arch, (ob_str){ob_model_arch(c->model), strlen(ob_model_arch(c->model))});
    if (ob_kv_str(ob_file_find_kv(c->file, "general.name"), &s)) copy_text(out->name, sizeof out->name, s);
    const char *type = main_type(c->file);
    if (type) copy_text(out->quant, sizeof out->quant, (ob_str){type, strlen(type)});
    for (size_t i = 0; i < ob_file_n_tensors(c->file); i++) {
        const ob_tensor *t = ob_file_tensor(c->file, i);
        out->n_params += (uint64_t)(t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]);
    }
    out->n_bytes = ob_file_n_bytes(c->file);
    out->n_shared_bytes = c->n_shared_bytes;
    out->n_vocab = h->n_vocab;
    out->n_ctx = c->p.n_ctx;
    out->n_ctx_train = h->n_ctx_train;
    out->n_seq = c->p.n_seq;
    out->n_ubatch = c->p.n_ubatch;
    out->n_layer = h->n_layer;
    out->n_embd = h->n_embd;
    out->causal = h->causal;
    out->output = h->output;
    out->pooling = h->pooling;
    out->n_class = h->n_class;
    out->n_picture_tok = c->p.n_picture_tok;
    out->device = c->dev_info;
    out->load_ms = c->load_ms;
}

const ob_tok *ob_ctx_tok(const ob_ctx *c) { return c->tok; }
const ob_file *ob_ctx_file(const ob_ctx *c) { return c->file; }
ob_dev *ob_ctx_dev(const ob_ctx *c) { return c->dev; }

/* ------------------------------------------------------------------ sequences */

int32_t ob_seq_len(const ob_seq *s) { return s->n_tok; }

ob_status ob_ctx_seq_new(ob_ctx *c, ob_seq **out, ob_err *err)
{
    for (int32_t i = 0; i < c->p.n_seq; i++) {
        ob_seq *s = &c->seqs[i];
        if (s->used) continue;
        s->used = true;
        s->n_tok = s->n_pages = 0;
        *out = s;
        return OB_OK;
    }
    return ob_err_set(err, OB_E_LIMIT, "all %d sequences are in use", c->p.n_seq);
}

/* So does one that has no memory left. */
ob_status ob_ctx_note_fault(ob_ctx *c, ob_status s)
{
    if (s == OB_E_DEVICE_LOST || s == OB_E_DEVICE || s == OB_E_NO_MEMORY) c->faulted = true;
    return s;
}

/* The longest checkpoint that every device has. They are made together, so that is the same one, but for memory
 * that ran out on one of them. */
static ob_status load_states(ob_ctx *c, int32_t slot, const int32_t *tok, int32_t n, int32_t *n_found, ob_err *err)
{
    *n_found = n;
    for (int32_t d = 0; d < c->n_places; d++) {
        int32_t found;
        if (!c->places[d].ckpts) continue;
        OB_TRY(ob_ckpts_load(c->places[d].ckpts, slot, tok, *n_found, &found, err));
        if (found != *n_found && d > 0 && c->places[0].ckpts) found = 0;
        *n_found = found;
        if (!found) break;
    }
    return OB_OK;
}

ob_status ob_ctx_seq_reuse(ob_ctx *c, ob_seq *s, const int32_t *tok, int32_t n, int32_t *n_cached,
                           ob_err *err)
{
    *n_cached = 0;
    if (c->faulted) return ob_err_set(err, OB_E_DEVICE_LOST, "the device failed and was not opened again");
    if (s->n_tok || n < 2) return OB_OK;
    int32_t part, n_part;
    s->n_pages = ob_kv_match(c->kv, tok, OB_MIN(n, c->p.n_ctx) - 1, s->pages, &part, &n_part);
    s->n_tok = s->n_pages * OB_PAGE_TOK;
    if (c->n_states) {
        /* As far as there is a checkpoint of the states; the pages behind it are of no use. */
        const ob_status st = ob_ctx_note_fault(c, load_states(c, s->slot, tok, s->n_tok, &s->n_tok, err));
        if (st != OB_OK) s->n_tok = 0;
        if (part >= 0) ob_kv_page_unref(c->kv, part);
        while (s->n_pages > s->n_tok / OB_PAGE_TOK) ob_kv_page_unref(c->kv, s->pages[--s->n_pages]);
        if (st != OB_OK) return st;
    } else if (part >= 0) {
        int32_t page = ob_kv_page_new(c->kv);
        ob_status st = OB_OK;
        if (page >= 0) {
            st = ob_ctx_note_fault(c, ob_kv_page_copy(c->kv, page, part, err));
            s->pages[s->n_pages++] = page;
            s->n_tok += n_part;
        }
        ob_kv_page_unref(c->kv, part);
        if (st != OB_OK) return st;
    }
    memcpy(s->tok, tok, (size_t)s->n_tok * sizeof *tok);
    *n_cached = s->n_tok;
    return OB_OK;
}

int32_t ob_ctx_resume_at(const ob_ctx *c, int32_t n)
{
    if (n < 2 || (c->dev_info.caps & OB_DEV_DYNAMIC_ROWS)) return n;
    return c->n_states ? (n - 1) / OB_PAGE_TOK * OB_PAGE_TOK : n - 1;
}

void ob_ctx_seq_publish(ob_ctx *c, ob_seq *s)
{
    if (c->faulted) return;
    ob_kv_publish(c->kv, s->tok, s->n_tok, s->pages, false);
}

void ob_ctx_seq_keep(ob_ctx *c, ob_seq *s)
{
    if (c->faulted) return;
    /* With states only whole pages can be reused. */
    ob_kv_publish(c->kv, s->tok, s->n_tok, s->pages, !c->n_states);
}

void ob_ctx_seq_free(ob_ctx *c, ob_seq *s)
{
    if (!s) return;
    /* last page first: see the order of kept pages in kv/ */
    for (int32_t i = s->n_pages - 1; i >= 0; i--) ob_kv_page_unref(c->kv, s->pages[i]);
    s->used = false;
    s->n_tok = s->n_pages = 0;
}

int32_t ob_ctx_pages_needed(const ob_ctx *c, const ob_seq *s, int32_t n_tok)
{
    (void)c;
    return (int32_t)ob_div_up(s->n_tok + n_tok, OB_PAGE_TOK) - s->n_pages;
}

/* The end of a chunk of n tokens moved so that it cuts no picture. */
static int32_t whole_pictures(const ob_seq *s, const ob_placed_picture *pics, int32_t n_pics, int32_t n, int32_t most)
{
    for (int32_t k = 0; k < n_pics; k++) {
        const int32_t at = pics[k].at, end = at + pics[k].pic->n_tok;
        if (at >= s->n_tok + n || end <= s->n_tok + n) continue;
        if (at > s->n_tok) return at - s->n_tok;
        return end - s->n_tok <= most ? end - s->n_tok : 0;
    }
    return n;
}

int32_t ob_ctx_chunk_size(const ob_ctx *c, const ob_seq *s, const ob_placed_picture *pics, int32_t n_pics, int32_t n,
                          int32_t most)
{
    if (ob_model_hparams(c->model)->picture_blocks) n = whole_pictures(s, pics, n_pics, n, most);
    const int32_t to_page = (s->n_tok + n) / OB_PAGE_TOK * OB_PAGE_TOK - s->n_tok;
    return c->n_states && to_page > 0 ? to_page : n;
}

int32_t ob_ctx_pages_available(const ob_ctx *c)
{
    ob_kv_stats st = {0};
    if (c->kv) ob_kv_get_stats(c->kv, &st);
    return st.n_free + st.n_kept;
}

void ob_ctx_cache_stats(const ob_ctx *c, int64_t *live_tok, int64_t *kept_tok, int64_t *total_tok)
{
    ob_kv_stats st = {0};
    if (c->kv) ob_kv_get_stats(c->kv, &st);
    *live_tok = 0;
    for (int32_t i = 0; i < c->p.n_seq; i++) *live_tok += c->seqs[i].n_tok;
    *kept_tok = st.kept_tok;
    *total_tok = (int64_t)st.n_pages * OB_PAGE_TOK;
}

/* ------------------------------------------------------------------ steps */

/* Pages for all chunks, or none: a failure leaves every sequence as it was. */
static ob_status take_pages(ob_ctx *c, const ob_chunk *chunks, int32_t n_chunks, ob_err *err)
{
    int32_t k, before = 0;
    for (k = 0; k < n_chunks; k++) {
        ob_seq *s = chunks[k].seq;
        if (chunks[k].n_tok > c->p.n_ctx - s->n_tok) {
            ob_err_set(err, OB_E_CONTEXT_LENGTH, "%d tokens do not fit a context of %d",
                       s->n_tok + chunks[k].n_tok, c->p.n_ctx);
            break;
        }
        before = s->n_pages;
        int32_t want = before + ob_ctx_pages_needed(c, s, chunks[k].n_tok);
        while (s->n_pages < want) {
            int32_t page = ob_kv_page_new(c->kv);
            if (page < 0) break;
            s->pages[s->n_pages++] = page;
        }
        if (s->n_pages < want) {
            ob_err_set(err, OB_E_NO_MEMORY, "the cache has no free page left");
            while (s->n_pages > before) ob_kv_page_unref(c->kv, s->pages[--s->n_pages]);
            break;
        }
    }
    if (k == n_chunks) return OB_OK;
    ob_status failed = err && err->code ? err->code : OB_E_NO_MEMORY;
    for (int32_t i = 0; i < k; i++) {
        ob_seq *s = chunks[i].seq;
        int32_t need = (int32_t)ob_div_up(s->n_tok, OB_PAGE_TOK);
        while (s->n_pages > need) ob_kv_page_unref(c->kv, s->pages[--s->n_pages]);
    }
    return failed;
}

/* Where a sequence's tokens lie for RoPE, walked from its beginning. A picture has one time for all its rows, which
 * are told by row and column; the text behind goes on after the largest of the three (Qwen2-VL, arXiv 2409.12191).
 * Without axes a picture's rows count like tokens. */
typedef struct walker {
    const ob_chunk *ch;
    bool axes;
    int32_t k;     /* first picture that does not end before the place */
    int32_t shift; /* position minus index, behind the pictures before it */
} walker;

static void walk_to(walker *w, int32_t at)
{
    for (; w->k < w->ch->n_pics && w->ch->pics[w->k].at + w->ch->pics[w->k].pic->n_tok <= at; w->k++) {
        const ob_picture *p = w->ch->pics[w->k].pic;
        if (w->axes) w->shift += OB_MAX(p->nx, p->ny) - p->n_tok;
    }
}

/* Token n of the step, the one at index `at` of its sequence. */
static void place_token(ob_ctx *c, walker *w, int32_t at, int32_t n, int32_t *n_vec)
{
    walk_to(w, at);
    const ob_placed_picture *pl = w->k < w->ch->n_pics && w->ch->pics[w->k].at <= at ? &w->ch->pics[w->k] : NULL;
    c->s_pos[n] = c->s_pos_h[n] = c->s_pos_w[n] = at + w->shift;
    c->s_block_first[n] = at;
    c->s_block_end[n] = at + 1;
    if (!pl) return;
    const int32_t row = at - pl->at;
    const size_t n_embd = (size_t)pl->pic->n_embd;
    c->s_tok[n] = -1 - *n_vec;
    memcpy(c->s_vec + (size_t)(*n_vec)++ * n_embd, pl->pic->vec + (size_t)row * n_embd, n_embd * sizeof(float));
    if (w->axes) {
        c->s_pos[n] = pl->at + w->shift;
        c->s_pos_h[n] = c->s_pos[n] + row / pl->pic->nx;
        c->s_pos_w[n] = c->s_pos[n] + row % pl->pic->nx;
    }
    if (ob_model_hparams(c->model)->picture_blocks) {
        c->s_block_first[n] = pl->at;
        c->s_block_end[n] = pl->at + pl->pic->n_tok;
    }
}

static void fill_step(ob_ctx *c, const ob_chunk *chunks, int32_t n_chunks, ob_step *st)
{
    int32_t n_tok = 0, n_out = 0, n_vec = 0;
    for (int32_t k = 0; k < n_chunks; k++) {
        const ob_chunk *ch = &chunks[k];
        walker w = {.ch = ch, .axes = ob_model_hparams(c->model)->rope.axis_pairs[0] > 0};
        c->s_first[k] = n_tok;
        c->s_past[k] = ch->seq->n_tok;
        c->s_slot[k] = ch->seq->slot;
        memcpy(c->s_table + (size_t)k * (size_t)c->max_pages, ch->seq->pages,
               (size_t)ch->seq->n_pages * sizeof(int32_t));
        for (int32_t i = 0; i < ch->n_out; i++)
            c->s_out[n_out++] = n_tok + (ch->marks ? ch->marks[i] : ch->n_tok - ch->n_out + i);
        for (int32_t i = 0; i < ch->n_tok; i++, n_tok++) {
            c->s_tok[n_tok] = ch->tok[i];
            c->s_pos[n_tok] = ch->seq->n_tok + i;
            c->s_type[n_tok] = ch->type;
            c->s_coarse[n_tok] = ch->prompt;
            if (c->s_vec) place_token(c, &w, ch->seq->n_tok + i, n_tok, &n_vec);
        }
    }
    c->s_first[n_chunks] = n_tok;
    *st = (ob_step){.n_tok = n_tok, .n_seq = n_chunks, .n_out = n_out, .tok = c->s_tok, .pos = c->s_pos,
                    .type = c->s_type,
                    .seq_first = c->s_first, .seq_past = c->s_past, .seq_slot = c->s_slot,
                    .page_table = c->s_table, .max_pages = c->max_pages, .out_rows = c->s_out,
                    .coarse = c->p.act4 == OB_ACT4_OFF ? NULL : c->s_coarse,
                    .vec = n_vec ? c->s_vec : NULL, .n_vec = n_vec, .pos_h = c->s_pos_h, .pos_w = c->s_pos_w,
                    .block_first = n_vec ? c->s_block_first : NULL, .block_end = n_vec ? c->s_block_end : NULL};
}

/* Ids below 0 are rows of the chunk's pictures, and a picture whose rows see each other is not cut at the end. */
static ob_status check_pictures(const ob_ctx *c, const ob_chunk *ch, ob_err *err)
{
    const int32_t n_past = ch->seq->n_tok, n_embd = ob_model_hparams(c->model)->n_embd;
    int32_t k = 0;
    if (ch->n_pics && !c->s_vec) return ob_err_set(err, OB_E_UNSUPPORTED, "the model was loaded without pictures (--mmproj)");
    for (int32_t i = 0; i < ch->n_tok; i++) {
        if (ch->tok[i] >= 0) continue;
        while (k < ch->n_pics && ch->pics[k].at + ch->pics[k].pic->n_tok <= n_past + i) k++;
        const ob_placed_picture *pl = k < ch->n_pics ? &ch->pics[k] : NULL;
        if (!pl || pl->at > n_past + i || pl->pic->n_embd != n_embd ||
            ch->tok[i] != ob_picture_tok(pl->pic, n_past + i - pl->at))
            return ob_err_set(err, OB_E_INVALID, "token id %d is no row of a picture of the chunk", ch->tok[i]);
        if (ob_model_hparams(c->model)->picture_blocks && pl->at + pl->pic->n_tok > n_past + ch->n_tok)
            return ob_err_set(err, OB_E_INVALID, "a chunk cuts a picture");
    }
    return OB_OK;
}

static ob_status check_text(const ob_ctx *c, const ob_chunk *ch, ob_err *err)
{
    const int32_t n_type = ob_model_hparams(c->model)->n_type;
    if (ch->type < 0 || ch->type >= OB_MAX(n_type, 1))
        return ob_err_set(err, OB_E_INVALID, "token type %d, the model has 0..%d", ch->type, OB_MAX(n_type, 1) - 1);
    for (int32_t i = 0; ch->marks && i < ch->n_out; i++)
        if (ch->marks[i] < 0 || ch->marks[i] >= ch->n_tok)
            return ob_err_set(err, OB_E_INVALID, "mark %d is outside the text", ch->marks[i]);
    if (runs_whole(c) && ch->seq->n_tok)
        return ob_err_set(err, OB_E_INVALID, "this model takes a text in one piece");
    return OB_OK;
}

static ob_status check_chunks(const ob_ctx *c, const ob_chunk *chunks, int32_t n_chunks, int32_t *n_tok,
                              int32_t *n_out, ob_err *err)
{
    int32_t n_vocab = ob_model_hparams(c->model)->n_vocab;
    *n_tok = *n_out = 0;
    for (int32_t k = 0; k < n_chunks; k++) {
        if (chunks[k].n_tok < 1 || chunks[k].n_out > chunks[k].n_tok || chunks[k].n_out < 0)
            return ob_err_set(err, OB_E_INVALID, "a chunk has %d tokens and wants %d outputs",
                              chunks[k].n_tok, chunks[k].n_out);
        for (int32_t i = 0; i < chunks[k].n_tok; i++)
            if (chunks[k].tok[i] >= n_vocab || (chunks[k].tok[i] < 0 && !chunks[k].n_pics))
                return ob_err_set(err, OB_E_INVALID, "token id %d is not in the vocabulary of %d",
                                  chunks[k].tok[i], n_vocab);
        OB_TRY(check_text(c, &chunks[k], err));
        OB_TRY(check_pictures(c, &chunks[k], err));
        if (chunks[k].n_tok > c->max_step - *n_tok)
            return ob_err_set(err, OB_E_LIMIT, "a step has more than %d tokens", c->max_step);
        *n_tok += chunks[k].n_tok;
        *n_out += chunks[k].n_out;
    }
    if (n_chunks < 1 || n_chunks > c->p.n_seq)
        return ob_err_set(err, OB_E_INVALID, "a step of %d chunks, 1..%d are possible", n_chunks, c->p.n_seq);
    return OB_OK;
}

int32_t ob_ctx_n_cols(const ob_ctx *c) { return c->n_cols; }

int32_t ob_ctx_n_rows(const ob_ctx *c, const ob_chunk *chunks, int32_t n_chunks)
{
    int32_t n_tok = 0, n_out = 0;
    for (int32_t k = 0; k < n_chunks; k++) {
        n_tok += chunks[k].n_tok;
        n_out += chunks[k].n_out;
    }
    const ob_program *p = c->buckets[0].prog;
    if (!p) return 0; /* after a fault */
    return ob_value_rows(p, result_of(p), n_tok, n_out, n_chunks);
}

/* Where a value of the whole program goes after a stage that gives it; NULL: nowhere. Rows of logits stay on a device
 * that also gives the best of them, unless all are wanted. */
static float *destination(const ob_ctx *c, const bucket *b, ob_val v, bool want_rows)
{
    if (v == b->prog->top) return c->top;
    if (v != result_of(b->prog)) return b->cross[v];
    return want_rows || b->prog->top == OB_NONE ? c->rows : NULL;
}

/* One stage after the other; what crosses goes through host memory. */
static ob_status run_stages(ob_ctx *c, const bucket *b, const ob_step *st, bool want_rows, ob_err *err)
{
    for (int32_t i = 0; i < b->stages->n; i++) {
        const ob_stage *sg = &b->stages->stage[i];
        ob_dev *dev = c->places[sg->dev].dev;
        ob_fence fence;
        ob_val ids = OB_NONE;
        if (b->moe_op[i] != OB_NONE) {
            ids = b->prog->ops[b->moe_op[i]].in[1];
            OB_TRY(ob_ctx_bring_experts(c, b, i, st, err));
        }
        for (ob_val v = 0; v < sg->prog.n_vals; v++) {
            const ob_val whole = sg->val_of[v];
            if (sg->prog.vals[v].input)
                OB_TRY(dev->api->write_input(dev, b->plans[i], v, whole == ids ? c->moe_slots : b->cross[whole],
                                             ob_value_rows(b->prog, whole, st->n_tok, st->n_out, st->n_seq), err));
        }
        OB_TRY(dev->api->submit(dev, b->plans[i], st, &fence, err));
        OB_TRY(dev->api->wait(dev, fence, err));
        for (ob_val v = 0; v < sg->prog.n_vals; v++) {
            const ob_val whole = sg->val_of[v];
            float *to = destination(c, b, whole, want_rows);
            const int32_t n = ob_value_rows(b->prog, whole, st->n_tok, st->n_out, st->n_seq);
            if (!sg->prog.vals[v].output || !n) continue;
            if (to) OB_TRY(dev->api->read_output(dev, b->plans[i], v, 0, n, to, err));
            if (b->cross[whole] && to != b->cross[whole]) /* logits whose best are looked for elsewhere */
                OB_TRY(dev->api->read_output(dev, b->plans[i], v, 0, n, b->cross[whole], err));
        }
    }
    return OB_OK;
}

ob_status ob_ctx_step(ob_ctx *c, const ob_chunk *chunks, int32_t n_chunks, const float **rows, ob_err *err)
{
    int32_t n_tok, n_out;
    bucket *b;
    ob_step st;
    ob_err local;
    if (!err) err = &local;
    err->code = OB_OK;
    if (c->faulted) return ob_err_set(err, OB_E_DEVICE_LOST, "the device failed and was not opened again");
    OB_TRY(check_chunks(c, chunks, n_chunks, &n_tok, &n_out, err));
    OB_TRY(ob_ctx_note_fault(c, bucket_for(c, n_tok, n_out, &b, err)));
    const int32_t n_rows = ob_ctx_n_rows(c, chunks, n_chunks);
    OB_TRY(need_rows(c, n_rows, err));
    OB_TRY(take_pages(c, chunks, n_chunks, err));
    const double t0 = ob_now_ms();
    fill_step(c, chunks, n_chunks, &st);
    c->last = NULL;
    OB_TRY(ob_ctx_note_fault(c, run_stages(c, b, &st, rows != NULL, err)));
    c->step_ms = ob_now_ms() - t0;
    c->last = b;
    c->last_n_rows = n_rows;
    c->has_rows = rows != NULL || b->prog->top == OB_NONE;
    for (int32_t k = 0; k < n_chunks; k++) {
        ob_seq *s = chunks[k].seq;
        memcpy(s->tok + s->n_tok, chunks[k].tok, (size_t)chunks[k].n_tok * sizeof(int32_t));
        s->n_tok += chunks[k].n_tok;
        for (int32_t d = 0; d < c->n_places; d++)
            if (c->places[d].ckpts)
                ob_ckpts_save(c->places[d].ckpts, s->slot, s->tok, s->n_tok, !chunks[k].prompt);
    }
    if (rows) *rows = c->rows;
    return OB_OK;
}

double ob_ctx_step_ms(const ob_ctx *c) { return c->step_ms; }

bool ob_ctx_top(const ob_ctx *c, int32_t row, ob_top_logits *out)
{
    if (!c->last || c->last->prog->top == OB_NONE || row < 0 || row >= c->last_n_rows) return false;
    const float *t = c->top + (size_t)row * TOP_COLS;
    *out = (ob_top_logits){.ids = t, .logits = t + OB_TOP_K_MAX, .n = OB_TOP_K_MAX, .log_sum_exp = t[2 * OB_TOP_K_MAX],
                           .nan = t[2 * OB_TOP_K_MAX + 1] != 0};
    return true;
}

ob_status ob_ctx_row(ob_ctx *c, int32_t row, float *dst, ob_err *err)
{
    const bucket *b = c->last;
    if (!b || row < 0 || row >= c->last_n_rows) return ob_err_set(err, OB_E_INVALID, "the last step gave no row %d", row);
    if (c->has_rows) {
        memcpy(dst, c->rows + (size_t)row * (size_t)c->n_cols, (size_t)c->n_cols * sizeof *dst);
        return OB_OK;
    }
    for (int32_t i = b->stages->n - 1; i >= 0; i--) {
        const ob_stage *sg = &b->stages->stage[i];
        ob_dev *dev = c->places[sg->dev].dev;
        for (ob_val v = 0; v < sg->prog.n_vals; v++)
            if (sg->prog.vals[v].output && sg->val_of[v] == result_of(b->prog))
                return ob_ctx_note_fault(c, dev->api->read_output(dev, b->plans[i], v, row, 1, dst, err));
    }
    return ob_err_set(err, OB_E_INTERNAL, "no device has the logits");
}
