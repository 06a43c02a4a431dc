/* convert and check-1bp: packages made from GGUF files, and compared with them. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/math.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "fmt/onebp.h"
#include "hub/hub.h"

/* A line on a terminal; elsewhere one line for each twentieth of a job that takes a while. */
typedef struct view {
    ob_progress bar;
    bool quiet, terminal;
    int64_t start_ns;
    uint64_t first; /* done when the stage began */
    char label[64]; /* of the stage at hand */
    int told;       /* twentieths of it */
} view;

enum { N_STEPS = 20, QUIET_NS = 2000000000 }; /* a job shorter than this says nothing in a pipe */

static void tell_line(view *v, const char *label, uint64_t done, uint64_t total)
{
    int64_t now = ob_now_ns();
    int step = total ? (int)((double)done / (double)total * N_STEPS) : 0;
    if (strncmp(v->label, label, sizeof v->label - 1) != 0) {
        snprintf(v->label, sizeof v->label, "%s", label);
        v->start_ns = now;
        v->first = done;
        v->told = step;
    }
    if (step <= v->told || now - v->start_ns < QUIET_NS) return;
    v->told = step;
    char have[32], all[32], rate[32], left[32];
    double per_s = (double)(done - v->first) / ((double)(now - v->start_ns) * 1e-9);
    ob_format_bytes(have, sizeof have, (double)done);
    ob_format_bytes(all, sizeof all, (double)total);
    ob_format_bytes(rate, sizeof rate, per_s);
    ob_format_seconds(left, sizeof left, per_s > 0 ? (double)(total - done) / per_s : 0);
    fprintf(stderr, "%s: %s of %s, %s/s, %s left\n", label, have, all, rate, left);
}

static void show(view *v, const char *label, uint64_t done, uint64_t total)
{
    if (v->terminal) ob_progress_bytes(&v->bar, label, done, total);
    else if (!v->quiet) tell_line(v, label, done, total);
}

static bool on_copy(void *arg, uint64_t done, uint64_t total)
{
    show(arg, "converting", done, total);
    return true;
}

static bool on_sums(void *arg, uint64_t done, uint64_t total)
{
    show(arg, "hashing", done, total);
    return true;
}

static bool on_remote(void *arg, const ob_hub_progress *p)
{
    show(arg, p->stage, p->done, p->total);
    return true;
}

static void on_remark(void *arg, const char *text)
{
    view *v = arg;
    ob_progress_end(&v->bar);
    if (!v->quiet) fprintf(stderr, "%s\n", text);
}

static ob_status convert(const char *src, const char *dst, bool force, view *v, ob_onebp_made *made,
                         ob_err *err)
{
    if (!ob_hub_is_remote(src)) return ob_onebp_convert(src, dst, force, on_copy, v, made, err);
    ob_hub_pull_opts opts = {.force = force, .arg = v, .progress = on_remote, .remark = on_remark};
    return ob_hub_convert(src, dst, &opts, made, err);
}

/* Sums of a package that was here before say nothing about the new one. */
static ob_status write_sums(const char *dst, bool wanted, view *v, ob_err *err)
{
    ob_buf path;
    ob_buf_init(&path, 1 << 16);
    ob_buf_addf(&path, "%s.sums", dst);
    ob_status s = ob_buf_status(&path, err);
    if (s == OB_OK && wanted) s = ob_onebp_sums_write(dst, ob_buf_str(&path), on_sums, v, err);
    else if (s == OB_OK) unlink(ob_buf_str(&path));
    ob_buf_deinit(&path);
    return s;
}

int ob_cmd_convert(const ob_args *a)
{
    const char *dst = a->pos[1];
    view v = {.quiet = ob_cli_flag(a, OB_OPT_QUIET), .terminal = isatty(STDERR_FILENO)};
    ob_onebp_made made;
    ob_err err;
    ob_progress_init(&v.bar, v.quiet);
    ob_status s = convert(a->pos[0], dst, ob_cli_flag(a, OB_OPT_FORCE), &v, &made, &err);
    if (s == OB_OK) s = write_sums(dst, ob_cli_flag(a, OB_OPT_SUMS), &v, &err);
    ob_progress_end(&v.bar);
    if (s != OB_OK) return ob_cli_fail(a, &err);
    ob_buf b;
    ob_buf_init(&b, 1 << 16);
    ob_buf_addf(&b, "wrote %s: 1BP v%d, %zu tensors, %zu metadata keys, %.2f GiB of weights\n", dst,
                OB_ONEBP_VERSION, made.n_tensors, made.n_kv,
                (double)made.n_weight_bytes / (double)(1 << 30));
    int rc = ob_cli_print(a, &b);
    ob_buf_deinit(&b);
    return rc;
}

static void say(void *arg, const char *line)
{
    ob_buf *b = arg;
    ob_buf_addf(b, "%s\n", line);
}

int ob_cmd_check_1bp(const ob_args *a)
{
    ob_buf b, sums;
    ob_onebp_report r;
    ob_err err;
    ob_buf_init(&b, 256u << 20);
    ob_buf_init(&sums, 1 << 16);
    ob_buf_addf(&sums, "%s.sums", a->pos[1]);
    bool have_sums = access(ob_buf_str(&sums), F_OK) == 0;
    ob_status s = ob_onebp_check(a->pos[0], a->pos[1], have_sums ? ob_buf_str(&sums) : NULL, say, &b,
                                 &r, &err);
    ob_buf_deinit(&sums);
    if (s != OB_OK) {
        ob_buf_deinit(&b);
        return ob_cli_fail(a, &err);
    }
    ob_buf_addf(&b, "%s: %zu tensors, %zu metadata keys\n", r.n_wrong ? "FAIL" : "OK", r.n_tensors,
                r.n_kv);
    int rc = ob_cli_print(a, &b);
    ob_buf_deinit(&b);
    return rc == OB_EXIT_OK && r.n_wrong ? OB_EXIT_FAILED : rc;
}
