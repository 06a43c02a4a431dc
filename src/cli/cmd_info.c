#include "base/alloc.h"
#include "cli/cli.h"
#include "base/math.h"
#include "engine/recipes.h"
#include "fmt/fmt.h"
#include "graph/model.h"

static int architectures(const ob_args *a)
{
    const char *names[64];
    const int n = OB_MIN(ob_model_architectures(names, 64), 64);
    const bool json = ob_cli_flag(a, OB_OPT_JSON);
    ob_buf b;
    ob_buf_init(&b, 1 << 16);
    for (int i = 0; i < n; i++)
        ob_buf_addf(&b, json ? "%s\"%s\"" : "%s%s", i ? (json ? ", " : "\n") : (json ? "[" : ""), names[i]);
    ob_buf_adds(&b, json ? "]\n" : "\n");
    const int rc = ob_cli_print(a, &b);
    ob_buf_deinit(&b);
    return rc;
}

/* Settings that an engine would choose for this file. */
static void add_recipes(const ob_file *f, ob_buf *b)
{
    const ob_recipe *r;
    for (int i = 0; (r = ob_recipe_at(i)) != NULL; i++)
        if (ob_recipe_fits(r, f) && r->n_ubatch)
            ob_buf_addf(b, "recipe %s on %s: --ubatch-size %d (%s)\n", r->id, r->device, r->n_ubatch, r->measured);
        else if (ob_recipe_fits(r, f))
            ob_buf_addf(b, "recipe %s on %s: not used (%s)\n", r->id, r->device, r->measured);
}

int ob_cmd_info(const ob_args *a)
{
    ob_err err;
    char *path;
    ob_file *f;
    ob_buf b;
    if (ob_cli_flag(a, OB_OPT_ARCHITECTURES)) return architectures(a);
    if (!a->n_pos) return ob_cli_usage_error(a->cmd_name, "FILE is missing");
    if (ob_cli_find_model(a->pos[0], &path, &err) != OB_OK) return ob_cli_fail(a, &err);
    ob_status s = ob_file_open(path, OB_OPEN_NO_DATA, &f, &err);
    ob_free(path);
    if (s != OB_OK) return ob_cli_fail(a, &err);
    ob_buf_init(&b, 256u << 20);
    s = ob_file_describe(f, ob_cli_flag(a, OB_OPT_JSON), &b, &err);
    if (s == OB_OK && !ob_cli_flag(a, OB_OPT_JSON)) add_recipes(f, &b);
    int rc = s == OB_OK ? ob_cli_print(a, &b) : ob_cli_fail(a, &err);
    ob_buf_deinit(&b);
    ob_file_close(f);
    return rc;
}
