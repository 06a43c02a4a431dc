/* Row-wise and attention kernels, level c. */
#include "dev/cpu/kernels.h"

#include <math.h>
#include <string.h>

#include "base/math.h"
#include "dev/cpu/vec_c.h"

#define KERNELS ob_cpu_kernels_c
#include "dev/cpu/kern_tmpl.inc"
