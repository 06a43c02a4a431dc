/* cli/commands.h: the list of commands; each has a file cmd_<name>.c of its own.
 *
 * A command's function gets parsed arguments, writes results to stdout and problems to stderr, and
 * returns the exit code of the program: 0 done, 1 failed, 2 wrong usage.
 */
#ifndef OB_CLI_COMMANDS_H
#define OB_CLI_COMMANDS_H

#include "cli/options.h"

typedef struct ob_command {
    ob_cmd_id id;
    const char *name;
    const char *args;    /* positional arguments as shown: "FILE", "[NAME]", "" */
    int min_pos, max_pos; /* how many of them; max_pos < 0: any number */
    const char *summary; /* one line, starts lower case, no final stop */
    const char *text;    /* paragraphs for the man page and docs/cli.md, split by blank lines */
    int (*run)(const ob_args *a);
} ob_command;

/* In the order of help. */
const ob_command *ob_cli_command(int index);
int ob_cli_n_commands(void);
const ob_command *ob_cli_find_command(const char *name); /* NULL if unknown */

int ob_cmd_bench(const ob_args *a);
int ob_cmd_chat(const ob_args *a);
int ob_cmd_check(const ob_args *a);
int ob_cmd_check_1bp(const ob_args *a);
int ob_cmd_classify(const ob_args *a);
int ob_cmd_convert(const ob_args *a);
int ob_cmd_devices(const ob_args *a);
int ob_cmd_doctor(const ob_args *a);
int ob_cmd_embed(const ob_args *a);
int ob_cmd_gates(const ob_args *a);
int ob_cmd_help(const ob_args *a);
int ob_cmd_imatrix(const ob_args *a);
int ob_cmd_info(const ob_args *a);
int ob_cmd_kld(const ob_args *a);
int ob_cmd_list(const ob_args *a);
int ob_cmd_logits(const ob_args *a);
int ob_cmd_npu(const ob_args *a);
int ob_cmd_perplexity(const ob_args *a);
int ob_cmd_policy(const ob_args *a);
int ob_cmd_pull(const ob_args *a);
int ob_cmd_quantize(const ob_args *a);
int ob_cmd_rm(const ob_args *a);
int ob_cmd_rotate(const ob_args *a);
int ob_cmd_serve(const ob_args *a);
int ob_cmd_run(const ob_args *a);
int ob_cmd_tokenize(const ob_args *a);
int ob_cmd_version(const ob_args *a);

#endif
