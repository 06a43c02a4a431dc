/* The paged cache: row of [page][head][token in page]; element types f32, f16, Q8_0. */
#define T_F32 0
#define T_F16 1
#define T_Q8_0 8

uint cache_row(I1 table, uint seq, uint at, uint max_pages, uint page_tok, uint n_head, uint head)
{
    uint page = uint(table.v[seq * max_pages + at / page_tok]);
    return (page * n_head + head) * page_tok + at % page_tok;
}

/* Where a row begins; its elements are indexed from there, because a cache may be larger than 4 GiB (row_at). */
uvec2 cache_at(uvec2 c, uint type, uint dim, uint row)
{
    return row_at(c, row, type == T_F32 ? dim * 4u : type == T_F16 ? dim * 2u : dim / 32u * 34u);
}

/* Block of Q8_0: f16 scale, then 32 int8. The scale of a block whose largest value is `top`, and what its
 * values are multiplied by. */
uint q8_0_scale(float top, out float id)
{
    float d = div_exact(top, 127.0);
    id = d != 0.0 ? div_exact(1.0, d) : 0.0;
    return f16_bits(d);
}

uint q8_0_pair(vec2 x, float id)
{
    precise vec2 q = x * id;
    ivec2 r = ivec2(sign(q) * floor(abs(q) + 0.5)); /* halves away from zero */
    return uint(r.x & 255) | uint(r.y & 255) << 8;
}
