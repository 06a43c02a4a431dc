/* The delta rule by chunks of C tokens (Yang et al. 2024, arXiv 2412.06464, section 3). With G_t the sum of the
 * log-decays of a chunk up to t, S the state before it, and lower-case k, q scaled to unit length,
 *
 *   (I + A) D = b (V - e^G K S),   A[t][s] = b_t e^(G_t - G_s) k_t . k_s  for s < t
 *   O = e^G Q S + M D,             M[t][s] = e^(G_t - G_s) q_t . k_s      for s <= t
 *   S' = e^G_last S + (e^(G_last - G) K)^T D
 *
 * gdn_prep solves for U and W in D = U - W S, for every chunk and head at once; gdn_scan walks the chunks of a
 * sequence. Between them, for each (chunk, head): W, Q' = e^G Q and K' = e^(G_last - G) K of [C][DK],
 * U [C][DV4 * 4], M [C][C], and e^G_last. A token past the sequence's end is one with b, k, q and v of zero. */
layout(constant_id = 1) const uint DK = 128; /* a multiple of 4 */
layout(constant_id = 2) const uint DV = 128;
layout(constant_id = 3) const uint C = 32;   /* a multiple of 4 */

const uint DK4 = DK / 4, DV4 = (DV + 3) / 4;
const uint AT_Q = C * DK4, AT_K = 2 * C * DK4, AT_U = 3 * C * DK4, AT_M = AT_U + C * DV4, AT_END = AT_M + C * C / 4;
const uint CHUNK4 = AT_END + 1; /* fours of a chunk and head */

uint n_chunks_of(uvec4 seq) { return (seq.y - seq.x + C - 1u) / C; }
