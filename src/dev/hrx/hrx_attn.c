/* Attention: keys and values into the cache, then one kernel a token and head, over all of its cache or in segments; of
 * prompts by matrices. */
#include "dev/hrx/hrx_int.h"

#include <stdio.h>

enum { KV_BLOCK = 32, MERGE_WG = 128, MM_TOKENS = 64, MM_COLUMNS = 128, MM_K_DIM = 128 };

static bool splits(const ob_dev_plan *p) { return p->prog.max_tok <= HX_SPLIT_TOK; }

/* Tiles of a segment: the same for every step of a context, so that what a token gets does not depend on the step. */
static int32_t seg_tiles(const ob_dev_plan *p)
{
    if (!splits(p)) return 16384;
    return OB_MAX(HX_SEG_TILES, (int32_t)ob_div_up(ob_div_up(p->max_ctx, HX_TILE), HX_MAX_SEG));
}
static int32_t max_segments(const ob_dev_plan *p)
{
    return splits(p) ? (int32_t)ob_div_up(p->max_ctx, (int64_t)HX_TILE * seg_tiles(p)) : 1;
}

size_t hx_attn_scratch(const ob_dev_plan *p, const ob_op *op)
{
    const ob_attn_params *a = &op->p.attn;
    return (size_t)p->prog.max_tok * (size_t)a->n_head * (size_t)max_segments(p) * (size_t)(a->v_dim + 2) * 4;
}

void hx_add_cache_write(hx_make *m, ob_val in, ob_type type, int32_t n_head, int32_t dim, hx_object plane, uint64_t len)
{
    const ob_dev_plan *p = m->plan;
    char object[24];
    snprintf(object, sizeof object, "kv_%s", hx_type_object(type));
    hx_dispatch *x = hx_add(m, object, "kv_write", 5, 4);
    hx_grid(x, ob_div_up(dim, KV_BLOCK), n_head, 1);
    hx_follow(x, 2, OB_ROWS_TOK, 1);
    hx_int(x, dim);
    hx_int(x, n_head);
    hx_int(x, p->page_tok);
    hx_int(x, p->max_pages);
    hx_float(x, 1.0f / (float)p->page_tok);
    hx_tokens(m, x);
    hx_pages(m, x);
    hx_value(m, x, in);
    hx_mem(x, plane, 0, len);
}

/* A plane as a kernel's argument. */
typedef struct plane { hx_object mem; uint64_t len; ob_type type; } plane;

static plane keys_of(const ob_dev_plan *p, const ob_attn_params *a) { return (plane){p->cache_k[a->cache], p->cache_k_len[a->cache], p->k_type}; }
static plane values_of(const ob_dev_plan *p, const ob_op *op)
{
    const int32_t c = op->p.attn.cache;
    return op->in[2] == OB_NONE ? keys_of(p, &op->p.attn) : (plane){p->cache_v[c], p->cache_v_len[c], p->v_type};
}

static int32_t mode_of(const ob_attn_params *a)
{
    return (a->causal ? 1 : 0) | (a->blocks == OB_BLOCKS_ALSO ? 2 : a->blocks == OB_BLOCKS_ONLY ? 4 : 0);
}

/* By matrices: prompts, where the cache is f16 and queries and weights may be rounded to it. */
static bool by_matrices(const ob_dev_plan *p, const ob_op *op)
{
    const ob_attn_params *a = &op->p.attn;
    return !p->dev->exact && !splits(p) && hx_has_object(p->dev, "attn_mm") && p->k_type == OB_F16 &&
           (op->in[2] == OB_NONE || p->v_type == OB_F16) && a->k_dim % 16 == 0 && a->k_dim <= MM_K_DIM && a->v_dim % 8 == 0;
}

/* What both kernels want behind their own numbers: what a token may see, scales, the step, pages, queries and the cache. */
static void take_cache(hx_make *m, hx_dispatch *x, const ob_op *op, plane k, plane v)
{
    const ob_dev_plan *p = m->plan;
    const ob_attn_params *a = &op->p.attn;
    hx_int(x, mode_of(a));
    hx_int(x, OB_MAX(a->window, 0));
    hx_float(x, 1.0f / (float)p->page_tok);
    hx_float(x, 1.0f / (float)(a->n_head / a->n_head_kv));
    hx_float(x, a->scale);
    hx_float(x, a->softcap);
    hx_tokens(m, x);
    hx_pages(m, x);
    hx_param(m, x, p->at.block, (size_t)p->prog.max_tok * 16);
    hx_value(m, x, op->in[0]);
    hx_mem(x, k.mem, 0, k.len);
    hx_mem(x, v.mem, 0, v.len);
}

static void add_by_matrices(hx_make *m, const ob_op *op)
{
    const ob_dev_plan *p = m->plan;
    const ob_attn_params *a = &op->p.attn;
    const plane k = keys_of(p, a), v = values_of(p, op);
    hx_dispatch *x = hx_add(m, "attn_mm", "attn_mm", 14, 7);
    hx_grid(x, ob_div_up(a->v_dim, MM_COLUMNS), a->n_head, 1);
    hx_follow(x, 2, OB_ROWS_TOK, MM_TOKENS);
    hx_int(x, a->k_dim);
    hx_int(x, a->v_dim);
    hx_int(x, op->in[2] == OB_NONE ? a->k_dim : a->v_dim);
    hx_int(x, a->n_head);
    hx_int(x, a->n_head_kv);
    if (x) x->rows_at = (int8_t)x->n_consts;
    hx_int(x, 0);
    hx_int(x, p->page_tok);
    hx_int(x, p->max_pages);
    take_cache(m, x, op, k, v);
    hx_value(m, x, op->out[0]);
}

/* A token and head at a time, in segments of its cache. */
static void add_by_token(hx_make *m, const ob_op *op)
{
    const ob_dev_plan *p = m->plan;
    const ob_attn_params *a = &op->p.attn;
    const plane k = keys_of(p, a), v = values_of(p, op);
    char object[24];
    snprintf(object, sizeof object, "attn_%s_%s", hx_type_object(k.type), hx_type_object(v.type));
    hx_dispatch *x = hx_add(m, object, "attn", 15, 7);
    hx_grid(x, 1, a->n_head, 1);
    hx_follow(x, 2, OB_ROWS_TOK, 1);
    hx_int(x, a->k_dim);
    hx_int(x, a->v_dim);
    hx_int(x, op->in[2] == OB_NONE ? a->k_dim : a->v_dim);
    hx_int(x, a->n_head);
    hx_int(x, a->n_head_kv);
    hx_int(x, p->page_tok);
    hx_int(x, p->max_pages);
    hx_int(x, seg_tiles(p));
    if (x) x->seg_at = (int8_t)x->n_consts;
    hx_int(x, 1);
    take_cache(m, x, op, k, v);
    hx_scratch(m, x, 0, hx_attn_scratch(p, op));
    if (x) {
        const ob_value *y = &p->prog.vals[op->out[0]];
        x->whole = (hx_ref){p->work, y->offset, (uint64_t)p->prog.max_tok * (uint64_t)y->cols * 4};
    }
    x = hx_add(m, object, "attn_merge", 3, 2);
    hx_grid(x, ob_div_up(a->v_dim, MERGE_WG), a->n_head, 1);
    hx_follow(x, 2, OB_ROWS_TOK, 1);
    hx_int(x, a->v_dim);
    hx_int(x, a->n_head);
    if (x) x->seg_at = (int8_t)x->n_consts;
    if (x) x->merges = true;
    hx_int(x, 1);
    hx_scratch(m, x, 0, hx_attn_scratch(p, op));
    hx_value(m, x, op->out[0]);
}

void hx_add_attention(hx_make *m, const ob_op *op)
{
    const ob_attn_params *a = &op->p.attn;
    const plane k = keys_of(m->plan, a), v = values_of(m->plan, op);
    hx_add_cache_write(m, op->in[1], k.type, a->n_head_kv, a->k_dim, k.mem, k.len);
    if (op->in[2] != OB_NONE) hx_add_cache_write(m, op->in[2], v.type, a->n_head_kv, a->v_dim, v.mem, v.len);
    if (by_matrices(m->plan, op)) add_by_matrices(m, op);
    else add_by_token(m, op);
}
