/* 1bit kld: how far a model's predictions are from a base model's, on the text of the base's file. */
#include "base/math.h"
#include "cli/eval.h"
#include "cli/load.h"
#include "convert/kld.h"

static ob_status add_row(void *arg, const float *logits, int32_t next, ob_err *err)
{
    return ob_kld_add(arg, logits, next, err);
}

static void json_estimate(ob_buf *b, const char *name, ob_estimate e)
{
    ob_buf_addf(b, ", \"%s\": {\"value\": ", name);
    ob_buf_add_double(b, e.value);
    ob_buf_adds(b, ", \"error\": ");
    ob_buf_add_double(b, e.error);
    ob_buf_addc(b, '}');
}

static void write_json(ob_buf *b, const ob_kld_report *r, const ob_base_head *h)
{
    ob_buf_addf(b, "{\"n\": %lld, \"n_ctx\": %d, \"n_chunks\": %d", (long long)r->n, h->n_ctx, h->n_chunks);
    json_estimate(b, "ppl", r->ppl);
    json_estimate(b, "ppl_base", r->ppl_base);
    json_estimate(b, "ppl_ratio", r->ppl_ratio);
    json_estimate(b, "ln_ppl_ratio", r->ln_ppl_ratio);
    ob_buf_adds(b, ", \"correlation\": ");
    ob_buf_add_double(b, r->correlation);
    json_estimate(b, "kld", r->kld);
    ob_buf_adds(b, ", \"kld_percentiles\": {");
    for (int i = 0; i < OB_KLD_N_PERCENTILES; i++) {
        ob_buf_addf(b, "%s\"%g\": ", i ? ", " : "", ob_kld_percents[i]);
        ob_buf_add_double(b, r->kld_at[i]);
    }
    ob_buf_addc(b, '}');
    json_estimate(b, "p_diff", r->p_diff);
    json_estimate(b, "p_diff_rms", r->p_diff_rms);
    json_estimate(b, "top1", r->top1);
    json_estimate(b, "top5", r->top5);
    ob_buf_adds(b, "}\n");
}

static void write_text(ob_buf *b, const ob_kld_report *r, const ob_base_head *h)
{
    ob_buf_addf(b, "%d chunks of %d tokens, %lld rows\n\n", h->n_chunks, h->n_ctx, (long long)r->n);
    ob_buf_addf(b, "PPL                  %12.6f +/- %.6f\n", r->ppl.value, r->ppl.error);
    ob_buf_addf(b, "PPL of the base      %12.6f +/- %.6f\n", r->ppl_base.value, r->ppl_base.error);
    ob_buf_addf(b, "PPL ratio            %12.6f +/- %.6f\n", r->ppl_ratio.value, r->ppl_ratio.error);
    ob_buf_addf(b, "ln of PPL ratio      %12.6f +/- %.6f\n", r->ln_ppl_ratio.value, r->ln_ppl_ratio.error);
    ob_buf_addf(b, "correlation          %12.2f %%\n\n", 100 * r->correlation);
    ob_buf_addf(b, "mean KLD             %12.6f +/- %.6f\n", r->kld.value, r->kld.error);
    for (int i = OB_KLD_N_PERCENTILES - 1; i >= 0; i--)
        ob_buf_addf(b, "%5.1f %% KLD          %12.6f\n", ob_kld_percents[i], r->kld_at[i]);
    ob_buf_addf(b, "\nmean change of p     %12.3f +/- %.3f %%\n", 100 * r->p_diff.value, 100 * r->p_diff.error);
    ob_buf_addf(b, "RMS change of p      %12.3f +/- %.3f %%\n", 100 * r->p_diff_rms.value, 100 * r->p_diff_rms.error);
    ob_buf_addf(b, "same top token       %12.3f +/- %.3f %%\n", 100 * r->top1.value, 100 * r->top1.error);
    ob_buf_addf(b, "common in top five   %12.3f +/- %.3f %%\n", 100 * r->top5.value, 100 * r->top5.error);
}

static ob_status run(const ob_args *a, ob_ctx *c, ob_handover *prefill, const ob_base_head *h, ob_kld *k, ob_err *err)
{
    ob_engine_info info;
    ob_ctx_describe(c, &info);
    if (info.n_vocab != h->n_vocab)
        return ob_err_set(err, OB_E_INVALID, "the base has a vocabulary of %d tokens, the model one of %d", h->n_vocab,
                          info.n_vocab);
    if (info.n_ctx < h->n_ctx)
        return ob_err_set(err, OB_E_INVALID, "the base was made in chunks of %d tokens, the model's context is %d",
                          h->n_ctx, info.n_ctx);
    for (int32_t i = 0; i < h->n_chunks; i++) {
        OB_TRY(ob_eval_chunk(c, prefill, h->ids + (size_t)i * (size_t)h->n_ctx, h->n_ctx, add_row, k, err));
        if (!ob_cli_flag(a, OB_OPT_QUIET) && !ob_cli_flag(a, OB_OPT_JSON))
            fprintf(stderr, "chunk %d of %d\n", i + 1, h->n_chunks);
    }
    return OB_OK;
}

int ob_cmd_kld(const ob_args *a)
{
    const char *path = ob_cli_str(a, OB_OPT_KL_BASE);
    if (!path) return ob_cli_usage_error(a->cmd_name, "--kl-divergence-base FILE is missing");
    ob_err err;
    ob_status s;
    ob_cli_load load = {0};
    ob_ctx *c = NULL;
    ob_handover *prefill = NULL;
    ob_base_logits *base = NULL;
    ob_kld *k = NULL;
    ob_base_head head;
    ob_kld_report r;
    ob_buf out;
    ob_buf_init(&out, 1 << 16);
    OB_GOTO(ob_base_logits_open(path, &base, &err));
    ob_base_logits_head(base, &head);
    OB_GOTO(ob_kld_new(base, &k, &err));
    OB_GOTO(ob_cli_load_init(&load, a, &err));
    load.params.n_ctx = head.n_ctx;
    OB_GOTO(ob_cli_load_ctx(&load, &c, &err));
    OB_GOTO(ob_cli_load_handover(&load, c, &prefill, &err));
    OB_GOTO(run(a, c, prefill, &head, k, &err));
    ob_kld_finish(k, &r);
    if (ob_cli_flag(a, OB_OPT_JSON)) write_json(&out, &r, &head);
    else write_text(&out, &r, &head);
out:;
    int rc = s == OB_OK ? ob_cli_print(a, &out) : ob_cli_fail(a, &err);
    ob_kld_free(k);
    ob_base_logits_free(base);
    ob_handover_free(prefill);
    ob_ctx_free(c);
    ob_cli_load_deinit(&load);
    ob_buf_deinit(&out);
    return rc;
}
