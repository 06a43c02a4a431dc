/* Reading full ELF files. Every number in them is a stranger's. */
#include "dev/npu/npu_elf.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/span.h"

enum { EHDR_BYTES = 52, SHDR_BYTES = 40, SYM_BYTES = 16, RELA_BYTES = 12, MAX_SECTIONS = 2048 };
enum { SHT_PROGBITS_ = 1, SHT_SYMTAB_ = 2, SHT_RELA_ = 4, SHT_NOTE_ = 7 };
enum { SHT_NOBITS_ = 8, SHT_DYNSYM_ = 11, SHT_GROUP_ = 17 };

typedef struct section {
    const char *name;
    uint32_t type, link, info;
    ob_span bytes;
    int text; /* index in out->texts, or -1 */
} section;

typedef struct reader {
    const uint8_t *file;
    size_t n_bytes;
    section *sections;
    uint32_t n_sections;
    ob_npu_elf *out;
    uint32_t first_arg; /* what argument 0 is called: 0, or 3 */
    ob_err *err;
} reader;

static uint32_t u32_at(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static uint32_t u16_at(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

static ob_status bad(const reader *r, const char *what)
{
    return ob_err_set(r->err, OB_E_FORMAT, "kernel ELF: %s", what);
}

/* A text that ends inside its table; NULL: it does not. */
static const char *string_at(const ob_span *table, uint32_t off)
{
    if (off >= table->len || !memchr(table->data + off, 0, table->len - off)) return NULL;
    return (const char *)table->data + off;
}

/* --- sections ----------------------------------------------------------------------------------- */

static ob_status read_header(const reader *r, uint32_t *sh_off, uint32_t *n, uint32_t *names)
{
    const uint8_t *h = r->file;
    if (r->n_bytes < EHDR_BYTES || memcmp(h, "\x7f" "ELF", 4) != 0) return bad(r, "not an ELF file");
    if (h[4] != 1 || h[5] != 1 || h[6] != 1) return bad(r, "not a 32-bit little-endian ELF of version 1");
    if (h[7] != 0x45) return ob_err_set(r->err, OB_E_FORMAT, "kernel ELF: OS/ABI %u is not AIE2's (69)", h[7]);
    *sh_off = u32_at(h + 32);
    *n = u16_at(h + 48);
    *names = u16_at(h + 50);
    if (u16_at(h + 46) != SHDR_BYTES) return bad(r, "section headers of an unknown size");
    if (*n < 1 || *n > MAX_SECTIONS || *names >= *n) return bad(r, "number of sections");
    if (*sh_off > r->n_bytes || (uint64_t)*n * SHDR_BYTES > r->n_bytes - *sh_off)
        return bad(r, "section headers outside of the file");
    return OB_OK;
}

static ob_status read_sections(reader *r)
{
    uint32_t sh_off = 0, names = 0;
    OB_TRY(read_header(r, &sh_off, &r->n_sections, &names));
    r->sections = ob_calloc(r->n_sections, sizeof *r->sections);
    if (!r->sections) return ob_err_set(r->err, OB_E_NO_MEMORY, "kernel ELF: no memory for its sections");
    for (uint32_t i = 0; i < r->n_sections; i++) {
        const uint8_t *h = r->file + sh_off + (size_t)i * SHDR_BYTES;
        uint32_t off = u32_at(h + 16), size = u32_at(h + 20);
        section *s = &r->sections[i];
        *s = (section){.type = u32_at(h + 4), .link = u32_at(h + 24), .info = u32_at(h + 28), .text = -1};
        if (s->type == 0 || s->type == SHT_NOBITS_) size = off = 0;
        if (off > r->n_bytes || size > r->n_bytes - off) return bad(r, "a section outside of the file");
        s->bytes = ob_span_of(r->file + off, size);
    }
    for (uint32_t i = 0; i < r->n_sections; i++) {
        r->sections[i].name = string_at(&r->sections[names].bytes, u32_at(r->file + sh_off + (size_t)i * SHDR_BYTES));
        if (!r->sections[i].name) return bad(r, "a section without a name");
    }
    return OB_OK;
}

/* ".pdi.12" with prefix ".pdi." -> 12; false: something else. */
static bool number_after(const char *name, const char *prefix, uint32_t *out)
{
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0 || name[n] < '0' || name[n] > '9' || strlen(name + n) > 5) return false;
    char *end;
    *out = (uint32_t)strtoul(name + n, &end, 10);
    return !*end;
}

static ob_status add_pdi(reader *r, const section *s, uint32_t id)
{
    ob_npu_elf *e = r->out;
    if (e->n_pdis == OB_NPU_ELF_MAX_PDIS) return bad(r, "more PDIs than a context may have");
    if (!s->bytes.len) return bad(r, "an empty PDI");
    for (size_t i = 0; i < e->n_pdis; i++)
        if (e->pdis[i].id == id) return bad(r, "two PDIs of one number");
    e->pdis[e->n_pdis++] = (ob_npu_elf_pdi){.id = id, .data = s->bytes.data, .n_bytes = s->bytes.len};
    return OB_OK;
}

static ob_status add_text(reader *r, section *s)
{
    ob_npu_elf *e = r->out;
    if (e->n_texts == OB_NPU_ELF_MAX_TEXTS) return bad(r, "too many control texts");
    const ob_span *b = &s->bytes;
    /* The header only: the ops are the walker's business, when the text is run. */
    if (b->len < 4 * OB_TXN_HEADER_WORDS || b->len % 4 || b->len > OB_TXN_MAX_BYTES || u32_at(b->data + 12) != b->len)
        return ob_err_set(r->err, OB_E_FORMAT, "kernel ELF: section %.40s is no control text", s->name);
    s->text = (int)e->n_texts;
    e->texts[e->n_texts++] = (ob_npu_elf_text){.data = b->data, .n_bytes = b->len};
    return OB_OK;
}

static ob_status sort_sections(reader *r)
{
    size_t n_texts = 0;
    uint32_t id;
    for (uint32_t i = 0; i < r->n_sections; i++) n_texts += strncmp(r->sections[i].name, ".ctrltext", 9) == 0;
    if (!n_texts) return bad(r, "no control text");
    r->out->texts = ob_calloc(n_texts, sizeof *r->out->texts);
    if (!r->out->texts) return ob_err_set(r->err, OB_E_NO_MEMORY, "kernel ELF: no memory for its texts");
    r->first_arg = 3;
    for (uint32_t i = 0; i < r->n_sections; i++) {
        section *s = &r->sections[i];
        if (s->type == SHT_NOTE_ && strcmp(s->name, ".note.xrt.configuration") == 0) {
            if (s->bytes.len < 20) return bad(r, "a configuration note that is too short");
            r->out->n_cols = u32_at(s->bytes.data + 16);
            r->first_arg = 0;
        }
        if (s->type != SHT_PROGBITS_) continue;
        if (number_after(s->name, ".pdi.", &id)) OB_TRY(add_pdi(r, s, id));
        else if (strcmp(s->name, ".ctrltext") == 0 || number_after(s->name, ".ctrltext.", &id)) OB_TRY(add_text(r, s));
        else if (strncmp(s->name, ".ctrldata", 9) == 0 || strncmp(s->name, ".ctrlpkt", 8) == 0)
            return ob_err_set(r->err, OB_E_UNSUPPORTED,
                              "kernel ELF: it has control packets (%.40s), which this program does not use", s->name);
    }
    return OB_OK;
}

/* --- names -------------------------------------------------------------------------------------- */

/* Symbol i of a table; *name is NULL where its name is not sound. */
static bool symbol_at(const reader *r, const section *table, uint32_t i, const uint8_t **sym, const char **name)
{
    if (i >= table->bytes.len / SYM_BYTES || table->link >= r->n_sections) return false;
    *sym = table->bytes.data + (size_t)i * SYM_BYTES;
    *name = string_at(&r->sections[table->link].bytes, u32_at(*sym));
    return *name != NULL;
}

static void keep_name(char *dst, size_t cap, const char *name)
{
    size_t n = strlen(name);
    if (n >= cap) n = cap - 1;
    memcpy(dst, name, n);
    dst[n] = 0;
}

/* A group names the instance its texts belong to, and a weak function symbol the kernel. */
static ob_status read_names(reader *r)
{
    const uint8_t *sym;
    const char *name;
    for (uint32_t i = 0; i < r->n_sections; i++) {
        const section *s = &r->sections[i];
        if (s->type == SHT_SYMTAB_ && symbol_at(r, s, 1, &sym, &name) && (sym[12] & 15) == 2)
            keep_name(r->out->kernel, sizeof r->out->kernel, name);
        if (s->type != SHT_GROUP_) continue;
        if (s->link >= r->n_sections || !symbol_at(r, &r->sections[s->link], s->info, &sym, &name))
            return bad(r, "a group without a name");
        for (size_t at = 4; at + 4 <= s->bytes.len; at += 4) {
            uint32_t member = u32_at(s->bytes.data + at);
            if (member >= r->n_sections) return bad(r, "a group of sections that do not exist");
            if (r->sections[member].text < 0) continue;
            ob_npu_elf_text *t = &r->out->texts[r->sections[member].text];
            keep_name(t->name, sizeof t->name, name);
        }
    }
    return OB_OK;
}

/* --- relocations -------------------------------------------------------------------------------- */

static ob_status find_arg(const reader *r, const char *name, uint16_t *arg)
{
    uint32_t n;
    if (number_after(name, ".pdi.", &n)) {
        for (size_t i = 0; i < r->out->n_pdis; i++)
            if (r->out->pdis[i].id == n) {
                *arg = (uint16_t)(OB_NPU_ELF_PDI_ARG + i);
                return OB_OK;
            }
        return ob_err_set(r->err, OB_E_FORMAT, "kernel ELF: it loads PDI %u, which it does not have", n);
    }
    if (!number_after(name, "", &n))
        return ob_err_set(r->err, OB_E_UNSUPPORTED,
                          "kernel ELF: it wants an address of '%.40s', which this program does not know", name);
    if (n < r->first_arg || n - r->first_arg >= OB_NPU_ELF_MAX_ARGS)
        return ob_err_set(r->err, OB_E_FORMAT, "kernel ELF: argument '%.8s' is out of range", name);
    *arg = (uint16_t)(n - r->first_arg);
    return OB_OK;
}

/* What the words to be patched hold now: a base that the file's writer put there. */
static uint64_t base_of(const uint8_t *p, uint16_t kind)
{
    switch (kind) {
    case OB_PATCH_SCALAR32: return u32_at(p);
    case OB_PATCH_SHIM48: return (u32_at(p + 4) & ~3u) | (uint64_t)(u32_at(p + 8) & 0xFFFF) << 32;
    case OB_PATCH_CTRL48: return (u32_at(p + 8) & ~3u) | (uint64_t)(u32_at(p + 12) & 0xFFFF) << 32;
    default: return 0;
    }
}

static ob_status read_relocation(reader *r, const section *table, const uint8_t *rela)
{
    uint32_t off = u32_at(rela), info = u32_at(rela + 4), addend = u32_at(rela + 8);
    const uint8_t *sym;
    const char *name;
    if (table->link >= r->n_sections || r->sections[table->link].type != SHT_DYNSYM_ ||
        !symbol_at(r, &r->sections[table->link], info >> 8, &sym, &name))
        return bad(r, "a relocation without a symbol");
    uint32_t target = u16_at(sym + 14);
    if (target >= r->n_sections || r->sections[target].text < 0)
        return bad(r, "a relocation of what is no control text");
    ob_npu_elf_text *t = &r->out->texts[r->sections[target].text];
    ob_npu_patch p = {.off = off, .kind = (uint16_t)(info & 0xFF), .addend = addend, .n_bytes = u32_at(sym + 8)};
    const size_t extent = ob_npu_patch_extent(p.kind);
    if (!extent) return ob_err_set(r->err, OB_E_UNSUPPORTED, "kernel ELF: relocation type %u", p.kind);
    if (off & 3 || off < 4 * OB_TXN_HEADER_WORDS || off > t->n_bytes || extent > t->n_bytes - off)
        return bad(r, "a relocation outside of its control text");
    OB_TRY(find_arg(r, name, &p.arg));
    if (p.arg < OB_NPU_ELF_PDI_ARG && p.arg >= r->out->n_args) r->out->n_args = p.arg + 1u;
    p.addend += base_of(t->data + off, p.kind);
    t->patches[t->n_patches++] = p;
    return OB_OK;
}

/* Two passes: how many patches each text may have at most, then the patches. */
static ob_status read_relocations(reader *r)
{
    size_t n = 0;
    for (uint32_t i = 0; i < r->n_sections; i++)
        if (r->sections[i].type == SHT_RELA_) {
            if (r->sections[i].bytes.len % RELA_BYTES) return bad(r, "relocations of an unknown size");
            n += r->sections[i].bytes.len / RELA_BYTES;
        }
    if (!n) return OB_OK;
    if (n * r->out->n_texts > OB_NPU_ELF_MAX_BYTES / sizeof(ob_npu_patch)) return bad(r, "too many relocations");
    for (size_t t = 0; t < r->out->n_texts; t++) {
        r->out->texts[t].patches = ob_calloc(n, sizeof(ob_npu_patch));
        if (!r->out->texts[t].patches)
            return ob_err_set(r->err, OB_E_NO_MEMORY, "kernel ELF: no memory for relocations");
    }
    for (uint32_t i = 0; i < r->n_sections; i++)
        if (r->sections[i].type == SHT_RELA_)
            for (size_t at = 0; at < r->sections[i].bytes.len; at += RELA_BYTES)
                OB_TRY(read_relocation(r, &r->sections[i], r->sections[i].bytes.data + at));
    return OB_OK;
}

ob_status ob_npu_elf_read(const void *file, size_t n_bytes, ob_npu_elf *out, ob_err *err)
{
    memset(out, 0, sizeof *out);
    reader r = {.file = file, .n_bytes = n_bytes, .out = out, .err = err};
    ob_status s = OB_OK;
    if (n_bytes > OB_NPU_ELF_MAX_BYTES) return ob_err_set(err, OB_E_LIMIT, "kernel ELF of %zu bytes", n_bytes);
    OB_GOTO(read_sections(&r));
    OB_GOTO(sort_sections(&r));
    OB_GOTO(read_names(&r));
    OB_GOTO(read_relocations(&r));
out:
    ob_free(r.sections);
    if (s != OB_OK) ob_npu_elf_free(out);
    return s;
}

void ob_npu_elf_free(ob_npu_elf *e)
{
    for (size_t i = 0; i < e->n_texts; i++) ob_free(e->texts[i].patches);
    ob_free(e->texts);
    memset(e, 0, sizeof *e);
}

ob_status ob_npu_elf_place(const ob_npu_elf *e, const ob_npu_elf_text *text, uint8_t *dst, const uint64_t *args,
                           size_t n_args, const uint64_t *pdis, ob_err *err)
{
    memcpy(dst, text->data, text->n_bytes);
    for (size_t i = 0; i < text->n_patches; i++) {
        ob_npu_patch p = text->patches[i];
        bool pdi = p.arg >= OB_NPU_ELF_PDI_ARG;
        if (pdi) p.arg = (uint16_t)(p.arg - OB_NPU_ELF_PDI_ARG);
        OB_TRY(ob_npu_patch_apply(dst, text->n_bytes, &p, 1, pdi ? pdis : args, pdi ? e->n_pdis : n_args, err));
    }
    return OB_OK;
}
