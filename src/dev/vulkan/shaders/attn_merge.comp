#version 460
#extension GL_GOOGLE_include_directive : require
/* Partial results of a query's segments, in order, into its output: a workgroup a head of a token. */
#include "common.glsl"

layout(constant_id = 1) const uint VD = 64;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 part, y;
    TokInfo info;
    F1 unused[4];
    uint n_head, window, causal, seg, n_seg;
};

void main()
{
    uint head = gl_WorkGroupID.x, t = gl_WorkGroupID.y;
    if (t >= pr.n_rows[0]) return;
    uvec4 i = info.v[t];
    uint lo = 0u, hi = causal != 0u ? i.y + 1u : i.z;
    if (window > 0u) {
        uint back = causal != 0u ? window - 1u : window / 2u;
        lo = i.y > back ? i.y - back : 0u;
        if (causal == 0u) hi = min(hi, i.y + window / 2u + 1u);
    }
    uint from = (t * n_head + head) * n_seg, s0 = lo / seg, s1 = (hi + seg - 1u) / seg;
    float m = -3.0e38, sum = 0.0;
    for (uint s = s0; s < s1; s++) m = max(m, part.v[(from + s) * (VD + 2u) + VD]);
    for (uint s = s0; s < s1; s++) {
        uint at = (from + s) * (VD + 2u);
        sum += part.v[at + VD + 1u] * exp(part.v[at + VD] - m);
    }
    for (uint d = gl_LocalInvocationID.x; d < VD; d += WG) {
        float o = 0.0;
        for (uint s = s0; s < s1; s++) {
            uint at = (from + s) * (VD + 2u);
            o += part.v[at + d] * exp(part.v[at + VD] - m);
        }
        y.v[(t * n_head + head) * VD + d] = sum > 0.0 ? o / sum : 0.0;
    }
}
