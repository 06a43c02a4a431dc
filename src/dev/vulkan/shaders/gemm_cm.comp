#version 460
#extension GL_GOOGLE_include_directive : require
/* y = x W^T by cooperative matrices: f16 inputs, f32 sums. Tiles of BM rows by BN columns; the next tile is
 * on its way in registers while this one is multiplied; weights are unpacked to f16 on their way into shared
 * memory, whose rows are padded by 16 bytes. x is f16 already (to_f16.comp) and has memory for whole tiles.
 *
 *   SPLIT 1: y; SPLIT n: workgroup z sums its part of K into y [z][rows of whole tiles][n], which
 *            gemm_sum.comp adds up
 */
#include "common.glsl"
#include "weight.glsl"
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

layout(push_constant, scalar) uniform Push {
    Params pr;
    U4 x;
    F1 y;
    U4 w;
    U1 s, h;
    F1 bias, res;
    uint rows, k, n, nu;
    float scale;
    uint m_tiles;
    U1 z;
};

const uint VS = BK / 8 + 1; /* a row in shared memory, in 16-byte pieces */
const uint NA = BM * BK / 8 / WG, NB = BN * BK / 32 / WG;
const uint CM = WM / 16, CN = WN / 16, N_SUB = (BM / WM) * (BN / WN);

shared uvec4 sa[BM * VS];
shared uvec4 sb[BN * VS];
shared float edge[N_SUB * 256];

#if QUANTISED
#if TYPE == T_Q8_0
const float OFFSET = 1024.0 + 128.0;
#else
const float OFFSET = 1024.0 + ZERO;
#endif

/* Two bytes become halves by standing in the mantissa of 1024. */
uint halves(uint two, f16vec2 d, f16vec2 m)
{
    f16vec2 q = unpackFloat2x16(two | 0x64006400u) - f16vec2(float16_t(OFFSET));
#if HAS_MIN
    return packFloat2x16(q * d - m);
#else
    return packFloat2x16(q * d);
#endif
}

void store_run(uint at, uvec4 q, float sc, float mn)
{
    f16vec2 d = f16vec2(float16_t(sc)), m = f16vec2(float16_t(mn));
#if TYPE == T_Q8_0
    q ^= uvec4(0x80808080u);
#endif
    [[unroll]] for (uint i = 0; i < 2u; i++) {
        uint p = q[2u * i], r = q[2u * i + 1u];
        sb[at + i] = uvec4(halves((p & 0xFFu) | ((p & 0xFF00u) << 8), d, m),
                           halves(((p >> 16) & 0xFFu) | ((p >> 8) & 0xFF0000u), d, m),
                           halves((r & 0xFFu) | ((r & 0xFF00u) << 8), d, m),
                           halves(((r >> 16) & 0xFFu) | ((r >> 8) & 0xFF0000u), d, m));
    }
}
#endif

void main()
{
    uint tid = gl_LocalInvocationID.x, sub = gl_SubgroupID, lane = gl_SubgroupInvocationID;
    uint m0 = gl_WorkGroupID.x * BM, n0 = gl_WorkGroupID.y * BN, n_rows = pr.n_rows[rows];
    if (m0 >= n_rows) return;
    uint wm = sub % (BM / WM) * WM, wn = sub / (BM / WM) * WN;
    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> acc[CM * CN];
    [[unroll]] for (uint i = 0; i < CM * CN; i++)
        acc[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);

    uint tiles = (k + BK - 1u) / BK, per = (tiles + SPLIT - 1u) / SPLIT;
    uint k0 = gl_WorkGroupID.z * per * BK, k1 = min(k, k0 + per * BK);
    uvec4 ra[NA];
#if QUANTISED
    Raw rb[NB];
#else
    vec4 rb[NB * 8];
#endif

#define LOAD(at)                                                                                  \
    [[unroll]] for (uint i = 0; i < NA; i++) {                                                    \
        uint e = i * WG + tid, r = e / (BK / 8u), c = (at) + e % (BK / 8u) * 8u;                  \
        ra[i] = c < k1 ? x.v[((m0 + r) * k + c) >> 3] : uvec4(0u);                                \
    }                                                                                             \
    [[unroll]] for (uint i = 0; i < NB; i++) {                                                    \
        uint e = i * WG + tid, r = min(n0 + e / (BK / 32u), n - 1u), u = min(((at) >> 5) + e % (BK / 32u), nu - 1u); \
        LOAD_W                                                                                    \
    }
#if QUANTISED
#define LOAD_W rb[i] = load_raw(w, s, h, z, r, u, nu);
#else
#define LOAD_W                                                                                    \
    vec4 va[4], vb[4];                                                                            \
    unit_values(w, s, h, z, r, u, nu, va, vb);                                                    \
    [[unroll]] for (uint j = 0; j < 4u; j++) {                                                    \
        rb[i * 8u + j] = va[j];                                                                   \
        rb[i * 8u + 4u + j] = vb[j];                                                              \
    }
#endif

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
            store_run(a, r.qa, r.sa, r.ma);
            store_run(b, r.qb, r.sb, r.mb);
#else
            [[unroll]] for (uint j = 0; j < 2u; j++) {
                vec4 p = rb[i * 8u + 2u * j], q = rb[i * 8u + 2u * j + 1u];
                sb[a + j] = uvec4(packHalf2x16(p.xy), packHalf2x16(p.zw), packHalf2x16(q.xy), packHalf2x16(q.zw));
                p = rb[i * 8u + 4u + 2u * j], q = rb[i * 8u + 5u + 2u * j];
                sb[b + j] = uvec4(packHalf2x16(p.xy), packHalf2x16(p.zw), packHalf2x16(q.xy), packHalf2x16(q.zw));
            }
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

    uint part = SPLIT > 1u ? gl_WorkGroupID.z * m_tiles * BM * n : 0u;
    bool plain = SPLIT > 1u || (!HAS_BIAS && !HAS_RES && scale == 1.0);
    bool whole = plain && n0 + BN <= n && (SPLIT > 1u || m0 + BM <= n_rows) && (n & 3u) == 0u;
    [[unroll]] for (uint i = 0; i < CM; i++)
        [[unroll]] for (uint j = 0; j < CN; j++) {
            uint row0 = m0 + wm + i * 16u, col0 = n0 + wn + j * 16u;
            if (whole) {
                coopMatStore(acc[i * CN + j], y.v, part + row0 * n + col0, n, gl_CooperativeMatrixLayoutRowMajor);
                continue;
            }
            coopMatStore(acc[i * CN + j], edge, sub * 256u, 16u, gl_CooperativeMatrixLayoutRowMajor);
            controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared,
                           gl_SemanticsAcquireRelease);
            for (uint e = lane; e < 256u; e += gl_SubgroupSize) {
                uint row = row0 + e / 16u, col = col0 + e % 16u;
                if (row >= n_rows || col >= n) continue;
                float v = edge[sub * 256u + e];
                if (SPLIT == 1u) {
                    if (HAS_BIAS) v += bias.v[col];
                    v *= scale;
                    if (HAS_RES) v += res.v[row * n + col];
                }
                y.v[part + row * n + col] = v;
            }
            controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared,
                           gl_SemanticsAcquireRelease);
        }
}
