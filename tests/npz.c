/* tests/npz.c: see npz.h. Formats: PKZIP APPNOTE 6.3 (4.3.12, 4.3.16), numpy NEP 1. */
#include "npz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

typedef struct entry {
    char name[128];
    const uint8_t *packed;
    size_t packed_len, len;
    int method;     /* 0 stored, 8 deflate */
    uint32_t crc;
    void *memory;   /* unpacked and converted bytes; NULL until asked for */
    npz_array array;
} entry;

struct npz {
    char path[512];
    uint8_t *file;
    size_t file_len;
    int n;
    entry *entries;
};

static void complain(const npz *z, const char *name, const char *what)
{
    fprintf(stderr, "npz: %s: %s%s%s\n", z->path, name, *name ? ": " : "", what);
}

static uint32_t le(const uint8_t *p, int n_bytes)
{
    uint32_t x = 0;
    for (int i = n_bytes - 1; i >= 0; i--) x = x << 8 | p[i];
    return x;
}

/* --- zip directory ------------------------------------------------------------------------- */

/* One record of the central directory at *at; moves on. */
static bool read_entry(npz *z, size_t *at, entry *e)
{
    const uint8_t *p = z->file + *at;
    if (*at + 46 > z->file_len || le(p, 4) != 0x02014b50) return false;
    size_t name_len = le(p + 28, 2), next = 46 + name_len + le(p + 30, 2) + le(p + 32, 2);
    if (*at + next > z->file_len || name_len >= sizeof e->name) return false;
    memcpy(e->name, p + 46, name_len);
    if (name_len > 4 && strcmp(e->name + name_len - 4, ".npy") == 0) e->name[name_len - 4] = 0;
    e->method = (int)le(p + 10, 2);
    e->crc = le(p + 16, 4);
    e->packed_len = le(p + 20, 4);
    e->len = le(p + 24, 4);
    size_t local = le(p + 42, 4);
    if (e->packed_len == UINT32_MAX || e->len == UINT32_MAX || local == UINT32_MAX) return false;
    if (local + 30 > z->file_len || le(z->file + local, 4) != 0x04034b50) return false;
    size_t data = local + 30 + le(z->file + local + 26, 2) + le(z->file + local + 28, 2);
    if (data + e->packed_len > z->file_len) return false;
    e->packed = z->file + data;
    *at += next;
    return true;
}

static bool read_directory(npz *z)
{
    if (z->file_len < 22) return false;
    size_t end = z->file_len - 22; /* the end record may be followed by a comment */
    while (end > 0 && le(z->file + end, 4) != 0x06054b50) end--;
    if (le(z->file + end, 4) != 0x06054b50) return false;
    int n = (int)le(z->file + end + 10, 2);
    size_t at = le(z->file + end + 16, 4);
    z->entries = calloc((size_t)n + 1, sizeof *z->entries);
    if (!z->entries) return false;
    for (; z->n < n; z->n++)
        if (!read_entry(z, &at, &z->entries[z->n])) return false;
    return true;
}

/* --- one array ----------------------------------------------------------------------------- */

static uint8_t *unpack(const entry *e)
{
    uint8_t *out = malloc(e->len + 1);
    if (!out) return NULL;
    bool ok = false;
    if (e->method == 0) {
        ok = e->len == e->packed_len;
        if (ok) memcpy(out, e->packed, e->len);
    } else if (e->method == 8) {
        z_stream s = {.next_in = (Bytef *)(uintptr_t)e->packed, .avail_in = (uInt)e->packed_len,
                      .next_out = out, .avail_out = (uInt)e->len};
        if (inflateInit2(&s, -MAX_WBITS) == Z_OK) {
            ok = inflate(&s, Z_FINISH) == Z_STREAM_END && s.total_out == e->len;
            inflateEnd(&s);
        }
    }
    if (ok) ok = crc32(crc32(0, NULL, 0), out, (uInt)e->len) == e->crc;
    if (!ok) {
        free(out);
        return NULL;
    }
    return out;
}

static bool read_dtype(const char *descr, npz_array *a)
{
    static const struct {
        char kind, size;
        npz_dtype dtype;
    } kinds[] = {{'b', 1, NPZ_BOOL}, {'u', 1, NPZ_U8},  {'u', 2, NPZ_U16}, {'u', 4, NPZ_U32},
                 {'u', 8, NPZ_U64},  {'i', 1, NPZ_I8},  {'i', 2, NPZ_I16}, {'i', 4, NPZ_I32},
                 {'i', 8, NPZ_I64},  {'f', 2, NPZ_F16}, {'f', 4, NPZ_F32}, {'f', 8, NPZ_F64}};
    if (*descr != '<' && *descr != '|') return false;
    char *end;
    long size = strtol(descr + 2, &end, 10);
    if (*end != '\'' || size < 0) return false;
    a->item_bytes = (size_t)size;
    if (descr[1] == 'S' || descr[1] == 'U') {
        a->dtype = descr[1] == 'S' ? NPZ_BYTES : NPZ_TEXT;
        if (descr[1] == 'U') a->item_bytes *= 4;
        return true;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i].kind == descr[1] && kinds[i].size == size) {
            a->dtype = kinds[i].dtype;
            return true;
        }
    return false;
}

/* `header` is the NUL-ended text {'descr': '<f4', 'fortran_order': False, 'shape': (64, 1024), }. */
static bool read_header(const char *header, npz_array *a)
{
    const char *descr = strstr(header, "'descr': '"), *shape = strstr(header, "'shape': (");
    if (!descr || !shape || !strstr(header, "'fortran_order': False")) return false;
    if (!read_dtype(descr + 10, a)) return false;
    a->n_items = 1;
    for (const char *p = shape + 10; *p != ')';) {
        char *end;
        long long d = strtoll(p, &end, 10);
        if (end == p || d < 0 || a->n_dims == NPZ_MAX_DIMS) return false;
        a->shape[a->n_dims++] = d;
        if (__builtin_mul_overflow(a->n_items, (int64_t)d, &a->n_items)) return false;
        for (p = end; *p == ',' || *p == ' ';) p++;
    }
    return true;
}

/* UCS-4 items to UTF-8 items of 4 bytes a character and one NUL. */
static char *to_utf8(const uint8_t *src, npz_array *a)
{
    size_t n_chars = a->item_bytes / 4, item = a->item_bytes + 1;
    char *out = calloc((size_t)a->n_items + 1, item);
    if (!out) return NULL;
    for (int64_t i = 0; i < a->n_items; i++) {
        char *o = out + (size_t)i * item;
        for (size_t k = 0; k < n_chars; k++) {
            uint32_t c = le(src + ((size_t)i * n_chars + k) * 4, 4);
            if (c < 0x80) {
                if (c) *o++ = (char)c;
                continue;
            }
            int extra = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
            *o++ = (char)((0xFF00u >> (extra + 1) & 0xFFu) | c >> (6 * extra));
            while (extra--) *o++ = (char)(0x80 | (c >> (6 * extra) & 0x3F));
        }
    }
    a->item_bytes = item;
    return out;
}

static const char *load(entry *e)
{
    const char *why = "cannot be unpacked";
    uint8_t *raw = unpack(e);
    if (!raw) return why;
    npz_array *a = &e->array;
    char header[4096];
    size_t data = 0;
    why = "is no .npy file in C order and of a known dtype";
    if (e->len < 12 || memcmp(raw, "\x93NUMPY", 6) != 0) goto out;
    data = raw[6] == 1 ? 10 + le(raw + 8, 2) : 12 + (size_t)le(raw + 8, 4);
    size_t start = raw[6] == 1 ? 10 : 12;
    if (data > e->len || data - start >= sizeof header) goto out;
    memcpy(header, raw + start, data - start);
    header[data - start] = 0;
    if (!read_header(header, a)) goto out;
    size_t bytes;
    why = "is cut short";
    if (__builtin_mul_overflow((size_t)a->n_items, a->item_bytes, &bytes)) goto out;
    if (bytes > e->len - data) goto out;
    why = "no memory";
    if (a->dtype == NPZ_TEXT) {
        e->memory = to_utf8(raw + data, a);
    } else {
        e->memory = aligned_alloc(64, (bytes + 64) & ~(size_t)63);
        if (e->memory) memcpy(e->memory, raw + data, bytes);
    }
    if (!e->memory) goto out;
    a->name = e->name;
    a->data = e->memory;
    why = NULL;
out:
    free(raw);
    return why;
}

/* --- the interface ------------------------------------------------------------------------- */

static bool read_file(npz *z)
{
    FILE *f = fopen(z->path, "rb");
    if (!f) return false;
    bool ok = false;
    long len;
    if (fseek(f, 0, SEEK_END) == 0 && (len = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0) {
        z->file_len = (size_t)len;
        z->file = malloc(z->file_len + 1);
        ok = z->file && fread(z->file, 1, z->file_len, f) == z->file_len;
    }
    fclose(f);
    return ok;
}

npz *npz_open(const char *path)
{
    npz *z = calloc(1, sizeof *z);
    if (!z) return NULL;
    snprintf(z->path, sizeof z->path, "%s", path);
    const char *why = "cannot be read";
    if (!read_file(z)) goto fail;
    why = "is neither .npz nor .npy";
    if (z->file_len > 6 && memcmp(z->file, "\x93NUMPY", 6) == 0) {
        z->entries = calloc(1, sizeof *z->entries);
        if (!z->entries) goto fail;
        *z->entries = (entry){.name = "array", .packed = z->file, .packed_len = z->file_len,
                              .len = z->file_len,
                              .crc = (uint32_t)crc32(0, z->file, (uInt)z->file_len)};
        z->n = 1;
    } else if (!read_directory(z)) {
        goto fail;
    }
    return z;
fail:
    complain(z, "", why);
    npz_close(z);
    return NULL;
}

void npz_close(npz *z)
{
    if (!z) return;
    for (int i = 0; i < z->n; i++) free(z->entries[i].memory);
    free(z->entries);
    free(z->file);
    free(z);
}

int npz_count(const npz *z) { return z->n; }
const char *npz_name(const npz *z, int i) { return z->entries[i].name; }

const npz_array *npz_get(npz *z, const char *name)
{
    for (int i = 0; i < z->n; i++) {
        entry *e = &z->entries[i];
        if (strcmp(e->name, name) != 0) continue;
        if (e->memory) return &e->array;
        e->array = (npz_array){0};
        const char *why = load(e);
        if (!why) return &e->array;
        complain(z, name, why);
        return NULL;
    }
    return NULL;
}

const npz_array *npz_need(npz *z, const char *name, npz_dtype dtype)
{
    const npz_array *a = z ? npz_get(z, name) : NULL;
    if (a && a->dtype == dtype) return a;
    if (z) complain(z, name, a ? "has another dtype" : "is missing");
    exit(1);
}
