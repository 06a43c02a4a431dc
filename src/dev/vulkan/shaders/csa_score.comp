#version 460
#extension GL_GOOGLE_include_directive : require
/* The indexer: score = sum over heads of w_h relu(q_h k) / sqrt(dim * heads). A workgroup takes 32 entries of a
 * token at a time, WG / 32 threads to each, which share the heads. Nothing to do where all entries are seen. */
#include "common.glsl"
#include "cache.glsl"
#include "csa.glsl"

layout(constant_id = 1) const uint DIM = 128;
layout(constant_id = 2) const uint N_HEAD = 64;
layout(constant_id = 3) const uint TYPE = T_F16;
layout(constant_id = 4) const uint RATIO = 4;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 q, w, cache;
    TokInfo info;
    I1 table;
    F1 score; /* [token][max_entries] */
    F1 unused;
    uint page_tok, max_pages, max_entries, top_k;
};

const uint TILE = 32, HG = WG / TILE, D4 = (DIM + 3) / 4, KS = D4 + 1;

shared vec4 key[TILE * KS];
shared float part[WG];

vec4 query4(uint at, uint c4)
{
    vec4 r = vec4(0.0);
    [[unroll]] for (uint i = 0; i < 4u; i++)
        if (4u * c4 + i < DIM) r[i] = q.v[at + 4u * c4 + i];
    return r;
}

void main()
{
    uint t = gl_WorkGroupID.y, tid = gl_LocalInvocationID.x, j = tid % TILE, g = tid / TILE;
    if (t >= pr.n_rows[0]) return;
    uvec4 tok = info.v[t];
    uint n = n_entries(tok.y, RATIO);
    if (n <= top_k) return;
    float scale = 1.0 / sqrt(float(DIM) * float(N_HEAD));
    for (uint e0 = gl_WorkGroupID.x * TILE; e0 < n; e0 += gl_NumWorkGroups.x * TILE) {
        barrier();
        for (uint i = tid; i < TILE * D4; i += WG) {
            uint e = min(e0 + i / D4, n - 1u);
            uint row = cache_row(table, tok.x, entry_at(e, RATIO), max_pages, page_tok, 1u, 0u);
            key[i / D4 * KS + i % D4] = load_four(cache, TYPE, row, DIM, i % D4);
        }
        barrier();
        float sum = 0.0;
        for (uint h = g; h < N_HEAD; h += HG) {
            float s = 0.0;
            for (uint c = 0; c < D4; c++) s += dot(query4((t * N_HEAD + h) * DIM, c), key[j * KS + c]);
            sum += max(s, 0.0) * (w.v[t * N_HEAD + h] * scale);
        }
        part[tid] = sum;
        barrier();
        if (g == 0u && e0 + j < n) {
            sum = 0.0;
            for (uint i = 0; i < HG; i++) sum += part[i * TILE + j];
            score.v[t * max_entries + e0 + j] = sum;
        }
    }
}
