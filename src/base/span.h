/* base/span.h: a read cursor over untrusted bytes that cannot pass its end.
 *
 * Little-endian. A read past the end returns false, leaves *out zero and sets `bad`, which sticks.
 */
#ifndef OB_BASE_SPAN_H
#define OB_BASE_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct ob_span {
    const uint8_t *data; /* borrowed */
    size_t len, off;
    bool bad;
} ob_span;

static inline ob_span ob_span_of(const void *p, size_t len)
{
    return (ob_span){.data = (const uint8_t *)p, .len = len};
}
static inline size_t ob_span_left(const ob_span *s) { return s->bad ? 0 : s->len - s->off; }

/* Borrow n bytes and move on; NULL if fewer are left. */
static inline const uint8_t *ob_span_take(ob_span *s, size_t n)
{
    if (s->bad || n > s->len - s->off) {
        s->bad = true;
        return NULL;
    }
    const uint8_t *p = s->data + s->off;
    s->off += n;
    return p;
}
static inline bool ob_span_copy(ob_span *s, void *out, size_t n)
{
    const uint8_t *p = ob_span_take(s, n);
    if (p) memcpy(out, p, n);
    else memset(out, 0, n);
    return p != NULL;
}
static inline bool ob_span_u8(ob_span *s, uint8_t *out) { return ob_span_copy(s, out, 1); }
static inline bool ob_span_u16(ob_span *s, uint16_t *out) { return ob_span_copy(s, out, 2); }
static inline bool ob_span_u32(ob_span *s, uint32_t *out) { return ob_span_copy(s, out, 4); }
static inline bool ob_span_u64(ob_span *s, uint64_t *out) { return ob_span_copy(s, out, 8); }

#endif
