#version 460
#extension GL_GOOGLE_include_directive : require
/* Hyper-connections before a block; see ob_hc_params. Workgroup (0, row) makes the coefficients for HC_POST,
 * a thread a pair of streams; the others the block's input, a thread a column. */
#include "common.glsl"
#include "gdn.glsl"

layout(constant_id = 1) const uint N = 4; /* streams */
layout(constant_id = 2) const uint N_ITER = 20;
layout(constant_id = 3) const bool HAS_POST = true;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 x, mix, y, post, scale, base;
    F1 unused;
    uint rows, cols;
    float eps;
};

shared float comb[N * N];

/* Columns to sum one, then rows and columns in turn (Sinkhorn and Knopp 1967). */
void sinkhorn(uint e)
{
    uint s = e / N, d = e % N;
    for (uint i = 0; i + 1u < 2u * N_ITER; i++) {
        barrier();
        float sum = eps;
        for (uint k = 0; k < N && e < N * N; k++) sum += comb[i % 2u == 0u ? k * N + d : s * N + k];
        barrier();
        if (e < N * N) comb[e] /= sum;
    }
    barrier();
}

void coefficients(uint row)
{
    uint e = gl_LocalInvocationID.x, n_mix = 2u * N + N * N, from = row * n_mix;
    if (e < N) post.v[row * (N + N * N) + e] = 2.0 * sigmoid(mix.v[from + N + e] * scale.v[1] + base.v[N + e]);
    if (e < N * N) comb[e] = mix.v[from + 2u * N + e] * scale.v[2] + base.v[2u * N + e];
    barrier();
    float c = 0.0;
    if (e < N * N) {
        float top = comb[e / N * N], sum = 0.0;
        for (uint d = 1; d < N; d++) top = max(top, comb[e / N * N + d]);
        for (uint d = 0; d < N; d++) sum += exp(comb[e / N * N + d] - top);
        c = exp(comb[e] - top) / sum + eps;
    }
    barrier();
    if (e < N * N) comb[e] = c;
    sinkhorn(e);
    if (e < N * N) post.v[row * (N + N * N) + N + e] = comb[e];
}

void main()
{
    uint row = gl_WorkGroupID.y, block = gl_WorkGroupID.x;
    if (row >= pr.n_rows[rows]) return;
    if (HAS_POST && block == 0u) {
        coefficients(row);
        return;
    }
    uint c = (HAS_POST ? block - 1u : block) * WG + gl_LocalInvocationID.x, n_mix = HAS_POST ? 2u * N + N * N : N;
    if (c >= cols) return;
    float sum = 0.0;
    [[unroll]] for (uint s = 0; s < N; s++)
        sum += (sigmoid(mix.v[row * n_mix + s] * scale.v[0] + base.v[s]) + eps) * x.v[(row * N + s) * cols + c];
    y.v[row * cols + c] = sum;
}
