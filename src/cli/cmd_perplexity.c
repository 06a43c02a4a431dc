/* 1bit perplexity: how well a model predicts a text.
 *
 * The text is cut into chunks of n_ctx tokens; each is run from an empty cache, its first token
 * replaced by BOS where the model wants one; tokens of the second half are scored. These are the
 * rules of llama.cpp's tool of the same name, so figures compare.
 */
#include <errno.h>
#include <math.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "cli/load.h"

typedef struct score {
    double nll, nll2; /* sums of the negative log-likelihood and of its square */
    int64_t n;
} score;

static void score_row(const float *x, int32_t n_vocab, int32_t id, score *sc)
{
    float max = x[0];
    for (int32_t i = 1; i < n_vocab; i++) max = OB_MAX(max, x[i]);
    double sum = 0;
    for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)(x[i] - max));
    double nll = log(sum) + (double)max - (double)x[id];
    sc->nll += nll;
    sc->nll2 += nll * nll;
    sc->n++;
}

static ob_status run_chunk(ob_ctx *c, const int32_t *ids, int32_t n_ctx, int32_t n_ubatch, int32_t n_vocab,
                           score *sc, ob_err *err)
{
    ob_seq *seq;
    ob_status s = OB_OK;
    OB_TRY(ob_ctx_seq_new(c, &seq, err));
    int32_t first = n_ctx / 2;
    for (int32_t at = 0; at < n_ctx; at += n_ubatch) {
        const float *logits;
        int32_t n = OB_MIN(n_ubatch, n_ctx - at);
        int32_t n_out = OB_MIN(n, OB_MAX(0, at + n - first));
        ob_chunk chunk = {.seq = seq, .tok = ids + at, .n_tok = n, .n_out = n_out};
        OB_GOTO(ob_ctx_step(c, &chunk, 1, &logits, err));
        for (int32_t i = 0; i < n_out; i++) {
            int32_t pos = at + n - n_out + i;
            if (pos + 1 < n_ctx) score_row(logits + (size_t)i * (size_t)n_vocab, n_vocab, ids[pos + 1], sc);
        }
    }
out:
    ob_ctx_seq_free(c, seq);
    return s;
}

static double perplexity(const score *sc) { return exp(sc->nll / (double)sc->n); }

/* Standard error, as the spread of the token scores gives it. */
static double perplexity_error(const score *sc)
{
    double mean = sc->nll / (double)sc->n, var = sc->nll2 / (double)sc->n - mean * mean;
    return sc->n > 1 && var > 0 ? sqrt(var / (double)(sc->n - 1)) * perplexity(sc) : 0;
}

static ob_status read_text(const ob_args *a, ob_buf *b, ob_err *err)
{
    const char *path = ob_cli_str(a, OB_OPT_FILE);
    FILE *f = path ? fopen(path, "rb") : stdin;
    if (!f) return ob_err_set_errno(err, OB_E_IO, errno, "cannot open %.200s", path);
    ob_status s = ob_cli_read_all(f, path ? path : "standard input", b, err);
    if (path) fclose(f);
    return s;
}

int ob_cmd_perplexity(const ob_args *a)
{
    ob_err err;
    ob_status s;
    ob_cli_load load = {0};
    ob_ctx *c = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    score sc = {0};
    ob_buf text, out;
    ob_engine_info info;
    ob_buf_init(&text, OB_MAX_TOK_TEXT_BYTES);
    ob_buf_init(&out, 4096);
    OB_GOTO(read_text(a, &text, &err));
    OB_GOTO(ob_cli_load_init(&load, a, &err));
    if (load.params.n_ctx == 0) load.params.n_ctx = 512;
    OB_GOTO(ob_cli_load_ctx(&load, &c, &err));
    ob_ctx_describe(c, &info);
    const ob_tok *tok = ob_ctx_tok(c);
    OB_GOTO(ob_tok_encode(tok, ob_buf_str(&text), text.len, OB_TOK_BOS, &ids, &n_ids, &err));
    int32_t n_chunks = (int32_t)(n_ids / (size_t)info.n_ctx);
    if (n_chunks < 1) {
        s = ob_err_set(&err, OB_E_INVALID, "the text has %zu tokens: one chunk needs %d (choose with -c)", n_ids,
                       info.n_ctx);
        goto out;
    }
    for (int32_t i = 0; i < n_chunks; i++) {
        int32_t *chunk = ids + (size_t)i * (size_t)info.n_ctx;
        if (ob_tok_add_bos(tok)) chunk[0] = ob_tok_bos(tok);
        OB_GOTO(run_chunk(c, chunk, info.n_ctx, info.n_ubatch, info.n_vocab, &sc, &err));
        if (!ob_cli_flag(a, OB_OPT_QUIET) && !ob_cli_flag(a, OB_OPT_JSON))
            fprintf(stderr, "chunk %d of %d: perplexity %.4f\n", i + 1, n_chunks, perplexity(&sc));
    }
    if (ob_cli_flag(a, OB_OPT_JSON)) {
        ob_buf_adds(&out, "{\"perplexity\": ");
        ob_buf_add_double(&out, perplexity(&sc));
        ob_buf_adds(&out, ", \"error\": ");
        ob_buf_add_double(&out, perplexity_error(&sc));
        ob_buf_addf(&out, ", \"n_ctx\": %d, \"n_chunks\": %d, \"n_scored\": %lld}\n", info.n_ctx, n_chunks,
                    (long long)sc.n);
    } else {
        ob_buf_addf(&out, "perplexity %.4f +/- %.4f (%d chunks of %d tokens)\n", perplexity(&sc),
                    perplexity_error(&sc), n_chunks, info.n_ctx);
    }
out:;
    int rc = s == OB_OK ? ob_cli_print(a, &out) : ob_cli_fail(a, &err);
    ob_free(ids);
    ob_ctx_free(c);
    ob_cli_load_deinit(&load);
    ob_buf_deinit(&text);
    ob_buf_deinit(&out);
    return rc;
}
