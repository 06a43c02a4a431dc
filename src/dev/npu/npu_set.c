/* Kernel sets: where they lie, and whether one is for this NPU and this program. */
#include "dev/npu/npu_set.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/math.h"
#include "dev/npu/npu_layout.h"

enum { MANIFEST_MAX = 1 << 20, FILE_MAX = 64 << 20, FORMAT = 1 };

/* ---- files ------------------------------------------------------------------------------------ */

/* A whole file, at most `max` bytes; *data is *taken*. */
static ob_status read_file(const char *path, size_t max, uint8_t **data, size_t *n_bytes, ob_err *err)
{
    FILE *f = fopen(path, "rbe");
    if (!f) return ob_err_set_errno(err, errno == ENOENT ? OB_E_NOT_FOUND : OB_E_IO, errno, "cannot open %.300s", path);
    ob_status s = OB_OK;
    uint8_t *p = NULL;
    const long n = fseek(f, 0, SEEK_END) ? -1 : ftell(f);
    if (n < 0 || (size_t)n > max || fseek(f, 0, SEEK_SET)) s = ob_err_set(err, OB_E_LIMIT, "%.300s is no file of at most %zu bytes", path, max);
    else if (!(p = ob_malloc((size_t)n + 1))) s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for %.300s", path);
    else if (fread(p, 1, (size_t)n, f) != (size_t)n) s = ob_err_set(err, OB_E_IO, "cannot read %.300s", path);
    fclose(f);
    if (s == OB_OK) {
        *data = p;
        *n_bytes = (size_t)n;
    } else {
        ob_free(p);
    }
    return s;
}

static bool exists(const char *path)
{
    FILE *f = fopen(path, "rbe");
    if (f) fclose(f);
    return f != NULL;
}

static bool has_manifest(const char *dir)
{
    char path[600];
    const int n = snprintf(path, sizeof path, "%s/manifest.json", dir);
    return n > 0 && (size_t)n < sizeof path && exists(path);
}

/* In `base`, or in `gen` below it. */
static bool look_in(const char *base, ob_npu_gen gen, char *dir, size_t cap)
{
    int n = snprintf(dir, cap, "%s/%s", base, ob_npu_gen_name(gen));
    if (n > 0 && (size_t)n < cap && has_manifest(dir)) return true;
    n = snprintf(dir, cap, "%s", base);
    return n > 0 && (size_t)n < cap && has_manifest(dir);
}

static bool find_dir(ob_npu_gen gen, char *dir, size_t cap)
{
    char base[480];
    const char *own = getenv("OB_NPU_KERNELS"), *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    if (own && *own) return look_in(own, gen, dir, cap);
    if (data && *data) snprintf(base, sizeof base, "%s/1bit/npu", data);
    else snprintf(base, sizeof base, "%s/.local/share/1bit/npu", home ? home : "");
    return look_in(base, gen, dir, cap) || look_in("/usr/local/share/1bit/npu", gen, dir, cap) ||
           look_in("/usr/share/1bit/npu", gen, dir, cap);
}

/* ---- the manifest ----------------------------------------------------------------------------- */

static bool read_triple(const json_t *a, int out[3])
{
    if (!json_is_array(a) || json_array_size(a) != 3) return false;
    for (size_t i = 0; i < 3; i++) {
        const json_int_t v = json_integer_value(json_array_get(a, i));
        if (v < 1 || v > 4096) return false;
        out[i] = (int)v;
    }
    return true;
}

static bool lists(const json_t *array, const char *word)
{
    size_t i;
    json_t *v;
    json_array_foreach(array, i, v) if (json_is_string(v) && strcmp(json_string_value(v), word) == 0) return true;
    return false;
}

/* A name without a folder, a hash of 64 hexadecimal digits. */
static bool file_is_fine(const char *name, const char *hash)
{
    return *name && strlen(name) < sizeof((ob_npu_set *)0)->files[0].name && !strchr(name, '/') && name[0] != '.' && hash &&
           strlen(hash) == 64 && strspn(hash, "0123456789abcdef") == 64;
}

static ob_status read_files(const json_t *files, ob_npu_set *out, ob_err *err)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)files, name, v) {
        const char *hash = json_string_value(v);
        if (out->n_files == OB_NPU_SET_MAX_FILES || !file_is_fine(name, hash))
            return ob_err_set(err, OB_E_FORMAT, "\"files\" is wrong at \"%.60s\"", name);
        snprintf(out->files[out->n_files].name, sizeof out->files[0].name, "%s", name);
        snprintf(out->files[out->n_files++].sha256, sizeof out->files[0].sha256, "%s", hash);
    }
    return out->n_files ? OB_OK : ob_err_set(err, OB_E_FORMAT, "\"files\" is empty");
}

static void read_toolchain(const json_t *tools, char *text, size_t cap)
{
    const char *name;
    json_t *v;
    size_t n = 0;
    json_object_foreach((json_t *)tools, name, v) {
        const char *version = json_string_value(v);
        if (n < cap) n += (size_t)snprintf(text + n, cap - n, "%s%.40s %.40s", n ? ", " : "", name, version ? version : "?");
    }
}

/* A word of each core's memory, one of its 16 locks, one of 31 controllers. */
static ob_status read_rtp(const json_t *rtp, ob_npu_set *out, ob_err *err)
{
    const json_int_t address = json_integer_value(json_object_get(rtp, "address")), lock = json_integer_value(json_object_get(rtp, "lock"));
    const json_int_t controller = json_integer_value(json_object_get(rtp, "controller"));
    if (address < 0 || address > 0xFFF0 || address % 4 || lock < 0 || lock > 15 || controller < 1 || controller > 31)
        return ob_err_set(err, OB_E_FORMAT, "\"rtp\" has an \"address\", a \"lock\" or a \"controller\" that does not exist");
    out->rtp_addr = (uint32_t)address;
    out->rtp_lock = (uint32_t)lock;
    out->controller = (uint32_t)controller;
    return OB_OK;
}

static ob_status read_manifest(const json_t *m, ob_npu_gen gen, ob_npu_set *out, ob_err *err)
{
    static const int own_tile[3] = {OB_NPU_TILE_M, OB_NPU_TILE_K, OB_NPU_TILE_N}, own_mma[3] = {OB_NPU_MICRO, OB_NPU_MICRO, OB_NPU_MICRO};
    const char *layout = json_string_value(json_object_get(m, "layout"));
    if (!json_is_object(m) || json_integer_value(json_object_get(m, "format")) != FORMAT)
        return ob_err_set(err, OB_E_UNSUPPORTED, "its format is not %d", FORMAT);
    if (!layout || strcmp(layout, OB_NPU_SET_LAYOUT) != 0)
        return ob_err_set(err, OB_E_UNSUPPORTED, "it is for the layout \"%.30s\", this program packs \"%s\"", layout ? layout : "?",
                          OB_NPU_SET_LAYOUT);
    snprintf(out->layout, sizeof out->layout, "%s", layout);
    if (!lists(json_object_get(m, "devices"), ob_npu_gen_name(gen)))
        return ob_err_set(err, OB_E_UNSUPPORTED, "it is not for %s (\"devices\")", ob_npu_gen_name(gen));
    if (!read_triple(json_object_get(m, "tile"), out->tile) || !read_triple(json_object_get(m, "mma"), out->mma))
        return ob_err_set(err, OB_E_FORMAT, "\"tile\" and \"mma\" must be three sizes each");
    if (memcmp(out->tile, own_tile, sizeof own_tile) != 0 || memcmp(out->mma, own_mma, sizeof own_mma) != 0)
        return ob_err_set(err, OB_E_UNSUPPORTED, "its tile is %d x %d x %d, this program's %d x %d x %d", out->tile[0], out->tile[1], out->tile[2],
                          own_tile[0], own_tile[1], own_tile[2]);
    OB_TRY(read_rtp(json_object_get(m, "rtp"), out, err));
    out->validated = lists(json_object_get(m, "validated_on"), ob_npu_gen_name(gen));
    read_toolchain(json_object_get(m, "toolchain"), out->toolchain, sizeof out->toolchain);
    return read_files(json_object_get(m, "files"), out, err);
}

ob_status ob_npu_set_find(ob_npu_gen gen, ob_npu_set *out, ob_err *err)
{
    char path[600];
    uint8_t *text = NULL;
    size_t n = 0;
    json_t *m = NULL;
    memset(out, 0, sizeof *out);
    if (!find_dir(gen, out->dir, sizeof out->dir))
        return ob_err_set(err, OB_E_NOT_FOUND, "no kernels for this NPU: none are part of this program; build them with kernels/npu/build_kernels.py "
                                               "and name their folder in OB_NPU_KERNELS");
    snprintf(path, sizeof path, "%s/manifest.json", out->dir);
    OB_TRY(read_file(path, MANIFEST_MAX, &text, &n, err));
    ob_status s = ob_json_load((const char *)text, n, path, &m, err);
    if (s == OB_OK) {
        s = read_manifest(m, gen, out, err);
        if (s != OB_OK) s = ob_err_prefix(err, s, "the kernels in %.200s do not fit", out->dir);
    } else if (s == OB_E_INVALID) {
        s = ob_err_prefix(err, OB_E_FORMAT, "the kernels' manifest");
    }
    json_decref(m);
    ob_free(text);
    return s;
}

ob_status ob_npu_set_read(const ob_npu_set *set, const char *name, uint8_t **data, size_t *n_bytes, ob_err *err)
{
    char path[700], hash[65] = "";
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    int i = 0;
    while (i < set->n_files && strcmp(set->files[i].name, name) != 0) i++;
    if (i == set->n_files) return ob_err_set(err, OB_E_NOT_FOUND, "the kernels in %.200s have no %.60s", set->dir, name);
    snprintf(path, sizeof path, "%s/%s", set->dir, name);
    OB_TRY(read_file(path, FILE_MAX, data, n_bytes, err));
    if (EVP_Digest(*data, *n_bytes, digest, &n, EVP_sha256(), NULL) == 1)
        for (unsigned k = 0; k < n && k < 32; k++) snprintf(hash + 2 * k, 3, "%02x", digest[k]);
    if (strcmp(hash, set->files[i].sha256) == 0) return OB_OK;
    ob_free(*data);
    *data = NULL;
    return ob_err_set(err, OB_E_CORRUPT, "%.300s is damaged: its SHA-256 is not its manifest's; build the kernels again", path);
}
