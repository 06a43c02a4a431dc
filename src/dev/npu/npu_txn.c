/* Control text: builder, walker, checks. The printer is npu_txn_print.c. */
#include "dev/npu/npu_txn.h"

#include <string.h>

#include "base/math.h"

/* --- registers ---------------------------------------------------------------------------------- */

typedef struct reg_range {
    uint32_t first, last; /* offsets in a tile, inclusive */
    ob_npu_reg_class cls;
} reg_range;

/* AIE2P's register map, as coarse as the classes are. */
static const reg_range shim_ranges[] = {
    {0x14000, 0x140FF, OB_REG_LOCK},
    {OB_SHIM_BD, OB_SHIM_BD + OB_SHIM_BDS * OB_SHIM_BD_BYTES - 1, OB_REG_SHIM_BD},
    {0x1D204, 0x1D207, OB_REG_SHIM_QUEUE},
    {0x1D20C, 0x1D20F, OB_REG_SHIM_QUEUE},
    {0x1D214, 0x1D217, OB_REG_SHIM_QUEUE},
    {0x1D21C, 0x1D21F, OB_REG_SHIM_QUEUE},
    {0x1D200, 0x1D22F, OB_REG_SHIM_CTRL},
    {0x14100, 0x3FFFF, OB_REG_CONFIG},
};
static const reg_range mem_ranges[] = {
    {0x00000, 0x7FFFF, OB_REG_MEM_DATA},
    {0xC0000, 0xC03FF, OB_REG_LOCK},
    {0x80000, 0xFFFFF, OB_REG_CONFIG},
};
static const reg_range core_ranges[] = {
    {0x00000, 0x0FFFF, OB_REG_CORE_DATA},
    {0x1F000, 0x1F0FF, OB_REG_LOCK},
    {0x20000, 0x23FFF, OB_REG_CORE_PROGRAM},
    {0x10000, 0x3FFFF, OB_REG_CONFIG},
};

ob_npu_reg_class ob_npu_reg_classify(uint64_t addr)
{
    if (addr >> 32 || addr & 3 || ob_npu_reg_col(addr) >= OB_TXN_COLS) return OB_REG_NONE;
    int row = ob_npu_reg_row(addr);
    if (row >= OB_TXN_ROWS) return OB_REG_NONE;
    const reg_range *r = row == 0 ? shim_ranges : row <= OB_TXN_MEM_ROWS ? mem_ranges : core_ranges;
    size_t n = row == 0                 ? OB_COUNT(shim_ranges)
               : row <= OB_TXN_MEM_ROWS ? OB_COUNT(mem_ranges)
                                        : OB_COUNT(core_ranges);
    uint32_t off = ob_npu_reg_off(addr);
    for (size_t i = 0; i < n; i++)
        if (off >= r[i].first && off <= r[i].last) return r[i].cls;
    return OB_REG_NONE;
}

const char *ob_npu_reg_class_name(ob_npu_reg_class c)
{
    static const char *const names[OB_REG_CLASSES] = {
        "unknown register", "shim descriptor", "shim queue", "shim control", "lock",
        "core data", "core program", "memory tile data", "configuration",
    };
    return (unsigned)c < OB_REG_CLASSES ? names[c] : names[0];
}

/* --- descriptors -------------------------------------------------------------------------------- */

/* Bits of the words, AIE2P shim: 3 and 4: wrap [29:20], step - 1 [19:0]; 4: burst [31:30] (3: 512 bytes); 5: AxCACHE
 * [27:24] (2 lets the interconnect widen transfers), D2 step - 1; 6: iteration current [31:26], wrap - 1 [25:20],
 * step - 1; 7: valid [25], use next [26], acquire enable [12]. */
enum { STEP_MAX = 1 << 20, WRAP_MAX = 1023, IT_WRAP_MAX = 64 };
#define BD_VALID (1u << 25)

static bool step_fits(uint32_t step) { return step >= 1 && step <= STEP_MAX; }

bool ob_npu_bd_encode(const ob_npu_bd *bd, uint32_t w[8])
{
    if (!bd->n_words || bd->addr & 3 || bd->addr >> 48) return false;
    if (bd->d0 > WRAP_MAX || bd->d1 > WRAP_MAX) return false;
    if (!step_fits(bd->d0_step) || !step_fits(bd->d1_step) || !step_fits(bd->d2_step) || !step_fits(bd->it_step))
        return false;
    if (bd->it_wrap < 1 || bd->it_wrap > IT_WRAP_MAX || bd->it_current >= IT_WRAP_MAX) return false;
    w[0] = bd->n_words;
    w[1] = (uint32_t)bd->addr;
    w[2] = (uint32_t)(bd->addr >> 32);
    w[3] = bd->d0 << 20 | (bd->d0_step - 1);
    w[4] = 3u << 30 | bd->d1 << 20 | (bd->d1_step - 1);
    w[5] = 2u << 24 | (bd->d2_step - 1);
    w[6] = bd->it_current << 26 | (bd->it_wrap - 1) << 20 | (bd->it_step - 1);
    w[7] = BD_VALID;
    return true;
}

bool ob_npu_bd_decode(const uint32_t w[8], ob_npu_bd *bd)
{
    *bd = (ob_npu_bd){
        .n_words = w[0],
        .addr = (uint64_t)(w[2] & 0xFFFF) << 32 | (w[1] & ~3u),
        .d0 = w[3] >> 20 & 0x3FF,
        .d0_step = (w[3] & 0xFFFFF) + 1,
        .d1 = w[4] >> 20 & 0x3FF,
        .d1_step = (w[4] & 0xFFFFF) + 1,
        .d2_step = (w[5] & 0xFFFFF) + 1,
        .it_wrap = (w[6] >> 20 & 0x3F) + 1,
        .it_step = (w[6] & 0xFFFFF) + 1,
        .it_current = w[6] >> 26,
    };
    bool packet = w[2] & (1u << 30), next = w[7] & (1u << 26), acquire = w[7] & (1u << 12);
    bool release = (w[7] >> 18 & 0x7F) != 0;
    return (w[7] & BD_VALID) && !packet && !next && !acquire && !release;
}

/* --- building ----------------------------------------------------------------------------------- */

void ob_npu_txn_init(ob_npu_txn *t, bool patch_ops)
{
    memset(t, 0, sizeof *t);
    ob_buf_init(&t->text, OB_TXN_MAX_BYTES);
    ob_buf_init(&t->patches, OB_TXN_MAX_BYTES);
    t->patch_ops = patch_ops;
    ob_npu_txn_reset(t);
}

void ob_npu_txn_reset(ob_npu_txn *t)
{
    static const uint32_t header[OB_TXN_HEADER_WORDS];
    ob_buf_clear(&t->text);
    ob_buf_clear(&t->patches);
    t->n_ops = 0;
    ob_buf_add(&t->text, header, sizeof header); /* filled in by finish */
}

void ob_npu_txn_deinit(ob_npu_txn *t)
{
    ob_buf_deinit(&t->text);
    ob_buf_deinit(&t->patches);
}

static void add_op(ob_npu_txn *t, const uint32_t *words, uint32_t n)
{
    ob_buf_add(&t->text, words, (size_t)n * 4);
    t->n_ops++;
}

/* A field that does not fit spoils the whole text. */
static void spoil(ob_npu_txn *t)
{
    if (!t->text.failed) t->text.failed = OB_E_INVALID;
}

void ob_npu_txn_write(ob_npu_txn *t, uint32_t addr, uint32_t value)
{
    add_op(t, (const uint32_t[]){OB_TXN_WRITE, 0, addr, 0, value, 24}, 6);
}

void ob_npu_txn_blockwrite(ob_npu_txn *t, uint32_t addr, const uint32_t *words, uint32_t n)
{
    if (!n || n > OB_TXN_MAX_BYTES / 4) {
        spoil(t);
        return;
    }
    add_op(t, (const uint32_t[]){OB_TXN_BLOCKWRITE, 0, addr, 16 + 4 * n}, 4);
    ob_buf_add(&t->text, words, (size_t)n * 4);
}

static void add_masked(ob_npu_txn *t, uint32_t op, uint32_t addr, uint32_t value, uint32_t mask)
{
    add_op(t, (const uint32_t[]){op, 0, addr, 0, value, mask, 28}, 7);
}

void ob_npu_txn_maskwrite(ob_npu_txn *t, uint32_t addr, uint32_t value, uint32_t mask)
{
    add_masked(t, OB_TXN_MASKWRITE, addr, value, mask);
}

void ob_npu_txn_maskpoll(ob_npu_txn *t, uint32_t addr, uint32_t value, uint32_t mask)
{
    add_masked(t, OB_TXN_MASKPOLL, addr, value, mask);
}

void ob_npu_txn_noop(ob_npu_txn *t) { add_op(t, (const uint32_t[]){OB_TXN_NOOP}, 1); }

static void add_patch(ob_npu_txn *t, ob_npu_patch p) { ob_buf_add(&t->patches, &p, sizeof p); }

void ob_npu_txn_load_pdi(ob_npu_txn *t, uint16_t id, uint32_t size, uint16_t arg)
{
    add_patch(t,
              (ob_npu_patch){.off = (uint32_t)t->text.len + 8, .kind = OB_PATCH_ADDR64, .arg = arg, .n_bytes = size});
    add_op(t, (const uint32_t[]){OB_TXN_LOADPDI | (uint32_t)id << 16, size, 0, 0}, 4);
}

void ob_npu_txn_bd(ob_npu_txn *t, int col, int id, const ob_npu_bd *bd, uint16_t arg, uint64_t addend)
{
    ob_npu_bd d = *bd;
    d.addr = 0;
    uint32_t w[8], reg = ob_npu_reg(col, 0, OB_SHIM_BD + (uint32_t)id * OB_SHIM_BD_BYTES);
    if (col < 0 || col >= OB_TXN_COLS || id < 0 || id >= OB_SHIM_BDS || addend & 3 || !ob_npu_bd_encode(&d, w)) {
        spoil(t);
        return;
    }
    add_patch(t, (ob_npu_patch){.off = (uint32_t)t->text.len + 16,
                                .kind = OB_PATCH_SHIM48,
                                .arg = arg,
                                .addend = addend,
                                .n_bytes = (uint64_t)bd->n_words * 4});
    ob_npu_txn_blockwrite(t, reg, w, 8);
    if (!t->patch_ops) return;
    uint32_t op[12] = {OB_TXN_DDR_PATCH, sizeof op};
    op[6] = reg + 4;
    op[8] = arg;
    op[10] = (uint32_t)addend;
    op[11] = (uint32_t)(addend >> 32);
    add_op(t, op, 12);
}

void ob_npu_txn_push(ob_npu_txn *t, int col, int dir, int channel, int id, int n_times, bool token)
{
    if (n_times < 1 || n_times > 256 || channel < 0 || channel >= OB_SHIM_CHANNELS || id < 0 || id >= OB_SHIM_BDS) {
        spoil(t);
        return;
    }
    uint32_t queue =
        (dir == OB_S2MM ? OB_SHIM_S2MM_QUEUE : OB_SHIM_MM2S_QUEUE) + (uint32_t)channel * OB_SHIM_QUEUE_STEP;
    ob_npu_txn_write(t, ob_npu_reg(col, 0, queue),
                     (uint32_t)id | (uint32_t)(n_times - 1) << 16 | (uint32_t)token << 31);
}

void ob_npu_txn_wait(ob_npu_txn *t, int col, int n_cols, int dir, int channel)
{
    add_op(t, (const uint32_t[]){OB_TXN_TCT, 16, (uint32_t)dir | (uint32_t)col << 16,
                                 1u << 8 | (uint32_t)n_cols << 16 | (uint32_t)channel << 24}, 4);
}

ob_status ob_npu_txn_finish(ob_npu_txn *t, ob_err *err)
{
    if (t->text.failed == OB_E_INVALID) return ob_err_set(err, OB_E_INVALID, "control text: a field is out of range");
    OB_TRY(ob_buf_status(&t->text, err));
    OB_TRY(ob_buf_status(&t->patches, err));
    const uint32_t header[OB_TXN_HEADER_WORDS] = {
        (uint32_t)OB_TXN_ROWS << 24 | OB_TXN_VERSION,
        OB_TXN_MEM_ROWS << 8 | OB_TXN_COLS,
        t->n_ops,
        (uint32_t)t->text.len,
    };
    memcpy(t->text.data, header, sizeof header);
    return OB_OK;
}

/* --- patching ----------------------------------------------------------------------------------- */

static uint32_t get_word(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, 4);
    return w;
}

static void set_word(uint8_t *p, uint32_t w) { memcpy(p, &w, 4); }

enum { SHIM_BASE_BIT = 31 }; /* the shim sees memory from 0x80000000 on */

size_t ob_npu_patch_extent(uint16_t kind)
{
    switch (kind) {
    case OB_PATCH_SCALAR32: return 4;
    case OB_PATCH_CTRL48: return 16;
    case OB_PATCH_SHIM48: return 12;
    case OB_PATCH_ADDR64: return 8;
    default: return 0;
    }
}

ob_status ob_npu_patch_apply(uint8_t *text, size_t n_bytes, const ob_npu_patch *patches, size_t n, const uint64_t *args,
                             size_t n_args, ob_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const ob_npu_patch *p = &patches[i];
        size_t extent = ob_npu_patch_extent(p->kind);
        if (!extent) return ob_err_set(err, OB_E_UNSUPPORTED, "control text: patch %zu is of kind %u", i, p->kind);
        if (p->off & 3 || p->off > n_bytes || extent > n_bytes - p->off)
            return ob_err_set(err, OB_E_INVALID, "control text: patch %zu at byte %u is outside of %zu bytes", i,
                              p->off, n_bytes);
        if (p->arg >= n_args)
            return ob_err_set(err, OB_E_INVALID, "control text: patch %zu wants argument %u of %zu", i, p->arg, n_args);
        uint64_t addr = args[p->arg] + p->addend, shim = addr + (1ull << SHIM_BASE_BIT);
        uint8_t *at = text + p->off;
        if ((p->kind == OB_PATCH_SHIM48 || p->kind == OB_PATCH_CTRL48) && (shim >> 48 || shim & 3 || shim < addr))
            return ob_err_set(err, OB_E_INVALID, "control text: argument %u has an address no DMA can use", p->arg);
        switch (p->kind) {
        case OB_PATCH_SCALAR32: set_word(at, (uint32_t)addr); break;
        case OB_PATCH_SHIM48:
            set_word(at + 4, (get_word(at + 4) & 3) | (uint32_t)shim);
            set_word(at + 8, (get_word(at + 8) & 0xFFFF0000) | (uint32_t)(shim >> 32));
            break;
        case OB_PATCH_CTRL48:
            set_word(at + 8, (get_word(at + 8) & 3) | (uint32_t)shim);
            set_word(at + 12, (get_word(at + 12) & 0xFFFF0000) | (uint32_t)(shim >> 32));
            break;
        default:
            set_word(at, (uint32_t)addr);
            set_word(at + 4, (uint32_t)(addr >> 32));
        }
    }
    return OB_OK;
}

/* --- walking ------------------------------------------------------------------------------------ */

ob_status ob_npu_walk_begin(ob_npu_walk *w, const uint32_t *text, size_t n_words, ob_err *err)
{
    memset(w, 0, sizeof *w);
    if (n_words < OB_TXN_HEADER_WORDS || n_words > OB_TXN_MAX_BYTES / 4)
        return ob_err_set(err, OB_E_FORMAT, "control text of %zu words", n_words);
    if ((text[0] & 0xFFFFFF) != OB_TXN_VERSION)
        return ob_err_set(err, OB_E_FORMAT, "control text: header word 0x%08x is not version 0.1 of AIE2P", text[0]);
    if (text[3] != n_words * 4)
        return ob_err_set(err, OB_E_FORMAT, "control text says that it has %u bytes, and has %zu", text[3],
                          n_words * 4);
    *w = (ob_npu_walk){.words = text, .n_words = (uint32_t)n_words, .at = OB_TXN_HEADER_WORDS, .n_ops = text[2],
                       .rows = text[0] >> 24, .cols = text[1] & 0xFF};
    return OB_OK;
}

static ob_status bad_op(const ob_npu_op *op, const char *what, ob_err *err)
{
    return ob_err_set(err, OB_E_FORMAT, "control text: op %u at byte %u (0x%02x): %s", op->index, op->off, op->code,
                      what);
}

/* The words that an op takes, as it says itself; `left` are there, at least 1. 0: it says nothing sound. */
static uint32_t op_words(const uint32_t *w, uint32_t left)
{
    uint32_t at, fixed = 0; /* the word that holds the size in bytes, or a fixed number of words */
    uint32_t least;
    switch (w[0] & 0xFF) {
    case OB_TXN_WRITE: at = 5, least = 6; break;
    case OB_TXN_BLOCKWRITE: at = 3, least = 5; break;
    case OB_TXN_MASKWRITE:
    case OB_TXN_MASKPOLL:
    case OB_TXN_MASKPOLL_BUSY: at = 6, least = 7; break;
    case OB_TXN_NOOP:
    case OB_TXN_PREEMPT: return 1;
    case OB_TXN_LOADPDI: return 4;
    case OB_TXN_LOAD_PM: return 2;
    case OB_TXN_TCT: at = 1, least = 4, fixed = 4; break;
    case OB_TXN_DDR_PATCH: at = 1, least = 12, fixed = 12; break;
    case OB_TXN_READ_REGS:
    case OB_TXN_TIMER:
    case OB_TXN_MERGE_SYNC: at = 1, least = 2; break;
    default: return 0;
    }
    if (at >= left) return 0;
    uint32_t bytes = w[at];
    if (bytes & 3 || bytes / 4 < least || (fixed && bytes / 4 != fixed)) return 0;
    /* MASK* are 7 words; some writers count the padding of an 8th. */
    uint32_t code = w[0] & 0xFF, most = code == OB_TXN_WRITE ? 6 : at == 6 ? 8 : UINT32_MAX;
    return bytes / 4 > most ? 0 : bytes / 4;
}

static void op_fields(ob_npu_op *op, const uint32_t *w)
{
    switch (op->code) {
    case OB_TXN_WRITE:
        op->addr = w[2] | (uint64_t)w[3] << 32;
        op->value = w[4];
        break;
    case OB_TXN_BLOCKWRITE:
        op->addr = w[2];
        op->data = w + 4;
        op->n_data = op->n_words - 4;
        break;
    case OB_TXN_MASKWRITE:
    case OB_TXN_MASKPOLL:
    case OB_TXN_MASKPOLL_BUSY:
        op->addr = w[2] | (uint64_t)w[3] << 32;
        op->value = w[4];
        op->mask = w[5];
        break;
    case OB_TXN_PREEMPT: op->value = w[0] >> 8 & 0xFF; break;
    case OB_TXN_LOADPDI:
        op->id = w[0] >> 16;
        op->value = w[1];
        op->addr = w[2] | (uint64_t)w[3] << 32;
        break;
    case OB_TXN_LOAD_PM: op->value = w[1]; break;
    case OB_TXN_TCT:
        op->dir = (int)(w[2] & 0xFF);
        op->row = (int)(w[2] >> 8 & 0xFF);
        op->col = (int)(w[2] >> 16 & 0xFF);
        op->n_rows = (int)(w[3] >> 8 & 0xFF);
        op->n_cols = (int)(w[3] >> 16 & 0xFF);
        op->channel = (int)(w[3] >> 24);
        break;
    case OB_TXN_DDR_PATCH:
        op->addr = w[6] | (uint64_t)w[7] << 32;
        op->id = w[8];
        op->addend = w[10] | (uint64_t)w[11] << 32;
        break;
    default: break;
    }
}

ob_status ob_npu_walk_next(ob_npu_walk *w, ob_npu_op *op, bool *more, ob_err *err)
{
    *more = false;
    *op = (ob_npu_op){.index = w->index, .off = w->at * 4};
    if (w->index == w->n_ops) {
        if (w->at != w->n_words)
            return ob_err_set(err, OB_E_FORMAT, "control text: %u words after its %u ops", w->n_words - w->at,
                              w->n_ops);
        return OB_OK;
    }
    if (w->at == w->n_words)
        return ob_err_set(err, OB_E_FORMAT, "control text ends after %u of %u ops", w->index, w->n_ops);
    const uint32_t *words = w->words + w->at;
    uint32_t left = w->n_words - w->at;
    op->code = words[0] & 0xFF;
    op->n_words = op_words(words, left);
    if (!op->n_words) return bad_op(op, "unknown, or its size is wrong", err);
    if (op->n_words > left) return bad_op(op, "longer than the text", err);
    op_fields(op, words);
    w->at += op->n_words;
    w->index++;
    *more = true;
    return OB_OK;
}

/* --- checking ----------------------------------------------------------------------------------- */

static ob_status check_reg(const ob_npu_op *op, uint64_t addr, uint32_t classes, ob_err *err)
{
    ob_npu_reg_class c = ob_npu_reg_classify(addr);
    if (c != OB_REG_NONE && classes >> c & 1) return OB_OK;
    return ob_err_set(err, OB_E_FORMAT,
                      "control text: op %u at byte %u writes to 0x%llx (%s), which is not allowed here", op->index,
                      op->off, (unsigned long long)addr, ob_npu_reg_class_name(c));
}

static ob_status check_op(const ob_npu_op *op, uint32_t classes, ob_err *err)
{
    switch (op->code) {
    case OB_TXN_WRITE:
    case OB_TXN_MASKWRITE:
    case OB_TXN_MASKPOLL:
    case OB_TXN_MASKPOLL_BUSY: return check_reg(op, op->addr, classes, err);
    case OB_TXN_BLOCKWRITE: /* both ends in one tile and one class: classes are ranges */
        if ((op->addr & 0xFFFFF) + (uint64_t)op->n_data * 4 > 0x100000) return bad_op(op, "runs out of its tile", err);
        OB_TRY(check_reg(op, op->addr, classes, err));
        if (ob_npu_reg_classify(op->addr) != ob_npu_reg_classify(op->addr + (uint64_t)(op->n_data - 1) * 4))
            return bad_op(op, "runs from one kind of register into another", err);
        return OB_OK;
    case OB_TXN_DDR_PATCH:
        if (ob_npu_reg_classify(op->addr) != OB_REG_SHIM_BD)
            return bad_op(op, "patches what is no shim descriptor", err);
        return OB_OK;
    case OB_TXN_TCT:
        if (op->dir > OB_MM2S || op->channel >= OB_SHIM_CHANNELS || op->n_rows < 1 || op->n_cols < 1 ||
            op->row + op->n_rows > OB_TXN_ROWS || op->col + op->n_cols > OB_TXN_COLS)
            return bad_op(op, "waits for what does not exist", err);
        return OB_OK;
    default: return OB_OK;
    }
}

ob_status ob_npu_txn_check(const uint32_t *text, size_t n_words, uint32_t classes, ob_err *err)
{
    ob_npu_walk w;
    OB_TRY(ob_npu_walk_begin(&w, text, n_words, err));
    if (w.rows != OB_TXN_ROWS || w.cols < 1 || w.cols > OB_TXN_COLS || (text[1] >> 8 & 0xFF) != OB_TXN_MEM_ROWS)
        return ob_err_set(err, OB_E_FORMAT, "control text is for an array of %u rows and %u columns", w.rows, w.cols);
    ob_npu_op op;
    for (bool more;;) {
        OB_TRY(ob_npu_walk_next(&w, &op, &more, err));
        if (!more) return OB_OK;
        OB_TRY(check_op(&op, classes, err));
    }
}
