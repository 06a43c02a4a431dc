#version 460
#extension GL_GOOGLE_include_directive : require
/* Row-wise ops over vectors and parts of rows, a thread an element of the output (split: of the input).
 * -DOP: 0 act, 1 affine, 2 gate, 3 split, 4 join. Addresses that are 0 are absent. */
#include "common.glsl"
#include "act.glsl"

layout(constant_id = 1) const uint ACT = 1;
layout(constant_id = 2) const uint HAS = 0; /* bit k: vector k is there; bit 4: x2; bit 5: x3 */

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 x, x2, y;
    F1 w[4]; /* gate: w[0] is the residual, in rows; split and join: w[0] is the second part */
    uint rows, cols, a, b; /* gate: a columns of the gate; split and join: widths of the parts of a group */
};

void main()
{
    uint c = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, row = gl_WorkGroupID.y;
    if (row >= pr.n_rows[rows] || c >= cols) return;
    uint i = row * cols + c;
#if OP == 0
    y.v[i] = activate(ACT, x.v[i]);
#elif OP == 1
    float v = (x.v[i] + ((HAS & 2u) != 0u ? w[1].v[c] : 0.0)) * ((HAS & 1u) != 0u ? w[0].v[c] : 1.0);
    if ((HAS & 16u) != 0u)
        v += (x2.v[i] + ((HAS & 8u) != 0u ? w[3].v[c] : 0.0)) * ((HAS & 4u) != 0u ? w[2].v[c] : 1.0);
    y.v[i] = v;
#elif OP == 2
    float g = activate(5u, x2.v[a == 1u ? row : i]);
    y.v[i] = ((HAS & 32u) != 0u ? w[0].v[i] : 0.0) + x.v[i] * g;
#else
    uint n = a + b, g = c / n, k = c % n, n_group = cols / n;
    uint at = k < a ? (row * n_group + g) * a + k : (row * n_group + g) * b + k - a;
#if OP == 3
    if (k < a) y.v[at] = x.v[i];
    else w[0].v[at] = x.v[i];
#else
    y.v[i] = k < a ? x.v[at] : w[0].v[at];
#endif
#endif
}
