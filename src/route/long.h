/* route/long.h: may one model file take over long prompts from another?
 *
 * Prompts are rendered and tokenised once, so both files must have one vocabulary and one chat template. Looks at
 * metadata alone: cheap, and before anything is loaded.
 */
#ifndef OB_ROUTE_LONG_H
#define OB_ROUTE_LONG_H

#include "base/status.h"

/* Errors name both files: UNSUPPORTED (another vocabulary or template; the served one is Hadamard-rotated, so that
 * there is nothing to win), and what opening either file says. */
OB_MUST_CHECK ob_status ob_long_check(const char *served_path, const char *long_path, ob_err *err);

#endif
