/* tests/unit/gguf_builder.h: write GGUF bytes into a buffer, right ones and wrong ones. */
#ifndef OB_TESTS_GGUF_BUILDER_H
#define OB_TESTS_GGUF_BUILDER_H

#include <string.h>

#include "base/buf.h"
#include "fmt/fmt.h"

static inline void gb_u32(ob_buf *b, uint32_t v) { ob_buf_add(b, &v, sizeof v); }
static inline void gb_u64(ob_buf *b, uint64_t v) { ob_buf_add(b, &v, sizeof v); }
static inline void gb_str(ob_buf *b, const char *s)
{
    gb_u64(b, strlen(s));
    ob_buf_adds(b, s);
}
static inline void gb_head(ob_buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    ob_buf_adds(b, "GGUF");
    gb_u32(b, version);
    gb_u64(b, n_tensors);
    gb_u64(b, n_kv);
}
/* key and type; the value follows */
static inline void gb_key(ob_buf *b, const char *key, uint32_t type)
{
    gb_str(b, key);
    gb_u32(b, type);
}
static inline void gb_kv_str(ob_buf *b, const char *key, const char *value)
{
    gb_key(b, key, OB_KV_STRING);
    gb_str(b, value);
}
static inline void gb_kv(ob_buf *b, const char *key, uint32_t type, const void *value, size_t n)
{
    gb_key(b, key, type);
    ob_buf_add(b, value, n);
}
static inline void gb_kv_u32(ob_buf *b, const char *key, uint32_t v)
{
    gb_kv(b, key, OB_KV_U32, &v, sizeof v);
}
static inline void gb_kv_u16(ob_buf *b, const char *key, uint16_t v)
{
    gb_kv(b, key, OB_KV_U16, &v, sizeof v);
}
/* key, array type and length; the elements follow */
static inline void gb_array(ob_buf *b, const char *key, uint32_t elem_type, uint64_t n)
{
    gb_key(b, key, OB_KV_ARRAY);
    gb_u32(b, elem_type);
    gb_u64(b, n);
}
static inline void gb_tensor(ob_buf *b, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1,
                             uint64_t off)
{
    gb_str(b, name);
    gb_u32(b, 2);
    gb_u64(b, ne0);
    gb_u64(b, ne1);
    gb_u32(b, type);
    gb_u64(b, off);
}
static inline void gb_pad(ob_buf *b, size_t align)
{
    while (b->len % align) ob_buf_addc(b, 0);
}
static inline void gb_fill(ob_buf *b, char c, size_t n)
{
    while (n--) ob_buf_addc(b, c);
}

#endif
