/* A program of ops becomes a list of dispatches over one workspace. */
#include "dev/vulkan/vk_int.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/math.h"

enum {
    ROW_WG = 128,
    NORM_FOURS = 4, /* times 4 values a thread */
    RESULT_BYTES = 64 << 20, /* outputs up to this are copied to the host by the plan itself */
};

/* --- what can run ----------------------------------------------------------------------------- */

static bool refuse(char *why, size_t cap, const char *text)
{
    snprintf(why, cap, "%s", text);
    return false;
}

static bool has_kernels(const ob_dev *dev, const ob_program *p, int32_t i, char *why, size_t cap)
{
    const vk_dev *d = (const vk_dev *)dev;
    const ob_op *op = &p->ops[i];
    const char *text;
    switch (op->kind) {
    case OB_OP_EMBED:
    case OB_OP_GLU:
    case OB_OP_ADD_ROW:
    case OB_OP_POOL:
    case OB_OP_ROWS_OUT:
    case OB_OP_MERGE:
    case OB_OP_RMS_NORM:
    case OB_OP_LAYER_NORM:
    case OB_OP_ADD:
    case OB_OP_SCALE:
    case OB_OP_ACT:
    case OB_OP_AFFINE:
    case OB_OP_GATE:
    case OB_OP_SPLIT:
    case OB_OP_JOIN:
    case OB_OP_HC_MIX:
    case OB_OP_HC_POST:
        return true;
    case OB_OP_LINEAR:
        for (int m = 0; m < op->p.linear.n_mat; m++)
            if (!ob_type_get(p->weights[op->w[m]].type)->dequant)
                return refuse(why, cap, "no matrix product for its type");
        return true;
    case OB_OP_ROPE:
        return p->vals[op->out[0]].rows == OB_ROWS_TOK ||
               refuse(why, cap, "rope over other rows than tokens");
    case OB_OP_ATTENTION:
        return vk_attn_fits(d, &op->p.attn) ||
               refuse(why, cap, "heads too wide for this device's shared memory");
    case OB_OP_CONV1D:
    case OB_OP_GDN:
    case OB_OP_CCA:
        return vk_state_supports(d, p, op, why, cap);
    case OB_OP_CSA:
        return vk_csa_supports(d, op, why, cap);
    case OB_OP_TOP_K:
        return vk_top_k_supports(d, why, cap);
    case OB_OP_LINEAR_HEADS:
        if (p->weights[op->w[0]].hadamard) return refuse(why, cap, "no rotation for a matrix per head");
        return ob_type_get(p->weights[op->w[0]].type)->dequant || refuse(why, cap, "no matrix product for its type");
    case OB_OP_MOE_ROUTE:
        return vk_route_fits(p, op, &text) || refuse(why, cap, text);
    case OB_OP_MOE_GLU:
        return vk_moe_fits(p, op, &text) || refuse(why, cap, text);
    default:
        return refuse(why, cap, "no kernel for it yet");
    }
}

bool vk_supports(const ob_dev *dev, const ob_program *p, int32_t i, char *why, size_t cap)
{
    const vk_dev *d = (const vk_dev *)dev;
    if (!has_kernels(dev, p, i, why, cap)) return false;
    for (int k = 0; k < OB_OP_MAX_W; k++) {
        const int32_t w = p->ops[i].w[k];
        if (w == OB_NONE || vk_weight_bytes(&d->base, &p->weights[w]) <= vk_max_buffer(d)) continue;
        snprintf(why, cap, "%.60s takes %llu MiB, this driver allows buffers of %llu MiB", p->weights[w].name,
                 (unsigned long long)(vk_weight_bytes(&d->base, &p->weights[w]) >> 20), (unsigned long long)(vk_max_buffer(d) >> 20));
        return false;
    }
    /* The verdict is kept in the device, which is the caller's alone. */
    return vk_selftest((vk_dev *)(uintptr_t)dev, p, i) || refuse(why, cap, "its kernel is wrong on this driver and was switched off");
}

/* --- the list --------------------------------------------------------------------------------- */

vk_dispatch *vk_add(ob_dev_plan *p, const vk_pipe *pipe, int32_t op)
{
    if (p->n_steps == p->cap_steps) {
        const int32_t cap = p->cap_steps ? 2 * p->cap_steps : 256;
        vk_dispatch *grown = ob_reallocarray(p->steps, (size_t)cap, sizeof *grown);
        if (!grown) return NULL;
        p->steps = grown;
        p->cap_steps = cap;
    }
    vk_dispatch *s = &p->steps[p->n_steps++];
    memset(s, 0, sizeof *s);
    s->pipe = pipe;
    s->kernel = pipe->shader->name;
    s->grid[0] = s->grid[1] = s->grid[2] = 1;
    s->indirect = -1;
    s->op = op;
    s->mat = -1;
    s->push.a[0] = p->params.addr;
    return s;
}

void vk_reads(vk_dispatch *s, VkDeviceAddress at, uint64_t n)
{
    s->reads[s->n_reads++] = (vk_range){at, at + n};
}
void vk_writes(vk_dispatch *s, VkDeviceAddress at, uint64_t n)
{
    s->writes[s->n_writes++] = (vk_range){at, at + n};
}
void vk_push_addr(vk_push *p, int i, VkDeviceAddress a)
{
    memcpy(&p->u[i], &a, sizeof a);
}

int32_t vk_max_rows(const ob_dev_plan *p, ob_rows rows)
{
    return rows == OB_ROWS_TOK   ? p->prog.max_tok
           : rows == OB_ROWS_OUT ? p->prog.max_out
                                 : p->prog.max_seq;
}
VkDeviceAddress vk_value(const ob_dev_plan *p, ob_val v)
{
    return p->work.addr + p->prog.vals[v].offset;
}
uint64_t vk_value_bytes(const ob_dev_plan *p, ob_val v)
{
    return (uint64_t)vk_max_rows(p, p->prog.vals[v].rows) * (uint64_t)p->prog.vals[v].cols * 4;
}

VkDeviceAddress vk_reads_value(const ob_dev_plan *p, vk_dispatch *s, ob_val v)
{
    if (v == OB_NONE) return 0;
    vk_reads(s, vk_value(p, v), vk_value_bytes(p, v));
    return vk_value(p, v);
}

VkDeviceAddress vk_writes_value(const ob_dev_plan *p, vk_dispatch *s, ob_val v)
{
    if (v == OB_NONE) return 0;
    vk_writes(s, vk_value(p, v), vk_value_bytes(p, v));
    return vk_value(p, v);
}

static ob_status no_memory(ob_err *err)
{
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
}

/* --- row-wise ops ----------------------------------------------------------------------------- */

static void rows_of(const ob_dev_plan *p, const ob_op *op, vk_dispatch *s, int x, int y)
{
    for (int k = 0; k < 2; k++)
        if (op->in[k] != OB_NONE) vk_reads(s, vk_value(p, op->in[k]), vk_value_bytes(p, op->in[k]));
    vk_writes(s, vk_value(p, op->out[0]), vk_value_bytes(p, op->out[0]));
    if (x && op->in[0] != OB_NONE) s->push.a[x] = vk_value(p, op->in[0]);
    s->push.a[y] = vk_value(p, op->out[0]);
}

static uint32_t bits(float f)
{
    return ob_f32_bits(f);
}

/* The rows of EMBED that are the step's vectors. */
static ob_status add_vectors(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_value *y = &p->prog.vals[op->out[0]];
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "vectors", 2, (uint32_t[]){ROW_WG, 0}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    vk_writes(s, vk_value(p, op->out[0]), vk_value_bytes(p, op->out[0]));
    s->push.a[1] = p->params.addr + p->vec_off;
    s->push.a[3] = vk_value(p, op->out[0]);
    s->push.a[4] = p->params.addr + p->tok_off;
    s->push.u[0] = y->rows;
    s->push.u[1] = (uint32_t)y->cols;
    s->grid[0] = (uint32_t)ob_div_up(y->cols, ROW_WG);
    s->grid[1] = (uint32_t)p->prog.max_tok;
    return OB_OK;
}

static ob_status add_merge(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_value *y = &p->prog.vals[op->out[0]];
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "merge", 2, (uint32_t[]){ROW_WG, 0}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    rows_of(p, op, s, 1, 3);
    s->push.a[4] = p->params.addr + p->out_off;
    s->push.u[0] = y->rows;
    s->push.u[1] = (uint32_t)y->cols;
    s->push.u[4] = (uint32_t)op->p.merge.n;
    s->push.u[5] = (uint32_t)p->prog.vals[op->in[0]].cols;
    s->grid[0] = (uint32_t)ob_div_up(y->cols, ROW_WG);
    s->grid[1] = (uint32_t)vk_max_rows(p, y->rows);
    return OB_OK;
}

/* EMBED, and ADD_ROW, which looks up by position or type. */
static ob_status add_embed(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_dev_weight *w = p->weights[op->w[0]];
    const bool add = op->kind == OB_OP_ADD_ROW;
    const vk_pipe *pipe;
    char name[32];
    snprintf(name, sizeof name, "embed_%s", vk_type_name(w->type));
    OB_TRY(vk_kernel_get(p->dev, name, 2, (uint32_t[]){ROW_WG, add}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    rows_of(p, op, s, add ? 7 : 0, 2);
    s->push.a[1] = p->params.addr + (!add                                 ? p->tok_off
                                     : op->p.add_row.by == OB_ROW_OF_TYPE ? p->type_off
                                                                          : p->pos_off);
    s->push.a[3] = w->w;
    s->push.a[4] = w->s;
    s->push.a[5] = w->h;
    s->push.a[6] = w->z;
    s->push.u[0] = (uint32_t)p->prog.vals[op->out[0]].cols;
    s->push.u[1] = (uint32_t)w->nu;
    s->push.u[2] = bits(add ? 1.0f : op->p.embed.scale);
    s->grid[0] = (uint32_t)ob_div_up(w->nu, ROW_WG);
    s->grid[1] = (uint32_t)p->prog.max_tok;
    return OB_OK;
}

static ob_status add_pool(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "pool", 2, (uint32_t[]){ROW_WG, op->p.pool.mode}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    rows_of(p, op, s, 1, 2);
    s->push.a[3] = p->params.addr + p->first_off;
    s->push.u[0] = (uint32_t)p->prog.vals[op->out[0]].cols;
    s->grid[0] = (uint32_t)ob_div_up(p->prog.vals[op->out[0]].cols, ROW_WG);
    s->grid[1] = (uint32_t)p->prog.max_seq;
    return OB_OK;
}

/* Threads of a workgroup that holds a row of a norm in registers, 4 values at a time; 0: that does not fit. */
static uint32_t row_threads(const ob_dev_plan *p, uint32_t cols)
{
    const vk_phys *f = p->dev->phys;
    const uint32_t sg = p->dev->sg, most = OB_MIN(OB_MIN(1024u, f->max_invocations), sg * f->max_subgroups);
    uint32_t wg = OB_MAX(32u, sg);
    while (2 * wg <= most && wg * 4 < cols) wg *= 2;
    return cols % 4 == 0 && wg <= most && cols <= wg * 4 * NORM_FOURS && (p->fast & VK_FAST_SUBGROUP) &&
                   !vk_kernel_off(p->dev, "norm_rows")
               ? wg
               : 0;
}

/* RMS norm of whole rows, of op `gather`'s choice of them where that is an op. */
static ob_status add_norm_rows(ob_dev_plan *p, int32_t i, int32_t gather, uint32_t wg, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_val in = gather == OB_NONE ? op->in[0] : p->prog.ops[gather].in[0];
    const ob_value *x = &p->prog.vals[op->in[0]];
    const vk_form form = x->cols % 32 == 0 ? vk_wanted_form(p, op->out[0], i, VK_FORM_ANY) : VK_FORM_F32;
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "norm_rows", 11,
                         (uint32_t[]){wg, (uint32_t)ob_div_up(x->cols, 4 * wg), op->w[0] != OB_NONE, p->dev->sg,
                                      gather != OB_NONE, !vk_only_form(p, op->out[0], i, form), 0, 0, 0, 0, form},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    vk_reads(s, vk_value(p, in), vk_value_bytes(p, in));
    vk_writes(s, vk_value(p, op->out[0]), vk_value_bytes(p, op->out[0]));
    s->push.a[1] = vk_value(p, in);
    s->push.a[2] = vk_value(p, op->out[0]);
    if (op->w[0] != OB_NONE) s->push.a[3] = p->weights[op->w[0]]->w;
    if (form != VK_FORM_F32) vk_write_form(p, s, op->out[0], form, &s->push.a[4]);
    s->push.a[6] = p->params.addr + p->out_off;
    s->push.u[0] = x->rows;
    s->push.u[1] = (uint32_t)x->cols;
    s->push.u[2] = bits(op->p.norm.eps);
    s->grid[0] = (uint32_t)vk_max_rows(p, x->rows);
    return OB_OK;
}

ob_status vk_norm_gather_add(ob_dev_plan *p, int32_t i, bool *added, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i + 1];
    const uint32_t cols = (uint32_t)p->prog.vals[op->in[0]].cols;
    const uint32_t wg = op->p.norm.group == 0 || op->p.norm.group == (int32_t)cols ? row_threads(p, cols) : 0;
    *added = wg > 0;
    return wg ? add_norm_rows(p, i + 1, i, wg, err) : OB_OK;
}

static ob_status add_norm(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_value *x = &p->prog.vals[op->in[0]];
    const uint32_t cols = (uint32_t)x->cols, group = op->p.norm.group ? (uint32_t)op->p.norm.group : cols;
    const uint32_t row_wg = op->kind == OB_OP_RMS_NORM && cols == group ? row_threads(p, cols) : 0;
    if (row_wg) return add_norm_rows(p, i, OB_NONE, row_wg, err);
    uint32_t wg = 32;
    while (wg < 512 && wg * 4 < group) wg *= 2;
    const vk_form form =
        cols == group && cols % 32 == 0 ? vk_wanted_form(p, op->out[0], i, VK_FORM_ANY) : VK_FORM_F32;
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "norm", 11,
                         (uint32_t[]){wg, op->kind == OB_OP_LAYER_NORM, op->w[0] != OB_NONE,
                                      op->kind == OB_OP_LAYER_NORM && op->w[1] != OB_NONE, 0, 0, 0,
                                      0, 0, 0, form},
                         &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    rows_of(p, op, s, 1, 2);
    for (int k = 0; k < 2; k++)
        if (op->w[k] != OB_NONE) s->push.a[3 + k] = p->weights[op->w[k]]->w;
    s->push.u[0] = x->rows;
    s->push.u[1] = cols;
    s->push.u[2] = group;
    s->push.u[3] = bits(op->p.norm.eps);
    s->grid[0] = cols / group;
    if (form != VK_FORM_F32) vk_write_form(p, s, op->out[0], form, &s->push.a[5]);
    s->grid[1] = (uint32_t)vk_max_rows(p, x->rows);
    return OB_OK;
}

static ob_status add_row(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_value *y = &p->prog.vals[op->out[0]];
    const char *name = op->kind == OB_OP_ROWS_OUT ? "rows_out"
                       : op->kind == OB_OP_GLU    ? "glu"
                       : op->kind == OB_OP_ADD    ? "add"
                                                  : "scale";
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, name, 2,
                         (uint32_t[]){ROW_WG, op->kind == OB_OP_GLU ? op->p.glu.act : 0}, &pipe,
                         err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    rows_of(p, op, s, 1, 3);
    if (op->kind == OB_OP_ROWS_OUT)
        s->push.a[4] = p->params.addr + p->out_off;
    else if (op->in[1] != OB_NONE)
        s->push.a[2] = vk_value(p, op->in[1]);
    s->push.u[0] = y->rows;
    s->push.u[1] = (uint32_t)y->cols;
    s->push.u[2] = bits(op->kind == OB_OP_GLU   ? op->p.glu.clamp
                        : op->kind == OB_OP_ADD ? op->p.add.scale
                                                : op->p.scale.scale);
    s->push.u[3] = bits(op->kind == OB_OP_SCALE ? op->p.scale.softcap : 0);
    s->grid[0] = (uint32_t)ob_div_up(y->cols, ROW_WG);
    s->grid[1] = (uint32_t)vk_max_rows(p, y->rows);
    return OB_OK;
}

/* GLU or an activation whose result goes to a product in another form. */
static ob_status add_glu_form(ob_dev_plan *p, int32_t i, vk_form form, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const ob_value *y = &p->prog.vals[op->out[0]];
    const vk_pipe *pipe;
    const bool glu = op->kind == OB_OP_GLU;
    OB_TRY(vk_kernel_get(p->dev, "glu_form", 11,
                         (uint32_t[]){ROW_WG, glu ? op->p.glu.act : op->p.act.act, glu, 0, 0, 0, 0, 0, 0, 0, form}, &pipe,
                         err));
    vk_dispatch *s = vk_add(p, pipe, i);
    if (!s) return no_memory(err);
    rows_of(p, op, s, 1, 3);
    if (glu) s->push.a[2] = vk_value(p, op->in[1]);
    vk_write_form(p, s, op->out[0], form, &s->push.a[4]);
    s->push.u[0] = y->rows;
    s->push.u[1] = (uint32_t)y->cols;
    s->push.u[2] = bits(glu ? op->p.glu.clamp : 0);
    s->grid[0] = (uint32_t)ob_div_up(y->cols / 4, ROW_WG);
    s->grid[1] = (uint32_t)vk_max_rows(p, y->rows);
    return OB_OK;
}

/* A copy of a value's rows between the workspace and memory that the host sees. */
static ob_status add_move(ob_dev_plan *p, ob_val v, VkDeviceAddress host, bool to_host, ob_err *err)
{
    const ob_value *x = &p->prog.vals[v];
    const vk_pipe *pipe;
    OB_TRY(vk_kernel_get(p->dev, "to_host", 2, (uint32_t[]){ROW_WG, 0}, &pipe, err));
    vk_dispatch *s = vk_add(p, pipe, -1);
    if (!s) return no_memory(err);
    (to_host ? vk_reads : vk_writes)(s, vk_value(p, v), vk_value_bytes(p, v));
    s->push.a[to_host ? 1 : 3] = vk_value(p, v);
    s->push.a[to_host ? 3 : 1] = host;
    s->push.u[0] = x->rows;
    s->push.u[1] = (uint32_t)x->cols;
    s->grid[0] = (uint32_t)ob_div_up(x->cols, ROW_WG);
    s->grid[1] = (uint32_t)vk_max_rows(p, x->rows);
    return OB_OK;
}

/* Inputs from memory that the host writes. */
static ob_status add_inputs(ob_dev_plan *p, ob_err *err)
{
    uint64_t total = 0;
    for (ob_val v = 0; v < p->prog.n_vals; v++) {
        if (!p->prog.vals[v].input) continue;
        p->input_off[v] = total;
        total += ob_align_up(vk_value_bytes(p, v), 256);
    }
    if (!total) return OB_OK;
    OB_TRY(vk_mem_new(p->dev, VK_MEM_PARAM, total, &p->inputs, err));
    for (ob_val v = 0; v < p->prog.n_vals; v++)
        if (p->prog.vals[v].input && vk_max_rows(p, p->prog.vals[v].rows))
            OB_TRY(add_move(p, v, p->inputs.addr + p->input_off[v], false, err));
    return OB_OK;
}

/* Outputs to memory that the host reads. */
static ob_status add_results(ob_dev_plan *p, ob_err *err)
{
    uint64_t total = 0;
    for (ob_val v = 0; v < p->prog.n_vals; v++) {
        p->result_off[v] = UINT64_MAX;
        const uint64_t n = ob_align_up(vk_value_bytes(p, v), 256);
        if (!p->prog.vals[v].output || p->prog.vals[v].seldom || p->prog.vals[v].first < 0 || n == 0 ||
            total + n > RESULT_BYTES)
            continue;
        p->result_off[v] = total;
        total += n;
    }
    if (!total) return OB_OK;
    OB_TRY(vk_mem_new(p->dev, VK_MEM_READBACK, total, &p->results, err));
    for (ob_val v = 0; v < p->prog.n_vals; v++)
        if (p->result_off[v] != UINT64_MAX) OB_TRY(add_move(p, v, p->results.addr + p->result_off[v], true, err));
    return OB_OK;
}

static ob_status add_op(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    switch (op->kind) {
    case OB_OP_EMBED:
        if (op->w[0] != OB_NONE) OB_TRY(add_embed(p, i, err));
        return op->p.embed.vectors ? add_vectors(p, i, err) : OB_OK;
    case OB_OP_ADD_ROW:
        return add_embed(p, i, err);
    case OB_OP_MERGE:
        return add_merge(p, i, err);
    case OB_OP_POOL:
        return add_pool(p, i, err);
    case OB_OP_RMS_NORM:
    case OB_OP_LAYER_NORM:
        return add_norm(p, i, err);
    case OB_OP_LINEAR:
        return vk_linear_add(p, i, err);
    case OB_OP_ROPE:
        return vk_rope_add(p, i, err);
    case OB_OP_ATTENTION:
        return vk_attn_add(p, i, err);
    case OB_OP_AFFINE:
    case OB_OP_GATE:
    case OB_OP_SPLIT:
    case OB_OP_JOIN:
        return vk_parts_add(p, i, err);
    case OB_OP_CONV1D:
    case OB_OP_GDN:
    case OB_OP_CCA:
        return vk_state_add(p, i, err);
    case OB_OP_LINEAR_HEADS:
        return vk_linear_heads_add(p, i, err);
    case OB_OP_MOE_ROUTE:
        return vk_route_add(p, i, err);
    case OB_OP_MOE_GLU:
        return vk_moe_add(p, i, OB_NONE, err);
    case OB_OP_HC_MIX:
        return vk_hc_mix_add(p, i, err);
    case OB_OP_HC_POST:
        return vk_hc_post_add(p, i, err);
    case OB_OP_CSA:
        return vk_csa_add(p, i, err);
    case OB_OP_TOP_K:
        return vk_top_k_add(p, i, err);
    case OB_OP_GLU:
    case OB_OP_ACT: {
        const vk_form form =
            p->prog.vals[op->out[0]].cols % 32 ? VK_FORM_F32 : vk_wanted_form(p, op->out[0], i, VK_FORM_ANY);
        if (form != VK_FORM_F32) return add_glu_form(p, i, form, err);
        return op->kind == OB_OP_GLU ? add_row(p, i, err) : vk_parts_add(p, i, err);
    }
    default:
        return add_row(p, i, err);
    }
}

static ob_status add_ops(ob_dev_plan *p, ob_err *err)
{
    p->forms[0].of = p->forms[1].of = p->sorted_of = p->chosen_by = p->parts.of = OB_NONE;
    OB_TRY(add_inputs(p, err));
    for (int32_t i = 0, n_ops; i < p->prog.n_ops; i += n_ops) {
        const ob_op *op = &p->prog.ops[i];
        n_ops = 1;
        if (vk_max_rows(p, p->prog.vals[op->out[0]].rows) == 0)
            continue; /* a bucket without outputs */
        for (int k = 0; k < OB_OP_MAX_OUT; k++)
            if (op->out[k] != OB_NONE) vk_forget_form(p, op->out[k]);
        OB_TRY(vk_fuse(p, i, &n_ops, err));
        if (n_ops) continue;
        n_ops = 1;
        OB_TRY(add_op(p, i, err));
    }
    return add_results(p, err);
}

/* --- what the plan keeps ---------------------------------------------------------------------- */

static void *keep(ob_dev_plan *p, const void *src, int32_t n, size_t size)
{
    void *dst = ob_arena_array(&p->arena, (size_t)n + 1, size);
    if (dst && src && n) memcpy(dst, src, (size_t)n * size);
    return dst;
}

static ob_status copy_program(ob_dev_plan *p, const ob_program *src, ob_err *err)
{
    ob_program *g = &p->prog;
    *g = *src;
    g->ops = keep(p, src->ops, src->n_ops, sizeof *g->ops);
    g->vals = keep(p, src->vals, src->n_vals, sizeof *g->vals);
    g->weights = keep(p, src->weights, src->n_weights, sizeof *g->weights);
    g->caches = keep(p, src->caches, src->n_caches, sizeof *g->caches);
    g->states = keep(p, src->states, src->n_states, sizeof *g->states);
    p->ropes = keep(p, NULL, src->n_ops, sizeof *p->ropes);
    p->result_off = keep(p, NULL, src->n_vals, sizeof *p->result_off);
    p->input_off = keep(p, NULL, src->n_vals, sizeof *p->input_off);
    if (!g->ops || !g->vals || !g->weights || !g->caches || !g->states || !p->ropes || !p->result_off ||
        !p->input_off)
        return no_memory(err);
    return OB_OK;
}

static ob_status check_plane(const ob_plan_bindings *b, const ob_dev_buf *buf, ob_type type,
                             int32_t n_head, int32_t dim, ob_err *err)
{
    const size_t row = ob_type_row_bytes(type, dim);
    if (type != OB_F32 && type != OB_F16 && type != OB_Q8_0)
        return ob_err_set(err, OB_E_UNSUPPORTED,
                          "vulkan: a cache of type %s: F32, F16 and Q8_0 are possible",
                          ob_type_get(type)->name ? ob_type_get(type)->name : "?");
    if (row == 0)
        return ob_err_set(err, OB_E_UNSUPPORTED, "rows of %d do not fit cache type %s", dim,
                          ob_type_get(type)->name);
    uint64_t n;
    if (!buf ||
        !ob_mul_u64((uint64_t)b->n_pages * (uint64_t)b->page_tok, (uint64_t)n_head * row, &n) ||
        buf->n_bytes < n)
        return ob_err_set(err, OB_E_INVALID, "a cache buffer is too small for %d pages",
                          b->n_pages);
    return OB_OK;
}

static ob_status bind(ob_dev_plan *p, const ob_plan_bindings *b, ob_err *err)
{
    const ob_program *g = &p->prog;
    p->k_type = b->k_type;
    p->v_type = b->v_type;
    p->page_tok = b->page_tok;
    p->n_pages = b->n_pages;
    p->max_ctx = b->max_ctx;
    p->n_slots = b->n_slots;
    p->weights = keep(p, b->weights, g->n_weights, sizeof *p->weights);
    p->cache_k = keep(p, NULL, g->n_caches, sizeof *p->cache_k);
    p->cache_v = keep(p, NULL, g->n_caches, sizeof *p->cache_v);
    p->states = keep(p, NULL, g->n_states, sizeof *p->states);
    if (!p->weights || !p->cache_k || !p->cache_v || !p->states) return no_memory(err);
    if (g->n_caches && (b->page_tok < 1 || b->n_pages < 1 || b->max_ctx < 1))
        return ob_err_set(err, OB_E_INVALID, "a plan with caches needs pages and a context length");
    if (g->n_caches) p->max_pages = (int32_t)ob_div_up(b->max_ctx, b->page_tok);
    for (int32_t i = 0; i < g->n_weights; i++)
        if (!p->weights[i])
            return ob_err_set(err, OB_E_INVALID, "weight %s is not bound", g->weights[i].name);
    for (int32_t i = 0; i < g->n_caches; i++) {
        const ob_cache_spec *s = &g->caches[i];
        OB_TRY(check_plane(b, b->cache_k[i], b->k_type, s->n_head_kv, s->k_dim, err));
        p->cache_k[i] = &b->cache_k[i]->mem;
        if (!s->v_dim) continue;
        OB_TRY(check_plane(b, b->cache_v[i], b->v_type, s->n_head_kv, s->v_dim, err));
        p->cache_v[i] = &b->cache_v[i]->mem;
    }
    for (int32_t i = 0; i < g->n_states; i++) {
        uint64_t n;
        if (!b->states[i] || !ob_mul_u64((uint64_t)g->states[i].n_floats * 4, (uint64_t)b->n_slots, &n) ||
            b->states[i]->n_bytes < n)
            return ob_err_set(err, OB_E_INVALID, "a state buffer is too small for %d slots", b->n_slots);
        p->states[i] = &b->states[i]->mem;
    }
    return OB_OK;
}

/* A workspace of at least n bytes: one that is there, else a new one. */
static ob_status work_take(vk_dev *d, uint64_t n, vk_work **out, ob_err *err)
{
    vk_work *w = d->works;
    while (w && w->mem.size < n) w = w->next;
    if (!w) {
        w = ob_calloc(1, sizeof *w);
        if (!w) return no_memory(err);
        const ob_status s = vk_mem_new(d, VK_MEM_DEVICE, n, &w->mem, err);
        if (s != OB_OK) {
            ob_free(w);
            return s;
        }
        w->next = d->works;
        d->works = w;
    }
    w->n_plans++;
    *out = w;
    return OB_OK;
}

static void work_give(vk_dev *d, vk_work *w)
{
    if (!w || --w->n_plans) return;
    vk_work **at = &d->works;
    while (*at != w) at = &(*at)->next;
    *at = w->next;
    vk_mem_free(d, &w->mem);
    ob_free(w);
}

/* The workspace, with scratch behind the values; the parameters of a step. */
static ob_status set_memory(ob_dev_plan *p, ob_err *err)
{
    uint64_t form = 0, part = 0, count = 0, moe = 0;
    for (int32_t i = 0; i < p->prog.n_weights; i++) /* where, comes later */
        if (p->weights[i]->desc.hadamard && p->weights[i]->desc.act4) p->coarse_off[0] = UINT64_MAX;
    for (int32_t i = 0; i < p->prog.n_ops; i++) {
        const ob_op *op = &p->prog.ops[i];
        if (op->kind == OB_OP_LINEAR) {
            form = OB_MAX(form, vk_linear_form(p, op));
            part = OB_MAX(part, vk_gemm_parts(p, op));
            count = OB_MAX(count, vk_gemm_counters(p, op));
        } else if (op->kind == OB_OP_ATTENTION) {
            part = OB_MAX(part, vk_attn_scratch(p, op));
            count = OB_MAX(count, vk_attn_counters(p, op));
        } else if (op->kind == OB_OP_MOE_ROUTE) {
            count = OB_MAX(count, vk_route_counters(p));
            form = OB_MAX(form, vk_route_form(p, i));
        } else if (op->kind == OB_OP_MOE_GLU) {
            form = OB_MAX(form, vk_form_bytes(p, op->in[0], vk_moe_form(p, op)));
            moe = OB_MAX(moe, vk_moe_scratch(p, op));
        } else if (op->kind == OB_OP_CSA) {
            part = OB_MAX(part, vk_csa_scratch(p, op));
        } else if (op->kind == OB_OP_TOP_K) {
            part = OB_MAX(part, vk_top_k_scratch(p, op));
        } else {
            part = OB_MAX(part, vk_state_scratch(p, op));
        }
    }
    form = ob_align_up(form + 512, 256);
    p->form_off[0] = ob_align_up(p->prog.workspace_bytes, 256);
    p->form_off[1] = p->form_off[0] + form;
    p->part_off = p->form_off[1] + form;
    p->moe_off = ob_align_up(p->part_off + part, 256);
    OB_TRY(work_take(p->dev, p->moe_off + moe, &p->shared, err));
    p->work = p->shared->mem;
    if (count) {
        OB_TRY(vk_mem_new(p->dev, VK_MEM_DEVICE, count, &p->counts, err));
        OB_TRY(vk_zero(p->dev, &p->counts, 0, count, err));
    }
    const uint64_t n_tok = (uint64_t)p->prog.max_tok;
    p->tok_off = ob_align_up(sizeof(vk_params), 64);
    p->pos_off = p->tok_off + n_tok * 4;
    p->type_off = p->pos_off + n_tok * 4;
    p->first_off = p->type_off + n_tok * 4;
    p->info_off = ob_align_up(p->first_off + ((uint64_t)p->prog.max_seq + 1) * 4, 64);
    bool axes = false;
    for (int32_t i = 0; i < p->prog.n_ops; i++) {
        const ob_op *op = &p->prog.ops[i];
        p->blocks |= op->kind == OB_OP_ATTENTION && op->p.attn.blocks != OB_BLOCKS_NONE;
        axes |= op->kind == OB_OP_ROPE && op->p.rope.axis_pairs[0] > 0;
        if (op->kind == OB_OP_EMBED && op->p.embed.vectors) p->vec_bytes = vk_value_bytes(p, op->out[0]);
    }
    p->seq_off = p->info_off + n_tok * (p->blocks ? 32 : 16);
    p->out_off = p->seq_off + (uint64_t)p->prog.max_seq * 16;
    p->table_off = p->out_off + (uint64_t)p->prog.max_out * 4;
    uint64_t end = p->table_off + (uint64_t)p->prog.max_seq * (uint64_t)p->max_pages * 4;
    if (p->coarse_off[0]) {
        p->coarse_off[0] = end;
        p->coarse_off[1] = end + n_tok * 4;
        end += (n_tok + (uint64_t)p->prog.max_out) * 4;
    }
    if (axes) {
        p->pos_h_off = end;
        p->pos_w_off = end + n_tok * 4;
        end += n_tok * 8;
    }
    if (p->vec_bytes) {
        p->vec_off = ob_align_up(end, 64);
        end = p->vec_off + p->vec_bytes;
    }
    return vk_mem_new(p->dev, VK_MEM_PARAM, end, &p->params, err);
}

ob_status vk_plan_make(vk_dev *d, const ob_program *prog, const ob_plan_bindings *b, unsigned fast,
                       ob_dev_plan **out, ob_err *err)
{
    *out = NULL;
    ob_status s = OB_OK;
    char why[128];
    if (prog->max_tok < 1 || prog->max_out < 0 || prog->max_seq < 1 || prog->max_seq > OB_MAX_SEQS)
        return ob_err_set(err, OB_E_INVALID,
                          "a program must be planned before it is given to a device");
    for (int32_t i = 0; i < prog->n_ops; i++) {
        OB_TRY(ob_op_check(prog, i, err));
        if (!vk_supports(&d->base, prog, i, why, sizeof why))
            return ob_err_set(err, OB_E_UNSUPPORTED, "vulkan: %s", why);
    }
    ob_dev_plan *p = ob_calloc(1, sizeof *p);
    if (!p) return no_memory(err);
    p->dev = d;
    p->fast = fast;
    p->scale = d->scale;
    ob_arena_init(&p->arena, (size_t)256 << 20);
    OB_GOTO(copy_program(p, prog, err));
    OB_GOTO(bind(p, b, err));
    OB_GOTO(set_memory(p, err));
    OB_GOTO(add_ops(p, err));
    if (!d->listing) OB_GOTO(vk_kernels_make(d, err));
    if (!d->listing) OB_GOTO(vk_record(p, err));
    *out = p;
out:
    if (s != OB_OK) vk_plan_free(&d->base, p);
    return s;
}

ob_status vk_plan_new(ob_dev *dev, const ob_program *prog, const ob_plan_bindings *b,
                      ob_dev_plan **out, ob_err *err)
{
    *out = NULL;
    vk_dev *d = vk_of(dev);
    OB_TRY(vk_test_attn(d, prog, b, err));
    OB_TRY(vk_plan_make(d, prog, b, d->fast, out, err));
    const vk_load *l = &d->load;
    ob_log_debug("vulkan: a plan for %d tokens, %d dispatches; loading by now: %d tests of kernels %.0f ms, %d pipelines %.0f "
                 "ms, %.0f MiB packed in %.0f ms, %.1f MiB used in place", prog->max_tok, (*out)->n_steps, l->n_tests, l->tests_ms, l->n_pipes,
                 l->pipes_ms, (double)l->pack_bytes / 1048576.0, l->pack_ms,
                 (double)l->import_bytes / 1048576.0);
    vk_caches_write(d); /* a server may run for months, and end without a word */
    return OB_OK;
}

void vk_plan_free(ob_dev *dev, ob_dev_plan *p)
{
    vk_dev *d = vk_of(dev);
    if (!p) return;
    if (p->in_flight) (void)vk_queue_wait(d, p->in_flight, NULL);
    if (d->timed == p) d->timed = NULL;
    if (p->times) d->DestroyQueryPool(d->handle, p->times, NULL);
    if (d->running == p) d->running = NULL;
    for (int32_t i = 0; i < p->n_cmds; i++) d->FreeCommandBuffers(d->handle, d->pool, 1, &p->segments[i].cmd);
    for (int32_t i = 0; i < p->n_ropes; i++) vk_mem_free(d, &p->ropes[i].mem);
    vk_mem_free(d, &p->results);
    vk_mem_free(d, &p->inputs);
    vk_mem_free(d, &p->params);
    vk_mem_free(d, &p->counts);
    work_give(d, p->shared);
    ob_free(p->steps);
    ob_arena_deinit(&p->arena);
    ob_free(p);
}
