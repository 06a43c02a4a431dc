/* 1bit bench: prompt and generation speed of a model on this machine.
 *
 * A test is (n_prompt or n_gen, depth, batch): `depth` tokens are put into the cache of each of `batch`
 * sequences, untimed; then either n_prompt tokens of each are run in steps of the micro-batch, or n_gen
 * times one token of each. Tokens are pseudo-random. Runs of half a second (one run where the device is no GPU) warm up,
 * then `repetitions` runs count; the median is the figure.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/math.h"
#include "cli/load.h"

enum { MAX_LIST = 32, MAX_TESTS = 512, MAX_PROFILE = 64 };

typedef struct test {
    int32_t n_prompt, n_gen, depth, batch;
    int32_t n_samples;
    double *samples; /* tokens per second of all sequences together */
} test;

typedef struct bench {
    ob_ctx *c;
    ob_handover *prefill; /* NULL without --prefill-device */
    ob_engine_info info;
    int32_t *tok;     /* [n_ctx] pseudo-random ids */
    ob_seq **seqs;    /* [n_seq] */
    ob_chunk *chunks; /* [n_seq] */
} bench;

static ob_status parse_list(const char *name, const char *text, int32_t min, int32_t *out, int32_t *n,
                            ob_err *err)
{
    *n = 0;
    for (const char *p = text; *n < MAX_LIST;) {
        char *end;
        long x = strtol(p, &end, 10);
        if (end == p || x < min || x > OB_MAX_CTX || (*end && *end != ','))
            return ob_err_set(err, OB_E_INVALID, "--%s needs numbers from %d to %d split by commas, not '%s'",
                              name, min, OB_MAX_CTX, text);
        out[(*n)++] = (int32_t)x;
        if (!*end) return OB_OK;
        p = end + 1;
    }
    return ob_err_set(err, OB_E_LIMIT, "--%s has more than %d numbers", name, MAX_LIST);
}

/* ------------------------------------------------------------------ running */

/* n more tokens of each sequence, in steps of at most the micro-batch. */
static ob_status feed(bench *b, int32_t batch, int32_t n, bool one_by_one, ob_err *err)
{
    int32_t per_seq = one_by_one ? 1 : OB_MAX(1, b->info.n_ubatch / batch);
    for (int32_t at = 0; at < n; at += per_seq) {
        int32_t take = OB_MIN(per_seq, n - at);
        for (int32_t k = 0; k < batch; k++)
            b->chunks[k] = (ob_chunk){.seq = b->seqs[k], .tok = b->tok + ob_seq_len(b->seqs[k]),
                                      .n_tok = take, .n_out = at + take == n || one_by_one,
                                      .prompt = !one_by_one};
        OB_TRY(ob_ctx_step(b->c, b->chunks, batch, NULL, err));
    }
    return OB_OK;
}

/* The prompt's next n tokens of each sequence, by the prefill device as far as that is asked for. */
static ob_status prompt(bench *b, int32_t batch, int32_t n, ob_err *err)
{
    for (int32_t k = 0; k < batch && b->prefill; k++) {
        const int32_t end = ob_seq_len(b->seqs[k]) + n;
        OB_TRY(ob_handover_run(b->prefill, b->c, b->seqs[k], b->tok, end, false, NULL, err));
        if (k == batch - 1) n = end - ob_seq_len(b->seqs[k]); /* of all the same */
    }
    return feed(b, batch, n, false, err);
}

/* `depth` tokens into the cache. One sequence finds what an earlier run left there; several that share pages would be
 * faster than several that do not, so they are fed anew. */
static ob_status go_deep(bench *b, const test *t, ob_err *err)
{
    int32_t n_cached = 0;
    if (t->batch == 1) OB_TRY(ob_ctx_seq_reuse(b->c, b->seqs[0], b->tok, t->depth, &n_cached, err));
    OB_TRY(prompt(b, t->batch, t->depth - n_cached, err));
    if (t->batch == 1) ob_ctx_seq_publish(b->c, b->seqs[0]);
    return OB_OK;
}

static ob_status run_once(bench *b, const test *t, double *tok_per_s, ob_err *err)
{
    ob_status s = OB_OK;
    int32_t n_seqs = 0;
    for (; n_seqs < t->batch; n_seqs++) OB_GOTO(ob_ctx_seq_new(b->c, &b->seqs[n_seqs], err));
    if (t->depth) OB_GOTO(go_deep(b, t, err));
    double t0 = ob_now_ms();
    if (t->n_prompt) OB_GOTO(prompt(b, t->batch, t->n_prompt, err));
    if (t->n_gen) OB_GOTO(feed(b, t->batch, t->n_gen, true, err));
    double ms = ob_now_ms() - t0;
    *tok_per_s = (double)(t->n_prompt + t->n_gen) * t->batch / ms * 1e3;
out:
    for (int32_t k = 0; k < n_seqs; k++) ob_ctx_seq_free(b->c, b->seqs[k]);
    return s;
}

/* At least one run; and a device that takes some time to raise its clocks gets it. */
static ob_status warm_up(bench *b, const test *t, ob_err *err)
{
    const double least_ms = b->info.device.caps & OB_DEV_GPU && !(b->info.device.caps & OB_DEV_SOFT) ? 500 : 0;
    const double t0 = ob_now_ms();
    double x;
    do OB_TRY(run_once(b, t, &x, err));
    while (ob_now_ms() - t0 < least_ms);
    return OB_OK;
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(const test *t)
{
    double v[1000];
    int32_t n = t->n_samples;
    memcpy(v, t->samples, (size_t)n * sizeof *v);
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

static double extreme(const test *t, bool max)
{
    double x = t->samples[0];
    for (int32_t i = 1; i < t->n_samples; i++) x = max ? OB_MAX(x, t->samples[i]) : OB_MIN(x, t->samples[i]);
    return x;
}

/* ------------------------------------------------------------------ output */

static void test_name(const test *t, char *out, size_t cap)
{
    int n = snprintf(out, cap, "%s%d", t->n_prompt ? "pp" : "tg", t->n_prompt + t->n_gen);
    if (t->depth) n += snprintf(out + n, cap - (size_t)n, " @ %d", t->depth);
    if (t->batch > 1) snprintf(out + n, cap - (size_t)n, " x %d", t->batch);
}

static ob_dev_info prefill_device(const bench *b)
{
    ob_dev_info i;
    ob_handover_describe(b->prefill, &i);
    return i;
}

/* Is any device an emulation? */
static bool is_soft(const bench *b)
{
    return (b->info.device.caps | (b->prefill ? prefill_device(b).caps : 0)) & OB_DEV_SOFT;
}

static void write_table(ob_buf *o, const bench *b, const test *tests, int32_t n)
{
    ob_buf_addf(o, "%s %s, %.1f MiB, %.1f M parameters, on %s\n\n", b->info.name[0] ? b->info.name : b->info.arch,
                b->info.quant, (double)b->info.n_bytes / 1048576.0, (double)b->info.n_params / 1e6,
                b->info.device.name);
    if (b->prefill) ob_buf_addf(o, "Prompts of --prefill-min-tokens or more are computed on %s.\n", prefill_device(b).name);
    if (is_soft(b))
        ob_buf_adds(o, "This is an emulated device: its times say nothing about speed and are not shown.\n");
    ob_buf_addf(o, "%-18s %12s %12s %12s\n", "test", "tok/s", "min", "max");
    for (int32_t i = 0; i < n; i++) {
        char name[64];
        test_name(&tests[i], name, sizeof name);
        if (is_soft(b))
            ob_buf_addf(o, "%-18s %12s\n", name, "done");
        else
            ob_buf_addf(o, "%-18s %12.2f %12.2f %12.2f\n", name, median(&tests[i]), extreme(&tests[i], false),
                        extreme(&tests[i], true));
    }
}

/* Experts that were streamed, and the most memory that the process ever held. */
static void write_experts(ob_buf *o, const ob_ctx *c)
{
    ob_expert_stats t;
    struct rusage use;
    ob_ctx_expert_stats(c, &t);
    if (getrusage(RUSAGE_SELF, &use) == 0) ob_buf_addf(o, ", \"max_rss_bytes\": %llu", (unsigned long long)use.ru_maxrss * 1024);
    if (!t.n_experts) return;
    ob_buf_addf(o, ", \"moe\": {\"slots\": %lld, \"experts\": %lld, \"slot_bytes\": %llu, \"hits\": %llu, \"misses\": %llu, ",
                (long long)t.n_slots, (long long)t.n_experts, (unsigned long long)t.slot_bytes,
                (unsigned long long)t.n_hits, (unsigned long long)t.n_misses);
    ob_buf_addf(o, "\"prefetch_hits\": %llu, \"guesses\": %llu, \"guesses_right\": %llu, \"read_bytes\": %llu, \"wait_ms\": ",
                (unsigned long long)t.n_ahead_hits, (unsigned long long)t.n_guessed, (unsigned long long)t.n_guessed_right,
                (unsigned long long)t.n_read_bytes);
    ob_buf_add_double(o, t.wait_ms);
    ob_buf_addc(o, '}');
}

static void write_json(ob_buf *o, const bench *b, const ob_args *a, const test *tests, int32_t n)
{
    bool soft = is_soft(b);
    ob_buf_adds(o, "{\"model\": ");
    ob_buf_add_json(o, b->info.name, strlen(b->info.name));
    ob_buf_addf(o, ", \"arch\": \"%s\", \"type\": \"%s\", \"n_bytes\": %llu, \"n_params\": %llu, ", b->info.arch,
                b->info.quant, (unsigned long long)b->info.n_bytes, (unsigned long long)b->info.n_params);
    ob_buf_addf(o, "\"device\": {\"kind\": \"%s\", \"hardware\": %s, \"name\": ", b->info.device.kind,
                soft ? "false" : "true");
    ob_buf_add_json(o, b->info.device.name, strlen(b->info.device.name));
    ob_buf_adds(o, "}, \"prefill_device\": ");
    if (b->prefill) ob_buf_addf(o, "\"%s\"", prefill_device(b).kind);
    else ob_buf_adds(o, "null");
    ob_buf_addf(o, ", \"n_threads\": %lld, \"n_ubatch\": %d, \"load_ms\": ",
                (long long)ob_cli_int(a, OB_OPT_THREADS), b->info.n_ubatch);
    ob_buf_add_double(o, b->info.load_ms);
    ob_dev_info now; /* after all tests */
    ob_ctx_dev(b->c)->api->describe(ob_ctx_dev(b->c), &now);
    write_experts(o, b->c);
    ob_buf_addf(o, ", \"n_submits\": %llu, \"tests\": [", (unsigned long long)now.n_submits);
    for (int32_t i = 0; i < n; i++) {
        const test *t = &tests[i];
        char name[64];
        test_name(t, name, sizeof name);
        ob_buf_addf(o, "%s\n  {\"name\": \"%s\", \"n_prompt\": %d, \"n_gen\": %d, \"depth\": %d, \"batch\": %d", i ? "," : "",
                    name, t->n_prompt, t->n_gen, t->depth, t->batch);
        if (!soft) {
            ob_buf_adds(o, ", \"tok_per_s\": ");
            ob_buf_add_double(o, median(t));
            ob_buf_adds(o, ", \"samples\": [");
            for (int32_t k = 0; k < t->n_samples; k++) {
                if (k) ob_buf_adds(o, ", ");
                ob_buf_add_double(o, t->samples[k]);
            }
            ob_buf_addc(o, ']');
        }
        ob_buf_addc(o, '}');
    }
    ob_buf_adds(o, "\n]}\n");
}

static void write_csv(ob_buf *o, const bench *b, const test *tests, int32_t n)
{
    bool soft = is_soft(b);
    ob_buf_adds(o, "test,n_prompt,n_gen,depth,batch,tok_per_s,min,max,repetitions\n");
    for (int32_t i = 0; i < n; i++) {
        const test *t = &tests[i];
        char name[64];
        test_name(t, name, sizeof name);
        ob_buf_addf(o, "%s,%d,%d,%d,%d,", name, t->n_prompt, t->n_gen, t->depth, t->batch);
        if (soft) ob_buf_addf(o, ",,,%d\n", t->n_samples);
        else ob_buf_addf(o, "%.3f,%.3f,%.3f,%d\n", median(t), extreme(t, false), extreme(t, true), t->n_samples);
    }
}

static void write_profile(ob_ctx *c)
{
    ob_dev *d = ob_ctx_dev(c);
    ob_profile_row rows[MAX_PROFILE];
    if (!d->api->profile) {
        fprintf(stderr, "device %s keeps no profile\n", d->api->kind);
        return;
    }
    int n = OB_MIN(d->api->profile(d, rows, MAX_PROFILE, false), (int)MAX_PROFILE);
    double total = 0;
    for (int i = 0; i < n; i++) total += rows[i].ms;
    fprintf(stderr, "\n%-24s %10s %12s %7s %10s %10s\n", "op", "calls", "ms", "share", "Gflop/s", "GB/s");
    for (int i = 0; i < n; i++) {
        if (!rows[i].calls) continue;
        fprintf(stderr, "%-24s %10llu %12.2f %6.1f%% %10.1f %10.1f\n", rows[i].name,
                (unsigned long long)rows[i].calls, rows[i].ms, 100 * rows[i].ms / total,
                rows[i].flops / rows[i].ms * 1e-6, rows[i].bytes / rows[i].ms * 1e-6);
    }
}

/* ------------------------------------------------------------------ the command */

static ob_status list_tests(const ob_args *a, test *tests, int32_t *n, ob_err *err)
{
    int32_t pp[MAX_LIST], tg[MAX_LIST], depth[MAX_LIST], batch[MAX_LIST], n_pp, n_tg, n_depth, n_batch;
    OB_TRY(parse_list("n-prompt", ob_cli_str(a, OB_OPT_N_PROMPT), 0, pp, &n_pp, err));
    OB_TRY(parse_list("n-gen", ob_cli_str(a, OB_OPT_N_GEN), 0, tg, &n_tg, err));
    OB_TRY(parse_list("depth", ob_cli_str(a, OB_OPT_DEPTH), 0, depth, &n_depth, err));
    OB_TRY(parse_list("sequences", ob_cli_str(a, OB_OPT_BATCH), 1, batch, &n_batch, err));
    *n = 0;
    for (int d = 0; d < n_depth; d++)
        for (int k = 0; k < n_batch; k++)
            for (int i = 0; i < n_pp + n_tg; i++) {
                test t = {.depth = depth[d], .batch = batch[k]};
                if (i < n_pp) t.n_prompt = pp[i];
                else t.n_gen = tg[i - n_pp];
                if (t.n_prompt + t.n_gen == 0) continue;
                if (*n == MAX_TESTS) return ob_err_set(err, OB_E_LIMIT, "more than %d tests", MAX_TESTS);
                tests[(*n)++] = t;
            }
    return *n ? OB_OK : ob_err_set(err, OB_E_INVALID, "nothing to do: all of --n-prompt and --n-gen are 0");
}

static ob_status bench_init(bench *b, ob_cli_load *load, const test *tests, int32_t n, ob_err *err)
{
    int32_t n_ctx = 1, n_seq = 1;
    for (int32_t i = 0; i < n; i++) {
        n_ctx = OB_MAX(n_ctx, tests[i].depth + tests[i].n_prompt + tests[i].n_gen);
        n_seq = OB_MAX(n_seq, tests[i].batch);
    }
    load->params.n_ctx = n_ctx;
    load->params.n_seq = n_seq;
    load->encoders_too = true;
    OB_TRY(ob_cli_load_ctx(load, &b->c, err));
    ob_ctx_describe(b->c, &b->info);
    OB_TRY(ob_cli_load_handover(load, b->c, &b->prefill, err));
    for (int32_t i = 0; i < n && !b->info.causal; i++)
        if (tests[i].n_gen || tests[i].depth)
            return ob_err_set(err, OB_E_UNSUPPORTED, "an encoder generates nothing: give -n 0 and no --depth");
    b->tok = ob_calloc((size_t)n_ctx + 1, sizeof *b->tok);
    b->seqs = ob_calloc((size_t)n_seq, sizeof(ob_seq *));
    b->chunks = ob_calloc((size_t)n_seq, sizeof *b->chunks);
    if (!b->tok || !b->seqs || !b->chunks) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the bench");
    uint32_t x = 1;
    for (int32_t i = 0; i <= n_ctx; i++) {
        x = x * 1664525u + 1013904223u;
        b->tok[i] = (int32_t)((x >> 8) % (uint32_t)b->info.n_vocab);
    }
    return OB_OK;
}

int ob_cmd_bench(const ob_args *a)
{
    ob_err err;
    ob_status s;
    ob_cli_load load = {0};
    bench b = {0};
    static test tests[MAX_TESTS];
    int32_t n_tests = 0, reps = (int32_t)ob_cli_int(a, OB_OPT_REPETITIONS);
    ob_buf out;
    if (list_tests(a, tests, &n_tests, &err) != OB_OK) return ob_cli_usage_error(a->cmd_name, "%s", err.text);
    ob_buf_init(&out, 64 << 20);
    OB_GOTO(ob_cli_load_init(&load, a, &err));
    load.params.profile = ob_cli_flag(a, OB_OPT_PROFILE);
    OB_GOTO(bench_init(&b, &load, tests, n_tests, &err));
    for (int32_t i = 0; i < n_tests; i++) {
        tests[i].samples = ob_calloc((size_t)reps, sizeof(double));
        if (!tests[i].samples) {
            s = ob_err_set(&err, OB_E_NO_MEMORY, "no memory for %d samples", reps);
            goto out;
        }
        double x;
        OB_GOTO(warm_up(&b, &tests[i], &err));
        for (int32_t r = 0; r < reps; r++) {
            OB_GOTO(run_once(&b, &tests[i], &x, &err));
            tests[i].samples[tests[i].n_samples++] = x;
        }
    }
    if (ob_cli_flag(a, OB_OPT_JSON)) write_json(&out, &b, a, tests, n_tests);
    else if (ob_cli_flag(a, OB_OPT_CSV)) write_csv(&out, &b, tests, n_tests);
    else write_table(&out, &b, tests, n_tests);
    if (load.params.profile) write_profile(b.c);
out:;
    int rc = s == OB_OK ? ob_cli_print(a, &out) : ob_cli_fail(a, &err);
    for (int32_t i = 0; i < n_tests; i++) ob_free(tests[i].samples);
    ob_free(b.tok);
    ob_free(b.seqs);
    ob_free(b.chunks);
    ob_handover_free(b.prefill);
    ob_ctx_free(b.c);
    ob_cli_load_deinit(&load);
    ob_buf_deinit(&out);
    return rc;
}
