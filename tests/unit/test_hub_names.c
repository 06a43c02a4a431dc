/* Unit tests of hub/: names of models, split files, addresses, the library's folder. */
#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "hub/hub_int.h"

static ob_status parse(const char *text, ob_hub_ref *r)
{
    ob_err err;
    ob_status s = ob_hub_parse(text, r, &err);
    if (s != OB_OK) assert_true(err.text[0] != 0);
    return s;
}

static void test_hf_names(void **state)
{
    (void)state;
    ob_hub_ref r;
    assert_int_equal(parse("hf://Own-er/My.Repo_1/Model-Q4.GGUF", &r), OB_OK);
    assert_int_equal(r.kind, OB_HUB_HF);
    assert_string_equal(r.owner, "Own-er");
    assert_string_equal(r.repo, "My.Repo_1");
    assert_string_equal(r.rev, "main");
    assert_string_equal(r.path, "Model-Q4.GGUF");
    assert_string_equal(r.file, "Model-Q4.GGUF");
    assert_string_equal(r.name, "model-q4");

    assert_int_equal(parse("hf://o/r@refs%2Fpr%2F7/a b/c.gguf", &r), OB_OK);
    assert_string_equal(r.rev, "refs%2Fpr%2F7");
    assert_string_equal(r.path, "a b/c.gguf");
    assert_string_equal(r.file, "c.gguf");

    assert_int_equal(parse("hf://o/r/sub/Big-00002-of-00003.gguf", &r), OB_OK);
    assert_string_equal(r.name, "big");
}

static void test_bad_names(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "hf://", "hf://o", "hf://o/r", "hf://o/r/", "hf:///r/x.gguf", "hf://o//x.gguf",
        "hf://o/r@/x.gguf", "hf://o/r/x.bin", "hf://o/r/.gguf", "hf://../r/x.gguf",
        "hf://o/../x.gguf", "hf://o/r/../x.gguf", "hf://o/r/a/../x.gguf", "hf://o/r/a//x.gguf",
        "hf://o/r/./x.gguf", "hf://o/r@../x.gguf", "hf://o/r/x\n.gguf", "hf://o/r/?x.gguf",
        "hf://o/r#/x.gguf", "http://", "http://x.gguf", "https://host/", "https://host/x.bin",
        "https://host/x.bin?y.gguf", "https://host/a b.gguf", "https://host/x.gguf/",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ob_hub_ref r;
        if (parse(bad[i], &r) != OB_E_INVALID) fail_msg("accepted: %s", bad[i]);
    }
    ob_hub_ref r;
    assert_int_equal(parse("no-such-model", &r), OB_E_NOT_FOUND);
    assert_int_equal(parse("", &r), OB_E_NOT_FOUND);
    char longname[2000] = "hf://o/r/";
    memset(longname + 9, 'a', 1900);
    strcpy(longname + 1909, ".gguf");
    assert_int_equal(parse(longname, &r), OB_E_INVALID);
    memcpy(longname, "http://h/", 9);
    assert_int_equal(parse(longname, &r), OB_E_INVALID);
}

static void test_addresses(void **state)
{
    (void)state;
    ob_hub_ref r;
    assert_int_equal(parse("https://host:81/p/My%20File.gguf?download=true", &r), OB_OK);
    assert_int_equal(r.kind, OB_HUB_URL);
    assert_string_equal(r.file, "My-20File.gguf");
    assert_string_equal(r.name, "my-20file");
    /* a name never starts with a dot, so a download cannot hide or become a lock file */
    assert_int_equal(parse("http://h/..gguf.gguf", &r), OB_OK);
    assert_true(ob_hub_name_ok(r.name));
    assert_true(r.file[0] != '.');
}

static void test_catalogue(void **state)
{
    (void)state;
    for (size_t i = 0; i < ob_hub_n_known(); i++) {
        const ob_hub_known *k = ob_hub_known_at(i);
        ob_hub_ref r;
        assert_true(ob_hub_name_ok(k->name));
        assert_int_equal(strlen(k->sha256), 64);
        assert_int_equal(parse(k->name, &r), OB_OK);
        assert_string_equal(r.name, k->name);
        assert_int_equal(parse(k->hf, &r), OB_OK);
        assert_ptr_equal(ob_hub_find_known(k->name), k);
    }
    assert_non_null(ob_hub_find_known(OB_HUB_DEMO_MODEL));
}

static void test_split(void **state)
{
    (void)state;
    int part = 0, n = 0;
    char name[] = "x-00002-of-00013.gguf";
    assert_true(ob_hub_split(name, &part, &n));
    assert_int_equal(part, 2);
    assert_int_equal(n, 13);
    ob_hub_split_name(name, 11);
    assert_string_equal(name, "x-00011-of-00013.gguf");
    static const char *const not_split[] = {
        "-00001-of-00002.gguf", "x.gguf", "x-0001-of-00002.gguf", "x-00003-of-00002.gguf",
        "x-00000-of-00002.gguf", "x-00001-of-99999.gguf", "x-0000a-of-00002.gguf", "",
    };
    for (size_t i = 0; i < sizeof not_split / sizeof *not_split; i++)
        if (ob_hub_split(not_split[i], &part, &n)) fail_msg("split: %s", not_split[i]);
}

static void test_hf_url(void **state)
{
    (void)state;
    ob_hub_ref r;
    ob_buf b;
    ob_buf_init(&b, 4096);
    unsetenv("ONEBIT_HF_ENDPOINT");
    setenv("HF_ENDPOINT", "http://mirror:9//", 1);
    assert_int_equal(parse("hf://o/r@v1/a b+c/d.gguf", &r), OB_OK);
    assert_int_equal(ob_hub_hf_url(&r, r.path, &b, NULL), OB_OK);
    assert_string_equal(ob_buf_str(&b), "http://mirror:9/o/r/resolve/v1/a%20b%2Bc/d.gguf");
    setenv("ONEBIT_HF_ENDPOINT", "https://mine", 1);
    ob_buf_clear(&b);
    assert_int_equal(ob_hub_hf_url(&r, r.path, &b, NULL), OB_OK);
    assert_string_equal(ob_buf_str(&b), "https://mine/o/r/resolve/v1/a%20b%2Bc/d.gguf");
    setenv("ONEBIT_HF_ENDPOINT", "ftp://mine", 1);
    assert_int_equal(ob_hub_hf_url(&r, r.path, &b, NULL), OB_E_INVALID);
    ob_buf_deinit(&b);
}

static void test_library_folder(void **state)
{
    (void)state;
    ob_buf b;
    ob_buf_init(&b, 4096);
    setenv("XDG_DATA_HOME", "/data", 1);
    assert_int_equal(ob_hub_dir(&b, NULL), OB_OK);
    assert_string_equal(ob_buf_str(&b), "/data/1bit/models");
    ob_buf_clear(&b);
    setenv("XDG_DATA_HOME", "relative", 1); /* to be ignored */
    setenv("HOME", "/home/me", 1);
    assert_int_equal(ob_hub_dir(&b, NULL), OB_OK);
    assert_string_equal(ob_buf_str(&b), "/home/me/.local/share/1bit/models");
    ob_buf_deinit(&b);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* A manifest is read as untrusted bytes: no path leaves the folder, nothing odd is taken. */
static void test_manifests(void **state)
{
    (void)state;
    char dir[] = "/tmp/test_hub_XXXXXX";
    assert_non_null(mkdtemp(dir));
    ob_hub_model *m;
    ob_err err;
    assert_int_equal(ob_hub_manifest_read(dir, "x", &m, &err), OB_E_NOT_FOUND);
    char sha[65];
    memset(sha, 'a', 64);
    sha[64] = 0;
    static const char *const bad[] = {
        "", "{", "[]", "{\"source\": \"s\", \"pulled_at\": 1}",
        "{\"source\": \"s\", \"pulled_at\": 1, \"files\": []}",
        "{\"source\": 1, \"pulled_at\": 1, \"files\": [{}]}",
        "{\"source\": \"s\", \"pulled_at\": 1, \"files\": [{\"name\": \"../../etc/passwd\", \"size\": "
        "1, \"sha256\": \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}]}",
        "{\"source\": \"s\", \"pulled_at\": 1, \"files\": [{\"name\": \"a\", \"size\": -1, \"sha256\": "
        "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}]}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text(dir, "manifest.json", bad[i]);
        if (ob_hub_manifest_read(dir, "x", &m, &err) != OB_E_FORMAT) fail_msg("took: %s", bad[i]);
        assert_null(m);
    }
    char name[] = "m.gguf";
    ob_hub_file f = {.name = name, .n_bytes = 4};
    memcpy(f.sha256, sha, sizeof sha);
    assert_int_equal(ob_hub_manifest_write(dir, "hf://\"odd\"", &f, 1, &err), OB_OK);
    assert_int_equal(ob_hub_manifest_read(dir, "x", &m, &err), OB_OK);
    assert_true(m->damaged); /* the file is not there */
    assert_string_equal(m->source, "hf://\"odd\"");
    assert_string_equal(m->files[0].sha256, sha);
    ob_hub_models_free(m, 1);
    write_text(dir, "m.gguf", "GGUF");
    assert_int_equal(ob_hub_manifest_read(dir, "x", &m, &err), OB_OK);
    assert_false(m->damaged);
    ob_hub_models_free(m, 1);

    int a = -1, b = -1;
    assert_int_equal(ob_hub_lock(dir, &a, &err), OB_OK);
    assert_int_equal(ob_hub_lock(dir, &b, &err), OB_E_BUSY);
    ob_hub_unlock(a);
    assert_int_equal(ob_hub_lock(dir, &b, &err), OB_OK);
    ob_hub_unlock(b);
    assert_int_equal(ob_hub_remove_tree(dir, &err), OB_OK);
    assert_int_not_equal(access(dir, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hf_names),  cmocka_unit_test(test_bad_names),
        cmocka_unit_test(test_addresses), cmocka_unit_test(test_catalogue),
        cmocka_unit_test(test_split),     cmocka_unit_test(test_hf_url),
        cmocka_unit_test(test_manifests), cmocka_unit_test(test_library_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
