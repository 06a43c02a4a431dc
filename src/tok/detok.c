#include <string.h>

#include "base/utf8.h"
#include "tok/tok.h"

void ob_detok_init(ob_detok *d, const ob_tok *t, bool special)
{
    *d = (ob_detok){.tok = t, .special = special};
}

/* Length of the longest prefix of s[0..n) that starts some character but is no character yet, at
 * least 1: what one U+FFFD stands for. */
static size_t wrong_part(const char *s, size_t n)
{
    for (size_t k = n < 3 ? n : 3; k > 1; k--)
        if (ob_utf8_incomplete_tail(s, k) == k) return k;
    return 1;
}

/* Append whole characters of s; return how many bytes at its end are still incomplete (0..3). */
static size_t emit(const char *s, size_t n, ob_buf *out)
{
    size_t i = 0, from = 0;
    while (i < n) {
        size_t l = ob_utf8_valid_len(s + i, n - i);
        if (l) {
            i += l;
            continue;
        }
        ob_buf_add(out, s + from, i - from);
        size_t k = wrong_part(s + i, n - i);
        if (i + k == n && ob_utf8_incomplete_tail(s + i, k) == k) return k;
        ob_buf_adds(out, "\xEF\xBF\xBD");
        i += k;
        from = i;
    }
    ob_buf_add(out, s + from, n - from);
    return 0;
}

void ob_detok_push_bytes(ob_detok *d, const char *bytes, size_t len, ob_buf *out)
{
    /* Finish the held character first, byte by byte, so that the rest can be copied in one go. */
    while (d->n_held && len) {
        d->held[d->n_held++] = *bytes++;
        len--;
        char done[4];
        size_t n = d->n_held;
        memcpy(done, d->held, n);
        d->n_held = (uint8_t)emit(done, n, out);
        memmove(d->held, done + n - d->n_held, d->n_held);
    }
    size_t left = emit(bytes, len, out);
    memcpy(d->held + d->n_held, bytes + len - left, left);
    d->n_held = (uint8_t)(d->n_held + left);
}

void ob_detok_push(ob_detok *d, int32_t id, ob_buf *out)
{
    ob_tok_type type = ob_tok_type_of(d->tok, id);
    if (!d->special && (type == OB_TOK_CONTROL || type == OB_TOK_UNKNOWN)) return;
    size_t len;
    const char *piece = ob_tok_piece(d->tok, id, &len);
    ob_detok_push_bytes(d, piece, len, out);
}

void ob_detok_flush(ob_detok *d, ob_buf *out)
{
    if (d->n_held) ob_buf_adds(out, "\xEF\xBF\xBD");
    d->n_held = 0;
}
