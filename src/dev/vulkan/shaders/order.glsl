/* Choosing the best of many numbers by a workgroup of 256. */

shared uint scan_buf[2 * 256];
shared uint hist[256];
shared uint s_digit, s_left;

/* Whole numbers that order as floats do; both zeros are equal. */
uint order_of(float x)
{
    uint b = x == 0.0 ? 0u : floatBitsToUint(x);
    return (b & 0x80000000u) != 0u ? ~b : b | 0x80000000u;
}
float order_back(uint k) { return uintBitsToFloat((k & 0x80000000u) != 0u ? k & 0x7FFFFFFFu : ~k); }

/* Sum of x over the threads up to this one. All threads come here together. */
uint scan_sum(uint x)
{
    uint tid = gl_LocalInvocationID.x, at = 0u;
    barrier();
    scan_buf[tid] = x;
    barrier();
    for (uint n = 1u; n < 256u; n <<= 1) {
        uint v = scan_buf[at + tid] + (tid >= n ? scan_buf[at + tid - n] : 0u);
        at ^= 256u;
        scan_buf[at + tid] = v;
        barrier();
    }
    return scan_buf[tid]; /* 8 rounds end where they began */
}
/* Of the last scan_sum: over all threads. */
uint scan_total() { return scan_buf[255]; }

/* The k-th largest key of x[from ..+ n), 1 <= k <= n; `ties`: how many of those equal to it are among the k. */
uint kth_key(F1 x, uint from, uint n, uint k, out uint ties)
{
    uint tid = gl_LocalInvocationID.x, prefix = 0u, mask = 0u;
    for (int shift = 24; shift >= 0; shift -= 8) {
        barrier();
        hist[tid] = 0u;
        barrier();
        for (uint i = tid; i < n; i += 256u) {
            uint key = order_of(x.v[from + i]);
            if ((key & mask) == prefix) atomicAdd(hist[(key >> shift) & 255u], 1u);
        }
        barrier();
        uint digit = 255u - tid, mine = hist[digit], upto = scan_sum(mine); /* of this digit and larger ones */
        if (upto >= k && upto - mine < k) {
            s_digit = digit;
            s_left = k - (upto - mine);
        }
        barrier();
        prefix |= s_digit << shift;
        mask |= 255u << shift;
        k = s_left;
    }
    ties = k;
    return prefix;
}
