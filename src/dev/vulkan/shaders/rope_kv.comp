#version 460
#extension GL_GOOGLE_include_directive : require
/* Rope of queries (z 0, in place or to qy) and keys (z 1, into the cache), values into the cache (z 2): what
 * stands between a layer's first product and its attention. Cache types f32 and f16. A thread a pair, of
 * columns that are rotated together or, past those, of neighbours. */
#include "common.glsl"
#include "cache.glsl"

layout(constant_id = 1) const uint K_TYPE = T_F16;
layout(constant_id = 2) const uint V_TYPE = T_F16;
layout(constant_id = 3) const bool NEOX = false;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 q, k, v;
    F1 kc, vc;
    TokInfo info;
    I1 table;
    F2 high, low;
    uint n_head, n_head_kv, k_dim, v_dim, n_rot, rot_off, n_high, page_tok, max_pages;
};

void put(F1 c, uint type, uint at, float x)
{
    if (type == T_F16) H1(c).v[at] = uint16_t(f16_bits(x));
    else c.v[at] = x;
}

void main()
{
    uint i = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, row = gl_WorkGroupID.y, z = gl_WorkGroupID.z;
    uint dim = z == 2u ? v_dim : k_dim, heads = z == 0u ? n_head : n_head_kv, pairs = dim / 2u;
    if (row >= pr.n_rows[0] || i >= heads * pairs) return;
    uint head = i / pairs, p = i % pairs, nh = n_rot / 2u, a, b;
    if (z == 2u || p >= nh) { /* not rotated: two neighbours */
        a = z == 2u ? 2u * p : 2u * (p - nh);
        if (z != 2u && a >= rot_off) a += n_rot;
        b = a + 1u;
    } else {
        a = rot_off + (NEOX ? p : 2u * p);
        b = a + (NEOX ? nh : 1u);
    }
    uvec4 t = info.v[row];
    uint from = (row * heads + head) * dim;
    F1 x = z == 0u ? q : z == 1u ? k : v;
    float xa = x.v[from + a], xb = x.v[from + b];
    if (z != 2u && p < nh) {
        vec2 hi = high.v[min(t.w >> 6, n_high - 1u) * nh + p], lo = low.v[(t.w & 63u) * nh + p];
        float c = hi.x * lo.x - hi.y * lo.y, s = hi.y * lo.x + hi.x * lo.y, ya = xa * c - xb * s;
        xb = xa * s + xb * c;
        xa = ya;
    }
    if (z == 0u) {
        q.v[from + a] = xa;
        q.v[from + b] = xb;
        return;
    }
    uint at = cache_row(table, t.x, t.y, max_pages, page_tok, n_head_kv, head) * dim, type = z == 1u ? K_TYPE : V_TYPE;
    put(z == 1u ? kc : vc, type, at + a, xa);
    put(z == 1u ? kc : vc, type, at + b, xb);
}
