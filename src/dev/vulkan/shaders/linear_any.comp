#version 460
#extension GL_GOOGLE_include_directive : require
/* Matrix product with f32 weights of any width: a thread an output. For shapes that no other kernel takes. */
#include "common.glsl"

layout(constant_id = 1) const bool HAS_BIAS = false;
layout(constant_id = 2) const bool HAS_RES = false;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 x, y, w;
    F1 unused[2];
    F1 bias, res;
    uint rows, k, n, nu;
    float scale;
};

void main()
{
    uint col = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, row = gl_WorkGroupID.y;
    if (row >= pr.n_rows[rows] || col >= n) return;
    float sum = 0.0;
    F1 weights = F1(row_at(uvec2(w), col, nu * 128u));
    for (uint i = 0; i < k; i++) sum += x.v[row * k + i] * weights.v[i];
    if (HAS_BIAS) sum += bias.v[col];
    sum *= scale;
    if (HAS_RES) sum += res.v[row * n + col];
    y.v[row * n + col] = sum;
}
