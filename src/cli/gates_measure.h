/* cli/gates_measure.h: the measurements of `1bit gates`; each adds its gate to the report. */
#ifndef OB_CLI_GATES_MEASURE_H
#define OB_CLI_GATES_MEASURE_H

#include "gates/gates.h"

typedef struct ob_gates_model {
    char name[96];
    char *path; /* NULL: it is not here */
} ob_gates_model;

typedef struct ob_gates_run {
    ob_gates_report *report;
    const char *candidate, *baseline; /* as ob_dev_open takes them */
    ob_gates_model *models;           /* [n_models] */
    int n_models;
    const char *golden;               /* folder of reference numbers; NULL: none is here */
    int n_rounds, n_gen, n_threads;
    int n_records;                    /* lines of the long prompt; 0: it is left out */
    bool quiet;
} ob_gates_run;

/* Errors are those of the measuring itself (memory); a device that fails is a row that says so. */
OB_MUST_CHECK ob_status ob_gates_measure_decode(const ob_gates_run *g, ob_err *err);
/* The architectures, and those that read pictures. */
OB_MUST_CHECK ob_status ob_gates_measure_golden(const ob_gates_run *g, ob_err *err);
OB_MUST_CHECK ob_status ob_gates_measure_files(const ob_gates_run *g, ob_err *err);
OB_MUST_CHECK ob_status ob_gates_measure_needle(const ob_gates_run *g, ob_err *err);
OB_MUST_CHECK ob_status ob_gates_measure_speculation(const ob_gates_run *g, ob_err *err);
OB_MUST_CHECK ob_status ob_gates_measure_batch(const ob_gates_run *g, ob_err *err);

#endif
