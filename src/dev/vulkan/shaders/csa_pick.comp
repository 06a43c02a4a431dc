#version 460
#extension GL_GOOGLE_include_directive : require
/* The top_k entries of a token with the best scores, the earlier of equal ones, as a rising list: a workgroup of
 * 256 a token. Nothing to do where all entries are seen. The score of the last one is found digit by digit, 8
 * bits at a time, in numbers that order as the scores do; then the entries are gone through in order. */
#include "common.glsl"
#include "cache.glsl"
#include "csa.glsl"
#include "order.glsl"

layout(constant_id = 1) const uint RATIO = 4;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 score; /* [token][max_entries] */
    U1 list;  /* [token][top_k] */
    TokInfo info;
    F1 unused[4];
    uint max_entries, top_k;
};

void main()
{
    uint t = gl_WorkGroupID.x, tid = gl_LocalInvocationID.x;
    if (t >= pr.n_rows[0]) return;
    uint n = n_entries(info.v[t].y, RATIO), from = t * max_entries;
    if (n <= top_k) return;
    uint ties, last = kth_key(score, from, n, top_k, ties);
    uint above = 0u, equal = 0u; /* of the entries gone through so far */
    for (uint e0 = 0; e0 < n; e0 += WG) {
        uint e = e0 + tid, key = e < n ? order_of(score.v[from + e]) : 0u;
        uint mine = e < n ? (key > last ? 1u : 0u) | (key == last ? 0x10000u : 0u) : 0u, sum = scan_sum(mine);
        uint a = above + (sum & 0xFFFFu) - (mine & 1u), q = equal + (sum >> 16) - (mine >> 16);
        if (mine == 1u || (mine != 0u && q < ties)) list.v[t * top_k + a + min(q, ties)] = e;
        above += scan_total() & 0xFFFFu;
        equal += scan_total() >> 16;
    }
}
