#include "fmt/gguf_write.h"

#include <string.h>

#include "base/limits.h"
#include "base/math.h"

enum { MAX_META_BYTES = 1 << 30, VERSION = 3, DEFAULT_ALIGN = 32 };

static void add_u32(ob_buf *b, uint32_t v) { ob_buf_add(b, &v, sizeof v); }
static void add_u64(ob_buf *b, uint64_t v) { ob_buf_add(b, &v, sizeof v); }
static void add_str(ob_buf *b, const char *s)
{
    add_u64(b, strlen(s));
    ob_buf_adds(b, s);
}

void ob_gguf_meta_init(ob_gguf_meta *m)
{
    ob_buf_init(&m->bytes, MAX_META_BYTES);
    m->n = 0;
}
void ob_gguf_meta_deinit(ob_gguf_meta *m) { ob_buf_deinit(&m->bytes); }

static void add_key(ob_gguf_meta *m, const char *key, uint32_t type)
{
    add_str(&m->bytes, key);
    add_u32(&m->bytes, type);
    m->n++;
}

static bool skipped(const char *const *skip, ob_str key)
{
    for (; skip && *skip; skip++) {
        const size_t n = strlen(*skip);
        const bool prefix = n && (*skip)[n - 1] == '.';
        if ((prefix ? key.len >= n : key.len == n) && !memcmp(key.data, *skip, n)) return true;
    }
    return false;
}

/* A pair begins 8 bytes before its key, with the key's length, and ends where the next one begins. */
static const char *pair_begin(const ob_file *f, size_t i)
{
    const ob_str all = ob_file_kv_bytes(f);
    return i < ob_file_n_kv(f) ? ob_file_kv(f, i)->key.data - 8 : all.data + all.len;
}

void ob_gguf_meta_copy(ob_gguf_meta *m, const ob_file *f, const char *const *skip)
{
    for (size_t i = 0; i < ob_file_n_kv(f); i++) {
        if (skipped(skip, ob_file_kv(f, i)->key)) continue;
        const char *begin = pair_begin(f, i);
        ob_buf_add(&m->bytes, begin, (size_t)(pair_begin(f, i + 1) - begin));
        m->n++;
    }
}

void ob_gguf_meta_u32(ob_gguf_meta *m, const char *key, uint32_t v)
{
    add_key(m, key, OB_KV_U32);
    add_u32(&m->bytes, v);
}

void ob_gguf_meta_i32(ob_gguf_meta *m, const char *key, int32_t v)
{
    add_key(m, key, OB_KV_I32);
    ob_buf_add(&m->bytes, &v, sizeof v);
}

void ob_gguf_meta_str(ob_gguf_meta *m, const char *key, const char *v)
{
    add_key(m, key, OB_KV_STRING);
    add_str(&m->bytes, v);
}

void ob_gguf_meta_strs(ob_gguf_meta *m, const char *key, const char *const *v, uint64_t n)
{
    add_key(m, key, OB_KV_ARRAY);
    add_u32(&m->bytes, OB_KV_STRING);
    add_u64(&m->bytes, n);
    for (uint64_t i = 0; i < n; i++) add_str(&m->bytes, v[i]);
}

size_t ob_gguf_alignment(const ob_file *f)
{
    int64_t align = DEFAULT_ALIGN;
    /* The reader has checked that it is a power of two of a sane size. */
    return ob_kv_i64(ob_file_find_kv(f, "general.alignment"), &align) ? (size_t)align : DEFAULT_ALIGN;
}

ob_status ob_gguf_write_head(ob_outfile *o, const ob_gguf_meta *m, const ob_tensor *tensors, size_t n_tensors,
                             size_t align, ob_err *err)
{
    ob_status s;
    ob_buf b;
    uint64_t off = 0;
    OB_TRY(ob_buf_status(&m->bytes, err));
    ob_buf_init(&b, MAX_META_BYTES);
    ob_buf_adds(&b, "GGUF");
    add_u32(&b, VERSION);
    add_u64(&b, n_tensors);
    add_u64(&b, m->n);
    OB_GOTO(ob_buf_status(&b, err));
    OB_GOTO(ob_outfile_write(o, b.data, b.len, err));
    OB_GOTO(ob_outfile_write(o, m->bytes.data, m->bytes.len, err));
    ob_buf_clear(&b);
    for (size_t i = 0; i < n_tensors; i++) {
        const ob_tensor *t = &tensors[i];
        add_str(&b, t->name);
        add_u32(&b, (uint32_t)t->n_dims);
        for (int d = 0; d < t->n_dims; d++) add_u64(&b, (uint64_t)t->ne[d]);
        add_u32(&b, t->type);
        add_u64(&b, off);
        off += ob_align_up(t->n_bytes, align);
    }
    OB_GOTO(ob_buf_status(&b, err));
    OB_GOTO(ob_outfile_write(o, ob_buf_str(&b), b.len, err));
    OB_GOTO(ob_outfile_pad(o, align, err));
out:
    ob_buf_deinit(&b);
    return s;
}
