/* Ops that one dispatch can do together. A decode step is a chain of small dispatches, and each costs more in
 * waiting than in work; so a layer should have few:
 *
 *   products of q, k, v        [norm of the layer's input]             matvec
 *   norms, ropes, attention    + writing the cache, joining segments    attn_one, or heads and attn
 *   product, residual          + what the next norm needs               matvec
 *   two products, GLU          [norm]                                   matvec, two matrices
 *   product, residual          + what the next norm needs, router       matvec, of up to 8 rows
 *   router, choice of experts  [norm]                                   moe_router
 *   experts                    [choice] + what the next norm needs      moe_up, moe_down
 *   product, residual          + what the next norm needs               matvec
 *
 * Patterns are of ops, not of models: what does not match runs op by op. */
#include "dev/vulkan/vk_int.h"

static bool has(const ob_val *v, int n, ob_val x)
{
    for (int k = 0; k < n; k++)
        if (v[k] == x) return true;
    return false;
}

int32_t vk_next_reader(const ob_dev_plan *p, ob_val v, int32_t from)
{
    for (int32_t i = from + 1; i < p->prog.n_ops; i++) {
        if (has(p->prog.ops[i].in, OB_OP_MAX_IN, v)) return i;
        if (has(p->prog.ops[i].out, OB_OP_MAX_OUT, v)) return OB_NONE;
    }
    return OB_NONE;
}

bool vk_last_reader(const ob_dev_plan *p, ob_val v, int32_t i)
{
    if (p->prog.vals[v].output || !has(p->prog.ops[i].in, OB_OP_MAX_IN, v)) return false;
    return has(p->prog.ops[i].out, OB_OP_MAX_OUT, v) || vk_next_reader(p, v, i) == OB_NONE;
}

bool vk_collide(const ob_dev_plan *p, ob_val a, ob_val b)
{
    const uint64_t x = vk_value(p, a), y = vk_value(p, b);
    return a != b && x < y + vk_value_bytes(p, b) && y < x + vk_value_bytes(p, a);
}

/* Op i's result v goes to op i + 1 as int8 and nowhere else; can: flags of the form that may be asked for. */
static bool feeds_product(const ob_dev_plan *p, ob_val v, int32_t i, unsigned can)
{
    const vk_form form = vk_wanted_form(p, v, i, can);
    return (form & VK_FORM_KIND) == VK_FORM_Q8 && vk_only_form(p, v, i, form);
}

static bool small_and_fast(const ob_dev_plan *p, const ob_op *op)
{
    const unsigned all = VK_FAST_SUBGROUP | VK_FAST_INT8 | VK_FAST_FUSED;
    const vk_form form = op->kind == OB_OP_LINEAR ? vk_matrix_form(p, op, 0) : VK_FORM_F32;
    return (p->fast & all) == all && (form & VK_FORM_KIND) == VK_FORM_Q8 && vk_linear_all(p, op, form) &&
           (p->dev->tested[p->weights[op->w[0]]->type] & VK_FAST_FUSED) && (!(form & VK_FORM_TURNED) || (p->dev->tested_rotated & VK_FAST_FUSED));
}

static bool is_row_norm(const ob_dev_plan *p, const ob_op *op)
{
    const int32_t cols = p->prog.vals[op->out[0]].cols;
    return op->kind == OB_OP_RMS_NORM && (op->p.norm.group == 0 || op->p.norm.group == cols) && op->w[0] != OB_NONE && cols % 32 == 0;
}

/* Op i: two matrices of one kind, whose results only the GLU after it reads. */
static bool match_glu(const ob_dev_plan *p, int32_t i)
{
    const ob_op *op = &p->prog.ops[i], *glu = op + 1;
    if (i + 2 >= p->prog.n_ops || !small_and_fast(p, op) || op->p.linear.n_mat != 2 || glu->kind != OB_OP_GLU) return false;
    const ob_dev_weight *a = p->weights[op->w[0]], *b = p->weights[op->w[1]];
    return glu->in[0] == op->out[0] && glu->in[1] == op->out[1] && op->w[4] == OB_NONE && op->w[5] == OB_NONE &&
           op->p.linear.scale == 1 && a->type == b->type && a->desc.ne[1] == b->desc.ne[1] && a->desc.ne[1] % 32 == 0 &&
           vk_last_reader(p, op->out[0], i + 1) && vk_last_reader(p, op->out[1], i + 1) && feeds_product(p, glu->out[0], i + 1, VK_FORM_TURNED);
}

/* The norm of op i's result, which goes to products as int8; its index or OB_NONE. With one token the rows that are
 * wanted lie between, and are that token's. */
static int32_t norm_after(const ob_dev_plan *p, int32_t i, unsigned can)
{
    const ob_op *op = &p->prog.ops[i];
    if (i + 2 >= p->prog.n_ops) return OB_NONE;
    int32_t n = i + 1;
    ob_val x = op->out[0];
    if (p->prog.ops[n].kind == OB_OP_ROWS_OUT && p->prog.max_tok == 1 && p->prog.ops[n].in[0] == x) {
        x = p->prog.ops[n++].out[0];
        if (n + 1 >= p->prog.n_ops || !vk_last_reader(p, x, n)) return OB_NONE;
    }
    const ob_op *norm = &p->prog.ops[n];
    if (vk_max_rows(p, p->prog.vals[norm->out[0]].rows) == 0 || !is_row_norm(p, norm) || norm->in[0] != x) return OB_NONE;
    return norm->out[0] != x && feeds_product(p, norm->out[0], n, can) ? n : OB_NONE;
}

/* Op i: a product with residual, then that. */
static int32_t match_norm(const ob_dev_plan *p, int32_t i)
{
    const ob_op *op = &p->prog.ops[i];
    return small_and_fast(p, op) && op->p.linear.n_mat == 1 && op->in[1] != OB_NONE ? norm_after(p, i, VK_FORM_TURNED) : OB_NONE;
}

/* Op i: a product with residual, then a norm and the router of experts that read it. */
static bool match_router(const ob_dev_plan *p, int32_t i)
{
    const ob_op *op = &p->prog.ops[i], *norm = op + 1;
    return i + 4 < p->prog.n_ops && small_and_fast(p, op) && op->p.linear.n_mat == 1 && op->in[1] != OB_NONE &&
           op->w[4] == OB_NONE && is_row_norm(p, norm) && norm->in[0] == op->out[0] && norm->out[0] != op->out[0] &&
           vk_router_fits_parts(p, i + 1);
}

ob_status vk_fuse(ob_dev_plan *p, int32_t i, int32_t *n_ops, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    if (match_router(p, i)) {
        OB_TRY(vk_form_add(p, i, vk_matrix_form(p, op, 0), err));
        *n_ops = p->prog.max_tok == 1 ? 4 : 3; /* one row's experts choose themselves */
        return vk_matvec_add_norm(p, i, i + 1, i + 2, err);
    }
    OB_TRY(vk_router_add(p, i, n_ops, err));
    if (*n_ops) return OB_OK;
    if (op->kind == OB_OP_LINEAR && vk_gemm_fits_glu(p, i)) {
        OB_TRY(vk_form_add(p, i, vk_matrix_form(p, op, 0), err));
        *n_ops = 2;
        return vk_gemm_add_glu(p, i, err);
    } else if (op->kind == OB_OP_LINEAR) {
        const int32_t norm = match_norm(p, i);
        if (norm != OB_NONE || match_glu(p, i)) {
            OB_TRY(vk_form_add(p, i, vk_matrix_form(p, op, 0), err));
            *n_ops = norm != OB_NONE ? norm + 1 - i : 2;
            return norm != OB_NONE ? vk_matvec_add_norm(p, i, norm, OB_NONE, err) : vk_matvec_add_glu(p, i, err);
        }
    } else if (op->kind == OB_OP_MOE_GLU) {
        const int32_t norm = vk_moe_gives_norm(p, op) ? norm_after(p, i, 0) : OB_NONE;
        *n_ops = norm != OB_NONE ? norm + 1 - i : 1;
        return vk_moe_add(p, i, norm, err);
    } else if (op->kind == OB_OP_ROWS_OUT && i + 1 < p->prog.n_ops) {
        const ob_op *norm = op + 1;
        bool added = false;
        if (norm->kind == OB_OP_RMS_NORM && norm->in[0] == op->out[0] && vk_last_reader(p, op->out[0], i + 1) &&
            norm->out[0] != op->in[0] && !vk_collide(p, norm->out[0], op->in[0]))
            OB_TRY(vk_norm_gather_add(p, i, &added, err));
        if (added) *n_ops = 2;
    } else {
        return vk_heads_add(p, i, n_ops, err);
    }
    return OB_OK;
}
