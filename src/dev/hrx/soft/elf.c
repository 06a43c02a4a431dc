/* Reads what a host must know from an AMDGPU code object: an ELF64 file in which each kernel NAME has a function
 * symbol NAME (machine code) and an object symbol NAME.kd (a 64-byte descriptor), and a note "AMDGPU" of type 32 holds
 * MessagePack metadata. Layouts: the public "User Guide for AMDGPU Backend" of LLVM. */
#include "dev/hrx/soft/gfx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes ----------------------------------------------------------------------------------- */

typedef struct bytes { const uint8_t *p; size_t n; } bytes;

static bool slice(bytes b, uint64_t off, uint64_t n, bytes *out)
{
    if (off > b.n || n > b.n - off) return false;
    *out = (bytes){b.p + off, (size_t)n};
    return true;
}

static uint64_t le(const uint8_t *p, int n)
{
    uint64_t v = 0;
    while (n--) v = v << 8 | p[n];
    return v;
}

/* Number at off of a file; 0 past its end: what depends on it is checked by slice(). */
static uint64_t at(bytes b, uint64_t off, int n)
{
    bytes s;
    return slice(b, off, (uint64_t)n, &s) ? le(s.p, n) : 0;
}

/* ---- MessagePack: a cursor that cannot leave its bytes ---------------------------------------- */

typedef struct pack { const uint8_t *p, *end; bool bad; int depth; } pack;
typedef enum pack_kind { PACK_OTHER, PACK_INT, PACK_STR, PACK_LIST, PACK_MAP } pack_kind;
typedef struct pack_item { pack_kind kind; uint64_t n; const char *str; } pack_item; /* n: value, length or count */

static uint64_t big(pack *m, int n)
{
    if (m->end - m->p < n) {
        m->bad = true;
        return 0;
    }
    uint64_t v = 0;
    while (n--) v = v << 8 | *m->p++;
    return v;
}

static void take_str(pack *m, pack_item *i, uint64_t n)
{
    if ((uint64_t)(m->end - m->p) < n) {
        m->bad = true;
        return;
    }
    i->kind = PACK_STR;
    i->n = n;
    i->str = (const char *)m->p;
    m->p += n;
}

static pack_item next(pack *m)
{
    pack_item i = {PACK_OTHER, 0, NULL};
    const uint32_t t = (uint32_t)big(m, 1);
    if (m->bad) return i;
    if (t < 0x80) i = (pack_item){PACK_INT, t, NULL};
    else if (t < 0x90) i = (pack_item){PACK_MAP, t & 15, NULL};
    else if (t < 0xa0) i = (pack_item){PACK_LIST, t & 15, NULL};
    else if (t < 0xc0) take_str(m, &i, t & 31);
    else if (t >= 0xe0 || t == 0xc0 || t == 0xc2 || t == 0xc3) i.n = t;
    else if (t >= 0xcc && t <= 0xcf) i = (pack_item){PACK_INT, big(m, 1 << (t - 0xcc)), NULL};
    else if (t >= 0xd0 && t <= 0xd3) big(m, 1 << (t - 0xd0));
    else if (t == 0xca || t == 0xcb) big(m, t == 0xca ? 4 : 8);
    else if (t >= 0xd9 && t <= 0xdb) take_str(m, &i, big(m, 1 << (t - 0xd9)));
    else if (t >= 0xc4 && t <= 0xc6) take_str(m, &i, big(m, 1 << (t - 0xc4)));
    else if (t == 0xdc || t == 0xdd) i = (pack_item){PACK_LIST, big(m, t == 0xdc ? 2 : 4), NULL};
    else if (t == 0xde || t == 0xdf) i = (pack_item){PACK_MAP, big(m, t == 0xde ? 2 : 4), NULL};
    else m->bad = true;
    if (i.kind >= PACK_LIST && i.n > (uint64_t)(m->end - m->p)) m->bad = true; /* an item is a byte at least */
    return i;
}

static void skip(pack *m, pack_item i)
{
    if (i.kind < PACK_LIST || m->bad) return;
    if (++m->depth > 16) m->bad = true;
    for (uint64_t n = i.n * (i.kind == PACK_MAP ? 2 : 1); n && !m->bad; n--) skip(m, next(m));
    m->depth--;
}

static bool is(pack_item i, const char *s) { return i.kind == PACK_STR && i.n == strlen(s) && !memcmp(i.str, s, i.n); }

/* ---- metadata -------------------------------------------------------------------------------- */

typedef struct reader {
    bytes file;
    gfx_object *o;
    char *why;
} reader;

static bool bad(reader *r, const char *text)
{
    if (!r->why[0]) snprintf(r->why, GFX_TEXT, "code object: %s", text);
    return false;
}

static char *copy(pack_item i)
{
    char *s = malloc((size_t)i.n + 1);
    if (!s) return NULL;
    memcpy(s, i.str, (size_t)i.n);
    s[i.n] = 0;
    return s;
}

static bool read_args(reader *r, pack *m, gfx_kernel *k, pack_item list)
{
    if (list.kind != PACK_LIST || list.n > GFX_MAX_ARGS) return bad(r, "too many arguments");
    for (uint64_t n = 0; n < list.n && !m->bad; n++) {
        gfx_arg a = {0, 0, false};
        const pack_item map = next(m);
        if (map.kind != PACK_MAP) return bad(r, "an argument is no map");
        bool known = false;
        for (uint64_t f = 0; f < map.n && !m->bad; f++) {
            const pack_item key = next(m), v = next(m);
            if (is(key, ".offset") && v.kind == PACK_INT) a.offset = (uint32_t)v.n;
            else if (is(key, ".size") && v.kind == PACK_INT) a.size = (uint32_t)v.n;
            else if (is(key, ".value_kind")) {
                a.buffer = is(v, "global_buffer");
                known = a.buffer || is(v, "by_value");
            } else skip(m, v);
        }
        if (!known || a.size > 8 || (a.buffer && a.size != 8)) return bad(r, "an argument is neither value nor buffer");
        k->args[k->n_args++] = a;
    }
    return !m->bad || bad(r, "metadata is cut off");
}

static bool read_kernel(reader *r, pack *m, gfx_kernel *k, char **symbol)
{
    const pack_item map = next(m);
    if (map.kind != PACK_MAP) return bad(r, "a kernel is no map");
    for (uint64_t f = 0; f < map.n && !m->bad; f++) {
        const pack_item key = next(m), v = next(m);
        if (is(key, ".args")) {
            if (!read_args(r, m, k, v)) return false;
        } else if (is(key, ".reqd_workgroup_size") && v.kind == PACK_LIST && v.n == 3) {
            for (int i = 0; i < 3; i++) k->workgroup[i] = (uint32_t)next(m).n;
        } else if (is(key, ".name") && v.kind == PACK_STR && !k->name) {
            if (!(k->name = copy(v))) return bad(r, "no memory");
        } else if (is(key, ".symbol") && v.kind == PACK_STR && !*symbol) {
            if (!(*symbol = copy(v))) return bad(r, "no memory");
        } else if (is(key, ".vgpr_count") && v.kind == PACK_INT) {
            k->vgprs = (uint32_t)v.n;
        } else {
            skip(m, v);
        }
    }
    return (!m->bad && k->name && *symbol) || bad(r, "a kernel without name or symbol");
}

/* ---- ELF ------------------------------------------------------------------------------------- */

static bool image(reader *r, uint64_t addr, uint64_t n, bytes *out)
{
    const uint64_t off = at(r->file, 32, 8), count = at(r->file, 56, 2);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t h = off + 56 * i, va = at(r->file, h + 16, 8), size = at(r->file, h + 32, 8);
        if (at(r->file, h, 4) != 1 || addr < va || addr - va > size || n > size - (addr - va)) continue;
        return slice(r->file, at(r->file, h + 8, 8) + (addr - va), n, out);
    }
    return false;
}

static bool find_symbol(reader *r, const char *name, uint64_t *addr, uint64_t *size)
{
    const uint64_t shoff = at(r->file, 40, 8), count = at(r->file, 60, 2), want = strlen(name);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t h = shoff + 64 * i, type = at(r->file, h + 4, 4);
        if (type != 2 && type != 11) continue; /* SHT_SYMTAB, SHT_DYNSYM */
        const uint64_t from = at(r->file, h + 24, 8), n = at(r->file, h + 32, 8) / 24;
        const uint64_t strings = at(r->file, shoff + 64 * at(r->file, h + 40, 4) + 24, 8);
        for (uint64_t s = 0; s < n && from + 24 * s < r->file.n; s++) {
            bytes text;
            const uint64_t sym = from + 24 * s;
            if (!at(r->file, sym + 6, 2) || !slice(r->file, strings + at(r->file, sym, 4), want + 1, &text)) continue;
            if (memcmp(text.p, name, want + 1) != 0) continue;
            *addr = at(r->file, sym + 8, 8);
            *size = at(r->file, sym + 16, 8);
            return true;
        }
    }
    return false;
}

static bool place(reader *r, gfx_kernel *k, const char *symbol)
{
    uint64_t addr, size, kd, kd_size;
    bytes code, desc;
    if (!find_symbol(r, k->name, &addr, &size) || !find_symbol(r, symbol, &kd, &kd_size)) return bad(r, "a kernel has no symbol");
    if (!image(r, addr, size, &code) || !image(r, kd, 64, &desc) || size % 4 || size > UINT32_MAX)
        return bad(r, "a kernel's code is not in the file");
    k->code = code.p;
    k->code_bytes = (uint32_t)size;
    k->lds_bytes = (uint32_t)le(desc.p, 4);
    k->scratch_bytes = (uint32_t)le(desc.p + 4, 4);
    k->kernarg_bytes = (uint32_t)le(desc.p + 8, 4);
    k->rsrc2 = (uint32_t)le(desc.p + 52, 4);
    k->properties = (uint32_t)le(desc.p + 56, 2);
    for (uint32_t i = 0; i < k->n_args; i++)
        if (k->args[i].offset > k->kernarg_bytes || k->args[i].size > k->kernarg_bytes - k->args[i].offset)
            return bad(r, "an argument lies outside the kernel's arguments");
    if (k->lds_bytes > 65536 || k->kernarg_bytes > 4096) return bad(r, "too much LDS or too many arguments");
    return true;
}

static bool read_kernels(reader *r, pack *m, pack_item list)
{
    if (list.kind != PACK_LIST || r->o->kernels) return bad(r, "kernels are no list");
    r->o->kernels = calloc((size_t)list.n + 1, sizeof *r->o->kernels);
    if (!r->o->kernels) return bad(r, "no memory");
    for (uint64_t n = 0; n < list.n; n++) {
        char *symbol = NULL;
        gfx_kernel *k = &r->o->kernels[r->o->n_kernels++];
        const bool ok = read_kernel(r, m, k, &symbol) && place(r, k, symbol);
        free(symbol);
        if (!ok) return false;
    }
    return true;
}

static bool read_metadata(reader *r, bytes note)
{
    pack m = {note.p, note.p + note.n, false, 0};
    const pack_item map = next(&m);
    if (map.kind != PACK_MAP) return bad(r, "metadata is no map");
    for (uint64_t f = 0; f < map.n && !m.bad; f++) {
        const pack_item key = next(&m), v = next(&m);
        if (is(key, "amdhsa.target") && v.kind == PACK_STR) {
            snprintf(r->o->target, sizeof r->o->target, "%.*s", (int)v.n, v.str);
        } else if (is(key, "amdhsa.kernels")) {
            if (!read_kernels(r, &m, v)) return false;
        } else {
            skip(&m, v);
        }
    }
    return !m.bad || bad(r, "metadata is cut off");
}

static bool find_metadata(reader *r, bytes *out)
{
    const uint64_t off = at(r->file, 32, 8), count = at(r->file, 56, 2);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t h = off + 56 * i;
        bytes notes;
        if (at(r->file, h, 4) != 4 || !slice(r->file, at(r->file, h + 8, 8), at(r->file, h + 32, 8), &notes)) continue;
        for (uint64_t p = 0; p + 12 <= notes.n;) {
            const uint64_t name = at(notes, p, 4), desc = at(notes, p + 4, 4), d = p + 12 + ((name + 3) & ~UINT64_C(3));
            if (at(notes, p + 8, 4) == 32 && at(notes, p + 12, 6) == 0x555047444d41) return slice(notes, d, desc, out);
            p = d + ((desc + 3) & ~UINT64_C(3));
        }
    }
    return false;
}

bool gfx_object_read(const void *data, size_t n_bytes, gfx_object **out, char why[GFX_TEXT])
{
    bytes note;
    why[0] = 0;
    *out = NULL;
    gfx_object *o = calloc(1, sizeof *o);
    if (o) o->data = malloc(n_bytes + 1);
    if (!o || !o->data) {
        free(o);
        snprintf(why, GFX_TEXT, "no memory");
        return false;
    }
    memcpy(o->data, data, n_bytes);
    o->n_bytes = n_bytes;
    reader r = {{o->data, n_bytes}, o, why};
    bool ok = n_bytes >= 64 && !memcmp(o->data, "\177ELF\002", 5) && at(r.file, 18, 2) == 224;
    if (!ok) bad(&r, "not an ELF file for AMD GPUs");
    if (ok && !(ok = find_metadata(&r, &note))) bad(&r, "no AMDGPU metadata");
    if (ok) ok = read_metadata(&r, note);
    if (ok) *out = o;
    else gfx_object_free(o);
    return ok;
}

void gfx_object_free(gfx_object *o)
{
    if (!o) return;
    for (uint32_t i = 0; i < o->n_kernels; i++) {
        free(o->kernels[i].name);
        free(o->kernels[i].insns);
        free(o->kernels[i].constants);
        free(o->kernels[i].dpps);
    }
    free(o->kernels);
    free(o->data);
    free(o);
}
