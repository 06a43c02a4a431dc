#version 460
#extension GL_GOOGLE_include_directive : require
/* A matrix per head, in f32: y_h = W_h x_h, and the TAIL columns of each head as they are. T threads a row of
 * W, a unit of 32 weights at a time, for NC rows of x. */
#include "common.glsl"
#include "weight.glsl"
#if SUBGROUP
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif

layout(constant_id = 1) const uint T = 32;
layout(constant_id = 2) const uint NC = 1;
layout(constant_id = 3) const uint SG = 32; /* subgroup size */
layout(constant_id = 4) const uint N_HEAD = 1;
layout(constant_id = 5) const uint K = 32;
layout(constant_id = 6) const uint N = 32;
layout(constant_id = 7) const uint TAIL = 0;

#define ACT 0
#include "moe_dot.glsl"

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 x;
    F1 y;
    U4 w;
    U1 s, h, z;
    F1 unused;
    uint rows;
};

const uint NU = (K + 31) / 32, LDX = N_HEAD * (K + TAIL), LDY = N_HEAD * (N + TAIL);
const bool ALIGNED = K % 32 == 0 && TAIL % 4 == 0; /* rows of a head begin at multiples of 16 bytes */

#if SUBGROUP
shared float part[WG / SG * NC];
#else
shared float part[WG * NC];
#endif

/* Where a head's row is no whole number of units, or begins anywhere. */
float any_dot(Part p, uint at, uint u)
{
    float v = 0.0;
    [[unroll]] for (uint i = 0; i < 16u; i++) {
        uint a = unit_a(u) + i, b = unit_b(u) + i;
        if (a < K) v += p.a[i >> 2][i & 3u] * x.v[at + a];
        if (b < K) v += p.b[i >> 2][i & 3u] * x.v[at + b];
    }
    return v;
}

void main()
{
    uint tid = gl_LocalInvocationID.x, r0 = gl_WorkGroupID.y * NC, n_rows = pr.n_rows[rows];
    if (r0 >= n_rows) return;
#if SUBGROUP
    const uint PER = T / SG;
    uint slot = gl_SubgroupID / PER, lane = gl_SubgroupID % PER * SG + gl_SubgroupInvocationID;
#else
    uint slot = tid / T, lane = tid % T;
#endif
    uint row = gl_WorkGroupID.x * (WG / T) + slot, head = min(row / N, N_HEAD - 1u), col = row % N;
    bool on = row < N_HEAD * N;
    uint n = min(NC, n_rows - r0);
    float acc[NC];
    [[unroll]] for (uint c = 0; c < NC; c++) acc[c] = 0.0;
    if (on)
        for (uint u = lane; u < NU; u += T) {
            Part p = load_part(w, s, h, z, row, u, NU);
            [[unroll]] for (uint c = 0; c < NC; c++) {
                uint at = (r0 + c) * LDX + head * (K + TAIL);
                if (c < n) acc[c] += ALIGNED ? unit_dot(p, load_some(F4(x), U2(x), at, u)) : any_dot(p, at, u);
            }
        }
#if SUBGROUP
    [[unroll]] for (uint c = 0; c < NC; c++) acc[c] = subgroupAdd(acc[c]);
    if (PER > 1u) {
        if (gl_SubgroupInvocationID == 0u)
            [[unroll]] for (uint c = 0; c < NC; c++) part[gl_SubgroupID * NC + c] = acc[c];
        barrier();
        if (lane == 0u)
            [[unroll]] for (uint c = 0; c < NC; c++)
                for (uint i = 1u; i < PER; i++) acc[c] += part[(gl_SubgroupID + i) * NC + c];
    }
#else
    [[unroll]] for (uint c = 0; c < NC; c++) part[c * WG + tid] = acc[c];
    barrier();
    for (uint m = T / 2u; m > 0u; m >>= 1) {
        if (lane < m)
            [[unroll]] for (uint c = 0; c < NC; c++) part[c * WG + tid] += part[c * WG + tid + m];
        barrier();
    }
    [[unroll]] for (uint c = 0; c < NC; c++) acc[c] = part[c * WG + tid];
#endif
    if (!on) return;
    [[unroll]] for (uint c = 0; c < NC; c++) {
        if (c >= n) break;
        uint to = (r0 + c) * LDY + head * (N + TAIL), from = (r0 + c) * LDX + head * (K + TAIL) + K;
        if (lane == 0u) y.v[to + col] = acc[c];
        if (TAIL > 0u && col == 0u)
            for (uint i = lane; i < TAIL; i += T) y.v[to + N + i] = x.v[from + i];
    }
}
