#version 460
#extension GL_GOOGLE_include_directive : require
/* What of a chunk and head does not depend on the state; see gdn_chunks.glsl. A workgroup one of them. */
#include "common.glsl"
#include "gdn.glsl"
#include "gdn_chunks.glsl"
#include "seq.glsl"

layout(constant_id = 4) const bool TILED = false;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 x, alpha, beta, dt, a;
    F4 to;
    SeqInfo seqs;
    uint n_head_k, n_head_v;
    float eps;
};

const uint TPR = WG / C, KS = DK4 + 1; /* threads of a row; fours of a row, padded against bank conflicts */

shared vec4 sk[C * KS];
shared float sa[C * C];
shared vec2 part[WG];
shared float s_g[C], s_sum[C], s_b[C], s_rq[C];

/* 4 columns of row t from column c on; rows of x begin anywhere, so not by vec4. */
vec4 load4(uint at) { return vec4(x.v[at], x.v[at + 1u], x.v[at + 2u], x.v[at + 3u]); }

/* Keys of unit length to sk, e^G q and e^(G_last - G) k to memory; gates. */
void load_chunk(uint t0, uint n, uint kh, uint head, uint base)
{
    uint tid = gl_LocalInvocationID.x, t = tid / TPR, l = tid % TPR, n_key = n_head_k * DK;
    uint row = (t0 + t) * (2u * n_key + n_head_v * DV) + kh * DK;
    bool on = t < n;
    vec2 squares = vec2(0.0);
    for (uint e = l; e < DK4; e += TPR) {
        vec4 k = on ? load4(row + n_key + 4u * e) : vec4(0.0), q = on ? load4(row + 4u * e) : vec4(0.0);
        sk[t * KS + e] = k;
        squares += vec2(dot(k, k), dot(q, q));
    }
    part[tid] = squares;
    if (tid < C) {
        uint at = (t0 + tid) * n_head_v + head;
        s_g[tid] = tid < n ? a.v[head] * softplus(alpha.v[at] + dt.v[head]) : 0.0;
        s_b[tid] = tid < n ? sigmoid(beta.v[at]) : 0.0;
    }
    barrier();
    if (tid < C) {
        float sum = 0.0;
        for (uint i = 0; i <= tid; i++) sum += s_g[i];
        s_sum[tid] = sum;
    }
    squares = vec2(0.0);
    for (uint i = 0; i < TPR; i++) squares += part[t * TPR + i];
    float rk = 1.0 / sqrt(squares.x + eps), rq = 1.0 / sqrt((squares.y + eps) * float(DK));
    if (l == 0u) s_rq[t] = rq;
    barrier();
    float grown = exp(s_sum[t]), rest = exp(s_sum[C - 1u] - s_sum[t]);
    for (uint e = l; e < DK4; e += TPR) {
        vec4 k = sk[t * KS + e] * rk, q = on ? load4(row + 4u * e) : vec4(0.0);
        sk[t * KS + e] = k;
        to.v[base + AT_Q + t * DK4 + e] = q * (rq * grown);
        to.v[base + AT_K + t * DK4 + e] = k * rest;
    }
    if (tid == 0u) to.v[base + AT_END] = vec4(exp(s_sum[C - 1u]));
    barrier();
}

/* A to shared memory, M to memory. */
void products(uint t0, uint n, uint kh, uint base)
{
    for (uint p = gl_LocalInvocationID.x; p < C * C; p += WG) {
        uint t = p / C, s = p % C;
        uint row = (t0 + min(t, n - 1u)) * (2u * n_head_k * DK + n_head_v * DV) + kh * DK;
        float kk = 0.0, qk = 0.0;
        if (s <= t && t < n)
            for (uint e = 0; e < DK4; e++) {
                vec4 k = sk[s * KS + e];
                kk += dot(sk[t * KS + e], k);
                qk += dot(load4(row + 4u * e), k);
            }
        float d = s <= t ? exp(s_sum[t] - s_sum[s]) : 0.0;
        sa[p] = s < t ? s_b[t] * d * kk : 0.0;
        F1(to).v[4u * (base + AT_M) + p] = d * s_rq[t] * qk;
    }
    barrier();
}

/* Columns of W, then of U, by forward substitution: a thread a column. */
void solve(uint t0, uint n, uint head, uint base)
{
    uint n_key = n_head_k * DK, row = 2u * n_key + n_head_v * DV;
    for (uint c = gl_LocalInvocationID.x; c < DK + DV4 * 4u; c += WG) {
        bool is_w = c < DK;
        uint j = c - DK;
        float r[C];
        [[unroll]] for (uint t = 0; t < C; t++) {
            float v = 0.0;
            if (is_w) v = exp(s_sum[t]) * sk[t * KS + c / 4u][c % 4u];
            else if (t < n && j < DV) v = x.v[(t0 + t) * row + 2u * n_key + head * DV + j];
            r[t] = s_b[t] * v;
        }
        [[unroll]] for (uint t = 1; t < C; t++)
            [[unroll]] for (uint s = 0; s < t; s++) r[t] -= sa[t * C + s] * r[s];
        [[unroll]] for (uint t = 0; t < C; t++)
            F1(to).v[4u * base + (is_w ? t * DK + c : 4u * AT_U + t * DV4 * 4u + j)] = r[t];
    }
}

void main()
{
    uint chunk = gl_WorkGroupID.x, head = gl_WorkGroupID.y, s = 0u;
    uint base = (chunk * n_head_v + head) * CHUNK4;
    for (; s < pr.n_rows[2]; s++) {
        uint m = n_chunks_of(seqs.v[s]);
        if (chunk < m) break;
        chunk -= m;
    }
    if (s == pr.n_rows[2]) return;
    uvec4 seq = seqs.v[s];
    uint t0 = seq.x + chunk * C, n = min(C, seq.y - t0), kh = key_head(TILED, head, n_head_k, n_head_v);
    load_chunk(t0, n, kh, head, base);
    products(t0, n, kh, base);
    solve(t0, n, head, base);
}
