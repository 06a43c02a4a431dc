#version 460
#extension GL_GOOGLE_include_directive : require
/* The rows of a sequence as one: their mean, the first or the last. A thread a column of a sequence. */
#include "common.glsl"

layout(constant_id = 1) const uint MODE = 2; /* ob_pooling */

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 x, y;
    I1 seq_first;
    F1 unused[4];
    uint cols;
};

void main()
{
    uint c = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, seq = gl_WorkGroupID.y;
    if (seq >= pr.n_rows[2] || c >= cols) return;
    uint first = uint(seq_first.v[seq]), last = uint(seq_first.v[seq + 1u]) - 1u;
    float r;
    if (MODE == 2u) {
        r = 0.0;
        for (uint t = first; t <= last; t++) r += x.v[t * cols + c];
        r /= float(last - first + 1u);
    } else {
        r = x.v[(MODE == 3u ? first : last) * cols + c];
    }
    y.v[seq * cols + c] = r;
}
