/* Negative controls: flip one convention in a built program, and the golden logits must no longer match.
 *
 * Programs run by the reference ops alone (ops/ref.h). So this also shows that the references by
 * themselves give the golden logits, and that each test of test_golden.c can fail. */
#include "ref_run.h"

/* ------------------------------------------------------------------ flips */

FLIP(rope_pairing, OB_OP_ROPE, true, op->p.rope.pairing = op->p.rope.pairing == OB_ROPE_NORM ? OB_ROPE_NEOX : OB_ROPE_NORM)
FLIP(rope_factors, OB_OP_ROPE, op->w[0] != OB_NONE, op->w[0] = OB_NONE)
FLIP(rope_magnitude, OB_OP_ROPE, op->p.rope.attn_factor != 1.0f, op->p.rope.attn_factor = 1.0f)
FLIP(rope_local_base, OB_OP_ROPE, op->p.rope.base == 10000.0f, op->p.rope.base = 1e6f)
FLIP(rope_whole_head, OB_OP_ROPE, op->p.rope.n_rot < op->p.rope.head_dim && op->p.rope.rot_off == 0,
     op->p.rope.n_rot = op->p.rope.head_dim)
FLIP(rope_offset, OB_OP_ROPE, op->p.rope.rot_off != 0, op->p.rope.rot_off = 0)
FLIP(rope_not_back, OB_OP_ROPE, op->p.rope.inverse, op->p.rope.inverse = false)
FLIP(rope_compressed_base, OB_OP_ROPE, op->p.rope.base == 160000.0f, op->p.rope.base = 10000.0f)
FLIP(attention_scale, OB_OP_ATTENTION, true, op->p.attn.scale *= 1.25f)
FLIP(attention_scale_of_latent, OB_OP_ATTENTION, true, op->p.attn.scale = 1.0f / sqrtf((float)op->p.attn.k_dim))
FLIP(attention_window, OB_OP_ATTENTION, op->p.attn.window > 0, op->p.attn.window = 0)
FLIP(attention_window_by_one, OB_OP_ATTENTION, op->p.attn.window > 0, op->p.attn.window++)
FLIP(bias, OB_OP_LINEAR, op->w[4] != OB_NONE, op->w[4] = op->w[5] = op->w[6] = OB_NONE)
FLIP(residual_scale, OB_OP_LINEAR, op->in[1] != OB_NONE, op->p.linear.scale = 1.0f)
FLIP(logit_scale, OB_OP_LINEAR, op->out[0] == p->logits, op->p.linear.scale = 1.0f)
FLIP(logit_scale_inverse, OB_OP_LINEAR, op->out[0] == p->logits, op->p.linear.scale = 1.0f / op->p.linear.scale)
FLIP(embedding_scale, OB_OP_EMBED, true, op->p.embed.scale = 1.0f)
FLIP(head_norm, OB_OP_RMS_NORM, op->p.norm.group > 0, op->w[0] = OB_NONE)
FLIP(norm_eps, OB_OP_RMS_NORM, true, op->p.norm.eps *= 100.0f)
FLIP(norm_weight, OB_OP_RMS_NORM, op->p.norm.group == 0, op->w[0] = OB_NONE)
FLIP(gelu_erf, OB_OP_GLU, op->p.glu.act == OB_ACT_GELU_TANH, op->p.glu.act = OB_ACT_GELU_ERF)
FLIP(glu_act, OB_OP_GLU, true, op->p.glu.act = OB_ACT_GELU_TANH)
FLIP(glu_clamp, OB_OP_GLU, op->p.glu.clamp > 0, op->p.glu.clamp = 0)
FLIP(expert_clamp, OB_OP_MOE_GLU, op->p.moe.clamp > 0, op->p.moe.clamp = 0)
FLIP(expert_norm, OB_OP_MOE_ROUTE, true, op->p.route.norm = !op->p.route.norm)
FLIP(expert_scale, OB_OP_MOE_ROUTE, op->p.route.scale != 1.0f, op->p.route.scale = 1.0f)
FLIP(expert_gating, OB_OP_MOE_ROUTE, true,
     op->p.route.gating = op->p.route.gating == OB_GATING_SOFTMAX ? OB_GATING_SIGMOID : OB_GATING_SOFTMAX)
FLIP(expert_bias, OB_OP_MOE_ROUTE, op->w[0] != OB_NONE, op->w[0] = OB_NONE)
FLIP(expert_groups, OB_OP_MOE_ROUTE, op->p.route.n_group > 1, op->p.route.n_group = op->p.route.n_group_used = 1)
FLIP(expert_hash, OB_OP_MOE_ROUTE, op->w[1] != OB_NONE, op->w[1] = OB_NONE)
FLIP(gdn_head_order, OB_OP_GDN, true, op->p.gdn.tiled = !op->p.gdn.tiled)
FLIP(conv_silu, OB_OP_CONV1D, true, op->p.conv.act = OB_ACT_NONE)
FLIP(shared_gate, OB_OP_GATE, op->in[2] != OB_NONE, op->kind = OB_OP_ADD;
     op->in[1] = op->in[0]; op->in[0] = op->in[2]; op->in[2] = OB_NONE; op->p.add.scale = 1.0f)
FLIP(attention_gate, OB_OP_GATE, op->in[2] == OB_NONE, op->kind = OB_OP_SCALE; op->in[1] = OB_NONE;
     op->p.scale.scale = 1.0f; op->p.scale.softcap = 0)
FLIP(router_state, OB_OP_AFFINE, op->w[0] == OB_NONE && op->w[2] != OB_NONE, op->in[1] = OB_NONE)
FLIP(affine_offset, OB_OP_AFFINE, op->w[1] != OB_NONE, op->w[1] = OB_NONE)
FLIP(affine_factor, OB_OP_AFFINE, op->w[0] != OB_NONE, op->w[0] = OB_NONE)
FLIP(sinkhorn, OB_OP_HC_MIX, true, op->p.hc.n_iter = 1)
FLIP(csa_top_k, OB_OP_CSA, op->in[4] != OB_NONE, op->p.csa.top_k = 1 << 20)
FLIP(csa_window, OB_OP_CSA, true, op->p.csa.window--)
FLIP(csa_rope, OB_OP_CSA, op->p.csa.ratio > 0, op->p.csa.rope.base = 10000.0f)
FLIP(csa_scale, OB_OP_CSA, true, op->p.csa.scale *= 1.25f)
FLIP(csa_sinks, OB_OP_CSA, true, memset(own_weight(p, op->w[0]), 0, p->weights[op->w[0]].n_bytes))
FLIP(hc_streams, OB_OP_HC_POST, true, op->kind = OB_OP_SCALE;
     op->in[0] = op->in[1]; op->in[1] = op->in[2] = OB_NONE; op->p.scale.scale = 1.0f; op->p.scale.softcap = 0)
FLIP(expert_order, OB_OP_MOE_GLU, op->w[1] != OB_NONE, int32_t w = op->w[0]; op->w[0] = op->w[1]; op->w[1] = w)
FLIP(gdn_decay, OB_OP_GDN, true, float *a = own_weight(p, op->w[1]);
     for (int32_t i = 0; i < op->p.gdn.n_head_v; i++) a[i] = -expf(a[i])) /* as if the file had log(-a) */
FLIP(gdn_eps, OB_OP_GDN, true, op->p.gdn.eps = 1e-2f)
FLIP(dense_gelu, OB_OP_ACT, op->p.act.act == OB_ACT_GELU_ERF, op->p.act.act = OB_ACT_SILU)

/* The choice "no expert" is never made: the balancing bias of the last class as low as can be. */
FLIP(skip_expert, OB_OP_MOE_ROUTE, op->w[0] != OB_NONE,
     own_weight(p, op->w[0])[p->weights[op->w[0]].ne[0] - 1] = -1e9f)

/* Norms as the checkpoint stores them, w instead of 1 + w. */
FLIP(norm_plus_one, OB_OP_RMS_NORM, op->w[0] != OB_NONE, float *w = own_weight(p, op->w[0]);
     for (int64_t i = 0; i < p->weights[op->w[0]].ne[0]; i++) w[i] -= 1.0f)

typedef struct control {
    const char *model;
    const char *what;
    flip_fn flip; /* NULL: the program as it is must match */
} control;

#define C(model, flip) {model, #flip, flip}
static const control k_controls[] = {
    {"llama", "as it is", NULL},            C("llama", rope_pairing), C("llama", attention_scale), C("llama", glu_act),
    C("llama", norm_eps),                   {"llama3rope", "as it is", NULL}, C("llama3rope", rope_factors),
    {"qwen2", "as it is", NULL},            C("qwen2", rope_pairing), C("qwen2", bias),
    {"qwen3", "as it is", NULL},            C("qwen3", rope_pairing), C("qwen3", head_norm),
    C("llama3rope", rope_pairing),
    {"qwen3moe", "as it is", NULL},         C("qwen3moe", expert_norm), C("qwen3moe", expert_gating),
    C("qwen3moe", rope_pairing),            C("qwen3moe", head_norm), C("qwen3moe", expert_order),
    {"minicpm", "as it is", NULL},          C("minicpm", rope_pairing), C("minicpm", embedding_scale),
    C("minicpm", residual_scale),           C("minicpm", logit_scale), C("minicpm", logit_scale_inverse),
    {"minicpm-longrope", "as it is", NULL}, C("minicpm-longrope", rope_factors), C("minicpm-longrope", rope_magnitude),
    C("minicpm-longrope", rope_pairing),    C("minicpm-longrope", embedding_scale),
    {"gemma3", "as it is", NULL},           C("gemma3", norm_plus_one), C("gemma3", attention_window), C("gemma3", attention_window_by_one),
    C("gemma3", rope_local_base),           C("gemma3", embedding_scale), C("gemma3", gelu_erf),
    C("gemma3", head_norm),                 C("gemma3", norm_weight), C("gemma3", rope_pairing),
    {"glm47flash", "as it is", NULL},       C("glm47flash", rope_pairing), C("glm47flash", rope_offset),
    C("glm47flash", attention_scale_of_latent), C("glm47flash", expert_bias), C("glm47flash", expert_scale),
    C("glm47flash", expert_norm),           C("glm47flash", expert_gating),
    {"deepseek3", "as it is", NULL},        C("deepseek3", rope_pairing), C("deepseek3", rope_offset),
    C("deepseek3", expert_scale),           C("deepseek3", expert_norm), C("deepseek3", expert_gating),
    C("deepseek3", expert_groups), C("deepseek3", expert_bias),
    {"qwen35", "as it is", NULL},           C("qwen35", gdn_head_order), C("qwen35", conv_silu),
    C("qwen35", rope_whole_head),           C("qwen35", attention_gate), C("qwen35", head_norm),
    C("qwen35", rope_pairing),              C("qwen35", gdn_decay), C("qwen35", gdn_eps),
    C("qwen35", norm_weight),
    {"qwen35moe", "as it is", NULL},        C("qwen35moe", rope_pairing), C("qwen35moe", gdn_head_order),
    C("qwen35moe", shared_gate), C("qwen35moe", expert_norm),
    {"zaya", "as it is", NULL},             C("zaya", rope_pairing), C("zaya", skip_expert), C("zaya", dense_gelu),
    C("zaya", rope_whole_head), C("zaya", expert_bias), C("zaya", expert_norm),
    C("zaya", router_state),                C("zaya", affine_offset), C("zaya", affine_factor),
    {"deepseek4", "as it is", NULL},        C("deepseek4", rope_pairing), C("deepseek4", rope_not_back),
    C("deepseek4", rope_compressed_base),   C("deepseek4", expert_hash), C("deepseek4", expert_bias),
    C("deepseek4", expert_scale),           C("deepseek4", expert_clamp), C("deepseek4", glu_clamp),
    C("deepseek4", sinkhorn),               C("deepseek4", csa_top_k), C("deepseek4", csa_window),
    C("deepseek4", csa_rope),               C("deepseek4", csa_scale), C("deepseek4", csa_sinks),
    C("deepseek4", hc_streams),
    C("deepseek4", expert_norm),            C("deepseek4", expert_gating),
};

/* Positions that no f32 engine can be held to: see test_golden.c. */
static bool ill_conditioned(const char *model, int32_t t) { return !strcmp(model, "qwen35moe") && (t == 12 || t == 39); }

static double worst(const control *c, const float *a, const float *b, int32_t n, int32_t n_vocab)
{
    double d = 0;
    for (int32_t t = 0; t < n; t++)
        for (int32_t i = 0; i < n_vocab && !ill_conditioned(c->model, t); i++) {
            const double x = fabs((double)a[t * n_vocab + i] - (double)b[t * n_vocab + i]);
            if (!(x <= d)) d = isnan(x) ? INFINITY : x;
        }
    return d;
}

static void test_control(void **state)
{
    const control *c = *state;
    char path[512];
    ob_err err;
    ob_file *f = NULL;
    ob_model *m = NULL;
    ob_program *p = NULL;
    snprintf(path, sizeof path, "%s/golden/%s.gguf", OB_TEST_DATA, c->model);
    if (ob_file_open(path, 0, &f, &err) != OB_OK || ob_model_new(f, NULL, &m, &err) != OB_OK ||
        ob_model_program(m, &p, &err) != OB_OK)
        fail_msg("%s: %s", c->model, err.text);
    snprintf(path, sizeof path, "%s/golden/%s.npz", OB_TEST_DATA, c->model);
    npz *z = npz_open(path);
    assert_non_null(z);
    const npz_array *tok = npz_need(z, "tokens", NPZ_I32), *logits = npz_need(z, "logits", NPZ_F32);
    const npz_array *a = npz_get(z, "atol");
    const double atol = a->dtype == NPZ_F32 ? (double)*(const float *)a->data : *(const double *)a->data;
    int n_flipped = 0;
    for (int32_t i = 0; c->flip && i < p->n_ops; i++) n_flipped += c->flip(&p->ops[i], p);
    if (c->flip) assert_true(n_flipped > 0);
    run r;
    run_new(&r, p, (int32_t)tok->shape[0]);
    const double d = worst(c, run_text(&r, tok->data, (int32_t)tok->shape[0], NULL, 0, 0), logits->data,
                           (int32_t)tok->shape[0], (int32_t)logits->shape[1]);
    if (getenv("OB_GOLDEN_PRINT")) printf("  %-18s %-26s %.2e\n", c->model, c->what, d);
    if (!c->flip && !(d <= atol)) fail_msg("%s by the references: off by %g, allowed %g", c->model, d, atol);
    /* Ten times: no doubt that the golden test fails. */
    if (c->flip && !(d > 10 * atol)) fail_msg("%s with another %s: off by %g only", c->model, c->what, d);
    run_free(&r);
    npz_close(z);
    ob_program_free(p);
    own_weights_free();
    ob_model_free(m);
    ob_file_close(f);
}

int main(void)
{
    enum { N = sizeof k_controls / sizeof *k_controls };
    static char names[N][80];
    struct CMUnitTest tests[N];
    for (size_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "%s: %s", k_controls[i].model, k_controls[i].what);
        tests[i] = (struct CMUnitTest){.name = names[i], .test_func = test_control,
                                       .initial_state = (void *)&k_controls[i]};
    }
    if (getenv("OB_GOLDEN")) cmocka_set_test_filter(getenv("OB_GOLDEN"));
    return _cmocka_run_group_tests("conventions", tests, N, NULL, NULL);
}
