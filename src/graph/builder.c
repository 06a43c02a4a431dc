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
    for (int32_t i = 0; i < b->p->n_weights; i++)
        if (b->p->weights[i].name == t->name && b->p->weights[i].use == use) return i;
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

int32_t ob_b_cols(const ob_builder *b, ob_val v)
{
    return b->s == OB_OK && v != OB_NONE ? b->p->vals[v].cols : 0;
}

static ob_rows rows_of(const ob_builder *b, ob_val v)
{
    return b->s == OB_OK && v != OB_NONE ? b->p->vals[v].rows : OB_ROWS_TOK;
}

static int64_t weight_ne(const ob_builder *b, int32_t w, int i)
{
    return b->s == OB_OK && w != OB_NONE ? b->p->weights[w].ne[i] : 0;
}

ob_val ob_b_embed(ob_builder *b, int32_t table, float scale)
{
    ob_val y = ob_b_value(b, "embedding", OB_ROWS_TOK, weight_ne(b, table, 0));
    ob_op *op = ob_b_op(b, OB_OP_EMBED);
    if (!op) return OB_NONE;
    op->out[0] = y;
    op->w[0] = table;
    op->p.embed.scale = scale;
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

void ob_b_linears(ob_builder *b, ob_val x, int n, const int32_t *w, const int32_t *bias, ob_val *out)
{
    for (int i = 0; i < n; i++) out[i] = ob_b_value(b, "linear", rows_of(b, x), weight_ne(b, w[i], 1));
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

ob_val ob_b_glu(ob_builder *b, ob_val gate, ob_val up, ob_act act)
{
    ob_op *op = ob_b_op(b, OB_OP_GLU);
    if (!op) return OB_NONE;
    op->in[0] = op->out[0] = gate;
    op->in[1] = up;
    op->p.glu.act = act;
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

void ob_b_logits(ob_builder *b, ob_val x)
{
    int32_t w = ob_b_weight_opt(b, OB_USE_LINEAR, "output.weight");
    if (w == OB_NONE && b->s == OB_OK) w = ob_b_weight(b, OB_USE_LINEAR, "token_embd.weight");
    int32_t bias = ob_b_weight_opt(b, OB_USE_VECTOR, "output.bias");
    ob_val y = ob_b_linear(b, x, w, bias);
    if (b->s != OB_OK) return;
    b->p->vals[y].name = "logits";
    b->p->vals[y].output = true;
    b->p->logits = y;
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
    box->prog.logits = box->prog.embeddings = OB_NONE;
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
    *out = &box->prog;
    return OB_OK;
}

void ob_program_free(ob_program *p)
{
    if (!p) return;
    program_box *box = (program_box *)p; /* prog is the first member */
    ob_arena_deinit(&box->arena);
    ob_free(box);
}
