#version 460
#extension GL_GOOGLE_include_directive : require
/* Experts of many rows by cooperative matrices: f16 inputs, f32 sums. A workgroup takes a tile of at most BM
 * places of one expert, whose rows it gathers, by BN rows of that expert's weights; as in gemm_cm.comp the
 * next piece of K is on its way in registers while this one is multiplied.
 *
 *   GLU 1: x are the step's rows; y [place][N] is act(gate) * up in f16. Half of a subgroup's columns are of
 *          the gate, the other half the same columns of up
 *   GLU 0: x are the hidden rows [place][K]; y [place][N] is their product in f32
 *
 * Whole blocks of 16 places are written: an expert's places are padded to that. K and N are multiples of 32. */
#include "common.glsl"
#include "weight.glsl"
#include "act.glsl"
#include "moe.glsl"
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#pragma use_vulkan_memory_model

layout(constant_id = 1) const uint BM = 32;
layout(constant_id = 2) const uint BN = 128;
layout(constant_id = 3) const uint BK = 64;
layout(constant_id = 4) const uint WM = 32; /* of one subgroup */
layout(constant_id = 5) const uint WN = 32;
layout(constant_id = 6) const uint STAGES = 1; /* pieces of K in shared memory */
layout(constant_id = 7) const uint K = 64;
layout(constant_id = 8) const uint N = 64;
layout(constant_id = 9) const uint GLU_ACT = 1; /* 16: gate and up are one matrix, up's rows after the gate's */
layout(constant_id = 10) const float LIMIT = 0.0;

layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Y16 { float16_t v[]; };

layout(push_constant, scalar) uniform Push {
    Params pr;
    U4 x;
    F1 y;
    U4 w;
    U1 s, h;
    U4 w2;
    U1 s2, h2, z, z2;
    MoeTable table;
    U1 row_of;
};

const bool MERGED = (GLU_ACT & 16u) != 0u;
const uint NU = K / 32, ROWS = GLU != 0 && MERGED ? 2 * N : N, OUT_N = GLU != 0 ? BN / 2 : BN;
const uint VS = BK / 8 + 1; /* a row in shared memory, in 16-byte pieces */
const uint NA = BM * BK / 8 / WG, NB = BN * BK / 32 / WG;
const uint CM = WM / 16, CN = WN / 16;
const bool TAIL = K % BK != 0;

shared uvec4 sa[STAGES * BM * VS];
shared uvec4 sb[STAGES * BN * VS];

#include "cm_unpack.glsl"

/* Unit u of row `row` of the tile of weights, from row `first` of the matrix on. */
Piece load_w(uint first, uint row, uint u)
{
#if GLU
    uint half_ = WN / 2u, at = row % WN, r = gl_WorkGroupID.x * OUT_N + row / WN * half_ + at % half_;
    bvec2 up = bvec2(at >= half_);
    r = first + min(r, N - 1u) + (MERGED && up.x ? N : 0u);
    return load_piece(U4(mix(uvec2(w), uvec2(w2), up)), U1(mix(uvec2(s), uvec2(s2), up)),
                      U1(mix(uvec2(h), uvec2(h2), up)), U1(mix(uvec2(z), uvec2(z2), up)), r, u, NU);
#else
    return load_piece(w, s, h, z, first + min(gl_WorkGroupID.x * OUT_N + row, N - 1u), u, NU);
#endif
}

void main()
{
    uint tid = gl_LocalInvocationID.x, sub = gl_SubgroupID;
    if (gl_WorkGroupID.y >= table.n_tiles) return;
    uvec4 t = table.tile[gl_WorkGroupID.y];
    uint wm = sub % (BM / WM) * WM, wn = sub / (BM / WM) * WN, first = t.x * ROWS;
    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> acc[CM * CN];
    [[unroll]] for (uint i = 0; i < CM * CN; i++)
        acc[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);

    uvec4 ra[NA];
    Piece rb[NB];
    uint xa[NA]; /* where this thread's pieces of x begin */
    [[unroll]] for (uint i = 0; i < NA; i++) {
        uint place = t.y + min((i * WG + tid) / (BK / 8u), t.z - 1u);
        xa[i] = (GLU != 0 ? row_of.v[place] : place) * (K / 8u) + tid % (BK / 8u);
    }
#define LOAD(at)                                                                          \
    [[unroll]] for (uint i = 0; i < NB; i++) {                                            \
        uint e = i * WG + tid, u = ((at) >> 5) + e % (BK / 32u);                          \
        rb[i] = load_w(first, e / (BK / 32u), TAIL ? min(u, NU - 1u) : u);                \
    }                                                                                     \
    [[unroll]] for (uint i = 0; i < NA; i++) {                                            \
        bool on = !TAIL || (at) + tid % (BK / 8u) * 8u < K;                               \
        ra[i] = on ? x.v[xa[i] + ((at) >> 3)] : uvec4(0u);                                \
    }

    LOAD(0u)
    uint stage = 0u;
    for (uint kt = 0u; kt < K; kt += BK) {
        if (STAGES == 1u) barrier();
        uint oa = stage * (BM * VS), ob = stage * (BN * VS);
        [[unroll]] for (uint i = 0; i < NA; i++) {
            uint e = i * WG + tid;
            sa[oa + e / (BK / 8u) * VS + e % (BK / 8u)] = ra[i];
        }
        [[unroll]] for (uint i = 0; i < NB; i++) {
            uint e = i * WG + tid, u = (kt >> 5) + e % (BK / 32u), at = ob + e / (BK / 32u) * VS;
            store_piece(at + ((unit_a(u) - kt) >> 3), at + ((unit_b(u) - kt) >> 3), rb[i], u);
        }
        barrier();
        if (kt + BK < K) {
            LOAD(kt + BK)
        }
        [[unroll]] for (uint kk = 0; kk < BK / 16u; kk++) {
            coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> mb[CN];
            [[unroll]] for (uint j = 0; j < CN; j++)
                coopMatLoad(mb[j], sb, ob + (wn + j * 16u) * VS + kk * 2u, VS, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint i = 0; i < CM; i++) {
                if (wm + i * 16u >= t.z) break; /* nobody's rows */
                coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> ma;
                coopMatLoad(ma, sa, oa + (wm + i * 16u) * VS + kk * 2u, VS, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (uint j = 0; j < CN; j++) acc[i * CN + j] = coopMatMulAdd(ma, mb[j], acc[i * CN + j]);
            }
        }
        if (STAGES == 2u) stage ^= 1u;
    }

    const uint CO = GLU != 0 ? CN / 2u : CN; /* tiles of the result */
    uint col_first = gl_WorkGroupID.x * OUT_N + (GLU != 0 ? wn / 2u : wn);
    [[unroll]] for (uint i = 0; i < CM; i++)
        [[unroll]] for (uint j = 0; j < CO; j++) {
            uint row = wm + i * 16u, col = col_first + j * 16u;
            if (row >= t.z || col >= N) continue;
            coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> a = acc[i * CN + j];
#if GLU
            [[unroll]] for (uint e = 0; e < 8u; e++) {
                float g = a[e], u = acc[i * CN + j + CO][e];
                if (LIMIT > 0.0) {
                    g = min(g, LIMIT);
                    u = clamp(u, -LIMIT, LIMIT);
                }
                a[e] = activate(GLU_ACT & 15u, g) * u;
            }
            coopMatStore(coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(a), Y16(uvec2(y)).v,
                         (t.y + row) * N + col, N, gl_CooperativeMatrixLayoutRowMajor);
#else
            coopMatStore(a, y.v, (t.y + row) * N + col, N, gl_CooperativeMatrixLayoutRowMajor);
#endif
        }
}
