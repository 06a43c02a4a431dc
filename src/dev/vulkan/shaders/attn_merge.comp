#version 460
#extension GL_GOOGLE_include_directive : require
/* Partial results of a query's segments into its output: a workgroup a head of a token. Threads stand in
 * columns of 4 values and LANES rows of every LANES-th segment; rows are added in order, so the result depends
 * on nothing but the segments. */
#include "common.glsl"
#include "form.glsl"

layout(constant_id = 1) const uint VD = 64;
layout(constant_id = 2) const uint COLS = 16; /* threads across VD: (VD + 3) / 4 or more, a multiple of 8 */

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 part, y;
    TokInfo info;
    U1 fq;
    U2 fd;
    F1 unused[2];
    uint n_head, window, causal, seg, n_seg;
};

const uint LANES = WG / COLS;

shared vec4 sums[WG];
shared float weights[LANES];

void main()
{
    uint head = gl_WorkGroupID.x, t = gl_WorkGroupID.y, tid = gl_LocalInvocationID.x;
    if (t >= pr.n_rows[0]) return;
    uvec4 i = info.v[t];
    uint lo = 0u, hi = causal != 0u ? i.y + 1u : i.z;
    if (window > 0u) {
        uint back = causal != 0u ? window - 1u : window / 2u;
        lo = i.y > back ? i.y - back : 0u;
        if (causal == 0u) hi = min(hi, i.y + window / 2u + 1u);
    }
    uint from = (t * n_head + head) * n_seg, s0 = lo / seg, s1 = (hi + seg - 1u) / seg;
    uint lane = tid / COLS, d = tid % COLS * 4u;
    float m = -3.0e38, sum = 0.0;
    for (uint s = s0; s < s1; s++) m = max(m, part.v[(from + s) * (VD + 2u) + VD]);
    vec4 o = vec4(0.0);
    for (uint s = s0 + lane; s < s1; s += LANES) {
        uint at = (from + s) * (VD + 2u);
        float w = exp(part.v[at + VD] - m);
        sum += part.v[at + VD + 1u] * w;
        [[unroll]] for (uint k = 0; k < 4u; k++)
            if (d + k < VD) o[k] += part.v[at + d + k] * w;
    }
    sums[tid] = o;
    if (d == 0u) weights[lane] = sum;
    barrier();
    sum = 0.0;
    o = vec4(0.0);
    for (uint k = 0; k < LANES; k++) {
        sum += weights[k];
        o += sums[k * COLS + tid % COLS];
    }
    o = sum > 0.0 ? o / sum : vec4(0.0);
    bool on = lane == 0u && d < VD;
    if (on)
        [[unroll]] for (uint k = 0; k < 4u; k++)
            if (d + k < VD) y.v[(t * n_head + head) * VD + d + k] = o[k];
    if (FORM != 0u) store_form(on, o, t, (head * VD + d) / 4u, n_head * VD, fq, fd);
}
