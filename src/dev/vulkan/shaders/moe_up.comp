#version 460
#extension GL_GOOGLE_include_directive : require
/* The hidden layer of chosen experts, act(gate x) * (up x), for few rows: a workgroup takes 32 hidden
 * columns of a tile of at most NC rows that chose the same expert, T threads a column. The order of a
 * row's sum depends neither on NC nor on the tile.
 *
 *   DIRECT  one row: choice y of it is tile y and place y, nothing was sorted
 *   PART    1: only the gate, to tmp; 2: only up, with the gate from tmp (gate and up of different types)
 *   HID     0: f32, 1: int8 with scales; columns past FF, to whole blocks, become zero */
#include "common.glsl"
#include "weight.glsl"
#include "act.glsl"
#include "moe.glsl"
#if SUBGROUP
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif

layout(constant_id = 1) const uint T = 32;
layout(constant_id = 2) const uint NC = 1;
layout(constant_id = 3) const uint SG = 32; /* subgroup size */
layout(constant_id = 4) const bool DIRECT = false;
layout(constant_id = 5) const uint PART = 0;
layout(constant_id = 6) const uint HID = 0;
layout(constant_id = 7) const uint K = 32;
layout(constant_id = 8) const uint FF = 32;
layout(constant_id = 9) const uint N_EXPERT = 1;
layout(constant_id = 10) const uint GLU_ACT = 1; /* 16: gate and up are one matrix, up's rows after the gate's */
layout(constant_id = 11) const float LIMIT = 0.0;

#include "moe_dot.glsl"

layout(push_constant, scalar) uniform Push {
    Params pr;
    Acts x;
    U1 hid;
    U4 w;
    U1 s, h;
    U4 w2;
    U1 s2, h2, z, z2;
    U2 xd, hd;
    MoeTable table; /* DIRECT: ids */
    U1 row_of;
    F1 tmp;
};

const bool MERGED = (GLU_ACT & 16u) != 0u;
const uint NU = K / 32, FFP = (FF + 31) / 32 * 32, ROWS = MERGED ? 2 * FF : FF, UP0 = MERGED ? FF : 0;
const bool GATE = PART != 2u, UP = PART != 1u;

shared float value[NC * 32];
#if SUBGROUP
shared float part[WG / SG * NC * 2];
#else
shared float part[WG * NC * 2];
#endif

/* Sums over the T threads of a column, at its first thread. */
void reduce(uint lane, inout float g[NC], inout float u[NC])
{
#if SUBGROUP
    const uint PER = T / SG;
    [[unroll]] for (uint c = 0; c < NC; c++) {
        if (GATE) g[c] = subgroupAdd(g[c]);
        if (UP) u[c] = subgroupAdd(u[c]);
    }
    if (PER > 1u) {
        uint at = gl_SubgroupID * NC * 2u;
        if (gl_SubgroupInvocationID == 0u)
            [[unroll]] for (uint c = 0; c < NC; c++) {
                part[at + c] = g[c];
                part[at + NC + c] = u[c];
            }
        barrier();
        if (lane == 0u)
            [[unroll]] for (uint c = 0; c < NC; c++)
                for (uint i = 1u; i < PER; i++) {
                    g[c] += part[at + i * NC * 2u + c];
                    u[c] += part[at + i * NC * 2u + NC + c];
                }
        barrier();
    }
#else
    uint tid = gl_LocalInvocationID.x;
    [[unroll]] for (uint c = 0; c < NC; c++) {
        part[c * WG + tid] = g[c];
        part[(NC + c) * WG + tid] = u[c];
    }
    barrier();
    for (uint m = T / 2u; m > 0u; m >>= 1) {
        if (lane < m)
            [[unroll]] for (uint c = 0; c < 2u * NC; c++) part[c * WG + tid] += part[c * WG + tid + m];
        barrier();
    }
    [[unroll]] for (uint c = 0; c < NC; c++) {
        g[c] = part[c * WG + tid];
        u[c] = part[(NC + c) * WG + tid];
    }
    barrier();
#endif
}

/* Column f of the tile's rows to value[]. */
void column(uint f, uint slot, uint lane, uint expert, uint n, uint at[NC])
{
    float g[NC], u[NC];
    [[unroll]] for (uint c = 0; c < NC; c++) g[c] = u[c] = 0.0;
    uint row = expert * ROWS + min(f, FF - 1u);
    for (uint i = lane; i < NU; i += T) {
        Part pg, pu;
        if (GATE) LOAD_PART(pg, w, s, h, z, row, i, NU);
        if (UP) LOAD_PART(pu, w2, s2, h2, z2, row + UP0, i, NU);
        if (GATE) {
            Whole a = whole_of(pg, i);
            [[unroll]] for (uint c = 0; c < NC; c++)
                if (c < n) g[c] += unit_dot(a, x, xd, at[c], i);
        }
        if (UP) {
            Whole b = whole_of(pu, i);
            [[unroll]] for (uint c = 0; c < NC; c++)
                if (c < n) u[c] += unit_dot(b, x, xd, at[c], i);
        }
    }
    reduce(lane, g, u);
    if (lane == 0u)
        [[unroll]] for (uint c = 0; c < NC; c++) {
            value[c * 32u + slot] = g[c];
            if (PART == 0u) {
                float a = g[c], b = u[c];
                if (LIMIT > 0.0) {
                    a = min(a, LIMIT);
                    b = clamp(b, -LIMIT, LIMIT);
                }
                value[c * 32u + slot] = activate(GLU_ACT & 15u, a) * b;
            } else if (PART == 2u) {
                value[c * 32u + slot] = u[c];
            }
        }
}

void main()
{
    uint tid = gl_LocalInvocationID.x, y = gl_WorkGroupID.y, expert, place = y, n = 1u;
    uint at[NC];
    [[unroll]] for (uint c = 0; c < NC; c++) at[c] = 0u;
    if (DIRECT) {
        expert = uint(F1(table).v[y]);
        if (expert >= N_EXPERT) return;
    } else {
        if (y >= table.n_tiles) return;
        uvec4 t = table.tile[y];
        expert = t.x;
        place = t.y;
        n = t.z;
        [[unroll]] for (uint c = 0; c < NC; c++) at[c] = row_of.v[place + min(c, n - 1u)] * K;
    }
#if SUBGROUP
    const uint PER = T / SG;
    uint slot = gl_SubgroupID / PER, lane = gl_SubgroupID % PER * SG + gl_SubgroupInvocationID;
#else
    uint slot = tid / T, lane = tid % T;
#endif
    uint f0 = gl_WorkGroupID.x * 32u;
    for (uint i = slot; i < 32u; i += WG / T) column(f0 + i, i, lane, expert, n, at);
    barrier();
    for (uint i = tid; i < n * 32u; i += WG) {
        uint c = i / 32u, f = f0 + i % 32u, to = (place + c) * FFP + f;
        float v = value[i];
        if (PART == 1u) tmp.v[to] = v;
        if (PART == 2u) {
            float a = tmp.v[to];
            if (LIMIT > 0.0) {
                a = min(a, LIMIT);
                v = clamp(v, -LIMIT, LIMIT);
            }
            v *= activate(GLU_ACT & 15u, a);
        }
        if (f >= FF) v = 0.0;
        value[i] = v;
        if (PART != 1u && HID == 0u) F1(hid).v[to] = v;
    }
    if (PART == 1u || HID == 0u) return;
    barrier();
    for (uint i = tid; i < n * 8u; i += WG) { /* 4 values a thread; the scale 8 times */
        uint c = i / 8u, b = i % 8u;
        float top = 0.0;
        for (uint j = 0u; j < 32u; j++) top = max(top, abs(value[c * 32u + j]));
        float id = top > 0.0 ? 127.0 / top : 0.0;
        ivec4 r;
        [[unroll]] for (uint j = 0; j < 4u; j++) r[j] = int(round(value[c * 32u + b * 4u + j] * id));
        hid.v[((place + c) * FFP + f0) / 4u + b] = uint(r.x & 255) | uint(r.y & 255) << 8 | uint(r.z & 255) << 16 | uint(r.w) << 24;
        if (b != 0u) continue;
        int s0 = 0, s1 = 0;
        for (uint j = 0u; j < 16u; j++) {
            s0 += int(round(value[c * 32u + j] * id));
            s1 += int(round(value[c * 32u + 16u + j] * id));
        }
        hd.v[((place + c) * FFP + f0) / 32u] = uvec2(floatBitsToUint(top / 127.0), uint(s0 & 0xFFFF) | uint(s1) << 16);
    }
}
