#include "cli/against.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"

static const char *const k_prompts[] = {
    "The capital of France is",
    "Once upon a time there was a small house at the edge of the forest, and in it lived",
    "def fibonacci(n):\n    \"\"\"Return the n-th number of the sequence.\"\"\"\n",
    "Q: Why is the sky blue, and why is it red when the sun goes down?\nA:",
};

typedef struct walk {
    int32_t n, same, ties;
    float widest; /* gap of the reference's best two where the best tokens differ */
} walk;

/* The best token of a row, and how far the second is behind it; -1: a row with a NaN. */
static int32_t best_of(const float *x, int32_t n, float *gap)
{
    int32_t best = -1;
    float first = -INFINITY, second = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(x[i])) return -1;
        if (x[i] > first || best < 0) {
            second = first;
            first = x[i];
            best = i;
        } else if (x[i] > second) {
            second = x[i];
        }
    }
    *gap = first - second;
    return best;
}

/* c[0] is the reference. */
static ob_status walk_along(ob_ctx *const c[2], const char *prompt, int32_t n_tok, walk *w, ob_err *err)
{
    ob_status s = OB_OK;
    ob_seq *seq[2] = {NULL, NULL};
    int32_t *tok = NULL, next = 0;
    size_t n = 0;
    ob_engine_info info;
    ob_ctx_describe(c[0], &info);
    *w = (walk){.n = n_tok};
    OB_TRY(ob_tok_encode(ob_ctx_tok(c[0]), prompt, strlen(prompt), OB_TOK_BOS, &tok, &n, err));
    for (int k = 0; k < 2; k++) OB_GOTO(ob_ctx_seq_new(c[k], &seq[k], err));
    for (int32_t i = 0; i < n_tok; i++) {
        int32_t best[2];
        float gap[2] = {0, 0};
        for (int k = 0; k < 2; k++) {
            const float *logits;
            ob_chunk chunk = {.seq = seq[k], .tok = i ? &next : tok, .n_tok = i ? 1 : (int32_t)n, .n_out = 1};
            OB_GOTO(ob_ctx_step(c[k], &chunk, 1, &logits, err));
            best[k] = best_of(logits, info.n_vocab, &gap[k]);
        }
        if (best[0] < 0 || best[1] < 0) {
            w->widest = INFINITY;
            break;
        }
        w->same += best[0] == best[1];
        w->ties += best[0] != best[1] && gap[0] < OB_AGAINST_TIE;
        if (best[0] != best[1]) w->widest = OB_MAX(w->widest, gap[0]);
        next = best[0];
    }
out:
    for (int k = 0; k < 2; k++)
        if (seq[k]) ob_ctx_seq_free(c[k], seq[k]);
    ob_free(tok);
    return s;
}

static void write_walk(ob_buf *o, const char *prompt, const walk *w, bool wrong, bool json, bool first)
{
    if (json) {
        ob_buf_adds(o, first ? "\n {\"prompt\": " : ",\n {\"prompt\": ");
        ob_buf_add_json(o, prompt, strlen(prompt));
        ob_buf_addf(o, ", \"tokens\": %d, \"same\": %d, \"ties\": %d, \"widest_gap\": %.6g, \"state\": \"%s\"}", w->n, w->same,
                    w->ties, isfinite(w->widest) ? (double)w->widest : 1e30, wrong ? "WRONG" : "ok");
        return;
    }
    ob_buf_addf(o, "%-6s %d of %d tokens the same, %d ties, widest gap %.4f after ", wrong ? "WRONG" : "ok", w->same, w->n,
                w->ties, (double)w->widest);
    ob_buf_add_json(o, prompt, strlen(prompt));
    ob_buf_adds(o, "\n");
}

ob_status ob_cli_check_against(const ob_engine_params *p, const char *reference, int32_t n_tok, bool json, ob_buf *o,
                               int *n_wrong, ob_err *err)
{
    ob_status s = OB_OK;
    ob_ctx *c[2] = {NULL, NULL};
    for (int k = 0; k < 2; k++) {
        ob_engine_params mine = *p;
        ob_engine_info info;
        if (k == 0) mine.device = reference;
        OB_GOTO(ob_ctx_new(&mine, &c[k], err));
        ob_ctx_describe(c[k], &info);
        if (!info.causal || info.output != OB_OUTPUT_LOGITS) {
            s = ob_err_set(err, OB_E_UNSUPPORTED, "--against compares generated text, and this model generates none");
            goto out;
        }
        if (!json) ob_buf_addf(o, "%s %s on %s\n", k ? "and       " : "reference:", info.arch, info.device.name);
    }
    *n_wrong = 0;
    for (size_t i = 0; i < OB_COUNT(k_prompts); i++) {
        walk w;
        OB_GOTO(walk_along(c, k_prompts[i], n_tok, &w, err));
        const bool wrong = w.same + w.ties != w.n;
        write_walk(o, k_prompts[i], &w, wrong, json, i == 0);
        *n_wrong += wrong;
    }
out:
    for (int k = 0; k < 2; k++) ob_ctx_free(c[k]);
    return s;
}
