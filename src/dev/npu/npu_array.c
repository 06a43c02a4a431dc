/* The software array: shim DMA and the interpreter of control text. The designs' cores are npu_array_cores.c. */
#include "dev/npu/npu_array_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"

/* --- soft PDI ----------------------------------------------------------------------------------- */

static uint32_t pdi_check(const ob_npu_soft_pdi *p)
{
    uint32_t words[OB_NPU_SOFT_PDI_BYTES / 4], sum = 0;
    memcpy(words, p, sizeof words);
    for (size_t i = 0; i + 1 < OB_COUNT(words); i++) sum += words[i];
    return ~sum;
}

void ob_npu_soft_pdi_make(ob_npu_soft_pdi *out, ob_npu_design kind)
{
    *out = (ob_npu_soft_pdi){.version = 1,
                             .kind = (uint32_t)kind,
                             .rows = OB_NPU_ROWS,
                             .cols = OB_NPU_COLS,
                             .fifo_depth = 2,
                             .rtp_addr = OB_NPU_RTP_ADDR,
                             .lock_addr = OB_NPU_RTP_LOCK_ADDR};
    memcpy(out->magic, OB_NPU_SOFT_PDI_MAGIC, sizeof out->magic);
    if (kind == OB_NPU_DESIGN_GEMM_I8) out->m = OB_NPU_TILE_M, out->k = OB_NPU_TILE_K, out->n = OB_NPU_TILE_N;
    if (kind == OB_NPU_DESIGN_GEMV_Q4 || kind == OB_NPU_DESIGN_STEP)
        out->m = 1, out->k = OB_NPU_Q4_TILE_K, out->n = OB_NPU_Q4_TILE_N;
    out->check = pdi_check(out);
}

/* Nothing is left in the tiles: what a new PDI or lost power does. */
static void clear(array *a)
{
    memset(a->ch, 0, sizeof a->ch);
    memset(a->bd, 0, sizeof a->bd);
    memset(a->rtp, 0, sizeof a->rtp);
    memset(a->lock, 0, sizeof a->lock);
    a->running = a->c_pending = false;
}

ob_npu_soft_end ob_npu_array_fault(array *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(a->out->text, sizeof a->out->text, fmt, ap);
    va_end(ap);
    return OB_NPU_RUN_FAULT;
}

static ob_npu_soft_end load_pdi(array *a, const ob_npu_op *op)
{
    const uint8_t *p = a->bus->at(a->bus->arg, op->addr, OB_NPU_SOFT_PDI_BYTES, false);
    if (!p) return ob_npu_array_fault(a, "LOADPDI: nothing at address 0x%llx", (unsigned long long)op->addr);
    if (!ob_npu_pdi_is_soft(p, OB_NPU_SOFT_PDI_BYTES))
        return ob_npu_array_fault(a, "LOADPDI: a PDI for hardware; this is a software model");
    ob_npu_soft_pdi pdi, own;
    memcpy(&pdi, p, sizeof pdi);
    ob_npu_soft_pdi_make(&own, (ob_npu_design)pdi.kind);
    if (pdi.kind < OB_NPU_DESIGN_COPY || pdi.kind > OB_NPU_DESIGN_STEP || pdi.check != pdi_check(&pdi) ||
        memcmp(&pdi, &own, sizeof pdi) != 0)
        return ob_npu_array_fault(a, "LOADPDI: not a design of this software model");
    clear(a);
    a->design = (ob_npu_design)pdi.kind;
    return OB_NPU_RUN_DONE;
}

/* --- streams between memory and the array ------------------------------------------------------- */

static uint64_t last_word(const ob_npu_bd *b) /* largest offset of a transfer, in words, its iteration apart */
{
    uint64_t n = b->n_words;
    if (!b->d0 || n <= b->d0) return (n - 1) * b->d0_step;
    uint64_t n1 = (n + b->d0 - 1) / b->d0, runs = (uint64_t)(b->d0 - 1) * b->d0_step;
    if (!b->d1 || n1 <= b->d1) return runs + (n1 - 1) * b->d1_step;
    return runs + (uint64_t)(b->d1 - 1) * b->d1_step + ((n1 + b->d1 - 1) / b->d1 - 1) * b->d2_step;
}

/* Word i of the transfer lies at this offset, in words; *run is how many follow it without a gap. */
static uint64_t word_at(const ob_npu_bd *b, uint64_t i, uint64_t *run)
{
    uint64_t left = b->n_words - i;
    if (!b->d0) {
        *run = b->d0_step == 1 ? left : 1;
        return i * b->d0_step;
    }
    uint64_t i0 = i % b->d0, i1 = i / b->d0, i2 = 0;
    if (b->d1) i2 = i1 / b->d1, i1 %= b->d1;
    *run = b->d0_step == 1 ? OB_MIN(left, b->d0 - i0) : 1;
    return i0 * b->d0_step + i1 * b->d1_step + i2 * b->d2_step;
}

/* The descriptor is read when its transfer starts, and again for each repetition. */
static ob_npu_soft_end start_transfer(array *a, channel *c)
{
    const task *t = &c->queue[c->head];
    uint32_t *regs = a->bd[c->col][t->bd];
    if (!ob_npu_bd_decode(regs, &c->bd) || !c->bd.n_words)
        return ob_npu_array_fault(a, "column %d, descriptor %u is not valid or not of our kind", c->col, t->bd);
    if (c->bd.addr < OB_NPU_SHIM_BASE)
        return ob_npu_array_fault(a, "column %d, descriptor %u: address 0x%llx is below DDR", c->col, t->bd,
                                  (unsigned long long)c->bd.addr);
    uint32_t it = c->bd.it_current % c->bd.it_wrap;
    c->dev_addr = c->bd.addr - OB_NPU_SHIM_BASE + (uint64_t)it * c->bd.it_step * 4;
    c->mem = a->bus->at(a->bus->arg, c->dev_addr, (size_t)(last_word(&c->bd) + 1) * 4, c->dir == OB_S2MM);
    if (!c->mem)
        return ob_npu_array_fault(a, "column %d, descriptor %u: %s of %llu bytes at 0x%llx leaves its buffer", c->col,
                                  t->bd, c->dir == OB_S2MM ? "a write" : "a read",
                                  (unsigned long long)(last_word(&c->bd) + 1) * 4, (unsigned long long)c->dev_addr);
    regs[6] = (regs[6] & 0x03FFFFFF) | (it + 1) % c->bd.it_wrap << 26;
    c->pos = 0;
    c->active = true;
    return OB_NPU_RUN_DONE;
}

/* Bytes that the channel's queued tasks will carry, at most `want`. Tasks not started yet count by what their
 * descriptors say now. */
uint64_t ob_npu_channel_left(const array *a, const channel *c, uint64_t want)
{
    uint64_t sum = c->active ? (c->bd.n_words - c->pos) * 4ull : 0;
    for (int i = 0; i < c->n && sum < want; i++) {
        const task *t = &c->queue[(c->head + i) % OB_SHIM_QUEUE_DEPTH];
        uint64_t times = t->times - (i == 0 && c->active ? 1 : 0);
        sum += times * a->bd[c->col][t->bd][0] * 4ull;
    }
    return OB_MIN(sum, want);
}

/* A repetition is over: the next one, the next task, a token. */
static void end_transfer(channel *c)
{
    c->active = false;
    task *t = &c->queue[c->head];
    if (--t->times) return;
    /* Tokens travel by the controller's number, which the text must have given the channel. */
    if (t->token && (c->ctrl >> 8 & 0x1F) == OB_NPU_TOKEN_CONTROLLER) c->tokens++;
    c->head = (c->head + 1) % OB_SHIM_QUEUE_DEPTH;
    c->n--;
}

/* The next n bytes of a channel (they are there: channel_left): out of memory, or into it from src. Returns where they
 * lie when that is one run and dst is not needed, else fills dst. */
static ob_npu_soft_end stream(array *a, channel *c, uint64_t n, uint8_t *dst, const uint8_t *src,
                              const uint8_t **direct)
{
    for (uint64_t done = 0; done < n;) {
        if (!c->active) {
            ob_npu_soft_end end = start_transfer(a, c);
            if (end != OB_NPU_RUN_DONE) return end;
        }
        uint64_t run, at = word_at(&c->bd, c->pos, &run);
        uint64_t bytes = OB_MIN(run * 4, n - done);
        uint8_t *mem = c->mem + at * 4;
        if (direct && done == 0 && bytes == n) *direct = mem;
        else if (src) memcpy(mem, src + done, bytes);
        else memcpy(dst + done, mem, bytes);
        if (src && !a->out->write_bytes) a->out->write_addr = c->dev_addr + at * 4, a->out->write_bytes = bytes;
        c->pos += (uint32_t)(bytes / 4);
        done += bytes;
        if (c->pos == c->bd.n_words) end_transfer(c);
    }
    a->n_bytes += n;
    return OB_NPU_RUN_DONE;
}

ob_npu_soft_end ob_npu_channel_read(array *a, channel *c, uint64_t n, uint8_t *scratch, const uint8_t **out)
{
    *out = scratch;
    return stream(a, c, n, scratch, NULL, out);
}

ob_npu_soft_end ob_npu_channel_write(array *a, channel *c, uint64_t n, const void *src)
{
    return stream(a, c, n, NULL, src, NULL);
}

/* --- control text ------------------------------------------------------------------------------- */

static channel *channel_of(array *a, int col, int dir, int i) { return &a->ch[col][dir][i]; }

static ob_npu_soft_end push(array *a, uint64_t addr, uint32_t value)
{
    uint32_t off = ob_npu_reg_off(addr);
    int dir = off >= OB_SHIM_MM2S_QUEUE ? OB_MM2S : OB_S2MM;
    int i = off == OB_SHIM_S2MM_QUEUE || off == OB_SHIM_MM2S_QUEUE ? 0 : 1, col = ob_npu_reg_col(addr);
    channel *c = channel_of(a, col, dir, i);
    c->col = col, c->dir = dir;
    if (c->n == OB_SHIM_QUEUE_DEPTH)
        return ob_npu_array_fault(a, "column %d: the queue of %s %d is full", col, dir == OB_S2MM ? "S2MM" : "MM2S", i);
    c->queue[(c->head + c->n++) % OB_SHIM_QUEUE_DEPTH] =
        (task){.bd = value & 15, .times = (value >> 16 & 0xFF) + 1, .token = value >> 31};
    return OB_NPU_RUN_DONE;
}

static ob_npu_soft_end write_core(array *a, uint64_t addr, uint32_t value)
{
    int col = ob_npu_reg_col(addr), row = ob_npu_reg_row(addr) - OB_NPU_FIRST_CORE_ROW;
    uint32_t off = ob_npu_reg_off(addr);
    if (row >= 0 && off == OB_NPU_RTP_LOCK_ADDR) {
        a->lock[col][row] = value;
        return OB_NPU_RUN_DONE;
    }
    if (row >= 0 && off >= OB_NPU_RTP_ADDR && off < OB_NPU_RTP_ADDR + sizeof a->rtp[0][0]) {
        a->rtp[col][row][(off - OB_NPU_RTP_ADDR) / 4] = value;
        return OB_NPU_RUN_DONE;
    }
    return ob_npu_array_fault(a, "a write to 0x%llx (%s): the software model has parameters only there",
                              (unsigned long long)addr, ob_npu_reg_class_name(ob_npu_reg_classify(addr)));
}

/* Set the bits of `mask` in a register. */
static ob_npu_soft_end write_reg(array *a, uint64_t addr, uint32_t value, uint32_t mask)
{
    int col = ob_npu_reg_col(addr);
    uint32_t off = ob_npu_reg_off(addr);
    if (!a->design) return ob_npu_array_fault(a, "a write to 0x%llx with no PDI loaded", (unsigned long long)addr);
    switch (ob_npu_reg_classify(addr)) {
    case OB_REG_SHIM_BD: {
        uint32_t *r = &a->bd[col][(off - OB_SHIM_BD) / OB_SHIM_BD_BYTES][off % OB_SHIM_BD_BYTES / 4];
        *r = (*r & ~mask) | (value & mask);
        return OB_NPU_RUN_DONE;
    }
    case OB_REG_SHIM_QUEUE:
        if (mask != UINT32_MAX)
            return ob_npu_array_fault(a, "a masked write to the queue at 0x%llx", (unsigned long long)addr);
        return push(a, addr, value);
    case OB_REG_SHIM_CTRL:
        for (int dir = OB_S2MM; dir <= OB_MM2S; dir++)
            for (int i = 0; i < OB_SHIM_CHANNELS; i++)
                if (off == (uint32_t)(dir == OB_S2MM ? OB_SHIM_S2MM_QUEUE : OB_SHIM_MM2S_QUEUE) - 4 +
                               (uint32_t)i * OB_SHIM_QUEUE_STEP) {
                    uint32_t *r = &channel_of(a, col, dir, i)->ctrl;
                    *r = (*r & ~mask) | (value & mask);
                }
        return OB_NPU_RUN_DONE;
    case OB_REG_LOCK:
    case OB_REG_CORE_DATA:
        if (mask == UINT32_MAX) return write_core(a, addr, value);
        /* fallthrough */
    default:
        return ob_npu_array_fault(a, "a write to 0x%llx (%s) is not modelled", (unsigned long long)addr,
                                  ob_npu_reg_class_name(ob_npu_reg_classify(addr)));
    }
}

static bool take_tokens(array *a, const ob_npu_op *op)
{
    if (op->row != 0 || op->n_rows != 1) return false;
    for (int c = op->col; c < op->col + op->n_cols; c++)
        if (!channel_of(a, c, op->dir, op->channel)->tokens) return false;
    for (int c = op->col; c < op->col + op->n_cols; c++) channel_of(a, c, op->dir, op->channel)->tokens--;
    return true;
}

/* Data moves here only, as late as the text allows it. */
static ob_npu_soft_end wait_tokens(array *a, const ob_npu_op *op)
{
    if (op->dir > OB_MM2S || op->channel >= OB_SHIM_CHANNELS || op->n_cols < 1 || op->col + op->n_cols > OB_NPU_COLS)
        return ob_npu_array_fault(a, "a wait for a channel that does not exist");
    while (!take_tokens(a, op)) {
        bool progress = false;
        ob_npu_soft_end end = ob_npu_cores_step(a, &progress);
        if (end != OB_NPU_RUN_DONE) return end;
        if (!progress) {
            snprintf(a->out->text, sizeof a->out->text,
                     "waits for a token of %s %d in columns %d to %d that cannot come",
                     op->dir == OB_S2MM ? "S2MM" : "MM2S", op->channel, op->col, op->col + op->n_cols - 1);
            return OB_NPU_RUN_HANG;
        }
    }
    return OB_NPU_RUN_DONE;
}

static ob_npu_soft_end run_op(array *a, const ob_npu_op *op)
{
    switch (op->code) {
    case OB_TXN_NOOP:
    case OB_TXN_PREEMPT: return OB_NPU_RUN_DONE;
    case OB_TXN_DDR_PATCH: return OB_NPU_RUN_DONE; /* of opcode 20; opcode 22's texts were patched by the host */
    case OB_TXN_LOADPDI: return load_pdi(a, op);
    case OB_TXN_WRITE: return write_reg(a, op->addr, op->value, UINT32_MAX);
    case OB_TXN_MASKWRITE: return write_reg(a, op->addr, op->value, op->mask);
    case OB_TXN_BLOCKWRITE:
        for (uint32_t i = 0; i < op->n_data; i++) {
            ob_npu_soft_end end = write_reg(a, op->addr + 4ull * i, op->data[i], UINT32_MAX);
            if (end != OB_NPU_RUN_DONE) return end;
        }
        return OB_NPU_RUN_DONE;
    case OB_TXN_TCT: return a->design ? wait_tokens(a, op) : ob_npu_array_fault(a, "a wait with no PDI loaded");
    default: return ob_npu_array_fault(a, "operation 0x%02x is not modelled", op->code);
    }
}

/* Transfers that the text before left unfinished go on, where the bus has their memory now. */
static ob_npu_soft_end map_again(array *a)
{
    for (int i = 0; i < OB_NPU_COLS * 2 * OB_SHIM_CHANNELS; i++) {
        channel *c = &(&a->ch[0][0][0])[i];
        if (!c->active) continue;
        c->mem = a->bus->at(a->bus->arg, c->dev_addr, (size_t)(last_word(&c->bd) + 1) * 4, c->dir == OB_S2MM);
        if (!c->mem) return ob_npu_array_fault(a, "column %d: a transfer's buffer is gone", c->col);
    }
    return OB_NPU_RUN_DONE;
}

static ob_npu_soft_end array_run(void *array_, const uint32_t *txn, size_t n_words, const ob_npu_soft_bus *bus,
                                 ob_npu_soft_run *out)
{
    array *a = array_;
    memset(out, 0, sizeof *out);
    a->bus = bus, a->out = out;
    a->n_bytes = a->n_macs = 0;
    ob_err err;
    ob_npu_walk w;
    ob_npu_soft_end end = OB_NPU_RUN_DONE;
    if (ob_npu_walk_begin(&w, txn, n_words, &err) != OB_OK || w.rows != OB_TXN_ROWS || w.cols > OB_TXN_COLS) {
        snprintf(out->text, sizeof out->text, "control text without a sound header for this array");
        return OB_NPU_RUN_FAULT;
    }
    end = map_again(a);
    ob_npu_op op;
    for (bool more; end == OB_NPU_RUN_DONE;) {
        if (ob_npu_walk_next(&w, &op, &more, &err) != OB_OK) {
            snprintf(out->text, sizeof out->text, "%.*s", (int)sizeof out->text - 1, err.text);
            end = OB_NPU_RUN_FAULT;
            break;
        }
        if (!more) break;
        out->txn_op = op.index;
        end = run_op(a, &op);
    }
    /* A guess at the hardware: 50 GB/s, 10 TMAC/s, 20 us a command. It drives a virtual clock and is shown to nobody.
     */
    uint64_t ns = OB_MAX(a->n_bytes / 50, a->n_macs / 10000);
    out->ns = ns + 20000;
    return end;
}

/* --- life --------------------------------------------------------------------------------------- */

static void *array_make(int n_cols, int n_rows)
{
    (void)n_cols; /* one of another size is not admitted, so it is never given a text to run */
    (void)n_rows;
    return ob_calloc(1, sizeof(array));
}

static void array_end(void *a) { ob_free(a); }

static void array_wipe(void *array_)
{
    array *a = array_;
    clear(a);
    a->design = 0;
}

const ob_npu_soft_array ob_npu_array = {.make = array_make, .end = array_end, .run = array_run, .wipe = array_wipe};
