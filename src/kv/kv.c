#include "kv/kv.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/math.h"

enum { NIL = -1, ROOT = -1 };

/* One entry per page; a page in the tree is the node of the same number. */
typedef struct node {
    int32_t refs;         /* sequences that hold the page */
    bool in_tree;
    int32_t n_tok;        /* tokens the tree knows of this page */
    int32_t parent;       /* page before it, or ROOT */
    int32_t n_children;
    int32_t child, next, prev; /* first child; neighbours among the parent's children */
    int32_t hash_next;    /* chain of a hash bucket (whole pages only) */
    int32_t lru_next, lru_prev; /* kept pages, oldest first */
} node;

struct ob_kv {
    ob_dev **devs; /* [n_caches] */
    ob_kv_params p;
    ob_cache_spec *caches;
    ob_dev_buf **k, **v;
    uint64_t *k_bytes, *v_bytes; /* of one page, per cache */
    node *nodes;
    int32_t *tok;      /* [n_pages][page_tok] tokens of pages in the tree */
    int32_t *free_stack, n_free;
    int32_t *bucket;
    uint32_t n_buckets; /* power of two */
    int32_t root_child;
    int32_t lru_first, lru_last;
    int32_t n_kept;
    int64_t kept_tok;
};

/* ------------------------------------------------------------------ sizes */

static ob_status page_bytes(const ob_cache_spec *c, const ob_kv_params *p, uint64_t *k, uint64_t *v,
                            ob_err *err)
{
    size_t rk = ob_type_row_bytes(p->k_type, c->k_dim);
    size_t rv = c->v_dim ? ob_type_row_bytes(p->v_type, c->v_dim) : 0;
    if (!rk || (c->v_dim && !rv))
        return ob_err_set(err, OB_E_UNSUPPORTED,
                          "cache type %s needs head widths in multiples of %d, this model has %d",
                          ob_type_get(rk ? p->v_type : p->k_type)->name,
                          ob_type_get(rk ? p->v_type : p->k_type)->block_elems, rk ? c->v_dim : c->k_dim);
    uint64_t rows = (uint64_t)c->n_head_kv * (uint64_t)p->page_tok;
    *k = rows * rk;
    *v = rows * rv;
    return OB_OK;
}

ob_status ob_kv_bytes(const ob_kv_params *p, uint64_t *out, ob_err *err)
{
    uint64_t total = 0;
    for (int32_t i = 0; i < p->n_caches; i++) {
        uint64_t k = 0, v = 0, sum;
        OB_TRY(page_bytes(&p->caches[i], p, &k, &v, err));
        if (!ob_mul_u64(k + v, (uint64_t)p->n_pages, &sum) || !ob_add_u64(total, sum, &total))
            return ob_err_set(err, OB_E_LIMIT, "a cache of %d pages is too large", p->n_pages);
    }
    *out = total;
    return OB_OK;
}

/* ------------------------------------------------------------------ life */

void ob_kv_free(ob_kv *kv)
{
    if (!kv) return;
    for (int32_t i = 0; i < kv->p.n_caches; i++) {
        if (kv->k && kv->k[i]) kv->devs[i]->api->buffer_free(kv->devs[i], kv->k[i]);
        if (kv->v && kv->v[i]) kv->devs[i]->api->buffer_free(kv->devs[i], kv->v[i]);
    }
    ob_free(kv->devs);
    ob_free(kv->caches);
    ob_free(kv->k);
    ob_free(kv->v);
    ob_free(kv->k_bytes);
    ob_free(kv->v_bytes);
    ob_free(kv->nodes);
    ob_free(kv->tok);
    ob_free(kv->free_stack);
    ob_free(kv->bucket);
    ob_free(kv);
}

static bool allocate(ob_kv *kv)
{
    size_t nc = (size_t)kv->p.n_caches, np = (size_t)kv->p.n_pages;
    kv->n_buckets = 16;
    while (kv->n_buckets < np) kv->n_buckets *= 2;
    kv->devs = ob_calloc(nc, sizeof(ob_dev *));
    kv->caches = ob_calloc(nc, sizeof *kv->caches);
    kv->k = ob_calloc(nc, sizeof *kv->k);
    kv->v = ob_calloc(nc, sizeof *kv->v);
    kv->k_bytes = ob_calloc(nc, sizeof *kv->k_bytes);
    kv->v_bytes = ob_calloc(nc, sizeof *kv->v_bytes);
    kv->nodes = ob_calloc(np, sizeof *kv->nodes);
    kv->tok = ob_calloc(np, (size_t)kv->p.page_tok * sizeof *kv->tok);
    kv->free_stack = ob_calloc(np, sizeof *kv->free_stack);
    kv->bucket = ob_calloc(kv->n_buckets, sizeof *kv->bucket);
    return kv->devs && kv->caches && kv->k && kv->v && kv->k_bytes && kv->v_bytes && kv->nodes && kv->tok &&
           kv->free_stack && kv->bucket;
}

ob_status ob_kv_new(ob_dev *dev, const ob_kv_params *p, ob_kv **out, ob_err *err)
{
    ob_status s = OB_OK;
    ob_kv *kv = ob_calloc(1, sizeof *kv);
    if (!kv) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the cache");
    kv->p = *p;
    kv->p.devs = NULL;
    if (!allocate(kv)) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for a cache of %d pages", p->n_pages);
        goto out;
    }
    if (p->n_caches) memcpy(kv->caches, p->caches, (size_t)p->n_caches * sizeof *kv->caches);
    kv->p.caches = kv->caches;
    kv->root_child = kv->lru_first = kv->lru_last = NIL;
    for (uint32_t i = 0; i < kv->n_buckets; i++) kv->bucket[i] = NIL;
    for (int32_t i = p->n_pages - 1; i >= 0; i--) kv->free_stack[kv->n_free++] = i;
    for (int32_t i = 0; i < p->n_caches; i++) {
        OB_GOTO(page_bytes(&kv->caches[i], p, &kv->k_bytes[i], &kv->v_bytes[i], err));
        uint64_t n = (uint64_t)p->n_pages;
        ob_dev *at = kv->devs[i] = p->devs ? p->devs[i] : dev;
        OB_GOTO(at->api->buffer_new(at, n * kv->k_bytes[i], 0, &kv->k[i], err));
        if (kv->v_bytes[i]) OB_GOTO(at->api->buffer_new(at, n * kv->v_bytes[i], 0, &kv->v[i], err));
    }
    *out = kv;
    return OB_OK;
out:
    ob_kv_free(kv);
    return s;
}

ob_dev_buf *const *ob_kv_k(const ob_kv *kv) { return kv->k; }
ob_dev_buf *const *ob_kv_v(const ob_kv *kv) { return kv->v; }

/* ------------------------------------------------------------------ lists */

static void lru_remove(ob_kv *kv, int32_t i)
{
    node *n = &kv->nodes[i];
    if (n->lru_prev == NIL) kv->lru_first = n->lru_next;
    else kv->nodes[n->lru_prev].lru_next = n->lru_next;
    if (n->lru_next == NIL) kv->lru_last = n->lru_prev;
    else kv->nodes[n->lru_next].lru_prev = n->lru_prev;
    kv->n_kept--;
    kv->kept_tok -= n->n_tok;
}

/* Pages of a sequence are released last page first, so a parent is always newer than its children and
 * the oldest kept page has no child in the list. */
static void lru_append(ob_kv *kv, int32_t i)
{
    node *n = &kv->nodes[i];
    n->lru_prev = kv->lru_last;
    n->lru_next = NIL;
    if (kv->lru_last == NIL) kv->lru_first = i;
    else kv->nodes[kv->lru_last].lru_next = i;
    kv->lru_last = i;
    kv->n_kept++;
    kv->kept_tok += n->n_tok;
}

static int32_t *first_child(ob_kv *kv, int32_t parent)
{
    return parent == ROOT ? &kv->root_child : &kv->nodes[parent].child;
}

static uint32_t bucket_of(const ob_kv *kv, int32_t parent, const int32_t *tok)
{
    XXH64_hash_t h = XXH3_64bits_withSeed(tok, (size_t)kv->p.page_tok * sizeof *tok,
                                          (XXH64_hash_t)(uint32_t)parent);
    return (uint32_t)h & (kv->n_buckets - 1);
}

static int32_t *node_tok(const ob_kv *kv, int32_t i)
{
    return kv->tok + (size_t)i * (size_t)kv->p.page_tok;
}

/* The whole page behind `parent` with exactly these tokens, or NIL. */
static int32_t find_whole(const ob_kv *kv, int32_t parent, const int32_t *tok)
{
    int32_t i = kv->bucket[bucket_of(kv, parent, tok)];
    for (; i != NIL; i = kv->nodes[i].hash_next)
        if (kv->nodes[i].parent == parent &&
            !memcmp(node_tok(kv, i), tok, (size_t)kv->p.page_tok * sizeof *tok))
            return i;
    return NIL;
}

static void tree_insert(ob_kv *kv, int32_t i, int32_t parent, const int32_t *tok, int32_t n_tok)
{
    node *n = &kv->nodes[i];
    memcpy(node_tok(kv, i), tok, (size_t)n_tok * sizeof *tok);
    n->in_tree = true;
    n->n_tok = n_tok;
    n->parent = parent;
    n->n_children = 0;
    n->child = NIL;
    n->prev = NIL;
    int32_t *head = first_child(kv, parent);
    n->next = *head;
    if (*head != NIL) kv->nodes[*head].prev = i;
    *head = i;
    if (parent != ROOT) kv->nodes[parent].n_children++;
    if (n_tok == kv->p.page_tok) {
        uint32_t b = bucket_of(kv, parent, tok);
        n->hash_next = kv->bucket[b];
        kv->bucket[b] = i;
    }
}

static void tree_remove(ob_kv *kv, int32_t i)
{
    node *n = &kv->nodes[i];
    if (n->prev == NIL) *first_child(kv, n->parent) = n->next;
    else kv->nodes[n->prev].next = n->next;
    if (n->next != NIL) kv->nodes[n->next].prev = n->prev;
    if (n->parent != ROOT) kv->nodes[n->parent].n_children--;
    if (n->n_tok == kv->p.page_tok) {
        int32_t *at = &kv->bucket[bucket_of(kv, n->parent, node_tok(kv, i))];
        while (*at != i) at = &kv->nodes[*at].hash_next;
        *at = n->hash_next;
    }
    n->in_tree = false;
}

/* Free the oldest kept page that has no child in the tree; false when there is none. */
static bool evict_one(ob_kv *kv)
{
    for (int32_t i = kv->lru_first; i != NIL; i = kv->nodes[i].lru_next) {
        if (kv->nodes[i].n_children) continue;
        lru_remove(kv, i);
        tree_remove(kv, i);
        kv->free_stack[kv->n_free++] = i;
        return true;
    }
    return false;
}

/* ------------------------------------------------------------------ pages */

int32_t ob_kv_page_new(ob_kv *kv)
{
    if (kv->n_free == 0 && !evict_one(kv)) return -1;
    int32_t i = kv->free_stack[--kv->n_free];
    kv->nodes[i].refs = 1;
    return i;
}

void ob_kv_page_ref(ob_kv *kv, int32_t i)
{
    if (kv->nodes[i].refs++ == 0) lru_remove(kv, i);
}

void ob_kv_page_unref(ob_kv *kv, int32_t i)
{
    if (--kv->nodes[i].refs > 0) return;
    if (kv->nodes[i].in_tree) lru_append(kv, i);
    else kv->free_stack[kv->n_free++] = i;
}

ob_status ob_kv_page_copy(ob_kv *kv, int32_t dst, int32_t src, ob_err *err)
{
    for (int32_t c = 0; c < kv->p.n_caches; c++) {
        ob_dev *dev = kv->devs[c];
        const ob_dev_api *api = dev->api;
        uint64_t k = kv->k_bytes[c], v = kv->v_bytes[c];
        OB_TRY(api->buffer_copy(dev, kv->k[c], (uint64_t)dst * k, kv->k[c], (uint64_t)src * k, k, err));
        if (v)
            OB_TRY(api->buffer_copy(dev, kv->v[c], (uint64_t)dst * v, kv->v[c], (uint64_t)src * v, v,
                                    err));
    }
    return OB_OK;
}

/* ------------------------------------------------------------------ to and from other devices */

void ob_kv_get_layout(const ob_kv *kv, ob_kv_layout *out)
{
    *out = (ob_kv_layout){.k_type = kv->p.k_type, .v_type = kv->p.v_type};
    XXH64_hash_t h = XXH3_64bits_withSeed(&kv->p.page_tok, sizeof kv->p.page_tok, 0);
    for (int32_t i = 0; i < kv->p.n_caches; i++) {
        const int32_t dims[3] = {kv->caches[i].n_head_kv, kv->caches[i].k_dim, kv->caches[i].v_dim};
        h = XXH3_64bits_withSeed(dims, sizeof dims, h);
        out->page_bytes += kv->k_bytes[i] + kv->v_bytes[i];
    }
    const int32_t types[2] = {(int32_t)kv->p.k_type, (int32_t)kv->p.v_type};
    out->shape = h;
    out->hash = XXH3_64bits_withSeed(types, sizeof types, h);
}

/* Pages from number i on whose ids follow each other. */
static int32_t run_length(const int32_t *pages, int32_t i, int32_t n)
{
    int32_t k = 1;
    while (i + k < n && pages[i + k] == pages[i] + k) k++;
    return k;
}

static ob_status read_plane(ob_dev *dev, ob_dev_buf *b, uint64_t bytes, const int32_t *pages, int32_t n, char *dst,
                            ob_err *err)
{
    for (int32_t i = 0, k; i < n; i += k) {
        k = run_length(pages, i, n);
        OB_TRY(dev->api->buffer_read(dev, b, (uint64_t)pages[i] * bytes, dst + (uint64_t)i * bytes, (uint64_t)k * bytes, err));
    }
    return OB_OK;
}

static ob_status write_plane(ob_dev *dev, ob_dev_buf *b, uint64_t bytes, const int32_t *pages, int32_t n, const char *src,
                             ob_err *err)
{
    for (int32_t i = 0, k; i < n; i += k) {
        k = run_length(pages, i, n);
        OB_TRY(dev->api->buffer_write(dev, b, (uint64_t)pages[i] * bytes, src + (uint64_t)i * bytes, (uint64_t)k * bytes, err));
    }
    return OB_OK;
}

ob_status ob_kv_pages_export(ob_kv *kv, const int32_t *pages, int32_t n, void *dst, ob_err *err)
{
    char *at = dst;
    for (int32_t c = 0; c < kv->p.n_caches; c++) {
        OB_TRY(read_plane(kv->devs[c], kv->k[c], kv->k_bytes[c], pages, n, at, err));
        at += (uint64_t)n * kv->k_bytes[c];
        if (!kv->v_bytes[c]) continue;
        OB_TRY(read_plane(kv->devs[c], kv->v[c], kv->v_bytes[c], pages, n, at, err));
        at += (uint64_t)n * kv->v_bytes[c];
    }
    return OB_OK;
}

/* n_rows rows of dim elements from one type to another, by way of row [dim]. */
static void convert_rows(ob_type from, const char *src, ob_type to, char *dst, int64_t n_rows, int32_t dim, float *row)
{
    const size_t in = ob_type_row_bytes(from, dim), out = ob_type_row_bytes(to, dim);
    for (int64_t r = 0; r < n_rows; r++, src += in, dst += out) {
        if (from == OB_F32) memcpy(row, src, in);
        else ob_type_get(from)->dequant(src, row, dim);
        if (to == OB_F32) memcpy(dst, row, out);
        else ob_type_get(to)->quant(row, dst, dim, NULL);
    }
}

/* One plane of n pages from host memory in type `from`; *src moves behind it. scratch: a row, then n pages of bytes. */
static ob_status import_plane(ob_kv *kv, int32_t c, bool values, const int32_t *pages, int32_t n, ob_type from,
                              const char **src, float *scratch, ob_err *err)
{
    const ob_cache_spec *spec = &kv->caches[c];
    const int32_t dim = values ? spec->v_dim : spec->k_dim;
    const ob_type to = values ? kv->p.v_type : kv->p.k_type;
    const uint64_t bytes = values ? kv->v_bytes[c] : kv->k_bytes[c];
    const int64_t n_rows = (int64_t)n * spec->n_head_kv * kv->p.page_tok;
    const char *at = *src;
    *src += (uint64_t)n_rows * ob_type_row_bytes(from, dim);
    if (from != to) {
        char *converted = (char *)(scratch + dim);
        convert_rows(from, at, to, converted, n_rows, dim, scratch);
        at = converted;
    }
    return write_plane(kv->devs[c], values ? kv->v[c] : kv->k[c], bytes, pages, n, at, err);
}

ob_status ob_kv_pages_import(ob_kv *kv, const int32_t *pages, int32_t n, const ob_kv_layout *from, const void *src, ob_err *err)
{
    ob_status s = OB_OK;
    ob_kv_layout mine;
    float *scratch = NULL;
    const char *at = src;
    ob_kv_get_layout(kv, &mine);
    if (from->shape != mine.shape)
        return ob_err_set(err, OB_E_UNSUPPORTED, "cache pages of layout %016llx do not fit a cache of layout %016llx",
                          (unsigned long long)from->hash, (unsigned long long)mine.hash);
    if (from->hash != mine.hash) {
        uint64_t most = 0;
        for (int32_t c = 0; c < kv->p.n_caches; c++) {
            const uint64_t dim = (uint64_t)OB_MAX(kv->caches[c].k_dim, kv->caches[c].v_dim);
            most = OB_MAX(most, dim * sizeof(float) + (uint64_t)n * OB_MAX(kv->k_bytes[c], kv->v_bytes[c]));
        }
        scratch = ob_malloc((size_t)most);
        if (!scratch) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to convert %d cache pages", n);
    }
    for (int32_t c = 0; c < kv->p.n_caches; c++) {
        OB_GOTO(import_plane(kv, c, false, pages, n, from->k_type, &at, scratch, err));
        if (kv->v_bytes[c]) OB_GOTO(import_plane(kv, c, true, pages, n, from->v_type, &at, scratch, err));
    }
out:
    ob_free(scratch);
    return s;
}

/* ------------------------------------------------------------------ prefixes */

int32_t ob_kv_match(ob_kv *kv, const int32_t *tok, int32_t n, int32_t *pages, int32_t *part,
                    int32_t *n_part)
{
    int32_t parent = ROOT, n_pages = 0, at = 0;
    while (n - at >= kv->p.page_tok) {
        int32_t i = find_whole(kv, parent, tok + at);
        if (i == NIL) break;
        ob_kv_page_ref(kv, i);
        pages[n_pages++] = parent = i;
        at += kv->p.page_tok;
    }
    *part = -1;
    *n_part = 0;
    for (int32_t i = *first_child(kv, parent); i != NIL; i = kv->nodes[i].next) {
        int32_t max = OB_MIN(kv->nodes[i].n_tok, n - at), same = 0;
        const int32_t *t = node_tok(kv, i);
        while (same < max && t[same] == tok[at + same]) same++;
        if (same > *n_part) {
            *part = i;
            *n_part = same;
        }
    }
    if (*part != -1) ob_kv_page_ref(kv, *part);
    return n_pages;
}

/* Does the tree hold a page behind `parent` that begins with these tokens? */
static bool covered(ob_kv *kv, int32_t parent, const int32_t *tok, int32_t n)
{
    for (int32_t i = *first_child(kv, parent); i != NIL; i = kv->nodes[i].next)
        if (kv->nodes[i].n_tok >= n && !memcmp(node_tok(kv, i), tok, (size_t)n * sizeof *tok)) return true;
    return false;
}

void ob_kv_publish(ob_kv *kv, const int32_t *tok, int32_t n, int32_t *pages, bool final)
{
    int32_t parent = ROOT, size = kv->p.page_tok;
    for (int32_t at = 0, k = 0; at < n; at += size, k++) {
        int32_t left = OB_MIN(size, n - at), i = pages[k];
        if (left < size) {
            if (final && !kv->nodes[i].in_tree && !covered(kv, parent, tok + at, left))
                tree_insert(kv, i, parent, tok + at, left);
            return;
        }
        int32_t known = find_whole(kv, parent, tok + at);
        if (known == NIL) {
            tree_insert(kv, i, parent, tok + at, size);
        } else if (known != i) {
            ob_kv_page_ref(kv, known);
            ob_kv_page_unref(kv, i);
            pages[k] = known;
        }
        parent = pages[k];
    }
}

void ob_kv_forget(ob_kv *kv)
{
    while (evict_one(kv)) {}
}

void ob_kv_get_stats(const ob_kv *kv, ob_kv_stats *out)
{
    *out = (ob_kv_stats){.n_pages = kv->p.n_pages, .n_free = kv->n_free, .n_kept = kv->n_kept,
                         .n_live = kv->p.n_pages - kv->n_free - kv->n_kept, .kept_tok = kv->kept_tok};
}
