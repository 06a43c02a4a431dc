/* Is there a software driver of Vulkan? Says so where there is none: the caller skips. */
#ifndef HAS_DRIVER_H
#define HAS_DRIVER_H

#include "dev/device.h"
#include "test.h"

static inline bool has_driver(void)
{
    ob_dev *d;
    ob_err err;
    if (ob_dev_open("lavapipe", NULL, &d, &err) != OB_OK) {
        print_message("skipped: no software driver of Vulkan: %s\n", err.text);
        return false;
    }
    ob_dev_close(d);
    return true;
}

#endif
