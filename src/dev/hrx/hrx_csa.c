/* DeepSeek V4's ops: hyper-connections (loom/hyper.loom) and compressed sparse attention (csa.loom, pick.loom). */
#include "dev/hrx/hrx_int.h"

#include <math.h>
#include <stdio.h>

enum { COLUMN_WG = 128, SCORE_ENTRIES = 32, SCORE_WGS = 64 /* of a token; each goes on while there are entries */ };

static const ob_value *val(const hx_make *m, ob_val v) { return &m->plan->prog.vals[v]; }

/* ---- hyper-connections ----------------------------------------------------------------------- */

static void add_mix(hx_make *m, const ob_op *op)
{
    const ob_value *y = val(m, op->out[0]);
    const ob_hc_params *h = &op->p.hc;
    hx_dispatch *x = hx_add(m, "hyper", "hc_mix", 4, 5);
    hx_grid(x, ob_div_up(y->cols, COLUMN_WG), 1, 1);
    hx_follow(x, 1, y->rows, 1);
    hx_int(x, y->cols);
    hx_int(x, h->n_stream);
    hx_int(x, val(m, op->in[1])->cols);
    hx_float(x, h->eps);
    hx_value(m, x, op->in[0]);
    hx_value(m, x, op->in[1]);
    hx_weight(m, x, op->w[0]);
    hx_weight(m, x, op->w[1]);
    hx_value(m, x, op->out[0]);
    if (op->out[1] == OB_NONE) return;
    x = hx_add(m, "hyper", "hc_coef", 4, 4);
    hx_grid(x, 1, 1, 1);
    hx_follow(x, 0, y->rows, 1);
    hx_int(x, h->n_stream);
    hx_int(x, h->n_iter);
    hx_float(x, 1.0f / (float)h->n_stream);
    hx_float(x, h->eps);
    hx_value(m, x, op->in[1]);
    hx_weight(m, x, op->w[0]);
    hx_weight(m, x, op->w[1]);
    hx_value(m, x, op->out[1]);
}

static void add_post(hx_make *m, const ob_op *op)
{
    const ob_value *y = val(m, op->in[0]);
    hx_dispatch *x = hx_add(m, "hyper", "hc_post", 2, 4);
    hx_grid(x, ob_div_up(y->cols, COLUMN_WG), 1, 1);
    hx_follow(x, 1, y->rows, 1);
    hx_int(x, y->cols);
    hx_int(x, op->p.hc.n_stream);
    for (int k = 0; k < 3; k++) hx_value(m, x, op->in[k]);
    hx_value(m, x, op->out[0]);
}

void hx_add_hyper(hx_make *m, const ob_op *op)
{
    if (op->kind == OB_OP_HC_MIX) add_mix(m, op);
    else add_post(m, op);
}

/* ---- compressed sparse attention -------------------------------------------------------------- */

/* One compressor: the latent one of the attention, or the indexer's. */
typedef struct compressor {
    ob_val kv, gate;
    int32_t ape, norm, cache, state, width;
    bool overlap;
} compressor;

static compressor latent_of(const hx_make *m, const ob_op *op)
{
    const ob_csa_params *a = &op->p.csa;
    return (compressor){.kv = op->in[2], .gate = op->in[3], .ape = op->w[1], .norm = op->w[2], .cache = a->cache_comp,
                        .state = a->state_comp, .width = a->k_dim, .overlap = val(m, op->in[2])->cols == 2 * a->k_dim};
}

static compressor index_of(const ob_op *op)
{
    const ob_csa_params *a = &op->p.csa;
    return (compressor){.kv = op->in[6], .gate = op->in[7], .ape = op->w[3], .norm = op->w[4], .cache = a->cache_index,
                        .state = a->state_index, .width = a->index_dim, .overlap = true};
}

static bool has_indexer(const ob_op *op) { return op->in[4] != OB_NONE; }

static float inverse(int32_t n) { return n ? 1.0f / (float)n : 0; }

static int64_t max_entries(const ob_dev_plan *p, const ob_op *op) { return ob_div_up(p->max_ctx, op->p.csa.ratio); }

/* Scores of all entries, then lists of the best; both for each token. */
static size_t score_bytes(const ob_dev_plan *p, const ob_op *op)
{
    return ob_align_up((size_t)p->prog.max_tok * (size_t)max_entries(p, op) * 4, 256);
}
static size_t list_bytes(const ob_dev_plan *p, const ob_op *op)
{
    return (size_t)p->prog.max_tok * (size_t)op->p.csa.top_k * 4;
}

size_t hx_csa_scratch(const ob_dev_plan *p, const ob_op *op)
{
    return has_indexer(op) ? score_bytes(p, op) + list_bytes(p, op) : 0;
}

static hx_dispatch *cache_kernel(hx_make *m, const char *kernel, uint32_t n_consts, uint32_t n_refs)
{
    char object[24];
    snprintf(object, sizeof object, "csa_%s", hx_type_object(m->plan->k_type));
    return hx_add(m, object, kernel, n_consts, n_refs);
}

static void plane(const hx_make *m, hx_dispatch *x, int32_t cache)
{
    hx_mem(x, m->plan->cache_k[cache], 0, m->plan->cache_k_len[cache]);
}

static void add_compress(hx_make *m, const ob_csa_params *a, const compressor *c)
{
    const ob_dev_plan *p = m->plan;
    hx_dispatch *x = cache_kernel(m, "csa_compress", 11, 10);
    hx_grid(x, 1, 1, 1);
    hx_follow(x, 0, OB_ROWS_TOK, 1);
    hx_int(x, c->width);
    hx_int(x, c->overlap);
    hx_int(x, a->ratio);
    hx_int(x, a->rope.n_rot);
    hx_int(x, a->rope.pairing == OB_ROPE_NORM);
    hx_int(x, p->page_tok);
    hx_int(x, p->max_pages);
    hx_float(x, inverse(p->page_tok));
    hx_float(x, inverse(a->ratio));
    hx_float(x, inverse((c->overlap ? 2 : 1) * a->ratio));
    hx_float(x, a->eps);
    hx_tokens(m, x);
    hx_sequences(m, x);
    hx_pages(m, x);
    hx_value(m, x, c->kv);
    hx_value(m, x, c->gate);
    hx_weight(m, x, c->ape);
    hx_weight(m, x, c->norm);
    hx_mem(x, p->tables[m->op], 0, hx_rope_bytes(p, &a->rope));
    hx_state(m, x, c->state);
    plane(m, x, c->cache);
}

static void add_keep(hx_make *m, const ob_csa_params *a, const compressor *c)
{
    const int32_t cols = val(m, c->kv)->cols, slots = (c->overlap ? 2 : 1) * a->ratio;
    hx_dispatch *x = hx_add(m, "pick", "csa_keep", 3, 5);
    hx_grid(x, ob_div_up(cols, COLUMN_WG), 1, 1);
    hx_follow(x, 1, OB_ROWS_TOK, 1);
    hx_int(x, cols);
    hx_int(x, slots);
    hx_float(x, inverse(slots));
    hx_tokens(m, x);
    hx_sequences(m, x);
    hx_value(m, x, c->kv);
    hx_value(m, x, c->gate);
    hx_state(m, x, c->state);
}

static void add_score(hx_make *m, const ob_op *op)
{
    const ob_dev_plan *p = m->plan;
    const ob_csa_params *a = &op->p.csa;
    const int64_t n_wg = OB_MIN((int64_t)SCORE_WGS, ob_div_up(max_entries(p, op), SCORE_ENTRIES));
    hx_dispatch *x = cache_kernel(m, "csa_score", 11, 6);
    hx_grid(x, n_wg, 1, 1);
    hx_follow(x, 1, OB_ROWS_TOK, 1);
    hx_int(x, a->index_dim);
    hx_int(x, a->n_index_head);
    hx_int(x, a->ratio);
    hx_int(x, n_wg);
    hx_int(x, max_entries(p, op));
    hx_int(x, a->top_k);
    hx_int(x, p->page_tok);
    hx_int(x, p->max_pages);
    hx_float(x, inverse(p->page_tok));
    hx_float(x, inverse(a->ratio));
    hx_float(x, 1.0f / sqrtf((float)a->index_dim * (float)a->n_index_head));
    hx_tokens(m, x);
    hx_pages(m, x);
    hx_value(m, x, op->in[4]);
    hx_value(m, x, op->in[5]);
    plane(m, x, a->cache_index);
    hx_scratch(m, x, 0, score_bytes(p, op));
    x = hx_add(m, "pick", "csa_pick", 3, 3);
    hx_grid(x, 1, 1, 1);
    hx_follow(x, 0, OB_ROWS_TOK, 1);
    hx_int(x, max_entries(p, op));
    hx_int(x, a->top_k);
    hx_float(x, inverse(a->ratio));
    hx_tokens(m, x);
    hx_scratch(m, x, 0, score_bytes(p, op));
    hx_scratch(m, x, score_bytes(p, op), list_bytes(p, op));
}

static void add_attend(hx_make *m, const ob_op *op)
{
    const ob_dev_plan *p = m->plan;
    const ob_csa_params *a = &op->p.csa;
    hx_dispatch *x = cache_kernel(m, "csa_attn", 10, 8);
    hx_grid(x, a->n_head, 1, 1);
    hx_follow(x, 1, OB_ROWS_TOK, 1);
    hx_int(x, a->k_dim);
    hx_int(x, a->n_head);
    hx_int(x, a->window);
    hx_int(x, a->ratio);
    hx_int(x, has_indexer(op) ? a->top_k : 0);
    hx_int(x, p->page_tok);
    hx_int(x, p->max_pages);
    hx_float(x, inverse(p->page_tok));
    hx_float(x, inverse(a->ratio));
    hx_float(x, a->scale);
    hx_tokens(m, x);
    hx_pages(m, x);
    hx_value(m, x, op->in[0]);
    plane(m, x, a->cache_raw);
    plane(m, x, a->ratio ? a->cache_comp : a->cache_raw);
    if (has_indexer(op)) hx_scratch(m, x, score_bytes(p, op), list_bytes(p, op));
    else hx_value(m, x, OB_NONE);
    hx_weight(m, x, op->w[0]);
    hx_value(m, x, op->out[0]);
}

/* Entries are made before the rings that they look at are written over. */
void hx_add_csa(hx_make *m, const ob_op *op)
{
    const ob_csa_params *a = &op->p.csa;
    compressor c[2];
    int n = 0;
    if (a->ratio) c[n++] = latent_of(m, op);
    if (has_indexer(op)) c[n++] = index_of(op);
    hx_add_cache_write(m, op->in[1], m->plan->k_type, 1, a->k_dim, m->plan->cache_k[a->cache_raw], m->plan->cache_k_len[a->cache_raw]);
    for (int k = 0; k < n; k++) add_compress(m, a, &c[k]);
    for (int k = 0; k < n; k++) add_keep(m, a, &c[k]);
    if (has_indexer(op)) add_score(m, op);
    add_attend(m, op);
}
