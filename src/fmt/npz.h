/* fmt/npz.h: numpy's .npz files (zip of .npy), for reference outputs that `1bit check` compares with.
 *
 * Stored and deflated entries, little-endian arrays in C order. The file is not trusted: every offset and
 * size is checked, and what unpacking may give is bounded by OB_MAX_NPZ_BYTES.
 */
#ifndef OB_FMT_NPZ_H
#define OB_FMT_NPZ_H

#include "base/buf.h"

enum { OB_NPZ_MAX_DIMS = 4 };

typedef struct ob_npz ob_npz;

typedef struct ob_npz_array {
    char type[8];                  /* numpy's descr: "<f4", "<i4", "<f8", ... */
    int n_dims;                    /* 0: a scalar */
    int64_t shape[OB_NPZ_MAX_DIMS];
    size_t n_items;                /* product of shape */
    void *data;                    /* *taken* by the caller: ob_free */
} ob_npz_array;

/* Reads the whole file (at most OB_MAX_NPZ_BYTES) and its directory. */
OB_MUST_CHECK ob_status ob_npz_open(const char *path, ob_npz **out, ob_err *err);
void ob_npz_close(ob_npz *z);
bool ob_npz_has(const ob_npz *z, const char *name);
/* Unpack array `name` (without ".npy"), which must have this type. NOT_FOUND, FORMAT, LIMIT. */
OB_MUST_CHECK ob_status ob_npz_get(const ob_npz *z, const char *name, const char *type, ob_npz_array *out, ob_err *err);

#endif
