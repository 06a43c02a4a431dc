/* Memory of a software array without a driver: a few buffers at device addresses, seen by the array directly. */
#ifndef OB_TESTS_NPU_BUS_H
#define OB_TESTS_NPU_BUS_H

#include "dev/npu/npu_array.h"
#include "dev/npu/npu_text.h"

typedef struct bus_buf {
    uint64_t addr;
    size_t n;
    uint8_t *p;
    bool read_only;
} bus_buf;

typedef struct bus {
    bus_buf bufs[8];
    int n;
    ob_npu_soft_bus api;
} bus;

static inline uint8_t *bus_at(void *arg, uint64_t addr, size_t n, bool writes)
{
    const bus *b = arg;
    for (int i = 0; i < b->n; i++) {
        const bus_buf *m = &b->bufs[i];
        if (addr >= m->addr && addr - m->addr <= m->n && n <= m->n - (addr - m->addr)) return writes && m->read_only ? NULL : m->p + (addr - m->addr);
    }
    return NULL;
}

/* Returns the device address. */
static inline uint64_t bus_add(bus *b, void *p, size_t n)
{
    uint64_t addr = 0x10000000ull + 0x100000000ull * (uint64_t)b->n;
    b->bufs[b->n++] = (bus_buf){.addr = addr, .n = n, .p = p};
    b->api = (ob_npu_soft_bus){.arg = b, .at = bus_at};
    return addr;
}

/* A text with its addresses put in, run. */
static inline ob_npu_soft_end bus_run(void *array, bus *b, ob_npu_txn *t, const uint64_t *args, size_t n_args, ob_npu_soft_run *run)
{
    const ob_npu_patch *p = (const ob_npu_patch *)t->patches.data;
    ob_err err = {0};
    if (ob_npu_patch_apply((uint8_t *)t->text.data, t->text.len, p, t->patches.len / sizeof *p, args, n_args, &err) != OB_OK) {
        snprintf(run->text, sizeof run->text, "%.150s", err.text);
        return OB_NPU_RUN_FAULT;
    }
    return ob_npu_array.run(array, (const uint32_t *)t->text.data, t->text.len / 4, &b->api, run);
}

#endif
