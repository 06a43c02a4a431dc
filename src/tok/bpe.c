/* Byte-pair encoding: the merge table and the two merge loops.
 *
 * A word starts as one symbol per byte (or character, raw_utf8). Of all neighbouring pairs that the
 * merge table knows, the one with the lowest rank is replaced, leftmost first, until none is left.
 * Short words do that by scanning an array; long ones with a heap and a linked list, O(n log n).
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "base/utf8.h"
#include "tok/tok_int.h"

enum { SHORT_WORD = 40 }; /* symbols; above, the heap is faster */

/* ---- Merge table ------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t x)
{
    x *= 0x9E3779B97F4A7C15u;
    return x ^ x >> 32;
}

static inline const ob_merge_slot *merge_find(const ob_merges *m, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    for (uint64_t i = mix(pair) & m->mask;; i = (i + 1) & m->mask) {
        const ob_merge_slot *s = &m->slots[i];
        if (s->pair == pair) return s;
        if (s->pair == OB_NO_PAIR) return NULL;
    }
}

static void merge_add(ob_merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint64_t pair = (uint64_t)left << 32 | right, i = mix(pair) & m->mask;
    while (m->slots[i].pair != OB_NO_PAIR) {
        if (m->slots[i].pair == pair) return; /* the first line of two equal ones counts */
        i = (i + 1) & m->mask;
    }
    m->slots[i] = (ob_merge_slot){pair, rank, id};
}

/* Ids of the two halves and of the whole of merge line "left right". False if it can never apply. */
static bool merge_ids(const ob_tok *t, ob_str line, char *scratch, int32_t ids[3])
{
    const char *space = line.len > 1 ? memchr(line.data + 1, ' ', line.len - 1) : NULL;
    if (!space) return false;
    size_t n_left = (size_t)(space - line.data), n_right = line.len - n_left - 1;
    int64_t l, r;
    if (t->raw_utf8) {
        memcpy(scratch, line.data, n_left);
        memcpy(scratch + n_left, space + 1, n_right);
        l = (int64_t)n_left;
        r = (int64_t)n_right;
    } else {
        l = ob_bytes_decode(line.data, n_left, scratch);
        r = l < 0 ? -1 : ob_bytes_decode(space + 1, n_right, scratch + l);
    }
    if (l <= 0 || r <= 0) return false;
    ids[0] = ob_vocab_find(&t->vocab, scratch, (size_t)l);
    ids[1] = ob_vocab_find(&t->vocab, scratch + l, (size_t)r);
    ids[2] = ob_vocab_find(&t->vocab, scratch, (size_t)(l + r));
    return ids[0] >= 0 && ids[1] >= 0 && ids[2] >= 0;
}

static ob_status load_merges(ob_tok *t, const ob_kv *kv, ob_err *err)
{
    size_t cap = 16;
    while (cap < 2 * kv->n) cap *= 2;
    t->merges.mask = cap - 1;
    t->merges.slots = ob_malloc(cap * sizeof *t->merges.slots);
    if (!t->merges.slots) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the merge table");
    for (size_t i = 0; i < cap; i++) t->merges.slots[i] = (ob_merge_slot){OB_NO_PAIR, 0, 0};

    size_t longest = 0;
    for (uint64_t i = 0; i < kv->n; i++) longest = OB_MAX(longest, kv->strings[i].len);
    char *scratch = ob_malloc(longest);
    if (!scratch) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the merge table");
    uint64_t n_unused = 0;
    for (uint64_t i = 0; i < kv->n; i++) {
        int32_t ids[3];
        if (merge_ids(t, kv->strings[i], scratch, ids))
            merge_add(&t->merges, (uint32_t)ids[0], (uint32_t)ids[1], (uint32_t)i, (uint32_t)ids[2]);
        else
            n_unused++;
    }
    ob_free(scratch);
    if (n_unused)
        ob_log_warn("tokenizer: %llu of %llu merges name strings that are no tokens and are ignored",
                    (unsigned long long)n_unused, (unsigned long long)kv->n);
    return OB_OK;
}

ob_status ob_bpe_load(ob_tok *t, const ob_file *f, ob_err *err)
{
    const ob_kv *kv = ob_file_find_kv(f, "tokenizer.ggml.merges");
    if (!kv || kv->type != OB_KV_ARRAY || kv->elem_type != OB_KV_STRING)
        return ob_err_set(err, OB_E_FORMAT, "tokenizer.ggml.merges is missing or no array of strings");
    if (kv->n > 4ull * OB_MAX_VOCAB)
        return ob_err_set(err, OB_E_LIMIT, "more than %u merges", 4u * OB_MAX_VOCAB);
    for (int b = 0; b < 256; b++) {
        char c = (char)b, name[8];
        int n = snprintf(name, sizeof name, "<0x%02X>", (unsigned)b);
        t->byte_id[b] = t->raw_utf8 ? ob_vocab_find(&t->vocab, name, (size_t)n)
                                    : ob_vocab_find(&t->vocab, &c, 1);
    }
    return load_merges(t, kv, err);
}

/* ---- Merging ---------------------------------------------------------------------------------- */

/* A symbol without a token is -(byte) - 1 and never merges. Only raw_utf8 has characters without one:
 * they enter as their bytes. */
static inline bool is_token(int32_t sym) { return sym >= 0; }

typedef struct pair {
    uint32_t rank; /* OB_NO_RANK: the pair with the next symbol does not merge */
    int32_t id;
} pair;

static inline pair pair_of(const ob_merges *m, int32_t left, int32_t right)
{
    const ob_merge_slot *s =
        is_token(left) && is_token(right) ? merge_find(m, (uint32_t)left, (uint32_t)right) : NULL;
    return s ? (pair){s->rank, (int32_t)s->id} : (pair){OB_NO_RANK, 0};
}

/* Merge sym[0..n) in place; returns the new count. n <= SHORT_WORD. */
static size_t merge_short(const ob_merges *m, int32_t *sym, size_t n)
{
    uint32_t rank[SHORT_WORD];
    int32_t id[SHORT_WORD];
    for (size_t i = 0; i + 1 < n; i++) {
        pair p = pair_of(m, sym[i], sym[i + 1]);
        rank[i] = p.rank;
        id[i] = p.id;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == OB_NO_RANK) break;
        sym[best] = id[best];
        n--;
        for (size_t i = best + 1; i < n; i++) sym[i] = sym[i + 1];
        for (size_t i = best; i + 1 < n; i++) {
            rank[i] = rank[i + 1];
            id[i] = id[i + 1];
        }
        if (best + 1 < n) {
            pair p = pair_of(m, sym[best], sym[best + 1]);
            rank[best] = p.rank;
            id[best] = p.id;
        }
        if (best > 0) {
            pair p = pair_of(m, sym[best - 1], sym[best]);
            rank[best - 1] = p.rank;
            id[best - 1] = p.id;
        }
    }
    return n;
}

typedef struct long_word {
    const ob_merges *m;
    uint32_t *prev, *next; /* linked list of live symbols; n is the end */
    pair *pair;            /* of each live symbol with its next */
    uint64_t *heap;        /* rank << 32 | index; stale entries are skipped when popped */
    size_t n_heap;
} long_word;

static void heap_push(long_word *w, uint64_t x)
{
    size_t i = w->n_heap++;
    while (i > 0 && w->heap[(i - 1) / 2] > x) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = x;
}

static uint64_t heap_pop(long_word *w)
{
    uint64_t top = w->heap[0], x = w->heap[--w->n_heap];
    size_t i = 0;
    for (size_t c; (c = 2 * i + 1) < w->n_heap; i = c) {
        if (c + 1 < w->n_heap && w->heap[c + 1] < w->heap[c]) c++;
        if (w->heap[c] >= x) break;
        w->heap[i] = w->heap[c];
    }
    w->heap[i] = x;
    return top;
}

static void link_pair(long_word *w, const int32_t *sym, size_t n, uint32_t i)
{
    uint32_t next = w->next[i];
    w->pair[i] = next < n ? pair_of(w->m, sym[i], sym[next]) : (pair){OB_NO_RANK, 0};
    if (w->pair[i].rank != OB_NO_RANK) heap_push(w, (uint64_t)w->pair[i].rank << 32 | i);
}

/* The same as merge_short for any n. */
static ob_status merge_long(const ob_merges *m, int32_t *sym, size_t *n_sym, ob_err *err)
{
    size_t n = *n_sym;
    /* each merge pushes at most two pairs, so 3n entries are enough */
    uint64_t *block = ob_reallocarray(NULL, n, 5 * sizeof *block);
    if (!block) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to merge a word of %zu bytes", n);
    long_word w = {.m = m, .heap = block};
    w.pair = (pair *)(block + 3 * n);
    w.prev = (uint32_t *)(block + 4 * n);
    w.next = w.prev + n;
    for (uint32_t i = 0; i < n; i++) {
        w.prev[i] = i - 1; /* wraps for 0: no index */
        w.next[i] = i + 1;
    }
    for (uint32_t i = 0; i < n; i++) link_pair(&w, sym, n, i);
    while (w.n_heap) {
        uint64_t top = heap_pop(&w);
        uint32_t i = (uint32_t)top;
        if (w.pair[i].rank != top >> 32) continue; /* symbols on one side have changed since */
        uint32_t gone = w.next[i];
        sym[i] = w.pair[i].id;
        w.pair[gone].rank = OB_NO_RANK;
        w.next[i] = w.next[gone];
        if (w.next[gone] < n) w.prev[w.next[gone]] = i;
        link_pair(&w, sym, n, i);
        if (i > 0) link_pair(&w, sym, n, w.prev[i]);
    }
    size_t out = 0;
    for (uint32_t i = 0; i < n; i = w.next[i]) sym[out++] = sym[i];
    *n_sym = out;
    ob_free(block);
    return OB_OK;
}

/* ---- Words ------------------------------------------------------------------------------------ */

typedef struct word_job {
    const ob_tok *t;
    ob_ids *out;
    ob_err *err;
} word_job;

/* Symbols of a word before any merge, at most len. */
static size_t first_symbols(const ob_tok *t, const char *word, size_t len, int32_t *sym)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        size_t l = t->raw_utf8 ? ob_utf8_valid_len(word + i, len - i) : 1;
        int32_t id = -1;
        if (t->raw_utf8 && l) id = ob_vocab_find(&t->vocab, word + i, l);
        if (id >= 0) {
            sym[n++] = id;
            i += l;
            continue;
        }
        for (size_t end = i + (l ? l : 1); i < end; i++) {
            unsigned char b = (unsigned char)word[i];
            sym[n++] = t->byte_id[b] >= 0 ? t->byte_id[b] : -(int32_t)b - 1;
        }
    }
    return n;
}

static void put_symbols(const ob_tok *t, const int32_t *sym, size_t n, ob_ids *out)
{
    for (size_t i = 0; i < n; i++) {
        if (is_token(sym[i])) ob_ids_add(out, sym[i]);
        else if (t->unk >= 0) ob_ids_add(out, t->unk);
    }
}

static ob_status encode_word(void *arg, const char *word, size_t len)
{
    word_job *job = arg;
    const ob_tok *t = job->t;
    int32_t id = ob_vocab_find(&t->vocab, word, len);
    if (id >= 0 && (ob_pre_ignore_merges(t->pre) || ob_tok_whole(t, id) == OB_WHOLE_YES)) {
        ob_ids_add(job->out, id);
        return OB_OK;
    }
    if (len <= SHORT_WORD) {
        int32_t sym[SHORT_WORD];
        size_t n = merge_short(&t->merges, sym, first_symbols(t, word, len, sym));
        if (id >= 0) ob_tok_set_whole(t, id, n == 1 && sym[0] == id);
        put_symbols(t, sym, n, job->out);
        return OB_OK;
    }
    int32_t *sym = ob_reallocarray(NULL, len, sizeof *sym);
    if (!sym)
        return ob_err_set(job->err, OB_E_NO_MEMORY, "no memory to encode a word of %zu bytes", len);
    size_t n = first_symbols(t, word, len, sym);
    ob_status s = merge_long(&t->merges, sym, &n, job->err);
    if (s == OB_OK) {
        if (id >= 0) ob_tok_set_whole(t, id, n == 1 && sym[0] == id);
        put_symbols(t, sym, n, job->out);
    }
    ob_free(sym);
    return s;
}

/* Gemma 4 writes each space as U+2581 before anything else. */
static char *escape_spaces(const char *text, size_t len, size_t *n)
{
    size_t spaces = 0;
    for (size_t i = 0; i < len; i++) spaces += text[i] == ' ';
    char *p = ob_malloc(len + 2 * spaces);
    if (!p) return NULL;
    *n = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == ' ') {
            memcpy(p + *n, "\xE2\x96\x81", 3);
            *n += 3;
        } else {
            p[(*n)++] = text[i];
        }
    }
    return p;
}

ob_status ob_bpe_encode(const ob_tok *t, const char *text, size_t len, ob_ids *out, ob_err *err)
{
    word_job job = {t, out, err};
    if (!t->raw_utf8) return ob_pre_split(t->pre, text, len, encode_word, &job, err);
    size_t n;
    char *escaped = escape_spaces(text, len, &n);
    if (!escaped) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to encode %zu bytes", len);
    ob_status s = ob_pre_split(t->pre, escaped, n, encode_word, &job, err);
    ob_free(escaped);
    return s;
}
