/* cli/scorer.h: finding and loading the scorer of routing. */
#ifndef OB_CLI_SCORER_H
#define OB_CLI_SCORER_H

#include "cli/cli.h"
#include "route/scorer.h"

/* --laya-model (or ONEBIT_LAYA_MODEL), else what is installed: $XDG_DATA_HOME/1bit/laya or ~/.local/share/1bit/laya
 * (typed-decisions/ before the folder itself), else the scorer that comes with this program. *path is *taken*. */
OB_MUST_CHECK ob_status ob_cli_find_scorer(const ob_args *a, char **path, ob_err *err);
/* The same and load it, on --device (auto: the CPU, which needs no start and answers in milliseconds). */
OB_MUST_CHECK ob_status ob_cli_load_scorer(const ob_args *a, ob_scorer **out, ob_err *err);

#endif
