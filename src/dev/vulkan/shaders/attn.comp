#version 460
#extension GL_GOOGLE_include_directive : require
/* Attention over the paged cache in f32. A workgroup takes a block of queries (BT adjacent tokens times
 * HB heads of one key-value head) and walks the cache in tiles of 32 tokens that begin at multiples of
 * 32, so a query's result does not depend on its neighbours.
 *
 *   SPLIT 0: all that the queries see; writes the output
 *   SPLIT 1: one token, and of what it sees only segment z; writes a partial result (maximum, sum,
 *            weighted values) that attn_merge.comp puts together
 *
 * What no query sees is never read. */
#include "common.glsl"
#include "cache.glsl"

layout(constant_id = 1) const uint KD = 64;
layout(constant_id = 2) const uint VD = 64;
layout(constant_id = 3) const uint GROUP = 1; /* query heads per key-value head */
layout(constant_id = 4) const uint HB = 1;
layout(constant_id = 5) const uint BT = 16;
layout(constant_id = 6) const uint K_TYPE = T_F16;
layout(constant_id = 7) const uint V_TYPE = T_F16;
layout(constant_id = 8) const uint SPLIT = 0;
layout(constant_id = 9) const uint DT = 64; /* threads across pairs of columns of V: a power of two */
layout(constant_id = 10) const uint V_ROW = 64; /* columns of a row that holds a value: VD, or KD when it is a part of the key */

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 q;
    F1 kc, vc;
    F1 y; /* output or partial results */
    TokInfo info;
    I1 table;
    F1 unused;
    uint n_head_kv, page_tok, max_pages, window, causal, seg, n_seg;
    float scale, softcap;
};

const uint TILE = 32, QB = BT * HB, KD8 = (KD + 7) / 8, KD4 = 2 * KD8;
const uint SG = WG / TILE, NQS = (QB + SG - 1) / SG;   /* scores: a thread a token, NQS queries */
const uint QG = WG / DT, NQV = (QB + QG - 1) / QG;     /* values: a thread NE pairs of columns, NQV queries */
const uint VP = (VD + 1) / 2, NE = (VP + DT - 1) / DT, T4 = TILE / 4;

shared vec4 sq[QB * KD4];
shared vec4 ss[QB * T4]; /* scores, then weights */
shared float red_max[QB * T4], red_sum[QB * T4];
shared float s_max[QB], s_sum[QB], s_alpha[QB];
shared uint s_row[TILE];

const float NEVER = -3.0e38;

float load_one(F1 c, uint type, uint row, uint dim, uint i)
{
    if (type == T_F32) return c.v[row * dim + i];
    if (type == T_F16) return unpackHalf2x16(uint(H1(c).v[row * dim + i])).x;
    uint b = (row * (dim / 32u) + i / 32u) * 17u, two = uint(H1(c).v[b + 1u + (i % 32u) / 2u]);
    return float(int(two << ((i & 1u) != 0u ? 16u : 24u)) >> 24) * unpackHalf2x16(uint(H1(c).v[b])).x;
}

/* Elements 8 c8 .. of a key. */
void load_k8(uint row, uint c8, out vec4 a, out vec4 b)
{
    if (KD % 8 == 0 && K_TYPE == T_F32) {
        a = F4(kc).v[row * KD4 + 2u * c8];
        b = F4(kc).v[row * KD4 + 2u * c8 + 1u];
        return;
    }
    if (KD % 8 == 0 && K_TYPE == T_F16) {
        uvec4 p = U4(kc).v[row * (KD / 8u) + c8];
        a = vec4(unpackHalf2x16(p.x), unpackHalf2x16(p.y));
        b = vec4(unpackHalf2x16(p.z), unpackHalf2x16(p.w));
        return;
    }
    a = b = vec4(0.0);
    [[unroll]] for (uint i = 0; i < 4u; i++) {
        if (c8 * 8u + i < KD) a[i] = load_one(kc, K_TYPE, row, KD, c8 * 8u + i);
        if (c8 * 8u + 4u + i < KD) b[i] = load_one(kc, K_TYPE, row, KD, c8 * 8u + 4u + i);
    }
}

/* Elements 2 p and 2 p + 1 of a value. */
vec2 load_v2(uint row, uint p)
{
    if ((V_ROW | VD) % 2 == 0 && V_TYPE == T_F16) return unpackHalf2x16(U1(vc).v[row * (V_ROW / 2u) + p]);
    return vec2(load_one(vc, V_TYPE, row, V_ROW, 2u * p), 2u * p + 1u < VD ? load_one(vc, V_TYPE, row, V_ROW, 2u * p + 1u) : 0.0);
}

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

void load_queries(uint t, uint nq, uint h0)
{
    for (uint i = gl_LocalInvocationID.x; i < nq * KD4; i += WG) {
        uint j = i / KD4, c = i % KD4 * 4u;
        uint from = ((t + j / HB) * n_head_kv * GROUP + h0 + j % HB) * KD;
        vec4 r = vec4(0.0);
        [[unroll]] for (uint k = 0; k < 4u; k++)
            if (c + k < KD) r[k] = q.v[from + c + k] * scale;
        sq[i] = r;
    }
    for (uint i = gl_LocalInvocationID.x; i < nq; i += WG) {
        s_max[i] = NEVER;
        s_sum[i] = 0.0;
    }
}

/* Scores of one tile, then its maximum, sum and weights. */
void score_tile(uint tile, uvec2 range, uvec4 first, uint nq, uint kvh)
{
    uint tid = gl_LocalInvocationID.x, j = tid % TILE, at = tile + j;
    bool inside = at >= range.x && at < range.y;
    float acc[NQS];
    [[unroll]] for (uint k = 0; k < NQS; k++) acc[k] = 0.0;
    if (inside) {
        uint row = cache_row(table, first.x, at, max_pages, page_tok, n_head_kv, kvh);
        if (tid < TILE) s_row[j] = row;
        for (uint c = 0; c < KD8; c++) {
            vec4 ka, kb;
            load_k8(row, c, ka, kb);
            [[unroll]] for (uint k = 0; k < NQS; k++) {
                uint at_q = min(tid / TILE + SG * k, QB - 1u) * KD4 + 2u * c;
                acc[k] += dot(ka, sq[at_q]) + dot(kb, sq[at_q + 1u]);
            }
        }
    }
    [[unroll]] for (uint k = 0; k < NQS; k++) {
        uint i = tid / TILE + SG * k;
        if (i >= nq) continue;
        uvec2 seen = seen_from(first.y + i / HB, first.z);
        float v = acc[k];
        if (softcap > 0.0) v = softcap * (1.0 - 2.0 / (exp(clamp(2.0 * v / softcap, -80.0, 80.0)) + 1.0));
        ss[i * T4 + j / 4u][j % 4u] = inside && at >= seen.x && at < seen.y ? v : NEVER;
    }
    barrier();
    for (uint p = tid; p < nq * T4; p += WG) {
        vec4 v = ss[p];
        red_max[p] = max(max(v.x, v.y), max(v.z, v.w));
    }
    barrier();
    for (uint p = tid; p < nq * T4; p += WG) {
        uint i = p / T4;
        float m = s_max[i];
        [[unroll]] for (uint k = 0; k < T4; k++) m = max(m, red_max[i * T4 + k]);
        vec4 v = ss[p], w = vec4(0.0);
        [[unroll]] for (uint k = 0; k < 4u; k++)
            if (v[k] > NEVER) w[k] = exp(v[k] - m);
        ss[p] = w;
        red_sum[p] = (w.x + w.y) + (w.z + w.w);
    }
    barrier();
    for (uint i = tid; i < nq; i += WG) {
        float m = s_max[i], sum = 0.0;
        [[unroll]] for (uint k = 0; k < T4; k++) {
            m = max(m, red_max[i * T4 + k]);
            sum += red_sum[i * T4 + k];
        }
        float alpha = s_max[i] > NEVER ? exp(s_max[i] - m) : 0.0;
        s_alpha[i] = alpha;
        s_sum[i] = s_sum[i] * alpha + sum;
        s_max[i] = m;
    }
    barrier();
}

/* n queries tokens t.. of one sequence. */
void attend(uint t, uint n, uint kvh, uint h0)
{
    uint tid = gl_LocalInvocationID.x, nq = n * HB;
    uvec4 first = info.v[t];
    uvec2 range = uvec2(seen_from(first.y, first.z).x, seen_from(first.y + n - 1u, first.z).y);
    if (SPLIT != 0u) {
        range = uvec2(max(range.x, gl_WorkGroupID.z * seg), min(range.y, (gl_WorkGroupID.z + 1u) * seg));
        if (range.x >= range.y) return;
    }
    vec2 o[NE * NQV];
    [[unroll]] for (uint i = 0; i < NE * NQV; i++) o[i] = vec2(0.0);
    barrier();
    load_queries(t, nq, h0);
    barrier();
    for (uint tile = range.x / TILE * TILE; tile < range.y; tile += TILE) {
        score_tile(tile, range, first, nq, kvh);
        [[unroll]] for (uint k = 0; k < NQV; k++) {
            float alpha = s_alpha[min(tid / DT + QG * k, QB - 1u)];
            [[unroll]] for (uint e = 0; e < NE; e++) o[k * NE + e] *= alpha;
        }
        uint j0 = max(range.x, tile) - tile, j1 = min(TILE, range.y - tile);
        for (uint j4 = j0 / 4u; j4 * 4u < j1; j4++)
            [[unroll]] for (uint e = 0; e < NE; e++) {
                uint p = tid % DT + DT * e;
                vec2 v[4];
                [[unroll]] for (uint i = 0; i < 4u; i++) {
                    uint j = j4 * 4u + i;
                    v[i] = p < VP && j >= j0 && j < j1 ? load_v2(s_row[j], p) : vec2(0.0);
                }
                [[unroll]] for (uint k = 0; k < NQV; k++) {
                    vec4 w = ss[min(tid / DT + QG * k, QB - 1u) * T4 + j4];
                    o[k * NE + e] += v[0] * w.x + v[1] * w.y + v[2] * w.z + v[3] * w.w;
                }
            }
        barrier();
    }
    [[unroll]] for (uint k = 0; k < NQV; k++) {
        uint i = tid / DT + QG * k;
        if (i >= nq) continue;
        uint head = (t + i / HB) * n_head_kv * GROUP + h0 + i % HB;
        uint to = SPLIT != 0u ? (head * n_seg + gl_WorkGroupID.z) * (VD + 2u) : head * VD;
        float r = SPLIT != 0u ? 1.0 : s_sum[i] > 0.0 ? 1.0 / s_sum[i] : 0.0;
        [[unroll]] for (uint e = 0; e < NE; e++) {
            uint d = 2u * (tid % DT + DT * e);
            if (d < VD) y.v[to + d] = o[k * NE + e].x * r;
            if (d + 1u < VD) y.v[to + d + 1u] = o[k * NE + e].y * r;
        }
        if (SPLIT != 0u && tid % DT == 0u) {
            y.v[to + VD] = s_max[i];
            y.v[to + VD + 1u] = s_sum[i];
        }
    }
}

void main()
{
    uint chunks = GROUP / HB, kvh = gl_WorkGroupID.y / chunks, h0 = kvh * GROUP + gl_WorkGroupID.y % chunks * HB;
    uint t = gl_WorkGroupID.x * BT, end = min(t + BT, pr.n_rows[0]);
    while (t < end) {
        uint seq = info.v[t].x, n = 1u;
        while (t + n < end && info.v[t + n].x == seq) n++;
        attend(t, n, kvh, h0);
        t += n;
    }
}
