/* Weights to f16 in shared memory (sb), for kernels of cooperative matrices: a piece is a unit of 32 as loaded. */
#if QUANTISED
#if TYPE == T_Q8_0
const float OFFSET = 1024.0 + 128.0;
#else
const float OFFSET = 1024.0 + ZERO;
#endif

/* Two bytes become halves by standing in the mantissa of 1024. */
uint halves(uint two, f16vec2 d, f16vec2 m)
{
    f16vec2 q = unpackFloat2x16(two | 0x64006400u) - f16vec2(float16_t(OFFSET));
#if HAS_MIN
    return packFloat2x16(q * d - m);
#else
    return packFloat2x16(q * d);
#endif
}

void store_run(uint at, uvec4 q, float sc, float mn)
{
    f16vec2 d = f16vec2(float16_t(sc)), m = f16vec2(float16_t(mn));
#if TYPE == T_Q8_0
    q ^= uvec4(0x80808080u);
#endif
    [[unroll]] for (uint i = 0; i < 2u; i++) {
        uint p = q[2u * i], r = q[2u * i + 1u];
        sb[at + i] = uvec4(halves((p & 0xFFu) | ((p & 0xFF00u) << 8), d, m),
                           halves(((p >> 16) & 0xFFu) | ((p >> 8) & 0xFF0000u), d, m),
                           halves((r & 0xFFu) | ((r & 0xFF00u) << 8), d, m),
                           halves(((r >> 16) & 0xFFu) | ((r >> 8) & 0xFF0000u), d, m));
    }
}

#define Piece Raw
#define load_piece load_raw
void store_piece(uint a, uint b, Raw p, uint u)
{
    Unit r = decode(p, u);
    store_run(a, r.qa, r.sa, r.ma);
    store_run(b, r.qb, r.sb, r.mb);
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
