#version 460
#extension GL_GOOGLE_include_directive : require
/* The parts of a product whose K was split, and what follows a product. A thread an element. */
#include "common.glsl"

layout(constant_id = 1) const uint SPLIT = 2;
layout(constant_id = 2) const bool HAS_BIAS = false;
layout(constant_id = 3) const bool HAS_RES = false;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 part, y;
    F1 unused[3];
    F1 bias, res;
    uint rows, n, part_rows;
    float scale;
};

void main()
{
    uint col = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, row = gl_WorkGroupID.y;
    if (row >= pr.n_rows[rows] || col >= n) return;
    float v = 0.0;
    [[unroll]] for (uint i = 0; i < SPLIT; i++) v += part.v[(i * part_rows + row) * n + col];
    if (HAS_BIAS) v += bias.v[col];
    v *= scale;
    if (HAS_RES) v += res.v[row * n + col];
    y.v[row * n + col] = v;
}
