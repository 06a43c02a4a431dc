/* What a file says and what an architecture makes of it: refusals by name, defaults, choices by context.
 *
 * Golden files with a key renamed or added in memory. */
#include <math.h>

#include "base/alloc.h"
#include "graph/model.h"
#include "gguf_builder.h"
#include "test.h"

typedef struct world {
    ob_buf bytes;
    ob_file *file;
    ob_model *model;
    ob_program *prog;
    ob_err err;
} world;

static void load(world *w, const char *name)
{
    char path[512], chunk[65536];
    memset(w, 0, sizeof *w);
    ob_buf_init(&w->bytes, 16u << 20);
    snprintf(path, sizeof path, "%s/golden/%s.gguf", OB_TEST_DATA, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, f)) > 0;) ob_buf_add(&w->bytes, chunk, n);
    fclose(f);
}

/* Replace the first `from` (with its length before it, as GGUF has strings) by `to` of the same length. */
static void rename_string(world *w, const char *from, const char *to)
{
    const size_t n = strlen(from);
    assert_int_equal(strlen(to), n);
    for (size_t i = 8; i + n < w->bytes.len; i++) {
        uint64_t len;
        memcpy(&len, w->bytes.data + i - 8, 8);
        if (len != n || memcmp(w->bytes.data + i, from, n) != 0) continue;
        memcpy(w->bytes.data + i, to, n);
        return;
    }
    fail_msg("%s is not in the file", from);
}

/* A filler makes what was put in front of the other keys a multiple of the alignment. */
static void finish_insertion(world *w, ob_buf *b)
{
    uint64_t n_kv;
    char filler[64], name[16];
    const size_t left = 32 - (b->len - 24 + 8 + 11 + 4 + 8) % 32;
    memset(filler, 'x', left);
    filler[left] = 0;
    memcpy(&n_kv, b->data + 16, 8);
    n_kv += 2;
    memcpy(b->data + 16, &n_kv, 8);
    snprintf(name, sizeof name, "general.%03d", (int)n_kv);
    gb_kv_str(b, name, filler);
    assert_int_equal((b->len - 24) % 32, 0);
    ob_buf_add(b, w->bytes.data + 24, w->bytes.len - 24);
    ob_buf_deinit(&w->bytes);
    w->bytes = *b;
}

static void insert(world *w, const char *key, uint32_t type, const void *value)
{
    ob_buf b;
    ob_buf_init(&b, 17u << 20);
    ob_buf_add(&b, w->bytes.data, 24);
    gb_kv(&b, key, type, value, 4);
    finish_insertion(w, &b);
}

static void insert_str(world *w, const char *key, const char *value)
{
    ob_buf b;
    ob_buf_init(&b, 17u << 20);
    ob_buf_add(&b, w->bytes.data, 24);
    gb_kv_str(&b, key, value);
    finish_insertion(w, &b);
}

static void insert_u32(world *w, const char *key, uint32_t v) { insert(w, key, OB_KV_U32, &v); }
static void insert_f32(world *w, const char *key, float v) { insert(w, key, OB_KV_F32, &v); }

static ob_status build(world *w, int32_t n_ctx)
{
    if (ob_file_open_bytes(w->bytes.data, w->bytes.len, 0, &w->file, &w->err) != OB_OK) fail_msg("%s", w->err.text);
    const ob_model_options opt = {.n_ctx = n_ctx};
    ob_status s = ob_model_new(w->file, &opt, &w->model, &w->err);
    return s == OB_OK ? ob_model_program(w->model, &w->prog, &w->err) : s;
}

static void done(world *w)
{
    ob_program_free(w->prog);
    ob_model_free(w->model);
    ob_file_close(w->file);
    ob_buf_deinit(&w->bytes);
}

static const ob_op *find_op(const world *w, ob_op_kind kind, int nth)
{
    for (int32_t i = 0; i < w->prog->n_ops; i++)
        if (w->prog->ops[i].kind == kind && nth-- == 0) return &w->prog->ops[i];
    fail_msg("no op %s", ob_op_name(kind));
    return NULL;
}

static void want_refused(world *w, ob_status code, const char *named)
{
    const ob_status s = build(w, 0);
    if (s != code || !strstr(w->err.text, named)) fail_msg("status %d: %s", (int)s, w->err.text);
    done(w);
}

/* A scale, a soft cap, a window or a tensor that the architecture would not use. */
static void test_refused(void **state)
{
    (void)state;
    static const struct { const char *model, *key; } keys[] = {
        {"qwen2", "qwen2.final_logit_softcapping"}, {"llama", "llama.residual_scale"},
        {"llama", "llama.embedding_scale"},         {"qwen3", "qwen3.attention.sliding_window"},
        {"qwen3moe", "qwen3moe.router_logit_softcapping"}, {"gemma3", "gemma3.attn_logit_softcapping"},
        {"minicpm", "minicpm.attention.scale"},
    };
    world w;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        load(&w, keys[i].model);
        insert_f32(&w, keys[i].key, 2.0f);
        want_refused(&w, OB_E_UNSUPPORTED, keys[i].key);
    }
    load(&w, "qwen2");
    rename_string(&w, "blk.1.attn_k.bias", "blk.1.attn_k.bios");
    want_refused(&w, OB_E_UNSUPPORTED, "blk.1.attn_k.bios");
    load(&w, "qwen2");
    rename_string(&w, "blk.2.attn_k.weight", "blk.2.attn_z.weight");
    want_refused(&w, OB_E_FORMAT, "blk.2.attn_k.weight");
    load(&w, "qwen2");
    rename_string(&w, "qwen2", "qwen9");
    want_refused(&w, OB_E_UNSUPPORTED, "known: llama, qwen2, ");
    load(&w, "qwen3moe");
    insert_u32(&w, "qwen3moe.expert_gating_func", 3);
    want_refused(&w, OB_E_UNSUPPORTED, "expert_gating_func");
    load(&w, "llama");
    rename_string(&w, "llama.rope.freq_base", "llama.rope.freq_bass");
    want_refused(&w, OB_E_UNSUPPORTED, "llama.rope.freq_bass");
}

static void test_minicpm_defaults(void **state)
{
    (void)state;
    world w;
    load(&w, "minicpm");
    rename_string(&w, "minicpm.embedding_scale", "general.embedding_scale");
    rename_string(&w, "minicpm.residual_scale", "general.residual_scale");
    rename_string(&w, "minicpm.logit_scale", "general.logit_scale");
    if (build(&w, 0) != OB_OK) fail_msg("%s", w.err.text);
    assert_true(find_op(&w, OB_OP_EMBED, 0)->p.embed.scale == 12.0f);
    int n_res = 0;
    for (int32_t i = 0; i < w.prog->n_ops; i++) {
        const ob_op *op = &w.prog->ops[i];
        if (op->kind != OB_OP_LINEAR || op->in[1] == OB_NONE) continue;
        assert_true(fabsf(op->p.linear.scale - 1.4f / sqrtf(3.0f)) < 1e-7f);
        n_res++;
    }
    assert_int_equal(n_res, 6);
    /* logits / (64 / 256), not times it */
    assert_true(w.prog->ops[w.prog->n_ops - 1].p.linear.scale == 4.0f);
    done(&w);
}

static void test_gating_default(void **state)
{
    (void)state;
    world w;
    load(&w, "glm47flash");
    rename_string(&w, "deepseek2.expert_gating_func", "general.z.expert_gating_func");
    if (build(&w, 0) != OB_OK) fail_msg("%s", w.err.text);
    assert_int_equal(find_op(&w, OB_OP_MOE_ROUTE, 0)->p.route.gating, OB_GATING_SOFTMAX);
    done(&w);
}

static void want_factors(int32_t n_ctx, const char *name)
{
    world w;
    load(&w, "minicpm-longrope");
    if (build(&w, n_ctx) != OB_OK) fail_msg("%s", w.err.text);
    assert_string_equal(w.prog->weights[find_op(&w, OB_OP_ROPE, 0)->w[0]].name, name);
    done(&w);
}

/* By the configured context, not by what is in it; 0 is the model's own (512, the original one is 64). */
static void test_longrope(void **state)
{
    (void)state;
    want_factors(64, "rope_factors_short.weight");
    want_factors(65, "rope_factors_long.weight");
    want_factors(0, "rope_factors_long.weight");
}

/* The last block of the file, here an ordinary one, is taken for multi-token prediction and left out. */
static void test_prediction_blocks(void **state)
{
    (void)state;
    static const struct { const char *model, *key; int n_layer; } c[] = {
        {"deepseek3", "deepseek2.nextn_predict_layers", 2}, {"qwen35moe", "qwen35moe.nextn_predict_layers", 3}};
    for (size_t i = 0; i < 2; i++) {
        world w;
        int32_t last = 0;
        load(&w, c[i].model);
        insert_u32(&w, c[i].key, 1);
        if (build(&w, 0) != OB_OK) fail_msg("%s", w.err.text);
        for (int32_t k = 0; k < w.prog->n_ops; k++)
            if (w.prog->ops[k].layer > last) last = w.prog->ops[k].layer;
        assert_int_equal(last, c[i].n_layer - 1);
        done(&w);
    }
}

/* YaRN in deepseek2 leaves the rotation's magnitude alone and scales the scores (compared with llama.cpp on
 * the same file: perplexity equal to seven digits). */
static void test_deepseek_yarn(void **state)
{
    (void)state;
    world w;
    load(&w, "deepseek3");
    insert_str(&w, "deepseek2.rope.scaling.type", "yarn");
    insert_f32(&w, "deepseek2.rope.scaling.factor", 8.0f);
    insert_f32(&w, "deepseek2.rope.scaling.yarn_log_multiplier", 0.1f);
    if (build(&w, 0) != OB_OK) fail_msg("%s", w.err.text);
    const ob_op *rope = find_op(&w, OB_OP_ROPE, 0);
    assert_true(rope->p.rope.freq_scale == 0.125f && rope->p.rope.attn_factor == 1.0f);
    const float mscale = 1.0f + 0.1f * logf(8.0f);
    assert_true(fabsf(find_op(&w, OB_OP_ATTENTION, 0)->p.attn.scale - mscale * mscale / sqrtf(40.0f)) < 1e-6f);
    done(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_minicpm_defaults),  cmocka_unit_test(test_gating_default),
        cmocka_unit_test(test_longrope), cmocka_unit_test(test_prediction_blocks), cmocka_unit_test(test_deepseek_yarn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
