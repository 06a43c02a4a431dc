#include "dev/cpu/kernels.h"

const ob_cpu_kernels *ob_cpu_kernels_get(ob_cpu_level level)
{
#if defined(__x86_64__)
    if (level >= OB_CPU_AVX512) return &ob_cpu_kernels_avx512;
    if (level >= OB_CPU_AVX2) return &ob_cpu_kernels_avx2;
#endif
    (void)level;
    return &ob_cpu_kernels_c;
}
