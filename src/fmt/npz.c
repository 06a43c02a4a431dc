#include "fmt/npz.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "base/span.h"

/* PKWARE's APPNOTE.TXT: end of directory, directory entry, local header. */
enum { END_BYTES = 22, END_SIG = 0x06054b50, ENTRY_SIG = 0x02014b50, LOCAL_SIG = 0x04034b50, LOCAL_BYTES = 30 };
enum { STORED = 0, DEFLATED = 8 };

struct ob_npz {
    uint8_t *data;
    size_t len;
    size_t dir_off;
    uint32_t n_entries;
};

typedef struct entry {
    const char *name; /* not ended */
    size_t name_len;
    uint16_t method;
    uint32_t packed, size, local_off;
} entry;

static ob_status read_file(const char *path, ob_npz *z, ob_err *err)
{
    ob_status s = OB_OK;
    FILE *f = fopen(path, "rbe");
    if (!f) return ob_err_set_errno(err, OB_E_IO, errno, "cannot open %.200s", path);
    long n = -1;
    if (fseek(f, 0, SEEK_END) == 0) n = ftell(f);
    if (n < 0 || n > OB_MAX_NPZ_BYTES) {
        s = ob_err_set(err, OB_E_LIMIT, "%.200s has more than %d bytes", path, OB_MAX_NPZ_BYTES);
        goto out;
    }
    rewind(f);
    z->data = ob_malloc((size_t)n + 1);
    if (!z->data) s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for %.200s", path);
    else if (fread(z->data, 1, (size_t)n, f) != (size_t)n)
        s = ob_err_set_errno(err, OB_E_IO, errno, "cannot read %.200s", path);
    z->len = (size_t)n;
out:
    fclose(f);
    return s;
}

/* The end record, at the end but for a comment of up to 64 KiB. */
static bool find_directory(ob_npz *z)
{
    if (z->len < END_BYTES) return false;
    const size_t last = z->len - END_BYTES, first = last > 0xFFFF ? last - 0xFFFF : 0;
    for (size_t at = last + 1; at-- > first;) {
        ob_span s = ob_span_of(z->data + at, END_BYTES);
        uint32_t sig, size, off;
        uint16_t disk, dir_disk, here, total;
        if (!ob_span_u32(&s, &sig) || sig != END_SIG) continue;
        if (!ob_span_u16(&s, &disk) || !ob_span_u16(&s, &dir_disk) || !ob_span_u16(&s, &here) ||
            !ob_span_u16(&s, &total) || !ob_span_u32(&s, &size) || !ob_span_u32(&s, &off))
            return false;
        if (disk || dir_disk || here != total || off > at || size > at - off) return false;
        z->dir_off = off;
        z->n_entries = total;
        return true;
    }
    return false;
}

static bool next_entry(ob_span *s, entry *e)
{
    uint32_t sig, crc, external;
    uint16_t u16, name_len, extra_len, comment_len;
    ob_span_u32(s, &sig);
    for (int i = 0; i < 3; i++) ob_span_u16(s, &u16); /* versions, flags */
    ob_span_u16(s, &e->method);
    ob_span_u32(s, &crc); /* time and date */
    ob_span_u32(s, &crc);
    ob_span_u32(s, &e->packed);
    ob_span_u32(s, &e->size);
    ob_span_u16(s, &name_len);
    ob_span_u16(s, &extra_len);
    ob_span_u16(s, &comment_len);
    for (int i = 0; i < 2; i++) ob_span_u16(s, &u16); /* disk, attributes */
    ob_span_u32(s, &external);
    ob_span_u32(s, &e->local_off);
    if (s->bad || sig != ENTRY_SIG) return false;
    e->name = (const char *)ob_span_take(s, name_len);
    e->name_len = name_len;
    return ob_span_take(s, (size_t)extra_len + comment_len) && e->name;
}

static bool find_entry(const ob_npz *z, const char *name, entry *e)
{
    const size_t n = strlen(name);
    ob_span s = ob_span_of(z->data + z->dir_off, z->len - z->dir_off);
    for (uint32_t i = 0; i < z->n_entries && next_entry(&s, e); i++)
        if (e->name_len == n + 4 && !memcmp(e->name, name, n) && !memcmp(e->name + n, ".npy", 4)) return true;
    return false;
}

/* The packed bytes of an entry, behind its local header. */
static const uint8_t *packed_bytes(const ob_npz *z, const entry *e)
{
    if (e->local_off > z->len) return NULL;
    ob_span s = ob_span_of(z->data + e->local_off, z->len - e->local_off);
    const uint8_t *head = ob_span_take(&s, LOCAL_BYTES);
    if (!head) return NULL;
    ob_span h = ob_span_of(head, LOCAL_BYTES), tail = ob_span_of(head + 26, 4);
    uint32_t sig;
    uint16_t name_len, extra_len;
    if (!ob_span_u32(&h, &sig) || sig != LOCAL_SIG || !ob_span_u16(&tail, &name_len) || !ob_span_u16(&tail, &extra_len))
        return NULL;
    if (!ob_span_take(&s, (size_t)name_len + extra_len)) return NULL;
    return ob_span_take(&s, e->packed);
}

static ob_status unpack(const ob_npz *z, const entry *e, uint8_t **out, ob_err *err)
{
    const uint8_t *src = packed_bytes(z, e);
    if (!src || (e->method == STORED && e->packed != e->size) || (e->method != STORED && e->method != DEFLATED))
        return ob_err_set(err, OB_E_FORMAT, "array %.*s is cut off or packed in an unknown way", (int)e->name_len, e->name);
    if (e->size > OB_MAX_NPZ_BYTES) return ob_err_set(err, OB_E_LIMIT, "array %.*s is too large", (int)e->name_len, e->name);
    uint8_t *dst = ob_malloc((size_t)e->size + 1);
    if (!dst) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for array %.*s", (int)e->name_len, e->name);
    if (e->method == STORED) {
        memcpy(dst, src, e->size);
    } else {
        z_stream s = {.next_in = (Bytef *)(uintptr_t)src, .avail_in = e->packed, .next_out = dst, .avail_out = e->size};
        bool good = inflateInit2(&s, -MAX_WBITS) == Z_OK;
        if (good) {
            good = inflate(&s, Z_FINISH) == Z_STREAM_END && s.avail_out == 0;
            inflateEnd(&s);
        }
        if (!good) {
            ob_free(dst);
            return ob_err_set(err, OB_E_FORMAT, "array %.*s cannot be unpacked", (int)e->name_len, e->name);
        }
    }
    *out = dst;
    return OB_OK;
}

/* The header is a Python dict of fixed form: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } */
static bool parse_head(char *head, ob_npz_array *a)
{
    const char *descr = strstr(head, "'descr': '"), *shape = strstr(head, "'shape': (");
    if (!descr || !shape || !strstr(head, "'fortran_order': False")) return false;
    descr += 10;
    const size_t n = strcspn(descr, "'");
    if (n == 0 || n >= sizeof a->type) return false;
    memcpy(a->type, descr, n);
    a->n_items = 1;
    for (const char *p = shape + 10; *p && *p != ')';) {
        char *end;
        const long long d = strtoll(p, &end, 10);
        if (end == p || d < 0 || a->n_dims == OB_NPZ_MAX_DIMS || !ob_mul_size(a->n_items, (size_t)d, &a->n_items))
            return false;
        a->shape[a->n_dims++] = d;
        p = end + strspn(end, ", ");
    }
    return true;
}

static ob_status parse_npy(uint8_t *raw, size_t len, const char *name, ob_npz_array *a, ob_err *err)
{
    static const uint8_t magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
    ob_span s = ob_span_of(raw, len);
    const uint8_t *m = ob_span_take(&s, 6);
    uint8_t major, minor;
    uint16_t short_len;
    uint32_t head_len = 0;
    ob_span_u8(&s, &major);
    ob_span_u8(&s, &minor);
    if (major == 1) {
        ob_span_u16(&s, &short_len);
        head_len = short_len;
    } else {
        ob_span_u32(&s, &head_len);
    }
    const uint8_t *head = ob_span_take(&s, head_len);
    char text[512];
    if (!m || memcmp(m, magic, 6) != 0 || !head || head_len >= sizeof text)
        return ob_err_set(err, OB_E_FORMAT, "array %s has no usable header", name);
    memcpy(text, head, head_len);
    text[head_len] = 0;
    size_t bytes;
    if (!parse_head(text, a) || !ob_mul_size(a->n_items, (size_t)(a->type[2] - '0'), &bytes) || a->type[2] < '1' ||
        a->type[2] > '8' || ob_span_left(&s) != bytes)
        return ob_err_set(err, OB_E_FORMAT, "array %s has no usable header", name);
    memmove(raw, raw + s.off, bytes);
    return OB_OK;
}

ob_status ob_npz_get(const ob_npz *z, const char *name, const char *type, ob_npz_array *out, ob_err *err)
{
    entry e;
    uint8_t *raw = NULL;
    memset(out, 0, sizeof *out);
    if (!find_entry(z, name, &e)) return ob_err_set(err, OB_E_NOT_FOUND, "there is no array %s", name);
    OB_TRY(unpack(z, &e, &raw, err));
    ob_status s = parse_npy(raw, e.size, name, out, err);
    if (s == OB_OK && strcmp(out->type, type) != 0)
        s = ob_err_set(err, OB_E_FORMAT, "array %s has type %s, not %s", name, out->type, type);
    if (s == OB_OK) out->data = raw;
    else ob_free(raw);
    return s;
}

bool ob_npz_has(const ob_npz *z, const char *name)
{
    entry e;
    return find_entry(z, name, &e);
}

ob_status ob_npz_open(const char *path, ob_npz **out, ob_err *err)
{
    ob_npz *z = ob_calloc(1, sizeof *z);
    if (!z) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %.200s", path);
    ob_status s = read_file(path, z, err);
    if (s == OB_OK && !find_directory(z)) s = ob_err_set(err, OB_E_FORMAT, "%.200s is no .npz file", path);
    if (s != OB_OK) ob_npz_close(z);
    else *out = z;
    return s;
}

void ob_npz_close(ob_npz *z)
{
    if (!z) return;
    ob_free(z->data);
    ob_free(z);
}
