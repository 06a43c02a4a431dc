/* tests/unit/npu_rig.h: an array for tests of what lies below it, and an NPU on it.
 *
 * Its control text is words of its own: LOAD (a PDI's address), COPY (from, to, bytes), SLEEP (ms), HANG, FAULT. As the
 * real one it forgets its PDI when it is wiped, and then fails a COPY.
 */
#ifndef OB_TEST_NPU_RIG_H
#define OB_TEST_NPU_RIG_H

#include "test.h"

#include "dev/npu/npu_queue.h"
#include "dev/npu/npu_soft.h"

enum { RIG_LOAD = 1, RIG_COPY, RIG_SLEEP, RIG_HANG, RIG_FAULT };

typedef struct rig_array { bool loaded; } rig_array;

static inline void *rig_make(int n_cols, int n_rows)
{
    assert_true(n_cols >= 1 && n_rows >= 3);
    return calloc(1, sizeof(rig_array));
}
static inline void rig_end(void *array) { free(array); }
static inline void rig_wipe(void *array) { ((rig_array *)array)->loaded = false; }

static inline uint64_t rig_addr(const uint32_t *w) { return w[0] | (uint64_t)w[1] << 32; }

static inline ob_npu_soft_end rig_fault(ob_npu_soft_run *out, const char *why)
{
    snprintf(out->text, sizeof out->text, "%s", why);
    return OB_NPU_RUN_FAULT;
}

static inline ob_npu_soft_end rig_run(void *array, const uint32_t *w, size_t n, const ob_npu_soft_bus *bus, ob_npu_soft_run *out)
{
    rig_array *a = array;
    if (n == 8 && w[0] == 0x06040100) return a->loaded = true, OB_NPU_RUN_DONE; /* a CU's PDI */
    for (size_t i = 0; i < n; out->txn_op++) {
        if (w[i] == RIG_LOAD && n - i >= 3) {
            const uint8_t *pdi = bus->at(bus->arg, rig_addr(w + i + 1), OB_NPU_SOFT_PDI_BYTES, false);
            if (!pdi) return rig_fault(out, "no PDI there");
            if (!ob_npu_pdi_is_soft(pdi, OB_NPU_SOFT_PDI_BYTES)) return rig_fault(out, "a PDI made for hardware");
            a->loaded = true;
            i += 3;
        } else if (w[i] == RIG_COPY && n - i >= 6) {
            if (!a->loaded) return rig_fault(out, "nothing is loaded");
            const uint8_t *from = bus->at(bus->arg, rig_addr(w + i + 1), w[i + 5], false);
            uint8_t *to = bus->at(bus->arg, rig_addr(w + i + 3), w[i + 5], true);
            if (!from || !to) return rig_fault(out, "nothing at that address");
            memcpy(to, from, w[i + 5]);
            if (!out->write_bytes) out->write_addr = rig_addr(w + i + 3), out->write_bytes = w[i + 5];
            i += 6;
        } else if (w[i] == RIG_SLEEP && n - i >= 2) {
            out->ns += (uint64_t)w[i + 1] * 1000000;
            i += 2;
        } else if (w[i] == RIG_HANG) {
            return OB_NPU_RUN_HANG;
        } else {
            return rig_fault(out, "no such operation");
        }
    }
    return OB_NPU_RUN_DONE;
}

static const ob_npu_soft_array rig_table = {rig_make, rig_end, rig_run, rig_wipe};

/* ---- an NPU on it ----------------------------------------------------------------------------- */

enum { RIG_BYTES = 8192, RIG_TEXT_STRIDE = 64, RIG_TEXTS = 256 };

typedef struct rig {
    ob_npu_soft *soft;
    ob_npu_os *os;
    ob_npu_dev *dev;
    ob_npu_bo *text, *pdi, *in, *out;
    ob_npu_queue *queue;
} rig;

static inline void rig_soft(rig *r, ob_npu_soft_options opt)
{
    ob_err err = {0};
    *r = (rig){0};
    opt.array = &rig_table;
    if (ob_npu_soft_new(&opt, &r->soft, &err) != OB_OK) fail_msg("%s", err.text);
    r->os = ob_npu_soft_os(r->soft);
}

static inline ob_npu_soft_options rig_defaults(const char *faults)
{
    return (ob_npu_soft_options){.driver_minor = 8, .faults = faults};
}

static inline ob_npu_cmd rig_cmd(const rig *r, int i, size_t n_words)
{
    return (ob_npu_cmd){.text = r->text, .off = (size_t)i * RIG_TEXT_STRIDE, .n_bytes = n_words * 4};
}

/* Text i. */
static inline ob_npu_cmd rig_write(rig *r, int i, const uint32_t *words, size_t n_words)
{
    ob_npu_bo_write(r->text, (size_t)i * RIG_TEXT_STRIDE, words, n_words * 4);
    return rig_cmd(r, i, n_words);
}

/* Text i copies [off, off + n) of `in` to the same place of `out`. */
static inline ob_npu_cmd rig_copy(rig *r, int i, uint32_t off, uint32_t n)
{
    const uint64_t from = r->in->dev_addr + off, to = r->out->dev_addr + off;
    const uint32_t w[] = {RIG_COPY, (uint32_t)from, (uint32_t)(from >> 32), (uint32_t)to, (uint32_t)(to >> 32), n};
    return rig_write(r, i, w, 6);
}
static inline ob_npu_cmd rig_word(rig *r, int i, uint32_t op, uint32_t arg)
{
    const uint32_t w[] = {op, arg};
    return rig_write(r, i, w, op == RIG_SLEEP ? 2 : 1);
}

/* The device with its buffers; text 0 is the init. */
static inline ob_status rig_open(rig *r, ob_err *err)
{
    OB_TRY(ob_npu_dev_open(r->os, 0, &r->dev, err));
    OB_TRY(ob_npu_bo_new(r->dev, OB_NPU_BO_DEV, RIG_TEXTS * RIG_TEXT_STRIDE, &r->text, err));
    OB_TRY(ob_npu_bo_new(r->dev, OB_NPU_BO_DEV, OB_NPU_SOFT_PDI_BYTES, &r->pdi, err));
    OB_TRY(ob_npu_bo_new(r->dev, OB_NPU_BO_SHARE, RIG_BYTES, &r->in, err));
    OB_TRY(ob_npu_bo_new(r->dev, OB_NPU_BO_SHARE, RIG_BYTES, &r->out, err));
    ob_npu_bo_write(r->pdi, 0, OB_NPU_SOFT_PDI_MAGIC, sizeof OB_NPU_SOFT_PDI_MAGIC - 1);
    const uint32_t w[] = {RIG_LOAD, (uint32_t)r->pdi->dev_addr, (uint32_t)(r->pdi->dev_addr >> 32)};
    (void)rig_write(r, 0, w, 3);
    for (size_t i = 0; i < RIG_BYTES; i++) r->in->host[i] = (uint8_t)(i * 7 + i / 256);
    ob_npu_bo_flush(r->in, 0, RIG_BYTES);
    return OB_OK;
}

static inline ob_status rig_start(rig *r, ob_npu_queue_options opt, ob_err *err)
{
    OB_TRY(rig_open(r, err));
    opt.init = rig_cmd(r, 0, 3);
    return ob_npu_queue_new(r->dev, &opt, &r->queue, err);
}

static inline void rig_new(rig *r, const char *faults)
{
    ob_err err = {0};
    rig_soft(r, rig_defaults(faults));
    if (rig_start(r, (ob_npu_queue_options){0}, &err) != OB_OK) fail_msg("%s", err.text);
}

/* Everything down to the model itself, which must then hold nothing. */
static inline void rig_close(rig *r)
{
    ob_npu_queue_free(r->queue);
    ob_npu_bo_free(r->text);
    ob_npu_bo_free(r->pdi);
    ob_npu_bo_free(r->in);
    ob_npu_bo_free(r->out);
    if (r->dev) {
        assert_int_equal(r->dev->n_bos, 0);
        assert_int_equal(r->dev->n_queues, 0);
    }
    ob_npu_dev_close(r->dev);
    r->queue = NULL;
    r->text = r->pdi = r->in = r->out = NULL;
    r->dev = NULL;
}

static inline void rig_free(rig *r)
{
    rig_close(r);
    const ob_npu_soft_counts c = ob_npu_soft_counts_get(r->soft);
    assert_int_equal(c.n_fds, 0);
    assert_int_equal(c.n_bos, 0);
    assert_int_equal(c.n_maps, 0);
    assert_int_equal(c.n_ctxs, 0);
    assert_int_equal(c.n_syncobjs, 0);
    assert_int_equal(c.pinned_bytes, 0);
    assert_int_equal(c.n_stale_writes, 0);
    ob_npu_soft_free(r->soft);
}

/* `out` as the CPU sees it after an invalidate, against `in`. */
static inline bool rig_copied(rig *r, size_t off, size_t n)
{
    ob_npu_bo_invalidate(r->out, off, n);
    return memcmp(r->out->host + off, r->in->host + off, n) == 0;
}

#endif
