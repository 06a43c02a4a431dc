#version 460
#extension GL_GOOGLE_include_directive : require
/* Rows for products with rotated weights: through the transform, then in the form that they read (form.glsl), by a pass of
 * its own. A thread 4 elements, k a multiple of 32. PLACES: rows are places of a mixture, each of the row of tokens that row_of
 * tells (moe.glsl), or without it PER_ROW of each row. */
#include "common.glsl"
#include "form.glsl"

layout(constant_id = 1) const bool HALF = false; /* f16 comes in */
layout(constant_id = 2) const uint PLACES = 0;   /* 1: PER_ROW, 2: by row_of */
layout(constant_id = 3) const uint PER_ROW = 1;

layout(push_constant, scalar) uniform Push {
    Params pr;
    U4 x;
    U1 q;
    U2 d;
    U1 row_of;
    F1 unused[3];
    uint rows, k, n_places;
};

void main()
{
    uint e = gl_WorkGroupID.y * WG + gl_LocalInvocationID.x, row = gl_WorkGroupID.x, of = row, n_tok = pr.n_rows[rows];
    if (row >= (PLACES != 0u ? n_places : n_tok)) return;
    /* Places that nobody has hold anything. */
    if (PLACES == 1u) of = min(row / PER_ROW, n_tok - 1u);
    if (PLACES == 2u) of = min(row_of.v[row], n_tok - 1u);
    bool on = e < k / 4u;
    vec4 v = vec4(0.0);
    uint i = row * (k / 4u) + e;
    if (on && HALF) {
        uvec2 h = U2(x).v[i];
        v = vec4(unpackHalf2x16(h.x), unpackHalf2x16(h.y));
    } else if (on) {
        v = uintBitsToFloat(x.v[i]);
    }
    store_form(on, v, row, e, k, q, d, is_coarse(pr, rows, of));
}
