/* Row-wise and attention kernels, level avx2. */
#include "dev/cpu/kernels.h"

#include <math.h>
#include <string.h>

#include "base/math.h"
#include "dev/cpu/x86/vec_avx2.h"

#define KERNELS ob_cpu_kernels_avx2
#include "dev/cpu/kern_tmpl.inc"
