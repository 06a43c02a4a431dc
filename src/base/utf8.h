/* base/utf8.h: UTF-8 as RFC 3629 has it (no surrogates, no overlong forms, nothing past U+10FFFF). */
#ifndef OB_BASE_UTF8_H
#define OB_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length in bytes (1..4) of the valid character at s, or 0 if there is none within n bytes. */
size_t ob_utf8_valid_len(const char *s, size_t n);
/* Decode one character; *len gets its bytes (1 for an invalid byte). Invalid gives U+FFFD. */
uint32_t ob_utf8_decode(const char *s, size_t n, size_t *len);
/* Write cp to out (room for 4); returns the length, 0 if cp is not a scalar value. */
size_t ob_utf8_encode(uint32_t cp, char *out);
bool ob_utf8_is_valid(const char *s, size_t n);
/* How many bytes at the end of s are the start of a character that is not complete yet (0..3). */
size_t ob_utf8_incomplete_tail(const char *s, size_t n);

#endif
