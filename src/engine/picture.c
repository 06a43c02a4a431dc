#include "engine/picture.h"

#include <string.h>

#include "base/alloc.h"
#include "base/math.h"

ob_picture *ob_picture_new(int32_t nx, int32_t ny, int32_t n_embd, int32_t number)
{
    const size_t n = (size_t)nx * (size_t)ny * (size_t)n_embd;
    ob_picture *p = ob_malloc(sizeof *p + n * sizeof *p->vec);
    if (!p) return NULL;
    atomic_init(&p->refs, 1);
    p->n_tok = nx * ny;
    p->nx = nx;
    p->ny = ny;
    p->n_embd = n_embd;
    p->number = OB_MIN(number, OB_PICTURE_NUMBERS - 1);
    return p;
}

ob_picture *ob_picture_ref(ob_picture *p)
{
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed); /* the caller holds one already */
    return p;
}

void ob_picture_unref(ob_picture *p)
{
    if (p && atomic_fetch_sub(&p->refs, 1) == 1) ob_free(p);
}

void ob_draft_deinit(ob_draft *p)
{
    for (size_t i = 0; i < p->n_pics; i++) ob_picture_unref(p->pics[i].pic);
    ob_free(p->pics);
    ob_free(p->ids);
    *p = (ob_draft){0};
}

static ob_status room_for(ob_draft *p, size_t n, ob_err *err)
{
    if (n <= p->cap - p->n) return OB_OK;
    size_t want;
    if (!ob_add_size(p->n, n, &want) || want > INT32_MAX)
        return ob_err_set(err, OB_E_LIMIT, "a prompt of %zu tokens is too long", p->n);
    want = OB_MAX(want, 2 * p->cap);
    int32_t *ids = ob_reallocarray(p->ids, want, sizeof *ids);
    if (!ids) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a prompt of %zu tokens", want);
    p->ids = ids;
    p->cap = want;
    return OB_OK;
}

ob_status ob_draft_add_ids(ob_draft *p, const int32_t *ids, size_t n, ob_err *err)
{
    OB_TRY(room_for(p, n, err));
    if (n) memcpy(p->ids + p->n, ids, n * sizeof *ids);
    p->n += n;
    return OB_OK;
}

ob_status ob_draft_add_text(ob_draft *p, const ob_tok *tok, const char *text, size_t len, unsigned flags, ob_err *err)
{
    int32_t *ids;
    size_t n;
    OB_TRY(ob_tok_encode(tok, text, len, flags, &ids, &n, err));
    const ob_status s = ob_draft_add_ids(p, ids, n, err);
    ob_free(ids);
    return s;
}

ob_status ob_draft_add_picture(ob_draft *p, ob_picture *pic, ob_err *err)
{
    OB_TRY(room_for(p, (size_t)pic->n_tok, err));
    if (p->n_pics == p->cap_pics) {
        const size_t cap = p->cap_pics ? 2 * p->cap_pics : 8;
        ob_placed_picture *pics = ob_reallocarray(p->pics, cap, sizeof *pics);
        if (!pics) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %zu pictures", cap);
        p->pics = pics;
        p->cap_pics = cap;
    }
    p->pics[p->n_pics++] = (ob_placed_picture){ob_picture_ref(pic), (int32_t)p->n};
    for (int32_t r = 0; r < pic->n_tok; r++) p->ids[p->n++] = ob_picture_tok(pic, r);
    return OB_OK;
}

ob_status ob_draft_append(ob_draft *d, const ob_draft *what, ob_err *err)
{
    size_t at = 0;
    for (size_t k = 0; k <= what->n_pics; k++) {
        const size_t until = k < what->n_pics ? (size_t)what->pics[k].at : what->n;
        OB_TRY(room_for(d, until - at, err));
        if (until > at) memcpy(d->ids + d->n, what->ids + at, (until - at) * sizeof *d->ids);
        d->n += until - at;
        at = until;
        if (k == what->n_pics) break;
        OB_TRY(ob_draft_add_picture(d, what->pics[k].pic, err));
        at += (size_t)what->pics[k].pic->n_tok;
    }
    return OB_OK;
}

/* The number behind a mark, up to '>'; bytes it takes, or 0. */
static size_t mark_number(const char *s, size_t len, size_t *number)
{
    size_t n = 0, i = 0;
    for (; i < len && i < 9 && s[i] >= '0' && s[i] <= '9'; i++) n = 10 * n + (size_t)(s[i] - '0');
    *number = n;
    return i && i < len && s[i] == '>' ? i + 1 : 0;
}

ob_status ob_draft_add_marked(ob_draft *d, const ob_tok *tok, const char *text, size_t len, unsigned flags,
                              const char *mark, const ob_draft *shown, size_t n_shown, ob_err *err)
{
    const size_t mark_len = strlen(mark);
    for (const char *from = text, *end = text + len;; flags &= ~(unsigned)OB_TOK_BOS) {
        const char *at = memmem(from, (size_t)(end - from), mark, mark_len);
        size_t number = 0, n = 0;
        if (at) n = mark_number(at + mark_len, (size_t)(end - at) - mark_len, &number);
        if (at && (!n || number >= n_shown))
            return ob_err_set(err, OB_E_INVALID, "the template changed the place of a picture so that it cannot be found");
        const char *until = at ? at : end;
        if (until > from || (flags & OB_TOK_BOS)) OB_TRY(ob_draft_add_text(d, tok, from, (size_t)(until - from), flags, err));
        if (!at) return OB_OK;
        OB_TRY(ob_draft_append(d, &shown[number], err));
        from = at + mark_len + n;
    }
}

ob_status ob_pictures_check(const int32_t *ids, size_t n, const ob_placed_picture *pics, size_t n_pics, int32_t n_embd,
                            ob_err *err)
{
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        if (ids[i] >= 0) {
            i++;
            continue;
        }
        const ob_picture *pic = k < n_pics && pics[k].at >= 0 && (size_t)pics[k].at == i ? pics[k].pic : NULL;
        if (!pic || (size_t)pic->n_tok > n - i)
            return ob_err_set(err, OB_E_INVALID, "token %zu is %d, and no picture lies there", i, ids[i]);
        if (pic->n_embd != n_embd)
            return ob_err_set(err, OB_E_INVALID, "vectors of a picture have %d columns, the model has %d", pic->n_embd,
                              n_embd);
        for (int32_t r = 0; r < pic->n_tok; r++, i++)
            if (ids[i] != ob_picture_tok(pic, r))
                return ob_err_set(err, OB_E_INVALID, "token %zu is no row of the picture there", i);
        k++;
    }
    return k == n_pics ? OB_OK : ob_err_set(err, OB_E_INVALID, "a picture lies outside the prompt");
}
