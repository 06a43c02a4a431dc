/* The report: making, settling, its JSON. */
#include "gates/gates.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/math.h"
#include "gates/gates_int.h"

static const char *const k_states[] = {"closed", "open", "not measurable here", "beside"};

const char *ob_gate_state_name(ob_gate_state s) { return k_states[s]; }

/* ------------------------------------------------------------------ the machine */

static void copy(char *dst, size_t cap, const char *src) { snprintf(dst, cap, "%s", src); }

/* The processor's name, and a number that stays while the machine does. */
void ob_gates_machine(char *name, size_t cap, char id[20])
{
    char line[512], machine_id[64] = "";
    copy(name, cap, "unknown processor");
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (!colon || (strncmp(line, "model name", 10) && strncmp(line, "Model", 5))) continue;
        snprintf(name, cap, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (f) fclose(f);
    f = fopen("/etc/machine-id", "re");
    if (f && !fgets(machine_id, sizeof machine_id, f)) machine_id[0] = 0;
    if (f) fclose(f);
    snprintf(line, sizeof line, "%s|%s", machine_id, name);
    snprintf(id, 20, "%016llx", (unsigned long long)XXH3_64bits(line, strlen(line)));
}

/* ------------------------------------------------------------------ making */

static void take_device(ob_gates_device *d, const ob_dev_info *i)
{
    snprintf(d->id, sizeof d->id, "%s:%d", i->kind, i->index);
    copy(d->kind, sizeof d->kind, i->kind);
    copy(d->name, sizeof d->name, i->name);
    copy(d->driver, sizeof d->driver, i->driver);
    d->soft = i->caps & OB_DEV_SOFT;
}

void ob_gates_init(ob_gates_report *r, const ob_dev_info *candidate, const ob_dev_info *baseline)
{
    memset(r, 0, sizeof *r);
    copy(r->version, sizeof r->version, OB_VERSION);
    ob_gates_machine(r->machine, sizeof r->machine, r->machine_id);
    r->time = ob_unix_seconds();
    take_device(&r->candidate, candidate);
    take_device(&r->baseline, baseline);
}

void ob_gates_deinit(ob_gates_report *r)
{
    for (int i = 0; i < r->n_gates; i++) ob_free(r->gates[i].rows);
    r->n_gates = 0;
}

ob_gate *ob_gates_add(ob_gates_report *r, char letter, const char *id, const char *title)
{
    ob_gate *g = &r->gates[OB_MIN(r->n_gates, OB_GATES_MAX - 1)];
    r->n_gates = OB_MIN(r->n_gates + 1, (int)OB_GATES_MAX);
    *g = (ob_gate){.letter = letter, .state = OB_GATE_UNMEASURED};
    copy(g->id, sizeof g->id, id);
    copy(g->title, sizeof g->title, title);
    return g;
}

ob_status ob_gate_add_row(ob_gate *g, const char *name, ob_gate_row **out, ob_err *err)
{
    if (g->n_rows == OB_GATES_MAX_ROWS) return ob_err_set(err, OB_E_LIMIT, "more than %d rows of a gate", OB_GATES_MAX_ROWS);
    ob_gate_row *rows = ob_reallocarray(g->rows, (size_t)g->n_rows + 1, sizeof *rows);
    if (!rows) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a row of a gate");
    g->rows = rows;
    *out = &rows[g->n_rows++];
    memset(*out, 0, sizeof **out);
    copy((*out)->name, sizeof (*out)->name, name);
    return OB_OK;
}

void ob_gate_settle(ob_gate *g)
{
    int n[4] = {0};
    for (int i = 0; i < g->n_rows; i++) n[g->rows[i].state]++;
    if (n[OB_GATE_OPEN]) g->state = OB_GATE_OPEN;
    else if (n[OB_GATE_UNMEASURED] || !n[OB_GATE_CLOSED]) g->state = OB_GATE_UNMEASURED;
    else g->state = OB_GATE_CLOSED;
}

bool ob_gates_closed(const ob_gates_report *r)
{
    for (int i = 0; i < r->n_gates; i++)
        if (r->gates[i].state != OB_GATE_CLOSED) return false;
    return r->n_gates > 0;
}

/* ------------------------------------------------------------------ JSON */

static void add_str(ob_buf *o, const char *key, const char *value)
{
    ob_buf_addf(o, "\"%s\": ", key);
    ob_buf_add_json(o, value, strlen(value));
}

static void add_device(ob_buf *o, const char *key, const ob_gates_device *d)
{
    ob_buf_addf(o, "\"%s\": {", key);
    add_str(o, "id", d->id);
    ob_buf_adds(o, ", ");
    add_str(o, "kind", d->kind);
    ob_buf_adds(o, ", ");
    add_str(o, "name", d->name);
    ob_buf_adds(o, ", ");
    add_str(o, "driver", d->driver);
    ob_buf_addf(o, ", \"hardware\": %s}", d->soft ? "false" : "true");
}

static void add_speed(ob_buf *o, const char *key, const ob_gate_speed *s)
{
    ob_buf_addf(o, ", \"%s\": {\"median\": ", key);
    ob_buf_add_double(o, s->median);
    ob_buf_adds(o, ", \"min\": ");
    ob_buf_add_double(o, s->min);
    ob_buf_adds(o, ", \"max\": ");
    ob_buf_add_double(o, s->max);
    ob_buf_addc(o, '}');
}

static void add_row(ob_buf *o, const ob_gate_row *w)
{
    ob_buf_adds(o, "{");
    add_str(o, "name", w->name);
    ob_buf_adds(o, ", ");
    add_str(o, "state", k_states[w->state]);
    ob_buf_adds(o, ", ");
    add_str(o, "text", w->text);
    if (w->has_speed) {
        add_speed(o, "candidate_tok_per_s", &w->candidate);
        add_speed(o, "baseline_tok_per_s", &w->baseline);
        ob_buf_adds(o, ", \"ratio\": ");
        ob_buf_add_double(o, w->ratio);
    }
    ob_buf_addc(o, '}');
}

void ob_gates_write_json(const ob_gates_report *r, ob_buf *o)
{
    ob_buf_adds(o, "{");
    add_str(o, "version", r->version);
    ob_buf_adds(o, ", ");
    add_str(o, "machine", r->machine);
    ob_buf_adds(o, ", ");
    add_str(o, "machine_id", r->machine_id);
    ob_buf_addf(o, ", \"time\": %lld, \"seconds\": ", (long long)r->time);
    ob_buf_add_double(o, r->seconds);
    ob_buf_adds(o, ",\n ");
    add_device(o, "candidate", &r->candidate);
    ob_buf_adds(o, ",\n ");
    add_device(o, "baseline", &r->baseline);
    ob_buf_addf(o, ",\n \"closed\": %s, \"gates\": [", ob_gates_closed(r) ? "true" : "false");
    for (int i = 0; i < r->n_gates; i++) {
        const ob_gate *g = &r->gates[i];
        ob_buf_addf(o, "%s\n  {\"letter\": \"%c\", ", i ? "," : "", g->letter);
        add_str(o, "id", g->id);
        ob_buf_adds(o, ", ");
        add_str(o, "title", g->title);
        ob_buf_adds(o, ", ");
        add_str(o, "state", k_states[g->state]);
        ob_buf_adds(o, ", ");
        add_str(o, "text", g->text);
        ob_buf_adds(o, ", \"rows\": [");
        for (int k = 0; k < g->n_rows; k++) {
            ob_buf_adds(o, k ? ",\n    " : "\n    ");
            add_row(o, &g->rows[k]);
        }
        ob_buf_adds(o, "]}");
    }
    ob_buf_adds(o, "\n ]}\n");
}

static bool get_str(const json_t *o, const char *key, char *dst, size_t cap)
{
    const char *s = json_string_value(json_object_get(o, key));
    if (s) copy(dst, cap, s);
    return s != NULL;
}

static bool get_device(const json_t *o, const char *key, ob_gates_device *d)
{
    const json_t *x = json_object_get(o, key), *hardware = json_object_get(x, "hardware");
    d->soft = !json_is_true(hardware);
    return json_is_boolean(hardware) && get_str(x, "id", d->id, sizeof d->id) && get_str(x, "kind", d->kind, sizeof d->kind) &&
           get_str(x, "name", d->name, sizeof d->name) && get_str(x, "driver", d->driver, sizeof d->driver);
}

static bool get_state(const json_t *o, ob_gate_state *s)
{
    const char *text = json_string_value(json_object_get(o, "state"));
    for (int i = 0; text && i < 4; i++)
        if (!strcmp(text, k_states[i])) {
            *s = (ob_gate_state)i;
            return true;
        }
    return false;
}

static void get_speed(const json_t *o, const char *key, ob_gate_speed *s)
{
    const json_t *x = json_object_get(o, key);
    *s = (ob_gate_speed){.median = json_number_value(json_object_get(x, "median")),
                         .min = json_number_value(json_object_get(x, "min")),
                         .max = json_number_value(json_object_get(x, "max"))};
}

static ob_status read_gate(const json_t *x, ob_gates_report *r, ob_err *err)
{
    char letter[8], id[sizeof r->gates->id], title[sizeof r->gates->title];
    ob_gate_state state;
    const json_t *rows = json_object_get(x, "rows"), *y;
    size_t i;
    if (!get_str(x, "letter", letter, sizeof letter) || !get_str(x, "id", id, sizeof id) ||
        !get_str(x, "title", title, sizeof title) || !get_state(x, &state) || !json_is_array(rows) || r->n_gates == OB_GATES_MAX)
        return ob_err_set(err, OB_E_FORMAT, "gate %d of the report lacks something", r->n_gates + 1);
    ob_gate *g = ob_gates_add(r, letter[0], id, title);
    g->state = state;
    (void)get_str(x, "text", g->text, sizeof g->text);
    json_array_foreach(rows, i, y) {
        ob_gate_row *w;
        char name[sizeof w->name];
        if (!get_str(y, "name", name, sizeof name) || !get_state(y, &state))
            return ob_err_set(err, OB_E_FORMAT, "a row of gate %.20s lacks something", id);
        OB_TRY(ob_gate_add_row(g, name, &w, err));
        w->state = state;
        (void)get_str(y, "text", w->text, sizeof w->text);
        w->has_speed = json_is_number(json_object_get(y, "ratio"));
        if (!w->has_speed) continue;
        w->ratio = json_number_value(json_object_get(y, "ratio"));
        get_speed(y, "candidate_tok_per_s", &w->candidate);
        get_speed(y, "baseline_tok_per_s", &w->baseline);
    }
    return OB_OK;
}

ob_status ob_gates_read_json(const char *text, size_t len, ob_gates_report *r, ob_err *err)
{
    json_t *root = NULL;
    ob_status s = OB_OK;
    memset(r, 0, sizeof *r);
    OB_TRY(ob_json_load(text, len, "the report", &root, err));
    const json_t *gates = json_object_get(root, "gates"), *x;
    size_t i;
    if (!get_str(root, "version", r->version, sizeof r->version) || !get_str(root, "machine", r->machine, sizeof r->machine) ||
        !get_str(root, "machine_id", r->machine_id, sizeof r->machine_id) || !get_device(root, "candidate", &r->candidate) ||
        !get_device(root, "baseline", &r->baseline) || !json_is_array(gates)) {
        s = ob_err_set(err, OB_E_FORMAT, "this is no report of `1bit gates`");
        goto out;
    }
    r->time = (int64_t)json_integer_value(json_object_get(root, "time"));
    r->seconds = json_number_value(json_object_get(root, "seconds"));
    json_array_foreach(gates, i, x) OB_GOTO(read_gate(x, r, err));
out:
    json_decref(root);
    if (s != OB_OK) ob_gates_deinit(r);
    return s;
}

/* ------------------------------------------------------------------ text */

void ob_gates_date(int64_t time, char out[16])
{
    struct tm tm;
    const time_t t = (time_t)time;
    gmtime_r(&t, &tm);
    strftime(out, 16, "%Y-%m-%d", &tm);
}

void ob_gates_write_text(const ob_gates_report *r, ob_buf *o)
{
    char date[16];
    ob_gates_date(r->time, date);
    ob_buf_addf(o, "%s (%s%s)\nagainst %s (%s%s)\non %s, 1bit %s, %s, %.0f s\n", r->candidate.id, r->candidate.name,
                r->candidate.soft ? ", an emulation" : "", r->baseline.id, r->baseline.name,
                r->baseline.soft ? ", an emulation" : "", r->machine, r->version, date, r->seconds);
    for (int i = 0; i < r->n_gates; i++) {
        const ob_gate *g = &r->gates[i];
        ob_buf_addf(o, "\n(%c) %-46s %s%s%s\n", g->letter, g->title, k_states[g->state], g->text[0] ? ": " : "", g->text);
        for (int k = 0; k < g->n_rows; k++) {
            const ob_gate_row *w = &g->rows[k];
            ob_buf_addf(o, "    %-34s %-20s %s\n", w->name, k_states[w->state], w->text);
        }
    }
    ob_buf_addf(o, "\n%s\n", ob_gates_closed(r) ? "All gates are closed." : "Not all gates are closed: --device auto does not take "
                                                                            "the candidate.");
}
