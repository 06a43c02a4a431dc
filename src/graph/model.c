#include "graph/model.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/limits.h"
#include "base/math.h"
#include "graph/graph_int.h"
#include "quant/hadamard.h"

static const ob_arch *const k_archs[] = {
    &ob_arch_llama,     &ob_arch_qwen2,  &ob_arch_qwen3,     &ob_arch_qwen3moe, &ob_arch_minicpm,   &ob_arch_gemma3,
    &ob_arch_deepseek2, &ob_arch_qwen35, &ob_arch_qwen35moe, &ob_arch_zaya,     &ob_arch_deepseek4, &ob_arch_bert,
    &ob_arch_modern_bert, &ob_arch_qwen2vl, &ob_arch_clip,
};

/* Keys after "<arch>." that the ob_load_* functions read or that change nothing in the result. */
static const char *const k_common_keys[] = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
    "rope.freq_base", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.finetuned",
    "rope.scaling.yarn_*", "rope.scale_linear", "pooling_type", NULL,
};

int ob_model_architectures(const char **names, int cap)
{
    int n = (int)OB_COUNT(k_archs);
    for (int i = 0; i < n && i < cap; i++) names[i] = k_archs[i]->name;
    return n;
}

/* ------------------------------------------------------------------ keys */

static const ob_kv *find(const ob_model *m, const char *suffix)
{
    return ob_file_find_kvf(m->file, "%s.%s", m->arch->name, suffix);
}

ob_status ob_key_i32_opt(const ob_model *m, const char *suffix, int32_t min, int32_t max, int32_t *out,
                         ob_err *err)
{
    const ob_kv *kv = find(m, suffix);
    if (!kv) return OB_OK;
    int64_t first = 0;
    if (kv->n == 0) return ob_err_set(err, OB_E_FORMAT, "key %s.%s is empty", m->arch->name, suffix);
    /* Some writers give one value per layer; equal values mean the same as a scalar. */
    for (uint64_t i = 0; i < kv->n; i++) {
        int64_t x;
        if (!ob_kv_elem_i64(kv, i, &x))
            return ob_err_set(err, OB_E_FORMAT, "key %s.%s is not a whole number", m->arch->name, suffix);
        if (i == 0) first = x;
        if (x != first)
            return ob_err_set(err, OB_E_UNSUPPORTED, "key %s.%s differs between layers", m->arch->name,
                              suffix);
        if (x < min || x > max)
            return ob_err_set(err, OB_E_FORMAT, "key %s.%s is %lld, must be in %d..%d", m->arch->name,
                              suffix, (long long)x, min, max);
    }
    *out = (int32_t)first;
    return OB_OK;
}

ob_status ob_key_i32(const ob_model *m, const char *suffix, int32_t min, int32_t max, int32_t *out,
                     ob_err *err)
{
    if (!find(m, suffix))
        return ob_err_set(err, OB_E_FORMAT, "key %s.%s is missing", m->arch->name, suffix);
    return ob_key_i32_opt(m, suffix, min, max, out, err);
}

ob_status ob_key_str(const ob_model *m, const char *suffix, ob_str *out, ob_err *err)
{
    if (!ob_kv_str(find(m, suffix), out))
        return ob_err_set(err, OB_E_FORMAT, "key %s.%s is missing or not a string", m->arch->name, suffix);
    return OB_OK;
}

ob_status ob_key_f32s(const ob_model *m, const char *suffix, uint64_t n, float *out, ob_err *err)
{
    const ob_kv *kv = find(m, suffix);
    for (uint64_t i = 0; i < n; i++) {
        double x;
        if (!kv || kv->n != n || !ob_kv_elem_f64(kv, i, &x) || !isfinite(x))
            return ob_err_set(err, OB_E_FORMAT, "key %s.%s must have %d finite numbers", m->arch->name, suffix, (int)n);
        out[i] = (float)x;
    }
    return OB_OK;
}

ob_status ob_key_f32_opt(const ob_model *m, const char *suffix, float *out, ob_err *err)
{
    const ob_kv *kv = find(m, suffix);
    if (!kv) return OB_OK;
    double x;
    if (!ob_kv_f64(kv, &x) || !isfinite(x))
        return ob_err_set(err, OB_E_FORMAT, "key %s.%s is not a finite number", m->arch->name, suffix);
    *out = (float)x;
    return OB_OK;
}

ob_status ob_key_f32(const ob_model *m, const char *suffix, float *out, ob_err *err)
{
    if (!find(m, suffix))
        return ob_err_set(err, OB_E_FORMAT, "key %s.%s is missing", m->arch->name, suffix);
    return ob_key_f32_opt(m, suffix, out, err);
}

ob_status ob_key_bool_opt(const ob_model *m, const char *suffix, bool *out, ob_err *err)
{
    const ob_kv *kv = find(m, suffix);
    if (!kv) return OB_OK;
    if (!ob_kv_bool(kv, out))
        return ob_err_set(err, OB_E_FORMAT, "key %s.%s is not true or false", m->arch->name, suffix);
    return OB_OK;
}

ob_status ob_key_i32s(const ob_model *m, const char *suffix, uint64_t n, int32_t min, int32_t max, int32_t *out,
                      ob_err *err)
{
    const ob_kv *kv = find(m, suffix);
    if (!kv || kv->n != n)
        return ob_err_set(err, OB_E_FORMAT, "key %s.%s must have %d elements", m->arch->name, suffix, (int)n);
    for (uint64_t i = 0; i < n; i++) {
        int64_t x;
        if (!ob_kv_elem_i64(kv, i, &x) || x < min || x > max)
            return ob_err_set(err, OB_E_FORMAT, "element %d of key %s.%s must be a whole number in %d..%d", (int)i,
                              m->arch->name, suffix, min, max);
        out[i] = (int32_t)x;
    }
    return OB_OK;
}

bool ob_key_there(const ob_model *m, const char *suffix) { return find(m, suffix) != NULL; }

static bool key_listed(const char *const *list, ob_str suffix)
{
    for (; list && *list; list++) {
        size_t n = strlen(*list);
        bool prefix = n && (*list)[n - 1] == '*';
        if (prefix ? suffix.len >= n - 1 && !memcmp(*list, suffix.data, n - 1)
                   : suffix.len == n && !memcmp(*list, suffix.data, n))
            return true;
    }
    return false;
}

/* A key of this architecture's name space that nobody reads may change the result: refuse it. */
static ob_status check_keys(const ob_model *m, ob_err *err)
{
    size_t n = strlen(m->arch->name);
    for (size_t i = 0; i < ob_file_n_kv(m->file); i++) {
        ob_str key = ob_file_kv(m->file, i)->key;
        if (key.len <= n + 1 || memcmp(key.data, m->arch->name, n) || key.data[n] != '.') continue;
        ob_str suffix = {key.data + n + 1, key.len - n - 1};
        if (!key_listed(k_common_keys, suffix) && !key_listed(m->arch->keys, suffix))
            return ob_err_set(err, OB_E_UNSUPPORTED,
                              "key %.*s is not known for architecture %s: the model would not run as it "
                              "was made",
                              (int)key.len, key.data, m->arch->name);
    }
    return OB_OK;
}

/* ------------------------------------------------------------------ common hyper-parameters */

static bool str_is(ob_str s, const char *text)
{
    return s.len == strlen(text) && !memcmp(s.data, text, s.len);
}

static ob_status load_yarn(const ob_model *m, ob_rope_params *r, float factor, ob_err *err)
{
    r->ext_factor = 1.0f;
    OB_TRY(ob_key_f32_opt(m, "rope.scaling.yarn_ext_factor", &r->ext_factor, err));
    OB_TRY(ob_key_f32_opt(m, "rope.scaling.yarn_attn_factor", &r->attn_factor, err));
    OB_TRY(ob_key_f32_opt(m, "rope.scaling.yarn_beta_fast", &r->beta_fast, err));
    OB_TRY(ob_key_f32_opt(m, "rope.scaling.yarn_beta_slow", &r->beta_slow, err));
    /* YaRN's magnitude correction (arXiv 2309.00071, eq. 22) */
    r->attn_factor *= 1.0f + 0.1f * logf(factor);
    return OB_OK;
}

ob_status ob_load_rope(ob_model *m, ob_rope_pairing pairing, ob_err *err)
{
    ob_rope_params *r = &m->hp.rope;
    *r = (ob_rope_params){.pairing = pairing, .head_dim = m->hp.k_dim, .n_rot = m->hp.k_dim,
                          .base = 10000.0f, .freq_scale = 1.0f, .attn_factor = 1.0f,
                          .beta_fast = 32.0f, .beta_slow = 1.0f, .n_ctx_orig = m->hp.n_ctx_train};
    OB_TRY(ob_key_i32_opt(m, "rope.dimension_count", 2, m->hp.k_dim, &r->n_rot, err));
    OB_TRY(ob_key_f32_opt(m, "rope.freq_base", &r->base, err));
    if (!(r->base > 1.0f) || r->n_rot % 2)
        return ob_err_set(err, OB_E_FORMAT, "rope.freq_base %g or rope.dimension_count %d is out of range",
                          (double)r->base, r->n_rot);
    float factor = 0;
    OB_TRY(ob_key_f32_opt(m, "rope.scale_linear", &factor, err)); /* old name of linear scaling */
    /* Files that scale and do not say how: linear, as everywhere but in DeepSeek V4. */
    const ob_kv *kv = find(m, "rope.scaling.type");
    const bool scaled = factor != 0 || find(m, "rope.scaling.factor");
    ob_str type = !scaled ? (ob_str){"none", 4} : m->arch == &ob_arch_deepseek4 ? (ob_str){"yarn", 4} : (ob_str){"linear", 6};
    if (kv && !ob_kv_str(kv, &type))
        return ob_err_set(err, OB_E_FORMAT, "key %s.rope.scaling.type is not a string", m->arch->name);
    OB_TRY(ob_key_f32_opt(m, "rope.scaling.factor", &factor, err));
    OB_TRY(ob_key_i32_opt(m, "rope.scaling.original_context_length", 1, OB_MAX_CTX, &r->n_ctx_orig, err));
    OB_TRY(ob_key_f32_opt(m, "rope.scaling.attn_factor", &r->attn_factor, err));
    if (str_is(type, "none") || str_is(type, "longrope")) return OB_OK; /* longrope: by the arch */
    if (!str_is(type, "linear") && !str_is(type, "yarn"))
        return ob_err_set(err, OB_E_UNSUPPORTED, "rope scaling \"%.*s\" is not known (known: none, linear, "
                          "yarn, longrope)", (int)OB_MIN(type.len, (size_t)64), type.data);
    if (!(factor > 0))
        return ob_err_set(err, OB_E_FORMAT, "key %s.rope.scaling.factor is missing or not positive",
                          m->arch->name);
    r->freq_scale = 1.0f / factor;
    return str_is(type, "yarn") ? load_yarn(m, r, factor, err) : OB_OK;
}

ob_status ob_load_shape(ob_model *m, ob_err *err)
{
    ob_hparams *h = &m->hp;
    OB_TRY(ob_key_i32(m, "block_count", 1, 4096, &h->n_layer, err));
    OB_TRY(ob_key_i32(m, "embedding_length", 1, 1 << 20, &h->n_embd, err));
    OB_TRY(ob_key_i32(m, "context_length", 1, OB_MAX_CTX, &h->n_ctx_train, err));
    OB_TRY(ob_key_i32(m, "attention.head_count", 1, 65536, &h->n_head, err));
    h->n_head_kv = h->n_head;
    OB_TRY(ob_key_i32_opt(m, "attention.head_count_kv", 1, 65536, &h->n_head_kv, err));
    if (h->n_head % h->n_head_kv)
        return ob_err_set(err, OB_E_FORMAT, "%d attention heads are no multiple of %d kv heads", h->n_head,
                          h->n_head_kv);
    h->k_dim = h->v_dim = h->n_embd / h->n_head;
    OB_TRY(ob_key_i32_opt(m, "attention.key_length", 1, 65536, &h->k_dim, err));
    OB_TRY(ob_key_i32_opt(m, "attention.value_length", 1, 65536, &h->v_dim, err));
    if (h->k_dim < 1 || h->v_dim < 1)
        return ob_err_set(err, OB_E_FORMAT, "%d attention heads do not fit a width of %d", h->n_head,
                          h->n_embd);
    const ob_tensor *t = ob_file_find_tensor(m->file, "token_embd.weight");
    if (!t) return ob_err_set(err, OB_E_FORMAT, "tensor token_embd.weight is missing");
    if (t->ne[0] != h->n_embd || t->ne[1] < 1 || t->ne[1] > OB_MAX_VOCAB)
        return ob_err_set(err, OB_E_FORMAT, "tensor token_embd.weight is %lld x %lld, key %s.embedding_length "
                          "says %d", (long long)t->ne[0], (long long)t->ne[1], m->arch->name, h->n_embd);
    h->n_vocab = (int32_t)t->ne[1];
    return OB_OK;
}

ob_status ob_load_common(ob_model *m, ob_rope_pairing pairing, ob_err *err)
{
    m->hp.causal = true;
    m->hp.output = m->opt.embed ? OB_OUTPUT_EMBEDDINGS : OB_OUTPUT_LOGITS;
    OB_TRY(ob_load_shape(m, err));
    OB_TRY(ob_key_i32_opt(m, "feed_forward_length", 0, 1 << 24, &m->hp.n_ff, err));
    OB_TRY(ob_key_f32(m, "attention.layer_norm_rms_epsilon", &m->hp.norm_eps, err));
    OB_TRY(ob_load_pooling(m, OB_POOLING_LAST, err));
    return ob_load_rope(m, pairing, err);
}

ob_status ob_load_pooling(ob_model *m, ob_pooling otherwise, ob_err *err)
{
    /* GGUF's numbers. 4 is a score for a pair of texts, by a head that none of these models has. */
    static const ob_pooling by_number[] = {OB_POOLING_NONE, OB_POOLING_MEAN, OB_POOLING_CLS, OB_POOLING_LAST};
    int32_t number = -1;
    OB_TRY(ob_key_i32_opt(m, "pooling_type", 0, 4, &number, err));
    m->hp.pooling = m->opt.pooling;
    if (m->hp.pooling != OB_POOLING_AUTO) return OB_OK;
    if (number == (int32_t)OB_COUNT(by_number))
        return ob_err_set(err, OB_E_UNSUPPORTED, "key %s.pooling_type is 4: rerankers of this architecture are "
                          "not supported", m->arch->name);
    m->hp.pooling = number < 0 ? otherwise : by_number[number];
    return OB_OK;
}

/* ------------------------------------------------------------------ models */

static ob_status unknown_arch(ob_str arch, ob_err *err)
{
    ob_buf list;
    ob_buf_init(&list, 300);
    for (size_t i = 0; i < OB_COUNT(k_archs); i++)
        ob_buf_addf(&list, "%s%s", i ? ", " : "", k_archs[i]->name);
    ob_status s = ob_err_set(err, OB_E_UNSUPPORTED, "architecture \"%.*s\" is not known (known: %s)",
                             (int)OB_MIN(arch.len, (size_t)64), arch.data, ob_buf_str(&list));
    ob_buf_deinit(&list);
    return s;
}

/* The mark of rotated files: quant/hadamard.h, docs/rooms/convert.md. */
static ob_status load_rotation(ob_model *m, ob_err *err)
{
    static const char key[] = "onebit.hadamard_q4_0";
    int64_t size;
    const ob_kv *kv = ob_file_find_kv(m->file, key);
    if (!kv) return OB_OK;
    if (!ob_kv_i64(kv, &size))
        return ob_err_set(err, OB_E_FORMAT, "the file is marked as Hadamard-rotated, but its key %s is not a whole number", key);
    if (size != OB_HADAMARD)
        return ob_err_set(err, OB_E_UNSUPPORTED, "the weights are Hadamard-rotated in blocks of %lld (key %s): only 32 is known",
                          (long long)size, key);
    for (size_t i = 0; i < ob_file_n_tensors(m->file) && !m->hadamard; i++) {
        const ob_tensor *t = ob_file_tensor(m->file, i);
        m->hadamard = t->type == OB_Q4_0 && strcmp(t->name, "token_embd.weight") != 0;
    }
    if (m->hadamard) return OB_OK;
    return ob_err_set(err, OB_E_FORMAT, "the file is marked as Hadamard-rotated (key %s), but has no Q4_0 matrix, and only those can be",
                      key);
}

ob_status ob_model_new(const ob_file *file, const ob_model_options *opt, ob_model **out, ob_err *err)
{
    ob_str arch;
    if (!ob_kv_str(ob_file_find_kv(file, "general.architecture"), &arch))
        return ob_err_set(err, OB_E_FORMAT, "key general.architecture is missing: not a model file");
    const ob_arch *found = NULL;
    for (size_t i = 0; i < OB_COUNT(k_archs); i++)
        if (str_is(arch, k_archs[i]->name)) found = k_archs[i];
    if (!found) return unknown_arch(arch, err);
    ob_model *m = ob_calloc(1, sizeof *m);
    if (!m) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the model");
    m->file = file;
    m->arch = found;
    if (opt) m->opt = *opt;
    ob_status s = load_rotation(m, err);
    if (s == OB_OK && opt && opt->official_rounding && found != &ob_arch_deepseek4)
        s = ob_err_set(err, OB_E_INVALID, "--official-rounding is for DeepSeek V4, and this model is %s", found->name);
    if (s == OB_OK) s = found->load(m, err);
    if (s == OB_OK && m->opt.pictures && !found->pictures)
        s = ob_err_set(err, OB_E_UNSUPPORTED, "architecture %s takes no pictures: --mmproj cannot be used with it", found->name);
    if (s == OB_OK) s = check_keys(m, err);
    if (s != OB_OK) {
        ob_model_free(m);
        return s;
    }
    *out = m;
    return OB_OK;
}

void ob_model_free(ob_model *m)
{
    if (!m) return;
    ob_free(m->own);
    ob_free(m);
}

const ob_hparams *ob_model_hparams(const ob_model *m) { return &m->hp; }
const char *ob_model_arch(const ob_model *m) { return m->arch->name; }
const ob_vision_hparams *ob_model_vision(const ob_model *m)
{
    return m->hp.output == OB_OUTPUT_PICTURE ? m->own : NULL;
}
const ob_file *ob_model_file(const ob_model *m) { return m->file; }
