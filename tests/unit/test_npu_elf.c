/* Kernel files: AMD's assembler's are read as what went in, ours too, and anybody's bytes do no harm. */
#include "test.h"

#include "base/alloc.h"
#include "dev/npu/npu_array.h"
#include "dev/npu/npu_elf.h"
#include "dev/npu/npu_text.h"

static uint8_t *slurp(const char *name, size_t *n)
{
    char path[512];
    snprintf(path, sizeof path, OB_TEST_DATA "/npu/%s", name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *p = malloc(*n);
    assert_int_equal(fread(p, 1, *n, f), *n);
    fclose(f);
    return p;
}

/* A text of a file is the builder's, and wants the same addresses in the same places. */
static void same(const ob_npu_elf_text *got, const ob_npu_txn *want)
{
    size_t n = want->patches.len / sizeof(ob_npu_patch);
    const ob_npu_patch *p = (const ob_npu_patch *)want->patches.data;
    assert_int_equal(got->n_bytes, want->text.len);
    assert_memory_equal(got->data, want->text.data, got->n_bytes);
    assert_int_equal(got->n_patches, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(got->patches[i].off, p[i].off);
        assert_int_equal(got->patches[i].kind, p[i].kind);
        assert_int_equal(got->patches[i].arg, p[i].arg);
        assert_int_equal(got->patches[i].addend, p[i].addend);
        assert_int_equal(got->patches[i].n_bytes, p[i].n_bytes);
    }
}

/* aiebu-asm -t aie2txn: one text, arguments called "3", "4", "5". */
static void test_txn_elf(void **state)
{
    (void)state;
    static const struct { const char *file; int64_t m, k, n; } files[] = {
        {"gemm_m128_k128_n2048.elf", 128, 128, 2048}, {"gemm_m512_k64_n1024.elf", 512, 64, 1024}, {"gemm_m128_k4160_n3072.elf", 128, 4160, 3072}};
    ob_npu_place place = ob_npu_place_default();
    for (size_t i = 0; i < 3; i++) {
        size_t n;
        uint8_t *file = slurp(files[i].file, &n);
        ob_npu_elf e;
        ob_err err = {0};
        ob_status s = ob_npu_elf_read(file, n, &e, &err);
        if (s != OB_OK) fail_msg("%s", err.text);
        assert_int_equal(e.n_texts, 1);
        assert_int_equal(e.n_pdis, 0);
        assert_int_equal(e.n_args, 3);
        assert_int_equal(e.n_cols, 0);
        ob_npu_txn t;
        assert_int_equal(ob_npu_text_gemm(&t, &place, files[i].m, files[i].k, files[i].n, true, &err), OB_OK);
        same(&e.texts[0], &t);
        ob_npu_txn_deinit(&t);
        ob_npu_elf_free(&e);
        free(file);
    }
}

/* A part of a decoding step: many operations, each with addresses. */
static void test_step_elf(void **state)
{
    (void)state;
    size_t n, n_text;
    uint8_t *file = slurp("step.elf", &n), *text = slurp("step.txn", &n_text);
    ob_npu_elf e;
    ob_err err = {0};
    if (ob_npu_elf_read(file, n, &e, &err) != OB_OK) fail_msg("%s", err.text);
    assert_int_equal(e.n_texts, 1);
    assert_int_equal(e.n_args, 3);
    assert_int_equal(e.texts[0].n_bytes, n_text);
    assert_memory_equal(e.texts[0].data, text, n_text);
    assert_int_equal(e.texts[0].n_patches, 20 + 3 + 2 + 2 + 3 + 2); /* a product, and five operations with their spans */
    ob_npu_elf_free(&e);
    free(text);
    free(file);
}

static void check_full(const char *name, size_t n_texts)
{
    size_t n;
    uint8_t *file = slurp(name, &n);
    ob_npu_elf e;
    ob_err err = {0};
    ob_status s = ob_npu_elf_read(file, n, &e, &err);
    if (s != OB_OK) fail_msg("%s: %s", name, err.text);
    assert_int_equal(e.n_texts, n_texts);
    assert_int_equal(e.n_pdis, 1);
    assert_int_equal(e.pdis[0].id, 1);
    assert_int_equal(e.n_cols, 8);
    assert_string_equal(e.kernel, "_Z7gemm_i8PcPcPc");
    ob_npu_soft_pdi pdi;
    ob_npu_soft_pdi_make(&pdi, OB_NPU_DESIGN_GEMM_I8);
    assert_int_equal(e.pdis[0].n_bytes, sizeof pdi);
    assert_memory_equal(e.pdis[0].data, &pdi, sizeof pdi);
    ob_npu_place place = ob_npu_place_default();
    ob_npu_txn t;
    for (size_t i = 0; i < n_texts; i++) {
        if (strcmp(e.texts[i].name, "init") == 0) {
            assert_int_equal(ob_npu_text_init(&t, 1, 64, &err), OB_OK);
            ((ob_npu_patch *)t.patches.data)->arg = OB_NPU_ELF_PDI_ARG;
            same(&e.texts[i], &t);
        } else {
            assert_string_equal(e.texts[i].name, "m128_k128_n2048");
            assert_int_equal(ob_npu_text_gemm(&t, &place, 128, 128, 2048, true, &err), OB_OK);
            same(&e.texts[i], &t);
            /* Addresses in: of the arguments, and of the PDI. */
            uint8_t *a = malloc(t.text.len), *b = malloc(t.text.len);
            const uint64_t args[] = {0x1000000, 0x2000000000ull, 0x300000}, pdi_at = 0x4008000;
            assert_int_equal(ob_npu_elf_place(&e, &e.texts[i], a, args, 3, &pdi_at, &err), OB_OK);
            memcpy(b, t.text.data, t.text.len);
            const ob_npu_patch *p = (const ob_npu_patch *)t.patches.data;
            assert_int_equal(ob_npu_patch_apply(b, t.text.len, p, t.patches.len / sizeof *p, args, 3, &err), OB_OK);
            assert_memory_equal(a, b, t.text.len);
            assert_int_equal(ob_npu_elf_place(&e, &e.texts[i], a, args, 2, &pdi_at, &err), OB_E_INVALID);
            free(a);
            free(b);
        }
        ob_npu_txn_deinit(&t);
    }
    ob_npu_elf_free(&e);
    free(file);
}

/* aiebu-asm -t aie2_config from the same parts, and our own writer's file. */
static void test_full_elf(void **state)
{
    (void)state;
    check_full("full.elf", 2);
    check_full("ours.elf", 2);
}

/* The writer makes what is kept as data; AMD's tools read that (make_golden.py checks it). */
static void test_writer(void **state)
{
    (void)state;
    ob_npu_place place = ob_npu_place_default();
    ob_npu_soft_pdi pdi;
    ob_npu_soft_pdi_make(&pdi, OB_NPU_DESIGN_GEMM_I8);
    ob_npu_txn init, gemm;
    ob_err err;
    assert_int_equal(ob_npu_text_init(&init, 1, sizeof pdi, &err), OB_OK);
    assert_int_equal(ob_npu_text_gemm(&gemm, &place, 128, 128, 2048, true, &err), OB_OK);
    ob_npu_patch *load = (ob_npu_patch *)init.patches.data;
    load->arg = OB_NPU_ELF_PDI_ARG;
    const ob_npu_elf_pdi pdis[] = {{.id = 1, .data = (const uint8_t *)&pdi, .n_bytes = sizeof pdi}};
    ob_npu_elf_text texts[] = {
        {.name = "init", .data = (uint8_t *)init.text.data, .n_bytes = init.text.len, .patches = load, .n_patches = 1},
        {.name = "m128_k128_n2048", .data = (uint8_t *)gemm.text.data, .n_bytes = gemm.text.len,
         .patches = (ob_npu_patch *)gemm.patches.data, .n_patches = gemm.patches.len / sizeof(ob_npu_patch)},
    };
    ob_buf out;
    ob_buf_init(&out, 1 << 20);
    assert_int_equal(ob_npu_elf_write(&out, "gemm_i8", 3, pdis, 1, texts, 2, &err), OB_OK);
    size_t n;
    uint8_t *want = slurp("ours.elf", &n);
    assert_int_equal(out.len, n);
    assert_memory_equal(out.data, want, n);
    free(want);
    ob_buf_deinit(&out);

    load->arg = OB_NPU_ELF_PDI_ARG + 1; /* a PDI that is not there */
    ob_buf_init(&out, 1 << 20);
    assert_int_equal(ob_npu_elf_write(&out, "gemm_i8", 3, pdis, 1, texts, 2, &err), OB_E_INVALID);
    load->arg = OB_NPU_ELF_PDI_ARG;
    for (int64_t i = 0; i < 40; i++) { /* no memory anywhere */
        ob_buf_deinit(&out);
        ob_buf_init(&out, 1 << 20);
        ob_alloc_fail_after(i);
        ob_status s = ob_npu_elf_write(&out, "gemm_i8", 3, pdis, 1, texts, 2, &err);
        ob_alloc_fail_after(-1);
        assert_true(s == OB_OK || s == OB_E_NO_MEMORY);
    }
    ob_buf_deinit(&out);
    ob_npu_txn_deinit(&init);
    ob_npu_txn_deinit(&gemm);
}

/* --- hostile ----------------------------------------------------------------------------------- */

static ob_status read_bytes(const uint8_t *p, size_t n, ob_err *err)
{
    ob_npu_elf e;
    ob_status s = ob_npu_elf_read(p, n, &e, err);
    if (s == OB_OK) {
        assert_true(e.n_texts > 0);
        ob_npu_elf_free(&e);
    }
    return s;
}

/* Byte offset of a section header field (word `field`) of the section called `name`. */
static size_t field_of(const uint8_t *f, const char *name, int field)
{
    uint32_t sh, n, off;
    memcpy(&sh, f + 32, 4);
    n = f[48];
    uint32_t names_at = sh + 40u * f[50];
    memcpy(&off, f + names_at + 16, 4);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at;
        memcpy(&at, f + sh + 40 * i, 4);
        if (strcmp((const char *)f + off + at, name) == 0) return sh + 40u * i + 4u * (uint32_t)field;
    }
    fail_msg("no section %s", name);
    return 0;
}

static void set(uint8_t *f, size_t at, uint32_t v) { memcpy(f + at, &v, 4); }
static uint32_t get(const uint8_t *f, size_t at)
{
    uint32_t v;
    memcpy(&v, f + at, 4);
    return v;
}

/* Each entry spoils a good file in one place; the error names the trouble. */
static void test_hostile(void **state)
{
    (void)state;
    size_t n;
    uint8_t *good = slurp("full.elf", &n), *f = malloc(n);
    ob_err err;
    const struct { const char *section; int field; uint32_t value; const char *text; } cases[] = {
        {".ctrltext.0", 4, 0xFFFFFFF0, "outside of the file"}, {".ctrltext.0", 5, 0xFFFFFFFF, "outside of the file"},
        {".ctrltext.0", 5, 12, "no control text"},             {".ctrltext.0", 0, 0xFFFFFF, "without a name"},
        {".ctrltext.0", 1, 8, "text"},                         {".pdi.1", 5, 0, "empty PDI"},
        {".pdi.1", 1, 8, "does not have"},                     {".rela.dyn", 5, 25, "unknown size"},
        {".rela.dyn", 6, 0xFFFF, "without a symbol"},          {".rela.dyn", 6, 0, "without a symbol"},
        {".dynsym", 5, 16, "without a symbol"},                {".dynsym", 6, 0xFFFFFFFF, "without a symbol"},
        {".dynstr", 5, 1, "without a symbol"},                 {".group.0", 6, 0xFFFF, "group without a name"},
        {".group.0", 7, 0xFFFFFFFF, "group without a name"},   {".note.xrt.configuration", 5, 4, "too short"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(f, good, n);
        set(f, field_of(f, cases[i].section, cases[i].field), cases[i].value);
        ob_status s = read_bytes(f, n, &err);
        if (s == OB_OK || !strstr(err.text, cases[i].text)) fail_msg("%s field %d: %s", cases[i].section, cases[i].field, s == OB_OK ? "accepted" : err.text);
    }
    size_t rela = get(good, field_of(good, ".rela.dyn", 4));
    const struct { size_t at; uint32_t value; const char *text; } relas[] = {
        {0, 0xFFFFFFFC, "outside of its control text"}, {0, 0, "outside of its control text"}, {0, 0x19, "outside of its control text"},
        {4, 0xFFFFFF05, "without a symbol"},            {4, 0x00000207, "relocation type 7"},  {4, 0x00000000, "without a symbol"},
    };
    for (size_t i = 0; i < sizeof relas / sizeof *relas; i++) {
        memcpy(f, good, n);
        set(f, rela + relas[i].at, relas[i].value);
        ob_status s = read_bytes(f, n, &err);
        if (i == 5 ? s == OB_OK : (s == OB_OK || !strstr(err.text, relas[i].text))) fail_msg("relocation %zu: %s", i, s == OB_OK ? "accepted" : err.text);
    }
    /* Names that mean nothing to us. */
    size_t str = get(good, field_of(good, ".dynstr", 4));
    memcpy(f, good, n);
    memcpy(f + str + 1, ".pdx", 4);
    assert_int_equal(read_bytes(f, n, &err), OB_E_UNSUPPORTED);
    memcpy(f, good, n);
    f[4] = 2; /* 64 bit */
    assert_int_equal(read_bytes(f, n, &err), OB_E_FORMAT);
    free(f);
    free(good);
}

static void test_any_bytes(void **state)
{
    (void)state;
    size_t n;
    uint8_t *good = slurp("full.elf", &n);
    ob_err err;
    for (size_t i = 0; i < n; i++) { /* a copy of just that many bytes, so that a sanitizer sees a read past them */
        uint8_t *cut = malloc(i + 1);
        memcpy(cut, good, i);
        assert_int_not_equal(read_bytes(cut, i, &err), OB_OK);
        free(cut);
    }
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            good[i] ^= (uint8_t)(1 << bit);
            (void)!read_bytes(good, n, &err);
            good[i] ^= (uint8_t)(1 << bit);
        }
    free(good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_txn_elf), cmocka_unit_test(test_step_elf), cmocka_unit_test(test_full_elf), cmocka_unit_test(test_writer),
        cmocka_unit_test(test_hostile), cmocka_unit_test(test_any_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
