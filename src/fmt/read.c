/* The reader of untrusted bytes: fields with an error that names them, and metadata pairs.
 *
 * Nothing is allocated before the count it depends on was compared with the bytes left, and the
 * tables of strings, the largest allocation, come last of all. So a hostile file costs about what a
 * good file of its size would, and a short one costs nothing.
 */
#include "fmt/fmt_int.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "base/utf8.h"

ob_shown ob_show(const char *s, size_t len)
{
    ob_shown out = {{0}};
    const size_t room = 80;
    size_t n = 0, i = 0;
    while (i < len) {
        size_t c = ob_utf8_valid_len(s + i, len - i);
        unsigned char first = (unsigned char)s[i];
        /* C0, DEL and C1 (U+0080..U+009F) can steer a terminal. */
        bool plain = c > 0 && first >= 0x20 && first != 0x7F &&
                     !(c == 2 && first == 0xC2 && (unsigned char)s[i + 1] < 0xA0);
        bool newline = first == '\n';
        size_t w = plain ? c : newline ? 2 : 1;
        if (n + w > room) {
            memcpy(out.text + n, "...", 3);
            break;
        }
        if (plain) memcpy(out.text + n, s + i, c);
        else memcpy(out.text + n, newline ? "\\n" : "?", w);
        n += w;
        i += c ? c : 1;
    }
    return out;
}

ob_reader ob_reader_of(ob_part *p, ob_err *err)
{
    return (ob_reader){.s = ob_span_of(p->data, p->n_have), .err = err, .item = "header",
                       .n_beyond = p->len - p->n_have, .need_more = &p->need_more};
}

ob_status ob_read_fail(const ob_reader *r, ob_status code, const char *fmt, ...)
{
    if (!r->err) return code;
    char what[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    size_t at = r->s.off;
    if (strcmp(r->item, "header") == 0)
        return ob_err_set(r->err, code, "header, byte %zu: %s", at, what);
    if (r->name.len)
        return ob_err_set(r->err, code, "%s %" PRIu64 " ('%s'), byte %zu: %s", r->item, r->index,
                          ob_show(r->name.data, r->name.len).text, at, what);
    return ob_err_set(r->err, code, "%s %" PRIu64 ", byte %zu: %s", r->item, r->index, at, what);
}

ob_status ob_read_need(const ob_reader *r, uint64_t n, const char *field)
{
    size_t left = ob_span_left(&r->s);
    if (n <= left) return OB_OK;
    if (n <= left + r->n_beyond) {
        *r->need_more = true;
        return ob_read_fail(r, OB_E_FORMAT, "%s is not among the bytes at hand", field);
    }
    left += r->n_beyond;
    return ob_read_fail(r, OB_E_FORMAT,
                        "%s needs %" PRIu64 " bytes, but the file ends after %zu more (%" PRIu64
                        " bytes are missing: it is cut short or damaged)",
                        field, n, left, n - left);
}

ob_status ob_read_u32(ob_reader *r, uint32_t *out, const char *field)
{
    *out = 0;
    OB_TRY(ob_read_need(r, sizeof *out, field));
    (void)ob_span_u32(&r->s, out);
    return OB_OK;
}

ob_status ob_read_u64(ob_reader *r, uint64_t *out, const char *field)
{
    *out = 0;
    OB_TRY(ob_read_need(r, sizeof *out, field));
    (void)ob_span_u64(&r->s, out);
    return OB_OK;
}

ob_status ob_read_str(ob_reader *r, ob_str *out, uint64_t max_len, const char *field)
{
    uint64_t len;
    *out = (ob_str){0};
    OB_TRY(ob_read_u64(r, &len, field));
    OB_TRY(ob_read_need(r, len, field));
    if (len > max_len)
        return ob_read_fail(r, OB_E_LIMIT, "%s of %" PRIu64 " bytes (limit %" PRIu64 ")", field,
                            len, max_len);
    *out = (ob_str){(const char *)ob_span_take(&r->s, (size_t)len), (size_t)len};
    return OB_OK;
}

ob_status ob_read_count_fits(const ob_reader *r, uint64_t n, uint64_t min_bytes, uint64_t limit,
                             const char *things)
{
    size_t left = ob_span_left(&r->s) + r->n_beyond;
    if (n > left / min_bytes)
        return ob_read_fail(r, OB_E_FORMAT,
                            "%" PRIu64 " %s cannot stand in the %zu bytes that are left (the file "
                            "is cut short or damaged)",
                            n, things, left);
    if (n > limit)
        return ob_read_fail(r, OB_E_LIMIT, "%" PRIu64 " %s (limit %" PRIu64 ")", n, things, limit);
    return OB_OK;
}

/* ---- values --------------------------------------------------------------------------------- */

static ob_status check_bools(const ob_reader *r, const uint8_t *data, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (data[i] > 1)
            return ob_read_fail(r, OB_E_FORMAT, "bool with the value %u (must be 0 or 1)", data[i]);
    return OB_OK;
}

static ob_status read_strings(ob_pairs *p, ob_reader *r, uint64_t n)
{
    ob_str ignored;
    if (n > OB_MAX_KV_STRINGS - p->n_strings)
        return ob_read_fail(r, OB_E_LIMIT, "more than %u strings in all metadata",
                            OB_MAX_KV_STRINGS);
    p->n_strings += (size_t)n;
    for (uint64_t i = 0; i < n; i++)
        OB_TRY(ob_read_str(r, &ignored, OB_MAX_STRING_BYTES, "string"));
    return OB_OK;
}

static ob_status read_fixed(ob_reader *r, uint32_t type, uint64_t n)
{
    uint64_t n_bytes;
    if (!ob_mul_u64(n, ob_kv_type_bytes(type), &n_bytes))
        return ob_read_fail(r, OB_E_FORMAT, "array of %" PRIu64 " elements", n);
    OB_TRY(ob_read_need(r, n_bytes, n == 1 ? "value" : "array"));
    const uint8_t *data = ob_span_take(&r->s, (size_t)n_bytes);
    return type == OB_KV_BOOL ? check_bools(r, data, n) : OB_OK;
}

static ob_status read_value(ob_pairs *p, ob_reader *r, ob_kv *kv)
{
    uint32_t type;
    OB_TRY(ob_read_u32(r, &type, "value type"));
    if (!ob_kv_type_name(type))
        return ob_read_fail(r, OB_E_FORMAT, "unknown value type %" PRIu32, type);
    kv->type = kv->elem_type = (ob_kv_type)type;
    kv->n = 1;
    if (type == OB_KV_ARRAY) {
        OB_TRY(ob_read_u32(r, &type, "element type"));
        if (type == OB_KV_ARRAY)
            return ob_read_fail(r, OB_E_UNSUPPORTED, "arrays of arrays are not supported");
        if (!ob_kv_type_name(type))
            return ob_read_fail(r, OB_E_FORMAT, "unknown element type %" PRIu32, type);
        kv->elem_type = (ob_kv_type)type;
        OB_TRY(ob_read_u64(r, &kv->n, "array length"));
    }
    kv->data = r->s.data + r->s.off;
    if (type != OB_KV_STRING) return read_fixed(r, type, kv->n);
    OB_TRY(ob_read_count_fits(r, kv->n, sizeof(uint64_t), UINT64_MAX, "strings"));
    return read_strings(p, r, kv->n);
}

static ob_status check_key(const ob_reader *r, ob_str key)
{
    if (key.len == 0) return ob_read_fail(r, OB_E_FORMAT, "empty key");
    if (!ob_utf8_is_valid(key.data, key.len) || memchr(key.data, 0, key.len))
        return ob_read_fail(r, OB_E_FORMAT, "the key is not UTF-8 text");
    return OB_OK;
}

/* ---- pairs ---------------------------------------------------------------------------------- */

ob_status ob_pairs_read(ob_pairs *p, ob_reader *r, uint64_t n)
{
    enum { MIN_PAIR_BYTES = 8 + 1 + 4 + 1 }; /* key length, key, type, the smallest value */
    OB_TRY(ob_read_count_fits(r, n, MIN_PAIR_BYTES, OB_MAX_KV_PAIRS, "metadata pairs"));
    p->kv = ob_calloc((size_t)n, sizeof *p->kv);
    if (!p->kv)
        return ob_read_fail(r, OB_E_NO_MEMORY, "no memory for %" PRIu64 " metadata pairs", n);
    OB_TRY(ob_names_init(&p->index, (size_t)n, r->err));
    size_t start = r->s.off;
    r->item = "metadata pair";
    for (uint64_t i = 0; i < n; i++) {
        ob_kv *kv = &p->kv[i];
        r->index = i;
        r->name = (ob_str){0};
        OB_TRY(ob_read_str(r, &kv->key, OB_MAX_KEY_BYTES - 1, "key"));
        OB_TRY(check_key(r, kv->key));
        r->name = kv->key;
        size_t number = ob_names_add(&p->index, kv->key);
        if (number != i)
            return ob_read_fail(r, OB_E_FORMAT, "the same key as pair %zu", number);
        OB_TRY(read_value(p, r, kv));
        p->n++;
    }
    p->bytes = (ob_str){(const char *)r->s.data + start, r->s.off - start};
    return OB_OK;
}

ob_status ob_pairs_make_strings(ob_pairs *p, ob_err *err)
{
    if (p->n_strings == 0) return OB_OK;
    p->strings = ob_reallocarray(NULL, p->n_strings, sizeof *p->strings);
    if (!p->strings)
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %zu strings", p->n_strings);
    ob_str *next = p->strings;
    for (size_t i = 0; i < p->n; i++) {
        ob_kv *kv = &p->kv[i];
        if (kv->elem_type != OB_KV_STRING) continue;
        const uint8_t *at = kv->data; /* lengths were checked by ob_pairs_read */
        kv->strings = next;
        for (uint64_t k = 0; k < kv->n; k++, next++) {
            uint64_t len;
            memcpy(&len, at, sizeof len);
            *next = (ob_str){(const char *)at + sizeof len, (size_t)len};
            at += sizeof len + len;
        }
    }
    return OB_OK;
}

const ob_kv *ob_pairs_find(const ob_pairs *p, const char *key)
{
    size_t i = ob_names_find(&p->index, key, strlen(key));
    return i == SIZE_MAX ? NULL : &p->kv[i];
}

void ob_pairs_deinit(ob_pairs *p)
{
    ob_free(p->kv);
    ob_free(p->strings);
    ob_names_deinit(&p->index);
    *p = (ob_pairs){0};
}
