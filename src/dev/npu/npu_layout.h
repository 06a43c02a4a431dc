/* dev/npu/npu_layout.h: how matrices lie in memory for the array. Header only, knows nothing of devices.
 *
 * The array is 4 rows x 8 columns of cores. A core multiplies a 32 x 64 piece of activations by a 64 x 128 piece of
 * weights in 8 x 8 x 8 steps; all cores together make 128 rows x 1024 columns of the product at a time, along K in
 * steps of 64. So M is padded to 128, K to 64 and N to 1024, with zeros.
 *
 * i8c, weights ("layout id" OB_NPU_LAYOUT_I8C): W is N outputs of K inputs, int8. Blocks of 1024 outputs follow each
 * other; in a block, the 8 columns' strips of 128 outputs; in a strip, along K, one tile of 64 x 128 = 8 KiB after
 * the other; in a tile, 8 x 16 micro-tiles (k outer), each 8 x 8 bytes (k outer). A column reads its strip with one
 * linear transfer: long DRAM bursts are what the layout is for.
 *
 * i8r, activations: blocks of 128 rows; in a block, the 4 core rows' strips of 32 rows; in a strip, along K, tiles of
 * 32 x 64 = 2 KiB; in a tile, 4 x 8 micro-tiles (row outer) of 8 x 8 bytes (row outer).
 *
 * The product is int32, row-major, [M][N] with both padded.
 *
 * q4g32, weights for decode (OB_NPU_LAYOUT_Q4G32): tiles of 32 outputs x 256 inputs, 5,120 bytes: nibbles
 * [256 k][16 bytes], the low nibble is the even output; then bf16 scales [8 groups of 32 k][32 outputs]; then bf16
 * minima in the same order. A weight is scale * nibble + minimum. Blocks of 1024 outputs; in a block the 8 columns'
 * strips; in a strip, along K, the tiles of the column's 4 cores beside each other (20,480 bytes).
 */
#ifndef OB_DEV_NPU_NPU_LAYOUT_H
#define OB_DEV_NPU_NPU_LAYOUT_H

#include <stdint.h>

#define OB_NPU_LAYOUT_I8C "i8c-1"
#define OB_NPU_LAYOUT_Q4G32 "q4g32-1"

enum {
    OB_NPU_ROWS = 4,
    OB_NPU_COLS = 8,
    OB_NPU_MICRO = 8,
    OB_NPU_TILE_M = 32,
    OB_NPU_TILE_K = 64,
    OB_NPU_TILE_N = 128,
    OB_NPU_BLOCK_M = OB_NPU_ROWS * OB_NPU_TILE_M, /* 128 */
    OB_NPU_BLOCK_N = OB_NPU_COLS * OB_NPU_TILE_N, /* 1024 */
    OB_NPU_MAX_M = 512,                           /* rows of one product */
    OB_NPU_A_TILE_BYTES = OB_NPU_TILE_M * OB_NPU_TILE_K,     /* 2048 */
    OB_NPU_B_TILE_BYTES = OB_NPU_TILE_K * OB_NPU_TILE_N,     /* 8192 */
    OB_NPU_C_TILE_BYTES = OB_NPU_TILE_M * OB_NPU_TILE_N * 4, /* 16384 */
    OB_NPU_Q4_TILE_N = 32,
    OB_NPU_Q4_TILE_K = 256,
    OB_NPU_Q4_GROUP = 32,
    OB_NPU_Q4_NIBBLE_BYTES = OB_NPU_Q4_TILE_N * OB_NPU_Q4_TILE_K / 2,                  /* 4096 */
    OB_NPU_Q4_SCALES = OB_NPU_Q4_TILE_N * OB_NPU_Q4_TILE_K / OB_NPU_Q4_GROUP,          /* 256 */
    OB_NPU_Q4_TILE_BYTES = OB_NPU_Q4_NIBBLE_BYTES + 2 * 2 * OB_NPU_Q4_SCALES,          /* 5120 */
};

/* How our kernels are told what to do (kernels/npu says the same to the compiler, and a kernel set's manifest repeats
 * it): words in each core's memory, then 1 into a lock; and the controller that DMA's tokens are routed to. */
enum {
    OB_NPU_RTP_ADDR = 0xF000, /* [steps along K][output tiles] */
    OB_NPU_LOCK_BASE = 0x1F000,     /* of a core's 16 locks, 16 bytes each */
    OB_NPU_RTP_LOCK_ADDR = 0x1F0F0, /* lock 15 */
    OB_NPU_TOKEN_CONTROLLER = 15,
    OB_NPU_FIRST_CORE_ROW = 2,
};

static inline int64_t ob_npu_pad(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
/* Rows of a product: 128 for up to 128 tokens, else 512 (n_rows at most OB_NPU_MAX_M). */
static inline int64_t ob_npu_pad_m(int64_t n_rows) { return n_rows <= OB_NPU_BLOCK_M ? OB_NPU_BLOCK_M : OB_NPU_MAX_M; }
static inline int64_t ob_npu_pad_k(int64_t k) { return ob_npu_pad(k, OB_NPU_TILE_K); }
static inline int64_t ob_npu_pad_n(int64_t n) { return ob_npu_pad(n, OB_NPU_BLOCK_N); }
static inline int64_t ob_npu_q4_pad_k(int64_t k) { return ob_npu_pad(k, OB_NPU_Q4_TILE_K); }

/* Bytes of a packed weight of n outputs of k inputs (not padded counts). */
static inline uint64_t ob_npu_i8c_bytes(int64_t k, int64_t n)
{
    return (uint64_t)ob_npu_pad_k(k) * (uint64_t)ob_npu_pad_n(n);
}
static inline uint64_t ob_npu_q4_bytes(int64_t k, int64_t n)
{
    return (uint64_t)ob_npu_q4_pad_k(k) / OB_NPU_Q4_TILE_K * (uint64_t)(ob_npu_pad_n(n) / OB_NPU_Q4_TILE_N) *
           OB_NPU_Q4_TILE_BYTES;
}

/* Place of weight (input k, output n) in an i8c matrix; k_pad = ob_npu_pad_k(K). */
static inline uint64_t ob_npu_i8c_at(int64_t k_pad, int64_t k, int64_t n)
{
    uint64_t strip = (uint64_t)(n / OB_NPU_TILE_N); /* block and column in one: strips follow each other */
    uint64_t tile = strip * (uint64_t)(k_pad / OB_NPU_TILE_K) + (uint64_t)(k / OB_NPU_TILE_K);
    uint64_t kt = (uint64_t)(k % OB_NPU_TILE_K), nt = (uint64_t)(n % OB_NPU_TILE_N);
    return tile * OB_NPU_B_TILE_BYTES + ((kt / 8) * (OB_NPU_TILE_N / 8) + nt / 8) * 64 + (kt % 8) * 8 + nt % 8;
}

/* Place of activation (row m, input k) in an i8r matrix. */
static inline uint64_t ob_npu_i8r_at(int64_t k_pad, int64_t m, int64_t k)
{
    uint64_t tile = (uint64_t)(m / OB_NPU_TILE_M) * (uint64_t)(k_pad / OB_NPU_TILE_K) + (uint64_t)(k / OB_NPU_TILE_K);
    uint64_t mt = (uint64_t)(m % OB_NPU_TILE_M), kt = (uint64_t)(k % OB_NPU_TILE_K);
    return tile * OB_NPU_A_TILE_BYTES + ((mt / 8) * (OB_NPU_TILE_K / 8) + kt / 8) * 64 + (mt % 8) * 8 + kt % 8;
}

/* First byte of the q4g32 tile that holds (input k, output n); k_pad = ob_npu_q4_pad_k(K). */
static inline uint64_t ob_npu_q4_tile_at(int64_t k_pad, int64_t k, int64_t n)
{
    uint64_t strip = (uint64_t)(n / OB_NPU_TILE_N), core = (uint64_t)(n % OB_NPU_TILE_N / OB_NPU_Q4_TILE_N);
    uint64_t step = strip * (uint64_t)(k_pad / OB_NPU_Q4_TILE_K) + (uint64_t)(k / OB_NPU_Q4_TILE_K);
    return (step * OB_NPU_ROWS + core) * OB_NPU_Q4_TILE_BYTES;
}
/* Inside a tile: the byte with the nibble of (k, n), which is its high half for odd n; and the place of the bf16
 * scale; the minimum is OB_NPU_Q4_SCALES * 2 bytes further. */
static inline uint32_t ob_npu_q4_nibble_at(int64_t k, int64_t n)
{
    return (uint32_t)(k % OB_NPU_Q4_TILE_K * (OB_NPU_Q4_TILE_N / 2) + n % OB_NPU_Q4_TILE_N / 2);
}
static inline uint32_t ob_npu_q4_scale_at(int64_t k, int64_t n)
{
    return (uint32_t)(OB_NPU_Q4_NIBBLE_BYTES +
                      2 * (k % OB_NPU_Q4_TILE_K / OB_NPU_Q4_GROUP * OB_NPU_Q4_TILE_N + n % OB_NPU_Q4_TILE_N));
}

#endif
