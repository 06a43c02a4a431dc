#version 460
#extension GL_GOOGLE_include_directive : require
/* The last `slots` tokens of each sequence into the ring of a compressor: a thread a column of a token. */
#include "common.glsl"
#include "seq.glsl"

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 kv, gate, state;
    SeqInfo seqs;
    TokInfo info;
    F1 unused[2];
    uint cols, slots;
};

void main()
{
    uint c = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, t = gl_WorkGroupID.y;
    if (t >= pr.n_rows[0] || c >= cols) return;
    uvec4 tok = info.v[t], seq = seqs.v[tok.x];
    if (t + slots < seq.y) return; /* a later token of the step has this place */
    uint to = (seq.w * slots + tok.y % slots) * 2u * cols + c;
    state.v[to] = kv.v[t * cols + c];
    state.v[to + cols] = gate.v[t * cols + c];
}
