#version 460
#extension GL_GOOGLE_include_directive : require
/* ZAYA's convolved queries, keys and values; see ob_cca_params.
 *
 *   MODE 0: T rows of one head: the query heads, the key heads, then once more for the values
 *   MODE 1: keep the state of a sequence; a thread a column
 *
 * MODE 0 makes WG / TPO outputs at a time; TPO threads share a row of the second convolution. */
#include "common.glsl"
#include "seq.glsl"

layout(constant_id = 1) const uint MODE = 0;
layout(constant_id = 2) const uint HD = 128;
layout(constant_id = 3) const uint T = 1;
layout(constant_id = 4) const bool TAPS_FIRST = false;
layout(constant_id = 5) const uint N_HEAD = 8;
layout(constant_id = 6) const uint N_HEAD_KV = 2;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 q, k, va, vb;
    F1 q_out, k_out, v_out;
    F1 tap, bias, grp, grp_bias;
    F1 k_scale, state;
    SeqInfo seqs;
    TokInfo info;
};

const uint TPO = 8, N_Q = N_HEAD * HD, N_K = N_HEAD_KV * HD, N = N_Q + N_K, HALF = N_K / 2;
const uint STATE = 2 * N + HALF, HEADS_PER_KEY = N_HEAD / N_HEAD_KV;

shared float old[T * HD], now[T * HD]; /* the first convolution at the token before and at the token */
shared float res[T * HD];
shared float part[T * WG];

/* Column c of q|k `at` tokens after the step's first of the sequence; earlier ones are in the state. */
float input_at(uvec4 seq, int at, uint c)
{
    uint row = seq.x + uint(max(at, 0));
    if (at >= 0) return c < N_Q ? q.v[row * N_Q + c] : k.v[row * N_K + c - N_Q];
    return seq.z == 0u ? 0.0 : state.v[seq.w * STATE + uint(at + 2) * N + c];
}

float value_before(uvec4 seq, int at, uint c)
{
    if (at > 0) return vb.v[(seq.x + uint(at) - 1u) * HALF + c];
    return seq.z == 0u ? 0.0 : state.v[seq.w * STATE + 2u * N + c];
}

/* What joins column i of head h besides the convolutions: means of queries and keys. */
float mean_of(uint row, uint h, uint i)
{
    if (h < N_HEAD) return 0.5 * (q.v[row * N_Q + h * HD + i] + k.v[row * N_K + h / HEADS_PER_KEY * HD + i]);
    uint g = h - N_HEAD;
    float sum = 0.0;
    for (uint j = g * HEADS_PER_KEY; j < (g + 1u) * HEADS_PER_KEY; j++) sum += q.v[row * N_Q + j * HD + i];
    return 0.5 * (sum / float(HEADS_PER_KEY) + k.v[row * N_K + g * HD + i]);
}

void convolve(uint h, uint t0)
{
    uint tid = gl_LocalInvocationID.x, l = tid % TPO;
    for (uint o0 = 0; o0 < HD; o0 += WG / TPO) {
        uint o = o0 + tid / TPO, at = (h * HD + min(o, HD - 1u)) * HD;
        float sum[T];
        [[unroll]] for (uint t = 0; t < T; t++) sum[t] = 0.0;
        for (uint i = l; i < HD; i += TPO) {
            float w0 = TAPS_FIRST ? grp.v[2u * (at + i)] : grp.v[at + i];
            float w1 = TAPS_FIRST ? grp.v[2u * (at + i) + 1u] : grp.v[at + i + N * HD];
            [[unroll]] for (uint t = 0; t < T; t++) sum[t] += w0 * old[t * HD + i] + w1 * now[t * HD + i];
        }
        [[unroll]] for (uint t = 0; t < T; t++) part[t * WG + tid] = sum[t];
        barrier();
        for (uint p = tid; p < T * (WG / TPO); p += WG) {
            uint t = p / (WG / TPO), e = p % (WG / TPO), i = o0 + e;
            if (i >= HD || t0 + t >= pr.n_rows[0]) continue;
            float v = grp_bias.v[h * HD + i];
            for (uint j = 0; j < TPO; j++) v += part[t * WG + e * TPO + j];
            res[t * HD + i] = v + mean_of(t0 + t, h, i);
        }
        barrier();
    }
}

/* Each head to length sqrt(HD), the keys' times their own scale. */
void store_heads(uint h, uint t0)
{
    uint tid = gl_LocalInvocationID.x;
    for (uint t = 0; t < T && t0 + t < pr.n_rows[0]; t++) {
        float sum = 0.0;
        for (uint i = tid; i < HD; i += WG) sum += res[t * HD + i] * res[t * HD + i];
        part[tid] = sum;
        barrier();
        sum = 0.0;
        for (uint i = 0; i < WG; i++) sum += part[i];
        float scale = sqrt(float(HD)) * (h < N_HEAD ? 1.0 : k_scale.v[h - min(h, N_HEAD)]) / max(sqrt(sum), 1e-12);
        for (uint i = tid; i < HD; i += WG) {
            if (h < N_HEAD) q_out.v[(t0 + t) * N_Q + h * HD + i] = res[t * HD + i] * scale;
            else k_out.v[(t0 + t) * N_K + (h - N_HEAD) * HD + i] = res[t * HD + i] * scale;
        }
        barrier();
    }
}

void store_values(uint t0)
{
    for (uint t = t0; t < min(t0 + T, pr.n_rows[0]); t++) {
        uvec4 seq = seqs.v[info.v[t].x];
        for (uint c = gl_LocalInvocationID.x; c < HALF; c += WG) {
            v_out.v[t * N_K + c] = va.v[t * HALF + c];
            v_out.v[t * N_K + HALF + c] = value_before(seq, int(t - seq.x), c);
        }
    }
}

void keep_state()
{
    uint c = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, s = gl_WorkGroupID.y;
    if (s >= pr.n_rows[2]) return;
    uvec4 seq = seqs.v[s];
    int last = int(seq.y - seq.x) - 1;
    if (c < N) { /* the older one first: it may lie where the newer one goes */
        float v = input_at(seq, last - 1, c);
        state.v[seq.w * STATE + c] = v;
        state.v[seq.w * STATE + N + c] = input_at(seq, last, c);
    }
    if (c < HALF) state.v[seq.w * STATE + 2u * N + c] = vb.v[(seq.x + uint(last)) * HALF + c];
}

void main()
{
    if (MODE == 1u) {
        keep_state();
        return;
    }
    uint h = gl_WorkGroupID.x, t0 = gl_WorkGroupID.y * T;
    if (t0 >= pr.n_rows[0]) return;
    if (h == N_HEAD + N_HEAD_KV) {
        store_values(t0);
        return;
    }
    for (uint p = gl_LocalInvocationID.x; p < T * HD; p += WG) {
        uint t = min(t0 + p / HD, pr.n_rows[0] - 1u), c = h * HD + p % HD;
        uvec4 seq = seqs.v[info.v[t].x];
        int at = int(t - seq.x);
        float u0 = input_at(seq, at, c), u1 = input_at(seq, at - 1, c), u2 = input_at(seq, at - 2, c);
        float w0 = tap.v[2u * c], w1 = tap.v[2u * c + 1u], b = bias.v[c];
        now[p] = b + w0 * u1 + w1 * u0;
        old[p] = b + w0 * u2 + w1 * u1;
    }
    barrier();
    convolve(h, t0);
    store_heads(h, t0);
}
