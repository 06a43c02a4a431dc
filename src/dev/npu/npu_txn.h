/* dev/npu/npu_txn.h: control text (a TXN), which the NPU's controller carries out once for each command.
 *
 * Owns: the format: building it, walking it, checking it, printing it. Knows nothing of files (npu_elf.h), buffers or
 * kernels.
 *
 * A TXN is four header words (version and rows of the array; columns; number of ops; size in bytes), then ops of whole
 * words. A register's address is column << 25 | row << 20 | offset. Row 0 holds the shims (DMA to memory), row 1 the
 * memory tiles, rows 2 to 5 the cores. Everything is little-endian.
 */
#ifndef OB_DEV_NPU_NPU_TXN_H
#define OB_DEV_NPU_NPU_TXN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

enum {
    OB_TXN_WRITE = 0,      /* 6 words: op, 0, address (2), value, size */
    OB_TXN_BLOCKWRITE = 1, /* 4 + n: op, 0, address, size, values */
    OB_TXN_MASKWRITE = 3,  /* 7: op, 0, address (2), value, mask, size */
    OB_TXN_MASKPOLL = 4,   /* 7: the same; waits until (register & mask) == value */
    OB_TXN_NOOP = 5,       /* 1 */
    OB_TXN_PREEMPT = 6,    /* 1: op | level << 8 */
    OB_TXN_MASKPOLL_BUSY = 7,
    OB_TXN_LOADPDI = 8,    /* 4: op | id << 16, size, address (2) */
    OB_TXN_LOAD_PM = 9,    /* 2: op | count << 8, id */
    OB_TXN_TCT = 0x80,     /* 4: op, size, direction | row << 8 | column << 16,
                              rows << 8 | columns << 16 | channel << 24 */
    OB_TXN_DDR_PATCH = 0x81, /* 12: op, size, 0 x 4, register (2), argument (2), addend (2) */
    OB_TXN_READ_REGS = 0x82, /* these three: op, size, ... */
    OB_TXN_TIMER = 0x83,
    OB_TXN_MERGE_SYNC = 0x84,
};

enum {
    OB_TXN_VERSION = 0x00040100, /* 0.1, device generation 4 (AIE2P); the array's rows are the top byte */
    OB_TXN_HEADER_WORDS = 4,
    OB_TXN_MAX_BYTES = 16 << 20, /* of one text; a quarter of the smallest heap */
    OB_TXN_ROWS = 6, OB_TXN_COLS = 8, OB_TXN_MEM_ROWS = 1,
};

/* --- registers --- */

static inline uint32_t ob_npu_reg(int col, int row, uint32_t off)
{
    return (uint32_t)col << 25 | (uint32_t)row << 20 | off;
}
static inline int ob_npu_reg_col(uint64_t a) { return (int)(a >> 25); }
static inline int ob_npu_reg_row(uint64_t a) { return (int)(a >> 20 & 31); }
static inline uint32_t ob_npu_reg_off(uint64_t a) { return (uint32_t)(a & 0xFFFFF); }

enum {
    OB_SHIM_BD = 0x1D000, OB_SHIM_BD_BYTES = 32, OB_SHIM_BDS = 16, /* descriptors */
    OB_SHIM_S2MM_QUEUE = 0x1D204, OB_SHIM_MM2S_QUEUE = 0x1D214, OB_SHIM_QUEUE_STEP = 8, /* per channel */
    OB_SHIM_CHANNELS = 2, /* each way */
    OB_SHIM_QUEUE_DEPTH = 4,
};
enum { OB_S2MM = 0, OB_MM2S = 1 }; /* to memory, from memory */

/* What a register is for; a text from elsewhere may be held to some of them. */
typedef enum ob_npu_reg_class {
    OB_REG_NONE,        /* outside of the array, or not a register we know */
    OB_REG_SHIM_BD,
    OB_REG_SHIM_QUEUE,
    OB_REG_SHIM_CTRL,   /* channel control, status, task counters */
    OB_REG_LOCK,        /* of any tile */
    OB_REG_CORE_DATA,
    OB_REG_CORE_PROGRAM,
    OB_REG_MEM_DATA,
    OB_REG_CONFIG,      /* the rest of a tile: routes, DMA of memory and core tiles, core control, events */
    OB_REG_CLASSES
} ob_npu_reg_class;
ob_npu_reg_class ob_npu_reg_classify(uint64_t addr);
const char *ob_npu_reg_class_name(ob_npu_reg_class c);

/* --- shim buffer descriptors --- */

/* One transfer between memory and a stream: n_words in runs of d0 words, d1 runs d1_step apart, and so on; the whole
 * repeated it_wrap times, it_step apart, by tasks that repeat. Steps and sizes are in words; d0 0: all linear. */
typedef struct ob_npu_bd {
    uint32_t n_words;
    uint64_t addr;          /* bytes, 48 bits, as the shim sees it (0x80000000 added) */
    uint32_t d0, d0_step;   /* size at most 1023; step 1..2^20 */
    uint32_t d1, d1_step;
    uint32_t d2_step;
    uint32_t it_wrap, it_step; /* 1..64; 1..2^20 */
    uint32_t it_current;
} ob_npu_bd;
/* Into the 8 register words. False where a field does not fit. */
bool ob_npu_bd_encode(const ob_npu_bd *bd, uint32_t words[8]);
/* Every field as the hardware reads it. False: not valid (bit 25 of word 7), or it uses what we never do (locks,
 * packets, a next descriptor, a compressed or out-of-order stream). */
bool ob_npu_bd_decode(const uint32_t words[8], ob_npu_bd *bd);

/* --- building --- */

/* Where an address must be put into a text: words 1 and 2 of a descriptor, or the address of a LOADPDI. */
typedef enum ob_npu_patch_kind {
    OB_PATCH_SCALAR32 = 3,
    OB_PATCH_CTRL48 = 4,  /* control packet: words 2 and 3 */
    OB_PATCH_SHIM48 = 5,  /* descriptor: words 1 and 2, 48 bits, 0x80000000 added */
    OB_PATCH_ADDR64 = 8,  /* two words, as it is */
} ob_npu_patch_kind;
typedef struct ob_npu_patch {
    uint32_t off;      /* of the descriptor's first word, or of the address, in bytes from the text's start */
    uint16_t kind;     /* ob_npu_patch_kind */
    uint16_t arg;      /* whose address */
    uint64_t addend;   /* bytes */
    uint64_t n_bytes;  /* that the transfer covers; 0: unknown */
} ob_npu_patch;

typedef struct ob_npu_txn {
    ob_buf text, patches; /* words; ob_npu_patch */
    uint32_t n_ops;
    bool patch_ops;       /* also put DDR_PATCH ops, for controllers that patch by themselves (opcode 20) */
} ob_npu_txn;
/* Calls between init and finish may fail silently; finish tells. */
void ob_npu_txn_init(ob_npu_txn *t, bool patch_ops);
void ob_npu_txn_deinit(ob_npu_txn *t);
void ob_npu_txn_reset(ob_npu_txn *t); /* empty again, with the memory it has */
void ob_npu_txn_write(ob_npu_txn *t, uint32_t addr, uint32_t value);
void ob_npu_txn_blockwrite(ob_npu_txn *t, uint32_t addr, const uint32_t *words, uint32_t n);
void ob_npu_txn_maskwrite(ob_npu_txn *t, uint32_t addr, uint32_t value, uint32_t mask);
void ob_npu_txn_maskpoll(ob_npu_txn *t, uint32_t addr, uint32_t value, uint32_t mask);
void ob_npu_txn_noop(ob_npu_txn *t);
/* arg: whose address is patched in. */
void ob_npu_txn_load_pdi(ob_npu_txn *t, uint16_t id, uint32_t size, uint16_t arg);
/* Descriptor `id` of a column; its address is argument `arg` plus `addend` bytes. */
void ob_npu_txn_bd(ob_npu_txn *t, int col, int id, const ob_npu_bd *bd, uint16_t arg, uint64_t addend);
/* Start descriptor `id` on a channel, n_times (1..256) in all; with `token` its end can be waited for. */
void ob_npu_txn_push(ob_npu_txn *t, int col, int dir, int channel, int id, int n_times, bool token);
/* Wait for one token of the channel in each of n_cols columns from col on. */
void ob_npu_txn_wait(ob_npu_txn *t, int col, int n_cols, int dir, int channel);
/* Writes the header. The text is t->text afterwards. Errors: NO_MEMORY, LIMIT, INVALID (a field did not fit). */
OB_MUST_CHECK ob_status ob_npu_txn_finish(ob_npu_txn *t, ob_err *err);

/* Bytes from a patch's place on that it reads or writes; 0: an unknown kind. */
size_t ob_npu_patch_extent(uint16_t kind);
/* Put addresses into a text of n_bytes: args[i] is the device address of argument i (npu_mem.h's dev_addr). The text
 * may have been patched before. Errors: INVALID (an argument that is missing, an offset outside). */
OB_MUST_CHECK ob_status ob_npu_patch_apply(uint8_t *text, size_t n_bytes, const ob_npu_patch *patches, size_t n,
                                           const uint64_t *args, size_t n_args, ob_err *err);

/* --- walking --- */

typedef struct ob_npu_op {
    uint32_t index, off;    /* number of the op; its byte offset in the text */
    uint32_t code, n_words;
    uint64_t addr;          /* WRITE, BLOCKWRITE, MASK*, DDR_PATCH: the register; LOADPDI: of the PDI */
    uint32_t value, mask;   /* WRITE, MASK*; LOADPDI: size; LOAD_PM: id; PREEMPT: level */
    const uint32_t *data;   /* BLOCKWRITE; borrowed from the text, which is 4-byte aligned */
    uint32_t n_data;
    uint32_t id;            /* LOADPDI: of the PDI; DDR_PATCH: argument */
    uint64_t addend;        /* DDR_PATCH */
    int dir, row, col, n_rows, n_cols, channel; /* TCT */
} ob_npu_op;

typedef struct ob_npu_walk {
    const uint32_t *words;
    uint32_t n_words, at;   /* at: next op's first word */
    uint32_t n_ops, index;
    uint32_t rows, cols;    /* of the array the text is for */
} ob_npu_walk;
/* Any bytes. The header is checked: version, generation, size. */
OB_MUST_CHECK ob_status ob_npu_walk_begin(ob_npu_walk *w, const uint32_t *text, size_t n_words, ob_err *err);
/* *more false: after the last op, which must end where the text does. */
OB_MUST_CHECK ob_status ob_npu_walk_next(ob_npu_walk *w, ob_npu_op *op, bool *more, ob_err *err);

/* Every op's size and bounds, each register in the array, and its class in `classes` (bits 1 << ob_npu_reg_class);
 * for this program's array (6 rows, 8 columns). */
OB_MUST_CHECK ob_status ob_npu_txn_check(const uint32_t *text, size_t n_words, uint32_t classes, ob_err *err);
/* What our own kernels' control text touches. */
enum {
    OB_TXN_OWN_CLASSES = 1 << OB_REG_SHIM_BD | 1 << OB_REG_SHIM_QUEUE | 1 << OB_REG_SHIM_CTRL | 1 << OB_REG_LOCK |
    1 << OB_REG_CORE_DATA
};

/* Text of all ops, a line each, as `aiebu-dump -d` prints them. Stops with the error at a malformed op. */
OB_MUST_CHECK ob_status ob_npu_txn_print(const uint32_t *text, size_t n_words, ob_buf *out, ob_err *err);

#endif
