#version 460
#extension GL_GOOGLE_include_directive : require
/* y = res + sum_j weight_j * the product of choice j (moe_gemm.comp, moe_up.comp). A thread 4 columns of a row. */
#include "common.glsl"
#include "moe.glsl"

layout(constant_id = 1) const uint N_USED = 1;
layout(constant_id = 2) const bool HAS_RES = false;
layout(constant_id = 3) const bool SORTED = false; /* else a pair's product lies at its own number */
layout(constant_id = 4) const uint N_EXPERT = 1;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F4 part, y, res;
    F1 weights;
    U1 place_of;
    F1 ids;
    F1 unused;
    uint n4;
};

void main()
{
    uint c = gl_WorkGroupID.y * WG + gl_LocalInvocationID.x, row = gl_WorkGroupID.x;
    if (row >= pr.n_rows[0] || c >= n4) return;
    vec4 sum = vec4(0.0);
    for (uint j = 0u; j < N_USED; j++) {
        uint i = row * N_USED + j, place = SORTED ? place_of.v[i] : uint(ids.v[i]) < N_EXPERT ? i : NOWHERE;
        if (place != NOWHERE) sum += weights.v[i] * part.v[place * n4 + c];
    }
    y.v[row * n4 + c] = sum + (HAS_RES ? res.v[row * n4 + c] : vec4(0.0));
}
