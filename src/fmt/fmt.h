/* fmt/fmt.h: model files behind one tensor directory over mmap.
 *
 * Owns: the bytes of GGUF files (split files included), 1BP packages and safetensors. What is above
 * cannot tell the formats apart: it sees metadata pairs and tensors. Must not know architectures,
 * tokenizers or devices. The file is *immutable after load* and may be read by any thread.
 *
 * Type ids of tensors are ggml's (quant/quant.h has the same numbers); fmt carries its own small
 * table of block sizes to check extents, because it may not include quant/.
 */
#ifndef OB_FMT_FMT_H
#define OB_FMT_FMT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

typedef struct ob_file ob_file;

/* GGUF's value types, same numbers. */
typedef enum ob_kv_type {
    OB_KV_U8 = 0, OB_KV_I8, OB_KV_U16, OB_KV_I16, OB_KV_U32, OB_KV_I32, OB_KV_F32, OB_KV_BOOL,
    OB_KV_STRING, OB_KV_ARRAY, OB_KV_U64, OB_KV_I64, OB_KV_F64
} ob_kv_type;

typedef struct ob_str {
    const char *data; /* borrowed from the file, not NUL-terminated */
    size_t len;
} ob_str;

typedef struct ob_kv {
    ob_str key;
    ob_kv_type type;
    ob_kv_type elem_type;  /* OB_KV_ARRAY: type of its elements (never ARRAY); else equal to type */
    uint64_t n;            /* OB_KV_ARRAY: number of elements, else 1 */
    const uint8_t *data;   /* value bytes in the file (unaligned, little-endian, checked in full);
                              for strings use `strings` */
    const ob_str *strings; /* string, or array of strings: n entries; else NULL */
} ob_kv;

typedef struct ob_tensor {
    const char *name;   /* NUL-terminated, UTF-8 */
    uint32_t type;      /* ggml type id */
    int n_dims;         /* 1..4 */
    int64_t ne[4];      /* ne[0] is the fastest (row length); unused dims are 1 */
    const void *data;   /* in the mapping; NULL when opened with OB_OPEN_NO_DATA */
    size_t n_bytes;
    uint64_t file_off;  /* absolute offset in the file that holds it */
    int file_index;     /* which part of a split file; -1: made up, in no file */
    int32_t rope_heads; /* not 0: so many heads, in each of which the rows of a rotary pair are half a head apart (Llama of
                           Hugging Face) where GGUF has them side by side */
} ob_tensor;

enum {
    OB_OPEN_NO_DATA = 1,  /* header only: tensor extents are still checked against the file size */
    OB_OPEN_ONE_PART = 2, /* of a split file, the named part alone: its own tensors and pairs */
};

/* Open by content: the first bytes decide, not the name. For a split GGUF any part may be named.
 * A folder stands for the model.safetensors in it, or for its shards; a BERT, a Laya, a Llama or a Qwen of Hugging
 * Face looks like the GGUF of the same model (fmt/hf_*.c), other safetensors have their own names and no pairs.
 * Strings and tensors are borrowed views of the mapping, alive until ob_file_close.
 * `path` is copied. Errors: NOT_FOUND, IO, FORMAT (text says which field at which byte offset),
 * UNSUPPORTED (big-endian file, unknown version), LIMIT, NO_MEMORY. */
OB_MUST_CHECK ob_status ob_file_open(const char *path, unsigned flags, ob_file **out, ob_err *err);
/* The same over bytes in memory (tests, fuzzing); `bytes` is borrowed. */
OB_MUST_CHECK ob_status ob_file_open_bytes(const void *bytes, size_t len, unsigned flags,
                                           ob_file **out, ob_err *err);
/* The directory of a file of which only the first n_have bytes are here (borrowed until the file is
 * closed), as with OB_OPEN_NO_DATA | OB_OPEN_ONE_PART. When it does not end within them, the call
 * fails and *need_more is true: try again with more bytes. */
OB_MUST_CHECK ob_status ob_file_open_head(const void *bytes, size_t n_have, uint64_t file_len,
                                          ob_file **out, bool *need_more, ob_err *err);
void ob_file_close(ob_file *f);

const char *ob_file_path(const ob_file *f);       /* first part; "" for bytes */
const char *ob_file_format(const ob_file *f);     /* "GGUF v3", "1BP v5" */
/* Append the path of a part (from 0), for who reads it by other means than the mapping. */
void ob_file_part_path(const ob_file *f, int part, ob_buf *out);
uint64_t ob_file_n_bytes(const ob_file *f);       /* all parts */
int ob_file_n_parts(const ob_file *f);
/* Another number whenever the bytes on disk may have changed (sizes, times and metadata of all parts); never 0, but for
 * bytes in memory. For caches of what was made from the file. */
uint64_t ob_file_stamp(const ob_file *f);

size_t ob_file_n_tensors(const ob_file *f);
const ob_tensor *ob_file_tensor(const ob_file *f, size_t i);                /* file order */
const ob_tensor *ob_file_find_tensor(const ob_file *f, const char *name);   /* NULL if absent */
/* Have a tensor's bytes read from disk in the background: they will be wanted soon. */
void ob_file_prefetch(const ob_file *f, const ob_tensor *t);
/* Tell the system that a tensor's pages are not needed again (after packing for a device). */
void ob_file_release_pages(const ob_file *f, const ob_tensor *t);

size_t ob_file_n_kv(const ob_file *f);
/* All pairs as they stand in the file (GGUF's encoding, without the count in front). */
ob_str ob_file_kv_bytes(const ob_file *f);
const ob_kv *ob_file_kv(const ob_file *f, size_t i);
const ob_kv *ob_file_find_kv(const ob_file *f, const char *key);            /* NULL if absent */
/* printf-style key: ob_file_find_kvf(f, "%s.block_count", arch) */
const ob_kv *ob_file_find_kvf(const ob_file *f, const char *fmt, ...) OB_PRINTF(2, 3);

/* Typed access. Each returns false when kv is NULL or the type does not fit; integers of any width
 * convert when the value fits, floats also take integers. */
bool ob_kv_i64(const ob_kv *kv, int64_t *out);
bool ob_kv_f64(const ob_kv *kv, double *out);
bool ob_kv_bool(const ob_kv *kv, bool *out);
bool ob_kv_str(const ob_kv *kv, ob_str *out);
/* Element i of an array (or the scalar itself for i == 0). */
bool ob_kv_elem_i64(const ob_kv *kv, uint64_t i, int64_t *out);
bool ob_kv_elem_bool(const ob_kv *kv, uint64_t i, bool *out);
bool ob_kv_elem_f64(const ob_kv *kv, uint64_t i, double *out);
bool ob_kv_elem_str(const ob_kv *kv, uint64_t i, ob_str *out);

/* Bytes of n elements of a ggml type; false when the type is unknown or n is no multiple of its block. */
bool ob_fmt_type_bytes(uint32_t type, uint64_t n, uint64_t *out);
const char *ob_fmt_type_name(uint32_t type); /* "Q4_K"; NULL if unknown */

/* Append what `1bit info` shows: format, sizes, metadata (long arrays abbreviated), tensors, totals
 * by type. json: one object; `metadata` maps a key to its value, an array to
 * {"type": "array", "elem_type", "length", "first"}; `parts` counts files, a tensor's `part` is from
 * 0 and `offset` absolute in it; `shape` has the row length first. Text from the file is made safe
 * for a terminal. Errors: LIMIT, NO_MEMORY (of the buffer). */
OB_MUST_CHECK ob_status ob_file_describe(const ob_file *f, bool json, ob_buf *out, ob_err *err);

#endif
