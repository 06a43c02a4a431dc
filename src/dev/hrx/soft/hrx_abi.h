/* dev/hrx/soft/hrx_abi.h: the part of libhrx's C interface that libhrx-soft implements. Own declarations of a public
 * interface (version 0.1); src/dev/hrx has its own, so that a slip in one shows against the other. */
#ifndef OB_DEV_HRX_SOFT_ABI_H
#define OB_DEV_HRX_SOFT_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HRX_EXPORT __attribute__((visibility("default")))

typedef struct soft_status *hrx_status;
typedef struct soft_object *hrx_handle;

enum {
    HRX_INVALID_ARGUMENT = 3, HRX_NOT_FOUND = 5, HRX_NO_MEMORY = 8, HRX_PRECONDITION = 9, HRX_OUT_OF_RANGE = 11,
    HRX_UNIMPLEMENTED = 12, HRX_INTERNAL = 13, HRX_UNAVAILABLE = 14, HRX_DATA_LOSS = 15
};

typedef struct hrx_buffer_params { uint32_t type; uint16_t access; uint32_t usage; uint64_t affinity; } hrx_buffer_params;
typedef struct hrx_dispatch_config { uint32_t count[3], size[3], subgroup; } hrx_dispatch_config;
typedef struct hrx_buffer_ref { hrx_handle buffer; size_t offset, length; } hrx_buffer_ref;
typedef struct hrx_export_info {
    const char *name;
    uint32_t flags, constant_bytes, bindings, parameters, workgroup_size[3];
} hrx_export_info;

_Static_assert(sizeof(hrx_buffer_params) == 24 && offsetof(hrx_buffer_params, usage) == 8, "buffer parameters");
_Static_assert(sizeof(hrx_dispatch_config) == 28 && sizeof(hrx_buffer_ref) == 24 && sizeof(hrx_export_info) == 40, "layouts");

HRX_EXPORT int hrx_status_code(hrx_status s);
HRX_EXPORT void hrx_status_ignore(hrx_status s);
HRX_EXPORT hrx_status hrx_status_to_string(hrx_status s, char **text, size_t *len);
HRX_EXPORT void hrx_status_free_message(char *text);
HRX_EXPORT unsigned hrx_soft_misuses(void);
HRX_EXPORT hrx_status hrx_stream_copy_h2d(hrx_handle stream, const void *src, hrx_handle dst, size_t off, size_t n);
HRX_EXPORT hrx_status hrx_stream_copy_d2h(hrx_handle stream, hrx_handle src, size_t off, void *dst, size_t n);
HRX_EXPORT hrx_status hrx_stream_update_buffer(hrx_handle stream, const void *src, size_t n, hrx_handle dst,
           size_t off);
HRX_EXPORT hrx_status hrx_stream_fill_buffer(hrx_handle stream, hrx_handle dst, size_t off, size_t n, const void *pattern,
           size_t len);
HRX_EXPORT hrx_status hrx_stream_copy_buffer(hrx_handle stream, hrx_handle src, size_t src_off, hrx_handle dst,
           size_t dst_off, size_t n);
HRX_EXPORT hrx_status hrx_stream_dispatch(hrx_handle stream, hrx_handle exe, uint32_t ordinal,
           const hrx_dispatch_config *cfg, const void *constants, size_t n_constants, const hrx_buffer_ref *refs,
           size_t n_refs, uint32_t flags);
HRX_EXPORT hrx_status hrx_stream_create(hrx_handle device, uint32_t flags, hrx_handle *out);
HRX_EXPORT void hrx_stream_release(hrx_handle h);
HRX_EXPORT hrx_status hrx_stream_flush(hrx_handle h);
HRX_EXPORT hrx_status hrx_stream_synchronize(hrx_handle h);
HRX_EXPORT hrx_status hrx_stream_query(hrx_handle h, bool *done);
HRX_EXPORT void hrx_runtime_version(int *major, int *minor, int *patch);
HRX_EXPORT const char *hrx_soft_about(void);
HRX_EXPORT hrx_status hrx_gpu_initialize(uint32_t flags);
HRX_EXPORT hrx_status hrx_gpu_shutdown(void);
HRX_EXPORT hrx_status hrx_gpu_device_count(int *n);
HRX_EXPORT hrx_status hrx_gpu_device_get(int index, hrx_handle *out);
HRX_EXPORT hrx_status hrx_device_get_property(hrx_handle h, int what, void *out, size_t cap);
HRX_EXPORT hrx_status hrx_device_memory_info(hrx_handle h, size_t *available, size_t *total);
HRX_EXPORT hrx_handle hrx_device_allocator(hrx_handle h);
HRX_EXPORT hrx_status hrx_allocator_allocate_buffer(hrx_handle h, hrx_buffer_params p, size_t n, hrx_handle *out);
HRX_EXPORT void hrx_buffer_retain(hrx_handle h);
HRX_EXPORT void hrx_buffer_release(hrx_handle h);
HRX_EXPORT hrx_status hrx_buffer_map(hrx_handle h, uint16_t flags, size_t off, size_t n, void **out);
HRX_EXPORT hrx_status hrx_buffer_unmap(hrx_handle h);
HRX_EXPORT hrx_status hrx_synchronous_h2d(hrx_handle dev, const void *src, hrx_handle dst, size_t off, size_t n);
HRX_EXPORT hrx_status hrx_synchronous_d2h(hrx_handle dev, hrx_handle src, size_t off, void *dst, size_t n);
HRX_EXPORT hrx_status hrx_device_synchronize(hrx_handle h);
HRX_EXPORT hrx_status hrx_executable_load_data(hrx_handle dev, const void *data, size_t n, const char *format,
           hrx_handle *out);
HRX_EXPORT void hrx_executable_release(hrx_handle h);
HRX_EXPORT hrx_status hrx_executable_export_count(hrx_handle h, size_t *n);
HRX_EXPORT hrx_status hrx_executable_lookup_export_by_name(hrx_handle h, const char *name, uint32_t *out);
HRX_EXPORT hrx_status hrx_executable_export_info(hrx_handle h, uint32_t ordinal, hrx_export_info *out);

#endif
