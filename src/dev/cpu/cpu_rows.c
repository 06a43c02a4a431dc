/* Row-wise ops of the CPU device: each handles rows [r0, r1) of its op. */
#include "dev/cpu/cpu_int.h"

#include <string.h>

#include "ops/ref_int.h"

#define ROW_FN(name)                                                                              \
    static void name(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t, int64_t r0, int64_t r1)

static int32_t n_cols(const ob_dev_plan *p, const ob_op *op) { return p->prog.vals[op->out[0]].cols; }

ROW_FN(row_embed)
{
    (void)t;
    const ob_weight *w = op->w[0] == OB_NONE ? NULL : &p->weights[op->w[0]]->desc;
    const int32_t cols = n_cols(p, op);
    const size_t row_bytes = w ? ob_type_row_bytes(w->type, cols) : 0;
    for (int64_t r = r0; r < r1; r++) {
        const int32_t id = p->step.tok[r];
        float *y = cpu_row(p, op->out[0], r);
        if (id < 0) {
            memcpy(y, p->step.vec + (size_t)(-1 - id) * (size_t)cols, (size_t)cols * sizeof *y);
            continue;
        }
        const uint8_t *src = (const uint8_t *)w->data + (size_t)id * row_bytes;
        ob_type_get(w->type)->dequant(src, y, cols);
        if (op->p.embed.scale != 1.0f) p->dev->kern->scale(y, op->p.embed.scale, 0, y, cols);
    }
}

ROW_FN(row_out)
{
    (void)t;
    for (int64_t r = r0; r < r1; r++)
        memcpy(cpu_row(p, op->out[0], r), cpu_row(p, op->in[0], p->step.out_rows[r]),
               (size_t)n_cols(p, op) * sizeof(float));
}

ROW_FN(row_norm)
{
    (void)t;
    const int32_t cols = n_cols(p, op), group = op->p.norm.group ? op->p.norm.group : cols;
    const float *w = cpu_vector(p, op->w[0]);
    const float *b = op->kind == OB_OP_LAYER_NORM ? cpu_vector(p, op->w[1]) : NULL;
    for (int64_t r = r0; r < r1; r++) {
        const float *x = cpu_row(p, op->in[0], r);
        float *y = cpu_row(p, op->out[0], r);
        for (int32_t c = 0; c < cols; c += group)
            if (op->kind == OB_OP_LAYER_NORM)
                p->dev->kern->layer_norm(x + c, w, b, y + c, group, op->p.norm.eps);
            else
                p->dev->kern->rms_norm(x + c, w, y + c, group, op->p.norm.eps);
    }
}

ROW_FN(row_rope)
{
    (void)t;
    const cpu_rope *rope = &p->ropes[p->rope_of[op - p->prog.ops]];
    const int32_t n_head = n_cols(p, op) / op->p.rope.head_dim, n = ob_cpu_rope_floats(rope->p);
    for (int64_t r = r0; r < r1; r++)
        p->dev->kern->rope(&op->p.rope, rope->cs + r * n, n_head, cpu_row(p, op->in[0], r),
                           cpu_row(p, op->out[0], r));
}

ROW_FN(row_glu)
{
    (void)t;
    for (int64_t r = r0; r < r1; r++)
        p->dev->kern->glu(op->p.glu.act, op->p.glu.clamp, cpu_row(p, op->in[0], r),
                          cpu_row(p, op->in[1], r), cpu_row(p, op->out[0], r), n_cols(p, op));
}

ROW_FN(row_act)
{
    (void)t;
    for (int64_t r = r0; r < r1; r++)
        p->dev->kern->act(op->p.act.act, cpu_row(p, op->in[0], r), cpu_row(p, op->out[0], r), n_cols(p, op));
}

ROW_FN(row_add)
{
    (void)t;
    for (int64_t r = r0; r < r1; r++)
        p->dev->kern->add(cpu_row(p, op->in[0], r), cpu_row(p, op->in[1], r), op->p.add.scale,
                          cpu_row(p, op->out[0], r), n_cols(p, op));
}

ROW_FN(row_scale)
{
    (void)t;
    for (int64_t r = r0; r < r1; r++)
        p->dev->kern->scale(cpu_row(p, op->in[0], r), op->p.scale.scale, op->p.scale.softcap,
                            cpu_row(p, op->out[0], r), n_cols(p, op));
}

ROW_FN(row_by_ref)
{
    const ob_ref_env env = {.prog = &p->prog, .step = &p->step, .vals = p->vals, .scratch = t->ref};
    ob_ref_run(&env, (int32_t)(op - p->prog.ops), 0, r0, r1);
}

ROW_FN(row_gate)
{
    (void)t;
    const int32_t cols = n_cols(p, op);
    const bool one = p->prog.vals[op->in[1]].cols == 1;
    for (int64_t r = r0; r < r1; r++) {
        const float *x = cpu_row(p, op->in[0], r), *gate = cpu_row(p, op->in[1], r);
        float *y = cpu_row(p, op->out[0], r);
        if (!one && op->in[2] == OB_NONE) {
            p->dev->kern->glu(OB_ACT_SIGMOID, 0, gate, x, y, cols);
        } else if (one && op->in[2] != OB_NONE) {
            p->dev->kern->add(cpu_row(p, op->in[2], r), x, ob_ref_act(OB_ACT_SIGMOID, gate[0]), y, cols);
        } else {
            row_by_ref(p, op, t, r, r + 1);
        }
    }
}

cpu_row_fn cpu_row_kernel(ob_op_kind kind)
{
    switch (kind) {
    case OB_OP_EMBED: return row_embed;
    case OB_OP_ROWS_OUT: return row_out;
    case OB_OP_RMS_NORM:
    case OB_OP_LAYER_NORM: return row_norm;
    case OB_OP_ROPE: return row_rope;
    case OB_OP_GLU: return row_glu;
    case OB_OP_ADD: return row_add;
    case OB_OP_SCALE: return row_scale;
    case OB_OP_GATE: return row_gate;
    case OB_OP_ACT: return row_act;
    case OB_OP_HC_MIX: return cpu_hc_mix;
    case OB_OP_HC_POST: return cpu_hc_post;
    case OB_OP_ADD_ROW:
    case OB_OP_POOL:
    case OB_OP_MERGE:
    case OB_OP_AFFINE:
    case OB_OP_SPLIT:
    case OB_OP_JOIN:
    case OB_OP_MOE_ROUTE: return row_by_ref;
    default: return NULL;
    }
}

/* The reference rope of the unit vectors (1, 0) gives cos and sin of every pair, whatever the variant. */
static void rope_table_row(const cpu_rope *rope, const int32_t pos[3], float *unit, float *cs)
{
    const ob_rope_params *p = rope->p;
    const int32_t half = p->n_rot / 2;
    memset(unit, 0, 2 * (size_t)p->head_dim * sizeof *unit);
    float *turned = unit + p->head_dim;
    const bool neox = p->pairing == OB_ROPE_NEOX;
    for (int32_t i = 0; i < half; i++) unit[p->rot_off + (neox ? i : 2 * i)] = 1.0f;
    ob_ref_rope_axes(p, rope->factors, pos, 1, unit, turned);
    for (int32_t i = 0; i < half; i++) {
        const float *at = turned + p->rot_off;
        if (neox) {
            cs[i] = at[i];
            cs[half + i] = at[half + i];
        } else {
            cs[2 * i] = cs[2 * i + 1] = at[2 * i];
            cs[p->n_rot + 2 * i] = -at[2 * i + 1];
            cs[p->n_rot + 2 * i + 1] = at[2 * i + 1];
        }
    }
}

void cpu_rope_tables(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t, int64_t r0, int64_t r1)
{
    (void)op;
    for (int32_t i = 0; i < p->n_ropes; i++) {
        const int32_t n = ob_cpu_rope_floats(p->ropes[i].p);
        for (int64_t r = r0; r < r1; r++) {
            int32_t pos[3];
            ref_axes(&p->step, r, pos);
            rope_table_row(&p->ropes[i], pos, t->ref, p->ropes[i].cs + r * n);
        }
    }
}

static void store_heads(const ob_cpu_kernels *k, const ob_attn_params *a, void *plane, ob_type type, int32_t dim,
                        int32_t page_tok, const int32_t *pages, int32_t at, const float *x)
{
    const size_t row_bytes = ob_type_row_bytes(type, dim);
    for (int32_t h = 0; h < a->n_head_kv; h++, x += dim) {
        void *dst = cpu_cache_row(plane, row_bytes, page_tok, a->n_head_kv, pages, at, h);
        if (type == OB_F32) memcpy(dst, x, row_bytes);
        else if (type == OB_F16) k->to_f16(x, dst, dim);
        else ob_type_get(type)->quant(x, dst, dim, NULL);
    }
}

void cpu_cache_write(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t, int64_t r0, int64_t r1)
{
    (void)t;
    const ob_attn_params *a = &op->p.attn;
    const ob_cache_view *c = &p->caches[a->cache];
    for (int64_t r = r0; r < r1; r++) {
        const int32_t *pages = p->step.page_table + (size_t)p->row_seq[r] * (size_t)p->step.max_pages;
        store_heads(p->dev->kern, a, c->k, c->k_type, a->k_dim, c->page_tok, pages, p->row_at[r],
                    cpu_row(p, op->in[1], r));
        if (op->in[2] == OB_NONE) continue; /* values inside the keys */
        store_heads(p->dev->kern, a, c->v, c->v_type, a->v_dim, c->page_tok, pages, p->row_at[r],
                    cpu_row(p, op->in[2], r));
    }
}
