#version 460
#extension GL_GOOGLE_include_directive : require
/* y = W x for few rows of x (NC at most): T threads take R rows of W at a time, NB times, each thread a step of
 * weights (moe_dot.glsl) at a time, read once for all columns. -DACT: 0 f32 activations, 1 int8 (quantise.comp). The order of a column's
 * sum depends on T alone.
 *
 * With int8 activations a product does what stands around it in a layer (vk_fuse.c):
 *   NORM_IN    x is not normed yet: its f32 rows' sums of squares lie behind its scales, and because a norm's
 *              factor is common to a row it is multiplied to the result
 *   NORM_OUT   beside y it writes y times the next norm's weights as int8, with the sums of squares of y
 *   -DROUTER=1 with NORM_OUT: also what each block of 32 results adds to the products of a router of N_CLASS rows,
 *              whose input the norm's result is; see moe_parts.glsl
 *   -DGLU=1    a second matrix of the same shape; writes act(W x) * (W2 x) as int8 only
 * All but the first need whole blocks of 32 rows in a workgroup. */
#include "common.glsl"
#include "weight.glsl"
#if SUBGROUP
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
#if GLU
#include "act.glsl"
#endif

layout(constant_id = 1) const uint T = 32;
layout(constant_id = 2) const uint NC = 1;
layout(constant_id = 3) const bool HAS_BIAS = false;
layout(constant_id = 4) const bool HAS_RES = false;
layout(constant_id = 5) const uint SG = 32; /* subgroup size */
layout(constant_id = 6) const uint R = 1;
layout(constant_id = 7) const uint UN = 1; /* units loaded before their values are used */
layout(constant_id = 8) const uint NU = 1; /* units of a row */
layout(constant_id = 9) const bool NORM_IN = false;
layout(constant_id = 10) const bool NORM_OUT = false;
layout(constant_id = 11) const uint ACT_FN = 0;
layout(constant_id = 12) const uint NB = 1; /* times R rows, one after the other */
layout(constant_id = 13) const bool TURNED = false; /* what goes out as int8 goes through the transform of quant/hadamard.h first */
layout(constant_id = 14) const uint N_CLASS = 1;

#include "moe_dot.glsl"

layout(push_constant, scalar) uniform Push {
    Params pr;
    Acts x; /* int8: [NC][k], then at xd [NC][nu] (f32 scale, sums of both halves as int16) */
    F1 y;
    U4 w;
    U1 s, h;
#if GLU
    U4 w2;
    U1 s2;
#elif ROUTER
    F4 router;
    F1 res;
#else
    F1 bias, res;
#endif
    uint rows, k, n, nu;
    float scale; /* GLU: the clamp */
    float eps;   /* NORM_IN */
    U1 z;
#if ACT == 1
    U2 xd;
#if GLU
    U1 h2, z2;
#else
    F4 norm; /* NORM_OUT */
    U1 yq;
#endif
    U2 yd;
#endif
};

#if GLU
const uint M = 2;
#else
const uint M = 1;
#endif
const uint RW = WG / T * R * NB; /* rows of a workgroup */
const uint NA = M * R * NC;      /* sums of a thread */
#if SUBGROUP
const uint PER = T / SG;         /* parts of a sum */
shared float part[WG / SG * NB * NA];
#else
const uint PER = 1;
shared float part[WG * NA];
#endif
#if ACT == 1
shared float factor[NC];
#endif

const uint NS = NU / STEP; /* steps of a row */
bool whole(uint u) { return NS % (UN * T) == 0u || u < NS; }

float acc[NA];

void sum_rows(uint row0, uint lane)
{
    [[unroll]] for (uint i = 0; i < NA; i++) acc[i] = 0.0;
#if ACT == 1
    for (uint u0 = lane; u0 < NS; u0 += UN * T) {
        Part raw[UN * R * M];
        [[unroll]] for (uint j = 0; j < UN; j++)
            [[unroll]] for (uint r = 0; r < R; r++) {
                uint u = min(u0 + j * T, NS - 1u), row = min(row0 + r, n - 1u);
                raw[(j * R + r) * M] = load_part(w, s, h, z, row, u, NU);
#if GLU
                raw[(j * R + r) * M + 1u] = load_part(w2, s2, h2, z2, row, u, NU);
#endif
            }
        [[unroll]] for (uint j = 0; j < UN; j++) {
            uint u = u0 + j * T;
            if (!whole(u)) break;
            Whole q[R * M];
            [[unroll]] for (uint r = 0; r < R * M; r++) q[r] = whole_of(raw[j * R * M + r], u);
            [[unroll]] for (uint c = 0; c < NC; c++) {
                Some v = load_some(x, xd, c * NU * 32u, u);
                [[unroll]] for (uint r = 0; r < R * M; r++) acc[c * R * M + r] += unit_dot(q[r], v);
            }
        }
    }
#else
    for (uint u = lane; u < NU; u += T)
        [[unroll]] for (uint r = 0; r < R; r++) {
            uint ea = unit_a(u), eb = unit_b(u);
            vec4 a[4], b[4];
            unit_values(w, s, h, z, min(row0 + r, n - 1u), u, NU, a, b);
            [[unroll]] for (uint c = 0; c < NC; c++) {
                uint ia = (c * k + ea) >> 2, ib = (c * k + eb) >> 2;
                float v = 0.0;
                [[unroll]] for (uint i = 0; i < 4u; i++) v += dot(a[i], x.v[ia + i]) + dot(b[i], x.v[ib + i]);
                acc[c * R + r] += v;
            }
        }
#endif
}

/* Sum i of row j of the workgroup (j / R: slot and batch). */
float total(uint j, uint i)
{
#if SUBGROUP
    uint slot = j / R % (WG / T), batch = j / (WG / T * R), at = (slot * PER * NB + batch) * NA + i;
    float v = part[at];
    [[unroll]] for (uint p = 1; p < PER; p++) v += part[at + p * NB * NA];
    return v;
#else
    return part[j / R * T * NA + i];
#endif
}

bool wanted(uint c) { return NC == 1u || c < pr.n_rows[rows]; }

#if ACT == 1 && SUBGROUP
/* The factors of the norm before: a subgroup a column. Loads first, so that they fly while weights do. */
const uint NF = (NU + SG - 1u) / SG;
float square_parts[NF];

void load_squares()
{
    if (!NORM_IN || gl_SubgroupID >= NC) return;
    [[unroll]] for (uint i = 0; i < NF; i++) {
        uint b = gl_SubgroupInvocationID + i * SG;
        square_parts[i] = b < NU ? uintBitsToFloat(U1(xd).v[(2u * NC + gl_SubgroupID) * NU + b]) : 0.0;
    }
}

void norm_factors()
{
    for (uint c = gl_SubgroupID; c < NC; c += WG / SG) {
        float sum = 0.0;
        [[unroll]] for (uint i = 0; i < NF; i++) {
            uint b = gl_SubgroupInvocationID + i * SG;
            sum += c == gl_SubgroupID ? square_parts[i] : b < NU ? uintBitsToFloat(U1(xd).v[(2u * NC + c) * NU + b]) : 0.0;
        }
        sum = subgroupAdd(sum);
        if (gl_SubgroupInvocationID == 0u) factor[c] = 1.0 / sqrt(sum / float(NU * 32u) + eps);
    }
}

#if !GLU
/* What follows a product, for elements 4 i .. of the workgroup's results: loaded before the product. */
vec4 early_res, early_norm;

void load_early(uint i, uint first)
{
    uint c = i / (RW / 4u), e = first + i % (RW / 4u) * 4u;
    bool on = i < RW * NC / 4u && e < n && wanted(c);
    early_res = HAS_RES && on ? F4(res).v[(c * n + e) / 4u] : vec4(0.0);
    early_norm = NORM_OUT && on ? norm.v[e / 4u] : vec4(0.0);
}
#endif

/* The transform of 32 values that 8 neighbours hold; the order of sums is part of it. */
vec4 turn_lanes(vec4 v)
{
    precise vec4 a = vec4(v.x + v.y, v.x - v.y, v.z + v.w, v.z - v.w);
    precise vec4 b = vec4(a.xy + a.zw, a.xy - a.zw);
    [[unroll]] for (uint m = 1u; m < 8u; m *= 2u) {
        vec4 other = subgroupShuffleXor(b, m);
        b = (gl_SubgroupInvocationID & m) != 0u ? other - b : b + other;
    }
    b *= 0.17677669529663687;
    return b;
}

#if ROUTER
/* A block's parts of the router's products: 4 threads a class. The first of a thread's weights are loaded early. */
shared vec4 normed[RW * NC / 4];
vec4 early_router[2];

void load_router(uint i, uint first)
{
    uint at = (i / 4u * n + first) / 4u + i % 4u * 2u;
    [[unroll]] for (uint j = 0; j < 2u; j++) early_router[j] = i < N_CLASS * 4u ? router.v[at + j] : vec4(0.0);
}

void router_parts(uint tid, uint first)
{
    for (uint i = tid; i < N_CLASS * 4u; i += WG) {
        if (i != tid) load_router(i, first);
        [[unroll]] for (uint c = 0; c < NC; c++) {
            uint at = c * (RW / 4u) + i % 4u * 2u;
            float v = dot(early_router[0], normed[at]) + dot(early_router[1], normed[at + 1u]);
            v += subgroupShuffleXor(v, 1u);
            v += subgroupShuffleXor(v, 2u);
            if (i % 4u == 0u && wanted(c)) U1(yd).v[3u * NC * (n / 32u) + (first / 32u * NC + c) * N_CLASS + i / 4u] = floatBitsToUint(v);
        }
    }
}
#endif

/* Results 4 i .. of the workgroup, which begins at row `first`, also as int8; 8 neighbours hold a block. */
void finish_four(uint i, uint first)
{
    uint c = i / (RW / 4u), j = i % (RW / 4u) * 4u, e = first + j, nb = n / 32u;
    if (e >= n || !wanted(c)) return;
    float f = NORM_IN ? factor[c] : 1.0;
    vec4 v;
    [[unroll]] for (uint r = 0; r < 4u; r++) {
        uint at = (c * R + (j + r) % R) * M;
        v[r] = total(j + r, at) * f;
#if GLU
        float u = total(j + r, at + 1u) * f;
        if (scale > 0.0) {
            v[r] = min(v[r], scale);
            u = clamp(u, -scale, scale);
        }
        v[r] = activate(ACT_FN, v[r]) * u;
#endif
    }
#if !GLU
#if !ROUTER
    if (HAS_BIAS) v += F4(bias).v[e / 4u];
#endif
    v = v * scale + early_res;
    F4(y).v[(c * n + e) / 4u] = v;
    float square = dot(v, v);
    v *= early_norm;
#if ROUTER
    normed[i] = v;
#endif
    [[unroll]] for (uint m = 1u; m < 8u; m *= 2u) square += subgroupShuffleXor(square, m);
    U1 q = yq;
#else
    U1 q = U1(y);
#endif
    if (TURNED) v = turn_lanes(v);
    vec4 a = abs(v);
    float top = max(max(a.x, a.y), max(a.z, a.w));
    [[unroll]] for (uint m = 1u; m < 8u; m *= 2u) top = max(top, subgroupShuffleXor(top, m));
    bool some = top > 1e-35;
    float inv = some ? TURNED ? div_exact(127.0, top) : 127.0 / top : 0.0;
    float unit = some ? TURNED ? div_exact(top, 127.0) : top / 127.0 : 0.0;
    precise vec4 scaled = v * inv;
    ivec4 r = ivec4(roundEven(scaled));
    int sum = r.x + r.y + r.z + r.w;
    [[unroll]] for (uint m = 1u; m < 4u; m *= 2u) sum += subgroupShuffleXor(sum, m);
    int other = subgroupShuffleXor(sum, 4u);
    q.v[(c * n + e) / 4u] = uint(r.x & 255) | uint(r.y & 255) << 8 | uint(r.z & 255) << 16 | uint(r.w) << 24;
    if (i % 8u != 0u) return;
    yd.v[c * nb + e / 32u] = uvec2(floatBitsToUint(unit), uint(sum & 0xFFFF) | uint(other) << 16);
#if !GLU
    U1(yd).v[(2u * NC + c) * nb + e / 32u] = floatBitsToUint(square);
#endif
}
#endif

void main()
{
#if SUBGROUP
    uint slot = gl_SubgroupID / PER, lane = gl_SubgroupID % PER * SG + gl_SubgroupInvocationID;
    uint tid = gl_SubgroupID * SG + gl_SubgroupInvocationID;
#else
    uint tid = gl_LocalInvocationID.x, slot = tid / T, lane = tid % T;
#endif
    uint first = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * RW;
    if (first >= n) return;
#if SUBGROUP
#if ACT == 1
    load_squares();
#if !GLU
    if (NORM_OUT) load_early(tid, first);
#endif
#if ROUTER
    load_router(tid, first);
#endif
#endif
    [[dont_unroll]] for (uint b = 0; b < NB; b++) {
        sum_rows(first + (b * (WG / T) + slot) * R, lane);
        [[unroll]] for (uint i = 0; i < NA; i++) acc[i] = subgroupAdd(acc[i]);
        if (gl_SubgroupInvocationID == 0u)
            [[unroll]] for (uint i = 0; i < NA; i++) part[(gl_SubgroupID * NB + b) * NA + i] = acc[i];
    }
#if ACT == 1
    if (NORM_IN) norm_factors();
#endif
    barrier();
#if ACT == 1
    if (NORM_OUT || M == 2u) {
        for (uint i = tid; i < RW * NC / 4u; i += WG) {
#if !GLU
            if (i != tid) load_early(i, first);
#endif
            finish_four(i, first);
        }
#if ROUTER
        barrier();
        router_parts(tid, first);
#endif
        return;
    }
#endif
#else
    sum_rows(first + slot * R, lane);
    [[unroll]] for (uint i = 0; i < NA; i++) part[tid * NA + i] = acc[i];
    barrier();
    for (uint m = T / 2u; m > 0u; m >>= 1) {
        if (lane < m)
            [[unroll]] for (uint i = 0; i < NA; i++) part[tid * NA + i] += part[(tid + m) * NA + i];
        barrier();
    }
#endif
#if !GLU
    for (uint i = tid; i < RW * NC; i += WG) {
        uint c = i / RW, j = i % RW, row = first + j;
        if (row >= n || !wanted(c)) continue;
        float v = total(j, c * R + j % R);
#if ACT == 1
        if (NORM_IN) v *= factor[c];
#endif
#if !ROUTER
        if (HAS_BIAS) v += bias.v[row];
#endif
        v *= scale;
        if (HAS_RES) v += res.v[c * n + row];
        y.v[c * n + row] = v;
    }
#endif
}
