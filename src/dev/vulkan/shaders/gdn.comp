#version 460
#extension GL_GOOGLE_include_directive : require
/* The gated delta rule, token by token: see ob_gdn_params. A workgroup takes BV columns of the state of one
 * head of one sequence and holds them in registers; threads are BV columns x RG parts of the rows.
 *
 * One pass over the state serves both products of a token, because S_t^T q = e^g S^T q + (k . q) delta.
 * Keys and queries are scaled afterwards: the pass also sums their squares. */
#include "common.glsl"
#include "gdn.glsl"
#include "seq.glsl"

layout(constant_id = 1) const uint DK = 128;
layout(constant_id = 2) const uint DV = 128;
layout(constant_id = 3) const uint BV = 32;
layout(constant_id = 4) const uint RG = 8;
layout(constant_id = 5) const bool TILED = false;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 x, alpha, beta, y, dt, a, state;
    SeqInfo seqs;
    uint n_head_k, n_head_v;
    float eps;
};

const uint R = (DK + RG - 1) / RG; /* rows of the state a thread holds */

shared vec2 kq[DK];     /* (key, query) of the token */
shared vec4 part[WG];   /* S^T k, S^T q, k . k, q . q */
shared float part_kq[WG];

void main()
{
    uint tid = gl_LocalInvocationID.x, j = gl_WorkGroupID.x * BV + tid % BV, g = tid / BV;
    uint head = gl_WorkGroupID.y, s = gl_WorkGroupID.z;
    if (s >= pr.n_rows[2]) return;
    uvec4 seq = seqs.v[s];
    uint kh = key_head(TILED, head, n_head_k, n_head_v);
    uint n_key = n_head_k * DK, cols = 2u * n_key + n_head_v * DV;
    uint base = (seq.w * n_head_v + head) * DK * DV + j;
    float S[R];
    [[unroll]] for (uint r = 0; r < R; r++) {
        uint i = g * R + r;
        S[r] = seq.z != 0u && i < DK && j < DV ? state.v[base + i * DV] : 0.0;
    }
    float rate = a.v[head], shift = dt.v[head];
    for (uint t = seq.x; t < seq.y; t++) {
        barrier();
        for (uint i = tid; i < DK; i += WG)
            kq[i] = vec2(x.v[t * cols + n_key + kh * DK + i], x.v[t * cols + kh * DK + i]);
        float z = alpha.v[t * n_head_v + head] + shift, b = beta.v[t * n_head_v + head];
        float v = j < DV ? x.v[t * cols + 2u * n_key + head * DV + j] : 0.0;
        barrier();
        vec4 sum = vec4(0.0);
        float dot_kq = 0.0;
        [[unroll]] for (uint r = 0; r < R; r++) {
            vec2 p = g * R + r < DK ? kq[min(g * R + r, DK - 1u)] : vec2(0.0);
            sum += vec4(S[r] * p.x, S[r] * p.y, p.x * p.x, p.y * p.y);
            dot_kq += p.x * p.y;
        }
        part[tid] = sum;
        part_kq[tid] = dot_kq;
        barrier();
        sum = vec4(0.0);
        dot_kq = 0.0;
        [[unroll]] for (uint i = 0; i < RG; i++) {
            sum += part[i * BV + tid % BV];
            dot_kq += part_kq[i * BV + tid % BV];
        }
        float rk = 1.0 / sqrt(sum.z + eps), rq = 1.0 / sqrt((sum.w + eps) * float(DK));
        float decay = exp(rate * softplus(z)), delta = sigmoid(b) * (v - decay * rk * sum.x);
        if (g == 0u && j < DV)
            y.v[(t * n_head_v + head) * DV + j] = rq * (decay * sum.y + rk * dot_kq * delta);
        [[unroll]] for (uint r = 0; r < R; r++)
            if (g * R + r < DK) S[r] = S[r] * decay + rk * kq[min(g * R + r, DK - 1u)].x * delta;
    }
    [[unroll]] for (uint r = 0; r < R; r++) {
        uint i = g * R + r;
        if (i < DK && j < DV) state.v[base + i * DV] = S[r];
    }
}
