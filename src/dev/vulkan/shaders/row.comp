#version 460
#extension GL_GOOGLE_include_directive : require
/* Row-wise ops, a thread an element. -DOP: 0 rows_out, 1 glu, 2 add, 3 scale, 4 copy to the host, 5 rows of the step's
 * vectors where ids are below 0, 6 adjacent rows merged. */
#include "common.glsl"
#include "act.glsl"

layout(constant_id = 1) const uint ACT = 1;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 x, x2, y;
    I1 index;
    F1 unused[3];
    uint rows, cols;
    float p0, p1; /* glu: clamp; add: scale; scale: scale, softcap */
    uint n, n_cols; /* merge: rows, columns of each; cols == n_cols: their mean, else side by side */
};

void main()
{
    uint c = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, row = gl_WorkGroupID.y;
    if (row >= pr.n_rows[rows] || c >= cols) return;
    uint i = row * cols + c;
#if OP == 0
    y.v[i] = x.v[uint(index.v[row]) * cols + c];
#elif OP == 1
    float g = x.v[i], u = x2.v[i];
    if (p0 > 0.0) {
        g = min(g, p0);
        u = clamp(u, -p0, p0);
    }
    y.v[i] = activate(ACT, g) * u;
#elif OP == 2
    y.v[i] = x.v[i] + p0 * x2.v[i];
#elif OP == 3
    float v = x.v[i] * p0;
    y.v[i] = p1 > 0.0 ? p1 * tanh_by_exp(v / p1) : v;
#elif OP == 4
    y.v[i] = x.v[i];
#elif OP == 5
    int id = index.v[row];
    if (id < 0) y.v[i] = x.v[uint(-1 - id) * cols + c];
#else
    uint at = uint(index.v[row]) * n_cols + c;
    if (cols == n_cols) {
        float sum = 0.0;
        for (uint k = 0u; k < n; k++) sum += x.v[at + k * n_cols];
        y.v[i] = sum / float(n);
    } else {
        y.v[i] = x.v[at];
    }
#endif
}
