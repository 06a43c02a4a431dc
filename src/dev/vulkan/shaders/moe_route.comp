#version 460
#extension GL_GOOGLE_include_directive : require
/* Which experts a row takes and with which weights (ob_route_params in ops.h): a workgroup a row. With TILE
 * the last one to finish sorts the pairs of all rows. X_ROWS not 0: the logits come in parts (moe_parts.glsl). */
#include "common.glsl"

layout(constant_id = 1) const uint N_CLASS = 8;
layout(constant_id = 2) const uint N_USED = 1;
layout(constant_id = 3) const uint GATING = 1;
layout(constant_id = 4) const uint N_GROUP = 1;
layout(constant_id = 5) const uint N_GROUP_USED = 1;
layout(constant_id = 6) const uint FLAGS = 0; /* 1: normalise, 2: bias, 4: the token says which experts */
layout(constant_id = 7) const float SCALE = 1.0;
layout(constant_id = 8) const uint N_EXPERT = 1;
layout(constant_id = 9) const uint TILE = 0;
layout(constant_id = 10) const uint PAD = 1;
layout(constant_id = 11) const uint X_ROWS = 0;
layout(constant_id = 12) const uint NU = 1;
layout(constant_id = 13) const float EPS = 0.0;

const bool NORM = (FLAGS & 1u) != 0u, HAS_BIAS = (FLAGS & 2u) != 0u, HAS_TABLE = (FLAGS & 4u) != 0u;

/* Written and read by different workgroups of one dispatch. */
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer C1 { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Count { uint v[]; };
#define RouteOut C1
#define SortIds C1
#include "moe_choose.glsl"
#include "moe_sort.glsl"
#include "moe_parts.glsl"

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 logits; /* X_ROWS: the scales before the parts */
    C1 ids;
    C1 weights;
    F1 bias;
    I1 chosen, tok;
    MoeTable table;
    U1 row_of, place_of;
    Count done; /* 0 between steps */
};

shared uint s_order;

void logits_of_parts(uint row)
{
    uint tid = gl_LocalInvocationID.x;
    U2 xd = U2(uvec2(logits));
    float squares = 0.0;
    for (uint b = tid; b < NU; b += WG) squares += square_of(xd, row, b);
    route_part[tid] = squares;
    sum_parts(xd, row);
    barrier();
    for (uint m = WG / 2u; m > 0u; m >>= 1) {
        if (tid < m) route_part[tid] += route_part[tid + m];
        barrier();
    }
    add_parts(norm_factor(route_part[0]));
}

void main()
{
    uint row = gl_WorkGroupID.x, tid = gl_LocalInvocationID.x, n_rows = pr.n_rows[0];
    if (row >= n_rows) return;
    if (X_ROWS > 0u) logits_of_parts(row);
    else
        for (uint i = tid; i < N_CLASS; i += WG) route_p[i] = logits.v[row * N_CLASS + i];
    barrier();
    choose(bias, chosen, HAS_TABLE ? tok.v[row] : 0, true);
    store_choice(row, ids, weights);
    if (TILE == 0u) return;
    memoryBarrierBuffer();
    barrier();
    if (tid == 0u) s_order = atomicAdd(done.v[0], 1u);
    barrier();
    if (s_order + 1u != n_rows) return;
    memoryBarrierBuffer();
    if (tid == 0u) done.v[0] = 0u;
    sort_pairs(ids, n_rows * N_USED, table, row_of, place_of);
}
