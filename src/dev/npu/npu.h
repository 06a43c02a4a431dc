/* dev/npu/npu.h: the NPU's entries in the registry. */
#ifndef OB_DEV_NPU_NPU_H
#define OB_DEV_NPU_NPU_H

#include "dev/device.h"

/* AMD's XDNA2 NPU through the amdxdna driver: matrix products there, all else on the CPU device. */
extern const ob_dev_api ob_dev_npu;
/* The same over a software model of driver, firmware and array (npu_soft.h); to be asked for by this name.
 * npu-soft:NAME, or :NUMBER, is another driver or chip: see k_soft in npu.c. */
extern const ob_dev_api ob_dev_npu_soft;
/* The same arithmetic with no device at all: what the other two are compared with, and fall back to. */
extern const ob_dev_api ob_dev_npu_ref;

#endif
