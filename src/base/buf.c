#include "base/buf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "base/utf8.h"

void ob_buf_init(ob_buf *b, size_t max_len)
{
    *b = (ob_buf){.max_len = max_len};
}

void ob_buf_deinit(ob_buf *b)
{
    ob_free(b->data);
    *b = (ob_buf){.max_len = b->max_len};
}

void ob_buf_clear(ob_buf *b)
{
    b->len = 0;
    b->failed = OB_OK;
    if (b->data) b->data[0] = 0;
}

ob_status ob_buf_reserve(ob_buf *b, size_t extra)
{
    if (b->failed) return b->failed;
    size_t need;
    if (!ob_add_size(b->len, extra, &need) || need > b->max_len) return b->failed = OB_E_LIMIT;
    if (need < b->cap) return OB_OK;
    size_t cap = OB_MAX(b->cap * 2, (size_t)64);
    cap = OB_MAX(cap, need + 1);
    if (cap > b->max_len + 1) cap = b->max_len + 1;
    char *p = ob_realloc(b->data, cap);
    if (!p) return b->failed = OB_E_NO_MEMORY;
    b->data = p;
    b->cap = cap;
    return OB_OK;
}

void ob_buf_add(ob_buf *b, const void *p, size_t n)
{
    if (ob_buf_reserve(b, n) != OB_OK) return;
    if (n) memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = 0;
}

void ob_buf_adds(ob_buf *b, const char *s) { ob_buf_add(b, s, strlen(s)); }
void ob_buf_addc(ob_buf *b, char c) { ob_buf_add(b, &c, 1); }

void ob_buf_addf(ob_buf *b, const char *fmt, ...)
{
    va_list ap, ap2;
    va_start(ap, fmt);
    va_copy(ap2, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0 && ob_buf_reserve(b, (size_t)n) == OB_OK) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap2);
        b->len += (size_t)n;
    }
    va_end(ap2);
}

void ob_buf_add_json(ob_buf *b, const char *s, size_t n)
{
    ob_buf_addc(b, '"');
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        if (c < 0x80) {
            switch (c) {
            case '"': ob_buf_adds(b, "\\\""); break;
            case '\\': ob_buf_adds(b, "\\\\"); break;
            case '\n': ob_buf_adds(b, "\\n"); break;
            case '\r': ob_buf_adds(b, "\\r"); break;
            case '\t': ob_buf_adds(b, "\\t"); break;
            default:
                if (c < 0x20 || c == 0x7F) ob_buf_addf(b, "\\u%04x", c);
                else ob_buf_addc(b, (char)c);
            }
            i++;
            continue;
        }
        size_t len = ob_utf8_valid_len(s + i, n - i);
        if (len == 0) {
            ob_buf_adds(b, "\xEF\xBF\xBD");
            i++;
        } else {
            ob_buf_add(b, s + i, len);
            i += len;
        }
    }
    ob_buf_addc(b, '"');
}

void ob_buf_add_double(ob_buf *b, double x)
{
    if (!isfinite(x)) {
        ob_buf_adds(b, "null");
        return;
    }
    char t[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(t, sizeof t, "%.*g", digits, x);
        if (strtod(t, NULL) == x) break;
    }
    ob_buf_adds(b, t);
}

const char *ob_buf_str(const ob_buf *b) { return b->data ? b->data : ""; }

ob_status ob_buf_status(const ob_buf *b, ob_err *err)
{
    if (b->failed == OB_E_LIMIT)
        return ob_err_set(err, OB_E_LIMIT, "text longer than %zu bytes", b->max_len);
    if (b->failed) return ob_err_set(err, b->failed, "no memory for a text of %zu bytes", b->len);
    return OB_OK;
}

char *ob_buf_take(ob_buf *b, size_t *len)
{
    if (!b->data && ob_buf_reserve(b, 0) == OB_OK && b->data) b->data[0] = 0;
    char *p = b->data;
    if (len) *len = b->len;
    *b = (ob_buf){.max_len = b->max_len};
    return p;
}
