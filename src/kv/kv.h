/* kv/kv.h: the paged cache of one model on one device, and the prefix tree over its pages.
 *
 * Owns: the device buffers of keys and values, which page belongs to whom, and which pages of finished
 * sequences are kept so that a later prompt with the same beginning need not be computed again. Must
 * not know models or requests: it sees tokens and page ids.
 *
 *   page id p: rows p of every layer's K and V buffer, page_tok tokens each
 *   tree:      root - [page of 64 tokens] - [page] - [page, 17 tokens so far]
 *                                        \ [page] ...
 *
 * A page is free, live (referenced by sequences), kept (in the tree, referenced by none: the oldest
 * goes first when pages run out), or live and in the tree. A page in the tree is never written again,
 * except that its owner may append behind the tokens the tree knows of it. Equal prefixes are told by
 * comparing tokens, so a hash collision costs time and never correctness.
 *
 * Engine thread only. After ob_kv_new nothing here allocates host memory, but for an import that converts.
 */
#ifndef OB_KV_KV_H
#define OB_KV_KV_H

#include "dev/device.h"

typedef struct ob_kv ob_kv;

typedef struct ob_kv_params {
    const ob_cache_spec *caches; /* [n_caches], copied */
    int32_t n_caches;
    ob_type k_type, v_type;
    int32_t page_tok; /* tokens per page, a power of two */
    int32_t n_pages;
    ob_dev *const *devs; /* [n_caches] device of each, copied; NULL: all on the one device */
} ob_kv_params;

/* Bytes that n_pages would take on the device; false on overflow or a dimension that the cache types
 * cannot hold (not a multiple of their block): the error says which. */
OB_MUST_CHECK ob_status ob_kv_bytes(const ob_kv_params *p, uint64_t *out, ob_err *err);

OB_MUST_CHECK ob_status ob_kv_new(ob_dev *dev, const ob_kv_params *p, ob_kv **out, ob_err *err);
void ob_kv_free(ob_kv *kv);
/* Buffers for ob_plan_bindings: [n_caches] each, borrowed. */
ob_dev_buf *const *ob_kv_k(const ob_kv *kv);
ob_dev_buf *const *ob_kv_v(const ob_kv *kv);

/* A page with one reference, or -1 when none is free or kept. */
int32_t ob_kv_page_new(ob_kv *kv);
void ob_kv_page_ref(ob_kv *kv, int32_t page);
void ob_kv_page_unref(ob_kv *kv, int32_t page);
/* Copy all layers' rows of a page. */
OB_MUST_CHECK ob_status ob_kv_page_copy(ob_kv *kv, int32_t dst, int32_t src, ob_err *err);

/* What the bytes of pages mean outside their device. Equal hashes: the same bytes for the same keys and values, so
 * they may be moved as they are. Equal shapes: the same rows in other number formats, which import converts. */
typedef struct ob_kv_layout {
    uint64_t hash, shape;
    ob_type k_type, v_type;
    uint64_t page_bytes; /* of one page, all planes */
} ob_kv_layout;
void ob_kv_get_layout(const ob_kv *kv, ob_kv_layout *out);
/* Copy n pages to host memory dst [n * page_bytes]: of each cache the keys of all n, then their values. Runs of
 * adjacent page ids are moved at once. */
OB_MUST_CHECK ob_status ob_kv_pages_export(ob_kv *kv, const int32_t *pages, int32_t n, void *dst, ob_err *err);
/* The other way round, from bytes of layout `from`. OB_E_UNSUPPORTED when the shapes differ: nothing was written. */
OB_MUST_CHECK ob_status ob_kv_pages_import(ob_kv *kv, const int32_t *pages, int32_t n, const ob_kv_layout *from,
                                           const void *src, ob_err *err);

/* Find the longest kept prefix of tok[0..n). pages[] gets the whole pages (referenced for the caller;
 * room for n / page_tok). If part of one more page fits, *part is that page (referenced too, to be
 * copied, then unreferenced) and *n_part how many of its tokens; else *part is -1. Returns the number
 * of whole pages. */
int32_t ob_kv_match(ob_kv *kv, const int32_t *tok, int32_t n, int32_t *pages, int32_t *part,
                    int32_t *n_part);

/* Put a sequence's pages into the tree: pages[] holds its n tokens. Whole pages that the tree has
 * already are exchanged for the tree's (pages[] is updated). The last, partly filled page is put in
 * only with `final`, when its owner will not write again. */
void ob_kv_publish(ob_kv *kv, const int32_t *tok, int32_t n, int32_t *pages, bool final);
/* Forget everything kept (live sequences stay). */
void ob_kv_forget(ob_kv *kv);

typedef struct ob_kv_stats {
    int32_t n_pages, n_free, n_live, n_kept;
    int64_t kept_tok;
} ob_kv_stats;
void ob_kv_get_stats(const ob_kv *kv, ob_kv_stats *out);

#endif
