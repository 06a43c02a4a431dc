/* dev/npu/npu_pack.h: weights packed for the array, in memory or in a file of the cache.
 *
 * Owns: packing from any weight type to int8 (i8c tiles of npu_layout.h, an f32 scale per output) and to q4g32 tiles, and
 * the .npk file that spares the next start the work. Knows no devices.
 *
 * The file lies in $XDG_CACHE_HOME/1bit/npk (~/.cache), one per model file. It is used only when its stamp is right: the
 * source's (ob_dev_source.stamp), the converter's version and the layout's name; else it is made anew under a passing name
 * and put in place when complete. Every matrix has a checksum. Experts are packed when they are first multiplied, into
 * room that the file has for them, by whoever comes first.
 *
 * Threads: one at a time, but for ob_npu_packed_write (different matrices).
 */
#ifndef OB_DEV_NPU_NPU_PACK_H
#define OB_DEV_NPU_NPU_PACK_H

#include "dev/device.h"
#include "dev/npu/npu_layout.h"
#include "dev/products.h"

enum { OB_NPU_CONVERTER = 1 }; /* version of what the bytes of a pack are */

typedef struct ob_npu_pack ob_npu_pack;     /* the packed weights of one model */
typedef struct ob_npu_packed ob_npu_packed; /* one of them */

/* `source` NULL, or no folder for caches: in memory only. A file that cannot be used is no error. */
OB_MUST_CHECK ob_status ob_npu_pack_open(const ob_dev_source *source, ob_npu_pack **out, ob_err *err);
void ob_npu_pack_close(ob_npu_pack *p); /* weights must have been freed */
/* All weights are there: puts a new file in place. Later ones are kept in memory. Never fails: a full disk is a warning. */
void ob_npu_pack_publish(ob_npu_pack *p);

typedef struct ob_npu_pack_stats {
    int32_t n_found, n_packed, n_damaged; /* matrices of weights: from the file, made now, found to be wrong */
    uint64_t n_bytes;                     /* of all weights */
    bool kept;                            /* in a file */
} ob_npu_pack_stats;
ob_npu_pack_stats ob_npu_pack_stats_get(const ob_npu_pack *p);
const char *ob_npu_pack_path(const ob_npu_pack *p); /* "" in memory */

/* Bytes of one packed matrix with its scales; 0: it cannot be packed (unknown type, too long rows). */
uint64_t ob_npu_packed_bytes(const ob_weight *desc);
/* Packs, or finds, a weight of OB_USE_LINEAR or OB_USE_EXPERTS. *keeps_data: desc->data stays borrowed (experts). Without
 * data there is only room, for ob_npu_packed_write. par may be NULL. */
OB_MUST_CHECK ob_status ob_npu_packed_new(ob_npu_pack *p, const ob_weight *desc, const ob_parallel *par, ob_npu_packed **out,
                                          bool *keeps_data, ob_err *err);
void ob_npu_packed_free(ob_npu_pack *p, ob_npu_packed *w);
OB_MUST_CHECK ob_status ob_npu_packed_write(ob_npu_packed *w, int64_t mat, const void *data, ob_err *err);
/* The tiles of a matrix (a whole number of pages, at a page), packed first when it is the first use; *scales [N]. Allocates
 * nothing. */
const int8_t *ob_npu_packed_get(ob_npu_pack *p, ob_npu_packed *w, int64_t mat, const ob_parallel *par, const float **scales);

/* Plain packing: rows of `type` at `data` [n][k] to dst [ob_npu_i8c_bytes(k, n)] and scales [n], padding zeroed. */
void ob_npu_pack_i8c(ob_type type, const void *data, int64_t k, int64_t n, int8_t *dst, float *scales, const ob_parallel *par);
/* To q4g32 [ob_npu_q4_bytes(k, n)]: exact for Q4_0, Q4_1 and Q4_K but for scale and minimum being rounded to bf16; other
 * types get the scale and minimum that their 32 values span. k must be a multiple of 32. Padding is zero. */
OB_MUST_CHECK ob_status ob_npu_pack_q4g32(ob_type type, const void *data, int64_t k, int64_t n, uint8_t *dst, ob_err *err);

#endif
