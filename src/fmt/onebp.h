/* fmt/onebp.h: 1BP packages, version 5: planning, writing and checking them. docs/onebp.md has the
 * layout; reading is ob_file_open's (fmt.h).
 *
 * A plan says what a package made from a GGUF file will be, byte for byte: its head, and where each
 * tensor comes from and goes to. An output is the file under construction. Between them stands
 * whoever copies: ob_onebp_copy for local files, hub/ for files on the web. Nothing here prints.
 */
#ifndef OB_FMT_ONEBP_H
#define OB_FMT_ONEBP_H

#include "fmt/fmt.h"

enum {
    OB_ONEBP_VERSION = 5,
    OB_ONEBP_HEADER_BYTES = 256,
    OB_ONEBP_AT_N_TENSORS = 88, /* where the header has the number of tensors, a u32 */
    OB_ONEBP_ALIGNMENT = 64,    /* of each tensor, from the start of the file */
    OB_ONEBP_GGML_BASE = 256,   /* quant of an index entry: this plus the ggml type */
};

/* ---- plan ----------------------------------------------------------------------------------- */

typedef struct ob_onebp_piece { /* one tensor */
    const char *name;    /* borrowed from the source */
    int part;            /* of the source, from 0 */
    uint64_t src_off;    /* in that part */
    uint64_t dst_off;    /* in the package; both absolute */
    uint64_t n_bytes;
} ob_onebp_piece;

typedef struct ob_onebp_plan {
    ob_buf head;             /* header, index, metadata, zeros up to the first tensor */
    ob_onebp_piece *pieces;  /* n_tensors, in order of dst_off; owned */
    size_t n_tensors, n_kv;
    uint64_t n_bytes;        /* of the package; what is neither head nor a piece is zero */
    uint64_t n_weight_bytes; /* of the pieces */
} ob_onebp_plan;

/* files: a GGUF v3 file (split or not), or each part of a split one by itself, in order (*borrowed*
 * as long as the plan). Errors: UNSUPPORTED (another format or version), INVALID (no tensors),
 * FORMAT (parts that do not belong together), LIMIT (a dimension of 2^32), NO_MEMORY. */
OB_MUST_CHECK ob_status ob_onebp_plan_make(ob_onebp_plan *p, ob_file *const *files, int n_files,
                                           ob_err *err);
void ob_onebp_plan_deinit(ob_onebp_plan *p); /* also after a failure */

/* ---- output --------------------------------------------------------------------------------- */

/* A package on its way is DST.part, locked; DST appears whole or not at all. */
typedef struct ob_onebp_out {
    int fd;
    char *dst, *part; /* owned */
} ob_onebp_out;

/* Errors: EXISTS (dst is there, and not `force`), BUSY (another process writes it), IO. */
OB_MUST_CHECK ob_status ob_onebp_out_open(ob_onebp_out *o, const char *dst, bool force, ob_err *err);
/* Give DST.part its size and its head. keep: tensors that are in it already stay. IO when the disk has
 * not enough room. */
OB_MUST_CHECK ob_status ob_onebp_out_begin(ob_onebp_out *o, const ob_onebp_plan *p, bool keep,
                                           ob_err *err);
/* May be called by several threads for different bytes. */
OB_MUST_CHECK ob_status ob_onebp_out_write(const ob_onebp_out *o, uint64_t off, const void *data,
                                           size_t n, ob_err *err);
/* Sync, rename to DST, sync the folder. */
OB_MUST_CHECK ob_status ob_onebp_out_finish(ob_onebp_out *o, ob_err *err);
/* keep: leave DST.part for a later try. */
void ob_onebp_out_close(ob_onebp_out *o, bool keep);

/* Done and total bytes of weights; false cancels. */
typedef bool (*ob_onebp_progress)(void *arg, uint64_t done, uint64_t total);

/* Copy all tensors of a local source into the output. `src` is what the plan was made from. */
OB_MUST_CHECK ob_status ob_onebp_copy(const ob_onebp_out *o, const ob_onebp_plan *p,
                                      const ob_file *src, ob_onebp_progress progress, void *arg,
                                      ob_err *err);

typedef struct ob_onebp_made {
    size_t n_tensors, n_kv;
    uint64_t n_weight_bytes;
} ob_onebp_made;

/* A local GGUF file (any part of a split one) to a package, all of the above. Errors besides those:
 * what ob_file_open has for the source, IO, CANCELLED. */
OB_MUST_CHECK ob_status ob_onebp_convert(const char *src, const char *dst, bool force,
                                         ob_onebp_progress progress, void *arg, ob_onebp_made *made,
                                         ob_err *err);

/* ---- check ---------------------------------------------------------------------------------- */

/* One line for each thing that is wrong. */
typedef void (*ob_onebp_say)(void *arg, const char *line);

typedef struct ob_onebp_report {
    size_t n_tensors, n_kv; /* of the package */
    size_t n_wrong;         /* lines said */
} ob_onebp_report;

/* Is the package what conversion of the GGUF file gives? Compares metadata, name, shape, type, size,
 * alignment and bytes of each tensor, and all bytes besides. With `sums` (a path, or NULL) the
 * tensors are compared with that file, too. An error means that it could not be found out (the GGUF
 * file cannot be read, no memory); a package that cannot be read is a wrong one. */
OB_MUST_CHECK ob_status ob_onebp_check(const char *gguf, const char *package, const char *sums,
                                       ob_onebp_say say, void *arg, ob_onebp_report *out,
                                       ob_err *err);

/* The sums of a package: a text file, "1bp-sums 1 sha256", then a line "SHA-256 head" for all bytes
 * before the first tensor and a line "SHA-256 tensor NAME" for each tensor. */
OB_MUST_CHECK ob_status ob_onebp_sums_write(const char *package, const char *sums,
                                            ob_onebp_progress progress, void *arg, ob_err *err);
/* CORRUPT names the first tensor that differs; NOT_FOUND, FORMAT of the sums. */
OB_MUST_CHECK ob_status ob_onebp_sums_verify(const char *package, const char *sums,
                                             ob_onebp_progress progress, void *arg, ob_err *err);

#endif
