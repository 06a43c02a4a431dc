#include "cli/cli.h"

int ob_cmd_version(const ob_args *a)
{
    ob_buf b;
    ob_buf_init(&b, 4096);
    if (ob_cli_flag(a, OB_OPT_JSON))
        ob_buf_addf(&b, "{\"version\": \"%s\"}\n", OB_VERSION);
    else
        ob_buf_addf(&b, "1bit %s\n", OB_VERSION);
    int rc = ob_cli_print(a, &b);
    ob_buf_deinit(&b);
    return rc;
}
