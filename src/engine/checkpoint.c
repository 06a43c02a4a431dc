#include "engine/checkpoint.h"

#include <string.h>

#include "base/alloc.h"
#include "base/math.h"

enum { MAX_CHECKPOINTS = 32 };
static const uint64_t k_max_bytes = (uint64_t)1 << 30;

typedef struct checkpoint {
    ob_dev_buf *state; /* all states of one slot, one after the other; NULL: never used */
    int32_t *tok;      /* [n_ctx] */
    int32_t n_tok;     /* 0: empty */
    int32_t trail;     /* slot that made it while decoding, or -1 */
    uint64_t used;     /* time of last use */
} checkpoint;

struct ob_ckpts {
    ob_dev *dev;
    ob_dev_buf *const *states; /* borrowed */
    uint64_t *bytes;           /* [n_states] of one slot */
    int32_t n_states, page_tok, n_ctx, n_slots;
    uint64_t total, clock;
    checkpoint slots[MAX_CHECKPOINTS];
};

ob_status ob_ckpts_new(ob_dev *dev, ob_dev_buf *const *states, const ob_state_spec *specs, int32_t n_states,
                       int32_t page_tok, int32_t n_ctx, ob_ckpts **out, ob_err *err)
{
    ob_ckpts *c = ob_calloc(1, sizeof *c);
    if (c) c->bytes = ob_calloc((size_t)n_states + 1, sizeof *c->bytes);
    if (!c || !c->bytes) {
        ob_free(c);
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for checkpoints");
    }
    *c = (ob_ckpts){.dev = dev, .states = states, .bytes = c->bytes, .n_states = n_states, .page_tok = page_tok,
                    .n_ctx = n_ctx};
    for (int32_t i = 0; i < n_states; i++) c->total += c->bytes[i] = (uint64_t)specs[i].n_floats * sizeof(float);
    /* At least two, however large they are: one for what is shared, one for what goes on. */
    c->n_slots = (int32_t)OB_MAX((uint64_t)2, OB_MIN((uint64_t)MAX_CHECKPOINTS, k_max_bytes / OB_MAX((uint64_t)1, c->total)));
    *out = c;
    return OB_OK;
}

void ob_ckpts_free(ob_ckpts *c)
{
    if (!c) return;
    for (int32_t i = 0; i < MAX_CHECKPOINTS; i++) {
        if (c->slots[i].state) c->dev->api->buffer_free(c->dev, c->slots[i].state);
        ob_free(c->slots[i].tok);
    }
    ob_free(c->bytes);
    ob_free(c);
}

static bool is_prefix(const checkpoint *k, const int32_t *tok, int32_t n)
{
    return k->n_tok > 0 && k->n_tok <= n && !memcmp(k->tok, tok, (size_t)k->n_tok * sizeof *tok);
}

/* Copy all states of a slot to or from a checkpoint's buffer. */
static ob_status copy(ob_ckpts *c, ob_dev_buf *buf, int32_t slot, bool save, ob_err *err)
{
    const ob_dev_api *api = c->dev->api;
    uint64_t at = 0;
    for (int32_t i = 0; i < c->n_states; i++) {
        const uint64_t off = (uint64_t)slot * c->bytes[i];
        if (save) OB_TRY(api->buffer_copy(c->dev, buf, at, c->states[i], off, c->bytes[i], err));
        else OB_TRY(api->buffer_copy(c->dev, c->states[i], off, buf, at, c->bytes[i], err));
        at += c->bytes[i];
    }
    return OB_OK;
}

/* The slot's own trail when it decodes, else an empty place, else the least recently used. */
static checkpoint *place_for(ob_ckpts *c, int32_t slot, bool decoding)
{
    checkpoint *best = &c->slots[0];
    for (int32_t i = 0; i < c->n_slots; i++) {
        checkpoint *k = &c->slots[i];
        if (decoding && k->n_tok && k->trail == slot) return k;
        if (k->used < best->used) best = k; /* empty ones have never been used */
    }
    return best;
}

void ob_ckpts_save(ob_ckpts *c, int32_t slot, const int32_t *tok, int32_t n, bool decoding)
{
    ob_err ignored;
    if (n <= 0 || n % c->page_tok || n > c->n_ctx) return;
    for (int32_t i = 0; i < c->n_slots; i++)
        if (c->slots[i].n_tok == n && is_prefix(&c->slots[i], tok, n)) {
            c->slots[i].used = ++c->clock;
            return;
        }
    checkpoint *k = place_for(c, slot, decoding);
    k->n_tok = 0;
    k->used = 0;
    if (!k->tok) k->tok = ob_calloc((size_t)c->n_ctx, sizeof *k->tok);
    if (!k->tok) return;
    if (!k->state && c->dev->api->buffer_new(c->dev, c->total, 0, &k->state, &ignored) != OB_OK) {
        k->state = NULL;
        return;
    }
    if (copy(c, k->state, slot, true, &ignored) != OB_OK) return;
    memcpy(k->tok, tok, (size_t)n * sizeof *tok);
    k->n_tok = n;
    k->trail = decoding ? slot : -1;
    k->used = ++c->clock;
}

ob_status ob_ckpts_load(ob_ckpts *c, int32_t slot, const int32_t *tok, int32_t n, int32_t *n_found, ob_err *err)
{
    checkpoint *best = NULL;
    *n_found = 0;
    for (int32_t i = 0; i < c->n_slots; i++)
        if (is_prefix(&c->slots[i], tok, n) && (!best || c->slots[i].n_tok > best->n_tok)) best = &c->slots[i];
    if (!best) return OB_OK;
    OB_TRY(copy(c, best->state, slot, false, err));
    best->used = ++c->clock;
    best->trail = -1; /* others start here too: it is no longer only the trail of one sequence */
    *n_found = best->n_tok;
    return OB_OK;
}
