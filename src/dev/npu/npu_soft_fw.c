/* The firmware of the software model: packets, chains, the watchdog, power. */
#include <stdio.h>
#include <string.h>

#include "base/math.h"
#include "dev/npu/npu_soft_int.h"

enum { HEALTH_WORDS = 8, MS = 1000000 };

/* What one submission came to. */
typedef struct outcome {
    uint32_t state;      /* COMPLETED, or why not; NEW: the driver refused the packet */
    uint32_t index;      /* of the command that failed */
    uint32_t txn_op;
    bool has_health;     /* the firmware said something */
    uint64_t ns;
    uint64_t addr;       /* what was written first */
    size_t bytes;
} outcome;

/* ---- power ------------------------------------------------------------------------------------ */

static void wipe(ob_npu_soft *s)
{
    s->opt.array->wipe(s->array);
    s->counts.n_wipes++;
}

/* Before a job: has the array been off meanwhile, or served somebody else? */
static void wake(ob_npu_soft *s, const soft_job *j)
{
    if (soft_fault_find(s, FAULT_SUSPEND, j->number)) s->now_ns += (int64_t)OB_NPU_SUSPEND_MS * MS;
    if (s->now_ns - s->idle_since_ns >= (int64_t)OB_NPU_SUSPEND_MS * MS) {
        s->counts.n_suspends++;
        wipe(s);
    } else if (s->last_ctx != j->ctx) {
        wipe(s);
    }
    s->last_ctx = j->ctx;
}

/* ---- one packet ------------------------------------------------------------------------------- */

static bool has_preemption(const ob_npu_soft *s)
{
    const ob_npu_firmware *f = &s->opt.firmware;
    return s->opt.driver_minor >= 6 && s->opt.gen != OB_NPU_1 && (f->major > 6 || (f->major == 6 && f->minor >= 12));
}

static uint64_t get64(const uint32_t *w) { return w[0] | (uint64_t)w[1] << 32; }

/* Where a packet's text is, and how many bytes a chain's slot needs for it; 0: the driver refuses the packet. */
static uint32_t decode(const ob_npu_soft *s, const soft_ctx *ctx, const uint32_t *p, uint64_t *text, uint32_t *text_bytes, int *cu)
{
    const uint32_t n = ob_npu_header_words(p[0]);
    *cu = -1;
    switch (ob_npu_header_opcode(p[0])) {
    case OB_NPU_OP_ELF:
        if (!has_preemption(s) || n < sizeof(ob_npu_packet_elf) / 4 - 1) return 0;
        *text = get64(p + 2);
        *text_bytes = p[8];
        return OB_NPU_SLOT_ELF_BYTES;
    case OB_NPU_OP_START_NPU:
        if (n < 5 || !p[1] || __builtin_ctz(p[1]) >= ctx->n_cus || n - 5 > OB_NPU_START_NPU_ARGS) return 0;
        *text = get64(p + 2);
        *text_bytes = p[4];
        *cu = __builtin_ctz(p[1]);
        return 4 * (n + 2);
    case OB_NPU_OP_START_CU:
        if (n < 6 || !p[1] || __builtin_ctz(p[1]) >= ctx->n_cus) return 0;
        *text = get64(p + 4);
        *text_bytes = p[6] * 4;
        *cu = __builtin_ctz(p[1]);
        return 4 * (n + 2);
    default: return 0;
    }
}

/* The classic path: the CU's PDI is loaded by the firmware, which to the array is a text of one operation. */
static ob_npu_soft_end load_cu(ob_npu_soft *s, const soft_ctx *ctx, int cu, const ob_npu_soft_bus *bus, ob_npu_soft_run *run)
{
    const soft_bo *pdi = soft_bo_find(s, ctx->fd, ctx->cus[cu]);
    if (!pdi) return OB_NPU_RUN_FAULT;
    const uint32_t text[] = {0x06040100, 0x108, 1, 32, 8, OB_NPU_SOFT_PDI_BYTES, (uint32_t)pdi->dev_addr, (uint32_t)(pdi->dev_addr >> 32)};
    return s->opt.array->run(s->array, text, OB_COUNT(text), bus, run);
}

/* OB_NPU_STATE_COMPLETED, ERROR, TIMEOUT. */
static uint32_t run_text(ob_npu_soft *s, const soft_ctx *ctx, uint64_t text, uint32_t text_bytes, int cu, outcome *o)
{
    const ob_npu_soft_bus bus = {s, soft_at};
    ob_npu_soft_run run = {0};
    ob_npu_soft_end end = OB_NPU_RUN_DONE;
    const uint8_t *words = text % 4 || text_bytes % 4 || !text_bytes ? NULL : soft_at(s, text, text_bytes, false);
    const soft_bo *b = words ? s->last_at : NULL;
    if (!b || b->type != OB_NPU_BO_DEV) {
        snprintf(run.text, sizeof run.text, "no control text of %u bytes at %#llx", text_bytes, (unsigned long long)text);
        end = OB_NPU_RUN_FAULT;
    }
    if (end == OB_NPU_RUN_DONE && cu >= 0) end = load_cu(s, ctx, cu, &bus, &run);
    if (end == OB_NPU_RUN_DONE) end = s->opt.array->run(s->array, (const uint32_t *)(const void *)words, text_bytes / 4, &bus, &run);
    s->counts.n_cmds++;
    const soft_fault *slow = soft_fault_find(s, FAULT_SLOW, 0);
    o->ns += (uint64_t)((double)(run.ns ? run.ns : SOFT_CMD_NS) * (slow ? slow->factor : 1));
    o->txn_op = run.txn_op;
    if (run.write_bytes && !o->bytes) {
        o->addr = run.write_addr;
        o->bytes = run.write_bytes;
    }
    if (end == OB_NPU_RUN_DONE) return OB_NPU_STATE_COMPLETED;
    snprintf(s->reason, sizeof s->reason, "%s", run.text);
    return end == OB_NPU_RUN_HANG ? OB_NPU_STATE_TIMEOUT : OB_NPU_STATE_ERROR;
}

/* A command; false: the submission ends here. */
static bool run_command(ob_npu_soft *s, const soft_job *j, const uint32_t *p, uint32_t index, outcome *o)
{
    uint64_t text;
    uint32_t text_bytes;
    int cu;
    o->index = index;
    for (int i = 0; i < s->n_faults; i++) {
        const soft_fault *x = &s->faults[i];
        if (x->kind != FAULT_END || (x->n && x->n != j->number) || (uint32_t)x->index != index) continue;
        o->state = (uint32_t)x->value;
        o->has_health = o->state == OB_NPU_STATE_TIMEOUT;
        o->txn_op = UINT32_MAX;
        return false;
    }
    if (!decode(s, j->ctx, p, &text, &text_bytes, &cu)) return o->state = OB_NPU_STATE_NEW, false;
    o->state = run_text(s, j->ctx, text, text_bytes, cu, o);
    if (o->state == OB_NPU_STATE_COMPLETED && o->ns > (uint64_t)OB_NPU_TDR_MS * MS) o->state = OB_NPU_STATE_TIMEOUT;
    o->has_health = o->state == OB_NPU_STATE_TIMEOUT;
    return o->state == OB_NPU_STATE_COMPLETED;
}

/* ---- one submission --------------------------------------------------------------------------- */

/* The packet of a chain's command, NULL where the handle is of no command buffer. */
static const uint32_t *chained(ob_npu_soft *s, const soft_job *j, uint32_t i)
{
    uint64_t handle;
    memcpy(&handle, j->cmd->dev + 4 + sizeof(ob_npu_chain) + 8 * (size_t)i, 8);
    const soft_bo *b = handle <= UINT32_MAX ? soft_bo_find(s, j->ctx->fd, (uint32_t)handle) : NULL;
    return b && b->type == OB_NPU_BO_CMD ? (const uint32_t *)(const void *)b->dev : NULL;
}

/* Does the driver take this chain? Its count must fit its packet, all commands have one opcode and fit the slot. */
static bool chain_fits(ob_npu_soft *s, const soft_job *j, uint32_t n, uint32_t n_words)
{
    const uint64_t need = sizeof(ob_npu_chain) + 8 * (uint64_t)n;
    uint32_t opcode = 0, bytes = 0, text_bytes;
    uint64_t text;
    int cu;
    if (!n || need > 4 * (uint64_t)n_words || 4 + need > j->cmd->n_bytes) return false;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *p = chained(s, j, i);
        const uint32_t size = p ? decode(s, j->ctx, p, &text, &text_bytes, &cu) : 0;
        if (!i && p) opcode = ob_npu_header_opcode(p[0]);
        if (!size || ob_npu_header_opcode(p[0]) != opcode || (bytes += size) > OB_NPU_SLOT_BYTES) return false;
    }
    return true;
}

static void run_packet(ob_npu_soft *s, const soft_job *j, outcome *o)
{
    const uint32_t *p = (const uint32_t *)(const void *)j->cmd->dev;
    if (ob_npu_header_opcode(p[0]) != OB_NPU_OP_CHAIN) {
        (void)run_command(s, j, p, 0, o);
        return;
    }
    const uint32_t n = p[1];
    o->state = OB_NPU_STATE_NEW;
    if (!chain_fits(s, j, n, ob_npu_header_words(p[0]))) return;
    for (uint32_t i = 0; i < n; i++)
        if (!run_command(s, j, chained(s, j, i), i, o)) return;
}

static void set_state(soft_bo *b, uint32_t state)
{
    uint32_t *p = (uint32_t *)(void *)b->dev;
    p[0] = (p[0] & ~15u) | state;
}

/* State, the index of the command that failed, and the firmware's words over the first command's payload. */
static void report(ob_npu_soft *s, const soft_job *j, const outcome *o)
{
    uint32_t *p = (uint32_t *)(void *)j->cmd->dev;
    soft_bo *first = j->cmd;
    if (o->state == OB_NPU_STATE_NEW) return;
    set_state(j->cmd, o->state);
    if (o->state == OB_NPU_STATE_COMPLETED) return;
    if (ob_npu_header_opcode(p[0]) == OB_NPU_OP_CHAIN) {
        ob_npu_chain c;
        uint64_t handle;
        memcpy(&c, p + 1, sizeof c);
        c.error_index = o->index;
        memcpy(p + 1, &c, sizeof c);
        memcpy(&handle, j->cmd->dev + 4 + sizeof c, 8);
        first = soft_bo_find(s, j->ctx->fd, (uint32_t)handle);
    }
    if (!first) return;
    memset(first->dev + 4, 0xff, first->n_bytes - 4);
    const uint32_t health[HEALTH_WORDS] = {1, 0, o->txn_op, 0x28b060ad, 0, 0, 0, 0};
    if (o->has_health) memcpy(first->dev + 4, health, sizeof health);
}

/* ---- jobs ------------------------------------------------------------------------------------- */

static void job_remove(ob_npu_soft *s, int i)
{
    soft_job *j = &s->jobs[i];
    j->ctx->n_pending--;
    if (j->ctx->lost_seq > j->seq) j->ctx->n_done = j->seq + 1;
    j->cmd->n_jobs--;
    soft_bo_drop(s, j->cmd);
    memmove(j, j + 1, (size_t)(--s->n_jobs - i) * sizeof *j);
}

/* The driver ends a context whose command did not end, and makes it anew: what waited behind it is aborted. */
static void abort_rest(ob_npu_soft *s, const soft_ctx *ctx)
{
    for (int i = 0; i < s->n_jobs;) {
        if (s->jobs[i].ctx != ctx) {
            i++;
            continue;
        }
        const outcome o = {.state = OB_NPU_STATE_ABORT};
        report(s, &s->jobs[i], &o);
        job_remove(s, i);
    }
}

void soft_fw_run(ob_npu_soft *s)
{
    soft_job j = s->jobs[0];
    outcome o = {.state = OB_NPU_STATE_NEW};
    wake(s, &j);
    run_packet(s, &j, &o);
    if (o.state == OB_NPU_STATE_TIMEOUT) o.ns = (uint64_t)OB_NPU_TDR_MS * MS;
    s->now_ns += (int64_t)o.ns;
    s->idle_since_ns = s->now_ns;
    if (soft_fault_find(s, FAULT_FLIP, j.number) && o.bytes) {
        uint8_t *p = soft_at(s, o.addr, o.bytes, true);
        if (p) p[o.bytes / 2] ^= 4;
    }
    report(s, &j, &o);
    const soft_fault *lie = soft_fault_find(s, FAULT_LIE, j.number);
    if (lie) set_state(j.cmd, (uint32_t)lie->value);
    if (soft_fault_find(s, FAULT_LOST, j.number)) j.ctx->lost_seq = OB_MIN(j.ctx->lost_seq, j.seq);
    job_remove(s, 0);
    if (o.state != OB_NPU_STATE_TIMEOUT && o.state != OB_NPU_STATE_NO_RESPONSE) return;
    s->counts.n_tdr++;
    wipe(s);
    s->last_ctx = NULL;
    abort_rest(s, j.ctx);
}

void soft_fw_run_until(ob_npu_soft *s, soft_ctx *ctx, uint64_t seq)
{
    while (s->n_jobs && ctx->n_done <= seq && ctx->n_pending) soft_fw_run(s);
}

void soft_fw_finish(ob_npu_soft *s, soft_ctx *ctx)
{
    while (ctx->n_pending) soft_fw_run(s);
}
