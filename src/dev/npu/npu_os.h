/* dev/npu/npu_os.h: what the NPU device asks of the operating system, as a table.
 *
 * Owns: the seam between our code and the driver. The real table is libc and cache-line flushes (npu_os.c); the soft
 * one (npu_soft.h) is a driver, a firmware and memory of its own. Everything above uses only this table, so it is the
 * same code on both. Knows nothing of buffers, queues or kernels.
 *
 * Errors are negative errno values, as the kernel's. Functions may be called from several threads.
 */
#ifndef OB_DEV_NPU_NPU_OS_H
#define OB_DEV_NPU_NPU_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A node of AMD's NPU as sysfs shows it, without opening it. */
typedef struct ob_npu_node {
    char path[64];          /* "/dev/accel/accel0" */
    uint16_t vendor, device;
    uint8_t revision;
    char driver[32];        /* "amdxdna"; "" where no driver is bound */
    char name[64];          /* vbnv, such as "NPU Strix Halo"; "" when unknown */
    char firmware[32];      /* "" when unknown */
} ob_npu_node;

typedef struct ob_npu_os ob_npu_os;

typedef struct ob_npu_os_api {
    /* The index-th NPU (PCI vendor 1022 in class accel); -ENOENT when there are fewer. */
    int (*node)(ob_npu_os *os, int index, ob_npu_node *out);
    /* A PCI device of AMD's NPUs is there, whether or not it has a node (its driver may be missing). */
    bool (*chip)(ob_npu_os *os, ob_npu_node *out);
    uint64_t (*memlock)(ob_npu_os *os); /* RLIMIT_MEMLOCK in bytes, UINT64_MAX: unlimited */

    int (*open)(ob_npu_os *os, const char *path); /* a descriptor >= 0 */
    int (*close)(ob_npu_os *os, int fd);
    int (*ioctl)(ob_npu_os *os, int fd, uint32_t request, void *arg); /* EINTR is not hidden */
    /* fd < 0: addresses only (no access), for `at` NULL. Else a buffer object's memory, shared, readable and
     * writable, locked (no fault of the NPU may wait for the disk); at an address from such a reservation when `at` is not NULL. */
    int (*mmap)(ob_npu_os *os, void *at, size_t n_bytes, int fd, uint64_t offset, void **out);
    int (*munmap)(ob_npu_os *os, void *p, size_t n_bytes);
    /* The CPU's stores to these bytes reach memory before this returns. Works on whole cache lines. */
    void (*flush)(ob_npu_os *os, const void *p, size_t n_bytes);
    /* The CPU's next loads of these bytes come from memory. A line that the CPU has written to is written back first
     * and so destroys what the device wrote: never let both write one line. */
    void (*invalidate)(ob_npu_os *os, const void *p, size_t n_bytes);
    int64_t (*now_ns)(ob_npu_os *os); /* the clock of TIMELINE_WAIT's deadline; virtual in the soft driver */
} ob_npu_os_api;

struct ob_npu_os {
    const ob_npu_os_api *api; /* first member of every table's own struct */
    bool soft;                /* a software model: no hardware behind it */
};

enum { OB_NPU_LINE = 64 }; /* bytes of a cache line */

/* This machine's. Never NULL, never freed. */
ob_npu_os *ob_npu_os_real(void);
/* The same with another root of /sys (tests), such as "/tmp/x" for "/tmp/x/sys/class/accel". */
typedef struct ob_npu_os_libc { ob_npu_os base; char root[256]; } ob_npu_os_libc;
void ob_npu_os_libc_init(ob_npu_os_libc *os, const char *root);

/* ioctl that is repeated while it is interrupted (EINTR), and at most a few hundred times. */
int ob_npu_ioctl(ob_npu_os *os, int fd, uint32_t request, void *arg);

#endif
