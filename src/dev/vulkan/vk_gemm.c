/* Products of many rows by cooperative matrices: tiles, parts of K, gate and up at once. See shaders/gemm_cm.comp. */
#include "dev/vulkan/vk_int.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/math.h"

enum {
    PART_BYTES = 256 << 20, /* K is not split further than this much of partial sums */
    MAX_SPLIT = 16,
    CORES = 64, /* of a device that does not tell */
    SMALL_TILE = 2, SHORT_K = 4096,
};

/* The workgroup has a subgroup per wm x wn. */
typedef struct tile {
    uint32_t bm, bn, bk, wm, wn;
} tile;

static const tile k_tiles[] = {
    {128, 128, 64, 64, 64}, /* best for 512 rows and more on the one card it was measured on */
    {64, 128, 64, 32, 64},  /* less shared memory, or fewer rows */
    {32, 64, 128, 16, 32},
    {16, 64, 128, 16, 16},
};

static ob_status no_memory(ob_err *err)
{
    return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
}

bool vk_gemm_fits(const ob_dev_plan *p, const ob_op *op, int m)
{
    const ob_type t = p->weights[op->w[m]]->type;
    return vk_linear_rows(p, op) > VK_MATVEC_ROWS && (p->fast & p->dev->tested[t] & VK_FAST_COOPMAT) &&
           p->prog.vals[op->in[0]].cols % 32 == 0;
}

static uint64_t shared_bytes(const tile *t)
{
    return (uint64_t)(t->bm + t->bn) * (t->bk / 8 + 1) * 16 + 16;
}

/* OB_VK_GEMM=TILE[,SPLIT]: another entry of k_tiles for up to 128 rows, and parts of K; for sweeps on a new card. */
static void by_hand(uint32_t *number, uint32_t *split)
{
    const char *s = getenv("OB_VK_GEMM");
    uint32_t t, k;
    const int n = s ? sscanf(s, "%u,%u", &t, &k) : 0;
    if (n > 0 && t < OB_COUNT(k_tiles)) *number = t;
    if (n > 1 && k > 0 && k <= MAX_SPLIT) *split = k;
}

/* Whether so few tiles would leave most of the cores idle in a product that is short anyway: encoders. ModernBERT-large
 * takes 2.9 ms for 128 tokens with the small tile on the one card it was measured on, and 3.6 to 4.8 with others. Tests of
 * kernels want the tile that belongs to their rows. */
static bool is_small(const ob_dev_plan *p, const ob_op *op, const tile *t)
{
    const uint32_t cores = p->dev->phys->n_cores ? p->dev->phys->n_cores : CORES;
    const int32_t rows = vk_linear_rows(p, op);
    uint64_t n = 0;
    for (int m = 0; m < op->p.linear.n_mat; m++)
        n += (uint64_t)ob_div_up(rows, t->bm) * (uint64_t)ob_div_up(p->prog.vals[op->out[m]].cols, t->bn);
    return !p->dev->testing && rows <= 128 && n < cores / 2 && p->prog.vals[op->in[0]].cols < SHORT_K;
}

static tile tile_of(const ob_dev_plan *p, const ob_op *op)
{
    const uint32_t rows = (uint32_t)vk_linear_rows(p, op);
    uint32_t i = rows <= 16 ? 3 : rows <= 32 ? 2 : rows <= 64 ? 1 : 0, unused;
    if (i < SMALL_TILE && is_small(p, op, &k_tiles[i])) i = SMALL_TILE;
    if (rows <= 128) by_hand(&i, &unused);
    while (i + 1 < OB_COUNT(k_tiles) && shared_bytes(&k_tiles[i]) > p->dev->phys->max_shared_bytes) i++;
    return k_tiles[i];
}

uint64_t vk_gemm_form(const ob_dev_plan *p, const ob_op *op)
{
    const uint64_t rows = (uint64_t)vk_linear_rows(p, op), k = (uint64_t)p->prog.vals[op->in[0]].cols;
    const tile t = tile_of(p, op);
    return p->fast & VK_FAST_COOPMAT ? ob_align_up((rows + t.bm) * k * 2, 256) : 0;
}

/* --- K in parts ----------------------------------------------------------------------------------- */

static uint64_t tiles_of(const ob_dev_plan *p, const ob_op *op, int m, const tile *t)
{
    return (uint64_t)ob_div_up(vk_linear_rows(p, op), t->bm) * (uint64_t)ob_div_up(p->prog.vals[op->out[m]].cols, t->bn);
}

/* How long the cores take for n workgroups that each do 1 / split of a tile's K, in units of a whole tile: two on
 * a core hide each other's latencies and take 0.7 of the time. part_k: what a part's way through memory costs.
 * Figures of the one card it was measured on. */
static double cost_of(double n, double cores, double split, double part_k)
{
    const double alone = 1.44, rounds = (double)ob_div_up((int64_t)n, (int64_t)cores), pairs = (double)((int64_t)rounds / 2);
    return (2 * pairs + alone * (rounds - 2 * pairs)) / split + (split > 1 ? split * part_k : 0);
}

/* Parts K is split into, the same for all matrices of the op, so that a small product still occupies the device. */
static uint32_t split_of(const ob_dev_plan *p, const ob_op *op, const tile *t)
{
    enum { PART_K = 300 }; /* of a tile of 128 rows: a part's way through memory in steps of K */
    const int32_t k = p->prog.vals[op->in[0]].cols;
    const double cores = p->dev->phys->n_cores ? p->dev->phys->n_cores : CORES, part_k = PART_K * t->bm / 128.0 / k;
    const int64_t steps = ob_div_up(k, t->bk);
    uint64_t n = 0;
    for (int m = 0; m < op->p.linear.n_mat; m++) n += tiles_of(p, op, m, t);
    uint32_t best = 1;
    double least = cost_of((double)n, cores, 1, part_k);
    for (uint32_t split = 2; split <= MAX_SPLIT && steps / split >= 4 && n * t->bm * t->bn * 4 * split <= PART_BYTES; split++) {
        const double c = cost_of((double)n * split, cores, split, part_k);
        if (c < least) best = split, least = c;
    }
    if (vk_linear_rows(p, op) <= 128) by_hand(&(uint32_t){0}, &best);
    return OB_MIN(best, (uint32_t)steps);
}

static uint64_t part_bytes(const ob_dev_plan *p, const ob_op *op, int m)
{
    if (!vk_gemm_fits(p, op, m)) return 0;
    const tile t = tile_of(p, op);
    const uint32_t split = split_of(p, op, &t);
    return split > 1 ? tiles_of(p, op, m, &t) * t.bm * t.bn * 4 * split : 0;
}

static uint64_t count_bytes(const ob_dev_plan *p, const ob_op *op, int m)
{
    const tile t = tile_of(p, op);
    return part_bytes(p, op, m) ? ob_align_up(tiles_of(p, op, m, &t) * 4, 64) : 0;
}

uint64_t vk_gemm_parts(const ob_dev_plan *p, const ob_op *op)
{
    uint64_t n = 0;
    for (int m = 0; m < op->p.linear.n_mat; m++) n += part_bytes(p, op, m);
    return n;
}

uint64_t vk_gemm_counters(const ob_dev_plan *p, const ob_op *op)
{
    uint64_t n = 0;
    for (int m = 0; m < op->p.linear.n_mat; m++) n += count_bytes(p, op, m);
    return n;
}

/* --- products ------------------------------------------------------------------------------------- */

/* glu: of gate and up, else NULL. */
static ob_status pipe_of(ob_dev_plan *p, const ob_op *op, int m, const tile *t, uint32_t split, const ob_op *glu,
                         const vk_pipe **pipe, ob_err *err)
{
    char name[32];
    snprintf(name, sizeof name, "gemm_%s_%s", glu ? "glu" : "cm", vk_type_name(p->weights[op->w[m]]->type));
    const uint32_t wg = t->bm / t->wm * (t->bn / t->wn) * p->dev->sg;
    return vk_kernel_get(p->dev, name, 11,
                         (uint32_t[]){wg, t->bm, t->bn, t->bk, t->wm, t->wn, split, op->w[4 + m] != OB_NONE,
                                      op->in[1] != OB_NONE, (uint32_t)p->prog.vals[op->in[0]].cols % t->bk != 0,
                                      glu ? glu->p.glu.act : 0},
                         pipe, err);
}

/* The activations of matrix m in f16, which are there. */
static void read_form(ob_dev_plan *p, const ob_op *op, int m, vk_dispatch *s)
{
    VkDeviceAddress x = 0, unused;
    vk_find_form(p, op->in[0], vk_matrix_form(p, op, m), &x, &unused);
    vk_reads(s, x, vk_linear_form(p, op));
    s->push.a[1] = x;
}

ob_status vk_gemm_add(ob_dev_plan *p, int32_t i, int m, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i];
    const tile t = tile_of(p, op);
    const uint32_t split = split_of(p, op, &t);
    const vk_pipe *pipe;
    OB_TRY(pipe_of(p, op, m, &t, split, NULL, &pipe, err));
    vk_dispatch *s = vk_linear_product(p, i, m, pipe);
    if (!s) return no_memory(err);
    read_form(p, op, m, s);
    s->grid[0] = (uint32_t)ob_div_up(vk_linear_rows(p, op), t.bm);
    s->grid[1] = (uint32_t)ob_div_up(p->prog.vals[op->out[m]].cols, t.bn);
    s->grid[2] = split;
    s->cut = 2;
    if (split == 1) return OB_OK;
    VkDeviceAddress part = p->work.addr + p->part_off, count = p->counts.addr;
    for (int before = 0; before < m; before++) {
        part += part_bytes(p, op, before);
        count += count_bytes(p, op, before);
    }
    vk_writes(s, part, part_bytes(p, op, m));
    vk_writes(s, count, count_bytes(p, op, m));
    vk_push_addr(&s->push, 8, part);
    vk_push_addr(&s->push, 10, count);
    return OB_OK;
}

bool vk_gemm_fits_glu(const ob_dev_plan *p, int32_t i)
{
    const ob_op *op = &p->prog.ops[i], *glu = op + 1;
    if (i + 2 >= p->prog.n_ops || op->kind != OB_OP_LINEAR || op->p.linear.n_mat != 2 || glu->kind != OB_OP_GLU) return false;
    const vk_form form = vk_matrix_form(p, op, 0);
    bool only;
    if ((form & VK_FORM_KIND) != VK_FORM_F16 || !vk_linear_all(p, op, form)) return false;
    const ob_dev_weight *a = p->weights[op->w[0]], *b = p->weights[op->w[1]];
    return glu->in[0] == op->out[0] && glu->in[1] == op->out[1] && op->in[1] == OB_NONE && op->w[4] == OB_NONE &&
           op->w[5] == OB_NONE && op->p.linear.scale == 1 && a->type == b->type && a->desc.ne[1] == b->desc.ne[1] &&
           a->desc.ne[1] % 32 == 0 && (p->fast & p->dev->tested[a->type] & VK_FAST_GLU) && tile_of(p, op).wn >= 32 &&
           vk_last_reader(p, op->out[0], i + 1) && vk_last_reader(p, op->out[1], i + 1) &&
           vk_plain_form(p, glu->out[0], i + 1, &only) == VK_FORM_F16 && only;
}

ob_status vk_gemm_add_glu(ob_dev_plan *p, int32_t i, ob_err *err)
{
    const ob_op *op = &p->prog.ops[i], *glu = op + 1;
    const tile t = tile_of(p, op);
    const ob_dev_weight *up = p->weights[op->w[1]];
    const vk_pipe *pipe;
    OB_TRY(pipe_of(p, op, 0, &t, 1, glu, &pipe, err));
    vk_dispatch *s = vk_linear_product(p, i, 0, pipe);
    if (!s) return no_memory(err);
    s->n_mats = 2;
    s->n_writes = 0;
    read_form(p, op, 0, s);
    VkDeviceAddress to[2];
    vk_write_form(p, s, glu->out[0], VK_FORM_F16, to);
    s->push.a[2] = to[0];
    s->push.a[6] = up->s;
    s->push.a[7] = up->h;
    s->push.u[4] = ob_f32_bits(glu->p.glu.clamp);
    vk_push_addr(&s->push, 8, up->w);
    vk_push_addr(&s->push, 10, up->z);
    s->grid[0] = (uint32_t)ob_div_up(vk_linear_rows(p, op), t.bm);
    s->grid[1] = (uint32_t)ob_div_up(p->prog.vals[op->out[0]].cols, t.bn / 2);
    s->cut = 2;
    return OB_OK;
}
