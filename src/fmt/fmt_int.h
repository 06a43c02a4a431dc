/* fmt/fmt_int.h: what the readers of this room share: the open file, a cursor that names what it
 * reads, metadata pairs, the tensor directory under construction, hash lookups.
 *
 * A reader of one format is a function `ob_status load(ob_file *f, ob_err *err)`: part 0 of `f` is
 * mapped already, and the reader fills pairs and tensors. Adding a format is one line in the table
 * of file.c.
 */
#ifndef OB_FMT_FMT_INT_H
#define OB_FMT_FMT_INT_H

#include <jansson.h>

#include "base/arena.h"
#include "base/span.h"
#include "fmt/fmt.h"

/* ---- names ---------------------------------------------------------------------------------- */

/* Names (borrowed) to small numbers, in order of insertion; never grows past its first size. */
typedef struct ob_names {
    ob_str *names;   /* n used */
    uint32_t *slots; /* open addressing; 0 is free, else number + 1 */
    size_t n, mask;
    uint64_t seed;   /* differs per table, so that a file cannot be built to make it slow */
} ob_names;

OB_MUST_CHECK ob_status ob_names_init(ob_names *t, size_t n_max, ob_err *err);
void ob_names_deinit(ob_names *t);
/* Adds and gives the new number (the old n), or the number of the equal name already there. */
size_t ob_names_add(ob_names *t, ob_str name);
size_t ob_names_find(const ob_names *t, const char *name, size_t len); /* SIZE_MAX if absent */

/* ---- the open file -------------------------------------------------------------------------- */

typedef struct ob_part {
    const uint8_t *data; /* NULL when not open */
    size_t len;          /* of the file */
    size_t n_have;       /* bytes at `data`: len, or fewer for the head of a file far away */
    bool mapped;         /* ours to unmap; else borrowed bytes */
    int fd;              /* of the mapped file, ours to close */
    bool need_more;      /* reading stopped at n_have, not at the end of the file */
} ob_part;

typedef struct ob_pairs {
    ob_kv *kv;        /* owned; strings point into `strings` once they are made */
    size_t n;
    ob_names index;   /* number = position in kv */
    ob_str *strings;  /* owned */
    size_t n_strings; /* strings in all values together */
    ob_str bytes;     /* all pairs as they stand in the file */
} ob_pairs;

struct ob_file {
    char *path;       /* as named by the caller, or of the first part of a split file; "" for bytes */
    char format[32];
    unsigned flags;
    ob_part *parts;
    int n_parts;
    ob_pairs pairs;
    ob_tensor *tensors;
    size_t n_tensors;
    ob_names tensor_index;
    ob_arena names;   /* NUL-terminated tensor names */
    char *extra;      /* owned: metadata that a reader made up from other files; pairs point into it */
    size_t extra_len;
};

/* Map a regular file for reading. Errors: NOT_FOUND, IO, FORMAT (empty file). */
OB_MUST_CHECK ob_status ob_part_map(ob_part *p, const char *path, ob_err *err);
void ob_part_unmap(ob_part *p);

OB_MUST_CHECK ob_status ob_gguf_load(ob_file *f, ob_err *err);
OB_MUST_CHECK ob_status ob_onebp_load(ob_file *f, ob_err *err);

bool ob_safetensors_is(const ob_part *p);
OB_MUST_CHECK ob_status ob_safetensors_load(ob_file *f, ob_err *err);
/* If the tensors and the files beside `f` are a BERT of Hugging Face: names and metadata as in a GGUF.
 * Else nothing. */
OB_MUST_CHECK ob_status ob_hf_bert_adopt(ob_file *f, ob_err *err);
/* The same for Laya in its published layout. */
OB_MUST_CHECK ob_status ob_hf_laya_adopt(ob_file *f, ob_err *err);
/* The same for a Llama, a Qwen2 or a Qwen3; other decoders are refused by name. */
OB_MUST_CHECK ob_status ob_hf_decoder_adopt(ob_file *f, ob_err *err);

/* JSON text that is an object (json_decref it); `what` names it in errors: FORMAT, LIMIT, NO_MEMORY. */
OB_MUST_CHECK ob_status ob_fmt_json(const char *text, size_t len, const char *what, json_t **out, ob_err *err);

/* ---- reading -------------------------------------------------------------------------------- */

/* A span plus the words for an error: "tensor 3 ('blk.0.attn_q.weight'), byte 4711: ...". */
typedef struct ob_reader {
    ob_span s;
    ob_err *err;
    const char *item; /* "header", "metadata pair", "tensor" */
    uint64_t index;   /* which one; not shown for the header */
    ob_str name;      /* once read; len 0 before */
    size_t n_beyond;  /* bytes of the file after the span, which are not at hand */
    bool *need_more;  /* set when they would have been needed */
} ob_reader;

/* From the first byte of a part, with "header" as the item. */
ob_reader ob_reader_of(ob_part *p, ob_err *err);

/* Fill r->err with the place and return `code`. */
ob_status ob_read_fail(const ob_reader *r, ob_status code, const char *fmt, ...) OB_PRINTF(3, 4);
/* Refuse unless n more bytes are there. */
OB_MUST_CHECK ob_status ob_read_need(const ob_reader *r, uint64_t n, const char *field);
OB_MUST_CHECK ob_status ob_read_u32(ob_reader *r, uint32_t *out, const char *field);
OB_MUST_CHECK ob_status ob_read_u64(ob_reader *r, uint64_t *out, const char *field);
/* 64-bit length, bytes. Borrowed. */
OB_MUST_CHECK ob_status ob_read_str(ob_reader *r, ob_str *out, uint64_t max_len, const char *field);
/* A count of things that take at least min_bytes each: refused when they cannot be in the file. */
OB_MUST_CHECK ob_status ob_read_count_fits(const ob_reader *r, uint64_t n, uint64_t min_bytes,
                                           uint64_t limit, const char *things);

/* n metadata pairs in GGUF's encoding, all values checked in full. String tables are not made yet:
 * ob_pairs_make_strings does, when the rest of the file has turned out well. */
OB_MUST_CHECK ob_status ob_pairs_read(ob_pairs *p, ob_reader *r, uint64_t n);
OB_MUST_CHECK ob_status ob_pairs_make_strings(ob_pairs *p, ob_err *err);
const ob_kv *ob_pairs_find(const ob_pairs *p, const char *key);
void ob_pairs_deinit(ob_pairs *p);

/* ---- the tensor directory under construction ------------------------------------------------- */

/* Zeroed room behind the f->n_tensors that are there; the caller raises n_tensors when it is filled. */
OB_MUST_CHECK ob_status ob_tensors_add(ob_file *f, size_t n, ob_tensor **first, ob_err *err);
/* Checks and copies a name, and lets the reader's errors speak of it. */
OB_MUST_CHECK ob_status ob_tensor_set_name(ob_file *f, ob_reader *r, ob_tensor *t, ob_str name);
OB_MUST_CHECK ob_status ob_tensor_check_n_dims(const ob_reader *r, uint32_t n_dims);
/* ne: n_dims entries, the row length first. */
OB_MUST_CHECK ob_status ob_tensor_set_shape(const ob_reader *r, ob_tensor *t, uint32_t n_dims,
                                            const uint64_t *ne, uint64_t *n_elems);
/* After the shape: sets n_bytes, too. */
OB_MUST_CHECK ob_status ob_tensor_set_type(const ob_reader *r, ob_tensor *t, uint32_t type,
                                           uint64_t n_elems);
/* After the type. `off` counts from the start of the data, until ob_tensors_place. */
OB_MUST_CHECK ob_status ob_tensor_set_off(const ob_reader *r, ob_tensor *t, uint64_t off,
                                          uint32_t alignment);
/* Make offsets absolute and set data pointers, when it is known where the data of a part starts. */
OB_MUST_CHECK ob_status ob_tensors_place(const ob_file *f, const ob_part *p, ob_tensor *t, size_t n,
                                         uint64_t data_start, ob_err *err);
/* may_coincide: two tensors may have exactly the same bytes (aliases). */
OB_MUST_CHECK ob_status ob_tensors_check_overlap(const ob_tensor *t, size_t n, bool may_coincide,
                                                 ob_err *err);
/* Fill f->tensor_index; refuses two equal names. */
OB_MUST_CHECK ob_status ob_tensors_index(ob_file *f, ob_err *err);

/* Text fit for a terminal: cut after 80 bytes, newlines shown as \n, other control characters and
 * broken UTF-8 as question marks. */
typedef struct ob_shown { char text[88]; } ob_shown;
ob_shown ob_show(const char *s, size_t len);

/* Bytes of one value of a fixed-size kv type; 0 for strings, arrays and unknown types. */
size_t ob_kv_type_bytes(uint32_t type);
const char *ob_kv_type_name(uint32_t type); /* "u32"; NULL if unknown */
/* Elements of a block of a ggml type; 0 if unknown. */
uint32_t ob_fmt_type_block(uint32_t type);
/* For an id that ob_fmt_type_name does not know: what it once was, else NULL. */
const char *ob_fmt_removed_type_name(uint32_t type);

#endif
