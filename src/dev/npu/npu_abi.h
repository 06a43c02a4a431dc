/* dev/npu/npu_abi.h: the amdxdna driver's interface, in definitions of our own.
 *
 * Owns: ioctl numbers, their structures, command packets and constants of AMD's NPU driver (DRM accel, `amdxdna`), as
 * far as we use them. No system header is needed: distributions ship one late or not at all. The first nine ioctls are
 * the same in every kernel since 6.14; what came later says so. Sizes and numbers are asserted at the end.
 * MBZ: must be zero, else the driver answers EINVAL.
 */
#ifndef OB_DEV_NPU_NPU_ABI_H
#define OB_DEV_NPU_NPU_ABI_H

#include <stdint.h>

/* ---- ioctl numbers: direction, size, 'd', number --------------------------------------------- */

#define OB_NPU_IOW(nr, type) (0x40000000u | (uint32_t)sizeof(type) << 16 | 0x6400u | (nr))
#define OB_NPU_IOWR(nr, type) (0xc0000000u | (uint32_t)sizeof(type) << 16 | 0x6400u | (nr))

#define OB_NPU_IOC_VERSION OB_NPU_IOWR(0x00, ob_npu_drm_version)
#define OB_NPU_IOC_GEM_CLOSE OB_NPU_IOW(0x09, ob_npu_gem_close)
#define OB_NPU_IOC_CREATE_HWCTX OB_NPU_IOWR(0x40, ob_npu_create_hwctx)
#define OB_NPU_IOC_DESTROY_HWCTX OB_NPU_IOWR(0x41, ob_npu_destroy_hwctx)
#define OB_NPU_IOC_CONFIG_HWCTX OB_NPU_IOWR(0x42, ob_npu_config_hwctx)
#define OB_NPU_IOC_CREATE_BO OB_NPU_IOWR(0x43, ob_npu_create_bo)
#define OB_NPU_IOC_GET_BO_INFO OB_NPU_IOWR(0x44, ob_npu_get_bo_info)
#define OB_NPU_IOC_SYNC_BO OB_NPU_IOWR(0x45, ob_npu_sync_bo)
#define OB_NPU_IOC_EXEC_CMD OB_NPU_IOWR(0x46, ob_npu_exec_cmd)
#define OB_NPU_IOC_GET_INFO OB_NPU_IOWR(0x47, ob_npu_get_info)
#define OB_NPU_IOC_SET_STATE OB_NPU_IOWR(0x48, ob_npu_get_info)    /* root only: never used */
#define OB_NPU_IOC_WAIT_CMD OB_NPU_IOW(0x49, ob_npu_wait_cmd)      /* late drivers: never used */
#define OB_NPU_IOC_GET_ARRAY OB_NPU_IOWR(0x4a, ob_npu_get_array)   /* driver 0.1 */
#define OB_NPU_IOC_SYNCOBJ_CREATE OB_NPU_IOWR(0xbf, ob_npu_syncobj_create)
#define OB_NPU_IOC_SYNCOBJ_DESTROY OB_NPU_IOWR(0xc0, ob_npu_syncobj_destroy)
#define OB_NPU_IOC_SYNCOBJ_TIMELINE_WAIT OB_NPU_IOWR(0xca, ob_npu_timeline_wait)
#define OB_NPU_IOC_SYNCOBJ_TRANSFER OB_NPU_IOWR(0xcc, ob_npu_syncobj_transfer)

/* ---- DRM's own -------------------------------------------------------------------------------- */

typedef struct ob_npu_drm_version {
    int32_t major, minor, patch, pad;
    uint64_t name_len, name, date_len, date, desc_len, desc; /* capacities and addresses of texts */
} ob_npu_drm_version;

typedef struct ob_npu_gem_close { uint32_t handle, pad; } ob_npu_gem_close;
typedef struct ob_npu_syncobj_create { uint32_t handle, flags; } ob_npu_syncobj_create;
typedef struct ob_npu_syncobj_destroy { uint32_t handle, pad; } ob_npu_syncobj_destroy;
typedef struct ob_npu_syncobj_transfer {
    uint32_t src, dst;
    uint64_t src_point, dst_point;
    uint32_t flags, pad;
} ob_npu_syncobj_transfer;

enum { OB_NPU_WAIT_ALL = 1, OB_NPU_WAIT_FOR_SUBMIT = 2 };
/* Point 0 does not mean "point 0" but "the last fence there is". */
typedef struct ob_npu_timeline_wait {
    uint64_t handles, points;  /* addresses of arrays */
    int64_t deadline_ns;       /* absolute, CLOCK_MONOTONIC */
    uint32_t n_handles, flags, first_signaled, pad;
    uint64_t hint_ns;
} ob_npu_timeline_wait;

/* ---- buffer objects --------------------------------------------------------------------------- */

enum { OB_NPU_BO_SHARE = 1, OB_NPU_BO_DEV_HEAP = 2, OB_NPU_BO_DEV = 3, OB_NPU_BO_CMD = 4 };

typedef struct ob_npu_create_bo {
    uint64_t flags; /* MBZ */
    uint64_t vaddr; /* 0, or the address of an ob_npu_va_table (late drivers) */
    uint64_t size;
    uint32_t type, handle; /* handle: out */
} ob_npu_create_bo;

typedef struct ob_npu_va_entry { uint64_t vaddr, len; } ob_npu_va_entry;
typedef struct ob_npu_va_table { int32_t dmabuf_fd; uint32_t n_entries; ob_npu_va_entry entries[]; } ob_npu_va_table;

typedef struct ob_npu_get_bo_info {
    uint64_t ext, ext_flags; /* MBZ */
    uint32_t handle, pad;    /* pad: MBZ */
    uint64_t map_offset, vaddr, xdna_addr; /* out */
} ob_npu_get_bo_info;

enum { OB_NPU_TO_DEVICE = 0, OB_NPU_FROM_DEVICE = 1 };
typedef struct ob_npu_sync_bo { uint32_t handle, direction; uint64_t offset, size; } ob_npu_sync_bo;

#define OB_NPU_HEAP_CHUNK ((uint64_t)64 << 20) /* size and alignment of heap buffers */
#define OB_NPU_HEAP_MAX ((uint64_t)512 << 20)  /* of all of them; 64 MiB where the firmware is old or an XDNA1 */
#define OB_NPU_HEAP_BASE 0x4000000ull          /* device address of the first */
#define OB_NPU_DEV_ALIGN ((uint64_t)32 << 10)
#define OB_NPU_PAGE ((uint64_t)4096)
#define OB_NPU_NO_ADDR (~0ull)
/* What shim DMA adds to a device address before it reads memory. */
#define OB_NPU_SHIM_BASE 0x80000000ull

/* ---- contexts --------------------------------------------------------------------------------- */

typedef struct ob_npu_qos { uint32_t gops, fps, dma_bandwidth, latency, frame_exec_time, priority; } ob_npu_qos;
enum { OB_NPU_PRIORITY_NORMAL = 0x200 };

typedef struct ob_npu_create_hwctx {
    uint64_t ext, ext_flags; /* MBZ */
    uint64_t qos;            /* address of an ob_npu_qos */
    uint32_t umq_bo, log_bo, max_opc, n_tiles, mem_size, umq_doorbell;
    uint32_t handle, syncobj; /* out; a handle is never 0 */
} ob_npu_create_hwctx;

typedef struct ob_npu_destroy_hwctx { uint32_t handle, pad; } ob_npu_destroy_hwctx; /* pad: MBZ */

enum { OB_NPU_CONFIG_CU = 0 };
typedef struct ob_npu_config_hwctx {
    uint32_t handle, param;
    uint64_t value; /* address of an ob_npu_cus */
    uint32_t value_size, pad; /* pad: MBZ */
} ob_npu_config_hwctx;
typedef struct ob_npu_cu { uint32_t bo; uint8_t func, pad[3]; } ob_npu_cu;
typedef struct ob_npu_cus { uint16_t n, pad[3]; ob_npu_cu cus[]; } ob_npu_cus;
enum { OB_NPU_MAX_CUS = 32 };

typedef struct ob_npu_exec_cmd {
    uint64_t ext, ext_flags; /* MBZ */
    uint32_t hwctx, type;    /* type: 0 */
    uint64_t cmds;           /* the handle itself, as n_cmds must be 1 */
    uint64_t args;           /* address of handles, or 0 */
    uint32_t n_cmds, n_args;
    uint64_t seq;            /* out: from 0 in each context */
} ob_npu_exec_cmd;

enum {
    OB_NPU_IN_FLIGHT = 4,  /* submissions of a context; the next EXEC_CMD blocks */
    OB_NPU_MAX_ARGS = 4095,
    OB_NPU_TDR_MS = 2000,  /* no completion for so long: the driver ends the context */
    OB_NPU_SUSPEND_MS = 5000, /* nothing to do for so long: power goes, and the array's contents */
};

typedef struct ob_npu_wait_cmd { uint32_t hwctx, timeout_ms; uint64_t seq; } ob_npu_wait_cmd;

/* ---- questions -------------------------------------------------------------------------------- */

enum {
    OB_NPU_INFO_STATUS = 0, OB_NPU_INFO_METADATA = 1, OB_NPU_INFO_AIE_VERSION = 2, OB_NPU_INFO_CLOCKS = 3,
    OB_NPU_INFO_FIRMWARE = 8, OB_NPU_INFO_POWER_MODE = 9, OB_NPU_INFO_RESOURCES = 12,
};
typedef struct ob_npu_get_info { uint32_t param, size; uint64_t buffer; } ob_npu_get_info;
typedef struct ob_npu_get_array { uint32_t param, element_size, n_elements, pad; uint64_t buffer; } ob_npu_get_array;

typedef struct ob_npu_tiles { uint16_t n_rows, first_row, n_dma, n_locks, n_events, pad[3]; } ob_npu_tiles;
typedef struct ob_npu_metadata {
    uint32_t col_size;
    uint16_t n_cols, n_rows;
    uint32_t major, minor;
    ob_npu_tiles core, mem, shim;
} ob_npu_metadata;
typedef struct ob_npu_clock { char name[16]; uint32_t mhz, pad; } ob_npu_clock;
typedef struct ob_npu_clocks { ob_npu_clock controller, array; } ob_npu_clocks;
typedef struct ob_npu_firmware { uint32_t major, minor, patch, build; } ob_npu_firmware;
typedef struct ob_npu_power { uint8_t mode, pad[7]; } ob_npu_power;
typedef struct ob_npu_resources { uint64_t clock_max, tops_max, task_max, tops_now, task_now; } ob_npu_resources;

/* ---- command packets -------------------------------------------------------------------------- */

enum {
    OB_NPU_OP_START_CU = 0,   /* classic: PDI by CU, kernel arguments as a register map */
    OB_NPU_OP_CHAIN = 19,     /* many packets of one opcode, one completion */
    OB_NPU_OP_START_NPU = 20, /* PDI by CU, control text, arguments */
    OB_NPU_OP_PREEMPT = 21,   /* not used */
    OB_NPU_OP_ELF = 22,       /* control text that loads its own PDI; driver 0.6, not on XDNA1 */
};
enum {
    OB_NPU_STATE_NEW = 1, OB_NPU_STATE_QUEUED = 2, OB_NPU_STATE_RUNNING = 3, OB_NPU_STATE_COMPLETED = 4,
    OB_NPU_STATE_ERROR = 5, OB_NPU_STATE_ABORT = 6, OB_NPU_STATE_SUBMITTED = 7, OB_NPU_STATE_TIMEOUT = 8,
    OB_NPU_STATE_NO_RESPONSE = 9,
};
enum { OB_NPU_TYPE_CTRL = 2, OB_NPU_TYPE_CU = 3 }; /* type of a packet: the driver does not look */

/* state [3:0], extra CU masks [11:10], words after this one [22:12], opcode [27:23], type [31:28] */
static inline uint32_t ob_npu_header(uint32_t opcode, uint32_t n_words, uint32_t type)
{
    return OB_NPU_STATE_NEW | n_words << 12 | opcode << 23 | type << 28;
}
static inline uint32_t ob_npu_header_state(uint32_t h) { return h & 15; }
static inline uint32_t ob_npu_header_words(uint32_t h) { return h >> 12 & 0x7ff; }
static inline uint32_t ob_npu_header_opcode(uint32_t h) { return h >> 23 & 31; }

/* Opcode 22, a whole packet. Its fields lie at multiples of 4, as the driver reads them. */
typedef struct ob_npu_packet_elf {
    uint32_t header, cu_mask;
    uint32_t text[2], save[2], restore[2];          /* addresses, low word first */
    uint32_t text_size, save_size, restore_size, n_props;
} ob_npu_packet_elf;

/* Opcode 19: header, this, then 64-bit handles. No word of CU masks. */
typedef struct ob_npu_chain { uint32_t n_cmds, submit_index, error_index, reserved[3]; } ob_npu_chain;

enum {
    OB_NPU_SLOT_BYTES = 4096,     /* the driver's buffer of a chain */
    OB_NPU_SLOT_ELF_BYTES = 56,   /* of it for each packet of opcode 22: so at most 73 */
    OB_NPU_CHAIN_MAX = OB_NPU_SLOT_BYTES / OB_NPU_SLOT_ELF_BYTES,
    OB_NPU_START_NPU_ARGS = 26,   /* argument words of opcode 20 in the unified format; 34 before */
};

/* ---- identities ------------------------------------------------------------------------------- */

enum { OB_NPU_PCI_AMD = 0x1022, OB_NPU_PCI_XDNA1 = 0x1502, OB_NPU_PCI_XDNA2 = 0x17f0 };

/* ---- what must not change --------------------------------------------------------------------- */

#define OB_NPU_ASSERT_IOC(name, number, type, size)                                                                    \
    _Static_assert(OB_NPU_IOC_##name == (number) && sizeof(type) == (size), #name)
OB_NPU_ASSERT_IOC(VERSION, 0xc0406400u, ob_npu_drm_version, 64);
OB_NPU_ASSERT_IOC(GEM_CLOSE, 0x40086409u, ob_npu_gem_close, 8);
OB_NPU_ASSERT_IOC(CREATE_HWCTX, 0xc0386440u, ob_npu_create_hwctx, 56);
OB_NPU_ASSERT_IOC(DESTROY_HWCTX, 0xc0086441u, ob_npu_destroy_hwctx, 8);
OB_NPU_ASSERT_IOC(CONFIG_HWCTX, 0xc0186442u, ob_npu_config_hwctx, 24);
OB_NPU_ASSERT_IOC(CREATE_BO, 0xc0206443u, ob_npu_create_bo, 32);
OB_NPU_ASSERT_IOC(GET_BO_INFO, 0xc0306444u, ob_npu_get_bo_info, 48);
OB_NPU_ASSERT_IOC(SYNC_BO, 0xc0186445u, ob_npu_sync_bo, 24);
OB_NPU_ASSERT_IOC(EXEC_CMD, 0xc0386446u, ob_npu_exec_cmd, 56);
OB_NPU_ASSERT_IOC(GET_INFO, 0xc0106447u, ob_npu_get_info, 16);
OB_NPU_ASSERT_IOC(SET_STATE, 0xc0106448u, ob_npu_get_info, 16);
OB_NPU_ASSERT_IOC(WAIT_CMD, 0x40106449u, ob_npu_wait_cmd, 16);
OB_NPU_ASSERT_IOC(GET_ARRAY, 0xc018644au, ob_npu_get_array, 24);
OB_NPU_ASSERT_IOC(SYNCOBJ_CREATE, 0xc00864bfu, ob_npu_syncobj_create, 8);
OB_NPU_ASSERT_IOC(SYNCOBJ_DESTROY, 0xc00864c0u, ob_npu_syncobj_destroy, 8);
OB_NPU_ASSERT_IOC(SYNCOBJ_TRANSFER, 0xc02064ccu, ob_npu_syncobj_transfer, 32);
OB_NPU_ASSERT_IOC(SYNCOBJ_TIMELINE_WAIT, 0xc03064cau, ob_npu_timeline_wait, 48);
#undef OB_NPU_ASSERT_IOC
_Static_assert(sizeof(ob_npu_qos) == 24 && sizeof(ob_npu_metadata) == 64 && sizeof(ob_npu_clocks) == 48 &&
               sizeof(ob_npu_firmware) == 16 && sizeof(ob_npu_resources) == 40 && sizeof(ob_npu_power) == 8, "answers");
_Static_assert(sizeof(ob_npu_va_table) == 8 && sizeof(ob_npu_va_entry) == 16 && sizeof(ob_npu_cu) == 8 &&
               sizeof(ob_npu_cus) == 8, "tables");
_Static_assert(sizeof(ob_npu_packet_elf) == 48 && sizeof(ob_npu_chain) == 24 && OB_NPU_CHAIN_MAX == 73, "packets");

#endif
