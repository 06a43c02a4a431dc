/* The program `1bit`: finds the command, parses its options, runs it. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/scratch.h"
#include "cli/cli.h"
#include "dev/device.h"
#include "gates/gates.h"

/* Words that ask for a command in the way of other programs. */
static const char *command_name(const char *word)
{
    if (!strcmp(word, "--help") || !strcmp(word, "-h")) return "help";
    if (!strcmp(word, "--version") || !strcmp(word, "-V")) return "version";
    return word;
}

/* `1bit -m x`: the word is an option, which belongs behind a command; run is the likeliest one. */
static int option_first(const char *word)
{
    const ob_option *o = ob_cli_find_option(OB_IN(RUN), word);
    const char *cmd = o ? "run" : NULL;
    if (!o) o = ob_cli_find_option(UINT64_MAX, word);
    for (int i = 0; o && !cmd && i < ob_cli_n_commands(); i++)
        if (o->commands >> ob_cli_command(i)->id & 1) cmd = ob_cli_command(i)->name;
    int len = (int)strcspn(word, "=");
    if (cmd)
        return ob_cli_usage_error(NULL, "option '%.80s' stands before the command: options go after it, as in "
                                  "`1bit %s %.*s …`", word, cmd, len, word);
    return ob_cli_usage_error(NULL, "unknown option '%.80s' where a command is expected: options go after a command",
                              word);
}

static int unknown_command(const char *word)
{
    if (word[0] == '-') return option_first(word);
    enum { MAX_COMMANDS = 64 };
    const char *names[MAX_COMMANDS];
    int n = 0;
    for (; n < ob_cli_n_commands() && n < MAX_COMMANDS; n++) /* a slip must not lead to a removal */
        names[n] = ob_cli_command(n)->id == OB_CMD_RM ? NULL : ob_cli_command(n)->name;
    const char *near = ob_cli_nearest(word, names, n);
    if (near)
        return ob_cli_usage_error(NULL, "unknown command '%.80s'; did you mean `1bit %s`?", word, near);
    return ob_cli_usage_error(NULL, "unknown command '%.80s'", word);
}

/* Told to stop: no half-written file stays, then the signal does what it does without us. */
static void on_stop(int sig)
{
    ob_scratch_remove_all();
    signal(sig, SIG_DFL);
    raise(sig);
}

static void catch_stops(void)
{
    static const int stops[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        struct sigaction was, a = {.sa_handler = on_stop};
        if (sigaction(stops[i], NULL, &was) == 0 && was.sa_handler == SIG_IGN) continue; /* nohup, a shell's background job */
        sigemptyset(&a.sa_mask);
        sigaction(stops[i], &a, NULL);
    }
}

int main(int argc, char **argv)
{
    catch_stops();
    signal(SIGPIPE, SIG_IGN); /* a write to a closed pipe is an error to report, not a death */
    if (argc < 2) {
        ob_cli_write_help(stderr, NULL);
        return OB_EXIT_USAGE;
    }
    const ob_command *cmd = ob_cli_find_command(command_name(argv[1]));
    if (!cmd) return unknown_command(argv[1]);

    ob_args args;
    ob_err err;
    if (ob_cli_parse(cmd->id, cmd->name, argc - 2, argv + 2, &args, &err) != OB_OK)
        return ob_cli_usage_error(cmd->name, "%s", err.text);
    int rc;
    if (ob_cli_flag(&args, OB_OPT_HELP)) {
        ob_cli_write_help(stdout, cmd);
        rc = OB_EXIT_OK;
    } else if (args.n_pos < cmd->min_pos) {
        rc = ob_cli_usage_error(cmd->name, "%s is missing", cmd->args);
    } else if (cmd->max_pos >= 0 && args.n_pos > cmd->max_pos) {
        rc = ob_cli_usage_error(cmd->name, "unexpected argument '%.80s'", args.pos[cmd->max_pos]);
    } else {
        if (ob_cli_flag(&args, OB_OPT_VERBOSE)) ob_log_set_level(OB_LOG_DEBUG);
        if (ob_cli_flag(&args, OB_OPT_QUIET)) ob_log_set_level(OB_LOG_ERROR);
        ob_dev_set_prefer(ob_gates_prefer);
        rc = cmd->run(&args);
    }
    ob_cli_args_deinit(&args);
    return rc;
}
