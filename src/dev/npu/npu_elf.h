/* dev/npu/npu_elf.h: "full ELF" files of kernels: PDIs, control texts, and where addresses go.
 *
 * Owns: reading such files (of AMD's aiebu-asm, or ours; any bytes are safe), and writing them. A file is a 32-bit ELF
 * with sections .pdi.ID (what configures the array), .ctrltext.N (control text, npu_txn.h) and .rela.dyn; XRT numbers
 * relocations as ob_npu_patch_kind does. A symbol names what a relocation wants: ".pdi.ID", or an argument: "0", "1"
 * in full ELFs; in ELFs without a configuration note the first argument is called "3". Knows nothing of buffers.
 */
#ifndef OB_DEV_NPU_NPU_ELF_H
#define OB_DEV_NPU_NPU_ELF_H

#include "base/buf.h"
#include "dev/npu/npu_txn.h"

enum {
    OB_NPU_ELF_MAX_BYTES = 64 << 20,
    OB_NPU_ELF_MAX_TEXTS = 256,
    OB_NPU_ELF_MAX_PDIS = 32,      /* of one context */
    OB_NPU_ELF_MAX_ARGS = 32,
    OB_NPU_ELF_PDI_ARG = 0x100,    /* patch.arg of PDI i of the file is this + i */
};

typedef struct ob_npu_elf_pdi {
    uint32_t id;
    const uint8_t *data; /* borrowed from the file */
    size_t n_bytes;
} ob_npu_elf_pdi;

typedef struct ob_npu_elf_text {
    char name[64];        /* of the instance; "" where the file names none */
    const uint8_t *data;  /* borrowed from the file */
    size_t n_bytes;       /* a multiple of 4; a sound TXN by its header */
    ob_npu_patch *patches; /* what the file's words hold already is part of `addend` */
    size_t n_patches;
} ob_npu_elf_text;

typedef struct ob_npu_elf {
    ob_npu_elf_pdi pdis[OB_NPU_ELF_MAX_PDIS];
    ob_npu_elf_text *texts;
    size_t n_pdis, n_texts;
    uint32_t n_args;      /* host arguments that patches name */
    uint32_t n_cols;      /* of the configuration note; 0 without one */
    char kernel[128];     /* mangled, such as "_Z4gemmPcPcPc"; "" where there is none */
} ob_npu_elf;

/* Any bytes; they stay *borrowed* while the result is used. Errors: FORMAT with what and where; UNSUPPORTED (scratch
 * pads, control packets: nothing of ours has them); NO_MEMORY. */
OB_MUST_CHECK ob_status ob_npu_elf_read(const void *file, size_t n_bytes, ob_npu_elf *out, ob_err *err);
void ob_npu_elf_free(ob_npu_elf *e);

/* text->data with its addresses put in: dst (n_bytes of it). args: device addresses of host arguments; pdis: of the
 * file's PDIs. */
OB_MUST_CHECK ob_status ob_npu_elf_place(const ob_npu_elf *e, const ob_npu_elf_text *text, uint8_t *dst,
                                         const uint64_t *args, size_t n_args, const uint64_t *pdis, ob_err *err);

/* A file with these parts, as aiebu-asm would lay it out. kernel: plain name ("gemm"); it takes n_args pointers.
 * Patches name PDIs by OB_NPU_ELF_PDI_ARG + place in pdis. */
OB_MUST_CHECK ob_status ob_npu_elf_write(ob_buf *out, const char *kernel, uint32_t n_args, const ob_npu_elf_pdi *pdis,
                                         size_t n_pdis, const ob_npu_elf_text *texts, size_t n_texts, ob_err *err);

#endif
