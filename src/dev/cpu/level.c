/* Which instruction sets this CPU and its operating system offer, and OB_CPU. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "dev/cpu/linear.h"

static const char *const names[] = {[OB_CPU_REF] = "ref", [OB_CPU_C] = "c", [OB_CPU_NEON] = "neon",
                                    [OB_CPU_AVX2] = "avx2", [OB_CPU_AVX512] = "avx512"};

const char *ob_cpu_level_name(ob_cpu_level l) { return names[l]; }

#if defined(__x86_64__)
/* State components that the system saves: XCR0. Only after CPUID said OSXSAVE. */
static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool all_set(uint64_t v, uint64_t bits) { return (v & bits) == bits; }

static bool has_level(ob_cpu_level l)
{
    enum { XCR_AVX = 0x6, XCR_AVX512 = 0xe6 };
    const uint64_t ecx1 = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29; /* FMA, OSXSAVE, AVX, F16C */
    const uint64_t avx2 = 1u << 5 | 1u << 8;                        /* AVX2, BMI2 */
    const uint64_t avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    const uint64_t ecx7 = 1u << 1 | 1u << 11;                       /* VBMI, VNNI */
    uint32_t a, b, c, d;
    if (l == OB_CPU_REF || l == OB_CPU_C) return true;
    if (l == OB_CPU_NEON || !__get_cpuid(1, &a, &b, &c, &d) || !all_set(c, ecx1)) return false;
    const uint64_t state = xcr0();
    if (!all_set(state, XCR_AVX) || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !all_set(b, avx2))
        return false;
    if (l == OB_CPU_AVX2) return true;
    return all_set(state, XCR_AVX512) && all_set(b, avx512) && all_set(c, ecx7);
}
#else
/* Vector kernels for other machines are not written yet: the portable ones serve them. */
static bool has_level(ob_cpu_level l) { return l == OB_CPU_REF || l == OB_CPU_C; }
#endif

ob_status ob_cpu_level_detect(ob_cpu_level *out, ob_err *err)
{
    const char *want = getenv("OB_CPU");
    char text[64] = "";
    *out = OB_CPU_C;
    for (int l = OB_CPU_REF; l <= OB_CPU_AVX512; l++) {
        if (!has_level((ob_cpu_level)l)) continue;
        *out = (ob_cpu_level)l;
        strcat(strcat(text, text[0] ? ", " : ""), names[l]);
    }
    if (!want || !want[0] || !strcasecmp(want, "auto")) return OB_OK;
    for (int l = OB_CPU_REF; l <= OB_CPU_AVX512; l++) {
        if (strcasecmp(want, names[l]) != 0 || !has_level((ob_cpu_level)l)) continue;
        *out = (ob_cpu_level)l;
        return OB_OK;
    }
    return ob_err_set(err, OB_E_INVALID, "OB_CPU=%s is not a level of this CPU; it has: %s", want, text);
}
