/* Writing full ELF files, section by section as aiebu-asm does, so that XRT and its tools read them too. */
#include "dev/npu/npu_elf.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/math.h"

enum { EHDR = 52, PHDR = 32, SHDR = 40, MAX_SECTIONS = 16 + OB_NPU_ELF_MAX_PDIS + 2 * OB_NPU_ELF_MAX_TEXTS };
enum { PROGBITS = 1, SYMTAB = 2, STRTAB = 3, RELA = 4, DYNAMIC = 6, NOTE = 7, DYNSYM = 11, GROUP = 17 };
enum { ALLOC_EXEC = 6, ALLOC = 2 };

typedef struct header {
    uint32_t name, type, flags, addr, off, size, link, info, align, entsize;
} header;

typedef struct writer {
    ob_buf *out;
    ob_buf names, str, sym, dynstr, dynsym, rela; /* tables */
    header sections[MAX_SECTIONS];
    uint32_t n;
    uint32_t addr; /* of the next loaded section */
} writer;

static void add32(ob_buf *b, uint32_t v) { ob_buf_add(b, &v, 4); }

static uint32_t add_string(ob_buf *table, const char *s)
{
    uint32_t at = (uint32_t)table->len;
    ob_buf_add(table, s, strlen(s) + 1);
    return at;
}

static void pad_to(ob_buf *b, uint32_t align)
{
    while (!b->failed && b->len % align) ob_buf_addc(b, 0);
}

/* Appends a section; returns its number. */
static uint32_t add_section(writer *w, const char *name, header h, const void *data, size_t n_bytes)
{
    pad_to(w->out, h.align ? h.align : 1);
    h.name = add_string(&w->names, name);
    h.off = (uint32_t)w->out->len;
    h.size = (uint32_t)n_bytes;
    if (h.flags == ALLOC_EXEC) {
        h.addr = w->addr;
        w->addr += (uint32_t)ob_align_up(n_bytes, 16);
    }
    ob_buf_add(w->out, data, n_bytes);
    w->sections[w->n] = h;
    return w->n++;
}

static void add_symbol(ob_buf *table, uint32_t name, uint32_t size, uint8_t info, uint16_t section)
{
    add32(table, name);
    add32(table, 0);
    add32(table, size);
    ob_buf_addc(table, (char)info);
    ob_buf_addc(table, 0);
    ob_buf_add(table, &section, 2);
}

enum { FUNC_WEAK = 0x22, OBJECT_WEAK = 0x21, OBJECT_GLOBAL = 0x11 };

static void add_relocations(writer *w, const ob_npu_elf_text *t, uint32_t section, const ob_npu_elf_pdi *pdis)
{
    for (size_t i = 0; i < t->n_patches; i++) {
        const ob_npu_patch *p = &t->patches[i];
        char name[24];
        if (p->arg >= OB_NPU_ELF_PDI_ARG) snprintf(name, sizeof name, ".pdi.%u", pdis[p->arg - OB_NPU_ELF_PDI_ARG].id);
        else snprintf(name, sizeof name, "%u", p->arg);
        uint32_t symbol = (uint32_t)(w->dynsym.len / 16);
        add_symbol(&w->dynsym, add_string(&w->dynstr, name), (uint32_t)p->n_bytes, OBJECT_GLOBAL, (uint16_t)section);
        add32(&w->rela, p->off);
        add32(&w->rela, symbol << 8 | p->kind);
        add32(&w->rela, (uint32_t)p->addend);
    }
}

static void mangle(char *dst, size_t cap, const char *kernel, uint32_t n_args)
{
    int n = snprintf(dst, cap, "_Z%zu%s%s", strlen(kernel), kernel, n_args ? "" : "v");
    for (uint32_t i = 0; i < n_args && n > 0 && (size_t)n + 3 < cap; i++) n += snprintf(dst + n, cap - (size_t)n, "Pc");
}

static void add_note(writer *w, const char *name, const void *data, uint32_t n_bytes, uint32_t type)
{
    ob_buf b;
    ob_buf_init(&b, 256);
    add32(&b, 4);
    add32(&b, n_bytes);
    add32(&b, type);
    ob_buf_add(&b, "XRT", 4);
    ob_buf_add(&b, data, n_bytes);
    if (b.failed) w->out->failed = b.failed;
    add_section(w, name, (header){.type = NOTE, .align = 1}, b.data, b.len);
    ob_buf_deinit(&b);
}

static void write_headers(writer *w, uint32_t n_loads)
{
    pad_to(w->out, 16);
    uint32_t sh_off = (uint32_t)w->out->len;
    for (uint32_t i = 0; i < w->n; i++) ob_buf_add(w->out, &w->sections[i], sizeof w->sections[i]);
    if (w->out->failed) return;
    uint8_t h[EHDR] = {0x7f, 'E', 'L', 'F', 1, 1, 1, 0x45, 0x21};
    const uint32_t fields[] = {/* 16 */ 1u << 16 | 2, 1, 0, /* 28 */ EHDR, /* 32 */ sh_off, 0,
                               /* 40 */ PHDR << 16 | EHDR, SHDR << 16 | (n_loads + 1), 1u << 16 | w->n};
    memcpy(h + 16, fields, sizeof fields);
    memcpy(w->out->data, h, EHDR);
    uint32_t ph[8] = {6, EHDR, 0, 0, PHDR * (n_loads + 1), PHDR * (n_loads + 1), 4, 0};
    memcpy(w->out->data + EHDR, ph, sizeof ph);
    uint32_t at = EHDR + PHDR;
    for (uint32_t i = 0; i < w->n; i++) {
        const header *s = &w->sections[i];
        if (s->flags != ALLOC_EXEC) continue;
        uint32_t load[8] = {1, s->off, s->addr, 0, s->size, s->size, 5, 16};
        memcpy(w->out->data + at, load, sizeof load);
        at += PHDR;
    }
}

static ob_status check_parts(const ob_npu_elf_pdi *pdis, size_t n_pdis, const ob_npu_elf_text *texts, size_t n_texts,
                             ob_err *err)
{
    if (n_pdis > OB_NPU_ELF_MAX_PDIS || !n_texts || n_texts > OB_NPU_ELF_MAX_TEXTS)
        return ob_err_set(err, OB_E_LIMIT, "kernel ELF of %zu PDIs and %zu texts", n_pdis, n_texts);
    for (size_t i = 0; i < n_pdis; i++)
        if (!pdis[i].n_bytes) return ob_err_set(err, OB_E_INVALID, "kernel ELF: an empty PDI");
    for (size_t i = 0; i < n_texts; i++)
        for (size_t k = 0; k < texts[i].n_patches; k++) {
            const ob_npu_patch *p = &texts[i].patches[k];
            if (p->addend >> 32 || p->n_bytes >> 32 ||
                (p->arg >= OB_NPU_ELF_PDI_ARG ? p->arg - OB_NPU_ELF_PDI_ARG >= (int)n_pdis
                                              : p->arg >= OB_NPU_ELF_MAX_ARGS))
                return ob_err_set(err, OB_E_INVALID, "kernel ELF: patch %zu of text %zu", k, i);
        }
    return OB_OK;
}

/* The tables first hold what readers expect at index 0. Section 1 (names) and 2 (strings) are filled in at the end. */
static void write_sections(writer *w, const char *kernel, uint32_t n_args, const ob_npu_elf_pdi *pdis, size_t n_pdis,
                           const ob_npu_elf_text *texts, size_t n_texts)
{
    uint32_t loads = (uint32_t)(n_pdis + n_texts), first_text;
    w->n = 2; /* null, .shstrtab */
    add_string(&w->names, "");
    w->sections[1].name = add_string(&w->names, ".shstrtab");
    for (uint32_t i = 0; i < EHDR + PHDR * (loads + 1); i++) ob_buf_addc(w->out, 0);
    char name[80];
    for (size_t i = 0; i < n_pdis; i++) {
        snprintf(name, sizeof name, ".pdi.%u", pdis[i].id);
        add_section(w, name, (header){.type = PROGBITS, .flags = ALLOC_EXEC, .align = 16}, pdis[i].data,
                    pdis[i].n_bytes);
    }
    first_text = w->n;
    for (size_t i = 0; i < n_texts; i++) {
        snprintf(name, sizeof name, ".ctrltext.%zu", i);
        add_section(w, name, (header){.type = PROGBITS, .flags = ALLOC_EXEC, .align = 16}, texts[i].data,
                    texts[i].n_bytes);
    }
    ob_buf *tables[] = {&w->str, &w->sym, &w->dynstr, &w->dynsym};
    for (size_t i = 0; i < 4; i++)
        for (int k = 0; k < (i % 2 ? 16 : 1); k++) ob_buf_addc(tables[i], 0);
    char mangled[128];
    mangle(mangled, sizeof mangled, kernel, n_args);
    add_symbol(&w->sym, add_string(&w->str, mangled), 0, FUNC_WEAK, 0);
    for (size_t i = 0; i < n_texts; i++) {
        add_symbol(&w->sym, add_string(&w->str, texts[i].name), 0, OBJECT_WEAK, 1);
        add_relocations(w, &texts[i], first_text + (uint32_t)i, pdis);
    }
    uint32_t str = add_section(w, ".strtab", (header){.type = STRTAB, .align = 1}, w->str.data, w->str.len);
    uint32_t sym =
        add_section(w, ".symtab", (header){.type = SYMTAB, .link = str, .info = 1, .align = 4, .entsize = 16},
                    w->sym.data, w->sym.len);
    uint32_t dynstr = add_section(w, ".dynstr", (header){.type = STRTAB, .align = 1}, w->dynstr.data, w->dynstr.len);
    uint32_t dynsym = add_section(
        w, ".dynsym", (header){.type = DYNSYM, .flags = ALLOC, .link = dynstr, .info = 1, .align = 8, .entsize = 16},
        w->dynsym.data, w->dynsym.len);
    if (w->rela.len)
        add_section(w, ".rela.dyn", (header){.type = RELA, .flags = ALLOC, .link = dynsym, .align = 8, .entsize = 12},
                    w->rela.data, w->rela.len);
    const uint32_t dynamic[] = {7, w->rela.len ? w->n - 1 : 0, 8, (uint32_t)w->rela.len};
    add_section(w, ".dynamic", (header){.type = DYNAMIC, .flags = ALLOC, .link = dynstr, .align = 8, .entsize = 8},
                dynamic, sizeof dynamic);
    for (size_t i = 0; i < n_texts; i++) {
        const uint32_t members[] = {1, first_text + (uint32_t)i};
        snprintf(name, sizeof name, ".group.%zu", i);
        add_section(w, name, (header){.type = GROUP, .link = sym, .info = 2 + (uint32_t)i, .align = 16, .entsize = 4},
                    members, sizeof members);
    }
    const uint32_t cols = OB_TXN_COLS;
    add_note(w, ".note.xrt.configuration", &cols, 4, 6);
    XXH128_canonical_t uid;
    if (!w->out->failed) XXH128_canonicalFromHash(&uid, XXH3_128bits(w->out->data, w->out->len));
    else memset(&uid, 0, sizeof uid);
    add_note(w, ".note.xrt.UID", &uid, sizeof uid, 4);
    w->sections[1] = (header){.name = w->sections[1].name,
                              .type = STRTAB,
                              .off = (uint32_t)w->out->len,
                              .size = (uint32_t)w->names.len,
                              .align = 1};
    ob_buf_add(w->out, w->names.data, w->names.len);
    write_headers(w, loads);
}

ob_status ob_npu_elf_write(ob_buf *out, const char *kernel, uint32_t n_args, const ob_npu_elf_pdi *pdis, size_t n_pdis,
                           const ob_npu_elf_text *texts, size_t n_texts, ob_err *err)
{
    OB_TRY(check_parts(pdis, n_pdis, texts, n_texts, err));
    if (out->len) return ob_err_set(err, OB_E_INVALID, "kernel ELF: the buffer is not empty");
    writer w = {.out = out};
    ob_buf *tables[] = {&w.names, &w.str, &w.sym, &w.dynstr, &w.dynsym, &w.rela};
    for (size_t i = 0; i < OB_COUNT(tables); i++) ob_buf_init(tables[i], OB_NPU_ELF_MAX_BYTES);
    write_sections(&w, kernel, n_args, pdis, n_pdis, texts, n_texts);
    ob_status s = ob_buf_status(out, err);
    for (size_t i = 0; i < OB_COUNT(tables); i++) {
        if (s == OB_OK) s = ob_buf_status(tables[i], err);
        ob_buf_deinit(tables[i]);
    }
    return s;
}
