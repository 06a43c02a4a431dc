/* A unit of a weight row times the same elements of a row of activations. -DACT: 0 f32 activations, 1 int8
 * with scales (quantise.comp). `at` is the row's first element in x. */
#if ACT == 1
#extension GL_EXT_integer_dot_product : require
#define Acts U4

int dot16(uvec4 a, uvec4 b)
{
    return dotPacked4x8EXT(int(a.x), int(b.x)) + dotPacked4x8EXT(int(a.y), int(b.y)) +
           dotPacked4x8EXT(int(a.z), int(b.z)) + dotPacked4x8EXT(int(a.w), int(b.w));
}

/* Activations of a unit's two runs, their scales and sums. */
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
    r.sum_a = int(da.y << ((ea & 16u) != 0u ? 0u : 16u)) >> 16;
    r.sum_b = int(db.y << ((eb & 16u) != 0u ? 0u : 16u)) >> 16;
    return r;
}

#define Part Raw
#define LOAD_PART(part, w, s, h, z, row, u, nu) part = load_raw(w, s, h, z, row, u, nu)
#define Whole Unit
#define whole_of decode

float unit_dot(Unit w, Some x)
{
    float a = w.sa * float(dot16(w.qa, x.a) - int(ZERO) * x.sum_a), b = w.sb * float(dot16(w.qb, x.b) - int(ZERO) * x.sum_b);
#if HAS_MIN
    a -= w.ma * float(x.sum_a);
    b -= w.mb * float(x.sum_b);
#endif
    return a * x.da + b * x.db;
}
#else
#define Acts F4

struct Some {
    vec4 a[4], b[4];
};
#define Part Some
#define Whole Some
#define LOAD_PART(part, w, s, h, z, row, u, nu) unit_values(w, s, h, z, row, u, nu, part.a, part.b)
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
