#version 460
#extension GL_GOOGLE_include_directive : require
/* glu, or act alone, for rows of a multiple of 32 columns, also in the form that the next product reads. A thread 4 elements. */
#include "common.glsl"
#include "act.glsl"
#include "form.glsl"

layout(constant_id = 1) const uint ACT = 1;
layout(constant_id = 2) const bool HAS_UP = true;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F4 x, x2, y;
    U1 fq;
    U2 fd;
    F1 unused[2];
    uint rows, cols;
    float limit;
};

void main()
{
    uint e = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, row = gl_WorkGroupID.y;
    if (row >= pr.n_rows[rows]) return;
    bool on = e < cols / 4u;
    vec4 v = vec4(0.0);
    if (on) {
        uint i = row * (cols / 4u) + e;
        vec4 g = x.v[i], u = HAS_UP ? x2.v[i] : vec4(1.0);
        if (HAS_UP && limit > 0.0) {
            g = min(g, vec4(limit));
            u = clamp(u, vec4(-limit), vec4(limit));
        }
        [[unroll]] for (uint k = 0; k < 4u; k++) v[k] = activate(ACT, g[k]) * u[k];
        y.v[i] = v;
    }
    store_form(on, v, row, e, cols, fq, fd, is_coarse(pr, rows, row));
}
