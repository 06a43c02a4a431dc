/* Chains of products of rows with 4-bit weights on an NPU. */
#include "dev/npu/npu_gemv.h"

#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "dev/npu/npu_array_mac.h"
#include "dev/npu/npu_kernel.h"
#include "quant/quant.h"

enum {
    MAX_CMDS = 72,          /* the queue adds its init */
    MAX_Y_BYTES = 4 << 20,  /* results of a chain, unless one product has more */
    MIN_TEXT_BYTES = 256 << 10,
};
static const double CHAIN_MS = 250; /* by the estimate, which may be half of the truth */

typedef struct piece { const ob_npu_mv *mv; size_t shape, x_off, y_off, text_off; } piece;

struct ob_npu_gemv {
    ob_npu_kernel kernel;
    ob_npu_bo *x, *y, *texts;
    piece pieces[MAX_CMDS]; /* of the chain being built */
    ob_npu_cmd cmds[MAX_CMDS];
    int n_pieces;
    size_t x_len, y_len, text_len;
    double ms;
    uint64_t n_products;
};

/* ---- on the host ------------------------------------------------------------------------------ */

void ob_npu_bf16_pack(uint16_t *dst, const float *x, int64_t k)
{
    for (int64_t i = 0; i < k; i++) dst[i] = ob_f32_to_bf16(x[i]);
    memset(dst + k, 0, (size_t)(ob_npu_q4_pad_k(k) - k) * sizeof *dst);
}

void ob_npu_mv_ref(const uint16_t *x, int64_t k, const uint8_t *w, int64_t j0, int64_t j1, float *y)
{
    const int64_t k_pad = ob_npu_q4_pad_k(k);
    for (int64_t j = j0; j < j1; j += OB_NPU_Q4_TILE_N) {
        float acc[OB_NPU_Q4_TILE_N] = {0};
        for (int64_t i = 0; i < k_pad; i += OB_NPU_Q4_TILE_K) ob_npu_mac_q4(x + i, w + ob_npu_q4_tile_at(k_pad, i, j), acc);
        memcpy(y + (j - j0), acc, (size_t)OB_MIN(OB_NPU_Q4_TILE_N, j1 - j) * sizeof *y);
    }
}

/* ---- life ------------------------------------------------------------------------------------- */

ob_status ob_npu_gemv_new(ob_npu_dev *d, ob_npu_gemv **out, ob_err *err)
{
    *out = NULL;
    ob_npu_gemv *g = ob_calloc(1, sizeof *g);
    if (!g) return ob_err_set(err, OB_E_NO_MEMORY, "NPU: no memory for products");
    const ob_status s = ob_npu_kernel_load(&g->kernel, d, OB_NPU_DESIGN_GEMV_Q4, err);
    if (s == OB_OK) *out = g;
    else ob_free(g);
    return s;
}

void ob_npu_gemv_free(ob_npu_gemv *g)
{
    if (!g) return;
    ob_npu_kernel_unload(&g->kernel); /* the queue first: it may still read the rest */
    ob_npu_bo_free(g->x);
    ob_npu_bo_free(g->y);
    ob_npu_bo_free(g->texts);
    ob_free(g);
}

ob_npu_gemv_stats ob_npu_gemv_stats_get(const ob_npu_gemv *g)
{
    return (ob_npu_gemv_stats){.n_products = g->n_products, .n_chains = ob_npu_queue_stats_get(g->kernel.queue).n_chains,
                               .n_texts = g->kernel.n_shapes};
}

/* ---- chains ----------------------------------------------------------------------------------- */

/* A weight comes once over memory: 40 GB/s; 0.1 ms a command. */
static double estimate_ms(const ob_npu_shape *s) { return 0.1 + (double)ob_npu_q4_bytes(s->k, s->n) / 40e6; }

static void empty_chain(ob_npu_gemv *g)
{
    g->n_pieces = 0;
    g->x_len = g->y_len = g->text_len = 0;
    g->ms = 0;
}

/* Rows and the text of command i, with addresses in. */
static ob_status write_piece(ob_npu_gemv *g, int i, ob_err *err)
{
    const piece *p = &g->pieces[i];
    const ob_npu_shape *s = &g->kernel.shapes[p->shape];
    if (!i || p->x_off != g->pieces[i - 1].x_off) {
        ob_npu_bf16_pack((uint16_t *)(void *)(g->x->host + p->x_off), p->mv->x, p->mv->k);
        ob_npu_bo_flush(g->x, p->x_off, (size_t)s->k * 2);
    }
    uint8_t *text = g->texts->host + p->text_off;
    const uint64_t args[] = {g->x->dev_addr + p->x_off, p->mv->w->dev_addr + p->mv->w_off, g->y->dev_addr + p->y_off};
    memcpy(text, s->text, s->n_bytes);
    OB_TRY(ob_npu_patch_apply(text, s->n_bytes, s->patches, s->n_patches, args, OB_COUNT(args), err));
    g->cmds[i] = (ob_npu_cmd){.text = g->texts, .off = p->text_off, .n_bytes = s->n_bytes, .est_ms = estimate_ms(s)};
    return OB_OK;
}

static ob_status run_chain(ob_npu_gemv *g, ob_err *err)
{
    if (!g->n_pieces) return OB_OK;
    OB_TRY(ob_npu_bo_need(g->kernel.dev, OB_NPU_BO_SHARE, g->x_len, &g->x, err));
    OB_TRY(ob_npu_bo_need(g->kernel.dev, OB_NPU_BO_SHARE, g->y_len, &g->y, err));
    OB_TRY(ob_npu_bo_need(g->kernel.dev, OB_NPU_BO_DEV, OB_MAX(g->text_len, (size_t)MIN_TEXT_BYTES), &g->texts, err));
    for (int i = 0; i < g->n_pieces; i++) OB_TRY(write_piece(g, i, err));
    ob_npu_bo_flush(g->texts, 0, g->text_len);
    OB_TRY(ob_npu_queue_run(g->kernel.queue, g->cmds, (size_t)g->n_pieces, err));
    ob_npu_bo_invalidate(g->y, 0, g->y_len);
    for (int i = 0; i < g->n_pieces; i++) {
        const piece *p = &g->pieces[i];
        memcpy(p->mv->y, g->y->host + p->y_off, (size_t)p->mv->n * sizeof(float));
    }
    g->n_products += (uint64_t)g->n_pieces;
    return OB_OK;
}

static ob_status add(ob_npu_gemv *g, const ob_npu_mv *mv, ob_err *err)
{
    size_t index;
    OB_TRY(ob_npu_kernel_shape(&g->kernel, 1, ob_npu_q4_pad_k(mv->k), ob_npu_pad_n(mv->n), &index, err));
    const ob_npu_shape *s = &g->kernel.shapes[index];
    const size_t y_bytes = (size_t)s->n * sizeof(float); /* whole pages */
    if (g->n_pieces == MAX_CMDS || (g->n_pieces && (g->ms + estimate_ms(s) > CHAIN_MS || g->y_len + y_bytes > MAX_Y_BYTES))) {
        OB_TRY(run_chain(g, err));
        empty_chain(g);
    }
    const piece *last = g->n_pieces ? &g->pieces[g->n_pieces - 1] : NULL;
    const bool same = last && last->mv->x == mv->x && last->mv->k == mv->k;
    g->pieces[g->n_pieces++] = (piece){.mv = mv, .shape = index, .x_off = same ? last->x_off : g->x_len, .y_off = g->y_len, .text_off = g->text_len};
    if (!same) g->x_len += ob_align_up((size_t)s->k * 2, OB_NPU_LINE);
    g->y_len += y_bytes;
    g->text_len += ob_align_up(s->n_bytes, OB_NPU_LINE);
    g->ms += estimate_ms(s);
    return OB_OK;
}

ob_status ob_npu_gemv_prepare(ob_npu_gemv *g, int64_t k, int64_t n, ob_err *err)
{
    size_t index;
    OB_TRY(ob_npu_kernel_shape(&g->kernel, 1, ob_npu_q4_pad_k(k), ob_npu_pad_n(n), &index, err));
    const ob_npu_shape *s = &g->kernel.shapes[index];
    OB_TRY(ob_npu_bo_need(g->kernel.dev, OB_NPU_BO_SHARE, MAX_CMDS * ob_align_up((size_t)s->k * 2, OB_NPU_LINE), &g->x, err));
    OB_TRY(ob_npu_bo_need(g->kernel.dev, OB_NPU_BO_SHARE, OB_MAX((size_t)MAX_Y_BYTES, (size_t)s->n * sizeof(float)), &g->y, err));
    const size_t text_bytes = OB_MAX(MAX_CMDS * ob_align_up(s->n_bytes, OB_NPU_LINE), (size_t)MIN_TEXT_BYTES);
    return ob_npu_bo_need(g->kernel.dev, OB_NPU_BO_DEV, text_bytes, &g->texts, err);
}

static ob_status check(const ob_npu_mv *mv, int i, ob_err *err)
{
    if (mv->k < 1 || mv->n < 1 || !mv->w || mv->w_off % OB_NPU_PAGE || mv->w_off > mv->w->n_bytes ||
        ob_npu_q4_bytes(mv->k, mv->n) > mv->w->n_bytes - mv->w_off)
        return ob_err_set(err, OB_E_INVALID, "NPU: product %d (%d inputs, %d outputs) does not fit its buffers", i, mv->k, mv->n);
    return OB_OK;
}

ob_status ob_npu_gemv_run(ob_npu_gemv *g, const ob_npu_mv *mv, int n, ob_err *err)
{
    ob_status s = OB_OK;
    if (ob_npu_queue_broken(g->kernel.queue)) OB_TRY(ob_npu_queue_reset(g->kernel.queue, err)); /* an earlier run failed */
    for (int i = 0; i < n; i++) OB_TRY(check(&mv[i], i, err));
    empty_chain(g);
    for (int i = 0; i < n; i++) OB_GOTO(add(g, &mv[i], err));
    OB_GOTO(run_chain(g, err));
out:
    empty_chain(g);
    return s;
}
