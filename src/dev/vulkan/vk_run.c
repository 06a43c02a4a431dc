/* A step: its parameters into the plan's memory, one submit (several where it takes long), the results. */
#include "dev/vulkan/vk_int.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/math.h"
#include "dev/step_check.h"

/* The most segments that a token's cache is cut into; `most`: tokens of the longest sequence. */
static uint32_t segments(const ob_dev_plan *p, const vk_indirect *g, const ob_step *step, int32_t most)
{
    if (g->seg) return (uint32_t)ob_div_up(most, g->seg);
    uint32_t n_seg = 1;
    for (int32_t q = 0; q < step->n_seq; q++) {
        const int32_t past = step->seq_past[q], n = step->seq_first[q + 1] - step->seq_first[q];
        for (int32_t k = 0; k < n; k++) {
            const uint32_t s = vk_attn_one_segments(p->dev, g->a, (uint32_t)(past + k));
            n_seg = OB_MAX(n_seg, s);
        }
    }
    return n_seg;
}

/* Blocks, axes and vectors of pictures, where the program has a use for them. */
static void write_picture_params(ob_dev_plan *p, const ob_step *step)
{
    uint8_t *m = p->params.map;
    for (int32_t q = 0; q < step->n_seq && p->blocks; q++)
        for (int32_t r = step->seq_first[q]; r < step->seq_first[q + 1]; r++) {
            const int32_t at = step->seq_past[q] + r - step->seq_first[q];
            const uint32_t block[4] = {(uint32_t)(step->block_first ? step->block_first[r] : at),
                                       (uint32_t)(step->block_first ? step->block_end[r] : at + 1)};
            memcpy(m + p->info_off + ((uint64_t)p->prog.max_tok + (uint64_t)r) * 16, block, 16);
        }
    if (p->pos_h_off) {
        memcpy(m + p->pos_h_off, step->pos_h ? step->pos_h : step->pos, (size_t)step->n_tok * 4);
        memcpy(m + p->pos_w_off, step->pos_w ? step->pos_w : step->pos, (size_t)step->n_tok * 4);
    }
    if (p->vec_off && step->n_vec)
        memcpy(m + p->vec_off, step->vec, (size_t)step->n_vec * (size_t)(p->vec_bytes / (uint64_t)p->prog.max_tok));
}

/* Which rows are rounded to 4 bits, where a weight asks for that. */
static void write_coarse(ob_dev_plan *p, const ob_step *step)
{
    if (!p->coarse_off[0]) return;
    uint32_t *tok = (uint32_t *)(void *)(p->params.map + p->coarse_off[0]),
             *out = (uint32_t *)(void *)(p->params.map + p->coarse_off[1]);
    for (int32_t i = 0; i < step->n_tok; i++) tok[i] = step->coarse && step->coarse[i];
    for (int32_t i = 0; i < step->n_out; i++) out[i] = step->coarse && step->coarse[step->out_rows[i]];
}

/* Nothing here allocates. The memory is written front to back, because it may be write-combined. */
static void write_params(ob_dev_plan *p, const ob_step *step)
{
    uint8_t *m = p->params.map;
    vk_params h = {
        .n_rows = {(uint32_t)step->n_tok, (uint32_t)step->n_out, (uint32_t)step->n_seq, 0},
        .coarse = {(uint32_t)(p->coarse_off[0] / 4), (uint32_t)(p->coarse_off[1] / 4)}};
    int32_t most = 1;
    double seen = 0;
    for (int32_t q = 0; q < step->n_seq; q++) {
        const int32_t n = step->seq_first[q + 1] - step->seq_first[q];
        most = OB_MAX(most, step->seq_past[q] + n);
        seen += n * (step->seq_past[q] + 0.5 * (n + 1));
    }
    for (int32_t i = 0; i < p->n_indirect; i++) {
        const vk_indirect *g = &p->indirect[i];
        if (g->when != VK_ALWAYS && (g->when == VK_SINGLES) != (step->n_tok == step->n_seq)) continue;
        h.split[i] = (VkDispatchIndirectCommand){g->z ? g->x : (uint32_t)step->n_tok, g->y, g->z ? g->z : segments(p, g, step, most)};
    }
    memcpy(m, &h, sizeof h);
    memcpy(m + p->tok_off, step->tok, (size_t)step->n_tok * 4);
    memcpy(m + p->pos_off, step->pos, (size_t)step->n_tok * 4);
    if (step->type)
        memcpy(m + p->type_off, step->type, (size_t)step->n_tok * 4);
    else
        memset(m + p->type_off, 0, (size_t)step->n_tok * 4);
    memcpy(m + p->first_off, step->seq_first, ((size_t)step->n_seq + 1) * 4);
    for (int32_t q = 0; q < step->n_seq; q++) {
        const int32_t first = step->seq_first[q], last = step->seq_first[q + 1],
                      past = step->seq_past[q];
        for (int32_t r = first; r < last; r++) {
            const uint32_t info[4] = {(uint32_t)q, (uint32_t)(past + r - first),
                                      (uint32_t)(past + last - first),
                                      (uint32_t)OB_MAX(step->pos[r], 0)};
            memcpy(m + p->info_off + (uint64_t)r * 16, info, 16);
        }
    }
    for (int32_t q = 0; q < step->n_seq; q++) {
        const uint32_t seq[4] = {(uint32_t)step->seq_first[q], (uint32_t)step->seq_first[q + 1],
                                 (uint32_t)step->seq_past[q],
                                 (uint32_t)(step->seq_slot ? step->seq_slot[q] : 0)};
        memcpy(m + p->seq_off + (uint64_t)q * 16, seq, 16);
    }
    write_picture_params(p, step);
    if (step->n_out) memcpy(m + p->out_off, step->out_rows, (size_t)step->n_out * 4);
    for (int32_t q = 0; q < step->n_seq && p->max_pages; q++) {
        const int32_t n_kv = step->seq_past[q] + step->seq_first[q + 1] - step->seq_first[q];
        memcpy(m + p->table_off + (uint64_t)q * (uint64_t)p->max_pages * 4,
               step->page_table + (size_t)q * (size_t)step->max_pages,
               (size_t)ob_div_up(n_kv, p->page_tok) * 4);
    }
    write_coarse(p, step);
    p->n_tok = step->n_tok;
    p->n_out = step->n_out;
    p->n_seq = step->n_seq;
    p->n_kv = seen / step->n_tok;
}

/* --- times ------------------------------------------------------------------------------------ */

/* The row of this name; NULL when there are too many. */
static vk_profile *row_of(vk_dev *d, const char *name)
{
    int i = 0;
    while (i < d->n_prof && strcmp(d->prof[i].name, name) != 0) i++;
    if (i == VK_MAX_PROFILE) return NULL;
    vk_profile *f = &d->prof[i];
    if (i == d->n_prof) {
        *f = (vk_profile){0};
        snprintf(f->name, sizeof f->name, "%s", name);
        d->n_prof++;
    }
    return f;
}

static void note(vk_dev *d, const ob_dev_plan *p, const vk_dispatch *s, double ms)
{
    vk_profile *f = row_of(d, s->kernel);
    if (!f) return;
    f->calls++;
    f->ms += ms;
    if (s->op < 0) return;
    const ob_op *op = &p->prog.ops[s->op];
    if (op->kind == OB_OP_LINEAR && s->mat >= 0) {
        const int32_t rows = ob_value_rows(&p->prog, op->in[0], p->n_tok, p->n_out, p->n_seq);
        for (int m = s->mat; m < s->mat + s->n_mats; m++) {
            const ob_dev_weight *w = p->weights[op->w[m]];
            f->flops += 2.0 * rows * (double)w->desc.ne[0] * (double)w->desc.ne[1];
            f->bytes += (double)w->read_bytes + 4.0 * rows * (double)(w->desc.ne[0] + w->desc.ne[1]);
        }
    } else if (op->kind != OB_OP_ATTENTION || strncmp(s->kernel, "attn", 4) == 0) {
        const ob_cost c =
            ob_op_cost(&p->prog, s->op, p->n_tok, p->n_out, p->n_kv, p->k_type, p->v_type);
        if (op->kind != OB_OP_LINEAR) f->flops += c.flops;
        f->bytes += c.act_bytes + c.cache_bytes;
    }
}

/* Processor time of a submit, beside the device's times. */
static void note_host(vk_dev *d, double ms)
{
    vk_profile *f = row_of(d, "(host: submit)");
    if (!f) return;
    f->calls++;
    f->ms += ms;
}

static void collect_times(vk_dev *d)
{
    ob_dev_plan *p = d->timed;
    if (!p) return;
    d->timed = NULL;
    uint64_t before = 0;
    for (int32_t i = 0; i <= p->n_steps; i++) {
        uint64_t t;
        if (d->GetQueryPoolResults(d->handle, p->times, (uint32_t)i, 1, sizeof t, &t, sizeof t,
                                   VK_QUERY_RESULT_64_BIT) != VK_SUCCESS)
            return;
        if (i)
            note(d, p, &p->steps[i - 1],
                 (double)(t - before) * (double)d->phys->timestamp_ns * 1e-6);
        before = t;
    }
}

int vk_profile_read(ob_dev *dev, ob_profile_row *rows, int cap, bool reset)
{
    vk_dev *d = vk_of(dev);
    const int n = d->n_prof;
    for (int i = 0; i < n && i < cap; i++)
        rows[i] = (ob_profile_row){.name = d->prof[i].name,
                                   .calls = d->prof[i].calls,
                                   .ms = d->prof[i].ms,
                                   .flops = d->prof[i].flops,
                                   .bytes = d->prof[i].bytes};
    if (reset) d->n_prof = 0;
    return n;
}

/* --- a step ----------------------------------------------------------------------------------- */

/* The segments are cut for a scale that is far from what was measured: cut them again. Rare: the scale must
 * have doubled, or the segments have been far shorter than they might be. */
static ob_status recut(ob_dev_plan *p, ob_err *err)
{
    const double change = p->scale / p->cut_scale;
    if (change < 2 && (change > 0.125 || p->n_segments == 1)) return OB_OK;
    double worst = 0;
    for (int32_t i = 0; i < p->n_segments; i++) worst = OB_MAX(worst, vk_time_worst(p, &p->segments[i].cost));
    if (change >= 2 && worst <= p->dev->submit_ms) {
        p->cut_scale = p->scale;
        return OB_OK;
    }
    return vk_record(p, err);
}

/* As many segments in each submit as the bound allows. */
static ob_status submit_segments(ob_dev_plan *p, ob_err *err)
{
    vk_dev *d = p->dev;
    VkCommandBuffer cmds[VK_MAX_SUBMIT];
    p->nominal_ms = 0;
    for (int32_t i = 0; i < p->n_segments;) {
        double ms = 0;
        uint32_t n = 0;
        for (; i < p->n_segments && n < VK_MAX_SUBMIT; i++) {
            const double more = vk_time_nominal(&p->segments[i].cost, p->n_tok, p->n_kv);
            if (n && (ms + more) * p->scale > d->submit_ms) break;
            cmds[n++] = p->segments[i].cmd;
            ms += more;
        }
        OB_TRY(vk_queue_submit(d, n, cmds, err));
        d->n_submits += !d->testing;
        p->nominal_ms += ms;
        p->in_flight = d->last;
    }
    return OB_OK;
}

ob_status vk_submit(ob_dev *dev, ob_dev_plan *p, const ob_step *step, ob_fence *out, ob_err *err)
{
    vk_dev *d = vk_of(dev);
    *out = 0;
    OB_TRY(ob_step_check(&p->prog, step, p->page_tok, p->n_pages, p->max_ctx, p->n_slots, err));
    if (!d->testing) OB_TRY(vk_fault(d, err));
    if (p->in_flight) OB_TRY(vk_queue_wait(d, p->in_flight, err));
    collect_times(d);
    OB_TRY(recut(p, err));
    const double t0 = ob_now_ms();
    write_params(p, step);
    p->t_submit = ob_now_ms();
    OB_TRY(submit_segments(p, err));
    if (p->times) note_host(d, ob_now_ms() - t0);
    *out = p->in_flight;
    d->running = p;
    if (p->times) d->timed = p;
    return OB_OK;
}

/* A thread that a driver wakes comes back late, by a share of a small step that counts. So it sleeps through most
 * of what the last such step took, and looks for the end itself; not for long: then the driver waits after all. */
static void look_for_end(vk_dev *d, const ob_dev_plan *p, uint64_t value)
{
    static const double LONGEST_MS = 10, LOOK_MS = 0.3, SLEEP = 0.75;
    const double begun = ob_now_ms(), left = p->last_ms - (begun - p->t_submit);
    if (d->phys->soft || d->phys->integrated || p->last_ms == 0 || p->last_ms > LONGEST_MS || left < 0) return;
    const long ns = (long)((left * SLEEP - 0.1) * 1e6);
    if (ns > 0) (void)nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    while (ob_now_ms() < begun + left + LOOK_MS) {
        uint64_t now;
        if (d->GetSemaphoreCounterValue(d->handle, d->timeline, &now) != VK_SUCCESS || now >= value) return;
    }
}

ob_status vk_wait(ob_dev *dev, ob_fence f, ob_err *err)
{
    vk_dev *d = vk_of(dev);
    if (d->running && d->running->in_flight == f) look_for_end(d, d->running, f);
    OB_TRY(vk_queue_wait(d, f, err));
    if (d->running && d->running->in_flight <= f) {
        vk_time_measured(d->running, ob_now_ms() - d->running->t_submit);
        d->running = NULL;
    }
    if (d->timed && d->timed->in_flight <= f) collect_times(d);
    return OB_OK;
}

ob_status vk_write_input(ob_dev *dev, ob_dev_plan *p, ob_val v, const float *src, int32_t n_rows, ob_err *err)
{
    if (v < 0 || v >= p->prog.n_vals || !p->prog.vals[v].input)
        return ob_err_set(err, OB_E_INVALID, "value %d is not an input", v);
    if (n_rows < 0 || n_rows > vk_max_rows(p, p->prog.vals[v].rows))
        return ob_err_set(err, OB_E_INVALID, "%d rows are more than the plan has", n_rows);
    if (p->in_flight) OB_TRY(vk_queue_wait(vk_of(dev), p->in_flight, err));
    if (n_rows)
        memcpy(p->inputs.map + p->input_off[v], src, (size_t)n_rows * (size_t)p->prog.vals[v].cols * sizeof *src);
    return OB_OK;
}

ob_status vk_read_output(ob_dev *dev, ob_dev_plan *p, ob_val v, int32_t row, int32_t n_rows,
                         float *dst, ob_err *err)
{
    if (v < 0 || v >= p->prog.n_vals || !p->prog.vals[v].output || p->prog.vals[v].first < 0)
        return ob_err_set(err, OB_E_INVALID, "value %d is not an output", v);
    const int32_t have = ob_value_rows(&p->prog, v, p->n_tok, p->n_out, p->n_seq);
    if (row < 0 || n_rows < 0 || row > have - n_rows)
        return ob_err_set(err, OB_E_INVALID, "rows %d..+%d of %d", row, n_rows, have);
    const uint64_t row_bytes = (uint64_t)p->prog.vals[v].cols * 4, off = (uint64_t)row * row_bytes;
    if (p->result_off[v] == UINT64_MAX)
        return vk_download(vk_of(dev), &p->work, p->prog.vals[v].offset + off, dst,
                           (uint64_t)n_rows * row_bytes, err);
    OB_TRY(vk_queue_wait(vk_of(dev), p->in_flight, err));
    memcpy(dst, p->results.map + p->result_off[v] + off, (size_t)((uint64_t)n_rows * row_bytes));
    return OB_OK;
}
