#version 460
#extension GL_GOOGLE_include_directive : require
/* Attention of many tokens over the paged cache (f16) by matrices of subgroups: f16 inputs, f32 scores, sums and
 * values. A workgroup takes BQ queries (adjacent tokens times the HB heads that share a key-value head), a
 * subgroup 16 of them, and walks what they see in tiles of 32 tokens that begin at multiples of 32, so a query's
 * result does not depend on its neighbours.
 *
 * Scores leave their matrices through shared memory, two threads a row, and come back as weights. Exponentials
 * are to base 2: the queries are multiplied by log2(e) beforehand. They are relative to a maximum that may be
 * up to SLACK behind the row's, so that the sums so far need to be rescaled only now and then. The next tile is on
 * its way in registers while this one is multiplied; it lies within a page. What no query sees is never read. */
#include "common.glsl"
#include "cache.glsl"
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_shuffle : require
#pragma use_vulkan_memory_model

layout(constant_id = 1) const uint KD = 128; /* multiples of 16 */
layout(constant_id = 2) const uint VD = 128;
layout(constant_id = 3) const uint GROUP = 4; /* query heads per key-value head */
layout(constant_id = 4) const uint HB = 4;
layout(constant_id = 5) const uint BQ = 64; /* WG / 2: subgroups have 32 threads */
layout(constant_id = 6) const uint FORM = 0; /* 2: the result also in f16, for the next product */
layout(constant_id = 7) const bool PLAIN = true; /* y in f32 too */

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 q;
    U4 kc, vc;
    F1 y;
    TokInfo info;
    I1 table;
    U2 fy;
    uint n_head_kv, page_tok, max_pages, window, causal;
    float scale, softcap;
};

const uint BC = 32, BT = BQ / HB, KS = KD / 8 + 1, VS = VD / 8 + 1; /* rows in shared memory, in 16-byte pieces */
const uint NK = (BC * (KD / 8) + WG - 1) / WG, NV = (BC * (VD / 8) + WG - 1) / WG;
const uint QS = BQ * KS, KV = BC * (KS + VS);
const uint SS = BC / 4 + 1, FACTORS = BC / 8; /* a row of scores, in 16-byte pieces; factors behind its weights */
const float NEVER = -3.0e38, LOWEST = -1.0e30, LOG2_E = 1.44269504089, SLACK = 8.0;

shared uvec4 sm[QS > KV ? QS : KV]; /* the queries, then keys and values of a tile */
shared uvec4 ss[BQ * SS];           /* a subgroup's 16 rows of scores, or of weights and a factor 16 times */

#define SUM coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define LEFT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>

void subgroup_meets() { controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease); }

/* Cached tokens [lo, hi) seen from place `at` of a sequence of n tokens. */
uvec2 seen_from(uint at, uint n)
{
    uint lo = 0u, hi = causal != 0u ? at + 1u : n;
    if (window > 0u) {
        uint back = causal != 0u ? window - 1u : window / 2u;
        lo = at > back ? at - back : 0u;
        if (causal == 0u) hi = min(n, at + window / 2u + 1u);
    }
    return uvec2(lo, hi);
}

void load_queries(uint t, uint n, uint h0)
{
    float by = softcap > 0.0 ? scale : scale * LOG2_E;
    for (uint i = gl_LocalInvocationID.x; i < BQ * (KD / 8u); i += WG) {
        uint row = i / (KD / 8u), c = i % (KD / 8u), tok = row / HB;
        vec4 a = vec4(0.0), b = vec4(0.0);
        if (tok < n) {
            uint at = ((t + tok) * n_head_kv * GROUP + h0 + row % HB) * (KD / 4u) + 2u * c;
            a = F4(uvec2(q)).v[at] * by;
            b = F4(uvec2(q)).v[at + 1u] * by;
        }
        sm[row * KS + c] = uvec4(packHalf2x16(a.xy), packHalf2x16(a.zw), packHalf2x16(b.xy), packHalf2x16(b.zw));
    }
}

/* A thread's half of a row of scores becomes weights; top and sum are the row's so far. False: nothing of this
 * subgroup must be rescaled; else the factors are behind the weights. */
bool weigh(uint sub, uint tile, uvec2 seen, bool all, inout float top, inout float sum)
{
    uint lane = gl_SubgroupInvocationID, half_ = lane % 2u, row = (sub * 16u + lane / 2u) * SS;
    float s[BC / 2u], most = LOWEST;
    [[unroll]] for (uint i = 0; i < BC / 8u; i++) {
        vec4 v = uintBitsToFloat(ss[row + half_ * (BC / 8u) + i]);
        if (softcap > 0.0) v = LOG2_E * softcap * (1.0 - 2.0 / (exp(clamp(2.0 * v / softcap, -80.0, 80.0)) + 1.0));
        [[unroll]] for (uint k = 0; k < 4u; k++) {
            uint at = tile + half_ * (BC / 2u) + i * 4u + k;
            s[i * 4u + k] = all || (at >= seen.x && at < seen.y) ? v[k] : NEVER;
            most = max(most, s[i * 4u + k]);
        }
    }
    most = max(most, subgroupShuffleXor(most, 1u));
    subgroup_meets(); /* both have read the row */
    float alpha = 1.0;
    if (most > top + SLACK) {
        alpha = exp2(top - most);
        top = most;
        sum *= alpha;
    }
    bool any = subgroupAny(alpha != 1.0);
    [[unroll]] for (uint i = 0; i < BC / 2u; i++) {
        s[i] = exp2(s[i] - top);
        sum += s[i];
    }
    uint to = row + half_ * (BC / 16u);
    [[unroll]] for (uint i = 0; i < BC / 16u; i++)
        ss[to + i] = uvec4(packHalf2x16(vec2(s[8u * i], s[8u * i + 1u])), packHalf2x16(vec2(s[8u * i + 2u], s[8u * i + 3u])),
                           packHalf2x16(vec2(s[8u * i + 4u], s[8u * i + 5u])), packHalf2x16(vec2(s[8u * i + 6u], s[8u * i + 7u])));
    if (any) ss[row + FACTORS + 2u * half_] = ss[row + FACTORS + 2u * half_ + 1u] = uvec4(floatBitsToUint(alpha));
    subgroup_meets();
    return any;
}

/* n tokens from t on, of one sequence. */
void attend(uint t, uint n, uint kvh, uint h0)
{
    uint tid = gl_LocalInvocationID.x, sub = gl_SubgroupID, lane = gl_SubgroupInvocationID;
    uint row = sub * 16u + lane / 2u; /* of which this thread has half of the scores */
    uvec4 first = info.v[t];
    uvec2 near = seen_from(first.y, first.z), far = seen_from(first.y + n - 1u, first.z);
    uvec2 seen = seen_from(first.y + row / HB, first.z);
    barrier();
    load_queries(t, n, h0);
    barrier();
    LEFT mq[KD / 16u];
    [[unroll]] for (uint i = 0; i < KD / 16u; i++)
        coopMatLoad(mq[i], sm, sub * 16u * KS + 2u * i, KS, gl_CooperativeMatrixLayoutRowMajor);
    SUM o[VD / 16u];
    [[unroll]] for (uint i = 0; i < VD / 16u; i++) o[i] = SUM(0.0);
    float top = LOWEST, sum = 0.0;
    uint start = near.x / BC * BC;
    uvec4 rk[NK], rv[NV];
#define LOAD(tile)                                                                                \
    {                                                                                             \
        uint base = cache_row(table, first.x, (tile), max_pages, page_tok, n_head_kv, kvh);       \
        U4 keys = U4(cache_at(uvec2(kc), T_F16, KD, base));                                       \
        U4 vals = U4(cache_at(uvec2(vc), T_F16, VD, base));                                       \
        [[unroll]] for (uint i = 0; i < NK; i++) {                                                \
            uint e = i * WG + tid, r = e / (KD / 8u);                                             \
            rk[i] = r < BC && (tile) + r < far.y ? keys.v[e] : uvec4(0u);                         \
        }                                                                                         \
        [[unroll]] for (uint i = 0; i < NV; i++) {                                                \
            uint e = i * WG + tid, r = e / (VD / 8u);                                             \
            rv[i] = r < BC && (tile) + r < far.y ? vals.v[e] : uvec4(0u);                         \
        }                                                                                         \
    }
    LOAD(start)
    for (uint tile = start; tile < far.y; tile += BC) {
        barrier();
        [[unroll]] for (uint i = 0; i < NK; i++) {
            uint e = i * WG + tid;
            if (BC * (KD / 8u) % WG == 0u || e < BC * (KD / 8u)) sm[e / (KD / 8u) * KS + e % (KD / 8u)] = rk[i];
        }
        [[unroll]] for (uint i = 0; i < NV; i++) {
            uint e = i * WG + tid;
            if (BC * (VD / 8u) % WG == 0u || e < BC * (VD / 8u)) sm[BC * KS + e / (VD / 8u) * VS + e % (VD / 8u)] = rv[i];
        }
        barrier();
        if (tile + BC < far.y) LOAD(tile + BC)
        [[unroll]] for (uint j = 0; j < BC / 16u; j++) {
            SUM s = SUM(0.0);
            [[unroll]] for (uint i = 0; i < KD / 16u; i++) {
                RIGHT mk;
                coopMatLoad(mk, sm, j * 16u * KS + 2u * i, KS, gl_CooperativeMatrixLayoutColumnMajor);
                s = coopMatMulAdd(mq[i], mk, s);
            }
            coopMatStore(s, ss, sub * 16u * SS + 4u * j, SS, gl_CooperativeMatrixLayoutRowMajor);
        }
        subgroup_meets();
        if (weigh(sub, tile, seen, tile >= far.x && tile + BC <= near.y, top, sum)) {
            SUM by;
            coopMatLoad(by, ss, sub * 16u * SS + FACTORS, SS, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint i = 0; i < VD / 16u; i++)
                for (uint e = 0; e < by.length(); e++) o[i][e] *= by[e];
        }
        LEFT mp[BC / 16u];
        [[unroll]] for (uint j = 0; j < BC / 16u; j++)
            coopMatLoad(mp[j], ss, sub * 16u * SS + 2u * j, SS, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint i = 0; i < VD / 16u; i++)
            [[unroll]] for (uint j = 0; j < BC / 16u; j++) {
                RIGHT mv;
                coopMatLoad(mv, sm, BC * KS + j * 16u * VS + 2u * i, VS, gl_CooperativeMatrixLayoutRowMajor);
                o[i] = coopMatMulAdd(mp[j], mv, o[i]);
            }
        subgroup_meets();
    }
    sum += subgroupShuffleXor(sum, 1u);
    uint factors = row * SS + FACTORS + 2u * (lane % 2u);
    ss[factors] = ss[factors + 1u] = uvec4(floatBitsToUint(sum > 0.0 ? 1.0 / sum : 0.0));
    subgroup_meets();
    SUM by;
    coopMatLoad(by, ss, sub * 16u * SS + FACTORS, SS, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint i = 0; i < VD / 16u; i++) {
        for (uint e = 0; e < by.length(); e++) o[i][e] *= by[e];
        subgroup_meets();
        coopMatStore(o[i], ss, sub * 16u * SS, SS, gl_CooperativeMatrixLayoutRowMajor);
        subgroup_meets();
        for (uint e = lane; e < 64u; e += gl_SubgroupSize) {
            uint r = sub * 16u + e / 4u, c = e % 4u;
            if (r / HB >= n) continue;
            vec4 v = uintBitsToFloat(ss[r * SS + c]);
            uint to = ((t + r / HB) * n_head_kv * GROUP + h0 + r % HB) * (VD / 4u) + i * 4u + c;
            if (PLAIN) F4(uvec2(y)).v[to] = v;
            if (FORM == 2u) fy.v[to] = uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw));
        }
    }
}

void main()
{
    uint chunks = GROUP / HB, kvh = gl_WorkGroupID.y / chunks, h0 = kvh * GROUP + gl_WorkGroupID.y % chunks * HB;
    uint blocks = (pr.n_rows[0] + BT - 1u) / BT;
    if (gl_WorkGroupID.x >= blocks) return;
    /* Those that see most begin first. */
    uint t = (blocks - 1u - gl_WorkGroupID.x) * BT, end = min(t + BT, pr.n_rows[0]);
    while (t < end) {
        uint seq = info.v[t].x, n = 1u;
        while (t + n < end && info.v[t + n].x == seq) n++;
        attend(t, n, kvh, h0);
        t += n;
    }
}
