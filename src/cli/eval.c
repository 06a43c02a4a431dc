#include "cli/eval.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"

ob_status ob_eval_read_text(const ob_args *a, ob_buf *b, ob_err *err)
{
    const char *path = ob_cli_str(a, OB_OPT_FILE);
    FILE *f = path ? fopen(path, "rb") : stdin;
    if (!f) return ob_err_set_errno(err, OB_E_IO, errno, "cannot open %.200s", path);
    ob_status s = ob_cli_read_all(f, path ? path : "standard input", b, err);
    if (path) fclose(f);
    return s;
}

ob_status ob_eval_chunk(ob_ctx *c, ob_handover *h, const int32_t *ids, int32_t n_ctx, ob_eval_fn fn, void *arg, ob_err *err)
{
    ob_status s = OB_OK;
    ob_seq *seq = NULL;
    ob_engine_info info;
    ob_ctx_describe(c, &info);
    const ob_tok *tok = ob_ctx_tok(c);
    const int32_t n_ubatch = info.n_ubatch, first = fn ? n_ctx / 2 : n_ctx - 1;
    int32_t *run = ob_reallocarray(NULL, (size_t)n_ctx, sizeof *run);
    if (!run) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a chunk of %d tokens", n_ctx);
    memcpy(run, ids, (size_t)n_ctx * sizeof *run);
    if (ob_tok_add_bos(tok)) run[0] = ob_tok_bos(tok);
    OB_GOTO(ob_ctx_seq_new(c, &seq, err));
    if (h) OB_GOTO(ob_handover_run(h, c, seq, run, first + 1, false, NULL, err));
    for (int32_t at = ob_seq_len(seq); at < n_ctx; at += n_ubatch) {
        const float *logits;
        int32_t n = OB_MIN(n_ubatch, n_ctx - at);
        int32_t n_out = OB_MIN(n, OB_MAX(0, at + n - first));
        ob_chunk chunk = {.seq = seq, .tok = run + at, .n_tok = n, .n_out = n_out, .prompt = true};
        OB_GOTO(ob_ctx_step(c, &chunk, 1, &logits, err));
        for (int32_t i = 0; fn && i < n_out; i++) {
            int32_t pos = at + n - n_out + i;
            if (pos + 1 < n_ctx)
                OB_GOTO(fn(arg, logits + (size_t)i * (size_t)info.n_vocab, ids[pos + 1], err));
        }
    }
out:
    if (seq) ob_ctx_seq_free(c, seq);
    ob_free(run);
    return s;
}
