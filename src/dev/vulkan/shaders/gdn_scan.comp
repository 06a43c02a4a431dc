#version 460
#extension GL_GOOGLE_include_directive : require
/* The chunks of a sequence one after the other; see gdn_chunks.glsl. A workgroup takes BV columns of the state
 * of one head, in shared memory. WG is C * BV / 4: a thread 4 columns of a token. */
#include "common.glsl"
#include "gdn_chunks.glsl"
#include "seq.glsl"

layout(constant_id = 4) const uint BV = 32;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F4 from;
    F1 y, state;
    SeqInfo seqs;
    F1 unused[3];
    uint n_head_v;
};

const uint B4 = BV / 4;

shared vec4 S[DK * B4];
shared vec4 D[C * B4];

void main()
{
    uint tid = gl_LocalInvocationID.x, t = tid / B4, c4 = tid % B4, j0 = gl_WorkGroupID.x * BV;
    uint head = gl_WorkGroupID.y, s = gl_WorkGroupID.z, chunk = 0u;
    if (s >= pr.n_rows[2]) return;
    for (uint i = 0; i < s; i++) chunk += n_chunks_of(seqs.v[i]);
    uvec4 seq = seqs.v[s];
    uint at = (seq.w * n_head_v + head) * DK * DV + j0, j = j0 + 4u * c4;
    for (uint i = tid; i < DK * B4; i += WG)
        [[unroll]] for (uint k = 0; k < 4u; k++) {
            uint col = i % B4 * 4u + k;
            S[i][k] = seq.z != 0u && j0 + col < DV ? state.v[at + i / B4 * DV + col] : 0.0;
        }
    barrier();
    for (uint t0 = seq.x; t0 < seq.y; t0 += C, chunk++) {
        uint base = (chunk * n_head_v + head) * CHUNK4;
        vec4 ws = vec4(0.0), o = vec4(0.0);
        for (uint i = 0; i < DK4; i++) {
            vec4 w = from.v[base + t * DK4 + i], q = from.v[base + AT_Q + t * DK4 + i];
            [[unroll]] for (uint k = 0; k < 4u; k++) {
                vec4 v = S[(4u * i + k) * B4 + c4];
                ws += w[k] * v;
                o += q[k] * v;
            }
        }
        D[tid] = (j < DV ? from.v[base + AT_U + t * DV4 + j / 4u] : vec4(0.0)) - ws;
        barrier();
        for (uint i = 0; 4u * i <= t; i++) {
            vec4 m = from.v[base + AT_M + t * (C / 4u) + i];
            [[unroll]] for (uint k = 0; k < 4u; k++) o += m[k] * D[(4u * i + k) * B4 + c4];
        }
        if (t0 + t < seq.y)
            [[unroll]] for (uint k = 0; k < 4u; k++)
                if (j + k < DV) y.v[((t0 + t) * n_head_v + head) * DV + j + k] = o[k];
        float decay = from.v[base + AT_END].x;
        for (uint p = tid; p < DK4 * B4; p += WG) {
            uint r4 = p / B4, cc = p % B4;
            vec4 acc[4];
            [[unroll]] for (uint k = 0; k < 4u; k++) acc[k] = S[(4u * r4 + k) * B4 + cc] * decay;
            for (uint i = 0; i < C; i++) {
                vec4 key = from.v[base + AT_K + i * DK4 + r4], d = D[i * B4 + cc];
                [[unroll]] for (uint k = 0; k < 4u; k++) acc[k] += key[k] * d;
            }
            [[unroll]] for (uint k = 0; k < 4u; k++) S[(4u * r4 + k) * B4 + cc] = acc[k];
        }
        barrier();
    }
    for (uint i = tid; i < DK * B4; i += WG)
        [[unroll]] for (uint k = 0; k < 4u; k++) {
            uint col = i % B4 * 4u + k;
            if (j0 + col < DV) state.v[at + i / B4 * DV + col] = S[i][k];
        }
}
