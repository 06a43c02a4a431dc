#version 460
#extension GL_GOOGLE_include_directive : require
/* y = W x for few rows of x (NC at most): T threads a row of W, each a unit of 32 weights at a time,
 * read once for all columns. -DACT: 0 f32 activations, 1 int8 (quantise.comp). The order of a column's
 * sum does not depend on NC. */
#include "common.glsl"
#include "weight.glsl"
#if SUBGROUP
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif
#if ACT == 1
#extension GL_EXT_integer_dot_product : require
#endif

layout(constant_id = 1) const uint T = 32;
layout(constant_id = 2) const uint NC = 1;
layout(constant_id = 3) const bool HAS_BIAS = false;
layout(constant_id = 4) const bool HAS_RES = false;
layout(constant_id = 5) const uint SG = 32; /* subgroup size */

layout(push_constant, scalar) uniform Push {
    Params pr;
#if ACT == 1
    U4 x; /* [NC][k] int8, then at xd [NC][nu] (f32 scale, sums of both runs as int16) */
#else
    F4 x;
#endif
    F1 y;
    U4 w;
    U1 s, h;
    F1 bias, res;
    uint rows, k, n, nu;
    float scale;
    uint pad;
    U1 z;
#if ACT == 1
    U2 xd;
#endif
};

shared float part[WG * NC];

#if ACT == 1
int dot16(uvec4 a, uvec4 b)
{
    return dotPacked4x8EXT(int(a.x), int(b.x)) + dotPacked4x8EXT(int(a.y), int(b.y)) +
           dotPacked4x8EXT(int(a.z), int(b.z)) + dotPacked4x8EXT(int(a.w), int(b.w));
}

float run_dot(uvec4 q, float sc, float mn, uint c, uint e)
{
    uvec2 d = xd.v[c * nu + (e >> 5)];
    int sum = int(d.y << ((e & 16u) != 0u ? 0u : 16u)) >> 16;
    int i = dot16(q, x.v[(c * k + e) >> 4]) - int(ZERO) * sum;
    float r = sc * float(i);
#if HAS_MIN
    r -= mn * float(sum);
#endif
    return r * uintBitsToFloat(d.x);
}
#endif

void main()
{
#if SUBGROUP
    uint per = T / SG, slot = gl_SubgroupID / per, lane = gl_SubgroupID % per * SG + gl_SubgroupInvocationID;
#else
    uint slot = gl_LocalInvocationID.x / T, lane = gl_LocalInvocationID.x % T;
#endif
    uint row = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * (WG / T) + slot;
    float acc[NC];
    [[unroll]] for (uint c = 0; c < NC; c++) acc[c] = 0.0;
    if (row < n) {
#if ACT == 1
        Raw next = load_raw(w, s, h, z, row, min(lane, nu - 1u), nu);
#endif
        for (uint u = lane; u < nu; u += T) {
            uint ea = unit_a(u), eb = unit_b(u);
#if ACT == 1
            Raw now = next;
            if (u + T < nu) next = load_raw(w, s, h, z, row, u + T, nu);
            Unit r = decode(now, u);
            [[unroll]] for (uint c = 0; c < NC; c++)
                acc[c] += run_dot(r.qa, r.sa, r.ma, c, ea) + run_dot(r.qb, r.sb, r.mb, c, eb);
#else
            vec4 a[4], b[4];
            unit_values(w, s, h, z, row, u, nu, a, b);
            [[unroll]] for (uint c = 0; c < NC; c++) {
                uint ia = (c * k + ea) >> 2, ib = (c * k + eb) >> 2;
                float v = 0.0;
                [[unroll]] for (uint i = 0; i < 4u; i++) v += dot(a[i], x.v[ia + i]) + dot(b[i], x.v[ib + i]);
                acc[c] += v;
            }
#endif
        }
    }
#if SUBGROUP
    [[unroll]] for (uint c = 0; c < NC; c++) acc[c] = subgroupAdd(acc[c]);
    if (per > 1u) {
        if (gl_SubgroupInvocationID == 0u)
            [[unroll]] for (uint c = 0; c < NC; c++) part[gl_SubgroupID * NC + c] = acc[c];
        barrier();
        if (lane == 0u)
            [[unroll]] for (uint c = 0; c < NC; c++)
                for (uint i = 1; i < per; i++) acc[c] += part[(gl_SubgroupID + i) * NC + c];
    }
#else
    uint tid = gl_LocalInvocationID.x;
    [[unroll]] for (uint c = 0; c < NC; c++) part[c * WG + tid] = acc[c];
    barrier();
    for (uint m = T / 2u; m > 0u; m >>= 1) {
        if (lane < m)
            [[unroll]] for (uint c = 0; c < NC; c++) part[c * WG + tid] += part[c * WG + tid + m];
        barrier();
    }
    [[unroll]] for (uint c = 0; c < NC; c++) acc[c] = part[c * WG + tid];
#endif
    if (lane != 0u || row >= n) return;
    [[unroll]] for (uint c = 0; c < NC; c++) {
        if (c >= pr.n_rows[rows]) break;
        float v = acc[c];
        if (HAS_BIAS) v += bias.v[row];
        v *= scale;
        if (HAS_RES) v += res.v[c * n + row];
        y.v[c * n + row] = v;
    }
}
