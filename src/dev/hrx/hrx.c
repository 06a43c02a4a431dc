/* The HRX device: what there is, opening and closing it, its table of functions. */
#include "dev/hrx/hrx.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/log.h"
#include "dev/hrx/hrx_int.h"

static void text_property(const hx_lib *l, hx_object device, int what, char *text, size_t cap)
{
    hx_status s = l->device_get_property(device, what, text, cap);
    if (!s) return;
    l->status_ignore(s);
    snprintf(text, cap, "unknown");
}

/* ---- what there is --------------------------------------------------------------------------- */

/* A library that is there and cannot be used counts as one device, so that it is listed with the reason. */
static int system_count(void)
{
    const hx_lib *l = hx_lib_get(false);
    return l->missing[0] ? l->handle != NULL : l->n_devices;
}
static int soft_count(void) { return 1; }

static void fill(const hx_lib *l, const char *kind, int index, const char *name, const char *arch, ob_dev_info *out)
{
    memset(out, 0, sizeof *out);
    snprintf(out->kind, sizeof out->kind, "%s", kind);
    out->index = index;
    out->caps = OB_DEV_ASYNC | OB_DEV_GPU | OB_DEV_EXACT | OB_DEV_SAMPLE | OB_DEV_HADAMARD | OB_DEV_ACT4 | OB_DEV_HALF_ATTN |
                (l->soft && !l->missing[0] ? OB_DEV_SOFT : OB_DEV_GATED);
    out->max_tok = OB_MAX_UBATCH;
    out->max_buffer_bytes = UINT32_MAX;
    snprintf(out->name, sizeof out->name, "%.90s (%.30s)", name, arch);
    snprintf(out->driver, sizeof out->driver, "HRX %d.%d.%d", l->version[0], l->version[1], l->version[2]);
    out->available = !l->missing[0];
    snprintf(out->reason, sizeof out->reason, "%s", l->missing);
}

static void probe(const hx_lib *l, const char *kind, int index, ob_dev_info *out)
{
    char name[96] = "AMD GPU", arch[32] = "unknown";
    hx_object device = NULL;
    size_t available = 0, total = 0;
    if (!l->missing[0]) {
        hx_status s = l->gpu_device_get(index, &device);
        if (s) l->status_ignore(s);
    }
    if (device) {
        text_property(l, device, HX_PROPERTY_NAME, name, sizeof name);
        text_property(l, device, HX_PROPERTY_ARCH, arch, sizeof arch);
        hx_status s = l->device_memory_info(device, &available, &total);
        if (s) l->status_ignore(s);
    }
    fill(l, kind, index, name, arch, out);
    out->mem_total_bytes = total;
    out->mem_free_bytes = available;
    if (device && !hx_code_for(arch)) {
        out->available = false;
        snprintf(out->reason, sizeof out->reason, "no kernels for %s", arch);
    }
}

static void system_probe(int index, ob_dev_info *out) { probe(hx_lib_get(false), "hrx", index, out); }
static void soft_probe(int index, ob_dev_info *out) { probe(hx_lib_get(true), "hrx-soft", index, out); }

static void hrx_describe(const ob_dev *dev, ob_dev_info *out)
{
    const hx_dev *d = (const hx_dev *)dev;
    size_t available = 0, total = 0;
    fill(d->lib, dev->api->kind, d->index, d->name, d->arch, out);
    const size_t n = strlen(out->driver);
    if (d->compiler.usable) snprintf(out->driver + n, sizeof out->driver - n, ", kernels by %.40s", d->compiler.version);
    hx_status s = d->lib->device_memory_info(d->device, &available, &total);
    if (s) d->lib->status_ignore(s);
    out->mem_total_bytes = total;
    out->mem_free_bytes = available;
    out->n_submits = d->n_submits;
    if (d->disabled[0]) snprintf(out->reason, sizeof out->reason, "switched off: %.200s", d->disabled);
    if (d->lost) {
        out->available = false;
        snprintf(out->reason, sizeof out->reason, "the device was lost");
    }
}

/* ---- open and close -------------------------------------------------------------------------- */

static void hrx_close(ob_dev *dev)
{
    hx_dev *d = hx_of(dev);
    hx_settle(d);
    hx_code_deinit(d);
    if (d->none) d->lib->buffer_release(d->none);
    if (d->stream) d->lib->stream_release(d->stream);
    ob_free(d);
}

static ob_status open_device(const ob_dev_api *api, bool soft, int index, const ob_dev_options *opt, ob_dev **out, ob_err *err)
{
    static const float zeros[64];
    const hx_lib *l = hx_lib_get(soft);
    ob_status s = OB_OK;
    *out = NULL;
    if (l->missing[0]) return ob_err_set(err, OB_E_NOT_FOUND, "%s", l->missing);
    hx_dev *d = ob_calloc(1, sizeof *d);
    if (!d) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the HRX device");
    *d = (hx_dev){.base.api = api, .lib = l, .index = index, .exact = opt->exact};
    OB_GOTO(hx_check(l, l->gpu_device_get(index, &d->device), "opening the device", err));
    text_property(l, d->device, HX_PROPERTY_NAME, d->name, sizeof d->name);
    text_property(l, d->device, HX_PROPERTY_ARCH, d->arch, sizeof d->arch);
    const char *code = hx_code_for(d->arch);
    if (!code) {
        s = ob_err_set(err, OB_E_UNSUPPORTED, "hrx: no kernels for %s", d->arch);
        goto out;
    }
    snprintf(d->code_arch, sizeof d->code_arch, "%s", code);
    hx_compiler_find(&d->compiler, !strcmp(code, d->arch));
    if (d->compiler.why[0]) ob_log_warn("hrx: OB_LOOM_COMPILE: %s", d->compiler.why);
    d->allocator = l->device_allocator(d->device);
    OB_GOTO(hx_check(l, l->stream_create(d->device, 0, &d->stream), "making a stream", err));
    OB_GOTO(hx_alloc(d, sizeof zeros, &d->none, err));
    OB_GOTO(hx_upload(d, d->none, 0, zeros, sizeof zeros, err));
    if (soft) ob_log_info("hrx-soft interprets the machine code of an AMD GPU: its numbers are right, its times say nothing");
    *out = &d->base;
out:
    if (s != OB_OK) hrx_close(&d->base);
    return s;
}

static ob_status system_open(int index, const ob_dev_options *opt, ob_dev **out, ob_err *err)
{
    return open_device(&ob_dev_hrx, false, index, opt, out, err);
}
static ob_status soft_open(int index, const ob_dev_options *opt, ob_dev **out, ob_err *err)
{
    return open_device(&ob_dev_hrx_soft, true, index, opt, out, err);
}

static void *no_map(ob_dev *dev, ob_dev_buf *b)
{
    (void)dev;
    (void)b;
    return NULL;
}

/* ---- tables ---------------------------------------------------------------------------------- */

#define SHARED_FUNCTIONS                                                                                               \
    .close = hrx_close, .describe = hrx_describe, .buffer_new = hx_buffer_new, .buffer_free = hx_buffer_free,           \
    .buffer_write = hx_buffer_write, .buffer_read = hx_buffer_read, .buffer_copy = hx_buffer_copy,                       \
    .buffer_zero = hx_buffer_zero, .buffer_map = no_map, .supports = hx_supports, .weight_new = hx_weight_new,           \
    .weight_free = hx_weight_free, .plan_new = hx_plan_new, .plan_free = hx_plan_free, .write_input = hx_write_input,    \
    .submit = hx_submit, .wait = hx_wait, .read_output = hx_read_output

const ob_dev_api ob_dev_hrx = {.kind = "hrx", .count = system_count, .probe = system_probe, .open = system_open, SHARED_FUNCTIONS};
const ob_dev_api ob_dev_hrx_soft = {.kind = "hrx-soft", .count = soft_count, .probe = soft_probe, .open = soft_open, SHARED_FUNCTIONS};
