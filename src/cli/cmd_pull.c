/* pull, rm, and finding a model for the commands that need one. */
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "hub/hub.h"

typedef struct pull_view {
    ob_progress bar;
    bool quiet;
} pull_view;

static bool show(void *arg, const ob_hub_progress *p)
{
    pull_view *v = arg;
    ob_progress_bytes(&v->bar, p->stage, p->done, p->total);
    return true;
}

static void remark(void *arg, const char *text)
{
    pull_view *v = arg;
    ob_progress_end(&v->bar);
    if (!v->quiet) fprintf(stderr, "%s\n", text);
}

static ob_status pull(const char *text, const char *name, bool force, bool quiet, char **path,
                      bool *already, ob_err *err)
{
    pull_view v = {.quiet = quiet};
    ob_progress_init(&v.bar, quiet);
    ob_hub_pull_opts opts = {
        .name = name, .force = force, .arg = &v, .progress = show, .remark = remark};
    ob_status s = ob_hub_pull(text, &opts, path, already, err);
    ob_progress_end(&v.bar);
    return s;
}

int ob_cmd_pull(const ob_args *a)
{
    char *path = NULL;
    bool already = false, quiet = ob_cli_flag(a, OB_OPT_QUIET);
    ob_err err;
    ob_status s = pull(a->pos[0], ob_cli_str(a, OB_OPT_NAME), ob_cli_flag(a, OB_OPT_FORCE), quiet,
                       &path, &already, &err);
    if (s != OB_OK) return ob_cli_fail(a, &err);
    if (already && !quiet) fprintf(stderr, "%s is complete already\n", a->pos[0]);
    ob_buf b;
    ob_buf_init(&b, 8192);
    ob_buf_addf(&b, "%s\n", path);
    int rc = ob_cli_print(a, &b);
    ob_buf_deinit(&b);
    ob_free(path);
    return rc;
}

int ob_cmd_rm(const ob_args *a)
{
    ob_err err;
    if (ob_hub_remove(a->pos[0], &err) != OB_OK) return ob_cli_fail(a, &err);
    return OB_EXIT_OK;
}

ob_status ob_cli_find_model(const char *arg, char **path, ob_err *err)
{
    if (!arg) arg = OB_HUB_DEMO_MODEL;
    *path = NULL;
    if (ob_hub_is_remote(arg)) return pull(arg, NULL, false, false, path, NULL, err);
    if (access(arg, F_OK) == 0) {
        *path = ob_strdup(arg);
        return *path ? OB_OK : ob_err_set(err, OB_E_NO_MEMORY, "no memory for a path");
    }
    const char *dot = strrchr(arg, '.');
    if (strchr(arg, '/') || (dot && (!strcmp(dot, ".gguf") || !strcmp(dot, ".1bp"))))
        return ob_err_set(err, OB_E_NOT_FOUND, "%.300s: no such file", arg);
    return ob_hub_find(arg, path, err);
}
