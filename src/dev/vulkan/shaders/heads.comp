#version 460
#extension GL_GOOGLE_include_directive : require
/* What lies between a layer's first products and its attention, in one: RMS norm of each head of the
 * queries and keys, rotary positions, keys and values into the cache. A workgroup a head of a token:
 * first the queries' heads, then the keys', then the values'. rope.comp has the tables of angles. */
#include "common.glsl"
#include "cache.glsl"

layout(constant_id = 1) const uint K_TYPE = T_F16;
layout(constant_id = 2) const uint V_TYPE = T_F16;
layout(constant_id = 3) const uint K_DIM = 64; /* of queries too */
layout(constant_id = 4) const uint V_DIM = 64;
layout(constant_id = 5) const uint N_ROT = 64;
layout(constant_id = 6) const uint ROT_OFF = 0;
layout(constant_id = 7) const bool NEOX = false;
layout(constant_id = 8) const bool Q_NORM = false;
layout(constant_id = 9) const bool K_NORM = false;
layout(constant_id = 10) const uint N_HEAD = 1;
layout(constant_id = 11) const uint N_HEAD_KV = 1;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 q, k, v, q_out;
    F1 q_w, k_w;
    F1 kc, vc;
    F2 high, low;
    TokInfo info;
    I1 table;
    uint page_tok, max_pages, n_high;
    float eps;
};

shared float head[K_DIM > V_DIM ? K_DIM : V_DIM];
shared float part[WG];

void norm_head(F1 w)
{
    uint tid = gl_LocalInvocationID.x;
    float sum = 0.0;
    for (uint i = tid; i < K_DIM; i += WG) sum += head[i] * head[i];
    part[tid] = sum;
    barrier();
    sum = 0.0;
    for (uint i = 0; i < WG; i++) sum += part[i];
    float r = 1.0 / sqrt(sum / float(K_DIM) + eps);
    for (uint i = tid; i < K_DIM; i += WG) head[i] = head[i] * r * w.v[i];
    barrier();
}

void rotate_head(uint p)
{
    uint nh = N_ROT / 2u;
    for (uint i = gl_LocalInvocationID.x; i < nh; i += WG) {
        vec2 hi = high.v[min(p >> 6, n_high - 1u) * nh + i], lo = low.v[(p & 63u) * nh + i];
        float c = hi.x * lo.x - hi.y * lo.y, s = hi.y * lo.x + hi.x * lo.y;
        uint a = ROT_OFF + (NEOX ? i : 2u * i), b = a + (NEOX ? nh : 1u);
        float xa = head[a], xb = head[b];
        head[a] = xa * c - xb * s;
        head[b] = xa * s + xb * c;
    }
    barrier();
}

void store_head(F1 c, uint type, uint dim, uint at)
{
    uint tid = gl_LocalInvocationID.x;
    if (type == T_F32) {
        for (uint i = tid; i < dim; i += WG) c.v[at * dim + i] = head[i];
    } else if (type == T_F16) {
        for (uint i = tid; i < dim; i += WG) H1(c).v[at * dim + i] = uint16_t(f16_bits(head[i]));
    } else {
        for (uint b = tid; b < dim / 32u; b += WG) {
            float top = 0.0;
            for (uint i = 0; i < 32u; i++) top = max(top, abs(head[b * 32u + i]));
            float id;
            uint to = (at * (dim / 32u) + b) * 17u;
            H1(c).v[to] = uint16_t(q8_0_scale(top, id));
            for (uint i = 0; i < 16u; i++)
                H1(c).v[to + 1u + i] =
                    uint16_t(q8_0_pair(vec2(head[b * 32u + 2u * i], head[b * 32u + 2u * i + 1u]), id));
        }
    }
}

void main()
{
    uint h = gl_WorkGroupID.x, row = gl_WorkGroupID.y, tid = gl_LocalInvocationID.x;
    if (row >= pr.n_rows[0]) return;
    uint part_of = h < N_HEAD ? 0u : h < N_HEAD + N_HEAD_KV ? 1u : 2u;
    uint hk = part_of == 0u ? h : (h - N_HEAD) % N_HEAD_KV;
    uint dim = part_of == 2u ? V_DIM : K_DIM, from = (row * (part_of == 0u ? N_HEAD : N_HEAD_KV) + hk) * dim;
    F1 x = part_of == 0u ? q : part_of == 1u ? k : v;
    for (uint i = tid; i < dim; i += WG) head[i] = x.v[from + i];
    barrier();
    uvec4 t = info.v[row];
    if (part_of < 2u) {
        if (part_of == 0u ? Q_NORM : K_NORM) norm_head(part_of == 0u ? q_w : k_w);
        rotate_head(t.w);
    }
    if (part_of == 0u) {
        for (uint i = tid; i < dim; i += WG) q_out.v[from + i] = head[i];
        return;
    }
    uint at = cache_row(table, t.x, t.y, max_pages, page_tok, N_HEAD_KV, hk);
    if (part_of == 1u) store_head(kc, K_TYPE, K_DIM, at);
    else store_head(vc, V_TYPE, V_DIM, at);
}
