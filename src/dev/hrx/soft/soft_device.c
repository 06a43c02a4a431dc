/* Devices, buffers, executables and events of libhrx-soft: one pretended GPU in host memory. */
#include "dev/hrx/soft/soft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    bool initialised;
    soft_object *device, *allocator;
    uint64_t allocated;
} gpu;

const char *soft_architecture(void)
{
    const char *s = getenv("HRX_SOFT_ARCH");
    return s && *s ? s : "gfx1151";
}

static uint64_t total_memory(void)
{
    const char *s = getenv("HRX_SOFT_MEMORY_MB");
    if (s && *s) return strtoull(s, NULL, 10) << 20;
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

HRX_EXPORT void hrx_runtime_version(int *major, int *minor, int *patch)
{
    *major = 0;
    *minor = 1;
    *patch = 0;
}

/* Not in libhrx: tells that this is an emulation. */
HRX_EXPORT const char *hrx_soft_about(void) { return "interpreter of gfx11 machine code; no GPU"; }

/* ---- devices --------------------------------------------------------------------------------- */

HRX_EXPORT hrx_status hrx_gpu_initialize(uint32_t flags)
{
    SOFT_ENTRY();
    if (flags) return soft_status_make(HRX_INVALID_ARGUMENT, "flags");
    if (!gpu.device) gpu.device = soft_object_new(SOFT_DEVICE, sizeof *gpu.device);
    if (!gpu.allocator) gpu.allocator = soft_object_new(SOFT_ALLOCATOR, sizeof *gpu.allocator);
    if (!gpu.device || !gpu.allocator) return soft_status_make(HRX_NO_MEMORY, "no memory");
    gpu.initialised = true;
    return NULL;
}

HRX_EXPORT hrx_status hrx_gpu_shutdown(void)
{
    SOFT_ENTRY();
    if (!gpu.initialised) return soft_status_make(HRX_PRECONDITION, "not initialised");
    gpu.initialised = false;
    const unsigned n = soft_alive(SOFT_BUFFER) + soft_alive(SOFT_STREAM) + soft_alive(SOFT_EXECUTABLE) + soft_alive(SOFT_EVENT);
    if (n) soft_misuse("shut down with %u objects alive", n);
    return NULL;
}

HRX_EXPORT hrx_status hrx_gpu_device_count(int *n)
{
    SOFT_ENTRY();
    if (!gpu.initialised) return soft_status_make(HRX_PRECONDITION, "not initialised");
    const char *s = getenv("HRX_SOFT_DEVICES");
    *n = s && *s ? atoi(s) : 1;
    return NULL;
}

HRX_EXPORT hrx_status hrx_gpu_device_get(int index, hrx_handle *out)
{
    SOFT_ENTRY();
    *out = NULL;
    if (!gpu.initialised || index != 0) return soft_status_make(HRX_NOT_FOUND, "no device %d", index);
    *out = gpu.device;
    return NULL;
}

static hrx_status give_text(void *out, size_t cap, const char *text)
{
    if (cap < strlen(text) + 1) return soft_status_make(HRX_OUT_OF_RANGE, "%zu bytes are too few", cap);
    memcpy(out, text, strlen(text) + 1);
    return NULL;
}

HRX_EXPORT hrx_status hrx_device_get_property(hrx_handle h, int what, void *out, size_t cap)
{
    SOFT_ENTRY();
    if (!soft_object_get(h, SOFT_DEVICE, __func__)) return soft_status_make(HRX_INVALID_ARGUMENT, "no device");
    char name[64];
    const uint64_t total = total_memory();
    const uint32_t one = 1;
    switch (what) {
    case 0:
        snprintf(name, sizeof name, "interpreter of %.32s code", soft_architecture());
        return give_text(out, cap, name);
    case 1: return give_text(out, cap, soft_architecture());
    case 2:
        if (cap < sizeof total) return soft_status_make(HRX_OUT_OF_RANGE, "%zu bytes are too few", cap);
        memcpy(out, &total, sizeof total);
        return NULL;
    case 3:
        if (cap < sizeof one) return soft_status_make(HRX_OUT_OF_RANGE, "%zu bytes are too few", cap);
        memcpy(out, &one, sizeof one);
        return NULL;
    default: return soft_status_make(HRX_INVALID_ARGUMENT, "no property %d", what);
    }
}

HRX_EXPORT hrx_status hrx_device_memory_info(hrx_handle h, size_t *available, size_t *total)
{
    SOFT_ENTRY();
    if (!soft_object_get(h, SOFT_DEVICE, __func__)) return soft_status_make(HRX_INVALID_ARGUMENT, "no device");
    *total = total_memory();
    *available = *total > gpu.allocated ? *total - gpu.allocated : 0;
    return NULL;
}

HRX_EXPORT hrx_handle hrx_device_allocator(hrx_handle h)
{
    return soft_object_get(h, SOFT_DEVICE, __func__) ? gpu.allocator : NULL;
}

/* ---- buffers --------------------------------------------------------------------------------- */

HRX_EXPORT hrx_status hrx_allocator_allocate_buffer(hrx_handle h, hrx_buffer_params p, size_t n, hrx_handle *out)
{
    SOFT_ENTRY();
    *out = NULL;
    if (!soft_object_get(h, SOFT_ALLOCATOR, __func__) || !n) return soft_status_make(HRX_INVALID_ARGUMENT, "no allocator, or an empty buffer");
    if (n > total_memory() - (gpu.allocated < total_memory() ? gpu.allocated : total_memory()))
        return soft_status_make(HRX_NO_MEMORY, "no memory for a buffer of %zu bytes", n);
    soft_buffer *b = soft_object_new(SOFT_BUFFER, sizeof *b);
    if (b) b->data = aligned_alloc(256, (n + 255) & ~(size_t)255);
    if (!b || !b->data) {
        if (b) b->base.refs = 0;
        return soft_status_make(HRX_NO_MEMORY, "no memory for a buffer of %zu bytes", n);
    }
    memset(b->data, 0xff, n); /* what nobody wrote is NaN */
    b->len = n;
    b->mappable = p.usage & 0x01000000;
    gpu.allocated += n;
    *out = &b->base;
    return NULL;
}

void soft_buffer_gone(soft_buffer *b)
{
    gpu.allocated -= b->len;
    free(b->data);
    free(b->shadow);
    b->data = NULL;
    b->shadow = NULL;
}

HRX_EXPORT void hrx_buffer_retain(hrx_handle h)
{
    soft_object *o = soft_object_get(h, SOFT_BUFFER, __func__);
    if (o) o->refs++;
}

HRX_EXPORT void hrx_buffer_release(hrx_handle h)
{
    soft_buffer *b = h ? soft_object_get(h, SOFT_BUFFER, __func__) : NULL;
    if (!b) return;
    if (b->mapped && b->base.refs == 1) soft_misuse("a mapped buffer was released");
    if (b->base.refs <= b->n_pending) { /* only its commands hold it: the caller has no reference left to give */
        soft_misuse("buffer %llu was released too often", (unsigned long long)b->base.number);
        return;
    }
    if (soft_object_release(h, SOFT_BUFFER, __func__)) soft_buffer_gone(b);
}

HRX_EXPORT hrx_status hrx_buffer_map(hrx_handle h, uint16_t flags, size_t off, size_t n, void **out)
{
    SOFT_ENTRY();
    *out = NULL;
    soft_buffer *b = soft_object_get(h, SOFT_BUFFER, __func__);
    if (!b || !flags) return soft_status_make(HRX_INVALID_ARGUMENT, "no buffer, or no access");
    if (!b->mappable) return soft_status_make(HRX_PRECONDITION, "a buffer that was not allocated for mapping");
    if (off > b->len || n > b->len - off) return soft_status_make(HRX_OUT_OF_RANGE, "a map of %zu..+%zu of %zu", off, n, b->len);
    b->mapped = true;
    *out = b->data + off;
    return NULL;
}

HRX_EXPORT hrx_status hrx_buffer_unmap(hrx_handle h)
{
    SOFT_ENTRY();
    soft_buffer *b = soft_object_get(h, SOFT_BUFFER, __func__);
    if (!b || !b->mapped) return soft_status_make(HRX_PRECONDITION, "not mapped");
    b->mapped = false;
    return NULL;
}

static hrx_status host_range(hrx_handle h, size_t off, size_t n, const char *function, soft_buffer **out)
{
    *out = soft_object_get(h, SOFT_BUFFER, function);
    if (!*out) return soft_status_make(HRX_INVALID_ARGUMENT, "no buffer");
    if (off > (*out)->len || n > (*out)->len - off)
        return soft_status_make(HRX_OUT_OF_RANGE, "bytes %zu..+%zu of a buffer of %zu", off, n, (*out)->len);
    if ((*out)->n_pending) {
        soft_misuse("%s: the buffer has work that was not waited for", function);
        return soft_status_make(HRX_PRECONDITION, "the buffer has work that was not waited for");
    }
    return NULL;
}

HRX_EXPORT hrx_status hrx_synchronous_h2d(hrx_handle dev, const void *src, hrx_handle dst, size_t off, size_t n)
{
    SOFT_ENTRY();
    soft_buffer *b;
    if (!soft_object_get(dev, SOFT_DEVICE, __func__)) return soft_status_make(HRX_INVALID_ARGUMENT, "no device");
    hrx_status s = host_range(dst, off, n, __func__, &b);
    if (!s) memcpy(b->data + off, src, n);
    return s;
}

HRX_EXPORT hrx_status hrx_synchronous_d2h(hrx_handle dev, hrx_handle src, size_t off, void *dst, size_t n)
{
    SOFT_ENTRY();
    soft_buffer *b;
    if (!soft_object_get(dev, SOFT_DEVICE, __func__)) return soft_status_make(HRX_INVALID_ARGUMENT, "no device");
    hrx_status s = host_range(src, off, n, __func__, &b);
    if (!s) memcpy(dst, b->data + off, n);
    return s;
}

HRX_EXPORT hrx_status hrx_device_synchronize(hrx_handle h)
{
    SOFT_ENTRY();
    return soft_object_get(h, SOFT_DEVICE, __func__) ? NULL : soft_status_make(HRX_INVALID_ARGUMENT, "no device");
}

/* ---- executables ----------------------------------------------------------------------------- */

/* Code for this processor, or for every one of its family. */
static bool fits(const char *target)
{
    const char *arch = soft_architecture();
    return strstr(target, arch) || (!strncmp(arch, "gfx11", 5) && strstr(target, "gfx11-generic"));
}

/* HRX_SOFT_DROP=kernel:instruction, for tests: what the kernel does without any of these. */
static void drop_instructions(gfx_kernel *k)
{
    const char *s = getenv("HRX_SOFT_DROP"), *colon = s ? strchr(s, ':') : NULL;
    if (!colon || strlen(k->name) != (size_t)(colon - s) || strncmp(k->name, s, (size_t)(colon - s)) != 0) return;
    for (int32_t i = 0; i < k->n_insns; i++)
        if (k->insns[i].enc != GFX_VOPD && !strcmp(gfx_ops[k->insns[i].op].name, colon + 1)) k->insns[i].cls = GFX_NONE;
}

HRX_EXPORT hrx_status hrx_executable_load_data(hrx_handle dev, const void *data, size_t n, const char *format, hrx_handle *out)
{
    SOFT_ENTRY();
    char why[GFX_TEXT];
    *out = NULL;
    if (!soft_object_get(dev, SOFT_DEVICE, __func__)) return soft_status_make(HRX_INVALID_ARGUMENT, "no device");
    gfx_object *code;
    if (!gfx_object_read(data, n, &code, why)) return soft_status_make(HRX_INVALID_ARGUMENT, "%s", why);
    if (!fits(code->target) || (format && *format && strncmp(format, "amdgcn-amd-amdhsa--gfx", 22))) {
        hrx_status s = soft_status_make(HRX_INVALID_ARGUMENT, "code for %.64s on %s", code->target, soft_architecture());
        gfx_object_free(code);
        return s;
    }
    soft_executable *x = soft_object_new(SOFT_EXECUTABLE, sizeof *x);
    if (!x) {
        gfx_object_free(code);
        return soft_status_make(HRX_NO_MEMORY, "no memory for code");
    }
    x->code = code;
    for (uint32_t i = 0; i < code->n_kernels; i++)
        if (!gfx_decode(&code->kernels[i], why)) {
            soft_object_release(&x->base, SOFT_EXECUTABLE, __func__);
            gfx_object_free(code);
            return soft_status_make(HRX_UNIMPLEMENTED, "%s", why);
        }
    for (uint32_t i = 0; i < code->n_kernels; i++) drop_instructions(&code->kernels[i]);
    *out = &x->base;
    return NULL;
}

HRX_EXPORT void hrx_executable_release(hrx_handle h)
{
    if (!soft_object_release(h, SOFT_EXECUTABLE, __func__)) return;
    soft_executable *x = (soft_executable *)h;
    gfx_object_free(x->code);
    x->code = NULL;
}

HRX_EXPORT hrx_status hrx_executable_export_count(hrx_handle h, size_t *n)
{
    SOFT_ENTRY();
    soft_executable *x = soft_object_get(h, SOFT_EXECUTABLE, __func__);
    if (!x) return soft_status_make(HRX_INVALID_ARGUMENT, "no executable");
    *n = x->code->n_kernels;
    return NULL;
}

HRX_EXPORT hrx_status hrx_executable_lookup_export_by_name(hrx_handle h, const char *name, uint32_t *out)
{
    SOFT_ENTRY();
    soft_executable *x = soft_object_get(h, SOFT_EXECUTABLE, __func__);
    if (!x) return soft_status_make(HRX_INVALID_ARGUMENT, "no executable");
    for (uint32_t i = 0; i < x->code->n_kernels; i++)
        if (!strcmp(x->code->kernels[i].name, name)) {
            *out = i;
            return NULL;
        }
    return soft_status_make(HRX_NOT_FOUND, "no kernel %.64s", name);
}

HRX_EXPORT hrx_status hrx_executable_export_info(hrx_handle h, uint32_t ordinal, hrx_export_info *out)
{
    SOFT_ENTRY();
    soft_executable *x = soft_object_get(h, SOFT_EXECUTABLE, __func__);
    if (!x || ordinal >= x->code->n_kernels) return soft_status_make(HRX_INVALID_ARGUMENT, "no such kernel");
    const gfx_kernel *k = &x->code->kernels[ordinal];
    *out = (hrx_export_info){.name = k->name, .parameters = k->n_args};
    for (uint32_t i = 0; i < k->n_args; i++) {
        const gfx_arg *a = &k->args[i];
        if (a->buffer) out->bindings++;
        else out->constant_bytes = (out->constant_bytes + a->size - 1) / a->size * a->size + a->size;
    }
    memcpy(out->workgroup_size, k->workgroup, sizeof k->workgroup);
    return NULL;
}
