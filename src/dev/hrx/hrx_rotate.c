/* Activations of Hadamard-rotated weights (loom/rotate.loom): rows turned and rounded into a plan's scratch, from where
 * products take them. */
#include "dev/hrx/hrx_int.h"

enum { ROTATE_WG = 4 /* blocks */ };

hx_turn hx_turn_of(const ob_weight *w) { return !w->hadamard ? HX_AS_IS : w->act4 ? HX_TURNED_4 : HX_TURNED; }

/* Areas of the two kinds, one after the other. */
size_t hx_turned_bytes(const ob_dev_plan *p, ob_val in)
{
    const ob_value *x = &p->prog.vals[in];
    return ob_align_up((size_t)hx_max_rows(p, x->rows) * (size_t)x->cols * 4, 256);
}

/* round: to 8 bits, but in exact mode. Products by matrices go without, as they take f16. */
void hx_add_turn(hx_make *m, hx_turn turn, ob_rows rows, int64_t cols, int32_t per, bool round, hx_ref from, hx_ref to)
{
    const ob_dev_plan *p = m->plan;
    const bool out = rows == OB_ROWS_OUT;
    hx_dispatch *x = hx_add(m, "rotate", "rotate", 3, 3);
    hx_grid(x, ob_div_up(cols / 32, ROTATE_WG), per, 1);
    hx_follow(x, 2, rows, 1);
    hx_int(x, cols);
    hx_int(x, per);
    hx_int(x, (round && !p->dev->exact ? 1 : 0) | (turn == HX_TURNED_4 && rows != OB_ROWS_SEQ ? 2 : 0));
    hx_mem(x, from.buffer, from.offset, from.length);
    hx_param(m, x, out ? p->at.coarse_out : p->at.coarse, (size_t)(out ? p->prog.max_out : p->prog.max_tok) * 4);
    hx_mem(x, to.buffer, to.offset, to.length);
}

hx_ref hx_turned(hx_make *m, ob_val in, hx_turn turn, size_t off, bool round, bool made[2])
{
    const ob_dev_plan *p = m->plan;
    const ob_value *x = &p->prog.vals[in];
    const uint64_t n = (uint64_t)hx_max_rows(p, x->rows) * (uint64_t)x->cols * 4;
    const hx_ref plain = {p->work, x->offset, n};
    if (turn == HX_AS_IS) return plain;
    const hx_ref to = {p->scratch, off + (size_t)(turn - 1) * hx_turned_bytes(p, in), n};
    if (!made[turn - 1]) hx_add_turn(m, turn, x->rows, x->cols, 1, round, plain, to);
    made[turn - 1] = true;
    return to;
}
