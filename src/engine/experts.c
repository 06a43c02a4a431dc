/* Which experts are in memory: slots, what goes when another one is needed, what is read ahead.
 *
 * The expert to go is the one that will be needed last, as far as that can be told: layers come round in order,
 * and an expert is needed in its layer's next turn with the probability that its share of uses so far gives. So its
 * next use is
 *
 *     (1 / p - 1) * layers + layers until its own comes
 *
 * away. Where tokens choose few of many experts (decode) the first term decides: those used seldom go first, where
 * "seldom" forgets (HALF_LIFE), so of equal ones those used longest ago. Where all are needed (prompts) p is 1 and the
 * second term decides: the layer that has just run goes first, which is what keeps most of a scan that is larger
 * than memory.
 */
#include "engine/experts.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/math.h"
#include "engine/experts_int.h"

enum { HALF_LIFE = 128 /* tokens after which a use counts half */, MIN_RATE_INV = 1000000 };

/* ------------------------------------------------------------------ layers and pools */

static bool same_shape(const ob_weight *a, const ob_weight *b)
{
    if (a->type == OB_TYPE_END || b->type == OB_TYPE_END) return a->type == b->type;
    return a->type == b->type && a->ne[0] == b->ne[0] && a->ne[1] == b->ne[1] && a->hadamard == b->hadamard &&
           a->act4 == b->act4;
}

/* The pool of a layer whose matrices have these shapes, made if it is not there. */
static ob_status pool_of(ob_experts *x, int32_t place, ob_dev *dev, const ob_weight *desc, int32_t n_expert, int32_t *out, ob_err *err)
{
    ob_dev_info info;
    dev->api->describe(dev, &info);
    for (int32_t i = 0; i < x->n_pools; i++) {
        expert_pool *p = &x->pools[i];
        bool same = p->place == place && (!info.max_experts || p->n_experts + n_expert <= info.max_experts);
        for (int k = 0; k < EXPERT_MATS; k++) same = same && same_shape(&p->desc[k], &desc[k]);
        *out = i;
        if (same) return OB_OK;
    }
    if (!dev->api->weight_write || !dev->api->weight_bytes)
        return ob_err_set(err, OB_E_UNSUPPORTED, "device %s cannot take experts one by one (--moe-slots): --cpu-moe "
                          "leaves them to the CPU", dev->api->kind);
    expert_pool *p = &x->pools[x->n_pools];
    *p = (expert_pool){.place = place};
    p->threads = info.caps & OB_DEV_HOST_MEMORY;
    for (int k = 0; k < EXPERT_MATS; k++) {
        p->desc[k] = desc[k];
        p->desc[k].data = NULL;
        if (desc[k].type == OB_TYPE_END) continue;
        ob_weight some = p->desc[k]; /* what is lost at the end of a buffer does not count for one expert */
        some.ne[2] = 16;
        p->slot_bytes += (dev->api->weight_bytes(dev, &some) + 15) / 16;
    }
    *out = x->n_pools++;
    return OB_OK;
}

static ob_status add_layer(ob_experts *x, const ob_program *prog, int32_t op, int32_t place, ob_dev *dev, ob_err *err)
{
    ob_weight desc[EXPERT_MATS];
    expert_layer *l = &x->layers[x->n_layers];
    l->op = op;
    for (int k = 0; k < EXPERT_MATS; k++) {
        const int32_t w = l->w[k] = prog->ops[op].w[k];
        desc[k] = (ob_weight){.type = OB_TYPE_END};
        if (w == OB_NONE) continue;
        desc[k] = prog->weights[w];
        l->n_expert = (int32_t)desc[k].ne[2];
        l->bytes[k] = ob_type_row_bytes(desc[k].type, desc[k].ne[0]) * (size_t)desc[k].ne[1];
        l->tensor[k] = ob_file_find_tensor(x->file, desc[k].name);
        x->read_bytes = OB_MAX(x->read_bytes, l->bytes[k]);
        x->owned[w] = true;
        if (!l->tensor[k] || l->tensor[k]->data != desc[k].data || l->bytes[k] == 0 ||
            l->tensor[k]->n_bytes / l->bytes[k] < (size_t)l->n_expert)
            return ob_err_set(err, OB_E_UNSUPPORTED, "tensor %s is not read as it is in the file, so its experts cannot be "
                              "streamed", desc[k].name);
    }
    OB_TRY(pool_of(x, place, dev, desc, l->n_expert, &l->pool, err));
    expert_pool *p = &x->pools[l->pool];
    p->n_experts += l->n_expert;
    p->n_used = OB_MAX(p->n_used, prog->ops[op].p.moe.n_used);
    const size_t n = (size_t)l->n_expert;
    l->slot_of = ob_arena_array(&x->arena, n, sizeof *l->slot_of);
    l->rate = ob_arena_array(&x->arena, n, sizeof *l->rate);
    l->rate_at = ob_arena_array(&x->arena, n, sizeof *l->rate_at);
    l->guessed = ob_arena_array(&x->arena, n, sizeof *l->guessed);
    if (!l->slot_of || !l->rate || !l->rate_at || !l->guessed) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for experts");
    for (size_t e = 0; e < n; e++) l->slot_of[e] = -1;
    x->n_layers++;
    return OB_OK;
}

ob_status ob_experts_new(const ob_file *file, const ob_program *prog, const int32_t *op_dev, ob_dev *const *devs,
                         ob_experts **out, ob_err *err)
{
    ob_status s = OB_OK;
    int32_t n = 0, most = 0;
    *out = NULL;
    for (int32_t i = 0; i < prog->n_ops; i++) n += prog->ops[i].kind == OB_OP_MOE_GLU;
    if (!n) return OB_OK;
    ob_experts *x = ob_calloc(1, sizeof *x);
    if (!x) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for experts");
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->work, NULL);
    pthread_cond_init(&x->done, NULL);
    pthread_cond_init(&x->room, NULL);
    ob_arena_init(&x->arena, (size_t)1 << 30);
    x->file = file;
    x->read_bytes = EXPERT_READ_BYTES;
    x->n_weights = prog->n_weights;
    x->layers = ob_arena_array(&x->arena, (size_t)n, sizeof *x->layers);
    x->pools = ob_arena_array(&x->arena, (size_t)n, sizeof *x->pools);
    x->owned = ob_arena_array(&x->arena, (size_t)prog->n_weights, sizeof *x->owned);
    if (!x->layers || !x->pools || !x->owned) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for experts");
        goto out;
    }
    for (int32_t i = 0; i < prog->n_ops; i++) {
        if (prog->ops[i].kind != OB_OP_MOE_GLU) continue;
        OB_GOTO(add_layer(x, prog, i, op_dev[i], devs[op_dev[i]], err));
        most = OB_MAX(most, x->layers[x->n_layers - 1].n_expert);
    }
    x->count = ob_arena_array(&x->arena, (size_t)most, sizeof *x->count);
    x->want = ob_arena_array(&x->arena, (size_t)most, sizeof *x->want);
    x->ahead = ob_arena_array(&x->arena, (size_t)most, sizeof *x->ahead);
    x->victims = ob_arena_array(&x->arena, (size_t)most, sizeof *x->victims);
    x->victim_score = ob_arena_array(&x->arena, (size_t)most, sizeof *x->victim_score);
    if (!x->count || !x->want || !x->ahead || !x->victims || !x->victim_score)
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for experts");
out:
    if (s != OB_OK) ob_experts_free(x);
    else *out = x;
    return s;
}

void ob_experts_free(ob_experts *x)
{
    if (!x) return;
    ob_experts_detach(x);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->work);
    pthread_cond_destroy(&x->done);
    pthread_cond_destroy(&x->room);
    ob_arena_deinit(&x->arena);
    ob_free(x);
}

int64_t ob_experts_count(const ob_experts *x)
{
    int64_t n = 0;
    for (int32_t i = 0; i < x->n_pools; i++) n += x->pools[i].n_experts;
    return n;
}

uint64_t ob_experts_place_bytes(const ob_experts *x, int32_t place, bool all)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < x->n_pools; i++)
        if (x->pools[i].place == place)
            n += (uint64_t)(all ? x->pools[i].n_experts : x->pools[i].n_slots) * x->pools[i].slot_bytes;
    return n;
}

uint64_t ob_experts_reader_bytes(const ob_experts *x)
{
    uint64_t n = EXPERT_READERS * (uint64_t)x->read_bytes;
    for (int32_t i = 0; i < x->n_pools; i++)
        if (!x->pools[i].threads) return n + EXPERT_HELD_BYTES;
    return n;
}

ob_status ob_experts_set_slots(ob_experts *x, int64_t n, ob_err *err)
{
    const int64_t all = ob_experts_count(x);
    int64_t need = 0;
    x->stats.n_experts = all;
    x->stats.n_slots = 0;
    x->stats.slot_bytes = 0;
    for (int32_t i = 0; i < x->n_pools; i++) {
        expert_pool *p = &x->pools[i];
        const int64_t share = (int64_t)((double)OB_MIN(n, all) * (double)p->n_experts / (double)all + 0.5);
        p->n_slots = (int32_t)OB_MIN(OB_MIN(share, p->n_experts), INT32_MAX / 4);
        need = OB_MAX(need, ob_div_up(p->n_used * all, p->n_experts));
        for (int k = 0; k < EXPERT_MATS; k++) p->desc[k].ne[2] = p->n_slots;
        x->stats.n_slots += p->n_slots;
        x->stats.slot_bytes += (uint64_t)p->n_slots * p->slot_bytes;
        if (p->n_slots < p->n_used) n = -1;
    }
    if (n >= 0) return OB_OK;
    return ob_err_set(err, OB_E_INVALID, "too few slots for the experts of one token: this model needs --moe-slots %lld at "
                      "least (of %lld experts)", (long long)need, (long long)all);
}

int32_t ob_experts_max_tok(const ob_experts *x)
{
    int32_t n = INT32_MAX;
    for (int32_t i = 0; i < x->n_layers; i++) {
        const expert_pool *p = &x->pools[x->layers[i].pool];
        if (p->n_slots < x->layers[i].n_expert) n = OB_MIN(n, p->n_slots / p->n_used);
    }
    return n;
}

void ob_experts_shape(const ob_experts *x, ob_program *prog)
{
    for (int32_t i = 0; i < x->n_layers; i++) {
        const expert_layer *l = &x->layers[i];
        for (int k = 0; k < EXPERT_MATS; k++) {
            if (l->w[k] == OB_NONE) continue;
            ob_weight *w = &prog->weights[l->w[k]];
            w->data = NULL;
            w->ne[2] = x->pools[l->pool].n_slots;
            w->n_bytes = l->bytes[k] * (size_t)w->ne[2];
        }
    }
}

bool ob_experts_owns(const ob_experts *x, int32_t weight) { return x && x->owned[weight]; }

/* ------------------------------------------------------------------ slots */

static ob_status make_pool(ob_experts *x, expert_pool *p, ob_dev *dev, ob_err *err)
{
    p->dev = dev;
    if (!p->slots) p->slots = ob_arena_array(&x->arena, (size_t)p->n_slots, sizeof *p->slots);
    if (!p->slots) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %d slots", p->n_slots);
    for (int32_t i = 0; i < p->n_slots; i++) p->slots[i] = (expert_slot){.layer = -1};
    for (int k = 0; k < EXPERT_MATS; k++) {
        bool keeps;
        if (p->desc[k].type == OB_TYPE_END) continue;
        p->desc[k].n_bytes = 0;
        OB_TRY(dev->api->weight_new(dev, &p->desc[k], &p->weight[k], &keeps, err));
    }
    return OB_OK;
}

static ob_status make_queue(ob_experts *x, expert_queue *q, ob_err *err)
{
    int64_t n = 0;
    for (int32_t i = 0; i < x->n_pools; i++) n += x->pools[i].n_slots;
    q->first = q->n = 0;
    if (q->jobs) return OB_OK;
    q->cap = (int32_t)OB_MIN(n * EXPERT_MATS, INT32_MAX);
    q->jobs = ob_arena_array(&x->arena, (size_t)q->cap, sizeof *q->jobs);
    return q->jobs ? OB_OK : ob_err_set(err, OB_E_NO_MEMORY, "no memory for %d reads", q->cap);
}

ob_status ob_experts_attach(ob_experts *x, ob_dev *const *devs, ob_dev_weight **const *weights, ob_err *err)
{
    x->attached = true;
    for (int32_t i = 0; i < x->n_pools; i++) OB_TRY(make_pool(x, &x->pools[i], devs[x->pools[i].place], err));
    for (int32_t i = 0; i < x->n_layers; i++) {
        expert_layer *l = &x->layers[i];
        const expert_pool *p = &x->pools[l->pool];
        for (int k = 0; k < EXPERT_MATS; k++)
            if (l->w[k] != OB_NONE) weights[p->place][l->w[k]] = p->weight[k];
        for (int32_t e = 0; e < l->n_expert; e++) l->slot_of[e] = -1;
    }
    OB_TRY(make_queue(x, &x->urgent, err));
    OB_TRY(make_queue(x, &x->later, err));
    return expert_io_start(x, err);
}

void ob_experts_detach(ob_experts *x)
{
    if (!x || !x->attached) return;
    expert_io_stop(x);
    for (int32_t i = 0; i < x->n_pools; i++) {
        expert_pool *p = &x->pools[i];
        for (int k = 0; k < EXPERT_MATS; k++) {
            if (p->weight[k]) p->dev->api->weight_free(p->dev, p->weight[k]);
            p->weight[k] = NULL;
        }
        p->dev = NULL;
    }
    x->attached = false;
}

static void drop(ob_experts *x, expert_slot *s)
{
    if (s->layer >= 0) x->layers[s->layer].slot_of[s->expert] = -1;
    *s = (expert_slot){.layer = -1};
}

/* ------------------------------------------------------------------ what goes */

static float rate_now(const expert_layer *l, int32_t e, uint64_t clock)
{
    return l->rate[e] * exp2f(-(float)(clock - l->rate_at[e]) / HALF_LIFE);
}

/* How far away the next use of what a slot holds is, in layers. */
static float distance(const ob_experts *x, const expert_slot *s)
{
    if (s->layer < 0) return INFINITY;
    const float used = rate_now(&x->layers[s->layer], s->expert, x->clock) * (float)x->now_tok;
    const float p = 1.0f - expf(-used), seldom = p * MIN_RATE_INV > 1.0f ? 1.0f / p : MIN_RATE_INV;
    const int32_t ahead = (s->layer - x->now + x->n_layers) % x->n_layers;
    return (seldom - 1.0f) * (float)x->n_layers + (float)(ahead ? ahead : x->n_layers);
}

/* Locked. Up to n slots to be filled anew, the best first; returns how many there are. Those wanted or guessed this
 * turn stay, and so do those that are being filled. */
static int32_t find_victims(ob_experts *x, expert_pool *p, int32_t n)
{
    int32_t have = 0;
    for (int32_t i = 0; i < p->n_slots && n > 0; i++) {
        const expert_slot *s = &p->slots[i];
        if (s->layer >= 0 && (s->turn == x->turn || s->left > 0)) continue;
        const float d = distance(x, s);
        if (have == n && d <= x->victim_score[n - 1]) continue;
        int32_t at = have < n ? have++ : n - 1;
        for (; at > 0 && x->victim_score[at - 1] < d; at--) {
            x->victim_score[at] = x->victim_score[at - 1];
            x->victims[at] = x->victims[at - 1];
        }
        x->victim_score[at] = d;
        x->victims[at] = i;
    }
    return have;
}

/* ------------------------------------------------------------------ asking */

/* The experts that ids name, in order of number, and how often: count. */
static int32_t gather(ob_experts *x, const expert_layer *l, const float *ids, int64_t n_ids, int32_t *list)
{
    int32_t n = 0;
    memset(x->count, 0, (size_t)l->n_expert * sizeof *x->count);
    for (int64_t i = 0; i < n_ids; i++)
        if (ids[i] >= 0 && ids[i] < (float)l->n_expert) x->count[(int32_t)ids[i]]++;
    for (int32_t e = 0; e < l->n_expert; e++)
        if (x->count[e]) list[n++] = e;
    return n;
}

static int32_t n_mats(const expert_layer *l)
{
    int32_t n = 0;
    for (int k = 0; k < EXPERT_MATS; k++) n += l->w[k] != OB_NONE;
    return n;
}

/* Locked. Give slots to experts of a list that have none; returns how many got one, in order: the rest found no room. */
static int32_t place_experts(ob_experts *x, int32_t layer, const int32_t *list, int32_t n, bool ahead)
{
    expert_layer *l = &x->layers[layer];
    expert_pool *p = &x->pools[l->pool];
    int32_t missing = 0, at = 0;
    for (int32_t i = 0; i < n; i++) {
        if (l->slot_of[list[i]] >= 0) p->slots[l->slot_of[list[i]]].turn = x->turn;
        else missing++;
    }
    const int32_t have = find_victims(x, p, missing);
    for (int32_t i = 0; i < n && at < have; i++) {
        if (l->slot_of[list[i]] >= 0) continue;
        const int32_t number = x->victims[at++];
        drop(x, &p->slots[number]);
        p->slots[number] = (expert_slot){.layer = layer, .expert = list[i], .left = n_mats(l), .turn = x->turn, .ahead = ahead};
        l->slot_of[list[i]] = number;
    }
    return have;
}

/* Locked. Read experts that got a slot just now: neighbours in the file together. */
static void queue_reads(ob_experts *x, int32_t layer, const int32_t *list, int32_t n, expert_queue *q)
{
    const expert_layer *l = &x->layers[layer];
    const expert_pool *p = &x->pools[l->pool];
    size_t largest = 1;
    for (int k = 0; k < EXPERT_MATS; k++) largest = OB_MAX(largest, l->bytes[k]);
    const int32_t most = (int32_t)OB_MAX(x->read_bytes / largest, (size_t)1);
    for (int32_t i = 0, run; i < n; i += run) {
        run = 1;
        if (p->slots[l->slot_of[list[i]]].left != n_mats(l)) continue;
        while (run < most && i + run < n && list[i + run] == list[i] + run &&
               p->slots[l->slot_of[list[i + run]]].left == n_mats(l))
            run++;
        const expert_job whole = {.layer = layer, .first = list[i], .n = run, .mat = 0, .mat_end = EXPERT_MATS};
        if (q == &x->later) { /* as a whole, so that it can be called off */
            expert_io_push(x, q, &whole);
            continue;
        }
        for (int16_t k = 0; k < EXPERT_MATS; k++) {
            expert_job one = whole;
            one.mat = k;
            one.mat_end = (int16_t)(k + 1);
            if (l->w[k] != OB_NONE) expert_io_push(x, q, &one);
        }
    }
}

/* Locked. Of what was to be read ahead and has not begun: what is wanted goes to the front, the rest is called off. */
static void settle_guesses(ob_experts *x)
{
    expert_job j;
    while (expert_io_pop(&x->later, &j)) {
        const expert_layer *l = &x->layers[j.layer];
        expert_pool *p = &x->pools[l->pool];
        bool wanted = false;
        for (int32_t i = 0; i < j.n; i++) wanted |= p->slots[l->slot_of[j.first + i]].turn == x->turn;
        if (wanted) expert_io_push(x, &x->urgent, &j);
        else for (int32_t i = 0; i < j.n; i++) drop(x, &p->slots[l->slot_of[j.first + i]]);
    }
}

/* Locked. */
static void note_wanted(ob_experts *x, expert_layer *l, int32_t n)
{
    expert_pool *p = &x->pools[l->pool];
    for (int32_t i = 0; i < n; i++) {
        const int32_t e = x->want[i];
        x->stats.n_wanted++;
        if (l->guessed[e] == x->turn) x->stats.n_guessed_right++;
        if (l->slot_of[e] < 0) {
            x->stats.n_misses++;
            continue;
        }
        expert_slot *s = &p->slots[l->slot_of[e]];
        x->stats.n_hits++;
        x->stats.n_ahead_hits += s->ahead;
        s->ahead = false;
        s->turn = x->turn;
    }
}

static void note_rates(ob_experts *x, expert_layer *l, int32_t n, int32_t n_tok)
{
    const float fresh = 1.0f - exp2f(-(float)n_tok / HALF_LIFE);
    for (int32_t i = 0; i < n; i++) {
        const int32_t e = x->want[i];
        l->rate[e] = rate_now(l, e, x->clock) * (1.0f - fresh) + fresh * (float)x->count[e] / (float)n_tok;
        l->rate_at[e] = x->clock;
    }
}

/* Locked. Wait until every expert of the list is there, handing out slots as they become free. */
static ob_status wait_for(ob_experts *x, int32_t layer, int32_t n, ob_err *err)
{
    const expert_layer *l = &x->layers[layer];
    const expert_pool *p = &x->pools[l->pool];
    for (;;) {
        OB_TRY(expert_io_unpack(x, err));
        if (x->failed.code != OB_OK) {
            if (err) *err = x->failed;
            return x->failed.code;
        }
        bool all = true, placed = true;
        for (int32_t i = 0; i < n; i++) {
            const int32_t at = l->slot_of[x->want[i]];
            placed = placed && at >= 0;
            all = all && at >= 0 && !p->slots[at].left;
        }
        if (all) return OB_OK;
        if (!placed) { /* slots were still being filled with what was guessed wrongly */
            int32_t n_new = 0;
            for (int32_t i = 0; i < n; i++)
                if (l->slot_of[x->want[i]] < 0) x->ahead[n_new++] = x->want[i];
            const int32_t got = place_experts(x, layer, x->ahead, n_new, false);
            queue_reads(x, layer, x->ahead, got, &x->urgent);
            if (got) continue;
        }
        if (!x->parcels) pthread_cond_wait(&x->done, &x->lock);
    }
}

/* Locked. After an error: nothing half read stays. */
static void recover(ob_experts *x)
{
    x->urgent.n = x->later.n = 0;
    while (x->n_running) {
        if (x->parcels) {
            ob_err ignored; /* the first one is told */
            if (expert_io_unpack(x, &ignored) != OB_OK) continue;
        } else {
            pthread_cond_wait(&x->done, &x->lock);
        }
    }
    for (int32_t i = 0; i < x->n_pools; i++)
        for (int32_t k = 0; k < x->pools[i].n_slots; k++)
            if (x->pools[i].slots[k].left) drop(x, &x->pools[i].slots[k]);
    x->failed.code = OB_OK;
}

static int32_t layer_of(const ob_experts *x, int32_t op)
{
    int32_t i = 0;
    while (x->layers[i].op != op) i++;
    return i;
}

/* Locked. Experts of the next mixture that are likely wanted, into what room there is. */
static void read_ahead(ob_experts *x, const float *guess, int64_t n_ids)
{
    const int32_t next = (x->now + 1) % x->n_layers;
    expert_layer *l = &x->layers[next];
    const int32_t n = gather(x, l, guess, n_ids, x->ahead);
    int32_t n_new = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t e = x->ahead[i];
        l->guessed[e] = x->turn + 1; /* the next turn is that layer's */
        x->stats.n_guessed++;
        if (l->slot_of[e] < 0) x->ahead[n_new++] = e;
        else x->pools[l->pool].slots[l->slot_of[e]].turn = x->turn;
    }
    queue_reads(x, next, x->ahead, place_experts(x, next, x->ahead, n_new, true), &x->later);
}

ob_status ob_experts_acquire(ob_experts *x, int32_t op, const float *ids, int32_t n_rows, int32_t n_used,
                             const float *guess, int32_t n_guess, float *slots, ob_err *err)
{
    const int32_t layer = layer_of(x, op);
    expert_layer *l = &x->layers[layer];
    const expert_pool *p = &x->pools[l->pool];
    const int64_t n_ids = (int64_t)n_rows * n_used, t0 = ob_now_ns();
    x->turn++;
    if (layer == 0) x->clock += (uint64_t)n_rows;
    x->now = layer;
    x->now_tok = n_rows;
    const int32_t n = gather(x, l, ids, n_ids, x->want);
    pthread_mutex_lock(&x->lock);
    note_wanted(x, l, n);
    note_rates(x, l, n, n_rows);
    settle_guesses(x);
    int32_t n_new = 0;
    for (int32_t i = 0; i < n; i++)
        if (l->slot_of[x->want[i]] < 0) x->ahead[n_new++] = x->want[i];
    queue_reads(x, layer, x->ahead, place_experts(x, layer, x->ahead, n_new, false), &x->urgent);
    if (guess) read_ahead(x, guess, (int64_t)n_rows * n_guess);
    const ob_status s = wait_for(x, layer, n, err);
    if (s != OB_OK) recover(x);
    x->stats.wait_ms += (double)(ob_now_ns() - t0) * 1e-6;
    pthread_mutex_unlock(&x->lock);
    for (int64_t i = 0; i < n_ids && s == OB_OK; i++)
        slots[i] = ids[i] >= 0 && ids[i] < (float)l->n_expert ? (float)l->slot_of[(int32_t)ids[i]] : (float)p->n_slots;
    return s;
}

void ob_experts_get_stats(ob_experts *x, ob_expert_stats *out)
{
    pthread_mutex_lock(&x->lock);
    *out = x->stats;
    pthread_mutex_unlock(&x->lock);
}
