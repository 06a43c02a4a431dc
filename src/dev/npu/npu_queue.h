/* dev/npu/npu_queue.h: a hardware context, commands in chains, waiting and what went wrong.
 *
 * Owns: a context on all columns with its timeline, packets, the order of submissions, failures and starting anew.
 * Knows nothing of what control text does.
 *
 * Rules kept here (drivers' and firmware's):
 *   - the first submission is the init text alone, and is waited for before the second: on a timeline, point 0 means
 *     "the last fence", so it could not be waited for later;
 *   - every chain begins with the init text: another context, or 5 s without work, wipes the array;
 *   - a chain has at most 73 commands (the driver's slot is 4 KiB) and is estimated at under 500 ms (the driver ends a
 *     context that completes nothing for 2 s);
 *   - a signalled fence says that it is over, not that it went well: the packet's state does.
 *
 * Threads: a queue belongs to one thread.
 */
#ifndef OB_DEV_NPU_NPU_QUEUE_H
#define OB_DEV_NPU_NPU_QUEUE_H

#include "dev/npu/npu_mem.h"

typedef struct ob_npu_queue ob_npu_queue;

/* Control text in a buffer of type OB_NPU_BO_DEV, flushed, ready to run. Borrowed until its command was waited for. */
typedef struct ob_npu_cmd {
    const ob_npu_bo *text;
    size_t off, n_bytes;  /* off: a multiple of 4 */
    double est_ms;        /* how long it may take on the device; 0: 1 ms */
} ob_npu_cmd;

typedef struct ob_npu_queue_options {
    ob_npu_cmd init;      /* loads the PDI; its text stays borrowed as long as the queue lives */
    double chain_ms;      /* most of a chain, estimated; 0: 500 */
    int chain_cmds;       /* most commands of a chain, init included; 0: 73 */
    int wait_ms;          /* how long a fence is waited for before the driver itself is given up; 0: 10000 */
    int n_retries;        /* of ob_npu_queue_run after a failure, each on a new context; < 0: none; 0: one */
} ob_npu_queue_options;

/* Makes the context and runs the init text, waited for. */
OB_MUST_CHECK ob_status ob_npu_queue_new(ob_npu_dev *d, const ob_npu_queue_options *opt, ob_npu_queue **out, ob_err *err);
/* Waits for what is in flight, ends the context; bounded in time (ob_npu_dev.teardown_ms). NULL is fine. */
void ob_npu_queue_free(ob_npu_queue *q);

/* Gives commands to the NPU, in order, in as many chains as they need; returns at once unless four are in flight.
 * *ticket is what ob_npu_queue_wait takes: all of these and all earlier ones. On failure none of them may be
 * assumed to have run. Allocates only where a chain is longer than all before it. */
OB_MUST_CHECK ob_status ob_npu_queue_submit(ob_npu_queue *q, const ob_npu_cmd *cmds, size_t n, uint64_t *ticket, ob_err *err);
/* OB_E_TIMEOUT  a command did not end (driver's watchdog, or wait_ms);
 * OB_E_DEVICE   a command failed: which one, the firmware's words;
 * OB_E_DEVICE_LOST  the device or its firmware is gone.
 * After a failure the queue is broken: everything else in flight is lost too, and submit fails until
 * ob_npu_queue_reset. Results must be invalidated by the caller (npu_mem.h). */
OB_MUST_CHECK ob_status ob_npu_queue_wait(ob_npu_queue *q, uint64_t ticket, ob_err *err);
/* Submit and wait; after a failure that may not repeat, once more on a new context (one warning in the log). Commands
 * must be such that running them twice is harmless. */
OB_MUST_CHECK ob_status ob_npu_queue_run(ob_npu_queue *q, const ob_npu_cmd *cmds, size_t n, ob_err *err);
/* A new context in place of a broken one, with init run. */
OB_MUST_CHECK ob_status ob_npu_queue_reset(ob_npu_queue *q, ob_err *err);
bool ob_npu_queue_broken(const ob_npu_queue *q);

typedef struct ob_npu_queue_stats { uint64_t n_chains, n_cmds, n_failures, n_resets; } ob_npu_queue_stats;
ob_npu_queue_stats ob_npu_queue_stats_get(const ob_npu_queue *q);

/* ---- packets, as bytes: no device needed ------------------------------------------------------ */

/* Each fills words[] (capacity `cap`) and returns how many there are, 0 when they do not fit or cannot be expressed.
 * ELF: opcode 22. NPU: opcode 20, control text for the CU in cu_mask, with argument words. CU: opcode 0, the
 * register map of the classic path: u64 3, text address, text words, buffer addresses. Chain: opcode 19. */
size_t ob_npu_packet_make_elf(uint32_t *words, size_t cap, uint64_t text, uint32_t text_bytes);
size_t ob_npu_packet_make_npu(uint32_t *words, size_t cap, uint32_t cu_mask, uint64_t text, uint32_t text_bytes,
                              const uint32_t *args, size_t n_args);
size_t ob_npu_packet_make_cu(uint32_t *words, size_t cap, uint32_t cu_mask, uint64_t text, uint32_t text_words,
                             const uint64_t *buffers, size_t n_buffers);
size_t ob_npu_packet_make_chain(uint32_t *words, size_t cap, const uint32_t *handles, size_t n);
/* What a finished packet says: OB_OK when its state is COMPLETED. `first` is the packet whose payload holds the
 * firmware's words (of a chain: its first; else the packet itself), in words. */
ob_status ob_npu_packet_result(const uint32_t *packet, const uint32_t *first, size_t first_words, ob_err *err);

#endif
