#version 460
#extension GL_GOOGLE_include_directive : require
/* Rotary positions. cos and sin come from two tables made on the host in f64, because the device's own
 * have no stated precision: position 64 i + j turns by the sum of both angles. A thread a pair, or a
 * column that is not rotated. With AXES the first n0 pairs turn by pos, those below n1 by pos_h, the rest by pos_w. */
#include "common.glsl"

layout(constant_id = 1) const bool NEOX = false;
layout(constant_id = 2) const bool AXES = false;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 x, y;
    F2 high, low; /* [n_pos / 64][half], [64][half]: (cos, sin), the attention factor in low */
    I1 pos, pos_h, pos_w;
    uint cols, head_dim, n_rot, rot_off, n_high, n0, n1;
};

void main()
{
    uint i = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, row = gl_WorkGroupID.y;
    uint nh = n_rot / 2u, per_head = head_dim - nh;
    if (row >= pr.n_rows[0] || i >= cols / head_dim * per_head) return;
    uint base = row * cols + i / per_head * head_dim, k = i % per_head;
    if (k >= nh) {
        uint c = k - nh;
        if (c >= rot_off) c += n_rot;
        y.v[base + c] = x.v[base + c];
        return;
    }
    uint a = base + rot_off + (NEOX ? k : 2u * k), b = a + (NEOX ? nh : 1u);
    int place = !AXES || k < n0 ? pos.v[row] : k < n1 ? pos_h.v[row] : pos_w.v[row];
    uint p = uint(max(place, 0));
    vec2 hi = high.v[min(p >> 6, n_high - 1u) * nh + k], lo = low.v[(p & 63u) * nh + k];
    float c = hi.x * lo.x - hi.y * lo.y, s = hi.y * lo.x + hi.x * lo.y;
    float xa = x.v[a], xb = x.v[b];
    y.v[a] = xa * c - xb * s;
    y.v[b] = xa * s + xb * c;
}
