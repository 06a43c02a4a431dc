#version 460
#extension GL_GOOGLE_include_directive : require
/* y = x W^T in f32 for many rows: tiles of BM rows by BN columns by 64 of K through shared memory, 4 x 4
 * results a thread. Columns that are not a multiple of anything are welcome; K is a multiple of 32. */
#include "common.glsl"
#include "weight.glsl"

layout(constant_id = 1) const uint BM = 32;
layout(constant_id = 2) const uint BN = 64;
layout(constant_id = 3) const bool HAS_BIAS = false;
layout(constant_id = 4) const bool HAS_RES = false;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F4 x;
    F1 y;
    U4 w;
    U1 s, h;
    F1 bias, res;
    uint rows, k, n, nu;
    float scale;
    uint pad;
    U1 z;
};

const uint BK = 64, XS = BM + 4, WS = BN + 4;
shared float xs[BK * XS];
shared float ws[BK * WS];

void main()
{
    uint tid = gl_LocalInvocationID.x, m0 = gl_WorkGroupID.y * BM, n0 = gl_WorkGroupID.x * BN;
    uint n_rows = pr.n_rows[rows];
    if (m0 >= n_rows) return;
    uint tm = tid % (BM / 4u) * 4u, tn = tid / (BM / 4u) * 4u;
    vec4 acc[4];
    [[unroll]] for (uint i = 0; i < 4u; i++) acc[i] = vec4(0.0);
    for (uint k0 = 0; k0 < k; k0 += BK) {
        for (uint i = tid; i < BM * BK / 4u; i += WG) {
            uint r = i / (BK / 4u), c = i % (BK / 4u) * 4u;
            vec4 v = m0 + r < n_rows && k0 + c < k ? x.v[((m0 + r) * k + k0 + c) >> 2] : vec4(0.0);
            [[unroll]] for (uint j = 0; j < 4u; j++) xs[(c + j) * XS + r] = v[j];
        }
        for (uint i = tid; i < BN * 2u; i += WG) {
            uint r = i >> 1, u = (k0 >> 5) + (i & 1u), ea = unit_a(u) - k0, eb = unit_b(u) - k0;
            vec4 a[4], b[4];
            if (n0 + r < n && u < nu) {
                unit_values(w, s, h, z, n0 + r, u, nu, a, b);
            } else {
                [[unroll]] for (uint j = 0; j < 4u; j++) a[j] = b[j] = vec4(0.0);
            }
            [[unroll]] for (uint j = 0; j < 16u; j++) {
                ws[(ea + j) * WS + r] = a[j >> 2][j & 3u];
                ws[(eb + j) * WS + r] = b[j >> 2][j & 3u];
            }
        }
        barrier();
        for (uint k1 = 0; k1 < BK; k1 += 4u) /* all of it unrolled takes a processor many seconds to compile */
            [[unroll]] for (uint kk = k1; kk < k1 + 4u; kk++) {
                vec4 wv = vec4(ws[kk * WS + tn], ws[kk * WS + tn + 1u], ws[kk * WS + tn + 2u], ws[kk * WS + tn + 3u]);
                [[unroll]] for (uint i = 0; i < 4u; i++) acc[i] += xs[kk * XS + tm + i] * wv;
            }
        barrier();
    }
    [[unroll]] for (uint i = 0; i < 4u; i++) {
        uint row = m0 + tm + i;
        if (row >= n_rows) break;
        [[unroll]] for (uint j = 0; j < 4u; j++) {
            uint col = n0 + tn + j;
            if (col >= n) break;
            float v = acc[i][j];
            if (HAS_BIAS) v += bias.v[col];
            v *= scale;
            if (HAS_RES) v += res.v[row * n + col];
            y.v[row * n + col] = v;
        }
    }
}
