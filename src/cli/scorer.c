#include "cli/scorer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"

enum { MAX_PATH = 4096 };

static bool exists(ob_buf *b) { return b->failed == OB_OK && access(ob_buf_str(b), R_OK) == 0; }

/* A folder that holds Laya, or a GGUF file of that name. */
static bool try_folder(ob_buf *b, const char *folder)
{
    static const char *const inside[] = {"typed-decisions/model.safetensors", "model.safetensors", "router.gguf"};
    static const size_t keep[] = {15, 0, 11}; /* the folder is what is opened, or the file */
    for (size_t i = 0; i < OB_COUNT(inside); i++) {
        ob_buf_clear(b);
        ob_buf_addf(b, "%s/%s", folder, inside[i]);
        if (!exists(b)) continue;
        b->len = strlen(folder) + 1 + keep[i];
        b->data[b->len] = 0;
        return true;
    }
    return false;
}

static bool try_installed(ob_buf *b)
{
    char folder[MAX_PATH];
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    if (data && *data) snprintf(folder, sizeof folder, "%s/1bit/laya", data);
    else if (home && *home) snprintf(folder, sizeof folder, "%s/.local/share/1bit/laya", home);
    else return false;
    return try_folder(b, folder);
}

/* Beside the program: in the tree it was built in, or in share/ of where it is installed. */
static bool try_shipped(ob_buf *b)
{
    static const char *const places[] = {"models/laya", "../models/laya", "../../models/laya", "../share/1bit/laya"};
    char exe[MAX_PATH], folder[2 * MAX_PATH];
    const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return false;
    exe[n] = 0;
    *strrchr(exe, '/') = 0;
    for (size_t i = 0; i < OB_COUNT(places); i++) {
        snprintf(folder, sizeof folder, "%s/%s", exe, places[i]);
        if (try_folder(b, folder)) return true;
    }
    return false;
}

ob_status ob_cli_find_scorer(const ob_args *a, char **path, ob_err *err)
{
    const char *given = ob_cli_str(a, OB_OPT_LAYA_MODEL);
    *path = NULL;
    if (given) return ob_cli_find_model(given, path, err);
    ob_buf b;
    ob_buf_init(&b, 4 * MAX_PATH);
    ob_status s = OB_OK;
    if (try_installed(&b) || try_shipped(&b)) *path = ob_buf_take(&b, NULL);
    else s = ob_err_set(err, OB_E_NOT_FOUND, "no routing model is installed: name one with --laya-model");
    ob_buf_deinit(&b);
    return s;
}

ob_status ob_cli_load_scorer(const ob_args *a, ob_scorer **out, ob_err *err)
{
    char *path;
    ob_engine_params p;
    OB_TRY(ob_cli_find_scorer(a, &path, err));
    ob_cli_engine_params(a, &p);
    p.model_path = path;
    if (!strcmp(p.device, "auto")) p.device = "cpu";
    p.n_seq = 0;
    p.n_ctx = 0;
    p.embed = false;
    ob_status s = ob_scorer_new(&p, out, err);
    if (s != OB_OK && err && !strstr(err->text, path)) s = ob_err_prefix(err, s, "%.150s", path);
    ob_free(path);
    return s;
}
