#version 460
#extension GL_GOOGLE_include_directive : require
/* The hidden layer of chosen experts, act(gate x) * (up x), for few rows: a workgroup takes 32 hidden
 * columns of a tile of at most NC rows that chose the same expert; T threads take COLS columns at a time. The
 * order of a row's sum depends neither on NC nor on the tile.
 *
 *   DIRECT  one row: choice y of it is tile y and place y, nothing was sorted
 *   CHOOSE  DIRECT, and the choice is still to be made from the logits: each workgroup makes it, the first one
 *           writes it for others
 *   PART    1: only the gate, to tmp; 2: only up, with the gate from tmp (gate and up of different types);
 *           3: one product of the hidden rows [place], to tmp
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
layout(constant_id = 4) const uint MODE = 0; /* 1: DIRECT, 2: CHOOSE */
layout(constant_id = 5) const uint PART = 0;
layout(constant_id = 6) const uint HID = 0;
layout(constant_id = 7) const uint K = 32;
layout(constant_id = 8) const uint FF = 32;
layout(constant_id = 9) const uint N_EXPERT = 1;
layout(constant_id = 10) const uint GLU_ACT = 1; /* 16: gate and up are one matrix, up's rows after the gate's */
layout(constant_id = 11) const float LIMIT = 0.0;
layout(constant_id = 12) const uint COLS = 1;
layout(constant_id = 13) const uint N_CLASS = 1; /* from here on as in moe_route.comp, for CHOOSE */
layout(constant_id = 14) const uint N_USED = 1;
layout(constant_id = 15) const uint GATING = 1;
layout(constant_id = 16) const uint N_GROUP = 1;
layout(constant_id = 17) const uint N_GROUP_USED = 1;
layout(constant_id = 18) const uint FLAGS = 0;
layout(constant_id = 19) const float SCALE = 1.0;

const bool DIRECT = (MODE & 1u) != 0u, CHOOSE = (MODE & 2u) != 0u;
const bool NORM = (FLAGS & 1u) != 0u, HAS_BIAS = (FLAGS & 2u) != 0u, HAS_TABLE = false;
#define RouteOut F1
#include "moe_choose.glsl"

#include "moe_dot.glsl"

layout(push_constant, scalar) uniform Push {
    Params pr; /* CHOOSE: the bias */
    Acts x;
    U1 hid;
    U4 w;
    U1 s, h;
    U4 w2;
    U1 s2, h2, z, z2;
    U2 xd, hd;
    MoeTable table; /* DIRECT: ids; CHOOSE: logits */
    U1 row_of;      /* CHOOSE: ids */
    F1 tmp;         /* CHOOSE: weights */
};

const bool MERGED = (GLU_ACT & 16u) != 0u;
const uint NU = K / 32, FFP = (FF + 31) / 32 * 32, ROWS = MERGED ? 2 * FF : FF, UP0 = MERGED ? FF : 0;
const bool GATE = PART != 2u, UP = PART == 0u || PART == 2u;
const uint NA = NC * COLS; /* sums of a matrix */

shared float value[NC * 32];
#if SUBGROUP
shared float part[WG / SG * NA * 2];
#else
shared float part[WG * NA * 2];
#endif

/* Sums over the T threads of a column, at its first thread. */
void reduce(uint lane, inout float g[NA], inout float u[NA])
{
#if SUBGROUP
    const uint PER = T / SG;
    [[unroll]] for (uint c = 0; c < NA; c++) {
        if (GATE) g[c] = subgroupAdd(g[c]);
        if (UP) u[c] = subgroupAdd(u[c]);
    }
    if (PER > 1u) {
        uint at = gl_SubgroupID * NA * 2u;
        if (gl_SubgroupInvocationID == 0u)
            [[unroll]] for (uint c = 0; c < NA; c++) {
                part[at + c] = g[c];
                part[at + NA + c] = u[c];
            }
        barrier();
        if (lane == 0u)
            [[unroll]] for (uint c = 0; c < NA; c++)
                for (uint i = 1u; i < PER; i++) {
                    g[c] += part[at + i * NA * 2u + c];
                    u[c] += part[at + i * NA * 2u + NA + c];
                }
        barrier();
    }
#else
    uint tid = gl_LocalInvocationID.x;
    [[unroll]] for (uint c = 0; c < NA; c++) {
        part[c * WG + tid] = g[c];
        part[(NA + c) * WG + tid] = u[c];
    }
    barrier();
    for (uint m = T / 2u; m > 0u; m >>= 1) {
        if (lane < m)
            [[unroll]] for (uint c = 0; c < 2u * NA; c++) part[c * WG + tid] += part[c * WG + tid + m];
        barrier();
    }
    [[unroll]] for (uint c = 0; c < NA; c++) {
        g[c] = part[c * WG + tid];
        u[c] = part[(NA + c) * WG + tid];
    }
    barrier();
#endif
}

/* COLS columns of the tile's rows, from f0 + first on, to value[]. */
void columns(uint f0, uint first, uint lane, uint expert, uint n, uint at[NC])
{
    float g[NA], u[NA];
    [[unroll]] for (uint c = 0; c < NA; c++) g[c] = u[c] = 0.0;
    for (uint i = lane; i < NU; i += T) {
        Part pg[COLS], pu[COLS];
        [[unroll]] for (uint k = 0; k < COLS; k++) {
            uint row = expert * ROWS + min(f0 + first + k, FF - 1u);
            if (GATE) LOAD_PART(pg[k], w, s, h, z, row, i, NU);
            if (UP) LOAD_PART(pu[k], w2, s2, h2, z2, row + UP0, i, NU);
        }
        Whole wg[COLS], wu[COLS];
        [[unroll]] for (uint k = 0; k < COLS; k++) {
            if (GATE) wg[k] = whole_of(pg[k], i);
            if (UP) wu[k] = whole_of(pu[k], i);
        }
        [[unroll]] for (uint c = 0; c < NC; c++)
            if (c < n) {
                Some v = load_some(x, xd, at[c], i);
                [[unroll]] for (uint k = 0; k < COLS; k++) {
                    if (GATE) g[c * COLS + k] += unit_dot(wg[k], v);
                    if (UP) u[c * COLS + k] += unit_dot(wu[k], v);
                }
            }
    }
    reduce(lane, g, u);
    if (lane == 0u)
        [[unroll]] for (uint c = 0; c < NC; c++)
            [[unroll]] for (uint k = 0; k < COLS; k++) {
                float a = g[c * COLS + k], b = u[c * COLS + k];
                if (PART == 0u) {
                    if (LIMIT > 0.0) {
                        a = min(a, LIMIT);
                        b = clamp(b, -LIMIT, LIMIT);
                    }
                    a = activate(GLU_ACT & 15u, a) * b;
                }
                value[c * 32u + first + k] = PART == 2u ? b : a;
            }
}

void main()
{
    uint tid = gl_LocalInvocationID.x, y = gl_WorkGroupID.y, expert, place = y, n = 1u;
    uint at[NC];
    [[unroll]] for (uint c = 0; c < NC; c++) at[c] = 0u;
    if (CHOOSE) {
        for (uint i = tid; i < N_CLASS; i += WG) route_p[i] = F1(table).v[i];
        barrier();
        I1 none;
        choose(F1(pr), none, 0);
        if (y == 0u && gl_WorkGroupID.x == 0u) store_choice(0u, F1(row_of), tmp);
        expert = route_id[y];
        if (expert >= N_EXPERT) return;
    } else if (DIRECT) {
        expert = uint(F1(table).v[y]);
        if (expert >= N_EXPERT) return;
    } else {
        if (y >= table.n_tiles) return;
        uvec4 t = table.tile[y];
        expert = t.x;
        place = t.y;
        n = t.z;
        [[unroll]] for (uint c = 0; c < NC; c++) {
            uint from = place + min(c, n - 1u);
            at[c] = (PART == 3u ? from : row_of.v[from]) * K;
        }
    }
#if SUBGROUP
    const uint PER = T / SG;
    uint slot = gl_SubgroupID / PER, lane = gl_SubgroupID % PER * SG + gl_SubgroupInvocationID;
#else
    uint slot = tid / T, lane = tid % T;
#endif
    uint f0 = gl_WorkGroupID.x * 32u;
    for (uint i = slot * COLS; i < 32u; i += WG / T * COLS) columns(f0, i, lane, expert, n, at);
    barrier();
    for (uint i = tid; i < n * 32u; i += WG) {
        uint c = i / 32u, f = f0 + i % 32u, to = (place + c) * (PART == 3u ? FF : FFP) + f;
        float v = value[i];
        if (PART == 1u || (PART == 3u && f < FF)) tmp.v[to] = v;
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
        if ((PART & 1u) == 0u && HID == 0u) F1(hid).v[to] = v;
    }
    if ((PART & 1u) != 0u || HID == 0u) return;
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
