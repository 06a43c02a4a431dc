/* safetensors: good and wrong headers, and a folder of Hugging Face's BERT that must look like a GGUF. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fmt/fmt.h"
#include "test.h"

static char g_dir[] = "/tmp/ob_test_st_XXXXXX";

/* A file of this header, padded with spaces as the format advises, and n_data bytes 0, 1, 2, ... */
static size_t make(uint8_t *out, const char *header, size_t n_data)
{
    const uint64_t len = (strlen(header) + 7) / 8 * 8;
    memcpy(out, &len, 8);
    memset(out + 8, ' ', (size_t)len);
    memcpy(out + 8, header, strlen(header));
    for (size_t i = 0; i < n_data; i++) out[8 + len + i] = (uint8_t)i;
    return 8 + (size_t)len + n_data;
}

static void test_good(void **state)
{
    (void)state;
    uint8_t bytes[1024];
    ob_file *f;
    ob_err err;
    const size_t n = make(bytes,
                          "{\"__metadata__\":{\"format\":\"pt\"},"
                          "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
                          "\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]},"
                          "\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[32,40]}}", 40);
    if (ob_file_open_bytes(bytes, n, 0, &f, &err) != OB_OK) fail_msg("%s", err.text);
    assert_string_equal(ob_file_format(f), "safetensors");
    assert_int_equal(ob_file_n_tensors(f), 3);
    assert_int_equal(ob_file_n_kv(f), 0);
    const ob_tensor *b = ob_file_find_tensor(f, "b");
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->ne[0], 3); /* the row length is the last of the shape */
    assert_int_equal(b->ne[1], 2);
    assert_int_equal(*(const uint8_t *)b->data, 8);
    assert_int_equal(ob_file_find_tensor(f, "s")->n_bytes, 8);
    ob_file_close(f);
}

static void test_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *header, *text;
        ob_status status;
    } rows[] = {
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", "shape makes 8 bytes", OB_E_FORMAT},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,0]}}", "data_offsets", OB_E_FORMAT},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]}}", "missing", OB_E_FORMAT},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", "dimension", OB_E_FORMAT},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}", "alignment", OB_E_FORMAT},
        {"{\"w\":{\"dtype\":\"I8\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,1]}}", "shape", OB_E_FORMAT},
        {"{\"w\":{\"dtype\":\"I8\",\"shape\":[\"1\"],\"data_offsets\":[0,1]}}", "no count", OB_E_FORMAT},
        {"{\"w\":{\"dtype\":\"F8_E5M2\",\"shape\":[1],\"data_offsets\":[0,1]}}", "dtype", OB_E_UNSUPPORTED},
        {"{\"w\":{\"shape\":[1],\"data_offsets\":[0,1]}}", "dtype", OB_E_FORMAT},
        {"{\"w\":[]}", "dtype", OB_E_FORMAT},
        {"{\"\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", "empty name", OB_E_FORMAT},
        {"{\"v\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"w\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[2,6]}}", "overlap", OB_E_FORMAT},
        {"{\"w\":{},\"w\":{}}", "twice", OB_E_FORMAT},
        {"{\"w\":", "not JSON", OB_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t bytes[512];
        ob_file *f;
        ob_err err = {0};
        const size_t n = make(bytes, rows[i].header, 16);
        uint8_t *exact = malloc(n); /* so that a read past the end is seen */
        memcpy(exact, bytes, n);
        const ob_status s = ob_file_open_bytes(exact, n, 0, &f, &err);
        if (s != rows[i].status || !strstr(err.text, rows[i].text))
            fail_msg("%s: status %s, text '%s'", rows[i].header, ob_status_describe(s)->name, err.text);
        free(exact);
    }
}

/* --- a folder ---------------------------------------------------------------------------------- */

static void put(const char *name, const void *data, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", g_dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

static void put_text(const char *name, const char *text) { put(name, text, strlen(text)); }

#define T(name, shape, begin, end)                                                                        \
    "\"" name "\":{\"dtype\":\"I8\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void put_model(void)
{
    static const char header[] =
        "{" T("bert.embeddings.word_embeddings.weight", "[6,2]", 0, 12) ","
        T("bert.embeddings.position_embeddings.weight", "[3,2]", 12, 18) ","
        T("bert.embeddings.LayerNorm.gamma", "[2]", 18, 20) ","
        T("bert.encoder.layer.0.intermediate.dense.weight", "[4,2]", 20, 28) ","
        T("bert.encoder.layer.1.intermediate.dense.weight", "[4,2]", 28, 36) ","
        T("bert.encoder.layer.1.output.LayerNorm.bias", "[2]", 36, 38) ","
        T("bert.pooler.dense.bias", "[2]", 38, 40) "," T("cls.extra", "[1]", 40, 41) "}";
    static uint8_t bytes[2048];
    put("model.safetensors", bytes, make(bytes, header, 41));
}

static ob_file *open_folder(void)
{
    ob_file *f;
    ob_err err;
    if (ob_file_open(g_dir, 0, &f, &err) != OB_OK) fail_msg("%s", err.text);
    return f;
}

static void assert_int_key(const ob_file *f, const char *key, int64_t want)
{
    int64_t v;
    if (!ob_kv_i64(ob_file_find_kv(f, key), &v) || v != want) fail_msg("%s is not %lld", key, (long long)want);
}

static void assert_token(const ob_file *f, uint64_t i, const char *want, int64_t type)
{
    ob_str s;
    int64_t t;
    assert_true(ob_kv_elem_str(ob_file_find_kv(f, "tokenizer.ggml.tokens"), i, &s));
    assert_true(ob_kv_elem_i64(ob_file_find_kv(f, "tokenizer.ggml.token_type"), i, &t));
    if (s.len != strlen(want) || memcmp(s.data, want, s.len) != 0) fail_msg("token %d", (int)i);
    assert_int_equal(t, type);
}

static void check_folder(const ob_file *f)
{
    ob_str arch;
    bool lower;
    assert_true(ob_kv_str(ob_file_find_kv(f, "general.architecture"), &arch));
    assert_memory_equal(arch.data, "bert", 4);
    assert_int_key(f, "bert.block_count", 2);
    assert_int_key(f, "bert.context_length", 3);
    assert_int_key(f, "bert.embedding_length", 2);
    assert_int_key(f, "bert.feed_forward_length", 4);
    assert_int_key(f, "bert.pooling_type", 2);
    assert_int_key(f, "tokenizer.ggml.cls_token_id", 2);
    assert_int_key(f, "tokenizer.ggml.seperator_token_id", 3);
    assert_token(f, 2, "[CLS]", 3);
    assert_token(f, 4, "\xE2\x96\x81" "cat", 1);
    assert_token(f, 5, "s", 1); /* "##s" */
    assert_true(ob_kv_bool(ob_file_find_kv(f, "tokenizer.ggml.normalizer.lowercase"), &lower));
    assert_false(lower);
    assert_non_null(ob_file_find_tensor(f, "token_embd.weight"));
    assert_non_null(ob_file_find_tensor(f, "token_embd_norm.weight"));
    assert_non_null(ob_file_find_tensor(f, "blk.1.layer_output_norm.bias"));
    assert_null(ob_file_find_tensor(f, "bert.pooler.dense.bias"));
    assert_non_null(ob_file_find_tensor(f, "cls.extra")); /* not ours: the model refuses it by name */
}

static void test_folder(void **state)
{
    (void)state;
    put_model();
    put_text("config.json", "{\"model_type\":\"bert\",\"num_attention_heads\":1,\"pooling_mode_cls_token\":true}");
    put_text("tokenizer_config.json", "{\"do_lower_case\":false}");
    put_text("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\r\ncat\n##s\n");
    ob_file *f = open_folder();
    check_folder(f);
    assert_int_key(f, "bert.attention.head_count", 1);
    ob_file_close(f);
    put_text("tokenizer.json", "{\"normalizer\":{\"lowercase\":false},\"model\":{\"type\":\"WordPiece\",\"vocab\":"
                               "{\"cat\":4,\"##s\":5,\"[PAD]\":0,\"[UNK]\":1,\"[CLS]\":2,\"[SEP]\":3}}}");
    put_text("config.json", "{\"pooling_mode_cls_token\":true}"); /* says no heads: BertConfig's 12 */
    f = open_folder();
    check_folder(f);
    assert_int_key(f, "bert.attention.head_count", 12);
    ob_file_close(f);
}

static void test_folder_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *error;
    } rows[] = {
        {"config.json", "{\"hidden_act\":\"relu\"}", "hidden_act"},
        {"config.json", "{\"num_attention_heads\":0}", "num_attention_heads"},
        {"config.json", "{\"pooling_mode_max_tokens\":true}", "pooling"},
        {"config.json", "[]", "config.json"},
        {"tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", "WordPiece"},
        {"tokenizer.json", "{\"model\":{\"vocab\":{\"a\":0,\"b\":0}}}", "not free"},
        {"tokenizer.json", "{\"model\":{\"vocab\":{\"a\":1}}}", "not free"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ob_file *f;
        ob_err err = {0};
        put_model();
        put_text("config.json", "{}");
        put_text("tokenizer.json", "{\"model\":{\"vocab\":{\"a\":0}}}");
        put_text(rows[i].name, rows[i].text);
        if (ob_file_open(g_dir, 0, &f, &err) == OB_OK || !strstr(err.text, rows[i].error))
            fail_msg("%s: '%s'", rows[i].text, err.text);
    }
    /* another architecture keeps its own names and has no pairs */
    put_text("config.json", "{\"model_type\":\"roberta\"}");
    ob_file *f = open_folder();
    assert_int_equal(ob_file_n_kv(f), 0);
    assert_non_null(ob_file_find_tensor(f, "bert.pooler.dense.bias"));
    ob_file_close(f);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(g_dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    static const char *const names[] = {"model.safetensors", "config.json", "tokenizer_config.json",
                                        "tokenizer.json", "vocab.txt"};
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", g_dir, names[i]);
        unlink(path);
    }
    return rmdir(g_dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_folder_wrong),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
