#version 460
#extension GL_GOOGLE_include_directive : require
/* Attention over the paged cache in f32. A workgroup takes a block of queries (BT adjacent tokens times
 * HB heads of one key-value head) and walks the cache in tiles of 32 tokens that begin at multiples of
 * 32, so a query's result does not depend on its neighbours.
 *
 *   SPLIT 0: all that the queries see; writes the output
 *   SPLIT 1: one token, and of what it sees only segment z; writes a partial result (weighted values,
 *            maximum, sum). The last workgroup of a token's heads to finish puts these together in order
 *            of their segments
 *
 * What no query sees is never read. */
#include "common.glsl"
#include "cache.glsl"
#include "form.glsl"

layout(constant_id = 1) const uint KD = 64;
layout(constant_id = 2) const uint VD = 64;
layout(constant_id = 3) const uint GROUP = 1; /* query heads per key-value head */
layout(constant_id = 4) const uint HB = 1;
layout(constant_id = 5) const uint BT = 16;
layout(constant_id = 6) const uint K_TYPE = T_F16;
layout(constant_id = 7) const uint V_TYPE = T_F16;
layout(constant_id = 8) const uint SPLIT = 0;
layout(constant_id = 9) const uint DT = 64; /* threads across pairs of columns of V: a power of two */
layout(constant_id = 11) const uint V_ROW = 64; /* columns of a row that holds a value: VD, or KD when it is a part of the key */

/* Written and read by different workgroups of one dispatch. */
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer C1 { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) coherent buffer C4 { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Count { uint v[]; };

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 q;
    F1 kc, vc;
    F1 y;
    TokInfo info;
    I1 table;
    C1 part; /* [token][head][segment][PART] */
    uint n_head_kv, page_tok, max_pages, window, causal, seg, n_seg;
    float scale, softcap;
    uint blocks; /* 0: none; else twice the place of the tokens' blocks in info, plus 1 where a token sees only its own */
    Count done; /* [token][workgroup across heads]: segments finished; 0 between steps */
    U1 fq; /* FORM; int8 with SPLIT only */
    U2 fd;
};

const uint TILE = 32, QB = BT * HB, KD8 = (KD + 7) / 8, KD4 = 2 * KD8;
const uint SG = WG / TILE, NQS = (QB + SG - 1) / SG;   /* scores: a thread a token, NQS queries */
const uint QG = WG / DT, NQV = (QB + QG - 1) / QG;     /* values: a thread NE pairs of columns, NQV queries */
const uint VP = (VD + 1) / 2, NE = (VP + DT - 1) / DT, T4 = TILE / 4;
const uint VD4 = (VD + 3) / 4, PART = VD4 * 4 + 4;     /* a partial result: values, maximum, sum */
const uint AHEAD = 8;                                  /* parts loaded before their values are used */

shared vec4 sq[QB * KD4];
shared vec4 ss[QB * T4]; /* scores, then weights */
shared float red_max[QB * T4], red_sum[QB * T4];
shared float s_max[QB], s_sum[QB], s_alpha[QB];
shared uint s_row[TILE];
shared float s_lane[WG];
shared uint s_order;

const float NEVER = -3.0e38;

/* Element i of the row that begins at c. */
float load_one(uvec2 c, uint type, uint i)
{
    if (type == T_F32) return F1(c).v[i];
    if (type == T_F16) return unpackHalf2x16(uint(H1(c).v[i])).x;
    uint b = i / 32u * 17u, two = uint(H1(c).v[b + 1u + (i % 32u) / 2u]);
    return float(int(two << ((i & 1u) != 0u ? 16u : 24u)) >> 24) * unpackHalf2x16(uint(H1(c).v[b])).x;
}

/* Elements 8 c8 .. of a key. */
void load_k8(uvec2 key, uint c8, out vec4 a, out vec4 b)
{
    if (KD % 8 == 0 && K_TYPE == T_F32) {
        a = F4(key).v[2u * c8];
        b = F4(key).v[2u * c8 + 1u];
        return;
    }
    if (KD % 8 == 0 && K_TYPE == T_F16) {
        uvec4 p = U4(key).v[c8];
        a = vec4(unpackHalf2x16(p.x), unpackHalf2x16(p.y));
        b = vec4(unpackHalf2x16(p.z), unpackHalf2x16(p.w));
        return;
    }
    a = b = vec4(0.0);
    [[unroll]] for (uint i = 0; i < 4u; i++) {
        if (c8 * 8u + i < KD) a[i] = load_one(key, K_TYPE, c8 * 8u + i);
        if (c8 * 8u + 4u + i < KD) b[i] = load_one(key, K_TYPE, c8 * 8u + 4u + i);
    }
}

/* Elements 2 p and 2 p + 1 of a value. */
vec2 load_v2(uint row, uint p)
{
    uvec2 value = cache_at(uvec2(vc), V_TYPE, V_ROW, row);
    if ((V_ROW | VD) % 2 == 0 && V_TYPE == T_F16) return unpackHalf2x16(U1(value).v[p]);
    return vec2(load_one(value, V_TYPE, 2u * p), 2u * p + 1u < VD ? load_one(value, V_TYPE, 2u * p + 1u) : 0.0);
}

/* Cached tokens [lo, hi) seen by token t of the step. */
uvec2 seen_by(uint t)
{
    uint at = info.v[t].y, n = info.v[t].z;
    uvec2 block = blocks != 0u ? info.v[(blocks >> 1) + t].xy : uvec2(at, at);
    if ((blocks & 1u) != 0u) return block;
    uint lo = 0u, hi = causal != 0u ? at + 1u : n;
    if (window > 0u) {
        uint back = causal != 0u ? window - 1u : window / 2u;
        lo = at > back ? at - back : 0u;
        if (causal == 0u) hi = min(n, at + window / 2u + 1u);
    }
    return uvec2(min(lo, block.x), max(hi, block.y));
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
void score_tile(uint tile, uvec2 range, uint t, uint seq, uint nq, uint kvh)
{
    uint tid = gl_LocalInvocationID.x, j = tid % TILE, at = tile + j;
    bool inside = at >= range.x && at < range.y;
    float acc[NQS];
    [[unroll]] for (uint k = 0; k < NQS; k++) acc[k] = 0.0;
    if (inside) {
        uint row = cache_row(table, seq, at, max_pages, page_tok, n_head_kv, kvh);
        uvec2 key = cache_at(uvec2(kc), K_TYPE, KD, row);
        if (tid < TILE) s_row[j] = row;
        for (uint c = 0; c < KD8; c++) {
            vec4 ka, kb;
            load_k8(key, c, ka, kb);
            [[unroll]] for (uint k = 0; k < NQS; k++) {
                uint at_q = min(tid / TILE + SG * k, QB - 1u) * KD4 + 2u * c;
                acc[k] += dot(ka, sq[at_q]) + dot(kb, sq[at_q + 1u]);
            }
        }
    }
    [[unroll]] for (uint k = 0; k < NQS; k++) {
        uint i = tid / TILE + SG * k;
        if (i >= nq) continue;
        uvec2 seen = seen_by(t + i / HB);
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

/* n queries tokens t.. of one sequence; false: none of them sees any of this segment. */
bool attend(uint t, uint n, uint kvh, uint h0)
{
    uint tid = gl_LocalInvocationID.x, nq = n * HB;
    uvec2 range = uvec2(seen_by(t).x, seen_by(t + n - 1u).y);
    if (SPLIT != 0u) {
        range = uvec2(max(range.x, gl_WorkGroupID.z * seg), min(range.y, (gl_WorkGroupID.z + 1u) * seg));
        if (range.x >= range.y) return false;
    }
    vec2 o[NE * NQV];
    [[unroll]] for (uint i = 0; i < NE * NQV; i++) o[i] = vec2(0.0);
    barrier();
    load_queries(t, nq, h0);
    barrier();
    for (uint tile = range.x / TILE * TILE; tile < range.y; tile += TILE) {
        score_tile(tile, range, t, info.v[t].x, nq, kvh);
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
        if (SPLIT != 0u) {
            uint to = (head * n_seg + gl_WorkGroupID.z) * PART;
            [[unroll]] for (uint e = 0; e < NE; e++) {
                uint d = 2u * (tid % DT + DT * e);
                if (d < VD) part.v[to + d] = o[k * NE + e].x;
                if (d + 1u < VD) part.v[to + d + 1u] = o[k * NE + e].y;
            }
            if (tid % DT == 0u) {
                part.v[to + VD4 * 4u] = s_max[i];
                part.v[to + VD4 * 4u + 1u] = s_sum[i];
            }
            continue;
        }
        float r = s_sum[i] > 0.0 ? 1.0 / s_sum[i] : 0.0;
        [[unroll]] for (uint e = 0; e < NE; e++) {
            uint d = 2u * (tid % DT + DT * e);
            vec2 f = o[k * NE + e] * r;
            if (d < VD) y.v[head * VD + d] = f.x;
            if (d + 1u < VD) y.v[head * VD + d + 1u] = f.y;
            if (FORM == 2u && d < VD) fq.v[(head * VD + d) / 2u] = packHalf2x16(f);
        }
    }
    return true;
}

/* Whether this is the last of token t's workgroups for these heads; then it sees what the others wrote. */
bool is_last(uint t, uint n)
{
    uint slot = t * gl_NumWorkGroups.y + gl_WorkGroupID.y;
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationID.x == 0u) s_order = atomicAdd(done.v[slot], 1u);
    barrier();
    if (s_order + 1u != n) return false;
    memoryBarrierBuffer();
    if (gl_LocalInvocationID.x == 0u) done.v[slot] = 0u;
    return true;
}

/* Over the segments [s0, s1) of each head whose parts begin at `first`: maximum and sum, WG / HB threads a head. */
void merge_sums(uint first, uint s0, uint s1)
{
    const uint L = WG / HB;
    uint tid = gl_LocalInvocationID.x, i = min(tid / L, HB - 1u), from = first + i * n_seg;
    float m = NEVER, sum = 0.0;
    for (uint s = s0 + tid % L; s < s1; s += L) m = max(m, part.v[(from + s) * PART + VD4 * 4u]);
    s_lane[tid] = m;
    barrier();
    for (uint l = 0; l < L; l++) m = max(m, s_lane[i * L + l]);
    for (uint s = s0 + tid % L; s < s1; s += L) {
        uint at = (from + s) * PART + VD4 * 4u;
        sum += part.v[at + 1u] * exp(part.v[at] - m);
    }
    barrier();
    s_lane[tid] = sum;
    barrier();
    sum = 0.0;
    for (uint l = 0; l < L; l++) sum += s_lane[i * L + l];
    if (tid == i * L) {
        s_max[i] = m;
        s_sum[i] = sum;
    }
    barrier();
}

void merge(uint t, uint h0)
{
    uvec2 seen = seen_by(t);
    uint s0 = seen.x / seg, s1 = (seen.y + seg - 1u) / seg, head0 = t * n_head_kv * GROUP + h0;
    if (!is_last(t, s1 - s0)) return;
    merge_sums(head0 * n_seg, s0, s1);
    for (uint e0 = 0; e0 < HB * VD4; e0 += WG) {
        uint e = e0 + gl_LocalInvocationID.x, i = min(e / VD4, HB - 1u), c = e % VD4;
        float m = s_max[i], sum = s_sum[i];
        vec4 o = vec4(0.0);
        for (uint s = s0; s < s1; s += AHEAD) {
            vec4 v[AHEAD];
            float w[AHEAD];
            [[unroll]] for (uint a = 0; a < AHEAD; a++) {
                uint p = ((head0 + i) * n_seg + min(s + a, s1 - 1u)) * (PART / 4u);
                v[a] = C4(part).v[p + c];
                w[a] = part.v[(p + VD4) * 4u];
            }
            [[unroll]] for (uint a = 0; a < AHEAD; a++)
                if (s + a < s1) o += v[a] * exp(w[a] - m);
        }
        vec4 f = sum > 0.0 ? o / sum : vec4(0.0);
        bool inside = e < HB * VD4;
        [[unroll]] for (uint k = 0; k < 4u; k++)
            if (inside && c * 4u + k < VD) y.v[(head0 + i) * VD + c * 4u + k] = f[k];
        if (FORM != 0u) store_form(inside, f, t, (h0 + i) * VD4 + c, n_head_kv * GROUP * VD, fq, fd, false);
    }
}

void main()
{
    uint chunks = GROUP / HB, kvh = gl_WorkGroupID.y / chunks, h0 = kvh * GROUP + gl_WorkGroupID.y % chunks * HB;
    uint t = gl_WorkGroupID.x * BT, end = min(t + BT, pr.n_rows[0]);
    if (SPLIT != 0u) {
        if (t < end && attend(t, 1u, kvh, h0)) merge(t, h0);
        return;
    }
    while (t < end) {
        uint seq = info.v[t].x, n = 1u;
        while (t + n < end && info.v[t + n].x == seq) n++;
        attend(t, n, kvh, h0);
        t += n;
    }
}
