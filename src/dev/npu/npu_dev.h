/* dev/npu/npu_dev.h: an NPU that is there, whether it can be used, and an open one.
 *
 * Owns: probing, admission with a reason and what to do about it, the descriptor and the identity of an open NPU. An
 * NPU is admitted by what it can do (driver 0.6, geometry, a command that runs), not by its name. Knows nothing of
 * kernels' contents.
 *
 * Threads: an open NPU belongs to one thread.
 */
#ifndef OB_DEV_NPU_NPU_DEV_H
#define OB_DEV_NPU_NPU_DEV_H

#include "base/status.h"
#include "dev/npu/npu_abi.h"
#include "dev/npu/npu_os.h"

typedef enum ob_npu_gen {
    OB_NPU_UNKNOWN, OB_NPU_1 /* Phoenix, Hawk Point: XDNA1 */, OB_NPU_4 /* Strix */, OB_NPU_5 /* Strix Halo */,
    OB_NPU_6 /* Krackan, Gorgon */, OB_NPU_AIE4 /* user-mode queues: another contract */
} ob_npu_gen;

/* Why an NPU cannot be used; OB_NPU_FINE: it can. */
typedef enum ob_npu_verdict {
    OB_NPU_FINE,
    OB_NPU_NO_CHIP,     /* no NPU of AMD in this machine */
    OB_NPU_NO_DRIVER,   /* the chip is there, its node is not */
    OB_NPU_NO_RIGHTS,   /* the node may not be opened */
    OB_NPU_NO_SVA,      /* the driver could not bind the process's addresses (IOMMU off) */
    OB_NPU_NO_MEMLOCK,  /* too little memory may be pinned */
    OB_NPU_OLD_DRIVER,  /* before 0.6, no opcode 22 */
    OB_NPU_OLD_FIRMWARE, /* before 6.12: cannot be preempted, so no opcode 22 either */
    OB_NPU_OLD_CHIP,    /* XDNA1: no opcode 22 in its firmware */
    OB_NPU_NEW_CHIP,    /* AIE4: user-mode queues */
    OB_NPU_FOREIGN,     /* not what it says it is: wrong driver name, unknown device */
    OB_NPU_GEOMETRY,    /* an array our kernels were not made for */
    OB_NPU_FAILED,      /* the driver answered a question with an error */
    OB_NPU_NO_KERNELS,  /* no kernel set */
    OB_NPU_BAD_KERNELS, /* the kernel set is another layout's, another device's, or damaged */
    OB_NPU_N_VERDICTS
} ob_npu_verdict;

/* What is known of an NPU. */
typedef struct ob_npu_id {
    ob_npu_node node;
    ob_npu_gen gen;
    int driver_major, driver_minor;
    ob_npu_firmware firmware;
    ob_npu_metadata array;   /* columns, rows of each kind */
    uint32_t clock_mhz;      /* of the array, as it is now; 0: unknown */
    int power_mode;          /* 0 default .. 4 turbo, -1 unknown; only root may change it */
    ob_npu_verdict verdict;
    char reason[256];        /* "" when fine; else one sentence that says what to do */
} ob_npu_id;

/* How many NPUs: 1 at least where a chip without a node is there, so that its reason is shown. */
int ob_npu_count(ob_npu_os *os);
/* Everything that can be known of the index-th, opening and closing it. Never fails: see `verdict`. Kernel sets
 * (npu_set.h) are looked for where the rest is fine. */
void ob_npu_probe(ob_npu_os *os, int index, ob_npu_id *out);
/* "no_sva" and the like, for JSON. */
const char *ob_npu_verdict_name(ob_npu_verdict v);
const char *ob_npu_gen_name(ob_npu_gen g); /* "npu4" */

/* A stretch of device addresses that is reserved, of which the heap has taken a part. Owned by npu_mem.c. */
typedef struct ob_npu_heap {
    uint8_t *reserved, *base; /* base: the first multiple of 64 MiB */
    size_t reserved_bytes, n_bytes, max_bytes;
    uint64_t dev_base;
    uint32_t handles[OB_NPU_HEAP_MAX / OB_NPU_HEAP_CHUNK];
    int n_chunks;
} ob_npu_heap;

typedef struct ob_npu_dev {
    ob_npu_os *os;      /* borrowed */
    int fd;
    ob_npu_id id;
    int n_cols, n_core_rows;
    ob_npu_heap heap;
    int n_bos, n_queues;   /* alive: 0 when everything was freed */
    uint64_t n_submits;
    int teardown_ms;       /* how long an ending context or descriptor is waited for */
    bool wedged;           /* a teardown did not come back: descriptor and memory are left to the kernel */
} ob_npu_dev;

/* Opens an NPU that is admitted (kernel sets apart) and makes its heap. Fails with the reason. */
OB_MUST_CHECK ob_status ob_npu_dev_open(ob_npu_os *os, int index, ob_npu_dev **out, ob_err *err);
/* Everything of it must have been freed. Comes back within teardown_ms also when the driver does not. */
void ob_npu_dev_close(ob_npu_dev *d);

/* An errno of the driver as a status and a sentence: "doing: what it means". Returns the status. */
ob_status ob_npu_fail(const ob_npu_dev *d, ob_err *err, int negative_errno, const char *doing);

/* Memory that must be lockable: the heap's first part, two staging buffers of 64 MiB, and activations. */
#define OB_NPU_MIN_MEMLOCK ((uint64_t)256 << 20)

/* Runs fn on a thread of its own, with a copy of arg's n_bytes, and waits at most `ms` of real time. False: it has not come
 * back. Without a thread or memory for one it is run here. */
bool ob_npu_bounded(void (*fn)(void *arg), void *arg, size_t n_bytes, int ms);

#endif
