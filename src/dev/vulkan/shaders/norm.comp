#version 460
#extension GL_GOOGLE_include_directive : require
/* RMS or layer norm: a workgroup a group of columns. In place is allowed: a thread writes what it read. */
#include "common.glsl"

layout(constant_id = 1) const bool LAYER = false;
layout(constant_id = 2) const bool HAS_W = true;
layout(constant_id = 3) const bool HAS_B = false;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 x, y, w, b;
    F1 unused[3];
    uint rows, cols, group;
    float eps;
};

shared float part[WG];

float sum_all(float v)
{
    uint tid = gl_LocalInvocationID.x;
    barrier();
    part[tid] = v;
    barrier();
    for (uint n = WG / 2u; n > 0u; n >>= 1) {
        if (tid < n) part[tid] += part[tid + n];
        barrier();
    }
    return part[0];
}

void main()
{
    uint row = gl_WorkGroupID.y, tid = gl_LocalInvocationID.x;
    if (row >= pr.n_rows[rows]) return;
    uint at = row * cols + gl_WorkGroupID.x * group;
    float mean = 0.0, v = 0.0;
    if (LAYER) {
        for (uint i = tid; i < group; i += WG) mean += x.v[at + i];
        mean = sum_all(mean) / float(group);
    }
    for (uint i = tid; i < group; i += WG) {
        float d = x.v[at + i] - mean;
        v += d * d;
    }
    float r = 1.0 / sqrt(sum_all(v) / float(group) + eps);
    for (uint i = tid; i < group; i += WG)
        y.v[at + i] = (x.v[at + i] - mean) * r * (HAS_W ? w.v[i] : 1.0) + (HAS_B ? b.v[i] : 0.0);
}
