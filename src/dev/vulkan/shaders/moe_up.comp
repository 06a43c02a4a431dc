#version 460
#extension GL_GOOGLE_include_directive : require
/* The hidden layer of chosen experts, act(gate x) * (up x), for few rows: a workgroup takes 32 hidden columns
 * of one expert, for NC at a time of the (row, choice) pairs that chose it, so that weights are read once for several
 * rows; T threads take COLS columns at a time. A pair's results lie at its own number. The order of a row's sum
 * depends on T alone.
 *
 *   DIRECT  one row: workgroup y has choice y
 *   CHOOSE  DIRECT, and the choice is still to be made from the logits: each workgroup makes it, the first one
 *           writes it for others
 *   X_ROWS  not 0: rows of x have not been normed yet (matvec.comp, NORM_IN); their factor is multiplied to the
 *           products. CHOOSE: the logits come in parts behind the sums of squares (moe_parts.glsl)
 *   BY_PAIR workgroup y has the expert of pair y, unless an earlier pair has it too; else it has expert y
 *   PART    1: only the gate, to tmp; 2: only up, with the gate from tmp (gate and up of different types);
 *           3: one product of the pairs' hidden rows, to tmp
 *   HID     0: f32, 1: int8 with scales; columns past FF, to whole blocks, become zero */
#include "common.glsl"
#include "weight.glsl"
#include "act.glsl"
#if SUBGROUP
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

layout(constant_id = 1) const uint T = 32;
layout(constant_id = 2) const uint NC = 1;
layout(constant_id = 3) const uint SG = 32; /* subgroup size */
layout(constant_id = 4) const uint MODE = 0; /* 1: DIRECT, 2: CHOOSE, 4: BY_PAIR */
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
layout(constant_id = 20) const uint LIST = 1;  /* pairs looked through at a time */
layout(constant_id = 21) const uint AHEAD = 1; /* units loaded before they are used */
layout(constant_id = 22) const uint X_ROWS = 0;
layout(constant_id = 23) const float EPS = 0.0;

const bool DIRECT = (MODE & 1u) != 0u, CHOOSE = (MODE & 2u) != 0u, BY_PAIR = (MODE & 4u) != 0u;
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
    F1 ids;     /* CHOOSE: logits */
    F1 ids_out; /* CHOOSE */
    F1 tmp;     /* CHOOSE: weights */
};

const bool MERGED = (GLU_ACT & 16u) != 0u;
const uint NU = K / 32, NS = NU / STEP, FFP = (FF + 31) / 32 * 32, ROWS = MERGED ? 2 * FF : FF, UP0 = MERGED ? FF : 0;
const bool GATE = PART != 2u, UP = PART == 0u || PART == 2u;
const uint NA = NC * COLS; /* sums of a matrix */
#if SUBGROUP
const bool PASS = (PART | (HID ^ 1u) | (FF % 32u)) != 0u; /* a pass before the results become int8 */
#else
const bool PASS = true;
#endif

shared float value[NC * 32], value_up[PART == 0u ? NC * 32 : 1], factor[NC];
shared uint list[LIST], list_n, list_least;
#if SUBGROUP
shared float part[WG / SG * NA * 2];
#else
shared float part[WG * NA * 2];
#endif

#if SUBGROUP && ACT == 1
#include "moe_parts.glsl"
/* The rows' factors, a subgroup a row. Loads first, so that they fly while weights do. */
const uint NF = (NU + SG - 1) / SG;
float squares[NF];

uint row_at(uint c, uint n, uint first) { return DIRECT ? 0u : list[first + min(c, n - 1u)] / N_USED; }

void load_squares(uint n, uint first)
{
    if (X_ROWS == 0u || gl_SubgroupID >= n) return;
    [[unroll]] for (uint i = 0; i < NF; i++) {
        uint b = gl_SubgroupInvocationID + i * SG;
        squares[i] = b < NU ? square_of(xd, row_at(gl_SubgroupID, n, first), b) : 0.0;
    }
}

void row_factors(uint n, uint first)
{
    if (X_ROWS == 0u) return;
    for (uint c = gl_SubgroupID; c < n; c += WG / SG) {
        float sum = 0.0;
        [[unroll]] for (uint i = 0; i < NF; i++) {
            uint b = gl_SubgroupInvocationID + i * SG;
            sum += c == gl_SubgroupID ? squares[i] : b < NU ? square_of(xd, row_at(c, n, first), b) : 0.0;
        }
        sum = subgroupAdd(sum);
        if (gl_SubgroupInvocationID == 0u) factor[c] = norm_factor(sum);
    }
}
#else
void load_squares(uint n, uint first) {}
void row_factors(uint n, uint first) {}
void sum_parts(U2 xd, uint row) {}
void add_parts(float by) {}
#endif

#if SUBGROUP
/* Sum over T neighbours, or over the subgroup. */
float sum_lanes(float v)
{
    if (T >= SG) return subgroupAdd(v);
    [[unroll]] for (uint m = 1u; m < T; m *= 2u) v += subgroupShuffleXor(v, m);
    return v;
}
#endif

/* Sums over the T threads of a column, at its first thread. */
void reduce(uint lane, inout float g[NA], inout float u[NA])
{
#if SUBGROUP
    const uint PER = T / SG;
    [[unroll]] for (uint c = 0; c < NA; c++) {
        if (GATE) g[c] = sum_lanes(g[c]);
        if (UP) u[c] = sum_lanes(u[c]);
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

/* Units of COLS columns under way. */
Part next_gate[AHEAD * COLS], next_up[AHEAD * COLS];

void load_next(uint row, uint i0)
{
    [[unroll]] for (uint a = 0; a < AHEAD; a++)
        [[unroll]] for (uint k = 0; k < COLS; k++) {
            uint r = row + min(k, FF - 1u), i = min(i0 + a * T, NS - 1u);
            if (GATE) next_gate[a * COLS + k] = load_part(w, s, h, z, r, i, NU);
            if (UP) next_up[a * COLS + k] = load_part(w2, s2, h2, z2, r + UP0, i, NU);
        }
}

bool loaded = false; /* the first units are on their way already */

/* The row of the thread's first columns, from number `first` of the workgroup's on. */
uint row_of(uint expert, uint first)
{
    uint f = gl_WorkGroupID.x * 32u + first;
    return expert * ROWS + (FF % 32u != 0u ? min(f, FF - 1u) : f);
}

bool whole(uint u) { return NS % (AHEAD * T) == 0u || u < NS; }

/* COLS columns of n rows, from f0 + first on, to value[]. Units are on their way while those before are multiplied. */
void columns(uint first, uint lane, uint expert, uint n, uint at[NC])
{
    float g[NA], u[NA];
    uint row = row_of(expert, first);
    [[unroll]] for (uint c = 0; c < NA; c++) g[c] = u[c] = 0.0;
    if (!loaded) load_next(row, lane);
    loaded = false;
    [[dont_unroll]] for (uint i0 = lane; i0 < NS; i0 += T * AHEAD) {
        Part gate[AHEAD * COLS], up[AHEAD * COLS];
        [[unroll]] for (uint j = 0; j < AHEAD * COLS; j++) {
            if (GATE) gate[j] = next_gate[j];
            if (UP) up[j] = next_up[j];
        }
        if (i0 + T * AHEAD < NS) load_next(row, i0 + T * AHEAD);
        [[unroll]] for (uint a = 0; a < AHEAD; a++) {
            uint i = i0 + a * T;
            if (!whole(i)) break;
            Whole wg[COLS], wu[COLS];
            [[unroll]] for (uint k = 0; k < COLS; k++) {
                if (GATE) wg[k] = whole_of(gate[a * COLS + k], i);
                if (UP) wu[k] = whole_of(up[a * COLS + k], i);
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
    }
    reduce(lane, g, u);
    if (lane != 0u) return;
    [[unroll]] for (uint c = 0; c < NC; c++)
        [[unroll]] for (uint k = 0; k < COLS; k++) {
            value[c * 32u + first + k] = PART == 2u ? u[c * COLS + k] : g[c * COLS + k];
            if (PART == 0u) value_up[c * 32u + first + k] = u[c * COLS + k];
        }
}

float gated(float a, float b)
{
    if (LIMIT > 0.0) {
        a = min(a, LIMIT);
        b = clamp(b, -LIMIT, LIMIT);
    }
    return activate(GLU_ACT & 15u, a) * b;
}

/* Result i of the workgroup, row i / 32. */
float result(uint i)
{
    float f = X_ROWS > 0u ? factor[i / 32u] : 1.0;
    return PART == 0u ? gated(value[i] * f, value_up[i] * f) : value[i];
}

/* value[] of n rows as int8. */
void quantise(uint tid, uint f0, uint first, uint n)
{
    for (uint i = tid; i < n * 8u; i += WG) { /* 4 values a thread */
        uint c = i / 8u, b = i % 8u, to = (DIRECT ? gl_WorkGroupID.y : list[first + c]) * FFP + f0;
#if SUBGROUP
        vec4 v;
        [[unroll]] for (uint j = 0; j < 4u; j++) v[j] = PASS ? value[i * 4u + j] : result(i * 4u + j);
        vec4 m = abs(v);
        float top = max(max(m.x, m.y), max(m.z, m.w));
        [[unroll]] for (uint l = 1u; l < 8u; l *= 2u) top = max(top, subgroupShuffleXor(top, l));
        ivec4 r = ivec4(round(v * (top > 0.0 ? 127.0 / top : 0.0)));
        int s0 = r.x + r.y + r.z + r.w;
        [[unroll]] for (uint l = 1u; l < 4u; l *= 2u) s0 += subgroupShuffleXor(s0, l);
        int s1 = subgroupShuffleXor(s0, 4u);
#else
        float top = 0.0;
        for (uint j = 0u; j < 32u; j++) top = max(top, abs(value[c * 32u + j]));
        float id = top > 0.0 ? 127.0 / top : 0.0;
        ivec4 r;
        int s0 = 0, s1 = 0;
        [[unroll]] for (uint j = 0; j < 4u; j++) r[j] = int(round(value[i * 4u + j] * id));
        for (uint j = 0u; j < 16u && b == 0u; j++) {
            s0 += int(round(value[c * 32u + j] * id));
            s1 += int(round(value[c * 32u + 16u + j] * id));
        }
#endif
        hid.v[to / 4u + b] = uint(r.x & 255) | uint(r.y & 255) << 8 | uint(r.z & 255) << 16 | uint(r.w) << 24;
        if (b == 0u) hd.v[to / 32u] = uvec2(floatBitsToUint(top / 127.0), uint(s0 & 0xFFFF) | uint(s1) << 16);
    }
}

/* The workgroup's columns of n pairs, from list[first] on. */
void some_pairs(uint tid, uint expert, uint first, uint n)
{
    uint f0 = gl_WorkGroupID.x * 32u, at[NC];
    [[unroll]] for (uint c = 0; c < NC; c++) {
        uint pair = DIRECT ? gl_WorkGroupID.y : list[first + min(c, n - 1u)];
        at[c] = (PART == 3u ? pair : DIRECT ? 0u : pair / N_USED) * K;
    }
    if (!CHOOSE) load_squares(n, first);
    for (uint i = tid / T * COLS; i < 32u; i += WG / T * COLS) columns(i, tid % T, expert, n, at);
    if (!CHOOSE) row_factors(n, first);
    barrier();
    for (uint i = tid; PASS && i < n * 32u; i += WG) {
        uint c = i / 32u, f = f0 + i % 32u;
        uint to = (DIRECT ? gl_WorkGroupID.y : list[first + c]) * (PART == 3u ? FF : FFP) + f;
        float v = result(i);
        if (PART == 1u || (PART == 3u && f < FF)) tmp.v[to] = v;
        if (PART == 2u) v = gated(tmp.v[to], v);
        if (f >= FF) v = 0.0;
        value[i] = v;
        if ((PART & 1u) == 0u && HID == 0u) F1(hid).v[to] = v;
    }
    if ((PART & 1u) == 0u && HID == 1u) {
        if (PASS) barrier();
        quantise(tid, f0, first, n);
    }
}

void main()
{
#if SUBGROUP
    uint tid = gl_SubgroupID * SG + gl_SubgroupInvocationID;
#else
    uint tid = gl_LocalInvocationID.x;
#endif
    uint y = gl_WorkGroupID.y, expert;
    if (CHOOSE) {
        if (X_ROWS > 0u) {
            load_squares(1u, 0u);
            sum_parts(xd, 0u);
            row_factors(1u, 0u);
            barrier();
            add_parts(factor[0]);
        } else {
            for (uint i = tid; i < N_CLASS; i += WG) route_p[i] = ids.v[i];
        }
        barrier();
        I1 none;
        bool is_first = y == 0u && gl_WorkGroupID.x == 0u;
        choose(F1(pr), none, 0, is_first);
        if (is_first) store_choice(0u, ids_out, tmp);
        expert = route_id[y];
    } else if (DIRECT) {
        expert = uint(ids.v[y]);
    }
    if (DIRECT) {
        if (expert < N_EXPERT) some_pairs(tid, expert, 0u, 1u);
        return;
    }
    uint n_pairs = pr.n_rows[0] * N_USED;
    expert = !BY_PAIR ? y : y < n_pairs ? uint(ids.v[y]) : N_EXPERT;
    if (expert >= N_EXPERT) return;
    if (!BY_PAIR) { /* weights come while the pairs are looked for */
        load_next(row_of(expert, tid / T * COLS), tid % T);
        loaded = true;
    }
    for (uint p0 = 0u; p0 < n_pairs; p0 += LIST) {
        if (tid == 0u) {
            list_n = 0u;
            list_least = y;
        }
        barrier();
        for (uint i = tid; i < min(LIST, n_pairs - p0); i += WG) {
            if (uint(ids.v[p0 + i]) != expert) continue;
            list[atomicAdd(list_n, 1u)] = p0 + i;
            if (BY_PAIR) atomicMin(list_least, i);
        }
        barrier();
        if (BY_PAIR && list_least < y) return;
        for (uint first = 0u; first < list_n; first += NC) {
            some_pairs(tid, expert, first, min(NC, list_n - first));
            barrier();
        }
        barrier();
    }
}
