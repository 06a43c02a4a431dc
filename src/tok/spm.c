/* SentencePiece BPE ("llama"): characters are merged while the joined text is a token, highest score
 * first, leftmost first among equals. Characters that no token spells become their bytes.
 *
 * The merges run over stretches that no token can cross (nearly always words), which keeps the heap
 * small without changing the result. */
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "base/utf8.h"
#include "tok/tok_int.h"

#define SPACE_MARK "\xE2\x96\x81" /* U+2581 */

void ob_fallback_load(ob_tok *t)
{
    for (int b = 0; b < 256; b++) t->byte_id[b] = -1;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        if (t->types[id] != OB_TOK_BYTE) continue;
        size_t len;
        const char *piece = ob_strs_get(&t->piece, id, &len);
        if (len == 1 && t->byte_id[(unsigned char)*piece] < 0)
            t->byte_id[(unsigned char)*piece] = id;
    }
}

/* ---- Cutting where no token can cross ----------------------------------------------------------- */

static bool is_mark(const char *s, size_t n)
{
    return n >= 3 && memcmp(s, SPACE_MARK, 3) == 0;
}

/* What starts at s, in 257 kinds: its byte, or the space mark. */
static unsigned start_kind(const char *s, size_t n)
{
    return is_mark(s, n) ? 256 : (unsigned char)*s;
}

ob_status ob_joins_load(ob_tok *t, ob_err *err)
{
    t->joins = ob_calloc(256 * 257, sizeof *t->joins);
    if (!t->joins) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the vocabulary");
    for (int32_t id = 0; id < t->n_vocab; id++) {
        size_t len;
        const char *s = ob_strs_get(&t->text, id, &len);
        for (size_t i = 1; i < len; i++)
            t->joins[257 * (unsigned char)s[i - 1] + start_kind(s + i, len - i)] = true;
    }
    return OB_OK;
}

/* End of the stretch that starts at i: in front of a character that no token has after the byte
 * before it. Never inside a character that is in the vocabulary. */
static size_t stretch_end(const ob_tok *t, const char *s, size_t n, size_t i)
{
    while (++i < n)
        if (((unsigned char)s[i] & 0xC0) != 0x80 &&
            !t->joins[257 * (unsigned char)s[i - 1] + start_kind(s + i, n - i)])
            break;
    return i;
}

/* ---- Merging ------------------------------------------------------------------------------------ */

typedef struct symbol {
    uint32_t off, len; /* bytes of the text; len 0: merged away */
    uint32_t prev, next;
    int32_t id;        /* token of these bytes, -1 if none */
} symbol;

typedef struct candidate {
    float score;
    uint32_t left, len; /* first symbol; bytes of both, to see that neither has changed */
    int32_t id;
} candidate;

typedef struct job {
    const ob_tok *t;
    const char *text;
    symbol *sym;
    uint32_t n_sym;
    candidate *heap;
    size_t n_heap;
} job;

static bool before(const candidate *a, const candidate *b)
{
    return a->score > b->score || (a->score == b->score && a->left < b->left);
}

static void heap_push(job *j, candidate c)
{
    size_t i = j->n_heap++;
    while (i > 0 && before(&c, &j->heap[(i - 1) / 2])) {
        j->heap[i] = j->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    j->heap[i] = c;
}

static candidate heap_pop(job *j)
{
    candidate top = j->heap[0], x = j->heap[--j->n_heap];
    size_t i = 0;
    for (size_t c; (c = 2 * i + 1) < j->n_heap; i = c) {
        if (c + 1 < j->n_heap && before(&j->heap[c + 1], &j->heap[c])) c++;
        if (!before(&j->heap[c], &x)) break;
        j->heap[i] = j->heap[c];
    }
    j->heap[i] = x;
    return top;
}

static void try_pair(job *j, uint32_t left)
{
    const symbol *a = &j->sym[left];
    if (a->next >= j->n_sym) return;
    uint32_t len = a->len + j->sym[a->next].len;
    int32_t id = ob_vocab_find(&j->t->vocab, j->text + a->off, len);
    if (id >= 0) heap_push(j, (candidate){j->t->scores[id], left, len, id});
}

static void merge_all(job *j)
{
    for (uint32_t i = 0; i + 1 < j->n_sym; i++) try_pair(j, i);
    while (j->n_heap) {
        candidate c = heap_pop(j);
        symbol *a = &j->sym[c.left];
        if (!a->len || a->next >= j->n_sym) continue;
        symbol *b = &j->sym[a->next];
        if (a->len + b->len != c.len) continue;
        a->len = c.len;
        a->id = c.id;
        b->len = 0;
        a->next = b->next;
        if (b->next < j->n_sym) j->sym[b->next].prev = c.left;
        try_pair(j, c.left);
        if (c.left > 0) try_pair(j, a->prev);
    }
}

static void put_bytes(const ob_tok *t, const char *s, size_t len, ob_ids *out)
{
    bool all = true;
    for (size_t i = 0; i < len; i++) all = all && t->byte_id[(unsigned char)s[i]] >= 0;
    for (size_t i = 0; all && i < len; i++) ob_ids_add(out, t->byte_id[(unsigned char)s[i]]);
    if (!all && t->unk >= 0) ob_ids_add(out, t->unk);
}

/* The text with its spaces marked, and the prefix and trimming that the model wants. */
static char *normalise(const ob_tok *t, const char *text, size_t len, bool prefix, size_t *n)
{
    char *p = ob_malloc(3 * len + 3);
    if (!p) return NULL;
    *n = 0;
    if (t->trim_spaces) {
        while (len && *text == ' ') text++, len--;
        while (len && text[len - 1] == ' ') len--;
    }
    if (prefix && len) {
        memcpy(p, SPACE_MARK, 3);
        *n = 3;
    }
    for (size_t i = 0; i < len; i++) {
        if (text[i] != ' ') {
            p[(*n)++] = text[i];
        } else if (!t->trim_spaces || text[i - 1] != ' ') {
            memcpy(p + *n, SPACE_MARK, 3);
            *n += 3;
        }
    }
    return p;
}

static void encode_stretch(job *j, const char *text, size_t n, ob_ids *out)
{
    const ob_tok *t = j->t;
    int32_t whole = ob_vocab_find(&t->vocab, text, n);
    if (whole >= 0 && ob_tok_whole(t, whole) == OB_WHOLE_YES) {
        ob_ids_add(out, whole);
        return;
    }
    j->text = text;
    j->n_sym = 0;
    for (size_t i = 0; i < n;) {
        size_t l = ob_utf8_valid_len(text + i, n - i);
        if (!l) l = 1;
        uint32_t k = j->n_sym++;
        j->sym[k] = (symbol){(uint32_t)i, (uint32_t)l, k - 1, k + 1,
                             ob_vocab_find(&t->vocab, text + i, l)};
        i += l;
    }
    merge_all(j);
    if (whole >= 0) ob_tok_set_whole(t, whole, j->sym[0].id == whole);
    for (uint32_t i = 0; i < j->n_sym; i = j->sym[i].next) {
        if (j->sym[i].id >= 0) ob_ids_add(out, j->sym[i].id);
        else put_bytes(t, text + j->sym[i].off, j->sym[i].len, out);
    }
}

ob_status ob_spm_encode(const ob_tok *t, const char *text, size_t len, bool after_special,
                        ob_ids *out, ob_err *err)
{
    ob_status s = OB_OK;
    size_t n, longest = 0;
    job j = {.t = t};
    char *p = normalise(t, text, len, t->add_space_prefix && after_special, &n);
    if (!p) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to encode %zu bytes", len);
    for (size_t i = 0, end; i < n; i = end) {
        end = stretch_end(t, p, n, i);
        longest = OB_MAX(longest, end - i);
    }
    /* at most one symbol a byte; each merge adds at most two candidates */
    j.sym = ob_reallocarray(NULL, longest + 1, sizeof *j.sym);
    j.heap = ob_reallocarray(NULL, longest + 1, 3 * sizeof *j.heap);
    if (!j.sym || !j.heap) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory to encode %zu bytes", len);
        goto out;
    }
    for (size_t i = 0, end; i < n; i = end) {
        end = stretch_end(t, p, n, i);
        encode_stretch(&j, p + i, end - i, out);
    }
out:
    ob_free(p);
    ob_free(j.sym);
    ob_free(j.heap);
    return s;
}
