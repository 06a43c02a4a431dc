/* Vector compares, pairs of 16-bit numbers, mixed fma, dot products of small whole numbers. */
#include "dev/hrx/soft/vector.h"

#include <math.h>
#include <string.h>

#define EACH for (int l = 0; l < GFX_LANES; l++)

static inline double f64(const gfx_io *io, int n, int l)
{
    const uint64_t q = io->x[n][l] | (uint64_t)io->y[n][l] << 32;
    double d;
    memcpy(&d, &q, 8);
    return d;
}
#define WIDE(type, n) ((type)(io->x[n][l] | (uint64_t)io->y[n][l] << 32))

/* ---- compares -------------------------------------------------------------------------------- */

#define BOTH(cond, type) case OP_v_cmp_##cond##_##type: case OP_v_cmpx_##cond##_##type
#define COMPARE(cond, type, expr, X, Y)                                                                                \
    BOTH(cond, type):                                                                                                  \
        EACH {                                                                                                         \
            const __typeof__(X) x = (X), y = (Y);                                                                      \
            (void)x, (void)y;                                                                                          \
            m |= (uint32_t)(expr) << l;                                                                                \
        }                                                                                                              \
        break;
#define ORDERED(type, X, Y)                                                                                            \
    COMPARE(lt, type, x < y, X, Y) COMPARE(eq, type, x == y, X, Y) COMPARE(le, type, x <= y, X, Y)                     \
    COMPARE(gt, type, x > y, X, Y) COMPARE(ge, type, x >= y, X, Y)
#define WHOLE(type, X, Y) ORDERED(type, X, Y) COMPARE(ne, type, x != y, X, Y)
#define ALWAYS(type, X, Y) COMPARE(f, type, 0, X, Y) COMPARE(t, type, 1, X, Y)
#define REAL(type, X, Y)                                                                                               \
    ORDERED(type, X, Y) ALWAYS(type, X, Y) COMPARE(lg, type, x < y || x > y, X, Y)                                     \
    COMPARE(o, type, x == x && y == y, X, Y) COMPARE(u, type, x != x || y != y, X, Y)                                  \
    COMPARE(nge, type, !(x >= y), X, Y) COMPARE(nlg, type, !(x < y || x > y), X, Y) COMPARE(ngt, type, !(x > y), X, Y) \
    COMPARE(nle, type, !(x <= y), X, Y) COMPARE(neq, type, x != y, X, Y) COMPARE(nlt, type, !(x < y), X, Y)

/* Bit of the class a float is in: signalling and quiet NaN, -inf, -normal, -denormal, -0, +0, +denormal, ... */
static uint32_t class_of(uint32_t w)
{
    const uint32_t exp = w >> 23 & 255, man = w & 0x7fffff;
    if (exp == 255 && man) return man & 0x400000 ? 2 : 1;
    const int kind = exp == 255 ? 0 : exp ? 1 : man ? 2 : 3; /* from the outside in */
    return w >> 31 ? 4u << kind : 512u >> kind;
}

GFX_CLONES static const char *compare32(const gfx_insn *i, gfx_io *io)
{
    uint32_t m = 0;
    switch (i->op) {
    REAL(f32, f32(io->x[0][l]), f32(io->x[1][l]))
    WHOLE(u32, io->x[0][l], io->x[1][l])
    WHOLE(i32, (int32_t)io->x[0][l], (int32_t)io->x[1][l])
    ALWAYS(u32, io->x[0][l], io->x[1][l])
    ALWAYS(i32, io->x[0][l], io->x[1][l])
    case OP_v_cmp_class_f32:
    case OP_v_cmpx_class_f32:
        EACH m |= (uint32_t)((class_of(io->x[0][l]) & io->x[1][l]) != 0) << l;
        break;
    default: return "a compare that is not implemented";
    }
    io->mask = m;
    return NULL;
}

const char *gfx_compare(const gfx_insn *i, gfx_io *io)
{
    uint32_t m = 0;
    switch (i->op) {
    REAL(f16, gfx_f16_to_f32(io->x[0][l]), gfx_f16_to_f32(io->x[1][l]))
    WHOLE(u16, (uint16_t)io->x[0][l], (uint16_t)io->x[1][l])
    WHOLE(i16, (int16_t)io->x[0][l], (int16_t)io->x[1][l])
    WHOLE(u64, WIDE(uint64_t, 0), WIDE(uint64_t, 1))
    WHOLE(i64, WIDE(int64_t, 0), WIDE(int64_t, 1))
    ALWAYS(u64, WIDE(uint64_t, 0), WIDE(uint64_t, 1))
    ALWAYS(i64, WIDE(int64_t, 0), WIDE(int64_t, 1))
    REAL(f64, f64(io, 0, l), f64(io, 1, l))
    default: return compare32(i, io);
    }
    io->mask = m;
    return NULL;
}

/* ---- pairs of 16 bits ------------------------------------------------------------------------ */

static float max_number(float x, float y) { return y != y || x > y ? x : y; }
static float min_number(float x, float y) { return y != y || x < y ? x : y; }

static bool pair_float(uint16_t op, float x, float y, float z, uint32_t *r)
{
    double v;
    switch (op) {
    case OP_v_pk_add_f16: v = (double)(x + y); break;
    case OP_v_pk_mul_f16: v = (double)(x * y); break;
    case OP_v_pk_fma_f16: v = (double)x * (double)y + (double)z; break;
    case OP_v_pk_max_f16: v = (double)max_number(x, y); break;
    case OP_v_pk_min_f16: v = (double)min_number(x, y); break;
    default: return false;
    }
    *r = gfx_f32_to_f16((float)v);
    return true;
}

static bool pair_whole(uint16_t op, uint32_t x, uint32_t y, uint32_t z, uint32_t *r)
{
    const int16_t sx = (int16_t)x, sy = (int16_t)y;
    switch (op) {
    case OP_v_pk_add_u16: case OP_v_pk_add_i16: *r = x + y; break;
    case OP_v_pk_sub_u16: case OP_v_pk_sub_i16: *r = x - y; break;
    case OP_v_pk_mul_lo_u16: *r = x * y; break;
    case OP_v_pk_mad_u16: case OP_v_pk_mad_i16: *r = x * y + z; break;
    case OP_v_pk_max_u16: *r = x > y ? x : y; break;
    case OP_v_pk_min_u16: *r = x < y ? x : y; break;
    case OP_v_pk_max_i16: *r = sx > sy ? x : y; break;
    case OP_v_pk_min_i16: *r = sx < sy ? x : y; break;
    case OP_v_pk_lshlrev_b16: *r = y << (x & 15); break;
    case OP_v_pk_lshrrev_b16: *r = y >> (x & 15); break;
    case OP_v_pk_ashrrev_i16: *r = (uint32_t)(sy >> (x & 15)); break;
    default: return false;
    }
    *r &= 0xffff;
    return true;
}

static const char *pairs(const gfx_insn *i, gfx_io *io)
{
    const bool real = strstr(gfx_ops[i->op].name, "_f16") != NULL;
    if (i->clamp) return "a packed operation with clamp";
    EACH {
        uint32_t r[2];
        for (int part = 0; part < 2; part++) {
            const uint32_t sel = part ? i->op_sel_hi : i->op_sel, neg = part ? i->neg_hi : i->neg_lo;
            uint32_t v[3];
            for (int n = 0; n < 3; n++) {
                v[n] = io->x[n][l] >> (sel >> n & 1 ? 16 : 0) & 0xffff;
                if (real && neg >> n & 1) v[n] ^= 0x8000;
            }
            const bool ok = real ? pair_float(i->op, gfx_f16_to_f32(v[0]), gfx_f16_to_f32(v[1]), gfx_f16_to_f32(v[2]), &r[part])
                                 : pair_whole(i->op, v[0], v[1], v[2], &r[part]);
            if (!ok) return "a packed operation that is not implemented";
        }
        io->r[l] = r[0] | r[1] << 16;
    }
    return NULL;
}

/* fma over sources of which some are halves: op_sel_hi says which, op_sel which half, neg_lo and neg_hi sign and abs. */
static const char *mixed(const gfx_insn *i, gfx_io *io)
{
    EACH {
        float v[3];
        for (int n = 0; n < 3; n++) {
            const uint32_t x = io->x[n][l];
            v[n] = i->op_sel_hi >> n & 1 ? gfx_f16_to_f32(x >> (i->op_sel >> n & 1 ? 16 : 0) & 0xffff) : f32(x);
            if (i->neg_hi >> n & 1) v[n] = fabsf(v[n]);
            if (i->neg_lo >> n & 1) v[n] = -v[n];
        }
        const float r = fmaf(v[0], v[1], v[2]);
        io->r[l] = i->op == OP_v_fma_mix_f32 ? word(r) : gfx_f32_to_f16(r);
    }
    return NULL;
}

/* ---- dot products ---------------------------------------------------------------------------- */

static int64_t field(uint32_t w, int k, int bits, bool sign)
{
    const int64_t v = w >> (k * bits) & ((1u << bits) - 1);
    return sign && v >> (bits - 1) ? v - (INT64_C(1) << bits) : v;
}

static const char *dot(const gfx_insn *i, gfx_io *io)
{
    const bool whole = i->op == OP_v_dot4_i32_iu8 || i->op == OP_v_dot8_i32_iu4; /* signs by neg_lo */
    const int bits = i->op == OP_v_dot4_i32_iu8 || i->op == OP_v_dot4_u32_u8 ? 8 : 4;
    if (i->op == OP_v_dot2_f32_f16 || i->op == OP_v_dot2_f32_bf16) {
        EACH {
            double s = (double)f32(io->x[2][l]);
            for (int k = 0; k < 2; k++) {
                const uint32_t x = io->x[0][l] >> (16 * k) & 0xffff, y = io->x[1][l] >> (16 * k) & 0xffff;
                s += i->op == OP_v_dot2_f32_f16 ? (double)gfx_f16_to_f32(x) * (double)gfx_f16_to_f32(y)
                                                : (double)f32(x << 16) * (double)f32(y << 16);
            }
            io->r[l] = word((float)s);
        }
        return NULL;
    }
    EACH {
        int64_t s = whole ? (int32_t)io->x[2][l] : (int64_t)io->x[2][l];
        for (int k = 0; k < 32 / bits; k++)
            s += field(io->x[0][l], k, bits, whole && i->neg_lo & 1) * field(io->x[1][l], k, bits, whole && i->neg_lo & 2);
        if (i->clamp && whole) s = s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s;
        if (i->clamp && !whole) s = s > UINT32_MAX ? UINT32_MAX : s;
        io->r[l] = (uint32_t)s;
    }
    return NULL;
}

const char *gfx_compute_packed(const gfx_insn *i, gfx_io *io)
{
    return i->cls == GFX_DOT ? dot(i, io) : i->cls == GFX_MIX ? mixed(i, io) : pairs(i, io);
}
