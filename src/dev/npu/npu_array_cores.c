/* The fixed-function designs of the software array, in lockstep over all cores: what the real cores do in parallel is
 * done column after column here, with the same streams in the same order. */
#include <string.h>

#include "base/math.h"
#include "dev/npu/npu_array_int.h"
#include "dev/npu/npu_array_mac.h"

/* Streams of the GEMM and the GEMV: channel 1 of MM2S in every second column feeds one row of cores with activations,
 * channel 0 of MM2S in every column its cores with weights, channel 0 of S2MM takes a column's results. */
static channel *a_channel(array *a, int row) { return &a->ch[2 * row][OB_MM2S][1]; }
static channel *b_channel(array *a, int col) { return &a->ch[col][OB_MM2S][0]; }
static channel *c_channel(array *a, int col) { return &a->ch[col][OB_S2MM][0]; }

static ob_npu_soft_end copy_step(array *a, bool *progress)
{
    for (int c = 0; c < OB_NPU_COLS; c++) {
        channel *in = &a->ch[c][OB_MM2S][0], *out = &a->ch[c][OB_S2MM][0];
        uint64_t n = ob_npu_channel_left(a, in, sizeof a->b_scratch);
        n = ob_npu_channel_left(a, out, n);
        if (!n) continue;
        const uint8_t *p;
        ob_npu_soft_end end = ob_npu_channel_read(a, in, n, a->b_scratch, &p);
        if (end == OB_NPU_RUN_DONE) end = ob_npu_channel_write(a, out, n, p);
        if (end != OB_NPU_RUN_DONE) return end;
        *progress = true;
    }
    return OB_NPU_RUN_DONE;
}

/* Cores that wait for their parameters take them once all have been given some; they must agree, else the broadcast
 * streams stand still. */
static bool start_cores(array *a)
{
    for (int c = 0; c < OB_NPU_COLS; c++)
        for (int r = 0; r < OB_NPU_ROWS; r++)
            if (a->lock[c][r] != 1 || memcmp(a->rtp[c][r], a->rtp[0][0], 2 * sizeof a->rtp[0][0][0]) != 0) return false;
    memset(a->lock, 0, sizeof a->lock);
    a->n_steps = a->rtp[0][0][0];
    a->n_tiles = a->rtp[0][0][1];
    a->step = a->tile = 0;
    a->running = a->n_steps && a->n_tiles;
    return a->running;
}

/* A whole output tile leaves through the columns' S2MM channels. */
static ob_npu_soft_end drain(array *a, uint64_t bytes, bool *progress)
{
    for (int c = 0; c < OB_NPU_COLS; c++)
        if (ob_npu_channel_left(a, c_channel(a, c), bytes) < bytes) return OB_NPU_RUN_DONE;
    for (int c = 0; c < OB_NPU_COLS; c++) {
        const void *src = a->design == OB_NPU_DESIGN_GEMM_I8 ? (const void *)a->acc.i[c] : (const void *)a->acc.f[c];
        ob_npu_soft_end end = ob_npu_channel_write(a, c_channel(a, c), bytes, src);
        if (end != OB_NPU_RUN_DONE) return end;
    }
    a->c_pending = false;
    a->running = ++a->tile < a->n_tiles;
    a->step = 0;
    *progress = true;
    return OB_NPU_RUN_DONE;
}

typedef struct stream_sizes {
    uint32_t a, b, c; /* bytes: of a step of a row, of a step of a column, of an output tile of a column */
} stream_sizes;

/* Steps for which all channels have data. */
static uint64_t steps_ready(array *a, const stream_sizes *z)
{
    uint64_t n = OB_MIN(a->n_steps - a->step, OB_NPU_BATCH_STEPS);
    for (int r = 0; r < OB_NPU_ROWS; r++) n = OB_MIN(n, ob_npu_channel_left(a, a_channel(a, r), n * z->a) / z->a);
    for (int c = 0; c < OB_NPU_COLS; c++) n = OB_MIN(n, ob_npu_channel_left(a, b_channel(a, c), n * z->b) / z->b);
    return n;
}

static void multiply(array *a, int col, const uint8_t *const x[OB_NPU_ROWS], const uint8_t *w, uint64_t n)
{
    if (a->design == OB_NPU_DESIGN_GEMM_I8) {
        const int8_t *rows[OB_NPU_ROWS];
        for (int r = 0; r < OB_NPU_ROWS; r++) rows[r] = (const int8_t *)x[r];
        ob_npu_mac_i8(rows, (const int8_t *)w, (int64_t)n, a->acc.i[col]);
        a->n_macs += n * OB_NPU_BLOCK_M * OB_NPU_TILE_N * OB_NPU_TILE_K;
        return;
    }
    for (uint64_t s = 0; s < n; s++)
        for (int r = 0; r < OB_NPU_ROWS; r++) {
            uint16_t v[OB_NPU_Q4_TILE_K];
            memcpy(v, x[r] + s * sizeof v, sizeof v);
            ob_npu_mac_q4(v, w + (s * OB_NPU_ROWS + (uint64_t)r) * OB_NPU_Q4_TILE_BYTES,
                          a->acc.f[col] + r * OB_NPU_Q4_TILE_N);
        }
    a->n_macs += n * OB_NPU_ROWS * OB_NPU_Q4_TILE_N * OB_NPU_Q4_TILE_K;
}

static ob_npu_soft_end multiply_step(array *a, bool *progress)
{
    static const stream_sizes gemm = {OB_NPU_A_TILE_BYTES, OB_NPU_B_TILE_BYTES, OB_NPU_BLOCK_M * OB_NPU_TILE_N * 4};
    static const stream_sizes gemv = {OB_NPU_Q4_TILE_K * 2, OB_NPU_ROWS * OB_NPU_Q4_TILE_BYTES, OB_NPU_TILE_N * 4};
    const stream_sizes *z = a->design == OB_NPU_DESIGN_GEMM_I8 ? &gemm : &gemv;
    if (!a->running && !start_cores(a)) return OB_NPU_RUN_DONE;
    if (a->c_pending) return drain(a, z->c, progress);
    uint64_t n = steps_ready(a, z);
    if (!n) return OB_NPU_RUN_DONE;
    if (a->step == 0) memset(&a->acc, 0, sizeof a->acc);
    const uint8_t *x[OB_NPU_ROWS], *w;
    for (int r = 0; r < OB_NPU_ROWS; r++) {
        ob_npu_soft_end end = ob_npu_channel_read(a, a_channel(a, r), n * z->a, a->a_scratch[r], &x[r]);
        if (end != OB_NPU_RUN_DONE) return end;
    }
    for (int c = 0; c < OB_NPU_COLS; c++) {
        ob_npu_soft_end end = ob_npu_channel_read(a, b_channel(a, c), n * z->b, a->b_scratch, &w);
        if (end != OB_NPU_RUN_DONE) return end;
        multiply(a, c, x, w, n);
    }
    a->step += (uint32_t)n;
    a->c_pending = a->step == a->n_steps;
    *progress = true;
    return OB_NPU_RUN_DONE;
}

ob_npu_soft_end ob_npu_cores_step(array *a, bool *progress)
{
    if (a->design == OB_NPU_DESIGN_COPY) return copy_step(a, progress);
    if (a->design == OB_NPU_DESIGN_STEP && a->lock[0][0] == OB_NPU_LOCK_VECTOR && !a->running)
        return ob_npu_vector_step(a, progress);
    return multiply_step(a, progress);
}
