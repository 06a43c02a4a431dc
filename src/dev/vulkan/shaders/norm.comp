#version 460
#extension GL_GOOGLE_include_directive : require
/* RMS or layer norm: a workgroup a group of columns. In place is allowed: a thread writes what it read. */
#include "common.glsl"
#include "form.glsl"

layout(constant_id = 1) const bool LAYER = false;
layout(constant_id = 2) const bool HAS_W = true;
layout(constant_id = 3) const bool HAS_B = false;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 x, y, w, b;
    U1 fq; /* FORM */
    U2 fd;
    F1 unused;
    uint rows, cols, group;
    float eps;
};

shared float part[WG];

float sum_all(float v)
{
    uint tid = gl_LocalInvocationID.x;
    barrier();
    part[tid] = v;
    barrier();
    for (uint n = WG / 2u; n > 0u; n >>= 1) {
        if (tid < n) part[tid] += part[tid + n];
        barrier();
    }
    return part[0];
}

void main()
{
    uint row = gl_WorkGroupID.y, tid = gl_LocalInvocationID.x;
    if (row >= pr.n_rows[rows]) return;
    uint at = row * cols + gl_WorkGroupID.x * group;
    float mean = 0.0, v = 0.0;
    if (LAYER) {
        for (uint i = tid; i < group; i += WG) mean += x.v[at + i];
        mean = sum_all(mean) / float(group);
    }
    for (uint i = tid; i < group; i += WG) {
        float d = x.v[at + i] - mean;
        v += d * d;
    }
    float r = 1.0 / sqrt(sum_all(v) / float(group) + eps);
    if (FORM != 0u) { /* one group of a multiple of 32 columns */
        for (uint e0 = 0; e0 < cols / 4u; e0 += WG) {
            uint e = e0 + tid;
            bool on = e < cols / 4u;
            vec4 t = vec4(0.0);
            if (on) {
                t = (F4(x).v[at / 4u + e] - mean) * r;
                if (HAS_W) t *= F4(w).v[e];
                if (HAS_B) t += F4(b).v[e];
                F4(y).v[at / 4u + e] = t;
            }
            store_form(on, t, row, e, cols, fq, fd, is_coarse(pr, rows, row));
        }
        return;
    }
    for (uint i = tid; i < group; i += WG)
        y.v[at + i] = (x.v[at + i] - mean) * r * (HAS_W ? w.v[i] : 1.0) + (HAS_B ? b.v[i] : 0.0);
}
