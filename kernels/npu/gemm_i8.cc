// int8 matrix product of one core: C (32 x 128, int32) += A (32 x 64, int8) * B (64 x 128, int8).
//
// UNBUILT: nobody has compiled this yet, see README.md. Written from the public AIE API documentation (aie::mmul).
//
// All three are in 8 x 8 micro-tiles, row-major in the tile and inside: A [4][8][8][8], B [8][16][8][8], C [4][16][8][8].
// So every load and store below is 64 contiguous values, and DMA moves whole tiles in one run.
#include <aie_api/aie.hpp>
#include <stdint.h>

constexpr unsigned M = 32, K = 64, N = 128, T = 8;
constexpr unsigned MT = M / T, KT = K / T, NT = N / T, TILE = T * T;
using MMUL = aie::mmul<T, T, T, int8, int8, acc32>;

extern "C" {

void gemm_i8_zero(int32_t *__restrict c)
{
    const aie::vector<int32_t, 16> zero = aie::zeros<int32_t, 16>();
    for (unsigned i = 0; i < M * N; i += 16) aie::store_v(c + i, zero);
}

// Two rows and two columns of micro-tiles at a time: four accumulators, and each operand is used twice.
void gemm_i8_tile(const int8_t *__restrict a, const int8_t *__restrict b, int32_t *__restrict c)
{
    for (unsigned i = 0; i < MT; i += 2)
        for (unsigned j = 0; j < NT; j += 2)
            {
                const int8_t *a0 = a + i * KT * TILE, *a1 = a0 + KT * TILE;
                const int8_t *b0 = b + j * TILE;
                int32_t *c0 = c + (i * NT + j) * TILE, *c1 = c0 + NT * TILE;
                MMUL c00(aie::load_v<TILE>(c0)), c01(aie::load_v<TILE>(c0 + TILE));
                MMUL c10(aie::load_v<TILE>(c1)), c11(aie::load_v<TILE>(c1 + TILE));
                for (unsigned k = 0; k < KT; k++) {
                    const auto x0 = aie::load_v<TILE>(a0 + k * TILE), x1 = aie::load_v<TILE>(a1 + k * TILE);
                    const auto y0 = aie::load_v<TILE>(b0 + k * NT * TILE), y1 = aie::load_v<TILE>(b0 + k * NT * TILE + TILE);
                    c00.mac(x0, y0);
                    c01.mac(x0, y1);
                    c10.mac(x1, y0);
                    c11.mac(x1, y1);
                }
                aie::store_v(c0, c00.template to_vector<int32_t>());
                aie::store_v(c0 + TILE, c01.template to_vector<int32_t>());
                aie::store_v(c1, c10.template to_vector<int32_t>());
                aie::store_v(c1 + TILE, c11.template to_vector<int32_t>());
            }
}

} // extern "C"
