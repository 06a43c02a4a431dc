/* Weights in the device's layout (vk_pack.c): a row is nu units of 32 elements, and a unit is two runs
 * of 16 adjacent elements, a and b, that begin at unit_a(u) and unit_b(u).
 *
 *   w  quants: 16 bytes a unit (Q8_0: 32), or the K formats' own blocks, or floats
 *   s  scales: f16, or pairs (scale, minimum); Q6_K: pairs of int8, one per run; MXFP4: bf16
 *   h  high bits: Q5_0, Q5_1 4 bytes a unit, Q6_K 8
 *   z  Q6_K: f16 of the super-block
 *
 * A quantised value is s * (q - ZERO) - m, with q the byte of qa or qb. */
#define T_F32 0
#define T_F16 1
#define T_Q4_0 2
#define T_Q4_1 3
#define T_Q5_0 6
#define T_Q5_1 7
#define T_Q8_0 8
#define T_Q4_K 12
#define T_Q5_K 13
#define T_Q6_K 14
#define T_BF16 30
#define T_MXFP4 39

#if TYPE == T_Q4_K || TYPE == T_Q5_K
uint unit_a(uint u) { return (u >> 1) * 64u + (u & 1u) * 16u; }
uint unit_b(uint u) { return unit_a(u) + 32u; }
#else
uint unit_a(uint u) { return u * 32u; }
uint unit_b(uint u) { return u * 32u + 16u; }
#endif

#if TYPE == T_Q4_0
const float ZERO = 8.0;
#elif TYPE == T_Q5_0
const float ZERO = 16.0;
#elif TYPE == T_Q6_K
const float ZERO = 32.0;
#elif TYPE == T_MXFP4
const float ZERO = 12.0;
#else
const float ZERO = 0.0;
#endif

#if TYPE == T_Q4_1 || TYPE == T_Q5_1 || TYPE == T_Q4_K || TYPE == T_Q5_K
#define HAS_MIN 1
#else
#define HAS_MIN 0
#endif

#define QUANTISED (TYPE != T_F32 && TYPE != T_F16 && TYPE != T_BF16)

#if QUANTISED
struct Unit {
    uvec4 qa, qb;
    float sa, sb, ma, mb;
};

const uvec4 LOW = uvec4(0x0F0F0F0Fu);

/* Four bits of h to bit 4 of four bytes. */
uint spread(uint h) { return (((h & 15u) * 0x00204081u) & 0x01010101u) << 4; }
uvec4 spread4(uint h) { return uvec4(spread(h), spread(h >> 4), spread(h >> 8), spread(h >> 12)); }

#if TYPE == T_MXFP4
/* Nibbles (sign, two bits of exponent, one of mantissa) to twice their values, 0 1 2 3 4 6 8 12, plus ZERO. */
uvec4 fp4(uvec4 q)
{
    uvec4 v = q & 0x07070707u, hi = (v >> 2) & 0x01010101u, odd = v & hi, twice = (v >> 1) & hi;
    uvec4 big = hi * 4u + odd * 2u, neg = ((q >> 3) & 0x01010101u) * 255u;
    uvec4 size = (v & ~(hi * 255u)) + big + (big & (twice * 255u));
    return 0x0C0C0C0Cu + (size & ~neg) - (size & neg);
}
#endif

#if TYPE == T_Q4_K || TYPE == T_Q5_K
/* Scales of sub-blocks 2 j and 2 j + 1, then their minima, from the 16 bytes of a super-block's header. */
vec4 k_scales(uvec4 head, uint j)
{
    vec2 d = unpackHalf2x16(head.x);
    uint shift = (j & 1u) * 16u, sc, mn;
    if (j < 2u) {
        sc = (head.y >> shift) & 0x3F3Fu;
        mn = (head.z >> shift) & 0x3F3Fu;
    } else {
        uint l = head.w >> shift;
        sc = (l & 0x0F0Fu) | (((head.y >> shift) & 0xC0C0u) >> 2);
        mn = ((l >> 4) & 0x0F0Fu) | (((head.z >> shift) & 0xC0C0u) >> 2);
    }
    return d.xxyy * vec4(sc & 255u, sc >> 8, mn & 255u, mn >> 8);
}

void set_scales(inout Unit r, vec4 s)
{
    r.sa = s.x;
    r.sb = s.y;
    r.ma = s.z;
    r.mb = s.w;
}
#endif

/* A unit as loaded, so that loads can be issued long before their values are used. */
struct Raw {
    uvec4 q, p, r;
    uint s, h0, h1, z;
};

/* Quants are found from the beginning of their row (row_at in common.glsl); scales take at most an eighth of a matrix, so
 * that 32 bits do for their bytes. */
Raw load_raw(U4 w, U1 s, U1 h, U1 z, uint row, uint u, uint nu)
{
    Raw r;
    uint i = row * nu + u;
#if TYPE == T_Q4_K
    U4 q = U4(row_at(uvec2(w), row, nu / 8u * 144u));
    uint at = (u >> 3) * 9u;
    r.p = q.v[at];
    r.q = q.v[at + 1u + (u & 7u)];
#elif TYPE == T_Q5_K
    U4 q = U4(row_at(uvec2(w), row, nu / 8u * 176u));
    uint at = (u >> 3) * 11u;
    r.p = q.v[at];
    r.r = q.v[at + 1u + (u & 1u)];
    r.q = q.v[at + 3u + (u & 7u)];
#elif TYPE == T_Q8_0
    U4 q = U4(row_at(uvec2(w), row, nu * 32u));
    r.q = q.v[2u * u];
    r.p = q.v[2u * u + 1u];
    r.s = s.v[i >> 1] >> ((i & 1u) * 16u);
#else
    r.q = U4(row_at(uvec2(w), row, nu * 16u)).v[u];
#if TYPE == T_Q6_K
    uvec2 high = U2(row_at(uvec2(h), row, nu * 8u)).v[u];
    r.h0 = high.x;
    r.h1 = high.y;
    r.s = s.v[i >> 1] >> ((i & 1u) * 16u);
    r.z = z.v[i >> 4] >> (((i >> 3) & 1u) * 16u);
#elif TYPE == T_Q5_0 || TYPE == T_Q5_1
    r.h0 = U1(row_at(uvec2(h), row, nu * 4u)).v[u];
#endif
#if TYPE == T_Q4_1 || TYPE == T_Q5_1
    r.s = s.v[i];
#elif TYPE != T_Q6_K
    r.s = s.v[i >> 1] >> ((i & 1u) * 16u);
#endif
#endif
    return r;
}

Unit decode(Raw x, uint u)
{
    Unit r;
#if TYPE == T_Q4_K
    r.qa = x.q & LOW;
    r.qb = (x.q >> 4) & LOW;
    set_scales(r, k_scales(x.p, (u & 7u) >> 1));
#elif TYPE == T_Q5_K
    uint j = (u & 7u) >> 1;
    r.qa = (x.q & LOW) | (((x.r >> (2u * j)) & 0x01010101u) << 4);
    r.qb = ((x.q >> 4) & LOW) | (((x.r >> (2u * j + 1u)) & 0x01010101u) << 4);
    set_scales(r, k_scales(x.p, j));
#elif TYPE == T_Q8_0
    r.qa = x.q;
    r.qb = x.p;
    r.sa = r.sb = unpackHalf2x16(x.s).x;
    r.ma = r.mb = 0.0;
#elif TYPE == T_Q6_K
    r.qa = (x.q & LOW) | (uvec4(x.h0 << 4, x.h0 << 2, x.h0, x.h0 >> 2) & 0x30303030u);
    r.qb = ((x.q >> 4) & LOW) | (uvec4(x.h1 << 4, x.h1 << 2, x.h1, x.h1 >> 2) & 0x30303030u);
    float d = unpackHalf2x16(x.z).x;
    r.sa = d * float(int(x.s << 24) >> 24);
    r.sb = d * float(int(x.s << 16) >> 24);
    r.ma = r.mb = 0.0;
#elif TYPE == T_MXFP4
    r.qa = fp4(x.q & LOW);
    r.qb = fp4((x.q >> 4) & LOW);
    r.sa = r.sb = uintBitsToFloat(x.s << 16);
    r.ma = r.mb = 0.0;
#else
    r.qa = x.q & LOW;
    r.qb = (x.q >> 4) & LOW;
#if TYPE == T_Q5_0 || TYPE == T_Q5_1
    r.qa |= spread4(x.h0);
    r.qb |= spread4(x.h0 >> 16);
#endif
    vec2 dm = unpackHalf2x16(x.s);
    r.sa = r.sb = dm.x;
#if HAS_MIN
    r.ma = r.mb = -dm.y;
#else
    r.ma = r.mb = 0.0;
#endif
#endif
    return r;
}

vec4 bytes(uint q)
{
#if TYPE == T_Q8_0
    return vec4(int(q << 24) >> 24, int(q << 16) >> 24, int(q << 8) >> 24, int(q) >> 24);
#else
    return vec4(q & 255u, (q >> 8) & 255u, (q >> 16) & 255u, q >> 24) - ZERO;
#endif
}
#endif

/* The 32 values of a unit, rounded as the reference dequantiser rounds them. */
void unit_values(U4 w, U1 s, U1 h, U1 z, uint row, uint u, uint nu, out vec4 a[4], out vec4 b[4])
{
#if QUANTISED
    Unit r = decode(load_raw(w, s, h, z, row, u, nu), u);
    [[unroll]] for (uint k = 0; k < 4u; k++) {
#if HAS_MIN
        precise vec4 pa = bytes(r.qa[k]) * r.sa, pb = bytes(r.qb[k]) * r.sb;
        a[k] = pa - r.ma;
        b[k] = pb - r.mb;
#else
        a[k] = bytes(r.qa[k]) * r.sa;
        b[k] = bytes(r.qb[k]) * r.sb;
#endif
    }
#elif TYPE == T_F32
    U4 x = U4(row_at(uvec2(w), row, nu * 128u));
    [[unroll]] for (uint k = 0; k < 4u; k++) {
        a[k] = uintBitsToFloat(x.v[u * 8u + k]);
        b[k] = uintBitsToFloat(x.v[u * 8u + 4u + k]);
    }
#else
    U4 x = U4(row_at(uvec2(w), row, nu * 64u));
    [[unroll]] for (uint k = 0; k < 2u; k++) {
        uvec4 p = x.v[u * 4u + k], q = x.v[u * 4u + 2u + k];
#if TYPE == T_F16
        a[2u * k] = vec4(unpackHalf2x16(p.x), unpackHalf2x16(p.y));
        a[2u * k + 1u] = vec4(unpackHalf2x16(p.z), unpackHalf2x16(p.w));
        b[2u * k] = vec4(unpackHalf2x16(q.x), unpackHalf2x16(q.y));
        b[2u * k + 1u] = vec4(unpackHalf2x16(q.z), unpackHalf2x16(q.w));
#else
        a[2u * k] = uintBitsToFloat(uvec4(p.x << 16, p.x & 0xFFFF0000u, p.y << 16, p.y & 0xFFFF0000u));
        a[2u * k + 1u] = uintBitsToFloat(uvec4(p.z << 16, p.z & 0xFFFF0000u, p.w << 16, p.w & 0xFFFF0000u));
        b[2u * k] = uintBitsToFloat(uvec4(q.x << 16, q.x & 0xFFFF0000u, q.y << 16, q.y & 0xFFFF0000u));
        b[2u * k + 1u] = uintBitsToFloat(uvec4(q.z << 16, q.z & 0xFFFF0000u, q.w << 16, q.w & 0xFFFF0000u));
#endif
    }
#endif
}
