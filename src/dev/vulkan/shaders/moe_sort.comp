#version 460
#extension GL_GOOGLE_include_directive : require
/* The pairs of many rows, sorted by one workgroup. */
#include "common.glsl"

layout(constant_id = 1) const uint N_USED = 1;
layout(constant_id = 2) const uint N_EXPERT = 1;
layout(constant_id = 3) const uint TILE = 1;
layout(constant_id = 4) const uint PAD = 1;

#define SortIds F1
#include "moe_sort.glsl"

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 ids;
    MoeTable table;
    U1 row_of, place_of;
};

void main()
{
    sort_pairs(ids, pr.n_rows[0] * N_USED, table, row_of, place_of);
}
