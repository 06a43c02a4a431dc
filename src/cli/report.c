#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "cli/cli.h"

int ob_cli_fail(const ob_args *a, const ob_err *err)
{
    fprintf(stderr, "1bit %s: %s\n", a->cmd_name, err->text);
    return ob_status_describe(err->code)->exit_code;
}

int ob_cli_usage_error(const char *cmd_name, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    const ob_command *cmd = cmd_name ? ob_cli_find_command(cmd_name) : NULL;
    if (cmd)
        fprintf(stderr,
                "1bit %s: %s\nusage: 1bit %s%s%s [OPTIONS]\nSee `1bit help %s` for its options.\n",
                cmd_name, text, cmd_name, *cmd->args ? " " : "", cmd->args, cmd_name);
    else
        fprintf(stderr, "1bit: %s\nSee `1bit help` for the commands.\n", text);
    return OB_EXIT_USAGE;
}

int ob_cli_print(const ob_args *a, const ob_buf *b)
{
    ob_err err;
    if (ob_buf_status(b, &err) != OB_OK) return ob_cli_fail(a, &err);
    if (fwrite(b->data ? b->data : "", 1, b->len, stdout) != b->len || fflush(stdout) != 0) {
        if (errno == EPIPE) return OB_EXIT_FAILED; /* the reader has what it wanted (`| head`): no words */
        (void)ob_err_set_errno(&err, OB_E_IO, errno, "cannot write to standard output");
        return ob_cli_fail(a, &err);
    }
    return OB_EXIT_OK;
}

ob_status ob_cli_read_all(FILE *f, const char *what, ob_buf *b, ob_err *err)
{
    char chunk[65536];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        ob_buf_add(b, chunk, n);
        ob_status s = ob_buf_status(b, err);
        if (s != OB_OK) return ob_err_prefix(err, s, "%s", what);
    }
    if (ferror(f)) return ob_err_set_errno(err, OB_E_IO, errno, "cannot read %s", what);
    return OB_OK;
}
