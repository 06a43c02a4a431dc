// Matrix-vector product of one core: y (32, f32) += W (32 outputs x 256 inputs, q4g32) * x (256, bf16).
//
// UNBUILT: nobody has compiled this yet, see README.md. Written from the public AIE API documentation.
//
// A tile is 5,120 bytes: nibbles [256 inputs][16 bytes], the low one is the even output; bf16 scales [8 groups][32
// outputs]; bf16 minima [8][32]. A weight is scale * nibble + minimum, so in a group of 32 inputs
//     y += scale * sum(nibble * x) + minimum * sum(x).
// The sums are f32; their order on the vector unit is not that of the software model, which this may differ from in the
// last bits (npu_array_mac.h).
#include <aie_api/aie.hpp>
#include <stdint.h>

constexpr unsigned K = 256, N = 32, GROUP = 32, NIBBLES = K * N / 2, SCALES = K / GROUP * N;

extern "C" {

void gemv_q4_zero(float *__restrict y)
{
    aie::store_v(y, aie::zeros<float, N>());
}

void gemv_q4_tile(const bfloat16 *__restrict x, const uint8_t *__restrict w, float *__restrict y)
{
    const bfloat16 *scales = (const bfloat16 *)(w + NIBBLES), *minima = scales + SCALES;
    aie::accum<accfloat, N> acc;
    acc.from_vector(aie::load_v<N>(y));
    for (unsigned g = 0; g < K / GROUP; g++) {
        aie::accum<accfloat, N> dot = aie::zeros<accfloat, N>();
        float sum = 0;
        for (unsigned k = 0; k < GROUP; k++) {
            const unsigned i = g * GROUP + k;
            const aie::vector<uint4, N> q = aie::load_v<N>((const uint4 *)(w + i * (N / 2)));
            const aie::vector<bfloat16, N> v = aie::to_float<bfloat16>(aie::unpack(aie::unpack(q)));
            dot = aie::mac(dot, v, x[i]);
            sum += (float)x[i];
        }
        const aie::vector<bfloat16, N> d = aie::load_v<N>(scales + g * N), m = aie::load_v<N>(minima + g * N);
        acc = aie::mac(acc, dot.template to_vector<bfloat16>(), d);
        acc = aie::mac(acc, m, (bfloat16)sum);
    }
    aie::store_v(y, acc.template to_vector<float>());
}

} // extern "C"
