/* dev/hrx/hrx.h: the HRX device's entries in the registry. */
#ifndef OB_DEV_HRX_HRX_H
#define OB_DEV_HRX_HRX_H

#include "dev/device.h"

/* AMD GPUs through libhrx.so.0, which is opened at run time (OB_HRX_LIBRARY: another file). */
extern const ob_dev_api ob_dev_hrx;
/* The same over libhrx-soft, an interpreter of the machine code; to be asked for by this name. */
extern const ob_dev_api ob_dev_hrx_soft;

#endif
