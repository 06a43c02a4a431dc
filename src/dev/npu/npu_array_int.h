/* dev/npu/npu_array_int.h: what the interpreter of control text and the cores of the software array share. */
#ifndef OB_DEV_NPU_NPU_ARRAY_INT_H
#define OB_DEV_NPU_NPU_ARRAY_INT_H

#include "dev/npu/npu_array.h"
#include "dev/npu/npu_txn.h"

enum {
    OB_NPU_RTP_WORDS = 8,
    OB_NPU_VEC_HEADS = 512,
    OB_NPU_BATCH_STEPS = 64, /* steps along K that are gathered at a time where memory is not one run */
};

typedef struct task {
    uint32_t bd, times;
    bool token;
} task;

typedef struct channel {
    int col, dir;
    task queue[OB_SHIM_QUEUE_DEPTH];
    int head, n;
    uint32_t tokens, ctrl;
    bool active;       /* the transfer at the head has begun: what follows is its descriptor as it was read */
    ob_npu_bd bd;
    uint8_t *mem;
    uint64_t dev_addr; /* of mem */
    uint32_t pos;      /* words done */
} channel;

typedef struct array {
    ob_npu_design design; /* 0: no PDI loaded */
    channel ch[OB_NPU_COLS][2][OB_SHIM_CHANNELS]; /* [column][OB_S2MM, OB_MM2S][channel] */
    uint32_t bd[OB_NPU_COLS][OB_SHIM_BDS][8];
    uint32_t rtp[OB_NPU_COLS][OB_NPU_ROWS][OB_NPU_RTP_WORDS];
    uint32_t lock[OB_NPU_COLS][OB_NPU_ROWS];
    bool running, c_pending;    /* between parameters and the last output tile; an output tile waits to be taken */
    uint32_t n_steps, n_tiles;  /* along K; of output */
    uint32_t step, tile;
    union {
        int32_t i[OB_NPU_COLS][OB_NPU_BLOCK_M * OB_NPU_TILE_N]; /* a column's 128 x 128 */
        float f[OB_NPU_COLS][OB_NPU_TILE_N];
    } acc;
    uint8_t a_scratch[OB_NPU_ROWS][OB_NPU_BATCH_STEPS * OB_NPU_A_TILE_BYTES];
    uint8_t b_scratch[OB_NPU_BATCH_STEPS * OB_NPU_ROWS * OB_NPU_Q4_TILE_BYTES];
    struct {                    /* of vector operations: attention between its first part and its last */
        uint32_t n_head, n_head_kv, k_dim, v_dim, page_tok, k_type, v_type;
        float scale, softcap;
        float q[OB_NPU_VEC_HEAD_FLOATS], acc[OB_NPU_VEC_HEAD_FLOATS], max[OB_NPU_VEC_HEADS], sum[OB_NPU_VEC_HEADS];
        uint32_t n_seen;
    } attn;
    uint32_t vec_in[OB_NPU_VEC_WORDS], vec_out[OB_NPU_VEC_WORDS];
    const ob_npu_soft_bus *bus; /* of the run */
    ob_npu_soft_run *out;
    uint64_t n_bytes, n_macs;
} array;
_Static_assert(OB_NPU_ROWS * OB_NPU_Q4_TILE_BYTES >= OB_NPU_B_TILE_BYTES, "b_scratch");

ob_npu_soft_end ob_npu_array_fault(array *a, const char *fmt, ...) OB_PRINTF(2, 3);
uint64_t ob_npu_channel_left(const array *a, const channel *c, uint64_t want);
/* n bytes that are there; *out is in memory or in scratch. Valid until the next run. */
ob_npu_soft_end ob_npu_channel_read(array *a, channel *c, uint64_t n, uint8_t *scratch, const uint8_t **out);
ob_npu_soft_end ob_npu_channel_write(array *a, channel *c, uint64_t n, const void *src);

/* Let the cores and DMA do something: as many steps as data and space allow, but not more than one output tile.
 * *progress tells whether anything moved. */
ob_npu_soft_end ob_npu_cores_step(array *a, bool *progress);
/* The vector operation that core (0, 0) was told, if all its input is there. */
ob_npu_soft_end ob_npu_vector_step(array *a, bool *progress);

#endif
