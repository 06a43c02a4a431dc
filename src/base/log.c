#include "base/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"

static _Atomic int g_level = OB_LOG_INFO;
static _Atomic bool g_json;
/* Set before other threads start (tests); not synchronised. */
static void (*g_sink)(void *, ob_log_level, const char *);
static void *g_sink_arg;

void ob_log_set_level(ob_log_level level) { atomic_store(&g_level, (int)level); }
void ob_log_set_json(bool on) { atomic_store(&g_json, on); }

void ob_log_set_sink(void (*fn)(void *, ob_log_level, const char *), void *arg)
{
    g_sink = fn;
    g_sink_arg = arg;
}

void ob_log(ob_log_level level, const char *fmt, ...)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    if ((int)level > atomic_load(&g_level)) return;
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (g_sink) {
        g_sink(g_sink_arg, level, text);
        return;
    }
    ob_buf line;
    ob_buf_init(&line, 16384);
    if (atomic_load(&g_json)) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        ob_buf_addf(&line, "{\"time\":%lld.%03ld,\"level\":\"%s\",\"message\":",
                    (long long)t.tv_sec, t.tv_nsec / 1000000, names[level]);
        ob_buf_add_json(&line, text, strlen(text));
        ob_buf_adds(&line, "}\n");
    } else {
        ob_buf_addf(&line, "1bit: %s%s\n",
                    level == OB_LOG_ERROR  ? "error: "
                    : level == OB_LOG_WARN ? "warning: "
                                           : "",
                    text);
    }
    ssize_t done = write(STDERR_FILENO, ob_buf_str(&line), line.len);
    (void)done; /* nowhere to report a failing stderr */
    ob_buf_deinit(&line);
}
