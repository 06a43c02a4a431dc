/* Weights to f16 in shared memory (sb), for kernels of cooperative matrices: a piece is a unit of 32 as loaded. */
#if QUANTISED
const bool NIBBLES = TYPE == T_Q4_0 || TYPE == T_Q4_1 || TYPE == T_Q4_K;
#if TYPE == T_Q8_0
const float OFFSET = 128.0;
#else
const float OFFSET = ZERO;
#endif

/* Four quants in a word, elements of run r (0 a, 1 b), to halves. Integers become halves by standing in the mantissa of
 * 1024, two at a time: elements 0, 2 and 1, 3. A nibble's place in the high half of its byte makes it 16 times as large,
 * which the factor of an exact fma takes back. */
uvec2 halves(uint q, uint r, f16vec2 d, f16vec2 m)
{
    f16vec2 x, y;
    if (NIBBLES && r == 1u) {
        const f16vec2 by = f16vec2(float16_t(0.0625)), less = f16vec2(float16_t(-64.0 - OFFSET));
        x = fma(unpackFloat2x16((q & 0x00F000F0u) | 0x64006400u), by, less);
        y = fma(unpackFloat2x16(((q >> 8) & 0x00F000F0u) | 0x64006400u), by, less);
    } else {
        const uint mask = NIBBLES ? 0x000F000Fu : 0x00FF00FFu;
        const f16vec2 less = f16vec2(float16_t(1024.0 + OFFSET));
        x = unpackFloat2x16((q & mask) | 0x64006400u) - less;
        y = unpackFloat2x16(((q >> 8) & mask) | 0x64006400u) - less;
    }
#if HAS_MIN
    x = x * d - m;
    y = y * d - m;
#else
    x *= d;
    y *= d;
#endif
    return uvec2(packFloat2x16(f16vec2(x.x, y.x)), packFloat2x16(f16vec2(x.y, y.y)));
}

void store_run(uint at, uvec4 q, uint r, float sc, float mn)
{
    f16vec2 d = f16vec2(float16_t(sc)), m = f16vec2(float16_t(mn));
#if TYPE == T_Q8_0
    q ^= uvec4(0x80808080u);
#endif
    sb[at] = uvec4(halves(q.x, r, d, m), halves(q.y, r, d, m));
    sb[at + 1u] = uvec4(halves(q.z, r, d, m), halves(q.w, r, d, m));
}

#define Piece Raw
#define load_piece load_raw
void store_piece(uint a, uint b, Raw p, uint u)
{
    Unit r = decode(p, u);
    store_run(a, NIBBLES ? p.q : r.qa, 0u, r.sa, r.ma);
    store_run(b, NIBBLES ? p.q : r.qb, 1u, r.sb, r.mb);
}
#else
struct Piece {
    vec4 a[4], b[4];
};
Piece load_piece(U4 w, U1 s, U1 h, U1 z, uint row, uint u, uint nu)
{
    Piece p;
    unit_values(w, s, h, z, row, u, nu, p.a, p.b);
    return p;
}
void store_floats(uint at, vec4 v[4])
{
    [[unroll]] for (uint j = 0; j < 2u; j++) {
        vec4 p = v[2u * j], q = v[2u * j + 1u];
        sb[at + j] = uvec4(packHalf2x16(p.xy), packHalf2x16(p.zw), packHalf2x16(q.xy), packHalf2x16(q.zw));
    }
}
void store_piece(uint a, uint b, Piece p, uint u)
{
    store_floats(a, p.a);
    store_floats(b, p.b);
}
#endif
