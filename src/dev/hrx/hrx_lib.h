/* dev/hrx/hrx_lib.h: libhrx's functions by name, with declarations of our own.
 *
 * Owns: opening the library, one table of symbols, the version that is understood, statuses as ob_status. Knows nothing
 * of kernels or plans. A library stays open until the program ends.
 */
#ifndef OB_DEV_HRX_HRX_LIB_H
#define OB_DEV_HRX_HRX_LIB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct hx_status_s *hx_status; /* NULL: ok; else to be consumed */
typedef struct hx_object_s *hx_object; /* device, allocator, buffer, stream, executable */

typedef struct hx_buffer_params { uint32_t type; uint16_t access; uint32_t usage; uint64_t affinity; } hx_buffer_params;
typedef struct hx_config { uint32_t count[3], size[3], subgroup; } hx_config; /* size, subgroup 0: the kernel's own */
typedef struct hx_ref { hx_object buffer; size_t offset, length; } hx_ref;
typedef struct hx_export { const char *name; uint32_t flags, constant_bytes, bindings, parameters, workgroup[3]; } hx_export;

_Static_assert(sizeof(hx_buffer_params) == 24 && sizeof(hx_config) == 28 && sizeof(hx_ref) == 24 && sizeof(hx_export) == 40, "ABI");

enum { HX_PROPERTY_NAME = 0, HX_PROPERTY_ARCH = 1 };

/* name, result, arguments */
#define HX_FUNCTIONS(X)                                                                                                \
    X(runtime_version, void, (int *, int *, int *))                                                                    \
    X(status_code, int, (hx_status))                                                                                   \
    X(status_to_string, hx_status, (hx_status, char **, size_t *))                                                     \
    X(status_free_message, void, (char *))                                                                             \
    X(status_ignore, void, (hx_status))                                                                                \
    X(gpu_initialize, hx_status, (uint32_t))                                                                           \
    X(gpu_device_count, hx_status, (int *))                                                                            \
    X(gpu_device_get, hx_status, (int, hx_object *))                                                                   \
    X(device_get_property, hx_status, (hx_object, int, void *, size_t))                                                \
    X(device_memory_info, hx_status, (hx_object, size_t *, size_t *))                                                  \
    X(device_allocator, hx_object, (hx_object))                                                                        \
    X(allocator_allocate_buffer, hx_status, (hx_object, hx_buffer_params, size_t, hx_object *))                         \
    X(buffer_release, void, (hx_object))                                                                               \
    X(synchronous_h2d, hx_status, (hx_object, const void *, hx_object, size_t, size_t))                                 \
    X(synchronous_d2h, hx_status, (hx_object, hx_object, size_t, void *, size_t))                                       \
    X(stream_create, hx_status, (hx_object, uint32_t, hx_object *))                                                    \
    X(stream_release, void, (hx_object))                                                                               \
    X(stream_flush, hx_status, (hx_object))                                                                            \
    X(stream_synchronize, hx_status, (hx_object))                                                                      \
    X(stream_copy_h2d, hx_status, (hx_object, const void *, hx_object, size_t, size_t))                                 \
    X(stream_copy_d2h, hx_status, (hx_object, hx_object, size_t, void *, size_t))                                       \
    X(stream_fill_buffer, hx_status, (hx_object, hx_object, size_t, size_t, const void *, size_t))                      \
    X(stream_copy_buffer, hx_status, (hx_object, hx_object, size_t, hx_object, size_t, size_t))                         \
    X(executable_load_data, hx_status, (hx_object, const void *, size_t, const char *, hx_object *))                    \
    X(executable_release, void, (hx_object))                                                                           \
    X(executable_lookup_export_by_name, hx_status, (hx_object, const char *, uint32_t *))                               \
    X(executable_export_info, hx_status, (hx_object, uint32_t, hx_export *))                                            \
    X(stream_dispatch, hx_status, (hx_object, hx_object, uint32_t, const hx_config *, const void *, size_t,             \
                                   const hx_ref *, size_t, uint32_t))

typedef struct hx_lib {
#define X(name, result, args) result(*name) args;
    HX_FUNCTIONS(X)
#undef X
    void *handle;
    bool soft;          /* says of itself that it is an emulation */
    int version[3];
    int n_devices;
    char path[256];     /* what was opened */
    char missing[256];  /* why it cannot be used; "" when it can */
} hx_lib;

/* The library, opened at the first call: the system's libhrx.so.0 or, `soft`, libhrx-soft.so beside the program.
 * OB_HRX_LIBRARY names another file in place of both. Never NULL; see `missing`. */
const hx_lib *hx_lib_get(bool soft);

/* Consumes s. OB_OK, or a status with libhrx's text; `doing`: "opening the device". */
OB_MUST_CHECK ob_status hx_check(const hx_lib *l, hx_status s, const char *doing, ob_err *err);

#endif
