#version 460
#extension GL_GOOGLE_include_directive : require
/* Causal depthwise convolution over time; see ob_conv_params. A thread a column.
 *
 *   MODE 0: of a sequence, walked token by token, then the state is kept: for few tokens
 *   MODE 1: of one row; the state is only read
 *   MODE 2: of a sequence: keep the state, after MODE 1 */
#include "common.glsl"
#include "act.glsl"
#include "seq.glsl"

layout(constant_id = 1) const uint TAPS = 4;
layout(constant_id = 2) const uint ACT = 1;
layout(constant_id = 3) const bool HAS_BIAS = false;
layout(constant_id = 4) const uint MODE = 0;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 x, y, w, bias, state;
    SeqInfo seqs;
    TokInfo info;
    uint cols;
};

/* Input of this column `at` tokens after the first of the step; before that it is in the state. */
float input_at(uvec4 seq, int at, uint c)
{
    if (at >= 0) return x.v[(seq.x + uint(at)) * cols + c];
    if (seq.z == 0u) return 0.0;
    return state.v[(seq.w * (TAPS - 1u) + uint(at + int(TAPS) - 1)) * cols + c];
}

void filter_row(uvec4 seq, int at, uint c)
{
    float sum = HAS_BIAS ? bias.v[c] : 0.0;
    [[unroll]] for (uint k = 0; k < TAPS; k++) sum += w.v[c * TAPS + k] * input_at(seq, at - int(TAPS) + 1 + int(k), c);
    y.v[(seq.x + uint(at)) * cols + c] = activate(ACT, sum);
}

void main()
{
    uint c = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, i = gl_WorkGroupID.y;
    if (i >= pr.n_rows[MODE == 1 ? 0 : 2] || c >= cols) return;
    if (MODE == 1u) {
        uvec4 t = info.v[i], seq = seqs.v[t.x];
        filter_row(seq, int(i - seq.x), c);
        return;
    }
    uvec4 seq = seqs.v[i];
    int n = int(seq.y - seq.x);
    for (int at = 0; MODE == 0u && at < n; at++) filter_row(seq, at, c);
    /* Oldest first, so that no place is overwritten before it is read. */
    for (int k = 0; k + 1 < int(TAPS); k++) {
        float v = input_at(seq, n - int(TAPS) + 1 + k, c);
        state.v[(seq.w * (TAPS - 1u) + uint(k)) * cols + c] = v;
    }
}
