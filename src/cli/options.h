/* cli/options.h: the one table of command line options, and the values parsed through it.
 *
 * The table makes parsing, `1bit help`, the man page and docs/cli.md, so an option that exists is an
 * option that is documented. Owns: option names, kinds, ranges, defaults, environment variables.
 * Must not know what a command does with a value.
 *
 * A value comes from the command line, else from the option's environment variable, else from its
 * default. All three go through the same check. An ob_args is owned by the main thread.
 *
 * To add an option: an id below (before the ones that every command has), an entry at the same place
 * in option_table.c, `make docs`. The table may already hold options of a command that does not exist
 * yet; they are seen by nobody until commands.c lists it.
 */
#ifndef OB_CLI_OPTIONS_H
#define OB_CLI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Every command that may carry options; a bit each. A command exists when commands.c lists it. */
typedef enum ob_cmd_id {
    OB_CMD_SERVE, OB_CMD_RUN, OB_CMD_CHAT, OB_CMD_EMBED, OB_CMD_CLASSIFY, OB_CMD_POLICY, OB_CMD_BENCH, OB_CMD_INFO, OB_CMD_TOKENIZE,
    OB_CMD_PULL, OB_CMD_LIST, OB_CMD_RM, OB_CMD_CONVERT, OB_CMD_CHECK_1BP, OB_CMD_DEVICES, OB_CMD_NPU,
    OB_CMD_KLD, OB_CMD_QUANTIZE, OB_CMD_IMATRIX, OB_CMD_ROTATE,
    OB_CMD_DOCTOR, OB_CMD_GATES, OB_CMD_PERPLEXITY, OB_CMD_LOGITS, OB_CMD_CHECK, OB_CMD_VERSION, OB_CMD_HELP,
    OB_CMD_COUNT
} ob_cmd_id;
#define OB_IN(cmd) (UINT64_C(1) << OB_CMD_##cmd)

typedef enum ob_opt_id {
    /* the model and where it runs */
    OB_OPT_MODEL, OB_OPT_DEVICE, OB_OPT_SPLIT, OB_OPT_CPU_MOE,
    OB_OPT_MOE_SLOTS, OB_OPT_NO_MOE_PREFETCH, OB_OPT_MEMORY, OB_OPT_MLOCK, OB_OPT_NO_MMAP,
    OB_OPT_CTX_SIZE, OB_OPT_THREADS, OB_OPT_PARALLEL, OB_OPT_UBATCH, OB_OPT_NO_RECIPES,
    OB_OPT_CTK, OB_OPT_CTV, OB_OPT_PREFILL_DEVICE, OB_OPT_PREFILL_MIN, OB_OPT_SPECULATE, OB_OPT_DRAFT_MAX,
    OB_OPT_EXACT, OB_OPT_ACT4,
    OB_OPT_OFFICIAL_ROUNDING, OB_OPT_NPU_VERIFY, OB_OPT_NPU_PIN, OB_OPT_NPU_MODE, OB_OPT_COVARIANCE,
    /* serve */
    OB_OPT_HOST, OB_OPT_PORT, OB_OPT_ALIAS, OB_OPT_API_KEY, OB_OPT_CORS, OB_OPT_TIMEOUT,
    OB_OPT_LOG_JSON, OB_OPT_EMBED, OB_OPT_RERANK,
    /* pictures */
    OB_OPT_MMPROJ, OB_OPT_IMAGE_MAX_TOK, OB_OPT_IMAGE_URLS, OB_OPT_IMAGE_DIR, OB_OPT_IMAGE,
    /* text in */
    OB_OPT_CHAT_TEMPLATE, OB_OPT_PROMPT, OB_OPT_RAW, OB_OPT_SYSTEM, OB_OPT_FILE, OB_OPT_IDS_FILE,
    OB_OPT_CHUNKS, OB_OPT_KL_BASE,
    /* generation */
    OB_OPT_N_PREDICT, OB_OPT_TEMP, OB_OPT_TOP_K, OB_OPT_TOP_P, OB_OPT_MIN_P,
    OB_OPT_REPEAT_PENALTY, OB_OPT_PRESENCE_PENALTY, OB_OPT_FREQUENCY_PENALTY, OB_OPT_SEED,
    OB_OPT_STOP, OB_OPT_IGNORE_EOS,
    /* bench */
    OB_OPT_N_PROMPT, OB_OPT_N_GEN, OB_OPT_DEPTH, OB_OPT_BATCH, OB_OPT_REPETITIONS,
    OB_OPT_PROFILE,
    /* embeddings */
    OB_OPT_POOLING, OB_OPT_NO_NORMALIZE,
    /* routing */
    OB_OPT_LONG_MODEL, OB_OPT_LONG_FROM, OB_OPT_LONG_DEVICE, OB_OPT_LAYA, OB_OPT_LAYA_MODEL, OB_OPT_ROUTE_POLICY, OB_OPT_QUESTION, OB_OPT_TARGETS, OB_OPT_LENGTHS,
    /* logits */
    OB_OPT_STEP, OB_OPT_OUTPUT,
    /* quantize */
    OB_OPT_IMATRIX, OB_OPT_TENSOR_TYPE, OB_OPT_PURE, OB_OPT_REQUANTIZE,
    /* tokenize */
    OB_OPT_NO_BOS, OB_OPT_NO_SPECIAL,
    /* info, check */
    OB_OPT_ARCHITECTURES, OB_OPT_ALL_GOLDEN, OB_OPT_AGAINST, OB_OPT_N_TOKENS,
    /* gates */
    OB_OPT_CANDIDATE, OB_OPT_BASELINE, OB_OPT_MODELS, OB_OPT_GOLDEN, OB_OPT_GATE_TOKENS, OB_OPT_RECORDS, OB_OPT_JSON_FILE,
    OB_OPT_HTML_FILE,
    /* library */
    OB_OPT_NAME, OB_OPT_FORCE, OB_OPT_SUMS, OB_OPT_VERIFY,
    /* output forms */
    OB_OPT_JSON, OB_OPT_CSV, OB_OPT_MAN, OB_OPT_MARKDOWN,
    /* everywhere */
    OB_OPT_QUIET, OB_OPT_VERBOSE, OB_OPT_HELP,
    OB_OPT_COUNT
} ob_opt_id;

typedef enum ob_opt_kind {
    OB_OPT_KIND_FLAG,   /* no value; given or not */
    OB_OPT_KIND_INT,    /* decimal, in [min, max]; or a word of `choices`, then .s is the word and .i -1 */
    OB_OPT_KIND_SIZE,   /* bytes in [min, max]; K, M, G and T are powers of 1024: 800M, 12.5G */
    OB_OPT_KIND_FLOAT,  /* finite, in [min, max] */
    OB_OPT_KIND_STRING,
    OB_OPT_KIND_PATH,   /* a string that names a file; shells complete it */
    OB_OPT_KIND_ENUM,   /* one of `choices` */
} ob_opt_kind;

typedef struct ob_option {
    const char *name;    /* long name without dashes; unique within each command */
    char letter;         /* one-letter form, 0 if none; unique within each command */
    const char *aliases; /* other accepted spellings, with dashes, split by spaces; or NULL */
    ob_opt_kind kind;
    const char *arg;     /* what the value is called in help ("N", "FILE"); NULL for flags */
    const char *def;     /* default as text, NULL if none */
    double min, max;     /* INT and FLOAT */
    const char *choices; /* ENUM, INT: "a|b|c" */
    bool optional;       /* the value may be left out: "-" then (STRING and PATH), or the default (ENUM) */
    bool many;           /* may be given again; values pile up (STRING and PATH only) */
    const char *env;     /* environment variable, or NULL */
    uint64_t commands;   /* OB_IN(SERVE) | ... */
    const char *doc;     /* one line, starts lower case, no final stop */
} ob_option;

/* The table (option_table.c), in the order of help; entry i has id i. */
const ob_option *ob_cli_option(int index);

/* The spellings of `aliases` one after the other: NULL at the end. *at starts as the field. */
const char *ob_cli_next_alias(const char **at, int *len);

typedef struct ob_opt_value {
    bool is_set; /* has a value at all: given, from the environment, or by default */
    bool given;  /* on the command line or by the environment */
    int64_t i;   /* INT, SIZE; FLAG: times given */
    double f;    /* FLOAT */
    const char *s;     /* STRING, PATH, ENUM, words of INT (last one given); borrowed from argv or environment */
    const char **list; /* `many`: all of them, n_list entries; owned by the ob_args */
    int n_list;
} ob_opt_value;

typedef struct ob_args {
    ob_cmd_id cmd;
    const char *cmd_name;
    const char **pos; /* positional arguments, n_pos of them; the array is owned */
    int n_pos;
    ob_opt_value values[OB_OPT_COUNT];
} ob_args;

/* Parse the words after the command's name. OB_E_INVALID with a text for the user (it names the
 * option and, for an unknown one, the nearest known). `--help` stops the checks of the rest. */
OB_MUST_CHECK ob_status ob_cli_parse(ob_cmd_id cmd, const char *cmd_name, int argc, char **argv,
                                     ob_args *out, ob_err *err);
void ob_cli_args_deinit(ob_args *a);

/* Typed access; the option's kind must fit (a bug otherwise: the value reads as zero). */
bool ob_cli_flag(const ob_args *a, ob_opt_id id);
bool ob_cli_given(const ob_args *a, ob_opt_id id);
int64_t ob_cli_int(const ob_args *a, ob_opt_id id);
double ob_cli_float(const ob_args *a, ob_opt_id id);
const char *ob_cli_str(const ob_args *a, ob_opt_id id); /* NULL if it has no value */

/* The option of any of the `commands` (bits) that `word` spells (-x, --name, --name=…, an alias), or NULL. */
const ob_option *ob_cli_find_option(uint64_t commands, const char *word);
/* The word of `words` (n, NULLs are skipped) nearest to `word`, or NULL if none is near enough. */
const char *ob_cli_nearest(const char *word, const char *const *words, int n);

#endif
