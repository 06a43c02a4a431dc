/* gates/gates.h: may a device become the default here? What was measured about a candidate against a baseline.
 *
 * Owns: the report of `1bit gates` (its shape, forms and place), and the judgement whether it still holds for this
 * machine, driver and version. Knows devices by what they tell of themselves; runs nothing.
 *
 * A report is kept as JSON in $XDG_STATE_HOME/1bit/gates (default ~/.local/state), one for each machine and pair.
 * One thread at a time.
 */
#ifndef OB_GATES_GATES_H
#define OB_GATES_GATES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "dev/device.h"

typedef enum ob_gate_state {
    OB_GATE_CLOSED,     /* measured, and as it has to be */
    OB_GATE_OPEN,       /* measured, and not; or not in this version */
    OB_GATE_UNMEASURED, /* cannot be measured here: the text says why */
    OB_GATE_BESIDE,     /* of a row: told, but nothing depends on it (the baseline fails as well) */
} ob_gate_state;
const char *ob_gate_state_name(ob_gate_state s); /* "closed", "open", "not measurable here", "beside" */

/* Of the samples of one device. */
typedef struct ob_gate_speed {
    double median, min, max;
} ob_gate_speed;

typedef struct ob_gate_row {
    char name[96];  /* a model, an architecture */
    ob_gate_state state;
    char text[256]; /* one clause: numbers, or why */
    bool has_speed; /* the numbers below mean something: tokens per second */
    ob_gate_speed candidate, baseline;
    double ratio;   /* median of the rounds' candidate / baseline */
} ob_gate_row;

typedef struct ob_gate {
    char letter;    /* of RFC #213: 'a', 'b', 'c' */
    char id[24];    /* "decode" */
    char title[96]; /* "decode within 10 %" */
    char text[256]; /* what there is to say beside the rows */
    ob_gate_state state;
    ob_gate_row *rows; /* [n_rows] */
    int n_rows;
} ob_gate;

typedef struct ob_gates_device {
    char id[40]; /* "vulkan:0" */
    char kind[16], name[128], driver[128];
    bool soft;   /* an emulation */
} ob_gates_device;

enum { OB_GATES_MAX = 16, OB_GATES_MAX_ROWS = 1024 };

typedef struct ob_gates_report {
    char version[32];       /* of this program */
    char machine[128];      /* for people */
    char machine_id[20];    /* 16 hex digits */
    int64_t time;           /* Unix seconds */
    double seconds;         /* that it took */
    ob_gates_device candidate, baseline;
    ob_gate gates[OB_GATES_MAX];
    int n_gates;
} ob_gates_report;

/* ---- making one ---- */
/* With version, machine and time filled in. */
void ob_gates_init(ob_gates_report *r, const ob_dev_info *candidate, const ob_dev_info *baseline);
void ob_gates_deinit(ob_gates_report *r);
/* The next gate; its state is UNMEASURED until ob_gate_settle. */
ob_gate *ob_gates_add(ob_gates_report *r, char letter, const char *id, const char *title);
/* OB_E_LIMIT, OB_E_NO_MEMORY. *out is borrowed until the next row; its fields but the name are zero. */
OB_MUST_CHECK ob_status ob_gate_add_row(ob_gate *g, const char *name, ob_gate_row **out, ob_err *err);
/* From its rows: open when one is; closed when all that count are, and there are some. */
void ob_gate_settle(ob_gate *g);
/* Are all gates closed? */
bool ob_gates_closed(const ob_gates_report *r);

/* ---- forms ---- */
void ob_gates_write_text(const ob_gates_report *r, ob_buf *out);
void ob_gates_write_json(const ob_gates_report *r, ob_buf *out);
void ob_gates_write_html(const ob_gates_report *r, ob_buf *out); /* a page of its own: no scripts, nothing fetched */
/* What ob_gates_write_json wrote. Untrusted bytes. FORMAT says what is wrong; r must then not be used. */
OB_MUST_CHECK ob_status ob_gates_read_json(const char *text, size_t len, ob_gates_report *r, ob_err *err);

/* ---- keeping it ---- */
/* $XDG_STATE_HOME/1bit/gates/MACHINE-CANDIDATE-vs-BASELINE.json. */
OB_MUST_CHECK ob_status ob_gates_save(const ob_gates_report *r, ob_err *err);
/* fn for every report of this machine that can be read; false from fn ends it. r is borrowed for the call. */
void ob_gates_each(bool (*fn)(void *arg, const ob_gates_report *r), void *arg);

/* ---- judging it ---- */
typedef enum ob_gates_verdict { OB_GATES_CLOSED, OB_GATES_OPEN, OB_GATES_STALE } ob_gates_verdict;
/* For the devices as they are now. why (cap bytes): "open: decode, speculation", "its driver was X", ... */
ob_gates_verdict ob_gates_judge(const ob_gates_report *r, const ob_dev_info *candidate, const ob_dev_info *baseline, char *why,
                                size_t cap);
/* One clause on what reports say of a device as candidate: "closed against vulkan:0 (2026-11-29): auto takes it". False:
 * there is no report. */
bool ob_gates_describe(const ob_dev_info *dev, char *out, size_t cap);
/* The device that `auto` takes instead of `usual`, what it would take without reports: a candidate against that one with
 * all gates closed for this machine, driver and version. False: none. An ob_dev_prefer_fn (dev/device.h). */
bool ob_gates_prefer(const ob_dev_info *usual, char *spec, size_t cap);

#endif
