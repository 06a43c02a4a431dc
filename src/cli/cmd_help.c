#include "cli/cli.h"

int ob_cmd_help(const ob_args *a)
{
    if (ob_cli_flag(a, OB_OPT_MAN)) {
        ob_cli_write_man(stdout);
    } else if (ob_cli_flag(a, OB_OPT_MARKDOWN)) {
        ob_cli_write_markdown(stdout);
    } else {
        const ob_command *cmd = a->n_pos ? ob_cli_find_command(a->pos[0]) : NULL;
        if (a->n_pos && !cmd)
            return ob_cli_usage_error(NULL, "there is no command '%.80s'", a->pos[0]);
        ob_cli_write_help(stdout, cmd);
    }
    return fflush(stdout) == 0 ? OB_EXIT_OK : OB_EXIT_FAILED;
}
