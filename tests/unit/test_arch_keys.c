/* What a file says and what an architecture makes of it: refusals by name, defaults, choices by context.
 *
 * Golden files with a key renamed or added in memory. */
#include <math.h>

#include "base/alloc.h"
#include "base/math.h"
#include "graph/model.h"
#include "ops/ref.h"
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

/* Tensors renamed; their data stays where it is. */
static void rename_tensors(world *w, const char *const (*names)[2], size_t n)
{
    ob_buf b;
    uint64_t data = UINT64_MAX, len;
    if (ob_file_open_bytes(w->bytes.data, w->bytes.len, 0, &w->file, &w->err) != OB_OK) fail_msg("%s", w->err.text);
    const size_t n_tensors = ob_file_n_tensors(w->file);
    for (size_t i = 0; i < n_tensors; i++) data = OB_MIN(data, ob_file_tensor(w->file, i)->file_off);
    const char *first = ob_file_tensor(w->file, 0)->name;
    size_t at = 0;
    for (size_t i = 8; !at && i + strlen(first) < w->bytes.len; i++) {
        memcpy(&len, w->bytes.data + i - 8, 8);
        if (len == strlen(first) && !memcmp(w->bytes.data + i, first, len)) at = i - 8;
    }
    ob_buf_init(&b, 17u << 20);
    ob_buf_add(&b, w->bytes.data, at);
    for (size_t i = 0; i < n_tensors; i++) {
        const ob_tensor *t = ob_file_tensor(w->file, i);
        const char *name = t->name;
        for (size_t k = 0; k < n; k++)
            if (!strcmp(t->name, names[k][0])) name = names[k][1];
        gb_str(&b, name);
        gb_u32(&b, (uint32_t)t->n_dims);
        for (int d = 0; d < t->n_dims; d++) gb_u64(&b, (uint64_t)t->ne[d]);
        gb_u32(&b, t->type);
        gb_u64(&b, t->file_off - data);
    }
    gb_pad(&b, 32);
    ob_buf_add(&b, w->bytes.data + data, w->bytes.len - data);
    ob_file_close(w->file);
    w->file = NULL;
    ob_buf_deinit(&w->bytes);
    w->bytes = b;
}

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

/* Scales, soft caps and windows that some architecture of this field has. Each of ours must use them or refuse
 * them by name. */
static const char *const k_scales[] = {
    "attn_logit_softcapping", "final_logit_softcapping", "router_logit_softcapping", "attention.scale",
    "attention.clamp_kqv",    "attention.max_alibi_bias", "attention.sliding_window", "attention.temperature_scale",
    "attention.output_scale", "embedding_scale",          "residual_scale",           "logit_scale",
    "use_parallel_residual",  "swin_norm",                "expert_weights_scale",     "interleave_moe_layer_step",
};

static const struct arch {
    const char *model, *name;
    const char *used[8]; /* of k_scales */
} k_every[] = {
    {"llama", "llama", {0}},
    {"qwen2", "qwen2", {0}},
    {"qwen3", "qwen3", {0}},
    {"qwen3moe", "qwen3moe", {"expert_weights_scale"}},
    {"minicpm", "minicpm", {"embedding_scale", "residual_scale", "logit_scale"}},
    {"gemma3", "gemma3", {"attention.sliding_window", "final_logit_softcapping"}},
    {"glm47flash", "deepseek2", {"expert_weights_scale"}},
    {"deepseek3", "deepseek2", {"expert_weights_scale"}},
    {"qwen35", "qwen35", {"expert_weights_scale"}},
    {"qwen35moe", "qwen35moe", {"expert_weights_scale"}},
    {"zaya", "zaya", {"expert_weights_scale"}},
    {"deepseek4", "deepseek4", {"attention.sliding_window", "expert_weights_scale"}},
    {"bert", "bert", {0}},
    {"modern-bert", "modern-bert", {"attention.sliding_window"}},
    {"modern-bert-cls", "modern-bert", {"attention.sliding_window"}},
    {"laya", "modern-bert", {"attention.sliding_window"}},
};

static void test_every_scale(void **state)
{
    (void)state;
    for (size_t i = 0; i < OB_COUNT(k_every); i++)
        for (size_t k = 0; k < OB_COUNT(k_scales); k++) {
            char key[96];
            bool used = false;
            for (int u = 0; u < 8 && k_every[i].used[u]; u++) used |= !strcmp(k_every[i].used[u], k_scales[k]);
            if (used) continue;
            world w;
            load(&w, k_every[i].model);
            snprintf(key, sizeof key, "%s.%s", k_every[i].name, k_scales[k]);
            insert_f32(&w, key, 2.0f);
            want_refused(&w, OB_E_UNSUPPORTED, key);
        }
}

/* One more tensor [8] than the file has, at its end. */
static void add_tensor(world *w, const char *name)
{
    ob_buf b;
    uint64_t n_tensors, end = 0, data = UINT64_MAX, len;
    if (ob_file_open_bytes(w->bytes.data, w->bytes.len, 0, &w->file, &w->err) != OB_OK) fail_msg("%s", w->err.text);
    for (size_t i = 0; i < ob_file_n_tensors(w->file); i++) {
        const ob_tensor *t = ob_file_tensor(w->file, i);
        data = OB_MIN(data, t->file_off);
        end = OB_MAX(end, t->file_off + t->n_bytes);
    }
    size_t at = 0;
    const char *first = ob_file_tensor(w->file, 0)->name;
    for (size_t i = 8; !at && i + strlen(first) < w->bytes.len; i++) {
        memcpy(&len, w->bytes.data + i - 8, 8);
        if (len == strlen(first) && !memcmp(w->bytes.data + i, first, len)) at = i - 8;
    }
    ob_file_close(w->file);
    w->file = NULL;
    assert_true(at > 0 && data != UINT64_MAX);
    ob_buf_init(&b, 17u << 20);
    ob_buf_add(&b, w->bytes.data, at);
    memcpy(&n_tensors, b.data + 8, 8);
    n_tensors++;
    memcpy(b.data + 8, &n_tensors, 8);
    assert_int_equal(strlen(name), 32); /* so that the entry's 64 bytes move the data by whole alignments */
    gb_str(&b, name);
    gb_u32(&b, 1);
    gb_u64(&b, 8);
    gb_u32(&b, OB_F32);
    gb_u64(&b, (end - data + 31) / 32 * 32);
    ob_buf_add(&b, w->bytes.data + at, end - at);
    while (b.len % 32) ob_buf_addc(&b, 0);
    for (int i = 0; i < 32; i++) ob_buf_addc(&b, 0);
    ob_buf_deinit(&w->bytes);
    w->bytes = b;
}

static void test_every_unused_tensor(void **state)
{
    (void)state;
    for (size_t i = 0; i < OB_COUNT(k_every); i++) {
        world w;
        load(&w, k_every[i].model);
        add_tensor(&w, "blk.0.attn_unheard_of_norm.weigh");
        want_refused(&w, OB_E_UNSUPPORTED, "blk.0.attn_unheard_of_norm.weigh");
        /* and without it the file is as good as before */
        load(&w, k_every[i].model);
        if (build(&w, 0) != OB_OK) fail_msg("%s: %s", k_every[i].model, w.err.text);
        done(&w);
    }
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

/* A file with GLM-4.7-Flash's number of layers and vocabulary has sigmoid scores: every layer dense but the last. */
static void glm_file(world *w, uint32_t n_layer)
{
    static const struct { const char *name; uint64_t ne[3]; } k_tensors[] = {
        {"attn_norm.weight", {4, 1, 1}},      {"attn_q.weight", {4, 4, 1}},         {"attn_kv_a_mqa.weight", {4, 4, 1}},
        {"attn_kv_a_norm.weight", {2, 1, 1}}, {"attn_k_b.weight", {2, 2, 1}},       {"attn_v_b.weight", {2, 2, 1}},
        {"attn_output.weight", {2, 4, 1}},    {"ffn_norm.weight", {4, 1, 1}},       {"ffn_gate.weight", {4, 2, 1}},
        {"ffn_up.weight", {4, 2, 1}},         {"ffn_down.weight", {2, 4, 1}},       {"ffn_gate_inp.weight", {4, 2, 1}},
        {"ffn_gate_exps.weight", {4, 2, 2}},  {"ffn_up_exps.weight", {4, 2, 2}},    {"ffn_down_exps.weight", {2, 4, 2}}};
    static const struct { const char *key; uint32_t v; } k_keys[] = {
        {"context_length", 64},        {"embedding_length", 4},             {"attention.head_count", 1},
        {"attention.head_count_kv", 1}, {"attention.kv_lora_rank", 2},      {"attention.key_length", 4},
        {"attention.value_length", 2}, {"attention.key_length_mla", 4},     {"attention.value_length_mla", 2},
        {"rope.dimension_count", 2},   {"expert_count", 2},                 {"expert_used_count", 1}};
    enum { N_VOCAB = 154880, N_DENSE = 11, N_HEAD = 8 };
    char name[64];
    uint64_t off = 0, n_tensors = 2 + (n_layer - 1) * N_DENSE + 12;
    memset(w, 0, sizeof *w);
    ob_buf_init(&w->bytes, 16u << 20);
    gb_head(&w->bytes, 3, n_tensors, OB_COUNT(k_keys) + 4);
    gb_kv_str(&w->bytes, "general.architecture", "deepseek2");
    for (size_t i = 0; i < OB_COUNT(k_keys); i++) {
        snprintf(name, sizeof name, "deepseek2.%s", k_keys[i].key);
        gb_kv_u32(&w->bytes, name, k_keys[i].v);
    }
    gb_kv_u32(&w->bytes, "deepseek2.block_count", n_layer);
    gb_kv_u32(&w->bytes, "deepseek2.leading_dense_block_count", n_layer - 1);
    const float eps = 1e-5f;
    gb_kv(&w->bytes, "deepseek2.attention.layer_norm_rms_epsilon", OB_KV_F32, &eps, 4);
    gb_tensor(&w->bytes, "token_embd.weight", OB_F32, 4, N_VOCAB, off);
    off += 16 * N_VOCAB;
    gb_tensor(&w->bytes, "output_norm.weight", OB_F32, 4, 1, off);
    off += 32;
    for (uint32_t l = 0; l < n_layer; l++)
        for (size_t i = 0; i < OB_COUNT(k_tensors); i++) {
            const bool dense = l + 1 < n_layer;
            if (dense ? i >= N_DENSE : i >= N_HEAD && i < N_DENSE) continue;
            snprintf(name, sizeof name, "blk.%u.%s", l, k_tensors[i].name);
            gb_str(&w->bytes, name);
            gb_u32(&w->bytes, 3);
            for (int d = 0; d < 3; d++) gb_u64(&w->bytes, k_tensors[i].ne[d]);
            gb_u32(&w->bytes, OB_F32);
            gb_u64(&w->bytes, off);
            off += (k_tensors[i].ne[0] * k_tensors[i].ne[1] * k_tensors[i].ne[2] * 4 + 31) / 32 * 32;
        }
    gb_pad(&w->bytes, 32);
    gb_fill(&w->bytes, 0, off);
}

static void test_gating_of_glm(void **state)
{
    (void)state;
    static const struct { uint32_t n_layer; ob_gating gating; } c[] = {
        {47, OB_GATING_SIGMOID}, {48, OB_GATING_SIGMOID}, {46, OB_GATING_SOFTMAX}};
    for (size_t i = 0; i < OB_COUNT(c); i++) {
        world w;
        glm_file(&w, c[i].n_layer);
        if (build(&w, 0) != OB_OK) fail_msg("%s", w.err.text);
        assert_int_equal(find_op(&w, OB_OP_MOE_ROUTE, 0)->p.route.gating, c[i].gating);
        done(&w);
    }
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

/* The weights that ops read, in order, are the same bytes under the other names. */
static void test_zaya_names(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"blk.0.ssm_conv1d.weight", "blk.0.cca_conv_grp.weight"},
        {"blk.0.ssm_conv1d.bias", "blk.0.cca_conv_grp.bias"},
        {"blk.0.cca_conv_grp.weight", "blk.0.cca_conv_grp_grouped.weight"},
        {"blk.0.cca_conv_grp.bias", "blk.0.cca_conv_grp_grouped.bias"},
        {"blk.1.zaya_router_eda_scale.weight", "blk.1.zaya_router_eda.weight"},
        {"blk.2.zaya_router_eda_scale.weight", "blk.2.zaya_router_eda.weight"},
        {"blk.0.post_attention_norm.weight", "blk.0.post_attn_norm.weight"},
        {"blk.2.post_attention_norm.weight", "blk.2.post_attn_norm.weight"}};
    world a, b;
    load(&a, "zaya");
    load(&b, "zaya");
    rename_tensors(&b, names, OB_COUNT(names));
    if (build(&a, 0) != OB_OK) fail_msg("%s", a.err.text);
    if (build(&b, 0) != OB_OK) fail_msg("%s", b.err.text);
    assert_int_equal(a.prog->n_weights, b.prog->n_weights);
    for (int32_t i = 0; i < a.prog->n_weights; i++) {
        const ob_weight *x = &a.prog->weights[i], *y = &b.prog->weights[i];
        assert_int_equal(x->n_bytes, y->n_bytes);
        assert_memory_equal(x->data, y->data, x->n_bytes);
    }
    done(&a);
    done(&b);
}

/* Scaling without a type: linear, but YaRN in DeepSeek V4, whose own files do not name it. */
static void test_scaling_without_type(void **state)
{
    (void)state;
    world w;
    load(&w, "llama");
    insert_f32(&w, "llama.rope.scaling.factor", 4.0f);
    if (build(&w, 0) != OB_OK) fail_msg("%s", w.err.text);
    assert_true(find_op(&w, OB_OP_ROPE, 0)->p.rope.freq_scale == 0.25f);
    assert_true(find_op(&w, OB_OP_ROPE, 0)->p.rope.ext_factor == 0);
    done(&w);
    load(&w, "deepseek4");
    insert_f32(&w, "deepseek4.rope.scaling.factor", 16.0f);
    if (build(&w, 0) != OB_OK) fail_msg("%s", w.err.text);
    /* layer 0 sees only its window: unscaled; layer 1 is compressed; the magnitude stays 1 */
    const ob_rope_params first = find_op(&w, OB_OP_ROPE, 0)->p.rope, second = find_op(&w, OB_OP_ROPE, 3)->p.rope;
    assert_true(first.freq_scale == 1.0f && first.ext_factor == 0 && first.base == 10000.0f);
    assert_true(second.freq_scale == 1.0f / 16 && second.ext_factor == 1.0f && second.attn_factor == 1.0f);
    assert_true(find_op(&w, OB_OP_CSA, 1)->p.csa.rope.freq_scale == 1.0f / 16);
    done(&w);
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

/* YaRN's frequencies and magnitude as transformers' _compute_yarn_parameters has them (width 64, base 10000, factor
 * 8, original context 4096). Turning (1, 0) by position 1 shows a frequency. */
static void test_yarn_frequencies(void **state)
{
    (void)state;
    static const struct { int pair; double inv_freq; } c[] = {
        {0, 1.0}, {1, 0.7498942017555237}, {10, 0.05623412877321243}, {11, 0.039331309497356415},
        {15, 0.008847401477396488}, {20, 0.0010338216088712215}, {23, 0.00016669018077664077}, {31, 1.666901880525984e-05}};
    world w;
    load(&w, "llama");
    insert_str(&w, "llama.rope.scaling.type", "yarn");
    insert_f32(&w, "llama.rope.scaling.factor", 8.0f);
    insert_u32(&w, "llama.rope.scaling.original_context_length", 4096);
    if (build(&w, 0) != OB_OK) fail_msg("%s", w.err.text);
    ob_rope_params r = find_op(&w, OB_OP_ROPE, 0)->p.rope;
    assert_true(fabsf(r.attn_factor - 1.2079441541679836f) < 1e-6f);
    assert_true(r.ext_factor == 1.0f && r.freq_scale == 0.125f);
    r.head_dim = r.n_rot = 64;
    r.base = 10000.0f;
    r.pairing = OB_ROPE_NEOX;
    float x[64] = {0}, y[64];
    for (int i = 0; i < 32; i++) x[i] = 1.0f;
    ob_ref_rope_row(&r, NULL, 1, 1, x, y);
    for (size_t i = 0; i < OB_COUNT(c); i++) {
        const double got = atan2((double)y[32 + c[i].pair], (double)y[c[i].pair]);
        if (!(fabs(got / c[i].inv_freq - 1) < 2e-6)) fail_msg("pair %d: %.9g, not %.9g", c[i].pair, got, c[i].inv_freq);
        assert_true(fabs(hypot((double)y[c[i].pair], (double)y[32 + c[i].pair]) - 1.2079441541679836) < 1e-6);
    }
    done(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zaya_names), cmocka_unit_test(test_scaling_without_type),
        cmocka_unit_test(test_every_scale), cmocka_unit_test(test_every_unused_tensor),
        cmocka_unit_test(test_gating_of_glm), cmocka_unit_test(test_yarn_frequencies),
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_minicpm_defaults),  cmocka_unit_test(test_gating_default),
        cmocka_unit_test(test_longrope), cmocka_unit_test(test_prediction_blocks), cmocka_unit_test(test_deepseek_yarn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
