#version 460
#extension GL_GOOGLE_include_directive : require
/* y = res + sum_j weight_j * (down of expert j) hidden_j for few rows: T threads take COLS output columns of a
 * row and walk the units of all its experts. DIRECT: choice j is place j. NORM_OUT: also what the next norm needs, as
 * in matvec.comp: y times the norm's weights as int8, and the sums of squares of y; a workgroup has whole blocks
 * of 32 columns. */
#include "common.glsl"
#include "weight.glsl"
#include "moe.glsl"
#if SUBGROUP
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
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
layout(constant_id = 10) const uint COLS = 1;
layout(constant_id = 11) const bool NORM_OUT = false;

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
    F4 norm;
    U1 yq;
    U2 yd;
};

const uint NU = K / 32, UNITS = N_USED * NU;

shared uint s_expert[N_USED], s_at[N_USED];
shared float s_weight[N_USED];
#if SUBGROUP
shared float part[WG / SG * COLS];
#else
shared float part[WG * COLS];
#endif

#if SUBGROUP
shared vec4 block[WG / T * COLS / 4 + 1];

/* Blocks of 32 results, 8 threads each. */
void quantise_block(uint row, uint first)
{
    uint tid = gl_SubgroupID * SG + gl_SubgroupInvocationID, nb = N / 32u, rows = gl_NumWorkGroups.x;
    for (uint i = tid; i < WG / T * COLS / 4u; i += WG) {
        vec4 v = block[i];
        float square = dot(v, v);
        v *= norm.v[first / 4u + i];
        vec4 a = abs(v);
        float top = max(max(a.x, a.y), max(a.z, a.w));
        [[unroll]] for (uint m = 1u; m < 8u; m *= 2u) top = max(top, subgroupShuffleXor(top, m));
        ivec4 r = ivec4(round(v * (top > 0.0 ? 127.0 / top : 0.0)));
        int sum = r.x + r.y + r.z + r.w;
        [[unroll]] for (uint m = 1u; m < 4u; m *= 2u) sum += subgroupShuffleXor(sum, m);
        int other = subgroupShuffleXor(sum, 4u);
        [[unroll]] for (uint m = 1u; m < 8u; m *= 2u) square += subgroupShuffleXor(square, m);
        yq.v[(row * N + first) / 4u + i] = uint(r.x & 255) | uint(r.y & 255) << 8 | uint(r.z & 255) << 16 | uint(r.w) << 24;
        if (i % 8u != 0u) continue;
        uint b = first / 32u + i / 8u;
        yd.v[row * nb + b] = uvec2(floatBitsToUint(top / 127.0), uint(sum & 0xFFFF) | uint(other) << 16);
        U1(yd).v[(2u * rows + row) * nb + b] = floatBitsToUint(square);
    }
}
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
    uint col = (gl_WorkGroupID.y * (WG / T) + slot) * COLS;
    float acc[COLS];
    [[unroll]] for (uint k = 0; k < COLS; k++) acc[k] = 0.0;
    for (uint i0 = lane; i0 < UNITS; i0 += T * AHEAD) {
        Part p[AHEAD * COLS];
        [[unroll]] for (uint a = 0; a < AHEAD; a++) {
            uint i = min(i0 + a * T, UNITS - 1u), e = min(s_expert[i / NU], N_EXPERT - 1u) * N;
            [[unroll]] for (uint k = 0; k < COLS; k++)
                LOAD_PART(p[a * COLS + k], w, s, h, z, e + min(col + k, N - 1u), i % NU, NU);
        }
        [[unroll]] for (uint a = 0; a < AHEAD; a++) {
            uint i = i0 + a * T, j = min(i, UNITS - 1u) / NU, u = min(i, UNITS - 1u) % NU;
            Some v = load_some(hid, hd, s_at[j], u);
            bool on = i < UNITS && s_expert[j] < N_EXPERT;
            [[unroll]] for (uint k = 0; k < COLS; k++) {
                float d = s_weight[j] * unit_dot(whole_of(p[a * COLS + k], u), v);
                if (on) acc[k] += d;
            }
        }
    }
#if SUBGROUP
    [[unroll]] for (uint k = 0; k < COLS; k++) acc[k] = subgroupAdd(acc[k]);
    if (PER > 1u) {
        if (gl_SubgroupInvocationID == 0u)
            [[unroll]] for (uint k = 0; k < COLS; k++) part[gl_SubgroupID * COLS + k] = acc[k];
        barrier();
        if (lane == 0u)
            for (uint i = 1u; i < PER; i++)
                [[unroll]] for (uint k = 0; k < COLS; k++) acc[k] += part[(gl_SubgroupID + i) * COLS + k];
    }
#else
    [[unroll]] for (uint k = 0; k < COLS; k++) part[k * WG + tid] = acc[k];
    barrier();
    for (uint m = T / 2u; m > 0u; m >>= 1) {
        if (lane < m)
            [[unroll]] for (uint k = 0; k < COLS; k++) part[k * WG + tid] += part[k * WG + tid + m];
        barrier();
    }
    [[unroll]] for (uint k = 0; k < COLS; k++) acc[k] = part[k * WG + tid];
#endif
    [[unroll]] for (uint k = 0; k < COLS; k++)
        if (lane == 0u && col + k < N) {
            float v = acc[k] + (HAS_RES ? res.v[row * N + col + k] : 0.0);
            y.v[row * N + col + k] = v;
#if SUBGROUP
            if (NORM_OUT) block[(slot * COLS + k) / 4u][(slot * COLS + k) % 4u] = v;
#endif
        }
#if SUBGROUP
    if (!NORM_OUT) return;
    barrier();
    quantise_block(row, gl_WorkGroupID.y * (WG / T * COLS));
#endif
}
