#version 460
#extension GL_GOOGLE_include_directive : require
/* y = res + sum_j weight_j * (down of expert j) hidden_j for few rows: T threads an output column of a row
 * walk the units of all its experts. DIRECT: choice j is place j. */
#include "common.glsl"
#include "weight.glsl"
#include "moe.glsl"
#if SUBGROUP
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif

layout(constant_id = 1) const uint T = 32;
layout(constant_id = 2) const uint AHEAD = 2; /* units loaded before they are used */
layout(constant_id = 3) const uint SG = 32;   /* subgroup size */
layout(constant_id = 4) const bool DIRECT = false;
layout(constant_id = 5) const uint K = 32;
layout(constant_id = 6) const uint N = 32;
layout(constant_id = 7) const uint N_USED = 1;
layout(constant_id = 8) const uint N_EXPERT = 1;
layout(constant_id = 9) const bool HAS_RES = false;

#include "moe_dot.glsl"

layout(push_constant, scalar) uniform Push {
    Params pr;
    Acts hid;
    F1 y;
    U4 w;
    U1 s, h;
    F1 res, ids;
    U1 z;
    U2 hd;
    F1 weights;
    U1 place_of;
};

const uint NU = K / 32, UNITS = N_USED * NU;

shared uint s_expert[N_USED], s_at[N_USED];
shared float s_weight[N_USED];
#if SUBGROUP
shared float part[WG / SG];
#else
shared float part[WG];
#endif

void main()
{
    uint tid = gl_LocalInvocationID.x, row = gl_WorkGroupID.x;
    if (row >= pr.n_rows[0]) return;
    for (uint j = tid; j < N_USED; j += WG) {
        uint i = row * N_USED + j, e = uint(ids.v[i]);
        s_expert[j] = e;
        s_at[j] = e < N_EXPERT ? (DIRECT ? j : place_of.v[i]) * K : 0u;
        s_weight[j] = weights.v[i];
    }
    barrier();
#if SUBGROUP
    const uint PER = T / SG;
    uint slot = gl_SubgroupID / PER, lane = gl_SubgroupID % PER * SG + gl_SubgroupInvocationID;
#else
    uint slot = tid / T, lane = tid % T;
#endif
    uint col = gl_WorkGroupID.y * (WG / T) + slot;
    float acc = 0.0;
    if (col < N)
        for (uint i0 = lane; i0 < UNITS; i0 += T * AHEAD) {
            Part p[AHEAD];
            [[unroll]] for (uint a = 0; a < AHEAD; a++) {
                uint i = min(i0 + a * T, UNITS - 1u), e = min(s_expert[i / NU], N_EXPERT - 1u);
                LOAD_PART(p[a], w, s, h, z, e * N + col, i % NU, NU);
            }
            [[unroll]] for (uint a = 0; a < AHEAD; a++) {
                uint i = i0 + a * T, j = min(i, UNITS - 1u) / NU, u = min(i, UNITS - 1u) % NU;
                float v = s_weight[j] * unit_dot(whole_of(p[a], u), hid, hd, s_at[j], u);
                if (i < UNITS && s_expert[j] < N_EXPERT) acc += v;
            }
        }
#if SUBGROUP
    acc = subgroupAdd(acc);
    if (PER > 1u) {
        if (gl_SubgroupInvocationID == 0u) part[gl_SubgroupID] = acc;
        barrier();
        if (lane == 0u)
            for (uint i = 1u; i < PER; i++) acc += part[gl_SubgroupID + i];
    }
#else
    part[tid] = acc;
    barrier();
    for (uint m = T / 2u; m > 0u; m >>= 1) {
        if (lane < m) part[tid] += part[tid + m];
        barrier();
    }
    acc = part[tid];
#endif
    if (lane != 0u || col >= N) return;
    y.v[row * N + col] = acc + (HAS_RES ? res.v[row * N + col] : 0.0);
}
