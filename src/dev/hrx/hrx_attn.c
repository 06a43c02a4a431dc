/* Attention: keys and values into the cache, then one kernel a token and head, over all of its cache or in segments. */
#include "dev/hrx/hrx_int.h"

#include <stdio.h>

enum { KV_BLOCK = 32, MERGE_WG = 128 };

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

static void add_write(hx_make *m, const ob_op *op, ob_val in, ob_type type, int32_t dim, hx_object plane, uint64_t len)
{
    const ob_dev_plan *p = m->plan;
    char object[24];
    snprintf(object, sizeof object, "kv_%s", hx_type_object(type));
    hx_dispatch *x = hx_add(m, object, "kv_write", 5, 4);
    hx_grid(x, ob_div_up(dim, KV_BLOCK), op->p.attn.n_head_kv, 1);
    hx_follow(x, 2, OB_ROWS_TOK, 1);
    hx_int(x, dim);
    hx_int(x, op->p.attn.n_head_kv);
    hx_int(x, p->page_tok);
    hx_int(x, p->max_pages);
    hx_float(x, 1.0f / (float)p->page_tok);
    hx_param(m, x, p->at.info, (size_t)p->prog.max_tok * 16);
    hx_param(m, x, p->at.table, (size_t)p->prog.max_seq * (size_t)p->max_pages * 4);
    hx_value(m, x, in);
    hx_mem(x, plane, 0, len);
}

void hx_add_attention(hx_make *m, const ob_op *op)
{
    const ob_dev_plan *p = m->plan;
    const ob_attn_params *a = &op->p.attn;
    const bool v_in_k = op->in[2] == OB_NONE;
    const hx_object k = p->cache_k[a->cache], v = v_in_k ? k : p->cache_v[a->cache];
    const uint64_t k_len = p->cache_k_len[a->cache], v_len = v_in_k ? k_len : p->cache_v_len[a->cache];
    char object[24];
    add_write(m, op, op->in[1], p->k_type, a->k_dim, k, k_len);
    if (!v_in_k) add_write(m, op, op->in[2], p->v_type, a->v_dim, v, v_len);
    snprintf(object, sizeof object, "attn_%s_%s", hx_type_object(p->k_type), hx_type_object(v_in_k ? p->k_type : p->v_type));
    hx_dispatch *x = hx_add(m, object, "attn", 15, 7);
    hx_grid(x, 1, a->n_head, 1);
    hx_follow(x, 2, OB_ROWS_TOK, 1);
    hx_int(x, a->k_dim);
    hx_int(x, a->v_dim);
    hx_int(x, v_in_k ? a->k_dim : a->v_dim);
    hx_int(x, a->n_head);
    hx_int(x, a->n_head_kv);
    hx_int(x, p->page_tok);
    hx_int(x, p->max_pages);
    hx_int(x, seg_tiles(p));
    if (x) x->seg_at = (int8_t)x->n_consts;
    hx_int(x, 1);
    hx_int(x, (a->causal ? 1 : 0) | (a->blocks == OB_BLOCKS_ALSO ? 2 : a->blocks == OB_BLOCKS_ONLY ? 4 : 0));
    hx_int(x, OB_MAX(a->window, 0));
    hx_float(x, 1.0f / (float)p->page_tok);
    hx_float(x, 1.0f / (float)(a->n_head / a->n_head_kv));
    hx_float(x, a->scale);
    hx_float(x, a->softcap);
    hx_param(m, x, p->at.info, (size_t)p->prog.max_tok * 16);
    hx_param(m, x, p->at.table, (size_t)p->prog.max_seq * (size_t)p->max_pages * 4);
    hx_param(m, x, p->at.block, (size_t)p->prog.max_tok * 16);
    hx_value(m, x, op->in[0]);
    hx_mem(x, k, 0, k_len);
    hx_mem(x, v, 0, v_len);
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
