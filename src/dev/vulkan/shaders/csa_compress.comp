#version 460
#extension GL_GOOGLE_include_directive : require
/* The entry whose window ends with a token, and a key as it is: a workgroup a token.
 *
 *   MODE 0: the key x goes into the cache
 *   MODE 1: per column, softmax over the tokens that the entry looks at, of gate + ape; the weighted sum of kv;
 *           then norm, rotation, and into the cache
 *
 * With OVERLAP the tokens of the window before count with their first half, those of this one with their second. */
#include "common.glsl"
#include "cache.glsl"
#include "csa.glsl"
#include "seq.glsl"

layout(constant_id = 1) const uint MODE = 1;
layout(constant_id = 2) const uint W = 64; /* columns of an entry */
layout(constant_id = 3) const uint TYPE = T_F16;
layout(constant_id = 4) const bool OVERLAP = false;
layout(constant_id = 5) const uint RATIO = 4;
layout(constant_id = 6) const uint N_ROT = 64;
layout(constant_id = 7) const bool NEOX = false;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 kv, gate; /* MODE 0: kv is x */
    F1 cache;
    SeqInfo seqs;
    TokInfo info;
    I1 table;
    F1 state;
    F1 ape, norm;
    F2 high, low;
    uint page_tok, max_pages, n_high;
    float eps;
};

const uint COLS = OVERLAP ? 2 * W : W, SLOTS = OVERLAP ? 2 * RATIO : RATIO;

shared float y[W];
shared float part[WG];

/* Column c of the gate (or kv) of the token at place `at`: of the step, or kept in the state. */
float source(F1 x, uint half_of_place, uvec4 seq, uint at, uint c)
{
    if (at >= seq.z) return x.v[(seq.x + at - seq.z) * COLS + c];
    return state.v[((seq.w * SLOTS + at % SLOTS) * 2u + half_of_place) * COLS + c];
}

void compress(uvec4 seq, uint at)
{
    uint tid = gl_LocalInvocationID.x, end = at + 1u, begin = end > SLOTS ? end - SLOTS : 0u;
    float squares = 0.0;
    for (uint i = tid; i < W; i += WG) {
        float top = -3.0e38, sum = 0.0, total = 0.0;
        for (uint t = begin; t < end; t++) {
            uint c = OVERLAP && t + RATIO >= end ? W + i : i;
            float z = source(gate, 1u, seq, t, c) + ape.v[t % RATIO * COLS + c], m = max(top, z);
            float old = exp(top - m), w = exp(z - m);
            sum = sum * old + w;
            total = total * old + w * source(kv, 0u, seq, t, c);
            top = m;
        }
        float v = total / sum;
        y[i] = v;
        squares += v * v;
    }
    part[tid] = squares;
    barrier();
    squares = 0.0;
    for (uint i = 0; i < WG; i++) squares += part[i];
    float r = 1.0 / sqrt(squares / float(W) + eps);
    for (uint i = tid; i < W; i += WG) y[i] *= r * norm.v[i];
    barrier();
    uint nh = N_ROT / 2u, p = end - RATIO;
    for (uint i = tid; i < nh; i += WG) {
        vec2 hi = high.v[min(p >> 6, n_high - 1u) * nh + i], lo = low.v[(p & 63u) * nh + i];
        float c = hi.x * lo.x - hi.y * lo.y, s = hi.y * lo.x + hi.x * lo.y;
        uint a = W - N_ROT + (NEOX ? i : 2u * i), b = a + (NEOX ? nh : 1u);
        float xa = y[a], xb = y[b];
        y[a] = xa * c - xb * s;
        y[b] = xa * s + xb * c;
    }
    barrier();
}

void store(uint row)
{
    uint tid = gl_LocalInvocationID.x;
    uvec2 at = cache_at(uvec2(cache), TYPE, W, row);
    if (TYPE == T_F32) {
        for (uint i = tid; i < W; i += WG) F1(at).v[i] = y[i];
    } else if (TYPE == T_F16) {
        for (uint i = tid; i < W; i += WG) H1(at).v[i] = uint16_t(f16_bits(y[i]));
    } else {
        for (uint b = tid; b < W / 32u; b += WG) {
            float top = 0.0, id;
            for (uint i = 0; i < 32u; i++) top = max(top, abs(y[b * 32u + i]));
            uint to = b * 17u;
            H1(at).v[to] = uint16_t(q8_0_scale(top, id));
            for (uint i = 0; i < 16u; i++)
                H1(at).v[to + 1u + i] = uint16_t(q8_0_pair(vec2(y[b * 32u + 2u * i], y[b * 32u + 2u * i + 1u]), id));
        }
    }
}

void main()
{
    uint t = gl_WorkGroupID.x;
    if (t >= pr.n_rows[0]) return;
    uvec4 tok = info.v[t];
    if (MODE == 0u) {
        for (uint i = gl_LocalInvocationID.x; i < W; i += WG) y[i] = kv.v[t * W + i];
        barrier();
    } else {
        if ((tok.y + 1u) % RATIO != 0u) return;
        compress(seqs.v[tok.x], tok.y);
    }
    store(cache_row(table, tok.x, tok.y, max_pages, page_tok, 1u, 0u));
}
