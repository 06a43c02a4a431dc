#version 460
#extension GL_GOOGLE_include_directive : require
/* This step's keys (z 0) and values (z 1) into the cache: a thread a block of 32 elements of a head. */
#include "common.glsl"
#include "cache.glsl"

layout(constant_id = 1) const uint K_TYPE = T_F16;
layout(constant_id = 2) const uint V_TYPE = T_F16;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 k, v;
    F1 kc, vc;
    TokInfo info;
    I1 table;
    F1 unused;
    uint n_head, k_dim, v_dim, page_tok, max_pages;
};

void write_q8_0(F1 x, uint from, H1 c, uint to)
{
    float top = 0.0, id;
    for (uint i = 0; i < 32u; i++) top = max(top, abs(x.v[from + i]));
    c.v[to] = uint16_t(q8_0_scale(top, id));
    for (uint i = 0; i < 32u; i += 2u) c.v[to + 1u + i / 2u] = uint16_t(q8_0_pair(vec2(x.v[from + i], x.v[from + i + 1u]), id));
}

void main()
{
    uint row = gl_WorkGroupID.y, i = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x;
    bool is_v = gl_WorkGroupID.z == 1u;
    uint dim = is_v ? v_dim : k_dim, type = is_v ? V_TYPE : K_TYPE, n_block = (dim + 31u) / 32u;
    if (row >= pr.n_rows[0] || i >= n_head * n_block) return;
    uint head = i / n_block, e0 = i % n_block * 32u;
    uvec4 t = info.v[row];
    uint at = cache_row(table, t.x, t.y, max_pages, page_tok, n_head, head);
    F1 x = is_v ? v : k, c = is_v ? vc : kc;
    uint from = (row * n_head + head) * dim + e0, n = min(32u, dim - e0);
    uvec2 to = cache_at(uvec2(c), type, dim, at);
    if (type == T_Q8_0) {
        write_q8_0(x, from, H1(to), e0 / 32u * 17u);
    } else if (type == T_F16) {
        for (uint j = 0; j < n; j++) H1(to).v[e0 + j] = uint16_t(f16_bits(x.v[from + j]));
    } else {
        for (uint j = 0; j < n; j++) F1(to).v[e0 + j] = x.v[from + j];
    }
}
