/* Unit tests of tok/: small vocabularies made here, and slow obvious versions of each algorithm. */
#include "test.h"

#include <pthread.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/math.h"
#include "base/utf8.h"
#include "gguf_builder.h"
#include "tok/pre.h"
#include "tok/tok.h"

/* ---- Helpers ---------------------------------------------------------------------------------- */

static uint64_t rng_state = 1;
static uint32_t rnd(uint32_t n)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % n;
}

typedef struct vocab {
    const char *model, *pre;
    char tokens[2000][64];
    int32_t types[2000];
    float scores[2000];
    int n;
    char merges[2000][128];
    int n_merges;
    int32_t bos, eos, unk; /* -1: not written */
    int add_bos, add_space; /* -1: not written */
} vocab;

static vocab *vocab_new(const char *model, const char *pre)
{
    vocab *v = calloc(1, sizeof *v);
    v->model = model;
    v->pre = pre;
    v->bos = v->eos = v->unk = v->add_bos = v->add_space = -1;
    return v;
}

static int add(vocab *v, const char *text, int type, float score)
{
    snprintf(v->tokens[v->n], sizeof v->tokens[0], "%s", text);
    v->types[v->n] = type;
    v->scores[v->n] = score;
    return v->n++;
}

static void gguf_of(const vocab *v, ob_buf *b)
{
    uint64_t n_kv = 4 + (v->n_merges > 0) + (v->pre != NULL) + (v->bos >= 0) + (v->eos >= 0) +
                    (v->unk >= 0) + (v->add_bos >= 0) + (v->add_space >= 0);
    gb_head(b, 3, 0, n_kv);
    gb_kv_str(b, "tokenizer.ggml.model", v->model);
    if (v->pre) gb_kv_str(b, "tokenizer.ggml.pre", v->pre);
    gb_array(b, "tokenizer.ggml.tokens", OB_KV_STRING, (uint64_t)v->n);
    for (int i = 0; i < v->n; i++) gb_str(b, v->tokens[i]);
    gb_array(b, "tokenizer.ggml.token_type", OB_KV_I32, (uint64_t)v->n);
    ob_buf_add(b, v->types, (size_t)v->n * sizeof v->types[0]);
    gb_array(b, "tokenizer.ggml.scores", OB_KV_F32, (uint64_t)v->n);
    ob_buf_add(b, v->scores, (size_t)v->n * sizeof v->scores[0]);
    if (v->n_merges) {
        gb_array(b, "tokenizer.ggml.merges", OB_KV_STRING, (uint64_t)v->n_merges);
        for (int i = 0; i < v->n_merges; i++) gb_str(b, v->merges[i]);
    }
    if (v->bos >= 0) gb_kv_u32(b, "tokenizer.ggml.bos_token_id", (uint32_t)v->bos);
    if (v->eos >= 0) gb_kv_u32(b, "tokenizer.ggml.eos_token_id", (uint32_t)v->eos);
    if (v->unk >= 0) gb_kv_u32(b, "tokenizer.ggml.unknown_token_id", (uint32_t)v->unk);
    uint8_t yes = v->add_bos > 0, space = v->add_space > 0;
    if (v->add_bos >= 0) gb_kv(b, "tokenizer.ggml.add_bos_token", OB_KV_BOOL, &yes, 1);
    if (v->add_space >= 0) gb_kv(b, "tokenizer.ggml.add_space_prefix", OB_KV_BOOL, &space, 1);
}

static ob_status load(const vocab *v, ob_tok **t, ob_err *err)
{
    ob_buf b;
    ob_buf_init(&b, 1 << 24);
    gguf_of(v, &b);
    ob_file *f;
    assert_int_equal(ob_file_open_bytes(b.data, b.len, 0, &f, err), OB_OK);
    ob_status s = ob_tok_new(f, t, err);
    ob_file_close(f);
    ob_buf_deinit(&b);
    return s;
}

static ob_tok *loaded(vocab *v)
{
    ob_tok *t;
    ob_err err;
    if (load(v, &t, &err) != OB_OK) fail_msg("%s", err.text);
    free(v);
    return t;
}

/* GPT-2's visible name of a byte; independent of the code under test. */
static void byte_name(unsigned byte, char *out)
{
    uint32_t next = 256, cp = 0;
    for (unsigned b = 0; b < 256; b++) {
        bool visible = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
        uint32_t name = visible ? b : next++;
        if (b == byte) cp = name;
    }
    out[ob_utf8_encode(cp, out)] = 0;
}

static void expect(const ob_tok *t, const char *text, unsigned flags, const int32_t *want, size_t n)
{
    int32_t *ids;
    size_t k;
    assert_int_equal(ob_tok_encode(t, text, strlen(text), flags, &ids, &k, NULL), OB_OK);
    bool same = k == n;
    for (size_t i = 0; same && i < n; i++) same = ids[i] == want[i];
    if (!same) {
        char got[400] = "";
        for (size_t i = 0; i < k && i < 30; i++) snprintf(got + strlen(got), 12, "%d ", ids[i]);
        fail_msg("'%s' gave %zu ids: %s", text, k, got);
    }
    ob_free(ids);
}
#define EXPECT(t, text, flags, ...)                                                               \
    expect(t, text, flags, (const int32_t[]){__VA_ARGS__},                                        \
           sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* Do PCRE2 and utf8proc give the character the same category? They may follow different versions of
 * Unicode, which says nothing about the matchers. */
static bool same_category(uint32_t cp)
{
    static const char letters[] = "LNMPSZ";
    static ob_regex *re[6]; /* lives as long as the program */
    char utf8[4], pattern[8];
    size_t n = ob_utf8_encode(cp, utf8), start, end;
    for (int i = 0; n && i < 6; i++) {
        snprintf(pattern, sizeof pattern, "\\p{%c}", letters[i]);
        if (!re[i]) assert_int_equal(ob_regex_new(pattern, &re[i], NULL), OB_OK);
        bool theirs;
        assert_int_equal(ob_regex_next(re[i], utf8, n, 0, &theirs, &start, &end, NULL), OB_OK);
        if (theirs != (utf8proc_category_string((utf8proc_int32_t)cp)[0] == letters[i])) return false;
    }
    return n > 0;
}

/* Text that finds the corners of the patterns; valid UTF-8. */
static size_t random_text(char *out, int n_chars)
{
    static const char *const some[] = {
        " ", " ", " ", " ", " ", "\n", "\r", "\t", "\v", "\xC2\x85", "\xC2\xA0", "\xE3\x80\x80", "a", "b",
        "s", "S", "t", "re", "VE", "ll", "'", "'", "\xC5\xBF", "Z", "0", "1", "9", "\xD9\xA3", "\xC2\xBD",
        ".", ",", "!", "/", "(", "[", "$", "+", "~", "_", "\xC3\xA9", "\xC3\x80", "\xD0\x96", "\xE4\xBD\xA0",
        "\xE3\x81\xB2", "\xED\x95\x9C", "\xE0\xA0\x80", "\xCC\x81", "\xE0\xA4\x83", "\xE2\x80\x8D",
        "\xEF\xB8\x8F", "\x01", "\xF0\x9F\x98\x80", "\xE1\xA0\x8E", "\xEE\x80\x80", "\xC7\x85", "\xCA\xB0",
    };
    size_t n = 0;
    for (int i = 0; i < n_chars; i++) {
        uint32_t cp = rnd(20) ? 0 : rnd(0x110000);
        size_t l = cp && same_category(cp) ? ob_utf8_encode(cp, out + n) : 0;
        if (!l) {
            const char *s = some[rnd(OB_COUNT(some))];
            l = strlen(s);
            memcpy(out + n, s, l);
        }
        n += l;
    }
    return n;
}

/* ---- Pre-tokenisers --------------------------------------------------------------------------- */

typedef struct cuts {
    size_t end[4096], n;
} cuts;

static ob_status note(void *arg, const char *word, size_t len)
{
    (void)word;
    cuts *c = arg;
    assert_true(len > 0 && c->n < OB_COUNT(c->end));
    c->end[c->n] = len + (c->n ? c->end[c->n - 1] : 0);
    c->n++;
    return OB_OK;
}

static void compare_with_pcre2(const char *name, ob_pre_match match)
{
    const char *pattern = ob_pre_oracle(match);
    assert_non_null(pattern);
    ob_pre ours = {.n_steps = 1, .steps = {{.match = match}}};
    ob_pre theirs = {.n_steps = 1};
    assert_int_equal(ob_regex_new(pattern, &theirs.steps[0].regex, NULL), OB_OK);
    for (int round = 0; round < 6000; round++) {
        char text[400];
        size_t n = random_text(text, 1 + (int)rnd(24));
        cuts a = {.n = 0}, b = {.n = 0};
        assert_int_equal(ob_pre_split(&ours, text, n, note, &a, NULL), OB_OK);
        assert_int_equal(ob_pre_split(&theirs, text, n, note, &b, NULL), OB_OK);
        if (a.n != b.n || memcmp(a.end, b.end, a.n * sizeof a.end[0])) {
            char hex[1000] = "";
            for (size_t i = 0; i < n; i++) snprintf(hex + 2 * i, 3, "%02x", (unsigned char)text[i]);
            fail_msg("%s and PCRE2 differ on %s", name, hex);
        }
        assert_int_equal(a.end[a.n - 1], n);
    }
    ob_regex_free(theirs.steps[0].regex);
}

static void test_matchers_equal_their_patterns(void **state)
{
    (void)state;
#define COMPARE(name) compare_with_pcre2(#name, ob_pre_match_##name)
    COMPARE(gpt2);
    COMPARE(llama3);
    COMPARE(qwen2);
    COMPARE(qwen35);
    COMPARE(minicpm5);
    COMPARE(ufakzeka);
    COMPARE(deepseek3);
    COMPARE(digit);
    COMPARE(digits3);
    COMPARE(digits);
    COMPARE(line);
    COMPARE(lines);
    COMPARE(space_letters);
    COMPARE(space_punctuation);
    COMPARE(han_kana);
    COMPARE(han_hangul);
}

/* Every name of the table loads, covers any bytes without gaps, and is linear enough. */
static void test_every_pre_tokeniser(void **state)
{
    (void)state;
    size_t n_long = 1 << 20;
    char *spaces = malloc(n_long);
    memset(spaces, ' ', n_long);
    spaces[n_long - 1] = 'x';
    for (size_t i = 0; ob_pre_known(i); i++) {
        for (const char *p = ob_pre_known(i); *p;) {
            size_t len = strcspn(p, " ");
            ob_pre *pre;
            ob_err err;
            assert_int_equal(ob_pre_new(p, len, &pre, &err), OB_OK);
            for (int round = 0; round < 50; round++) {
                char text[200];
                size_t n = 1 + rnd(sizeof text - 1);
                for (size_t k = 0; k < n; k++) text[k] = (char)rnd(256);
                cuts c = {.n = 0};
                assert_int_equal(ob_pre_split(pre, text, n, note, &c, &err), OB_OK);
                assert_int_equal(c.end[c.n - 1], n);
            }
            cuts c = {.n = 0};
            assert_int_equal(ob_pre_split(pre, spaces, n_long, note, &c, &err), OB_OK);
            assert_int_equal(c.end[c.n - 1], n_long);
            ob_pre_free(pre);
            p += len + (p[len] == ' ');
        }
    }
    free(spaces);
}

static void test_unknown_pre_is_refused(void **state)
{
    (void)state;
    ob_pre *pre;
    ob_err err;
    assert_int_equal(ob_pre_new("gpt-2x", 6, &pre, &err), OB_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "gpt-2x"));
    assert_non_null(strstr(err.text, "smollm"));
    assert_non_null(strstr(err.text, "gemma4"));
    assert_int_equal(ob_pre_new("", 0, &pre, &err), OB_E_UNSUPPORTED);
}

/* ---- Byte-level BPE --------------------------------------------------------------------------- */

enum { N_BYTES = 256 };

/* 256 bytes and random merges of what is there: most merges can meet each other. */
static vocab *random_bpe(int n_merges)
{
    vocab *v = vocab_new("gpt2", "gpt-2");
    char name[8];
    for (unsigned b = 0; b < N_BYTES; b++) {
        byte_name(b, name);
        add(v, name, OB_TOK_NORMAL, 0);
    }
    while (v->n_merges < n_merges) {
        /* a small alphabet, so that merges apply often */
        int a = rnd(3) && v->n > N_BYTES ? N_BYTES + (int)rnd((uint32_t)(v->n - N_BYTES)) : 'a' + (int)rnd(3);
        int b = rnd(3) && v->n > N_BYTES ? N_BYTES + (int)rnd((uint32_t)(v->n - N_BYTES)) : 'a' + (int)rnd(3);
        char left[64], right[64];
        memcpy(left, v->tokens[a], sizeof left);
        memcpy(right, v->tokens[b], sizeof right);
        if (strlen(left) + strlen(right) > 12) continue;
        char joined[64];
        snprintf(joined, sizeof joined, "%s%s", left, right);
        int have = 0;
        while (have < v->n && strcmp(v->tokens[have], joined)) have++;
        if (have == v->n) add(v, joined, OB_TOK_NORMAL, 0);
        snprintf(v->merges[v->n_merges++], sizeof v->merges[0], "%s %s", left, right);
    }
    return v;
}

static int token_id(const vocab *v, const char *a, const char *b)
{
    size_t n = strlen(a);
    for (int i = 0; i < v->n; i++)
        if (!strncmp(v->tokens[i], a, n) && !strcmp(v->tokens[i] + n, b)) return i;
    return -1;
}

/* The definition: of all neighbours, apply the merge with the lowest line number, leftmost first. */
static size_t naive_bpe(const vocab *v, const char *word, size_t len, int32_t *sym)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) sym[n++] = (unsigned char)word[i];
    for (;;) {
        int best_rank = v->n_merges;
        size_t best = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            char line[128];
            snprintf(line, sizeof line, "%s %s", v->tokens[sym[i]], v->tokens[sym[i + 1]]);
            for (int m = 0; m < best_rank; m++)
                if (!strcmp(v->merges[m], line)) {
                    best_rank = m;
                    best = i;
                }
        }
        if (best_rank == v->n_merges) return n;
        sym[best] = token_id(v, v->tokens[sym[best]], v->tokens[sym[best + 1]]);
        memmove(sym + best + 1, sym + best + 2, (n - best - 2) * sizeof *sym);
        n--;
    }
}

static void test_bpe_equals_its_definition(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        vocab *v = random_bpe(40);
        ob_tok *t;
        assert_int_equal(load(v, &t, NULL), OB_OK);
        for (int k = 0; k < 60; k++) {
            char word[160];
            int32_t want[160], *ids;
            size_t n = 1 + rnd(k % 4 ? 14 : sizeof word - 1), n_ids; /* both merge loops */
            for (size_t i = 0; i < n; i++) word[i] = (char)('a' + rnd(3));
            size_t n_want = naive_bpe(v, word, n, want);
            for (int again = 0; again < 2; again++) { /* the second time uses the memo */
                assert_int_equal(ob_tok_encode(t, word, n, 0, &ids, &n_ids, NULL), OB_OK);
                assert_int_equal(n_ids, n_want);
                assert_memory_equal(ids, want, n_want * sizeof *ids);
                ob_free(ids);
            }
        }
        ob_tok_free(t);
        free(v);
    }
}

static void test_bpe_keeps_every_byte(void **state)
{
    (void)state;
    ob_tok *t = loaded(random_bpe(60));
    for (int round = 0; round < 500; round++) {
        char text[600];
        size_t n = round % 2 ? random_text(text, 40) : rnd(300);
        if (round % 2 == 0)
            for (size_t i = 0; i < n; i++) text[i] = (char)rnd(256);
        int32_t *ids;
        size_t k;
        assert_int_equal(ob_tok_encode(t, text, n, OB_TOK_SPECIAL, &ids, &k, NULL), OB_OK);
        ob_buf out;
        ob_buf_init(&out, 1 << 16);
        assert_int_equal(ob_tok_decode(t, ids, k, true, &out, NULL), OB_OK);
        assert_int_equal(out.len, n);
        assert_memory_equal(ob_buf_str(&out), text, n);
        ob_buf_deinit(&out);
        ob_free(ids);
    }
    ob_tok_free(t);
}

static void test_a_megabyte_without_spaces(void **state)
{
    (void)state;
    ob_tok *t = loaded(random_bpe(60));
    double ms[2];
    for (int i = 0; i < 2; i++) {
        size_t n = (size_t)(1 << 18) << (2 * i), k;
        char *text = malloc(n);
        for (size_t c = 0; c < n; c++) text[c] = (char)('a' + rnd(3));
        int32_t *ids;
        double start = ob_now_ms();
        assert_int_equal(ob_tok_encode(t, text, n, 0, &ids, &k, NULL), OB_OK);
        ms[i] = ob_now_ms() - start;
        assert_true(k > 0 && k < n);
        ob_free(ids);
        free(text);
    }
    assert_true(ms[1] < 12 * ms[0] + 200); /* 4 times the text; quadratic would be 16 times */
    ob_tok_free(t);
}

/* ---- Special tokens --------------------------------------------------------------------------- */

static void test_special_tokens(void **state)
{
    (void)state;
    vocab *v = random_bpe(0);
    v->n_merges = 1;
    strcpy(v->merges[0], "a b");
    int ab = add(v, "ab", OB_TOK_NORMAL, 0);
    int im = add(v, "<|im|>", OB_TOK_CONTROL, 0), im2 = add(v, "<|im|>x", OB_TOK_CONTROL, 0);
    int user = add(v, "<tool>", OB_TOK_USER_DEFINED, 0), spaces = add(v, "   ", OB_TOK_USER_DEFINED, 0);
    int end = add(v, "<|im_end|>", OB_TOK_NORMAL, 0); /* its name says what it is */
    v->eos = im;
    ob_tok *t = loaded(v);
    EXPECT(t, "ab<|im|>a<|im|>xb", OB_TOK_SPECIAL, ab, im, 'a', im2, 'b');
    EXPECT(t, "<|im|", OB_TOK_SPECIAL, '<', '|', 'i', 'm', '|');
    EXPECT(t, "<|im|>", 0, '<', '|', 'i', 'm', '|', '>');
    EXPECT(t, "a<tool>b", 0, 'a', user, 'b');
    EXPECT(t, "<|im_end|>", OB_TOK_SPECIAL, end);
    EXPECT(t, "a    b", 0, 'a', spaces, ' ', 'b');
    assert_int_equal(ob_tok_type_of(t, end), OB_TOK_CONTROL);
    assert_int_equal(ob_tok_eot(t), end);
    assert_true(ob_tok_is_eog(t, im) && ob_tok_is_eog(t, end) && !ob_tok_is_eog(t, user));
    assert_int_equal(ob_tok_find(t, "<tool>", 6), user);
    assert_int_equal(ob_tok_find(t, "<tool", 5), -1);
    int32_t ids[] = {im, 'a', user, ' ', end};
    ob_buf out;
    ob_buf_init(&out, 100);
    assert_int_equal(ob_tok_decode(t, ids, 5, false, &out, NULL), OB_OK);
    assert_string_equal(ob_buf_str(&out), "a<tool> ");
    ob_buf_clear(&out);
    assert_int_equal(ob_tok_decode(t, ids, 5, true, &out, NULL), OB_OK);
    assert_string_equal(ob_buf_str(&out), "<|im|>a<tool> <|im_end|>");
    ob_buf_deinit(&out);
    ob_tok_free(t);
}

/* ---- Streaming -------------------------------------------------------------------------------- */

/* What Python's bytes.decode("utf-8", "replace") gives. */
static const struct {
    const char *bytes, *text;
} replaced[] = {
    {"abc", "abc"},
    {"\xE2\x82\xAC", "\xE2\x82\xAC"},
    {"\xE2\x82", "\xEF\xBF\xBD"},
    {"\xE2\x82z", "\xEF\xBF\xBDz"},
    {"\xFF\xFE", "\xEF\xBF\xBD\xEF\xBF\xBD"},
    {"\x80""a\x80", "\xEF\xBF\xBD""a\xEF\xBF\xBD"},
    {"\xF0\x9F\x98\xE2\x82\xAC", "\xEF\xBF\xBD\xE2\x82\xAC"},
    {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
    {"\xF0\x9F\x98\x80\xF0\x9F", "\xF0\x9F\x98\x80\xEF\xBF\xBD"},
    {"\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"},
    {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
};

static void test_detok_any_cut(void **state)
{
    (void)state;
    for (size_t k = 0; k < OB_COUNT(replaced); k++) {
        const char *s = replaced[k].bytes;
        size_t n = strlen(s);
        for (unsigned mask = 0; mask < 1u << (n - 1); mask++) { /* every way to cut it */
            ob_detok d;
            ob_buf out;
            ob_detok_init(&d, NULL, false);
            ob_buf_init(&out, 100);
            size_t from = 0;
            for (size_t i = 1; i <= n; i++) {
                if (i < n && !(mask >> (i - 1) & 1)) continue;
                ob_detok_push_bytes(&d, s + from, i - from, &out);
                assert_true(ob_utf8_is_valid(ob_buf_str(&out), out.len));
                from = i;
            }
            ob_detok_flush(&d, &out);
            assert_string_equal(ob_buf_str(&out), replaced[k].text);
            ob_buf_deinit(&out);
        }
    }
}

static void test_detok_random_equals_whole(void **state)
{
    (void)state;
    for (int round = 0; round < 3000; round++) {
        char s[40];
        size_t n = 1 + rnd(sizeof s - 1);
        for (size_t i = 0; i < n; i++) /* mostly lead and continuation bytes */
            s[i] = (char)(rnd(3) ? 0x80 + rnd(128) : rnd(256));
        ob_buf whole, parts;
        ob_detok a, b;
        ob_buf_init(&whole, 1000);
        ob_buf_init(&parts, 1000);
        ob_detok_init(&a, NULL, false);
        ob_detok_init(&b, NULL, false);
        ob_detok_push_bytes(&a, s, n, &whole);
        ob_detok_flush(&a, &whole);
        for (size_t i = 0, l; i < n; i += l) {
            l = 1 + rnd(3);
            l = OB_MIN(l, n - i);
            ob_detok_push_bytes(&b, s + i, l, &parts);
        }
        ob_detok_flush(&b, &parts);
        assert_int_equal(whole.len, parts.len);
        assert_memory_equal(ob_buf_str(&whole), ob_buf_str(&parts), whole.len);
        assert_true(ob_utf8_is_valid(ob_buf_str(&whole), whole.len));
        ob_buf_deinit(&whole);
        ob_buf_deinit(&parts);
    }
}

static void test_detok_tokens(void **state)
{
    (void)state;
    vocab *v = random_bpe(0);
    v->n_merges = 1;
    strcpy(v->merges[0], "a b");
    add(v, "ab", OB_TOK_NORMAL, 0);
    int stop = add(v, "<|stop|>", OB_TOK_CONTROL, 0);
    ob_tok *t = loaded(v);
    ob_buf out;
    ob_buf_init(&out, 100);
    ob_detok d;
    ob_detok_init(&d, t, false);
    const int32_t euro[] = {0xE2, 0x82, 0xAC, stop, 'a', 0xE2, -5, 1 << 30};
    const size_t len[] = {0, 0, 3, 3, 4, 4, 4, 4};
    for (size_t i = 0; i < OB_COUNT(euro); i++) {
        ob_detok_push(&d, euro[i], &out);
        assert_int_equal(out.len, len[i]);
    }
    ob_detok_flush(&d, &out);
    assert_string_equal(ob_buf_str(&out), "\xE2\x82\xAC""a\xEF\xBF\xBD");
    ob_buf_deinit(&out);
    ob_tok_free(t);
}

/* ---- SentencePiece ---------------------------------------------------------------------------- */

static const char *const spm_alphabet[] = {"\xE2\x96\x81", "a", "b", "\n", ".", "\xC3\xA9", "\xE2\x82\xAC"};

static vocab *random_spm(bool crossing)
{
    vocab *v = vocab_new("llama", "default");
    add(v, "<unk>", OB_TOK_UNKNOWN, 0);
    add(v, "<s>", OB_TOK_CONTROL, 0);
    add(v, "</s>", OB_TOK_CONTROL, 0);
    for (unsigned b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        add(v, name, OB_TOK_BYTE, 0);
    }
    for (size_t i = 0; i < 5; i++) add(v, spm_alphabet[i], OB_TOK_NORMAL, -100);
    for (int k = 0; k < 60; k++) {
        char text[40] = "";
        int n = 2 + (int)rnd(4);
        for (int i = 0; i < n; i++) strcat(text, spm_alphabet[!crossing && i ? 1 + rnd(3) : rnd(7)]);
        if (token_id(v, text, "") < 0) add(v, text, OB_TOK_NORMAL, -(float)rnd(30));
    }
    return v;
}

/* The definition: join the neighbours whose text is the token of the highest score, leftmost first. */
static size_t naive_spm(const vocab *v, const char *text, size_t len, int32_t *ids)
{
    char sym[100][64];
    size_t n = 0, n_ids = 0;
    for (size_t i = 0, l; i < len; i += l) {
        l = OB_MAX(ob_utf8_valid_len(text + i, len - i), (size_t)1);
        snprintf(sym[n++], sizeof sym[0], "%.*s", (int)l, text + i);
    }
    for (;;) {
        float best_score = -1e9f;
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++) {
            int id = token_id(v, sym[i], sym[i + 1]);
            if (id >= 0 && v->types[id] == OB_TOK_NORMAL && v->scores[id] > best_score) {
                best_score = v->scores[id];
                best = i;
            }
        }
        if (best == n) break;
        char right[64];
        memcpy(right, sym[best + 1], sizeof right);
        strcat(sym[best], right);
        memmove(sym[best + 1], sym[best + 2], (n - best - 2) * sizeof sym[0]);
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        int id = token_id(v, sym[i], "");
        if (id >= 0) ids[n_ids++] = id;
        for (const char *c = sym[i]; id < 0 && *c; c++) ids[n_ids++] = 3 + (unsigned char)*c;
    }
    return n_ids;
}

static void test_spm_equals_its_definition(void **state)
{
    (void)state;
    for (int round = 0; round < 40; round++) {
        vocab *v = random_spm(round % 2);
        v->add_space = 0;
        ob_tok *t;
        assert_int_equal(load(v, &t, NULL), OB_OK);
        for (int k = 0; k < 60; k++) {
            char text[200] = "", marked[200] = "";
            int n = 1 + (int)rnd(30);
            for (int i = 0; i < n; i++) {
                uint32_t c = rnd(7);
                strcat(text, c ? spm_alphabet[c] : " ");
                strcat(marked, spm_alphabet[c]);
            }
            int32_t want[200];
            size_t n_want = naive_spm(v, marked, strlen(marked), want);
            expect(t, text, 0, want, n_want);
            expect(t, text, 0, want, n_want);
        }
        ob_tok_free(t);
        free(v);
    }
}

static void test_spm_prefix_and_bytes(void **state)
{
    (void)state;
    vocab *v = vocab_new("llama", NULL);
    add(v, "<unk>", OB_TOK_UNKNOWN, 0);
    add(v, "<s>", OB_TOK_CONTROL, 0);
    add(v, "</s>", OB_TOK_CONTROL, 0);
    int mark = add(v, "\xE2\x96\x81", OB_TOK_NORMAL, -1), a = add(v, "a", OB_TOK_NORMAL, -1);
    int mark_a = add(v, "\xE2\x96\x81""a", OB_TOK_NORMAL, -2);
    int ff = add(v, "<0xFF>", OB_TOK_BYTE, 0);
    ob_tok *t = loaded(v);
    EXPECT(t, "a", OB_TOK_BOS, 1, mark_a);
    EXPECT(t, "a<s>a a", OB_TOK_SPECIAL, mark_a, 1, mark_a, mark_a);
    EXPECT(t, "aa", 0, mark_a, a);
    EXPECT(t, " ", 0, mark, mark);
    EXPECT(t, "\xFF", 0, mark, ff);
    EXPECT(t, "z", 0, mark, 0); /* no byte token: unknown */
    EXPECT(t, "<0xFF>", 0, mark, 0, 0, 0, 0, 0, 0); /* the name of a byte is no byte */
    expect(t, "", 0, NULL, 0);
    ob_buf out;
    ob_buf_init(&out, 100);
    assert_int_equal(ob_tok_decode(t, (const int32_t[]){1, mark_a, mark_a, ff}, 4, false, &out, NULL), OB_OK);
    assert_string_equal(ob_buf_str(&out), "a a\xFF");
    ob_buf_deinit(&out);
    assert_int_equal(ob_tok_bos(t), 1);
    assert_true(ob_tok_is_eog(t, 2));
    ob_tok_free(t);
}

/* ---- WordPiece -------------------------------------------------------------------------------- */

static void test_wordpiece(void **state)
{
    (void)state;
    vocab *v = vocab_new("bert", NULL);
    int unk = add(v, "[UNK]", OB_TOK_UNKNOWN, 0);
    int cls = add(v, "[CLS]", OB_TOK_CONTROL, 0);
    add(v, "[SEP]", OB_TOK_CONTROL, 0);
#define MARK "\xE2\x96\x81"
    int play = add(v, MARK "play", OB_TOK_NORMAL, 0), ing = add(v, "ing", OB_TOK_NORMAL, 0);
    int p = add(v, MARK "p", OB_TOK_NORMAL, 0), bang = add(v, MARK "!", OB_TOK_NORMAL, 0);
    int cafe = add(v, MARK "cafe", OB_TOK_NORMAL, 0), han = add(v, MARK "\xE4\xBD\xA0", OB_TOK_NORMAL, 0);
    int i = add(v, MARK "i", OB_TOK_NORMAL, 0);
    v->bos = cls;
    v->unk = unk;
    ob_tok *t = loaded(v);
    EXPECT(t, "Playing play!", 0, play, ing, play, bang);
    EXPECT(t, " playing\tping pxg ", 0, play, ing, p, ing, unk);
    EXPECT(t, "CAF\xC3\x89 cafe\xCC\x81", 0, cafe, cafe);      /* composed and decomposed accents */
    EXPECT(t, "play\xE4\xBD\xA0play", 0, play, han, play);      /* an ideograph stands alone */
    EXPECT(t, "p\x01l\xE2\x80\x8D""ay\xFF", 0, play);            /* control, format, not UTF-8: gone */
    EXPECT(t, "\xC4\xB0", 0, i);                                /* dotted capital I */
    EXPECT(t, "[CLS]play", OB_TOK_SPECIAL, cls, play);
    char longest[102];
    memset(longest, 'p', 101);
    longest[101] = 0;
    EXPECT(t, longest, 0, unk);
    ob_tok_free(t);
}

/* ---- Wrong files, no memory, threads ---------------------------------------------------------- */

static void test_wrong_files(void **state)
{
    (void)state;
    ob_tok *t;
    ob_err err;
    vocab *v = random_bpe(2);
    v->model = "rwkv";
    assert_int_equal(load(v, &t, &err), OB_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "rwkv"));
    v->model = "gpt2";
    v->pre = NULL;
    assert_int_equal(load(v, &t, &err), OB_E_UNSUPPORTED);
    v->pre = "gpt-2";
    v->n_merges = 0;
    assert_int_equal(load(v, &t, &err), OB_E_FORMAT);
    assert_non_null(strstr(err.text, "merges"));
    v->n = 0;
    assert_int_equal(load(v, &t, &err), OB_E_FORMAT);
    free(v);

    ob_buf b;
    ob_buf_init(&b, 1000);
    gb_head(&b, 3, 0, 0);
    ob_file *f;
    assert_int_equal(ob_file_open_bytes(b.data, b.len, 0, &f, &err), OB_OK);
    assert_int_equal(ob_tok_new(f, &t, &err), OB_E_NOT_FOUND);
    assert_null(t);
    ob_file_close(f);
    ob_buf_clear(&b);
    gb_head(&b, 3, 0, 4);
    gb_kv_str(&b, "tokenizer.ggml.model", "llama");
    gb_array(&b, "tokenizer.ggml.tokens", OB_KV_STRING, 3);
    gb_str(&b, "a");
    gb_str(&b, "");
    gb_str(&b, "b");
    float scores[2] = {0};
    int32_t types[2] = {1, 1};
    gb_array(&b, "tokenizer.ggml.scores", OB_KV_F32, 2);
    ob_buf_add(&b, scores, sizeof scores);
    gb_array(&b, "tokenizer.ggml.token_type", OB_KV_I32, 2);
    ob_buf_add(&b, types, sizeof types);
    assert_int_equal(ob_file_open_bytes(b.data, b.len, 0, &f, &err), OB_OK);
    assert_int_equal(ob_tok_new(f, &t, &err), OB_E_FORMAT); /* fewer types than tokens */
    ob_file_close(f);
    ob_buf_deinit(&b);
}

static void run_out_of_memory(vocab *v, const char *text)
{
    ob_buf b;
    ob_buf_init(&b, 1 << 24);
    gguf_of(v, &b);
    ob_file *f;
    ob_err err;
    assert_int_equal(ob_file_open_bytes(b.data, b.len, 0, &f, &err), OB_OK);
    ob_tok *t = NULL;
    ob_status s = OB_E_NO_MEMORY;
    for (int64_t n = 0; s != OB_OK; n++) {
        ob_alloc_fail_after(n);
        s = ob_tok_new(f, &t, &err);
        ob_alloc_fail_after(-1);
        assert_true(s == OB_OK || s == OB_E_NO_MEMORY);
        assert_true((s == OB_OK) == (t != NULL));
        assert_true(n < 1000);
    }
    s = OB_E_NO_MEMORY;
    for (int64_t n = 0; s != OB_OK; n++) {
        int32_t *ids;
        size_t k;
        ob_alloc_fail_after(n);
        s = ob_tok_encode(t, text, strlen(text), OB_TOK_BOS | OB_TOK_SPECIAL, &ids, &k, &err);
        ob_alloc_fail_after(-1);
        assert_true(s == OB_OK || (s == OB_E_NO_MEMORY && !ids && k == 0));
        assert_true(n < 1000);
        ob_free(ids);
    }
    ob_tok_free(t);
    ob_file_close(f);
    ob_buf_deinit(&b);
    free(v);
}

static void test_no_memory(void **state)
{
    (void)state;
    char text[2000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    for (size_t i = 0; i < 1000; i += 2) text[i] = ' ';
    run_out_of_memory(random_bpe(5), text);
    run_out_of_memory(random_spm(false), text);
    vocab *v = vocab_new("bert", NULL);
    add(v, "[UNK]", OB_TOK_UNKNOWN, 0);
    add(v, MARK "a", OB_TOK_NORMAL, 0);
    v->unk = 0;
    run_out_of_memory(v, text);
}

typedef struct thread_job {
    const ob_tok *t;
    const char *text;
    size_t len, n;
    int32_t *ids;
} thread_job;

static void *encode_in_thread(void *arg)
{
    thread_job *j = arg;
    if (ob_tok_encode(j->t, j->text, j->len, 0, &j->ids, &j->n, NULL) != OB_OK) j->ids = NULL;
    return NULL;
}

static void test_threads_share_a_tokenizer(void **state)
{
    (void)state;
    ob_tok *t = loaded(random_bpe(60));
    static char text[100000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = rnd(6) ? (char)('a' + rnd(3)) : ' ';
    thread_job jobs[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        jobs[i] = (thread_job){.t = t, .text = text, .len = sizeof text};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_in_thread, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++) {
        assert_non_null(jobs[i].ids);
        assert_int_equal(jobs[i].n, jobs[0].n);
        assert_memory_equal(jobs[i].ids, jobs[0].ids, jobs[0].n * sizeof(int32_t));
    }
    for (int i = 0; i < 4; i++) ob_free(jobs[i].ids);
    ob_tok_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matchers_equal_their_patterns),
        cmocka_unit_test(test_every_pre_tokeniser),
        cmocka_unit_test(test_unknown_pre_is_refused),
        cmocka_unit_test(test_bpe_equals_its_definition),
        cmocka_unit_test(test_bpe_keeps_every_byte),
        cmocka_unit_test(test_a_megabyte_without_spaces),
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_detok_any_cut),
        cmocka_unit_test(test_detok_random_equals_whole),
        cmocka_unit_test(test_detok_tokens),
        cmocka_unit_test(test_spm_equals_its_definition),
        cmocka_unit_test(test_spm_prefix_and_bytes),
        cmocka_unit_test(test_wordpiece),
        cmocka_unit_test(test_wrong_files),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_threads_share_a_tokenizer),
    };
    ob_log_set_level(OB_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
