/* tests/npz.h: read numpy's .npz and .npy files, for tests against golden data.
 *
 * An .npz is a zip file (stored or deflated) of .npy files. Arrays are little-endian and in C order;
 * anything else is refused. All memory belongs to the `npz` and stays valid until npz_close. This is
 * test code: it trusts its files not to be hostile, but never reads past their end.
 *
 *     npz *z = npz_open(OB_TEST_DATA "/golden/llama.npz");
 *     const npz_array *a = npz_need(z, "logits", NPZ_F32);
 *     const float *logits = a->data;                           // a->shape[0] x a->shape[1]
 *     npz_close(z);
 */
#ifndef OB_TESTS_NPZ_H
#define OB_TESTS_NPZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum npz_dtype {
    NPZ_BOOL, NPZ_U8, NPZ_U16, NPZ_U32, NPZ_U64, NPZ_I8, NPZ_I16, NPZ_I32, NPZ_I64,
    NPZ_F16, NPZ_F32, NPZ_F64,
    NPZ_BYTES, /* numpy 'S': item_bytes each, padded with NUL */
    NPZ_TEXT   /* numpy 'U': here UTF-8, item_bytes each, padded with NUL and always ended by one */
} npz_dtype;

#define NPZ_MAX_DIMS 8

typedef struct npz_array {
    const char *name;            /* without ".npy" */
    npz_dtype dtype;
    size_t item_bytes;
    int n_dims;                  /* 0 for a scalar */
    int64_t shape[NPZ_MAX_DIMS]; /* as numpy prints it: the last one is contiguous */
    int64_t n_items;             /* product of shape; 1 for a scalar */
    const void *data;            /* aligned to 64 bytes */
} npz_array;

typedef struct npz npz;

/* Opens an .npz, or one .npy (its array is called "array"). NULL when the file cannot be read; the
 * reason goes to stderr. */
npz *npz_open(const char *path);
void npz_close(npz *z); /* NULL is allowed */

int npz_count(const npz *z);
const char *npz_name(const npz *z, int i);

/* NULL when there is no such array, or its bytes cannot be read (reason to stderr). Unpacked once,
 * at the first call. Not thread-safe. */
const npz_array *npz_get(npz *z, const char *name);
/* Like npz_get, but ends the program with a message when it is missing or of another dtype. */
const npz_array *npz_need(npz *z, const char *name, npz_dtype dtype);

#endif
