/* Which NPU is there, whether it is admitted and why not, opening and closing it. */
#include "dev/npu/npu_dev.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "dev/npu/npu_mem.h"
#include "dev/npu/npu_set.h"

enum { TEARDOWN_MS = 5000, COLS = 8, CORE_ROWS = 4, MEM_ROWS = 1, MIN_MINOR = 6, MIN_FW_MAJOR = 6, MIN_FW_MINOR = 12 };

/* ---- names ------------------------------------------------------------------------------------ */

const char *ob_npu_verdict_name(ob_npu_verdict v)
{
    static const char *const k_names[OB_NPU_N_VERDICTS] = {
        [OB_NPU_FINE] = "fine", [OB_NPU_NO_CHIP] = "no_chip", [OB_NPU_NO_DRIVER] = "no_driver", [OB_NPU_NO_RIGHTS] = "no_rights",
        [OB_NPU_NO_SVA] = "no_sva", [OB_NPU_NO_MEMLOCK] = "no_memlock", [OB_NPU_OLD_DRIVER] = "old_driver",
        [OB_NPU_OLD_FIRMWARE] = "old_firmware", [OB_NPU_OLD_CHIP] = "old_chip", [OB_NPU_NEW_CHIP] = "new_chip",
        [OB_NPU_FOREIGN] = "foreign", [OB_NPU_GEOMETRY] = "geometry", [OB_NPU_FAILED] = "failed", [OB_NPU_NO_KERNELS] = "no_kernels",
        [OB_NPU_BAD_KERNELS] = "bad_kernels",
    };
    return v < OB_NPU_N_VERDICTS ? k_names[v] : "unknown";
}

const char *ob_npu_gen_name(ob_npu_gen g)
{
    static const char *const k_names[] = {"unknown", "npu1", "npu4", "npu5", "npu6", "aie4"};
    return g <= OB_NPU_AIE4 ? k_names[g] : "unknown";
}

static ob_npu_gen gen_of(const ob_npu_node *n)
{
    if (n->vendor != OB_NPU_PCI_AMD) return OB_NPU_UNKNOWN;
    if (n->device == OB_NPU_PCI_XDNA1) return OB_NPU_1;
    if ((n->device > OB_NPU_PCI_XDNA2 && n->device <= 0x17f3) || (n->device >= 0x1b0a && n->device <= 0x1b0c)) return OB_NPU_AIE4;
    if (n->device != OB_NPU_PCI_XDNA2) return OB_NPU_UNKNOWN;
    return n->revision == 0x10 ? OB_NPU_4 : n->revision == 0x11 ? OB_NPU_5 : n->revision == 0x20 ? OB_NPU_6 : OB_NPU_UNKNOWN;
}

/* ---- admission -------------------------------------------------------------------------------- */

static bool deny(ob_npu_id *id, ob_npu_verdict v, const char *fmt, ...) OB_PRINTF(3, 4);

static bool deny(ob_npu_id *id, ob_npu_verdict v, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(id->reason, sizeof id->reason, fmt, ap);
    va_end(ap);
    id->verdict = v;
    return false;
}

static bool find_node(ob_npu_os *os, int index, ob_npu_id *id)
{
    if (os->api->node(os, index, &id->node) == 0) {
        id->gen = gen_of(&id->node);
        if (id->gen == OB_NPU_AIE4)
            return deny(id, OB_NPU_NEW_CHIP, "this NPU (%04x:%04x) works with queues in user mode, which this program does not know",
                        id->node.vendor, id->node.device);
        return true;
    }
    if (!os->api->chip(os, &id->node)) return deny(id, OB_NPU_NO_CHIP, "no NPU of AMD (XDNA2, in Ryzen AI 300 and Max) in this machine");
    id->gen = gen_of(&id->node);
    return deny(id, OB_NPU_NO_DRIVER,
                "the NPU has no driver: needs Linux 6.14 or newer with CONFIG_DRM_ACCEL_AMDXDNA, the NPU's firmware "
                "(firmware-amd-graphics, linux-firmware), and `modprobe amdxdna`");
}

static bool open_node(ob_npu_os *os, ob_npu_id *id, int *fd)
{
    const int r = os->api->open(os, id->node.path);
    *fd = r;
    if (r >= 0) return true;
    if (r == -EACCES || r == -EPERM)
        return deny(id, OB_NPU_NO_RIGHTS, "%s may not be opened: add the user to the group `render` (usermod -aG render USER) and log in again",
                    id->node.path);
    if (r == -ENODEV || r == -ENXIO)
        return deny(id, OB_NPU_NO_SVA, "the driver cannot share this process's addresses (SVA): switch the IOMMU on in the firmware's setup, "
                                       "boot without amd_iommu=off, and with an older kernel also without iommu=pt");
    if (r == -ENOENT) return deny(id, OB_NPU_NO_DRIVER, "%s is not there: `modprobe amdxdna`, or pass the device into the container", id->node.path);
    return deny(id, OB_NPU_FAILED, "%s cannot be opened: %s", id->node.path, strerror(-r));
}

static int get_info(ob_npu_os *os, int fd, uint32_t param, void *out, size_t n_bytes)
{
    ob_npu_get_info a = {.param = param, .size = (uint32_t)n_bytes, .buffer = (uint64_t)(uintptr_t)out};
    return ob_npu_ioctl(os, fd, OB_NPU_IOC_GET_INFO, &a);
}

static bool ask_driver(ob_npu_os *os, int fd, ob_npu_id *id)
{
    char name[64] = "";
    ob_npu_drm_version v = {.name = (uint64_t)(uintptr_t)name, .name_len = sizeof name - 1};
    int r = ob_npu_ioctl(os, fd, OB_NPU_IOC_VERSION, &v);
    if (r) return deny(id, OB_NPU_FAILED, "the driver does not say its version: %s", strerror(-r));
    name[sizeof name - 1] = 0;
    id->driver_major = v.major;
    id->driver_minor = v.minor;
    if (strncmp(name, "amdxdna", 7) != 0)
        return deny(id, OB_NPU_FOREIGN, "%s belongs to the driver \"%.40s\", not to amdxdna", id->node.path, name);
    if (id->gen == OB_NPU_1) return deny(id, OB_NPU_OLD_CHIP, "an XDNA1 (Phoenix, Hawk Point): its firmware cannot run whole programs, XDNA2 can");
    if (id->gen == OB_NPU_UNKNOWN)
        return deny(id, OB_NPU_FOREIGN, "an NPU this program does not know (%04x:%04x revision %02x)", id->node.vendor, id->node.device,
                    id->node.revision);
    if (v.major == 0 && v.minor < MIN_MINOR)
        return deny(id, OB_NPU_OLD_DRIVER, "the driver is %d.%d, 0.%d is needed: Linux 7.1 or newer (Debian: trixie-backports), or AMD's "
                                           "xdna-driver as a module", v.major, v.minor, MIN_MINOR);
    r = get_info(os, fd, OB_NPU_INFO_METADATA, &id->array, sizeof id->array);
    if (r) return deny(id, OB_NPU_FAILED, "the driver does not describe its array: %s", strerror(-r));
    if (id->array.n_cols != COLS || id->array.core.n_rows != CORE_ROWS || id->array.mem.n_rows != MEM_ROWS)
        return deny(id, OB_NPU_GEOMETRY, "an array of %u columns with %u cores and %u memory tiles: kernels are made for %d with %d and %d",
                    id->array.n_cols, id->array.core.n_rows, id->array.mem.n_rows, COLS, CORE_ROWS, MEM_ROWS);
    return true;
}

/* What need not be known to go on. */
static bool ask_more(ob_npu_os *os, int fd, ob_npu_id *id)
{
    ob_npu_clocks clocks = {0};
    ob_npu_power power = {0};
    if (get_info(os, fd, OB_NPU_INFO_CLOCKS, &clocks, sizeof clocks) == 0) id->clock_mhz = clocks.array.mhz;
    if (get_info(os, fd, OB_NPU_INFO_POWER_MODE, &power, sizeof power) == 0) id->power_mode = power.mode;
    if (get_info(os, fd, OB_NPU_INFO_FIRMWARE, &id->firmware, sizeof id->firmware) != 0) return true;
    const ob_npu_firmware *f = &id->firmware;
    if (f->major && (f->major < MIN_FW_MAJOR || (f->major == MIN_FW_MAJOR && f->minor < MIN_FW_MINOR)))
        return deny(id, OB_NPU_OLD_FIRMWARE, "the NPU's firmware speaks protocol %u.%u, %d.%d is needed: update firmware-amd-graphics "
                                             "(linux-firmware)", f->major, f->minor, MIN_FW_MAJOR, MIN_FW_MINOR);
    return true;
}

/* Everything but kernel sets. On true *fd is open. */
static bool admit(ob_npu_os *os, int index, ob_npu_id *id, int *fd)
{
    memset(id, 0, sizeof *id);
    id->power_mode = -1;
    *fd = -1;
    if (!find_node(os, index, id)) return false;
    if (!open_node(os, id, fd)) return false;
    bool ok = ask_driver(os, *fd, id) && ask_more(os, *fd, id);
    const uint64_t lock = os->api->memlock(os);
    if (ok && lock < OB_NPU_MIN_MEMLOCK)
        ok = deny(id, OB_NPU_NO_MEMLOCK, "only %llu MiB of memory may be locked, %llu are needed: raise `memlock` in /etc/security/limits.conf "
                                         "(or LimitMEMLOCK= of the service) to unlimited", (unsigned long long)(lock >> 20),
                  (unsigned long long)(OB_NPU_MIN_MEMLOCK >> 20));
    if (!ok) {
        (void)os->api->close(os, *fd);
        *fd = -1;
    }
    return ok;
}

int ob_npu_count(ob_npu_os *os)
{
    ob_npu_node node;
    int n = 0;
    while (n < 64 && os->api->node(os, n, &node) == 0) n++;
    return n || !os->api->chip(os, &node) ? n : 1;
}

void ob_npu_probe(ob_npu_os *os, int index, ob_npu_id *out)
{
    int fd;
    if (!admit(os, index, out, &fd)) return;
    (void)os->api->close(os, fd);
    if (os->soft) return; /* its kernels are part of this program */
    ob_npu_set set;
    ob_err err;
    const ob_status s = ob_npu_set_find(out->gen, &set, &err);
    if (s != OB_OK) (void)deny(out, s == OB_E_NOT_FOUND ? OB_NPU_NO_KERNELS : OB_NPU_BAD_KERNELS, "%.250s", err.text);
}

/* ---- errors ----------------------------------------------------------------------------------- */

ob_status ob_npu_fail(const ob_npu_dev *d, ob_err *err, int r, const char *doing)
{
    const uint64_t lock = d->os->api->memlock(d->os);
    switch (-r) {
    case ENODEV: case ENXIO: return ob_err_set(err, OB_E_DEVICE_LOST, "%s: the NPU is gone", doing);
    case EIO: return ob_err_set(err, OB_E_DEVICE_LOST, "%s: the NPU's firmware does not answer", doing);
    case ENOMEM: case EAGAIN:
        if (lock == UINT64_MAX) return ob_err_set(err, OB_E_NO_MEMORY, "%s: no memory that can be locked is left", doing);
        return ob_err_set(err, OB_E_NO_MEMORY, "%s: no memory, or more than the %llu MiB that may be locked (ulimit -l)", doing,
                          (unsigned long long)(lock >> 20));
    case ENOSPC: return ob_err_set(err, OB_E_NO_MEMORY, "%s: no room is left on the NPU", doing);
    case EBUSY: return ob_err_set(err, OB_E_BUSY, "%s: the NPU is busy", doing);
    case ETIME: case ETIMEDOUT: return ob_err_set(err, OB_E_TIMEOUT, "%s: it did not end in time", doing);
    case EOPNOTSUPP: case ENOTTY: return ob_err_set(err, OB_E_UNSUPPORTED, "%s: this driver (0.%d) cannot", doing, d->id.driver_minor);
    default: return ob_err_set_errno(err, OB_E_DEVICE, -r, "%s", doing);
    }
}

/* ---- bounded calls ---------------------------------------------------------------------------- */

/* Freed by whoever is last: the waiter, or the thread that came back too late. */
typedef struct bounded {
    pthread_mutex_t lock;
    pthread_cond_t done_cond;
    void (*fn)(void *arg);
    bool done, left;
    max_align_t arg[];
} bounded;

static void bounded_free(bounded *b)
{
    pthread_cond_destroy(&b->done_cond);
    pthread_mutex_destroy(&b->lock);
    ob_free(b);
}

static void *bounded_main(void *p)
{
    bounded *b = p;
    b->fn(b->arg);
    pthread_mutex_lock(&b->lock);
    b->done = true;
    const bool mine = b->left;
    pthread_cond_signal(&b->done_cond);
    pthread_mutex_unlock(&b->lock);
    if (mine) bounded_free(b);
    return NULL;
}

bool ob_npu_bounded(void (*fn)(void *arg), void *arg, size_t n_bytes, int ms)
{
    pthread_t thread;
    pthread_condattr_t attr;
    struct timespec until;
    bounded *b = ob_calloc(1, sizeof *b + n_bytes);
    if (!b) {
        fn(arg);
        return true;
    }
    b->fn = fn;
    memcpy(b->arg, arg, n_bytes);
    pthread_mutex_init(&b->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&b->done_cond, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&thread, NULL, bounded_main, b) != 0) {
        bounded_free(b);
        fn(arg);
        return true;
    }
    pthread_detach(thread);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&b->lock);
    while (!b->done && pthread_cond_timedwait(&b->done_cond, &b->lock, &until) == 0) {}
    const bool done = b->done;
    b->left = !done;
    pthread_mutex_unlock(&b->lock);
    if (done) bounded_free(b);
    return done;
}

/* ---- open and close --------------------------------------------------------------------------- */

static ob_status verdict_status(ob_npu_verdict v)
{
    switch (v) {
    case OB_NPU_NO_CHIP: case OB_NPU_NO_DRIVER: return OB_E_NOT_FOUND;
    case OB_NPU_NO_RIGHTS: return OB_E_IO;
    case OB_NPU_NO_MEMLOCK: return OB_E_NO_MEMORY;
    case OB_NPU_FAILED: return OB_E_DEVICE;
    default: return OB_E_UNSUPPORTED;
    }
}

ob_status ob_npu_dev_open(ob_npu_os *os, int index, ob_npu_dev **out, ob_err *err)
{
    *out = NULL;
    ob_npu_dev *d = ob_calloc(1, sizeof *d);
    if (!d) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the NPU");
    *d = (ob_npu_dev){.os = os, .fd = -1, .teardown_ms = TEARDOWN_MS};
    ob_status s = OB_OK;
    if (!admit(os, index, &d->id, &d->fd)) {
        s = ob_err_set(err, verdict_status(d->id.verdict), "%s", d->id.reason);
    } else {
        d->n_cols = d->id.array.n_cols;
        d->n_core_rows = d->id.array.core.n_rows;
        s = ob_npu_heap_init(d, err);
    }
    if (s == OB_OK) *out = d;
    else ob_npu_dev_close(d);
    return s;
}

typedef struct closing { ob_npu_os *os; int fd; } closing;

static void close_node(void *arg)
{
    const closing *c = arg;
    (void)c->os->api->close(c->os, c->fd);
}

void ob_npu_dev_close(ob_npu_dev *d)
{
    if (!d) return;
    ob_npu_heap_deinit(d);
    closing c = {d->os, d->fd};
    if (d->fd >= 0 && !d->wedged && !ob_npu_bounded(close_node, &c, sizeof c, d->teardown_ms))
        ob_log_warn("npu: the driver has not let go within %d ms; it is left to the kernel", d->teardown_ms);
    ob_free(d);
}
