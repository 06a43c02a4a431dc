/* A step of a weight row times the same elements of a row of activations, for products of few rows. A step is a unit, or with
 * -DPAIRED=1 two adjacent ones where these share scales (NS = NU / STEP of them are a row): less work a weight, but more of it
 * on its way in a thread's registers. -DACT: 0 f32 activations, 1 int8 with scales (quantise.comp). `at` is the row's first
 * element in x, a multiple of 32. */
#ifndef PAIRED
#define PAIRED 0
#endif
#if ACT == 1
#extension GL_EXT_integer_dot_product : require
#define Acts U4
#if PAIRED && (TYPE == T_Q4_K || TYPE == T_Q5_K)
#define STEP 2
#else
#define STEP 1
#endif

int dot16(uvec4 a, uvec4 b)
{
    return dotPacked4x8EXT(int(a.x), int(b.x)) + dotPacked4x8EXT(int(a.y), int(b.y)) +
           dotPacked4x8EXT(int(a.z), int(b.z)) + dotPacked4x8EXT(int(a.w), int(b.w));
}

int low_sum(uint y) { return int(y << 16) >> 16; }
int high_sum(uint y) { return int(y) >> 16; }

#if STEP == 2
/* 64 elements: a super-block's sub-blocks 2 j and 2 j + 1, whose quants are the low and high nibbles of 32 bytes. */
struct Part {
    uvec4 head, q0, q1;
#if TYPE == T_Q5_K
    uvec4 h0, h1;
#endif
};
struct Whole {
    uvec4 a0, a1, b0, b1;
    vec4 s; /* scales of both, then minima */
};
struct Some {
    uvec4 a0, a1, b0, b1, d;
};

Part load_part(U4 w, U1 s, U1 h, U1 z, uint row, uint i, uint nu)
{
    Part p;
#if TYPE == T_Q4_K
    U4 q = U4(row_at(uvec2(w), row, nu / 8u * 144u));
    uint at = (i >> 2) * 9u, from = at + 1u + (i & 3u) * 2u;
#else
    U4 q = U4(row_at(uvec2(w), row, nu / 8u * 176u));
    uint at = (i >> 2) * 11u, from = at + 3u + (i & 3u) * 2u;
    p.h0 = q.v[at + 1u];
    p.h1 = q.v[at + 2u];
#endif
    p.head = q.v[at];
    p.q0 = q.v[from];
    p.q1 = q.v[from + 1u];
    return p;
}

Whole whole_of(Part p, uint i)
{
    Whole r;
    r.a0 = p.q0 & LOW;
    r.a1 = p.q1 & LOW;
    r.b0 = (p.q0 >> 4) & LOW;
    r.b1 = (p.q1 >> 4) & LOW;
#if TYPE == T_Q5_K
    uint j = (i & 3u) * 2u;
    r.a0 |= ((p.h0 >> j) & 0x01010101u) << 4;
    r.a1 |= ((p.h1 >> j) & 0x01010101u) << 4;
    r.b0 |= ((p.h0 >> (j + 1u)) & 0x01010101u) << 4;
    r.b1 |= ((p.h1 >> (j + 1u)) & 0x01010101u) << 4;
#endif
    r.s = k_scales(p.head, i & 3u);
    return r;
}

Some load_some(U4 x, U2 xd, uint at, uint i)
{
    Some r;
    uint e = (at >> 4) + 4u * i;
    r.a0 = x.v[e];
    r.a1 = x.v[e + 1u];
    r.b0 = x.v[e + 2u];
    r.b1 = x.v[e + 3u];
    r.d = U4(uvec2(xd)).v[(at >> 6) + i];
    return r;
}

float unit_dot(Whole w, Some x)
{
    int a = dot16(w.a0, x.a0) + dot16(w.a1, x.a1), b = dot16(w.b0, x.b0) + dot16(w.b1, x.b1);
    int sum_a = low_sum(x.d.y) + high_sum(x.d.y), sum_b = low_sum(x.d.w) + high_sum(x.d.w);
    return uintBitsToFloat(x.d.x) * (w.s.x * float(a) - w.s.z * float(sum_a)) +
           uintBitsToFloat(x.d.z) * (w.s.y * float(b) - w.s.w * float(sum_b));
}
#else
#define Part Raw
#define Whole Unit
#define load_part load_raw
#define whole_of decode

#if TYPE == T_Q4_K || TYPE == T_Q5_K
/* Runs of two blocks. */
struct Some {
    uvec4 a, b;
    float da, db;
    int sum_a, sum_b;
};
Some load_some(U4 x, U2 xd, uint at, uint u)
{
    uint ea = at + unit_a(u), eb = at + unit_b(u);
    uvec2 da = xd.v[ea >> 5], db = xd.v[eb >> 5];
    Some r;
    r.a = x.v[ea >> 4];
    r.b = x.v[eb >> 4];
    r.da = uintBitsToFloat(da.x);
    r.db = uintBitsToFloat(db.x);
    r.sum_a = (u & 1u) != 0u ? high_sum(da.y) : low_sum(da.y);
    r.sum_b = (u & 1u) != 0u ? high_sum(db.y) : low_sum(db.y);
    return r;
}
#else
struct Some {
    uvec4 a, b;
    uvec2 d;
};
Some load_some(U4 x, U2 xd, uint at, uint u)
{
    Some r;
    r.a = x.v[(at >> 4) + 2u * u];
    r.b = x.v[(at >> 4) + 2u * u + 1u];
    r.d = xd.v[(at >> 5) + u];
    return r;
}
#endif

float unit_dot(Whole w, Some x)
{
    int a = dot16(w.qa, x.a), b = dot16(w.qb, x.b);
#if TYPE == T_Q4_K || TYPE == T_Q5_K
    return x.da * (w.sa * float(a) - w.ma * float(x.sum_a)) + x.db * (w.sb * float(b) - w.mb * float(x.sum_b));
#elif TYPE == T_Q6_K
    const int zero = int(ZERO);
    return uintBitsToFloat(x.d.x) * (w.sa * float(a - zero * low_sum(x.d.y)) + w.sb * float(b - zero * high_sum(x.d.y)));
#elif TYPE == T_Q8_0
    return uintBitsToFloat(x.d.x) * (w.sa * float(a + b));
#else
    int sum = low_sum(x.d.y) + high_sum(x.d.y);
    float f = w.sa * float(a + b - int(ZERO) * sum);
#if HAS_MIN
    f -= w.ma * float(sum);
#endif
    return uintBitsToFloat(x.d.x) * f;
#endif
}
#endif
#else
#define Acts F4
#define STEP 1

struct Some {
    vec4 a[4], b[4];
};
#define Part Some
#define Whole Some
Some load_part(U4 w, U1 s, U1 h, U1 z, uint row, uint u, uint nu)
{
    Some p;
    unit_values(w, s, h, z, row, u, nu, p.a, p.b);
    return p;
}
Some whole_of(Some p, uint u) { return p; }

Some load_some(F4 x, U2 xd, uint at, uint u)
{
    uint ia = (at + unit_a(u)) >> 2, ib = (at + unit_b(u)) >> 2;
    Some r;
    [[unroll]] for (uint i = 0; i < 4u; i++) {
        r.a[i] = x.v[ia + i];
        r.b[i] = x.v[ib + i];
    }
    return r;
}

float unit_dot(Some w, Some x)
{
    float v = 0.0;
    [[unroll]] for (uint i = 0; i < 4u; i++) v += dot(w.a[i], x.a[i]) + dot(w.b[i], x.b[i]);
    return v;
}
#endif
