/* A step: its parameters into the plan's memory, every dispatch, one flush; the results. */
#include "dev/hrx/hrx_int.h"

#include <stdio.h>
#include <string.h>

#include "dev/step_check.h"

/* ---- parameters ------------------------------------------------------------------------------ */

static size_t place(size_t *at, size_t n)
{
    const size_t here = *at;
    *at = ob_align_up(here + n, 64);
    return here;
}

void hx_layout_make(ob_dev_plan *p)
{
    const size_t tok = (size_t)p->prog.max_tok, seq = (size_t)p->prog.max_seq;
    size_t n = 0, vec_cols = 0;
    for (int32_t i = 0; i < p->prog.n_ops; i++)
        if (p->prog.ops[i].kind == OB_OP_EMBED && p->prog.ops[i].p.embed.vectors) vec_cols = (size_t)p->prog.vals[p->prog.ops[i].out[0]].cols;
    p->at.tok = place(&n, tok * 4);
    p->at.pos = place(&n, tok * 12); /* three axes */
    p->at.type = place(&n, tok * 4);
    p->at.out = place(&n, (size_t)p->prog.max_out * 4 + 4);
    p->at.coarse = place(&n, tok * 4);
    p->at.coarse_out = place(&n, (size_t)p->prog.max_out * 4 + 4);
    p->at.info = place(&n, tok * 16);
    p->at.block = place(&n, tok * 16);
    p->at.seq = place(&n, seq * 16);
    p->at.table = place(&n, seq * (size_t)p->max_pages * 4 + 4);
    p->at.vec = place(&n, tok * vec_cols * 4);
    p->at.n_bytes = n;
}

static void copy_words(uint8_t *to, const int32_t *from, int32_t n)
{
    if (n > 0) memcpy(to, from, (size_t)n * 4);
}

static void write_tokens(ob_dev_plan *p, const ob_step *st)
{
    for (int32_t q = 0; q < st->n_seq; q++) {
        const int32_t first = st->seq_first[q], last = st->seq_first[q + 1], past = st->seq_past[q];
        for (int32_t r = first; r < last; r++) {
            const int32_t at = past + r - first, info[4] = {q, at, past + last - first, 0};
            const int32_t block[4] = {st->block_first ? st->block_first[r] : at, st->block_first ? st->block_end[r] : at + 1};
            memcpy(p->host + p->at.info + (size_t)r * 16, info, 16);
            memcpy(p->host + p->at.block + (size_t)r * 16, block, 16);
        }
        const int32_t seq[4] = {first, last, past, st->seq_slot ? st->seq_slot[q] : 0};
        memcpy(p->host + p->at.seq + (size_t)q * 16, seq, 16);
        copy_words(p->host + p->at.table + (size_t)q * (size_t)p->max_pages * 4, st->page_table + (size_t)q * (size_t)st->max_pages,
                   p->prog.n_caches ? OB_MIN(st->max_pages, p->max_pages) : 0);
    }
}

static void write_coarse(ob_dev_plan *p, const ob_step *st)
{
    int32_t *tok = (int32_t *)(void *)(p->host + p->at.coarse), *out = (int32_t *)(void *)(p->host + p->at.coarse_out);
    for (int32_t r = 0; r < st->n_tok; r++) tok[r] = st->coarse ? st->coarse[r] : 0;
    for (int32_t r = 0; r < st->n_out; r++) out[r] = st->coarse ? st->coarse[st->out_rows[r]] : 0;
}

static void write_params(ob_dev_plan *p, const ob_step *st)
{
    const size_t axis = (size_t)p->prog.max_tok * 4;
    uint8_t *h = p->host;
    copy_words(h + p->at.tok, st->tok, st->n_tok);
    copy_words(h + p->at.pos, st->pos, st->n_tok);
    copy_words(h + p->at.pos + axis, st->pos_h ? st->pos_h : st->pos, st->n_tok);
    copy_words(h + p->at.pos + 2 * axis, st->pos_w ? st->pos_w : st->pos, st->n_tok);
    if (st->type) copy_words(h + p->at.type, st->type, st->n_tok);
    else memset(h + p->at.type, 0, (size_t)st->n_tok * 4);
    copy_words(h + p->at.out, st->out_rows, st->n_out);
    write_coarse(p, st);
    write_tokens(p, st);
    const size_t vec_bytes = p->at.n_bytes - p->at.vec;
    if (vec_bytes && st->vec) memcpy(h + p->at.vec, st->vec, vec_bytes / (size_t)p->prog.max_tok * (size_t)st->n_vec);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Segments of the longest sequence: attention's first axis. */
static uint32_t segments(const ob_step *st, uint32_t seg_tiles)
{
    int32_t most = 1;
    for (int32_t q = 0; q < st->n_seq; q++) most = OB_MAX(most, st->seq_past[q] + st->seq_first[q + 1] - st->seq_first[q]);
    return (uint32_t)ob_div_up(most, (int64_t)HX_TILE * seg_tiles);
}

static ob_status send(ob_dev_plan *p, hx_dispatch *x, const ob_step *st, uint32_t *n_seg, ob_err *err)
{
    const hx_lib *l = p->dev->lib;
    const int32_t rows = x->rows == HX_TOK ? st->n_tok : x->rows == HX_OUT ? st->n_out : x->rows == HX_SEQ ? st->n_seq : 1;
    if (rows == 0) return OB_OK;
    if (x->rows != HX_FIXED) x->cfg.count[x->axis] = (uint32_t)ob_div_up(rows, x->per);
    if (x->rows_at >= 0) x->consts[x->rows_at] = (uint32_t)rows;
    hx_ref kept = {0};
    const bool attends = x->seg_at >= 0 && !x->merges;
    if (attends) {
        *n_seg = segments(st, x->consts[x->seg_at - 1]);
        x->cfg.count[0] = *n_seg;
        kept = x->refs[x->n_refs - 1];
        if (*n_seg == 1) x->refs[x->n_refs - 1] = x->whole;
    }
    if (x->merges && *n_seg == 1) return OB_OK;
    if (x->seg_at >= 0) x->consts[x->seg_at] = *n_seg;
    const ob_status s = hx_check(l, l->stream_dispatch(p->dev->stream, x->kernel->exe, x->kernel->ordinal, &x->cfg, x->consts,
                                                       x->n_consts * 4, x->refs, x->n_refs, 0), x->kernel->name, err);
    if (attends) x->refs[x->n_refs - 1] = kept;
    return s;
}

static ob_status send_transfers(ob_dev_plan *p, bool to_device, ob_err *err)
{
    const hx_lib *l = p->dev->lib;
    for (ob_val v = 0; v < p->prog.n_vals; v++) {
        const ob_value *x = &p->prog.vals[v];
        const size_t n = (size_t)ob_value_rows(&p->prog, v, p->n_tok, p->n_out, p->n_seq) * (size_t)x->cols * 4;
        if (!n) continue;
        if (to_device && x->input)
            OB_TRY(hx_check(l, l->stream_copy_h2d(p->dev->stream, p->inputs[v], p->work, x->offset, n), "writing inputs", err));
        if (!to_device && p->result_off[v] != SIZE_MAX)
            OB_TRY(hx_check(l, l->stream_copy_d2h(p->dev->stream, p->work, x->offset, p->results + p->result_off[v], n), "reading results", err));
    }
    return OB_OK;
}

ob_status hx_submit(ob_dev *dev, ob_dev_plan *p, const ob_step *step, ob_fence *out, ob_err *err)
{
    hx_dev *d = hx_of(dev);
    *out = 0;
    if (d->lost) return ob_err_set(err, OB_E_DEVICE_LOST, "hrx: the device was lost");
    OB_TRY(ob_step_check(&p->prog, step, p->page_tok, p->n_pages, p->max_ctx, p->n_slots, err));
    if (p->in_flight && d->pending) OB_TRY(hx_quiet(d, err));
    p->n_tok = step->n_tok;
    p->n_out = step->n_out;
    p->n_seq = step->n_seq;
    write_params(p, step);
    OB_TRY(hx_check(d->lib, d->lib->stream_copy_h2d(d->stream, p->host, p->params, 0, p->at.n_bytes), "writing parameters", err));
    d->pending = true;
    OB_TRY(send_transfers(p, true, err));
    uint32_t n_seg = 1;
    for (int32_t i = 0; i < p->n_steps; i++) OB_TRY(send(p, &p->steps[i], step, &n_seg, err));
    OB_TRY(send_transfers(p, false, err));
    OB_TRY(hx_check(d->lib, d->lib->stream_flush(d->stream), "starting a step", err));
    d->n_submits++;
    *out = p->in_flight = ++d->ticket;
    return OB_OK;
}

ob_status hx_wait(ob_dev *dev, ob_fence f, ob_err *err)
{
    return f ? hx_quiet(hx_of(dev), err) : OB_OK;
}

ob_status hx_write_input(ob_dev *dev, ob_dev_plan *p, ob_val v, const float *src, int32_t n_rows, ob_err *err)
{
    if (v < 0 || v >= p->prog.n_vals || !p->prog.vals[v].input) return ob_err_set(err, OB_E_INVALID, "value %d is not an input", v);
    if (n_rows < 0 || n_rows > hx_max_rows(p, p->prog.vals[v].rows))
        return ob_err_set(err, OB_E_INVALID, "%d rows are more than the plan has", n_rows);
    OB_TRY(hx_quiet(hx_of(dev), err));
    if (n_rows) memcpy(p->inputs[v], src, (size_t)n_rows * (size_t)p->prog.vals[v].cols * sizeof *src);
    return OB_OK;
}

ob_status hx_read_output(ob_dev *dev, ob_dev_plan *p, ob_val v, int32_t row, int32_t n_rows, float *dst, ob_err *err)
{
    hx_dev *d = hx_of(dev);
    if (v < 0 || v >= p->prog.n_vals || !p->prog.vals[v].output || p->prog.vals[v].first < 0)
        return ob_err_set(err, OB_E_INVALID, "value %d is not an output", v);
    const int32_t have = ob_value_rows(&p->prog, v, p->n_tok, p->n_out, p->n_seq);
    if (row < 0 || n_rows < 0 || row > have - n_rows) return ob_err_set(err, OB_E_INVALID, "rows %d..+%d of %d", row, n_rows, have);
    const size_t row_bytes = (size_t)p->prog.vals[v].cols * 4, off = (size_t)row * row_bytes, n = (size_t)n_rows * row_bytes;
    OB_TRY(hx_quiet(d, err));
    if (p->result_off[v] != SIZE_MAX) {
        memcpy(dst, p->results + p->result_off[v] + off, n);
        return OB_OK;
    }
    return n ? hx_check(d->lib, d->lib->synchronous_d2h(d->device, p->work, p->prog.vals[v].offset + off, dst, n), "reading results", err) : OB_OK;
}
