#include "base/alloc.h"
#include "cli/cli.h"
#include "fmt/fmt.h"

int ob_cmd_info(const ob_args *a)
{
    ob_err err;
    char *path;
    ob_file *f;
    ob_buf b;
    if (ob_cli_find_model(a->pos[0], &path, &err) != OB_OK) return ob_cli_fail(a, &err);
    ob_status s = ob_file_open(path, OB_OPEN_NO_DATA, &f, &err);
    ob_free(path);
    if (s != OB_OK) return ob_cli_fail(a, &err);
    ob_buf_init(&b, 256u << 20);
    s = ob_file_describe(f, ob_cli_flag(a, OB_OPT_JSON), &b, &err);
    int rc = s == OB_OK ? ob_cli_print(a, &b) : ob_cli_fail(a, &err);
    ob_buf_deinit(&b);
    ob_file_close(f);
    return rc;
}
