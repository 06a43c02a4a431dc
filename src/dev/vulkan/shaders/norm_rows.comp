#version 460
#extension GL_GOOGLE_include_directive : require
/* RMS norm of whole rows, also in the form that the next product reads: a workgroup a row, which it holds in
 * registers. */
#include "common.glsl"
#include "form.glsl"
#extension GL_KHR_shader_subgroup_arithmetic : require

layout(constant_id = 1) const uint NV = 1; /* fours a thread */
layout(constant_id = 2) const bool HAS_W = true;
layout(constant_id = 3) const uint SG = 32; /* subgroup size */
layout(constant_id = 4) const bool GATHER = false; /* of x's rows those the outputs want */
layout(constant_id = 5) const bool WRITE_Y = true;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F4 x, y, w;
    U1 fq;
    U2 fd;
    I1 index;
    F1 unused;
    uint rows, k;
    float eps;
};

shared float part[WG / SG];

void main()
{
    uint row = gl_WorkGroupID.x, tid = gl_LocalInvocationID.x, k4 = k / 4u;
    if (row >= pr.n_rows[rows]) return;
    uint from = GATHER ? uint(index.v[row]) : row;
    vec4 v[NV], g[NV];
    float sum = 0.0;
    [[unroll]] for (uint j = 0; j < NV; j++) {
        uint i = j * WG + tid;
        v[j] = i < k4 ? x.v[from * k4 + i] : vec4(0.0);
        g[j] = HAS_W && i < k4 ? w.v[i] : vec4(1.0);
    }
    [[unroll]] for (uint j = 0; j < NV; j++) sum += dot(v[j], v[j]);
    sum = subgroupAdd(sum);
    if (gl_SubgroupInvocationID == 0u) part[gl_SubgroupID] = sum;
    barrier();
    sum = 0.0;
    for (uint i = 0; i < WG / SG; i++) sum += part[i];
    float r = 1.0 / sqrt(sum / float(k) + eps);
    [[unroll]] for (uint j = 0; j < NV; j++) {
        uint i = j * WG + tid;
        vec4 f = v[j] * r * g[j];
        if (i < k4 && WRITE_Y) y.v[row * k4 + i] = f;
        store_form(i < k4, f, row, i, k, fq, fd, is_coarse(pr, rows, row));
    }
}
