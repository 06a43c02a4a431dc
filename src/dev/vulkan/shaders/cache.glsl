/* The paged cache: row of [page][head][token in page]; element types f32, f16, Q8_0. */
#define T_F32 0
#define T_F16 1
#define T_Q8_0 8

uint cache_row(I1 table, uint seq, uint at, uint max_pages, uint page_tok, uint n_head, uint head)
{
    uint page = uint(table.v[seq * max_pages + at / page_tok]);
    return (page * n_head + head) * page_tok + at % page_tok;
}
