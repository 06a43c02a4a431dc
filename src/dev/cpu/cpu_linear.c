/* The linear stage: normalise, quantise once per kind of activation, multiply, gate.
 *
 * Few rows: every thread normalises and quantises all of them for itself, which costs less than a
 * meeting of threads. Many rows: the threads share the rows, meet, and then take output columns. Rows
 * are multiplied in chunks so that a thread's sums stay in its cache.
 */
#include "dev/cpu/cpu_int.h"

#include "base/math.h"

static const ob_lin *matrix(const ob_dev_plan *p, const ob_op *op, int i) { return p->weights[op->w[i]]->lin; }

void cpu_linear_prepare(const ob_dev_plan *p, const ob_op *op, cpu_linear *l, int64_t max_rows,
                        size_t *act_bytes, size_t *small_bytes, size_t *scratch_bytes)
{
    *l = (cpu_linear){.n_granule = 1, .act_granule = 1};
    *scratch_bytes = 0;
    for (int i = 0; i < op->p.linear.n_mat; i++)
        if (matrix(p, op, i)) l->mat[l->n_mat++] = i;
    for (int i = 0; i < l->n_mat; i++) {
        const ob_lin *m = matrix(p, op, l->mat[i]);
        int g = 0;
        while (g < l->n_group && ob_lin_act_kind(l->lead[g]) != ob_lin_act_kind(m)) g++;
        if (g == l->n_group) l->lead[l->n_group++] = m;
        l->group[i] = g;
        l->n_granule = OB_MAX(l->n_granule, ob_lin_n_granule(m));
        l->act_granule = OB_MAX(l->act_granule, ob_lin_act_granule(m));
    }
    l->chunk_rows = ob_div_up(CPU_CHUNK_ROWS, l->act_granule) * l->act_granule;
    const int64_t k = ob_lin_k(l->lead[0]), most = OB_MIN(max_rows, l->chunk_rows);
    for (int g = 0; g < l->n_group; g++) {
        size_t chunk = 0, small = 0;
        /* Panel widths depend on the number of rows, so sizes need not grow with it. */
        for (int64_t m = 1; m <= most; m++) {
            const size_t n = ob_align_up(ob_lin_act_bytes(l->lead[g], m), 64);
            chunk = OB_MAX(chunk, n);
            if (m * k <= CPU_SMALL_FLOATS) small = OB_MAX(small, n);
        }
        l->act_off[g + 1] = l->act_off[g] + chunk;
        l->small_off[g + 1] = l->small_off[g] + small;
    }
    for (int i = 0; i < l->n_mat; i++)
        for (int64_t m = 1; m <= most; m++)
            *scratch_bytes = OB_MAX(*scratch_bytes, ob_lin_scratch_bytes(matrix(p, op, l->mat[i]), m));
    *act_bytes = l->act_off[l->n_group];
    *small_bytes = l->small_off[l->n_group];
}

/* Sizes that halve: thread n of T takes 1/2T of what is left, down to `least`. So the first grains are
 * long, and whoever is held back leaves the rest to the others. Returns false past the end. */
static bool guided(int64_t n_total, int n_threads, int64_t least, int64_t idx, int64_t *first, int64_t *last)
{
    int64_t at = 0;
    for (;;) {
        const int64_t size = OB_MAX(least, ob_div_up(n_total - at, 2 * n_threads));
        if (at >= n_total) return false;
        if (idx < n_threads || size == least) {
            *first = at + idx * size;
            *last = OB_MIN(*first + size, n_total);
            return *first < n_total;
        }
        at += n_threads * size;
        idx -= n_threads;
    }
}

/* Bytes of weights and operations below which a grain is not worth an atomic add. */
static int64_t least_granules(const cpu_linear *l, int64_t rows)
{
    const int64_t k = ob_lin_k(l->lead[0]);
    const int64_t by_bytes = ob_div_up(64 * 1024, k * l->n_granule / 2 + 1);
    const int64_t by_work = ob_div_up(8 * 1024 * 1024, k * l->n_granule * rows);
    return OB_MIN(by_bytes, by_work);
}

typedef struct product {
    const ob_dev_plan *p;
    const ob_op *op;
    const cpu_linear *l;
    const cpu_thread *t;
    const uint8_t *act;        /* of the chunk */
    const size_t *act_off;
    int64_t row0, n_rows;      /* of the chunk */
} product;

static void multiply(const product *j, int which, int64_t n0, int64_t n1)
{
    const ob_op *op = j->op;
    const int32_t i = j->l->mat[which];
    const int32_t cols = j->p->prog.vals[op->out[i]].cols;
    ob_lin_epilogue ep = {.scale = op->p.linear.scale, .bias = cpu_vector(j->p, op->w[4 + i])};
    if (op->in[1] != OB_NONE) {
        ep.res = cpu_row(j->p, op->in[1], j->row0);
        ep.ldres = cols;
    }
    ob_lin_mul(matrix(j->p, op, i), 0, j->act + j->act_off[j->l->group[which]], j->n_rows,
               cpu_row(j->p, op->out[i], j->row0), cols, n0, OB_MIN(n1, cols), &ep, j->t->lin);
}

/* Granules [g0, g1) of the matrices laid side by side; with a glu, of both matrices at once. */
static void multiply_granules(const product *j, const ob_op *glu, int64_t g0, int64_t g1)
{
    const int64_t n = j->l->n_granule;
    if (glu) {
        const int64_t cols = j->p->prog.vals[glu->out[0]].cols, n0 = g0 * n, n1 = OB_MIN(g1 * n, cols);
        multiply(j, 0, n0, n1);
        multiply(j, 1, n0, n1);
        for (int64_t r = j->row0; r < j->row0 + j->n_rows; r++)
            j->p->dev->kern->glu(glu->p.glu.act, glu->p.glu.clamp, cpu_row(j->p, glu->in[0], r) + n0,
                                 cpu_row(j->p, glu->in[1], r) + n0, cpu_row(j->p, glu->out[0], r) + n0,
                                 n1 - n0);
        return;
    }
    for (int i = 0; i < j->l->n_mat && g0 < g1; i++) {
        const int64_t have = ob_div_up(j->p->prog.vals[j->op->out[j->l->mat[i]]].cols, n);
        if (g0 < have) multiply(j, i, g0 * n, OB_MIN(g1, have) * n);
        g0 = OB_MAX(g0 - have, 0);
        g1 -= have;
    }
}

/* Every thread for itself. */
static void activate_small(const ob_dev_plan *p, const cpu_stage *st, const cpu_thread *t, int64_t rows)
{
    const ob_op *op = &p->prog.ops[st->op];
    const int32_t k = p->prog.vals[op->in[0]].cols;
    const float *x = cpu_row(p, op->in[0], 0);
    if (st->norm_op != OB_NONE) {
        const ob_op *norm = &p->prog.ops[st->norm_op];
        for (int64_t r = 0; r < rows; r++)
            p->dev->kern->rms_norm(cpu_row(p, norm->in[0], r), cpu_vector(p, norm->w[0]), t->rows + r * k, k,
                                   norm->p.norm.eps);
        x = t->rows;
    }
    for (int g = 0; g < st->lin->n_group; g++)
        ob_lin_act(st->lin->lead[g], x, k, rows, 0, rows, cpu_coarse(p, op->in[0], 0), t->act + st->lin->small_off[g]);
}

static void activate_shared(const ob_dev_plan *p, const cpu_stage *st, const cpu_thread *t, int64_t rows)
{
    const cpu_linear *l = st->lin;
    const ob_op *op = &p->prog.ops[st->op];
    const int32_t k = p->prog.vals[op->in[0]].cols;
    for (int64_t r0, r1; ob_pool_take(p->dev->pool, rows, l->act_granule, &r0, &r1);) {
        if (st->norm_op != OB_NONE) {
            const ob_op *norm = &p->prog.ops[st->norm_op];
            cpu_row_kernel(norm->kind)(p, norm, t, r0, r1);
        }
        const int64_t chunk = r0 / l->chunk_rows, row0 = chunk * l->chunk_rows;
        for (int g = 0; g < l->n_group; g++)
            ob_lin_act(l->lead[g], cpu_row(p, op->in[0], row0), k, OB_MIN(l->chunk_rows, rows - row0), r0 - row0,
                       r1 - row0, cpu_coarse(p, op->in[0], row0), p->act + (size_t)chunk * p->act_bytes + l->act_off[g]);
    }
    ob_pool_barrier(p->dev->pool);
}

/* Before the products: their outputs may lie where the inputs were. */
static void observe(const ob_dev_plan *p, const ob_op *op, const cpu_linear *l, const cpu_thread *t, int64_t rows)
{
    if (t == p->threads)
        for (int i = 0; i < l->n_mat; i++)
            cpu_observe(p, op->w[l->mat[i]], 0, cpu_row(p, op->in[0], 0), p->prog.vals[op->in[0]].cols, rows);
    ob_pool_barrier(p->dev->pool);
}

void cpu_linear_run(const ob_dev_plan *p, const cpu_stage *st, const cpu_thread *t)
{
    const cpu_linear *l = st->lin;
    const ob_op *op = &p->prog.ops[st->op], *glu = st->glu_op == OB_NONE ? NULL : &p->prog.ops[st->glu_op];
    const int64_t rows = cpu_n_rows(p, p->prog.vals[op->in[0]].rows);
    if (rows == 0) return;
    const bool small = rows * p->prog.vals[op->in[0]].cols <= CPU_SMALL_FLOATS && !p->dev->observe;
    if (small) activate_small(p, st, t, rows);
    else activate_shared(p, st, t, rows);
    if (p->dev->observe) observe(p, op, l, t, rows);

    const int64_t n_chunks = ob_div_up(rows, l->chunk_rows);
    int64_t n_granules = 0;
    for (int i = 0; i < (glu ? 1 : l->n_mat); i++)
        n_granules += ob_div_up(p->prog.vals[op->out[l->mat[i]]].cols, l->n_granule);
    const int64_t least = least_granules(l, OB_MIN(rows, l->chunk_rows));
    for (int64_t i, unused, g0, g1; ob_pool_take(p->dev->pool, INT64_MAX, 1, &i, &unused);) {
        if (!guided(n_chunks * n_granules, p->dev->n_threads, least, i, &g0, &g1)) break;
        while (g0 < g1) { /* a grain may reach into the next chunk of rows */
            const int64_t c = g0 / n_granules, end = OB_MIN(g1, (c + 1) * n_granules), row0 = c * l->chunk_rows;
            const product j = {.p = p, .op = op, .l = l, .t = t,
                               .act = small ? t->act : p->act + (size_t)c * p->act_bytes,
                               .act_off = small ? l->small_off : l->act_off,
                               .row0 = row0, .n_rows = OB_MIN(l->chunk_rows, rows - row0)};
            multiply_granules(&j, glu, g0 - c * n_granules, end - c * n_granules);
            g0 = end;
        }
    }
}
