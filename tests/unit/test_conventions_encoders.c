/* Negative controls of the encoders: flip one convention in a built program, and the golden vectors or scores
 * must no longer match. Programs run by the reference ops alone. See test_conventions.c. */
#include "ref_run.h"

/* ------------------------------------------------------------------ flips */

static const ob_op *maker_of(const ob_program *p, ob_val v, const ob_op *before)
{
    const ob_op *found = NULL;
    for (const ob_op *o = p->ops; o < before; o++)
        for (int k = 0; k < OB_OP_MAX_OUT; k++)
            if (o->out[k] == v) found = o;
    return found;
}

static bool made_by(const ob_program *p, const ob_op *op, ob_val v, ob_op_kind kind)
{
    const ob_op *maker = v == OB_NONE ? NULL : maker_of(p, v, op);
    return maker && maker->kind == kind;
}

static float window_base(const ob_program *p) /* of the local layers: the smallest */
{
    float base = INFINITY;
    for (int32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OB_OP_ROPE) base = fminf(base, p->ops[i].p.rope.base);
    return base;
}

FLIP(gelu_tanh, OB_OP_ACT, op->p.act.act == OB_ACT_GELU_ERF, op->p.act.act = OB_ACT_GELU_TANH)
FLIP(glu_gelu_tanh, OB_OP_GLU, op->p.glu.act == OB_ACT_GELU_ERF, op->p.glu.act = OB_ACT_GELU_TANH)
FLIP(glu_silu, OB_OP_GLU, true, op->p.glu.act = OB_ACT_SILU)
FLIP(glu_order, OB_OP_GLU, true, ob_val v = op->in[0]; op->in[0] = op->in[1]; op->in[1] = v)
FLIP(relu, OB_OP_ACT, op->p.act.act == OB_ACT_RELU, op->p.act.act = OB_ACT_GELU_ERF)
FLIP(causal, OB_OP_ATTENTION, true, op->p.attn.causal = true)
FLIP(attention_scale, OB_OP_ATTENTION, true, op->p.attn.scale *= 1.25f)
FLIP(window_none, OB_OP_ATTENTION, op->p.attn.window > 0, op->p.attn.window = 0)
FLIP(window_by_one, OB_OP_ATTENTION, op->p.attn.window > 0, op->p.attn.window += 2) /* one more on each side */
FLIP(window_everywhere, OB_OP_ATTENTION, op->p.attn.window == 0, op->p.attn.window = 32)
FLIP(rope_pairing, OB_OP_ROPE, true, op->p.rope.pairing = OB_ROPE_NORM)
FLIP(rope_global_base, OB_OP_ROPE, op->p.rope.base > window_base(p), op->p.rope.base = window_base(p))
FLIP(rope_local_base, OB_OP_ROPE, op->p.rope.base == window_base(p), op->p.rope.base = 160000.0f)
FLIP(position_row, OB_OP_ADD_ROW, op->p.add_row.by == OB_ROW_OF_POSITION, op->p.add_row.by = OB_ROW_OF_TYPE)
FLIP(type_row, OB_OP_ADD_ROW, op->p.add_row.by == OB_ROW_OF_TYPE,
     float *w = own_weight(p, op->w[0]); memset(w, 0, p->weights[op->w[0]].n_bytes))
FLIP(norm_kind, OB_OP_LAYER_NORM, true, op->kind = OB_OP_RMS_NORM; op->w[1] = OB_NONE)
FLIP(norm_bias, OB_OP_LAYER_NORM, op->w[1] != OB_NONE, op->w[1] = OB_NONE)
FLIP(norm_eps, OB_OP_LAYER_NORM, true, op->p.norm.eps = 1e-2f)
FLIP(linear_bias, OB_OP_LINEAR, op->w[4] != OB_NONE, op->w[4] = op->w[5] = op->w[6] = OB_NONE)
/* Post-norm: the residual is the normed vector. Pre-norm would take the one before its norm. */
FLIP(residual_before_norm, OB_OP_LINEAR, made_by(p, op, op->in[1], OB_OP_LAYER_NORM),
     op->in[1] = maker_of(p, op->in[1], op)->in[0])
/* Pre-norm: what a block reads is normed, the first layer's attention apart. */
FLIP(block_without_norm, OB_OP_LINEAR, op->layer > 0 && made_by(p, op, op->in[0], OB_OP_LAYER_NORM),
     op->in[0] = maker_of(p, op->in[0], op)->in[0])
FLIP(final_norm, OB_OP_LAYER_NORM, op->layer < 0 && op > p->ops + p->n_ops / 2, op->w[0] = OB_NONE)
FLIP(pooling_kind, OB_OP_POOL, true, op->p.pool.mode = op->p.pool.mode == OB_POOLING_CLS ? OB_POOLING_MEAN : OB_POOLING_CLS)
FLIP(pooling_last, OB_OP_POOL, true, op->p.pool.mode = OB_POOLING_LAST)

/* q, k and v of the joined matrix in another order: the values where the queries are. */
FLIP(qkv_order, OB_OP_LINEAR, op->p.linear.n_mat == 3, int32_t w = op->w[0]; op->w[0] = op->w[2]; op->w[2] = w)

/* ------------------------------------------------------------------ what is compared */

typedef enum what { TOKENS, MEAN, CLS, CLASSES, MARKS } what;

typedef struct control {
    const char *model;
    what what;
    const char *name;
    flip_fn flip; /* NULL: as it is, it must match */
} control;

#define C(model, what, flip) {model, what, #flip, flip}
#define AS_IT_IS(model, what) {model, what, "as it is " #what, NULL}
static const control k_controls[] = {
    AS_IT_IS("bert", TOKENS),               AS_IT_IS("bert", MEAN),                AS_IT_IS("bert", CLS),
    C("bert", TOKENS, gelu_tanh),           C("bert", TOKENS, causal),             C("bert", TOKENS, attention_scale),
    C("bert", TOKENS, position_row),        C("bert", TOKENS, type_row),           C("bert", TOKENS, norm_kind),
    C("bert", TOKENS, norm_bias),           C("bert", TOKENS, norm_eps),           C("bert", TOKENS, linear_bias),
    C("bert", TOKENS, residual_before_norm), C("bert", TOKENS, qkv_order),
    C("bert", MEAN, pooling_kind),          C("bert", CLS, pooling_kind),          C("bert", MEAN, pooling_last),

    AS_IT_IS("modern-bert", TOKENS),        AS_IT_IS("modern-bert", MEAN),         AS_IT_IS("modern-bert", CLS),
    C("modern-bert", TOKENS, glu_gelu_tanh), C("modern-bert", TOKENS, glu_silu),   C("modern-bert", TOKENS, glu_order),
    C("modern-bert", TOKENS, causal),       C("modern-bert", TOKENS, attention_scale),
    C("modern-bert", TOKENS, window_none),  C("modern-bert", TOKENS, window_by_one),
    C("modern-bert", TOKENS, window_everywhere),
    C("modern-bert", TOKENS, rope_pairing), C("modern-bert", TOKENS, rope_global_base),
    C("modern-bert", TOKENS, rope_local_base), C("modern-bert", TOKENS, norm_kind),
    C("modern-bert", TOKENS, norm_eps),     C("modern-bert", TOKENS, block_without_norm),
    C("modern-bert", TOKENS, final_norm),   C("modern-bert", TOKENS, qkv_order),
    C("modern-bert", MEAN, pooling_kind),   C("modern-bert", CLS, pooling_kind),

    AS_IT_IS("modern-bert-cls", CLASSES),   C("modern-bert-cls", CLASSES, pooling_kind),
    C("modern-bert-cls", CLASSES, pooling_last), C("modern-bert-cls", CLASSES, gelu_tanh),
    C("modern-bert-cls", CLASSES, final_norm), C("modern-bert-cls", CLASSES, linear_bias),
    C("modern-bert-cls", CLASSES, window_none), C("modern-bert-cls", CLASSES, rope_pairing),

    AS_IT_IS("laya", MARKS),                C("laya", MARKS, type_row),            C("laya", MARKS, relu),
    C("laya", MARKS, gelu_tanh),            C("laya", MARKS, final_norm),          C("laya", MARKS, block_without_norm),
    C("laya", MARKS, causal),               C("laya", MARKS, window_none),         C("laya", MARKS, rope_pairing),
    C("laya", MARKS, linear_bias),
};

/* ------------------------------------------------------------------ running */

typedef struct golden {
    npz *z;
    const int32_t *tok;
    int32_t n;
    double atol;
} golden;

static double unit_diff(const float *a, const float *unit, int32_t n) /* `unit` has length 1 */
{
    double len = 0, d = 0;
    for (int32_t i = 0; i < n; i++) len += (double)a[i] * (double)a[i];
    len = sqrt(len);
    for (int32_t i = 0; i < n; i++) d = fmax(d, fabs((double)a[i] / len - (double)unit[i]));
    return d;
}

static double of_classes(ob_program *p, const golden *g)
{
    const int32_t *starts = npz_need(g->z, "starts", NPZ_I32)->data, *lengths = npz_need(g->z, "lengths", NPZ_I32)->data;
    const npz_array *want = npz_need(g->z, "logits", NPZ_F32);
    const int32_t n_class = (int32_t)want->shape[1];
    double d = 0;
    for (int32_t i = 0; i < (int32_t)want->shape[0]; i++) {
        run r;
        run_new(&r, p, lengths[i]);
        const float *y = run_text(&r, g->tok + starts[i], lengths[i], NULL, 0, 0);
        d = fmax(d, worst_of(y, (const float *)want->data + i * n_class, n_class));
        run_free(&r);
    }
    return d;
}

static double of_marks(ob_program *p, const golden *g)
{
    const npz_array *marks = npz_need(g->z, "marks", NPZ_I32), *want = npz_need(g->z, "logits", NPZ_F32);
    const int32_t n_mark = (int32_t)marks->n_items;
    double d = 0;
    for (int32_t type = 0; type < (int32_t)want->shape[0]; type++) {
        run r;
        run_new(&r, p, g->n);
        const float *y = run_text(&r, g->tok, g->n, marks->data, n_mark, type);
        d = fmax(d, worst_of(y, (const float *)want->data + type * n_mark, n_mark));
        run_free(&r);
    }
    return d;
}

static double of_vectors(ob_program *p, const golden *g, what kind)
{
    static const char *const keys[] = {[TOKENS] = "embeddings", [MEAN] = "mean", [CLS] = "cls"};
    const npz_array *want = npz_need(g->z, keys[kind], NPZ_F32);
    run r;
    run_new(&r, p, g->n);
    const float *y = run_text(&r, g->tok, g->n, NULL, 0, 0);
    const double d = kind == TOKENS ? worst_of(y, want->data, want->n_items)
                                    : unit_diff(y, want->data, (int32_t)want->n_items);
    run_free(&r);
    return d;
}

static void test_control(void **state)
{
    static const ob_pooling pooling[] = {[TOKENS] = OB_POOLING_NONE, [MEAN] = OB_POOLING_MEAN, [CLS] = OB_POOLING_CLS};
    const control *c = *state;
    char path[512];
    ob_err err;
    ob_file *f = NULL;
    ob_model *m = NULL;
    ob_program *p = NULL;
    ob_model_options opt = {.embed = c->what <= CLS};
    if (opt.embed) opt.pooling = pooling[c->what];
    snprintf(path, sizeof path, "%s/golden/%s.gguf", OB_TEST_DATA, c->model);
    if (ob_file_open(path, 0, &f, &err) != OB_OK || ob_model_new(f, &opt, &m, &err) != OB_OK ||
        ob_model_program(m, &p, &err) != OB_OK)
        fail_msg("%s: %s", c->model, err.text);
    snprintf(path, sizeof path, "%s/golden/%s.npz", OB_TEST_DATA, c->model);
    golden g = {.z = npz_open(path)};
    assert_non_null(g.z);
    const npz_array *tok = npz_need(g.z, "tokens", NPZ_I32);
    g.tok = tok->data;
    g.n = (int32_t)tok->n_items;
    g.atol = (double)*(const float *)npz_need(g.z, "atol", NPZ_F32)->data;
    int n_flipped = 0;
    /* From the end: a flip that looks at what made its input sees the program as it was. */
    for (int32_t i = p->n_ops; c->flip && i-- > 0;) n_flipped += c->flip(&p->ops[i], p);
    if (c->flip) assert_true(n_flipped > 0);
    const double d = c->what == CLASSES ? of_classes(p, &g) : c->what == MARKS ? of_marks(p, &g) : of_vectors(p, &g, c->what);
    if (getenv("OB_GOLDEN_PRINT")) printf("  %-18s %-26s %.2e\n", c->model, c->name, d);
    if (!c->flip && !(d <= g.atol)) fail_msg("%s by the references: off by %g, allowed %g", c->model, d, g.atol);
    /* Ten times: no doubt that the golden test fails. */
    if (c->flip && !(d > 10 * g.atol)) fail_msg("%s with another %s: off by %g only", c->model, c->name, d);
    npz_close(g.z);
    ob_program_free(p);
    own_weights_free();
    ob_model_free(m);
    ob_file_close(f);
}

/* Texts that share a step must not see each other (what a mask of padding does elsewhere): taken for one text,
 * two halves give other vectors than each alone. */
static void test_texts_are_apart(void **state)
{
    (void)state;
    static const char *const models[] = {"bert", "modern-bert"};
    for (int i = 0; i < 2; i++) {
        char path[512];
        ob_err err;
        ob_file *f = NULL;
        ob_model *m = NULL;
        ob_program *p = NULL;
        const ob_model_options opt = {.embed = true, .pooling = OB_POOLING_NONE};
        int32_t tok[24];
        for (int32_t k = 0; k < 24; k++) tok[k] = 5 + 13 * k;
        snprintf(path, sizeof path, "%s/golden/%s.gguf", OB_TEST_DATA, models[i]);
        if (ob_file_open(path, 0, &f, &err) != OB_OK || ob_model_new(f, &opt, &m, &err) != OB_OK ||
            ob_model_program(m, &p, &err) != OB_OK)
            fail_msg("%s: %s", models[i], err.text);
        run alone, both;
        run_new(&alone, p, 24);
        const int32_t d = ob_model_hparams(m)->n_embd;
        float first[12 * 64];
        assert_int_equal(d, 64);
        memcpy(first, run_text(&alone, tok, 12, NULL, 0, 0), sizeof first);
        run_free(&alone);
        run_new(&both, p, 24);
        assert_true(worst_of(run_text(&both, tok, 24, NULL, 0, 0), first, 12 * d) > 1e-2);
        run_free(&both);
        ob_program_free(p);
        ob_model_free(m);
        ob_file_close(f);
    }
}

int main(void)
{
    enum { N = sizeof k_controls / sizeof *k_controls };
    static char names[N][80];
    struct CMUnitTest tests[N + 1];
    for (size_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "%s: %s", k_controls[i].model, k_controls[i].name);
        tests[i] = (struct CMUnitTest){.name = names[i], .test_func = test_control,
                                       .initial_state = (void *)&k_controls[i]};
    }
    tests[N] = (struct CMUnitTest)cmocka_unit_test(test_texts_are_apart);
    if (getenv("OB_GOLDEN")) cmocka_set_test_filter(getenv("OB_GOLDEN"));
    return _cmocka_run_group_tests("conventions of encoders", tests, N + 1, NULL, NULL);
}
