/* Chains of int8 products on an NPU. */
#include "dev/npu/npu_gemm.h"

#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "dev/npu/npu_kernel.h"

enum {
    MAX_CMDS = 72,                     /* of a chain; the queue adds its init */
    PAGE = 4096,
    MAX_C_BYTES = 64 << 20,            /* products of one chain, and of one command */
    MIN_TEXT_BYTES = 256 << 10,
};
static const double CHAIN_MS = 250; /* by the estimate below, which may be half of the truth */

/* One command: rows [r0, r0 + n_rows) and outputs [j0, j0 + n) of a product. */
typedef struct piece {
    const ob_npu_mm *mm;
    int64_t j0, n, m, k; /* n outputs, not padded; m, k padded */
    size_t a_off, c_off, text_off;
    size_t shape; /* in kernel.shapes */
} piece;

struct ob_npu_gemm {
    ob_npu_kernel kernel;
    ob_npu_bo *a, *c, *texts; /* activations, products, control texts of the chain being built */
    piece pieces[MAX_CMDS];
    ob_npu_cmd cmds[MAX_CMDS];
    int n_pieces;             /* of the chain being built */
    size_t a_len, c_len, text_len;
    double ms;
    ob_npu_gemm_stats stats;
};

ob_status ob_npu_gemm_new(ob_npu_dev *d, ob_npu_gemm **out, ob_err *err)
{
    *out = NULL;
    ob_npu_gemm *g = ob_calloc(1, sizeof *g);
    if (!g) return ob_err_set(err, OB_E_NO_MEMORY, "NPU: no memory for products");
    ob_status s = ob_npu_kernel_load(&g->kernel, d, OB_NPU_DESIGN_GEMM_I8, err);
    if (s != OB_OK) {
        ob_free(g);
        return s;
    }
    *out = g;
    return OB_OK;
}

void ob_npu_gemm_free(ob_npu_gemm *g)
{
    if (!g) return;
    ob_npu_kernel_unload(&g->kernel); /* the queue first: it may still read the rest */
    ob_npu_bo_free(g->a);
    ob_npu_bo_free(g->c);
    ob_npu_bo_free(g->texts);
    ob_free(g);
}

void ob_npu_gemm_get_stats(const ob_npu_gemm *g, ob_npu_gemm_stats *out)
{
    *out = g->stats;
    out->n_chains = ob_npu_queue_stats_get(g->kernel.queue).n_chains;
    out->n_texts = g->kernel.n_shapes;
    out->heap_bytes = g->kernel.pdi->map_bytes + g->kernel.init->map_bytes + (g->texts ? g->texts->map_bytes : 0);
    out->buffer_bytes = (g->a ? g->a->map_bytes : 0) + (g->c ? g->c->map_bytes : 0);
}

/* A guess for the chain's time limit: DRAM at 40 GB/s, 5 TMAC/s, 0.1 ms a command. Weights come once for 128 rows. */
static double estimate_ms(int64_t m, int64_t k, int64_t n)
{
    double bytes = (double)m / OB_NPU_BLOCK_M * (double)k * (double)n + 4.0 * (double)m * (double)n;
    return 0.1 + OB_MAX(bytes / 40e6, (double)m * (double)k * (double)n / 5e9);
}

/* Where the activations of p lie: with an earlier piece that has the same, or after all others. */
static size_t place_a(const ob_npu_gemm *g, const piece *p, bool *is_new)
{
    *is_new = false;
    for (int i = 0; i < g->n_pieces; i++) {
        const ob_npu_mm *x = g->pieces[i].mm, *y = p->mm;
        if (x->a == y->a && x->lda == y->lda && x->n_rows == y->n_rows && x->k == y->k) return g->pieces[i].a_off;
    }
    *is_new = true;
    return g->a_len;
}

/* Write activations and texts, run, fetch products. The chain is empty afterwards. */
static ob_status run_chain(ob_npu_gemm *g, ob_err *err)
{
    int n = g->n_pieces;
    if (!n) return OB_OK;
    OB_TRY(ob_npu_bo_need(g->kernel.dev, OB_NPU_BO_SHARE, g->a_len, &g->a, err));
    OB_TRY(ob_npu_bo_need(g->kernel.dev, OB_NPU_BO_SHARE, g->c_len, &g->c, err));
    OB_TRY(ob_npu_bo_need(g->kernel.dev, OB_NPU_BO_DEV, OB_MAX(g->text_len, (size_t)MIN_TEXT_BYTES), &g->texts, err));
    size_t a_done = 0;
    for (int i = 0; i < n; i++) {
        const piece *p = &g->pieces[i];
        const ob_npu_shape *t = &g->kernel.shapes[p->shape];
        if (p->a_off >= a_done) { /* places rise, except where they are shared */
            size_t bytes = (size_t)p->m * (size_t)p->k;
            ob_npu_i8r_pack((int8_t *)g->a->host + p->a_off, p->mm->a, p->mm->lda, p->mm->n_rows, p->m, p->mm->k);
            ob_npu_bo_flush(g->a, p->a_off, bytes);
            a_done = p->a_off + bytes;
        }
        uint8_t *text = g->texts->host + p->text_off;
        uint64_t strip = (uint64_t)p->k * (uint64_t)p->j0; /* j0 is whole blocks */
        const uint64_t args[] = {g->a->dev_addr + p->a_off, p->mm->w->dev_addr + p->mm->w_off + strip,
                                 g->c->dev_addr + p->c_off};
        memcpy(text, t->text, t->n_bytes);
        OB_TRY(ob_npu_patch_apply(text, t->n_bytes, t->patches, t->n_patches, args, OB_COUNT(args), err));
        g->cmds[i] = (ob_npu_cmd){.text = g->texts, .off = p->text_off, .n_bytes = t->n_bytes,
                                  .est_ms = estimate_ms(p->m, p->k, ob_npu_pad_n(p->n))};
    }
    ob_npu_bo_flush(g->texts, 0, g->text_len);
    OB_TRY(ob_npu_queue_run(g->kernel.queue, g->cmds, (size_t)n, err));
    ob_npu_bo_invalidate(g->c, 0, g->c_len);
    for (int i = 0; i < n; i++) {
        const piece *p = &g->pieces[i];
        const int32_t *c = (const int32_t *)(g->c->host + p->c_off);
        int64_t ld = ob_npu_pad_n(p->n);
        for (int64_t r = 0; r < p->mm->n_rows; r++)
            memcpy(p->mm->c + r * p->mm->ldc + p->j0, c + r * ld, (size_t)p->n * 4);
    }
    g->stats.n_products += (uint64_t)n;
    return OB_OK;
}

static void empty_chain(ob_npu_gemm *g)
{
    g->n_pieces = 0;
    g->a_len = g->c_len = g->text_len = 0;
    g->ms = 0;
}

static ob_status add_piece(ob_npu_gemm *g, const ob_npu_mm *mm, int64_t j0, int64_t n, ob_err *err)
{
    piece p = {.mm = mm, .j0 = j0, .n = n, .m = ob_npu_pad_m(mm->n_rows), .k = ob_npu_pad_k(mm->k)};
    int64_t n_pad = ob_npu_pad_n(n);
    size_t index = 0, c_bytes = (size_t)p.m * (size_t)n_pad * 4;
    OB_TRY(ob_npu_kernel_shape(&g->kernel, p.m, p.k, n_pad, &index, err));
    double ms = estimate_ms(p.m, p.k, n_pad);
    if (g->n_pieces == MAX_CMDS || (g->n_pieces && (g->ms + ms > CHAIN_MS || g->c_len + c_bytes > MAX_C_BYTES))) {
        OB_TRY(run_chain(g, err));
        empty_chain(g);
    }
    bool is_new;
    p.a_off = place_a(g, &p, &is_new);
    p.c_off = g->c_len;
    p.text_off = g->text_len;
    if (is_new) g->a_len += ob_align_up((size_t)p.m * (size_t)p.k, PAGE);
    g->c_len += c_bytes; /* whole pages: 128 rows of 1024 */
    g->text_len += ob_align_up(g->kernel.shapes[index].n_bytes, OB_NPU_LINE);
    g->ms += ms;
    p.shape = index;
    g->pieces[g->n_pieces++] = p;
    return OB_OK;
}

static ob_status check_mm(const ob_npu_mm *mm, int i, ob_err *err)
{
    if (mm->n_rows < 1 || mm->n_rows > OB_NPU_MAX_M || mm->k < 1 || mm->n < 1 || mm->lda < mm->k || mm->ldc < mm->n ||
        mm->w_off % PAGE || !mm->w || mm->w_off > mm->w->n_bytes ||
        ob_npu_i8c_bytes(mm->k, mm->n) > mm->w->n_bytes - mm->w_off)
        return ob_err_set(err, OB_E_INVALID,
                          "NPU: product %d (%d rows, %d inputs, %d outputs) does not fit its buffers", i, mm->n_rows,
                          mm->k, mm->n);
    return OB_OK;
}

ob_status ob_npu_gemm_run(ob_npu_gemm *g, const ob_npu_mm *mm, int n, ob_err *err)
{
    ob_status s = OB_OK;
    empty_chain(g);
    if (ob_npu_queue_broken(g->kernel.queue))
        OB_TRY(ob_npu_queue_reset(g->kernel.queue, err)); /* an earlier run failed */
    for (int i = 0; i < n; i++) OB_TRY(check_mm(&mm[i], i, err));
    for (int i = 0; i < n; i++) {
        int64_t most = MAX_C_BYTES / 4 / ob_npu_pad_m(mm[i].n_rows) / OB_NPU_BLOCK_N * OB_NPU_BLOCK_N;
        for (int64_t j0 = 0; j0 < mm[i].n; j0 += most)
            OB_GOTO(add_piece(g, &mm[i], j0, OB_MIN(most, mm[i].n - j0), err));
    }
    OB_GOTO(run_chain(g, err));
out:
    empty_chain(g);
    return s;
}
