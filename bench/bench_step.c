/* bench/bench_step.c: prefill and decode of a model through the engine's synchronous core.
 *
 *     bench_step MODEL [N_THREADS [N_PROMPT [N_GEN [profile]]]]
 *
 * Medians of 5 (prefill) and of every token (decode). With `profile`, time per op as well. Times in
 * brackets are processor time, which on one thread stays meaningful on a busy machine.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/ctx.h"

static void die(const ob_err *err)
{
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    const double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

static void print_profile(ob_ctx *c, const char *what, bool show)
{
    ob_profile_row rows[32];
    ob_dev *d = ob_ctx_dev(c);
    if (!d->api->profile) return;
    const int n = d->api->profile(d, rows, 32, true);
    for (int i = 0; show && i < n; i++)
        printf("  %s %-12s %6llu calls %9.3f ms  %8.1f Gflop/s  %7.1f GB/s\n", what, rows[i].name,
               (unsigned long long)rows[i].calls, rows[i].ms, rows[i].flops / rows[i].ms * 1e-6,
               rows[i].bytes / rows[i].ms * 1e-6);
}

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Wall time; adds processor time to *cpu. */
static double step(ob_ctx *c, ob_seq *s, const int32_t *tok, int32_t n, double *cpu)
{
    ob_err err;
    const float *logits;
    const double t0 = ob_now_ms(), c0 = cpu_ms();
    if (ob_ctx_step(c, &(ob_chunk){.seq = s, .tok = tok, .n_tok = n, .n_out = 1}, 1, &logits, &err)) die(&err);
    *cpu += cpu_ms() - c0;
    return ob_now_ms() - t0;
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    const int n_prompt = argc > 3 ? atoi(argv[3]) : 512, n_gen = argc > 4 ? atoi(argv[4]) : 64;
    const bool profile = argc > 5;
    ob_engine_params p;
    ob_engine_defaults(&p);
    p.model_path = argv[1];
    p.device = "cpu";
    p.n_threads = argc > 2 ? atoi(argv[2]) : 0;
    p.n_ctx = n_prompt + n_gen + 1;
    p.n_seq = 1;
    p.n_ubatch = 512;
    p.profile = profile;
    ob_ctx *c;
    ob_err err;
    if (ob_ctx_new(&p, &c, &err)) die(&err);
    int32_t *tok = malloc((size_t)n_prompt * sizeof *tok);
    for (int i = 0; i < n_prompt; i++) tok[i] = 1000 + (i * 37) % 5000;
    double pp[5], pc[5] = {0}, *tg = malloc((size_t)n_gen * sizeof *tg), *tc = calloc((size_t)n_gen, sizeof *tc);
    ob_seq *s = NULL;
    for (int i = 0; i < 5; i++) {
        if (s) ob_ctx_seq_free(c, s);
        if (ob_ctx_seq_new(c, &s, &err)) die(&err);
        pp[i] = 0;
        for (int k = 0; k < n_prompt; k += 512) pp[i] += step(c, s, tok + k, n_prompt - k < 512 ? n_prompt - k : 512, &pc[i]);
        print_profile(c, "prefill", i == 4 && profile);
    }
    for (int i = 0; i < n_gen; i++) tg[i] = step(c, s, tok + i % n_prompt, 1, &tc[i]);
    print_profile(c, "decode ", profile);
    const double pm = median(pp, 5), tm = median(tg, n_gen);
    printf("prefill %d: %.1f ms (%.1f), %.0f tok/s; decode after it: %.3f ms (%.3f), %.1f tok/s, best %.1f\n", n_prompt,
           pm, median(pc, 5), n_prompt / pm * 1e3, tm, median(tc, n_gen), 1e3 / tm, 1e3 / tg[0]);
    ob_ctx_seq_free(c, s);
    ob_ctx_free(c);
    return 0;
}
