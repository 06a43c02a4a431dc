#include "graph/graph_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"

/* A program and everything it points at live in one arena. */
typedef struct program_box {
    ob_program prog;
    ob_arena arena;
} program_box;

static void stick(ob_builder *b, ob_status s)
{
    if (b->s == OB_OK) b->s = s;
}

static void *no_memory(ob_builder *b)
{
    stick(b, ob_err_set(b->err, OB_E_NO_MEMORY, "no memory to build the model's program"));
    return NULL;
}

/* Grow an arena array by doubling; the old copy stays in the arena until the program is freed. */
static void *grow(ob_builder *b, void *array, int32_t n, int32_t *cap, size_t size)
{
    if (n < *cap) return array;
    int32_t want = *cap ? *cap * 2 : 64;
    void *p = ob_arena_array(b->arena, (size_t)want, size);
    if (!p) return no_memory(b);
    if (n) memcpy(p, array, (size_t)n * size);
    *cap = want;
    return p;
}

/* ------------------------------------------------------------------ weights */

static int32_t add_weight(ob_builder *b, ob_weight_use use, bool optional, const char *name)
{
    if (b->s != OB_OK) return OB_NONE;
    const ob_tensor *t = ob_file_find_tensor(b->m->file, name);
    if (!t) {
        if (!optional)
            stick(b, ob_err_set(b->err, OB_E_FORMAT, "tensor %s is missing (architecture %s needs it)",
                                name, b->m->arch->name));
        return OB_NONE;
    }
    b->tensor_used[t - ob_file_tensor(b->m->file, 0)] = 1;
    if (t->rope_heads)
        stick(b, ob_err_set(b->err, OB_E_UNSUPPORTED, "the rows of %s lie in Hugging Face's order: `1bit quantize FOLDER FILE.gguf F16` "
                            "(or another type) makes a file that runs", name));
    for (int32_t i = 0; i < b->p->n_weights; i++)
        if (b->p->weights[i].data == t->data && b->p->weights[i].use == use && b->p->weights[i].ne[1] == t->ne[1] &&
            b->p->weights[i].ne[2] == t->ne[2])
            return i;
    const ob_type_info *ti = ob_type_get(t->type);
    if (!ti->name || (!ti->dequant && use != OB_USE_TABLE)) {
        stick(b, ob_err_set(b->err, OB_E_UNSUPPORTED, "tensor %s has type %s, which is no weight type",
                            name, ti->name ? ti->name : "?"));
        return OB_NONE;
    }
    ob_weight *w = grow(b, b->p->weights, b->p->n_weights, &b->cap_weights, sizeof *w);
    if (!w) return OB_NONE;
    b->p->weights = w;
    w += b->p->n_weights;
    *w = (ob_weight){.name = t->name, .type = (ob_type)t->type, .data = t->data, .n_bytes = t->n_bytes,
                     .use = use};
    for (int i = 0; i < 4; i++) w->ne[i] = t->ne[i];
    w->hadamard = b->m->hadamard && t->type == OB_Q4_0 && (use == OB_USE_LINEAR || use == OB_USE_EXPERTS);
    w->act4 = w->hadamard && (b->m->opt.act4 == OB_ACT4_ALL || (b->m->opt.act4 == OB_ACT4_ATTN && !strstr(name, ".ffn_")));
    if (w->hadamard && !strcmp(name, "token_embd.weight"))
        stick(b, ob_err_set(b->err, OB_E_FORMAT, "tensor %s is Q4_0 and multiplied: in a Hadamard-rotated file it cannot "
                            "be both plain and rotated", name));
    return b->p->n_weights++;
}

int32_t ob_b_weight(ob_builder *b, ob_weight_use use, const char *fmt, ...)
{
    char name[OB_MAX_TENSOR_NAME_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    return add_weight(b, use, false, name);
}

int32_t ob_b_weight_opt(ob_builder *b, ob_weight_use use, const char *fmt, ...)
{
    char name[OB_MAX_TENSOR_NAME_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    return add_weight(b, use, true, name);
}

static int32_t add_view(ob_builder *b, ob_weight_use use, const char *name, int64_t first, int64_t n, int64_t n_mat)
{
    const int32_t n_before = b->p->n_weights;
    int32_t i = add_weight(b, use, false, name);
    if (i == OB_NONE) return OB_NONE;
    ob_weight w = b->p->weights[i];
    const size_t row_bytes = ob_type_row_bytes(w.type, w.ne[0]);
    if (n < 0) n = w.ne[1];
    if (w.ne[2] != 1 || w.ne[3] != 1 || first < 0 || n < 1 || first > w.ne[1] - n || n % n_mat || !row_bytes) {
        stick(b, ob_err_set(b->err, OB_E_FORMAT, "tensor %s has the wrong shape for architecture %s", name,
                            b->m->arch->name));
        return OB_NONE;
    }
    w.data = (const char *)w.data + (size_t)first * row_bytes;
    w.n_bytes = (size_t)n * row_bytes;
    w.ne[1] = n / n_mat;
    w.ne[2] = n_mat;
    for (int32_t k = 0; k < b->p->n_weights; k++)
        if (k != i && b->p->weights[k].data == w.data && b->p->weights[k].use == use &&
            b->p->weights[k].ne[1] == w.ne[1]) {
            b->p->n_weights = n_before;
            return k;
        }
    if (i == n_before) { /* only just added for this view: it takes its place */
        b->p->weights[i] = w;
        return i;
    }
    ob_weight *all = grow(b, b->p->weights, b->p->n_weights, &b->cap_weights, sizeof *all);
    if (!all) return OB_NONE;
    b->p->weights = all;
    all[b->p->n_weights] = w;
    return b->p->n_weights++;
}

int32_t ob_b_weight_rows(ob_builder *b, ob_weight_use use, int64_t first, int64_t n, const char *fmt, ...)
{
    char name[OB_MAX_TENSOR_NAME_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    return add_view(b, use, name, first, n, 1);
}

int32_t ob_b_vector_part_opt(ob_builder *b, int64_t first, int64_t n, const char *fmt, ...)
{
    char name[OB_MAX_TENSOR_NAME_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    const ob_tensor *t = ob_file_find_tensor(b->m->file, name);
    if (b->s != OB_OK || !t) return OB_NONE;
    b->tensor_used[t - ob_file_tensor(b->m->file, 0)] = 1;
    const size_t bytes = ob_type_row_bytes((ob_type)t->type, 1);
    if (t->n_dims != 1 || first < 0 || n < 1 || first > t->ne[0] - n || !bytes) {
        stick(b, ob_err_set(b->err, OB_E_FORMAT, "tensor %s has the wrong shape for architecture %s", name,
                            b->m->arch->name));
        return OB_NONE;
    }
    ob_weight *w = grow(b, b->p->weights, b->p->n_weights, &b->cap_weights, sizeof *w);
    if (!w) return OB_NONE;
    b->p->weights = w;
    w[b->p->n_weights] = (ob_weight){.name = t->name, .type = (ob_type)t->type, .ne = {n, 1, 1, 1},
                                     .data = (const char *)t->data + (size_t)first * bytes,
                                     .n_bytes = (size_t)n * bytes, .use = OB_USE_VECTOR};
    return b->p->n_weights++;
}

int32_t ob_b_weight_flat(ob_builder *b, ob_weight_use use, const char *fmt, ...)
{
    char name[OB_MAX_TENSOR_NAME_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    const int32_t i = add_weight(b, use, false, name);
    if (i == OB_NONE) return OB_NONE;
    ob_weight *w = &b->p->weights[i];
    if (ob_type_get(w->type)->block_elems != 1) {
        stick(b, ob_err_set(b->err, OB_E_UNSUPPORTED, "tensor %s has type %s: a convolution's taps must be F32, F16 or BF16",
                            name, ob_type_get(w->type)->name));
        return OB_NONE;
    }
    w->ne[0] *= w->ne[1] * w->ne[2]; /* the reader has checked that the product fits */
    w->ne[1] = w->ne[3];
    w->ne[2] = w->ne[3] = 1;
    return i;
}

int32_t ob_b_weight_turned(ob_builder *b, const char *name)
{
    const int32_t i = add_weight(b, OB_USE_LINEAR, false, name);
    if (i == OB_NONE) return OB_NONE;
    ob_weight *w = &b->p->weights[i];
    const int64_t n = w->ne[0], k = w->ne[1];
    const size_t size = ob_type_row_bytes(w->type, 1);
    if (!size || w->ne[2] * w->ne[3] != 1) {
        stick(b, ob_err_set(b->err, OB_E_UNSUPPORTED, "tensor %s must be a matrix of type F32, F16 or BF16", name));
        return OB_NONE;
    }
    char *dst = ob_arena_array(b->arena, (size_t)(n * k), size);
    if (!dst) {
        no_memory(b);
        return OB_NONE;
    }
    const char *src = w->data;
    for (int64_t r = 0; r < n && src; r++)
        for (int64_t c = 0; c < k; c++) memcpy(dst + (size_t)(r * k + c) * size, src + (size_t)(c * n + r) * size, size);
    w->data = dst;
    w->ne[0] = k;
    w->ne[1] = n;
    return i;
}

int32_t ob_b_weight_heads(ob_builder *b, int64_t n_mat, const char *fmt, ...)
{
    char name[OB_MAX_TENSOR_NAME_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    return add_view(b, OB_USE_EXPERTS, name, 0, -1, n_mat);
}

void ob_b_ignore_layer(ob_builder *b, int32_t l)
{
    char prefix[32];
    const int n = snprintf(prefix, sizeof prefix, "blk.%d.", l);
    for (size_t i = 0; i < ob_file_n_tensors(b->m->file); i++)
        if (!strncmp(ob_file_tensor(b->m->file, i)->name, prefix, (size_t)n)) b->tensor_used[i] = 1;
}

void ob_b_ignore(ob_builder *b, const char *fmt, ...)
{
    char name[OB_MAX_TENSOR_NAME_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    const ob_tensor *t = ob_file_find_tensor(b->m->file, name);
    if (t) b->tensor_used[t - ob_file_tensor(b->m->file, 0)] = 1;
}

/* ------------------------------------------------------------------ values and ops */

ob_val ob_b_value(ob_builder *b, const char *name, ob_rows rows, int64_t cols)
{
    if (b->s != OB_OK) return OB_NONE;
    if (cols <= 0 || cols > INT32_MAX / 8) {
        stick(b, ob_err_set(b->err, OB_E_FORMAT, "%s of layer %d would have %lld columns", name,
                            b->layer, (long long)cols));
        return OB_NONE;
    }
    ob_value *v = grow(b, b->p->vals, b->p->n_vals, &b->cap_vals, sizeof *v);
    if (!v) return OB_NONE;
    b->p->vals = v;
    v[b->p->n_vals] = (ob_value){.rows = rows, .cols = (int32_t)cols, .name = name};
    return b->p->n_vals++;
}

ob_op *ob_b_op(ob_builder *b, ob_op_kind kind)
{
    if (b->s != OB_OK) return NULL;
    ob_op *op = grow(b, b->p->ops, b->p->n_ops, &b->cap_ops, sizeof *op);
    if (!op) return NULL;
    b->p->ops = op;
    op += b->p->n_ops++;
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->layer = b->layer;
    for (int i = 0; i < OB_OP_MAX_IN; i++) op->in[i] = OB_NONE;
    for (int i = 0; i < OB_OP_MAX_OUT; i++) op->out[i] = OB_NONE;
    for (int i = 0; i < OB_OP_MAX_W; i++) op->w[i] = OB_NONE;
    return op;
}

int32_t ob_b_cache(ob_builder *b, int32_t n_head_kv, int32_t k_dim, int32_t v_dim)
{
    if (b->s != OB_OK) return OB_NONE;
    ob_cache_spec *c = grow(b, b->p->caches, b->p->n_caches, &b->cap_caches, sizeof *c);
    if (!c) return OB_NONE;
    b->p->caches = c;
    c[b->p->n_caches] = (ob_cache_spec){.n_head_kv = n_head_kv, .k_dim = k_dim, .v_dim = v_dim};
    return b->p->n_caches++;
}

int32_t ob_b_state(ob_builder *b, const char *name, int64_t n_floats)
{
    if (b->s != OB_OK) return OB_NONE;
    ob_state_spec *st = grow(b, b->p->states, b->p->n_states, &b->cap_states, sizeof *st);
    if (!st) return OB_NONE;
    b->p->states = st;
    st[b->p->n_states] = (ob_state_spec){.n_floats = n_floats, .name = name};
    return b->p->n_states++;
}

int32_t ob_b_cols(const ob_builder *b, ob_val v)
{
    return b->s == OB_OK && v != OB_NONE ? b->p->vals[v].cols : 0;
}

static ob_rows rows_of(const ob_builder *b, ob_val v)
{
    return b->s == OB_OK && v != OB_NONE ? b->p->vals[v].rows : OB_ROWS_TOK;
}

int64_t ob_b_ne(const ob_builder *b, int32_t w, int i)
{
    return b->s == OB_OK && w != OB_NONE ? b->p->weights[w].ne[i] : 0;
}

ob_val ob_b_embed(ob_builder *b, int32_t table, float scale)
{
    ob_val y = ob_b_value(b, "embedding", OB_ROWS_TOK, ob_b_ne(b, table, 0));
    ob_op *op = ob_b_op(b, OB_OP_EMBED);
    if (!op) return OB_NONE;
    op->out[0] = y;
    op->w[0] = table;
    op->p.embed.scale = scale;
    op->p.embed.vectors = b->m->opt.pictures;
    return y;
}

ob_val ob_b_vectors(ob_builder *b, int64_t cols)
{
    ob_val y = ob_b_value(b, "vectors", OB_ROWS_TOK, cols);
    ob_op *op = ob_b_op(b, OB_OP_EMBED);
    if (!op) return OB_NONE;
    op->out[0] = y;
    op->p.embed.scale = 1.0f;
    op->p.embed.vectors = true;
    return y;
}

ob_val ob_b_merge(ob_builder *b, ob_val x, int32_t n, bool mean)
{
    ob_val y = ob_b_value(b, "merge", OB_ROWS_OUT, (int64_t)ob_b_cols(b, x) * (mean ? 1 : n));
    ob_op *op = ob_b_op(b, OB_OP_MERGE);
    if (!op) return OB_NONE;
    op->in[0] = x;
    op->out[0] = y;
    op->p.merge.n = n;
    op->p.merge.mean = mean;
    return y;
}

ob_val ob_b_rows_out(ob_builder *b, ob_val x)
{
    ob_val y = ob_b_value(b, "rows_out", OB_ROWS_OUT, ob_b_cols(b, x));
    ob_op *op = ob_b_op(b, OB_OP_ROWS_OUT);
    if (!op) return OB_NONE;
    op->in[0] = x;
    op->out[0] = y;
    return y;
}

ob_val ob_b_rms_norm(ob_builder *b, ob_val x, int32_t w, float eps, int32_t group)
{
    ob_val y = ob_b_value(b, "rms_norm", rows_of(b, x), ob_b_cols(b, x));
    ob_op *op = ob_b_op(b, OB_OP_RMS_NORM);
    if (!op) return OB_NONE;
    op->in[0] = x;
    op->out[0] = y;
    op->w[0] = w;
    op->p.norm.eps = eps;
    op->p.norm.group = group;
    return y;
}

ob_val ob_b_layer_norm(ob_builder *b, ob_val x, int32_t w, int32_t bias, float eps)
{
    ob_val y = ob_b_value(b, "layer_norm", rows_of(b, x), ob_b_cols(b, x));
    ob_op *op = ob_b_op(b, OB_OP_LAYER_NORM);
    if (!op) return OB_NONE;
    op->in[0] = x;
    op->out[0] = y;
    op->w[0] = w;
    op->w[1] = bias;
    op->p.norm.eps = eps;
    return y;
}

ob_val ob_b_add_row(ob_builder *b, ob_val x, int32_t table, ob_row_of by)
{
    ob_op *op = ob_b_op(b, OB_OP_ADD_ROW);
    if (!op) return OB_NONE;
    op->in[0] = op->out[0] = x;
    op->w[0] = table;
    op->p.add_row.by = by;
    return x;
}

ob_val ob_b_pool(ob_builder *b, ob_val x, ob_pooling mode)
{
    ob_val y = ob_b_value(b, "pool", OB_ROWS_SEQ, ob_b_cols(b, x));
    ob_op *op = ob_b_op(b, OB_OP_POOL);
    if (!op) return OB_NONE;
    op->in[0] = x;
    op->out[0] = y;
    op->p.pool.mode = mode;
    return y;
}

void ob_b_embeddings(ob_builder *b, ob_val x)
{
    const ob_pooling mode = b->m->hp.pooling;
    if (mode != OB_POOLING_NONE) x = ob_b_pool(b, x, mode);
    if (b->s != OB_OK) return;
    b->p->vals[x].name = "embeddings";
    b->p->vals[x].output = true;
    b->p->embeddings = x;
}

void ob_b_scores(ob_builder *b, ob_val y)
{
    if (b->s != OB_OK) return;
    b->p->vals[y].name = "logits";
    b->p->vals[y].output = true;
    b->p->logits = y;
}

void ob_b_linears(ob_builder *b, ob_val x, int n, const int32_t *w, const int32_t *bias, ob_val *out)
{
    for (int i = 0; i < n; i++) out[i] = ob_b_value(b, "linear", rows_of(b, x), ob_b_ne(b, w[i], 1));
    ob_op *op = ob_b_op(b, OB_OP_LINEAR);
    if (!op) {
        for (int i = 0; i < n; i++) out[i] = OB_NONE;
        return;
    }
    op->in[0] = x;
    op->p.linear.n_mat = n;
    op->p.linear.scale = 1.0f;
    for (int i = 0; i < n; i++) {
        op->out[i] = out[i];
        op->w[i] = w[i];
        op->w[4 + i] = bias ? bias[i] : OB_NONE;
    }
}

ob_val ob_b_linear(ob_builder *b, ob_val x, int32_t w, int32_t bias)
{
    ob_val y;
    ob_b_linears(b, x, 1, &w, &bias, &y);
    return y;
}

ob_val ob_b_linear_add(ob_builder *b, ob_val x, int32_t w, int32_t bias, ob_val res, float scale)
{
    ob_op *op = ob_b_op(b, OB_OP_LINEAR);
    if (!op) return OB_NONE;
    op->in[0] = x;
    op->in[1] = op->out[0] = res;
    op->w[0] = w;
    op->w[4] = bias;
    op->p.linear.n_mat = 1;
    op->p.linear.scale = scale;
    return res;
}

ob_val ob_b_rope(ob_builder *b, ob_val x, const ob_rope_params *p, int32_t factors)
{
    ob_op *op = ob_b_op(b, OB_OP_ROPE);
    if (!op) return OB_NONE;
    op->in[0] = op->out[0] = x;
    op->w[0] = factors;
    op->p.rope = *p;
    return x;
}

ob_val ob_b_attention(ob_builder *b, ob_val q, ob_val k, ob_val v, const ob_attn_params *p)
{
    ob_val y = ob_b_value(b, "attention", OB_ROWS_TOK, (int64_t)p->n_head * p->v_dim);
    ob_op *op = ob_b_op(b, OB_OP_ATTENTION);
    if (!op) return OB_NONE;
    op->in[0] = q;
    op->in[1] = k;
    op->in[2] = v;
    op->out[0] = y;
    op->p.attn = *p;
    return y;
}

ob_val ob_b_glu(ob_builder *b, ob_val gate, ob_val up, ob_act act, float clamp)
{
    ob_op *op = ob_b_op(b, OB_OP_GLU);
    if (!op) return OB_NONE;
    op->in[0] = op->out[0] = gate;
    op->in[1] = up;
    op->p.glu.act = act;
    op->p.glu.clamp = clamp;
    return gate;
}

ob_val ob_b_scale(ob_builder *b, ob_val x, float scale, float softcap)
{
    if (scale == 1.0f && softcap == 0.0f) return x;
    ob_op *op = ob_b_op(b, OB_OP_SCALE);
    if (!op) return OB_NONE;
    op->in[0] = op->out[0] = x;
    op->p.scale.scale = scale;
    op->p.scale.softcap = softcap;
    return x;
}

ob_val ob_b_add(ob_builder *b, ob_val res, ob_val x)
{
    ob_op *op = ob_b_op(b, OB_OP_ADD);
    if (!op) return OB_NONE;
    op->in[0] = op->out[0] = res;
    op->in[1] = x;
    op->p.add.scale = 1.0f;
    return res;
}

ob_val ob_b_act(ob_builder *b, ob_val x, ob_act act)
{
    ob_op *op = ob_b_op(b, OB_OP_ACT);
    if (!op) return OB_NONE;
    op->in[0] = op->out[0] = x;
    op->p.act.act = act;
    return x;
}

ob_val ob_b_affine(ob_builder *b, ob_val x, ob_val x2, const int32_t w[4])
{
    ob_op *op = ob_b_op(b, OB_OP_AFFINE);
    if (!op) return OB_NONE;
    op->in[0] = op->out[0] = x;
    op->in[1] = x2;
    for (int i = 0; i < 4; i++) op->w[i] = w[i];
    return x;
}

ob_val ob_b_gate(ob_builder *b, ob_val x, ob_val gate, ob_val res)
{
    ob_op *op = ob_b_op(b, OB_OP_GATE);
    if (!op) return OB_NONE;
    op->in[0] = x;
    op->in[1] = gate;
    op->in[2] = res;
    op->out[0] = res == OB_NONE ? x : res;
    return op->out[0];
}

void ob_b_split(ob_builder *b, ob_val x, int32_t n_group, int32_t first_cols, ob_val out[2])
{
    out[0] = ob_b_value(b, "split", rows_of(b, x), first_cols);
    out[1] = ob_b_value(b, "split", rows_of(b, x), (int64_t)ob_b_cols(b, x) - first_cols);
    ob_op *op = ob_b_op(b, OB_OP_SPLIT);
    if (!op) return;
    op->in[0] = x;
    op->out[0] = out[0];
    op->out[1] = out[1];
    op->p.split.n_group = n_group;
}

ob_val ob_b_join(ob_builder *b, ob_val x, ob_val x2, int32_t n_group)
{
    ob_val y = ob_b_value(b, "join", rows_of(b, x), (int64_t)ob_b_cols(b, x) + ob_b_cols(b, x2));
    ob_op *op = ob_b_op(b, OB_OP_JOIN);
    if (!op) return OB_NONE;
    op->in[0] = x;
    op->in[1] = x2;
    op->out[0] = y;
    op->p.join.n_group = n_group;
    return y;
}

ob_val ob_b_linear_heads(ob_builder *b, ob_val x, int32_t w, int32_t n_head, int32_t tail)
{
    ob_val y = ob_b_value(b, "linear_heads", rows_of(b, x), n_head * (ob_b_ne(b, w, 1) + tail));
    ob_op *op = ob_b_op(b, OB_OP_LINEAR_HEADS);
    if (!op) return OB_NONE;
    op->in[0] = x;
    op->out[0] = y;
    op->w[0] = w;
    op->p.heads.n_head = n_head;
    op->p.heads.tail = tail;
    return y;
}

void ob_b_route(ob_builder *b, ob_val logits, int32_t bias, int32_t table, const ob_route_params *p, ob_val out[2])
{
    out[0] = ob_b_value(b, "expert ids", rows_of(b, logits), p->n_used);
    out[1] = ob_b_value(b, "expert weights", rows_of(b, logits), p->n_used);
    ob_op *op = ob_b_op(b, OB_OP_MOE_ROUTE);
    if (!op) return;
    op->in[0] = logits;
    op->out[0] = out[0];
    op->out[1] = out[1];
    op->w[0] = bias;
    op->w[1] = table;
    op->p.route = *p;
}

ob_val ob_b_moe_glu(ob_builder *b, ob_val x, const ob_val route[2], ob_val res, const int32_t w[3],
                    const ob_moe_params *p)
{
    const ob_val y = res == OB_NONE ? ob_b_value(b, "experts", rows_of(b, x), ob_b_cols(b, x)) : res;
    ob_op *op = ob_b_op(b, OB_OP_MOE_GLU);
    if (!op) return OB_NONE;
    op->in[0] = x;
    op->in[1] = route[0];
    op->in[2] = route[1];
    op->in[3] = res;
    op->out[0] = y;
    for (int i = 0; i < 3; i++) op->w[i] = w[i];
    op->p.moe = *p;
    return y;
}

void ob_b_cca(ob_builder *b, const ob_val in[4], const int32_t w[5], const ob_cca_params *p, ob_val out[3])
{
    for (int i = 0; i < 3; i++) out[i] = ob_b_value(b, "cca", rows_of(b, in[0]), ob_b_cols(b, in[i ? 1 : 0]));
    ob_op *op = ob_b_op(b, OB_OP_CCA);
    if (!op) return;
    for (int i = 0; i < 4; i++) op->in[i] = in[i];
    for (int i = 0; i < 5; i++) op->w[i] = w[i];
    for (int i = 0; i < 3; i++) op->out[i] = out[i];
    op->p.cca = *p;
}

ob_val ob_b_hc_mix(ob_builder *b, ob_val streams, ob_val mix, const int32_t w[2], const ob_hc_params *p, ob_val *coef)
{
    const int32_t n = p->n_stream;
    ob_val y = ob_b_value(b, "hc_mix", rows_of(b, streams), ob_b_cols(b, streams) / n);
    if (coef) *coef = ob_b_value(b, "hc_mix", rows_of(b, streams), n + n * n);
    ob_op *op = ob_b_op(b, OB_OP_HC_MIX);
    if (!op) return OB_NONE;
    op->in[0] = streams;
    op->in[1] = mix;
    op->w[0] = w[0];
    op->w[1] = w[1];
    op->out[0] = y;
    if (coef) op->out[1] = *coef;
    op->p.hc = *p;
    return y;
}

ob_val ob_b_hc_post(ob_builder *b, ob_val y, ob_val streams, ob_val coef, const ob_hc_params *p)
{
    ob_op *op = ob_b_op(b, OB_OP_HC_POST);
    if (!op) return OB_NONE;
    op->in[0] = y;
    op->in[1] = op->out[0] = streams;
    op->in[2] = coef;
    op->p.hc = *p;
    return streams;
}

ob_val ob_b_csa(ob_builder *b, const ob_val in[8], const int32_t w[5], const ob_csa_params *p)
{
    ob_val y = ob_b_value(b, "csa", rows_of(b, in[0]), ob_b_cols(b, in[0]));
    ob_op *op = ob_b_op(b, OB_OP_CSA);
    if (!op) return OB_NONE;
    for (int i = 0; i < 8; i++) op->in[i] = in[i];
    for (int i = 0; i < 5; i++) op->w[i] = w[i];
    op->out[0] = y;
    op->p.csa = *p;
    return y;
}

ob_val ob_b_conv1d(ob_builder *b, ob_val x, int32_t w, int32_t bias, const ob_conv_params *p)
{
    ob_val y = ob_b_value(b, "conv1d", rows_of(b, x), ob_b_cols(b, x));
    ob_op *op = ob_b_op(b, OB_OP_CONV1D);
    if (!op) return OB_NONE;
    op->in[0] = x;
    op->out[0] = y;
    op->w[0] = w;
    op->w[1] = bias;
    op->p.conv = *p;
    return y;
}

ob_val ob_b_gdn(ob_builder *b, ob_val qkv, ob_val alpha, ob_val beta, int32_t dt_bias, int32_t a,
                const ob_gdn_params *p)
{
    ob_val y = ob_b_value(b, "gdn", rows_of(b, qkv), (int64_t)p->n_head_v * p->v_dim);
    ob_op *op = ob_b_op(b, OB_OP_GDN);
    if (!op) return OB_NONE;
    op->in[0] = qkv;
    op->in[1] = alpha;
    op->in[2] = beta;
    op->out[0] = y;
    op->w[0] = dt_bias;
    op->w[1] = a;
    op->p.gdn = *p;
    return y;
}

void ob_b_logits(ob_builder *b, ob_val x, float scale, float softcap)
{
    int32_t w = ob_b_weight_opt(b, OB_USE_LINEAR, "output.weight");
    if (w == OB_NONE && b->s == OB_OK) w = ob_b_weight(b, OB_USE_LINEAR, "token_embd.weight");
    int32_t bias = ob_b_weight_opt(b, OB_USE_VECTOR, "output.bias");
    ob_val y = ob_b_linear(b, x, w, bias);
    if (b->s != OB_OK) return;
    b->p->ops[b->p->n_ops - 1].p.linear.scale = scale;
    ob_b_scale(b, y, 1.0f, softcap);
    ob_b_scores(b, y);
}

/* ------------------------------------------------------------------ the whole program */

static void check_all_used(ob_builder *b)
{
    for (size_t i = 0; i < ob_file_n_tensors(b->m->file) && b->s == OB_OK; i++)
        if (!b->tensor_used[i])
            stick(b, ob_err_set(b->err, OB_E_UNSUPPORTED,
                                "tensor %s is not used by architecture %s: the model would not run as it "
                                "was made",
                                ob_file_tensor(b->m->file, i)->name, b->m->arch->name));
}

static int32_t writer_of(const ob_program *p, ob_val v, int32_t before)
{
    while (--before >= 0)
        for (int k = 0; k < OB_OP_MAX_OUT; k++)
            if (p->ops[before].out[k] == v) return before;
    return OB_NONE;
}

/* Value `v`, read by op `at`, is a matrix product that decides rather than weighs. */
static void note_minor(const ob_program *p, ob_val v, int32_t at)
{
    const int32_t w = v == OB_NONE ? OB_NONE : writer_of(p, v, at);
    if (w == OB_NONE || p->ops[w].kind != OB_OP_LINEAR) return;
    for (int k = 0; k < p->ops[w].p.linear.n_mat; k++)
        if (p->ops[w].out[k] == v) p->weights[p->ops[w].w[k]].minor = true;
}

/* ob_weight.minor: routers, decay and rate of delta nets, coefficients of hyper-connections, gates of one column, a
 * matrix per head. */
static void note_minor_weights(const ob_program *p)
{
    for (int32_t i = 0; i < p->n_ops; i++) {
        const ob_op *op = &p->ops[i];
        switch (op->kind) {
        case OB_OP_MOE_ROUTE: note_minor(p, op->in[0], i); break;
        case OB_OP_HC_MIX: note_minor(p, op->in[1], i); break;
        case OB_OP_GDN:
            note_minor(p, op->in[1], i);
            note_minor(p, op->in[2], i);
            break;
        case OB_OP_GATE:
            if (p->vals[op->in[1]].cols == 1) note_minor(p, op->in[1], i);
            break;
        case OB_OP_LINEAR_HEADS: p->weights[op->w[0]].minor = true; break;
        default: break;
        }
    }
}

ob_status ob_model_program(const ob_model *m, ob_program **out, ob_err *err)
{
    program_box *box = ob_calloc(1, sizeof *box);
    uint8_t *used = ob_calloc(ob_file_n_tensors(m->file) + 1, 1);
    if (!box || !used) {
        ob_free(box);
        ob_free(used);
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory to build the model's program");
    }
    ob_arena_init(&box->arena, (size_t)256 << 20);
    box->prog.logits = box->prog.embeddings = box->prog.top = OB_NONE;
    ob_builder b = {.m = m, .p = &box->prog, .arena = &box->arena, .err = err, .tensor_used = used,
                    .layer = -1};
    m->arch->build(m, &b);
    if (b.s == OB_OK) check_all_used(&b);
    for (int32_t i = 0; i < box->prog.n_ops && b.s == OB_OK; i++)
        stick(&b, ob_op_check(&box->prog, i, err));
    ob_free(used);
    if (b.s != OB_OK) {
        ob_program_free(&box->prog);
        return b.s;
    }
    note_minor_weights(&box->prog);
    *out = &box->prog;
    return OB_OK;
}

ob_status ob_program_add_top_k(ob_program *p, int32_t k, ob_err *err)
{
    program_box *box = (program_box *)p;
    ob_builder b = {.p = p, .arena = &box->arena, .err = err, .layer = -1, .cap_ops = p->n_ops, .cap_vals = p->n_vals};
    if (p->logits == OB_NONE) return ob_err_set(err, OB_E_INVALID, "the program has no logits");
    const ob_value logits = p->vals[p->logits];
    ob_val y = ob_b_value(&b, "best logits", logits.rows, 2 * k + 2);
    ob_op *op = ob_b_op(&b, OB_OP_TOP_K);
    if (b.s != OB_OK) return b.s;
    op->in[0] = p->logits;
    op->out[0] = y;
    op->p.top_k.k = k;
    p->vals[y].output = true;
    p->vals[p->logits].seldom = true;
    p->top = y;
    return ob_op_check(p, p->n_ops - 1, err);
}

/* ------------------------------------------------------------------ guesses of the next layer's experts */

/* The ops that make up a router: op `route`, the matrix before it and the norm before that; false if it is
 * anything else. */
typedef struct router { int32_t norm, linear, route, mat; } router;

static bool router_at(const ob_program *p, int32_t route, router *r)
{
    *r = (router){.route = route, .linear = writer_of(p, p->ops[route].in[0], route)};
    if (r->linear == OB_NONE || p->ops[r->linear].kind != OB_OP_LINEAR || p->ops[r->linear].in[1] != OB_NONE) return false;
    while (p->ops[r->linear].out[r->mat] != p->ops[route].in[0]) r->mat++;
    r->norm = writer_of(p, p->ops[r->linear].in[0], r->linear);
    return r->norm != OB_NONE && p->ops[r->norm].kind == OB_OP_RMS_NORM && p->ops[r->norm].in[0] != p->ops[r->norm].out[0];
}

/* Three ops at the end of the program; they are moved to their place later. */
static void add_guess(ob_builder *b, const router *at, const router *next)
{
    const ob_program *p = b->p;
    const ob_op norm = p->ops[next->norm], linear = p->ops[next->linear], route = p->ops[next->route];
    const ob_val from = p->ops[at->norm].in[0];
    if (p->vals[from].rows != p->vals[route.out[0]].rows) return;
    b->layer = p->ops[at->route].layer;
    ob_val ids[2], y = ob_b_rms_norm(b, from, norm.w[0], norm.p.norm.eps, norm.p.norm.group);
    y = ob_b_linear(b, y, linear.w[next->mat], linear.w[4 + next->mat]);
    ob_b_route(b, y, route.w[0], route.w[1], &route.p.route, ids);
    if (b->s == OB_OK) b->p->vals[ids[0]].output = true;
}

ob_status ob_program_add_guesses(ob_program *p, ob_err *err)
{
    program_box *box = (program_box *)p;
    ob_builder b = {.p = p, .arena = &box->arena, .err = err, .layer = -1, .cap_ops = p->n_ops, .cap_vals = p->n_vals};
    const int32_t n_ops = p->n_ops;
    int32_t *guess_of = ob_arena_array(&box->arena, (size_t)n_ops + 1, sizeof *guess_of); /* first op, 0: none */
    router last = {0}, now;
    bool have = false;
    if (!guess_of) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the program");
    for (int32_t i = 0; i < n_ops; i++) {
        if (p->ops[i].kind != OB_OP_MOE_ROUTE) continue;
        const bool plain = router_at(p, i, &now);
        const int32_t at = p->n_ops;
        if (have && plain) add_guess(&b, &last, &now);
        if (b.s != OB_OK) return b.s;
        if (p->n_ops > at) guess_of[last.route] = at;
        last = now;
        have = plain;
    }
    ob_op *ops = ob_arena_array(&box->arena, (size_t)p->n_ops + 1, sizeof *ops);
    if (!ops) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the program");
    int32_t n = 0;
    for (int32_t i = 0; i < n_ops; i++) {
        ops[n++] = p->ops[i];
        for (int32_t k = 0; guess_of[i] && k < 3; k++) ops[n++] = p->ops[guess_of[i] + k];
    }
    p->ops = ops;
    for (int32_t i = 0; i < n; i++) OB_TRY(ob_op_check(p, i, err));
    return OB_OK;
}

void ob_program_free(ob_program *p)
{
    if (!p) return;
    program_box *box = (program_box *)p; /* prog is the first member */
    ob_arena_deinit(&box->arena);
    ob_free(box);
}
