/* dev/npu/npu_soft.h: an NPU in software, behind the table of npu_os.h.
 *
 * Owns: a model of the amdxdna driver (npu_soft_kmd.c) and of the firmware that runs packets (npu_soft_fw.c), with
 * memory that is not coherent, a clock of its own and faults on demand. It keeps the driver's rules, refuses what the
 * driver refuses, and refuses PDIs made for hardware. It is no hardware, says nothing about speed, and whoever uses it
 * must say so. The array itself (DMA, cores) is behind ob_npu_soft_array.
 *
 * What it finds: a forgotten flush or invalidate, a wrong size, order or alignment, a buffer freed or rewritten while a
 * command may still read it (work is done as late as allowed unless `eager`), leaks.
 *
 * Threads: any; one lock.
 */
#ifndef OB_DEV_NPU_NPU_SOFT_H
#define OB_DEV_NPU_NPU_SOFT_H

#include "dev/npu/npu_dev.h"

typedef struct ob_npu_soft ob_npu_soft;

/* ---- the seam to the array -------------------------------------------------------------------- */

/* The NPU's side of memory. Addresses are the device's (dev_addr of npu_mem.h: a DMA descriptor's less
 * OB_NPU_SHIM_BASE, LOADPDI's as they are). */
typedef struct ob_npu_soft_bus {
    void *arg;
    /* The device's copy of `n` bytes, which must lie in one buffer; NULL: nothing is there (a page fault of the
     * NPU), or `writes` and the buffer may not be written to. Valid during the run. */
    uint8_t *(*at)(void *arg, uint64_t dev_addr, size_t n, bool writes);
} ob_npu_soft_bus;

typedef enum ob_npu_soft_end {
    OB_NPU_RUN_DONE,  /* all operations were carried out */
    OB_NPU_RUN_HANG,  /* a wait that nothing can end: the driver's watchdog will */
    OB_NPU_RUN_FAULT, /* an error the firmware sees: bad control text, PDI or address */
} ob_npu_soft_end;

typedef struct ob_npu_soft_run {
    uint32_t txn_op;   /* index of the operation at which it ended */
    uint64_t ns;       /* how long it took on the virtual clock; 0: the model's default */
    uint64_t write_addr; /* device address and bytes of the first store to memory; 0: none (for bit flips) */
    size_t write_bytes;
    char text[160];    /* HANG, FAULT: why, for a person */
} ob_npu_soft_run;

/* An array of cols x rows tiles. Made once per soft NPU; contexts share it, one after the other.
 *   make  NULL: no memory.
 *   run   one command's control text: n_words words as the firmware reads them from the device's copy. Untrusted:
 *         it must bound-check everything. State (registers, the loaded PDI, tile memory) stays for the next command.
 *   wipe  power was off, or another context ran: nothing is left; whoever runs without loading a PDI first faults. */
typedef struct ob_npu_soft_array {
    void *(*make)(int n_cols, int n_rows);
    void (*end)(void *array);
    ob_npu_soft_end (*run)(void *array, const uint32_t *txn, size_t n_words, const ob_npu_soft_bus *bus, ob_npu_soft_run *out);
    void (*wipe)(void *array);
} ob_npu_soft_array;

/* The interpreter of real control text with fixed-function cores (npu_array.c). */
extern const ob_npu_soft_array ob_npu_array;

/* A PDI of the software model begins with these bytes; a hardware PDI never does. The real path refuses one that does
 * (ob_npu_pdi_is_soft), the software model one that does not. The rest of its 64 bytes is npu_array.c's. */
#define OB_NPU_SOFT_PDI_MAGIC "1bitSOFT"
enum { OB_NPU_SOFT_PDI_BYTES = 64 };
bool ob_npu_pdi_is_soft(const void *pdi, size_t n_bytes);
/* Both refusals: a soft PDI on hardware, a hardware PDI on the model. To be called before a PDI is loaded. */
OB_MUST_CHECK ob_status ob_npu_pdi_admit(const ob_npu_dev *d, const void *pdi, size_t n_bytes, ob_err *err);

/* ---- making one ------------------------------------------------------------------------------- */

typedef struct ob_npu_soft_options {
    const ob_npu_soft_array *array; /* NULL: ob_npu_array */
    ob_npu_gen gen;          /* OB_NPU_UNKNOWN: OB_NPU_5 */
    int driver_minor;        /* 0, 6, 8, 16, ...; < 0: 8. Below 6 no opcode 22; below 7 no user pointers */
    ob_npu_firmware firmware; /* major 0: one of the driver's time (6.18 allows the heap to grow) */
    bool iova;               /* device addresses are not the process's */
    bool eager;              /* work is done when submitted, not when waited for */
    const char *faults;      /* NULL or a script, see below */
} ob_npu_soft_options;

/* `faults`: items split by commas; n counts from 1, and but for ioctls may be * for each.
 *   ioctl:NAME:n:ERRNO     the nth such ioctl fails (NAME as CREATE_BO, * for any; ERRNO as ENOMEM)
 *   unplug:n               from the nth ioctl on everything is ENODEV
 *   open:ERRNO             opening fails (ENODEV: SVA, EACCES: rights, ENOENT)
 *   memlock:BYTES          RLIMIT_MEMLOCK
 *   nochip, nodriver       nothing there, or a chip without a node
 *   geometry:COLSxROWS     another array
 *   mmap:n                 the nth mapping fails (ENOMEM)
 *   misalign               the heap's buffers want another address than they got (EINVAL)
 *   end:n:i:STATE          command i (from 0) of the nth submission ends as ERROR, ABORT, TIMEOUT or NORESPONSE
 *   lost:n                 the nth submission's completion never comes
 *   lie:n:STATE            the nth submission's fence signals with the packet in STATE (NEW, RUNNING, ...)
 *   suspend:n              5 s pass before the nth submission starts: the array is wiped
 *   flip:n                 a bit of the first bytes that the nth submission wrote is wrong
 *   slow:F                 everything takes F times as long
 *   hang:destroy           DESTROY_HWCTX does not return until ob_npu_soft_free */
OB_MUST_CHECK ob_status ob_npu_soft_new(const ob_npu_soft_options *opt, ob_npu_soft **out, ob_err *err);
void ob_npu_soft_free(ob_npu_soft *s); /* everything must be closed; NULL is fine */
ob_npu_os *ob_npu_soft_os(ob_npu_soft *s);
/* The one behind `--device npu-soft`; OB_NPU_SOFT_FAULTS, OB_NPU_SOFT_DRIVER (minor), OB_NPU_SOFT_GEN (npu4),
 * OB_NPU_SOFT_IOVA=1, OB_NPU_SOFT_EAGER=1 change it. Made at the first call, never freed; NULL: no memory or a wrong
 * variable, with the reason in *err. */
ob_npu_soft *ob_npu_soft_shared(ob_err *err);

/* Time passes with nothing to do. */
void ob_npu_soft_idle(ob_npu_soft *s, int64_t ms);

/* What is alive, and what happened. Everything of the first line is 0 after everything was freed. */
typedef struct ob_npu_soft_counts {
    int n_fds, n_bos, n_maps, n_ctxs, n_syncobjs;
    uint64_t pinned_bytes;
    uint64_t n_ioctls, n_submits, n_cmds, n_wipes, n_tdr, n_suspends, n_stale_writes; /* stale: invalidate over dirty lines */
    int64_t now_ns;
} ob_npu_soft_counts;
ob_npu_soft_counts ob_npu_soft_counts_get(ob_npu_soft *s);
/* Why the last command failed (what hardware does not say); "" when none did. */
void ob_npu_soft_last_fault(ob_npu_soft *s, char *text, size_t cap);

#endif
