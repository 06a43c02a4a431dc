/* clip: vision towers, the files that go beside a model as --mmproj. Three projectors are known:
 *
 *   idefics3        SmolVLM (arXiv 2504.05299)    SigLIP, squares of patches side by side, one matrix
 *   gemma3          Gemma 3 (arXiv 2503.19786)    SigLIP, squares of patches averaged, RMS norm, one matrix
 *   qwen2vl_merger  Qwen2-VL (arXiv 2409.12191)   two-axis rope, squares side by side, matrix, GELU, matrix
 *
 *   x = Wp patch + bp + P[number of the patch]        qwen2vl: two time taps of equal frames, no bias, no P
 *   x += Wo attention(rope?(Wq n), rope?(Wk n), Wv n),  n = layer_norm(x)       every patch sees all others
 *   x += Wdown act(Wup m),                              m = layer_norm(x)       act by use_gelu, use_silu
 *   y = projector(merge(layer_norm(x)))
 *
 * Every linear of the tower has a bias. Patches come square by square (graph/model.h), so merging is of adjacent
 * rows. Half the rotary pairs turn by the patch's row, the other half by its column, each with frequencies of its
 * own. feed_forward_length and projection_dim are not read: some files of Qwen2-VL have them wrong, and the tensors
 * say them.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "graph/graph_int.h"

typedef struct clip {
    ob_vision_hparams v; /* first: ob_model_vision returns it */
    ob_act act;
    ob_rope_params rope; /* of QWEN2VL */
} clip;

typedef struct projector {
    const char *name;
    ob_projector kind;
    int32_t merge;         /* side of a square when the file does not say */
    const char *merge_key; /* how it says */
} projector;

static const projector k_projectors[] = {
    {"idefics3", OB_PROJECTOR_IDEFICS3, 2, "vision.projector.scale_factor"},
    {"gemma3", OB_PROJECTOR_GEMMA3, 4, "vision.projector.scale_factor"},
    {"qwen2vl_merger", OB_PROJECTOR_QWEN2VL, 2, "vision.spatial_merge_size"},
};

static ob_status find_projector(const ob_model *m, const projector **out, ob_err *err)
{
    ob_str name;
    OB_TRY(ob_key_str(m, ob_key_there(m, "projector_type") ? "projector_type" : "vision.projector_type", &name, err));
    for (size_t i = 0; i < OB_COUNT(k_projectors); i++) {
        *out = &k_projectors[i];
        if (name.len == strlen((*out)->name) && !memcmp(name.data, (*out)->name, name.len)) return OB_OK;
    }
    return ob_err_set(err, OB_E_UNSUPPORTED, "vision projector \"%.*s\" is not known (known: idefics3, gemma3, "
                      "qwen2vl_merger)", (int)OB_MIN(name.len, (size_t)64), name.data);
}

static ob_status load_act(const ob_model *m, ob_act *act, ob_err *err)
{
    bool gelu = false, silu = false;
    OB_TRY(ob_key_bool_opt(m, "use_gelu", &gelu, err));
    OB_TRY(ob_key_bool_opt(m, "use_silu", &silu, err));
    if (gelu && silu) return ob_err_set(err, OB_E_FORMAT, "keys clip.use_gelu and clip.use_silu are both true");
    *act = gelu ? OB_ACT_GELU_TANH : silu ? OB_ACT_SILU : OB_ACT_GELU_QUICK;
    return OB_OK;
}

static ob_status check_sizes(const ob_model *m, const clip *c, ob_err *err)
{
    const ob_vision_hparams *v = &c->v;
    const int32_t side = v->patch_size * v->merge;
    if (m->hp.n_embd % m->hp.n_head || (v->axes && m->hp.k_dim % 4))
        return ob_err_set(err, OB_E_FORMAT, "%d attention heads do not fit a width of %d", m->hp.n_head, m->hp.n_embd);
    if (v->projector != OB_PROJECTOR_QWEN2VL && (v->image_size % side || v->image_size < side))
        return ob_err_set(err, OB_E_FORMAT, "key clip.vision.image_size is %d, no multiple of %d pixels (%d x %d patches)",
                          v->image_size, side, v->merge, v->merge);
    for (int i = 0; i < 3; i++)
        if (!(v->std[i] > 0)) return ob_err_set(err, OB_E_FORMAT, "key clip.vision.image_std must be above 0");
    const ob_tensor *t = ob_file_find_tensor(m->file, "v.position_embd.weight");
    const int64_t per_side = v->image_size / v->patch_size;
    if (v->projector != OB_PROJECTOR_QWEN2VL && t && t->ne[1] != per_side * per_side)
        return ob_err_set(err, OB_E_FORMAT, "tensor v.position_embd.weight has %lld rows for %lld patches",
                          (long long)t->ne[1], (long long)(per_side * per_side));
    return OB_OK;
}

static ob_status load(ob_model *m, ob_err *err)
{
    ob_hparams *h = &m->hp;
    const projector *p;
    bool vision = false;
    clip *c = m->own = ob_calloc(1, sizeof *c);
    if (!c) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the model");
    OB_TRY(ob_key_bool_opt(m, "has_vision_encoder", &vision, err));
    if (!vision) return ob_err_set(err, OB_E_UNSUPPORTED, "the file has no vision encoder (key clip.has_vision_encoder)");
    OB_TRY(find_projector(m, &p, err));
    ob_vision_hparams *v = &c->v;
    v->projector = p->kind;
    v->merge = p->merge;
    v->axes = p->kind == OB_PROJECTOR_QWEN2VL;
    OB_TRY(ob_key_i32_opt(m, p->merge_key, 1, 64, &v->merge, err));
    OB_TRY(ob_key_i32(m, "vision.image_size", 1, 1 << 14, &v->image_size, err));
    OB_TRY(ob_key_i32(m, "vision.patch_size", 1, 256, &v->patch_size, err));
    OB_TRY(ob_key_i32_opt(m, "vision.preproc_image_size", 0, 1 << 14, &v->longest_edge, err));
    OB_TRY(ob_key_f32s(m, "vision.image_mean", 3, v->mean, err));
    OB_TRY(ob_key_f32s(m, "vision.image_std", 3, v->std, err));
    OB_TRY(load_act(m, &c->act, err));
    OB_TRY(ob_key_i32(m, "vision.block_count", 1, 4096, &h->n_layer, err));
    OB_TRY(ob_key_i32(m, "vision.embedding_length", 1, 1 << 20, &h->n_embd, err));
    OB_TRY(ob_key_i32(m, "vision.attention.head_count", 1, 65536, &h->n_head, err));
    OB_TRY(ob_key_f32(m, "vision.attention.layer_norm_epsilon", &h->norm_eps, err));
    h->n_head_kv = h->n_head;
    h->k_dim = h->v_dim = h->n_embd / h->n_head;
    h->output = OB_OUTPUT_PICTURE;
    h->pooling = OB_POOLING_NONE;
    OB_TRY(check_sizes(m, c, err));
    const int32_t quarter = h->k_dim / 4;
    c->rope = (ob_rope_params){.pairing = OB_ROPE_NEOX, .head_dim = h->k_dim, .n_rot = h->k_dim, .base = 10000.0f,
                               .freq_scale = 1.0f, .attn_factor = 1.0f, .axis_pairs = {quarter, quarter, 0},
                               .axis_restart = true};
    return OB_OK;
}

/* ------------------------------------------------------------------ tower */

static ob_val norm(ob_builder *b, ob_val x, const char *name)
{
    return ob_b_layer_norm(b, x, ob_b_weight(b, OB_USE_VECTOR, "%s.weight", name),
                           ob_b_weight(b, OB_USE_VECTOR, "%s.bias", name), b->m->hp.norm_eps);
}

static ob_val block_norm(ob_builder *b, ob_val x, const char *part)
{
    char name[64];
    snprintf(name, sizeof name, "v.blk.%d.%s", b->layer, part);
    return norm(b, x, name);
}

static ob_val block_linear(ob_builder *b, ob_val x, const char *part, ob_val res)
{
    const int32_t w = ob_b_weight(b, OB_USE_LINEAR, "v.blk.%d.%s.weight", b->layer, part);
    const int32_t bias = ob_b_weight(b, OB_USE_VECTOR, "v.blk.%d.%s.bias", b->layer, part);
    return res == OB_NONE ? ob_b_linear(b, x, w, bias) : ob_b_linear_add(b, x, w, bias, res, 1.0f);
}

static ob_val build_patches(ob_builder *b, const clip *c)
{
    const int64_t n = 3 * (int64_t)c->v.patch_size * c->v.patch_size;
    ob_val pixels = ob_b_vectors(b, n);
    ob_val x = ob_b_linear(b, pixels, ob_b_weight_flat(b, OB_USE_LINEAR, "v.patch_embd.weight"),
                           ob_b_weight_opt(b, OB_USE_VECTOR, "v.patch_embd.bias"));
    if (c->v.projector == OB_PROJECTOR_QWEN2VL)
        return ob_b_linear_add(b, pixels, ob_b_weight_flat(b, OB_USE_LINEAR, "v.patch_embd.weight.1"), OB_NONE, x, 1.0f);
    return ob_b_add_row(b, x, ob_b_weight(b, OB_USE_EMBED, "v.position_embd.weight"), OB_ROW_OF_POSITION);
}

/* Old converters wrote ffn_up and ffn_down under each other's name. */
static bool ffn_swapped(const ob_builder *b)
{
    const ob_tensor *down = ob_file_find_tensor(b->m->file, "v.blk.0.ffn_down.weight");
    return down && down->ne[0] == b->m->hp.n_embd && down->ne[1] != b->m->hp.n_embd;
}

static void build_layer(ob_builder *b, const clip *c, ob_val x, int32_t cache)
{
    static const char *const part[3] = {"attn_q", "attn_k", "attn_v"};
    const ob_hparams *h = &b->m->hp;
    const bool swapped = ffn_swapped(b);
    int32_t w[3], bias[3];
    ob_val qkv[3];
    for (int i = 0; i < 3; i++) {
        w[i] = ob_b_weight(b, OB_USE_LINEAR, "v.blk.%d.%s.weight", b->layer, part[i]);
        bias[i] = ob_b_weight(b, OB_USE_VECTOR, "v.blk.%d.%s.bias", b->layer, part[i]);
    }
    ob_b_linears(b, block_norm(b, x, "ln1"), 3, w, bias, qkv);
    for (int i = 0; c->v.axes && i < 2; i++) ob_b_rope(b, qkv[i], &c->rope, OB_NONE);
    const ob_attn_params a = {.cache = cache, .n_head = h->n_head, .n_head_kv = h->n_head, .k_dim = h->k_dim,
                              .v_dim = h->v_dim, .scale = 1.0f / sqrtf((float)h->k_dim)};
    block_linear(b, ob_b_attention(b, qkv[0], qkv[1], qkv[2], &a), "attn_out", x);
    ob_val y = block_linear(b, block_norm(b, x, "ln2"), swapped ? "ffn_down" : "ffn_up", OB_NONE);
    block_linear(b, ob_b_act(b, y, c->act), swapped ? "ffn_up" : "ffn_down", x);
}

static ob_val build_projector(ob_builder *b, const clip *c, ob_val x)
{
    const int32_t n = c->v.merge * c->v.merge;
    switch (c->v.projector) {
    case OB_PROJECTOR_GEMMA3: /* the matrix lies [d, out], the other way round than all others */
        x = ob_b_rms_norm(b, ob_b_merge(b, x, n, true), ob_b_weight(b, OB_USE_VECTOR, "mm.soft_emb_norm.weight"),
                          b->m->hp.norm_eps, 0);
        return ob_b_linear(b, x, ob_b_weight_turned(b, "mm.input_projection.weight"), OB_NONE);
    case OB_PROJECTOR_QWEN2VL:
        x = ob_b_linear(b, ob_b_merge(b, x, n, false), ob_b_weight(b, OB_USE_LINEAR, "mm.0.weight"),
                        ob_b_weight(b, OB_USE_VECTOR, "mm.0.bias"));
        return ob_b_linear(b, ob_b_act(b, x, OB_ACT_GELU_ERF), ob_b_weight(b, OB_USE_LINEAR, "mm.2.weight"),
                           ob_b_weight(b, OB_USE_VECTOR, "mm.2.bias"));
    default:
        return ob_b_linear(b, ob_b_merge(b, x, n, false), ob_b_weight(b, OB_USE_LINEAR, "mm.model.fc.weight"), OB_NONE);
    }
}

static void build(const ob_model *m, ob_builder *b)
{
    const clip *c = m->own;
    ob_val x = build_patches(b, c);
    const int32_t cache = ob_b_cache(b, m->hp.n_head, m->hp.k_dim, m->hp.v_dim);
    for (b->layer = 0; b->layer < m->hp.n_layer; b->layer++) build_layer(b, c, x, cache);
    b->layer = -1;
    ob_b_embeddings(b, build_projector(b, c, norm(b, x, "v.post_ln")));
}

static const char *const k_keys[] = {
    "has_vision_encoder", "projector_type", "vision.projector_type", "use_gelu", "use_silu", "vision.projection_dim",
    "vision.image_size", "vision.patch_size", "vision.preproc_image_size", "vision.embedding_length",
    "vision.feed_forward_length", "vision.block_count", "vision.attention.head_count",
    "vision.attention.layer_norm_epsilon", "vision.image_mean", "vision.image_std", "vision.projector.scale_factor",
    "vision.spatial_merge_size", NULL};

const ob_arch ob_arch_clip = {.name = "clip", .load = load, .build = build, .keys = k_keys};
