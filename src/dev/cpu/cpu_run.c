/* One step on the CPU device: check and index the parameters, then all threads walk the stages. */
#include "dev/cpu/cpu_int.h"

#include "base/clock.h"
#include "base/math.h"
#include "dev/step_check.h"

/* Grains of a stage of rows: few enough that the atomic add does not show, small enough to share. */
static int64_t row_grain(int64_t rows, int n_threads)
{
    return OB_MAX(1, OB_MIN(16, rows / (4 * n_threads)));
}

static void run_rows(const ob_dev_plan *p, const cpu_stage *s, const cpu_thread *t)
{
    const int64_t rows = cpu_n_rows(p, s->rows);
    for (int64_t r0, r1; ob_pool_take(p->dev->pool, rows, row_grain(rows, p->dev->n_threads), &r0, &r1);)
        for (int32_t i = 0; i < s->n_row_ops; i++) {
            const cpu_row_op *r = &p->row_ops[s->first_row_op + i];
            r->fn(p, r->op < 0 ? NULL : &p->prog.ops[r->op], t, r0, r1);
        }
}

static void run_ref(const ob_dev_plan *p, const cpu_stage *s, const cpu_thread *t)
{
    const ob_ref_env env = {.prog = &p->prog, .step = &p->step, .vals = p->vals, .caches = p->caches,
                            .states = p->states, .scratch = t->ref};
    const int64_t n = ob_ref_n_items(&env, s->op), grain = OB_MAX(1, n / (8 * p->dev->n_threads));
    for (int64_t i0, i1; ob_pool_take(p->dev->pool, n, grain, &i0, &i1);)
        ob_ref_run(&env, s->op, s->phase, i0, i1);
}

static void note_time(const ob_dev_plan *p, const cpu_stage *s, int64_t ns)
{
    const int32_t op = s->op;
    cpu_profile *f = &p->dev->prof[op < 0 ? OB_OP_ROPE : p->prog.ops[op].kind];
    f->ms += (double)ns * 1e-6;
    /* Attention is two stages; count it once. */
    if (op < 0 || (s->kind == STAGE_ROWS && p->prog.ops[op].kind == OB_OP_ATTENTION) || s->phase) return;
    double n_kv = 0;
    for (int32_t q = 0; q < p->step.n_seq; q++) {
        const int32_t n = p->step.seq_first[q + 1] - p->step.seq_first[q];
        n_kv += n * (p->step.seq_past[q] + 0.5 * (n + 1));
    }
    const ob_op *o = &p->prog.ops[op];
    const ob_cache_view *c = o->kind == OB_OP_ATTENTION ? &p->caches[o->p.attn.cache] : NULL;
    const ob_cost cost = ob_op_cost(&p->prog, op, p->step.n_tok, p->step.n_out, n_kv / OB_MAX(1, p->step.n_tok),
                                    c ? c->k_type : OB_F16, c ? c->v_type : OB_F16);
    f->calls++;
    f->flops += cost.flops;
    f->bytes += cost.weight_bytes + cost.act_bytes + cost.cache_bytes;
}

static void step_main(void *arg, int ith, int n_threads)
{
    ob_dev_plan *p = arg;
    (void)n_threads;
    const cpu_thread *t = &p->threads[ith];
    const bool profile = p->dev->profile;
    int64_t t0 = profile ? ob_now_ns() : 0;
    for (int32_t i = 0; i < p->n_stages; i++) {
        const cpu_stage *s = &p->stages[i];
        switch (s->kind) {
        case STAGE_ROWS: run_rows(p, s, t); break;
        case STAGE_LINEAR: cpu_linear_run(p, s, t); break;
        case STAGE_PRODUCT: cpu_product_run(p, &p->prog.ops[s->op], t); break;
        case STAGE_ATTEND: cpu_attend(p, &p->prog.ops[s->op], t); break;
        case STAGE_OWN: s->own(p, &p->prog.ops[s->op], t); break;
        case STAGE_REF: run_ref(p, s, t); break;
        }
        /* The end of the run is a meeting too. */
        if (i + 1 < p->n_stages || profile) ob_pool_barrier(p->dev->pool);
        if (profile && ith == 0) {
            const int64_t t1 = ob_now_ns();
            note_time(p, s, t1 - t0);
            t0 = ob_now_ns();
        }
    }
}

ob_status cpu_submit(ob_dev *d, ob_dev_plan *p, const ob_step *step, ob_fence *out, ob_err *err)
{
    (void)d;
    *out = 0;
    OB_TRY(ob_step_check(&p->prog, step, p->page_tok, p->n_pages, p->max_ctx, p->n_slots, err));
    p->step = *step;
    for (int32_t q = 0; q < step->n_seq; q++)
        for (int32_t r = step->seq_first[q]; r < step->seq_first[q + 1]; r++) {
            p->row_seq[r] = q;
            p->row_at[r] = step->seq_past[q] + r - step->seq_first[q];
        }
    for (int32_t i = 0; step->coarse && i < step->n_out; i++) p->coarse_out[i] = step->coarse[step->out_rows[i]];
    ob_pool_run(p->dev->pool, step_main, p);
    return OB_OK;
}
