/* base/log.h: messages for the person who runs the program; one line each, to stderr.
 *
 * Rooms below cli/serve log only at DEBUG and WARN; results never go through here.
 * Thread-safe: a line is written with one call.
 */
#ifndef OB_BASE_LOG_H
#define OB_BASE_LOG_H

#include <stdbool.h>

#include "base/status.h"

typedef enum ob_log_level { OB_LOG_ERROR, OB_LOG_WARN, OB_LOG_INFO, OB_LOG_DEBUG } ob_log_level;

void ob_log_set_level(ob_log_level level); /* default OB_LOG_INFO */
void ob_log_set_json(bool on);             /* one JSON object a line: time, level, message */
/* Tests may catch lines instead; NULL restores stderr. */
void ob_log_set_sink(void (*fn)(void *arg, ob_log_level level, const char *line), void *arg);
void ob_log(ob_log_level level, const char *fmt, ...) OB_PRINTF(2, 3);

#define ob_log_error(...) ob_log(OB_LOG_ERROR, __VA_ARGS__)
#define ob_log_warn(...) ob_log(OB_LOG_WARN, __VA_ARGS__)
#define ob_log_info(...) ob_log(OB_LOG_INFO, __VA_ARGS__)
#define ob_log_debug(...) ob_log(OB_LOG_DEBUG, __VA_ARGS__)

#endif
