/* Sequences that move from one context to another; see ctx.h. */
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/math.h"
#include "engine/ctx_int.h"

_Static_assert((int)OB_SEQ_PAGE_TOK == (int)OB_PAGE_TOK, "pages of sequences are pages of the cache");

static uint64_t state_bytes(const ob_ctx *c, int32_t i)
{
    return (uint64_t)c->buckets[0].prog->states[i].n_floats * sizeof(float);
}

void ob_ctx_seq_layout(const ob_ctx *c, ob_seq_layout *out)
{
    *out = (ob_seq_layout){0};
    if (!c->kv) return; /* after a fault */
    ob_kv_get_layout(c->kv, &out->kv);
    for (int32_t i = 0; i < c->n_states; i++) {
        const uint64_t n = state_bytes(c, i);
        out->states = XXH3_64bits_withSeed(&n, sizeof n, out->states + (uint64_t)i);
        out->state_bytes += n;
    }
}

ob_status ob_ctx_seq_check_layout(const ob_ctx *c, const ob_seq_layout *from, ob_err *err)
{
    ob_seq_layout mine;
    ob_ctx_seq_layout(c, &mine);
    if (from->kv.shape != mine.kv.shape)
        return ob_err_set(err, OB_E_UNSUPPORTED, "cache pages have layout %016llx there and %016llx here",
                          (unsigned long long)from->kv.shape, (unsigned long long)mine.kv.shape);
    if (from->states != mine.states)
        return ob_err_set(err, OB_E_UNSUPPORTED, "recurrent states have layout %016llx there and %016llx here",
                          (unsigned long long)from->states, (unsigned long long)mine.states);
    return OB_OK;
}

/* Unlike in a step, memory that ran out was the host's. */
static ob_status note(ob_ctx *c, ob_status s)
{
    return s == OB_E_NO_MEMORY ? s : ob_ctx_note_fault(c, s);
}

static ob_status check_open(const ob_ctx *c, ob_err *err)
{
    return c->faulted ? ob_err_set(err, OB_E_DEVICE_LOST, "the device failed and was not opened again") : OB_OK;
}

ob_status ob_ctx_pages_export(ob_ctx *c, const ob_seq *s, int32_t page, int32_t n, void *dst, ob_err *err)
{
    OB_TRY(check_open(c, err));
    if (page < 0 || n < 0 || page > s->n_pages - n)
        return ob_err_set(err, OB_E_INVALID, "pages %d..+%d of a sequence that has %d", page, n, s->n_pages);
    return note(c, ob_kv_pages_export(c->kv, s->pages + page, n, dst, err));
}

ob_status ob_ctx_pages_import(ob_ctx *c, ob_seq *s, int32_t page, int32_t n, const ob_kv_layout *from, const void *src,
                              ob_err *err)
{
    OB_TRY(check_open(c, err));
    const int32_t first = (int32_t)ob_div_up(s->n_tok, OB_PAGE_TOK);
    if (n < 0 || page < first || page > s->n_pages || n > c->max_pages - page)
        return ob_err_set(err, OB_E_INVALID, "pages %d..+%d do not follow the %d of a sequence", page, n, s->n_pages);
    while (s->n_pages < page + n) {
        const int32_t id = ob_kv_page_new(c->kv);
        if (id < 0) return ob_err_set(err, OB_E_NO_MEMORY, "the cache has no free page left");
        s->pages[s->n_pages++] = id;
    }
    return note(c, ob_kv_pages_import(c->kv, s->pages + page, n, from, src, err));
}

ob_status ob_ctx_states_export(ob_ctx *c, const ob_seq *s, void *dst, ob_err *err)
{
    char *at = dst;
    OB_TRY(check_open(c, err));
    for (int32_t i = 0; i < c->n_states; i++) {
        ob_dev *dev = c->places[c->state_dev[i]].dev;
        const uint64_t n = state_bytes(c, i);
        OB_TRY(note(c, dev->api->buffer_read(dev, c->states[i], (uint64_t)s->slot * n, at, n, err)));
        at += n;
    }
    return OB_OK;
}

ob_status ob_ctx_states_import(ob_ctx *c, ob_seq *s, const void *src, ob_err *err)
{
    const char *at = src;
    OB_TRY(check_open(c, err));
    for (int32_t i = 0; i < c->n_states; i++) {
        ob_dev *dev = c->places[c->state_dev[i]].dev;
        const uint64_t n = state_bytes(c, i);
        OB_TRY(note(c, dev->api->buffer_write(dev, c->states[i], (uint64_t)s->slot * n, at, n, err)));
        at += n;
    }
    return OB_OK;
}

void ob_ctx_seq_adopt(ob_ctx *c, ob_seq *s, const int32_t *tok, int32_t n)
{
    memcpy(s->tok, tok, (size_t)n * sizeof *tok);
    s->n_tok = n;
    for (int32_t d = 0; d < c->n_places; d++)
        if (c->places[d].ckpts) ob_ckpts_save(c->places[d].ckpts, s->slot, s->tok, n, false);
}

void ob_ctx_free_marks(ob_ctx *c)
{
    for (int32_t i = 0; c->marks && i < c->n_states; i++) {
        ob_dev *dev = c->places[c->state_dev[i]].dev;
        if (c->marks[i]) dev->api->buffer_free(dev, c->marks[i]);
    }
    ob_free(c->marks);
    c->marks = NULL;
}

static ob_status make_marks(ob_ctx *c, ob_err *err)
{
    ob_status s = OB_OK;
    if (c->marks) return OB_OK;
    c->marks = ob_calloc((size_t)c->n_states, sizeof(ob_dev_buf *));
    if (!c->marks) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for copies of states");
    for (int32_t i = 0; i < c->n_states && s == OB_OK; i++) {
        ob_dev *dev = c->places[c->state_dev[i]].dev;
        s = dev->api->buffer_new(dev, state_bytes(c, i) * (uint64_t)c->p.n_seq, 0, &c->marks[i], err);
    }
    if (s != OB_OK) ob_ctx_free_marks(c);
    return s;
}

static ob_status copy_states(ob_ctx *c, ob_dev_buf **dst, ob_dev_buf **src, int32_t slot, ob_err *err)
{
    for (int32_t i = 0; i < c->n_states; i++) {
        ob_dev *dev = c->places[c->state_dev[i]].dev;
        const uint64_t n = state_bytes(c, i), at = (uint64_t)slot * n;
        OB_TRY(dev->api->buffer_copy(dev, dst[i], at, src[i], at, n, err));
    }
    return OB_OK;
}

ob_status ob_ctx_seq_mark(ob_ctx *c, ob_seq *s, ob_err *err)
{
    OB_TRY(check_open(c, err));
    s->n_marked = s->n_tok;
    if (!c->n_states) return OB_OK;
    const ob_status made = make_marks(c, err); /* that there is no room for it harms nothing that runs */
    if (made != OB_OK) return made == OB_E_NO_MEMORY ? made : note(c, made);
    return note(c, copy_states(c, c->marks, c->states, s->slot, err));
}

ob_status ob_ctx_seq_rewind(ob_ctx *c, ob_seq *s, ob_err *err)
{
    OB_TRY(check_open(c, err));
    if (c->n_states) OB_TRY(note(c, copy_states(c, c->states, c->marks, s->slot, err)));
    ob_ctx_seq_cut(c, s, s->n_marked);
    return OB_OK;
}

void ob_ctx_seq_cut(ob_ctx *c, ob_seq *s, int32_t n)
{
    s->n_tok = OB_MIN(s->n_tok, n);
    while (c->kv && s->n_pages > (int32_t)ob_div_up(s->n_tok, OB_PAGE_TOK)) ob_kv_page_unref(c->kv, s->pages[--s->n_pages]);
}
