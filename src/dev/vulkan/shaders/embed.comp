#version 460
#extension GL_GOOGLE_include_directive : require
/* Rows of a table by token id (or position, or type, then added to x): a thread a unit of 32 elements. */
#include "common.glsl"
#include "weight.glsl"

layout(constant_id = 1) const bool ADD = false;

layout(push_constant, scalar) uniform Push {
    Params pr;
    I1 index;
    F1 y;
    U4 w;
    U1 s, h, z;
    F1 x;
    uint cols, nu;
    float scale;
};

void main()
{
    uint u = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, row = gl_WorkGroupID.y;
    if (row >= pr.n_rows[0] || u >= nu || index.v[row] < 0) return; /* below 0: a row of the step's vectors */
    vec4 a[4], b[4];
    unit_values(w, s, h, z, uint(index.v[row]), u, nu, a, b);
    for (uint i = 0; i < 16u; i++) {
        uint ea = unit_a(u) + i, eb = unit_b(u) + i;
        if (ea < cols) y.v[row * cols + ea] = (ADD ? x.v[row * cols + ea] : 0.0) + a[i >> 2][i & 3u] * scale;
        if (eb < cols) y.v[row * cols + eb] = (ADD ? x.v[row * cols + eb] : 0.0) + b[i >> 2][i & 3u] * scale;
    }
}
