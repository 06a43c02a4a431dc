#version 460
#extension GL_GOOGLE_include_directive : require
/* y = x W^T by cooperative matrices: f16 inputs, f32 sums. Tiles of BM rows by BN columns; the next tile is
 * on its way in registers while this one is multiplied; weights are unpacked to f16 on their way into shared
 * memory, whose rows are padded by 16 bytes. x is f16 already (to_f16.comp) and has memory for whole tiles.
 *
 *   SPLIT n: workgroup z sums its part of K. The parts meet in memory, and the last of a tile's workgroups
 *            to finish adds them up in order of z
 *   GLU:     two weights of the same shape, gate and up; y is act(gate) * up, in f16, for the next product.
 *            Half of a subgroup's columns are of the gate, the other half the same columns of the up product
 */
#include "common.glsl"
#include "weight.glsl"
#include "act.glsl"
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#pragma use_vulkan_memory_model

layout(constant_id = 1) const uint BM = 128;
layout(constant_id = 2) const uint BN = 128;
layout(constant_id = 3) const uint BK = 64;
layout(constant_id = 4) const uint WM = 64; /* of one subgroup */
layout(constant_id = 5) const uint WN = 64;
layout(constant_id = 6) const uint SPLIT = 1;
layout(constant_id = 7) const bool HAS_BIAS = false;
layout(constant_id = 8) const bool HAS_RES = false;
layout(constant_id = 9) const bool TAIL = true; /* K is no multiple of BK */
layout(constant_id = 10) const uint ACT = 1;

/* Written and read by different workgroups of one dispatch. */
layout(buffer_reference, scalar, buffer_reference_align = 16) coherent buffer C4 { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Count { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Y16 { float16_t v[]; };

layout(push_constant, scalar) uniform Push {
    Params pr;
    U4 x;
    F1 y;
    U4 w;
    U1 s, h;
#if GLU
    U1 s2, h2;
#else
    F1 bias, res;
#endif
    uint rows, k, n, nu;
    float scale; /* GLU: the limit of gate and up, 0 none */
    uint pad;
    U1 z;
#if GLU
    U4 w2;
    U1 z2;
#else
    C4 part;    /* [tile][z][BM * BN / 4] */
    Count done; /* [tile]: parts that are there; 0 between steps */
#endif
};

const uint VS = BK / 8 + 1; /* a row in shared memory, in 16-byte pieces */
const uint NA = BM * BK / 8 / WG, NB = BN * BK / 32 / WG;
const uint CM = WM / 16, CN = WN / 16;

shared uvec4 sa[BM * VS];
shared uvec4 sb[BN * VS];
shared uint s_order;

#if QUANTISED
const bool NIBBLES = TYPE == T_Q4_0 || TYPE == T_Q4_1 || TYPE == T_Q4_K;
#if TYPE == T_Q8_0
const float OFFSET = 128.0;
#else
const float OFFSET = ZERO;
#endif

/* Four quants in a word, elements of run h (0 a, 1 b), to halves. Integers become halves by standing in the mantissa of
 * 1024, two at a time: elements 0, 2 and 1, 3. A nibble's place in the high half of its byte makes it 16 times as large,
 * which the factor of an exact fma takes back. */
uvec2 halves(uint q, uint h, f16vec2 d, f16vec2 m)
{
    f16vec2 x, y;
    if (NIBBLES && h == 1u) {
        const f16vec2 by = f16vec2(float16_t(0.0625)), less = f16vec2(float16_t(-64.0 - OFFSET));
        x = fma(unpackFloat2x16((q & 0x00F000F0u) | 0x64006400u), by, less);
        y = fma(unpackFloat2x16(((q >> 8) & 0x00F000F0u) | 0x64006400u), by, less);
    } else {
        const uint mask = NIBBLES ? 0x000F000Fu : 0x00FF00FFu;
        const f16vec2 less = f16vec2(float16_t(1024.0 + OFFSET));
        x = unpackFloat2x16((q & mask) | 0x64006400u) - less;
        y = unpackFloat2x16(((q >> 8) & mask) | 0x64006400u) - less;
    }
#if HAS_MIN
    x = x * d - m;
    y = y * d - m;
#else
    x *= d;
    y *= d;
#endif
    return uvec2(packFloat2x16(f16vec2(x.x, y.x)), packFloat2x16(f16vec2(x.y, y.y)));
}

void store_run(uint at, uvec4 q, uint h, float sc, float mn)
{
    f16vec2 d = f16vec2(float16_t(sc)), m = f16vec2(float16_t(mn));
#if TYPE == T_Q8_0
    q ^= uvec4(0x80808080u);
#endif
    sb[at] = uvec4(halves(q.x, h, d, m), halves(q.y, h, d, m));
    sb[at + 1u] = uvec4(halves(q.z, h, d, m), halves(q.w, h, d, m));
}
#endif

/* A tile's row of the weight on its way: unit u of it. */
#if QUANTISED
#define Piece Raw
Piece load_w(uint row, uint u)
{
#if GLU
    uint half_ = WN / 2u, block = row / WN, at = row % WN;
    bool up = at >= half_;
    uint r = min(gl_WorkGroupID.y * (BN / 2u) + block * half_ + at % half_, n - 1u);
    return load_raw(U4(mix(uvec2(w), uvec2(w2), bvec2(up))), U1(mix(uvec2(s), uvec2(s2), bvec2(up))),
                    U1(mix(uvec2(h), uvec2(h2), bvec2(up))), U1(mix(uvec2(z), uvec2(z2), bvec2(up))), r, u, nu);
#else
    return load_raw(w, s, h, z, min(gl_WorkGroupID.y * BN + row, n - 1u), u, nu);
#endif
}
#else
struct Piece { vec4 a[4], b[4]; };
Piece load_w(uint row, uint u)
{
    Piece p;
    uint r = min(gl_WorkGroupID.y * BN + row, n - 1u);
    unit_values(w, s, h, z, r, u, nu, p.a, p.b);
    return p;
}
void store_floats(uint at, vec4 v[4])
{
    [[unroll]] for (uint j = 0; j < 2u; j++) {
        vec4 p = v[2u * j], q = v[2u * j + 1u];
        sb[at + j] = uvec4(packHalf2x16(p.xy), packHalf2x16(p.zw), packHalf2x16(q.xy), packHalf2x16(q.zw));
    }
}
#endif

void main()
{
    uint tid = gl_LocalInvocationID.x, sub = gl_SubgroupID, lane = gl_SubgroupInvocationID;
    uint m0 = gl_WorkGroupID.x * BM, n_rows = pr.n_rows[rows];
    if (m0 >= n_rows) return;
    uint wm = sub % (BM / WM) * WM, wn = sub / (BM / WM) * WN;
    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> acc[CM * CN];
    [[unroll]] for (uint i = 0; i < CM * CN; i++)
        acc[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);

    uint tiles = (k + BK - 1u) / BK, per = (tiles + SPLIT - 1u) / SPLIT;
    uint k0 = gl_WorkGroupID.z * per * BK, k1 = min(k, k0 + per * BK);
    uvec4 ra[NA];
    Piece rb[NB];

    /* A thread's pieces of x lie WG / (BK / 8) rows apart. */
    uint xa = ((m0 + tid / (BK / 8u)) * k >> 3) + tid % (BK / 8u), xs = WG / (BK / 8u) * k >> 3;
#define LOAD(at)                                                                          \
    [[unroll]] for (uint i = 0; i < NA; i++) {                                            \
        bool on = !TAIL || (at) + tid % (BK / 8u) * 8u < k1;                              \
        ra[i] = on ? x.v[xa + i * xs + ((at) >> 3)] : uvec4(0u);                          \
    }                                                                                     \
    [[unroll]] for (uint i = 0; i < NB; i++) {                                            \
        uint e = i * WG + tid, u = ((at) >> 5) + e % (BK / 32u);                          \
        rb[i] = load_w(e / (BK / 32u), TAIL ? min(u, nu - 1u) : u);                       \
    }

    if (k0 < k1) {
        LOAD(k0)
    }
    for (uint kt = k0; kt < k1; kt += BK) {
        barrier();
        [[unroll]] for (uint i = 0; i < NA; i++) {
            uint e = i * WG + tid;
            sa[e / (BK / 8u) * VS + e % (BK / 8u)] = ra[i];
        }
        [[unroll]] for (uint i = 0; i < NB; i++) {
            uint e = i * WG + tid, u = (kt >> 5) + e % (BK / 32u), at = e / (BK / 32u) * VS;
            uint a = at + ((unit_a(u) - kt) >> 3), b = at + ((unit_b(u) - kt) >> 3);
#if QUANTISED
            Unit r = decode(rb[i], u);
            store_run(a, NIBBLES ? rb[i].q : r.qa, 0u, r.sa, r.ma);
            store_run(b, NIBBLES ? rb[i].q : r.qb, 1u, r.sb, r.mb);
#else
            store_floats(a, rb[i].a);
            store_floats(b, rb[i].b);
#endif
        }
        barrier();
        if (kt + BK < k1) {
            LOAD(kt + BK)
        }
        [[unroll]] for (uint kk = 0; kk < BK / 16u; kk++) {
            coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> ma[CM];
            [[unroll]] for (uint i = 0; i < CM; i++)
                coopMatLoad(ma[i], sa, (wm + i * 16u) * VS + kk * 2u, VS, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint j = 0; j < CN; j++) {
                coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> mb;
                coopMatLoad(mb, sb, (wn + j * 16u) * VS + kk * 2u, VS, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint i = 0; i < CM; i++) acc[i * CN + j] = coopMatMulAdd(ma[i], mb, acc[i * CN + j]);
            }
        }
    }

#if !GLU
    /* The layout of an accumulator is the driver's, but the same in all these workgroups. */
    if (SPLIT > 1u) {
        uint tile = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x, first = tile * SPLIT;
        uint own = (first + gl_WorkGroupID.z) * (BM * BN / 4u) + tid;
        [[unroll]] for (uint i = 0; i < CM * CN; i++) {
            part.v[own + 2u * i * WG] = vec4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
            part.v[own + (2u * i + 1u) * WG] = vec4(acc[i][4], acc[i][5], acc[i][6], acc[i][7]);
        }
        memoryBarrierBuffer();
        barrier();
        if (tid == 0u) s_order = atomicAdd(done.v[tile], 1u);
        barrier();
        if (s_order + 1u != SPLIT) return;
        memoryBarrierBuffer();
        if (tid == 0u) done.v[tile] = 0u;
        if (SPLIT > 2u)
            [[unroll]] for (uint i = 0; i < CM * CN; i++)
                acc[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
        for (uint q = 0; q < SPLIT; q++) { /* a sum of two is the same in either order */
            if (SPLIT == 2u && q == gl_WorkGroupID.z) continue;
            uint from = (first + q) * (BM * BN / 4u) + tid;
            [[unroll]] for (uint i = 0; i < CM * CN; i++) {
                vec4 a = part.v[from + 2u * i * WG], b = part.v[from + (2u * i + 1u) * WG];
                [[unroll]] for (uint e = 0; e < 4u; e++) {
                    acc[i][e] += a[e];
                    acc[i][4u + e] += b[e];
                }
            }
        }
    }
#endif

    barrier(); /* from here on sa holds what is at an edge */
    const uint CO = GLU != 0 ? CN / 2u : CN; /* tiles of the result */
    uint col_first = GLU != 0 ? gl_WorkGroupID.y * (BN / 2u) + wn / 2u : gl_WorkGroupID.y * BN + wn;
    [[unroll]] for (uint i = 0; i < CM; i++)
        [[unroll]] for (uint j = 0; j < CO; j++) {
            uint row0 = m0 + wm + i * 16u, col0 = col_first + j * 16u;
            if (row0 >= n_rows || col0 >= n) continue;
            coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> a = acc[i * CN + j];
            bool whole = row0 + 16u <= n_rows && col0 + 16u <= n && (n & 7u) == 0u;
#if GLU
            [[unroll]] for (uint e = 0; e < 8u; e++) {
                float g = a[e], u = acc[i * CN + j + CO][e];
                if (scale > 0.0) {
                    g = min(g, scale);
                    u = clamp(u, -scale, scale);
                }
                a[e] = activate(ACT, g) * u;
            }
            if (whole) {
                coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> half_ =
                    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(a);
                coopMatStore(half_, Y16(uvec2(y)).v, row0 * n + col0, n, gl_CooperativeMatrixLayoutRowMajor);
                continue;
            }
#else
            if (whole && !HAS_BIAS) {
                a = a * scale;
                if (HAS_RES) {
                    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> r;
                    coopMatLoad(r, res.v, row0 * n + col0, n, gl_CooperativeMatrixLayoutRowMajor);
                    a = a + r;
                }
                coopMatStore(a, y.v, row0 * n + col0, n, gl_CooperativeMatrixLayoutRowMajor);
                continue;
            }
#endif
            coopMatStore(a, sa, sub * 64u, 4u, gl_CooperativeMatrixLayoutRowMajor);
            controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared,
                           gl_SemanticsAcquireRelease);
            for (uint e = lane; e < 256u; e += gl_SubgroupSize) {
                uint row = row0 + e / 16u, col = col0 + e % 16u;
                if (row >= n_rows || col >= n) continue;
                float v = uintBitsToFloat(sa[sub * 64u + e / 4u][e % 4u]);
#if GLU
                Y16(uvec2(y)).v[row * n + col] = float16_t(v);
#else
                if (HAS_BIAS) v += bias.v[col];
                v *= scale;
                if (HAS_RES) v += res.v[row * n + col];
                y.v[row * n + col] = v;
#endif
            }
            controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared,
                           gl_SemanticsAcquireRelease);
        }
}
