/* cli/progress.h: one line on the terminal that shows how far a long job is.
 *
 * Drawn on stderr only when that is a terminal; in a pipe or a file nothing is written. Main thread.
 */
#ifndef OB_CLI_PROGRESS_H
#define OB_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ob_progress {
    bool on;             /* stderr is a terminal and not silenced */
    bool drawn;          /* there is something to wipe */
    char label[64];
    int64_t start_ns, last_ns; /* start of the present stage; last redraw */
    uint64_t start_done;       /* units already done when the stage began (a resumed download) */
    double rate;               /* smoothed units per second */
    uint64_t rate_done;        /* and the point it was last updated at */
    int64_t rate_ns;
} ob_progress;

void ob_progress_init(ob_progress *p, bool quiet);
/* A new label starts a new stage and its clock. total 0: unknown. Bytes are shown as MB or GB. */
void ob_progress_bytes(ob_progress *p, const char *label, uint64_t done, uint64_t total);
/* The same for work without a size: only the percentage of `fraction`, from 0 to 1. */
void ob_progress_part(ob_progress *p, const char *label, double fraction);
/* Wipe the line, so that other text can follow. */
void ob_progress_end(ob_progress *p);

/* "98.4 MB", "1.23 GB" (decimal units, as download tools show them). */
void ob_format_bytes(char *out, int out_len, double n_bytes);
/* "4 s", "2 min 05 s", "1 h 04 min". */
void ob_format_seconds(char *out, int out_len, double s);

#endif
