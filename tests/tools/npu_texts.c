/* Writes control texts of our builder and a kernel file of our writer into a folder, for tools/npu/make_golden.py.
 *
 *   npu_texts FOLDER
 */
#include <stdio.h>
#include <string.h>

#include "dev/npu/npu_array.h"
#include "dev/npu/npu_elf.h"
#include "dev/npu/npu_text.h"

static bool save(const char *folder, const char *name, const void *p, size_t n)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f) return false;
    bool ok = fwrite(p, 1, n, f) == n;
    return fclose(f) == 0 && ok;
}

static bool save_text(const char *folder, const char *name, ob_status s, ob_npu_txn *t)
{
    bool ok = s == OB_OK && save(folder, name, t->text.data, t->text.len);
    ob_npu_txn_deinit(t);
    return ok;
}

/* A text of the STEP design: a norm, its result as bf16, a product of it, and attention over one page. */
static ob_status step(ob_npu_txn *t, const ob_npu_place *p)
{
    const uint32_t eps = 0x3727C5AC, one = 0x3F800000; /* 1e-5, 1 */
    const ob_npu_span x = {.arg = 0, .n_words = 64}, gain = {.arg = 0, .off = 1024, .n_words = 64}, y = {.arg = 0, .off = 2048, .n_words = 64};
    const ob_npu_span row = {.arg = 0, .off = 4096, .n_words = 128}, w = {.arg = 1}, out = {.arg = 2, .n_words = 1024};
    const ob_npu_span word = {.arg = 2, .off = 8192, .n_words = 1}, page = {.arg = 0, .off = 8192, .n_words = 64};
    ob_npu_text_step_begin(t, p);
    t->patch_ops = true;
    ob_npu_text_step_vec(t, p, OB_VEC_NORM, (const uint32_t[5]){64, eps}, (const ob_npu_span[]){x, gain}, 2, &y);
    ob_npu_text_step_vec(t, p, OB_VEC_BF16, (const uint32_t[5]){0}, &y, 1, &row);
    OB_TRY(ob_npu_text_step_gemv(t, p, 256, 1024, &row, &w, &out, NULL));
    /* two heads of 32 over one of keys; pages of two tokens, f32 */
    ob_npu_text_step_vec(t, p, OB_VEC_ATTN_BEGIN, (const uint32_t[5]){2 | 1 << 16, 32 | 16 << 16, 2, one, 0}, &x, 1, &word);
    ob_npu_text_step_vec(t, p, OB_VEC_ATTN_PAGE, (const uint32_t[5]){0, 2}, (const ob_npu_span[]){page, {.arg = 0, .n_words = 32}}, 2, &word);
    ob_npu_text_step_vec(t, p, OB_VEC_ATTN_END, (const uint32_t[5]){0}, &word, 1, &(ob_npu_span){.arg = 2, .off = 16384, .n_words = 32});
    return ob_npu_txn_finish(t, NULL);
}

/* The kernel file: a soft PDI, its init text and one product. */
static bool save_elf(const char *folder)
{
    ob_npu_place place = ob_npu_place_default();
    ob_npu_soft_pdi pdi;
    ob_npu_soft_pdi_make(&pdi, OB_NPU_DESIGN_GEMM_I8);
    ob_npu_txn init, gemm;
    ob_buf out;
    ob_buf_init(&out, OB_NPU_ELF_MAX_BYTES);
    bool ok = ob_npu_text_init(&init, 1, sizeof pdi, NULL) == OB_OK && ob_npu_text_gemm(&gemm, &place, 128, 128, 2048, true, NULL) == OB_OK;
    if (!ok) return false;
    ob_npu_patch *load = (ob_npu_patch *)init.patches.data;
    load->arg = OB_NPU_ELF_PDI_ARG;
    const ob_npu_elf_pdi pdis[] = {{.id = 1, .data = (const uint8_t *)&pdi, .n_bytes = sizeof pdi}};
    const ob_npu_elf_text texts[] = {
        {.name = "init", .data = (uint8_t *)init.text.data, .n_bytes = init.text.len, .patches = load, .n_patches = 1},
        {.name = "m128_k128_n2048", .data = (uint8_t *)gemm.text.data, .n_bytes = gemm.text.len,
         .patches = (ob_npu_patch *)gemm.patches.data, .n_patches = gemm.patches.len / sizeof(ob_npu_patch)},
    };
    ok = ob_npu_elf_write(&out, "gemm_i8", 3, pdis, 1, texts, 2, NULL) == OB_OK && save(folder, "ours.elf", out.data, out.len);
    ok = ok && save(folder, "soft.pdi", &pdi, sizeof pdi);
    ob_buf_deinit(&out);
    ob_npu_txn_deinit(&init);
    ob_npu_txn_deinit(&gemm);
    return ok;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: npu_texts FOLDER\n");
        return 2;
    }
    ob_npu_place place = ob_npu_place_default();
    ob_npu_txn t;
    bool ok = save_text(argv[1], "init.txn", ob_npu_text_init(&t, 1, 64, NULL), &t);
    ok = ok && save_text(argv[1], "nop.txn", ob_npu_text_nop(&t, NULL), &t);
    ok = ok && save_text(argv[1], "copy.txn", ob_npu_text_copy(&t, &place, 1 << 20, NULL), &t);
    ok = ok && save_text(argv[1], "gemm_m128_k128_n2048.txn", ob_npu_text_gemm(&t, &place, 128, 128, 2048, true, NULL), &t);
    ok = ok && save_text(argv[1], "gemm_m512_k64_n1024.txn", ob_npu_text_gemm(&t, &place, 512, 64, 1024, true, NULL), &t);
    ok = ok && save_text(argv[1], "gemm_m128_k4160_n3072.txn", ob_npu_text_gemm(&t, &place, 128, 4160, 3072, true, NULL), &t);
    ok = ok && save_text(argv[1], "gemv_k256_n1024.txn", ob_npu_text_gemv(&t, &place, 256, 1024, true, NULL), &t);
    ok = ok && save_text(argv[1], "step.txn", step(&t, &place), &t);
    ok = ok && save_elf(argv[1]);
    if (!ok) fprintf(stderr, "npu_texts: could not write all of it\n");
    return ok ? 0 : 1;
}
