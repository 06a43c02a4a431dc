#version 460
#extension GL_GOOGLE_include_directive : require
/* Rows of a table by token id: a thread a unit of 32 elements. Exact. */
#include "common.glsl"
#include "weight.glsl"

layout(push_constant, scalar) uniform Push {
    Params pr;
    I1 tok;
    F1 y;
    U4 w;
    U1 s, h, z;
    F1 unused;
    uint cols, nu;
    float scale;
};

void main()
{
    uint u = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, row = gl_WorkGroupID.y;
    if (row >= pr.n_rows[0] || u >= nu) return;
    vec4 a[4], b[4];
    unit_values(w, s, h, z, uint(tok.v[row]), u, nu, a, b);
    for (uint i = 0; i < 16u; i++) {
        uint ea = unit_a(u) + i, eb = unit_b(u) + i;
        if (ea < cols) y.v[row * cols + ea] = a[i >> 2][i & 3u] * scale;
        if (eb < cols) y.v[row * cols + eb] = b[i >> 2][i & 3u] * scale;
    }
}
