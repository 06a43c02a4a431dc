/* A unit of a weight row times the same elements of a row of activations. -DACT: 0 f32 activations, 1 int8
 * with scales (quantise.comp). `at` is the row's first element in x; nu its units. */
#if ACT == 1
#extension GL_EXT_integer_dot_product : require
#define Acts U4

int dot16(uvec4 a, uvec4 b)
{
    return dotPacked4x8EXT(int(a.x), int(b.x)) + dotPacked4x8EXT(int(a.y), int(b.y)) +
           dotPacked4x8EXT(int(a.z), int(b.z)) + dotPacked4x8EXT(int(a.w), int(b.w));
}

float run_dot(U4 x, U2 xd, uvec4 q, float sc, float mn, uint e)
{
    uvec2 d = xd.v[e >> 5];
    int sum = int(d.y << ((e & 16u) != 0u ? 0u : 16u)) >> 16;
    int i = dot16(q, x.v[e >> 4]) - int(ZERO) * sum;
    float r = sc * float(i);
#if HAS_MIN
    r -= mn * float(sum);
#endif
    return r * uintBitsToFloat(d.x);
}

struct Part {
    Raw raw;
};
#define LOAD_PART(part, w, s, h, z, row, u, nu) part.raw = load_raw(w, s, h, z, row, u, nu)

struct Whole {
    Unit unit;
};
Whole whole_of(Part p, uint u)
{
    Whole r;
    r.unit = decode(p.raw, u);
    return r;
}
float unit_dot(Whole w, U4 x, U2 xd, uint at, uint u)
{
    return run_dot(x, xd, w.unit.qa, w.unit.sa, w.unit.ma, at + unit_a(u)) +
           run_dot(x, xd, w.unit.qb, w.unit.sb, w.unit.mb, at + unit_b(u));
}
#else
#define Acts F4
struct Part {
    vec4 a[4], b[4];
};
#define LOAD_PART(part, w, s, h, z, row, u, nu) unit_values(w, s, h, z, row, u, nu, part.a, part.b)
#define Whole Part
Part whole_of(Part p, uint u) { return p; }
float unit_dot(Part w, F4 x, U2 xd, uint at, uint u)
{
    uint ia = (at + unit_a(u)) >> 2, ib = (at + unit_b(u)) >> 2;
    float v = 0.0;
    [[unroll]] for (uint i = 0; i < 4u; i++) v += dot(w.a[i], x.v[ia + i]) + dot(w.b[i], x.v[ib + i]);
    return v;
}
#endif
