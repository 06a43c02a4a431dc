/* 1bit perplexity: how well a model predicts a text.
 *
 * The text is cut into chunks of n_ctx tokens; each is run from an empty cache, its first token
 * replaced by BOS where the model wants one; tokens of the second half are scored. These are the
 * rules of llama.cpp's tool of the same name, so figures compare.
 */
#include <math.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "cli/eval.h"
#include "cli/load.h"
#include "convert/kld.h"

typedef struct score {
    int32_t n_vocab;
    double nll, nll2; /* sums of the negative log-likelihood and of its square */
    int64_t n;
    ob_base_logits *base; /* being written, or NULL */
} score;

static ob_status score_row(void *arg, const float *x, int32_t next, ob_err *err)
{
    score *sc = arg;
    float max = x[0];
    for (int32_t i = 1; i < sc->n_vocab; i++) max = OB_MAX(max, x[i]);
    double sum = 0;
    for (int32_t i = 0; i < sc->n_vocab; i++) sum += exp((double)(x[i] - max));
    double nll = log(sum) + (double)max - (double)x[next];
    sc->nll += nll;
    sc->nll2 += nll * nll;
    sc->n++;
    return sc->base ? ob_base_logits_add(sc->base, x, err) : OB_OK;
}

static double perplexity(const score *sc) { return exp(sc->nll / (double)sc->n); }

/* Standard error, as the spread of the token scores gives it. */
static double perplexity_error(const score *sc)
{
    double mean = sc->nll / (double)sc->n, var = sc->nll2 / (double)sc->n - mean * mean;
    return sc->n > 1 && var > 0 ? sqrt(var / (double)(sc->n - 1)) * perplexity(sc) : 0;
}

static ob_status run_chunks(const ob_args *a, ob_ctx *c, ob_handover *prefill, const int32_t *ids, int32_t n_ctx, int32_t n_chunks,
                            score *sc, ob_err *err)
{
    const char *base_path = ob_cli_str(a, OB_OPT_KL_BASE);
    if (base_path) {
        ob_base_head head = {.n_ctx = n_ctx, .n_vocab = sc->n_vocab, .n_chunks = n_chunks, .ids = ids};
        OB_TRY(ob_base_logits_create(base_path, &head, &sc->base, err));
    }
    for (int32_t i = 0; i < n_chunks; i++) {
        OB_TRY(ob_eval_chunk(c, prefill, ids + (size_t)i * (size_t)n_ctx, n_ctx, score_row, sc, err));
        if (!ob_cli_flag(a, OB_OPT_QUIET) && !ob_cli_flag(a, OB_OPT_JSON))
            fprintf(stderr, "chunk %d of %d: perplexity %.4f\n", i + 1, n_chunks, perplexity(sc));
    }
    return sc->base ? ob_base_logits_commit(sc->base, err) : OB_OK;
}

int ob_cmd_perplexity(const ob_args *a)
{
    ob_err err;
    ob_status s;
    ob_cli_load load = {0};
    ob_ctx *c = NULL;
    ob_handover *prefill = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    score sc = {0};
    ob_buf text, out;
    ob_engine_info info;
    ob_buf_init(&text, OB_MAX_TOK_TEXT_BYTES);
    ob_buf_init(&out, 4096);
    OB_GOTO(ob_eval_read_text(a, &text, &err));
    OB_GOTO(ob_cli_load_init(&load, a, &err));
    if (load.params.n_ctx == 0) load.params.n_ctx = 512;
    OB_GOTO(ob_cli_load_ctx(&load, &c, &err));
    ob_ctx_describe(c, &info);
    OB_GOTO(ob_tok_encode(ob_ctx_tok(c), ob_buf_str(&text), text.len, OB_TOK_BOS, &ids, &n_ids, &err));
    int32_t n_chunks = (int32_t)OB_MIN(n_ids / (size_t)info.n_ctx, (size_t)ob_cli_int(a, OB_OPT_CHUNKS));
    if (n_chunks < 1) {
        s = ob_err_set(&err, OB_E_INVALID, "the text has %zu tokens: one chunk needs %d (choose with -c)", n_ids,
                       info.n_ctx);
        goto out;
    }
    sc.n_vocab = info.n_vocab;
    OB_GOTO(ob_cli_load_handover(&load, c, &prefill, &err));
    OB_GOTO(run_chunks(a, c, prefill, ids, info.n_ctx, n_chunks, &sc, &err));
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
    ob_base_logits_free(sc.base);
    ob_free(ids);
    ob_handover_free(prefill);
    ob_ctx_free(c);
    ob_cli_load_deinit(&load);
    ob_buf_deinit(&text);
    ob_buf_deinit(&out);
    return rc;
}
