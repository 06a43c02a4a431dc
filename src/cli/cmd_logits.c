/* 1bit logits: the logits of every position of a list of token ids, as an .npy array. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "cli/load.h"

enum { MAX_IDS_BYTES = 64 << 20 };

static ob_status read_ids(const char *path, int32_t **ids, int32_t *n, ob_err *err)
{
    FILE *f = fopen(path, "rb");
    if (!f) return ob_err_set_errno(err, OB_E_IO, errno, "cannot open %.200s", path);
    ob_buf b;
    ob_buf_init(&b, MAX_IDS_BYTES);
    ob_status s = ob_cli_read_all(f, path, &b, err);
    fclose(f);
    int32_t count = 0, cap = 0, *list = NULL;
    const char *p = ob_buf_str(&b);
    while (s == OB_OK) {
        p += strspn(p, " \t\r\n,[]");
        if (!*p) break;
        char *end;
        long x = strtol(p, &end, 10);
        if (end == p || x < 0 || x > INT32_MAX) {
            s = ob_err_set(err, OB_E_FORMAT, "%.200s: entry %d is no token id", path, count + 1);
            break;
        }
        p = end;
        if (count == cap) {
            cap = cap ? cap * 2 : 1024;
            int32_t *more = ob_reallocarray(list, (size_t)cap, sizeof *list);
            if (!more) {
                s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for %d ids", cap);
                break;
            }
            list = more;
        }
        list[count++] = (int32_t)x;
    }
    if (s == OB_OK && count == 0) s = ob_err_set(err, OB_E_INVALID, "%.200s holds no token ids", path);
    ob_buf_deinit(&b);
    *ids = list;
    *n = count;
    return s;
}

/* NumPy's .npy format 1.0: magic, header length, a dict padded so that data starts at 64 bytes. */
static ob_status write_npy_head(FILE *f, int32_t rows, int32_t cols, const char *path, ob_err *err)
{
    char dict[118];
    int n = snprintf(dict, sizeof dict, "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }",
                     rows, cols);
    memset(dict + n, ' ', sizeof dict - (size_t)n);
    dict[sizeof dict - 1] = '\n';
    static const unsigned char magic[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, sizeof dict, 0};
    if (fwrite(magic, 1, sizeof magic, f) != sizeof magic ||
        fwrite(dict, 1, sizeof dict, f) != sizeof dict)
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot write %.200s", path);
    return OB_OK;
}

/* Feed ids[from, to) as chunks of at most `most` tokens and write a row for each. */
static ob_status feed(ob_ctx *c, ob_seq *seq, const int32_t *ids, int32_t from, int32_t to, int32_t most,
                      int32_t n_vocab, FILE *f, const char *path, ob_err *err)
{
    while (from < to) {
        const float *logits;
        int32_t n = OB_MIN(most, to - from);
        ob_chunk chunk = {.seq = seq, .tok = ids + from, .n_tok = n, .n_out = n, .prompt = true};
        OB_TRY(ob_ctx_step(c, &chunk, 1, &logits, err));
        if (fwrite(logits, sizeof(float) * (size_t)n_vocab, (size_t)n, f) != (size_t)n)
            return ob_err_set_errno(err, OB_E_IO, errno, "cannot write %.200s", path);
        from += n;
    }
    return OB_OK;
}

int ob_cmd_logits(const ob_args *a)
{
    const char *ids_path = ob_cli_str(a, OB_OPT_IDS_FILE), *path = ob_cli_str(a, OB_OPT_OUTPUT);
    if (!ids_path) return ob_cli_usage_error(a->cmd_name, "--ids-file FILE is missing");
    if (!path) return ob_cli_usage_error(a->cmd_name, "-o FILE is missing");
    ob_err err;
    ob_status s;
    ob_cli_load load = {0};
    ob_ctx *c = NULL;
    ob_seq *seq = NULL;
    int32_t *ids = NULL, n = 0;
    FILE *f = NULL;
    OB_GOTO(read_ids(ids_path, &ids, &n, &err));
    OB_GOTO(ob_cli_load_init(&load, a, &err));
    OB_GOTO(ob_cli_load_ctx(&load, &c, &err));
    ob_engine_info info;
    ob_ctx_describe(c, &info);
    if (n > info.n_ctx) {
        s = ob_err_set(&err, OB_E_CONTEXT_LENGTH, "%d ids do not fit a context of %d: give -c %d or more", n,
                       info.n_ctx, n);
        goto out;
    }
    f = fopen(path, "wb");
    if (!f) {
        s = ob_err_set_errno(&err, OB_E_IO, errno, "cannot write %.200s", path);
        goto out;
    }
    OB_GOTO(write_npy_head(f, n, info.n_vocab, path, &err));
    OB_GOTO(ob_ctx_seq_new(c, &seq, &err));
    int32_t step = (int32_t)OB_MIN(ob_cli_int(a, OB_OPT_STEP), (int64_t)n);
    OB_GOTO(feed(c, seq, ids, 0, n - step, info.n_ubatch, info.n_vocab, f, path, &err));
    OB_GOTO(feed(c, seq, ids, n - step, n, 1, info.n_vocab, f, path, &err));
out:
    if (f && fclose(f) && s == OB_OK) s = ob_err_set_errno(&err, OB_E_IO, errno, "cannot write %.200s", path);
    if (seq) ob_ctx_seq_free(c, seq);
    ob_ctx_free(c);
    ob_cli_load_deinit(&load);
    ob_free(ids);
    return s == OB_OK ? OB_EXIT_OK : ob_cli_fail(a, &err);
}
