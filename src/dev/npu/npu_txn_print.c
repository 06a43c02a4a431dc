/* Control text as text, in the words of `aiebu-dump -d`. */
#include "dev/npu/npu_txn.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/math.h"

typedef struct op_name {
    uint32_t code;
    const char *name;
} op_name;

static const op_name names[] = {
    {OB_TXN_WRITE, "XAIE_IO_WRITE"},
    {OB_TXN_BLOCKWRITE, "XAIE_IO_BLOCKWRITE"},
    {OB_TXN_MASKWRITE, "XAIE_IO_MASKWRITE"},
    {OB_TXN_MASKPOLL, "XAIE_IO_MASKPOLL"},
    {OB_TXN_NOOP, "XAIE_IO_NOOP"},
    {OB_TXN_PREEMPT, "XAIE_IO_PREEMPT"},
    {OB_TXN_MASKPOLL_BUSY, "XAIE_IO_MASKPOLL_BUSY"},
    {OB_TXN_LOADPDI, "XAIE_IO_LOADPDI"},
    {OB_TXN_LOAD_PM, "XAIE_IO_LOAD_PM_START"},
    {OB_TXN_TCT, "XAIE_IO_CUSTOM_OP_TCT"},
    {OB_TXN_DDR_PATCH, "XAIE_IO_CUSTOM_OP_DDR_PATCH"},
    {OB_TXN_READ_REGS, "XAIE_IO_CUSTOM_OP_READ_REGS"},
    {OB_TXN_TIMER, "XAIE_IO_CUSTOM_OP_RECORD_TIMER"},
    {OB_TXN_MERGE_SYNC, "XAIE_IO_CUSTOM_OP_MERGE_SYNC"},
};

static const char *name_of(uint32_t code)
{
    for (size_t i = 0; i < OB_COUNT(names); i++)
        if (names[i].code == code) return names[i].name;
    return "?"; /* the walker lets no other code pass */
}

static const char *preempt_level(uint32_t level)
{
    static const char *const levels[] = {"NOOP", "MEM_TILE", "AIE_TILE", "AIE_REGISTERS"};
    return level < OB_COUNT(levels) ? levels[level] : "INVALID";
}

static void print_op(const ob_npu_op *op, ob_buf *out)
{
    ob_buf_addf(out, "%-32s", name_of(op->code));
    switch (op->code) {
    case OB_TXN_WRITE: ob_buf_addf(out, "@0x%" PRIx64 ", 0x%x", op->addr, op->value); break;
    case OB_TXN_BLOCKWRITE:
        ob_buf_addf(out, "@0x%" PRIx64 ", [%u]", op->addr, op->n_data);
        for (uint32_t i = 0; i < op->n_data; i++) {
            char label[48];
            snprintf(label, sizeof label, "%s.%u", name_of(op->code), i);
            ob_buf_addf(out, "\n%-32s0x%x", label, op->data[i]);
        }
        break;
    case OB_TXN_MASKWRITE: ob_buf_addf(out, "@0x%" PRIx64 ", 0x%x(), 0x%x", op->addr, op->mask, op->value); break;
    case OB_TXN_MASKPOLL:
    case OB_TXN_MASKPOLL_BUSY: ob_buf_addf(out, "@0x%" PRIx64 ", 0x%x()==0x%x", op->addr, op->mask, op->value); break;
    case OB_TXN_PREEMPT: ob_buf_addf(out, "#%s", preempt_level(op->value)); break;
    case OB_TXN_LOADPDI: ob_buf_addf(out, "#%u, 0x%x, 0x%" PRIx64, op->id, op->value, op->addr); break;
    case OB_TXN_TCT:
        ob_buf_addf(out, "R[%d]+%d, C[%d]+%d, #%s, %d", op->row, op->n_rows, op->col, op->n_cols,
                    op->dir == OB_S2MM ? "DMA_S2MM" : "DMA_MM2S", op->channel);
        break;
    case OB_TXN_DDR_PATCH: ob_buf_addf(out, "@0x%" PRIx64 ", #%u, +0x%" PRIx64, op->addr, op->id, op->addend); break;
    default: break;
    }
    ob_buf_addc(out, '\n');
}

ob_status ob_npu_txn_print(const uint32_t *text, size_t n_words, ob_buf *out, ob_err *err)
{
    ob_npu_walk w;
    OB_TRY(ob_npu_walk_begin(&w, text, n_words, err));
    ob_npu_op op;
    for (bool more;;) {
        OB_TRY(ob_npu_walk_next(&w, &op, &more, err));
        if (!more) return ob_buf_status(out, err);
        print_op(&op, out);
    }
}
