/* base/buf.h: a growing byte buffer that is born with a maximum.
 *
 * The bytes are always NUL-terminated for convenience; the NUL does not count in `len`. After a
 * failure the buffer keeps what it had and `failed` stays set, so that a run of appends can be
 * checked once at the end with ob_buf_status().
 */
#ifndef OB_BASE_BUF_H
#define OB_BASE_BUF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct ob_buf {
    char *data; /* NULL until the first append */
    size_t len, cap, max_len;
    ob_status failed; /* OB_OK, OB_E_LIMIT or OB_E_NO_MEMORY */
} ob_buf;

void ob_buf_init(ob_buf *b, size_t max_len);
void ob_buf_deinit(ob_buf *b);
void ob_buf_clear(ob_buf *b); /* keeps the memory, clears `failed` */
ob_status ob_buf_reserve(ob_buf *b, size_t extra);
void ob_buf_add(ob_buf *b, const void *p, size_t n);
void ob_buf_adds(ob_buf *b, const char *s);
void ob_buf_addc(ob_buf *b, char c);
void ob_buf_addf(ob_buf *b, const char *fmt, ...) OB_PRINTF(2, 3);
/* JSON string with quotes. Invalid UTF-8 becomes U+FFFD, so the output is always valid JSON. */
void ob_buf_add_json(ob_buf *b, const char *s, size_t n);
/* A JSON number that reads back to the same double; null for NaN and infinities. */
void ob_buf_add_double(ob_buf *b, double x);
const char *ob_buf_str(const ob_buf *b); /* never NULL */
OB_MUST_CHECK ob_status ob_buf_status(const ob_buf *b, ob_err *err);
/* Hand the bytes over (*taken*: free with ob_free); the buffer is empty afterwards. */
char *ob_buf_take(ob_buf *b, size_t *len);

#endif
