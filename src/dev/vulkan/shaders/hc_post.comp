#version 460
#extension GL_GOOGLE_include_directive : require
/* Hyper-connections after a block; see ob_hc_params. A thread a column of all streams, which it reads before
 * it writes, so that the streams may be changed in place. */
#include "common.glsl"

layout(constant_id = 1) const uint N = 4; /* streams */

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 y, x, post, to;
    F1 unused[3];
    uint rows, cols;
};

void main()
{
    uint c = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, row = gl_WorkGroupID.y, from = row * (N + N * N);
    if (row >= pr.n_rows[rows] || c >= cols) return;
    float old[N], v = y.v[row * cols + c];
    [[unroll]] for (uint s = 0; s < N; s++) old[s] = x.v[(row * N + s) * cols + c];
    [[unroll]] for (uint k = 0; k < N; k++) {
        float sum = post.v[from + k] * v;
        [[unroll]] for (uint s = 0; s < N; s++) sum += post.v[from + N + s * N + k] * old[s];
        to.v[(row * N + k) * cols + c] = sum;
    }
}
