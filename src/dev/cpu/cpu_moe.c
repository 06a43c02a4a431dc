/* Products that go to several matrices: the experts of a mixture, and one matrix per head.
 *
 * Experts: the step's (row, choice) pairs are sorted by expert, each thread for itself, so that an expert
 * multiplies all its rows at once and its weights are read once. Then the threads share
 *
 *   1. (expert, columns of the hidden layer): gate and up products, glu -> hid, a row per pair
 *   2. (expert, columns of the output): down product -> part, a row per pair
 *   3. rows: residual + sum of the row's parts times their weights, in order of choice
 *
 * A thread quantises the rows of the expert at hand for itself, which costs less than a meeting: with
 * many experts an item is a whole expert, with few (decode) the rows are few too. Sums run in an order
 * that does not depend on what else is in the step.
 */
#include "dev/cpu/cpu_int.h"

#include <string.h>

#include "base/math.h"

static const ob_lin *matrix(const ob_dev_plan *p, const ob_op *op, int slot)
{
    return op->w[slot] == OB_NONE ? NULL : p->weights[op->w[slot]]->lin;
}

/* Largest over all numbers of rows up to `rows`: panel widths depend on the number. */
static size_t most_act_bytes(const ob_lin *l, int64_t rows)
{
    size_t n = 0;
    for (int64_t m = 1; m <= rows; m++) n = OB_MAX(n, ob_align_up(ob_lin_act_bytes(l, m), 64));
    return n;
}

static size_t most_scratch_bytes(const ob_lin *l, int64_t rows)
{
    size_t n = 0;
    for (int64_t m = 1; m <= rows; m++) n = OB_MAX(n, ob_lin_scratch_bytes(l, m));
    return n;
}

/* All of its matrices are multiplied by another unit. */
static bool handed_over(const ob_dev_plan *p, const ob_op *op) { return p->weights[op->w[2]]->prod != NULL; }

bool cpu_moe_fits(const ob_dev_plan *p, const ob_op *op)
{
    if (handed_over(p, op)) return true;
    const ob_lin *gate = matrix(p, op, 0), *down = matrix(p, op, 2);
    if (!gate || !down) return false;
    /* Merged gate and up: up's columns must begin at a granule. */
    return op->w[1] != OB_NONE || ob_lin_k(down) % ob_lin_n_granule(gate) == 0;
}

void cpu_moe_measure(const ob_dev_plan *p, const ob_op *op, int32_t max_rows, cpu_moe_sizes *z)
{
    const ob_lin *gate = matrix(p, op, 0), *up = matrix(p, op, 1), *down = matrix(p, op, 2);
    const ob_weight *w = &p->prog.weights[op->w[2]];
    const int64_t d = w->ne[1], n_ff = w->ne[0], n_expert = w->ne[2];
    const int64_t pairs = OB_MIN(max_rows, CPU_CHUNK_ROWS) * op->p.moe.n_used, rows = OB_MIN(max_rows, CPU_MOE_BLOCK);
    z->pairs = OB_MAX(z->pairs, (size_t)(2 * pairs + 2 * n_expert + 2) * sizeof(int32_t));
    z->hid = OB_MAX(z->hid, (size_t)(pairs * n_ff) * sizeof(float));
    z->part = OB_MAX(z->part, (size_t)(pairs * d) * sizeof(float));
    if (handed_over(p, op)) {
        z->gu = OB_MAX(z->gu, (size_t)(2 * pairs * n_ff) * sizeof(float));
        z->jobs = OB_MAX(z->jobs, (size_t)(2 * OB_MIN(n_expert, pairs)) * sizeof(ob_product));
        z->rows = OB_MAX(z->rows, (size_t)d * sizeof(float)); /* of combine */
        return;
    }
    z->rows = OB_MAX(z->rows, (size_t)(rows * (d + 2 * n_ff)) * sizeof(float));
    z->act = OB_MAX(z->act, OB_MAX(most_act_bytes(gate, rows) + (up ? most_act_bytes(up, rows) : 0),
                                   most_act_bytes(down, rows)));
    z->lin = OB_MAX(z->lin, OB_MAX(most_scratch_bytes(gate, rows), most_scratch_bytes(down, rows)));
    if (up) z->lin = OB_MAX(z->lin, most_scratch_bytes(up, rows));
}

/* One chunk of rows of one op, as a thread sees it. */
typedef struct moe {
    const ob_dev_plan *p;
    const ob_op *op;
    const cpu_thread *t;
    const ob_lin *gate, *up, *down; /* up NULL: merged into gate */
    int64_t d, n_ff;
    int32_t row0, n_rows, n_used;
    int32_t n_active;
    int32_t *expert, *first; /* [n_active], [n_active + 1]: pairs of each active expert */
    int32_t *row_of, *at_of; /* row of a pair; place of (row, choice), -1 when its expert is none */
} moe;

static void group(moe *m, int32_t n_expert)
{
    const int32_t n = m->n_rows * m->n_used;
    int32_t *count = m->t->pairs;
    m->expert = count; /* entries below the one at hand are free to hold the list */
    m->first = count + n_expert;
    m->row_of = m->first + n_expert + 1;
    m->at_of = m->row_of + n;
    memset(count, 0, (size_t)n_expert * sizeof *count);
    for (int32_t i = 0; i < n; i++) {
        const float id = cpu_row(m->p, m->op->in[1], m->row0 + i / m->n_used)[i % m->n_used];
        m->at_of[i] = id >= 0 && id < (float)n_expert ? (int32_t)id : -1; /* the expert, for now */
        if (m->at_of[i] >= 0) count[m->at_of[i]]++;
    }
    /* first[e] = place of expert e's next pair; then walk the pairs in order. */
    int32_t at = 0;
    for (int32_t e = 0; e < n_expert; e++) {
        m->first[e] = at;
        at += count[e];
    }
    for (int32_t i = 0; i < n; i++) {
        if (m->at_of[i] < 0) continue;
        const int32_t place = m->first[m->at_of[i]]++;
        m->row_of[place] = m->row0 + i / m->n_used;
        m->at_of[i] = place;
    }
    /* Only experts with pairs; first[e] is now the end of e. */
    m->n_active = 0;
    for (int32_t e = 0; e < n_expert; e++) {
        const int32_t here = count[e], begin = m->first[e] - here;
        if (!here) continue;
        m->expert[m->n_active] = e;
        m->first[m->n_active++] = begin;
    }
    m->first[m->n_active] = at;
}

/* Columns of one item, so that there is work for all threads and no item is tiny. */
static int64_t columns_per_item(const moe *m, int64_t cols, int64_t granule)
{
    const int n_threads = m->p->dev->n_threads;
    if (m->n_active >= 4 * n_threads || n_threads == 1) return cols;
    const int64_t parts = OB_MIN(ob_div_up(8 * n_threads, m->n_active), OB_MAX(1, cols / 64));
    return ob_align_up((size_t)ob_div_up(cols, parts), (size_t)granule);
}

/* Which rows' activations the thread has at hand. */
typedef struct at_hand { int32_t active, block; } at_hand;

/* ob_step.coarse of n pairs from b0 on, gathered into flags [n]; NULL where no row is coarse. */
static const uint8_t *pairs_coarse(const moe *m, int32_t b0, int32_t n, uint8_t *flags)
{
    const uint8_t *of_row = cpu_coarse(m->p, m->op->in[0], 0);
    for (int32_t i = 0; of_row && i < n; i++) flags[i] = of_row[m->row_of[b0 + i]];
    return of_row ? flags : NULL;
}

static void hidden_block(const moe *m, int32_t a, int32_t b0, int32_t n, bool fresh, int64_t n0, int64_t n1)
{
    float *x = m->t->rows, *gu = x + n * m->d;
    uint8_t *act = m->t->act, *act_up = act;
    const bool share = !m->up || ob_lin_act_kind(m->up) == ob_lin_act_kind(m->gate);
    if (!share) act_up = act + ob_align_up(ob_lin_act_bytes(m->gate, n), 64);
    if (fresh) {
        for (int32_t i = 0; i < n; i++)
            memcpy(x + i * m->d, cpu_row(m->p, m->op->in[0], m->row_of[b0 + i]), (size_t)m->d * sizeof *x);
        uint8_t flags[CPU_MOE_BLOCK];
        const uint8_t *coarse = pairs_coarse(m, b0, n, flags);
        ob_lin_act(m->gate, x, m->d, n, 0, n, coarse, act);
        if (!share) ob_lin_act(m->up, x, m->d, n, 0, n, coarse, act_up);
    }
    const ob_lin_epilogue ep = {.scale = 1.0f};
    const int64_t ld = 2 * m->n_ff;
    ob_lin_mul(m->gate, m->expert[a], act, n, gu, ld, n0, n1, &ep, m->t->lin);
    if (m->up) ob_lin_mul(m->up, m->expert[a], act_up, n, gu + m->n_ff, ld, n0, n1, &ep, m->t->lin);
    else ob_lin_mul(m->gate, m->expert[a], act, n, gu, ld, m->n_ff + n0, m->n_ff + n1, &ep, m->t->lin);
    for (int32_t i = 0; i < n; i++)
        m->p->dev->kern->glu(m->op->p.moe.act, m->op->p.moe.clamp, gu + i * ld + n0, gu + i * ld + m->n_ff + n0,
                             m->p->moe_hid + (b0 + i) * m->n_ff + n0, n1 - n0);
}

static void output_block(const moe *m, int32_t a, int32_t b0, int32_t n, bool fresh, int64_t n0, int64_t n1)
{
    uint8_t flags[CPU_MOE_BLOCK];
    if (fresh)
        ob_lin_act(m->down, m->p->moe_hid + b0 * m->n_ff, m->n_ff, n, 0, n, pairs_coarse(m, b0, n, flags), m->t->act);
    const ob_lin_epilogue ep = {.scale = 1.0f};
    ob_lin_mul(m->down, m->expert[a], m->t->act, n, m->p->moe_part + b0 * m->d, m->d, n0, n1, &ep, m->t->lin);
}

/* Items of one of the two products, shared among the threads. */
static void run_items(const moe *m, bool hidden)
{
    if (!m->n_active) return; /* everything skips */
    const int64_t cols = hidden ? m->n_ff : m->d;
    int64_t granule = ob_lin_n_granule(hidden ? m->gate : m->down);
    if (hidden && m->up) granule = OB_MAX(granule, ob_lin_n_granule(m->up));
    const int64_t per = columns_per_item(m, cols, granule), n_part = ob_div_up(cols, per);
    at_hand have = {-1, -1};
    for (int64_t i, i1; ob_pool_take(m->p->dev->pool, m->n_active * n_part, 1, &i, &i1);) {
        const int32_t a = (int32_t)(i / n_part);
        const int64_t n0 = i % n_part * per, n1 = OB_MIN(n0 + per, cols);
        for (int32_t b = m->first[a]; b < m->first[a + 1]; b += CPU_MOE_BLOCK) {
            const int32_t n = OB_MIN(CPU_MOE_BLOCK, m->first[a + 1] - b);
            const bool fresh = have.active != a || have.block != b;
            if (hidden) hidden_block(m, a, b, n, fresh, n0, n1);
            else output_block(m, a, b, n, fresh, n0, n1);
            have = (at_hand){a, b};
        }
    }
}

/* What gate and up (hidden), or down, are about to multiply. The caller brings the threads together. */
static void observe(const moe *m, bool hidden)
{
    for (int32_t a = 0; m->t == m->p->threads && a < m->n_active; a++)
        for (int32_t i = m->first[a]; i < m->first[a + 1]; i++) {
            const float *x = hidden ? cpu_row(m->p, m->op->in[0], m->row_of[i]) : m->p->moe_hid + i * m->n_ff;
            if (!hidden) cpu_observe(m->p, m->op->w[2], m->expert[a], x, m->n_ff, 1);
            for (int k = 0; hidden && k < 2; k++) cpu_observe(m->p, m->op->w[k], m->expert[a], x, m->d, 1);
        }
    ob_pool_barrier(m->p->dev->pool);
}

/* One of the two products by the other unit: a job per active expert (and matrix). */
static int32_t make_jobs(const moe *m, bool hidden)
{
    const ob_dev_weight *const *w = (const ob_dev_weight *const *)m->p->weights;
    const ob_product_weight *up = m->op->w[1] == OB_NONE ? NULL : w[m->op->w[1]]->prod;
    ob_product *j = m->p->jobs;
    for (int32_t a = 0; a < m->n_active; a++) {
        const int64_t first = m->first[a];
        ob_product one = {.mat = m->expert[a], .n_rows = m->first[a + 1] - first, .scale = 1.0f};
        if (hidden) {
            one.w = w[m->op->w[0]]->prod;
            one.x = cpu_row(m->p, m->op->in[0], 0);
            one.ldx = m->d;
            one.rows = m->row_of + first;
            one.y = m->p->moe_gu + first * 2 * m->n_ff;
            one.ldy = 2 * m->n_ff;
        } else {
            one.w = w[m->op->w[2]]->prod;
            one.x = m->p->moe_hid + first * m->n_ff;
            one.ldx = m->n_ff;
            one.y = m->p->moe_part + first * m->d;
            one.ldy = m->d;
        }
        *j++ = one;
        if (!hidden || !up) continue;
        one.w = up;
        one.y += m->n_ff;
        *j++ = one;
    }
    return (int32_t)(j - m->p->jobs);
}

static void run_elsewhere(const moe *m)
{
    cpu_products_do(m->p, m->t, m->t == m->p->threads ? make_jobs(m, true) : 0);
    ob_pool_barrier(m->p->dev->pool);
    const int64_t pairs = m->first[m->n_active];
    for (int64_t r0, r1; ob_pool_take(m->p->dev->pool, pairs, 4, &r0, &r1);)
        for (int64_t r = r0; r < r1; r++) {
            const float *gu = m->p->moe_gu + r * 2 * m->n_ff;
            m->p->dev->kern->glu(m->op->p.moe.act, m->op->p.moe.clamp, gu, gu + m->n_ff, m->p->moe_hid + r * m->n_ff, m->n_ff);
        }
    ob_pool_barrier(m->p->dev->pool);
    if (m->p->dev->observe) observe(m, false);
    cpu_products_do(m->p, m->t, m->t == m->p->threads ? make_jobs(m, false) : 0);
}

static void combine(const moe *m)
{
    for (int64_t r0, r1; ob_pool_take(m->p->dev->pool, m->n_rows, 4, &r0, &r1);)
        for (int64_t r = r0; r < r1; r++) {
            float *y = cpu_row(m->p, m->op->out[0], m->row0 + r);
            const float *w = cpu_row(m->p, m->op->in[2], m->row0 + r), *sum = NULL;
            float *acc = m->t->rows;
            for (int32_t j = 0; j < m->n_used; j++) {
                const int32_t at = m->at_of[r * m->n_used + j];
                if (at < 0) continue;
                const float *part = m->p->moe_part + at * m->d;
                if (sum) m->p->dev->kern->add(acc, part, w[j], acc, m->d);
                else m->p->dev->kern->scale(part, w[j], 0, acc, m->d);
                sum = acc;
            }
            const float *res = m->op->in[3] == OB_NONE ? NULL : cpu_row(m->p, m->op->in[3], m->row0 + r);
            if (sum && res) m->p->dev->kern->add(res, sum, 1.0f, y, m->d);
            else if (sum || (res && res != y)) memcpy(y, sum ? sum : res, (size_t)m->d * sizeof *y);
            else if (!res) memset(y, 0, (size_t)m->d * sizeof *y);
        }
}

void cpu_moe_run(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t)
{
    moe m = {.p = p, .op = op, .t = t, .gate = matrix(p, op, 0), .up = matrix(p, op, 1), .down = matrix(p, op, 2),
             .n_used = op->p.moe.n_used};
    m.d = p->prog.weights[op->w[2]].ne[1];
    m.n_ff = p->prog.weights[op->w[2]].ne[0];
    const int64_t rows = cpu_n_rows(p, p->prog.vals[op->in[0]].rows);
    for (int64_t row0 = 0; row0 < rows; row0 += CPU_CHUNK_ROWS) {
        m.row0 = (int32_t)row0;
        m.n_rows = (int32_t)OB_MIN(CPU_CHUNK_ROWS, rows - row0);
        if (row0) ob_pool_barrier(p->dev->pool);
        group(&m, (int32_t)p->prog.weights[op->w[2]].ne[2]);
        if (p->dev->observe) observe(&m, true);
        if (handed_over(p, op)) {
            run_elsewhere(&m);
        } else {
            run_items(&m, true);
            ob_pool_barrier(p->dev->pool);
            if (p->dev->observe) observe(&m, false);
            run_items(&m, false);
        }
        ob_pool_barrier(p->dev->pool);
        combine(&m);
    }
}

/* --- a matrix per head ------------------------------------------------------------------------- */

bool cpu_heads_fits(const ob_dev_plan *p, const ob_op *op) { return matrix(p, op, 0) != NULL; }

void cpu_heads_measure(const ob_dev_plan *p, const ob_op *op, int32_t max_rows, cpu_moe_sizes *z)
{
    const ob_lin *l = matrix(p, op, 0);
    const int64_t rows = OB_MIN(max_rows, CPU_MOE_BLOCK);
    z->act = OB_MAX(z->act, most_act_bytes(l, rows));
    z->lin = OB_MAX(z->lin, most_scratch_bytes(l, rows));
}

void cpu_heads_run(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t)
{
    const ob_lin *l = matrix(p, op, 0);
    const int64_t k = ob_lin_k(l), n = ob_lin_n(l), tail = op->p.heads.tail, n_head = op->p.heads.n_head;
    const int64_t rows = cpu_n_rows(p, p->prog.vals[op->in[0]].rows), ldx = n_head * (k + tail), ldy = n_head * (n + tail);
    const int64_t n_block = ob_div_up(rows, CPU_MOE_BLOCK);
    const ob_lin_epilogue ep = {.scale = 1.0f};
    if (p->dev->observe) {
        for (int64_t h = 0; t == p->threads && h < n_head; h++)
            cpu_observe(p, op->w[0], h, cpu_row(p, op->in[0], 0) + h * (k + tail), ldx, rows);
        ob_pool_barrier(p->dev->pool);
    }
    for (int64_t i, i1; ob_pool_take(p->dev->pool, n_head * n_block, 1, &i, &i1);) {
        const int64_t h = i / n_block, r0 = i % n_block * CPU_MOE_BLOCK, m = OB_MIN(CPU_MOE_BLOCK, rows - r0);
        const float *x = cpu_row(p, op->in[0], r0) + h * (k + tail);
        float *y = cpu_row(p, op->out[0], r0) + h * (n + tail);
        ob_lin_act(l, x, ldx, m, 0, m, cpu_coarse(p, op->in[0], r0), t->act);
        ob_lin_mul(l, h, t->act, m, y, ldy, 0, n, &ep, t->lin);
        for (int64_t r = 0; r < m && tail; r++) memcpy(y + r * ldy + n, x + r * ldx + k, (size_t)tail * sizeof *y);
    }
}
