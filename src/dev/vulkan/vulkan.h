/* dev/vulkan/vulkan.h: the Vulkan device's entries in the registry. */
#ifndef OB_DEV_VULKAN_VULKAN_H
#define OB_DEV_VULKAN_VULKAN_H

#include "dev/device.h"

/* Every Vulkan device of the machine, real ones first; a device of type CPU carries OB_DEV_SOFT. */
extern const ob_dev_api ob_dev_vulkan;
/* Only devices of type CPU, to be asked for by this name. */
extern const ob_dev_api ob_dev_lavapipe;

#endif
