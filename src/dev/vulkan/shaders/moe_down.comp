#version 460
#extension GL_GOOGLE_include_directive : require
/* y = res + sum_j weight_j * (down of expert j) hidden_j for few rows: T threads take COLS output columns of a
 * row and walk the units of all its experts. NORM_OUT: also what the next norm needs, as
 * in matvec.comp: y times the norm's weights as int8, and the sums of squares of y; a workgroup has whole blocks
 * of 32 columns. */
#include "common.glsl"
#include "weight.glsl"
#if SUBGROUP
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

layout(constant_id = 1) const uint T = 32;
layout(constant_id = 2) const uint AHEAD = 2; /* units loaded before they are used */
layout(constant_id = 3) const uint SG = 32;   /* subgroup size */
layout(constant_id = 4) const uint K = 32;
layout(constant_id = 5) const uint N = 32;
layout(constant_id = 6) const uint N_USED = 1;
layout(constant_id = 7) const uint N_EXPERT = 1;
layout(constant_id = 8) const bool HAS_RES = false;
layout(constant_id = 9) const uint COLS = 1;
layout(constant_id = 10) const bool NORM_OUT = false;

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
    F4 norm;
    U1 yq;
    U2 yd;
};

const uint NU = K / 32, NS = NU / STEP, STEPS = N_USED * NS;

shared uint s_expert[N_USED];
shared float s_weight[N_USED];
#if SUBGROUP
shared float part[WG / SG * COLS];
#else
shared float part[WG * COLS];
#endif

#if SUBGROUP
const uint OWN = WG / T * COLS; /* columns of the workgroup */
shared float sums[OWN];
vec4 early_res, early_norm; /* what follows the sums, loaded before them */

void load_early(uint tid, uint row, uint first)
{
    if (!NORM_OUT || tid >= OWN / 4u) return;
    early_res = HAS_RES ? F4(res).v[(row * N + first) / 4u + tid] : vec4(0.0);
    early_norm = norm.v[first / 4u + tid];
}

/* Results 4 tid .. of the workgroup; 8 threads have a block of 32. */
void finish_four(uint tid, uint row, uint first)
{
    if (tid >= OWN / 4u) return;
    uint nb = N / 32u, rows = gl_NumWorkGroups.x;
    vec4 v = vec4(sums[4u * tid], sums[4u * tid + 1u], sums[4u * tid + 2u], sums[4u * tid + 3u]) + early_res;
    F4(y).v[(row * N + first) / 4u + tid] = v;
    float square = dot(v, v);
    v *= early_norm;
    vec4 a = abs(v);
    float top = max(max(a.x, a.y), max(a.z, a.w));
    [[unroll]] for (uint m = 1u; m < 8u; m *= 2u) top = max(top, subgroupShuffleXor(top, m));
    ivec4 r = ivec4(round(v * (top > 0.0 ? 127.0 / top : 0.0)));
    int sum = r.x + r.y + r.z + r.w;
    [[unroll]] for (uint m = 1u; m < 4u; m *= 2u) sum += subgroupShuffleXor(sum, m);
    int other = subgroupShuffleXor(sum, 4u);
    [[unroll]] for (uint m = 1u; m < 8u; m *= 2u) square += subgroupShuffleXor(square, m);
    yq.v[(row * N + first) / 4u + tid] = uint(r.x & 255) | uint(r.y & 255) << 8 | uint(r.z & 255) << 16 | uint(r.w) << 24;
    if (tid % 8u != 0u) return;
    uint b = first / 32u + tid / 8u;
    yd.v[row * nb + b] = uvec2(floatBitsToUint(top / 127.0), uint(sum & 0xFFFF) | uint(other) << 16);
    U1(yd).v[(2u * rows + row) * nb + b] = floatBitsToUint(square);
}
#endif

void main()
{
#if SUBGROUP
    uint tid = gl_SubgroupID * SG + gl_SubgroupInvocationID;
#else
    uint tid = gl_LocalInvocationID.x;
#endif
    uint row = gl_WorkGroupID.x;
    if (row >= pr.n_rows[0]) return;
#if SUBGROUP
    load_early(tid, row, gl_WorkGroupID.y * OWN);
#endif
    for (uint j = tid; j < N_USED; j += WG) {
        uint i = row * N_USED + j, e = uint(ids.v[i]);
        s_expert[j] = e;
        s_weight[j] = weights.v[i];
    }
    barrier();
    uint slot = tid / T, lane = tid % T, first = gl_WorkGroupID.y * (WG / T * COLS), col = first + slot * COLS;
    float acc[COLS];
    [[unroll]] for (uint k = 0; k < COLS; k++) acc[k] = 0.0;
    [[dont_unroll]] for (uint i0 = lane; i0 < STEPS; i0 += T * AHEAD) {
        Part p[AHEAD * COLS];
        [[unroll]] for (uint a = 0; a < AHEAD; a++) {
            uint i = min(i0 + a * T, STEPS - 1u), e = min(s_expert[i / NS], N_EXPERT - 1u) * N;
            [[unroll]] for (uint k = 0; k < COLS; k++)
                p[a * COLS + k] = load_part(w, s, h, z, e + min(col + k, N - 1u), i % NS, NU);
        }
        [[unroll]] for (uint a = 0; a < AHEAD; a++) {
            uint i = i0 + a * T, j = min(i, STEPS - 1u) / NS, u = min(i, STEPS - 1u) % NS;
            Some v = load_some(hid, hd, (row * N_USED + j) * K, u);
            bool on = i < STEPS && s_expert[j] < N_EXPERT;
            [[unroll]] for (uint k = 0; k < COLS; k++) {
                float d = s_weight[j] * unit_dot(whole_of(p[a * COLS + k], u), v);
                if (on) acc[k] += d;
            }
        }
    }
#if SUBGROUP
    const uint PER = T / SG;
    [[unroll]] for (uint k = 0; k < COLS; k++) {
        if (T >= SG) acc[k] = subgroupAdd(acc[k]);
        else
            [[unroll]] for (uint m = 1u; m < T; m *= 2u) acc[k] += subgroupShuffleXor(acc[k], m);
    }
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
#if SUBGROUP
    if (NORM_OUT) {
        if (lane == 0u)
            [[unroll]] for (uint k = 0; k < COLS; k++) sums[slot * COLS + k] = acc[k];
        barrier();
        finish_four(tid, row, first);
        return;
    }
#endif
    [[unroll]] for (uint k = 0; k < COLS; k++)
        if (lane == 0u && col + k < N) y.v[row * N + col + k] = acc[k] + (HAS_RES ? res.v[row * N + col + k] : 0.0);
}
