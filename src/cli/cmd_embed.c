/* 1bit embed: vectors of texts. */
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "cli/load.h"

enum { MAX_OUTPUT_BYTES = 1 << 30 };

typedef struct texts {
    ob_encode_text *list;
    int32_t n, cap;
} texts;

static ob_status add_text(texts *t, const ob_tok *tok, const char *s, size_t len, ob_err *err)
{
    if (t->n == t->cap) {
        const int32_t cap = t->cap ? 2 * t->cap : 64;
        ob_encode_text *more = ob_reallocarray(t->list, (size_t)cap, sizeof *more);
        if (!more) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %d texts", cap);
        t->list = more;
        t->cap = cap;
    }
    int32_t *ids;
    size_t n;
    OB_TRY(ob_tok_encode(tok, s, len, OB_TOK_BOS | OB_TOK_SPECIAL, &ids, &n, err));
    t->list[t->n++] = (ob_encode_text){.tok = ids, .n_tok = (int32_t)OB_MIN(n, (size_t)INT32_MAX)};
    return OB_OK;
}

/* The words of the command line, or the lines of standard input. */
static ob_status read_texts(texts *t, const ob_args *a, const ob_tok *tok, ob_err *err)
{
    for (int i = 0; i < a->n_pos; i++) OB_TRY(add_text(t, tok, a->pos[i], strlen(a->pos[i]), err));
    if (a->n_pos) return OB_OK;
    ob_buf all;
    ob_buf_init(&all, OB_MAX_TOK_TEXT_BYTES);
    ob_status s = ob_cli_read_all(stdin, "standard input", &all, err);
    const char *at = ob_buf_str(&all), *end = at + all.len;
    while (s == OB_OK && at < end) {
        const char *eol = memchr(at, '\n', (size_t)(end - at));
        if (!eol) eol = end;
        s = add_text(t, tok, at, (size_t)(eol - at), err);
        at = eol + 1;
    }
    ob_buf_deinit(&all);
    if (s == OB_OK && t->n == 0) s = ob_err_set(err, OB_E_INVALID, "there is no text to embed");
    return s;
}

static void write_vector(ob_buf *b, const float *v, int32_t n, const char *between)
{
    for (int32_t i = 0; i < n; i++) ob_buf_addf(b, "%s%.9g", i ? between : "", (double)v[i]);
}

static void write_json(ob_buf *b, const ob_encoder *e, const texts *t, const float *rows, int32_t n_cols)
{
    ob_engine_info info;
    ob_encoder_describe(e, &info);
    ob_buf_adds(b, "{\"model\":");
    ob_buf_add_json(b, info.name, strlen(info.name));
    ob_buf_addf(b, ",\"n_dims\":%d,\"data\":[", n_cols);
    for (int32_t i = 0; i < t->n; i++) {
        const int32_t n_rows = ob_encoder_n_rows(e, &t->list[i]);
        const bool many = info.pooling == OB_POOLING_NONE; /* a list of vectors, one per token */
        ob_buf_addf(b, "%s{\"index\":%d,\"n_tokens\":%d,\"embedding\":[", i ? "," : "", i, t->list[i].n_tok);
        for (int32_t r = 0; r < n_rows; r++, rows += n_cols) {
            if (many) ob_buf_adds(b, r ? ",[" : "[");
            write_vector(b, rows, n_cols, ",");
            if (many) ob_buf_addc(b, ']');
        }
        ob_buf_adds(b, "]}");
    }
    ob_buf_adds(b, "]}\n");
}

static ob_status embed(const ob_args *a, ob_encoder *e, const texts *t, ob_buf *out, ob_err *err)
{
    const int32_t n_cols = ob_encoder_n_cols(e);
    size_t n_rows = 0;
    for (int32_t i = 0; i < t->n; i++) n_rows += (size_t)ob_encoder_n_rows(e, &t->list[i]);
    float *rows = ob_reallocarray(NULL, n_rows + 1, (size_t)n_cols * sizeof *rows);
    if (!rows) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %zu vectors", n_rows);
    ob_status s = ob_encoder_run(e, t->list, t->n, rows, err);
    for (size_t r = 0; s == OB_OK && r < n_rows && !ob_cli_flag(a, OB_OPT_NO_NORMALIZE); r++)
        ob_normalize(rows + r * (size_t)n_cols, n_cols);
    if (s == OB_OK && ob_cli_flag(a, OB_OPT_JSON)) {
        write_json(out, e, t, rows, n_cols);
    } else if (s == OB_OK) {
        for (size_t r = 0; r < n_rows; r++) {
            write_vector(out, rows + r * (size_t)n_cols, n_cols, " ");
            ob_buf_addc(out, '\n');
        }
    }
    ob_free(rows);
    return s;
}

int ob_cmd_embed(const ob_args *a)
{
    if (!ob_cli_str(a, OB_OPT_MODEL)) return ob_cli_usage_error(a->cmd_name, "-m MODEL is missing");
    ob_err err;
    ob_status s;
    ob_cli_load load = {0};
    ob_encoder *e = NULL;
    texts t = {0};
    ob_buf out;
    ob_buf_init(&out, MAX_OUTPUT_BYTES);
    OB_GOTO(ob_cli_load_init(&load, a, &err));
    load.params.embed = true;
    load.params.pooling = ob_cli_pooling(a);
    load.params.n_seq = 0;
    OB_GOTO(ob_cli_load_encoder(&load, &e, &err));
    OB_GOTO(read_texts(&t, a, ob_encoder_tok(e), &err));
    OB_GOTO(embed(a, e, &t, &out, &err));
out:;
    int rc = s == OB_OK ? ob_cli_print(a, &out) : ob_cli_fail(a, &err);
    for (int32_t i = 0; i < t.n; i++) ob_free((void *)t.list[i].tok);
    ob_free(t.list);
    ob_encoder_free(e);
    ob_cli_load_deinit(&load);
    ob_buf_deinit(&out);
    return rc;
}
