/* dev/npu/npu_open.h: an NPU that is ready to multiply: device, context, kernels; real or in software.
 *
 * Owns: what belongs together when one is opened, and how it is described. Nothing of models.
 */
#ifndef OB_DEV_NPU_NPU_OPEN_H
#define OB_DEV_NPU_NPU_OPEN_H

#include "dev/device.h"
#include "dev/npu/npu_dev.h"
#include "dev/npu/npu_gemm.h"

typedef struct ob_npu_open ob_npu_open;

int ob_npu_open_count(bool soft);
/* Name, driver, caps, availability and reason; the rest is left. */
void ob_npu_open_probe(bool soft, int index, ob_dev_info *out);
/* The number of a software NPU by its name, -1: there is none. */
int ob_npu_open_soft_find(const char *name);

OB_MUST_CHECK ob_status ob_npu_open_new(bool soft, int index, ob_npu_open **out, ob_err *err);
void ob_npu_open_close(ob_npu_open *o); /* NULL is fine */
ob_npu_dev *ob_npu_open_dev(const ob_npu_open *o);
ob_npu_gemm *ob_npu_open_gemm(const ob_npu_open *o);
void ob_npu_open_describe(const ob_npu_open *o, ob_dev_info *out);

#endif
