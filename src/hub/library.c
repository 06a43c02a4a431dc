/* The folder of models: manifests, locks, listing, removal. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/limits.h"
#include "hub/hub_int.h"

enum { MAX_MANIFEST_BYTES = 1 << 20, MAX_TREE_DEPTH = 8 };

/* ---- Folders and files ---------------------------------------------------------------------- */

ob_status ob_hub_dir(ob_buf *out, ob_err *err)
{
    const char *xdg = getenv("XDG_DATA_HOME");
    if (xdg && xdg[0] == '/') { /* the XDG specification: a relative path is to be ignored */
        ob_buf_addf(out, "%s/1bit/models", xdg);
        return ob_buf_status(out, err);
    }
    const char *home = getenv("HOME");
    if (!home || home[0] != '/') {
        const struct passwd *pw = getpwuid(getuid());
        home = pw ? pw->pw_dir : NULL;
    }
    if (!home || home[0] != '/')
        return ob_err_set(err, OB_E_IO, "no home folder for the model library: set XDG_DATA_HOME");
    ob_buf_addf(out, "%s/.local/share/1bit/models", home);
    return ob_buf_status(out, err);
}

static ob_status model_dir(const char *name, ob_hub_path out, ob_err *err)
{
    ob_buf dir;
    ob_buf_init(&dir, OB_HUB_PATH_MAX);
    ob_status s = ob_hub_dir(&dir, err);
    if (s == OB_OK) s = ob_hub_pathf(out, err, "%s/%s", ob_buf_str(&dir), name);
    ob_buf_deinit(&dir);
    return s;
}

ob_status ob_hub_mkdirs(const char *path, ob_err *err)
{
    ob_hub_path p;
    OB_TRY(ob_hub_pathf(p, err, "%s", path));
    for (char *c = p + 1;; c++) {
        if (*c && *c != '/') continue;
        char end = *c;
        *c = 0;
        if (mkdir(p, 0755) != 0 && errno != EEXIST)
            return ob_err_set_errno(err, OB_E_IO, errno, "cannot make folder %s", p);
        if (!end) return OB_OK;
        *c = end;
    }
}

/* Make a rename in `path`'s folder survive a power cut. Not every file system can: no error. */
static void sync_parent(const char *path)
{
    ob_hub_path dir;
    const char *slash = strrchr(path, '/');
    if (!slash || ob_hub_pathf(dir, NULL, "%.*s", (int)(slash - path), path) != OB_OK) return;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

ob_status ob_hub_rename_synced(const char *from, const char *to, ob_err *err)
{
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ob_err_set_errno(err, OB_E_IO, errno, "cannot open %s", from);
    int rc = fsync(fd);
    int e = errno;
    close(fd);
    if (rc != 0) return ob_err_set_errno(err, OB_E_IO, e, "cannot write %s to disk", from);
    if (rename(from, to) != 0)
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot rename %s to %s", from, to);
    sync_parent(to);
    return OB_OK;
}

ob_status ob_hub_write_file(const char *path, const ob_buf *content, ob_err *err)
{
    OB_TRY(ob_buf_status(content, err));
    ob_hub_path tmp;
    OB_TRY(ob_hub_pathf(tmp, err, "%s.new", path));
    FILE *f = fopen(tmp, "we");
    if (!f) return ob_err_set_errno(err, OB_E_IO, errno, "cannot write %s", tmp);
    bool ok = fwrite(ob_buf_str(content), 1, content->len, f) == content->len;
    int e = errno;
    if (fclose(f) != 0 && ok) {
        ok = false;
        e = errno;
    }
    if (!ok) {
        unlink(tmp);
        return ob_err_set_errno(err, OB_E_IO, e, "cannot write %s", tmp);
    }
    return ob_hub_rename_synced(tmp, path, err);
}

static bool is_dot(const char *name) { return !strcmp(name, ".") || !strcmp(name, ".."); }

static uint64_t tree_bytes(const char *path, int depth)
{
    uint64_t sum = 0;
    DIR *d = depth < MAX_TREE_DEPTH ? opendir(path) : NULL;
    if (!d) return 0;
    for (const struct dirent *e; (e = readdir(d));) {
        ob_hub_path p;
        struct stat st;
        if (is_dot(e->d_name) || ob_hub_pathf(p, NULL, "%s/%s", path, e->d_name) != OB_OK ||
            lstat(p, &st) != 0)
            continue;
        if (S_ISDIR(st.st_mode)) sum += tree_bytes(p, depth + 1);
        else if (S_ISREG(st.st_mode)) sum += (uint64_t)st.st_size;
    }
    closedir(d);
    return sum;
}

uint64_t ob_hub_tree_bytes(const char *path) { return tree_bytes(path, 0); }

static ob_status remove_tree(const char *path, int depth, ob_err *err)
{
    DIR *d = opendir(path);
    if (!d)
        return errno == ENOENT ? OB_OK
                               : ob_err_set_errno(err, OB_E_IO, errno, "cannot read %s", path);
    ob_status s = OB_OK;
    for (const struct dirent *e; s == OB_OK && (e = readdir(d));) {
        ob_hub_path p;
        struct stat st;
        if (is_dot(e->d_name)) continue;
        s = ob_hub_pathf(p, err, "%s/%s", path, e->d_name);
        if (s != OB_OK || lstat(p, &st) != 0) continue;
        if (S_ISDIR(st.st_mode) && depth < MAX_TREE_DEPTH) s = remove_tree(p, depth + 1, err);
        else if (unlink(p) != 0)
            s = ob_err_set_errno(err, OB_E_IO, errno, "cannot remove %s", p);
    }
    closedir(d);
    if (s == OB_OK && rmdir(path) != 0)
        s = ob_err_set_errno(err, OB_E_IO, errno, "cannot remove %s", path);
    return s;
}

ob_status ob_hub_remove_tree(const char *path, ob_err *err) { return remove_tree(path, 0, err); }

/* ---- Lock ----------------------------------------------------------------------------------- */

ob_status ob_hub_lock(const char *dir, int *fd, ob_err *err)
{
    ob_hub_path path;
    OB_TRY(ob_hub_pathf(path, err, "%s/.lock", dir));
    for (;;) {
        int f = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (f < 0) return ob_err_set_errno(err, OB_E_IO, errno, "cannot open %s", path);
        if (flock(f, LOCK_EX | LOCK_NB) != 0) {
            int e = errno;
            close(f);
            if (e == EWOULDBLOCK)
                return ob_err_set(err, OB_E_BUSY, "another process is pulling or removing this "
                                                  "model; try again when it is done");
            return ob_err_set_errno(err, OB_E_IO, e, "cannot lock %s", path);
        }
        /* Whoever had it may have removed the folder: the lock counts only on the file that is
         * still there. */
        struct stat mine, now;
        if (fstat(f, &mine) == 0 && stat(path, &now) == 0 && mine.st_ino == now.st_ino) {
            *fd = f;
            return OB_OK;
        }
        close(f);
        OB_TRY(ob_hub_mkdirs(dir, err));
    }
}

void ob_hub_unlock(int fd)
{
    if (fd >= 0) close(fd);
}

/* ---- Manifest ------------------------------------------------------------------------------- */

ob_status ob_hub_manifest_write(const char *dir, const char *source, const ob_hub_file *files,
                                size_t n_files, ob_err *err)
{
    ob_buf b;
    ob_buf_init(&b, MAX_MANIFEST_BYTES);
    ob_buf_adds(&b, "{\n  \"version\": 1,\n  \"source\": ");
    ob_buf_add_json(&b, source, strlen(source));
    ob_buf_addf(&b, ",\n  \"pulled_at\": %lld,\n  \"files\": [", (long long)time(NULL));
    for (size_t i = 0; i < n_files; i++) {
        ob_buf_adds(&b, i ? ",\n    {\"name\": " : "\n    {\"name\": ");
        ob_buf_add_json(&b, files[i].name, strlen(files[i].name));
        ob_buf_addf(&b, ", \"size\": %llu, \"sha256\": \"%s\"}",
                    (unsigned long long)files[i].n_bytes, files[i].sha256);
    }
    ob_buf_adds(&b, "\n  ]\n}\n");
    ob_hub_path path;
    ob_status s = ob_hub_pathf(path, err, "%s/manifest.json", dir);
    if (s == OB_OK) s = ob_hub_write_file(path, &b, err);
    ob_buf_deinit(&b);
    return s;
}

static bool read_file_entry(const char *dir, json_t *entry, ob_hub_model *m, ob_hub_file *f)
{
    const char *name, *sha;
    json_int_t size;
    if (json_unpack(entry, "{s:s, s:I, s:s}", "name", &name, "size", &size, "sha256", &sha) != 0 ||
        size < 0 || strlen(sha) != 64 || !*name || strchr(name, '/') || is_dot(name))
        return false;
    f->name = ob_strdup(name);
    f->n_bytes = (uint64_t)size;
    memcpy(f->sha256, sha, sizeof f->sha256);
    m->n_bytes += f->n_bytes;
    ob_hub_path path;
    struct stat st;
    if (ob_hub_pathf(path, NULL, "%s/%s", dir, name) != OB_OK) return false;
    if (stat(path, &st) != 0 || (uint64_t)st.st_size != f->n_bytes) m->damaged = true;
    if (!m->path) m->path = ob_strdup(path);
    return f->name && m->path;
}

static bool fill_model(const char *dir, const char *name, json_t *root, ob_hub_model *m)
{
    const char *source;
    json_int_t at;
    json_t *files;
    if (json_unpack(root, "{s:s, s:I, s:o}", "source", &source, "pulled_at", &at, "files",
                    &files) != 0)
        return false;
    size_t n = json_array_size(files);
    if (n == 0 || n > OB_MAX_SPLITS) return false;
    m->name = ob_strdup(name);
    m->source = ob_strdup(source);
    m->pulled_at = at;
    m->files = ob_calloc(n, sizeof *m->files);
    if (!m->name || !m->source || !m->files) return false;
    for (size_t i = 0; i < n; i++) {
        m->n_files = i + 1;
        if (!read_file_entry(dir, json_array_get(files, i), m, &m->files[i])) return false;
    }
    return true;
}

ob_status ob_hub_manifest_read(const char *dir, const char *name, ob_hub_model **out, ob_err *err)
{
    *out = NULL;
    ob_hub_path path;
    struct stat st;
    OB_TRY(ob_hub_pathf(path, err, "%s/manifest.json", dir));
    if (stat(path, &st) != 0)
        return ob_err_set(err, OB_E_NOT_FOUND, "model '%.100s' is not in the library", name);
    if (st.st_size > MAX_MANIFEST_BYTES)
        return ob_err_set(err, OB_E_LIMIT, "%s is longer than %d bytes", path, MAX_MANIFEST_BYTES);
    json_error_t je;
    json_t *root = json_load_file(path, 0, &je);
    if (!root) return ob_err_set(err, OB_E_FORMAT, "%s: line %d: %s", path, je.line, je.text);
    ob_hub_model *m = ob_calloc(1, sizeof *m);
    bool ok = m && fill_model(dir, name, root, m);
    json_decref(root);
    if (!ok) {
        if (m) ob_hub_models_free(m, 1);
        return ob_err_set(err, OB_E_FORMAT, "%s is not a manifest of this program", path);
    }
    *out = m;
    return OB_OK;
}

static void model_deinit(ob_hub_model *m)
{
    for (size_t i = 0; i < m->n_files; i++) ob_free(m->files[i].name);
    ob_free(m->files);
    ob_free(m->name);
    ob_free(m->source);
    ob_free(m->path);
}

void ob_hub_models_free(ob_hub_model *models, size_t n)
{
    for (size_t i = 0; i < n; i++) model_deinit(&models[i]);
    ob_free(models);
}

/* ---- Listing and finding -------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const ob_hub_model *)a)->name, ((const ob_hub_model *)b)->name);
}

ob_status ob_hub_list(ob_hub_model **out, size_t *n, ob_err *err)
{
    *out = NULL;
    *n = 0;
    ob_buf dir;
    ob_buf_init(&dir, OB_HUB_PATH_MAX);
    ob_status s = ob_hub_dir(&dir, err);
    DIR *d = s == OB_OK ? opendir(ob_buf_str(&dir)) : NULL;
    if (s == OB_OK && !d && errno != ENOENT)
        s = ob_err_set_errno(err, OB_E_IO, errno, "cannot read %s", ob_buf_str(&dir));
    for (const struct dirent *e; s == OB_OK && d && (e = readdir(d));) {
        if (!ob_hub_name_ok(e->d_name)) continue;
        ob_hub_path path;
        ob_hub_model *m = NULL;
        ob_err why;
        s = ob_hub_pathf(path, err, "%s/%s", ob_buf_str(&dir), e->d_name);
        if (s != OB_OK) break;
        ob_status got = ob_hub_manifest_read(path, e->d_name, &m, &why);
        if (got == OB_E_NOT_FOUND) continue; /* on its way, or left behind */
        if (got != OB_OK) {
            ob_log_warn("%s", why.text);
            continue;
        }
        ob_hub_model *all = ob_reallocarray(*out, *n + 1, sizeof *all);
        if (!all) {
            ob_hub_models_free(m, 1);
            s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for the list of models");
            break;
        }
        all[(*n)++] = *m;
        *out = all;
        ob_free(m);
    }
    if (d) closedir(d);
    ob_buf_deinit(&dir);
    if (s != OB_OK) {
        ob_hub_models_free(*out, *n);
        *out = NULL;
        *n = 0;
    } else if (*n > 1) {
        qsort(*out, *n, sizeof **out, by_name);
    }
    return s;
}

static ob_status not_found(const char *name, const ob_hub_model *models, size_t n, ob_err *err)
{
    ob_buf b;
    ob_buf_init(&b, 400);
    if (ob_hub_find_known(name)) {
        ob_buf_addf(&b, "run `1bit pull %s` first", name);
    } else {
        for (size_t i = 0; i < n; i++) ob_buf_addf(&b, "%s%s", i ? ", " : "", models[i].name);
        for (size_t i = 0; i < ob_hub_n_known(); i++) {
            const char *known = ob_hub_known_at(i)->name;
            bool have = false;
            for (size_t k = 0; k < n; k++) have |= !strcmp(models[k].name, known);
            if (!have) ob_buf_addf(&b, "%s%s (to be pulled)", b.len ? ", " : "", known);
        }
    }
    ob_status s = ob_err_set(err, OB_E_NOT_FOUND,
                             ob_hub_find_known(name) ? "model '%.100s' is not in the library: %s"
                                                     : "no model '%.100s' in the library, which "
                                                       "knows: %s",
                             name, ob_buf_str(&b));
    ob_buf_deinit(&b);
    return s;
}

/* The one model whose name goes on behind `name` and a dash: smollm2 for smollm2-135m. NULL: none, or several. */
static const ob_hub_model *find_by_beginning(const ob_hub_model *models, size_t n, const char *name)
{
    const ob_hub_model *hit = NULL;
    const size_t len = strlen(name);
    for (size_t i = 0; i < n && len; i++) {
        if (strncmp(models[i].name, name, len) != 0 || models[i].name[len] != '-') continue;
        if (hit) return NULL;
        hit = &models[i];
    }
    return hit;
}

ob_status ob_hub_find(const char *name, char **path, ob_err *err)
{
    *path = NULL;
    ob_hub_model *models;
    size_t n;
    OB_TRY(ob_hub_list(&models, &n, err));
    const ob_hub_model *hit = NULL;
    for (size_t i = 0; i < n && !hit; i++)
        if (!strcmp(models[i].name, name) || !strcmp(models[i].source, name)) hit = &models[i];
    ob_status s = OB_OK;
    if (!hit) hit = find_by_beginning(models, n, name);
    if (!hit) {
        s = not_found(name, models, n, err);
    } else if (hit->damaged) {
        s = ob_err_set(err, OB_E_CORRUPT,
                       "model '%s' is damaged (a file is missing or has another size): run "
                       "`1bit pull %s --force`",
                       hit->name, hit->name);
    } else {
        *path = ob_strdup(hit->path);
        if (!*path) s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for a path");
    }
    ob_hub_models_free(models, n);
    return s;
}

ob_status ob_hub_remove(const char *name, ob_err *err)
{
    ob_hub_path dir, manifest;
    struct stat st;
    if (!ob_hub_name_ok(name))
        return ob_err_set(err, OB_E_INVALID, "'%.100s' is not a name of the library", name);
    OB_TRY(model_dir(name, dir, err));
    OB_TRY(ob_hub_pathf(manifest, err, "%s/manifest.json", dir));
    if (stat(dir, &st) != 0)
        return ob_err_set(err, OB_E_NOT_FOUND, "model '%.100s' is not in the library", name);
    int lock;
    OB_TRY(ob_hub_lock(dir, &lock, err));
    /* The manifest goes first: a removal that is cut off leaves no model, not half a model. */
    ob_status s = OB_OK;
    if (unlink(manifest) != 0 && errno != ENOENT)
        s = ob_err_set_errno(err, OB_E_IO, errno, "cannot remove %s", manifest);
    if (s == OB_OK) s = ob_hub_remove_tree(dir, err);
    ob_hub_unlock(lock);
    return s;
}
