/* Compressed sparse attention (ob_csa_params): entries, and rows of a cache with one head.
 *
 *   csa_store     this step's keys into the raw cache
 *   csa_compress  entries whose window ends in this step
 *   csa_keep      what later entries will look at, into the state
 *   csa_score     the indexer's score of each (token, entry)
 *   csa_pick      the best entries of a token, in order
 *   csa_attn      attention over the window's keys and the entries */

float load_one(uvec2 at, uint type, uint i)
{
    if (type == T_F32) return F1(at).v[i];
    if (type == T_F16) return unpackHalf2x16(uint(H1(at).v[i])).x;
    uint b = i / 32u * 17u, two = uint(H1(at).v[b + 1u + (i % 32u) / 2u]);
    return float(int(two << ((i & 1u) != 0u ? 16u : 24u)) >> 24) * unpackHalf2x16(uint(H1(at).v[b])).x;
}

/* Elements 4 c4 .. of a row; past its end 0. */
vec4 load_four(F1 c, uint type, uint row, uint dim, uint c4)
{
    uvec2 at = cache_at(uvec2(c), type, dim, row);
    if (dim % 4u == 0u && type == T_F32) return F4(at).v[c4];
    if (dim % 4u == 0u && type == T_F16) {
        uvec2 p = U2(at).v[c4];
        return vec4(unpackHalf2x16(p.x), unpackHalf2x16(p.y));
    }
    vec4 r = vec4(0.0);
    [[unroll]] for (uint i = 0; i < 4u; i++)
        if (4u * c4 + i < dim) r[i] = load_one(at, type, 4u * c4 + i);
    return r;
}

/* Entries that a query at place `at` may see; the place of the last token of entry e. */
uint n_entries(uint at, uint ratio) { return ratio == 0u ? 0u : (at + 1u) / ratio; }
uint entry_at(uint e, uint ratio) { return (e + 1u) * ratio - 1u; }
