/* Reports on disk, and what they say about the devices that are here now. */
#include "gates/gates.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "base/outfile.h"
#include "gates/gates_int.h"

enum { MAX_REPORT_BYTES = 4 << 20 };

/* ------------------------------------------------------------------ files */

/* $XDG_STATE_HOME/1bit/gates; a relative path is to be ignored, says the specification. False: there is no home. */
static bool state_dir(char *out, size_t cap)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n;
    if (state && state[0] == '/') n = snprintf(out, cap, "%s/1bit/gates", state);
    else if (home && home[0] == '/') n = snprintf(out, cap, "%s/.local/state/1bit/gates", home);
    else return false;
    return (size_t)n < cap;
}

static ob_status make_dirs(char *path, ob_err *err)
{
    for (char *p = path + 1;; p++) {
        if (*p && *p != '/') continue;
        const char end = *p;
        *p = 0;
        const int rc = mkdir(path, 0755), e = errno;
        *p = end;
        if (rc && e != EEXIST) return ob_err_set_errno(err, OB_E_IO, e, "cannot make the folder %.200s", path);
        if (!end) return OB_OK;
    }
}

ob_status ob_gates_save(const ob_gates_report *r, ob_err *err)
{
    char dir[700], path[900];
    ob_outfile *f = NULL;
    ob_buf b;
    if (!state_dir(dir, sizeof dir)) return ob_err_set(err, OB_E_IO, "no home folder for the report: set XDG_STATE_HOME");
    OB_TRY(make_dirs(dir, err));
    int n = snprintf(path, sizeof path, "%s/%s-%s-vs-%s.json", dir, r->machine_id, r->candidate.id, r->baseline.id);
    for (char *p = path + strlen(dir); p < path + n; p++)
        if (*p == ':') *p = '-';
    ob_buf_init(&b, MAX_REPORT_BYTES);
    ob_gates_write_json(r, &b);
    ob_status s = ob_buf_status(&b, err);
    if (s == OB_OK) s = ob_outfile_new(path, &f, err);
    if (s == OB_OK) s = ob_outfile_write(f, b.data, b.len, err);
    if (s == OB_OK) s = ob_outfile_commit(f, err);
    else ob_outfile_abort(f);
    ob_buf_deinit(&b);
    return s;
}

static ob_status read_report(const char *path, ob_gates_report *r, ob_err *err)
{
    ob_buf b;
    char part[65536];
    FILE *f = fopen(path, "rbe");
    if (!f) return ob_err_set_errno(err, OB_E_IO, errno, "cannot open %.200s", path);
    ob_buf_init(&b, MAX_REPORT_BYTES);
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) ob_buf_add(&b, part, n);
    fclose(f);
    ob_status s = ob_buf_status(&b, err);
    if (s == OB_OK) s = ob_gates_read_json(ob_buf_str(&b), b.len, r, err);
    ob_buf_deinit(&b);
    return s;
}

void ob_gates_each(bool (*fn)(void *arg, const ob_gates_report *r), void *arg)
{
    char dir[700], path[1000], name[128], id[20];
    if (!state_dir(dir, sizeof dir)) return;
    ob_gates_machine(name, sizeof name, id);
    DIR *d = opendir(dir);
    if (!d) return;
    ob_gates_report *r = ob_malloc(sizeof *r);
    bool go_on = r != NULL;
    for (struct dirent *e; go_on && (e = readdir(d));) {
        ob_err err;
        const size_t n = strlen(e->d_name);
        if (strncmp(e->d_name, id, strlen(id)) || n < 5 || strcmp(e->d_name + n - 5, ".json")) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (read_report(path, r, &err) != OB_OK) {
            ob_log_warn("a report of `1bit gates` cannot be read: %s: %s", path, err.text);
            continue;
        }
        go_on = fn(arg, r);
        ob_gates_deinit(r);
    }
    ob_free(r);
    closedir(d);
}

/* ------------------------------------------------------------------ judging */

static bool same_device(const ob_gates_device *was, const ob_dev_info *is, const char *who, char *why, size_t cap)
{
    if (strcmp(was->driver, is->driver) != 0) snprintf(why, cap, "the driver of the %s was \"%.60s\"", who, was->driver);
    else if (strcmp(was->name, is->name) != 0) snprintf(why, cap, "the %s was \"%.60s\"", who, was->name);
    else return true;
    return false;
}

ob_gates_verdict ob_gates_judge(const ob_gates_report *r, const ob_dev_info *candidate, const ob_dev_info *baseline, char *why,
                                size_t cap)
{
    char machine[128], id[20];
    ob_gates_machine(machine, sizeof machine, id);
    *why = 0;
    if (strcmp(r->machine_id, id) != 0) snprintf(why, cap, "it was another machine, %.60s", r->machine);
    else if (strcmp(r->version, OB_VERSION) != 0) snprintf(why, cap, "it was 1bit %s", r->version);
    else if (!same_device(&r->candidate, candidate, "candidate", why, cap)) (void)0;
    else (void)same_device(&r->baseline, baseline, "baseline", why, cap);
    if (*why) return OB_GATES_STALE;
    if (ob_gates_closed(r)) return OB_GATES_CLOSED;
    size_t n = 0;
    for (int i = 0; i < r->n_gates && n < cap; i++)
        if (r->gates[i].state != OB_GATE_CLOSED)
            n += (size_t)snprintf(why + n, cap - n, "%s%s%s", n ? ", " : "", r->gates[i].id,
                                  r->gates[i].state == OB_GATE_OPEN ? "" : " (not measurable)");
    return OB_GATES_OPEN;
}

/* The device of this id as it is now; false when it is not here. */
static bool probe(const char *id, ob_dev_info *out)
{
    for (const ob_dev_api *const *api = ob_dev_registry(); *api; api++)
        for (int i = 0, n = (*api)->count(); i < n; i++) {
            char here[64];
            memset(out, 0, sizeof *out);
            (*api)->probe(i, out);
            snprintf(here, sizeof here, "%s:%d", out->kind, out->index);
            if (!strcmp(here, id)) return out->available;
        }
    return false;
}

typedef struct question {
    const ob_dev_info *dev;
    char *out;
    size_t cap;
    bool found;
} question;

static bool describe_one(void *arg, const ob_gates_report *r)
{
    question *q = arg;
    ob_dev_info baseline;
    char id[64], why[400], date[16];
    snprintf(id, sizeof id, "%s:%d", q->dev->kind, q->dev->index);
    if (strcmp(r->candidate.id, id) != 0) return true;
    ob_gates_date(r->time, date);
    q->found = true;
    if (!probe(r->baseline.id, &baseline)) {
        snprintf(q->out, q->cap, "a report of %s is of no use: its baseline %s is not here", date, r->baseline.id);
        return true;
    }
    switch (ob_gates_judge(r, q->dev, &baseline, why, sizeof why)) {
    case OB_GATES_CLOSED: snprintf(q->out, q->cap, "all closed against %s (%s)", r->baseline.id, date); return false;
    case OB_GATES_OPEN: snprintf(q->out, q->cap, "against %s (%s) not closed: %s", r->baseline.id, date, why); break;
    case OB_GATES_STALE:
        snprintf(q->out, q->cap, "the report of %s against %s is stale, so auto does not use it: %s (`1bit gates` makes a new one)",
                 date, r->baseline.id, why);
        break;
    }
    return true;
}

bool ob_gates_describe(const ob_dev_info *dev, char *out, size_t cap)
{
    question q = {.dev = dev, .out = out, .cap = cap};
    ob_gates_each(describe_one, &q);
    return q.found;
}

static bool prefer_one(void *arg, const ob_gates_report *r)
{
    question *q = arg;
    ob_dev_info candidate;
    char usual[64], why[400];
    snprintf(usual, sizeof usual, "%s:%d", q->dev->kind, q->dev->index);
    if (strcmp(r->baseline.id, usual) || !strcmp(r->candidate.id, usual) || !probe(r->candidate.id, &candidate)) return true;
    if ((candidate.caps & OB_DEV_SOFT) || ob_gates_judge(r, &candidate, q->dev, why, sizeof why) != OB_GATES_CLOSED) return true;
    snprintf(q->out, q->cap, "%s", r->candidate.id);
    q->found = true;
    return false;
}

bool ob_gates_prefer(const ob_dev_info *usual, char *spec, size_t cap)
{
    question q = {.dev = usual, .out = spec, .cap = cap};
    ob_gates_each(prefer_one, &q);
    return q.found;
}
