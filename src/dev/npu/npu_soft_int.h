/* dev/npu/npu_soft_int.h: what the files of the software model share. */
#ifndef OB_DEV_NPU_NPU_SOFT_INT_H
#define OB_DEV_NPU_NPU_SOFT_INT_H

#include <pthread.h>

#include "dev/npu/npu_soft.h"

enum {
    SOFT_CLIENTS = 8, SOFT_JOBS = 16 * OB_NPU_IN_FLIGHT, SOFT_FAULTS = 32, SOFT_FD = 1000, SOFT_MAX_CTX_HANDLE = 255,
    SOFT_CTXS = 16, SOFT_CTXS_XDNA1 = 6, SOFT_CTX_HEAP = 4 * 32 << 10, /* the driver's own slots, in the client's heap */
};
#define SOFT_CMD_NS 200000u /* of a command that does not say: the floor of a dispatch */

/* ---- faults ----------------------------------------------------------------------------------- */

typedef enum soft_fault_kind {
    FAULT_IOCTL, FAULT_UNPLUG, FAULT_OPEN, FAULT_MEMLOCK, FAULT_NO_CHIP, FAULT_NO_DRIVER, FAULT_GEOMETRY, FAULT_MMAP, FAULT_MISALIGN,
    FAULT_END, FAULT_LOST, FAULT_LIE, FAULT_SUSPEND, FAULT_FLIP, FAULT_SLOW, FAULT_HANG
} soft_fault_kind;

typedef struct soft_fault {
    soft_fault_kind kind;
    uint64_t n, n_seen;   /* which one, from 1; how many of these ioctls there were */
    uint32_t request;     /* 0: any */
    int index, value;     /* command; errno, state, columns */
    int value2;           /* rows */
    uint64_t bytes;
    double factor;
} soft_fault;

/* ---- what a driver keeps ---------------------------------------------------------------------- */

typedef struct soft_bo {
    struct soft_bo *next;
    int fd;
    uint32_t handle;      /* 0: closed, or the driver's own */
    uint32_t type;
    uint64_t n_bytes, map_offset, dev_addr; /* dev_addr: OB_NPU_NO_ADDR until there is one */
    uint8_t *host;        /* the CPU's view, NULL while not mapped */
    uint8_t *dev, *line;  /* the NPU's; and what both last agreed on, so a line that differs from it is dirty */
    bool was_mapped;
    bool user, read_only; /* somebody's own memory: one copy; which may not be writable */
    int n_jobs;           /* submissions that will read it */
    uint32_t owner_ctx;   /* the driver's own: of this context */
} soft_bo;

typedef struct soft_client {
    bool open;
    uint32_t next_bo, next_ctx, next_syncobj;
    uint8_t *heap_dev, *heap_line; /* OB_NPU_HEAP_MAX of address space each */
    uint64_t heap_bytes;
} soft_client;

typedef struct soft_ctx {
    struct soft_ctx *next;
    int fd;
    uint32_t handle;
    uint64_t n_submitted, n_done; /* fences up to n_done have signalled */
    int n_pending;
    uint64_t lost_seq;            /* from this fence on none signals; UINT64_MAX */
    uint32_t cus[OB_NPU_MAX_CUS];
    int n_cus;
} soft_ctx;

typedef struct soft_syncobj {
    struct soft_syncobj *next;
    int fd;
    uint32_t handle;
    soft_ctx *ctx;                /* NULL: it is gone, and all its fences have signalled */
    uint64_t n_submitted;
} soft_syncobj;

typedef struct soft_job { soft_ctx *ctx; soft_bo *cmd; uint64_t seq, number; } soft_job;

struct ob_npu_soft {
    ob_npu_os os;
    pthread_mutex_t lock;
    pthread_cond_t released;
    bool release;                 /* nothing may hang any more */
    int n_hanging;
    ob_npu_soft_options opt;
    int n_cols, n_core_rows;
    soft_fault faults[SOFT_FAULTS];
    int n_faults;
    soft_client clients[SOFT_CLIENTS];
    soft_bo *bos;
    soft_ctx *ctxs;
    soft_syncobj *syncobjs;
    soft_job jobs[SOFT_JOBS];     /* first in, first out */
    int n_jobs;
    uint64_t next_offset, next_iova, locked_bytes;
    void *array;
    soft_ctx *last_ctx;           /* whose state the array holds */
    soft_bo *last_at;             /* where the array's last access was */
    int64_t now_ns, idle_since_ns;
    uint64_t n_mmaps;
    char reason[160];             /* of the last fault of a command */
    ob_npu_soft_counts counts;
};

/* ---- faults (npu_soft_fault.c) ---------------------------------------------------------------- */

OB_MUST_CHECK ob_status soft_faults_parse(ob_npu_soft *s, const char *script, ob_err *err);
/* The first fault of this kind, for number n (0: whatever its number); NULL. */
const soft_fault *soft_fault_find(const ob_npu_soft *s, soft_fault_kind kind, uint64_t n);
/* What this ioctl, counted already, shall answer: 0 or a negative errno. */
int soft_fault_ioctl(ob_npu_soft *s, uint32_t request);

/* ---- memory (npu_soft_mem.c) ------------------------------------------------------------------ */

int soft_bo_create(ob_npu_soft *s, int fd, ob_npu_create_bo *a);
int soft_bo_info(ob_npu_soft *s, int fd, ob_npu_get_bo_info *a);
int soft_bo_sync(ob_npu_soft *s, int fd, const ob_npu_sync_bo *a);
int soft_bo_close(ob_npu_soft *s, int fd, uint32_t handle);
soft_bo *soft_bo_find(ob_npu_soft *s, int fd, uint32_t handle);
/* Takes a reference away; frees what has no handle, no mapping and no job. */
void soft_bo_drop(ob_npu_soft *s, soft_bo *b);
void soft_bo_close_all(ob_npu_soft *s, int fd);
/* Room in the heap for the driver itself. */
int soft_heap_take(ob_npu_soft *s, int fd, uint64_t n_bytes, uint32_t ctx);
void soft_heap_give(ob_npu_soft *s, int fd, uint32_t ctx);
int soft_mmap(ob_npu_soft *s, void *at, size_t n_bytes, int fd, uint64_t offset, void **out);
int soft_munmap(ob_npu_soft *s, void *p, size_t n_bytes);
/* What CLFLUSH does to these lines: one the CPU wrote to is written back, of another it gets memory's contents. */
void soft_lines(ob_npu_soft *s, const uint8_t *p, size_t n_bytes, bool invalidate);
/* ob_npu_soft_bus.at */
uint8_t *soft_at(void *arg, uint64_t addr, size_t n, bool writes);
static inline soft_client *soft_client_of(ob_npu_soft *s, int fd)
{
    return fd >= SOFT_FD && fd < SOFT_FD + SOFT_CLIENTS && s->clients[fd - SOFT_FD].open ? &s->clients[fd - SOFT_FD] : NULL;
}
static inline bool soft_pasid(const ob_npu_soft *s) { return !s->opt.iova; }

/* ---- the firmware (npu_soft_fw.c) ------------------------------------------------------------- */

/* Carries out the oldest job, and signals its fence. */
void soft_fw_run(ob_npu_soft *s);
/* Jobs until this fence has signalled or nothing is left. */
void soft_fw_run_until(ob_npu_soft *s, soft_ctx *ctx, uint64_t seq);
/* All of a context. */
void soft_fw_finish(ob_npu_soft *s, soft_ctx *ctx);

#endif
