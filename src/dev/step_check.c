#include "dev/step_check.h"

#include "base/math.h"

static ob_status wrong(ob_err *err, const char *what, int32_t at)
{
    return ob_err_set(err, OB_E_INVALID, "step: %s (at %d)", what, at);
}

/* The first page that any query of the sequence may look at: pages before a sliding window may be gone. */
static int32_t first_page(const ob_program *p, const ob_step *s, int32_t q, int32_t page_tok)
{
    const int32_t past = s->seq_past[q];
    int32_t first = s->block_first ? OB_MIN(past, s->block_first[s->seq_first[q]]) : past;
    for (int32_t i = 0; i < p->n_ops; i++) {
        const ob_attn_params *a = &p->ops[i].p.attn;
        if (p->ops[i].kind == OB_OP_CSA) return 0; /* compressed entries of all positions */
        if (p->ops[i].kind != OB_OP_ATTENTION) continue;
        if (a->window <= 0) return 0;
        const int32_t back = a->causal ? a->window - 1 : a->window / 2;
        first = OB_MIN(first, OB_MAX(0, past - back));
    }
    return first / page_tok;
}

/* The blocks of a sequence are ranges of its tokens that hold the token they belong to and never go back. */
static ob_status check_blocks(const ob_step *s, int32_t q, ob_err *err)
{
    const int32_t t0 = s->seq_first[q], n_kv = s->seq_past[q] + s->seq_first[q + 1] - t0;
    for (int32_t t = t0; t < s->seq_first[q + 1]; t++) {
        const int32_t at = s->seq_past[q] + t - t0, first = s->block_first[t], end = s->block_end[t];
        if (first < 0 || first > at || end <= at || end > n_kv) return wrong(err, "a block does not hold its token", t);
        if (t > t0 && (first < s->block_first[t - 1] || end < s->block_end[t - 1]))
            return wrong(err, "blocks are out of order", t);
    }
    return OB_OK;
}

static ob_status check_sequence(const ob_program *p, const ob_step *s, int32_t q, int32_t page_tok,
                                int32_t n_pages, int32_t max_ctx, ob_err *err)
{
    const int32_t n = s->seq_first[q + 1] - s->seq_first[q], past = s->seq_past[q];
    if (n < 1) return wrong(err, "a sequence has no tokens or sequences overlap", q);
    if (past < 0) return wrong(err, "a sequence has a negative past", q);
    if (s->block_first) OB_TRY(check_blocks(s, q, err));
    if (!p->n_caches) return OB_OK;
    if (past > max_ctx - n) return wrong(err, "a sequence passes the context length", q);
    const int32_t n_used = (int32_t)ob_div_up((int64_t)past + n, page_tok);
    if (n_used > s->max_pages) return wrong(err, "a page table is too short", q);
    const int32_t *pages = s->page_table + (size_t)q * (size_t)s->max_pages;
    for (int32_t i = first_page(p, s, q, page_tok); i < n_used; i++)
        if (pages[i] < 0 || pages[i] >= n_pages) return wrong(err, "a page id is out of range", q);
    return OB_OK;
}

/* Ids are in the table, and those below 0 among the step's vectors. */
static ob_status check_ids(const ob_program *p, const ob_step *s, const ob_op *op, ob_err *err)
{
    const int64_t n = op->w[0] == OB_NONE ? 0 : p->weights[op->w[0]].ne[1];
    const int32_t n_vec = op->p.embed.vectors && s->vec ? s->n_vec : 0;
    for (int32_t t = 0; t < s->n_tok; t++)
        if (s->tok[t] >= n || s->tok[t] < -n_vec) return wrong(err, "a token id is out of range", t);
    return OB_OK;
}

/* Merged rows lie within the step. */
static ob_status check_merged(const ob_step *s, const ob_op *op, ob_err *err)
{
    for (int32_t i = 0; i < s->n_out; i++)
        if (s->out_rows[i] > s->n_tok - op->p.merge.n) return wrong(err, "merged rows pass the end of the step", i);
    return OB_OK;
}

/* Rows that an op looks up are in its table. */
static ob_status check_rows(const ob_program *p, const ob_step *s, const ob_op *op, ob_err *err)
{
    const int32_t *rows;
    const char *what;
    if (op->kind == OB_OP_EMBED) return check_ids(p, s, op, err);
    if (op->kind == OB_OP_MERGE) return check_merged(s, op, err);
    if (op->kind == OB_OP_ADD_ROW && op->p.add_row.by == OB_ROW_OF_POSITION) {
        rows = s->pos;
        what = "a position is past the table of positions";
    } else if (op->kind == OB_OP_ADD_ROW) {
        rows = s->type;
        what = "a token type is out of range";
    } else {
        return OB_OK;
    }
    const int64_t n = p->weights[op->w[0]].ne[1];
    for (int32_t t = 0; rows && t < s->n_tok; t++)
        if (rows[t] < 0 || rows[t] >= n) return wrong(err, what, t);
    return OB_OK;
}

ob_status ob_step_check(const ob_program *p, const ob_step *s, int32_t page_tok, int32_t n_pages, int32_t max_ctx,
                        int32_t n_slots, ob_err *err)
{
    if (s->n_tok < 1 || s->n_tok > p->max_tok) return wrong(err, "number of tokens outside the bucket", s->n_tok);
    if (s->n_seq < 1 || s->n_seq > p->max_seq) return wrong(err, "number of sequences outside the bucket", s->n_seq);
    if (s->n_out < 0 || s->n_out > p->max_out) return wrong(err, "number of outputs outside the bucket", s->n_out);
    if (s->seq_first[0] != 0 || s->seq_first[s->n_seq] != s->n_tok)
        return wrong(err, "sequences do not cover the tokens", s->n_tok);
    for (int32_t q = 0; q < s->n_seq; q++) {
        OB_TRY(check_sequence(p, s, q, page_tok, n_pages, max_ctx, err));
        if (p->n_states && (s->seq_slot[q] < 0 || s->seq_slot[q] >= n_slots))
            return wrong(err, "a state slot is out of range", q);
    }
    for (int32_t i = 0; i < s->n_out; i++)
        if (s->out_rows[i] < 0 || s->out_rows[i] >= s->n_tok) return wrong(err, "an output row is out of range", i);
    for (int32_t i = 0; i < p->n_ops; i++) OB_TRY(check_rows(p, s, &p->ops[i], err));
    return OB_OK;
}
