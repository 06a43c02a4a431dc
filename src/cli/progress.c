#include "cli/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/math.h"

enum { REDRAW_NS = 100000000, MIN_COLUMNS = 40, MAX_COLUMNS = 120 };

void ob_format_bytes(char *out, int out_len, double n_bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    int u = 0;
    while (n_bytes >= 999.5 && u + 1 < (int)OB_COUNT(units)) {
        n_bytes /= 1000;
        u++;
    }
    int digits = u == 0 ? 0 : n_bytes < 10 ? 2 : n_bytes < 100 ? 1 : 0;
    snprintf(out, (size_t)out_len, "%.*f %s", digits, n_bytes, units[u]);
}

void ob_format_seconds(char *out, int out_len, double s)
{
    long t = (long)ceil(OB_MIN(s, 360000.0));
    if (t < 60) snprintf(out, (size_t)out_len, "%ld s", t);
    else if (t < 3600) snprintf(out, (size_t)out_len, "%ld min %02ld s", t / 60, t % 60);
    else snprintf(out, (size_t)out_len, "%ld h %02ld min", t / 3600, t % 3600 / 60);
}

void ob_progress_init(ob_progress *p, bool quiet)
{
    *p = (ob_progress){.on = !quiet && isatty(STDERR_FILENO)};
}

static int terminal_columns(void)
{
    struct winsize w;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) != 0 || w.ws_col == 0) return 80;
    return OB_MAX(MIN_COLUMNS, OB_MIN(MAX_COLUMNS, (int)w.ws_col));
}

static void start_stage(ob_progress *p, const char *label, uint64_t done, int64_t now)
{
    snprintf(p->label, sizeof p->label, "%s", label);
    p->start_ns = p->rate_ns = now;
    p->start_done = p->rate_done = done;
    p->last_ns = 0;
    p->rate = 0;
}

/* A mean over the last seconds: quick enough to show a stall, slow enough to be read. */
static void update_rate(ob_progress *p, uint64_t done, int64_t now)
{
    double dt = (double)(now - p->rate_ns) * 1e-9;
    if (dt < 0.25) return;
    double rate = done >= p->rate_done ? (double)(done - p->rate_done) / dt : 0;
    double keep = p->rate > 0 ? exp(-dt / 3) : 0;
    p->rate = keep * p->rate + (1 - keep) * rate;
    p->rate_done = done;
    p->rate_ns = now;
}

/* Label, percentage and bar of `part` (negative: unknown, no bar), `tail`. */
static void draw(ob_progress *p, double part, const char *tail)
{
    int bar = terminal_columns() - 1 - (int)strlen(p->label) - (int)strlen(tail) - 8;
    bar = OB_MIN(bar, 30);
    fprintf(stderr, "\r\033[K%s", p->label);
    if (part >= 0 && bar >= 4) {
        part = OB_MIN(1.0, part);
        int full = (int)(part * bar);
        fprintf(stderr, " %3d%% [", (int)(part * 100));
        for (int i = 0; i < bar; i++) fputc(i < full ? '=' : ' ', stderr);
        fputc(']', stderr);
    }
    fputs(tail, stderr);
    fflush(stderr);
    p->drawn = true;
}

void ob_progress_bytes(ob_progress *p, const char *label, uint64_t done, uint64_t total)
{
    if (!p->on) return;
    int64_t now = ob_now_ns();
    if (strncmp(p->label, label, sizeof p->label - 1) != 0) start_stage(p, label, done, now);
    update_rate(p, done, now);
    bool last = total && done >= total;
    if (!last && now - p->last_ns < REDRAW_NS) return;
    p->last_ns = now;

    char have[32], all[32], rate[32], left[32], tail[160];
    ob_format_bytes(have, sizeof have, (double)done);
    ob_format_bytes(all, sizeof all, (double)total);
    ob_format_bytes(rate, sizeof rate, p->rate);
    int n = total ? snprintf(tail, sizeof tail, " %s of %s", have, all)
                  : snprintf(tail, sizeof tail, " %s", have);
    if (p->rate > 0 && !last) {
        n += snprintf(tail + n, sizeof tail - (size_t)n, ", %s/s", rate);
        if (total) {
            ob_format_seconds(left, sizeof left, (double)(total - done) / p->rate);
            snprintf(tail + n, sizeof tail - (size_t)n, ", %s left", left);
        }
    }
    draw(p, total ? (double)done / (double)total : -1, tail);
}

void ob_progress_part(ob_progress *p, const char *label, double fraction)
{
    if (!p->on) return;
    int64_t now = ob_now_ns();
    if (strncmp(p->label, label, sizeof p->label - 1) != 0) start_stage(p, label, 0, now);
    if (fraction < 1 && now - p->last_ns < REDRAW_NS) return;
    p->last_ns = now;
    draw(p, OB_MAX(0.0, fraction), "");
}

void ob_progress_end(ob_progress *p)
{
    if (p->drawn) fputs("\r\033[K", stderr);
    p->drawn = false;
    p->label[0] = 0;
}
