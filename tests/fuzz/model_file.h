/* tests/fuzz/model_file.h: what the targets of fmt's readers share: one promise for every format.
 *
 * Any bytes give a file that can be walked in full, or an error with a text; with memory running out
 * at any point it is the same, and nothing leaks. The head of a file alone gives the same directory,
 * or says that it is not enough.
 */
#ifndef OB_TESTS_FUZZ_MODEL_FILE_H
#define OB_TESTS_FUZZ_MODEL_FILE_H

#include "fuzz.h"

#include <string.h>

#include "base/alloc.h"
#include "fmt/fmt.h"

static volatile uint8_t g_sink; /* keeps the reads */

static inline void walk_kv(const ob_kv *kv)
{
    int64_t i64;
    double f64;
    bool yes;
    ob_str s;
    FUZZ_REQUIRE(kv->elem_type != OB_KV_ARRAY);
    FUZZ_REQUIRE(kv->type == OB_KV_ARRAY || kv->n == 1);
    for (uint64_t i = 0; i < kv->n; i++) {
        if (ob_kv_elem_i64(kv, i, &i64)) g_sink = (uint8_t)i64;
        if (ob_kv_elem_f64(kv, i, &f64)) g_sink = f64 > 0;
        if (ob_kv_elem_str(kv, i, &s) && s.len) g_sink = (uint8_t)(s.data[0] + s.data[s.len - 1]);
    }
    FUZZ_REQUIRE(!ob_kv_elem_i64(kv, kv->n, &i64));
    (void)ob_kv_bool(kv, &yes);
    (void)ob_kv_str(kv, &s);
}

static inline void walk(const ob_file *f, const uint8_t *data, size_t len)
{
    for (size_t i = 0; i < ob_file_n_kv(f); i++) walk_kv(ob_file_kv(f, i));
    for (size_t i = 0; i < ob_file_n_tensors(f); i++) {
        const ob_tensor *t = ob_file_tensor(f, i);
        const uint8_t *p = t->data;
        uint64_t n_bytes;
        FUZZ_REQUIRE(ob_file_find_tensor(f, t->name) == t);
        FUZZ_REQUIRE(t->n_dims >= 1 && t->n_dims <= 4 && t->n_bytes > 0);
        FUZZ_REQUIRE(p == data + t->file_off && t->n_bytes <= len - t->file_off);
        FUZZ_REQUIRE(ob_fmt_type_bytes(t->type, (uint64_t)(t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]),
                                       &n_bytes) && n_bytes == t->n_bytes);
        g_sink = (uint8_t)(p[0] + p[t->n_bytes - 1]);
    }
}

static inline void describe(const ob_file *f, bool json)
{
    ob_buf out;
    ob_buf_init(&out, 16 << 20);
    if (ob_file_describe(f, json, &out, NULL) == OB_OK)
        FUZZ_REQUIRE(strlen(ob_buf_str(&out)) == out.len); /* no NUL got into the text */
    ob_buf_deinit(&out);
}

/* The first bytes of the file, as a reader of a remote file has them. */
static inline void open_head(const uint8_t *data, size_t len, size_t n_have, ob_status whole)
{
    ob_file *f = NULL;
    ob_err err = {0};
    bool need_more = false;
    ob_status s = ob_file_open_head(data, n_have, len, &f, &need_more, &err);
    FUZZ_REQUIRE((s == OB_OK) == (f != NULL));
    FUZZ_REQUIRE(!(s == OB_OK && need_more));
    if (whole == OB_OK) FUZZ_REQUIRE(s == OB_OK || need_more || n_have < 4);
    ob_file_close(f);
}

static inline int fuzz_model_file(const uint8_t *data, size_t len)
{
    ob_file *f = NULL;
    ob_err err = {0};
    ob_status s = ob_file_open_bytes(data, len, 0, &f, &err);
    FUZZ_REQUIRE((s == OB_OK) == (f != NULL));
    if (s == OB_OK) {
        walk(f, data, len);
        describe(f, false);
        describe(f, true);
        ob_file_close(f);
    } else {
        FUZZ_REQUIRE(err.code == s && err.text[0]);
    }
    /* The last byte says where memory runs out. */
    ob_alloc_fail_after(len ? data[len - 1] % 24 : 0);
    ob_status short_of_memory = ob_file_open_bytes(data, len, OB_OPEN_NO_DATA, &f, &err);
    ob_alloc_fail_after(-1);
    FUZZ_REQUIRE(short_of_memory == s || short_of_memory == OB_E_NO_MEMORY);
    ob_file_close(f);
    if (len) open_head(data, len, (size_t)data[len - 1] * len / 256, s);
    return 0;
}

#endif
