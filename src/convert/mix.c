/* Which type each tensor gets. The mixes are llama.cpp's (its file types, by name and number), so that a
 * file of a given name is as large as users expect; quality differs by the quantisers alone. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/math.h"
#include "convert/convert_int.h"

/* GGUF's numbers of mixes. */
typedef enum mix {
    MIX_F32 = 0, MIX_F16 = 1, MIX_Q4_0 = 2, MIX_Q4_1 = 3, MIX_Q8_0 = 7, MIX_Q5_0 = 8, MIX_Q5_1 = 9, MIX_Q2_K = 10,
    MIX_Q3_K_S = 11, MIX_Q3_K_M = 12, MIX_Q3_K_L = 13, MIX_Q4_K_S = 14, MIX_Q4_K_M = 15, MIX_Q5_K_S = 16,
    MIX_Q5_K_M = 17, MIX_Q6_K = 18, MIX_Q2_K_S = 21, MIX_IQ4_NL = 25, MIX_IQ4_XS = 30, MIX_BF16 = 32, MIX_TQ1_0 = 36,
    MIX_TQ2_0 = 37, MIX_MXFP4_MOE = 38, MIX_NVFP4 = 39, MIX_Q1_0 = 40, MIX_Q2_0 = 41
} mix;

typedef struct mix_info {
    const char *name;
    mix id;
    ob_type type; /* of most tensors */
    bool pure;
} mix_info;

static const mix_info k_mixes[] = {
    {"F32", MIX_F32, OB_F32, true},          {"F16", MIX_F16, OB_F16, true},
    {"BF16", MIX_BF16, OB_BF16, true},       {"Q8_0", MIX_Q8_0, OB_Q8_0, false},
    {"Q6_K", MIX_Q6_K, OB_Q6_K, false},      {"Q5_K_M", MIX_Q5_K_M, OB_Q5_K, false},
    {"Q5_K_S", MIX_Q5_K_S, OB_Q5_K, false},  {"Q5_1", MIX_Q5_1, OB_Q5_1, false},
    {"Q5_0", MIX_Q5_0, OB_Q5_0, false},      {"Q4_K_M", MIX_Q4_K_M, OB_Q4_K, false},
    {"Q4_K_S", MIX_Q4_K_S, OB_Q4_K, false},  {"IQ4_NL", MIX_IQ4_NL, OB_IQ4_NL, false},
    {"IQ4_XS", MIX_IQ4_XS, OB_IQ4_XS, false}, {"Q4_1", MIX_Q4_1, OB_Q4_1, false},
    {"Q4_0", MIX_Q4_0, OB_Q4_0, false},      {"NVFP4", MIX_NVFP4, OB_NVFP4, false},
    {"MXFP4", MIX_MXFP4_MOE, OB_MXFP4, true}, {"MXFP4_MOE", MIX_MXFP4_MOE, OB_MXFP4, false},
    {"Q3_K_L", MIX_Q3_K_L, OB_Q3_K, false},  {"Q3_K_M", MIX_Q3_K_M, OB_Q3_K, false},
    {"Q3_K_S", MIX_Q3_K_S, OB_Q3_K, false},  {"Q2_K", MIX_Q2_K, OB_Q2_K, false},
    {"Q2_K_S", MIX_Q2_K_S, OB_Q2_K, false},  {"Q2_0", MIX_Q2_0, OB_Q2_0, false},
    {"TQ2_0", MIX_TQ2_0, OB_TQ2_0, false},   {"TQ1_0", MIX_TQ1_0, OB_TQ1_0, false},
    {"Q1_0", MIX_Q1_0, OB_Q1_0, false},
};

const char *ob_convert_type_name(int index)
{
    return index >= 0 && index < (int)OB_COUNT(k_mixes) ? k_mixes[index].name : NULL;
}

static ob_status find_mix(const char *name, const mix_info **out, ob_err *err)
{
    static const char *const alias[][2] = {{"Q3_K", "Q3_K_M"}, {"Q4_K", "Q4_K_M"}, {"Q5_K", "Q5_K_M"}};
    for (size_t i = 0; i < OB_COUNT(alias); i++)
        if (!strcasecmp(name, alias[i][0])) name = alias[i][1];
    for (size_t i = 0; i < OB_COUNT(k_mixes); i++)
        if (!strcasecmp(name, k_mixes[i].name)) {
            *out = &k_mixes[i];
            return OB_OK;
        }
    ob_buf list;
    ob_buf_init(&list, 400);
    for (size_t i = 0; i < OB_COUNT(k_mixes); i++) ob_buf_addf(&list, "%s%s", i ? " " : "", k_mixes[i].name);
    ob_status s = ob_err_set(err, OB_E_INVALID, "type %.40s cannot be written (known: %s)", name, ob_buf_str(&list));
    ob_buf_deinit(&list);
    return s;
}

/* ---- rules of the user --------------------------------------------------------------------------- */

typedef struct rule {
    pcre2_code *re;
    ob_type type;
} rule;

static ob_status rule_parse(const char *text, rule *r, ob_err *err)
{
    const char *eq = strrchr(text, '=');
    int code;
    PCRE2_SIZE at;
    if (!eq || eq == text) return ob_err_set(err, OB_E_INVALID, "rule \"%.100s\" is not REGEX=TYPE", text);
    if (!ob_type_from_name(eq + 1, &r->type) || !ob_type_get(r->type)->quant || !ob_type_get(r->type)->weight)
        return ob_err_set(err, OB_E_INVALID, "rule \"%.100s\": type %.40s cannot be written", text, eq + 1);
    r->re = pcre2_compile((PCRE2_SPTR)text, (PCRE2_SIZE)(eq - text), 0, &code, &at, NULL);
    if (!r->re) {
        PCRE2_UCHAR why[120];
        pcre2_get_error_message(code, why, sizeof why);
        return ob_err_set(err, OB_E_INVALID, "rule \"%.100s\", character %zu: %s", text, (size_t)at + 1, (char *)why);
    }
    return OB_OK;
}

/* The first rule that matches; NULL if none does. */
static const rule *rule_match(const rule *rules, int n, const char *name, pcre2_match_data *md)
{
    for (int i = 0; i < n; i++)
        if (pcre2_match(rules[i].re, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, md, NULL) >= 0) return &rules[i];
    return NULL;
}

/* ---- what a tensor is ---------------------------------------------------------------------------- */

typedef enum category {
    CAT_OTHER, CAT_EMBED, CAT_OUTPUT, CAT_ATTN_V, CAT_ATTN_K, CAT_ATTN_OUT, CAT_FFN_DOWN
} category;

static bool has(const char *name, const char *part) { return strstr(name, part) != NULL; }

static category category_of(const char *name)
{
    if (!strcmp(name, "output.weight")) return CAT_OUTPUT;
    if (!strcmp(name, "token_embd.weight") || !strcmp(name, "per_layer_token_embd.weight")) return CAT_EMBED;
    if (has(name, "attn_qkv.weight") || has(name, "attn_kv_b.weight") || has(name, "attn_v.weight")) return CAT_ATTN_V;
    if (has(name, "attn_k.weight")) return CAT_ATTN_K;
    if (has(name, "attn_output.weight")) return CAT_ATTN_OUT;
    if (has(name, "ffn_down")) return CAT_FFN_DOWN;
    return CAT_OTHER;
}

/* Vectors, norms, routers, convolutions and other small things stay as they are. */
static bool may_quantize(const ob_tensor *t)
{
    static const char *const keep[] = {
        "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "ssm_conv1d", "shortconv.conv.weight",
        "position_embd", "token_types.weight", "attn_rel_b.weight", "per_layer_model_proj", "altup", "laurel",
        "indexer.k_proj.weight", "indexer.q_proj.weight", "time_mix_", ".rel_pos", ".patch_embd", ".patch_merger",
    };
    const size_t n = strlen(t->name);
    if (n < 6 || strcmp(t->name + n - 6, "weight")) return false;
    if (t->ne[1] == 1 && t->ne[2] == 1 && t->ne[3] == 1) return false;
    for (size_t i = 0; i < OB_COUNT(keep); i++)
        if (has(t->name, keep[i])) return false;
    return true;
}

static int layer_of(const char *name) { return strncmp(name, "blk.", 4) ? -1 : atoi(name + 4); }

/* ---- the mixes ----------------------------------------------------------------------------------- */

typedef struct model_facts {
    int64_t n_layer, n_expert, n_gqa; /* n_gqa: heads per kv head */
    bool tied;                        /* token_embd is also the output matrix */
    bool large;                       /* 80 layers: attn_v is a small part of it */
    bool imatrix;
    int n_attn_v;
} model_facts;

static int64_t number(const ob_file *f, ob_str arch, const char *suffix, int64_t otherwise)
{
    int64_t x = otherwise;
    const ob_kv *kv = ob_file_find_kvf(f, "%.*s.%s", (int)arch.len, arch.data, suffix);
    return kv && kv->n && ob_kv_elem_i64(kv, 0, &x) ? x : otherwise;
}

static void read_facts(const ob_file *f, const ob_quantize_params *p, model_facts *m)
{
    ob_str arch = {"", 0};
    (void)ob_kv_str(ob_file_find_kv(f, "general.architecture"), &arch);
    *m = (model_facts){.n_layer = number(f, arch, "block_count", 0), .n_expert = number(f, arch, "expert_count", 0),
                       .tied = !ob_file_find_tensor(f, "output.weight"), .imatrix = p->imatrix != NULL};
    const int64_t n_head = number(f, arch, "attention.head_count", 1);
    const int64_t n_kv = number(f, arch, "attention.head_count_kv", n_head);
    m->n_gqa = n_kv > 0 ? n_head / n_kv : 1;
    m->large = m->n_layer == 80;
    for (size_t i = 0; i < ob_file_n_tensors(f); i++)
        m->n_attn_v += category_of(ob_file_tensor(f, i)->name) == CAT_ATTN_V;
}

/* The first and last eighth, and every third between. */
static bool more_bits(int64_t i, int64_t n) { return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2; }

static ob_type attn_v_type(const model_facts *m, const mix_info *x, int64_t i)
{
    ob_type t = x->type;
    switch (x->id) {
    case MIX_Q2_K: t = m->n_gqa >= 4 ? OB_Q4_K : OB_Q3_K; break;
    case MIX_Q2_K_S: t = m->n_gqa >= 4 ? OB_Q4_K : t; break;
    case MIX_Q3_K_M: t = i < 2 ? OB_Q5_K : OB_Q4_K; break;
    case MIX_Q3_K_L: t = OB_Q5_K; break;
    case MIX_IQ4_NL:
    case MIX_IQ4_XS: t = m->n_gqa >= 4 ? OB_Q5_K : t; break;
    case MIX_Q4_K_M:
    case MIX_Q5_K_M: t = more_bits(i, m->n_attn_v) ? OB_Q6_K : t; break;
    case MIX_Q4_K_S: t = i < 4 ? OB_Q5_K : t; break;
    default: break;
    }
    if (m->large && (t == OB_Q3_K || t == OB_Q4_K)) t = OB_Q5_K;
    return m->n_expert == 8 ? OB_Q8_0 : t;
}

static ob_type ffn_down_type(const model_facts *m, const mix_info *x, int64_t i)
{
    const int64_t n = m->n_layer;
    switch (x->id) {
    case MIX_Q2_K: return OB_Q3_K;
    case MIX_Q2_K_S: return i < n / 8 ? OB_Q4_K : x->type;
    case MIX_Q3_K_M: return i < n / 16 ? OB_Q5_K : OB_Q4_K;
    case MIX_Q3_K_L: return OB_Q5_K;
    case MIX_Q4_K_M:
    case MIX_Q5_K_M: return more_bits(i, n) ? OB_Q6_K : x->type;
    case MIX_Q4_K_S: return i < n / 8 ? OB_Q5_K : x->type;
    case MIX_IQ4_NL:
    case MIX_IQ4_XS: return i < n / 8 && !m->imatrix ? OB_Q5_K : x->type;
    /* Four bits with importance can go wrong in the first of these. */
    case MIX_Q4_0: return i < n / 8 && m->imatrix ? OB_Q4_1 : x->type;
    case MIX_Q5_0: return i < n / 8 && m->imatrix ? OB_Q5_1 : x->type;
    default: return x->type;
    }
}

static ob_type attn_out_type(const model_facts *m, const mix_info *x)
{
    const mix id = x->id;
    if (m->n_expert == 8) {
        const bool low = id == MIX_Q2_K || id == MIX_Q3_K_S || id == MIX_Q3_K_M || id == MIX_IQ4_NL || id == MIX_IQ4_XS ||
                         id == MIX_Q4_K_S || id == MIX_Q4_K_M;
        return low ? OB_Q5_K : x->type;
    }
    return id == MIX_Q2_K ? OB_Q3_K : id == MIX_Q3_K_M ? OB_Q4_K : id == MIX_Q3_K_L ? OB_Q5_K : x->type;
}

/* at: how many of the same category stand before it, by layer. */
static ob_type mixed_type(const model_facts *m, const mix_info *x, const ob_tensor *t, int64_t at)
{
    const category c = category_of(t->name);
    if (c == CAT_OUTPUT || (c == CAT_EMBED && m->tied)) {
        if (x->id == MIX_MXFP4_MOE || t->ne[0] % ob_type_get(x->type)->block_elems) return OB_Q8_0;
        return x->type == OB_Q8_0 ? OB_Q8_0 : OB_Q6_K;
    }
    if (x->id == MIX_MXFP4_MOE) return t->ne[2] > 1 ? OB_MXFP4 : OB_Q8_0;
    switch (c) {
    case CAT_EMBED: return x->id == MIX_TQ1_0 || x->id == MIX_TQ2_0 || x->id == MIX_Q2_0 ? OB_Q4_K : x->type;
    case CAT_ATTN_V: return attn_v_type(m, x, at);
    case CAT_ATTN_K: return m->n_expert == 8 ? OB_Q8_0 : x->type;
    case CAT_FFN_DOWN: return ffn_down_type(m, x, m->n_expert > 1 ? layer_of(t->name) : at);
    case CAT_ATTN_OUT: return attn_out_type(m, x);
    default: return x->type;
    }
}

/* A type of as many bits or more whose blocks fit the row. */
static ob_type fitting_type(ob_type t, int64_t n, bool *fallback)
{
    *fallback = n % ob_type_get(t)->block_elems != 0;
    if (!*fallback) return t;
    switch (t) {
    case OB_Q4_K: t = OB_Q5_0; break;
    case OB_Q5_K: t = OB_Q5_1; break;
    case OB_Q6_K: t = OB_Q8_0; break;
    case OB_IQ4_XS: t = OB_IQ4_NL; break;
    default: t = OB_Q4_0; break;
    }
    return n % ob_type_get(t)->block_elems ? OB_F16 : t;
}

/* ---- rotated files ------------------------------------------------------------------------------- */

/* blk.N.STEM.weight, STEM with _exps or _shexp where it is a feed-forward matrix. */
static bool rotates(const char *name)
{
    static const char *const stems[] = {
        "attn_qkv", "attn_gate", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down",
        "ssm_alpha", "ssm_beta", "attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b", "attn_k_b", "attn_v_b",
    };
    const char *stem = strncmp(name, "blk.", 4) ? NULL : strchr(name + 4, '.');
    const char *end = stem ? strrchr(name, '.') : NULL;
    if (!stem || end <= stem || strcmp(end, ".weight")) return false;
    stem++;
    size_t n = (size_t)(end - stem);
    if (n > 5 && !strncmp(stem, "ffn_", 4) && !memcmp(end - 5, "_exps", 5)) n -= 5;
    else if (n > 6 && !strncmp(stem, "ffn_", 4) && !memcmp(end - 6, "_shexp", 6)) n -= 6;
    for (size_t i = 0; i < OB_COUNT(stems); i++)
        if (strlen(stems[i]) == n && !memcmp(stems[i], stem, n)) return true;
    return false;
}

/* r: the user's rule, or NULL. */
static conv_target rotated_target(const model_facts *m, const ob_tensor *t, const rule *r)
{
    conv_target c = {.type = OB_Q8_0, .by_rule = r != NULL};
    const category cat = category_of(t->name);
    const bool may_rotate = rotates(t->name);
    if (r) c.type = r->type;
    else if (may_rotate) c.type = OB_Q4_0;
    else if (cat == CAT_OUTPUT) c.type = OB_Q6_K;
    else if (cat == CAT_EMBED && !m->tied) c.type = OB_Q4_0;
    else if (has(t->name, "ssm_out.weight")) c.type = OB_Q5_K;
    c.type = fitting_type(c.type, t->ne[0], &c.fallback);
    /* In a marked file a Q4_0 matrix is a rotated one; only the table of embeddings is not multiplied. */
    if (c.type == OB_Q4_0 && !may_rotate && (cat != CAT_EMBED || m->tied)) c.type = OB_Q8_0;
    c.rotate = may_rotate && c.type == OB_Q4_0;
    return c;
}

/* ---- all together -------------------------------------------------------------------------------- */

typedef struct place {
    int layer;
    size_t index;
} place;

static int by_layer(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static conv_target choose(const model_facts *m, const mix_info *x, const ob_quantize_params *p, const rule *r,
                          const ob_tensor *t, int64_t at)
{
    conv_target c = {.type = (ob_type)t->type};
    /* Vectors of half precision, as safetensors have them: other engines read them as F32 only. */
    if (t->ne[1] == 1 && t->ne[2] == 1 && t->ne[3] == 1 && (t->type == OB_F16 || t->type == OB_BF16 || t->type == OB_F64)) c.type = OB_F32;
    if (!may_quantize(t)) return c;
    if (p->rotate) return rotated_target(m, t, r);
    c.by_rule = r != NULL;
    c.type = r ? r->type : x->pure || p->pure ? x->type : mixed_type(m, x, t, at);
    c.type = fitting_type(c.type, t->ne[0], &c.fallback);
    return c;
}

ob_status conv_choose_types(const ob_file *f, const ob_quantize_params *p, conv_target *targets, uint32_t *file_type,
                            ob_err *err)
{
    ob_status s;
    const size_t n = ob_file_n_tensors(f);
    const mix_info *x = NULL;
    model_facts m;
    int64_t seen[CAT_FFN_DOWN + 1] = {0};
    place *order = ob_calloc(n, sizeof *order);
    rule *rules = ob_calloc((size_t)p->n_rules, sizeof *rules);
    pcre2_match_data *md = pcre2_match_data_create(1, NULL);
    if (!order || !rules || !md) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory to choose types");
        goto out;
    }
    OB_GOTO(find_mix(p->rotate ? "Q4_0" : p->type, &x, err));
    *file_type = (uint32_t)x->id;
    for (int i = 0; i < p->n_rules; i++) OB_GOTO(rule_parse(p->rules[i], &rules[i], err));
    read_facts(f, p, &m);
    for (size_t i = 0; i < n; i++) order[i] = (place){layer_of(ob_file_tensor(f, i)->name), i};
    qsort(order, n, sizeof *order, by_layer);
    for (size_t i = 0; i < n; i++) {
        const ob_tensor *t = ob_file_tensor(f, order[i].index);
        const rule *r = rule_match(rules, p->n_rules, t->name, md);
        targets[order[i].index] = choose(&m, x, p, r, t, seen[category_of(t->name)]++);
    }
out:
    for (int i = 0; rules && i < p->n_rules; i++) pcre2_code_free(rules[i].re);
    pcre2_match_data_free(md);
    ob_free(rules);
    ob_free(order);
    return s;
}
