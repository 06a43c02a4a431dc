#version 460
#extension GL_GOOGLE_include_directive : require
/* The K best of a row with log-sum-exp; see OB_OP_TOP_K. A long row is cut into segments: a workgroup of 256
 * finds the best of each, then one the best of those.
 *
 * The K-th best of the threads' maxima is a bound: no more than a few numbers are above it, unless the row was
 * made to be difficult; then the K-th best number is found digit by digit (order.glsl). */
#include "common.glsl"
#include "order.glsl"

layout(constant_id = 1) const uint K = 64;
layout(constant_id = 2) const bool FROM_LISTS = false; /* of the segments */
layout(constant_id = 3) const bool TO_LISTS = false;

layout(push_constant, scalar) uniform Push {
    Params pr;
    F1 x, y; /* rows, and where the result goes: K ids, K numbers, log-sum-exp, how many are NaN */
    F1 list; /* [row][segment][K], best first */
    U1 list_id;
    F4 list_sum; /* [row][segment]: maximum, sum of exp(x - maximum), how many are NaN */
    F1 unused[2];
    uint rows, cols, seg, n_seg;
};

const uint MANY = 1024;

shared uint s_key[MANY], s_id[MANY];
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

/* Numbers i, i + 256, .. of x[from ..+ n), all loaded before any is used. */
const uint AHEAD = 8u;

void number_at(uint from, uint n, uint i, out float v[AHEAD])
{
    [[unroll]] for (uint a = 0; a < AHEAD; a++) {
        uint at = from + min(i + a * 256u, n - 1u);
        v[a] = FROM_LISTS ? list.v[at] : x.v[at];
    }
}

/* Of x[from ..+ n): the largest key of this thread's numbers; their sums, of all threads, to s_sum[0]. */
uint look_through(uint from, uint n, uint row)
{
    uint tid = gl_LocalInvocationID.x, best = 0u;
    vec4 sum = vec4(minus_inf(), 0.0, 0.0, 0.0);
    for (uint i0 = tid; i0 < n; i0 += 256u * AHEAD) {
        float v[AHEAD];
        number_at(from, n, i0, v);
        [[unroll]] for (uint a = 0; a < AHEAD; a++) {
            if (i0 + a * 256u >= n) break;
            best = max(best, order_of(v[a]));
            if (FROM_LISTS) continue;
            if (is_nan(v[a])) sum.z += 1.0;
            else if (v[a] > minus_inf()) sum = join(sum, vec4(v[a], 1.0, 0.0, 0.0));
        }
    }
    for (uint i = tid; FROM_LISTS && i < n_seg; i += 256u) sum = join(sum, list_sum.v[row * n_seg + i]);
    s_sum[tid] = sum;
    for (uint m = 128u; m > 0u; m >>= 1) {
        barrier();
        if (tid < m) s_sum[tid] = join(s_sum[tid], s_sum[tid + m]);
    }
    barrier();
    return best;
}

/* The K-th largest of the threads' maxima. */
uint bound_of(uint best)
{
    uint tid = gl_LocalInvocationID.x, rank = 0u;
    s_key[tid] = best;
    if (tid == 0u) s_count = 0u;
    barrier();
    for (uint i = 0; i < 256u; i++) rank += s_key[i] > best || (s_key[i] == best && i < tid) ? 1u : 0u;
    if (rank == K - 1u) s_bound = best;
    barrier();
    return s_bound;
}

uint id_of(uint from, uint i) { return FROM_LISTS ? list_id.v[from + i] : gl_WorkGroupID.x * seg + i; }

/* Numbers at or above the bound, in any order; their count, or more than MANY. */
uint gather(uint from, uint n, uint bound)
{
    for (uint i0 = gl_LocalInvocationID.x; i0 < n; i0 += 256u * AHEAD) {
        float v[AHEAD];
        number_at(from, n, i0, v);
        [[unroll]] for (uint a = 0; a < AHEAD; a++) {
            uint i = i0 + a * 256u, key = order_of(v[a]);
            if (i >= n || key < bound) continue;
            uint at = atomicAdd(s_count, 1u);
            if (at >= MANY) continue;
            s_key[at] = key;
            s_id[at] = id_of(from, i);
        }
    }
    barrier();
    return s_count;
}

/* The k best exactly: those above the k-th, and the first of those equal to it. */
void gather_exactly(uint from, uint n, uint k)
{
    uint tid = gl_LocalInvocationID.x, ties, last, above = 0u, equal = 0u;
    if (FROM_LISTS) last = kth_key(list, from, n, k, ties);
    else last = kth_key(x, from, n, k, ties);
    for (uint i0 = 0; i0 < n; i0 += 256u) {
        uint i = i0 + tid, key = i < n ? order_of(FROM_LISTS ? list.v[from + i] : x.v[from + i]) : 0u;
        uint mine = i < n ? (key > last ? 1u : 0u) | (key == last ? 0x10000u : 0u) : 0u, sum = scan_sum(mine);
        uint a = above + (sum & 0xFFFFu) - (mine & 1u), q = equal + (sum >> 16) - (mine >> 16);
        if (mine == 1u || (mine != 0u && q < ties)) {
            s_key[a + min(q, ties)] = key;
            s_id[a + min(q, ties)] = id_of(from, i);
        }
        above += scan_total() & 0xFFFFu;
        equal += scan_total() >> 16;
    }
    barrier();
}

void store(uint row, uint rank, float v, uint id)
{
    if (TO_LISTS) {
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
    uint from = FROM_LISTS ? row * n_seg * K : row * cols + s * seg, n = FROM_LISTS ? n_seg * K : min(seg, cols - s * seg);
    uint best = look_through(from, n, row), count = gather(from, n, bound_of(best));
    if (count > MANY) {
        count = min(K, n);
        gather_exactly(from, n, count);
    }
    for (uint j = tid; j < count; j += 256u) {
        uint key = s_key[j], id = s_id[j], rank = 0u;
        for (uint i = 0; i < count; i++) rank += s_key[i] > key || (s_key[i] == key && s_id[i] < id) ? 1u : 0u;
        if (rank < K) store(row, rank, order_back(key), id);
    }
    for (uint j = count + tid; j < K; j += 256u) store(row, j, minus_inf(), 0xFFFFFFFFu);
    if (tid != 0u) return;
    vec4 sum = s_sum[0];
    if (TO_LISTS) list_sum.v[row * n_seg + s] = sum;
    else {
        y.v[row * (2u * K + 2u) + 2u * K] = sum.x + log(sum.y);
        y.v[row * (2u * K + 2u) + 2u * K + 1u] = sum.z;
    }
}
