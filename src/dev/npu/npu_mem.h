/* dev/npu/npu_mem.h: memory that the CPU and the NPU share.
 *
 * Owns: the heap (instructions and PDIs), buffers, their two addresses, and who sees what when. The NPU does not look
 * into the CPU's caches: after the CPU wrote, flush; before the CPU reads what the NPU wrote, invalidate. Buffers begin
 * and end at pages, so no cache line is written by both.
 *
 * Addresses: `dev_addr` is what packets and LOADPDI use. DMA descriptors of the shim hold ob_npu_shim_addr().
 */
#ifndef OB_DEV_NPU_NPU_MEM_H
#define OB_DEV_NPU_NPU_MEM_H

#include "dev/npu/npu_dev.h"

typedef struct ob_npu_bo {
    ob_npu_dev *dev;    /* borrowed; outlives the buffer */
    uint32_t handle, type;
    size_t n_bytes;     /* as asked for */
    size_t map_bytes;   /* whole pages; heap granules of 32 KiB for OB_NPU_BO_DEV */
    uint8_t *host;      /* page-aligned; stale until invalidated where the NPU writes */
    uint64_t dev_addr;
} ob_npu_bo;

/* Memory of one of these types, zeroed and flushed:
 *   OB_NPU_BO_SHARE  data: activations, weights, results;
 *   OB_NPU_BO_DEV    in the heap: control text and PDIs; the heap grows when it is full (to 512 MiB at most);
 *   OB_NPU_BO_CMD    a packet (npu_queue.c).
 * OB_E_NO_MEMORY says whether the heap or pinned memory ran out. */
OB_MUST_CHECK ob_status ob_npu_bo_new(ob_npu_dev *d, uint32_t type, size_t n_bytes, ob_npu_bo **out, ob_err *err);
/* Have at least n_bytes in *b (NULL: none yet). Where it must grow, by half more than asked for, and what was in it is lost. */
OB_MUST_CHECK ob_status ob_npu_bo_need(ob_npu_dev *d, uint32_t type, size_t n_bytes, ob_npu_bo **b, ob_err *err);
/* Lets the NPU into memory that is there already, such as a mapped file: no copy; `p` at a page, whole pages, pinned
 * until the buffer is freed, *borrowed*. It may write only where the process may. OB_E_UNSUPPORTED where the driver is
 * too old. */
OB_MUST_CHECK ob_status ob_npu_bo_wrap(ob_npu_dev *d, const void *p, size_t n_bytes, ob_npu_bo **out, ob_err *err);
void ob_npu_bo_free(ob_npu_bo *b); /* no command may be using it; NULL is fine */

/* [off, off + n) of a buffer; must lie in it. */
void ob_npu_bo_flush(const ob_npu_bo *b, size_t off, size_t n);
void ob_npu_bo_invalidate(const ob_npu_bo *b, size_t off, size_t n);
/* memcpy into the buffer, and flush. */
void ob_npu_bo_write(ob_npu_bo *b, size_t off, const void *src, size_t n);

/* What a shim DMA descriptor holds for byte `off` of a buffer (48 bits). */
static inline uint64_t ob_npu_shim_addr(const ob_npu_bo *b, size_t off) { return b->dev_addr + off + OB_NPU_SHIM_BASE; }

/* The heap (called by ob_npu_dev_open and _close). */
OB_MUST_CHECK ob_status ob_npu_heap_init(ob_npu_dev *d, ob_err *err);
void ob_npu_heap_deinit(ob_npu_dev *d);

#endif
