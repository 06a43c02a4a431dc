#version 460
#extension GL_GOOGLE_include_directive : require
/* The K best of a row with log-sum-exp; see OB_OP_TOP_K. A long row is cut into segments: a workgroup of 256
 * finds the best of each, then one the best of those.
 *
 * The K-th best of the threads' maxima is a bound: no more than a few numbers are above it, unless the row was
 * made to be difficult; then the K-th best number is found digit by digit (order.glsl).
 *
 * It runs once a step, when its code is in no cache any more, so that fetching it takes longer than running it: loops are
 * short and not unrolled, and both passes are one pipeline. */
#include "common.glsl"
#include "order.glsl"

layout(constant_id = 1) const uint K = 64;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 x, y; /* rows, and where the result goes: K ids, K numbers, log-sum-exp, how many are NaN */
    F1 list; /* [row][segment][K], best first */
    U1 list_id;
    F4 list_sum; /* [row][segment]: maximum, sum of exp(x - maximum), how many are NaN */
    F1 unused[2];
    uint rows, cols, seg, n_seg, pass; /* pass 0: rows to results, 1: segments to lists, 2: lists to results */
};

const uint MANY = 1024, AHEAD = 4; /* numbers loaded before any is used */

shared uvec4 s_key4[MANY / 4u], s_id4[MANY / 4u];
shared vec4 s_sum[256];
shared uint s_count, s_bound;

float minus_inf() { return uintBitsToFloat(0xFF800000u); }
bool is_nan(float v) { return (floatBitsToUint(v) & 0x7FFFFFFFu) > 0x7F800000u; }

vec4 join(vec4 a, vec4 b)
{
    float m = max(a.x, b.x), s = 0.0;
    if (a.y > 0.0) s += a.y * exp(a.x - m);
    if (b.y > 0.0) s += b.y * exp(b.x - m);
    return vec4(m, s, a.z + b.z, 0.0);
}

/* Numbers of lists are taken so that the best of each list go to different threads. */
uint place_of(uint i) { return pass == 2u && (K & (K - 1u)) == 0u ? (i & ~(K - 1u)) | ((i + (i >> 8) * 7u) & (K - 1u)) : i; }

/* Of v[from ..+ n): the largest key of this thread's numbers; their sums, of all threads, to s_sum[0]. */
uint look_through(F1 v, uint from, uint n, uint row)
{
    uint tid = gl_LocalInvocationID.x, best = 0u;
    vec4 sum = vec4(minus_inf(), 0.0, 0.0, 0.0);
    [[dont_unroll]] for (uint i0 = tid; i0 < n; i0 += 256u * AHEAD) {
        vec4 f, part;
        [[unroll]] for (uint a = 0; a < AHEAD; a++) f[a] = v.v[from + place_of(min(i0 + a * 256u, n - 1u))];
        float nan = 0.0;
        [[unroll]] for (uint a = 0; a < AHEAD; a++) {
            bool on = i0 + a * 256u < n, odd = is_nan(f[a]);
            best = max(best, on ? order_of(f[a]) : 0u);
            nan += on && odd ? 1.0 : 0.0;
            if (!on || odd) f[a] = minus_inf();
        }
        float top = max(max(f.x, f.y), max(f.z, f.w));
        part = exp(f - top);
        sum = join(sum, vec4(top, top > minus_inf() ? (part.x + part.y) + (part.z + part.w) : 0.0, nan, 0.0));
    }
    if (pass == 2u) {
        sum = vec4(minus_inf(), 0.0, 0.0, 0.0);
        [[dont_unroll]] for (uint i = tid; i < n_seg; i += 256u) sum = join(sum, list_sum.v[row * n_seg + i]);
    }
    s_sum[tid] = sum;
    [[dont_unroll]] for (uint m = 128u; m > 0u; m >>= 1) {
        barrier();
        if (tid < m) s_sum[tid] = join(s_sum[tid], s_sum[tid + m]);
    }
    barrier();
    return best;
}

/* How many of the first n in shared memory come before this one: larger keys, and of equal ones smaller ids. */
uint rank_of(uint key, uint id, uint n)
{
    uint rank = 0u;
    [[dont_unroll]] for (uint i = 0; i < n; i += 4u) {
        uvec4 k = s_key4[i / 4u], d = s_id4[i / 4u];
        [[unroll]] for (uint c = 0; c < 4u; c++)
            rank += uint(i + c < n) & (uint(k[c] > key) | (uint(k[c] == key) & uint(d[c] < id)));
    }
    return rank;
}

void put(uint at, uint key, uint id)
{
    s_key4[at / 4u][at % 4u] = key;
    s_id4[at / 4u][at % 4u] = id;
}

/* The K-th largest of the threads' maxima. */
uint bound_of(uint best)
{
    uint tid = gl_LocalInvocationID.x;
    put(tid, best, tid);
    if (tid == 0u) s_count = 0u;
    barrier();
    if (rank_of(best, tid, 256u) == K - 1u) s_bound = best;
    barrier();
    return s_bound;
}

/* Of the number at this place. */
uint id_of(uint from, uint place) { return pass == 2u ? list_id.v[from + place] : gl_WorkGroupID.x * seg + place; }

/* Numbers at or above the bound, in any order; their count, or more than MANY. */
uint gather(F1 v, uint from, uint n, uint bound)
{
    [[dont_unroll]] for (uint i0 = gl_LocalInvocationID.x; i0 < n; i0 += 256u * AHEAD) {
        uint mine = 0u; /* bits: which of these are */
        vec4 f;
        [[unroll]] for (uint a = 0; a < AHEAD; a++) f[a] = v.v[from + place_of(min(i0 + a * 256u, n - 1u))];
        [[unroll]] for (uint a = 0; a < AHEAD; a++) mine |= i0 + a * 256u < n && order_of(f[a]) >= bound ? 1u << a : 0u;
        [[dont_unroll]] while (mine != 0u) {
            uint place = place_of(i0 + uint(findLSB(mine)) * 256u), at = atomicAdd(s_count, 1u);
            if (at < MANY) put(at, order_of(v.v[from + place]), id_of(from, place));
            mine &= mine - 1u;
        }
    }
    barrier();
    return s_count;
}

/* The k best exactly: those above the k-th, and the first of those equal to it. */
void gather_exactly(F1 v, uint from, uint n, uint k)
{
    uint tid = gl_LocalInvocationID.x, ties, last = kth_key(v, from, n, k, ties), above = 0u, equal = 0u;
    for (uint i0 = 0; i0 < n; i0 += 256u) {
        uint i = i0 + tid, key = i < n ? order_of(v.v[from + i]) : 0u;
        uint mine = i < n ? (key > last ? 1u : 0u) | (key == last ? 0x10000u : 0u) : 0u, sum = scan_sum(mine);
        uint a = above + (sum & 0xFFFFu) - (mine & 1u), q = equal + (sum >> 16) - (mine >> 16);
        if (mine == 1u || (mine != 0u && q < ties)) put(a + min(q, ties), key, id_of(from, i));
        above += scan_total() & 0xFFFFu;
        equal += scan_total() >> 16;
    }
    barrier();
}

void store(uint row, uint rank, float v, uint id)
{
    if (pass == 1u) {
        uint at = (row * n_seg + gl_WorkGroupID.x) * K + rank;
        list.v[at] = v;
        list_id.v[at] = id;
    } else {
        uint at = row * (2u * K + 2u) + rank;
        y.v[at] = id == 0xFFFFFFFFu ? -1.0 : float(id);
        y.v[at + K] = v;
    }
}

void main()
{
    uint row = gl_WorkGroupID.y, tid = gl_LocalInvocationID.x, s = gl_WorkGroupID.x;
    if (row >= pr.n_rows[rows]) return;
    uint from = pass == 2u ? row * n_seg * K : row * cols + s * seg, n = pass == 2u ? n_seg * K : min(seg, cols - s * seg);
    F1 v = pass == 2u ? list : x;
    uint best = look_through(v, from, n, row), count = gather(v, from, n, bound_of(best));
    if (count > MANY) {
        count = min(K, n);
        gather_exactly(v, from, n, count);
    }
    [[dont_unroll]] for (uint j = tid; j < max(count, K); j += 256u) {
        uint key = s_key4[j / 4u][j % 4u], id = s_id4[j / 4u][j % 4u], rank = j < count ? rank_of(key, id, count) : j;
        if (rank < K) store(row, rank, j < count ? order_back(key) : minus_inf(), j < count ? id : 0xFFFFFFFFu);
    }
    if (tid != 0u) return;
    vec4 sum = s_sum[0];
    if (pass == 1u) list_sum.v[row * n_seg + s] = sum;
    else {
        y.v[row * (2u * K + 2u) + 2u * K] = sum.x + log(sum.y);
        y.v[row * (2u * K + 2u) + 2u * K + 1u] = sum.z;
    }
}
