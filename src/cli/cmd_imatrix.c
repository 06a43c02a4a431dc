/* 1bit imatrix: which columns of each matrix matter: the mean square of what they multiply on a text. */
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "cli/eval.h"
#include "cli/load.h"
#include "convert/convert.h"

typedef struct gather {
    ob_imatrix *im;
    ob_status s; /* of the first failure */
    ob_err err;
} gather;

/* The table of embeddings and the output matrix keep more bits in every mix, as in llama.cpp. */
static bool counts(const char *name) { return strcmp(name, "output.weight") && strcmp(name, "token_embd.weight"); }

static void observe(void *arg, const ob_weight *w, int64_t mat, const float *x, int64_t ldx, int64_t n_rows)
{
    gather *g = arg;
    if (g->s == OB_OK && counts(w->name))
        g->s = ob_imatrix_add(g->im, w->name, w->ne[0], w->use == OB_USE_EXPERTS ? w->ne[2] : 1, mat, x, ldx, n_rows, &g->err);
}

static ob_status run_chunks(const ob_args *a, ob_ctx *c, const int32_t *ids, int32_t n_ctx, int32_t n_chunks, gather *g,
                            ob_err *err)
{
    for (int32_t i = 0; i < n_chunks; i++) {
        OB_TRY(ob_eval_chunk(c, NULL, ids + (size_t)i * (size_t)n_ctx, n_ctx, NULL, NULL, err));
        if (g->s != OB_OK) {
            *err = g->err;
            return g->s;
        }
        if (!ob_cli_flag(a, OB_OPT_QUIET)) fprintf(stderr, "chunk %d of %d\n", i + 1, n_chunks);
    }
    return OB_OK;
}

int ob_cmd_imatrix(const ob_args *a)
{
    const char *path = ob_cli_str(a, OB_OPT_OUTPUT), *name = ob_cli_str(a, OB_OPT_FILE);
    if (!path) return ob_cli_usage_error(a->cmd_name, "-o FILE is missing");
    ob_err err;
    ob_status s;
    ob_cli_load load = {0};
    ob_ctx *c = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    gather g = {0};
    ob_buf text;
    ob_engine_info info;
    ob_buf_init(&text, OB_MAX_TOK_TEXT_BYTES);
    OB_GOTO(ob_eval_read_text(a, &text, &err));
    OB_GOTO(ob_imatrix_new(ob_cli_int(a, OB_OPT_COVARIANCE), &g.im, &err));
    OB_GOTO(ob_cli_load_init(&load, a, &err));
    if (load.params.n_ctx == 0) load.params.n_ctx = 512;
    /* Only the CPU shows activations so far: `auto` would choose a GPU, to be refused below. */
    if (strcmp(load.params.device, "auto") == 0) load.params.device = "cpu";
    load.params.observe = observe;
    load.params.observe_arg = &g;
    OB_GOTO(ob_cli_load_ctx(&load, &c, &err));
    ob_ctx_describe(c, &info);
    if (!(info.device.caps & OB_DEV_OBSERVE)) {
        s = ob_err_set(&err, OB_E_UNSUPPORTED, "device %s does not show activations: use --device cpu", info.device.kind);
        goto out;
    }
    OB_GOTO(ob_tok_encode(ob_ctx_tok(c), ob_buf_str(&text), text.len, OB_TOK_BOS, &ids, &n_ids, &err));
    int32_t n_chunks = (int32_t)OB_MIN(n_ids / (size_t)info.n_ctx, (size_t)ob_cli_int(a, OB_OPT_CHUNKS));
    if (n_chunks < 1) {
        s = ob_err_set(&err, OB_E_INVALID, "the text has %zu tokens: one chunk needs %d (choose with -c)", n_ids, info.n_ctx);
        goto out;
    }
    OB_GOTO(run_chunks(a, c, ids, info.n_ctx, n_chunks, &g, &err));
    OB_GOTO(ob_imatrix_save(g.im, path, name ? name : "standard input", (uint32_t)n_chunks, (uint32_t)info.n_ctx, &err));
    if (!ob_cli_flag(a, OB_OPT_QUIET))
        fprintf(stderr, "%s: written, from %d chunks of %d tokens\n", path, n_chunks, info.n_ctx);
out:
    ob_free(ids);
    ob_ctx_free(c);
    ob_imatrix_free(g.im);
    ob_cli_load_deinit(&load);
    ob_buf_deinit(&text);
    return s == OB_OK ? OB_EXIT_OK : ob_cli_fail(a, &err);
}
