#version 460
#extension GL_GOOGLE_include_directive : require
/* Attention of single tokens over the paged cache, with subgroup arithmetic. A workgroup takes a token, HB query
 * heads of one key-value head and a segment of the tokens seen; the last of a token's workgroups to finish puts
 * the segments together in order. How the seen tokens are cut depends on their number alone.
 *
 * L lanes hold a key or value, so a workgroup works on NG of them at a time, J each before any is used. A lane
 * keeps its part of HB queries and HB results; the running maximum and sum of a head lie in the L / HB lanes that
 * end up with its score.
 *
 * FUSED: queries, keys and values come as the products left them. The workgroup norms and rotates its queries and
 * those keys of this step that fall into its segment; one of them writes its token's row of the cache. */
#include "common.glsl"
#include "cache.glsl"
#include "form.glsl"
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(constant_id = 1) const uint KD = 64;
layout(constant_id = 2) const uint VD = 64;
layout(constant_id = 3) const uint GROUP = 1; /* query heads per key-value head */
layout(constant_id = 4) const uint HB = 1;    /* a power of two, at most L */
layout(constant_id = 5) const uint K_TYPE = T_F16;
layout(constant_id = 6) const uint V_TYPE = T_F16;
layout(constant_id = 7) const uint SG = 32;
layout(constant_id = 8) const uint L = 8; /* a power of two, at most SG */
layout(constant_id = 9) const uint N_HEAD_KV = 1;
layout(constant_id = 11) const uint J = 2;
layout(constant_id = 12) const uint FLAGS = 0;
layout(constant_id = 13) const uint N_ROT = 64;
layout(constant_id = 14) const uint ROT_OFF = 0;
layout(constant_id = 15) const uint PAGE_TOK = 32;
layout(constant_id = 16) const uint WINDOW = 0;
layout(constant_id = 17) const float SCALE = 1.0;
layout(constant_id = 18) const float SOFTCAP = 0.0;
layout(constant_id = 19) const float EPS = 0.0;
layout(constant_id = 20) const uint N_HIGH = 1;
layout(constant_id = 21) const uint SEG_MIN = 32; /* tokens of a segment, a multiple of 32 */
layout(constant_id = 22) const uint MAX_SEG = 32; /* segments of a token */

const bool FUSED = (FLAGS & 1u) != 0u, Q_NORM = (FLAGS & 2u) != 0u, K_NORM = (FLAGS & 4u) != 0u,
           NEOX = (FLAGS & 8u) != 0u, WRITE_Y = (FLAGS & 16u) != 0u, ALONE = (FLAGS & 64u) != 0u; /* ALONE: one token in a step */

/* Written and read by different workgroups of one dispatch. */
layout(buffer_reference, scalar, buffer_reference_align = 16) coherent buffer C4 { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Count { uint v[]; };

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 q, k, v;
    F1 kc, vc;
    F1 y;
    C4 part; /* [token][head][MAX_SEG][PART4] */
    Count done; /* [token][workgroup across heads]: segments finished; 0 between steps */
    U1 fq; /* FORM */
    U2 fd;
    F1 q_w, k_w;
    F2 high; /* tables of angles (rope.comp), the low ones behind the high ones */
    uint info_at, table_at, first_at; /* words behind pr */
    uint max_pages;
};

const uint NS = WG / SG, NG = WG / L, NH = (GROUP + HB - 1u) / HB; /* subgroups; keys at a time; parts of a group */
const uint KD8 = KD / 8u, VD8 = VD / 8u, KP = (KD8 + L - 1u) / L, VP = (VD8 + L - 1u) / L; /* eights a lane */
const uint VD4 = VD / 4u, PART4 = VD4 + 1u;    /* a partial result: values, then maximum and sum */
const uint SPLIT = WG / (HB * VD4) > 1u ? WG / (HB * VD4) : 1u; /* threads that share four results when segments are joined */
const uint AHEAD = 8u;                         /* parts loaded before their values are used */
const float NEVER = -3.0e38;

shared vec4 s_q[HB * KD / 4u];
shared vec4 s_k[KD / 4u], s_v[VD4];
shared float s_m[NS * HB], s_l[NS * HB];
shared vec4 s_o[NS * HB * VD4];
shared vec2 s_ml[WG];
shared uint s_order;

I1 words() { return I1(pr); }

/* --- the cache --- */

struct KV {
    uvec4 p, q;
};
struct Eight {
    vec4 a, b;
};

/* Elements 8 c8 .. of a row; zeros when not `on`, because what is not there could be NaN. */
KV load8(bool on, F1 c, uint type, uint row, uint dim, uint c8)
{
    KV r;
    r.p = r.q = uvec4(0u);
    if (!on) return r;
    uvec2 at = cache_at(uvec2(c), type, dim, row);
    if (type == T_F16) {
        r.p = U4(at).v[c8];
    } else if (type == T_F32) {
        r.p = U4(at).v[2u * c8];
        r.q = U4(at).v[2u * c8 + 1u];
    } else {
        uint b = c8 / 4u * 17u, e = b + 1u + c8 % 4u * 4u;
        r.p.x = uint(H1(at).v[e]) | uint(H1(at).v[e + 1u]) << 16;
        r.p.y = uint(H1(at).v[e + 2u]) | uint(H1(at).v[e + 3u]) << 16;
        r.p.z = uint(H1(at).v[b]);
    }
    return r;
}

vec4 int8s(uint w) { return vec4(int(w << 24) >> 24, int(w << 16) >> 24, int(w << 8) >> 24, int(w) >> 24); }

Eight values8(KV r, uint type)
{
    Eight e;
    if (type == T_F16) {
        e.a = vec4(unpackHalf2x16(r.p.x), unpackHalf2x16(r.p.y));
        e.b = vec4(unpackHalf2x16(r.p.z), unpackHalf2x16(r.p.w));
    } else if (type == T_F32) {
        e.a = uintBitsToFloat(r.p);
        e.b = uintBitsToFloat(r.q);
    } else {
        float d = unpackHalf2x16(r.p.z).x;
        e.a = int8s(r.p.x) * d;
        e.b = int8s(r.p.y) * d;
    }
    return e;
}

/* --- from the products --- */

uint tid() { return gl_LocalInvocationID.x; }

float get(uint which, uint i)
{
    return which == 0u ? s_k[i / 4u][i % 4u] : which == 1u ? s_v[i / 4u][i % 4u] : s_q[(which - 2u) * (KD / 4u) + i / 4u][i % 4u];
}
void set(uint which, uint i, float f)
{
    if (which == 0u) s_k[i / 4u][i % 4u] = f;
    else if (which == 1u) s_v[i / 4u][i % 4u] = f;
    else s_q[(which - 2u) * (KD / 4u) + i / 4u][i % 4u] = f;
}

void subgroup_sync()
{
    subgroupMemoryBarrierShared();
    subgroupBarrier();
}

/* Row `from` of x, normed and rotated, to shared memory: 0 a key, 1 a value, 2.. the queries. By one subgroup.
 * All loads come first. */
const uint MAX_D = KD > VD ? KD : VD, NX = (MAX_D + SG - 1u) / SG, HALF = N_ROT / 2u, NR = (HALF + SG) / SG;

void stage(uint which, F1 x, uint from, uint dim, bool norm, F1 w, uint pos)
{
    uint lane = gl_SubgroupInvocationID;
    float xs[NX], ws[NX], r = 1.0, sum = 0.0;
    vec2 hi[NR], lo[NR];
    [[unroll]] for (uint e = 0; e < NX; e++) {
        uint i = lane + SG * e;
        xs[e] = i < dim ? x.v[from + i] : 0.0;
        ws[e] = norm && i < dim ? w.v[i] : 1.0;
    }
    if (which != 1u)
        [[unroll]] for (uint e = 0; e < NR; e++) {
            uint i = min(lane + SG * e, max(HALF, 1u) - 1u);
            hi[e] = high.v[min(pos >> 6, N_HIGH - 1u) * HALF + i];
            lo[e] = high.v[(N_HIGH + (pos & 63u)) * HALF + i];
        }
    if (norm) {
        [[unroll]] for (uint e = 0; e < NX; e++) sum += xs[e] * xs[e];
        r = 1.0 / sqrt(subgroupAdd(sum) / float(dim) + EPS);
    }
    [[unroll]] for (uint e = 0; e < NX; e++)
        if (lane + SG * e < dim) set(which, lane + SG * e, norm ? xs[e] * r * ws[e] : xs[e]);
    if (which == 1u) return;
    subgroup_sync();
    [[unroll]] for (uint e = 0; e < NR; e++) {
        uint i = lane + SG * e;
        if (i >= HALF) continue;
        float c = hi[e].x * lo[e].x - hi[e].y * lo[e].y, s = hi[e].y * lo[e].x + hi[e].x * lo[e].y;
        uint a = ROT_OFF + (NEOX ? i : 2u * i), b = a + (NEOX ? HALF : 1u);
        float xa = get(which, a), xb = get(which, b);
        set(which, a, xa * c - xb * s);
        set(which, b, xa * s + xb * c);
    }
}

/* A staged key or value as the cache keeps it, there (if `write`) and in shared memory. By one subgroup. */
void to_cache(uint which, F1 c, uint type, uint dim, uint row, bool write)
{
    uint lane = gl_SubgroupInvocationID;
    uvec2 at = cache_at(uvec2(c), type, dim, row);
    subgroup_sync();
    if (type == T_F32) {
        if (write)
            for (uint i = lane; i < dim; i += SG) F1(at).v[i] = get(which, i);
    } else if (type == T_F16) {
        for (uint i = lane; i < dim; i += SG) {
            uint h = f16_bits(get(which, i));
            if (write) H1(at).v[i] = uint16_t(h);
            set(which, i, unpackHalf2x16(h).x);
        }
    } else {
        for (uint b = lane; b < dim / 32u; b += SG) {
            float top = 0.0, id;
            for (uint i = 0; i < 32u; i++) top = max(top, abs(get(which, b * 32u + i)));
            uint to = b * 17u, d = q8_0_scale(top, id);
            if (write) H1(at).v[to] = uint16_t(d);
            float back = unpackHalf2x16(d).x;
            for (uint i = 0; i < 16u; i++) {
                uint two = q8_0_pair(vec2(get(which, b * 32u + 2u * i), get(which, b * 32u + 2u * i + 1u)), id);
                if (write) H1(at).v[to + 1u + i] = uint16_t(two);
                set(which, b * 32u + 2u * i, float(int(two << 24) >> 24) * back);
                set(which, b * 32u + 2u * i + 1u, float(int(two << 16) >> 24) * back);
            }
        }
    }
}

/* Key and value of row r, place `at` of the cache, by subgroups that have least to do. */
void stage_kv(uint r, uint at, uint kvh, bool write)
{
    const uint who_k = HB % NS, who_v = (HB + 1u) % NS;
    uvec4 info = U4(words()).v[info_at / 4u + r];
    uint row = cache_row(words(), table_at + (ALONE ? 0u : info.x * max_pages), at, 1u, PAGE_TOK, N_HEAD_KV, kvh);
    if (gl_SubgroupID == who_k) {
        stage(0u, k, (r * N_HEAD_KV + kvh) * KD, KD, K_NORM, k_w, info.w);
        to_cache(0u, kc, K_TYPE, KD, row, write);
    }
    if (gl_SubgroupID == who_v) {
        stage(1u, v, (r * N_HEAD_KV + kvh) * VD, VD, false, k_w, 0u);
        to_cache(1u, vc, V_TYPE, VD, row, write);
    }
}

void stage_queries(uint t, uint h0, uint n_heads, uint pos)
{
    for (uint h = gl_SubgroupID; h < HB; h += NS) {
        uint head = h0 + min(h, n_heads - 1u), from = (t * N_HEAD_KV * GROUP + head) * KD;
        if (FUSED) stage(2u + h, q, from, KD, Q_NORM, q_w, pos);
        else
            for (uint i = gl_SubgroupInvocationID; i < KD; i += SG) set(2u + h, i, q.v[from + i]);
    }
}

/* --- attention of a lane's keys --- */

Eight my_q[HB * KP];
Eight my_o[HB * VP];
float my_m, my_l; /* of the head whose score ends here */

uint lane_of(uint h) { return (gl_SubgroupInvocationID & ~(L - 1u)) + h * (L / HB); }

/* The score of this lane's head from parts of all heads. */
float join(float s[HB])
{
    uint lane = gl_SubgroupInvocationID, m = L / 2u;
    [[unroll]] for (uint n = HB / 2u; n > 0u; n /= 2u, m /= 2u) {
        bool up = (lane & m) != 0u;
        [[unroll]] for (uint i = 0; i < n; i++) {
            float keep = up ? s[i + n] : s[i], send = up ? s[i] : s[i + n];
            s[i] = keep + subgroupShuffleXor(send, m);
        }
    }
    float r = s[0];
    [[unroll]] for (uint w = L / HB / 2u; w > 0u; w /= 2u) r += subgroupShuffleXor(r, w);
    return SOFTCAP > 0.0 ? SOFTCAP * (1.0 - 2.0 / (exp(clamp(2.0 * r / SOFTCAP, -80.0, 80.0)) + 1.0)) : r;
}

void scale_results(float alpha)
{
    [[unroll]] for (uint h = 0; h < HB; h++) {
        float a = subgroupShuffle(alpha, lane_of(h));
        [[unroll]] for (uint p = 0; p < VP; p++) {
            my_o[h * VP + p].a *= a;
            my_o[h * VP + p].b *= a;
        }
    }
}

/* n keys and values at once (`on` says which count), all lanes of a subgroup together. */
#define ATTEND(N, KEY, VALUE, ON)                                                                                  \
    {                                                                                                              \
        float sc[N], top = my_m;                                                                                   \
        [[unroll]] for (uint j = 0; j < N; j++) {                                                                  \
            float s[HB];                                                                                           \
            [[unroll]] for (uint h = 0; h < HB; h++) s[h] = 0.0;                                                   \
            [[unroll]] for (uint p = 0; p < KP; p++) {                                                             \
                Eight e = KEY(j, p);                                                                               \
                [[unroll]] for (uint h = 0; h < HB; h++)                                                           \
                    s[h] += dot(e.a, my_q[h * KP + p].a) + dot(e.b, my_q[h * KP + p].b);                           \
            }                                                                                                      \
            sc[j] = join(s);                                                                                       \
            if (!(ON(j))) sc[j] = NEVER;                                                                           \
            top = max(top, sc[j]);                                                                                 \
        }                                                                                                          \
        float alpha = my_m > NEVER ? exp(my_m - top) : 0.0;                                                        \
        my_m = top;                                                                                                \
        my_l *= alpha;                                                                                             \
        scale_results(alpha);                                                                                      \
        [[unroll]] for (uint j = 0; j < N; j++) {                                                                  \
            float w = sc[j] > NEVER ? exp(sc[j] - top) : 0.0;                                                      \
            my_l += w;                                                                                             \
            float wh[HB];                                                                                          \
            [[unroll]] for (uint h = 0; h < HB; h++) wh[h] = subgroupShuffle(w, lane_of(h));                       \
            [[unroll]] for (uint p = 0; p < VP; p++) {                                                             \
                Eight e = VALUE(j, p);                                                                             \
                [[unroll]] for (uint h = 0; h < HB; h++) {                                                         \
                    my_o[h * VP + p].a += wh[h] * e.a;                                                             \
                    my_o[h * VP + p].b += wh[h] * e.b;                                                             \
                }                                                                                                  \
            }                                                                                                      \
        }                                                                                                          \
    }

KV raw_k[J * KP], raw_v[J * VP];

void load_keys(uint j0, uint end, uint g, uint lane, uint table, uint kvh)
{
    [[unroll]] for (uint j = 0; j < J; j++) {
        uint at = j0 + NG * j + g;
        bool on = at < end;
        uint row = on ? cache_row(words(), table, at, 1u, PAGE_TOK, N_HEAD_KV, kvh) : 0u;
        [[unroll]] for (uint p = 0; p < KP; p++) raw_k[j * KP + p] = load8(on && lane + L * p < KD8, kc, K_TYPE, row, KD, lane + L * p);
        [[unroll]] for (uint p = 0; p < VP; p++) raw_v[j * VP + p] = load8(on && lane + L * p < VD8, vc, V_TYPE, row, VD, lane + L * p);
    }
}

Eight shared_eight(bool key, uint c8)
{
    Eight e;
    e.a = key ? s_k[2u * c8] : s_v[2u * c8];
    e.b = key ? s_k[2u * c8 + 1u] : s_v[2u * c8 + 1u];
    return e;
}

/* Results of the groups of a subgroup into one, and that to shared memory. */
void leave_results(uint lane)
{
    float top = my_m;
    [[unroll]] for (uint m = L; m < SG; m *= 2u) top = max(top, subgroupShuffleXor(top, m));
    float alpha = my_m > NEVER ? exp(my_m - top) : 0.0;
    my_l *= alpha;
    scale_results(alpha);
    [[unroll]] for (uint m = L; m < SG; m *= 2u) {
        my_l += subgroupShuffleXor(my_l, m);
        [[unroll]] for (uint i = 0; i < HB * VP; i++)
            [[unroll]] for (uint c = 0; c < 4u; c++) {
                my_o[i].a[c] += subgroupShuffleXor(my_o[i].a[c], m);
                my_o[i].b[c] += subgroupShuffleXor(my_o[i].b[c], m);
            }
    }
    if (gl_SubgroupInvocationID >= L) return;
    if (lane % (L / HB) == 0u) {
        s_m[gl_SubgroupID * HB + lane / (L / HB)] = top;
        s_l[gl_SubgroupID * HB + lane / (L / HB)] = my_l;
    }
    [[unroll]] for (uint h = 0; h < HB; h++)
        [[unroll]] for (uint p = 0; p < VP; p++) {
            uint c8 = lane + L * p;
            if (c8 >= VD8) continue;
            s_o[(gl_SubgroupID * HB + h) * VD4 + 2u * c8] = my_o[h * VP + p].a;
            s_o[(gl_SubgroupID * HB + h) * VD4 + 2u * c8 + 1u] = my_o[h * VP + p].b;
        }
}

/* Four results, element c of head h, of all subgroups; maximum and sum of the head. */
vec4 joined(uint h, uint c, out float top, out float sum)
{
    top = NEVER;
    sum = 0.0;
    vec4 o = vec4(0.0);
    [[unroll]] for (uint s = 0; s < NS; s++) top = max(top, s_m[s * HB + h]);
    [[unroll]] for (uint s = 0; s < NS; s++) {
        float a = s_m[s * HB + h] > NEVER ? exp(s_m[s * HB + h] - top) : 0.0;
        o += a * s_o[(s * HB + h) * VD4 + c];
        sum += a * s_l[s * HB + h];
    }
    return o;
}

void store(bool on, vec4 f, uint t, uint head, uint c)
{
    uint e4 = head * VD4 + c;
    if (on && WRITE_Y) F4(y).v[t * N_HEAD_KV * GROUP * VD4 + e4] = f;
    if (FORM != 0u) store_form(on, f, t, e4, N_HEAD_KV * GROUP * VD, fq, fd, is_coarse(pr, 0u, t));
}

/* Whether this is the last of the workgroups for this token and these heads; then it sees what the others wrote. */
bool is_last(uint t, uint n)
{
    uint slot = t * gl_NumWorkGroups.y + gl_WorkGroupID.y;
    memoryBarrierBuffer();
    barrier();
    if (tid() == 0u) s_order = atomicAdd(done.v[slot], 1u);
    barrier();
    if (s_order + 1u != n) return false;
    memoryBarrierBuffer();
    if (tid() == 0u) done.v[slot] = 0u;
    return true;
}

/* All n segments together. SPLIT threads share four results, each every SPLIT-th segment. */
void merge(uint t, uint h0, uint n_heads, uint n)
{
    uint head0 = t * N_HEAD_KV * GROUP + h0;
    for (uint e0 = 0; e0 < HB * VD4; e0 += WG / SPLIT) {
        uint e = e0 + tid() % (WG / SPLIT), sp = tid() / (WG / SPLIT), h = min(e / VD4, HB - 1u), c = e % VD4;
        bool on = e < HB * VD4 && h < n_heads;
        uint from = (head0 + min(h, n_heads - 1u)) * MAX_SEG;
        float top = NEVER, sum = 0.0;
        vec4 o = vec4(0.0);
        for (uint s0 = sp; s0 < n; s0 += AHEAD * SPLIT) {
            vec4 f[AHEAD];
            vec2 ml[AHEAD];
            [[unroll]] for (uint a = 0; a < AHEAD; a++) {
                uint at = (from + min(s0 + a * SPLIT, n - 1u)) * PART4;
                f[a] = part.v[at + c];
                ml[a] = part.v[at + VD4].xy;
            }
            [[unroll]] for (uint a = 0; a < AHEAD; a++) {
                if (s0 + a * SPLIT >= n) continue;
                float up = max(top, ml[a].x), was = top > NEVER ? exp(top - up) : 0.0, w = exp(ml[a].x - up);
                o = o * was + f[a] * w;
                sum = sum * was + ml[a].y * w;
                top = up;
            }
        }
        if (SPLIT > 1u) {
            barrier();
            s_o[tid()] = o;
            s_ml[tid()] = vec2(top, sum);
            barrier();
            if (sp == 0u)
                [[unroll]] for (uint i = 1u; i < SPLIT; i++) {
                    vec2 ml = s_ml[tid() + i * (WG / SPLIT)];
                    if (!(ml.x > NEVER)) continue;
                    float up = max(top, ml.x), was = exp(top - up), w = exp(ml.x - up);
                    o = o * was + s_o[tid() + i * (WG / SPLIT)] * w;
                    sum = sum * was + ml.y * w;
                    top = up;
                }
            on = on && sp == 0u;
        }
        store(on, sum > 0.0 ? o / sum : vec4(0.0), t, h0 + h, c);
    }
}

void main()
{
    uint t = gl_WorkGroupID.x;
    if (!ALONE && t >= pr.n_rows[0]) return;
    uint kvh = gl_WorkGroupID.y / NH, chunk = gl_WorkGroupID.y % NH, h0 = kvh * GROUP + chunk * HB;
    uint n_heads = min(HB, GROUP - chunk * HB), lane = gl_SubgroupInvocationID % L, g = gl_SubgroupID * (SG / L) + gl_SubgroupInvocationID / L;
    uvec4 me = U4(words()).v[info_at / 4u + t];
    uint lo = WINDOW > 0u && me.y > WINDOW - 1u ? me.y - (WINDOW - 1u) : 0u, hi = me.y + 1u;
    uint base = lo / 32u * 32u, len = hi - base;
    uint seg = max(SEG_MIN, (len + 32u * MAX_SEG - 1u) / (32u * MAX_SEG) * 32u), n_seg = (len + seg - 1u) / seg;
    if (gl_WorkGroupID.z >= n_seg) return;
    uint s0 = max(lo, base + gl_WorkGroupID.z * seg), s1 = min(hi, base + (gl_WorkGroupID.z + 1u) * seg);
    uint past = !FUSED ? hi : ALONE ? me.y : me.y + uint(words().v[first_at + me.x]) - t, cached = min(s1, past), fresh = max(s0, past);
    uint table = table_at + (ALONE ? 0u : me.x * max_pages);

    load_keys(s0, cached, g, lane, table, kvh);
    stage_queries(t, h0, n_heads, me.w);
    if (fresh < s1) stage_kv(t - me.y + fresh, fresh, kvh, chunk == 0u && fresh == me.y);
    my_m = NEVER;
    my_l = 0.0;
    [[unroll]] for (uint i = 0; i < HB * VP; i++) my_o[i].a = my_o[i].b = vec4(0.0);
    barrier();
    [[unroll]] for (uint h = 0; h < HB; h++)
        [[unroll]] for (uint p = 0; p < KP; p++) {
            uint c8 = lane + L * p;
            my_q[h * KP + p].a = c8 < KD8 ? s_q[h * (KD / 4u) + 2u * c8] * SCALE : vec4(0.0);
            my_q[h * KP + p].b = c8 < KD8 ? s_q[h * (KD / 4u) + 2u * c8 + 1u] * SCALE : vec4(0.0);
        }
    for (uint j0 = s0; j0 < cached; j0 += NG * J) {
#define CACHE_KEY(j, p) values8(raw_k[(j) * KP + (p)], K_TYPE)
#define CACHE_VALUE(j, p) values8(raw_v[(j) * VP + (p)], V_TYPE)
#define CACHE_ON(j) (j0 + NG * (j) + g < cached)
        ATTEND(J, CACHE_KEY, CACHE_VALUE, CACHE_ON)
        if (j0 + NG * J < cached) load_keys(j0 + NG * J, cached, g, lane, table, kvh);
    }
    for (uint at = fresh; at < s1; at++) {
        if (at > fresh) {
            barrier();
            stage_kv(t - me.y + at, at, kvh, chunk == 0u && at == me.y);
            barrier();
        }
        if ((at - past) % NS != gl_SubgroupID) continue;
#define FRESH_KEY(j, p) shared_eight(true, min(lane + L * (p), KD8 - 1u))
#define FRESH_VALUE(j, p) shared_eight(false, min(lane + L * (p), VD8 - 1u))
#define FRESH_ON(j) (gl_SubgroupInvocationID < L)
        ATTEND(1, FRESH_KEY, FRESH_VALUE, FRESH_ON)
    }
    leave_results(lane);
    barrier();
    for (uint e0 = 0; e0 < HB * VD4; e0 += WG) {
        uint e = e0 + tid(), h = min(e / VD4, HB - 1u), c = e % VD4;
        bool on = e < HB * VD4 && h < n_heads;
        float top, sum;
        vec4 o = joined(h, c, top, sum);
        if (n_seg == 1u) {
            store(on, sum > 0.0 ? o / sum : vec4(0.0), t, h0 + h, c);
        } else if (on) {
            uint to = ((t * N_HEAD_KV * GROUP + h0 + h) * MAX_SEG + gl_WorkGroupID.z) * PART4;
            part.v[to + c] = o;
            if (c == 0u) part.v[to + VD4] = vec4(top, sum, 0.0, 0.0);
        }
    }
    if (n_seg > 1u && is_last(t, n_seg)) merge(t, h0, n_heads, n_seg);
}
