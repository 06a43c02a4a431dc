/* dev/cpu/cpu.h: the CPU device's entry in the registry. */
#ifndef OB_DEV_CPU_CPU_H
#define OB_DEV_CPU_CPU_H

#include "dev/device.h"

extern const ob_dev_api ob_dev_cpu;

#endif
