/* Whole models on npu-soft: the same bits as the int8 arithmetic of the CPU (npu-ref), near the golden logits, right when
 * the device fails, and what a lost convention does. */
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "dev/npu/npu_soft.h"
#include "engine/ctx.h"
#include "engine/handover.h"
#include "ref_run.h"

/* Logits of the golden files have a standard deviation of about 0.65. Rounding activations to 8 bits with one scale a token
 * and weights with one an output moves them; where experts are chosen, or a delta net normalises a short vector, single
 * positions are moved far. So: the median over positions of the rms, and the argmax wherever the reference's best two are
 * further apart than `margin`. Bounds are a quarter above what was
 * measured, which stands behind each. */
typedef struct model {
    const char *name;
    double rms, kld, margin;
} model;

static const model k_models[] = {
    {"llama", 2.5e-2, 2.8e-4, 0.065},            /* 2.0e-2, 2.2e-4, 0.052: 3 of 104 tokens differ */
    {"qwen2", 1.9e-2, 1.4e-4, 0.067},            /* 1.5e-2, 1.1e-4, 0.053: 6 */
    {"qwen3moe", 3.0e-2, 1.1e-3, 0.020},         /* 2.4e-2, 8.6e-4, 0.015: 2 */
    {"qwen35moe", 1.2e-1, 2.8e-2, 0.72},         /* 9.3e-2, 2.2e-2, 0.578: 31; see ill-conditioned in test_golden.c */
    {"minicpm-longrope", 2.2e-3, 2.0e-6, 1e-3},  /* 1.7e-3, 1.5e-6, none */
    {"glm47flash", 2.0e-2, 1.1e-3, 0.14},        /* 1.6e-2, 8.5e-4, 0.109: 7 */
};

static char g_dir[64];

static int make_cache(void **state)
{
    (void)state;
    snprintf(g_dir, sizeof g_dir, "/tmp/test_npu_model.XXXXXX");
    return mkdtemp(g_dir) ? setenv("XDG_CACHE_HOME", g_dir, 1) : -1;
}

static int drop_cache(void **state)
{
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", g_dir);
    return system(cmd);
}

static ob_engine_params params(const char *name, const char *device, char *path, size_t cap)
{
    ob_engine_params p;
    snprintf(path, cap, "%s/golden/%s.gguf", OB_TEST_DATA, name);
    ob_engine_defaults(&p);
    p.model_path = path;
    p.device = device;
    p.n_seq = 3;
    p.n_ubatch = 128;
    p.n_threads = 2;
    p.k_type = p.v_type = OB_F32;
    return p;
}

static ob_ctx *open_model(const char *name, const char *device)
{
    char path[512];
    const ob_engine_params p = params(name, device, path, sizeof path);
    ob_ctx *c = NULL;
    ob_err err;
    if (ob_ctx_new(&p, &c, &err) != OB_OK) fail_msg("%s on %s: %s", name, device, err.text);
    return c;
}

typedef struct golden {
    npz *z;
    const int32_t *tok;
    const float *logits;
    int32_t n, n_vocab;
} golden;

static golden load_golden(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/golden/%s.npz", OB_TEST_DATA, name);
    golden g = {.z = npz_open(path)};
    assert_non_null(g.z);
    const npz_array *t = npz_need(g.z, "tokens", NPZ_I32), *l = npz_need(g.z, "logits", NPZ_F32);
    g.tok = t->data;
    g.n = (int32_t)t->shape[0];
    g.logits = l->data;
    g.n_vocab = (int32_t)l->shape[1];
    return g;
}

/* Logits of tok[0..n) in chunks of 97, the last four one by one. [n][n_vocab], to be freed. */
static float *run_tokens(ob_ctx *c, const int32_t *tok, int32_t n, int32_t n_vocab)
{
    ob_err err;
    ob_seq *s;
    float *out = calloc((size_t)n * (size_t)n_vocab, sizeof *out);
    if (ob_ctx_seq_new(c, &s, &err) != OB_OK) fail_msg("%s", err.text);
    for (int32_t at = 0, m; at < n; at += m) {
        const float *rows;
        m = at < n - 4 ? n - 4 - at < 97 ? n - 4 - at : 97 : 1;
        const ob_chunk ch = {.seq = s, .tok = tok + at, .n_tok = m, .n_out = m, .prompt = m > 1};
        if (ob_ctx_step(c, &ch, 1, &rows, &err) != OB_OK) fail_msg("%s", err.text);
        memcpy(out + (size_t)at * (size_t)n_vocab, rows, (size_t)m * (size_t)n_vocab * sizeof *out);
    }
    ob_ctx_seq_free(c, s);
    return out;
}

static float *logits_on(const char *name, const char *device, const golden *g)
{
    ob_ctx *c = open_model(name, device);
    float *out = run_tokens(c, g->tok, g->n, g->n_vocab);
    ob_ctx_free(c);
    return out;
}

static int32_t argmax(const float *x, int32_t n, double *margin)
{
    int32_t best = 0;
    float second = -INFINITY;
    for (int32_t i = 1; i < n; i++) {
        if (x[i] > x[best]) {
            second = x[best];
            best = i;
        } else if (x[i] > second) {
            second = x[i];
        }
    }
    *margin = (double)x[best] - (double)second;
    return best;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct distance {
    double rms, kld;    /* median, mean */
    double flip_margin; /* the widest margin at which another token is best */
    int32_t n_flips;
} distance;

static distance distance_of(const golden *g, const float *got)
{
    distance d = {0};
    const int32_t n = g->n_vocab;
    double *rms = calloc((size_t)g->n, sizeof *rms);
    for (int32_t t = 0; t < g->n; t++) {
        const float *p = g->logits + (size_t)t * (size_t)n, *q = got + (size_t)t * (size_t)n;
        double sp = 0, sq = 0, kl = 0, margin, other;
        for (int32_t i = 0; i < n; i++) {
            sp += exp((double)p[i]);
            sq += exp((double)q[i]);
            rms[t] += ((double)p[i] - (double)q[i]) * ((double)p[i] - (double)q[i]) / n;
        }
        for (int32_t i = 0; i < n; i++) kl += exp((double)p[i]) / sp * ((double)p[i] - log(sp) - (double)q[i] + log(sq));
        rms[t] = sqrt(rms[t]);
        d.kld += kl / g->n;
        if (argmax(p, n, &margin) == argmax(q, n, &other)) continue;
        d.n_flips++;
        d.flip_margin = fmax(d.flip_margin, margin);
    }
    qsort(rms, (size_t)g->n, sizeof *rms, by_value);
    d.rms = rms[g->n / 2];
    free(rms);
    return d;
}

/* ---- the six families -------------------------------------------------------------------------- */

static void test_model(void **state)
{
    const model *m = *state;
    golden g = load_golden(m->name);
    float *ref = logits_on(m->name, "npu-ref", &g), *soft = logits_on(m->name, "npu-soft", &g);
    const distance d = distance_of(&g, ref);
    print_message("  %-17s KLD %.1e, rms %.1e, %d of %d argmax differ, at margins up to %.4f\n", m->name, d.kld, d.rms, d.n_flips,
                  g.n, d.flip_margin);
    assert_memory_equal(ref, soft, (size_t)g.n * (size_t)g.n_vocab * sizeof *ref);
    if (!(d.rms <= m->rms) || !(d.kld <= m->kld) || !(d.flip_margin <= m->margin))
        fail_msg("%s: rms %g (%g), KLD %g (%g), margin %g (%g)", m->name, d.rms, m->rms, d.kld, m->kld, d.flip_margin, m->margin);
    free(ref);
    free(soft);
    npz_close(g.z);
}

/* Quantised files, too: same bits on both. */
static void test_quantised(void **state)
{
    (void)state;
    static const struct { const char *npz, *file; } k[] = {{"llama-q", "llama-q-Q4_K_M"}, {"qwen3moe-q", "qwen3moe-q-MXFP4_MOE"}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/golden/%s.npz", OB_TEST_DATA, k[i].npz);
        golden g = {.z = npz_open(path)};
        const npz_array *t = npz_need(g.z, "tokens", NPZ_I32);
        g.tok = t->data;
        g.n = 40;
        ob_ctx *c = open_model(k[i].file, "npu-ref");
        g.n_vocab = ob_ctx_n_cols(c);
        ob_ctx_free(c);
        float *ref = logits_on(k[i].file, "npu-ref", &g), *soft = logits_on(k[i].file, "npu-soft", &g);
        assert_memory_equal(ref, soft, (size_t)g.n * (size_t)g.n_vocab * sizeof *ref);
        free(ref);
        free(soft);
        npz_close(g.z);
    }
}

/* Experts that come and go (--moe-slots) are packed into slots, and give the same bits. */
static void test_streamed_experts(void **state)
{
    (void)state;
    golden g = load_golden("qwen3moe");
    g.n = 30;
    float *want = logits_on("qwen3moe", "npu-ref", &g);
    char path[512];
    ob_engine_params p = params("qwen3moe", "npu-soft", path, sizeof path);
    p.n_ubatch = 4;
    p.n_moe_slots = 16;
    ob_ctx *c = NULL;
    ob_err err;
    if (ob_ctx_new(&p, &c, &err) != OB_OK) fail_msg("%s", err.text);
    ob_seq *s;
    assert_int_equal(ob_ctx_seq_new(c, &s, &err), OB_OK);
    for (int32_t at = 0; at < g.n; at++) {
        const float *rows;
        const ob_chunk ch = {.seq = s, .tok = g.tok + at, .n_tok = 1, .n_out = 1};
        if (ob_ctx_step(c, &ch, 1, &rows, &err) != OB_OK) fail_msg("%s", err.text);
        assert_memory_equal(rows, want + at * g.n_vocab, (size_t)g.n_vocab * sizeof *rows);
    }
    ob_expert_stats st;
    ob_ctx_expert_stats(c, &st);
    assert_true(st.n_slots == 16 && st.n_experts > 16 && st.n_misses > 0);
    ob_ctx_free(c);
    free(want);
    npz_close(g.z);
}

/* A sequence's bits do not depend on who shares its steps. */
static void test_company(void **state)
{
    (void)state;
    golden g = load_golden("qwen3moe");
    ob_err err;
    ob_ctx *c = open_model("qwen3moe", "npu-soft");
    float *alone = run_tokens(c, g.tok, 20, g.n_vocab);
    ob_seq *a, *b;
    assert_int_equal(ob_ctx_seq_new(c, &b, &err), OB_OK);
    assert_int_equal(ob_ctx_seq_new(c, &a, &err), OB_OK);
    for (int32_t at = 0; at < 20; at += 5) {
        const float *rows;
        const ob_chunk ch[2] = {{.seq = b, .tok = g.tok + 30 + 3 * at, .n_tok = 15, .n_out = 0},
                                {.seq = a, .tok = g.tok + at, .n_tok = 5, .n_out = 5}};
        assert_int_equal(ob_ctx_step(c, ch, 2, &rows, &err), OB_OK);
        assert_memory_equal(rows, alone + at * g.n_vocab, 5 * (size_t)g.n_vocab * sizeof *rows);
    }
    free(alone);
    ob_ctx_free(c);
    npz_close(g.z);
}

/* ---- failures ---------------------------------------------------------------------------------- */

static int g_warnings;
static void count_warnings(void *arg, ob_log_level level, const char *line)
{
    (void)arg;
    if (level <= OB_LOG_WARN && strstr(line, "computed on the CPU from now on")) g_warnings++;
    else if (level <= OB_LOG_WARN) printf("    %s\n", line);
}

static void quit(int rc)
{
    fflush(stdout);
    _exit(rc);
}

/* In a process of its own, for the software NPU behind npu-soft is made once. */
static void with_fault(const char *fault, const char *verify, const char *file, bool gives_up)
{
    golden g = load_golden(file);
    g.n = 24;
    fflush(stdout);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child) {
        int rc = -1;
        assert_int_equal(waitpid(child, &rc, 0), child);
        if (rc) fail_msg("%s: status %d", fault, WIFEXITED(rc) ? WEXITSTATUS(rc) : -1);
        npz_close(g.z);
        return;
    }
    setenv("OB_NPU_SOFT_FAULTS", fault, 1);
    ob_log_set_sink(count_warnings, NULL);
    char path[512];
    ob_engine_params p = params(file, "npu-soft", path, sizeof path);
    p.verify = verify ? OB_VERIFY_ALL : OB_VERIFY_SOME;
    ob_ctx *c = NULL;
    ob_err err;
    if (ob_ctx_new(&p, &c, &err) != OB_OK) {
        printf("%s\n", err.text);
        quit(2);
    }
    float *got = run_tokens(c, g.tok, g.n, g.n_vocab);
    ob_engine_info info;
    ob_ctx_describe(c, &info);
    ob_dev_info now;
    ob_ctx_dev(c)->api->describe(ob_ctx_dev(c), &now);
    if (gives_up != (strstr(now.reason, "on the CPU") != NULL)) {
        printf("reason: \"%s\"\n", now.reason);
        quit(5);
    }
    ob_ctx_free(c);
    float *want = logits_on(file, "npu-ref", &g);
    if (memcmp(got, want, (size_t)g.n * (size_t)g.n_vocab * sizeof *got) != 0) quit(3);
    if (g_warnings != gives_up) quit(4);
    const ob_npu_soft_counts left = ob_npu_soft_counts_get(ob_npu_soft_shared(&err));
    if (left.n_fds || left.n_bos || left.n_ctxs || left.n_maps || left.n_syncobjs) {
        printf("left: %d descriptors, %d buffers, %d contexts, %d maps, %d timelines\n", left.n_fds, left.n_bos, left.n_ctxs,
               left.n_maps, left.n_syncobjs);
        quit(6);
    }
    quit(0);
}

/* Once is retried and nobody sees it; twice, and the CPU goes on with the same numbers. */
static void test_faults(void **state)
{
    (void)state;
    with_fault("", NULL, "qwen2", false);
    with_fault("end:9:1:ERROR", NULL, "qwen2", false);
    with_fault("end:9:1:TIMEOUT", NULL, "qwen3moe", false);
    with_fault("suspend:7", NULL, "qwen2", false);
    with_fault("end:9:1:ERROR,end:10:1:ERROR,end:11:1:ERROR", NULL, "qwen2", true); /* the retry, too */
    with_fault("unplug:60", NULL, "qwen3moe", true);
}

/* ---- what a lost convention does --------------------------------------------------------------- */

FLIP(drop_embedding_scale, OB_OP_EMBED, true, op->p.embed.scale = 1.0f)
FLIP(drop_residual_scale, OB_OP_LINEAR, op->in[1] != OB_NONE, op->p.linear.scale = 1.0f)
FLIP(drop_logit_scale, OB_OP_LINEAR, op->out[0] == p->logits, op->p.linear.scale = 1.0f)
FLIP(turn_pairs, OB_OP_ROPE, true, op->p.rope.pairing = op->p.rope.pairing == OB_ROPE_NORM ? OB_ROPE_NEOX : OB_ROPE_NORM)
FLIP(drop_bias, OB_OP_LINEAR, op->w[4] != OB_NONE, op->w[4] = op->w[5] = op->w[6] = OB_NONE)
FLIP(drop_factors, OB_OP_ROPE, op->w[0] != OB_NONE, op->w[0] = OB_NONE)
FLIP(drop_expert_scale, OB_OP_MOE_ROUTE, op->p.route.scale != 1.0f, op->p.route.scale = 1.0f)

static bool drop_minicpm_scales(ob_op *op, ob_program *p)
{
    return drop_embedding_scale(op, p) | drop_residual_scale(op, p) | drop_logit_scale(op, p);
}

/* Logits [n][n_vocab] of a program on a device of its own, from one step. */
static float *run_program(const char *device, ob_program *p, const int32_t *tok, int32_t n, int32_t n_vocab)
{
    enum { PAGES = MAX_TOK / PAGE_TOK };
    ob_err err;
    ob_dev *d;
    ob_dev_plan *plan;
    ob_fence fence;
    int32_t pos[MAX_TOK], pages[PAGES];
    const int32_t first[2] = {0, n}, past = 0, slot = 0;
    ob_dev_weight **w = calloc((size_t)p->n_weights, sizeof *w);
    ob_dev_buf *k[64], *v[64], *states[64];
    const ob_dev_options opt = {.n_threads = 2};
    if (ob_dev_open(device, &opt, &d, &err) != OB_OK || ob_program_plan(p, n, n, 1, &err) != OB_OK) fail_msg("%s", err.text);
    assert_true(p->n_caches <= 64 && p->n_states <= 64);
    for (int32_t i = 0; i < p->n_weights; i++) {
        bool keeps;
        if (d->api->weight_new(d, &p->weights[i], &w[i], &keeps, &err) != OB_OK) fail_msg("%s", err.text);
    }
    for (int32_t i = 0; i < p->n_caches; i++) {
        const ob_cache_spec *c = &p->caches[i];
        assert_int_equal(d->api->buffer_new(d, (uint64_t)MAX_TOK * (uint64_t)c->n_head_kv * (uint64_t)c->k_dim * 4, 0, &k[i], &err), OB_OK);
        assert_int_equal(d->api->buffer_new(d, (uint64_t)MAX_TOK * (uint64_t)c->n_head_kv * (uint64_t)c->v_dim * 4 + 4, 0, &v[i], &err), OB_OK);
    }
    for (int32_t i = 0; i < p->n_states; i++)
        assert_int_equal(d->api->buffer_new(d, (uint64_t)p->states[i].n_floats * 4, OB_BUF_ZERO, &states[i], &err), OB_OK);
    const ob_plan_bindings b = {.weights = w, .cache_k = k, .cache_v = v, .k_type = OB_F32, .v_type = OB_F32, .page_tok = PAGE_TOK,
                                .n_pages = PAGES, .max_ctx = MAX_TOK, .states = states, .n_slots = 1};
    for (int32_t i = 0; i < n; i++) pos[i] = i;
    for (int32_t i = 0; i < PAGES; i++) pages[i] = i;
    const ob_step st = {.n_tok = n, .n_seq = 1, .n_out = n, .tok = tok, .pos = pos, .seq_first = first, .seq_past = &past,
                        .seq_slot = &slot, .page_table = pages, .max_pages = PAGES, .out_rows = pos};
    float *out = calloc((size_t)n * (size_t)n_vocab, sizeof *out);
    if (d->api->plan_new(d, p, &b, &plan, &err) != OB_OK || d->api->submit(d, plan, &st, &fence, &err) != OB_OK ||
        d->api->wait(d, fence, &err) != OB_OK || d->api->read_output(d, plan, p->logits, 0, n, out, &err) != OB_OK)
        fail_msg("%s", err.text);
    d->api->plan_free(d, plan);
    for (int32_t i = 0; i < p->n_weights; i++) d->api->weight_free(d, w[i]);
    for (int32_t i = 0; i < p->n_caches; i++) {
        d->api->buffer_free(d, k[i]);
        d->api->buffer_free(d, v[i]);
    }
    for (int32_t i = 0; i < p->n_states; i++) d->api->buffer_free(d, states[i]);
    ob_dev_close(d);
    free(w);
    return out;
}

typedef struct control {
    const char *model, *says; /* what the guard's text must name */
    flip_fn flip;
    bool other;               /* other tokens, too, not only other logits */
} control;

static const control k_controls[] = {
    {"minicpm-longrope", "embedding_scale", drop_minicpm_scales, true},
    {"minicpm-longrope", "embedding_scale", drop_embedding_scale, true},
    {"minicpm-longrope", "residual_scale", drop_residual_scale, false},
    {"minicpm-longrope", "logit_scale", drop_logit_scale, false}, /* the order stays */
    {"minicpm-longrope", "rope_factors", drop_factors, false},
    {"minicpm-longrope", "rotary pairs", turn_pairs, false},
    {"llama", "rotary pairs", turn_pairs, true},
    {"glm47flash", "rotary pairs", turn_pairs, true},
    {"glm47flash", "expert_weights_scale", drop_expert_scale, true},
    {"qwen2", "attn_q.bias", drop_bias, true},
};

/* Without the convention the device gives another answer, and the guard would not have let it come to that. */
static void test_control(void **state)
{
    const control *c = *state;
    enum { N = 60 };
    char path[512];
    ob_err err = {0};
    ob_file *f = NULL;
    ob_model *m = NULL;
    ob_program *p = NULL;
    golden g = load_golden(c->model);
    g.n = N;
    snprintf(path, sizeof path, "%s/golden/%s.gguf", OB_TEST_DATA, c->model);
    if (ob_file_open(path, 0, &f, &err) != OB_OK || ob_model_new(f, NULL, &m, &err) != OB_OK || ob_model_program(m, &p, &err) != OB_OK)
        fail_msg("%s", err.text);
    if (ob_model_guard(m, p, &err) != OB_OK) fail_msg("%s", err.text);
    float *right = run_program("npu-soft", p, g.tok, N, g.n_vocab);
    int n_flipped = 0;
    for (int32_t i = 0; i < p->n_ops; i++) n_flipped += c->flip(&p->ops[i], p);
    assert_true(n_flipped > 0);
    assert_int_equal(ob_model_guard(m, p, &err), OB_E_UNSUPPORTED);
    if (!strstr(err.text, c->says)) fail_msg("%s", err.text);
    float *wrong = run_program("npu-soft", p, g.tok, N, g.n_vocab);
    const distance with = distance_of(&g, right), without = distance_of(&g, wrong);
    print_message("  %-17s %-22s rms %.3f instead of %.3f, %d instead of %d other answers\n", c->model, c->says, without.rms, with.rms,
                  without.n_flips, with.n_flips);
    assert_true(without.rms > 3 * with.rms && (!c->other || without.n_flips > 2 * with.n_flips + 2));
    free(right);
    free(wrong);
    ob_program_free(p);
    ob_model_free(m);
    ob_file_close(f);
    npz_close(g.z);
}

/* Every file of the golden models passes the guard. */
static void test_guard_lets_models_pass(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "llama3rope", "qwen2", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "minicpm",
                                        "minicpm-longrope", "gemma3", "glm47flash", "deepseek3", "zaya", "deepseek4", "modern-bert",
                                        "bert", "laya", "modern-bert-cls", "smolvlm", "gemma3v", "qwen2vl"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        ob_err err;
        ob_file *f;
        ob_model *m;
        ob_program *p;
        snprintf(path, sizeof path, "%s/golden/%s.gguf", OB_TEST_DATA, names[i]);
        if (ob_file_open(path, 0, &f, &err) != OB_OK || ob_model_new(f, NULL, &m, &err) != OB_OK || ob_model_program(m, &p, &err) != OB_OK ||
            ob_model_guard(m, p, &err) != OB_OK)
            fail_msg("%s: %s", names[i], err.text);
        ob_program_free(p);
        ob_model_free(m);
        ob_file_close(f);
    }
}

/* ---- prompts on the NPU, tokens on the CPU ------------------------------------------------------ */

static void test_prefill_here_decode_there(void **state)
{
    (void)state;
    enum { N = 200, MORE = 5 };
    static const char *const names[] = {"llama", "qwen35moe", "glm47flash"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        golden g = load_golden(names[i]);
        char path[512];
        ob_err err;
        float *rows[2];
        for (int side = 0; side < 2; side++) { /* the prompt on the NPU, or on the arithmetic of one */
            ob_engine_params p = params(names[i], "cpu", path, sizeof path);
            p.prefill_device = side ? "npu-soft" : "npu-ref";
            p.prefill_min_tokens = 64;
            ob_ctx *c;
            ob_handover *h;
            ob_handover_report r = {0};
            ob_seq *s;
            const float *out;
            int32_t tok[N + MORE];
            for (int32_t t = 0; t < N + MORE; t++) tok[t] = g.tok[t % g.n];
            if (ob_ctx_new(&p, &c, &err) != OB_OK || ob_handover_new(&p, c, NULL, NULL, &h, &err) != OB_OK ||
                ob_ctx_seq_new(c, &s, &err) != OB_OK || ob_handover_run(h, c, s, tok, N, true, &r, &err) != OB_OK)
                fail_msg("%s: %s", names[i], err.text);
            assert_int_equal(r.n_handed, 192);
            rows[side] = calloc((size_t)g.n_vocab, sizeof(float));
            for (int32_t at = ob_seq_len(s); at < N + MORE; at++) {
                const ob_chunk ch = {.seq = s, .tok = tok + at, .n_tok = 1, .n_out = 1};
                if (ob_ctx_step(c, &ch, 1, &out, &err) != OB_OK) fail_msg("%s", err.text);
            }
            memcpy(rows[side], out, (size_t)g.n_vocab * sizeof *out);
            ob_ctx_seq_free(c, s);
            ob_handover_free(h);
            ob_ctx_free(c);
        }
        assert_memory_equal(rows[0], rows[1], (size_t)g.n_vocab * sizeof(float));
        free(rows[0]);
        free(rows[1]);
        npz_close(g.z);
    }
}

/* ---- devices by name ---------------------------------------------------------------------------- */

static void expect(const char *spec, ob_status want, const char *text)
{
    ob_dev *d = NULL;
    ob_err err = {0};
    const ob_status s = ob_dev_open(spec, NULL, &d, &err);
    ob_dev_info i = {0};
    if (d) d->api->describe(d, &i);
    if (d) ob_dev_close(d);
    if (s != want) fail_msg("%s: %s", spec, s == OB_OK ? "opens" : err.text);
    if (s == OB_OK) assert_true(i.caps & OB_DEV_SOFT);
    if (!strstr(s == OB_OK ? i.driver : err.text, text)) fail_msg("%s: \"%s\"", spec, s == OB_OK ? i.driver : err.text);
}

static void test_names(void **state)
{
    (void)state;
    expect("npu-soft", OB_OK, "in software");
    expect("npu-soft:npu4", OB_OK, "in software");
    expect("npu-soft:driver-0.16", OB_OK, "0.16");
    expect("npu-soft:iova", OB_OK, "in software");
    expect("npu-soft:driver-0.0", OB_E_UNSUPPORTED, "0.6");
    expect("npu-soft:npu1", OB_E_UNSUPPORTED, "XDNA");
    expect("npu-soft:nothing", OB_E_INVALID, "a name that is known");
    expect("npu-ref", OB_OK, "none");
    ob_err err;
    ob_dev *d;
    const ob_dev_options exact = {.exact = true};
    assert_int_equal(ob_dev_open("npu-soft", &exact, &d, &err), OB_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "--exact"));
}

int main(void)
{
    struct CMUnitTest tests[64] = {0};
    static char names[64][80];
    size_t n = 0;
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_faults); /* first: before this process has a software NPU */
    for (size_t i = 0; i < sizeof k_models / sizeof *k_models; i++)
        tests[n++] = (struct CMUnitTest){.name = k_models[i].name, .test_func = test_model, .initial_state = (void *)&k_models[i]};
    for (size_t i = 0; i < sizeof k_controls / sizeof *k_controls; i++) {
        snprintf(names[i], sizeof names[i], "%s without %s", k_controls[i].model, k_controls[i].says);
        tests[n++] = (struct CMUnitTest){.name = names[i], .test_func = test_control, .initial_state = (void *)&k_controls[i]};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_quantised);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_company);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_streamed_experts);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_guard_lets_models_pass);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_prefill_here_decode_there);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_names);
    if (getenv("OB_GOLDEN")) cmocka_set_test_filter(getenv("OB_GOLDEN"));
    return _cmocka_run_group_tests("npu_model", tests, n, make_cache, drop_cache);
}
