#version 460
#extension GL_GOOGLE_include_directive : require
/* Rows of f32 to f16: a thread 8 elements. */
#include "common.glsl"

layout(push_constant, scalar) uniform Push {
    Params pr;
    F4 x;
    U4 y;
    F1 unused[5];
    uint rows, k;
};

void main()
{
    uint c = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, row = gl_WorkGroupID.y;
    if (row >= pr.n_rows[rows] || c >= k / 8u) return;
    uint i = row * (k / 8u) + c;
    vec4 a = x.v[2u * i], b = x.v[2u * i + 1u];
    y.v[i] = uvec4(packHalf2x16(a.xy), packHalf2x16(a.zw), packHalf2x16(b.xy), packHalf2x16(b.zw));
}
