/* dev/npu/npu_selftest.h: does an NPU do what we think, step by step: identity, a command that does nothing, a copy,
 * products.
 *
 * Owns: the ladder of checks, from what needs least to what needs all, and on hardware the figures: latency, bandwidth,
 * rates. A software model is checked for correctness and gives no figure. Stops at the first step that fails, since what
 * follows would fail for the same reason.
 */
#ifndef OB_DEV_NPU_NPU_SELFTEST_H
#define OB_DEV_NPU_NPU_SELFTEST_H

#include "dev/npu/npu_dev.h"

enum { OB_NPU_SELFTEST_MAX = 32 };

typedef struct ob_npu_selftest_step {
    char name[48];   /* "gemm 128 x 576 x 1536" */
    bool ok;
    char text[320];  /* what was found; the error where it is not ok */
    double ms;       /* median of several; these four: hardware only, 0: not measured */
    double gb_s;     /* memory moved */
    double tmac_s;   /* multiplications with additions */
    double tok_s;    /* of a model's products alone: an upper bound for that model */
} ob_npu_selftest_step;

typedef struct ob_npu_selftest {
    ob_npu_id id;
    bool hardware, ok;
    char kernels[600]; /* folder of the kernel set and its toolchain; "" for a software model */
    bool validated;    /* the set says that somebody ran it on this kind of NPU */
    ob_npu_selftest_step steps[OB_NPU_SELFTEST_MAX];
    int n_steps;
} ob_npu_selftest;

/* Never fails: see `ok` and the last step. */
void ob_npu_selftest_run(ob_npu_os *os, int index, ob_npu_selftest *out);

#endif
