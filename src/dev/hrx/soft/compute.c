/* One loop over the lanes per vector operation. fma is rounded once; transcendental functions are exact to their last
 * bit here and within about one on the hardware. */
#include "dev/hrx/soft/vector.h"

#include <math.h>
#include <string.h>

#define EACH for (int l = 0; l < GFX_LANES; l++)
#define CASE(name, type, expr)                                                                                         \
    case OP_##name:                                                                                                    \
        EACH {                                                                                                         \
            const type x = (type)a[l], y = (type)b[l], z = (type)c[l];                                                  \
            (void)x, (void)y, (void)z;                                                                                 \
            r[l] = (uint32_t)(expr);                                                                                   \
        }                                                                                                              \
        return NULL;
#define UCASE(name, expr) CASE(name, uint32_t, expr)
#define ICASE(name, expr) CASE(name, int32_t, expr)
#define FCASE(name, expr)                                                                                              \
    case OP_##name:                                                                                                    \
        EACH {                                                                                                         \
            const float x = f32(a[l]), y = f32(b[l]), z = f32(c[l]);                                                    \
            (void)x, (void)y, (void)z;                                                                                 \
            r[l] = word(expr);                                                                                         \
        }                                                                                                              \
        return NULL;
/* From float to whole numbers. */
#define FICASE(name, expr)                                                                                             \
    case OP_##name:                                                                                                    \
        EACH {                                                                                                         \
            const float x = f32(a[l]);                                                                                 \
            r[l] = (uint32_t)(expr);                                                                                   \
        }                                                                                                              \
        return NULL;
#define HCASE(name, expr)                                                                                              \
    case OP_##name:                                                                                                    \
        EACH {                                                                                                         \
            const float x = gfx_f16_to_f32(a[l]), y = gfx_f16_to_f32(b[l]), z = gfx_f16_to_f32(c[l]);                    \
            (void)x, (void)y, (void)z;                                                                                 \
            r[l] = gfx_f32_to_f16((float)(expr));                                                                      \
        }                                                                                                              \
        return NULL;
#define QCASE(name, type, expr)                                                                                        \
    case OP_##name:                                                                                                    \
        EACH {                                                                                                         \
            const type x = (type)(a[l] | (uint64_t)io->y[0][l] << 32), y = (type)(b[l] | (uint64_t)io->y[1][l] << 32),   \
                       z = (type)(c[l] | (uint64_t)io->y[2][l] << 32);                                                  \
            (void)x, (void)y, (void)z;                                                                                 \
            const uint64_t q = (uint64_t)(expr);                                                                       \
            r[l] = (uint32_t)q;                                                                                        \
            io->high[l] = (uint32_t)(q >> 32);                                                                         \
        }                                                                                                              \
        return NULL;
#define DCASE(name, expr)                                                                                              \
    case OP_##name:                                                                                                    \
        EACH {                                                                                                         \
            const double x = f64(a[l], io->y[0][l]), y = f64(b[l], io->y[1][l]), z = f64(c[l], io->y[2][l]);             \
            (void)x, (void)y, (void)z;                                                                                 \
            put64(io, l, expr);                                                                                        \
        }                                                                                                              \
        return NULL;

static inline double f64(uint32_t low, uint32_t high)
{
    const uint64_t q = low | (uint64_t)high << 32;
    double d;
    memcpy(&d, &q, 8);
    return d;
}
static inline void put64(gfx_io *io, int l, double d)
{
    uint64_t q;
    memcpy(&q, &d, 8);
    io->r[l] = (uint32_t)q;
    io->high[l] = (uint32_t)(q >> 32);
}

/* Of a number and a NaN, the number. */
static inline float maxf(float x, float y) { return y != y || x > y ? x : y; }
static inline float minf(float x, float y) { return y != y || x < y ? x : y; }
static inline float med3f(float x, float y, float z) { return maxf(minf(x, y), minf(maxf(x, y), z)); }
static inline uint32_t maxu(uint32_t x, uint32_t y) { return x > y ? x : y; }
static inline uint32_t minu(uint32_t x, uint32_t y) { return x < y ? x : y; }
static inline int32_t maxi(int32_t x, int32_t y) { return x > y ? x : y; }
static inline int32_t mini(int32_t x, int32_t y) { return x < y ? x : y; }

static inline int32_t to_i32(double x) { return x != x ? 0 : x >= 2147483647.0 ? INT32_MAX : x <= -2147483648.0 ? INT32_MIN : (int32_t)x; }
static inline uint32_t to_u32(double x) { return x != x || x <= 0 ? 0 : x >= 4294967295.0 ? UINT32_MAX : (uint32_t)x; }
static inline int32_t clip(int32_t v, int32_t lo, int32_t hi) { return v < lo ? lo : v > hi ? hi : v; }

static uint32_t bit_reverse(uint32_t x)
{
    uint32_t r = 0;
    for (int k = 0; k < 32; k++) r |= (x >> k & 1) << (31 - k);
    return r;
}

static uint32_t bfe_u(uint32_t x, uint32_t at, uint32_t n)
{
    return x >> (at & 31) & ((1u << (n & 31)) - 1);
}
static uint32_t bfe_i(uint32_t x, uint32_t at, uint32_t n)
{
    const uint32_t sign = n & 31 ? 1u << ((n & 31) - 1) : 0;
    return (bfe_u(x, at, n) ^ sign) - sign;
}

/* Bytes of {x, y} by selector: 0 to 3 of y, 4 to 7 of x, 8 to 11 signs, 12 zeros, above ones. */
static uint32_t permute_bytes(uint32_t x, uint32_t y, uint32_t sel)
{
    const uint64_t both = (uint64_t)x << 32 | y;
    uint32_t r = 0;
    for (int j = 0; j < 4; j++) {
        const uint32_t s = sel >> (8 * j) & 255;
        uint32_t byte;
        if (s < 8) byte = (uint32_t)(both >> (8 * s)) & 255;
        else if (s < 12) byte = both >> (16 * (s - 8) + 15) & 1 ? 255 : 0;
        else byte = s == 12 ? 0 : 255;
        r |= byte << (8 * j);
    }
    return r;
}

static uint32_t sad_u8(uint32_t x, uint32_t y, uint32_t z)
{
    for (int j = 0; j < 32; j += 8) {
        const int d = (int)(x >> j & 255) - (int)(y >> j & 255);
        z += (uint32_t)(d < 0 ? -d : d);
    }
    return z;
}

/* Repairs a quotient: quotient, denominator, numerator. */
static float div_fixup(float q, float d, float n)
{
    const float sign = signbit(d) != signbit(n) ? -1.0f : 1.0f;
    if (isnan(d) || isnan(n) || (d == 0 && n == 0) || (isinf(d) && isinf(n))) return NAN;
    if (d == 0 || isinf(n)) return sign * INFINITY;
    if (n == 0 || isinf(d)) return sign * 0.0f;
    return copysignf(q, sign);
}

static uint32_t f16_toward_zero(float x)
{
    uint32_t h = gfx_f32_to_f16(x);
    if (!isnan(x) && fabsf(gfx_f16_to_f32(h)) > fabsf(x)) h--;
    return h;
}

static int frexp_exp(float x)
{
    int e = 0;
    if (isfinite(x)) (void)frexpf(x, &e);
    return e;
}
static float frexp_mant(float x)
{
    int e;
    return isfinite(x) ? frexpf(x, &e) : x;
}

static const double TWO_PI = 6.283185307179586;

/* ---- floats ---------------------------------------------------------------------------------- */

GFX_CLONES static const char *floats(const gfx_insn *i, gfx_io *io)
{
    const uint32_t *restrict a = io->x[0], *restrict b = io->x[1], *restrict c = io->x[2];
    uint32_t *restrict r = io->r;
    const uint32_t mask = io->mask;
    switch (i->op) {
    FCASE(v_add_f32, x + y)
    FCASE(v_sub_f32, x - y)
    FCASE(v_subrev_f32, y - x)
    FCASE(v_mul_f32, x * y)
    FCASE(v_mul_dx9_zero_f32, x == 0 || y == 0 ? 0.0f : x * y)
    FCASE(v_max_f32, maxf(x, y))
    FCASE(v_min_f32, minf(x, y))
    FCASE(v_max3_f32, maxf(maxf(x, y), z))
    FCASE(v_min3_f32, minf(minf(x, y), z))
    FCASE(v_maxmin_f32, minf(maxf(x, y), z))
    FCASE(v_minmax_f32, maxf(minf(x, y), z))
    FCASE(v_med3_f32, med3f(x, y, z))
    case OP_v_fmac_f32:
    case OP_v_fmaak_f32:
    case OP_v_fmamk_f32:
    FCASE(v_fma_f32, fmaf(x, y, z))
    FCASE(v_div_fmas_f32, mask >> l & 1 ? ldexpf(fmaf(x, y, z), 32) : fmaf(x, y, z))
    FCASE(v_rcp_iflag_f32, (float)(1 / (double)x))
    FCASE(v_rcp_f32, (float)(1 / (double)x))
    FCASE(v_rsq_f32, (float)(1 / sqrt((double)x)))
    FCASE(v_sqrt_f32, sqrtf(x))
    FCASE(v_exp_f32, exp2f(x))
    FCASE(v_log_f32, log2f(x))
    FCASE(v_sin_f32, (float)sin(TWO_PI * (double)x))
    FCASE(v_cos_f32, (float)cos(TWO_PI * (double)x))
    FCASE(v_fract_f32, x - floorf(x))
    FCASE(v_floor_f32, floorf(x))
    FCASE(v_ceil_f32, ceilf(x))
    FCASE(v_trunc_f32, truncf(x))
    FCASE(v_rndne_f32, rintf(x))
    FCASE(v_ldexp_f32, ldexpf(x, clip((int32_t)b[l], -1000, 1000)))
    FCASE(v_frexp_mant_f32, frexp_mant(x))
    FICASE(v_frexp_exp_i32_f32, frexp_exp(x))
    FCASE(v_div_fixup_f32, div_fixup(x, y, z))
    FCASE(v_cvt_f32_i32, (float)(int32_t)a[l])
    FCASE(v_cvt_f32_u32, (float)a[l])
    FCASE(v_cvt_f32_ubyte0, (float)(a[l] & 255))
    FCASE(v_cvt_f32_ubyte1, (float)(a[l] >> 8 & 255))
    FCASE(v_cvt_f32_ubyte2, (float)(a[l] >> 16 & 255))
    FCASE(v_cvt_f32_ubyte3, (float)(a[l] >> 24))
    FICASE(v_cvt_i32_f32, to_i32((double)x))
    FICASE(v_cvt_u32_f32, to_u32((double)x))
    FICASE(v_cvt_nearest_i32_f32, to_i32(floor((double)(x + 0.5f))))
    FICASE(v_cvt_floor_i32_f32, to_i32(floor((double)x)))
    FCASE(v_cvt_f32_f16, gfx_f16_to_f32(a[l]))
    FICASE(v_cvt_f16_f32, gfx_f32_to_f16(x))
    FCASE(v_cvt_f32_f64, (float)f64(a[l], io->y[0][l]))
    case OP_v_div_scale_f32: /* numbers far from the ends of the range need no scaling */
        memcpy(r, a, GFX_LANES * sizeof *r);
        io->mask = 0;
        return NULL;
    case OP_v_dot2acc_f32_f16:
        EACH r[l] = word((float)((double)gfx_f16_to_f32(a[l] & 0xffff) * (double)gfx_f16_to_f32(b[l] & 0xffff) +
                                 (double)gfx_f16_to_f32(a[l] >> 16) * (double)gfx_f16_to_f32(b[l] >> 16) + (double)f32(c[l])));
        return NULL;
    case OP_v_cvt_pk_rtz_f16_f32: EACH r[l] = f16_toward_zero(f32(a[l])) | f16_toward_zero(f32(b[l])) << 16; return NULL;
    case OP_v_cvt_pk_u8_f32:
        EACH {
            const uint32_t at = 8 * (b[l] & 3), v = (uint32_t)clip(to_i32(rint((double)f32(a[l]))), 0, 255);
            r[l] = (c[l] & ~(255u << at)) | v << at;
        }
        return NULL;
    default: return "an operation that is not implemented";
    }
}

/* ---- whole numbers --------------------------------------------------------------------------- */

/* Sums with a carry; carry in where `with`. */
static const char *carries(gfx_io *io, int sign_x, int sign_y, bool with)
{
    uint32_t out = 0;
    EACH {
        const int64_t x = io->x[0][l], y = io->x[1][l], c = with ? (int64_t)(io->mask >> l & 1) : 0;
        const int64_t t = sign_x * x + sign_y * y + (sign_x < 0 || sign_y < 0 ? -c : c);
        io->r[l] = (uint32_t)t;
        out |= (uint32_t)(t < 0 || t > UINT32_MAX) << l;
    }
    io->mask = out;
    return NULL;
}

static const char *mad64(gfx_io *io, bool is_signed)
{
    uint32_t out = 0;
    EACH {
        const uint64_t z = io->x[2][l] | (uint64_t)io->y[2][l] << 32;
        const uint64_t p = is_signed ? (uint64_t)((int64_t)(int32_t)io->x[0][l] * (int32_t)io->x[1][l]) : (uint64_t)io->x[0][l] * io->x[1][l];
        const uint64_t q = p + z;
        out |= (uint32_t)(q < p) << l;
        io->r[l] = (uint32_t)q;
        io->high[l] = (uint32_t)(q >> 32);
    }
    io->mask = out;
    return NULL;
}

GFX_CLONES static const char *wholes(const gfx_insn *i, gfx_io *io)
{
    const uint32_t *restrict a = io->x[0], *restrict b = io->x[1], *restrict c = io->x[2];
    uint32_t *restrict r = io->r;
    switch (i->op) {
    UCASE(v_mov_b32, x)
    UCASE(v_not_b32, ~x)
    UCASE(v_bfrev_b32, bit_reverse(x))
    UCASE(v_clz_i32_u32, x ? (uint32_t)__builtin_clz(x) : ~0u)
    UCASE(v_ctz_i32_b32, x ? (uint32_t)__builtin_ctz(x) : ~0u)
    UCASE(v_add_nc_i32, x + y)
    UCASE(v_sub_nc_i32, x - y)
    UCASE(v_add_nc_u32, x + y)
    UCASE(v_sub_nc_u32, x - y)
    UCASE(v_subrev_nc_u32, y - x)
    UCASE(v_lshlrev_b32, y << (x & 31))
    UCASE(v_lshrrev_b32, y >> (x & 31))
    ICASE(v_ashrrev_i32, y >> (x & 31))
    UCASE(v_and_b32, x & y)
    UCASE(v_or_b32, x | y)
    UCASE(v_xor_b32, x ^ y)
    UCASE(v_xnor_b32, ~(x ^ y))
    UCASE(v_lshl_add_u32, (x << (y & 31)) + z)
    UCASE(v_add_lshl_u32, (x + y) << (z & 31))
    UCASE(v_lshl_or_b32, x << (y & 31) | z)
    UCASE(v_and_or_b32, (x & y) | z)
    UCASE(v_or3_b32, x | y | z)
    UCASE(v_xor3_b32, x ^ y ^ z)
    UCASE(v_xad_u32, (x ^ y) + z)
    UCASE(v_add3_u32, x + y + z)
    UCASE(v_bfi_b32, (x & y) | (~x & z))
    UCASE(v_bfe_u32, bfe_u(x, y, z))
    UCASE(v_bfe_i32, bfe_i(x, y, z))
    UCASE(v_bfm_b32, ((1u << (x & 31)) - 1) << (y & 31))
    UCASE(v_alignbit_b32, ((uint64_t)x << 32 | y) >> (z & 31))
    UCASE(v_alignbyte_b32, ((uint64_t)x << 32 | y) >> (8 * (z & 3)))
    UCASE(v_perm_b32, permute_bytes(x, y, z))
    UCASE(v_mul_lo_u32, x * y)
    UCASE(v_mul_hi_u32, (uint64_t)x * y >> 32)
    ICASE(v_mul_hi_i32, (int64_t)x * y >> 32)
    UCASE(v_mul_u32_u24, (x & 0xffffff) * (y & 0xffffff))
    ICASE(v_mul_i32_i24, (uint32_t)((int32_t)((uint32_t)x << 8) >> 8) * (uint32_t)((int32_t)((uint32_t)y << 8) >> 8))
    UCASE(v_mad_u32_u24, (x & 0xffffff) * (y & 0xffffff) + z)
    ICASE(v_mad_i32_i24, (uint32_t)((int32_t)((uint32_t)x << 8) >> 8) * (uint32_t)((int32_t)((uint32_t)y << 8) >> 8) + (uint32_t)z)
    UCASE(v_min_u32, minu(x, y))
    UCASE(v_max_u32, maxu(x, y))
    ICASE(v_min_i32, mini(x, y))
    ICASE(v_max_i32, maxi(x, y))
    UCASE(v_min3_u32, minu(minu(x, y), z))
    UCASE(v_max3_u32, maxu(maxu(x, y), z))
    ICASE(v_min3_i32, mini(mini(x, y), z))
    ICASE(v_max3_i32, maxi(maxi(x, y), z))
    UCASE(v_maxmin_u32, minu(maxu(x, y), z))
    UCASE(v_minmax_u32, maxu(minu(x, y), z))
    ICASE(v_maxmin_i32, mini(maxi(x, y), z))
    ICASE(v_minmax_i32, maxi(mini(x, y), z))
    ICASE(v_med3_i32, maxi(mini(x, y), mini(maxi(x, y), z)))
    UCASE(v_med3_u32, maxu(minu(x, y), minu(maxu(x, y), z)))
    UCASE(v_bcnt_u32_b32, (uint32_t)__builtin_popcount(x) + y)
    UCASE(v_mbcnt_lo_u32_b32, (uint32_t)__builtin_popcount(x & ((1u << l) - 1)) + y)
    UCASE(v_mbcnt_hi_u32_b32, y)
    UCASE(v_sad_u8, sad_u8(x, y, z))
    UCASE(v_cndmask_b32, io->mask >> l & 1 ? y : x)
    UCASE(v_cvt_i32_i16, (uint32_t)(int16_t)x)
    UCASE(v_cvt_u32_u16, x & 0xffff)
    UCASE(v_pack_b32_f16, (x & 0xffff) | y << 16)
    UCASE(v_cvt_pk_i16_i32, ((uint32_t)clip((int32_t)x, -32768, 32767) & 0xffff) | (uint32_t)clip((int32_t)y, -32768, 32767) << 16)
    UCASE(v_cvt_pk_u16_u32, minu(x, 65535) | minu(y, 65535) << 16)
    QCASE(v_lshlrev_b64, uint64_t, y << (a[l] & 63))
    QCASE(v_lshrrev_b64, uint64_t, y >> (a[l] & 63))
    QCASE(v_ashrrev_i64, int64_t, y >> (a[l] & 63))
    case OP_v_add_co_u32: return carries(io, 1, 1, false);
    case OP_v_sub_co_u32: return carries(io, 1, -1, false);
    case OP_v_subrev_co_u32: return carries(io, -1, 1, false);
    case OP_v_add_co_ci_u32: return carries(io, 1, 1, true);
    case OP_v_sub_co_ci_u32: return carries(io, 1, -1, true);
    case OP_v_subrev_co_ci_u32: return carries(io, -1, 1, true);
    case OP_v_mad_u64_u32: return mad64(io, false);
    case OP_v_mad_i64_i32: return mad64(io, true);
    default: return floats(i, io);
    }
}

/* ---- f16, 16-bit and f64 --------------------------------------------------------------------- */

static const char *halves_and_doubles(const gfx_insn *i, gfx_io *io)
{
    const uint32_t *restrict a = io->x[0], *restrict b = io->x[1], *restrict c = io->x[2];
    uint32_t *restrict r = io->r;
    switch (i->op) {
    HCASE(v_add_f16, x + y)
    HCASE(v_sub_f16, x - y)
    HCASE(v_subrev_f16, y - x)
    HCASE(v_mul_f16, x * y)
    HCASE(v_max_f16, maxf(x, y))
    HCASE(v_min_f16, minf(x, y))
    HCASE(v_max3_f16, maxf(maxf(x, y), z))
    HCASE(v_min3_f16, minf(minf(x, y), z))
    case OP_v_fmac_f16:
    HCASE(v_fma_f16, (double)x * (double)y + (double)z)
    HCASE(v_rcp_f16, 1 / x)
    HCASE(v_sqrt_f16, sqrtf(x))
    HCASE(v_rsq_f16, 1 / sqrtf(x))
    HCASE(v_exp_f16, exp2f(x))
    HCASE(v_log_f16, log2f(x))
    HCASE(v_rndne_f16, rintf(x))
    HCASE(v_floor_f16, floorf(x))
    HCASE(v_ceil_f16, ceilf(x))
    HCASE(v_trunc_f16, truncf(x))
    HCASE(v_cvt_f16_u16, (float)(a[l] & 0xffff))
    HCASE(v_cvt_f16_i16, (float)(int16_t)a[l])
    UCASE(v_cvt_i16_f16, (uint32_t)clip(to_i32((double)gfx_f16_to_f32(x)), -32768, 32767) & 0xffff)
    UCASE(v_cvt_u16_f16, clip(to_i32((double)gfx_f16_to_f32(x)), 0, 65535))
    UCASE(v_not_b16, ~x & 0xffff)
    UCASE(v_add_nc_u16, (x + y) & 0xffff)
    UCASE(v_sub_nc_u16, (x - y) & 0xffff)
    UCASE(v_add_nc_i16, (x + y) & 0xffff)
    UCASE(v_sub_nc_i16, (x - y) & 0xffff)
    UCASE(v_mul_lo_u16, (x * y) & 0xffff)
    UCASE(v_mad_u16, (x * y + z) & 0xffff)
    UCASE(v_and_b16, x & y)
    UCASE(v_or_b16, x | y)
    UCASE(v_xor_b16, x ^ y)
    UCASE(v_max_u16, maxu(x, y))
    UCASE(v_min_u16, minu(x, y))
    UCASE(v_min_i16, (uint32_t)mini((int16_t)x, (int16_t)y) & 0xffff)
    UCASE(v_max_i16, (uint32_t)maxi((int16_t)x, (int16_t)y) & 0xffff)
    UCASE(v_lshlrev_b16, (y << (x & 15)) & 0xffff)
    UCASE(v_lshrrev_b16, y >> (x & 15))
    UCASE(v_ashrrev_i16, (uint32_t)((int16_t)y >> (x & 15)) & 0xffff)
    UCASE(v_cndmask_b16, io->mask >> l & 1 ? y : x)
    DCASE(v_cvt_f64_f32, (double)f32(a[l]))
    DCASE(v_cvt_f64_i32, (double)(int32_t)a[l])
    DCASE(v_cvt_f64_u32, (double)a[l])
    DCASE(v_add_f64, x + y)
    DCASE(v_mul_f64, x * y)
    DCASE(v_fma_f64, fma(x, y, z))
    DCASE(v_max_f64, fmax(x, y))
    DCASE(v_min_f64, fmin(x, y))
    DCASE(v_rndne_f64, rint(x))
    DCASE(v_trunc_f64, trunc(x))
    DCASE(v_ldexp_f64, ldexp(x, clip((int32_t)b[l], -3000, 3000)))
    case OP_v_cvt_i32_f64: EACH r[l] = (uint32_t)to_i32(f64(a[l], io->y[0][l])); return NULL;
    case OP_v_cvt_u32_f64: EACH r[l] = to_u32(f64(a[l], io->y[0][l])); return NULL;
    default: return wholes(i, io);
    }
}

const char *gfx_compute(const gfx_insn *i, gfx_io *io)
{
    const char t = gfx_ops[i->op].operands[0], s = (char)i->src[0].type;
    return t == 'f' && s == 'f' ? floats(i, io) : t == 'u' && s == 'u' ? wholes(i, io) : halves_and_doubles(i, io);
}
