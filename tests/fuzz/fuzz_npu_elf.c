/* Promise of dev/npu: whatever the bytes of a kernel file, reading it gives a status and leaks nothing; each control text
 * of an accepted one can have its addresses put in, be walked and printed, and be run by the software array, whose end
 * is one of three. */
#include <string.h>

#include "base/alloc.h"
#include "dev/npu/npu_array.h"
#include "dev/npu/npu_elf.h"
#include "fuzz.h"

enum { MEM_BYTES = 1 << 16 };

/* All addresses up to MEM_BYTES past the first argument are one buffer. */
static uint8_t *at(void *arg, uint64_t addr, size_t n, bool writes)
{
    (void)writes;
    return addr >= 0x100000 && addr - 0x100000 <= MEM_BYTES && n <= MEM_BYTES - (addr - 0x100000) ? (uint8_t *)arg + (addr - 0x100000) : NULL;
}

static void use_text(const ob_npu_elf *e, const ob_npu_elf_text *t, uint8_t *mem, void *array)
{
    uint64_t args[OB_NPU_ELF_MAX_ARGS], pdis[OB_NPU_ELF_MAX_PDIS];
    for (size_t i = 0; i < OB_NPU_ELF_MAX_ARGS; i++) args[i] = 0x100000 + i * 4096;
    for (size_t i = 0; i < OB_NPU_ELF_MAX_PDIS; i++) pdis[i] = 0x100000;
    uint8_t *text = ob_malloc(t->n_bytes);
    if (!text) return;
    if (ob_npu_elf_place(e, t, text, args, e->n_args, pdis, NULL) == OB_OK) {
        ob_buf out;
        ob_buf_init(&out, 1 << 20);
        (void)!ob_npu_txn_print((const uint32_t *)text, t->n_bytes / 4, &out, NULL);
        ob_buf_deinit(&out);
        (void)!ob_npu_txn_check((const uint32_t *)text, t->n_bytes / 4, OB_TXN_OWN_CLASSES, NULL);
        ob_npu_soft_bus bus = {.arg = mem, .at = at};
        ob_npu_soft_run run;
        ob_npu_soft_end end = ob_npu_array.run(array, (const uint32_t *)text, t->n_bytes / 4, &bus, &run);
        FUZZ_REQUIRE(end == OB_NPU_RUN_DONE || run.text[0]);
    }
    ob_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    ob_npu_elf e;
    ob_err err = {0};
    ob_status s = ob_npu_elf_read(data, len, &e, &err);
    FUZZ_REQUIRE(s == OB_OK || err.text[0]);
    if (s != OB_OK) return 0;
    FUZZ_REQUIRE(e.n_texts >= 1 && e.n_args <= OB_NPU_ELF_MAX_ARGS);
    uint8_t *mem = ob_calloc(1, MEM_BYTES);
    void *array = ob_npu_array.make(OB_TXN_COLS, OB_TXN_ROWS);
    if (mem && array) {
        /* Each design in turn, as the last byte of the file says: a text that loads a PDI finds it. */
        ob_npu_soft_pdi_make((ob_npu_soft_pdi *)mem, (ob_npu_design)(OB_NPU_DESIGN_COPY + data[len - 1] % OB_NPU_DESIGN_STEP));
        for (size_t i = 0; i < e.n_texts; i++) use_text(&e, &e.texts[i], mem, array);
    }
    if (array) ob_npu_array.end(array);
    ob_free(mem);
    ob_npu_elf_free(&e);
    return 0;
}
