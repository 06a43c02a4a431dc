/* cli/golden.h: models beside stored reference numbers (NAME.gguf and NAME.npz), run on a device and compared. */
#ifndef OB_CLI_GOLDEN_H
#define OB_CLI_GOLDEN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct ob_golden_result {
    const char *state; /* "ok", "WRONG", "not supported", "failed" */
    char arch[32], model[80], device[32], text[200];
    double max_diff, kld, argmax; /* argmax: share of positions with the same best token */
    double cosine;                /* of vectors, instead: the smallest */
    bool vectors;
    bool pictures;                /* the text has a picture, read by the model's tower */
    double atol;
    int32_t n;                    /* rows compared */
} ob_golden_result;

typedef void (*ob_golden_fn)(void *arg, const ob_golden_result *r);

/* fn for every model of the folder that has reference numbers, in the order of names, and each device. n_threads as
 * ob_engine_params. NOT_FOUND when there is none. */
OB_MUST_CHECK ob_status ob_golden_folder(const char *dir, const char *const *devices, int n_devices, int n_threads, ob_golden_fn fn,
                                         void *arg, ob_err *err);
/* One file; *found is false when no reference numbers lie beside it. */
OB_MUST_CHECK ob_status ob_golden_file(const char *path, const char *device, int n_threads, ob_golden_result *out, bool *found,
                                       ob_err *err);

/* log(sum of exp(x[0..n))), and in *best the index of the largest. n at least 1. */
double ob_log_sum_exp(const float *x, int32_t n, int32_t *best);

#endif
