/* 1bit gates: may a device become the default on this machine? */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/math.h"
#include "base/outfile.h"
#include "cli/cli.h"
#include "cli/gates_measure.h"
#include "hub/hub.h"

enum { MAX_MODELS = 64, MAX_OUT_BYTES = 16 << 20 };

/* RFC #213's models; in the library their names begin so. */
static const char *const k_showcase[] = {"zaya1-8b", "qwen3.8-27b", "qwen3-0.6b", "qwen3-coder-30b-a3b"};

static ob_status find_showcase(ob_gates_model *out, int *n, ob_err *err)
{
    ob_hub_model *all = NULL;
    size_t n_all = 0;
    ob_err ignored;
    if (ob_hub_list(&all, &n_all, &ignored) != OB_OK) n_all = 0; /* no library: none of them is here */
    ob_status s = OB_OK;
    for (size_t i = 0; i < OB_COUNT(k_showcase) && s == OB_OK; i++) {
        ob_gates_model *m = &out[(*n)++];
        snprintf(m->name, sizeof m->name, "%s", k_showcase[i]);
        for (size_t k = 0; k < n_all && !m->path; k++)
            if (!all[k].damaged && !strncmp(all[k].name, k_showcase[i], strlen(k_showcase[i]))) {
                snprintf(m->name, sizeof m->name, "%s", all[k].name);
                m->path = ob_strdup(all[k].path);
                if (!m->path) s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for a path");
            }
    }
    ob_hub_models_free(all, n_all);
    return s;
}

/* --models A,B or the showcase models. A given one must be there. */
static ob_status find_models(const ob_args *a, ob_gates_model *out, int *n, ob_err *err)
{
    const char *list = ob_cli_str(a, OB_OPT_MODELS);
    *n = 0;
    if (!list) return find_showcase(out, n, err);
    for (const char *p = list; *p;) {
        char one[1024];
        const size_t len = strcspn(p, ",");
        snprintf(one, sizeof one, "%.*s", (int)OB_MIN(len, sizeof one - 1), p);
        p += len + (p[len] == ',');
        if (!len) continue;
        if (*n == MAX_MODELS) return ob_err_set(err, OB_E_LIMIT, "--models has more than %d names", MAX_MODELS);
        ob_gates_model *m = &out[(*n)++];
        const char *slash = strrchr(one, '/'), *base = slash ? slash + 1 : one;
        const size_t dot = strlen(base) > 5 && !strcmp(base + strlen(base) - 5, ".gguf") ? strlen(base) - 5 : strlen(base);
        snprintf(m->name, sizeof m->name, "%.*s", (int)OB_MIN(dot, sizeof m->name - 1), base);
        OB_TRY(ob_cli_find_model(one, &m->path, err));
    }
    return OB_OK;
}

/* What the device tells of itself without being opened, where it can be had so: reports are compared with that later. */
static ob_status describe(const char *spec, ob_dev_info *out, ob_err *err)
{
    ob_dev *d;
    const ob_dev_options opt = {.n_threads = 1};
    OB_TRY(ob_dev_open(spec, &opt, &d, err));
    memset(out, 0, sizeof *out);
    d->api->describe(d, out);
    ob_dev_close(d);
    for (const ob_dev_api *const *api = ob_dev_registry(); *api; api++)
        if (!strcmp((*api)->kind, out->kind)) {
            const int index = out->index;
            memset(out, 0, sizeof *out);
            (*api)->probe(index, out);
        }
    return OB_OK;
}

/* --golden, else the sources' folder beside the program, where it was built. */
static const char *find_golden(const ob_args *a, char *buf, size_t cap)
{
    const char *given = ob_cli_str(a, OB_OPT_GOLDEN);
    if (given) return given;
    const ssize_t n = readlink("/proc/self/exe", buf, cap - 1);
    if (n <= 0) return NULL;
    buf[n] = 0;
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(buf, '/');
        if (!slash) return NULL;
        *slash = 0;
    }
    const size_t len = strlen(buf);
    if ((size_t)snprintf(buf + len, cap - len, "/tests/data/golden") >= cap - len) return NULL;
    return access(buf, R_OK) == 0 ? buf : NULL;
}

static ob_status write_file(const char *path, const ob_buf *b, ob_err *err)
{
    ob_outfile *f;
    OB_TRY(ob_buf_status(b, err));
    OB_TRY(ob_outfile_new(path, &f, err));
    const ob_status s = ob_outfile_write(f, b->data, b->len, err);
    if (s == OB_OK) return ob_outfile_commit(f, err);
    ob_outfile_abort(f);
    return s;
}

static bool to_stdout(const char *path) { return path && !strcmp(path, "-"); }

/* The forms that were asked for; the text where no other goes to standard output. */
static ob_status put_out(const ob_args *a, const ob_gates_report *r, ob_buf *out, ob_err *err)
{
    const struct {
        const char *path;
        void (*write)(const ob_gates_report *r, ob_buf *out);
    } forms[] = {{ob_cli_str(a, OB_OPT_JSON_FILE), ob_gates_write_json}, {ob_cli_str(a, OB_OPT_HTML_FILE), ob_gates_write_html}};
    bool used = false;
    for (size_t i = 0; i < OB_COUNT(forms); i++) {
        if (!forms[i].path) continue;
        if (to_stdout(forms[i].path)) {
            forms[i].write(r, out);
            used = true;
            continue;
        }
        ob_buf b;
        ob_buf_init(&b, MAX_OUT_BYTES);
        forms[i].write(r, &b);
        const ob_status s = write_file(forms[i].path, &b, err);
        ob_buf_deinit(&b);
        OB_TRY(s);
    }
    if (!used) ob_gates_write_text(r, out);
    return OB_OK;
}

static ob_status measure(const ob_gates_run *g, ob_err *err)
{
    OB_TRY(ob_gates_measure_decode(g, err));
    OB_TRY(ob_gates_measure_golden(g, err));
    OB_TRY(ob_gates_measure_files(g, err));
    OB_TRY(ob_gates_measure_needle(g, err));
    OB_TRY(ob_gates_measure_batch(g, err));
    return ob_gates_measure_speculation(g, err);
}

/* By letter, else as they were. */
static void sort_gates(ob_gates_report *r)
{
    for (int i = 1; i < r->n_gates; i++)
        for (int k = i; k > 0 && r->gates[k - 1].letter > r->gates[k].letter; k--) {
            const ob_gate g = r->gates[k];
            r->gates[k] = r->gates[k - 1];
            r->gates[k - 1] = g;
        }
}

int ob_cmd_gates(const ob_args *a)
{
    static ob_gates_report report;
    ob_gates_model models[MAX_MODELS] = {0};
    char golden[1100];
    ob_err err;
    ob_status s = OB_OK;
    ob_dev_info candidate, baseline;
    ob_buf out;
    const double t0 = ob_now_ms();
    if (to_stdout(ob_cli_str(a, OB_OPT_JSON_FILE)) && to_stdout(ob_cli_str(a, OB_OPT_HTML_FILE)))
        return ob_cli_usage_error(a->cmd_name, "only one of --json and --html can go to standard output: give the other a file");
    ob_gates_run g = {.report = &report, .candidate = ob_cli_str(a, OB_OPT_CANDIDATE), .baseline = ob_cli_str(a, OB_OPT_BASELINE),
                      .models = models, .golden = find_golden(a, golden, sizeof golden),
                      .n_rounds = (int)ob_cli_int(a, OB_OPT_REPETITIONS), .n_gen = (int)ob_cli_int(a, OB_OPT_GATE_TOKENS),
                      .n_threads = (int)ob_cli_int(a, OB_OPT_THREADS), .n_records = (int)ob_cli_int(a, OB_OPT_RECORDS),
                      .quiet = ob_cli_flag(a, OB_OPT_QUIET)};
    ob_buf_init(&out, MAX_OUT_BYTES);
    OB_GOTO(describe(g.candidate, &candidate, &err));
    OB_GOTO(describe(g.baseline, &baseline, &err));
    OB_GOTO(find_models(a, models, &g.n_models, &err));
    ob_gates_init(&report, &candidate, &baseline);
    OB_GOTO(measure(&g, &err));
    sort_gates(&report);
    report.seconds = (ob_now_ms() - t0) * 1e-3;
    OB_GOTO(ob_gates_save(&report, &err));
    OB_GOTO(put_out(a, &report, &out, &err));
out:;
    const int rc = s == OB_OK ? ob_cli_print(a, &out) : ob_cli_fail(a, &err);
    for (int i = 0; i < g.n_models; i++) ob_free(models[i].path);
    ob_gates_deinit(&report);
    ob_buf_deinit(&out);
    return rc;
}
