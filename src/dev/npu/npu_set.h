/* dev/npu/npu_set.h: a folder of kernels for one kind of NPU, and its manifest.
 *
 * Owns: where kernel sets lie, reading manifest.json, and whether one fits. Nothing of how kernels work. A set is made
 * by kernels/npu/build_kernels.py; there is none in this program.
 *
 * manifest.json: {"format": 1, "layout": "i8c-1", "tile": [m, k, n], "mma": [8, 8, 8], "rtp": {...},
 *   "devices": ["npu4", ...], "toolchain": {name: version}, "files": {name: sha256}, "validated_on": ["npu4", ...]}
 */
#ifndef OB_DEV_NPU_NPU_SET_H
#define OB_DEV_NPU_NPU_SET_H

#include "dev/npu/npu_dev.h"

#define OB_NPU_SET_LAYOUT "i8c-1" /* the one layout of weights and tiles this program packs for */

enum { OB_NPU_SET_MAX_FILES = 64 };
typedef struct ob_npu_set {
    char dir[512];
    char layout[32];
    int tile[3], mma[3];          /* m, k, n */
    char toolchain[160];          /* "mlir_aie 1.4.2, llvm-aie 21.0" */
    struct { char name[96], sha256[65]; } files[OB_NPU_SET_MAX_FILES];
    int n_files;
    bool validated;               /* somebody ran it on this kind of device */
    uint32_t rtp_addr, rtp_lock;  /* "rtp": where in a core's memory loop counts are written, and which lock says so */
    uint32_t controller;          /* that tokens of DMA are routed to */
} ob_npu_set;

/* The set for this generation: the folder $OB_NPU_KERNELS and no other; else `npu4` and the like, or the folder itself,
 * in $XDG_DATA_HOME/1bit/npu (~/.local/share), /usr/local/share/1bit/npu, /usr/share/1bit/npu: the first with a
 * manifest.json. OB_E_NOT_FOUND: none; OB_E_FORMAT, OB_E_UNSUPPORTED: one that does not fit, with what does not. Files
 * are only looked at by ob_npu_set_read. */
OB_MUST_CHECK ob_status ob_npu_set_find(ob_npu_gen gen, ob_npu_set *out, ob_err *err);
/* A file of the set: *data is *taken* (ob_free). OB_E_CORRUPT: its hash is not the manifest's. */
OB_MUST_CHECK ob_status ob_npu_set_read(const ob_npu_set *set, const char *name, uint8_t **data, size_t *n_bytes, ob_err *err);

#endif
