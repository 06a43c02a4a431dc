#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "tok/tok_int.h"

/* ---- Text to id ------------------------------------------------------------------------------- */

ob_status ob_vocab_init(ob_vocab *v, const ob_strs *strs, size_t n, ob_err *err)
{
    size_t cap = 16;
    while (cap < 2 * n) cap *= 2;
    *v = (ob_vocab){.strs = strs, .mask = cap - 1};
    v->slots = ob_malloc(cap * sizeof *v->slots);
    if (!v->slots) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the vocabulary's index");
    for (size_t i = 0; i < cap; i++) v->slots[i] = (ob_vocab_slot){0, -1};
    return OB_OK;
}

void ob_vocab_deinit(ob_vocab *v)
{
    ob_free(v->slots);
    v->slots = NULL;
}

/* Slot of the string, or the empty slot where it belongs. The table is at most half full. */
static ob_vocab_slot *slot_of(const ob_vocab *v, const char *s, size_t len, uint32_t *tag)
{
    uint64_t h = XXH3_64bits(s, len);
    *tag = (uint32_t)(h >> 32);
    for (uint64_t i = h & v->mask;; i = (i + 1) & v->mask) {
        ob_vocab_slot *slot = &v->slots[i];
        if (slot->id < 0) return slot;
        if (slot->tag != *tag) continue;
        size_t n;
        const char *have = ob_strs_get(v->strs, slot->id, &n);
        if (n == len && memcmp(have, s, len) == 0) return slot;
    }
}

void ob_vocab_add(ob_vocab *v, int32_t id)
{
    size_t len;
    const char *s = ob_strs_get(v->strs, id, &len);
    uint32_t tag;
    ob_vocab_slot *slot = slot_of(v, s, len, &tag);
    if (slot->id >= 0) return;
    *slot = (ob_vocab_slot){tag, id};
    if (len > v->max_len) v->max_len = len;
}

int32_t ob_vocab_find(const ob_vocab *v, const char *s, size_t len)
{
    if (len > v->max_len) return -1;
    uint32_t tag;
    return slot_of(v, s, len, &tag)->id;
}

/* ---- Special tokens --------------------------------------------------------------------------- */

/* Order of two tokens by their text; equal texts by id. */
static int by_text(const void *pa, const void *pb, void *arg)
{
    const ob_strs *text = arg;
    int32_t a = *(const int32_t *)pa, b = *(const int32_t *)pb;
    size_t la, lb;
    const char *sa = ob_strs_get(text, a, &la), *sb = ob_strs_get(text, b, &lb);
    int c = memcmp(sa, sb, la < lb ? la : lb);
    if (c == 0) c = (la > lb) - (la < lb);
    return c ? c : (a > b) - (a < b);
}

static bool is_special(uint8_t type)
{
    return type == OB_TOK_CONTROL || type == OB_TOK_USER_DEFINED || type == OB_TOK_UNKNOWN;
}

ob_status ob_specials_init(ob_specials *s, const ob_strs *text, const uint8_t *types,
                           int32_t n_vocab, ob_err *err)
{
    *s = (ob_specials){.text = text, .types = types};
    uint32_t n = 0;
    for (int32_t id = 0; id < n_vocab; id++) n += is_special(types[id]);
    s->ids = ob_reallocarray(NULL, (size_t)n + 1, sizeof *s->ids);
    if (!s->ids) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %u special tokens", n);
    n = 0;
    for (int32_t id = 0; id < n_vocab; id++) {
        size_t len;
        ob_strs_get(text, id, &len);
        if (len && is_special(types[id])) s->ids[n++] = id;
    }
    qsort_r(s->ids, n, sizeof *s->ids, by_text, (void *)text);
    for (uint32_t i = 0, b = 0; b <= 256; b++) {
        size_t len;
        while (i < n && (unsigned char)*ob_strs_get(text, s->ids[i], &len) < b) i++;
        s->first[b] = i;
    }
    for (uint32_t i = 0; i < n; i++) {
        size_t len;
        unsigned char b = (unsigned char)*ob_strs_get(text, s->ids[i], &len);
        if (types[s->ids[i]] == OB_TOK_USER_DEFINED) s->plain[b] = true;
    }
    return OB_OK;
}

void ob_specials_deinit(ob_specials *s)
{
    ob_free(s->ids);
    s->ids = NULL;
}

/* First index in [lo, hi) whose text has a byte >= `b` at `at`; all texts there share the bytes
 * before `at`, and those that end before it come first. */
static uint32_t lower(const ob_specials *s, uint32_t lo, uint32_t hi, size_t at, unsigned b)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        size_t len;
        const char *t = ob_strs_get(s->text, s->ids[mid], &len);
        if (len > at && (unsigned char)t[at] >= b) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

/* Longest special token that starts at `text`, or -1. */
static int32_t longest_at(const ob_specials *s, const char *text, size_t n, bool control,
                          size_t *best_len)
{
    unsigned b = (unsigned char)text[0];
    uint32_t lo = s->first[b], hi = s->first[b + 1];
    int32_t best = -1;
    for (size_t at = 1; lo < hi; at++) {
        /* texts in [lo, hi) start with text[0 .. at); the shortest is at lo */
        size_t len;
        ob_strs_get(s->text, s->ids[lo], &len);
        if (len == at) {
            int32_t id = s->ids[lo];
            if (control || s->types[id] == OB_TOK_USER_DEFINED) {
                best = id;
                *best_len = len;
            }
            while (lo < hi && (ob_strs_get(s->text, s->ids[lo], &len), len == at)) lo++;
        }
        if (at == n) break;
        b = (unsigned char)text[at];
        lo = lower(s, lo, hi, at, b);
        hi = lower(s, lo, hi, at, b + 1);
    }
    return best;
}

bool ob_specials_next(const ob_specials *s, const char *text, size_t n, bool control, size_t *pos,
                      size_t *len, int32_t *id)
{
    for (size_t i = *pos; i < n; i++) {
        unsigned char b = (unsigned char)text[i];
        if (control ? s->first[b] == s->first[b + 1] : !s->plain[b]) continue;
        *id = longest_at(s, text + i, n - i, control, len);
        if (*id < 0) continue;
        *pos = i;
        return true;
    }
    return false;
}

/* ---- Small things ----------------------------------------------------------------------------- */

bool ob_ids_grow(ob_ids *l)
{
    size_t cap = l->cap ? 2 * l->cap : 256;
    int32_t *p = ob_reallocarray(l->data, cap, sizeof *p);
    if (!p) {
        l->failed = true;
        return false;
    }
    l->data = p;
    l->cap = cap;
    return true;
}

/* GPT-2 writes each byte as one visible character: visible Latin-1 bytes as themselves, the other 68
 * in ascending order as U+0100 and up (bytes_to_unicode in OpenAI's encoder.py). */
static bool is_visible(unsigned b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

/* Byte that the character stands for, or -1. */
static int byte_of(uint32_t cp)
{
    if (cp < 256) return is_visible(cp) ? (int)cp : -1;
    if (cp < 256 + 33) return (int)(cp - 256);             /* 0 .. 32 */
    if (cp < 256 + 33 + 34) return (int)(cp - 256 - 33 + 127); /* 127 .. 160 */
    return cp == 256 + 67 ? 173 : -1;
}

int64_t ob_bytes_decode(const char *text, size_t len, char *out)
{
    int64_t n = 0;
    for (size_t i = 0; i < len;) {
        size_t l;
        int b = byte_of(ob_utf8_decode(text + i, len - i, &l));
        if (b < 0) return -1;
        out[n++] = (char)b;
        i += l;
    }
    return n;
}
