/* cli/cli.h: what the commands share: reporting, help, finding a model. */
#ifndef OB_CLI_CLI_H
#define OB_CLI_CLI_H

#include <stdio.h>

#include "base/buf.h"
#include "cli/commands.h"
#include "engine/engine.h"

enum { OB_EXIT_OK = 0, OB_EXIT_FAILED = 1, OB_EXIT_USAGE = 2 };

/* "1bit pull: text" on stderr; returns the exit code that belongs to err->code. */
int ob_cli_fail(const ob_args *a, const ob_err *err);
/* The same for wrong usage, with a hint at the command's help; returns OB_EXIT_USAGE. */
int ob_cli_usage_error(const char *cmd_name, const char *fmt, ...) OB_PRINTF(2, 3);

/* Overview of all commands, or one command's page. `cmd` NULL: overview. */
void ob_cli_write_help(FILE *f, const ob_command *cmd);
void ob_cli_write_man(FILE *f);
void ob_cli_write_markdown(FILE *f);

/* Write b to stdout and check it; a closed pipe or a full disk is a failure. */
int ob_cli_print(const ob_args *a, const ob_buf *b);

/* Append all of a stream to b; `what` names it in errors (IO, LIMIT, NO_MEMORY). */
OB_MUST_CHECK ob_status ob_cli_read_all(FILE *f, const char *what, ob_buf *b, ob_err *err);

/* Turn what -m was given into the path of a file (*path is *taken*: ob_free). A path that exists
 * wins; then a name of the library; a model named by hf://, http:// or https:// is pulled into the
 * library first. `arg` NULL means the demo model. NOT_FOUND says which names would have worked. */
OB_MUST_CHECK ob_status ob_cli_find_model(const char *arg, char **path, ob_err *err);

/* What --pooling says. */
ob_pooling ob_cli_pooling(const ob_args *a);
/* --act4; OFF where the command lacks it. */
ob_act4_use ob_cli_act4(const ob_args *a);

/* --moe-slots, --memory, --mlock and the like, where the command has them. */
void ob_cli_memory_params(const ob_args *a, ob_engine_params *out);
/* Engine parameters from the options that commands with an engine share; the model's path apart. */
void ob_cli_engine_params(const ob_args *a, ob_engine_params *out);

#endif
