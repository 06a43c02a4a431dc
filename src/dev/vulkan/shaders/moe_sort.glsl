/* Counting sort of (row, choice) pairs by expert, by one workgroup. The order within an expert is not
 * determined; no result depends on it. Tiles are of at most TILE places. Wants N_USED, N_EXPERT, TILE, PAD and
 * the type SortIds. */
#include "moe.glsl"

const uint SORT_EACH = (N_EXPERT + WG - 1) / WG; /* experts a thread */
shared uint sort_count[N_EXPERT];
shared uvec2 sort_first[N_EXPERT]; /* place, tile: sums up to and with this expert */

void sort_pairs(SortIds ids, uint n_pairs, MoeTable table, U1 row_of, U1 place_of)
{
    uint tid = gl_LocalInvocationID.x;
    for (uint e = tid; e < N_EXPERT; e += WG) sort_count[e] = 0u;
    barrier();
    for (uint i = tid; i < n_pairs; i += WG) {
        uint e = uint(ids.v[i]);
        if (e < N_EXPERT) atomicAdd(sort_count[e], 1u);
    }
    barrier();
    for (uint e = tid; e < N_EXPERT; e += WG) {
        uint n = sort_count[e];
        sort_first[e] = uvec2((n + PAD - 1u) / PAD * PAD, (n + TILE - 1u) / TILE);
    }
    barrier();
    for (uint step = 1u; step < N_EXPERT; step <<= 1) {
        uvec2 before[SORT_EACH];
        [[unroll]] for (uint k = 0; k < SORT_EACH; k++) {
            uint e = k * WG + tid;
            before[k] = e >= step && e < N_EXPERT ? sort_first[e - step] : uvec2(0u);
        }
        barrier();
        [[unroll]] for (uint k = 0; k < SORT_EACH; k++) {
            uint e = k * WG + tid;
            if (e < N_EXPERT) sort_first[e] += before[k];
        }
        barrier();
    }
    if (tid == 0u) table.n_tiles = sort_first[N_EXPERT - 1u].y;
    for (uint e = tid; e < N_EXPERT; e += WG) {
        uint n = sort_count[e], padded = (n + PAD - 1u) / PAD * PAD;
        uint place = sort_first[e].x - padded, tile = sort_first[e].y - (n + TILE - 1u) / TILE;
        for (uint at = 0u; at < n; at += TILE)
            table.tile[tile + at / TILE] = uvec4(e, place + at, min(TILE, n - at), 0u);
        for (uint i = n; i < padded; i++) row_of.v[place + i] = 0u;
        sort_count[e] = place;
    }
    barrier();
    for (uint i = tid; i < n_pairs; i += WG) {
        uint e = uint(ids.v[i]), place = NOWHERE;
        if (e < N_EXPERT) {
            place = atomicAdd(sort_count[e], 1u);
            row_of.v[place] = i / N_USED;
        }
        place_of.v[i] = place;
    }
}
