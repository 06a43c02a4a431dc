#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "cli/cli.h"
#include "tok/tok.h"

enum { MAX_OUTPUT_BYTES = 1 << 30 };

static ob_status load(const ob_args *a, ob_tok **tok, ob_err *err)
{
    char *path;
    ob_file *f;
    OB_TRY(ob_cli_find_model(ob_cli_str(a, OB_OPT_MODEL), &path, err));
    ob_status s = ob_file_open(path, OB_OPEN_NO_DATA, &f, err);
    if (s == OB_OK) {
        s = ob_tok_new(f, tok, err);
        if (s != OB_OK) s = ob_err_prefix(err, s, "%.150s", path);
        ob_file_close(f);
    }
    ob_free(path);
    return s;
}

static void write_json(ob_buf *b, const int32_t *ids, size_t n)
{
    ob_buf_addc(b, '[');
    for (size_t i = 0; i < n; i++) ob_buf_addf(b, "%s%d", i ? ", " : "", (int)ids[i]);
    ob_buf_adds(b, "]\n");
}

static void write_table(ob_buf *b, const ob_tok *tok, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *piece = ob_tok_piece(tok, ids[i], &len);
        ob_buf_addf(b, "%8d  ", (int)ids[i]);
        ob_buf_add_json(b, piece, len);
        ob_buf_addc(b, '\n');
    }
}

int ob_cmd_tokenize(const ob_args *a)
{
    if (!ob_cli_str(a, OB_OPT_MODEL))
        return ob_cli_usage_error(a->cmd_name, "-m MODEL is missing");
    ob_err err;
    ob_status s;
    ob_tok *tok = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    ob_buf text, out;
    ob_buf_init(&text, OB_MAX_TOK_TEXT_BYTES);
    ob_buf_init(&out, MAX_OUTPUT_BYTES);
    unsigned flags = (ob_cli_flag(a, OB_OPT_NO_BOS) ? 0u : OB_TOK_BOS) |
                     (ob_cli_flag(a, OB_OPT_NO_SPECIAL) ? 0u : OB_TOK_SPECIAL);
    OB_GOTO(load(a, &tok, &err));
    if (a->n_pos) ob_buf_adds(&text, a->pos[0]);
    else OB_GOTO(ob_cli_read_all(stdin, "standard input", &text, &err));
    OB_GOTO(ob_buf_status(&text, &err));
    OB_GOTO(ob_tok_encode(tok, ob_buf_str(&text), text.len, flags, &ids, &n, &err));
    if (ob_cli_flag(a, OB_OPT_JSON)) write_json(&out, ids, n);
    else write_table(&out, tok, ids, n);
out:;
    int rc = s == OB_OK ? ob_cli_print(a, &out) : ob_cli_fail(a, &err);
    ob_free(ids);
    ob_tok_free(tok);
    ob_buf_deinit(&text);
    ob_buf_deinit(&out);
    return rc;
}
