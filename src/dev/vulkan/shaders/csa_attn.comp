#version 460
#extension GL_GOOGLE_include_directive : require
/* Attention of HB heads of a token over the last WINDOW keys and the entries that it sees, 32 at a time; keys are
 * the values. A head's sink joins the sum only. */
#include "common.glsl"
#include "cache.glsl"
#include "csa.glsl"

layout(constant_id = 1) const uint KD = 64;
layout(constant_id = 2) const uint N_HEAD = 1;
layout(constant_id = 3) const uint HB = 1;
layout(constant_id = 4) const uint TYPE = T_F16;
layout(constant_id = 5) const uint WINDOW = 128;
layout(constant_id = 6) const uint RATIO = 0;
layout(constant_id = 7) const uint TOP_K = 0; /* 0: no indexer */

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 q, raw, comp, y;
    TokInfo info;
    I1 table;
    U1 list; /* [token][TOP_K] entries, where there are more than that */
    F1 sinks;
    uint page_tok, max_pages;
    float scale;
};

const uint TILE = 32, SG = WG / TILE, NH = (HB + SG - 1) / SG, KD4 = (KD + 3) / 4, NE = (KD4 + WG - 1) / WG;

shared vec4 sq[HB * KD4];
shared float ss[HB * TILE];
shared float s_max[HB], s_sum[HB], s_alpha[HB];
shared uint s_row[TILE];
shared bool s_raw[TILE];

void load_queries(uint t, uint h0)
{
    for (uint i = gl_LocalInvocationID.x; i < HB * KD4; i += WG) {
        uint from = (t * N_HEAD + h0 + i / KD4) * KD, c = i % KD4 * 4u;
        vec4 r = vec4(0.0);
        [[unroll]] for (uint k = 0; k < 4u; k++)
            if (c + k < KD) r[k] = q.v[from + c + k] * scale;
        sq[i] = r;
    }
    for (uint i = gl_LocalInvocationID.x; i < HB; i += WG) {
        s_max[i] = sinks.v[h0 + i];
        s_sum[i] = 1.0;
    }
}

/* Scores of keys k0 .. of n, then weights. */
void score_tile(uint t, uvec4 tok, uint k0, uint n_raw, uint n, bool listed)
{
    uint tid = gl_LocalInvocationID.x, j = tid % TILE, k = k0 + j;
    float acc[NH];
    [[unroll]] for (uint i = 0; i < NH; i++) acc[i] = 0.0;
    if (k < n) {
        bool is_raw = k < n_raw;
        uint e = k - n_raw, at = is_raw ? tok.y + 1u - n_raw + k : entry_at(listed ? list.v[t * TOP_K + e] : e, RATIO);
        uint row = cache_row(table, tok.x, at, max_pages, page_tok, 1u, 0u);
        if (tid < TILE) {
            s_row[j] = row;
            s_raw[j] = is_raw;
        }
        for (uint c = 0; c < KD4; c++) {
            vec4 key = is_raw ? load_four(raw, TYPE, row, KD, c) : load_four(comp, TYPE, row, KD, c);
            [[unroll]] for (uint i = 0; i < NH; i++) acc[i] += dot(key, sq[min(tid / TILE + SG * i, HB - 1u) * KD4 + c]);
        }
    }
    [[unroll]] for (uint i = 0; i < NH; i++) {
        uint h = tid / TILE + SG * i;
        if (h < HB) ss[h * TILE + j] = acc[i];
    }
    barrier();
    uint n_tile = min(TILE, n - k0);
    for (uint h = tid; h < HB; h += WG) {
        float m = s_max[h];
        for (uint i = 0; i < n_tile; i++) m = max(m, ss[h * TILE + i]);
        s_alpha[h] = exp(s_max[h] - m);
        s_max[h] = m;
    }
    barrier();
    for (uint p = tid; p < HB * TILE; p += WG) ss[p] = p % TILE < n_tile ? exp(ss[p] - s_max[p / TILE]) : 0.0;
    barrier();
    for (uint h = tid; h < HB; h += WG) {
        float sum = 0.0;
        for (uint i = 0; i < n_tile; i++) sum += ss[h * TILE + i];
        s_sum[h] = s_sum[h] * s_alpha[h] + sum;
    }
}

void main()
{
    uint t = gl_WorkGroupID.x, h0 = gl_WorkGroupID.y * HB, tid = gl_LocalInvocationID.x;
    if (t >= pr.n_rows[0]) return;
    uvec4 tok = info.v[t];
    uint n_raw = min(tok.y + 1u, WINDOW), n_comp = n_entries(tok.y, RATIO);
    bool listed = TOP_K != 0u && n_comp > TOP_K;
    uint n = n_raw + (listed ? TOP_K : n_comp);
    vec4 o[NE * HB];
    [[unroll]] for (uint i = 0; i < NE * HB; i++) o[i] = vec4(0.0);
    load_queries(t, h0);
    barrier();
    for (uint k0 = 0; k0 < n; k0 += TILE) {
        score_tile(t, tok, k0, n_raw, n, listed);
        [[unroll]] for (uint h = 0; h < HB; h++)
            [[unroll]] for (uint e = 0; e < NE; e++) o[h * NE + e] *= s_alpha[h];
        for (uint i = 0; i < min(TILE, n - k0); i++)
            [[unroll]] for (uint e = 0; e < NE; e++) {
                uint c = tid + WG * e;
                if (c >= KD4) continue;
                vec4 v = s_raw[i] ? load_four(raw, TYPE, s_row[i], KD, c) : load_four(comp, TYPE, s_row[i], KD, c);
                [[unroll]] for (uint h = 0; h < HB; h++) o[h * NE + e] += ss[h * TILE + i] * v;
            }
        barrier();
    }
    [[unroll]] for (uint h = 0; h < HB; h++)
        [[unroll]] for (uint e = 0; e < NE; e++) {
            uint c = tid + WG * e;
            vec4 v = o[h * NE + e] / s_sum[h];
            [[unroll]] for (uint k = 0; k < 4u; k++)
                if (4u * c + k < KD) y.v[(t * N_HEAD + h0 + h) * KD + 4u * c + k] = v[k];
        }
}
