/* The real table: libc, sysfs and cache-line flushes. */
#include "dev/npu/npu_os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "dev/npu/npu_abi.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { MAX_NODES = 64, PATH_CAP = 640, MAX_INTERRUPTS = 1000 };

/* ---- sysfs ----------------------------------------------------------------------------------- */

/* The first line of a small file, without its end; false where there is none. */
static bool read_line(const char *path, char *text, size_t cap)
{
    FILE *f = fopen(path, "re");
    if (!f) return false;
    const bool ok = fgets(text, (int)cap, f) != NULL;
    fclose(f);
    if (ok) text[strcspn(text, "\n")] = 0;
    return ok;
}

static unsigned long read_hex(const char *dir, const char *name)
{
    char path[PATH_CAP + 32], text[32];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return read_line(path, text, sizeof text) ? strtoul(text, NULL, 16) : 0;
}

static void read_text(const char *dir, const char *name, char *text, size_t cap)
{
    char path[PATH_CAP + 32];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!read_line(path, text, cap)) text[0] = 0;
}

/* What a PCI device's folder says of it. */
static void read_device(const char *dir, ob_npu_node *out)
{
    char path[PATH_CAP + 32], link[256];
    out->vendor = (uint16_t)read_hex(dir, "vendor");
    out->device = (uint16_t)read_hex(dir, "device");
    out->revision = (uint8_t)read_hex(dir, "revision");
    read_text(dir, "vbnv", out->name, sizeof out->name);
    read_text(dir, "fw_version", out->firmware, sizeof out->firmware);
    snprintf(path, sizeof path, "%s/driver", dir);
    const ssize_t n = readlink(path, link, sizeof link - 1);
    if (n <= 0) return;
    link[n] = 0;
    const char *base = strrchr(link, '/');
    snprintf(out->driver, sizeof out->driver, "%.31s", base ? base + 1 : link);
}

static int real_node(ob_npu_os *os, int index, ob_npu_node *out)
{
    const char *root = ((ob_npu_os_libc *)os)->root;
    for (int i = 0; i < MAX_NODES; i++) {
        char dir[PATH_CAP];
        snprintf(dir, sizeof dir, "%s/sys/class/accel/accel%d/device", root, i);
        memset(out, 0, sizeof *out);
        read_device(dir, out);
        if (out->vendor != OB_NPU_PCI_AMD || index-- > 0) continue;
        snprintf(out->path, sizeof out->path, "/dev/accel/accel%d", i);
        return 0;
    }
    return -ENOENT;
}

static bool is_npu(uint16_t device)
{
    return device == OB_NPU_PCI_XDNA1 || (device >= OB_NPU_PCI_XDNA2 && device <= 0x17f3) || (device >= 0x1b0a && device <= 0x1b0c);
}

static bool real_chip(ob_npu_os *os, ob_npu_node *out)
{
    char path[PATH_CAP];
    bool found = false;
    const int n = snprintf(path, sizeof path, "%s/sys/bus/pci/devices", ((ob_npu_os_libc *)os)->root);
    DIR *d = opendir(path);
    if (!d) return false;
    for (const struct dirent *e; !found && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path + n, sizeof path - (size_t)n, "/%.64s", e->d_name);
        memset(out, 0, sizeof *out);
        read_device(path, out);
        found = out->vendor == OB_NPU_PCI_AMD && is_npu(out->device);
    }
    closedir(d);
    return found;
}

static uint64_t real_memlock(ob_npu_os *os)
{
    struct rlimit r;
    (void)os;
    if (geteuid() == 0) return UINT64_MAX; /* CAP_IPC_LOCK */
    return getrlimit(RLIMIT_MEMLOCK, &r) || r.rlim_cur == RLIM_INFINITY ? UINT64_MAX : r.rlim_cur;
}

/* ---- the driver ------------------------------------------------------------------------------ */

static int real_open(ob_npu_os *os, const char *path)
{
    (void)os;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int real_close(ob_npu_os *os, int fd)
{
    (void)os;
    return close(fd) ? -errno : 0;
}

static int real_ioctl(ob_npu_os *os, int fd, uint32_t request, void *arg)
{
    (void)os;
    return ioctl(fd, (unsigned long)request, arg) < 0 ? -errno : 0;
}

static int real_mmap(ob_npu_os *os, void *at, size_t n_bytes, int fd, uint64_t offset, void **out)
{
    (void)os;
    const int prot = fd < 0 ? PROT_NONE : PROT_READ | PROT_WRITE;
    const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED | MAP_LOCKED | (at ? MAP_FIXED : 0);
    void *p = mmap(at, n_bytes, prot, flags, fd, (off_t)offset);
    if (p == MAP_FAILED) return -errno;
    *out = p;
    return 0;
}

static int real_munmap(ob_npu_os *os, void *p, size_t n_bytes)
{
    (void)os;
    return munmap(p, n_bytes) ? -errno : 0;
}

/* CLFLUSH writes a dirty line back and drops it, so it serves both ways. Only x86 machines have this NPU. */
static void real_flush(ob_npu_os *os, const void *p, size_t n_bytes)
{
    (void)os;
#if defined(__x86_64__)
    if (!n_bytes) return;
    const char *line = (const char *)((uintptr_t)p & ~(uintptr_t)(OB_NPU_LINE - 1)), *end = (const char *)p + n_bytes;
    _mm_mfence();
    for (; line < end; line += OB_NPU_LINE) _mm_clflush(line);
    _mm_mfence();
#else
    (void)p;
    (void)n_bytes;
    __sync_synchronize();
#endif
}

static int64_t real_now(ob_npu_os *os)
{
    (void)os;
    return ob_now_ns();
}

static const ob_npu_os_api k_real = {
    .node = real_node, .chip = real_chip, .memlock = real_memlock, .open = real_open, .close = real_close, .ioctl = real_ioctl,
    .mmap = real_mmap, .munmap = real_munmap, .flush = real_flush, .invalidate = real_flush, .now_ns = real_now,
};

void ob_npu_os_libc_init(ob_npu_os_libc *os, const char *root)
{
    *os = (ob_npu_os_libc){.base.api = &k_real};
    snprintf(os->root, sizeof os->root, "%s", root);
}

ob_npu_os *ob_npu_os_real(void)
{
    static ob_npu_os_libc os = {.base.api = &k_real};
    return &os.base;
}

int ob_npu_ioctl(ob_npu_os *os, int fd, uint32_t request, void *arg)
{
    int r = -EINTR;
    for (int i = 0; r == -EINTR && i < MAX_INTERRUPTS; i++) r = os->api->ioctl(os, fd, request, arg);
    return r;
}
