#version 460
#extension GL_GOOGLE_include_directive : require
/* Reads ranges of memory for no result, so that they lie in the device's cache when the next dispatch wants them:
 * a dispatch beside one that has little to read. */
#include "common.glsl"

layout(constant_id = 1) const uint N = 3; /* ranges */
layout(constant_id = 2) const uint AHEAD = 8;

layout(push_constant, scalar) uniform Push {
    Params pr;
    U4 at[6];
    U1 sink; /* never written in fact; keeps the reads alive */
    uint n16[6]; /* 16-byte pieces of each */
};

void main()
{
    uint tid = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, step = gl_NumWorkGroups.x * WG;
    uvec4 all = uvec4(0u);
    [[unroll]] for (uint k = 0; k < N; k++)
        for (uint i = tid; i < n16[k]; i += step * AHEAD) {
            uvec4 v[AHEAD];
            [[unroll]] for (uint a = 0; a < AHEAD; a++) v[a] = at[k].v[min(i + a * step, n16[k] - 1u)];
            [[unroll]] for (uint a = 0; a < AHEAD; a++) all ^= v[a];
        }
    if (all == uvec4(0x5EED1E55u, 0xBADC0DE5u, 0x0DDBA115u, 0xFACADE00u)) sink.v[0] = all.x;
}
