#version 460
#extension GL_GOOGLE_include_directive : require
/* What lies between a layer's first products and its attention, in one: RMS norm of each head of the
 * queries and keys, rotary positions, keys and values into the cache. A workgroup a head of a token, or with
 * -DSUBGROUP=1 a subgroup: first the queries' heads, then the keys', then the values'. rope.comp has the tables
 * of angles. */
#include "common.glsl"
#include "cache.glsl"
#if SUBGROUP
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif

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
layout(constant_id = 12) const uint NT = 64; /* threads of a head: WG, or the subgroup's size */

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

const uint DIM = K_DIM > V_DIM ? K_DIM : V_DIM;
shared float head[WG / NT * DIM];
#if SUBGROUP
#define TID gl_SubgroupInvocationID
#define FIRST (gl_SubgroupID * DIM)
void meet() { controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease); }
float add_up(float x) { return subgroupAdd(x); }
#else
#define TID gl_LocalInvocationID.x
#define FIRST 0u
shared float part[WG];
void meet() { barrier(); }
float add_up(float x)
{
    part[TID] = x;
    barrier();
    x = 0.0;
    for (uint i = 0; i < WG; i++) x += part[i];
    return x;
}
#endif

void norm_head(F1 w)
{
    float sum = 0.0;
    for (uint i = TID; i < K_DIM; i += NT) sum += head[FIRST + i] * head[FIRST + i];
    float r = 1.0 / sqrt(add_up(sum) / float(K_DIM) + eps);
    for (uint i = TID; i < K_DIM; i += NT) head[FIRST + i] = head[FIRST + i] * r * w.v[i];
    meet();
}

void rotate_head(uint p)
{
    uint nh = N_ROT / 2u;
    for (uint i = TID; i < nh; i += NT) {
        vec2 hi = high.v[min(p >> 6, n_high - 1u) * nh + i], lo = low.v[(p & 63u) * nh + i];
        float c = hi.x * lo.x - hi.y * lo.y, s = hi.y * lo.x + hi.x * lo.y;
        uint a = FIRST + ROT_OFF + (NEOX ? i : 2u * i), b = a + (NEOX ? nh : 1u);
        float xa = head[a], xb = head[b];
        head[a] = xa * c - xb * s;
        head[b] = xa * s + xb * c;
    }
    meet();
}

void store_head(F1 c, uint type, uint dim, uint row)
{
    uvec2 at = cache_at(uvec2(c), type, dim, row);
    if (type == T_F32) {
        for (uint i = TID; i < dim; i += NT) F1(at).v[i] = head[FIRST + i];
    } else if (type == T_F16 && dim % 2u == 0u) {
        for (uint i = TID; i < dim / 2u; i += NT)
            U1(at).v[i] = f16_bits(head[FIRST + 2u * i]) | f16_bits(head[FIRST + 2u * i + 1u]) << 16;
    } else if (type == T_F16) {
        for (uint i = TID; i < dim; i += NT) H1(at).v[i] = uint16_t(f16_bits(head[FIRST + i]));
    } else {
        for (uint b = TID; b < dim / 32u; b += NT) {
            uint from = FIRST + b * 32u;
            float top = 0.0;
            for (uint i = 0; i < 32u; i++) top = max(top, abs(head[from + i]));
            float id;
            H1(at).v[b * 17u] = uint16_t(q8_0_scale(top, id));
            for (uint i = 0; i < 16u; i++)
                H1(at).v[b * 17u + 1u + i] = uint16_t(q8_0_pair(vec2(head[from + 2u * i], head[from + 2u * i + 1u]), id));
        }
    }
}

void main()
{
#if SUBGROUP
    uint h = gl_WorkGroupID.x * (WG / NT) + gl_SubgroupID, row = gl_WorkGroupID.y;
    if (h >= N_HEAD + 2u * N_HEAD_KV) return;
#else
    uint h = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
#endif
    if (row >= pr.n_rows[0]) return;
    uint part_of = h < N_HEAD ? 0u : h < N_HEAD + N_HEAD_KV ? 1u : 2u;
    uint hk = part_of == 0u ? h : (h - N_HEAD) % N_HEAD_KV;
    uint dim = part_of == 2u ? V_DIM : K_DIM, from = (row * (part_of == 0u ? N_HEAD : N_HEAD_KV) + hk) * dim;
    F1 x = part_of == 0u ? q : part_of == 1u ? k : v;
    for (uint i = TID; i < dim; i += NT) head[FIRST + i] = x.v[from + i];
    meet();
    uvec4 t = info.v[row];
    if (part_of < 2u) {
        if (part_of == 0u ? Q_NORM : K_NORM) norm_head(part_of == 0u ? q_w : k_w);
        rotate_head(t.w);
    }
    if (part_of == 0u) {
        for (uint i = TID; i < dim; i += NT) q_out.v[from + i] = head[FIRST + i];
        return;
    }
    uint at = cache_row(table, t.x, t.y, max_pages, page_tok, N_HEAD_KV, hk);
    if (part_of == 1u) store_head(kc, K_TYPE, K_DIM, at);
    else store_head(vc, V_TYPE, V_DIM, at);
}
