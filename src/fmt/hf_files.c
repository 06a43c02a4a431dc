/* What readers of Hugging Face's folders share: the small files, and pairs made up from them. */
#include "fmt/hf_int.h"

#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"

enum { MAX_JSON_BYTES = 64 << 20 };

char *ob_hf_folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? ob_strndup(path, (size_t)(slash - path)) : ob_strdup(".");
}

/* The bytes of folder/name; *there false when no such file exists. */
ob_status ob_hf_read_beside(const char *folder, const char *name, ob_part *p, bool *there, ob_err *err)
{
    ob_buf path;
    ob_buf_init(&path, 1 << 16);
    ob_buf_addf(&path, "%s/%s", folder, name);
    ob_status s = ob_buf_status(&path, err);
    if (s == OB_OK) s = ob_part_map(p, ob_buf_str(&path), err);
    ob_buf_deinit(&path);
    *there = s == OB_OK;
    if (s == OB_E_NOT_FOUND) return OB_OK;
    if (s != OB_OK) return ob_err_prefix(err, s, "%s", name);
    if (p->len > MAX_JSON_BYTES) {
        ob_part_unmap(p);
        *there = false;
        return ob_err_set(err, OB_E_LIMIT, "%s is larger than %d bytes", name, MAX_JSON_BYTES);
    }
    return OB_OK;
}

/* *out NULL when there is no such file. */
ob_status ob_hf_json_beside(const char *folder, const char *name, json_t **out, ob_err *err)
{
    ob_part p = {0};
    bool there;
    *out = NULL;
    OB_TRY(ob_hf_read_beside(folder, name, &p, &there, err));
    if (!there) return OB_OK;
    ob_status s = ob_fmt_json((const char *)p.data, p.len, name, out, err);
    ob_part_unmap(&p);
    return s;
}

void ob_hf_add_u32(ob_buf *b, uint32_t x) { ob_buf_add(b, &x, sizeof x); }
void ob_hf_add_text(ob_buf *b, const char *s, uint64_t len)
{
    ob_buf_add(b, &len, sizeof len);
    ob_buf_add(b, s, (size_t)len);
}

void ob_pair(ob_pairs_made *p, const char *key, ob_kv_type type)
{
    ob_hf_add_text(&p->b, key, strlen(key));
    ob_hf_add_u32(&p->b, type);
    p->n++;
}

void ob_pair_u32(ob_pairs_made *p, const char *key, uint64_t x)
{
    ob_pair(p, key, OB_KV_U32);
    ob_hf_add_u32(&p->b, (uint32_t)OB_MIN(x, (uint64_t)UINT32_MAX)); /* no such size passes the model's checks */
}

void ob_pair_bool(ob_pairs_made *p, const char *key, bool x)
{
    ob_pair(p, key, OB_KV_BOOL);
    ob_buf_addc(&p->b, x);
}

void ob_pair_f32(ob_pairs_made *p, const char *key, double x)
{
    const float v = (float)x;
    ob_pair(p, key, OB_KV_F32);
    ob_buf_add(&p->b, &v, sizeof v);
}

double ob_hf_number(const json_t *o, const char *key, double otherwise)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

void ob_pair_text(ob_pairs_made *p, const char *key, const char *s)
{
    ob_pair(p, key, OB_KV_STRING);
    ob_hf_add_text(&p->b, s, strlen(s));
}

/* An integer of the config, or its default. */
ob_status ob_hf_config_count(const json_t *config, const char *key, int64_t otherwise, int64_t *out, ob_err *err)
{
    const json_t *v = json_object_get(config, key);
    *out = v ? json_integer_value(v) : otherwise;
    if (v && (!json_is_integer(v) || *out < 1 || *out > INT32_MAX))
        return ob_err_set(err, OB_E_FORMAT, "config.json: %s is no count", key);
    return OB_OK;
}

ob_status ob_hf_make_pairs(ob_file *f, ob_pairs_made *p, ob_err *err)
{
    OB_TRY(ob_buf_status(&p->b, err));
    f->extra = ob_buf_take(&p->b, &f->extra_len);
    ob_part made = {.data = (const uint8_t *)f->extra, .len = f->extra_len, .n_have = f->extra_len};
    ob_reader r = ob_reader_of(&made, err);
    OB_TRY(ob_pairs_read(&f->pairs, &r, p->n));
    return ob_pairs_make_strings(&f->pairs, err);
}

ob_status ob_hf_map_tensors(ob_file *f, ob_hf_map_fn map, const void *arg, ob_err *err)
{
    size_t kept = 0;
    for (size_t i = 0; i < f->n_tensors; i++) {
        char name[OB_MAX_TENSOR_NAME_BYTES];
        ob_tensor t = f->tensors[i];
        if (map(arg, t.name, name, sizeof name)) {
            if (!*name) continue;
            t.name = ob_arena_strndup(&f->names, name, strlen(name));
            if (!t.name) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a tensor's name");
        }
        f->tensors[kept++] = t;
    }
    f->n_tensors = kept;
    return OB_OK;
}
