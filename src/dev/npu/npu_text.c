/* Control texts of our kernels.
 *
 * The shape of all of them: work comes in rounds of up to 64 output tiles; a round is one transfer a channel, with the
 * tiles as iterations of its descriptor, and its results' token is waited for two rounds later. So two descriptors a
 * channel take turns, no queue holds more than two transfers, and none is rewritten before the results that needed it
 * have arrived. */
#include "dev/npu/npu_text.h"

#include "base/math.h"

enum { ARG_A = 0, ARG_B = 1, ARG_C = 2 };
enum { BD_A = 0, BD_B = 2, BD_C = 4 }; /* and one more each: they take turns */
enum { CH_A = 1, CH_B = 0, CH_C = 0 }; /* weights come first in every column, so that a compiler numbers them alike */
enum { STEP_MAX_WORDS = 1 << 20, IT_MAX = 64, ROUNDS_IN_FLIGHT = 2 };

ob_npu_place ob_npu_place_default(void)
{
    return (ob_npu_place){
        .rtp_addr = OB_NPU_RTP_ADDR, .lock_addr = OB_NPU_RTP_LOCK_ADDR, .controller = OB_NPU_TOKEN_CONTROLLER};
}

ob_status ob_npu_text_init(ob_npu_txn *t, uint16_t id, uint32_t pdi_bytes, ob_err *err)
{
    ob_npu_txn_init(t, false);
    ob_npu_txn_load_pdi(t, id, pdi_bytes, 0);
    return ob_npu_txn_finish(t, err);
}

ob_status ob_npu_text_nop(ob_npu_txn *t, ob_err *err)
{
    ob_npu_txn_init(t, false);
    ob_npu_txn_noop(t);
    return ob_npu_txn_finish(t, err);
}

/* One run of n_words; fields that say "no dimension". */
static ob_npu_bd linear(uint64_t n_words)
{
    return (ob_npu_bd){
        .n_words = (uint32_t)n_words, .d0_step = 1, .d1_step = 1, .d2_step = 1, .it_wrap = 1, .it_step = 1};
}

/* Where a channel of results sends its tokens. */
static void set_controller(ob_npu_txn *t, const ob_npu_place *p, int channel)
{
    uint32_t ctrl = OB_SHIM_S2MM_QUEUE - 4 + (uint32_t)channel * OB_SHIM_QUEUE_STEP;
    for (int c = 0; c < OB_NPU_COLS; c++) ob_npu_txn_maskwrite(t, ob_npu_reg(c, 0, ctrl), p->controller << 8, 0x1F00);
}

/* Loop counts into every core, then its lock. */
static void set_parameters(ob_npu_txn *t, const ob_npu_place *p, int64_t n_steps, int64_t n_tiles)
{
    const uint32_t words[] = {(uint32_t)n_steps, (uint32_t)n_tiles};
    for (int c = 0; c < OB_NPU_COLS; c++)
        for (int r = 0; r < OB_NPU_ROWS; r++)
            ob_npu_txn_blockwrite(t, ob_npu_reg(c, OB_NPU_FIRST_CORE_ROW + r, p->rtp_addr), words, 2);
    for (int c = 0; c < OB_NPU_COLS; c++)
        for (int r = 0; r < OB_NPU_ROWS; r++)
            ob_npu_txn_write(t, ob_npu_reg(c, OB_NPU_FIRST_CORE_ROW + r, p->lock_addr), 1);
}

/* A transfer that is `times` iterations of bd. */
static void start(ob_npu_txn *t, int col, int dir, int channel, int id, const ob_npu_bd *bd, int times, uint16_t arg,
                  uint64_t addend)
{
    ob_npu_txn_bd(t, col, id, bd, arg, addend);
    ob_npu_txn_push(t, col, dir, channel, id, times, dir == OB_S2MM);
}

ob_status ob_npu_text_copy(ob_npu_txn *t, const ob_npu_place *p, uint64_t n_bytes, ob_err *err)
{
    ob_npu_txn_init(t, false);
    if (!n_bytes || n_bytes % 32 || n_bytes >> 34)
        return ob_err_set(err, OB_E_INVALID, "copy of %llu bytes", (unsigned long long)n_bytes);
    uint64_t part = n_bytes / OB_NPU_COLS;
    ob_npu_bd bd = linear(part / 4);
    set_controller(t, p, CH_C);
    for (int c = 0; c < OB_NPU_COLS; c++) {
        start(t, c, OB_S2MM, 0, 0, &bd, 1, 1, part * (uint64_t)c);
        start(t, c, OB_MM2S, 0, 1, &bd, 1, 0, part * (uint64_t)c);
    }
    ob_npu_txn_wait(t, 0, OB_NPU_COLS, OB_S2MM, 0);
    return ob_npu_txn_finish(t, err);
}

/* What differs between the GEMM and the GEMV; bytes unless said otherwise. */
typedef struct sizes {
    int64_t m, n_steps, n_blocks; /* blocks of 128 rows; steps along K; blocks of 1024 outputs */
    uint64_t a_strip, b_strip;    /* activations of a core row, weights of a column, for all of K */
    uint64_t a_row_offset;        /* between the activations of two core rows; 0: the same for all */
    uint64_t c_width;             /* words of a row of the whole product */
    uint32_t c_rows;              /* rows of a column's output tile, each 128 words */
    ob_npu_span a, b, c;          /* where the three begin */
} sizes;

/* Most output tiles that one round's descriptors can step over. */
static int64_t round_tiles(const sizes *z)
{
    uint64_t b_step = z->b_strip * OB_NPU_COLS / 4;
    return b_step > STEP_MAX_WORDS ? 1 : OB_MIN(z->n_blocks, IT_MAX);
}

static void start_round(ob_npu_txn *t, const sizes *z, int turn, int64_t mb, int64_t nb, int64_t n_tiles)
{
    ob_npu_bd a = linear(z->a_strip / 4), b = linear(z->b_strip / 4), c = linear((uint64_t)z->c_rows * OB_NPU_TILE_N);
    b.it_wrap = c.it_wrap = (uint32_t)n_tiles;
    if (n_tiles > 1) {
        b.it_step = (uint32_t)(z->b_strip * OB_NPU_COLS / 4);
        c.it_step = OB_NPU_BLOCK_N;
    }
    if (z->c_rows > 1) {
        c.d0 = OB_NPU_TILE_N;
        c.d1 = z->c_rows;
        c.d1_step = (uint32_t)z->c_width;
    }
    for (int col = 0; col < OB_NPU_COLS; col++) {
        uint64_t at =
            (uint64_t)mb * OB_NPU_BLOCK_M * z->c_width + (uint64_t)nb * OB_NPU_BLOCK_N + (uint64_t)col * OB_NPU_TILE_N;
        start(t, col, OB_S2MM, CH_C, BD_C + turn, &c, (int)n_tiles, z->c.arg, z->c.off + at * 4);
    }
    for (int r = 0; r < OB_NPU_ROWS; r++) {
        uint64_t at = (uint64_t)(mb * OB_NPU_ROWS + r) * z->a_row_offset;
        start(t, 2 * r, OB_MM2S, CH_A, BD_A + turn, &a, (int)n_tiles, z->a.arg, z->a.off + at);
    }
    for (int col = 0; col < OB_NPU_COLS; col++)
        start(t, col, OB_MM2S, CH_B, BD_B + turn, &b, (int)n_tiles, z->b.arg,
              z->b.off + (uint64_t)(nb * OB_NPU_COLS + col) * z->b_strip);
}

static ob_status product(ob_npu_txn *t, const ob_npu_place *p, const sizes *z, ob_err *err)
{
    if (z->a_strip >> 33 || z->b_strip >> 33 || z->c_width > STEP_MAX_WORDS || z->m * z->n_blocks > INT32_MAX)
        return ob_err_set(err, OB_E_LIMIT, "a product that the NPU's descriptors cannot hold");
    set_parameters(t, p, z->n_steps, z->m * z->n_blocks);
    int64_t per_round = round_tiles(z), n_rounds = 0;
    for (int64_t mb = 0; mb < z->m; mb++)
        for (int64_t nb = 0; nb < z->n_blocks; nb += per_round, n_rounds++) {
            if (n_rounds >= ROUNDS_IN_FLIGHT) ob_npu_txn_wait(t, 0, OB_NPU_COLS, OB_S2MM, CH_C);
            start_round(t, z, (int)(n_rounds % ROUNDS_IN_FLIGHT), mb, nb, OB_MIN(per_round, z->n_blocks - nb));
        }
    for (int64_t i = 0; i < OB_MIN(n_rounds, ROUNDS_IN_FLIGHT); i++) ob_npu_txn_wait(t, 0, OB_NPU_COLS, OB_S2MM, CH_C);
    return OB_OK;
}

/* A text that is one product. */
static ob_status one_product(ob_npu_txn *t, const ob_npu_place *p, const sizes *z, ob_err *err)
{
    set_controller(t, p, CH_C);
    OB_TRY(product(t, p, z, err));
    return ob_npu_txn_finish(t, err);
}

ob_status ob_npu_text_gemm(ob_npu_txn *t, const ob_npu_place *p, int64_t m, int64_t k, int64_t n, bool patch_ops,
                           ob_err *err)
{
    ob_npu_txn_init(t, patch_ops);
    if (m < 1 || m % OB_NPU_BLOCK_M || k < 1 || k % OB_NPU_TILE_K || n < 1 || n % OB_NPU_BLOCK_N)
        return ob_err_set(err, OB_E_INVALID, "GEMM of %lld x %lld x %lld: not whole tiles", (long long)m, (long long)k,
                          (long long)n);
    const sizes z = {.m = m / OB_NPU_BLOCK_M, .n_steps = k / OB_NPU_TILE_K, .n_blocks = n / OB_NPU_BLOCK_N,
                     .a_strip = (uint64_t)k * OB_NPU_TILE_M, .b_strip = (uint64_t)k * OB_NPU_TILE_N,
                     .a_row_offset = (uint64_t)k * OB_NPU_TILE_M, .c_width = (uint64_t)n, .c_rows = OB_NPU_BLOCK_M,
                     .a = {.arg = ARG_A}, .b = {.arg = ARG_B}, .c = {.arg = ARG_C}};
    return one_product(t, p, &z, err);
}

static ob_status gemv_sizes(int64_t k, int64_t n, const ob_npu_span *x, const ob_npu_span *w, const ob_npu_span *y,
                            sizes *z, ob_err *err)
{
    if (k < 1 || k % OB_NPU_Q4_TILE_K || n < 1 || n % OB_NPU_BLOCK_N)
        return ob_err_set(err, OB_E_INVALID, "GEMV of %lld x %lld: not whole tiles", (long long)k, (long long)n);
    const int64_t n_steps = k / OB_NPU_Q4_TILE_K;
    *z = (sizes){.m = 1, .n_steps = n_steps, .n_blocks = n / OB_NPU_BLOCK_N, .a_strip = (uint64_t)k * 2,
                 .b_strip = (uint64_t)n_steps * OB_NPU_ROWS * OB_NPU_Q4_TILE_BYTES, .c_width = (uint64_t)n, .c_rows = 1,
                 .a = *x, .b = *w, .c = *y};
    return OB_OK;
}

ob_status ob_npu_text_gemv(ob_npu_txn *t, const ob_npu_place *p, int64_t k, int64_t n, bool patch_ops, ob_err *err)
{
    sizes z;
    ob_npu_txn_init(t, patch_ops);
    OB_TRY(gemv_sizes(k, n, &(ob_npu_span){.arg = ARG_A}, &(ob_npu_span){.arg = ARG_B}, &(ob_npu_span){.arg = ARG_C},
                      &z, err));
    return one_product(t, p, &z, err);
}

/* ---- parts of a step --------------------------------------------------------------------------- */

void ob_npu_text_step_begin(ob_npu_txn *t, const ob_npu_place *p)
{
    ob_npu_txn_reset(t);
    set_controller(t, p, CH_C);
}

ob_status ob_npu_text_step_gemv(ob_npu_txn *t, const ob_npu_place *p, int64_t k, int64_t n, const ob_npu_span *x,
                                const ob_npu_span *w, const ob_npu_span *y, ob_err *err)
{
    sizes z;
    OB_TRY(gemv_sizes(k, n, x, w, y, &z, err));
    return product(t, p, &z, err);
}

void ob_npu_text_step_vec(ob_npu_txn *t, const ob_npu_place *p, ob_npu_vec op, const uint32_t params[5],
                          const ob_npu_span *in, int n_in, const ob_npu_span *out)
{
    enum { CH_VEC = 0, BD_VEC = 8, BD_VEC_OUT = BD_VEC + OB_SHIM_QUEUE_DEPTH };
    uint32_t words[8] = {0, out->n_words * (out->n_runs ? out->n_runs : 1), (uint32_t)op};
    for (int i = 0; i < n_in; i++) words[0] += in[i].n_words;
    for (int i = 0; i < 5; i++) words[3 + i] = params[i];
    ob_npu_txn_blockwrite(t, ob_npu_reg(0, OB_NPU_FIRST_CORE_ROW, p->rtp_addr), words, 8);
    ob_npu_txn_write(t, ob_npu_reg(0, OB_NPU_FIRST_CORE_ROW, p->lock_addr), OB_NPU_LOCK_VECTOR);
    ob_npu_bd bd = linear(words[1]);
    if (out->n_runs > 1) {
        bd.d0 = out->n_words;
        bd.d1 = out->n_runs;
        bd.d1_step = out->run_step;
    }
    start(t, 0, OB_S2MM, CH_VEC, BD_VEC_OUT, &bd, 1, out->arg, out->off);
    for (int i = 0; i < n_in; i++) {
        bd = linear(in[i].n_words);
        start(t, 0, OB_MM2S, CH_VEC, BD_VEC + i, &bd, 1, in[i].arg, in[i].off);
    }
    ob_npu_txn_wait(t, 0, 1, OB_S2MM, CH_VEC);
}
